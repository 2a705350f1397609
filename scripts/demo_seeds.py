"""Whole pipelines of demo.py with several seeds, on the pages: tables, and a picture of dots.

    python scripts/demo.py --seed 200 --seeds 12       the runs, into runs/demo/seed200 and so on
    python scripts/demo_seeds.py --runs runs/demo      keeps their numbers in docs/demo_seeds.json
    python scripts/write_tables.py                     writes them into the pages and docs/demo_seeds.svg

Every number on the pages comes from that file; a test writes them again and compares.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from studies.pages import average, markdown, rounded, spread

from harness.command_line import run_command
from harness.errors import UserError
from harness.files import display_path, read_json, write_atomically
from harness.paths import REPOSITORY, RUNS

KEPT = REPOSITORY / "docs" / "demo_seeds.json"
PICTURE = Path(__file__).with_name("demo_seeds.svg.jinja")
TEST, UNSEEN = "test", "held_out_items"


def of_runs(folder: Path) -> list[dict[str, Any]]:
    """What the pages need of every FOLDER/seedN, by seed. UserError where none has finished."""
    found = sorted(folder.glob("seed*/results.json"))
    if not found:
        raise UserError(
            f"{display_path(folder)} holds no finished seed: run scripts/demo.py --seeds 12 first"
        )
    rows = []
    for path in found:
        judged = read_json(path.parent / "reward_model" / "report.json")
        row = rounded(read_json(path))
        row["reward_model"] = {"gold_accuracy": round(judged["gold_accuracy"], 4)}
        rows.append(row)
    return sorted(rows, key=lambda row: row["seed"])


def kept() -> list[dict[str, Any]]:
    """The rows of docs/demo_seeds.json."""
    rows: list[dict[str, Any]] = read_json(KEPT)
    return rows


def column(rows: Sequence[Mapping[str, Any]], who: str, key: str, where: str = TEST) -> list[float]:
    """A number of every seed; none where it was not measured."""
    values = [row[where][who][key] for row in rows]
    return [] if None in values else values


# --- the pages ------------------------------------------------------------------------------------


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The four contestants: mean (lowest to highest) over the seeds."""
    shown = (("gold", TEST, 3), ("win_rate", TEST, 3), ("kl", TEST, 1), ("gold", UNSEEN, 3))
    lines = []
    for name in rows[0][TEST]:
        cells = [spread(column(rows, name, key, where), digits) for key, where, digits in shown]
        lines.append([name, *(f"**{cell}**" if name == "GRPO" else cell for cell in cells)])
    head = ["gold reward", "win rate over base", "KL (nats)", "gold, new items"]
    return markdown([f"{len(rows)} seeds", *head], lines)


def by_seed() -> list[str]:
    """GRPO and its reward model, a row for each seed."""
    lines = []
    for row in kept():
        grpo, unseen, check = row[TEST]["GRPO"], row[UNSEEN]["GRPO"], row["item_check"]
        judged = [
            row["reward_model"]["gold_accuracy"],
            *(check[w]["accuracy"] for w in (TEST, UNSEEN)),
        ]
        numbers = [grpo["win_rate"], unseen["gold"], *judged]
        first = [str(row["seed"]), f"{grpo['gold']:.3f}", f"{grpo['kl']:.1f}"]
        lines.append([*first, *(f"{number:.3f}" for number in numbers)])
    head = ["seed", "gold", "KL", "win rate", "gold, new items", "pairs ordered like gold"]
    return markdown([*head, "item noticed", "new item noticed"], lines)


def caption() -> list[str]:
    """What the front page says of them: gold and KL of each contestant, and GRPO on new items."""
    rows = kept()
    lines = [
        [name, average(column(rows, name, "gold"), 2), average(column(rows, name, "kl"), 1)]
        for name in rows[0][TEST]
        if name != "GRPO"
    ]
    lines.sort(key=lambda line: line[1])
    for name, where in (("**GRPO**", TEST), ("GRPO, on items that are new to it", UNSEEN)):
        gold, kl = (column(rows, "GRPO", key, where) for key in ("gold", "kl"))
        lines.append([name, spread(gold, 2), spread(kl, 1)])
    return markdown([f"{len(rows)} seeds of `make demo`", "gold reward", "KL (nats)"], lines)


def picture() -> str:
    """The dots, one for each seed, as an SVG."""
    rows = kept()
    lanes = [
        ("base model", "base model", TEST), ("fine-tuned", "fine-tuned on preferred answers", TEST),
        ("best of 8", "best of 8 by reward model", TEST), ("GRPO", "GRPO", TEST),
        ("GRPO, new items", "GRPO", UNSEEN),
    ]  # fmt: skip
    seeds = [row["seed"] for row in rows]
    drawn = [
        {"label": label, "dots": list(zip(column(rows, who, "gold", where), seeds, strict=True))}
        for label, who, where in lanes
    ]
    template = jinja2.Template(PICTURE.read_text(encoding="utf-8"), autoescape=True)
    return template.render(lanes=drawn, low=0.4, high=1.0).lstrip() + "\n"


PARTS: dict[str, dict[str, Callable[[], list[str]]]] = {
    "README.md": {"demo seeds": caption},
    "docs/results.md": {
        "demo seeds": lambda: summary(kept()), "demo by seed": by_seed,
    },
}  # fmt: skip


@dataclass(frozen=True)
class DemoSeedsConfig:
    """Keep the numbers of finished demos in docs/demo_seeds.json."""

    runs: Path = RUNS / "demo"
    """Folder of scripts/demo.py --seeds N, with seed0, seed1 and so on."""


def main(config: DemoSeedsConfig) -> None:
    """Write the file."""
    lines = ",\n".join(json.dumps(row) for row in of_runs(config.runs))
    write_atomically(KEPT, lambda path: path.write_text(f"[\n{lines}\n]\n", encoding="utf-8"))
    print(f"{display_path(KEPT)}; python scripts/write_tables.py writes the pages")


if __name__ == "__main__":
    run_command(main, DemoSeedsConfig)
