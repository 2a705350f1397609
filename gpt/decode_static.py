"""The decoding loop for GPUs: every step has the same shapes, so that it is recorded and replayed.

`decode_static` gives the tokens of `decode` (gpt/generate.py). It drops no row, asks only every 16
tokens whether one is still running, and its steps can be CUDA graphs (harness/cuda_graph.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from gpt.generate import (
    DECODING,
    Reader,
    SamplingParams,
    cut_at_eos,
    draw,
    empty_answers,
    read_prompts,
)
from gpt.model import GPT
from harness.cuda_graph import aside, recorded
from harness.ranks.collectives import on_device

LOOK_EVERY = 16  # tokens after which the static loop asks whether a row is still running
WINDOW = 128  # columns by which those that a static step reads grow; each time it is recorded anew
ALIGNED = 16  # columns are a multiple of it: attention kernels copy masks of other widths


class StaticStep:
    """All readers read one token of every row, with the same kernels on the same addresses each time.

    A step reads the first `end` columns of the caches, filled or not. When they are full the next
    window is opened: its first step runs as it stands, the second is recorded, all others replay.
    """

    def __init__(self, readers: Sequence[Reader], mask: Tensor, filled: int, capture: bool) -> None:
        self.readers, self.capture, self.filled, self.end = readers, capture, filled, filled
        self.seen = mask.clone()  # (N, columns) bool, which columns hold tokens by now
        self.seen[:, filled:] = False
        self.at = torch.full(
            (1,), filled, device=mask.device
        )  # `filled`, where the device knows it
        self.tokens = torch.zeros(len(mask), dtype=torch.long, device=mask.device)
        self.replays: list[Callable[[], None]] = []  # of each window; old ones may still be at work
        self.recorded = False  # this window
        for reader in readers:
            reader.cache.stand_still(self.at)
            reader.last = reader.last.clone()  # from now on written in place

    def read(self, chosen: Tensor) -> None:
        """Append one token (rows,) to each row."""
        self.tokens.copy_(chosen)
        if self.filled == self.end:
            self._open_window()
            with aside(chosen.device) if self.capture else nullcontext():
                self._advance()
        else:
            if self.capture and not self.recorded:
                self._record()
            self.replays[-1]() if self.recorded else self._advance()
        self.filled += 1

    def _open_window(self) -> None:
        columns = self.seen.shape[1]
        self.end = min((self.filled // WINDOW + 1) * WINDOW, columns)
        self.recorded = False
        for reader in self.readers:
            reader.cache.end = self.end

    def _advance(self) -> None:
        self.seen.index_fill_(1, self.at, True)
        for reader in self.readers:
            seen = self.seen[:, : self.end]
            reader.last.copy_(reader.model.decode(self.tokens, seen, reader.cache))
        self.at.add_(1)

    def _record(self) -> None:
        try:
            self.replays.append(recorded(self._advance, self.tokens.device))
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
) -> tuple[Tensor, Tensor, Tensor]:
    """The twin of `decode` whose steps are all alike: same arguments, same tokens.

    All rows go on until the last has ended, which is noticed up to 16 tokens later. With `capture`
    the models' part of a step is a CUDA graph; drawing stays outside, because its (N, V)
    intermediates would stay in the graph's memory, and it is a dozen kernels only.
    """
    (N, steps), longest = uniforms.shape, max(len(prompt) for prompt in prompts)
    columns = -(-(longest + steps) // ALIGNED) * ALIGNED
    readers, mask = read_prompts(models, prompts, eos_id, columns, N // len(prompts))
    uniforms = on_device(uniforms, mask.device)
    out_tokens, out_log_probs, own_log_probs = empty_answers(models[0], N, steps, eos_id)
    running = torch.ones(N, dtype=torch.bool, device=mask.device)
    static = StaticStep(readers, mask, longest, capture)
    for step in range(steps):
        chosen, log_probs, own = draw(readers, teacher_share, params, uniforms[:, step])
        out_tokens[:, step] = chosen
        out_log_probs[:, step] = log_probs
        own_log_probs[:, step] = own
        running &= chosen != eos_id
        look = step % LOOK_EVERY == LOOK_EVERY - 1
        if step + 1 == steps or (look and not running.any()):
            break
        static.read(chosen)
    tokens, drawn, own = cut_at_eos(out_tokens, out_log_probs, own_log_probs, eos_id)
    return tokens.cpu(), drawn, own  # which waits: no replay outlives its recording
