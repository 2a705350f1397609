"""DPO's loss of a pair: how surprised the implicit reward is by the verdict."""

import torch.nn.functional as F

from conformance.kinds import KINDS
from course.exercises import Exercise, shared
from rl.equations import preference_losses as library


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
    cases=KINDS["preference_loss"].cases,
    random=KINDS["preference_loss"].random,
    gradient="policy_chosen",
    mistakes=shared(
        "preference_loss",
        "reference_forgotten sides_swapped beta_outside gain_not_loss no_logarithm sum_of_rewards",
    ),
)
