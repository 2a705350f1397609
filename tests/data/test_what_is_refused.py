"""What the readers and worlds of data/ do not take, each by a sentence that names it."""

from __future__ import annotations

import pytest

from data import reviews, templates
from data.collate import epoch_shuffled_indices
from data.formats import ultrafeedback_pair
from data.labelled import read_labelled
from data.readers import BadRow, DataError
from data.records import PromptRecord
from data.tables import cell_value


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (lambda: reviews.prompts("dev"), "'dev'"),
        (lambda: reviews.gold_reward(PromptRecord("?"), "x", True), "meta"),
        (lambda: templates.conversation_prompt([]), "user turn"),
        (lambda: epoch_shuffled_indices(0, 2, 0, seed=0), "empty"),
    ],
)
def test_a_senseless_request(request_, named):
    with pytest.raises(ValueError, match=named):
        request_()


def test_rows_that_hold_something_else(tmp_path):
    with pytest.raises(BadRow, match="completions"):
        ultrafeedback_pair({"instruction": "?", "completions": ["a", "b"]})
    path = tmp_path / "labelled.jsonl"
    path.write_text('{"text": "x", "label": true, "stars": "many"}\n')
    with pytest.raises(DataError, match="stars"):
        read_labelled(path)


def test_a_cell_that_is_no_json_is_text():
    assert cell_value("score_a", "5") == 5 and cell_value("score_a", "five") == "five"
