"""The planted bugs fit the code and the tests as they are now; nothing here runs them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import mutation_check
import pytest
from mutation_check import planted, read_bugs

BUGS = read_bugs()
CODE = mutation_check.read_code()


@cache
def dumped(path: str) -> list[str]:
    return [ast.dump(node) for node in ast.parse(CODE[path]).body]


def test_every_bug_can_be_planted_and_its_tests_exist() -> None:
    """A bug that is a syntax error, or no change at all, would prove nothing."""
    for bug in BUGS:
        assert [mutation_check.test_file(name) for name in (*bug.tests, *(bug.also or ()))]
        for path, text in planted(bug, CODE).items():
            assert [ast.dump(node) for node in ast.parse(text).body] != dumped(path), bug.name


def test_no_bug_needs_an_optional_package_to_be_caught() -> None:
    """A file that is skipped without hypothesis or transformers catches nothing there."""
    for bug in BUGS:
        files = [mutation_check.ROOT / mutation_check.test_file(name) for name in bug.tests]
        texts = [file.read_text(encoding="utf-8") for file in files]
        assert not all("require_package(" in text for text in texts), bug.name


def test_who_else_notices_is_written_once_below_its_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = (
        ": a\nin k1\n- where_finite(log_probs, ref_log_probs)\n+ log_probs\ntests test_peers.py\n"
    )
    listed = tmp_path / "bugs.txt"
    listed.write_text(f"# KL\none{block}\ntwo{block}")
    monkeypatch.setattr(mutation_check, "BUGS", listed)
    for word in ("first", "second"):
        monkeypatch.setattr(
            mutation_check, "who_else", lambda bug, texts, word=word: f"1 of 2: {word}"
        )
        mutation_check.ask_others(read_bugs(listed), 1, 1)
    assert [(bug.name, bug.also) for bug in read_bugs(listed)] == [
        ("one", ["first"]),
        ("two", ["second"]),
    ]
    assert listed.read_text().startswith(f"# KL\none{block}also 1 of 2: first\n\ntwo")


def test_the_others_are_those_that_import_what_a_bug_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the bug's own tests, and none that fails without the bug too."""

    def small_copy(folder: Path) -> Path:
        (folder / "rl/equations").mkdir(parents=True)
        return folder

    passing = ("test_enumeration.py", "test_worked_numbers.py", "test_lora.py")
    monkeypatch.setattr(mutation_check, "repository_copy", small_copy)
    monkeypatch.setattr(mutation_check, "run_tests", lambda root, tests: ("caught", ""))
    monkeypatch.setattr(mutation_check, "passes", lambda name: name.endswith(passing))
    bug = next(bug for bug in BUGS if bug.name == "k1-sign")
    _, _, names = mutation_check.who_else(bug, {"rl/equations/kl.py": "a = 1"}).partition(": ")
    assert names == "test_enumeration.py"
