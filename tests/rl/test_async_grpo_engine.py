"""Asynchronous GRPO: which policy draws, what corrects for it, and that without a gap it is GRPO."""

from __future__ import annotations

import copy
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import DIVERSE, engine_named, small_gpt
from forked import Done, forked
from minibatch import MASK, NEW, OLD, RATIO, mean_of_means, pessimistic
from slow import response_log_probs
from toys import weights
from watched import Noted, Updates, numbers

from harness.command_line import explained
from harness.errors import UserError
from harness.ranks.collectives import gather, own_number
from harness.ranks.launch import Wish, run_on_ranks
from rl import async_grpo_engine
from rl.async_grpo_engine import async_grpo_loss, corrected, stale_share
from rl.batches import samplers as samplers_module
from rl.batches.samplers import Sampler, round_weights
from rl.equations.sampler_correction import CORRECTIONS

CONTRACT = {
    "forms": {
        "token_tis": {},
        "dppo_tv": {"correction": "dppo_tv"},
        "sampler_clip": {"correction": "sampler_clip"},
    },
    "resumed": ({"lag": 3, "sampler_precision": "bfloat16"}, {"lag": 4}),
    "headings": ("Asynchronous GRPO",),
    "skips": {},
}
ASYNC = engine_named("async_grpo")
CONFIG, run = ASYNC.config, ASYNC.run
CLIPPED = [name for name, row in CORRECTIONS.items() if row.divergence is None]


# Without a gap


@pytest.mark.parametrize("name", CLIPPED)
def test_without_a_gap_it_is_grpo_bit_for_bit(name):
    """Weights and logs, for every correction that weighs or clips GRPO's surrogate."""
    options = dict(steps=3, minibatches=2, updates_per_batch=2, lr=3e-3)
    policy, other = small_gpt(), small_gpt()
    rows = numbers(engine_named("grpo").run(policy, DIVERSE, **options))
    other_rows = numbers(run(other, DIVERSE, correction=name, **options))
    assert torch.equal(weights(policy), weights(other))
    assert not torch.equal(weights(policy), weights(small_gpt()))
    for grpo, ours in zip(rows, other_rows, strict=True):
        assert grpo.items() <= ours.items()
        assert (ours["lag"], ours["sampler_kl"], ours["ess_responses"]) == (0, 0, 1)


# Who draws


@pytest.mark.parametrize(("lag", "ages"), [(0, [0, 0, 0, 0]), (3, [0, 2, 3, 3]), (4, [0, 2, 4, 4])])
def test_the_sampler_is_that_many_optimizer_steps_old(monkeypatch, lag, ages):
    """Two optimizer steps a batch. The log-probs that come with an answer are the older policy's."""
    policy, reward = small_gpt(), Noted(DIVERSE)
    updates = Updates(monkeypatch, policy)  # the policy before each optimizer step
    rows = run(policy, reward, steps=4, minibatches=2, lag=lag, lr=1e-2)
    assert [row["lag"] for row in rows] == ages
    for batch, (rollout, age) in enumerate(zip(reward.rollouts, ages, strict=True)):
        drew = updates.policies[2 * batch - age]
        for row in (0, 9):
            expected = torch.stack(response_log_probs(drew, rollout, row))
            found = rollout.log_probs[row][rollout.response_mask[row]]
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def test_rounding_is_that_of_an_inference_engine():
    """By hand: a row of int8 in units of its largest weight / 127; bfloat16 keeps 8 bits."""
    model = small_gpt(noise=0.1)
    with torch.no_grad():
        model.h[0].attn.c_attn.weight[1] = 0
    exact = copy.deepcopy(model)
    round_weights(model, "int8")
    linear, was = (each.h[0].attn.c_attn.weight.detach() for each in (model, exact))
    for row in (0, 5):
        unit = was[row].detach().abs().max().item() / 127
        rounded = [round(float(x) / unit) * unit for x in was[row]]
        assert linear[row].tolist() == pytest.approx(rounded, abs=1e-7)
    assert torch.equal(model.wte.weight, exact.wte.weight) and not linear[1].any()  # not 0 / 0
    round_weights(exact, "bfloat16")
    assert torch.equal(weights(exact), weights(exact).bfloat16().float())
    again = copy.deepcopy(exact)
    round_weights(again, "float32")
    assert torch.equal(weights(again), weights(exact))


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_rounded_sampler_leaves_the_policy_as_it_is(precision):
    policy = small_gpt(noise=0.1)
    before = weights(policy)
    sampler = Sampler(policy, [0, 0], precision, lambda model, batch: model)
    drew = sampler.rollout(0, 2)
    assert torch.equal(weights(policy), before) and not torch.equal(weights(drew), before)
    assert not any(parameter.requires_grad for parameter in drew.parameters())
    (row,) = run(policy, DIVERSE, steps=1, sampler_precision=precision)
    assert row["lag"] == 0 and row["sampler_kl"] > 0 and row["ess"] < 1


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_an_old_sampler_with_the_same_weights_is_the_policy(temperature):
    """lr 0: mu and pi_old are one function, at the temperature of both."""
    rows = run(small_gpt(noise=0.1), DIVERSE, steps=3, lag=2, lr=0.0, temperature=temperature)
    assert rows[-1]["lag"] == 2
    for row in rows:
        assert abs(row["sampler_kl"]) < 1e-9 and row["ess_responses"] > 1 - 1e-6


def test_only_the_weights_that_a_later_batch_asks_for_are_kept():
    policy = small_gpt()
    sampler = Sampler(policy, [0, 0, 1, 4, 6], "float32", lambda model, batch: model)
    kept = []
    for batch in range(4):
        sampler.rollout(batch, 5)
        for _ in range(2):
            sampler.updated()
        kept.append(sorted(sampler.kept))
    assert kept == [[0, 1], [1, 4], [4, 6], [6]]


def test_a_lag_beyond_the_run_costs_no_memory():
    config = replace(CONFIG, lag=10**6)
    assert sys.getsizeof(config.versions) < 1000


def test_a_run_is_not_resumed_with_a_longer_lag(tmp_path):
    run(small_gpt(), DIVERSE, steps=2, lag=1, folder=tmp_path)
    with pytest.raises(UserError, match="--lag.*config.json"):
        run(small_gpt(), DIVERSE, steps=4, lag=2, folder=tmp_path, resume=True)


# The loss


@pytest.mark.parametrize(
    ("name", "pays"),  # of pi / pi_old, of the weight pi_old / mu, and of the advantage
    [
        ("none", lambda ratio, w, a: pessimistic(ratio, a)),
        ("token_tis", lambda ratio, w, a: min(w, 2) * pessimistic(ratio, a)),
        ("masked", lambda ratio, w, a: w * (0.5 <= w <= 2) * pessimistic(ratio, a)),
        ("decoupled", lambda ratio, w, a: w * pessimistic(ratio, a)),
        ("sampler_clip", lambda ratio, w, a: pessimistic(ratio * w, a)),
    ],
)
def test_the_loss_by_loops(name, pays):
    """Weights pi_old / mu below, inside and above [0.5, 2]; ratios inside and outside of the clip."""
    config = replace(CONFIG, correction=name, clip_high=0.3)
    over_mu = torch.tensor([[0.4, 1.5, 3.0, 7], [0.8, 2.5, 1.2, 7], [7, 7, 7, 7]])
    mu = OLD - over_mu.log()
    advantages = torch.tensor([[1.5], [-0.5], [9.0]])
    weighted, _ = corrected(replace(config, group_size=3), advantages, OLD, mu, MASK)
    anchor = mu if name == "sampler_clip" else OLD
    loss = async_grpo_loss(config, NEW, anchor, None, weighted, MASK, kl_coef=0.0, rows=5)

    def term(i: int, t: int) -> float:
        return pays(float(RATIO[i, t]), float(over_mu[i, t]), float(advantages[i]))

    assert loss.item() == pytest.approx(mean_of_means(term), rel=1e-5)


def test_what_is_logged_of_the_weights():
    """By hand, on weights 1, 2, 4 and 1/4, 2: KL(mu, pi), both sample sizes, what a rule changes."""
    over_mu = torch.tensor([[1.0, 2, 4, 7], [0.25, 2, 7, 7]])
    old, mask = torch.full((2, 4), -3.0), MASK[:2]
    mu = old - over_mu.log()
    ones, config = torch.ones(2, 1), replace(CONFIG, correction="masked", group_size=2)
    w, found = corrected(config, ones, old, mu, mask)
    assert w[mask].tolist() == pytest.approx([1, 2, 0, 0, 2])
    assert found["ess"] == pytest.approx(9.25**2 / (5 * 25.0625))
    assert found["ess_responses"] == pytest.approx(8.5**2 / (2 * 64.25))
    assert (found["weights_cut"], found["weight_max"]) == (pytest.approx(0.4), pytest.approx(4))
    logs = [float(torch.tensor(x).log()) for x in (1.0, 2.0, 4.0, 0.25, 2.0)]
    assert found["sampler_kl"] == pytest.approx((9.25 - 5 - sum(logs)) / 2)
    for name, cut in (("none", 0), ("token_tis", 0.2), ("decoupled", 0)):
        _, found = corrected(replace(config, correction=name), ones, old, mu, mask)
        assert found["weights_cut"] == pytest.approx(cut)


# Stale groups


@pytest.mark.parametrize(("rule", "left"), [("drop", [1, 1, 0, 0]), ("weight", [1, 1, 0.5, 0.125])])
def test_a_stale_group_is_dropped_or_weighted_by_the_named_rule(rule, left):
    config = replace(CONFIG, stale_kl=0.5, stale=rule)
    share = stale_share(config, torch.tensor([0.0, 0.5, 1.0, 4.0]))
    assert share.tolist() == pytest.approx(left)
    share = stale_share(replace(config, stale_kl=float("inf")), torch.tensor([0.0, 4.0]))
    assert share.tolist() == [1, 1]  # no limit


def test_a_run_whose_groups_are_all_stale_moves_by_nothing(gradients):
    """Without a KL penalty; `stale_kl` is below what a lag of two batches makes."""
    options = dict(steps=3, lag=2, minibatches=1, kl_coef=0.0, lr=1e-2, updates_per_batch=1)
    rows = run(small_gpt(), DIVERSE, stale_kl=1e-4, **options)
    assert [row["stale_groups"] for row in rows] == [0, 1, 1]
    assert [bool(gradient.any()) for gradient in gradients] == [True, False, False]


# On ranks


def on_ranks(folder: Path, ranks: int, samplers: int, dies: int = 0, **flags: Any) -> Done:
    """A run in processes of their own; those that train leave weights and rows in `folder`.

    The rank of the number `dies` is killed in the middle of its first batch after the first.
    """
    draw = async_grpo_engine.draw_batch

    def fatal(*given: Any) -> Any:
        if given[-1] >= 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(*given)

    def work() -> None:
        if dies and own_number() == dies:
            async_grpo_engine.draw_batch = fatal  # this process is a fork
        policy = small_gpt()
        rows = run(policy, DIVERSE, samplers=samplers, folder=folder, **flags)
        all_ = gather((weights(policy), numbers(rows)))
        assert len(all_) == ranks - samplers
        assert all(torch.equal(w, all_[0][0]) and n == all_[0][1] for w, n in all_)
        torch.save(all_[0], folder / f"{samplers}.pt")

    def command() -> None:
        with explained(False):
            run_on_ranks(work, Wish(ranks, "cpu"), partial(explained, False))

    return forked(command, timeout=120)


@pytest.mark.parametrize("samplers", [1, 2])
def test_with_samplers_it_is_the_same_run_bit_for_bit(tmp_path, samplers):
    """Other processes draw while this one trains: weights and logs of every rank, and a resumed run's."""
    flags = dict(lag=5, minibatches=2, lr=1e-2, sampler_precision="bfloat16")
    assert on_ranks(tmp_path, 1, 0, steps=5, **flags).returncode == 0
    done = on_ranks(tmp_path, samplers + 1, samplers, steps=5, **flags)
    assert done.returncode == 0, done.stderr
    expected, found = (torch.load(tmp_path / f"{k}.pt", weights_only=False) for k in (0, samplers))
    assert torch.equal(found[0], expected[0]) and found[1] == expected[1]
    short = on_ranks(tmp_path, samplers + 1, samplers, steps=3, **flags)
    longer = on_ranks(tmp_path, samplers + 1, samplers, steps=5, resume=True, **flags)
    assert short.returncode == longer.returncode == 0, short.stderr + longer.stderr
    again, rows = torch.load(tmp_path / f"{samplers}.pt", weights_only=False)
    assert torch.equal(again, expected[0]) and rows == expected[1][3:]


def test_an_early_stop_lets_the_samplers_go(tmp_path):
    done = on_ranks(tmp_path, 2, 1, steps=12, lag=2, minibatches=2, lr=3e-2, stop_kl=0.05)
    assert done.returncode == 0, done.stderr
    _, rows = torch.load(tmp_path / "1.pt", weights_only=False)
    assert len(rows) < 12


def test_several_ranks_train_beside_a_sampler(tmp_path):
    """Their weights are equal, which `on_ranks` compares, and those of one process but for rounding."""
    flags = dict(steps=4, lag=2, minibatches=2, lr=1e-2)
    for ranks, samplers in ((1, 0), (3, 1)):
        done = on_ranks(tmp_path, ranks, samplers, **flags)
        assert done.returncode == 0, done.stderr
    alone, shared = (torch.load(tmp_path / f"{k}.pt", weights_only=False) for k in (0, 1))
    assert [row["lag"] for row in shared[1]] == [row["lag"] for row in alone[1]]
    torch.testing.assert_close(shared[0], alone[0], rtol=0, atol=1e-4)
    assert not torch.allclose(shared[0], weights(small_gpt()), rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("rule", "ranks", "samplers"), [("end", 2, 1), ("replace", 2, 1), ("replace", 3, 2)]
)
def test_a_sampler_that_dies_ends_the_run_or_is_replaced(tmp_path, rule, ranks, samplers):
    """The same run either way in the end: at once where it is replaced, otherwise once it is resumed."""
    flags = dict(lag=2 * samplers, minibatches=2, lr=1e-2, checkpoint_every=1)
    flags |= dict(on_dead_sampler=rule, steps=4)
    assert on_ranks(tmp_path, 1, 0, **flags).returncode == 0
    expected = torch.load(tmp_path / "0.pt", weights_only=False)
    done = on_ranks(tmp_path, ranks, samplers, dies=ranks - 1, **flags)
    assert "Traceback" not in done.stderr
    if rule == "end":
        said = [line for line in done.stderr.splitlines() if "another process" in line]
        assert done.returncode == 1 and len(said) == 1 and "--resume" in said[0]
    else:
        assert done.returncode == 0 and done.stderr.count("a new one draws batch") == 1
        found = torch.load(tmp_path / f"{samplers}.pt", weights_only=False)
        assert torch.equal(found[0], expected[0]) and found[1] == expected[1]
    if ranks == 2:
        again = on_ranks(tmp_path, 2, 1, resume=True, **flags | dict(steps=5))
        assert again.returncode == 0, again.stderr
        _, rows = torch.load(tmp_path / "1.pt", weights_only=False)
        shared = [row for row in rows if row["step"] <= 4]
        assert rows[-1]["step"] == 5 and shared == expected[1][4 - len(shared) :]


def test_samplers_that_all_die_at_once_are_not_replaced_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(samplers_module, "MOST_REPLACED", 0)
    flags = dict(on_dead_sampler="replace", steps=4, lag=2, minibatches=2)
    done = on_ranks(tmp_path, 2, 1, dies=1, **flags)
    assert done.returncode == 1 and "another process" in done.stderr


def test_samplers_without_a_rank_to_train_are_refused(tmp_path):
    done = on_ranks(tmp_path, 1, 1, steps=1, lag=2, minibatches=2)
    assert done.returncode == 1
    assert "--samplers 1 needs 2 ranks or more" in done.stderr and "--ranks 2" in done.stderr
