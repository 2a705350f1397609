"""The planted bugs fit the code and the tests as they are now; nothing here runs them."""

from __future__ import annotations

import ast
from functools import cache

import mutation_check
import pytest
from code_changes import Change, Code, read_blocks
from mutation_check import (
    DOCS,
    Bug,
    MutationCheckConfig,
    Outcome,
    judge,
    main,
    page,
    planted,
    pytest_name,
    read_bugs,
    read_tests,
)
from trials import TIMED_OUT

from harness.errors import UserError

BUGS = read_bugs()


def statements(text: str) -> dict[str, ast.stmt]:
    """The statements of a file by their lines, decorators and comments above them too."""
    lines, end, found = text.split("\n"), 0, {}
    for node in ast.parse(text).body:
        found["\n".join(lines[end : node.end_lineno])] = node
        end = node.end_lineno or 0
    return found


def test_every_bug_can_be_planted_and_its_tests_exist():
    """A bug that is a syntax error, or no change at all, would prove nothing."""
    code = Code.read()
    before = cache(lambda path: statements(code.texts[path]))
    for bug in planted(BUGS, code, read_tests()):
        for path, text in bug.texts.items():
            old, new = before(path), statements(text)
            gone = {ast.dump(old[lines]) for lines in old.keys() - new.keys()}
            assert gone != {ast.dump(new[lines]) for lines in new.keys() - old.keys()}, bug.bug.name


def test_no_bug_needs_an_optional_package_to_be_caught():
    """A file that is skipped without hypothesis or transformers catches nothing there."""
    tests = read_tests()
    for bug in BUGS:
        files = [pytest_name(test, tests).partition("::")[0] for test in bug.tests]
        assert not all("require_package(" in tests[file] for file in files), bug.name


# Changes

TEXT = '''TABLE = {"a": 1, "b": (2, 3)}  # é

@decorated
def f(x, y=1):
    """Adds."""
    z = g(
        x,  # first
        y=y,
    )
    if z > 0:
        z += 1
        z -= 1
    return z + 1


class A:
    size: int = 3

    def f(self):
        return self.size
'''
CODE = Code({"gpt/m.py": TEXT, "rl/n.py": "def g(x):\n    return x\n", "scripts/m.py": TEXT})


@pytest.mark.parametrize(
    ("name", "old", "message"),
    [
        ("f", "z = 1", "f in gpt/m.py holds 'z = 1' 0 times instead of once"),
        ("f", "z", "f in gpt/m.py holds 'z' 5 times instead of once"),
        ("f", "z z", "f in gpt/m.py holds 'z z' 0 times instead of once"),
        ("h", "z", "no code is called h in harness, data, gpt, "),
    ],
)
def test_a_change_without_one_place_is_named(name, old, message):
    bug = Bug("example", "", "", (Change(name, old, "2"),), ("test_a.py",))
    with pytest.raises(UserError) as error:
        planted([bug], CODE, {"tests/test_a.py": ""})
    assert str(error.value).startswith(f"planted bug example: {message}")


def test_tests_are_found_in_any_folder():
    files = {"tests/x/test_a.py": "def test_1(x):", "tests/test_b.py": "def test_1():\ndef test_2("}
    assert pytest_name("test_a.py", files) == "tests/x/test_a.py"
    assert pytest_name("test_2[c-1]", files) == "tests/test_b.py::test_2[c-1]"
    assert pytest_name("test_a.py::test_1", files) == "tests/x/test_a.py::test_1"
    for test, places in (("test_1", "tests/x/test_a.py and tests/test_b.py"), ("a.py", "no file")):
        with pytest.raises(UserError, match=f"the test {test} is in {places}"):
            pytest_name(test, files)


def test_a_file_of_changes(tmp_path):
    path = tmp_path / "bugs.txt"
    path.write_text(
        "# one\n\na: b: c\nin f\n- x\n+ if x:\n+     y\n- z\nin g\n- 1\n+ 2\ntests t u\n"
    )
    (block,) = read_blocks(path)
    assert (block.title, block.section, block.tests) == ("a: b: c", "one", ("t", "u"))
    expected = (Change("f", "x", "if x:\n    y"), Change("f", "z", ""), Change("g", "1", "2"))
    assert block.changes == expected
    for text in ("a: b\n- x\n+ y", "a: b\nin f\n+ y", "a: b\nin f\nwhat"):
        path.write_text(text)
        with pytest.raises(UserError, match="'a: b': this line fits no change"):
            read_blocks(path)
    path.write_text("a: b\nin f\n- x")
    with pytest.raises(UserError, match="bugs.txt: 'a: b' needs"):
        read_bugs(path)


# Results

FAILURE = (
    "..F\n=== short test summary info ===\nFAILED tests/a.py::test_x[1.0-b c] - assert 0\n1 failed"
)


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (0, "....\n4 passed", ("survived", "4 passed")),
        (1, FAILURE, ("caught", "tests/a.py::test_x")),
        (1, "1 error", ("broken", "1 error")),  # a fixture that broke is no failing test
        (2, "ERROR tests/a.py\n1 error", ("broken", "1 error")),  # it could not be imported
        (TIMED_OUT, "..", ("broken", "no end after 600 seconds")),
        (5, "", ("broken", "no output")),
    ],
)
def test_only_a_failing_test_counts_as_caught(status, output, expected):
    assert judge(status, output) == expected


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """Runs no test: results by name, everything else is caught. Returns the names that were tried."""
    tried: list[str] = []

    def use(**results: str) -> list[str]:
        def check(planted_bug, files, runners):
            tried.append(planted_bug.bug.name)
            result = results.get(planted_bug.bug.name, "caught")
            return Outcome(planted_bug.bug, result, "test_a.py::test", 0.0)

        monkeypatch.setattr(mutation_check, "check", check)
        monkeypatch.setattr(mutation_check, "check_baseline", lambda *arguments: None)
        monkeypatch.setattr(mutation_check, "repository_files", list)
        monkeypatch.setattr(mutation_check, "DOCS", tmp_path / "page.md")
        return tried

    return use


def test_the_process_fails_unless_all_are_caught(pretend, capsys, monkeypatch):
    tried = pretend()
    with monkeypatch.context() as patch:
        patch.setattr(mutation_check, "read_bugs", lambda: BUGS[::20])
        main(MutationCheckConfig())
    count = len(BUGS[::20])
    assert sorted(tried) == sorted(bug.name for bug in BUGS[::20])
    assert f"{count} of {count} planted bugs are caught." in capsys.readouterr().out
    pretend(**{"k1-sign": "survived", "dpo-sign": "broken"})
    with pytest.raises(SystemExit) as ended:
        main(MutationCheckConfig(only=("k1-sign", "gae-reads-padding", "dpo-sign")))
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert "survived: k1-sign" in printed and "broken: dpo-sign" in printed
    assert "1 of 3 planted bugs are caught." in printed


def test_the_page_is_of_these_bugs_and_all_are_caught():
    assert DOCS.read_text(encoding="utf-8") == page([Outcome(b, "caught", "", 0) for b in BUGS]), (
        "run scripts/mutation_check.py --write-docs again: the list has changed"
    )
    survived = page([Outcome(BUGS[0], "survived", "", 0)])
    assert f"**survived**: {BUGS[0].name}: {BUGS[0].what}" in survived
    assert f"|{BUGS[0].section}|1|0|" in survived and "\n0 of 1 planted" in survived
