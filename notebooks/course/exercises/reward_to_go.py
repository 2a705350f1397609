"""REINFORCE++'s return of each token: the rewards from this token to the end."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations import advantages as library


def reward_to_go(token_rewards, mask):
    valid = torch.where(mask, token_rewards, 0.0)
    to_come = valid.flip(1).cumsum(1).flip(1)  # summed from the end
    return torch.where(mask, to_come, 0.0)


def by_library(token_rewards, mask):
    return library.discounted_returns(token_rewards, mask, 1.0)


@mistake
def reward_so_far(token_rewards, mask):
    """you add up from the beginning. A token answers for what comes after it: begin at the end."""
    return torch.where(mask, torch.where(mask, token_rewards, 0.0).cumsum(1), 0.0)


@mistake
def whole_return(token_rewards, mask):
    """every token gets the whole return. Leave out the rewards that came before it."""
    total = torch.where(mask, token_rewards, 0.0).sum(1, keepdim=True)
    return torch.where(mask, total, 0.0)


@mistake
def own_left_out(token_rewards, mask):
    """the token's own reward belongs to what is to come."""
    return torch.where(mask, reward_to_go(token_rewards, mask) - token_rewards, 0.0)


@mistake
def padding_summed(token_rewards, mask):
    """rewards in the padding reach the tokens before it."""
    return torch.where(mask, token_rewards.flip(1).cumsum(1).flip(1), 0.0)


@mistake
def padding_kept(token_rewards, mask):
    """the mask is not used: the padding adds to the sums and keeps numbers of its own."""
    return token_rewards.flip(1).cumsum(1).flip(1)


@mistake
def not_flipped_back(token_rewards, mask):
    """the sums are right, but the columns are still in the wrong order: flip them back."""
    return torch.where(mask, token_rewards, 0.0).flip(1).cumsum(1)


EXERCISE = Exercise(
    statement=(
        "From token_rewards (N, T) and mask (N, T), compute for each token the sum of its own reward "
        "and all later ones of its response (gamma = 1); 0 in the padding."
    ),
    solution=reward_to_go,
    library=by_library,
    cases=(
        Case(
            "rewards 0.1, 0.2, 1 and -0.5, 1; fives in the padding",
            {
                "token_rewards": torch.tensor([[0.1, 0.2, 1.0, 5.0], [-0.5, 1.0, 5.0, 5.0]]),
                "mask": torch.tensor([[True, True, True, False], [True, True, False, False]]),
            },
            [[1.3, 1.2, 1.0, 0.0], [0.5, 1.0, 0.0, 0.0]],
        ),
    ),
    random=some("token_rewards=rewards mask"),
    mask="mask",
)
