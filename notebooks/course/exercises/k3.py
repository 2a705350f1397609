"""k3, the KL estimate of one sampled token that is never negative."""

import torch

from course.exercises import Arguments, Case, Exercise, random_log_probs
from course.mistakes import mistake
from rl.equations import kl as library

POLICY, REFERENCE = torch.tensor([[0.5, 0.25, 0.1]]), torch.tensor([[0.25, 0.25, 0.4]])


def k3(log_probs, ref_log_probs):
    delta = ref_log_probs - log_probs  # log(pi_ref / pi)
    return delta.exp() - delta - 1


@mistake
def upside_down(log_probs, ref_log_probs):
    """your ratio is pi / pi_ref. It is pi_ref / pi: the samples come from the policy, so the policy
    stands below."""
    return k3(ref_log_probs, log_probs)


@mistake
def only_k1(log_probs, ref_log_probs):
    """this is k1, log pi - log pi_ref. Its mean is the KL as well, but it may be negative."""
    return log_probs - ref_log_probs


@mistake
def half_the_square(log_probs, ref_log_probs):
    """this is k2, half the square of the log-ratio. It is close to k3 near 0, and biased."""
    return (log_probs - ref_log_probs).square() / 2


@mistake
def one_too_many(log_probs, ref_log_probs):
    """the - 1 is missing: where policy and reference agree, the estimate must be 0."""
    return k3(log_probs, ref_log_probs) + 1


@mistake
def plus_delta(log_probs, ref_log_probs):
    """the logarithm is subtracted: exp(delta) - delta - 1 with delta = log(pi_ref / pi)."""
    delta = ref_log_probs - log_probs
    return delta.exp() + delta - 1


@mistake
def wrong_sign(log_probs, ref_log_probs):
    """your sign is flipped: k3 is never negative."""
    return -k3(log_probs, ref_log_probs)


@mistake
def without_gradient(log_probs, ref_log_probs):
    """the numbers are right, but no gradient reaches log_probs, and as a term of the loss it would
    do nothing."""
    return k3(log_probs, ref_log_probs).detach()


def ragged(generator: torch.Generator) -> Arguments:
    rows = int(torch.randint(2, 5, (1,), generator=generator))
    log_probs = random_log_probs(generator, rows, 5)
    drift = 0.7 * torch.randn(rows, 5, generator=generator)
    return {"log_probs": log_probs, "ref_log_probs": log_probs + drift}


EXERCISE = Exercise(
    statement=(
        "From log_probs and ref_log_probs (N, T) of the sampled tokens, compute "
        "pi_ref / pi - log(pi_ref / pi) - 1 per token, (N, T)."
    ),
    solution=k3,
    library=library.k3,
    cases=(
        Case(
            "three tokens: probabilities 0.5, 0.25, 0.1 and under the reference 0.25, 0.25, 0.4",
            {"log_probs": POLICY.log(), "ref_log_probs": REFERENCE.log()},
            [[0.193147, 0.0, 1.613706]],
        ),
        Case(
            "policy and reference agree",
            {"log_probs": POLICY.log(), "ref_log_probs": POLICY.log()},
            [[0.0, 0.0, 0.0]],
        ),
    ),
    random=ragged,
    gradient="log_probs",
)
