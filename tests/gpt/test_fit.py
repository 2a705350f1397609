"""Rows that do not fit a model: when they are an error, and what is said to take them."""

from __future__ import annotations

import pytest

from gpt.fit import Limits, check_fit

# 100 rows: prompts of 1 to 100 tokens, answers of 20, but for twenty of 60
ROWS = [(n, 60 if n % 5 == 0 else 20) for n in range(1, 101)]


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(100, 60, 160), None),
        (Limits(95, 60, 256), "left out 5 of 100 pairs (5%)"),
        (Limits(100, 20, 256), "--max-response-tokens 60 takes 100%"),
        (Limits(60, 60, 256), "--max-prompt-tokens 100 takes 100%"),
        (Limits(56, 60, 120, responses=64), "--max-new-tokens 21 takes 92%"),
        (Limits(100, 20, 256, cut=True), None),
    ],
)
def test_what_is_left_out_is_said_with_the_flags_that_take_it(capsys, limits, says):
    check_fit("hh.jsonl", ROWS, limits, "pairs")
    shown = "".join(capsys.readouterr())
    assert (says or "") in shown and bool(shown) == (says is not None)
