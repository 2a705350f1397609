"""Build the notebooks: NN_topic.py is the source, NN_topic.ipynb what readers see, with its outputs.

    python notebooks/build.py                  run every NN_topic.py and write its NN_topic.ipynb
    python notebooks/build.py 01 09_ppo        only those whose names begin like this
    python notebooks/build.py --text           rewrite texts; outputs stay, and a page whose code has
                                               changed is refused
    python notebooks/build.py --check          run every .py as a plain script, within 60 s each,
                                               and check that its .ipynb holds the same cells
                                               and no error

The sources are in percent format (`# %%` starts a cell, `# %% [markdown]` a text cell). Ids, metadata
and order are fixed, so two builds on one machine differ in measured times alone. How to open a page
is written here and not in the sources.
tests/test_notebooks.py says what each notebook must have. Needs the contributors' tools: `make dev`.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

try:
    import jupytext
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from nbformat import NotebookNode
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    sys.exit(
        f"error: there is no {error.name} here: `make dev`, then .venv/bin/python {sys.argv[0]}"
    )

FOLDER = Path(__file__).resolve().parent
OPEN = (
    "*To run this page, type `make notebooks` in a clone of the repository: it opens Jupyter Lab.*"
)
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

# A code cell that only draws: `# %% tags=["hide-input"]`, and one that mostly imports. The site reads the
# tag, Jupyter the other.
FOLDED = {"tags": ["hide-input"], "jupyter": {"source_hidden": True}}


class NotebookError(Exception):
    """A notebook failed; the message names it, and the cell where one is to blame."""


def sources(names: Sequence[str] = ()) -> list[Path]:
    """The .py files whose names begin with one of `names`, in order; all of them without names.

    Raises NotebookError for a name that fits no file.
    """
    every = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
    for name in names:
        if not any(path.stem.startswith(name) for path in every):
            known = ", ".join(path.stem for path in every) or "none"
            raise NotebookError(f"no notebook begins with {name!r}; there are: {known}")
    return [path for path in every if not names or path.stem.startswith(tuple(names))]


def mostly_imports(code: str) -> bool:
    """Is it a page's opening, which a reader skips?"""
    lines = ast.parse(code).body
    imports = sum(isinstance(line, (ast.Import, ast.ImportFrom)) for line in lines)
    return imports >= 3 and 2 * imports >= len(lines)


def read_cells(source: Path) -> NotebookNode:
    """The notebook of a percent-format file, without outputs and with everything else fixed.

    How to open it stands under the title.
    """
    notebook = jupytext.read(source, fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        opening = cell.cell_type == "code" and mostly_imports(cell.source)
        cell.metadata = FOLDED if opening or FOLDED["tags"] == cell.metadata.get("tags") else {}
    first = notebook.cells[0]
    title, _, rest = first.source.partition("\n")
    first.source = "\n".join([title, "", OPEN, *filter(None, [rest])])
    notebook.metadata = METADATA
    notebook.nbformat, notebook.nbformat_minor = 4, 5  # the first version with cell ids
    return notebook


def environment(**changes: str) -> dict[str, str]:
    """Ours, with this checkout's packages first on the path and a fixed order of sets.

    MPLBACKEND is left out: if it were set, figures would not appear in the page. COURSE_STRICT makes
    a claim of the text that is not true an error.
    """
    kept = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    paths = [str(FOLDER.parent), *filter(None, [kept.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0", "COURSE_STRICT": "1"}
    return kept | ours | changes


def execute(notebook: NotebookNode, name: str) -> None:
    """Run the cells in place, in this folder. NotebookError names the first one that fails."""
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(FOLDER)}},
    )
    with client.setup_kernel(env=environment(PYDEVD_DISABLE_FILE_VALIDATION="1")):
        for number, cell in enumerate(notebook.cells):
            try:
                client.execute_cell(cell, number)
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                raise NotebookError(f"{name}, cell {number} failed:\n{error}") from None


def build(source: Path) -> None:
    """Execute one .py and write its .ipynb."""
    notebook = read_cells(source)
    execute(notebook, source.stem)
    nbformat.validate(notebook)
    nbformat.write(notebook, source.with_suffix(".ipynb"))


def rewrite_texts(source: Path) -> None:
    """Put a source's texts into its .ipynb, and keep the outputs.

    Raises NotebookError where code has changed: outputs would then be of other code.
    """
    target = source.with_suffix(".ipynb")
    stored, wanted = nbformat.read(target, as_version=4), read_cells(source)

    def code(notebook: NotebookNode) -> list[str]:
        return [cell.source for cell in notebook.cells if cell.cell_type == "code"]

    if code(stored) != code(wanted):
        raise NotebookError(
            f"{source.name}: code has changed; run python notebooks/build.py {source.stem}"
        )
    ran = iter([cell for cell in stored.cells if cell.cell_type == "code"])
    for cell in wanted.cells:
        if cell.cell_type == "code":
            before = next(ran)
            cell.outputs, cell.execution_count = before.outputs, before.execution_count
    nbformat.validate(wanted)
    nbformat.write(wanted, target)


def stored_problems(source: Path) -> list[str]:
    """What is wrong with the committed .ipynb of a .py: other cells, or the output of an error."""
    target = source.with_suffix(".ipynb")
    advice = f"run python notebooks/build.py {source.stem}"
    if not target.exists():
        return [f"{target.name} is missing; {advice}"]
    stored = nbformat.read(target, as_version=4).cells
    wanted = read_cells(source).cells
    problems = []
    if len(stored) != len(wanted):
        problems.append(f"{target.name} has {len(stored)} cells, {source.name} {len(wanted)}")
    for number, (cell, other) in enumerate(zip(stored, wanted, strict=False)):
        if any(cell[key] != other[key] for key in ("cell_type", "source", "metadata")):
            problems.append(f"{target.name}, cell {number} differs from {source.name}")
        if any(output.output_type == "error" for output in cell.get("outputs", [])):
            problems.append(f"{target.name}, cell {number} holds the output of an error")
    return [f"{problem}; {advice}" for problem in problems]


def check(source: Path, seconds: int) -> None:
    """Run one .py as a plain script, in that time; then look at its .ipynb. Raises NotebookError."""
    try:
        result = subprocess.run(
            [sys.executable, source.name],
            cwd=FOLDER,
            env=environment(MPLBACKEND="Agg", OMP_NUM_THREADS="1"),  # a page, a core
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise NotebookError(
            f"{source.name} ran longer than {seconds} s: shorten it, or give a busy machine more "
            "--seconds"
        ) from None
    if result.returncode != 0:
        raise NotebookError(f"{source.name} failed as a script:\n{result.stderr.strip()}")
    problems = stored_problems(source)
    if problems:
        raise NotebookError("\n".join(problems))


def run_all(step: Callable[[Path], None], paths: Sequence[Path], jobs: int = 1) -> list[str]:
    """Apply `step` to each path, `jobs` at a time, print wall times, and return what failed."""

    def run(path: Path) -> str | None:
        begin, failure = time.perf_counter(), None
        try:
            step(path)
        except NotebookError as error:
            failure = str(error)
        verdict = "ok" if failure is None else "FAILED"
        print(f"{path.stem:32} {time.perf_counter() - begin:6.1f} s  {verdict}", flush=True)
        return failure

    with ThreadPoolExecutor(jobs) as pool:  # each page is a process of its own
        return [failure for failure in pool.map(run, paths) if failure is not None]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="beginnings of notebook names; default: all")
    parser.add_argument("--check", action="store_true", help="run as scripts; write nothing")
    parser.add_argument("--text", action="store_true", help="rewrite texts alone; run nothing")
    parser.add_argument("--seconds", type=int, default=60, help="with --check: limit per notebook")
    parser.add_argument("--jobs", type=int, default=1, help="pages at a time, one core each")
    arguments = parser.parse_args()
    step = partial(check, seconds=arguments.seconds) if arguments.check else build
    step = rewrite_texts if arguments.text else step
    try:
        failures = run_all(step, sources(arguments.names), arguments.jobs)
    except NotebookError as error:
        failures = [str(error)]
    if failures:
        sys.exit("\n\n".join(failures))


if __name__ == "__main__":
    main()
