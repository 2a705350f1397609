"""The memory forecast of the engines, and the table that is made of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpt.memory.forecast import GB, Forecast, fitting_change, parameters
from gpt.model import preset_config
from rl.commands import memory_tables
from rl.commands.memory_tables import ENGINES, MemoryConfig, config_of, forecasts
from rl.memory import main

DOCS = Path(__file__).resolve().parents[3] / "docs" / "memory.md"
FLAGS = MemoryConfig()


def grpo(preset: Any, **fields: Any) -> Forecast:
    config = replace(config_of("grpo", preset, FLAGS), **fields)
    return forecasts("grpo", preset, FLAGS)(config)


def test_every_engine_has_a_row() -> None:
    files = (DOCS.parents[1] / "rl").glob("*_engine.py")
    engines = {path.stem.removesuffix("_engine") for path in files}
    assert engines == set(ENGINES)


@pytest.mark.parametrize("script", (*ENGINES, *memory_tables.STAGES))
@pytest.mark.parametrize("preset", ["tiny", "gpt2-xl"])
def test_every_script_is_forecast(script: str, preset: Any) -> None:
    """And more rows need more, whatever the script."""
    config, memory_of = config_of(script, preset, FLAGS), forecasts(script, preset, FLAGS)
    result = memory_of(config)
    assert all(size >= 0 for parts in result.phases.values() for size in parts)
    shape = preset_config(preset, memory_tables.vocabulary(preset))
    assert result.peak > 4 * 4 * parameters(shape)
    sizes = [name for name in ("micro_batch_size", "batch_size") if getattr(config, name, None)]
    double: Any = replace(config, **{name: 2 * getattr(config, name) for name in sizes})
    larger = memory_of(double).phases["update"].activations
    assert larger > 1.5 * result.phases["update"].activations


@pytest.mark.parametrize("preset", memory_tables.PUBLISHED)
@pytest.mark.parametrize("card", [16, 24, 80])
def test_every_published_size_fits_every_card_with_some_flags(preset: Any, card: int) -> None:
    config, memory_of = config_of("grpo", preset, FLAGS), forecasts("grpo", preset, FLAGS)
    if memory_of(config).peak > card * GB:
        found = fitting_change(config, memory_of, card * GB)
        assert found is not None and found[1] <= card * GB
        assert memory_of(found[0].config).peak == found[1]


def test_one_script_in_full_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(MemoryConfig(preset=("gpt2-xl",), script=("grpo",)))
    printed = capsys.readouterr().out
    assert re.search(r"16 GB  --micro-batch-size 1 --sample-rows \d+ --lora-rank 16", printed)
    main(MemoryConfig(preset=("gpt2",), script=("grpo", "rloo", "ppo")))
    printed = capsys.readouterr().out
    assert "grpo, rloo" in printed and "m --micro-batch-size" in printed


def test_the_page_holds_what_the_command_writes() -> None:
    text = DOCS.read_text(encoding="utf-8")
    medium: Any = ("gpt2-medium",)
    assert "\n".join(memory_tables.card_tables(replace(FLAGS, preset=medium))) in text


@pytest.mark.parametrize("changes", [{"cards": (0,)}, {"prompt_tokens": -1}, {"answer_tokens": 0}])
def test_sizes_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(changes))} must be at least 1"):
        MemoryConfig(**changes)
