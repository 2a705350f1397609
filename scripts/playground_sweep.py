"""Train the playground's policies: GRPO under growing pressure, from timid to over-optimised.

    python scripts/playground_sweep.py                 4 minutes on one core
    python scripts/playground_sweep.py --betas 0.2 --lrs 3e-4 --steps 20    a quick look

Every policy starts from the base model that the course keeps and is trained against its reward model.
Beta, the weight of the KL penalty, falls from run to run, and the last one, without a penalty, has a
larger learning rate as well: nothing keeps it where the reward model knows what it judges. What is
kept of each policy is the change of its matrices at a low rank (0.12 MB, so a page can hold several),
and what that form of it earns on test prompts.
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
from harness.errors import UserError
from harness.files import display_path
from harness.flag_ranges import Seed
from harness.safetensors_file import save_weights
from reward_model.scalar_head import RewardModel
from rl import grpo_engine
from rl.loop import Run
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.training.evaluation import evaluate

RANK = 6


@dataclass(frozen=True)
class SweepConfig:
    """One GRPO run for each beta and its learning rate, everything else equal."""

    betas: tuple[float, ...] = (1.5, 0.3, 0.05, 0.0)
    """Weights of the KL penalty."""
    lrs: tuple[float, ...] = (3e-4, 3e-4, 3e-4, 1e-3)
    """Learning rates, one for each beta."""
    steps: int = 60
    """Updates of each run."""
    test_prompts: int = 128
    """Test prompts that every policy answers at the end."""
    seed: Seed = 0
    """Seed of every run."""
    out: Path = saved_models.SWEEP
    """Where the changes go."""
    debug: bool = False
    """Show the traceback of an error."""


def train(
    config: SweepConfig, beta: float, lr: float, base: GPT, tokenizer: Tokenizer, judge: RewardModel
) -> GPT:
    policy = copy.deepcopy(base)
    settings = grpo_engine.GRPOConfig(
        steps=config.steps, prompts_per_step=8, group_size=8, lr=lr, warmup=5, kl_coef=beta,
        stop_kl=None, max_new_tokens=48, eval_every=config.steps, seed=config.seed,
    )  # fmt: skip
    run = Run(settings, policy, tokenizer, RewardModelReward(judge), reviews.prompts("train"))
    grpo_engine.train(settings, run)
    return policy


@torch.no_grad()
def change_of(policy: GPT, base: GPT) -> dict[str, torch.Tensor]:
    """What training has changed: vectors whole, of a matrix its nearest factors A (r, in), B (out, r)."""
    found = {}
    before = dict(base.named_parameters())
    for name, weight in policy.named_parameters():
        change = weight - before[name]
        if change.ndim < 2:
            found[name] = change.bfloat16()
            continue
        left, sizes, right = torch.linalg.svd(change, full_matrices=False)
        found[f"{name}.A"] = right[:RANK].bfloat16()
        found[f"{name}.B"] = (left[:, :RANK] * sizes[:RANK]).bfloat16().contiguous()
    return found


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
    if len(config.betas) != len(config.lrs):
        raise UserError("--betas and --lrs must be of one length: give each beta its learning rate")
    base, tokenizer = saved_models.base()
    judge, _ = saved_models.reward_model()
    kept: dict[str, torch.Tensor] = {}
    rows: list[dict[str, Any]] = []
    about: dict[str, Any] = {"test_prompts": config.test_prompts, "policies": rows}
    about["base"] = earned(base, base, tokenizer, judge, config.test_prompts)
    for number, (beta, lr) in enumerate(zip(config.betas, config.lrs, strict=True)):
        change = change_of(train(config, beta, lr, base, tokenizer, judge), base)
        policy = saved_models.changed(base, change)
        kept |= {f"{number}.{name}": tensor for name, tensor in change.items()}
        rows.append(
            {"beta": beta, "lr": lr} | earned(policy, base, tokenizer, judge, config.test_prompts)
        )
        print(", ".join(f"{name} {value:.3g}" for name, value in rows[-1].items()), flush=True)
        save_weights(config.out, kept, "sweep_of_policies", about)
    print(f"{display_path(config.out)}: {config.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    run_command(main, SweepConfig)
