"""The planted bugs fit the code and the tests as they are now; nothing here runs them."""

from __future__ import annotations

import ast
from functools import cache

import mutation_check
from mutation_check import planted, read_bugs

BUGS = read_bugs()
CODE = mutation_check.read_code()


@cache
def dumped(path: str) -> list[str]:
    return [ast.dump(node) for node in ast.parse(CODE[path]).body]


def test_every_bug_can_be_planted_and_its_tests_exist() -> None:
    """A bug that is a syntax error, or no change at all, would prove nothing."""
    for bug in BUGS:
        assert [mutation_check.test_file(name) for name in bug.tests]
        for path, text in planted(bug, CODE).items():
            assert [ast.dump(node) for node in ast.parse(text).body] != dumped(path), bug.name


def test_no_bug_needs_an_optional_package_to_be_caught() -> None:
    """A file that is skipped without hypothesis or transformers catches nothing there."""
    for bug in BUGS:
        files = [mutation_check.ROOT / mutation_check.test_file(name) for name in bug.tests]
        texts = [file.read_text(encoding="utf-8") for file in files]
        assert not all("require_package(" in text for text in texts), bug.name
