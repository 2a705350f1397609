"""PPO's reward of each token: minus beta k1, and the score at the last token."""

import torch

from course.exercises import Case, Exercise, mistake, shared, some
from rl.equations import token_rewards as library


def kl_in_reward(scores, log_probs, ref_log_probs, response_mask, kl_coef):
    rewards = torch.where(response_mask, -kl_coef * (log_probs - ref_log_probs), 0.0)
    last = response_mask.sum(1) - 1
    rewards[torch.arange(len(scores)), last] += scores
    return rewards


def penalty(log_probs, ref, mask, beta):
    return torch.where(mask, -beta * (log_probs - ref), 0.0)


@mistake
def score_in_the_last_column(scores, log_probs, ref, mask, beta):
    """the score stands in the last column, which is padding for a short response. Its place is the
    response's own last token, mask.sum(1) - 1."""
    rewards = penalty(log_probs, ref, mask, beta)
    rewards[:, -1] += scores
    return rewards


@mistake
def score_after_the_end(scores, log_probs, ref, mask, beta):
    """the score stands one column after the last token: the index is mask.sum(1) - 1."""
    rewards = penalty(log_probs, ref, mask, beta)
    after = mask.sum(1).clamp(max=mask.shape[1] - 1)
    rewards[torch.arange(len(scores)), after] += scores
    return rewards


@mistake
def mean_kl_at_the_end(scores, log_probs, ref, mask, beta):
    """you take the mean of k1 off the score. It is the sum that is InstructGPT's, and each token
    pays its own part."""
    mean = penalty(log_probs, ref, mask, beta).sum(1) / mask.sum(1)
    rewards = torch.zeros_like(log_probs)
    rewards[torch.arange(len(scores)), mask.sum(1) - 1] = scores + mean
    return rewards


@mistake
def padding_charged(scores, log_probs, ref, mask, beta):
    """right at every token, but the padding has a KL too. Outside of the mask it must be 0."""
    rewards = -beta * (log_probs - ref)
    rewards[torch.arange(len(scores)), mask.sum(1) - 1] += scores
    return rewards


EXERCISE = Exercise(
    statement=(
        "From scores (N,), log_probs and ref_log_probs (N, T) and response_mask (N, T), compute "
        "-kl_coef (log_probs - ref_log_probs) at every token, plus the score at the last True "
        "position; 0 in the padding."
    ),
    solution=kl_in_reward,
    library=library.token_level_rewards,
    cases=(
        Case(
            "three tokens, score 1, beta 0.1",
            {
                "scores": torch.tensor([1.0]),
                "log_probs": torch.tensor([[-1.0, -2.0, -0.5]]),
                "ref_log_probs": torch.tensor([[-1.2, -1.5, -0.5]]),
                "response_mask": torch.ones(1, 3, dtype=torch.bool),
                "kl_coef": 0.1,
            },
            [[-0.02, 0.05, 1.0]],
        ),
    ),
    random=some("scores log_probs ref_log_probs response_mask=mask", kl_coef=0.3),
    mask="response_mask",
    mistakes=shared(
        "token_rewards", "paid_for_drifting score_at_every_token last_token_not_charged"
    ),
)
