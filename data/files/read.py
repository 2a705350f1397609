"""Read preference pairs, answers, prompts and plain text from files on disk.

    read_preferences   reward models, DPO      PreferenceRecord
    read_responses     supervised fine-tuning  ResponseRecord
    read_prompts       what a policy is asked  PromptRecord
    read_text          pre-training            list of documents

rows.py reads the file, and the first row's keys say what kind of rows it has (formats.py). What cannot be
used is dropped whole and counted by reason; what breaks its format is a UserError with file and line. No
text is ever cut, and columns that are not read are named. With a `chat` conversations and plain questions
are written in that form, without one conversations in the project's (data/templates.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path
from typing import Generic, TypeVar

from data.files.columns import rows_of
from data.files.formats import (
    ELSEWHERE,
    FORMATS,
    LABELS,
    LEARNED,
    MESSAGES,
    OWN_PAIRS,
    TRUTHS,
    UNANSWERED,
    Answered,
    Content,
    DropRow,
    Format,
    converter,
    is_learned,
    label_of,
    lead_of,
    mark_in,
    ratings,
    recorded_sides,
    recorded_turns,
    without_end,
    written,
)
from data.files.rows import (
    BadRow,
    OtherKind,
    Row,
    bad_row,
    holds_rows,
    listed,
    of_folder,
    text_in,
    text_of,
)
from data.records import (
    LABEL,
    RECORDED,
    SPLIT_KEY,
    PreferenceRecord,
    PromptRecord,
    ResponseRecord,
    Split,
    key_of,
    question_of,
    split_of,
)
from data.templates import ChatForm
from harness.console import say_once
from harness.errors import UserError

Record = TypeVar("Record", PreferenceRecord, ResponseRecord, PromptRecord)


@dataclass(frozen=True)
class ReadResult(Generic[Record]):
    """The records of one file, what was dropped (rows by reason) and the format recognised."""

    records: list[Record]
    dropped: dict[str, int]
    format: str
    source: str
    notes: dict[str, int]  # what is odd about rows that are kept
    unread: list[str]  # columns
    answers: int  # to learn from, in a row: 2 of a pair, 0 of a prompt alone
    forms: dict[str, int]  # in what form prompts are written, in how many rows

    @property
    def splits(self) -> dict[Split, list[Record]]:
        """The records by a hash of their question: train, validation and test (80, 10 and 10 %)."""
        splits: dict[Split, list[Record]] = {"train": [], "validation": [], "test": []}
        for record in self.records:
            splits[split_of(key_of(record))].append(record)
        return splits

    def train_and_held_out(self, *, test: bool = False) -> tuple[list[Record], list[Record]]:
        """The training split, and the validation split or, of few records, the test split or one prompt.

        `test`: the test split behind the validation split, for those who choose nothing by either.
        """
        splits = self.splits
        train, validation = splits["train"], splits["validation"]
        held_out = validation + splits["test"] if test else validation or splits["test"]
        if not held_out:
            last = key_of(train[-1])
            held_out = [record for record in train if key_of(record) == last]
            train = [record for record in train if key_of(record) != last]
        return train, held_out

    def say(self) -> None:
        """Print the summary, and once the first prompt."""
        print(self.summary())
        if self.forms:
            say_once(f"the first prompt: {self.records[0].prompt!r}")

    def summary(self) -> str:
        """One sentence about the file: kept, dropped, what is odd, columns that are not used."""
        kept, rows = len(self.records), len(self.records) + sum(self.dropped.values())
        parts = [f"{self.source} ({self.format}): {kept:,} of {rows:,} rows kept"]
        if self.dropped:
            parts.append(f"dropped: {_reasons(self.dropped)}")
        parts += [f"{note} in {count:,}" for note, count in self.notes.items()]
        parts += [f"prompts in {form}: {count:,}" for form, count in self.forms.items()]
        if self.unread:
            use = "for a reward alone" if isinstance(self.records[0], PromptRecord) else "not used"
            parts.append(f"columns {use}: {', '.join(map(repr, self.unread))}")
        return "; ".join(parts)


def _reasons(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())


def read_preferences(
    path: str | Path, chat: ChatForm | None = None, *, labelled: bool = False
) -> ReadResult[PreferenceRecord]:
    """Read (prompt, chosen, rejected) records.

    With `labelled` also single answers with a label, which are half a pair: the side that is not there
    is "", and `meta` has the label.

    Dropped: rows whose two sides answer different prompts, empty prompts or answers, identical
    answers, equal scores, and of reward_model/annotate.py ties, skipped and repeated pairs. `meta` has
    recorded tokens, by which pairs are then compared, and whether the first or the second answer shown
    was chosen.
    """
    return _read(path, _half_or_pair if labelled else _preference, chat)


def read_responses(path: str | Path, chat: ChatForm | None = None) -> ReadResult[ResponseRecord]:
    """Read (prompt, response) records to learn from; preference data gives its chosen answers.

    Alpaca files with `chosen` use that and not `output`, which often equals `rejected`. Dropped: empty
    prompts or answers.
    """
    return _read(path, _response, chat)


def read_prompts(
    path: str | Path, chat: ChatForm | None = None, *, limit: int | None = None
) -> ReadResult[PromptRecord]:
    """Read the prompts of any file that are not empty, at most `limit`.

    `answer` is the ground truth, of GSM8K its final number without commas; `meta` has all other columns.
    """
    return _read(path, _prompt, chat, limit)


OURS = "this project's form"
SEPARATOR = re.compile(r"^<\|endoftext\|>[ \t\r]*$\n?", re.MULTILINE)


def read_text(path: str | Path) -> tuple[list[str], str]:
    """Read documents, and one sentence about them.

    They are the `text` of every row of a file of rows, or one whole text file, or each .txt file of a
    folder, by name. A line that is <|endoftext|> alone separates two.
    """
    columns: dict[str, None] = {}
    others: set[Path] = set()
    if Path(path).is_dir() and not holds_rows(path):
        files = sorted(Path(path).glob("*.txt"))
        texts = [text_in(file) for file in files]
        others = {Path(path, name) for name in glob("**", root_dir=path, recursive=True)} - {*files}
        if not files:
            raise UserError(f"{path} is a folder without .txt files: {of_folder(Path(path))}")
    elif holds_rows(path):
        texts = []
        for place, row in rows_of(path):
            columns |= dict.fromkeys(row)
            try:
                texts.append(text_of(row, "text"))
            except BadRow as error:
                raise bad_row(path, place, error) from None
    else:
        texts = [text_in(path)]
    kept = [part for text in texts for part in SEPARATOR.split(text) if part.strip()]
    if not kept:
        raise UserError(f"{path}: there is no text in it; give a file with at least one document")
    summary = f"{path}: documents: {len(kept):,}"
    if inside := sum(text.count("<|endoftext|>") for text in kept):
        summary += f"; <|endoftext|> not alone on its line, so no separator: {inside:,}"
    if unread := [key for key in columns if key not in ("", "text")]:
        summary += f"; columns not used: {', '.join(map(repr, unread))}"
    if deeper := sum(file.is_file() for file in others):
        summary += f"; files not read, in folders of their own or not called .txt: {deeper:,}"
    return kept, summary


def _ends_within(record: PreferenceRecord | ResponseRecord | PromptRecord, end: str) -> bool:
    """Whether an answer to learn from would end before its last word."""
    return any(end in getattr(record, name, "") for name in ("chosen", "rejected", "response"))


LISTED = re.compile(
    r"""\s*\[\s*(?:\{\s*["'](?:role|content|from|value)["']:|["']).*\]\s*""", re.DOTALL
)
IN_MESSAGES = ("prompt", "messages", "chosen", "completion", "response")
BLANK_END = re.compile(r"[^\S\n]\Z")  # a token of its own, and the answer's first word lacks it


def _touches(record: PreferenceRecord | ResponseRecord | PromptRecord) -> bool:
    """Whether a word of the prompt runs into a word of an answer: nothing is put between them."""
    answers = [getattr(record, name, " ") for name in ("chosen", "rejected", "response")]
    ends_open = not record.prompt[-1:].isspace()
    return ends_open and any(not answer[:1].isspace() for answer in answers)


OPENED = re.compile(r"[<\[]((think|thought|reason)\w*)[>\]]\s*\Z", re.IGNORECASE)


def _unclosed(record: PreferenceRecord | ResponseRecord | PromptRecord) -> bool:
    """Whether the prompt ends with an opened thought that an answer to learn from does not close."""
    opened = OPENED.search(record.prompt)
    answers = [getattr(record, name, None) for name in ("chosen", "rejected", "response")]
    return opened is not None and any(a is not None and f"/{opened[1]}" not in a for a in answers)


def _is_listed(side: Answered) -> bool:
    """Whether a prompt or an answer is a list that became text."""
    texts = (side.prompt, side.response)
    return any(isinstance(text, str) and LISTED.fullmatch(text) is not None for text in texts)


# From one row to one record.


UNLEARNED = "marked as not to be learned"


def _texts(kind: Format, side: Sequence[Answered], what: str, row: Row) -> tuple[str, str]:
    """Prompt and answer of the one side that is given; BadRow where such rows have none."""
    if side and side[0].response is None and kind.name == "conversations":
        raise DropRow(UNANSWERED)
    if not side or side[0].response is None:
        raise OtherKind(f"{kind.name} rows hold no {what}: {converter(row)}")
    if not (side[0].learned and is_learned(row)):
        raise DropRow(UNLEARNED)
    return side[0].prompt, side[0].response


UNDECIDED = ("tie", "skip")  # a person's verdicts that prefer neither answer


def _require_verdict(row: Row, content: Content) -> None:
    if content.tied:
        raise DropRow("neither answer is the better one")
    if row.get("verdict") in UNDECIDED:
        raise DropRow(f"verdict {row['verdict']!r}")
    if (
        "verdict" in row and row.get("repeat") is True
    ):  # of annotate, which counts how often both agree
        raise DropRow("asked a second time")


def _require_text(prompt: str, response: str) -> None:
    if not prompt.strip():
        raise DropRow("empty prompt")
    if not response.strip():
        raise DropRow("empty answer")


def _half_or_pair(kind: Format, content: Content, row: Row) -> PreferenceRecord:
    """A pair, or what a row with one answer and its label holds of one."""
    label = label_of(row)
    if label is None or len(content.sides) > 1:
        return _preference(kind, content, row)
    prompt, answer = _texts(kind, content.sides, "answers", row)
    _require_text(prompt, answer)
    return PreferenceRecord(prompt, *((answer, "") if label else ("", answer)), {LABEL: label})


def _preference(kind: Format, content: Content, row: Row) -> PreferenceRecord:
    if len(content.sides) == 1 and label_of(row) is not None:
        raise OtherKind(
            f"{kind.name} rows with a label hold no pairs: python -m rl.dpo_engine --loss kto learns from "
            "labelled answers"
        )
    rejected = _texts(kind, content.sides[1:], "preference pairs", row)
    chosen = _texts(kind, content.sides[:1], "preference pairs", row)
    if chosen[0] != rejected[0]:
        raise DropRow("prompts differ")
    _require_verdict(row, content)
    meta = recorded_sides(row) if kind is OWN_PAIRS else {}
    sides = [meta.get("chosen_tokens"), meta.get("rejected_tokens")]  # two of them may read alike
    if None in sides:
        sides = [chosen, rejected]
        for side in (chosen, rejected):
            _require_text(*side)
    if sides[0] == sides[1]:
        raise DropRow("chosen equals rejected")
    if lead_of(row) == 0:
        raise DropRow("equal scores")
    return PreferenceRecord(*chosen, rejected[1], meta)


def _response(kind: Format, content: Content, row: Row) -> ResponseRecord:
    texts = _texts(kind, content.sides[:1], "answers", row)
    _require_text(*texts)
    _require_verdict(row, content)
    if label_of(row) is False:
        raise DropRow("labelled as a bad answer")
    return ResponseRecord(*texts)


def _prompt(kind: Format, content: Content, row: Row) -> PromptRecord:
    prompt = content.sides[0].prompt
    if not prompt.strip():
        raise DropRow("empty prompt")
    others = {key: value for key, value in row.items() if key not in ("prompt", "answer")}
    return PromptRecord(prompt, content.answer, others)


@dataclass
class _Counts:
    """What is odd about the rows that are kept, and in what form their prompts are written."""

    notes: Counter[str] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    foreign: Counter[str] = field(default_factory=Counter)  # marks of other chats
    truths: set[str] = field(default_factory=set)  # columns of ground truths

    def add(self, record: Record, row: Row, found: Content, content: Content) -> None:
        """A row as the file has it, and as it is used."""
        notes = self.notes
        notes.update({side.odd for side in content.sides if side.odd})
        notes["an answer inside what its prompt opens, and never closes"] += _unclosed(record)
        notes["prompt taken off the head of the answers"] += content.repeated
        if found.answer is not None:
            self.truths.add(found.truth)
            if isinstance(record, PromptRecord) and found.truth != "answer":
                notes[f"ground truth from {found.truth!r}"] += 1
        notes["the chosen answer is rated lower"] += (lead := lead_of(row) or 0) < 0
        notes["ratings that are no numbers"] += lead != lead

    def add_form(
        self, record: Record, found: Content, content: Content,
        ended: Sequence[Answered], chat: ChatForm | None,
    ) -> None:  # fmt: skip
        """The form of a row that no run has recorded; `ended` is without the mark of an end."""
        notes = self.notes
        if held := [mark for side in ended if (mark := mark_in(side, chat))]:
            self.foreign[held[0]] += 1
        notes["a mark of the end taken off"] += list(ended) != list(found.sides)
        notes["a list written as text, such as of messages in a table,"] += any(
            map(_is_listed, found.sides)
        )
        as_it_is = content.sides[0].prompt == found.sides[0].prompt
        if as_it_is:
            notes["no space or line break between prompt and answer"] += _touches(record)
            notes["a blank ends the prompt, better put before the answer"] += (
                BLANK_END.search(record.prompt) is not None
            )
        ours = OURS if chat is None else chat.name
        self.forms["the form that the file has" if as_it_is else ours] += 1

    def all_notes(self) -> Counter[str]:
        marks = self.foreign
        if marks:
            self.notes[f"marks of another chat, such as {max(marks, key=len)!r},"] = marks.total()
        return self.notes


def _read(
    path: str | Path,
    convert: Callable[[Format, Content, Row], Record],
    chat: ChatForm | None,
    limit: int | None = None,
) -> ReadResult[Record]:
    """Convert the rows of a file; the module's docstring says what stops and what is counted."""
    records: list[Record] = []
    dropped: Counter[str] = Counter()
    counts = _Counts()
    columns: dict[str, None] = {}
    rated: dict[str, str] = {}
    is_prompt = convert is _prompt
    kind: Format | None = None
    for place, row in rows_of(path):
        columns |= dict.fromkeys(row)
        rated |= ratings(tuple(row))
        kind = kind or _recognise(path, place, row)
        try:
            found: Content = kind.content(row)
            recorded = not row.keys().isdisjoint(RECORDED)  # by a run, as it was read there
            form = None if recorded else chat
            ended = found.sides if recorded else [without_end(side, chat) for side in found.sides]
            content = found._replace(
                sides=[written(side, form, learned=not is_prompt) for side in ended]
            )
            record = replace(
                convert(kind, content, row), question=_question(found, row),
                turns=recorded_turns(row) if recorded else content.sides[0].turns,
                in_messages=any(isinstance(row.get(key), MESSAGES) for key in IN_MESSAGES),
            )  # fmt: skip
            if form is not None and form.end and _ends_within(record, form.end):
                raise DropRow(f"{form.end} within an answer")
            records.append(record)
            counts.add(record, row, found, content)
            if not recorded:
                counts.add_form(record, found, content, ended, chat)
            answers = sum(side.response is not None for side in content.sides)
        except BadRow as error:
            raise bad_row(path, place, error) from None
        except DropRow as reason:
            dropped[str(reason)] += 1
        if len(records) == limit:
            break
    if kind is None or not records:
        raise UserError(f"{path}: no row to use ({_reasons(dropped) or 'empty'}); correct it")
    notes = counts.all_notes()
    notes["the same two answers judged the other way round"] += _contradicted(records)
    used = {SPLIT_KEY, ""}.union(kind.keys, kind.more, rated, rated.values())
    used = used - {*TRUTHS} | counts.truths if is_prompt else used.union(LABELS)
    used |= set(LEARNED if UNLEARNED in dropped else ())
    unread = [key for key in columns if key not in used]
    return ReadResult(
        records, dict(dropped), kind.name, str(path), dict(+notes), unread, answers,
        dict(+counts.forms),
    )  # fmt: skip


def _question(found: Content, row: Row) -> str:
    """What splits a row: what it says itself; of a recorded one nothing else; or its turns."""
    if isinstance(key := row.get(SPLIT_KEY), str):
        return key
    if not row.keys().isdisjoint(RECORDED):
        return ""
    prompt = found.sides[0].prompt
    return question_of([prompt] if isinstance(prompt, str) else [turn.text for turn in prompt])


def _contradicted(records: Iterable[Record]) -> int:
    pairs = {(r.prompt, r.chosen, r.rejected) for r in records if isinstance(r, PreferenceRecord)}
    return sum((prompt, rejected, chosen) in pairs for prompt, chosen, rejected in pairs)


def _recognise(path: str | Path, place: str, row: Row) -> Format:
    for kind in FORMATS:
        if kind.matches(row):
            return kind
    if (lines := converter(row)) != ELSEWHERE:
        raise UserError(f"{path}:{place}: {lines}")
    known = "; ".join(dict.fromkeys(" + ".join(sorted(kind.keys)) for kind in FORMATS))
    raise UserError(
        f"{path}:{place}: keys {listed(row)} are none of (CSV: line 1) {known}: --columns FIELD=COLUMN "
        f"gives a column one of these names, and {ELSEWHERE}"
    )
