"""Whitening of advantages: one mean and one standard deviation, over all tokens of the batch."""

import torch

from conformance.kinds import KINDS
from course.exercises import Exercise, mistake, shared
from rl.equations import advantages as library


def whiten(x, mask):
    valid = x[mask]
    return torch.where(mask, (x - valid.mean()) / (valid.std() + 1e-4), 0.0)


@mistake
def biased_deviation(x, mask):
    """your deviation divides by n. The library divides by n - 1, as tensor.std() does."""
    valid = x[mask]
    return torch.where(mask, (x - valid.mean()) / (valid.std(correction=0) + 1e-4), 0.0)


@mistake
def padding_moved(x, mask):
    """right where the mask is True. In the padding the result must be 0."""
    valid = x[mask]
    return (x - valid.mean()) / (valid.std() + 1e-4)


EXERCISE = Exercise(
    statement=(
        "From x (N, T) and mask (N, T), compute (x - mean) / std with one mean and one standard "
        "deviation (n - 1) over all True positions of the batch; 0 in the padding. A small eps of "
        "1e-4 or less beside std is welcome."
    ),
    solution=whiten,
    library=library.whiten,
    cases=KINDS["whiten"].cases,
    random=KINDS["whiten"].random,
    mask="mask",
    tolerance=1e-3,
    mistakes=shared(
        "whiten", "per_response padding_counted zeros_counted by_the_variance mean_kept"
    ),
)
