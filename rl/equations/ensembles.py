"""Several reward models as one reward (Coste et al. 2024, arXiv:2310.02743, section 3).

`scores` are (K, N): K members on the same N responses. The result is (N,). Members must be on one
scale first: a Bradley-Terry score is known up to a constant only, and the constants would be read as
disagreement.
"""

from harness.equation_checks import KxN, N, row_equation


@row_equation
def ensemble_mean(scores: KxN) -> N:
    """mean_k R_k, (K, N) -> (N,): the errors that members do not share are averaged away."""
    return scores.mean(0)


@row_equation
def worst_case(scores: KxN) -> N:
    """min_k R_k, (K, N) -> (N,): the member that likes a response least decides (WCO)."""
    return scores.amin(0)
