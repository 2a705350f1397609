"""MiniLLM: distillation by the reverse KL of whole responses (Gu et al. 2024, arXiv:2306.08543).

    line 1   student <- start; teacher p frozen                 policy; teacher
    line 2   repeat                                             steps
    line 3     prompts x; y ~ p~ = alpha p + (1 - alpha) q,     prompt_batch, sample_rollout (Eq. 4: each
               token by token                                   token from the mixture of both models)
    line 4     r_t = log p(y_t) / q(y_t)                        teacher_rewards (Eq. 2)
    line 5     w_t = q / p~ of token t                          mixed_sampling_weights
    line 6     R_{t+1} = the mean of r after token t            length_normalized_returns (Eq. 6)
    line 7     for the inner epochs, in minibatches             updates_per_batch, minibatches
    line 8       Single = w_t KL(q(.|s_t) || p(.|s_t))          token_scores_and_kl (Eq. 3, Eq. 5)
    line 9       Long   = -w_t R_{t+1} min(rho_t, clip(rho_t))  clipped_surrogate
    line 10      L_PT   = cross-entropy on pre-training text    text_gradient
    line 11      descend Single + Long + lambda L_PT            minillm_loss

The gradient of KL(q || p) over responses is that of the token KLs along the way (Single) plus the
effect of a token on the tokens after it (Long): the current token's own reward is in Single, summed
over the vocabulary without sampling noise, and therefore not in R_{t+1}. What is new next to PPO:
the reward comes from a teacher token by token, the teacher helps to sample, and the loss contains
an exact term. There is no critic, no baseline and no reference model. `reward` in the log is
log p(y) / q(y) of the sampled responses, about minus the reverse KL.

    python scripts/make_teacher.py                the teacher, once
    python -m rl.minillm_engine                   reviews
    python -m rl.minillm_engine --teacher-share 0 --pretraining-coef 0
    python -m rl.minillm_engine --data texts.json --preset small --teacher runs/larger
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from data.records import PromptRecord
from gpt.corpus import Corpus
from gpt.generate import SamplingParams
from gpt.log_probs import token_scores_and_kl
from gpt.model import GPT
from gpt.teacher import open_teacher
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.flag_ranges import AtLeastOne, KLLimit, NotNegative, Range
from harness.metric_log import MetricLog
from harness.optimizer import adamw, clip_and_step, set_learning_rate
from harness.seeds import make_generator
from harness.training_state import TrainingState
from rl.batches.rollout import (
    epoch_minibatches,
    micro_batches,
    old_policy_log_probs,
    prompt_batch,
    sample_rollout,
)
from rl.equations.losses import (
    clipped_surrogate,
    length_normalized_returns,
    mixed_sampling_weights,
    row_sums,
    token_mean,
)
from rl.equations.token_rewards import teacher_rewards
from rl.rewards.teacher_reward import (
    TeacherReward,
    refuse_other_rewards,
    refuse_reference,
    teacher_log_probs,
)
from rl.training.config import size_presets, warmed_up
from rl.training.engine import Engine
from rl.training.metrics import StepBatch, Stopwatch, UpdateMeter, rollout_metrics
from rl.training.run import Validate, finish_step, run_as_command, run_training
from rl.training.text import TextConfig, open_text, text_gradient, text_of

PRESETS = size_presets(
    dict(prompts_per_step=32, minibatches=4, kl_coef=0.0, pretraining_coef=1.0), limited=False
)


@dataclass(frozen=True)
class MiniLLMConfig(TextConfig):
    """Distil a teacher into a policy with MiniLLM."""

    teacher: Path | None = None
    """Run folder of the teacher; default: the one of this data."""
    teacher_share: Annotated[
        float, Range("[0, 1)", "must be in [0, 1), or the weights of the samples have no bound")
    ] = 0.2
    """alpha: the teacher's share of the mixture that responses are drawn from; 0 is on-policy."""
    prompts_per_step: AtLeastOne = 128
    """Prompts per rollout batch."""
    group_size: AtLeastOne = 1
    """Responses per prompt; there is no baseline, so one is enough."""
    updates_per_batch: AtLeastOne = 2
    """Inner epochs of shuffled minibatches over each rollout batch (the paper's code: 4)."""
    kl_coef: float = 0.0
    """Must be 0: the KL to the teacher is the whole loss, and there is no reference."""
    stop_kl: KLLimit | None = None
    """Must be left out: no KL to a reference is measured in training."""
    clip_low: NotNegative = 0.2
    """epsilon below 1."""
    clip_high: NotNegative = 0.2
    """epsilon above 1."""
    pretraining_coef: NotNegative = 0.1
    """lambda_PT: the weight of the language model's loss on pre-training text. The paper has 1, and so
    have the larger presets; a world's text is worse than what its teacher writes, and 1 holds back."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_other_rewards(self.reward, self.reward_model)
        refuse_reference("MiniLLM", self.kl_coef, self.stop_kl)


class Targets(NamedTuple):
    """What a minibatch learns from, all (N, T) and constant during the epochs."""

    old_log_probs: Tensor  # of the student, whoever drew the token
    returns: Tensor  # R_{t+1}, normalised by length
    weights: Tensor  # w

    def rows(self, index: Tensor) -> Targets:
        """The targets of some rows."""
        return Targets(*(tensor[index] for tensor in self))


def minillm_loss(
    config: MiniLLMConfig,
    log_probs: Tensor,  # (n, T)
    token_kl: Tensor,  # (n, T), KL(q(.|s_t) || p(.|s_t)) of the student in training
    targets: Targets,  # (n, T) each
    response_mask: Tensor,  # (n, T)
    *,
    tokens: int,
) -> Tensor:
    """Single + Long of some rows of a minibatch of `tokens` tokens (arXiv:2306.08543, Eqs. 3 to 6).

    1/tokens sum_{i,t} [ w KL_t + max(-rho w R_{t+1}, -clip(rho) w R_{t+1}) ]
    """
    surrogate = clipped_surrogate(  # line 9
        log_probs,
        targets.old_log_probs,
        targets.weights * targets.returns,
        config.clip_low,
        config.clip_high,
    )
    token_loss = targets.weights * token_kl + surrogate  # lines 8 and 11
    return token_mean(token_loss, response_mask, denominator=tokens)  # line 11


def minillm_targets(
    config: MiniLLMConfig,
    teacher_log_probs: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T)
    response_mask: Tensor,  # (N, T)
) -> tuple[Targets, Tensor]:
    """The constants of a rollout, and r_t = log p / q of its tokens (N, T)."""
    token_rewards = teacher_rewards(  # line 4
        teacher_log_probs, old_log_probs, response_mask, reverse_kl=True
    )
    if not token_rewards.isfinite().all():
        raise ValueError("the teacher's log-probs are not finite: its weights must be broken")
    weights = mixed_sampling_weights(  # line 5
        old_log_probs, teacher_log_probs, response_mask, config.teacher_share
    )
    returns = length_normalized_returns(token_rewards, response_mask)  # line 6
    return Targets(old_log_probs, returns, weights), token_rewards


def train(
    config: MiniLLMConfig,
    policy: GPT,  # line 1
    tokenizer: Tokenizer,
    reward_fn: TeacherReward,
    prompts: Sequence[PromptRecord],
    log: MetricLog,
    *,
    corpus: Corpus | None = None,
    validate: Validate | None = None,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Run MiniLLM, update `policy` in place and return one metrics row a step.

    `reward_fn` brings the teacher, `corpus` the text of L_PT.
    """
    text = text_of(config, corpus)
    params = SamplingParams(config.temperature, max_new_tokens=config.max_new_tokens)
    teacher = reward_fn.teacher  # line 1
    policy.eval()  # dropout stays off: old and new log-probs must describe the same function
    optimizer = adamw(policy, config.lr, weight_decay=0.0)
    generators = {name: make_generator(config.seed, name) for name in ("sampling", "minibatches")}
    state = TrainingState({"policy": policy, "optimizer": optimizer}, generators)
    if config.resume and folder is not None:
        state.load(folder)

    for step in state.steps_left(config.steps):  # line 2
        lr = config.lr * warmed_up(config, step)
        set_learning_rate(optimizer, lr)
        clock, meter = Stopwatch(), UpdateMeter(clip=(config.clip_low, config.clip_high))
        records = prompt_batch(prompts, step, config.prompts_per_step, config.seed)  # line 3
        with clock.phase("rollout"), precision(policy.device, config.precision):
            rollout = sample_rollout(  # line 3: y ~ p~, token by token
                policy,
                tokenizer,
                records,
                params,
                config.group_size,
                generators["sampling"],
                teacher=teacher,
                teacher_share=config.teacher_share,
            )
        with clock.phase("reward"):  # line 4: log p
            judged = teacher_log_probs(teacher, rollout, config)  # (N, T)
        with clock.phase("score"):  # lines 4-6: r, w, R
            old_log_probs = old_policy_log_probs(policy, rollout, config)  # (N, T)
            targets, token_rewards = minillm_targets(
                config, judged, old_log_probs, rollout.response_mask
            )

        with clock.phase("update"):
            updates = epoch_minibatches(config, len(rollout), generators["minibatches"])  # line 7
            for update, rows in enumerate(updates):  # line 7
                optimizer.zero_grad(set_to_none=True)
                loss = torch.zeros((), dtype=policy.wte.weight.dtype, device=policy.device)
                for part, batch in micro_batches(rollout.sequences, rows, config.micro_batch_size):
                    with precision(policy.device, config.precision):
                        scores, token_kl = token_scores_and_kl(  # line 8
                            policy, teacher, batch, config.temperature
                        )
                    part_targets = targets.rows(part)
                    part_loss = minillm_loss(  # line 11: Single + Long
                        config, scores.log_probs, token_kl, part_targets, batch.response_mask,
                        tokens=rollout.tokens_of(rows),
                    )  # fmt: skip
                    part_loss.backward()
                    loss += part_loss.detach()
                    meter.add_tokens(
                        scores, old_log_probs[part], part_targets.returns, batch,
                        single_step_kl=token_kl, mixing_weight=part_targets.weights,
                    )  # fmt: skip
                of_text = text_gradient(config, policy, text, step, update)  # line 10
                loss += config.pretraining_coef * of_text.get("pretraining_loss", 0.0)
                norm = clip_and_step(optimizer, policy.parameters(), config.max_norm)  # line 11
                meter.add_update(loss, norm, **of_text)

        rewards = row_sums(token_rewards, rollout.response_mask)  # log p(y) / q(y), (N,)
        step_batch = StepBatch(meter.acted, rollout, rewards, targets.returns)
        row = rollout_metrics(rollout, rewards, old_log_probs, None) | meter.metrics() | {"lr": lr}
        row |= clock.metrics(tokens=rollout.tokens)
        state.step = step + 1
        if finish_step(config, state, row, log, (policy, None), validate, folder, step_batch):
            break
    return log.rows


def open_teacher_reward(
    config: MiniLLMConfig, tokenizer: Tokenizer, device: torch.device
) -> TeacherReward:
    """The teacher that the flags name; its reward is log p(y) / q(y), which validations report."""
    teacher = open_teacher(
        config.teacher, tokenizer, device, data=config.data, preset=config.preset
    )
    return TeacherReward(teacher, config, aggregate="sum", reverse_kl=True)


ENGINE = Engine(
    name="minillm",
    box="MiniLLM",
    config=MiniLLMConfig,
    train=train,
    presets=PRESETS,
    learns_from="teacher",
    groups=False,
    prepare=open_text,
    own_reward=lambda config: open_teacher_reward,
    reference=lambda config: False,
    toy="--pretraining-batch-size 2",
)

main = partial(run_training, ENGINE)  # config -> run folder

if __name__ == "__main__":
    run_as_command(ENGINE)
