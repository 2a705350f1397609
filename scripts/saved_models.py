"""Small models that are kept in the repository (notebooks/course/kept), so that pages start from texts
that convince.

    base           a GPT-2 of 0.9 million weights, pre-trained on the reviews world
    reward_model   learned from 112,000 noisy preference pairs
    policy         the base after 80 steps of GRPO against that reward model
    sweep          four policies under growing pressure (made with revision 6d26a07a)

All three come from one run of the pipeline. The base is stored in bfloat16. The other two are its
descendants, so their files hold only what training has changed, in 8 bits a weight.

    python scripts/demo.py --out runs/kept        trains them again
    python scripts/saved_models.py runs/kept      makes these files of a demo that has ended
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.checkpoint import checked_tokenizer, gpt_config_of, load_gpt, load_strictly
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.command_line import run_command
from harness.errors import UserError
from harness.files import display_path, read_json
from harness.safetensors_file import load_weights, save_weights
from reward_model.scalar_head import RewardModel

FOLDER = Path(__file__).resolve().parents[1] / "notebooks" / "course" / "kept"
FILES = {name: FOLDER / f"{name}.safetensors" for name in ("base", "policy", "reward_model")}
SWEEP = FOLDER / "sweep.safetensors"


def base() -> tuple[GPT, Tokenizer]:
    """The pre-trained model and its tokenizer, in float32; each call gives a fresh copy."""
    return load_gpt(FILES["base"])


def policy() -> tuple[GPT, Tokenizer]:
    """The base after GRPO against the kept reward model."""
    tensors, about = load_weights(FILES["policy"], "gpt_difference")
    tokenizer = checked_tokenizer(about, FILES["policy"])
    weights = add_difference(base()[0].state_dict(), tensors)
    model = GPT(gpt_config_of(about, weights, FILES["policy"]))
    load_strictly(model, weights, FILES["policy"])
    return model.eval(), tokenizer


def reward_model() -> tuple[RewardModel, Tokenizer]:
    """The learned reward, frozen and normalised on the base's own responses."""
    path = FILES["reward_model"]
    tensors, about = load_weights(path, "reward_model_difference")
    tokenizer = checked_tokenizer(about, path)
    trunk = {f"gpt.{name}": weight for name, weight in base()[0].state_dict().items()}
    weights = add_difference(trunk, tensors)
    model = RewardModel(GPT(gpt_config_of(about, weights, path)), about["pooling"])
    load_strictly(model, weights, path)
    return model.eval().requires_grad_(False), tokenizer


def sweep() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The change of each policy's tensors (`0.h.0.attn.c_attn.weight.A`), and what each earns."""
    return load_weights(SWEEP, "sweep_of_policies")


def change_of_policy(tensors: Mapping[str, Tensor], place: int) -> dict[str, Tensor]:
    """The tensors of one policy of the sweep, under their own names."""
    own = f"{place}."
    return {n.removeprefix(own): tensor for n, tensor in tensors.items() if n.startswith(own)}


@torch.no_grad()
def changed(base: GPT, change: Mapping[str, Tensor]) -> GPT:
    """The base with a change added: of a vector itself, of a matrix its factors B and A."""
    model = copy.deepcopy(base)
    for name, weight in model.named_parameters():
        if name in change:
            weight.add_(change[name].float())
        elif f"{name}.A" in change:
            weight.add_(change[f"{name}.B"].float() @ change[f"{name}.A"].float())
    return model.eval()


# --- how a descendant is stored -------------------------------------------------------------------


def difference(base: Mapping[str, Tensor], trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What training has changed: matrices as int8 with one scale a row, the rest in float32.

    Names that the base lacks (a head, a normalisation) are stored as they are.
    """
    stored: dict[str, Tensor] = {}
    for name, weight in trained.items():
        change = weight.float() - base[name].float() if name in base else weight.float()
        if name not in base or change.ndim < 2:
            stored[name] = change
            continue
        scale = change.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        stored[name] = (change / scale).round().to(torch.int8)
        stored[f"{name}.scale"] = scale
    return stored


def add_difference(base: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The float32 weights of a descendant: the opposite of `difference`."""
    weights = {}
    for name, change in stored.items():
        if name.endswith(".scale"):
            continue
        if f"{name}.scale" in stored:
            change = change.float() * stored[f"{name}.scale"]
        weights[name] = base[name].float() + change if name in base else change
    return weights


def finished_demo(run: Path) -> dict[str, Any]:
    """The results.json of a scripts/demo.py that has ended; else a UserError."""
    if not (run / "results.json").exists():
        raise UserError(f"{display_path(run)} is no finished demo: it holds no results.json")
    return read_json(run / "results.json")


def differences(
    run: Path,
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """A demo's base in bfloat16, what training has changed in policy and judge, the judge's header."""
    model, _ = load_weights(run / "pretraining", "gpt")
    rounded = {name: weight.to(torch.bfloat16) for name, weight in model.items()}
    trained, _ = load_weights(run / "grpo", "gpt")
    judge, about = load_weights(run / "reward_model", "reward_model")
    trunk = {f"gpt.{name}": weight for name, weight in rounded.items()}
    return rounded, difference(rounded, trained), difference(trunk, judge), about


def keep(run: Path) -> None:
    """Write the three files from a finished run of scripts/demo.py."""
    rounded, trained, judge, of_judge = differences(run)
    abouts = [load_weights(run / name, "gpt")[1] for name in ("pretraining", "grpo")]
    save_weights(FILES["base"], rounded, "gpt", abouts[0])
    save_weights(FILES["policy"], trained, "gpt_difference", abouts[1])
    save_weights(FILES["reward_model"], judge, "reward_model_difference", of_judge)


@dataclass(frozen=True)
class KeepConfig:
    """What to keep: the models of a finished demo."""

    run: Path
    """Folder of a finished scripts/demo.py."""


def main(config: KeepConfig) -> None:
    finished_demo(config.run)
    keep(config.run)
    size = sum(path.stat().st_size for path in FILES.values())
    print(f"kept {len(FILES)} models in {display_path(FOLDER)}, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    run_command(main, KeepConfig)
