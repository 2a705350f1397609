"""scripts/playground.py: what is in the page, and what it refuses. The browser's part is tests/browser."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import playground
import pytest
import torch
from safetensors.torch import load

from gpt.checkpoint import save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import Tokenizer, load_tokenizer, read_ranks
from harness.errors import UserError

SHAPE = dict(context=32, n_layer=1, n_head=2, n_embd=8)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer("glassbox")


def model(tokenizer: Tokenizer, **changes: int) -> GPT:
    return GPT(GPTConfig(vocab_size=tokenizer.n_vocab, **(SHAPE | changes))).initialize()


def script(page: str, name: str) -> str:
    found = re.search(rf'<script type="[a-z/]+" id="{name}">(.*?)</script>', page, re.S)
    assert found is not None
    return found[1]


def test_the_page_holds_both_models_the_ranks_and_prompts(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    models = model(tokenizer), model(tokenizer)
    page = playground.playground(*models, tokenizer, "https://example.org/tree/main/")
    for name, one in zip(("base", "policy"), models, strict=True):
        stored = load(base64.b64decode(script(page, f"{name}-weights")))
        assert stored.keys() == one.state_dict().keys()
        for key, value in one.state_dict().items():
            torch.testing.assert_close(stored[key], value.bfloat16(), atol=0, rtol=0)
    (tmp_path / "ranks").write_text(script(page, "ranks"), encoding="ascii")
    assert read_ranks(tmp_path / "ranks") == read_ranks(playground.RANKS_FILE)
    about = json.loads(script(page, "about"))
    assert about["config"]["n_embd"] == 8 and len(about["prompts"]) == 40
    assert 'href="https://example.org/tree/main/gpt/model.py"' in page


def test_it_refers_to_nothing_outside_itself(tokenizer: Tokenizer) -> None:
    page = playground.playground(model(tokenizer), model(tokenizer), tokenizer, "..")
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {
        "data:,", "../docs/playground/gpt2.js", "../gpt/model.py",
    }  # fmt: skip
    assert "fetch(" not in page and "http" not in page


def test_the_kept_models_fit_and_one_folder_alone_is_refused(tmp_path: Path) -> None:
    playground.write_playground(None, None, tmp_path / "page.html")
    assert 4_000_000 < (tmp_path / "page.html").stat().st_size < 8_000_000
    with pytest.raises(UserError, match="name both"):
        playground.write_playground(tmp_path, None, tmp_path / "other.html")


def test_a_page_above_8_mb_is_refused(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("base", "policy"):
        save_gpt(tmp_path / name / "model.safetensors", model(tokenizer), tokenizer)
    folders = tmp_path / "base", tmp_path / "policy"
    playground.write_playground(*folders, tmp_path / "page.html", "..")
    assert (tmp_path / "page.html").stat().st_size > 10_000
    monkeypatch.setattr(playground, "MOST_BYTES", 10_000)
    with pytest.raises(UserError, match="preset tiny"):
        playground.write_playground(*folders, tmp_path / "other.html", "..")
    assert not (tmp_path / "other.html").exists()
