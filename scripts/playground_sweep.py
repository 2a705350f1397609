"""Train the playground's policies: the same GRPO run once for each beta, from timid to over-optimised.

    python scripts/playground_sweep.py                 10 minutes on one core
    python scripts/playground_sweep.py --betas 0 0.2 --steps 20    a quick look

Every policy starts from the base model that the course keeps and is trained against its reward model.
Only beta, the weight of the KL penalty, differs. What is kept of a policy is the change of each matrix,
as the product B A of its 8 largest singular directions in bfloat16, the change of each vector, and what it
then earns on test prompts.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import saved_models
import torch

from data import reviews
from gpt.generate import SamplingParams
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.command_line import run_command
from harness.files import display_path
from harness.flag_ranges import Seed
from harness.metric_log import MetricLog
from harness.safetensors_file import save_weights
from reward_model.scalar_head import RewardModel
from rl import grpo_engine
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.training.evaluation import evaluate

RANK = 8


@dataclass(frozen=True)
class SweepConfig:
    """One GRPO run for each beta, everything else equal."""

    betas: tuple[float, ...] = (2.0, 0.5, 0.15, 0.0)
    """Weights of the KL penalty."""
    steps: int = 140
    """Updates of each run."""
    lr: float = 4e-4
    """Learning rate."""
    test_prompts: int = 128
    """Test prompts that every policy answers at the end."""
    seed: Seed = 0
    """Seed of every run."""
    out: Path = saved_models.SWEEP
    """Where the changes go."""
    debug: bool = False
    """Show the traceback of an error."""


def train(
    config: SweepConfig, beta: float, base: GPT, tokenizer: Tokenizer, judge: RewardModel
) -> GPT:
    """The base model after GRPO with this beta."""
    policy = copy.deepcopy(base)
    settings = grpo_engine.GRPOConfig(
        steps=config.steps, prompts_per_step=8, group_size=8, lr=config.lr, warmup=5,
        kl_coef=beta, stop_kl=None, max_new_tokens=48, eval_every=config.steps, seed=config.seed,
    )  # fmt: skip
    reward = RewardModelReward(judge)
    prompts, log = reviews.prompts("train"), MetricLog(config.steps)
    grpo_engine.train(settings, policy, tokenizer, reward, prompts, log)
    return policy


@torch.no_grad()
def keep_change(policy: GPT, base: GPT) -> dict[str, torch.Tensor]:
    """What training has changed: A (r, in) and B (out, r) of each matrix, and each vector whole.

    `policy` becomes what can be made of this again: base + B A.
    """
    kept = {}
    before = dict(base.named_parameters())
    for name, weight in policy.named_parameters():
        change = weight - before[name]
        if change.ndim == 2:
            U, S, V = torch.linalg.svd(change, full_matrices=False)
            A, B = V[:RANK].bfloat16(), (U[:, :RANK] * S[:RANK]).bfloat16()
            kept |= {f"{name}.A": A, f"{name}.B": B}
            change = B.float() @ A.float()
        else:
            kept[name] = change.bfloat16()
            change = kept[name].float()
        weight.copy_(before[name] + change)
    return kept


def earned(
    policy: GPT, base: GPT, tokenizer: Tokenizer, judge: RewardModel, count: int
) -> dict[str, float]:
    """Mean learned reward, gold reward and KL on prompts that nothing was trained on."""
    result = evaluate(
        policy, tokenizer, reviews.prompts("test")[:count], SamplingParams(max_new_tokens=48),
        RewardModelReward(judge), reference=base, gold=RuleReward(reviews.gold_reward, "gold"),
    )  # fmt: skip
    means = {"learned": result.reward, "gold": result.gold, "kl": result.kl}
    return {
        name: round(float(value.mean()), 4) for name, value in means.items() if value is not None
    }


def main(config: SweepConfig) -> None:
    """Train, measure and write."""
    base, tokenizer = saved_models.base()
    judge, _ = saved_models.reward_model()
    kept: dict[str, torch.Tensor] = {}
    about: dict[str, Any] = {"test_prompts": config.test_prompts, "policies": []}
    about["base"] = earned(base, base, tokenizer, judge, config.test_prompts)
    for number, beta in enumerate(config.betas):
        policy = train(config, beta, base, tokenizer, judge)
        change = keep_change(policy, base)
        kept |= {f"{number}.{name}": tensor for name, tensor in change.items()}
        numbers = {"beta": beta} | earned(policy, base, tokenizer, judge, config.test_prompts)
        print(", ".join(f"{name} {value:.3g}" for name, value in numbers.items()), flush=True)
        about["policies"].append(numbers)
        save_weights(config.out, kept, "sweep_of_policies", about)
    print(f"{display_path(config.out)}: {config.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    run_command(main, SweepConfig)
