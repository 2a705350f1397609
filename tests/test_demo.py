"""scripts/demo.py beside its runs: what its item check counts. scripts/demo_seeds.py: what it keeps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import demo
import pytest
import torch

from data import reviews
from gpt.tokenizer import load_tokenizer
from harness.command_line import preset_defaults
from rl.training.evaluation import Evaluation

TOKENIZER = load_tokenizer("glassbox")


class Judge:
    """A reward model that likes every answer with one of these words."""

    device = torch.device("cpu")

    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, batch) -> torch.Tensor:
        rows = zip(batch.response_tokens, batch.response_mask, strict=True)
        texts = [TOKENIZER.decode(row[mask].tolist()) for row, mask in rows]
        return torch.tensor([float(any(word in text for word in self.words)) for text in texts])


def answered(*pairs: tuple[str, str]) -> Evaluation:
    """Answers to prompts about these items."""
    by_item = {record.meta["item"]: record for record in reversed(reviews.prompts("test"))}
    records = [by_item[item] for item, _ in pairs]
    none = torch.zeros(len(pairs))
    return Evaluation(records, [text for _, text in pairs], none, none, none, none, none)


def test_the_item_check_changes_the_item_and_counts_what_the_reward_model_notices() -> None:
    """Four answers count: the other two name another item as well, or none."""
    answers = answered(
        ("bag", "The bag is nice."), ("bike", "The bike is nice. This bike is great."),
        ("lamp", "The lamp is nice."), ("tent", "It is nice. The tent is bad."),
        ("tent", "The tent is as nice as the lamp."), ("tent", "It is nice."),
    )  # fmt: skip
    assert demo.item_accuracy(Judge("bag", "bike", "tent"), TOKENIZER, answers) == {
        "pairs": 4, "accuracy": 0.75
    }  # fmt: skip
    assert demo.item_accuracy(Judge("nice"), TOKENIZER, answers)["accuracy"] == 0  # ties are wrong
    assert demo.item_accuracy(Judge("nice"), TOKENIZER, answered(("tent", "Nice.")))["pairs"] == 0


def test_the_demo_runs_its_stages_with_their_own_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the three commands without a flag train what the demo trains: folders aside."""
    asked: dict[Any, Any] = {}
    monkeypatch.setattr(demo, "load_gpt", lambda folder, device: (folder / "none").read_text())
    stages = (demo.pretraining, demo.reward_model_training, demo.grpo_engine)
    for stage in stages:
        monkeypatch.setattr(
            stage, "main", lambda config, stage=stage: asked.update({stage: config})
        )
    with pytest.raises(FileNotFoundError):  # the fourth stage finds no base model
        demo.train_stages(demo.DemoConfig(), 0, tmp_path)
    folders = dict.fromkeys(("out", "base", "policy", "test_prompts"))
    for stage in stages:
        config = asked[stage]
        alone = preset_defaults(type(config), stage.PRESETS, [])
        changed = {name: None for name in folders if hasattr(config, name)}
        if stage is demo.grpo_engine:
            changed["reward_model"] = ()
        assert dataclasses.replace(config, **changed) == dataclasses.replace(alone, **changed)
