"""Whole gradients against slow code: what single tests of the pieces leave open.

scripts/mutation_check.py plants bugs one at a time; these tests see those that sit between two
pieces, or that only a learning curve would have shown.
"""

from __future__ import annotations

import copy
import statistics

import pytest
import torch
from engines import small_gpt
from slow import chosen, flat_gradient, tokens_of
from toys import LETTERS, PROMPTS
from watched import HALVES, Noted, Updates, given_halves

from gpt.model import GPT
from rl.batches.rollout import Rollout
from rl.grpo_engine import GRPOConfig, train
from rl.loop import Run
from rl.rewards.reward import RuleReward

G, TEMPERATURE, KL_COEF = 4, 0.7, 0.5
WORTH = RuleReward(lambda _, text, ended: sum(ord(c) * i for i, c in enumerate(text, 1)) / 99, "")


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
        texts = tokens_of(rollout, row)
        new = chosen(policy, *texts, TEMPERATURE)
        with torch.no_grad():
            before = chosen(old, *texts, TEMPERATURE)
            anchor = chosen(reference, *texts, TEMPERATURE)
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
def trained() -> tuple[GPT, Updates, list[Rollout]]:
    """Two steps of two passes over two given minibatches: (start, eight updates, two rollouts)."""
    policy, reward = small_gpt(dropout=0.3).train(), Noted(WORTH)
    start = copy.deepcopy(policy)
    config = GRPOConfig(
        steps=2, prompts_per_step=4, group_size=G, updates_per_batch=2, micro_batch_size=3,
        lr=1e-2, warmup_steps=0, kl_coef=KL_COEF, max_grad_norm=1e9, temperature=TEMPERATURE,
        max_new_tokens=8,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        updates = Updates(patch, policy)
        given_halves(patch, passes=2)
        train(Run(config, policy, LETTERS, reward, PROMPTS[:4]))
    return start, updates, reward.rollouts


@pytest.mark.parametrize("index", range(8))
def test_every_update_has_the_gradient_of_the_equations(trained, index):
    """In the second step the policy, the sampler and the reference are three different models."""
    start, updates, rollouts = trained
    step, half = index // 4, HALVES[index % 2]
    models = updates.policies[index], updates.policies[4 * step], start  # new, old, reference
    rewards = WORTH(rollouts[step]).double().tolist()
    expected, clipped = slow_gradient(*models, rollouts[step], rewards, half)
    scale = float(expected.abs().max())
    assert scale > 0.01
    found = updates.gradients[index].double()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * scale)
    if index % 4 == 3:
        assert clipped > 3, "the clip was never active"
