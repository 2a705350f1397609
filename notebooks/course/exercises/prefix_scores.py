"""The reward of each prefix, where a response's reward is the mean of its token scores."""

import torch

from course.exercises import Case, Exercise, mistake, some


def prefix_scores(token_scores, mask):
    valid = torch.where(mask, token_scores, 0.0)
    tokens_so_far = mask.cumsum(1).clamp(min=1)
    return torch.where(mask, valid.cumsum(1) / tokens_so_far, 0.0)


def by_hand(token_scores, mask):
    """Prefix by prefix, as the definition says."""
    rows = []
    for scores, valid in zip(token_scores, mask):
        means = [
            scores[: t + 1].mean() if valid[t] else scores.new_zeros(()) for t in range(len(scores))
        ]
        rows.append(torch.stack(means))
    return torch.stack(rows)


@mistake
def only_summed(token_scores, mask):
    """you add the scores up. Divide each sum by the number of tokens so far."""
    return torch.where(mask, torch.where(mask, token_scores, 0.0).cumsum(1), 0.0)


@mistake
def whole_length(token_scores, mask):
    """you divide by the length of the whole response. A prefix of t tokens is divided by t."""
    return only_summed(token_scores, mask) / mask.sum(1, keepdim=True)


@mistake
def token_itself(token_scores, mask):
    """this is the score of each token alone. A prefix is judged by the mean up to there."""
    return torch.where(mask, token_scores, 0.0)


@mistake
def one_token_late(token_scores, mask):
    """you are one token late: the reward model has read the token that it scores."""
    right = prefix_scores(token_scores, mask)
    shifted = torch.cat([torch.zeros_like(right[:, :1]), right[:, :-1]], 1)
    return torch.where(mask, shifted, 0.0)


@mistake
def to_the_end(token_scores, mask):
    """you average from the token to the end. A prefix goes from the first token to this one."""
    valid = torch.where(mask, token_scores, 0.0)
    left = mask.flip(1).cumsum(1).flip(1).clamp(min=1)
    return torch.where(mask, valid.flip(1).cumsum(1).flip(1) / left, 0.0)


@mistake
def padding_scored(token_scores, mask):
    """right where the mask is True. In the padding the result must be 0."""
    return token_scores.cumsum(1) / torch.arange(1, token_scores.shape[1] + 1)


EXERCISE = Exercise(
    statement=(
        "From token_scores (N, T) and mask (N, T), compute for each token the mean of the scores of "
        "its response up to and including it, (N, T); 0 in the padding."
    ),
    solution=prefix_scores,
    library=by_hand,
    cases=(
        Case(
            "scores 1, 2, 6 and 4, in responses of three tokens and of one",
            {
                "token_scores": torch.tensor([[1.0, 2.0, 6.0], [4.0, 9.0, 9.0]]),
                "mask": torch.tensor([[True, True, True], [True, False, False]]),
            },
            [[1.0, 1.5, 3.0], [4.0, 0.0, 0.0]],
        ),
    ),
    random=some("token_scores=advantages mask"),
    mask="mask",
)
