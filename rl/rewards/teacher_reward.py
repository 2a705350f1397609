"""A teacher as the source of the reward: what the engines that distil share.

The teacher is a frozen GPT with the policy's tokenizer (gpt/teacher.py opens it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from gpt.model import GPT
from gpt.teacher import ReverseKL, open_teacher, reverse_kl
from gpt.tokenizer import Tokenizer
from harness.flags import AtLeastOne, KLNats, NotNegative
from harness.tensors import masked_mean, masked_sum
from rl.batches.rollout import Rollout, ScoringConfig, rollout_log_probs
from rl.equations.losses import token_mean
from rl.equations.token_rewards import own_text_penalty, teacher_rewards
from rl.rewards.reward import MadeOf

LOG_PROB_FLOOR = -20.0  # nats: a token that the teacher never writes costs this much, not infinity


@torch.no_grad()
def teacher_log_probs(teacher: GPT, rollout: Rollout, config: ScoringConfig) -> Tensor:
    """log p(y_t) (N, T) of the rollout's tokens under the teacher, at least -20, 0 at padding."""
    return rollout_log_probs(teacher, rollout, config).clamp(min=LOG_PROB_FLOOR)


@dataclass(eq=False)
class TeacherReward:
    """The mean or the sum over a response's tokens of log p(y_t) [- log q(y_t)], (N,).

    p is the teacher, q the policy as it sampled (`rollout.log_probs`). With `reverse_kl` and `sum` the
    mean reward is minus KL(q || p) per response. An `own_text_coef` adds that share of log q(y_t): a
    penalty on entropy (`own_text_penalty`).
    """

    teacher: GPT
    config: ScoringConfig
    aggregate: Literal["mean", "sum"] = "mean"
    reverse_kl: bool = False
    own_text_coef: float = 0.0
    latest: tuple[Rollout, Tensor] | None = field(default=None, init=False)
    name = "teacher"

    @property
    def components(self) -> MadeOf:
        return MadeOf(
            teacher=self.teacher,
            distance=self.distance,
            token_rewards=self.token_rewards if self.aggregate == "sum" else None,
            token_columns=lambda rollout: {
                "log_p": self.log_probs(rollout), "log_q": rollout.log_probs
            },
        )  # fmt: skip

    def distance(self, policy: GPT, rollout: Rollout, tau: float, rows: int) -> ReverseKL:
        """KL(policy || teacher) of the responses, nats, (N,): two estimates, `rows` scored together."""
        return reverse_kl(policy, self.teacher, rollout.sequences, tau, micro_batch_size=rows)

    def log_probs(self, rollout: Rollout) -> Tensor:
        """log p(y_t) (N, T); the latest rollout's are kept, so that asking again costs nothing."""
        if self.latest is None or self.latest[0] is not rollout:
            self.latest = rollout, teacher_log_probs(self.teacher, rollout, self.config)
        return self.latest[1]

    def token_rewards(self, rollout: Rollout) -> Tensor:
        """log p(y_t) [- log q(y_t)] [+ own_text_coef log q(y_t)], (N, T), 0 at padding."""
        own, mask = rollout.log_probs, rollout.response_mask
        rewards = teacher_rewards(self.log_probs(rollout), own, mask, reverse_kl=self.reverse_kl)
        if self.own_text_coef:
            rewards = own_text_penalty(rewards, own, mask, self.own_text_coef)
        return rewards

    def __call__(self, rollout: Rollout) -> Tensor:
        aggregate = masked_mean if self.aggregate == "mean" else masked_sum
        return aggregate(self.token_rewards(rollout), rollout.response_mask)

    def with_metrics(self, rollout: Rollout) -> tuple[Tensor, dict[str, float]]:
        """The rewards, and how the teacher likes the samples: log p per token, KL per response."""
        log_probs, mask = self.log_probs(rollout), rollout.response_mask
        return self(rollout), {
            "teacher_log_prob": float(token_mean(log_probs, mask)),
            "reverse_kl": float(masked_sum(rollout.log_probs - log_probs, mask).mean()),
        }


def reward_from_teacher(
    make: Callable[[Any, GPT], TeacherReward],
) -> Callable[[Any, Tokenizer, torch.device], TeacherReward]:
    """An engine's `own_reward`: what `make(config, teacher)` makes of the teacher that the flags name."""

    def open_reward(config: Any, tokenizer: Tokenizer, device: torch.device) -> TeacherReward:
        place = dict(data=config.data, preset=config.preset)
        return make(config, open_teacher(config.teacher, tokenizer, device, **place))

    return open_reward


@dataclass(frozen=True)
class TeacherFlags:
    """The teacher"""

    teacher: str | None = None
    """The teacher, named as --model is; default: the run of this data."""
    pretraining_coef: NotNegative = 0.1
    """lambda, the weight of the language model's loss on pre-training text; 0 needs no text. MiniLLM
    and the larger presets have 1; a world's text is worse than what its teacher writes, and 1 holds
    back."""


@dataclass(frozen=True)
class MovingReference:
    """KL to the reference"""

    stop_kl: KLNats | None = None
    """Stop once the KL per response from the start exceeds this many nats, however often the reference
    is renewed, and keep the last policy inside them."""
    renew_reference: AtLeastOne | None = None
    """Rollout batches after which the reference becomes the policy, again and again; default: never."""


def moved_reference(every: int | None, step: int, reference: GPT, policy: GPT) -> None:
    """reference <- policy, where it is due after `step` batches (arXiv:2402.03300, Alg. 1, line 3)."""
    if every is not None and step % every == 0:
        reference.load_state_dict(policy.state_dict())


def refuse_other_rewards(reward: str | Sequence[str], reward_model: Sequence[str]) -> None:
    """ValueError if the flags name a reward: an engine that distils learns from its teacher alone."""
    if reward != "auto" or reward_model:
        raise ValueError("the teacher is the reward here: leave --reward and --reward-model out")
