"""DPO's loss of a pair: how surprised the implicit reward is by the verdict."""

import torch
import torch.nn.functional as F

from course.exercises import Arguments, Case, Exercise
from course.mistakes import mistake
from rl.equations import preference_losses as library


def dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    h = (policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)
    return -F.logsigmoid(beta * h)


@mistake
def reference_forgotten(pc, pr, rc, rr, beta):
    """you leave the reference out. Then a response that was likely before training counts as
    preferred: measure how far the policy has *moved* from the reference."""
    return -F.logsigmoid(beta * (pc - pr))


@mistake
def sides_swapped(pc, pr, rc, rr, beta):
    """you have chosen and rejected the wrong way round: this raises the response that people did
    not want."""
    return -F.logsigmoid(beta * ((pr - rr) - (pc - rc)))


@mistake
def beta_outside(pc, pr, rc, rr, beta):
    """beta stands outside of the logarithm. It belongs inside: -log sigmoid(beta h). Outside it
    only scales the loss."""
    return -beta * F.logsigmoid((pc - rc) - (pr - rr))


@mistake
def gain_not_loss(pc, pr, rc, rr, beta):
    """this is the log-likelihood, which is maximised. An optimizer minimises: put a minus in
    front."""
    return F.logsigmoid(beta * ((pc - rc) - (pr - rr)))


@mistake
def no_logarithm(pc, pr, rc, rr, beta):
    """you forgot the logarithm: this is the probability of the wrong verdict, not the negative
    logarithm of the right one."""
    return torch.sigmoid(-beta * ((pc - rc) - (pr - rr)))


@mistake
def sum_of_rewards(pc, pr, rc, rr, beta):
    """you add the two implicit rewards. The loss needs their difference: chosen minus rejected."""
    return -F.logsigmoid(beta * ((pc - rc) + (pr - rr)))


def pairs(generator: torch.Generator) -> Arguments:
    """Log-probs of whole responses, and a policy that has moved a few nats."""
    ref = -10 - 5 * torch.rand(2, 5, generator=generator)
    policy = ref + 2 * torch.randn(2, 5, generator=generator)
    return case_of(policy[0], policy[1], ref[0], ref[1], beta=0.3)


def case_of(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """The arguments by name."""
    return {
        "policy_chosen": policy_chosen,
        "policy_rejected": policy_rejected,
        "ref_chosen": ref_chosen,
        "ref_rejected": ref_rejected,
        "beta": beta,
    }


def numbers(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """The arguments of one pair."""
    four = (policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    a, b, c, d = (torch.tensor([float(value)]) for value in four)
    return case_of(a, b, c, d, beta)


EXERCISE = Exercise(
    statement=(
        "Compute -log sigmoid(beta h), (pairs,), with h = (policy_chosen - ref_chosen) - "
        "(policy_rejected - ref_rejected). All four are (pairs,) log-probs of whole responses."
    ),
    solution=dpo_loss,
    library=library.dpo_loss,
    cases=(
        Case(
            "the gap is 1.5 nats, beta 0.1",
            numbers(-10, -12, -11, -11.5, beta=0.1),
            [0.620957],
        ),
        Case(
            "policy and reference agree, so the loss is log 2",
            numbers(-3, -7, -3, -7, beta=0.5),
            [0.693147],
        ),
    ),
    random=pairs,
    gradient="policy_chosen",
)
