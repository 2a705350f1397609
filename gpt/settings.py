"""Which settings a command starts with: those of the shape that it makes, or of the model that it opens.

--preset names a shape that is made from nothing; tiny and study, and what a world changes, stand beside
each command. All other settings are the rows of ROWS. A command that opens weights takes the row of their
number and of what they have read, whether --policy, --base or --weights names them: their headers are
read for it and no tensors. Flags go over all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from data.sources import Presets, from_preset, is_world, usual_preset
from gpt.checkpoint import has_chat_template, hub_file, is_published
from gpt.model import Preset
from harness.command_line import RATES, flag_value, option, run_command
from harness.console import say_once
from harness.errors import UserError
from harness.files import as_user_error, display_path, read_object, weights_in
from harness.flags import SMALL, STARTS
from harness.paths import MODEL_FILE, folder_of_run

Config = TypeVar("Config")
Settings = Mapping[str, Mapping[str, Any]]


class Row(NamedTuple):
    """The settings of models of one kind and size."""

    name: str  # also of the --preset whose shape is that size
    starts: tuple[str, ...]  # fresh, pre-trained, chat: what the model has read
    most: float  # weights
    measured: str  # where
    settings: Settings  # by command: rl, dpo, reward_model, finetuning


SHORT = dict(max_new_tokens=64, eval_prompts=32, test_prompts=64)
LONG = dict(max_prompt_tokens=1024, max_response_tokens=1024)


def well_read(lr: float, rows: int) -> Settings:
    """Settings for weights that have read much, for two CPU cores: under an hour for 1,000 pairs at 135 M.

    `lr` is that of RL, reward model and fine-tuning, DPO's is half; RL and DPO have 2 * `rows` a forward.
    """
    answers = dict(max_prompt_tokens=512, max_response_tokens=256, micro_batch_size=rows)
    by_command: Settings = {
        "rl": SHORT | dict(
            lr=lr, warmup=2, steps=32, prompts_per_step=4, micro_batch_size=2 * rows, max_new_tokens=48,
            stop_kl=8.0, eval_every=8, checkpoint_every=16,
        ),
        "dpo": SHORT | dict(
            lr=lr / 2, warmup=10, epochs=1, batch_size=8, micro_batch_size=2 * rows,
            max_new_tokens=48, max_response_tokens=256, held_out_pairs=96, eval_every=25,
        ),
        "reward_model": answers | dict(lr=lr, batch_size=8, epochs=2),
        "finetuning": answers | dict(lr=lr, batch_size=8),
    }  # fmt: skip
    return {command: {"precision": "auto", **settings} for command, settings in by_command.items()}


# The first row that has the start, and room for the weights, is taken.
ROWS = (
    Row("own", ("fresh",), 5e6, "not measured", {
        "rl": SHORT | dict(lr=1.5e-4, prompts_per_step=8, micro_batch_size=16, steps=40),
        "dpo": SHORT | dict(
            lr=1e-4, batch_size=16, micro_batch_size=16, epochs=2, held_out_pairs=96,
            max_response_tokens=1024,
        ),
        "reward_model": LONG | dict(pooling="mean_score", lr=3e-4),
        "finetuning": LONG | dict(batch_size=8, lr=3e-4),
    }),
    Row("small", ("fresh",), SMALL, "not measured", {
        "rl": SHORT | dict(
            lr=3e-5, prompts_per_step=4, minibatches=1, micro_batch_size=16, kl_coef=0.04, steps=40,
        ),
        "dpo": SHORT | dict(
            lr=3e-5, batch_size=8, micro_batch_size=16, epochs=2, held_out_pairs=96,
        ),
        "reward_model": dict(pooling="mean_score", lr=1e-4, max_response_tokens=128),
        "finetuning": dict(batch_size=8, lr=3e-4, max_response_tokens=128),
    }),
    Row("chat", ("chat",), 2e8, "SmolLM2-135M-Instruct (docs/real_model.md)", well_read(2e-5, 8)),
    Row("gpt2", ("fresh", "pre-trained"), 2e8, "not measured, those of chat models", well_read(2e-5, 8)),
    Row("gpt2-medium", ("fresh", "pre-trained", "chat"), 5e8, "not measured", well_read(1e-5, 4)),
    Row("gpt2-large", ("fresh", "pre-trained", "chat"), 1e9, "not measured", well_read(5e-6, 2)),
    Row("gpt2-xl", ("fresh", "pre-trained", "chat"), float("inf"), "not measured", well_read(2e-6, 2)),
)  # fmt: skip
NO_SHAPES = {row.name for row in ROWS}.difference(get_args(Preset))


def presets_of(
    sizes: Mapping[str, Mapping[str, Any]], *commands: str, larger: Mapping[str, Any] | None = None
) -> Presets:
    """A command's PRESETS: `sizes`, and the rows, with `larger` on top of them.

    The first of `commands` is that of the rows; a world sets what differs there under any of them.
    """
    rows = {row.name: {**row.settings[commands[0]], **(larger or {})} for row in ROWS}
    return Presets({**rows, **sizes}, *commands)


class Opened(NamedTuple):
    """What the header of a model says."""

    folder: Path
    weights: int  # 0: there is no model
    start: str  # fresh, pre-trained or chat
    preset: str | None  # of the run that made it

    @property
    def row(self) -> Row:
        """The row of ROWS that fits it."""
        fits = (row for row in ROWS if self.start in row.starts and self.weights <= row.most)
        return next(fits, ROWS[-1])


def opened(named: str, of_hub: bool = False) -> Opened:
    """What is in a run folder or one in Hugging Face's layout; `of_hub`: a model there may be named."""
    folder = hub_file("published").published_folder(named) if of_hub else Path(named)
    folder = folder_of_run(folder)
    config = folder / "config.json"
    with as_user_error(folder):
        flags = read_object(config) if config.is_file() else {}
        weights = weights_in(folder / MODEL_FILE)
        read = weights > SMALL or is_published(folder)
        chat = weights > 0 and has_chat_template(folder)
    start = "chat" if chat else "pre-trained" if read else "fresh"
    return Opened(folder, weights, start, flags.get("preset"))


def run_with_presets(
    main: Callable[[Config], Any], config_class: Callable[..., Config], presets: Presets
) -> None:
    """What stands under `__name__ == "__main__"`: parse the flags over the settings, then main."""
    run_command(main, config_class, partial(preset_defaults, config_class, presets))


def preset_defaults(
    config_class: Callable[..., Config],
    presets: Presets,
    arguments: Sequence[str] | None = None,
    **overrides: Any,
) -> Config:
    """The default config by what --preset, --data and the start name, over which all flags are parsed.

    A world's own models have the settings of its presets, whichever of them is named as the start.
    UserError for another --preset than theirs beside weights that have read much.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    data = flag_value(arguments, "--data")
    overrides = overrides | ({} if data is None else {"data": data})
    of_world = data is None or is_world(data)
    named = next((f for f in map(option, STARTS) if flag_value(arguments, f)), None)
    start = opened(str(flag_value(arguments, named)), named == "--weights") if named else None
    preset, shapes = flag_value(arguments, "--preset"), presets.keys() - NO_SHAPES
    if start is None:
        preset = preset or usual_preset(data)
    elif not preset:
        preset = "tiny" if of_world else start.preset
    of_preset = start and start.start == "fresh" and preset in shapes
    if named is None or start is None or of_preset or not start.weights:
        # a wrong name is left to the parser, which lists the choices
        known = preset if preset in shapes else None
        config = from_preset(config_class, presets, known or "tiny", **overrides)
        return with_lora(config, arguments)
    if preset in shapes and flag_value(arguments, "--preset") not in (None, start.preset):
        raise UserError(
            f"--preset {preset} names a shape that is made from nothing: leave it out with {named}"
        )
    row = start.row
    given: dict[str, Any] = {"preset": preset if preset in shapes else "tiny"}
    given[named[2:]] = str(start.folder) if named == "--weights" else start.folder
    if hasattr(config_class, "critic_lr"):
        given["critic_lr"] = presets[row.name]["lr"] / 2
    config = with_lora(from_preset(config_class, presets, row.name, **given | overrides), arguments)
    say_once(
        f"settings for {start.weights:,} {start.start} weights in {display_path(start.folder)}: "
        f"row {row.name!r} of gpt/settings.py, measured: {row.measured}; {told(config, arguments)}"
    )
    return config


def told(config: Any, arguments: Sequence[str]) -> str:
    """The most important of the settings that no flag changes, as flags."""
    length = "steps" if getattr(config, "epochs", None) is None else "epochs"
    lengths = () if flag_value(arguments, "--steps") else (length,)
    names = (*RATES, *lengths, "batch_size", "prompts_per_step")
    defaults = [name for name in names if flag_value(arguments, option(name)) is None]
    found = {name: getattr(config, name, None) for name in defaults}
    return ", ".join(
        f"{option(name)} {value}" for name, value in found.items() if value is not None
    )


def with_lora(config: Config, arguments: Sequence[str]) -> Config:
    """The defaults for adapters, where --lora-rank asks for them: ten times the learning rates.

    That factor is Schulman et al.'s (2025, LoRA Without Regret), over many models.
    """
    if flag_value(arguments, "--lora-rank") not in (None, "0"):
        usual = {name: getattr(config, name) for name in RATES if hasattr(config, name)}
        rates = {name: float(f"{10 * rate:.6g}") for name, rate in usual.items()}
        return replace(config, **rates)  # type: ignore[type-var]
    return config
