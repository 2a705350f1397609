"""pass@k from n samples a prompt: the share of subsets of k that hold a right one."""

import math

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.rewards import verifiable


def pass_at_k(correct, k):
    n = correct.shape[1]
    misses = [math.comb(n - c, k) / math.comb(n, k) for c in correct.sum(1).tolist()]
    return 1 - sum(misses) / len(misses)


@mistake
def put_back(correct, k):
    """1 - (1 - c/n)^k puts every sample back into the urn and comes out too low. Count the subsets
    of k different samples."""
    return (1 - (1 - correct.float().mean(1)) ** k).mean()


@mistake
def pass_at_1(correct, k):
    """this is pass@1, the share of right samples: k plays no part in it."""
    return correct.float().mean()


@mistake
def any_of_n(correct, k):
    """this asks whether any of the n samples is right: that is pass@n. Only k of them may be
    tried."""
    return correct.any(1).float().mean()


@mistake
def one_urn(correct, k):
    """you put the samples of all prompts into one urn. Each prompt has its own c: average over
    prompts at the end."""
    return pass_at_k(correct.reshape(1, -1), k)


@mistake
def all_of_k(correct, k):
    """this is the chance that *all* k are right. pass@k asks for at least one."""
    return torch.tensor(
        [math.comb(c, k) / math.comb(correct.shape[1], k) for c in correct.sum(1).tolist()]
    ).mean()


def samples(generator: torch.Generator) -> Arguments:
    chance = torch.rand(5, 1, generator=generator)
    return {"correct": torch.rand(5, 8, generator=generator) < chance, "k": 3}


EXERCISE = Exercise(
    statement=(
        "From n samples of each of P prompts, correct (P, n) bool, compute the mean over prompts of 1 "
        "- C(n - c, k) / C(n, k), where c of a prompt's samples are right: one number."
    ),
    solution=pass_at_k,
    library=lambda correct, k: torch.tensor(verifiable.pass_at_k(correct, k)),
    cases=(
        Case(
            "one of four is right, k = 2: three of the six pairs hold it",
            {"correct": torch.tensor([[True, False, False, False]]), "k": 2},
            0.5,
        ),
        Case(
            "a prompt that is always solved and one that never is",
            {"correct": torch.tensor([[True, True, True], [False, False, False]]), "k": 2},
            0.5,
        ),
    ),
    random=samples,
)
