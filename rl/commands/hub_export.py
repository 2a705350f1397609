"""A run's model as a folder that transformers opens: weights, tokenizer, settings, a model card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from gpt.checkpoint import load_gpt
from gpt.llama import Llama
from gpt.model import GPT
from gpt.published.pretrained import save_gpt2
from gpt.tokenizer import PAD, Tokenizer, build_tokenizer
from harness.errors import UserError
from harness.files import (
    display_path,
    expanded,
    read_jsonl,
    read_object,
    require_regular,
    write_json,
)
from harness.paths import MODEL_FILE, folder_of_run
from harness.report.writing import write_text
from harness.safetensors_file import read_safetensors
from reward_model.scalar_head import RewardModel, load_reward_model

CARD = "README.md"
KEPT = ("reward", "validation/gold", "kl", "accuracy", "held_out_accuracy", "held_out_loss")


@dataclass(frozen=True)
class RunFolder:
    """A run folder with weights, and the flags that it was made with (none if it keeps none)."""

    path: Path
    flags: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> RunFolder:
        """UserError if there is no model in it, or its config.json is damaged."""
        path = folder_of_run(path)
        if not (path / MODEL_FILE).exists():
            raise UserError(
                f"there is no {MODEL_FILE} in {display_path(path)}: give the folder of a finished run"
            )
        config = path / "config.json"
        return cls(path, read_object(config) if config.exists() else {})

    @property
    def data(self) -> str:
        """The world or the file of the run; "" if nothing says it."""
        return str(self.flags.get("data") or "")

    @property
    def kind(self) -> str:
        """What the weights are, by their header: "gpt", "reward_model" or "" for another program's."""
        path = self.path / MODEL_FILE
        require_regular(path)
        return read_safetensors(path, lambda file: file.metadata() or {}).get("kind", "")


def new_folder(path: Path) -> Path:
    """The folder, made; UserError unless it is new or empty."""
    path = expanded(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{display_path(path)} is not empty: name a new folder")
    path.mkdir(parents=True, exist_ok=True)
    return path


def export_hub(path: Path, target: Path) -> str:
    """Write the model of a run into a new folder; returns how transformers opens it.

    UserError for a reward model that takes the mean over tokens, which no class of transformers does.
    """
    run = RunFolder.read(path)
    if run.kind == "reward_model":
        reward_model, tokenizer = load_reward_model(run.path)
        if reward_model.pooling != "last_token":
            raise UserError(
                f"{display_path(run.path)} scores by the mean over the answer's tokens, and transformers "
                "by the last token alone: train one with `python -m "
                "reward_model.reward_model_training --pooling last_token`"
            )
        target = new_folder(target)
        model, score, tokenizer = as_classifier(reward_model, tokenizer)
        save_gpt2(model, target, tokenizer, score)
        opens = "AutoModelForSequenceClassification"
    else:
        model, tokenizer = load_gpt(run.path)
        target = new_folder(target)
        save_gpt2(model, target, tokenizer)
        write_json(target / "generation_config.json", generation_config(run, tokenizer))
        opens = "AutoModelForCausalLM"
    write_text(target / CARD, model_card(run, model, tokenizer, opens))
    return f"transformers.{opens}.from_pretrained({display_path(target)!r})"


def as_classifier(reward_model: RewardModel, tokenizer: Tokenizer) -> tuple[GPT, Tensor, Tokenizer]:
    """The trunk, a score (1, D) without bias, and a tokenizer whose padding is no end of text.

    (w h + b - mean) / std = w' h + c. The last LayerNorm's shift takes c in: along w' by c / |w'|^2.
    transformers scores the last token that is no padding, so padding must be a token by itself.
    """
    gpt, head = reward_model.gpt, reward_model.head
    with torch.no_grad():
        score = head.weight / reward_model.std
        offset = (head.bias - reward_model.mean) / reward_model.std
        if not isinstance(gpt.ln_f, nn.LayerNorm):
            raise UserError(
                "a reward model on a Llama has nowhere to keep its offset, its last norm has no shift: "
                "export its policy instead"
            )
        gpt.ln_f.bias.add_(offset * score[0] / score.square().sum())
        if tokenizer.pad_id == tokenizer.eos_id:
            encoding, pad = tokenizer.encoding, tokenizer.n_vocab
            specials = encoding._special_tokens | {PAD: pad}
            tokenizer = build_tokenizer(
                tokenizer.name, encoding._mergeable_ranks, encoding._pat_str, specials,
                encoding.decode([tokenizer.eos_id]), PAD,
            )  # fmt: skip
            gpt.wte.weight = nn.Parameter(nn.functional.pad(gpt.wte.weight, (0, 0, 0, 1)))
            gpt.config = replace(gpt.config, vocab_size=pad + 1)
    return gpt, score, tokenizer


def generation_config(run: RunFolder, tokenizer: Tokenizer) -> dict[str, Any]:
    """Sampling as in the run, without the cut to the 50 likeliest tokens that used to be a default."""
    return {
        "bos_token_id": tokenizer.eos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
        "do_sample": True,
        "temperature": run.flags.get("temperature", 1.0),
        "top_k": 0,
        "top_p": 1.0,
        "max_new_tokens": run.flags.get("max_new_tokens", 48),
    }


USES = {
    "AutoModelForCausalLM": """inputs = tokenizer(prompt, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs)[0]))""",
    "AutoModelForSequenceClassification": """# Prompt and answer are encoded apart, the end of text last.
ids = tokenizer(prompt)["input_ids"] + tokenizer(answer)["input_ids"] + [tokenizer.eos_token_id]
print(model(torch.tensor([ids])).logits[0, 0])  # the normalised reward""",
}


def model_card(run: RunFolder, model: GPT, tokenizer: Tokenizer, opens: str) -> str:
    """What the model is, where it comes from and how it is used."""
    kind, name = ("llama", "Llama") if isinstance(model, Llama) else ("gpt2", "GPT-2")
    shape, script = model.config, run.flags.get("script", "a script of its own")
    metrics = run.path / "metrics.jsonl"
    rows = read_jsonl(metrics) if metrics.exists() else []
    last = {key: value for row in rows for key, value in row.items() if key in KEPT}
    measured = "\n".join(f"- {key}: {value:.4g}" for key, value in last.items()) or "- nothing"
    task = "text-generation" if opens == "AutoModelForCausalLM" else "text-classification"
    return f"""---
library_name: transformers
pipeline_tag: {task}
tags: [{kind}, rlhf, glassbox-rlhf]
---

# {run.path.resolve().name}

A {name}: {shape.n_layer} layers of width {shape.n_embd}, {shape.context} positions,
{shape.vocab_size:,} tokens (tokenizer {tokenizer.name!r}). Glassbox RLHF trained it with `{script}`
on `{run.data or "data that is not recorded"}`.

```python
import torch
from transformers import {opens}, AutoTokenizer

folder = "."  # this folder
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {opens}.from_pretrained(folder).eval()
{USES[opens]}
```

Last logged in training:

{measured}

Special tokens inside of a text are read as special by transformers, and spelled out in training.
The model is made for study, and nothing was done to make its answers safe or true.
"""
