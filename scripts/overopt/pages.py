"""docs/overoptimisation.json, its page and its figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path

from harness.files import display_path
from overopt import figures, results
from overopt.budget_page import into_study
from overopt.intervals import SURE
from overopt.law_page import law_text
from overopt.settings import Settings
from overopt.tables import COMMAND, NOT_RUN, Numbers, difference, surely, table, value_of

JSON, PAGE = "overoptimisation.json", "overoptimisation.md"


def draw(parts: Sequence[str], settings: Settings, root: Path, docs: Path) -> None:
    """Write the numbers of these parts, where runs are there, and everything drawn from numbers.

    Without the runs' folder the committed JSON stays as it is and the page is drawn from it.
    """
    path = docs / JSON
    numbers = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for part in parts:
        if found := results.collect(part, settings, root):
            numbers[part] = found
    if root.exists() or "progress" not in numbers:
        numbers["settings"] = results.rounded(settings.as_rows())
        numbers["progress"] = results.rounded(results.progress(settings, root), 2)
    docs.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(numbers, separators=(",", ":")) + "\n", encoding="utf-8")
    for part in parts:
        draw_figures(part, numbers, docs)
    (docs / PAGE).write_text(page(numbers), encoding="utf-8")
    if "budget" in parts:
        into_study(numbers, docs / "study.md")
    print(f"wrote {display_path(docs / PAGE)}, {JSON} and the figures")


def draw_figures(part: str, numbers: Numbers, docs: Path) -> None:
    """The figures of one part, where it has numbers."""
    if part not in numbers:
        return
    if part == "budget":
        figures.draw_differences(numbers, docs / "study_budget.png")
        for world in numbers["budget"]:
            figures.draw_budget(numbers, world, docs / f"study_budget_{world}.png")
        return
    draw_part = {"law": figures.draw_law, "cures": figures.draw_cures}[part]
    draw_part(numbers, docs / f"overoptimisation_{part}.png")
    if part == "law":
        figures.draw_price(numbers, docs / "overoptimisation.png")


# --- the page -------------------------------------------------------------------------------------

HEAD = """# The price of a proxy

Optimise a learned reward model hard enough and the true reward falls while the learned one rises. Here the
true reward is known exactly, so the fall can be measured, taken apart and fitted. This page is written by
`{command} --draw law cures budget` from [overoptimisation.json](overoptimisation.json), which holds every
run. The command without `--draw` makes the runs.

"""


def page(numbers: Numbers) -> str:
    """The whole of docs/overoptimisation.md."""
    parts: tuple[tuple[str, Callable[[Numbers], str]], ...] = (
        ("law", law_text), ("cures", cures_text),
    )  # fmt: skip
    text = HEAD.format(command=COMMAND) + progress_text(numbers) + method_text(numbers)
    for name, write in parts:
        text += TITLES[name]
        text += write(numbers) if name in numbers else NOT_RUN.format(part=name)
    return text + ELSEWHERE


TITLES = {
    "law": "## 1. The law on a laptop\n\n",
    "cures": "## 2. What helps, at equal KL\n\n",
}
ELSEWHERE = """## 3. Every engine on one budget

Every engine of this repository on the same sampled tokens, the same CPU time and at the same distance:
[study.md](study.md#one-budget).
"""


def progress_text(numbers: Numbers) -> str:
    """What has not been run yet, and what runs it."""
    if all(row["done"] == row["jobs"] for row in numbers["progress"].values()):
        return ""
    rows = []
    for part, row in numbers["progress"].items():
        whole = row["done"] == row["jobs"]
        rest = "all of it is done" if whole else f"`{COMMAND} --parts {part}`"
        done = f"{row['done']} of {row['jobs']}"
        rows.append((part, done, row["cpu_hours"], row["cpu_hours_left"], rest))
    left = sum(row["cpu_hours_left"] for row in numbers["progress"].values())
    head = (
        "part",
        "jobs done",
        "CPU hours spent",
        "CPU hours left (forecast)",
        "what does the rest",
    )
    return (
        "## What has been run\n\n"
        + table(head, rows)
        + "Parts share their starts, so a job of two parts is counted in both. The forecast lets every "
        f"run go on to its last step: about {left / 2:.1f} hours on 2 cores. Many runs end earlier, when "
        "gold has turned. A piece takes at most 90 minutes, keeps what is finished, and goes on there.\n\n"
    )


def method_text(numbers: Numbers) -> str:
    """How it is measured; the numbers are those of the settings."""
    s = numbers["settings"]
    words = {
        **s,
        "batch": f"{s['prompts_per_step']} prompts x {s['group_size']} answers",
        "bank": f"{s['bank_prompts']} other test prompts x {s['bank_answers']:,} answers",
        "asked": 3 * s["measure_every"],
    }
    return METHOD.format(**words)


METHOD = """## How it is measured

- **Start.** Every start trains its own base model (4 layers, width 128). It samples its own
  comparisons at temperature 1, {responses_per_prompt} answers to a prompt, every two of them compared
  by the world's noisy annotator. Fewer labels are the first of the same list.
- **Reward models.** Shapes are layers x width; the smaller ones have smaller base models of their
  own. One epoch, or up to {most_epochs} where that is fewer than {fewest_reward_steps} steps.
- **Optimisation.** {batch} a step, learning rate {lr:g}, no KL penalty, no early stop.
- **Stop rule.** Every {measure_every} steps the policy answers the same {prompts} test prompts with
  the same random numbers. Gold has turned when the mean of {smooth} measurements in a row lies
  {fall:.2f} below the best such mean. This is asked every {asked} steps; a run ends
  there, or after {most_steps} steps. Gold decides the end of a run and nothing else.
- **Best-of-n.** One bank per start: {bank}. The expected gold of the best of n is
  the mean over all subsets. Its distance is log n - (n - 1)/n, so the best of 512 is only 5.2 nats
  away.
- **Intervals** are 95% bootstraps over starts, seeds within starts, and prompts, which all runs
  share.

"""


def cures_text(numbers: Numbers) -> str:
    """Gold at equal KL, the differences, and the alarm."""
    cures, s = numbers["cures"], numbers["settings"]
    size, labels = s["cure_cell"]
    done = {row["start"] for row in cures["runs"]}
    few = ""
    if len(done) < len(s["cure_starts"]):
        few = (
            f"{len(done)} of {len(s['cure_starts'])} starts have been run. With one start the intervals "
            "are over prompts alone: that is no finding about starts in general.\n\n"
        )
    return (
        "![each mitigation beside the baseline](overoptimisation_cures.png)\n\n"
        f"The baseline, `patient`, is {size} on {labels:,} labels. Gold is taken where a run's KL first "
        "reaches a distance, linear between two measurements. Differences to the baseline are paired by "
        "start and prompt, where at least two starts have both; p is corrected over the mitigations of "
        "one distance.\n\n"
        + CURE_WORDS.format(
            more=s["labels"][s["labels"].index(labels) + 1],
            new=labels // 3,
            every=s["refresh_every"],
            members=s["members"],
            wide=s["wide_temperature"],
        )
        + few
        + "".join(
            map(better_sentence, dict.fromkeys(r["kl"] for r in cures["table"]), repeat(cures))
        )
        + nearest_sentence(cures)
        + "\n"
        + cure_table(cures)
        + alarm_table(cures["alarms"])
    )


def cure_table(cures: Numbers) -> str:
    """The baseline's gold, and below it every mitigation's difference, a distance a column."""
    found = {(row["cure"], row["kl"]): row for row in cures["table"]}
    distances = dict.fromkeys(row["kl"] for row in cures["table"])
    rows = [
        (cure, *(cure_cell(found.get((cure, distance), {})) for distance in distances))
        for cure in dict.fromkeys(row["cure"] for row in cures["table"])
    ]
    head = ("mitigation", *(f"{distance:g} nats" for distance in distances))
    lead = (
        "First row: the baseline's gold. Below: differences to it (95%), p where it is below 1, and the "
        "runs that get so far where some do not.\n\n"
    )
    return lead + table(head, rows)


def cure_cell(row: Numbers) -> str:
    """The baseline's gold or a difference to it."""
    if not row:
        return "-"
    shown, p = difference(row)
    if row["cure"] == "patient":
        shown = value_of(row)
    missing = f" ({row['reached']} of {row['of']})" if row["reached"] < row["of"] else ""
    return shown + (f", {p}" if p not in ("-", "1.000") else "") + missing


CURE_WORDS = """- `more_labels`: {more:,} labels.
- `own_answers`: every {every} steps the reward model is trained again, on {new:,} comparisons of the
  policy's own answers ([grpo_iterative_engine.py](../rl/grpo_iterative_engine.py)).
- `wide_pairs`: as many labels; half of the compared answers are sampled at temperature {wide:g}.
- `ensemble_mean`, `ensemble_min`, `ensemble_uwo`: {members} reward models with their own seeds; the reward
  is their mean, the lowest, or the mean less the variance.
- `kl_0.02`, `kl_0.1`: a KL penalty of this weight.

"""


def better_sentence(distance: float, cures: Numbers) -> str:
    """Which mitigations differ from the baseline at one distance, after the correction."""
    told = [r for r in cures["table"] if r["kl"] == distance and "difference" in r]
    alone = [r for r in told if r["in_one_start"]["low"] > 0 or r["in_one_start"]["high"] < 0]
    found = [
        ", ".join(f"`{r['cure']}`" for r in rows)
        + f" {'is' if len(rows) == 1 else 'are'} significantly {word}"
        for word, rows in zip(("better", "worse"), surely(told), strict=True)
        if rows
    ]
    text = "; ".join(found) if found else "no mitigation differs significantly from the baseline"
    return (
        f"- At {distance:g} nats {text} (p < {SURE:g}, corrected). Within start 0, {len(alone)} of "
        f"{len(told)} intervals over prompts exclude 0.\n"
    )


def nearest_sentence(cures: Numbers) -> str:
    """The difference least likely to be chance, among cures whose runs all got so far."""
    told = [r for r in cures["table"] if "difference" in r and r["reached"] == r["of"]]
    if not told:
        return ""
    nearest = min(told, key=lambda r: (r["difference"]["holm"], r["difference"]["p"]))
    shown, p = difference(nearest)
    name = f"`{nearest['cure']}` at {nearest['kl']:g} nats"
    return f"- Least likely to be chance: {name}, {shown}, p = {p}.\n"


def alarm_table(alarms: Sequence[Numbers]) -> str:
    """What the doctor's alarm would have been worth in each run of the baseline."""
    rows = []
    for row in alarms:
        when, there = "never", "-"
        if row["step"] is not None:
            when, there = f"{row['step']} ({row['kl']:.1f})", f"{row['gold']:.3f}"
        rows.append((row["start"], when, there, f"{row['best']:.3f}", f"{row['end']:.3f}"))
    head = ("start", "proxy suspected at step (nats)", "gold there", "best gold", "gold at the end")
    lead = (
        "When `rl.doctor` suspects the proxy in the baseline's runs, from numbers other than gold. Best "
        "gold is the top of its running mean.\n\n"
    )
    return lead + table(head, rows) if rows else ""
