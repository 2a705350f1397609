"""Preference pairs and a published chat model: what training makes of them, beside every control.

    python -m studies preferences --model runs/smollm2 --pairs pairs.json --people people.jsonl
    python -m studies preferences polite --seeds 1      (--quick: ten minutes, to see it work)

Two files, one question each. Of the polite pairs one half trains the reward model that pays GRPO, by the
printed commands with all their defaults, and is what DPO and fine-tuning read; the other half trains a
judge of the same kind and a linear one on words; no question has a near-duplicate in another part. Of the
pairs that people made every third of the instructions is held out once. Each policy answers the held-out
prompts; the numbers have answers, too. A night of two cores does it all; it goes on where it was.
"""

from __future__ import annotations

from harness.paths import REPOSITORY
from studies.preferences.measure import do
from studies.preferences.plan import PreferencesConfig, plan
from studies.preferences.recording import collect, draw, tables
from studies.runner import Study

STUDY = Study(
    flags=PreferencesConfig, usual={"jobs": 1}, quick={"seeds": 1}, plan=plan, do=do, collect=collect,
    tables=tables, draw=draw,
    recorded=REPOSITORY / "docs" / "preferences.json", levels=3, shares_threads=True, resumes=True,
)  # fmt: skip
