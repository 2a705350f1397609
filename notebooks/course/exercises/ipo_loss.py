"""IPO's loss of a pair: the gap is regressed on a finite target."""

from conformance.kinds import KINDS
from course.exercises import Case, Exercise, mistake, shared
from course.exercises.dpo_loss import dpo_loss
from rl.equations import preference_losses as library


def ipo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    h = (policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)
    return (h - 1 / (2 * beta)) ** 2


@mistake
def sign_of_the_target(pc, pr, rc, rr, beta):
    """you add the target where it must be subtracted, so the gap is driven below 0: the wrong
    way."""
    return ((pc - rc) - (pr - rr) + 1 / (2 * beta)) ** 2


@mistake
def reference_forgotten(pc, pr, rc, rr, beta):
    """you leave the reference out of the gap."""
    return (pc - pr - 1 / (2 * beta)) ** 2


@mistake
def dpo(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """this is DPO's loss. IPO is a square: the distance of the gap from its target."""
    return dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta)


EXERCISE = Exercise(
    statement=(
        "Compute (h - 1 / (2 beta))^2, (pairs,), with h = (policy_chosen - ref_chosen) - "
        "(policy_rejected - ref_rejected)."
    ),
    solution=ipo_loss,
    library=library.ipo_loss,
    cases=(
        Case(
            "the gap is 1.5 nats, beta 0.1: the target is 5",
            KINDS["preference_loss"].cases[0].arguments,
            [12.25],
        ),
        Case(
            "policy and reference agree, beta 0.5: the target is 1",
            KINDS["preference_loss"].cases[1].arguments,
            [1.0],
        ),
    ),
    random=KINDS["preference_loss"].random,
    gradient="policy_chosen",
    mistakes=shared("preference_loss", "target_one_over_beta target_half_beta"),
)
