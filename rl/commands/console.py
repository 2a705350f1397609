"""`glassbox grpo ...` for `python -m rl.grpo_engine ...`: every command by its short name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness.signals import forgiving_output

ENGINES = sorted(path.stem for path in Path(__file__).resolve().parents[1].glob("*_engine.py"))
STAGES = {
    **{name: f"gpt.{name}" for name in ("pretraining", "finetuning", "distillation")},
    "tokenizer": "gpt.tokenizer_training",
    "reward-model": "reward_model.reward_model_training",
    "outcomes": "reward_model.outcome_training",
    **{name: f"rl.{name}" for name in ("talk", "doctor", "report", "export", "memory")},
}


def modules() -> dict[str, str]:
    """{short name: module} of every command."""
    short = {name.removesuffix("_engine").replace("_", "-"): f"rl.{name}" for name in ENGINES}
    return STAGES | short


def main() -> None:
    """Become the command that the first argument names."""
    known = modules()
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        lines = "\n".join(f"    glassbox {name:20} python -m {known[name]}" for name in known)
        asked = sys.argv[1:2] in (["--help"], ["-h"])
        with forgiving_output():  # glassbox --help | head
            sys.exit(print(lines) if asked else f"error: name a command:\n{lines}")
    os.execv(sys.executable, [sys.executable, "-m", known[sys.argv[1]], *sys.argv[2:]])
