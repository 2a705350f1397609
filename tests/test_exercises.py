"""Every exercise of the pages: solutions pass, typical mistakes are caught by name, nothing crashes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from course import exercises
from course.claims import holds
from course.exercises import verdict

NAMES = exercises.names()

each_exercise = pytest.mark.parametrize("name", NAMES)


@each_exercise
def test_the_solution_passes(name: str) -> None:
    found = verdict(name, exercises.load(name).solution)
    assert found.right, found.text


@each_exercise
def test_the_worked_numbers_are_the_librarys(name: str) -> None:
    """Literals against the library: neither can drift alone; three mistakes have their sentences."""
    exercise = exercises.load(name)
    assert exercise.cases and len(exercise.mistakes) >= 3
    for part in ("name", "says"):
        parts = [getattr(made, part) for made in exercise.mistakes]
        assert len(set(parts)) == len(parts)
    assert all(len(made.says.split()) >= 6 for made in exercise.mistakes)
    for case in exercise.cases:
        (result, *_) = exercises.library_answer(exercise, case.arguments)
        wanted = torch.as_tensor(case.wanted, dtype=torch.float32)
        assert torch.allclose(result, wanted, atol=exercise.tolerance), case.about


@each_exercise
def test_a_typical_mistake_is_caught_by_its_name(name: str) -> None:
    for made in exercises.load(name).mistakes:
        found = verdict(name, made.function)
        assert not found.right
        assert found.mistake == made.name, found.text
        assert made.says in found.text


@each_exercise
def test_an_unfilled_stub_is_no_mistake(name: str) -> None:
    def raises(*arguments: Any) -> Any:
        raise NotImplementedError

    for stub in (None, ..., lambda *arguments: None, lambda *arguments: ..., raises):
        found = verdict(name, stub)
        assert not found.right and found.mistake is None
        assert found.text.startswith("not filled in yet")
        assert exercises.load(name).statement in found.text


@each_exercise
def test_strange_answers_get_a_sentence(name: str) -> None:
    def broken(*arguments: Any) -> Any:
        raise IndexError("too many indices")

    def in_place(*arguments: Any) -> Any:
        next(a for a in arguments if isinstance(a, torch.Tensor)).detach().fill_(0)
        return arguments[0]

    assert "IndexError (too many indices)" in verdict(name, broken).text
    assert "must be a function" in verdict(name, 3).text
    for strange in (lambda *arguments: torch.zeros(7, 3, 2), lambda *arguments: "text", in_place):
        found = verdict(name, strange)
        assert not found.right and found.text.startswith("not yet: your ")


def test_a_mistake_that_nobody_named_is_described() -> None:
    solution = exercises.load("group_advantages").solution

    doubled = verdict("group_advantages", lambda rewards, size: 2 * solution(rewards, size))
    assert doubled.mistake is None and "2 times what is wanted" in doubled.text

    def last_is_wrong(rewards: torch.Tensor, size: int) -> torch.Tensor:
        result = solution(rewards, size)
        result[-1] += 0.5
        return result

    text = verdict("group_advantages", last_is_wrong).text
    assert "differs at 1 of 4 places, first at [3, 0]" in text and "rewards = [1.0, 2.0" in text


def test_a_wrong_gradient_with_right_numbers_is_told_apart() -> None:
    solution = exercises.load("clipped_surrogate").solution

    def half(log_probs: torch.Tensor, *others: Any) -> torch.Tensor:
        result = solution(log_probs, *others)
        return (result + result.detach()) / 2

    text = verdict("clipped_surrogate", half).text
    assert "the numbers are right, but the gradient of your result for log_probs is 0.5" in text


def test_a_claim_is_a_message_for_readers_and_an_error_where_pages_are_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COURSE_STRICT", raising=False)
    holds(torch.tensor(True), "all runs learn")
    assert capsys.readouterr().out == ""
    holds(torch.tensor(float("nan")) > 0, "all runs learn")
    assert "no longer right where it says: all runs learn" in capsys.readouterr().out
    monkeypatch.setenv("COURSE_STRICT", "1")
    holds(1 > 0, "all runs learn")
    with pytest.raises(AssertionError, match="all runs learn"):
        holds(0 > 1, "all runs learn")
