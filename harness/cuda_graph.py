"""Work of a GPU that is recorded once and replayed without Python: CUDA graphs.

Launching the small kernels of a decoding step one by one takes longer than running them; a replay
launches all at once, on the same addresses. So what changes from step to step must stand in tensors,
and nothing may ask the device for a number. This has not run on a GPU yet (docs/gpu.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

# Another thread that talks to the GPU (a collective's watchdog) must not spoil a recording.
ERROR_MODE = "thread_local"


@cache
def _studio(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.CUDAGraph]:
    """The stream on which this process records, and a recording of nothing.

    One stream, because each that multiplies matrices keeps a workspace for good. The empty recording
    keeps the pool of memory that all recordings share.
    """
    stream, nothing = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    with warnings.catch_warnings(), torch.cuda.stream(stream):
        warnings.simplefilter("ignore")  # "the graph is empty"
        nothing.capture_begin(capture_error_mode=ERROR_MODE)
        nothing.capture_end()
    return stream, nothing


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Inside, work goes to the recording stream: after what was asked before, before what follows."""
    stream, _ = _studio(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


@contextmanager
def without_autocast_cache() -> Iterator[None]:
    """Inside, autocast keeps no cast weight: one made in a recording is a number only in its replay."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)


def recorded(function: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """A function that replays the GPU's work of `function()`, which is recorded and not run here.

    Run it once under `aside` before: the first call of a kernel may allocate for good. What it reads
    and writes must outlive the last replay. RuntimeError if something in it cannot be recorded.
    """
    graph, (_, nothing) = torch.cuda.CUDAGraph(), _studio(device)
    with aside(device), without_autocast_cache():
        graph.capture_begin(pool=nothing.pool(), capture_error_mode=ERROR_MODE)
        try:
            function()
        finally:
            graph.capture_end()
    return graph.replay
