"""The recorder against a stand-in for torch.cuda, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from harness import cuda_graph
from harness.cuda_graph import aside, recorded

DEVICE = torch.device("cuda", 0)


class FakeStream:
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def wait_stream(self, other: FakeStream) -> None:
        self.notes.append(f"{self.name} waits for {other.name}")


class FakeGraph:
    """Notes what it is asked; `pool` is its number."""

    def __init__(self, number: int, notes: list[str]) -> None:
        self.number, self.notes = number, notes

    def capture_begin(self, pool=None, capture_error_mode="global") -> None:
        self.notes.append(f"begin {self.number}, pool {pool}, {capture_error_mode}")

    def capture_end(self) -> None:
        self.notes.append(f"end {self.number}")

    def pool(self) -> int:
        return self.number

    def replay(self) -> None:
        self.notes.append(f"replay {self.number}")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a fake torch.cuda has been asked, in order."""
    said: list[str] = []
    graphs: list[FakeGraph] = []
    main = FakeStream("main", said)

    def graph() -> FakeGraph:
        graphs.append(FakeGraph(len(graphs), said))
        return graphs[-1]

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        said.append(f"on {stream.name}")
        yield
        said.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream("side", said))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    cuda_graph._studio.cache_clear()
    yield said
    cuda_graph._studio.cache_clear()


EMPTY = ["on side", "begin 1, pool None, thread_local", "end 1", "off side"]


def recording(number: int, work: str) -> list[str]:
    """Graph 1 is the empty one, whose pool all others share."""
    return [
        "side waits for main", "on side", f"begin {number}, pool 1, thread_local", work,
        f"end {number}", "off side", "main waits for side",
    ]  # fmt: skip


def test_recordings_are_made_aside_between_two_waits_in_one_pool(notes):
    """The empty recording that keeps the pool alive is made once for the process."""
    first = recorded(lambda: notes.append("first"), DEVICE)
    assert notes == [*EMPTY, *recording(0, "first")]
    notes.clear()
    second = recorded(lambda: notes.append("second"), DEVICE)
    assert notes == recording(2, "second")
    notes.clear()
    second(), first(), first()
    assert notes == ["replay 2", "replay 0", "replay 0"]


def test_a_recording_that_fails_is_ended(notes):
    def fail() -> None:
        raise RuntimeError("operation not permitted")

    with pytest.raises(RuntimeError, match="not permitted"):
        recorded(fail, DEVICE)
    assert "end 0" in notes


def test_autocast_keeps_no_weight_that_is_cast_in_a_recording(notes):
    cached: list[bool] = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        recorded(lambda: cached.append(torch.is_autocast_cache_enabled()), DEVICE)
        assert torch.is_autocast_cache_enabled()
    assert cached == [False]


@pytest.mark.gpu
def test_a_replay_works_on_what_stands_in_the_tensors():
    x, y = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")

    def work() -> None:
        y.add_(x @ torch.ones(4, 4, device="cuda"))

    with aside(x.device):
        work()
    replay = recorded(work, x.device)
    assert y.tolist() == [4.0] * 4  # recorded, not run
    replay()
    x.fill_(2.0)
    replay()
    assert y.tolist() == [16.0] * 4
