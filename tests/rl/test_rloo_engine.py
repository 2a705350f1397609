"""RLOO's losses away from ratio 1, by loops, and where the clip of each acts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engines import engine_named
from slow import MASK, NEW, OLD, RATIO, pessimistic

from rl.rloo_engine import clip_mask_of, rloo_loss

SIGNED = [1.5, -0.5, 9.0]  # an advantage for each response
VALID = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
PRODUCTS = [1.0 * 2.0 * 0.7, 0.5 * 2.2]  # outside of the clip and inside
# Of a minibatch of 5 rows and 11 tokens, whose empty row adds nothing: no ratio and no length; one ratio
# for the response; a ratio for each token, and the tokens of the minibatch as the divisor.
LOSSES = {
    "sequence": -sum(SIGNED[i] * float(NEW[i, t]) for i, t in VALID) / 5,
    "clipped": sum(pessimistic(PRODUCTS[i], SIGNED[i]) for i in (0, 1)) / 5,
    "token": sum(pessimistic(float(RATIO[i, t]), SIGNED[i]) for i, t in VALID) / 11,
}
CLIPPED = {
    "sequence": [0] * 5,
    "clipped": [1, 1, 1, 0, 0],
    "token": [0, 1, 0, 1, 0],
}  # bad side alone


@pytest.mark.parametrize("form", LOSSES)
def test_the_loss_and_where_its_clip_acts(form):
    config = replace(engine_named("rloo").config, clip_range=0.2, loss=form, updates_per_batch=1)
    given = NEW, OLD, torch.tensor(SIGNED)[:, None], MASK
    assert float(rloo_loss(config, *given, responses=5, tokens=11)) == pytest.approx(LOSSES[form])
    assert clip_mask_of(config)(*given).expand_as(MASK)[MASK].tolist() == CLIPPED[form]
