"""Properties that hold for any batch, on examples that hypothesis chooses.

Every example is drawn from a seed, so a failing one can be repeated; derandomised, so a run in CI
is the run on a laptop.
"""

import torch
from conftest import require_package

require_package("hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from rl.equations.advantages import (  # noqa: E402
    discounted_returns,
    gae,
    group_advantages,
    leave_one_out_advantages,
    process_advantages,
    whiten,
)
from rl.equations.kl import k2, k3  # noqa: E402
from rl.equations.losses import (  # noqa: E402
    cispo,
    clip_acted,
    clipped_surrogate,
    constant_length_mean,
    dual_clip,
    gspo,
    length_normalized_returns,
    mixed_sampling_weights,
    policy_gradient,
    sapo,
    sequence_clipped_surrogate,
    sequence_mean,
    sequence_sum,
    token_mean,
    value_loss,
)
from rl.equations.token_rewards import token_level_rewards  # noqa: E402

GARBAGE = (0.0, 7.0, torch.nan, torch.inf, -torch.inf)
TOKEN_LOSSES = (
    lambda b: clipped_surrogate(b["new"], b["old"], b["advantages"], 0.2, 0.28),
    lambda b: dual_clip(clipped_surrogate(b["new"], b["old"], b["rows"], 0.2, 0.2), b["rows"], 3.0),
    lambda b: cispo(b["new"], b["old"], b["advantages"], 0.28),
    lambda b: sapo(b["new"], b["old"], b["rows"]),
    lambda b: policy_gradient(b["new"], b["rows"]),
    lambda b: value_loss(b["new"], b["old"], b["advantages"], 0.2),
    lambda b: sequence_clipped_surrogate(b["new"], b["old"], b["rows"], b["mask"], 0.2, 0.2),
    lambda b: gspo(b["new"], b["old"], b["rows"], b["mask"], 0.02, 0.03),
    lambda b: k2(b["new"], b["old"]),
    lambda b: k3(b["new"], b["old"]),
)
REDUCERS = (
    token_mean,
    sequence_mean,
    sequence_sum,
    lambda loss, mask, denominator=None: constant_length_mean(loss, mask, 9, denominator),
)
TOKEN_RESULTS = (
    lambda b: gae(b["new"], b["old"], b["mask"], 0.97, 0.9)[0],
    lambda b: gae(b["new"], b["old"], b["mask"], 0.97, 0.9)[1],
    lambda b: discounted_returns(b["new"], b["mask"], 0.97),
    lambda b: whiten(b["new"], b["mask"]),
    lambda b: whiten(b["new"], b["mask"], shift_mean=False, unbiased=False),
    lambda b: token_level_rewards(b["rows"][:, 0], b["new"], b["old"], b["mask"], 0.1),
    lambda b: length_normalized_returns(b["new"], b["mask"]),
    lambda b: mixed_sampling_weights(b["new"], b["old"], b["mask"], 0.2),
)


def property_test(function):
    return settings(derandomize=True, deadline=None, max_examples=20)(function)


@st.composite
def batches(draw, min_length=0):
    """A random batch: N responses of at most T tokens, empty rows among them."""
    n, t = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    lengths = torch.tensor(draw(st.lists(st.integers(min_length, t), min_size=n, max_size=n)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    new, old, advantages = torch.randn(3, n, t, generator=generator, dtype=torch.float64) / 3
    rows = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    mask = torch.arange(t) < lengths[:, None]
    return {"new": new, "old": old, "advantages": advantages, "rows": rows, "mask": mask}


def padded(batch, garbage, columns):
    """The same batch with `columns` more columns, and garbage at every masked position."""
    n, mask = len(batch["mask"]), batch["mask"]
    wide = torch.cat([mask, torch.zeros(n, columns, dtype=torch.bool)], 1)
    result = {"mask": wide, "rows": batch["rows"].where(mask.any(1, keepdim=True), garbage)}
    for name in ("new", "old", "advantages"):
        extra = torch.zeros(n, columns, dtype=torch.float64)
        result[name] = torch.cat([batch[name], extra], 1).where(wide, garbage)
    return result


def loss_and_gradient(batch, token_loss, reducer, denominator=None):
    batch = {**batch, "new": batch["new"].clone().requires_grad_()}
    loss = reducer(token_loss(batch), batch["mask"], denominator=denominator)
    return loss.detach(), torch.autograd.grad(loss, batch["new"])[0]


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


def rows_of(batch, index):
    return {name: x[index] for name, x in batch.items()}


# --- padding ----------------------------------------------------------------------------------


@property_test
@given(batches(), st.sampled_from(GARBAGE), st.integers(0, 3))
def test_padding_changes_no_loss_and_no_gradient(batch, garbage, columns):
    t = batch["mask"].shape[1]
    for token_loss in TOKEN_LOSSES:
        for reducer in REDUCERS:
            loss, gradient = loss_and_gradient(batch, token_loss, reducer)
            wide_loss, wide_gradient = loss_and_gradient(
                padded(batch, garbage, columns), token_loss, reducer
            )
            close(wide_loss, loss)
            close(wide_gradient[:, :t], gradient)
            assert not wide_gradient[:, t:].any()


@property_test
@given(batches(), st.sampled_from(GARBAGE), st.integers(0, 3))
def test_padding_changes_no_advantage_and_no_reward(batch, garbage, columns):
    monte_carlo = gae(batch["new"], batch["old"], batch["mask"], 0.97, 1.0)[1]
    close(monte_carlo, TOKEN_RESULTS[2](batch))  # lambda = 1
    t = batch["mask"].shape[1]
    for result in TOKEN_RESULTS:
        expected, wide = result(batch), result(padded(batch, garbage, columns))
        close(wide[:, :t], expected)
        assert not wide[:, t:].any() and not expected[~batch["mask"]].any()


# --- order and splitting ----------------------------------------------------------------------


@property_test
@given(batches(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(batch, random):
    order = list(range(len(batch["mask"])))
    random.shuffle(order)
    shuffled = rows_of(batch, order)
    for token_loss in TOKEN_LOSSES:
        for reducer in REDUCERS:
            loss, gradient = loss_and_gradient(batch, token_loss, reducer)
            other_loss, other_gradient = loss_and_gradient(shuffled, token_loss, reducer)
            close(other_loss, loss)
            close(other_gradient, gradient[order])
    for result in TOKEN_RESULTS:
        close(result(shuffled), result(batch)[order])


@property_test
@given(batches(), st.integers(0, 5))
def test_micro_batches_add_up_to_the_batch(batch, cut):
    """With the whole batch's denominator, for every reducer; an empty part adds exactly 0."""
    mask, n = batch["mask"], len(batch["mask"])
    denominators = (mask.sum(), mask.any(1).sum(), int(mask.any(1).sum()), n)
    for token_loss in TOKEN_LOSSES:
        for reducer, denominator in zip(REDUCERS, denominators, strict=True):
            loss, gradient = loss_and_gradient(batch, token_loss, reducer)
            parts = [
                loss_and_gradient(rows_of(batch, part), token_loss, reducer, denominator)
                for part in (slice(0, cut), slice(cut, None))
            ]
            close(parts[0][0] + parts[1][0], loss)
            close(torch.cat([parts[0][1], parts[1][1]]), gradient)


# --- the clip ---------------------------------------------------------------------------------


@property_test
@given(batches())
def test_the_clip_only_ever_raises_the_loss(batch):
    """It is a pessimistic bound on -ratio * A; a wider range is never more pessimistic."""
    ratio = (batch["new"] - batch["old"]).exp()
    narrow = clipped_surrogate(batch["new"], batch["old"], batch["advantages"], 0.1, 0.1)
    clipped = clip_acted(ratio, batch["advantages"], 0.1, 0.1)
    wide = clipped_surrogate(batch["new"], batch["old"], batch["advantages"], 0.2, 0.3)
    plain = -ratio * batch["advantages"]
    assert (narrow >= wide - 1e-12).all() and (wide >= plain - 1e-12).all()
    assert torch.equal(clipped, narrow > plain)


# --- groups -----------------------------------------------------------------------------------

groups = st.tuples(st.integers(1, 4), st.integers(2, 5), st.integers(0, 2**31))


def group_rewards(shape_and_seed):
    prompts, size, seed = shape_and_seed
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(prompts * size, generator=generator, dtype=torch.float64), size


@property_test
@given(groups, st.floats(-5, 5), st.floats(0.1, 10))
def test_groups_ignore_a_shift_and_z_scores_a_scale(shape_and_seed, shift, scale):
    rewards, size = group_rewards(shape_and_seed)
    moved = scale * rewards + shift
    z_scores = group_advantages(rewards, size, eps=0.0)
    torch.testing.assert_close(group_advantages(moved, size, eps=0.0), z_scores)
    torch.testing.assert_close(
        leave_one_out_advantages(moved, size), scale * leave_one_out_advantages(rewards, size)
    )
    assert z_scores.view(-1, size).sum(1).abs().max() < 1e-9


@property_test
@given(groups, st.floats(-5, 5), st.integers(0, 2))
def test_process_advantages_ignore_a_shift_and_padding(shape_and_seed, shift, columns):
    rewards, size = group_rewards(shape_and_seed)
    n = len(rewards)
    steps = torch.stack([rewards, rewards.flip(0)], 1)  # (N, 2)
    ends = torch.tensor([[0, 2]]).expand(n, 2)
    step_mask = torch.rand(n, 2, generator=torch.Generator().manual_seed(n)) < 0.7
    mask = torch.ones(n, 3, dtype=torch.bool)
    plain = process_advantages(steps, ends, step_mask, mask, size, eps=0.0)
    garbage = torch.full((n, columns), torch.nan, dtype=torch.float64)
    wide = process_advantages(
        torch.cat([(steps + shift).where(step_mask, torch.inf), garbage], 1),
        torch.cat([ends.where(step_mask, 99), torch.full((n, columns), -7)], 1),
        torch.cat([step_mask, torch.zeros(n, columns, dtype=torch.bool)], 1),
        torch.cat([mask, torch.zeros(n, columns, dtype=torch.bool)], 1),
        size,
        eps=0.0,
    )
    torch.testing.assert_close(wide[:, :3], plain)
    assert not wide[:, 3:].any()


# --- bounds -----------------------------------------------------------------------------------


@property_test
@given(batches(min_length=1), st.floats(0.0, 0.95))
def test_mixed_sampling_weights_are_bounded(batch, alpha):
    weights = mixed_sampling_weights(batch["new"], batch["old"] * 30, batch["mask"], alpha)
    assert (weights >= 0).all() and (weights <= 1 / (1 - alpha) + 1e-12).all()
