"""ReMax: the greedy answer, the advantage that it makes, and the exact gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from engines import DIVERSE, engine_named
from engines import small_gpt as nearly_uniform_gpt
from slow import assert_gradient, differ, response_gradient, response_log_probs, tokens_of
from toys import LETTERS, PROMPTS
from watched import Noted, Updates

from gpt.model import GPT
from rl.batches.rollout import Rollout
from rl.remax_engine import remax_advantages, remax_loss
from rl.rewards.sources import RuleReward

CONTRACT = {
    "strong_kl": 1.0,
    "skips": {
        "centred_advantages_make_a_loss_of_zero": "log pi itself is weighted, not a ratio of 1",
        "every_prompt_is_asked_once_an_epoch": "asked twice, once greedily: own file",
    },
}
REMAX = engine_named("remax")
CONFIG, run = REMAX.config, REMAX.run


def small_gpt() -> GPT:
    """In float64, and sharp enough that greedy answers differ between prompts."""
    return nearly_uniform_gpt(noise=0.05).double()


def greedy_answer(policy: GPT, prompt: str) -> list[int]:
    """The likeliest token after every prefix, from one unpadded forward each."""
    tokens = LETTERS.encode(prompt)
    start = len(tokens)
    while len(tokens) - start < CONFIG.max_new_tokens and tokens[-1] != LETTERS.eos_id:
        tokens = [*tokens, int(policy(torch.tensor([tokens]))[0, -1].argmax())]
    return tokens[start:]


def answers(rollout: Rollout) -> list[list[int]]:
    return [tokens_of(rollout, i)[1] for i in range(len(rollout))]


def expected_gradient(
    policy: GPT, rollout: Rollout, baselines: list[float], paid: list[list[float]]
) -> torch.Tensor:
    """-1/N sum_i sum_t (R_i - what is paid from t on - baseline_i) grad log pi(y_it), by loops."""
    factors = [
        [(reward - sum(costs[t:]) - baseline) / len(rollout) for t in range(length)]
        for reward, baseline, costs, length in zip(
            DIVERSE(rollout).tolist(), baselines, paid, rollout.lengths.tolist(), strict=True
        )
    ]
    return response_gradient(policy, rollout, factors)


@pytest.mark.parametrize("group_size", [1, 4])
def test_the_first_gradient_is_that_of_reinforce_less_the_greedy_reward(monkeypatch, group_size):
    """For any kl_coef: at pi = pi_ref every k1 is 0. All answers to a prompt share its baseline."""
    policy, reward = small_gpt(), Noted(DIVERSE)
    updates = Updates(monkeypatch, policy)
    size = dict(group_size=group_size, prompts_per_step=8)
    run(policy, reward, steps=1, kl_coef=0.5, micro_batch_size=3, **size)
    sampled, greedy = reward.rollouts
    records = [record.prompt for record in greedy.records]
    assert sorted(records) == sorted(record.prompt for record in PROMPTS)
    assert [record.prompt for record in sampled.records[::group_size]] == records
    assert answers(greedy) == [greedy_answer(updates.policies[0], prompt) for prompt in records]
    assert len(set(greedy.responses)) > 2, "all greedy answers are the same"
    baselines = [value for value in DIVERSE(greedy).tolist() for _ in range(group_size)]
    nothing = [[0.0] * CONFIG.max_new_tokens] * len(sampled)
    expected = expected_gradient(updates.policies[0], sampled, baselines, nothing)
    assert_gradient(updates.gradients[0], expected, 2e-7)  # rewards are float32
    without = expected_gradient(updates.policies[0], sampled, [0.0] * len(sampled), nothing)
    assert differ(expected, without)


def test_a_token_pays_for_the_kl_from_it_on(monkeypatch):
    """At the third step the policy has left the reference; its greedy answer is that of then."""
    policy, reward = small_gpt(), Noted(DIVERSE)
    start = copy.deepcopy(policy)
    updates = Updates(monkeypatch, policy)
    run(policy, reward, steps=3, kl_coef=20.0, lr=3e-2)
    (sampled, greedy), sampler = reward.rollouts[4:], updates.policies[2]
    assert answers(greedy)[0] == greedy_answer(sampler, greedy.records[0].prompt)
    paid = []
    for i in range(len(sampled)):
        with torch.no_grad():
            both = (response_log_probs(model, sampled, i) for model in (sampler, start))
            paid.append([20.0 * float(new - old) for new, old in zip(*both, strict=True)])
    expected = expected_gradient(sampler, sampled, DIVERSE(greedy).tolist(), paid)
    assert_gradient(updates.gradients[2], expected, 1e-5)  # the sampler's log-probs are float32
    own = [[row[t] if t == 0 else 0.0 for t in range(len(row))] for row in paid]
    other = expected_gradient(sampler, sampled, DIVERSE(greedy).tolist(), own)
    assert differ(expected, other)


def test_worked_numbers():
    """Two answers to one prompt: R = 1 and 0, greedy 0.5; k1 = [2, -1] and [1], beta = 0.1."""
    log_probs = torch.tensor([[-1.0, -3.0], [-2.0, 9.0]])
    reference = torch.tensor([[-3.0, -2.0], [-3.0, 9.0]])
    mask = torch.tensor([[True, True], [True, False]])
    given = (torch.tensor([1.0, 0.0]), torch.tensor([0.5]), log_probs, reference, mask)
    advantages = remax_advantages(*given, kl_coef=0.1, group_size=2)
    torch.testing.assert_close(advantages, torch.tensor([[0.4, 0.6], [-0.6, 0.0]]))
    loss = remax_loss(log_probs, advantages, mask, rows=4)
    assert float(loss) == pytest.approx((0.4 + 1.8 - 1.2) / 4)


def test_a_broken_reward_of_a_greedy_answer_is_refused():
    """And replaced where a number stands for it: here the one that all other answers earn."""
    policy = small_gpt()
    greedy = {policy_text(greedy_answer(policy, record.prompt)) for record in PROMPTS}
    rule = RuleReward(lambda record, text, ended: float("nan") if text in greedy else 1.0, "broken")
    with pytest.raises(ValueError, match="not finite"):
        run(small_gpt(), rule, steps=1)
    (row,) = run(small_gpt(), rule, steps=1, non_finite_reward=1.0)
    assert row["grad_norm"] == 0


def policy_text(tokens: list[int]) -> str:
    return LETTERS.decode([token for token in tokens if token != LETTERS.eos_id])
