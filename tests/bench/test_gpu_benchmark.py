"""bench/gpu.py at toy size on a CPU: it runs, and finds the CPU's numbers there."""

from __future__ import annotations

import gpu
import pytest
import torch

from harness.errors import UserError
from harness.files import read_json


def test_the_command_at_toy_size(tmp_path):
    path = tmp_path / "gpu.json"
    gpu.main(gpu.GpuConfig(device="cpu", toy=True, repeats=1, keep=path))
    found = read_json(path)
    assert found["beside_the_cpu"][0]["drawn_otherwise"] == 0
    assert found["beside_the_cpu"][0]["gradient_off"] < 1e-6
    works = {(row["work"], row["precision"]) for row in found["numbers"]}
    assert len(works) == 12 and found["left_out"] == []
    assert all(
        value > 0 for row in found["numbers"] for value in row.values() if value.__class__ is float
    )


def test_what_does_not_fit_in_the_minutes_is_named(tmp_path, monkeypatch):
    path = tmp_path / "gpu.json"
    monkeypatch.setattr(gpu, "marked_tests", lambda: "none")
    gpu.main(gpu.GpuConfig(device="cpu", toy=True, minutes=0.0, keep=path))
    found = read_json(path)
    assert found["numbers"] == [] and len(found["left_out"]) == 12


@pytest.mark.skipif(
    torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a card here"
)
def test_without_a_card_nothing_large_runs_on_the_cpu():
    with pytest.raises(UserError):
        gpu.main(gpu.GpuConfig())
