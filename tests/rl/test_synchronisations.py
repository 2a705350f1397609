"""How often an engine waits for a GPU: never in a micro-batch, a few times in a step."""

from __future__ import annotations

import pytest
import torch
from engines import ENGINES, SHARE_OF_A, Engine, small_gpt
from synchronisations import Synchronisations

from data.collate import collate_responses
from gpt.log_probs import token_scores

# The single-model engine says so of every run with one update a batch.
pytestmark = pytest.mark.filterwarnings("ignore:with one update a batch")

# The waits of a whole step of 16 responses, 9 or so of them in sampling.
# There were 80 (GRPO) to 119, and 23 (GRPO) to 40 more for each further micro-batch.
A_STEP = {"grpo_process": 70, "pg_grpo": 55}
A_STEP |= dict.fromkeys(("ppo", "kd_ppo", "grpo_variants", "remax"), 50)  # remax samples twice
# PG-GRPO looks up its pairs on the CPU and brings their log-probs there for the log. DPO's rows are
# put together on the CPU, which the counter cannot tell from a device.
A_MICRO_BATCH = {"pg_grpo": 3, "dpo": 9}


def waits(engine: Engine, micro_batch_size: int) -> Synchronisations:
    wished = dict(
        steps=1, minibatches=1, updates_per_batch=1, prompts_per_step=4, group_size=4, batch_size=8,
        micro_batch_size=micro_batch_size,
    )  # fmt: skip
    options = {name: value for name, value in wished.items() if engine.has(name)}
    policy = small_gpt()
    with Synchronisations() as found:
        engine.run(policy, SHARE_OF_A if engine.rule else None, **options)
    return found


@pytest.mark.parametrize("engine", [pytest.param(e, id=e.name) for e in ENGINES])
def test_micro_batches_do_not_wait_for_the_device(engine: Engine):
    """Twice as many micro-batches, the same number of waits."""
    two, four = waits(engine, 8), waits(engine, 4)
    more = (four.count - two.count) / 2
    assert more <= A_MICRO_BATCH.get(engine.name, 0), four.places - two.places
    assert two.count <= A_STEP.get(engine.name, 40), two.places


def test_the_counter_sees_what_would_wait():
    """Numbers, shapes that depend on values, and host indices; but nothing that stays on the host."""
    device = torch.randn(6, generator=torch.Generator().manual_seed(0))
    with Synchronisations() as found:
        host = torch.randperm(6)
        float(device.sum()), bool(device[0] > 0), device.tolist()
        assert found.count == 3
        device[device > 0], device.nonzero(), device[host]
        assert found.count == 6
        host.tolist(), int(host.max()), host[host > 2], device.cpu().tolist()
        assert found.count == 7  # the copy alone
        device[host.to(device.device)], device.sum() * 2
        assert found.count == 7
    assert any("test_synchronisations.py" in place for place in found.places)


def test_scoring_asks_for_the_sizes_of_a_batch_once():
    batch = collate_responses([[1], [2, 3], [4]], [[5, 8], [6], [7, 7, 8]], 8)
    policy = small_gpt()
    with Synchronisations() as found:
        for rows in (torch.tensor([0, 2]), torch.tensor([1])):
            token_scores(policy, batch.rows(rows))
    assert found.count <= 1
