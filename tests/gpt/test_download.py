"""Downloading published weights, against a small hub on this machine."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from gpt import pretrained
from gpt.common import UserError
from gpt.model import GPT, PRESETS, GPTConfig
from gpt.pretrained import PublishedFile, download_gpt2, load_gpt2, save_gpt2

TINY = GPTConfig(vocab_size=61, context=16, n_layer=1, n_head=2, n_embd=8)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "gpt2-medium"  # not pinned, so the hub states what the file is


class Hub(ThreadingHTTPServer):
    """Answers as the hub does: /ORG/NAME/resolve/REVISION/FILE leads to /storage, which has ranges.

    The attributes are the ways in which a hub, a proxy or a line can be bad.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.stated = {
            "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Linked-Size": str(len(content)),
            "X-Repo-Commit": COMMIT,
        }
        self.status = 302  # of the resolve address
        self.content_type = "application/octet-stream"
        self.cut_after: int | None = None  # bytes of one answer
        self.has_ranges = True
        self.range_shift = 0  # a server that sends other bytes than asked for
        self.says_length = True
        self.seen: list[tuple[str, str, str | None]] = []  # method, path, Range

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def seen_paths(self, method: str) -> list[str]:
        return [path for verb, path, _ in self.seen if verb == method]


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.server.seen.append((self.command, self.path, self.headers["Range"]))
        if self.path == "/storage":
            self.send_content()
            return
        self.send_response(self.server.status)
        for name, value in {**self.server.stated, "Location": "/storage"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_content(self) -> None:
        hub, start = self.server, 0
        if self.headers["Range"] and hub.has_ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", self.headers["Range"]).group(1))
            start += hub.range_shift
            self.send_response(206)
            total = len(hub.content)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        body = hub.content[start:]
        self.send_header("Content-Type", hub.content_type)
        if hub.says_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: hub.cut_after])  # HTTP/1.0: the connection closes after an answer


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model.safetensors."""
    folder = tmp_path_factory.mktemp("tiny")
    save_gpt2(GPT(TINY).initialize(torch.Generator().manual_seed(0)), folder)
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture
def hub(content: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub whose gpt2 and gpt2-medium are the same tiny model; HF_ENDPOINT leads to it."""
    with Hub(content) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", server.url + "/")
        monkeypatch.setattr(pretrained, "CHUNK", 100)  # a cut loses the piece that it falls into
        monkeypatch.setitem(PRESETS, "gpt2", TINY)
        monkeypatch.setitem(PRESETS, NAME, TINY)
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def pinned(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> PublishedFile:
    """gpt2 pinned to the tiny file."""
    digest = hashlib.sha256(hub.content).hexdigest()
    published = PublishedFile("c" * 40, len(hub.content), digest)
    monkeypatch.setitem(pretrained.PINNED, "gpt2", published)
    return published


def refused(cache: Path, sentence: str, name: str = NAME) -> str:
    with pytest.raises(UserError, match=sentence) as raised:
        download_gpt2(name, cache=cache)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def files(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


def only_part(cache: Path) -> Path:
    (part,) = (path for path in cache.rglob("*") if path.is_file())
    assert part.suffix == ".part"
    return part


FINISHED = ["config.json", "download.json", "model.safetensors"]


# whole files


def test_whole_file(hub, tmp_path):
    folder = download_gpt2(NAME, cache=tmp_path)
    assert folder == tmp_path / NAME
    assert files(tmp_path) == FINISHED
    assert (folder / "model.safetensors").read_bytes() == hub.content
    assert json.loads((folder / "download.json").read_text()) == {
        "url": f"{hub.url}/openai-community/{NAME}/resolve/{COMMIT}/model.safetensors",
        "revision": COMMIT,
        "size": len(hub.content),
        "sha256": hashlib.sha256(hub.content).hexdigest(),
    }


def test_the_file_comes_from_the_commit_whose_hash_was_stated(hub, tmp_path):
    """Not from "main" twice: that could move between the two requests."""
    download_gpt2(NAME, cache=tmp_path)
    address = f"/openai-community/{NAME}/resolve"
    assert hub.seen_paths("HEAD") == [f"{address}/main/model.safetensors"]
    assert hub.seen_paths("GET") == [f"{address}/{COMMIT}/model.safetensors", "/storage"]


def test_model_by_name(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSBOX_CACHE", str(tmp_path))
    model = load_gpt2(NAME)
    expected = GPT(TINY).initialize(torch.Generator().manual_seed(0))
    assert model.config == TINY
    for name, weight in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
    assert load_gpt2(tmp_path / NAME).config == TINY  # the cache is a folder like any other


def test_second_time_needs_no_network(hub, tmp_path, monkeypatch):
    download_gpt2(NAME, cache=tmp_path)
    hub.seen.clear()
    monkeypatch.setenv("HF_ENDPOINT", "https://huggingface.co")
    assert download_gpt2(NAME, cache=tmp_path) == tmp_path / NAME
    assert hub.seen == []


def test_cache_folders(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.delenv("GLASSBOX_CACHE", raising=False)
    assert download_gpt2(NAME) == tmp_path / "home" / ".cache" / "glassbox" / NAME
    monkeypatch.setenv("GLASSBOX_CACHE", str(tmp_path / "variable"))
    assert download_gpt2(NAME) == tmp_path / "variable" / NAME
    assert download_gpt2(NAME, cache=tmp_path / "given") == tmp_path / "given" / NAME


def test_endpoint_argument_wins_over_the_variable(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert download_gpt2(NAME, cache=tmp_path, endpoint=hub.url) == tmp_path / NAME


# gpt2, whose file is pinned


def test_published_gpt2():
    assert pretrained.PINNED == {
        "gpt2": PublishedFile(
            "607a30d783dfa663caf39e06633721c8d4cfcd7e",
            548_105_171,
            "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
        )
    }


def test_pinned_file_is_asked_for_by_its_revision(hub, pinned, tmp_path):
    hub.stated = {}  # a mirror that states nothing is enough
    download_gpt2("gpt2", cache=tmp_path)
    assert files(tmp_path) == FINISHED
    assert hub.seen_paths("HEAD") == []
    wanted = f"/openai-community/gpt2/resolve/{'c' * 40}/model.safetensors"
    assert hub.seen_paths("GET")[0] == wanted


def test_pinned_hash_wins_over_what_the_hub_states(hub, pinned, tmp_path):
    hub.content = bytes(len(hub.content))
    hub.stated["X-Linked-Etag"] = f'"{hashlib.sha256(hub.content).hexdigest()}"'
    refused(tmp_path, f"has sha256 .* instead of {pinned.sha256}, so it was removed", "gpt2")
    assert files(tmp_path) == []


def test_file_put_there_by_hand(hub, pinned, tmp_path):
    """As the sentence for a machine without network says."""
    path = tmp_path / "gpt2" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(hub.content)
    assert load_gpt2("gpt2", cache=tmp_path).config == TINY
    assert hub.seen == [] and files(tmp_path) == FINISHED


@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: c[:-1] + b"?"])
def test_wrong_file_put_there_by_hand_is_not_touched(hub, pinned, tmp_path, change):
    path = tmp_path / "gpt2" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(change(hub.content))
    refused(tmp_path, r"model\.safetensors has .* instead of .*: delete it", "gpt2")
    assert path.read_bytes() == change(hub.content)


def test_file_that_changed_after_it_was_recorded(hub, pinned, tmp_path):
    path = download_gpt2("gpt2", cache=tmp_path) / "model.safetensors"
    path.write_bytes(hub.content[:-5])
    refused(tmp_path, f"has {len(hub.content) - 5} bytes instead of {len(hub.content)}", "gpt2")
    path.unlink()
    assert download_gpt2("gpt2", cache=tmp_path) and path.read_bytes() == hub.content


def test_record_of_another_version_of_the_pinned_file_does_not_count(hub, pinned, tmp_path):
    folder = download_gpt2("gpt2", cache=tmp_path)
    record = json.loads((folder / "download.json").read_text())
    (folder / "download.json").write_text(json.dumps({**record, "sha256": "0" * 64}))
    (folder / "model.safetensors").write_bytes(bytes(len(hub.content)))
    refused(tmp_path, "has sha256 .*: delete it", "gpt2")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"size": "5"}'])
def test_damaged_record_is_written_again(hub, pinned, tmp_path, text):
    folder = download_gpt2("gpt2", cache=tmp_path)
    whole = (folder / "download.json").read_text()
    (folder / "download.json").write_text(text)
    hub.seen.clear()
    download_gpt2("gpt2", cache=tmp_path)
    assert (folder / "download.json").read_text() == whole and hub.seen == []


# broken lines


@pytest.mark.parametrize("says_length", [True, False])
def test_cut_transfer_is_continued(hub, tmp_path, says_length):
    hub.cut_after, hub.says_length = 1000, says_length
    size = len(hub.content)
    message = refused(tmp_path, f"stopped at 1000 of {size} bytes .* run the same command again")
    assert "could not be reached" not in message
    assert only_part(tmp_path).read_bytes() == hub.content[:1000]
    hub.cut_after = 500
    refused(tmp_path, f"stopped at 1500 of {size} bytes")
    hub.cut_after = None
    download_gpt2(NAME, cache=tmp_path)
    ranges = [wanted for _, path, wanted in hub.seen if path == "/storage"]
    assert ranges == [None, "bytes=1000-", "bytes=1500-"]
    assert (tmp_path / NAME / "model.safetensors").read_bytes() == hub.content
    assert files(tmp_path) == FINISHED


def test_server_without_ranges_starts_anew(hub, tmp_path):
    hub.cut_after, hub.has_ranges = 1000, False
    refused(tmp_path, "stopped at 1000")
    hub.cut_after = 700
    refused(tmp_path, "stopped at 700")
    hub.cut_after = None
    download_gpt2(NAME, cache=tmp_path)
    assert (tmp_path / NAME / "model.safetensors").read_bytes() == hub.content


def test_server_that_sends_other_bytes_than_asked_for(hub, tmp_path):
    hub.cut_after = 1000
    refused(tmp_path, "stopped at 1000")
    hub.cut_after, hub.range_shift = None, -10
    refused(tmp_path, "answered 206 .* with other bytes than the ones from 1000 on")
    assert only_part(tmp_path).read_bytes() == hub.content[:1000]


def test_part_of_another_version_is_not_continued(hub, tmp_path):
    hub.cut_after = 1000
    refused(tmp_path, "stopped at 1000")
    hub.cut_after, hub.content = None, b"x" + hub.content[1:]
    hub.stated["X-Linked-Etag"] = f'"{hashlib.sha256(hub.content).hexdigest()}"'
    download_gpt2(NAME, cache=tmp_path)
    assert (tmp_path / NAME / "model.safetensors").read_bytes() == hub.content


def test_complete_part_is_only_verified(hub, tmp_path):
    """Stopped between the last byte and the new name."""
    hub.cut_after = 1000
    refused(tmp_path, "stopped at 1000")
    only_part(tmp_path).write_bytes(hub.content)
    hub.seen.clear()
    download_gpt2(NAME, cache=tmp_path)
    assert hub.seen_paths("GET") == [] and files(tmp_path) == FINISHED


def test_part_that_is_too_long_is_removed(hub, tmp_path):
    hub.cut_after = 1000
    refused(tmp_path, "stopped at 1000")
    only_part(tmp_path).write_bytes(hub.content + b"x")
    hub.cut_after = None
    refused(tmp_path, f"has {len(hub.content) + 1} bytes instead of .* removed: try again")
    download_gpt2(NAME, cache=tmp_path)


# wrong files


def test_wrong_hash_removes_the_file(hub, tmp_path):
    hub.content = bytes(len(hub.content))
    message = refused(tmp_path, "so it was removed: try again")
    assert hashlib.sha256(hub.content).hexdigest() in message
    assert hub.stated["X-Linked-Etag"].strip('"') in message
    assert files(tmp_path) == []


def test_damaged_first_half_is_noticed_after_the_second(hub, tmp_path):
    hub.cut_after = 1000
    refused(tmp_path, "stopped at 1000")
    only_part(tmp_path).write_bytes(bytes(1000))
    hub.cut_after = None
    refused(tmp_path, "has sha256 .* so it was removed")
    assert files(tmp_path) == []


@pytest.mark.parametrize("extra", [-3, 3])
def test_wrong_size_is_refused_before_the_transfer(hub, tmp_path, extra):
    size = len(hub.content)
    hub.content = hub.content[:extra] if extra < 0 else hub.content + bytes(extra)
    refused(tmp_path, f"offers {size + extra} bytes where {size} were expected")
    assert files(tmp_path) == []


def test_longer_answer_of_unknown_length_is_cut_short_and_removed(hub, tmp_path):
    size = len(hub.content)
    hub.content, hub.says_length = hub.content + bytes(100_000), False
    message = refused(tmp_path, f"bytes instead of {size}, so it was removed")
    received = int(re.search(r"has (\d+) bytes", message).group(1))
    assert size < received <= size + 100
    assert files(tmp_path) == []


def test_web_page_instead_of_the_file(hub, tmp_path):
    hub.content_type = "text/html; charset=utf-8"
    refused(tmp_path, "answered with a web page instead of the file .* --weights FOLDER")
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"X-Linked-Etag": '"9eb98c817f04b051b3bcca591bcd4e03cec88018"'},  # a small file's git hash
        {"X-Linked-Etag": ""},
        {"X-Linked-Size": "many"},
        {"X-Repo-Commit": "../main"},
    ],
)
def test_hub_that_does_not_state_the_file(hub, tmp_path, changes):
    hub.stated.update(changes)
    refused(tmp_path, "does not state its file's sha256, size and commit .* could not be verified")
    assert hub.seen_paths("GET") == []


# no file at all


@pytest.mark.parametrize(("status", "reason"), [(404, "Not Found"), (503, "Service Unavailable")])
@pytest.mark.parametrize("name", ["gpt2", NAME])
def test_hub_that_refuses(hub, pinned, tmp_path, status, reason, name):
    hub.status, hub.stated = status, {}
    refused(tmp_path, rf"{name}/resolve/.* answered {status} {reason}: elsewhere, fetch", name)
    assert files(tmp_path) == []


def test_answer_that_is_neither_a_file_nor_an_error(hub, pinned, tmp_path):
    hub.status = 204
    refused(tmp_path, "answered 204 No Content: elsewhere, fetch", "gpt2")


def test_offline(tmp_path, monkeypatch):
    """The tests' own network block stands for a laptop without network."""
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    page = "https://huggingface.co/openai-community"
    message = refused(tmp_path, r"could not be reached \(ConnectionError\): ", "gpt2")
    url = f"{page}/gpt2/resolve/607a30d783dfa663caf39e06633721c8d4cfcd7e/model.safetensors"
    assert message.startswith(f"{url} could not be reached")
    assert message.endswith(
        f": elsewhere, fetch config.json and model.safetensors of {page}/gpt2 into one folder and "
        f"pass it with --weights FOLDER, or fetch {url} and save it as "
        f"{tmp_path / 'gpt2' / 'model.safetensors'}"
    )
    message = refused(tmp_path, "could not be reached", "gpt2-xl")
    assert message.endswith(f"of {page}/gpt2-xl into one folder and pass it with --weights FOLDER")
    assert files(tmp_path) == []


def test_offline_load_says_the_same(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    with pytest.raises(UserError, match="could not be reached .* --weights FOLDER"):
        load_gpt2("gpt2-large", cache=tmp_path)


def test_cache_that_cannot_be_written(hub, tmp_path):
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "cannot be written .* GLASSBOX_CACHE")


def test_unknown_name(tmp_path):
    refused(tmp_path, "'gpt3' is not published: choose one of gpt2, gpt2-medium,", "gpt3")
    assert files(tmp_path) == []
