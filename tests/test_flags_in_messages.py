"""A flag that a message names exists in every command that can say the message."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("harness", "data", "gpt", "reward_model", "rl")
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z-]*[a-z])")
COMMAND = re.compile(r"python -m ([\w.]+)(.*?)(?=`|\n|$)")  # what is typed there is that command's


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text("utf-8"))


MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
    if path.name != "__init__.py"
)


def flags_of(module: str) -> set[str] | None:
    """The flags of a command, by the dataclass that it parses; None for what is no command."""
    for node in tree(module).body:
        if isinstance(node, ast.If) and "__name__" in ast.dump(node.test):
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            found = importlib.import_module(module)
            config = next((getattr(found, name) for name in names if name.endswith("Config")), None)
            config = config or (found.ENGINE.config if "ENGINE" in names else None)
            if config is None:
                return None
            fields = dataclasses.fields(config)
            return {field.name.replace("_", "-") for field in fields} | {"help", "debug"}
    return None


@cache
def commands() -> dict[str, set[str]]:
    found = {module: flags_of(module) for module in MODULES}
    return {module: flags for module, flags in found.items() if flags is not None}


@cache
def imported(module: str) -> frozenset[str]:
    """Our modules that a module imports, and theirs."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                waiting += [name for name in names if name in MODULES]
    return frozenset(seen)


def messages(module: str) -> list[str]:
    """The texts of a module's UserErrors and ValueErrors, with {} where a value goes."""
    texts = []
    for node in ast.walk(tree(module)):
        if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in (
            "UserError",
            "ValueError",
        ):
            continue
        for text in node.args:
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            texts.append("".join(p.value if isinstance(p, ast.Constant) else "{}" for p in parts))
    return texts


LOOKING = {"rl.doctor", "rl.export", "rl.memory", "rl.report", "rl.talk", "gpt.tokenizer_training"}
EXEMPT = {  # (module, command): why that command never says that module's messages
    ("gpt.finetuning", "*"): "others take its examples and start no run of it",
    ("gpt.pretraining", "*"): "others take its loss and start no run of it",
    ("harness.best_step", "*"): "said only where --keep-best was given",
    ("reward_model.pair_files", "rl.grpo_iterative_engine"): "asks for no margins",
    ("reward_model.reward_model_training", "rl.grpo_iterative_engine"): "asks for no margins",
    ("reward_model.world_pairs", "rl.grpo_iterative_engine"): "asks for no margins",
    ("rl.batches.tools", "rl.dpo_engine"): "samples nothing that is trained on",
    ("rl.training.open_reward", "rl.dpo_engine"): "has no weights of answers to apply",
}


def can_say(module: str) -> list[str]:
    """The commands that may end with a message of `module`.

    A command that looks at runs and trains nothing says its own, and those of rl/commands/.
    """
    return [
        command
        for command in commands()
        if module == command
        or module in imported(command)
        and not {(module, command), (module, "*")} & EXEMPT.keys()
        and command not in LOOKING
    ]


def lacking(flags: list[str], command: str) -> list[str]:
    """Those of the flags that a command does not know."""
    return [flag for flag in flags if flag.removeprefix("no-") not in commands()[command]]


@pytest.mark.parametrize("module", [module for module in MODULES if messages(module)])
def test_a_flag_in_a_message_is_one_of_the_command(module: str) -> None:
    lacks = []
    for text in messages(module):
        for command, rest in COMMAND.findall(text):
            if command in commands():
                lacks += [(command, flag) for flag in lacking(FLAG.findall(rest), command)]
        flags = FLAG.findall(COMMAND.sub("", text))
        lacks += [
            (command, flag) for command in can_say(module) for flag in lacking(flags, command)
        ]
    assert lacks == []


def test_exemptions_are_needed() -> None:
    for module, command in EXEMPT:
        flags = [flag for text in messages(module) for flag in FLAG.findall(text)]
        told = commands() if command == "*" else [command]
        assert any(module in imported(name) and lacking(flags, name) for name in told)
