"""Write the tables of pages: what is listed of every engine, and what was measured and recorded.

    python scripts/write_tables.py
    python scripts/write_tables.py --demo runs/demo    keeps what the demos of several seeds ended at first

It writes the table of engines in rl/README.md, the tables of docs/measured.json and of the
recordings of a real model, and what the demo's seeds ended at (docs/demo_seeds.json). A test fails where
one of them is not what this would write.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jinja2

from harness.command_line import run_command
from harness.errors import UserError
from harness.files import display_path, read_json, write_text
from harness.paths import REPOSITORY
from rl.run.engine import every_engine
from studies import real_model as steered
from studies.pages import (
    TEST,
    UNSEEN,
    average,
    column,
    filled,
    markdown,
    rounded,
    spread,
    summary,
)

FIRST = (  # of the engines
    *("grpo", "ppo", "grpo_variants", "rloo", "reinforce_pp", "dpo"),
    *("on_policy_distillation", "kd_grpo"),
)
MEASURED = REPOSITORY / "docs" / "measured.json"
MEASURED_PAGES = tuple(f"docs/{name}.md" for name in ("archive", "lora", "ranks"))
REAL_MODEL = REPOSITORY / "notebooks" / "course" / "recordings" / "real_model.json"


def page_with(page: str, tables: Mapping[str, Sequence[str]]) -> str:
    """A page of the repository with these tables between its marks."""
    return filled((REPOSITORY / page).read_text(encoding="utf-8"), tables)


# --- the demo's seeds -----------------------------------------------------------------------------

KEPT = REPOSITORY / "docs" / "demo_seeds.json"
PICTURE = REPOSITORY / "scripts" / "demo_seeds.svg.jinja"


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


def by_seed() -> list[str]:
    """GRPO and its reward model, a row for each seed."""
    lines = []
    for row in read_json(KEPT):
        grpo, unseen, check = row[TEST]["GRPO"], row[UNSEEN]["GRPO"], row["item_check"]
        numbers = [grpo["win_rate"], unseen["gold"], row["reward_model"]["gold_accuracy"]]
        numbers += [check[where]["accuracy"] for where in (TEST, UNSEEN)]
        first = [str(row["seed"]), f"{grpo['gold']:.3f}", f"{grpo['kl']:.1f}"]
        lines.append([*first, *(f"{number:.3f}" for number in numbers)])
    head = ["seed", "gold", "KL", "win rate", "gold, new items", "pairs ordered like gold"]
    return markdown([*head, "item noticed", "new item noticed"], lines)


def caption() -> list[str]:
    """What the front page says of them: gold and KL of each contestant, and GRPO on new items."""
    rows = read_json(KEPT)
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
    rows = read_json(KEPT)
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


# --- engines --------------------------------------------------------------------------------------


def boxes() -> list[tuple[Any, Any]]:
    """Every ENGINE with its box (docs/boxes), in the order of the boxes."""
    sys.path.append(str(REPOSITORY / "docs" / "site"))
    read_box = importlib.import_module("boxes").read_box
    pairs = [(engine, read_box(engine.name)) for engine in every_engine()]
    return sorted(pairs, key=lambda pair: int(pair[1].fields["order"]))


def page_of_course(name: str, root: str) -> str:
    """A link to the page of the course with this name, which stands after the page's number."""
    (path,) = (REPOSITORY / "notebooks").glob(f"[0-9][0-9]_{name}.ipynb")
    return f"[{path.name[:2]}]({root}notebooks/{path.name})"


def front_page() -> str:
    """README.md: what the demo's seeds ended at."""
    return page_with("README.md", {"demo seeds": caption()})


def front_row(engine: Any, box: Any, linked: set[str]) -> list[str]:
    """Its cells. The first author that the box names is a link, unless an earlier row had it."""
    paper, number = box.fields["paper"], re.split(r",\s*", box.fields["arxiv"])[0]
    if number not in linked:
        link = rf"[\g<0>](https://arxiv.org/abs/{number})"
        paper, found = re.subn(r"\w+ et al\. \d{4}", link, paper, count=1)
        linked |= {number} if found else set()
    page = page_of_course(box.fields["notebook"], "../")
    name = f"[{engine.box}]({engine.name}_engine.py)"
    return [name, box.fields["idea"], box.fields["watch"], paper, page]


def page_of_rl() -> str:
    """rl/README.md: the engines that readers come for, then the others; each paper is linked once."""
    known, linked = {engine.name: (engine, box) for engine, box in boxes()}, set[str]()
    order = [known.pop(name) for name in FIRST if name in known] + list(known.values())
    columns = ["engine", "what is new in it", "what to watch", "paper", "page"]
    rows = [front_row(*pair, linked) for pair in order]
    return page_with("rl/README.md", {"engines": markdown(columns, rows)})


# --- what was measured ----------------------------------------------------------------------------


def measured(page: str) -> str:
    """A page with the tables that docs/measured.json holds of it."""
    tables = {}
    for name, table in read_json(MEASURED)[page].items():
        titles, digits = zip(*table["columns"], strict=True)
        rows = [[cell(*pair) for pair in zip(row, digits, strict=True)] for row in table["rows"]]
        tables[f"measured: {name}"] = markdown(titles, rows)
    return page_with(page, tables)


def cell(value: Any, digits: int | None) -> str:
    """A number, a mean (lowest to highest), a text, or a dash."""
    if value is None or isinstance(value, str):
        return value if value is not None else "-"
    numbers = [f"{number:.{digits}f}" for number in (value if isinstance(value, list) else [value])]
    if len(numbers) == 1:
        return numbers[0]
    word = " to " if "-" in "".join(numbers) else "\u2013"
    return f"{numbers[0]} ({numbers[1]}{word}{numbers[2]})"


def benchmarks() -> str:
    """docs/benchmarks.md: the peer's best side and ours of each work, from bench/peers.py --keep."""
    rows = []
    for name, found in read_json(REPOSITORY / "docs" / "benchmarks.json")["cases"].items():
        best = [
            min(
                (side for side in found["sides"] if side["library"] == library),
                key=lambda side: median(side["seconds"]),
            )
            for library in ("peer", "ours")
        ]
        sides = [f"{median(side['seconds']):.3g} ({side['label']})" for side in best]
        memory = ", ".join(cell(side["mib"], 0) for side in best)
        shares = ", ".join(f"{side['share']:.0%}" for side in best)
        rows.append([name, *sides, f"{best[1]['times']:.2f}", memory, shares])
    titles = ["work", "peer", "ours", "times as fast", "MiB", "of the ceiling"]
    tables = {"benchmarks": markdown(titles, rows), "benchmarks, in short": by_cpu_seconds()}
    return page_with("docs/benchmarks.md", tables)


SHORT = {  # what a first look wants to know
    "grpo-smollm2-float32": "a GRPO step of SmolLM2-135M, float32",
    "grpo-smollm2-bfloat16": "the same in bfloat16",
    "reward-smollm2-bfloat16": "a reward model's step, bfloat16",
    "sampling-smollm2-bfloat16": "sampling from SmolLM2, bfloat16",
    "grpo-tiny-16x8": "a GRPO step of the demo's size",
}


def by_cpu_seconds() -> list[str]:
    """Work done for a CPU second, whatever the number of processes, and what it takes of memory."""
    rows, cases = [], read_json(REPOSITORY / "docs" / "benchmarks.json")["cases"]
    for name, words in SHORT.items():
        sides = cases[name]["sides"]
        peer, ours = (
            min(
                (side for side in sides if side["library"] == library), key=lambda side: side["cpu"]
            )
            for library in ("peer", "ours")
        )
        fewer = f"{peer['cpu'] / ours['cpu']:.2f}"
        memory = [f"{side['mib'] / 1024:.1f}" for side in (peer, ours)]
        rows.append([words, f"{peer['cpu']:.3g}", f"{ours['cpu']:.3g}", fewer, *memory])
    titles = ["work", "CPU seconds, theirs", "ours", "theirs / ours", "GiB, theirs", "ours"]
    return markdown(titles, rows)


def real_model() -> str:
    """docs/real_model.md, from the recording of page 25."""
    found = read_json(REAL_MODEL)
    tables = {"real model": steered.table(found)}
    tables["real model, in short"] = part_of(
        tables["real model"],
        ("as published", "as published, best of 8", "GRPO", "LoRA"),
        ("seeds", "trained constraints", "held-out", "KL, nats"),
    )
    return page_with("docs/real_model.md", tables)


def part_of(table: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> list[str]:
    """These rows, by their first cell, and these columns beside it of a Markdown table."""
    titles, _, *cells = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in table)
    places = [0, *(titles.index(name) for name in columns)]
    kept = [[line[place] for place in places] for line in cells if line[0] in rows]
    return markdown([titles[place] for place in places], kept)


def pages_of_course() -> list[tuple[str, int, int]]:
    """(name, words of its texts, exercises) of each page."""
    found = []
    for page in sorted((REPOSITORY / "notebooks").glob("[0-9][0-9]_*.py")):
        source = page.read_text(encoding="utf-8")
        texts = re.findall(
            r"^# %% \[markdown\]\n(.*?)(?=^# %%|\Z)", source, re.DOTALL | re.MULTILINE
        )
        words = len(re.sub(r"^# ?", "", "".join(texts), flags=re.MULTILINE).split())
        asked = re.findall(r"^check(?:_answer)?\(", source, re.MULTILINE)
        found.append((page.stem, words, len(asked)))
    return found


AFTER = "**After this page you can** "  # what a page may say of itself in a paragraph


def topic_of(page: str) -> str:
    """What a page of the course says that one can do after it, or else its title."""
    source = (REPOSITORY / "notebooks" / f"{page}.py").read_text(encoding="utf-8")
    parts = re.findall(r"^# %% \[markdown\]\n((?:#.*\n)*)", source, re.MULTILINE)
    paragraphs = re.sub(r"^# ?", "", "".join(parts), flags=re.MULTILINE).split("\n\n")
    said = next((each.removeprefix(AFTER) for each in paragraphs if each.startswith(AFTER)), "")
    return " ".join((said or re.sub(r"^# (\d+\. )?", "", paragraphs[0])).split())


def course() -> str:
    """notebooks/README.md: what each page enables, or else its title, and its exercises."""
    pages = pages_of_course()
    rows = [[f"[{n[:2]}]({n}.ipynb)", topic_of(n), str(asked or "")] for n, _, asked in pages]
    words, exercises = sum(page[1] for page in pages), sum(page[2] for page in pages)
    rows.append(["all", f"about {words / 200 / 60:.0f} hours for the words", str(exercises)])
    titles = ["page", "what it is about, or what you can do after it", "exercises"]
    return page_with("notebooks/README.md", {"pages": markdown(titles, rows)})


def teaching() -> str:
    """notebooks/teaching/README.md: a page's minutes, its words at 200 a minute and 20 for an exercise."""
    rows = [
        [page, str(round(words / 200)), str(20 * asked), f"{(words / 200 + 20 * asked) / 60:.1f}"]
        for page, words, asked in pages_of_course()
    ]
    titles = ["page", "minutes to read", "minutes for exercises", "hours together"]
    return page_with("notebooks/teaching/README.md", {"minutes": markdown(titles, rows)})


def results() -> str:
    """docs/results.md: the demo's seeds."""
    tables = {"demo seeds": summary(read_json(KEPT)), "demo by seed": by_seed()}
    return page_with("docs/results.md", tables)


TABLES: dict[str, Callable[[], str]] = {
    "README.md": front_page,
    "rl/README.md": page_of_rl,
    "notebooks/README.md": course,
    "notebooks/teaching/README.md": teaching,
    "docs/demo_seeds.svg": picture,
    **{page: partial(measured, page) for page in MEASURED_PAGES},
    "docs/results.md": results,
    "docs/benchmarks.md": benchmarks,
    "docs/real_model.md": real_model,
}


@dataclasses.dataclass(frozen=True)
class TablesConfig:
    """Write the tables of pages: of engines, and of what was measured."""

    demo: Path | None = None
    """Keep the numbers of these demos first: folder of scripts/demo.py --seeds N."""


def main(config: TablesConfig) -> None:
    if config.demo is not None:
        lines = ",\n".join(json.dumps(row) for row in of_runs(config.demo))
        write_text(KEPT, f"[\n{lines}\n]\n")
    for name, text_of in TABLES.items():
        path, text = REPOSITORY / name, text_of()
        changed = not path.exists() or path.read_text(encoding="utf-8") != text
        path.write_text(text, encoding="utf-8")
        print(f"{name}: {'written' if changed else 'as it was'}")


if __name__ == "__main__":
    run_command(main, TablesConfig)
