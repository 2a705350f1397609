"""Train the playground's policies: the same GRPO run once for each beta, from timid to over-optimised.

    python scripts/playground_sweep.py                 12 minutes on one core
    python scripts/playground_sweep.py --betas 0 0.2 --steps 20    a quick look

Every policy starts from the base model that the course keeps and is trained against its reward model.
Only beta, the weight of the KL penalty, differs. With LoRA a policy is 0.13 MB beside the base, so a
page can hold several. What is kept of each is its adapter in bfloat16, and what it earned on test
prompts; beside them stands what the course's own policy earned, of which all weights were trained.
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
from gpt.lora import adapters, add_adapters
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.command_line import run_command
from harness.files import display_path
from harness.flag_ranges import Seed
from harness.frozen_copy import frozen_copy
from harness.metric_log import MetricLog
from harness.safetensors_file import save_weights
from harness.seeds import make_generator
from reward_model.scalar_head import RewardModel
from rl import grpo_engine
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.training.evaluation import evaluate

RANK = 8


@dataclass(frozen=True)
class SweepConfig:
    """One GRPO run for each beta, everything else equal."""

    betas: tuple[float, ...] = (1.5, 0.3, 0.05, 0.0)
    """Weights of the KL penalty."""
    steps: int = 150
    """Updates of each run."""
    lr: float = 2e-3
    """Learning rate of the adapters."""
    test_prompts: int = 128
    """Test prompts that every policy answers at the end."""
    seed: Seed = 0
    """Seed of every run."""
    out: Path = saved_models.SWEEP
    """Where the adapters go."""
    debug: bool = False
    """Show the traceback of an error."""


def train(
    config: SweepConfig, beta: float, base: GPT, tokenizer: Tokenizer, judge: RewardModel
) -> GPT:
    """The base model after GRPO with this beta; only its adapters have changed."""
    policy = copy.deepcopy(base)
    add_adapters(policy, RANK, generator=make_generator(config.seed, "adapters"))
    settings = grpo_engine.GRPOConfig(
        steps=config.steps, prompts_per_step=8, group_size=8, lr=config.lr, warmup=5,
        kl_coef=beta, stop_kl=None, max_new_tokens=48, lora_rank=RANK, eval_every=config.steps,
        seed=config.seed,
    )  # fmt: skip
    reward = RewardModelReward(judge)
    prompts, log = reviews.prompts("train"), MetricLog(config.steps)
    grpo_engine.train(
        settings, policy, tokenizer, reward, prompts, log, reference=frozen_copy(policy)
    )
    return policy


@torch.no_grad()
def change_of(policy: GPT) -> dict[str, torch.Tensor]:
    """The factors A (r, in) and B (out, r) of the change of each projection, the scale in B."""
    found = {}
    for name, layer in adapters(policy).items():
        found[f"{name}.weight.A"] = layer.lora_A.bfloat16()
        found[f"{name}.weight.B"] = (layer.scale * layer.lora_B).bfloat16()
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
    """Train, measure and write."""
    base, tokenizer = saved_models.base()
    judge, _ = saved_models.reward_model()
    kept: dict[str, torch.Tensor] = {}
    rows: list[dict[str, Any]] = []
    about: dict[str, Any] = {"test_prompts": config.test_prompts, "policies": rows}
    for name, model in (("base", base), ("course", saved_models.policy()[0])):
        about[name] = earned(model, base, tokenizer, judge, config.test_prompts)
    for number, beta in enumerate(config.betas):
        policy = train(config, beta, base, tokenizer, judge)
        kept |= {f"{number}.{name}": tensor for name, tensor in change_of(policy).items()}
        rows.append({"beta": beta} | earned(policy, base, tokenizer, judge, config.test_prompts))
        print(", ".join(f"{name} {value:.3g}" for name, value in rows[-1].items()), flush=True)
        save_weights(config.out, kept, "sweep_of_policies", about)
    print(f"{display_path(config.out)}: {config.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    run_command(main, SweepConfig)
