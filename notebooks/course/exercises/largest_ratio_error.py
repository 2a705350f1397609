"""The first number to read of a run: how far the ratio is from 1 where it has to be 1."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake, ragged_mask, random_log_probs
from rl.equations.losses import likelihood_ratio


def largest_ratio_error(log_probs, old_log_probs, mask):
    ratio = (log_probs - old_log_probs).exp()  # (N, T)
    return (ratio - 1).abs()[mask].max()  # one number: padding does not count


def by_the_library(log_probs, old_log_probs, mask):
    return (likelihood_ratio(log_probs, old_log_probs) - 1).abs()[mask].max()


@mistake
def with_padding(log_probs, old_log_probs, mask):
    """padding counts as well. What stands behind the end of a response is never sampled: take the
    largest over the mask's True positions only."""
    return ((log_probs - old_log_probs).exp() - 1).abs().max()


@mistake
def of_the_logarithm(log_probs, old_log_probs, mask):
    """that is the largest |log ratio|. For small steps it is nearly the same, but the ratio is the
    exponential of the difference of the log-probs."""
    return (log_probs - old_log_probs).abs()[mask].max()


@mistake
def signed(log_probs, old_log_probs, mask):
    """you take the largest ratio - 1 with its sign. A ratio of 0.1 is as wrong as one of 1.9: take
    the absolute value first."""
    return ((log_probs - old_log_probs).exp() - 1)[mask].max()


@mistake
def averaged(log_probs, old_log_probs, mask):
    """that is the mean. One wrong token among a thousand would not be seen: take the largest."""
    return ((log_probs - old_log_probs).exp() - 1).abs()[mask].mean()


@mistake
def upside_down(log_probs, old_log_probs, mask):
    """your ratio is pi_old / pi. The new policy stands above: exp(log_probs - old_log_probs)."""
    return ((old_log_probs - log_probs).exp() - 1).abs()[mask].max()


def ragged(generator: torch.Generator) -> Arguments:
    rows, columns = 4, 6
    log_probs = random_log_probs(generator, rows, columns)
    moved = 0.5 * torch.randn(rows, columns, generator=generator)
    mask = ragged_mask(generator, rows, columns)
    mask[0, -1] = False  # some padding in every batch
    moved = torch.where(mask, moved, 4.0)  # what stands there is never read
    return {"log_probs": log_probs, "old_log_probs": log_probs - moved, "mask": mask}


FIRST = {
    "log_probs": torch.tensor([[-1.0, -2.0, 0.0]]),
    "old_log_probs": torch.tensor([[-1.5, -1.0, -3.0]]),
    "mask": torch.tensor([[True, True, False]]),
}


EXERCISE = Exercise(
    statement=(
        "From log_probs and old_log_probs (N, T) and the response mask (N, T), compute the largest "
        "|ratio - 1| of a valid token, one number, with ratio = pi / pi_old."
    ),
    solution=largest_ratio_error,
    library=by_the_library,
    cases=(
        Case("ratios e^0.5 and e^-1, and padding", FIRST, 0.648721),
        Case(
            "one token that has become less likely, ratio e^-2",
            {
                "log_probs": torch.tensor([[-3.0]]),
                "old_log_probs": torch.tensor([[-1.0]]),
                "mask": torch.tensor([[True]]),
            },
            0.864665,
        ),
    ),
    random=ragged,
)
