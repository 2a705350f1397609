"""Where rewards come from: rules, ensembles of reward models, and what is done about a broken reward."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import toys
from toys import LETTERS, documented, seeded

from data.collate import collate_responses
from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import build_tokenizer
from harness.files import append_jsonl
from reward_model.pairs import TokenPair, pair_as_text
from reward_model.scalar_head import RewardModel
from rl.batches.rollout import Rollout, sample_rollout
from rl.equations.advantages import whiten
from rl.rewards.model import EnsembleReward, RewardModelReward, reference_responses
from rl.rewards.reward import MeasuringReward, RuleReward, checked_rewards
from rl.run.metrics import rollout_metrics

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


@pytest.mark.parametrize("value", [1.001e15, -3e38, math.inf, math.nan])
def test_a_reward_that_no_sum_can_hold_is_refused_by_its_name(value):
    values = torch.zeros(8)
    values[5] = -1e15
    assert torch.equal(checked_rewards(Fixed(values), ROLLOUT), values)
    values[6] = value
    with pytest.raises(ValueError, match=Fixed(values).name):
        checked_rewards(Fixed(values), ROLLOUT)


def test_the_largest_reward_has_the_advantages_of_any_other():
    """4 of 4096 rows stand out: (1 - p) and -p deviations from the mean, whatever their size."""
    values = torch.zeros(4096, 1)
    values[:4] = 1e15
    checked_rewards(Fixed(values[:8, 0]), ROLLOUT)
    found = whiten(values, torch.ones_like(values, dtype=torch.bool))
    assert found[:5, 0].tolist() == pytest.approx([31.98, 31.98, 31.98, 31.98, -0.03126], rel=1e-3)


EOS = 8
SHAPE = GPTConfig(10, context=16, n_layer=1, n_head=2, n_embd=16)


def member(seed: int) -> RewardModel:
    generator = torch.Generator().manual_seed(seed)
    model = RewardModel.from_policy(GPT(SHAPE).initialize(generator), generator=generator)
    return model.eval().requires_grad_(False)


def rollout() -> Rollout:
    responses = [[0, 1, EOS], [2, EOS], [3, 4, 5], [6, 6, EOS]]
    sequences = collate_responses([[7], [7], [7, 1], [7, 1]], responses, EOS)
    records = [PromptRecord("a"), PromptRecord("a"), PromptRecord("b"), PromptRecord("b")]
    return Rollout(records, ["w", "x", "y", "z"], sequences, torch.zeros(4, 3), 2)


MEMBERS, FOUR = [member(seed) for seed in range(3)], rollout()
SCORES = torch.stack([RewardModelReward(model)(FOUR) for model in MEMBERS])  # (3, 4)


def test_the_spread_between_members_is_logged():
    """Through `checked_rewards` into the row that every engine logs."""
    reward = EnsembleReward(MEMBERS, combine="min")
    assert isinstance(reward, MeasuringReward)
    four = rollout()
    rewards = checked_rewards(reward, four)
    assert rewards.tolist() == pytest.approx(SCORES.amin(0).tolist())
    row = rollout_metrics(four, rewards, torch.zeros(4, 3), None)
    assert row["ensemble_spread"] == pytest.approx(float(SCORES.std(0).mean()))
    assert row["ensemble_mean"] == pytest.approx(float(SCORES.mean()))
    assert row["ensemble_mean"] > row["reward"]  # what the combination took off
    assert documented("Ensembles") == {key for key in row if key.startswith("ensemble")}


def test_reference_responses_are_the_tokens_that_were_recorded(tmp_path):
    """An answer that was cut off has no EOS there, and one that tokens spell otherwise keeps them."""
    ab = build_tokenizer("ab", {b"a": 0, b"b": 1, b"ab": 2})
    pair = TokenPair(
        [0], [0, 1], [2, ab.eos_id]
    )  # the first was cut off; "ab" is one token as a rule
    row = pair_as_text(pair, ab)
    long = pair_as_text(TokenPair([0], [1] * 9, [1, ab.eos_id]), ab)
    append_jsonl(tmp_path / "held_out_pairs.jsonl", [row, long])
    batch = reference_responses(tmp_path, ab, room=8)
    kept = [r[:n].tolist() for r, n in zip(batch.response_tokens, batch.lengths, strict=True)]
    assert kept == [[0, 1], [2, ab.eos_id], [1, ab.eos_id]]
    assert batch.has_eos.tolist() == [False, True, True]
    assert reference_responses(tmp_path / "none", ab, room=8) is None


def test_on_reference_responses_the_members_have_one_scale():
    """The same model on another scale disagrees with itself until both are standardised."""
    twin = copy.deepcopy(MEMBERS[0])
    twin.mean.fill_(-3.0)
    twin.std.fill_(0.1)
    apart = EnsembleReward([copy.deepcopy(MEMBERS[0]), twin], combine="min")
    assert apart.with_metrics(FOUR)[1]["ensemble_spread"] > 1
    pair = [copy.deepcopy(MEMBERS[0]), twin]
    together = EnsembleReward(pair, combine="min", reference=FOUR)
    rewards, metrics = together.with_metrics(FOUR)
    assert metrics["ensemble_spread"] == pytest.approx(0, abs=1e-5)
    raw = MEMBERS[0].raw_scores(FOUR.sequences)
    torch.testing.assert_close(rewards, (raw - raw.mean()) / raw.std(), rtol=1e-4, atol=1e-5)
