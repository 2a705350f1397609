"""Every control of every explorable is moved in headless Chromium; its numbers stay rl/equations'."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chrome import Chrome, open_chrome
from course import explorables
from explorable_truths import TRUTHS

pytestmark = pytest.mark.browser
PHONE, DESKTOP = 390, 1280


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    yield from open_chrome()


def opened(chrome: Chrome, folder: Path, name: str, width: int, *, dark: bool = False) -> None:
    """A page that holds this one alone, as the output of a cell does."""
    path = folder / f"{name}.html"
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    body = f'<body style="margin:12px">{explorables.html_of(name)}</body>'
    path.write_text(f'<!doctype html><meta charset="utf-8">{view}{body}', encoding="utf-8")
    chrome.open(path, width, dark=dark)


def hold(chrome: Chrome, name: str) -> dict[str, Any]:
    """Compare what the page holds now with the equations; returns the state of its controls."""
    extra = (
        "{ labels: explorables.proxy.compare(m.numbers.pairs, m.state().noise, m.state().seed) }"
    )
    state, numbers = chrome.run(
        f"(() => {{ const m = explorables.mounted[{json.dumps(name)}];"
        f" return [m.state(), {{ ...m.numbers, ...{extra if name == 'proxy' else '{}'} }}]; }})()"
    )
    TRUTHS[name](state, numbers)
    assert chrome.errors == [] and chrome.requests == []
    return state


@pytest.mark.parametrize("name", explorables.names())
def test_every_control_moves_the_numbers_and_they_are_right(
    chrome: Chrome, tmp_path: Path, name: str
) -> None:
    opened(chrome, tmp_path, name, DESKTOP)
    before = hold(chrome, name)
    keys = chrome.run("[...document.querySelectorAll('[data-key]')].map(e => e.dataset.key)")
    assert keys
    for key in keys:  # sliders to two places, each option of a choice
        places = chrome.run(
            f"(() => {{ const e = document.querySelector('[data-key={key}]');"
            " return e.options ? [...e.options].map(o => o.value) : [0.2, 0.8].map(s =>"
            " String(Number(e.min) + Math.round(s * (e.max - e.min) / e.step) * e.step)); })()"
        )
        for place in places:
            chrome.run(
                f"(() => {{ const e ="
                f" document.querySelector('[data-key={key}]'); e.value = {json.dumps(place)};"
                " e.dispatchEvent(new Event(e.options ? 'change' : 'input')); })()"
            )
            state = hold(chrome, name)
            assert str(state[key])[:5] == place[:5] or abs(float(state[key]) - float(place)) < 1e-9
    for press in chrome.run(
        "[...document.querySelectorAll('[data-press]')].map(e => e.dataset.press)"
    ):
        chrome.run(f"document.querySelector('[data-press={json.dumps(press)}]').click()")
        if press == "Train / pause":
            chrome.run("new Promise(done => setTimeout(done, 500))")
            chrome.run(f"document.querySelector('[data-press={json.dumps(press)}]').click()")
            assert hold(chrome, name)["steps"] > 0
        hold(chrome, name)
    assert hold(chrome, name) == before  # Reset is the last button


@pytest.mark.parametrize("name", explorables.names())
def test_what_can_be_dragged_answers_the_keyboard_and_the_finger(
    chrome: Chrome, tmp_path: Path, name: str
) -> None:
    opened(chrome, tmp_path, name, PHONE)
    handles = chrome.run(
        "[...document.querySelectorAll('circle[data-handle]')].map(e => e.dataset.handle)"
    )
    for handle in handles:
        find = (
            f"[...document.querySelectorAll('[data-handle]')].find(e => e.dataset.handle === "
            f"{json.dumps(handle)})"
        )
        value = chrome.run(f"{find}.getAttribute('aria-valuenow')")
        chrome.run(f"{find}.focus()")
        chrome.press("ArrowDown")
        assert chrome.run(f"{find}.getAttribute('aria-valuenow')") != value, handle
        assert chrome.run("document.activeElement.dataset.handle") == handle
        hold(chrome, name)
        chrome.run(f"{find}.scrollIntoView({{ block: 'center', behavior: 'instant' }})")
        value = chrome.run(f"{find}.getAttribute('aria-valuenow')")
        x, y, along = chrome.run(
            f"(() => {{ const e = {find}, r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2, e.classList.contains('gx-along')]; })()"
        )
        to = {"x": x + 25 * (1 if x < 195 else -1), "y": y} if along else {"x": x, "y": y - 20}
        for kind, at in (("Start", {"x": x, "y": y}), ("Move", to), ("End", None)):
            points = [at] if at else []
            chrome.ask("Input.dispatchTouchEvent", type=f"touch{kind}", touchPoints=points)
        assert chrome.run(f"{find}.getAttribute('aria-valuenow')") != value, handle
        hold(chrome, name)
    assert handles or name == "proxy"  # which has sliders alone


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("name", explorables.names())
def test_it_fits_and_its_colours_follow(
    chrome: Chrome, tmp_path: Path, name: str, width: int, dark: bool
) -> None:
    opened(chrome, tmp_path, name, width, dark=dark)
    assert chrome.run("document.documentElement.scrollWidth") <= width
    ink, paper = chrome.run(
        "(() => { const s = getComputedStyle(document.querySelector('.explorable'));"
        " return [s.color, s.backgroundColor].map(c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) =>"
        " a + +b, 0)); })()"
    )
    assert (ink > 500 > 200 > paper) if dark else (paper > 700 > 200 > ink)
    cut = chrome.run(
        "[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().right >"
        " innerWidth).length"
    )
    assert cut == 0
    if folder := os.environ.get("PICTURES"):
        shade = "dark" if dark else "light"
        chrome.picture(Path(folder) / f"explorable-{name}-{width}-{shade}.png")
