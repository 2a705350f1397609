"""PPO's doubling rule by its flag: obeyed and resumed, whatever the penalty is and where it stands.

That every engine asks its controller is held with the adaptive one, in test_engine_contract.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from engines import Engine, engine_named, small_gpt

DOUBLING: dict[str, Any] = dict(
    prompts_per_step=4, group_size=4, minibatches=2, updates_per_batch=1, kl_controller="doubling",
    kl_coef=0.02,
)  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:with one update a batch")
each_engine = pytest.mark.parametrize(
    "engine",
    [pytest.param(engine_named(n), id=n) for n in ("grpo", "grpo_single_model", "ppo", "rloo")],
)


@each_engine
def test_the_coefficient_is_doubled_and_halved(engine: Engine) -> None:
    """By the KL that it logs: of the batch in the single-model engine, else from the reference."""
    rows = engine.run(small_gpt(), steps=3, kl_target=1e3, **DOUBLING)
    assert [row["kl_coef"] for row in rows] == pytest.approx([0.02, 0.01, 0.005])
    rows = engine.run(small_gpt(), steps=4, kl_target=1e-7, **DOUBLING)
    measured = [row[engine.held] for row in rows[:-1]]
    factors = [2.0 if kl > 1.5e-7 else 0.5 if kl < 1e-7 / 1.5 else 1.0 for kl in measured]
    assert 2.0 in factors
    moved = [after["kl_coef"] / row["kl_coef"] for row, after in zip(rows, rows[1:], strict=False)]
    assert moved == pytest.approx(factors)
