"""Rows that do not fit a model: a few are counted, many are a warning, most an error."""

from __future__ import annotations

import pytest

from gpt.fit import Limits, check_fit
from harness.errors import UserError

# 100 rows: prompts of 1 to 100 tokens, answers of 20, but for twenty of 60
ROWS = [(n, 60 if n % 5 == 0 else 20) for n in range(1, 101)]


@pytest.mark.parametrize(
    ("limits", "opening"),
    [
        (Limits(100, 60, 160), ""),
        (Limits(95, 60, 256), "left out 5 of 100"),
        (Limits(60, 60, 256), "warning: hh.jsonl: 40 of 100"),
        (Limits(100, 20, 256), "warning: hh.jsonl: 20 of 100"),
        (Limits(100, 20, 256, cut=True), ""),
    ],
)
def test_what_is_left_out_is_counted(capsys, limits, opening):
    check_fit("hh.jsonl", ROWS, limits, "pairs")
    shown = "".join(capsys.readouterr())
    assert shown.startswith(opening) and bool(shown) == bool(opening)


def test_most_rows_left_out_are_an_error():
    with pytest.raises(UserError):
        check_fit("hh.jsonl", ROWS, Limits(49, 60, 256), "pairs")
