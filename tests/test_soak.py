"""A run that is killed and resumed is the run that was not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import soak


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="the soak kills groups of processes")
def test_a_run_that_is_killed_as_it_saves_ends_as_if_it_were_not(tmp_path: Path) -> None:
    assert soak.soak("gpt.pretraining", 1, tmp_path, moments=("write",)) == 1
