"""How the pages look: one meaning per colour, plots in one line, source and differences in colour.

Everything works in Jupyter and in a plain script. A script shows figures through matplotlib and
prints the text of what a notebook shows as HTML.
"""

from __future__ import annotations

import difflib
import html
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from course import explorables
from report.style import COLOURS, RC, SERIES

FOLDER = Path(__file__).resolve().parents[1]
REPOSITORY = FOLDER.parent

ALIASES = {"reward": "proxy", "good": "gold", "student": "policy", "before": "reference"}
LINES: dict[str, Any] = {
    **{"policy": "-", "reference": "--", "proxy": "-.", "gold": (0, (8, 2)), "critic": ":"},
    **{"teacher": (0, (5, 1, 1, 1, 1, 1)), "exact": (0, (2, 2)), "bad": (0, (4, 1, 1, 1))},
    **{"k1": "-", "k2": "--", "k3": "-."},
}
MARKERS: dict[str, str] = {
    **{"policy": "o", "reference": "s", "proxy": "^", "gold": "D", "critic": "v"},
    **{"teacher": "P", "exact": "x", "bad": "X", "k1": "o", "k2": "s", "k3": "^"},
}
# For things that have no colour of their own, with the colours of SERIES: settings of a sweep, engines.
SERIES_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
SERIES_MARKERS = ("o", "s", "^", "D", "v", "P")
# The same scale as the tokens of report/tokens.py: orange is negative, white 0, blue positive.
DIVERGING = LinearSegmentedColormap.from_list("pushes", ["#E6801E", "#FFFFFF", "#4691D2"])
SHADE = "Blues"  # for what is never negative: probabilities, attention


def use() -> None:
    """Set matplotlib's style for a page. Call it once, in the first cell."""
    cycle = plt.cycler(color=SERIES) + plt.cycler(linestyle=SERIES_LINES)
    plt.rcParams.update(RC | {"axes.prop_cycle": cycle, "figure.dpi": 80, "image.cmap": SHADE})


def colour(name: str) -> str:
    """The colour of a meaning, such as "policy". KeyError with the known names for another one."""
    known = ALIASES.get(name, name)
    if known not in COLOURS:
        raise KeyError(f"{name!r} has no colour: use one of {', '.join((*COLOURS, *ALIASES))}")
    return COLOURS[known]


def line(name: str, *, marker: bool = False) -> dict[str, Any]:
    """Colour, line style and, if asked for, marker of a meaning: `axis.plot(x, y, **line("gold"))`."""
    known = ALIASES.get(name, name)
    style: dict[str, Any] = {"color": colour(name), "linestyle": LINES[known]}
    return style | ({"marker": MARKERS[known], "markersize": 5} if marker else {})


# --- figures ------------------------------------------------------------------------------------


def panels(count: int = 1, *, height: float = 3.2, width: float | None = None) -> Any:
    """A figure with `count` axes side by side: (figure, axis) for one, else (figure, axes)."""
    return plt.subplots(1, count, figsize=(width or min(10.0, 5.0 * count + 1), height))


def labels(axis: Axes, x: str, y: str, title: str = "", *, legend: bool = False) -> None:
    """Name both axes, and the panel if there is a title."""
    axis.set(xlabel=x, ylabel=y, title=title)
    if legend:
        axis.legend()


def legend(axis: Axes) -> None:
    """A legend at the best place inside the axes; beside them if it covers a labelled line there."""
    box = axis.legend()
    figure = axis.get_figure()
    if not isinstance(figure, Figure):
        return
    figure.draw_without_rendering()  # only now the legend has its place
    extent = box.get_window_extent()
    for drawn in box.axes.get_lines():
        path = drawn.get_transform().transform_path(drawn.get_path())
        labelled = not str(drawn.get_label()).startswith("_")
        if labelled and path.intersects_bbox(extent, filled=False):
            axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
            return


def curves(
    series: Mapping[str, Any],
    x: Sequence[float] | None = None,
    *,
    axis: Axes | None = None,
    styles: Mapping[str, str | int] | None = None,
    smooth: int = 1,
    marker: bool = False,
    **texts: Any,
) -> Axes:
    """Lines with a legend: {label: values}, or {label: (x, values)}.

    A label that is a meaning ("policy", "gold", "k3") has its colour and line style; `styles` says
    {label: meaning} for others, or {label: turn in SERIES}, and the rest take turns. `smooth` draws
    the mean of that many neighbours over a faint line. `texts`: xlabel, ylabel, title, xscale, ylim,
    ... of the axes. The legend moves to the right of the axes where it would cover a line.
    """
    axis = axis or panels(1)[1]
    for label, values in series.items():
        xs, ys = values if isinstance(values, tuple) else (x, values)
        ys = plain(ys)
        xs = list(range(len(ys))) if xs is None else plain(xs)
        style = style_of((styles or {}).get(label, label), len(axis.get_legend_handles_labels()[0]))
        if not marker:
            style.pop("marker", None)
        if smooth > 1:
            axis.plot(xs, ys, color=style["color"], alpha=0.25, linewidth=1, linestyle="-")
            ys = running_mean(ys, smooth)
        axis.plot(xs, ys, label=label, **style)
    axis.set(**texts)
    legend(axis)
    return axis


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """Mean over the `width` values around each position, of fewer at both ends."""
    before, after = width // 2, width - width // 2
    windows = [values[max(0, i - before) : i + after] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def bars(
    heights: Mapping[str, Any],
    names: Sequence[str] | None = None,
    *,
    axis: Axes | None = None,
    styles: Mapping[str, str | int] | None = None,
    numbers: str | None = None,
    **texts: Any,
) -> Axes:
    """Bars: {label: height}, or with `names` of the groups {label: one height per group}.

    `numbers` is a format such as ".2f" to write on each bar. Series are told apart by hatching too.
    """
    axis = axis or panels(1)[1]
    grouped = names is not None
    rows = heights if grouped else {label: [height] for label, height in heights.items()}
    width = 0.8 / len(rows) if grouped else 0.8
    for index, (label, values) in enumerate(rows.items()):
        style = style_of((styles or {}).get(label, label), index)
        shift = (index - (len(rows) - 1) / 2) * width
        places = [i + shift for i in range(len(plain(values)))] if grouped else [index]
        hatch = ("", "//", "..", "xx", "\\\\", "oo")[index % 6] if grouped else ""
        drawn = axis.bar(
            places, plain(values), width, label=label, color=style["color"],
            hatch=hatch, edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        if numbers:
            axis.bar_label(drawn, fmt=f"{{:{numbers}}}", fontsize=9)
    ticks = list(names or rows)
    axis.set_xticks(range(len(ticks)), ticks)
    axis.grid(axis="x", visible=False)
    axis.set(**texts)
    if grouped:
        axis.legend()
    return axis


def histograms(
    values: Mapping[str, Any],
    *,
    axis: Axes | None = None,
    bins: Any = 30,
    styles: Mapping[str, str | int] | None = None,
    means: bool = True,
    **texts: Any,
) -> Axes:
    """Outlined histograms over each other, {label: numbers}, each with its mean as a thin line."""
    axis = axis or panels(1)[1]
    every = [number for numbers in values.values() for number in plain(numbers)]
    edges = bins
    if isinstance(bins, int):
        low, high = min(every), max(every)
        edges = [low + (high - low) * i / bins for i in range(bins + 1)]
    for index, (label, numbers) in enumerate(values.items()):
        style = style_of((styles or {}).get(label, label), index)
        style = {key: style[key] for key in ("color", "linestyle")}
        mean = sum(plain(numbers)) / len(plain(numbers))
        name = f"{label}, mean {mean:.3g}" if means else label
        axis.hist(plain(numbers), edges, histtype="stepfilled", alpha=0.15, color=style["color"])
        axis.hist(plain(numbers), edges, histtype="step", linewidth=1.5, label=name, **style)
        if means:
            axis.axvline(mean, color=style["color"], linewidth=1)
    axis.set(**texts)
    axis.legend()
    return axis


def heat(
    matrix: Any,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    axis: Axes | None = None,
    numbers: str | None = ".2f",
    signed: bool = False,
    largest: float | None = None,
    label: str = "",
    **texts: Any,
) -> Axes:
    """A matrix as coloured cells with their numbers; `signed` takes the scale orange - white - blue.

    None or NaN leaves a cell empty (padding). `largest` ends the scale, where two pictures share it.
    """
    axis = axis or panels(1)[1]
    table = [[math.nan if v is None else float(v) for v in plain(row)] for row in plain(matrix)]
    sizes = [abs(v) for row in table for v in row if not math.isnan(v)] or [1.0]
    limit = largest or max(sizes) or 1.0
    image = axis.imshow(
        table, aspect="auto", cmap=DIVERGING if signed else SHADE,
        vmin=-limit if signed else min(0.0, *(v for r in table for v in r if v == v), 0.0),
        vmax=limit,
    )  # fmt: skip
    if numbers is not None:
        for i, row in enumerate(table):
            for j, value in enumerate(row):
                dark = not signed and abs(value) > 0.6 * limit
                shown = "" if math.isnan(value) else format(value, numbers)
                ink = "white" if dark else "black"
                axis.text(j, i, shown, ha="center", va="center", fontsize=9, color=ink)
    if rows is not None:
        axis.set_yticks(range(len(rows)), rows)
    if columns is not None:
        axis.set_xticks(range(len(columns)), columns)
    axis.grid(visible=False)
    if label and isinstance(axis.figure, Figure):
        axis.figure.colorbar(image, ax=axis, label=label)
    axis.set(**texts)
    return axis


def style_of(name: str | int, turn: int) -> dict[str, Any]:
    """The style of a meaning, or of a turn given as a number; for another name that of `turn`."""
    if isinstance(name, int):
        turn = name
    elif ALIASES.get(name, name) in COLOURS:
        return line(name, marker=True)
    place = turn % len(SERIES)
    style = {"color": SERIES[place], "linestyle": SERIES_LINES[place]}
    return style | {"marker": SERIES_MARKERS[place], "markersize": 5}


def plain(values: Any) -> list[Any]:
    """A tensor, an array or a list as a list, without a gradient."""
    values = values.detach() if hasattr(values, "detach") else values
    return values.tolist() if hasattr(values, "tolist") else list(values)


# --- source -------------------------------------------------------------------------------------


def code(thing: Any, lines: Any = None, *, docstring: bool = True) -> None:
    """Show the source of a function, class or module, highlighted, and the file where it lives.

    `lines` shows a part: (3, 9) by number, counted from 1, or ("from this text", "to this text"):
    the first line that holds the first text up to the next one that holds the second. A text of
    several lines may be given instead of a function.
    """
    text = source(thing, lines, docstring=docstring)
    where = place(thing)
    head = f'<div style="{HEAD}">{link(where)}</div>' if where else ""
    show(
        f'<div style="{CARD}">{head}<pre style="{PRE}">{highlighted(text)}</pre></div>',
        f"# {where}\n{text}" if where else text,
    )


def source(thing: Any, lines: Any = None, *, docstring: bool = True) -> str:
    """The text that `code` shows: dedented, without an empty line at the end."""
    text = thing if isinstance(thing, str) else inspect.getsource(inspect.unwrap(thing))
    text = textwrap.dedent(text).strip("\n")
    if not docstring:
        text = without_docstring(text)
    every = text.splitlines()
    if lines is None:
        return text
    first, last = lines
    if isinstance(first, str):
        begin = line_with(every, first, 0)
        first, last = begin + 1, line_with(every, last, begin) + 1
    return textwrap.dedent("\n".join(every[first - 1 : last]))


def line_with(every: Sequence[str], part: str, start: int) -> int:
    """The index of the first line from `start` on that holds `part`; ValueError if none does."""
    for index in range(start, len(every)):
        if part in every[index]:
            return index
    raise ValueError(f"no line of the source holds {part!r}: it may have changed")


def without_docstring(text: str) -> str:
    """The source of one function or class without its docstring."""
    import ast

    (definition,) = ast.parse(text).body
    first = definition.body[0]  # type: ignore[attr-defined]
    if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
        return text
    every = text.splitlines()
    return "\n".join(every[: first.lineno - 1] + every[first.end_lineno :])


def place(thing: Any) -> str:
    """The file of a function, relative to the repository; "" for one that a page defines itself."""
    if isinstance(thing, str):
        return ""
    try:
        path = Path(inspect.getsourcefile(inspect.unwrap(thing)) or "").resolve()
    except TypeError:
        return ""
    inside = path.is_relative_to(REPOSITORY) and path.parent != FOLDER
    return path.relative_to(REPOSITORY).as_posix() if inside else ""


def link(where: str) -> str:
    """A link from a page to a file of the repository."""
    return f'<a href="../{where}" style="color:#57606A">{where}</a>'


def difference(
    a: Any,
    b: Any,
    *,
    names: tuple[str, str] | None = None,
    context: int = 2,
    docstring: bool = False,
    comments: bool = False,
) -> None:
    """Show what changes from one source to the next: two functions, classes or texts.

    A line that goes has a minus and orange, one that comes a plus and blue; of unchanged lines
    `context` remain on either side. `names` go over it instead of the files. Comments at the end of a
    line (the line numbers of an algorithm box) are left out unless asked for.
    """
    text = difference_text(
        a, b, names=names, context=context, docstring=docstring, comments=comments
    )
    rows = []
    for row in text.splitlines():
        kind = row[:1]
        if row.startswith("#"):
            rows.append(f'<div style="{HEAD}">{html.escape(row[2:])}</div>')
            continue
        style = {"-": REMOVED, "+": ADDED}.get(kind, KEPT)
        body = highlighted(row[2:]) if row[2:].strip() else ""
        ellipsis = row.strip() == "..."
        shown = "⋮" if ellipsis else f"{html.escape(kind or ' ')} {body}"
        rows.append(f'<div style="padding:0 0.6em;min-height:1.3em;{style}">{shown}</div>')
    inside = "".join(rows)
    show(f'<div style="{CARD}"><div style="{PRE};padding:0">{inside}</div></div>', text)


def neighbours(a: str, b: str) -> None:
    """Show what a step of one file of nano/ does otherwise than a step of another."""
    difference(**nano_pair(a, b))


def nano_pair(a: str, b: str) -> dict[str, Any]:
    """What `difference` needs for two files of nano/, up to the loss.

    Every line begins at the margin, so that one loop more or less does not make all lines differ.
    """
    texts = []
    for name in (a, b):
        train = (
            (REPOSITORY / "nano" / f"{name}.py").read_text(encoding="utf-8").split("def train(")[1]
        )
        step = train[train.index("\n    for ") : train.index("optimizer.zero_grad()")]
        texts.append("\n".join(line.strip() for line in step.splitlines() if line.strip()))
    return dict(a=texts[0], b=texts[1], names=(f"nano/{a}.py", f"nano/{b}.py"), context=0)


def difference_text(
    a: Any,
    b: Any,
    *,
    names: tuple[str, str] | None = None,
    context: int = 2,
    docstring: bool = False,
    comments: bool = False,
) -> str:
    """The unified difference that `difference` shows, one line each, with -, + or a blank in front."""
    names = names or (title_of(a, "before"), title_of(b, "after"))
    texts = [source(thing, docstring=docstring or isinstance(thing, str)) for thing in (a, b)]
    if not comments:
        texts = [re.sub(r"  # .*$", "", text, flags=re.MULTILINE) for text in texts]
    compared = difflib.ndiff(texts[0].splitlines(), texts[1].splitlines())
    changes = [row for row in compared if row[0] != "?"]
    near = {
        j
        for i, row in enumerate(changes)
        if row[0] in "-+"
        for j in range(i - context, i + context + 1)
    }
    shown = [f"# - {names[0]}", f"# + {names[1]}"]
    for i, row in enumerate(changes):
        if i in near:
            shown.append(row.rstrip())
        elif shown[-1] != "  ...":
            shown.append("  ...")
    return "\n".join(shown)


def title_of(thing: Any, otherwise: str) -> str:
    """What a source is called over a difference."""
    if isinstance(thing, str):
        return otherwise
    where, name = place(thing), getattr(thing, "__name__", otherwise)
    return f"{where}: {name}" if where else name


def highlighted(text: str) -> str:
    """Python as HTML with colours of its own in each tag; escaped text where Pygments is missing."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ModuleNotFoundError:
        return html.escape(text)
    formatter = HtmlFormatter(nowrap=True, noclasses=True, style="xcode")
    return highlight(text, PythonLexer(stripnl=False, ensurenl=False), formatter)


# Light cards with their own ink: legible on a white page and on a dark one.
INK = "color:#1F2328;background:#F6F8FA"
CARD = f"border:1px solid #D0D7DE;border-radius:6px;margin:0.4em 0;{INK};overflow-x:auto"
HEAD = "font:12px sans-serif;padding:0.3em 0.8em;border-bottom:1px solid #D0D7DE;color:#57606A"
PRE = (
    "font:13px/1.45 ui-monospace,Menlo,Consolas,monospace;white-space:pre;margin:0;"
    "padding:0.6em 0.8em;background:transparent;color:#1F2328;border:0"
)
REMOVED = "background:#FBE3CC;border-left:4px solid #D55E00"
KEPT = "border-left:4px solid transparent"
ADDED = "background:#D8E9F7;border-left:4px double #0072B2"


# --- tables and pictures --------------------------------------------------------------------------


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    shade: Callable[[Any], str | None] | None = None,
    number: str = ".3g",
) -> None:
    """Show a table. `shade` gives a cell's meaning ("good", "bad", any of COLOURS) or None.

    A shaded cell must say the same in its text: colour is never the only sign.
    """
    texts = [[cell if isinstance(cell, str) else format(cell, number) for cell in r] for r in rows]
    lines = ["".join(f'<th style="{CELL};text-align:left">{html.escape(c)}</th>' for c in columns)]
    for row, words in zip(rows, texts, strict=True):
        tints = [shade(cell) if shade else None for cell in row]
        lines.append(
            "".join(
                f'<td style="{CELL}{tint(meaning)}">{html.escape(word)}</td>'
                for word, meaning in zip(words, tints, strict=True)
            )
        )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    show(
        f'<div style="overflow-x:auto"><table style="border-collapse:collapse;{INK}">{body}</table></div>',
        table_text(columns, texts),
    )


CELL = "padding:0.25em 0.7em;border:1px solid #D0D7DE;text-align:left"


def tint(meaning: str | None) -> str:
    """A background with a third of a meaning's colour, and black ink."""
    if meaning is None:
        return ""
    parts = [int(colour(meaning)[i : i + 2], 16) for i in (1, 3, 5)]
    return ";background:#" + "".join(f"{255 - (255 - part) // 3:02x}" for part in parts)


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table in aligned columns of text."""
    every = [list(columns), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip_longest(*every, fillvalue="")]
    lines = ["  ".join(f"{c:{w}}" for c, w in zip(row, widths)).rstrip() for row in every]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def diagram(name: str) -> None:
    """Show notebooks/figures/<name>.svg. A script prints where it lies."""
    path = FOLDER / "figures" / f"{name}.svg"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.svg")))
        raise ValueError(f"there is no diagram {name!r}: use one of {known}")
    text = f"(diagram: notebooks/figures/{name}.svg)"
    if in_notebook():
        from IPython.display import display

        picture = path.read_text(encoding="utf-8")
        display({"image/svg+xml": picture, "text/plain": text}, raw=True)
    else:
        print(text)


def explorable(name: str) -> None:
    """Show something to play with: docs/explorables/<name>.js. A script prints where it lies."""
    show(explorables.html_of(name), f"(to play with: docs/explorables/{name}.js)")


def document(name: str) -> None:
    """Show docs/<name>.md without its title; its links lead to the same files from a page."""
    text = document_text(name)
    if in_notebook():
        from IPython.display import display

        display({"text/markdown": text, "text/plain": text}, raw=True)
    else:
        print(text)


def document_text(name: str) -> str:
    """What `document` shows."""
    text = (REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8")
    return re.sub(r"\]\(((?:\w+/)*\w+\.md)", r"](../docs/\1", text.split("\n", 2)[2])


def show(rich: str, text: str) -> None:
    """Show HTML in a notebook, with `text` for readers that know no HTML; a script prints `text`."""
    if in_notebook():
        from IPython.display import display

        display({"text/html": rich, "text/plain": text}, raw=True)
    else:
        print(text)


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this, so that HTML can be shown."""
    try:
        from IPython import get_ipython
    except ModuleNotFoundError:
        return False
    return hasattr(get_ipython(), "kernel")
