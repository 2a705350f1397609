"""DPO's loss of a pair: how surprised the implicit reward is by the verdict."""

import torch.nn.functional as F

from conformance.values_and_pairs import PREFERENCE_LOSS
from course.exercises import Exercise, shared
from rl.equations import preference_losses as library

MISTAKES = PREFERENCE_LOSS.mistakes


def dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    h = (policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)
    return -F.logsigmoid(beta * h)


EXERCISE = Exercise(
    statement=(
        "Compute -log sigmoid(beta h), (pairs,), with h = (policy_chosen - ref_chosen) - "
        "(policy_rejected - ref_rejected). All four are (pairs,) log-probs of whole responses."
    ),
    solution=dpo_loss,
    library=library.dpo_loss,
    cases=PREFERENCE_LOSS.cases,
    random=PREFERENCE_LOSS.random,
    gradient="policy_chosen",
    mistakes=shared(
        MISTAKES,
        "reference_forgotten sides_swapped beta_outside gain_not_loss no_logarithm sum_of_rewards",
    ),
)
