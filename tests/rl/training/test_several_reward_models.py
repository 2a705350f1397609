"""Several --reward-model as one reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import seeded

from data import names
from data.records import PromptRecord
from gpt.checkpoint import save_gpt
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from harness.files import read_jsonl
from reward_model.scalar_head import RewardModel, save_reward_model
from rl import grpo_engine
from rl.batches.rollout import Rollout, sample_rollout
from rl.grpo_engine import GRPOConfig
from rl.rewards.ensemble import EnsembleReward
from rl.rewards.sources import RewardModelReward
from rl.training.open_reward import RewardChoice, open_reward

CPU = torch.device("cpu")
GLASSBOX = load_tokenizer("glassbox")


def small_gpt(seed: int = 0) -> GPT:
    shape = GPTConfig(GLASSBOX.n_vocab, 96, n_layer=1, n_head=2, n_embd=8)
    return GPT(shape).initialize(seeded(seed))


def reward_model(seed: int) -> RewardModel:
    model = RewardModel.from_policy(small_gpt(seed), generator=seeded(seed))
    with torch.no_grad():
        model.mean.fill_(seed / 10)
        model.std.fill_(0.1 * seed + 0.1)
    return model.eval()


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    """Three reward models, a policy, a file with pairs; an empty folder in place of runs/."""
    monkeypatch.setattr(names, "RUNS", tmp_path / "runs")
    save_gpt(tmp_path / "base" / "model.safetensors", small_gpt(), GLASSBOX)
    for seed in (1, 2, 3):
        path = tmp_path / f"model{seed}" / "model.safetensors"
        save_reward_model(path, reward_model(seed), GLASSBOX)
    pairs = [
        {"prompt": f"Question {i}?\n", "chosen": f"Answer {i}.", "rejected": "No."}
        for i in range(60)
    ]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs), encoding="utf-8")
    return tmp_path


def sampled() -> Rollout:
    records = [PromptRecord("Review the lamp.\n"), PromptRecord("Write to Kate.\n")]
    params = SamplingParams(max_new_tokens=6)
    return sample_rollout(small_gpt(5), GLASSBOX, records, params, 4, seeded(1))


def scores(seed: int, rollout: Rollout) -> torch.Tensor:
    with torch.no_grad():
        return reward_model(seed)(rollout.sequences)


# Several reward models


@pytest.mark.parametrize("combine", ["mean", "min"])
def test_several_reward_models_are_combined_as_the_flag_says(runs, combine):
    config = GRPOConfig(
        reward_model=(runs / "model1", runs / "model2", runs / "model3" / "model.safetensors"),
        ensemble=combine,
    )  # fmt: skip
    reward, rollout = open_reward(RewardChoice.of(config), GLASSBOX, CPU), sampled()
    members = torch.stack([scores(seed, rollout) for seed in (1, 2, 3)])
    expected = {
        "mean": members.sum(0) / 3,
        "min": members.min(0).values,
    }
    torch.testing.assert_close(reward(rollout), expected[combine], rtol=0, atol=1e-5)
    assert float((expected["mean"] - expected["min"]).abs().min()) > 1e-3
    assert isinstance(reward, EnsembleReward) and reward.name == f"{combine} of 3 reward models"
    assert not any(p.requires_grad for model in reward.models for p in model.parameters())


def test_one_folder_is_that_reward_model_and_none_the_default(runs):
    one = GRPOConfig(reward_model=(runs / "model2",))
    reward, rollout = open_reward(RewardChoice.of(one), GLASSBOX, CPU), sampled()
    assert isinstance(reward, RewardModelReward)
    assert torch.equal(reward(rollout), scores(2, rollout))
    with pytest.raises(UserError, match="in .*reward_model-reviews-tiny"):
        open_reward(RewardChoice.of(GRPOConfig()), GLASSBOX, CPU)


def small_run(runs: Path, **changes: Any) -> dict[str, Any]:
    return dict(
        policy=runs / "base", out=runs / "out", steps=2, max_new_tokens=4, eval_every=1, eval_prompts=4,
        test_prompts=4, prompts_per_step=2, group_size=2, minibatches=1, device="cpu",
    ) | changes  # fmt: skip


def test_an_engine_trains_on_an_ensemble_and_logs_the_spread(runs):
    models = (runs / "model1", runs / "model2")
    folder = grpo_engine.main(GRPOConfig(**small_run(runs, reward_model=models, ensemble="min")))
    flags = json.loads((folder / "config.json").read_text())
    assert flags["reward_model"] == [str(runs / "model1"), str(runs / "model2")]
    for row in read_jsonl(folder / "metrics.jsonl"):
        assert row["ensemble_spread"] > 0 and row["reward"] < row["ensemble_mean"]
