"""How notebooks and docstrings become pages: nothing lost, nothing executed, text stays text."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "site"))

import api_pages
import files
import notebook_pages

PIXEL = base64.b64encode(b"\x89PNG picture").decode()
CELLS = [
    {"cell_type": "markdown", "source": ["# Title\n", "\n", "$$x$$"]},
    {
        "cell_type": "markdown",
        "source": "<details>\n<summary>Answer</summary>\n\n**bold**\n\n</details>",
    },
    {
        "cell_type": "code",
        "source": "print('```')",
        "outputs": [
            {"output_type": "stream", "name": "stdout", "text": ["<b> & \x1b[31mred\x1b[0m\n"]},
            {
                "output_type": "display_data",
                "data": {"image/png": PIXEL, "text/plain": "<Figure size 1x1>"},
            },
            {
                "output_type": "execute_result",
                "data": {"text/html": ["<i>view</i>"], "text/plain": "no"},
            },
            {"output_type": "execute_result", "data": {"text/plain": "a < b"}},
        ],
    },
]


def test_a_notebook_keeps_its_texts_code_and_outputs(tmp_path: Path) -> None:
    path = tmp_path / "00_try.ipynb"
    path.write_text(json.dumps({"cells": CELLS}), encoding="utf-8")
    text = notebook_pages.markdown_of(path, tmp_path / "pictures")
    assert text.startswith("# Title\n\n$$x$$\n")
    assert "````python\nprint('```')\n````" in text  # a fence that the code cannot end
    assert "<pre>&lt;b&gt; &amp; red\n</pre>" in text
    assert "<i>view</i>" in text and "no" not in text.split("<i>view</i>")[1].split("<pre>")[0]
    assert "<pre>a &lt; b</pre>" in text
    assert '<details class="fold"><summary>Answer</summary>' in text and "\n**bold**\n" in text
    (picture,) = (tmp_path / "pictures").iterdir()
    assert picture.read_bytes() == b"\x89PNG picture" and f"pictures/{picture.name}" in text


def test_every_page_of_the_course_has_a_title() -> None:
    titles = [notebook_pages.title_of(files.ROOT / name) for name in files.notebooks()]
    assert len(set(titles)) == len(titles) and all(titles)


def test_every_notebook_guide_and_module_has_a_page() -> None:
    course = sorted(path.name for path in (files.ROOT / "notebooks").glob("*.ipynb"))
    assert [name.removeprefix("notebooks/") for name in files.notebooks()] == course != []
    assert {"README.md", "docs/faq.md", "rl/README.md", "data/README.md"} <= set(files.guides())
    assert not [name for name in files.guides() if name.startswith("docs/boxes/")]
    modules = {api_pages.module_name(name) for name in api_pages.modules()}
    assert {"rl.equations.losses", "rl.grpo_engine", "gpt.model", "data.collate"} <= modules
