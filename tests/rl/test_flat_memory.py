"""A hundred and fifty steps take no more memory than thirty."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from engines import DIVERSE, engine_named, small_gpt

from harness.metric_log import MetricLog


class MeasuringLog(MetricLog):
    """Notes the resident memory, in pages, after each step."""

    def write(self, *, step: int, **metrics: Any) -> None:
        super().write(step=step, **metrics)
        self.pages = [*getattr(self, "pages", []), resident_pages()]


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_memory_is_flat_over_many_steps() -> None:
    log = MeasuringLog(150)
    flags = dict(steps=150, prompts_per_step=2, group_size=2, max_new_tokens=4, lr=1e-4)
    engine_named("grpo").run(small_gpt(n_layer=1), DIVERSE, log=log, **flags)
    assert len(log.pages) == 150
    assert max(log.pages[120:]) < 1.05 * max(log.pages[:30])
