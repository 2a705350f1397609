"""The readers over whole downloaded files (see the fixture `real_data`)."""

from __future__ import annotations

import re
from pathlib import Path

from data.readers import read_preferences, read_prompts, read_responses, read_text


def test_instruction_data_with_preference(real_data: Path) -> None:
    path = real_data / "instruction-data-with-preference.json"
    pairs = read_preferences(path)
    assert len(pairs.records) == 1094
    assert pairs.dropped == {"chosen equals rejected": 6}
    assert sum("### Input:\n" not in record.prompt for record in read_prompts(path).records) == 775
    answers = read_responses(path)
    assert len(answers.records) == 1100 and answers.dropped == {}
    assert answers.records[2].response == "45 kilometers is equivalent to 45000 meters."


def test_gsm8k(real_data: Path) -> None:
    path = real_data / "gsm8k_test.jsonl"
    questions, solutions = read_prompts(path), read_responses(path)
    assert len(questions.records) == len(solutions.records) == 1319
    assert questions.dropped == solutions.dropped == {}
    answers = [record.answer or "" for record in questions.records]
    assert all(re.fullmatch(r"-?\d+", answer) for answer in answers)
    assert [answers[0], sum(answer.startswith("-") for answer in answers)] == ["18", 2]
    assert not any("<<" in record.response for record in solutions.records)
    assert [record.response.rsplit("\n", 1)[1] for record in solutions.records] == [
        f"#### {answer}" for answer in answers
    ]


def test_plain_text(real_data: Path) -> None:
    (document,) = read_text(real_data / "tinyshakespeare.txt")
    assert len(document) == 1_115_394
    assert document.startswith("First Citizen:\nBefore we proceed")
