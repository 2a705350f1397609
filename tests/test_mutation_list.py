"""The list of planted bugs fits the code as it is now; nothing here runs the planted bugs."""

from __future__ import annotations

import ast
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from trials import ROOT, TIMED_OUT

from harness.errors import UserError
from scripts import mutation_check
from scripts.mutation_check import (
    DOCS,
    MUTATIONS,
    Edit,
    Mutation,
    MutationCheckConfig,
    Outcome,
    judge,
    main,
    plant,
    planting_errors,
    selected,
    summary,
    table,
)

NAMES = [mutation.name for mutation in MUTATIONS]
EXAMPLE = Mutation("example", "one becomes two", (Edit("a.py", "x = 1", "x = 2"),), ("test_a.py",))


def folder_with(folder: Path, text: str) -> Path:
    (folder / "a.py").write_text(text, encoding="utf-8")
    (folder / "test_a.py").write_text("", encoding="utf-8")
    return folder


def test_every_planted_text_occurs_exactly_once():
    assert planting_errors(MUTATIONS, ROOT) == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_code_parses_and_differs(mutation):
    """A bug that is a syntax error, or no change at all, would prove nothing."""
    texts: dict[str, str] = {}
    for edit in mutation.edits:
        text = texts.get(edit.path) or (ROOT / edit.path).read_text(encoding="utf-8")
        texts[edit.path] = text.replace(edit.old, edit.new)
    for path, text in texts.items():
        original = (ROOT / path).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(original))


def test_names_and_descriptions_make_a_table():
    assert len(set(NAMES)) == len(NAMES)
    for mutation in MUTATIONS:
        assert re.fullmatch(r"[a-z0-9-]+", mutation.name) and len(mutation.name) < 32
        assert mutation.what and "|" not in mutation.what and "\n" not in mutation.what
        assert mutation.tests and mutation.edits


@pytest.mark.parametrize(("text", "count"), [("y = 1", 0), ("x = 1\nx = 1", 2)])
def test_a_text_that_is_gone_or_doubled_is_named(tmp_path, text, count):
    (error,) = planting_errors([EXAMPLE], folder_with(tmp_path, text))
    assert error.startswith(f"mutation example: a.py holds the text to replace {count} times")
    assert "'x = 1'" in error
    with pytest.raises(UserError, match="mutation example.*'x = 1' is not there exactly once"):
        plant(EXAMPLE, tmp_path)
    assert (tmp_path / "a.py").read_text() == text


def test_a_missing_file_or_test_is_named(tmp_path):
    text, test = planting_errors([EXAMPLE], tmp_path)
    assert "a.py holds the text to replace 0 times" in text
    assert test == "mutation example: its test file test_a.py does not exist"
    named = Mutation("named", "", (), ("test_a.py::test_b[1]",))
    folder_with(tmp_path, "")
    assert planting_errors([named], tmp_path) == [
        "mutation named: its test test_a.py::test_b[1] does not exist"
    ]
    (tmp_path / "test_a.py").write_text("def test_b(x):\n    pass\n", encoding="utf-8")
    assert planting_errors([named], tmp_path) == []


def test_edits_of_one_file_follow_each_other(tmp_path):
    edits = (Edit("a.py", "x = 1", "x = 2"), Edit("a.py", "y = 1", "y = 2"))
    plant(Mutation("two", "", edits, ()), folder_with(tmp_path, "x = 1; y = 1; z = 1"))
    assert (tmp_path / "a.py").read_text() == "x = 2; y = 2; z = 1"


def test_no_bug_needs_an_optional_package_to_be_caught():
    """A file that is skipped without hypothesis or transformers catches nothing there."""
    for mutation in MUTATIONS:
        files = [test.partition("::")[0] for test in mutation.tests]
        texts = [(ROOT / file).read_text(encoding="utf-8") for file in files]
        assert not all("require_package(" in text for text in texts), mutation.name


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
        (4, "ERROR: file not found", ("broken", "ERROR: file not found")),
        (TIMED_OUT, "..", ("broken", "no end after 600 seconds")),
        (5, "", ("broken", "no output")),
    ],
)
def test_only_a_failing_test_counts_as_caught(status, output, expected):
    assert judge(status, output) == expected


def test_unknown_names_are_refused_and_known_ones_keep_their_order():
    with pytest.raises(UserError, match="there is no mutation k9-sign: --list"):
        selected(("k1-sign", "k9-sign"))
    assert [m.name for m in selected((NAMES[3], NAMES[0]))] == [NAMES[0], NAMES[3]]
    assert selected(()) == list(MUTATIONS)


@pytest.fixture
def pretend(monkeypatch):
    """Runs no test: results by name, everything else is caught. Returns the names that were tried."""
    tried: list[str] = []

    def use(**results: str) -> list[str]:
        def check(mutation, files, runners):
            tried.append(mutation.name)
            return Outcome(mutation, results.get(mutation.name, "caught"), "test_a.py::test", 0.0)

        monkeypatch.setattr(mutation_check, "check", check)
        monkeypatch.setattr(mutation_check, "check_baseline", lambda *arguments: None)
        monkeypatch.setattr(mutation_check, "repository_files", list)
        return tried

    return use


def test_the_process_fails_unless_all_are_caught(pretend, capsys):
    tried = pretend()
    main(MutationCheckConfig())
    assert sorted(tried) == sorted(NAMES)
    assert f"{len(NAMES)} of {len(NAMES)} planted bugs are caught." in capsys.readouterr().out
    for result in ("survived", "broken"):
        pretend(**{"k1-sign": result})
        with pytest.raises(SystemExit) as ended:
            main(MutationCheckConfig(only=("k1-sign", "dpo-sign")))
        assert ended.value.code == 1
        assert "1 of 2 planted bugs are caught." in capsys.readouterr().out


def test_a_failing_baseline_stops_everything():
    class Failing:
        def run(self, root, tests):
            return 1, "1 failed"

    failed = pytest.raises(UserError, match="the tests fail without any mutation:\n1 failed")
    with ThreadPoolExecutor(2) as pool, failed:
        mutation_check.check_baseline(MUTATIONS[:1], [], Failing(), pool)


def test_list_runs_nothing(pretend, capsys):
    tried = pretend()
    main(MutationCheckConfig(list=True))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == NAMES and tried == []


def test_the_document_is_written_from_all_mutations_only(pretend, monkeypatch, tmp_path):
    pretend()
    monkeypatch.setattr(mutation_check, "DOCS", tmp_path / "table.md")
    with pytest.raises(UserError, match="needs all mutations"):
        main(MutationCheckConfig(only=("k1-sign",), write_docs=True))
    assert not (tmp_path / "table.md").exists()
    main(MutationCheckConfig(write_docs=True))
    assert (tmp_path / "table.md").read_text().count("\n| ") == len(NAMES) + 1


def test_the_document_has_a_caught_row_for_every_mutation():
    text = DOCS.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z0-9-]+) \| `([^`]+)` \| (.+) \| caught \| `(.+)` \|$", text, re.M)
    expected = [(m.name, m.edits[0].path, m.what) for m in MUTATIONS]
    assert [row[:3] for row in rows] == expected, (
        "run scripts/mutation_check.py --write-docs again: the list has changed"
    )
    for *_, test in rows:
        assert (ROOT / test.split("::")[0]).is_file()
    assert f"{len(NAMES)} of {len(NAMES)} planted bugs are caught." in text


def test_the_table_shows_what_survived():
    outcomes = [
        Outcome(EXAMPLE, "caught", "test_a.py::test", 1.0),
        Outcome(EXAMPLE, "survived", "", 1.0),
    ]
    assert table(outcomes).splitlines()[2:] == [
        "| example | `a.py` | one becomes two | caught | `test_a.py::test` |",
        "| example | `a.py` | one becomes two | survived |  |",
    ]
    assert summary(outcomes) == "1 of 2 planted bugs are caught."
