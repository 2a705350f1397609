"""Devices, seeds, run folders, logs and checkpoints: round trips, and one sentence for each mistake."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import tyro
from toys import one_sentence

from data.sources import Presets, preset_defaults
from gpt.checkpoint import load_gpt, save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness import files
from harness.command_line import expand_arguments
from harness.device import open_device
from harness.errors import UserError
from harness.files import append_jsonl, read_jsonl, write_atomically, write_json
from harness.metric_log import MetricLog
from harness.seeds import derive_seed

TOKENIZER = load_tokenizer("glassbox")


# Devices and seeds


def availability(monkeypatch, *, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_device(monkeypatch, cuda, mps, expected):
    availability(monkeypatch, cuda=cuda, mps=mps)
    assert open_device("auto") == torch.device(expected)
    assert open_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_missing_device(monkeypatch, name):
    availability(monkeypatch, cuda=False, mps=False)
    with pytest.raises(UserError) as error:
        open_device(name)
    assert name in one_sentence(error)


@pytest.fixture
def cuda(monkeypatch) -> Iterator[None]:
    """What a CUDA device is asked and told, without one."""
    availability(monkeypatch, cuda=True, mps=False)
    for name in ("set_device", "get_device_name", "is_bf16_supported"):
        monkeypatch.setattr(torch.cuda, name, lambda *args, **options: "Tesla T4")
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def test_tf32_is_on_with_bfloat16_alone(cuda):
    """With float32 the sampler's log-probs are the old ones, which needs exact products."""
    open_device("cuda", "bfloat16")
    assert torch.backends.cuda.matmul.allow_tf32
    open_device("cuda", "float32")
    assert not torch.backends.cuda.matmul.allow_tf32
    open_device("cpu", "bfloat16")
    assert not torch.backends.cuda.matmul.allow_tf32  # a rule for CUDA alone


def test_derived_seeds_never_change():
    """Literals: with another derivation every recorded run would have other numbers."""
    assert derive_seed(0, "sampling") == 1822328749
    assert derive_seed(1, "sampling") == 2203905171
    assert derive_seed(0, "weights") == 1535850479


# Command line


@dataclass(frozen=True)
class Flags:
    preset: str = "tiny"
    lr: float = 1.0
    steps: int = 10


PRESETS = Presets({"tiny": {}, "big": {"lr": 0.5, "steps": 99}})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], Flags()),
        (["--preset", "big"], Flags("big", 0.5, 99)),
        (["--preset=big"], Flags("big", 0.5, 99)),
        (["--steps", "3", "--preset", "big"], Flags("big", 0.5, 3)),
        (["--lr", "2", "--preset", "tiny"], Flags("tiny", 2.0, 10)),
    ],
)
def test_a_preset_never_overrides_a_flag(arguments, expected):
    default = preset_defaults(Flags, PRESETS, arguments)
    assert tyro.cli(Flags, args=arguments, default=default) == expected


def test_a_tilde_is_the_home_folder_in_every_value(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    same = ["c~", "-a=~", "~no-such-user/d"]
    monkeypatch.setattr(sys, "argv", ["x", "--policy", "~/a", "--data=~/b c", "~/r.py:f", *same])
    expand_arguments()
    assert sys.argv[1:4] == ["--policy", "/home/me/a", "--data=/home/me/b c"]
    assert sys.argv[4:] == ["/home/me/r.py:f", *same]


# Files


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "deep" / "value.json"
    write_json(path, {"step": 1})

    def fail(temporary: Path) -> None:
        temporary.write_text("half of")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left on device") as error:
        write_atomically(path, fail)
    assert str(path) in one_sentence(error)
    assert json.loads(path.read_text()) == {"step": 1}
    assert [file.name for file in path.parent.iterdir()] == ["value.json"]


def test_jsonl_round_trip_and_a_cut_off_last_line(tmp_path):
    path = tmp_path / "runs" / "rows.jsonl"
    append_jsonl(path, [{"step": 1, "text": "a\nb\u2028c"}, {"step": 2}])
    append_jsonl(path, [{"step": 3}])
    with path.open("a") as file:
        file.write('{"step": 4, "lo')
    assert read_jsonl(path) == [{"step": 1, "text": "a\nb\u2028c"}, {"step": 2}, {"step": 3}]


# Metrics


def test_metrics_are_collected_written_and_shown(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    log = MetricLog(5, path=path, show=("loss",), every=2, title="demo")
    for step in range(1, 6):
        log.write(step=step, loss=torch.tensor(step / 4), count=step)
    expected = [{"step": step, "loss": step / 4, "count": step} for step in range(1, 6)]
    assert log.rows == expected == read_jsonl(path)
    assert type(log.rows[0]["loss"]) is float
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_crash_while_resuming_loses_no_metrics(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    append_jsonl(path, [{"step": 1}, {"step": 2}])

    def fail(*arguments) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(files, "append_jsonl", fail)
    with pytest.raises(UserError, match="disk full"):
        MetricLog(9, path=path, start=1)
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]


# Checkpoints


def test_loading_initialises_nothing_and_takes_the_files_tensors(tmp_path, monkeypatch):
    """No second model beside the loaded tensors; they can be trained, and the file stays as it is."""
    shape = GPTConfig(TOKENIZER.n_vocab, context=8, n_layer=1, n_head=1, n_embd=4)
    path, model = tmp_path / "model.safetensors", GPT(shape).initialize()
    save_gpt(path, model, TOKENIZER)
    content = path.read_bytes()
    devices = []
    for layer in (torch.nn.Linear, torch.nn.Embedding):
        monkeypatch.setattr(
            layer, "reset_parameters", lambda self: devices.append(self.weight.device.type)
        )
    loaded, _ = load_gpt(path)
    assert set(devices) == {"meta"}
    for (name, found), wanted in zip(loaded.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(found, wanted) and found.requires_grad, name
        assert found.device.type == "cpu" and found.dtype == torch.float32
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
    assert path.read_bytes() == content
