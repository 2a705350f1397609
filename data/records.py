"""The three record types that every reader, world and engine shares.

The text in a record is exactly what is tokenized: tokens(prompt) + tokens(response) + EOS. Nothing
adds a separator later, so a space or a newline between the two belongs to one of the strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PromptRecord:
    """What a policy is asked. `answer` is the ground truth where a rule or a reward can check it."""

    prompt: str
    answer: Any = None  # a JSON value, but a number is text
    meta: Mapping[str, Any] = field(default_factory=dict)  # the other columns of a file's row


@dataclass(frozen=True)
class ResponseRecord:
    """A prompt with one answer to learn from (supervised fine-tuning, pre-training documents)."""

    prompt: str
    response: str
    meta: Mapping[str, Any] = field(default_factory=dict)


# What a reward model's run records beside the text of a pair (reward_model/pairs.py): whether an answer
# ended, and its token ids.
RECORDED = ("chosen_ended", "rejected_ended", "chosen_tokens", "rejected_tokens")


@dataclass(frozen=True)
class PreferenceRecord:
    """A prompt with a preferred and a rejected answer (reward models, DPO)."""

    prompt: str
    chosen: str
    rejected: str
    meta: Mapping[str, Any] = field(default_factory=dict)
