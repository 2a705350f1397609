"""The reward model's pooling: one score per response, the mean over its tokens."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations import losses as library


def mean_score(token_scores, mask):
    return torch.where(mask, token_scores, 0.0).sum(1) / mask.sum(1)


def by_library(token_scores, mask):
    return library.row_means(token_scores, mask)


@mistake
def last_token(token_scores, mask):
    """this is the score of the last token: the other pooling. Here the mean is wanted."""
    return token_scores[torch.arange(len(mask)), mask.sum(1) - 1]


@mistake
def last_column(token_scores, mask):
    """you read the last column, which is padding for a short response."""
    return token_scores[:, -1]


@mistake
def padding_included(token_scores, mask):
    """the padding takes part: use the mask."""
    return token_scores.mean(1)


@mistake
def padded_length(token_scores, mask):
    """you divide by T. Divide by the response's own length, mask.sum(1)."""
    return torch.where(mask, token_scores, 0.0).mean(1)


@mistake
def summed(token_scores, mask):
    """you add the scores up: divide by the length."""
    return torch.where(mask, token_scores, 0.0).sum(1)


@mistake
def eos_left_out(token_scores, mask):
    """you left the last token out. The EOS is a token like the others, and it is scored."""
    earlier = mask & torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], 1)
    return torch.where(earlier, token_scores, 0.0).sum(1) / earlier.sum(1).clamp(min=1)


EXERCISE = Exercise(
    statement=(
        "From token_scores (N, T) and mask (N, T), True up to and including the EOS, compute the mean "
        "score of each response, (N,)."
    ),
    solution=mean_score,
    library=by_library,
    cases=(
        Case(
            "scores 1, 2, 6 and 4, in responses of three tokens and of one",
            {
                "token_scores": torch.tensor([[1.0, 2.0, 6.0], [4.0, 9.0, 9.0]]),
                "mask": torch.tensor([[True, True, True], [True, False, False]]),
            },
            [3.0, 4.0],
        ),
    ),
    random=some("token_scores=loss mask"),
)
