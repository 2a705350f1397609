"""The critic's loss, losses of preference pairs, and a reducer on its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .checking import ANY, Arguments, Case, Kind
from .comparing import ragged_mask
from .ways import ways


def value_loss(values, old, returns, clip, *_):
    near_old = old + (values - old).clamp(-clip, clip)
    return torch.maximum((values - returns) ** 2, (near_old - returns) ** 2) / 2


def squared(values, old, returns, *_):
    return (values - returns) ** 2 / 2


def minimum(values, old, returns, clip, *_):
    near_old = old + (values - old).clamp(-clip, clip)
    return torch.minimum((values - returns) ** 2, (near_old - returns) ** 2) / 2


def clipped_alone(values, old, returns, clip, *_):
    return (old + (values - old).clamp(-clip, clip) - returns) ** 2 / 2


def as_a_ratio(values, old, returns, clip, *_):
    near_old = torch.maximum(torch.minimum(values, old * (1 + clip)), old * (1 - clip))
    return torch.maximum((values - returns) ** 2, (near_old - returns) ** 2) / 2


def critic(generator: torch.Generator) -> Arguments:
    old = torch.randn(3, 5, generator=generator)
    mask = ragged_mask(generator, 3, 5)
    mask[0, 2:] = False
    return {
        "values": old + 0.4 * torch.randn(3, 5, generator=generator),
        "old_values": old,
        "returns": old + 0.5 * torch.randn(3, 5, generator=generator),
        "clip": 0.2,
        "mask": mask,
        "length": 9,
    }


def value_case(
    about: str, values: list[float], old: float, returns: list[float], wanted: list[float]
) -> Case:
    now, target = torch.tensor([values]), torch.tensor([returns])
    arguments = {
        "values": now,
        "old_values": torch.full_like(now, old),
        "returns": target,
        "clip": 0.2,
    }
    return Case(about, arguments, [wanted])


VALUE_LOSS = Kind(
    name="value_loss",
    about="the critic's loss, per token or averaged",
    known=ways(
        "value_loss",
        value_loss=value_loss,
        squared=squared,
        twice_value_loss=lambda *a: 2 * value_loss(*a),
        twice_squared=lambda *a: 2 * squared(*a),
    ),
    mistakes=ways(
        "value_loss mistakes",
        minimum=minimum,
        clipped_alone=clipped_alone,
        as_a_ratio=as_a_ratio,
        without_gradient=lambda *a: value_loss(*a).detach(),
        returns_one_late=lambda v, old, R, *a: value_loss(v, old, R.roll(1, 1), *a),
        learns_from_old=lambda v, old, R, *a: squared(v, old, old),
    ),
    cases=(
        value_case("an old value of 0, far from its return", [0.1], 0.0, [1.0], [0.405]),
        value_case(
            "V = 1, 0, 0.55; old 0.5; returns 2, -1, 0; clip 0.2",
            [1.0, 0.0, 0.55],
            0.5,
            [2.0, -1.0, 0.0],
            [0.845, 0.845, 0.15125],
        ),
    ),
    random=critic,
    optional={"old_values": ANY, "clip": ANY, "mask": ANY, "length": ANY},
    gradients=("values",),
    loss=True,
)


# --- pairs -------------------------------------------------------------------------------------------


def gap(pc, pr, rc, rr):
    return (pc - rc) - (pr - rr)


def dpo(pc, pr, rc, rr, beta):
    return -F.logsigmoid(beta * gap(pc, pr, rc, rr))


def pair_arguments(pc: Any, pr: Any, rc: Any, rr: Any, beta: float) -> Arguments:
    names = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")
    return {
        **{n: torch.as_tensor(v) for n, v in zip(names, (pc, pr, rc, rr), strict=True)},
        "beta": beta,
    }


def pairs(generator: torch.Generator) -> Arguments:
    """Log-probs of whole responses, and a policy that has moved a few nats."""
    ref = -10 - 5 * torch.rand(2, 5, generator=generator)
    policy = ref + 2 * torch.randn(2, 5, generator=generator)
    return pair_arguments(policy[0], policy[1], ref[0], ref[1], 0.3)


PREFERENCE_LOSS = Kind(
    name="preference_loss",
    about="a loss of pairs, from log-probs of whole responses",
    known=ways(
        "preference_loss",
        dpo=dpo,
        ipo=lambda *a: (gap(*a[:4]) - 1 / (2 * a[4])) ** 2,
        hinge=lambda *a: torch.relu(1 - a[4] * gap(*a[:4])),
    ),
    mistakes=ways(
        "preference_loss mistakes",
        reference_forgotten=lambda pc, pr, rc, rr, b: -F.logsigmoid(b * (pc - pr)),
        sides_swapped=lambda pc, pr, rc, rr, b: dpo(pr, pc, rr, rc, b),
        beta_outside=lambda pc, pr, rc, rr, b: b * dpo(pc, pr, rc, rr, 1.0),
        gain_not_loss=lambda *a: -dpo(*a),
        no_logarithm=lambda *a: torch.sigmoid(-a[4] * gap(*a[:4])),
        sum_of_rewards=lambda pc, pr, rc, rr, b: -F.logsigmoid(b * ((pc - rc) + (pr - rr))),
        reference_sign=lambda pc, pr, rc, rr, b: dpo(pc, pr, -rc, -rr, b),
        target_one_over_beta=lambda *a: (gap(*a[:4]) - 1 / a[4]) ** 2,
        target_half_beta=lambda *a: (gap(*a[:4]) - a[4] / 2) ** 2,
        rejected_detached=lambda pc, pr, rc, rr, b: dpo(pc, pr.detach(), rc, rr, b),
    ),
    cases=(
        Case(
            "the gap is 1.5 nats, beta 0.1",
            pair_arguments([-10.0], [-12.0], [-11.0], [-11.5], 0.1),
            [0.620957],
        ),
        Case(
            "policy and reference agree",
            pair_arguments([-3.0], [-5.0], [-3.0], [-5.0], 0.5),
            [0.693147],
        ),
    ),
    random=pairs,
    gradients=("policy_chosen", "policy_rejected"),
    loss=True,
)


# --- a reducer ----------------------------------------------------------------------------------------


def token_losses(generator: torch.Generator) -> Arguments:
    mask = ragged_mask(generator, 4, 6)
    mask[0], mask[1] = torch.arange(6) < 2, True  # lengths differ for certain
    return {"loss": torch.randn(4, 6, generator=generator) + 1, "mask": mask, "length": 9}


REDUCER = Kind(
    name="reducer",
    about="from token losses (N, T) and their mask to one number",
    known=ways("reducer", mean=lambda loss, *_: loss),
    mistakes=ways(
        "reducer mistakes",
        sign_flipped=lambda loss, *_: -loss,
        without_gradient=lambda loss, *_: loss.detach(),
    ),
    cases=(
        Case(
            "a response of 4 tokens with loss 1 each, and one token with loss 6",
            {
                "loss": torch.tensor([[1.0, 1, 1, 1], [6, 9, 9, 9]]),
                "mask": torch.tensor([[True] * 4, [True, False, False, False]]),
            },
            [[1.0, 1, 1, 1], [6, 0, 0, 0]],
        ),
    ),
    random=token_losses,
    optional={"length": ANY},
    gradients=("loss",),
    loss=True,
    rows=False,
)
