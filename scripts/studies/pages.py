"""Pages of a study: Markdown that is written from recorded numbers alone.

A page of one study is a template beside its code (Jinja): its text stands there as the reader sees it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2


def fixed(value: float, digits: int) -> str:
    return f"{value:.{digits}f}"


def signed(value: float, digits: int) -> str:
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


def rounded(value: Any, digits: int = 4) -> Any:
    """Numbers as they are written down: four decimals."""
    if isinstance(value, dict):
        return {str(key): rounded(each, digits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each, digits) for each in value]
    return round(value, digits) if isinstance(value, float) else value


def between(pair: Sequence[float]) -> str:
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


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    every = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(line) + " |" for line in every]


def between_marks(text: str, mark: str, lines: Sequence[str]) -> str:
    """A page with these lines between `<!-- MARK -->` and `<!-- end of MARK -->`, as far to the right."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, rest = text.split(begin)
    indent = before[before.rfind("\n") + 1 :]
    table = "\n".join(f"{indent}{line}" for line in lines)
    return f"{before}{begin}\n{table}\n{indent}{end}{rest.split(end)[1]}"
