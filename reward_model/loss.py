"""The pairwise loss of a scalar reward model."""

import torch.nn.functional as F
from torch import Tensor

from gpt.border import row_equation


@row_equation
def bradley_terry_loss(
    chosen: Tensor,  # (pairs,)
    rejected: Tensor,  # (pairs,)
    *,
    margin: Tensor | None = None,  # (pairs,)
    centering: float = 0.0,
) -> Tensor:  # scalar
    """mean[-log sigmoid(R_w - R_l - margin)] + centering mean[(R_w + R_l)^2], a scalar.

    The negative log-likelihood that the chosen response wins, under Bradley and Terry (1952).

    Ouyang et al. 2022, arXiv:2203.02155, Eq. 1; the margin is Llama 2's (arXiv:2307.09288, Eq. 2)
    and the centring term, 0.01 where it is used, is from arXiv:2312.09244, Eq. 2: without it the
    loss does not change when a constant is added to every score. logsigmoid keeps the loss linear
    for a pair that is far on the wrong side, where log(1 + exp(x)) would overflow. Equal scores
    cost log 2; no pairs at all cost 0.
    """
    gap = chosen - rejected if margin is None else chosen - rejected - margin
    loss = -F.logsigmoid(gap) + centering * (chosen + rejected).square()
    return loss.sum() / max(len(loss), 1)
