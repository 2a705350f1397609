"""One run on 1, 2 and 4 ranks is one run: tokens, gradients, weights and metrics are the same.

tests/rl/ranks_worker.py runs everything in float64, where ranks differ by the order of sums alone. One
start per number of ranks serves all tests here. A new entry of engines.py is held to it by itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import ENGINES
from forked import Done, command, forked, has_ended
from ranks_worker import ON_FOUR
from toys import random_gpt

from gpt.finetuning import FinetuningConfig
from gpt.folder import ModelFolder
from gpt.huggingface import save_hf
from harness.command_line import errors_as_sentences
from harness.ranks import collectives, launch
from rl.grpo_engine import GRPOConfig

ROOT = Path(__file__).resolve().parents[2]
WORLDS = (2, 4)  # compared with 1


class Results:
    """What the worker measured on each number of ranks, run when it is first asked for.

    Each goes on from the checkpoint of the number before.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: dict[int, Any] = {}

    def __getitem__(self, world: int) -> Any:
        if world not in self.found:
            out, before = self.folder / f"{world}.pt", []
            if world > 1:
                assert self[world // 2]
                before = [self.folder / f"run{world // 2}"]
            script = ROOT / "tests" / "rl" / "ranks_worker.py"
            done = command(script, world, out, *before, cwd=ROOT)
            assert done.returncode == 0, done.stderr[-3000:]
            self.found[world] = torch.load(out, weights_only=False)
        return self.found[world]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(tmp_path_factory.mktemp("ranks"))


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """A nested result as {path: number, tensor or text}."""
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return {path: value}
    found = {f"{path}/": sorted(map(str, value)) if isinstance(value, dict) else len(value)}
    for name, part in items:
        found |= flat(part, f"{path}/{name}")
    return found


def assert_same(some: Any, one: Any, tolerance: float = 1e-10) -> None:
    """Equal but for the order of sums: `tolerance` of the largest component, or of 1e-3.

    A logged loss is added up in float32, and weights have gone through Adam, which makes a step of
    the rounding of a gradient of 0.
    """
    here, there = flat(some), flat(one)
    assert here.keys() == there.keys()
    for path, expected in there.items():
        got = here[path]
        if not isinstance(expected, float | torch.Tensor):
            assert got == expected, path
            continue
        a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (got, expected))
        assert a.shape == b.shape, path
        allowed = {"loss": 1e-4, "weights": 1e-7}.get(path.rpartition("/")[2], tolerance)
        scale = max(float(b.abs().max()) if b.numel() else 0.0, 1e-3)
        torch.testing.assert_close(
            a, b, rtol=0, atol=max(allowed, tolerance) * scale, equal_nan=True, msg=path
        )


def but_for_signs(found: dict[str, Any]) -> dict[str, Any]:
    """Without the first accuracy on pairs: the policy is the reference yet, which leaves rounding alone."""
    first, *rows = found["rows"]
    unsure = {"accuracy", "preference_accuracy"}
    first = {name: value for name, value in first.items() if name not in unsure}
    return found | {"rows": [first, *rows]}


@pytest.mark.parametrize(
    ("engine", "world"),
    [
        pytest.param(engine, world, id=f"{engine.name}-{world}")
        for engine in ENGINES
        for world in WORLDS
        if world == 2 or engine.name in ON_FOUR
    ],
)
def test_an_engine_is_the_same_on_any_number_of_ranks(results, engine, world):
    names = [name for name in results[world]["engines"] if name.startswith(f"{engine.name}-")]
    assert len(names) >= (len(engine.forms) if world == 2 else 1)
    for name in names:
        one = results[1]["engines"][name]
        moved = [bool(gradient.any()) for gradient in one["gradients"]]
        assert len(moved) >= 2 and sum(moved) >= len(moved) / 2
        assert_same(but_for_signs(results[world]["engines"][name]), but_for_signs(one))


@pytest.mark.parametrize("loop", ["pretraining", "finetuning", "reward_model"])
@pytest.mark.parametrize("world", WORLDS)
def test_every_other_loop_is_the_same(results, loop, world):
    """And the same in micro-batches, which all but one rank have."""
    names = [name for name in results[world]["loops"] if name.startswith(loop)]
    assert names
    for name in names:
        assert all(g.any() for g in results[1]["loops"][name]["gradients"])
        assert_same(results[world]["loops"][name], results[1]["loops"][name])


@pytest.mark.parametrize("world", WORLDS)
def test_samples_pairs_and_evaluations_are_the_same(results, world):
    assert_same(results[world]["sampled"], results[1]["sampled"])


@pytest.mark.parametrize("world", WORLDS)
def test_a_checkpoint_goes_on_on_another_number_of_ranks(results, world):
    """World 2 resumes what world 1 has left after three steps, and world 4 what world 2 has."""
    whole = results[1]["resumed"]["uninterrupted"]
    resumed = results[world]["resumed"]["resumed"]
    assert [row["step"] for row in resumed["rows"]] == [4, 5]
    assert_same(resumed, {"rows": whole["rows"][3:], "weights": whole["weights"]})


@pytest.mark.parametrize("world", WORLDS)
def test_float32_differs_by_its_rounding_alone(results, world):
    """After 4 updates of at most 1e-2: measured 4e-5 to 5e-5 of the largest weight."""
    assert_same(results[world]["float32"], results[1]["float32"], tolerance=1e-3)


def test_ppo_stopped_within_a_batch(results):
    """Otherwise the ranks' common decision would not have been asked."""
    steps = len(results[1]["engines"]["ppo-target_kl"]["gradients"])
    assert steps < 2 * 4 * 2  # minibatches x epochs x (policy and critic)


# --- failures -------------------------------------------------------------------------------------

FAILING = """
import multiprocessing, os, platform, signal, subprocess, sys, time
from dataclasses import dataclass
import torch
from harness.ranks import collectives, launch
from harness.flags import TrainingFlags
from harness.command_line import run_script
from harness.errors import UserError
from harness.files import append_jsonl
from harness.run_folder import script_of
from harness.signals import signals_wait
from pathlib import Path

@dataclass(frozen=True)
class Config(TrainingFlags):
    ranks: int = 2
    device: str = "cpu"

launch.LAST = 1

def hang(pids, where, sent, to):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
    if where == "python":
        child.start()
    Path(pids).write_text(f"{os.getpid()} {child.pid or os.getpid()}")
    kill = f"sleep 0.3; kill -{sent} {to}{os.getppid()}; "
    subprocess.Popen(["sh", "-c", kill * 2], start_new_session=True)
    child.join() if where == "python" else sum(range(10**13))

def main(config):
    what, who = sys.argv[1], int(sys.argv[2])
    mine = who in (collectives.rank(), -1)
    print("world", collectives.gather(collectives.rank()))
    if what == "error" and mine:
        raise UserError(f"rank {who} has met an error")
    if what == "bug" and mine:
        raise TypeError("no sentence was made for this")
    if what == "kill" and mine:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "leave" and mine:
        os._exit(0)
    if what == "drift":
        model = torch.nn.Linear(3, 2)
        torch.nn.init.constant_(model.weight, 1.0 + (1e-6 if mine else 0.0))
        torch.nn.init.zeros_(model.bias)
        collectives.check_alike(model)
    if what == "file":
        append_jsonl(Path(sys.argv[3]), [{"rank": collectives.rank()}])
        append_jsonl(Path(sys.argv[3]) / "below a file", [{}])
    if what == "agree":
        launch._require_agreement({"--seed": "1" if mine else "0"})
    if what == "spawn":
        print(script_of(config))
    if what == "hang":
        with signals_wait():
            if mine:
                hang(*sys.argv[3:])
            collectives.gather(0)
    print("all", collectives.gather(2))

if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        platform.system = lambda: "a system without forks"
    run_script(main, Config())
"""


@pytest.fixture
def failing(tmp_path):
    script = tmp_path / "failing.py"
    script.write_text(FAILING, encoding="utf-8")

    def run(*arguments: object) -> Done:
        return command(script, *arguments, cwd=tmp_path)

    return run


@pytest.mark.parametrize("who", [1, -1], ids=["rank 1", "both"])
def test_an_error_ends_all_ranks_with_one_sentence(failing, who):
    done = failing("error", who)
    assert done.returncode == 1
    assert done.stderr.strip() == f"error: rank {who} has met an error"
    assert done.stdout.strip() == "world [0, 1]"  # rank 0 alone prints


@pytest.mark.parametrize("who", [1, -1], ids=["rank 1", "both"])
def test_a_bug_shows_one_traceback(failing, who):
    done = failing("bug", who)
    assert done.returncode == 1
    assert done.stderr.count("TypeError: no sentence was made for this") == 1
    assert "LostRank" not in done.stderr


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("how", ["kill", "leave"])  # the latter with status 0
def test_a_lost_rank_ends_the_run_with_one_sentence(failing, how, who):
    done = failing(how, who)
    assert done.returncode == 1
    assert done.stderr.strip().startswith("error: another process of this run has ended")
    assert len(done.stderr.strip().splitlines()) == 1


def test_ranks_that_have_drifted_apart_are_noticed(failing):
    done = failing("drift", 1)  # that the same on all ranks passes is seen in ranks_worker.py
    assert done.returncode == 1 and "drifted apart" in done.stderr
    assert done.stderr.count("error:") == 1


def test_one_rank_writes_and_its_trouble_is_everyones(failing, tmp_path):
    out = tmp_path / "rows.jsonl"
    done = failing("file", 0, out)
    assert out.read_text(encoding="utf-8") == '{"rank": 0}\n'
    assert done.returncode == 1 and done.stderr.count("error:") == 1
    assert "below a file" in done.stderr or "rows.jsonl" in done.stderr


@pytest.mark.parametrize(("who", "status"), [(-1, 0), (0, 1), (1, 1)])
def test_ranks_of_torchrun_have_the_same_flags(failing, who, status):
    done = failing("agree", who)
    assert done.returncode == status and done.stderr.count("error: --seed") == status


@pytest.mark.parametrize("to", ["", "-"], ids=["kill", "terminal"])  # to the group
@pytest.mark.parametrize("where", ["python", "C"])
@pytest.mark.parametrize("who", [0, 1])
def test_the_second_signal_ends_a_rank_that_hangs(failing, tmp_path, who, where, to):
    """And what it has started, where it answers; the other one waits in a collective."""
    begin = time.monotonic()
    done = failing("hang", who, tmp_path / "pids", where, "INT", to)
    assert time.monotonic() - begin < 30 and done.returncode == 130
    asked, said = done.stderr.splitlines()
    assert asked.startswith("SIGINT: ") and said.startswith("ended by SIGINT")
    assert all(has_ended(int(pid)) for pid in (tmp_path / "pids").read_text().split())


@pytest.mark.skipif(not Path("/proc").exists(), reason="elsewhere ranks learn of it after a step")
def test_ranks_end_with_their_parent(failing, tmp_path):
    done = failing("hang", 1, tmp_path / "pids", "python", "KILL", "")
    assert done.returncode == -signal.SIGKILL
    assert all(has_ended(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_the_first_rank_reads_what_is_typed():
    def run() -> None:
        terminal, end = os.openpty()
        os.open(os.ttyname(end), os.O_RDWR)  # from here on the terminal of this session
        os.dup2(end, 0)
        os.write(terminal, b"a word\n")
        request = launch.RankRequest(2, "cpu")
        launch.run_on_ranks(lambda: collectives.is_main() and print(input()), request)

    assert forked(run).stdout == "a word\n"


def test_ranks_of_another_start_method(tmp_path):
    """Processes that import the script anew, as on macOS and for GPUs."""
    script = tmp_path / "failing.py"
    script.write_text(FAILING, encoding="utf-8")
    command = [sys.executable, str(script), "spawn", "0"]
    found = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, env=found, cwd=tmp_path)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.split() == f"world [0, 1] {tmp_path.name}.failing all [2, 2]".split()


# --- how many -------------------------------------------------------------------------------------


def test_the_weights_of_what_is_named_and_the_memory_that_is_there_decide(tmp_path, monkeypatch):
    """A folder of 60 million weights, whose file is no longer than its header."""
    save_hf(random_gpt(97, 8, n_embd=2), tmp_path / "tiny")
    save_hf(random_gpt(97, 8, n_embd=2), tmp_path / "large")
    weights = {"tiny": ModelFolder.open(tmp_path / "tiny").weights, "large": 60_000_000}
    more = weights["large"] - weights["tiny"]
    path = tmp_path / "large" / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    about, numbers = json.loads(content[8 : 8 + size]), content[8 + size :]
    at = len(numbers)
    about["more"] = {"dtype": "U8", "shape": [more], "data_offsets": [at, at + more]}
    header = json.dumps(about).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + numbers)
        file.truncate(8 + len(header) + at + more)  # a hole
    for name, count in weights.items():
        config = GRPOConfig(model=str(tmp_path / name))
        assert (config.sizes(), config.is_small) == ([count], name == "tiny")
        assert config.sizes() == FinetuningConfig(model=str(tmp_path / name)).sizes()
    monkeypatch.setattr(launch, "cores", lambda: 8)
    room = launch.BYTES_A_RANK + launch.BYTES_A_WEIGHT * 40
    for left, ranks in [(0, 1), (room, 1), (3 * room, 3), (100 * room, 8)]:
        monkeypatch.setattr(launch, "free_memory", lambda left=left: left)
        assert launch.default_ranks(True, "cpu", 40) == ranks


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("milliseconds", [0, 6, 12, 20, 30])
def test_a_rank_that_is_killed_while_ranks_meet_ends_the_run(milliseconds, who):
    @contextmanager
    def guard() -> Iterator[None]:
        if os.environ["LOCAL_RANK"] == str(who):
            kill = (os.getpid(), signal.SIGKILL)
            threading.Timer(milliseconds / 1000, os.kill, kill).start()
        with errors_as_sentences():
            yield

    def run() -> None:
        with errors_as_sentences():
            launch.run_on_ranks(lambda: time.sleep(0.3), launch.RankRequest(2, "cpu"), guard)

    begin = time.monotonic()
    done = forked(run, timeout=60)
    assert time.monotonic() - begin < 10
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()  # below what gloo logs of a connection that closes
    assert said[-1].startswith("error: another process of this run has ended")
    assert sum(line.startswith("error: ") for line in said) == 1
