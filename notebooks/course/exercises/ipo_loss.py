"""IPO's loss of a pair: the gap is regressed on a finite target."""

from course.exercises import Case, Exercise
from course.exercises.dpo_loss import dpo_loss, numbers, pairs
from course.mistakes import mistake
from rl.equations import preference_losses as library


def ipo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    h = (policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)
    return (h - 1 / (2 * beta)) ** 2


@mistake
def target_one_over_beta(pc, pr, rc, rr, beta):
    """your target is 1 / beta. It is half of that: 1 / (2 beta)."""
    return ((pc - rc) - (pr - rr) - 1 / beta) ** 2


@mistake
def target_half_beta(pc, pr, rc, rr, beta):
    """your target is beta / 2. It is 1 / (2 beta): a small beta is a weak hold on the reference, so
    the gap may become large."""
    return ((pc - rc) - (pr - rr) - beta / 2) ** 2


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
            numbers(-10, -12, -11, -11.5, beta=0.1),
            [12.25],
        ),
        Case(
            "the gap is at its target",
            numbers(-3, -7, -4, -7, beta=0.5),
            [0.0],
        ),
    ),
    random=pairs,
    gradient="policy_chosen",
)
