"""Responses coloured token by token: `show_tokens` in a notebook, the same view in a report.

A row of tokens.jsonl: step, kind ("validation" or "training"), prompt, tokens, values {quantity: one
number a token}, and notes such as the reward.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

# What the quantities are called and what they say, in the order of the buttons.
QUANTITIES: dict[str, tuple[str, str]] = {
    "surprise": ("surprise", "-log p of the token, nats: 0 is certain"),
    "gap": ("log p - log q", "above 0 the teacher finds the token likelier than the student does"),
    "advantage": ("advantage", "above 0 the token is made likelier, below 0 less likely"),
    "log_ratio": (
        "log-ratio",
        "log pi_new - log pi_old, after the update; outlined: the clip acts",
    ),
    "kl": ("KL to the reference", "over the whole vocabulary at this position, nats"),
    "entropy": ("entropy", "of the policy's choice of this token, nats"),
    "log_prob": ("log-prob", "of the token under the policy that is trained, nats"),
    "value": ("value", "what the critic expects from here on, before the update"),
    "td_error": ("TD error", "r + gamma V(next) - V: how far the critic was surprised"),
    "log_p": ("log p, teacher", "of the token under the teacher, nats"),
    "log_q": ("log q, student", "of the token under the student, nats"),
    "prefix_score": ("reward of the prefix", "the score if the response ended with this token"),
}
NEGATIVE, NEUTRAL, POSITIVE = (230, 128, 30), (255, 255, 255), (70, 145, 210)  # orange to blue
BUDGET = 700_000  # characters of JSON that the view may take in a report


def show_tokens(
    tokens: Sequence[Any], values: Mapping[str, Any], *, prompts: Sequence[str] = ()
) -> TokenView:
    """Colour responses by numbers, one per token; the last expression of a notebook's cell.

    `tokens`: strings of one response, or a list of such lists. `values`: {quantity: one number a token}
    in the same shape; a padded (N, T) tensor will do. Raises ValueError where numbers are missing.
    Orange is negative, blue positive, white 0.
    """
    single = bool(tokens) and isinstance(tokens[0], str)
    rows: list[dict[str, Any]] = [
        {"tokens": list(row), "values": {}} for row in ([tokens] if single else tokens)
    ]
    for name, numbers in values.items():
        plain = numbers.tolist() if hasattr(numbers, "tolist") else numbers
        for row, given in zip(rows, [plain] if single else plain, strict=True):
            count = len(row["tokens"])
            if len(given) < count:
                raise ValueError(
                    f"{name!r} has {len(given)} numbers for {count} tokens: give each one"
                )
            row["values"][name] = list(given[:count])
    for row, prompt in zip(rows, prompts, strict=False):
        row["prompt"] = prompt
    return TokenView(rows)


@dataclass(frozen=True)
class TokenView:
    """Recorded responses as one HTML fragment, which switches quantity, response and step."""

    rows: Sequence[Mapping[str, Any]]  # as in tokens.jsonl
    name: str = field(default_factory=lambda: f"tokens-{uuid.uuid4().hex[:12]}")

    def data(self) -> dict[str, Any]:
        """What the script of the fragment reads: quantities with their scales, then frames."""
        frames = thinned(frames_of(self.rows))
        rows = [row for frame in frames for row in frame["rows"]]
        names = dict.fromkeys(name for row in rows for name in row["values"])
        known = [name for name in QUANTITIES if name in names]
        quantities = []
        for name in dict.fromkeys([*known, *names]):
            label, about = QUANTITIES.get(name, (name.replace("_", " "), ""))
            numbers = [number for row in rows for number in row["values"].get(name, ())]
            quantities.append(
                {"name": name, "label": label, "about": about, "scale": scale(numbers)}
            )
        return {"quantities": quantities, "frames": frames}

    def _repr_html_(self) -> str:
        """The fragment; without scripts (on a page of GitHub) the first quantity stays coloured."""
        data = self.data()
        return render("tokens.html", name=self.name, data=data, static=last_coloured(data))


def last_coloured(data: Mapping[str, Any]) -> list[list[tuple[str, str, float | None]]]:
    """Text, background and number of each token in the last frame, by the first quantity; none without."""
    coloured = []
    for quantity in data["quantities"][:1]:
        for row in data["frames"][-1]["rows"]:
            values = row["values"].get(quantity["name"]) or [None] * len(row["tokens"])
            colours = [colour(value, quantity["scale"]) for value in values]
            coloured.append(list(zip(row["tokens"], colours, values, strict=True)))
    return coloured


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


def thinned(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Frames that fit the budget: every other step is left out, and again, the last one stays."""
    steps = sorted({frame["step"] for frame in frames})
    while len(steps) > 1 and len(json.dumps(frames)) > BUDGET:
        steps = steps[::-1][::2][::-1]
        frames = [frame for frame in frames if frame["step"] in steps]
    return frames


# A template and its numbers -----------------------------------------------------------------------


def render(template: str, **values: object) -> str:
    """A template of this package. What is put into it is escaped, also what `tojson` writes."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.get_template(template).render(**values)


def finite(value: object) -> float | None:
    """A number for JSON: None for NaN, infinities and what is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e308:
        return None
    return float(f"{value:.5g}")
