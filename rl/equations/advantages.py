"""Advantage estimators. All of them are constants to the policy: nothing here has a gradient.

Rows are grouped by prompt: rows b * G ... b * G + G - 1 are the G responses to prompt b.
"""

from typing import Literal

import torch
from torch import Tensor

from gpt.log_probs import at_least_float32
from rl.equations.losses import check_mask, check_same_shape

# --- one advantage per token, from a critic or from the rewards to come --------------------------


@torch.no_grad()
def gae(
    token_rewards: Tensor,  # (N, T)
    values: Tensor,  # (N, T), V of the state before token t
    response_mask: Tensor,  # (N, T) bool
    gamma: float,
    gae_lambda: float,
    *,
    bootstrap_values: Tensor | None = None,  # (N,)
) -> tuple[Tensor, Tensor]:  # (N, T), (N, T)
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, Eq. 16).

    delta_t = r_t + gamma * V_{t+1} - V_t
    A_t     = delta_t + gamma * lambda * A_{t+1},   returns_t = A_t + V_t

    Returns (advantages, returns), both 0 at masked positions, which the recursion steps over: the
    value after the last valid token is 0 (the response ended), or the row's `bootstrap_values`
    (the value of the state in which a truncated response was cut off; 0 for the others).
    """
    check_same_shape("token_rewards and values", token_rewards, values)
    check_mask(values, response_mask)
    rewards, values = (
        torch.where(response_mask, at_least_float32(x), 0.0) for x in (token_rewards, values)
    )
    next_value = _bootstrap(bootstrap_values, values)  # (N,)
    next_advantage = torch.zeros_like(next_value)
    advantages = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        valid = response_mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * gae_lambda * next_advantage
        advantages[:, t] = torch.where(valid, advantage, 0.0)
        next_advantage = torch.where(valid, advantage, next_advantage)
        next_value = torch.where(valid, values[:, t], next_value)
    return advantages, advantages + values


def _bootstrap(bootstrap_values: Tensor | None, values: Tensor) -> Tensor:
    """The value after the last valid token of every row, (N,)."""
    if bootstrap_values is None:
        return values.new_zeros(len(values))
    if bootstrap_values.shape != (len(values),):
        raise ValueError(
            f"bootstrap_values must be (N,) = ({len(values)},): got {tuple(bootstrap_values.shape)}"
        )
    return bootstrap_values.to(values.dtype)


@torch.no_grad()
def discounted_returns(token_rewards: Tensor, response_mask: Tensor, gamma: float) -> Tensor:
    """sum_{u >= t} gamma^(u - t) r_u over the valid tokens, (N, T); 0 at masked positions.

    With gamma = 1 the reward to go, REINFORCE++'s advantage before normalisation (Hu et al. 2025,
    arXiv:2501.03262, Eq. 4).
    """
    check_mask(token_rewards, response_mask)
    rewards = torch.where(response_mask, at_least_float32(token_rewards), 0.0)
    returns = torch.zeros_like(rewards)
    to_come = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        valid = response_mask[:, t]
        to_come = torch.where(valid, rewards[:, t] + gamma * to_come, to_come)
        returns[:, t] = torch.where(valid, to_come, 0.0)
    return returns


@torch.no_grad()
def whiten(
    x: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
    *,
    shift_mean: bool = True,
    unbiased: bool = True,
) -> Tensor:  # (N, T)
    """(x - mean) / sqrt(var + 1e-8) over all valid positions together; 0 at masked ones.

    Call it on the whole rollout batch: per response it would erase the difference between
    responses. With x (N, 1), one advantage per response, the statistics run over responses.
    `shift_mean=False` adds the mean back (whitening of rewards); `unbiased` divides by n - 1.
    Equal values give exactly 0 (plus that mean). (Ziegler et al. 2019, arXiv:1909.08593, the
    released code; REINFORCE++, arXiv:2501.03262, Eq. 5.)
    """
    check_mask(x, mask)
    x = at_least_float32(x)
    valid = x[mask]
    if len(valid) == 0:
        return torch.zeros_like(x)
    mean = valid.mean()
    variance = (valid - mean).square().sum() / max(len(valid) - int(unbiased), 1)
    centred = torch.where(valid.max() == valid.min(), 0.0, x - mean)
    whitened = centred / (variance + 1e-8).sqrt()
    return torch.where(mask, whitened if shift_mean else whitened + mean, 0.0)


# --- one advantage per response, from its group ---------------------------------------------------


def _groups(rewards: Tensor, group_size: int) -> Tensor:
    """`rewards` (N,) as (prompts, group_size), refusing what cannot be a group baseline."""
    if rewards.ndim != 1:
        raise ValueError(f"rewards must be (N,), one per response: got {tuple(rewards.shape)}")
    if group_size < 2:
        raise ValueError(f"group_size must be at least 2, the group is the baseline: {group_size}")
    if len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards do not divide into groups of {group_size}")
    if not rewards.isfinite().all():
        raise ValueError("rewards must be finite: one NaN would spread over its whole group")
    return at_least_float32(rewards).reshape(-1, group_size)


def _centred(groups: Tensor) -> Tensor:
    """Each reward minus its group's mean, and exactly 0 where a group's rewards are all equal.

    Equality is tested on the rewards: in float32 their mean can be off by one ulp, which a
    division by a tiny standard deviation would blow up to an advantage of order one.
    """
    equal = groups.amax(1, keepdim=True) == groups.amin(1, keepdim=True)
    return torch.where(equal, 0.0, groups - groups.mean(1, keepdim=True))


def _scaled(centred: Tensor, std: Tensor, eps: float) -> Tensor:
    """centred / (std + eps), with 0 / 0 = 0: no spread is no signal, for eps = 0 as well."""
    return torch.where(centred == 0, 0.0, centred / (std + eps))


@torch.no_grad()
def group_advantages(
    rewards: Tensor,  # (N,)
    group_size: int,
    *,
    scale: Literal["group", "batch", "none"] = "group",
    unbiased: bool = True,
    eps: float = 1e-4,
) -> Tensor:  # (N, 1)
    """GRPO's group-relative advantage, one per response (Shao et al. 2024, section 4.1.2).

    A_i = (R_i - mean(R)) / (std(R) + eps), mean and std over the G responses to the same prompt
    (arXiv:2402.03300). `scale="batch"` divides by the std of all N rewards instead, "none" by
    nothing (Dr. GRPO, arXiv:2503.20783). The paper does not say which std; `unbiased` is n - 1.
    A group whose rewards are all equal gets exactly 0.
    """
    groups = _groups(rewards, group_size)
    advantages = _centred(groups)
    if scale == "group":
        std = groups.std(1, keepdim=True, correction=int(unbiased))
        advantages = _scaled(advantages, std, eps)
    elif scale == "batch":
        advantages = _scaled(advantages, groups.std(correction=int(unbiased)), eps)
    elif scale != "none":
        raise ValueError(f'scale must be "group", "batch" or "none": got {scale!r}')
    return advantages.view(-1, 1)


@torch.no_grad()
def leave_one_out_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """RLOO's advantage, (N,) -> (N, 1): the baseline is the mean of the *other* responses.

    A_i = R_i - 1/(G-1) sum_{j != i} R_j = G/(G-1) (R_i - mean(R))
    (Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740, section 2.3). Unlike the group
    mean, which contains R_i, this baseline leaves the expected policy gradient unscaled.
    """
    advantages = _centred(_groups(rewards, group_size)) * (group_size / (group_size - 1))
    return advantages.view(-1, 1)


@torch.no_grad()
def process_advantages(
    step_rewards: Tensor,  # (N, K), padded to the longest list of steps
    step_ends: Tensor,  # (N, K) int, index of the step's last token within the response
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
    check_same_shape("step_rewards and step_ends", step_rewards, step_ends)
    check_mask(step_rewards, step_mask)
    if len(step_rewards) != len(response_mask) or response_mask.dtype != torch.bool:
        raise ValueError("response_mask must be a bool (N, T) with one row per row of step_rewards")
    _check_step_ends(step_ends, step_mask, response_mask)
    row_sum = torch.where(step_mask, step_rewards, 0.0).sum(1)
    groups = len(_groups(row_sum, group_size))
    rewards = torch.where(step_mask, at_least_float32(step_rewards), 0.0)
    if not step_mask.any():
        return rewards.new_zeros(response_mask.shape)
    pooled = rewards.reshape(groups, -1), step_mask.reshape(groups, -1)
    normalised = _pooled_z_scores(*pooled, unbiased, eps)
    tokens = torch.arange(response_mask.shape[1], device=step_ends.device)
    reaches = step_mask[:, :, None] & (step_ends[:, :, None] >= tokens)  # (N, K, T)
    advantages = (normalised.reshape(rewards.shape)[:, :, None] * reaches).sum(1)
    return torch.where(response_mask, advantages, 0.0)


def _check_step_ends(step_ends: Tensor, step_mask: Tensor, response_mask: Tensor) -> None:
    """Refuse a step that ends outside its response."""
    inside = (step_ends >= 0) & (step_ends < response_mask.shape[1])
    inside &= response_mask.gather(1, torch.where(inside, step_ends, 0))
    if (step_mask & ~inside).any():
        row = int((step_mask & ~inside).any(1).nonzero()[0])
        raise ValueError(f"row {row} has a step that ends outside its response")


def _pooled_z_scores(rewards: Tensor, mask: Tensor, unbiased: bool, eps: float) -> Tensor:
    """`group_advantages` over the True entries of every row, whose counts differ; 0 elsewhere."""
    scores = torch.zeros_like(rewards)
    for row, valid in enumerate(mask):
        pool = rewards[row, valid]
        if len(pool) > 1:  # one step alone has nothing to be compared with
            scores[row, valid] = group_advantages(pool, len(pool), unbiased=unbiased, eps=eps)[:, 0]
    return scores


# --- preference pairs, from the rewards of a group ------------------------------------------------


def _check_margin(margin: float) -> None:
    if not margin >= 0:
        raise ValueError(
            f"margin, the reward gap that makes a pair, must not be negative: {margin}"
        )


@torch.no_grad()
def best_worst_pairs(rewards: Tensor, group_size: int, margin: float = 0.0) -> Tensor:
    """The best and the worst response of every group, (N,) -> row numbers (K, 2), best first.

    i = argmax R, j = argmin R, the first one where several are equal; a group whose gap R_i - R_j
    is not above `margin` gives no pair.
    """
    _check_margin(margin)
    groups = _groups(rewards, group_size)
    first_row = torch.arange(0, len(rewards), group_size, device=rewards.device)
    pairs = torch.stack([groups.argmax(1), groups.argmin(1)], 1) + first_row[:, None]
    return pairs[groups.amax(1) - groups.amin(1) > margin]


@torch.no_grad()
def ordered_pairs(rewards: Tensor, group_size: int, margin: float = 0.0) -> Tensor:
    """Every two responses of a group with R_i - R_j > margin, (N,) -> row numbers (K, 2).

    AMIR-GRPO's pairs (arXiv:2601.03661): at most G (G - 1) / 2 of a group, the better one first.
    """
    _check_margin(margin)
    groups = _groups(rewards, group_size)
    gaps = groups[:, :, None] - groups[:, None, :]  # (prompts, G, G)
    group, better, worse = (gaps > margin).nonzero(as_tuple=True)
    return torch.stack([better, worse], 1) + group[:, None] * group_size
