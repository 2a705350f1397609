"""Corrections for answers that another policy drew than the one that begins the update.

Three policies: mu drew the tokens (it is older, or computed in lower precision), pi_old begins the
update, pi is in training. A correction is a constant weight w on each token of the clipped surrogate of
pi / pi_old, or a loss of its own. CORRECTIONS lists them. With mu = pi_old every weight is exactly 1.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from harness.tensors import at_least_float32, axes, where_finite
from rl.equations.losses import likelihood_ratio, mean_ratio, sequence_ratio


@torch.no_grad()
def sampler_weights(
    old_log_probs: Tensor,  # (N, T)
    sampler_log_probs: Tensor,  # (N, T)
    mask: Tensor,  # (N, T) bool
    of: str,
    limit: str,
    floor: float,
    cap: float,
) -> Tensor:  # (N, T)
    """w = pi_old / mu: of each token, of the response (product), or its geometric mean.

    truncate: min(w, cap). mask: w where floor <= w <= cap, and 0 elsewhere. all: w as it is.
    """
    axes("N T", old_log_probs=old_log_probs, sampler_log_probs=sampler_log_probs, mask=mask)
    if of not in ("token", "sequence", "geometric"):
        raise ValueError(f"of must be one of token, sequence, geometric: got {of!r}")
    if limit not in ("all", "truncate", "mask"):
        raise ValueError(f"limit must be one of all, truncate, mask: got {limit!r}")
    if of == "token":
        w = likelihood_ratio(old_log_probs, sampler_log_probs)
    elif of == "sequence":
        w = sequence_ratio(old_log_probs, sampler_log_probs, mask)
    else:
        w = mean_ratio(old_log_probs, sampler_log_probs, mask)
    if limit == "truncate":
        w = w.clamp(max=cap)
    elif limit == "mask":
        w = w.masked_fill((w < floor) | (w > cap), 0.0)
    return torch.where(mask, w, 0.0)


@torch.no_grad()
def effective_share(weights: Tensor) -> Tensor:  # (N,) -> a scalar
    """(sum w)^2 / (n sum w^2): as how large a share of n equal weights these count (Kish 1965)."""
    axes("N", weights=weights)
    weights = at_least_float32(weights)
    return weights.sum().square() / (len(weights) * weights.square().sum())


@torch.no_grad()
def binary_tv(
    log_probs: Tensor,  # (N, T)
    sampler_log_probs: Tensor,  # (N, T)
) -> Tensor:  # (N, T)
    """|pi - mu| of the sampled token against all others: DPPO's D_TV (arXiv:2602.04879)."""
    axes("N T", log_probs=log_probs, sampler_log_probs=sampler_log_probs)
    return (at_least_float32(log_probs).exp() - at_least_float32(sampler_log_probs).exp()).abs()


@torch.no_grad()
def binary_kl(
    log_probs: Tensor,  # (N, T)
    sampler_log_probs: Tensor,  # (N, T)
) -> Tensor:  # (N, T)
    """mu log(mu / pi) + (1 - mu) log((1 - mu) / (1 - pi)): DPPO's D_KL (arXiv:2602.04879)."""
    axes("N T", log_probs=log_probs, sampler_log_probs=sampler_log_probs)
    log_probs, mu = at_least_float32(log_probs), at_least_float32(sampler_log_probs).exp()
    rest_mu, rest_pi = (1 - mu).clamp(min=1e-8), (1 - log_probs.exp()).clamp(min=1e-8)
    return mu * (sampler_log_probs - log_probs) + (1 - mu) * (rest_mu / rest_pi).log()


DIVERGENCES = {"tv": binary_tv, "kl": binary_kl}


@torch.no_grad()
def dppo_left_out(
    log_probs: Tensor,  # (N, T)
    sampler_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, T) or (N, 1)
    divergence: str,
    delta: float,
) -> Tensor:  # (N, T) bool
    """Where a token has moved more than `delta` from mu already, in the direction of its advantage."""
    axes(
        "N T", log_probs=log_probs, sampler_log_probs=sampler_log_probs,
        advantages=("N T | N 1", advantages),
    )  # fmt: skip
    outwards = torch.where(
        advantages > 0, log_probs > sampler_log_probs, log_probs < sampler_log_probs
    )
    return outwards & (DIVERGENCES[divergence](log_probs, sampler_log_probs) > delta)


def dppo(
    log_probs: Tensor,  # (N, T), of the policy in training
    sampler_log_probs: Tensor,  # (N, T)
    advantages: Tensor,  # (N, T) or (N, 1)
    divergence: str,
    delta: float,
    bound: float = 20.0,
) -> Tensor:  # (N, T), for a reducer with the mask
    """-A min(pi / mu, bound) log pi, the ratio a constant, over what is not left out (arXiv:2602.04879).

    Nothing is clipped by its ratio: a rare token may move by a large one. bound 20 is verl's.
    """
    axes(
        "N T", log_probs=log_probs, sampler_log_probs=sampler_log_probs,
        advantages=("N T | N 1", advantages),
    )  # fmt: skip
    log_probs = where_finite(log_probs, sampler_log_probs, advantages)
    ratio = likelihood_ratio(log_probs, sampler_log_probs).clamp(max=bound).detach()
    left_out = dppo_left_out(log_probs, sampler_log_probs, advantages, divergence, delta)
    return torch.where(left_out, 0.0, -advantages.detach() * ratio * log_probs)


@dataclass(frozen=True)
class Correction:
    """A row of the table: its weights, what its clip measures from, or DPPO's divergence."""

    paper: str
    of: Literal["token", "sequence", "geometric"] | None = None  # None: w = 1
    limit: Literal["all", "truncate", "mask"] = "all"
    against: Literal["old", "sampler"] = "old"  # the denominator of the ratio that is clipped
    divergence: Literal["tv", "kl"] | None = None  # DPPO in the place of the clipped surrogate


Name = Literal[
    "none", "token_tis", "masked", "sequence_tis", "sequence_mask", "geometric_tis", "geometric_mask",
    "decoupled", "dppo_tv", "dppo_kl", "sampler_clip",
]  # fmt: skip
TIS = "Yao et al. 2025, fengyao.notion.site/off-policy-rl"
MIS = "Liu et al. 2025, richardli.xyz/rl-collapse"
CORRECTIONS: dict[Name, Correction] = {
    "none": Correction("arXiv:2402.03300: mu is taken for pi_old"),
    "token_tis": Correction(TIS, "token", "truncate"),
    "masked": Correction("IcePop, arXiv:2510.18855", "token", "mask"),
    "sequence_tis": Correction(MIS, "sequence", "truncate"),
    "sequence_mask": Correction(MIS, "sequence", "mask"),
    "geometric_tis": Correction(MIS, "geometric", "truncate"),
    "geometric_mask": Correction(MIS, "geometric", "mask"),
    "decoupled": Correction("AReaL, arXiv:2505.24298, with pi_prox = pi_old", "token"),
    "dppo_tv": Correction("arXiv:2602.04879", against="sampler", divergence="tv"),
    "dppo_kl": Correction("arXiv:2602.04879", against="sampler", divergence="kl"),
    "sampler_clip": Correction("arXiv:1707.06347, Eq. 7, with mu as pi_old", against="sampler"),
}
