"""The critic's loss, losses of preference pairs, and a reducer on its own."""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid

from .batches import Arguments, some
from .checking import ANY, Kind
from .enumeration import of_a_preference_loss
from .ways import ways


def squared(values, old, returns, *_):
    return (values - returns) ** 2 / 2


def near_old(values, old, returns, clip, *_):
    return (old + (values - old).clamp(-clip, clip) - returns) ** 2 / 2


def value_loss(*a):
    return torch.maximum(squared(*a), near_old(*a))


def as_a_ratio(values, old, returns, clip, *_):
    near = torch.maximum(torch.minimum(values, old * (1 + clip)), old * (1 - clip))
    return torch.maximum((values - returns) ** 2, (near - returns) ** 2) / 2


VALUE_LOSS = Kind(
    name="value_loss",
    random=some("values old_values returns clip mask length"),
    known=ways(
        "value_loss",
        value_loss=value_loss,
        squared=squared,
        twice_value_loss=lambda *a: 2 * value_loss(*a),
        twice_squared=lambda *a: 2 * squared(*a),
    ),
    mistakes=ways(
        "value_loss mistakes",
        minimum=lambda *a: torch.minimum(squared(*a), near_old(*a)),
        clipped_alone=near_old,
        as_a_ratio=as_a_ratio,
        without_gradient=lambda *a: value_loss(*a).detach(),
        returns_one_late=lambda v, old, R, *a: value_loss(v, old, R.roll(1, 1), *a),
        learns_from_old=lambda v, old, R, *a: squared(v, old, old),
    ),
    optional={"old_values": ANY, "clip": ANY, "mask": ANY, "length": ANY},
    gradients=("values",),
    loss=True,
)


# --- pairs -------------------------------------------------------------------------------------------


def gap(pc, pr, rc, rr):
    return (pc - rc) - (pr - rr)


def dpo(pc, pr, rc, rr, beta):
    return -logsigmoid(beta * gap(pc, pr, rc, rr))


def pairs(generator: torch.Generator) -> Arguments:
    """Log-probs of whole responses, and a policy that has moved a few nats."""
    ref = -10 - 5 * torch.rand(2, 5, generator=generator)
    policy = ref + 2 * torch.randn(2, 5, generator=generator)
    names = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected", "beta")
    return dict(zip(names, (*policy, *ref, 0.3), strict=True))


PREFERENCE_LOSS = Kind(
    name="preference_loss",
    known=ways(
        "preference_loss",
        dpo=dpo,
        ipo=lambda *a: (gap(*a[:4]) - 1 / (2 * a[4])) ** 2,
        hinge=lambda *a: torch.relu(1 - a[4] * gap(*a[:4])),
    ),
    mistakes=ways(
        "preference_loss mistakes",
        reference_forgotten=lambda pc, pr, rc, rr, b: -logsigmoid(b * (pc - pr)),
        sides_swapped=lambda pc, pr, rc, rr, b: dpo(pr, pc, rr, rc, b),
        beta_outside=lambda pc, pr, rc, rr, b: b * dpo(pc, pr, rc, rr, 1.0),
        gain_not_loss=lambda *a: -dpo(*a),
        no_logarithm=lambda *a: torch.sigmoid(-a[4] * gap(*a[:4])),
        sum_of_rewards=lambda pc, pr, rc, rr, b: -logsigmoid(b * ((pc - rc) + (pr - rr))),
        reference_sign=lambda pc, pr, rc, rr, b: dpo(pc, pr, -rc, -rr, b),
        target_one_over_beta=lambda *a: (gap(*a[:4]) - 1 / a[4]) ** 2,
        target_half_beta=lambda *a: (gap(*a[:4]) - a[4] / 2) ** 2,
        rejected_detached=lambda pc, pr, rc, rr, b: dpo(pc, pr.detach(), rc, rr, b),
    ),
    random=pairs,
    gradients=("policy_chosen", "policy_rejected"),
    loss=True,
    exactly=of_a_preference_loss,
)
REDUCER = Kind(
    name="reducer",
    random=some("loss mask length"),
    known=ways("reducer", mean=lambda loss, *_: loss),
    mistakes=ways(
        "reducer mistakes",
        sign_flipped=lambda loss, *_: -loss,
        without_gradient=lambda loss, *_: loss.detach(),
    ),
    optional={"length": ANY},
    gradients=("loss",),
    loss=True,
    rows=False,
)
