"""Policy, value and preference losses as pure functions, and the reducers that average them.

A token loss comes back unreduced, (N, T): N responses, T padded response length. A reducer then
turns it into the scalar to minimise. Two rules hold in every function of this file:

- Only `log_probs` and `values` of the model in training carry a gradient. Everything else
  (old log-probs, advantages, returns) is detached here, whatever the caller passes.
- A NaN, an infinity or a fill value in a token function's input gives NaN at that position and
  no gradient through it, because it is replaced *before* the arithmetic (`finite_inputs`):
  `torch.where` around a finished 0 * NaN would be too late for the backward pass. The reducers
  then drop masked positions with `torch.where`, so garbage behind the end of a response reaches
  neither the loss nor a gradient, and at a position that takes part it shows up as a NaN loss.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.log_probs import at_least_float32

MAX_LOG_RATIO = 20.0  # exp(20) is finite in float32 and far outside any clip range
LARGEST_INPUT = 1e9  # beyond it lie fill values such as finfo.min, whose squares overflow


def check_same_shape(names: str, *tensors: Tensor) -> None:
    """Raise a ValueError unless the named tensors are all (N, T) with the same N and T."""
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(set(shapes)) > 1 or len(shapes[0]) != 2:
        raise ValueError(f"{names} must all be (N, T) with one shape: got {shapes}")


def check_mask(x: Tensor, mask: Tensor) -> None:
    """Raise a ValueError unless `mask` is a bool tensor of the (N, T) shape of `x`."""
    check_same_shape("a token tensor and its mask", x, mask)
    if mask.dtype != torch.bool:
        raise ValueError(f"a mask must be bool, True where a token takes part: got {mask.dtype}")


def _check_advantages(log_probs: Tensor, advantages: Tensor) -> None:
    if advantages.ndim != 2:
        raise ValueError(
            "advantages must be (N, T) or (N, 1): "
            f"{tuple(advantages.shape)} would broadcast along the wrong axis"
        )
    if advantages.shape not in (log_probs.shape, (len(log_probs), 1)):
        raise ValueError(
            f"advantages must be (N, T) or (N, 1) for log_probs {tuple(log_probs.shape)}: "
            f"got {tuple(advantages.shape)}"
        )


def finite_inputs(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The inputs, broadcast, with 0 wherever any of them is NaN, infinite or beyond 1e9.

    Returns (finite, *inputs); `finite` is a bool tensor, True where every input was usable.
    """
    inputs = torch.broadcast_tensors(*(at_least_float32(tensor) for tensor in tensors))
    finite = torch.stack([tensor.abs() < LARGEST_INPUT for tensor in inputs]).all(0)
    return (finite, *(torch.where(finite, tensor, 0.0) for tensor in inputs))


def log_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """log(pi / pi_old), (N, T), clamped to [-20, 20] so that its exponential stays finite."""
    return (log_probs - old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _pessimistic(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """-min(ratio * A, clip(ratio) * A), and where the clip is what the minimum chose."""
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return -torch.minimum(unclipped, clipped), clipped < unclipped


# --- policy losses --------------------------------------------------------------------------


def clipped_surrogate(
    log_probs: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, T) or (N, 1)
    clip_low: float,
    clip_high: float,
    *,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:  # (N, T), (N, T) bool
    """PPO's pessimistic objective, negated and not yet averaged (Schulman et al. 2017, Eq. 7).

    loss = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A), ratio = pi / pi_old;
    the same min for either sign of A (arXiv:1707.06347). The gradient is 0 where the second
    value, `clipped`, is True, and -ratio * A * grad(log_probs) elsewhere.
    clip_high > clip_low is DAPO's clip-higher (arXiv:2503.14476, section 3.1). `dual_clip` c
    bounds the loss of a negative advantage by -c * A (Ye et al. 2020, arXiv:1912.09729): no
    gradient beyond ratio c either, though `clipped` does not count those tokens.
    """
    check_same_shape("log_probs and old_log_probs", log_probs, old_log_probs)
    _check_advantages(log_probs, advantages)
    if dual_clip is not None and dual_clip <= 1 + clip_high:
        raise ValueError(f"dual_clip must exceed 1 + clip_high = {1 + clip_high}: got {dual_clip}")
    finite, log_probs, old, advantages = finite_inputs(
        log_probs, old_log_probs.detach(), advantages.detach()
    )
    ratio = log_ratio(log_probs, old).exp()
    loss, clipped = _pessimistic(ratio, advantages, clip_low, clip_high)
    if dual_clip is not None:
        bounded = torch.minimum(loss, -dual_clip * advantages)
        loss = torch.where(advantages < 0, bounded, loss)
    return torch.where(finite, loss, torch.nan), clipped


def policy_gradient(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """-A * log pi, (N, T): REINFORCE (Williams 1992), valid for one update per rollout.

    Args: log_probs (N, T), advantages (N, T) or (N, 1). RLOO as its paper states it (Ahmadian et
    al. 2024, arXiv:2402.14740, section 2.3) is `sequence_sum` of this with leave-one-out A.
    """
    _check_advantages(log_probs, advantages)
    finite, log_probs, advantages = finite_inputs(log_probs, advantages.detach())
    return torch.where(finite, -advantages * log_probs, torch.nan)


def cispo(
    log_probs: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, T) or (N, 1)
    clip_high: float,
) -> tuple[Tensor, Tensor]:  # (N, T), (N, T) bool
    """CISPO (MiniMax-M1, arXiv:2506.13585, Eqs. 4-5): clip the weight, keep every gradient.

    loss = -stop_gradient(min(ratio, 1 + clip_high)) * A * log pi: a REINFORCE loss whose
    importance weight is truncated, so a token over the clip still teaches. Averaged by
    `token_mean`. The second value is True where the weight was truncated.
    """
    check_same_shape("log_probs and old_log_probs", log_probs, old_log_probs)
    _check_advantages(log_probs, advantages)
    finite, log_probs, old, advantages = finite_inputs(
        log_probs, old_log_probs.detach(), advantages.detach()
    )
    ratio = log_ratio(log_probs, old).exp().detach()
    loss = -ratio.clamp(max=1 + clip_high) * advantages * log_probs
    return torch.where(finite, loss, torch.nan), ratio > 1 + clip_high


def sapo(
    log_probs: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, T) or (N, 1)
    *,
    temperature_positive: float = 1.0,
    temperature_negative: float = 1.05,
) -> Tensor:  # (N, T)
    """SAPO (arXiv:2511.20347): a sigmoid gate in the place of the hard clip.

    loss = -f(ratio) * A, f = 4 / tau * sigmoid(tau * (ratio - 1)); f'(1) = 1, and f' decays
    smoothly on both sides. tau is `temperature_positive` where A > 0, else
    `temperature_negative`. Averaged by `sequence_mean`.
    """
    check_same_shape("log_probs and old_log_probs", log_probs, old_log_probs)
    _check_advantages(log_probs, advantages)
    finite, log_probs, old, advantages = finite_inputs(
        log_probs, old_log_probs.detach(), advantages.detach()
    )
    tau = torch.full_like(advantages, temperature_negative)
    tau = tau.masked_fill(advantages > 0, temperature_positive)
    gate = 4 / tau * torch.sigmoid(tau * (log_ratio(log_probs, old).exp() - 1))
    return torch.where(finite, -gate * advantages, torch.nan)


# --- policy losses whose ratio belongs to the whole response ---------------------------------
# They need the mask, and give every token of a response the response's loss: (N, T) like the
# others, to be averaged by `sequence_mean` only (a token mean would weigh a row by its length).


def _sequence_inputs(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log_probs, log_probs - old_log_probs and advantages, all (N, T) and 0 where masked."""
    check_same_shape("log_probs and old_log_probs", log_probs, old_log_probs)
    check_mask(log_probs, mask)
    _check_advantages(log_probs, advantages)
    log_probs, old, advantages = (
        torch.where(mask, at_least_float32(x), 0.0)
        for x in (log_probs, old_log_probs.detach(), advantages.detach())
    )
    return log_probs, log_probs - old, advantages


def _one_advantage_per_row(advantages: Tensor) -> None:
    if advantages.ndim != 2 or advantages.shape[1] != 1:
        raise ValueError(
            "advantages must be (N, 1), one per response, because the ratio is: "
            f"got {tuple(advantages.shape)}"
        )


def sequence_clipped_surrogate(
    log_probs: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, 1)
    mask: Tensor,  # (N, T) bool
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, Tensor]:  # (N, T), (N, T) bool
    """The clipped surrogate with the whole response as one action, as RLOO is often trained.

    loss_i = -min(s_i * A_i, clip(s_i) * A_i), s_i = pi(y_i|x) / pi_old(y_i|x), the *product* of
    the token ratios (arXiv:1707.06347, Eq. 7, with the actions of arXiv:2402.14740, section 2.3).
    At pi = pi_old its gradient is RLOO's. 100 tokens drifting by 0.02 nats each make s = 7.4:
    the clip saturates after few updates.
    """
    _one_advantage_per_row(advantages)
    _, change, advantages = _sequence_inputs(log_probs, old_log_probs, advantages, mask)
    ratio = change.sum(1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return _pessimistic(ratio, advantages, clip_low, clip_high)


def gspo(
    log_probs: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, 1)
    mask: Tensor,  # (N, T) bool
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, Tensor]:  # (N, T), (N, T) bool
    """GSPO (Zheng et al. 2025, arXiv:2507.18071, Eqs. 5 and 7): a length-normalised ratio.

    s_i = exp(1/L_i sum_t (log pi - log pi_old)) = (pi(y_i|x) / pi_old(y_i|x))^(1/L_i)
    loss_i = -min(s_i * A_i, clip(s_i) * A_i)

    The paper's clip range is 3e-4 and 4e-4: s_i is a geometric mean and hardly moves.
    """
    _one_advantage_per_row(advantages)
    _, change, advantages = _sequence_inputs(log_probs, old_log_probs, advantages, mask)
    mean_change = row_means(change, mask).unsqueeze(1)  # (N, 1)
    ratio = mean_change.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return _pessimistic(ratio, advantages, clip_low, clip_high)


def gspo_token(
    log_probs: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, T) or (N, 1)
    mask: Tensor,  # (N, T) bool
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, Tensor]:  # (N, T), (N, T) bool
    """GSPO-token (arXiv:2507.18071, Eqs. 13-14): GSPO's ratio, an advantage for each token.

    s_it = stop_gradient(s_i) * pi(y_t) / stop_gradient(pi(y_t)), clipped like GSPO. With equal
    advantages along a row, its value, clipping and gradient are those of `gspo`.
    """
    log_probs, change, advantages = _sequence_inputs(log_probs, old_log_probs, advantages, mask)
    mean_change = row_means(change, mask).unsqueeze(1).detach()  # (N, 1)
    ratio = mean_change.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return _pessimistic(
        ratio * (log_probs - log_probs.detach()).exp(), advantages, clip_low, clip_high
    )


# --- which tokens a policy loss reads -----------------------------------------------------------


@torch.no_grad()
def off_policy_sequence_mask(
    log_probs: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, 1)
    mask: Tensor,  # (N, T) bool
    threshold: float,
) -> Tensor:  # (N, 1) bool
    """The responses that keep their policy loss (DeepSeek-V3.2, arXiv:2512.02556, Eq. 9).

    False where A_i < 0 and 1/L_i sum_t (log pi_old - log pi) > threshold: a bad response that the
    policy has left behind needs no further push. Good ones always stay, and so does any KL term.
    """
    _one_advantage_per_row(advantages)
    _, change, advantages = _sequence_inputs(log_probs, old_log_probs, advantages, mask)
    left_behind = row_means(-change, mask).unsqueeze(1) > threshold
    return ~(left_behind & (advantages < 0).any(1, keepdim=True))


@torch.no_grad()
def high_entropy_mask(entropy: Tensor, mask: Tensor, share: float) -> Tensor:  # (N, T) bool
    """The `share` of the valid tokens with the highest entropy (arXiv:2506.01939).

    Args: entropy (N, T) of the policy in training, mask (N, T) bool. Of n valid tokens the
    ceil(share * n) highest, and all that tie with the last of them, are True. Call it on the whole
    minibatch: the threshold is one number for all of its tokens.
    """
    check_mask(entropy, mask)
    if not 0 < share <= 1:
        raise ValueError(f"share, of the tokens to keep, must be above 0 and at most 1: {share}")
    valid = at_least_float32(entropy)[mask]
    if len(valid) == 0:
        return mask
    count = math.ceil(share * len(valid) - 1e-9)  # 0.1 * 30 is a little above 3
    return mask & (entropy >= valid.topk(max(count, 1)).values[-1])


# --- value loss ------------------------------------------------------------------------------


def value_loss(
    values: Tensor,  # (N, T)
    old_values: Tensor,  # (N, T)
    returns: Tensor,  # (N, T)
    clip_range: float | None = None,
) -> Tensor:  # (N, T)
    """Half the squared error of the critic, optionally clipped around the rollout's values.

    loss = 1/2 (V - Ret)^2, the L^VF of arXiv:1707.06347, Eq. 9, with the customary half; with
    `clip_range`: 1/2 max((V - Ret)^2, (V_old + clip(V - V_old, -range, range) - Ret)^2), the
    pessimistic form of the OpenAI baselines code.
    """
    check_same_shape("values, old_values and returns", values, old_values, returns)
    finite, values, old, returns = finite_inputs(values, old_values.detach(), returns.detach())
    squared = (values - returns).square()
    if clip_range is not None:
        near_old = old + (values - old).clamp(-clip_range, clip_range)
        squared = torch.maximum(squared, (near_old - returns).square())
    return torch.where(finite, squared / 2, torch.nan)


# --- preference losses: log-probabilities of whole responses, (pairs,) -------------------------


def _preference_gap(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    beta: float,
) -> Tensor:
    """h = log(pi / pi_ref)(chosen) - log(pi / pi_ref)(rejected), (pairs,)."""
    if not beta > 0:
        raise ValueError(f"beta must be positive: got {beta}")
    inputs = (policy_chosen, policy_rejected, ref_chosen.detach(), ref_rejected.detach())
    shapes = [tuple(x.shape) for x in inputs]
    if len(set(shapes)) > 1 or len(shapes[0]) != 1:
        raise ValueError(f"the four log-probabilities must all be (pairs,): got {shapes}")
    chosen, rejected, ref_chosen, ref_rejected = (at_least_float32(x) for x in inputs)
    return (chosen - ref_chosen) - (rejected - ref_rejected)


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    beta: float,
    *,
    label_smoothing: float = 0.0,
) -> Tensor:  # (pairs,)
    """DPO (Rafailov et al. 2023, arXiv:2305.18290, Eq. 7), one loss per pair.

    loss = -(1 - s) log sigmoid(beta * h) - s log sigmoid(-beta * h)
    h    = log(pi / pi_ref)(y_w|x) - log(pi / pi_ref)(y_l|x)

    Every argument is (pairs,), the *sum* of the log-probabilities of a response's tokens
    (`row_sums`). s = `label_smoothing` is the chance that a label is wrong (conservative DPO).
    """
    h = _preference_gap(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta)
    right, wrong = F.logsigmoid(beta * h), F.logsigmoid(-beta * h)
    return -(1 - label_smoothing) * right - label_smoothing * wrong


def ipo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    beta: float,
) -> Tensor:  # (pairs,)
    """IPO (Azar et al. 2023, arXiv:2310.12036, Eq. 17): (h - 1 / (2 beta))^2, h as in `dpo_loss`.

    The gap is regressed on a finite target, so even labels that never disagree do not push it
    to infinity.
    """
    h = _preference_gap(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta)
    return (h - 1 / (2 * beta)).square()


# --- MiniLLM ----------------------------------------------------------------------------------


@torch.no_grad()
def length_normalized_returns(token_rewards: Tensor, mask: Tensor) -> Tensor:
    """MiniLLM's R_norm[t + 1]: the mean reward of the tokens *after* t, (N, T); 0 at the last.

    With r = log p_teacher - log q_student this is the advantage of the long part of the gradient
    (Gu et al. 2024, arXiv:2306.08543, Eqs. 3 and 6); the reward of token t itself is in the
    single-step KL. We divide by the number of terms: the factor printed in Eq. 6 is one less, and
    0 at the second to last token.
    """
    check_mask(token_rewards, mask)
    rewards = torch.where(mask, at_least_float32(token_rewards), 0.0)
    after = rewards.flip(1).cumsum(1).flip(1) - rewards
    count = mask.long().flip(1).cumsum(1).flip(1) - 1  # tokens after t
    return torch.where(mask & (count > 0), after / count.clamp(min=1), 0.0)


@torch.no_grad()
def mixed_sampling_weights(
    old_log_probs: Tensor,  # (N, T)
    teacher_log_probs: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
    alpha: float,
) -> Tensor:  # (N, T)
    """w = q / (alpha * p + (1 - alpha) * q), MiniLLM's weight of a teacher-mixed sample.

    q is the student at rollout, p the teacher (arXiv:2306.08543, Eq. 4 and section 3.1): each
    token keeps only its own factor of the sequence's importance weight. w <= 1 / (1 - alpha);
    0 at masked positions.
    """
    check_same_shape("old_log_probs and teacher_log_probs", old_log_probs, teacher_log_probs)
    check_mask(old_log_probs, mask)
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha, the teacher's share of the sampling, must be in [0, 1): {alpha}")
    teacher_over_student = (
        at_least_float32(teacher_log_probs) - at_least_float32(old_log_probs)
    ).exp()
    return torch.where(mask, 1 / (alpha * teacher_over_student + (1 - alpha)), 0.0)


# --- reducers -------------------------------------------------------------------------------


def row_sums(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of every row of `x` (N, T) over its True positions, (N,); 0 for an empty row."""
    check_mask(x, mask)
    return torch.where(mask, at_least_float32(x), 0.0).sum(1)


def row_means(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of every row of `x` (N, T) over its True positions, (N,); 0 for an empty row."""
    return row_sums(x, mask) / mask.sum(1).clamp(min=1)


def _divide(total: Tensor, denominator: float | Tensor) -> Tensor:
    """total / denominator; 0 / 0 is 0, because a batch without a token has no loss."""
    denominator = torch.as_tensor(denominator, dtype=total.dtype, device=total.device)
    return total / denominator.clamp(min=1)


def token_mean(loss: Tensor, mask: Tensor, denominator: float | Tensor | None = None) -> Tensor:
    """sum(loss * m) / sum(m): every token of the batch weighs the same (DAPO, Eq. 12).

    Args: loss (N, T), mask (N, T) bool. `denominator` is the token count of the whole optimizer
    batch when `loss` is one micro-batch of it: the micro-batches then add up to the batch exactly,
    which their own means do not. Returns a scalar. (Yu et al. 2025, arXiv:2503.14476.)
    """
    return _divide(row_sums(loss, mask).sum(), mask.sum() if denominator is None else denominator)


def sequence_mean(loss: Tensor, mask: Tensor, denominator: float | Tensor | None = None) -> Tensor:
    """1/N sum_i 1/L_i sum_t loss * m: every response weighs the same (GRPO, Eq. 3).

    Args: loss (N, T), mask (N, T) bool. `denominator` is the number of non-empty responses of the
    whole optimizer batch (default: of `mask`); empty rows are not counted. Returns a scalar.
    (Shao et al. 2024, arXiv:2402.03300.)
    """
    total = row_means(loss, mask).sum()
    return _divide(total, mask.any(1).sum() if denominator is None else denominator)


def sequence_sum(loss: Tensor, mask: Tensor, denominator: float | Tensor | None = None) -> Tensor:
    """1/N sum_i sum_t loss * m: log pi(y|x) is the sum over its tokens (RLOO, DPO).

    Args: loss (N, T), mask (N, T) bool. `denominator` is the number of non-empty responses of the
    whole optimizer batch (default: of `mask`). Returns a scalar.
    (Ahmadian et al. 2024, arXiv:2402.14740, section 2.3: the whole response is one action.)
    """
    total = row_sums(loss, mask).sum()
    return _divide(total, mask.any(1).sum() if denominator is None else denominator)


def constant_length_mean(
    loss: Tensor, mask: Tensor, length: int, denominator: float | Tensor | None = None
) -> Tensor:
    """sum(loss * m) / (N * length), `length` the generation budget (Dr. GRPO's constant).

    Args: loss (N, T), mask (N, T) bool. `denominator` is the number of rows of the whole optimizer
    batch (default: of `loss`); empty rows are counted here. Returns a scalar.
    (Liu et al. 2025, arXiv:2503.20783: the constant divisor of the released code.)
    """
    if length < 1:
        raise ValueError(f"length, the generation budget, must be at least 1: got {length}")
    rows = len(loss) if denominator is None else denominator
    return _divide(row_sums(loss, mask).sum(), rows) / length
