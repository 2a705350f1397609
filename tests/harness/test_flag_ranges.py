"""Flags that no run can mean are refused by every config before anything is touched.

Each flag with a range is checked when its config is made.
"""

from __future__ import annotations

import math
import re

import pytest

from gpt.finetuning import FinetuningConfig
from gpt.pretraining import PretrainingConfig
from reward_model.reward_model_training import RewardModelConfig
from rl.kd_ppo_engine import KDPPOConfig
from rl.training.config import EngineConfig
from scripts.demo import DemoConfig
from scripts.make_teacher import TeacherConfig
from scripts.mutation_check import MutationCheckConfig

NAN = float("nan")


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (EngineConfig, dict(stop_kl=-1.0), "stop_kl must be above 0, any run would stop there"),
        (EngineConfig, dict(stop_kl=-math.inf), "stop_kl must be finite"),
        (EngineConfig, dict(stop_kl=0.0), "stop_kl must be above 0"),
        (EngineConfig, dict(kl_coef=math.inf), "kl_coef must be finite, and at most 1e+12 in size"),
        (TeacherConfig, dict(least_reward=NAN), "least_reward must be a number: got nan"),
        (RewardModelConfig, dict(borrowed_responses=5, repeated_responses=3), "lower them"),
        (TeacherConfig, dict(batch_size=0), "batch_size must be at least 1"),
        (KDPPOConfig, dict(lora_rank=4, reference_update="mix", kl_coef=0.1), "takes 0.6 of the"),
        (DemoConfig, dict(seeds=0), "seeds must be at least 1"),
        (DemoConfig, dict(test_prompts=1), "test_prompts must be at least 2"),
        (MutationCheckConfig, dict(jobs=0), "jobs must be at least 1"),
    ],
)
def test_what_no_run_can_mean(config, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config(**changes)


def test_the_edges_are_allowed():
    config = EngineConfig(steps=1, lr=0.0, warmup=0, eval_prompts=0, test_prompts=0, max_norm=1e-9)
    assert config.stop_kl == 6.0 and EngineConfig(stop_kl=None).stop_kl is None
    assert EngineConfig(stop_kl=math.inf, max_norm=math.inf).max_norm == math.inf
    assert FinetuningConfig().steps is None and PretrainingConfig(dropout=0.0).dropout == 0
