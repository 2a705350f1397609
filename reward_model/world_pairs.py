"""Preference pairs of a generated world: a policy answers its prompts, its annotator compares."""

from __future__ import annotations

import dataclasses
import random
import time

from data.records import PromptRecord
from data.sources import USUAL, Data, Source, world_source
from gpt.generate import SamplingParams
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.errors import UserError
from harness.flags import AboveZero, AtLeastOne, AtLeastTwo, Count, TrainingFlags
from harness.metric_log import MetricLog
from harness.seeds import derive_seed, make_generator
from reward_model.pairs import Labelled, PairSampling, TokenPair, sample_pairs

SAMPLED_TOGETHER = 512  # responses


class WorldAnnotator:
    """Compares gold rewards, with fresh Bradley-Terry noise; a response is judged once and remembered.

    UserError for a world that has no annotator.
    """

    def __init__(self, world: Source) -> None:
        if world.prefers is None or world.gold is None:
            raise UserError("nobody compares answers there: --data needs a world with an annotator")
        self.prefers, self.gold = world.prefers, world.gold
        self.judged: dict[tuple[str, str, bool], float] = {}

    def __call__(
        self, prompt: PromptRecord, a: str, a_ended: bool, b: str, b_ended: bool, rng: random.Random
    ) -> Labelled:
        gold = (self.judge(prompt, a, a_ended), self.judge(prompt, b, b_ended))
        return Labelled(rng.random() < self.prefers(*gold), gold)

    def judge(self, prompt: PromptRecord, text: str, ended: bool) -> float:
        key = (prompt.prompt, text, ended)
        if key not in self.judged:
            self.judged[key] = self.gold(prompt, text, ended)
        return self.judged[key]


@dataclasses.dataclass(frozen=True)
class PairFlags(TrainingFlags):
    """Pairs of a world"""

    data: Data = USUAL
    """A world with an annotator (reviews), or a preference file (formats: data/README.md)."""
    pairs: AtLeastOne = 112_000
    """Pairs to sample and label (a world only; a file brings its own)."""
    responses_per_prompt: AtLeastTwo = 8
    """K: sampled responses to a prompt, every two of which are compared (a world only)."""
    wide_temperature: AboveZero = 1.5
    """Temperature at which every second half of those responses is drawn; the rest are at 1."""
    borrowed_responses: Count = 0
    """Of those K, answers that were written for other prompts: in comparing them with its own a reward
    model learns to check what the prompt asks (a world only)."""
    repeated_responses: Count = 0
    """Of those K, own answers that say their last sentence again, once, twice and so on: text that the
    base model hardly writes and that a policy finds where no pair ever had it (a world only)."""
    held_out_pairs: AtLeastOne = 1000
    """Pairs to sample for the held-out report (a world only)."""
    max_response_tokens: AtLeastOne = 48
    """Longer answers are left out and counted; sampled ones are cut off there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        made = self.borrowed_responses + self.repeated_responses
        if made >= self.responses_per_prompt:
            raise ValueError(
                f"{made} borrowed_responses and repeated_responses leave none of "
                f"{self.responses_per_prompt} responses_per_prompt to be sampled: lower them"
            )


def sampled_pairs(
    policy: GPT, tokenizer: Tokenizer, config: PairFlags
) -> tuple[list[TokenPair], list[TokenPair]]:
    """Training and held-out pairs of the world; the held-out ones are two answers at temperature 1."""
    K, wide = config.responses_per_prompt, config.wide_temperature
    pairs = world_pairs(policy, tokenizer, config, "train", config.pairs, K, wide, made=True)
    return pairs, world_pairs(policy, tokenizer, config, "validation", config.held_out_pairs, 2)


def world_pairs(
    policy: GPT,
    tokenizer: Tokenizer,
    config: PairFlags,
    split: str,
    count: int,
    responses_per_prompt: int,
    wide_temperature: float = 1.0,
    made: bool = False,
) -> list[TokenPair]:
    """`count` pairs sampled from `policy` on one split's prompts, labelled by the world's annotator.

    `made`: with the borrowed and the repeated answers that the config asks for.
    """
    world = world_source(config.data)
    log = MetricLog(count, show=("seconds",), every=max(count // 4, 1), title=f"{split} pairs")
    how = PairSampling(
        SamplingParams(max_new_tokens=config.max_response_tokens),
        responses_per_prompt,
        wide_temperature,
        batch_size=max(SAMPLED_TOGETHER // responses_per_prompt, 1),
        borrowed=config.borrowed_responses if made else 0,
        repeated=config.repeated_responses if made else 0,
    )
    begin = time.perf_counter()
    pairs: list[TokenPair] = []
    sampled = sample_pairs(
        policy, tokenizer, world.prompts(split), count, WorldAnnotator(world), how,
        generator=make_generator(config.seed, f"{split} pairs"),
        rng=random.Random(derive_seed(config.seed, f"{split} labels")),
    )  # fmt: skip
    with precision(policy.device, config.precision):
        for more in sampled:
            pairs += more
            log.write(step=len(pairs), seconds=time.perf_counter() - begin)
    return pairs
