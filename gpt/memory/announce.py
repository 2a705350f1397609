"""Telling before the first step what a run needs, and refusing what cannot fit (gpt/memory/forecast.py)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from gpt.memory.forecast import Forecast
from gpt.tokenizer import Tokenizer
from harness.command_flags import Flags
from harness.errors import UserError
from harness.here import HERE

ANYWAY = "GLASSBOX_IGNORE_MEMORY"  # the environment variable that lets a run start that cannot fit
GB = 10**9
MOST_PROMPTS_READ = 4096  # to find the longest one
SHORT = GB  # a run that needs less is forecast in one line

Config = TypeVar("Config", bound=Flags)


def announce(config: Config, memory_of: Callable[[Config], Forecast], device: torch.device) -> None:
    """Print the forecast of a run; UserError, with the flags that would make it fit, if it does not.

    If memory runs out all the same, the advice is the flags that need a third less.
    """
    result, limit = memory_of(config), device_memory(device)
    HERE.memory_advice = lambda: advice(config, memory_of, result.peak * 2 // 3)
    if limit is not None and result.peak > limit and not os.environ.get(ANYWAY):
        raise UserError(
            f"this run would need {size_text(result.peak)} in its {result.at} and {device} has "
            f"{size_text(limit)}: {advice(config, memory_of, limit)} ({ANYWAY}=1 starts it all the same)"
        )
    print(forecast_text(result, limit, str(device)))


def advice(config: Config, memory_of: Callable[[Config], Forecast], limit: int) -> str:
    """The flags with which the run would need at most `limit` bytes, as the end of a sentence."""
    found = fitting_change(config, memory_of, limit)
    if found is None:
        return "no flag makes it fit, choose a smaller --preset"
    need = "needs" if found.flags.count("--") == 1 else "need"
    return f"try {found.flags}, which {need} {size_text(found.peak)}"


def longest_prompt(prompts: Sequence[str], tokenizer: Tokenizer) -> int:
    """Tokens of the longest of the first few thousand prompts."""
    return max(len(tokenizer.encode(prompt)) for prompt in prompts[:MOST_PROMPTS_READ])


def size_text(size: float) -> str:
    """Bytes for people: 5.3 GB, 240 MB."""
    return f"{size / GB:,.1f} GB" if size >= 0.1 * GB else f"{size / 10**6:.0f} MB"


def forecast_text(result: Forecast, limit: int | None, device: str) -> str:
    """What is printed before the first step: a line for a small run, a column of parts for others."""
    of = "" if limit is None else f" of {size_text(limit)}"
    head = f"memory: {size_text(result.peak)} at the peak, in the {result.at},{of} on {device}"
    if result.peak < SHORT:
        return f"{head} (forecast)"
    models = ", ".join(model.name for model in result.models)
    notes = {"weights": models, "optimizer": "Adam's two moments"}
    lines = [f"{head} (a forecast, docs/memory.md)"]
    for name, size in result.parts[result.at]._asdict().items():
        lines.append(f"  {name:<12}{size_text(size):>9}   {notes.get(name, '')}".rstrip())
    others = [f"{name} {size_text(p.sum)}" for name, p in result.parts.items() if name != result.at]
    return "\n".join(lines + [f"  other phases: {', '.join(others)}"] * bool(others))


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
    sizes = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:  # control groups, version 2 and 1
            sizes.append(int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # not there, or "max"
            pass
    try:
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        pass
    return min(sizes) // HERE.local_ranks if sizes else None


# --- what to change -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Change(Generic[Config]):
    """Flags, the config that they make, and the bytes that it needs."""

    flags: str
    config: Config
    peak: int


# What makes a run smaller, in the order in which it is tried: what changes no number comes first.
# A flag without a value here is a size, which is halved.
SAVERS: dict[str, Any] = {
    "micro_batch_size": None, "sample_rows": None, "checkpoint_blocks": True, "precision": "bfloat16",
    "lora_rank": 16, "eval_prompts": None, "test_prompts": None, "prompts_per_step": None,
    "batch_size": None,
}  # fmt: skip


def _more_sparing(config: Config, name: str) -> Iterator[tuple[str, Config]]:
    """The config with one flag made more sparing, step by step; none where it has no such flag."""
    flags = vars(config)
    value, better = flags.get(name), SAVERS[name]
    if better is not None:
        values = [better] if name in flags and value in (False, 0, "float32") else []
    else:
        if name in flags and value is None:  # the whole batch
            sampled = name == "sample_rows"
            value = (
                flags["prompts_per_step"] * flags["group_size"] if sampled else flags["batch_size"]
            )
        whole = 0 if value is None else value  # None: it has no such flag
        values = [whole >> n for n in range(1, whole.bit_length())]
    for less in values:
        try:
            changed = replace(config, **{name: less})
        except ValueError:  # the config refuses it
            continue
        yield f"--{name.replace('_', '-')}" + ("" if less is True else f" {less}"), changed


def _together(config: Config, names: Sequence[str], least: bool) -> Iterator[tuple[str, Config]]:
    """Every way to change all of the named flags; the `least` of them sets each size to its smallest.

    Of micro-batches even then all are tried: one pass a step can need less than several smaller ones.
    """
    if not names:
        yield "", config
        return
    ways = list(_more_sparing(config, names[0]))
    if least:
        none = [("", config)]
        ways = none + ways if names[0] == "micro_batch_size" else ways[-1:] or none
    for flag, changed in ways:
        for more, last in _together(changed, names[1:], least):
            yield f"{flag} {more}".strip(), last


def fitting_change(
    config: Config, memory_of: Callable[[Config], Forecast], limit: int
) -> Change[Config] | None:
    """The fewest flags with which the run needs at most `limit` bytes."""

    def may_fit(names: Sequence[str]) -> bool:
        return any(memory_of(one).peak <= limit for _, one in _together(config, names, True))

    sizes = [name for name, value in SAVERS.items() if value is None]
    good = [name for name in SAVERS if name not in sizes]
    if not any(
        may_fit([*some, *sizes]) for n in range(4) for some in itertools.combinations(good, n)
    ):
        return None
    for count in range(1, len(SAVERS) + 1):
        for names in filter(may_fit, itertools.combinations(SAVERS, count)):
            for flags, changed in _together(config, names, False):
                peak = memory_of(changed).peak
                if peak <= limit:
                    return Change(flags, changed, peak)
    return None
