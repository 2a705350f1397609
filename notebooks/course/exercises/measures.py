"""What is read off answers and curves: rewards of a rule, pass@k, diversity, noise."""

import math

import torch

from conformance.batches import Arguments, number, ragged_mask
from course.exercises.entries import case, exercise, lengths


def solved(generator: torch.Generator) -> Arguments:
    n = number(generator, 3, 9)
    chance = torch.rand(5, 1, generator=generator)
    correct = torch.rand(5, n, generator=generator) < chance
    return {"correct": correct, "k": number(generator, 2, n)}


def solved_or_not(generator: torch.Generator) -> Arguments:
    correct = solved(generator)["correct"]
    correct[0], correct[1] = True, False
    return {"correct": correct.flatten(), "group_size": correct.shape[1]}


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


@exercise(
    case(
        "four prompts: one right of two, both right, none right, one right", 0.5,
        correct=[True, False, True, True, False, False, False, True], group_size=2,
    ),
    random=solved_or_not,
    mistakes="""
        groups.any(1) & ~groups.all(1) -> groups.any(1)
            this is the solve rate, at least one right. A group that is all right teaches nothing either:
            its advantages are all 0.
        (groups.any(1) & ~groups.all(1)) -> (~groups.any(1) | groups.all(1))
            this is the share of *silent* groups: take one minus it.
        (groups.any(1) & ~groups.all(1)) -> groups
            this is the success rate, the share of right responses. Look at each group as a whole.
        correct.view(-1, group_size) -> correct.view(group_size, -1).T
            you take every (N / G)-th response for a group. Responses to one prompt are neighbours:
            correct.view(-1, group_size).
    """,
)  # fmt: skip
def informative_groups(correct, group_size):
    """From correct (N,) bool, the responses to a prompt next to each other in groups of
    group_size, compute the share of groups with at least one right and at least one wrong
    response: one number."""
    groups = correct.view(-1, group_size)
    return (groups.any(1) & ~groups.all(1)).float().mean()


def moved(generator: torch.Generator) -> Arguments:
    rows, columns = number(generator, 2, 5), number(generator, 4, 8)
    mask = ragged_mask(generator, rows, columns)
    log_probs, move = torch.randn(2, rows, columns, generator=generator)
    move = torch.where(mask, move / 2, 4.0)  # what stands at padding is never read
    return {"log_probs": log_probs, "old_log_probs": log_probs - move, "mask": mask}


@exercise(
    case(
        "ratios e^0.5 and e^-1, and padding", 0.648721,
        log_probs=[[-1.0, -2.0, 0.0]], old_log_probs=[[-1.5, -1.0, -3.0]],
        mask=lengths(2, columns=3),
    ),
    case(
        "one token that has become less likely, ratio e^-2", 0.864665,
        log_probs=[[-3.0]], old_log_probs=[[-1.0]], mask=lengths(1),
    ),
    random=moved,
    constants="log_probs old_log_probs",
    mistakes="""
        (ratio - 1).abs()[mask] -> (ratio - 1).abs()
            padding counts as well. What stands after the end of a response is never sampled: take the
            largest over the mask's True positions only.
        (log_probs - old_log_probs).exp() -> 1 + log_probs - old_log_probs
            that is the largest |log ratio|. For small steps it is nearly the same, but the ratio is the
            exponential of the difference of the log-probs.
        .abs()[mask] -> [mask]
            you take the largest ratio - 1 with its sign. A ratio of 0.1 is as wrong as one of 1.9: take
            the absolute value first.
        .max() -> .mean()
            that is the mean. One wrong token among a thousand would not be seen: take the largest.
        log_probs - old_log_probs -> old_log_probs - log_probs
            your ratio is pi_old / pi. The new policy stands above: exp(log_probs - old_log_probs).
    """,
)  # fmt: skip
def largest_ratio_error(log_probs, old_log_probs, mask):
    """From log_probs and old_log_probs (N, T) and the response mask (N, T), compute the largest
    |ratio - 1| of a valid token, one number, with ratio = pi / pi_old."""
    ratio = (log_probs - old_log_probs).exp()  # (N, T)
    return (ratio - 1).abs()[mask].max()


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


@exercise(
    case("three claims", [0.03, 0.06, 0.06], p=[0.01, 0.04, 0.03]),
    case("four claims", [0.004, 0.06, 0.2, 0.08], p=[0.001, 0.02, 0.2, 0.04]),
    case("nothing there", [1.0, 1.0], p=[0.9, 0.6]),
    case("two that are alike", [0.0234375, 0.0234375, 0.5], p=[0.0078125, 0.0078125, 0.5]),
    random=lambda generator: {"p": torch.rand(number(generator, 3, 12), generator=generator) ** 3},
    constants="p",
    mistakes="""
        (m - torch.arange(m)) -> m
            you multiply every p by m: that is Bonferroni's correction, which is right but gives more away.
            Holm multiplies the i-th smallest by m - i + 1.
        steps.cummax(0).values -> steps
            right, except that a larger p may come out below a smaller one's. No corrected p is below that
            of a smaller one: take the running maximum.
        .values.clamp(max=1.0) -> .values
            right, except that a p-value is at most 1.
        (m - torch.arange(m)) -> (1 + torch.arange(m))
            you multiply the smallest by 1 and the largest by m. It is the other way: the smallest of m
            pays for all of them.
        p.argsort() -> torch.arange(len(p))
            you multiply in the order in which the p-values are given. Sort them first.
        (m - torch.arange(m)) * p[order] -> (m / (1 + torch.arange(m)) * p[order])
            m / i times the i-th smallest is Benjamini and Hochberg's, which bounds the share of false
            discoveries. Holm bounds the chance of any: m - i + 1.
    """,
)
def holm(p):
    """From p-values (m,) compute Holm's corrected ones (m,): the i-th smallest, i from 1, times
    m - i + 1, none below that of a smaller one, and none above 1."""
    m, order = len(p), p.argsort()
    steps = (m - torch.arange(m)) * p[order]
    corrected = torch.empty_like(p)
    corrected[order] = steps.cummax(0).values.clamp(max=1.0)
    return corrected
