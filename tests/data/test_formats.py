"""Each kind of row, written as its source writes it, against the text it must become."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from data.readers import read_preferences, read_prompts, read_responses
from data.records import PreferenceRecord, PromptRecord, ResponseRecord
from data.templates import Turn, conversation_prompt, instruction_prompt
from harness.errors import UserError

Row = dict[str, Any]
HI = "### Instruction:\nHi\n\n### Response:\n"
ALPACA = {"instruction": "Translate.", "input": "chat", "output": "rude cat"}
ALPACA_PROMPT = "### Instruction:\nTranslate.\n\n### Input:\nchat\n\n### Response:\n"
PAIR = {"prompt": "Q", "chosen": " a", "rejected": " b"}


def write(folder: Path, *rows: Row) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def said(*texts: str) -> list[dict[str, str]]:
    """Messages of the user and the assistant in turn."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def answered(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def hh(*turns: str) -> str:
    speakers = ("Human", "Assistant")
    return "".join(f"\n\n{speakers[i % 2]}: {turn}" for i, turn in enumerate(turns))


def test_templates() -> None:
    asked = instruction_prompt("Name a colour.")
    assert asked == "### Instruction:\nName a colour.\n\n### Response:\n"
    turns = [
        Turn("system", "Be brief."), Turn("user", "Hi"), Turn("assistant", " Hello!\n"),
        Turn("user", "Name a colour."),
    ]  # fmt: skip
    assert conversation_prompt(turns) == (
        f"### System:\nBe brief.\n\n{HI}Hello!\n\n### Instruction:\nName a colour.\n\n"
        "### Response:\n"
    )


SCORED = {
    "prompt": "Hi", "prompt_id": "x1", "chosen": said("Hi", "Hello"), "rejected": said("Hi", "No"),
    "messages": said("Hi", "Hello"), "score_chosen": 8.5, "score_rejected": 4.0,
}  # fmt: skip
CHAT = PreferenceRecord(HI, "Hello", "No")
OPENING = ("Hi", "Hello!", "Is it late?")
# Rows of pairs; the records that they become, the name of their format, and what is dropped.
PREFERENCES: dict[str, tuple[list[Row], list[PreferenceRecord], str, dict[str, int]]] = {
    "strings": (
        [{"prompt": "Sky?\n", "chosen": " blue ", "rejected": "green\n"}],
        [PreferenceRecord("Sky?\n", " blue ", "green\n")], "preferences", {},
    ),
    "unusable": (
        [PAIR, PAIR | {"prompt": " \n"}, PAIR | {"chosen": " "}, PAIR | {"rejected": ""},
         PAIR | {"rejected": " a"}],
        [PreferenceRecord("Q", " a", " b")], "preferences",
        {"empty prompt": 1, "empty answer": 2, "chosen equals rejected": 1},
    ),
    "Alpaca": (
        [{**ALPACA, "chosen": "cat ", "rejected": "rude cat"}],
        [PreferenceRecord(ALPACA_PROMPT, "cat", "rude cat")], "Alpaca preferences", {},
    ),
    # Both answers start with "I would": a common prefix would take that into the prompt.
    "HH, several turns": (
        [{"chosen": hh(*OPENING, "I would say no."), "rejected": hh(*OPENING, "I would say yes.")}],
        [PreferenceRecord(f"{HI}Hello!\n\n### Instruction:\nIs it late?\n\n### Response:\n",
                          "I would say no.", "I would say yes.")], "HH-RLHF", {},
    ),
    "HH, unusable": (
        [
            {"chosen": hh("Hi", "Hello"), "rejected": hh("Hi", "No")},
            {"chosen": hh("Hi", "yes"), "rejected": hh("Hello", "no")},
            {"chosen": hh("Hi", "yes"), "rejected": hh("Hi", "")},
            {"chosen": hh("Hi", "yes", "And?"), "rejected": hh("Hi", "no", "And?")},
            {"chosen": "yes", "rejected": "no"},
            {"chosen": "Note." + hh("Hi", "yes"), "rejected": "Note." + hh("Hi", "no")},
            {"chosen": hh("", "yes"), "rejected": hh("", "no")},
        ],
        [CHAT], "HH-RLHF",
        {"prompts differ": 1, "empty answer": 1, "no answer at the end": 2,
         "text before the first turn": 1, "empty prompt": 1},
    ),
    "messages": (
        [
            {"prompt": said("Hi"), "chosen": answered(" Hello"), "rejected": answered("No")},
            {"prompt": said("Hi"), "chosen": said("Hi"), "rejected": answered("No")},
            {"prompt": said("Hi"), "chosen": [], "rejected": answered("No")},
            {"chosen": answered("Hello"), "rejected": answered("No")},
            {"prompt": said("Hi"), "chosen": said("Hi", "Hello"), "rejected": said("Hi", "No")},
            {"prompt": "Hi", "chosen": answered("Hello"), "rejected": answered("No")},
        ],
        [CHAT] * 3, "conversational preferences",
        {"no answer at the end": 2, "prompt does not end with a user turn": 1},
    ),
    "messages, implicit": (
        [{"chosen": said("Hi", "Hello"), "rejected": said("Hi", "No")}],
        [CHAT], "conversational preferences", {},
    ),
    "UltraFeedback": (
        [SCORED, {**SCORED, "score_rejected": 8.5}],
        [CHAT],
        "conversational preferences", {"equal scores": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PREFERENCES)
def test_pairs(tmp_path: Path, name: str) -> None:
    rows, records, form, dropped = PREFERENCES[name]
    result = read_preferences(write(tmp_path, *rows))
    assert (result.records, result.format, result.dropped) == (records, form, dropped)


GSM8K = [
    {"question": "How much?", "answer": "4*5=<<4*5=20>>20\nSo $<<20*60=1200>>1,200\n#### 1,200"},
    {"question": "And now?", "answer": "It fell.\n#### -2.5"},
]
ASKED = [f"### Instruction:\n{q}\n\n### Response:\n" for q in ("How much?", "And now?")]
RESPONSES: dict[str, tuple[list[Row], list[tuple[str, str]], dict[str, int]]] = {
    **{
        key: ([{"prompt": "Q:", key: " a"}], [("Q:", " a")], {})
        for key in ("response", "answer")
    },
    "Alpaca": (
        [{"instruction": "Hi", "output": "Hello"}, {**ALPACA, "input": None},
         {"instruction": " ", "input": "", "output": "the headings alone are no text"}],
        [(HI, "Hello"), ("### Instruction:\nTranslate.\n\n### Response:\n", "rude cat")],
        {"empty prompt": 1},
    ),
    "pairs' better ones": ([SCORED, {**SCORED, "score_rejected": 8.5}], [(HI, "Hello")] * 2, {}),
    "HH": ([{"chosen": hh("Hi", "yes"), "rejected": hh("Hi", "no")}], [(HI, "yes")], {}),
    "GSM8K": (
        GSM8K, [(ASKED[0], "4*5=20\nSo $1,200\n#### 1200"), (ASKED[1], "It fell.\n#### -2.5")], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESPONSES)
def test_answers(tmp_path: Path, name: str) -> None:
    rows, texts, dropped = RESPONSES[name]
    result = read_responses(write(tmp_path, *rows))
    assert (result.records, result.dropped) == ([ResponseRecord(*pair) for pair in texts], dropped)


PROMPTS: dict[str, tuple[list[Row], list[tuple[str, str | None]], dict[str, int]]] = {
    "with and without ground truth": (
        [{"prompt": "2+2=", "answer": "4"}, {"prompt": "2+3=", "answer": 5},
         {"prompt": "Say hi. ", "answer": None}, {"prompt": said("Hi")}, {"prompt": ""}],
        [("2+2=", "4"), ("2+3=", "5"), ("Say hi. ", None), (HI, None)], {"empty prompt": 1},
    ),
    "GSM8K": (GSM8K, [(ASKED[0], "1200"), (ASKED[1], "-2.5")], {}),
    "HH": ([{"chosen": hh("Hi", "yes"), "rejected": hh("Hi", "no")}], [(HI, None)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts(tmp_path: Path, name: str) -> None:
    rows, texts, dropped = PROMPTS[name]
    result = read_prompts(write(tmp_path, *rows))
    assert (result.records, result.dropped) == ([PromptRecord(*pair) for pair in texts], dropped)


CONVERSATION = {"chosen": said("Hi", "a"), "rejected": said("Hi", "b")}


@pytest.mark.parametrize(
    ("good", "changes"),
    [
        (PAIR, {"chosen": "\ud800"}), (CONVERSATION, {"chosen": "a"}), (CONVERSATION, {"chosen": ["a"]}),
        (CONVERSATION, {"chosen": [{"role": "tool", "content": "x"}]}),
        (CONVERSATION, {"chosen": [{"role": "user", "content": {}}]}),
        (GSM8K[1], {"answer": "#### 3 apples"}), (GSM8K[1], {"answer": "#### \u0667"}),
        ({"winner": "a", "loser": "b"}, {}), (ALPACA, {}),
    ],
)  # fmt: skip
def test_malformed_rows(tmp_path: Path, good: Row, changes: Row) -> None:
    """Beside tests/test_bad_files.py: what is wrong in a format of its own, with its line."""
    rows = [good, good | changes] if "chosen" in good else [good | changes]
    read = read_prompts if "question" in good else read_preferences
    with pytest.raises(UserError, match=rf"rows.jsonl:{len(rows)}: "):
        read(write(tmp_path, *rows))


# Tables.


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_tables_have_cells_of_text(tmp_path: Path, name: str) -> None:
    lines = '\ufeffprompt,chosen,rejected,id\r\n"Sky, ""high""\nup?",blue,7,2\r\n'
    content = (lines + '"Sea?\n",green,red,5').encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if "gz" in name else content)
    first = read_preferences(tmp_path / name).records[0]
    assert first == PreferenceRecord('Sky, "high"\nup?', "blue", "7")


@pytest.mark.parametrize("line", ["a,b,c,d", "a,b"])
def test_a_table_with_a_ragged_row_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"prompt,chosen,rejected\nx,y,z\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match="rows.csv:3: "):
        read_preferences(path)
