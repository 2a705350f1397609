"""The statistics of the over-optimisation study: worked numbers, and what they must notice."""

from __future__ import annotations

import numpy as np
import pytest

from report import intervals
from studies import bootstrap
from studies.overoptimisation import results
from studies.overoptimisation.plan import Settings
from studies.overoptimisation.stages import has_turned


def test_a_value_at_equal_distance_lies_between_two_points() -> None:
    """From 1 to 3 nats, 2 is half way and 1.5 a quarter; each prompt moves on its own line."""
    kl = np.array([0.0, 1.0, 3.0, 2.5])
    values = np.array([[0.0, 0.0], [0.4, 0.2], [0.8, 0.0], [9.0, 9.0]])
    assert bootstrap.at_distance(kl, values, 2.0) == pytest.approx([0.6, 0.1])
    assert bootstrap.at_distance(kl, values, 1.5) == pytest.approx([0.5, 0.15])
    assert bootstrap.at_distance(kl, values, 1.0) == pytest.approx([0.4, 0.2])
    assert bootstrap.at_distance(kl, values, 0.0) == pytest.approx([0.0, 0.0])
    assert bootstrap.at_distance(kl, values, 3.01) is None  # not reached, and not extrapolated


def test_holm_multiplies_by_the_comparisons_left() -> None:
    """.005 * 4, .01 * 3, then .03 * 2 and, no smaller than that, .04."""
    p = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    assert intervals.holm(p) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert intervals.holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert list(intervals.holm(p)) == list(p)


def test_a_paired_difference_does_not_see_what_both_share() -> None:
    rng = np.random.default_rng(0)
    hard = 10 * rng.normal(size=(3, 50))
    better = hard + 0.5 + 0.01 * rng.normal(size=hard.shape)
    found = bootstrap.paired_difference(better, hard)
    assert found["low"] > 0.49 and found["high"] < 0.51 and found["p"] < 1e-4
    assert found["by_start"] == pytest.approx((better - hard).mean(axis=1))
    none = bootstrap.paired_difference(hard, hard)
    assert none["mean"] == 0 and none["p"] == 1
    assert "p" not in bootstrap.paired_difference(better[:2], hard[:2])  # too few to be tested


def test_a_t_test_over_starts_by_hand() -> None:
    """Mean 2, standard deviation 1: t = 2 sqrt(3), and 1 - t / sqrt(t^2 + 2) = .0742 of 2 degrees."""
    assert intervals.t_interval([1.0, 2.0, 3.0])["p"] == pytest.approx(0.0742, abs=1e-4)


@pytest.mark.parametrize("form", results.FORMS)
def test_a_fit_finds_what_made_the_points(form: str) -> None:
    kl = np.array([0.0, 0.01, 0.25, 1.0, 4.0, 9.0, 25.0])
    far = kl[kl > results.NEAREST]
    gain = np.full(len(kl), 7.0)  # of points too near: they must not count
    gain[kl > results.NEAREST] = results.FORMS[form](np.sqrt(far)) @ np.array([0.4, 0.1])
    found = results.fit(form, kl, gain)
    assert (found["alpha"], found["beta"]) == pytest.approx((0.4, 0.1))
    assert found["rmse"] < 1e-12 and max(map(abs, found["residual_thirds"])) < 1e-12


def test_the_forms_by_hand() -> None:
    """d = 2: 2 (.4 - .1 * 2) = .4 and 2 (.4 - .1 log 2) = .661371."""
    at_two = np.array([2.0])
    numbers = {
        n: float(form(at_two)[0] @ np.array([0.4, 0.1])) for n, form in results.FORMS.items()
    }
    assert numbers == pytest.approx({"best of n": 0.4, "RL": 0.661371}, abs=1e-6)


def test_what_is_fitted_is_the_gain_over_the_start() -> None:
    """Gold 0.5 + d (.4 - .1 log d): the fit of the cell must find .4 and .1."""
    kl = np.array([0.0, 1.0, 4.0, 9.0, 16.0])
    far = kl > 0
    gold = np.full(len(kl), 0.5)
    gold[far] += results.FORMS["RL"](np.sqrt(kl[far])) @ np.array([0.4, 0.1])
    found = results.fit_of_cell([{"engine": "grpo", "points": {"kl": kl, "gold": gold}}], "grpo")
    assert found is not None and found["starts"] == 1
    assert (found["alpha"], found["beta"]) == pytest.approx((0.4, 0.1))


def test_the_best_point_is_the_middle_of_the_best_three() -> None:
    """Means of three from .1 .5 .9 .6 .1: .5, .667, .533."""
    gold = np.array([0.1, 0.5, 0.9, 0.6, 0.1])[:, None]
    assert results.best_point({"gold": gold}, Settings()) == 2
    assert results.best_point({"gold": gold[:1]}, Settings()) == 0


def test_gold_has_turned_when_it_lies_well_below_its_best() -> None:
    rising, fallen = [0.4, 0.6, 0.8, 0.8], [0.4, 0.8, 0.8, 0.75, 0.6]
    assert not has_turned(rising, 0.1, 2) and has_turned(fallen, 0.1, 2)
    assert not has_turned(fallen, 0.13, 2)  # means .6 .8 .775 .675: .125 below the best
    assert not has_turned([0.9, 0.1], 0.1, 3)  # too few for one mean


def test_the_parts_of_a_fall_add_up_to_it() -> None:
    """One answer: content 1 -> .75 (politeness gone), care 1 -> .65 (qual .5); gold 1 -> .4875."""
    ones = {name: np.ones(1) for name in ("sent", "topic", "polite", "form", "qual")}
    after = ones | {"polite": np.zeros(1), "qual": np.full(1, 0.5)}
    parts = results.change_by_term(ones, after)
    expected = {"sent": 0, "topic": 0, "polite": -0.25 * 0.825, "form": 0, "qual": -0.35 * 0.875}
    assert parts == pytest.approx(expected)
    assert sum(parts.values()) == pytest.approx(0.4875 - 1)
