"""Responses coloured token by token: `show_tokens` in a notebook, the same view in a report.

A row of tokens.jsonl: step, kind ("validation" or "training"), prompt, tokens, values {quantity: one
number a token}, and notes such as the reward.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.report.templating import finite, render

# What the quantities are called and what they say, in the order of the buttons.
QUANTITIES: dict[str, tuple[str, str]] = {
    "surprise": ("surprise", "-log p of the token, nats: 0 is certain"),
    "gap": ("log p - log q", "above 0 the teacher finds the token likelier than the student does"),
    "advantage": ("advantage", "above 0 the token is made likelier, below 0 less likely"),
    "log_ratio": (
        "log-ratio",
        "log pi_new - log pi_old after the step's last update; outlined: the clip acts",
    ),
    "kl": ("KL to the reference", "over the whole vocabulary at this position, nats"),
    "entropy": ("entropy", "of the policy's choice of this token, nats"),
    "log_prob": ("log-prob", "of the token under the policy that is trained, nats"),
    "value": ("value", "what the critic expects from here on, before the update"),
    "td_error": ("TD error", "r + gamma V(next) - V: how far the critic was surprised"),
    "log_p": ("log p, teacher", "of the token under the teacher, nats"),
    "log_q": ("log q, student", "of the token under the student, nats"),
    "prefix_score": (
        "reward of the prefix",
        "the reward model's score if the response ended with this token",
    ),
}
NEGATIVE, NEUTRAL, POSITIVE = (230, 128, 30), (255, 255, 255), (70, 145, 210)  # orange to blue
BUDGET = 700_000  # characters of JSON that the view may take in a report


def show_tokens(tokens: Any, values: Any, *, prompts: Sequence[str] = ()) -> TokenView:
    """Colour responses by numbers, one per token; the last expression of a notebook's cell.

    `tokens`: strings of one response, or a list of such lists. `values`: one number a token in the
    same shape, or {quantity: numbers}; a padded (N, T) tensor will do. Raises ValueError where numbers
    are missing. Orange is negative, blue positive, white 0.
    """
    single = not tokens or isinstance(tokens[0], str)
    named = values if isinstance(values, Mapping) else {"value": values}
    made: list[dict[str, Any]] = [
        {"tokens": list(row), "values": {}} for row in ([tokens] if single else tokens)
    ]
    for name, numbers in named.items():
        plain = numbers.tolist() if hasattr(numbers, "tolist") else list(numbers)
        nested = [plain] if single and not (plain and isinstance(plain[0], list)) else plain
        for i, row in enumerate(made):
            if i >= len(nested) or len(nested[i]) < len(row["tokens"]):
                raise ValueError(
                    f"{name!r} has too few numbers for response {i}, which has "
                    f"{len(row['tokens'])} tokens: give one number a token"
                )
            row["values"][name] = list(nested[i][: len(row["tokens"])])
    for row, prompt in zip(made, prompts, strict=False):
        row["prompt"] = prompt
    return TokenView(made)


@dataclass(frozen=True)
class TokenView:
    """Recorded responses as one HTML fragment, which switches quantity, response and step."""

    rows: Sequence[Mapping[str, Any]]  # as in tokens.jsonl
    budget: int = BUDGET
    name: str = field(default_factory=lambda: f"tokens-{uuid.uuid4().hex[:12]}")

    def data(self) -> dict[str, Any]:
        """What the script of the fragment reads: quantities with their scales, then frames."""
        frames = thinned(frames_of(self.rows), self.budget)
        names = dict.fromkeys(
            name for frame in frames for row in frame["rows"] for name in row["values"]
        )
        known = [name for name in QUANTITIES if name in names]
        ordered = [*known, *(name for name in names if name not in QUANTITIES)]
        quantities = [
            {
                "name": name,
                "label": QUANTITIES.get(name, (name, ""))[0],
                "about": QUANTITIES.get(name, (name, ""))[1],
                "scale": scale(
                    v
                    for frame in frames
                    for row in frame["rows"]
                    for v in row["values"].get(name, ())
                ),
            }
            for name in ordered
        ]
        return {"quantities": quantities, "frames": frames}

    def _repr_html_(self) -> str:
        """The fragment; without scripts (on a page of GitHub) the first quantity stays coloured."""
        data = self.data()
        return render("tokens.html", name=self.name, data=data, static=last_coloured(data))

    def _repr_svg_(self) -> str:
        """A still picture of the last frame, for hosts that strip the fragment of its styles."""
        data = self.data()
        if not (data["frames"] and data["quantities"]):
            return render(
                "tokens.svg", pieces=[], label="nothing recorded", scale=0.0, width=900, height=30
            )
        first = data["quantities"][0]
        pieces, y = placed(last_coloured(data), 900)
        words = {"label": first["label"], "scale": first["scale"]}
        return render("tokens.svg", pieces=pieces, width=900, height=y + 12, **words)


def last_coloured(data: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The rows of the last frame by the first quantity; none without either."""
    if not (data["frames"] and data["quantities"]):
        return []
    first = data["quantities"][0]
    return [coloured(row, first["name"], first["scale"]) for row in data["frames"][-1]["rows"]]


def coloured(row: Mapping[str, Any], name: str, scale: float) -> list[dict[str, Any]]:
    """The tokens of a row with background and number of one quantity."""
    values = row["values"].get(name) or [None] * len(row["tokens"])
    return [
        {"text": text, "colour": colour(value, scale), "value": value}
        for text, value in zip(row["tokens"], values, strict=True)
    ]


def placed(rows: Sequence[Sequence[Mapping[str, Any]]], width: int) -> tuple[list[Any], int]:
    """Coloured tokens with their places in a picture of this width, and the height below them."""
    pieces, y, letter = [], 0, 8
    for row in rows:
        x, y = 8, y + 26
        for token in row:
            text = token["text"].replace("\n", "⏎")
            wide = max(len(text), 1) * letter
            if x > 8 and x + wide > width:
                x, y = 8, y + 21
            pieces.append({**token, "text": text, "x": x, "y": y, "width": wide})
            x += wide + 1
    return pieces, y + 26


def colour(value: float | None, scale: float) -> str:
    """#rrggbb on a diverging scale: orange at -scale, white at 0, blue at +scale; grey: no number."""
    if value is None:
        return "#dddddd"
    share = max(-1.0, min(1.0, value / scale)) if scale > 0 else 0.0
    end = POSITIVE if share > 0 else NEGATIVE
    parts = (round(n + (e - n) * abs(share)) for n, e in zip(NEUTRAL, end, strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


def scale(values: Iterable[float | None]) -> float:
    """Where the colours end: the absolute value that 98% of the numbers do not exceed; 1 for none."""
    sizes = sorted(abs(value) for value in values if value is not None)
    return (sizes[int(0.98 * (len(sizes) - 1))] or sizes[-1] or 1.0) if sizes else 1.0


def frames_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows by step and kind, in the order of the steps; numbers that are not finite become None."""
    frames: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows:
        plain = {
            "prompt": str(row.get("prompt", "")),
            "tokens": [str(token) for token in row["tokens"]],
            "values": {k: [finite(v) for v in numbers] for k, numbers in row["values"].items()},
            "clipped": [int(bool(c)) for c in row.get("clipped", ())],
            "notes": {k: finite(v) for k, v in row.get("notes", {}).items()},
        }
        frames.setdefault((int(row.get("step", 0)), str(row.get("kind", ""))), []).append(plain)
    return [
        {"step": step, "kind": kind, "rows": group}
        for (step, kind), group in sorted(frames.items(), key=lambda item: item[0])
    ]


def thinned(frames: list[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    """Frames that fit the budget: every other step is left out, and again, the last one stays."""
    steps = sorted({frame["step"] for frame in frames})
    while len(steps) > 1 and len(json.dumps(frames)) > budget:
        steps = steps[::-1][::2][::-1]
        frames = [frame for frame in frames if frame["step"] in steps]
    return frames
