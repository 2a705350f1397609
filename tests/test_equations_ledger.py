"""docs/equations.md names only what exists, and leaves no public function of the library out."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEDGER = ROOT / "docs" / "equations.md"
PEER_NUMBERS = json.loads(
    (ROOT / "tests" / "rl" / "equations" / "peer_golden.json").read_text(encoding="utf-8")
)
OUTSIDE = {  # equations that live where the tensors are made, and the lines around a formula
    "data.collate.first_eos_mask",
    "harness.tensors.at_least_float32",
    "harness.tensors.axes",
    "harness.tensors.masked_mean",
    "harness.tensors.masked_sum",
    "harness.tensors.where_finite",
    "gpt.log_probs.full_kl",
    "gpt.log_probs.kl_from_logits",
    "gpt.log_probs.token_log_probs",
    "gpt.log_probs.token_scores",
    "gpt.distillation.distillation_loss",
    "gpt.distillation.forward_kl",
    "gpt.teacher.reverse_kl",
    "reward_model.accuracy_report.calibration",
    "rl.rewards.verifiable.pass_at_k",
    "rl.training.metrics.explained_variance",
}
LIBRARY = (
    "gpt.distillation",
    "reward_model.loss",
    "rl.equations.advantages",
    "rl.equations.best_of_n",
    "rl.equations.ensembles",
    "rl.equations.kl",
    "rl.equations.losses",
    "rl.equations.preference_losses",
    "rl.equations.sampler_correction",
    "rl.equations.token_rewards",
)
SECTIONS = {"gpt.distillation": "# --- the formulas"}  # where a module holds more than equations


def source(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


@cache
def definitions(path: Path) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }


def library_functions() -> set[str]:
    """Dotted public names; of the modules in SECTIONS those under one heading."""
    names = set()
    for module in LIBRARY:
        lines = source(module).read_text("utf-8").splitlines()
        first, last = 0, len(lines) + 1
        if module in SECTIONS:
            headings = [n for n, line in enumerate(lines, 1) if line.startswith("# --- ")]
            (first,) = (n for n in headings if lines[n - 1].startswith(SECTIONS[module]))
            last = min(n for n in [*headings, last] if n > first)
        for name, node in definitions(source(module)).items():
            if not name.startswith("_") and first < node.lineno < last:
                names.add(f"{module}.{name}")
    return names


def entries() -> dict[str, str]:
    """Heading -> text of every entry (third-level headings), without what follows its section."""
    text = LEDGER.read_text(encoding="utf-8")
    parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)[1:]
    return {
        title: re.split(r"^(?:## |---$)", body, flags=re.MULTILINE)[0]
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }


def line_of(body: str) -> tuple[str, str]:
    """An entry's function, and what is said of it: source, peers, mistakes."""
    ((function, rest),) = re.findall(r"^`([\w.]+)`: (\S.+)$", body, flags=re.MULTILINE)
    return function, rest


def peers_of(rest: str) -> set[str]:
    named = re.search(r" Peers: ([^.]+)\.", rest)
    return set(named[1].split(", ")) if named else set()


ENTRIES = entries()


@pytest.mark.parametrize("title", ENTRIES)
def test_entry_is_complete(title):
    """A formula as GitHub renders it, a source, one function."""
    body = ENTRIES[title]
    assert len(re.findall(r"^\$\$.+\$\$$", body, flags=re.MULTILINE)) == 1
    assert line_of(body)[1]


def test_math_survives_markdown():
    """Markdown reads a backslash before punctuation as an escape, so GitHub would eat it."""
    assert re.findall(r"\\[^A-Za-z\s]", LEDGER.read_text(encoding="utf-8")) == []


def test_functions_of_the_ledger_and_of_the_library_are_the_same():
    named = [line_of(body)[0] for body in ENTRIES.values()]
    assert len(named) == len(set(named)), "a function has two entries"
    assert set(named) == library_functions() | OUTSIDE


def test_tests_named_in_passing_exist():
    """Also those in the running text, such as `test_x` without a path."""
    known = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in (*definitions(path), path.name)
    }
    mentioned = set(re.findall(r"`(?:[\w/]+/)?(test_\w+(?:\.py)?)`", LEDGER.read_text("utf-8")))
    assert mentioned - known == set()


# --- peers ------------------------------------------------------------------------------------


def test_the_peers_of_an_entry_are_those_with_stored_numbers():
    """What the ledger says agrees was computed by that peer, at the table's commit."""
    proven: dict[str, set[str]] = {}
    for entry in PEER_NUMBERS["entries"]:
        assert entry["commit"] == PEER_NUMBERS["peers"][entry["peer"]]["commit"]
        for function in entry["proves"]:
            proven.setdefault(function, set()).add(entry["peer"])
    lines = dict(map(line_of, ENTRIES.values()))
    assert {name: peers for name, rest in lines.items() if (peers := peers_of(rest))} == proven


def test_the_table_of_peers_is_that_of_the_stored_numbers():
    rows = re.findall(
        r"^\| ([^|]+) \| (\S+/\S+) \| ([0-9a-f]{7}) \| (\S+) \|$", LEDGER.read_text("utf-8"), re.M
    )
    peers = PEER_NUMBERS["peers"].items()
    assert sorted(rows) == sorted(
        (name, peer["repository"], peer["commit"][:7], peer["date"]) for name, peer in peers
    )
