"""The random mutants: which changes count, how they are drawn, and what is made of the results."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

import harmless_mutants
import mutants
import pytest
from harmless_mutants import HARMLESS
from mutants import (
    GROUPS,
    Group,
    Mutant,
    MutantsConfig,
    Outcome,
    changed_lines,
    counts,
    files_of,
    functions,
    ignored_spans,
    judge,
    main,
    proofs_of,
    sample,
    survivors,
)
from trials import ROOT, TIMED_OUT

from harness.errors import UserError

CODE = '''
"""1 + 1"""
from typing import Protocol

LIMIT: int | None = 3


class Shape(Protocol):
    sides: int = 4


@dataclass(frozen=True)
class A:
    size: int = 5

    def __repr__(self) -> str:
        return "a" * 6

    @no_grad()
    def area(self, x: int | None = 7) -> int | float:
        assert x > 8, x + 9
        if x < 10:
            raise ValueError(f"{x + 11} is small")
        for a, b in zip(x, x, strict=True):
            x = max(a, b).detach() + 12
        return x


if __name__ == "__main__":
    A(13)
'''


def counted() -> str:
    """CODE with blanks for what does not count."""
    lines = [list(line) for line in CODE.splitlines()]
    for (line, column), (last, end) in ignored_spans(ast.parse(CODE)):
        for number in range(line, last + 1):
            row = lines[number - 1]
            first, stop = column if number == line else 0, end if number == last else len(row)
            row[first:stop] = " " * (stop - first)
    return "\n".join("".join(line) for line in lines)


def test_messages_types_protocols_and_main_do_not_count():
    found = [int(number) for number in re.findall(r"\d+", counted().replace('"""1 + 1"""', ""))]
    assert found == [3, 5, 7, 10, 12]
    for word in ("frozen", "strict", "None", "raise", "assert", "__repr__", "Shape"):
        assert word not in counted().replace("import Protocol", "")


def test_functions_are_named_with_their_classes_and_decorators():
    named = {name: span for span, name in functions(ast.parse(CODE))}
    assert list(named) == ["Shape", "A", "A.__repr__", "A.area"]
    assert CODE.splitlines()[named["A.area"][0][0] - 1].strip() == "@no_grad()"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("a\n  b = 2\nc", (2, "b = 1", "b = 2")),
        ("a\nc", (2, "b = 1", "")),
        ("a\n  b = 1\nd", (3, "c", "d")),
        ("z\n  b = 1\nd", (1, "a b = 1 c", "z b = 1 d")),
    ],
)
def test_the_changed_lines(after, expected):
    assert changed_lines("a\n  b = 1\nc", after) == expected


@pytest.fixture
def one_file(tmp_path, monkeypatch, require):
    """A repository with a single file to mutate; returns its name."""
    require("cosmic_ray")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(CODE)
    return "a.py"


def test_every_mutant_is_another_program_at_another_place(one_file):
    everything = sample([one_file], 99, seed=0)
    texts = [mutant.text for mutant in everything]
    assert len(set(texts)) == len(texts) > 8
    original = ast.dump(ast.parse(CODE))
    assert all(ast.dump(ast.parse(text)) != original for text in texts)
    assert [mutant.line for mutant in everything] == sorted(mutant.line for mutant in everything)
    assert {mutant.function for mutant in everything} == {"", "A", "A.area"}


def test_the_changes_that_a_reader_could_overlook(one_file, tmp_path):
    (tmp_path / "a.py").write_text(
        "x = f(a, b).detach()\ny = where(c, a, b)\nz = x.to(device)\n@no_grad()\ndef g(*, a=b): pass\n"
    )
    everything = [m for seed in range(20) for m in sample([one_file], 99, seed)]
    assert {(mutant.old, mutant.new) for mutant in everything} == {
        ("x = f(a, b).detach()", "x = f(a, b)"),
        ("x = f(a, b).detach()", "x = f(b, a).detach()"),
        ("y = where(c, a, b)", "y = where(c, b, a)"),
        ("@no_grad()", ""),
        ("@no_grad()", "@enable_grad()"),
    }


def test_a_sample_is_fixed_by_its_seed_and_stays_where_nothing_was_edited(one_file, tmp_path):
    def chosen(seed):
        return [(m.function, m.old, m.new) for m in sample([one_file], 5, seed)]

    before = chosen(0)
    assert len(before) == 5 and before == chosen(0) != chosen(1)
    (tmp_path / "a.py").write_text("Z = 1\n" + CODE)
    assert len(set(before) & set(chosen(0))) >= 4


# Files, tests and results


def test_every_file_of_a_group_has_tests():
    shares = 0
    for group in GROUPS:
        shares += group.share
        assert files_of(group)
        for path in files_of(group):
            missing = [test for test in proofs_of(path) if not (ROOT / test).is_file()]
            assert proofs_of(path) and missing == [], path
    assert shares == 300


def test_files_outside_the_groups_are_refused():
    with pytest.raises(UserError, match="README.md is in none of the groups"):
        main(MutantsConfig(only=("README.md",)))
    with pytest.raises(UserError, match="leave --only out"):
        main(MutantsConfig(only=("data/collate.py",), write_docs=True))


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (0, "4 passed", ("survived", "")),
        (5, "1 skipped", ("survived", "")),  # the whole file needs an optional package
        (TIMED_OUT, "", ("timeout", "")),
        (-9, "", ("noticed", "signal 9")),
        (1, "FAILED tests/a.py::test_x[1 2] - assert 0\n", ("noticed", "tests/a.py::test_x")),
        (2, "ERROR tests/a.py\n1 error", ("noticed", "tests/a.py")),
    ],
)
def test_what_a_run_says(status, output, expected):
    assert judge(status, output) == expected


def test_a_run_that_says_nothing_is_no_result():
    with pytest.raises(UserError, match="status 4 and no failing test"):
        judge(4, "ERROR: file not found")


ONE = Mutant("a.py", 3, "f", "ChangeNumber", "x = 1 | y", "x = 2 | y", "x = 2 | y\n")
TWO = Mutant("a.py", 4, "f", "ChangeNumber", "z = 1", "z = 0", "z = 0\n")


class Pretend:
    """Stands for Trial: the tests of the file see x, never z."""

    tried: list[str] = []

    def __init__(self, *arguments) -> None:
        self.tried.clear()

    def measure(self, test):
        self.tried.append(test)

    def run(self, mutant):
        self.tried.append(mutant.old)
        result = "noticed" if mutant is ONE else "survived"
        return Outcome(mutant.key, result, "test_a.py", mutants.tests_digest(mutant.path), 1.0)


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """A repository of a.py and test_a.py in which two mutants are drawn and no test runs."""
    (tmp_path / "a.py").write_text("")
    (tmp_path / "test_a.py").write_text("")
    for name, value in {
        "ROOT": tmp_path,
        "RESULTS": tmp_path / "runs" / "mutants.jsonl",
        "DOCS": tmp_path / "mutants.md",
        "GROUPS": (Group("letters", ("a.py",), 300, ()),),
        "OWN_TESTS": {"a.py": ("test_a.py",)},
        "Trial": Pretend,
        "repository_files": list,
        "drawn": lambda config: [ONE, TWO],
    }.items():
        monkeypatch.setattr(mutants, name, value)
    mutants.tests_digest.cache_clear()
    yield tmp_path
    mutants.tests_digest.cache_clear()


def test_only_survivors_whose_tests_have_changed_run_again(pretend):
    mutants.run_all([ONE, TWO], 1)
    assert Pretend.tried == ["test_a.py", ONE.old, TWO.old]
    results = [outcome.result for outcome in mutants.run_all([ONE, TWO], 1)]
    assert Pretend.tried == [] and results == ["noticed", "survived"]
    (pretend / "test_a.py").write_text("new")
    mutants.tests_digest.cache_clear()
    mutants.run_all([ONE, TWO], 1)
    assert Pretend.tried == ["test_a.py", TWO.old]


def test_an_unexplained_survivor_fails_and_an_explained_one_is_listed(pretend, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        main(MutantsConfig(write_docs=True))
    assert ended.value.code == 1
    known = harmless_mutants.Harmless("a.py", "f", TWO.old, TWO.new, "z is never read")
    monkeypatch.setattr(mutants, "HARMLESS", (known,))
    assert mutants.reason(replace(TWO, function="g")) == ""  # the same line elsewhere in the file
    main(MutantsConfig(write_docs=True))
    text = (pretend / "mutants.md").read_text()
    assert "| letters | 2 | 1 (50.0%) | 0 | 1 |" in text
    assert "| `a.py`, f | `` z = 1 `` | `` z = 0 `` | z is never read |" in text
    assert text.split("\n\n", 2)[2] in capsys.readouterr().out


def test_the_tables_keep_their_columns(pretend):
    outcomes = [Outcome(m.key, "survived", "", "", 1.0) for m in (ONE, TWO)]
    rows = survivors([ONE, TWO], outcomes).splitlines()[2:]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [5, 5]
    assert "**unexplained**" in rows[0]
    assert counts([ONE], [Outcome(ONE.key, "timeout", "", "", 1.0)]).splitlines()[2:] == [
        "| letters | 1 | 1 (100.0%) | 1 | 0 |",
        "| all | 1 | 1 (100.0%) | 1 | 0 |",
    ]


def test_every_explained_mutant_is_of_code_that_is_still_there():
    """In the function that it names, whose decorators belong to it."""
    assert len({mutants.identity(known) for known in HARMLESS}) == len(HARMLESS)
    for known in HARMLESS:
        text = (ROOT / known.path).read_text(encoding="utf-8")
        (first, _), (last, _) = {name: span for span, name in functions(ast.parse(text))}[
            known.function
        ]
        code = " ".join(text.splitlines()[first - 1 : last])
        assert known.old and known.old in re.sub(r"\s+", " ", code), known
        assert known.old != known.new and known.reason and "|" not in known.reason
