"""A run's model as a folder that transformers opens: weights, tokenizer, settings, a model card.

    python -m rl.export runs/grpo-reviews-tiny --hf exported

Policies and reward models alike, without a network; an adapter is merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from data.sources import file_source, is_world
from gpt.folder import ModelFolder, place_of
from gpt.generate import temperature_of_use
from gpt.huggingface import model_type, save_hf, special_ids
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from gpt.tokenizer_files import with_pad
from harness.command_line import run_command
from harness.errors import UserError
from harness.files import (
    display_path,
    expanded,
    write_json,
    write_text,
)
from reward_model.scalar_head import RewardModel, load_reward_model


@dataclass(frozen=True)
class ExportConfig:
    """Write a run's model for transformers."""

    model: str
    """A run."""
    hf: Path | None = None
    """A new folder for the model, in Hugging Face's layout; default: the run's name and -hf."""


def export_hub(name: str, target: Path) -> str:
    """Write the model of a run into a new folder; returns how transformers opens it.

    UserError without a model, for a folder that is not empty, and for a reward model that takes the mean
    over tokens, which no class of transformers does.
    """
    found = ModelFolder.open(name)
    if found.run is None:
        raise UserError(f"{name} is in Hugging Face's layout already: name a run")
    run, flags, kind = found.folder, found.run, found.kind
    data, offset = str(flags.get("data") or ""), 0.0
    if kind == "reward_model":
        reward_model, tokenizer = load_reward_model(run)
        if reward_model.pooling != "last_token":
            raise UserError(f"{display_path(run)}: transformers needs one of --pooling last_token")
        target, opens = new_folder(target), "AutoModelForSequenceClassification"
        model, score, offset, tokenizer = as_classifier(reward_model, tokenizer)
        tokenizer = with_form_of(data, tokenizer)
        save_hf(model, target, tokenizer, score)
    else:
        model, tokenizer = found.model(), found.tokenizer()
        tokenizer = with_form_of(data, tokenizer)
        target, opens = new_folder(target), "AutoModelForCausalLM"
        save_hf(model, target, tokenizer)
        write_json(target / "generation_config.json", generation_config(flags, tokenizer))
    card = model_card(run.resolve().name, flags, model, tokenizer, opens, offset)
    write_text(target / "README.md", card)
    return f"transformers.{opens}.from_pretrained({display_path(target)!r})"


def with_form_of(data: str, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with its chat template only if the run's prompts were in that form.

    The file of --data is asked; where that cannot be read, the template goes along, and a line says so.
    """
    chat, asked = tokenizer.chat, data == "instructions"
    if chat is not None and data and not is_world(data):
        try:
            asked = file_source(data, chat).is_in_form
        except (UserError, OSError) as error:
            print(f"that prompts were in the chat template is a guess: {error}")
            asked = True
    return tokenizer if chat is None or asked else replace(tokenizer, chat=None)


def new_folder(path: Path) -> Path:
    """The folder, made; UserError unless it is new or empty."""
    path = expanded(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{display_path(path)} is not empty: name a new folder")
    path.mkdir(parents=True, exist_ok=True)
    return path


def as_classifier(
    reward_model: RewardModel, tokenizer: Tokenizer
) -> tuple[GPT, Tensor, float, Tokenizer]:
    """The trunk, a score (1, D) without bias, what is to be added, and a tokenizer.

    (w h + b - mean) / std = w' h + c. The last LayerNorm's shift takes c in: along w' by c / |w'|^2. A
    Llama's norm has no shift, so c is to be added to what transformers gives. Padding becomes no end of
    text: transformers scores the last token that is no padding, so padding must be a token by itself.
    """
    gpt, head = reward_model.gpt, reward_model.head
    with torch.no_grad():
        score = head.weight / reward_model.std
        offset = (head.bias - reward_model.mean) / reward_model.std
        left = float(offset)
        if isinstance(gpt.ln_f, nn.LayerNorm):
            gpt.ln_f.bias.add_(offset * score[0] / score.square().sum())
            left = 0.0
        if tokenizer.pad_id == tokenizer.eos_id:
            tokenizer = with_pad(tokenizer)
            more = max(0, tokenizer.pad_id + 1 - gpt.config.vocab_size)
            gpt.wte.weight = nn.Parameter(nn.functional.pad(gpt.wte.weight, (0, 0, 0, more)))
            gpt.config = replace(gpt.config, vocab_size=len(gpt.wte.weight))
    return gpt, score, left, tokenizer


def generation_config(flags: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Sampling for people to read, without the cut to the 50 likeliest tokens that used to be a default."""
    tau = temperature_of_use(tokenizer.chat is not None, flags.get("temperature", 1.0))
    sampling = {"do_sample": True, "temperature": tau}
    sampling |= {"top_k": 0, "top_p": 1.0, "max_new_tokens": flags.get("max_new_tokens", 48)}
    return special_ids(tokenizer) | sampling


CHAT = """# A question in the form of its training.
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
)
"""
USES = {
    "AutoModelForCausalLM": """inputs = tokenizer(promptBARE, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs)[0]))""",
    "AutoModelForSequenceClassification": """# Prompt and answer are encoded apart, the end of text last.
ids = tokenizer(promptBARE)["input_ids"]
ids += tokenizer(answer, add_special_tokens=False)["input_ids"] + [END]
print(model(torch.tensor([ids])).logits[0, 0]OFFSET)  # the normalised reward""",
}


def model_card(
    name: str, flags: Mapping[str, Any], model: GPT, tokenizer: Tokenizer, opens: str, offset: float
) -> str:
    """What the model is, where it comes from and how it is used."""
    use = USES[opens].replace("END", str(tokenizer.eos_id))
    use = CHAT * (tokenizer.chat is not None) + use  # which writes what begins a text
    use = use.replace("BARE", ", add_special_tokens=False" if tokenizer.chat else "")
    use = use.replace("OFFSET", f" + {offset!r}" if offset else "")
    kind, shape = model_type(model.config), model.config
    template = "its first model's" if tokenizer.chat else "none, it was not trained on one"
    return f"""---
library_name: transformers
tags: [{kind}, rlhf, glassbox-rlhf]
---

# {name}

A {kind}: {shape.n_layer} layers of width {shape.n_embd}, {shape.context} positions,
{shape.vocab_size:,} tokens (tokenizer {tokenizer.name!r}). Glassbox RLHF trained it
with `{flags.get("script", "a script of its own")}` on `{flags.get("data") or "data that is not recorded"}`.

```python
import torch
from transformers import {opens}, AutoTokenizer

folder = "."  # this folder
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {opens}.from_pretrained(folder).eval()
{use}
```

Chat template: {template}.
Special tokens inside of a text are read as special by transformers, and spelled out in training.
The model is made for study, and nothing was done to make its answers safe or true.
"""


def main(config: ExportConfig) -> None:
    """Write the run's model, and say how it is opened."""
    folder = place_of(config.model)
    target = config.hf or folder.with_name(f"{folder.resolve().name}-hf")
    print(f"open it with\n    {export_hub(config.model, target)}")


if __name__ == "__main__":
    run_command(main, ExportConfig)
