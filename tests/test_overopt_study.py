"""The over-optimisation study: its list, one rehearsal of the law, and a page from its JSON alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from overopt.plan import PARTS, SETTINGS, Settings, plan
from overopt.stages import STAGES, read_points
from studies.runner import Job, work

from scripts import overoptimisation as study

SMALL = SETTINGS["rehearsal"]


# --- the list -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_job_comes_after_what_it_needs(settings: Settings) -> None:
    listed = plan(settings)
    names = list(listed)
    for place, job in enumerate(listed.values()):
        assert job.stage in STAGES and job.parts <= set(PARTS) and job.parts
        assert all(names.index(need) < place for need in job.needs)


# --- running it -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Start 0 of the rehearsal: the law, and two cures."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("rehearsal")
    known = plan(SMALL)
    law = [name for name in known if name.startswith("start-0/") and "law" in known[name].parts]
    cures = ["start-0/rm/1x32-12-1", "start-0/cures/ensemble_min", "start-0/cures/own_answers"]

    def do(job: Job, folder: Path) -> None:
        STAGES[job.stage](folder, SMALL, root, **job.arguments)

    for name in [*law, *cures]:
        work(known[name], root, do)
    return root


def test_a_run_is_measured_per_prompt_and_its_gold_is_its_terms(rehearsed: Path) -> None:
    points = read_points(rehearsed / "start-0/law/grpo-1x32-24")
    assert points["gold"].shape == points["kl"].shape == points["qual"].shape == (4, SMALL.prompts)
    assert points["step"].tolist() == [0, 2, 4, 6]
    assert points["kl"][0] == pytest.approx(0, abs=1e-4) and abs(points["kl"][-1]).max() > 0
    content = sum(w * points[n] for n, w in (("sent", 0.3), ("topic", 0.3), ("polite", 0.25)))
    gold = (content + 0.15 * points["form"]) * (0.3 + 0.7 * points["qual"])
    assert points["gold"] == pytest.approx(gold, abs=1e-6)


def test_the_page_is_written_from_the_runs_and_again_from_the_json(
    rehearsed: Path, tmp_path: Path
) -> None:
    docs = tmp_path / "docs"
    marks = ("law", "falls", "answers", "cures", "alarms")
    docs.mkdir()
    page = docs / "overoptimisation.md"
    page.write_text("".join(f"<!-- {mark} -->\n<!-- end of {mark} -->\n" for mark in marks))
    study.draw(("law", "cures"), SMALL, rehearsed, docs)
    numbers = json.loads((docs / "overoptimisation.json").read_text())
    assert {cell["engine"] for cell in numbers["law"]["cells"]} == {"grpo", "ppo"}
    text = page.read_text()
    assert "| 1x32, ppo | - | " in text and "| ensemble_min |" in text
    figure = (docs / "overoptimisation_law.png").read_bytes()
    assert figure[:4] == b"\x89PNG" and (docs / "overoptimisation_cures.png").exists()
    study.draw(("law", "cures"), SMALL, tmp_path / "nothing", docs)
    assert page.read_text() == text
