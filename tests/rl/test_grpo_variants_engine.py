"""The GRPO family: every choice does what it says."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
import torch
from engines import DIVERSE, SHARE_OF_A, engine_named, small_gpt, some_rollout
from slow import MASK, RATIO, pessimistic
from toys import LETTERS, weights
from watched import same_update

from harness.metric_log import MetricLog
from rl import loop
from rl.batches.rollout import sample_rollout
from rl.grpo_variants_engine import (
    CLIP_MASKS,
    REDUCERS,
    VARIANTS,
    ChosenUpdate,
    GRPOVariantsConfig,
    from_variant,
    variant_loss,
    with_chosen_tokens,
)
from rl.loop import Run
from rl.rewards.reward import RuleReward

FAMILY = engine_named("grpo_variants")
CONFIG = FAMILY.config


def run(policy, reward_fn=SHARE_OF_A, *, variant: str = "grpo", **changes):
    """Train with a variant's choices; keyword arguments change CONFIG, or those."""
    reward = dict(reward_fn=reward_fn)
    return FAMILY.run(policy, **(reward | VARIANTS[variant] | dict(variant=variant) | changes))


# Names of variants


def test_a_variant_fills_in_its_choices_and_a_flag_still_wins():
    dapo = from_variant("dapo")
    assert (dapo.variant, dapo.reducer, dapo.clip_low, dapo.clip_high) == (
        "dapo", "token_mean", 0.2, 0.28,
    )  # fmt: skip
    assert (dapo.sampling_filter, dapo.kl_coef, dapo.stop_kl) == ("dynamic", 0.0, 6.0)
    assert from_variant("dapo", clip_high=0.5).clip_high == 0.5
    # Over a preset, which has a kl_coef of its own.
    assert from_variant("gspo", "gpt2").kl_coef == 0 and from_variant("grpo", "gpt2").kl_coef > 0
    assert from_variant("gspo", "gpt2").lr == 2e-5
    assert from_variant("cispo", data="sums").max_new_tokens == 40


# The loss, over the shared minibatch with worse garbage in its padding

OLD = torch.where(MASK, torch.full((3, 4), -2.0), torch.nan)
NEW = OLD + RATIO.log()
ADVANTAGES = [1.5, -0.5, torch.nan]
VALID = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
LENGTH = (3, 2)


def loss_of(config: GRPOVariantsConfig, new=NEW, old=OLD, ref=None, advantages=ADVANTAGES,
            mask=MASK, kl_coef=0.0, chosen=None, held=None):  # fmt: skip
    """The loss of a minibatch that is one micro-batch."""
    chosen = mask if chosen is None else chosen
    given = ChosenUpdate(old, ref, torch.as_tensor(advantages)[:, None], mask, chosen, held)
    return variant_loss(config, new, given, kl_coef=kl_coef, whole=mask)


def token_clip(i: int, t: int, low: float, high: float) -> float:
    return pessimistic(float(RATIO[i, t]), ADVANTAGES[i], 1 - low, 1 + high)


def geometric_clip(i: int, low: float, high: float) -> float:
    product = math.prod(float(RATIO[i, t]) for t in range(LENGTH[i]))
    return pessimistic(product ** (1 / LENGTH[i]), ADVANTAGES[i], 1 - low, 1 + high)


def mean_of_clipped(i: int, low: float, high: float) -> float:
    """GMPO: exp(mean log ratio), each bounded above where A > 0, below where A < 0."""
    logs = [math.log(float(RATIO[i, t])) for t in range(LENGTH[i])]
    bounded = [min(x, high) if ADVANTAGES[i] > 0 else max(x, -low) for x in logs]
    return -math.exp(sum(bounded) / LENGTH[i]) * ADVANTAGES[i]


def soft_gate(i: int, t: int) -> float:
    tau = 1.0 if ADVANTAGES[i] > 0 else 1.05
    return -4 / tau / (1 + math.exp(-tau * (float(RATIO[i, t]) - 1))) * ADVANTAGES[i]


def capped_weight(i: int, t: int) -> float:
    return -min(float(RATIO[i, t]), 1.2) * ADVANTAGES[i] * float(NEW[i, t])


# Rows are averaged over two (the third is empty), tokens over five, Dr. GRPO's budget is 3 * 8.
EQUATIONS = {
    "grpo": sum(token_clip(i, t, 0.2, 0.2) / LENGTH[i] / 2 for i, t in VALID),
    "dapo": sum(token_clip(i, t, 0.2, 0.28) / 5 for i, t in VALID),
    "dr_grpo": sum(token_clip(i, t, 0.2, 0.2) / 24 for i, t in VALID),
    "gspo": sum(geometric_clip(i, 3e-4, 4e-4) / 2 for i in (0, 1)),
    "cispo": sum(capped_weight(i, t) / 5 for i, t in VALID),
    "sapo": sum(soft_gate(i, t) / LENGTH[i] / 2 for i, t in VALID),
    "gmpo": sum(mean_of_clipped(i, 0.4, 0.4) / 2 for i in (0, 1)),
    "maxrl": sum(token_clip(i, t, 0.2, 0.2) / 24 for i, t in VALID),
    "kl_cov": sum(-float(RATIO[i, t]) * ADVANTAGES[i] / 5 for i, t in VALID),
    "clip_cov": sum(token_clip(i, t, 1.0, 1.0) / 5 for i, t in VALID),
}
CLIPPED_TOKENS = {"grpo": [(0, 1), (1, 0)], "gmpo": [(0, 1), (1, 0)], "clip_cov": []}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loss_of_each_variant_by_loops(variant):
    """Also without a NaN from the empty row and the padding, whose inputs are NaN."""
    new = NEW.clone().requires_grad_()
    config = from_variant(variant, max_new_tokens=8)
    loss = loss_of(config, new)
    assert loss.item() == pytest.approx(EQUATIONS[variant], rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, new)
    assert not gradient[~MASK].any() and gradient[MASK].isfinite().all()
    if variant in CLIPPED_TOKENS:
        A = torch.tensor(ADVANTAGES)[:, None]
        clipped = CLIP_MASKS[config.surrogate](config)(NEW, OLD, A, MASK) & MASK
        assert clipped.nonzero().tolist() == [list(at) for at in CLIPPED_TOKENS[variant]]


@pytest.mark.parametrize("surrogate", CLIP_MASKS)
def test_the_log_says_where_the_clip_acts(surrogate):
    """As the contract says of a single range: at many tokens with none, nowhere with an endless one."""
    options = dict(surrogate=surrogate, steps=1, updates_per_batch=3, lr=1e-2)
    for bound, acts in ((0.0, surrogate != "sapo"), (1e9, False)):
        (row,) = run(small_gpt(), DIVERSE, clip_low=bound, clip_high=bound, **options)
        assert (row["clip_low_fraction"] + row["clip_high_fraction"] > 0.05) == acts


# Which tokens the policy loss reads


def test_tokens_that_are_left_out_keep_their_kl_and_stay_in_the_denominator():
    old, mask = torch.full((2, 2), -2.0), torch.ones(2, 2).bool()
    new = (old + torch.tensor([[0.1, 0.2], [0.0, 0.3]])).requires_grad_()
    chosen = torch.tensor([[True, False], [False, False]])
    config, given = replace(CONFIG, reducer="token_mean"), (new, old, old + 0.3, [1.0, -1.0], mask)
    loss = loss_of(config, *given, kl_coef=0.5, chosen=chosen)
    d = (old + 0.3 - new).detach()
    penalty = 0.5 * float((d.exp() - d - 1).mean())
    assert loss.item() == pytest.approx(-math.exp(0.1) / 4 + penalty, rel=1e-5)


def test_the_tokens_of_kl_cov_pay_for_their_distance_and_for_no_rounding():
    """Two of four are held: one has moved by 0.2, the other by less than rounding is allowed."""
    old, mask = torch.full((2, 2), -2.0), torch.ones(2, 2).bool()
    new = (old + torch.tensor([[-0.2, 0.1], [4e-6, 0.3]])).requires_grad_()
    held = torch.tensor([[True, False], [True, False]])
    config = replace(CONFIG, reducer="token_mean", kl_cov_coef=0.7)
    given = (new, old, None, [1.0, -1.0], mask)
    penalty = loss_of(config, *given, held=held) - loss_of(config, *given)
    assert penalty.item() == pytest.approx(0.7 * 0.2 / 4, rel=1e-5)
    (gradient,) = torch.autograd.grad(penalty, new)
    torch.testing.assert_close(gradient, torch.tensor([[-0.7 / 4, 0], [0, 0]]))


def test_covariances_are_those_of_the_tokens_that_take_part():
    """Every other response is left out; by sorting what the rest has, and with the same draws.

    Clip-Cov draws among those that the clip has left a gradient: half of them have moved too far.
    """
    policy = small_gpt(noise=0.1)
    bounds = dict(clip_cov_share=0.2, clip_cov_low=-0.3, clip_cov_high=0.3)
    config = replace(CONFIG, kl_cov_share=0.3, **bounds)
    rollout, run = some_rollout(policy, group_size=2), Run(config, policy, LETTERS)
    mask, T = rollout.response_mask.clone(), rollout.response_mask.shape[1]
    mask[::2] = False
    A = torch.linspace(-1, 3, len(rollout))[:, None]
    rows = torch.arange(len(rollout)).flip(0)[2:]
    generator = torch.Generator()
    generator.set_state(run.generators["minibatches"].get_state())
    draws = torch.rand(len(rows), T, generator=generator)
    run.clip_mask = CLIP_MASKS["token"](config)
    moved = torch.tensor([0.5, 0.0, -0.5, 0.1]).repeat(len(rollout), 2)[:, :T]  # log ratios
    update = ChosenUpdate(rollout.log_probs - moved, None, A, mask, mask)
    found = with_chosen_tokens(config, run, rollout, rows, update)

    places = [(i, t) for i in rows.tolist() for t in range(T) if mask[i, t]]
    log_p, of = ([float(x[i, t]) for i, t in places] for x in (rollout.log_probs, A.expand(-1, T)))
    mean_p, mean_A = statistics.fmean(log_p), statistics.fmean(of)
    cov = {at: (p - mean_p) * (a - mean_A) for at, p, a in zip(places, log_p, of, strict=True)}
    held = sorted(places, key=cov.__getitem__)[-int(0.3 * len(places)) :]
    assert found.held.nonzero().tolist() == sorted(map(list, held))
    drawn = dict(zip(rows.tolist(), draws.tolist(), strict=True))
    inside = sorted((drawn[i][t], i, t) for i, t in places if -0.3 < cov[i, t] < 0.3)
    free = [at for at in inside if float(moved[at[1:]] * A[at[1]].sign()) < 0.2]
    dropped = sorted([i, t] for _, i, t in free[-int(0.2 * len(places)) :])
    assert inside[-len(dropped) :] != free[-len(dropped) :]
    assert (found.chosen != mask).nonzero().tolist() == dropped and len(free) > len(dropped) > 1


# The first step


def test_a_batch_of_truncated_responses_teaches_nothing(monkeypatch):
    """No token takes part: the loss is 0, not 0 / 0."""

    def cut_off(*arguments, **options):
        rollout = sample_rollout(*arguments, **options)
        has_eos = torch.zeros(len(rollout), dtype=torch.bool)
        return replace(rollout, sequences=replace(rollout.sequences, has_eos=has_eos))

    monkeypatch.setattr(loop, "sample_rollout", cut_off)
    policy = small_gpt()
    for reducer in REDUCERS:
        changes = dict(reducer=reducer, clip_cov_share=0.5, clip_cov_low=-9.0)
        (row,) = run(policy, DIVERSE, steps=1, mask_truncated=True, **changes)
        assert row["eos_rate"] == row["grad_norm"] == row["loss"] == row["policy_tokens"] == 0
    assert torch.equal(weights(policy), weights(small_gpt()))


# Micro-batches


@pytest.mark.parametrize(
    ("surrogate", "reducer"),
    [
        ("gmpo", "sequence_mean"), ("gspo", "sequence_sum"), ("token", "token_mean"),
        ("cispo", "constant_length_mean"),
    ],
)  # fmt: skip
def test_micro_batches_do_not_change_the_update(monkeypatch, surrogate, reducer):
    """What the contract leaves out: ratios other than 1 and every choice that drops tokens, whose
    denominators and thresholds are those of the minibatch."""
    changes = dict(surrogate=surrogate, reducer=reducer, steps=1, updates_per_batch=2)
    changes |= dict(minibatches=2, kl_coef=0.3)
    changes |= dict(mask_truncated=True, kl_cov_share=0.3, clip_cov_share=0.3, clip_cov_low=-9.0)
    for ((row,),) in zip(same_update(monkeypatch, FAMILY, **changes), strict=True):
        assert 0.05 < row["policy_tokens"] < 0.5


# Dynamic sampling


def test_a_step_without_any_group_left_takes_no_optimizer_step(gradients):
    """Not even one of momentum, and nothing that was not measured is logged."""
    rewards = iter([0.0, 1.0] * 8 + [0.7] * 1000)
    changing = RuleReward(lambda *_: next(rewards), "constant after the first batch")
    policy, ends = small_gpt(), []

    class Log(MetricLog):
        def write(self, *, step: int, **metrics) -> None:
            super().write(step=step, **metrics)
            ends.append(weights(policy))

    rows = run(policy, changing, log=Log(3), steps=3, sampling_filter="dynamic", stop_kl=9.0)
    assert len(gradients) == 1 and torch.equal(ends[0], ends[2])
    assert [row["sampling_rounds"] for row in rows] == [1, 5, 5]
    assert [row["dropped_groups"] for row in rows] == [0, 20, 20]
    assert {"loss", "kl", "grad_norm", "entropy", "ratio_error_at_start"} <= rows[0].keys()
    assert not rows[1].keys() & {"loss", "kl", "grad_norm", "entropy", "ratio_error_at_start"}
    assert rows[1]["reward"] == pytest.approx(0.7) and rows[1]["zero_spread_groups"] == 1
