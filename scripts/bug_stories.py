"""What each bug of the zoo is, how it shows, and the recorded runs to look at.

A bug is a wrong line as people write it; the stories are told in bug_stories.json. bug_zoo.py plants
the bugs in small runs. What is recorded of such runs stands in tests/report/recordings: pages
and tests read it here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RECORDINGS = REPOSITORY / "tests" / "report" / "recordings"
CHOICES = 6
NUMBERS = (
    "reward", "reward_std", "kl", "entropy", "response_length", "eos_rate", "grad_norm", "loss",
    "ratio_error_at_start", "approx_kl", "explained_variance",
)  # fmt: skip


@dataclass(frozen=True)
class Story:
    """One bug: in words, the right line and the file it stands in, the wrong one, and what it does."""

    words: str
    engine: str  # whose run it is planted in
    path: str
    right: str  # occurs in that file
    wrong: str
    why: str  # what the wrong line computes
    shows: str  # how that can be seen from outside, or why it cannot


STORIES = {
    name: Story(**told)
    for name, told in json.loads(
        Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    ).items()
}


def place(story: Story) -> str:
    """FILE:LINE of the right line."""
    lines = (REPOSITORY / story.path).read_text(encoding="utf-8").splitlines()
    number = next(i for i, line in enumerate(lines, start=1) if story.right in line)
    return f"{story.path}:{number}"


def choices(bug: str, seed: int = 0, count: int = CHOICES) -> list[str]:
    """Names to choose from: the bug, others of its engine first, in a random order."""
    rng = random.Random(f"{bug} {seed}")
    others = [name for name in STORIES if name != bug]
    rng.shuffle(others)
    others.sort(key=lambda name: STORIES[name].engine != STORIES[bug].engine)
    picked = [bug, *others[: count - 1]]
    rng.shuffle(picked)
    return picked


def reveal(bug: str) -> str:
    story = STORIES[bug]
    return (
        f"{story.words}\n\n{story.why}\nHow it shows: {story.shows}\n\n"
        f"{place(story)}\n  right: {story.right}\n  wrong: {story.wrong}"
    )


# --- recorded runs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recording:
    """The rows of a recorded run, its flags, and what its report.json said."""

    rows: Sequence[Mapping[str, Any]]
    flags: Mapping[str, Any]
    results: Mapping[str, Any]

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of one number."""
        points = [(row["step"], row[key]) for row in self.rows if key in row]
        return [step for step, _ in points], [value for _, value in points]


def recording(name: str) -> Recording:
    """A recorded run: a bug's name, or KIND/NAME such as healthy/letters_grpo."""
    kept = RECORDINGS / (f"{name}.json" if "/" in name else f"bugs/{name}.json")
    content = json.loads(kept.read_text(encoding="utf-8"))
    columns = content["columns"]
    rows = [
        {key: values[i] for key, values in columns.items() if values[i] is not None}
        for i in range(len(columns["step"]))
    ]
    return Recording(rows, content["flags"], content.get("results", {}))


def control(engine: str) -> Recording:
    """The same small run without a bug."""
    return recording(f"healthy/letters_{engine}")


def table(rows: Sequence[Mapping[str, Any]], beside: Sequence[Mapping[str, Any]]) -> str:
    """The numbers of a run at its start and its end, beside those of a run without a bug."""
    lines = [
        f"{'':22}{'this run':>22}{'without a bug':>22}",
        f"{'':22}" + "".join(f"{word:>11}" for word in ("first", "last") * 2),
    ]
    for key in NUMBERS:
        ends = [*first_and_last(rows, key), *first_and_last(beside, key)]
        if any(end is not None for end in ends):
            cells = "".join(f"{'-' if end is None else f'{end:.3g}':>11}" for end in ends)
            lines.append(f"{key:22}{cells}")
    return "\n".join(lines)


def first_and_last(
    rows: Sequence[Mapping[str, Any]], key: str
) -> tuple[float | None, float | None]:
    """Means over the first and the last three values; None where nothing was logged."""
    values = [row[key] for row in rows if key in row]
    if not values:
        return None, None
    return sum(values[:3]) / len(values[:3]), sum(values[-3:]) / len(values[-3:])
