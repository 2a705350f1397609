"""Broken files, weights, states and variables end in a UserError that names the place.

None of them hangs, runs foreign code or leaves something behind. What the sentence says else is not
tested: messages are there to be rewritten.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from toys import saved_gpt

from data.files.read import read_preferences, read_prompts, read_responses, read_text
from gpt.checkpoint import load_gpt
from harness.command_line import errors_as_sentences, run_command
from harness.errors import UserError
from harness.paths import MODEL_FILE
from harness.ranks import launch
from harness.training_state import TrainingState, read_state
from report import __main__ as report_command
from report import doctor
from report.__main__ import ReportConfig
from report.doctor import DoctorConfig
from reward_model import reward_model_training
from reward_model.pair_files import SamePairs
from reward_model.pairs import TokenPair
from reward_model.reward_model_training import RewardModelConfig

Break = Callable[[Path], Any]


def refused(place: str, call: Callable[..., Any], *arguments: Any) -> None:
    """It ends in one line that names the place."""
    with pytest.raises(UserError) as error:
        call(*arguments)
    text = str(error.value)
    assert place in text and "\n" not in text and len(text) < 700, text


def ends(place: str, call: Callable[[], Any]) -> None:
    """So does the command: with a sentence, not with a traceback, silence or status 0."""
    with pytest.raises(SystemExit) as end, errors_as_sentences():
        call()
    said = end.value.code
    assert isinstance(said, str) and said.startswith("error: ") and place in said, said


# --- where the border is ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Flags:
    number: int = 1

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("number must not be negative")


def broken(config: Flags) -> None:
    raise ValueError("a loss that somebody has just edited")


def test_a_refused_flag_is_a_sentence_and_a_bug_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever has just edited a loss sees where it broke, of a ValueError too."""
    monkeypatch.setattr(sys, "argv", ["command", "--number", "-1"])
    with pytest.raises(SystemExit) as end:
        run_command(broken, Flags)
    assert end.value.code
    monkeypatch.setattr(sys, "argv", ["command"])
    with pytest.raises(ValueError, match="a loss that"):
        run_command(broken, Flags)


@dataclass(frozen=True)
class Training(Flags):
    ranks: int = 1


def test_without_a_temporary_folder_a_training_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only that: PyTorch's optimizers and the ranks keep files there."""
    monkeypatch.setattr(sys, "argv", ["command"])
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    ends("TMPDIR", lambda: run_command(broken, Training))
    with pytest.raises(ValueError, match="a loss that"):
        run_command(broken, Flags)


# --- data -----------------------------------------------------------------------------------------

PAIR = '{"prompt": "Say %d: ", "chosen": "b", "rejected": "c"}\n'
GOOD = "".join(PAIR % n for n in range(40)).encode()
PACKED = gzip.compress(GOOD)
FILES: dict[str, bytes] = {
    "empty": b"", "cut off": GOOD + b'\n{"prompt": "a", ', "a number": b"17", "NULs": b"\x00" * 1000,
    "UTF-16, cut": GOOD.decode().encode("utf-16")[:-1], "cut gzip": PACKED[: len(PACKED) // 2],
    "damaged gzip": PACKED[:40] + bytes(20) + PACKED[60:], "deep nesting": b"[" * 100_000,
    "two objects on a line": b'{"prompt": "a"} {"prompt": "b"}',
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_data(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(FILES[name])
    for read in (read_preferences, read_responses, read_prompts):
        refused("file.jsonl", read, path)


ODD: dict[str, Break] = {
    "missing": lambda path: None, "a folder": Path.mkdir, "a pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
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
    "step NaN": '{"step": NaN, "reward": 1}', "step -1": '{"step": -1, "reward": 1}',
    "5,000 digits": f'{{"step": 1, "reward": {"9" * 5000}}}', "a list": "[1]",
    "no UTF-8": b"\xff\xfe{", "no JSON": "step 1",
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_metrics_that_no_run_writes(tmp_path: Path, name: str) -> None:
    """The doctor names the line; a page shows what it can, or says that it cannot."""
    row = ROWS[name]
    text = row if isinstance(row, bytes) else row.encode()
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0, "reward": 1}\n' + text + b"\n")
    ends("metrics.jsonl:2", lambda: doctor.main(DoctorConfig((tmp_path,))))
    (tmp_path / "metrics.jsonl").write_bytes(text)
    try:
        with errors_as_sentences():
            report_command.main(ReportConfig((tmp_path,)))
    except SystemExit as end:
        assert tmp_path.name in str(end.code)
    else:
        assert (tmp_path / "report.html").stat().st_size > 1000


def test_a_value_that_no_rule_can_divide_by(tmp_path: Path) -> None:
    row = '{"step": 0, "loss": 1, "kl_coef": 1, "kl_k3": 1, "response_length": 0}\n'
    (tmp_path / "metrics.jsonl").write_text(row)
    ends(tmp_path.name, lambda: doctor.main(DoctorConfig((tmp_path,))))
    ends("run", lambda: doctor.main(DoctorConfig(())))


# --- models ---------------------------------------------------------------------------------------


def header(**changes: Any) -> Break:
    """Change what the header of the weights says of its first tensor."""

    def spoil(run: Path) -> None:
        content = (run / MODEL_FILE).read_bytes()
        end = 8 + struct.unpack("<Q", content[:8])[0]
        found = json.loads(content[8:end])
        found[next(name for name in found if name != "__metadata__")] |= changes
        text = json.dumps(found).encode()
        (run / MODEL_FILE).write_bytes(struct.pack("<Q", len(text)) + text + content[end:])

    return spoil


def tensors(change: Callable[[dict[str, torch.Tensor]], object], about: bool = True) -> Break:
    """Change the tensors, or leave out what the header says of the model."""

    def spoil(run: Path) -> None:
        with safe_open(run / MODEL_FILE, "pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}
            metadata = file.metadata() if about else None
        change(found)
        save_file(found, run / MODEL_FILE, metadata)

    return spoil


def instead(make: Callable[[Path], Any]) -> Break:
    """Another kind of thing in place of the file."""

    def spoil(run: Path) -> None:
        (run / MODEL_FILE).unlink()
        make(run / MODEL_FILE)

    return spoil


MODELS: dict[str, Break] = {
    "cut off": lambda run: os.truncate(run / MODEL_FILE, 2000),
    "empty": lambda run: os.truncate(run / MODEL_FILE, 0),
    "a pipe": instead(os.mkfifo),
    "a header of 2^64 bytes": instead(lambda path: path.write_bytes(b"\xff" * 64)),
    "far offsets": header(data_offsets=[0, 10**12]), "an unknown dtype": header(dtype="F99"),
    "a huge shape": header(shape=[10**9, 10**9]),
    "no metadata": tensors(lambda found: None, about=False),
    "a tensor less": tensors(lambda found: found.pop("wte.weight")),
    "NaN": tensors(lambda found: found["wte.weight"].fill_(torch.nan)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_that_no_run_writes(tmp_path: Path, name: str) -> None:
    saved_gpt(tmp_path / "hostile", context=16, n_embd=4)
    MODELS[name](tmp_path / "hostile")
    refused("hostile", load_gpt, tmp_path / "hostile")


@pytest.mark.parametrize("left", [0, 2000])
def test_a_state_that_is_cut_off(tmp_path: Path, left: int) -> None:
    TrainingState({"model": torch.nn.Linear(40, 40)}, {}).save(tmp_path)
    os.truncate(tmp_path / "state.pt", left)
    refused("state.pt", read_state, tmp_path)


class Trap:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize(("name", "read"), [("state.pt", read_state), (MODEL_FILE, load_gpt)])
def test_no_pickle_is_run_whatever_its_name(tmp_path: Path, name: str, read: Any) -> None:
    """As torch.save writes it, and bare."""
    sprung = tmp_path / "sprung"
    for write in (torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))):
        write({"step": Trap(sprung), "parts": {}}, tmp_path / name)
        refused(name, read, tmp_path)
    assert not sprung.exists()


# --- the pairs of a run ---------------------------------------------------------------------------


def test_a_state_knows_its_pairs(tmp_path: Path) -> None:
    """Also where whole rows are gone."""
    pairs = [TokenPair([1], [2, n], [3]) for n in range(3)]

    def state(pairs: list[TokenPair], name: str = "pairs") -> TrainingState:
        return TrainingState({name: SamePairs(pairs)}, {})

    state(pairs).save(tmp_path)
    state(pairs).load(tmp_path)
    refused("pairs.jsonl", state(pairs[:2]).load, tmp_path)
    refused("others", state(pairs, "others").load, tmp_path)


# --- torchrun's variables -------------------------------------------------------------------------

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29519",
}  # fmt: skip


def test_more_ranks_than_a_machine_can_hold() -> None:
    refused("1000000", launch._require_devices, 10**6, "cpu")


def test_ranks_that_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are promised, one is there: it waits a bounded time and says so."""
    for key, text in (TORCHRUN | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(key, text)
    monkeypatch.setattr(launch, "MEETING_TIME", launch.timedelta(seconds=1))
    ends("29519", lambda: launch.run_on_ranks(lambda: None, launch.RankRequest(device="cpu")))


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", None), ("WORLD_SIZE", "abc"), ("MASTER_PORT", "99999"), ("LOCAL_WORLD_SIZE", "0")],
)
def test_wrong_variables_of_torchrun(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    for key, text in (TORCHRUN | {name: value}).items():
        monkeypatch.setenv(key, text) if text is not None else monkeypatch.delenv(
            key, raising=False
        )
    ends(name, lambda: launch.run_on_ranks(lambda: None, launch.RankRequest(device="cpu")))
