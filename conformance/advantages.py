"""Advantages: of a group, of every token (GAE), their returns, and whitening."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .checking import Arguments, Case, Kind
from .comparing import ragged_mask
from .ways import ways

EPS = 1e-4


def grouped(function: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
    """A rule for (prompts, G) groups as one for (N,) rewards, (N, 1)."""
    return lambda rewards, G: function(rewards.view(-1, G), G).reshape(-1, 1)


def centred(groups):
    return groups - groups.mean(1, keepdim=True)


def z_score(groups, correction=1):
    return centred(groups) / (groups.std(1, keepdim=True, correction=correction) + EPS)


def leave_one_out(groups):
    return groups - (groups.sum(1, keepdim=True) - groups) / (groups.shape[1] - 1)


def interleaved(rewards, G):
    groups = rewards.view(G, -1)
    return (z_score(groups.T).T).reshape(-1, 1)


def rewards_of_groups(generator: torch.Generator) -> Arguments:
    G = int(torch.randint(3, 6, (1,), generator=generator))
    scale = torch.randint(1, 4, (3, 1), generator=generator)
    rewards = (torch.randn(3, G, generator=generator) + 2).abs() * scale
    return {"rewards": rewards.view(-1), "group_size": G}


def column(about: str, rewards: list[float], size: int, wanted: list[float]) -> Case:
    return Case(
        about,
        {"rewards": torch.tensor(rewards).double(), "group_size": size},
        [[w] for w in wanted],
    )


def no_deviation(rewards, G):
    groups = rewards.view(-1, G)
    return (centred(groups) / groups.std(1, keepdim=True)).view(-1, 1)


FOUR = [-1.161805, -0.387268, 0.387268, 1.161805]
ADVANTAGES = Kind(
    name="advantages",
    about="one advantage for each of N responses, G to a prompt",
    known=ways(
        "advantages",
        z_score=grouped(lambda r, G: z_score(r)),
        biased_z_score=grouped(lambda r, G: z_score(r, 0)),
        mean_alone=grouped(lambda r, G: centred(r)),
        leave_one_out=grouped(lambda r, G: leave_one_out(r)),
        batch_deviation=grouped(lambda r, G: centred(r) / (r.std() + EPS)),
        centred_batch_deviation=grouped(lambda r, G: centred(r) / (centred(r).std() + EPS)),
        over_the_mean=grouped(lambda r, G: centred(r) / r.mean(1, keepdim=True).clamp(min=1e-6)),
    ),
    mistakes=ways(
        "advantages mistakes",
        over_all_prompts=lambda r, G: ((r - r.mean()) / (r.std() + EPS)).view(-1, 1),
        deviation_and_leave_one_out=grouped(
            lambda r, G: leave_one_out(r) / (r.std(1, keepdim=True) + EPS)
        ),
        by_the_variance=grouped(lambda r, G: centred(r) / (r.var(1, keepdim=True) + EPS)),
        wrong_way_round=grouped(lambda r, G: -z_score(r)),
        interleaved=interleaved,
        no_eps=no_deviation,
        factor_twice=grouped(lambda r, G: leave_one_out(r) * G / (G - 1)),
        divided_by_all=grouped(lambda r, G: r - (r.sum(1, keepdim=True) - r) / G),
        other_prompts_too=lambda r, G: (r - (r.sum() - r) / (len(r) - 1)).view(-1, 1),
        no_baseline=lambda r, G: r.view(-1, 1),
    ),
    cases=(
        column("a group of two, rewards 0 and 1000", [0, 1000], 2, [-0.707107, 0.707107]),
        column("one group of four, rewards 1, 2, 3, 4", [1, 2, 3, 4], 4, FOUR),
        column(
            "a group of equal rewards beside 1, 2, 3, 4",
            [1, 2, 3, 4, 2, 2, 2, 2],
            4,
            FOUR + 4 * [0.0],
        ),
    ),
    random=rewards_of_groups,
    rows=False,
    tolerance=1e-3,
)


# --- per token --------------------------------------------------------------------------------------


def gae(r, values, mask, gamma, lam):
    advantages, A = torch.zeros_like(values), torch.zeros_like(values[:, 0])
    V = A
    for t in reversed(range(values.shape[1])):
        delta = r[:, t] + gamma * V - values[:, t]
        A = torch.where(mask[:, t], delta + gamma * lam * A, A)
        V = torch.where(mask[:, t], values[:, t], V)
        advantages[:, t] = torch.where(mask[:, t], A, torch.zeros_like(A))
    return advantages.detach()


def padding_valued(r, values, mask, gamma, lam):
    whole = torch.ones_like(mask)
    return torch.where(
        mask, gae(r.where(mask, torch.zeros_like(r)), values, whole, gamma, lam), 0.0
    )


def padding_rewarded(r, values, mask, gamma, lam):
    return torch.where(mask, gae(r, values, torch.ones_like(mask), gamma, lam), 0.0)


def forwards(r, values, mask, gamma, lam):
    following = torch.cat([values[:, 1:] * mask[:, 1:], torch.zeros_like(values[:, :1])], 1)
    delta = torch.where(mask, r + gamma * following - values, 0.0)
    total, sums = torch.zeros_like(delta[:, 0]), []
    for t in range(values.shape[1]):
        total = delta[:, t] + gamma * lam * total
        sums.append(total)
    return torch.where(mask, torch.stack(sums, 1), 0.0)


def whiten(x, mask, correction=1):
    valid = x[mask]
    scaled = (x - valid.mean()) / (valid.var(correction=correction) + 1e-8).sqrt()
    return torch.where(mask, scaled, torch.zeros_like(x))


def trajectory(generator: torch.Generator) -> Arguments:
    mask = ragged_mask(generator, 3, 6)
    mask[0] = torch.arange(6) < 3  # one is shorter for certain
    r, values = torch.randn(2, 3, 6, generator=generator)
    return {"rewards": r, "values": values, "mask": mask, "gamma": 0.9, "lam": 0.8}


TWO_ROWS = {
    "rewards": torch.tensor([[-0.1, 0, 0.2, 1], [0, 1, 9, 9]]),
    "values": torch.tensor([[0.5, 0.4, 0.3, 0.2], [0.6, 0.5, 7, 7]]),
    "mask": torch.tensor([[True] * 4, [True, True, False, False]]),
}
GAE_CASES = (
    Case(
        "gamma 0.9, lambda 0.8",
        {**TWO_ROWS, "gamma": 0.9, "lam": 0.8},
        [[0.00647, 0.34232, 0.656, 0.8], [0.21, 0.5, 0, 0]],
    ),
    Case(
        "gamma 1, lambda 1: rewards to come, less the value",
        {**TWO_ROWS, "gamma": 1.0, "lam": 1.0},
        [[0.6, 0.8, 0.9, 0.8], [0.4, 0.5, 0, 0]],
    ),
)
GAE = Kind(
    name="gae",
    about="generalised advantage estimation, (N, T); of a tuple the first is looked at",
    known=ways("gae", gae=gae, whitened_gae=lambda r, v, m, *a: whiten(gae(r, v, m, *a), m)),
    mistakes=ways(
        "gae mistakes",
        monte_carlo=lambda r, v, m, gamma, lam: gae(r, v, m, gamma, 1.0),
        one_step=lambda r, v, m, gamma, lam: gae(r, v, m, gamma, 0.0),
        returns=lambda r, v, m, *a: torch.where(m, gae(r, v, m, *a) + v, 0.0),
        padding_valued=padding_valued,
        padding_rewarded=padding_rewarded,
        without_gamma_in_the_sum=lambda r, v, m, gamma, lam: gae(r, v, m, gamma, lam / gamma),
        wrong_way_round=forwards,
        value_not_subtracted=lambda r, v, m, *a: gae(r, torch.zeros_like(v), m, *a),
        values_one_late=lambda r, v, m, *a: gae(r, v.roll(-1, 1), m, *a),
    ),
    cases=GAE_CASES,
    random=trajectory,
    constant=True,
)
RETURNS = Kind(
    name="returns",
    about="what the critic learns beside GAE: A + V, before any whitening",
    known=ways(
        "returns",
        lambda_returns=lambda r, v, m, *a: torch.where(m, gae(r, v, m, *a) + v, 0.0),
        monte_carlo=lambda r, v, m, gamma, lam: torch.where(m, gae(r, v, m, gamma, 1.0) + v, 0.0),
    ),
    mistakes=ways(
        "returns mistakes",
        advantages=gae,
        whitened=lambda r, v, m, *a: torch.where(m, whiten(gae(r, v, m, *a), m) + v, 0.0),
        padding_valued=lambda r, v, m, *a: torch.where(m, padding_valued(r, v, m, *a) + v, 0.0),
        padding_rewarded=lambda r, v, m, *a: torch.where(m, padding_rewarded(r, v, m, *a) + v, 0.0),
        undiscounted=lambda r, v, m, gamma, lam: torch.where(m, gae(r, v, m, 1.0, 1.0) + v, 0.0),
    ),
    cases=(
        Case(
            "gamma 0.9, lambda 0.8",
            {**TWO_ROWS, "gamma": 0.9, "lam": 0.8},
            [[0.50647, 0.74232, 0.956, 1.0], [0.81, 1.0, 0, 0]],
        ),
    ),
    random=trajectory,
    constant=True,
)


def per_response(x, mask):
    return torch.stack(
        [
            whiten(row[None], m[None])[0] if m.sum() > 1 else row * 0
            for row, m in zip(x, mask, strict=True)
        ]
    )


def padding_counted(x, mask):
    return torch.where(mask, whiten(x, torch.ones_like(mask)), 0.0)


def ragged(generator: torch.Generator) -> Arguments:
    mask = ragged_mask(generator, 4, 6)
    mask[0], mask[1] = torch.arange(6) < 3, True  # lengths differ for certain
    return {"x": 2 * torch.randn(4, 6, generator=generator) + 3, "mask": mask}


WHITEN = Kind(
    name="whiten",
    about="mean 0 and deviation 1 over the valid tokens of the whole batch",
    known=ways("whiten", whiten=whiten, biased_whiten=lambda x, m: whiten(x, m, 0)),
    mistakes=ways(
        "whiten mistakes",
        per_response=per_response,
        padding_counted=padding_counted,
        zeros_counted=lambda x, m: padding_counted(torch.where(m, x, 0.0), m),
        by_the_variance=lambda x, m: torch.where(m, (x - x[m].mean()) / (x[m].var() + EPS), 0.0),
        mean_kept=lambda x, m: torch.where(m, x / (x[m].std() + EPS), 0.0),
        mean_added_back=lambda x, m: torch.where(m, whiten(x, m) + x[m].mean(), 0.0),
    ),
    cases=(
        Case(
            "1, 2, 3 and 4, in responses of three tokens and of one",
            {
                "x": torch.tensor([[1.0, 2, 3], [4, 9, 9]]),
                "mask": torch.tensor([[True] * 3, [True, False, False]]),
            },
            [[-1.161895, -0.387298, 0.387298], [1.161895, 0, 0]],
        ),
    ),
    random=ragged,
    rows=False,
    tolerance=1e-3,
)
