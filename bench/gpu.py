"""What this project does on one GPU, in one command, under 8 minutes: docs/gpu.md with the card's name.

    make gpu                                       sets up .venv-peers (with TRL), then this
    python bench/gpu.py --only decode update       some of the sections
    python bench/gpu.py --toy                      the same code at toy size, on any device: no numbers

Sections, the most useful first: correct (eager = static = captured = the CPU's tokens, gradients,
--deterministic twice), ceilings (matrix product, memory), decode (tokens a second against what
reading weights and cache allows), update (against the matrix product), shapes (the first call at a new
length, ragged lengths), kernels (where a step's time goes), engines (GRPO, RLOO and PPO steps, the
first two beside TRL's). Each runs in a process of its
own with a time limit, computes in the modes that a run has, and a section that fails is kept with its
traceback; the page is written after each one. Nothing here is a test: timings are not asserted.
Besides PyTorch it needs what transformers brings (numpy, safetensors, tqdm).
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import argparse
import gc
import importlib.util
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from arithmetic import decode_bytes, operations
from gpu_page import PAGE, RESULTS, write_page
from peers import NEEDED, versions
from sides import (
    BETAS,
    LR,
    MAX_NORM,
    loss_ours,
    model_of,
    prompts_of,
    sampled_batch,
    shape,
)
from torch import Tensor
from torch.profiler import profile
from turns import Case, Side, environment, measure

from data.collate import ResponseBatch
from gpt.generate import RECORDS, Generation, SamplingParams, generate
from gpt.log_probs import token_log_probs
from gpt.model import GPT, attention_by_lengths, plain_attention
from harness.command_line import explained
from harness.compile_blocks import compile_blocks
from harness.device import CUDNN_ATTENTION, deterministic, open_device, pick_device, precision
from harness.errors import UserError
from harness.files import write_json
from harness.optimizer import adamw, clip_and_step
from harness.paths import RUNS
from harness.seeds import make_generator

Rows = list[list[str]]


@dataclass(frozen=True)
class GpuConfig:
    """Measure one card and write docs/gpu.md."""  # `arguments` says what each flag means

    only: tuple[str, ...] = ()
    minutes: float = 8.0
    toy: bool = False
    device: str = "auto"
    out: Path | None = None
    section_minutes: float = 3.0

    def __post_init__(self) -> None:
        unknown = sorted(set(self.only) - set(SECTIONS))
        if unknown:
            raise ValueError(f"only knows {', '.join(SECTIONS)}: got {', '.join(unknown)}")
        if not self.minutes > 0:
            raise ValueError(f"minutes must be above 0: got {self.minutes}")

    @property
    def folder(self) -> Path:
        return self.out or (RUNS / "gpu-toy" if self.toy else PAGE.parent)


@dataclass(frozen=True)
class Sizes:
    """How much work each section does."""

    matrix: int = 8192
    copy_mib: int = 2048
    repeats: int = 3
    decode: Case = Case("sample", "gpt2", prompts=256, prompt_tokens=64, new_tokens=256)
    update: Case = Case("update", "gpt2", prompts=32, prompt_tokens=512, new_tokens=512, micro=8)
    engine: Case = Case(
        "grpo", "gpt2", prompts=64, group=8, prompt_tokens=64, new_tokens=256, micro=32
    )
    presets: tuple[str, ...] = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
    prompt_tokens: int = 128  # of the rows whose memory is measured
    overrides: dict[str, Any] = field(default_factory=dict)  # of the preset's flags


TINY = dict(preset="tiny", prompts=2, prompt_tokens=4, new_tokens=20, micro=2)
TOY = Sizes(
    matrix=64, copy_mib=1, repeats=1, decode=Case("sample", **TINY), update=Case("update", **TINY),
    engine=Case("grpo", group=2, **TINY), presets=("tiny",), prompt_tokens=4,
    overrides=dict(prompts_per_step=1, group_size=2, micro_batch_size=2, max_new_tokens=4),
)  # fmt: skip


@dataclass
class Bench:
    """What the sections share."""

    device: torch.device
    sizes: Sizes
    deadline: float  # of time.monotonic
    ceilings: dict[str, float] = field(default_factory=dict)  # FLOP/s by precision; bytes/s: memory

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def seconds(self, function: Callable[[], object]) -> float:
        """The median of the repeats, after one that does not count."""
        times = []
        for _ in range(self.sizes.repeats + 1):
            self.wait()
            begin = time.perf_counter()
            function()
            self.wait()
            times.append(time.perf_counter() - begin)
        return statistics.median(times[1:])

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def left(self) -> float:
        return self.deadline - time.monotonic()


@dataclass
class Section:
    """A table, numbers that the page compares with the targets, and remarks."""

    columns: list[str]
    rows: Rows
    numbers: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


# Precisions ---------------------------------------------------------------------------------------


PRECISIONS = ("float32", "bfloat16")  # the flag --precision


def as_a_run(bench: Bench, name: str) -> Any:
    """What `with` needs to compute as a run of --precision `name` does, TF32 included."""
    open_device(str(bench.device), name)
    return precision(bench.device, name)


# Sections -----------------------------------------------------------------------------------------


def ceilings(bench: Bench) -> Section:
    """What the card can do at best: a square matrix product, and a copy of memory."""
    rows: Rows = []
    n, times = bench.sizes.matrix, 10
    for name in ("float32", *(["tf32"] if bench.on_gpu else []), "bfloat16"):
        dtype = torch.bfloat16 if name == "bfloat16" else torch.float32
        open_device(str(bench.device), "bfloat16" if name == "tf32" else "float32")
        a, b = torch.randn(2, n, n, device=bench.device).to(dtype)
        out = torch.empty_like(a)
        taken = bench.seconds(lambda: [torch.mm(a, b.t(), out=out) for _ in range(times)])  # noqa: B023
        bench.ceilings[name] = times * 2 * n**3 / taken
        rows.append([f"matrix product, {name}", f"{bench.ceilings[name] / 1e12:.3g} TFLOP/s"])
    source = torch.ones(bench.sizes.copy_mib * 2**18, device=bench.device)
    target = torch.empty_like(source)
    taken = bench.seconds(lambda: [target.copy_(source) for _ in range(times)])
    bench.ceilings["memory"] = times * 2 * source.nbytes / taken
    rows.append(["memory, read and written", f"{bench.ceilings['memory'] / 1e9:.4g} GB/s"])
    return Section(["", "measured"], rows, dict(bench.ceilings))


def decode(bench: Bench) -> Section:
    """Sampling by each loop against the time that reading weights and filled cache takes."""
    case, section = bench.sizes.decode, Section(["", "tokens/s", "bound", "of the bound"], [])
    model, bandwidth = model_of(case, str(bench.device)), known(bench, "memory")
    prompts, end = prompts_of(case, case.prompts), model.config.vocab_size
    for name in PRECISIONS:
        size = 2 if name == "bfloat16" else 4
        bound = case.rows * case.new_tokens * bandwidth / decode_bytes(shape(case), case, size)
        for loop in loops(bench):
            params = SamplingParams(max_new_tokens=case.new_tokens, decoding=loop)

            def sample(params: SamplingParams = params) -> None:
                generate(model, prompts, params, make_generator(0, "sampling"), eos_id=end)

            with as_a_run(bench, name):
                rate = case.rows * case.new_tokens / bench.seconds(sample)
            section.numbers[f"{loop}, {name}"] = rate / bound
            section.rows.append(
                [f"{loop}, {name}", f"{rate:,.0f}", f"{bound:,.0f}", f"{rate / bound:.0%}"]
            )
    section.notes = [described(case) + ". " + BOUND]
    return section


BOUND = (
    "The bound is the measured memory rate over the bytes that have to be read: all weights for every "
    "token, and the filled columns of the cache, both in the precision of the row; bfloat16 runs read the "
    "head in float32 all the same."
)


def update(bench: Bench) -> Section:
    """Policy updates against the matrix product in the same precision."""
    case, section = bench.sizes.update, Section(["", "seconds", "TFLOP/s", "of the product"], [])
    batch, old, advantages = (x.to(bench.device) for x in sampled_batch(case))
    ways = [(name, False) for name in PRECISIONS]
    for name, compiled in [*ways, *([("bfloat16", True)] if bench.on_gpu else [])]:
        model = model_of(case, str(bench.device))
        if compiled and not compile_blocks(model, bench.device):
            section.notes.append("Not compiled: there is no compiler here.")
            continue
        optimizer = adamw(model, LR, betas=BETAS, weight_decay=0.0)
        open_device(str(bench.device), name)
        taken = bench.seconds(
            partial(one_update, model, optimizer, case, name, batch, old, advantages)
        )
        rate, label = operations(shape(case), case) / taken, name + ", compiled" * compiled
        share = rate / known(bench, name)
        section.numbers[label] = share
        section.rows.append([label, f"{taken:.3g}", f"{rate / 1e12:.3g}", f"{share:.0%}"])
    section.notes.append(described(case) + f", {case.micro_rows} rows a forward pass.")
    return section


def one_update(
    model: GPT, optimizer: torch.optim.Optimizer, case: Case, name: str,
    batch: ResponseBatch, old: Tensor, advantages: Tensor,
) -> None:  # fmt: skip
    """An optimizer step on all rows, `micro_rows` in a forward pass."""
    optimizer.zero_grad(set_to_none=True)
    for rows in torch.arange(case.rows).split(case.micro_rows):
        piece, here = batch.rows(rows), rows.to(old.device)
        loss = loss_ours(model, piece, old[here], advantages[here], name)
        (loss * len(rows) / case.rows).backward()
    clip_and_step(optimizer, model.parameters(), MAX_NORM)


def loops(bench: Bench) -> list[Any]:
    """The decoding loops that this device has."""
    return ["eager", "static", *(RECORDS if bench.on_gpu else [])]


def correct(bench: Bench) -> Section:
    """Whether the card does what the CPU does, in float32: the gate before any speed counts."""
    section = Section(["", "found", ""], [])
    case = replace(bench.sizes.decode, prompts=min(bench.sizes.decode.prompts, 16))
    open_device(str(bench.device), "float32")
    models = {"cpu": model_of(case), "card": model_of(case, str(bench.device))}
    prompts = [p[: 1 + i % len(p)] for i, p in enumerate(prompts_of(case, case.prompts))]  # ragged

    def drawn(where: str, loop: Any) -> Generation:
        params = SamplingParams(max_new_tokens=min(case.new_tokens, 64), decoding=loop)
        end = models[where].config.vocab_size - 1  # what prompts are padded with must be a token
        return generate(models[where], prompts, params, make_generator(0, "sampling"), eos_id=end)

    def judge(what: str, found: float, most: float) -> None:
        section.rows.append([what, f"{found:.3g}", "right" if found <= most else "WRONG"])
        section.numbers[what] = found
        section.numbers["wrong"] = section.numbers.get("wrong", 0.0) + (not found <= most)

    # First, because it has to begin before the process's first matrix product.
    twice = "a deterministic rollout and update that two runs take otherwise"
    judge(twice, float(not same_twice(bench)), 0.0)
    if bench.on_gpu:
        judge("largest gap of attention by lengths, bfloat16", lengths_gap(bench.device), 0.02)
    eager = drawn("card", "eager")
    for where, loop in [("cpu", "eager"), *(("card", loop) for loop in loops(bench)[1:])]:
        other = drawn(where, loop)
        same = torch.tensor(
            [a == b for a, b in zip(eager.token_lists(), other.token_lists(), strict=True)]
        )
        # A draw at the edge between two tokens may fall to either side: rows may differ, few do.
        judge(
            f"rows that {loop} on the {where} draws otherwise", float((~same).double().mean()), 0.1
        )
        ours, theirs = (x.log_probs.cpu()[same] for x in (eager, other))
        width = min(ours.shape[1], theirs.shape[1])
        gap = (ours[:, :width] - theirs[:, :width]).abs().flatten().tolist()
        judge(
            f"largest gap of their log-probs, {loop} on the {where}",
            max(gap, default=math.inf),
            1e-3,
        )

    small = replace(bench.sizes.update, prompts=min(4, bench.sizes.update.prompts), micro=2)
    gradients: dict[str, list[Tensor]] = {}
    for where, device in (("cpu", torch.device("cpu")), ("card", bench.device)):
        batch, old, advantages = (x.to(device) for x in sampled_batch(small))
        loss_ours(models[where], batch, old, advantages, "float32").backward()
        gradients[where] = [g.grad.cpu() for g in models[where].parameters() if g.grad is not None]
    gap = max(
        float((a - b).norm() / b.norm().clamp(min=1e-12))
        for a, b in zip(gradients["card"], gradients["cpu"], strict=True)
    )
    judge("gradient, relative to the CPU's", gap, 1e-3)
    section.notes.append("In float32, ragged prompts. A wrong row means: do not use this card yet.")
    return section


def same_twice(bench: Bench) -> bool:
    """Whether sampling and an update under --deterministic leave the same numbers twice."""
    case, states = replace(bench.sizes.update, prompts=min(4, bench.sizes.update.prompts)), []
    params = SamplingParams(max_new_tokens=min(case.new_tokens, 64), top_p=0.9)
    with deterministic():
        for _ in range(2):
            model = model_of(case, str(bench.device))
            optimizer = adamw(model, LR, betas=BETAS, weight_decay=0.0)
            data = (x.to(bench.device) for x in sampled_batch(case))
            one_update(model, optimizer, case, "float32", *data)  # type: ignore[arg-type]
            generator, end = make_generator(0, "sampling"), model.config.vocab_size - 1
            drawn = generate(model, prompts_of(case, 4), params, generator, eos_id=end)
            states.append([drawn.log_probs.cpu(), *(p.detach().cpu() for p in model.parameters())])
    return all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def lengths_gap(device: torch.device) -> float:
    """How far FlashAttention over each row's own columns is from the written-out formula."""
    query = torch.randn(64, 12, 1, 64, device=device, dtype=torch.bfloat16)
    shape = (2, 64, 320, 12, 64)  # as a cache by lengths lies in memory
    stored = torch.randn(shape, device=device, dtype=torch.bfloat16).transpose(2, 3)
    lengths = torch.arange(1, 65, device=device) * 5
    seen = (torch.arange(320, device=device) < lengths[:, None])[:, None, None]
    expected = plain_attention(query.float(), *stored.float(), seen)
    return float((attention_by_lengths(query, *stored, lengths) - expected).abs().max())


def shapes(bench: Bench) -> Section:
    """What a length that is new costs the first time, and prompts of all lengths against equal ones."""
    section = Section(["", "first call, s", "again, s"], [])
    case, backends = bench.sizes.update, torch.backends.cuda
    model = model_of(case, str(bench.device))
    with as_a_run(bench, "bfloat16"), torch.no_grad():
        for i, cudnn in enumerate([True] * 5 + [False] * 5):  # each length is new
            backends.enable_cudnn_sdp(cudnn)
            T = max(case.new_tokens - 7 * i, 10 - i)
            batch, _, _ = sampled_batch(replace(case, new_tokens=T, prompts=case.micro_rows))
            batch, times = batch.to(bench.device), []
            for _ in range(2):
                bench.wait()
                begin = time.perf_counter()
                token_log_probs(model, batch)
                bench.wait()
                times.append(time.perf_counter() - begin)
            label = f"forward pass, {T} response tokens" + ", cuDNN's attention off" * (not cudnn)
            section.rows.append([label, *(f"{t:.3g}" for t in times)])
            section.numbers[f"{T}"] = times[0] - times[1]
        open_device(str(bench.device), "bfloat16")  # cuDNN as a run has it
        own = bench.sizes.decode
        model, prompts = model_of(own, str(bench.device)), prompts_of(own, own.prompts)
        for label, asked in (
            ("equal prompts", prompts),
            ("ragged prompts", [p[: 1 + i % len(p)] for i, p in enumerate(prompts)]),
        ):
            params = SamplingParams(max_new_tokens=own.new_tokens, decoding=loops(bench)[-1])
            draw = partial(generate, model, asked, params, eos_id=model.config.vocab_size - 1)
            taken = bench.seconds(draw)
            section.rows.append([f"sampling ({params.decoding}), {label}", "", f"{taken:.3g}"])
    section.notes.append(
        f"bfloat16. Attention may use: flash {backends.flash_sdp_enabled()}, memory-efficient "
        f"{backends.mem_efficient_sdp_enabled()}, cuDNN {backends.cudnn_sdp_enabled()}; if cuDNN's first "
        f"calls are slow, set {CUDNN_ATTENTION}=off."
    )
    return section


def kernels(bench: Bench) -> Section:
    """The ten operations that an update and a sampling spend most of the device's time in."""
    section = Section(["", "operation", "ms", "calls"], [])
    case, own = bench.sizes.update, replace(bench.sizes.decode, new_tokens=32)
    model, other = model_of(case, str(bench.device)), model_of(own, str(bench.device))
    optimizer = adamw(model, LR, betas=BETAS, weight_decay=0.0)
    data = [x.to(bench.device) for x in sampled_batch(case)]
    params = SamplingParams(max_new_tokens=own.new_tokens, decoding=loops(bench)[-1])
    asked, end = prompts_of(own, own.prompts), other.config.vocab_size

    def sample() -> None:
        with as_a_run(bench, "bfloat16"):
            generate(other, asked, params, make_generator(0, "sampling"), eos_id=end)

    open_device(str(bench.device), "bfloat16")
    update = partial(one_update, model, optimizer, case, "bfloat16", *data)  # type: ignore[arg-type]
    for label, work in (("update", update), ("sampling", sample)):
        work()
        with profile() as seen:  # the CPU's work, and the card's where there is one
            work()
            bench.wait()
        time_of = "self_device_time_total" if bench.on_gpu else "self_cpu_time_total"
        events = sorted(seen.key_averages(), key=lambda e: -getattr(e, time_of))[:10]
        section.rows += [
            [label, e.key[:60], f"{getattr(e, time_of) / 1000:.3g}", str(e.count)] for e in events
        ]
    return section


def engines(bench: Bench) -> Section:
    """Whole steps of engines, each side in a process of its own, in turns."""
    section = Section(["", "seconds a step", "times as fast", "peak GB"], [])
    missing = [name for name in NEEDED["grpo"] if importlib.util.find_spec(name) is None]
    if missing:
        section.notes.append(f"Without TRL: {', '.join(missing)} not installed; run  make gpu .")
    section.notes.append("TRL 1.16 has no PPO any more.")
    for task in ("grpo", "rloo", "ppo"):
        case = replace(bench.sizes.engine, task=task)
        if bench.left() <= 0:
            section.notes.append(f"{task.upper()}: the time was used up before it.")
            break
        reports = {"ours": reports_of(bench, "ours", case)}
        if task != "ppo" and not missing:
            try:
                reports = {"peer": reports_of(bench, "peer", case), **reports}
            except UserError as error:  # TRL's trouble must not take our numbers with it
                section.notes.append(f"{task.upper()}: {error}.")
        for library, own in reports.items():
            seconds = statistics.median(report["seconds"] for report in own)
            peak = max(report["gpu_mib"] for report in own) * 2**20 / 1e9
            name, fast = f"{task.upper()}, {'TRL' if library == 'peer' else 'ours'}", ""
            if library == "ours" and "peer" in reports:
                ratio = statistics.median(r["seconds"] for r in reports["peer"]) / seconds
                section.numbers[f"{task} beside TRL"], fast = ratio, f"{ratio:.2f}"
            section.rows.append([name, f"{seconds:.3g}", fast, f"{peak:.3g}"])
    section.notes.insert(0, described(bench.sizes.engine) + ", bfloat16 autocast.")
    return section


def reports_of(bench: Bench, library: Any, case: Case) -> list[dict[str, float]]:
    """One side's reports. The sides do not share the card: the memory of both may not fit."""
    device = str(bench.device)
    side = Side(f"{case.task}, {library}", library, case, 1, "bfloat16", device=device)
    (reports,) = measure([side], bench.sizes.repeats)
    return reports


SECTIONS: dict[str, Callable[[Bench], Section]] = {
    "correct": correct,
    "ceilings": ceilings,
    "decode": decode,
    "update": update,
    "shapes": shapes,
    "kernels": kernels,
    "engines": engines,
}


# The command --------------------------------------------------------------------------------------


def known(bench: Bench, name: str) -> float:
    """A ceiling; UserError if it has not been measured in this run."""
    if name not in bench.ceilings:
        raise UserError("the ceilings have not been measured in this run, nothing to compare with")
    return bench.ceilings[name]


def described(case: Case) -> str:
    return f"{case.preset}, random weights: {case.described}"


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def outcome(name: str, bench: Bench) -> dict[str, Any]:
    """A section's result as plain data, or the reason why there is none."""
    begin = time.monotonic()
    try:
        section = SECTIONS[name](bench)
    except Exception as error:  # whatever it is: the other sections still run
        lines = str(error).strip().splitlines()
        found = {"skipped": lines[0] if lines else type(error).__name__}
        if not isinstance(error, UserError):
            found["traceback"] = traceback.format_exc()
        return found
    finally:
        free()
    return {**vars(section), "seconds": time.monotonic() - begin}


def in_own_process(name: str, config: GpuConfig, bench: Bench) -> dict[str, Any]:
    """`outcome` in a process that may crash or hang without taking the others with it."""
    limit = min(bench.left(), 60 * config.section_minutes)
    if limit <= 0:
        return {"skipped": "the time was used up before it"}
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        file = Path(folder) / "section.json"
        given = {"seconds": limit, "ceilings": bench.ceilings, "file": str(file)}
        command = [sys.executable, __file__, "--device", str(bench.device), "--only", name]
        command += ["--toy"] * config.toy + ["--child", json.dumps(given)]
        side = Side(name, "ours", bench.sizes.engine, torch.get_num_threads())
        try:
            child = subprocess.run(
                command,
                env=environment(side),
                stderr=subprocess.PIPE,
                text=True,
                timeout=limit + 20,
            )
        except subprocess.TimeoutExpired:
            return {"skipped": f"not done after {limit:.0f} s"}
        if not file.exists():
            last = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
            ended = f"its process ended with status {child.returncode}: {last}"
            return {"skipped": ended, "traceback": child.stderr[-4000:]}
        return json.loads(file.read_text(encoding="utf-8"))


def child(config: GpuConfig, given: dict[str, Any]) -> None:
    """The other end of `in_own_process`."""
    device = pick_device(config.device)
    sizes = TOY if config.toy else Sizes()
    bench = Bench(device, sizes, time.monotonic() + given["seconds"], given["ceilings"])
    (name,) = config.only
    write_json(Path(given["file"]), outcome(name, bench))


def machine(device: torch.device, toy: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "card": "no card",
        "toy": toy,
        "date": date.today().isoformat(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "card": properties.name,
            "memory_gb": round(properties.total_memory / 1e9, 1),
            "cuda": torch.version.cuda,
        }
    return found | {"versions": versions()}


def chosen(only: Sequence[str]) -> list[str]:
    """The sections in their order; whoever compares needs the ceilings first."""
    wanted = set(only or SECTIONS)
    if wanted & {"decode", "update"}:
        wanted.add("ceilings")
    return [name for name in SECTIONS if name in wanted]


def main(config: GpuConfig) -> None:
    device = open_device(config.device)
    if device.type != "cuda" and not config.toy:
        raise UserError(
            f"bench/gpu.py measures a CUDA card and this is {device}: run it on one, or add --toy to "
            "see whether it works"
        )
    sizes = TOY if config.toy else Sizes()
    bench = Bench(device, sizes, time.monotonic() + 60 * config.minutes)
    results: dict[str, Any] = {}
    for name in chosen(config.only):
        results[name] = in_own_process(name, config, bench)
        if name == "ceilings":
            bench.ceilings.update(results[name].get("numbers", {}))
        page = write_page(config.folder, machine(device, config.toy), results)
        skipped = results[name].get("skipped")
        print(f"{name}: " + (f"skipped: {skipped}" if skipped else "done"), flush=True)
        if results[name].get("numbers", {}).get("wrong"):
            print("the card computes something else than the CPU: see the page", flush=True)
    print(f"wrote {page} and {RESULTS.name} beside it")


def arguments() -> tuple[GpuConfig, dict[str, Any] | None]:
    """The flags, read without a library: a card's machine may have PyTorch and little else."""
    parser = argparse.ArgumentParser(usage=f"python bench/gpu.py [flags]\n{GpuConfig.__doc__}")
    parser.add_argument("--only", nargs="+", default=(), help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--minutes", type=float, default=8.0, help="no section begins after this")
    parser.add_argument("--section-minutes", type=float, default=3.0, help="a longer one is ended")
    parser.add_argument("--toy", action="store_true", help="next to nothing to do, on any device")
    parser.add_argument("--device", default="auto", help="anything but CUDA needs --toy")
    parser.add_argument(
        "--out", type=Path, help="folder of both files; default: docs, or runs/gpu-toy"
    )
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    given = vars(parser.parse_args())
    order = given.pop("child")
    return GpuConfig(**given | {"only": tuple(given["only"])}), order


if __name__ == "__main__":
    with explained():
        asked, order = arguments()
        child(asked, order) if order else main(asked)
