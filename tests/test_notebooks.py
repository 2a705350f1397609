"""The committed notebooks as a reader opens them: complete, clean and equal to their sources.

Nothing is executed here; `python notebooks/build.py --check` does that.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from course import explorables, plots

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
SOURCES = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@cache
def cells_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def texts(path: Path, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == kind]


def outputs(path: Path) -> list[dict[str, Any]]:
    return [output for cell in cells_of(path) for output in cell.get("outputs", [])]


def printed(path: Path) -> str:
    """All text of all outputs; pictures left out."""
    parts = []
    for output in outputs(path):
        parts += output.get("text", [])
        for kind, content in output.get("data", {}).items():
            parts += content if kind.startswith("text/") else []
    return "".join(parts)


@pytest.fixture(scope="module")
def build(require: Callable[[str], ModuleType]) -> ModuleType:
    """notebooks/build.py, where the contributors' tools are installed."""
    require("jupytext")
    require("nbclient")
    spec = importlib.util.spec_from_file_location("notebooks_build", FOLDER / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_source_has_its_notebook_and_the_other_way_round() -> None:
    assert SOURCES
    assert [path.stem for path in SOURCES] == [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_notebook_holds_the_cells_of_its_source(source: Path, build: ModuleType) -> None:
    assert build.stored_problems(source) == []


def imported_names(source: str) -> dict[str, Any]:
    """What the import statements of a notebook bind."""
    names: dict[str, Any] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            exec(compile(ast.Module([node], []), "imports", "exec"), names)
    return names


# What a page shows of the repository, and the text that this is today.
SHOWN: dict[str, Callable[..., str]] = {
    "plots.code": plots.source,
    "plots.difference": plots.difference_text,
    "plots.document": plots.document_text,
    "plots.neighbours": lambda a, b: plots.difference_text(**plots.nano_pair(a, b)),
}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_shown_source_is_the_source_of_today(source: Path) -> None:
    """Code, differences and documents of the repository: as a page built today would show them."""
    names = imported_names(source.read_text(encoding="utf-8"))
    for cell in cells_of(source.with_suffix(".ipynb")):
        if cell["cell_type"] != "code":
            continue
        shown = "".join(
            "".join(output.get("data", {}).get("text/plain", []))
            for output in cell.get("outputs", [])
        )
        for text in shown_sources("".join(cell["source"]), names):
            assert text in shown, f"this source has changed, build again:\n{text}"
        for link in re.findall(r"\]\(((?:[\w.]+/)*\w+\.(?:md|py|ipynb))", shown):
            assert (FOLDER / link).is_file(), f"{link} leads nowhere from this page"


def shown_sources(code: str, names: dict[str, Any]) -> list[str]:
    """What the calls of SHOWN in a cell show of imported things."""
    texts_shown = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SHOWN:
            show = SHOWN[ast.unparse(node.func)]
            call = ast.Call(ast.Name("show", ast.Load()), node.args, node.keywords)
            expression = ast.fix_missing_locations(ast.Expression(call))
            try:
                texts_shown.append(
                    eval(compile(expression, "cell", "eval"), names | {"show": show})
                )
            except NameError:
                continue  # something that the page defines itself
    return texts_shown


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_page_opens_with_what_it_enables_and_ends_with_three_lines(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    opening, end = text.split("\n# %%", 1)[0], text.rpartition("\n# ## To remember\n")[2]
    assert opening.count("\n# **After this page you can** ") == 1
    assert end != text and end.count("\n# - ") == 3


@each_notebook
def test_a_shown_explorable_is_todays(path: Path) -> None:
    """`python notebooks/build.py` writes docs/explorables into the page as it is then."""
    for name in re.findall(r"plots\.explorable\(\"(\w+)\"\)", "\n".join(texts(path, "code"))):
        stored = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs(path)]
        assert explorables.html_of(name) in stored, f"run notebooks/build.py {path.stem}"


@each_notebook
def test_a_stored_page_was_run_in_order(path: Path) -> None:
    """And no cell ended with an error."""
    cells = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for output in outputs(path):
        assert output["output_type"] != "error" and output.get("name") != "stderr", output


@each_notebook
def test_a_stored_page_is_the_same_on_every_machine(path: Path) -> None:
    """No folders, user names or addresses; bare metadata, as GitHub refuses half of a widget."""
    assert not re.findall(r"(?:/(?:home|Users|root|tmp|work|opt|usr)/|[A-Z]:\\)\S*", printed(path))
    assert str(ROOT) not in printed(path) and str(Path.home()) + "/" not in printed(path)
    assert not re.findall(r"\b0x[0-9a-f]{6,}", printed(path))
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["metadata"].keys() == {"kernelspec", "language_info"}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert all(cell["metadata"].keys() <= {"tags", "jupyter"} for cell in notebook["cells"])
    kinds = {kind for output in outputs(path) for kind in output.get("data", {})}
    assert not [kind for kind in kinds if "widget" in kind]
