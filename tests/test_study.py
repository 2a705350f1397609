"""The study driver: its engines exist, what is finished is kept, and its tables say what was measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import tyro
from studies.runner import words

from data import reviews
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.command_line import preset_defaults
from harness.paths import REPOSITORY
from rl.kd_grpo_engine import KDGRPOConfig
from rl.rewards.teacher_reward import TeacherReward
from rl.training.open_reward import world_rule
from scripts import study
from scripts.study import RECIPES, STUDIES, Recipe


def test_every_run_is_in_a_study_and_every_engine_in_a_run() -> None:
    assert {name for study in STUDIES.values() for name in study.runs} == set(RECIPES)
    engines = {f"rl.{path.stem}" for path in (REPOSITORY / "rl").glob("*_engine.py")}
    assert engines <= {recipe.module for recipe in RECIPES.values()}


@pytest.mark.parametrize(("name", "recipe"), RECIPES.items(), ids=RECIPES)
def test_the_flags_of_a_run_are_flags_of_its_script(name: str, recipe: Recipe) -> None:
    """Its own, those of the study and those of the start, parsed by the script's own parser."""
    module = importlib.import_module(recipe.module)
    (config,) = (
        value
        for name, value in vars(module).items()
        if name.endswith("Config") and value.__module__ == module.__name__
    )
    for each in STUDIES.values():
        if name in each.runs:
            flags = words(study.flags_of(each, name, Path("start")) | dict(seed=1, device="cpu"))
            default = preset_defaults(config, module.PRESETS, flags)
            parsed = tyro.cli(config, default=default, args=flags)
            assert (parsed.data, parsed.seed, parsed.test_prompts) == (each.world, 1, 0)


def small_judge(name: str) -> study.Judge:
    """A tiny student, and for distillation a tiny teacher, on four prompts."""
    tokenizer = load_tokenizer("glassbox")
    student, teacher = (
        GPT(GPTConfig(tokenizer.n_vocab, 128, n_layer=1, n_head=2, n_embd=16))
        .initialize(torch.Generator().manual_seed(seed))
        .eval()
        for seed in (0, 1)
    )
    gold = world_rule("reviews")
    assert gold is not None
    reward = gold
    if STUDIES[name].teacher:
        reward = TeacherReward(teacher, KDGRPOConfig(), aggregate="sum", reverse_kl=True)
    return study.Judge(STUDIES[name], student, tokenizer, reward, gold, reviews.prompts("test")[:4])


def test_what_distillation_is_measured_by() -> None:
    judge = small_judge("distillation")
    assert isinstance(judge.reward, TeacherReward)
    base, teacher = judge.measure(judge.base), judge.measure(judge.reward.teacher)
    assert base["removed"] == 0 and base["kl"] == pytest.approx(0, abs=1e-4)
    assert teacher["removed"] == pytest.approx(1) and teacher["reverse_kl_full"] < 1e-3
    assert base["reverse_kl_full"] > 0.01
    # A model that knows nothing yet is nearly as perplexed as the vocabulary is large.
    assert 0.5 < base["perplexity"] / judge.tokenizer.n_vocab < 2
    titles = {key for _, key, _ in STUDIES["distillation"].columns} - {"seconds"}
    assert titles <= set(base)
    assert not {"perplexity", "removed"} & set(small_judge("pairs").measure(judge.base))
