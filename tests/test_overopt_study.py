"""The over-optimisation study: its list of jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.overoptimisation.__main__ import JSON, draw
from studies.overoptimisation.plan import PARTS, SETTINGS, Settings, plan
from studies.overoptimisation.stages import STAGES


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_job_comes_after_what_it_needs(settings: Settings) -> None:
    listed = plan(settings)
    names = list(listed)
    for place, job in enumerate(listed.values()):
        assert job.stage in STAGES and job.parts <= set(PARTS) and job.parts
        assert all(names.index(need) < place for need in job.needs)


def test_drawing_keeps_what_other_revisions_have_recorded(tmp_path: Path) -> None:
    (tmp_path / JSON).write_text('{"settings": {"theirs": 1, "smooth": 9}, "budget": {}}')
    draw((), Settings(), tmp_path, tmp_path)
    numbers = json.loads((tmp_path / JSON).read_text())
    assert numbers["settings"]["theirs"] == 1 and numbers["settings"]["smooth"] == 3
    assert "budget" in numbers
