"""CISPO's loss per token: REINFORCE with a clipped importance weight that has no gradient."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations import losses as library


def cispo(log_probs, old_log_probs, advantages, clip_high):
    ratio = (log_probs - old_log_probs).exp()
    weight = ratio.clamp(max=1 + clip_high).detach()
    return -weight * advantages * log_probs


def ratio_of(new, old):
    return (new - old).exp()


@mistake
def weight_with_gradient(new, old, A, high):
    """the numbers are right, but a gradient flows through the weight. Detach it: it says how much a
    token counts, and log pi alone is what is trained."""
    return -ratio_of(new, old).clamp(max=1 + high) * A * new


@mistake
def no_log_prob(new, old, A, high):
    """your loss is -w A, in which nothing is left to differentiate. CISPO multiplies the weight
    with log pi."""
    return -ratio_of(new, old).clamp(max=1 + high).detach() * A


@mistake
def clipped_below_too(new, old, A, high):
    """you clip the weight from below as well. CISPO holds it only from above."""
    return -ratio_of(new, old).clamp(0.8, 1 + high).detach() * A * new


@mistake
def not_clipped(new, old, A, high):
    """the weight is not clipped: a token that has moved far would pull as far."""
    return -ratio_of(new, old).detach() * A * new


@mistake
def bound_is_clip_high(new, old, A, high):
    """your bound is clip_high. It is relative to a ratio of 1: the weight ends at 1 + clip_high."""
    return -ratio_of(new, old).clamp(max=high).detach() * A * new


@mistake
def gain_not_loss(new, old, A, high):
    """this is what is maximised. A loss needs a minus in front."""
    return -cispo(new, old, A, high)


def case(about: str, advantage: float, wanted: list[float]) -> Case:
    """Probabilities 0.1, 0.2 and 0.8, all sampled at 0.2; the bound is 2."""
    arguments = {
        "log_probs": torch.tensor([[0.1, 0.2, 0.8]]).log(),
        "old_log_probs": torch.full((1, 3), 0.2).log(),
        "advantages": torch.tensor([[advantage]]),
        "clip_high": 1.0,
    }
    return Case(about, arguments, [wanted])


EXERCISE = Exercise(
    statement=(
        "Compute -w A log pi per token, (N, T), with the weight w = min(pi / pi_old, 1 + clip_high) "
        "held constant (no gradient through it), and advantages (N, 1)."
    ),
    solution=cispo,
    library=library.cispo,
    cases=(
        case("ratios 0.5, 1 and 4, bound 2, A = +1", 1.0, [1.151293, 1.609438, 0.446287]),
        case("the same with A = -1", -1.0, [-1.151293, -1.609438, -0.446287]),
    ),
    random=some("log_probs old_log_probs advantages=advantages_of_rows", clip_high=1.0),
    gradient="log_probs",
)
