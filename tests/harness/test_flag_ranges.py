"""Flags that no run can mean are refused by every config before anything is touched."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from gpt.finetuning import FinetuningConfig
from gpt.pretraining import PretrainingConfig
from reward_model.reward_model_training import RewardModelConfig
from rl.dpo_engine import DPOConfig
from rl.grpo_engine import GRPOConfig
from rl.grpo_iterative_engine import IterativeGRPOConfig
from rl.grpo_variants_engine import GRPOVariantsConfig
from rl.kd_ppo_engine import KDPPOConfig
from rl.ppo_engine import PPOConfig
from rl.training.config import EngineConfig
from scripts.demo import DemoConfig
from scripts.make_teacher import TeacherConfig
from scripts.mutation_check import MutationCheckConfig

NAN = float("nan")


@pytest.mark.parametrize("config", [EngineConfig, PretrainingConfig, FinetuningConfig])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(steps=0), "steps must be at least 1: got 0"),
        (dict(eval_every=0), "eval_every must be at least 1"),
        (dict(checkpoint_every=0), "checkpoint_every must be at least 1"),
        (dict(lr=-1e-3), "lr must not be negative: got -0.001"),
        (dict(lr=NAN), "lr must not be negative: got nan"),
        (dict(warmup=-3), "warmup must not be negative"),
        (dict(max_norm=0.0), "max_norm must be above 0"),
        (dict(max_norm=-1.0), "max_norm must be above 0"),
    ],
)
def test_the_ranges_that_all_scripts_share(config, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config(**changes)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (EngineConfig, dict(temperature=0.0), "temperature must be above 0: got 0.0"),
        (EngineConfig, dict(eval_prompts=-1), "eval_prompts must not be negative: got -1"),
        (EngineConfig, dict(test_prompts=-1), "test_prompts must not be negative"),
        (EngineConfig, dict(non_finite_reward=NAN), "non_finite_reward must be a number: got nan"),
        (
            EngineConfig,
            dict(stop_kl=NAN),
            "stop_kl must be above 0, any run would stop there: got nan",
        ),
        (EngineConfig, dict(stop_kl=-1.0), "stop_kl must be above 0, any run would stop there"),
        (EngineConfig, dict(stop_kl=-math.inf), "stop_kl must be finite"),
        (EngineConfig, dict(stop_kl=0.0), "stop_kl must be above 0"),
        (EngineConfig, dict(kl_coef=math.inf), "kl_coef must be finite, and at most 1e+12 in size"),
        (EngineConfig, dict(temperature=1e300), "temperature must be finite, and at most 1e+12"),
        (DPOConfig, dict(beta=1e300), "beta must be finite"),
        (RewardModelConfig, dict(centering=math.inf), "centering must be finite"),
        (FinetuningConfig, dict(weight_decay=math.inf), "weight_decay must be finite"),
        (EngineConfig, dict(seed=10**30), "seed must be at most 9223372036854775807 in size"),
        (PretrainingConfig, dict(data=""), "data is empty: give reviews, sums or a file"),
        (RewardModelConfig, dict(centering=NAN), "centering must not be negative: got nan"),
        (TeacherConfig, dict(least_reward=NAN), "least_reward must be a number: got nan"),
        (GRPOConfig, dict(clip_low=-0.2), "clip_low must not be negative: got -0.2"),
        (GRPOConfig, dict(clip_high=NAN), "clip_high must not be negative"),
        (PPOConfig, dict(critic_lr=-1.0), "critic_lr must not be negative"),
        (IterativeGRPOConfig, dict(wide_temperature=0.0), "wide_temperature must be above 0"),
        (IterativeGRPOConfig, dict(reward_batch_size=0), "reward_batch_size must be at least 1"),
        (PretrainingConfig, dict(accumulation=0), "accumulation must be at least 1"),
        (PretrainingConfig, dict(dropout=1.0), "dropout must be at least 0 and below 1: got 1.0"),
        (FinetuningConfig, dict(epochs=0), "epochs must be at least 1"),
        (FinetuningConfig, dict(batch_size=0), "batch_size must be at least 1"),
        (RewardModelConfig, dict(batch_size=0), "batch_size must be at least 1"),
        (
            RewardModelConfig,
            dict(responses_per_prompt=1),
            "responses_per_prompt must be at least 2",
        ),
        (RewardModelConfig, dict(pairs=0), "pairs must be at least 1"),
        (RewardModelConfig, dict(held_out_pairs=0), "held_out_pairs must be at least 1"),
        (TeacherConfig, dict(batch_size=0), "batch_size must be at least 1"),
        (TeacherConfig, dict(eval_prompts=-1), "eval_prompts must not be negative"),
        (EngineConfig, dict(lora_rank=-1), "lora_rank must not be negative: got -1"),
        (
            FinetuningConfig,
            dict(lora_rank=4, lora_alpha=0.0),
            "lora_alpha must be above 0: got 0.0",
        ),
        (
            EngineConfig,
            dict(adapter=Path("a")),
            "adapter goes on from a LoRA adapter: give lora_rank",
        ),
        (DPOConfig, dict(adapter=Path("a"), lora_rank=4, lora_alpha=8.0), "brings its own alpha"),
        (
            GRPOVariantsConfig,
            dict(lora_rank=4, reference_mixing=0.5),
            "takes 0.5 of the policy mixes",
        ),
        (KDPPOConfig, dict(lora_rank=4, reference_update="mix", kl_coef=0.1), "takes 0.6 of the"),
        (DemoConfig, dict(seeds=0), "got 0 and 512"),
        (DemoConfig, dict(test_prompts=1), "got 1 and 1"),
        (MutationCheckConfig, dict(jobs=0), "jobs must be at least 1"),
    ],
)
def test_what_no_run_can_mean(config, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config(**changes)


def test_the_edges_are_allowed():
    config = EngineConfig(steps=1, lr=0.0, warmup=0, eval_prompts=0, test_prompts=0, max_norm=1e-9)
    assert config.stop_kl == 8.0 and EngineConfig(stop_kl=None).stop_kl is None
    assert EngineConfig(stop_kl=math.inf, max_norm=math.inf).max_norm == math.inf
    assert GRPOVariantsConfig(lora_rank=4, reference_mixing=1.0).lora_alpha is None
    assert FinetuningConfig().steps is None and PretrainingConfig(dropout=0.0).dropout == 0
