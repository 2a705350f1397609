"""Whether prompts and answers fit a model's positions.

Rows that do not fit are left out and counted, before anything is trained. Above a tenth that is a
warning, above a half an error. `--cut-answers` cuts long answers instead, which then have no EOS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from data.records import SPLITS, PromptRecord
from data.sources import Source, source
from gpt.tokenizer import Tokenizer
from harness.console import say_always
from harness.errors import UserError
from harness.flags import AtLeastOne

Lengths = Sequence[tuple[int, int]]  # tokens of a prompt, and of its longest answer with the EOS
WARN_FROM, REFUSE_FROM = 0.1, 0.5  # shares of the rows
SHORTEST_CUT = 16  # tokens: less of an answer says nothing


@dataclass(frozen=True)
class Limits:
    """How long prompts and answers may be, alone and together in a model's positions."""

    prompt: int
    answer: int
    context: int
    cut: bool = False

    def room(self, prompt: int) -> int:
        """Tokens of the longest answer that fits behind a prompt."""
        return min(self.answer, self.context - prompt)

    def reason(self, prompt: int, answer: int) -> str | None:
        """Why a row is left out; None if it fits, or can be cut to fit."""
        if prompt > self.prompt:
            return "prompt too long"
        if answer <= self.room(prompt) or (self.cut and self.room(prompt) >= SHORTEST_CUT):
            return None
        if answer > self.answer:
            return "answer too long"
        return f"longer than the model's {self.context} positions"

    def cut_to_fit(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        """An answer's tokens as far as they fit: without its EOS if any are missing."""
        return list(answer[: self.room(len(prompt))])


@dataclass(frozen=True)
class AnswerFileFlags:
    """A file of yours"""

    max_prompt_tokens: AtLeastOne = 128
    """Longer prompts are left out and counted."""
    max_response_tokens: AtLeastOne = 48
    """Longer answers are left out and counted; answers that are sampled are cut off there."""
    cut_answers: bool = False
    """Cut answers that do not fit instead of leaving their rows out; a cut answer has no EOS."""

    def limits(self, context: int) -> Limits:
        """What fits a model of so many positions."""
        lengths = self.max_prompt_tokens, self.max_response_tokens
        return Limits(*lengths, context, self.cut_answers)


def check_fit(source: str, lengths: Lengths, limits: Limits, what: str) -> None:
    """Say what is left out of a file and what would take it; UserError if it is too much."""
    reasons = Counter(filter(None, (limits.reason(*row) for row in lengths)))
    left_out = sum(reasons.values())
    if not left_out:
        return
    share = left_out / len(lengths)
    counts = ", ".join(f"{reason} {count:,}" for reason, count in reasons.items())
    text = f"{left_out:,} of {len(lengths):,} {what} ({share:.0%}) do not fit: {counts}"
    flags = "raise --max-prompt-tokens and --max-response-tokens"
    flags += ", give --cut-answers" * (not limits.cut)
    if not limits.answer:  # prompts alone
        flags = "lower --max-new-tokens"
    prompt, answer = (max(side) for side in zip(*lengths, strict=True))
    longest = f"the longest: {prompt:,} and {answer:,} tokens, with room for {limits.context:,}"
    advice = f"{flags}, or take a model with more positions ({longest})"
    if share > REFUSE_FROM:
        raise UserError(f"{source}: {text}; {advice}")
    if share > WARN_FROM:
        say_always(f"warning: {source}: {text}; they are left out. To keep them {advice}")
    else:
        print(f"left out {text}")


def open_prompts(
    data: str, tokenizer: Tokenizer, room: int
) -> tuple[Source, dict[str, list[PromptRecord]]]:
    """What --data names, and its prompts per split in the form that the tokenizer's model reads.

    Those longer than `room` are left out, counted. UserError if these are more than half, or if a split
    has none left.
    """
    found = source(data, tokenizer.chat)
    limits = Limits(room, 0, room)
    splits = {split: found.prompts(split) for split in SPLITS}
    texts = [record.prompt for records in splits.values() for record in records]
    lengths = {text: (len(tokenizer.encode_prompt(text)), 0) for text in dict.fromkeys(texts)}
    check_fit(data, [lengths[text] for text in texts], limits, "prompts")
    kept = {
        split: [record for record in records if limits.reason(*lengths[record.prompt]) is None]
        for split, records in splits.items()
    }
    if empty := [split for split, records in kept.items() if not records]:
        why = f"{len(lengths)} different prompts leave none for {' and '.join(empty)}"
        raise UserError(f"{data}: {why}: give more, or lower --max-new-tokens")
    return found, kept
