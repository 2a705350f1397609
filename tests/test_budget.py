"""How large the house is, so that growth shows in the pull request that causes it.

The bounds are 2% above what is there. Who makes something smaller lowers them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from toys import saved_gpt

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("data", "gpt", "reward_model", "rl", "harness", "report")

# Runs a command of the project, then says which of its files were loaded, late imports included.
LOADED = """
import atexit, json, os, runpy, sys
root, answer, module = os.getcwd() + os.sep, sys.argv[1], sys.argv[2]
def say():
    files = {getattr(m, "__file__", None) or "" for m in list(sys.modules.values())}
    files |= {sys.modules["__main__"].__dict__.get("__file__") or ""}
    ours = [f for f in files if f.startswith(root) and f.endswith(".py") and ".venv" not in f]
    with open(answer, "w") as file:
        json.dump({f: sum(1 for _ in open(f, encoding="utf-8")) for f in ours}, file)
atexit.register(say)
sys.argv = sys.argv[2:]
sys.path.insert(0, root)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that knows nothing, to start one step from."""
    folder = tmp_path_factory.mktemp("base")
    saved_gpt(folder, context=128, n_embd=8)
    return folder


ENGINE = "--model {base} --reward gold --prompts-per-step 2 --max-new-tokens 8 --test-prompts 2"
REWARD_MODEL = "--model {base} --pairs 72 --held-out-pairs 8 --max-response-tokens 8"


@pytest.mark.parametrize(
    ("module", "flags", "files", "lines"),
    [
        ("rl.grpo_engine", ENGINE, 66, 10_890),
        ("rl.ppo_engine", ENGINE, 72, 11_650),
        ("reward_model.reward_model_training", REWARD_MODEL, 58, 9_340),
    ],
)
def test_what_a_run_of_one_step_loads(
    module: str, flags: str, files: int, lines: int, base: Path, tmp_path: Path
) -> None:
    flags = f"{flags} --steps 1 --device cpu --ranks 1 --out {{out}}"
    flags = flags.format(base=base, out=tmp_path / "run")
    subprocess.run(
        [sys.executable, "-c", LOADED, str(tmp_path / "loaded.json"), module, *flags.split()],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True,
        timeout=300,
    )  # fmt: skip
    loaded = json.loads((tmp_path / "loaded.json").read_text(encoding="utf-8"))
    assert not [name for name in loaded if name.startswith(str(ROOT / "report"))]  # a run's readers
    assert len(loaded) <= files and sum(loaded.values()) <= lines, sorted(loaded)


def tracked(pattern: str) -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout: which files belong to the project is not known")
    out = subprocess.run(
        ["git", "ls-files", pattern], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in out.stdout.splitlines() if (ROOT / name).exists()]


def lines_of(*folders: str) -> int:
    return sum(
        path.read_text(encoding="utf-8").count("\n")
        for path in tracked("*.py")
        if path.relative_to(ROOT).parts[0] in folders
    )


@pytest.mark.parametrize(
    ("folders", "most"),
    [
        (PRODUCT, 24_650),
        (("tests",), 26_270),
        (("scripts", "studies", "bench"), 9_130),
        (("docs",), 800),
    ],
)
def test_lines_of_python(folders: tuple[str, ...], most: int) -> None:
    assert lines_of(*folders) <= most
