"""docs/equations.md names functions that exist, all of the equations, and peers with stored numbers."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
PEERS = json.loads((ROOT / "tests" / "rl" / "equations" / "peer_golden.json").read_text("utf-8"))
LIBRARY = [*sorted(ROOT.glob("rl/equations/[a-z]*.py")), ROOT / "reward_model" / "loss.py"]

# Every entry: a heading, one formula, a line `module.function`: source. Peers: ... Mistakes: ...
ENTRY = re.compile(
    r"^### .+\n\n\$\$.+\$\$\n\n(?:[^`\n].*\n\n)?`([\w.]+)`: (\S.+)$", flags=re.MULTILINE
)
ENTRIES = dict(ENTRY.findall(PAGE))


def public_names(path: Path) -> set[str]:
    """Dotted names of its functions and classes."""
    module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    nodes = ast.parse(path.read_text("utf-8")).body
    found = [n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    return {f"{module}.{name}" for name in found if not name.startswith("_")}


def test_every_heading_has_a_formula_a_function_and_a_source() -> None:
    assert len(ENTRIES) == len(re.findall(r"^### ", PAGE, flags=re.MULTILINE)) > 50


def test_functions_of_the_page_exist_and_no_equation_is_left_out() -> None:
    modules = {name.rsplit(".", 1)[0].replace(".", "/") + ".py" for name in ENTRIES}
    existing = set().union(*(public_names(ROOT / module) for module in modules))
    assert set(ENTRIES) <= existing
    assert set().union(*map(public_names, LIBRARY)) <= set(ENTRIES)


def test_math_survives_markdown() -> None:
    """Markdown reads a backslash before punctuation as an escape, so GitHub would eat it."""
    assert re.findall(r"\\[^A-Za-z\s]", PAGE) == []


def test_the_peers_of_an_entry_are_those_with_stored_numbers() -> None:
    """What the page says agrees was computed by that peer, at the table's commit."""
    proven: dict[str, set[str]] = {}
    for entry in PEERS["entries"]:
        assert entry["commit"] == PEERS["peers"][entry["peer"]]["commit"]
        for function in entry["proves"]:
            proven.setdefault(function, set()).add(entry["peer"])
    named = {name: re.search(r" Peers: ([^.]+)\.", said) for name, said in ENTRIES.items()}
    assert {name: set(found[1].split(", ")) for name, found in named.items() if found} == proven
    rows = re.findall(r"^\| ([^|]+) \| (\S+/\S+) \| ([0-9a-f]{7}) \| (\S+) \|$", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(
        (name, peer["repository"], peer["commit"][:7], peer["date"])
        for name, peer in PEERS["peers"].items()
    )
