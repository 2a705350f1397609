"""Grade a student's page, or a file of answers, by the checker of the exercises.

    python notebooks/grade.py 07_grpo.ipynb                 a page that a student has filled in
    python notebooks/grade.py answers.py --page 07          its functions alone, by their names
    python notebooks/grade.py answers.json                  {"number": 7, "answers": {"pairs_needed": 512}}
    python notebooks/grade.py page.ipynb --seed 4711 --number 7 --json

A right exercise is a point. --seed draws other random batches than the page does, so that a function that
knows the printed cases fails; --number is the student's, whose tables must be the ones that were answered.
An exercise that the file leaves out counts as empty: what a page asks is read from its source here.

The file's code runs with your rights, in a process of its own and for at most --seconds. It could also
write its own points: this saves a teacher's time, and is no examination.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

ASKED = re.compile(r'^check(?:_answer)?\("(\w+)"', re.MULTILINE)


class GradeError(Exception):
    """What is wrong with the file or with a flag, for the teacher."""


def code_cells(path: Path) -> list[str]:
    """The code of a notebook or of a .py in percent format (any other .py is one cell), without magics."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GradeError(f"{path} cannot be read: {error}") from None
    if path.suffix == ".py":
        parts = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)
        cells = parts[:1] + [
            code for head, code in zip(parts[1::2], parts[2::2]) if "[markdown]" not in head
        ]
    else:
        try:
            stored = json.loads(text)["cells"]
        except (ValueError, KeyError, TypeError):
            raise GradeError(f"{path} is no notebook: give a .ipynb, a .py or a .json") from None
        cells = ["".join(c["source"]) for c in stored if c["cell_type"] == "code"]
    return [re.sub(r"^[%!].*$", "", cell, flags=re.MULTILINE) for cell in cells]


def source_of(page: str) -> Path:
    """The page whose name begins like this. GradeError if there is not exactly one."""
    found = sorted(FOLDER.glob(f"{page}*.py")) if re.match(r"\d\d", page) else []
    if len(found) != 1:
        raise GradeError(f"--page {page} fits {len(found)} pages: give a number such as 07")
    return found[0]


def asked_by(page: str) -> list[str]:
    """The exercises of a page, in order."""
    return list(dict.fromkeys(ASKED.findall(source_of(page).read_text(encoding="utf-8"))))


# --- in the process of its own ---------------------------------------------------------------------


def collect(job: dict[str, Any]) -> dict[str, Any]:
    """Run the cells; the verdict on every exercise that they check or define, and where they stopped."""
    from course import entered, exercises

    found: dict[str, Any] = {}
    stopped: list[str] = []

    def of_function(name: str, mine: Any) -> None:
        found[name] = said(exercises.verdict(name, mine))

    def of_answer(name: str, mine: Any, number: int = 0) -> None:
        found[name] = said_of_answer(name, mine, number, job["number"])

    if job["seed"] is not None:
        for name, exercise in exercises.EXERCISES.items():
            exercises.EXERCISES[name] = reseeded(exercise, job["seed"])
    exercises.check, entered.check_answer = of_function, of_answer
    space: dict[str, Any] = {"__name__": "__main__"}
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        for number, cell in enumerate(job["cells"]):
            try:
                exec(compile(cell, f"cell {number}", "exec"), space)
            except (Exception, SystemExit) as error:
                stopped.append(f"code cell {number}: {type(error).__name__}: {error}")
        for name in {*exercises.EXERCISES, *entered.names()} - set(found):
            mine = space.get(f"my_{name}", space.get(name) if job["by_name"] else None)
            if mine is not None and name in entered.names():
                of_answer(name, mine, job["number"] or 0)
            elif callable(mine):
                of_function(name, mine)
    return {"found": found, "stopped": stopped}


def reseeded(exercise: Any, seed: int) -> Any:
    """The exercise with other random batches."""
    import torch

    def random(generator: torch.Generator) -> Any:
        return exercise.random(
            torch.Generator().manual_seed(1_000_003 * seed + generator.initial_seed())
        )

    return dataclasses.replace(exercise, random=random)


def said(verdict: Any) -> dict[str, str]:
    return {"word": verdict.word, "says": verdict.text.splitlines()[0]}


def said_of_answer(name: str, mine: Any, number: int, theirs: int | None) -> dict[str, str]:
    from course import entered

    if theirs is not None and number != theirs and mine not in (None, ...):
        text = f"not yet: answered the table of number {number}, not that of {theirs}."
        return {"word": "number", "says": text}
    return said(entered.verdict(name, mine, number))


# --- outside ----------------------------------------------------------------------------------------


def run_apart(job: dict[str, Any], seconds: float) -> dict[str, Any]:
    """`collect` in a process of its own, in this folder. GradeError past the limit, or if it dies."""
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder, "job.json"), Path(folder, "found.json")
        given.write_text(json.dumps(job), encoding="utf-8")
        environment = {**os.environ, "MPLBACKEND": "Agg"}
        environment.pop("COURSE_STRICT", None)
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            "--collect",
            str(given),
            str(made),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=FOLDER,
                env=environment,
                timeout=seconds,
                capture_output=True,
                text=True,
            )
        except subprocess.TimeoutExpired:
            raise GradeError(f"the file ran longer than {seconds:g} s: see --seconds") from None
        if not made.exists():
            raise GradeError(
                f"the file ended the process that ran it:\n{done.stderr.strip()[-400:]}"
            )
        return json.loads(made.read_text(encoding="utf-8"))


def of_json(path: Path, number: int | None) -> dict[str, Any]:
    """The verdicts on a file of entered answers alone."""
    from course import entered

    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        answers, mine = dict(given["answers"]), int(given.get("number", 0))
    except (OSError, ValueError, KeyError, TypeError):
        raise GradeError(f'{path} must hold {{"number": 7, "answers": {{name: answer}}}}') from None
    unknown = sorted(set(answers) - set(entered.names()))
    if unknown:
        raise GradeError(f"{path} answers questions that there are not: {', '.join(unknown)}")
    found = {name: said_of_answer(name, answers[name], mine, number) for name in answers}
    return {"found": found, "stopped": []}


def grade(
    path: Path,
    page: str | None = None,
    seed: int | None = None,
    number: int | None = None,
    seconds: float = 300,
) -> dict[str, Any]:
    """Points of a file, as `--json` prints them. GradeError for what cannot be graded."""
    named = re.match(r"(\d\d)_", path.name)
    page = page or (named[1] if named else None)
    asked = asked_by(page) if page else None
    if path.suffix == ".json":
        result = of_json(path, number)
    else:
        job = {"cells": code_cells(path), "seed": seed, "number": number, "by_name": not named}
        result = run_apart(job, seconds)
    empty = {"word": "empty", "says": "not filled in, or left out"}
    names = sorted(result["found"]) if asked is None else asked
    rows = [{"name": name, **result["found"].get(name, empty)} for name in names]
    rows = [{**row, "points": int(row["word"] == "right")} for row in rows]
    if not rows:
        raise GradeError(f"{path} answers no exercise: give --page NN if it belongs to one")
    return {
        "file": path.name,
        "page": page and source_of(page).stem,
        "seed": seed,
        "number": number,
        "points": sum(row["points"] for row in rows),
        "of": len(rows),
        "exercises": rows,
        "stopped": result["stopped"],
    }


def as_text(graded: dict[str, Any]) -> str:
    wide = max(len(row["name"]) for row in graded["exercises"])
    lines = [f"{row['name']:{wide}}  {row['points']}  {row['says']}" for row in graded["exercises"]]
    lines += [f"(a cell stopped: {what})" for what in graded["stopped"]]
    return "\n".join([*lines, f"{graded['points']} of {graded['of']} points"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="a .ipynb, a .py or a .json")
    parser.add_argument("--page", help="the page it answers; default: by the file's name")
    parser.add_argument(
        "--seed", type=int, help="of hidden random batches; default: the page's own"
    )
    parser.add_argument("--number", type=int, help="the student's, for entered answers")
    parser.add_argument("--seconds", type=float, default=300, help="limit for the file's code")
    parser.add_argument("--json", action="store_true", help="print an object, for other programs")
    given = parser.parse_args(arguments)
    try:
        graded = grade(given.file, given.page, given.seed, given.number, given.seconds)
    except GradeError as error:
        sys.exit(f"error: {error}")
    print(json.dumps(graded, indent=2) if given.json else as_text(graded))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--collect"]:
        todo, target = map(Path, sys.argv[2:])
        answer = collect(json.loads(todo.read_text(encoding="utf-8")))
        target.write_text(json.dumps(answer), encoding="utf-8")
    else:
        main()
