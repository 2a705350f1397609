"""Whitening of advantages: one mean and one standard deviation, over all tokens of the batch."""

import torch

from course.exercises import Arguments, Case, Exercise, ragged_mask
from course.mistakes import mistake
from rl.equations import advantages as library


def whiten(x, mask):
    valid = x[mask]
    return torch.where(mask, (x - valid.mean()) / (valid.std() + 1e-4), 0.0)


@mistake
def per_response(x, mask):
    """each response is normalised by its own tokens. Then every response has the mean 0, the best
    and the worst: what was to be learned is gone. Take the whole batch."""
    count = mask.sum(1, keepdim=True)
    mean = torch.where(mask, x, 0.0).sum(1, keepdim=True) / count
    squares = torch.where(mask, (x - mean) ** 2, 0.0).sum(1, keepdim=True)
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    return torch.where(mask, (x - mean) / (std + 1e-4), 0.0)


@mistake
def per_column(x, mask):
    """each position is normalised by itself. One mean and one deviation for the whole batch."""
    return per_response(x.T, mask.T).T


@mistake
def padding_counted(x, mask):
    """mean and deviation run over the padding as well: take x[mask]."""
    return torch.where(mask, (x - x.mean()) / (x.std() + 1e-4), 0.0)


@mistake
def zeros_counted(x, mask):
    """the padding counts as zeros in the mean and in the deviation: take x[mask]."""
    return padding_counted(torch.where(mask, x, 0.0), mask)


@mistake
def biased_deviation(x, mask):
    """your deviation divides by n. The library divides by n - 1, as tensor.std() does."""
    valid = x[mask]
    return torch.where(mask, (x - valid.mean()) / (valid.std(correction=0) + 1e-4), 0.0)


@mistake
def by_the_variance(x, mask):
    """you divide by the variance. The standard deviation is its square root."""
    valid = x[mask]
    return torch.where(mask, (x - valid.mean()) / (valid.var() + 1e-4), 0.0)


@mistake
def mean_kept(x, mask):
    """you divide, but you do not subtract the mean."""
    return torch.where(mask, x / (x[mask].std() + 1e-4), 0.0)


@mistake
def padding_moved(x, mask):
    """right where the mask is True. In the padding the result must be 0."""
    valid = x[mask]
    return (x - valid.mean()) / (valid.std() + 1e-4)


def ragged(generator: torch.Generator) -> Arguments:
    mask = ragged_mask(generator, 4, 6)
    mask[0], mask[1] = torch.arange(6) < 3, True  # lengths differ for certain
    x = 2 * torch.randn(4, 6, generator=generator) + 3
    return {"x": x, "mask": mask}


EXERCISE = Exercise(
    statement=(
        "From x (N, T) and mask (N, T), compute (x - mean) / std with one mean and one standard "
        "deviation (n - 1) over all True positions of the batch; 0 in the padding. A small eps of "
        "1e-4 or less beside std is welcome."
    ),
    solution=whiten,
    library=library.whiten,
    cases=(
        Case(
            "advantages 1, 2, 3 and 4, in responses of three tokens and of one",
            {
                "x": torch.tensor([[1.0, 2, 3], [4, 9, 9]]),
                "mask": torch.tensor([[True, True, True], [True, False, False]]),
            },
            [[-1.161895, -0.387298, 0.387298], [1.161895, 0.0, 0.0]],
        ),
    ),
    random=ragged,
    mask="mask",
    tolerance=1e-3,
)
