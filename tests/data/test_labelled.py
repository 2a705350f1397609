"""Labelled texts, from the dataset's folders and from lines."""

import gzip
import json

import pytest

from data.labelled import LabelledText, read_labelled
from data.readers import read_text


def folder_of(tmp_path, texts):
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def lines_of(path, rows, opened=open):
    with opened(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def test_a_folder_gives_both_sides_in_turn_with_stars_and_line_breaks(tmp_path):
    texts = {
        "pos/0_9.txt": "Good.<br /><br />Very.", "pos/1_10.txt": "Fine <br/> too",
        "neg/7_1.txt": "Bad.", "unsup/3_0.txt": "unread",
    }  # fmt: skip
    result = read_labelled(folder_of(tmp_path, texts))
    assert result.records == [
        LabelledText("Bad.", False, 1),
        LabelledText("Good.\nVery.", True, 9),
        LabelledText("Fine\ntoo", True, 10),
    ]
    assert result.summary().endswith("3 of 3 texts kept; 66.7% are labelled good")


def test_unlabelled_folder_is_read_as_documents(tmp_path):
    folder = folder_of(tmp_path, {"b_0.txt": "two<br />lines", "a_0.txt": "one", "url.csv": "no"})
    assert read_text(folder) == ["one", "two\nlines"]


@pytest.mark.parametrize("opened", [open, gzip.open])
def test_lines_are_kept_dropped_and_counted(tmp_path, opened):
    rows = [
        {"text": "a", "label": True, "stars": 8},
        {"text": " ", "label": True},
        {"text": "b", "label": 0},
        {"text": "a", "label": False},
        {"text": "elsewhere", "label": True},
    ]
    result = read_labelled(lines_of(tmp_path / "rows", rows, opened), known=["elsewhere"])
    assert result.records == [LabelledText("a", True, 8), LabelledText("b", False)]
    assert result.dropped == {"blank": 1, "repeated": 1, "known from elsewhere": 1}
    assert "2 of 5 texts kept; dropped: blank 1, repeated 1, known from" in result.summary()


def test_limit_counts_kept_texts(tmp_path):
    rows = [{"text": text, "label": True} for text in ("a", "a", "b", "c")]
    path = lines_of(tmp_path / "rows.jsonl", rows)
    assert [record.text for record in read_labelled(path, limit=2).records] == ["a", "b"]
