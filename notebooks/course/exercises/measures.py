"""What is read off answers and curves: rewards of a rule, pass@k, diversity, noise."""

import math
import re

import torch

from course.exercises.batches import Arguments, number, ragged_mask, some
from course.exercises.entries import case, exercise, lengths, logs

FORMS = (
    "It is {n}.", "First {m}, then {n}", "I do not know.", "{n} or so", "#{n}{m}", "minus -{n}",
    "{n}, no: {m}", "not {m} but {n}", "It is -{n}.",
)  # fmt: skip


def some_answers(generator: torch.Generator) -> Arguments:
    """Each form with the truth or its neighbour, beside another number."""
    truth = number(generator, 3, 30)
    answers = [truth + number(generator, 0, 2) for _ in FORMS]
    texts = [form.format(n=n, m=truth + 40) for form, n in zip(FORMS, answers)]
    ended = (torch.rand(len(FORMS), generator=generator) < 0.8).tolist()
    return {"texts": texts, "truth": truth, "ended": ended}


@exercise(
    case(
        "six answers to 7+8", [1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        texts=("It is 15.", "150", "7, 8 and 15, no: 16", "I do not know.", "15", "-15"),
        truth=15, ended=(True, True, True, True, False, True),
    ),
    random=some_answers,
    mistakes=r"""
        bool(numbers) and int(numbers[-1]) == truth -> str(truth) in text
            you look for the characters: "150" contains "15". Read whole numbers and compare them as
            numbers.
        numbers[-1] -> numbers[0]
            you read the first number. A response that works it out ends with its answer: take the last.
        bool(numbers) and int(numbers[-1]) == truth -> str(truth) in numbers
            any number of the text may be the right one: then a list of numbers always pays, and a policy
            finds that first.
        right and done -> right
            a response that was cut off is paid. It is wrong whatever it says: it never ended.
        -?\d+ -> \d+
            you lose the minus sign: -15 is not 15.
    """,
)  # fmt: skip
def answer_reward(texts, truth, ended):
    """Pay 1.0 for each of the texts whose last whole number (with its minus sign) is truth and
    which ended, else 0.0. texts is a list of strings, ended a list of bools."""
    paid = []
    for text, done in zip(texts, ended):
        numbers = re.findall(r"-?\d+", text)
        right = bool(numbers) and int(numbers[-1]) == truth
        paid.append(float(right and done))
    return paid


def solved(generator: torch.Generator) -> Arguments:
    chance = torch.rand(5, 1, generator=generator)
    return {"correct": torch.rand(5, 8, generator=generator) < chance, "k": 3}


@exercise(
    case(
        "one of four is right, k = 2: three of the six pairs hold it", 0.5,
        correct=[[True, False, False, False]], k=2,
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
    random=lambda generator: {"correct": solved(generator)["correct"].flatten(), "group_size": 4},
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


@exercise(
    case(
        "one answer, probabilities 1/2 and 1/8: the mean of log 2 and log 8 is log 4", 4.0,
        log_probs=logs([[0.5, 0.125]]), mask=lengths(2),
    ),
    case(
        "two answers, one of three tokens and one of a single token", 4.0,
        log_probs=logs([[0.5, 0.5, 0.5], [1 / 32, 0.9, 0.9]]), mask=lengths(3, 1),
    ),
    random=some("log_probs mask"),
    mistakes="""
        -(log_probs * mask).sum() / mask.sum() -> -log_probs.mean()
            you average over the padding too: what stands after an answer's end is no token of it. Multiply
            by the mask, and divide by its sum.
        -(log_probs * mask).sum() / mask.sum() -> (-(log_probs * mask).sum(1) / mask.sum(1)).mean()
            you average within each answer first. Then a token of a short answer counts for more;
            perplexity is per token over all answers.
        surprise.exp() -> (-(log_probs * mask).sum(1) / mask.sum(1)).exp().mean()
            you take the exponential of each answer and average afterwards. One odd answer then outweighs
            all others: average the surprises, and take the exponential last.
        surprise.exp() -> surprise
            this is the mean surprise in nats. Perplexity is its exponential: a choice among so many
            equally likely tokens.
        surprise.exp() -> (-surprise).exp()
            this is the geometric mean of the probabilities. Perplexity is one over it: a minus is missing.
        / mask.sum() -> / len(mask)
            you divide by the number of answers. That is nats per answer; divide by the tokens.
    """,
)  # fmt: skip
def perplexity(log_probs, mask):
    """From the log-probs (N, T) of the tokens of N answers and the mask (N, T), True for tokens that
    count, compute exp of the mean surprise -log p over all tokens that count."""
    surprise = -(log_probs * mask).sum() / mask.sum()  # nats per token
    return surprise.exp()


def some_words(generator: torch.Generator) -> Arguments:
    mask = ragged_mask(generator, 5, 6)
    words = torch.randint(1, 5, (5, 6), generator=generator)
    return {"words": torch.where(mask, words, 0), "mask": mask}


@exercise(
    case(
        "one answer, 1 2 1 2: the pairs are 12, 21, 12", 2 / 3,
        words=[[1, 2, 1, 2]], mask=lengths(4),
    ),
    case(
        "the same answer twice, 1 2 3: two pairs of four differ", 0.5,
        words=[[1, 2, 3], [1, 2, 3]], mask=lengths(3, 3),
    ),
    case(
        "1 2 and 2 1 are two pairs", 0.75,
        words=[[1, 2], [2, 1], [1, 2], [2, 2]], mask=lengths(2, 2, 2, 2),
    ),
    random=some_words,
    mistakes="""
        len(set(pairs)) / len(pairs)
        -> sum(len(set(zip(row, row[1:]))) / (len(row) - 1) for row in rows) / len(rows)
            you count within each answer and average. A policy that gives every prompt the same answer
            would look perfect: put the pairs of all answers into one set.
        [row[counts].tolist() for row, counts in zip(words, mask)] -> [words[mask].tolist()]
            your pairs join the last word of an answer with the first of the next, which nobody wrote. Make
            the pairs row by row.
        zip(row, row[1:]) -> row
            you count single words: that is distinct-1. Distinct-2 counts neighbours.
        row[counts].tolist() -> row.tolist()
            your pairs contain padding. Take the words where the mask is True.
        len(set(pairs)) / len(pairs) -> float(len(set(pairs)))
            you give the number of different pairs. Divide by the number of all pairs.
        set(pairs) -> set(map(frozenset, pairs))
            for you 1 2 and 2 1 are the same pair. The order matters: 'not good' is not 'good not'.
    """,
)  # fmt: skip
def distinct_pairs(words, mask):
    """From the words (N, T) of N answers, as numbers, and the mask (N, T), True for words that count,
    compute the different neighbouring pairs divided by all neighbouring pairs, over all answers
    together. A pair never joins two answers."""
    rows = [row[counts].tolist() for row, counts in zip(words, mask)]
    pairs = [pair for row in rows for pair in zip(row, row[1:])]
    return len(set(pairs)) / len(pairs)


def moved(generator: torch.Generator) -> Arguments:
    mask = ragged_mask(generator, 4, 6)
    log_probs, move = torch.randn(2, 4, 6, generator=generator)
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
    random=lambda generator: {"p": torch.rand(10, generator=generator) ** 3},
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
