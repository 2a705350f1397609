"""Advantage estimators. All of them are constants to the policy: nothing here has a gradient.

Rows are grouped by prompt: rows b * G ... b * G + G - 1 are the G responses to prompt b.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from harness.tensors import at_least_float32, axes


@torch.no_grad()
def score_missing_eos(
    scores: Tensor,  # (N,)
    has_eos: Tensor,  # (N,) bool
    penalty: float,
) -> Tensor:  # (N,)
    """`penalty` off the score of a response that never ended, before any other reward arithmetic.

    (Ziegler et al. 2019, arXiv:1909.08593, give such a response a fixed score of -1 instead.)
    """
    axes("N", scores=scores, mask=has_eos)
    scores = at_least_float32(scores)
    return torch.where(has_eos, scores, scores - penalty)


# --- one advantage per token, from a critic or from the rewards to come --------------------------


@torch.no_grad()
def gae(
    token_rewards: Tensor,  # (N, T)
    values: Tensor,  # (N, T), V of the state before token t
    response_mask: Tensor,  # (N, T) bool
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:  # (N, T) each
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, Eq. 16).

    delta_t = r_t + gamma V_{t+1} - V_t
    A_t     = delta_t + gamma lambda A_{t+1},   returns_t = A_t + V_t

    Returns (advantages, returns). The recursion steps over masked positions, and the value after the
    last valid token is 0: there the response ends, also one that was cut off.
    """
    axes("N T", token_rewards=token_rewards, values=values, mask=response_mask)
    values = torch.where(response_mask, at_least_float32(values), 0.0)
    advantages, A = torch.zeros_like(values), torch.zeros_like(values[:, 0])
    V = A  # of the state to come
    for t in reversed(range(values.shape[1])):
        delta = token_rewards[:, t] + gamma * V - values[:, t]
        A = torch.where(response_mask[:, t], delta + gamma * gae_lambda * A, A)
        V = torch.where(response_mask[:, t], values[:, t], V)
        advantages[:, t] = A
    advantages = torch.where(response_mask, advantages, 0.0)
    return advantages, advantages + values


@torch.no_grad()
def discounted_returns(
    token_rewards: Tensor,  # (N, T)
    response_mask: Tensor,  # (N, T) bool
    gamma: float,
) -> Tensor:  # (N, T)
    """sum_{u >= t} gamma^(u - t) r_u over the valid tokens.

    With gamma = 1 the reward to go, REINFORCE++'s advantage before normalisation (Hu et al. 2025,
    arXiv:2501.03262, Eq. 4).
    """
    axes("N T", token_rewards=token_rewards, mask=response_mask)
    rewards = at_least_float32(token_rewards)
    returns, to_come = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        to_come = torch.where(response_mask[:, t], rewards[:, t] + gamma * to_come, to_come)
        returns[:, t] = to_come
    return torch.where(response_mask, returns, 0.0)


@torch.no_grad()
def whiten(
    x: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
    *,
    shift_mean: bool = True,
    unbiased: bool = True,
) -> Tensor:  # (N, T)
    """(x - mean) / sqrt(var + 1e-8) over all valid positions together.

    Call it on the whole rollout batch: per response it would erase the difference between
    responses. With x (N, 1), one advantage per response, the statistics run over responses.
    `shift_mean=False` adds the mean back (whitening of rewards); `unbiased` divides by n - 1.
    Equal values give exactly 0 (plus that mean). (Ziegler et al. 2019, arXiv:1909.08593, the
    released code; REINFORCE++, arXiv:2501.03262, Eq. 5.)
    """
    axes("N T", x=x, mask=mask)
    x = at_least_float32(x)
    mean = mean_within(x[mask])
    variance = (x[mask] - mean).square().sum() / max(int(mask.sum()) - int(unbiased), 1)
    whitened = (x - mean) / (variance + 1e-8).sqrt()
    return torch.where(mask, whitened if shift_mean else whitened + mean, 0.0)


def mean_within(values: Tensor) -> Tensor:
    """The mean of some values, which rounding cannot take outside their range; of none 0."""
    if len(values) == 0:
        return values.new_zeros(())
    return values.mean().clamp(values.min(), values.max())


# --- one advantage per response, from its group ---------------------------------------------------


@torch.no_grad()
def group_advantages(
    rewards: Tensor,  # (N,)
    group_size: int,
    *,
    scale: Literal["group", "batch", "none"] = "group",
    unbiased: bool = True,
    eps: float = 1e-4,
) -> Tensor:  # (N, 1)
    """GRPO's A_i = (R_i - mean(R)) / (std(R) + eps), one per response (arXiv:2402.03300, 4.1.2).

    Mean and std over the G responses to the same prompt (Shao et al. 2024). `scale="batch"` divides
    by the std of all N rewards instead, "none" by nothing (Dr. GRPO, arXiv:2503.20783). The paper
    does not say which std; `unbiased` is n - 1.
    """
    groups = _grouped(rewards, group_size)  # (prompts, G)
    advantages = groups - groups.mean(1, keepdim=True)
    if scale == "group":
        advantages = advantages / (groups.std(1, keepdim=True, correction=int(unbiased)) + eps)
    elif scale == "batch":
        advantages = advantages / (groups.std(correction=int(unbiased)) + eps)
    elif scale != "none":
        raise ValueError(f"scale must be group, batch or none: got {scale!r}")
    # Equal rewards get exactly 0: their rounded mean can be off by one ulp.
    return torch.where(_all_equal(groups), 0.0, advantages).view(-1, 1)


@torch.no_grad()
def weighted_sum(
    reward_columns: Tensor,  # (N, K), NaN where a reward does not judge the response
    reward_weights: Sequence[float],  # K
) -> Tensor:  # (N,)
    """R_i = sum_k w_k R_ik over the rewards that judge response i: several rewards as one.

    What an engine makes of R comes after: GRPO's sum, then normalised, is `group_advantages` of it.
    """
    axes("N K", reward_columns=reward_columns)
    if reward_columns.shape[1] != len(reward_weights):
        raise ValueError(f"{reward_columns.shape[1]} rewards, {len(reward_weights)} weights")
    columns = at_least_float32(reward_columns)
    return (columns.where(~columns.isnan(), 0.0) * columns.new_tensor(reward_weights)).sum(1)


@torch.no_grad()
def gdpo_advantages(
    reward_columns: Tensor,  # (N, K), NaN where a reward does not judge the response
    reward_weights: Sequence[float],  # K
    group_size: int,
    *,
    eps: float = 1e-4,
) -> Tensor:  # (N, 1)
    """GDPO's A = (S - mean(S)) / (std(S) + eps), S_i = sum_k w_k z_ik (arXiv:2601.05242, section 3.1).

    z_ik is `group_advantages` of reward k by itself, over the responses of the group that it judges; mean
    and std of S run over all N responses (Liu et al. 2026). So a reward counts by its weight, however
    much it varies, and one response that is better in two rewards stands out from one that is in one.
    """
    _grouped(weighted_sum(reward_columns, reward_weights), group_size)  # refuses what is none
    z_scores = [
        _step_z_scores(column, ~column.isnan(), group_size, True, eps)
        for column in reward_columns.detach().split(1, dim=1)  # (N, 1) each
    ]
    total = weighted_sum(torch.cat(z_scores, 1), reward_weights)
    return group_advantages(total, len(total), eps=eps)  # the batch as one group


@torch.no_grad()
def maxrl_advantages(
    rewards: Tensor,  # (N,), 1 for a right answer and 0 for a wrong one
    group_size: int,
) -> Tensor:  # (N, 1)
    """MaxRL's A_i = (R_i - mean(R)) / mean(R), 0 where no answer is right (arXiv:2602.02710).

    R is 0 or 1, and mean(R) the share of right answers to the prompt: a right answer to a hard prompt
    weighs more. In expectation the mean over a group of A grad(log pi) is sum_{k < G} 1/k
    grad(pass@k), the start of the series of grad(log pass@1); the policy gradient is its first
    term. A group of one has no baseline and takes A = R, that first term.
    """
    if not ((rewards == 0) | (rewards == 1)).all():
        raise ValueError(
            "rewards must be 0 or 1, right or wrong: use a rule that checks answers, without further "
            "parts or penalties"
        )
    groups = _grouped(rewards, group_size, smallest=1)  # (prompts, G)
    if group_size == 1:
        return groups
    mean = groups.mean(1, keepdim=True)
    return torch.where(mean > 0, (groups - mean) / mean, 0.0).view(-1, 1)


@torch.no_grad()
def leave_one_out_advantages(
    rewards: Tensor,  # (N,)
    group_size: int,
) -> Tensor:  # (N, 1)
    """RLOO's A_i = R_i - 1/(G-1) sum_{j != i} R_j: the mean of the *others* is the baseline.

    Written as G/(G-1) (R_i - mean(R)), which is the same number (Kool et al. 2019; Ahmadian et al.
    2024, arXiv:2402.14740, section 2.3).
    """
    groups = _grouped(rewards, group_size)  # (prompts, G)
    above_mean = groups - groups.mean(1, keepdim=True)
    advantages = above_mean * (group_size / (group_size - 1))
    # Equal rewards get exactly 0: their rounded mean can be off by one ulp.
    return torch.where(_all_equal(groups), 0.0, advantages).view(-1, 1)


def _grouped(rewards: Tensor, group_size: int, *, smallest: int = 2) -> Tensor:
    """`rewards` (N,) as (prompts, group_size); ValueError for what cannot be a group baseline."""
    axes("N", rewards=rewards)
    if group_size < smallest:
        raise ValueError(f"group_size must be at least {smallest}, the baseline: got {group_size}")
    if len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards do not divide into groups of {group_size}")
    if not rewards.isfinite().all():
        raise ValueError("rewards must be finite: one NaN would spread over its whole group")
    return at_least_float32(rewards.detach()).reshape(-1, group_size)


def _all_equal(groups: Tensor) -> Tensor:
    """Are all rewards of the group one number? Bool (prompts, 1).

    Over a standard deviation of about 0 an ulp would become an advantage of order one.
    """
    return groups.amax(1, keepdim=True) == groups.amin(1, keepdim=True)


@torch.no_grad()
def greedy_baseline_advantages(
    token_rewards: Tensor,  # (N, T)
    greedy_rewards: Tensor,  # (N,)
    response_mask: Tensor,  # (N, T) bool
) -> Tensor:  # (N, T)
    """ReMax's A_t = sum_{u >= t} r_u - R(g): what is to come less the reward of the greedy answer.

    g takes the likeliest token at every step, so that its reward is a constant of the prompt, and the
    expected policy gradient stays what it is (Li et al. 2024, arXiv:2310.10505, Algorithm 1).
    """
    axes(
        "N T", token_rewards=token_rewards, greedy_rewards=("N", greedy_rewards), mask=response_mask
    )
    to_come = discounted_returns(token_rewards, response_mask, 1.0)
    return torch.where(response_mask, to_come - greedy_rewards[:, None], 0.0)


@torch.no_grad()
def process_advantages(
    step_rewards: Tensor,  # (N, K), padded to the longest list of steps
    step_ends: Tensor,  # (N, K), index of the step's last token within the response
    step_mask: Tensor,  # (N, K) bool
    response_mask: Tensor,  # (N, T) bool
    group_size: int,
    *,
    unbiased: bool = True,
    eps: float = 1e-4,
) -> Tensor:  # (N, T)
    """GRPO with process supervision (Shao et al. 2024, arXiv:2402.03300, section 4.1.3).

    q_ij = (q_ij - mean(R)) / (std(R) + eps), R = all step rewards of all G responses to a prompt
    A_it = sum of the normalised q_ij over the steps j that end at t or later

    Tokens after the last step's end, and responses without a step, get 0. With one step per
    response, ending at its last token, this is `group_advantages`.
    """
    axes("N K", step_rewards=step_rewards, step_ends=step_ends, mask=step_mask)
    axes("N T", step_rewards=("N K", step_rewards), mask=response_mask)
    _grouped(torch.where(step_mask, step_rewards, 0.0).sum(1), group_size)  # refuses what is none
    scores = _step_z_scores(step_rewards, step_mask, group_size, unbiased, eps)  # (N, K)
    tokens = torch.arange(response_mask.shape[1], device=step_ends.device)
    still_to_end = step_mask[:, :, None] & (step_ends[:, :, None] >= tokens)  # (N, K, T)
    return torch.where(response_mask, (scores[:, :, None] * still_to_end).sum(1), 0.0)


def _step_z_scores(
    step_rewards: Tensor, step_mask: Tensor, group_size: int, unbiased: bool, eps: float
) -> Tensor:
    """`group_advantages` over all steps of all responses to a prompt, (N, K) -> (N, K)."""
    rewards = torch.where(step_mask, at_least_float32(step_rewards), 0.0)
    rewards = rewards.unflatten(0, (-1, group_size)).flatten(1)
    valid = step_mask.unflatten(0, (-1, group_size)).flatten(1)  # (prompts, G K)
    scores = torch.zeros_like(rewards)
    for prompt, steps in enumerate(valid):
        pool = rewards[prompt, steps]
        if len(pool) > 1:  # one step alone has nothing to be compared with
            z_scores = group_advantages(pool, len(pool), unbiased=unbiased, eps=eps)
            scores[prompt, steps] = z_scores[:, 0]
    return scores.view(step_rewards.shape)


# --- preference pairs, from the rewards of a group ------------------------------------------------


@torch.no_grad()
def best_worst_pairs(
    rewards: Tensor,  # (N,)
    group_size: int,
    margin: float = 0.0,
) -> Tensor:  # (K, 2), row numbers
    """The best and the worst response of every group, best first.

    i = argmax R, j = argmin R, the first one where several are equal; a group whose gap R_i - R_j
    is not above `margin` gives no pair.
    """
    if not margin >= 0:
        raise ValueError(f"margin must not be negative: got {margin}")
    groups = _grouped(rewards, group_size)
    first_row = torch.arange(0, len(rewards), group_size, device=rewards.device)
    pairs = torch.stack([groups.argmax(1), groups.argmin(1)], 1) + first_row[:, None]
    return pairs[groups.amax(1) - groups.amin(1) > margin]


@torch.no_grad()
def ordered_pairs(
    rewards: Tensor,  # (N,)
    group_size: int,
    margin: float = 0.0,
) -> Tensor:  # (K, 2), row numbers
    """Every two responses of a group with R_i - R_j > margin, the better one first.

    AMIR-GRPO's pairs (arXiv:2601.03661): at most G (G - 1) / 2 of a group.
    """
    if not margin >= 0:
        raise ValueError(f"margin must not be negative: got {margin}")
    groups = _grouped(rewards, group_size)
    gaps = groups[:, :, None] - groups[:, None, :]  # (prompts, G, G)
    group, better, worse = (gaps > margin).nonzero(as_tuple=True)
    return torch.stack([better, worse], 1) + group[:, None] * group_size
