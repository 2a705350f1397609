"""What is read off answers and curves: rewards of a rule, pass@k, diversity, noise."""

import math

import torch

from conformance.batches import Arguments, number
from course.exercises.entries import case, exercise


def solved(generator: torch.Generator) -> Arguments:
    n = number(generator, 3, 9)
    chance = torch.rand(5, 1, generator=generator)
    correct = torch.rand(5, n, generator=generator) < chance
    return {"correct": correct, "k": number(generator, 2, n)}


@exercise(
    case(
        "one and two of four are right, k = 2: so are three and five of the six pairs", 0.666667,
        correct=[[True, False, False, False], [True, True, False, False]], k=2,
    ),
    case(
        "a prompt that is always solved and one that never is", 0.5,
        correct=[[True, True, True], [False, False, False]], k=2,
    ),
    random=solved,
    mistakes="""
        math.comb(n - c, k) / math.comb(n, k) -> (1 - c / n) ** k
            1 - (1 - c/n)^k puts every sample back into the urn and comes out too low. Count the subsets of
            k different samples.
        math.comb(n - c, k) / math.comb(n, k) -> 1 - c / n
            this is pass@1, the share of right samples: k plays no part in it.
        math.comb(n - c, k) / math.comb(n, k) -> float(c == 0)
            this asks whether any of the n samples is right: that is pass@n. Only k of them may be tried.
        1 - sum(misses) / len(misses) -> pass_at_k(correct.reshape(1, -1), k)
            you put the samples of all prompts into one urn. Each prompt has its own c: average over
            prompts at the end.
        math.comb(n - c, k) / math.comb(n, k) -> 1 - math.comb(c, k) / math.comb(n, k)
            this is the chance that *all* k are right. pass@k asks for at least one.
        1 - sum(misses) -> sum(misses)
            this is the chance that all k are wrong: take it from 1.
        math.comb(n - c, k) / math.comb(n, k) for c in correct.sum(1).tolist()
        -> float(not any(row[:k])) for row in correct.tolist()
            you look at the first k samples alone: right on average and noisy. Count all subsets of k.
    """,
)  # fmt: skip
def pass_at_k(correct, k):
    """From n samples of each of P prompts, correct (P, n) bool, compute the mean over prompts of 1
    - C(n - c, k) / C(n, k), where c of a prompt's samples are right: one number."""
    n = correct.shape[1]
    misses = [math.comb(n - c, k) / math.comb(n, k) for c in correct.sum(1).tolist()]
    return 1 - sum(misses) / len(misses)


def a_curve(generator: torch.Generator) -> Arguments:
    steps = number(generator, 9, 40)
    slope = 0.1 * torch.randn((), generator=generator)
    return {"values": slope * torch.arange(steps) + torch.randn(steps, generator=generator)}


@exercise(
    case("first third 0, 2, last third 4, 6", 2.828427, values=[0.0, 2.0, 9.0, 9.0, 4.0, 6.0]),
    case(
        "a curve that ends as it began", 0.0, values=[1.0, 2.0, 3.0, 8.0, 8.0, 8.0, 3.0, 2.0, 1.0]
    ),
    random=a_curve,
    constants="values",
    mistakes="""
        ((first.var() + last.var()) / third).sqrt() -> (first.var() + last.var()).sqrt()
            you divide by a standard deviation. A mean of k values is sqrt(k) times less noisy than one
            value: divide the variances by T // 3.
        ((first.var() + last.var()) / third).sqrt() -> values.std() * math.sqrt(2 / third)
            your noise is the deviation of the whole curve, in which the rise itself is contained. Take the
            variances within the two thirds.
        last.mean() - first.mean() -> values[-1] - values[0]
            you compare the last value with the first one. Two single values are mostly noise: compare the
            means of two thirds.
        last.mean() - first.mean() -> first.mean() - last.mean()
            your sign is flipped: a curve that rises has a positive result.
        (last.mean() - first.mean()) / error -> last.mean() - first.mean()
            that is the rise itself. Only its standard error says whether it is more than noise.
        ((first.var() + last.var()) / third).sqrt() -> values.std()
            you divide by the deviation of the curve. A mean of k values is sqrt(k) times less noisy, and
            the rise itself is in that deviation: use the standard error.
    """,
)
def rise_in_errors(values):
    """From a curve (T,) compute (mean of its last third - mean of its first third) / standard error,
    where a third has T // 3 values and the standard error is sqrt((Var first + Var last) / (T // 3))."""
    third = len(values) // 3
    first, last = values[:third], values[-third:]
    error = ((first.var() + last.var()) / third).sqrt()
    return (last.mean() - first.mean()) / error
