"""Policy and critic in training: nothing is done to one and forgotten for the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from toys import weights

from data.collate import join_responses
from gpt.model import GPT, GPTConfig
from rl.training.actor_critic import ActorCritic, ActorCriticConfig
from rl.training.value_model import ValueModel

CONFIG = ActorCriticConfig(lr=1e-2, critic_lr=3e-2, max_norm=0.5)
TOKENS = torch.tensor([[1, 2, 3], [4, 5, 0]])
MASK = torch.tensor([[True, True, True], [True, True, False]])
BATCH = join_responses([[1], [2, 3]], TOKENS, MASK, torch.tensor([True, True]))


def small_gpt() -> GPT:
    shape = GPTConfig(9, 16, n_layer=1, n_head=2, n_embd=16, dropout=0.5)
    return GPT(shape).initialize(torch.Generator().manual_seed(0))


@pytest.fixture
def models() -> ActorCritic:
    policy = small_gpt().train()
    return ActorCritic(CONFIG, policy, ValueModel.from_policy(policy).train())


def gradient(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def backward(models: ActorCritic, critic_weight: float = 1.0) -> None:
    scores, values = models.scores_and_values(BATCH)
    loss = scores.log_probs[MASK].sum() + critic_weight * (values[MASK] - 1).square().sum()
    loss.backward()


def test_each_is_clipped_by_its_own_norm(models):
    """A critic that is a thousand times further off leaves the policy's gradient as it is."""
    backward(models)
    policy_alone = gradient(models.policy).norm()
    models.zero_grad()
    backward(models, critic_weight=1000.0)
    critic_norm = gradient(models.value_model).norm()
    assert critic_norm > 100 * policy_alone > 100 * CONFIG.max_norm
    found = models.clip_and_step()
    torch.testing.assert_close(torch.stack(found), torch.stack([policy_alone, critic_norm]))
    for model in (models.policy, models.value_model):
        assert float(gradient(model).norm()) == pytest.approx(CONFIG.max_norm, rel=1e-4)


def test_both_step_and_both_are_cleared(models):
    before = [weights(model) for model in (models.policy, models.value_model)]
    backward(models)
    models.clip_and_step()
    for model, then in zip((models.policy, models.value_model), before, strict=True):
        assert not torch.equal(weights(model), then)
    models.zero_grad()
    for model in (models.policy, models.value_model):
        assert all(parameter.grad is None for parameter in model.parameters())


def test_dropout_is_off_and_weights_do_not_decay(models):
    first, again = (models.scores_and_values(BATCH) for _ in range(2))
    assert torch.equal(first[0].log_probs, again[0].log_probs)
    assert torch.equal(first[1], again[1])
    for optimizer in (models.optimizer, models.critic_optimizer):
        assert all(group["weight_decay"] == 0 for group in optimizer.param_groups)


def test_both_learning_rates_are_shares_of_their_peaks(models):
    assert models.set_learning_rates(0.25) == 0.25 * CONFIG.lr
    rates = [o.param_groups[0]["lr"] for o in (models.optimizer, models.critic_optimizer)]
    assert rates == [0.25 * CONFIG.lr, 0.25 * CONFIG.critic_lr]
