"""Reports and token views in headless Chromium: what a reader sees, clicks and types.

`make browser` runs these; nothing else does. Set PICTURES to a folder to keep the screenshots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chrome import Chrome, open_chrome

from gpt import pretraining
from gpt.model import PRESETS, GPTConfig
from gpt.pretraining import PretrainingConfig
from harness.command_line import from_preset
from harness.report.page import page_html, read_run
from reward_model import reward_model_training
from reward_model.reward_model_training import RewardModelConfig
from rl import grpo_engine, kd_grpo_engine, ppo_engine

pytestmark = pytest.mark.browser
PHONE, DESKTOP = 390, 1280
STEAL = "document.title='stolen'"
HOSTILE = f'</script><script>{STEAL}</script><img src=x onerror="{STEAL}"><!--<script>'
SHORT: dict[str, Any] = dict(
    steps=4, eval_every=2, eval_prompts=8, test_prompts=4, prompts_per_step=4, max_new_tokens=12,
    device="cpu", ranks=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    yield from open_chrome()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Short runs of one-layer models, and one that is broken and hostile."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        shape = GPTConfig(context=128, n_layer=1, n_head=2, n_embd=16)
        patch.setitem(PRESETS, "tiny", shape)
        base, judge, teacher = root / "base", root / "judge", root / "teacher"
        short = dict(steps=4, eval_every=2, device="cpu", ranks=1)
        presets = pretraining.PRESETS
        pretraining.main(from_preset(PretrainingConfig, presets, "tiny", out=base, **short))
        pretraining.main(
            from_preset(PretrainingConfig, presets, "tiny", out=teacher, seed=1, **short)
        )
        reward_model_training.main(
            RewardModelConfig(base=base, out=judge, pairs=64, held_out_pairs=16, steps=4,
                              batch_size=8, max_response_tokens=16, device="cpu", ranks=1)
        )  # fmt: skip
        learned = SHORT | dict(policy=base, reward_model=(judge,))
        taught = SHORT | dict(policy=base, teacher=teacher, pretraining_coef=0.0)
        for name, module, config, flags in (
            ("grpo", grpo_engine, grpo_engine.GRPOConfig, learned | dict(updates_per_batch=2)),
            ("ppo", ppo_engine, ppo_engine.PPOConfig, learned),
            ("kd_grpo", kd_grpo_engine, kd_grpo_engine.KDGRPOConfig, taught),
        ):
            module.main(from_preset(config, module.PRESETS, "tiny", **flags, out=root / name))
        broken(root / "broken", root / "grpo")
        yield {path.name: path for path in root.iterdir()}


def broken(folder: Path, like: Path) -> None:
    """A run whose loss is NaN, whose files are cut off, and whose texts are markup."""
    folder.mkdir()
    finding = dict.fromkeys(("rule", "evidence", "cause", "remedy", "page"), HOSTILE)
    about = {
        "script": HOSTILE, "title": f"broken {HOSTILE}", "differs": {HOSTILE: [HOSTILE, 1]},
        "findings": [finding | {"severity": "error"}],
    }  # fmt: skip
    tokens = [json.loads(line) for line in (like / "tokens.jsonl").read_text().splitlines()]
    for row in tokens:
        row["prompt"], row["tokens"][0] = HOSTILE, HOSTILE
        row["values"]["advantage"] = [float("nan")] * len(row["tokens"])
    samples = [{"step": 1, "prompt": HOSTILE, "response": HOSTILE}]
    rows = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": float("nan"), HOSTILE: float("inf")}]
    write = {"metrics": rows, "tokens": tokens, "samples": samples}
    for name, content in write.items():
        text = "".join(json.dumps(row) + "\n" for row in content)
        (folder / f"{name}.jsonl").write_text(text + '{"step": 3, "lo', encoding="utf-8")
    for name, value in {"page": about, "config": {HOSTILE: HOSTILE}}.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    page = page_html([read_run(folder)])
    (folder / "report.html").write_text(page, encoding="utf-8")


def opened(chrome: Chrome, path: Path, width: int) -> None:
    """Open a page and scroll through it, so that every curve in sight is drawn."""
    chrome.open(path, width)
    chrome.run(
        "new Promise(async done => { for (let y = 0; y < document.body.scrollHeight; y += 500) {"
        " scrollTo(0, y); await new Promise(r => setTimeout(r, 100)); }"
        " scrollTo(0, 0); setTimeout(done, 500); })"
    )
    if "PICTURES" in os.environ:
        chrome.picture(Path(os.environ["PICTURES"]) / f"{path.parent.name}-{width}.png")


def text(chrome: Chrome, selector: str) -> str:
    return str(chrome.run(f"document.querySelector({json.dumps(selector)}).innerText"))


def pressed(chrome: Chrome) -> list[str]:
    """The buttons that are on: what is shown and by which quantity."""
    query = ".gt-bar button[aria-pressed=true]"
    return chrome.run(f"[...document.querySelectorAll('{query}')].map(b => b.textContent)")


def where(chrome: Chrome) -> tuple[str, str]:
    """The step and the response that are shown."""
    step, response = chrome.run(
        "[...document.querySelectorAll('.gt-bar > b')].map(b => b.textContent)"
    )
    return step, response


def click(chrome: Chrome, label: str) -> None:
    found = chrome.run(
        f"(() => {{ const b = [...document.querySelectorAll('.glass-tokens button')].find(b =>"
        f" b.textContent === {json.dumps(label)}); if (b) b.click(); return !!b; }})()"
    )
    assert found, label


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("name", ["grpo", "ppo", "kd_grpo", "broken", "base", "judge"])
def test_a_report_opens_without_an_error(
    chrome: Chrome, runs: dict[str, Path], name: str, width: int
) -> None:
    """Curves are drawn, nothing is asked of a network, nothing sticks out, text stays text."""
    opened(chrome, runs[name] / "report.html", width)
    assert chrome.errors == [] and chrome.requests == []
    drawn = chrome.run("document.querySelectorAll('.bk-Figure').length")
    panels = chrome.run("document.querySelectorAll('.panels:not(details *) .panel').length")
    assert drawn == panels > 0
    assert chrome.run("document.documentElement.scrollWidth") <= width
    assert chrome.run("document.title") != "stolen"
    assert chrome.run("document.querySelectorAll('img').length") == 0


def test_markup_in_a_broken_run_is_shown_as_text(chrome: Chrome, runs: dict[str, Path]) -> None:
    opened(chrome, runs["broken"] / "report.html", DESKTOP)
    assert chrome.errors == []
    for selector in ("h1", ".finding", ".gt-prompt", ".gt-token", ".sample", "#flags ~ .table"):
        assert HOSTILE in text(chrome, selector).replace("\n", " "), selector
    assert "Not finite: loss at step 2" in text(chrome, ".panels")


@pytest.mark.parametrize(
    ("name", "quantities"),
    [
        ("grpo", ["advantage", "log-ratio", "KL to the reference", "entropy", "log-prob",
                  "reward of the prefix"]),
        ("ppo", ["advantage", "log-ratio", "KL to the reference", "entropy", "log-prob", "value",
                 "TD error", "reward of the prefix"]),
        ("kd_grpo", ["advantage", "log-ratio", "KL to the reference", "entropy", "log-prob",
                     "log p, teacher", "log q, student"]),
    ],
)  # fmt: skip
def test_one_click_switches_quantity_response_and_step(
    chrome: Chrome, runs: dict[str, Path], name: str, quantities: list[str]
) -> None:
    opened(chrome, runs[name] / "report.html", DESKTOP)
    assert pressed(chrome) == ["training", "advantage"] and where(chrome)[0] == "step 4"
    backgrounds = set()
    for quantity in quantities:
        click(chrome, quantity)
        assert pressed(chrome) == ["training", quantity]
        backgrounds.add(
            chrome.run(
                "[...document.querySelectorAll('.gt-token')].map(t => t.style.background).join()"
            )
        )
    assert len(backgrounds) > len(quantities) // 2  # the colours follow, where the numbers do
    first = text(chrome, ".gt-big")
    chrome.run("document.querySelectorAll('.gt-row')[1].click()")
    assert where(chrome)[1].startswith("2 of ") and text(chrome, ".gt-big") != first
    chrome.run("document.querySelector('[aria-label=\"earlier step\"]').click()")
    assert where(chrome)[0] == "step 2"
    click(chrome, "validation")
    assert pressed(chrome)[0] == "validation"
    assert chrome.errors == []


def test_keys_switch_and_tell(chrome: Chrome, runs: dict[str, Path]) -> None:
    opened(chrome, runs["grpo"] / "report.html", DESKTOP)
    chrome.run("document.querySelector('.glass-tokens').focus()")
    for key, seen in (
        ("ArrowRight", lambda: where(chrome) == ("step 4", "2 of 8")),
        ("ArrowLeft", lambda: where(chrome) == ("step 4", "1 of 8")),
        ("ArrowDown", lambda: where(chrome)[0] == "step 2"),
        ("ArrowUp", lambda: where(chrome)[0] == "step 4"),
        ("q", lambda: pressed(chrome)[1] == "log-ratio"),
        ("v", lambda: pressed(chrome)[0] == "validation"),
    ):
        chrome.press(key)
        assert seen(), key
    # A quantity that the other kind lacks is not left on: its numbers would be dashes.
    assert pressed(chrome)[1] != "log-ratio"
    chrome.run("document.querySelectorAll('.gt-token')[1].focus()")
    told = text(chrome, ".gt-read")
    assert "entropy +" in told and "KL to the reference" in told
