"""Studies: what was asked of this project with more than one run, and how to ask it again.

python -m studies NAME --help            its flags
python -m studies NAME                   all that is left of it; Ctrl-C and the same again goes on
python -m studies NAME --quick           the smallest plan, to see that everything works
python -m studies NAME --draw            numbers, tables and figures of docs; nothing is trained
python -m studies figures                every figure of docs, from what docs have recorded
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tyro

from harness.command_line import command_name, errors_as_sentences, expand_arguments, run_script
from harness.errors import UserError
from harness.files import display_path, read_object
from studies import archive
from studies.pages import DOCS
from studies.runner import Study, run_study

STUDIES = {  # name: its module, and what it asks and needs
    "engines": ("engines", "every engine from one start, beside what needs no RL; hours"),
    "claims": ("claims.study", "ten claims of recent papers; ten minutes each"),
    "overoptimisation": ("overoptimisation.study", "the price of a proxy, gold being known; hours"),
    "judges": ("judges.study", "a reward model, a judge in words and a rubric; ten minutes"),
    "own_taste": ("own_taste", "sixty pairs of one person; needs a demo, 40 minutes"),
    "real_model": ("real_model", "SmolLM2 keeps instructions; needs its weights, two hours"),
    "preferences": ("preferences.study", "pairs and a published chat model; needs both, a night"),
}


@dataclass(frozen=True)
class FiguresConfig:
    """Draw what docs show of the studies, from recorded numbers."""

    out: Path = DOCS
    """Folder of the pictures."""


def study_of(name: str) -> Study:
    """UserError where there is none of this name."""
    if name not in STUDIES:
        raise UserError(f"there is no study {name}: choose from {', '.join(STUDIES)}")
    study: Study = importlib.import_module(f"studies.{STUDIES[name][0]}").STUDY
    return study


def draw_figures(config: FiguresConfig) -> None:
    """Those of every study, and of the archive, whose runs are gone."""
    for study in map(study_of, STUDIES):
        if study.recorded is not None:
            study.draw(read_object(study.recorded), config.out)
    archive.draw(DOCS, config.out)
    print(f"wrote the figures of {display_path(config.out)}")


def parsed(name: str, words: Sequence[str]) -> tuple[Callable[[Any], None], Any]:
    """What is to be called, and with which flags."""
    command = f"{command_name()} {name}"
    if name == "figures":
        return draw_figures, tyro.cli(FiguresConfig, prog=command, args=words)
    study = study_of(name)
    usual = study.flags(**{**study.usual, **(study.quick if "--quick" in words else {})})
    return partial(run_study, study, name), tyro.cli(
        study.flags, prog=command, args=words, default=usual
    )


if __name__ == "__main__":
    expand_arguments()
    if sys.argv[1:2] in ([], ["--help"], ["-h"]):
        print(__doc__, *(f"    {name:18}{about}" for name, (_, about) in STUDIES.items()), sep="\n")
    else:
        with errors_as_sentences():
            work, flags = parsed(sys.argv[1], sys.argv[2:])
        run_script(work, flags)
