"""The four cases of PPO's clip: which tokens still get a gradient."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.equations import losses as library


def clip_cases(ratio, advantages, clip_low, clip_high):
    went_up_enough = (advantages > 0) & (ratio > 1 + clip_high)
    went_down_enough = (advantages < 0) & (ratio < 1 - clip_low)
    return ~(went_up_enough | went_down_enough)


def by_autograd(ratio, advantages, clip_low, clip_high):
    """Where the library's loss has a gradient with respect to log pi."""
    log_probs = ratio.log().requires_grad_()
    old = torch.zeros_like(ratio)
    loss = library.clipped_surrogate(log_probs, old, advantages, clip_low, clip_high)
    return torch.autograd.grad(loss.sum(), log_probs)[0] != 0


@mistake
def inside_the_range(ratio, advantages, clip_low, clip_high):
    """you cut the gradient on both sides of the range. A token that moved the wrong way must be
    pulled back, however far it is: look at the sign of its advantage."""
    return (ratio > 1 - clip_low) & (ratio < 1 + clip_high)


@mistake
def the_clipped_ones(ratio, advantages, clip_low, clip_high):
    """this is the complement: True where the clip acted. True is wanted where a gradient is
    left."""
    return ~clip_cases(ratio, advantages, clip_low, clip_high)


@mistake
def maximum_for_bad_tokens(ratio, advantages, clip_low, clip_high):
    """for A < 0 you stop where the ratio is high. This is the max in place of the min: a bad
    token that became likelier would never be pulled back."""
    good = (advantages > 0) & (ratio < 1 + clip_high)
    bad = (advantages < 0) & (ratio < 1 + clip_high)
    return good | bad


@mistake
def sides_swapped(ratio, advantages, clip_low, clip_high):
    """the sides are swapped: a good token is done when its ratio is high, a bad one when its ratio
    is low."""
    return clip_cases(ratio, -advantages, clip_low, clip_high)


@mistake
def one_range_for_both(ratio, advantages, clip_low, clip_high):
    """right with one range for both sides, but the upper end is 1 + clip_high, which may differ
    from clip_low."""
    return clip_cases(ratio, advantages, clip_low, clip_low)


def ragged(generator: torch.Generator) -> Arguments:
    rows = int(torch.randint(3, 6, (1,), generator=generator))
    columns = int(torch.randint(4, 8, (1,), generator=generator))
    return {
        "ratio": (0.5 * torch.randn(rows, columns, generator=generator)).exp(),
        "advantages": torch.randn(rows, columns, generator=generator),
        "clip_low": 0.2,
        "clip_high": 0.4,
    }


def case(about: str, advantage: float, wanted: list[bool], clip_high: float = 0.2) -> Case:
    """The ratios 0.5, 0.9, 1.1 and 1.5 with one advantage."""
    ratio = torch.tensor([[0.5, 0.9, 1.1, 1.5]])
    arguments = {
        "ratio": ratio,
        "advantages": torch.full_like(ratio, advantage),
        "clip_low": 0.2,
        "clip_high": clip_high,
    }
    return Case(about, arguments, [wanted])


EXERCISE = Exercise(
    statement=(
        "Return a bool tensor (N, T): True where the clipped loss still gives the token a "
        "gradient. Look at the sign of its advantage and at the side to which its ratio moved."
    ),
    solution=clip_cases,
    library=by_autograd,
    cases=(
        case("a good token at the ratios 0.5, 0.9, 1.1, 1.5", 1.0, [True, True, True, False]),
        case("a bad token at the same ratios", -1.0, [False, True, True, True]),
        case("a good token with clip_high = 0.6", 1.0, [True, True, True, True], clip_high=0.6),
    ),
    random=ragged,
)
