"""--normalize-parts: GDPO's advantages (arXiv:2601.05242) in every engine that has group-relative ones."""

from __future__ import annotations

import statistics
from types import ModuleType

import pytest
import torch
from engines import small_gpt
from slow import z_scores
from toys import LETTERS, PROMPTS

from data.records import PromptRecord
from harness.metric_log import MetricLog
from rl import grpo_engine, grpo_iterative_engine, grpo_single_model_engine, grpo_variants_engine
from rl.batches.rollout import Rollout
from rl.grpo_engine import GRPOConfig
from rl.grpo_iterative_engine import IterativeGRPOConfig
from rl.grpo_process_engine import ProcessGRPOConfig
from rl.grpo_single_model_engine import SingleModelGRPOConfig
from rl.grpo_variants_engine import GRPOVariantsConfig
from rl.kd_grpo_engine import KDGRPOConfig
from rl.pg_grpo_engine import PGGRPOConfig
from rl.ppo_engine import PPOConfig
from rl.reinforce_pp_engine import ReinforcePPConfig
from rl.rewards.sources import RuleReward
from rl.rewards.verifiable import VerifiableReward
from rl.rloo_engine import RLOOConfig

TOY = dict(
    steps=1, prompts_per_step=6, group_size=4, minibatches=1, updates_per_batch=1, warmup=1,
    micro_batch_size=64, lr=1e-2, kl_coef=0.0, stop_kl=None, max_new_tokens=8,
)  # fmt: skip
ENGINES = {
    "grpo": (grpo_engine, GRPOConfig, {}),
    "iterative": (grpo_iterative_engine, IterativeGRPOConfig, dict(iterations=1)),
    "single": (grpo_single_model_engine, SingleModelGRPOConfig, {}),
    "variants": (grpo_variants_engine, GRPOVariantsConfig, {}),
}


def starts_with_a_to_d(record: PromptRecord, text: str, ended: bool) -> float:
    return float(text[:1] in tuple("abcd"))


def holds_h(record: PromptRecord, text: str, ended: bool) -> float:
    return float("h" in text)


class Noted(VerifiableReward):
    """Keeps the rollouts that it has graded."""

    def with_metrics(self, rollout: Rollout) -> tuple[torch.Tensor, dict[str, float]]:
        self.rollouts = [*getattr(self, "rollouts", []), rollout]
        return super().with_metrics(rollout)


def two_parts() -> Noted:
    return Noted(starts_with_a_to_d, "two parts", others={"format": (0.5, holds_h)})


@pytest.fixture
def advantages_of(monkeypatch):
    """Runs an engine; gives the advantages of its first minibatch, sorted, and the rows of its log."""

    def run(engine: ModuleType, config, reward) -> tuple[list[float], list[dict]]:
        seen: list[torch.Tensor] = []

        class Meter(engine.UpdateMeter):
            def add_tokens(self, scores, old_log_probs, advantages, batch, **extra):
                seen.append(advantages)
                super().add_tokens(scores, old_log_probs, advantages, batch, **extra)

        monkeypatch.setattr(engine, "UpdateMeter", Meter)
        rows = engine.train(config, small_gpt(), LETTERS, reward, PROMPTS, MetricLog(1))
        return sorted(seen[0][:, 0].tolist()), rows

    return run


def graded(rollout: Rollout) -> list[tuple[float, float]]:
    """(answer, format) of every response; one that was cut off has neither."""
    return [
        (starts_with_a_to_d(r, text, end) * end, holds_h(r, text, end) * end)
        for r, text, end in zip(
            rollout.records, rollout.responses, rollout.has_eos.tolist(), strict=True
        )
    ]


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


@pytest.mark.parametrize("name", ENGINES)
def test_the_sum_of_the_parts_is_scaled_by_the_batch(advantages_of, name):
    """A group that differs in both parts stands out; the group's deviation would make it like others.

    The logged reward is the plain sum, as in a validation, so that the two curves may be compared.
    """
    engine, config, extra = ENGINES[name]
    reward = two_parts()
    found, (row,) = advantages_of(engine, config(**TOY, **extra, normalize_parts=True), reward)
    scored = graded(reward.rollouts[0])
    assert found == pytest.approx(slow_advantages(in_groups(scored), (1.0, 0.5)), abs=1e-5)
    assert len({round(value, 2) for value in found}) > 5
    plain, _ = advantages_of(engine, config(**TOY, **extra), two_parts())
    assert plain != pytest.approx(found, abs=0.1)
    values = [answer + 0.5 * form for answer, form in scored]
    assert row["reward"] == pytest.approx(statistics.mean(values)) and row["reward"] > 0.05
    assert row["reward"] == pytest.approx(row["reward/answer"] + row["reward/format"])


def test_dropped_groups_take_no_part_in_the_scale(advantages_of):
    """With dynamic sampling the batch is that of the groups that are trained on."""
    reward = two_parts()
    changes = dict(normalize_parts=True, sampling_filter="dynamic", group_size=2)
    config = GRPOVariantsConfig(**TOY | changes)
    found, (row,) = advantages_of(grpo_variants_engine, config, reward)
    assert row["dropped_groups"] > 0 and row["sampling_rounds"] > 1
    everything = [group for rollout in reward.rollouts for group in in_groups(graded(rollout), 2)]
    spread = [g for g in everything if len({answer + 0.5 * form for answer, form in g}) > 1]
    assert found == pytest.approx(slow_advantages(spread, (1.0, 0.5)), abs=1e-5)


def test_the_overlong_penalty_is_one_of_the_parts(advantages_of):
    reward = two_parts()
    config = GRPOVariantsConfig(**TOY, normalize_parts=True, overlong_buffer=4)
    found, _ = advantages_of(grpo_variants_engine, config, reward)
    (rollout,) = reward.rollouts
    parts = [
        (*two, -max(length - 4, 0) / 4)
        for two, length in zip(graded(rollout), rollout.lengths.tolist(), strict=True)
    ]
    assert found == pytest.approx(slow_advantages(in_groups(parts), (1.0, 0.5, 1.0)), abs=1e-5)


@pytest.mark.parametrize("overlong_buffer", [None, 4])
def test_a_reward_without_parts_is_refused(advantages_of, overlong_buffer):
    config = GRPOVariantsConfig(**TOY, normalize_parts=True, overlong_buffer=overlong_buffer)
    with pytest.raises(ValueError, match="this reward has none"):
        advantages_of(grpo_variants_engine, config, RuleReward(holds_h, "no parts"))


@pytest.mark.parametrize(
    "config",
    [ProcessGRPOConfig, RLOOConfig, ReinforcePPConfig, PPOConfig, PGGRPOConfig, KDGRPOConfig],
)
def test_an_engine_without_such_advantages_refuses_the_flag(config):
    with pytest.raises(ValueError, match="does not have: leave it out"):
        config(normalize_parts=True)
