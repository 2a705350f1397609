"""The return of a response with answers in it: what is earned behind an answer reaches the call."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.equations.advantages import discounted_returns


def answered_returns(token_rewards, mask, gamma):
    returns, to_come = torch.zeros_like(token_rewards), torch.zeros(len(token_rewards))
    for t in reversed(range(token_rewards.shape[1])):
        here = token_rewards[:, t] + gamma * to_come
        to_come = torch.where(mask[:, t], here, to_come)
        returns[:, t] = torch.where(mask[:, t], here, 0.0)
    return returns


def with_rule(token_rewards, mask, gamma, rule):
    """The same loop with another rule for what is to come: (mask of t, own return, to come)."""
    returns, to_come = torch.zeros_like(token_rewards), torch.zeros(len(token_rewards))
    for t in reversed(range(token_rewards.shape[1])):
        here = token_rewards[:, t] + gamma * to_come
        returns[:, t] = torch.where(mask[:, t], here, 0.0)
        to_come = rule(mask[:, t], here, to_come)
    return returns


@mistake
def reset_at_an_answer(token_rewards, mask, gamma):
    """your return starts anew at an answer, so that a call gets no credit for what it made possible:
    where the mask is False, keep what is to come."""
    return with_rule(token_rewards, mask, gamma, lambda m, here, later: torch.where(m, here, 0.0))


@mistake
def answers_discounted(token_rewards, mask, gamma):
    """the answer's tokens discount too. The policy takes one step from its last token before an answer
    to its first one behind it."""
    return with_rule(
        token_rewards, mask, gamma, lambda m, h, later: torch.where(m, h, gamma * later)
    )


@mistake
def answers_rewarded(token_rewards, mask, gamma):
    """rewards where the mask is False are in your sum: they belong to nobody."""
    return with_rule(token_rewards, mask, gamma, lambda m, here, later: here)


@mistake
def without_gamma(token_rewards, mask, gamma):
    """you add without a discount: multiply what is to come by gamma."""
    return answered_returns(token_rewards, mask, 1.0)


def with_holes(generator: torch.Generator) -> Arguments:
    mask = torch.rand(4, 9, generator=generator) < 0.6
    mask[:, 0] = mask[:, -1] = True
    return {"token_rewards": torch.randn(4, 9, generator=generator), "mask": mask, "gamma": 0.9}


EXERCISE = Exercise(
    statement=(
        "From token_rewards and mask (N, T) and gamma compute the return of every token of the policy, its "
        "own reward included, (N, T): gamma counts the policy's tokens, and the result is 0 where the mask "
        "is False."
    ),
    solution=answered_returns,
    library=lambda token_rewards, mask, gamma: discounted_returns(token_rewards, mask, gamma),
    cases=(
        Case(
            "a call of two tokens, an answer of two, the last token, which earns 1",
            {
                "token_rewards": torch.tensor([[0.0, 0.0, 5.0, 5.0, 1.0]]),
                "mask": torch.tensor([[True, True, False, False, True]]),
                "gamma": 0.9,
            },
            [[0.81, 0.9, 0.0, 0.0, 1.0]],
        ),
    ),
    random=with_holes,
    mask="mask",
)
