"""Do the tests notice? Plants one known bug at a time into a copy of the repository and runs them.

    python scripts/mutation_check.py                    every planted bug
    python scripts/mutation_check.py --only k1-sign     one or several of them

The bugs stand in scripts/planted_bugs.txt, in blocks with blank lines between:

    k1-sign: k1 is log pi_ref - log pi: the penalty pays for drifting away
    in k1
    - return log_probs - ref_log_probs
    + return ref_log_probs - log_probs
    tests test_losses.py

`in` names a function, a class or an assigned name, with its file before it where several have that
name: `grpo_engine.train`. The `-` lines must occur there once, however they are laid out. Without `+`
lines they are deleted. A block may hold several changes. A test is a file, wherever below
tests/ it lies. A bug is caught when a test fails, and survives when all of them pass; the script then
ends with status 1. First the same tests run without a bug: they must pass.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.command_line import run_command
from harness.errors import UserError
from harness.flags import AtLeastOne, check_ranges

ROOT = Path(__file__).resolve().parents[1]
BUGS = ROOT / "scripts" / "planted_bugs.txt"
PACKAGES = ("harness", "data", "gpt", "reward_model", "rl", "report")
ELSEWHERE = ("nano", "scripts", "studies", "docs/examples", "conformance")  # if no package has it
TIMEOUT = 600.0  # seconds for one run of tests: a loop that no longer ends is no result


@dataclass(frozen=True)
class Change:
    """Inside the code called `name`, `old` becomes `new`."""

    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """A known bug: what goes wrong, how to plant it, and the tests that must notice."""

    name: str
    what: str
    changes: Sequence[Change]
    tests: Sequence[str]


# --- reading --------------------------------------------------------------------------------------


def read_bugs(path: Path = BUGS) -> list[Bug]:
    """All planted bugs in their order in the file."""
    paragraphs = re.split(r"\n\s*\n", path.read_text(encoding="utf-8").strip())
    blocks = [
        [line for line in paragraph.splitlines() if not line.startswith("#")]
        for paragraph in paragraphs
    ]
    return [read_bug(block) for block in blocks if block]


def read_bug(lines: Sequence[str]) -> Bug:
    """One block. A line that fits nowhere is a UserError that names it."""
    name, _, what = lines[0].partition(": ")
    tests: list[str] = []
    changes: list[Change] = []
    place, before = "", ""
    for line in lines[1:]:
        kind, _, rest = line.partition(" ")
        if kind == "in":
            place = rest
        elif kind == "tests":
            tests += rest.split()
        elif kind == "-" and place:
            if before == "-":
                changes.append(Change(place, f"{changes.pop().old}\n{rest}", ""))
            else:
                changes.append(Change(place, rest, ""))
        elif kind == "+" and before in ("-", "+"):
            last = changes.pop()
            changes.append(Change(last.name, last.old, f"{last.new}\n{rest}".strip("\n")))
        else:
            raise UserError(f"planted bug {name}: this line fits no change: {line!r}")
        before = kind
    if not (what and changes and tests):
        raise UserError(f"planted bug {name!r} needs `name: what`, a change and `tests`")
    return Bug(name, what, changes, tests)


# --- planting -------------------------------------------------------------------------------------


@cache
def definitions(text: str) -> tuple[tuple[str, int, int], ...]:
    """Functions, classes and assigned names of a file, with their first and last lines."""

    def of(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, int, int]]:
        for node in body:
            names: list[str] = []
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names = [node.name]
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            above = [d.lineno for d in getattr(node, "decorator_list", [])]
            for name in names:
                yield prefix + name, min([node.lineno, *above]), node.end_lineno or 0
            if isinstance(node, ast.ClassDef):
                yield from of(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, (ast.If, ast.Try)):
                yield from of([*node.body, *node.orelse], prefix)

    return tuple(of(ast.parse(text).body, ""))


def read_code(root: Path = ROOT) -> dict[str, str]:
    """The text of our Python files by their path from the root."""
    files = [p for folder in (*PACKAGES, *ELSEWHERE) for p in sorted((root / folder).rglob("*.py"))]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in files}


def find(name: str, code: Mapping[str, str]) -> tuple[str, int, int]:
    """(file, first line, last line) of a name. One of a package wins over one elsewhere."""
    found = []
    for path, text in code.items():
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for defined, first, last in definitions(text):
            file = name.removesuffix(defined)  # "", or the end of the module's name
            if len(file) < len(name) and f".{module}.".endswith(f".{file}" if file else ""):
                found.append((path, first, last))
    found = [place for place in found if place[0].split("/")[0] in PACKAGES] or found
    if len(found) != 1:
        places = " and ".join(path for path, *_ in found) or "no file"
        raise UserError(
            f"{name} is in {places}: it must be in one, or stand behind its file's name"
        )
    return found[0]


GAP = r"(?:\s|#[^\n]*)*"  # layout and comments


def pattern_of(code: str) -> str:
    """What finds a piece of code however it is laid out, with the commas that ruff adds or without."""

    def part(word: str) -> str:
        if re.match(r"\w", word):
            return rf"\b{word}\b"
        return (rf",?{GAP}" if word in ")]}" else "") + re.escape(word)

    return GAP.join(map(part, re.findall(r"\w+|[^\w\s]", code)))


def is_expression(text: str) -> bool:
    """Whether it can stand in parentheses; several arguments of a call cannot."""
    try:
        node = ast.parse(f"({text}\n)", mode="eval").body
    except SyntaxError:
        return False
    return not isinstance(node, ast.Tuple) or text.startswith("(")


def changed(text: str, change: Change, first: int, last: int) -> str:
    """The text with one change between two lines. UserError where `old` has no one place there."""
    lines = text.splitlines(keepends=True)
    before, inside = "".join(lines[: first - 1]), "".join(lines[first - 1 : last])
    spots = [found.span() for found in re.finditer(pattern_of(change.old), inside)]
    if len(spots) != 1:
        raise UserError(f"{change.name} holds {change.old!r} {len(spots)} times instead of once")
    begin, end = spots[0]
    column = begin - (inside.rfind("\n", 0, begin) + 1)
    new = change.new.replace("\n", "\n" + " " * column)
    if not new:
        new = "" if change.old.startswith("@") else "pass"
    elif is_expression(change.old) and is_expression(change.new):
        new = f"({new})"
    return f"{before}{inside[:begin]}{new}{inside[end:]}{''.join(lines[last:])}"


def planted(bug: Bug, code: Mapping[str, str]) -> dict[str, str]:
    """The new text of each file that a bug changes."""
    texts = dict(code)
    try:
        for change in bug.changes:
            path, first, last = find(change.name, texts)
            texts[path] = changed(texts[path], change, first, last)
    except UserError as error:
        raise UserError(f"planted bug {bug.name}: {error}") from None
    return {path: text for path, text in texts.items() if text != code[path]}


def test_file(name: str, root: Path = ROOT) -> Path:
    """The one test file of this name, in any folder below tests/."""
    found = [path for path in (root / "tests").rglob(Path(name).name) if path.match(name)]
    if len(found) != 1:
        places = " and ".join(map(str, found)) or "no file below tests/"
        raise UserError(f"the test {name} is in {places}: it must be in one")
    return found[0].relative_to(root)


# --- running --------------------------------------------------------------------------------------


def repository_copy(folder: Path) -> Path:
    """Tracked files and new ones that git does not ignore, copied."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listing.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def run_tests(root: Path, tests: Sequence[str]) -> tuple[str, str]:
    """(result, first failing test or last line). Only a failing test counts as caught."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    own = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    own |= {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=root, env=os.environ | own, capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return "broken", f"no end after {TIMEOUT:.0f} seconds"
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    failed = re.search(r"^FAILED (\S+)", done.stdout, flags=re.MULTILINE)
    if done.returncode == 1 and failed:
        return "caught", re.sub(r"\[.*", "", failed[1])
    return ("survived" if done.returncode == 0 else "broken"), last


def tried(texts: Mapping[str, str], tests: Sequence[str]) -> tuple[str, str]:
    """What the tests say of a copy of the repository with these texts in it."""
    with tempfile.TemporaryDirectory() as folder:
        root = repository_copy(Path(folder))
        for path, text in texts.items():
            (root / path).write_text(text, encoding="utf-8")
        return run_tests(root, tests)


@dataclass(frozen=True)
class MutationCheckConfig:
    """Plant known bugs one at a time in a copy of the repository and report which tests fail."""

    only: tuple[str, ...] = ()
    """Names of the bugs to plant; default: all."""
    jobs: AtLeastOne = 2
    """Bugs at a time; each runs one single-threaded pytest."""

    def __post_init__(self) -> None:
        check_ranges(self)


def main(config: MutationCheckConfig) -> None:
    bugs = read_bugs()
    unknown = sorted(set(config.only) - {bug.name for bug in bugs})
    if unknown:
        raise UserError(
            f"there is no {', '.join(unknown)} in {BUGS.name}: --only takes names of its bugs"
        )
    bugs = [bug for bug in bugs if bug.name in (config.only or bug.name)]
    caught = check(bugs, config.jobs)
    print(f"{caught} of {len(bugs)} planted bugs are caught")
    sys.exit(caught < len(bugs))


def check(bugs: Sequence[Bug], jobs: int) -> int:
    """How many are caught, so many tried at a time; first the tests must pass without any of them."""
    code = read_code()
    texts = [planted(bug, code) for bug in bugs]
    tests = [[str(test_file(name)) for name in bug.tests] for bug in bugs]
    files = sorted({file for each in tests for file in each})
    caught = 0
    with ThreadPoolExecutor(jobs) as pool:
        for result, last in pool.map(lambda file: tried({}, [file]), files):
            if result != "survived":
                raise UserError(f"the tests fail without any planted bug: {last}")
        for bug, (result, last) in zip(bugs, pool.map(tried, texts, tests), strict=True):
            print(f"{result:9}{bug.name:40}{last}", flush=True)
            caught += result == "caught"
    return caught


if __name__ == "__main__":
    run_command(main, MutationCheckConfig)
