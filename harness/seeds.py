"""Random numbers: one stream for each concern of a run."""

from __future__ import annotations

import zlib

import torch


def make_generator(seed: int, concern: str) -> torch.Generator:
    """A CPU generator of its own for one concern ("sampling", "weights", ...).

    Separate streams: drawing more numbers for one concern never shifts another's.
    """
    return torch.Generator().manual_seed(derive_seed(seed, concern))


def derive_seed(seed: int, concern: str) -> int:
    """A 32-bit seed that depends on both arguments and on nothing else."""
    return zlib.crc32(f"{seed}:{concern}".encode())
