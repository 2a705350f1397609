"""report.html: what a run did, on one page that needs no server and no network.

It is made of the run folder's config.json, metrics.jsonl, samples.jsonl, tokens.jsonl, report.json and
page.json, which the script wrote. matplotlib draws the curves; docs/metrics.md says what they are.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from harness.errors import UserError
from harness.files import parse_json, read_json
from harness.paths import TOKENS
from harness.report.templating import finite, render
from harness.report.tokens import TokenView

ABOUT, REPORT = "page.json", "report.html"
SVG = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
POINTS = 400  # of one curve; more would not be seen
SAMPLES = 6
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito 2008
VALIDATION = "#d55e00"
LEADING = (
    "reward", "gold", "accuracy", "margin", "kl", "reverse_kl", "entropy", "response_length",
    "eos_rate", "solve_rate", "explained_variance", "value_loss", "loss", "grad_norm",
    "ratio_error_at_start", "zero_spread_groups", "clip_high_fraction", "clip_low_fraction",
    "approx_kl",
)  # fmt: skip
MEASURED = ("validation/", "held_out_")  # the same number on prompts or text that is not trained on
HIDDEN = ("step", "gold_error", "iteration")
# The healthy ranges of docs/metrics.md that are numbers; None where there is no such end.
HEALTHY: dict[str, tuple[float | None, float | None]] = {
    "zero_spread_groups": (None, 0.5), "clip_high_fraction": (0.0, 0.1), "clip_low_fraction": (0.0, 0.1),
    "approx_kl": (None, 0.01), "ratio_error_at_start": (None, 0.0001), "rule_errors": (0.0, 0.0),
    "preference_accuracy": (0.5, 0.7), "sampling_rounds": (1.0, 3.0),
}  # fmt: skip
# From 0 to 1, by how their names end.
SHARES = ("_rate", "_fraction", "accuracy", "gold", "zero_spread_groups", "distinct_responses")
# Flags that say where and how a run is run; no difference between two experiments.
PLACES = ("out", "resume", "device", "ranks")


@dataclasses.dataclass(frozen=True)
class Run:
    """What a page reads of one run folder."""

    folder: Path
    label: str
    title: str
    flags: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    samples: Sequence[Mapping[str, Any]]
    tokens: Sequence[Mapping[str, Any]]
    results: Mapping[str, Any]
    findings: Sequence[Mapping[str, Any]]
    before_after: Sequence[Mapping[str, Any]]


# Reading ------------------------------------------------------------------------------------------


def read_run(folder: Path, rows: Sequence[Mapping[str, Any]] | None = None) -> Run:
    """A run folder; `rows` are its metrics where they are in memory already.

    What is missing or cut off leaves its part of the page empty. FileNotFoundError without a folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    about = read(folder / ABOUT, {})
    return Run(
        folder=folder,
        label=folder.name,
        title=about.get("title", folder.name),
        flags=read(folder / "config.json", {}),
        rows=lines(folder / "metrics.jsonl") if rows is None else rows,
        samples=lines(folder / "samples.jsonl"),
        tokens=lines(folder / TOKENS),
        results=read(folder / "report.json", {}),
        findings=about.get("findings", []),
        before_after=about.get("before_after", []),
    )


def read(path: Path, otherwise: Any) -> Any:
    """A JSON file, or `otherwise` where there is none of the same kind."""
    try:
        value = read_json(path)
    except (OSError, UserError):
        return otherwise
    return value if isinstance(value, type(otherwise)) else otherwise


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file that can be read; a page is also made of a damaged run."""
    rows = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = parse_json(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                rows.append(row)
    return rows


# The parts of the page ----------------------------------------------------------------------------


def panels_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One panel per metric; the validations of a metric are drawn over it."""
    keys = {key for run in runs for row in run.rows for key in row}
    bases = {base_of(key) for key in keys if not key.startswith("seconds/")}
    order = {name: i for i, name in enumerate(LEADING)}
    ordered = sorted(bases - set(HIDDEN), key=lambda base: (order.get(base, len(order)), base))
    draw = CurveDrawing()
    made = [panel(f"panel-{i}", base, runs, draw) for i, base in enumerate(ordered)]
    return [each for each in made if each["series"]]


def base_of(key: str) -> str:
    """The metric of a key, without what it was measured on."""
    for prefix in MEASURED:
        key = key.removeprefix(prefix)
    return key


def panel(name: str, base: str, runs: Sequence[Run], draw: CurveDrawing) -> dict[str, Any]:
    """The curves of one metric: of every run what was logged, and what was measured on other prompts."""
    series, broken = [], []
    for i, run in enumerate(runs):
        own = COLOURS[i % len(COLOURS)]
        for key, dots in ((base, False), *((f"{prefix}{base}", True) for prefix in MEASURED)):
            points = [(row["step"], row[key]) for row in run.rows if key in row and "step" in row]
            points = [(s, v) for s, v in points if isinstance(v, (int, float))]
            if not points:
                continue
            broken += [f"{key} at step {s}" for s, v in points if finite(v) is None][:1]
            points = points[:: max(len(points) // POINTS, 1)]
            series.append({
                "name": f"{run.label}: {key}" if len(runs) > 1 else key,
                "x": [step for step, _ in points],
                "y": [finite(value) for _, value in points],
                "dots": dots,
                "colour": VALIDATION if dots and len(runs) == 1 else own,
            })  # fmt: skip
        start = flat(run.results).get("before/gold")
        if base == "gold" and start is not None:  # no step has measured it
            point = {"x": [0], "y": [start], "dots": True, "colour": own}
            series.append({"name": f"{run.label}: before training, on test prompts"} | point)
    drawn = draw(series, HEALTHY.get(base), share=base.endswith(SHARES)) if series else ""
    last = last_values(series) if len(runs) == 1 else ""
    made = {"id": name, "title": base, "series": series, "svg": drawn}
    return made | {"broken": ", ".join(broken), "last": last}


class CurveDrawing:
    """Draws one panel after another on the same axes, because new axes take twice as long as a panel."""

    def __init__(self) -> None:
        import matplotlib  # a page is written at validations; an import of training need not wait
        from matplotlib.figure import Figure

        self.settings = partial(matplotlib.rc_context, cast(Any, SVG))
        with self.settings():
            self.figure = Figure(figsize=(4.4, 2.1))
            self.axis = self.figure.add_axes((0.13, 0.19, 0.85, 0.71), xlabel="step")

    def __call__(
        self,
        series: Sequence[Mapping[str, Any]],
        band: tuple[float | None, float | None] | None,
        *,
        share: bool,
    ) -> str:
        """One panel as an SVG element. `band` is the healthy range; a `share` has the axis from 0 to 1."""
        axis = self.axis
        values = [y for each in series for y in each["y"] if y is not None]
        low, high = (0.0, 1.0) if share else (min(values, default=0.0), max(values, default=1.0))
        margin = (high - low or abs(high) or 1.0) * (0.02 if share else 0.08)
        with self.settings():
            axis.set_ylim(low - margin, high + margin)
            if band is not None:
                below, above = band
                axis.axhspan(
                    low - margin if below is None else below,
                    high + margin if above is None else above,
                    color="#009e73", alpha=0.13,
                )  # fmt: skip
            for each in series:
                _draw(axis, each)
            axis.relim()
            axis.autoscale_view(scaley=False)
            made = io.StringIO()
            self.figure.savefig(made, format="svg", transparent=True, metadata={"Date": None})
        for drawn in (*axis.lines, *axis.patches):
            drawn.remove()
        return "<svg" + made.getvalue().partition("<svg")[2]


def _draw(axis: Any, series: Mapping[str, Any]) -> None:
    """The points of a curve; a validation's with dots, a step's thin under their running mean."""
    x, colour = series["x"], series["colour"]
    y = [float("nan") if value is None else value for value in series["y"]]
    if series["dots"] or len(x) < 3:
        axis.plot(x, y, color=colour, linewidth=1, linestyle="dashed", marker="o", markersize=3.5)
        return
    axis.plot(x, y, color=colour, linewidth=0.8, alpha=0.4)
    axis.plot(x, running_mean(series["y"]), color=colour, linewidth=1.5)


def running_mean(values: Sequence[float | None]) -> list[float]:
    """The mean over up to five values around each position, those that are there."""
    means = []
    for i in range(len(values)):
        half = min(2, i, len(values) - 1 - i)  # centred, so that it does not lag
        near = [value for value in values[i - half : i + half + 1] if value is not None]
        means.append(sum(near) / len(near) if near else float("nan"))
    return means


def last_values(series: Sequence[Mapping[str, Any]]) -> str:
    """From the first to the last value of each curve, in words."""
    said = []
    for each in series:
        values = [value for value in each["y"] if value is not None]
        ends = values[:1] + values[1:][-1:]
        if ends:
            said.append(f"{each['name']}: {' → '.join(f'{end:.4g}' for end in ends)}")
    return "; ".join(said)


def phases_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Seconds by phase, from the seconds/... of the steps."""
    made = []
    for run in runs:
        keys = dict.fromkeys(key for row in run.rows for key in row if key.startswith("seconds/"))
        sums = {key[8:]: sum(finite(row.get(key)) or 0.0 for row in run.rows) for key in keys}
        for name, seconds in sorted(sums.items(), key=lambda item: -item[1]):
            share, mean = seconds / (sum(sums.values()) or 1.0), seconds / len(run.rows)
            phase = {"name": name, "run": run.label, "seconds": seconds}
            made.append(phase | {"mean": mean, "share": share})
    return made


def results_of(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Final numbers as a table: a column each for before and after, or for every run."""
    if len(runs) > 1:
        columns = {run.label: flat(final_numbers(run)) for run in runs}
        caption = "The last logged numbers, and those on test prompts after training."
    else:
        groups = {k: flat(v) for k, v in runs[0].results.items() if isinstance(v, dict)}
        plain = flat({k: v for k, v in runs[0].results.items() if k not in groups})
        columns, caption = groups | ({"": plain} if plain else {}), "report.json"
    keys = list(dict.fromkeys(key for numbers in columns.values() for key in numbers))
    rows = [[key, *(numbers.get(key) for numbers in columns.values())] for key in keys]
    return {"caption": caption, "columns": ["", *columns], "rows": rows} if rows else None


def flat(numbers: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """{"after/gold": 0.9} of nested numbers; what is no number is left out."""
    found: dict[str, float] = {}
    for key, value in numbers.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}/")
        elif finite(value) is not None:
            found[f"{prefix}{key}"] = float(value)
    return found


def final_numbers(run: Run) -> dict[str, Any]:
    """The last value of each logged number, and what report.json says of the trained model."""
    last: dict[str, Any] = {}
    for row in run.rows:
        last |= row
    logged = {key: value for key, value in last.items() if not key.startswith("seconds/")}
    after = run.results.get("after", run.results)
    return logged | {"test": after if isinstance(after, Mapping) else {}}


def samples_of(run: Run) -> list[dict[str, Any]]:
    """Some prompts with their answers before and after training, or at the first and last validation."""
    rows = [
        {"prompt": row.get("prompt", ""), "parts": [
            {"label": label, "text": row.get(label, "")} for label in ("before", "after")
        ]}
        for row in run.before_after[:SAMPLES]
    ]  # fmt: skip
    if rows:
        return rows
    steps = [row["step"] for row in run.samples if "step" in row] or [None]
    by_prompt: dict[str, list[dict[str, str]]] = {}
    for row in run.samples:
        if row.get("step") in (steps[0], steps[-1]):
            parts = by_prompt.setdefault(str(row.get("prompt", "")), [])
            numbers = [f"{k} {v:.3f}" for k, v in row.items() if isinstance(v, float)]
            label = ", ".join([f"step {row['step']}" if "step" in row else "model", *numbers])
            parts.append({"label": label, "text": str(row.get("response", ""))})
            if "data" in row:
                parts.append({"label": "data", "text": str(row["data"])})
    return [{"prompt": prompt, "parts": parts} for prompt, parts in by_prompt.items()][:SAMPLES]


def flags_of(runs: Sequence[Run]) -> dict[str, Any]:
    """The flags of one run, or those in which several differ."""
    names = dict.fromkeys(name for run in runs for name in run.flags)
    rows = [
        [name, *(text(run.flags[name]) if name in run.flags else "–" for run in runs)]
        for name in names
    ]
    if len(runs) > 1:
        rows = [row for row in rows if len(set(row[1:])) > 1 and row[0] not in PLACES]
    return {"columns": ["flag", *(run.label for run in runs)], "rows": rows}


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


# The page -----------------------------------------------------------------------------------------


def summary_of(run: Run) -> str:
    """The run in one line: what it gained, how far it went, what the doctor found; "" before its end."""
    numbers = flat(run.results)
    said = [
        f"{name} {numbers[f'before/{name}']:.2f} → {numbers[f'after/{name}']:.2f}"
        for name in ("gold", "reward")
        if {f"before/{name}", f"after/{name}"} <= numbers.keys()
    ]
    if "after/kl" in numbers:
        said.append(f"KL {numbers['after/kl']:.1f} nats")
    if not said:
        return ""
    count = len(run.findings)
    doctor = f"{count} finding{'s' * (count != 1)}" if count else "nothing found"
    return ", ".join([*said, f"doctor: {doctor}"])


def page_html(runs: Sequence[Run]) -> str:
    """The page of one run, or of several over each other. All text in it is escaped."""
    first, alone = runs[0], len(runs) == 1
    tokens = TokenView(first.tokens, name="run-tokens")._repr_html_() if first.tokens else ""
    steps = max((row.get("step", 0) for row in first.rows), default=0)
    return render(
        "page.html",
        title=first.title if alone else "Runs: " + ", ".join(run.label for run in runs),
        subtitle=f"{first.folder.name} · {steps} steps" if alone else "",
        runs=[
            {"label": run.label, "colour": COLOURS[i % len(COLOURS)], "steps": len(run.rows)}
            for i, run in enumerate(runs)
        ],
        findings=findings_of(runs),
        results=results_of(runs),
        panels=panels_of(runs),
        tokens=tokens if alone else "",
        samples=samples_of(first) if alone else [],
        flags=flags_of(runs),
        phases=phases_of(runs),
        summary=summary_of(first) if alone else "",
    )


def findings_of(runs: Sequence[Run]) -> list[dict[str, str]]:
    fields = ("rule", "severity", "evidence", "cause", "remedy")
    return [
        {name: str(finding.get(name, "")) for name in fields}
        | {"run": f"{run.label}: " if len(runs) > 1 else ""}
        for run in runs
        for finding in run.findings
    ]
