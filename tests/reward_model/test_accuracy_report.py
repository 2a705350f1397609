"""The held-out report: shares, intervals, calibration and gold."""

from __future__ import annotations

import math

import pytest
import torch

from data.worlds import reviews
from reward_model.accuracy_report import (
    calibration,
    position_bias,
    preference_report,
    wilson_interval,
)
from reward_model.pairs import TokenPair

LN3 = math.log(3)  # sigmoid(ln 3) = 0.75


def pair(gold_chosen: float | None = None, gold_rejected: float | None = None) -> TokenPair:
    meta = {} if gold_chosen is None else dict(gold_chosen=gold_chosen, gold_rejected=gold_rejected)
    return TokenPair([1], [2], [3], meta)


def report_of(chosen, rejected, lengths, pairs=None, scale=1.0):
    pairs = pairs or [pair()] * len(chosen)
    return preference_report(
        torch.tensor(chosen),
        torch.tensor(rejected),
        torch.tensor(lengths),
        pairs,
        scale,
        reviews.prefers,
    )


# Pieces


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(8, 10, 0.490157, 0.943319), (0, 10, 0.0, 3.8416 / 13.8416), (10, 10, 10 / 13.8416, 1.0),
     (500, 1000, 0.469069, 0.530931), (0, 0, 0.0, 1.0)],
)  # fmt: skip
def test_wilson_interval(successes, trials, low, high):
    """With z^2 = 3.8416: n / (n + z^2) where all won, 1/2 +- z / (2 sqrt(n + z^2)) for a half."""
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=1e-6)


def test_calibration_reads_each_pair_in_its_confident_order():
    """Three of four right where 0.75 is claimed: calibrated. The coin's bin holds the tie."""
    table = calibration(torch.tensor([LN3, -LN3, LN3, LN3, 0.0]))
    assert [count for *_, count in table] == [1, 4]
    assert table[0][:2] == (0.5, 0.5)
    assert table[1][:2] == pytest.approx((0.75, 0.75))


def test_calibration_has_ten_bins_from_a_coin_to_certainty():
    claimed = [0.525 + 0.05 * i for i in range(10)]
    table = calibration(torch.tensor([math.log(p / (1 - p)) for p in claimed]))
    assert [bin[0] for bin in table] == pytest.approx(claimed)


# The report


def test_accuracy_counts_half_of_the_ties():
    """As the baselines do: a coin would decide them."""
    numbers = report_of([1.0, 0, -1, 2], [0.0, 0, 0, 0], [1] * 8).numbers
    assert numbers["pairs"] == 4
    assert numbers["accuracy"] == 0.625
    assert numbers["accuracy_interval"] == pytest.approx((0.219422, 0.908103), abs=1e-5)
    assert numbers["mean_margin"] == 0.5


def test_calibration_is_measured_in_the_models_own_logits():
    """Margins in standard deviations times the scale are logits: 0.75 claimed, 3 of 4 right."""
    chosen = [LN3 / 2, -LN3 / 2, LN3 / 2, LN3 / 2]
    numbers = report_of(chosen, [0.0] * 4, [1] * 8, scale=2.0).numbers
    assert numbers["calibration_error"] == pytest.approx(0, abs=1e-6)
    unscaled = report_of(chosen, [0.0] * 4, [1] * 8).numbers["calibration_error"]
    assert unscaled == pytest.approx(0.75 - 1 / (1 + 3**-0.5), abs=1e-6)


def test_the_calibration_error_weighs_bins_by_their_pairs():
    """Three claim 0.75, two of them right; one claims 0.9 and is wrong: (3 * 0.0833 + 0.9) / 4."""
    numbers = report_of([LN3, LN3, -LN3, -2 * LN3], [0.0] * 4, [1] * 8).numbers
    assert numbers["calibration_error"] == pytest.approx((3 * (0.75 - 2 / 3) + 0.9) / 4, abs=1e-6)


def test_the_longer_answer_wins_and_scores_go_with_length():
    """Longer, as long and shorter: 1.5 of 3. Scores 1, 2, 3, 0, 0, 0 of lengths 4, 2, 1, 3, 2, 2."""
    numbers = report_of([1.0, 2, 3], [0.0] * 3, [4, 2, 1, 3, 2, 2]).numbers
    assert numbers["length_accuracy"] == 0.5
    scores, lengths = [0.0, 1, 2, -1, -1, -1], [5 / 3, -1 / 3, -4 / 3, 2 / 3, -1 / 3, -1 / 3]
    products = sum(a * b for a, b in zip(scores, lengths, strict=True))
    norms = math.hypot(*scores) * math.hypot(*lengths)
    assert numbers["length_correlation"] == pytest.approx(products / norms)


def test_the_first_answers_share_is_of_the_pairs_with_a_verdict():
    verdicts = [dict(verdict=word) for word in ("first", "second", "first", "first")]
    pairs = [TokenPair([1], [2], [3], meta) for meta in (*verdicts, {}, {})]
    numbers = position_bias(pairs)
    assert numbers["first_chosen"] == 0.75
    assert numbers["first_chosen_interval"] == pytest.approx((0.300642, 0.954413), abs=1e-5)


def test_gold_leaves_out_ties_of_gold_and_follows_gold_not_the_label():
    """Label right, label wrong (the model sides with gold), gold tie, model wrong."""
    pairs = [pair(0.62, 0.5), pair(0.5, 0.62), pair(0.3, 0.3), pair(0.9, 0.1)]
    numbers = report_of([1.0, -1, 1, -1], [0.0] * 4, [2, 1, 1, 2, 1, 2, 1, 1], pairs).numbers
    assert numbers["accuracy"] == 0.5
    assert numbers["gold_pairs"] == 3
    assert numbers["gold_accuracy"] == pytest.approx(2 / 3)
    assert numbers["gold_accuracy_interval"] == pytest.approx(wilson_interval(2, 3))
    assert numbers["length_gold_accuracy"] == 1  # the longer answer has the higher gold each time
    sigmoid_of_one, sure = 0.7310586, 1 / (1 + math.exp(-0.8 / 0.12))
    assert numbers["label_ceiling"] == pytest.approx((2 * sigmoid_of_one + 0.5 + sure) / 4)
