"""The small models that are kept for the pages: how they are stored."""

from __future__ import annotations

import saved_models as kept
import torch


def test_a_descendant_survives_storing() -> None:
    """8 bits of each row's largest change: no weight is off by more than half a step of it."""
    generator = torch.Generator().manual_seed(0)
    base = {"w": torch.randn(5, 7, generator=generator), "b": torch.zeros(5)}
    trained = {"w": base["w"] + 0.1 * torch.randn(5, 7, generator=generator), "b": torch.ones(5)}
    trained["head"] = torch.randn(1, 7, generator=generator)
    again = kept.add_difference(base, kept.difference(base, trained))
    assert again.keys() == trained.keys()
    assert torch.equal(again["b"], trained["b"]) and torch.equal(again["head"], trained["head"])
    half_a_step = (trained["w"] - base["w"]).abs().amax(1, keepdim=True) / 254
    assert ((again["w"] - trained["w"]).abs() <= half_a_step + 1e-6).all()
    assert not torch.equal(again["w"], base["w"])
