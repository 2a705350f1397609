"""The page that runs two GPT-2s by itself: its numbers are Python's, and a reader can use it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import playground
import pytest
import torch
from chrome import Chrome, open_chrome

from gpt.model import GPT, GPTConfig
from gpt.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.browser
ANSWERS = (
    "Hello Jonas. The bike is charming. Thank you for asking.",
    "Hi Kate! This is awful; its price (100 euro) isn't. Go away.",
    "  two  spaces\nand a line break, \u00e9t\u00e9 \U0001f642 _x_ 12.5%",
)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    yield from open_chrome()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer("glassbox")


@pytest.fixture(scope="module")
def models(tokenizer: Tokenizer) -> tuple[GPT, GPT]:
    """Two models in the shape of the demo's, with logits that differ by several nats."""
    shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=128, n_layer=4, n_head=4, n_embd=128)
    pair = []
    for seed in (0, 1):
        model = GPT(shape).initialize(torch.Generator().manual_seed(seed)).eval()
        for parameter in model.parameters():
            parameter.data = (3 * parameter.data + 0.01).bfloat16().float()
        pair.append(model)
    return pair[0], pair[1]


@pytest.fixture(scope="module")
def page(
    models: tuple[GPT, GPT], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("page") / "playground.html"
    path.write_text(playground.playground(*models, tokenizer, ".."), encoding="utf-8")
    return path


def log_probs(model: GPT, prompt: list[int], answer: list[int]) -> list[float]:
    """Each answer token's log-probability, by the Python model in float32."""
    with torch.no_grad():
        rows = model(torch.tensor([prompt + answer])).log_softmax(-1)[0]
    start = len(prompt) - 1
    return [float(rows[start + t, token]) for t, token in enumerate(answer)]


def test_the_page_is_one_file_below_8_mb(page: Path) -> None:
    assert 4_000_000 < page.stat().st_size < playground.MOST_BYTES


@pytest.mark.parametrize("answer", ANSWERS)
def test_numbers_and_tokens_are_pythons(
    chrome: Chrome, page: Path, models: tuple[GPT, GPT], tokenizer: Tokenizer, answer: str
) -> None:
    chrome.open(page)
    prompt = "Write to Jonas about the simple bike.\n"
    asked, answered = tokenizer.encode(prompt), [*tokenizer.encode(answer), tokenizer.eos_id]
    assert chrome.run(f"tokenizer.encode({json.dumps(prompt)})") == asked
    assert chrome.run(f"tokenizer.encode({json.dumps(answer)})") == answered[:-1]
    assert chrome.run(f"tokenizer.decode({answered})") == answer
    for name, model in zip(("base", "policy"), models, strict=True):
        found = chrome.run(f"Array.from(models.{name}.score({asked}, {answered}))")
        assert found == pytest.approx(log_probs(model, asked, answered), abs=1e-3)
    assert not chrome.errors and not chrome.requests


@pytest.mark.parametrize("width", [390, 1280])
def test_a_reader_asks_points_and_changes_the_seed(chrome: Chrome, page: Path, width: int) -> None:
    chrome.open(page, width=width)
    text = "document.getElementById('{}').textContent"
    before = chrome.run(text.format("policy-answer"))
    assert chrome.run("document.querySelectorAll('#policy-answer .token').length") > 0
    chrome.run("document.getElementById('again').click()")
    assert chrome.run(text.format("policy-answer")) != before
    chrome.run("document.querySelector('#base-answer .token').click()")
    assert "under the base model" in chrome.run(text.format("numbers"))
    hostile = json.dumps("<img src=x onerror=\"document.title='stolen'\">")
    chrome.run(f"document.getElementById('prompt').value = {hostile}; answerBoth()")
    assert chrome.run("document.title").startswith("Ask both models")
    chrome.run("document.getElementById('prompt').value = 'word '.repeat(200); answerBoth()")
    assert "shorten it" in chrome.run(text.format("status"))
    assert chrome.run("document.documentElement.scrollWidth") <= width
    assert not chrome.errors and not chrome.requests
    if folder := os.environ.get("PICTURES"):
        chrome.picture(Path(folder) / f"playground-{width}.png")
