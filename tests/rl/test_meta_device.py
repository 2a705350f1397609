"""Forwards, losses and the meter on the meta device: shapes alone, where asking for a number raises.

So what passes here mixes no devices (a tensor left on the CPU is refused) and never waits for one.
"""

from __future__ import annotations

import pytest
import torch
from engines import small_gpt
from torch import Tensor

from data.collate import ResponseBatch, collate_responses
from gpt.distillation import forward_kl
from gpt.log_probs import (
    full_kl,
    token_log_probs,
    token_scores,
    token_scores_and_kl,
)
from gpt.model import GPT
from gpt.pretraining import language_model_loss
from rl.actor_critic import ValueModel
from rl.batches.rollout import micro_batches
from rl.equations.losses import clipped_surrogate, sequence_mean, token_mean, value_loss
from rl.run.metrics import UpdateMeter, clip_mask

EOS, V = 8, 10
PROMPTS = [[1], [2, 3, 4], [5, 6], [7]]
RESPONSES = [[1, 2, 8], [3, 8], [4, 5, 6, 7], [8]]
N, T = 4, 4
META = torch.device("meta")
ALL = torch.arange(N)


def on_meta() -> tuple[GPT, ResponseBatch]:
    """A model and a batch; the batch knows its sizes, as one of a rollout does."""
    return small_gpt().to(META), collate_responses(PROMPTS, RESPONSES, EOS).to(META)


def is_there(*tensors: Tensor, shape: tuple[int, ...] = (N, T)) -> None:
    for tensor in tensors:
        assert tensor.device == META and tensor.shape == shape and tensor.dtype == torch.float32


@pytest.mark.parametrize("chunk_elements", [3 * V, 10**9])
def test_scores_and_divergences(chunk_elements, monkeypatch):
    monkeypatch.setattr("gpt.log_probs.CHUNK_ELEMENTS", chunk_elements)
    policy, batch = on_meta()
    other = small_gpt().to(META)
    is_there(token_log_probs(policy, batch, 0.7))
    is_there(*token_scores(policy, batch, entropy_gradient=True))
    is_there(full_kl(policy, other, batch))
    scores, kl = token_scores_and_kl(policy, other, batch)
    is_there(*scores, kl, forward_kl(policy, other, batch))
    language_model_loss(policy, batch, denominator=9).backward()
    assert all(p.grad is not None and p.grad.device == META for p in policy.parameters())


def test_an_update_of_actor_and_critic_with_its_meter():
    """All that a micro-batch of PPO does; the numbers are read when the step is over."""
    policy, whole = on_meta()
    critic, meter = ValueModel(policy).to(META), UpdateMeter(clip_mask(0.2))
    old = torch.zeros(N, T, device=META)
    sizes = []
    for part, batch in micro_batches(whole, ALL, 3):
        scores, values = token_scores(policy, batch), critic(batch)
        surrogate = clipped_surrogate(scores.log_probs, old[part], old[part], 0.2, 0.2)
        squared = value_loss(values, old[part], old[part], 0.2)
        mask = batch.response_mask
        loss = sequence_mean(surrogate, mask, denominator=N)
        loss = loss + token_mean(squared, mask, denominator=whole.sizes[:, 1].sum().item())
        loss.backward()
        meter.add_tokens(scores, old[part], old[part], batch, value_loss=squared)
        meter.add_update(loss.detach(), loss.detach())
        sizes.append(len(part))
    assert sizes == [3, 1] and meter.tokens == 10
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        meter.metrics()
