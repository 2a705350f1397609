"""An engine in a file outside of the repository, the one of docs/extending.md: nothing knows its name."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from toys import saved_gpt

from gpt.checkpoint import load_gpt
from gpt.model import GPT
from harness.errors import NothingToDo
from harness.files import read_jsonl
from harness.paths import REPOSITORY
from report.doctor import examine_folder
from rl.loop import Run

PAGE = REPOSITORY / "docs" / "extending.md"
NAME = "frobnicated_7"  # of no paper, no file and no list


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the engine as the page shows it, a reward and a start."""
    folder = tmp_path_factory.mktemp("elsewhere")
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    (code,) = (block for block in blocks if "ENGINE = Engine(" in block)
    (folder / "tis_engine.py").write_text(code, encoding="utf-8")
    (folder / "rewards.py").write_text("def odd(prompt, response):\n    return len(response) % 2\n")
    saved_gpt(folder / "base", context=96)
    return folder


def flags(place: Path, **changes: Any) -> dict[str, Any]:
    return dict(
        data="sums", model=str(place / "base"), reward=f"{place}/rewards.py:odd", device="cpu", steps=3,
        prompts_per_step=2, group_size=4, updates_per_batch=2, max_new_tokens=8, eval_every=2,
        eval_prompts=4, test_prompts=4, save_every=1, lr=1e-2,
    ) | changes  # fmt: skip


@pytest.fixture(scope="module")
def tis(place: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("tis_engine", place / "tis_engine.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tis_engine"] = module  # as an import from its folder would
    spec.loader.exec_module(module)
    return module


def test_a_run_knows_all_it_needs(place: Path, tis: ModuleType) -> None:
    """Run folder, report and doctor; a run that was cut goes on to the same weights."""
    engine = replace(tis.ENGINE, name=NAME)
    folder = engine.run(tis.TISConfig(**flags(place, out=place / "whole")))
    assert tis.TISConfig.__module__ in (folder / "report.html").read_text(encoding="utf-8")
    rows = read_jsonl(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3] and rows[-1]["grad_norm"] > 0
    assert all(finding.severity != "error" for finding in examine_folder(folder))

    real_train, cut = engine.train, place / "cut"

    def killed(run: Run) -> Any:
        def stop(policy: GPT, reference: GPT | None, step: int) -> dict[str, float]:
            raise KeyboardInterrupt

        run.validate = stop
        return real_train(run)

    with pytest.raises(KeyboardInterrupt):
        replace(engine, train=killed).run(tis.TISConfig(**flags(place, out=cut)))
    config = tis.TISConfig(**flags(place, out=cut, resume=True))
    engine.run(config)
    ends = [load_gpt(each)[0].state_dict() for each in (folder, cut)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    with pytest.raises(NothingToDo):
        engine.run(config)
