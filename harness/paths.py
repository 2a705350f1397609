"""Where run folders are, and what the files in them are called."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MODEL_FILE = "model.safetensors"
STATE_FILE = "state.pt"
FINISHED_STATE = "finished_state.pt"  # the state of a complete run that can be made longer
BEST = "best"  # folder of the weights with the best held-out loss, until pre-training ends
REPORT = "report.html"  # the page that `python -m report` makes of all of these
TOKENS = "tokens.jsonl"  # responses token by token
ANSWERS = "test_answers.jsonl"  # to the test prompts in their order, from before and after training


def runs_folder(here: Path) -> Path:
    """Where run folders go by default: the checkout's runs/ inside of it, else runs/ under `here`."""
    inside = (REPOSITORY / "pyproject.toml").exists() and here.is_relative_to(REPOSITORY)
    return (REPOSITORY if inside else here) / "runs"


RUNS = runs_folder(Path.cwd())


def folder_of_run(path: Path) -> Path:
    """The folder of a run, whether it or the model in it is named."""
    return path.parent if path.name == MODEL_FILE else path
