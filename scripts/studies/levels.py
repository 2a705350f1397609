"""Do the tests of the studies hold their level? Studies in which nothing differs, simulated.

    PYTHONPATH=scripts python -m studies.levels

writes "levels" into docs/overoptimisation.json; `scripts/overoptimisation.py --draw budget` shows it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.command_line import run_command
from harness.flag_ranges import AtLeastOne, Count
from harness.paths import REPOSITORY
from harness.report.intervals import Array, interval, resampled, t_test

# How starts and seeds vary, the standard deviation of a prompt, and whether the slow bootstrap is tried.
CASES = (
    ("normal", 0.2, True), ("normal", 0.02, True), ("heavy tails", 0.02, False),
    ("skewed", 0.02, False),
)  # fmt: skip
SETTINGS = ((3, 2), (5, 1))  # starts x seeds: the engines on one budget, the mitigations
START_SD, SEED_SD = 0.014, 0.012  # of differences of gold between two engines
PROMPTS = 128
LEVELS = (0.05, 0.05 / 12)


def effects(shape: str, rng: np.random.Generator, size: tuple[int, ...]) -> Array:
    """Random numbers of mean 0 and standard deviation 1."""
    if shape == "heavy tails":  # Student's t of 4 degrees of freedom
        return rng.standard_t(4, size) / np.sqrt(2)
    if shape == "skewed":
        return rng.exponential(size=size) - 1
    return rng.normal(size=size)


def null_study(
    shape: str, prompt_sd: float, starts: int, seeds: int, rng: np.random.Generator
) -> Array:
    """Differences (starts, seeds, prompts) of two engines that differ in nothing."""
    by_start = START_SD * effects(shape, rng, (starts, 1, 1))
    by_seed = SEED_SD * effects(shape, rng, (starts, seeds, 1))
    return by_start + by_seed + prompt_sd * rng.normal(size=(starts, seeds, PROMPTS))


def bootstrap_p(means: Array) -> float:
    """Twice the smaller share of bootstrapped means beyond 0, one added to both counts."""
    beyond = min(int((means <= 0).sum()), int((means >= 0).sum()))
    return min(2 * (beyond + 1) / (len(means) + 1), 1.0)


def levels(
    shape: str, prompt_sd: float, starts: int, seeds: int, studies: int, bootstraps: int
) -> dict[str, Any]:
    """How often each test finds something, and how often the bootstrap's interval holds 0."""
    rng = np.random.default_rng(starts)
    p_values: dict[str, list[float]] = {"t_test": [], "bootstrap": []}
    covered = []
    for number in range(studies):
        study = null_study(shape, prompt_sd, starts, seeds, rng)
        p_values["t_test"].append(t_test(study.mean(axis=(1, 2)).tolist()))
        if number < bootstraps:
            means = resampled(study, rng, draws=1000)
            low, high = interval(means)
            covered.append(low <= 0 <= high)
            p_values["bootstrap"].append(bootstrap_p(means))
    row: dict[str, Any] = dict(shape=shape, prompt_sd=prompt_sd, starts=starts, seeds=seeds)
    for name, p in p_values.items():
        row[name] = [float(np.mean(np.array(p) < level)) for level in LEVELS] if p else None
    return row | {"covers": float(np.mean(covered)) if covered else None}


@dataclass(frozen=True)
class LevelsConfig:
    """Write down how often the tests of the studies find a difference where there is none."""

    studies: AtLeastOne = 5000
    """Simulated studies a case."""
    bootstraps: Count = 150
    """Of them with the slow bootstrap too."""


def main(config: LevelsConfig) -> None:
    path = REPOSITORY / "docs" / "overoptimisation.json"
    rows = [
        levels(shape, prompt_sd, *sizes, config.studies, config.bootstraps if slow else 0)
        for sizes in SETTINGS
        for shape, prompt_sd, slow in CASES
    ]
    numbers = json.loads(path.read_text(encoding="utf-8"))
    numbers["levels"] = {**vars(config), "rows": rows}
    path.write_text(json.dumps(numbers, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_command(main, LevelsConfig)
