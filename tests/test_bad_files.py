"""Broken files, weights, states and variables end in a UserError that names the place.

None of them hangs, runs foreign code or leaves something behind. What the sentence says else is not
tested: messages are there to be rewritten.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from data.readers import DataError, read_preferences, read_prompts, read_responses, read_text
from gpt.checkpoint import load_gpt, save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.command_line import explained
from harness.errors import UserError
from harness.paths import MODEL_FILE
from harness.ranks import launch
from harness.training_state import TrainingState, read_state
from reward_model import reward_model_training
from reward_model.pair_files import SamePairs, keep_pairs, kept_pairs
from reward_model.pairs import TokenPair
from reward_model.reward_model_training import RewardModelConfig
from rl import doctor, report
from rl.doctor import DoctorConfig
from rl.report import ReportConfig

Break = Callable[[Path], Any]


def refused(place: str, call: Callable[..., Any], *arguments: Any) -> None:
    """It ends in one line that names the place."""
    with pytest.raises((UserError, DataError)) as error:
        call(*arguments)
    text = str(error.value)
    assert place in text and "\n" not in text and len(text) < 700, text


def ends(place: str, call: Callable[[], Any]) -> None:
    """So does the command: with a sentence, not with a traceback, silence or status 0."""
    with pytest.raises(SystemExit) as end, explained():
        call()
    said = end.value.code
    assert isinstance(said, str) and said.startswith("error: ") and place in said, said


# --- data -----------------------------------------------------------------------------------------

PAIR = '{"prompt": "Say %d: ", "chosen": "b", "rejected": "c"}\n'
GOOD = "".join(PAIR % n for n in range(40)).encode()
PACKED = gzip.compress(GOOD)
FILES: dict[str, bytes] = {
    "empty": b"", "blank": b" \n\n  \n", "cut off": GOOD + b'\n{"prompt": "a", ',
    "a cut array": b'[{"prompt": "a", "chosen": "b", "rejected": "c"},', "an empty array": b"[]",
    "a number": b"17", "UTF-16": GOOD.decode().encode("utf-16"),
    "Latin-1": '{"prompt": "ä", "chosen": "ö", "rejected": "ü"}'.encode("latin-1"),
    "cut gzip": PACKED[: len(PACKED) // 2], "damaged gzip": PACKED[:40] + bytes(20) + PACKED[60:],
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "HTML": b"<!DOCTYPE html><html><body>404</body></html>", "NULs": b"\x00" * 1000,
    "deep nesting": b"[" * 100_000,
    "a huge number": b'{"prompt": ' + b"9" * 5000 + b', "chosen": "b", "rejected": "c"}',
    "two objects on a line": b'{"prompt": "a"} {"prompt": "b"}',
    "many keys": json.dumps({f"key{n}": n for n in range(5000)}).encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_data(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(FILES[name])
    for read in (read_preferences, read_responses, read_prompts):
        refused("file.jsonl", read, path)


VALUES: dict[str, Any] = {"number": 7, "list": ["a"], "object": {}, "null": None, "true": True}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", ["prompt", "chosen", "rejected"])
def test_a_row_that_breaks_the_format_is_named_by_its_line(
    tmp_path: Path, key: str, value: str
) -> None:
    rows = [json.loads(line) for line in GOOD.splitlines()]
    rows[16][key] = VALUES[value]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused("rows.jsonl:17", read_preferences, path)
    del rows[16][key]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused("rows.jsonl:17", read_preferences, path)


ODD: dict[str, Break] = {
    "missing": lambda path: None, "a folder": Path.mkdir, "a pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to(path.with_name("gone")),
    "a link to itself": lambda path: path.symlink_to(path.name),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_paths_that_are_no_file(tmp_path: Path, name: str) -> None:
    ODD[name](tmp_path / "nothing")
    for read in (read_preferences, read_responses, read_prompts):
        refused("nothing", read, tmp_path / "nothing")
    if name != "a folder":
        refused("nothing", read_text, tmp_path / "nothing")


def test_a_refused_command_leaves_everything_as_it_was(tmp_path: Path) -> None:
    earlier = tmp_path / "run"
    earlier.mkdir()
    (earlier / "config.json").write_text('{"script": "reward_model.reward_model_training"}')
    (tmp_path / "rows.jsonl").write_bytes(FILES["cut off"])
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    config = RewardModelConfig(data=str(tmp_path / "rows.jsonl"), device="cpu", out=earlier)
    ends("rows.jsonl", lambda: reward_model_training.main(config))
    after = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    assert after == before


# --- metrics --------------------------------------------------------------------------------------

ROWS = {
    "no step": '{"reward": 1}', "a step that is text": '{"step": "1", "reward": 1}',
    "half a step": '{"step": 1.5, "reward": 1}', "step NaN": '{"step": NaN, "reward": 1}',
    "step true": '{"step": true, "reward": 1}', "step -1": '{"step": -1, "reward": 1}',
    "step 2^63": '{"step": 9223372036854775808}', "step null": '{"step": null, "reward": 1}',
    "a list of steps": '{"step": [1], "reward": 1}', "step 1e30": '{"step": 1e30, "reward": 1}',
    "400 digits": f'{{"step": 1, "reward": {"9" * 400}}}', "a bare number": "7", "a list": "[1]",
    "5,000 digits": f'{{"step": 1, "reward": {"9" * 5000}}}', "an empty line": "\n",
    "a lone surrogate": '{"step": 1, "\\ud800": 1}', "NUL in a name": '{"step": 1, "a\\u0000": 1}',
    "a line break in a name": '{"step": 1, "a\\nb": 1}', "nested": "[" * 50_000 + "]" * 50_000,
    "no UTF-8": b"\xff\xfe{", "no JSON": "step 1",
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_metrics_that_no_run_writes(tmp_path: Path, name: str) -> None:
    """The doctor names the line; a page shows what it can, or says that it cannot."""
    row = ROWS[name]
    text = row if isinstance(row, bytes) else row.encode()
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0, "reward": 1}\n' + text + b"\n")
    ends("metrics.jsonl:2", lambda: doctor.main((tmp_path,), DoctorConfig()))
    (tmp_path / "metrics.jsonl").write_bytes(text)
    try:
        with explained():
            report.main(ReportConfig((tmp_path,)))
    except SystemExit as end:
        assert tmp_path.name in str(end.code)
    else:
        assert (tmp_path / "report.html").stat().st_size > 1000


# --- models ---------------------------------------------------------------------------------------


def header(change: Callable[[dict[str, Any], str], Any]) -> Break:
    """Change the header of the weights; `change` gets it, and the name of the first tensor."""

    def spoil(run: Path) -> None:
        content = (run / MODEL_FILE).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        found = json.loads(content[8 : 8 + length])
        other = change(found, next(name for name in found if name != "__metadata__"))
        text = other if isinstance(other, bytes) else json.dumps(found).encode()
        written = struct.pack("<Q", len(text)) + text + content[8 + length :]
        (run / MODEL_FILE).write_bytes(written)

    return spoil


def entry(key: str, value: Any) -> Break:
    return header(lambda found, first: found[first].update({key: value}))


def weights(value: float) -> Break:
    def spoil(run: Path) -> None:
        tensors = load_file(run / MODEL_FILE)
        tensors["wte.weight"][3, 1] = value
        content = (run / MODEL_FILE).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        save_file(tensors, run / MODEL_FILE, json.loads(content[8 : 8 + length])["__metadata__"])

    return spoil


def instead(make: Callable[[Path], Any]) -> Break:
    """Another kind of thing in place of the file."""

    def spoil(run: Path) -> None:
        (run / MODEL_FILE).unlink()
        make(run / MODEL_FILE)

    return spoil


MODELS: dict[str, Break] = {
    "cut off": lambda run: os.truncate(run / MODEL_FILE, 2000),
    "ten bytes": lambda run: os.truncate(run / MODEL_FILE, 10),
    "empty": lambda run: os.truncate(run / MODEL_FILE, 0),
    "a folder": instead(Path.mkdir), "a pipe": instead(os.mkfifo),
    "a link to itself": instead(lambda path: path.symlink_to(path.name)),
    "a device": instead(lambda path: path.symlink_to("/dev/zero")),
    "a header of 2^64 bytes": instead(lambda path: path.write_bytes(b"\xff" * 64)),
    "a header that is a list": header(lambda *_: b"[]"), "no text": header(lambda *_: b"\xff{"),
    "offsets below 0": entry("data_offsets", [-4, 0]), "far offsets": entry("data_offsets", [0, 10**12]),
    "an unknown dtype": entry("dtype", "F99"), "integers": entry("dtype", "I64"),
    "a negative shape": entry("shape", [-1]), "a shape of text": entry("shape", "x"),
    "a huge shape": entry("shape", [10**9, 10**9]),
    "no metadata": header(lambda found, _: found.pop("__metadata__") and None),
    "a tensor less": header(lambda found, first: found.pop(first) and None),
    "NaN": weights(float("nan")), "infinity": weights(float("inf")),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_that_no_run_writes(tmp_path: Path, name: str) -> None:
    tokenizer = load_tokenizer("glassbox")
    shape = GPTConfig(tokenizer.n_vocab, context=16, n_layer=1, n_head=1, n_embd=4)
    save_gpt(tmp_path / "hostile" / MODEL_FILE, GPT(shape), tokenizer)
    MODELS[name](tmp_path / "hostile")
    refused("hostile", load_gpt, tmp_path / "hostile")


@pytest.mark.parametrize("left", [0, 10, 2000])
def test_a_state_that_is_cut_off(tmp_path: Path, left: int) -> None:
    TrainingState({"model": torch.nn.Linear(40, 40)}, {}).save(tmp_path)
    os.truncate(tmp_path / "state.pt", left)
    refused("state.pt", read_state, tmp_path)


# --- the pairs of a run ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pairs.jsonl", "held_out_pairs.jsonl"])
@pytest.mark.parametrize("left", [0, 5, -1, -9])
def test_pairs_that_are_cut_off(tmp_path: Path, name: str, left: int) -> None:
    tokenizer = load_tokenizer("glassbox")
    pairs = [TokenPair([1], [2, n], [3]) for n in range(3)]
    keep_pairs(tmp_path, pairs, pairs, tokenizer)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:left])
    refused(name, kept_pairs, tmp_path, tokenizer)


def test_a_state_knows_its_pairs_and_its_script(tmp_path: Path) -> None:
    """Also where whole rows are gone, and where two scripts have parts of the same names."""
    pairs = [TokenPair([1], [2, n], [3]) for n in range(3)]

    def state(pairs: list[TokenPair], name: str = "pairs") -> TrainingState:
        return TrainingState({name: SamePairs(pairs)}, {})

    def of_script(name: str) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"script": name}))

    of_script("rl.rloo_engine")
    state(pairs).save(tmp_path)
    state(pairs).load(tmp_path)
    refused("pairs.jsonl", state(pairs[:2]).load, tmp_path)
    refused("others", state(pairs, "others").load, tmp_path)
    of_script("rl.ppo_engine")
    refused("rl.rloo_engine", state(pairs).load, tmp_path)


# --- torchrun's variables -------------------------------------------------------------------------

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29519",
}  # fmt: skip


@pytest.mark.parametrize("value", ["", "abc", "-1", "99999999", "1.5", "٣"])
@pytest.mark.parametrize(
    "name", [name for name in TORCHRUN if name[:2] in ("RA", "WO", "LO")] + ["MASTER_PORT"]
)
def test_a_wrong_variable_of_torchrun(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, text in (TORCHRUN | {name: value}).items():
        monkeypatch.setenv(key, text)
    monkeypatch.setattr(launch, "MEETING_TIME", launch.timedelta(seconds=1))
    ends(name, lambda: launch.run_on_ranks(lambda: None, launch.Wish(device="cpu")))


@pytest.mark.parametrize("address", ["", "no.such.host.invalid", "a b"])
def test_ranks_that_cannot_meet(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, text in (TORCHRUN | {"MASTER_ADDR": address}).items():
        monkeypatch.setenv(key, text)
    ends("MASTER_ADDR", lambda: launch.run_on_ranks(lambda: None, launch.Wish(device="cpu")))


def test_ranks_that_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are promised, one is there: it waits a bounded time and says so."""
    for key, text in (TORCHRUN | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(key, text)
    monkeypatch.setattr(launch, "MEETING_TIME", launch.timedelta(seconds=1))
    ends("29519", lambda: launch.run_on_ranks(lambda: None, launch.Wish(device="cpu")))
