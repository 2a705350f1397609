"""Policy losses, and weights for tokens that another policy has drawn.

Arguments (N, T): log_probs (trained), old_log_probs, advantages; a mask, and the generation budget
`length` for whoever divides by it.
"""

from __future__ import annotations

import torch

from .checking import ANY, Arguments, Case, Kind
from .comparing import ragged_mask, random_log_probs
from .reducers import row_means, row_sums
from .ways import ways


def ratio_of(new, old):
    return (new - old).exp()


def clipped_surrogate(new, old, A, low, high, *_):
    ratio = ratio_of(new, old)
    return -torch.minimum(ratio * A, ratio.clamp(1 - low, 1 + high) * A)


def dual_clip(new, old, A, low, high, *_):
    loss = clipped_surrogate(new, old, A, low, high)
    return torch.where(A < 0, torch.minimum(loss, -3 * A), loss)


def cispo(new, old, A, low, high, *_):
    return -ratio_of(new, old).clamp(max=1 + high).detach() * A * new


def two_sided_cispo(new, old, A, low, high, *_):
    return -ratio_of(new, old).clamp(1 - low, 1 + high).detach() * A * new


def sapo(new, old, A, *_):
    tau = torch.where(A > 0, 1.0, 1.05)
    return -4 / tau * torch.sigmoid(tau * (ratio_of(new, old) - 1)) * A


def dppo(new, old, A, low, high, *_):
    moved = new.exp() - old.exp()
    left_out = torch.where(A > 0, moved > high, moved < -low)
    return torch.where(left_out, 0.0, -ratio_of(new, old) * A)


def mean_ratio(new, old, mask):
    return row_means(new - old, mask)[:, None].exp()


def gspo(new, old, A, low, high, mask=None, *_):
    ratio = mean_ratio(new, old, mask)
    return -torch.minimum(ratio * A, ratio.clamp(1 - low, 1 + high) * A)


def gspo_token(new, old, A, low, high, mask=None, *_):
    ratio = mean_ratio(new, old, mask).detach() * (new - new.detach()).exp()
    return -torch.minimum(ratio * A, ratio.clamp(1 - low, 1 + high) * A)


def product_ratio(new, old, A, low, high, mask=None, *_):
    ratio = row_sums(new - old, mask)[:, None].exp()
    return -torch.minimum(ratio * A, ratio.clamp(1 - low, 1 + high) * A)


def clipped_alone(new, old, A, low, high, *_):
    return -ratio_of(new, old).clamp(1 - low, 1 + high) * A


def maximum_of_gains(new, old, A, low, high, *_):
    ratio = ratio_of(new, old)
    return -torch.maximum(ratio * A, ratio.clamp(1 - low, 1 + high) * A)


def minimum_of_ratios(new, old, A, low, high, *_):
    ratio = ratio_of(new, old)
    return -torch.minimum(ratio, ratio.clamp(1 - low, 1 + high)) * A


def log_ratio_for_ratio(new, old, A, low, high, *_):
    ratio = new - old
    return -torch.minimum(ratio * A, ratio.clamp(1 - low, 1 + high) * A)


def batch(generator: torch.Generator) -> Arguments:
    old = random_log_probs(generator, 4, 6)
    mask = ragged_mask(generator, 4, 6)
    mask[0, 3:] = False
    return {
        "log_probs": old + 0.9 * torch.randn(4, 6, generator=generator),
        "old_log_probs": old,
        "advantages": torch.randn(4, 6, generator=generator),
        "clip_low": 0.2,
        "clip_high": 0.2 + 0.08 * int(torch.randint(2, (1,), generator=generator)),
        "mask": mask,
        "length": 9,
    }


def case(
    about: str, A: float, wanted: list[float], ratios: tuple[float, ...] = (), high: float = 0.2
) -> Case:
    """Some ratios with one advantage."""
    log_ratios = torch.tensor([ratios or (0.5, 0.9, 1.0, 1.1, 1.5)]).log()
    arguments = {
        "log_probs": log_ratios,
        "old_log_probs": torch.zeros_like(log_ratios),
        "advantages": torch.full_like(log_ratios, A),
        "clip_low": 0.2,
        "clip_high": high,
    }
    return Case(about, arguments, [wanted])


POLICY_LOSS = Kind(
    name="policy_loss",
    about="a policy loss, per token, per response or averaged",
    known=ways(
        "policy_loss",
        clipped_surrogate=clipped_surrogate,
        dual_clip=dual_clip,
        gspo=gspo,
        gspo_token=gspo_token,
        cispo=cispo,
        two_sided_cispo=two_sided_cispo,
        sapo=sapo,
        product_ratio=product_ratio,
        dppo=dppo,
        reinforce=lambda new, old, A, *_: -A * new,
        on_policy_ratio=lambda new, old, A, *_: -A * (new - new.detach()).exp(),
    ),
    mistakes=ways(
        "policy_loss mistakes",
        gain_not_loss=lambda *a: -clipped_surrogate(*a),
        clipped_alone=clipped_alone,
        maximum_of_gains=maximum_of_gains,
        minimum_of_ratios=minimum_of_ratios,
        not_clipped=lambda new, old, A, *_: -ratio_of(new, old) * A,
        upside_down=lambda new, old, *a: clipped_surrogate(old, new, *a),
        log_ratio_for_ratio=log_ratio_for_ratio,
        one_clip_for_both=lambda n, o, A, low, *_: clipped_surrogate(n, o, A, low, low),
        without_gradient=lambda *a: clipped_surrogate(*a).detach(),
        advantage_one_late=lambda n, o, A, *a: clipped_surrogate(n, o, A.roll(1, 1), *a),
        advantage_absolute=lambda n, o, A, *a: clipped_surrogate(n, o, A.abs(), *a),
        ratio_detached_reinforce=lambda n, o, A, *_: -ratio_of(n, o).detach() * A * n,
    ),
    cases=(
        case("a bad token, A = -1, ratio 1.5", -1.0, [1.5], (1.5,)),
        case("a good token, A = +1, ratio 1.5", 1.0, [-1.2], (1.5,)),
        case("a good token, A = +1, at five ratios", 1.0, [-0.5, -0.9, -1.0, -1.1, -1.2]),
        case("a bad token, A = -1, at five ratios", -1.0, [0.8, 0.9, 1.0, 1.1, 1.5]),
        case("a good token with clip_high = 0.28", 1.0, [-0.5, -0.9, -1.0, -1.1, -1.28], high=0.28),
        case("a bad token that has moved far", -1.0, [0.8, 2.0, 5.0], (0.5, 2.0, 5.0)),
    ),
    random=batch,
    optional={"old_log_probs": ANY, "clip_low": 0.2, "clip_high": 0.2, "mask": ANY, "length": ANY},
    gradients=("log_probs",),
    loss=True,
)


# --- weights for tokens of another policy ----------------------------------------------------------


def masked_weight(old, sampler, cap, low, *_):
    weight = ratio_of(old, sampler)
    return torch.where((weight >= low) & (weight <= cap), weight, torch.zeros_like(weight))


def of_the_sequence(old, sampler, cap, low, mask=None):
    return row_sums(old - sampler, mask)[:, None].exp().clamp(max=cap).expand_as(old)


def of_the_mean(old, sampler, cap, low, mask=None):
    return mean_ratio(old, sampler, mask).clamp(max=cap).expand_as(old)


def masked_sequence(old, sampler, cap, low, mask=None):
    weight = row_sums(old - sampler, mask)[:, None].exp().expand_as(old)
    return torch.where((weight >= low) & (weight <= cap), weight, torch.zeros_like(weight))


def corrections(generator: torch.Generator) -> Arguments:
    sampler = random_log_probs(generator, 4, 6)
    mask = ragged_mask(generator, 4, 6)
    mask[0, 3:] = False
    old = sampler + 0.6 * torch.randn(4, 6, generator=generator)
    return {
        "old_log_probs": old,
        "sampler_log_probs": sampler,
        "cap": 2.0,
        "low": 0.5,
        "mask": mask,
    }


CORRECTION = Kind(
    name="correction",
    about="weights for tokens that another policy drew: pi_old over the sampler's",
    known=ways(
        "correction",
        truncated=lambda old, mu, cap, *_: ratio_of(old, mu).clamp(max=cap),
        masked_weight=masked_weight,
        two_sided=lambda old, mu, cap, low, *_: ratio_of(old, mu).clamp(low, cap),
        sequence_truncated=of_the_sequence,
        sequence_masked=masked_sequence,
        mean_truncated=of_the_mean,
        untruncated=lambda old, mu, *_: ratio_of(old, mu),
    ),
    mistakes=ways(
        "correction mistakes",
        upside_down=lambda old, mu, cap, *_: ratio_of(mu, old).clamp(max=cap),
        log_weight=lambda old, mu, cap, *_: (old - mu).clamp(max=cap),
        held_from_below=lambda old, mu, cap, *_: ratio_of(old, mu).clamp(min=cap),
        always_one=lambda old, *_: torch.ones_like(old),
        wrong_side_kept=lambda old, mu, cap, *_: ratio_of(old, mu) * (ratio_of(old, mu) > cap),
        clip_around_one=lambda old, mu, cap, *_: ratio_of(old, mu).clamp(1 - cap, 1 + cap),
        one_late=lambda old, mu, cap, *_: ratio_of(old, mu.roll(1, 1)).clamp(max=cap),
        batch_product=lambda old, mu, cap, low, mask=None: (
            row_sums(old - mu, mask).sum().exp().clamp(max=cap).expand_as(old)
        ),
    ),
    cases=(
        Case(
            "weights 0.25, 1, 1.5 and 4, cap 2",
            {
                "old_log_probs": torch.tensor([[0.25, 1.0, 1.5, 4.0]]).log(),
                "sampler_log_probs": torch.zeros(1, 4),
                "cap": 2.0,
                "low": 0.5,
            },
            [[0.25, 1.0, 1.5, 2.0]],
        ),
    ),
    random=corrections,
    optional={"cap": ANY, "low": ANY, "mask": ANY},
    constant=True,
)
