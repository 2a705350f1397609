"""The reward that a policy implies: how far it has moved a response away from the reference."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations.losses import row_sums

MASK = torch.tensor([[True, True, True], [True, False, False]])


def implicit_reward(log_probs, ref_log_probs, mask, beta):
    return beta * ((log_probs - ref_log_probs) * mask).sum(1)


@mistake
def mean_per_token(lp, ref, mask, beta):
    """you take the mean over a response's tokens. The log-probability of a response is their
    sum."""
    return beta * ((lp - ref) * mask).sum(1) / mask.sum(1)


@mistake
def padding_counted(lp, ref, mask, beta):
    """padding is counted: multiply by the mask before you add up the tokens."""
    return beta * (lp - ref).sum(1)


@mistake
def reference_forgotten(lp, ref, mask, beta):
    """you leave the reference out: this is beta log pi(y), which punishes every long response."""
    return beta * (lp * mask).sum(1)


@mistake
def wrong_way_round(lp, ref, mask, beta):
    """the sign is flipped: a response that has become *more* likely than under the reference has a
    positive implicit reward."""
    return -implicit_reward(lp, ref, mask, beta)


@mistake
def divided_by_beta(lp, ref, mask, beta):
    """you divide by beta. A policy near its reference (large beta) needed a large reward to move a
    little, so the reward is beta *times* the log-ratio."""
    return ((lp - ref) * mask).sum(1) / beta


EXERCISE = Exercise(
    statement=(
        "Compute beta (log pi(y) - log pi_ref(y)) of each response, (N,), from log-probs of its "
        "tokens (N, T). The log-prob of a response is the sum over the tokens where mask is True."
    ),
    solution=implicit_reward,
    library=lambda log_probs, ref_log_probs, mask, beta: (
        beta * row_sums(log_probs - ref_log_probs, mask)
    ),
    cases=(
        Case(
            "two responses, of 3 tokens and of 1",
            {
                "log_probs": torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -9.0, -9.0]]),
                "ref_log_probs": torch.tensor([[-2.0, -2.0, -4.0], [-3.0, -1.0, -1.0]]),
                "mask": MASK,
                "beta": 0.5,
            },
            [1.0, -0.5],
        ),
    ),
    random=some("log_probs ref_log_probs mask", beta=0.2),
    mask="mask",
)
