"""Tests run in copies of the repository: what a copy holds, and what a run says."""

from __future__ import annotations

import os
import subprocess
from unittest.mock import patch

import pytest
import trials
from trials import pytest_processes, repository_copy, repository_files, run_tests


def test_the_copy_holds_tracked_and_new_files_but_no_ignored_ones(tmp_path, monkeypatch):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    for name in ("kept/tracked.py", "new.py", "deleted.py", "ignored.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    subprocess.run([*git, "add", "kept", "deleted.py"], cwd=tmp_path, check=True)
    (tmp_path / "deleted.py").unlink()
    monkeypatch.setattr(trials, "ROOT", tmp_path)
    files = repository_files()
    assert sorted(files) == [".gitignore", "kept/tracked.py", "new.py"]
    with repository_copy(files, tmp_path) as copy:
        assert (copy / "kept/tracked.py").read_text() == "kept/tracked.py"
        (copy / "new.py").write_text("changed")
    assert (tmp_path / "new.py").read_text() == "new.py"
    assert not copy.exists()


# Runs

TESTS = {
    "test_good.py": "def test(): pass",
    "test_bad.py": "def test(): assert 1 + 1 == 3",
    "test_broken.py": "import no_such_module",
    "test_endless.py": "import time\ndef test(): time.sleep(600)",
    "test_killed.py": "import os\ndef test(): os.kill(os.getpid(), 9)",
    "test_ours.py": (
        "import subprocess, sys\n"
        "import gpt\n"
        "def test():\n"
        "    assert gpt.HERE\n"
        "    subprocess.run([sys.executable, '-c', 'import gpt; gpt.HERE'], check=True)\n"
    ),
    "gpt/__init__.py": "HERE = True",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in TESTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture(scope="module")
def processes():
    with patch.dict(os.environ), pytest_processes(1) as pool:
        yield pool


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(
    ("test", "status", "said"),
    [
        ("test_good.py", 0, "1 passed"),
        ("test_bad.py", 1, "FAILED test_bad.py::test"),
        ("test_broken.py", 2, "ERROR test_broken.py"),
        ("test_killed.py", -9, ""),
        ("test_ours.py", 0, "1 passed"),
    ],
)
def test_what_a_run_says(processes, folder, test, status, said):
    """Also which code it is: the copy's, in the tests and in the processes that they start."""
    found, output = run_tests(processes, folder, [test], 60)
    assert found == status and said in output
