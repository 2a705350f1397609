"""Preference losses: one loss per pair of responses, from the log-probs of whole responses.

Every tensor is (pairs,), of KTO (answers,). A log-prob is the *sum* over a response's tokens
(`masked_sum`), or its mean (`masked_mean`) where a loss is length-normalised: `pair_log_probs` of
rl/batches/preferences.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.tensors import at_least_float32, axes

NEVER_CERTAIN = -1e-6  # the largest log-prob per token that has finite odds in float32


def preference_gap(
    policy_chosen: Tensor,  # (pairs,), of the policy in training
    policy_rejected: Tensor,  # (pairs,), of the policy in training
    ref_chosen: Tensor,  # (pairs,)
    ref_rejected: Tensor,  # (pairs,)
) -> Tensor:  # (pairs,)
    """h = log(pi / pi_ref)(y_w|x) - log(pi / pi_ref)(y_l|x) (arXiv:2305.18290, Eq. 7)."""
    axes(
        "pairs", policy_chosen=policy_chosen, policy_rejected=policy_rejected,
        ref_chosen=ref_chosen, ref_rejected=ref_rejected,
    )  # fmt: skip
    chosen = at_least_float32(policy_chosen) - ref_chosen.detach()
    rejected = at_least_float32(policy_rejected) - ref_rejected.detach()
    return chosen - rejected


def dpo_loss(
    policy_chosen: Tensor,  # (pairs,), of the policy in training
    policy_rejected: Tensor,  # (pairs,), of the policy in training
    ref_chosen: Tensor,  # (pairs,)
    ref_rejected: Tensor,  # (pairs,)
    beta: float,
    *,
    label_smoothing: float = 0.0,
) -> Tensor:  # (pairs,)
    """-(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h) (DPO, arXiv:2305.18290, Eq. 7).

    s = `label_smoothing` is the chance that a label is wrong (conservative DPO); DPO has s = 0.
    """
    h = preference_gap(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    right, wrong = F.logsigmoid(beta * h), F.logsigmoid(-beta * h)
    return -(1 - label_smoothing) * right - label_smoothing * wrong


def ipo_loss(
    policy_chosen: Tensor,  # (pairs,), of the policy in training
    policy_rejected: Tensor,  # (pairs,), of the policy in training
    ref_chosen: Tensor,  # (pairs,)
    ref_rejected: Tensor,  # (pairs,)
    beta: float,
) -> Tensor:  # (pairs,)
    """(h - 1 / (2 beta))^2 (IPO, Azar et al. 2023, arXiv:2310.12036, Eq. 17).

    The gap is regressed on a finite target, so even labels that never disagree do not push it to
    infinity. Two readings exist: with summed log-probs (OpenRLHF), and with means per token (TRL).
    """
    h = preference_gap(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return (h - 1 / (2 * beta)).square()


def hinge_loss(
    policy_chosen: Tensor,  # (pairs,), of the policy in training
    policy_rejected: Tensor,  # (pairs,), of the policy in training
    ref_chosen: Tensor,  # (pairs,)
    ref_rejected: Tensor,  # (pairs,)
    beta: float,
) -> Tensor:  # (pairs,)
    """max(0, 1 - beta h): RSO's loss (arXiv:2309.06657); without a reference SLiC's (2305.10425)."""
    h = preference_gap(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return torch.relu(1 - beta * h)


def simpo_loss(
    policy_chosen: Tensor,  # (pairs,), of the policy in training
    policy_rejected: Tensor,  # (pairs,), of the policy in training
    beta: float,
    target_margin: float,
) -> Tensor:  # (pairs,)
    """-log sigmoid(beta (l_w - l_l) - gamma) (SimPO, Meng et al. 2024, arXiv:2405.14734, Eq. 6).

    l is the *mean* log-prob per token and gamma the `target_margin`; there is no reference.
    """
    axes("pairs", policy_chosen=policy_chosen, policy_rejected=policy_rejected)
    gap = at_least_float32(policy_chosen) - policy_rejected
    return -F.logsigmoid(beta * gap - target_margin)


def orpo_loss(
    policy_chosen: Tensor,  # (pairs,), of the policy in training
    policy_rejected: Tensor,  # (pairs,), of the policy in training
    beta: float,
) -> Tensor:  # (pairs,)
    """-l_w - lambda log sigmoid(log odds(y_w) - log odds(y_l)) (ORPO, arXiv:2403.07691, Eqs. 6-7).

    l is the *mean* log-prob per token and odds(y) = e^l / (1 - e^l). -l_w is fine-tuning on the
    chosen answer; its weight against the odds ratio, lambda, is `beta`. There is no reference.
    """
    axes("pairs", policy_chosen=policy_chosen, policy_rejected=policy_rejected)
    chosen, rejected = at_least_float32(policy_chosen), at_least_float32(policy_rejected)
    log_odds_ratio = _log_odds(chosen) - _log_odds(rejected)
    return -chosen - beta * F.logsigmoid(log_odds_ratio)


def _log_odds(log_prob: Tensor) -> Tensor:
    """log(p / (1 - p)) of log p."""
    return log_prob - log_prob.clamp(max=NEVER_CERTAIN).expm1().neg().log()


def kto_loss(
    policy: Tensor,  # (answers,), of the policy in training
    ref: Tensor,  # (answers,)
    desirable: Tensor,  # (answers,), true or false
    beta: float,
    reference_point: float | Tensor,
    *,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:  # (answers,)
    """w_D [1 - sigmoid(beta (r - z))] of a desirable answer, w_U [1 - sigmoid(beta (z - r))] of another.

    KTO (Ethayarajh et al. 2024, arXiv:2402.01306): r = log(pi / pi_ref)(y|x), and each
    answer is judged alone. A pair is two of them, the chosen one desirable, the rejected one not. z, the
    `reference_point`, is an estimate of KL(pi || pi_ref) without a gradient (rl/dpo_engine.py).
    """
    axes("answers", policy=policy, ref=ref, mask=desirable)
    r = at_least_float32(policy) - ref.detach()
    z = torch.as_tensor(reference_point, dtype=r.dtype).detach()
    good = desirable_weight * (1 - torch.sigmoid(beta * (r - z)))
    bad = undesirable_weight * (1 - torch.sigmoid(beta * (z - r)))
    return torch.where(desirable, good, bad)
