"""pass@k from n samples a prompt: the share of subsets of k that hold a right one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from rl.rewards import verifiable


def pass_at_k(correct: Tensor, k: int) -> float:
    n = correct.shape[1]
    misses = [math.comb(n - c, k) / math.comb(n, k) for c in correct.sum(1).tolist()]
    return 1 - sum(misses) / len(misses)


def put_back(correct: Tensor, k: int) -> Tensor:
    return (1 - (1 - correct.float().mean(1)) ** k).mean()


def one_urn(correct: Tensor, k: int) -> float:
    return pass_at_k(correct.reshape(1, -1), k)


def samples(generator: torch.Generator) -> Mapping[str, Any]:
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
    mistakes=(
        Mistake(
            "put_back",
            "1 - (1 - c/n)^k puts every sample back into the urn and comes out too low. Count the "
            "subsets of k different samples.",
            put_back,
        ),
        Mistake(
            "pass_at_1",
            "this is pass@1, the share of right samples: k plays no part in it.",
            lambda correct, k: correct.float().mean(),
        ),
        Mistake(
            "any_of_n",
            "this asks whether any of the n samples is right: that is pass@n. Only k of them may be "
            "tried.",
            lambda correct, k: correct.any(1).float().mean(),
        ),
        Mistake(
            "one_urn",
            "you put the samples of all prompts into one urn. Each prompt has its own c: average "
            "over prompts at the end.",
            one_urn,
        ),
        Mistake(
            "all_of_k",
            "this is the chance that *all* k are right. pass@k asks for at least one.",
            lambda correct, k: torch.tensor(
                [math.comb(c, k) / math.comb(correct.shape[1], k) for c in correct.sum(1).tolist()]
            ).mean(),
        ),
    ),
)
