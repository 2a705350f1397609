"""The bug zoo as a game: every story with its line."""

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
