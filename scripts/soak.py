"""Kill training scripts again and again, resume them, and compare with runs that nobody disturbed.

    python scripts/soak.py                                   every script, on one rank and on two
    python scripts/soak.py --only ppo_engine finetuning      some of them

A run of toy size gets SIGKILL at seeded moments: as it begins, after some step, while state.pt is
being written, after its last step. Then it is resumed to its end. Weights, metrics but for times, samples
and reports must be those of the other run, bit for bit.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from gpt.checkpoint import save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.command_line import run_command
from harness.errors import UserError
from harness.files import read_jsonl
from harness.paths import MODEL_FILE, REPOSITORY, RUNS, STATE_FILE
from harness.run_folder import CONFIG_FILE
from harness.training_state import read_state
from rl.run.engine import every_engine

STEPS = 6
MOMENTS = ("begin", "step", "write", "step", "end")
LONGEST = 900.0  # seconds for a run
BY_THE_CLOCK = ("seconds", "tokens_per_second", "pairs_per_second")

# Flags that make a script a matter of seconds; {inputs} stands for their folder.
EVALUATED = "--eval-every 3 --eval-prompts 4 --test-prompts 4"
START = f"--model {{inputs}}/base --max-new-tokens 12 {EVALUATED}"
SAMPLES = f"{START} --prompts-per-step 4 --group-size 2"
ENGINE_FLAGS = {  # by what an engine learns from
    "reward": f"{SAMPLES} --reward-model {{inputs}}/reward_model",
    "teacher": f"{SAMPLES} --teacher {{inputs}}/teacher",
    "pairs": f"{START} --reward-model {{inputs}}/reward_model",
}
REWARD_MODEL = "reward_model.reward_model_training"
SCRIPTS = {
    "gpt.pretraining": "--batch-size 2 --eval-every 100",
    "gpt.finetuning": "--model {inputs}/base --pairs {inputs}/reward_model/pairs.jsonl --batch-size 4 "
    "--eval-every 3",
    REWARD_MODEL: "--model {inputs}/base --pairs 64 --held-out-pairs 16 --responses-per-prompt 4 "
    "--max-response-tokens 12 --batch-size 4",
    **{e.module: f"{ENGINE_FLAGS[e.learns_from]} {e.toy}" for e in every_engine()},
}


@dataclass(frozen=True)
class Run:
    """A run folder, and how its script is started."""

    module: str
    folder: Path
    inputs: Path
    ranks: int = 1

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, with --resume where there is something to resume."""
        flags = f"{SCRIPTS[self.module]} --steps {STEPS} --device cpu --save-every 1"
        flags += f" --ranks {self.ranks} --out {self.folder}"
        if (self.folder / STATE_FILE).exists() or (self.folder / MODEL_FILE).exists():
            flags += " --resume"
        command = [sys.executable, "-m", self.module, *flags.format(inputs=self.inputs).split()]
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self.folder.with_suffix(".log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=REPOSITORY, stdout=log, stderr=log, start_new_session=True
            )

    def finish(self) -> None:
        """Take it to its end."""
        if status := self.start().wait(LONGEST):
            raise UserError(f"status {status}: see {self.folder.with_suffix('.log')}")

    def rows(self) -> int:
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0


def kill(run: Run, moment: str, rng: random.Random) -> bool:
    """Start the run and kill it at such a moment; False where it ended before. Its state must be good."""
    row = STEPS if moment == "end" else rng.randint(min(run.rows() + 1, STEPS), STEPS)

    def written() -> set[Path]:
        return set(run.folder.glob(f".{STATE_FILE}.*.tmp"))

    before, process = written(), run.start()
    reached = {
        "begin": lambda: (run.folder / CONFIG_FILE).exists(),
        "write": lambda: run.rows() >= row - 1 and bool(written() - before),
    }.get(moment, lambda: run.rows() >= row)
    while process.poll() is None and not reached():
        time.sleep(0.001)
    time.sleep(rng.random() / 5 if moment == "step" else 0)
    seen = run.rows()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    killed = process.wait() < 0
    if (run.folder / STATE_FILE).exists():
        saved = int(read_state(run.folder)["step"])
        if saved < seen - 1:
            raise UserError(f"step {seen - 1} was saved, and {saved} is left")
    return killed


def content(path: Path) -> object:
    """What must be equal of a file: of pictures, and of what names its folder, that it is there."""
    if path.suffix == ".safetensors" and path.is_file():
        return {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}
    if path.name == "metrics.jsonl" and path.is_file():
        rows = read_jsonl(path)
        return [{k: v for k, v in r.items() if not k.startswith(BY_THE_CLOCK)} for r in rows]
    compared = path.is_file() and (path.suffix == ".jsonl" or path.name == "report.json")
    return path.read_bytes() if compared else path.is_file()


def soak(module: str, ranks: int, out: Path, moments: Sequence[str] = MOMENTS) -> int:
    """How many kills a run survived. UserError if it did not."""
    name, rng = f"{module}-{ranks}", random.Random(f"{module} {ranks}")
    shutil.rmtree(out / name, ignore_errors=True)
    whole, run = (
        Run(module, out / name / each, out / "inputs", ranks) for each in ("whole", "run")
    )
    whole.finish()
    kills = sum(kill(run, moment, rng) for moment in moments)
    run.finish()
    for file in {path.name for each in (whole, run) for path in each.folder.iterdir()}:
        if content(whole.folder / file) != content(run.folder / file):
            raise UserError(f"{file} of {out / name} differs")
    return kills


def make_inputs(inputs: Path) -> None:
    """A base model and a teacher with random weights, and a reward model."""
    tokenizer = load_tokenizer("glassbox")
    for seed, name in enumerate(("base", "teacher")):
        shape = GPTConfig(tokenizer.n_vocab, context=128, n_layer=2, n_head=2, n_embd=32)
        model = GPT(shape).initialize(torch.Generator().manual_seed(seed))
        save_gpt(inputs / name / MODEL_FILE, model, tokenizer)
    Run(REWARD_MODEL, inputs / "reward_model", inputs).finish()


@dataclass(frozen=True)
class SoakConfig:
    """Kill training scripts, resume them, and compare with runs that nobody disturbed."""

    only: tuple[str, ...] = ()
    """Names of scripts; default: all."""


def main(config: SoakConfig) -> None:
    out = RUNS / "soak"
    make_inputs(out / "inputs")
    for module, ranks in itertools.product(SCRIPTS, (1, 2)):
        name = module.split(".")[-1]
        if name in (config.only or name):
            kills = soak(module, ranks, out)
            print(f"{name}, {ranks} ranks: {kills} kills, and the same in the end", flush=True)


if __name__ == "__main__":
    run_command(main, SoakConfig)
