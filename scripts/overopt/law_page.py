"""The law's part of docs/overoptimisation.md: every number and every sentence comes from the JSON."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from overopt.figures import FARTHEST
from overopt.fits import RISE, TREND
from overopt.runs import has_turned
from overopt.tables import Numbers, between, repeats_text, table

CELL = ("reward model", "labels", "engine")
TERMS = {
    "sent": "sentiment", "topic": "topic", "polite": "politeness", "form": "form",
    "qual": "repetition",
}  # fmt: skip
FIT_KINDS = {"grpo": "GRPO", "ppo": "PPO", "best_of_n": "best of n"}
FIT_COLUMNS = ("alpha", "beta", "rmse", "top")


GAO = (
    "Gao et al., with proxies of 3 million to 3 billion weights, also found that best-of-n needs far less "
    "distance than RL for the same gold, that their form misses the points near the start, and that a KL "
    "penalty does not move the curve.\n\n"
)


def law_text(numbers: Numbers) -> str:
    """What is seen, the cells, the fits, what was exploited, and samples."""
    law, settings = numbers["law"], numbers["settings"]
    return (
        "![gold against distance, and peak gold by labels and size](overoptimisation.png)\n\n"
        "Left: median gold, over starts, when a run first reaches that distance. Right: GRPO's peak gold "
        "and, dashed, the gold of the largest best-of-n. All cells:\n\n"
        "![gold against the distance from the start](overoptimisation_law.png)\n\n"
        "The proxy is rescaled to begin at gold's start and end at 1, so only its shape can be read. "
        f"The panels end at d = {FARTHEST:g}; {beyond(law)} of {len(law['cells'])} runs go "
        "further.\n\n"
        + seen(law, settings)
        + GAO
        + cell_table(law)
        + repeats_text(law.get("repeats", ()), {"best gold": "best gold"})
        + fit_table(law)
        + trend_text(law)
        + fall_table(law)
        + samples(law)
    )


def beyond(law: Numbers) -> int:
    """How many runs leave the panels."""
    return sum(max(cell["points"]["kl"]) > FARTHEST**2 for cell in law["cells"])


def groups(law: Numbers) -> Iterator[tuple[tuple[str, str, str], list[Numbers]]]:
    """The runs of every cell and engine, with the first columns of their row."""
    keys = dict.fromkeys((c["size"], c["labels"], c["engine"]) for c in law["cells"])
    for size, labels, engine in keys:
        own = [
            cell for cell in law["cells"]
            if (cell["size"], cell["labels"], cell["engine"]) == (size, labels, engine)
        ]  # fmt: skip
        yield (size, f"{labels:,}", engine), own


# --- what is seen ---------------------------------------------------------------------------------


def seen(law: Numbers, settings: Numbers) -> str:
    """Sentences that count: which runs turned, where best-of-n did, what more labels buy."""
    lines = [
        turned_sentence(law, settings), *best_of_n_sentences(law), *label_sentences(law),
        *exploited_sentence(law),
    ]  # fmt: skip
    return "".join(f"- {line}\n" for line in lines) + "\n"


def turned(cell: Numbers, settings: Numbers) -> bool:
    """Whether a run was ended by the stop rule."""
    return has_turned(cell["points"]["gold"], settings["fall"], settings["smooth"])


def turned_sentence(law: Numbers, settings: Numbers) -> str:
    """How many runs ended because gold had turned, and which did not."""
    whole = len(law["cells"])
    others = ", ".join(
        f"{cell['engine']} against {cell['size']} on {cell['labels']:,} labels, start {cell['start']}"
        for cell in law["cells"]
        if not turned(cell, settings)
    )
    done = sum(turned(cell, settings) for cell in law["cells"])
    rest = f" The others reached the last step: {others}." if others else ""
    return f"Gold has turned in {done} of {whole} runs.{rest}"


def best_of_n_sentences(law: Numbers) -> Iterator[str]:
    """Where the gold of the best of n falls again before the largest n."""
    banks = [(cell, cell["best_of_n"]) for cell in law["cells"] if "best_of_n" in cell]
    if not banks:
        return
    fell = [(c, b) for c, b in banks if max(b["gold"]) - b["gold"][-1] > RISE]
    most, kl = banks[0][1]["n"][-1], banks[0][1]["kl"][-1]
    yield (
        f"Best-of-n ends at n = {most}, {kl:.1f} nats away. There gold is more than {RISE:g} below its "
        f"own highest value in {len(fell)} of {len(banks)} reward models, and in the others it has "
        "not turned."
    )
    gains = [
        (b["gold"][-1] - b["gold"][0], c["points"]["gold"][c["best"]] - c["points"]["gold"][0])
        for c, b in banks
    ]
    ahead = sum(chosen > trained for chosen, trained in gains)
    yield (
        f"In {ahead} of {len(gains)} runs the best of {most} gains more gold over the base than GRPO does "
        "at its peak, each on its own test prompts."
    )


def label_sentences(law: Numbers) -> Iterator[str]:
    """The best gold that GRPO passes through, by labels and by size, over what all of them share."""
    runs = [cell for cell in law["cells"] if cell["engine"] == "grpo"]
    for key, other, unit in (
        ("labels", "size", "labels"),
        ("size", "labels", "size of the reward model"),
    ):
        best: dict[object, dict[tuple[object, int], float]] = {}
        for cell in runs:
            gold = cell["points"]["gold"][cell["best"]]
            best.setdefault(cell[key], {})[cell[other], cell["start"]] = gold
        shared = set.intersection(*(set(values) for values in best.values()))
        if len(best) < 2 or not shared:
            continue
        means = {
            f"{value:,}" if isinstance(value, int) else value:
            statistics.fmean(gold for each, gold in values.items() if each in shared)
            for value, values in best.items()
        }  # fmt: skip
        shown = ", ".join(f"{mean:.3f} ({value})" for value, mean in means.items())
        yield f"Peak gold, mean over GRPO's runs, by {unit}: {shown}."


def exploited_sentence(law: Numbers) -> Iterator[str]:
    """Which term of gold fell most after the best, in how many runs."""
    falls = [cell["fall"] for cell in law["cells"] if "fall" in cell]
    if not falls:
        return
    most = Counter(min(fall, key=fall.__getitem__) for fall in falls)
    shown = ", ".join(f"{TERMS[name]} in {count}" for name, count in most.most_common())
    yield f"The term of gold that falls most after the best is {shown} of {len(falls)} runs."


# --- tables ---------------------------------------------------------------------------------------


def spread(values: Sequence[float], digits: int) -> str:
    """The mean, and the lowest and highest where there are several."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def cell_table(law: Numbers) -> str:
    """Per cell and engine: accuracy, best gold, end, best-of-n, each a mean over the starts."""
    head = (
        *CELL, "orders held-out pairs like gold", "best gold", "at KL",
        "gold at the end", "gold of the largest best-of-n",
    )  # fmt: skip
    rows = []
    for names, cells in groups(law):
        at = [(cell["points"], cell["best"]) for cell in cells]
        accuracy = [c["gold_accuracy"] for c in cells if c["gold_accuracy"] is not None]
        banks = [cell["best_of_n"]["gold"][-1] for cell in cells if "best_of_n" in cell]
        rows.append(
            (
                *names, spread(accuracy, 3) if accuracy else "-",
                spread([points["gold"][best] for points, best in at], 3),
                spread([points["kl"][best] for points, best in at], 1),
                spread([points["gold"][-1] for points, _ in at], 3),
                spread(banks, 3) if banks else "-",
            )
        )  # fmt: skip
    starts = len({cell["start"] for cell in law["cells"]})
    lead = f"Means over {starts} start{'s' * (starts > 1)} (lowest to highest):\n\n"
    return lead + table(head, rows)


def fit_table(law: Numbers) -> str:
    """alpha, beta, their intervals, rmse, and where the form and the points are highest."""
    if not law["fits"]:
        return ""
    kinds = dict.fromkeys(fit["kind"] for fit in law["fits"])
    thirds = "; ".join(f"{mean_residuals(law, kind)} ({FIT_KINDS[kind]})" for kind in kinds)
    text = (
        "Fits of the gain of gold over the start: R = d (alpha - beta log d) for RL, d (alpha - beta d) "
        "for best-of-n ([arXiv:2210.10760](https://arxiv.org/abs/2210.10760)), with d = sqrt(KL). "
        f"Mean residuals of the nearest, middle and farthest third of the points are {thirds}; a form that "
        "fits has three zeros. Top: the d at which the form, and the runs, are highest.\n\n"
    )
    alone = any(fit["starts"] == 1 for fit in law["fits"])
    note = "With one start the intervals are over prompts alone.\n\n" if alone else ""
    tables = [fits_of(law, own) for own in (("grpo", "best_of_n"), ("ppo",)) if {*own} & {*kinds}]
    return text + "".join(tables) + note


def fits_of(law: Numbers, kinds: Sequence[str]) -> str:
    """A row for every reward model, side by side the fits of these kinds."""
    found = {(fit["size"], fit["labels"], fit["kind"]): fit for fit in law["fits"]}
    columns = [f"{FIT_KINDS[kind]}: {what}" for kind in kinds for what in FIT_COLUMNS]
    rows = []
    for size, labels in dict.fromkeys(cell[:2] for cell in found if cell[2] in kinds):
        fits = [found.get((size, labels, kind)) for kind in kinds]
        cells = [cell for fit in fits for cell in fit_cells(law, fit)]
        rows.append((size, f"{labels:,}", *cells))
    return table(("reward model", "labels", *columns), rows)


def fit_cells(law: Numbers, fit: Numbers | None) -> list[str]:
    """The cells of one fit."""
    if fit is None:
        return ["-"] * len(FIT_COLUMNS)
    top = "never" if fit["peak_d"] is None else f"{fit['peak_d']:.2f}"
    return [
        f"{fit['alpha']:.3f} {between(fit['alpha_interval'])}",
        f"{fit['beta']:.3f} {between(fit['beta_interval'])}",
        f"{fit['rmse']:.3f}",
        f"{top}, {measured_top(law, fit)}",
    ]


def mean_residuals(law: Numbers, kind: str) -> str:
    """The residuals by thirds, each a mean over the fits of one kind."""
    own = [fit["residual_thirds"] for fit in law["fits"] if fit["kind"] == kind]
    return ", ".join(f"{statistics.fmean(third):+.3f}" for third in zip(*own, strict=True))


def measured_top(law: Numbers, fit: Numbers) -> str:
    """The mean d at which the runs of a fit were best."""
    same = [c for c in law["cells"] if (c["size"], c["labels"]) == (fit["size"], fit["labels"])]
    if fit["kind"] == "best_of_n":
        banks = [cell["best_of_n"] for cell in same if "best_of_n" in cell]
        tops = [bank["kl"][bank["gold"].index(max(bank["gold"]))] for bank in banks]
    else:
        tops = [c["points"]["kl"][c["best"]] for c in same if c["engine"] == fit["kind"]]
    return f"{statistics.fmean(math.sqrt(max(kl, 0)) for kl in tops):.2f}" if tops else "-"


def trend_text(law: Numbers) -> str:
    """How the fitted numbers move with labels and size, where there are enough cells."""
    if not law["trends"]:
        return (
            "How alpha and beta move with labels and with size needs three different cells or more: "
            "not to be seen yet.\n\n"
        )
    rows = [
        (
            r["of"], FIT_KINDS[r["kind"]], r["over"], f"{r['slope']:+.4f}", f"{r['error']:.4f}",
            "yes" if abs(r["slope"]) > TREND * r["error"] else "no",
        )
        for r in law["trends"]
    ]  # fmt: skip
    head = ("fitted", "of", "per e-fold more", "slope", "standard error", "a trend")
    return (
        "How alpha and beta move: least-squares slopes over the cells, one point a cell. A trend is a "
        f"slope more than {TREND:g} standard errors from 0. That is {len(rows)} tests without a "
        "correction for their number, so slopes below about 3 standard errors are hints.\n\n"
        + table(head, rows)
    )


def fall_table(law: Numbers) -> str:
    """Which term of the gold reward fell between the best measurement and the end, mean of runs."""
    rows = []
    for engine, labels in sorted({(c["engine"], c["labels"]) for c in law["cells"]}):
        falls = [
            list(cell["fall"].values()) for cell in law["cells"]
            if "fall" in cell and (cell["labels"], cell["engine"]) == (labels, engine)
        ]  # fmt: skip
        if falls:
            parts = [statistics.fmean(part) for part in zip(*falls, strict=True)]
            rows.append((engine, f"{labels:,}", *(f"{x:+.3f}" for x in (*parts, sum(parts)))))
    return (
        "What was exploited: the change of gold from its best to the end, split exactly over its terms "
        "(`scripts/overopt/terms.py`), mean over sizes and starts.\n\n"
        + table(("engine", "labels", *TERMS.values(), "sum"), rows)
    )


def samples(law: Numbers) -> str:
    """Answers to a few prompts at the start, at the best and at the end of the first run."""
    cell = law["cells"][0]
    rows = [
        (
            row["step"], row["prompt"].strip(),
            re.sub(r"\s+", " ", row["response"].replace("|", "/")).strip(),
            f"{row['reward']:.2f}", f"{row['gold']:.2f}",
        )
        for row in sorted(cell["texts"], key=lambda row: (row["prompt"], row["step"]))
    ]  # fmt: skip
    lead = (
        f"Answers of the run against {cell['size']} on {cell['labels']:,} labels, start {cell['start']}, "
        "at the start, the best and the end:\n\n"
    )
    return lead + table(("step", "prompt", "answer", "proxy", "gold"), rows)
