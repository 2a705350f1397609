"""The leash in the reward: every token pays for its k1, the last one gets the score."""

import torch

from conformance.kinds import KINDS
from course.exercises import Exercise, mistake, shared, some
from rl.equations import token_rewards as library


def k1_in_reward(scores, log_probs, ref_log_probs, mask, kl_coef):
    rewards = torch.where(mask, -kl_coef * (log_probs - ref_log_probs), 0.0)
    last = mask.sum(1) - 1
    rewards[torch.arange(len(scores)), last] += scores
    return rewards


def by_the_library(scores, log_probs, ref_log_probs, mask, kl_coef):
    return library.token_level_rewards(scores, log_probs, ref_log_probs, mask, kl_coef)


@mistake
def score_in_the_last_column(scores, log_probs, ref_log_probs, mask, kl_coef):
    """you put the score into the last column. A short response ends earlier: its last real token
    must get it."""
    rewards = torch.where(mask, -kl_coef * (log_probs - ref_log_probs), 0.0)
    rewards[:, -1] += scores
    return rewards


@mistake
def padding_pays(scores, log_probs, ref_log_probs, mask, kl_coef):
    """right at real tokens, but padding pays, too. It must be 0 there."""
    penalty = kl_coef * (log_probs - ref_log_probs)
    return library.at_last_token(scores, mask) - penalty


EXERCISE = Exercise(
    statement=(
        "Return rewards per token (N, T): -kl_coef * (log_probs - ref_log_probs) at every real "
        "token, plus the response's score at its last real token; 0 at padding."
    ),
    solution=k1_in_reward,
    library=by_the_library,
    cases=KINDS["token_rewards"].cases,
    random=some("scores log_probs ref_log_probs mask kl_coef"),
    mask="mask",
    mistakes=shared(
        "token_rewards",
        "paid_for_drifting score_at_every_token penalty_at_the_end divided_by_the_length "
        "coefficient_forgotten",
    ),
)
