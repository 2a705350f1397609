"""Where a command's settings come from: one table, below the flags and above the fields' own defaults.

    python -m gpt.recipes rl.grpo_engine --model mine --data pairs.jsonl     every value, and its row

A field's own default is that of a model of shape tiny, made from nothing; a row says what differs for a
command, what its model has read, how many weights that has, and the world. Flags go over all of it.

Rows are read in layers, the later over the earlier: those of the command's family ("rl": every engine that
samples), its own, then both again for the world; last the adapters'. In a layer the first row that fits
counts.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple, TypeVar, get_args

from data.sources import USUAL, Data, is_world, usual_preset
from gpt.folder import ModelFolder, name_of, weights_of
from gpt.model import PRESETS, Preset
from harness.command_line import flag_value, option, run_command
from harness.errors import UserError
from harness.flags import AboveZero, Count, MemoryFlags, TrainingFlags
from harness.run_folder import script_name

Settings = TypeVar("Settings", bound="RecipeFlags")
SHAPES = (*get_args(Preset), "teacher")
NOT_MEASURED = "not measured"
FEW = 5e6  # weights up to which a model that is not known to be of another shape is tiny, or own


class Recipe(NamedTuple):
    """A row of the table."""

    command: str  # a module, or a family of them
    start: str  # a shape; fresh, pre-trained, chat: what the model has read; larger: all but tiny
    settings: Mapping[str, Any]
    most: float = math.inf  # weights
    world: str | None = None  # None: any world, and files
    measured: str = NOT_MEASURED  # where

    def __str__(self) -> str:
        size = "" if self.most == math.inf else f" up to {self.most / 1e6:.0f}M weights"
        return f"{self.command}, {self.start}{size}{f' on {self.world}' if self.world else ''}"


class Times(NamedTuple):
    """A setting that follows another one."""

    of: str
    factor: float


REAL = "SmolLM2-135M-Instruct (docs/real_model.md)"
TUNED = "prompts of other seeds than the reported ones (docs/results.md)"
PRETRAINING, FINETUNING = "gpt.pretraining", "gpt.finetuning"
REWARD_MODEL, DPO = "reward_model.reward_model_training", "rl.dpo_engine"
SHORT: dict[str, Any] = dict(max_new_tokens=64, eval_prompts=32, test_prompts=64)
LONG: dict[str, Any] = dict(max_prompt_tokens=1024, max_response_tokens=1024)
AS_PUBLISHED: dict[str, Any] = dict(
    tokenizer="gpt2", batch_size=32, accumulation=8, steps=20000, warmup_steps=700, eval_every=500,
)  # fmt: skip
# Of a published model's free answers 58% ended within 48 tokens, 96% within 128: a judge that prefers whole
# answers would otherwise teach no more than to end.
ROOM = 128
CRITIC: dict[str, Any] = dict(
    group_size=1, prompts_per_step=32, updates_per_batch=1, critic_lr=Times("lr", 0.5)
)
UNLIMITED: dict[str, Any] = dict(stop_kl=None, stop_kl_per_token=None)
TAUGHT: dict[str, Any] = UNLIMITED | dict(pretraining_coef=1.0)
DISTILLED: dict[str, Any] = UNLIMITED | dict(prompts_per_step=32, minibatches=4, kl_coef=0.0)
# Small steps, and sampling as the makers of SmolLM2 advise it. Answers of 18 tokens were good at 0.38 nats
# a token: the limit per token is for free answers.
INSTRUCTIONS: dict[str, Any] = dict(
    warmup_steps=2, steps=32, prompts_per_step=4, group_size=8, minibatches=2, kl_coef=0.1, stop_kl=8.0,
    stop_kl_per_token=None, temperature=0.7, max_new_tokens=48, eval_every=8, eval_prompts=48,
    test_prompts=32,
)  # fmt: skip

OF_INSTRUCTIONS: dict[str, dict[str, Any]] = {  # what engines change there
    "rl.grpo_iterative_engine": dict(refresh_reward_model=False, iterations=3, steps=30),
    "rl.grpo_single_model_engine": dict(kl_coef=1.0, stop_kl=None),
    "rl.on_policy_distillation_engine": dict(kl_coef=0.0, stop_kl=None),
    "rl.minillm_engine": dict(kl_coef=0.0, stop_kl=None, pretraining_coef=0.1),
    "rl.kd_grpo_engine": dict(stop_kl=None, pretraining_coef=0.1),
    "rl.kd_ppo_engine": dict(stop_kl=None, pretraining_coef=0.1),
}


def well_read(lr: float, rows: int) -> dict[str, dict[str, Any]]:
    """By command: weights that have read much, for two CPU cores, under an hour for 1,000 pairs at 135 M.

    `lr` is that of RL, reward model and fine-tuning, DPO's is half; RL and DPO have 2 * `rows` a forward.
    """
    answers = dict(
        precision="auto", lr=lr, max_prompt_tokens=512, max_response_tokens=256, batch_size=8,
        micro_batch_size=rows,
    )  # fmt: skip
    return {
        "rl": SHORT | dict(
            precision="auto", lr=lr, warmup_steps=2, steps=32, prompts_per_step=4,
            micro_batch_size=2 * rows, max_new_tokens=ROOM, stop_kl=8.0, eval_every=8,
            stop_kl_per_token=0.25,  # free answers were good at 0.2, and broken at 0.33
        ),
        DPO: SHORT | dict(
            precision="auto", lr=lr / 2, warmup_steps=10, epochs=1, batch_size=8, micro_batch_size=2 * rows,
            max_new_tokens=ROOM, max_response_tokens=256, held_out_pairs=96, eval_every=25,
        ),
        REWARD_MODEL: answers | dict(epochs=2),
        FINETUNING: answers,
    }  # fmt: skip


RECIPES = (
    # made from nothing: a teacher, a model of your own file, one with GPT-2's vocabulary, GPT-2's sizes
    Recipe(PRETRAINING, "teacher", dict(steps=2000, lr=1.5e-3), measured=TUNED),
    Recipe(PRETRAINING, "own", dict(
        tokenizer="own", batch_size=2, epochs=4, warmup_steps=30, eval_every=25,
    )),
    Recipe("rl", "own", SHORT | dict(lr=1.5e-4, prompts_per_step=8, micro_batch_size=16, steps=40)),
    Recipe(DPO, "own", SHORT | dict(
        lr=1e-4, batch_size=16, micro_batch_size=16, epochs=2, held_out_pairs=96,
        max_response_tokens=1024,
    )),
    Recipe(REWARD_MODEL, "own", LONG | dict(pooling="mean_score", lr=3e-4)),
    Recipe(FINETUNING, "own", LONG | dict(batch_size=8, lr=3e-4)),
    Recipe(PRETRAINING, "small", dict(
        tokenizer="gpt2", lr=1e-3, batch_size=8, steps=100, eval_every=25, warmup_steps=20,
    )),
    Recipe("rl", "small", SHORT | dict(
        lr=3e-5, prompts_per_step=4, minibatches=1, micro_batch_size=16, kl_coef=0.04, steps=40,
    )),
    Recipe(DPO, "small", SHORT | dict(
        lr=3e-5, batch_size=8, micro_batch_size=16, epochs=2, held_out_pairs=96,
    )),
    Recipe(REWARD_MODEL, "small", dict(pooling="mean_score", lr=1e-4, max_response_tokens=128)),
    Recipe(FINETUNING, "small", dict(batch_size=8, lr=3e-4, max_response_tokens=128)),
    *(
        Recipe(PRETRAINING, "larger", AS_PUBLISHED | dict(lr=lr), most)
        for most, lr in ((2e8, 6e-4), (5e8, 3e-4), (1e9, 2.5e-4), (math.inf, 2e-4))
    ),
    # opened
    *(
        Recipe(command, start, settings, most, measured=measured)
        for start, most, lr, rows, measured in (
            ("chat", 2e8, 2e-5, 8, REAL),
            ("larger", 2e8, 2e-5, 8, f"{NOT_MEASURED}, those of chat models"),
            ("larger", 5e8, 1e-5, 4, NOT_MEASURED),
            ("larger", 1e9, 5e-6, 2, NOT_MEASURED),
            ("larger", math.inf, 2e-6, 2, NOT_MEASURED),
        )
        for command, settings in well_read(lr, rows).items()
    ),
    # what an engine changes
    Recipe("rl.ppo_engine", "larger", CRITIC),
    Recipe("rl.kd_ppo_engine", "larger", CRITIC | TAUGHT),
    Recipe("rl.kd_grpo_engine", "larger", TAUGHT),
    Recipe("rl.minillm_engine", "larger", TAUGHT | DISTILLED),
    Recipe("rl.on_policy_distillation_engine", "larger", DISTILLED),
    Recipe("rl.grpo_single_model_engine", "larger", UNLIMITED | dict(kl_coef=1.0)),
    # These sizes are for files, for which nobody labels new pairs; neither do sums need it.
    Recipe("rl.grpo_iterative_engine", "larger", dict(iterations=4, refresh_reward_model=False)),
    Recipe("rl.reinforce_pp_engine", "larger", dict(prompts_per_step=32)),
    Recipe("rl.pg_grpo_engine", "own", dict(max_response_tokens=1024)),
    Recipe("rl.pg_grpo_engine", "larger", dict(max_response_tokens=256)),
    # What a world changes. After 1,000 steps some seeds have hardly begun to copy the item.
    Recipe(PRETRAINING, "tiny", dict(steps=1500), world="reviews", measured=TUNED),
    # Of the 9 answers to a prompt that are compared two were written for other prompts, about other items
    # mostly, and one says its last sentence again: policies found that thanks paid twice where no pair had
    # it. At 2e-3 it learns the pairs half as fast, and the item last of all. Batches of 4 prompts take
    # twice the steps, which find sooner that an answer is about its item.
    Recipe(REWARD_MODEL, "tiny", dict(
        lr=7e-4, batch_size=4, responses_per_prompt=9, borrowed_responses=2, repeated_responses=1,
        pairs=108_000,  # 36 of each of 3,000 prompts
    ), world="reviews", measured=TUNED),
    Recipe(PRETRAINING, "tiny", dict(steps=2200), world="sums"),
    Recipe(PRETRAINING, "teacher", dict(steps=2500), world="sums"),
    # A rule cannot be over-optimised: no KL penalty and no early stop. Rewards are 0 or 1, so a smaller
    # learning rate ends less noisily.
    Recipe("rl", "tiny", dict(
        kl_coef=0.0, stop_kl=None, max_new_tokens=40, lr=1e-4, steps=160,
    ), world="sums"),
    Recipe("rl.ppo_engine", "tiny", dict(steps=70), world="sums"),
    Recipe("rl.grpo_iterative_engine", "tiny", dict(
        refresh_reward_model=False, steps=150,
    ), world="sums"),
    Recipe("rl.grpo_single_model_engine", "tiny", dict(kl_coef=1.0, steps=100), world="sums"),
    Recipe("rl", "tiny", INSTRUCTIONS | dict(lr=2e-5, micro_batch_size=16), world="instructions"),
    Recipe("rl", "chat", INSTRUCTIONS, 2e8, "instructions", REAL),
    Recipe("rl", "larger", INSTRUCTIONS, world="instructions"),
    *(
        Recipe(command, start, settings, world="instructions")
        for start in ("tiny", "larger")
        for command, settings in OF_INSTRUCTIONS.items()
    ),
)  # fmt: skip
ADAPTERS = Recipe(
    "any command", "adapters", {name: Times(name, 10) for name in ("lr", "critic_lr")},
    measured="over many models: Schulman et al. 2025, LoRA Without Regret",
)  # fmt: skip


# From the flags to the rows -----------------------------------------------------------------------


class Start(NamedTuple):
    """What a command starts from, as far as the table asks."""

    kinds: frozenset[str]  # that a row's `start` may name
    weights: int
    preset: str  # what config.preset says


def preset_weights(name: str) -> int:
    """The number of weights of the named shape, the tied head counted once."""
    shape = PRESETS[name]
    width = shape.n_embd
    of_block = 12 * width**2 + 13 * width  # four projections with biases, two LayerNorms
    return (shape.vocab_size + shape.context + 2) * width + shape.n_layer * of_block


def start_of(model: str | None, data: str, preset: str | None) -> Start:
    """The start that these flags name. UserError for a model that cannot be opened, or another preset."""
    if model is None:  # a wrong name is left to the parser, which lists the choices
        shape = preset or usual_preset(data)
        shape = shape if shape in SHAPES else "tiny"
        return fresh(shape, preset_weights(shape))
    found = ModelFolder.open(model)
    if preset in SHAPES and preset != found.preset:
        raise UserError(
            f"--preset {preset} names a shape that is made from nothing: leave it out with --model"
        )
    known = found.preset if found.preset in SHAPES else None
    if found.start == "fresh":
        few = found.weights <= FEW
        if few and (is_world(data) or known is None):
            known = usual_preset(data)
        return fresh(known or "small", found.weights)
    shape = known if known and not is_world(data) else "tiny"
    return Start(frozenset({found.start, "larger"}), found.weights, shape)


def fresh(shape: str, weights: int) -> Start:
    """A model that has read little."""
    kinds = {"fresh", shape} | ({"larger"} if shape not in ("tiny", "teacher") else set())
    return Start(frozenset(kinds), weights, shape)


def rows_of(
    config_class: type[RecipeFlags], start: Start, data: str, adapters: bool
) -> list[Recipe]:
    """The rows that count for a command, the later ones over the earlier."""
    commands = [name for name in (config_class.family, script_name(config_class)) if name]
    found = []
    for world in (None, data):
        for command in commands:
            layer = (r for r in RECIPES if (r.command, r.world) == (command, world))
            fits = (r for r in layer if r.start in start.kinds and start.weights <= r.most)
            found += [row for row in [next(fits, None)] if row]
    return [*found, ADAPTERS] if adapters else found


def resolved(
    config_class: type[RecipeFlags], start: Start, data: str, adapters: bool
) -> dict[str, tuple[Any, Recipe]]:
    """Every setting that the table changes, and the row that it is from."""
    defaults = {field.name: field.default for field in fields(config_class)}
    found: dict[str, tuple[Any, Recipe]] = {}
    for row in rows_of(config_class, start, data, adapters):
        for name, value in row.settings.items():
            if name not in defaults and isinstance(value, Times):
                continue  # a command without a critic
            if isinstance(value, Times):
                rate: Any = found[value.of][0] if value.of in found else defaults[value.of]
                value = float(f"{value.factor * rate:.6g}")
            found[name] = value, row
    return found


def config_of(config_class: type[Settings], **given: Any) -> Settings:
    """The config of a command: what is `given` over the rows that the given start and data choose."""
    data = given.get("data", USUAL)
    start = start_of(given.get("model"), data, given.pop("preset", None))
    settings = resolved(config_class, start, data, bool(given.get("lora_rank")))
    values = {name: value for name, (value, _) in settings.items()}
    return config_class(**({"preset": start.preset} | values | given))


def defaults(config_class: type[Settings], arguments: Sequence[str] | None = None) -> Settings:
    """The config over which all flags are parsed: of those that choose rows."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    named = {name: flag_value(arguments, option(name)) for name in ("model", "data", "preset")}
    given: dict[str, Any] = {name: v for name, v in named.items() if v is not None}
    adapters = flag_value(arguments, "--lora-rank") not in (None, "0")
    if adapters:  # its number is left to the parser
        given["lora_rank"] = 1
    config = config_of(config_class, **(given | config_class.chosen_by(arguments)))
    return dataclasses.replace(config, lora_rank=0) if adapters else config  # type: ignore[call-arg]


# The flags that choose a row ----------------------------------------------------------------------


@dataclass(frozen=True)
class RecipeFlags(TrainingFlags):
    """The flags of a command that has rows in the table."""

    preset: Preset = "tiny"
    """Shape of a model that is made from nothing."""
    data: Data = USUAL
    """A world or a file (data/README.md)."""
    columns: tuple[str, ...] = ()
    """FIELD=COLUMN for a file whose columns have other names: prompt=problem answer=solution."""
    minutes: AboveZero | None = None
    """Minutes that the run may take: it measures its first steps, begins again, and takes as many as fit,
    at most those that it would take without."""

    @classmethod
    def chosen_by(cls, arguments: Sequence[str]) -> dict[str, Any]:
        """Fields that a flag of the command line chooses together, below all that is typed."""
        return {}

    @property
    def model_name(self) -> str:
        """What run folders call the model."""
        return self.preset

    def sizes(self) -> list[int]:
        return [preset_weights(self.preset)]

    def settings(self) -> dict[str, tuple[Any, Recipe]]:
        """Every setting that the table changes for these flags, and the row that it is from."""
        return resolved(type(self), start_of(None, self.data, self.preset), self.data, False)

    def origins(self) -> dict[str, list[str]]:
        """The flags whose value is not the field's default, by where it is from: a row, or typed."""
        rows, found = self.settings(), dict[str, list[str]]()
        for each in fields(self):
            value, row = getattr(self, each.name), rows.get(each.name)
            if row is not None and value == row[0]:
                found.setdefault(f"{row[1]}; measured: {row[1].measured}", []).append(each.name)
            elif row is not None or value != each.default:
                found.setdefault("given", []).append(each.name)
        return found


@dataclass(frozen=True)
class ModelFlags(MemoryFlags, RecipeFlags):
    """The flags of a command that starts from a model."""

    model: str | None = None
    """What it starts from: a run, a folder in Hugging Face's layout, or a model of the hub, hf://OWNER/NAME
    or gpt2. Default: the run of gpt.pretraining for this data and preset."""
    chat_arguments: tuple[str, ...] = ()
    """NAME=VALUE for the model's chat template: enable_thinking=false lets Qwen3 answer without a thought.
    The model that is trained keeps them."""

    def named_models(self) -> list[str]:
        """The models that are opened."""
        return [self.model] if self.model else []

    def sizes(self) -> list[int]:
        opened = [weights_of(name) for name in self.named_models()]
        return opened if self.model else [*opened, *super().sizes()]

    @property
    def model_name(self) -> str:
        """What run folders call the model: the published one that it comes from, else the preset."""
        return name_of(self.model) or self.preset

    def settings(self) -> dict[str, tuple[Any, Recipe]]:
        start = start_of(self.model, self.data, None if self.model else self.preset)
        return resolved(type(self), start, self.data, bool(self.lora_rank))


# Commands -----------------------------------------------------------------------------------------


def run_with_recipe(main: Callable[[Settings], object], config_class: type[Settings]) -> None:
    """What stands under `__name__ == "__main__"`: parse the flags over the recipe, say it, then main."""
    run_command(partial(_announced, main), config_class, partial(defaults, config_class))


def _announced(main: Callable[[Settings], object], config: Settings) -> object:
    """main(config); of a model that is opened it is said first which settings it has."""
    if isinstance(config, ModelFlags) and config.model:
        print(describe_settings(config, ModelFolder.open(config.model)), flush=True)
    return main(config)


def describe_settings(config: ModelFlags, found: ModelFolder) -> str:
    """The most important settings of a model that is opened, and the rows that they are from."""
    names = (*config.rates, "steps", "epochs", "batch_size", "prompts_per_step")
    shown = {name: getattr(config, name, None) for name in names}
    flags = ", ".join(f"{option(n)} {value}" for n, value in shown.items() if value is not None)
    rows = " | ".join(place for place in config.origins() if place != "given") or "field defaults"
    weights = f"{found.weights:,} {found.start} weights in {found.origin}"
    return f"settings for {weights}: {flags} (gpt/recipes.py: {rows})"


@dataclass(frozen=True)
class RecipesConfig:
    """Print every setting of a command, and the row of gpt/recipes.py that it is from."""

    command: str
    """A module, such as rl.grpo_engine."""
    model: str | None = None
    """What it starts from."""
    data: str = USUAL
    """A world, or a file."""
    preset: str | None = None
    """Shape of a model that is made from nothing."""
    lora_rank: Count = 0
    """Rank of adapters."""


def main(config: RecipesConfig) -> None:
    """Print one line a setting: its flag, its value and the row. UserError for no such command."""
    try:
        module = importlib.import_module(config.command)
        config_class = module.ENGINE.config if hasattr(module, "ENGINE") else module.STAGE.config
    except (AttributeError, ImportError) as error:
        raise UserError(
            f"{config.command} is no command with a recipe ({error}): name a module, as in rl.grpo_engine"
        ) from error
    given = {name: value for name, value in vars(config).items() if name != "command" and value}
    found: RecipeFlags = config_of(config_class, **given)
    places = {name: place for place, names in found.origins().items() for name in names}
    for each in fields(found):
        shown = f"{option(each.name)} {getattr(found, each.name)}"
        print(f"{shown:40} {places.get(each.name, 'default of the command')}")


if __name__ == "__main__":
    run_command(main, RecipesConfig)
