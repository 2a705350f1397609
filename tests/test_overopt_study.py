"""The over-optimisation study: its list, one rehearsal of the law, and a page from its JSON alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from overopt import pages, recording, results, runs
from overopt.plan import PARTS, STAGES, do, plan
from overopt.settings import ENGINES, SETTINGS, TUNING, Settings
from studies import bootstrap, runner
from studies.runner import Job

from harness.errors import UserError
from harness.files import append_jsonl, write_json

SMALL = SETTINGS["rehearsal"]


# --- the list -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_job_comes_after_what_it_needs(settings: Settings) -> None:
    listed = plan(settings)
    names = list(listed)
    for place, job in enumerate(listed.values()):
        assert job.stage in STAGES and job.parts <= set(PARTS) and job.parts
        assert all(names.index(need) < place for need in job.needs)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("world", ["reviews", "sums"])
def test_every_engine_takes_its_flags(name: str, world: str) -> None:
    """And the tries of SAPO; CISPO at 5 has its weights end at 1 + 4."""
    import importlib

    engine = ENGINES[name]
    module = importlib.import_module(engine.module)
    for more in TUNING if name == "sapo" else ({},):
        config = runs.config_of(module, world, dict(engine.flags) | dict(steps=60) | more)
        assert (config.data, config.steps, config.preset) == (world, 60, "study")
        assert config.prompts_per_step * config.group_size == 128  # one size of batch for all
        if name.startswith("cispo"):
            assert config.clip_high == (4.0 if name == "cispo_5" else 0.2)


# --- running it -----------------------------------------------------------------------------------


def listed(root: Path) -> dict[str, Job]:
    return {
        "a": Job("a", "base", {}, (), frozenset({"law"})),
        "b": Job("b", "base", {}, ("a",), frozenset({"law", "cures"})),
        "c": Job("c", "base", {}, ("b",), frozenset({"budget"})),
    }


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Start 0 of the rehearsal: the law, and two cures."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("rehearsal")
    known = plan(SMALL)
    law = [name for name in known if name.startswith("start-0/") and "law" in known[name].parts]
    cures = ["start-0/rm/1x32-12-1", "start-0/cures/ensemble_min", "start-0/cures/own_answers"]
    for name in [*law, *cures]:
        do(known[name], SMALL, root)
    return root


def test_a_run_is_measured_per_prompt_and_its_gold_is_its_terms(rehearsed: Path) -> None:
    points = results.read_points(rehearsed / "start-0/law/grpo-1x32-24")
    assert points["gold"].shape == points["kl"].shape == points["qual"].shape == (4, SMALL.prompts)
    assert points["step"].tolist() == [0, 2, 4, 6]
    assert points["kl"][0] == pytest.approx(0, abs=1e-4) and abs(points["kl"][-1]).max() > 0
    content = sum(w * points[n] for n, w in (("sent", 0.3), ("topic", 0.3), ("polite", 0.25)))
    gold = (content + 0.15 * points["form"]) * (0.3 + 0.7 * points["qual"])
    assert points["gold"] == pytest.approx(gold, abs=1e-6)
    assert np.diff(points["seconds"]).min() > 0
    assert len(runs.sampled_tokens(rehearsed / "start-0/law/grpo-1x32-24")) == 6


def test_the_page_is_written_from_the_runs_and_again_from_the_json(
    rehearsed: Path, tmp_path: Path
) -> None:
    docs = tmp_path / "docs"
    pages.draw(("law", "cures"), SMALL, rehearsed, docs)
    numbers = json.loads((docs / "overoptimisation.json").read_text())
    assert {cell["engine"] for cell in numbers["law"]["cells"]} == {"grpo", "ppo"}
    assert numbers["progress"]["law"]["done"] == 10 and numbers["progress"]["budget"]["done"] < 5
    text = (docs / "overoptimisation.md").read_text()
    assert "`python scripts/overoptimisation.py --parts budget`" in text
    assert "1 of 2 starts have been run" in text and "| 1x32, ppo | " in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.count("|") > 3
    figure = (docs / "overoptimisation_law.png").read_bytes()
    assert figure[:4] == b"\x89PNG" and (docs / "overoptimisation_cures.png").exists()
    pages.draw(("law", "cures"), SMALL, tmp_path / "nothing", docs)
    assert (docs / "overoptimisation.md").read_text() == text


def test_a_recording_holds_what_the_page_shows(rehearsed: Path, tmp_path: Path) -> None:
    recording.record(SMALL, rehearsed, tmp_path / "recording.json")
    found = json.loads((tmp_path / "recording.json").read_text())
    assert list(found["runs"]) == ["patient", "own_answers", "ensemble_min"]
    assert found["best_of_n"]["n"] == [1, 2, 4] and found["alarm"]["step"] is None
    assert len(found["bank"]["proxy"][0]) == len(found["bank"]["gold"][0]) == SMALL.bank_answers
    assert {row["step"] for row in found["texts"]} == {0, 2, 4, 6}
    with pytest.raises(UserError, match="finished: run it with\n    python"):
        recording.record(SMALL, tmp_path, tmp_path / "other.json")


# --- one budget, on invented runs -----------------------------------------------------------------


@pytest.fixture(scope="module")
def few_draws() -> Iterator[None]:
    """A tenth of the bootstrap's draws."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap.resampled, "__defaults__", (bootstrap.DRAWS // 10,))
        yield


def invented_run(folder: Path, gold: float, seed: int, *, far: float = 5.0) -> None:
    """Four measurements on 8 prompts: gold rises from 0.4, KL to `far`, 100 tokens a step."""
    rng = np.random.default_rng(seed)
    noise = torch.from_numpy(rng.normal(size=8) * 0.02)
    share = torch.tensor([0.0, 0.4, 0.8, 1.0], dtype=torch.float64)[:, None]
    step = torch.tensor([0, 2, 4, 6])
    points: dict[str, Any] = {
        "step": step, "seconds": step * 1.0, "gold": 0.4 + share * (gold - 0.4) + noise,
        "kl": far * share + torch.zeros(8), "proxy": share + torch.zeros(8),
        "length": torch.full((4, 8), 4.0), "eos": torch.ones(4, 8),
    }  # fmt: skip
    folder.mkdir(parents=True)
    torch.save(points, folder / "points.pt")
    rows = [{"step": s, "tokens_per_second": 50.0, "seconds/rollout": 2.0} for s in range(1, 7)]
    append_jsonl(folder / "metrics.jsonl", rows)
    write_json(folder / runner.DONE, {"cpu": 6.0, "wall": 6.0})


@pytest.fixture(scope="module")
def compared(few_draws: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """GRPO ends at 0.8, RLOO at 0.9, PPO at 0.8 but only 3 nats away."""
    tmp_path = tmp_path_factory.mktemp("budget")
    for start in SMALL.budget_starts:
        for seed in SMALL.budget_seeds:
            for name, gold, far in (("grpo", 0.8, 5.0), ("rloo", 0.9, 5.0), ("ppo", 0.8, 3.0)):
                folder = tmp_path / f"start-{start}" / "budget" / "reviews" / f"{name}-{seed}"
                invented_run(folder, gold, 10 * start + seed, far=far)
    settings = replace(SMALL, budget_responses=100)  # x 4 tokens: after four steps of six
    return {"root": tmp_path, "settings": settings, **results.collect("budget", settings, tmp_path)}


def row_of(compared: dict[str, Any], engine: str, view: str) -> dict[str, Any]:
    (row,) = (
        row
        for row in compared["reviews"]["table"]
        if (row["engine"], row["view"]) == (engine, view)
    )
    return row


def test_equal_tokens_and_equal_time(compared: dict[str, Any]) -> None:
    """400 tokens are four steps: 0.4 + 0.8 of the way, also for GRPO's four seconds."""
    assert compared["reviews"]["tokens"] == pytest.approx(400)
    assert compared["reviews"]["seconds"] == pytest.approx(4)
    for view in ("tokens", "seconds"):
        grpo, rloo = (row_of(compared, name, view) for name in ("grpo", "rloo"))
        assert rloo["mean"] - grpo["mean"] == pytest.approx(0.08, abs=1e-3)
        assert rloo["difference"]["low"] == pytest.approx(0.08, abs=1e-3)  # paired: no noise left
        assert grpo["reached"] == 4 and "difference" not in grpo


def test_equal_distance_or_not_reached(compared: dict[str, Any]) -> None:
    """At 4 nats GRPO is 0.8 of the way; PPO, never further than 3, has no number there."""
    at_four = row_of(compared, "grpo", "kl_4")
    assert at_four["mean"] == pytest.approx(0.72, abs=0.02)
    assert row_of(compared, "ppo", "kl_4")["reached"] == 0
    assert "mean" not in row_of(compared, "ppo", "kl_4")
    assert row_of(compared, "grpo", "kl_6")["reached"] == 0
    nearer = row_of(compared, "ppo", "kl_2")
    assert nearer["difference"]["mean"] == pytest.approx(2 / 3 * 0.4 - 2 / 5 * 0.4, abs=1e-3)
    p = [row_of(compared, name, "kl_2")["difference"] for name in ("ppo", "rloo")]
    assert not any("p" in each for each in p)  # of two starts nothing is tested


# --- a row made once more -------------------------------------------------------------------------
