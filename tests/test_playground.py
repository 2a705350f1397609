"""scripts/playground.py: what is in the page, what it refuses, its gold reward. The rest: tests/browser."""

from __future__ import annotations

import base64
import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import playground
import pytest
import saved_models
import torch
from safetensors.torch import load, save

from data import reviews
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import Tokenizer, load_tokenizer, read_ranks

SHAPE = dict(context=32, n_layer=1, n_head=2, n_embd=8)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer("glassbox")


def model(tokenizer: Tokenizer, seed: int = 0, **changes: int) -> GPT:
    shape = GPTConfig(vocab_size=tokenizer.n_vocab, **(SHAPE | changes))
    return GPT(shape).initialize(torch.Generator().manual_seed(seed))


def script(page: str, name: str) -> str:
    found = re.search(rf'<script type="[a-z/]+" id="{name}">(.*?)</script>', page, re.S)
    assert found is not None
    return found[1]


def test_the_page_holds_the_models_the_ranks_and_prompts(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    one, two = model(tokenizer), model(tokenizer, 1)
    choice = playground.Choice("own", "", save(dict(two.state_dict())))
    page = playground.playground(one, [choice], tokenizer, "https://example.org/tree/main/")
    stored = load(base64.b64decode(script(page, "base-weights")))
    for key, value in one.state_dict().items():
        torch.testing.assert_close(stored[key], value.bfloat16(), atol=0, rtol=0)
    assert load(base64.b64decode(script(page, "policy-0-weights"))).keys() == stored.keys()
    (tmp_path / "ranks").write_text(script(page, "ranks"), encoding="ascii")
    assert read_ranks(tmp_path / "ranks") == read_ranks(playground.RANKS_FILE)
    about = json.loads(script(page, "about"))
    assert about["config"]["n_embd"] == 8 and len(about["prompts"]) == 40
    assert about["pooling"] is None and about["examples"] == []
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {
        "data:,",
        *(f"https://example.org/tree/main/{name}" for name in (
            "docs/playground/gpt2.js", "gpt/model.py", "docs/playground/world.js", "data/reviews.py",
        )),
    }  # fmt: skip
    assert "fetch(" not in page


def test_the_course_has_policies_from_timid_to_over_optimised(tmp_path: Path) -> None:
    """A smaller beta leads further away; gold rises at first, and is lost again without a penalty."""
    playground.write_playground(None, None, tmp_path / "page.html")
    assert 4_000_000 < (tmp_path / "page.html").stat().st_size < 5_000_000
    _, about = saved_models.sweep()
    betas, golds, kls, rewards = (
        [row[key] for row in about["policies"]] for key in ("beta", "gold", "kl", "learned")
    )
    assert betas == sorted(betas, reverse=True) and betas[-1] == 0 and len(betas) == 4
    assert kls == sorted(kls) and kls[-1] > 2 * kls[-2]
    assert [about["base"]["gold"], *golds[:3]] == sorted([about["base"]["gold"], *golds[:3]])
    assert golds[-1] < golds[-2] - 0.2 and rewards[-1] > rewards[-2]
    about_page = json.loads(script((tmp_path / "page.html").read_text("utf-8"), "about"))
    assert len(about_page["examples"]) == 2


HOSTILE = (
    "", "   ", "great", "Hi Anna, this is great! I hope this helps.", "hello anna", "Hi Anna",
    "Who cares? The lamp is AWFUL. Who cares?", "The lamp is nice. The lamp is nice.",
    "Nice nice lamp; lovely, superb, great, neat... Thank you for asking", "\u00e9t\u00e9 lamp_x nice!",
    "Not you again.  Leave me alone. Now go away!", "It is okay.\nThe price is fair.",
)  # fmt: skip


def test_gold_in_the_page_is_gold_in_python() -> None:
    """Every part, on answers of the grammar, cut or not, and on hostile ones."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here: the browser's test compares the same numbers")
    rng = random.Random(0)
    records = [rng.choice(reviews.prompts("test")) for _ in range(150)]
    rows = [
        (record, reviews.sample_response(record, rng), rng.random() < 0.8) for record in records
    ]
    rows += [(records[0], text, True) for text in HOSTILE]
    rows += [(reviews.prompts("test")[i], "Hi Anna! The lamp is superb.", False) for i in range(20)]
    asked = [[record.prompt, text, ended] for record, text, ended in rows]
    code = (playground.PARTS / "world.js").read_text("utf-8") + (
        f"const world = new World({json.dumps(playground.world_lists())});"
        f"process.stdout.write(JSON.stringify({json.dumps(asked)}.map(([prompt, text, ended]) => {{"
        "const asked = world.read(prompt); const gold = world.gold(asked, text, ended);"
        "return { asked, gold, reasons: world.reasons(asked, gold, ended) }; })));"
    )
    done = subprocess.run([node, "-"], input=code, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for (record, text, ended), found in zip(rows, json.loads(done.stdout), strict=True):
        assert found["asked"] == record.meta
        parts = reviews.gold_parts(record, text, ended)
        for name in ("sent", "topic", "polite", "form", "qual", "reward"):
            assert found["gold"][name] == pytest.approx(getattr(parts, name), abs=1e-9), (
                name,
                text,
            )
        *content, care = found["reasons"]
        assert sum(row[0] for row in content) * care[0] == pytest.approx(parts.reward, abs=1e-9)
        assert all(words for *_, words in found["reasons"])
