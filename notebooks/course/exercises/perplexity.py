"""The perplexity of answers under a model, from the log-probs of their tokens."""

import math

import torch

from course.exercises import Arguments, Case, Exercise, mistake


def perplexity(log_probs, mask):
    surprise = -(log_probs * mask).sum() / mask.sum()  # nats per token
    return surprise.exp()


@mistake
def padding_counts(log_probs, mask):
    """you average over the padding too: what stands behind an answer's end is no token of it.
    Multiply by the mask, and divide by its sum."""
    return (-log_probs.mean()).exp()


@mistake
def mean_of_rows(log_probs, mask):
    """you average within each answer first. Then a token of a short answer counts for more;
    perplexity is per token over all answers."""
    return (-(log_probs * mask).sum(1) / mask.sum(1)).mean().exp()


@mistake
def mean_of_perplexities(log_probs, mask):
    """you take the exponential of each answer and average afterwards. One odd answer then outweighs
    all others: average the surprises, and take the exponential last."""
    return (-(log_probs * mask).sum(1) / mask.sum(1)).exp().mean()


@mistake
def no_exponential(log_probs, mask):
    """this is the mean surprise in nats. Perplexity is its exponential: a choice among so many
    equally likely tokens."""
    return -(log_probs * mask).sum() / mask.sum()


@mistake
def without_minus(log_probs, mask):
    """this is the geometric mean of the probabilities. Perplexity is one over it: a minus is
    missing."""
    return ((log_probs * mask).sum() / mask.sum()).exp()


@mistake
def by_responses(log_probs, mask):
    """you divide by the number of answers. That is nats per answer; divide by the tokens."""
    return (-(log_probs * mask).sum() / len(log_probs)).exp()


def of_lists(log_probs, mask):
    """The slow twin: a list of surprises, then their mean."""
    surprises = [
        -float(value)
        for row, there in zip(log_probs, mask, strict=True)
        for value, counts in zip(row, there, strict=True)
        if counts
    ]
    return torch.tensor(math.exp(sum(surprises) / len(surprises)))


def ragged(generator: torch.Generator) -> Arguments:
    rows, columns = (int(torch.randint(2, 6, (1,), generator=generator)) for _ in range(2))
    lengths = torch.randint(1, columns + 1, (rows,), generator=generator)
    lengths[0], lengths[1] = columns, 1
    log_probs = -2 * torch.rand(rows, columns, generator=generator)
    mask = torch.arange(columns)[None] < lengths[:, None]
    return {"log_probs": torch.where(mask, log_probs, -0.5), "mask": mask}


EXERCISE = Exercise(
    statement=(
        "From the log-probs (N, T) of the tokens of N answers and the mask (N, T), True for tokens that "
        "count, compute exp of the mean surprise -log p over all tokens that count."
    ),
    solution=perplexity,
    library=of_lists,
    cases=(
        Case(
            "one answer, probabilities 1/2 and 1/8: the mean of log 2 and log 8 is log 4",
            {
                "log_probs": torch.tensor([[0.5, 0.125]]).log(),
                "mask": torch.tensor([[True, True]]),
            },
            4.0,
        ),
        Case(
            "the same with padding behind it",
            {
                "log_probs": torch.tensor([[0.5, 0.125, 0.9]]).log(),
                "mask": torch.tensor([[True, True, False]]),
            },
            4.0,
        ),
        Case(
            "two answers, one of three tokens and one of a single token",
            {
                "log_probs": torch.tensor([[0.5, 0.5, 0.5], [1 / 32, 0.9, 0.9]]).log(),
                "mask": torch.tensor([[True, True, True], [True, False, False]]),
            },
            4.0,
        ),
    ),
    random=ragged,
)
