"""The third round of hostile cases: what a command is given, where its sentence points, what to do.

Each row: the command, a name, what is broken, the place that the sentence names. The slow ones (full
disks, clocks, stopped processes, states of other scripts) are pieces of scripts/soak.py.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_bad_inputs import REMEDY

from gpt import finetuning
from gpt.checkpoint import save_gpt
from gpt.finetuning import FinetuningConfig
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.command_line import explained
from harness.paths import MODEL_FILE
from harness.ranks import launch
from harness.training_state import TrainingState
from reward_model.pair_files import SamePairs, keep_pairs, kept_pairs
from reward_model.pairs import TokenPair
from rl import doctor, report, talk
from rl.doctor import DoctorConfig
from rl.report import ReportConfig
from rl.talk import TalkConfig

Break = Callable[[Path], Any]
COUNTED: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def counted():
    """How many there were, which scripts/soak.py adds up."""
    yield
    print(f"\nhostile cases: {len(COUNTED)}")


def sentence_of(call: Callable[[], Any]) -> str:
    """What the command says as it ends; a traceback, a silent end and status 0 fail."""
    COUNTED.append("")
    with pytest.raises(SystemExit) as end, explained():
        call()
    assert isinstance(end.value.code, str) and end.value.code.startswith("error: "), end.value.code
    return end.value.code


def look_at(sentence: str, place: str) -> None:
    assert place in sentence and REMEDY.search(sentence), sentence
    assert len(sentence.splitlines()) == 1 and len(sentence) < 700


# --- metrics --------------------------------------------------------------------------------------

READERS: dict[str, Callable[[Path], Any]] = {
    "doctor": lambda run: doctor.main((run,), DoctorConfig()),
}
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


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("name", ROWS)
def test_metrics_that_no_run_writes(tmp_path: Path, command: str, name: str) -> None:
    row = ROWS[name]
    first = b'{"step": 0, "reward": 1}\n'
    text = row if isinstance(row, bytes) else row.encode()
    (tmp_path / "metrics.jsonl").write_bytes(first + text + b"\n")
    look_at(sentence_of(lambda: READERS[command](tmp_path)), "metrics.jsonl:2")


@pytest.mark.parametrize("name", ROWS)
def test_a_page_is_made_of_what_can_be_read(tmp_path: Path, name: str) -> None:
    """Of such a row it shows what it can, or says that it cannot; it never ends in a traceback."""
    row = ROWS[name]
    (tmp_path / "metrics.jsonl").write_bytes(row if isinstance(row, bytes) else row.encode())
    COUNTED.append("")
    try:
        with explained():
            report.main(ReportConfig((tmp_path,)))
    except SystemExit as end:
        look_at(str(end.code), tmp_path.name)
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
LOADERS: dict[str, Callable[[Path], Any]] = {
    "talk": lambda run: talk.main(run, TalkConfig()),
    "finetuning": lambda run: finetuning.main(
        FinetuningConfig(
            base=run, data=str(run / "rows.jsonl"), out=run / "new", device="cpu", ranks=1
        )
    ),
}


@pytest.mark.parametrize("command", LOADERS)
@pytest.mark.parametrize("name", MODELS)
def test_models_that_no_run_writes(
    tmp_path: Path, command: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer("glassbox")
    shape = GPTConfig(tokenizer.n_vocab, context=16, n_layer=1, n_head=1, n_embd=4)
    model = GPT(shape).initialize(torch.Generator().manual_seed(0))
    run = tmp_path / "hostile"
    save_gpt(run / MODEL_FILE, model, tokenizer)
    rows = [{"prompt": f"Say {n}: ", "completion": "yes"} for n in range(40)]
    (run / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    MODELS[name](run)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asks for a prompt"))
    look_at(sentence_of(lambda: LOADERS[command](run)), "hostile")
    assert not (run / "new").exists()


# --- the pairs of a run ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pairs.jsonl", "held_out_pairs.jsonl"])
@pytest.mark.parametrize("left", [0, 5, -1, -9])
def test_pairs_that_are_cut_off(tmp_path: Path, name: str, left: int) -> None:
    tokenizer = load_tokenizer("glassbox")
    pairs = [TokenPair([1], [2, n], [3]) for n in range(3)]
    keep_pairs(tmp_path, pairs, pairs, tokenizer)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:left])
    look_at(sentence_of(lambda: kept_pairs(tmp_path, tokenizer)), name)


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
    look_at(sentence_of(lambda: state(pairs[:2]).load(tmp_path)), "pairs.jsonl")
    look_at(sentence_of(lambda: state(pairs, "others").load(tmp_path)), "others")
    of_script("rl.grpo_engine")
    look_at(sentence_of(lambda: state(pairs).load(tmp_path)), "rl.rloo_engine")


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
    look_at(sentence_of(lambda: launch.run_on_ranks(lambda: None, launch.Wish(device="cpu"))), name)


@pytest.mark.parametrize("address", ["", "no.such.host.invalid", "a b"])
def test_ranks_that_cannot_meet(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, text in (TORCHRUN | {"MASTER_ADDR": address}).items():
        monkeypatch.setenv(key, text)
    said = sentence_of(lambda: launch.run_on_ranks(lambda: None, launch.Wish(device="cpu")))
    look_at(said, "MASTER_ADDR")


def test_ranks_that_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are promised, one is there: it waits a bounded time and says so."""
    for key, text in (TORCHRUN | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(key, text)
    monkeypatch.setattr(launch, "MEETING_TIME", launch.timedelta(seconds=1))
    said = sentence_of(lambda: launch.run_on_ranks(lambda: None, launch.Wish(device="cpu")))
    look_at(said, "port 29519")
