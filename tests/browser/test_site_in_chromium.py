"""The built site in headless Chromium, from its files: phone and desktop, dark and light.

`make docs-browser` builds the site and runs these; `make browser` runs them where it has been built.
Set PICTURES to a folder to keep the screenshots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from chrome import Chrome, open_chrome

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "docs" / "html"
PHONE, DESKTOP = 390, 1280
COURSE = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
PAGES = [
    "index", "docs/faq", "docs/equations", "docs/metrics", "docs/study", "docs/glossary",
    "beside/index", "beside/grpo", "beside/ppo", f"notebooks/{COURSE[0]}", f"notebooks/{COURSE[-1]}",
    "beside/family", "beside/family/grpo-dr_grpo", "api/rl.equations.losses",
    "code/rl/grpo_engine.py", "code/index", "search",
]  # fmt: skip


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    if not (SITE / "index.html").exists():
        pytest.skip("the site has not been built: make docs")
    yield from open_chrome()


def brightness(chrome: Chrome) -> float:
    """Of the page's background, from 0 to 255."""
    colour = chrome.run("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour.strip("rgba()").split(",")[:3]) / 3


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_without_an_error(chrome: Chrome, page: str, width: int, dark: bool) -> None:
    """Nothing in the console, nothing from a network, nothing sticks out, and the colours follow."""
    chrome.open(SITE / f"{page}.html", width, dark=dark)
    chrome.run("new Promise(done => setTimeout(done, 300))")
    if "PICTURES" in os.environ:
        name = f"{page.replace('/', '-')}-{width}-{'dark' if dark else 'light'}.png"
        chrome.picture(Path(os.environ["PICTURES"]) / name)
    assert chrome.errors == [] and chrome.requests == []
    assert chrome.run("document.documentElement.scrollWidth") <= width
    assert (brightness(chrome) < 80) if dark else (brightness(chrome) > 200)
    assert "Glassbox RLHF" in chrome.run("document.title")


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("page", sorted(path.stem for path in (ROOT / "docs/boxes").glob("*.md")))
def test_a_line_of_the_box_and_its_code_light_up_together(
    chrome: Chrome, page: str, width: int
) -> None:
    """Every line of the box by a tap, in both directions; the code comes into sight."""
    chrome.open(SITE / "beside" / f"{page}.html", width)
    numbers = chrome.run(
        "[...document.querySelectorAll('.bx-line[data-line]')].map(e => e.dataset.line)"
    )
    assert numbers
    for number in numbers:
        line = f".bx-line[data-line={json.dumps(number)}]"
        chrome.run(f"document.querySelector('{line}').click()")
        assert chrome.run(
            "[...document.querySelectorAll('.bx-line.on')].map(e => e.dataset.line)"
        ) == [number]
        lit = chrome.run("[...document.querySelectorAll('.bx-code.on')].map(e => e.dataset.lines)")
        assert lit and all(number in row.split() for row in lit)
        chrome.run(f"document.querySelector('{line}').click()")  # a second tap lets it go
        assert chrome.run("document.querySelectorAll('.on').length") == 0
    assert chrome.errors == []


def test_code_lights_up_its_line_and_a_tap_brings_the_code(chrome: Chrome) -> None:
    chrome.open(SITE / "beside" / "grpo.html", PHONE)
    chrome.run("document.querySelector('.bx-code[data-lines=\"9\"]').click()")
    assert chrome.run("document.querySelector('.bx-line.on').dataset.line") == "9"
    chrome.run("document.querySelector('.bx-line[data-line=\"10\"]').click()")
    chrome.run("new Promise(done => setTimeout(done, 1500))")
    top, box = chrome.run(
        "[document.querySelector('.bx-code.on').getBoundingClientRect().top,"
        " document.querySelector('.bx-box').getBoundingClientRect().bottom]"
    )
    assert box <= top + 1 < 844  # below the box that stays, and in sight


def test_the_search_finds_without_a_server(chrome: Chrome) -> None:
    chrome.open(SITE / "search.html", DESKTOP, query="?q=advantage")
    chrome.run(
        "new Promise(done => { const wait = () => document.querySelectorAll('.search li').length"
        " > 3 ? done() : setTimeout(wait, 100); setTimeout(done, 20000); wait(); })"
    )
    assert chrome.run("document.querySelectorAll('.search li').length") > 3
    assert chrome.errors == [] and chrome.requests == []


def test_token_views_of_a_notebook_answer_clicks(chrome: Chrome) -> None:
    """A page of the course with coloured tokens shows another quantity at a click."""
    with_views = [
        name
        for name in COURSE
        if "glass-tokens" in (SITE / f"notebooks/{name}.html").read_text("utf-8")
    ]
    if not with_views:
        pytest.skip("no page of the course shows tokens in colour")
    chrome.open(SITE / f"notebooks/{with_views[0]}.html", DESKTOP)
    assert chrome.run("document.querySelectorAll('.glass-tokens .gt-token').length") > 0
    assert chrome.errors == []
