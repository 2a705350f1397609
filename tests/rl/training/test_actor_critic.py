"""Policy and critic in training: nothing is done to one and forgotten for the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from toys import LETTERS, weights

from data.collate import join_responses
from gpt.model import GPT, GPTConfig
from rl.loop import Run
from rl.training.actor_critic import ActorCriticConfig
from rl.training.value_model import ValueModel

CONFIG = ActorCriticConfig(lr=1e-2, critic_lr=3e-2, max_norm=0.5, steps=1, warmup=4)
TOKENS = torch.tensor([[1, 2, 3], [4, 5, 0]])
MASK = torch.tensor([[True, True, True], [True, True, False]])
BATCH = join_responses([[1], [2, 3]], TOKENS, MASK, torch.tensor([True, True]))


def small_gpt() -> GPT:
    shape = GPTConfig(9, 16, n_layer=1, n_head=2, n_embd=16, dropout=0.5)
    return GPT(shape).initialize(torch.Generator().manual_seed(0))


@pytest.fixture
def run() -> Run:
    """In its first step."""
    run = Run(CONFIG, small_gpt().train(), LETTERS)
    run.train_critic(ValueModel.from_policy(run.policy).train(), CONFIG.critic_lr)
    next(run.steps())
    run.zero_grad()
    return run


def both(run: Run) -> tuple[GPT, ValueModel]:
    assert run.critic is not None
    return run.policy, run.critic[0]


def gradient(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def backward(run: Run, critic_weight: float = 1.0) -> None:
    scores, values = run.scores(run.policy, BATCH), run.values(both(run)[1], BATCH)
    loss = scores.log_probs[MASK].sum() + critic_weight * (values[MASK] - 1).square().sum()
    loss.backward()


def test_each_is_clipped_by_its_own_norm(run):
    """A critic that is a thousand times further off leaves the policy's gradient as it is."""
    policy, critic = both(run)
    backward(run)
    policy_alone = gradient(policy).norm()
    run.zero_grad()
    backward(run, critic_weight=1000.0)
    critic_norm = gradient(critic).norm()
    assert critic_norm > 100 * policy_alone > 100 * CONFIG.max_norm
    found = run.step(), run.meter.norms["critic_grad_norm"][0]
    torch.testing.assert_close(torch.stack(found), torch.stack([policy_alone, critic_norm]))
    for model in (policy, critic):
        assert float(gradient(model).norm()) == pytest.approx(CONFIG.max_norm, rel=1e-4)


def test_both_step_and_both_are_cleared(run):
    before = [weights(model) for model in both(run)]
    backward(run)
    run.step()
    for model, then in zip(both(run), before, strict=True):
        assert not torch.equal(weights(model), then)
    run.zero_grad()
    for model in both(run):
        assert all(parameter.grad is None for parameter in model.parameters())


def test_what_would_join_after_the_state_is_restored_is_refused(run):
    """A checkpoint would hold it, and a resumed run would not load it."""
    parts = set(run.parts)
    with pytest.raises(RuntimeError):
        _ = run.reference
    with pytest.raises(RuntimeError):
        run.train_critic(ValueModel.from_policy(run.policy), CONFIG.critic_lr)
    assert set(run.parts) == parts
