"""Timings of the parts that decide how long a run takes: medians of interleaved pairs.

    python bench/bench.py                         the laptop model on the CPU, about a minute
    python bench/bench.py --preset gpt2 --device cuda --precision bfloat16

Every comparison runs its two sides in turn, A B A B ..., so that a machine whose speed drifts slows
both. Nothing here is a test: timings are not asserted.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from turns import wait_for_gpu

from data import reviews
from data.collate import ResponseBatch, left_pad
from gpt.generate import SamplingParams, generate
from gpt.log_probs import token_log_probs
from gpt.model import GPT, preset_config
from gpt.tokenizer import Tokenizer, load_tokenizer
from harness.command_line import run_command
from harness.device import open_device, precision
from harness.flag_ranges import AtLeastOne, Seed, check_ranges
from harness.ranks.collectives import shard_chunks
from harness.seeds import make_generator
from rl.batches.rollout import Rollout, sample_rollout
from rl.training.evaluation import format_table


@dataclass(frozen=True)
class BenchConfig:
    """Time the parts of a run."""

    preset: Literal["tiny", "gpt2", "gpt2-medium"] = "tiny"
    """Model shape; random weights, the project's own tokenizer for tiny."""
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast over float32 weights, for GPUs."""
    repeats: AtLeastOne = 7
    """Timed runs of each side, after one that is not counted."""
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_ranges(self)


def paired(
    a: Callable[[], object], b: Callable[[], object], repeats: int
) -> tuple[float, float, float]:
    """Median seconds of a and of b, and the median of the ratios b / a of neighbouring runs."""

    def seconds(function: Callable[[], object]) -> float:
        begin = time.perf_counter()
        function()
        wait_for_gpu()
        return time.perf_counter() - begin

    a(), b()
    times = [(seconds(a), seconds(b)) for _ in range(repeats)]
    ratios = [later / earlier for earlier, later in times]
    first, second = zip(*times, strict=True)
    return statistics.median(first), statistics.median(second), statistics.median(ratios)


def left_padded_log_probs(model: GPT, prompts: list[list[int]], batch: ResponseBatch) -> Tensor:
    """The field's habit: prompts left-padded, responses right-padded, an attention mask for both."""
    prompt_tokens, prompt_mask = left_pad(prompts, 0)
    tokens = torch.cat([prompt_tokens.to(batch.tokens.device), batch.response_tokens], 1)
    mask = torch.cat([prompt_mask.to(batch.tokens.device), batch.response_mask], 1)
    P, T = prompt_tokens.shape[1], batch.response_tokens.shape[1]
    hidden = model.hidden(tokens, mask)[:, P - 1 : P + T - 1]
    logits = model.logits(hidden[batch.response_mask]).float()
    chosen = logits.log_softmax(-1).gather(1, batch.response_tokens[batch.response_mask][:, None])
    return chosen


def generate_without_cache(model: GPT, prompts: list[list[int]], steps: int) -> None:
    """Sample by running the whole row again for every token."""
    rows = torch.tensor(prompts, device=model.device)
    with torch.no_grad():
        for _ in range(steps):
            logits = model.logits(model.hidden(rows)[:, -1]).float()
            rows = torch.cat([rows, torch.multinomial(logits.softmax(-1), 1)], 1)


def main(config: BenchConfig) -> None:
    """Print one table."""
    device = open_device(config.device, config.precision)
    tokenizer = load_tokenizer("glassbox")
    vocab = tokenizer.n_vocab if config.preset == "tiny" else 50257
    model = GPT(preset_config(config.preset, vocab)).initialize(make_generator(0, "weights"))
    model.to(device).eval()
    steps = 48 if config.preset == "tiny" else 128
    records = reviews.prompts("train")[:16]
    params = SamplingParams(max_new_tokens=steps)
    print(f"{config.preset}, {model.parameter_count():,} weights, {device}, {config.precision}, "
          f"{torch.get_num_threads()} threads, torch {torch.__version__}")  # fmt: skip
    rollout = sample_rollout(model, tokenizer, records, params, 8, make_generator(0, "sampling"))
    rollout = ragged(rollout, config.seed)
    table = list(parts(model, tokenizer, rollout, config, steps))
    print(format_table(("", "seconds", "against", "seconds", "ratio"), table))


def ragged(rollout: Rollout, seed: int) -> Rollout:
    """The same rows cut to random lengths, as a trained policy would stop."""
    sequences = rollout.sequences
    width = sequences.response_tokens.shape[1]
    lengths = torch.randint(4, width + 1, (len(rollout),), generator=make_generator(seed, "cut"))
    keep = torch.arange(width)[None, :] < lengths[:, None]
    mask = sequences.response_mask & keep.to(sequences.tokens.device)
    return replace(rollout, sequences=replace(sequences, response_mask=mask))


def parts(
    model: GPT, tokenizer: Tokenizer, rollout: Rollout, config: BenchConfig, steps: int
) -> Iterator[tuple[str, float, str, float, float]]:
    """Pairs of ways to do one thing, measured."""
    encoded = [tokenizer.encode(record.prompt) for record in rollout.records]
    batch, same_length = rollout.sequences, [prompt[:6] for prompt in encoded]
    chunks = shard_chunks((batch.prompt_lengths + batch.lengths).cpu(), 32)
    unsorted = list(torch.arange(len(batch)).split(32))
    params = SamplingParams(max_new_tokens=steps)
    end = model.config.vocab_size - 1  # random weights hardly ever draw it: rows run to the end

    def in_precision(work: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            with precision(model.device, config.precision):
                work()

        return run

    def backward(*scores: Callable[[], Tensor]) -> None:
        model.zero_grad(set_to_none=True)
        for score in scores:
            score().sum().backward()

    def by_pieces(pieces: list[Tensor]) -> None:
        backward(*(partial(token_log_probs, model, batch.rows(piece)) for piece in pieces))

    ways: dict[str, tuple[Callable[[], object], str, Callable[[], object]]] = {
        "sample with the KV cache": (
            lambda: generate(model, same_length, params, make_generator(0, "s"), eos_id=end),
            "without",
            lambda: generate_without_cache(model, same_length, steps),
        ),
        "score and backward, contiguous rows": (
            lambda: backward(lambda: token_log_probs(model, batch)),
            "left-padded",
            lambda: backward(lambda: left_padded_log_probs(model, encoded, batch)),
        ),
        "update, sorted micro-batches of 32": (
            lambda: by_pieces(chunks),
            "unsorted",
            lambda: by_pieces(unsorted),
        ),
    }
    for name, (a, other, b) in ways.items():
        first, second, ratio = paired(in_precision(a), in_precision(b), config.repeats)
        yield name, first, other, second, ratio


if __name__ == "__main__":
    run_command(main, BenchConfig)
