"""A run's model for other programs: a folder for transformers, an adapter for peft, a file for llama.cpp.

    python -m rl.export runs/grpo-reviews-tiny --hf exported    policies and reward models alike
    python -m rl.export runs/mine --adapter exported            what a run with --lora-rank has trained
    python -m rl.export runs/mine --gguf mine.gguf

Nothing is asked of a network. Folders have a model card; but for --adapter an adapter is merged.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn as nn
from torch import Tensor

from data.sources import default_folder, file_source, is_world, name_columns
from gpt.adapters import save_adapter
from gpt.folder import ModelFolder, first_model, hub_repo, place_of
from gpt.generate import temperature_of_use
from gpt.gguf_file import save_gguf
from gpt.huggingface import model_type, save_hf, special_ids
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from gpt.tokenizer_files import with_pad, write_tokenizer
from harness.command_line import run_command
from harness.errors import UserError
from harness.files import (
    display_path,
    expanded,
    reading,
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
    adapter: Path | None = None
    """A new folder for the adapter alone of a run with --lora-rank, in peft's layout."""
    gguf: Path | None = None
    """A new file for llama.cpp."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """How --hf and --gguf store weights: bfloat16 halves the files and rounds."""


def export_hub(name: str, target: Path, dtype: torch.dtype = torch.float32) -> str:
    """Write the model of a run into a new folder; returns how transformers opens it.

    UserError without a model, for a folder that is not empty, and for a reward model that takes the mean
    over tokens, which no class of transformers does.
    """
    found = ModelFolder.open(name)
    if found.run is None:
        raise UserError(f"{name} is in a published layout already: name a run")
    run, flags, kind = found.folder, found.run, found.kind
    offset = 0.0
    if kind == "reward_model":
        reward_model, tokenizer = load_reward_model(run)
        if reward_model.pooling != "last_token":
            raise UserError(f"{display_path(run)}: transformers needs one of --pooling last_token")
        target, opens = new_folder(target), "AutoModelForSequenceClassification"
        own = tokenizer.fingerprint  # the policy's too, which has no token more for padding
        model, score, offset, tokenizer = as_classifier(reward_model, tokenizer)
        tokenizer = with_form_of(flags, tokenizer)
        about = {"offset": offset, "std": float(reward_model.std), "tokenizer": own}
        save_hf(model, target, tokenizer, score, dtype, about)
    else:
        model, tokenizer = found.model(), found.tokenizer()
        tokenizer = with_form_of(flags, tokenizer)
        target, opens = new_folder(target), "AutoModelForCausalLM"
        save_hf(model, target, tokenizer, dtype=dtype)
        write_json(target / "generation_config.json", generation_config(flags, tokenizer))
    write_card(target, found, model, tokenizer, offset)
    return f"transformers.{opens}.from_pretrained({display_path(target)!r})"


def export_adapter(name: str, target: Path) -> str:
    """Write the adapter of a run with --lora-rank for peft; returns how that opens it, else UserError."""
    found = ModelFolder.open(name)
    flags, model, tokenizer = found.run or {}, found.model(), found.tokenizer()
    if not flags.get("lora_rank"):
        raise UserError(
            f"{name} has no adapter: name a run with --lora-rank, or export it with --hf"
        )
    tokenizer, start = with_form_of(flags, tokenizer), flags.get("model")
    start = start or default_folder("pretraining", str(flags["data"]), str(flags["preset"]))
    base = ModelFolder.open(start)
    if base.base is not None:
        raise UserError(f"{name} started from the adapter {start}, not a base: export it with --hf")
    target = new_folder(target)
    over = save_adapter(model, base, flags["lora_rank"], target, name)
    write_tokenizer(target, tokenizer, model.config.context)
    write_card(target, found, model, tokenizer, over=over)
    if base.run is not None:
        print(f"peft opens the base {start} once it is exported, too: python -m rl.export {start}")
    return f"peft.PeftModel.from_pretrained(base, {display_path(target)!r})"


def export_gguf(name: str, target: Path, dtype: torch.dtype) -> str:
    """Write a model for llama.cpp; returns how that opens it. UserError for a file that is there."""
    found, target = ModelFolder.open(name), expanded(target)
    if target.exists():
        raise UserError(f"{display_path(target)} is there already: name a new file")
    tokenizer = with_form_of(found.run or {}, found.tokenizer())
    save_gguf(target, found.model(), tokenizer, found.folder.resolve().name, dtype)
    return f"llama-cli -m {display_path(target)}"


def with_form_of(flags: Mapping[str, Any], tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with its chat template only if the run's prompts were in that form.

    The file of --data is asked; where that cannot be read, the template goes along, and a line says so.
    """
    data = str(flags.get("data") or "")
    chat, asked = tokenizer.chat, data == "instructions"
    if chat is not None and data and not is_world(data):
        try:
            with reading():
                name_columns(data, flags.get("columns") or ())
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


PROMPT = """prompt = "Once upon a time"  # put one in the form of its training here
"""
CHAT = """# A question in the form of its training.
question = "What is a rainbow?"
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
)
"""
WRITES = """inputs = tokenizer(promptBARE, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs)[0]))"""
SCORES = """# Prompt and answer are encoded apart, the end of text last.
answer = "It is light in drops of rain."
ids = tokenizer(promptBARE)["input_ids"]
ids += tokenizer(answer, add_special_tokens=False)["input_ids"] + [END]
print(model(torch.tensor([ids])).logits[0, 0]OFFSET)  # the normalised reward"""
UNKNOWN = "The licence of the model that it started from is not known here: look it up."


def write_card(
    target: Path,
    run: ModelFolder,
    model: GPT,
    tokenizer: Tokenizer,
    offset: float = 0.0,
    over: str = "",
) -> None:
    """README.md: what the model is, where it comes from, its licence, and lines of Python that use it.

    `over` is the base of an adapter, `offset` what is to be added to a reward model's score.
    """
    flags, kind, shape = run.run or {}, model_type(model.config), model.config
    chat, scores, first = tokenizer.chat is not None, run.kind == "reward_model", first_model(flags)
    use = (CHAT if chat else PROMPT) + (SCORES if scores else WRITES)
    use = use.replace("END", str(tokenizer.eos_id))
    bare = ", add_special_tokens=False" if chat else ""  # the template writes these
    use = use.replace("BARE", bare)
    use = use.replace("OFFSET", f" + {offset!r}" if offset else "")
    opens = "AutoModelForSequenceClassification" if scores else "AutoModelForCausalLM"
    opened = f"{opens}.from_pretrained({over or '.'!r})"
    about = [f"library_name: {'peft' if over else 'transformers'}"]
    about += [f"pipeline_tag: text-{'classification' if scores else 'generation'}"]
    if base := hub_repo(over or first or ""):
        about += [f"base_model: {base}"]
    if data := re.match(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)", str(flags.get("data"))):
        about += [f"datasets: [{data[1]}]"]
    about += (known := licence_of(first, target)) + [f"tags: [{kind}, rlhf, glassbox-rlhf]"]
    head = "\n".join(about)
    template = "its first model's" if chat else "none, it was not trained on one"
    card = f"""---
{head}
---

# {run.folder.resolve().name}

A {kind}: {shape.n_layer} layers of width {shape.n_embd}, {shape.context} positions,
{shape.vocab_size:,} tokens (tokenizer {tokenizer.name!r}). Glassbox RLHF trained it
with `{flags.get("script", "a script of its own")}` on `{flags.get("data") or "data that is not recorded"}`.

```python
import torch
{"from peft import PeftModel" * bool(over)}
from transformers import {opens}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")  # this folder
model = {f"PeftModel.from_pretrained({opened}, '.')" if over else opened}.eval()
{use}
```

Chat template: {template}.
Special tokens inside of a text are read as special by transformers, and spelled out in training.
The model is made for study, and nothing was done to make its answers safe or true.
{UNKNOWN if first and not known else ""}
"""
    write_text(
        target / "README.md", card.replace("import torch\n\n", "import torch\n").rstrip() + "\n"
    )


def licence_of(named: str | None, target: Path) -> list[str]:
    """What the first model's card says of its licence, else that it has a LICENSE; that is copied."""
    found: list[str] = []
    if named is None:
        return found
    with suppress(OSError, UserError):
        folder = place_of(named)
        files = [Path(shutil.copy(path, target)).name for path in sorted(folder.glob("LICENSE*"))]
        if files:
            found = ["license: other", f"license_name: {files[0]}", f"license_link: {files[0]}"]
        head = re.match(r"---\n(.*?\n)---\n", (folder / "README.md").read_text("utf-8"), re.DOTALL)
        found = re.findall(r"^license(?:_name|_link)?: .+", head[1] if head else "", re.M) or found
    return found


def main(config: ExportConfig) -> None:
    """Write the run's model, and say how it is opened."""
    folder, dtype = place_of(config.model), getattr(torch, config.dtype)
    used = []
    if config.adapter is not None:
        used.append(export_adapter(config.model, config.adapter))
    if config.gguf is not None:
        used.append(export_gguf(config.model, config.gguf, dtype))
    if config.hf is not None or not used:
        target = config.hf or folder.with_name(f"{folder.resolve().name}-hf")
        used.append(export_hub(config.model, target, dtype))
    for line in used:
        print(f"open it with\n    {line}")


if __name__ == "__main__":
    run_command(main, ExportConfig)
