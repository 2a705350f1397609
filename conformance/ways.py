"""A way to compute something, right or wrong, with the sentence for whoever computes it so.

    @mistake
    def not_clipped(log_probs, old_log_probs, advantages, clip_low, clip_high):
        \"\"\"nothing is clipped: this pays for moving as far as you like.\"\"\"
        return -(log_probs - old_log_probs).exp() * advantages

The sentences of this folder's own ways stand in sentences.txt, one line each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Way:
    """What it is called, what is said to whoever computes so, and the function itself."""

    name: str
    says: str
    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def mistake(function: Callable[..., Any]) -> Way:
    """The mistake that `function` makes: its name, and its docstring as the sentence.

    Raises ValueError without a docstring.
    """
    if not function.__doc__:
        raise ValueError(f"the mistake {function.__name__} has no sentence: write its docstring")
    return Way(function.__name__, " ".join(function.__doc__.split()), function)


def mistakes_of(module: ModuleType) -> list[Way]:
    """The mistakes of a module, in the order in which they stand there."""
    return [value for value in vars(module).values() if isinstance(value, Way)]


def ways(section: str, **functions: Callable[..., Any]) -> list[Way]:
    """Functions under their names, with the sentences of that section of sentences.txt."""
    return [Way(name, sentence(section, name), function) for name, function in functions.items()]


def sentence(section: str, name: str) -> str:
    """One sentence; KeyError where there is none."""
    return sentences()[section][name]


@cache
def sentences() -> dict[str, dict[str, str]]:
    """{section: {name: sentence}} of sentences.txt."""
    section: dict[str, str] = {}
    found = {"": section}
    for line in (Path(__file__).parent / "sentences.txt").read_text("utf-8").splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif ": " in line:
            name, text = line.split(": ", 1)
            section[name] = text
    return found
