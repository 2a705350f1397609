"""What a run needs of its device's memory, computed before its first step from the shapes alone.

    peak = the largest sum over the phases of a run (sampling, scoring, update, validation, test) of
           weights + gradients + optimizer + activations + logits + cache + libraries

docs/memory.md explains the parts and compares their sum with measured peaks. Bytes throughout; GB are
10^9 of them. Letters: V vocabulary, C context, D width, L layers, P = all weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from gpt.log_probs import CHUNK_ELEMENTS
from gpt.model import GPTConfig
from harness.command_flags import TrainingFlags

FLOAT = 4  # bytes of a float32
FULL_KL_CHUNKS = 8  # of a divergence over the vocabulary: two models' logits, and what it keeps

# What the libraries take before the first tensor: Python and PyTorch's own memory, on CUDA the
# context and the workspaces of the matrix products.
LIBRARIES = {"cpu": 350 * 10**6, "cuda": 700 * 10**6, "mps": 500 * 10**6}

# On a CPU freed memory is kept for the next tensor (harness/process.py), and activations, blocks of many
# sizes that come and go, leave gaps: they take this much more than they are. So do pieces of logits,
# of which the last is smaller than the others: one piece more (docs/memory.md).
GAPS = 1.2
# On a card pieces of other sizes come and go as well. With expandable segments (harness/process.py) gaps
# lie inside of one growing range: a tenth of what comes and goes, by reasoning. bench/gpu.py measures it.
CARD_GAPS = 0.1


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

    The last 4 are the input of the final LayerNorm. With a checkpoint per block only the blocks'
    inputs are kept, 4 bytes each, and one block at a time is computed again.
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
    finished: bool = False  # after training: the optimizer is gone, the last gradients are not


def rows_of_pass(rows: int, micro: int | None, ranks: int = 1) -> tuple[int, bool]:
    """Rows of one forward pass of a rank, and whether several make a step of `rows` in all."""
    own = math.ceil(rows / ranks)
    return min(micro or own, own), own > (micro or own)


@dataclass(frozen=True)
class Forecast:
    """All that decides the memory of one process of a run; it needs as much as its largest phase."""

    models: tuple[Model, ...]
    phases: tuple[Phase, ...]
    bfloat16: bool = False
    checkpoint: bool = False
    device: str = "cpu"
    gaps: float | None = None  # freed memory, as a share of the activations; None: the device's

    @cached_property
    def parts(self) -> dict[str, Parts]:
        return {phase.name: self._parts_of(phase) for phase in self.phases}

    @property
    def at(self) -> str:
        """The phase of the peak."""
        return max(self.parts, key=lambda name: self.parts[name].sum)

    @property
    def peak(self) -> int:
        return self.parts[self.at].sum

    def _parts_of(self, phase: Phase) -> Parts:
        """What `phase` holds at its fullest moment; gradients stay until the next update begins."""
        trained = FLOAT * sum(model.trained_parameters for model in self.models)
        casts = 2 * sum(map(projections, phase.models)) if self.bfloat16 else 0  # at work
        weights = sum(model.weights for model in self.models)
        if phase.does == "update":
            parts = self._update(phase, trained, casts)
        else:
            parts = self._sampling(phase) if phase.does == "sampling" else self._scoring(phase)
            parts = parts._replace(weights=parts.weights + casts, gradients=trained)
        gaps = (GAPS if self.device == "cpu" else CARD_GAPS) if self.gaps is None else self.gaps
        more = dict(activations=round(parts.activations * (1 + gaps)))
        if self.device != "cpu":
            more |= dict(
                logits=round(parts.logits * (1 + gaps)), cache=round(parts.cache * (1 + gaps))
            )
        elif gaps:
            piece = max(chunk_of_logits(model, phase.rows, phase.scored) for model in phase.models)
            more |= dict(logits=parts.logits + piece)
        parts = parts._replace(**more)
        return parts._replace(
            weights=weights + parts.weights,
            optimizer=0 if phase.finished else 2 * trained,  # Adam's two moments
            libraries=LIBRARIES.get(self.device, LIBRARIES["cuda"]),
        )

    def _sampling(self, phase: Phase) -> Parts:
        """The caches, and (rows, V) four times: logits, over the temperature, softmax, running sum."""
        caches = [
            cache_bytes(model, phase.rows, phase.tokens, bfloat16=self.bfloat16)
            for model in phase.models
        ]
        vocabulary = max(model.vocab_size for model in phase.models)
        logits = (3 + len(phase.models)) * FLOAT * phase.rows * vocabulary
        return Parts(logits=logits, cache=sum(caches))

    def _scoring(self, phase: Phase) -> Parts:
        """One block at a time, then chunks of logits; nothing is kept."""
        widest = max(model.n_embd for model in phase.models)
        chunk = max(chunk_of_logits(model, phase.rows, phase.scored) for model in phase.models)
        return Parts(
            activations=phase.rows * phase.tokens * widest * at_work_in_block(self.bfloat16),
            logits=chunk * phase.chunks,
        )

    def _update(self, phase: Phase, trained: int, casts: int) -> Parts:
        """Forward and backward passes.

        The fullest moment is the turn from forward to backward: everything is kept, and gradients of
        earlier passes are there. With one pass a step the other candidate is the end: all gradients,
        no activations.
        """
        kept = sum(
            kept_activations(
                model, phase.rows, phase.tokens, bfloat16=self.bfloat16, checkpoint=self.checkpoint
            )
            for model in phase.models
        )
        first = phase.models[0]
        whole = phase.scored and not any(m.lora_rank for m in self.models if m.trained)
        head = FLOAT * first.vocab_size * first.n_embd if whole else 0  # adapters leave it alone
        chunk = chunk_of_logits(first, phase.rows, phase.scored)
        # Backward: logits, their softmax, the head's gradient of all chunks and that of one.
        logits = max(phase.chunks * chunk, 2 * chunk + 2 * head)
        block = phase.rows * phase.tokens * first.n_embd * at_work_in_block(self.bfloat16)
        kept += max(block - logits, 0)  # the last block's backward pass follows the head's
        before = trained if phase.accumulates else min(head, trained)
        parts = Parts(weights=casts, gradients=before, activations=kept, logits=logits)
        return parts if phase.accumulates or parts.sum >= trained else Parts(gradients=trained)


def stage_forecast(
    config: TrainingFlags, models: Sequence[Model], phases: Sequence[Phase], device: str
) -> Forecast:
    """The forecast of a run that holds these models and does this, by its flags."""
    return Forecast(
        tuple(models),
        tuple(phases),
        bfloat16=config.precision == "bfloat16",
        checkpoint=bool(vars(config).get("checkpoint_blocks")),
        device=device,
    )
