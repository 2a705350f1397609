"""Iterative GRPO: what happens between two iterations, and that nothing else differs from GRPO."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engines import engine_named, small_gpt
from toys import LETTERS, PROMPTS, Crash, CrashingLog, fixed_gpt, weights
from watched import Validations, numbers

from data.records import PromptRecord
from gpt.lora import add_adapters
from gpt.model import GPT
from harness.files import read_jsonl, write_json
from harness.training_state import saved_step
from reward_model import continual
from reward_model.continual import ContinualRewardModel, History, as_row, visits_of
from reward_model.pairs import Annotator, Labelled, as_pair, collate_pairs
from reward_model.reward_model_training import RewardModelConfig
from reward_model.scalar_head import RewardModel
from rl.grpo_iterative_engine import learning_rate
from rl.rewards.model import RewardModelReward

CONFIG = replace(engine_named("grpo_iterative").config, steps=6, iterations=3)
run = replace(engine_named("grpo_iterative"), config=CONFIG).run
FITTING = RewardModelConfig(
    pairs=60, held_out_pairs=20, responses_per_prompt=4, wide_temperature=1.0, batch_size=4,
    lr=3e-3, warmup_steps=1, max_response_tokens=8,
)  # fmt: skip


def prefers(letter: str) -> Annotator:
    """The annotator: more of the letter, then the longer one, then a coin."""

    def annotate(
        prompt: PromptRecord, a: str, a_ended: bool, b: str, b_ended: bool, rng: random.Random
    ) -> Labelled:
        gold = (a.count(letter) + len(a) / 100, b.count(letter) + len(b) / 100)
        first = rng.random() < 0.5 if gold[0] == gold[1] else gold[0] > gold[1]
        return Labelled(first, gold)

    return annotate


def original_visits() -> list[list[dict[str, Any]]]:
    """Two comparisons each of twenty prompts, as a reward model's run writes them: text alone."""
    rows = [
        {"prompt": "abcdefgh"[i % 8] + "abcdefgh"[i // 8], "chosen": "a" * k, "rejected": "bc",
         "gold_chosen": k + k / 100, "gold_rejected": 0.02}
        for i in range(20) for k in (1, 2)
    ]  # fmt: skip
    return [list(visit) for visit in visits_of(rows)]


def continual_model(**changes: Any) -> ContinualRewardModel:
    probe = [as_pair(visit[0], LETTERS) for visit in original_visits()]
    generator = torch.Generator().manual_seed(1)
    scorer = RewardModel.from_policy(small_gpt(), "mean_score", generator)
    if rank := changes.pop("rank", 0):
        add_adapters(scorer.gpt, rank, generator=torch.Generator().manual_seed(2))
    return ContinualRewardModel(
        scorer, LETTERS, PROMPTS, changes.pop("annotator", prefers("a")),
        replace(FITTING, **changes.pop("fitting", {})), History(original_visits(), **changes),
        probe=probe,
    )  # fmt: skip


def refreshing(policy: GPT, refresh: ContinualRewardModel, **changes):
    return run(policy, RewardModelReward(refresh.model), refresh=refresh, **changes)


# Line 3: the reference


def test_the_reference_becomes_the_policy_where_an_iteration_begins():
    """KL exactly 0 in the weights; to rounding between the sampler's and the scorer's log-probs."""
    start, seen = small_gpt(), Validations()
    rows = run(copy.deepcopy(start), steps=9, eval_every=1, validate=seen)
    for step, reference in enumerate(seen.references):
        # The policy after step 3 is the reference of steps 4 to 6.
        expected = start if step < 3 else seen.policies[step // 3 * 3 - 1]
        assert torch.equal(weights(reference), weights(expected))
        assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert [row["iteration"] for row in rows] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    kls = [abs(row["kl"]) for row in rows]
    assert max(kls[0], kls[3], kls[6]) < 1e-6 < 1e-3 < min(kls[1], kls[4], kls[7])


# Line 12: training again


@pytest.fixture
def fits(monkeypatch) -> list[SimpleNamespace]:
    """Every call of `train`: its pairs, optimizer and seed, and the model's weights before."""
    calls: list[SimpleNamespace] = []
    real = continual.train

    def spy(scorer, pairs, config, log, *, eos_id, optimizer):
        assert all(parameter.requires_grad for parameter in scorer.parameters())
        seen = dict(pairs=pairs, optimizer=optimizer, seed=config.seed, steps=log.total)
        calls.append(SimpleNamespace(**seen))
        return real(scorer, pairs, config, log, eos_id=eos_id, optimizer=optimizer)

    monkeypatch.setattr(continual, "train", spy)
    return calls


def test_a_refresh_trains_on_new_pairs_and_a_tenth_of_old_ones(fits):
    refresh = continual_model()
    policy = small_gpt()
    first, second = refresh.update(policy, 3), refresh.update(policy, 5)
    for call, row in zip(fits, (first, second), strict=True):
        assert row["pairs/new"] == 60 and row["pairs/replayed"] == 7  # 60 / 9 = 6.67
        assert len(call.pairs) == 67
        assert call.steps == -(-len(continual.by_prompt(call.pairs)) // 4)
    known = {json.dumps(as_row(as_pair(row, LETTERS), LETTERS, 0))
             for visit in original_visits() for row in visit}  # fmt: skip
    old = [json.dumps(as_row(pair, LETTERS, 0)) for pair in fits[0].pairs[60:]]
    assert set(old) <= known and len(set(old)) == 7
    updates = {int(state["step"]) for state in refresh.optimizer.state.values()}
    assert updates == {fits[0].steps + fits[1].steps}  # one Adam for both
    assert fits[0].seed != fits[1].seed and fits[0].pairs[:60] != fits[1].pairs[:60]


def test_a_refreshed_reward_model_is_frozen_and_its_scores_are_centred_again():
    """On the pairs that it has been centred on before: every nth one of its first training."""
    refresh = continual_model(fitting=dict(pairs=12, held_out_pairs=4, lr=1e-2))
    refresh.update(small_gpt(), 3)
    assert not any(parameter.requires_grad for parameter in refresh.model.parameters())
    assert all(parameter.grad is None for parameter in refresh.model.parameters())
    scores = refresh.model(collate_pairs(refresh.reference, LETTERS.eos_id))
    assert len(scores) == 80 and float(scores.mean()) == pytest.approx(0, abs=1e-5)
    assert float(scores.std()) == pytest.approx(1, abs=1e-5)


def test_a_refresh_is_measured_by_gold_where_that_is_known():
    """Labels that are all wrong change nothing."""
    found = []
    for turned in (False, True):
        refresh = continual_model(fitting=dict(pairs=12, held_out_pairs=4))
        if turned:
            refresh.probe = [
                replace(
                    pair, chosen=pair.rejected, rejected=pair.chosen,
                    meta=dict(zip(pair.meta, reversed(pair.meta.values()), strict=True)),
                )
                for pair in refresh.probe
            ]  # fmt: skip
        found.append(refresh.update(small_gpt(), 3)["probe_accuracy/before"])
    assert found[0] == found[1] != 0.5


def test_each_refresh_replays_other_pairs(fits):
    """Of one history; the same ones where a resumed run does it again."""
    for step in (3, 5, 5):
        continual_model(fitting=dict(pairs=12, held_out_pairs=4), fraction=0.4).update(
            small_gpt(), step
        )
    old = [[(pair.prompt, pair.chosen) for pair in call.pairs[12:]] for call in fits]
    assert len(old[0]) == 8 and old[0] != old[1] == old[2]


def test_pairs_of_earlier_refreshes_are_replayed_too(fits, tmp_path):
    """Nearly all there are, none twice; a resumed run finds them in its file."""
    options = dict(fitting=dict(pairs=12, held_out_pairs=4), fraction=0.81)  # 12 * 0.81 / 0.19
    refresh, again = (continual_model(**options) for _ in range(2))
    refresh.open(tmp_path, 0)
    refresh.update(small_gpt(), 3)
    again.open(tmp_path, 3)
    rows = [model.update(small_gpt(1), 5) for model in (refresh, again)]
    first, *later = ([(p.prompt, p.chosen, p.rejected) for p in call.pairs] for call in fits)
    originals = [as_pair(row, LETTERS) for visit in original_visits() for row in visit]
    known = [*first[:12], *((p.prompt, p.chosen, p.rejected) for p in originals)]
    for pairs, row in zip(later, rows, strict=True):
        left = known.copy()
        for pair in pairs[12:]:
            left.remove(pair)
        assert len(left) == 1 and row["pairs/replayed"] == 51  # of 12 + 40
    assert later[0] == later[1]


def test_new_pairs_are_the_policys_own_and_labelled_by_the_annotator(fits):
    """This policy says c, then e, f or g: every new response does, no original one."""
    policy = fixed_gpt([*[0.0] * 4, 1 / 3, 1 / 3, 1 / 3, *[0.0] * 3], 16, torch.float32)
    asked: list[str] = []

    def likes_e(prompt, a, a_ended, b, b_ended, rng):
        asked.append(prompt.prompt)
        return Labelled(a.count("e") >= b.count("e"), (a.count("e"), b.count("e")))

    continual_model(annotator=likes_e).update(policy, 3)
    new = fits[0].pairs[:60]
    assert {token for pair in new for token in pair.chosen + pair.rejected} == {4, 5, 6}
    assert all(pair.chosen.count(4) >= pair.rejected.count(4) for pair in new)
    assert {record.prompt for record in PROMPTS} >= set(asked)


# The first reward model dislikes the letter d, which this annotator is for.
DISAGREEING = dict(annotator=prefers("d"), fitting=dict(pairs=300, epochs=2, lr=1e-2), fraction=0.0)


def test_a_refresh_brings_back_a_reward_model_that_is_wrong():
    """The policy's own pairs teach it, and what it has learned is still there the next time."""
    refresh = continual_model(**DISAGREEING)
    first, second = (refresh.update(small_gpt(), step) for step in (3, 5))
    assert first["fresh_accuracy/before"] < 0.6 and first["fresh_accuracy/after"] > 0.75
    assert second["fresh_accuracy/before"] > 0.75
    assert first["probe_reward/after"] == second["probe_reward/before"]
    assert first["probe_reward/before"] != first["probe_reward/after"]


def test_a_refresh_has_the_rate_that_the_reward_model_was_trained_with(tmp_path):
    """Or the usual one, where its folder does not say it."""
    assert learning_rate(tmp_path) == 2e-3
    write_json(tmp_path / "config.json", {"lr": 7e-4})
    assert learning_rate(tmp_path) == 7e-4


# Repeating and resuming


@pytest.mark.parametrize(("every", "last"), [(1, 3), (3, 5), (1, 5)])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, every, last):
    """Iterations begin at steps 3 and 5. Saved right in front of a refresh and after one; the crash
    leaves pairs on disk that the resumed run draws again."""
    options = dict(save_every=every, minibatches=2)
    whole, complete = small_gpt(), continual_model()
    rows = refreshing(whole, complete, folder=tmp_path / "whole", **options)
    folder = tmp_path / "cut"
    log = CrashingLog(6)
    log.last = last
    with pytest.raises(Crash):
        refreshing(small_gpt(), continual_model(), folder=folder, log=log, **options)
    done = saved_step(folder)
    assert done == (last - 1) // every * every
    resumed, again = small_gpt(), continual_model()
    for module in (resumed.wte, again.model.head):
        torch.nn.init.normal_(module.weight)  # everything comes from the file
    more = refreshing(resumed, again, folder=folder, resume=True, **options)
    assert [row["step"] for row in more] == list(range(done + 1, 7))
    assert numbers(more) == numbers(rows[done:])
    assert torch.equal(weights(resumed), weights(whole))
    assert torch.equal(weights(again.model), weights(complete.model))
    stored = [(tmp_path / name / "pairs.jsonl").read_text() for name in ("whole", "cut")]
    assert stored[0] == stored[1]
    assert [row["step"] for row in read_jsonl(folder / "pairs.jsonl")] == [3] * 60 + [5] * 60
