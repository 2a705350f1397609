"""Several reward models as one reward (Coste et al. 2024, arXiv:2310.02743, section 3).

`scores` are (K, N): K members on the same N responses. The result is (N,). Members must be on one
scale first: a Bradley-Terry score is known up to a constant only, and the constants would be read as
disagreement.
"""

import torch
from torch import Tensor

from harness.tensors import at_least_float32, axes


@torch.no_grad()
def ensemble_mean(scores: Tensor) -> Tensor:
    """mean_k R_k, (K, N) -> (N,): the errors that members do not share are averaged away."""
    axes("K N", scores=scores)
    return at_least_float32(scores).mean(0)


@torch.no_grad()
def worst_case(scores: Tensor) -> Tensor:
    """min_k R_k, (K, N) -> (N,): the member that likes a response least decides (WCO)."""
    axes("K N", scores=scores)
    return at_least_float32(scores).amin(0)
