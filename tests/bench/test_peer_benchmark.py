"""The benchmark beside the peers: what it counts, how its sides take turns, what it prints."""

from __future__ import annotations

import mmap
import re
import sys
from dataclasses import replace
from pathlib import Path

import arithmetic
import peer_tables
import peers
import pytest
import sides
import torch
import turns
from conftest import require_package
from peers import PeersConfig
from turns import Case, Side

from gpt.model import GPTConfig
from harness.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SMALL = Case("grpo", prompts=2, group=2, prompt_tokens=4, new_tokens=3)


# Arithmetic

SHAPE = GPTConfig(vocab_size=3, context=8, n_layer=1, n_head=1, n_embd=2)


def test_operations_by_hand():
    """One prompt of 2 tokens, 2 responses of 2: L = 1, D = 2, V = 3.

    A token costs 24 D^2 = 96 in the block and 8 per column it attends to; a position's logits 12.
    """
    case = Case("sample", prompts=1, group=2, prompt_tokens=2, new_tokens=2)
    prompt = 2 * 96 + 8 * (1 + 2)
    decode = 2 * (96 + 8 * 3 + 2 * 12)  # the first response token is read, the second is not
    assert arithmetic.operations(SHAPE, case) == prompt + decode == 504
    score = 2 * (3 * 96 + 8 * (1 + 2 + 3) + 2 * 12)
    assert score == 720
    assert arithmetic.operations(SHAPE, replace(case, task="update")) == 3 * 720
    assert arithmetic.operations(SHAPE, replace(case, task="grpo")) == 504 + 4 * 720


def test_the_formula_is_what_pytorch_counts():
    """Matrices by torch's counter, attention by the formula: the counter knows no causal saving."""
    from torch.utils.flop_counter import FlopCounterMode

    model = sides.model_of(SMALL)
    tokens = torch.zeros(2, 7, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model.logits(model.hidden(tokens)[:, -3:])
    counted = counter.get_flop_counts()["Global"]
    matrices = sum(n for op, n in counted.items() if "attention" not in str(op))
    shape = model.config
    attention = 2 * 4 * shape.n_layer * shape.n_embd * (1 + 2 + 3 + 4 + 5 + 6 + 7)
    assert arithmetic.forward(shape, 2, 0, 7, 3) == matrices + attention


# Turns


class Recorded:
    """A worker that notes when it is asked to run."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def run(self) -> dict[str, float]:
        self.notes.append(self.name)
        return {"seconds": float(len(self.notes)), "mib": 0.0}


def test_sides_are_interleaved_and_the_first_round_does_not_count():
    notes: list[str] = []
    reports = turns.interleaved([Recorded("a", notes), Recorded("b", notes)], 2)
    assert notes == ["a", "b", "a", "b", "a", "b"]
    assert [[r["seconds"] for r in own] for own in reports] == [[3, 5], [4, 6]]


def test_peak_memory_counts_what_was_touched_and_freed():
    turns.reset_peak()
    before = turns.peak_mib()
    with mmap.mmap(-1, 2**28) as block:  # 256 MiB that the heap does not hold from an earlier test
        for _ in range(2**8):
            block.write(bytes(2**20))
    grown = turns.peak_mib() - before
    if sys.platform != "linux" and grown < 200:
        pytest.skip("only Linux lets a process forget its earlier peak")
    assert 200 < grown < 400


# Sides


class Once:
    """Turns for a test: `count` of them."""

    def __init__(self, count: int) -> None:
        self.left = count

    def next(self) -> bool:
        self.left -= 1
        return self.left >= 0


@pytest.mark.parametrize("task", ["sample", "grpo", "update", "product"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_our_sides_take_exactly_their_turns(task, dtype):
    own = Once(2)
    sides.main(Side("ours", "ours", replace(SMALL, task=task, size=8), 1, dtype), own)
    assert own.left == -1


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_updates_are_the_same_update(dtype):
    require_package("transformers")
    batch, old, advantages = sides.sampled_batch(SMALL)
    ours = sides.model_of(SMALL)
    with sides.peer_model(SMALL) as peer:
        losses = [
            sides.loss_ours(ours, batch, old, advantages, dtype),
            sides.loss_peer(peer, batch, old, advantages, dtype),
        ]
        for loss in losses:
            loss.backward()
        tolerance = 1e-5 if dtype == "float32" else 2e-2
        torch.testing.assert_close(*losses, rtol=0, atol=tolerance)
        torch.testing.assert_close(
            ours.wte.weight.grad, peer.transformer.wte.weight.grad, rtol=0, atol=tolerance
        )


@pytest.mark.oracle
@pytest.mark.parametrize("task", ["sample", "update"])
def test_the_peers_sides_take_exactly_their_turns(task):
    require_package("transformers")
    own = Once(2)
    sides.main(Side("peer", "peer", replace(SMALL, task=task), 1), own)
    assert own.left == -1


# Tables


def result(name: str = "grpo-tiny", relative: str = "speed", task: str = "grpo") -> dict:
    case = {"task": task, "preset": "tiny", "prompts": 1, "group": 2, "size": 100,
            "prompt_tokens": 2, "new_tokens": 2}  # fmt: skip
    common = {"case": case, "threads": 2, "precision": "float32"}
    return {
        "name": name, "title": "A step", "relative": relative, "pairs": 3, "date": "2026-01-02",
        "cores": 2, "versions": {"torch": "2.13.0"},
        "sides": [
            common | {"label": "TRL", "seconds": [4.0, 1.0, 2.0], "mib": 7.6},
            common | {"label": "ours", "seconds": [2.0, 1.0, 0.5], "mib": 3.0},
        ],
    }  # fmt: skip


def test_the_share_of_the_peak_is_of_the_same_threads_and_precision():
    grpo, peak = result(), result("ceilings", "none", "product")
    peak["sides"][0]["threads"] = 1
    peak["sides"][1]["seconds"] = [1.0, 1.0, 1.0]  # 2 x 100^3 operations a second
    grpo["sides"][0]["seconds"] = [10.0]
    operations = arithmetic.operations(
        sides.shape(Case(**grpo["sides"][0]["case"])), Case(**grpo["sides"][0]["case"])
    )
    share = peer_tables.share_of_peak(grpo["sides"][0], {"ceilings": peak})
    assert share == f"{operations / 10 / 2e6:.0%}"
    grpo["sides"][0]["precision"] = "bfloat16"
    assert peer_tables.share_of_peak(grpo["sides"][0], {"ceilings": peak}) == "-"
    assert peer_tables.share_of_peak(peak["sides"][0], {"ceilings": peak}) == ""


# The command


def test_missing_peers_are_named_with_the_way_to_install_them(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: name != "trl" or None)
    with pytest.raises(UserError) as error:
        peers.main(PeersConfig(only="grpo-tiny-8x8", quick=True))
    assert "needs trl, not installed here" in str(error.value)
    assert "bench/requirements-peers.txt" in str(error.value) and "\n" not in str(error.value)


def test_the_peers_are_pinned_and_transformers_is_the_one_of_the_tests():
    lines = (ROOT / "bench/requirements-peers.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    assert lines[0] == "-r ../requirements.txt"
    assert {line.split("==")[0] for line in lines[1:]} == set(peers.NEEDED["grpo"])
    assert all(re.fullmatch(r"\w+==[\d.]+", line) for line in lines[1:])
    dev = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    assert set(lines[1:]) & set(dev) == {next(x for x in dev if x.startswith("transformers"))}
