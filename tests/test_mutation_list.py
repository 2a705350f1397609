"""The planted bugs fit the code and the tests as they are now; nothing here runs them."""

from __future__ import annotations

import ast
from functools import cache

import mutation_check
import pytest
from mutation_check import Bug, Change, planted, pytest_name, read_bugs

from harness.errors import UserError

BUGS = read_bugs()
CODE, TESTS = mutation_check.read_code(), mutation_check.read_tests()


@cache
def dumped(path: str) -> list[str]:
    return [ast.dump(node) for node in ast.parse(CODE[path]).body]


def test_every_bug_can_be_planted_and_its_tests_exist() -> None:
    """A bug that is a syntax error, or no change at all, would prove nothing."""
    for bug in BUGS:
        assert [pytest_name(test, TESTS) for test in bug.tests]
        for path, text in planted(bug, CODE).items():
            assert [ast.dump(node) for node in ast.parse(text).body] != dumped(path), bug.name


def test_no_bug_needs_an_optional_package_to_be_caught() -> None:
    """A file that is skipped without hypothesis or transformers catches nothing there."""
    for bug in BUGS:
        files = [pytest_name(test, TESTS).partition("::")[0] for test in bug.tests]
        assert not all("require_package(" in TESTS[file] for file in files), bug.name


# Changes

TEXT = """TABLE = {"a": 1, "b": (2, 3)}

@decorated
def f(x, y=1):
    z = g(
        x,  # first
        y=y,
    )
    if z > 0:
        z += 1
    return z + 1


class A:
    def f(self):
        return self.size
"""
PRETENDED = {"gpt/m.py": TEXT, "rl/n.py": "def g(x):\n    return x\n", "scripts/m.py": TEXT}


def with_change(name: str, old: str, new: str) -> str:
    bug = Bug("example", "", "", (Change(name, old, new),), ("test_a.py",))
    ((path, text),) = planted(bug, PRETENDED).items()
    assert path == "gpt/m.py"  # and not the one of scripts/
    return text


@pytest.mark.parametrize(
    ("name", "old", "new", "line"),
    [
        ("f", "g(x, y=y)", "g(y)", "    z = (g(y))"),  # however it is laid out
        ("f", "z > 0", "z or 1", "    if (z or 1):"),
        ("f", "z += 1", "", "        pass"),
        ("f", "z += 1", "if x:\n    z = 2", "            z = 2"),
        ("f", "@decorated", "", ""),
        ("A.f", "self.size", "0", "        return (0)"),
        ("m.TABLE", '"a": 1', '"a": 2', 'TABLE = {"a": 2, "b": (2, 3)}'),
    ],
)
def test_a_change_is_made_in_its_place(name: str, old: str, new: str, line: str) -> None:
    assert line in with_change(name, old, new).splitlines()


@pytest.mark.parametrize(
    ("name", "old"), [("f", "z = 1"), ("f", "z"), ("h", "z"), ("A", "x"), ("f", "sel")]
)
def test_a_change_without_one_place_is_refused(name: str, old: str) -> None:
    with pytest.raises(UserError, match="example"):
        with_change(name, old, "2")
