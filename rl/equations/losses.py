"""Policy and value losses as the papers print them, and the reducers that average them.

A token loss comes back unreduced, (N, T): N responses, T padded response length. A reducer then
turns it into the scalar to minimise. The decorators (harness/equation_checks.py) check the
shapes of the signature, let only what is `Trained` carry a gradient, and keep what is not finite or
not valid out of the arithmetic. What stands in a body is the formula.
"""

import torch
from torch import Tensor

from harness.equation_checks import (
    Mask,
    N,
    Nx1,
    NxT,
    Scalar,
    Trained,
    constant_equation,
    in_range,
    masked_equation,
    row_equation,
)
from harness.equation_checks import token_equation as token_loss

MAX_LOG_RATIO = 20.0  # exp(20) is finite in float32 and far outside any clip range


# --- ratios -----------------------------------------------------------------------------------


@token_loss
def likelihood_ratio(log_probs: Trained[NxT], old_log_probs: NxT) -> NxT:
    """pi / pi_old per token, (N, T) (arXiv:1707.06347, section 3).

    The difference is held within +-20, so that its exponential stays finite.
    """
    return (log_probs - old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@masked_equation
def sequence_ratio(log_probs: Trained[NxT], old_log_probs: NxT, mask: Mask[NxT]) -> Nx1:
    """pi(y|x) / pi_old(y|x), the *product* of a response's token ratios, (N, T) -> (N, 1).

    100 tokens that drift by 0.02 nats each make it 7.4.
    """
    log_ratio = (log_probs - old_log_probs).sum(1, keepdim=True)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@masked_equation
def mean_ratio(log_probs: Trained[NxT], old_log_probs: NxT, mask: Mask[NxT]) -> Nx1:
    """(pi(y|x) / pi_old(y|x))^(1/L), (N, T) -> (N, 1) (GSPO, arXiv:2507.18071, Eq. 7).

    The geometric mean of the token ratios: exp(1/L sum_t (log pi - log pi_old)).
    """
    log_ratio = row_means(log_probs - old_log_probs, mask).unsqueeze(1)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


# --- policy losses ----------------------------------------------------------------------------


@token_loss
def policy_gradient(
    log_probs: Trained[NxT],
    advantages: NxT | Nx1,
) -> NxT:
    """-A log pi per token: REINFORCE (Williams 1992), valid for one update per rollout."""
    return -advantages * log_probs


@token_loss
def clipped_surrogate(
    log_probs: Trained[NxT],
    old_log_probs: NxT,
    advantages: NxT | Nx1,
    clip_low: float,
    clip_high: float,
) -> NxT:
    """-min(ratio A, clip(ratio) A) per token (Schulman et al. 2017, arXiv:1707.06347, Eq. 7).

    No gradient where the clip acted (`clip_acted`). clip_high > clip_low is DAPO's clip-higher
    (arXiv:2503.14476, section 3.1).
    """
    ratio = likelihood_ratio(log_probs, old_log_probs)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


@row_equation
def clip_acted(
    ratio: NxT | Nx1,
    advantages: NxT | Nx1,
    clip_low: float,
    clip_high: float,
) -> Mask[NxT] | Mask[Nx1]:
    """Where the clipped term is the smaller one: what clipped objectives give no gradient to."""
    return ratio.clamp(1 - clip_low, 1 + clip_high) * advantages < ratio * advantages


@in_range(bound="(1, inf)")
@token_loss
def dual_clip(
    loss: Trained[NxT],  # of a clipped surrogate
    advantages: NxT | Nx1,
    bound: float,
) -> NxT:
    """min(loss, -c A) where A < 0 (Ye et al. 2020, arXiv:1912.09729, Eq. 5): no gradient beyond ratio c."""
    return torch.where(advantages < 0, torch.minimum(loss, -bound * advantages), loss)


@token_loss
def cispo(
    log_probs: Trained[NxT],
    old_log_probs: NxT,
    advantages: NxT | Nx1,
    clip_high: float,
) -> NxT:
    """-stop_gradient(min(ratio, 1 + clip_high)) A log pi (MiniMax-M1, arXiv:2506.13585, Eqs. 4-5).

    A REINFORCE loss whose importance weight is truncated, so a token over the bound still teaches.
    ScaleRL's bound of 5 (arXiv:2510.13786) is clip_high = 4. Averaged by `token_mean`.
    """
    weight = likelihood_ratio(log_probs, old_log_probs).clamp(max=1 + clip_high).detach()
    return -weight * advantages * log_probs


@token_loss
def sapo(
    log_probs: Trained[NxT],
    old_log_probs: NxT,
    advantages: NxT | Nx1,
    *,
    temperature_positive: float = 1.0,
    temperature_negative: float = 1.05,
) -> NxT:
    """-f(ratio) A with a soft gate f instead of the hard clip (SAPO, arXiv:2511.20347).

    f(ratio) = 4 / tau * sigmoid(tau * (ratio - 1)), with a tau for each sign of A. Averaged by
    `sequence_mean`.
    """
    ratio = likelihood_ratio(log_probs, old_log_probs)
    tau = torch.full_like(advantages, temperature_negative)
    tau = tau.masked_fill(advantages > 0, temperature_positive)
    gate = 4 / tau * torch.sigmoid(tau * (ratio - 1))
    return -gate * advantages


# --- policy losses whose ratio belongs to the whole response ---------------------------------
# They need the mask, and give every token of a response the response's loss: (N, T) like the
# others, to be averaged by `sequence_mean` only (a token mean would weigh a row by its length).


@masked_equation
def sequence_clipped_surrogate(
    log_probs: Trained[NxT],
    old_log_probs: NxT,
    advantages: Nx1,
    mask: Mask[NxT],
    clip_low: float,
    clip_high: float,
) -> NxT:
    """-min(s A, clip(s) A), s = pi(y|x) / pi_old(y|x): the whole response as one action.

    (arXiv:1707.06347, Eq. 7, with the actions of arXiv:2402.14740, section 2.3, as RLOO is often
    trained.) At pi = pi_old its gradient is RLOO's. The clip saturates after few updates.
    """
    ratio = sequence_ratio(log_probs, old_log_probs, mask)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


@masked_equation
def gspo(
    log_probs: Trained[NxT],
    old_log_probs: NxT,
    advantages: Nx1,
    mask: Mask[NxT],
    clip_low: float,
    clip_high: float,
) -> NxT:
    """-min(s A, clip(s) A), s = (pi(y|x) / pi_old(y|x))^(1/L) (GSPO, arXiv:2507.18071, Eq. 5).

    The paper's clip range is 3e-4 and 4e-4: a geometric mean hardly moves.
    """
    ratio = mean_ratio(log_probs, old_log_probs, mask)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


@masked_equation
def gmpo(
    log_probs: Trained[NxT],
    old_log_probs: NxT,
    advantages: Nx1,
    mask: Mask[NxT],
    clip_low: float,
    clip_high: float,
) -> NxT:
    """-(prod_t ratio_t)^(1/L) A, each ratio clipped before the product (GMPO, arXiv:2507.20673).

    In log: mean_t of sign(A) min(sign(A) d, sign(A) clip(d, -clip_low, clip_high)), d = log pi - log
    pi_old, one-sided by the sign of A as PPO's clip is. The paper's range is 0.4 on both sides.
    """
    log_ratio, sign = log_probs - old_log_probs, advantages.sign()
    clipped = log_ratio.clamp(-clip_low, clip_high)
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * clipped)
    mean = row_means(pessimistic, mask).unsqueeze(1).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return -mean.exp() * advantages


# --- which tokens a policy loss reads -----------------------------------------------------------


@torch.no_grad()
@masked_equation
def token_covariances(log_probs: NxT, advantages: NxT | Nx1, mask: Mask[NxT]) -> NxT:
    """(log pi - mean(log pi)) (A - mean(A)) per token, (N, T) (arXiv:2505.22617, section 4).

    Means over all valid tokens, so call it on the whole minibatch.
    """
    n = at_least_one(mask.sum())
    return (log_probs - log_probs.sum() / n) * (advantages - advantages.sum() / n)


@torch.no_grad()
@in_range(share="[0, 1]")
@masked_equation
def kl_cov_tokens(covariances: NxT, mask: Mask[NxT], share: float) -> Mask[NxT]:
    """The `share` of the valid tokens with the largest covariance (KL-Cov, arXiv:2505.22617).

    KL-Cov adds c |log pi - log pi_old| to their loss. Of n tokens floor(share n), and at least one;
    with share 0 none.
    """
    return _highest(covariances, mask, _count_of(mask, share))


@torch.no_grad()
@in_range(share="[0, 1]")
@masked_equation
def clip_cov_tokens(
    covariances: NxT, draws: NxT, mask: Mask[NxT], share: float, low: float, high: float
) -> Mask[NxT]:
    """A random `share` of the valid tokens, of low < covariance < high (Clip-Cov, arXiv:2505.22617).

    They get no gradient. Of n valid tokens floor(share n), at least one, or all inside the bounds
    where those are fewer; with share 0 none. `draws` are random numbers of the caller's, uniform: the
    tokens of the highest are taken.
    """
    inside = mask & (low < covariances) & (covariances < high)
    return _highest(draws, inside, _count_of(mask, share))


def _count_of(mask: Tensor, share: float) -> int:
    """floor(share n) of the n True positions, and at least one unless the share is 0."""
    return max(int(share * int(mask.sum()) + 1e-9), 1) if share else 0


def _highest(numbers: Tensor, among: Tensor, count: int) -> Tensor:
    """Bool, like `among`: the `count` of its True positions with the highest numbers, or all."""
    valid = numbers[among]
    chosen = torch.zeros_like(valid, dtype=torch.bool)
    chosen[valid.topk(min(count, len(valid))).indices] = True
    return torch.zeros_like(among).masked_scatter(among, chosen)


# --- value loss ------------------------------------------------------------------------------


@token_loss
def value_loss(
    values: Trained[NxT],
    old_values: NxT,
    returns: NxT,
    clip_range: float | None = None,
) -> NxT:
    """1/2 (V - Ret)^2, L^VF of arXiv:1707.06347, Eq. 9, with the customary half.

    With `clip_range` 1/2 max((V - Ret)^2, (V_old + clip(V - V_old) - Ret)^2), the pessimistic form
    of the OpenAI baselines code.
    """
    squared = (values - returns).square()
    if clip_range is not None:
        near_old = old_values + (values - old_values).clamp(-clip_range, clip_range)
        squared = torch.maximum(squared, (near_old - returns).square())
    return squared / 2


# --- MiniLLM ----------------------------------------------------------------------------------


@constant_equation
def length_normalized_returns(token_rewards: NxT, mask: Mask[NxT]) -> NxT:
    """MiniLLM's R_norm[t + 1]: the mean reward of the tokens *after* t, (N, T); 0 at the last.

    With r = log p_teacher - log q_student this is the advantage of the long part of the gradient
    (Gu et al. 2024, arXiv:2306.08543, Eqs. 3 and 6); the reward of token t itself is in the
    single-step KL. We divide by the number of terms: the factor printed in Eq. 6 is one less, and
    0 at the second to last token.
    """
    after = token_rewards.flip(1).cumsum(1).flip(1) - token_rewards
    count = mask.long().flip(1).cumsum(1).flip(1) - 1  # tokens after t
    return torch.where(count > 0, after / count.clamp(min=1), 0.0)


@in_range(alpha="[0, 1)")
@constant_equation
def mixed_sampling_weights(
    old_log_probs: NxT,
    teacher_log_probs: NxT,
    mask: Mask[NxT],
    alpha: float,
) -> NxT:
    """w = q / (alpha p + (1 - alpha) q), MiniLLM's weight of a teacher-mixed sample.

    q is the student at rollout, p the teacher (arXiv:2306.08543, Eq. 4 and section 3.1): each
    token keeps only its own factor of the sequence's importance weight. w <= 1 / (1 - alpha).
    """
    teacher_over_student = (teacher_log_probs - old_log_probs).exp()
    return 1 / (alpha * teacher_over_student + (1 - alpha))


# --- reducers -------------------------------------------------------------------------------
# Micro-batches pass the `denominator` of the whole optimizer batch, so that they add up to the
# batch exactly, which their own means do not.


@masked_equation
def row_sums(x: Trained[NxT], mask: Mask[NxT]) -> N:
    """Sum of every row of `x` (N, T) over its True positions, (N,); 0 for an empty row."""
    return x.sum(1)


@masked_equation
def row_means(x: Trained[NxT], mask: Mask[NxT]) -> N:
    """Mean of every row of `x` (N, T) over its True positions, (N,); 0 for an empty row."""
    return x.sum(1) / at_least_one(mask.sum(1))


@masked_equation
def token_mean(
    loss: Trained[NxT], mask: Mask[NxT], denominator: float | Scalar | None = None
) -> Scalar:
    """sum(loss m) / sum(m): every token of the batch weighs the same (DAPO, Eq. 12).

    Args: loss (N, T), mask (N, T) bool, denominator the batch's tokens (default: of `mask`).
    Returns a scalar. (Yu et al. 2025, arXiv:2503.14476.)
    """
    tokens = mask.sum() if denominator is None else denominator
    return row_sums(loss, mask).sum() / at_least_one(tokens)


@masked_equation
def sequence_mean(
    loss: Trained[NxT], mask: Mask[NxT], denominator: float | Scalar | None = None
) -> Scalar:
    """1/N sum_i 1/L_i sum_t loss m: every response weighs the same (GRPO, Eq. 3).

    Args: loss (N, T), mask (N, T) bool, denominator the batch's responses that are not empty
    (default: of `mask`). Returns a scalar. (Shao et al. 2024, arXiv:2402.03300.)
    """
    responses = mask.any(1).sum() if denominator is None else denominator
    return row_means(loss, mask).sum() / at_least_one(responses)


@masked_equation
def sequence_sum(
    loss: Trained[NxT], mask: Mask[NxT], denominator: float | Scalar | None = None
) -> Scalar:
    """1/N sum_i sum_t loss m: log pi(y|x) is the sum over its tokens (RLOO, DPO).

    Args: loss (N, T), mask (N, T) bool, denominator the batch's responses that are not empty
    (default: of `mask`). Returns a scalar. (Ahmadian et al. 2024, arXiv:2402.14740, section 2.3:
    the whole response is one action.)
    """
    responses = mask.any(1).sum() if denominator is None else denominator
    return row_sums(loss, mask).sum() / at_least_one(responses)


@in_range(length="[1, inf)")
@masked_equation
def constant_length_mean(
    loss: Trained[NxT], mask: Mask[NxT], length: int, denominator: float | Scalar | None = None
) -> Scalar:
    """sum(loss m) / (N length), `length` the generation budget (Dr. GRPO's constant).

    Args: loss (N, T), mask (N, T) bool, denominator the batch's rows (default: of `loss`); empty
    rows are counted here. Returns a scalar. (Liu et al. 2025, arXiv:2503.20783: the constant
    divisor of the released code.)
    """
    rows = len(loss) if denominator is None else denominator
    return row_sums(loss, mask).sum() / at_least_one(rows) / length


def at_least_one(count: float | Tensor) -> float | Tensor:
    """A denominator that makes 0 / 0 a 0: a batch without a token has no loss."""
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)
