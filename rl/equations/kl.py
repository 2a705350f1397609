"""KL penalties: estimators per sampled token, and the rules that adapt their coefficient.

With y ~ pi the policy and delta = log pi_ref(y) - log pi(y), "Approximating KL Divergence"
(Schulman 2020) estimates KL(pi || pi_ref) without summing over the vocabulary. A good *value* is
not yet a good *gradient*; what each form does when it is differentiated, or when it is subtracted
from the reward, stands with each function. The sum over the vocabulary is `gpt.log_probs.full_kl`.

Inputs are (N, T) log-probabilities of the sampled tokens; NaN or infinity at a position gives NaN
there and no gradient, so a reducer's mask removes it (`where_finite`, harness/tensors.py).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.tensors import axes, where_finite
from rl.equations.losses import MAX_LOG_RATIO, likelihood_ratio


def k1(
    log_probs: Tensor,  # (N, T), of the policy in training
    ref_log_probs: Tensor,  # (N, T)
) -> Tensor:  # (N, T)
    """log pi - log pi_ref: unbiased for KL(pi || pi_ref), may be negative.

    The form to subtract from the reward: the policy gradient is then exactly that of the KL.
    Never a loss: its own gradient is 0 in expectation, whatever the reference is.
    """
    axes("N T", log_probs=log_probs, ref_log_probs=ref_log_probs)
    return where_finite(log_probs, ref_log_probs) - ref_log_probs.detach()


def k2(
    log_probs: Tensor,  # (N, T), of the policy in training
    ref_log_probs: Tensor,  # (N, T)
) -> Tensor:  # (N, T)
    """(log pi - log pi_ref)^2 / 2: a biased value, never negative.

    As a loss its expected gradient is exactly that of KL(pi || pi_ref), token by token.
    """
    axes("N T", log_probs=log_probs, ref_log_probs=ref_log_probs)
    return (where_finite(log_probs, ref_log_probs) - ref_log_probs.detach()).square() / 2


def k3(
    log_probs: Tensor,  # (N, T), of the policy in training
    ref_log_probs: Tensor,  # (N, T)
) -> Tensor:  # (N, T)
    """exp(delta) - delta - 1: unbiased for KL(pi || pi_ref) and never negative.

    The penalty in GRPO's loss (arXiv:2402.03300, Eq. 4). As a loss its expected gradient is that
    of the *forward* KL(pi_ref || pi). expm1, because in float32 exp(1e-4) - 1e-4 - 1 is 0.
    delta is held at 20 before the exponential, where it would overflow; a very negative delta
    and the result itself are left alone, because a clamp there would remove the pull back.
    """
    axes("N T", log_probs=log_probs, ref_log_probs=ref_log_probs)
    delta = ref_log_probs.detach() - where_finite(log_probs, ref_log_probs)
    delta = delta.clamp(max=MAX_LOG_RATIO)
    return delta.expm1() - delta


def rho_minus_log(
    log_probs: Tensor,  # (N, T), of the policy in training
    old_log_probs: Tensor,  # (N, T)
) -> Tensor:  # (N, T)
    """rho - 1 - log rho with rho = pi / pi_old: KL(pi_old || pi) for samples of pi_old.

    Unbiased, never negative, and as a loss its expected gradient is exactly that of KL(pi_old ||
    pi), PPO's penalty (arXiv:1707.06347, Eq. 8).
    """
    axes("N T", log_probs=log_probs, old_log_probs=old_log_probs)
    log_rho = where_finite(log_probs, old_log_probs) - old_log_probs.detach()
    log_rho = log_rho.clamp(max=MAX_LOG_RATIO)
    return log_rho.expm1() - log_rho


def absolute(
    log_probs: Tensor,  # (N, T), of the policy in training
    ref_log_probs: Tensor,  # (N, T)
) -> Tensor:  # (N, T)
    """|log pi - log pi_ref|: a biased value, never negative, and no KL's gradient.

    As a loss its expected gradient is E[sign(log pi - log pi_ref) * grad(log pi)].
    """
    axes("N T", log_probs=log_probs, ref_log_probs=ref_log_probs)
    return (where_finite(log_probs, ref_log_probs) - ref_log_probs.detach()).abs()


def k1_importance(
    log_probs: Tensor,  # (N, T), of the policy in training
    old_log_probs: Tensor,  # (N, T)
    ref_log_probs: Tensor,  # (N, T)
) -> Tensor:  # (N, T)
    """(pi / pi_old) k1: for samples of an older policy, given that policy's prefixes.

    As a loss its expected gradient is that of KL(pi || pi_ref) of the next token at each prefix,
    because the ratio is differentiated as well (DeepSeek-V3.2, arXiv:2512.02556, "unbiased KL
    estimate"). The prefixes stay the old policy's: beyond one token the sum over a response is not
    the KL of the responses.
    """
    axes("N T", log_probs=log_probs, old_log_probs=old_log_probs, ref_log_probs=ref_log_probs)
    log_probs = where_finite(log_probs, old_log_probs, ref_log_probs)
    return likelihood_ratio(log_probs, old_log_probs) * k1(log_probs, ref_log_probs)


def k3_importance(
    log_probs: Tensor,  # (N, T), of the policy in training
    old_log_probs: Tensor,  # (N, T)
    ref_log_probs: Tensor,  # (N, T)
) -> Tensor:  # (N, T)
    """(pi / pi_old) k3: as `k1_importance` in expectation, with less variance.

    Never negative (DeepSeek-V3.2, arXiv:2512.02556, "unbiased KL estimate"). Its gradient is -ratio
    delta. In float32 that drowns in the gradients of ratio and exp(delta), which cancel: their product
    pi_ref / pi_old is a constant, and beyond a nat it is taken as one.
    """
    axes("N T", log_probs=log_probs, old_log_probs=old_log_probs, ref_log_probs=ref_log_probs)
    log_probs = where_finite(log_probs, old_log_probs, ref_log_probs)
    ratio = likelihood_ratio(log_probs, old_log_probs)
    delta = (ref_log_probs.detach() - log_probs).clamp(max=MAX_LOG_RATIO)
    far = (ratio * delta.exp()).detach() - ratio * (delta + 1)
    return torch.where(delta > 1, far, ratio * k3(log_probs, ref_log_probs))


# --- which estimator may stand where ------------------------------------------------------------


def loss_estimator(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The estimator to differentiate as a loss term: "k2" or "k3". Raises ValueError otherwise.

    The expected gradient of k2 is that of KL(pi || pi_ref), that of k3 the one of KL(pi_ref || pi).
    That of k1 is 0, whatever the reference is: as a loss it regularises nothing.
    """
    if name not in ("k2", "k3"):
        raise ValueError(f"the KL loss is k2 or k3, not {name!r}: no other has a KL's gradient")
    return {"k2": k2, "k3": k3}[name]


# --- the coefficient of a KL penalty -----------------------------------------------------------
# Fed with the KL *per response*: k1 summed over a response's tokens, averaged over responses, in
# nats. The mean per token is a different number, smaller by the length.


def _check_update(kl_per_response: float, responses: int) -> None:
    if not math.isfinite(kl_per_response) or responses < 1:
        raise ValueError(
            "a KL coefficient is updated from a finite KL of at least one response: "
            f"got {kl_per_response} over {responses}"
        )


@dataclass
class _Coefficient:
    coef: float

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint has to hold."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from `state_dict()` of an earlier run."""
        if state.keys() != {"coef"}:
            raise ValueError(f'a KL state must be {{"coef": ...}}: got the keys {sorted(state)}')
        self.coef = float(state["coef"])


@dataclass
class FixedKL(_Coefficient):
    """A constant coefficient, in place of a rule that adapts it."""

    def __post_init__(self) -> None:
        if not self.coef >= 0:
            raise ValueError(f"a KL coefficient must not be negative: got {self.coef}")

    def update(self, kl_per_response: float, responses: int) -> None:
        """Check the measurement and change nothing."""
        _check_update(kl_per_response, responses)


@dataclass
class AdaptiveKL(_Coefficient):
    """Proportional control towards `target` nats per response (Ziegler et al. 2019, section 2.2).

    error = clip(KL / target - 1, -0.2, 0.2)
    coef <- coef * (1 + responses / horizon * error)

    arXiv:1909.08593; the paper's gain is 0.1 per update, its code and later ones use
    responses / horizon, the horizon counted in responses. Start at 0.2, target 6, horizon 10000.
    """

    target: float
    horizon: int

    def __post_init__(self) -> None:
        if not (self.coef > 0 and self.target > 0 and self.horizon > 0):
            raise ValueError(f"coef, target and horizon must be positive: got {self}")

    def update(self, kl_per_response: float, responses: int) -> None:
        """Move the coefficient after one rollout of `responses` responses."""
        _check_update(kl_per_response, responses)
        if responses >= 5 * self.horizon:
            raise ValueError(
                f"horizon {self.horizon} must exceed a fifth of the {responses} responses of one "
                "update, or the coefficient could reach 0"
            )
        error = min(max(kl_per_response / self.target - 1, -0.2), 0.2)
        self.coef *= 1 + error * responses / self.horizon
