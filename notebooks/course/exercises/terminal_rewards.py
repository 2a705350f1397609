"""The terminal placement: all of a response's reward at its last token."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations.losses import row_sums
from rl.equations.token_rewards import at_last_token

MASK = torch.tensor([[True, True, True, False], [True, False, False, False]])


def terminal_rewards(token_rewards, mask):
    total = (token_rewards * mask).sum(1, keepdim=True)
    is_last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
    return total * is_last


def last_of(mask):
    return mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))


@mistake
def last_column(token_rewards, mask):
    """you use the last column, which is padding for all but the longest response: then the reward
    never reaches a token. Use the last True of each row."""
    placed = torch.zeros_like(token_rewards)
    placed[:, -1] = (token_rewards * mask).sum(1)
    return placed


@mistake
def at_every_token(r, mask):
    """you give the sum to every token. Then its total is paid L times over."""
    return (r * mask).sum(1, keepdim=True) * mask


@mistake
def padding_counted(r, mask):
    """rewards at padding are in your sum: multiply by the mask first."""
    return r.sum(1, keepdim=True) * last_of(mask)


@mistake
def mean_not_sum(r, mask):
    """you place the mean over the tokens. The sum is what dense and terminal must share."""
    return terminal_rewards(r, mask) / mask.sum(1, keepdim=True)


@mistake
def first_column(token_rewards, mask):
    """the sum stands at the first token. It is paid when the response is finished: at the last
    one."""
    placed = torch.zeros_like(token_rewards)
    placed[:, 0] = (token_rewards * mask).sum(1)
    return placed


EXERCISE = Exercise(
    statement=(
        "Put the sum of each response's token rewards at its last token (the last True of its mask), "
        "and 0 everywhere else: (N, T)."
    ),
    solution=terminal_rewards,
    library=lambda token_rewards, mask: at_last_token(row_sums(token_rewards, mask), mask),
    cases=(
        Case(
            "a response of 3 tokens and one of 1, with padding",
            {
                "token_rewards": torch.tensor([[1.0, 2.0, 3.0, 9.0], [4.0, 9.0, 9.0, 9.0]]),
                "mask": MASK,
            },
            [[0.0, 0.0, 6.0, 0.0], [4.0, 0.0, 0.0, 0.0]],
        ),
    ),
    random=some("token_rewards=loss mask"),
    mask="mask",
)
