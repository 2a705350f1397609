"""One step of GRPO as a book of frames, from the prompt to the changed probabilities.

Without scripts (on GitHub) all frames stand below each other. With them two buttons turn the pages,
and the book opens where tokens have colours.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from course.plots import CARD, INK, plain, show, table_text
from report.tokens import colour

CELL = "padding:0.25em 0.6em;border:1px solid #D0D7DE;text-align:left;vertical-align:top"
BUTTON = "font:14px sans-serif;padding:0.2em 0.9em;margin-right:0.5em"
THE_PUSH = 4  # the frame that a book of a step opens at
# No ids: a page may hold several books, and a build must not change from run to run.
SCRIPT = """<script>(function () {
  var book = document.currentScript.previousElementSibling, at = Number(book.dataset.opens);
  var frames = book.querySelectorAll("section"), bar = book.querySelector("nav");
  function turn(by) {
    at = Math.max(0, Math.min(frames.length - 1, at + by));
    frames.forEach(function (frame, i) { frame.style.display = i === at ? "block" : "none"; });
    bar.querySelector("span").textContent = (at + 1) + " of " + frames.length;
  }
  bar.style.display = "block";
  var buttons = bar.querySelectorAll("button");
  buttons[0].onclick = function () { turn(-1); };
  buttons[1].onclick = function () { turn(1); };
  turn(0);
})();</script>"""


@dataclass(frozen=True)
class Frame:
    """A page of the book: a title, one sentence, and a table whose cells may be tokens with numbers."""

    title: str
    says: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]  # a cell: text, a number (coloured by its sign), or Tokens


@dataclass(frozen=True)
class Tokens:
    """A cell of coloured tokens: orange for a negative number, blue for a positive one."""

    texts: Sequence[str]
    numbers: Sequence[float] | None = None
    scale: float = 1.0

    def html(self) -> str:
        spans = []
        for index, text in enumerate(self.texts):
            shown = html.escape(text.replace("\n", "⏎"))
            if self.numbers is None:
                spans.append(f'<span style="border-right:1px solid #C8CDD3">{shown}</span>')
                continue
            number = self.numbers[index]
            back = colour(number, self.scale)
            spans.append(
                f'<span title="{number:+.3f}" style="background:{back};color:#000">{shown}</span>'
            )
        return f'<span style="white-space:pre-wrap">{"".join(spans)}</span>'

    def text(self) -> str:
        if self.numbers is None:
            return "|".join(self.texts).replace("\n", " ")
        pairs = zip(self.texts, self.numbers, strict=False)
        return " ".join(f"{text.strip()}({number:+.2f})" for text, number in pairs)


def step(
    prompt: str,
    tokens: Sequence[Sequence[str]],  # G answers, each a list of token texts
    rewards: Any,  # (G,)
    advantages: Any,  # (G,) or (G, 1)
    push: Any,  # (G, T): minus the gradient of the loss for each log-prob
    before: Any,  # (G, T): probability of each token before the update
    after: Any,  # (G, T): and after it
) -> None:
    """Show one step for one prompt: answers, rewards, advantages, push, probabilities.

    Padded columns are cut off at the number of an answer's tokens.
    """
    show_frames(frames_of(prompt, tokens, rewards, advantages, push, before, after), THE_PUSH)


def frames_of(
    prompt: str, tokens: Any, rewards: Any, advantages: Any, push: Any, before: Any, after: Any
) -> list[Frame]:
    """The six frames of `step`."""
    R, A = flat(rewards), flat(advantages)
    pushes, first, then = (rows_of(x, tokens) for x in (push, before, after))
    change = [[b - a for a, b in zip(p, q, strict=True)] for p, q in zip(first, then, strict=True)]
    answers = [Tokens(row) for row in tokens]
    names = [f"answer {i + 1}" for i in range(len(tokens))]
    mean = sum(R) / len(R)
    return [
        Frame("The prompt", "One prompt of the batch.", ["prompt"], [[prompt.strip()]]),
        Frame(
            "The answers",
            f"The policy samples {len(tokens)} answers, token by token.",
            ["", "tokens"],
            list(zip(names, answers, strict=True)),
        ),
        Frame(
            "The rewards",
            f"Each whole answer gets one number. The group's mean is {mean:.2f}.",
            ["", "tokens", "reward"],
            [[n, a, f"{r:.2f}"] for n, a, r in zip(names, answers, R, strict=True)],
        ),
        Frame(
            "The advantages",
            "The reward minus the group's mean, in standard deviations: all tokens share it.",
            ["", "reward", "advantage"],
            [[n, f"{r:.2f}", a] for n, r, a in zip(names, R, A, strict=True)],
        ),
        Frame(
            "The push on each token",
            "Minus the gradient of the loss: blue tokens are made likelier, orange ones less likely.",
            ["", "push per token", "advantage"],
            [
                [n, Tokens(t, p, largest(pushes)), a]
                for n, t, p, a in zip(names, tokens, pushes, A, strict=True)
            ],
        ),
        Frame(
            "The probabilities",
            "The change of each token's probability by this update; all tokens share one network, so "
            "some move against their push.",
            ["", "change per token", "mean before", "mean after"],
            [
                [n, Tokens(t, c, largest(change)), f"{average(p):.3f}", f"{average(q):.3f}"]
                for n, t, c, p, q in zip(names, tokens, change, first, then, strict=True)
            ],
        ),
    ]


def show_frames(frames: Sequence[Frame], opens: int = 0) -> None:
    """Show any frames as a book, open at frame `opens`; a script prints them one after the other."""
    sections = "".join(
        f'<section style="padding:0.6em 1em">{frame_html(i + 1, frame)}</section>'
        for i, frame in enumerate(frames)
    )
    bar = (
        f'<nav style="display:none;padding:0.5em 1em;border-bottom:1px solid #D0D7DE">'
        f'<button style="{BUTTON}">back</button><button style="{BUTTON}">next</button><span></span></nav>'
    )
    rich = f'<div data-opens="{opens}" style="{CARD};font-family:sans-serif">{bar}{sections}</div>{SCRIPT}'
    show(rich, "\n\n".join(frame_text(i + 1, frame) for i, frame in enumerate(frames)))


def frame_html(number: int, frame: Frame) -> str:
    head = "".join(f'<th style="{CELL}">{html.escape(column)}</th>' for column in frame.columns)
    numbers = [abs(c) for row in frame.rows for c in row if isinstance(c, float)]
    scale = max(numbers, default=1.0) or 1.0
    body = "".join(
        "<tr>" + "".join(cell_html(cell, scale) for cell in row) + "</tr>" for row in frame.rows
    )
    return (
        f"<b>{number}. {html.escape(frame.title)}</b>"
        f'<p style="margin:0.3em 0">{html.escape(frame.says)}</p>'
        f'<table style="border-collapse:collapse;{INK}"><tr>{head}</tr>{body}</table>'
    )


def cell_html(cell: Any, scale: float) -> str:
    if isinstance(cell, Tokens):
        return f'<td style="{CELL}">{cell.html()}</td>'
    if isinstance(cell, float):
        return f'<td style="{CELL};background:{colour(cell, scale)};color:#000">{cell:+.2f}</td>'
    return f'<td style="{CELL}">{html.escape(str(cell))}</td>'


def frame_text(number: int, frame: Frame) -> str:
    rows = [[cell_text(cell) for cell in row] for row in frame.rows]
    return f"{number}. {frame.title}: {frame.says}\n{table_text(frame.columns, rows)}"


def cell_text(cell: Any) -> str:
    if isinstance(cell, Tokens):
        return cell.text()
    return f"{cell:+.2f}" if isinstance(cell, float) else str(cell)


def rows_of(values: Any, tokens: Sequence[Sequence[str]]) -> list[list[float]]:
    """One number a token, the padding cut off. ValueError where numbers are missing."""
    rows = [list(map(float, row)) for row in plain(values)]
    if len(rows) != len(tokens) or any(len(r) < len(t) for r, t in zip(rows, tokens)):
        raise ValueError("give one row of numbers for each answer, and one number for each token")
    return [row[: len(texts)] for row, texts in zip(rows, tokens, strict=True)]


def flat(values: Any) -> list[float]:
    return [float(v[0] if isinstance(v, list) else v) for v in plain(values)]


def largest(rows: Sequence[Sequence[float]]) -> float:
    return max((abs(v) for row in rows for v in row), default=1.0) or 1.0


def average(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)
