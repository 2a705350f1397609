"""RLOO end to end on a GPT of two layers: exact gradients, three losses, and a toy reward learned."""

from __future__ import annotations

import copy
import math
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
from gpt.log_probs import TokenScores
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import build_tokenizer
from reward_model.model import RewardModel
from rl import rloo_engine
from rl.batches.rollout import Rollout
from rl.equations.losses import clip_acted
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.rloo_engine import RLOOConfig, rloo_advantages, rloo_loss, train
from rl.training.evaluation import Validation

LETTERS = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})  # EOS 8, padding 9
PROMPTS = [PromptRecord(text) for text in ("ab", "c", "hgfed", "aaa", "fa", "gh", "bbbb", "e")]
CONFIG = RLOOConfig(
    steps=20, prompts_per_step=4, group_size=4, minibatches=1, micro_batch_size=64, lr=1e-2,
    warmup=1, kl_coef=0.02, stop_kl=None, max_new_tokens=8, eval_every=100, max_norm=1e9,
    checkpoint_every=1000,
)  # fmt: skip
SHARE_OF_A = RuleReward(lambda record, text, ended: text.count("a") / 8, "share of a")
# A reward that separates any two responses.
DIVERSE = RuleReward(lambda record, text, ended: sum(ord(c) * i for i, c in enumerate(text, 1)), "")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
FORMS = ("sequence", "clipped", "token")
HALVES = [[4, 5, 6, 7, 12, 13, 14, 15], [0, 1, 2, 3, 8, 9, 10, 11]]

each_form = pytest.mark.parametrize("form", FORMS)


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
        real = rloo_engine.clip_and_step

        def spy(optimizer, parameters, max_norm):
            parameters = list(parameters)
            self.gradients.append(torch.cat([p.grad.flatten().clone() for p in parameters]))
            self.policies.append(copy.deepcopy(policy))
            return real(optimizer, parameters, max_norm)

        monkeypatch.setattr(rloo_engine, "clip_and_step", spy)


# The gradients


def response_log_probs(policy: GPT, rollout: Rollout, row: int) -> list[torch.Tensor]:
    """log pi of each token of one response, from an unpadded forward of that row alone."""
    prompt = LETTERS.encode(rollout.records[row].prompt)
    response = rollout.response_tokens[row][rollout.response_mask[row]].tolist()
    log_probs = policy(torch.tensor([prompt + response]))[0].log_softmax(-1)
    return [log_probs[len(prompt) - 1 + t, token] for t, token in enumerate(response)]


def reinforce_gradient(
    policy: GPT, rollout: Rollout, rows: list[int], values: list[float], divisor: float
) -> torch.Tensor:
    """-1/divisor sum_i A_i sum_t grad log pi(y_t), A_i = value minus the mean of the other three."""
    policy = copy.deepcopy(policy)
    policy.zero_grad(set_to_none=True)
    loss = torch.zeros(())
    for i in rows:
        others = [values[j] for j in range(i // 4 * 4, i // 4 * 4 + 4) if j != i]
        advantage = values[i] - sum(others) / 3
        loss = loss - advantage * sum(response_log_probs(policy, rollout, i)) / divisor
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


def assert_equal_gradients(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Within `tolerance` of the largest component."""
    largest = float(expected.abs().max())
    assert largest > 1e-3
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * largest)


def given_halves(monkeypatch) -> None:
    halves = [torch.tensor(half) for half in HALVES]
    monkeypatch.setattr(rloo_engine, "minibatches", lambda *args: halves)


@each_form
@pytest.mark.parametrize("kl_coef", [0.0, 0.5])
def test_the_first_gradient_is_that_of_reinforce(monkeypatch, form, kl_coef):
    """In float64, for any kl_coef: at pi = pi_ref every k1 is 0. The minibatches are given.

    The token loss divides by the tokens of its minibatch, the others by the rows.
    """
    given_halves(monkeypatch)
    policy, reward = small_gpt().double(), Noted(DIVERSE)
    updates = Updates(monkeypatch, policy)
    run(policy, reward, steps=1, kl_coef=kl_coef, loss=form, micro_batch_size=3)
    (rollout,) = reward.rollouts
    assert len(set(rollout.lengths.tolist())) > 1, "all responses are of one length"
    divisor = int(rollout.lengths[HALVES[0]].sum()) if form == "token" else 8
    values = DIVERSE(rollout).tolist()
    expected = reinforce_gradient(updates.policies[0], rollout, HALVES[0], values, divisor)
    assert_equal_gradients(updates.gradients[0], expected, 2e-7)  # rewards are float32


def test_the_second_gradient_has_no_ratio(monkeypatch):
    """The paper takes two optimizer steps a batch: plain REINFORCE of the moved policy again."""
    given_halves(monkeypatch)
    policy, reward = small_gpt().double(), Noted(DIVERSE)
    updates = Updates(monkeypatch, policy)
    run(policy, reward, steps=1)
    (rollout,), values = reward.rollouts, DIVERSE(reward.rollouts[0]).tolist()
    start, moved = updates.policies
    expected = reinforce_gradient(moved, rollout, HALVES[1], values, 8)
    assert_equal_gradients(updates.gradients[1], expected, 2e-7)
    before = reinforce_gradient(start, rollout, HALVES[1], values, 8)
    assert float((before - expected).abs().max()) > 0.01 * float(expected.abs().max())


def test_the_kl_of_the_response_is_part_of_its_reward(monkeypatch):
    """At the third step the policy has left the reference: R - kl_coef (log pi - log pi_ref)(y|x)."""
    policy, reward = small_gpt().double(), Noted(SHARE_OF_A)
    start = copy.deepcopy(policy)
    updates = Updates(monkeypatch, policy)
    run(policy, reward, steps=3, kl_coef=0.3, lr=3e-2)
    rollout, sampler = reward.rollouts[2], updates.policies[2]
    values, plain = [], SHARE_OF_A(rollout).tolist()
    for i in range(16):
        with torch.no_grad():
            k1 = sum(response_log_probs(sampler, rollout, i))
            k1 -= sum(response_log_probs(start, rollout, i))
        values.append(plain[i] - 0.3 * float(k1))
    expected = reinforce_gradient(sampler, rollout, list(range(16)), values, 16)
    assert_equal_gradients(updates.gradients[2], expected, 1e-5)  # the sampler's are float32
    without = reinforce_gradient(sampler, rollout, list(range(16)), plain, 16)
    assert float((without - expected).abs().max()) > 0.05 * float(expected.abs().max())


@each_form
def test_at_the_first_step_ratio_is_one_and_kl_is_zero(form):
    (row,) = run(small_gpt(), steps=1, minibatches=2, loss=form)
    assert row["ratio_error_at_start"] < 1e-5
    assert abs(row["kl"]) < 1e-6 and abs(row["kl_k3"]) < 1e-6
    (row,) = run(small_gpt(), steps=1, loss=form)  # one minibatch: the whole update is at ratio 1
    assert row["clip_high_fraction"] == row["clip_low_fraction"] == 0
    assert abs(row["approx_kl"]) < 1e-6 and row["grad_norm"] > 0.01


# The advantages and the losses


def test_advantages_subtract_the_others_of_the_group_after_the_kl():
    """R = 1, 0.5, 0 and the KL of the responses 2, 0, -1, over tokens of which padding is none."""
    old = torch.tensor([[-1.0, -2, 7], [-4, 7, 7], [-3, -1, -1]])
    reference = torch.tensor([[-2.0, -3, -9], [-4, -9, -9], [-1, -2, -1]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()
    config = replace(CONFIG, group_size=3)
    rewards = torch.tensor([1.0, 0.5, 0.0])
    found = rloo_advantages(config, rewards, old, reference, mask, 0.1)
    assert found.tolist() == [[pytest.approx(a, abs=1e-6)] for a in (0.5, 0.05, -0.55)]
    without = rloo_advantages(config, rewards, old, None, mask, 0.0)
    assert without.tolist() == [[pytest.approx(a, abs=1e-6)] for a in (0.75, 0.0, -0.75)]
    equal = rloo_advantages(config, torch.full((3,), 0.7), old, reference, mask, 0.1)
    # -beta (k_i - mean of the other k): equal rewards leave the KL, the nearest response gains
    assert equal.tolist() == [[pytest.approx(a, abs=1e-6)] for a in (-0.25, 0.05, 0.2)]
    nothing = rloo_advantages(config, torch.full((3,), 0.7), old, None, mask, 0.0)
    assert nothing.tolist() == [[0.0], [0.0], [0.0]]


def test_normalised_advantages_have_the_standard_deviation_of_the_batch():
    """One factor for all groups, though their spreads differ by ten."""
    rewards = torch.tensor([1.0, 2, 4, 10, 20, 60])
    log_probs = -torch.ones(6, 2)
    mask = torch.ones(6, 2, dtype=torch.bool)
    config = replace(CONFIG, group_size=3)
    plain = rloo_advantages(config, rewards, log_probs, None, mask, 0.0)
    config = replace(config, normalize_advantages=True)
    normalised = rloo_advantages(config, rewards, log_probs, None, mask, 0.0)
    values = [-2.0, -0.5, 2.5, -30.0, -15.0, 45.0]
    assert plain[:, 0].tolist() == pytest.approx(values)
    spread = statistics.stdev(values)
    assert normalised[:, 0].tolist() == pytest.approx([value / spread for value in values])


RATIOS = torch.tensor([[1.0, 2.0, 0.5, 9], [0.5, 2.0, 1.1, 9], [1.3, 1.1, 9, 9], [9, 9, 9, 9]])
LENGTHS = (3, 2, 2, 0)
SIGNED = [1.5, -0.5, 2.0, 9.0]


def given_tokens() -> tuple[torch.Tensor, ...]:
    """(log_probs, old_log_probs, advantages, mask) with the ratios above; the last row is empty."""
    old = torch.tensor([[-2.0], [-1.5], [-0.5], [-1.0]]).expand(4, 4)
    mask = torch.arange(4) < torch.tensor(LENGTHS)[:, None]
    return old + RATIOS.log(), old, torch.tensor(SIGNED)[:, None], mask


def where_clipped(config, new, old, advantages, mask) -> torch.Tensor:
    """(n, T) bool: the tokens at which the engine's meter counts the clip."""
    meter = rloo_engine.update_meter(config)
    if meter.clip is None:
        return torch.zeros_like(mask)
    return clip_acted(meter.ratio(new, old, mask), advantages, *meter.clip).expand_as(mask)


def pessimistic(ratio: float, advantage: float) -> float:
    """-min(ratio A, clip(ratio, 0.8, 1.3) A)."""
    return -min(ratio * advantage, min(max(ratio, 0.8), 1.3) * advantage)


def test_the_sequence_loss_by_loops():
    """-1/rows sum_i A_i sum_t log pi: no ratio, no length, nothing clipped."""
    new, old, advantages, mask = given_tokens()
    expected = 0.0
    for i in range(4):
        for t in range(LENGTHS[i]):
            expected -= SIGNED[i] * float(new[i, t]) / 5
    config = replace(CONFIG, clip_high=0.3)
    loss = rloo_loss(config, new, old, advantages, mask, rows=5, tokens=11)
    clipped = where_clipped(config, new, old, advantages, mask)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert not clipped.any()


def test_the_clipped_loss_by_loops():
    """One ratio for the response, the product over its tokens: 1, 1 and 1.43."""
    new, old, advantages, mask = given_tokens()
    products = [1.0 * 2.0 * 0.5, 0.5 * 2.0, 1.3 * 1.1]
    expected = sum(pessimistic(products[i], SIGNED[i]) / 5 for i in range(3))
    config = replace(CONFIG, loss="clipped", clip_high=0.3)
    loss = rloo_loss(config, new, old, advantages, mask, rows=5, tokens=11)
    clipped = where_clipped(config, new, old, advantages, mask)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert clipped[mask].tolist() == [False] * 5 + [True] * 2


def test_the_token_loss_by_loops():
    """A ratio for each token, divided by the tokens of the minibatch."""
    new, old, advantages, mask = given_tokens()
    expected = sum(
        pessimistic(float(RATIOS[i, t]), SIGNED[i]) / 11
        for i in range(3)
        for t in range(LENGTHS[i])
    )
    config = replace(CONFIG, loss="token", clip_high=0.3)
    loss = rloo_loss(config, new, old, advantages, mask, rows=5, tokens=11)
    clipped = where_clipped(config, new, old, advantages, mask)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert clipped[mask].tolist() == [False, True, False, True, False, False, False]


def test_worked_numbers():
    """log pi(y|x) = -3, -4, -5 with A = 0.5, 0.05, -0.55: -0.35; then a clipped ratio of responses."""
    advantages = torch.tensor([[0.5], [0.05], [-0.55]])
    old = torch.tensor([[-1.0, -2], [-3, -1], [-5, 0]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 0]]).bool()
    loss = rloo_loss(CONFIG, old, old, advantages, mask, rows=3, tokens=5)
    assert float(loss) == pytest.approx(-0.35)
    new = old + torch.tensor([[0.3, -0.2], [-0.1, -0.2], [-0.1, 9]])
    config = replace(CONFIG, loss="clipped")
    loss = rloo_loss(config, new, old, advantages, mask, rows=3, tokens=5)
    clipped = where_clipped(config, new, old, advantages, mask)
    assert float(loss) == pytest.approx(-0.030655, abs=1e-6)
    assert not clipped.any()


def test_at_the_old_policy_the_three_gradients_agree():
    """Sequence and clipped are equal; the token loss is their rows / tokens."""
    _, old, advantages, mask = given_tokens()
    gradients = {}
    for form in FORMS:
        new = old.clone().requires_grad_()
        config = replace(CONFIG, loss=form)
        loss = rloo_loss(config, new, old, advantages, mask, rows=3, tokens=7)
        (gradients[form],) = torch.autograd.grad(loss, new)
    assert float(gradients["sequence"][mask].abs().min()) > 0.1
    torch.testing.assert_close(gradients["clipped"], gradients["sequence"])
    torch.testing.assert_close(gradients["token"], gradients["sequence"] * 3 / 7)


def test_the_ratio_of_a_response_saturates_before_its_tokens():
    """100 tokens that each moved by 0.02 nats: the response's ratio is e^2, no token's above 1.03."""
    old = torch.full((1, 100), -1.0)
    arguments = (old + 0.02, old, torch.ones(1, 1), torch.ones(1, 100, dtype=torch.bool))
    clipped = {form: where_clipped(replace(CONFIG, loss=form), *arguments) for form in FORMS}
    assert clipped["clipped"].all() and not clipped["token"].any()
    loss = rloo_loss(replace(CONFIG, loss="clipped", clip_high=9), *arguments, rows=1, tokens=100)
    assert -float(loss) == pytest.approx(math.exp(2), rel=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.7, -3.0])
def test_a_constant_reward_teaches_nothing(value):
    """0.7 has a mean over four that float32 rounds: no noise may become an advantage."""
    policy = small_gpt()
    before = weights(policy)
    rows = run(policy, RuleReward(lambda *_: value, "constant"), steps=2, kl_coef=0.0)
    assert torch.equal(weights(policy), before)
    assert [row["zero_spread_groups"] for row in rows] == [1, 1]
    assert [row["grad_norm"] for row in rows] == [0, 0]


# Learning


@each_form
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_it_learns_a_toy_reward_and_unlearns_it_with_the_sign_flipped(form, sign):
    reward = RuleReward(lambda record, text, ended: sign * text.count("a") / 8, "toy")
    rows = run(small_gpt(), reward, group_size=8, minibatches=2, loss=form)
    last = statistics.mean(sign * row["reward"] for row in rows[-3:])
    assert 0.03 < sign * rows[0]["reward"] < 0.15  # one symbol of ten, in at most eight places
    assert last > 0.6 if sign > 0 else last < 0.02


def test_a_stronger_kl_penalty_stays_nearer():
    near, far = (run(small_gpt(), group_size=8, kl_coef=c)[-1] for c in (0.5, 0.0001))
    assert abs(near["kl"]) < 0.5 * far["kl"]
    assert near["reward"] < far["reward"]


def test_only_the_losses_with_a_ratio_take_several_updates_and_count_clips():
    for form in ("clipped", "token"):
        (row,) = run(small_gpt(), steps=1, updates_per_batch=4, lr=3e-2, loss=form)
        assert row["ratio_error_at_start"] < 1e-5 and row["approx_kl"] > 1e-3
        assert row["clip_high_fraction"] > 0 and row["clip_low_fraction"] > 0
    (row,) = run(small_gpt(), steps=1, minibatches=4, lr=3e-2)
    assert row["approx_kl"] > 1e-3
    assert row["clip_high_fraction"] == row["clip_low_fraction"] == 0


def test_minibatches_keep_groups_together(monkeypatch):
    seen: list[list[int]] = []
    real = rloo_engine.micro_batches

    def spy(sequences, rows, size):
        seen.append(rows.tolist())
        return real(sequences, rows, size)

    monkeypatch.setattr(rloo_engine, "micro_batches", spy)
    run(small_gpt(), steps=2, minibatches=2)
    assert [len(rows) for rows in seen] == [8] * 4
    for rows in seen:
        assert all(rows[i : i + 4] == list(range(rows[i], rows[i] + 4)) for i in (0, 4))
    assert sorted(seen[0] + seen[1]) == list(range(16))


# Micro-batches


@each_form
@pytest.mark.parametrize("minibatches", [1, 3])
def test_micro_batches_do_not_change_the_update(form, minibatches):
    """In float64: the sums are regrouped, nothing else."""
    ends, rows = [], []
    for size in (3, 64):
        policy = small_gpt().double()
        options = dict(steps=2, micro_batch_size=size, minibatches=minibatches, loss=form)
        rows.append(run(policy, DIVERSE, **options)[0])
        ends.append(weights(policy))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)
    for key in ("entropy", "loss", "grad_norm", "approx_kl"):
        assert rows[0][key] == pytest.approx(rows[1][key], rel=1e-5, abs=1e-3), key


# Frozen models


def test_without_a_kl_no_reference_is_asked(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("kl_coef is 0, but a reference was scored")

    monkeypatch.setattr(rloo_engine, "rollout_log_probs", refuse)
    (row,) = run(small_gpt(), steps=1, kl_coef=0.0)
    assert "kl" not in row and "kl_k3" not in row
    with pytest.raises(AssertionError, match="a reference was scored"):
        run(small_gpt(), steps=1)


@pytest.mark.parametrize("kl_coef", [0.0, 0.02])
def test_without_a_kl_the_result_is_the_same_whatever_the_reference(monkeypatch, kl_coef):
    def spoiled(policy: GPT) -> GPT:
        reference = copy.deepcopy(policy)
        for parameter in reference.parameters():
            parameter.data.mul_(3.0)
        return reference

    plain, other = small_gpt(), small_gpt()
    run(plain, steps=2, kl_coef=kl_coef)
    monkeypatch.setattr(rloo_engine, "copy", SimpleNamespace(deepcopy=spoiled))
    run(other, steps=2, kl_coef=kl_coef)
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


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path):
    """Policy, reference, optimizer, KL coefficient and both generators come back."""
    options = dict(steps=7, minibatches=2, checkpoint_every=2, warmup=4)
    options |= dict(kl_controller="adaptive", kl_horizon=160, kl_target=0.01)
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


def test_what_cannot_work_is_refused():
    with pytest.raises(ValueError, match="group_size must be at least 2"):
        replace(CONFIG, group_size=1)
    with pytest.raises(ValueError, match="updates_per_batch must be 1.*--loss clipped"):
        replace(CONFIG, updates_per_batch=2)
    assert replace(CONFIG, minibatches=4).minibatches == 4  # new samples, disjoint rows
    for form in ("clipped", "token"):
        assert replace(CONFIG, updates_per_batch=2, loss=form).loss == form


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

    rows = run(small_gpt(), stop_kl=4.0, group_size=8, kl_coef=0.0001, validate=validate)
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


def test_the_adaptive_controller_moves_the_penalty():
    """KL starts at 0, below the target: the coefficient falls by a fifth of responses / horizon."""
    options = dict(steps=3, kl_controller="adaptive", kl_horizon=160, kl_target=1e3)
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
    params = SamplingParams(max_new_tokens=8)
    validate = Validation(LETTERS, PROMPTS, params, SHARE_OF_A, gold=SHARE_OF_A)
    (row,) = run(small_gpt(), steps=1, eval_every=1, validate=validate)
    assert set(row) == documented("Every engine") | documented("RLOO")


# Other penalties than k1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # sums over the tokens: k1 2, 0, -1; |k1| 2, 2, 1; k1^2 / 2 1, 1, 0.5
        ("k1", [0.8, 0.5, 0.1]),
        ("absolute", [0.8, 0.3, -0.1]),
        ("squared", [0.9, 0.4, -0.05]),
    ],
)
def test_the_named_penalty_is_taken_off_the_reward(name, expected):
    k1 = torch.tensor([[1.0, 1.0, 50.0], [1.0, -1.0, 50.0], [-1.0, 50.0, 50.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 0, 0]]).bool()
    reference = torch.full((3, 3), -2.0)
    config = replace(CONFIG, group_size=3, kl_penalty=name)
    rewards = torch.tensor([1.0, 0.5, 0.0])
    found = rloo_advantages(config, rewards, reference + k1, reference, mask, 0.1)
    mean = sum(expected) / 3
    wanted = [1.5 * (value - mean) for value in expected]
    assert found[:, 0].tolist() == pytest.approx(wanted, abs=1e-6)


def test_the_meter_knows_what_the_clip_acts_on():
    """A ratio of 1.5 and one of 0.7 in a response: its own, 1.05, is clipped nowhere."""
    log_probs, mask = torch.tensor([[1.5, 0.7]]).log(), torch.ones(1, 2, dtype=torch.bool)
    clipped = {}
    for form in FORMS:
        meter = rloo_engine.update_meter(replace(CONFIG, loss=form))
        scores = TokenScores(log_probs, torch.zeros(1, 2))
        batch = SimpleNamespace(response_mask=mask)
        meter.add_tokens(scores, torch.zeros(1, 2), torch.ones(1, 1), batch)
        clipped[form] = meter.metrics()["clip_high_fraction"]
    assert clipped == {"sequence": 0.0, "clipped": 0.0, "token": 0.5}
