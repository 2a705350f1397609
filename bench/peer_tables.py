"""Tables of what bench/peers.py has measured, for the terminal and for docs/benchmarks.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from arithmetic import operations
from sides import shape
from turns import Case

from harness.errors import UserError
from rl.training.evaluation import format_table

MARKS = (
    "<!-- written by bench/peers.py --write: begin -->",
    "<!-- written by bench/peers.py --write: end -->",
)

RELATIVE = {"speed": "times as fast", "none": ""}


def relative(seconds: Sequence[float], first: Sequence[float], kind: str) -> str:
    """The median over the rounds of a side's speed against the first side's."""
    if kind == "none":
        return ""
    return f"{statistics.median(a / b for a, b in zip(first, seconds, strict=True)):.2f}"


def operations_per_second(side: Mapping[str, Any]) -> float:
    case = Case(**side["case"])
    return operations(shape(case), case) / statistics.median(side["seconds"])


def share_of_peak(side: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Against the matrix product on as many threads in the same precision, if that was measured."""
    if side["case"]["task"] == "product":
        return ""
    for peak in results.get("ceilings", {}).get("sides", []):
        threads = side["threads"] * side.get("ranks", 1)
        same = (peak["threads"], peak["precision"]) == (threads, side["precision"])
        if peak["case"]["task"] == "product" and same:
            return f"{operations_per_second(side) / operations_per_second(peak):.0%}"
    return "-"


def columns_of(result: Mapping[str, Any]) -> list[str]:
    return ["", "seconds", "min-max", RELATIVE[result["relative"]], "MiB", "rate", "of the peak"]


def rows_of(result: Mapping[str, Any], results: Mapping[str, Any]) -> list[list[str]]:
    """A row of texts per side; `results` may hold the ceilings that the shares are of."""
    first = result["sides"][0]["seconds"]
    return [
        [
            side["label"],
            f"{statistics.median(side['seconds']):.4g}",
            f"{min(side['seconds']):.4g}-{max(side['seconds']):.4g}",
            relative(side["seconds"], first, result["relative"]),
            f"{side['mib']:.0f}",
            f"{operations_per_second(side) / 1e9:.1f} GFLOP/s",
            share_of_peak(side, results),
        ]
        for side in result["sides"]
    ]


def text_table(result: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    return format_table(columns_of(result), rows_of(result, results))


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns that are empty in the head and in all rows are left out."""
    kept = [i for i, name in enumerate(columns) if name or any(row[i] for row in rows)]
    lines = [[columns[i] for i in kept], ["---"] * len(kept)]
    lines += [[row[i] for i in kept] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine(result: Mapping[str, Any]) -> str:
    of = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f": {result['cores']} cores, {of}, {result['date']}"


def markdown_page(results: Mapping[str, Any]) -> str:
    """The generated part of the page. The machine stands where it differs from the one before."""
    parts, last = [], ""
    for result in results.values():
        command = f"`python bench/peers.py --only {result['name']} --pairs {result['pairs']}`"
        where = machine(result)
        parts += [
            f"### {result['title']}",
            command + (where if where != last else ""),
            markdown_table(columns_of(result), rows_of(result, results)),
        ]
        last = where
    return "\n\n".join(parts)


def page_with(page: str, generated: str, marks: tuple[str, str] = MARKS) -> str:
    """The page with the part between its marks replaced. UserError if a mark is gone."""
    before, begin, rest = page.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (begin and end):
        raise UserError(f"the page in docs/ lacks the lines {' and '.join(marks)}: put them back")
    return f"{before}{begin}\n\n{generated}\n\n{end}{after}"
