"""Make the small models again that the pages start from (notebooks/course/kept).

    python scripts/keep_models.py                    train them from nothing: the demo, then its files
    python scripts/keep_models.py --run runs/demo    take a demo that has been trained already

Trained are a base model, a reward model and a GRPO policy of the reviews world, 0.9 million weights
each. What is kept of them takes 3.6 MB: the base in bfloat16, the others as 8-bit differences.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

from dataclasses import dataclass
from pathlib import Path

import demo
import saved_models

from harness.command_line import run_command
from harness.errors import UserError
from harness.files import display_path
from harness.flag_ranges import Seed
from harness.paths import RUNS


@dataclass(frozen=True)
class KeepConfig:
    """What to keep: the models of a finished demo, or of one that is trained now."""

    run: Path | None = None
    """Folder of a finished scripts/demo.py; default: train one."""
    seed: Seed = 0
    """Seed of the demo that is trained."""
    out: Path = saved_models.FOLDER
    """Where the three files go."""
    debug: bool = False
    """Show the traceback of an error."""


def main(config: KeepConfig) -> None:
    """Train if need be, then write the files."""
    run = config.run
    if run is None:
        run = RUNS / "kept"
        demo.main(demo.DemoConfig(seed=config.seed, out=run))
    elif not (run / "results.json").exists():
        raise UserError(f"{display_path(run)} is no finished demo: it holds no results.json")
    saved_models.keep(run, config.out)
    size = sum((config.out / path.name).stat().st_size for path in saved_models.FILES.values())
    print(
        f"kept {len(saved_models.FILES)} models in {display_path(config.out)}, {size / 1e6:.2f} MB"
    )


if __name__ == "__main__":
    run_command(main, KeepConfig)
