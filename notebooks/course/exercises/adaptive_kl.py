"""The controller that holds the KL at a target by turning beta."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.equations.kl import AdaptiveKL


def adaptive_kl(coef, kl, target, responses, horizon):
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coef * (1 + responses / horizon * error)


def by_library(coef, kl, target, responses, horizon):
    controller = AdaptiveKL(coef, target, horizon)
    controller.update(kl, responses)
    return torch.tensor(controller.coef)


@mistake
def not_clipped(coef, kl, target, responses, horizon):
    """the error is not held within -0.2 and 0.2: one wild batch could turn beta a long way."""
    return coef * (1 + responses / horizon * (kl / target - 1))


@mistake
def wrong_way_round(coef, kl, target, responses, horizon):
    """your beta falls when the KL is too large. A larger KL needs a higher price."""
    return 2 * coef - adaptive_kl(coef, kl, target, responses, horizon)


@mistake
def added(coef, kl, target, responses, horizon):
    """you add the change. It is a factor, so that beta stays positive and moves in proportion to
    itself."""
    return coef + adaptive_kl(1.0, kl, target, responses, horizon) - 1


@mistake
def no_horizon(coef, kl, target, responses, horizon):
    """responses / horizon is missing: it sets how fast beta turns."""
    return coef * (1 + min(max(kl / target - 1, -0.2), 0.2))


@mistake
def in_nats(coef, kl, target, responses, horizon):
    """your error is kl - target, in nats. It is the relative error, kl / target - 1."""
    return coef * (1 + responses / horizon * min(max(kl - target, -0.2), 0.2))


def ragged(generator: torch.Generator) -> Arguments:
    share = 0.75 + 0.5 * float(torch.rand(1, generator=generator))
    return {
        "coef": 0.5 * float(torch.rand(1, generator=generator)) + 0.05,
        "kl": 6 * share,
        "target": 6.0,
        "responses": 64,
        "horizon": 320,
    }


def case(about: str, kl: float, wanted: float) -> Case:
    """Coefficient 0.2, target 6, 256 responses, horizon 1000."""
    arguments = {"coef": 0.2, "kl": kl, "target": 6.0, "responses": 256, "horizon": 1000}
    return Case(about, arguments, wanted)


EXERCISE = Exercise(
    statement=(
        "From coef, the measured kl, its target, the number of responses and the horizon, compute "
        "coef (1 + responses / horizon * error), error = kl / target - 1, held within -0.2 and 0.2."
    ),
    solution=adaptive_kl,
    library=by_library,
    cases=(
        case("a KL of 9, far above the target of 6", 9.0, 0.21024),
        case("a KL of 5.4, a little below", 5.4, 0.19488),
        case("a KL of 6, on target", 6.0, 0.2),
    ),
    random=ragged,
    tolerance=1e-5,
)
