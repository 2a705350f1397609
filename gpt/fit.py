"""Whether the rows of a file fit a model, told before anything is trained.

Rows that do not fit are left out and counted. Above a tenth that is a warning, above a half an error;
both name the flags or the preset that would take them. `--cut-answers` cuts long answers instead,
which then have no EOS.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpt.model import PRESETS
from harness.errors import UserError
from harness.flag_ranges import AtLeastOne
from harness.metric_log import say_always

Lengths = Sequence[tuple[int, int]]  # tokens of a prompt, and of its longest answer with the EOS

WARN_FROM, REFUSE_FROM = 0.1, 0.5  # shares of the rows
SHORTEST_CUT = 16  # tokens: less of an answer says nothing
ROOMY = "own"  # the smallest preset with the most positions


@dataclass(frozen=True)
class Limits:
    """How long prompts and answers may be, alone and together in a model's positions."""

    prompt: int
    answer: int
    context: int | None = None
    cut: bool = False
    responses: int | None = None  # tokens that are sampled after a prompt, where they limit it

    def room(self, prompt: int) -> int:
        """Tokens of the longest answer that fits behind a prompt."""
        return self.answer if self.context is None else min(self.answer, self.context - prompt)

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

    def share(self, lengths: Lengths) -> float:
        return sum(self.reason(*row) is None for row in lengths) / max(len(lengths), 1)


@dataclass(frozen=True)
class FileFlags:
    """A file of yours"""

    template: bool = False
    """Put the project's headings around prompts that have none; in every command of a run."""


@dataclass(frozen=True)
class AnswerFileFlags(FileFlags):
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


def check_fit(source: str, lengths: Lengths, limits: Limits, what: str = "rows") -> None:
    """Say what is left out of a file and what would take it; UserError if it is too much."""
    reasons = Counter(filter(None, (limits.reason(*row) for row in lengths)))
    left_out = sum(reasons.values())
    if not left_out:
        return
    share = left_out / len(lengths)
    counts = ", ".join(f"{reason} {count:,}" for reason, count in reasons.items())
    text = f"{left_out:,} of {len(lengths):,} {what} ({share:.0%}) do not fit: {counts}"
    if share > REFUSE_FROM:
        raise UserError(f"{source}: {text}; nothing was trained. {advice(lengths, limits)}")
    if share > WARN_FROM:
        say_always(f"warning: {source}: {text}; they are left out. {advice(lengths, limits)}")
    else:
        print(f"left out {text}")


def advice(lengths: Lengths, limits: Limits) -> str:
    """How long the rows are, and the flags or the preset that would take more of them."""
    sides = [sorted(side) for side in zip(*lengths, strict=True)]
    text = "; ".join(
        f"{name} {', '.join(f'{at(side, q):,}' for q in (0.5, 0.9, 0.99, 1))}"
        for name, side in zip(("prompts", "answers"), sides, strict=True)
        if side[-1]
    )
    ways = list[tuple[str, float]]()
    wider = [wide_enough(limits, at(sides[0], q), at(sides[1], q)) for q in (0.9, 0.95, 0.99, 1)]
    flags, best = max(wider, key=lambda way: way[1].share(lengths))
    ways.append((flags, best.share(lengths)))
    positions = PRESETS[ROOMY].context
    if limits.context is not None and limits.context < positions:
        room = positions - (limits.responses or 0)
        roomy = replace(limits, context=positions, prompt=room, answer=positions)
        ways.append((f"--preset {ROOMY} in every command", roomy.share(lengths)))
    if sides[1][-1] and not limits.cut:
        ways.append(("--cut-answers", replace(limits, cut=True).share(lengths)))
    most = max((share for flag, share in ways if flag), default=0.0)
    useful = [f"{flag} takes {share:.0%}" for flag, share in ways if flag and share >= 0.8 * most]
    return f"Tokens (50, 90, 99%, longest): {text}. {'; '.join(useful) or 'Shorten them'}"


def at(lengths: Sequence[int], quantile: float) -> int:
    """The length that this share of the sorted lengths does not exceed."""
    return lengths[max(math.ceil(quantile * len(lengths)), 1) - 1]


def wide_enough(limits: Limits, prompt: int, answer: int) -> tuple[str, Limits]:
    """The flags, and the limits with them, for prompts and answers of these lengths."""
    flags, wider = [], limits
    if prompt > limits.prompt and limits.responses is None:
        flags.append(f"--max-prompt-tokens {prompt}")
        wider = replace(wider, prompt=prompt)
    elif prompt > limits.prompt and limits.context is not None and prompt < limits.context:
        flags.append(f"--max-new-tokens {limits.context - prompt}")
        wider = replace(wider, prompt=prompt)
    if answer > limits.answer:
        flags.append(f"--max-response-tokens {answer}")
        wider = replace(wider, answer=answer)
    return " ".join(flags), wider
