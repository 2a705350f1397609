"""Pages of a study: Markdown that is written from recorded numbers alone.

A page of one study is a template beside its code (Jinja): its text stands there as the reader sees it.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import jinja2


def table(head: Sequence[str], rows: Iterable[Sequence[object]], rule: str = "|---") -> str:
    """A table in Markdown, with its last line's end."""
    lines = ["".join(f"| {cell} " if cell else "| " for cell in map(str, row)) for row in rows]
    head_line = "".join(f"| {cell} " if cell else "| " for cell in head)
    return "".join(f"{line}|\n" for line in (head_line, rule * len(head), *lines))


def fixed(value: float, digits: int) -> str:
    """So many decimals."""
    return f"{value:.{digits}f}"


def signed(value: float, digits: int) -> str:
    """So many decimals, with a sign."""
    return f"{value:+.{digits}f}"


def spread(values: Sequence[float], digits: int) -> str:
    """ "mean (lowest to highest)", the one number, or a dash where there is none."""
    if not values:
        return "-"
    mean = average(values, digits)
    if len(values) == 1:
        return mean
    return f"{mean} ({fixed(min(values), digits)} to {fixed(max(values), digits)})"


def average(values: Sequence[float], digits: int) -> str:
    """The mean, or a dash where there is none."""
    return fixed(statistics.fmean(values), digits) if values else "-"


def between(pair: Sequence[float]) -> str:
    """(low to high)."""
    return f"({pair[0]:.3f} to {pair[1]:.3f})"


def rendered(template: Path, **values: object) -> str:
    """The text of a template. A name that has no value is an error."""
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= dict(
        fixed=fixed, signed=signed, spread=spread, average=average, between=between,
    )  # fmt: skip
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)


def replace_between(path: Path, begin: str, end: str, text: str) -> None:
    """Put `text` between two marks of a page, each on a line of its own."""
    page = path.read_text(encoding="utf-8")
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    path.write_text(
        re.sub(pattern, lambda _: f"{begin}\n\n{text}{end}", page, flags=re.S), encoding="utf-8"
    )
