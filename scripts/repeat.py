"""Run something again from what its folder says, and compare the two.

    python scripts/repeat.py --run runs/grpo-reviews-tiny --out runs/again

config.json of the folder names the script, its flags and inputs, and how many ranks and threads the
run had: all of them are used again. What cannot be, such as the version of PyTorch, is pointed out.
A folder may come from somebody else: only commands of this repository are started, and a reward that
is somebody's function is run with --run-reward alone.
Metrics, but for what is measured by a clock, and weights must then be the same bit for bit.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file

from harness.command_line import run_command, run_script
from harness.errors import UserError
from harness.files import display_path, read_jsonl
from harness.paths import REPOSITORY
from harness.run_folder import (
    INPUTS,
    MADE_WITH,
    SCRIPT,
    flag_name,
    input_digests,
    made_with,
    read_record,
)
from rl.rewards.sources import NAMED

BY_THE_CLOCK = ("seconds", "tokens_per_second", "pairs_per_second")
COMMANDS = (
    "gpt.pretraining", "gpt.finetuning", "gpt.distillation", "reward_model.reward_model_training",
    "reward_model.outcome_training", "scripts.make_teacher",
    *(f"rl.{path.stem}" for path in (REPOSITORY / "rl").glob("*_engine.py")),
)  # fmt: skip


@dataclass(frozen=True)
class RepeatConfig:
    """Repeat a run and compare."""

    run: Path
    """Folder of the run."""
    out: Path
    """Folder for the repetition."""
    run_reward: bool = False
    """Run the reward function that the folder names. It is code and has your rights: read it first."""
    debug: bool = False
    """Show the traceback of an error."""


def restored(record: Mapping[str, Any], **changes: Any) -> Any:
    """The config that a run was started with, from its config.json; UserError if it does not fit."""
    flags = {
        name: value for name, value in record.items() if name not in (SCRIPT, INPUTS, MADE_WITH)
    }
    if record[SCRIPT] not in COMMANDS:  # before anything is imported: it could be any code
        raise UserError(
            f"the run is of {record[SCRIPT]!r:.60}, which is none of the commands here: use its checkout"
        )
    sys.path.append(str(REPOSITORY))  # the scripts are no package of an installation
    module = importlib.import_module(record[SCRIPT])
    config = config_class(module)
    kinds = {field.name: str(field.type) for field in dataclasses.fields(config)}
    if kinds.keys() != flags.keys():
        raise UserError(
            f"{record[SCRIPT]} has other flags today than the run: use the checkout of the run, its "
            f"revision is {record.get(MADE_WITH, {}).get('git')}"
        )
    values = {name: as_kind(flag, kinds[name]) for name, flag in flags.items()}
    return config(**(values | {name: changes[name] for name in changes.keys() & kinds.keys()}))


def config_class(module: ModuleType) -> Any:
    return next(
        value
        for name, value in vars(module).items()
        if name.endswith("Config") and getattr(value, "__module__", "") == module.__name__
    )


def as_kind(value: Any, kind: str) -> Any:
    """A flag as its field holds it: JSON knows neither paths nor tuples."""
    if isinstance(value, list):
        return tuple(as_kind(each, kind) for each in value)
    return Path(value) if isinstance(value, str) and "Path" in kind else value


def differences(first: Path, second: Path) -> list[str]:
    """What differs between two runs' metrics and weights, a sentence each; [] if nothing does."""
    rows, again = (
        [
            {key: value for key, value in row.items() if not key.startswith(BY_THE_CLOCK)}
            for row in read_jsonl(folder / "metrics.jsonl")
        ]
        for folder in (first, second)
    )
    found = []
    if len(rows) != len(again):
        found.append(f"{len(rows)} steps became {len(again)}")
    for row, other in zip(rows, again, strict=False):
        keys = sorted(key for key in row | other if row.get(key) != other.get(key))
        if keys:
            key = keys[0]
            found.append(f"step {row.get('step')}: {key} {row.get(key)} became {other.get(key)}")
            break
    for path in sorted(first.glob("*.safetensors")):
        twin = second / path.name
        if not twin.exists() or not same_tensors(path, twin):
            found.append(f"{path.name} differs")
    return found


def same_tensors(first: Path, second: Path) -> bool:
    """Whether two files hold the same tensors; their headers are written in any order."""
    ours, theirs = load_file(first), load_file(second)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


def main(config: RepeatConfig) -> None:
    """Repeat the run and compare; UserError if anything is different."""
    record = read_record(config.run)
    reward = record.get("reward")
    if reward not in (None, *NAMED) and not config.run_reward:
        raise UserError(
            f"the run's reward is {reward!r:.60}, which is code and would run with your rights: read "
            "it, then add --run-reward"
        )
    was = record.get(MADE_WITH, {})
    ranks, threads = was.get("ranks", 1), was.get("threads", 1)
    flags = restored(record, out=config.out, resume=False, ranks=ranks)
    for flag, digests in input_digests(flags).items():
        if record.get(INPUTS, {}).get(flag) != digests:
            raise UserError(
                f"{flag_name(flag)} of the run in {display_path(config.run)} is no longer what it was: "
                "restore it"
            )
    os.environ["OMP_NUM_THREADS"] = str(ranks * threads)
    torch.set_num_threads(threads)
    run_script(sys.modules[type(flags).__module__].main, flags)
    now = made_with(flags) | {"ranks": ranks, "threads": threads}
    other = [f"{key} {was.get(key)} is {now[key]} here" for key in now if now[key] != was.get(key)]
    if other:
        print(f"not as it was: {'; '.join(other)}")
    found = differences(config.run, config.out)
    if found:
        raise UserError(f"the repetition is not the same: {'; '.join(found)}")
    print("the repetition is the same: every metric and every weight, bit for bit")


if __name__ == "__main__":
    run_command(main, RepeatConfig)
