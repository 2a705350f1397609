"""KL estimates of the sampled tokens, and what each is worth: as a number, as a loss, in the reward.

delta = log pi_ref - log pi, samples from pi. What an estimate does is enumerated over a vocabulary of
four, so that a mean is a sum and not a sample.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .checking import ANY, Arguments, Case, Kind
from .comparing import ragged_mask, random_log_probs
from .ways import Way, ways

POLICY, REFERENCE = (0.7, 0.2, 0.05, 0.05), (0.2, 0.25, 0.05, 0.5)


def k3(new, ref, *_):
    return torch.expm1(ref - new) - (ref - new)


def k2(new, ref, *_):
    return (new - ref).square() / 2


def k1(new, ref, *_):
    return new - ref


def absolute(new, ref, *_):
    return (new - ref).abs()


def straight_through(value: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The value of one estimate with the gradient of k2."""
    return lambda new, ref, *_: k2(new, ref) + (value(new, ref) - k2(new, ref)).detach()


ESTIMATES = {"k3": k3, "k2": k2, "k1": k1, "absolute": absolute}
STRAIGHT = {"k3_gradient_of_k2": straight_through(k3), "k1_gradient_of_k2": straight_through(k1)}
MISTAKES = {
    "upside_down": lambda new, ref, *_: k3(ref, new),
    "k1_upside_down": lambda new, ref, *_: ref - new,
    "one_too_many": lambda *a: k3(*a) + 1,
    "plus_delta": lambda new, ref, *_: (ref - new).exp() + (ref - new) - 1,
    "wrong_sign": lambda *a: -k3(*a),
    "without_gradient": lambda *a: k3(*a).detach(),
    "square_without_half": lambda *a: 2 * k2(*a),
    "exponential_forgotten": lambda new, ref, *_: (ref - new) ** 2 - (ref - new),
    "probabilities": lambda new, ref, *_: new.exp() * (new - ref),
    "reference_one_late": lambda new, ref, *_: k3(new, ref.roll(1, 1)),
}


def enumerated(estimate: Callable[..., Tensor]) -> list[str]:
    """Mean and gradients of a (log_probs, ref_log_probs, mask) estimate over samples of the policy."""
    logits = torch.tensor(POLICY, dtype=torch.float64).log().requires_grad_()
    ref = torch.tensor(REFERENCE, dtype=torch.float64).log()[:, None]
    log_probs, weights = logits.log_softmax(0), logits.detach().softmax(0)
    exact = (log_probs.exp() * (log_probs - ref[:, 0])).sum()
    forward = (ref[:, 0].exp() * (ref[:, 0] - log_probs)).sum()
    try:
        mask = torch.ones(4, 1, dtype=torch.bool)
        value = estimate(log_probs[:, None], ref, mask, 9)[:, 0].double()
    except Exception:  # it needs more than one column: the batches have said what it does
        return []

    def slope(x: Tensor) -> Tensor:
        if not x.requires_grad:
            return torch.zeros(4, dtype=torch.float64)
        return torch.autograd.grad(x, logits, retain_graph=True)[0]

    mean = float(weights @ value.detach())
    text = (
        f"over samples of the policy its mean is {mean:.3f} where KL(pi || pi_ref) is {exact:.3f}"
    )
    as_loss, in_reward = slope(weights @ value), slope(weights @ (value.detach() * log_probs))
    for use, gradient in (("as a loss", as_loss), ("in the reward", in_reward)):
        text += f"; {use} its expected gradient "
        if gradient.abs().max() < 1e-9:
            text += "is 0"
        elif torch.allclose(gradient, slope(exact)):
            text += "is that of KL(pi || pi_ref)"
        elif torch.allclose(gradient, slope(forward)):
            text += "is that of the forward KL(pi_ref || pi)"
        else:
            cosine = torch.nn.functional.cosine_similarity(gradient, slope(exact), dim=0)
            length = gradient.norm() / slope(exact).norm()
            text += f"has cosine {cosine:.2f} with that of KL(pi || pi_ref), and {length:.1f} of its length"
    return [text]


def batch(generator: torch.Generator) -> Arguments:
    log_probs = random_log_probs(generator, 3, 5)
    mask = ragged_mask(generator, 3, 5)
    mask[0, 2:] = False
    ref = log_probs + 0.7 * torch.randn(3, 5, generator=generator)
    return {"log_probs": log_probs, "ref_log_probs": ref, "mask": mask, "length": 9}


def case(about: str, policy: list[float], reference: list[float], wanted: list[float]) -> Case:
    pair = [torch.tensor([p]).log() for p in (policy, reference)]
    return Case(about, {"log_probs": pair[0], "ref_log_probs": pair[1]}, [wanted])


def kind(name: str, about: str, known: list[Way], mistakes: list[Way], wanted: list[float]) -> Kind:
    return Kind(
        name=name,
        about=about,
        known=known,
        mistakes=mistakes,
        cases=(
            case("probability 0.1, and 0.4 under the reference", [0.1], [0.4], wanted[2:]),
            case(
                "probabilities 0.5, 0.25, 0.1 and 0.25, 0.25, 0.4",
                [0.5, 0.25, 0.1],
                [0.25, 0.25, 0.4],
                wanted,
            ),
            case("policy and reference agree", [0.5, 0.25], [0.5, 0.25], [0.0, 0.0]),
        ),
        random=batch,
        optional={"mask": ANY, "length": ANY},
        gradients=("log_probs",),
        loss=True,
        notes=enumerated,
    )


K3_NUMBERS, K1_NUMBERS = [0.193147, 0.0, 1.613706], [0.693147, 0.0, -1.386294]
wrong = ways("kl mistakes", **MISTAKES)
KL = kind(
    "kl",
    "an estimate of KL(policy || reference) per token",
    ways("kl", **ESTIMATES, **STRAIGHT),
    wrong,
    K3_NUMBERS,
)
KL_LOSS = kind(
    "kl_loss",
    "the same, where it is a term of the loss",
    ways("kl", k3=k3, k2=k2, **STRAIGHT),
    wrong + ways("kl_loss mistakes", k1=k1, absolute=absolute),
    K3_NUMBERS,
)
KL_REWARD = kind(
    "kl_reward",
    "the same, where it is taken off the reward",
    ways("kl", k1=k1),
    ways("kl_reward mistakes", k3=k3, k2=k2, absolute=absolute)
    + [w for w in wrong if w.name != "without_gradient"],
    K1_NUMBERS,
)
