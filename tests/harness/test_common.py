"""Devices, seeds, run folders, logs and checkpoints: round trips, and one sentence for each mistake."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import tyro
from toys import one_sentence

from gpt.recipes import defaults
from harness import files, metric_log
from harness.device import open_device
from harness.errors import UserError
from harness.files import (
    append_jsonl,
    read_json,
    read_jsonl,
    read_metrics,
    write_atomically,
    write_json,
)
from harness.flags import OptimizerFlags
from harness.metric_log import MetricLog
from harness.process import give_back_freed_memory
from harness.run_folder import finish_run, open_run
from harness.seeds import derive_seed
from harness.training_state import TrainingState
from rl.grpo_engine import GRPOConfig

INF, NAN = float("inf"), float("nan")


def strictly(text: str) -> object:
    """As JavaScript, jq and databases read JSON, to whom Infinity and NaN are no numbers."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_files_of_a_run_are_json_to_every_program_and_read_back_as_they_were(tmp_path):
    """Numbers without an end stay such, also far inside; text that looks like them stays text."""
    words = 'Infinity "1e999" NaN'
    more = {"limit": INF, "text": words, "none": None}
    write_json(tmp_path / "a.json", more | {"low": [-INF, (1.5, INF)], "path": Path("x")})
    text, back = (tmp_path / "a.json").read_text(), more | {"low": [-INF, [1.5, INF]], "path": "x"}
    assert strictly(text) == read_json(tmp_path / "a.json") == back
    assert text.startswith('{\n  "limit"')
    rows = [{"step": 1, "loss": INF}, {"step": 2, "loss": NAN}, {"step": 3, "loss": 0.1}]
    append_jsonl(tmp_path / "metrics.jsonl", rows)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [strictly(line)["step"] for line in lines] == [1, 2, 3]
    for found in (
        read_metrics(tmp_path / "metrics.jsonl"),
        MetricLog(3, path=tmp_path / "metrics.jsonl", start=3).rows,
    ):
        assert str(found) == str(rows)
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == lines


def test_a_limit_that_is_off_is_the_same_when_a_run_goes_on(tmp_path):
    """--max-grad-norm inf, in a config.json of today and in one with the word."""
    config = OptimizerFlags(max_grad_norm=INF)
    folder = open_run(tmp_path / "run", config)
    written = (folder / "config.json").read_text()
    assert strictly(written)["max_grad_norm"] == INF
    TrainingState({}, {}).save(folder)
    for content in (written, written.replace("1e999", "Infinity")):
        (folder / "config.json").write_text(content)
        open_run(folder, config, resume=True)
        with pytest.raises(UserError):
            open_run(folder, OptimizerFlags(max_grad_norm=1.0), resume=True)
    finish_run(folder)


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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ("tiny", 2e-4, 80)),
        (["--preset", "small"], ("small", 3e-5, 40)),
        (["--preset=small"], ("small", 3e-5, 40)),
        (["--steps", "3", "--preset", "small"], ("small", 3e-5, 3)),
        (["--lr", "2", "--preset", "tiny"], ("tiny", 2.0, 80)),
    ],
)
def test_a_row_never_overrides_a_flag(arguments, expected):
    default = defaults(GRPOConfig, arguments)
    config = tyro.cli(GRPOConfig, args=arguments, default=default)
    assert (config.preset, config.lr, config.steps) == expected


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


def test_a_crash_while_resuming_loses_no_metrics(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    append_jsonl(path, [{"step": 1}, {"step": 2}])

    def fail(*arguments) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(files, "append_jsonl", fail)
    with pytest.raises(UserError, match="disk full"):
        MetricLog(9, path=path, start=1)
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize(
    "seconds, said",
    [
        ([163.0, 9.0], "160 s a step: 40 steps in about 2 h 4 min"),
        ([4.0, 2.0, 9.0, 9.0], "5.5 s a step: 40 steps in about 4 min"),
        ([9.0, 0.5, 0.5], ""),
    ],
    ids=["a slow step", "ten seconds of steps", "under a minute"],
)
def test_a_run_says_once_how_long_it_will_take_with_its_validations(
    monkeypatch, capsys, seconds, said
):
    now = 0.0
    monkeypatch.setattr(metric_log.time, "perf_counter", lambda: now)
    log = MetricLog(43, show=("loss",), every=100, start=3, extra_steps=5.5)
    for step, taken in enumerate(seconds, 4):
        log.start_step()
        now += taken
        log.write(step=step, loss=1.0)
        now += 1000.0  # between two steps
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(",")[0] for line in lines] == ([said] if said else [])


def test_bar_and_line_have_one_forecast_that_moves_with_the_last_steps(monkeypatch, capsys):
    """The first step has the costs of a start; then 2 s become 30 s, and one of 500 s moves nothing."""
    now = 0.0
    monkeypatch.setattr(metric_log.time, "perf_counter", lambda: now)
    log = MetricLog(20, show=("loss",), every=100, extra_steps=5.0, last_steps=3.0, title="run")
    log.has_bar, left = True, []
    log.start_step()
    assert log.bar is not None and log.bar.n == 0
    for step, taken in enumerate([90.0, 2.0, 2.0, 2.0, 30.0, 30.0, 500.0, 30.0], 1):
        now += taken
        log.write(step=step, loss=1.0)
        left.append(log.left())
        assert log.bar.postfix == f"{metric_log.in_words(log.left())} left" and log.bar.n == step
    each = [90.0, 2.0, 2.0, 2.0, 2.0, 2.0, 30.0, 30.0]
    steps = [(20 - step) * 1.25 + 3 for step in range(1, 9)]  # a quarter of a step for validations
    assert left == pytest.approx([a * b for a, b in zip(each, steps, strict=True)])
    assert log.steps_in(30.0 * 28) == 20 and log.steps_in(30.0 * 28 - 1) == 19
    assert log.steps_in(-5.0) == 1
    log.close()
    assert "2 min" in capsys.readouterr().out.splitlines()[-1]  # of 3 steps after them: 90 s


def test_a_row_may_stand_for_several_steps(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(metric_log.time, "perf_counter", lambda: now)
    log = MetricLog(1000, show=("loss",), every=250, title="pairs")
    for step in (120, 240, 360, 480, 600):
        now += 12.0
        log.write(step=step, loss=1.0)
    log.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("0.1 s a step: 1,000 steps in about 2 min,")
    assert [line.split()[1] for line in lines[1:]] == ["360/1000", "600/1000"]


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists() or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="only Linux with glibc gives the gaps of its heap back",
)
def test_gaps_between_tensors_are_given_back() -> None:
    def held() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    many = [torch.ones(2**14) for _ in range(4000)]  # 64 kB each, 250 MB
    many = many[::50]
    before = held()
    give_back_freed_memory()
    assert held() < before - 150 and float(sum(t.sum() for t in many)) == 80 * 2**14
