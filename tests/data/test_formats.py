"""Each kind of row, written as its source writes it, against the text it must become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toys import write_rows

from data.files.read import read_preferences, read_prompts, read_responses
from data.records import PreferenceRecord, PromptRecord, ResponseRecord
from harness.errors import UserError

Row = dict[str, Any]
HI = "### Instruction:\nHi\n\n### Response:\n"
ALPACA = {"instruction": "Translate.", "input": "chat", "output": "rude cat"}
ALPACA_PROMPT = "### Instruction:\nTranslate.\n\n### Input:\nchat\n\n### Response:\n"
PAIR = {"prompt": "Q", "chosen": " a", "rejected": " b"}


def said(*texts: str) -> list[dict[str, str]]:
    """Messages of the user and the assistant in turn."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def answered(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def hh(*turns: str) -> str:
    speakers = ("Human", "Assistant")
    return "".join(f"\n\n{speakers[i % 2]}: {turn}" for i, turn in enumerate(turns))


GSM8K = [
    {"question": "How much?", "answer": "4*5=<<4*5=20>>20\nSo $<<20*60=1200>>1,200\n#### 1,200"},
    {"question": "And now?", "answer": "It fell.\n#### -2.5"},
]
CONVERSATION = {"chosen": said("Hi", "a"), "rejected": said("Hi", "b")}


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


# A question that stands in `prompt` and again in the answers must be written once. Of conversations: the
# prompt, what stands before each answer, and the prompt that is rendered, None for a dropped row.
Q, ASKS = "Is it late?", "### Instruction:\nIs it late?\n\n### Response:\n"
EARLIER, LATER = said("Hi", "Hello!"), f"{HI}Hello!\n\n{ASKS}"


def system(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": text}]


KIND, KINDLY = system("Be kind."), f"### System:\nBe kind.\n\n{ASKS}"
CONVERSATIONS: dict[str, tuple[Any, list[dict[str, str]], str | None]] = {
    "the same": (said(Q), said(Q), ASKS), "a blank more": (said(Q + " "), said(Q), ASKS),
    "system in the prompt": (KIND + said(Q), said(Q), KINDLY),
    "system in the answers": (said(Q), KIND + said(Q), KINDLY),
    "system in both": (KIND + said(Q), KIND + said(Q), KINDLY),
    "system alone in the prompt": (KIND, said(Q), KINDLY),
    "another system": (system("Be rude.") + said(Q), KIND + said(Q), None),
    "empty system": (system("") + said(Q), said(Q), ASKS),
    "last turn in the prompt": (said(Q), EARLIER + said(Q), LATER),
    "last turn in the answers": (EARLIER + said(Q), said(Q), LATER),
    "first turn in the prompt": (said("Hi"), EARLIER + said(Q), LATER),
    "answers go on": (said("Hi"), [*answered("Hello!"), *said(Q)], LATER),
    "another question": (said("Why?"), said(Q), None),
    "half a question": (said(Q), said(f"{Q} Or not?"), None),
    "a string": (Q, said(Q), ASKS), "a string and a system": (Q, KIND + said(Q), KINDLY),
    "another string": ("Why?", said(Q), None),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_is_read_once(tmp_path: Path, name: str) -> None:
    prompt, before, expected = CONVERSATIONS[name]
    good, bad = before + answered("yes"), before + answered("no")
    pairs = [CONVERSATION, {"prompt": prompt, "chosen": good, "rejected": bad}]
    kept = [PreferenceRecord(expected, "yes", "no")] if expected else []
    assert read_preferences(write_rows(tmp_path, *pairs)).records[1:] == kept
    for key in ("completion", "messages"):
        rows = [{"prompt": said("Hi"), key: said("Hi", "x")}, {"prompt": prompt, key: good}]
        answers = [ResponseRecord(expected, "yes")] if expected else []
        assert read_responses(write_rows(tmp_path, *rows)).records[1:] == answers


# Of strings: the prompt, an answer, and what it must be read as, None for a dropped row.
DIALOG = hh(Q, "").rstrip()
STRINGS: dict[str, tuple[str, str, str | None]] = {
    "the same": (Q, f"{Q} yes", " yes"), "blanks before": (Q, f"\n {Q} yes", " yes"),
    "a blank more": (Q + " ", f"{Q} yes", "yes"), "no blank": (Q + " ", f"{Q}yes", "yes"),
    "line breaks": (Q + "\n", f"{Q}\n  yes", "  yes"), "not there": (Q, f" Late. {Q}", f" Late. {Q}"),
    "one word, perhaps an echo": ("late", "late yes", None),
    "a transcript": (DIALOG, DIALOG + " yes", " yes"), "its question": (Q, DIALOG + " yes", None),
}  # fmt: skip


@pytest.mark.parametrize("name", STRINGS)
def test_a_string_is_read_once(tmp_path: Path, name: str) -> None:
    prompt, answer, own = STRINGS[name]
    rows = [PAIR, {"prompt": prompt, "chosen": answer, "rejected": f"{answer}!"}]
    result = read_preferences(write_rows(tmp_path, *rows))
    kept = [] if own is None else [PreferenceRecord(prompt, own, f"{own}!")]
    assert result.records[1:] == kept
    assert bool(result.notes) == bool(own and own != answer)
    for key in ("response", "completion"):
        rows = [{"prompt": "Q", key: " a"}, {"prompt": prompt, key: answer}]
        answers = [ResponseRecord(pair.prompt, pair.chosen) for pair in kept]
        assert read_responses(write_rows(tmp_path, *rows)).records[1:] == answers
    if own is not None:
        rows = [{"instruction": prompt, "chosen": answer, "rejected": f"{answer}!"}]
        (pair,) = read_preferences(write_rows(tmp_path, *rows)).records
        assert (pair.chosen, pair.rejected) == (own.strip(), f"{own}!".strip())


def test_one_answer_that_repeats_its_question_stays(tmp_path: Path) -> None:
    """Where the other one does not, it is the answer's own; and a sampled one stays what it was."""
    rows = [
        {"prompt": Q, "chosen": " yes", "rejected": Q + " no"},
        {"prompt": Q, "chosen": Q, "rejected": Q + " no", "chosen_ended": True},
    ]
    records = read_preferences(write_rows(tmp_path, *rows)).records
    assert [record.rejected for record in records] == [Q + " no"] * 2
    empty = {"prompt": Q, "chosen": Q + " yes", "rejected": ""}
    (read,) = read_responses(write_rows(tmp_path, empty)).records
    assert read == ResponseRecord(Q, " yes")
    assert read_preferences(write_rows(tmp_path, rows[0], empty)).dropped == {"empty answer": 1}


# Columns beside those of the format ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "row", "prompt"),
    [
        (read_responses, ALPACA | {"input": "", "system": "Be kind."},
         "### System:\nBe kind.\n\n### Instruction:\nTranslate.\n\n### Response:\n"),
        (read_responses, {"messages": said(Q, "No"), "system_prompt": "Be kind."}, KINDLY),
        (read_preferences, CONVERSATION | {"system": "Be kind."}, f"### System:\nBe kind.\n\n{HI}"),
        (read_preferences, {"system": "Be kind.", "chosen": KIND + said(Q, "a"),
                            "rejected": KIND + said(Q, "b")}, KINDLY),
        (read_preferences, PAIR | {"system": ""}, "Q"), (read_prompts, {"prompt": "Q", "history": []}, "Q"),
        (read_preferences, PAIR | {"system": "Be kind."}, None),
        (read_prompts, {"prompt": "Q", "context": "A page."}, None),
        (read_responses, {"prompt": "Q", "response": " a", "history": [["b", "c"]]}, None),
        (read_responses, ALPACA | {"history": [["b", "c"]]}, None),
        (read_responses, {"messages": said(Q, "No"), "tools": [{"name": "clock"}]}, None),
        (read_responses, {"messages": [*said(Q), {**answered("No")[0], "tool_calls": [1]}]}, None),
        (read_responses, {"messages": [*said(Q), {**answered("No")[0], "thinking": "Hm"}]}, None),
        (read_responses, {"messages": [*said(Q), {**answered("No")[0], "reasoning": "Hm"}]}, None),
        (read_responses, {"messages": [KIND[0] | {"role": "developer"}, *said(Q, "No")]}, KINDLY),
        (read_responses, {"prompt": "Q", "completion": " a", "label": False}, None),
        (read_responses, ALPACA | {"kto_tag": False}, None),
        (read_responses, ALPACA | {"prompt": "Answer in French."}, None),
        (read_prompts, GSM8K[0] | {"prompt": said("Hi")}, None),
        (read_responses, GSM8K[0] | {"system": "Be kind."},
         "### System:\nBe kind.\n\n### Instruction:\nHow much?\n\n### Response:\n"),
        (read_responses, {"prompt": "Q", "completion": " a", "label": True}, "Q"),
    ],
)  # fmt: skip
def test_what_changes_a_row_is_written_or_the_row_dropped(
    tmp_path: Path, read: Any, row: Row, prompt: str | None
) -> None:
    if prompt is None:
        with pytest.raises(UserError):
            read(write_rows(tmp_path, row))
    else:
        assert read(write_rows(tmp_path, row)).records[0].prompt == prompt


@pytest.mark.parametrize(("key", "on"), [("weight", 1), ("train", True), ("loss", "true")])
def test_an_answer_marked_as_not_to_be_learned_is_none(tmp_path: Path, key: str, on: Any) -> None:
    """By a mark of its message or of its row; an earlier turn is not learned anyhow, and a prompt stays."""
    for off in (0, 0.0, False, "False", "0"):
        last, unlearned = [{**answered("No")[0], key: on}], [{**answered("No")[0], key: off}]
        earlier = [*said("Hi"), {**answered("Yo")[0], key: off}, *said(Q)]
        rows = [
            {"messages": earlier + last}, {"messages": earlier + last, key: on},
            {"messages": said(Q) + unlearned}, {"messages": said(Q) + last, key: off},
        ]  # fmt: skip
        result = read_responses(write_rows(tmp_path, *rows))
        assert len(result.records) == 2 and list(result.dropped.values()) == [2]
        assert len(read_prompts(tmp_path / "rows.jsonl").records) == 4
        pair = {"prompt": said(Q), "chosen": last, "rejected": answered("x")}
        rows = [pair, pair | {"chosen": unlearned}, pair | {key: off}]
        result = read_preferences(write_rows(tmp_path, *rows))
        assert list(result.dropped.values()) == [2] and result.unread == []
        assert len(result.records) == 1


def parts(*texts: str, **more: str) -> list[dict[str, Any]]:
    found = [{"type": "text", "text": text} for text in texts]
    return [*found, *({"type": kind, kind: value} for kind, value in more.items())]


def test_a_message_of_text_parts_is_their_text(tmp_path: Path) -> None:
    """One part or several; a row with a part of another kind is counted, a malformed part an error."""
    asks = {"role": "user", "content": parts("Is it", " late?")}
    told = [{"role": "assistant", "content": [{"type": "output_text", "text": "No."}]}]
    seen = {"role": "user", "content": parts("What is this?", image_url="https://x")}
    rows = [{"messages": [asks, *told]}, {"messages": [seen, *told]}]
    result = read_responses(write_rows(tmp_path, *rows))
    assert result.records == [ResponseRecord(ASKS, "No.")] and list(result.dropped.values()) == [1]
    for bad in ([3], [{"text": "x"}], [{"type": "text"}], [{"type": "text", "text": 3}]):
        row = {"messages": [{"role": "user", "content": bad}, *told]}
        with pytest.raises(UserError, match="rows.jsonl:1: "):
            read_responses(write_rows(tmp_path, row))


MIXED: list[tuple[Any, Any]] = [
    (said(Q), "No."), (said(Q), answered("No.")[0]), (said(Q)[0], answered("No.")), (said(Q)[0], "No."),
    (Q, answered("No.")[0]), ([{"role": "USER", "content": Q}], answered(" No. ")),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "answer"), MIXED)
def test_messages_and_strings_stand_beside_each_other(
    tmp_path: Path, prompt: Any, answer: Any
) -> None:
    """A prompt of messages with answers as strings, one message each, or lists of one, and all of it."""
    for key in ("response", "completion"):
        rows = [{"prompt": prompt, key: answer}, {"prompt": said(Q), key: answered("No.")}]
        assert (
            read_responses(write_rows(tmp_path, *rows)).records == [ResponseRecord(ASKS, "No.")] * 2
        )
    pair = {"prompt": prompt, "chosen": answer, "rejected": answered("Yes.")[0]}
    for row in (pair, pair | {"rejected": "Yes."} if not isinstance(prompt, str) else pair):
        records = read_preferences(write_rows(tmp_path, row, row)).records
        assert records == [PreferenceRecord(ASKS, "No.", "Yes.")] * 2


@pytest.mark.parametrize("nothing", [[], None, "", " ", "[]", "null", "None", "{}", "NaN"])
def test_a_column_or_key_that_says_there_is_nothing_drops_no_row(
    tmp_path: Path, nothing: Any
) -> None:
    for key in ("tools", "history", "images"):
        rows = [
            {"messages": said(Q, "No"), key: nothing},
            {"messages": said(Q, "No"), key: '[{"a": 1}]'},
        ]
        rows.append({"messages": [*said(Q), answered("No")[0] | {"tool_calls": nothing}]})
        assert len(read_responses(write_rows(tmp_path, *rows)).records) == 2
    task = ALPACA | {"input": "[]"}  # which is what the instruction works on
    assert "[]" in read_responses(write_rows(tmp_path, task)).records[0].prompt


@pytest.mark.parametrize(("prompt", "notes"), [("A: ", 1), ("A:\t", 1), ("A:\n", 0), ("A:", 0)])
def test_a_blank_at_the_end_of_a_prompt_is_counted(tmp_path: Path, prompt: str, notes: int) -> None:
    for row in ({"prompt": prompt}, {"prompt": prompt, "response": " a"}):
        result = read_prompts(write_rows(tmp_path, row))
        assert sum(result.notes.values()) == notes and result.records[0].prompt == prompt
    assert not read_prompts(write_rows(tmp_path, {"prompt": said("A: ")})).notes


def test_columns_that_are_not_used_are_named(tmp_path: Path) -> None:
    """Those of any row, once."""
    result = read_preferences(write_rows(tmp_path, SCORED, SCORED | {"source": "x"}))
    assert result.unread == ["prompt_id", "messages", "source"]
    assert all(result.summary().count(repr(name)) == 1 for name in result.unread)
    assert read_preferences(write_rows(tmp_path, PAIR)).unread == []


def test_a_chosen_answer_with_the_lower_score_is_told(tmp_path: Path) -> None:
    rows = [{**SCORED, "score_rejected": score} for score in (8.5, 9, 4, None)]
    result = read_preferences(write_rows(tmp_path, *rows))
    assert (len(result.records), result.dropped) == (3, {"equal scores": 1})
    assert list(result.notes.values()) == [1]
    table = "prompt,chosen,rejected,score_chosen,score_rejected\n"
    path = tmp_path / "rows.csv"
    path.write_text(table + "Q, a, b,10,9\nQ, a, b,9,10\n")  # as texts the other way round
    assert list(read_preferences(path).notes.values()) == [1]


RATINGS = [
    ("score_chosen", "score_rejected"), ("chosen_rating", "rejected_rating"),
    ("chosen-rating", "rejected-rating"), ("chosenScore", "rejectedScore"),
    ("ScoreChosen", "ScoreRejected"), ("chosen_avg_grade", "rejected_avg_grade"),
    ("reward_chosen", "reward_rejected"),
]  # fmt: skip


@pytest.mark.parametrize(("chosen", "rejected"), RATINGS)
def test_ratings_are_read_by_every_usual_name(tmp_path: Path, chosen: str, rejected: str) -> None:
    """Of five pairs the first is a tie, the second the wrong way round, the third rated in words."""
    for a, b in ((3, 4), (2.5, 3), ("2,5", "4"), ("7/10", "9/10"), (" 70% ", "90%"), ("-1e1", "0")):
        rates = [(b, b), (a, b), ("bad", "good"), (b, a), (None, b)]
        rows = [
            PAIR | {"prompt": f"{i}:", chosen: x, rejected: y} for i, (x, y) in enumerate(rates)
        ]
        result = read_preferences(write_rows(tmp_path, *rows))
        assert [record.prompt for record in result.records] == ["1:", "2:", "3:", "4:"]
        assert [*result.dropped.values(), *result.notes.values()] == [1, 1, 1]
        assert result.unread == []


def test_what_a_run_records_of_gold_rewards_rates_no_pair(tmp_path: Path) -> None:
    """An annotator errs; and a column with one side alone, or of something else, is named."""
    rows = [
        PAIR | {"gold_chosen": 1, "gold_rejected": 1, "chosen_rating": 1, "rejected_model": "x"}
    ]
    result = read_preferences(write_rows(tmp_path, *rows))
    assert len(result.records) == 1 and not result.notes and len(result.unread) == 4


@pytest.mark.parametrize("name", PREFERENCES)
def test_pairs(tmp_path: Path, name: str) -> None:
    rows, records, form, dropped = PREFERENCES[name]
    result = read_preferences(write_rows(tmp_path, *rows))
    assert (result.records, result.format, result.dropped) == (records, form, dropped)


ASKED = [f"### Instruction:\n{q}\n\n### Response:\n" for q in ("How much?", "And now?")]
RESPONSES: dict[str, tuple[list[Row], list[tuple[str, str]], dict[str, int]]] = {
    **{
        key: ([{"prompt": "Q:", key: " a"}], [("Q:", " a")], {})
        for key in ("response", "completion", "answer")
    },
    "Alpaca": (
        [{"instruction": "Hi", "output": "Hello"}, {**ALPACA, "input": None},
         {"instruction": " ", "input": "", "output": "the headings alone are no text"}],
        [(HI, "Hello"), ("### Instruction:\nTranslate.\n\n### Response:\n", "rude cat")],
        {"empty prompt": 1},
    ),
    "pairs' better ones": ([SCORED, {**SCORED, "score_rejected": 8.5}], [(HI, "Hello")] * 2, {}),
    "HH": ([{"chosen": hh("Hi", "yes"), "rejected": hh("Hi", "no")}], [(HI, "yes")], {}),
    "messages": (
        [{"messages": said("Hi", "Hello")}, {"messages": said(*OPENING, "No.")}, {"messages": said("Hi")},
         {"prompt": "Hi", "messages": said("Hi", "Yo")}],
        [(HI, "Hello"), (f"{HI}Hello!\n\n{ASKS}", "No."), (HI, "Yo")], {"no answer at the end": 1},
    ),
    "completion as messages": (
        [{"prompt": asked, "completion": answered("Yo")} for asked in (said("Hi"), "Hi")],
        [(HI, "Yo")] * 2, {},
    ),
    "GSM8K": (
        GSM8K, [(ASKED[0], "4*5=20\nSo $1,200\n#### 1200"), (ASKED[1], "It fell.\n#### -2.5")], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESPONSES)
def test_answers(tmp_path: Path, name: str) -> None:
    rows, texts, dropped = RESPONSES[name]
    result = read_responses(write_rows(tmp_path, *rows))
    assert (result.records, result.dropped) == ([ResponseRecord(*pair) for pair in texts], dropped)


PROMPTS: dict[str, tuple[list[Row], list[tuple[str, Any]], dict[str, int]]] = {
    "with and without ground truth": (
        [{"prompt": "2+2=", "answer": "4"}, {"prompt": "2+3=", "answer": 5},
         {"prompt": "Say hi. ", "answer": None}, {"prompt": said("Hi")}, {"prompt": ""}],
        [("2+2=", "4"), ("2+3=", "5"), ("Say hi. ", None), (HI, None)], {"empty prompt": 1},
    ),
    "ground truth of any kind": (
        [{"prompt": "Q", "answer": value} for value in (3.5, True, [4, "four"], {"x": 1})],
        [("Q", "3.5"), ("Q", True), ("Q", [4, "four"]), ("Q", {"x": 1})], {},
    ),
    "an answer beside other keys": (
        [{"messages": said("Hi", "Hello"), "answer": "x"}, {"messages": said("Hi", "Yo"), "answer": 2}],
        [(HI, "x"), (HI, "2")], {},
    ),
    "GSM8K": (GSM8K, [(ASKED[0], "1200"), (ASKED[1], "-2.5")], {}),
    "HH": ([{"chosen": hh("Hi", "yes"), "rejected": hh("Hi", "no")}], [(HI, None)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts(tmp_path: Path, name: str) -> None:
    rows, texts, dropped = PROMPTS[name]
    result = read_prompts(write_rows(tmp_path, *rows))
    assert [(record.prompt, record.answer) for record in result.records] == texts
    assert result.dropped == dropped


def test_a_prompt_brings_the_other_columns_of_its_row(tmp_path: Path) -> None:
    rows = [
        {"prompt": "Q", "answer": [1], "tests": ["assert f(0) == 0"], "level": {"hard": True}},
        {"prompt": "R", "response": "a"},
    ]
    first, second = read_prompts(write_rows(tmp_path, *rows)).records
    assert first == PromptRecord("Q", [1], {"tests": rows[0]["tests"], "level": {"hard": True}})
    assert second.meta == {"response": "a"}


@pytest.mark.parametrize(
    ("good", "changes"),
    [
        (PAIR, {"chosen": "\ud800"}), (CONVERSATION, {"chosen": "a"}), (CONVERSATION, {"chosen": ["a"]}),
        (CONVERSATION, {"chosen": [{"role": "tool", "content": "x"}]}),
        (CONVERSATION, {"chosen": [{"role": "user", "content": {}}]}),
        (GSM8K[1], {"answer": "Paris"}), (GSM8K[1], {"answer": 3}),
        (GSM8K[1], {"answer": "#### 3 apples"}), (GSM8K[1], {"answer": "#### \u0667"}),
        ({"winner": "a", "loser": "b"}, {}), (ALPACA, {}),
    ],
)  # fmt: skip
def test_malformed_rows(tmp_path: Path, good: Row, changes: Row) -> None:
    """Beside tests/test_bad_files.py: what is wrong in a format of its own, with its line."""
    rows = [good, good | changes] if {"chosen", "question"} & good.keys() else [good | changes]
    read = read_prompts if "question" in good else read_preferences
    with pytest.raises(UserError, match=rf"rows.jsonl:{len(rows)}: "):
        read(write_rows(tmp_path, *rows))
