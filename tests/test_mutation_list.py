"""The planted bugs fit the code and the tests as they are now; nothing here runs them."""

from __future__ import annotations

import ast
from functools import cache

import mutation_check
from mutation_check import planted, pytest_name, read_bugs

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
