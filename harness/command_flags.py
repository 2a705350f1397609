"""The flags that commands share, in groups; a function takes the group that it reads.

A field's docstring is its help text, and the first line of a class names its group in `--help`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from harness.files import weights_in
from harness.flag_ranges import AtLeastOne, Count, Limit, NotNegative, check_ranges

SMALL = 50_000_000  # weights up to which a model is small: more than our presets, fewer than GPT-2


class Flags(Protocol):
    """The config of any command: a dataclass whose fields are its flags."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(frozen=True)
class TrainingFlags:
    """The run"""

    seed: int = 0
    """Of every random number; each concern of a run has a stream of its own."""
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""
    ranks: AtLeastOne | None = None
    """Processes that share the work; default: one per core for small models on a CPU, else one."""
    out: Path | None = None
    """Run folder; default runs/COMMAND-DATA-PRESET."""
    resume: bool = False
    """Continue the run in the run folder."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast over float32 weights, for GPUs."""
    checkpoint_every: AtLeastOne = 200
    """Steps between resumable checkpoints."""

    def __post_init__(self) -> None:
        check_ranges(self)

    fixed_length = False  # whether a learning rate or a stage depends on how many steps there are

    preset = "tiny"  # the model's size, where a command has the flag

    @property
    def largest_model(self) -> int:
        """The number of weights of the largest model that a flag names; 0 where that is not known."""
        named = [vars(self).get(flag) for flag in ("policy", "base", "weights", "reward_model")]
        every = [
            each for value in named for each in (value if isinstance(value, tuple) else [value])
        ]
        return max(0 if each is None else weights_in(Path(each)) for each in every)

    @property
    def is_small(self) -> bool:
        """Whether one process a core beats one with threads (docs/ranks.md): not at published sizes."""
        return not self.preset.startswith("gpt2") and self.largest_model < SMALL


@dataclass(frozen=True)
class OptimizerFlags:
    """Optimizer"""

    lr: NotNegative = 5e-4
    """Peak learning rate."""
    warmup: Count = 50
    """Steps of linear warm-up."""
    weight_decay: NotNegative = 0.0
    """AdamW decay of matrices."""
    max_norm: Limit = 1.0
    """Gradient norm at which gradients are clipped."""

    fixed_length = True  # a cosine brings the learning rate down over the steps


@dataclass(frozen=True)
class CheckpointFlags:
    """Memory"""

    checkpoint_blocks: bool = False
    """Compute each block's activations again in the backward pass instead of keeping them: less memory,
    a third more work, the same gradients."""


@dataclass(frozen=True)
class MemoryFlags(CheckpointFlags, TrainingFlags):
    """Memory"""

    lora_rank: Count = 0
    """LoRA: train adapters of this rank beside frozen weights (gpt/lora.py); 0 trains all weights."""
