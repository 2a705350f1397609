"""The study driver: its engines exist, and its flags are theirs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import tyro

from data.sources import preset_defaults
from studies import engines as study
from studies.engines import RECIPES, STUDIES, Recipe
from studies.runner import words


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
