"""KD-PPO end to end on a GPT of two layers: credit per token, and what the bonus does not do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engines import SHARE_OF_A, Texts, engine_named, small_gpt
from engines import SHARP_TEACHER as TEACHER
from toys import weights
from watched import numbers

from gpt.log_probs import token_log_probs
from rl.kd_ppo_engine import kd_token_rewards, teacher_reward, text_bonus

KD_PPO = engine_named("kd_ppo")
CONFIG, run = KD_PPO.config, KD_PPO.run


# Where the rewards stand

P = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, 9.0, 9.0]])  # what the teacher gives to every token
OLD = torch.tensor([[-1.0, -1.5, -2.0], [-3.0, 7.0, 7.0]])
REF = torch.tensor([[-1.5, -1.0, -2.5], [-2.0, 8.0, 8.0]])
MASK = torch.tensor([[True, True, True], [True, False, False]])


@pytest.mark.parametrize(
    ("dense", "expected"),
    [
        # -0.1 * k1 is -0.05, 0.05, -0.05 and 0.1; the bonus 4 at the last token
        (True, [[-1.05, -1.95, 0.95], [3.6, 0, 0]]),
        (False, [[-0.05, 0.05, -2.05], [3.6, 0, 0]]),
    ],
)
def test_dense_and_terminal_rewards_by_hand(dense, expected):
    token_parts = torch.where(MASK, P, 0.0)
    parts = token_parts.sum(1), token_parts if dense else None, OLD
    got = kd_token_rewards(*parts, REF, MASK, kl_coef=0.1, bonus=4.0)
    torch.testing.assert_close(got, torch.tensor(expected))
    total = token_parts.sum(1) + 4 - 0.1 * torch.where(MASK, OLD - REF, 0.0).sum(1)
    torch.testing.assert_close(got.sum(1), total)  # the same for either placement
    plain = kd_token_rewards(*parts, None, MASK, kl_coef=0.0)
    assert plain.sum(1).tolist() == pytest.approx([-6.0, -0.5])


def test_the_bonus_of_the_text_is_minus_its_loss_and_a_function_of_the_step():
    """One number, which pays for a text that is held; of the step's first batch."""
    policy, text = small_gpt(), Texts()
    config = replace(CONFIG, pt_mode="reward_bonus", pretraining_coef=0.5, minibatches=3)
    bonus, logged = text_bonus(config, policy, text, step=2)
    log_probs = token_log_probs(policy, Texts().batch(2 * config.updates))
    loss = -float(log_probs.detach().sum()) / 28  # tokens of a batch
    assert text.asked == [2 * config.updates] and bonus == pytest.approx(-0.5 * loss, rel=1e-5)
    assert logged == {"pretraining_loss": pytest.approx(loss, rel=1e-5)}
    assert text_bonus(replace(config, pt_mode="loss"), policy, text, step=2) == (0.0, {})


# What is left when everything of its own is off: PPO


@pytest.mark.parametrize("taught", [True, False])
def test_terminal_without_text_is_ppo_bit_for_bit(taught):
    """The same reward object in both engines, also a rule; epochs, minibatches and micro-batches."""
    shared = dict(
        steps=4, updates_per_batch=2, minibatches=2, micro_batch_size=5, value_clip=0.2,
        entropy_coef=0.01,
    )  # fmt: skip
    reward = teacher_reward(CONFIG, TEACHER) if taught else SHARE_OF_A
    one, other, dense = (small_gpt() for _ in range(3))
    rows = run(one, reward, placement="terminal", **shared)
    other_rows = engine_named("ppo").run(other, reward, **shared)
    assert numbers(rows) == numbers(other_rows) and rows[-1]["kl"] > 0.01
    assert torch.equal(weights(one), weights(other))
    if taught:
        run(dense, reward, placement="dense", **shared)
        assert not torch.equal(weights(dense), weights(one))
