"""PPO's doubling rule by its flag: every engine with a KL coefficient obeys it and resumes it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.metric_log import MetricLog
from harness.training_state import saved_step

from data.records import PromptRecord
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import build_tokenizer
from rl.rewards.sources import RuleReward
from rl.rewards.step_rewards import OutcomeSteps

LETTERS = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})
PROMPTS = [PromptRecord(text) for text in ("ab", "c", "hgfed", "aaa")]
REWARD = RuleReward(lambda record, text, ended: text.count("a") / 8, "share of a")
ENGINES = {
    "ppo_engine": "PPOConfig",
    "grpo_engine": "GRPOConfig",
    "grpo_process_engine": "ProcessGRPOConfig",
    "grpo_iterative_engine": "IterativeGRPOConfig",
    "grpo_single_model_engine": "SingleModelGRPOConfig",
    "grpo_variants_engine": "GRPOVariantsConfig",
    "rloo_engine": "RLOOConfig",
    "reinforce_pp_engine": "ReinforcePPConfig",
    "pg_grpo_engine": "PGGRPOConfig",
    "kd_grpo_engine": "KDGRPOConfig",
    "kd_ppo_engine": "KDPPOConfig",
}
CONFIG: dict[str, Any] = dict(
    prompts_per_step=4, group_size=4, minibatches=2, lr=1e-2, warmup=1, kl_coef=0.02, stop_kl=None,
    max_new_tokens=8, eval_every=100, checkpoint_every=1000, kl_controller="doubling",
)  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "grpo_iterative_engine": dict(iterations=1),
    "kd_grpo_engine": dict(pretraining_coef=0.0),
    "kd_ppo_engine": dict(pretraining_coef=0.0),
}


class Crash(Exception):
    pass


class CrashingLog(MetricLog):
    """Ends the run after three steps."""

    def write(self, *, step: int, **metrics: Any) -> None:
        super().write(step=step, **metrics)
        if step == 3:
            raise Crash


def small_gpt(seed: int = 0) -> GPT:
    shape = GPTConfig(LETTERS.n_vocab, 16, n_layer=1, n_head=2, n_embd=16)
    return GPT(shape).initialize(torch.Generator().manual_seed(seed)).eval()


def run(
    engine: str, *, log: MetricLog | None = None, folder: Path | None = None, **changes: Any
) -> list[dict[str, Any]]:
    module = importlib.import_module(f"rl.{engine}")
    config = getattr(module, ENGINES[engine])(**(CONFIG | OWN.get(engine, {}) | changes))
    log = log or MetricLog(config.steps)
    more = {"step_reward_fn": OutcomeSteps()} if engine == "grpo_process_engine" else {}
    reward = module.teacher_reward(config, small_gpt(1)) if engine.startswith("kd") else REWARD
    return module.train(config, small_gpt(), LETTERS, reward, PROMPTS, log, folder=folder, **more)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_with_a_coefficient_doubles_and_halves_it(engine: str) -> None:
    """By the KL that it logs: of the batch in the single-model engine, else from the reference."""
    rows = run(engine, steps=3, kl_target=1e3)
    assert [row["kl_coef"] for row in rows] == pytest.approx([0.02, 0.01, 0.005])
    measured = "kl_old_new" if engine == "grpo_single_model_engine" else "kl"
    rows = run(engine, steps=4, kl_target=1e-7)
    factors = [2.0 if row[measured] > 1.5e-7 else 0.5 for row in rows[:-1]]
    assert 2.0 in factors
    moved = [after["kl_coef"] / row["kl_coef"] for row, after in zip(rows, rows[1:], strict=False)]
    assert moved == pytest.approx(factors)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_resumed_run_goes_on_with_the_coefficient_that_it_had(
    engine: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = dict(steps=4, kl_target=1e3, checkpoint_every=2)
    with pytest.raises(Crash):
        run(engine, log=CrashingLog(4), folder=tmp_path, **options)
    assert saved_step(tmp_path) == 2
    rows = run(engine, folder=tmp_path, resume=True, **options)
    assert [row["kl_coef"] for row in rows] == pytest.approx([0.005, 0.0025])
