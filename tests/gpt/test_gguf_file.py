"""GGUF files: what llama.cpp reads is the model, row by row, and it answers as ours does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
import toys
from toys import GLASSBOX, TEMPLATES, bytes_form, published_tokenizer, random_gpt

from gpt.generate import SamplingParams, generate
from gpt.gguf_file import CUT, save_gguf
from gpt.llama import Llama, LlamaConfig, speeds
from gpt.model import GPT
from gpt.tokenizer import Tokenizer, build_tokenizer
from gpt.tokenizer_files import BYTE_LEVEL
from harness.errors import UserError

WHOLE = dict(type="Split", behavior="Isolated", invert=False)
BARE = BYTE_LEVEL | {"use_regex": False}
CUTS: dict[str, Any] = {
    "gpt-2": BYTE_LEVEL,
    "smollm": dict(
        type="Sequence", pretokenizers=[dict(type="Digits", individual_digits=True), BYTE_LEVEL]
    ),
    "qwen2": dict(type="Sequence", pretokenizers=[WHOLE | {"pattern": {"Regex": CUT % ""}}, BARE]),
    "llama-bpe": dict(
        type="Sequence", pretokenizers=[WHOLE | {"pattern": {"Regex": CUT % "{1,3}"}}, BARE]
    ),
}
SIZES: dict[str, Any] = dict(n_layer=2, n_head=4, n_embd=32, n_key_head=2, n_inner=48)
KINDS: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True, "d_head": 16, "own_head": True},
}  # fmt: skip
MERGES = ["i t", "it s", "1 2", "Ġ a"]
ENDS = ["<|endoftext|>", "<|im_end|>"]


def tokenizer_of(cut: str) -> Tokenizer:
    form = bytes_form(ENDS, MERGES, pre_tokenizer=CUTS[cut])
    form["added_tokens"].append(
        form["added_tokens"][0] | dict(id=262, content="<think>", special=False)
    )
    template = TEMPLATES["smollm2"]["template"]
    return published_tokenizer(form, 260, cut, chat_template=template if cut == "smollm" else None)


def model_of(kind: str, rows: int, seed: int = 1, **more: Any) -> GPT:
    if kind == "gpt2":
        return random_gpt(rows, 64, seed=seed, scale=0.6, n_embd=32)
    model = Llama(LlamaConfig(rows, 64, **SIZES | KINDS[kind] | more)).eval()
    toys.randomized(model, seed)
    return model


def read(path: Path, require: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors as torch's, and what the fields hold."""
    reader = require("gguf").GGUFReader(path)
    tensors = {each.name: torch.tensor(each.data) for each in reader.tensors}
    return tensors, {name: field.contents() for name, field in reader.fields.items()}


@pytest.mark.parametrize("kind, cut", [("gpt2", "gpt-2"), ("llama", "smollm"), ("qwen3", "qwen2")])
def test_tensors_and_fields_are_the_models(kind, cut, tmp_path, require) -> None:
    model, tokenizer = model_of(kind, 270), tokenizer_of(cut)
    save_gguf(tmp_path / "m.gguf", model, tokenizer, "mine")
    tensors, fields = read(tmp_path / "m.gguf", require)
    assert len(tensors) == len(model.state_dict())
    assert torch.equal(tensors["token_embd.weight"], model.wte.weight)
    block = model.h[1]
    if kind == "gpt2":
        assert torch.equal(tensors["position_embd.weight"], model.wpe.weight)
        assert torch.equal(tensors["blk.1.attn_qkv.weight"], block.attn.c_attn.weight)
        assert torch.equal(tensors["blk.1.ffn_down.bias"], block.mlp.c_proj.bias)
    else:
        width = model.config.head_width
        for name, rows in (("q", block.attn.q_proj.weight), ("k", block.attn.k_proj.weight)):
            found = tensors[f"blk.1.attn_{name}.weight"]
            for head in range(len(rows) // width):
                for i in range(width // 2):  # the pair (x_i, x_(i + d/2)) of a head
                    first, second = head * width + i, head * width + i + width // 2
                    there = head * width + 2 * i
                    pair = (there, there + 1) if kind == "llama" else (first, second)
                    assert torch.equal(found[list(pair)], rows[[first, second]])
        assert torch.equal(tensors["blk.1.attn_v.weight"], block.attn.v_proj.weight)
        assert torch.equal(tensors["blk.1.ffn_norm.weight"], block.ln_2.weight)
        assert ("output.weight" in tensors) == (kind == "qwen3")
        assert fields[f"{kind}.attention.key_length"] == width
        assert fields[f"{kind}.attention.head_count_kv"] == 2
        assert fields[f"{kind}.rope.freq_base"] == 1e5
    assert fields["general.architecture"] == kind and fields["general.name"] == "mine"
    assert (fields[f"{kind}.context_length"], fields[f"{kind}.block_count"]) == (64, 2)
    assert fields["tokenizer.ggml.pre"] == cut
    texts, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    assert texts[256:264] == ["it", "its", "12", "Ġa", *ENDS, "<think>", "[PAD263]"]
    assert types[258:264] == [1, 1, 3, 3, 4, 5]  # normal, control, user's, unused
    assert fields["tokenizer.ggml.merges"] == MERGES
    assert fields["tokenizer.ggml.eos_token_id"] == 260 and len(texts) == 270
    assert ("tokenizer.chat_template" in fields) == (tokenizer.chat is not None)


def test_matrices_in_bfloat16(tmp_path, require) -> None:
    model = model_of("llama", 270)
    save_gguf(tmp_path / "m.gguf", model, tokenizer_of("smollm"), "mine", torch.bfloat16)
    tensors, _ = read(tmp_path / "m.gguf", require)
    found = tensors["token_embd.weight"].view(torch.bfloat16)
    assert torch.equal(found, model.wte.weight.bfloat16())
    assert torch.equal(tensors["output_norm.weight"], model.ln_f.weight)


def test_turns_that_a_factor_slows(tmp_path, require) -> None:
    model = model_of("llama", 270, rope_factor=8.0)
    save_gguf(tmp_path / "m.gguf", model, tokenizer_of("llama-bpe"), "mine")
    tensors, fields = read(tmp_path / "m.gguf", require)
    # Of widths 8 at base 1e5: turns within 8,192 positions 1304, 73.3, 4.12 (not slowed) and 0.23 (by 8).
    assert tensors["rope_freqs.weight"].tolist() == pytest.approx([1, 1, 1, 8])
    assert fields["tokenizer.ggml.pre"] == "llama-bpe"
    assert torch.allclose(tensors["rope_freqs.weight"], speeds(8, 1e5) / speeds(8, 1e5, 8.0))


def test_the_tokenizer_that_tiktoken_runs_is_gpt_2s(tmp_path, require) -> None:
    """Its merges are those of its ranks."""
    require("gguf")
    ranks = {bytes([i]): i for i in range(256)} | {b"it": 256, b"its": 257}
    openais = build_tokenizer("gpt2", ranks, specials={"<|e|>": 258}, end="<|e|>", pad="<|e|>")
    save_gguf(tmp_path / "m.gguf", model_of("gpt2", 259), openais, "mine")
    _, fields = read(tmp_path / "m.gguf", require)
    assert fields["tokenizer.ggml.pre"] == "gpt-2"
    assert fields["tokenizer.ggml.tokens"][256:] == ["it", "its", "<|e|>"]
    assert fields["tokenizer.ggml.merges"] == ["i t", "it s"]


def test_a_folder_that_is_called_gpt2_is_cut_as_its_file_says(tmp_path, require) -> None:
    require("gguf")
    named = replace(tokenizer_of("qwen2"), name="gpt2")
    save_gguf(tmp_path / "m.gguf", model_of("qwen2", 270), named, "mine")
    assert read(tmp_path / "m.gguf", require)[1]["tokenizer.ggml.pre"] == "qwen2"


def test_what_llama_cpp_has_no_name_for_is_refused(tmp_path, require) -> None:
    require("gguf")
    olmo = dict(qk_norm=True, norms_after=True)
    for model, tokenizer in (
        (model_of("gpt2", GLASSBOX.n_vocab), GLASSBOX),
        (model_of("llama", 270, **olmo), tokenizer_of("gpt-2")),
    ):
        with pytest.raises(UserError, match=r"m\.gguf"):
            save_gguf(tmp_path / "m.gguf", model, tokenizer, "mine")
    assert not list(tmp_path.iterdir())


@pytest.mark.oracle
@pytest.mark.parametrize(
    "kind, cut, seed, more",  # of random models, those that are sure of each token and say several
    [
        ("gpt2", "gpt-2", 0, {}),
        ("llama", "smollm", 3, {}),
        ("llama", "llama-bpe", 6, {"rope_factor": 8.0}),
        ("qwen2", "qwen2", 5, {}),
        ("qwen3", "qwen2", 7, {}),
    ],
)
def test_llama_cpp_answers_as_ours_does(kind, cut, seed, more, tmp_path) -> None:
    """Greedily, token for token, from a text whose tokens it finds itself."""
    llama_cpp = pytest.importorskip(
        "xllamacpp", reason="llama.cpp is not here: pip install xllamacpp"
    )
    tokenizer = tokenizer_of(cut)
    model = model_of(kind, tokenizer.n_vocab, seed, **more)
    prompt = "It's its 1234 a\n\n b!"
    ids = tokenizer.encode(prompt)
    greedy = SamplingParams(greedy=True, max_new_tokens=20)
    ours = generate(model, [ids], greedy, eos_id=tokenizer.eos_id).token_lists()[0]
    save_gguf(tmp_path / "m.gguf", model, tokenizer, "mine")
    params = llama_cpp.CommonParams()
    params.model.path = str(tmp_path / "m.gguf")
    params.n_ctx, params.warmup, params.n_gpu_layers, params.cpuparams.n_threads = 64, False, 0, 1
    params.cache_type_k = params.cache_type_v = llama_cpp.ggml_type.GGML_TYPE_F32
    server = llama_cpp.Server(params)
    asked = {"prompt": prompt, "n_predict": 20, "temperature": 0, "return_tokens": True}
    body = json.dumps(asked).encode()
    request = Request(f"{server.listening_address}/completion", body)
    request.add_header("Content-Type", "application/json")
    with urlopen(request, timeout=60) as reply:
        answer = json.load(reply)
    assert answer["tokens_evaluated"] == len(ids)
    assert len(set(ours)) > 3 and answer["tokens"][: len(ours)] == ours
