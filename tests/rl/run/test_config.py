"""What all engines' configs share: presets per size and world, the KL controller, refusals."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from pathlib import Path

import pytest

from data.sources import from_preset, preset_defaults, world_names
from data.worlds import sums as sums_world
from rl.run.config import SIZES, EngineConfig, size_presets
from rl.run.engine import every_engine

RL = Path(__file__).resolve().parents[3] / "rl"
ENGINES = sorted(path.stem for path in RL.glob("*_engine.py"))


def config_class(engine: str) -> type[EngineConfig]:
    module = importlib.import_module(f"rl.{engine}")
    (found,) = (
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and dataclasses.is_dataclass(value)
        and value.__module__ == module.__name__
        and value.__name__.endswith("Config")
    )
    return found


def test_every_engine_is_found() -> None:
    assert [engine.module for engine in every_engine()] == [f"rl.{name}" for name in ENGINES]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_preset_is_a_config(engine: str) -> None:
    module = importlib.import_module(f"rl.{engine}")
    samples = issubclass(config_class(engine), EngineConfig)  # worlds have no recorded pairs
    for size in module.PRESETS:
        for data in ("pairs.json", *(world_names() if samples else ())):
            from_preset(config_class(engine), module.PRESETS, size, data=data)
    assert set(module.PRESETS) >= {*SIZES}
    assert (module.PRESETS.settings("tiny", "sums") != {}) == samples


def test_a_world_has_defaults_of_its_own(monkeypatch) -> None:
    monkeypatch.setitem(sums_world.DEFAULTS, "other", {"tiny": {"lr": 7.0}})
    presets = size_presets("other", {"lr": 5.0})
    reviews, sums, small = (
        preset_defaults(EngineConfig, presets, arguments)
        for arguments in ([], ["--data", "sums"], ["--preset=small", "--data=sums"])
    )
    assert (reviews.lr, reviews.kl_coef, reviews.data) == (2e-4, 0.1, "reviews")
    assert (sums.lr, sums.kl_coef, sums.stop_kl, sums.data) == (7.0, 0.0, None, "sums")
    assert (small.lr, small.preset, small.data) == (5.0, "small", "sums")
