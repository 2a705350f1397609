"""A model as one GGUF file, which llama.cpp and what is built on it (ollama, LM Studio) open.

Its matrices are (out, in) as here, under names of its own. One thing moves: where the kind is "llama",
llama.cpp turns neighbours (x_2i, x_2i+1) and not (x_i, x_(i + d/2)), so the rows of each head of queries
and keys are put in that order. And what cuts a text into pieces must be one that llama.cpp has by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.huggingface import hub_config, their_name
from gpt.llama import LlamaConfig, speeds
from gpt.lora import merged_state
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from gpt.tokenizer_files import form_of
from harness.errors import UserError
from harness.files import write_atomically

KINDS = ("gpt2", "llama", "qwen2", "qwen3")  # here and in llama.cpp by one name
CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What cuts a text in tokenizer.json -> llama.cpp's name of it. ByteLevel cuts as GPT-2 does.
NAMES = {
    ("ByteLevel",): "gpt-2", ("Digits", "ByteLevel"): "smollm",
    (CUT % "",): "qwen2", (CUT % "{1,3}",): "llama-bpe",
}  # fmt: skip


def save_gguf(
    path: Path, model: GPT, tokenizer: Tokenizer, name: str, dtype: torch.dtype = torch.float32
) -> None:
    """Write model and tokenizer into one file, matrices in this dtype.

    UserError without the package gguf, and for a kind or a vocabulary that llama.cpp has no name for.
    """
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise UserError(f'{path} needs {error.name}: run pip install -e ".[gguf]"') from error
    shape, about, form = model.config, hub_config(model), form_of(tokenizer)
    kind, cut = about["model_type"], cut_of(form, tokenizer)
    if kind not in KINDS or cut is None:
        lacks = f"the tokenizer {tokenizer.name!r}" if kind in KINDS else f"a {kind}"
        raise UserError(
            f"{path}: llama.cpp has no name for {lacks}: export the run with --hf, or train a published "
            f"model that is one of {', '.join(KINDS)}"
        )
    kinds, bfloat16 = gguf.GGMLQuantizationType, dtype == torch.bfloat16
    numbers: dict[str, int | float] = {
        "context_length": shape.context, "embedding_length": shape.n_embd, "block_count": shape.n_layer,
        "attention.head_count": shape.n_head, "feed_forward_length": 4 * shape.n_embd,
        "vocab_size": shape.vocab_size,
    }  # fmt: skip
    if isinstance(shape, LlamaConfig):
        widths = ("attention.key_length", "attention.value_length", "rope.dimension_count")
        numbers |= dict.fromkeys(widths, shape.head_width) | {
            "attention.head_count_kv": shape.n_key_head, "feed_forward_length": shape.n_inner,
            "attention.layer_norm_rms_epsilon": shape.norm_eps, "rope.freq_base": shape.rope_base,
        }  # fmt: skip
    else:
        numbers["attention.layer_norm_epsilon"] = about["layer_norm_epsilon"]

    def write(temporary: Path) -> None:
        """Fill the temporary file."""
        out = gguf.GGUFWriter(temporary, kind)
        out.add_name(name)
        out.add_file_type(gguf.LlamaFileType["MOSTLY_BF16" if bfloat16 else "ALL_F32"])
        for key, number in numbers.items():
            add: Any = out.add_uint32 if isinstance(number, int) else out.add_float32
            add(f"{kind}.{key}", number)
        add_tokenizer(out, gguf.TokenType, form, tokenizer, shape.vocab_size)
        out.add_tokenizer_pre(cut)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], shape.n_layer)
        for own, x in tensors_of(model, kind).items():
            stored = kinds.BF16 if bfloat16 and x.ndim > 1 else kinds.F32
            there = names.get_name(their_name(own, shape), (".weight", ".bias")) or own
            array = gguf.quants.quantize(x.contiguous().numpy(), stored)
            out.add_tensor(there, array, raw_dtype=stored)
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()

    write_atomically(path, write)


def tensors_of(model: GPT, kind: str) -> dict[str, Tensor]:
    """The tensors in float32, rows in llama.cpp's order; how much slower pairs turn, where some do."""
    shape = model.config
    tensors = {name: x.detach().cpu().float() for name, x in merged_state(model).items()}
    if isinstance(shape, LlamaConfig) and kind == "llama":
        heads = {"attn.q_proj.weight": shape.n_head, "attn.k_proj.weight": shape.n_key_head}
        for name, x in tensors.items():
            if count := heads.get(".".join(name.split(".")[2:])):
                # (H, 2, d/2, D) -> (H, d/2, 2, D): the halves of a head become neighbours
                tensors[name] = x.view(count, 2, -1, x.shape[1]).transpose(1, 2).reshape(x.shape)
        if shape.rope_factor:
            turn = shape.head_width, shape.rope_base
            tensors["rope_freqs.weight"] = speeds(*turn) / speeds(
                *turn, shape.rope_factor, shape.rope_linear
            )
    return tensors


def cut_of(form: Mapping[str, Any], tokenizer: Tokenizer) -> str | None:
    """llama.cpp's name of what cuts a text in a tokenizer.json; None where it has none."""
    if tokenizer.is_known and tokenizer.name == "gpt2":  # OpenAI's pattern for it, by tiktoken
        return "gpt-2"
    first = form.get("pre_tokenizer") or {}
    steps = [s for s in first.get("pretokenizers", [first]) if s.get("use_regex", True)]
    return NAMES.get(tuple(s.get("pattern", {}).get("Regex") or s.get("type") for s in steps))


def add_tokenizer(
    out: Any, types: Any, form: Mapping[str, Any], tokenizer: Tokenizer, rows: int
) -> None:
    """Vocabulary, merges and special tokens; rows without text are named as llama.cpp's converter does."""
    added = {token["id"]: token for token in form["added_tokens"]}
    texts = {id: text for text, id in form["model"]["vocab"].items()}
    texts |= {id: token["content"] for id, token in added.items()}
    own = {id: types.CONTROL if t["special"] else types.USER_DEFINED for id, t in added.items()}
    kinds = dict.fromkeys(texts, types.NORMAL) | own
    merges = form["model"]["merges"]
    out.add_tokenizer_model("gpt2")  # byte pairs
    out.add_token_list([texts.get(id, f"[PAD{id}]") for id in range(rows)])
    out.add_token_types([kinds.get(id, types.UNUSED) for id in range(rows)])
    out.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    out.add_eos_token_id(tokenizer.eos_id)
    out.add_pad_token_id(tokenizer.pad_id)
    if tokenizer.bos_id is not None:
        out.add_bos_token_id(tokenizer.bos_id)
    out.add_add_bos_token(bool(getattr(tokenizer, "begin", ())))
    if tokenizer.chat is not None:
        out.add_chat_template(tokenizer.chat_template)
