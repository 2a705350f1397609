"""GRPO with process supervision: advantages per token, and plain GRPO where there is one step."""

from __future__ import annotations

import copy
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from data import reviews, sums
from data.records import PromptRecord
from gpt.common import MetricLog, UserError, saved_step
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import build_tokenizer, load_tokenizer
from reward_model.model import RewardModel
from rl import grpo_engine, grpo_process_engine
from rl.batches.rollout import Rollout
from rl.grpo_process_engine import (
    ProcessGRPOConfig,
    open_step_rewards,
    process_grpo_loss,
    step_metrics,
    train,
)
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.rewards.step_rewards import CheckedSteps, OutcomeSteps, RewardModelSteps, StepRewards
from rl.training.evaluation import Validation
from rl.training.setup import Task

LETTERS = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})  # EOS 8, padding 9
PROMPTS = [PromptRecord(text) for text in ("ab", "c", "hgfed", "aaa", "fa", "gh", "bbbb", "e")]
FIELDS = dict(
    steps=20, prompts_per_step=4, group_size=4, minibatches=1, micro_batch_size=64, lr=1e-2,
    warmup=1, kl_coef=0.02, stop_kl=None, max_new_tokens=8, eval_every=100, max_norm=1e9,
    checkpoint_every=1000,
)  # fmt: skip
CONFIG = ProcessGRPOConfig(**FIELDS)
SHARE_OF_A = RuleReward(lambda record, text, ended: text.count("a") / 8, "share of a")
# A reward that separates any two responses.
DIVERSE = RuleReward(lambda record, text, ended: sum(ord(c) * i for i, c in enumerate(text, 1)), "")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


class LetterSteps:
    """A step ends at every "b" and at the last token; `worth(letters of the step)` is its reward."""

    name = "letters"

    def __init__(self, worth=lambda letters: letters.count("a") - 0.3 * len(letters)) -> None:
        self.worth = worth

    def __call__(self, rollout: Rollout, rewards: torch.Tensor) -> StepRewards:
        T = rollout.response_mask.shape[1]
        values, ends = torch.zeros(len(rollout), T), torch.zeros(len(rollout), T).long()
        mask = torch.zeros(len(rollout), T, dtype=torch.bool)
        for i in range(len(rollout)):
            for j, (end, letters) in enumerate(self.steps_of(rollout, i)):
                values[i, j], ends[i, j], mask[i, j] = self.worth(letters), end, True
        return StepRewards(values, ends, mask)

    def steps_of(self, rollout: Rollout, row: int) -> list[tuple[int, str]]:
        """(last token, letters) of each step of one response; 8 and 9 are no letters."""
        tokens = rollout.response_tokens[row][rollout.response_mask[row]].tolist()
        steps, letters = [], ""
        for t, token in enumerate(tokens):
            letters += "abcdefgh"[token] if token < 8 else ""
            if token == 1 or t == len(tokens) - 1:
                steps.append((t, letters))
                letters = ""
        return steps


def small_gpt(dropout: float = 0.0) -> GPT:
    shape = GPTConfig(LETTERS.n_vocab, 16, n_layer=2, n_head=2, n_embd=32, dropout=dropout)
    return GPT(shape).initialize(torch.Generator().manual_seed(0)).eval()


def run(policy: GPT, reward_fn=SHARE_OF_A, *, log=None, steps_by=None, **changes):
    """Train and return the metrics rows; keyword arguments change CONFIG."""
    options = {name: changes.pop(name) for name in ("validate", "folder") if name in changes}
    options["step_reward_fn"] = steps_by or LetterSteps()
    config = replace(CONFIG, **changes)
    log = log or MetricLog(config.steps)
    return train(config, policy, LETTERS, reward_fn, PROMPTS, log, **options)


def run_original(policy: GPT, reward_fn=SHARE_OF_A, **changes):
    """GRPO with outcome supervision on the same task."""
    config = grpo_engine.GRPOConfig(**(FIELDS | changes))
    return grpo_engine.train(config, policy, LETTERS, reward_fn, PROMPTS, MetricLog(config.steps))


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def numbers(rows) -> list[dict[str, float]]:
    """What was measured, without the times."""
    return [{key: value for key, value in row.items() if "second" not in key} for row in rows]


OWN_KEYS = ("step_reward", "steps_per_response", "zero_spread_steps")


# One step per response


@pytest.mark.parametrize("reward", [DIVERSE, SHARE_OF_A], ids=["diverse", "share of a"])
def test_with_one_step_it_is_grpo_bit_for_bit(reward):
    ends, logs = [], []
    options = dict(steps=4, minibatches=2, updates_per_batch=2, micro_batch_size=3, kl_coef=0.1)
    for train_with, more in ((run, dict(steps_by=OutcomeSteps())), (run_original, {})):
        policy = small_gpt()
        logs.append(numbers(train_with(policy, reward, **options, **more)))
        ends.append(weights(policy))
    assert torch.equal(*ends)
    shared = [{k: v for k, v in row.items() if k not in OWN_KEYS} for row in logs[0]]
    assert shared == logs[1]
    for row in logs[0]:
        assert row["step_reward"] == row["reward"] and row["steps_per_response"] == 1
        assert row["zero_spread_steps"] == row["zero_spread_groups"]
    changed = small_gpt()
    run(changed, reward, **options)  # with several steps it is not
    assert not torch.equal(weights(changed), ends[0])


# The first step


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
    real = grpo_process_engine.clip_and_step

    def spy(optimizer, parameters, max_norm):
        parameters = list(parameters)
        seen.append(torch.cat([parameter.grad.flatten().clone() for parameter in parameters]))
        return real(optimizer, parameters, max_norm)

    monkeypatch.setattr(grpo_process_engine, "clip_and_step", spy)
    return seen


def test_at_the_first_step_ratio_is_one_and_kl_is_zero():
    (row,) = run(small_gpt(), steps=1)
    assert row["ratio_error_at_start"] < 1e-5
    assert abs(row["kl"]) < 1e-6 and abs(row["kl_k3"]) < 1e-6 and abs(row["approx_kl"]) < 1e-6
    assert row["clip_high_fraction"] == row["clip_low_fraction"] == 0
    assert row["grad_norm"] > 0.01 and row["steps_per_response"] > 1.1


def reinforce_gradient(policy: GPT, rollout: Rollout, rows: list[int]) -> torch.Tensor:
    """-1/n sum_i 1/L_i sum_t A_it grad log pi(y_t), row by row, unpadded; A_it by `statistics`."""
    policy, source = copy.deepcopy(policy), LetterSteps()
    loss = torch.zeros(())
    for i in rows:
        group = range(i // 4 * 4, i // 4 * 4 + 4)
        pool = [source.worth(text) for k in group for _, text in source.steps_of(rollout, k)]
        mean, spread = statistics.mean(pool), statistics.stdev(pool)
        prompt = LETTERS.encode(rollout.records[i].prompt)
        response = rollout.response_tokens[i][rollout.response_mask[i]].tolist()
        log_probs = policy(torch.tensor([prompt + response]))[0].log_softmax(-1)
        for t, token in enumerate(response):
            advantage = sum(
                (source.worth(text) - mean) / (spread + 1e-4)
                for end, text in source.steps_of(rollout, i)
                if end >= t
            )
            chosen = log_probs[len(prompt) - 1 + t, token]
            loss = loss - advantage * chosen / len(response) / len(rows)
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


@pytest.mark.parametrize("kl_coef", [0.0, 0.5])
def test_the_first_gradient_is_that_of_reinforce_with_an_advantage_per_token(
    monkeypatch, gradients, kl_coef
):
    halves = [[4, 5, 6, 7, 12, 13, 14, 15], [0, 1, 2, 3, 8, 9, 10, 11]]
    monkeypatch.setattr(
        grpo_process_engine, "minibatches", lambda *args: [torch.tensor(half) for half in halves]
    )
    start, reward = small_gpt(), Noted(SHARE_OF_A)
    run(copy.deepcopy(start), reward, steps=1, kl_coef=kl_coef, micro_batch_size=3)
    (rollout,) = reward.rollouts
    counts = {len(LetterSteps().steps_of(rollout, i)) for i in halves[0]}
    assert len(counts) > 1, "all responses have as many steps"
    expected = reinforce_gradient(start, rollout, halves[0])
    assert float(expected.abs().max()) > 0.01
    torch.testing.assert_close(gradients[0], expected, rtol=1e-4, atol=1e-6)


def test_the_loss_by_loops():
    """1/rows sum_i 1/L_i sum_t (-min(rho A_it, clip(rho) A_it) + beta k3); empty rows add nothing."""
    ratio = torch.tensor([[1.0, 2.0, 0.5, 9], [0.5, 2.0, 1.1, 9], [9, 9, 9, 9]])
    old = torch.full((3, 4), -2.0)
    new, reference = old + ratio.log(), old + 0.3
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    advantages = [[1.5, 1.0, -2.0, 9.0], [-0.5, 0.25, 9.0, 9.0], [9.0] * 4]
    config = replace(CONFIG, clip_low=0.2, clip_high=0.3)
    expected = 0.0
    for i, length in ((0, 3), (1, 2)):
        for t in range(length):
            rho, A = float(ratio[i, t]), advantages[i][t]
            delta = float(reference[i, t] - new[i, t])
            token = -min(rho * A, min(max(rho, 0.8), 1.3) * A) + 0.4 * (math.exp(delta) - delta - 1)
            expected += token / length / 5
    given = (new, old, reference, torch.tensor(advantages), mask)
    loss, clipped = process_grpo_loss(config, *given, kl_coef=0.4, rows=5)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert clipped[mask].tolist() == [False, True, True, True, True]


# Learning


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_it_learns_a_toy_reward_and_unlearns_it_with_the_sign_flipped(sign):
    source = LetterSteps(lambda letters: sign * (letters.count("a") - 0.3 * len(letters)))
    rows = run(small_gpt(), steps_by=source, group_size=8, minibatches=2)
    last = statistics.mean(row["reward"] for row in rows[-3:])
    assert 0.03 < rows[0]["reward"] < 0.15  # one symbol of ten, in at most eight places
    assert last > 0.6 if sign > 0 else last < 0.02


def test_it_learns_from_the_steps_and_only_from_them():
    """The outcome says nothing, and another outcome changes nothing."""
    constant = RuleReward(lambda *_: 1.0, "constant")
    ends = []
    for reward in (constant, DIVERSE):
        policy = small_gpt()
        rows = run(policy, reward, steps=6, group_size=8, minibatches=2)
        ends.append(weights(policy))
    assert torch.equal(*ends)
    rows = run(small_gpt(), constant, group_size=8, minibatches=2)
    assert [row["zero_spread_groups"] for row in rows] == [1.0] * 20
    assert [row["reward"] for row in rows] == [1.0] * 20
    assert rows[0]["zero_spread_steps"] == 0
    assert rows[-1]["step_reward"] > rows[0]["step_reward"] + 0.5
    policy = small_gpt()
    before = weights(policy)
    rows = run(policy, DIVERSE, steps_by=LetterSteps(lambda letters: 0.7), steps=2, kl_coef=0.0)
    assert torch.equal(weights(policy), before)
    assert [row["zero_spread_steps"] for row in rows] == [1, 1]


def test_metrics_of_the_steps_are_taken_over_what_is_there():
    mask = torch.tensor([[True, True], [True, False], [True, False], [True, False]])
    steps = StepRewards(torch.tensor([[1.0, 0.5], [0.0, 9], [2.0, 9], [2.0, 9]]), mask.long(), mask)
    advantages = torch.tensor([[1.0, -1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert step_metrics(steps, advantages, 2) == pytest.approx(
        {"step_reward": 5.5 / 5, "steps_per_response": 1.25, "zero_spread_steps": 0.5}
    )


# Micro-batches, frozen models, dropout


@pytest.mark.parametrize("minibatches", [1, 3])
def test_micro_batches_do_not_change_the_update(gradients, minibatches):
    """In float64: the sums are regrouped, nothing else."""
    for size in (3, 64):
        run(small_gpt().double(), DIVERSE, steps=2, micro_batch_size=size, minibatches=minibatches)
    half = len(gradients) // 2
    assert half == 2 * minibatches
    for a, b in zip(gradients[:half], gradients[half:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_the_stop_works_without_a_penalty():
    """kl_coef 0 is no reason to let a run drift: the KL is measured for stop_kl."""
    rows = run(small_gpt(), steps=8, lr=1e-4, kl_coef=0.0, stop_kl=-10.0)
    assert len(rows) == 5 and rows[0]["kl"] == pytest.approx(0, abs=1e-5)


def test_frozen_models_stay_as_they_are():
    """The reference is the start; the reward model scores steps and is never trained."""
    policy = small_gpt()
    reward_model = RewardModel.from_policy(policy, generator=torch.Generator().manual_seed(1))
    start, scorer = weights(policy), weights(reward_model)
    seen: list[GPT] = []

    def validate(policy: GPT, reference: GPT, step: int) -> dict[str, float]:
        assert torch.equal(weights(reference), start)
        assert not any(parameter.requires_grad for parameter in reference.parameters())
        seen.append(reference)
        return {}

    source = RewardModelSteps(reward_model, LETTERS)
    reward = RewardModelReward(reward_model)
    run(policy, reward, steps=2, steps_by=source, eval_every=1, validate=validate)
    assert len(seen) == 2 and torch.equal(weights(reward_model), scorer)
    assert all(parameter.grad is None for parameter in reward_model.parameters())
    assert not torch.equal(weights(policy), start)


def test_without_a_kl_no_reference_is_asked(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("kl_coef is 0, but a reference was scored")

    monkeypatch.setattr(grpo_process_engine, "rollout_log_probs", refuse)
    (row,) = run(small_gpt(), steps=1, kl_coef=0.0)
    assert "kl" not in row and "kl_k3" not in row
    with pytest.raises(AssertionError, match="a reference was scored"):
        run(small_gpt(), steps=1)


def test_dropout_has_no_effect():
    plain, dropped = small_gpt(), small_gpt(dropout=0.5).train()
    for policy in (plain, dropped):
        run(policy, steps=2)
    assert torch.equal(weights(plain), weights(dropped))


# Resuming


class Crash(Exception):
    pass


class CrashingLog(MetricLog):
    """Ends the run after five steps."""

    def write(self, *, step: int, **metrics) -> None:
        super().write(step=step, **metrics)
        if step == 5:
            raise Crash


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path):
    """Policy, reference, optimizer, coefficient and both generators come back."""
    options = dict(
        steps=7, minibatches=2, updates_per_batch=2, checkpoint_every=2, warmup=4,
        kl_controller="adaptive", kl_horizon=200, kl_target=0.5,
    )  # fmt: skip
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


# Which source, refusals, the controller and the document


def task_with(reward_fn, data: str) -> tuple[ProcessGRPOConfig, Task]:
    tokenizer = load_tokenizer("glassbox")
    return replace(CONFIG, data=data), Task(small_gpt(), tokenizer, {}, reward_fn, None)


EXACT = RuleReward(sums.exact_match, "exact match")
GOLD = RuleReward(reviews.gold_reward, "gold reward")


def learned() -> RewardModelReward:
    return RewardModelReward(RewardModel(small_gpt()))


@pytest.mark.parametrize(
    ("data", "reward", "steps_from", "expected"),
    [
        ("sums", EXACT, "auto", CheckedSteps),
        ("sums", EXACT, "rule", CheckedSteps),
        ("sums", learned(), "auto", CheckedSteps),
        ("sums", EXACT, "outcome", OutcomeSteps),
        ("reviews", learned(), "auto", RewardModelSteps),
        ("pairs.json", learned(), "auto", RewardModelSteps),
        ("pairs.json", learned(), "outcome", OutcomeSteps),
        ("reviews", GOLD, "auto", OutcomeSteps),
    ],
)
def test_the_source_is_the_one_asked_for(data, reward, steps_from, expected):
    config, task = task_with(reward, data)
    source = open_step_rewards(replace(config, steps_from=steps_from), task)["step_reward_fn"]
    assert type(source) is expected
    if isinstance(source, RewardModelSteps):
        assert source.model is reward.model and source.tokenizer is task.tokenizer


@pytest.mark.parametrize(
    ("data", "reward", "steps_from", "message"),
    [
        ("reviews", learned(), "rule", "reviews has no rule for the steps of a response"),
        ("pairs.json", learned(), "rule", "pairs.json has no rule for the steps of a response"),
        ("sums", EXACT, "reward_model", "the reward is the exact match, not a learned model"),
        ("reviews", GOLD, "reward_model", "the reward is the gold reward, not a learned model"),
    ],
)
def test_a_source_that_is_not_there_is_refused_in_one_sentence(data, reward, steps_from, message):
    config, task = task_with(reward, data)
    with pytest.raises(UserError, match=message) as refused:
        open_step_rewards(replace(config, steps_from=steps_from), task)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(group_size=1), "group_size must be at least 2"),
        (dict(kl_estimator="k1"), "k1 as a loss regularises nothing"),
        (dict(kl_coef=-1.0), "must not be negative"),
    ],
)
def test_what_cannot_work_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)


def test_broken_rewards_are_refused_or_replaced_and_counted():
    """Of the outcome and of the steps; the steps' mask says which of them count."""
    source = LetterSteps(lambda letters: math.nan if letters.endswith("b") else 1.0)
    with pytest.raises(ValueError, match="step rewards are not finite"):
        run(small_gpt(), steps=1, steps_by=source)
    reward = Noted(RuleReward(lambda record, text, ended: math.nan if "c" in text else 1.0, ""))
    policy = small_gpt()
    (row,) = run(policy, reward, steps=1, steps_by=source, non_finite_reward=0.0)
    (rollout,) = reward.rollouts
    outcomes = sum("c" in text for text in rollout.responses)
    steps = [letters for i in range(16) for _, letters in source.steps_of(rollout, i)]
    broken = sum(letters.endswith("b") for letters in steps)
    assert outcomes > 0 and broken > 0
    assert row["non_finite_rewards"] == outcomes + broken
    assert row["step_reward"] == pytest.approx(1 - broken / len(steps))
    assert weights(policy).isfinite().all()


def test_the_adaptive_controller_moves_the_penalty():
    """KL starts at 0, below the target: the coefficient falls by a fifth of responses / horizon."""
    options = dict(steps=3, kl_controller="adaptive", kl_horizon=160, kl_target=1e3)
    rows = run(small_gpt(), **options)
    assert [row["kl_coef"] for row in rows] == pytest.approx([0.02, 0.02 * 0.98, 0.02 * 0.98**2])
    rows = run(small_gpt(), **(options | dict(kl_target=1e-4, steps=10)))
    assert rows[-2]["kl"] > 1e-4 and rows[-1]["kl_coef"] > rows[-2]["kl_coef"]


def test_stop_kl_ends_the_run():
    rows = run(small_gpt(), group_size=8, kl_coef=0.0001, stop_kl=1.0)
    assert 5 <= rows[-1]["step"] < 20


def documented(heading: str) -> set[str]:
    """The keys of the tables under one heading of docs/metrics.md: the first cell of each row."""
    text = DOCUMENT.read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return set(re.findall(r"^\| `([^`]+)` \|", body, re.M))


def test_logged_keys_are_those_documented():
    params = SamplingParams(max_new_tokens=8)
    validate = Validation(LETTERS, PROMPTS, params, SHARE_OF_A, gold=SHARE_OF_A)
    (row,) = run(small_gpt(), steps=1, eval_every=1, validate=validate)
    assert documented("Process-supervised GRPO") == set(OWN_KEYS)
    assert set(row) == documented("Every engine") | set(OWN_KEYS)
