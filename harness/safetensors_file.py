"""Weights in a file: safetensors, whose header says what they are. Nothing is loaded through pickle."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from harness.errors import UserError
from harness.files import parse_json, record_input, require_regular, write_atomically
from harness.paths import MODEL_FILE

T = TypeVar("T")
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def save_weights(path: Path, tensors: Mapping[str, Tensor], kind: str, about: Mapping) -> None:
    """Write tensors as safetensors; the header says what they are (`kind`) and `about` it."""
    metadata = {"kind": kind, "about": json.dumps(about)}

    def write(temporary: Path) -> None:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(plain, temporary, metadata)

    write_atomically(path, write)


def read_safetensors(path: Path, read: Callable[[safe_open], T]) -> T:
    """read(file) of an open safetensors file; UserError for a damaged one."""
    path.open("rb").close()  # of a file that may not be read safetensors says that it is not there
    try:
        with safe_open(path, framework="pt") as file:
            return read(file)
    except Exception as error:  # safetensors raises its own class for a damaged file
        raise UserError(
            f"{path} is not a readable safetensors file ({error}): train it again, or copy it again"
        ) from error


def read_header(path: Path) -> tuple[dict[str, str], dict[str, int]]:
    """The metadata of a file, and how many numbers each of its tensors has: none of them is read."""
    return read_safetensors(
        path,
        lambda file: (
            file.metadata() or {},
            {name: math.prod(file.get_slice(name).get_shape()) for name in file.keys()},
        ),
    )


def load_weights(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and `about` of a checkpoint of this kind. UserError if it is missing or another kind."""
    if path.is_dir():
        path = path / MODEL_FILE
    if not path.exists():
        raise UserError(f"there is no checkpoint at {path}: check the path, or train it first")
    require_regular(record_input(path))
    metadata, tensors = read_safetensors(  # cloned: else one tensor in use holds the mapped file
        path,
        lambda file: (file.metadata() or {}, {k: file.get_tensor(k).clone() for k in file.keys()}),
    )
    if metadata.get("kind") != kind:
        raise UserError(
            f"{path} holds a {metadata.get('kind', 'file of another program')}, not a {kind}: pass the run "
            "folder of the right script"
        )
    try:
        about = parse_json(metadata["about"])
    except (KeyError, ValueError):
        about = None
    if not isinstance(about, dict):
        raise UserError(f"{path} does not say what it holds: it is damaged, train it again")
    return tensors, about


def require_floats(tensors: Mapping[str, Tensor], path: Path) -> None:
    """UserError for a tensor that is not stored as float64, float32, float16 or bfloat16, or not finite."""
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(
                f"{path}: {name} is stored as {kind}, not as a float of 16 bits or more: use weights "
                "that are not quantized"
            )
        if not tensor.isfinite().all():
            raise UserError(
                f"{path}: {name} holds numbers that are not finite: train it again, or copy it again"
            )
