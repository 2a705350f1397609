"""Rollouts: who stands where, what the sampler's numbers mean, and how a batch is cut up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import toys
from toys import LETTERS, seeded

from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.log_probs import token_scores
from gpt.model import GPT
from rl.batches.dynamic_sampling import GroupBuffer, PromptCursor, join_rollouts
from rl.batches.rollout import (
    Rollout,
    old_policy_log_probs,
    prompt_batch,
    rollout_log_probs,
    sample_rollout,
    select_rows,
)
from rl.grpo_engine import GRPOConfig

RECORDS = [PromptRecord(text) for text in ("ab", "c", "hgfed", "aaa")]  # of different lengths
G = 3


def random_gpt(dropout: float = 0.0) -> GPT:
    model = toys.random_gpt(LETTERS.n_vocab, 24, scale=0.25, n_embd=16, dropout=dropout)
    return model.requires_grad_(False)


def rollout_of(temperature: float = 1.0, steps: int = 10, seed: int = 0) -> Rollout:
    params = SamplingParams(temperature, max_new_tokens=steps)
    return sample_rollout(MODEL, LETTERS, RECORDS, params, G, seeded(seed))


MODEL = random_gpt()


# Sampling


def test_the_responses_to_a_prompt_stand_next_to_each_other():
    rollout = rollout_of()
    assert len(rollout) == 12 and rollout.group_size == G
    assert rollout.records == [record for record in RECORDS for _ in range(G)]
    for row in range(12):
        length = int(rollout.sequences.prompt_lengths[row])
        prompt = rollout.sequences.tokens[row, :length].tolist()
        assert prompt == LETTERS.encode(RECORDS[row // G].prompt)
    assert len({tuple(tokens) for tokens in rollout.response_tokens[:G].tolist()}) > 1


def test_several_rounds_of_sampling_are_one_rollout():
    """Of other widths; the joined rows are scored as before, counts add up and shares are means."""
    measured = ({"errors": 2, "right": 0.25}, {"errors": 1, "right": 1.0})
    long, short = rollout_of(), select_rows(rollout_of(steps=4, seed=1), torch.arange(G))
    parts = [replace(p, reward_metrics=m) for p, m in zip((long, short), measured, strict=True)]
    joined = join_rollouts(parts)
    assert joined.reward_metrics == {"errors": 3, "right": pytest.approx((12 * 0.25 + 3) / 15)}
    assert joined.records == long.records + short.records
    assert joined.responses == long.responses + short.responses
    scores = token_scores(MODEL, joined.sequences).log_probs
    torch.testing.assert_close(scores, joined.log_probs, rtol=0, atol=1e-5)
    for rows, part in ((slice(0, 12), long), (slice(12, 15), short)):
        T = part.response_mask.shape[1]
        for name in ("response_tokens", "response_mask", "log_probs"):
            whole = getattr(joined, name)[rows]
            assert torch.equal(whole[:, :T], getattr(part, name)) and not whole[:, T:].any()
        assert torch.equal(joined.has_eos[rows], part.has_eos)


def test_a_cursor_takes_prompts_in_the_order_of_its_seed_however_many_at_a_time():
    """Each once an epoch; one that goes on from a state takes what comes next."""
    records = [PromptRecord(str(i)) for i in range(12)]
    first, again, other = (PromptCursor(records, seed) for seed in (1, 1, 2))
    taken = first.take(5) + first.take(7)
    assert again.take(12) == taken != other.take(12) and sorted(r.prompt for r in taken) == sorted(
        record.prompt for record in records
    )
    rest = PromptCursor(records, 1)
    rest.load_state_dict(first.state_dict())
    assert rest.take(3) == first.take(3) == again.take(3) != taken[:3]


def test_whole_groups_are_kept_of_several_rounds():
    """Of two rounds of four groups the second and the fourth, then the first."""
    buffer, rounds = GroupBuffer(missing=3), (rollout_of(), rollout_of(seed=1))
    for rollout, kept in zip(rounds, ([0, 1, 0, 1], [1, 0, 0, 0]), strict=True):
        rewards = torch.arange(12.0) + 100 * (rollout is rounds[1])
        buffer.add(rollout, rewards, torch.tensor(kept).bool())
    trained, rewards = buffer.to_train(*buffer.sampled())
    assert buffer.missing == 0 and buffer.metrics()["dropped_groups"] == 5
    assert rewards.tolist() == [3, 4, 5, 9, 10, 11, 100, 101, 102]
    expected = [*rounds[0].responses[3:6], *rounds[0].responses[9:], *rounds[1].responses[:3]]
    assert trained.responses == expected
    assert [record.prompt for record in trained.records] == ["c"] * 3 + ["aaa"] * 3 + ["ab"] * 3


def test_the_seed_orders_the_prompts_and_an_epoch_has_each_once():
    records = [PromptRecord(str(i)) for i in range(12)]
    first, other = ([prompt_batch(records, step, 4, seed) for step in range(3)] for seed in (1, 2))
    assert first != other
    assert sorted(sum(first, []), key=records.index) == records


# Scoring


@pytest.mark.parametrize("micro_batch_size", [1, 5, 64])
def test_rollout_log_probs_restore_the_order_of_rows(micro_batch_size):
    rollout = rollout_of(0.7)
    config = GRPOConfig(temperature=0.7, micro_batch_size=micro_batch_size)
    scored = rollout_log_probs(MODEL, rollout, config)
    torch.testing.assert_close(scored, rollout.log_probs, rtol=0, atol=1e-5)


def test_the_old_log_probs_are_the_samplers_own_in_float32_alone():
    """In bfloat16 cached decode and whole forward round differently: the rollout is scored again."""
    rollout, half = rollout_of(), GRPOConfig(precision="bfloat16")
    rows = torch.arange(len(rollout)).flip(0)
    forwards = [(rows, rollout.sequences.rows(rows))]
    assert old_policy_log_probs(MODEL, rollout, GRPOConfig(), forwards) is rollout.log_probs
    again = old_policy_log_probs(MODEL, rollout, half, forwards)
    assert torch.equal(again, rollout_log_probs(MODEL, rollout, half))
    assert not torch.equal(again, rollout.log_probs)
