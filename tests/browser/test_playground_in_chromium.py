"""The page that runs two GPT-2s by itself: its numbers are Python's, and a reader can use it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import playground
import pytest
import saved_models
import torch
from chrome import Chrome, open_chrome

from data.collate import collate_responses
from gpt.model import GPT
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
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "playground.html"
    playground.write_playground(None, None, path)
    return path


def log_probs(model: GPT, prompt: list[int], answer: list[int]) -> list[float]:
    """Each answer token's log-probability, by the Python model in float32."""
    with torch.no_grad():
        rows = model(torch.tensor([prompt + answer])).log_softmax(-1)[0]
    start = len(prompt) - 1
    return [float(rows[start + t, token]) for t, token in enumerate(answer)]


@pytest.mark.parametrize("answer", ANSWERS)
def test_numbers_and_tokens_are_pythons(
    chrome: Chrome, page: Path, tokenizer: Tokenizer, answer: str
) -> None:
    """Token ids, the base model, every policy on the slider, and the learned reward."""
    chrome.open(page)
    prompt = "Write to Jonas about the simple bike.\n"
    asked, answered = tokenizer.encode(prompt), [*tokenizer.encode(answer), tokenizer.eos_id]
    assert chrome.run(f"tokenizer.encode({json.dumps(prompt)})") == asked
    assert chrome.run(f"tokenizer.encode({json.dumps(answer)})") == answered[:-1]
    assert chrome.run(f"tokenizer.decode({answered})") == answer
    found = chrome.run(f"Array.from(models.base.score({asked}, {answered}))")
    assert found == pytest.approx(log_probs(saved_models.base()[0], asked, answered), abs=1e-3)
    for place in range(chrome.run("about.policies.length")):
        change = saved_models.change_of_policy(saved_models.sweep()[0], place)
        policy = saved_models.changed(saved_models.base()[0], change)
        script = f"(choose({place}), Array.from(models.policy.score({asked}, {answered})))"
        assert chrome.run(script) == pytest.approx(log_probs(policy, asked, answered), abs=1e-3)
    judge, _ = saved_models.reward_model()
    with torch.no_grad():
        learned = float(judge(collate_responses([asked], [answered], tokenizer.eos_id)))
    assert chrome.run(f"judge.score({asked}, {answered})") == pytest.approx(learned, abs=1e-3)
    assert not chrome.errors and not chrome.requests


def rewards(chrome: Chrome, writer: str) -> list[float]:
    """The learned and the gold reward that stand under an answer."""
    return chrome.run(
        f"[...document.querySelectorAll('#{writer}-rewards .meter b')].map(e => Number(e.textContent))"
    )


def test_one_example_shows_rlhf_at_its_best_and_one_where_it_fails(
    chrome: Chrome, page: Path
) -> None:
    chrome.open(page)
    before, after = rewards(chrome, "base"), rewards(chrome, "policy")
    assert before[1] < 0.5 and after[1] > 0.95 and after[0] > before[0]
    chrome.run("document.querySelectorAll('#examples button')[1].click()")
    before, after = rewards(chrome, "base"), rewards(chrome, "policy")
    assert (
        after[0] > before[0] + 2 and after[1] < 0.1 < before[1]
    )  # the proxy is pleased, gold is not
    broken = after[0]
    chrome.run(
        "(() => { const e = document.getElementById('policy'); e.value = 2;"
        " e.dispatchEvent(new Event('input')); })()"
    )
    good = rewards(chrome, "policy")
    assert good[0] < broken and good[1] > 0.9  # one place back, as the lesson says
    chrome.run("document.querySelectorAll('#examples button')[1].click()")
    assert chrome.run("document.querySelectorAll('#policy-rewards .reasons .lost').length") > 0
    assert not chrome.errors


def test_best_of_n_temperature_and_the_slider_answer_anew(chrome: Chrome, page: Path) -> None:
    chrome.open(page)
    one = rewards(chrome, "base")[0]

    def move(control: str, value: float) -> None:
        chrome.run(
            f"(() => {{ const e = document.getElementById('{control}'); e.value = {value};"
            " e.dispatchEvent(new Event('input')); })()"
        )

    move("best-of", 2)
    chrome.run(
        "new Promise(done => { const end = () =>"
        " /^Seed/.test(document.getElementById('status').textContent)"
        " ? done() : setTimeout(end, 50); end(); })"
    )
    assert rewards(chrome, "base")[0] >= one
    assert "best of 4" in chrome.run("document.getElementById('base-rewards').textContent")
    move("best-of", 0)
    answers = set()
    for place in range(chrome.run("about.policies.length")):
        move("policy", place)
        name = chrome.run("document.getElementById('policy-name').textContent")
        assert name == chrome.run(f"about.policies[{place}].name") and rewards(chrome, "policy")
        answers.add(chrome.run("document.getElementById('policy-answer').textContent"))
    assert len(answers) > 1
    move("temperature", 0)
    cold = chrome.run("document.getElementById('policy-answer').textContent")
    chrome.run("document.getElementById('again').click()")
    assert chrome.run("document.getElementById('policy-answer').textContent") == cold
    assert not chrome.errors


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
