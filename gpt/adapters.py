"""peft's LoRA adapters: the folder of one is opened as a model, and a run's are written as one.

    adapter_config.json          the base, alpha, the rank r, and what may depart from LoRA
    adapter_model.safetensors    base_model.model.NAME.lora_A.weight (r, in), and lora_B (out, r)

    W = W0 + s B A    s = alpha / r, with use_rslora alpha / sqrt(r) (arXiv:2312.03732)

NAME is transformers' name of the matrix W (out, in). GPT-2's are stored there as (in, out), hence
fan_in_fan_out; here they are (out, in), and nothing is turned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from gpt.folder import ADAPTER_FILE, ModelFolder, base_of, hub_repo
from gpt.huggingface import ADAPTER_WEIGHTS, PREFIX, own_name, their_name
from gpt.llama import LlamaConfig
from gpt.lora import ALPHA_OVER_RANK
from gpt.model import GPT
from gpt.tokenizer_files import SETTINGS_FILE, chat_template_in, settings_in
from harness.errors import UserError
from harness.files import as_user_error, read_object, record_input, write_atomically, write_json
from harness.safetensors_file import read_safetensors, require_floats

# Keys of adapter_config.json that are read here, or change no logits. Any other must be off or as here.
READ = {
    "base_model_name_or_path", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern",
    "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "fan_in_fan_out",
    "lora_dropout", "inference_mode", "auto_mapping", "peft_version", "megatron_core",
    "qalora_group_size",
}  # fmt: skip
TAKEN = {
    "peft_type": ("LORA",), "task_type": ("CAUSAL_LM",), "bias": ("none",), "revision": ("main",),
    "init_lora_weights": (True, "gaussian", "eva"),  # others, as PiSSA, change the base's weights
}  # fmt: skip
MERGE = "merge it with peft's merge_and_unload and save_pretrained"
PART, NONE = re.compile(r"base_model\.model\.(.+)\.lora_[AB]\.weight"), torch.empty(0)


def opened(origin: str, folder: Path) -> ModelFolder:
    """The base with an adapter over it, and the tokenizer that lies beside the adapter, if any.

    UserError for an adapter of another kind, and for a base that cannot be opened.
    """
    path = folder / ADAPTER_FILE
    with as_user_error(folder):
        for key, value in ({"peft_type": "none"} | read_object(path)).items():
            if key not in READ and value and value not in TAKEN.get(key, ()):
                raise UserError(f"{path}: {key} {value!r:.60} is not computed here: {MERGE}")
    named = base_of(folder)
    if not named or base_of(Path(named)) is not None:
        raise UserError(
            f"{path}: base_model_name_or_path {named!r} is no model: name the one that {origin} is for"
        )
    try:
        base = ModelFolder.open(named)
    except UserError as error:
        raise UserError(f"{origin} is an adapter of {named}, but {error}") from error
    run = None if base.run is None else {**base.run, "model": base.origin}
    found = replace(base, origin=origin, folder=folder, run=run, base=base)
    if not found.has_tokenizer:
        return found
    settings = settings_in(folder / SETTINGS_FILE)
    return replace(found, settings=settings, chat_template=chat_template_in(folder, settings))


@torch.no_grad()
def merged(base: ModelFolder, folder: Path, origin: str) -> GPT:
    """The base's model with the adapter in its matrices; UserError for one that does not fit it."""
    config, path = read_object(folder / ADAPTER_FILE), folder / ADAPTER_WEIGHTS
    if not path.is_file():
        raise UserError(f"{origin} holds no {path.name}: save it with peft's save_pretrained")
    tensors = read_safetensors(
        record_input(path), lambda file: {n: file.get_tensor(n) for n in file.keys()}
    )
    require_floats(tensors, path)
    if (kind := base.about.get("model_type")) in ("phi3", "granite", "ernie4_5"):  # see `as_llama`
        raise UserError(f"{origin} adapts a {kind}, stored in another form: {MERGE}")
    model = base.model()
    weights, places = dict(model.named_parameters()), dict[str, None]()
    for name in tensors or ("nothing",):
        if not (found := PART.fullmatch(name)):
            raise UserError(f"{path} holds {name}, which is no matrix of LoRA: {MERGE}")
        places[found[1]] = None
    for at in places:
        with as_user_error(folder):
            rank, scale = strength(config, at)
        A, B = (tensors.get(f"base_model.model.{at}.lora_{part}.weight", NONE) for part in "AB")
        weight = weights.get(own_name(f"{at}.weight", model.config, PREFIX), NONE)
        if (B.shape, A.shape) != ((len(weight), rank), (rank, *weight.shape[1:])):
            shapes = f"{tuple(weight.shape)} and B {tuple(B.shape)}, A {tuple(A.shape)}"
            raise UserError(
                f"{origin} does not fit its base {base.origin}: {at} is {shapes} at rank {rank}; name "
                "the base that it was trained on"
            )
        weight += scale * B.float() @ A.float()
    return model


def strength(config: Mapping[str, Any], at: str) -> tuple[int, float]:
    """(r, s) of the matrix `at`: the first pattern that ends its name counts, as peft has it."""

    def value(key: str, patterns: str) -> Any:
        found = (config.get(patterns) or {}).items()
        return next((n for p, n in found if re.match(rf"(.*\.)?({p})$", at)), config[key])

    rank, alpha = value("r", "rank_pattern"), value("lora_alpha", "alpha_pattern")
    return rank, alpha / (rank**0.5 if config.get("use_rslora") else rank)


def save_adapter(model: GPT, base: ModelFolder, rank: int, folder: Path, origin: str) -> str:
    """Write what makes `model`, which is merged, of its base, for peft; returns the base as peft finds it.

    W - W0 = s B A has the rank r, so it maps r random vectors onto all of its columns: B is an orthogonal
    basis of these, and A what W - W0 is in it (Halko et al. 2009, arXiv:0909.4061, Algorithm 4.1).
    UserError where more than that is between the two.
    """
    before, after, tensors = base.model().state_dict(), model.state_dict(), dict[str, Tensor]()
    for name, weight in after.items():
        at, start = name.removesuffix(".weight"), before.get(name, NONE)
        left = change = weight.double() - start if start.shape == weight.shape else weight
        if at.endswith(model.projections) and start.shape == weight.shape:
            some = torch.randn(change.shape[1], rank, generator=torch.Generator().manual_seed(0))
            B = torch.linalg.qr(change @ some.double()).Q
            B = F.pad(B, (0, rank - B.shape[1]))  # (out, r), also of a matrix of fewer rows
            A = B.T @ change
            left = change - B @ A
            there = f"base_model.model.{their_name(at, model.config)}.lora"
            tensors[f"{there}_A.weight"] = (A / ALPHA_OVER_RANK).float()
            tensors[f"{there}_B.weight"] = B.float().contiguous()
        if left.abs().max() > 1e-5 * weight.abs().max():  # more than rounding
            raise UserError(
                f"{origin} differs from {base.origin} in more than adapters of rank {rank}, as in {name}: "
                "export it with --hf, or put back the base that it was trained from"
            )
    write_atomically(
        folder / ADAPTER_WEIGHTS, lambda path: save_file(tensors, path, {"format": "pt"})
    )
    named = hub_repo(base.origin) or str(base.folder.resolve())
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": named, "bias": "none",
        "r": rank, "lora_alpha": int(ALPHA_OVER_RANK * rank), "inference_mode": True,
        "target_modules": sorted({name.rpartition(".")[2] for name in model.projections}),
        "fan_in_fan_out": not isinstance(model.config, LlamaConfig),
    }  # fmt: skip
    write_json(folder / ADAPTER_FILE, config)
    return named
