"""PPO's clipped surrogate per token, as a loss: no gain from going further than the clip allows."""

import torch

from conformance.kinds import KINDS
from course.exercises import Exercise, shared, some
from rl.equations import losses as library


def clipped_surrogate(log_probs, old_log_probs, advantages, clip_low, clip_high):
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


EXERCISE = Exercise(
    statement=(
        "Compute -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) per token, (N, T), from "
        "log_probs and old_log_probs (N, T) and advantages (N, 1)."
    ),
    solution=clipped_surrogate,
    library=library.clipped_surrogate,
    cases=KINDS["policy_loss"].cases[2:5],
    random=some(
        "log_probs old_log_probs advantages=advantages_of_rows", clip_low=0.2, clip_high=0.28
    ),
    gradient="log_probs",
    mistakes=shared(
        "policy_loss",
        "gain_not_loss clipped_alone maximum_of_gains minimum_of_ratios not_clipped upside_down "
        "log_ratio_for_ratio one_clip_for_both without_gradient",
    ),
)
