"""GRPO end to end on a GPT of two layers: the first step is exact, and a toy reward is learned."""

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
from gpt.common import MetricLog, UserError, saved_step
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import build_tokenizer
from reward_model.model import RewardModel
from rl import grpo_engine
from rl.batches.rollout import Rollout
from rl.equations.kl import k3
from rl.grpo_engine import GRPOConfig, grpo_loss, train
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.training.evaluation import Validation

LETTERS = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})  # EOS 8, padding 9
PROMPTS = [PromptRecord(text) for text in ("ab", "c", "hgfed", "aaa", "fa", "gh", "bbbb", "e")]
CONFIG = GRPOConfig(
    steps=20, prompts_per_step=4, group_size=4, minibatches=1, micro_batch_size=64, lr=1e-2,
    warmup=1, kl_coef=0.02, stop_kl=None, max_new_tokens=8, eval_every=100, max_norm=1e9,
    checkpoint_every=1000,
)  # fmt: skip
SHARE_OF_A = RuleReward(lambda record, text, ended: text.count("a") / 8, "share of a")
# A reward that separates any two responses.
DIVERSE = RuleReward(lambda record, text, ended: sum(ord(c) * i for i, c in enumerate(text, 1)), "")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


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


@pytest.fixture
def gradients(monkeypatch) -> list[torch.Tensor]:
    """The flat gradient of each optimizer step, as it reaches the clip."""
    seen: list[torch.Tensor] = []
    real = grpo_engine.clip_and_step

    def spy(optimizer, parameters, max_norm):
        parameters = list(parameters)
        seen.append(torch.cat([parameter.grad.flatten().clone() for parameter in parameters]))
        return real(optimizer, parameters, max_norm)

    monkeypatch.setattr(grpo_engine, "clip_and_step", spy)
    return seen


# The first step


def test_at_the_first_step_ratio_is_one_and_kl_is_zero():
    (row,) = run(small_gpt(), steps=1, minibatches=2)
    assert row["ratio_error_at_start"] < 1e-5
    assert abs(row["kl"]) < 1e-6 and abs(row["kl_k3"]) < 1e-6
    (row,) = run(small_gpt(), steps=1)  # one minibatch: the whole update is at ratio 1
    assert row["clip_high_fraction"] == row["clip_low_fraction"] == 0
    assert abs(row["approx_kl"]) < 1e-6
    # -A averaged over groups is 0, and so is beta * k3: GRPO's loss says nothing, its reward does.
    assert abs(row["loss"]) < 1e-5 and row["grad_norm"] > 0.01


def reinforce_gradient(policy: GPT, rollout: Rollout, rows: list[int], values: list[float]):
    """-1/n sum_i A_i 1/L_i sum_t grad log pi(y_t), row by row, unpadded; A by `statistics`."""
    policy = copy.deepcopy(policy)
    loss = torch.zeros(())
    for i in rows:
        group = values[i // 4 * 4 : i // 4 * 4 + 4]
        spread = statistics.stdev(group)
        advantage = (values[i] - statistics.mean(group)) / (spread + 1e-4) if spread else 0.0
        prompt = LETTERS.encode(rollout.records[i].prompt)
        response = rollout.response_tokens[i][rollout.response_mask[i]].tolist()
        log_probs = policy(torch.tensor([prompt + response]))[0].log_softmax(-1)
        chosen = [log_probs[len(prompt) - 1 + t, token] for t, token in enumerate(response)]
        loss = loss - advantage * sum(chosen) / len(response) / len(rows)
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


@pytest.mark.parametrize("kl_coef", [0.0, 0.5])
def test_the_first_gradient_is_that_of_reinforce(monkeypatch, gradients, kl_coef):
    """For any kl_coef: at pi = pi_ref the gradient of k3 is 0. The minibatches are given."""
    halves = [[4, 5, 6, 7, 12, 13, 14, 15], [0, 1, 2, 3, 8, 9, 10, 11]]
    monkeypatch.setattr(
        grpo_engine, "minibatches", lambda *args: [torch.tensor(half) for half in halves]
    )
    start, reward = small_gpt(), Noted(DIVERSE)
    run(copy.deepcopy(start), reward, steps=1, kl_coef=kl_coef)
    (rollout,) = reward.rollouts
    assert len(set(rollout.lengths.tolist())) > 1, "all responses are of one length"
    values = DIVERSE(rollout).tolist()
    expected = reinforce_gradient(start, rollout, halves[0], values)
    assert float(expected.abs().max()) > 0.01
    torch.testing.assert_close(gradients[0], expected, rtol=1e-4, atol=1e-6)
    later = reinforce_gradient(start, rollout, halves[1], values)  # the policy has moved since
    assert float((gradients[1] - later).abs().max()) > 1e-4


def test_the_loss_adds_the_kl_inside_the_same_mean():
    """1/rows sum_i 1/L_i sum_t (-min(...) + beta k3), by loops; empty rows add nothing.

    Ratios inside and outside of 0.8 to 1.3, for either sign of the advantage.
    """
    ratio = torch.tensor([[1.0, 2.0, 0.5, 9], [0.5, 2.0, 1.1, 9], [9, 9, 9, 9]])
    old = torch.full((3, 4), -2.0)
    new, reference = old + ratio.log(), old + 0.3
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    advantages = [1.5, -0.5, 9.0]
    config = replace(CONFIG, clip_low=0.2, clip_high=0.3)
    surrogate = penalty = 0.0
    for i, length in ((0, 3), (1, 2)):
        for t in range(length):
            rho, delta = float(ratio[i, t]), float(reference[i, t] - new[i, t])
            clipped = min(max(rho, 0.8), 1.3)
            surrogate -= min(rho * advantages[i], clipped * advantages[i]) / length / 5
            penalty += 0.4 * (math.exp(delta) - delta - 1) / length / 5
    given = (new, old, reference, torch.tensor(advantages)[:, None], mask)
    loss, was_clipped = grpo_loss(config, *given, kl_coef=0.4, rows=5)
    assert float(loss) == pytest.approx(surrogate + penalty, rel=1e-5)
    assert was_clipped[mask].tolist() == [False, True, False, True, False]
    without, _ = grpo_loss(config, new, old, None, *given[3:], kl_coef=0.4, rows=5)
    assert float(without) == pytest.approx(surrogate, rel=1e-5)


def test_groups_without_spread_contribute_the_kl_alone():
    """Equal rewards in the second group: its rows add beta * k3, in value and in gradient."""
    new = -torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    new.requires_grad_()
    old, reference = new.detach() - 0.05, new.detach() - 0.3
    mask = torch.ones(4, 3, dtype=torch.bool)
    advantages = grpo_engine.group_advantages(torch.tensor([0.0, 1, 0.7, 0.7]), 2)
    loss, _ = grpo_loss(CONFIG, new, old, reference, advantages, mask, kl_coef=0.02, rows=4)
    (gradient,) = torch.autograd.grad(loss, new)
    (alone,) = torch.autograd.grad(0.02 * k3(new, reference).sum() / 12, new)
    torch.testing.assert_close(gradient[2:], alone[2:])
    assert float((gradient[:2] - alone[:2]).abs().min()) > 1e-3


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


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_it_learns_a_toy_reward_and_unlearns_it_with_the_sign_flipped(sign):
    reward = RuleReward(lambda record, text, ended: sign * text.count("a") / 8, "toy")
    rows = run(small_gpt(), reward, group_size=8, minibatches=2)
    last = statistics.mean(sign * row["reward"] for row in rows[-3:])
    assert 0.03 < sign * rows[0]["reward"] < 0.15  # one symbol of ten, in at most eight places
    assert last > 0.6 if sign > 0 else last < 0.02


def test_what_was_learned_shows_in_kl_entropy_and_length():
    """Longer is better here: eight letters without an EOS."""
    reward = RuleReward(lambda record, text, ended: len(text) / 8, "length")
    rows = run(small_gpt(), reward, group_size=8, minibatches=2, kl_coef=0.0)
    assert rows[-1]["eos_rate"] < 0.2 < rows[0]["eos_rate"]
    assert rows[-1]["response_length"] > rows[0]["response_length"] + 1
    assert "kl" not in rows[-1]
    rows = run(small_gpt(), SHARE_OF_A, group_size=8)
    assert rows[-1]["kl"] > 0.5 and rows[-1]["kl_k3"] > 0.1
    assert rows[-1]["entropy"] < rows[0]["entropy"] - 0.5


def test_a_stronger_kl_penalty_stays_nearer():
    near, far = (run(small_gpt(), group_size=8, kl_coef=c)[-1] for c in (2.0, 0.0001))
    assert abs(near["kl"]) < 0.5 * far["kl"]
    assert near["reward"] < far["reward"]


def test_several_updates_move_the_policy_within_one_batch():
    """The old log-probs stay those of the sampler: the ratio leaves 1 only after an update."""
    (row,) = run(small_gpt(), steps=1, updates_per_batch=4, lr=3e-2)
    assert row["ratio_error_at_start"] < 1e-5
    assert row["approx_kl"] > 1e-3
    assert row["clip_high_fraction"] > 0 and row["clip_low_fraction"] > 0


def test_every_prompt_is_asked_once_an_epoch():
    """Eight prompts, four a step: two steps are one epoch, each with an order of its own."""
    reward = Noted(SHARE_OF_A)
    run(small_gpt(), reward, steps=4)
    asked = [[record.prompt for record in rollout.records[::4]] for rollout in reward.rollouts]
    first, second = asked[0] + asked[1], asked[2] + asked[3]
    assert sorted(first) == sorted(second) == sorted(record.prompt for record in PROMPTS)
    assert first != second


# Micro-batches


@pytest.mark.parametrize("minibatches", [1, 3])
def test_micro_batches_do_not_change_the_update(gradients, minibatches):
    """In float64: the sums are regrouped, nothing else."""
    ends = []
    for size in (4, 64):
        policy = small_gpt().double()
        run(policy, DIVERSE, steps=2, micro_batch_size=size, minibatches=minibatches)
        ends.append(weights(policy))
    half = len(gradients) // 2
    for a, b in zip(gradients[:half], gradients[half:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)


def test_neither_do_they_in_float32(gradients):
    for size in (3, 64):
        run(small_gpt(), DIVERSE, steps=1, micro_batch_size=size)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)


def test_the_metrics_do_not_depend_on_micro_batches():
    few, many = (run(small_gpt(), DIVERSE, steps=1, micro_batch_size=size) for size in (64, 3))
    for key in ("entropy", "loss", "grad_norm", "approx_kl"):
        assert many[0][key] == pytest.approx(few[0][key], abs=1e-5), key


# The reference and other frozen models


def test_without_a_kl_no_reference_is_asked(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("kl_coef is 0, but a reference was scored")

    monkeypatch.setattr(grpo_engine, "rollout_log_probs", refuse)
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
    monkeypatch.setattr(grpo_engine, "copy", SimpleNamespace(deepcopy=spoiled))
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
    """Also when the policy arrives in training mode: ratios would leave 1 before any update."""
    torch.manual_seed(0)
    plain, dropped = small_gpt(), small_gpt(dropout=0.5).train()
    a, b = run(plain, steps=2), run(dropped, steps=2)
    assert torch.equal(weights(plain), weights(dropped))
    assert [row["entropy"] for row in a] == [row["entropy"] for row in b]
    assert b[1]["ratio_error_at_start"] < 1e-5


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
    """Policy, reference, optimizer and both generators come back; the reference is the old start."""
    options = dict(steps=7, minibatches=2, updates_per_batch=2, checkpoint_every=2, warmup=4)
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


def test_a_resumed_log_keeps_the_steps_before_the_saved_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    options = dict(steps=6, checkpoint_every=2, folder=tmp_path)
    with pytest.raises(Crash):
        run(small_gpt(), log=CrashingLog(6, path=path), **options)
    assert len(path.read_text().splitlines()) == 5
    log = MetricLog(6, path=path, start=saved_step(tmp_path))
    rows = run(small_gpt(), log=log, resume=True, **options)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert len(path.read_text().splitlines()) == 6


def test_resuming_with_another_model_is_refused(tmp_path):
    run(small_gpt(), steps=1, checkpoint_every=1, folder=tmp_path)
    other = GPT(GPTConfig(LETTERS.n_vocab, 16, n_layer=1, n_head=2, n_embd=32)).initialize()
    with pytest.raises(UserError, match="does not fit this run.*--resume"):
        run(other, folder=tmp_path, resume=True)


# Refusals and stops


def test_a_group_of_one_is_refused():
    policy = small_gpt()
    before = weights(policy)
    with pytest.raises(ValueError, match="group_size must be at least 2"):
        run(policy, group_size=1)
    assert torch.equal(weights(policy), before)


def test_a_broken_reward_is_refused_or_replaced_and_counted():
    reward = RuleReward(lambda record, text, ended: float("nan" if ended else len(text)), "broken")
    with pytest.raises(ValueError, match="not finite"):
        run(small_gpt(), reward, steps=1)
    policy = small_gpt()
    (row,) = run(policy, reward, steps=1, non_finite_reward=0.0)
    assert row["non_finite_rewards"] == pytest.approx(16 * row["eos_rate"]) and row["eos_rate"] > 0
    assert weights(policy).isfinite().all()
    assert run(small_gpt(), steps=1)[0]["non_finite_rewards"] == 0


def test_stop_kl_ends_the_run_with_a_validation():
    validated: list[int] = []

    def validate(policy: GPT, reference: GPT, step: int) -> dict[str, float]:
        validated.append(step)
        return {}

    options = dict(group_size=8, kl_coef=0.0001, validate=validate)
    rows = run(small_gpt(), stop_kl=4.0, **options)
    stopped = rows[-1]["step"]
    assert 5 < stopped < 20 and validated == [stopped]
    assert statistics.mean(row["kl"] for row in rows[-5:]) > 4.0
    assert statistics.mean(row["kl"] for row in rows[-6:-1]) <= 4.0
    assert run(small_gpt(), stop_kl=1e9, **options)[-1]["step"] == 20


def test_gradients_are_clipped_before_the_step():
    """Adam divides the scale out, so the moments show what it was given."""
    seen: list[float] = []

    class Spy(torch.optim.AdamW):
        def step(self, *args, **options):
            grads = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
            seen.append(float(torch.cat(grads).norm()))
            return super().step(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim, "AdamW", Spy)
        (row,) = run(small_gpt(), DIVERSE, steps=1, max_norm=0.01)
    assert row["grad_norm"] > 0.02
    assert seen == [pytest.approx(0.01, rel=1e-3)]


def test_warm_up_is_linear_and_then_constant():
    rows = run(small_gpt(), steps=5, warmup=4, lr=4e-3)
    assert [row["lr"] for row in rows] == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3, 4e-3])
    assert run(small_gpt(), steps=1, warmup=0, lr=4e-3)[0]["lr"] == 4e-3


def test_the_temperature_is_that_of_sampler_and_scorer():
    (row,) = run(small_gpt(), steps=1, temperature=0.5)
    assert row["ratio_error_at_start"] < 1e-5
    hot, cold = (run(small_gpt(), steps=1, temperature=t)[0]["entropy"] for t in (2.0, 0.05))
    assert cold < hot - 0.1


def test_bfloat16_scores_old_and_new_alike():
    (row,) = run(small_gpt(), steps=1, precision="bfloat16")
    assert row["ratio_error_at_start"] < 0.02


# The document


def documented(heading: str) -> set[str]:
    """The keys of the tables under one heading of docs/metrics.md: the first cell of each row."""
    text = DOCUMENT.read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return set(re.findall(r"^\| `([^`]+)` \|", body, re.M))


def test_logged_keys_are_those_documented():
    params = SamplingParams(max_new_tokens=8)
    validate = Validation(LETTERS, PROMPTS, params, SHARE_OF_A, gold=SHARE_OF_A)
    (row,) = run(small_gpt(), steps=1, eval_every=1, validate=validate)
    assert set(row) == documented("Every engine")


def test_the_adaptive_controller_moves_the_penalty():
    """KL starts at 0, below the target: the coefficient falls by a fifth of responses / horizon."""
    options = dict(steps=3, kl_controller="adaptive", kl_horizon=160, kl_target=1e3)
    rows = run(small_gpt(), **options)
    assert [row["kl_coef"] for row in rows] == pytest.approx([0.02, 0.02 * 0.98, 0.02 * 0.98**2])
    rows = run(small_gpt(), **(options | dict(kl_target=1e-4, steps=10)))
    assert rows[-2]["kl"] > 1e-4 and rows[-1]["kl_coef"] > rows[-2]["kl_coef"]
