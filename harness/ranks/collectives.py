"""One run on several processes ("ranks"): torch.distributed, and nothing around it.

Every rank runs the whole program with the whole batch in hand. Only slow work is divided:
sampling, scoring, and the forward and backward passes of an update. What was sampled or scored is
gathered at once, so that advantages, the KL controller and the metrics come from the same numbers
everywhere. Losses are divided by the whole minibatch's denominator, so the gradients of the ranks are
*summed*, then clipped. Random numbers are drawn for the whole batch on every rank: a run samples the
same tokens on any number of ranks, up to rounding. Rank 0 alone writes and prints.

Not DistributedDataParallel: it reduces the gradients of what went through `forward`, and every loss
here reads `GPT.hidden` and the tied head. With one rank every function here does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor

T = TypeVar("T")
Items = TypeVar("Items", bound=Sequence[Any] | Tensor)
STORE: Any = None  # where the ranks have met, None of a single process
_on_main = False  # inside `on_main`, where the others wait
BUCKET = 2**22  # gradient elements that are summed together: 16 MiB in float32


class LostRank(RuntimeError):
    """Another rank is gone, or the connection to it."""

    def __init__(self) -> None:
        super().__init__("another process of this run has ended: killed, or out of memory?")


class Drifted(RuntimeError):
    """The ranks no longer hold the same weights."""


def world() -> int:
    """How many ranks share the work."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """The number of this one, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_main() -> bool:
    """Whether this is the rank that writes and prints."""
    return rank() == 0


# Sharing out --------------------------------------------------------------------------------------


def shard(items: Items) -> Items:
    """This rank's share of a sequence or of a tensor's rows: every world-th, so sorted ones are even."""
    return cast("Items", items[rank() :: world()])


def shard_chunks(lengths: Tensor, size: int, groups: Tensor | None = None) -> list[Tensor]:
    """This rank's row indices in chunks of at most `size` rows of similar length; perhaps no chunk.

    Sorting saves padding; no loss minds the order of rows. Rows with the same number in `groups` (N,)
    are neighbours, in one chunk if it has room, on one rank unless there are more ranks than groups.
    """
    known = lengths.tolist()
    numbers = range(len(known)) if groups is None else groups.tolist()
    parts: dict[int, list[int]] = {}
    for row in sorted(range(len(known)), key=known.__getitem__):
        parts.setdefault(numbers[row], []).append(row)
    if len(parts) < world():
        parts = {row: [row] for part in parts.values() for row in part}
    by_longest = sorted(parts.values(), key=lambda part: known[part[-1]])
    chunks: list[list[int]] = []
    for part in shard(by_longest):
        for start in range(0, len(part), size):
            piece = part[start : start + size]
            if not chunks or len(chunks[-1]) + len(piece) > size:
                chunks.append([])
            chunks[-1] += piece
    return [torch.tensor(chunk) for chunk in chunks]


def shard_block(count: int) -> slice:
    """This rank's share of `count` neighbours, as one block; some ranks may have one fewer, or none."""
    return slice(count * rank() // world(), count * (rank() + 1) // world())


# Putting together ---------------------------------------------------------------------------------


def gather(value: T) -> list[T]:
    """What every rank has, in the order of the ranks. Tensors are to be on the CPU."""
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    _safely(dist.all_gather_object, values, value)
    return values


def all_gather_list(items: Sequence[T]) -> list[T]:
    """The ranks' lists of plain things as one list, in the order of the ranks."""
    return [item for part in gather(list(items)) for item in part]


def all_reduce_sum(numbers: Mapping[str, float]) -> dict[str, float]:
    """The ranks' numbers added up, name by name; a rank may lack a name."""
    parts = gather(dict(numbers))
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part[name] for part in parts if name in part) for name in names}


def scatter_rows(
    pieces: Sequence[tuple[Tensor, Tensor]], count: int, device: torch.device
) -> Tensor:
    """One tensor of `count` rows from the ranks' pieces, each the indices of rows and the rows."""
    if world() > 1:
        pieces = all_gather_list([(index.cpu(), rows.cpu()) for index, rows in pieces])
    first = pieces[0][1]
    whole = torch.empty(count, *first.shape[1:], dtype=first.dtype, device=device)
    for index, rows in pieces:
        whole[index.to(device)] = rows.to(device)
    return whole


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the ranks' gradients in place; a missing one is 0, where all lack it None.

    In buckets: a flat copy of all at once would cost as much memory as the weights.
    """
    if world() == 1:
        return
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        if bucket and size + parameter.numel() > BUCKET:
            _sum_bucket(bucket)
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        _sum_bucket(bucket)


def _sum_bucket(parameters: Sequence[nn.Parameter]) -> None:
    """One message: the gradients one after the other, then which of them exist."""
    first = parameters[0]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    there = torch.tensor([float(p.grad is not None) for p in parameters])
    flat = torch.cat([*(g.flatten() for g in gradients), there.to(first.device, first.dtype)])
    if flat.is_cuda:
        gather(None)  # a rank that has ended is missed here, before NCCL waits for it
    _safely(dist.all_reduce, flat, dist.ReduceOp.SUM)
    *summed, there = flat.split([*(g.numel() for g in gradients), len(parameters)])
    for parameter, gradient, whole, found in zip(
        parameters, gradients, summed, there.tolist(), strict=True
    ):
        gradient.copy_(whole.view_as(gradient))
        parameter.grad = gradient if found else None


def _safely(collective: Callable[..., object], *arguments: Any) -> None:
    """Call it; a broken connection becomes LostRank, which is told apart from an error of ours."""
    try:
        collective(*arguments)
    except RuntimeError as error:  # torch has no class for it
        raise LostRank from error


def first_to_fail() -> bool:
    """True for the rank that speaks of a failure: the first one. Always true of a single process."""
    global STORE
    store, STORE = STORE, None  # asked once: whoever fails, fails once
    try:
        return store is None or store.add("failed", 1) == 1
    except RuntimeError:  # the store has gone with its rank, which has spoken
        return False


# Doing things once --------------------------------------------------------------------------------


def on_main(function: Callable[[], T]) -> T:
    """Let rank 0 alone call it; every rank gets what it returns, or what it raises."""
    global _on_main
    if world() == 1 or _on_main:
        return function()
    outcome: list[Any] = [None, None]
    gather(None)  # the others may still be reading what is written now
    if is_main():
        _on_main = True
        try:
            outcome[0] = function()
        except Exception as error:
            outcome[1] = error
        finally:
            _on_main = False
    theirs = gather(outcome)[0]
    outcome = outcome if is_main() else theirs  # the error itself, where it was raised
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def check_alike(module: nn.Module, name: str = "policy") -> None:
    """Drifted unless all ranks hold the same weights, by their sum and sum of squares."""
    if world() == 1:
        return
    weights = [p.detach().double() for p in module.parameters()]
    sums = torch.stack([torch.stack([w.sum(), w.square().sum()]) for w in weights]).cpu()
    for other, theirs in enumerate(gather(sums)):
        if not torch.allclose(sums, theirs, rtol=1e-9, atol=1e-12, equal_nan=True):
            raise Drifted(
                f"the {name}'s weights on rank {other} are not those of rank {rank()}: the ranks "
                "have drifted apart and the run cannot be trusted from the last validation on; go "
                "back to an earlier checkpoint, and do not mix kinds of hardware or versions"
            )
