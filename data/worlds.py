"""The generated worlds by the name that --data gives them: their modules, and what an answer is worth."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from data import instructions, reviews, sums
from data.records import PromptRecord

MODULES: dict[str, ModuleType] = {
    "reviews": reviews,
    "sums": sums,
    "instructions": instructions,  # for a model that has read English: it has no texts to learn from
}
# (record, response text, ended with EOS) -> value
RULES: dict[str, Callable[[PromptRecord, str, bool], float]] = {
    "reviews": reviews.gold_reward,
    "sums": sums.exact_match,
    "instructions": instructions.kept,
}
# Worlds whose answers are right or wrong: they have no reward model and no pairs.
CHECKED = {"sums": "exact match", "instructions": "constraint kept"}


def has_texts(name: str) -> bool:
    """Whether a model can learn from this world's own texts, or needs to have read English before."""
    return hasattr(MODULES[name], "corpus")


def prompts(name: str, split: str, most: int) -> list[PromptRecord]:
    """The prompts of a split; of the sums, which are many, the first `most`."""
    count = {"count": most} if name == "sums" else {}
    return list(MODULES[name].prompts(split, **count))
