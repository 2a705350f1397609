"""Warm-up and cosine: the learning rate of every step."""

import math

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from harness.optimizer import cosine_schedule


def learning_rate(steps, total, peak, warmup):
    progress = (steps - warmup) / (total - warmup)
    cosine = 0.1 + 0.9 / 2 * (1 + torch.cos(math.pi * progress))
    return peak * torch.where(steps < warmup, (steps + 1) / warmup, cosine)


def by_the_library(steps, total, peak, warmup):
    rates = [cosine_schedule(t, total, peak=peak, warmup=warmup) for t in steps.tolist()]
    return torch.tensor(rates)


@mistake
def starts_at_zero(steps, total, peak, warmup):
    """your first step has the rate 0 and is lost. With (t + 1) / warmup the last step of the
    warm-up reaches the peak."""
    late = learning_rate(steps, total, peak, warmup)
    return torch.where(steps < warmup, peak * steps / warmup, late)


@mistake
def down_to_zero(steps, total, peak, warmup):
    """your cosine falls to 0. It should end at a tenth of the peak: squeeze it between 0.1 and
    1."""
    progress = (steps - warmup) / (total - warmup)
    cosine = (1 + torch.cos(math.pi * progress)) / 2
    return peak * torch.where(steps < warmup, (steps + 1) / warmup, cosine)


@mistake
def cosine_from_step_zero(steps, total, peak, warmup):
    """your cosine begins at step 0, so the rate jumps down after the warm-up. Count from there: (t
    - warmup) / (total - warmup)."""
    cosine = 0.1 + 0.9 / 2 * (1 + torch.cos(math.pi * steps / total))
    return peak * torch.where(steps < warmup, (steps + 1) / warmup, cosine)


@mistake
def linear(steps, total, peak, warmup):
    """the ends are right, but you fall in a straight line. Use the cosine."""
    falling = 1 - 0.9 * (steps - warmup) / (total - warmup)
    return peak * torch.where(steps < warmup, (steps + 1) / warmup, falling)


@mistake
def without_warmup(steps, total, peak, warmup):
    """the warm-up is missing: the first steps must be small."""
    progress = (steps - warmup) / (total - warmup)
    return peak * (0.1 + 0.9 / 2 * (1 + torch.cos(math.pi * progress.clamp(min=0))))


@mistake
def floor_added(steps, total, peak, warmup):
    """you add the tenth on top, so the peak is 1.1. Scale the cosine by 0.9 first."""
    progress = (steps - warmup) / (total - warmup)
    cosine = 0.1 + (1 + torch.cos(math.pi * progress)) / 2
    return peak * torch.where(steps < warmup, (steps + 1) / warmup, cosine)


def some_schedule(generator: torch.Generator) -> Arguments:
    warmup = int(torch.randint(2, 20, (1,), generator=generator))
    total = warmup + int(torch.randint(10, 200, (1,), generator=generator))
    return {"steps": torch.arange(total), "total": total, "peak": 0.5, "warmup": warmup}


EXERCISE = Exercise(
    statement=(
        "steps (n,) counts from 0. Return the learning rate of each: peak * (t + 1) / warmup for "
        "t < warmup, then half a cosine from the peak down to a tenth of it."
    ),
    solution=learning_rate,
    library=by_the_library,
    cases=(
        Case(
            "4 steps of warm-up, then 8 of cosine",
            {
                "steps": torch.tensor([0, 1, 3, 4, 8, 12]),
                "total": 12,
                "peak": 1.0,
                "warmup": 4,
            },
            [0.25, 0.5, 1.0, 1.0, 0.55, 0.1],
        ),
    ),
    random=some_schedule,
)
