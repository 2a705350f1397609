"""The bug zoo as a game: piped input, every story with its line, and a report like any run's."""

from __future__ import annotations

import json
from pathlib import Path

import bug_stories as zoo
import bug_zoo
import pytest
from bug_zoo import ZooConfig
from course import zoo as cases

from harness.report.page import REPORT


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Games of four steps."""
    real = bug_zoo.small_run
    monkeypatch.setattr(bug_zoo, "small_run", lambda *a, **changes: real(*a, **changes, steps=4))


@pytest.mark.parametrize("name", zoo.STORIES)
def test_the_right_line_stands_where_the_story_says(name: str) -> None:
    story = zoo.STORIES[name]
    path, number = zoo.place(story).split(":")
    lines = (zoo.REPOSITORY / path).read_text(encoding="utf-8").splitlines()
    assert story.right in lines[int(number) - 1]
    assert story.wrong != story.right


@pytest.mark.parametrize("name", zoo.STORIES)
def test_the_choices_hold_the_bug_and_are_the_same_each_time(name: str) -> None:
    names = zoo.choices(name)
    assert name in names and len(set(names)) == len(names) == zoo.CHOICES
    assert names == zoo.choices(name)
    places = {zoo.choices(name, seed).index(name) for seed in range(30)}
    assert len(places) > 2, "the right answer must not always stand at the same place"


def test_a_case_shows_its_evidence_and_not_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(cases.CASES) == sorted(zoo.STORIES)
    cases.visit(1)
    said = capsys.readouterr().out
    assert said.startswith("Case 1: a run of ppo") and "explained_variance" in said
    assert "critic_rests" not in said and zoo.STORIES["critic_rests"].why not in said
    with pytest.raises(ValueError, match="no case 18: the cases are 1 to 17"):
        cases.visit(18)


def test_a_case_is_told_after_a_guess_and_not_before(capsys: pytest.CaptureFixture[str]) -> None:
    names, story = zoo.choices("critic_rests", seed=1), zoo.STORIES["critic_rests"]
    right = names.index("critic_rests") + 1
    wrong = right % len(names) + 1
    said = []
    for choice in (..., 0, right, wrong):
        cases.guess(1, choice)
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == "Case 1 waits for your guess: 1 to 6, in place of the dots.\n"
    assert said[2].startswith("Yes: ") and story.wrong in said[2]
    assert zoo.STORIES[names[wrong - 1]].shows in said[3].splitlines()[0]
    assert said[3].startswith("No. ") and story.wrong in said[3]


def test_a_game_shows_the_run_first_and_the_line_after_it(
    short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("builtins.input", lambda prompt: shown.append(capsys.readouterr().out))
    folder, story = tmp_path / "game", zoo.STORIES["late_mask"]
    bug_zoo.play(ZooConfig(only="late_mask", run=folder))
    revealed = capsys.readouterr().out
    assert "(ratio_at_start)" in revealed and story.wrong in revealed
    assert zoo.place(story) in revealed
    assert story.wrong not in shown[0] and story.why not in shown[0]
    assert all(zoo.STORIES[name].words in shown[0] for name in zoo.choices("late_mask"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    page = (folder / REPORT).read_text()
    assert "ratio_at_start" in page and "one line is wrong" in page and "late_mask" not in page
