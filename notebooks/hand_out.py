"""What a teacher hands out and what stays in a drawer, made with a seed of the teacher's own.

    python notebooks/hand_out.py --seed 4711 --students 40 --out FOLDER

writes
    FOLDER/students/repository         a copy without history, in which pages have no folded solutions and
                                       entered questions are sealed (course/entered.py says what that is)
    FOLDER/teacher/solutions/NN.py     right functions, readable; `grade.py` gives all points
    FOLDER/teacher/entered.csv         right answers to entered questions, for numbers up to --students
    FOLDER/teacher/hidden.json         the hidden random batches of this seed and what is right on them

and with --bug drawn, or --bug NAME of scripts/planted_bugs.txt,
    FOLDER/students/with_a_bug         a copy with that bug, without history and the tests that notice
    FOLDER/teacher/bug.txt             what it is

`grade.py --seed 4711` draws the same hidden batches from the seed; hidden.json is for other graders.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import json
import random
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from grade import FOLDER, asked_by, reseeded

sys.path.append(str(FOLDER.parent / "scripts"))

IMPORTS = "import math\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import Tensor\n"
FOLDED = re.compile(r"<details>\s*<summary>Solutions?</summary>.*?</details>\n?", re.DOTALL)
FOLDED_SOURCE = re.compile(
    r"^# <details>\n# <summary>Solutions?</summary>.*?^# </details>\n", re.DOTALL | re.MULTILINE
)
NOT_FOR_STUDENTS = ("notebooks/course/questions", "notebooks/teaching", "tests/test_questions.py")


def without_solutions(page: Path) -> dict[str, Any]:
    """A stored notebook, its folded solutions taken out; their numbered answers on paper go with them."""
    notebook = json.loads(page.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text = FOLDED.sub("", "".join(cell["source"]))
            cell["source"] = text.splitlines(keepends=True)
    return notebook


def solution(name: str) -> str:
    """The source of an exercise's solution, named my_NAME, with the functions of its file that it calls."""
    from course.exercises import load

    function = load(name).solution
    needed: dict[str, str] = {}

    def add(one: FunctionType) -> None:
        for called in one.__code__.co_names:
            other = one.__globals__.get(called)
            if isinstance(other, FunctionType) and other.__module__ == one.__module__:
                if other is not function and called not in needed:
                    add(other)
                    needed[called] = inspect.getsource(other)

    add(function)  # type: ignore[arg-type]
    source = inspect.getsource(function)
    source = source[re.search(r"^def ", source, re.MULTILINE).start() :]  # type: ignore[union-attr]
    other = f"my_{name}"
    return "\n\n".join([*needed.values(), re.sub(rf"\b{name}(?=\()", other, source)])


def hidden(name: str, seed: int) -> list[dict[str, Any]]:
    """Arguments of an exercise's hidden batches, and its right results, as lists."""
    from course.exercises import all_cases, answer_of, load

    exercise = reseeded(load(name), seed)
    cases = [case for case in all_cases(exercise) if case.wanted is None]

    def plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else value

    return [
        {
            "arguments": {key: plain(value) for key, value in case.arguments.items()},
            "wanted": plain(answer_of(exercise, exercise.solution, case)[0]),
        }
        for case in cases
    ]


def for_students(copy: Path, students: int) -> None:
    """Turn a copy of the repository into what students get: no folded solution, and sealed questions."""
    from course import entered

    for path in map(copy.joinpath, NOT_FOR_STUDENTS):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for page in sorted((copy / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        stripped = json.dumps(without_solutions(page), indent=1, ensure_ascii=False)
        page.write_text(stripped + "\n", encoding="utf-8")
        source = page.with_suffix(".py")
        text = FOLDED_SOURCE.sub("", source.read_text(encoding="utf-8"))
        source.write_text(text, encoding="utf-8")
    sealed = copy / "notebooks" / "course" / entered.SEALED.name
    sealed.write_text(entered.seal(students), encoding="utf-8")


def hand_out(seed: int, students: int, out: Path) -> None:
    """Write all four."""
    import mutation_check
    from course.entered import QUESTIONS, right_answer
    from course.exercises import names

    drawer = out / "teacher" / "solutions"
    drawer.mkdir(parents=True, exist_ok=True)
    for_students(mutation_check.repository_copy(out / "students" / "repository"), students)
    for page in sorted(FOLDER.glob("[0-9][0-9]_*.py")):
        functions = [solution(name) for name in asked_by(page.stem) if name not in QUESTIONS]
        if functions:
            text = "\n\n".join([IMPORTS, *functions])
            (drawer / page.name).write_text(text, encoding="utf-8")
    with open(out / "teacher" / "entered.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["number", *QUESTIONS])
        for number in range(students + 1):
            table.writerow([number, *(right_answer(name, number) for name in QUESTIONS)])
    batches = {"seed": seed, "exercises": {name: hidden(name, seed) for name in names()}}
    target = out / "teacher" / "hidden.json"
    target.write_text(json.dumps(batches), encoding="utf-8")


def with_a_bug(name: str, seed: int, out: Path) -> None:
    """Copy the repository with one planted bug; "drawn" is one of the equations or masks, by the seed.

    What tells where it is stays behind: the list of bugs, and the tests of the changed files.
    """
    import mutation_check

    code = mutation_check.read_code()
    texts = {bug.name: mutation_check.planted(bug, code) for bug in mutation_check.read_bugs()}
    bugs = {bug.name: bug for bug in mutation_check.read_bugs()}
    if name == "drawn":
        near = ("rl/equations/", "data/collate.py")
        simple = [n for n in bugs if all(path.startswith(near) for path in texts[n])]
        name = random.Random(seed).choice(sorted(simple))
    if name not in bugs:
        sys.exit(f"error: there is no planted bug {name}: see {mutation_check.BUGS}")
    copy = out / "students" / "with_a_bug"
    mutation_check.repository_copy(copy)
    for path, text in texts[name].items():
        (copy / path).write_text(text, encoding="utf-8")
    told = [mutation_check.test_file(test) for test in bugs[name].tests]
    for path in (*told, mutation_check.BUGS.relative_to(mutation_check.ROOT)):
        (copy / path).unlink()
    places = "".join(f"\nin {c.name}\n- {c.old}\n+ {c.new}\n" for c in bugs[name].changes)
    what = f"{name}: {bugs[name].what}\n{', '.join(texts[name])}\n{places}"
    (out / "teacher" / "bug.txt").write_text(what, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True, help="yours; keep it to yourself")
    parser.add_argument("--students", type=int, default=40, help="largest number of a student")
    parser.add_argument("--bug", help="drawn, or a name: hand out a copy with this bug as well")
    parser.add_argument("--out", type=Path, required=True, help="a folder outside the repository")
    given = parser.parse_args(arguments)
    if FOLDER.parent in [given.out.resolve(), *given.out.resolve().parents]:
        sys.exit(f"error: {given.out} is inside the repository: choose a folder outside of it")
    hand_out(given.seed, given.students, given.out)
    if given.bug:
        with_a_bug(given.bug, given.seed, given.out)
    print(given.out)


if __name__ == "__main__":
    main()
