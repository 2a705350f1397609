"""Best-of-n: what a reward is worth with no training at all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.seeds import make_generator
from rl.batches.rollout import sample_rollout
from rl.rewards.reward import RewardFn
from rl.run.evaluation import Conditions

USUAL = Conditions()


@torch.no_grad()
def best_of_n(
    policy: GPT,
    tokenizer: Tokenizer,
    records: Sequence[PromptRecord],
    params: SamplingParams,
    reward_fn: RewardFn,
    n: int,
    *,
    gold: RewardFn,
    conditions: Conditions = USUAL,
) -> tuple[Tensor, Tensor]:
    """Sample n responses a prompt and keep the one that `reward_fn` likes best.

    Returns its reward (P,) and gold (P,): what the reward model is worth with no training of the
    policy at all. Its KL from the policy is at most log n - (n - 1)/n nats (Stiennon et al.
    2020, arXiv:2009.01325, appendix G.3).
    """
    generator = make_generator(conditions.seed, "best of n")
    rewards, golds = [], []
    for start in range(0, len(records), conditions.prompts_of(n)):
        batch = records[start : start + conditions.prompts_of(n)]
        with precision(policy.device, conditions.precision):
            rollout = sample_rollout(policy, tokenizer, batch, params, n, generator)
        scores = conditions.rewards(reward_fn, rollout).view(-1, n)
        best = scores.argmax(1, keepdim=True)
        rewards.append(scores.gather(1, best)[:, 0].cpu())
        golds.append(gold(rollout).view(-1, n).gather(1, best)[:, 0].cpu())
    return torch.cat(rewards), torch.cat(golds)
