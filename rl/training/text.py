"""L_PT: the language model's loss on pre-training text as a second loss of an engine."""

from __future__ import annotations

from typing import Protocol

from gpt.corpus import Corpus
from gpt.model import GPT
from gpt.pretraining import add_text_gradient


class TextConfig(Protocol):
    """The fields of an engine's config that say how the text is learned from."""

    @property
    def pretraining_coef(self) -> float: ...

    @property
    def micro_batch_size(self) -> int: ...

    @property
    def precision(self) -> str: ...


def text_gradient(config: TextConfig, policy: GPT, text: Corpus, index: int) -> float:
    """Add the gradient of pretraining_coef * L_PT on the text's batch `index`; returns L_PT.

    L_PT is a mean over tokens, in nats.
    """
    return add_text_gradient(
        policy,
        text,
        index,
        config.pretraining_coef,
        micro_batch_size=config.micro_batch_size,
        dtype=config.precision,
    )
