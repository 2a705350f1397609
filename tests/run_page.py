"""A page of the course, run cell by cell with a reader's edits: what raises, what a rerun changes.

    python tests/run_page.py 04_policy_gradients_and_baselines --edits rewards seed
    python tests/run_page.py 08_ppo --twice --backwards

It prints one JSON object: `failed` cells with their last line, and `other`, the runs whose first
row differs when their cell is run a second time.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import linecache
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NUMBER = r"\d+(?:\.\d*)?(?:e-?\d+)?"


def scaled(names: str, factor: float) -> Callable[[str], str]:
    """Every literal of these names, times a factor."""
    pattern = re.compile(rf"\b((?:{names})(?:: \w+)?\s*=\s*)({NUMBER})\b", re.IGNORECASE)
    return lambda code: pattern.sub(lambda m: f"{m[1]}{times(m[2], factor)}", code)


def times(number: str, factor: float) -> str:
    """A whole number stays one, and stays positive."""
    value = float(number) * factor
    return str(max(1, round(value))) if number.isdigit() else f"{value:.10g}"


def replaced(names: str, value: str) -> Callable[[str], str]:
    pattern = re.compile(rf"\b((?:{names})\s*=\s*)({NUMBER})\b", re.IGNORECASE)
    return lambda code: pattern.sub(rf"\g<1>{value}", code)


def other_rewards(code: str) -> str:
    """Literal tensors of rewards and scores: the same numbers in the opposite order, times 3, less 1."""

    def turn(match: re.Match[str]) -> str:
        numbers = [f"{3 * float(n) - 1:.4g}" for n in re.findall(rf"-?{NUMBER}", match[2])][::-1]
        fill = iter(f"{float(n)}" for n in numbers)
        return match[1] + re.sub(rf"-?{NUMBER}", lambda _: next(fill), match[2])

    pattern = re.compile(
        r"(\b\w*(?:rewards|scores)\s*=\s*torch\.tensor\()(\[[^()]*\])", re.IGNORECASE
    )
    return pattern.sub(turn, code)


def other_seed(code: str) -> str:
    code = re.sub(
        r"\b(manual_seed\(|make_generator\(|seed=)(\d+)", lambda m: f"{m[1]}{int(m[2]) + 7}", code
    )
    return re.sub(r"\b(SEED\s*=\s*)(\d+)", lambda m: f"{m[1]}{int(m[2]) + 7}", code)


RATES, STEPS, LEASHES = "lr|critic_lr|rate|learning_rate", "steps|STEPS", "beta|kl_coef|BETA"
EDITS: dict[str, Callable[[str], str]] = {
    "rewards": other_rewards,
    "rate_x10": scaled(RATES, 10),
    "rate_/10": scaled(RATES, 0.1),
    "beta_0": replaced(LEASHES, "0.0"),
    "beta_1": replaced(LEASHES, "1.0"),
    "steps_half": scaled(STEPS, 0.5),
    "steps_double": scaled(STEPS, 2),
    "seed": other_seed,
}


def cells_of(source: str) -> list[tuple[str, str]]:
    """(section, code) of every code cell; a section is what follows a heading of two marks."""
    section, cells = "", []
    for block in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        kind, _, body = block.partition("\n")
        if "markdown" not in kind:
            cells.append((section, body))
        elif found := re.findall(r"^# ## (.+)$", body, re.MULTILINE):
            section = found[-1]
    return cells


def first_rows(names: dict[str, Any]) -> dict[str, Any]:
    """The first metrics row of every run that a page holds under a name, times left out."""

    def rows(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and value and isinstance(value[0], dict) and "step" in value[0]:
            numbers = {k: v for k, v in value[0].items() if isinstance(v, int | float)}
            yield {k: v for k, v in numbers.items() if "second" not in k}
        elif isinstance(value, dict):
            for part in value.values():
                yield from rows(part)

    return {name: found for name, value in names.items() if (found := list(rows(value)))}


class Page:
    """The namespace of a running page."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.failed: list[str] = []

    def run(self, number: int, code: str) -> None:
        """Execute one cell; an exception is noted and the page goes on, as in Jupyter."""
        name = f"cell {number}"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)  # for inspect
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(code, name, "exec"), self.names)
        except Exception as error:
            where = [
                f
                for f in traceback.extract_tb(error.__traceback__)
                if f.filename.startswith("cell")
            ]
            at = f"{where[-1].filename}, line {where[-1].lineno}" if where else f"cell {number}"
            self.failed.append(f"{at}: {type(error).__name__}: {error}"[:300])


def run(name: str, edits: list[str], twice: bool, backwards: bool) -> dict[str, list[str]]:
    """The page from top to bottom; then, `backwards`, its sections once more from the last to the first."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    cells = cells_of(source)
    for edit in edits:
        cells = [(section, EDITS[edit](code)) for section, code in cells]
    page, other = Page(), []
    for number, (_, code) in enumerate(cells):
        page.run(number, code)
        if twice and number:
            before = first_rows(page.names)
            page.run(number, code)
            after = first_rows(page.names)
            other += [f"cell {number}: {n}" for n in before if before[n] != after.get(n)]
    if backwards:
        for section in list(dict.fromkeys(section for section, _ in cells))[::-1]:
            for number, (own, code) in enumerate(cells):
                if own == section:
                    page.run(number, code)
    return {"failed": page.failed, "other": other}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("--edits", nargs="*", default=[], choices=sorted(EDITS))
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--backwards", action="store_true")
    wanted = parser.parse_args()
    os.chdir(FOLDER)
    os.environ["MPLBACKEND"] = "Agg"
    sys.path.insert(0, str(FOLDER))
    print(json.dumps(run(wanted.name, wanted.edits, wanted.twice, wanted.backwards)))


if __name__ == "__main__":
    main()
