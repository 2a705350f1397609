"""Advantages: of a group, of every token (GAE), their returns, and whitening."""

from __future__ import annotations

from functools import partial

import torch

from .batches import Arguments, some
from .checking import Kind
from .enumeration import of_advantages
from .ways import ways

EPS = 1e-4


def grouped(function):
    """A rule for (prompts, G) groups as one for (N,) rewards, (N, 1)."""
    return lambda rewards, G: function(rewards.view(-1, G), G).reshape(-1, 1)


def centred(groups):
    return groups - groups.mean(1, keepdim=True)


def z_score(groups, correction=1):
    return centred(groups) / (groups.std(1, keepdim=True, correction=correction) + EPS)


def leave_one_out(groups):
    return groups - (groups.sum(1, keepdim=True) - groups) / (groups.shape[1] - 1)


def rewards_of_groups(generator: torch.Generator) -> Arguments:
    G = int(torch.randint(3, 6, (1,), generator=generator))
    scale = torch.randint(1, 4, (3, 1), generator=generator)
    rewards = (torch.randn(3, G, generator=generator) + 2).abs() * scale
    return {"rewards": rewards.view(-1), "group_size": G}


ADVANTAGES = Kind(
    name="advantages",
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
        interleaved=lambda r, G: z_score(r.view(G, -1).T).T.reshape(-1, 1),
        no_eps=grouped(lambda r, G: centred(r) / r.std(1, keepdim=True)),
        factor_twice=grouped(lambda r, G: leave_one_out(r) * G / (G - 1)),
        divided_by_all=grouped(lambda r, G: r - (r.sum(1, keepdim=True) - r) / G),
        other_prompts_too=lambda r, G: (r - (r.sum() - r) / (len(r) - 1)).view(-1, 1),
        no_baseline=lambda r, G: r.view(-1, 1),
    ),
    random=rewards_of_groups,
    rows=False,
    tolerance=1e-3,
    exactly=of_advantages,
)


# --- per token --------------------------------------------------------------------------------------


def masked(x, mask):
    return torch.where(mask, x, 0.0)


def gae(r, values, mask, gamma, lam):
    advantages, A = torch.zeros_like(values), torch.zeros_like(values[:, 0])
    V = A
    for t in reversed(range(values.shape[1])):
        delta = r[:, t] + gamma * V - values[:, t]
        A = torch.where(mask[:, t], delta + gamma * lam * A, A)
        V = torch.where(mask[:, t], values[:, t], V)
        advantages[:, t] = A
    return masked(advantages, mask).detach()


def padding_rewarded(r, values, mask, gamma, lam):
    return masked(gae(r, values, torch.ones_like(mask), gamma, lam), mask)


def padding_valued(r, values, mask, gamma, lam):
    return padding_rewarded(masked(r, mask), values, mask, gamma, lam)


def forwards(r, values, mask, gamma, lam):
    following = torch.cat([masked(values, mask)[:, 1:], torch.zeros_like(values[:, :1])], 1)
    delta = masked(r + gamma * following - values, mask)
    total, sums = torch.zeros_like(delta[:, 0]), []
    for column in delta.T:
        total = column + gamma * lam * total
        sums.append(total)
    return masked(torch.stack(sums, 1), mask)


def plus_value(advantages):
    """Advantages as returns, A + V."""
    return lambda r, values, mask, *a: masked(advantages(r, values, mask, *a) + values, mask)


def monte_carlo(r, values, mask, gamma, lam):
    return gae(r, values, mask, gamma, 1.0)


def whiten(x, mask, correction=1):
    valid = x[mask]
    return masked((x - valid.mean()) / (valid.var(correction=correction) + 1e-8).sqrt(), mask)


def whitened_gae(r, values, mask, gamma, lam):
    return whiten(gae(r, values, mask, gamma, lam), mask)


per_token = partial(Kind, random=some("rewards values mask gamma lam"), constant=True)
GAE = per_token(
    "gae",
    known=ways("gae", gae=gae, whitened_gae=whitened_gae),
    mistakes=ways(
        "gae mistakes",
        monte_carlo=monte_carlo,
        one_step=lambda r, v, m, gamma, lam: gae(r, v, m, gamma, 0.0),
        returns=plus_value(gae),
        padding_valued=padding_valued,
        padding_rewarded=padding_rewarded,
        without_gamma_in_the_sum=lambda r, v, m, gamma, lam: gae(r, v, m, gamma, lam / gamma),
        wrong_way_round=forwards,
        value_not_subtracted=lambda r, v, m, *a: gae(r, torch.zeros_like(v), m, *a),
        values_one_late=lambda r, v, m, *a: gae(r, v.roll(-1, 1), m, *a),
    ),
)
RETURNS = per_token(
    "returns",
    known=ways("returns", lambda_returns=plus_value(gae), monte_carlo=plus_value(monte_carlo)),
    mistakes=ways(
        "returns mistakes",
        advantages=gae,
        whitened=plus_value(whitened_gae),
        padding_valued=plus_value(padding_valued),
        padding_rewarded=plus_value(padding_rewarded),
        undiscounted=plus_value(lambda r, v, m, gamma, lam: gae(r, v, m, 1.0, 1.0)),
    ),
)


def per_response(x, mask):
    mean = masked(x, mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
    square = masked((x - mean) ** 2, mask).sum(1, keepdim=True)
    variance = square / (mask.sum(1, keepdim=True) - 1).clamp(min=1)
    return masked((x - mean) / (variance + 1e-8).sqrt(), mask)


def padding_counted(x, mask):
    return masked(whiten(x, torch.ones_like(mask)), mask)


WHITEN = Kind(
    name="whiten",
    random=some("x mask"),
    known=ways("whiten", whiten=whiten, biased_whiten=lambda x, m: whiten(x, m, 0)),
    mistakes=ways(
        "whiten mistakes",
        per_response=per_response,
        padding_counted=padding_counted,
        zeros_counted=lambda x, m: padding_counted(masked(x, m), m),
        by_the_variance=lambda x, m: masked((x - x[m].mean()) / (x[m].var() + EPS), m),
        mean_kept=lambda x, m: masked(x / (x[m].std() + EPS), m),
        mean_added_back=lambda x, m: masked(whiten(x, m) + x[m].mean(), m),
    ),
    rows=False,
    tolerance=1e-3,
)
