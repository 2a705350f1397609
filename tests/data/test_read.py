"""Files: what holds the rows, what is wrong with them and where, what fits, how they are split."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from toys import chat_tokenizer, write_rows

from data.files import rows
from data.files.read import read_preferences, read_prompts, read_responses, read_text
from data.records import PromptRecord, ResponseRecord, key_of, question_of
from data.sources import file_source
from harness.errors import UserError
from harness.files import reading, require_regular, split_as

ROWS = [{"prompt": f"{i}?", "response": f" {i}"} for i in range(3)]
RECORDS = [ResponseRecord(f"{i}?", f" {i}") for i in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


FORMS = {
    "lines": LINES,
    "array": json.dumps(ROWS),
    "indented": json.dumps(ROWS, indent=2),
    "byte order mark, blank lines and CRLF": "\ufeff" + LINES.replace("\n", "\r\n\r\n"),
}


@pytest.mark.parametrize("content", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_content_decides_and_not_the_name(tmp_path: Path, name: str, content: str) -> None:
    """Lines named .json, an array named .jsonl, and gzip without its suffix."""
    path = tmp_path / name
    for stored in (content.encode(), gzip.compress(content.encode(), mtime=0)):
        path.write_bytes(stored)
        assert read_responses(path).records == read_responses(str(path)).records == RECORDS


TABLE = [
    ("prompt", "chosen", "rejected"),
    ('Is it, or "not"?\n', "yes; it is", "no"),
    ("Why?\n", "so", "1,5"),
]


@pytest.mark.parametrize("sign", ",;\t|")
def test_a_table_is_read_whatever_stands_between_its_cells(tmp_path: Path, sign: str) -> None:
    """As Excel writes it in many countries; in UTF-16; with its line that says so, which counts as one."""

    def cell(text: str) -> str:
        return '"' + text.replace('"', '""') + '"' if set(text) & set(',;"\n') else text

    body = "\r\n".join(sign.join(map(cell, row)) for row in TABLE)
    contents = [body.encode(coding) for coding in ("utf-8", "utf-8-sig", "utf-16", "utf-32")]
    contents += [f"sep={sign}\r\n{body}".encode(), bz2.compress(body.encode())]
    for name in ("a.csv", "a.tsv") if sign == "\t" else ("a.csv",):
        for content in contents:
            (tmp_path / name).write_bytes(content)
            found = read_preferences(tmp_path / name).records
            assert [(r.prompt, r.chosen, r.rejected) for r in found] == TABLE[1:]
    for ragged in (f"{body}{sign}more", f"{body}\r\none"):
        (tmp_path / "a.csv").write_text(f"sep={sign}\n{ragged}", encoding="utf-8")
        with pytest.raises(UserError, match=r"a.csv:[67]: "):
            read_preferences(tmp_path / "a.csv")


def test_a_sign_in_a_name_divides_no_table_that_has_commas(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('prompt,"a;b;c"\nWhy?,x\n')
    assert read_prompts(tmp_path / "a.csv").records[0].meta == {"a;b;c": "x"}
    (tmp_path / "a.csv").write_text("prompt\nWhy; then?\n")
    assert read_prompts(tmp_path / "a.csv").records[0].prompt == "Why; then?"


def test_other_compressions_are_read_or_named(tmp_path: Path) -> None:
    """By content, whatever the name; one that is cut off is damaged, not short."""
    packed = {"bz2": bz2.compress, "xz": lzma.compress, "gz": gzip.compress}
    for end, pack in packed.items():
        for name in (f"a.jsonl.{end}", "a.jsonl"):
            (tmp_path / name).write_bytes(pack(LINES.encode()))
            assert read_responses(tmp_path / name).records == RECORDS
        (tmp_path / name).write_bytes(pack(LINES.encode())[:-9])
        with pytest.raises(UserError):
            read_responses(tmp_path / name)
        (tmp_path / f"a.txt.{end}").write_bytes(pack(b"words"))
        assert read_text(tmp_path / f"a.txt.{end}")[0] == ["words"]
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as archive:
        archive.add(tmp_path / "a.jsonl")
    starts = [  # of Zstandard, 7z, Arrow, tar, SQLite, a pickle, Parquet and LZ4
        b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf\x27\x1c", b"\xff\xff\xff\xff", tar.getvalue(),
        b"SQLite format 3\0", b"\x80\x04\x95", b"PAR1", b"\x04\x22\x4d\x18",
    ]  # fmt: skip
    for start in starts:
        (tmp_path / "my rows.jsonl").write_bytes(start + b"  " * 300)
        with pytest.raises(UserError, match="my rows.jsonl"):
            read_responses(tmp_path / "my rows.jsonl")


FOLDERS = [
    ["dataset_dict.json", "train/dataset_info.json", "train/data-00000-of-00001.arrow"],
    ["data/train-00000.jsonl.gz", "data/train-00001.jsonl.gz"], ["train/0000.parquet"], ["notes.md"], [],
]  # fmt: skip


@pytest.mark.parametrize("names", FOLDERS)
def test_a_folder_of_somebody_is_refused_and_not_to_be_removed(
    tmp_path: Path, names: list[str]
) -> None:
    """Also for the pre-training of texts."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    for read in (read_preferences, read_responses, read_prompts, read_text, require_regular):
        with pytest.raises(UserError) as error:
            read(tmp_path)
        assert "remove" not in str(error.value)


def test_unicode_line_separators_do_not_end_a_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a\u2028b\x85?", "response": " c"}\n', encoding="utf-8")
    assert read_responses(path).records == [ResponseRecord("a\u2028b\x85?", " c")]


def test_limit_counts_kept_records(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "", "response": ""}\n' + LINES + "not JSON\n", encoding="utf-8")
    result = read_prompts(path, limit=2)
    assert result.records == [PromptRecord(f"{i}?", meta={"response": f" {i}"}) for i in range(2)]
    assert result.dropped == {"empty prompt": 1}


# Plain text.


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_bytes("\ufeffAct I\r\n\r\nEnter Änne.\rA\n".encode())  # of three systems
    assert read_text(path)[0] == ["Act I\n\nEnter Änne.\nA\n"]


def test_what_is_not_read_of_a_folder_is_counted(tmp_path: Path) -> None:
    for name in ("a.txt", "b/c.txt", "b/d/e.txt", "f.md", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("words")
    documents, summary = read_text(tmp_path)
    assert documents == ["words"] and summary.endswith(" 3")


def test_documents_of_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "stories.jsonl.gz"
    rows = b'{"text": "one\\n"}\n{"text": " "}\n{"text": "two", "id": 2}\n'
    path.write_bytes(gzip.compress(rows, mtime=0))
    documents, summary = read_text(path)
    assert documents == ["one\n", "two"] and summary.count("'id'") == 1


JOINED = (
    "One.\n<|endoftext|>\nTwo,\nalso.\n<|endoftext|> \r\n\n<|endoftext|>\nThree <|endoftext|> 4."
)


def test_a_line_of_its_own_separates_documents(tmp_path: Path) -> None:
    """TinyStories; in a text, in a row, in a folder, and the mark inside a line is text."""
    expected = ["One.\n", "Two,\nalso.\n", "Three <|endoftext|> 4."]
    (tmp_path / "a.txt").write_bytes(JOINED.encode())
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": JOINED}))
    for path in (tmp_path / "a.txt", tmp_path / "a.jsonl", tmp_path):
        documents, summary = read_text(path)
        assert documents == expected and "3" in summary and "<|endoftext|>" in summary


BAD_TEXTS = [
    b'{"text": null}', b'{"url": "x"}', b'{"text": "cut o', b'{"text": 7}', b'{"text": "caf\xe9"}',
]  # fmt: skip


@pytest.mark.parametrize("line", BAD_TEXTS)
def test_a_bad_row_of_texts_is_named_by_its_line(tmp_path: Path, line: bytes) -> None:
    rows = [b'{"text": "word"}'] * 3
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*rows[:2], line, rows[2]]))
    for read in (read_text, lambda path: file_source(path, None).documents()):
        with pytest.raises(UserError, match="a.jsonl:3: "):
            read(tmp_path / "a.jsonl")


def test_a_file_of_another_kind_is_no_text(tmp_path: Path) -> None:
    """A Git LFS pointer in place of the corpus, an archive that is called .txt."""
    for start in ("version https://git-lfs.github.com/spec/v1\noid x\n", "PAR1", "PK\x03\x04"):
        (tmp_path / "a.txt").write_text(start + "word " * 100)
        for path in (tmp_path / "a.txt", tmp_path):
            with pytest.raises(UserError, match="a.txt"):
                read_text(path)


# Lengths and splits.


PAIR = {"prompt": "a\n", "chosen": "b", "rejected": "c"}


def test_recorded_tokens_are_kept_and_say_what_differs(tmp_path: Path) -> None:
    """Answers that are empty or read alike are pairs all the same where their tokens differ."""
    tokens = {"chosen_tokens": [5], "rejected_tokens": [7, 8]}
    ended = {"chosen_ended": False, "rejected_ended": True}
    rows = [
        PAIR | tokens | ended,
        PAIR | tokens | {"chosen": "", "rejected": ""},
        PAIR | {"chosen_tokens": [5], "rejected_tokens": [5]},
        PAIR | {"chosen": ""},
        PAIR | ended | {"gold_chosen": 1},
    ]
    result = read_preferences(write_rows(tmp_path, *rows))
    assert [record.meta for record in result.records] == [tokens | ended, tokens, ended]
    assert [record.chosen for record in result.records] == ["b", "", "b"]
    assert result.dropped == {"chosen equals rejected": 1, "empty answer": 1}


def test_a_pair_that_was_asked_a_second_time_counts_once(tmp_path: Path) -> None:
    """Whether the person decided alike or not; a column of that name elsewhere is any column."""
    mine = PAIR | {"verdict": "first", "repeat": False}
    other = {"chosen": PAIR["rejected"], "rejected": PAIR["chosen"]}
    rows = [mine, mine | {"repeat": True}, mine | other | {"repeat": True}, PAIR | {"repeat": True}]
    path = write_rows(tmp_path, *rows)
    for result in (read_preferences(path), read_responses(path)):
        assert len(result.records) == 2 and list(result.dropped.values()) == [2]


END = "<|endoftext|>"


def test_the_name_of_an_eos_behind_an_answer_is_taken_off(tmp_path: Path) -> None:
    """Every answer gets its EOS; inside a text, or alone, the name is text, or no answer."""
    answers = [f"a{END}", f"a\n<|im_end|>\n{END} ", f"a{END}b", END]
    rows = [{"prompt": f"Q {END}", "response": answer} for answer in answers]
    result = read_responses(write_rows(tmp_path, *rows))
    assert [record.response for record in result.records] == ["a", "a\n", f"a{END}b"]
    assert {record.prompt for record in result.records} == {f"Q {END}"}
    assert 2 in result.notes.values() and result.dropped == {"empty answer": 1}
    pairs = write_rows(tmp_path, PAIR | {"rejected": f"c{END}"}, PAIR | {"chosen": f"c{END}"})
    assert [record.rejected for record in read_preferences(pairs).records] == ["c"]


ENDS = [
    "</s>", "<|eot_id|>", "<end_of_turn>\n", "<|end|>", "<|eot_id|><|end_of_text|>",
    "<｜end▁of▁sentence｜>",
]  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_another_model_after_an_answer_is_taken_off(tmp_path: Path, end: str) -> None:
    """Those inside a text are counted as marks of another chat; HTML's struck out words are words."""
    answers = [f" a{end}", f" b{end} c", " a <s>b</s>", f" a <s>b</s>{end}"]
    rows = [{"prompt": "Q:", "response": answer} for answer in answers]
    result = read_responses(write_rows(tmp_path, *rows))
    assert [record.response for record in result.records] == [" a", *answers[1:3], answers[2]]
    assert list(result.notes.values()) == [2, 1]


MARKED = [
    "<s>[INST] Q [/INST]\n", "<|user|>\nQ\n<|assistant|>\n", "<start_of_turn>user\nQ\n",
    "<<SYS>>a<</SYS>> Q\n",
]  # fmt: skip


@pytest.mark.parametrize("prompt", MARKED)
def test_marks_of_another_chat_are_counted(tmp_path: Path, prompt: str) -> None:
    """Once a row, and never in what a run has recorded."""
    rows = [
        PAIR | {"prompt": prompt, "chosen": "[INST] b"}, PAIR | {"chosen": "[INST] b"}, PAIR,
        PAIR | {"prompt": prompt, "chosen_ended": True},
    ]  # fmt: skip
    assert list(read_preferences(write_rows(tmp_path, *rows)).notes.values()) == [2]


def test_pairs_that_contradict_each_other_are_counted(tmp_path: Path) -> None:
    other = {"chosen": PAIR["rejected"], "rejected": PAIR["chosen"]}
    rows = [PAIR, PAIR | other, PAIR | {"prompt": "b\n"}, PAIR | other | {"prompt": "c\n"}]
    result = read_preferences(write_rows(tmp_path, *rows))
    assert len(result.records) == 4 and list(result.notes.values()) == [2]


def test_splits_follow_the_question_alone(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i % 300}?", "chosen": f" {i}", "rejected": " x"} for i in range(600)]
    result = read_preferences(write_rows(tmp_path, *rows))
    records, splits = result.records, result.splits
    assert sorted(splits) == ["test", "train", "validation"]
    kept = [record.chosen for rows in splits.values() for record in rows]
    assert sorted(kept) == sorted(record.chosen for record in records)
    bucket = {
        name: {zlib.crc32(r.prompt[:-1].encode()) % 100 for r in splits[name]} for name in splits
    }
    assert max(bucket["test"]) < 10
    assert 10 <= min(bucket["validation"]) and max(bucket["validation"]) < 20
    assert min(bucket["train"]) >= 20


SPELLINGS = (
    "Où est le café n°{}?", "où  est le CAFÉ n°{} ?", "Où est le café n°{}？\n",
    "“Ou\u0300 est le café n°{}?”", " OU\u0300 EST LE CAFE\u0301 N°{}", "Où est le café, n°{} ...",
)  # fmt: skip


def test_a_question_has_one_split_however_it_is_written(tmp_path: Path) -> None:
    """Its case, white space, punctuation and code points; as a text, as a message, and in any template."""
    rows = [
        {"prompt": spelled.format(i), "response": " là"}
        for i in range(200)
        for spelled in SPELLINGS
    ]
    splits = read_responses(write_rows(tmp_path, *rows)).splits
    counts = {name: len(records) for name, records in splits.items()}
    assert sum(counts.values()) == 1200 and all(count % 6 == 0 < count for count in counts.values())
    found = {key_of(record) for records in splits.values() for record in records}
    assert found == {f"oùestlecafén°{i}" for i in range(200)}
    messages = [{"prompt": [{"role": "user", "content": SPELLINGS[0].format(7)}]}]
    for form in (None, *(chat_tokenizer(name).chat for name in ("llama-3", "features"))):
        (record,) = read_prompts(write_rows(tmp_path, *messages), form).records
        assert key_of(record) == "oùestlecafén°7"


def test_a_question_of_signs_alone_is_itself() -> None:
    assert [question_of([text]) for text in ("2 + 3", "2+3=", "?!", "")] == [
        "2+3",
        "2+3=",
        "?!",
        "",
    ]
    assert question_of(["Hi.", "Why?"]) == "hiwhy"


def test_a_row_may_say_by_what_it_is_split_and_a_recorded_one_goes_by_its_prompt(
    tmp_path: Path,
) -> None:
    rows = [PAIR | {"prompt": "A?\n"}, PAIR | {"split_key": "Q?"}]
    rows += [row | {"chosen_ended": True} for row in rows]
    result = read_preferences(write_rows(tmp_path, *rows))
    assert [key_of(record) for record in result.records] == ["a", "Q?", "A?\n", "Q?"]
    assert result.unread == []
    with reading():
        split_as(1)
        assert [key_of(record) for record in result.records] == ["A?\n", "a\n", "A?\n", "a\n"]


def test_of_few_rows_all_of_the_last_question_are_held_out(tmp_path: Path) -> None:
    """Wherever they stand in the file, and however the question is written there."""
    names = [f"{i}?" for i in range(100) if zlib.crc32(f"{i}".encode()) % 100 >= 20][:4]
    rows = [PAIR | {"prompt": f" {names[3]}\n"}] + [PAIR | {"prompt": name} for name in names * 2]
    train, held_out = read_preferences(write_rows(tmp_path, *rows)).train_and_held_out()
    assert [record.prompt for record in held_out] == [f" {names[3]}\n", names[3], names[3]]
    assert [record.prompt for record in train] == names[:3] * 2


def test_the_test_split_is_held_out_only_for_those_who_ask(tmp_path: Path) -> None:
    """Behind the validation split; else of few rows alone, which have no validation split."""
    names: dict[str, str] = {}
    for i in range(100):
        bucket = zlib.crc32(f"{i}".encode()) % 100
        names.setdefault(
            "test" if bucket < 10 else "validation" if bucket < 20 else "train", f"{i}?"
        )
    rows = [PAIR | {"prompt": names[split]} for split in ("test", "train", "validation")]
    result = read_preferences(write_rows(tmp_path, *rows))
    for test, splits in ((False, ["validation"]), (True, ["validation", "test"])):
        held_out = result.train_and_held_out(test=test)[1]
        assert [record.prompt for record in held_out] == [names[split] for split in splits]


# --- files that would have been read wrong --------------------------------------------------------

# Text for a boolean, numbers that are no token ids, a key that stands twice.
MORE = (
    '"chosen_ended": "false"', '"chosen_tokens": [1.5]', '"chosen_tokens": [-1]', '"prompt": "q"',
)  # fmt: skip
STRAY = 'prompt,chosen,rejected\np,"a,b\nq,c,d\nr,e" f,g\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", STRAY),  # one cell over three rows, until another stray quote
        ("a.csv", 'prompt,chosen,rejected\np,"a,b\n'),
        ("a.csv", "prompt,chosen,chosen,rejected\np,a,b,c\n"),
        ("a.csv", "prompt,chosen,rejected, score_chosen\np,a,b,1\n"),
        *(
            ("a.jsonl", f'{{"prompt": "p", "chosen": "c", "rejected": "r", {more}}}')
            for more in MORE
        ),
    ],
)
def test_a_file_that_can_be_misread_is_refused(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError):
        read_preferences(path)


def test_empty_cells_and_columns_without_a_name_are_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("prompt,chosen,rejected,,\np ,a,b,,\nq ,c,d,,\n", encoding="utf-8")
    assert [record.prompt for record in read_preferences(path).records] == ["p ", "q "]


def test_a_cell_that_looks_like_json_is_text(tmp_path: Path) -> None:
    """A prompt about code; lists of messages alone are read."""
    (tmp_path / "a.csv").write_text('prompt\n"{""a"": 1}"\n"[{""a"": 1}]"\n')
    result = read_prompts(tmp_path / "a.csv")
    assert [record.prompt for record in result.records] == ['{"a": 1}', '[{"a": 1}]']
    assert not result.notes


@pytest.mark.parametrize("text", ['["q", "r"]', " ['q']", '[{"role": "user", "content": "q"}]\n',
                                  "[{'content': 'q',\n 'role': 'user'}]"])  # fmt: skip
def test_a_list_that_became_text_is_counted(tmp_path: Path, text: str) -> None:
    """As a prompt, and as an answer; recorded answers are what a policy wrote."""
    rows = [
        {"prompt": text, "chosen": "\na", "rejected": "\nb"},
        {"prompt": "q\n", "chosen": text, "rejected": "b"},
        {"prompt": "q\n", "chosen": "a", "rejected": "b"},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert list(read_preferences(path).notes.values()) == [2]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.gz", "a.csv.gz"])
def test_what_is_larger_than_memory_is_refused_and_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for limit in ("LONGEST_LINE", "MOST_AT_ONCE"):
        monkeypatch.setattr(rows, limit, 1000)
    start = {"a.jsonl.gz": '{"prompt": "', "a.json.gz": '[{"prompt": "', "a.csv.gz": "prompt\n"}
    (tmp_path / name).write_bytes(gzip.compress(f"{start[name]}{5000 * 'x'}".encode()))
    with pytest.raises(UserError):
        read_prompts(tmp_path / name)


@pytest.mark.parametrize(
    ("row", "answers"),
    [({}, 0), ({"answer": "3"}, 1), ({"response": "3"}, 1), ({"chosen": "3", "rejected": "4"}, 2)],
)
def test_prompts_are_read_with_how_many_answers_there_are(row, answers, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1 + 2 =\n", **row}))
    assert read_prompts(tmp_path / "rows.jsonl").answers == answers


# The Python filters of data/README.md, on rows of our own with the columns of those sets.


def step(
    *completions: tuple[str, int | None], chosen: int | None, human: Any = None
) -> dict[str, Any]:
    listed = [{"text": text, "rating": rating, "flagged": None} for text, rating in completions]
    return {"completions": listed, "human_completion": human, "chosen_completion": chosen}


def said_of(value: str, *, cancelled: bool = False) -> dict[str, Any]:
    result = {"type": "pairwise", "from_name": "pw", "to_name": "a,b", "value": {"selected": value}}
    return {
        "id": 1,
        "was_cancelled": cancelled,
        "result": [result, {"type": "textarea", "value": {}}],
    }


PRM800K = {
    "labeler": "x",
    "question": {"problem": "Add 1 and 2, then 4.", "ground_truth_answer": "7"},
    "label": {
        "steps": [
            step(("It is 3.", 1), ("It is 4.", -1), ("Hm.", 0), chosen=0),
            step(("8.", -1), ("9.", -1), chosen=None, human={"text": "3 + 4.", "rating": None}),
            step(("6.", -1), ("7.", 1), ("?", None), chosen=None),
        ],
        "finish_reason": "solution",
    },
}
ASKED = {"prompt": "Why?", "answer1": "So.", "answer2": "No."}
TASKS = [
    {"id": 1, "data": ASKED, "annotations": [said_of("left")]},
    {"id": 2, "data": ASKED | {"prompt": "When?"}, "annotations": [said_of("right")]},
    {"id": 3, "data": ASKED, "annotations": [said_of("right", cancelled=True)]},
    {"id": 4, "data": ASKED, "annotations": []},
]
FILTERED = {
    "PRM800K": (
        json.dumps(PRM800K) + "\n",
        [
            ("Add 1 and 2, then 4.\n", "It is 3.", "It is 4."),
            ("Add 1 and 2, then 4.\nIt is 3.\n3 + 4.\n", "7.", "6."),
        ],
    ),
    "Label Studio": (json.dumps(TASKS), [("Why?", "So.", "No."), ("When?", "No.", "So.")]),
}


@pytest.mark.parametrize(("number", "name"), list(enumerate(FILTERED)))
def test_a_filter_makes_pairs_of_another_layout(tmp_path: Path, number: int, name: str) -> None:
    page = Path(rows.__file__).parents[1] / "README.md"
    code = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[number]
    theirs, pairs = FILTERED[name]
    made = subprocess.run(
        [sys.executable, "-c", code], input=theirs, capture_output=True, text=True, check=True
    )
    (tmp_path / "mine.jsonl").write_text(made.stdout)
    records = read_preferences(tmp_path / "mine.jsonl").records
    assert [(r.prompt, r.chosen, r.rejected) for r in records] == pairs
