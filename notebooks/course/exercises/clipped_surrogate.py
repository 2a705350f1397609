"""PPO's clipped surrogate per token, as a loss: no gain from going further than the clip allows."""

import torch

from course.exercises import Arguments, Case, Exercise, random_log_probs
from course.mistakes import mistake
from rl.equations import losses as library

RATIOS = torch.tensor([[0.5, 0.9, 1.0, 1.1, 1.5]])


def clipped_surrogate(log_probs, old_log_probs, advantages, clip_low, clip_high):
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


@mistake
def gain_not_loss(log_probs, old_log_probs, advantages, clip_low, clip_high):
    """this is the objective, which is maximised. An optimizer minimises: put a minus in front."""
    return -clipped_surrogate(log_probs, old_log_probs, advantages, clip_low, clip_high)


@mistake
def clipped_alone(log_probs, old_log_probs, advantages, clip_low, clip_high):
    """you use the clipped ratio alone. Then a token that went the wrong way past the clip gets no
    gradient and never comes back. Take the minimum of both products."""
    ratio = (log_probs - old_log_probs).exp()
    return -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages


@mistake
def maximum_of_gains(log_probs, old_log_probs, advantages, clip_low, clip_high):
    """you take the larger of the two products. The surrogate is pessimistic: the smaller one."""
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.maximum(ratio * advantages, clipped * advantages)


@mistake
def minimum_of_ratios(log_probs, old_log_probs, advantages, clip_low, clip_high):
    """you take the minimum of the two ratios and multiply afterwards. For a negative advantage that
    picks the wrong one: multiply each by A first, then take the minimum."""
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio, clipped) * advantages


@mistake
def not_clipped(log_probs, old_log_probs, advantages, clip_low, clip_high):
    """nothing is clipped: this is -ratio A, which pays for moving as far as you like."""
    return -(log_probs - old_log_probs).exp() * advantages


@mistake
def upside_down(log_probs, old_log_probs, advantages, clip_low, clip_high):
    """your ratio is old / new. It is the policy in training over the one that sampled:
    exp(log_probs - old_log_probs)."""
    return clipped_surrogate(old_log_probs, log_probs, advantages, clip_low, clip_high)


@mistake
def log_ratio_for_ratio(log_probs, old_log_probs, advantages, clip_low, clip_high):
    """you forgot the exponential: log_probs - old_log_probs is the logarithm of the ratio."""
    ratio = log_probs - old_log_probs
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


@mistake
def one_clip_for_both(log_probs, old_log_probs, advantages, clip_low, clip_high):
    """right with one clip range for both sides, but the upper end is 1 + clip_high, which may
    differ from clip_low (DAPO's clip-higher)."""
    return clipped_surrogate(log_probs, old_log_probs, advantages, clip_low, clip_low)


@mistake
def without_gradient(log_probs, old_log_probs, advantages, clip_low, clip_high):
    """the numbers are right, but no gradient reaches log_probs: something is detached or computed
    under no_grad."""
    return clipped_surrogate(log_probs, old_log_probs, advantages, clip_low, clip_high).detach()


def ragged(generator: torch.Generator) -> Arguments:
    rows = int(torch.randint(2, 5, (1,), generator=generator))
    columns = int(torch.randint(3, 7, (1,), generator=generator))
    old = random_log_probs(generator, rows, columns)
    return {
        "log_probs": old + 0.5 * torch.randn(rows, columns, generator=generator),
        "old_log_probs": old,
        "advantages": torch.randn(rows, 1, generator=generator),
        "clip_low": 0.2,
        "clip_high": 0.28,
    }


def case(about: str, advantage: float, wanted: list[float], clip_high: float = 0.2) -> Case:
    """The ratios 0.5, 0.9, 1, 1.1 and 1.5 with one advantage."""
    arguments = {
        "log_probs": RATIOS.log(),
        "old_log_probs": torch.zeros_like(RATIOS),
        "advantages": torch.tensor([[advantage]]),
        "clip_low": 0.2,
        "clip_high": clip_high,
    }
    return Case(about, arguments, [wanted])


EXERCISE = Exercise(
    statement=(
        "Compute -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) per token, (N, T), from "
        "log_probs and old_log_probs (N, T) and advantages (N, 1)."
    ),
    solution=clipped_surrogate,
    library=library.clipped_surrogate,
    cases=(
        case("a good token, A = +1, at five ratios", 1.0, [-0.5, -0.9, -1.0, -1.1, -1.2]),
        case("a bad token, A = -1, at five ratios", -1.0, [0.8, 0.9, 1.0, 1.1, 1.5]),
        case(
            "a good token with clip_high = 0.28",
            1.0,
            [-0.5, -0.9, -1.0, -1.1, -1.28],
            clip_high=0.28,
        ),
    ),
    random=ragged,
    gradient="log_probs",
)
