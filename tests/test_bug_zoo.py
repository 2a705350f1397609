"""The bug zoo as a game: piped input, every story with its line, and a report like any run's."""

from __future__ import annotations

import bug_stories as zoo
import pytest


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
