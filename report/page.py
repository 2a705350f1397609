"""report.html: what a run did, on one page that needs no server and no network.

It is made from files of the run folder: config.json, metrics.jsonl, report.json, samples.jsonl,
test_answers.jsonl and tokens.jsonl. matplotlib draws the curves; docs/metrics.md says what they are.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from harness.files import write_text
from harness.paths import ANSWERS, REPORT, REPOSITORY, TOKENS
from report.doctor import RULES, Run, examine, lines, read_run
from report.style import COLOURS, SERIES
from report.tokens import TokenView, finite, render
from report.words import MEASURED, base_of, engine_in_words, in_words

SVG: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "report", "font.size": 8, "axes.spines.top": False,
    "axes.spines.right": False,
}  # fmt: skip
POINTS = 400  # of one curve; more would not be seen
ENDS = ("before", "after")  # of training, in report.json
SAMPLES, PANELS = 6, 12  # at first sight
# Several runs over each other: Okabe and Ito 2008, without their meanings. One run is a policy's.
PALETTE = (COLOURS["policy"], "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
VALIDATION = SERIES[0]
LEADING = (
    "reward", "gold", "accuracy", "margin", "kl", "kl_per_token", "reverse_kl", "entropy",
    "response_length", "eos_rate", "solve_rate", "explained_variance", "value_loss", "loss", "grad_norm",
    "ratio_error_at_start", "zero_spread_groups", "clip_high_fraction", "clip_low_fraction",
    "approx_kl",
)  # fmt: skip
HIDDEN = {"step", "gold_error", "iteration"}
# The healthy ranges of docs/metrics.md that are numbers.
HEALTHY = {
    "zero_spread_groups": (0.0, 0.5), "clip_high_fraction": (0.0, 0.1), "clip_low_fraction": (0.0, 0.1),
    "approx_kl": (0.0, 0.01), "ratio_error_at_start": (0.0, 0.0001), "rule_errors": (0.0, 0.0),
    "preference_accuracy": (0.5, 0.7), "sampling_rounds": (1.0, 3.0),
}  # fmt: skip
# From 0 to 1, by how their names end.
SHARES = ("_rate", "_fraction", "accuracy", "gold", "zero_spread_groups", "distinct_responses")
# Flags that say where and how a run is run; no difference between two experiments.
PLACES = ("out", "resume", "device", "ranks")


# The curves ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A metric of a run against its steps."""

    name: str  # beside its ends, "" for what the panel's title says
    points: Sequence[tuple[float, float]]  # step and value, NaN for what is no finite number
    dots: bool  # measured on other prompts or text
    colour: str

    @property
    def values(self) -> list[float]:
        """The finite ones."""
        return [value for _, value in self.points if math.isfinite(value)]

    @property
    def ends(self) -> str:
        """The first and the last value, in words."""
        ends = self.values[:1] + self.values[1:][-1:]
        least = 1e-6 * max(map(abs, self.values), default=0.0)  # below it a number is rounding
        said = " → ".join(shown(end if abs(end) > least else 0.0) for end in ends)
        return f"{self.name}: {said}" if self.name else said


def panels_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One panel per metric; the validations of a metric are drawn over it. What looks like 0 is last."""
    bases = {base_of(key) for run in runs for row in run.rows for key in row} - HIDDEN
    order = {name: i for i, name in enumerate(LEADING)}
    panels = []
    with matplotlib.rc_context(SVG):
        figure = Figure(figsize=(4.4, 2.1))  # for all: new axes take twice as long as a panel
        axis = figure.add_axes((0.15, 0.19, 0.83, 0.71), xlabel="step")
        for base in sorted(
            bases, key=lambda base: (order.get(base.split("/")[0], len(order)), base)
        ):
            if (curves := curves_of(base, runs)) and not base.startswith("seconds/"):
                ends = "; ".join(curve.ends for curve in curves)
                least = 0.005 if base.endswith(SHARES) else 0
                zero = all(abs(value) <= least for curve in curves for _, value in curve.points)
                svg = drawing(base, curves, axis)
                words = {"key": base, "title": in_words(base), "ends": ends}
                panels.append({**words, "svg": svg, "zero": zero})
    return sorted(panels, key=lambda panel: panel["zero"])


def curves_of(base: str, runs: Sequence[Run]) -> list[Curve]:
    """A metric of every run, on its own prompts or text and on others."""
    curves = []
    for i, run in enumerate(runs):
        own, of_run = PALETTE[i % len(PALETTE)], [str(i + 1)] if len(runs) > 1 else []
        for prefix, measured in {"": "", **MEASURED}.items():
            if points := points_of(f"{prefix}{base}", run):
                colour = VALIDATION if prefix and len(runs) == 1 else own
                name = ", ".join(filter(None, [*of_run, measured]))
                curves.append(Curve(name, points, bool(prefix), colour))
        start = flat(run.results).get("before/gold")
        if base == "gold" and start is not None:  # no step has measured it
            name = ", ".join([*of_run, "before training, on test prompts"])
            curves.append(Curve(name, [(0.0, start)], True, own))
    return curves


def points_of(key: str, run: Run) -> list[tuple[float, float]]:
    """The numbers logged under a key, each with its step."""
    rows = [(finite(row.get("step")), row.get(key)) for row in run.rows]
    numbers = [(s, finite(v)) for s, v in rows if s is not None and isinstance(v, (int, float))]
    points = [(step, math.nan if value is None else value) for step, value in numbers]
    return points[:: max(len(points) // POINTS, 1)]


def drawing(base: str, curves: Sequence[Curve], axis: Any) -> str:
    """A panel as an SVG element. Green is the healthy range; a share has the axis from 0 to 1."""
    share = base.endswith(SHARES)
    values = [value for curve in curves for value in curve.values]
    low, high = (0.0, 1.0) if share else (min(values, default=0.0), max(values, default=1.0))
    margin = (high - low or abs(high) or 1.0) * (0.02 if share else 0.08)
    axis.set_ylim(low - margin, high + margin)
    if base in HEALTHY:
        axis.axhspan(*HEALTHY[base], color="#009e73", alpha=0.13)
    for curve in curves:
        draw(curve, axis)
    axis.relim()
    axis.autoscale_view(scaley=False)
    made = io.StringIO()
    axis.figure.savefig(made, format="svg", transparent=True, metadata={"Date": None})
    for drawn in (*axis.lines, *axis.patches):
        drawn.remove()
    return "<svg" + made.getvalue().partition("<svg")[2]


def draw(curve: Curve, axis: Any) -> None:
    """Draw validations as dots, and steps as a thin line under their running mean."""
    steps, values = zip(*curve.points, strict=True)
    if curve.dots or len(steps) < 3:
        dots: dict[str, Any] = {"linestyle": "dashed", "marker": "o", "markersize": 3.5}
        axis.plot(steps, values, color=curve.colour, linewidth=1, **dots)
        return
    axis.plot(steps, values, color=curve.colour, linewidth=0.8, alpha=0.4)
    axis.plot(steps, running_mean(values), color=curve.colour, linewidth=1.5)


def running_mean(values: Sequence[float]) -> list[float]:
    """The mean over up to five values around each position, those that are finite."""
    halves = [min(2, i, len(values) - 1 - i) for i in range(len(values))]  # centred: no lag
    around = [values[i - half : i + half + 1] for i, half in enumerate(halves)]
    return [fmean(list(filter(math.isfinite, near)) or [math.nan]) for near in around]


def meanings_of(runs: Sequence[Run]) -> dict[str, list[tuple[str, str, str]]]:
    """What docs/metrics.md, where it is there, says of the logged keys: by panel key, words, heading."""
    path, heading = REPOSITORY / "docs" / "metrics.md", ""
    logged = {key for run in runs for row in run.rows for key in row}
    found: dict[str, list[tuple[str, str, str]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        heading = line.removeprefix("## ") if line.startswith("## ") else heading
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)|[`$]", r"\1", line.strip("| "))  # no links
        key, *cells = plain.split(" | ")
        if line.startswith("| `") and key in logged:
            labels = zip(("", "Healthy: ", "Worry: "), cells, strict=False)
            words = ". ".join(f"{label}{cell}" for label, cell in labels if cell.strip())
            found.setdefault(base_of(key), []).append((key, words, heading))
    return found


def shown(number: float) -> str:
    """Three digits of it, or all before the point."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


# The tables ---------------------------------------------------------------------------------------


def flat(numbers: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """{"after/gold": 0.9} of nested numbers; what is no number is left out."""
    found: dict[str, float] = {}
    for key, value in numbers.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}/")
        elif finite(value) is not None:
            found[f"{prefix}{key}"] = float(value)
    return found


def summary_of(run: Run) -> str:
    """The run in one line: what it gained, how far it went, what the doctor found; "" before its end."""
    numbers = flat(run.results)
    said = [
        f"{name} {numbers[f'before/{name}']:.2f} → {numbers[f'after/{name}']:.2f}"
        for name in ("gold", "reward")
        if {f"{end}/{name}" for end in ENDS} <= numbers.keys()
    ]
    per_token = numbers.get("after/kl_per_token")
    beside_kl = "" if per_token is None else f" ({per_token:.2f} a token)"
    said += [f"KL {numbers['after/kl']:.1f} nats{beside_kl}"] if "after/kl" in numbers else []
    if not said:
        return ""
    beside = {name: numbers.get(f"{name}/gold") for name in run.results if name not in ENDS}
    golds = [f"{name} {gold:.2f}" for name, gold in beside.items() if gold is not None]
    said[0] += f" ({', '.join(golds)})" if golds else ""
    count = len(examine(run.rows, run.flags, run.results))
    doctor = f"{count} finding{'s' * (count != 1)}" if count else "nothing found"
    return "; ".join([*said, f"the doctor's {len(RULES)} rules: {doctor}"])


def results_of(run: Run) -> dict[str, Any]:
    """report.json in words: a table with a column for each model, such as before and after, then the rest.

    What a model has no number of is "". An interval stands beside its number.
    """
    rest = {key: value for key, value in run.results.items() if not isinstance(value, dict)}
    models = {key: flat(run.results[key]) for key in run.results if key not in rest}
    if "after" in models and "win_rate" in rest:  # of these two, and others have their own
        models["after"] |= flat({"win_rate": rest.pop("win_rate")})
    keys = dict.fromkeys(key for numbers in models.values() for key in numbers)
    rows = [
        (in_words(key), [with_interval(key, numbers) for numbers in models.values()])
        for key in keys
        if key not in ("gold_error", "gold_95")
    ]
    single = [
        (in_words(key), said)
        for key in rest
        if not (key.endswith(("_low", "_high")) and key.rpartition("_")[0] in rest)
        and (said := with_interval(key, rest))
    ]
    return {"models": list(map(in_words, models)), "rows": rows, "rest": single}


def with_interval(key: str, numbers: Mapping[str, Any]) -> str:
    """A number with the 95% interval that report.json has of it, in any of three forms; "" without it."""
    if (value := finite(numbers.get(key))) is None:
        return ""
    half, error = (finite(numbers.get(f"{key}_{form}")) for form in ("95", "error"))
    if half is None and error is not None:
        half = 1.96 * error
    if half is not None:
        return f"{shown(value)} ± {half:.2g}"
    ends = numbers.get(f"{key}_interval", [numbers.get(f"{key}_{end}") for end in ("low", "high")])
    found = [
        end
        for each in (ends if isinstance(ends, list) else ())
        if (end := finite(each)) is not None
    ]
    return shown(value) + (f" ({shown(found[0])} to {shown(found[1])})" if len(found) == 2 else "")


def samples_of(folder: Path) -> list[tuple[str, list[tuple[str, str]]]]:
    """Some prompts with what was answered before and after training, or at first and last validation."""
    rows = lines(folder / ANSWERS) or lines(folder / "samples.jsonl")
    ends = [row.get("step") for row in rows[:1] + rows[-1:]]
    answers: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        if row.get("step") in ends:
            when = f"step {row['step']}" if "step" in row else "after training"
            numbers = {k: value for k, value in row.items() if isinstance(value, float)}
            worth = [f"{in_words(k)} {value:.3f}" for k, value in numbers.items()]
            said = ", ".join([when, *worth])
            labels = {"before": "before training", "response": said, "data": "data"}
            texts = [(label, str(row[key])) for key, label in labels.items() if key in row]
            answers.setdefault(str(row.get("prompt", "")), []).extend(texts)
    return list(answers.items())[:SAMPLES]


def flags_of(runs: Sequence[Run]) -> list[list[str]]:
    """The flags of one run, or those in which several differ."""
    names = dict.fromkeys(name for run in runs for name in run.flags)
    rows = [[name, *(str(run.flags.get(name, "no such flag")) for run in runs)] for name in names]
    if len(runs) > 1:
        rows = [row for row in rows if len(set(row[1:])) > 1 and row[0] not in PLACES]
    return rows


def phases_of(run: Run) -> list[tuple[str, float, float, float]]:
    """Each phase with its seconds, those of a step and its share, from the seconds/... of the steps."""
    keys = dict.fromkeys(key for row in run.rows for key in row if key.startswith("seconds/"))
    sums = {key: sum(finite(row.get(key)) or 0.0 for row in run.rows) for key in keys}
    total = sum(sums.values()) or 1.0
    return [
        (key.removeprefix("seconds/"), seconds, seconds / len(run.rows), seconds / total)
        for key, seconds in sorted(sums.items(), key=lambda item: -item[1])
    ]


# The page -----------------------------------------------------------------------------------------


def page_html(runs: Sequence[Run]) -> str:
    """The page of one run, or of several over each other. All text in it is escaped."""
    panels = panels_of(runs)
    shown = [panel for panel in panels if not panel["zero"]][:PANELS]
    return render(
        "page.html",
        runs=[(run, PALETTE[i % len(PALETTE)], summary_of(run)) for i, run in enumerate(runs)],
        shown=shown,
        folded=panels[len(shown) :],
        meanings=meanings_of(runs),
        in_words=in_words,
        flags=flags_of(runs),
        alone=details_of(runs[0]) if len(runs) == 1 else {},
    )


def write_page(folder: Path) -> None:
    """Write report.html of a run folder."""
    write_text(folder / REPORT, page_html([read_run(folder)]))


def details_of(run: Run) -> dict[str, Any]:
    """What a page has of one run alone."""
    named = {name: str(run.flags[name]) for name in ("script", "data") if name in run.flags}
    title = " on ".join(engine_in_words(v) if k == "script" else v for k, v in named.items())
    tokens = lines(run.folder / TOKENS)
    return {
        "title": title or run.folder.name,
        "findings": examine(run.rows, run.flags, run.results),
        "results": results_of(run),
        "said": run.results.get("said"),
        "tokens": TokenView(tokens, name="run-tokens")._repr_html_() if tokens else "",
        "samples": samples_of(run.folder),
        "phases": phases_of(run),
    }
