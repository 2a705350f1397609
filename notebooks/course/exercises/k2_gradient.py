"""What k2 in the loss does on average: its expected gradient, written out without autograd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from gpt.log_probs import kl_from_logits


def k2_gradient(logits: Tensor, ref_logits: Tensor) -> Tensor:
    p = logits.softmax(0)
    d = logits.log_softmax(0) - ref_logits.log_softmax(0)  # the slope of k2 = d^2 / 2
    return p * (d - (p * d).sum())


def of_the_kl(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """The gradient of KL(pi || pi_ref), by autograd: what k2's expected gradient must be."""
    at = logits.clone().requires_grad_()
    kl = kl_from_logits(at[None], ref_logits[None]).sum()
    return torch.autograd.grad(kl, at)[0].detach()


def logits(generator: torch.Generator) -> Mapping[str, Any]:
    size = int(torch.randint(2, 7, (1,), generator=generator))
    return {
        "logits": torch.randn(size, generator=generator),
        "ref_logits": torch.randn(size, generator=generator),
    }


def log_ratio(one: Tensor, other: Tensor) -> Tensor:
    return one.log_softmax(0) - other.log_softmax(0)


EXERCISE = Exercise(
    statement=(
        "Symbols are drawn from p = softmax(logits). Compute sum_v p(v) d(v) grad log p(v), (V,), "
        "with d = log p - log p_ref. For softmax logits the average of d(v) grad log p(v) has at "
        "place j: p(j) (d(j) - sum_v p(v) d(v))."
    ),
    solution=k2_gradient,
    library=of_the_kl,
    cases=(
        Case(
            "probabilities 0.5, 0.3, 0.2 against 0.2, 0.5, 0.3",
            {
                "logits": torch.tensor([0.5, 0.3, 0.2]).log(),
                "ref_logits": torch.tensor([0.2, 0.5, 0.3]).log(),
            },
            [0.346243, -0.220389, -0.125854],
        ),
        Case(
            "at the reference nothing pulls",
            {"logits": torch.tensor([1.0, 0.0]), "ref_logits": torch.tensor([1.0, 0.0])},
            [0.0, 0.0],
        ),
    ),
    random=logits,
    mistakes=(
        Mistake(
            "forward_kl",
            "this is p - p_ref, the gradient of the *forward* KL, which k3 has in the loss. k2's "
            "slope at a symbol is d itself.",
            lambda logits, ref: logits.softmax(0) - ref.softmax(0),
        ),
        Mistake(
            "not_centred",
            "you left out the average of d. A probability that rises takes from all the others, so "
            "the gradient for logits adds up to 0: subtract sum_v p(v) d(v).",
            lambda logits, ref: logits.softmax(0) * log_ratio(logits, ref),
        ),
        Mistake(
            "not_weighted",
            "you left out the factor p(j): a symbol that is hardly ever drawn hardly ever pulls.",
            lambda logits, ref: (
                log_ratio(logits, ref) - (logits.softmax(0) * log_ratio(logits, ref)).sum()
            ),
        ),
        Mistake(
            "wrong_sign",
            "the sign is flipped: the gradient points away from the reference, and the step of an "
            "optimizer goes against it.",
            lambda logits, ref: -k2_gradient(logits, ref),
        ),
        Mistake(
            "k1_as_a_loss",
            "this is 0 everywhere, which is what k1 has in the loss: there the slope is 1 for "
            "every symbol. k2's slope is d.",
            lambda logits, ref: 0 * logits,
        ),
    ),
)
