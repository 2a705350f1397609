"""GSPO's ratio of a response: the geometric mean of its tokens' ratios."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations import losses as library


def gspo_ratio(log_probs, old_log_probs, mask):
    log_ratio = ((log_probs - old_log_probs) * mask).sum(1, keepdim=True)
    return (log_ratio / mask.sum(1, keepdim=True)).exp()


@mistake
def product(new, old, mask):
    """this is the product of the token ratios. It leaves any range as a response gets longer: take
    the L-th root, that is divide the sum of log-ratios by L."""
    return ((new - old) * mask).sum(1, keepdim=True).exp()


@mistake
def arithmetic_mean(new, old, mask):
    """this is the arithmetic mean of the token ratios. GSPO takes the geometric one: average the
    *log*-ratios, then take the exponential."""
    return ((new - old).exp() * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)


@mistake
def padded_length(new, old, mask):
    """you divide by the padded length T. Divide by the response's own length L, the sum of its
    mask."""
    return (((new - old) * mask).sum(1, keepdim=True) / mask.shape[1]).exp()


@mistake
def mask_forgotten(new, old, mask):
    """padding takes part in your sum: multiply by the mask first."""
    return (new - old).mean(1, keepdim=True).exp()


@mistake
def upside_down(new, old, mask):
    """your ratio is old / new. It is the policy in training over the one that sampled."""
    return gspo_ratio(old, new, mask)


@mistake
def no_exponential(new, old, mask):
    """this is the logarithm of the ratio: the exponential is missing."""
    return gspo_ratio(new, old, mask).log()


EXERCISE = Exercise(
    statement=(
        "Compute exp(1/L sum_t (log pi - log pi_old)) of each response, (N, 1), from log-probs "
        "(N, T) and the mask of its L tokens (N, T)."
    ),
    solution=gspo_ratio,
    library=library.mean_ratio,
    cases=(
        Case(
            "token ratios 4 and 1: the geometric mean is 2",
            {
                "log_probs": torch.tensor([[4.0, 1.0, 8.0]]).log(),
                "old_log_probs": torch.zeros(1, 3),
                "mask": torch.tensor([[True, True, False]]),
            },
            [[2.0]],
        ),
        Case(
            "three tokens, each twice as likely",
            {
                "log_probs": torch.full((1, 3), 2.0).log(),
                "old_log_probs": torch.zeros(1, 3),
                "mask": torch.ones(1, 3, dtype=torch.bool),
            },
            [[2.0]],
        ),
    ),
    random=some("log_probs old_log_probs mask"),
    gradient="log_probs",
)
