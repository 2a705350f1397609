"""How often an engine waits for a GPU: never in a micro-batch, a few times in a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from engines import ENGINES, SHARE_OF_A, Engine, small_gpt
from synchronisations import Synchronisations
from torch.profiler import ProfilerActivity, profile

from data.collate import collate_responses
from gpt.log_probs import token_scores

# The single-model engine says so of every run with one update a batch.
pytestmark = pytest.mark.filterwarnings("ignore:with one update a batch")

# The waits of a whole step of 16 responses. GRPO's are 6 on a device; here the counter is a little coarser.
A_STEP = {"grpo_process": 70, "pg_grpo": 55}
A_STEP |= dict.fromkeys(("ppo", "kd_ppo", "grpo_variants"), 50)
# DPO's rows are put together on the CPU, which the counter cannot tell from a device.
A_MICRO_BATCH = {"dpo": 9, "pg_grpo": 1}
# What asks a GPU for a size or a number, also where autograd calls it.
ASKS = {"aten::masked_select", "aten::nonzero", "aten::item", "aten::_local_scalar_dense"}


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


@pytest.mark.parametrize(
    "engine",
    [pytest.param(e, id=e.name) for e in ENGINES if e.name in ("grpo", "ppo", "minillm", "dpo")],
)
def test_no_backward_asks_for_a_size(engine: Engine):
    """The backward of masked_scatter is a masked_select, which no counter of Python calls sees."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen:
        waits(engine, 4)
    backward = [
        event.name
        for event in seen.events()
        if event.name in ASKS and any("Backward" in parent.name for parent in parents(event))
    ]
    assert not backward


def parents(event: Any) -> Iterator[Any]:
    while event.cpu_parent is not None:
        event = event.cpu_parent
        yield event


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
