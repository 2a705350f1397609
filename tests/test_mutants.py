"""The random mutants: which changes count, how they are drawn, and what is made of the results."""

from __future__ import annotations

import ast
import re

import mutants
import pytest
from code_changes import Code
from mutants import (
    GROUPS,
    HARMLESS,
    Group,
    Mutant,
    MutantsConfig,
    Outcome,
    as_block,
    counts,
    files_of,
    ignored_spans,
    judge,
    main,
    proofs_of,
    reasons,
    sample,
)
from trials import ROOT, TIMED_OUT

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


def test_messages_types_protocols_and_main_do_not_count():
    lines = [list(line) for line in CODE.replace('"""1 + 1"""', "").splitlines()]
    for (line, column), (last, end) in ignored_spans(ast.parse(CODE)):
        for number in range(line, last + 1):
            row = lines[number - 1]
            first, stop = column if number == line else 0, end if number == last else len(row)
            row[first:stop] = " " * (stop - first)
    counted = "\n".join("".join(line) for line in lines)
    assert [int(number) for number in re.findall(r"\d+", counted)] == [3, 5, 7, 10, 12]
    for word in ("frozen", "strict", "None", "raise", "assert", "__repr__", "Shape"):
        assert word not in counted.replace("import Protocol", "")


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
    assert len(set(texts)) == len(texts) > 7
    original = ast.dump(ast.parse(CODE))
    assert all(ast.dump(ast.parse(text)) != original for text in texts)
    assert [mutant.line for mutant in everything] == sorted(mutant.line for mutant in everything)
    assert {mutant.name for mutant in everything} == {"LIMIT", "A", "A.size", "A.area"}


def test_a_sample_is_fixed_by_its_seed_and_stays_where_nothing_was_edited(one_file, tmp_path):
    def chosen(seed):
        return [as_block(mutant) for mutant in sample([one_file], 5, seed)]

    before = chosen(0)
    assert len(before) == 5 and before == chosen(0) != chosen(1)
    (tmp_path / "a.py").write_text("Z = 1\n" + CODE)
    assert len(set(before) & set(chosen(0))) >= 4


# Files, tests and results


def test_every_file_of_a_group_has_tests():
    assert sum(group.share for group in GROUPS) == 300
    for group in GROUPS:
        assert files_of(group)
        for path in files_of(group):
            assert all((ROOT / test).is_file() for test in proofs_of(path))
    assert proofs_of("gpt/lora.py") == ("tests/gpt/test_lora.py",)  # a file of no group


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


TEXT = "def f():\n    x = 1\n    z = 1\n"
ONE = Mutant("gpt/a.py", 2, "f", "NumberReplacer", TEXT.replace("x = 1", "x = 2"))
TWO = Mutant("gpt/a.py", 3, "f", "NumberReplacer", TEXT.replace("z = 1", "z =  0"))


class Pretend:
    """Stands for Trial: the tests of the file see x, never z."""

    tried: list[int] = []

    def __init__(self, *arguments) -> None:
        self.tried.clear()

    def measure(self, test):
        pass

    def run(self, mutant):
        self.tried.append(mutant.line)
        return Outcome("noticed" if mutant is ONE else "survived", "test_a.py")


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """A repository of a.py and test_a.py in which two mutants are drawn and no test runs."""
    for name, text in {"gpt/a.py": TEXT, "tests/test_a.py": "", "harmless.txt": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for name, value in {
        "ROOT": tmp_path,
        "HARMLESS": tmp_path / "harmless.txt",
        "DOCS": tmp_path / "mutants.md",
        "GROUPS": (Group("letters", ("gpt/a.py",), 300, ()),),
        "Trial": Pretend,
        "repository_files": list,
        "drawn": lambda config: [ONE, TWO],
    }.items():
        monkeypatch.setattr(mutants, name, value)
    mutants.proofs_of.cache_clear()
    yield tmp_path
    mutants.proofs_of.cache_clear()


def test_an_unexplained_survivor_fails_and_an_explained_one_is_listed(pretend, capsys):
    with pytest.raises(SystemExit) as ended:
        main(MutantsConfig(write_docs=True))
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert "**unexplained**" in printed and "in a.f\n- z = 1\n+ z = 0" in printed
    (pretend / "harmless.txt").write_text("z is never read\nin a.f\n- z = 1\n+ z = 0\n")
    main(MutantsConfig(write_docs=True))
    assert "- `f` (gpt/a.py): z is never read\n" in capsys.readouterr().out
    text = (pretend / "mutants.md").read_text()
    assert "| letters | 2 | 1 (50.0%) | 0 | 1 | 0 |" in text
    assert counts([ONE], ["timeout"]).endswith("| all | 1 | 1 (100.0%) | 1 | 0 | 0 |")


def test_every_explained_mutant_is_one_of_the_code_as_it_is():
    """Each block changes something, in one place, and no two are the same."""
    code = Code.read()
    known = reasons(code)
    assert len(known) == HARMLESS.read_text(encoding="utf-8").count("\n\n")
    for path, tree in known:
        assert tree != ast.dump(ast.parse(code.texts[path]))
