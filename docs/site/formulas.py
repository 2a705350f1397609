"""LaTeX as MathML, which browsers draw without a script or a font of ours."""

from __future__ import annotations

import re

from latex2mathml.converter import convert

OPENING = r"(?!<mo[^>]*>&#x00028;)"  # no gap before the bracket of an argument
WORD = r"([_^]\{)([a-z]{3,}|[A-Z]{2,})(?=[,}(])"  # pi_{ref}: a word, no product of three letters


def mathml(latex: str, display: str = "inline") -> str:
    """The converter's MathML: argmax and indices that are words upright, room around log and exp."""
    latex = re.sub(r"\\(?:label|tag)\{[^}]*\}", "", latex)
    latex = latex.replace("{aligned}", "{split}")  # the one of the two that the converter knows
    latex = re.sub(r"\\arg\s*\\(max|min)", r"\\operatorname*{arg\1}", latex)
    latex = re.sub(WORD, r"\1\\mathrm{\2}", latex)
    text = convert(latex, display=display)
    text = re.sub(rf"<mi>(log|exp)</mi>{OPENING}", _spaced("0.167em"), text)
    return re.sub(r"<mi>(log|exp)</mi>", _spaced("0em"), text)


def _spaced(after: str) -> str:
    return rf'<mo lspace="0.167em" rspace="{after}">\1</mo>'
