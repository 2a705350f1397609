"""Popular public data sets by their own columns, --columns, Parquet and Arrow, and names of the hub."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toys import write_rows

from data import sources
from data.files import published
from data.files.columns import named
from data.files.formats import FIELDS, LINES, OTHERS
from data.files.read import read_preferences, read_prompts, read_responses
from data.files.source import FileSource
from data.records import PreferenceRecord, PromptRecord, ResponseRecord
from data.sources import data_name, file_source, name_columns
from harness.errors import UserError
from harness.files import reading

Row = dict[str, Any]
Q = "Why is the sky blue?"
ASKS = f"### Instruction:\n{Q}\n\n### Response:\n"
KINDLY = f"### System:\nBe kind.\n\n{ASKS}"


def user(text: str = Q) -> Row:
    return {"role": "user", "content": text}


def model(text: str) -> Row:
    return {"role": "assistant", "content": text}


def share(speaker: str, text: str) -> Row:
    return {"from": speaker, "value": text}


def talk(text: str) -> list[Row]:
    return [user(), model(text)]


GOOD, BAD = "Light scatters.", "It is paint."
TWO = {"chosen": GOOD, "rejected": BAD}
PKU = {
    "prompt": Q, "response_0": BAD, "response_1": GOOD, "is_response_0_safe": False,
    "safer_response_id": 0,
}  # fmt: skip
HELPSTEER = {"domain": "general", "context": [user()], "response1": GOOD, "response2": BAD}
SHP = {
    "post_id": "x", "history": Q, "human_ref_A": BAD, "human_ref_B": GOOD,
    "score_A": 2, "score_B": 9,
}  # fmt: skip
ARENA = {"model_a": "x", "model_b": "y", "conversation_a": talk(BAD), "conversation_b": talk(GOOD)}
FEEDBACK = [
    {"model": "m", "response": text, "overall_score": score, "annotations": {}}
    for text, score in (("Because.", 5.0), (BAD, 2), (GOOD, 8.5))
]

# A row of each, and the prompt that is rendered. The better answer is GOOD, the worse one BAD.
PAIRS: dict[str, tuple[Row, str]] = {
    "orca": ({"system": "Be kind.", "question": Q, **TWO}, KINDLY),
    "distilabel orca": ({"input": Q, **TWO, "generations": [GOOD, BAD], "rating": [9, 4]}, ASKS),
    "PKU-SafeRLHF": (PKU | {"better_response_id": 1}, ASKS),
    "HelpSteer3": (HELPSTEER | {"overall_preference": -2}, ASKS),
    "SHP": (SHP | {"labels": 0}, ASKS),
    "LMArena": (ARENA | {"winner": "model_b"}, ASKS),
    "UltraFeedback": ({"instruction": Q, "models": ["a"], "completions": FEEDBACK}, ASKS),
    "ShareGPT": (
        {"conversations": [share("human", Q)], "chosen": share("gpt", GOOD), "rejected": share("gpt", BAD)},
        ASKS,
    ),
    "Skywork": ({"chosen": talk(GOOD), "rejected": talk(BAD), "source": "x"}, ASKS),
    "dpo-mix": (
        {"chosen": talk(GOOD), "rejected": talk(BAD), "chosen_rating": 5.0, "rejected_rating": 3.0}, ASKS,
    ),
    "reward-bench": ({"prompt": Q, **TWO, "chosen_model": "a", "subset": "s", "id": 1}, Q),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_popular_pairs_by_their_own_columns(tmp_path: Path, name: str) -> None:
    row, prompt = PAIRS[name]
    path = write_rows(tmp_path, row)
    assert read_preferences(path).records == [PreferenceRecord(prompt, GOOD, BAD)]
    assert read_responses(path).records == [ResponseRecord(prompt, GOOD)]
    assert read_prompts(path).records[0].prompt == prompt


@pytest.mark.parametrize(
    ("row", "by", "chosen", "said"),
    [
        (PKU, "better_response_id", "response_0", [0, "0", 0.0]),
        (PKU, "better_response_id", "response_1", [1, "1", 1.0]),
        (HELPSTEER, "overall_preference", "response1", [-3, -2, -1, "-1"]),
        (HELPSTEER, "overall_preference", "response2", [1, 2, 3, "3", 1.0]),
        (SHP, "labels", "human_ref_A", [1, "1"]), (SHP, "labels", "human_ref_B", [0, "0"]),
        (ARENA, "winner", "conversation_a", ["model_a"]), (ARENA, "winner", "conversation_b", ["model_b"]),
    ],
)  # fmt: skip
def test_the_answer_that_the_column_names_is_the_chosen_one(
    tmp_path: Path, row: Row, by: str, chosen: str, said: list[Any]
) -> None:
    """As each set's card defines it: SHP's 1 is A, HelpSteer3's negative numbers are for the first."""
    expected = row[chosen] if isinstance(row[chosen], str) else row[chosen][-1]["content"]
    rows = [row | {by: value} for value in said]
    assert [pair.chosen for pair in read_preferences(write_rows(tmp_path, *rows)).records] == (
        [expected] * len(said)
    )


@pytest.mark.parametrize(
    ("row", "by", "ties", "wrong"),
    [
        (HELPSTEER, "overall_preference", [0, "0"], 4), (PKU, "better_response_id", [], 2),
        (ARENA, "winner", ["tie", "tie (bothbad)", "both_bad"], "model_c"), (SHP, "labels", [], None),
        (SHP, "labels", [], ""),
    ],
)  # fmt: skip
def test_a_tie_is_a_prompt_and_no_pair_and_other_verdicts_are_refused(
    tmp_path: Path, row: Row, by: str, ties: list[Any], wrong: Any
) -> None:
    good = {"better_response_id": 1, "overall_preference": 1, "winner": "model_a", "labels": 1}[by]
    path = write_rows(tmp_path, row | {by: good}, *(row | {by: tie} for tie in ties))
    for result in (read_preferences(path), read_responses(path)):
        assert len(result.records) == 1 and sum(result.dropped.values()) == len(ties)
    assert len(read_prompts(path).records) == 1 + len(ties)
    with pytest.raises(UserError, match="rows.jsonl:2: "):
        read_preferences(write_rows(tmp_path, row | {by: good}, row | {by: wrong}))


def test_the_best_of_rated_answers_beats_the_worst(tmp_path: Path) -> None:
    unrated = {"response": "?", "overall_score": None}
    rows = [
        {"instruction": Q, "completions": given}
        for given in (FEEDBACK, FEEDBACK[:1], FEEDBACK[:1] * 2, [*FEEDBACK[1:], unrated])
    ]  # fmt: skip
    result = read_preferences(write_rows(tmp_path, *rows))
    assert [(pair.chosen, pair.rejected) for pair in result.records] == [(GOOD, BAD)] * 2
    assert sum(result.dropped.values()) == 2
    for bad in ("a", [3]):
        with pytest.raises(UserError):
            read_preferences(
                write_rows(tmp_path, {"instruction": Q, "completions": bad}, name="a.jsonl")
            )


def test_a_prompt_is_what_is_asked_whatever_other_columns_are_called(tmp_path: Path) -> None:
    """As in the files of reward_model.annotate, whose `question` is a number."""
    row = {"prompt": "Hi.\n", "chosen": "Yes.", "rejected": "No."}
    for more in ({"question": 0}, {"question": "a7"}, {"conversations": 3}):
        (record,) = read_preferences(write_rows(tmp_path, row | more)).records
        assert (record.prompt, record.chosen, record.rejected) == ("Hi.\n", "Yes.", "No.")


def test_ratings_in_a_list_tell_a_tie(tmp_path: Path) -> None:
    rows = [{"input": Q, **TWO, "rating": rating} for rating in ([5, 5], [4, 5], None)]
    result = read_preferences(write_rows(tmp_path, *rows))
    assert len(result.records) == 2 and list(result.dropped.values()) == [1]


BOX = "We add.\nSo it is \\boxed{3}."
# A row, its prompt, and its ground truth.
PROMPTS: dict[str, tuple[Row, str, Any]] = {
    "reasoning-gym": ({"question": Q, "answer": "3", "metadata": {"difficulty": 1}}, ASKS, "3"),
    "MATH-500": ({"problem": Q, "solution": BOX, "answer": "3", "level": 1}, ASKS, "3"),
    "OpenR1-Math": ({"problem": "x", "solution": BOX, "answer": "3", "messages": talk(BOX)}, ASKS, "3"),
    "NuminaMath": ({"problem": "x", "solution": BOX, "messages": talk(BOX)}, ASKS, BOX),
    "DeepMath": ({"prompt": [user()], "solution": "3"}, ASKS, "3"),
    "a solution without an end": ({"prompt": [user()], "solution": "We add.\nSo it is 3."}, ASKS, None),
    "an answer before a solution": ({"prompt": [user()], "solution": "4", "answer": 3}, ASKS, "3"),
    "an empty answer": ({"prompt": [user()], "solution": "4", "answer": None}, ASKS, "4"),
    "verl": ({"prompt": [user()], "reward_model": {"ground_truth": "34", "style": "rule"}}, ASKS, "34"),
    "another reward_model": ({"prompt": [user()], "reward_model": "x"}, ASKS, None),
    "RLVR-GSM": ({"messages": [user()], "ground_truth": "34", "dataset": "gsm8k"}, ASKS, "34"),
    "minimind": ({"conversations": [user(), model("")]}, ASKS, None),
    "ShareGPT": ({"conversations": [share("system", "Be kind."), share("human", Q)]}, KINDLY, None),
    "rubrics": ({"question": Q, "reference_answer": "a", "rubric": [{"weight": 5}]}, ASKS, None),
}  # fmt: skip


@pytest.mark.parametrize("name", PROMPTS)
def test_popular_prompts_and_their_ground_truth(tmp_path: Path, name: str) -> None:
    row, prompt, truth = PROMPTS[name]
    result = read_prompts(write_rows(tmp_path, row))
    (record,) = result.records
    assert (record.prompt, record.answer) == (prompt, truth)
    elsewhere = truth is not None and truth != row.get("answer") and row.get("answer") is None
    assert bool(result.notes) == elsewhere  # the summary says under which name it stood
    assert ("answer" in result.unread) == (name == "an empty answer")


ANSWERED: dict[str, tuple[Row, str, str]] = {
    "ShareGPT": ({"conversations": [share("human", Q), share("gpt", GOOD)]}, ASKS, GOOD),
    "Dolly": ({"instruction": Q, "context": "", "response": GOOD, "category": "qa"}, ASKS, GOOD),
    "Dolly with a context": (
        {"instruction": "Sum it up.", "context": "A page.", "response": GOOD},
        "### Instruction:\nSum it up.\n\n### Input:\nA page.\n\n### Response:\n", GOOD),
    "OpenOrca": ({"system_prompt": "Be kind.", "question": Q, "response": GOOD}, KINDLY, GOOD),
    "MATH": ({"problem": Q, "solution": BOX, "answer": "3"}, ASKS, BOX),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERED)
def test_popular_answers_to_learn_from(tmp_path: Path, name: str) -> None:
    row, prompt, answer = ANSWERED[name]
    assert read_responses(write_rows(tmp_path, row)).records == [ResponseRecord(prompt, answer)]


def test_messages_that_end_with_the_user_are_prompts_alone(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path, {"messages": talk(GOOD)}, {"messages": [*talk(GOOD), user("Really?")]}
    )
    assert len(read_prompts(path).records) == 2
    result = read_responses(path)
    assert len(result.records) == 1 and list(result.dropped.values()) == [1]


def test_a_layout_that_is_known_by_name_comes_with_the_lines_that_convert_it(
    tmp_path: Path,
) -> None:
    """The lines are run by a shell as they are printed."""
    given: dict[str, Row] = {
        "Countdown": {"nums": [19, 36, 55], "target": 44},
        "OpenAI's preferences": {
            "input": {"messages": [user()]}, "preferred_output": [model(GOOD)],
            "non_preferred_output": [model(BAD)],
        },
    }  # fmt: skip
    assert {name for name, *_ in OTHERS} == {*given}
    for name, _, make in OTHERS:
        theirs = write_rows(tmp_path, given[name], name="theirs.jsonl")
        with pytest.raises(UserError, match="mine.jsonl"):
            read_prompts(theirs)
        lines = LINES.format(name, make).split("\n", 1)[1]
        lines = lines.replace("python ", f"{sys.executable} ", 1)
        subprocess.run(["bash", "-c", lines], cwd=tmp_path, check=True)
        (record,) = read_prompts(tmp_path / "mine.jsonl").records
        assert "44" in record.prompt if name == "Countdown" else record.prompt == ASKS
    pair = read_preferences(tmp_path / "mine.jsonl").records
    assert pair == [PreferenceRecord(ASKS, GOOD, BAD)]


# Answers with a label.


def test_a_labelled_answer_is_half_a_pair(tmp_path: Path) -> None:
    rows = [
        {"prompt": [user()], "completion": [model(text)], "label": label}
        for text, label in ((GOOD, True), (BAD, False), (GOOD, "true"), (BAD, 0), (" ", True))
    ]
    result = read_preferences(write_rows(tmp_path, *rows), labelled=True)
    good = PreferenceRecord(ASKS, GOOD, "", {"label": True})
    bad = PreferenceRecord(ASKS, "", BAD, {"label": False})
    assert result.records == [good, bad, good, bad] and list(result.dropped.values()) == [1]
    assert result.unread == []
    pairs = [{"prompt": Q, "response": GOOD, "kto_tag": False}]
    assert read_preferences(write_rows(tmp_path, *pairs), labelled=True).records[0].rejected == GOOD
    pairs = [{"prompt": Q, **TWO, "label": True}]  # a pair stays a pair
    assert read_preferences(write_rows(tmp_path, *pairs), labelled=True).records[0].rejected == BAD
    with pytest.raises(UserError, match="--loss kto"):
        read_preferences(write_rows(tmp_path, *rows))


# --columns.


@pytest.fixture
def run() -> Iterator[None]:
    with reading():
        yield


def test_columns_are_renamed_before_the_layout_is_found(tmp_path: Path, run: None) -> None:
    rows = [
        {"task": Q, "best": GOOD, "worst": BAD, "prompt": "x", "source": "y"},
        {"task": Q, "best": GOOD, "source": "y"},
    ]
    path = write_rows(tmp_path, *rows)
    name_columns(str(path), ("prompt=task", "chosen=best", "rejected=worst"))
    with pytest.raises(UserError, match="rows.jsonl:2: "):
        file_source(path, None).pairs()
    result = file_source(write_rows(tmp_path, rows[0]), None).pairs()
    assert result.records == [PreferenceRecord(Q, GOOD, BAD)] and result.unread == ["source"]
    other = write_rows(tmp_path, PKU | {"better_response_id": 1}, name="other.jsonl")
    assert len(read_preferences(other).records) == 1  # another file of the run keeps its names
    name_columns(str(other), ["better_response_id=safer_response_id"])
    assert read_preferences(other).records == [PreferenceRecord(ASKS, BAD, GOOD)]


def test_two_columns_can_change_places(tmp_path: Path, run: None) -> None:
    path = write_rows(tmp_path, {"prompt": Q, **TWO})
    name_columns(str(path), ["chosen=rejected", "rejected=chosen"])
    assert read_preferences(path).records == [PreferenceRecord(Q, BAD, GOOD)]


def test_columns_hold_for_tables_texts_and_one_run_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("body;answer\nOne.;3\n", encoding="utf-8")
    with reading():
        name_columns(str(path), ["text=body"])
        assert FileSource(path).documents(say=False) == ["One."]
    with reading():
        name_columns(str(path), ["prompt=body"])
        assert read_prompts(path).records == [PromptRecord("One.", "3")]
    with reading(), pytest.raises(UserError):
        read_prompts(path)


def test_wrong_columns_are_refused(tmp_path: Path, run: None) -> None:
    path = write_rows(tmp_path, {"task": Q})
    wrong = ["prompt"], ["prompt="], ["=task"], ["question2=task"], ["prompt=task", "prompt=task"]
    for columns in wrong:
        with pytest.raises(UserError, match="--columns"):
            named(columns)
    for data, columns in (("reviews", ["prompt=task"]), (str(tmp_path / "none"), ["prompt=task"])):
        with pytest.raises(UserError):
            name_columns(data, columns)
    name_columns("reviews", ())
    name_columns(str(path), ["prompt=tusk"])
    with pytest.raises(UserError, match="'tusk'.*'task'.*prompt"):
        read_prompts(path)
    assert {"prompt", "chosen", "answer", "text", "messages", "label"} <= {*FIELDS}


# Parquet, Arrow and the hub.

TABLE = [{"prompt": f"{i}?", "answer": i, "level": {"hard": True}} for i in range(3)]


def parquet(path: Path, rows: list[Row]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    files = pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_table(pyarrow.Table.from_pylist(rows), path)


def test_parquet_and_arrow_are_read_where_pyarrow_is(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pylist(TABLE)
    parquet(tmp_path / "a.parquet", TABLE)
    for name, make in (("a.arrow", pyarrow.ipc.new_file), ("b.arrow", pyarrow.ipc.new_stream)):
        with make(str(tmp_path / name), table.schema) as file:
            file.write_table(table)
    expected = [PromptRecord(f"{i}?", str(i), {"level": {"hard": True}}) for i in range(3)]
    for name in ("a.parquet", "a.arrow", "b.arrow"):
        assert read_prompts(tmp_path / name).records == expected
    parquet(tmp_path / "more/x-00001.parquet", TABLE[1:])
    parquet(tmp_path / "more/x-00000.parquet", TABLE[:1])
    assert read_prompts(tmp_path / "more").records == expected
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-9])
    (tmp_path / "cut.arrow").write_bytes((tmp_path / "b.arrow").read_bytes()[:100])
    for name in ("cut.parquet", "cut.arrow"):
        with pytest.raises(UserError, match=name):
            read_prompts(tmp_path / name)
    parquet(tmp_path / "texts/a.parquet", [{"text": "One."}, {"text": "Two."}])
    assert FileSource(tmp_path / "texts").documents(say=False) == ["One.", "Two."]


def test_without_pyarrow_the_sentence_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(UserError, match="pip install pyarrow"):
        read_prompts(tmp_path / "a.parquet")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A snapshot in place of the hub, which nothing here asks: two configurations, and one of one."""

    def snapshot_download(repo: str, **options: Any) -> str:
        assert options["repo_type"] == "dataset" and options["revision"] == "refs/convert/parquet"
        if not (tmp_path / repo).exists():
            raise OSError("no such repository")
        return str(tmp_path / repo)

    for place in ("main/train", "main/test", "socratic/train"):
        (tmp_path / "openai/gsm8k" / place).mkdir(parents=True)
        (tmp_path / "openai/gsm8k" / place / "0000.parquet").write_bytes(place.encode())
    (tmp_path / "someone/one/default/train").mkdir(parents=True)
    (tmp_path / "someone/one/default/train/0000.parquet").write_bytes(b"PAR1")
    fake = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    published.hub_folder.cache_clear()
    return tmp_path


def test_a_data_set_of_the_hub_by_its_name(hub: Path) -> None:
    one = "someone/one"
    for name in (one, f"hf://{one}", f"hf://datasets/{one}", f"{one}:train"):
        assert sources.place_of_data(name) == hub / "someone/one/default/train"
        assert data_name(name).startswith("one-") and len(data_name(name)) == len("one-123456")
    for part in ("main/train", "main/test"):
        assert sources.place_of_data(f"openai/gsm8k:{part}") == hub / "openai/gsm8k" / part
    assert sources.place_of_data("openai/gsm8k:test") == hub / "openai/gsm8k/main/test"
    assert data_name("openai/gsm8k:main/train") != data_name("openai/gsm8k:main/test")
    for name in ("openai/gsm8k", "openai/gsm8k:dev", "nobody/none"):  # two, none, no such set
        with pytest.raises(UserError):
            sources.require_data(name)


def test_without_the_library_the_sentence_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    published.hub_folder.cache_clear()
    with pytest.raises(UserError, match="load_dataset"):
        sources.require_data("hf://openai/gsm8k")


def test_what_is_no_name_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, also one that is missing, a folder that is here, and a world."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for name in ("a/b.jsonl", "mine/set", "set", "a/b.parquet", "a/b.csv.gz", "a/b/c", "/a/b"):
        assert published.hub_data(name) is None
    assert published.hub_data("hf://mine/pairs") == ("mine/pairs", "train")
