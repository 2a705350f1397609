"""The benchmark beside the peers: what it counts, how its sides take turns, what it prints."""

from __future__ import annotations

import mmap
import sys
from dataclasses import replace

import arithmetic
import pytest
import sides
import torch
import turns
from conftest import require_package
from turns import Case

from gpt.model import GPTConfig

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


# Tables


# The command
