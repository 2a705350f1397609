"""MiniLLM's length-normalised return: the mean reward of the tokens after t."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations import losses as library


def returns_after(token_rewards, mask):
    r, counts = token_rewards * mask, mask.long()
    after = r.sum(1, keepdim=True) - r.cumsum(1)  # the sum of what follows t
    count = counts.sum(1, keepdim=True) - counts.cumsum(1)  # and how many tokens that is
    return torch.where(mask & (count > 0), after / count.clamp(min=1), 0.0)


def parts(token_rewards, mask):
    """Rewards with 0 at padding; their sum after t; the number of tokens after t."""
    r = token_rewards * mask
    counts = mask.long()
    return r, r.sum(1, keepdim=True) - r.cumsum(1), counts.sum(1, keepdim=True) - counts.cumsum(1)


@mistake
def own_reward_included(token_rewards, mask):
    """the token's own reward is in your return. In MiniLLM it is in the single-step KL already, and
    would count twice."""
    r, after, count = parts(token_rewards, mask)
    return torch.where(mask, (after + r) / (count + 1), 0.0)


@mistake
def sum_not_mean(token_rewards, mask):
    """this is the sum of what follows. Divide by the number of tokens that follow."""
    return torch.where(mask, parts(token_rewards, mask)[1], 0.0)


@mistake
def one_term_less(token_rewards, mask):
    """you divide by one less than the number of terms, the factor that the paper prints. Where one
    token follows it would be 0: divide by the number of terms."""
    _, after, count = parts(token_rewards, mask)
    return torch.where(mask & (count > 0), after / (count - 1).clamp(min=1), 0.0)


@mistake
def before_not_after(token_rewards, mask):
    """you average what came *before* t. A token can change only what comes after it."""
    r = token_rewards * mask
    before, count = r.cumsum(1) - r, mask.long().cumsum(1) - 1
    return torch.where(mask & (count > 0), before / count.clamp(min=1), 0.0)


@mistake
def padding_counted(token_rewards, mask):
    """padding counts as tokens that follow: take sums and counts over the mask."""
    return returns_after(token_rewards, torch.ones_like(mask)) * mask


EXERCISE = Exercise(
    statement=(
        "Of every token t compute the mean reward of the tokens after t, (N, T): 0 where nothing "
        "follows, and 0 where the mask is False."
    ),
    solution=returns_after,
    library=library.length_normalized_returns,
    cases=(
        Case(
            "rewards -0.2, 0.5, -0.9, then padding",
            {
                "token_rewards": torch.tensor([[-0.2, 0.5, -0.9, 7.0]]),
                "mask": torch.tensor([[True, True, True, False]]),
            },
            [[-0.2, -0.9, 0.0, 0.0]],
        ),
        Case(
            "one token: nothing follows",
            {"token_rewards": torch.tensor([[3.0]]), "mask": torch.tensor([[True]])},
            [[0.0]],
        ),
    ),
    random=some("token_rewards=rewards mask"),
    mask="mask",
)
