"""Toy models and small helpers that tests of several folders share."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import require_package

from data.collate import ResponseBatch, collate_responses
from data.records import PromptRecord
from gpt.checkpoint import save_gpt
from gpt.llama import Llama, LlamaConfig
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import Tokenizer, build_tokenizer, load_tokenizer
from gpt.tokenizer_files import BYTES, hub_form, published
from harness.files import read_object
from harness.metric_log import MetricLog
from harness.paths import MODEL_FILE
from reward_model.scalar_head import RewardModel

LETTERS = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})  # EOS 8, padding 9
GLASSBOX = load_tokenizer("glassbox")
PROMPTS = [PromptRecord(text) for text in ("ab", "c", "hgfed", "aaa", "fa", "gh", "bbbb", "e")]
# As published: SmolLM2-Instruct (ChatML), Llama-2 and 3, Gemma, Zephyr, Phi-3; the last has the rest.
TEMPLATES = read_object(Path(__file__).with_name("data") / "chat_templates.json")
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"


def documented(heading: str) -> set[str]:
    """The keys of the tables under one heading of docs/metrics.md: the first cell of each row."""
    text = DOCUMENT.read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return set(re.findall(r"^\| `([^`]+)` \|", body, re.M))


def bytes_form(specials: Iterable[str], merges: Iterable[str] = (), **parts: Any) -> dict[str, Any]:
    """A tokenizer.json of all bytes, then of merges, then of special tokens; `parts` of it are changed."""
    require_package("tokenizers")
    texts = [*BYTES, *(merge.replace(" ", "") for merge in merges), *specials]
    return hub_form({text: id for id, text in enumerate(texts)}, merges, specials) | parts


def published_tokenizer(
    form: dict[str, Any], end: int, name: str = "toy", **more: Any
) -> Tokenizer:
    """The tokenizer of a tokenizer.json, which ends and pads texts with id `end`."""
    none = {"bos_id": None, "other_ends": (), "chat_template": None, "template_tokens": {}}
    more = {"eos_id": end, "pad_id": end} | none | more
    return published(name, json.dumps(form), more, Path(name))


def chat_tokenizer(name: str) -> Tokenizer:
    """Bytes, and the special tokens of the model, its template with them."""
    about = TEMPLATES[name]
    texts = list(dict.fromkeys([about["bos"], about["eos"], *about["more"]]))
    called = {"bos_token": about["bos"], "eos_token": about["eos"]}
    return published_tokenizer(
        bytes_form(texts), 256 + texts.index(about["eos"]), name, bos_id=256,
        chat_template=about["template"], template_tokens=called,
    )  # fmt: skip


def one_sentence(error: pytest.ExceptionInfo) -> str:
    """The message, which must fit on one line and start from what the user knows."""
    text = str(error.value)
    assert "\n" not in text and 20 < len(text) < 300, text
    return text


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def float64(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for float64's rounding."""
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def kept_for_backward(model: GPT, tokens: torch.Tensor, mask: Any = None) -> int:
    """Bytes of the activations that a forward pass of the blocks keeps, each storage once."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}
    held: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights and x.is_floating_point():
            kept[storage.data_ptr()] = storage.nbytes()
        held.append(x)  # so that no address is used twice
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        assert model.hidden(tokens, mask).requires_grad
    return sum(kept.values())


def split_by_question(prompt: str) -> str:
    """The split of a file's row, of letters and digits in ASCII, spelled out."""
    bucket = zlib.crc32("".join(c for c in prompt.lower() if c.isalnum()).encode()) % 100
    return "test" if bucket < 10 else "validation" if bucket < 20 else "train"


def write_rows(folder: Path, *rows: dict[str, Any], name: str = "rows.jsonl") -> Path:
    """A file of JSON lines."""
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_pairs(path: Path, count: int = 60, **first: object) -> list[dict]:
    """A file of preference pairs whose prompts differ; `first` changes the first of them."""
    rows = [
        {"prompt": f"Question {n}?\n", "chosen": f"Answer {n}.", "rejected": "No."}
        for n in range(count)
    ]
    rows[0] |= first
    path.write_text(json.dumps(rows), encoding="utf-8")
    return rows


def randomized(model: Any, seed: int = 0, scale: float = 0.5) -> Any:
    """Every parameter random, biases and gains too, so that none can be left out unseen."""
    generator = seeded(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = noise.to(parameter.dtype) * scale
    return model


def random_gpt(
    vocab_size: int, context: int, *, seed: int = 0, scale: float = 0.5, n_embd: int = 8,
    dropout: float = 0.0, dtype: torch.dtype = torch.float32,
) -> GPT:  # fmt: skip
    """Two layers in evaluation mode."""
    shape = GPTConfig(vocab_size, context, n_layer=2, n_head=2, n_embd=n_embd, dropout=dropout)
    model = GPT(shape).to(dtype).eval()
    randomized(model, seed, scale)
    return model


def random_llama(
    vocab_size: int, context: int = 64, *, seed: int = 0, scale: float = 0.3, **shape: Any
) -> Llama:
    """The same of a Llama, two query heads to each key head; `shape` changes it."""
    sizes: dict[str, Any] = dict(n_layer=2, n_head=4, n_embd=16, n_key_head=2, n_inner=24)
    return randomized(Llama(LlamaConfig(vocab_size, context, **sizes | shape)).eval(), seed, scale)


def random_judge(gpt: GPT) -> RewardModel:
    """A reward model on it whose bias, mean and deviation are not the usual ones."""
    judge = RewardModel.from_policy(gpt).eval().requires_grad_(False)
    judge.head.bias.fill_(0.4)
    judge.mean.fill_(-1.5)
    judge.std.fill_(0.3)
    return judge


def padded_gpt(model: GPT, rows: int) -> GPT:
    """The same model with more rows in its embedding, which stand for no text and are far likelier."""
    padded = copy.deepcopy(model)
    more = 9 * torch.ones(rows, model.config.n_embd, dtype=model.wte.weight.dtype)
    padded.wte.weight = torch.nn.Parameter(torch.cat([model.wte.weight.detach(), more]))
    padded.config = dataclasses.replace(model.config, vocab_size=len(padded.wte.weight))
    padded.n_text = model.config.vocab_size
    return padded


def fixed_gpt(probs: list[float], context: int = 12, dtype: torch.dtype = torch.float64) -> GPT:
    """A GPT that gives these probabilities whatever it reads: the head sees only ln_f's bias."""
    V = len(probs)
    model = GPT(GPTConfig(V, context, n_layer=1, n_head=1, n_embd=V)).initialize().to(dtype).eval()
    model.wte.weight.data = torch.eye(V, dtype=dtype)
    model.ln_f.weight.data.zero_()
    model.ln_f.bias.data = torch.tensor(probs, dtype=dtype).log().clamp(min=-1e4)
    return model


def glassbox_gpt(seed: int = 0, *, context: int = 64, n_layer: int = 1, n_embd: int = 16) -> GPT:
    """A policy that has learned nothing, for the worlds' tokenizer."""
    shape = GPTConfig(GLASSBOX.n_vocab, context, n_layer=n_layer, n_head=2, n_embd=n_embd)
    return GPT(shape).initialize(seeded(seed)).eval()


def saved_gpt(folder: Path, seed: int = 0, **shape: int) -> GPT:
    """The same, saved in this folder as a run saves it."""
    model = glassbox_gpt(seed, **shape)
    save_gpt(folder / MODEL_FILE, model, GLASSBOX)
    return model


def language(length: int = 3) -> ResponseBatch:
    """Every response of a tiny language: tokens 0 (EOS), 1 and 2, at most `length` of them."""
    ended = [(*p, 0) for n in range(length) for p in itertools.product((1, 2), repeat=n)]
    responses = ended + list(itertools.product((1, 2), repeat=length))
    return collate_responses([[1, 2]] * len(responses), responses, eos_id=0)


class Crash(Exception):
    """Stands for a power cut."""


class CrashingLog(MetricLog):
    """Ends the run once the row of step `last` is written."""

    last = 5

    def write(self, *, step: int, **metrics) -> None:
        super().write(step=step, **metrics)
        if step == self.last:
            raise Crash


def tokenizer_in(folder: Path, vocab_size: int) -> Any:
    """The tokenizer in a folder of published weights, of a model of so many rows."""
    from gpt.tokenizer_files import read_tokenizer, settings_in

    read = (settings_in(folder / name) for name in ("config.json", "tokenizer_config.json"))
    return read_tokenizer(folder, vocab_size, *read)
