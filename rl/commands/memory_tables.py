"""The memory forecasts of every script at every preset, as tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpt import distillation, finetuning, pretraining
from gpt.memory.announce import GB, fitting_change, forecast_text, size_text
from gpt.memory.forecast import Forecast
from gpt.model import Preset, preset_config
from gpt.tokenizer import load_tokenizer
from gpt.tokenizer_training import OWN_VOCABULARY
from harness.command_line import from_preset
from harness.flag_ranges import AtLeastOne, Count, check_ranges
from reward_model import reward_model_training
from rl.commands.engines import every_engine
from rl.training.engine import Engine
from rl.training.memory_needs import Given, engine_forecast

SAVING = (
    "micro_batch_size", "sample_rows", "batch_size", "max_new_tokens", "lora_rank",
    "checkpoint_blocks", "precision",
)  # fmt: skip
PUBLISHED: tuple[Preset, ...] = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
LETTERS = {
    "--micro-batch-size": "m", "--checkpoint-blocks": "c", "--sample-rows": "s",
    "--precision": "b", "--lora-rank": "L", "--eval-prompts": "e", "--test-prompts": "t",
    "--batch-size": "B", "--prompts-per-step": "P",
}  # fmt: skip


@dataclass(frozen=True)
class MemoryConfig:
    """Forecast the memory of training scripts on cards of several sizes."""

    preset: tuple[Preset, ...] = PUBLISHED
    """Model sizes; tiny, study and small too."""
    script: tuple[str, ...] = ()
    """Training scripts, by the name of an engine or of a stage; default: all of them."""
    cards: tuple[AtLeastOne, ...] = (16, 24, 40, 80, 141)
    """GB of the cards in the table."""
    device: Literal["cuda", "cpu", "mps"] = "cuda"
    """What the cards belong to: libraries take different shares, and a CPU keeps what is freed."""
    prompt_tokens: AtLeastOne = 128
    """Tokens of the longest prompt."""
    answer_tokens: AtLeastOne | None = None
    """Tokens of the longest answer, sampled or in the data; default: the preset's."""
    micro_batch_size: AtLeastOne | None = None
    """Rows per forward pass; default: the preset's. So for the flags below."""
    sample_rows: AtLeastOne | None = None
    """Rows that are sampled at once."""
    batch_size: AtLeastOne | None = None
    """Rows, pairs or prompts of a step, where a script has the flag."""
    lora_rank: Count = 0
    """Rank of LoRA's adapters; 0 trains all weights."""
    checkpoint_blocks: bool = False
    """Compute activations again in the backward pass."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the products."""
    checked: bool = False
    """Answers are checked by a rule: no reward model, and a test with several answers a prompt."""

    def __post_init__(self) -> None:
        check_ranges(self)
        unknown = sorted(set(self.script) - {*ENGINES, *STAGES})
        if unknown:
            raise ValueError(
                f"there is no script {', '.join(unknown)}: choose of {', '.join((*ENGINES, *STAGES))}"
            )


# --- the scripts --------------------------------------------------------------------------------

ENGINES: dict[str, Engine] = {engine.name: engine for engine in every_engine()}
STAGES: dict[str, tuple[Any, Any]] = {
    "reward_model": (
        reward_model_training.RewardModelConfig, reward_model_training.PRESETS,
    ),
    "pretraining": (pretraining.PretrainingConfig, pretraining.PRESETS),
    "finetuning": (finetuning.FinetuningConfig, finetuning.PRESETS),
    "distillation": (distillation.DistillationConfig, distillation.PRESETS),
}  # fmt: skip


def config_of(script: str, preset: Preset, flags: MemoryConfig) -> Any:
    """The script's config at a preset, with the flags that it has."""
    engine = ENGINES.get(script)
    config_class, presets = (engine.config, engine.presets) if engine else STAGES[script]
    config = from_preset(config_class, presets, preset)
    wished = vars(flags) | {"max_new_tokens": flags.answer_tokens}
    given = {name: wished[name] for name in SAVING if wished[name] is not None}
    return replace(config, **{name: given[name] for name in given.keys() & vars(config).keys()})


def forecasts(script: str, preset: Preset, flags: MemoryConfig) -> Callable[[Any], Forecast]:
    """Config -> forecast of a script at a preset, on prompts and answers of the longest kind.

    A teacher and a reward model have the policy's shape; pre-training reads whole windows.
    """
    shape, device = preset_config(preset, vocabulary(preset)), flags.device
    if script == "pretraining":
        return lambda config: pretraining.memory_of(config, shape, device)
    if script == "distillation":
        return lambda config: distillation.memory_of(
            config, shape, shape, flags.prompt_tokens, device
        )
    if script in STAGES:
        answer = flags.answer_tokens or config_of(script, preset, flags).max_response_tokens
        tokens = min(flags.prompt_tokens + answer, shape.context)
        if script == "finetuning":
            return lambda config: finetuning.memory_of(config, shape, tokens, answer, device)
        return lambda config: reward_model_training.memory_of(
            replace(config, data="pairs"), shape, tokens, device=device
        )
    engine = ENGINES[script]
    taught = engine.learns_from == "teacher"
    given = Given(
        shape,
        rewards=() if taught or flags.checked else (shape,),
        teacher=shape if taught else None,
        prompt_tokens=flags.prompt_tokens,
        checked=flags.checked,
        device=device,
    )
    return lambda config: engine_forecast(engine, config, given)


def vocabulary(preset: Preset) -> int:
    """Of the tokenizer that the preset is pre-trained with."""
    name = pretraining.PRESETS[preset].get("tokenizer", "glassbox")
    known = {"gpt2": 50257, "own": OWN_VOCABULARY}
    return known.get(name) or load_tokenizer(name).n_vocab


# --- what is printed ----------------------------------------------------------------------------


def short(flags: str) -> str:
    """Flags as letters: m2 c L16."""
    for flag, letter in LETTERS.items():
        flags = re.sub(f"{flag}( (?=[0-9]))?", letter, flags)
    return flags.replace(" bfloat16", "")


def table_row(script: str, preset: Preset, flags: MemoryConfig) -> list[str]:
    """The peak, its phase, and for each card: yes, the flags that make it fit, or no."""
    config, memory_of = config_of(script, preset, flags), forecasts(script, preset, flags)
    result = memory_of(config)
    cells = ["yes"] * len(flags.cards)
    for number, card in enumerate(flags.cards):
        if result.peak > card * GB:
            found = fitting_change(config, memory_of, card * GB)
            cells[number] = short(found.flags) if found else "no"
    return [f"{result.peak / GB:.1f}", result.at, *cells]


def table(preset: Preset, flags: MemoryConfig) -> list[list[str]]:
    """A row for all scripts that need the same."""
    scripts: dict[tuple[str, ...], list[str]] = {}
    for script in flags.script or (*ENGINES, *STAGES):
        scripts.setdefault(tuple(table_row(script, preset, flags)), []).append(script)
    return [[", ".join(names), *row] for row, names in scripts.items()]


def legend() -> str:
    """What the letters mean."""
    return "  ".join(f"{letter} {flag}" for flag, letter in LETTERS.items())


def in_full(script: str, preset: Preset, flags: MemoryConfig) -> str:
    """One run: its parts, and for each card the flags to copy."""
    config, memory_of = config_of(script, preset, flags), forecasts(script, preset, flags)
    result = memory_of(config)
    lines = [f"{script}, {preset}", forecast_text(result, None, flags.device)]
    for card in flags.cards:
        found = fitting_change(config, memory_of, card * GB)
        if result.peak <= card * GB:
            lines.append(f"{card:>5} GB  fits")
        elif found is None:
            lines.append(f"{card:>5} GB  does not fit with any of the flags")
        else:
            lines.append(f"{card:>5} GB  {found.flags}   ({size_text(found.peak)})")
    return "\n".join(lines)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    every = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(line) + " |" for line in every]


def card_tables(flags: MemoryConfig) -> list[str]:
    """Presets x scripts x cards, for docs/memory.md; what fits every card is left out."""
    columns = ["script", "GB", "phase", *(f"{card} GB" for card in flags.cards)]
    lines = []
    for preset in flags.preset:
        rows = [row for row in table(preset, flags) if set(row[3:]) != {"yes"}]
        lines += [f"**{preset}**", "", *markdown(columns, rows), ""]
    return lines[:-1]
