"""Where rewards come from: a rule, and what is done about a broken reward."""

from __future__ import annotations

import pytest
import torch
import toys
from toys import LETTERS, seeded

from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.model import GPT
from rl.batches.rollout import Rollout, sample_rollout
from rl.rewards.reward import RuleReward, checked_rewards

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


@pytest.mark.parametrize("shape", [(7,), (9,), (8, 1), (1, 8), ()])
def test_the_wrong_number_of_rewards_is_refused(shape):
    """(N, 1) would broadcast against (N,) to an N x N table."""
    with pytest.raises(ValueError):
        checked_rewards(Fixed(torch.zeros(shape)), ROLLOUT)
