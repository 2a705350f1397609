"""The built site and a hostile report in headless Chromium, on a phone and on a desktop.

`make docs-browser` builds the site and runs these; `make browser` runs them where it has been built.
Set PICTURES to a folder to keep the screenshots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from chrome import Chrome, open_chrome

from harness.report.page import page_html, read_run

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "docs" / "html"
PAGES = [
    "index", "docs/faq", "docs/equations", "docs/metrics", "docs/explorables", "beside/index",
    "beside/grpo", "beside/ppo", "notebooks/07_grpo", "search",
]  # fmt: skip
STEAL = "document.title='stolen'"
HOSTILE = f'</script><script>{STEAL}</script><img src=x onerror="{STEAL}"><!--<script>'


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    yield from open_chrome()


@pytest.fixture(scope="module")
def site() -> Path:
    if not (SITE / "index.html").exists():
        pytest.skip("the site has not been built: make docs")
    return SITE


def look_at(chrome: Chrome, path: Path, width: int, dark: bool = False) -> None:
    """Nothing in the console, nothing from a network, nothing sticks out."""
    chrome.open(path, width, dark=dark)
    chrome.run("new Promise(done => setTimeout(done, 300))")
    if "PICTURES" in os.environ:
        chrome.picture(Path(os.environ["PICTURES"]) / f"{path.stem}-{width}-{dark}.png")
    assert chrome.errors == [] and chrome.requests == []
    assert chrome.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, False), (390, True)])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_without_an_error(
    chrome: Chrome, site: Path, page: str, width: int, dark: bool
) -> None:
    look_at(chrome, site / f"{page}.html", width, dark)


def test_a_line_of_the_box_and_its_code_light_up_together(chrome: Chrome, site: Path) -> None:
    chrome.open(site / "beside" / "grpo.html", 1280)
    for number in ("7", "9"):
        chrome.run(f"document.querySelector('.bx-line[data-line=\"{number}\"]').click()")
        lit = chrome.run("[...document.querySelectorAll('.bx-code.on')].map(e => e.dataset.lines)")
        assert lit and all(number in row.split() for row in lit)


def test_the_search_finds_without_a_server(chrome: Chrome, site: Path) -> None:
    chrome.open(site / "search.html", 1280, query=f"?q={quote('advantage')}")
    chrome.run("new Promise(done => setTimeout(done, 5000))")
    assert chrome.errors == [] and chrome.requests == []
    assert chrome.run("document.querySelectorAll('.search li > a').length") > 3


def test_texts_of_a_run_are_no_markup(chrome: Chrome, tmp_path: Path) -> None:
    finding = dict.fromkeys(("rule", "evidence", "cause", "remedy", "page"), HOSTILE)
    about = {"script": HOSTILE, "title": HOSTILE, "findings": [finding | {"severity": "error"}]}
    (tmp_path / "page.json").write_text(json.dumps(about))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN, "reward": 1}\n')
    sample = {"step": 1, "prompt": HOSTILE, "response": HOSTILE}
    (tmp_path / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    (tmp_path / "report.html").write_text(page_html([read_run(tmp_path)]), encoding="utf-8")
    for width in (1280, 390):
        look_at(chrome, tmp_path / "report.html", width)
        assert chrome.run("document.title") != "stolen"
