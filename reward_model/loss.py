"""The loss of a scalar reward model on preference pairs."""

import torch.nn.functional as F
from torch import Tensor

from harness.tensors import at_least_float32, axes


def bradley_terry_loss(
    chosen: Tensor,  # (pairs,), of the model in training
    rejected: Tensor,  # (pairs,), of the model in training
    *,
    margin: Tensor | None = None,  # (pairs,)
    weights: Tensor | None = None,  # (pairs,)
    centering: float = 0.0,
    denominator: float | Tensor | None = None,
) -> Tensor:  # a scalar
    """mean[-log sigmoid(R_w - R_l - margin)] + centering mean[(R_w + R_l)^2].

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
    axes("pairs", chosen=chosen, rejected=rejected, margin=margin, weights=weights)
    chosen, rejected = at_least_float32(chosen), at_least_float32(rejected)
    gap = chosen - rejected if margin is None else chosen - rejected - margin.detach()
    loss = -F.logsigmoid(gap) + centering * (chosen + rejected).square()
    if weights is not None:
        weights = at_least_float32(weights).detach()
        return (weights * loss).sum() / (denominator or weights.sum())
    return loss.sum() / (denominator or max(len(loss), 1))
