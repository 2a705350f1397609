"""What docs/equations.md and docs/study.md say, for the pages that quote them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Equation:
    """An entry of the ledger."""

    title: str
    formula: str
    function: str  # dotted name
    peers: int

    @property
    def anchor(self) -> str:
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")


@cache
def equations() -> dict[str, Equation]:
    """Name of a function, without its module -> its entry."""
    text = (ROOT / "docs" / "equations.md").read_text("utf-8")
    parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)[1:]
    found = {}
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        formula = re.search(r"^\$\$(.+)\$\$$", body, flags=re.MULTILINE)
        function = re.search(r"^`([\w.]+)`: ", body, flags=re.MULTILINE)
        if not formula or not function:
            continue
        peers = re.search(r" Peers: ([^.]+)\.", body)
        count = len(peers[1].split(", ")) if peers else 0
        entry = Equation(title, formula[1], function[1], count)
        found[function[1].rsplit(".", 1)[-1]] = entry
    return found


# This section of docs/study.md has numbers of its own, docs/overoptimisation.json.
ONE_BUDGET = "One budget"


@dataclass(frozen=True)
class StudyRow:
    """A row of a table of docs/study.md, with its head and the picture of its section."""

    section: str
    head: tuple[str, ...]
    cells: tuple[str, ...]
    picture: str


@cache
def study_rows() -> list[StudyRow]:
    text = (ROOT / "docs" / "study.md").read_text("utf-8")
    rows = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        section = part.splitlines()[0]
        if section == ONE_BUDGET:
            continue
        picture = re.search(r"!\[[^\]]*\]\(([^)]+)\)", part)
        head: tuple[str, ...] = ()
        for line in part.splitlines():
            cells = tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
            if not line.startswith("|"):
                head = ()
            elif not head:
                head = cells
            elif set("".join(cells)) - set("-: "):
                rows.append(StudyRow(section, head, cells, picture[1] if picture else ""))
    return rows


def rows_of(names: list[str]) -> list[StudyRow]:
    """The rows whose first cell is one of `names`."""
    return [row for row in study_rows() if row.cells[0] in names]
