"""REINFORCE++ end to end on a GPT of two layers: both variants exact, and a toy reward learned."""

from __future__ import annotations

import copy
import re
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from data.records import PromptRecord
from gpt.common import MetricLog, saved_step
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import build_tokenizer
from reward_model.model import RewardModel
from rl import grpo_engine, reinforce_pp_engine
from rl.batches.rollout import Rollout
from rl.equations.losses import clip_acted, likelihood_ratio
from rl.reinforce_pp_engine import (
    ReinforcePPConfig,
    reinforce_pp_advantages,
    reinforce_pp_loss,
    train,
)
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.training.evaluation import Validation

LETTERS = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})  # EOS 8, padding 9
PROMPTS = [PromptRecord(text) for text in ("ab", "c", "hgfed", "aaa", "fa", "gh", "bbbb", "e")]
CONFIG = ReinforcePPConfig(
    steps=20, prompts_per_step=16, minibatches=1, micro_batch_size=64, lr=1e-2, warmup=1,
    kl_coef=0.02, stop_kl=None, max_new_tokens=8, eval_every=100, max_norm=1e9,
    checkpoint_every=1000,
)  # fmt: skip
BASELINE = dict(variant="baseline", group_size=4, prompts_per_step=4)
VARIANTS = {"plain": {}, "baseline": BASELINE}
SHARE_OF_A = RuleReward(lambda record, text, ended: text.count("a") / 8, "share of a")
# A reward that separates any two responses.
DIVERSE = RuleReward(lambda record, text, ended: sum(ord(c) * i for i, c in enumerate(text, 1)), "")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
HALVES = [[4, 5, 6, 7, 12, 13, 14, 15], [0, 1, 2, 3, 8, 9, 10, 11]]

each_variant = pytest.mark.parametrize("variant", VARIANTS)


def small_gpt(dropout: float = 0.0) -> GPT:
    shape = GPTConfig(LETTERS.n_vocab, 16, n_layer=2, n_head=2, n_embd=32, dropout=dropout)
    return GPT(shape).initialize(torch.Generator().manual_seed(0)).eval()


def run(policy: GPT, reward_fn=SHARE_OF_A, *, log: MetricLog | None = None, **changes):
    """Train and return the metrics rows; keyword arguments change CONFIG."""
    options = {name: changes.pop(name) for name in ("validate", "folder") if name in changes}
    config = replace(CONFIG, **changes)
    log = log or MetricLog(config.steps)
    return train(config, policy, LETTERS, reward_fn, PROMPTS, log, **options)


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


class Noted:
    """Keeps every rollout that passes through a reward."""

    def __init__(self, reward) -> None:
        self.reward, self.name = reward, reward.name
        self.rollouts: list[Rollout] = []

    def __call__(self, rollout: Rollout) -> torch.Tensor:
        self.rollouts.append(rollout)
        return self.reward(rollout)


class Updates:
    """The flat gradient of each optimizer step, as it reaches the clip, and the policy before it."""

    def __init__(self, monkeypatch, policy: GPT) -> None:
        self.gradients: list[torch.Tensor] = []
        self.policies: list[GPT] = []
        real = reinforce_pp_engine.clip_and_step

        def spy(optimizer, parameters, max_norm):
            parameters = list(parameters)
            self.gradients.append(torch.cat([p.grad.flatten().clone() for p in parameters]))
            self.policies.append(copy.deepcopy(policy))
            return real(optimizer, parameters, max_norm)

        monkeypatch.setattr(reinforce_pp_engine, "clip_and_step", spy)


# The gradients


def response_log_probs(policy: GPT, rollout: Rollout, row: int) -> list[torch.Tensor]:
    """log pi of each token of one response, from an unpadded forward of that row alone."""
    prompt = LETTERS.encode(rollout.records[row].prompt)
    response = rollout.response_tokens[row][rollout.response_mask[row]].tolist()
    log_probs = policy(torch.tensor([prompt + response]))[0].log_softmax(-1)
    return [log_probs[len(prompt) - 1 + t, token] for t, token in enumerate(response)]


def k1_per_token(policy: GPT, reference: GPT, rollout: Rollout) -> list[list[float]]:
    """log pi - log pi_ref of every token of every response."""
    with torch.no_grad():
        pairs = [
            (response_log_probs(policy, rollout, i), response_log_probs(reference, rollout, i))
            for i in range(len(rollout))
        ]
    return [[float(a - b) for a, b in zip(*pair, strict=True)] for pair in pairs]


def reward_to_go(values: list[float], k1: list[list[float]], beta: float) -> list[list[float]]:
    """R - beta * the k1 of this token and all later ones."""
    return [
        [value - beta * sum(row[t:]) for t in range(len(row))]
        for value, row in zip(values, k1, strict=True)
    ]


def minus_group_mean(values: list[float], k1: list[list[float]]) -> list[list[float]]:
    """R minus the mean of its four, once for each token."""
    return [
        [values[i] - sum(values[i // 4 * 4 : i // 4 * 4 + 4]) / 4] * len(row)
        for i, row in enumerate(k1)
    ]


def normalised(advantages: list[list[float]], over: str) -> list[list[float]]:
    """By the mean and standard deviation of all tokens, or of the first token of each response."""
    if over == "token":
        pool = [a for row in advantages for a in row]
    else:
        advantages = [[row[0]] * len(row) for row in advantages]
        pool = [row[0] for row in advantages]
    mean, spread = statistics.mean(pool), statistics.stdev(pool)
    return [[(a - mean) / spread for a in row] for row in advantages]


def reinforce_gradient(
    policy: GPT,
    rollout: Rollout,
    rows: list[int],
    advantages: list[list[float]],
    reference: GPT,
    k2_weight: float = 0.0,
) -> torch.Tensor:
    """-1/n sum_i 1/L_i sum_t (A_it grad log pi(y_t) - weight * grad k2), row by row, unpadded."""
    policy = copy.deepcopy(policy)
    policy.zero_grad(set_to_none=True)
    loss = torch.zeros(())
    for i in rows:
        with torch.no_grad():
            anchor = response_log_probs(reference, rollout, i)
        for t, log_prob in enumerate(response_log_probs(policy, rollout, i)):
            token = -advantages[i][t] * log_prob + k2_weight * (log_prob - anchor[t]) ** 2 / 2
            loss = loss + token / len(advantages[i]) / len(rows)
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


def assert_equal_gradients(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Within `tolerance` of the largest component."""
    largest = float(expected.abs().max())
    assert largest > 1e-3
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * largest)


def differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    return float((one - other).abs().max()) > 0.01 * float(one.abs().max())


@pytest.mark.parametrize("norm_over", ["auto", "token", "sequence"])
@each_variant
def test_the_first_gradient_is_that_of_reinforce(monkeypatch, variant, norm_over):
    """In float64: at pi = pi_ref the KL says nothing, in the reward as in the loss.

    The minibatches are given, and the statistics are those of the whole batch.
    """
    halves = [torch.tensor(half) for half in HALVES]
    monkeypatch.setattr(reinforce_pp_engine, "minibatches", lambda *args: halves)
    policy, reward = small_gpt().double(), Noted(DIVERSE)
    updates = Updates(monkeypatch, policy)
    options = VARIANTS[variant] | dict(norm_over=norm_over, micro_batch_size=3, kl_coef=0.5)
    run(policy, reward, steps=1, **options)
    (rollout,), start = reward.rollouts, updates.policies[0]
    assert len(set(rollout.lengths.tolist())) > 1, "all responses are of one length"
    values, zero = DIVERSE(rollout).tolist(), k1_per_token(start, start, rollout)
    over = norm_over
    if norm_over == "auto":
        over = "token" if variant == "plain" else "sequence"
    raw = reward_to_go(values, zero, 0.5) if variant == "plain" else minus_group_mean(values, zero)
    expected = reinforce_gradient(start, rollout, HALVES[0], normalised(raw, over), start)
    assert_equal_gradients(updates.gradients[0], expected, 3e-6)  # advantages are float32
    other = normalised(raw, {"token": "sequence", "sequence": "token"}[over])
    assert differ(expected, reinforce_gradient(start, rollout, HALVES[0], other, start))


def test_the_kl_of_the_plain_variant_is_in_each_tokens_reward(monkeypatch):
    """At the third step the policy has left the reference; nothing of the KL is in the loss."""
    policy, reward = small_gpt().double(), Noted(SHARE_OF_A)
    start, updates = copy.deepcopy(policy), Updates(monkeypatch, policy)
    run(policy, reward, steps=3, kl_coef=0.3, lr=3e-2)
    rollout, sampler = reward.rollouts[2], updates.policies[2]
    values, k1 = SHARE_OF_A(rollout).tolist(), k1_per_token(sampler, start, rollout)
    rows = list(range(16))

    def gradient(advantages, k2_weight=0.0):
        whitened = normalised(advantages, "token")
        return reinforce_gradient(sampler, rollout, rows, whitened, start, k2_weight)

    to_go = reward_to_go(values, k1, 0.3)
    expected = gradient(to_go)
    assert_equal_gradients(updates.gradients[2], expected, 2e-5)  # the sampler's are float32
    whole = [[row[0]] * len(row) for row in to_go]  # the KL of earlier tokens as well
    for wrong in (gradient(whole), gradient(reward_to_go(values, k1, 0.0)), gradient(to_go, 0.3)):
        assert differ(expected, wrong)


def test_the_kl_of_the_baseline_variant_is_k2_in_the_loss(monkeypatch):
    """At the third step the policy has left the reference; nothing of the KL is in the reward."""
    policy, reward = small_gpt().double(), Noted(SHARE_OF_A)
    start, updates = copy.deepcopy(policy), Updates(monkeypatch, policy)
    run(policy, reward, steps=3, kl_coef=0.3, lr=3e-2, **BASELINE)
    rollout, sampler = reward.rollouts[2], updates.policies[2]
    values, k1 = SHARE_OF_A(rollout).tolist(), k1_per_token(sampler, start, rollout)
    advantages = normalised(minus_group_mean(values, k1), "sequence")
    rows = list(range(16))
    expected = reinforce_gradient(sampler, rollout, rows, advantages, start, 0.3)
    assert_equal_gradients(updates.gradients[2], expected, 2e-5)
    assert differ(expected, reinforce_gradient(sampler, rollout, rows, advantages, start))


@each_variant
def test_at_the_first_step_ratio_is_one_and_kl_is_zero(variant):
    (row,) = run(small_gpt(), steps=1, minibatches=2, **VARIANTS[variant])
    assert row["ratio_error_at_start"] < 1e-5
    assert abs(row["kl"]) < 1e-6 and abs(row["kl_k3"]) < 1e-6
    (row,) = run(small_gpt(), steps=1, **VARIANTS[variant])  # one minibatch: all at ratio 1
    assert row["clip_high_fraction"] == row["clip_low_fraction"] == 0
    assert abs(row["approx_kl"]) < 1e-6 and row["grad_norm"] > 0.01


def test_one_group_without_a_kl_is_grpo():
    """The standard deviation of the batch is then that of the group (up to GRPO's 1e-4)."""
    both = [small_gpt().double() for _ in range(2)]
    shared = dict(steps=2, prompts_per_step=1, group_size=8, kl_coef=0.0, lr=1e-3)
    run(both[0], DIVERSE, variant="baseline", **shared)
    common = {name: getattr(CONFIG, name) for name in ("minibatches", "warmup", "max_norm")}
    common |= dict(max_new_tokens=8, stop_kl=None)
    config = grpo_engine.GRPOConfig(**(common | shared))
    grpo_engine.train(config, both[1], LETTERS, DIVERSE, PROMPTS, MetricLog(2))
    torch.testing.assert_close(weights(both[0]), weights(both[1]), rtol=0, atol=1e-6)


# The advantages and the loss


def test_reward_to_go_is_whitened_over_all_tokens():
    """r = .1 .2 1 and -.5 1 with gamma 0.9, the KL from given log-probs; padding is no token."""
    rewards = torch.tensor([1.0, 1.0])
    old = torch.tensor([[-1.0, -2, -3, 50], [-1, -2, 50, 50]])
    # k1 = -1, -2, 0 and 5, 0 with kl_coef 0.1
    reference = torch.tensor([[0.0, 0, -3, -50], [-6, -2, -50, -50]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()
    config = replace(CONFIG, gamma=0.9)
    found = reinforce_pp_advantages(config, rewards, old, reference, mask, 0.1)
    expected = torch.tensor([[0.586106, 0.620182, 0.279423, 0], [-1.765134, 0.279423, 0, 0]])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    # undiscounted 1.3 1.2 1 and 0.5 1: over sequences, the returns of the responses 1.3 and 0.5
    config = replace(CONFIG, norm_over="sequence")
    found = reinforce_pp_advantages(config, rewards, old, reference, mask, 0.1)
    torch.testing.assert_close(found, torch.tensor([[0.5], [-0.5]]) * 2**0.5)


@pytest.mark.parametrize(
    ("norm_over", "wanted"),
    [
        ("auto", [1.224745, -1.224745, 0, 0]),
        ("sequence", [1.224745, -1.224745, 0, 0]),
        ("token", [1.242118, -1.656157, -0.207020, -0.207020]),
    ],
)
def test_group_means_are_normalised_over_the_batch(norm_over, wanted):
    """Rewards 1 0 and 1 1, lengths 2 1 2 2: no KL in the reward, whatever the reference."""
    rewards = torch.tensor([1.0, 0, 1, 1])
    old, reference = torch.full((4, 2), -1.0), torch.full((4, 2), -9.0)
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]]).bool()
    config = replace(CONFIG, **(BASELINE | dict(group_size=2, norm_over=norm_over)))
    found = reinforce_pp_advantages(config, rewards, old, reference, mask, 0.1)
    assert found[:, 0].tolist() == pytest.approx(wanted, abs=1e-5)
    if norm_over == "token":
        assert found[:, 1].tolist() == pytest.approx([wanted[0], 0, *wanted[2:]], abs=1e-5)


@pytest.mark.parametrize("kl_coef", [0.0, 0.4])
@each_variant
def test_the_loss_by_loops(variant, kl_coef):
    """1/rows sum_i 1/L_i sum_t of -min(...), plus kl_coef * k2 in the baseline variant alone."""
    ratio = torch.tensor([[1.0, 2.0, 0.5, 9], [0.5, 2.0, 1.1, 9], [9, 9, 9, 9]])
    old = torch.full((3, 4), -2.0)
    new, reference = old + ratio.log(), old + 0.3
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    advantages = [[1.5, -1.0, 2.0, 9], [-0.5, 0.25, 9, 9], [9.0] * 4]
    expected = 0.0
    for i, length in ((0, 3), (1, 2)):
        for t in range(length):
            rho, delta = float(ratio[i, t]), float(reference[i, t] - new[i, t])
            clipped = min(max(rho, 0.8), 1.3)
            token = -min(rho * advantages[i][t], clipped * advantages[i][t])
            if variant == "baseline":
                token += kl_coef * delta**2 / 2
            expected += token / length / 5
    config = replace(CONFIG, clip_low=0.2, clip_high=0.3, **VARIANTS[variant])
    given = (config, new, old, reference if kl_coef else None, torch.tensor(advantages), mask)
    loss = reinforce_pp_loss(*given, kl_coef=kl_coef, rows=5)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    was_clipped = clip_acted(
        likelihood_ratio(new, old), given[4], config.clip_low, config.clip_high
    )
    assert was_clipped[mask].tolist() == [False, False, False, True, True]


@pytest.mark.parametrize("norm_over", ["sequence", "token"])
@each_variant
def test_a_constant_reward_teaches_nothing(variant, norm_over):
    """Without a KL: the spread of the batch is 0, and 0 / 0 stays 0."""
    policy = small_gpt()
    before = weights(policy)
    options = VARIANTS[variant] | dict(norm_over=norm_over, kl_coef=0.0)
    rows = run(policy, RuleReward(lambda *_: 0.7, "constant"), steps=2, **options)
    assert torch.equal(weights(policy), before)
    assert [row["grad_norm"] for row in rows] == [0, 0]


# Learning


@pytest.mark.parametrize("norm_over", ["sequence", "token"])
@each_variant
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_it_learns_a_toy_reward_and_unlearns_it_with_the_sign_flipped(variant, norm_over, sign):
    reward = RuleReward(lambda record, text, ended: sign * text.count("a") / 8, "toy")
    sizes = {"plain": (32, 1), "baseline": (4, 8)}
    prompts, group = sizes[variant]
    rows = run(
        small_gpt(), reward, variant=variant, norm_over=norm_over, prompts_per_step=prompts,
        group_size=group, minibatches=2,
    )  # fmt: skip
    last = statistics.mean(sign * row["reward"] for row in rows[-3:])
    assert 0.02 < sign * rows[0]["reward"] < 0.15  # one symbol of ten, in at most eight places
    assert last > 0.6 if sign > 0 else last < 0.02


@each_variant
def test_a_stronger_kl_penalty_stays_nearer(variant):
    options = VARIANTS[variant] | dict(prompts_per_step=8 if variant == "baseline" else 32)
    near, far = (run(small_gpt(), kl_coef=c, **options)[-1] for c in (1.0, 0.0001))
    assert abs(near["kl"]) < 0.5 * far["kl"]
    assert near["reward"] < far["reward"]


@each_variant
def test_several_updates_move_the_policy_within_one_batch(variant):
    options = VARIANTS[variant] | dict(updates_per_batch=4, lr=3e-2)
    (row,) = run(small_gpt(), steps=1, **options)
    assert row["ratio_error_at_start"] < 1e-5
    assert row["approx_kl"] > 1e-3
    assert row["clip_high_fraction"] > 0 and row["clip_low_fraction"] > 0


def test_minibatches_keep_groups_together(monkeypatch):
    seen: list[list[int]] = []
    real = reinforce_pp_engine.micro_batches

    def spy(sequences, rows, size):
        seen.append(rows.tolist())
        return real(sequences, rows, size)

    monkeypatch.setattr(reinforce_pp_engine, "micro_batches", spy)
    run(small_gpt(), steps=2, minibatches=2, **BASELINE)
    assert [len(rows) for rows in seen] == [8] * 4
    for rows in seen:
        assert all(rows[i : i + 4] == list(range(rows[i], rows[i] + 4)) for i in (0, 4))
    assert sorted(seen[0] + seen[1]) == list(range(16))


# Micro-batches


@each_variant
@pytest.mark.parametrize("minibatches", [1, 3])
def test_micro_batches_do_not_change_the_update(variant, minibatches):
    """In float64: the sums are regrouped, nothing else."""
    ends, rows = [], []
    for size in (3, 64):
        policy = small_gpt().double()
        options = dict(steps=2, micro_batch_size=size, minibatches=minibatches)
        rows.append(run(policy, DIVERSE, **(VARIANTS[variant] | options))[0])
        ends.append(weights(policy))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)
    for key in ("entropy", "loss", "grad_norm", "approx_kl"):
        assert rows[0][key] == pytest.approx(rows[1][key], rel=1e-5, abs=1e-6), key


# Frozen models


@each_variant
def test_without_a_kl_no_reference_is_asked(monkeypatch, variant):
    def refuse(*args, **options):
        raise AssertionError("kl_coef is 0, but a reference was scored")

    monkeypatch.setattr(reinforce_pp_engine, "rollout_log_probs", refuse)
    (row,) = run(small_gpt(), steps=1, kl_coef=0.0, **VARIANTS[variant])
    assert "kl" not in row and "kl_k3" not in row
    with pytest.raises(AssertionError, match="a reference was scored"):
        run(small_gpt(), steps=1, **VARIANTS[variant])


@each_variant
@pytest.mark.parametrize("kl_coef", [0.0, 0.02])
def test_without_a_kl_the_result_is_the_same_whatever_the_reference(monkeypatch, variant, kl_coef):
    def spoiled(policy: GPT) -> GPT:
        reference = copy.deepcopy(policy)
        for parameter in reference.parameters():
            parameter.data.mul_(3.0)
        return reference

    plain, other = small_gpt(), small_gpt()
    options = VARIANTS[variant] | dict(steps=2, kl_coef=kl_coef)
    run(plain, **options)
    monkeypatch.setattr(reinforce_pp_engine, "copy", SimpleNamespace(deepcopy=spoiled))
    run(other, **options)
    assert torch.equal(weights(plain), weights(other)) == (kl_coef == 0)


def test_the_stop_works_without_a_penalty():
    """kl_coef 0 is no reason to let a run drift: the KL is measured for stop_kl."""
    rows = run(small_gpt(), steps=8, lr=1e-4, kl_coef=0.0, stop_kl=-10.0)
    assert len(rows) == 5 and rows[0]["kl"] == pytest.approx(0, abs=1e-5)


def test_frozen_models_stay_as_they_are():
    """The reference is the start, the reward model is never trained, and neither has a gradient."""
    policy = small_gpt()
    reward_model = RewardModel.from_policy(policy, generator=torch.Generator().manual_seed(1))
    start, scorer = weights(policy), weights(reward_model)
    seen: list[GPT] = []

    def validate(policy: GPT, reference: GPT, step: int) -> dict[str, float]:
        assert torch.equal(weights(reference), start)
        assert not any(parameter.requires_grad for parameter in reference.parameters())
        assert all(parameter.grad is None for parameter in reference.parameters())
        seen.append(reference)
        return {}

    run(policy, RewardModelReward(reward_model), steps=3, eval_every=1, validate=validate)
    assert len(seen) == 3
    assert torch.equal(weights(reward_model), scorer)
    assert all(parameter.grad is None for parameter in reward_model.parameters())
    assert not torch.equal(weights(policy), start)


def test_dropout_has_no_effect():
    """Also when the policy arrives in training mode."""
    plain, dropped = small_gpt(), small_gpt(dropout=0.5).train()
    a, b = run(plain, steps=2), run(dropped, steps=2)
    assert torch.equal(weights(plain), weights(dropped))
    assert [row["entropy"] for row in a] == [row["entropy"] for row in b]


# Repeating and resuming


def numbers(rows) -> list[dict[str, float]]:
    """What was measured, without the times."""
    return [{key: value for key, value in row.items() if "second" not in key} for row in rows]


def test_a_seed_repeats_a_run_bit_for_bit():
    """The global random state plays no part; another seed is another run."""
    results = []
    for global_seed, seed in ((1, 0), (2, 0), (1, 5)):
        torch.manual_seed(global_seed)
        policy = small_gpt()
        rows = run(policy, steps=3, minibatches=2, seed=seed)
        results.append((weights(policy), numbers(rows)))
    assert torch.equal(results[0][0], results[1][0]) and results[0][1] == results[1][1]
    assert not torch.equal(results[0][0], results[2][0])


class Crash(Exception):
    pass


class CrashingLog(MetricLog):
    """Ends the run after five steps."""

    def write(self, *, step: int, **metrics) -> None:
        super().write(step=step, **metrics)
        if step == 5:
            raise Crash


@each_variant
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, variant):
    """Policy, reference, optimizer, KL coefficient and both generators come back."""
    options = dict(steps=7, minibatches=2, updates_per_batch=2, checkpoint_every=2, warmup=4)
    options |= dict(kl_controller="adaptive", kl_horizon=160, kl_target=0.01, **VARIANTS[variant])
    whole = small_gpt()
    rows = run(whole, **options)
    with pytest.raises(Crash):
        run(small_gpt(), log=CrashingLog(7), folder=tmp_path, **options)
    assert saved_step(tmp_path) == 4
    resumed = small_gpt()
    torch.nn.init.normal_(resumed.wte.weight)  # everything comes from the file
    more = run(resumed, folder=tmp_path, resume=True, **options)
    assert [row["step"] for row in more] == [5, 6, 7]
    assert numbers(more) == numbers(rows[4:])
    assert torch.equal(weights(resumed), weights(whole))


# Refusals and settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(variant="baseline"),
            "add --group-size 8 --prompts-per-step 2, or use --variant plain",
        ),
        (dict(variant="baseline", prompts_per_step=128), "--group-size 8 --prompts-per-step 16"),
        (dict(prompts_per_step=1), "one response has no spread"),
        (dict(gamma=0.0), "gamma must be above 0 and at most 1: got 0.0"),
        (dict(gamma=1.5), "gamma must be above 0 and at most 1: got 1.5"),
        (BASELINE | dict(gamma=0.9), "gamma 0.9 has no meaning in the variant baseline"),
    ],
)
def test_what_cannot_work_is_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(CONFIG, **changes)


def test_a_broken_reward_is_refused_or_replaced_and_counted():
    reward = RuleReward(lambda record, text, ended: float("nan" if ended else len(text)), "broken")
    with pytest.raises(ValueError, match="not finite"):
        run(small_gpt(), reward, steps=1)
    policy = small_gpt()
    (row,) = run(policy, reward, steps=1, non_finite_reward=0.0)
    assert row["non_finite_rewards"] == pytest.approx(16 * row["eos_rate"]) and row["eos_rate"] > 0
    assert weights(policy).isfinite().all()


def test_stop_kl_ends_the_run_with_a_validation():
    validated: list[int] = []

    def validate(policy: GPT, reference: GPT, step: int) -> dict[str, float]:
        validated.append(step)
        return {}

    rows = run(small_gpt(), stop_kl=4.0, prompts_per_step=32, kl_coef=0.0001, validate=validate)
    stopped = rows[-1]["step"]
    assert 5 <= stopped < 20 and validated == [stopped]
    assert statistics.mean(row["kl"] for row in rows[-5:]) > 4.0


def test_gradients_are_clipped_before_the_step(monkeypatch):
    """Adam divides a common factor out, so the gradients are looked at as it receives them."""
    seen: list[float] = []

    class Spy(torch.optim.AdamW):
        def step(self, *args, **options):
            grads = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
            seen.append(float(torch.cat(grads).norm()))
            return super().step(*args, **options)

    monkeypatch.setattr(torch.optim, "AdamW", Spy)
    (row,) = run(small_gpt(), DIVERSE, steps=1, max_norm=0.01)
    assert row["grad_norm"] > 0.02
    assert seen == [pytest.approx(0.01, rel=1e-3)]


def test_warm_up_is_linear_and_then_constant():
    rows = run(small_gpt(), steps=5, warmup=4, lr=4e-3)
    assert [row["lr"] for row in rows] == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3, 4e-3])


def test_the_temperature_is_that_of_sampler_and_scorer():
    (row,) = run(small_gpt(), steps=1, temperature=0.5)
    assert row["ratio_error_at_start"] < 1e-5 and abs(row["kl"]) < 1e-5
    hot, cold = (run(small_gpt(), steps=1, temperature=t)[0]["entropy"] for t in (2.0, 0.05))
    assert cold < hot - 0.1


def test_bfloat16_scores_old_and_new_alike():
    (row,) = run(small_gpt(), steps=1, precision="bfloat16")
    assert row["ratio_error_at_start"] < 0.02


@each_variant
def test_the_adaptive_controller_moves_the_penalty(variant):
    """KL starts at 0, below the target: the coefficient falls by a fifth of responses / horizon."""
    options = dict(steps=3, kl_controller="adaptive", kl_horizon=160, kl_target=1e3)
    options |= VARIANTS[variant]
    rows = run(small_gpt(), **options)
    assert [row["kl_coef"] for row in rows] == pytest.approx([0.02, 0.02 * 0.98, 0.02 * 0.98**2])
    rows = run(small_gpt(), **(options | dict(kl_target=1e-4, steps=10)))
    assert rows[-2]["kl"] > 1e-4 and rows[-1]["kl_coef"] > rows[-2]["kl_coef"]


# The document


def section(heading: str) -> str:
    """The text under one heading of docs/metrics.md."""
    text = DOCUMENT.read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return body


def documented(heading: str) -> set[str]:
    """The keys of the tables there: the first cell of each row."""
    return set(re.findall(r"^\| `([^`]+)` \|", section(heading), re.M))


def test_logged_keys_are_those_documented():
    """One response per prompt has no groups whose spread could be counted."""
    params = SamplingParams(max_new_tokens=8)
    validate = Validation(LETTERS, PROMPTS, params, SHARE_OF_A, gold=SHARE_OF_A)
    keys = {
        variant: set(run(small_gpt(), steps=1, eval_every=1, validate=validate, **options)[0])
        for variant, options in VARIANTS.items()
    }
    assert keys["baseline"] == documented("Every engine") | documented("REINFORCE++")
    assert keys["plain"] == keys["baseline"] - {"zero_spread_groups"}
    assert "`zero_spread_groups`" in section("REINFORCE++")


# Other penalties than k1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # k1 is -1, 2, 0 and 5, 0; R = 1 at the end of both, kl_coef 0.1
        ("k1", [0.9, 0.8, 1.0, 0.5, 1.0]),
        ("absolute", [0.7, 0.8, 1.0, 0.5, 1.0]),
        ("squared", [0.75, 0.8, 1.0, -0.25, 1.0]),
    ],
)
def test_the_named_penalty_is_taken_off_the_reward_to_go(name, expected):
    k1 = torch.tensor([[-1.0, 2.0, 0.0], [5.0, 0.0, 50.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    reference = torch.full((2, 3), -2.0)
    config = replace(CONFIG, kl_penalty=name)
    found = reinforce_pp_advantages(config, torch.ones(2), reference + k1, reference, mask, 0.1)
    mean = sum(expected) / 5
    std = (sum((value - mean) ** 2 for value in expected) / 4) ** 0.5
    wanted = [(value - mean) / std for value in expected]
    assert found[mask].tolist() == pytest.approx(wanted, abs=1e-5)


def test_the_baseline_variant_has_no_penalty_in_the_reward():
    with pytest.raises(ValueError, match="kl_penalty squared is taken off a reward"):
        replace(CONFIG, kl_penalty="squared", **BASELINE)
