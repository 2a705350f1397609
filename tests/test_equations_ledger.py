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
OUTSIDE = {  # equations that live where the tensors are made, and the rules of their border
    "data.collate.first_eos_mask",
    "harness.equation_checks.at_least_float32",
    "harness.equation_checks.check_shapes",
    "harness.equation_checks.finite_inputs",
    "harness.equation_checks.masked_numbers",
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


def field(body: str, name: str) -> list[str]:
    """The code-styled names in one bullet of an entry."""
    bullet = re.search(rf"^- \*\*{name}:\*\* (.+)$", body, flags=re.MULTILINE)
    return re.findall(r"`([^`]+)`", bullet.group(1)) if bullet else []


ENTRIES = entries()


@pytest.mark.parametrize("title", ENTRIES)
def test_entry_is_complete(title):
    """A formula as GitHub renders it, a source, one function."""
    body = ENTRIES[title]
    assert len(re.findall(r"^\$\$.+\$\$$", body, flags=re.MULTILINE)) == 1
    assert re.search(r"^- \*\*Source:\*\* \S", body, flags=re.MULTILINE)
    assert len(field(body, "Function")) == 1


def test_math_survives_markdown():
    """Markdown reads a backslash before punctuation as an escape, so GitHub would eat it."""
    assert re.findall(r"\\[^A-Za-z\s]", LEDGER.read_text(encoding="utf-8")) == []


def test_functions_of_the_ledger_and_of_the_library_are_the_same():
    named = [name for body in ENTRIES.values() for name in field(body, "Function")]
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


def test_arguments_and_fields_of_the_tables_exist():
    """Every code-styled name in the closing table: function, argument or config field."""
    known: set[str] = set()
    files = [
        *map(source, LIBRARY),
        *(ROOT / "rl").glob("*_engine.py"),
        *(ROOT / "rl" / "training").glob("*.py"),
        ROOT / "rl" / "batches" / "preferences.py",
        ROOT / "gpt" / "generate.py",
        ROOT / "gpt" / "log_probs.py",
    ]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                known.add(node.name)
            elif isinstance(node, ast.arg):
                known.add(node.arg)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                known.add(node.target.id)
    tables = LEDGER.read_text(encoding="utf-8").split("## Symbols, fields, defaults")[1]
    names = {re.sub(r"=.*", "", name) for name in re.findall(r"`([^`]+)`", tables)} - {"--help"}
    assert names - known == set()


# --- peers ------------------------------------------------------------------------------------


def named_peers() -> dict[str, set[tuple[str, str]]]:
    """Function -> (peer, callable) that the ledger says agree with it."""
    texts = {
        field(body, "Function")[0]: bullet.group(1)
        for body in ENTRIES.values()
        if (bullet := re.search(r"^- \*\*Peers:\*\* (.+)$", body, flags=re.MULTILINE))
    }
    names = "|".join(PEER_NUMBERS["peers"])
    return {
        function: set(re.findall(rf"({names}) `([\w.]+)`", text))
        for function, text in texts.items()
    }


def proven_peers() -> dict[str, set[tuple[str, str]]]:
    """The same for the stored numbers, with the callable's whole path; made at the table's commit."""
    proven: dict[str, set[tuple[str, str]]] = {}
    for entry in PEER_NUMBERS["entries"]:
        assert entry["commit"] == PEER_NUMBERS["peers"][entry["peer"]]["commit"]
        for function in entry["proves"]:
            proven.setdefault(function, set()).add((entry["peer"], entry["callable"]))
    return proven


@pytest.mark.parametrize("function", named_peers())
def test_named_peers_have_stored_numbers(function):
    proven = proven_peers().get(function, set())
    named = named_peers()[function]
    assert named, f"{function}: no peer and callable could be read from its line"
    for peer, name in named:
        found = [p for p in proven if p[0] == peer and f".{p[1]}".endswith(f".{name}")]
        assert found, f"{function}: peer_golden.json has no entry of {peer} {name}"


def test_every_proven_function_names_all_its_peers():
    named = {function: {peer[0] for peer in peers} for function, peers in named_peers().items()}
    proven = {function: {peer[0] for peer in peers} for function, peers in proven_peers().items()}
    assert named == proven


def test_the_table_of_peers_is_that_of_the_stored_numbers():
    rows = re.findall(
        r"^\| ([^|]+) \| (\S+/\S+) \| ([0-9a-f]{7}) \| (\S+) \|$", LEDGER.read_text("utf-8"), re.M
    )
    peers = PEER_NUMBERS["peers"].items()
    assert sorted(rows) == sorted(
        (name, peer["repository"], peer["commit"][:7], peer["date"]) for name, peer in peers
    )
