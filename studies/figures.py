"""Every figure of docs that a study draws, anew from recorded numbers; nothing is trained.

    python -m studies.figures                    all, into docs
    python -m studies.figures --out FOLDER       somewhere else

Recorded are docs/*.json, the recordings of the course, and one table of docs/archive.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.command_line import run_command
from harness.files import display_path, read_object
from harness.paths import REPOSITORY
from studies import archive, real_model
from studies.claims import __main__ as claims
from studies.overoptimisation.figures import DRAWN

DOCS = REPOSITORY / "docs"
RECORDINGS = REPOSITORY / "notebooks" / "course" / "recordings"


@dataclass(frozen=True)
class FiguresConfig:
    """Draw what docs show of the studies, from recorded numbers."""

    out: Path = DOCS
    """Folder of the pictures."""


def draw_all(out: Path) -> None:
    """Write each into a folder that is there."""
    numbers = read_object(DOCS / "overoptimisation.json")
    for draw in DRAWN.values():
        draw(numbers, out)
    archive.draw_budget(numbers, out)
    archive.draw_curves(numbers, out)
    archive.draw_off_policy((DOCS / "archive.md").read_text(encoding="utf-8"), out)
    archive.draw_preferences(read_object(DOCS / "preferences_48_tokens.json"), out)
    records = read_object(DOCS / "claims.json")["claims"]
    claims.draw(records, claims.gathered(out, DOCS), out)
    real_model.picture(read_object(RECORDINGS / "real_model.json"), out / "real_model.png")


def main(config: FiguresConfig) -> None:
    config.out.mkdir(parents=True, exist_ok=True)
    draw_all(config.out)
    print(f"wrote the figures of {display_path(config.out)}")


if __name__ == "__main__":
    run_command(main, FiguresConfig)
