"""What k2 in the loss does on average: its expected gradient, written out without autograd."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from gpt.log_probs import kl_from_logits


def k2_gradient(logits, ref_logits):
    p = logits.softmax(0)
    d = logits.log_softmax(0) - ref_logits.log_softmax(0)  # the slope of k2 = d^2 / 2
    return p * (d - (p * d).sum())


def of_the_kl(logits, ref_logits):
    """The gradient of KL(pi || pi_ref), by autograd: what k2's expected gradient must be."""
    at = logits.clone().requires_grad_()
    kl = kl_from_logits(at[None], ref_logits[None]).sum()
    return torch.autograd.grad(kl, at)[0].detach()


@mistake
def forward_kl(logits, ref):
    """this is p - p_ref, the gradient of the *forward* KL, which k3 has in the loss. k2's slope at
    a symbol is d itself."""
    return logits.softmax(0) - ref.softmax(0)


@mistake
def not_centred(logits, ref):
    """you left out the average of d. A probability that rises takes from all the others, so the
    gradient for logits adds up to 0: subtract sum_v p(v) d(v)."""
    return logits.softmax(0) * log_ratio(logits, ref)


@mistake
def not_weighted(logits, ref):
    """you left out the factor p(j): a symbol that is hardly ever drawn hardly ever pulls."""
    return log_ratio(logits, ref) - (logits.softmax(0) * log_ratio(logits, ref)).sum()


@mistake
def wrong_sign(logits, ref):
    """the sign is flipped: the gradient points away from the reference, and the step of an
    optimizer goes against it."""
    return -k2_gradient(logits, ref)


@mistake
def k1_as_a_loss(logits, ref):
    """this is 0 everywhere, which is what k1 has in the loss: there the slope is 1 for every
    symbol. k2's slope is d."""
    return 0 * logits


def logits(generator: torch.Generator) -> Arguments:
    size = int(torch.randint(2, 7, (1,), generator=generator))
    return {
        "logits": torch.randn(size, generator=generator),
        "ref_logits": torch.randn(size, generator=generator),
    }


def log_ratio(one, other):
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
)
