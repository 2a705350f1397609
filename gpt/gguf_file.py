"""A model as one GGUF file, which llama.cpp and what is built on it (ollama, LM Studio) open.

Its matrices are (out, in) as here, under names of its own. One thing moves: where the kind is "llama",
llama.cpp turns neighbours (x_2i, x_2i+1) and not (x_i, x_(i + d/2)), so the rows of each head of queries
and keys are put in that order. And a text is cut into pieces by a pattern that llama.cpp knows by name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.huggingface import hub_config, their_name
from gpt.llama import LlamaConfig, speeds
from gpt.lora import merged_state
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from gpt.tokenizer_files import Published, form_of_ranks
from harness.errors import UserError
from harness.files import write_atomically

KINDS = ("gpt2", "llama", "qwen2", "qwen3")  # here and in llama.cpp by one name
CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What cuts a text in tokenizer.json -> llama.cpp's name. ByteLevel cuts as GPT-2 does.
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
        install = f'needs {error.name}: run pip install -e ".[gguf]"'
        raise UserError(f"{path}: a GGUF file {install}") from error
    shape, about = model.config, hub_config(model)
    kind, form = about["model_type"], tokenizer_form(tokenizer)
    cut = "gpt-2" if tokenizer.name == "gpt2" else NAMES.get(pieces_of(form))
    if kind not in KINDS or cut is None:
        lacks = f"for the tokenizer {tokenizer.name!r}" if kind in KINDS else f"for a {kind}"
        raise UserError(
            f"{path}: llama.cpp has no name {lacks}: export it with --hf, or train a published model "
            f"that is one of {', '.join(KINDS)}"
        )

    def write(temporary: Path) -> None:
        """Fill the temporary file."""
        out = gguf.GGUFWriter(temporary, kind)
        narrow = dtype == torch.bfloat16
        out.add_name(name)
        out.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if narrow else gguf.LlamaFileType.ALL_F32)
        out.add_vocab_size(shape.vocab_size)
        out.add_context_length(shape.context)
        out.add_embedding_length(shape.n_embd)
        out.add_block_count(shape.n_layer)
        out.add_head_count(shape.n_head)
        if isinstance(shape, LlamaConfig):
            out.add_feed_forward_length(shape.n_inner)
            out.add_head_count_kv(shape.n_key_head)
            out.add_layer_norm_rms_eps(shape.norm_eps)
            out.add_rope_freq_base(shape.rope_base)
            for add in (out.add_key_length, out.add_value_length, out.add_rope_dimension_count):
                add(shape.head_width)
        else:
            out.add_feed_forward_length(4 * shape.n_embd)
            out.add_layer_norm_eps(about["layer_norm_epsilon"])
        add_tokenizer(out, gguf, form, tokenizer, shape.vocab_size, cut)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], shape.n_layer)
        for own, x in tensors_of(model, kind).items():
            there = names.get_name(their_name(own, shape), (".weight", ".bias")) or own
            array, as_type = x.contiguous().numpy(), None
            if narrow and x.ndim > 1:
                as_type = gguf.GGMLQuantizationType.BF16
                array = gguf.quants.quantize(array, as_type)
            out.add_tensor(there, array, raw_dtype=as_type)
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()

    write_atomically(path, write)


def tensors_of(model: GPT, kind: str) -> dict[str, Tensor]:
    """The tensors in float32, rows in llama.cpp's order; how much slower pairs turn, where some do."""
    shape, tensors = model.config, merged_state(model)
    heads = {"q_proj.weight": shape.n_head, "k_proj.weight": getattr(shape, "n_key_head", 0)}
    for name, x in tensors.items():
        x = x.detach().cpu().float()
        count = heads.get(name.rpartition("attn.")[2]) if kind == "llama" else None
        if count:  # (H, 2, d/2, D): the halves of each head become neighbours
            x = x.view(count, 2, -1, x.shape[1]).transpose(1, 2).reshape(x.shape)
        tensors[name] = x
    if isinstance(shape, LlamaConfig) and shape.rope_factor:
        turn = shape.head_width, shape.rope_base
        tensors["rope_freqs.weight"] = speeds(*turn) / speeds(*turn, shape.rope_factor)
    return tensors


def tokenizer_form(tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokenizer.json of a tokenizer."""
    if isinstance(tokenizer, Published):
        found: dict[str, Any] = json.loads(tokenizer.source)
        return found
    encoding = tokenizer.encoding
    return form_of_ranks(encoding._mergeable_ranks, encoding._pat_str, encoding._special_tokens)


def pieces_of(form: dict[str, Any]) -> tuple[str, ...]:
    """What cuts a text, in order: kinds, and of those with a pattern the pattern."""
    first = form.get("pre_tokenizer") or {}
    steps = first.get("pretokenizers", [first])
    own = (step.get("pattern", {}).get("Regex") or step.get("type") for step in steps)
    return tuple(name for name, step in zip(own, steps, strict=True) if step.get("use_regex", True))


def add_tokenizer(
    out: Any, gguf: Any, form: dict[str, Any], tokenizer: Tokenizer, rows: int, cut: str
) -> None:
    """Vocabulary, merges and special tokens; rows without text are named as llama.cpp's converter does."""
    added = {token["id"]: token for token in form["added_tokens"]}
    texts = {id: text for text, id in form["model"]["vocab"].items()}
    texts |= {id: token["content"] for id, token in added.items()}
    kind, kinds = gguf.TokenType, list[int]()
    for id in range(rows):
        special = kind.CONTROL if added.get(id, {}).get("special") else kind.USER_DEFINED
        kinds.append(special if id in added else kind.NORMAL if id in texts else kind.UNUSED)
    merges = form["model"]["merges"]
    out.add_tokenizer_model("gpt2")  # byte pairs
    out.add_tokenizer_pre(cut)
    out.add_token_list([texts.get(id, f"[PAD{id}]") for id in range(rows)])
    out.add_token_types(kinds)
    out.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    out.add_eos_token_id(tokenizer.eos_id)
    out.add_pad_token_id(tokenizer.pad_id)
    if tokenizer.bos_id is not None:
        out.add_bos_token_id(tokenizer.bos_id)
    out.add_add_bos_token(bool(getattr(tokenizer, "begin", ())))
    if tokenizer.chat is not None:
        out.add_chat_template(tokenizer.chat_template)
