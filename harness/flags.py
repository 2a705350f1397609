"""The flags that commands share, and what a flag may be: `lr: NotNegative = 1e-3`.

A function takes the group that it reads. A field's docstring is its help text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, get_args, get_type_hints

from harness.device import fast_precision
from harness.errors import UserError

SMALL = 50_000_000  # weights up to which a model is small: more than our presets, fewer than GPT-2
RENAMED = {  # flags of 0.3, which 0.4 refuses with their new names, and reads in older runs
    "policy": "model", "base": "model", "weights": "model", "warmup": "warmup_steps",
    "checkpoint_blocks": "gradient_checkpointing", "checkpoint_every": "save_every",
    "max_norm": "max_grad_norm",
}  # fmt: skip
LARGEST = 1e12  # what multiplies numbers in float32 must leave room for them
LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True)
class Range:
    """An interval, as in "[0, 1)", and the words for a value outside of it."""

    interval: str
    words: str

    def holds(self, value: float) -> bool:
        """Whether the value lies inside, NaN never."""
        low, high = map(float, self.interval[1:-1].split(", "))
        above = value >= low if self.interval[0] == "[" else value > low
        return above and (value <= high if self.interval[-1] == "]" else value < high)


ANY = Range("(-inf, inf)", "")
AtLeastOne = Annotated[int, Range("[1, inf)", "must be at least 1")]
AtLeastTwo = Annotated[int, Range("[2, inf)", "must be at least 2")]
Count = Annotated[int, Range("[0, inf)", "must not be negative")]
NotNegative = Annotated[float, Range("[0, inf)", "must not be negative")]
AboveZero = Annotated[float, Range("(0, inf)", "must be above 0")]
Limit = Annotated[float, Range("(0, inf]", "must be above 0")]
KLNats = Annotated[float, Range("(0, inf]", "must be above 0, any run would stop there")]
ZeroToOne = Annotated[float, Range("[0, 1]", "must be in 0..1")]


@cache
def ranges_of(config_class: type) -> dict[str, Range]:
    """The range of every field that has one, also as `AtLeastOne | None`."""
    return {
        name: found
        for name, hint in get_type_hints(config_class, include_extras=True).items()
        for part in (hint, *get_args(hint))
        for found in getattr(part, "__metadata__", ())
        if isinstance(found, Range)
    }


def check_ranges(config: object) -> None:
    """UserError for the first field of a script's config that no run can mean; None passes.

    NaN is one for every flag: each comparison with it is False, so it would switch off in silence what
    the flag controls. So is a number that float32 cannot calculate with.
    """
    ranges = ranges_of(type(config))  # type: ignore[arg-type]  # it is hashable
    for name, value in vars(config).items():
        if not isinstance(value, (int, float)):
            continue
        allowed = ranges.get(name, ANY)
        no_limit = value == math.inf and allowed.interval.endswith("inf]")
        largest = LARGEST_INTEGER if isinstance(value, int) else LARGEST
        if not (abs(value) <= largest or no_limit):
            raise UserError(f"{name} must be finite, and at most {largest:g} in size: got {value}")
        if not allowed.holds(value):
            raise UserError(f"{name} {allowed.words}: got {value}")


def renamed(flags: Mapping[str, object]) -> dict[str, Any]:
    """The flags of a run's config.json under the names that they have today."""
    old = {RENAMED[name]: v for name, v in flags.items() if name in RENAMED and v is not None}
    return old | {name: value for name, value in flags.items() if name not in RENAMED}


# Groups of flags ---------------------------------------------------------------------------------


class Flags(Protocol):
    """The config of any command: a dataclass whose fields are its flags."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(frozen=True)
class TrainingFlags:
    """Flags of every command that trains."""

    seed: int = 0
    """Of every random number; each concern of a run has a stream of its own."""
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""
    ranks: AtLeastOne | None = None
    """Processes that share the work; default: one per core for small models on a CPU, else one."""
    out: Path | None = None
    """Run folder; default runs/COMMAND-DATA-MODEL: the preset, or the published model at the start."""
    resume: bool = False
    """Continue the run in the run folder."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """bfloat16: autocast over float32 weights. auto: that on a CPU which has bfloat16 products (AMX,
    AVX-512 BF16, Arm's) for a model of 50M weights or more, else float32."""
    save_every: AtLeastOne | None = None
    """Steps between resumable checkpoints. Default: one in three minutes, or in twenty times as long as
    writing it takes."""
    gradient_checkpointing: bool = False
    """Compute each block's activations again in the backward pass instead of keeping them: less memory,
    a third more work, the same gradients."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.precision == "auto":  # from here on one of the two: a run folder records which
            usual = "float32" if self.is_small else fast_precision(self.device)
            object.__setattr__(self, "precision", usual)

    # What a command says of itself.
    family: ClassVar[str] = ""  # of commands that share recipes
    # Whether a rate or a stage depends on how many steps there are.
    fixed_length: ClassVar[bool] = False
    rates: ClassVar[tuple[str, ...]] = ("lr",)  # its learning rates
    # What to lower where memory runs out, in a step and as it samples.
    largest: ClassVar[tuple[str, ...]] = ("micro_batch_size",)
    largest_sampled: ClassVar[tuple[str, ...]] = ()

    def sizes(self) -> list[int]:
        """The number of weights of each model that the command opens or makes, as far as it is known."""
        return []

    def origins(self) -> dict[str, list[str]]:
        """Where the values come from that are not their fields' defaults, for config.json."""
        return {}

    @property
    def is_small(self) -> bool:
        """Whether one process a core beats one with threads (docs/ranks.md): not at published sizes."""
        return max(self.sizes(), default=0) < SMALL


@dataclass(frozen=True)
class OptimizerFlags:
    """Flags of AdamW, where a cosine brings the learning rate down over the steps."""

    lr: NotNegative = 5e-4
    """Peak learning rate."""
    warmup_steps: Count = 50
    """Steps of linear warm-up."""
    weight_decay: NotNegative = 0.0
    """AdamW decay of matrices."""
    max_grad_norm: Limit = 1.0
    """Gradient norm at which gradients are clipped."""

    fixed_length: ClassVar[bool] = True


@dataclass(frozen=True)
class MemoryFlags(TrainingFlags):
    """Flags of a command that can train adapters."""

    lora_rank: Count = 0
    """LoRA: train adapters of this rank beside frozen weights (gpt/lora.py), by default at ten times the
    learning rates; 0 trains all weights."""
