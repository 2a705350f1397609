"""Jinja with autoescape always on, and plain data that a page may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2


def render(template: str, **values: Any) -> str:
    """A template of this package. What is put into it is escaped, also what `tojson` writes."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters["number"] = number
    return environment.get_template(template).render(**values)


def number(value: float | None) -> str:
    """Four digits for a table."""
    return "–" if value is None else f"{value:.4g}"


def finite(value: Any) -> float | None:
    """A number for JSON: None for NaN, infinities and what is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e308:
        return None
    return float(f"{value:.5g}")
