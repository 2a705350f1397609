"""Compare answers at the keyboard: preference pairs of your own, for a reward model, DPO or GRPO.

    python -m reward_model.annotate --model RUN --out mine.jsonl      two answers of one model
    ... --against OLD          one answer each of two models, blind: the end prints your own win rate
    ... --reward-model RUN     half of the pairs are those of which this judge is least sure
    ... --annotator NAME       a second person sees the same pairs: how often both agree

Keys: 1 or 2 prefers an answer, = is a tie, s skips, u takes the last one back, q ends; the same command
goes on. Every tenth pair comes a second time, in the other order. OUT has a row for each pair, on disk
before the next one is shown; the questions are in a file beside it (mine.questions.jsonl). Answers are
sampled a few prompts at a time, when they are wanted.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest

from harness.command_line import run_command
from harness.console import columns, printable
from harness.console import wrapped as wrap
from harness.errors import UserError
from harness.files import append_jsonl, display_path
from harness.flags import AtLeastOne
from harness.seeds import derive_seed
from reward_model.agreement import summary
from reward_model.questions import QuestionFlags, Questions, Row, whole_rows, write_rows

try:
    import termios
    import tty
except ImportError:  # Windows, where a key needs Enter
    termios = None  # type: ignore[assignment]

HELP = "1 or 2, = tie, s skip, u undo, q quit"
VERDICTS = {"1": "first", "2": "second", "=": "tie", "s": "skip"}
EVERY, APART = 10, 5  # every tenth pair has come before, at least so many pairs earlier
NARROWEST, WIDEST = 36, 140  # columns of an answer beside the other one, and of all


@dataclass(frozen=True)
class AnnotateConfig(QuestionFlags):
    """Compare answers at the keyboard."""

    pairs: AtLeastOne = 60
    """Pairs to show, repeated ones among them; with a larger number the list goes on."""
    annotator: str = "me"
    """Who answers: everyone has an order of their own."""
    plain: bool = False
    """For screen readers: the answers one after the other, however wide the window is."""

    goes_on = True  # called again, it does what is left


def in_turn(config: AnnotateConfig) -> Iterator[tuple[int, bool, bool]]:
    """For one annotator: the number of each question, whether its sides swap, whether it comes again."""
    rng = random.Random(derive_seed(config.seed, f"order of {config.annotator}"))
    sides: list[bool] = []  # of each question so far
    again: set[int] = set()
    for shown in range(1, config.pairs + 1):
        early = [n for n in range(len(sides) - APART) if n not in again]
        if shown % EVERY == 0 and early:
            number = early[int(rng.random() * len(early))]
            again.add(number)
            yield number, not sides[number], True
        else:
            sides.append(rng.random() < 0.5)
            yield len(sides) - 1, sides[-1], False


def swapped(row: Row) -> Row:
    """The row with its two answers exchanged."""
    names = {"chosen": "rejected", "rejected": "chosen"}
    parts = [(key.partition("_"), value) for key, value in row.items()]
    return {names.get(head, head) + line + tail: value for (head, line, tail), value in parts}


def key() -> str:
    """A key, or a line where the input is no terminal; "q" at its end. What is typed ahead is dropped."""
    if termios is None or not sys.stdin.isatty():
        return (sys.stdin.buffer.readline().decode(errors="replace") or "q").strip()
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        typed = os.read(sys.stdin.fileno(), 64).decode(errors="replace")  # of an arrow three
    except OSError:  # the terminal is gone
        return "q"
    finally:
        with suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
    return "q" if typed in ("", "\x04") else typed.strip()


def say(*lines: str) -> None:
    """Print; EOFError if the output is closed, because the person no longer sees the question."""
    print(*lines, sep="\n", flush=True)
    if getattr(sys.stdout, "lost", False):
        raise EOFError


def page(row: Row, width: int, plain: bool) -> list[str]:
    """The prompt and both answers, beside each other where both have room."""

    def wrapped(text: str, width: int) -> list[str]:
        parts = text.strip().splitlines() or ["(nothing)"]
        return [line for part in parts for line in wrap(printable(part), width)]

    half = (width - 3) // 2
    beside = half >= NARROWEST and not plain
    blocks = [
        [f"answer {number}" + (":" if row[f"{name}_ended"] else ", cut off:")]
        + wrapped(row[name], half if beside else width)
        for number, name in ((1, "chosen"), (2, "rejected"))
    ]
    lines = blocks[0] + [""] + blocks[1]
    if beside:
        rows = zip_longest(*blocks, fillvalue="")
        lines = [f"{left}{' ' * (half - columns(left))} | {right}".rstrip() for left, right in rows]
    return [*wrapped(row["shown"], width), "", *lines, ""]


def ask(config: AnnotateConfig, asked: Questions, rows: list[Row]) -> None:
    """Show what is left for this annotator, and keep each answer in `rows` and in OUT."""
    turns, begin, given = [*in_turn(config)], time.monotonic(), 0
    while (done := sum(row["annotator"] == config.annotator for row in rows)) < len(turns):
        number, swap, repeat = turns[done]
        row = swapped(asked[number]) if swap else asked[number]
        pace = f", {60 * given / (time.monotonic() - begin):.1f} a minute" * (given > 0)
        width = min(shutil.get_terminal_size((80, 24)).columns, WIDEST)
        shown_row = page(row, width, config.plain)
        say(f"pair {done + 1} of {len(turns)}{pace}", *shown_row)
        shown = time.monotonic()
        while (typed := key().lower()) not in (*VERDICTS, "u", "q"):
            say(HELP)
        say(f"> {typed}", "")
        if typed == "q":
            return
        if typed == "u":
            mine = [n for n, row in enumerate(rows) if row["annotator"] == config.annotator]
            if mine:
                del rows[mine[-1]]
                write_rows(config.out, rows)
            continue
        row = swapped(row) if typed == "2" else row
        about = {"verdict": VERDICTS[typed], "annotator": config.annotator, "question": number}
        about |= {"repeat": repeat, "seconds": round(time.monotonic() - shown, 1)}
        rows.append({name: value for name, value in row.items() if name != "shown"} | about)
        append_jsonl(config.out, rows[-1:])
        with config.out.open("rb+") as file:
            os.fsync(file.fileno())
        given += 1


def main(config: AnnotateConfig) -> None:
    """Ask for what is left, then say what the answers show."""
    asked = Questions(config)
    rows = whole_rows(config.out)
    if any("annotator" not in row for row in rows):
        raise UserError(f"{config.out} has rows of another origin: name another --out")
    assert asked[0]  # what cannot be sampled is refused before anything is asked
    with suppress(EOFError):
        say(HELP, "")
        ask(config, asked, rows)
    print(*summary(asked.rows, rows, config.annotator), f"in {display_path(config.out)}", sep="\n")


if __name__ == "__main__":
    run_command(main, AnnotateConfig)
