"""A typical mistake: the wrong function itself, under its name, with the sentence for whoever wrote it.

    @mistake
    def not_clipped(log_probs, old_log_probs, advantages, clip_low, clip_high):
        \"\"\"nothing is clipped: this pays for moving as far as you like.\"\"\"
        return -(log_probs - old_log_probs).exp() * advantages

This file needs nothing but Python, and a module of mistakes nothing of a notebook: whoever else
wants to name what is wrong with a function can import them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Mistake:
    """What it is called, what a reader who made it is told, and how it computes."""

    name: str
    says: str
    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def mistake(function: Callable[..., Any]) -> Mistake:
    """The mistake that `function` makes: its name, and its docstring as the sentence.

    Raises ValueError without a docstring.
    """
    if not function.__doc__:
        raise ValueError(f"the mistake {function.__name__} has no sentence: write its docstring")
    return Mistake(function.__name__, " ".join(function.__doc__.split()), function)


def mistakes_of(module: ModuleType) -> list[Mistake]:
    """The mistakes of a module, in the order in which they stand there."""
    return [value for value in vars(module).values() if isinstance(value, Mistake)]
