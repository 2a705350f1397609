"""The committed notebooks as a reader opens them: complete, clean and equal to their sources.

Nothing is executed here; `python notebooks/build.py --check` does that.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
SOURCES = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LONGEST_CELL = 30

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


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_printed_source_is_the_source_of_today(source: Path) -> None:
    """A function printed in full stands there in full; of a part every indented line is current."""
    names = imported_names(source.read_text(encoding="utf-8"))
    for cell in cells_of(source.with_suffix(".ipynb")):
        code = "".join(cell["source"])
        shown = "".join(
            text for output in cell.get("outputs", []) for text in output.get("text", [])
        )
        current = ""
        for direct, name in re.findall(r"(print\()?inspect\.getsource\(([\w.]+)\)", code):
            if name.split(".")[0] in names:
                text = inspect.getsource(eval(name, names))
                current += text
                assert not direct or text.strip() in shown, f"{name} has changed: build again"
        if current:
            lines = {line.strip() for line in current.splitlines()}
            printed_lines = [line for line in shown.splitlines() if line.startswith("        ")]
            stale = [line for line in printed_lines if line.strip() not in lines]
            assert not stale, f"{stale[0].strip()!r} is no line of the source: build again"


@each_notebook
def test_parts_of_a_notebook(path: Path) -> None:
    """Why, equation, source, the package's own code, a property, a plot, an exercise."""
    prose, code = "\n".join(texts(path, "markdown")), "\n".join(texts(path, "code"))
    assert re.search(r"\bWhy\b", prose)
    assert prose.count("$$") >= 2 and prose.count("$$") % 2 == 0
    assert re.search(r"arXiv:\d{4}\.\d{4,5}", prose)
    assert "inspect.getsource(" in code
    assert re.search(r"^ *assert ", code, flags=re.MULTILINE)
    assert any("image/png" in output.get("data", {}) for output in outputs(path))
    assert "xlabel" in code and "ylabel" in code
    assert re.search(r"^#+ .*Exercise", prose, flags=re.MULTILINE)
    hidden = re.findall(r"<details>\s*<summary>.+?</summary>\n\n.+?</details>", prose, re.DOTALL)
    assert (
        len(hidden) == prose.count("<details>") >= 1
    )  # a blank line, or GitHub shows raw markdown


@each_notebook
def test_the_beginning_says_what_to_install(path: Path) -> None:
    first = next(i for i, cell in enumerate(cells_of(path)) if cell["cell_type"] == "code")
    beginning = "".join("".join(cell["source"]) for cell in cells_of(path)[: first + 1])
    assert "make demo" in beginning and ".venv" in beginning


@each_notebook
def test_cells_are_plain_python_and_short(path: Path) -> None:
    for source in texts(path, "code"):
        lines = source.splitlines()
        assert len(lines) <= LONGEST_CELL, source
        assert not [line for line in lines if re.match(r"\s*[%!]", line)], source


@each_notebook
def test_every_cell_was_run_in_order_from_a_fresh_kernel(path: Path) -> None:
    counts = [cell["execution_count"] for cell in cells_of(path) if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))


@each_notebook
def test_outputs_hold_no_error_and_no_warning(path: Path) -> None:
    for output in outputs(path):
        assert output["output_type"] != "error", output
        assert output.get("name") != "stderr", output


@each_notebook
def test_outputs_are_the_same_on_every_machine(path: Path) -> None:
    """No folders, no user names, no addresses of objects."""
    assert not re.findall(r"(?:/(?:home|Users|root|tmp|work|opt|usr)/|[A-Z]:\\)\S*", printed(path))
    assert str(ROOT) not in printed(path) and str(Path.home()) + "/" not in printed(path)
    assert not re.findall(r"\b0x[0-9a-f]{6,}", printed(path))


@each_notebook
def test_metadata_is_bare(path: Path) -> None:
    """GitHub refuses to show a notebook with half of a widget's state."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["metadata"].keys() == {"kernelspec", "language_info"}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert all(cell["metadata"] == {} for cell in notebook["cells"])
    kinds = {kind for output in outputs(path) for kind in output.get("data", {})}
    assert not [kind for kind in kinds if "widget" in kind]


# What `build.py --check` says about a notebook that is out of date.

CELLS = '# %% [markdown]\n# # A title\n\n# %%\nprint("one")\n\n# %%\nprint("two")\n'


@pytest.fixture
def stored(build: ModuleType, tmp_path: Path) -> Path:
    """A source with a notebook that fits it."""
    source = tmp_path / "00_try.py"
    source.write_text(CELLS, encoding="utf-8")
    build.nbformat.write(build.read_cells(source), source.with_suffix(".ipynb"))
    assert build.stored_problems(source) == []
    return source


def test_a_changed_source_is_noticed(build: ModuleType, stored: Path) -> None:
    stored.write_text(CELLS.replace("two", "three"), encoding="utf-8")
    (problem,) = build.stored_problems(stored)
    assert "cell 2 differs" in problem and "build.py 00_try" in problem
    stored.write_text(CELLS.replace("# %%\nprint", "# %% [markdown]\nprint", 1), encoding="utf-8")
    assert "cell 1 differs" in build.stored_problems(stored)[0]
    stored.write_text(CELLS + "\n# %%\nprint(3)\n", encoding="utf-8")
    assert "has 3 cells" in build.stored_problems(stored)[0]


def test_a_missing_notebook_and_a_stored_error_are_noticed(build: ModuleType, stored: Path) -> None:
    target = stored.with_suffix(".ipynb")
    notebook = build.nbformat.read(target, as_version=4)
    failure = build.nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])
    notebook.cells[1].outputs = [failure]
    build.nbformat.write(notebook, target)
    (problem,) = build.stored_problems(stored)
    assert "cell 1 holds the output of an error" in problem
    target.unlink()
    assert "00_try.ipynb is missing" in build.stored_problems(stored)[0]


def test_a_source_reads_the_same_twice(build: ModuleType, stored: Path, tmp_path: Path) -> None:
    """Cell ids and metadata must not be random, or every build would change every file."""
    other = Path(shutil.copy(stored, tmp_path / "01_copy.py"))
    one, two = (json.dumps(build.read_cells(path), sort_keys=True) for path in (stored, other))
    assert one == two


def test_a_wrong_name_lists_the_notebooks(build: ModuleType) -> None:
    assert build.sources(["01"]) == [SOURCES[0]]
    with pytest.raises(build.NotebookError, match=SOURCES[0].stem):
        build.sources(["no_such"])
