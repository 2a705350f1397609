"""Weights by name: from a hub's cache that is made on disk. Nothing here asks a network."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

import pytest
import torch

from gpt.model import GPT, GPTConfig
from gpt.published import REVISIONS, load_gpt2, save_gpt2
from harness.errors import UserError

TINY = GPTConfig(vocab_size=61, context=16, n_layer=1, n_head=2, n_embd=8)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def tiny() -> GPT:
    return GPT(TINY).initialize(torch.Generator().manual_seed(0))


@pytest.fixture
def published(tmp_path) -> dict[str, bytes]:
    """The files of a model on the hub."""
    save_gpt2(tiny(), tmp_path / "published")
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


def refused(name: str) -> str:
    with pytest.raises(UserError) as raised:
        load_gpt2(name)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_gpt2_is_read_at_its_pinned_revision(cache, published, monkeypatch):
    """Not at `main`, which names nothing here."""
    monkeypatch.setitem(REVISIONS, "openai-community/gpt2", COMMIT)
    put_in_cache(cache, "openai-community/gpt2", published, ref="other")
    model = load_gpt2("gpt2")
    assert model.config == TINY
    for name, weight in tiny().state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name


def test_another_model_is_read_at_main(cache, published):
    put_in_cache(cache, "openai-community/gpt2-medium", published, ref="main")
    assert load_gpt2("gpt2-medium").config == TINY


@pytest.mark.parametrize("files", [[], ["config.json"], ["model.safetensors"]])
def test_what_the_cache_lacks_is_refused_without_a_network(cache, published, files):
    kept = {name: content for name, content in published.items() if name in files}
    put_in_cache(cache, "openai-community/gpt2-large", kept, ref="main")
    refused("gpt2-large")


@pytest.mark.parametrize("name", ["gpt3", "hf://gpt2", "hf://a/b/c", "owner/name"])
def test_what_is_no_name_is_a_folder_and_asks_nobody(name):
    refused(name)
