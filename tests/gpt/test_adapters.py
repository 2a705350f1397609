"""peft's adapters: merged as peft computes them, written as it reads them, refused by name otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from toys import GLASSBOX, bytes_form, chat_tokenizer, published_tokenizer, random_gpt, random_llama

from gpt.adapters import save_adapter
from gpt.checkpoint import save_gpt
from gpt.folder import ModelFolder, open_model, published_start
from gpt.huggingface import hub_config, save_hf
from gpt.lora import add_adapters
from gpt.model import GPT
from harness.errors import UserError
from harness.files import files_read, read_object, reading, write_json

IDS = torch.tensor([[5, 17, 3, 60, 9, 21, 8], [44, 2, 7, 7, 30, 12, 1]])
KINDS: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True, "d_head": 8, "own_head": True},
}  # fmt: skip
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def model_of(kind: str, seed: int = 0, vocab: int = 61) -> GPT:
    if kind == "gpt2":
        return random_gpt(vocab, 32, seed=seed, n_embd=16)
    return random_llama(vocab, 32, seed=seed, **KINDS[kind])


def logits(folder: Path | str) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = ModelFolder.open(folder).model()(IDS)
    return found


def adapter_in(folder: Path, base: str = "../base", **settings: Any) -> Path:
    """Of two matrices of a Llama, at ranks 2, by hand: A and B have other numbers at every place."""
    tensors = {}
    for at, (rows, columns) in {"mlp.up_proj": (24, 16), "self_attn.k_proj": (8, 16)}.items():
        name = f"base_model.model.model.layers.1.{at}"
        tensors[f"{name}.lora_A.weight"] = torch.arange(2.0 * columns).view(2, -1).sin() / 2
        tensors[f"{name}.lora_B.weight"] = torch.arange(2.0 * rows).view(-1, 2).cos() / 2
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    about = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "base_model_name_or_path": base}
    write_json(folder / "adapter_config.json", about | settings)
    return folder


@pytest.fixture
def base(tmp_path: Path) -> GPT:
    model = model_of("llama")
    save_hf(model, tmp_path / "base")
    return model


@pytest.mark.parametrize(
    "settings, scale",
    [
        ({}, 3.0),
        ({"use_rslora": True}, 6 / 2**0.5),
        ({"alpha_pattern": {"up_proj": 1, "k_proj": 3}}, 0.5),
        ({"alpha_pattern": {r"layers\.1\.mlp\.up_proj": 4}}, 2.0),
        ({"r": 9, "rank_pattern": {".*_proj": 2}, "fan_in_fan_out": True}, 3.0),
    ],
)
def test_a_matrix_is_the_base_and_the_scaled_product(base, tmp_path, settings, scale) -> None:
    found = ModelFolder.open(adapter_in(tmp_path / "adapter", **settings))
    assert (found.shape, found.weights) == (base.config, base.parameter_count())
    before, after = (m.h[1].mlp.up_proj.weight.detach() for m in (base, found.model()))
    a = [[torch.tensor(float(16 * r + c)).sin() / 2 for c in range(16)] for r in range(2)]
    b = [[torch.tensor(float(2 * o + r)).cos() / 2 for r in range(2)] for o in range(24)]
    for o, c in ((0, 0), (5, 2), (2, 5), (23, 15)):
        change = sum(float(b[o][r] * a[r][c]) for r in range(2))
        assert float(after[o, c] - before[o, c]) == pytest.approx(scale * change, abs=1e-5)
    assert torch.equal(found.model().h[0].mlp.up_proj.weight, base.h[0].mlp.up_proj.weight)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "kind, settings",
    [
        ("gpt2", dict(target_modules=["c_attn"], fan_in_fan_out=True)),
        ("gpt2", dict(target_modules=["c_attn", "c_fc", "c_proj"], use_rslora=True)),
        ("llama", dict(target_modules=["q_proj", "v_proj"])),
        ("llama", dict(target_modules=ALL, rank_pattern={"q_proj": 5}, alpha_pattern={"mlp.*": 1})),
        ("qwen2", dict(target_modules="all-linear")),
        ("qwen3", dict(target_modules=ALL, layers_to_transform=[1])),
    ],
)
@torch.no_grad()
def test_logits_are_pefts(kind, settings, tmp_path, require) -> None:
    transformers, peft = require("transformers"), require("peft")
    save_hf(model_of(kind), tmp_path / "base")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=7, lora_dropout=0.1, **settings)
    theirs = peft.get_peft_model(theirs, config).eval()
    for name, weight in theirs.named_parameters():
        if "lora_B" in name:
            weight.normal_(0, 0.3)
    theirs.save_pretrained(tmp_path / "adapter")
    assert (logits(tmp_path / "base") - logits(tmp_path / "adapter")).abs().max() > 0.1
    torch.testing.assert_close(
        logits(tmp_path / "adapter"), theirs(IDS).logits, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
@torch.no_grad()
def test_what_lora_has_trained_is_written_for_peft(kind, tmp_path) -> None:
    """Of merged weights, and peft gives the same logits; the rank may be more than is in use."""
    save_hf(model_of(kind), tmp_path / "base")
    base = ModelFolder.open(tmp_path / "base")
    trained = add_adapters(base.model(), 3)
    for name, weight in trained.named_parameters():
        if "lora_B" in name and "h.0.attn" not in name:
            weight.normal_(0, 0.3)
    save_gpt(tmp_path / "run" / "model.safetensors", trained, GLASSBOX)
    merged = base.model()
    merged.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    there = save_adapter(merged, base, 3, tmp_path / "adapter", "run")
    assert there == str((tmp_path / "base").resolve())
    assert read_object(tmp_path / "adapter" / "adapter_config.json")["lora_alpha"] == 6
    torch.testing.assert_close(logits(tmp_path / "adapter"), trained(IDS), atol=1e-5, rtol=1e-5)
    save_hf(model_of(kind, seed=1), tmp_path / "base")  # another one has come there
    with pytest.raises(UserError):
        save_adapter(merged, ModelFolder.open(tmp_path / "base"), 3, tmp_path / "adapter", "run")


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
@torch.no_grad()
def test_peft_opens_what_is_written(kind, tmp_path, require) -> None:
    transformers, peft = require("transformers"), require("peft")
    save_hf(model_of(kind), tmp_path / "base")
    base = ModelFolder.open(tmp_path / "base")
    trained = base.model()
    for name, weight in trained.named_parameters():
        if name.removesuffix(".weight").endswith(trained.projections):
            weight += torch.randn(len(weight), 2) @ torch.randn(2, weight.shape[1]) / 4
    save_adapter(trained, base, 2, tmp_path / "adapter", "run")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    torch.testing.assert_close(theirs(IDS).logits, trained(IDS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"use_dora": True}, {"bias": "all"}, {"modules_to_save": ["lm_head"]}, {"lora_bias": True},
        {"peft_type": "IA3"}, {"init_lora_weights": "pissa"}, {"task_type": "SEQ_CLS"},
        {"trainable_token_indices": [3]}, {"layer_replication": [[0, 2]]}, {"what_comes_next": 1},
    ],
    ids=lambda settings: next(iter(settings)),
)  # fmt: skip
def test_what_is_not_computed_is_refused_by_name(base, tmp_path, settings) -> None:
    folder = adapter_in(tmp_path / "adapter", **settings)
    with pytest.raises(UserError, match=next(iter(settings))):
        ModelFolder.open(folder)


@pytest.mark.parametrize("named", ["../none", "", ".", "../other"])
def test_a_base_that_is_none_is_refused(base, tmp_path, named) -> None:
    adapter_in(tmp_path / "other")
    with pytest.raises(UserError, match="adapter"):
        ModelFolder.open(adapter_in(tmp_path / "adapter", named))


def test_an_adapter_of_another_base_is_refused_with_both_names(base, tmp_path) -> None:
    save_hf(model_of("gpt2"), tmp_path / "gpt")
    save_hf(random_llama(61, 32, n_inner=32), tmp_path / "wide")
    for number, changes in enumerate(({"base": "../gpt"}, {"base": "../wide"}, {"r": 3})):
        found = ModelFolder.open(adapter_in(tmp_path / f"adapter-{number}", **changes))
        with pytest.raises(UserError, match=rf"adapter-{number}.*(gpt|wide|base)"):
            found.model()


def test_a_damaged_adapter_is_refused(base, tmp_path) -> None:
    folder = adapter_in(tmp_path / "adapter")
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    half = {name: x for name, x in tensors.items() if "lora_A" in name}
    other = tensors | {"base_model.model.lm_head.weight": torch.ones(2)}
    broken = {name: x / 0 for name, x in tensors.items()}
    for changed in (half, other, broken, {}):
        save_file(changed, file, {"format": "pt"})
        with pytest.raises(UserError):
            ModelFolder.open(folder).model()
    for settings in ({"r": "two"}, {"r": 0}, {"rank_pattern": {"[": 2}}, {"lora_alpha": None}):
        with pytest.raises(UserError):
            ModelFolder.open(adapter_in(tmp_path / "adapter", **settings)).model()
    file.rename(folder / "adapter_model.bin")
    with pytest.raises(UserError, match="safetensors"):
        ModelFolder.open(folder).model()


def test_the_tokenizer_beside_an_adapter_counts_else_the_bases(tmp_path) -> None:
    plain = published_tokenizer(bytes_form(["<|e|>"]), 256)
    chat = chat_tokenizer("smollm2")
    save_hf(model_of("llama", vocab=chat.n_vocab), tmp_path / "base", plain)
    folder = adapter_in(tmp_path / "adapter")
    found = ModelFolder.open(folder)
    model, tokenizer = open_model(folder)
    assert (found.chat_template, model.n_text, tokenizer.n_vocab) == (None, 257, 257)
    save_hf(model_of("llama", vocab=chat.n_vocab), tmp_path / "other", chat)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "other" / name).rename(folder / name)
    with reading():
        found = ModelFolder.open(folder)
        model, tokenizer = open_model(folder)
        read = {path.name for path in files_read() if path.parent == folder}
    assert (found.chat_template, model.n_text) == (chat.chat_template, chat.n_vocab)
    assert tokenizer.fingerprint == chat.fingerprint and tokenizer.chat is not None
    ours = {"tokenizer.json", "tokenizer_config.json"}  # whose digests a run keeps
    assert read == {"adapter_config.json", "adapter_model.safetensors"} | ours


def test_runs_over_an_adapter_come_from_its_base(base, tmp_path) -> None:
    folder = adapter_in(tmp_path / "adapter")
    assert ModelFolder.open(folder).name == "base"
    assert published_start({"model": str(folder)}) == "base"
    assert hub_config(ModelFolder.open(folder).model())["model_type"] == "llama"


def test_an_adapter_may_be_of_a_run(tmp_path) -> None:
    save_gpt(
        tmp_path / "run" / "model.safetensors", model_of("llama", vocab=GLASSBOX.n_vocab), GLASSBOX
    )
    write_json(tmp_path / "run" / "config.json", {"preset": "tiny"})
    found = ModelFolder.open(adapter_in(tmp_path / "adapter", "../run"))
    assert (found.preset, found.tokenizer().name) == ("tiny", "glassbox")
    assert Path(found.run["model"]).resolve() == tmp_path / "run"
    assert found.model().h[1].mlp.up_proj.weight.shape == (24, 16)
