"""scripts/demo.py beside its runs: its stages are the commands without a flag."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import demo
import pytest

from data.sources import preset_defaults


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
