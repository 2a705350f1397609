"""GRPO's mean of a token loss: over the tokens of each answer first, then over the answers."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations import losses as library


def sequence_mean(loss, mask):
    per_answer = torch.where(mask, loss, 0.0).sum(1) / mask.sum(1)  # (N,)
    return per_answer.mean()


@mistake
def token_mean(loss, mask):
    """you average over all tokens at once, so a long answer counts more. (That is DAPO's choice.)
    GRPO takes the mean of each answer first."""
    return torch.where(mask, loss, 0.0).sum() / mask.sum()


@mistake
def padded_length(loss, mask):
    """you divide by T, the padded length. Divide by the answer's own length, mask.sum(1)."""
    return torch.where(mask, loss, 0.0).mean(1).mean()


@mistake
def padding_included(loss, mask):
    """you forgot the mask: the numbers in the padding take part."""
    return loss.mean()


@mistake
def padding_summed(loss, mask):
    """you divide by the right length, but the sum still runs over the padding."""
    return (loss.sum(1) / mask.sum(1)).mean()


@mistake
def sums(loss, mask):
    """you sum over the tokens of an answer without dividing by its length. (RLOO does that.)"""
    return torch.where(mask, loss, 0.0).sum(1).mean()


@mistake
def not_averaged(loss, mask):
    """the numbers of the answers are right, but you add them up. Take their mean."""
    return (torch.where(mask, loss, 0.0).sum(1) / mask.sum(1)).sum()


EXERCISE = Exercise(
    statement=(
        "From loss (N, T) and mask (N, T), compute the mean over the True tokens of each answer, "
        "then the mean of those N numbers."
    ),
    solution=sequence_mean,
    library=library.sequence_mean,
    cases=(
        Case(
            "losses 1, 2, 3 and 4, in answers of three tokens and of one",
            {
                "loss": torch.tensor([[1.0, 2, 3], [4, 9, 9]]),
                "mask": torch.tensor([[True, True, True], [True, False, False]]),
            },
            3.0,
        ),
        Case(
            "one answer of two tokens, losses 1 and 2",
            {"loss": torch.tensor([[1.0, 2.0]]), "mask": torch.ones(1, 2, dtype=torch.bool)},
            1.5,
        ),
    ),
    random=some("loss mask"),
    mask="mask",
    gradient="loss",
)
