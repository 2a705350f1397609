"""`--precision bfloat16`: every forward of every engine and script runs in it, none in float32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
from engines import ENGINES, SHARE_OF_A, Engine, Texts, small_gpt, some_rollout
from toys import LETTERS, PROMPTS, seeded

from data import names
from gpt import distillation, finetuning, pretraining
from gpt.checkpoint import save_gpt
from gpt.generate import SamplingParams
from gpt.tokenizer import load_tokenizer
from harness.files import read_jsonl
from harness.metric_log import MetricLog
from reward_model.scalar_head import RewardModel, save_reward_model
from rl import grpo_engine
from rl.loop import Run
from rl.rewards.sources import EnsembleReward, RewardModelReward
from rl.rewards.step_rewards import RewardModelSteps
from rl.training.evaluation import Conditions, Validation

PARAMS = SamplingParams(max_new_tokens=4)
# The single-model engine says so of every run with one update a batch.
pytestmark = pytest.mark.filterwarnings("ignore:with one update a batch")


@pytest.fixture
def products() -> Iterator[Counter[torch.dtype]]:
    """How many linear layers of a trunk have computed in which dtype since the test began."""
    seen: Counter[torch.dtype] = Counter()

    def note(layer: nn.Module, inputs: object, output: torch.Tensor) -> None:
        if isinstance(layer, nn.Linear):
            seen[output.dtype] += 1

    handle = nn.modules.module.register_module_forward_hook(note)
    yield seen
    handle.remove()


def reward_model(seed: int = 3) -> RewardModel:
    return RewardModel.from_policy(small_gpt(seed, sharpness=4.0), "mean_score", seeded(seed))


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_every_forward_of_an_engine_runs_in_the_flags_precision(engine: Engine, products):
    """Sampling, scoring, reward, critic, teacher, update and validation with its KL."""
    model = reward_model()
    for precision, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        reward = RewardModelReward(model, dtype=precision) if engine.rule else None
        options = dict(steps=1, eval_every=1, precision=precision) | engine.everything
        config = engine.configured(**{k: v for k, v in options.items() if engine.has(k)})
        judged = reward or SHARE_OF_A
        if engine.taught_by is not None:
            judged = engine.taught_by(config, engine.teacher)
        given = dict(start=small_gpt(1), conditions=Conditions.of(config))
        validate = Validation(LETTERS, PROMPTS, PARAMS, judged, **given)
        products.clear()
        engine.run(small_gpt(), reward, validate=validate, **options)
        assert products.keys() == {dtype}


def test_rewards_by_models_run_in_their_precision(products):
    rollout = some_rollout(small_gpt(), max_new_tokens=4, group_size=2)
    model, reference = reward_model(), rollout.sequences.rows(torch.arange(4))
    exact = RewardModelReward(model)(rollout)
    products.clear()
    rewards = RewardModelReward(model, dtype="bfloat16")(rollout)
    ensemble = EnsembleReward([model, reward_model(4)], reference=reference, dtype="bfloat16")
    ensemble(rollout)
    RewardModelSteps(model, LETTERS, dtype="bfloat16")(rollout, rewards)
    assert products.keys() == {torch.bfloat16}
    torch.testing.assert_close(rewards, exact, rtol=0.02, atol=0.02)
    assert not torch.equal(rewards, exact)


def test_pretraining_and_finetuning_with_their_held_out_losses(products):
    config = pretraining.PretrainingConfig(steps=1, precision="bfloat16")
    rows = [*pretraining.train(config, small_gpt(), Texts(), MetricLog(1))]
    examples = [([1, 2], [3, 8]), ([4], [5, 6, 8])]
    config = finetuning.FinetuningConfig(precision="bfloat16")
    rows += finetuning.train(config, small_gpt(), examples, examples, MetricLog(1), eos_id=8)
    assert all("held_out_loss" in row for row in rows) and products.keys() == {torch.bfloat16}


@pytest.mark.parametrize("loss", ["forward_kl", "reverse_kl", "topk_ce"])
def test_distillation_and_its_sampling(products, loss):
    config = distillation.DistillationConfig(
        steps=1, batch_size=4, max_new_tokens=4, loss=loss, precision="bfloat16", sampled_tokens=2
    )
    teacher = small_gpt(1).requires_grad_(False)
    distillation.train(config, small_gpt(), teacher, LETTERS, PROMPTS, MetricLog(1))
    assert products.keys() == {torch.bfloat16}


# Frozen models


def write_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base and a reward model where the scripts look for them."""
    monkeypatch.setattr(names, "RUNS", tmp_path)
    glassbox = load_tokenizer("glassbox")
    policy = small_gpt(n_vocab=glassbox.n_vocab, context=96, n_layer=1)
    save_gpt(tmp_path / "pretraining-reviews-tiny" / "model.safetensors", policy, glassbox)
    model = RewardModel.from_policy(policy, "mean_score", seeded(0))
    save_reward_model(tmp_path / "reward_model-reviews-tiny" / "model.safetensors", model, glassbox)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_whole_run_in_bfloat16_with_its_frozen_start_in_half(tmp_path, monkeypatch, rank):
    """Validation, token log, checkpoint and comparison: all of them meet halved models."""
    write_models(tmp_path, monkeypatch)
    seen: list[set[torch.dtype]] = []

    def halved(config: Any, run: Run) -> Any:
        models = run.reference, run.policy
        seen.append({model.h[0].attn.c_attn.weight.dtype for model in models})
        return grpo_engine.train(config, run)

    config = grpo_engine.GRPOConfig(
        precision="bfloat16", lora_rank=rank, steps=2, eval_every=1, eval_prompts=4, test_prompts=4,
        prompts_per_step=2, group_size=2, minibatches=1, max_new_tokens=8, checkpoint_every=1,
        out=tmp_path / "grpo", device="cpu",
    )  # fmt: skip
    folder = replace(grpo_engine.ENGINE, train=halved).run(config)
    assert seen == [{torch.float32} if rank else {torch.float32, torch.bfloat16}]
    rows = read_jsonl(folder / "tokens.jsonl")
    assert {row["kind"] for row in rows} == {"training", "validation"}
    assert "prefix_score" in rows[0]["values"]
