"""Policy losses, and weights for tokens that another policy has drawn.

Arguments (N, T): log_probs (trained), old_log_probs, advantages; a mask, and the generation budget
`length` for whoever divides by it.
"""

from __future__ import annotations

import torch

from .batches import some
from .checking import ANY, Kind
from .enumeration import of_a_policy_loss
from .reducers import row_means, row_sums
from .ways import ways


def ratio_of(new, old):
    return (new - old).exp()


def mean_ratio(new, old, mask):
    return row_means(new - old, mask)[:, None].exp()


def product_ratio(new, old, mask):
    return row_sums(new - old, mask)[:, None].exp()


def pessimistic(ratio, A, low, high):
    return -torch.minimum(ratio * A, ratio.clamp(1 - low, 1 + high) * A)


def clipped_surrogate(new, old, A, low, high, *_):
    return pessimistic(ratio_of(new, old), A, low, high)


def dual_clip(new, old, A, low, high, *_):
    loss = clipped_surrogate(new, old, A, low, high)
    return torch.where(A < 0, torch.minimum(loss, -3 * A), loss)


def sapo(new, old, A, *_):
    tau = torch.where(A > 0, 1.0, 1.05)
    return -4 / tau * torch.sigmoid(tau * (ratio_of(new, old) - 1)) * A


def dppo(new, old, A, low, high, *_):
    moved = new.exp() - old.exp()
    left_out = torch.where(A > 0, moved > high, moved < -low)
    return torch.where(left_out, 0.0, -ratio_of(new, old) * A)


def gspo(new, old, A, low, high, mask, *_):
    return pessimistic(mean_ratio(new, old, mask), A, low, high)


def gspo_token(new, old, A, low, high, mask, *_):
    ratio = mean_ratio(new, old, mask).detach() * (new - new.detach()).exp()
    return pessimistic(ratio, A, low, high)


def cispo(new, old, A, low, high, *_):
    return -ratio_of(new, old).clamp(max=1 + high).detach() * A * new


def two_sided_cispo(new, old, A, low, high, *_):
    return -ratio_of(new, old).clamp(1 - low, 1 + high).detach() * A * new


def clipped_alone(new, old, A, low, high, *_):
    return -ratio_of(new, old).clamp(1 - low, 1 + high) * A


def maximum_of_gains(new, old, A, low, high, *_):
    ratio = ratio_of(new, old)
    return -torch.maximum(ratio * A, ratio.clamp(1 - low, 1 + high) * A)


def minimum_of_ratios(new, old, A, low, high, *_):
    ratio = ratio_of(new, old)
    return -torch.minimum(ratio, ratio.clamp(1 - low, 1 + high)) * A


POLICY_LOSS = Kind(
    name="policy_loss",
    random=some("log_probs old_log_probs advantages clip_low clip_high mask length"),
    known=ways(
        "policy_loss",
        clipped_surrogate=clipped_surrogate,
        dual_clip=dual_clip,
        gspo=gspo,
        gspo_token=gspo_token,
        cispo=cispo,
        two_sided_cispo=two_sided_cispo,
        sapo=sapo,
        product_ratio=lambda n, o, A, low, high, mask, *_: pessimistic(
            product_ratio(n, o, mask), A, low, high
        ),
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
        log_ratio_for_ratio=lambda new, old, A, low, high, *_: pessimistic(new - old, A, low, high),
        one_clip_for_both=lambda n, o, A, low, *_: clipped_surrogate(n, o, A, low, low),
        without_gradient=lambda *a: clipped_surrogate(*a).detach(),
        advantage_one_late=lambda n, o, A, *a: clipped_surrogate(n, o, A.roll(1, 1), *a),
        advantage_absolute=lambda n, o, A, *a: clipped_surrogate(n, o, A.abs(), *a),
        ratio_detached_reinforce=lambda n, o, A, *_: -ratio_of(n, o).detach() * A * n,
    ),
    optional={"old_log_probs": ANY, "clip_low": 0.2, "clip_high": 0.2, "mask": ANY, "length": ANY},
    gradients=("log_probs",),
    loss=True,
    exactly=of_a_policy_loss,
)


# --- weights for tokens of another policy ----------------------------------------------------------


def inside(weight, cap, low):
    return torch.where((weight >= low) & (weight <= cap), weight, 0.0)


CORRECTION = Kind(
    name="correction",
    random=some("old_log_probs sampler_log_probs cap low mask"),
    known=ways(
        "correction",
        truncated=lambda old, mu, cap, *_: ratio_of(old, mu).clamp(max=cap),
        masked_weight=lambda old, mu, cap, low, mask: inside(ratio_of(old, mu), cap, low),
        two_sided=lambda old, mu, cap, low, *_: ratio_of(old, mu).clamp(low, cap),
        sequence_truncated=lambda old, mu, cap, low, mask: (
            product_ratio(old, mu, mask).clamp(max=cap).expand_as(old)
        ),
        sequence_masked=lambda old, mu, cap, low, mask: inside(
            product_ratio(old, mu, mask), cap, low
        ).expand_as(old),
        mean_truncated=lambda old, mu, cap, low, mask: (
            mean_ratio(old, mu, mask).clamp(max=cap).expand_as(old)
        ),
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
        batch_product=lambda old, mu, cap, low, mask: (
            row_sums(old - mu, mask).sum().exp().clamp(max=cap).expand_as(old)
        ),
    ),
    optional={"cap": ANY, "low": ANY, "mask": ANY},
    constant=True,
)
