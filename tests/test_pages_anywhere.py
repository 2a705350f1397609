"""Pages of the course run where nothing of the project is installed.

A short page is always tried; `make pages` tries all of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from test_pages_name_what_exists import ROOT, tracked

FOLDER = ROOT / "notebooks"
PAGES = [path.stem for path in sorted(FOLDER.glob("[0-9][0-9]_*.py"))]
LEARNING, SHORTEST = "04_policy_gradients_and_baselines", "05_what_a_kl_is"
# What contributors install and readers do not.
MISSING = ("pytest", "hypothesis", "jupytext", "nbclient", "nbformat", "transformers", "IPython")
# A Python that sees the installed packages without the project, which `pip install -e .` links there.
BARE = """
import runpy, sys
sys.path[:] = [path for path in sys.path if path] + [{site!r}]
sys.path.insert(0, "")
sys.modules.update(dict.fromkeys({missing!r}))
runpy.run_path({page!r}, run_name="__main__")
import gpt
print("library:", gpt.__file__)
"""


def run(command: list[str], folder: Path, **variables: str) -> str:
    """What a command prints; its errors end the test."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "COURSE_STRICT")}
    environment = kept | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"} | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository's files, as a download has them."""
    copy = tmp_path_factory.mktemp("elsewhere") / "glassbox"
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.mark.parametrize(
    "page",
    [page if page == SHORTEST else pytest.param(page, marks=pytest.mark.pages) for page in PAGES],
)
def test_a_page_runs_where_the_project_is_not_installed(page: str, elsewhere: Path) -> None:
    site = str(distribution("torch").locate_file(""))
    script = BARE.format(site=site, missing=MISSING, page=f"{page}.py")
    printed = run([sys.executable, "-S", "-c", script], elsewhere / "notebooks")
    assert f"library: {elsewhere / 'gpt'}" in printed
