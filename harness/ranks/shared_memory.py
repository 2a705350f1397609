"""How ranks on one machine talk: each writes on a board in shared memory, and all read it.

torch.distributed sends every message through the machine's network: 1 to 5 ms for a number, about 10
ms for the laptop model's gradients, of an update's 60. Here they take 0.1 and 2 ms. Sums are added in
the order of the ranks, so that all have the same bits. For CPU tensors and harness/ranks/launch.py.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch import Tensor

SLOT = 2**20  # bytes that a rank can write at once; more goes in pieces (a container has little)
LENGTH = 8  # of them, in front, say how many follow
PATIENT_AFTER = 20_000  # looks, about 5 ms, after which a waiting rank sleeps between them
LOOKS_BETWEEN_PULSES = 1000  # of a sleeping rank, about 0.1 s


class PeerGone(RuntimeError):
    """A rank that was waited for has ended."""


class Board:
    """The shared memory and the flags of `count` ranks; made once, before they start.

    Each writes in its own slot, then raises a flag for every other one, then waits for theirs. Two
    sets of slots are used in turn: who is still reading one is not overwritten by who is ahead. The
    flags are semaphores, which also order the memory behind them on every kind of processor.
    """

    def __init__(self, context: BaseContext, count: int) -> None:
        self.count = count
        self.slots = torch.zeros(2, count, LENGTH + SLOT, dtype=torch.uint8).share_memory_()
        self.flags = [[context.Semaphore(0) for _ in range(count)] for _ in range(count)]
        self.turn = 0

    def take_part(self, rank: int, gone: Callable[[int], bool]) -> Board:
        """This rank's view of the board; `gone(n)` says whether another of the first n has ended."""
        self.rank, self.gone = rank, gone
        return self

    def gather(self, value: Any) -> list[Any]:
        """What every rank has, in their order."""
        message = bytearray(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
        mine = torch.frombuffer(message, dtype=torch.uint8)
        received = [b""] * self.count
        longest, sent = 1, 0
        while sent < longest:  # after the first piece all know how long the longest message is
            slots = self._swap(len(mine), mine[sent : sent + SLOT])
            lengths = [int(slot[:LENGTH].view(torch.int64)) for slot in slots]
            for other, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
                piece = max(min(length - sent, SLOT), 0)
                received[other] += slot[LENGTH : LENGTH + piece].numpy().tobytes()
            longest, sent = max(lengths), sent + SLOT
        return [pickle.loads(message) for message in received]

    def sum(self, flat: Tensor) -> None:
        """Add up the ranks' tensors (n,) in place."""
        for piece in flat.split(SLOT // flat.element_size()):
            content = piece.detach().contiguous().view(torch.uint8)
            slots = self._swap(content.numel(), content)
            parts = [slot[LENGTH : LENGTH + content.numel()].view(flat.dtype) for slot in slots]
            piece.copy_(parts[0])
            for part in parts[1:]:
                piece.add_(part)

    def _swap(self, length: int, content: Tensor) -> Tensor:
        """Write this rank's slot and wait until all are written: (count, LENGTH + SLOT) uint8."""
        slots = self.slots[self.turn]
        self.turn = 1 - self.turn
        slot = slots[self.rank]
        slot[:LENGTH].view(torch.int64).fill_(length)
        slot[LENGTH : LENGTH + len(content)] = content
        others = [other for other in range(self.count) if other != self.rank]
        for other in others:
            self.flags[self.rank][other].release()
        for other in others:
            self._wait(self.flags[other][self.rank])
        return slots

    def _wait(self, flag: Any) -> None:
        """Look for the flag, first without a pause: most waits are short, and waking up is slow."""
        looks = 0
        while not flag.acquire(False):
            looks += 1
            if looks < PATIENT_AFTER:
                if hasattr(os, "sched_yield"):
                    os.sched_yield()
                continue
            time.sleep(1e-4)
            if (
                looks % LOOKS_BETWEEN_PULSES == 0
                and self.gone(self.count)
                and not flag.acquire(False)
            ):
                raise PeerGone
