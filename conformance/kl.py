"""KL estimates of the sampled tokens, and what each is worth: as a number, as a loss, in the reward.

delta = log pi_ref - log pi, samples from pi.
"""

from __future__ import annotations

from functools import partial

import torch

from .batches import some
from .checking import ANY, Kind
from .enumeration import of_a_kl
from .ways import ways


def k3(new, ref, *_):
    return torch.expm1(ref - new) - (ref - new)


def k2(new, ref, *_):
    return (new - ref).square() / 2


def k1(new, ref, *_):
    return new - ref


def absolute(new, ref, *_):
    return (new - ref).abs()


def straight_through(value):
    """The value of one estimate with the gradient of k2."""
    return lambda new, ref, *_: k2(new, ref) + (value(new, ref) - k2(new, ref)).detach()


STRAIGHT = {"k3_gradient_of_k2": straight_through(k3), "k1_gradient_of_k2": straight_through(k1)}
WRONG = ways(
    "kl mistakes",
    upside_down=lambda new, ref, *_: k3(ref, new),
    k1_upside_down=lambda new, ref, *_: ref - new,
    one_too_many=lambda *a: k3(*a) + 1,
    plus_delta=lambda new, ref, *_: (ref - new).exp() + (ref - new) - 1,
    wrong_sign=lambda *a: -k3(*a),
    without_gradient=lambda *a: k3(*a).detach(),
    square_without_half=lambda *a: 2 * k2(*a),
    exponential_forgotten=lambda new, ref, *_: (ref - new) ** 2 - (ref - new),
    probabilities=lambda new, ref, *_: new.exp() * (new - ref),
    reference_one_late=lambda new, ref, *_: k3(new, ref.roll(1, 1)),
)
kl_kind = partial(
    Kind,
    random=some("log_probs ref_log_probs mask length"),
    optional={"mask": ANY, "length": ANY},
    gradients=("log_probs",),
    loss=True,
    exactly=of_a_kl,
)
KL = kl_kind(
    "kl", known=ways("kl", k3=k3, k2=k2, k1=k1, absolute=absolute, **STRAIGHT), mistakes=WRONG
)
KL_LOSS = kl_kind(
    "kl_loss",
    known=ways("kl", k3=k3, k2=k2, **STRAIGHT),
    mistakes=WRONG + ways("kl_loss mistakes", k1=k1, absolute=absolute),
)
KL_REWARD = kl_kind(
    "kl_reward",
    known=ways("kl", k1=k1),
    mistakes=ways("kl_reward mistakes", k3=k3, k2=k2, absolute=absolute)
    + [way for way in WRONG if way.name != "without_gradient"],
)
