"""RLOO's loss: minus the advantage times the log-probability of the whole response."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations import losses as library


def rloo_loss(log_probs, advantages, mask):
    of_response = torch.where(mask, log_probs, 0.0).sum(1)  # log pi(y | x), (N,)
    return -(advantages[:, 0] * of_response).mean()


def by_library(log_probs, advantages, mask):
    return library.sequence_sum(library.policy_gradient(log_probs, advantages), mask)


@mistake
def divided_by_length(log_probs, advantages, mask):
    """you divide by the length of the response. The log-probability of a response is the sum over
    its tokens, undivided."""
    return library.sequence_mean(library.policy_gradient(log_probs, advantages), mask)


@mistake
def over_all_tokens(log_probs, advantages, mask):
    """you average over all tokens. Sum over the tokens of a response, average over responses."""
    return library.token_mean(library.policy_gradient(log_probs, advantages), mask)


@mistake
def gain_not_loss(log_probs, advantages, mask):
    """the minus is missing: an optimizer minimises."""
    return -rloo_loss(log_probs, advantages, mask)


@mistake
def padding_included(log_probs, advantages, mask):
    """the padding takes part: use the mask."""
    return rloo_loss(log_probs, advantages, torch.ones_like(mask))


@mistake
def not_averaged(log_probs, advantages, mask):
    """you add up the responses: take their mean."""
    return rloo_loss(log_probs, advantages, mask) * len(log_probs)


@mistake
def every_pair(log_probs, advantages, mask):
    """(N, 1) times (N,) broadcasts to (N, N): every advantage meets every response. Give both the
    same shape."""
    return -(advantages * torch.where(mask, log_probs, 0.0).sum(1)).mean()


@mistake
def probabilities(log_probs, advantages, mask):
    """you take the probability of the response. REINFORCE wants its logarithm."""
    of_response = torch.where(mask, log_probs, 0.0).sum(1)
    return -(advantages[:, 0] * of_response.exp()).mean()


EXERCISE = Exercise(
    statement=(
        "From log_probs (N, T), advantages (N, 1) and mask (N, T), compute minus the mean over "
        "responses of advantage times the sum of the response's log-probs, a scalar."
    ),
    solution=rloo_loss,
    library=by_library,
    cases=(
        Case(
            "advantages 0.5, 0.05, -0.55; log-probs of the responses -3, -4, -5",
            {
                "log_probs": torch.tensor([[-1.0, -2.0], [-4.0, 9.0], [-2.0, -3.0]]),
                "advantages": torch.tensor([[0.5], [0.05], [-0.55]]),
                "mask": torch.tensor([[True, True], [True, False], [True, True]]),
            },
            -0.35,
        ),
    ),
    random=some("log_probs advantages=advantages_of_rows mask"),
    mask="mask",
    gradient="log_probs",
)
