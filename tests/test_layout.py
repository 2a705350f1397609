"""The shape of the repository: who imports whom, what is named how, how scripts start."""

from __future__ import annotations

import ast
import graphlib
import importlib
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from forked import command

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it where the standard library lacks it

ROOT = Path(__file__).resolve().parents[1]
# Each may import itself and what stands before it.
PACKAGES = ("harness", "data", "gpt", "reward_model", "rl", "report")
ROOMS = ("equations", "batches", "rewards", "run")  # of rl/, likewise
LOOP = ("loop", "actor_critic")
RUNTIME = {*("torch", "tiktoken", "numpy", "matplotlib", "safetensors", "tyro", "tqdm", "jinja2")}
OPTIONAL = {
    "data/files/published.py": {"huggingface_hub", "pyarrow"},
    "gpt/gguf_file.py": {"gguf"},
    "gpt/huggingface.py": {"huggingface_hub"},
    "gpt/tokenizer_files.py": {"tokenizers"},
}  # extras: inside functions of these files only


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_modules(tree: ast.AST, package: str) -> Iterator[str]:
    """Every module name a file imports, inside functions and through importlib too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, [package if node.level else "", node.module or ""]))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)


def script_files() -> list[Path]:
    """By text, so that a file that does not parse fails its own tests and not the collection."""
    guard = re.compile(r"^if __name__ == ", re.MULTILINE)
    files = python_files(*PACKAGES, "studies", "scripts", "bench")
    return [path for path in files if guard.search(path.read_text(encoding="utf-8"))]


# Engines but GRPO's: test_studies.py has their flags parsed.
PARSED = re.compile(r"rl/(?!grpo_engine)\w+_engine\.py")
PACKAGE_FILES = python_files(*PACKAGES)
SCRIPTS = script_files()


def test_imports_point_one_way() -> None:
    for path in PACKAGE_FILES:
        package = path.relative_to(ROOT).parts[0]
        allowed = {*PACKAGES[: PACKAGES.index(package) + 1], *RUNTIME, *sys.stdlib_module_names}
        allowed |= OPTIONAL.get(label(path), set())
        found = {name.split(".")[0] for name in imported_modules(tree_of(path), package)}
        assert found <= allowed, f"{label(path)} imports {sorted(found - allowed)}"


def test_imports_make_no_circle() -> None:
    """At the top of files: so any of them may be the first that a process imports."""
    names = {module_name(path): path for path in PACKAGE_FILES}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        nodes = [n for n in tree_of(path).body if isinstance(n, (ast.Import, ast.ImportFrom))]
        graph[name] = {found for n in nodes for found in imported_modules(n, name)} & names.keys()
    assert sum(map(len, graph.values())) > 300
    graphlib.TopologicalSorter(graph).prepare()  # a CycleError names the circle


def test_every_package_prepares_its_process_before_pytorch_is_loaded() -> None:
    for package in (*PACKAGES[1:-1], "studies"):
        assert "harness" in imported_modules(tree_of(ROOT / package / "__init__.py"), package)


def test_engines_import_no_engine() -> None:
    for path in sorted((ROOT / "rl").glob("*_engine.py")):
        names = imported_modules(tree_of(path), "rl")
        assert [name for name in names if re.search(r"_engine(\.|$)", name)] == []


def test_imports_point_one_way_between_the_rooms_of_rl() -> None:
    """equations <- batches <- rewards <- run <- loop <- actor_critic <- run/engine.py <- the engines."""
    for path in python_files("rl"):
        room, *rest = path.relative_to(ROOT / "rl").parts
        allowed = set(ROOMS[: ROOMS.index(room) + 1] if room in ROOMS else (*ROOMS, *LOOP))
        if rest == ["engine.py"]:
            allowed |= {*LOOP}
        commands = ("__init__.py", "export.py", "memory.py", "talk.py")
        if room.endswith("_engine.py") or room in commands:
            allowed |= {"engine"}
        if room == "memory.py":  # which reads their presets
            allowed |= {"grpo_engine", "ppo_engine"}
        modules = {name for name in imported_modules(tree_of(path), "rl") if "rl." in name}
        names = {"engine" if "run.engine" in name else name.split(".")[1] for name in modules}
        assert names <= allowed, f"{label(path)} imports {sorted(names - allowed)}"


def test_declared_requirements_agree() -> None:
    """requirements.txt: the project's own list, torch with a cap, what tests it, the project last."""
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = whole["project"]
    assert whole["tool"]["uv"]["constraint-dependencies"] == ["torch<2.14"]  # for `uv sync`
    assert whole["dependency-groups"]["dev"] == ["pytest>=8.2", "pytest-xdist>=3.8"]
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    assert lines[0] == "torch>=2.6,<2.14"
    assert lines[-3:] == ["pytest>=8.2", "pytest-xdist>=3.8", "-e ."]
    extras = project["optional-dependencies"]
    assert ["torch>=2.6", *lines[1:-3]] == project["dependencies"]
    assert {re.split(r"[<>=]", line)[0] for line in project["dependencies"]} == RUNTIME
    names = {re.split(r"[<>=]", line)[0] for lines in extras.values() for line in lines}
    assert names == set.union(*OPTIONAL.values())


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.fixture(scope="module")
def imported() -> None:
    """Every module of ours, once for all forks."""
    for path in PACKAGE_FILES:
        importlib.import_module(module_name(path))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a command is a fork here")
@pytest.mark.parametrize("path", [p for p in SCRIPTS if not PARSED.search(label(p))], ids=label)
def test_a_command_explains_itself(path: Path, imported: None, tmp_path: Path) -> None:
    """`--help`, from another folder: modules by their name, scripts by their path."""
    module = path.relative_to(ROOT).parts[0] in (*PACKAGES, "studies")
    words = ["-m", module_name(path)] if module else [path]
    done = command(*words, "--help", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == [], "--help wrote files"
