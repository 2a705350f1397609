"""The reverse KL of two next-token distributions, summed over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from gpt.log_probs import kl_from_logits


def reverse_kl(logits: Tensor, ref_logits: Tensor) -> Tensor:
    log_pi, log_ref = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    return (log_pi.exp() * (log_pi - log_ref)).sum(-1)


def forward_kl(logits: Tensor, ref_logits: Tensor) -> Tensor:
    return reverse_kl(ref_logits, logits)


def logits(generator: torch.Generator) -> Mapping[str, Any]:
    shape = (3, int(torch.randint(2, 7, (1,), generator=generator)))
    return {
        "logits": 2 * torch.randn(shape, generator=generator),
        "ref_logits": 2 * torch.randn(shape, generator=generator) + 1,
    }


def differences(one: Tensor, other: Tensor) -> Tensor:
    return one.log_softmax(-1) - other.log_softmax(-1)


EXERCISE = Exercise(
    statement=(
        "Compute KL(pi || pi_ref) = sum_v pi(v) log(pi(v) / pi_ref(v)) of every row, (N,), where pi "
        "= softmax(logits), pi_ref = softmax(ref_logits), both (N, V)."
    ),
    solution=reverse_kl,
    library=lambda logits, ref_logits: kl_from_logits(logits, ref_logits),
    cases=(
        Case(
            "probabilities 0.5, 0.3, 0.2 against 0.2, 0.5, 0.3",
            {
                "logits": torch.tensor([[0.5, 0.3, 0.2]]).log(),
                "ref_logits": torch.tensor([[0.2, 0.5, 0.3]]).log(),
            },
            [0.223805],
        ),
        Case(
            "the same distribution, with 7 added to all logits",
            {"logits": torch.tensor([[7.0, 8.0, 9.0]]), "ref_logits": torch.tensor([[0.0, 1, 2]])},
            [0.0],
        ),
    ),
    random=logits,
    gradient="logits",
    mistakes=(
        Mistake(
            "forward",
            "this is the forward KL(pi_ref || pi): the weights are the reference's. The reverse KL "
            "is an average over what the *policy* says.",
            forward_kl,
        ),
        Mistake(
            "wrong_sign",
            "the sign is flipped: a KL is never negative. It is log pi - log pi_ref, weighted with "
            "pi.",
            lambda logits, ref: -reverse_kl(logits, ref),
        ),
        Mistake(
            "not_normalised",
            "you subtract logits. They are log-probabilities only up to a constant of each row: "
            "take log_softmax first.",
            lambda logits, ref: (logits.softmax(-1) * (logits - ref)).sum(-1),
        ),
        Mistake(
            "no_weights",
            "you take the plain mean over the vocabulary. Every symbol must be weighted with its "
            "probability under the policy.",
            lambda logits, ref: differences(logits, ref).mean(-1),
        ),
        Mistake(
            "weights_are_constants",
            "the numbers are right, but the weights pi are detached, so the gradient misses that "
            "training moves them as well.",
            lambda logits, ref: (logits.softmax(-1).detach() * differences(logits, ref)).sum(-1),
        ),
    ),
)
