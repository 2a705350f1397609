"""docs/overoptimisation.json, its page and its figures.

The page is the template overoptimisation.md.jinja: what its sentences and tables need is worked out here.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.bootstrap import SIGNIFICANT
from studies.pages import rendered, rounded

from harness.files import display_path
from overopt import figures, results
from overopt.cells import COMMAND, Numbers, above_and_below, difference, significant, value_of
from overopt.fits import RISE
from overopt.runs import has_turned
from overopt.settings import Settings

JSON, PAGE = "overoptimisation.json", "overoptimisation.md"
TEMPLATE = Path(__file__).with_name("overoptimisation.md.jinja")
TERMS = {
    "sent": "sentiment", "topic": "topic", "polite": "politeness", "form": "form",
    "qual": "repetition",
}  # fmt: skip
FIT_KINDS = {"grpo": "GRPO", "ppo": "PPO", "best_of_n": "best of n"}


def draw(parts: Sequence[str], settings: Settings, root: Path, docs: Path) -> None:
    """Write the numbers of these parts, where runs are there, and everything drawn from numbers.

    Without the runs' folder the committed JSON stays as it is and the page is drawn from it.
    """
    path = docs / JSON
    numbers = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if root.exists() or "progress" not in numbers:
        numbers["settings"] = rounded(vars(settings))
        numbers["progress"] = rounded(results.progress(settings, root, numbers), 2)
    for part in parts:
        if found := results.collect(part, settings, root):
            numbers[part] = found
    docs.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(numbers, separators=(",", ":")) + "\n", encoding="utf-8")
    for part in parts:
        draw_figures(part, numbers, docs)
    (docs / PAGE).write_text(page(numbers), encoding="utf-8")
    print(f"wrote {display_path(docs / PAGE)}, {JSON} and the figures")


def draw_figures(part: str, numbers: Numbers, docs: Path) -> None:
    if part not in numbers:
        return
    if part == "law":
        figures.draw_law(numbers, docs / "overoptimisation_law.png")
        figures.draw_price(numbers, docs / "overoptimisation.png")
    else:
        figures.draw_cures(numbers, docs / "overoptimisation_cures.png")


def page(numbers: Numbers) -> str:
    shown = dict(law=None, cures=None) | dict(numbers)
    shown["unfinished"] = any(row["done"] < row["jobs"] for row in numbers["progress"].values())
    if "law" in numbers:
        shown |= about_law(numbers["law"], numbers["settings"])
    if "cures" in numbers:
        shown |= about_cures(numbers["cures"], numbers["settings"])
    return rendered(
        TEMPLATE, command=COMMAND, sure=SIGNIFICANT, rise=RISE, kinds=FIT_KINDS,
        farthest=figures.FARTHEST, difference=difference, value_of=value_of, **shown,
    )  # fmt: skip


# --- the law --------------------------------------------------------------------------------------


def about_law(law: Numbers, settings: Numbers) -> dict[str, Any]:
    """What the page says of the law beside the numbers themselves."""
    cells = law["cells"]

    def turned(cell: Numbers) -> bool:
        return has_turned(cell["points"]["gold"], settings["fall"], settings["smooth"])

    falls = [cell["fall"] for cell in cells if "fall" in cell]
    fallen = Counter(TERMS[min(fall, key=fall.__getitem__)] for fall in falls)
    return {
        "grid": grid(cells),
        "beyond": sum(max(cell["points"]["kl"]) > figures.FARTHEST**2 for cell in cells),
        "turned": sum(map(turned, cells)),
        "others": ", ".join(
            f"{cell['engine']} against {cell['size']} on {cell['labels']:,} labels, start {cell['start']}"
            for cell in cells
            if not turned(cell)
        ),
        "law_starts": len({cell["start"] for cell in cells}),
        "residuals": mean_residuals(law["fits"]),
        "banks": about_best_of_n(cells), "best_gold": best_gold(cells),
        "exploited": {"of": len(falls), "most": fallen.most_common()},
        "falls": mean_falls(cells),
        "text_prompt": sorted({row["prompt"] for row in cells[0]["texts"]})[-2:][0],
        "at_best": lambda rows, name: [r["points"][name][r["best"]] for r in rows],
        "at_end": lambda rows, name: [r["points"][name][-1] for r in rows],
        "one_line": lambda text: re.sub(r"\s+", " ", text.replace("|", "/")).strip(),
    }  # fmt: skip


def grid(cells: Sequence[Numbers]) -> list[tuple[str, str, dict[int, list[Numbers]]]]:
    """Engine, size of the reward model, and the runs of each number of labels."""
    found: dict[tuple[str, str], dict[int, list[Numbers]]] = {}
    for cell in cells:
        own = found.setdefault((cell["engine"], cell["size"]), {})
        own.setdefault(cell["labels"], []).append(cell)
    return [(*names, own) for names, own in sorted(found.items())]


def about_best_of_n(cells: Sequence[Numbers]) -> dict[str, Any]:
    """Where the gold of the best of n falls again, and how often it gains more than GRPO does."""
    found = [(cell, cell["best_of_n"]) for cell in cells if "best_of_n" in cell]
    if not found:
        return {"of": 0}
    last = found[0][1]
    return {
        "of": len(found), "most": last["n"][-1], "kl": last["kl"][-1],
        "fell": sum(max(bank["gold"]) - bank["gold"][-1] > RISE for _, bank in found),
        "ahead": sum(
            bank["gold"][-1] - bank["gold"][0]
            > cell["points"]["gold"][cell["best"]] - cell["points"]["gold"][0]
            for cell, bank in found
        ),
    }  # fmt: skip


def best_gold(cells: Sequence[Numbers]) -> dict[str, dict[str, float]]:
    """The best gold that GRPO passes through, by labels and by size, over what all of them share."""
    found = {}
    for key, other, unit in (
        ("labels", "size", "labels"),
        ("size", "labels", "size of the reward model"),
    ):
        best: dict[Any, dict[tuple[Any, int], float]] = {}
        for cell in cells:
            if cell["engine"] == "grpo":
                gold = cell["points"]["gold"][cell["best"]]
                best.setdefault(cell[key], {})[cell[other], cell["start"]] = gold
        shared = set.intersection(*(set(values) for values in best.values())) if best else set()
        if len(best) > 1 and shared:
            found[unit] = {
                f"{value:,}" if isinstance(value, int) else value:
                statistics.fmean(gold for each, gold in values.items() if each in shared)
                for value, values in best.items()
            }  # fmt: skip
    return found


def mean_falls(cells: Sequence[Numbers]) -> list[tuple[str, list[float]]]:
    """Which term of GRPO's gold fell between the best measurement and the end, mean of sizes and starts."""
    rows = []
    for labels in sorted({cell["labels"] for cell in cells}):
        own = [c for c in cells if (c["engine"], c["labels"]) == ("grpo", labels)]
        falls = [list(cell["fall"].values()) for cell in own if "fall" in cell]
        if falls:
            rows.append(
                (f"{labels:,}", [statistics.fmean(part) for part in zip(*falls, strict=True)])
            )
    return rows


def mean_residuals(fits: Sequence[Numbers]) -> dict[str, list[float]]:
    """The residuals by thirds, each a mean over the fits of one kind."""
    own: dict[str, list[Sequence[float]]] = {}
    for fit in fits:
        own.setdefault(fit["kind"], []).append(fit["residual_thirds"])
    return {
        kind: [statistics.fmean(third) for third in zip(*rows, strict=True)]
        for kind, rows in own.items()
    }


# --- the cures ------------------------------------------------------------------------------------


def about_cures(cures: Numbers, settings: Numbers) -> dict[str, Any]:
    """What the page says of the cures beside the numbers themselves."""
    labels = settings["cure_cell"][1]
    told = [row for row in cures["table"] if "difference" in row]
    whole = [row for row in told if row["reached"] == row["of"]]
    return {
        "labels": labels, "more_labels": settings["labels"][settings["labels"].index(labels) + 1],
        "starts": len({row["start"] for row in cures["runs"]}), "cure_rows": cure_rows(cures),
        "distances": [
            at_distance(kl, [row for row in told if row["kl"] == kl])
            for kl in dict.fromkeys(row["kl"] for row in cures["table"])
        ],
        # The difference least likely to be chance, among cures whose runs all got so far.
        "nearest": min(
            (row for row in whole if "p" in row["difference"]),
            key=lambda r: (r["difference"]["holm"], r["difference"]["p"]), default=None,
        ),
    }  # fmt: skip


def cure_rows(cures: Numbers) -> list[tuple[str, list[str]]]:
    """The baseline's gold, and below it every mitigation's difference, a distance a column."""
    found = {(row["cure"], row["kl"]): row for row in cures["table"]}
    distances = dict.fromkeys(row["kl"] for row in cures["table"])
    return [
        (cure, [cure_cell(found.get((cure, distance), {})) for distance in distances])
        for cure in dict.fromkeys(row["cure"] for row in cures["table"])
    ]


def cure_cell(row: Numbers) -> str:
    if not row:
        return "-"
    shown, p = difference(row)
    if row["cure"] == "patient":
        shown = value_of(row)
    missing = f" ({row['reached']} of {row['of']})" if row["reached"] < row["of"] else ""
    return shown + (f", {p}" if p not in ("-", "1.000") else "") + missing


def at_distance(kl: float, told: Iterable[Numbers]) -> Mapping[str, Any]:
    """Which mitigations differ from the baseline at one distance, after the correction."""
    found = [
        ", ".join(f"`{row['cure']}`" for row in rows)
        + f" {'is' if len(rows) == 1 else 'are'} significantly {word}"
        for word, rows in zip(
            ("better", "worse"), above_and_below(filter(significant, told)), strict=True
        )
        if rows
    ]
    said = "; ".join(found) if found else "no mitigation differs significantly from the baseline"
    return {"kl": kl, "at": f"{kl:g}", "sure": said}
