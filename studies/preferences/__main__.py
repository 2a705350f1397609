"""Preference pairs and a published chat model: what training makes of them, beside every control.

    python -m studies.preferences --model runs/smollm2 --pairs pairs.json --people people.jsonl
    python -m studies.preferences ... --stages polite --seeds 1      (--quick: ten minutes, to see it work)

Two files, one question each. Of the polite pairs one half trains the reward model that pays GRPO, by the
printed commands with all their defaults, and is what DPO and fine-tuning read; the other half trains a
judge of the same kind and a linear one on words; no question has a near-duplicate in another part. Of the
pairs that people made every third of the instructions is held out once. Each policy answers the held-out
prompts; recording.json has every number, and answers. A night of two cores does it all; it goes on where
it was.
"""

from __future__ import annotations

from functools import partial

from harness.command_line import run_command
from harness.files import display_path, write_json
from studies.preferences.measure import do
from studies.preferences.plan import PreferencesConfig, plan
from studies.preferences.recording import by_policy, picture, recorded, table, table_of_judges
from studies.runner import go


def main(config: PreferencesConfig) -> None:
    jobs = plan(config)
    if not go(config, jobs, config.stages, partial(do, config), threads=None, resume=True):
        return
    found, out = recorded(config, jobs), config.out.resolve()
    write_json(out / "recording.json", found)
    print(*table_of_judges(found), sep="\n")
    for of in ("polite", "people"):
        if by_policy(found, of):
            print("", *table(found, of), sep="\n")
    if by_policy(found, "polite"):
        picture(found, out / "preferences.png")
    print(f"wrote {display_path(out)}")


if __name__ == "__main__":
    run_command(main, PreferencesConfig)
