"""Jinja with autoescape always on, and plain data that a page may hold."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"


@cache
def environment() -> Any:
    """The templates of this package. What is put into them is escaped, also what `tojson` writes."""
    import jinja2  # a page is written at the end of a run; training does not pay for it

    loader = jinja2.FileSystemLoader(TEMPLATES)
    made = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    made.filters["number"] = number
    return made


def render(template: str, **values: Any) -> str:
    return str(environment().get_template(template).render(**values))


def number(value: Any) -> str:
    """A metric or a flag for a table: four digits, and text as it is."""
    if isinstance(value, bool) or not isinstance(value, float):
        return "–" if value is None else str(value)
    return f"{value:.4g}"


def finite(value: Any) -> float | None:
    """A number for JSON: None for NaN, infinities and what is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e308:
        return None
    return float(f"{value:.5g}")
