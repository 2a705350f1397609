"""One cell of the law as a recording for the course: curves, texts by step, best-of-n, cures.

A page replays it without training anything: notebooks/course/recordings/overoptimisation.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from studies.pages import rounded
from studies.runner import is_done

from harness.errors import UserError
from harness.files import display_path
from overopt.plan import CURES
from overopt.results import about_run, alarm, best_of_n_rows, cure_folder, fit_of_cell
from overopt.settings import Settings

PROMPTS = 4  # whose answers are kept at every measurement
ANSWERS = 128  # of the bank's first prompts, for the exercises
LARGEST = 300_000  # bytes


def record(settings: Settings, root: Path, path: Path, start: int = 0) -> None:
    """Write the recording of the uncured run of one start, with every cure of it that is finished."""
    patient = cure_folder(settings, root, start, "patient")
    if not is_done(patient, ""):
        raise UserError(
            f"{display_path(patient)} is not finished: run it with\n"
            f"    python scripts/overoptimisation.py --only {patient.relative_to(root)}"
        )
    text = json.dumps(rounded(recording(settings, root, start)), separators=(",", ":")) + "\n"
    if len(text) > LARGEST:
        raise UserError(f"the recording has {len(text):,} bytes, more than {LARGEST:,}: thin it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"wrote {display_path(path)} ({len(text):,} bytes)")


def recording(settings: Settings, root: Path, start: int) -> dict[str, Any]:
    """Everything that the page shows."""
    size, labels = settings.cure_cell
    name, folder = f"{size}-{labels}", root / f"start-{start}"
    report = json.loads((folder / "rm" / name / "report.json").read_text("utf-8"))
    found: dict[str, Any] = {
        "size": size, "labels": labels, "start": start, "prompts": settings.prompts,
        "learning_rate": settings.lr, "batch": settings.prompts_per_step * settings.group_size,
        "gold_accuracy": report["gold_accuracy"], "label_ceiling": report["label_ceiling"],
        "runs": {}, "texts": texts(cure_folder(settings, root, start, "patient")),
        "fits": {}, "alarm": alarm(cure_folder(settings, root, start, "patient"), settings),
    }  # fmt: skip
    for cure in CURES:
        run = cure_folder(settings, root, start, cure)
        if is_done(run, ""):
            about = about_run(run, settings)
            about.pop("texts")
            found["runs"][cure] = about
    if is_done(folder, f"best_of_n/{name}"):
        found["best_of_n"] = best_of_n_rows(folder / "best_of_n" / name)
        found["bank"] = piece_of_the_bank(folder, name)
    for kind in ("grpo", "best_of_n"):
        if fit := fit_of_cell(settings, root, size, labels, kind):
            found["fits"][kind] = fit
    return found


def texts(folder: Path) -> list[dict[str, Any]]:
    """The answers to a few prompts at every measurement of a run."""
    rows = json.loads((folder / "texts.json").read_text("utf-8"))
    prompts = list(dict.fromkeys(row["prompt"] for row in rows))[:PROMPTS]
    return [row for row in rows if row["prompt"] in prompts]


def piece_of_the_bank(folder: Path, name: str) -> dict[str, Any]:
    """Proxy and gold of the first answers to the bank's first prompts."""
    scores = torch.load(folder / "best_of_n" / name / "best_of_n.pt")["scores"]
    gold = torch.load(folder / "bank" / "bank.pt")["gold"]
    return {"proxy": scores[:PROMPTS, :ANSWERS].tolist(), "gold": gold[:PROMPTS, :ANSWERS].tolist()}
