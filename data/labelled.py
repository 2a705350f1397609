"""Labelled texts: each whole text is good or bad, with no pair and no prompt.

A folder with pos/ and neg/ holds one .txt file per text, `ID_STARS.txt`, as the Large Movie Review
Dataset does (Maas et al. 2011, "Learning Word Vectors for Sentiment Analysis"); a file holds one
`{"text": ..., "label": true, "stars": 9}` a line, or an array of them, gzipped or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from data.formats import BadRow, Row, kind_of, text_of
from data.readers import DataError, folder_texts, kept_text, row_errors, rows_of

SIDES = (("pos", True), ("neg", False))


@dataclass(frozen=True)
class LabelledText:
    """A text and whether it is good. `stars` is the author's grade, where it is known."""

    text: str
    label: bool
    stars: int | None = None


@dataclass(frozen=True)
class LabelledTexts:
    """The texts of one source, and how many were dropped by reason."""

    records: list[LabelledText]
    dropped: dict[str, int]
    source: str

    def summary(self) -> str:
        """One sentence: kept, dropped, and the share of good ones."""
        good = sum(record.label for record in self.records) / len(self.records)
        parts = kept_text(self.source, len(self.records), "texts", self.dropped)
        return "; ".join([*parts, f"{good:.1%} are labelled good"])


def read_labelled(
    path: str | Path, *, known: Iterable[str] = (), limit: int | None = None
) -> LabelledTexts:
    """Read labelled texts, at most `limit`, without blank and repeated ones and those that are `known`.

    Raises DataError for a source that is unreadable, breaks its format or holds nothing to use.
    """
    path = Path(path)
    seen, known = set[str](), set(known)
    records: list[LabelledText] = []
    dropped: Counter[str] = Counter()
    for record in _folder(path) if path.is_dir() else _lines(path):
        if not record.text.strip():
            dropped["blank"] += 1
        elif record.text in seen:
            dropped["repeated"] += 1
        elif record.text in known:
            dropped["known from elsewhere"] += 1
        else:
            seen.add(record.text)
            records.append(record)
        if len(records) == limit:
            break
    if not records:
        raise DataError(f"{path}: there is no labelled text in it to use; give another source")
    return LabelledTexts(records, dict(dropped), str(path))


def _folder(folder: Path) -> Iterator[LabelledText]:
    """The texts of pos/ and neg/, one of each in turn, so that any beginning holds both."""
    for side, _ in SIDES:
        if not (folder / side).is_dir():
            raise DataError(
                f"{folder}: there is no folder {side}/ in it; give one with pos/ and neg/"
            )
    sides = [folder_texts(folder / side) for side, _ in SIDES]
    labels = [label for _, label in SIDES]
    while sides:
        for index in reversed(range(len(sides))):
            found = next(sides[index], None)
            if found is None:
                del sides[index], labels[index]
                continue
            path, text = found
            stars = path.stem.rpartition("_")[2]
            yield LabelledText(text, labels[index], int(stars) if stars.isdecimal() else None)


def _lines(path: Path) -> Iterator[LabelledText]:
    for place, row in rows_of(path):
        with row_errors(path, place):
            record = _record(row)
        yield record


def _record(row: Row) -> LabelledText:
    """A row as a record: `label` is true or false, 1 or 0."""
    text, label, stars = text_of(row, "text"), row.get("label"), row.get("stars")
    if label not in (True, False):
        raise BadRow(f"'label' is {kind_of(label)}, expected true or false")
    if stars is not None and type(stars) is not int:
        raise BadRow(f"'stars' is {kind_of(stars)}, expected a whole number")
    return LabelledText(text, bool(label), stars)
