"""KD-PPO end to end on a GPT of two layers: credit per token, and what the bonus does not do."""

from __future__ import annotations

import copy
import math
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gpt.teacher
from data.collate import ResponseBatch, collate_documents
from data.records import PromptRecord
from gpt import pretraining
from gpt.common import MetricLog, read_jsonl, save_gpt, saved_step
from gpt.generate import SamplingParams
from gpt.log_probs import TokenScores
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import build_tokenizer, load_tokenizer
from rl import kd_ppo_engine, ppo_engine
from rl.batches.rollout import Rollout, sample_rollout
from rl.equations.advantages import gae, group_advantages, leave_one_out_advantages, whiten
from rl.equations.kl import reward_penalty
from rl.kd_ppo_engine import (
    KDPPOConfig,
    kd_token_rewards,
    rewards_of_tokens,
    teacher_reward,
    train,
)
from rl.ppo_engine import PPOConfig
from rl.rewards.sources import RuleReward
from rl.rewards.teacher import TeacherReward
from rl.training import actor_critic
from rl.training.actor_critic import Targets, gae_targets, ppo_loss
from rl.training.evaluation import Validation
from rl.training.value_model import ValueModel

LETTERS = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})  # EOS 8, padding 9
PROMPTS = [PromptRecord(text) for text in ("ab", "c", "hgfed", "aaa", "fa", "gh", "bbbb", "e")]
CONFIG = KDPPOConfig(
    steps=20, prompts_per_step=16, minibatches=1, updates_per_batch=1, micro_batch_size=64, lr=1e-2,
    critic_lr=1e-2, warmup=1, kl_coef=0.02, max_new_tokens=8, eval_every=100, max_norm=1e9,
    checkpoint_every=1000, pretraining_coef=0.0,
)  # fmt: skip
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def small_gpt(seed: int = 0, sharpness: float = 1.0, dropout: float = 0.0) -> GPT:
    """Nearly uniform at a sharpness of 1; a larger one gives every prefix favourites of its own."""
    shape = GPTConfig(LETTERS.n_vocab, 16, n_layer=2, n_head=2, n_embd=32, dropout=dropout)
    model = GPT(shape).initialize(torch.Generator().manual_seed(seed)).eval()
    with torch.no_grad():
        model.wte.weight.mul_(sharpness)
    return model


TEACHER = small_gpt(seed=1, sharpness=4.0).requires_grad_(False)


class Texts:
    """Text of the letters a, b and c alone; batch i is a function of i."""

    description, tokens_per_batch = "abc", 28.0

    def __init__(self) -> None:
        self.asked: list[int] = []

    def batch(self, index: int) -> ResponseBatch:
        self.asked.append(index)
        generator = torch.Generator().manual_seed(index)
        rows = torch.randint(0, 3, (4, 11), generator=generator).tolist()
        return collate_documents([row[: 5 + 2 * i] for i, row in enumerate(rows)])

    def held_out_batches(self) -> list[ResponseBatch]:
        return [self.batch(10**6)]


def run(policy: GPT, reward_fn=None, *, log: MetricLog | None = None, **changes):
    """Train and return the metrics rows; keyword arguments change CONFIG."""
    options = {name: changes.pop(name) for name in ("validate", "folder") if name in changes}
    options["corpus"] = changes.pop("corpus", Texts())
    config = replace(CONFIG, **changes)
    reward_fn = reward_fn or teacher_reward(config, TEACHER)
    log = log or MetricLog(config.steps)
    return train(config, policy, LETTERS, reward_fn, PROMPTS, log, **options)


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def numbers(rows) -> list[dict[str, float]]:
    """What was measured, without the times."""
    return [{key: value for key, value in row.items() if "second" not in key} for row in rows]


class Noted(TeacherReward):
    """Keeps every rollout that it scores."""

    def __init__(self, reward: TeacherReward) -> None:
        options = dict(aggregate=reward.aggregate, reverse_kl=reward.reverse_kl)
        super().__init__(reward.teacher, reward.config, **options)
        self.rollouts: list[Rollout] = []

    def with_metrics(self, rollout: Rollout):
        self.rollouts.append(rollout)
        return super().with_metrics(rollout)


@pytest.fixture
def gradients(monkeypatch) -> list[torch.Tensor]:
    """The flat gradients that reach the clip: policy, critic, policy, critic, ..."""
    seen: list[torch.Tensor] = []
    real = actor_critic.clip_and_step

    def spy(optimizer, parameters, max_norm):
        parameters = list(parameters)
        seen.append(torch.cat([p.grad.flatten().clone() for p in parameters if p.grad is not None]))
        return real(optimizer, parameters, max_norm)

    monkeypatch.setattr(actor_critic, "clip_and_step", spy)
    return seen


@pytest.fixture
def seen_rewards(monkeypatch) -> list[torch.Tensor]:
    """The token rewards (N, T) of every step."""
    seen: list[torch.Tensor] = []
    real = kd_ppo_engine.gae_targets

    def spy(config, rollout, token_rewards, old_log_probs, value_model, **options):
        seen.append(token_rewards)
        return real(config, rollout, token_rewards, old_log_probs, value_model, **options)

    monkeypatch.setattr(kd_ppo_engine, "gae_targets", spy)
    return seen


def some_rollout(policy: GPT) -> Rollout:
    params = SamplingParams(max_new_tokens=8)
    return sample_rollout(policy, LETTERS, PROMPTS, params, 1, torch.Generator().manual_seed(3))


def tokens_of(rollout: Rollout, row: int) -> tuple[list[int], list[int]]:
    response = rollout.response_tokens[row][rollout.response_mask[row]].tolist()
    return LETTERS.encode(rollout.records[row].prompt), response


def chosen(model: GPT, prompt: list[int], response: list[int]) -> list[torch.Tensor]:
    """log-probability of every response token, one row, no padding."""
    log_probs = model(torch.tensor([prompt + response]))[0].log_softmax(-1)
    return [log_probs[len(prompt) - 1 + t, token] for t, token in enumerate(response)]


# Where the rewards stand

P = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, 9.0, 9.0]])  # what the teacher gives to every token
OLD = torch.tensor([[-1.0, -1.5, -2.0], [-3.0, 7.0, 7.0]])
REF = torch.tensor([[-1.5, -1.0, -2.5], [-2.0, 8.0, 8.0]])
MASK = torch.tensor([[True, True, True], [True, False, False]])


@pytest.mark.parametrize(
    ("dense", "expected"),
    [
        # -0.1 * k1 is -0.05, 0.05, -0.05 and 0.1; the bonus 4 at the last token
        (True, [[-1.05, -1.95, 0.95], [3.6, 0, 0]]),
        (False, [[-0.05, 0.05, -2.05], [3.6, 0, 0]]),
    ],
)
def test_dense_and_terminal_rewards_by_hand(dense, expected):
    token_parts = torch.where(MASK, P, 0.0)
    got = kd_token_rewards(
        token_parts.sum(1), token_parts if dense else None, OLD, REF, MASK, kl_coef=0.1, bonus=4.0
    )
    torch.testing.assert_close(got, torch.tensor(expected))
    total = token_parts.sum(1) + 4 - 0.1 * torch.where(MASK, OLD - REF, 0.0).sum(1)
    torch.testing.assert_close(got.sum(1), total)  # the same for either placement
    plain = kd_token_rewards(
        token_parts.sum(1), token_parts if dense else None, OLD, None, MASK, kl_coef=0.0
    )
    assert plain.sum(1).tolist() == pytest.approx([-6.0, -0.5])


def test_a_replaced_reward_stands_at_the_last_token():
    """One row's tokens are NaN: its reward is the number that was put in its place."""
    parts = torch.where(MASK, P, 0.0).clone()
    parts[0, 1] = torch.nan
    rewards = torch.tensor([-7.0, -0.5])
    got = kd_token_rewards(rewards, parts, OLD, None, MASK, kl_coef=0.0)
    assert got.tolist() == [[0, 0, -7], [-0.5, 0, 0]]


@pytest.mark.parametrize("form", ["reverse_kl", "sum"])
@pytest.mark.parametrize("placement", ["dense", "terminal"])
def test_the_rewards_of_a_run_by_unpadded_rows(seen_rewards, form, placement):
    """Two steps away from the start, so that teacher, student and reference are three models."""
    start = small_gpt()
    policy = copy.deepcopy(start)
    options = dict(teacher_reward=form, placement=placement, kl_coef=0.3)
    reward = Noted(teacher_reward(replace(CONFIG, **options), TEACHER))
    sampler: list[GPT] = []

    def validate(policy: GPT, reference: GPT, step: int) -> dict[str, float]:
        sampler.append(copy.deepcopy(policy))
        return {}

    rows = run(policy, reward, steps=3, eval_every=1, validate=validate, **options)
    rollout, token_rewards = reward.rollouts[2], seen_rewards[2]
    totals = []
    for i in range(len(rollout)):
        prompt, response = tokens_of(rollout, i)
        with torch.no_grad():
            p, q, r = (chosen(m, prompt, response) for m in (TEACHER, sampler[1], start))
        parts = [
            float(a - b) if form == "reverse_kl" else float(a) for a, b in zip(p, q, strict=True)
        ]
        penalty = [-0.3 * float(a - b) for a, b in zip(q, r, strict=True)]
        totals.append(sum(parts))
        if placement == "terminal":
            parts = [0.0] * (len(parts) - 1) + [sum(parts)]
        expected = [a + b for a, b in zip(parts, penalty, strict=True)]
        got = token_rewards[i, : len(response)].tolist()
        assert got == pytest.approx(expected, rel=1e-3, abs=1e-4)
        assert not token_rewards[i, len(response) :].any()
    assert rows[2]["reward"] == pytest.approx(sum(totals) / len(totals), rel=1e-4)


def test_dense_rewards_need_a_teacher_and_a_sum():
    rollout = some_rollout(small_gpt())
    mean = TeacherReward(TEACHER, CONFIG, aggregate="mean")
    rule = RuleReward(lambda record, text, ended: 1.0, "rule")
    for reward in (mean, rule):
        with pytest.raises(ValueError, match="placement dense takes a teacher's reward apart"):
            rewards_of_tokens(CONFIG, reward, rollout)
        assert rewards_of_tokens(replace(CONFIG, placement="terminal"), reward, rollout) is None
    parts = rewards_of_tokens(CONFIG, teacher_reward(CONFIG, TEACHER), rollout)
    torch.testing.assert_close(parts.sum(1), teacher_reward(CONFIG, TEACHER)(rollout))


# The first step


def test_at_the_first_step_ratio_is_one_and_kl_is_zero():
    (row,) = run(small_gpt(), steps=1, minibatches=2)
    assert row["ratio_error_at_start"] < 1e-5
    assert abs(row["kl"]) < 1e-6 and abs(row["kl_k3"]) < 1e-6
    assert row["reward"] == pytest.approx(-row["reverse_kl"], rel=1e-5)
    (row,) = run(small_gpt(), steps=1, value_coef=0.0)
    assert row["clip_high_fraction"] == row["clip_low_fraction"] == 0
    assert abs(row["loss"]) < 1e-5 and row["grad_norm"] > 0.01


def first_gradient(policy: GPT, rollout: Rollout, placement: str, pretraining_coef: float):
    """Row by row, unpadded, gamma = lambda = 1 and a critic of zeros: reward to go, whitened."""
    policy = copy.deepcopy(policy)
    to_go, terms = [], []
    for i in range(len(rollout)):
        prompt, response = tokens_of(rollout, i)
        p, q = (chosen(model, prompt, response) for model in (TEACHER, policy))
        parts = [float(a) - b.item() for a, b in zip(p, q, strict=True)]
        if placement == "terminal":
            parts = [0.0] * (len(parts) - 1) + [sum(parts)]
        to_go += [sum(parts[t:]) for t in range(len(parts))]
        terms += q
    mean = sum(to_go) / len(to_go)
    std = math.sqrt(sum((x - mean) ** 2 for x in to_go) / (len(to_go) - 1) + 1e-8)
    loss = -sum((a - mean) / std * term for a, term in zip(to_go, terms, strict=True)) / len(terms)
    text = Texts().batch(0)
    pairs = zip(text.tokens, text.lengths.tolist(), strict=True)
    rows = [row[: length + 1].tolist() for row, length in pairs]
    terms = [term for row in rows for term in chosen(policy, row[:1], row[1:])]
    loss = loss - pretraining_coef * sum(terms) / len(terms)
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


@pytest.mark.parametrize("placement", ["dense", "terminal"])
@pytest.mark.parametrize("pretraining_coef", [0.0, 0.3])
def test_the_first_gradient_is_that_of_reinforce(gradients, placement, pretraining_coef):
    start, reward = small_gpt(), Noted(teacher_reward(CONFIG, TEACHER))
    run(
        copy.deepcopy(start), reward, steps=1, gae_lambda=1.0, placement=placement,
        pretraining_coef=pretraining_coef,
    )  # fmt: skip
    (rollout,) = reward.rollouts
    assert len(set(rollout.lengths.tolist())) > 1, "all responses are of one length"
    expected = first_gradient(start, rollout, placement, pretraining_coef)
    assert float(expected.abs().max()) > 0.01
    torch.testing.assert_close(gradients[0], expected, rtol=2e-4, atol=2e-6)


# The loss


def test_the_loss_is_the_worked_example():
    """Policy 0.176126 + 0.1 * value 0.0625 - 0.01 * entropy 1; the padded column counts nowhere."""
    old = torch.tensor([[-1.0, -1.5, 7.0]])
    mask = torch.tensor([[True, True, False]])
    targets = Targets(
        old_log_probs=old,
        old_values=torch.tensor([[0.5, 0.4, 7.0]]),
        advantages=torch.tensor([[0.5, -1.0, 7.0]]),
        returns=torch.tensor([[0.0, 1.0, 7.0]]),
    )
    scores = TokenScores(torch.tensor([[-0.9, -1.6, -3.0]]), torch.tensor([[1.2, 0.8, 9.0]]))
    values = torch.tensor([[0.2, 0.7, -9.0]])
    config = replace(CONFIG, value_coef=0.1, entropy_coef=0.01, value_clip=0.2)
    losses = ppo_loss(config, scores, values, targets, mask, tokens=2)
    assert float(losses.total) == pytest.approx(0.172376, abs=1e-6)
    half = ppo_loss(config, scores, values, targets, mask, tokens=4)
    assert float(half.total) == pytest.approx(0.172376 / 2, abs=1e-6)
    alone = replace(config, value_coef=0.0, entropy_coef=0.0)
    policy_loss = ppo_loss(alone, scores, values, targets, mask, tokens=2).total
    assert float(policy_loss) == pytest.approx(0.176126, abs=1e-6)


def test_returns_are_values_plus_raw_advantages():
    """Before the whitening (a V for every state: (N, T))."""
    policy = small_gpt()
    rollout = some_rollout(policy)
    critic = ValueModel.from_policy(policy)
    torch.nn.init.normal_(critic.head.weight, std=0.5, generator=torch.Generator().manual_seed(1))
    mask = rollout.response_mask
    rewards = torch.randn(mask.shape, generator=torch.Generator().manual_seed(2))
    config = replace(CONFIG, gamma=0.9, gae_lambda=0.8)
    targets = gae_targets(config, rollout, rewards, rollout.log_probs, critic)
    assert targets.old_values.shape == mask.shape
    for i, length in enumerate(rollout.lengths.tolist()):
        v = [*targets.old_values[i, :length].tolist(), 0.0]
        for t in range(length):
            raw = sum(
                (0.9 * 0.8) ** (u - t) * (float(rewards[i, u]) + 0.9 * v[u + 1] - v[u])
                for u in range(t, length)
            )
            assert float(targets.returns[i, t]) == pytest.approx(raw + v[t], rel=1e-4, abs=1e-5)
    valid = targets.advantages[mask]
    assert float(valid.mean()) == pytest.approx(0, abs=1e-5)
    assert float(valid.std()) == pytest.approx(1, abs=1e-4)


# What is left when everything of its own is off: PPO


def test_terminal_without_text_is_ppo_bit_for_bit():
    """The same reward object in both engines; epochs, minibatches and micro-batches."""
    shared = dict(
        steps=4, updates_per_batch=2, minibatches=2, micro_batch_size=5, value_clip=0.2,
        entropy_coef=0.01, prompts_per_step=16, group_size=1, lr=1e-2, critic_lr=1e-2, warmup=1,
        kl_coef=0.02, max_new_tokens=8, eval_every=100, max_norm=1e9, checkpoint_every=1000,
        stop_kl=None,
    )  # fmt: skip
    one, other = small_gpt(), small_gpt()
    reward = teacher_reward(CONFIG, TEACHER)
    rows = run(one, reward, placement="terminal", **shared)
    plain = PPOConfig(**shared)
    other_rows = ppo_engine.train(plain, other, LETTERS, reward, PROMPTS, MetricLog(4))
    assert numbers(rows) == numbers(other_rows) and rows[-1]["kl"] > 0.01
    assert torch.equal(weights(one), weights(other))
    dense = small_gpt()
    run(dense, reward, placement="dense", **shared)
    assert not torch.equal(weights(dense), weights(one))


def test_a_rule_may_be_the_terminal_reward():
    rule = RuleReward(lambda record, text, ended: text.count("a") / 8, "share of a")
    rows = run(small_gpt(), rule, placement="terminal", steps=25)
    assert rows[-1]["reward"] > rows[0]["reward"] + 0.2


# L_PT: a loss that works, and a bonus that does nothing


def test_a_constant_added_to_every_reward_is_cancelled_by_every_baseline():
    """z-scores, leave-one-out, and whitened GAE at gamma = lambda = 1; with lambda < 1 it is not."""
    generator = torch.Generator().manual_seed(0)
    c = -13.0
    rewards = torch.randn(12, generator=generator, dtype=torch.float64)
    for baseline in (group_advantages, leave_one_out_advantages):
        torch.testing.assert_close(baseline(rewards + c, 4), baseline(rewards, 4))
    parts, values = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([[5], [2], [3]])
    parts = torch.where(mask, parts, 0.0)

    def advantages(bonus: float, decay: float) -> torch.Tensor:
        old = torch.zeros_like(parts)
        rewards = kd_token_rewards(parts.sum(1), parts, old, None, mask, kl_coef=0.0, bonus=bonus)
        return gae(rewards, values, mask, 1.0, decay)[0]

    whitened = [whiten(advantages(bonus, 1.0), mask) for bonus in (0.0, c)]
    torch.testing.assert_close(*whitened, rtol=1e-10, atol=1e-10)
    shift = (advantages(c, 1.0) - advantages(0.0, 1.0))[mask]
    torch.testing.assert_close(shift, torch.full_like(shift, c))
    shift = advantages(c, 0.9) - advantages(0.0, 0.9)  # c (gamma lambda)^(L - 1 - t)
    torch.testing.assert_close(shift[0], c * 0.9 ** torch.arange(4, -1, -1).double())


def test_the_bonus_reaches_no_gradient_and_the_loss_does(gradients):
    """A first step at gamma = lambda = 1: with the bonus the gradient is the same to rounding."""
    first = {}
    for name, options in {
        "nothing": dict(pretraining_coef=0.0),
        "bonus": dict(pretraining_coef=5.0, pt_mode="reward_bonus"),
        "loss": dict(pretraining_coef=5.0, pt_mode="loss"),
    }.items():
        gradients.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (row,) = run(small_gpt(), steps=1, gae_lambda=1.0, **options)
        first[name] = gradients[0]
        assert name == "nothing" or row["pretraining_loss"] > 1
    torch.testing.assert_close(first["bonus"], first["nothing"], rtol=1e-3, atol=1e-5)
    assert float((first["loss"] - first["nothing"]).abs().max()) > 0.1
    text = small_gpt()
    (5.0 * pretraining.language_model_loss(text, Texts().batch(0))).backward()
    alone = torch.cat([parameter.grad.flatten() for parameter in text.parameters()])
    torch.testing.assert_close(first["loss"] - first["nothing"], alone, rtol=1e-4, atol=1e-5)


def test_the_bonus_is_minus_lambda_times_the_text_loss(seen_rewards):
    """One number, at the last token of every response."""
    for options in (dict(pretraining_coef=0.0), dict(pretraining_coef=3.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (row,) = run(small_gpt(), steps=1, pt_mode="reward_bonus", **options)
    plain, bonus = seen_rewards
    difference = bonus - plain
    expected = pretraining.held_out_loss(small_gpt(), [Texts().batch(0)])
    assert row["pretraining_loss"] == pytest.approx(expected)
    values = difference.sum(1)
    torch.testing.assert_close(values, torch.full_like(values, -3 * expected))
    assert ((difference.abs() > 1e-4).sum(1) == 1).all()


def test_the_engine_says_that_the_bonus_does_nothing():
    with pytest.warns(UserWarning, match="nothing is protected. Use pt_mode loss"):
        run(small_gpt(), steps=1, pt_mode="reward_bonus", pretraining_coef=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(small_gpt(), steps=1, pt_mode="reward_bonus", pretraining_coef=0.0)
        run(small_gpt(), steps=1, pretraining_coef=1.0)


def test_the_text_is_fresh_at_every_optimizer_step_and_only_the_policys():
    texts = Texts()
    run(
        small_gpt(), steps=2, updates_per_batch=2, minibatches=3, pretraining_coef=1.0, corpus=texts
    )
    assert texts.asked == list(range(12))
    texts.asked.clear()
    with pytest.warns(UserWarning):
        run(
            small_gpt(), steps=2, updates_per_batch=2, minibatches=3, pretraining_coef=1.0,
            pt_mode="reward_bonus", corpus=texts,
        )  # fmt: skip
    assert texts.asked == [0, 6]
    run(small_gpt(), steps=1, corpus=texts)
    assert len(texts.asked) == 2
    with pytest.raises(ValueError, match="pretraining_coef needs a corpus"):
        run(small_gpt(), steps=1, pretraining_coef=1.0, corpus=None)


def test_only_the_loss_keeps_what_was_learned():
    """A student that knows the text of a, b and c; after the distillation it is asked again."""
    student = small_gpt()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    for index in range(60):
        loss = pretraining.language_model_loss(student, Texts().batch(index + 5000))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    held_out = Texts().held_out_batches()
    before = pretraining.held_out_loss(student, held_out)
    after = {}
    for mode in ("loss", "reward_bonus"):
        policy = copy.deepcopy(student)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(policy, steps=30, lr=3e-3, kl_coef=0.0, pretraining_coef=1.0, pt_mode=mode)
        after[mode] = pretraining.held_out_loss(policy, held_out)
    assert before < 1.3  # log 3 is 1.1
    assert after["loss"] < before + 0.15
    assert after["reward_bonus"] > before + 0.3


# Learning

LEARNING = dict(
    prompts_per_step=32, updates_per_batch=2, minibatches=1, steps=30, lr=5e-3, kl_coef=0.0
)


@pytest.mark.parametrize(("placement", "limit"), [("dense", 0.6), ("terminal", 1.3)])
def test_it_learns_the_teacher(placement, limit):
    rows = run(small_gpt(), placement=placement, **LEARNING)
    assert rows[0]["reverse_kl"] > 2.3
    assert sum(row["reverse_kl"] for row in rows[-5:]) / 5 < limit
    assert rows[-1]["teacher_log_prob"] > rows[0]["teacher_log_prob"] + 0.5
    assert rows[-1]["entropy"] > 1.2  # the teacher's is 1.56


def test_it_does_not_learn_with_the_sign_flipped():
    class Against(TeacherReward):
        def token_rewards(self, rollout: Rollout) -> torch.Tensor:
            return -super().token_rewards(rollout)

    against = Against(TEACHER, CONFIG, aggregate="sum", reverse_kl=True)
    rows = run(small_gpt(), against, **(LEARNING | dict(steps=20)))
    assert rows[-1]["reverse_kl"] > rows[0]["reverse_kl"] + 1


def test_log_p_alone_ends_in_the_shortest_text():
    row = run(small_gpt(), teacher_reward="sum", **LEARNING)[-1]
    assert row["response_length"] < 2.5 and row["entropy"] < 1


def test_a_stronger_kl_penalty_stays_nearer():
    options = LEARNING | dict(steps=15)
    near, far = (run(small_gpt(), **(options | dict(kl_coef=c)))[-1] for c in (5.0, 0.0001))
    assert abs(near["kl"]) < 0.5 * far["kl"]


def test_the_critic_learns():
    rows = run(small_gpt(), steps=20, lr=1e-5, updates_per_batch=4)
    assert rows[0]["explained_variance"] == pytest.approx(0, abs=1e-3)  # a critic of zeros
    assert rows[-1]["value_loss"] < 0.7 * rows[0]["value_loss"]
    assert rows[-1]["explained_variance"] > 0.1


# Frozen models, micro-batches, resuming


def test_without_a_kl_no_reference_is_asked(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("a reference was scored")

    monkeypatch.setattr(kd_ppo_engine, "rollout_log_probs", refuse)
    (row,) = run(small_gpt(), steps=1, kl_coef=0.0)
    assert "kl" not in row and "kl_k3" not in row
    with pytest.raises(AssertionError, match="a reference was scored"):
        run(small_gpt(), steps=1)


def test_the_stop_works_without_a_penalty():
    """kl_coef 0 is no reason to let a run drift: the KL is measured for stop_kl."""
    rows = run(small_gpt(), steps=8, lr=1e-4, kl_coef=0.0, stop_kl=-10.0)
    assert len(rows) == 5 and rows[0]["kl"] == pytest.approx(0, abs=1e-5)


def test_frozen_models_stay_as_they_are():
    policy, before = small_gpt(), weights(TEACHER)
    start, seen = weights(policy), []

    def validate(policy: GPT, reference: GPT, step: int) -> dict[str, float]:
        assert torch.equal(weights(reference), start)
        assert all(parameter.grad is None for parameter in reference.parameters())
        seen.append(step)
        return {}

    run(policy, steps=2, eval_every=1, validate=validate, pretraining_coef=1.0)
    assert seen == [1, 2]
    assert torch.equal(weights(TEACHER), before)
    assert all(parameter.grad is None for parameter in TEACHER.parameters())


def test_dropout_has_no_effect():
    plain, dropped = small_gpt(), small_gpt(dropout=0.5).train()
    options = dict(steps=2, pretraining_coef=0.5)
    assert numbers(run(plain, **options)) == numbers(run(dropped, **options))
    assert torch.equal(weights(plain), weights(dropped))


@pytest.mark.parametrize("placement", ["dense", "terminal"])
def test_micro_batches_do_not_change_the_update(gradients, placement):
    """Adam divides by the size of a gradient: of the first steps the gradients are compared."""
    for size in (3, 64):
        run(
            small_gpt(), steps=1, micro_batch_size=size, updates_per_batch=2, minibatches=3,
            pretraining_coef=0.5, placement=placement,
        )  # fmt: skip
    half = len(gradients) // 2
    for a, b in zip(gradients[:half], gradients[half:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(gradients[0], gradients[half], rtol=0, atol=1e-6)
    torch.testing.assert_close(gradients[1], gradients[half + 1], rtol=0, atol=1e-6)


class Crash(Exception):
    pass


class CrashingLog(MetricLog):
    """Ends the run after five steps."""

    def write(self, *, step: int, **metrics) -> None:
        super().write(step=step, **metrics)
        if step == 5:
            raise Crash


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path):
    """Critic and both optimizers come back too."""
    options = dict(
        steps=7, minibatches=2, updates_per_batch=2, checkpoint_every=2, warmup=4,
        pretraining_coef=0.3, kl_controller="adaptive", kl_horizon=160,
    )  # fmt: skip
    whole = small_gpt()
    rows = run(whole, **options)
    with pytest.raises(Crash):
        run(small_gpt(), log=CrashingLog(7), folder=tmp_path, **options)
    assert saved_step(tmp_path) == 4
    resumed = small_gpt(seed=9)  # everything comes from the file
    more = run(resumed, folder=tmp_path, resume=True, **options)
    assert [row["step"] for row in more] == [5, 6, 7]
    assert numbers(more) == numbers(rows[4:])
    assert torch.equal(weights(resumed), weights(whole))


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 1.1}, "gamma and gae_lambda must be in 0..1"),
        ({"gae_lambda": -0.1}, "gamma and gae_lambda must be in 0..1"),
        ({"value_clip": 0.0}, "value_clip must be positive, or None"),
        ({"pretraining_coef": -1.0}, "pretraining_coef must not be negative"),
        ({"pretraining_batch_size": 0}, "pretraining_batch_size must be at least 1"),
        ({"reward": "model"}, "the teacher is the reward"),
        ({"reward_model": (Path("x"),)}, "the teacher is the reward"),
    ],
)
def test_what_cannot_work_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)


@pytest.mark.parametrize("placement", ["dense", "terminal"])
def test_a_teacher_that_gives_nan_is_refused_or_replaced(placement):
    broken = copy.deepcopy(TEACHER)
    broken.ln_f.weight.data[0] = torch.nan
    reward = teacher_reward(CONFIG, broken)
    with pytest.raises(ValueError, match="rewards are not finite"):
        run(small_gpt(), reward, steps=1, placement=placement)
    policy = small_gpt()
    (row,) = run(policy, reward, steps=1, placement=placement, non_finite_reward=-1.0)
    assert row["non_finite_rewards"] == 16 and weights(policy).isfinite().all()


# The document and the script


def documented(heading: str) -> set[str]:
    """The keys of the tables under one heading of docs/metrics.md: the first cell of each row."""
    text = DOCUMENT.read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return set(re.findall(r"^\| `([^`]+)` \|", body, re.M))


def test_logged_keys_are_those_documented():
    reward = teacher_reward(CONFIG, TEACHER)
    params = SamplingParams(max_new_tokens=8)
    validate = Validation(LETTERS, PROMPTS, params, reward, gold=reward)
    (row,) = run(
        small_gpt(), steps=1, eval_every=1, validate=validate, pretraining_coef=1.0, group_size=2
    )
    own = documented("KD-GRPO and KD-PPO")
    assert set(row) == documented("Every engine") | documented("PPO") | own


def test_the_adaptive_controller_moves_the_penalty():
    """KL starts at 0, below the target: the coefficient falls by a fifth of responses / horizon."""
    options = dict(steps=3, kl_controller="adaptive", kl_horizon=160, kl_target=1e3)
    rows = run(small_gpt(), **options)
    assert [row["kl_coef"] for row in rows] == pytest.approx([0.02, 0.02 * 0.98, 0.02 * 0.98**2])


def test_a_run_needs_a_teacher_and_no_reward_model(tmp_path, monkeypatch):
    for module in (pretraining, gpt.teacher):
        monkeypatch.setattr(module, "RUNS", tmp_path)
    glassbox = load_tokenizer("glassbox")
    for name, layers in (("pretraining-reviews-tiny", 1), ("teacher-reviews", 2)):
        shape = GPTConfig(glassbox.n_vocab, 96, n_layer=layers, n_head=2, n_embd=16)
        model = GPT(shape).initialize(torch.Generator().manual_seed(layers))
        save_gpt(tmp_path / name / "model.safetensors", model, glassbox)
    config = KDPPOConfig(
        steps=1, prompts_per_step=4, eval_every=1, eval_prompts=4, test_prompts=4,
        max_new_tokens=8, pretraining_batch_size=2, device="cpu",
    )  # fmt: skip
    folder = kd_ppo_engine.main(config)
    (row,) = read_jsonl(folder / "metrics.jsonl")
    assert {"validation/reward", "validation/gold", "validation/reverse_kl"} <= set(row)
    assert row["pretraining_loss"] > 5 and (folder / "report.json").exists()
    assert kd_ppo_engine.open_text(replace(config, pretraining_coef=0.0), None) == {}


# The penalty, the KL in the loss, Monte-Carlo targets and a reference that moves


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # k1 is 0.5, -0.5 and 0.5; the teacher's part and the bonus as in the example above
        ("k1", [-1.05, -1.95, 0.95]),
        ("absolute", [-1.05, -2.05, 0.95]),
        ("squared", [-1.0125, -2.0125, 0.9875]),
    ],
)
@pytest.mark.parametrize("dense", [True, False])
def test_the_named_penalty_is_taken_off_every_tokens_reward(name, expected, dense):
    parts = torch.where(MASK, P, 0.0)
    got = kd_token_rewards(
        parts.sum(1), parts if dense else None, OLD, REF, MASK, kl_coef=0.1, bonus=4.0,
        penalty=reward_penalty(name),
    )  # fmt: skip
    if not dense:  # the teacher's part moves to the last token
        moved = [1.0, 2.0, -3.0]
        expected = [a + b for a, b in zip(expected, moved, strict=True)]
    assert got[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_the_penalty_of_a_run_is_the_one_of_the_flag(seen_rewards):
    """After two steps: the same sampler and the same samples, so only the penalty differs."""
    start = small_gpt()
    options = dict(steps=2, kl_coef=0.3, lr=0.1)
    rewards = {}
    for name in ("k1", "absolute"):
        noted = Noted(teacher_reward(CONFIG, TEACHER))
        seen_rewards.clear()
        run(copy.deepcopy(start), noted, kl_penalty=name, **options)
        rewards[name] = (noted.rollouts[1], seen_rewards[1])
    (first, plain), (second, absolute) = rewards.values()
    assert first.responses == second.responses
    with torch.no_grad():
        ref = kd_ppo_engine.rollout_log_probs(start, first, CONFIG)
    k1 = torch.where(first.response_mask, first.log_probs - ref, 0.0)
    assert float(k1.min()) < -0.01
    torch.testing.assert_close(plain - absolute, 0.3 * (k1.abs() - k1), rtol=1e-3, atol=1e-4)


def test_the_kl_in_the_loss_holds_the_student_back():
    options = dict(steps=10, kl_coef=0.0, stop_kl=1e9)
    free, held = run(small_gpt(), **options), run(small_gpt(), kl_loss_coef=3.0, **options)
    assert held[-1]["kl"] < free[-1]["kl"] / 2


def test_the_critic_can_learn_from_monte_carlo_returns():
    """Dense rewards, lambda 0.5: the critic's target is the whole return to go, by loops."""
    policy = small_gpt()
    rollout, critic = some_rollout(policy), ValueModel.from_policy(policy)
    torch.nn.init.normal_(critic.head.weight, std=0.5, generator=torch.Generator().manual_seed(1))
    rewards = torch.randn(
        rollout.response_mask.shape, generator=torch.Generator().manual_seed(2)
    ).masked_fill(~rollout.response_mask, 0.0)
    config = replace(CONFIG, gae_lambda=0.5, critic_lambda=1.0)
    returns = gae_targets(config, rollout, rewards, rollout.log_probs, critic).returns
    for i, length in enumerate(rollout.lengths.tolist()):
        for t in range(length):
            assert float(returns[i, t]) == pytest.approx(float(rewards[i, t:].sum()), abs=1e-5)


@pytest.mark.parametrize(
    ("update", "share"),
    [("never", [0, 0, 0]), ("per_iteration", [0, 1, 1]), ("mix", [0, 0.25, 0.25])],
)
def test_the_reference_moves_every_k_batches(update, share):
    """Every 2 of 3 batches: after the second, alpha * policy + (1 - alpha) * reference."""
    start = small_gpt()
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def validate(policy: GPT, reference: GPT, step: int) -> dict[str, float]:
        seen.append((weights(policy), weights(reference)))
        return {}

    rows = run(
        copy.deepcopy(start), steps=3, eval_every=1, validate=validate, reference_update=update,
        reference_every=2, reference_mix=0.25,
    )  # fmt: skip
    then = seen[1][0]  # the policy after two batches
    for (_, reference), part in zip(seen, share, strict=True):
        torch.testing.assert_close(reference, part * then + (1 - part) * weights(start))
    # The third batch is sampled from that policy, and its KL measured from where the reference is.
    assert (abs(rows[2]["kl"]) < 1e-5) == (update == "per_iteration")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(kl_loss_coef=0.1), "would count the same KL twice"),
        (dict(reference_update="mix", kl_coef=0.0), "reference_update moves what a KL penalty"),
        (dict(reference_every=0), "reference_every must be at least 1"),
        (dict(reference_mix=0.0), "reference_mix above 0 and at most 1"),
    ],
)
def test_the_new_flags_refuse_what_cannot_work(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(CONFIG, **changes)
    replace(CONFIG, reference_update="mix", kl_coef=0.0, kl_loss_coef=0.1)  # a KL to hold on to
