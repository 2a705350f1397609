"""scripts/playground.py: its gold reward. The rest: tests/browser."""

from __future__ import annotations

import json
import random
import shutil
import subprocess

import playground
import pytest

from data.worlds import reviews

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
        pytest.skip("no node here to run the page's code")
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
