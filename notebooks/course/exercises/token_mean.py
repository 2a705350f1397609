"""DAPO's reducer: every token of the batch weighs the same."""

import torch

from course.exercises import Case, Exercise, mistake, shared, some
from rl.equations import losses as library

MASK = torch.tensor([[True, True, True, True], [True, False, False, False]])


def token_mean(loss, mask):
    return (loss * mask).sum() / mask.sum()


@mistake
def mean_of_means(loss, mask):
    """you average within each response first. That is GRPO's sequence mean, under which a token of
    a long response weighs less."""
    return ((loss * mask).sum(1) / mask.sum(1)).mean()


@mistake
def sum_over_responses(loss, mask):
    """you divide by the number of responses. Then a batch of long responses takes longer steps:
    divide by the number of tokens."""
    return (loss * mask).sum() / len(mask)


EXERCISE = Exercise(
    statement=(
        "From token losses (N, T) and their bool mask (N, T), compute the mean over all tokens of "
        "the batch where the mask is True: a scalar."
    ),
    solution=token_mean,
    library=library.token_mean,
    cases=(
        Case(
            "a response of 4 tokens with loss 1 each, and one token with loss 6",
            {"loss": torch.tensor([[1.0, 1, 1, 1], [6, 9, 9, 9]]), "mask": MASK},
            2.0,
        ),
        Case(
            "no padding at all",
            {"loss": torch.tensor([[1.0, 2, 3, 6]]), "mask": MASK[:1]},
            3.0,
        ),
    ),
    random=some("loss mask"),
    gradient="loss",
    mistakes=shared(
        "scalar",
        "padding_in_the_denominator padding_in_both padding_in_the_numerator",
    ),
)
