"""The reverse KL of two next-token distributions, summed over the whole vocabulary."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from gpt.log_probs import kl_from_logits


def reverse_kl(logits, ref_logits):
    log_pi, log_ref = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    return (log_pi.exp() * (log_pi - log_ref)).sum(-1)


@mistake
def forward(logits, ref_logits):
    """this is the forward KL(pi_ref || pi): the weights are the reference's. The reverse KL is an
    average over what the *policy* says."""
    return reverse_kl(ref_logits, logits)


@mistake
def wrong_sign(logits, ref):
    """the sign is flipped: a KL is never negative. It is log pi - log pi_ref, weighted with pi."""
    return -reverse_kl(logits, ref)


@mistake
def not_normalised(logits, ref):
    """you subtract logits. They are log-probabilities only up to a constant of each row: take
    log_softmax first."""
    return (logits.softmax(-1) * (logits - ref)).sum(-1)


@mistake
def no_weights(logits, ref):
    """you take the plain mean over the vocabulary. Every symbol must be weighted with its
    probability under the policy."""
    return differences(logits, ref).mean(-1)


@mistake
def weights_are_constants(logits, ref):
    """the numbers are right, but the weights pi are detached, so the gradient misses that training
    moves them as well."""
    return (logits.softmax(-1).detach() * differences(logits, ref)).sum(-1)


def logits(generator: torch.Generator) -> Arguments:
    shape = (3, int(torch.randint(2, 7, (1,), generator=generator)))
    return {
        "logits": 2 * torch.randn(shape, generator=generator),
        "ref_logits": 2 * torch.randn(shape, generator=generator) + 1,
    }


def differences(one, other):
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
)
