"""Recorded answers and verdicts of docs/preferences_48_tokens.json, which pages and questions share."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
ENDS = ('."', ".'", ".", "!", "?", '"', "'", ")", "`")


def ended(answer: str) -> bool:
    """Does the text end as a sentence does? An answer that was cut off seldom happens to."""
    return answer.strip().endswith(ENDS)


@cache
def preferences() -> dict[str, Any]:
    return json.loads((DOCS / "preferences_48_tokens.json").read_text(encoding="utf-8"))


@cache
def comparisons() -> tuple[tuple[str, int, bool, bool, bool], ...]:
    """(policy, prompt, policy's answer ended, start's ended, the judge preferred the policy's)."""
    answers = preferences()["answers"]
    start = answers["start"]
    return tuple(
        (name, i, ended(a["answers"]), ended(b["answers"]), a["judge"] > b["judge"])
        for name, rows in answers.items()
        if name != "start"
        for i, (a, b) in enumerate(zip(rows, start, strict=True))
    )
