"""RLOO's advantages with the KL of the whole response in the reward, before the baseline."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake, ragged_mask, random_log_probs
from rl.equations import advantages as library


def rloo_advantages(rewards, log_probs, ref_log_probs, mask, kl_coef, group_size):
    kl = torch.where(mask, log_probs - ref_log_probs, 0.0).sum(1)  # (N,) of the response
    groups = (rewards - kl_coef * kl).view(-1, group_size)
    others = (groups.sum(1, keepdim=True) - groups) / (group_size - 1)
    return (groups - others).view(-1, 1)


def kl_of(log_probs, ref, mask):
    return torch.where(mask, log_probs - ref, 0.0).sum(1)


@mistake
def kl_after_the_baseline(rewards, log_probs, ref, mask, beta, G):
    """you subtract the KL after the baseline. On average the gradient is the same, but the
    neighbours' KL no longer takes noise out. Put it into the reward first."""
    kl = kl_of(log_probs, ref, mask)
    return library.leave_one_out_advantages(rewards, G) - beta * kl[:, None]


@mistake
def mean_kl(rewards, log_probs, ref, mask, beta, G):
    """you take the mean of the log-ratio over the tokens. The response is one action: its log-ratio
    is the sum."""
    kl = kl_of(log_probs, ref, mask) / mask.sum(1)
    return library.leave_one_out_advantages(rewards - beta * kl, G)


@mistake
def kl_rewarded(rewards, log_probs, ref, mask, beta, G):
    """the KL has the wrong sign: a response that the policy likes more than the reference does must
    cost something."""
    return rloo_advantages(rewards, log_probs, ref, mask, -beta, G)


@mistake
def padding_charged(rewards, log_probs, ref, mask, beta, G):
    """the padding has a KL too: use the mask."""
    return rloo_advantages(rewards, log_probs, ref, torch.ones_like(mask), beta, G)


@mistake
def without_kl(rewards, log_probs, ref, mask, beta, G):
    """the KL does not take part."""
    return library.leave_one_out_advantages(rewards, G)


@mistake
def group_mean(rewards, log_probs, ref, mask, beta, G):
    """your baseline contains row i itself. RLOO takes the mean of the others."""
    penalised = rewards - beta * kl_of(log_probs, ref, mask)
    return library.group_advantages(penalised, G, scale="none")


def by_library(rewards, log_probs, ref_log_probs, mask, kl_coef, group_size):
    from rl.rloo_engine import RLOOConfig
    from rl.rloo_engine import rloo_advantages as engine

    config = RLOOConfig(group_size=group_size, device="cpu")
    return engine(config, rewards, log_probs, ref_log_probs, mask, kl_coef)


def ragged(generator: torch.Generator) -> Arguments:
    mask = ragged_mask(generator, 6, 5)
    mask[0], mask[1] = torch.arange(5) < 2, True  # lengths differ for certain
    log_probs = random_log_probs(generator, 6, 5)
    return {
        "rewards": torch.randn(6, generator=generator),
        "log_probs": log_probs,
        "ref_log_probs": log_probs + 0.5 * torch.randn(6, 5, generator=generator),
        "mask": mask,
        "kl_coef": 0.3,
        "group_size": 3,
    }


EXERCISE = Exercise(
    statement=(
        "Compute R' = reward - kl_coef times the sum of (log_probs - ref_log_probs) over the valid "
        "tokens, then each R' minus the mean of the others of its group, (N, 1)."
    ),
    solution=rloo_advantages,
    library=by_library,
    cases=(
        Case(
            "three responses of one token: rewards 1, 0.5, 0 and log-ratios 2, 0, -1; beta 0.1",
            {
                "rewards": torch.tensor([1.0, 0.5, 0.0]),
                "log_probs": torch.tensor([[-1.0], [-1.0], [-2.0]]),
                "ref_log_probs": torch.tensor([[-3.0], [-1.0], [-1.0]]),
                "mask": torch.ones(3, 1, dtype=torch.bool),
                "kl_coef": 0.1,
                "group_size": 3,
            },
            [[0.5], [0.05], [-0.55]],
        ),
    ),
    random=ragged,
)
