"""What page 21 shows of docs/claims.json: each claim's own figure, its verdict, and the reader's guess."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from course import REPOSITORY, plots


@cache
def recording() -> dict[str, Any]:
    """docs/claims.json."""
    found: dict[str, Any] = json.loads(
        (Path(REPOSITORY) / "docs" / "claims.json").read_text("utf-8")
    )
    return found


@cache
def study() -> Any:
    """studies/claims/study.py, which knows each claim's runs and draws them."""
    from studies.claims import study as claims

    return claims


def names() -> list[str]:
    """All claims."""
    return list(recording()["claims"])


def p_values() -> dict[str, float]:
    """Each claim's p before any correction."""
    return {name: record["p"] for name, record in recording()["claims"].items()}


def reveal(guess: Mapping[str, str], *shown: str) -> None:
    """The figures of some claims side by side; under them the verdicts, beside the reader's guesses."""
    known, results = study().CLAIMS, study().results_of(recording())
    figure, axes = plots.panels(len(shown), height=3.0)
    rows = []
    for name, axis in zip(shown, axes, strict=True):
        record = recording()["claims"][name]
        known[name].draw(axis, study().part(results, known[name]))
        axis.set_title(f"Claimed: {record['title']}", fontsize=10)
        right = "right" if guess[name] == record["verdict"] else "wrong"
        effect = f"{study().number(record)} {record['unit']}; at least {record['least']:g}"
        rows.append([name, record["verdict"], f"{guess[name]}: {right}", effect])
    plt.show()
    plots.table(["claim", "verdict", "your guess", "effect"], rows)


def score(guess: Mapping[str, str]) -> None:
    """How many guesses were right."""
    verdicts = {name: record["verdict"] for name, record in recording()["claims"].items()}
    right = sum(guess[name] == verdict for name, verdict in verdicts.items())
    counted = {
        word: list(verdicts.values()).count(word) for word in dict.fromkeys(verdicts.values())
    }
    print(f"{right} of {len(verdicts)} right. " + ", ".join(f"{v} {k}" for k, v in counted.items()))
