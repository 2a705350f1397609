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
from typing import Any

import torch
from torch import Tensor

import gpt
from gpt.lora import merged_state
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import FORM, Tokenizer, build_tokenizer, load_tokenizer, parse_ranks
from harness.device import shapes_alone
from harness.errors import UserError
from harness.files import as_user_error, display_path, parse_json, read_object
from harness.paths import MODEL_FILE, folder_of_run
from harness.safetensors_file import (
    load_weights,
    read_safetensors,
    require_floats,
    save_weights,
)


def about_gpt(model: GPT, tokenizer: Tokenizer) -> dict[str, Any]:
    """What a checkpoint's header must say to rebuild the model, a tokenizer's own ranks with it."""
    return {kind_of(model): dataclasses.asdict(model.config)} | tokenizer.about


def kind_of(model: GPT) -> str:
    """What a header calls this kind of model: the file of gpt/ that holds it; gpt for model.py."""
    name = type(model).__module__.rpartition(".")[2]
    return "gpt" if name == "model" else name


def file_of(kind: str, path: Path) -> Any:
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
    with shapes_alone():  # the tensors of the file become the weights
        model = build(gpt_config_of(about, tensors, path))
    load_strictly(model, tensors, path)
    model.n_text = tokenizer.n_vocab
    return model.to(device).eval(), tokenizer


def gpt_config_of(about: Mapping[str, Any], tensors: Iterable[str], path: Path) -> GPTConfig:
    """The shape in a header; UserError for one that is damaged."""
    kinds = (k for k, v in about.items() if isinstance(v, dict) and k != "tokenizer_form")
    kind = next(kinds, "gpt")
    shape: type[GPTConfig] = file_of(kind, path).SHAPE
    names = {field.name for field in dataclasses.fields(shape)}
    sizes = about.get(kind)
    if not isinstance(sizes, dict) or sizes.keys() != names:
        raise UserError(f"{path} does not say its model's shape: it is damaged, train it again")
    config = checked_shape(shape, sizes, path)
    check_layers(config, tensors, path)
    return config


def checked_shape(shape: type[GPTConfig], sizes: Mapping[str, Any], path: Path) -> GPTConfig:
    """The shape with these sizes; UserError for what is no size, or does not go together."""
    floats = {field.name for field in dataclasses.fields(shape) if field.type in ("float", float)}
    for name, value in sizes.items():
        kinds = (int, float) if name in floats else (int,)
        most = 1 if name == "dropout" else math.inf
        if type(value) not in kinds or not (kinds == (int,)) <= value <= most:
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


def load_policy(folder: Path, device: torch.device) -> tuple[GPT, Tokenizer]:
    """The model in a run folder, named or its folder, or in Hugging Face's layout; else UserError."""
    folder = folder_of_run(folder)
    if not (folder / MODEL_FILE).exists():
        raise UserError(
            f"there is no {MODEL_FILE} in {display_path(folder)}: pass a run folder or published weights"
        )
    if is_published(folder):
        model, tokenizer = hub_file("published").load_with_tokenizer(folder)
        return model.to(device), tokenizer
    return load_gpt(folder, device)


def is_published(folder: Path) -> bool:
    """Whether a folder is in Hugging Face's layout, by its config.json."""
    config = folder / "config.json"
    return config.is_file() and "model_type" in read_object(config)


def hub_file(name: str) -> Any:
    """The file of gpt/ that reads folders of that layout: their model, or their tokenizer_files."""
    return importlib.import_module(f"gpt.{name}")


def read_shape(folder: Path) -> GPTConfig:
    """The shape of the model in a folder as `load_policy` opens it, without its weights; UserError."""
    folder = folder_of_run(folder)
    path = folder / MODEL_FILE
    if not path.exists():
        raise UserError(
            f"there is no {MODEL_FILE} in {display_path(folder)}: name a run or published weights"
        )
    if is_published(folder):
        shape: GPTConfig = hub_file("published").read_config(folder / "config.json")
        return shape
    with as_user_error(path):
        return gpt_config_of(*read_header(path), path)


def has_chat_template(folder: Path) -> bool:
    """Whether the model in a folder, a run's or of that layout, brings a form of a chat."""
    if is_published(folder):
        return hub_file("tokenizer_files").chat_template_in(folder) is not None
    about, _ = read_header(folder / MODEL_FILE)
    return bool((about.get("tokenizer_form") or {}).get("chat_template"))


def read_header(path: Path) -> tuple[dict[str, Any], list[str]]:
    """What a checkpoint says of its model, and the names of its tensors, which are not read."""
    about, names = read_safetensors(
        path, lambda file: ((file.metadata() or {}).get("about", "{}"), list(file.keys()))
    )
    return dict(parse_json(about)), names


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
