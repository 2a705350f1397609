"""What a run needs of its device's memory, computed before its first step from the shapes alone.

    peak = the largest sum over the phases of a run (sampling, scoring, update, validation, test) of
           weights + gradients + optimizer + activations + logits + cache + libraries

Nothing here runs a model or measures one: every number is a product of the model's shape and the
batch's. docs/memory.md explains the parts and compares their sum with measured peaks. Bytes
throughout; GB are 10^9 of them. Letters: V vocabulary, C context, D width, L layers, P = all weights.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from gpt.log_probs import CHUNK_ELEMENTS
from gpt.model import GPTConfig
from harness.here import HERE

GB = 10**9
FLOAT = 4  # bytes of a float32
SHORT = GB  # a run that needs less is forecast in one line

# What the libraries take before the first tensor: Python and PyTorch's own memory, on CUDA the
# context and the workspaces of the matrix products.
LIBRARIES = {"cpu": 350 * 10**6, "cuda": 700 * 10**6, "mps": 500 * 10**6}

# On a CPU freed memory is kept for the next tensor (harness/process.py), and activations, blocks of many
# sizes that come and go, leave gaps: they take this much more than they are. So do pieces of logits,
# of which the last is smaller than the others: one piece more (docs/memory.md).
GAPS = 1.2

Config = TypeVar("Config")


# --- weights ------------------------------------------------------------------------------------


def parameters(config: GPTConfig) -> int:
    """P = VD + CD + L (12 D^2 + 13 D) + 2D, the tied head counted once."""
    V, C, D, L = config.vocab_size, config.context, config.n_embd, config.n_layer
    return V * D + C * D + L * (12 * D * D + 13 * D) + 2 * D


def projections(config: GPTConfig) -> int:
    """The matrices of attention and MLP: D x 3D, D x D, D x 4D and 4D x D in each layer, 12 L D^2."""
    return 12 * config.n_layer * config.n_embd**2


def adapter_parameters(config: GPTConfig, rank: int) -> int:
    """LoRA's A (r x in) and B (out x r) at those four matrices: r (4 + 2 + 5 + 5) D a layer."""
    return 16 * rank * config.n_embd * config.n_layer


@dataclass(frozen=True)
class Model:
    """A model that a run holds."""

    name: str
    config: GPTConfig
    trained: bool = False  # then it has gradients and Adam's two moments
    lora_rank: int = 0  # above 0 it has adapters, and of a trained one they alone are trained
    narrow: bool = False  # of a frozen one: its projections are kept in bfloat16
    shares: bool = False  # all but its adapters lies in another model's tensors

    @property
    def trained_parameters(self) -> int:
        """How many weights the optimizer moves."""
        if not self.trained:
            return 0
        whole = parameters(self.config)
        return adapter_parameters(self.config, self.lora_rank) if self.lora_rank else whole

    @property
    def weights(self) -> int:
        """4P bytes; 2 less for each weight of a narrow projection; adapters come on top."""
        adapters = FLOAT * adapter_parameters(self.config, self.lora_rank)
        if self.shares:
            return adapters
        saved = 2 * projections(self.config) if self.narrow else 0
        return FLOAT * parameters(self.config) + adapters - saved


# --- what a forward and a backward pass hold ------------------------------------------------------


def kept_by_block(bfloat16: bool) -> int:
    """Bytes that a block keeps for the backward pass, per token and unit of width.

    Inputs of both LayerNorms, which are the residual stream in float32 (4 + 4), their outputs, query,
    key and value, what attention returns, and 4D before and 4D after the GELU: 1 + 1 + 3 + 1 + 4 + 4
    more in the dtype of the products. 64 in float32, 36 in bfloat16.
    """
    return 2 * FLOAT + 14 * (2 if bfloat16 else FLOAT)


def at_work_in_block(bfloat16: bool) -> int:
    """Bytes that come and go while one block computes, per token and unit of width.

    The MLP's 4D + 4D with its input and output, or in the backward pass their gradients.
    """
    return 2 * FLOAT + 8 * (2 if bfloat16 else FLOAT)


def kept_activations(
    config: GPTConfig, rows: int, tokens: int, *, bfloat16: bool = False, checkpoint: bool = False
) -> int:
    """What a forward pass keeps for its backward pass: rows x tokens x D x (64 L + 4) in float32.

    The last 4 are the input of the final LayerNorm. With a checkpoint per block only the inputs of
    the blocks are kept, 4 bytes each, and one block at a time is computed again.
    """
    block = kept_by_block(bfloat16)
    blocks = FLOAT * config.n_layer + block if checkpoint else block * config.n_layer
    return rows * tokens * config.n_embd * (blocks + FLOAT)


def chunk_of_logits(config: GPTConfig, rows: int, scored: int) -> int:
    """Bytes of the largest piece of logits: rows x scored x V, but at most CHUNK_ELEMENTS at once."""
    vocabulary = config.vocab_size
    return FLOAT * min(rows * scored * vocabulary, max(CHUNK_ELEMENTS, vocabulary))


def cache_bytes(config: GPTConfig, rows: int, columns: int, *, bfloat16: bool = False) -> int:
    """Keys and values of every layer: 2 L x rows x columns x D, allocated once at full length."""
    width = 2 if bfloat16 else FLOAT
    return 2 * config.n_layer * rows * columns * config.n_embd * width


# --- phases ---------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """Bytes by what they are for."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    logits: int = 0
    cache: int = 0
    libraries: int = 0

    @property
    def sum(self) -> int:
        """All of them."""
        return sum(self)


@dataclass(frozen=True)
class Phase:
    """One kind of work of a run: which models compute, on how many rows at once."""

    name: str
    does: Literal["sampling", "scoring", "update"]
    models: tuple[GPTConfig, ...]  # with a graph, or a cache, at the same time
    rows: int  # of one forward pass
    tokens: int  # columns of a row, those of the response to come included
    scored: int = 0  # columns of a row whose logits are formed
    chunks: int = 4  # how many tensors of a chunk's size are alive together
    accumulates: bool = True  # several forward passes add up to one optimizer step
    gone: tuple[str, ...] = ()  # models that are no longer held
    finished: bool = False  # after training: the optimizer is gone, the last gradients are not


@dataclass(frozen=True)
class Work:
    """All that decides the memory of a run, of one process of it."""

    models: tuple[Model, ...]
    phases: tuple[Phase, ...]
    bfloat16: bool = False
    checkpoint: bool = False
    device: str = "cpu"
    gradients_between: bool = True  # gradients stay until the next update begins
    gaps: float = GAPS  # on a CPU


def phase_parts(work: Work, phase: Phase) -> Parts:
    """What `phase` holds at its fullest moment."""
    held = [model for model in work.models if model.name not in phase.gone]
    weights = sum(model.weights for model in held)
    trained = FLOAT * sum(model.trained_parameters for model in held)
    optimizer = 0 if phase.finished else 2 * trained  # Adam's two moments
    if phase.does == "update":
        parts = _update(work, phase, trained)
    else:
        between = trained if work.gradients_between else 0
        parts = (_sampling if phase.does == "sampling" else _scoring)(work, phase)
        parts = parts._replace(gradients=between)
    parts = parts._replace(weights=weights + parts.weights, optimizer=optimizer)
    return _on_device(work, phase, parts)


def _sampling(work: Work, phase: Phase) -> Parts:
    """The caches, and (rows, V) four times: logits, those over the temperature, softmax, running sum.

    Where finished rows are dropped, which CUDA's steps of one shape do not, the rows that stay, at most
    two thirds, are copied: of the keys, then of the values, a third of the cache.
    """
    caches = [
        cache_bytes(model, phase.rows, phase.tokens, bfloat16=work.bfloat16)
        for model in phase.models
    ]
    vocabulary = max(model.vocab_size for model in phase.models)
    logits = (3 + len(phase.models)) * FLOAT * phase.rows * vocabulary
    dropped = 0 if work.device == "cuda" else max(caches) // 3
    return Parts(weights=_casts(work, phase), logits=logits, cache=sum(caches) + dropped)


def _scoring(work: Work, phase: Phase) -> Parts:
    """One block at a time, then chunks of logits; nothing is kept."""
    each = at_work_in_block(work.bfloat16)
    widest = max(model.n_embd for model in phase.models)
    chunk = max(chunk_of_logits(model, phase.rows, phase.scored) for model in phase.models)
    return Parts(
        weights=_casts(work, phase),
        activations=phase.rows * phase.tokens * widest * each,
        logits=chunk * phase.chunks,
    )


def _update(work: Work, phase: Phase, trained: int) -> Parts:
    """Forward and backward passes.

    The fullest moment is the turn from forward to backward: everything is kept, and gradients of
    earlier passes are there. With one pass a step there are none but the head's, and the other
    candidate is the end of the backward pass: all gradients, no activations.
    """
    kept = sum(
        kept_activations(
            model, phase.rows, phase.tokens, bfloat16=work.bfloat16, checkpoint=work.checkpoint
        )
        for model in phase.models
    )
    first = phase.models[0]
    whole = phase.scored and not any(model.lora_rank for model in work.models if model.trained)
    head = FLOAT * first.vocab_size * first.n_embd if whole else 0  # adapters leave the head alone
    chunk = chunk_of_logits(first, phase.rows, phase.scored)
    # Backward: logits, their softmax, the head's gradient of all chunks and that of one.
    logits = max(phase.chunks * chunk, 2 * chunk + 2 * head)
    block = phase.rows * phase.tokens * first.n_embd * at_work_in_block(work.bfloat16)
    kept += max(block - logits, 0)  # the last block's backward pass begins once the head's is done
    parts = Parts(weights=_casts(work, phase), activations=kept, logits=logits)
    if phase.accumulates:
        return parts._replace(gradients=trained)
    before = min(head, trained)
    if parts.sum + before >= trained:
        return parts._replace(gradients=before)
    return Parts(gradients=trained)


def _casts(work: Work, phase: Phase) -> int:
    """In bfloat16 the projections of a model in float32 are copied for as long as it computes."""
    casts = [2 * projections(model) for model in phase.models]
    return sum(casts) if work.bfloat16 else 0


def _on_device(work: Work, phase: Phase, parts: Parts) -> Parts:
    """The libraries, and on a CPU the gaps that activations and logits leave, counted with them."""
    parts = parts._replace(libraries=LIBRARIES.get(work.device, LIBRARIES["cuda"]))
    if work.device != "cpu" or not work.gaps:
        return parts
    activations = round(parts.activations * (1 + work.gaps))
    piece = max(chunk_of_logits(model, phase.rows, phase.scored) for model in phase.models)
    return parts._replace(activations=activations, logits=parts.logits + piece)


@dataclass(frozen=True)
class Forecast:
    """The parts of every phase; the run needs as much as its largest phase."""

    phases: dict[str, Parts]
    work: Work = field(repr=False)

    @property
    def at(self) -> str:
        """The phase of the peak."""
        return max(self.phases, key=lambda name: self.phases[name].sum)

    @property
    def parts(self) -> Parts:
        """Those of the peak."""
        return self.phases[self.at]

    @property
    def peak(self) -> int:
        """Bytes."""
        return self.parts.sum


def forecast(work: Work) -> Forecast:
    """The parts of every phase of a run."""
    return Forecast({phase.name: phase_parts(work, phase) for phase in work.phases}, work)


def size_text(size: float) -> str:
    """Bytes for people: 5.3 GB, 240 MB."""
    return f"{size / GB:,.1f} GB" if size >= 0.1 * GB else f"{size / 10**6:.0f} MB"


def forecast_text(result: Forecast, limit: int | None, device: str) -> str:
    """What is printed before the first step: a line for a small run, a column of parts for others."""
    of = "" if limit is None else f" of {size_text(limit)}"
    head = f"memory: {size_text(result.peak)} at the peak, in the {result.at},{of} on {device}"
    if result.peak < SHORT:
        return f"{head} (forecast)"
    models = ", ".join(model.name for model in result.work.models)
    notes = {"weights": models, "optimizer": "Adam's two moments"}
    lines = [f"{head} (a forecast, docs/memory.md)"]
    for name, size in result.parts._asdict().items():
        lines.append(f"  {name:<12}{size_text(size):>9}   {notes.get(name, '')}".rstrip())
    others = {name: parts.sum for name, parts in result.phases.items() if name != result.at}
    if others:
        rest = ", ".join(f"{name} {size_text(size)}" for name, size in others.items())
        lines.append(f"  other phases: {rest}")
    return "\n".join(lines)


# --- what there is ------------------------------------------------------------------------------


def device_memory(device: torch.device) -> int | None:
    """Bytes that this process may use there in all; None where nobody says."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device)  # what we hold already is ours
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    return cpu_memory() if device.type == "cpu" else None


def cpu_memory() -> int | None:
    """The machine's memory, or what its container may use of it; shared by the ranks that are here."""
    sizes = list(_container_limits())
    try:
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        pass
    return min(sizes) // HERE.local_ranks if sizes else None


def _container_limits() -> Iterator[int]:
    """Of control groups, version 2 and 1."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            yield int(Path(path).read_text(encoding="ascii"))
        except (OSError, ValueError):  # not there, or "max"
            pass


# --- what to change -----------------------------------------------------------------------------


class Change(NamedTuple):
    """Another config and the flags that make it."""

    flags: str
    config: Any


def _halved(config: Any, name: str, least: int) -> Iterator[Change]:
    value = getattr(config, name)
    while value // 2 >= least:
        value //= 2
        yield Change(f"--{name.replace('_', '-')} {value}", _changed(config, **{name: value}))


def _changed(config: Config, **fields: Any) -> Config | None:
    """The config with other fields; None if it refuses them."""
    try:
        return replace(config, **fields)  # type: ignore[type-var]
    except ValueError:
        return None


# What makes a run smaller, in the order in which it is tried: what changes no number comes first.
SAVERS = (
    "micro_batch_size", "sample_rows", "checkpoint_blocks", "precision", "lora_rank", "eval_prompts",
    "test_prompts", "prompts_per_step", "batch_size",
)  # fmt: skip
ALWAYS_GOOD = {"checkpoint_blocks": True, "precision": "bfloat16", "lora_rank": 16}


def _changes(config: Any, name: str) -> Iterator[Change]:
    """The config with one flag made more sparing, step by step."""
    value = getattr(config, name, None)
    if name == "sample_rows" and hasattr(config, name):
        value = value or config.prompts_per_step * config.group_size
        config = replace(config, sample_rows=value)
    if name == "micro_batch_size" and value is None and hasattr(config, name):  # the whole batch
        value = config.batch_size
        config = replace(config, micro_batch_size=value)
    if value is None:
        return
    if name in ALWAYS_GOOD:
        better = ALWAYS_GOOD[name]
        if value in (False, 0, "float32"):
            flag = f"--{name.replace('_', '-')}" + ("" if better is True else f" {better}")
            yield Change(flag, _changed(config, **{name: better}))
    else:
        yield from _halved(config, name, least=1)


def fitting_change(
    config: Config, memory_of: Callable[[Config], Forecast], limit: int
) -> tuple[Change, int] | None:
    """The fewest flags with which the run needs at most `limit` bytes, and its peak with them."""
    sizes = [name for name in SAVERS if name not in ALWAYS_GOOD]
    subsets = (good for n in range(4) for good in itertools.combinations(ALWAYS_GOOD, n))
    if all(_least(config, memory_of, [*good, *sizes]) > limit for good in subsets):
        return None
    for count in range(1, len(SAVERS) + 1):
        for names in itertools.combinations(SAVERS, count):
            if _least(config, memory_of, names) > limit:
                continue
            for change in _together(config, names):
                peak = memory_of(change.config).peak
                if peak <= limit:
                    return change, peak
    return None


def _least(config: Config, memory_of: Callable[[Config], Forecast], names: Sequence[str]) -> int:
    """Bytes that no change of the named flags gets below.

    Every size is at its smallest. Of micro-batches all are tried: one pass a step, in which gradients
    and activations never meet, can need less than several smaller ones.
    """
    configs = [config]
    for name in names:
        changed: list[Config] = []
        for one in configs:
            found = [c.config for c in _changes(one, name) if c.config is not None] or [one]
            changed += [one, *found] if name == "micro_batch_size" else found[-1:]
        configs = changed
    return min(memory_of(one).peak for one in configs)


def _together(config: Any, names: Sequence[str]) -> Iterator[Change]:
    """Every way to change all of the named flags."""
    first, rest = names[0], names[1:]
    for change in _changes(config, first):
        if change.config is None:
            continue
        if not rest:
            yield change
        for more in _together(change.config, rest) if rest else ():
            yield Change(f"{change.flags} {more.flags}", more.config)
