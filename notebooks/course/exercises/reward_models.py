"""Learning a reward from comparisons, reading it, and picking the best answer by it."""

import math

import torch
import torch.nn.functional as F

from conformance.batches import Arguments, number, some
from course.exercises.entries import case, exercise, lengths


def scored_pairs(generator: torch.Generator) -> Arguments:
    chosen, rejected = torch.randn(2, number(generator, 2, 9), generator=generator)
    return {"chosen": chosen + rejected, "rejected": rejected}


@exercise(
    case(
        "two pairs: 1 against 0.5, and 0.2 against 0.8", 0.755782,
        chosen=[1.0, 0.2], rejected=[0.5, 0.8],
    ),
    case("equal scores", 0.693147, chosen=[3.0], rejected=[3.0]),
    case("a pair that is 200 on the wrong side", 200.0, chosen=[-100.0], rejected=[100.0]),
    random=scored_pairs,
    mistakes="""
        chosen - rejected -> rejected - chosen
            your gap is rejected - chosen: the model would learn to prefer the worse answer.
        return -F -> return F
            the minus is missing: this is the log-likelihood, and a loss is minus that.
        .mean() -> .sum()
            you add up the pairs: take their mean.
        F.logsigmoid(gap) -> torch.log(torch.sigmoid(gap))
            right for ordinary gaps. Far on the wrong side the exponential overflows in float32, and the
            loss is inf: use F.logsigmoid.
        F.logsigmoid(gap) -> torch.sigmoid(gap)
            the logarithm is missing: likelihoods multiply, so their logarithms are added.
        F.logsigmoid(gap) -> gap
            the sigmoid is missing: this loss asks for a larger gap of every pair, without end.
        F.logsigmoid(gap).mean() -> F.logsigmoid(gap.mean())
            you average the gaps first. Each pair has a loss of its own: average those.
        F.logsigmoid(gap) -> (F.logsigmoid(chosen) - F.logsigmoid(rejected))
            the sigmoid is applied to each score. It is applied to the gap, once.
        F.logsigmoid(gap) -> torch.log(torch.sigmoid(gap) + 1e-6)
        F.logsigmoid(gap) -> torch.log(torch.sigmoid(gap) + 1e-8)
        F.logsigmoid(gap) -> torch.log(torch.sigmoid(gap) + 1e-10)
        F.logsigmoid(gap) -> torch.log(torch.sigmoid(gap) + 1e-12)
            finite, but a pair that is far on the wrong side costs too little, and has no gradient: the eps
            in the logarithm hides it. F.logsigmoid needs none.
        chosen - rejected -> chosen[:, None] - rejected
            (pairs, 1) minus (pairs,) is (pairs, pairs): every winner meets every loser. Give both the same
            shape.
        -F.logsigmoid(gap).mean() -> (1 - gap).clamp(min=0).mean()
            this is a hinge with the margin 1. Bradley and Terry's loss is -log sigmoid(gap).
        -F.logsigmoid(gap).mean() -> -(F.logsigmoid(chosen) + F.logsigmoid(-rejected)).mean()
            you judge each answer alone. A comparison knows only the gap: -log sigmoid(chosen - rejected).
    """,
)  # fmt: skip
def bradley_terry_loss(chosen, rejected):
    """From the scores chosen and rejected (pairs,), compute the mean of -log sigmoid(chosen -
    rejected), a scalar. It must stay finite for a pair that is far on the wrong side."""
    gap = chosen - rejected
    return -F.logsigmoid(gap).mean()


TWO_ANSWERS = {
    "token_scores": torch.tensor([[1.0, 2.0, 6.0], [4.0, 9.0, 9.0]]),
    "mask": lengths(3, 1),
}


@exercise(
    case(
        "scores 1, 2, 6 and 4, in responses of three tokens and of one", [3.0, 4.0], **TWO_ANSWERS
    ),
    random=some("token_scores=x mask"),
    mistakes="""
        total / length -> token_scores[torch.arange(len(mask)), length - 1]
            this is the score of the last token: the other pooling. Here the mean is wanted.
        total / length -> token_scores[:, -1]
            you read the last column, which is padding for a short response.
        total / length -> token_scores.mean(1)
            the padding takes part: use the mask.
        mask.sum(1) -> mask.shape[1]
            you divide by T. Divide by the response's own length, mask.sum(1).
        total / length -> total
            you add the scores up: divide by the length.
        total / length
        -> (total - token_scores[torch.arange(len(mask)), length - 1]) / (length - 1).clamp(min=1)
            you left the last token out. The EOS is a token like the others, and it is scored.
    """,
)
def mean_score(token_scores, mask):
    """From token_scores (N, T) and mask (N, T), True up to and including the EOS, compute the mean
    score of each response, (N,)."""
    total = torch.where(mask, token_scores, 0.0).sum(1)
    length = mask.sum(1)
    return total / length


@exercise(
    case(
        "scores 1, 2, 6 and 4, in responses of three tokens and of one",
        [[1.0, 1.5, 3.0], [4.0, 0.0, 0.0]], **TWO_ANSWERS,
    ),
    random=some("token_scores=x mask"),
    mistakes="""
        sums / so_far -> sums
            you add the scores up. Divide each sum by the number of tokens so far.
        sums / so_far -> sums / mask.sum(1, keepdim=True)
            you divide by the length of the whole response. A prefix of t tokens is divided by t.
        sums / so_far -> token_scores
            this is the score of each token alone. A prefix is judged by the mean up to there.
        sums / so_far -> F.pad((sums / so_far)[:, :-1], (1, 0))
            you are one token late: the reward model has read the token that it scores.
        sums / so_far -> (sums[:, -1:] - sums + token_scores) / (mask.sum(1, keepdim=True) - so_far + 1)
            you average from the token to the end. A prefix goes from the first token to this one.
        torch.where(mask, sums / so_far, 0.0) -> sums / so_far
            right where the mask is True. In the padding the result must be 0.
        mask.cumsum(1) -> (mask.cumsum(1) - 1).clamp(min=1)
        mask.cumsum(1) -> mask.cumsum(1) - 1
            you divide the sum of t tokens by t - 1: the first token is one token.
    """,
)  # fmt: skip
def prefix_scores(token_scores, mask):
    """From token_scores (N, T) and mask (N, T), compute for each token the mean of the scores of
    its response up to and including it, (N, T); 0 in the padding."""
    sums = torch.where(mask, token_scores, 0.0).cumsum(1)
    so_far = mask.cumsum(1)  # how many tokens
    return torch.where(mask, sums / so_far, 0.0)


def a_bank(generator: torch.Generator) -> Arguments:
    N = number(generator, 5, 12)
    proxy, gold = torch.randn(2, N, generator=generator)
    return {"proxy": proxy, "gold": gold, "n": number(generator, 2, N - 1)}


@exercise(
    case(
        "best of 2 from 3, gold .2, .5, .6 in the proxy's order", 0.566667,
        proxy=[1.0, 2.0, 3.0], gold=[0.2, 0.5, 0.6], n=2,
    ),
    case(
        "the same answers in another order", 0.566667,
        proxy=[3.0, 1.0, 2.0], gold=[0.6, 0.2, 0.5], n=2,
    ),
    case(
        "the best of all three, where the proxy's favourite is the worst by gold", 0.1,
        proxy=[1.0, 2.0, 3.0], gold=[0.9, 0.5, 0.1], n=3,
    ),
    random=a_bank,
    constants="proxy gold",
    mistakes="""
        gold[proxy.argsort()] -> gold[gold.argsort()]
            you sort by gold. Best-of-n never sees gold: it picks by the proxy, and gold is only read off
            afterwards.
        proxy.argsort() -> proxy.argsort(descending=True)
            you take the worst of n: sort so that the proxy rises.
        math.comb(i - 1, n - 1) -> math.comb(i - 1, n)
            your weights are C(i - 1, n) / C(N, n) and do not add up to 1. The others are n - 1 of the i -
            1 below: C(i - 1, n - 1).
        math.comb(i - 1, n - 1) / math.comb(N, n) -> (i / N) ** n - ((i - 1) / N) ** n
            your subsets may hold one answer twice: (i/N)^n - ((i-1)/N)^n draws with replacement. Of a bank
            of N, n different ones are drawn.
        (rising * torch.tensor(chosen)).sum() -> rising[-n:].mean()
            that is the mean of the n best of the bank. Best-of-n keeps one answer, from n random ones.
        (rising * torch.tensor(chosen)).sum() -> gold[proxy[:n].argmax()]
            you look at the first n answers alone: right on average and very noisy. Use all N.
        gold[proxy -> proxy[proxy
            that is the mean proxy of the best of n. Wanted is the gold of the answer the proxy chose.
    """,
)  # fmt: skip
def best_of_n_mean(proxy, gold, n):
    """From the proxy (N,) and the gold reward (N,) of N answers to one prompt, compute the mean gold of
    the best of n by the proxy over all subsets of n: sort by the proxy, and weigh the i-th (from 1,
    worst first) by C(i - 1, n - 1) / C(N, n)."""
    N = len(proxy)
    rising = gold[proxy.argsort()]  # gold from the worst to the best by the proxy
    chosen = [math.comb(i - 1, n - 1) / math.comb(N, n) for i in range(1, N + 1)]
    return (rising * torch.tensor(chosen)).sum()


def counts(generator: torch.Generator) -> Arguments:
    size = number(generator, 2, 5)
    return {"table": torch.randint(1, 20, (size, size), generator=generator).float()}


@exercise(
    case("20 and 15 pairs of one mind, 5 and 10 of two", 0.4, table=[[20.0, 5.0], [10.0, 15.0]]),
    case("never of one mind", -1.0, table=[[0.0, 7.0], [7.0, 0.0]]),
    random=counts,
    constants="table",
    mistakes="""
        (alike - chance) / (1 - chance) -> alike
            this is the share on which they agree. Take off what chance gives, and divide by what it leaves.
        (alike - chance) / (1 - chance) -> alike - chance
            divide by 1 - p_e: two people who always agree have a kappa of 1.
        (table.sum(0) * table.sum(1)).sum() / n**2 -> 1 / len(table)
            chance is not 1 over the number of verdicts: it depends on how often each person gives them.
        (table.sum(0) * table.sum(1)).sum() / n**2 -> (table.sum(0) ** 2).sum() / n**2
            you use one person's verdicts twice: rows are one, columns the other.
        n**2 -> n
            the two sums are counts: each is divided by n, so the product by n squared.
        table.diag().sum() / n -> table.diag().sum()
            p_o is a share: divide the diagonal's sum by the number of pairs.
    """,
)
def kappa(table):
    """From the counts table (verdicts, verdicts), one person's verdicts in rows and the other's in
    columns, compute Cohen's kappa, (p_o - p_e) / (1 - p_e), a scalar."""
    n = table.sum()
    alike = table.diag().sum() / n  # p_o
    chance = (table.sum(0) * table.sum(1)).sum() / n**2  # p_e
    return (alike - chance) / (1 - chance)
