"""Headless Chromium on a phone and a desktop: the built site, and what computes in it.

`make docs-browser` builds the site first. A page opens others in a frame and prints what it found.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pictures
import playground
import pytest
import saved_models
import torch
from PIL import Image

from gpt.tokenizer import load_tokenizer

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium: apt install chromium, or set $CHROMIUM"),
]
SITE = Path(__file__).resolve().parents[2] / "build" / "docs" / "html"
built = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site: make docs")
MATH = ("docs/boxes/grpo", "docs/equations", "notebooks/07_grpo")
PAGES = (*MATH, "README", "docs/explorables", "docs/metrics", "nano/rloo", "search")
FLAGS = "--headless --no-sandbox --disable-gpu --hide-scrollbars --allow-file-access-from-files"
FLAGS += " --enable-logging=stderr --virtual-time-budget=300000 --dump-dom"
PROBE = """<!doctype html><meta charset="utf-8"><body><script>
const wait = (time) => new Promise((done) => setTimeout(done, time));
const open = (src, width) => new Promise((done) => {
  const frame = Object.assign(document.createElement("iframe"), { width, height: 900, src });
  frame.onload = () => setTimeout(() => done(frame.contentWindow), 3000);
  document.body.append(frame);
});
const fits = ({ document: page, innerWidth, performance }) =>
  page.documentElement.scrollWidth <= innerWidth && performance
    .getEntriesByType("resource").every((one) => /^(file|data):/.test(one.name));
(async () => { SCRIPT })().catch((error) => `error: ${error.stack}`).then((found) => {
  const textContent = JSON.stringify(found);
  document.body.replaceChildren(Object.assign(document.createElement("pre"), { textContent }));
});
</script></body>"""


def in_chromium(folder: Path, script: str, **constants: Any) -> Any:
    """What a JavaScript function returns; an error of a page, caught or not, fails the test."""
    given = "".join(f"const {name} = {json.dumps(value)};" for name, value in constants.items())
    (folder / "probe.html").write_text(PROBE.replace("SCRIPT", given + script), "utf-8")
    page = (folder / "probe.html").as_uri()
    call = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", page]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=300)
    assert re.findall("CONSOLE.*(?:Uncaught|Error|Failed|Refused).*", ended.stderr) == []
    found = json.loads(html.unescape(ended.stdout.split("<pre>")[1].split("</pre>")[0]))
    assert not str(found).startswith("error"), found
    return found


@built
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_and_needs_no_network(tmp_path: Path, page: str, width: int) -> None:
    script = """const page = await open(src, width), math = [...page.document.querySelectorAll(".math")];
    return [fits(page), math.length, math.filter((one) => !one.querySelector("svg")).length];"""
    src = f"{SITE.as_uri()}/{page}.html"
    fits, formulas, raw = in_chromium(tmp_path, script, src=src, width=width)
    assert fits and not raw and (formulas or page not in MATH)


@built
def test_a_line_of_the_box_lights_up_its_code_and_the_search_finds(tmp_path: Path) -> None:
    script = """const { document: page, PointerEvent } = await open(`${site}/docs/boxes/grpo.html`, 1280);
    const lit = [...page.querySelectorAll(".bx-line[data-line]")].map((line) => {
      line.dispatchEvent(new PointerEvent("pointerenter"));
      return [line.dataset.line, [...page.querySelectorAll(".bx-code.on")].map((row) => row.dataset.lines)];
    });
    const results = (await open(`${site}/search.html?q=advantage`, 1280)).document;
    return [lit, results.querySelectorAll(".search li > a").length];"""
    lit, results = in_chromium(tmp_path, script, site=SITE.as_uri())
    assert len(lit) > 5 and results > 3
    assert all(rows and all(line in row.split() for row in rows) for line, rows in lit)


def test_the_model_in_the_playground_is_that_of_python(tmp_path: Path) -> None:
    """Token ids exactly, log-probabilities of a policy, which is the base and a change, to 1e-3."""
    playground.write_playground(tmp_path / "page.html")
    change = saved_models.change_of_policy(saved_models.sweep()[0], 1)
    policy = saved_models.changed(saved_models.base()[0], change)
    tokenizer = load_tokenizer("glassbox")
    answer = "Hi Kate! Its price (100 euro) isn't  \u00e9t\u00e9 _x_."
    asked, answered = tokenizer.encode("Write to Jonas about the bike.\n"), tokenizer.encode(answer)
    script = """const page = await open("page.html", 390), models = page.eval("choose(1), models");
    const scores = [...models.policy.score(asked, answered)];
    return [fits(page), page.eval("tokenizer").encode(answer), scores];"""
    given = {"asked": asked, "answered": answered, "answer": answer}
    fits, tokens, scores = in_chromium(tmp_path, script, **given)
    with torch.no_grad():
        rows = policy(torch.tensor([asked + answered])).log_softmax(-1)[0, len(asked) - 1 : -1]
    assert fits and tokens == answered
    assert scores == pytest.approx(rows[range(len(answered)), answered].tolist(), abs=1e-3)


def test_the_pictures_of_pages_are_whole(tmp_path: Path) -> None:
    """None is empty, and none goes on below the window that was seen."""
    for name, text in pictures.pages(tmp_path).items():
        (tmp_path / "page.html").write_text(text, "utf-8")
        pictures.take(tmp_path / "page.html", tmp_path / name, str(CHROMIUM))
        with Image.open(tmp_path / name) as picture:
            width, height = picture.size
        assert width == pictures.WIDTH * pictures.SCALE
        assert 500 < height < pictures.HEIGHT * pictures.SCALE - pictures.MARGIN
