"""KL penalties: estimators per sampled token, and the rules that adapt their coefficient.

With y ~ pi the policy and delta = log pi_ref(y) - log pi(y), "Approximating KL Divergence"
(Schulman 2020) estimates KL(pi || pi_ref) without summing over the vocabulary. A good *value* is
not yet a good *gradient*; what each form does when it is differentiated, or when it is subtracted
from the reward, stands with each function.

Inputs are (N, T) log-probabilities of the sampled tokens; NaN or infinity at a position gives NaN
there and no gradient, so a reducer's mask removes it (see rl/equations/losses.py).
"""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.log_probs import at_least_float32, kl_from_logits
from rl.equations.losses import (
    MAX_LOG_RATIO,
    check_same_shape,
    finite_inputs,
    log_ratio,
)

FORBIDDEN = -1e30  # stands for a logit of -inf


def _delta(log_probs: Tensor, ref_log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """(finite, log pi_ref - log pi); the reference is a constant."""
    check_same_shape("log_probs and ref_log_probs", log_probs, ref_log_probs)
    finite, log_probs, ref = finite_inputs(log_probs, ref_log_probs.detach())
    return finite, ref - log_probs


def _k3(delta: Tensor) -> Tensor:
    delta = delta.clamp(max=MAX_LOG_RATIO)
    return delta.expm1() - delta


def k1(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """log pi - log pi_ref, (N, T): unbiased for KL(pi || pi_ref), may be negative.

    The form to subtract from the reward: the policy gradient is then exactly that of the KL.
    Never a loss: its own gradient is 0 in expectation, whatever the reference is.
    """
    finite, delta = _delta(log_probs, ref_log_probs)
    return torch.where(finite, -delta, torch.nan)


def k2(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(log pi - log pi_ref)^2 / 2, (N, T): a biased value, never negative.

    As a loss its expected gradient is exactly that of KL(pi || pi_ref), token by token.
    """
    finite, delta = _delta(log_probs, ref_log_probs)
    return torch.where(finite, delta.square() / 2, torch.nan)


def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """exp(delta) - delta - 1, (N, T): unbiased for KL(pi || pi_ref) and never negative.

    The penalty in GRPO's loss (arXiv:2402.03300, Eq. 4). As a loss its expected gradient is that
    of the *forward* KL(pi_ref || pi). expm1, because in float32 exp(1e-4) - 1e-4 - 1 is 0.
    delta is held at 20 before the exponential, where it would overflow; a very negative delta
    and the result itself are left alone, because a clamp there would remove the pull back.
    """
    finite, delta = _delta(log_probs, ref_log_probs)
    return torch.where(finite, _k3(delta), torch.nan)


def rho_minus_log(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """rho - 1 - log rho with rho = pi / pi_old, (N, T): KL(pi_old || pi) for samples of pi_old.

    Unbiased, never negative, and as a loss its expected gradient is exactly that of KL(pi_old ||
    pi), PPO's penalty (arXiv:1707.06347, Eq. 8). It is k3 seen from the other side: there the
    samples come from the policy in training.
    """
    finite, delta = _delta(log_probs, old_log_probs)
    return torch.where(finite, _k3(-delta), torch.nan)


def absolute(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """|log pi - log pi_ref|, (N, T): a biased value, never negative, and no KL's gradient.

    As a loss its expected gradient is E[sign(log pi - log pi_ref) * grad(log pi)].
    """
    finite, delta = _delta(log_probs, ref_log_probs)
    return torch.where(finite, delta.abs(), torch.nan)


def _importance_weighted(
    estimate: Callable[[Tensor], Tensor],
    log_probs: Tensor,
    old_log_probs: Tensor,
    ref_log_probs: Tensor,
) -> Tensor:
    """(pi / pi_old) * estimate(delta); the ratio carries a gradient as well."""
    names = "log_probs, old_log_probs and ref_log_probs"
    check_same_shape(names, log_probs, old_log_probs, ref_log_probs)
    finite, log_probs, old, ref = finite_inputs(
        log_probs, old_log_probs.detach(), ref_log_probs.detach()
    )
    ratio = log_ratio(log_probs, old).exp()
    return torch.where(finite, ratio * estimate(ref - log_probs), torch.nan)


def k1_importance(log_probs: Tensor, old_log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(pi / pi_old) * k1, (N, T): unbiased when the samples come from an older policy.

    As a loss its expected gradient is exactly that of KL(pi || pi_ref), because the ratio is
    differentiated as well (DeepSeek-V3.2, arXiv:2512.02556, "unbiased KL estimate").
    """
    return _importance_weighted(torch.neg, log_probs, old_log_probs, ref_log_probs)


def k3_importance(log_probs: Tensor, old_log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(pi / pi_old) * k3, (N, T): as `k1_importance` in expectation, with less variance.

    Never negative (DeepSeek-V3.2, arXiv:2512.02556, "unbiased KL estimate").
    """
    return _importance_weighted(_k3, log_probs, old_log_probs, ref_log_probs)


def full_kl(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """sum_v pi(v) (log pi(v) - log pi_ref(v)) over the vocabulary, (N, T, V) -> (N, T).

    Exact given the prefix: no sampling noise in its value or its gradient. Also MiniLLM's
    single-step term, with the teacher as reference (arXiv:2306.08543, Eq. 3). Logits of -inf (a
    forbidden token) are allowed: 0 log 0 is 0, and infinity where only the reference forbids.
    A NaN gives NaN at its position; neither of the two has a gradient.
    """
    if logits.shape != ref_logits.shape or logits.ndim != 3:
        shapes = [tuple(logits.shape), tuple(ref_logits.shape)]
        raise ValueError(f"logits and ref_logits must both be (N, T, V): got {shapes}")
    logits, ref_logits = at_least_float32(logits), at_least_float32(ref_logits.detach())
    usable = (logits.amax(-1) + ref_logits.amax(-1)).isfinite()  # (N, T)
    # A probability of 0 as a very small one: 0 log 0 is then 0, and not 0 times infinity.
    logits, ref_logits = (
        torch.where(usable.unsqueeze(-1), x.clamp(min=FORBIDDEN), 0.0) for x in (logits, ref_logits)
    )
    kl = kl_from_logits(logits, ref_logits)
    kl = torch.where(kl > -FORBIDDEN * 1e-10, torch.inf, kl)  # only the reference excludes a token
    return torch.where(usable, kl, torch.nan)


# --- which estimator may stand where ------------------------------------------------------------


def loss_estimator(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The estimator to differentiate as a loss term: "k2" or "k3". Raises ValueError otherwise.

    The expected gradient of k2 is that of KL(pi || pi_ref), that of k3 the one of KL(pi_ref || pi).
    """
    if name == "k1":
        raise ValueError(
            "k1 as a loss regularises nothing: its expected gradient is 0 whatever the reference "
            "is. Use k3 (GRPO's choice) or k2 (the gradient of KL(policy || reference))"
        )
    if name not in ("k2", "k3"):
        raise ValueError(f"the KL loss is k2 or k3, not {name!r}: no other has a KL's gradient")
    return {"k2": k2, "k3": k3}[name]


def reward_estimator(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The estimator to subtract from the reward: "k1", or with a warning "k3"."""
    if name == "k3":
        warnings.warn(
            "k3 in the reward gives a biased gradient, KL(policy || reference) minus KL(reference "
            "|| policy); k1 gives that of KL(policy || reference) exactly",
            stacklevel=2,
        )
    elif name != "k1":
        raise ValueError(f"the KL in the reward is k1 (or k3, with its bias), not {name!r}")
    return {"k1": k1, "k3": k3}[name]


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
    """A constant coefficient, in the place of a rule that adapts it."""

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


@dataclass
class DoublingKL(_Coefficient):
    """PPO's rule for a KL penalty (Schulman et al. 2017, arXiv:1707.06347, section 4, Eq. 8).

    KL > 1.5 * target doubles the coefficient, KL < target / 1.5 halves it. The paper applies it
    to KL(pi_old || pi) as a term of the loss.
    """

    target: float

    def __post_init__(self) -> None:
        if not (self.coef > 0 and self.target > 0):
            raise ValueError(f"coef and target must be positive: got {self}")

    def update(self, kl_per_response: float, responses: int) -> None:
        """Double, halve or keep the coefficient after one rollout."""
        _check_update(kl_per_response, responses)
        if kl_per_response > 1.5 * self.target:
            self.coef *= 2
        elif kl_per_response < self.target / 1.5:
            self.coef /= 2
