"""Where rewards come from: a reward model, a rule, and what is done about a broken one."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import toys
from toys import LETTERS, seeded

from data.collate import collate_responses
from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.model import GPT
from reward_model.scalar_head import RewardModel
from rl.batches.rollout import Rollout, sample_rollout
from rl.rewards.ensemble import EnsembleReward
from rl.rewards.sources import MadeOf, RewardModelReward, RuleReward, checked_rewards, made_of
from rl.rewards.teacher_reward import TeacherReward
from rl.rewards.verifiable import VerifiableReward

RECORDS = [PromptRecord("ab", answer="x"), PromptRecord("hgfed", answer="y")]


def random_gpt(seed: int = 0) -> GPT:
    return toys.random_gpt(LETTERS.n_vocab, 24, seed=seed, scale=0.25, n_embd=16)


PARAMS = SamplingParams(max_new_tokens=6)
ROLLOUT = sample_rollout(random_gpt(), LETTERS, RECORDS, PARAMS, 4, seeded(1))


class Fixed:
    """A reward that returns this tensor."""

    name = "fixed"

    def __init__(self, values: list[float] | torch.Tensor) -> None:
        self.values = torch.as_tensor(values)

    def __call__(self, rollout: Rollout) -> torch.Tensor:
        return self.values


# The reward model


@pytest.mark.parametrize("pooling", ["mean_score", "last_token"])
@pytest.mark.parametrize("micro_batch_size", [1, 3, 64])
def test_the_reward_model_scores_each_row_as_it_would_alone(pooling, micro_batch_size):
    model = RewardModel(random_gpt(1), pooling).eval().requires_grad_(False)
    model.mean.fill_(0.3)
    model.std.fill_(2.0)
    rewards = RewardModelReward(model, micro_batch_size)(ROLLOUT)
    assert rewards.shape == (8,)
    for row in range(8):
        tokens = ROLLOUT.response_tokens[row][ROLLOUT.response_mask[row]].tolist()
        prompt = LETTERS.encode(ROLLOUT.records[row].prompt)
        alone = model(collate_responses([prompt], [tokens], LETTERS.eos_id))
        assert float(rewards[row]) == pytest.approx(alone.item(), abs=1e-5)


# Rules


def test_a_rule_sees_record_text_and_whether_it_ended():
    seen: list[tuple[PromptRecord, str, bool]] = []

    def rule(record: PromptRecord, response: str, ended: bool) -> float:
        seen.append((record, response, ended))
        return len(seen) / 2

    reward = RuleReward(rule, "counting")
    assert reward.name == "counting"
    assert reward(ROLLOUT).tolist() == [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4]
    for row, (record, response, ended) in enumerate(seen):
        assert record is RECORDS[row // 4]
        tokens = ROLLOUT.response_tokens[row][ROLLOUT.response_mask[row]].tolist()
        assert response == "".join("abcdefgh"[token] for token in tokens if token < 8)
        assert ended is (tokens[-1] == 8)
    assert {ended for *_, ended in seen} == {True, False}


# Broken rewards


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused(value):
    values = [1.0] * 8
    values[3] = value
    with pytest.raises(ValueError, match="1 of 8 rewards are not finite") as error:
        checked_rewards(Fixed(values), ROLLOUT)
    assert f"row 3: {ROLLOUT.responses[3]!r}" in str(error.value)


@pytest.mark.parametrize("shape", [(7,), (9,), (8, 1), (1, 8), ()])
def test_the_wrong_number_of_rewards_is_refused(shape):
    """(N, 1) would broadcast against (N,) to an N x N table."""
    with pytest.raises(ValueError, match=r"per response, \(N,\) = \(8,\)"):
        checked_rewards(Fixed(torch.zeros(shape)), ROLLOUT)


def test_a_reward_says_what_it_is_made_of():
    """Its models, its check and its terms; a function of somebody else's says nothing."""
    one, other, teacher = RewardModel(random_gpt()), RewardModel(random_gpt(1)), random_gpt(2)
    scoring = SimpleNamespace(temperature=1.0, micro_batch_size=8, precision="float32")
    check = VerifiableReward(lambda record, text, ended: 1.0, "right")
    assert made_of(None) == made_of(lambda rollout: rollout) == MadeOf()
    assert made_of(RewardModelReward(one)).reward_models == (one,)
    assert made_of(EnsembleReward([one, other])).reward_models == (one, other)
    assert made_of(check).check is check and made_of(check).reads_records
    rule = made_of(RuleReward(lambda record, text, ended: 1.0, "rule"))
    assert rule.check is None and rule.reads_records and not rule.reward_models
    for aggregate in ("sum", "mean"):
        made = made_of(TeacherReward(teacher, scoring, aggregate=aggregate))
        assert made.teacher is teacher and not made.reward_models
        assert (made.token_rewards is None) == (aggregate == "mean")  # a mean is no sum of terms
