"""The leash in the reward: every token pays for its k1, the last one gets the score."""

import torch

from course.exercises import Arguments, Case, Exercise, ragged_mask, random_log_probs
from course.mistakes import mistake
from rl.equations import token_rewards as library


def k1_in_reward(scores, log_probs, ref_log_probs, mask, kl_coef):
    rewards = torch.where(mask, -kl_coef * (log_probs - ref_log_probs), 0.0)
    last = mask.sum(1) - 1
    rewards[torch.arange(len(scores)), last] += scores
    return rewards


def by_the_library(scores, log_probs, ref_log_probs, mask, kl_coef):
    return library.token_level_rewards(scores, log_probs, ref_log_probs, mask, kl_coef)


@mistake
def paid_for_drifting(scores, log_probs, ref_log_probs, mask, kl_coef):
    """the sign of the penalty is turned round: your policy is paid for leaving the reference.
    Subtract kl_coef * (log_probs - ref_log_probs)."""
    return k1_in_reward(scores, ref_log_probs, log_probs, mask, kl_coef)


@mistake
def score_in_the_last_column(scores, log_probs, ref_log_probs, mask, kl_coef):
    """you put the score into the last column. A short response ends earlier: its last real token
    must get it."""
    rewards = torch.where(mask, -kl_coef * (log_probs - ref_log_probs), 0.0)
    rewards[:, -1] += scores
    return rewards


@mistake
def score_at_every_token(scores, log_probs, ref_log_probs, mask, kl_coef):
    """every token gets the whole score, so long responses earn it many times. It is paid once, at
    the last real token."""
    penalty = kl_coef * (log_probs - ref_log_probs)
    return torch.where(mask, scores[:, None] - penalty, 0.0)


@mistake
def penalty_at_the_end(scores, log_probs, ref_log_probs, mask, kl_coef):
    """the total of each response is right, but all of the penalty stands at its end. Each token
    pays for its own step."""
    total = by_the_library(scores, log_probs, ref_log_probs, mask, kl_coef).sum(1)
    return library.at_last_token(total, mask)


@mistake
def divided_by_the_length(scores, log_probs, ref_log_probs, mask, kl_coef):
    """you divide the penalty by the response's length. That is nats per token with a coefficient
    that is meant per response: long responses drift nearly for free."""
    penalty = kl_coef * (log_probs - ref_log_probs) / mask.sum(1, keepdim=True)
    return torch.where(mask, -penalty, 0.0) + library.at_last_token(scores, mask)


@mistake
def padding_pays(scores, log_probs, ref_log_probs, mask, kl_coef):
    """right at real tokens, but padding pays, too. It must be 0 there."""
    penalty = kl_coef * (log_probs - ref_log_probs)
    return library.at_last_token(scores, mask) - penalty


@mistake
def coefficient_forgotten(scores, log_probs, ref_log_probs, mask, kl_coef):
    """kl_coef does not appear: the penalty is not scaled."""
    return k1_in_reward(scores, log_probs, ref_log_probs, mask, 1.0)


def ragged(generator: torch.Generator) -> Arguments:
    rows = int(torch.randint(3, 6, (1,), generator=generator))
    columns = int(torch.randint(3, 7, (1,), generator=generator))
    mask = ragged_mask(generator, rows, columns)
    mask[0, 2:] = False
    return {
        "scores": torch.randn(rows, generator=generator),
        "log_probs": random_log_probs(generator, rows, columns),
        "ref_log_probs": random_log_probs(generator, rows, columns),
        "mask": mask,
        "kl_coef": 0.1,
    }


WORKED = {
    "scores": torch.tensor([1.0, 0.5]),
    "log_probs": torch.tensor([[-1.0, -0.5, -2.0], [-0.3, 9.0, 9.0]]),
    "ref_log_probs": torch.tensor([[-1.2, -1.0, -1.9], [-0.5, 5.0, 5.0]]),
    "mask": torch.tensor([[True, True, True], [True, False, False]]),
    "kl_coef": 0.1,
}


EXERCISE = Exercise(
    statement=(
        "Return rewards per token (N, T): -kl_coef * (log_probs - ref_log_probs) at every real "
        "token, plus the response's score at its last real token; 0 at padding."
    ),
    solution=k1_in_reward,
    library=by_the_library,
    cases=(
        Case(
            "responses of 3 tokens and of 1",
            WORKED,
            [[-0.02, -0.05, 1.01], [0.48, 0.0, 0.0]],
        ),
    ),
    random=ragged,
    mask="mask",
)
