"""Telling before the first step what a run needs, and refusing what cannot fit (gpt/memory/forecast.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import torch

from gpt.memory.forecast import (
    Forecast,
    device_memory,
    fitting_change,
    forecast_text,
    remember_advice,
    size_text,
)
from harness.errors import UserError

ANYWAY = "GLASSBOX_IGNORE_MEMORY"  # the environment variable that lets a run start that cannot fit

Config = TypeVar("Config")


def announce(
    config: Config, memory_of: Callable[[Config], Forecast], device: torch.device
) -> Forecast:
    """Print the forecast of a run; UserError, with the flags that would make it fit, if it does not.

    If memory runs out all the same, the advice is the flags that need a third less.
    """
    result, limit = memory_of(config), device_memory(device)
    remember_advice(lambda: advice(config, memory_of, result.peak * 2 // 3))
    if limit is not None and result.peak > limit and not os.environ.get(ANYWAY):
        raise UserError(
            f"this run would need {size_text(result.peak)} in its {result.at} and {device} has "
            f"{size_text(limit)}: {advice(config, memory_of, limit)} ({ANYWAY}=1 starts it all the same)"
        )
    print(forecast_text(result, limit, str(device)))
    return result


def advice(config: Config, memory_of: Callable[[Config], Forecast], limit: int) -> str:
    """The flags with which the run would need at most `limit` bytes, as the end of a sentence."""
    found = fitting_change(config, memory_of, limit)
    if found is None:
        return "no flag makes it fit, choose a smaller --preset"
    change, peak = found
    return (
        f"try {change.flags}, which need{'s' * (change.flags.count('--') == 1)} {size_text(peak)}"
    )
