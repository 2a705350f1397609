"""The memory forecasts of every script at every preset, as tables and as a picture."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from matplotlib.figure import Figure

from gpt import distillation, finetuning, pretraining
from gpt.memory.forecast import (
    GB,
    Change,
    Forecast,
    Parts,
    Work,
    fitting_change,
    forecast,
    forecast_text,
    size_text,
)
from gpt.memory.supervised import distillation_work, finetuning_work, pretraining_work
from gpt.model import GPTConfig, Preset, preset_config
from gpt.tokenizer import load_tokenizer
from gpt.tokenizer_training import OWN_VOCABULARY
from harness.command_line import from_preset
from harness.files import save_figure
from harness.flag_ranges import AtLeastOne, Count, check_ranges
from harness.paths import REPOSITORY
from reward_model import reward_model_training
from reward_model.training_memory import reward_model_work
from rl.commands.engines import every_engine
from rl.training.engine import Engine
from rl.training.memory_needs import Given, engine_forecast

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
    write_docs: bool = False
    """Put the tables into docs/memory.md and draw docs/memory.png."""

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
    if script in ENGINES:
        config_class, presets = ENGINES[script].config, ENGINES[script].presets
    else:
        config_class, presets = STAGES[script]
    config = from_preset(config_class, presets, preset)
    wished = {
        "micro_batch_size": flags.micro_batch_size, "sample_rows": flags.sample_rows,
        "batch_size": flags.batch_size, "max_new_tokens": flags.answer_tokens,
        "lora_rank": flags.lora_rank, "checkpoint_blocks": flags.checkpoint_blocks,
        "precision": flags.precision,
    }  # fmt: skip
    given = {
        name: value for name, value in wished.items() if hasattr(config, name) and value is not None
    }
    return replace(config, **given)


def forecasts(script: str, preset: Preset, flags: MemoryConfig) -> Callable[[Any], Forecast]:
    """Config -> forecast of a script at a preset; a teacher has the policy's shape."""
    shape = preset_config(preset, vocabulary(preset))
    if script in ENGINES:
        taught = ENGINES[script].learns_from == "teacher"
        scored = not (taught or flags.checked)
        given = Given(
            shape,
            rewards=(shape,) if scored else (),
            teacher=shape if taught else None,
            prompt_tokens=flags.prompt_tokens,
            checked=flags.checked,
            device=flags.device,
        )
        return lambda config: engine_forecast(ENGINES[script], config, given)
    return lambda config: forecast(stage_work(script, config, shape, flags))


def vocabulary(preset: Preset) -> int:
    """Of the tokenizer that the preset is pre-trained with."""
    name = pretraining.PRESETS[preset].get("tokenizer", "glassbox")
    known = {"gpt2": 50257, "own": OWN_VOCABULARY}
    return known.get(name) or load_tokenizer(name).n_vocab


def stage_work(script: str, config: Any, shape: GPTConfig, flags: MemoryConfig) -> Work:
    """A stage on prompts and answers of the longest kind; pre-training on whole windows."""
    device = flags.device
    if script == "pretraining":
        return pretraining_work(config, shape, device=device)
    if script == "distillation":
        return distillation_work(config, shape, shape, flags.prompt_tokens, device)
    answer = flags.answer_tokens or config.max_response_tokens
    tokens = min(flags.prompt_tokens + answer, shape.context)
    if script == "finetuning":
        return finetuning_work(config, shape, tokens, answer, device)
    return reward_model_work(replace(config, data="pairs"), shape, tokens, device=device)


# --- what is printed ----------------------------------------------------------------------------


def all_scripts(flags: MemoryConfig) -> tuple[str, ...]:
    """Those of the flags, or every one."""
    return flags.script or (*ENGINES, *STAGES)


def short(change: Change) -> str:
    """The flags of a change as letters: m2 c L16."""
    words = change.flags.split()
    letters = []
    for word in words:
        if word in LETTERS:
            letters.append(LETTERS[word])
        elif word != "bfloat16":
            letters[-1] += word
    return " ".join(letters)


def table_row(script: str, preset: Preset, flags: MemoryConfig) -> list[str]:
    """The peak, its phase, and for each card: yes, the flags that make it fit, or no."""
    config, memory_of = config_of(script, preset, flags), forecasts(script, preset, flags)
    result = memory_of(config)
    cells = []
    for card in flags.cards:
        if result.peak <= card * GB:
            cells.append("yes")
        else:
            found = fitting_change(config, memory_of, card * GB)
            cells.append("no" if found is None else short(found[0]))
    return [f"{result.peak / GB:.1f}", result.at, *cells]


def table(preset: Preset, flags: MemoryConfig) -> list[list[str]]:
    """A row for all scripts that need the same."""
    rows = [(script, table_row(script, preset, flags)) for script in all_scripts(flags)]
    order = [row for _, row in rows]
    rows.sort(key=lambda item: order.index(item[1]))
    return [
        [", ".join(script for script, _ in group), *row]
        for row, group in itertools.groupby(rows, key=lambda item: item[1])
    ]


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
            lines.append(f"{card:>5} GB  {found[0].flags}   ({size_text(found[1])})")
    return "\n".join(lines)


# --- docs/memory.md -----------------------------------------------------------------------------

DOCS = REPOSITORY / "docs"
# Okabe and Ito's colours, which colour-blind readers tell apart, dark and light in turn.
COLOURS = {
    "weights": "#0072B2", "gradients": "#56B4E9", "optimizer": "#009E73", "activations": "#E69F00",
    "logits": "#D55E00", "cache": "#CC79A7", "libraries": "#999999",
}  # fmt: skip
PHASES = ("sampling", "scoring", "update", "validation", "test")


def write_docs(flags: MemoryConfig) -> None:
    """Replace the tables between their markers and draw the picture."""
    text = (DOCS / "memory.md").read_text(encoding="utf-8")
    begin, end = "<!-- cards -->", "<!-- end of cards -->"
    before, after = text.split(begin)[0], text.split(end)[1]
    text = f"{before}{begin}\n" + "\n".join(card_tables(flags)) + f"\n{end}{after}"
    (DOCS / "memory.md").write_text(text, encoding="utf-8")
    draw(flags)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    every = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(line) + " |" for line in every]


def card_tables(flags: MemoryConfig) -> list[str]:
    """Presets x scripts x cards."""
    columns = ["script", "GB", "phase", *(f"{card} GB" for card in flags.cards)]
    lines = []
    for preset in flags.preset:
        lines += [f"**{preset}**", "", *markdown(columns, table(preset, flags)), ""]
    return lines[:-1]


def draw(flags: MemoryConfig) -> None:
    """Stacked bars: GRPO's update at four sizes, and every phase at the largest, plain and sparing."""
    saving = replace(flags, lora_rank=16, checkpoint_blocks=True, sample_rows=8)
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    sizes, plain, sparing = figure.subplots(1, 3, gridspec_kw={"width_ratios": [4, 5, 5]})
    bars(sizes, {name: phases_of(name, flags)["update"] for name in PUBLISHED})
    bars(plain, phases_of("gpt2-xl", flags))
    bars(sparing, phases_of("gpt2-xl", saving))
    sizes.set(title="the update, four sizes", ylabel="GB by forecast (CUDA)")
    plain.set(title="gpt2-xl, every phase")
    sparing.set(
        title="gpt2-xl with LoRA of rank 16, blocks\ncomputed again, 8 rows sampled at once"
    )
    sparing.set_ylim(plain.get_ylim())  # one scale
    for axis in (sizes, plain, sparing):
        right = axis.get_xlim()[1]
        axis.set_xlim(right=right + 0.9)  # room for the names of the cards
        for card in (16, 24, 40):
            axis.axhline(card, color="black", linewidth=0.8, linestyle=":", zorder=0)
            axis.annotate(f"{card} GB\ncard", (right, card), va="center", fontsize=8)
    handles, labels = plain.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(COLOURS), frameon=False)
    save_figure(figure, DOCS / "memory.png")


def phases_of(preset: Preset, flags: MemoryConfig) -> dict[str, Parts]:
    """GRPO's phases."""
    config = config_of("grpo", preset, flags)
    phases = forecasts("grpo", preset, flags)(config).phases
    return {name: phases[name] for name in PHASES}


def bars(axis: Any, stacks: Mapping[str, Parts]) -> None:
    """One stacked bar for each name."""
    floor = [0.0] * len(stacks)
    for part, colour in COLOURS.items():
        heights = [getattr(stack, part) / GB for stack in stacks.values()]
        axis.bar(
            list(stacks), heights, bottom=floor, color=colour, label=part, width=0.7,
            edgecolor="white", linewidth=0.6,
        )  # fmt: skip
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    for number, height in enumerate(floor):
        axis.annotate(
            f"{height:.1f}",
            (number, height + 0.012 * max(floor)),
            ha="center",
            va="bottom",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    axis.set_ylim(0, max(floor) * 1.12)
    axis.tick_params(axis="x", rotation=30)
    axis.spines[["top", "right"]].set_visible(False)
