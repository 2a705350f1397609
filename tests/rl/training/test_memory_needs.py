"""The memory forecast of the engines, and the table that is made of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpt.memory.announce import GB, fitting_change
from gpt.memory.forecast import Forecast, parameters
from gpt.model import preset_config
from rl.commands import memory_tables
from rl.commands.memory_tables import ENGINES, MemoryConfig, config_of, forecasts
from rl.grpo_engine import PRESETS, GRPOConfig
from rl.kd_grpo_engine import KDGRPOConfig
from rl.memory import main
from rl.training.memory_needs import Given, engine_forecast

DOCS = Path(__file__).resolve().parents[3] / "docs" / "memory.md"
FLAGS = MemoryConfig()


def grpo(preset: Any, **fields: Any) -> Forecast:
    config = replace(config_of("grpo", preset, FLAGS), **fields)
    return forecasts("grpo", preset, FLAGS)(config)


def test_every_engine_has_a_row() -> None:
    files = (DOCS.parents[1] / "rl").glob("*_engine.py")
    engines = {path.stem.removesuffix("_engine") for path in files}
    assert engines == set(ENGINES)


def test_a_script_that_is_none_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match="no script gpro: choose of.*grpo"):
        MemoryConfig(script=("gpro",))


@pytest.mark.parametrize("script", (*ENGINES, *memory_tables.STAGES))
@pytest.mark.parametrize("preset", ["tiny", "gpt2-xl"])
def test_every_script_is_forecast(script: str, preset: Any) -> None:
    """And more rows need more, whatever the script."""
    config, memory_of = config_of(script, preset, FLAGS), forecasts(script, preset, FLAGS)
    result = memory_of(config)
    assert all(size >= 0 for parts in result.parts.values() for size in parts)
    shape = preset_config(preset, memory_tables.vocabulary(preset))
    assert result.peak > 4 * 4 * parameters(shape)
    sizes = [name for name in ("micro_batch_size", "batch_size") if vars(config).get(name)]
    double: Any = replace(config, **{name: 2 * vars(config)[name] for name in sizes})
    larger = memory_of(double).parts["update"].activations
    assert larger > 1.5 * result.parts["update"].activations


def test_copies_of_the_weights() -> None:
    """The page's table: GRPO 6, a moving reference 7, PPO 10, MiniLLM with a teacher of its size 6."""
    one = 4 * parameters(preset_config("gpt2", 50257))
    for script, copies in (("grpo", 6), ("grpo_iterative", 7), ("ppo", 10), ("minillm", 6)):
        models = forecasts(script, "gpt2", FLAGS)(config_of(script, "gpt2", FLAGS)).models
        held = sum(model.weights + 3 * 4 * model.trained_parameters for model in models)
        assert held == copies * one, script


def test_xl_with_adapters_fits_a_small_card() -> None:
    assert grpo("gpt2-xl").parts["update"].sum > 40 * GB
    saving = grpo("gpt2-xl", lora_rank=16, checkpoint_blocks=True)
    assert saving.parts["update"].sum < 16 * GB
    assert grpo("gpt2-xl", lora_rank=16, checkpoint_blocks=True, sample_rows=8).peak < 16 * GB


@pytest.mark.parametrize("preset", memory_tables.PUBLISHED)
@pytest.mark.parametrize("card", [16, 24, 80])
def test_every_published_size_fits_every_card_with_some_flags(preset: Any, card: int) -> None:
    config, memory_of = config_of("grpo", preset, FLAGS), forecasts("grpo", preset, FLAGS)
    if memory_of(config).peak > card * GB:
        found = fitting_change(config, memory_of, card * GB)
        assert found is not None and found.peak <= card * GB
        assert memory_of(found.config).peak == found.peak


def test_fewer_sampled_rows_need_a_smaller_cache_but_hold_a_group() -> None:
    whole, less = grpo("gpt2").parts["sampling"], grpo("gpt2", sample_rows=16).parts["sampling"]
    assert less.cache * 4 == pytest.approx(whole.cache, rel=1e-6)
    one, group = (grpo("gpt2", sample_rows=rows).parts["sampling"] for rows in (1, 8))
    assert one == group  # of eight


def test_a_reference_that_moves_is_a_copy_more() -> None:
    given = Given(preset_config("gpt2", 50257), teacher=preset_config("gpt2", 50257))
    still = engine_forecast(ENGINES["kd_grpo"], KDGRPOConfig(), given)
    moves = engine_forecast(ENGINES["kd_grpo"], KDGRPOConfig(reference_update="mix"), given)
    names = [[model.name for model in work.models] for work in (still, moves)]
    assert names == [["policy", "start", "teacher"], ["policy", "start", "reference", "teacher"]]


def test_ranks_share_the_sampled_rows() -> None:
    given = Given(preset_config("gpt2", 50257))
    config = GRPOConfig(**PRESETS["gpt2"])
    one = engine_forecast(ENGINES["grpo"], config, given).parts["sampling"]
    two = engine_forecast(ENGINES["grpo"], config, replace(given, ranks=2)).parts["sampling"]
    assert two.cache * 2 == one.cache and two.weights == one.weights


def test_one_script_in_full_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(MemoryConfig(preset=("gpt2-xl",), script=("grpo",)))
    printed = capsys.readouterr().out
    assert re.search(r"16 GB  --micro-batch-size 1 --sample-rows \d+ --lora-rank 16", printed)
    main(MemoryConfig(preset=("gpt2",), script=("grpo", "rloo", "ppo")))
    printed = capsys.readouterr().out
    assert "grpo, rloo" in printed and "m --micro-batch-size" in printed


def test_the_page_holds_what_the_command_writes() -> None:
    text = DOCS.read_text(encoding="utf-8")
    xl: Any = ("gpt2-xl",)
    assert "\n".join(memory_tables.card_tables(replace(FLAGS, preset=xl))) in text


@pytest.mark.parametrize("changes", [{"cards": (0,)}, {"prompt_tokens": -1}, {"answer_tokens": 0}])
def test_sizes_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(changes))} must be at least 1"):
        MemoryConfig(**changes)
