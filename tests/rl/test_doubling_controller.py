"""PPO's doubling rule by its flag: every engine with a KL coefficient obeys it and resumes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engines import ENGINES, Crash, CrashingLog, Engine, small_gpt

from harness.training_state import saved_step

each_engine = pytest.mark.parametrize(
    "engine",
    [
        pytest.param(engine, id=engine.name)
        for engine in ENGINES
        if "the_adaptive_controller_moves_the_penalty" not in engine.skips
    ],
)
pytestmark = pytest.mark.filterwarnings("ignore:with one update a batch")


def run(engine: Engine, **options: Any) -> list[dict[str, Any]]:
    return engine.run(
        small_gpt(n_layer=1), **dict(kl_controller="doubling", kl_coef=0.02) | options
    )


@each_engine
def test_every_engine_with_a_coefficient_doubles_and_halves_it(engine: Engine) -> None:
    """By the KL that it logs: of the batch in the single-model engine, else from the reference."""
    rows = run(engine, steps=3, kl_target=1e3)
    assert [row["kl_coef"] for row in rows] == pytest.approx([0.02, 0.01, 0.005])
    rows = run(engine, steps=4, kl_target=1e-7, minibatches=2)
    factors = [2.0 if row[engine.held] > 1.5e-7 else 0.5 for row in rows[:-1]]
    assert 2.0 in factors
    moved = [after["kl_coef"] / row["kl_coef"] for row, after in zip(rows, rows[1:], strict=False)]
    assert moved == pytest.approx(factors)


@each_engine
def test_a_resumed_run_goes_on_with_the_coefficient_that_it_had(
    engine: Engine, tmp_path: Path
) -> None:
    options: dict[str, Any] = dict(steps=4, kl_target=1e3, checkpoint_every=2)
    log = CrashingLog(4)
    log.last = 3
    with pytest.raises(Crash):
        run(engine, log=log, folder=tmp_path, **options)
    assert saved_step(tmp_path) == 2
    rows = run(engine, folder=tmp_path, resume=True, **options)
    assert [row["kl_coef"] for row in rows] == pytest.approx([0.005, 0.0025])
