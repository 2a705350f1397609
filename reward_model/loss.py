"""The losses of a scalar reward model: of pairs, and of labels."""

import torch.nn.functional as F

from harness.equation_checks import N, Pairs, Scalar, Trained, row_equation


@row_equation
def bradley_terry_loss(
    chosen: Trained[Pairs],
    rejected: Trained[Pairs],
    *,
    margin: Pairs | None = None,
    weights: Pairs | None = None,
    centering: float = 0.0,
    denominator: float | Scalar | None = None,
) -> Scalar:
    """mean[-log sigmoid(R_w - R_l - margin)] + centering mean[(R_w + R_l)^2], a scalar.

    The negative log-likelihood that the chosen response wins, under Bradley and Terry (1952).

    Ouyang et al. 2022, arXiv:2203.02155, Eq. 1; the margin is Llama 2's (arXiv:2307.09288, Eq. 2)
    and the centring term, 0.01 where it is used, is from arXiv:2312.09244, Eq. 2: without it the
    loss does not change when a constant is added to every score. logsigmoid keeps the loss linear
    for a pair that is far on the wrong side, where log(1 + exp(x)) would overflow. Equal scores
    cost log 2; no pairs at all cost 0.

    The mean is over pairs. Ouyang et al. average a prompt's comparisons first, 1 / C(K, 2) each, and
    then the prompts. The two agree where every prompt has the same number of pairs; one that lost
    some (equal responses cannot be compared) counts for less in a mean over pairs. `weights` of
    1 / (pairs of the prompt) give the paper's: sum(weights * loss) / sum(weights). Where these pairs
    are a part of a batch, `denominator` is the whole batch's count of pairs, or sum of weights.
    """
    gap = chosen - rejected if margin is None else chosen - rejected - margin
    loss = -F.logsigmoid(gap) + centering * (chosen + rejected).square()
    if weights is not None:
        return (weights * loss).sum() / (denominator or weights.sum())
    return loss.sum() / (denominator or max(len(loss), 1))


@row_equation
def outcome_loss(
    outcome_scores: Trained[N],
    labels: N,  # 1 for a good response, 0 for a bad one
    *,
    denominator: float | Scalar | None = None,
) -> Scalar:
    """mean[-y log sigmoid(R) - (1 - y) log sigmoid(-R)], a scalar: binary cross-entropy.

    The outcome reward model: R is the log-odds that the whole response is good. Cobbe et al. 2021
    (arXiv:2110.14168, section 4.2) predict it after every token; here the response has one score.
    A score of 0 costs log 2. Unlike pairs, labels fix the origin of the scale: adding a constant to
    every score changes the loss. `denominator` is the whole batch's count where these are a part.
    """
    loss = -labels * F.logsigmoid(outcome_scores) - (1 - labels) * F.logsigmoid(-outcome_scores)
    return loss.sum() / (denominator or max(len(loss), 1))
