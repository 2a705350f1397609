"""The lines of tables in pages: of the demo, of engines and of the course, and of what was measured.

A page has a snippet in a comment before each of its tables, which calls one of these. `make tables`
writes what they give (https://cog.readthedocs.io), and `make lint` fails where a page has something else.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from harness.files import read_json, write_text
from harness.paths import REPOSITORY
from rl.run.engine import every_engine
from studies.__main__ import study_of
from studies.pages import TEST, UNSEEN, average, column, markdown, rounded, spread, summary

FIRST = (  # of the engines
    *("grpo", "ppo", "grpo_variants", "rloo", "reinforce_pp", "dpo"),
    *("on_policy_distillation", "kd_grpo"),
)
DOCS = REPOSITORY / "docs"
SEEDS = DOCS / "demo_seeds.json"


# --- the demo's seeds -----------------------------------------------------------------------------


def keep_seeds(folder: Path) -> None:
    """Write docs/demo_seeds.json: what the pages need of every FOLDER/seedN of scripts/demo.py --seeds."""
    rows = [rounded(read_json(path)) for path in folder.glob("seed*/results.json")]
    for row in rows:
        judged = read_json(folder / f"seed{row['seed']}" / "reward_model" / "report.json")
        row["reward_model"] = {"gold_accuracy": round(judged["gold_accuracy"], 4)}
    rows.sort(key=lambda row: row["seed"])
    write_text(SEEDS, "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def demo() -> list[str]:
    """The four contestants of the demo."""
    return summary(read_json(SEEDS))


def demo_by_seed() -> list[str]:
    """GRPO and its reward model, a row for each seed."""
    lines = []
    for row in read_json(SEEDS):
        grpo, unseen, check = row[TEST]["GRPO"], row[UNSEEN]["GRPO"], row["item_check"]
        numbers = [grpo["win_rate"], unseen["gold"], row["reward_model"]["gold_accuracy"]]
        numbers += [check[where]["accuracy"] for where in (TEST, UNSEEN)]
        first = [str(row["seed"]), f"{grpo['gold']:.3f}", f"{grpo['kl']:.1f}"]
        lines.append([*first, *(f"{number:.3f}" for number in numbers)])
    head = ["seed", "gold", "KL", "win rate", "gold, new items", "pairs ordered like gold"]
    return markdown([*head, "item noticed", "new item noticed"], lines)


def demo_in_short() -> list[str]:
    """What the front page says of them: gold and KL of each contestant, and GRPO on new items."""
    rows = read_json(SEEDS)
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


def demo_dots(who: str, y: int, where: str = TEST) -> list[str]:
    """Of docs/demo_seeds.svg, whose axis goes from 0.4 to 1: a dot for the gold of each seed."""
    rows, colour = read_json(SEEDS), "#0072B2" if who == "GRPO" else "#7F7F7F"
    return [
        f'<circle cx="{170 + 560 * (gold - 0.4) / 0.6:.1f}" cy="{y}" r="5" fill="{colour}" '
        f'fill-opacity="0.55"><title>seed {row["seed"]}: {gold:.3f}</title></circle>'
        for row, gold in zip(rows, column(rows, who, "gold", where), strict=True)
    ]


# --- engines, and pages of the course -------------------------------------------------------------


def engines() -> list[str]:
    """The engines that readers come for, then the others in the order of docs/boxes.

    Of each the cells of its box. A paper's first author is a link, unless an earlier row had the paper.
    """
    sys.path.append(str(DOCS / "site"))
    read_box = importlib.import_module("boxes").read_box
    pairs = [(engine, read_box(engine.name).fields) for engine in every_engine()]
    pairs.sort(key=lambda pair: int(pair[1]["order"]))
    first = {name: place for place, name in enumerate(FIRST)}
    pairs.sort(key=lambda pair: first.get(pair[0].name, len(FIRST)))
    rows, linked = [], set[str]()
    for engine, box in pairs:
        paper, number = box["paper"], re.split(r",\s*", box["arxiv"])[0]
        if number not in linked:
            link = rf"[\g<0>](https://arxiv.org/abs/{number})"
            paper, found = re.subn(r"\w+ et al\. \d{4}", link, paper, count=1)
            linked |= {number} if found else set()
        (page,) = (REPOSITORY / "notebooks").glob(f"[0-9][0-9]_{box['notebook']}.ipynb")
        name = f"[{engine.box}]({engine.name}_engine.py)"
        page_link = f"[{page.name[:2]}](../notebooks/{page.name})"
        rows.append([name, box["idea"], box["watch"], paper, page_link])
    return markdown(["engine", "what is new in it", "what to watch", "paper", "page"], rows)


AFTER = "**After this page you can** "  # what every page says of itself in a paragraph
READ_AFTER = {"25": "18", "26": "07"}  # a page with a later number that belongs behind another one


def course() -> list[str]:
    """What each page of the course enables, and its exercises, in the order of reading."""
    rows, exercises, pages = [], 0, (REPOSITORY / "notebooks").glob("[0-9][0-9]_*.py")
    for page in sorted(pages, key=lambda p: (READ_AFTER.get(p.name[:2], p.name[:2]), p.name)):
        source = page.read_text(encoding="utf-8")
        parts = re.findall(r"^# %% \[markdown\]\n((?:#.*\n)*)", source, re.MULTILINE)
        paragraphs = re.sub(r"^# ?", "", "".join(parts), flags=re.MULTILINE).split("\n\n")
        title = re.sub(r"^# (\d+\. )?", "", paragraphs[0])
        said = next(each.removeprefix(AFTER) for each in paragraphs if each.startswith(AFTER))
        asked = len(re.findall(r"^check(?:_answer)?\(", source, re.MULTILINE))
        link = f"[{page.name[:2]} {title}]({page.stem}.ipynb)"
        rows.append([link, " ".join(said.split()), str(asked or "")])
        exercises += asked
    rows.append(["all", "", str(exercises)])
    return markdown(["page", "after it you can", "exercises"], rows)


# --- what was measured ----------------------------------------------------------------------------


def measured(page: str, name: str) -> list[str]:
    """A table that docs/measured.json holds of a page."""
    table = read_json(DOCS / "measured.json")[page][name]
    titles, digits = zip(*table["columns"], strict=True)
    rows = [[cell(*pair) for pair in zip(row, digits, strict=True)] for row in table["rows"]]
    return markdown(titles, rows)


def cell(value: Any, digits: int | None) -> str:
    """A number, a mean (lowest to highest), a text, or a dash."""
    if value is None or isinstance(value, str):
        return value if value is not None else "-"
    numbers = [f"{number:.{digits}f}" for number in (value if isinstance(value, list) else [value])]
    if len(numbers) == 1:
        return numbers[0]
    word = " to " if "-" in "".join(numbers) else "\u2013"
    return f"{numbers[0]} ({numbers[1]}{word}{numbers[2]})"


def cases() -> dict[str, Any]:
    """What bench/peers.py --keep has recorded, by the name of the work."""
    found: dict[str, Any] = read_json(DOCS / "benchmarks.json")["cases"]
    return found


def best(case: dict[str, Any], cost: Callable[[dict[str, Any]], float]) -> list[dict[str, Any]]:
    """The peer's side that costs least, and ours of those that took turns with it."""
    peer = min((side for side in case["sides"] if side["library"] == "peer"), key=cost)
    beside = [side for side in case["sides"] if side.get("group") == peer.get("group")]
    return [peer, min((side for side in beside if side["library"] == "ours"), key=cost)]


def benchmarks() -> list[str]:
    """The peer's fastest side and ours of each work."""
    rows = []
    for name, case in cases().items():
        both = best(case, lambda side: median(side["seconds"]))
        sides = [f"{median(side['seconds']):.3g} ({side['label']})" for side in both]
        memory = ", ".join(cell(side["mib"], 0) for side in both)
        shares = ", ".join(f"{side['share']:.0%}" for side in both)
        rows.append([name, *sides, f"{both[1]['times']:.2f}", memory, shares])
    return markdown(["work", "peer", "ours", "times as fast", "MiB", "of the ceiling"], rows)


SHORT = {  # what a first look wants to know
    "grpo-smollm2-float32": "a GRPO step of SmolLM2-135M, float32",
    "grpo-smollm2-bfloat16": "the same in bfloat16",
    "reward-smollm2-bfloat16": "a reward model's step, bfloat16",
    "sampling-smollm2-bfloat16": "sampling from SmolLM2, bfloat16",
    "grpo-tiny-16x8": "a GRPO step of the demo's size",
}


def benchmarks_in_short() -> list[str]:
    """Work done for a CPU second, whatever the number of processes, and what it takes of memory."""
    rows = []
    for name, words in SHORT.items():
        both = best(cases()[name], lambda side: side["cpu"])
        seconds, memory = (
            [side["cpu"] for side in both],
            [f"{side['mib'] / 1024:.1f}" for side in both],
        )
        fewer = f"{seconds[0] / seconds[1]:.2f}"
        rows.append([words, *(f"{each:.3g}" for each in seconds), fewer, *memory])
        if equal := cases()[name].get("ratios", {}).get("clock"):
            rows[-1] += [f"{equal['ratio']:.2f}", *map(str, equal["gib"])]
    titles = ["work", "CPU seconds, theirs", "ours", "theirs / ours", "GiB, theirs", "ours"]
    if len(rows[0]) > len(titles):  # recordings since TRL runs in two processes, too
        titles += ["by the clock, equal processes", "GiB, theirs", "ours"]
    return markdown(titles, rows)


def study(name: str, table: str) -> list[str]:
    """A table of a study of this name, from the numbers that are kept of it."""
    kept = study_of(name)
    assert kept.recorded is not None
    return [*kept.tables(read_json(kept.recorded))[table]]


def part_of(table: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> list[str]:
    """These rows, by their first cell, and these columns beside it of a Markdown table."""
    titles, _, *cells = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in table)
    places = [0, *(titles.index(name) for name in columns)]
    kept = [[line[place] for place in places] for line in cells if line[0] in rows]
    return markdown([titles[place] for place in places], kept)
