"""The off-policy study: which runs are paired, and that an unfinished one says what is there."""

from __future__ import annotations

import lag_study
import pytest
from lag_study import LOGGED, Cell, StudyConfig, cells, config_of, summarised, tables

GOLD = {"none": [0.5, 0.6, 0.4, 0.55], "token_tis": [0.61, 0.69, 0.52, 0.64]}


def rows(**gold):
    """Runs of one cell per correction, at lag 16."""
    about = dict(world="sums", lag=16, precision="float32", kl=1.0, collapsed="", seconds=10.0)
    logged = dict.fromkeys(LOGGED, 0.5)
    return [
        about | dict(correction=name, seed=seed, gold=value, logged=logged)
        for name, values in gold.items()
        for seed, value in enumerate(values)
        if value is not None
    ]


def test_a_correction_is_compared_with_none_seed_by_seed():
    """By hand: gaps 0.11, 0.09, 0.12, 0.09; a third correction doubles the smaller p (Holm)."""
    masked = [0.4, 0.7, 0.5, 0.4]
    table = {row["correction"]: row for row in summarised(rows(**GOLD, masked=masked))}
    assert "against_none" not in table["none"]
    gap = table["token_tis"]["against_none"]
    assert gap["mean"] == pytest.approx(0.1025)
    assert gap["holm"] == pytest.approx(2 * gap["p"]) and gap["holm"] < 0.05
    other = table["masked"]["against_none"]
    assert other["holm"] == pytest.approx(max(other["p"], gap["holm"])) and other["p"] > 0.5
    text = "\n".join(tables(list(table.values())))
    assert "| 16 | token_tis | 0.615 ±" in text and "| +0.102 (p < 0.005)" in text


def test_only_seeds_that_both_have_are_paired():
    (_, row) = summarised(rows(none=[0.5, 0.6, None, 0.4], masked=[None, 0.7, 0.1, 0.4]))[::-1]
    assert row["correction"] == "masked" and row["seeds"] == [1, 2, 3]
    assert "against_none" not in row  # two pairs are too few


def test_the_grid_and_its_flags():
    """Lag 0 once per world, every correction at the far lags, and a config that every cell allows."""
    grid = list(cells())
    assert len(grid) == len(set(grid))
    assert [cell for cell in grid if cell.lag == 0 and cell.precision == "float32"] == [
        Cell(world, 0, "float32", "none") for world in lag_study.WORLDS
    ]
    for cell in grid:
        config = config_of(cell, StudyConfig(), 3)
        assert (config.lag, config.correction, config.seed) == (cell.lag, cell.correction, 3)
        assert config.steps_per_batch == 2 and config.data == cell.world
