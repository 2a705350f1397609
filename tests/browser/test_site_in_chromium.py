"""The built site in headless Chromium, from its files: phone and desktop, dark and light.

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

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "docs" / "html"
PHONE, DESKTOP = 390, 1280
COURSE = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
PAGES = [
    "index", "docs/faq", "docs/equations", "docs/metrics", "docs/study", "docs/glossary",
    "beside/index", "beside/grpo", "beside/ppo", f"notebooks/{COURSE[0]}", f"notebooks/{COURSE[-1]}",
    "docs/explorables", "beside/family", "beside/family/grpo-dr_grpo", "api/rl.equations.losses",
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


def found(chrome: Chrome, words: str) -> list[str]:
    """What the search lists, in order, once it has come to its end."""
    chrome.open(SITE / "search.html", DESKTOP, query=f"?q={quote(words)}")
    chrome.run(
        "new Promise(done => { const end = () => /found \\d+ page|did not match/.test(document"
        ".getElementById('search-results').innerText.replace(/\\n/g, ' ')) ? done() : setTimeout(end, 100);"
        " setTimeout(done, 20000); end(); })"
    )
    assert chrome.errors == [] and chrome.requests == []
    return chrome.run(
        "[...document.querySelectorAll('.search li > a')].map(a => a.getAttribute('href'))"
    )


def test_the_search_finds_without_a_server_and_the_course_comes_first(chrome: Chrome) -> None:
    assert len(found(chrome, "advantage")) > 3
    assert found(chrome, "reward hacking")[0] == "notebooks/17_when_the_proxy_breaks.html"
    assert "notebooks/07_grpo.html" in found(chrome, "GRPO")[:2]


@pytest.mark.parametrize("engine", sorted(path.stem for path in (ROOT / "docs/boxes").glob("*.md")))
def test_a_page_of_an_engine_and_its_box_are_one_click_apart(chrome: Chrome, engine: str) -> None:
    chrome.open(SITE / "beside" / f"{engine}.html", DESKTOP)
    pages = chrome.run(
        "[...document.querySelectorAll('article a[href^=\"../notebooks/\"]')].map(a =>"
        " a.getAttribute('href'))"
    )
    assert pages
    chrome.open(SITE / "beside" / pages[0], DESKTOP)
    assert chrome.run(f"!!document.querySelector('article a[href=\"../beside/{engine}.html\"]')")


@pytest.mark.parametrize(
    "page",
    ["docs/glossary", f"notebooks/{COURSE[-1]}", "beside/rloo", "api/rl.equations.losses"],
)
def test_the_sidebar_shows_where_one_is(chrome: Chrome, page: str) -> None:
    chrome.open(SITE / f"{page}.html", DESKTOP)
    top, bottom, high = chrome.run(
        "(() => { const r = document.querySelector('.sidebar-tree .current-page >"
        " a').getBoundingClientRect();"
        " return [r.top, r.bottom, innerHeight]; })()"
    )
    assert 0 < top < bottom < high


def test_the_front_page_leads_into_the_course(chrome: Chrome) -> None:
    chrome.open(SITE / "index.html", DESKTOP)
    assert chrome.run("document.querySelector('.next-page').getAttribute('href')") == (
        "notebooks/00_start_here.html"
    )


def test_a_link_into_a_file_shows_its_line(chrome: Chrome) -> None:
    """The lines are made when the page opens: the one that was asked for is marked and in sight."""
    chrome.open(SITE / "code" / "rl" / "grpo_engine.py.html", DESKTOP, query="#L60")
    for place in ("#L60", "#grpo_loss"):
        chrome.run(f"location.hash = '{place}'; new Promise(done => setTimeout(done, 300))")
        top, high, marked, lines = chrome.run(
            f"(() => {{ const target = document.querySelector('{place}'), line = target.closest('i');"
            " return [line.getBoundingClientRect().top, innerHeight,"
            " target.matches(':target'), document.querySelectorAll('.src i').length]; })()"
        )
        assert 0 <= top < high and marked and lines > 100


def test_a_button_copies_the_code_above_it(chrome: Chrome) -> None:
    chrome.open(SITE / "index.html", DESKTOP)
    copied = chrome.run(
        "(async () => { let copied = ''; navigator.clipboard.writeText = async (text) => { copied ="
        " text; };"
        " const button = document.querySelector('article .copy'); button.click();"
        " await new Promise(r => setTimeout(r, 50));"
        " return [copied, button.parentElement.querySelector('pre').textContent, button.textContent]; })()"
    )
    assert copied[0] == copied[1] and "make demo" in copied[0] and copied[2] == "Copied"


def test_a_figure_that_goes_on_says_so(chrome: Chrome) -> None:
    """On a phone each part that scrolls sideways has a button, and the button scrolls it."""
    chrome.open(SITE / "notebooks" / "07_grpo.html", PHONE)
    chrome.run("new Promise(done => setTimeout(done, 300))")
    wide, told, moved = chrome.run(
        "(async () => { const wide = [...document.querySelectorAll('article :is(.nb-scroll,"
        " .table-wrapper)')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 4);"
        " const told = wide.filter(e => e.nextElementSibling?.matches('.more'));"
        " told[0].nextElementSibling.firstChild.click();"
        " return [wide.length, told.length, told[0].scrollLeft]; })()"
    )
    assert wide == told > 1 and moved > 50


def test_code_beside_the_paper_fits_and_is_brought_into_sight(chrome: Chrome) -> None:
    """At 1280 pixels no line is cut, and pointing at a line of the box shows its code at once."""
    chrome.open(SITE / "beside" / "grpo.html", DESKTOP)
    assert chrome.run(
        "[...document.querySelectorAll('.bx-code')].every(e => e.scrollWidth <= e.clientWidth + 1)"
        " && document.querySelector('.bx-file').scrollWidth <="
        " document.querySelector('.bx-file').clientWidth + 1"
    )
    for number in chrome.run(
        "[...document.querySelectorAll('.bx-line[data-line]')].map(e => e.dataset.line)"
    ):
        top, bottom, seen, clear = chrome.run(
            f"(() => {{ const line = document.querySelector('.bx-line[data-line=\"{number}\"]');"
            " line.dispatchEvent(new PointerEvent('pointerenter'));"
            " const lit = document.getElementById(line.dataset.code).getBoundingClientRect();"
            " const frame = document.querySelector('.bx-file').getBoundingClientRect();"
            " const formula = line.querySelector('.bx-formula');"
            " return [lit.top - frame.top, lit.bottom - frame.top, frame.height,"
            " !formula || getComputedStyle(formula).backgroundImage === 'none']; })()"
        )
        assert 0 <= top < bottom <= seen and clear, number


def test_the_ledger_folds_its_proofs(chrome: Chrome) -> None:
    chrome.open(SITE / "docs" / "equations.html", DESKTOP)
    entries, folds, shown = chrome.run(
        "[document.querySelectorAll('article h3').length, document.querySelectorAll('article"
        " details.fold').length,"
        " [...document.querySelectorAll('article details:not([open]) li')].filter(e =>"
        " e.checkVisibility()).length]"
    )
    assert entries - 5 <= folds and folds > 60 and shown == 0


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
