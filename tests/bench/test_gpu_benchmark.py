"""bench/gpu.py at toy size on a CPU: it runs, and finds the CPU's numbers there."""

from __future__ import annotations

import gpu


def test_the_command_at_toy_size(capsys):
    sizes = dict(rows=2, micro_rows=1, prompt_tokens=3, new_tokens=4, repeats=1)
    gpu.main(gpu.GpuConfig(device="cpu", preset="tiny", **sizes))
    said = capsys.readouterr().out
    assert "0 of 2 rows drawn otherwise, gradient off by 0.0e+00" in said
    assert said.count("tokens a second") == said.count("updates a second") == 2
