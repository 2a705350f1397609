"""Each kind of row, written as its source writes it, against the text it must become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data.formats import shared_prompt
from data.readers import (
    DataError,
    ReadResult,
    read_preferences,
    read_prompts,
    read_responses,
)
from data.records import PreferenceRecord, PromptRecord, ResponseRecord
from data.templates import Turn, conversation_prompt, instruction_prompt, tldr_prompt


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def kept_and_dropped(result: ReadResult) -> tuple[int, dict[str, int]]:
    return len(result.records), result.dropped


# Templates.


def test_single_instruction() -> None:
    assert instruction_prompt("Name a colour.") == (
        "### Instruction:\nName a colour.\n\n### Response:\n"
    )


def test_instruction_with_input() -> None:
    assert instruction_prompt(" Translate. ", "chat\n") == (
        "### Instruction:\nTranslate.\n\n### Input:\nchat\n\n### Response:\n"
    )


def test_conversation_of_several_turns() -> None:
    turns = [
        Turn("system", "Be brief."),
        Turn("user", "Hi"),
        Turn("assistant", " Hello!\n"),
        Turn("user", "Name a colour."),
    ]
    assert conversation_prompt(turns) == (
        "### System:\nBe brief.\n\n"
        "### Instruction:\nHi\n\n"
        "### Response:\nHello!\n\n"
        "### Instruction:\nName a colour.\n\n"
        "### Response:\n"
    )


def test_tldr_prompt_ends_without_a_space() -> None:
    assert tldr_prompt("AskReddit", "Help", "My cat left.\n") == (
        "SUBREDDIT: r/AskReddit\n\nTITLE: Help\n\nPOST: My cat left.\n\nTL;DR:"
    )


# Plain strings.


def test_own_preferences_stay_verbatim(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "Sky?\n", "chosen": " blue ", "rejected": "green\n"})
    result = read_preferences(path)
    assert result.records == [PreferenceRecord("Sky?\n", " blue ", "green\n")]
    assert (result.format, result.dropped) == ("preferences", {})


def test_unusable_pairs_are_dropped_and_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"prompt": "Q", "chosen": " a", "rejected": " b"},
        {"prompt": " \n", "chosen": " a", "rejected": " b"},
        {"prompt": "Q", "chosen": " ", "rejected": " b"},
        {"prompt": "Q", "chosen": " a", "rejected": ""},
        {"prompt": "Q", "chosen": " a", "rejected": " a"},
    )
    result = read_preferences(path)
    assert result.records == [PreferenceRecord("Q", " a", " b")]
    assert result.dropped == {"empty prompt": 1, "empty answer": 2, "chosen equals rejected": 1}
    assert result.summary() == (
        f"{path} (preferences): 1 of 5 rows kept; "
        "dropped: empty prompt 1, empty answer 2, chosen equals rejected 1"
    )


def test_summary_counts_answers_that_touch_their_prompt(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"prompt": "2+2?", "response": "4"},
        {"prompt": "2+2?", "response": " 4"},
        {"prompt": "2+2?\n", "response": "4"},
    )
    summary = read_responses(path).summary()
    assert summary.endswith("no space or line break between prompt and answer in 1")


@pytest.mark.parametrize("key", ["response", "completion", "answer"])
def test_prompt_with_one_answer(tmp_path: Path, key: str) -> None:
    path = write(tmp_path, {"prompt": "Q:", key: " a"})
    assert read_responses(path).records == [ResponseRecord("Q:", " a")]


def test_answers_labelled_bad_are_not_learned(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"prompt": "Q:", "completion": " good", "label": True},
        {"prompt": "Q:", "completion": " bad", "label": False},
    )
    result = read_responses(path)
    assert result.records == [ResponseRecord("Q:", " good")]
    assert result.dropped == {"label is false": 1}


def test_prompts_with_and_without_ground_truth(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"prompt": "2+2=", "answer": "4"},
        {"prompt": "2+3=", "answer": 5},
        {"prompt": "Say hi. ", "answer": None},
        {"prompt": [user("Hi")]},
        {"prompt": ""},
    )
    result = read_prompts(path)
    assert result.records == [
        PromptRecord("2+2=", "4"),
        PromptRecord("2+3=", "5"),
        PromptRecord("Say hi. ", None),
        PromptRecord("### Instruction:\nHi\n\n### Response:\n", None),
    ]
    assert result.dropped == {"empty prompt": 1}


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt"),
    [
        ("The sky is blue.", "The sky is green.", "The sky is"),
        ("Q: colour?\nA: blue", "Q: colour?\nA: red", "Q: colour?\n"),
        ("Q: colour?\nI think blue", "Q: colour?\nI think red", "Q: colour?\n"),
        ("one two", "one two three", "one"),
        ("blue", "black", ""),
    ],
)
def test_implicit_prompt_is_cut_back(chosen: str, rejected: str, prompt: str) -> None:
    assert shared_prompt(chosen, rejected) == prompt


def test_implicit_pairs(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"chosen": "The sky is blue.", "rejected": "The sky is green."},
        {"chosen": "yes", "rejected": "no"},
        {"chosen": "same words", "rejected": "same words"},
    )
    result = read_preferences(path)
    assert result.records == [PreferenceRecord("The sky is", " blue.", " green.")]
    assert result.dropped == {"empty prompt": 1, "chosen equals rejected": 1}


# Alpaca style.

ALPACA = {"instruction": "Translate.", "input": "chat", "output": "rude cat"}
ALPACA_PROMPT = "### Instruction:\nTranslate.\n\n### Input:\nchat\n\n### Response:\n"


def test_alpaca_preferences(tmp_path: Path) -> None:
    path = write(tmp_path, {**ALPACA, "chosen": "cat ", "rejected": "rude cat"})
    result = read_preferences(path)
    assert result.records == [PreferenceRecord(ALPACA_PROMPT, "cat", "rude cat")]
    assert result.format == "Alpaca preferences"


def test_alpaca_without_preferences(tmp_path: Path) -> None:
    path = write(tmp_path, {"instruction": "Hi", "output": "Hello"}, {**ALPACA, "input": None})
    assert read_responses(path).records == [
        ResponseRecord("### Instruction:\nHi\n\n### Response:\n", "Hello"),
        ResponseRecord("### Instruction:\nTranslate.\n\n### Response:\n", "rude cat"),
    ]
    with pytest.raises(DataError, match="rows.jsonl:1: .* no preference"):
        read_preferences(path)


def test_a_blank_instruction_is_an_empty_prompt(tmp_path: Path) -> None:
    """The template's headings alone must not make it look like text."""
    path = write(tmp_path, ALPACA, {"instruction": " ", "input": "", "output": "Hello"})
    assert kept_and_dropped(read_responses(path)) == (1, {"empty prompt": 1})


# HH-RLHF.


def hh(*turns: str) -> str:
    speakers = ("Human", "Assistant")
    return "".join(f"\n\n{speakers[i % 2]}: {turn}" for i, turn in enumerate(turns))


def test_hh_splits_at_the_last_assistant_turn(tmp_path: Path) -> None:
    """Both answers start with "I would": a common prefix would take that into the prompt."""
    opening = ("Hi", "Hello!", "Is it late?")
    path = write(
        tmp_path,
        {"chosen": hh(*opening, "I would say no."), "rejected": hh(*opening, "I would say yes.")},
    )
    prompt = (
        "### Instruction:\nHi\n\n### Response:\nHello!\n\n"
        "### Instruction:\nIs it late?\n\n### Response:\n"
    )
    result = read_preferences(path)
    assert result.records == [PreferenceRecord(prompt, "I would say no.", "I would say yes.")]
    assert result.format == "HH-RLHF"
    assert read_prompts(path).records == [PromptRecord(prompt)]
    assert read_responses(path).records == [ResponseRecord(prompt, "I would say no.")]


def test_hh_rows_that_cannot_be_used(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"chosen": hh("Hi", "yes"), "rejected": hh("Hi", "no")},
        {"chosen": hh("Hi", "yes"), "rejected": hh("Hello", "no")},
        {"chosen": hh("Hi", "yes"), "rejected": hh("Hi", "")},
        {"chosen": hh("Hi", "yes", "And?"), "rejected": hh("Hi", "no", "And?")},
        {"chosen": "yes", "rejected": "no"},
        {"chosen": "Note." + hh("Hi", "yes"), "rejected": "Note." + hh("Hi", "no")},
        {"chosen": hh("", "yes"), "rejected": hh("", "no")},
    )
    result = read_preferences(path)
    assert result.records == [
        PreferenceRecord("### Instruction:\nHi\n\n### Response:\n", "yes", "no")
    ]
    assert result.dropped == {
        "prompts differ": 1,
        "empty answer": 1,
        "no answer at the end": 2,
        "text before the first turn": 1,
        "empty prompt": 1,
    }


# Lists of messages.

HI = "### Instruction:\nHi\n\n### Response:\n"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [user("Hi")], "chosen": [assistant(" Hello")], "rejected": [assistant("No")]},
        {"chosen": [user("Hi"), assistant("Hello")], "rejected": [user("Hi"), assistant("No")]},
        {
            "prompt": [user("Hi")],
            "chosen": [user("Hi"), assistant("Hello")],
            "rejected": [user("Hi"), assistant("No")],
        },
        {"prompt": "Hi", "chosen": [assistant("Hello")], "rejected": [assistant("No")]},
    ],
    ids=["explicit", "implicit", "repeated", "string prompt"],
)
def test_conversational_pairs(tmp_path: Path, row: dict[str, Any]) -> None:
    result = read_preferences(write(tmp_path, row))
    assert result.records == [PreferenceRecord(HI, "Hello", "No")]
    assert result.format == "conversational preferences"


def test_ultrafeedback_lists_hold_the_prompt_already(tmp_path: Path) -> None:
    row = {
        "prompt": "Hi",
        "prompt_id": "x1",
        "chosen": [user("Hi"), assistant("Hello")],
        "rejected": [user("Hi"), assistant("No")],
        "messages": [user("Hi"), assistant("Hello")],
        "score_chosen": 8.5,
        "score_rejected": 4.0,
    }
    path = write(tmp_path, row, {**row, "score_rejected": 8.5})
    result = read_preferences(path)
    scores = {"score_chosen": 8.5, "score_rejected": 4.0}
    assert result.records == [PreferenceRecord(HI, "Hello", "No", scores)]
    assert result.dropped == {"equal scores": 1}
    assert kept_and_dropped(read_responses(path)) == (2, {}), "scores matter to pairs alone"


def test_a_list_that_goes_on_after_the_prompt_keeps_the_prompt(tmp_path: Path) -> None:
    """A system prompt apart, and a completion of several turns."""
    path = write(
        tmp_path,
        {
            "prompt": [{"role": "system", "content": "Be brief."}],
            "completion": [user("Hi"), assistant("Hello")],
        },
        {
            "prompt": [user("Hi")],
            "completion": [assistant("Hello"), user("Bye"), assistant("See you")],
        },
    )
    assert read_responses(path).records == [
        ResponseRecord("### System:\nBe brief.\n\n" + HI, "Hello"),
        ResponseRecord(HI + "Hello\n\n### Instruction:\nBye\n\n### Response:\n", "See you"),
    ]


def test_messages(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"messages": [user("Hi"), assistant("Hello")]},
        {"messages": [user("Hi")]},
        {"messages": [assistant("Hello")]},
        {"messages": []},
    )
    result = read_responses(path)
    assert result.records == [ResponseRecord(HI, "Hello")]
    assert result.dropped == {"no answer at the end": 2, "prompt does not end with a user turn": 1}


# TL;DR.

POST = {"id": "t3_1", "subreddit": "cats", "title": "Help", "post": "My cat left."}
TLDR = "SUBREDDIT: r/cats\n\nTITLE: Help\n\nPOST: My cat left.\n\nTL;DR:"


def test_tldr_summaries_start_with_a_space(tmp_path: Path) -> None:
    path = write(tmp_path, {**POST, "summary": "Cat gone."}, {**POST, "summary": " "})
    result = read_responses(path)
    assert result.records == [ResponseRecord(TLDR, " Cat gone.")]
    assert result.dropped == {"empty answer": 1}


def test_tldr_comparisons_follow_choice(tmp_path: Path) -> None:
    row = {"info": POST, "summaries": [{"text": " Bad."}, {"text": " Cat gone."}]}
    news = {"info": {"id": "n", "article": "News.", "post": None}, "summaries": row["summaries"]}
    path = write(tmp_path, {**row, "choice": 1}, {**row, "choice": 0}, {**news, "choice": 0})
    result = read_preferences(path)
    assert result.records == [
        PreferenceRecord(TLDR, " Cat gone.", " Bad."),
        PreferenceRecord(TLDR, " Bad.", " Cat gone."),
    ]
    assert result.dropped == {"not a Reddit post": 1}


# GSM8K.


def test_gsm8k(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "question": "How much?",
            "answer": "4*5=<<4*5=20>>20\nSo $<<20*60=1200>>1,200\n#### 1,200",
        },
        {"question": "And now?", "answer": "It fell.\n#### -2.5"},
    )
    prompts = [f"### Instruction:\n{q}\n\n### Response:\n" for q in ("How much?", "And now?")]
    assert read_responses(path).records == [
        ResponseRecord(prompts[0], "4*5=20\nSo $1,200\n#### 1200"),
        ResponseRecord(prompts[1], "It fell.\n#### -2.5"),
    ]
    assert read_prompts(path).records == [
        PromptRecord(prompts[0], "1200"),
        PromptRecord(prompts[1], "-2.5"),
    ]


# Rows that break their own format.

PAIR = {"prompt": "Q", "chosen": " a", "rejected": " b"}
CHAT = {"chosen": [user("Hi"), assistant("a")], "rejected": [user("Hi"), assistant("b")]}
COMPARISON = {"info": POST, "summaries": [{"text": "a"}, {"text": "b"}], "choice": 0}


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (PAIR, {"prompt": "Q", "chosen": " a"}, r"key 'rejected' is missing \(found: prompt, ch"),
        (PAIR, {**PAIR, "chosen": None}, "'chosen' is null, expected a string"),
        (PAIR, {**PAIR, "prompt": 7}, "'prompt' is a number, expected a string"),
        (PAIR, {**PAIR, "rejected": [" b"]}, "'rejected' is a list, expected a string"),
        (PAIR, {**PAIR, "chosen": "\ud800"}, "'chosen' holds half of a surrogate pair"),
        (CHAT, {**CHAT, "chosen": "a"}, "'chosen' is a string, expected a list of messages"),
        (CHAT, {**CHAT, "chosen": ["a"]}, "'chosen' holds a message without 'role' and 'content'"),
        (CHAT, {**CHAT, "chosen": [{"role": "tool", "content": "x"}]}, "the role 'tool'"),
        (CHAT, {**CHAT, "chosen": [{"role": "user", "content": {}}]}, "'content' is an object"),
        (COMPARISON, {**COMPARISON, "choice": 2}, "'choice' is 2, expected 0 or 1"),
        (COMPARISON, {**COMPARISON, "choice": True}, "'choice' is True, expected 0 or 1"),
        (COMPARISON, {**COMPARISON, "summaries": [{}]}, "'summaries' is not a list of two objects"),
        (COMPARISON, {**COMPARISON, "info": "x"}, "'info' is a string, expected an object"),
    ],
)
def test_malformed_rows(tmp_path: Path, good: dict, bad: dict, message: str) -> None:
    path = write(tmp_path, good, bad)
    with pytest.raises(DataError, match=message) as caught:
        read_preferences(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert str(caught.value).endswith("; correct the row or remove it")


@pytest.mark.parametrize("answer", ["no number", "18", "#### ", "#### 3 apples"])
def test_gsm8k_without_a_final_number(tmp_path: Path, answer: str) -> None:
    path = write(tmp_path, {"question": "How much?", "answer": answer})
    with pytest.raises(DataError, match=":1: 'answer' does not end with"):
        read_prompts(path)


def test_unknown_keys_are_named_beside_the_known_formats(tmp_path: Path) -> None:
    path = write(tmp_path, {"winner": "a", "loser": "b"})
    with pytest.raises(DataError, match=":1: keys winner, loser fit no") as caught:
        read_preferences(path)
    assert "prompt + chosen + rejected" in str(caught.value)
