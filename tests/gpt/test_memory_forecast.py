"""The memory forecast: its parts against tensors that really exist, and what is said about them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from toys import kept_for_backward

from gpt.lora import add_adapters
from gpt.memory.announce import ANYWAY, GB, announce, device_memory, fitting_change, forecast_text
from gpt.memory.forecast import (
    Forecast,
    Model,
    Phase,
    adapter_parameters,
    cache_bytes,
    kept_by_block,
    parameters,
    projections,
)
from gpt.model import GPT, GPTConfig, KVCache, preset_config
from harness.command_line import explained
from harness.errors import UserError
from harness.here import HERE

SMALL = GPTConfig(vocab_size=97, context=32, n_layer=3, n_head=2, n_embd=24)
XL = preset_config("gpt2-xl", 50257)


def test_counts_are_those_of_a_real_model() -> None:
    model = GPT(SMALL)
    assert parameters(SMALL) == model.parameter_count()
    assert parameters(XL) == 1_557_611_200  # the published 1.5B
    linear = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("h.")]
    assert projections(SMALL) == sum(p.numel() for p in linear)
    add_adapters(model, rank=5)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert adapter_parameters(SMALL, 5) == trained


def test_the_cache_is_that_of_a_real_one() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        cache = KVCache(SMALL, rows=7, columns=11, device=torch.device("cpu"), dtype=dtype)
        stored = sum(x.numel() * x.element_size() for x in (cache.keys, cache.values))
        assert cache_bytes(SMALL, 7, 11, bfloat16=dtype == torch.bfloat16) == stored


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("bfloat16", [False, True])
def test_activations_are_those_that_autograd_keeps(bfloat16: bool, checkpoint: bool) -> None:
    """A layer more costs what the formula says, within the few numbers a LayerNorm keeps of a row."""
    sizes = []
    for layers in (2, 3):
        shape = GPTConfig(vocab_size=31, context=64, n_layer=layers, n_head=2, n_embd=128)
        model = GPT(shape).initialize()
        model.checkpoint_blocks = checkpoint
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            sizes.append(kept_for_backward(model, torch.randint(31, (4, 64))))
    per_layer = 4 if checkpoint else kept_by_block(bfloat16)
    casts = 2 * projections(replace(SMALL, n_layer=1, n_embd=128))  # bfloat16 copies of weights
    more = sizes[1] - sizes[0] - (casts if bfloat16 and not checkpoint else 0)
    assert more / (4 * 64 * 128) == pytest.approx(per_layer, rel=0.06)


def grpo_like(**changes: object) -> Forecast:
    models = (Model("policy", XL, trained=True), Model("start", XL), Model("reward model", XL))
    phases = (
        Phase("sampling", "sampling", (XL,), 64, 256),
        Phase("update", "update", (XL,), 2, 256, 128),
    )
    return replace(Forecast(models, phases, device="cuda"), **changes)  # type: ignore[arg-type]


def test_the_copies_of_the_weights_in_an_update() -> None:
    """Policy 4, start and reward model 1 each: 6 of 6.23 GB; under adapters 2 and little more."""
    update = grpo_like().parts["update"]
    copies = update.weights + update.gradients + update.optimizer
    assert copies == 6 * 4 * parameters(XL)
    policy, start, reward = grpo_like().models
    thin = replace(policy, lora_rank=16), replace(start, lora_rank=16, shares=True), reward
    update = grpo_like(models=thin).parts["update"]
    copies = update.weights + update.gradients + update.optimizer
    adapters = 4 * adapter_parameters(XL, 16)
    assert copies == 2 * 4 * parameters(XL) + 5 * adapters  # of the start too; gradient, Adam


def test_freed_memory_leaves_gaps() -> None:
    """On a CPU 1.2 times the activations, and a piece of logits; on a card a tenth of what moves."""
    there = grpo_like(gaps=0.0).parts
    for name, parts in grpo_like().parts.items():
        for part in ("activations", "logits", "cache"):
            assert getattr(parts, part) == round(1.1 * getattr(there[name], part))
        assert parts[:3] == there[name][:3]
    here = grpo_like(device="cpu").parts
    piece = 4 * 2 * 128 * XL.vocab_size  # fewer than 2^24 logits: one piece
    assert here["update"].logits == there["update"].logits + piece
    assert here["update"].activations == round(2.2 * there["update"].activations)
    assert here["sampling"].logits == there["sampling"].logits
    own = grpo_like(device="cpu", gaps=0.0).parts["update"]
    assert own.logits == there["update"].logits
    assert own.activations == there["update"].activations


def test_one_pass_a_step_holds_activations_or_gradients() -> None:
    """They are never there together in full: gradients come as activations go."""
    update = Phase("update", "update", (XL,), 2, 256, 128)
    for phase, gradients in (
        (update, 4 * parameters(XL)),
        (replace(update, rows=64), 4 * XL.vocab_size * XL.n_embd),
    ):
        several = grpo_like(phases=(phase,)).parts["update"]
        one = grpo_like(phases=(replace(phase, accumulates=False),)).parts["update"]
        assert several.gradients == 4 * parameters(XL) and several.activations > 0
        assert one.gradients == gradients
        assert one.activations == (0 if phase is update else several.activations)


@dataclass(frozen=True)
class Flags:
    micro_batch_size: int = 8
    lora_rank: int = 0
    checkpoint_blocks: bool = False


def memory_of(flags: Flags) -> Forecast:
    policy = Model("policy", XL, trained=True, lora_rank=flags.lora_rank)
    update = Phase("update", "update", (XL,), flags.micro_batch_size, 256, 128)
    return Forecast((policy,), (update,), checkpoint=flags.checkpoint_blocks, device="cuda")


def test_the_fewest_flags_that_fit() -> None:
    limit = memory_of(Flags(micro_batch_size=4)).peak
    change = fitting_change(Flags(), memory_of, limit) or pytest.fail("nothing fits")
    assert change.flags == "--micro-batch-size 4" and change.peak == limit
    limit = memory_of(Flags(checkpoint_blocks=True, lora_rank=16)).peak  # of 8 rows
    change = fitting_change(Flags(), memory_of, limit) or pytest.fail("nothing fits")
    assert change.flags == "--checkpoint-blocks --lora-rank 16" and change.peak == limit
    assert change.config == Flags(checkpoint_blocks=True, lora_rank=16)
    assert fitting_change(Flags(), memory_of, GB) is None


def test_what_cannot_fit_is_refused_with_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.memory.announce.device_memory", lambda device: 9 * GB)
    with pytest.raises(UserError, match="size 1 --lora-rank 16"):
        announce(Flags(), memory_of, torch.device("cpu"))
    monkeypatch.setattr("gpt.memory.announce.device_memory", lambda device: GB)
    with pytest.raises(UserError, match="no flag makes it fit"):
        announce(Flags(), memory_of, torch.device("cpu"))


def test_it_starts_all_the_same_where_the_user_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setattr("gpt.memory.announce.device_memory", lambda device: GB)
    monkeypatch.setenv(ANYWAY, "1")
    announce(Flags(), memory_of, torch.device("cpu"))
    printed = capsys.readouterr().out
    parts = ("weights", "gradients", "optimizer", "activations", "logits", "cache", "of 1.0 GB")
    assert all(part in printed for part in parts)


def test_a_small_run_is_one_line_and_unknown_memory_is_no_reason_to_refuse() -> None:
    policy = Model("policy", SMALL, trained=True)
    update = Phase("update", "update", (SMALL,), 2, 16, 8)
    line = forecast_text(Forecast((policy,), (update,)), None, "xpu")
    assert "\n" not in line and " of " not in line
    assert device_memory(torch.device("meta")) is None


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("MPS backend out of memory (MPS allocated: 17 GB)"),
        MemoryError(),
    ],
)
def test_out_of_memory_is_one_sentence_with_the_flags(error: Exception, monkeypatch) -> None:
    monkeypatch.setattr(HERE, "memory_advice", lambda: "try --micro-batch-size 4")
    with pytest.raises(SystemExit) as ended, explained():
        raise error
    assert "not enough memory" in str(ended.value) and "--micro-batch-size 4" in str(ended.value)


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_a_measured_peak_is_near_the_forecast() -> None:
    """The quick case of bench/memory.py: a few GRPO steps in a process of their own."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, str(root / "bench" / "memory.py"), "--check", "quick"]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    own, forecasted = map(float, result.stdout.split()[-2:])
    assert own == pytest.approx(forecasted, rel=0.2)
