"""Whole gradients against slow code: what single tests of the pieces leave open.

scripts/mutation_check.py plants bugs one at a time; these tests see those that sit between two
pieces, or that only a learning curve would have shown.
"""

from __future__ import annotations

import copy
import statistics

import pytest
import torch

from data.records import PromptRecord
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import build_tokenizer
from harness.metric_log import MetricLog
from rl import grpo_engine
from rl.batches.rollout import Rollout
from rl.grpo_engine import GRPOConfig, train
from rl.rewards.sources import RuleReward

LETTERS = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})  # EOS 8, padding 9
PROMPTS = [PromptRecord(text) for text in ("ab", "c", "hgfed", "aaa")]
G, TEMPERATURE, KL_COEF = 4, 0.7, 0.5
HALVES = [[4, 5, 6, 7, 12, 13, 14, 15], [0, 1, 2, 3, 8, 9, 10, 11]]  # groups stay together


def flat_gradient(model: GPT) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


class Update:
    """One optimizer step: the gradient that reached it and the policy that it was taken at."""

    def __init__(self, policy: GPT) -> None:
        self.policy = copy.deepcopy(policy)
        self.gradient = flat_gradient(policy).clone()


def small_gpt() -> GPT:
    shape = GPTConfig(LETTERS.n_vocab, 16, n_layer=2, n_head=2, n_embd=32, dropout=0.3)
    return GPT(shape).initialize(torch.Generator().manual_seed(0)).train()


def row_log_probs(model: GPT, rollout: Rollout, row: int) -> torch.Tensor:
    """(L,) log-probs of one unpadded response, in float64 at the sampler's temperature."""
    prompt = LETTERS.encode(rollout.records[row].prompt)
    response = rollout.response_tokens[row][: int(rollout.lengths[row])].tolist()
    logits = model(torch.tensor([prompt + response]))[0] / TEMPERATURE
    chosen = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return torch.stack([chosen[t, token] for t, token in enumerate(response)])


def slow_gradient(
    policy: GPT, old: GPT, reference: GPT, rollout: Rollout, rewards: list[float], rows: list[int]
) -> tuple[torch.Tensor, int]:
    """GRPO's gradient from its equations (arXiv:2402.03300, Eqs. 3 and 4), and the clipped tokens."""
    policy, old, reference = (copy.deepcopy(m).double().eval() for m in (policy, old, reference))
    policy.zero_grad()
    loss, clipped = torch.zeros((), dtype=torch.float64), 0
    for row in rows:
        group = rewards[row // G * G : row // G * G + G]
        spread = statistics.stdev(group)
        advantage = (rewards[row] - statistics.mean(group)) / (spread + 1e-4) if spread else 0.0
        new = row_log_probs(policy, rollout, row)
        with torch.no_grad():
            before = row_log_probs(old, rollout, row)
            anchor = row_log_probs(reference, rollout, row)
        tokens = []
        for t in range(len(new)):
            ratio = torch.exp(new[t] - before[t])
            surrogate = ratio * advantage
            limit = min(max(ratio.item(), 0.8), 1.2) * advantage
            if limit < surrogate.item():
                clipped += 1
                surrogate = torch.tensor(limit)
            delta = anchor[t] - new[t]
            tokens.append(-surrogate + KL_COEF * (torch.exp(delta) - delta - 1))
        loss = loss + sum(tokens) / len(tokens) / len(rows)
    loss.backward()
    return flat_gradient(policy), clipped


@pytest.fixture(scope="module")
def trained() -> tuple[GPT, list[Update], list[Rollout]]:
    """Two steps of two passes over two given minibatches: (start, eight updates, two rollouts)."""
    updates: list[Update] = []
    rollouts: list[Rollout] = []
    policy = small_gpt()
    start = copy.deepcopy(policy)
    real_step, real_rewards = grpo_engine.clip_and_step, grpo_engine.checked_rewards

    def clip_and_step(optimizer, parameters, max_norm):
        updates.append(Update(policy))
        return real_step(optimizer, parameters, max_norm)

    def checked_rewards(reward_fn, rollout, replacement):
        rollouts.append(rollout)
        return real_rewards(reward_fn, rollout, replacement)

    config = GRPOConfig(
        steps=2, prompts_per_step=4, group_size=G, updates_per_batch=2, micro_batch_size=3,
        lr=1e-2, warmup=0, kl_coef=KL_COEF, max_norm=1e9, temperature=TEMPERATURE,
        max_new_tokens=8,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo_engine, "clip_and_step", clip_and_step)
        patch.setattr(grpo_engine, "checked_rewards", checked_rewards)
        patch.setattr(
            grpo_engine, "minibatches", lambda *args: [torch.tensor(half) for half in HALVES]
        )
        train(config, policy, LETTERS, WORTH, PROMPTS, MetricLog(2))
    return start, updates, rollouts


WORTH = RuleReward(lambda _, text, ended: sum(ord(c) * i for i, c in enumerate(text, 1)) / 99, "")


@pytest.mark.parametrize("index", range(8))
def test_every_update_has_the_gradient_of_the_equations(trained, index):
    """In the second step the policy, the sampler and the reference are three different models."""
    start, updates, rollouts = trained
    step, half = index // 4, HALVES[index % 2]
    old = updates[4 * step].policy  # before the first update of the step
    rollout = rollouts[step]
    rewards = WORTH(rollout).double().tolist()
    expected, clipped = slow_gradient(updates[index].policy, old, start, rollout, rewards, half)
    scale = float(expected.abs().max())
    assert scale > 0.01
    torch.testing.assert_close(
        updates[index].gradient.double(), expected, rtol=1e-3, atol=1e-4 * scale
    )
    if index % 4 == 3:
        assert clipped > 3, "the clip was never active"
