"""--normalize-parts: GDPO's advantages (arXiv:2601.05242) in every engine that has group-relative ones."""

from __future__ import annotations

import statistics

import pytest
import torch
from engines import engine_named, small_gpt
from slow import z_scores
from watched import calls_of

from data.records import PromptRecord
from rl.batches.rollout import Rollout
from rl.rewards.sources import RuleReward
from rl.rewards.verifiable import VerifiableReward
from rl.training.metrics import UpdateMeter


def starts_with_a_to_d(record: PromptRecord, text: str, ended: bool) -> float:
    return float(text[:1] in tuple("abcd"))


def holds_h(record: PromptRecord, text: str, ended: bool) -> float:
    return float("h" in text)


class TwoParts(VerifiableReward):
    """Keeps the rollouts that it has graded."""

    def __init__(self) -> None:
        super().__init__(starts_with_a_to_d, "two parts", others={"format": (0.5, holds_h)})
        self.rollouts: list[Rollout] = []

    def with_metrics(self, rollout: Rollout) -> tuple[torch.Tensor, dict[str, float]]:
        self.rollouts.append(rollout)
        return super().with_metrics(rollout)


@pytest.fixture
def advantages_of(monkeypatch):
    """Runs an engine; gives the advantages of its first minibatch, sorted, and the rows of its log."""

    def run(name: str, reward, **flags) -> tuple[list[float], list[dict]]:
        flags = dict(prompts_per_step=6, updates_per_batch=1, kl_coef=0.0) | flags
        calls = calls_of(monkeypatch, UpdateMeter, "add_tokens")
        rows = engine_named(name).run(small_gpt(), reward, steps=1, **flags)
        _, _, _, advantages, _ = calls[0].args
        return sorted(advantages[:, 0].tolist()), rows

    return run


def graded(rollout: Rollout) -> list[tuple[float, float]]:
    """(answer, format) of every response; one that was cut off has neither."""
    rows = zip(rollout.records, rollout.responses, rollout.has_eos.tolist(), strict=True)
    return [(starts_with_a_to_d(*row) * row[2], holds_h(*row) * row[2]) for row in rows]


def slow_advantages(groups: list[list[tuple[float, ...]]], weights: tuple[float, ...]):
    """GDPO's, of groups of responses of parts; sorted."""
    totals: list[float] = []
    for group in groups:
        of_parts = [z_scores(list(values), len(group)) for values in zip(*group, strict=True)]
        for scores in zip(*of_parts, strict=True):
            totals.append(sum(w * z for w, z in zip(weights, scores, strict=True)))
    return sorted(z_scores(totals, len(totals)))


def in_groups(rows: list, size: int = 4) -> list[list]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


@pytest.mark.parametrize("name", ["grpo", "grpo_iterative", "grpo_single_model", "grpo_variants"])
def test_the_sum_of_the_parts_is_scaled_by_the_batch(advantages_of, name):
    """A group that differs in both parts stands out; the group's deviation would make it like others.

    The logged reward is the plain sum, as in a validation, so that the two curves may be compared.
    """
    reward = TwoParts()
    found, (row,) = advantages_of(name, reward, normalize_parts=True)
    scored = graded(reward.rollouts[0])
    assert found == pytest.approx(slow_advantages(in_groups(scored), (1.0, 0.5)), abs=1e-5)
    assert len({round(value, 2) for value in found}) > 5
    plain, _ = advantages_of(name, TwoParts())
    assert plain != pytest.approx(found, abs=0.1)
    values = [answer + 0.5 * form for answer, form in scored]
    assert row["reward"] == pytest.approx(statistics.mean(values)) and row["reward"] > 0.05
    assert row["reward"] == pytest.approx(row["reward/answer"] + row["reward/format"])


def test_dropped_groups_take_no_part_in_the_scale(advantages_of):
    """With dynamic sampling the batch is that of the groups that are trained on."""
    reward = TwoParts()
    flags = dict(normalize_parts=True, sampling_filter="dynamic", group_size=2)
    found, (row,) = advantages_of("grpo_variants", reward, **flags)
    assert row["dropped_groups"] > 0 and row["sampling_rounds"] > 1
    everything = [group for rollout in reward.rollouts for group in in_groups(graded(rollout), 2)]
    spread = [g for g in everything if len({answer + 0.5 * form for answer, form in g}) > 1]
    assert found == pytest.approx(slow_advantages(spread, (1.0, 0.5)), abs=1e-5)


def test_the_overlong_penalty_is_one_of_the_parts(advantages_of):
    reward = TwoParts()
    flags = dict(normalize_parts=True, overlong_buffer=4)
    found, _ = advantages_of("grpo_variants", reward, **flags)
    (rollout,) = reward.rollouts
    parts = [
        (*two, -max(length - 4, 0) / 4)
        for two, length in zip(graded(rollout), rollout.lengths.tolist(), strict=True)
    ]
    assert found == pytest.approx(slow_advantages(in_groups(parts), (1.0, 0.5, 1.0)), abs=1e-5)


@pytest.mark.parametrize("overlong_buffer", [None, 4])
def test_a_reward_without_parts_is_refused(advantages_of, overlong_buffer):
    flags, reward = dict(normalize_parts=True), RuleReward(holds_h, "no parts")
    with pytest.raises(ValueError, match="this reward has none"):
        advantages_of("grpo_variants", reward, overlong_buffer=overlong_buffer, **flags)


@pytest.mark.parametrize(
    "name", ["grpo_process", "rloo", "reinforce_pp", "ppo", "pg_grpo", "kd_grpo"]
)
def test_an_engine_without_such_advantages_refuses_the_flag(name):
    with pytest.raises(ValueError, match="does not have: leave it out"):
        engine_named(name).configured(normalize_parts=True)
