"""Who wrote which token of a response: the policy, or what answers its calls."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake


def segment_mask(authors):
    return authors == 1


@mistake
def everything_written(authors):
    """the environment's tokens are in your mask: the policy would be trained on what it never chose."""
    return authors > 0


@mistake
def padding_too(authors):
    """the padding is in your mask: keep the policy's tokens alone."""
    return authors != 2


@mistake
def up_to_the_first_answer(authors):
    """your mask ends at the first answer: what the policy writes behind it is its own again."""
    return (authors == 1) & ((authors == 2).cumsum(1) == 0)


@mistake
def environment_only(authors):
    """your mask is the wrong way round: True is for the policy's tokens."""
    return authors == 2


def ragged(generator: torch.Generator) -> Arguments:
    authors = torch.randint(1, 3, (4, 9), generator=generator)
    ends = torch.randint(4, 10, (4, 1), generator=generator)
    return {"authors": torch.where(torch.arange(9) < ends, authors, 0)}


EXERCISE = Exercise(
    statement=(
        "authors (N, T) says who wrote each token of a response: 0 nobody (padding), 1 the policy, 2 the "
        "environment. Return the response mask, bool (N, T)."
    ),
    solution=segment_mask,
    library=segment_mask,
    cases=(
        Case(
            "a response with an answer in it, and one without",
            {"authors": torch.tensor([[1, 1, 2, 2, 1], [1, 1, 1, 0, 0]])},
            [[True, True, False, False, True], [True, True, True, False, False]],
        ),
    ),
    random=ragged,
)
