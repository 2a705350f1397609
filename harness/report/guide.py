"""What docs/metrics.md says of a metric, for the captions and the healthy ranges of the curves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
GENERAL = "Every engine"

# The section of the page that explains a script's own keys; engines not named here need none.
SECTIONS = {
    "pretraining": "Pre-training and fine-tuning",
    "finetuning": "Pre-training and fine-tuning",
    "distillation": "Distillation",
    "reward_model": "Reward model",
    "dpo": "DPO",
    "ppo": "PPO",
    "kd_ppo": "KD-GRPO and KD-PPO",
    "kd_grpo": "KD-GRPO and KD-PPO",
    "minillm": "MiniLLM",
    "pg_grpo": "PG-GRPO",
    "grpo_process": "Process-supervised GRPO",
    "grpo_iterative": "Iterative GRPO",
    "grpo_single_model": "Single-model GRPO",
}

# The page's healthy ranges that are numbers: (lowest, highest), None where there is no such end.
HEALTHY: dict[str, tuple[float | None, float | None]] = {
    "zero_spread_groups": (None, 0.5),
    "clip_high_fraction": (0.0, 0.1),
    "clip_low_fraction": (0.0, 0.1),
    "approx_kl": (None, 0.01),
    "ratio_error_at_start": (None, 0.0001),
    "rule_errors": (0.0, 0.0),
    "preference_accuracy": (0.5, 0.7),
    "sampling_rounds": (1.0, 3.0),
}


@dataclass(frozen=True)
class Entry:
    """One line of a table of docs/metrics.md, in words."""

    unit: str
    meaning: str
    healthy: str
    worry: str


@cache
def tables() -> Mapping[str, Mapping[str, Entry]]:
    """Section -> key -> entry; empty where the page is not there (an installed package)."""
    found: dict[str, dict[str, Entry]] = {}
    section = ""
    lines = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.is_file() else []
    for line in lines:
        if line.startswith("## "):
            section = line[3:].strip()
        cells = [plain(cell) for cell in line.strip().strip("|").split("|")]
        if line.startswith("| `") and len(cells) >= 3:
            entry = Entry(*[*cells[1:], "", ""][:4])
            found.setdefault(section, {})[cells[0]] = entry
    return found


def plain(cell: str) -> str:
    """A table's cell as text: without back-quotes, links by their words, formulas without TeX."""
    cell = re.sub(r"\$([^$]*)\$", lambda match: match[1].replace("\\", ""), cell)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).replace("`", "").strip()


def explain(key: str, script: str = "") -> Entry | None:
    """The entry of a key: of the script's own section, else the general one, else the first."""
    own = SECTIONS.get(script, "")
    ordered = [own, GENERAL, *tables()] if own else [GENERAL, *tables()]
    entries = (tables().get(section, {}).get(key) for section in ordered)
    return next((entry for entry in entries if entry is not None), None)
