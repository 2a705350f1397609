"""Weights by name: from a hub's cache made on disk, and from a small hub on this machine."""

from __future__ import annotations

import hashlib
import importlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpt.model import GPT, GPTConfig
from gpt.published import pretrained
from gpt.published.pretrained import PublishedFile, load_gpt2, save_gpt2
from harness.errors import UserError

TINY = GPTConfig(vocab_size=61, context=16, n_layer=1, n_head=2, n_embd=8)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "gpt2-medium"  # not pinned
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def tiny() -> GPT:
    return GPT(TINY).initialize(torch.Generator().manual_seed(0))


def as_shards(folder: Path) -> None:
    """Split a folder's model.safetensors in two, with an index, as transformers does."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    weight_map = {}
    for shard, part in zip(SHARDS, (names[:7], names[7:]), strict=True):
        save_file({name: tensors[name] for name in part}, folder / shard, {"format": "pt"})
        weight_map.update(dict.fromkeys(part, shard))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


@pytest.fixture(params=["one file", "shards"])
def published(request, tmp_path) -> dict[str, bytes]:
    """The files of a model on the hub."""
    save_gpt2(tiny(), tmp_path / "published")
    if request.param == "shards":
        as_shards(tmp_path / "published")
    return {path.name: path.read_bytes() for path in (tmp_path / "published").iterdir()}


one_file = pytest.mark.parametrize("published", ["one file"], indirect=True)


@pytest.fixture
def settings(require, tmp_path, monkeypatch):
    """The settings of huggingface_hub: a cache of the test's own, offline (see conftest)."""
    require("huggingface_hub")
    settings = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(settings, "HF_HUB_CACHE", str(tmp_path / "cache"))
    assert settings.HF_HUB_OFFLINE
    return settings


def put_in_cache(cache: Path, repo: str, files: dict[str, bytes], commit: str, ref: bool) -> None:
    """As the hub's client lays it out: blobs by hash, linked by a snapshot, which a ref names."""
    base = cache / f"models--{repo.replace('/', '--')}"
    for folder in ("blobs", "refs", f"snapshots/{commit}"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        blob = base / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (base / "snapshots" / commit / name).symlink_to(f"../../blobs/{blob.name}")
    if ref:
        (base / "refs" / "main").write_text(commit)


class Hub(ThreadingHTTPServer):
    """Answers /OWNER/NAME/resolve/REVISION/FILE as the hub does; the attributes break it."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.status = 200
        self.error_code = ""
        self.silence = threading.Event()  # set: answers nothing until it is cleared
        self.seen: list[tuple[str, str, str | None]] = []  # method, path, token

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub = self.server
        if "/resolve/" not in self.path:  # newer clients also ask which program is running them
            self.send_error(404)
            return
        hub.seen.append((self.command, self.path, self.headers["authorization"]))
        while hub.silence.is_set():
            time.sleep(0.01)
        content = hub.files.get(self.path.rsplit("/", 1)[1], b"")
        self.send_response(hub.status if hub.status != 200 or content else 404)
        error_code = hub.error_code or ("" if content else "EntryNotFound")
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT if "/main/" in self.path else self.path.split("/")[4],
            "Content-Length": str(len(content)),
            **({"X-Error-Code": error_code} if error_code else {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@contextmanager
def serving(server: Hub) -> Iterator[Hub]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.silence.clear()
            server.shutdown()
            thread.join()


@pytest.fixture
def hub(settings, published, monkeypatch) -> Iterator[Hub]:
    """A hub that holds the same tiny model under every name; the client may ask it alone."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "*")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving(Hub(published)) as server:
        for constant, value in {
            "HF_HUB_OFFLINE": False,
            "ENDPOINT": server.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
        }.items():
            monkeypatch.setattr(settings, constant, value)
        monkeypatch.setattr(pretrained, "HUB_TIMEOUT", 60)  # on a busy machine
        yield server


def pin(monkeypatch, content: bytes, revision: str = "c" * 40) -> str:
    """gpt2 pinned to this file; its sha256."""
    sha256 = hashlib.sha256(content).hexdigest()
    published = PublishedFile(revision, sha256)
    monkeypatch.setitem(pretrained.PINNED, "openai-community/gpt2", published)
    return sha256


def assert_tiny(model: GPT) -> None:
    assert model.config == TINY
    for name, weight in tiny().state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name


def refused(sentence: str, name: str = NAME) -> str:
    with pytest.raises(UserError, match=sentence) as raised:
        load_gpt2(name)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@one_file
def test_cached_gpt2_with_another_hash_is_refused(settings, published, tmp_path, monkeypatch):
    content = published["model.safetensors"]
    sha256 = pin(monkeypatch, content)
    files = {**published, "model.safetensors": content[:-1] + b"?"}
    put_in_cache(tmp_path / "cache", "gpt2", files, COMMIT, ref=True)
    other = hashlib.sha256(files["model.safetensors"]).hexdigest()
    message = refused(f"has sha256 {other} instead of {sha256}: delete that file, and it", "gpt2")
    blob = Path(message.split(" has ")[0])
    assert blob.name == other and not blob.is_symlink()


def test_fetched_once(hub, published, capsys):
    assert_tiny(load_gpt2(NAME))
    base = f"/openai-community/{NAME}/resolve"
    fetched = [path for method, path, _ in hub.seen if method == "GET"]
    assert sorted(path.rsplit("/", 1)[1] for path in fetched) == sorted(published)
    assert all(path.startswith(base) for _, path, _ in hub.seen)
    assert f"downloading {hub.url}{base}/main/config.json" in capsys.readouterr().out
    hub.seen.clear()
    assert_tiny(load_gpt2(NAME))
    assert hub.seen == []


@one_file
def test_gpt2_is_fetched_at_its_pinned_revision(hub, published, monkeypatch):
    pin(monkeypatch, published["model.safetensors"])
    assert_tiny(load_gpt2("gpt2"))
    assert {path.split("/")[4] for _, path, _ in hub.seen} == {"c" * 40}
    hub.seen.clear()
    assert_tiny(load_gpt2("gpt2"))
    assert hub.seen == []


@pytest.mark.parametrize("name", ["gpt3", "hf://gpt2", "hf://a/b/c", "owner/name"])
def test_what_is_no_name_is_a_folder_and_asks_nobody(name):
    refused(r"there is no folder .* gpt2-xl and hf://OWNER/NAME", name)
