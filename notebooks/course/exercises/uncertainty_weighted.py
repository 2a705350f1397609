"""An ensemble's reward that pays less where its members disagree."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.equations import ensembles as library


def uncertainty_weighted(scores, coef):
    return scores.mean(0) - coef * scores.var(0)


@mistake
def by_the_deviation(scores, coef):
    """you subtract the standard deviation. The paper (arXiv:2310.02743) takes its square, the
    variance."""
    return scores.mean(0) - coef * scores.std(0)


@mistake
def biased_variance(scores, coef):
    """your variance divides by K. Here it divides by K - 1, as tensor.var() does unless told
    otherwise."""
    return scores.mean(0) - coef * scores.var(0, correction=0)


@mistake
def paid_for_disagreement(scores, coef):
    """you add the variance: that pays the policy for going where the reward models disagree."""
    return scores.mean(0) + coef * scores.var(0)


@mistake
def lowest_member(scores, coef):
    """that is the lowest member, the worst-case combination (WCO). Here the mean loses coef times
    the variance."""
    return scores.amin(0)


@mistake
def without_the_coefficient(scores, coef):
    """the variance is not multiplied by coef."""
    return scores.mean(0) - scores.var(0)


@mistake
def over_the_responses(scores, coef):
    """your statistics run over the responses. The members are the rows: take mean and variance over
    dimension 0."""
    return (scores - scores.mean(1, keepdim=True)).mean(0) - coef * scores.var(
        1, correction=0
    ).mean()


def members(generator: torch.Generator) -> Arguments:
    K, N = (int(torch.randint(2, 7, (1,), generator=generator)) for _ in range(2))
    scores = 2 * torch.randn(K, N, generator=generator)
    return {"scores": scores, "coef": 0.1 + float(torch.rand(1, generator=generator))}


EXERCISE = Exercise(
    statement=(
        "From the scores (K, N) that K reward models give to the same N responses, compute mean - coef * "
        "variance over the members, of shape (N,). The variance is that of a sample, over K - 1."
    ),
    solution=uncertainty_weighted,
    library=library.uncertainty_weighted,
    cases=(
        Case(
            "three members say 1, 2 and 4 of one response, coef 0.5",
            {"scores": torch.tensor([[1.0], [2.0], [4.0]]), "coef": 0.5},
            [1.166667],
        ),
        Case(
            "two responses with the same mean: the members agree on one of them only",
            {"scores": torch.tensor([[2.0, 0.0], [2.0, 4.0]]), "coef": 0.25},
            [2.0, 0.0],
        ),
    ),
    random=members,
)
