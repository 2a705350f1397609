"""The expected gold reward of the best of n, from a bank of N answers, without drawing any subset."""

import math

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.equations import best_of_n as library


def best_of_n_mean(proxy, gold, n):
    N = len(proxy)
    rising = gold[proxy.argsort()]  # gold from the worst to the best by the proxy
    chosen = [math.comb(i - 1, n - 1) / math.comb(N, n) for i in range(1, N + 1)]
    return (rising * torch.tensor(chosen)).sum()


def weighted(proxy, gold, weights, *, descending=False):
    rising = gold[proxy.argsort(descending=descending)]
    return (rising * torch.tensor(weights)).sum()


@mistake
def sorted_by_gold(proxy, gold, n):
    """you sort by gold. Best-of-n never sees gold: it picks by the proxy, and gold is only read off
    afterwards."""
    return best_of_n_mean(gold, gold, n)


@mistake
def worst_of_n(proxy, gold, n):
    """you take the worst of n: sort so that the proxy rises, and give the last place the largest
    weight."""
    return best_of_n_mean(-proxy, gold, n)


@mistake
def one_place_off(proxy, gold, n):
    """your weights are C(i, n) / C(N, n) and do not add up to 1. The others are n - 1 of the i - 1
    below: C(i - 1, n - 1)."""
    N = len(proxy)
    return weighted(proxy, gold, [math.comb(i, n) / math.comb(N, n) for i in range(N)])


@mistake
def put_back(proxy, gold, n):
    """your subsets may hold one answer twice: (i/N)^n - ((i-1)/N)^n draws with replacement. Of a
    bank of N, n different ones are drawn."""
    N = len(proxy)
    return weighted(proxy, gold, [(i / N) ** n - ((i - 1) / N) ** n for i in range(1, N + 1)])


@mistake
def mean_of_the_top(proxy, gold, n):
    """that is the mean of the n best of the bank. Best-of-n keeps one answer, from n random
    ones."""
    return gold[proxy.topk(n).indices].mean()


@mistake
def first_n(proxy, gold, n):
    """you look at the first n answers alone: right on average and very noisy. Use all N."""
    return gold[proxy[:n].argmax()]


@mistake
def of_the_proxy(proxy, gold, n):
    """that is the mean proxy of the best of n. Wanted is the gold of the answer the proxy chose."""
    return best_of_n_mean(proxy, proxy, n)


def of_one_prompt(proxy, gold, n):
    return library.best_of_n_mean(proxy[None], gold[None], n)[0]


def bank(generator: torch.Generator) -> Arguments:
    N = int(torch.randint(5, 12, (1,), generator=generator))
    n = int(torch.randint(2, N - 1, (1,), generator=generator))
    proxy = torch.randn(N, generator=generator)
    return {"proxy": proxy, "gold": torch.rand(N, generator=generator), "n": n}


EXERCISE = Exercise(
    statement=(
        "From the proxy (N,) and the gold reward (N,) of N answers to one prompt, compute the mean gold of "
        "the best of n by the proxy over all subsets of n: sort by the proxy, and weigh the i-th (from 1, "
        "worst first) by C(i - 1, n - 1) / C(N, n)."
    ),
    solution=best_of_n_mean,
    library=of_one_prompt,
    cases=(
        Case(
            "best of 2 from 3, gold .2, .5, .6 in the proxy's order",
            {"proxy": torch.tensor([1.0, 2.0, 3.0]), "gold": torch.tensor([0.2, 0.5, 0.6]), "n": 2},
            0.566667,
        ),
        Case(
            "the same answers in another order",
            {"proxy": torch.tensor([3.0, 1.0, 2.0]), "gold": torch.tensor([0.6, 0.2, 0.5]), "n": 2},
            0.566667,
        ),
        Case(
            "the best of all three, where the proxy's favourite is the worst by gold",
            {"proxy": torch.tensor([1.0, 2.0, 3.0]), "gold": torch.tensor([0.9, 0.5, 0.1]), "n": 3},
            0.1,
        ),
    ),
    random=bank,
)
