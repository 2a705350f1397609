"""The over-optimisation study: its list of jobs."""

from __future__ import annotations

import pytest

from studies.overoptimisation.plan import PARTS, SETTINGS, Settings, plan
from studies.overoptimisation.stages import STAGES


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_job_comes_after_what_it_needs(settings: Settings) -> None:
    listed = plan(settings)
    names = list(listed)
    for place, job in enumerate(listed.values()):
        assert job.stage in STAGES and job.parts <= set(PARTS) and job.parts
        assert all(names.index(need) < place for need in job.needs)
