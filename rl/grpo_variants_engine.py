"""The GRPO family: one loop, in which ten published variants are choices among named pieces.

The box is that of DAPO (Yu et al. 2025, arXiv:2503.14476, Algorithm 1), which is GRPO's with a
buffer; after each line the fields that choose what happens there:

    line 1     for step = 1..M                         run.steps
    line 2     sample a batch of prompts               PromptCursor.take
    line 3     old policy <- policy                    run.old_log_probs: its log-probs alone
    line 4     sample G outputs per prompt             run.sample
    line 5     rewards of the outputs                  run.rewards; overlong_buffer
    line 6     buffer the groups with a spread         GroupBuffer.add; sampling_filter
    lines 7-8  too few: sample other prompts           GroupBuffer.missing; max_resamples
    line 9     group-relative advantages               group_advantages, maxrl_advantages; reward_scale
    line 10    for iteration = 1..mu                   updates_per_batch
    line 11    ascend the objective                    variant_loss; surrogate, clip_low, clip_high,
                                                       dual_clip, reducer, ...

    --variant  is                                                             arXiv
    grpo       the defaults: rl/grpo_engine.py to the last bit                2402.03300
    dapo       clip higher, token mean, overlong penalty, dynamic sampling    2503.14476
    dr_grpo    no division by a standard deviation or by a length             2503.20783
    gspo       the clipped ratio is that of the response                      2507.18071
    cispo      the ratio is a clipped weight of log pi, token mean            2506.13585
    sapo       a soft gate instead of the clip                                2511.20347
    gmpo       the geometric mean of a response's clipped ratios              2507.20673
    maxrl      divided by the group's mean: rewards of 0 or 1, no length      2602.02710
    kl_cov     no clip; tokens of the largest covariance are held back        2505.22617
    clip_cov   a wide clip; some tokens of large covariance teach nothing     2505.22617

All but grpo leave the KL penalty out. The reference is then asked for the KL that is logged and for
--stop-kl; with --stop-kl None it is not asked at all.
Where dapo differs from its paper: Overlong Filtering (section 3.4), which takes responses that were
cut off out of the loss, is left out. Add --mask-truncated for it. Where maxrl does: it sums over
tokens, as the paper's gradient does, and its released code averages over them. kl_cov and clip_cov
have the numbers of the released code for 7B parameters; a minibatch here has few tokens, so each
chooses but a handful of them. By "covariance" of a token they mean (log pi - mean) (A - mean).
What is new next to GRPO: nothing but the choices. A variant's name only fills in fields, before all
other flags, and every field can be set by hand.

    python -m rl.grpo_variants_engine --variant dapo
    python -m rl.grpo_variants_engine --variant gspo --data sums
    python -m rl.grpo_variants_engine --reducer token_mean --reward-scale none    no name needed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gpt.generate import uniform_numbers
from gpt.recipes import config_of
from harness.command_line import flag_value
from harness.flags import Count, NotNegative, ZeroToOne
from rl.batches.dynamic_sampling import SAMPLING_FILTERS, GroupBuffer, PromptCursor
from rl.batches.rollout import Rollout, Update, rollout_log_probs, select_rows
from rl.equations import losses
from rl.equations.advantages import group_advantages, maxrl_advantages
from rl.equations.kl import absolute, k3
from rl.equations.token_rewards import overlong_penalty
from rl.loop import Run
from rl.run.config import EngineConfig, refuse_penalty, require_groups
from rl.run.engine import Engine
from rl.run.metrics import ClipMask, StepBatch, clip_mask, no_clip, rollout_metrics

VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dapo": dict(
        clip_low=0.2, clip_high=0.28, reducer="token_mean", overlong_buffer="fifth",
        sampling_filter="dynamic", kl_coef=0.0,
    ),
    "dr_grpo": dict(reward_scale="none", reducer="constant_length_mean", kl_coef=0.0),
    "gspo": dict(surrogate="gspo", clip_low=3e-4, clip_high=4e-4, kl_coef=0.0),
    "cispo": dict(surrogate="cispo", reducer="token_mean", kl_coef=0.0),
    "sapo": dict(surrogate="sapo", kl_coef=0.0),
    "gmpo": dict(surrogate="gmpo", clip_low=0.4, clip_high=0.4, kl_coef=0.0),
    "maxrl": dict(reward_scale="mean", reducer="constant_length_mean", kl_coef=0.0),
    "kl_cov": dict(
        kl_cov_share=0.002, clip_low=1.0, clip_high=1e9, reducer="token_mean", kl_coef=0.0,
    ),
    "clip_cov": dict(
        clip_cov_share=0.0002, clip_low=1.0, clip_high=1.0, reducer="token_mean", kl_coef=0.0,
    ),
}  # fmt: skip
OF_SEQUENCES = ("gspo", "gmpo")  # surrogates with one ratio a response
ROUNDING = 1e-5  # a log-ratio below it is none: at the first update it is 0 but for rounding


@dataclass(frozen=True)
class GRPOVariantsConfig(EngineConfig):
    """Improve a policy with GRPO or one of its relatives."""

    variant: Literal[
        "grpo", "dapo", "dr_grpo", "gspo", "cispo", "sapo", "gmpo", "maxrl", "kl_cov", "clip_cov"
    ] = "grpo"
    """Name of a published bundle of the choices below, filled in before all other flags."""
    surrogate: Literal["token", "gspo", "gmpo", "cispo", "sapo"] = "token"
    """The policy loss. token: PPO's clipped ratio per token. gspo: one ratio per response, the geometric
    mean of its tokens'. gmpo: the geometric mean of clipped ratios, its range from exp(-clip_low) to
    exp(clip_high). cispo: a clipped weight of log pi. sapo: a soft gate."""
    clip_low: NotNegative = 0.2
    """epsilon below 1; cispo and sapo have none, and 1 is none, too."""
    clip_high: NotNegative = 0.2
    """epsilon above 1; sapo has none. It is relative for cispo too, whose weights end at 1 + clip_high:
    1.2 by default, and ScaleRL's bound of 5.0 (arXiv:2510.13786) is --clip-high 4."""
    kl_coef: float = EngineConfig.kl_coef
    """beta, the weight of the KL penalty; at 0 the reference is asked for --stop-kl alone."""
    dual_clip: float | None = None
    """Bound the loss of a negative advantage at this ratio (surrogate token; 3 is usual)."""
    reducer: Literal["sequence_mean", "token_mean", "sequence_sum", "constant_length_mean"] = (
        "sequence_mean"
    )
    """How token losses are averaged. constant_length_mean divides by rows times max_new_tokens. With
    gspo, sequence_sum weighs a response by its length, which is LUSPO (arXiv:2602.05261)."""
    reward_scale: Literal["group", "batch", "none", "mean"] = "group"
    """Divide the centred rewards by the standard deviation of their group, of the batch, or not. mean:
    by the group's mean (MaxRL), for rewards of 0 or 1 alone."""
    sampling_filter: Literal["none", "dynamic"] = "none"
    """dynamic: drop groups whose rewards are all equal and sample other prompts in their place."""
    max_resamples: Count = 4
    """Rounds of such sampling a step; a batch that is still short is trained on as it is."""
    overlong_buffer: int | Literal["fifth"] | None = None
    """The penalty of long responses grows from 0 to 1 over the last so many of max_new_tokens
    (DAPO); fifth: a fifth of them."""
    mask_truncated: bool = False
    """DAPO's Overlong Filtering: leave responses without an EOS out of the loss; they still count in
    their group's baseline."""
    kl_cov_share: ZeroToOne = 0.0
    """KL-Cov: this share of a minibatch's tokens, those of largest covariance of log pi and A, at least
    one, pays kl_cov_coef |log pi - log pi_old|; 0 is none."""
    kl_cov_coef: NotNegative = 1.0
    """Weight of that penalty."""
    clip_cov_share: ZeroToOne = 0.0
    """Clip-Cov: a random share of a minibatch's tokens, of those whose covariance lies between the
    bounds, at least one, has no policy loss; 0 is none."""
    clip_cov_low: float = 1.0
    """The lower bound."""
    clip_cov_high: float = 5.0
    """The upper bound."""

    @classmethod
    def chosen_by(cls, arguments: Sequence[str]) -> dict[str, Any]:
        """The fields of the variant that a command line names; a wrong name is left to the parser."""
        variant = flag_value(arguments, "--variant")
        return choices_of(variant if variant in VARIANTS else "grpo")

    has_gdpo = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward_combination == "gdpo" and (
            self.reward_scale != "group" or self.overlong_buffer or self.sampling_filter != "none"
        ):
            raise ValueError(
                "reward_combination gdpo takes the place of reward_scale group: leave other scales, "
                "overlong_buffer and sampling_filter out, which look at the rewards' sum"
            )
        refuse_penalty("the GRPO family", self, "; --overlong-buffer has one")
        if self.reward_scale != "mean" or self.sampling_filter == "dynamic":
            require_groups(self)
        if self.reward_scale == "mean" and self.overlong_buffer:
            raise ValueError(
                "reward_scale mean is for rewards of 0 or 1: leave overlong_buffer out"
            )
        if self.clip_cov_low >= self.clip_cov_high:
            raise ValueError(
                f"clip_cov_low must be below clip_cov_high = {self.clip_cov_high}: got "
                f"{self.clip_cov_low}"
            )
        by_response = self.reducer in ("sequence_mean", "sequence_sum")
        if self.surrogate in OF_SEQUENCES and not by_response:
            raise ValueError(
                f"surrogate {self.surrogate} has one loss per response, and {self.reducer} would weigh "
                "a response by its length: use sequence_mean, or sequence_sum to do so on purpose"
            )
        if self.dual_clip is not None and self.surrogate != "token":
            raise ValueError(
                f"dual_clip bounds a token's ratio: {self.surrogate} has none, leave it"
            )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"dual_clip must exceed 1 + clip_high = {1 + self.clip_high}: got {self.dual_clip}"
            )
        if self.overlong_tokens not in (None, *range(1, self.max_new_tokens + 1)):
            raise ValueError(
                f"overlong_buffer must be in 1..max_new_tokens = {self.max_new_tokens}: got "
                f"{self.overlong_buffer}"
            )

    @property
    def overlong_tokens(self) -> int | None:
        """Length of the overlong penalty's ramp; DAPO's is a fifth, 4096 of 20480 tokens."""
        if self.overlong_buffer == "fifth":
            return max(self.max_new_tokens // 5, 1)
        return self.overlong_buffer


# --- variants: fields that are filled in before all others ------------------------------------


def choices_of(variant: str) -> dict[str, Any]:
    """A variant's fields, over those of any preset; what is given by hand still wins."""
    return VARIANTS[variant] | {"variant": variant}


def from_variant(variant: str, preset: str = "tiny", **overrides: object) -> GRPOVariantsConfig:
    """The config of a named variant; `GRPOVariantsConfig(variant="dapo")` would only carry the name."""
    return config_of(GRPOVariantsConfig, preset=preset, **(choices_of(variant) | overrides))


# --- the choices: one table each, one signature per table -------------------------------------

# (config, log_probs, old_log_probs, advantages, mask) -> loss (n, T)
SURROGATES: dict[str, Callable[..., Tensor]] = {
    "token": lambda c, new, old, A, m: losses.clipped_surrogate(
        new, old, A, c.clip_low, c.clip_high
    ),
    "gspo": lambda c, new, old, A, m: losses.gspo(new, old, A, m, c.clip_low, c.clip_high),
    "gmpo": lambda c, new, old, A, m: losses.gmpo(new, old, A, m, c.clip_low, c.clip_high),
    "cispo": lambda c, new, old, A, m: losses.cispo(new, old, A, c.clip_high),
    "sapo": lambda c, new, old, A, m: losses.sapo(new, old, A),
}

# where its clip acts
CLIP_MASKS: dict[str, Callable[[GRPOVariantsConfig], ClipMask]] = {
    "token": lambda c: clip_mask(c.clip_low, c.clip_high),
    "gspo": lambda c: clip_mask(c.clip_low, c.clip_high, losses.mean_ratio),
    # its clip is around 0, of the log
    "gmpo": lambda c: clip_mask(c.clip_low, c.clip_high, lambda new, old, m: 1 + (new - old)),
    "cispo": lambda c: lambda new, old, A, m: losses.likelihood_ratio(new, old) > 1 + c.clip_high,
    "sapo": lambda c: no_clip,
}

# (config, loss (n, T), mask (n, T), mask of the whole minibatch (rows, T)) -> scalar
REDUCERS: dict[str, Callable[..., Tensor]] = {
    "sequence_mean": lambda c, loss, m, whole: losses.sequence_mean(loss, m, whole.any(1).sum()),
    "token_mean": lambda c, loss, m, whole: losses.token_mean(loss, m, whole.sum()),
    "sequence_sum": lambda c, loss, m, whole: losses.sequence_sum(loss, m, whole.any(1).sum()),
    "constant_length_mean": lambda c, loss, m, whole: losses.constant_length_mean(
        loss, m, c.max_new_tokens, len(whole)
    ),
}


# --- the loss -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChosenUpdate(Update):
    """What the loss reads besides the policy in training: constants during the updates."""

    chosen: Tensor  # (N, T) bool: of the tokens that take part, those whose policy loss counts
    held: Tensor | None = None  # (N, T) bool: those that pay KL-Cov's penalty


def variant_loss(  # line 11
    config: GRPOVariantsConfig,
    new: Tensor,  # (n, T), log-probs of the policy in training
    given: ChosenUpdate,
    *,
    kl_coef: float,
    whole: Tensor,  # (rows, T) bool, the mask of the whole minibatch
) -> Tensor:
    """reduce[ chosen * surrogate + held * kl_cov_coef |log pi - log pi_old| + kl_coef * KL ].

    `chosen` is 0 for the tokens that clip_cov_share leaves out, which keep their KL and stay in the
    denominator (arXiv:2505.22617). A row whose mask is empty adds exactly 0. Denominators are those of
    the whole minibatch, so that micro-batches add up.
    """
    loss = SURROGATES[config.surrogate](config, new, given.old, given.advantages, given.mask)
    if config.dual_clip is not None:
        loss = losses.dual_clip(loss, given.advantages, config.dual_clip)
    loss = torch.where(given.chosen, loss, 0.0)
    if given.held is not None:
        moved = absolute(new, given.old)
        loss = loss + config.kl_cov_coef * torch.where(given.held & (moved > ROUNDING), moved, 0.0)
    if kl_coef and given.ref is not None:
        loss = loss + kl_coef * k3(new, given.ref)
    return REDUCERS[config.reducer](config, loss, given.mask, whole)


def with_chosen_tokens(
    config: GRPOVariantsConfig, run: Run, rollout: Rollout, rows: Tensor, update: ChosenUpdate
) -> ChosenUpdate:
    """The update, of a minibatch's `rows` without Clip-Cov's tokens, and with KL-Cov's.

    The thresholds are those of the whole minibatch now, so its rows are scored once more.
    """
    if not (config.kl_cov_share or config.clip_cov_share):
        return update
    given, update = update.rows(rows), replace(update, chosen=update.mask.clone())
    new = rollout_log_probs(run.policy, select_rows(rollout, rows), config)  # (n, T)
    covariances = losses.token_covariances(new, given.advantages, given.mask)
    if config.clip_cov_share:  # of those that the clip has left a gradient
        clipped = run.clip_mask(new, given.old, given.advantages, given.mask)
        n, T = given.mask.shape
        draws = uniform_numbers(n, T, run.generators["minibatches"])
        update.chosen[rows] &= ~losses.clip_cov_tokens(
            covariances.masked_fill(clipped, -torch.inf), draws.to(new.device), given.mask,
            config.clip_cov_share, config.clip_cov_low, config.clip_cov_high,
        )  # fmt: skip
    if config.kl_cov_share:
        held = torch.zeros_like(update.mask)
        held[rows] = losses.kl_cov_tokens(covariances, given.mask, config.kl_cov_share)
        update = replace(update, held=held)
    return update


# --- the loop -----------------------------------------------------------------------------------


def update_policy(
    config: GRPOVariantsConfig, run: Run, rollout: Rollout, update: ChosenUpdate
) -> None:
    """Ascend the objective on one batch (lines 10-11)."""
    for _ in range(config.updates_per_batch):  # line 10
        for rows in run.minibatches(rollout, epochs=1):
            chosen = with_chosen_tokens(config, run, rollout, rows, update)
            whole = update.mask[rows]
            for part, batch in run.micro_batches(rollout, rows):
                scores, given = run.scores(run.policy, batch), chosen.rows(part)
                loss = variant_loss(  # line 11
                    config, scores.log_probs, given, kl_coef=run.kl.coef, whole=whole
                )
                loss.backward()
                drops = config.mask_truncated or config.clip_cov_share > 0
                extra = {"policy_tokens": given.chosen} if drops else {}
                run.record(loss, scores, given, batch, **extra)
            run.optimizer_step()  # line 11


def enough_groups(config: GRPOVariantsConfig, run: Run, cursor: PromptCursor) -> GroupBuffer:
    """Sample prompts until the batch is full of groups that the filter keeps (lines 2-8)."""
    buffer, keep = GroupBuffer(config.prompts_per_step), SAMPLING_FILTERS[config.sampling_filter]
    while buffer.missing and buffer.rounds <= config.max_resamples:  # lines 7-8
        rollout = run.sample(cursor.take(buffer.missing))  # lines 2-4
        rewards = run.rewards(rollout)  # line 5
        # line 6: by the reward alone; equal rewards of different lengths are no spread
        buffer.add(rollout, rewards, keep(rewards.view(-1, config.group_size)))
    return buffer


def variant_advantages(config: GRPOVariantsConfig, rewards: Tensor) -> Tensor:  # line 9
    """Centred in the group and divided as the flags say, (N,) -> (N, 1)."""
    if config.reward_scale == "mean":
        return maxrl_advantages(rewards, config.group_size)
    return group_advantages(rewards, config.group_size, scale=config.reward_scale)


def train(run: Run) -> list[dict[str, Any]]:
    """Run the chosen variant, update `run.policy` in place and return one metrics row a step.

    A step whose groups were all dropped takes no optimizer step.
    """
    config: GRPOVariantsConfig = run.config
    reference = run.freeze_reference()
    run.clip_mask = CLIP_MASKS[config.surrogate](config)  # for the log, and for Clip-Cov
    cursor = run.parts["prompts"] = PromptCursor(run.records, config.seed)
    for step in run.steps():  # line 1
        buffer = enough_groups(config, run, cursor)  # lines 2-8
        sampled, rewards = buffer.sampled()
        if config.overlong_tokens is not None:  # line 5
            buffered = config.max_new_tokens, config.overlong_tokens
            penalty = overlong_penalty(sampled.lengths, *buffered)  # (N,), DAPO's Eq. 13
            sampled.reward_metrics["overlong_penalty"] = float(penalty.mean())
            rewards = rewards + penalty
        dropped = buffer.metrics() if config.sampling_filter != "none" else {}
        rollout, kept = buffer.to_train(sampled, rewards)  # line 6
        if not len(rollout):
            row = run.row(sampled, rewards, sampled.log_probs, updated=False) | dropped
            run.close_step(step, row)
            continue
        old = run.old_log_probs(rollout)  # (N, T)  line 3
        ref = run.ref_log_probs(reference, rollout)  # (N, T), None where no KL is asked for
        if config.reward_combination == "gdpo":
            advantages = run.group_advantages(rollout, kept)
        else:
            advantages = variant_advantages(config, kept)  # (N, 1)  line 9
        mask = rollout.response_mask  # (N, T)
        if config.mask_truncated:
            mask = mask & rollout.has_eos[:, None]
        update = ChosenUpdate(old, ref, advantages, mask, mask)
        update_policy(config, run, rollout, update)  # lines 10-11

        row = run.row(sampled, rewards, sampled.log_probs) | dropped
        trained_on = rollout_metrics(rollout, kept, old, ref)  # the KL, where it was asked
        row |= {
            key: trained_on[key] for key in ("kl", "kl_per_token", "kl_k3") if key in trained_on
        }
        if "kl" in row:
            run.kl.update(row["kl"], len(rollout))
        run.close_step(step, row, StepBatch(rollout, kept, update, run.clip_mask))
    return run.log.rows


ENGINE = Engine(
    name="grpo_variants",
    box="The GRPO family",
    config=GRPOVariantsConfig,
    train=train,
    run_name=lambda config: f"grpo_variants_{config.variant}",
    toy="--variant cispo",
)


main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
