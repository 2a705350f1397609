"""Rewards: where they come from, and the arithmetic that turns them into a training signal."""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from data.records import PromptRecord
from gpt.log_probs import at_least_float32, score_in_micro_batches
from reward_model.model import RewardModel
from rl.batches.rollout import Rollout
from rl.equations.losses import check_mask, check_same_shape, row_means

# --- the arithmetic of rewards ----------------------------------------------------------------


def _check_scores(scores: Tensor, rows: int) -> None:
    if scores.shape != (rows,):
        raise ValueError(
            f"scores must be (N,) = ({rows},), one per response: got {tuple(scores.shape)}"
        )


def at_last_token(scores: Tensor, response_mask: Tensor) -> Tensor:
    """`scores` (N,) at the last True position of every row of the mask, 0 elsewhere, (N, T).

    That is the EOS token, or the last generated token of a truncated response. An empty row
    receives nothing.
    """
    check_mask(response_mask, response_mask)
    _check_scores(scores, len(response_mask))
    tokens_from_here = response_mask.long().flip(1).cumsum(1).flip(1)
    last = response_mask & (tokens_from_here == 1)
    return torch.where(last, at_least_float32(scores).unsqueeze(1), 0.0)


@torch.no_grad()
def token_level_rewards(
    scores: Tensor,  # (N,)
    log_probs: Tensor,  # (N, T), of the policy that sampled
    ref_log_probs: Tensor | None,  # (N, T); may be None when kl_coef is 0
    response_mask: Tensor,  # (N, T) bool
    kl_coef: float,
    *,
    kl: Literal["token", "sequence_mean"] = "token",
) -> Tensor:  # (N, T)
    """The KL-penalised reward of RLHF, spread over the tokens; 0 at masked positions.

    r_t = -kl_coef * (log pi - log pi_ref)_t, plus the score at the last token: the sum over t is
    InstructGPT's R - beta * log(pi / pi_ref)(y|x) (Ouyang et al. 2022, arXiv:2203.02155, Eq. 2),
    which is also the sequence reward of RLOO (arXiv:2402.14740, section 2.3).
    `kl="sequence_mean"` puts everything at the last token and divides the penalty by the length:
    R - kl_coef * mean_t(k1), a penalty 1/L of the paper's and without credit per token.
    """
    check_mask(log_probs, response_mask)
    if kl not in ("token", "sequence_mean"):
        raise ValueError(f'kl must be "token" or "sequence_mean": got {kl!r}')
    if kl_coef == 0:  # no reference is needed, and 0 * infinity cannot arise
        return at_last_token(scores, response_mask).to(at_least_float32(log_probs).dtype)
    if ref_log_probs is None:
        raise ValueError(f"kl_coef {kl_coef} needs ref_log_probs: got None")
    check_same_shape("log_probs and ref_log_probs", log_probs, ref_log_probs)
    k1 = at_least_float32(log_probs) - at_least_float32(ref_log_probs)
    if kl == "sequence_mean":
        return at_last_token(scores - kl_coef * row_means(k1, response_mask), response_mask)
    penalty = torch.where(response_mask, -kl_coef * k1, 0.0)
    return penalty + at_last_token(scores, response_mask)


@torch.no_grad()
def score_missing_eos(
    scores: Tensor,  # (N,)
    has_eos: Tensor,  # (N,) bool
    rule: Literal["replace", "subtract", "none"],
    value: float,
) -> Tensor:  # (N,)
    """What a response that never ended is worth, applied before any other reward arithmetic.

    "replace" makes its score `value` (Ziegler et al. 2019, arXiv:1909.08593, use -1), "subtract"
    takes `value` off its score, "none" leaves it. Meaningful only with centred scores: a reward
    model's zero is otherwise arbitrary.
    """
    _check_scores(scores, len(has_eos))
    if has_eos.shape != scores.shape or has_eos.dtype != torch.bool:
        raise ValueError("has_eos must be a bool (N,), True where the response ended")
    scores = at_least_float32(scores)
    if rule == "replace":
        return torch.where(has_eos, scores, value)
    if rule == "subtract":
        return torch.where(has_eos, scores, scores - value)
    if rule == "none":
        return scores
    raise ValueError(f'rule must be "replace", "subtract" or "none": got {rule!r}')


@torch.no_grad()
def overlong_penalty(lengths: Tensor, max_length: int, buffer: int) -> Tensor:
    """DAPO's soft overlong punishment, (N,) -> (N,), to be added to the reward.

    0 up to max_length - buffer tokens, then falling linearly to -1 at max_length and staying there
    (Yu et al. 2025, arXiv:2503.14476, Eq. 13).
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"buffer must be in 1..max_length = {max_length}: got {buffer}")
    return ((max_length - buffer - at_least_float32(lengths)) / buffer).clamp(-1.0, 0.0)


@torch.no_grad()
def teacher_rewards(
    teacher_log_probs: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T), of the policy that sampled
    response_mask: Tensor,  # (N, T) bool
    *,
    reverse_kl: bool,
) -> Tensor:  # (N, T)
    """A teacher's judgement of every token, log p [- log q]; 0 at masked positions.

    With `reverse_kl`, MiniLLM's r_t = log p(y_t) / q(y_t) (Gu et al. 2024, arXiv:2306.08543, Eq. 2):
    summed over a response its mean is -KL(q || p), which is largest where the student q is the
    teacher p. log p alone has no entropy term: its sum is largest for the teacher's one likeliest
    response, and every further token costs something.
    """
    check_same_shape("teacher_log_probs and old_log_probs", teacher_log_probs, old_log_probs)
    check_mask(teacher_log_probs, response_mask)
    rewards = at_least_float32(teacher_log_probs)
    if reverse_kl:
        rewards = rewards - at_least_float32(old_log_probs)
    return torch.where(response_mask, rewards, 0.0)


@torch.no_grad()
def weighted_sum(
    parts: Mapping[str, Tensor], weights: Mapping[str, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    """R = sum_k w_k R_k of named reward parts, each (N,).

    Returns (total (N,), weighted parts): the parts add up to the total and go to the log, so a
    rise in reward can be traced to the rule that gave it.
    """
    if not parts or parts.keys() != weights.keys():
        raise ValueError(
            f"every reward part needs one weight: parts {sorted(parts)}, weights {sorted(weights)}"
        )
    shapes = {name: tuple(part.shape) for name, part in parts.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise ValueError(f"reward parts must all be (N,), one value per response: got {shapes}")
    weighted = {name: weights[name] * at_least_float32(part) for name, part in parts.items()}
    return torch.stack(list(weighted.values())).sum(0), weighted


# --- where rewards come from --------------------------------------------------------------------

# (record, response text, ended with EOS) -> value
Rule = Callable[[PromptRecord, str, bool], float]


class RewardFn(Protocol):
    """Scores a rollout: (N,) float, one number per response, higher is better."""

    name: str

    def __call__(self, rollout: Rollout) -> Tensor: ...


@runtime_checkable
class MeasuringReward(RewardFn, Protocol):
    """A reward that also says what to log of the responses, such as the parts it is made of."""

    def with_metrics(self, rollout: Rollout) -> tuple[Tensor, dict[str, float]]: ...


class RewardModelReward:
    """The score of a trained reward model; it must share the policy's tokenizer."""

    name = "reward model"

    def __init__(self, model: RewardModel, micro_batch_size: int = 64) -> None:
        self.model, self.micro_batch_size = model, micro_batch_size

    def __call__(self, rollout: Rollout) -> Tensor:
        return score_in_micro_batches(self.model, rollout.sequences, self.micro_batch_size)


class RuleReward:
    """A function of (record, response text, ended with EOS): a world's gold reward or a checkable rule."""

    def __init__(self, rule: Rule, name: str) -> None:
        self.rule, self.name = rule, name

    def __call__(self, rollout: Rollout) -> Tensor:
        values = [
            self.rule(record, response, ended)
            for record, response, ended in zip(
                rollout.records, rollout.responses, rollout.has_eos.tolist(), strict=True
            )
        ]
        return torch.tensor(values, dtype=torch.float32, device=rollout.response_tokens.device)


@torch.no_grad()
def checked_rewards(
    reward_fn: RewardFn, rollout: Rollout, replacement: float | None = None
) -> tuple[Tensor, int]:
    """Rewards (N,) and how many were not finite. What the reward measures goes to the rollout.

    A NaN or infinite reward would spread to its whole group. Without a `replacement` it is refused
    with a ValueError; with one it becomes that number and is counted.
    """
    if isinstance(reward_fn, MeasuringReward):
        rewards, metrics = reward_fn.with_metrics(rollout)
        rollout.reward_metrics.update(metrics)
    else:
        rewards = reward_fn(rollout)
    rewards = rewards.float()
    _check_scores(rewards, len(rollout))
    broken = ~rewards.isfinite()
    count = int(broken.sum())
    if count and replacement is None:
        row = int(broken.nonzero()[0])
        raise ValueError(
            f"{count} of {len(rollout)} rewards are not finite (row {row}: "
            f"{rollout.responses[row][:60]!r}): mend the reward, or give a number to put in its place"
        )
    return torch.where(broken, replacement or 0.0, rewards), count
