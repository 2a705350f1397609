"""A GPT with its tokenizer in one file, written by `save_gpt` and read by `load_gpt`."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import gpt
from gpt.lora import merged_state
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import FORM, Tokenizer, build_tokenizer, load_tokenizer, parse_ranks
from harness.device import shapes_alone
from harness.errors import UserError
from harness.files import as_user_error
from harness.safetensors_file import load_weights, require_floats, save_weights


def about_gpt(model: GPT, tokenizer: Tokenizer) -> dict[str, Any]:
    """What a checkpoint's header must say to rebuild the model, a tokenizer's own ranks with it."""
    return {kind_of(model): dataclasses.asdict(model.config)} | tokenizer.about


def kind_of(model: GPT) -> str:
    """What a header calls this kind of model: the file of gpt/ that holds it; gpt for model.py."""
    name = type(model).__module__.rpartition(".")[2]
    return "gpt" if name == "model" else name


def file_of(kind: str, path: Path) -> ModuleType:
    """The file of gpt/ with this kind of model, `MODEL` and `SHAPE`; UserError for another name."""
    name = "model" if kind == "gpt" else kind
    if kind != "model" and name in {module.name for module in iter_modules(gpt.__path__)}:
        file = importlib.import_module(f"gpt.{name}")
        if hasattr(file, "MODEL"):
            return file
    raise UserError(f"{path} holds a model of the kind {kind!r:.40}, which is none of gpt/")


def build(config: GPTConfig) -> GPT:
    """The model of this shape, its weights not set."""
    model: GPT = sys.modules[type(config).__module__].MODEL(config)
    return model


def save_gpt(path: Path, model: GPT, tokenizer: Tokenizer) -> None:
    """Write a GPT checkpoint (float32 tensors in our own names); an adapter is merged."""
    save_weights(path, merged_state(model), "gpt", about_gpt(model, tokenizer))


def load_gpt(path: Path, device: torch.device | str = "cpu") -> tuple[GPT, Tokenizer]:
    """A checkpoint written by `save_gpt`, with the tokenizer that it was trained with."""
    tensors, about = load_weights(path, "gpt")
    tokenizer = checked_tokenizer(about, path)
    model = shaped(tensors, gpt_config_of(about, tensors, path), path)
    model.n_text = tokenizer.n_vocab
    return model.to(device), tokenizer


def load_shaped(path: Path, config: GPTConfig) -> GPT:
    """The model of a checkpoint whose header has been read already, in eval mode."""
    return shaped(load_weights(path, "gpt")[0], config, path)


def shaped(tensors: Mapping[str, Tensor], config: GPTConfig, path: Path, *remedy: str) -> GPT:
    """The model of this shape with these tensors as its weights, in eval mode."""
    with shapes_alone():
        model = build(config)
    load_strictly(model, tensors, path, *remedy)
    return model.eval()


def gpt_config_of(about: Mapping[str, object], tensors: Iterable[str], path: Path) -> GPTConfig:
    """The shape in a header; UserError for one that is damaged."""
    kinds = (k for k, v in about.items() if isinstance(v, dict) and k != "tokenizer_form")
    kind = next(kinds, "gpt")
    shape: type[GPTConfig] = file_of(kind, path).SHAPE
    fields = dataclasses.fields(shape)
    off = {field.name: field.default for field in fields if not field.default}
    sizes = about.get(kind)
    # A header may be older than what is off by default.
    if not isinstance(sizes, dict) or (off | sizes).keys() != {field.name for field in fields}:
        raise UserError(f"{path} does not say its model's shape: it is damaged, train it again")
    config = checked_shape(shape, off | sizes, path)
    check_layers(config, tensors, path)
    return config


def checked_shape(shape: type[GPTConfig], sizes: Mapping[str, Any], path: Path) -> GPTConfig:
    """The shape with these sizes; UserError for what is no size, or does not go together."""
    defaults = {field.name: field.default for field in dataclasses.fields(shape)}
    for name, value in sizes.items():
        default = defaults[name]  # what is off by default may be 0
        kinds = (int, float) if type(default) is float else (type(default),)
        least, most = type(default) is int and default > 0, 1 if name == "dropout" else math.inf
        if type(value) not in kinds or not least <= value <= most:
            raise UserError(f"{path} says {name} {value!r:.40}: make or fetch it again")
    try:
        return shape(**sizes)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def check_layers(config: GPTConfig, names: Iterable[str], path: Path) -> None:
    """UserError unless the tensors' names have the config's layers, before so many are built."""
    layers = {found[1] for name in names if (found := re.match(r"(?:gpt\.)?h\.(\d+)\.", name))}
    if len(layers) != config.n_layer:
        raise UserError(f"{path} has {len(layers)} layers, not {config.n_layer}: fetch it again")


def checked_tokenizer(about: Mapping[str, Any], path: Path) -> Tokenizer:
    """The tokenizer of `Tokenizer.about`, which a checkpoint holds; UserError if its ids are others now."""
    name, ranks = str(about.get("tokenizer", "")), about.get("tokenizer_ranks")
    with as_user_error(path):  # a part of another kind, wherever it is used
        form = about.get("tokenizer_form", {})
        # Older files hold a published one's ranks, and more in the form.
        older = isinstance(ranks, str) and not name.endswith(".tiktoken") and {*form} - {*FORM}
        if older or "tokenizer_json" in about:
            # Not at the top: most runs need no template.
            from gpt.tokenizer_files import published_of

            tokenizer: Tokenizer = published_of(about, path)
        elif isinstance(ranks, str):
            parsed = parse_ranks(ranks, path, form["specials"].values())
            tokenizer = build_tokenizer(name, parsed, **{part: form[part] for part in FORM})
        else:
            tokenizer = load_tokenizer(name)
    if not older and tokenizer.fingerprint != about.get("tokenizer_fingerprint"):
        raise UserError(f"{path} has other ranks of tokenizer {tokenizer.name!r}: train it again")
    return tokenizer


def load_strictly(
    model: torch.nn.Module,
    tensors: Mapping[str, Tensor],
    path: Path,
    remedy: str = "it was saved by another version, train it again",
) -> None:
    """Let the tensors become the model's; UserError for any left over, missing, misshapen or no float."""
    own = model.state_dict()
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or extra:
        raise UserError(f"{path}: missing {missing[:3]}, left over {extra[:3]}; {remedy}")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            shapes = f"{tuple(tensor.shape)}, but {tuple(own[name].shape)} in the model"
            raise UserError(f"{path}: {name} is {shapes}; {remedy}")
    require_floats(tensors, path)
    fitting = {name: tensor.to(own[name].dtype) for name, tensor in tensors.items()}
    model.load_state_dict(fitting, assign=True)
