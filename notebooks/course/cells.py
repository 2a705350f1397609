"""Rows of tokens as a table of coloured cells, and arrows from logits to the tokens they score."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from data.collate import ResponseBatch

# A light blue for what the policy writes and learns from, as in look.COLOURS; a prompt is only given.
FILLS = {"prompt": "#FFFFFF", "response": "#C6DCEC", "padding": "#ECECEC"}


def draw_cells(
    axis: Axes,
    labels: Sequence[Sequence[str]],
    kinds: Sequence[Sequence[str]],
    notes: Sequence[Sequence[object]] | None = None,
) -> None:
    """One cell per token, coloured by its kind ("prompt", "response", "padding"), a note below it."""
    for row, words in enumerate(labels):
        for column, word in enumerate(words):
            fill = FILLS[kinds[row][column]]
            axis.fill_between(
                [column, column + 1], row, row + 1, facecolor=fill, edgecolor="#B8BEC4"
            )
            text = word if notes is None else f"{word}\n{notes[row][column]}"
            axis.text(column + 0.5, row + 0.5, text, ha="center", va="center", size=10)
    width = max(map(len, labels))
    axis.set_xticks([column + 0.5 for column in range(width)], list(map(str, range(width))))
    axis.set_yticks([row + 0.5 for row in range(len(labels))], list(map(str, range(len(labels)))))
    axis.set(xlabel="column", ylabel="row", xlim=(0, width), ylim=(len(labels), 0))
    axis.grid(visible=False)


def draw_arrows(axis: Axes, batch: ResponseBatch, color: str) -> None:
    """From each column whose logits score a response token to the column where the token stands."""
    style = {"arrowstyle": "->", "connectionstyle": "arc3,rad=-0.45", "color": color, "lw": 1.5}
    for row, length in enumerate(batch.lengths.tolist()):
        for t in range(length):
            start = int(batch.predicting_columns[row, t])
            end = int(batch.response_columns[row, t])
            head, tail = (end + 0.5, row + 0.36), (start + 0.5, row + 0.36)
            axis.annotate("", xy=head, xytext=tail, arrowprops=style)
            axis.text(end, row + 0.14, f"t={t}", ha="center", size=9, color=color)
