"""The decoding loop for GPUs: every step has the same shapes, so that it is recorded and replayed.

`decode_static` gives the tokens of `decode` (gpt/generate.py). A step, drawing included, can be a CUDA
graph (harness/cuda_graph.py). Prompts are padded on the right: a row's columns are its first ones, and
their number says all that a mask would.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from data.collate import right_pad
from gpt.generate import DECODING, Reader, SamplingParams, cut_at_eos, draw, empty_answers
from gpt.model import GPT
from harness.cuda_graph import aside, recorded
from harness.ranks.collectives import on_device

LOOK_EVERY = 16  # tokens after which the static loop asks which rows are still running
WINDOW = 128  # steps that are one recording; the columns that they read are a multiple of 16
ALIGNED = 16  # because attention kernels copy masks of other widths


def aligned(columns: int) -> int:
    """The next multiple of `ALIGNED`."""
    return -(-columns // ALIGNED) * ALIGNED


class StaticLoop:
    """All readers draw and read one token of every row, with the same kernels on the same addresses.

    At the border of a window more columns are opened, and rows that have ended may go: its first step
    runs as it stands, the second is recorded, all others replay.
    """

    def __init__(
        self, readers: Sequence[Reader], lengths: Tensor, uniforms: Tensor, params: SamplingParams,
        eos_id: int, teacher_share: float, capture: bool,
    ) -> None:  # fmt: skip
        self.readers, self.params, self.uniforms = readers, params, uniforms  # (N, steps)
        self.eos_id, self.teacher_share, self.capture = eos_id, teacher_share, capture
        N, steps = uniforms.shape
        self.answers = empty_answers(readers[0].model, N, steps, eos_id)
        self.rows = torch.arange(N, device=uniforms.device)  # the answer of each cache row
        self.running = torch.ones_like(self.rows, dtype=torch.bool)  # per cache row
        self.lengths = lengths  # (rows,) filled columns
        self.at = torch.zeros_like(self.rows[:1])  # the step, where the device knows it
        self.replays: list[Callable[[], None]] = []  # of each window; old ones may still be at work
        self.fresh = self.recorded = False  # this window: not begun; to be replayed
        for reader in readers:
            reader.cache.stand_still(lengths)
            reader.last = reader.last.clone()  # from now on written in place

    def open_window(self, end: int, alive: int) -> None:
        """From now on `end` columns are read; rows that have ended go, if a third of them has."""
        self.fresh, self.recorded = True, False
        if alive <= len(self.rows) * 2 // 3:
            self._drop(self.running.nonzero()[:, 0])
        for reader in self.readers:
            reader.cache.end = reader.cache.keys.shape[3] if reader.cache.by_lengths else end

    def _drop(self, keep: Tensor) -> None:
        self.rows, self.lengths = self.rows[keep], self.lengths[keep]
        self.running = self.running[keep]
        for reader in self.readers:
            reader.cache.length = reader.cache.end  # no column behind it is filled
            reader.cache.keep(keep)
            reader.cache.lengths, reader.last = self.lengths, reader.last[keep]

    def step(self) -> None:
        """Draw a token of every row and append it to the caches."""
        if self.fresh:
            self.fresh = False
            with aside(self.at.device) if self.capture else nullcontext():
                self._advance()
            return
        if self.capture and not self.recorded:
            self._record()
        self.replays[-1]() if self.recorded else self._advance()

    def _advance(self) -> None:
        now = self.uniforms[self.rows, self.at]
        drawn = draw(self.readers, self.teacher_share, self.params, now, in_blocks=True)
        self.running &= drawn[0] != self.eos_id
        for answers, column in zip(self.answers, drawn, strict=True):
            answers[self.rows, self.at] = column
        for reader in self.readers:
            reader.last.copy_(reader.model.decode(drawn[0], reader.cache))
        self.lengths.add_(1)
        self.at.add_(1)

    def _record(self) -> None:
        try:
            self.replays.append(recorded(self._advance, self.at.device))
            self.recorded = True
        except RuntimeError as error:
            self.capture = False
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"a decoding step could not be recorded as a CUDA graph ({reason}), so it runs "
                f"without one, which is slower: {DECODING}=static asks for that without this warning",
                stacklevel=2,
            )


@torch.no_grad()
def decode_static(
    models: Sequence[GPT],
    prompts: Sequence[Sequence[int]],
    uniforms: Tensor,
    params: SamplingParams,
    *,
    eos_id: int,
    teacher_share: float = 0.0,
    capture: bool,
    by_lengths: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The twin of `decode` whose steps are all alike: same arguments, same tokens.

    Rows that have ended go on until the next border of a window. With `capture` a step is a CUDA
    graph; with `by_lengths` its attention reads the filled columns alone (gpt/model.py:
    attention_by_lengths).
    """
    (N, steps), device = uniforms.shape, models[0].device
    tokens, mask = right_pad(prompts, 0)
    times, longest = N // len(prompts), tokens.shape[1]
    columns = aligned(longest + steps)
    tokens, given = on_device(tokens, device), on_device(mask.sum(1), device)
    readers = [
        Reader(one, tokens, None, one.new_cache(N, columns, by_lengths), times, given)
        for one in models
    ]
    lengths = given.repeat_interleave(times)
    loop = StaticLoop(
        readers, lengths, on_device(uniforms, device), params, eos_id, teacher_share, capture
    )
    alive = N
    for step in range(steps):
        if step % LOOK_EVERY == 0 and step:
            alive = int(loop.running.sum())
        if alive == 0:
            break
        if step % WINDOW == 0:
            loop.open_window(min(aligned(longest + step + WINDOW), columns), alive)
        loop.step()
    tokens, drawn, own = cut_at_eos(*loop.answers, eos_id)
    return tokens.cpu(), drawn, own  # which waits: no replay outlives its recording
