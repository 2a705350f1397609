"""Do the tests notice? Plants one known bug at a time into a copy of the repository and runs them.

    python scripts/mutation_check.py                    every planted bug
    python scripts/mutation_check.py --only k1-sign     one or several of them

    python scripts/mutation_check.py --also 40          who else notices, of 40 more bugs

The bugs stand in scripts/planted_bugs.txt, in blocks with blank lines between:

    k1-sign: k1 is log pi_ref - log pi: the penalty pays for drifting away
    in k1
    - return log_probs - ref_log_probs
    + return ref_log_probs - log_probs
    tests test_worked_numbers.py
    also 1 of 4: test_peers.py

`in` names a function, a class or an assigned name, with its file before it where several have that
name: `grpo_engine.train`. The `-` lines must occur there once, indented as a whole in any way. Without
`+` lines they are deleted. A block may hold several changes. A test is a file, wherever below
tests/ it lies. A bug is caught when a test fails, and survives when all of them pass; the script then
ends with status 1. First the same tests run without a bug: they must pass.

`also` says who else notices: of the other tests that import a changed module, how many were run, and
which failed. Those that import least run first; it ends with three that notice, or with twelve. A bug
without this line was not measured. `--also` goes on where it ended, because it writes each line at once.
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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from harness.command_line import run_command
from harness.errors import UserError
from harness.flags import AtLeastOne, Count, check_ranges

ROOT = Path(__file__).resolve().parents[1]
BUGS = ROOT / "scripts" / "planted_bugs.txt"
PACKAGES = ("harness", "data", "gpt", "reward_model", "rl", "report")
ELSEWHERE = ("nano", "scripts", "studies", "docs/examples", "conformance")  # if no package has it
TIMEOUT = 600.0  # seconds for one run of tests: a loop that no longer ends is no result
ENOUGH, MOST = 3, 12  # other files that notice, and that are tried


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
    also: Sequence[str] | None = None  # None: not measured


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
    place, before, also = "", "", None
    for line in lines[1:]:
        kind, _, rest = line.partition(" ")
        if kind == "in":
            place = rest
        elif kind == "tests":
            tests += rest.split()
        elif kind == "also":
            also = rest.partition(":")[2].split()
        elif kind == "-" and place:
            old = f"{changes.pop().old}\n{rest}" if before == "-" else rest
            changes.append(Change(place, old, ""))
        elif kind == "+" and before in ("-", "+"):
            changes.append(replace(last := changes.pop(), new=f"{last.new}\n{rest}".strip("\n")))
        else:
            raise UserError(f"planted bug {name}: this line fits no change: {line!r}")
        before = kind
    if not (what and changes and tests):
        raise UserError(f"planted bug {name!r} needs `name: what`, a change and `tests`")
    return Bug(name, what, changes, tests, also)


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


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def find(name: str, code: Mapping[str, str]) -> tuple[str, int, int]:
    """(file, first line, last line) of a name. One of a package wins over one elsewhere."""
    found = []
    for path, text in code.items():
        module = module_of(path)
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


def changed(text: str, change: Change, first: int, last: int) -> str:
    """The text with one change between two lines. UserError where `old` has no one place there."""
    lines = text.splitlines(keepends=True)
    before, inside = "".join(lines[: first - 1]), "".join(lines[first - 1 : last])
    pattern = r"\n *".join(re.escape(line.strip()) for line in change.old.splitlines())
    spots = [found.span() for found in re.finditer(pattern, inside)]
    if len(spots) != 1:
        raise UserError(f"{change.name} holds {change.old!r} {len(spots)} times instead of once")
    begin, end = spots[0]
    column = begin - (inside.rfind("\n", 0, begin) + 1)
    new = change.new or ("" if change.old.startswith("@") else "pass")
    new = new.replace("\n", "\n" + " " * column)
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


@contextmanager
def copy_with(texts: Mapping[str, str]) -> Iterator[Path]:
    """A copy of the repository with these texts in it."""
    with tempfile.TemporaryDirectory() as folder:
        root = repository_copy(Path(folder))
        for path, text in texts.items():
            (root / path).write_text(text, encoding="utf-8")
        yield root


def tried(texts: Mapping[str, str], tests: Sequence[str]) -> tuple[str, str]:
    """What the tests say of a copy of the repository with these texts in it."""
    with copy_with(texts) as root:
        return run_tests(root, tests)


# --- who else notices -----------------------------------------------------------------------------


@cache
def imports(file: Path) -> frozenset[str]:
    """Modules that a file imports; `from a import b` is a and a.b."""
    found = set[str]()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return frozenset(found)


@cache
def passes(file: str) -> bool:
    return tried({}, [file])[0] == "survived"


def who_else(bug: Bug, texts: Mapping[str, str]) -> str:
    """`2 of 7: test_peers.py test_worked_numbers.py`, as the list keeps it."""
    modules = {module_of(path).removeprefix("scripts.") for path in texts}
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if imports(file) & modules]
    own = [ROOT / test_file(name) for name in bug.tests]
    files = sorted({*files} - {*own}, key=lambda file: (len(imports(file)), file))[:MOST]
    found, run = list[str](), 0
    with copy_with(texts) as root:
        while run < len(files) and len(found) < ENOUGH:
            name = str(files[run].relative_to(ROOT))
            run += 1
            if run_tests(root, [name])[0] == "caught" and passes(name):
                found.append(Path(name).name)
    return f"{len(found)} of {run}: {' '.join(found)}".rstrip()


def ask_others(bugs: Sequence[Bug], count: int, jobs: int) -> None:
    """Write `also` below so many bugs that have none, spread over the list."""
    left = [bug for bug in bugs if bug.also is None]
    left = left[:: max(len(left) // count, 1)][:count]
    code = read_code()
    texts = [planted(bug, code) for bug in left]
    with ThreadPoolExecutor(jobs) as pool:
        for bug, others in zip(left, pool.map(who_else, left, texts), strict=True):
            print(f"{bug.name:40}{others}", flush=True)
            listed = BUGS.read_text(encoding="utf-8")
            begin = listed.index(f"\n{bug.name}: ")
            end = (listed + "\n").index("\n\n", begin)
            listed = f"{listed[:end].rstrip()}\nalso {others}\n{listed[end + 1 :]}"
            BUGS.write_text(listed, encoding="utf-8")


# --- the command ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MutationCheckConfig:
    """Plant known bugs one at a time in a copy of the repository and report which tests fail."""

    only: tuple[str, ...] = ()
    """Names of the bugs to plant; default: all."""
    also: Count = 0
    """Instead, for so many more bugs: write into the list which other tests notice."""
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
    if config.also:
        return ask_others(bugs, config.also, config.jobs)
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
