"""How far an update has moved the policy: KL(old || new) per token, from samples of the old one."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations import kl as library
from rl.equations.losses import token_mean


def approx_kl(log_probs, old_log_probs, mask):
    log_ratio = (log_probs - old_log_probs)[mask]
    return (log_ratio.exp() - 1 - log_ratio).mean()


def by_library(log_probs, old_log_probs, mask):
    return token_mean(library.rho_minus_log(log_probs, old_log_probs), mask)


@mistake
def upside_down(log_probs, old_log_probs, mask):
    """your ratio is old / new. The samples come from the old policy, so it stands below: new /
    old."""
    return approx_kl(old_log_probs, log_probs, mask)


@mistake
def log_ratio_alone(log_probs, old_log_probs, mask):
    """this is the mean of -log ratio. Its expectation is right, but one batch may make it negative:
    add ratio - 1, whose mean is 0."""
    return (old_log_probs - log_probs)[mask].mean()


@mistake
def half_the_square(log_probs, old_log_probs, mask):
    """this is half the squared log-ratio: close to it for small steps, and biased."""
    return ((log_probs - old_log_probs)[mask] ** 2 / 2).mean()


@mistake
def one_too_many(log_probs, old_log_probs, mask):
    """the - 1 is missing: no move must give 0."""
    return approx_kl(log_probs, old_log_probs, mask) + 1


@mistake
def padding_counted(log_probs, old_log_probs, mask):
    """the padding takes part: use the mask."""
    return approx_kl(log_probs, old_log_probs, torch.ones_like(mask))


@mistake
def added_up(log_probs, old_log_probs, mask):
    """you add the tokens up: take their mean."""
    return approx_kl(log_probs, old_log_probs, mask) * mask.sum()


EXERCISE = Exercise(
    statement=(
        "From log_probs (new), old_log_probs and mask (N, T), compute the mean over all True tokens "
        "of ratio - 1 - log ratio, with ratio = new / old; a scalar."
    ),
    solution=approx_kl,
    library=by_library,
    cases=(
        Case(
            "one token that has become twice as likely, one that has not moved",
            {
                "log_probs": torch.tensor([[-1.0 + 0.6931472, -2.0]]),
                "old_log_probs": torch.tensor([[-1.0, -2.0]]),
                "mask": torch.ones(1, 2, dtype=torch.bool),
            },
            0.153426,
        ),
    ),
    random=some("log_probs old_log_probs mask"),
    mask="mask",
)
