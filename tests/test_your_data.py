"""docs/your_data.md: its commands, as printed, on small files of each kind and at toy size."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from data.sources import run_with_presets
from gpt import finetuning, pretraining
from gpt.checkpoint import load_gpt
from gpt.model import PRESETS, GPTConfig
from report import __main__ as report_command
from reward_model import reward_model_training
from rl import dpo_engine, grpo_engine, talk
from rl.talk import Talk, TalkConfig

ROOT = Path(__file__).resolve().parents[1]
TOY: dict[ModuleType, dict[str, Any]] = {
    pretraining: dict(steps=4, eval_every=2, batch_size=2),
    reward_model_training: dict(steps=2, batch_size=4),
    finetuning: dict(steps=2, eval_every=2),
    grpo_engine: dict(
        steps=2, prompts_per_step=2, max_new_tokens=8, eval_prompts=4, test_prompts=4, eval_every=1
    ),
    dpo_engine: dict(steps=2, batch_size=4, eval_prompts=4, test_prompts=4, max_new_tokens=8),
}
WORDS = ("kettle", "lamp", "chair", "book", "clock", "door", "glass")


def texts(n: int) -> tuple[str, str, str]:
    a, b, c = (WORDS[(n * k + k) % 7] for k in (1, 3, 5))
    return f"Is the {a} better than {n} of the {b}?", f"Yes, the {a} is kind.", f"No {c}, go away."


def hh(n: int) -> dict[str, Any]:
    q, good, bad = texts(n)
    start = f"\n\nHuman: {q}\n\nAssistant: Which one?\n\nHuman: The {WORDS[n % 7]}.\n\nAssistant:"
    return {"chosen": f"{start} {good}", "rejected": f"{start} {bad}"}


def write(path: Path) -> None:
    """80 rows of it."""
    path.write_text("".join(json.dumps(hh(n)) + "\n" for n in range(80)), encoding="utf-8")


def printed(heading: str) -> list[str]:
    page = (ROOT / "docs" / "your_data.md").read_text(encoding="utf-8")
    section = page.split(f"## {heading}\n")[1]
    return re.findall(r"```\n(.*?)```", section, re.S)[0].splitlines()


def run(command: str, patch: pytest.MonkeyPatch) -> None:
    """The command, in this process and at toy size."""
    python, option, name, *arguments = shlex.split(command)
    assert (python, option) == ("python", "-m")
    module = report_command if name == "report" else importlib.import_module(name)
    patch.setattr(sys, "argv", [name, *arguments])
    if module is report_command:
        module.main(module.ReportConfig(tuple(map(Path, arguments))))
    elif module is talk:
        reward = arguments[arguments.index("--reward") + 1] if "--reward" in arguments else None
        opened = Talk(TalkConfig(Path(arguments[0]), reward=reward, device="cpu"))
        assert opened.answer("Is it kind?")[0].reward is not None
    else:
        (config,) = (
            c for n, c in vars(module).items() if n.endswith("Config") and c.__module__ == name
        )
        run_with_presets(module.main, config, module.PRESETS)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # one rank
    for place in ("data.sources", "report.__main__"):
        if hasattr(importlib.import_module(place), "RUNS"):
            monkeypatch.setattr(f"{place}.RUNS", tmp_path / "runs")
    monkeypatch.setitem(PRESETS, "own", GPTConfig(context=1024, n_layer=1, n_head=2, n_embd=16))
    for module, flags in TOY.items():
        monkeypatch.setitem(module.PRESETS, "own", module.PRESETS["own"] | flags)
    return tmp_path


def test_the_walk_of_the_page(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(toy / "hh.jsonl")
    commands = printed("From a file to a comparison")
    assert len(commands) == 6
    for command in commands:
        run(command, monkeypatch)
    assert (toy / "runs" / "comparison.html").exists()
    model, tokenizer = load_gpt(toy / "runs" / "hh-dpo")
    assert model.config.context == 1024 and tokenizer.name.startswith("hh-")
    echo, *others = printed("A reward of your own")
    found = re.match(r"echo '(.*)' > (\S+)$", echo)
    assert found is not None
    (toy / found[2]).write_text(found[1], encoding="utf-8")
    for command in others:
        run(command, monkeypatch)
