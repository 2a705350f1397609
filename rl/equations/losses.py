"""Policy and value losses as the papers print them, and the reducers that average them.

A token loss comes back unreduced, (N, T): N responses, T padded response length. A reducer then
turns it into the scalar to minimise. Around a formula stand `axes`, which refuses what would
broadcast by mistake, `where_finite` or the mask, and `.detach()` for all but the model in training
(harness/tensors.py).
"""

import torch
from torch import Tensor

from harness.tensors import at_least_float32, axes, masked_mean, masked_sum, where_finite

MAX_LOG_RATIO = 20.0  # exp(20) is finite in float32 and far outside any clip range


# --- ratios -----------------------------------------------------------------------------------


def likelihood_ratio(
    log_probs: Tensor,  # (N, T), of the policy in training
    old_log_probs: Tensor,  # (N, T)
) -> Tensor:  # (N, T)
    """pi / pi_old per token (arXiv:1707.06347, section 3).

    The difference is held within +-20, so that its exponential stays finite.
    """
    axes("N T", log_probs=log_probs, old_log_probs=old_log_probs)
    log_ratio = where_finite(log_probs, old_log_probs) - old_log_probs.detach()
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_ratio(
    log_probs: Tensor,  # (N, T), of the policy in training
    old_log_probs: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
) -> Tensor:  # (N, 1)
    """pi(y|x) / pi_old(y|x), the *product* of a response's token ratios.

    100 tokens that drift by 0.02 nats each make it 7.4.
    """
    axes("N T", log_probs=log_probs, old_log_probs=old_log_probs, mask=mask)
    log_ratio = masked_sum(at_least_float32(log_probs) - old_log_probs.detach(), mask)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()[:, None]


def mean_ratio(
    log_probs: Tensor,  # (N, T), of the policy in training
    old_log_probs: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
) -> Tensor:  # (N, 1)
    """(pi(y|x) / pi_old(y|x))^(1/L) (GSPO, arXiv:2507.18071, Eq. 7).

    The geometric mean of the token ratios: exp(1/L sum_t (log pi - log pi_old)).
    """
    axes("N T", log_probs=log_probs, old_log_probs=old_log_probs, mask=mask)
    log_ratio = masked_mean(at_least_float32(log_probs) - old_log_probs.detach(), mask)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()[:, None]


# --- policy losses ----------------------------------------------------------------------------


def policy_gradient(
    log_probs: Tensor,  # (N, T), of the policy in training
    advantages: Tensor,  # (N, T) or (N, 1)
) -> Tensor:  # (N, T), for a reducer with the mask
    """-A log pi per token: REINFORCE (Williams 1992), valid for one update per rollout."""
    axes("N T", log_probs=log_probs, advantages=("N T | N 1", advantages))
    return -advantages.detach() * where_finite(log_probs, advantages)


def clipped_surrogate(
    log_probs: Tensor,  # (N, T), of the policy in training
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, T) or (N, 1)
    clip_low: float,
    clip_high: float,
) -> Tensor:  # (N, T), for a reducer with the mask
    """-min(ratio A, clip(ratio) A) per token (Schulman et al. 2017, arXiv:1707.06347, Eq. 7).

    No gradient where the clip acted (`clip_acted`). clip_high > clip_low is DAPO's clip-higher
    (arXiv:2503.14476, section 3.1).
    """
    axes(
        "N T", log_probs=log_probs, old_log_probs=old_log_probs,
        advantages=("N T | N 1", advantages),
    )  # fmt: skip
    log_probs = where_finite(log_probs, old_log_probs, advantages)
    ratio, A = likelihood_ratio(log_probs, old_log_probs), advantages.detach()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * A, clipped * A)


def clip_acted(
    ratio: Tensor,  # (N, T) or (N, 1)
    advantages: Tensor,  # (N, T) or (N, 1)
    clip_low: float,
    clip_high: float,
) -> Tensor:  # bool
    """Where the clipped term is the smaller one: what clipped objectives give no gradient to."""
    axes("N T", ratio=("N T | N 1", ratio), advantages=("N T | N 1", advantages))
    return ratio.clamp(1 - clip_low, 1 + clip_high) * advantages < ratio * advantages


def grpo_objective(
    log_probs: Tensor,  # (N, T), of the policy in training
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, T) or (N, 1)
    mask: Tensor,  # (N, T) bool
    kl: Tensor | None,  # (N, T), of each token to the reference; None: no penalty
    *,
    clip_range: float,
    kl_coef: float,
    responses: int | None = None,
) -> Tensor:  # a scalar
    """GRPO's objective, negated to be minimised (Shao et al. 2024, arXiv:2402.03300, Eq. 3).

    -1/G sum_i 1/|o_i| sum_t { min[ratio A, clip(ratio, 1 - eps, 1 + eps) A] - beta KL }

    ratio = pi / pi_old. The paper's KL is k3(log_probs, ref_log_probs) (Eq. 4). 1/G becomes 1 /
    `responses`, all of the minibatch (default: those of `mask`), so that micro-batches add up.
    """
    axes("N T", log_probs=log_probs, kl=kl)
    loss = clipped_surrogate(log_probs, old_log_probs, advantages, clip_range, clip_range)
    if kl_coef and kl is not None:
        loss = loss + kl_coef * at_least_float32(kl)
    return sequence_mean(loss, mask, denominator=responses)


def dual_clip(
    loss: Tensor,  # (N, T), of a clipped surrogate
    advantages: Tensor,  # (N, T) or (N, 1)
    bound: float,
) -> Tensor:  # (N, T), for a reducer with the mask
    """min(loss, -c A) where A < 0 (Ye et al. 2020, arXiv:1912.09729, Eq. 5): no gradient beyond ratio c."""
    axes("N T", loss=loss, advantages=("N T | N 1", advantages))
    if not bound > 1:
        raise ValueError(f"bound must be above 1, the ratio of a first update: got {bound}")
    loss, A = where_finite(loss, advantages), at_least_float32(advantages).detach()
    return torch.where(A < 0, torch.minimum(loss, -bound * A), loss)


def cispo(
    log_probs: Tensor,  # (N, T), of the policy in training
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, T) or (N, 1)
    clip_high: float,
) -> Tensor:  # (N, T), for a reducer with the mask
    """-stop_gradient(min(ratio, 1 + clip_high)) A log pi (MiniMax-M1, arXiv:2506.13585, Eqs. 4-5).

    A REINFORCE loss whose importance weight is truncated, so a token over the bound still teaches.
    ScaleRL's bound of 5 (arXiv:2510.13786) is clip_high = 4. Averaged by `token_mean`.
    """
    axes(
        "N T", log_probs=log_probs, old_log_probs=old_log_probs,
        advantages=("N T | N 1", advantages),
    )  # fmt: skip
    log_probs = where_finite(log_probs, old_log_probs, advantages)
    weight = likelihood_ratio(log_probs, old_log_probs).clamp(max=1 + clip_high).detach()
    return -weight * advantages.detach() * log_probs


def sapo(
    log_probs: Tensor,  # (N, T), of the policy in training
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, T) or (N, 1)
    *,
    temperature_positive: float = 1.0,
    temperature_negative: float = 1.05,
) -> Tensor:  # (N, T), for a reducer with the mask
    """-f(ratio) A with a soft gate f instead of the hard clip (SAPO, arXiv:2511.20347).

    f(ratio) = 4 / tau * sigmoid(tau * (ratio - 1)), with a tau for each sign of A. Averaged by
    `sequence_mean`.
    """
    axes(
        "N T", log_probs=log_probs, old_log_probs=old_log_probs,
        advantages=("N T | N 1", advantages),
    )  # fmt: skip
    log_probs = where_finite(log_probs, old_log_probs, advantages)
    ratio, A = likelihood_ratio(log_probs, old_log_probs), at_least_float32(advantages).detach()
    tau = torch.full_like(A, temperature_negative).masked_fill(A > 0, temperature_positive)
    gate = 4 / tau * torch.sigmoid(tau * (ratio - 1))
    return -gate * A


# --- policy losses whose ratio belongs to the whole response ---------------------------------
# They need the mask, and give every token of a response the response's loss: (N, T) like the
# others, to be averaged by `sequence_mean` only (a token mean would weigh a row by its length).


def sequence_clipped_surrogate(
    log_probs: Tensor,  # (N, T), of the policy in training
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, 1)
    mask: Tensor,  # (N, T) bool
    clip_low: float,
    clip_high: float,
) -> Tensor:  # (N, T)
    """-min(s A, clip(s) A), s = pi(y|x) / pi_old(y|x): the whole response as one action.

    (arXiv:1707.06347, Eq. 7, with the actions of arXiv:2402.14740, section 2.3, as RLOO is often
    trained.) At pi = pi_old its gradient is RLOO's. The clip saturates after few updates.
    """
    axes(
        "N T", log_probs=log_probs, old_log_probs=old_log_probs, advantages=("N 1", advantages),
        mask=mask,
    )  # fmt: skip
    ratio, A = sequence_ratio(log_probs, old_log_probs, mask), advantages.detach()  # (N, 1)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.where(mask, -torch.minimum(ratio * A, clipped * A), 0.0)


def gspo(
    log_probs: Tensor,  # (N, T), of the policy in training
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, 1)
    mask: Tensor,  # (N, T) bool
    clip_low: float,
    clip_high: float,
) -> Tensor:  # (N, T)
    """-min(s A, clip(s) A), s = (pi(y|x) / pi_old(y|x))^(1/L) (GSPO, arXiv:2507.18071, Eq. 5).

    The paper's clip range is 3e-4 and 4e-4: a geometric mean hardly moves.
    """
    axes(
        "N T", log_probs=log_probs, old_log_probs=old_log_probs, advantages=("N 1", advantages),
        mask=mask,
    )  # fmt: skip
    ratio, A = mean_ratio(log_probs, old_log_probs, mask), advantages.detach()  # (N, 1)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.where(mask, -torch.minimum(ratio * A, clipped * A), 0.0)


def gmpo(
    log_probs: Tensor,  # (N, T), of the policy in training
    old_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, 1)
    mask: Tensor,  # (N, T) bool
    clip_low: float,
    clip_high: float,
) -> Tensor:  # (N, T)
    """-(prod_t ratio_t)^(1/L) A, each ratio clipped before the product (GMPO, arXiv:2507.20673).

    In log: mean_t of sign(A) min(sign(A) d, sign(A) clip(d, -clip_low, clip_high)), d = log pi - log
    pi_old, one-sided by the sign of A as PPO's clip is. The paper's range is 0.4 on both sides.
    """
    axes(
        "N T", log_probs=log_probs, old_log_probs=old_log_probs, advantages=("N 1", advantages),
        mask=mask,
    )  # fmt: skip
    log_ratio = at_least_float32(log_probs) - old_log_probs.detach()
    log_ratio = torch.where(mask, log_ratio, 0.0)  # before `sign`, which may be NaN in an empty row
    A, sign = advantages.detach(), advantages.detach().sign()
    clipped = log_ratio.clamp(-clip_low, clip_high)
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * clipped)
    mean = masked_mean(pessimistic, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.where(mask, -mean.exp()[:, None] * A, 0.0)


# --- which tokens a policy loss reads -----------------------------------------------------------


@torch.no_grad()
def token_covariances(
    log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, T) or (N, 1)
    mask: Tensor,  # (N, T) bool
) -> Tensor:  # (N, T)
    """(log pi - mean(log pi)) (A - mean(A)) per token (arXiv:2505.22617, section 4).

    Means over all valid tokens, so call it on the whole minibatch.
    """
    axes("N T", log_probs=log_probs, advantages=("N T | N 1", advantages), mask=mask)
    log_probs = torch.where(mask, at_least_float32(log_probs), 0.0)
    A = torch.where(mask, at_least_float32(advantages), 0.0)
    n = at_least_one(mask.sum())
    return (log_probs - log_probs.sum() / n) * (A - A.sum() / n)


@torch.no_grad()
def kl_cov_tokens(
    covariances: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
    share: float,
) -> Tensor:  # (N, T) bool
    """The `share` of the valid tokens with the largest covariance (KL-Cov, arXiv:2505.22617).

    KL-Cov adds c |log pi - log pi_old| to their loss. Of n tokens floor(share n), and at least one;
    with share 0 none.
    """
    axes("N T", covariances=covariances, mask=mask)
    return _highest(covariances, mask, _count_of(mask, share))


@torch.no_grad()
def clip_cov_tokens(
    covariances: Tensor,  # (N, T)
    draws: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
    share: float,
    low: float,
    high: float,
) -> Tensor:  # (N, T) bool
    """A random `share` of the valid tokens, of low < covariance < high (Clip-Cov, arXiv:2505.22617).

    They get no gradient. Of n valid tokens floor(share n), at least one, or all inside the bounds
    where those are fewer; with share 0 none. `draws` are random numbers of the caller's, uniform: the
    tokens of the highest are taken.
    """
    axes("N T", covariances=covariances, draws=draws, mask=mask)
    inside = mask & (low < covariances) & (covariances < high)
    return _highest(draws, inside, _count_of(mask, share))


def _count_of(mask: Tensor, share: float) -> int:
    """floor(share n) of the n True positions, and at least one unless the share is 0."""
    if not 0 <= share <= 1:
        raise ValueError(f"share must be a part of the tokens, from 0 to 1: got {share}")
    return max(int(share * int(mask.sum()) + 1e-9), 1) if share else 0


def _highest(numbers: Tensor, among: Tensor, count: int) -> Tensor:
    """Bool, like `among`: the `count` of its True positions with the highest numbers, or all."""
    valid = numbers[among]
    chosen = torch.zeros_like(valid, dtype=torch.bool)
    chosen[valid.topk(min(count, len(valid))).indices] = True
    return torch.zeros_like(among).masked_scatter(among, chosen)


# --- value loss ------------------------------------------------------------------------------


def value_loss(
    values: Tensor,  # (N, T), of the model in training
    old_values: Tensor,  # (N, T)
    returns: Tensor,  # (N, T)
    value_clip: float | None = None,
) -> Tensor:  # (N, T), for a reducer with the mask
    """1/2 (V - Ret)^2, L^VF of arXiv:1707.06347, Eq. 9, with the customary half.

    With `value_clip` 1/2 max((V - Ret)^2, (V_old + clip(V - V_old) - Ret)^2), the pessimistic form
    of the OpenAI baselines code.
    """
    axes("N T", values=values, old_values=old_values, returns=returns)
    values = where_finite(values, old_values, returns)
    old_values, returns = old_values.detach(), returns.detach()
    squared = (values - returns).square()
    if value_clip is not None:
        near_old = old_values + (values - old_values).clamp(-value_clip, value_clip)
        squared = torch.maximum(squared, (near_old - returns).square())
    return squared / 2


# --- MiniLLM ----------------------------------------------------------------------------------


@torch.no_grad()
def length_normalized_returns(
    token_rewards: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
) -> Tensor:  # (N, T)
    """MiniLLM's R_norm[t + 1]: the mean reward of the tokens *after* t; 0 at the last.

    With r = log p_teacher - log q_student this is the advantage of the long part of the gradient
    (Gu et al. 2024, arXiv:2306.08543, Eqs. 3 and 6); the reward of token t itself is in the
    single-step KL. We divide by the number of terms: the factor printed in Eq. 6 is one less, and
    0 at the second to last token.
    """
    axes("N T", token_rewards=token_rewards, mask=mask)
    rewards = torch.where(mask, at_least_float32(token_rewards), 0.0)
    after = rewards.flip(1).cumsum(1).flip(1) - rewards
    count = mask.long().flip(1).cumsum(1).flip(1) - 1  # tokens after t
    return torch.where(mask & (count > 0), after / count.clamp(min=1), 0.0)


@torch.no_grad()
def mixed_sampling_weights(
    old_log_probs: Tensor,  # (N, T)
    teacher_log_probs: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
    alpha: float,  # from 0 to below 1
) -> Tensor:  # (N, T)
    """w = q / (alpha p + (1 - alpha) q), MiniLLM's weight of a teacher-mixed sample.

    q is the student at rollout, p the teacher (arXiv:2306.08543, Eq. 4 and section 3.1): each
    token keeps only its own factor of the sequence's importance weight. w <= 1 / (1 - alpha).
    """
    axes("N T", old_log_probs=old_log_probs, teacher_log_probs=teacher_log_probs, mask=mask)
    log_ratio = at_least_float32(teacher_log_probs) - old_log_probs
    teacher_over_student = log_ratio.clamp(max=80).exp()  # exp(89) is inf in float32, 0 * inf NaN
    return torch.where(mask, 1 / (alpha * teacher_over_student + (1 - alpha)), 0.0)


# --- reducers -------------------------------------------------------------------------------
# Micro-batches pass the `denominator` of the whole optimizer batch, so that they add up to the
# batch exactly, which their own means do not.


def token_mean(
    loss: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
    denominator: float | Tensor | None = None,
) -> Tensor:  # a scalar
    """sum(loss m) / sum(m): every token of the batch weighs the same (DAPO, Eq. 12).

    `denominator` is the batch's tokens (default: of `mask`). (Yu et al. 2025, arXiv:2503.14476.)
    """
    axes("N T", loss=loss, mask=mask)
    tokens = mask.sum() if denominator is None else denominator
    return masked_sum(loss, mask).sum() / at_least_one(tokens)


def sequence_mean(
    loss: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
    denominator: float | Tensor | None = None,
) -> Tensor:  # a scalar
    """1/N sum_i 1/L_i sum_t loss m: every response weighs the same (GRPO, Eq. 3).

    `denominator` is the batch's responses that are not empty (default: of `mask`). (Shao et al.
    2024, arXiv:2402.03300.)
    """
    axes("N T", loss=loss, mask=mask)
    responses = mask.any(1).sum() if denominator is None else denominator
    return masked_mean(loss, mask).sum() / at_least_one(responses)


def sequence_sum(
    loss: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
    denominator: float | Tensor | None = None,
) -> Tensor:  # a scalar
    """1/N sum_i sum_t loss m: log pi(y|x) is the sum over its tokens (RLOO, DPO).

    `denominator` is the batch's responses that are not empty (default: of `mask`). (Ahmadian et al.
    2024, arXiv:2402.14740, section 2.3: the whole response is one action.)
    """
    axes("N T", loss=loss, mask=mask)
    responses = mask.any(1).sum() if denominator is None else denominator
    return masked_sum(loss, mask).sum() / at_least_one(responses)


def constant_length_mean(
    loss: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
    length: int,
    denominator: float | Tensor | None = None,
) -> Tensor:  # a scalar
    """sum(loss m) / (N length), `length` the generation budget (Dr. GRPO's constant).

    `denominator` is the batch's rows (default: of `loss`); empty rows are counted here. (Liu et al.
    2025, arXiv:2503.20783: the constant divisor of the released code.)
    """
    axes("N T", loss=loss, mask=mask)
    rows = len(loss) if denominator is None else denominator
    return masked_sum(loss, mask).sum() / at_least_one(rows) / length


def at_least_one(count: float | Tensor) -> float | Tensor:
    """A denominator that makes 0 / 0 a 0: a batch without a token has no loss."""
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)
