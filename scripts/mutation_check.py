"""Do the tests notice? Plants one known bug at a time into a copy of the repository and runs them.

    python scripts/mutation_check.py                    every planted bug, about 10 minutes on 2 cores
    python scripts/mutation_check.py --list             their names
    python scripts/mutation_check.py --only k1-sign     one or several of them
    python scripts/mutation_check.py --write-docs       write docs/mutation_check.md

The bugs stand in scripts/planted_bugs.txt: a name, what goes wrong, the changes of the code
(code_changes.py describes the format) and the tests that must notice. A test is a file or a function,
wherever below tests/ it lies, or file.py::test_x[case]. The working tree is never touched: a copy
holds what git tracks, and new files that it does not ignore. A bug is caught when a test fails
(exit status 1 of pytest) and survives when all of them pass; the script then ends with status 1.
First the same tests run without a bug: they must pass.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from code_changes import Change, Code, read_blocks
from trials import (
    ROOT,
    TIMED_OUT,
    TIMEOUT,
    pytest_processes,
    repository_copy,
    repository_files,
    run_tests,
)

from harness.command_line import run_command
from harness.errors import UserError
from harness.flag_ranges import AtLeastOne, check_ranges

BUGS = ROOT / "scripts" / "planted_bugs.txt"
DOCS = ROOT / "docs" / "mutation_check.md"


@dataclass(frozen=True)
class Bug:
    """A known bug: what goes wrong, how to plant it, and the tests that must notice."""

    name: str
    what: str
    section: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True)
class PlantedBug:
    """A bug in the code and the tests as they are now."""

    bug: Bug
    texts: Mapping[str, str]  # of the files that it changes
    tests: tuple[str, ...]  # as pytest names them


@dataclass(frozen=True)
class Outcome:
    """What the tests said."""

    bug: Bug
    result: str  # caught, survived or broken
    test: str  # the first test that failed, or the end of the output
    seconds: float


# --- planting -------------------------------------------------------------------------------------


def read_bugs(path: Path = BUGS) -> list[Bug]:
    """All planted bugs in their order in the file."""
    bugs = []
    for block in read_blocks(path):
        name, colon, what = block.title.partition(": ")
        if not (colon and block.changes and block.tests):
            raise UserError(
                f"{path.name}: {block.title!r} needs `name: what`, a change and `tests`"
            )
        bugs.append(Bug(name, what, block.section, block.changes, block.tests))
    return bugs


def read_tests(root: Path = ROOT) -> dict[str, str]:
    """The text of every test file by its path from the root."""
    files = sorted((root / "tests").rglob("test_*.py"))
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in files}


def pytest_name(test: str, files: Mapping[str, str]) -> str:
    """`path` or `path::function[case]` of a test that may lie in any folder."""
    file, _, function = test.rpartition("::") if not test.endswith(".py") else (test, "", "")
    definition = f"def {function.partition('[')[0]}(" if function else ""
    found = [p for p, text in files.items() if f"/{p}".endswith(f"/{file}") or not file]
    found = [path for path in found if definition in files[path]]
    if len(found) != 1:
        places = " and ".join(found) or "no file below tests/"
        raise UserError(f"the test {test} is in {places}: it must be in one")
    return f"{found[0]}::{function}" if function else found[0]


def planted(bugs: Sequence[Bug], code: Code, tests: Mapping[str, str]) -> list[PlantedBug]:
    """All of them planted. One UserError names each that does not fit the code or the tests."""
    found, errors = [], []
    for bug in bugs:
        try:
            names = tuple(pytest_name(test, tests) for test in bug.tests)
            found.append(PlantedBug(bug, code.changed(bug.changes), names))
        except UserError as error:
            errors.append(f"planted bug {bug.name}: {error}")
    if errors:
        raise UserError("\n".join(errors))
    return found


# --- running --------------------------------------------------------------------------------------


def judge(status: int, output: str) -> tuple[str, str]:
    """(result, first failing test or last line). Only a failing test counts as caught."""
    last = (output.strip().splitlines() or ["no output"])[-1]
    if status == TIMED_OUT:
        return "broken", f"no end after {TIMEOUT:.0f} seconds"
    if status == 0:
        return "survived", last
    failed = re.search(r"^FAILED (\S+)", output, flags=re.MULTILINE)
    if status == 1 and failed:
        return "caught", re.sub(r"\[.*", "", failed.group(1))
    return "broken", last


def check(planted_bug: PlantedBug, files: Sequence[str], processes: ProcessPoolExecutor) -> Outcome:
    start = time.perf_counter()
    with repository_copy(files) as root:
        for path, text in planted_bug.texts.items():
            (root / path).write_text(text, encoding="utf-8")
        result, test = judge(*run_tests(processes, root, planted_bug.tests))
    outcome = Outcome(planted_bug.bug, result, test, time.perf_counter() - start)
    print(f"{result:9}{outcome.bug.name:32}{outcome.seconds:5.1f} s  {test}", flush=True)
    return outcome


def check_baseline(
    bugs: Sequence[PlantedBug], files: Sequence[str], processes: ProcessPoolExecutor, pool: Executor
) -> None:
    """The tests must pass without any bug, or catching one would mean nothing."""
    tests = sorted({test for bug in bugs for test in bug.tests})
    of_a_file = [list(group) for _, group in groupby(tests, lambda test: test.split("::")[0])]
    with repository_copy(files) as root:
        for status, output in pool.map(lambda group: run_tests(processes, root, group), of_a_file):
            if status:
                raise UserError(f"the tests fail without any planted bug:\n{output[-2000:]}")
    print(f"without a planted bug the {len(of_a_file)} test files pass", flush=True)


# --- reporting ------------------------------------------------------------------------------------

INTRODUCTION = """# Planted bugs

Do the tests notice a wrong line? `scripts/mutation_check.py` plants one known bug at a time into a
copy of the repository and runs the tests that should fail. Many of these bugs have been printed or
released somewhere (docs/equations.md, "Mistakes"). The code of each bug and the tests that must
notice it are in [scripts/planted_bugs.txt](../scripts/planted_bugs.txt), and what each does is printed
by `--list`. The script writes this page (`--write-docs`) and names what survives.

"""


def summary(outcomes: Sequence[Outcome]) -> str:
    caught = sum(outcome.result == "caught" for outcome in outcomes)
    return f"{caught} of {len(outcomes)} planted bugs are caught."


def page(outcomes: Sequence[Outcome]) -> str:
    """docs/mutation_check.md: the bugs of each section, and what those do that were not caught."""
    parts = [f"{INTRODUCTION}{summary(outcomes)}\n\n|bugs in|planted|caught|\n|---|---|---|\n"]
    for section, group in groupby(outcomes, lambda outcome: outcome.bug.section):
        results = [outcome.result == "caught" for outcome in group]
        parts.append(f"|{section}|{len(results)}|{sum(results)}|\n")
    missed = [outcome for outcome in outcomes if outcome.result != "caught"]
    parts += [f"\n- **{o.result}**: {o.bug.name}: {o.bug.what}" for o in missed]
    return "".join(parts)


@dataclass(frozen=True)
class MutationCheckConfig:
    """Plant known bugs one at a time in a copy of the repository and report which tests fail."""

    only: tuple[str, ...] = ()
    """Names of the bugs to plant; default: all."""
    list: bool = False
    """Print the names and what they do, and run nothing."""
    jobs: AtLeastOne = 2
    """Bugs at a time; each runs one single-threaded pytest."""
    write_docs: bool = False
    """Write docs/mutation_check.md (only with all bugs)."""

    def __post_init__(self) -> None:
        check_ranges(self)


def selected(bugs: Sequence[Bug], only: Sequence[str]) -> list[Bug]:
    unknown = sorted(set(only) - {bug.name for bug in bugs})
    if unknown:
        raise UserError(f"there is no planted bug {', '.join(unknown)}: --list prints their names")
    return [bug for bug in bugs if not only or bug.name in only]


def main(config: MutationCheckConfig) -> None:
    if config.write_docs and config.only:
        raise UserError("--write-docs needs all planted bugs: leave --only out")
    bugs = selected(read_bugs(), config.only)
    if config.list:
        for bug in bugs:
            print(f"{bug.name:34}{bug.changes[0].name:36}{bug.what}")
        return
    files, start = repository_files(), time.perf_counter()
    ready = planted(bugs, Code.read(), read_tests())
    with pytest_processes(config.jobs) as processes, ThreadPoolExecutor(config.jobs) as pool:
        check_baseline(ready, files, processes, pool)
        outcomes = list(pool.map(lambda bug: check(bug, files, processes), ready))
    for outcome in outcomes:
        if outcome.result != "caught":
            print(f"{outcome.result}: {outcome.bug.name}: {outcome.bug.what} ({outcome.test})")
    print(f"\n{summary(outcomes)} ({time.perf_counter() - start:.0f} s)")
    if config.write_docs:
        DOCS.write_text(page(outcomes), encoding="utf-8")
    if any(outcome.result != "caught" for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    run_command(main, MutationCheckConfig)
