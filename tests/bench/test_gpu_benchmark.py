"""bench/gpu.py at toy size on a CPU: every section, what is skipped and why, and the page."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import arithmetic
import gpu
import gpu_page
import pretend_card
import pytest
import torch
from gpu import TOY, Bench, GpuConfig, Section
from turns import Case

from gpt.model import GPTConfig
from harness.errors import UserError

CPU = torch.device("cpu")


def toy_bench(**ceilings: float) -> Bench:
    return Bench(CPU, TOY, time.monotonic() + 600, dict(ceilings))


def test_bytes_of_sampling_by_hand():
    """L = 1, D = 2, V = 3: 48 weights in the block and 6 in the head, read for each of 3 tokens.

    Two rows with prompts of 2: two tokens are read, attending to 3 and 4 columns of 2 + 2 numbers.
    """
    shape = GPTConfig(vocab_size=3, context=8, n_layer=1, n_head=1, n_embd=2)
    case = Case("sample", prompts=2, prompt_tokens=2, new_tokens=3)
    assert arithmetic.decode_bytes(shape, case, 4) == 4 * (3 * (48 + 6) + 2 * 4 * (3 + 4))


def test_the_command_at_toy_size(tmp_path, capsys):
    """Sections in processes of their own; their ceilings go from one to the next."""
    gpu.main(GpuConfig(toy=True, device="cpu", out=tmp_path, only=("decode", "ceilings")))
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert list(found["sections"]) == ["ceilings", "decode"]
    assert not any("skipped" in section for section in found["sections"].values())
    labels = [row[0] for row in found["sections"]["decode"]["rows"]]
    assert labels == ["eager, float32", "static, float32", "eager, bfloat16", "static, bfloat16"]
    page = (tmp_path / "gpu.md").read_text()
    assert "on **no card**" in page and "**Toy size**" in page and "Not run on a card" not in page
    assert "Skipped" not in page and "| static, float32 |" in page
    assert capsys.readouterr().out.splitlines()[:2] == ["ceilings: done", "decode: done"]


def test_sections_without_a_clock():
    """Correct, shapes, kernels and update at toy size."""
    right = gpu.correct(toy_bench())
    assert right.numbers["wrong"] == 0 and len(right.rows) == 6
    assert len(gpu.shapes(toy_bench()).rows) == 12
    assert {row[0] for row in gpu.kernels(toy_bench()).rows} == {"update", "sampling"}
    rows = gpu.update(toy_bench(float32=1.0, bfloat16=1.0)).rows
    assert [row[0] for row in rows] == ["float32", "bfloat16"]


def test_attention_by_lengths_is_compared(monkeypatch):
    """With the formula in the place of the kernel nothing is apart; with every column read, much is."""
    module = pytest.importorskip("torch.nn.attention.varlen")

    def attention(query, key, value, q, k, max_q, max_k, *, seqused_k):
        columns = (x.unflatten(0, (-1, max_k)).transpose(1, 2).float() for x in (key, value))
        seen = (torch.arange(max_k) < seqused_k[:, None])[:, None, None]
        return gpu.plain_attention(query[:, :, None].float(), *columns, seen)[:, :, 0]

    monkeypatch.setattr(module, "varlen_attn", attention)
    assert gpu.lengths_gap(CPU) < 0.02
    monkeypatch.setattr(
        module, "varlen_attn",
        lambda *args, seqused_k: attention(*args, seqused_k=torch.full_like(seqused_k, 320)),
    )  # fmt: skip
    assert gpu.lengths_gap(CPU) > 0.1


def test_a_card_that_draws_other_tokens_is_found(monkeypatch):
    real = gpu.generate

    def broken(model, prompts, params, *rest, **more):
        if params.decoding == "static":
            prompts = [[(token + 1) % 100 for token in prompt] for prompt in prompts]
        return real(model, prompts, params, *rest, **more)

    monkeypatch.setattr(gpu, "generate", broken)
    section = gpu.correct(toy_bench())
    assert section.numbers["wrong"] >= 1
    assert ["static" in row[0] for row in section.rows if row[-1] == "WRONG"].count(False) == 0


def test_the_update_of_the_benchmark_is_one_optimizer_step(monkeypatch):
    """In pieces of one row the loss's gradient is that of all rows at once."""
    gradients = []
    monkeypatch.setattr(
        gpu, "clip_and_step",
        lambda optimizer, parameters, norm: gradients.append([p.grad.clone() for p in parameters]),
    )  # fmt: skip
    for micro in (1, 2):
        bench = toy_bench(float32=1.0, bfloat16=1.0)
        bench.sizes = replace(TOY, update=replace(TOY.update, micro=micro))
        gpu.update(bench)
    in_pieces, at_once = gradients[0], gradients[4]
    for a, b in zip(in_pieces, at_once, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


# Engines


def reports(monkeypatch, seconds: dict[str, float], broken: str = "") -> list[str]:
    """Sides that take this long instead of running; those of the library `broken` fail."""
    met: list[str] = []

    def measured(sides, rounds):
        (side,) = sides
        met.append(f"{side.case.task} {side.library} {side.precision} {side.device}")
        if side.library == broken:
            raise UserError("the side ended before its work was done: out of memory")
        return [[{"seconds": seconds[side.library], "gpu_mib": 953.67431640625}]]

    monkeypatch.setattr(gpu, "measure", measured)
    return met


def test_engines_beside_trl(monkeypatch):
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: object())
    met = reports(monkeypatch, {"ours": 2.0, "peer": 7.0})
    section = gpu.engines(toy_bench())
    assert met == [
        f"{what} bfloat16 cpu"
        for what in ("grpo ours", "grpo peer", "rloo ours", "rloo peer", "ppo ours")
    ]
    assert section.rows == [
        ["GRPO, TRL", "7", "", "1"], ["GRPO, ours", "2", "3.50", "1"],
        ["RLOO, TRL", "7", "", "1"], ["RLOO, ours", "2", "3.50", "1"],
        ["PPO, ours", "2", "", "1"],
    ]  # fmt: skip
    assert section.numbers == {"grpo beside TRL": 3.5, "rloo beside TRL": 3.5}


# What is skipped


def fail(bench: Bench) -> Section:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate much\nand a long story")


def test_a_section_that_fails_is_kept_with_its_traceback(monkeypatch):
    monkeypatch.setattr(gpu, "SECTIONS", {"ceilings": fail})
    found = gpu.outcome("ceilings", toy_bench())
    assert found["skipped"] == "CUDA out of memory. Tried to allocate much"
    assert "in fail" in found["traceback"]


def test_a_section_that_hangs_or_dies_takes_no_other_with_it(tmp_path, monkeypatch):
    pages: list[str] = []

    def instead(name, config, bench):
        pages.append((tmp_path / "gpu.md").read_text() if pages else "")
        found = {"correct": {"skipped": "not done after 9 s"}}
        return found.get(
            name, {"columns": [""], "rows": [["all is well"]], "numbers": {}, "notes": []}
        )

    monkeypatch.setattr(gpu, "in_own_process", instead)
    gpu.main(GpuConfig(toy=True, device="cpu", out=tmp_path, only=("correct", "shapes")))
    assert "Skipped: not done after 9 s." in pages[1]  # before the second
    assert (tmp_path / "gpu.md").read_text().count("all is well") == 2
    monkeypatch.undo()
    monkeypatch.setattr(gpu.sys, "executable", "/bin/false")
    died = gpu.in_own_process("correct", GpuConfig(toy=True, device="cpu"), toy_bench())
    assert "ended with status 1" in died["skipped"]


def test_a_cpu_is_refused_without_toy():
    with pytest.raises(UserError, match="this is cpu.*add --toy"):
        gpu.main(GpuConfig(device="cpu"))


# The page


def table(**numbers: float) -> dict:
    return {"columns": ["", "a"], "rows": [["b", "c"]], "numbers": numbers, "notes": ["a note."]}


def test_targets_are_reached_missed_or_not_measured():
    found = {
        "decode": table(**{"lengths, bfloat16": 0.5}),
        "update": table(bfloat16=0.39),
        "engines": {"skipped": "no memory"},
    }
    assert [row[1:] for row in gpu_page.verdicts(found)] == [
        ["50%", "reached"], ["39%", "missed"], ["", "not measured"],
    ]  # fmt: skip


def test_a_machine_that_cannot_build_the_pretended_card_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(pretend_card, "LIBRARY", tmp_path / "none.so")
    monkeypatch.setattr(pretend_card.shutil, "which", lambda name: None)
    assert "g++" in pretend_card.build() or "CPU build" in pretend_card.build()
