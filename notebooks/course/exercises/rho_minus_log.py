"""The penalty whose average over samples of the old policy is KL(old, new)."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations import kl as library


def rho_minus_log(log_probs, old_log_probs):
    log_rho = log_probs - old_log_probs
    return log_rho.exp() - 1 - log_rho


@mistake
def k3(new, old):
    """this is k3, 1/rho - 1 + log rho. It fits samples of the policy in training; under samples of
    the old one it estimates no KL."""
    return (old - new).exp() - 1 - (old - new)


@mistake
def log_ratio_alone(new, old):
    """this is log rho alone, which may be negative: add rho - 1 and turn the sign of the
    logarithm."""
    return new - old


@mistake
def one_not_subtracted(new, old):
    """the 1 is missing: at rho = 1 the penalty must be 0."""
    return (new - old).exp() - (new - old)


@mistake
def sign_of_the_logarithm(new, old):
    """you add the logarithm. It is subtracted: only then is rho = 1 the minimum."""
    return (new - old).exp() - 1 + (new - old)


@mistake
def half_square(new, old):
    """this is log(rho)^2 / 2: the same near rho = 1, but not further out."""
    return (new - old) ** 2 / 2


EXERCISE = Exercise(
    statement=(
        "Compute rho - 1 - log rho per token, (N, T), with rho = pi / pi_old, from log-probs (N, T)."
    ),
    solution=rho_minus_log,
    library=library.rho_minus_log,
    cases=(
        Case(
            "a token twice as likely, one half as likely, one that has not moved",
            {
                "log_probs": torch.tensor([[0.4, 0.2, 0.3]]).log(),
                "old_log_probs": torch.tensor([[0.2, 0.4, 0.3]]).log(),
            },
            [[0.306853, 0.193147, 0.0]],
        ),
    ),
    random=some("log_probs old_log_probs"),
    gradient="log_probs",
)
