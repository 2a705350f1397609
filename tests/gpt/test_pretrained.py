"""Published weights of GPT-2: old files, what is refused, and models by name, from a cache.

That transformers has the same logits is in test_llama.py (docs/models.md) and rl/test_hub_export.py.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from toys import randomized

from gpt.folder import ModelFolder
from gpt.huggingface import REVISIONS, save_hf
from gpt.model import GPT, GPTConfig
from harness.errors import UserError

SMALL = GPTConfig(vocab_size=61, context=32, n_layer=3, n_head=4, n_embd=16)
ROWS = [[5, 17, 3, 60, 9, 21, 8], [44, 2], [7, 7, 30, 12], [1]]


def random_gpt(config: GPTConfig) -> GPT:
    return randomized(GPT(config).eval(), scale=0.3)


@pytest.fixture
def own_folder(tmp_path):
    """A folder in the layout of the hub."""
    save_hf(random_gpt(SMALL), tmp_path / "own")
    return tmp_path / "own"


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors", {"format": "pt"})


@torch.no_grad()
@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_old_files(own_folder, prefix):
    """No prefix, a mask and a masked_bias in every layer, the tied head spelled out."""

    def age(tensors):
        old = {name.replace("transformer.", prefix): tensor for name, tensor in tensors.items()}
        for layer in range(3):
            mask = torch.ones(1, 1, 32, 32, dtype=torch.uint8).tril()
            old[f"{prefix}h.{layer}.attn.bias"] = mask
            old[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        return {**old, "lm_head.weight": tensors["transformer.wte.weight"].clone()}

    edit_tensors(own_folder, age)
    tokens = torch.tensor([ROWS[0]])
    expected = random_gpt(SMALL)(tokens)
    torch.testing.assert_close(
        ModelFolder.open(own_folder).model()(tokens), expected, atol=1e-5, rtol=0
    )


def test_linear_layout_and_an_adapter_alone_are_refused(own_folder):
    turned = ("c_attn.weight", "c_fc.weight", "c_proj.weight")
    edit_tensors(
        own_folder,
        lambda tensors: {
            n: t.t().contiguous() if n.endswith(turned) else t for n, t in tensors.items()
        },
    )
    with pytest.raises(UserError, match="c_attn"):
        ModelFolder.open(own_folder).model()
    (own_folder / "model.safetensors").rename(own_folder / "adapter_model.safetensors")
    (own_folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError):
        ModelFolder.open(own_folder).model()


def test_an_adapter_beside_full_weights_is_not_ignored(own_folder):
    ModelFolder.open(own_folder).model()
    (own_folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"adapter_config.json"):
        ModelFolder.open(own_folder).model()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "gpt_neo"), ("activation_function", "gelu"), ("model_type", ["gpt2"]),
        ("layer_norm_epsilon", 1e-6),
        ("scale_attn_weights", False), ("scale_attn_by_inverse_layer_idx", True),
        ("reorder_and_upcast_attn", True), ("add_cross_attention", True),
        ("tie_word_embeddings", False), ("n_inner", 48), ("n_head", 3), ("n_layer", None),
        ("n_embd", "16"), ("vocab_size", True), ("n_positions", 0),
        # Sizes that are not stored: before so many layers are built, which would take all memory.
        ("n_layer", 4), ("n_layer", 2), ("n_layer", 1_000_000), ("n_positions", 2**31),
    ],
)  # fmt: skip
def test_other_configs_are_refused(own_folder, key, value):
    edit_config(own_folder, **{key: value})
    refused(own_folder, "own")


def refused(folder: Path, place: str) -> None:
    """In one sentence that names the place."""
    with pytest.raises(UserError) as raised:
        ModelFolder.open(folder).model()
    assert "\n" not in str(raised.value) and place in str(raised.value)


def drop(*names):
    return lambda tensors: {n: t for n, t in tensors.items() if n not in names}


def add(name, tensor):
    return lambda tensors: {**tensors, name: tensor}


WPE, QKV = "transformer.wpe.weight", "transformer.h.0.attn.c_attn.weight"


@pytest.mark.parametrize(
    "change",
    [
        drop(WPE), drop("transformer.wte.weight"), add("score.weight", torch.ones(2)),
        add("wpe.weight", torch.ones(32, 16)), add("transformer.h.3.ln_1.bias", torch.ones(16)),
        add(WPE, torch.ones(31, 16)), add(WPE, torch.ones(32, 16, dtype=torch.int8)),
        add(QKV, torch.ones(48, 16)), add("lm_head.weight", torch.ones(61, 16)),
    ],
)  # fmt: skip
def test_other_tensors_are_refused(own_folder, change):
    edit_tensors(own_folder, change)
    refused(own_folder, "model.safetensors")


TINY = GPTConfig(vocab_size=61, context=16, n_layer=1, n_head=2, n_embd=8)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def tiny() -> GPT:
    return GPT(TINY).initialize(torch.Generator().manual_seed(0))


@pytest.fixture
def published(tmp_path) -> dict[str, bytes]:
    """The files of a model on the hub."""
    save_hf(tiny(), tmp_path / "published")
    return {path.name: path.read_bytes() for path in (tmp_path / "published").iterdir()}


@pytest.fixture
def cache(require, tmp_path, monkeypatch) -> Path:
    """The cache of huggingface_hub, which is offline (see conftest)."""
    require("huggingface_hub")
    settings = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(settings, "HF_HUB_CACHE", str(tmp_path / "cache"))
    assert settings.HF_HUB_OFFLINE
    return tmp_path / "cache"


def put_in_cache(cache: Path, repo: str, files: dict[str, bytes], ref: str) -> None:
    """As the hub's client lays it out: blobs by hash, linked by a snapshot, which a ref names."""
    base = cache / f"models--{repo.replace('/', '--')}"
    for folder in ("blobs", "refs", f"snapshots/{COMMIT}"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        blob = base / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (base / "snapshots" / COMMIT / name).symlink_to(f"../../blobs/{blob.name}")
    (base / "refs" / ref).write_text(COMMIT)


def test_gpt2_is_read_at_its_pinned_revision(cache, published, monkeypatch):
    """Not at `main`, which names nothing here."""
    monkeypatch.setitem(REVISIONS, "openai-community/gpt2", COMMIT)
    put_in_cache(cache, "openai-community/gpt2", published, ref="other")
    model = ModelFolder.open("gpt2").model()
    assert model.config == TINY
    for name, weight in tiny().state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name


def test_another_model_is_read_at_main(cache, published):
    put_in_cache(cache, "openai-community/gpt2-medium", published, ref="main")
    assert ModelFolder.open("gpt2-medium").model().config == TINY


@pytest.mark.parametrize("files", [[], ["config.json"], ["model.safetensors"]])
def test_what_the_cache_lacks_is_refused_without_a_network(cache, published, files):
    kept = {name: content for name, content in published.items() if name in files}
    put_in_cache(cache, "openai-community/gpt2-large", kept, ref="main")
    with pytest.raises(UserError):
        ModelFolder.open("gpt2-large").model()


@pytest.mark.parametrize("name", ["gpt3", "hf://nobody", "hf://a/b/c", "runs/name"])
def test_what_is_no_name_is_a_folder_and_asks_nobody(name, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        ModelFolder.open(name).model()
