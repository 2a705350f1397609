"""Flags that no run can mean are refused by every config before anything is touched.

Each flag with a range is checked when its config is made.
"""

from __future__ import annotations

import math

import pytest

from gpt.finetuning import FinetuningConfig
from gpt.pretraining import PretrainingConfig
from reward_model.reward_model_training import RewardModelConfig
from rl.run.config import EngineConfig
from scripts.demo import DemoConfig

NAN = float("nan")


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (EngineConfig, dict(steps=0)),
        (EngineConfig, dict(lr=-1.0)),
        (EngineConfig, dict(lr=NAN)),
        (EngineConfig, dict(temperature=0.0)),
        (EngineConfig, dict(stop_kl=-math.inf)),
        (EngineConfig, dict(stop_kl=0.0)),
        (EngineConfig, dict(kl_coef=math.inf)),
        (RewardModelConfig, dict(borrowed_responses=5, repeated_responses=3)),
        (DemoConfig, dict(seeds=0)),
    ],
)
def test_what_no_run_can_mean(config, changes):
    with pytest.raises(ValueError):
        config(**changes)


def test_the_edges_are_allowed():
    config = EngineConfig(steps=1, lr=0.0, warmup=0, eval_prompts=0, test_prompts=0, max_norm=1e-9)
    assert config.stop_kl == 6.0 and EngineConfig(stop_kl=None).stop_kl is None
    assert EngineConfig(stop_kl=math.inf, max_norm=math.inf).max_norm == math.inf
    assert FinetuningConfig().steps is None and PretrainingConfig(dropout=0.0).dropout == 0
