"""Several rewards at once: a column each, their sum, GDPO in an engine, and what is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import torch
from engines import engine_named, small_gpt
from toys import LETTERS, documented, saved_gpt, seeded

from data.files.read import read_prompts
from data.records import PromptRecord
from data.templates import Turn
from gpt.generate import SamplingParams
from harness.errors import UserError
from harness.files import read_json, read_jsonl
from rl.batches.dynamic_sampling import join_rollouts
from rl.batches.rollout import sample_rollout
from rl.grpo_engine import GRPOConfig, main
from rl.grpo_variants_engine import GRPOVariantsConfig
from rl.ppo_engine import PPOConfig
from rl.rewards.function import open_function
from rl.rewards.reward import RuleReward, checked_rewards, open_reward
from rl.rewards.several import SeveralRewards, labels_of
from rl.rloo_engine import RLOOConfig
from rl.run.config import RunFlags
from rl.run.metrics import rollout_metrics

RECORDS = [PromptRecord("ab", answer="x"), PromptRecord("hgfed", answer="yy")]
PARAMS = SamplingParams(max_new_tokens=9)
ROLLOUT = sample_rollout(small_gpt(), LETTERS, RECORDS, PARAMS, 3, seeded(1))
LENGTH = RuleReward(lambda record, text, ended: float(len(text)), "length")
A = RuleReward(lambda record, text, ended: float("a" in text), "a")
SKIPS = "def f(prompt, response):\n    return None if prompt == 'ab' else 2.0\n"


def fresh():
    return replace(ROLLOUT, reward_metrics={}, reward_columns={})


def test_every_column_is_measured_and_only_those_with_a_weight_are_paid(source):
    reward = SeveralRewards(
        {"length": LENGTH, "a": A, "f": open_function(f"{source(SKIPS)}:f")}, (0.5, 0.0, 3.0)
    )
    rollout = fresh()
    rewards = checked_rewards(reward, rollout)
    lengths = [float(len(text)) for text in rollout.responses]
    assert rewards.tolist() == pytest.approx(
        [0.5 * n + 3.0 * 2.0 * (row >= 3) for row, n in enumerate(lengths)]
    )
    assert rollout.reward_columns["a"].tolist() == [float("a" in t) for t in rollout.responses]
    row = rollout_metrics(rollout, rewards, torch.zeros_like(rollout.log_probs), None)
    assert row["reward/length"] == pytest.approx(sum(lengths) / 6)
    assert row["reward_std/length"] == pytest.approx(float(torch.tensor(lengths).std()))
    assert (row["reward_none/f"], row["reward/f"], row["reward_std/f"]) == (3, 2.0, 0.0)
    assert row["reward_none/a"] == 0
    assert documented("Several rewards") == {
        f"{n}/NAME" for n in ("reward", "reward_std", "reward_none")
    }


def test_rounds_of_which_one_has_no_judged_row_are_joined(source):
    """The mean of a column is over the rounds that it judges, the Nones of all add up."""
    reward = SeveralRewards({"a": A, "f": open_function(f"{source(SKIPS)}:f")})
    rollouts = [replace(fresh(), records=RECORDS[:1] * 6), fresh()]
    for rollout in rollouts:
        checked_rewards(reward, rollout)
    joined = join_rollouts(rollouts).reward_metrics
    assert (joined["reward/f"], joined["reward_none/f"]) == (2.0, 9)


def test_a_row_that_no_paid_reward_judges_is_refused_and_what_is_too_large(source):
    skips = open_function(f"{source(SKIPS)}:f")
    with pytest.raises(UserError, match="prompt 1 of 6"):
        skips(fresh())
    with pytest.raises(UserError, match="prompt 1 of 6"):
        SeveralRewards({"a": A, "f": skips}, (0.0, 1.0))(fresh())
    with pytest.raises(UserError, match="length"):
        SeveralRewards({"a": A, "length": LENGTH}, (1.0, 1e15))(fresh())
    huge = RuleReward(lambda record, text, ended: 1e31, "huge")
    with pytest.raises(ValueError, match="huge"):
        checked_rewards(SeveralRewards({"a": A, "huge": huge}), fresh())


@pytest.mark.parametrize(
    "code",
    [
        "def broken(prompt, response): return 0 if prompt == 'ab' else 1 / 0",
        "def broken(prompt, response): return 0 if prompt == 'ab' else float('nan')",
        "def broken(completions): return [0] * 5", "def broken(completions): return {0: 1.0}",
    ],
)  # fmt: skip
def test_one_of_several_that_breaks_is_named(source, code):
    """What else is no number for each row: test_function.py."""
    reward = SeveralRewards({"a": A, "broken": open_function(f"{source(code)}:broken")})
    with pytest.raises(UserError, match=":broken"):
        reward(fresh())


def test_names_of_columns_differ():
    assert labels_of(["rule", "x/r.py:f", "runs/judge"]) == ["rule", "f", "judge"]
    assert labels_of(["rule", "x/r.py:f", "s.py:f"]) == ["rule", "r.f", "s.f"]
    assert labels_of(["x/r.py:f", "y/r.py:f"]) == ["x/r.py:f", "y/r.py:f"]
    assert labels_of(["gold", "r.py:gold"]) == ["gold", "r.gold"]


# What flags may say


REFUSED = [
    (GRPOConfig, dict(reward=("rule", "x:f"), reward_weights=(1.0,))),
    (GRPOConfig, dict(reward=("rule", "x:f"), reward_weights=(0.0, 0.0))),
    (GRPOConfig, dict(reward=("rule", "x:f"), reward_weights=(1.0, float("nan")))),
    (GRPOConfig, dict(reward=("x:f", "x:f"))), (GRPOConfig, dict(reward=())),
    (GRPOConfig, dict(reward=("rule", "brif"))),
    (GRPOConfig, dict(reward_combination="gdpo", missing_eos_penalty=1.0)),
    (GRPOVariantsConfig, dict(reward_combination="gdpo", sampling_filter="dynamic")),
    (GRPOVariantsConfig, dict(reward_combination="gdpo", reward_scale="none")),
    (RLOOConfig, dict(reward_combination="gdpo")), (PPOConfig, dict(reward_combination="gdpo")),
]  # fmt: skip


@pytest.mark.parametrize(("config", "changes"), REFUSED)
def test_flags_that_no_run_can_mean(config, changes):
    config(reward=("rule", "x:f"))
    with pytest.raises(ValueError):
        config(**changes)


def test_flags_open_a_column_each_and_one_alone_stays_what_it_is(source):
    name = source(SKIPS)
    given = LETTERS, torch.device("cpu"), A
    config = RunFlags(reward=("gold", f"{name}:f"), reward_weights=(1.0, 0.5))
    reward = open_reward(config, *given)
    assert list(reward.parts) == ["gold", "f"] and reward.weights == (1.0, 0.5)
    assert reward.parts["gold"] is A and reward.paid[0] is A
    assert open_reward(RunFlags(reward=("gold",)), *given) is A
    assert open_reward(RunFlags(reward="gold", reward_weights=(2.0,)), *given).weights == (2.0,)


def test_a_folder_in_place_of_a_reward_is_its_reward_model(tmp_path):
    alone = RunFlags(reward=str(tmp_path))
    assert (alone.reward, alone.reward_model) == ("model", (str(tmp_path),))
    both = RunFlags(reward=("gold", str(tmp_path)))
    assert both.judges == [str(tmp_path)] and both.reward == ("gold", str(tmp_path))


# In an engine


@pytest.mark.parametrize("name", ["grpo", "grpo_variants", "grpo_single_model", "pg_grpo"])
def test_by_gdpo_a_reward_counts_by_its_weight_however_much_it_varies(name):
    """A reward a thousand times as large changes the run by the sum, and nothing by GDPO."""

    def weights_after(how: str, scale: float) -> torch.Tensor:
        large = RuleReward(lambda record, text, ended: scale * len(text), "length")
        policy = small_gpt()
        reward = SeveralRewards({"a": A, "length": large})
        changes = dict(steps=2, reward_combination=how, lr=1e-3)
        engine_named(name).run(policy, reward, **changes)
        return policy.wte.weight.detach().clone()

    def same(how: str) -> bool:
        pair = weights_after(how, 100.0), weights_after(how, 100_000.0)
        return torch.allclose(*pair, rtol=0, atol=2e-5)

    assert same("gdpo")
    assert not torch.allclose(
        weights_after("gdpo", 1.0), weights_after("sum", 1.0), rtol=0, atol=2e-5
    )


def test_a_run_writes_its_columns_and_keeps_its_last_state(source, tmp_path):
    """It fails in its third step, and the state of the second is there to go on from."""
    saved_gpt(tmp_path / "start", context=128, n_embd=8)
    (tmp_path / "fails").write_text("2")
    text = (
        "from pathlib import Path\ncalls = []\n"
        "def late(prompts, completions):\n"
        "    calls.append(1)\n"
        f"    assert len(calls) < 1 + int(Path({str(tmp_path / 'fails')!r}).read_text())\n"
        "    return [None] + [1.0] * (len(completions) - 1)\n"
    )
    name = source(text)
    config = GRPOConfig(
        model=str(tmp_path / "start"), reward=("gold", f"{name}:late"), steps=3, prompts_per_step=2,
        group_size=2, max_new_tokens=8, eval_prompts=0, test_prompts=0, device="cpu", ranks=1,
        save_every=1, out=tmp_path / "run",
    )  # fmt: skip
    with pytest.raises(UserError, match="late failed"):
        main(config)
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2] and rows[1]["reward_none/late"] == 1
    (tmp_path / "fails").write_text("100")
    main(replace(config, resume=True, eval_prompts=4, test_prompts=4, eval_every=1))
    (*_, row) = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    report = read_json(tmp_path / "run" / "report.json")
    assert row["step"] == 3 and row["validation/reward/late"] == 1.0
    assert report["after"]["reward/late"] == 1.0 and "reward/gold" in report["before"]
    samples = read_jsonl(tmp_path / "run" / "samples.jsonl")
    assert [sample["reward/late"] for sample in samples] == [None, 1.0, 1.0, 1.0]
    assert "reward/late" in (tmp_path / "run" / "report.html").read_text()


# The question


def test_a_function_is_given_the_conversation_that_it_asks_for(source):
    """Of plain text the prompt is one user's turn; TRL's form gets lists."""
    turns = (Turn("system", "Be brief."), Turn("user", "1+1?"))
    talk = PromptRecord("<s>1+1?", turns=turns)
    rollout = replace(ROLLOUT, records=[talk] * 3 + ROLLOUT.records[3:])
    name = source(
        "seen = []\n"
        "def f(prompt, response, messages):\n    seen.append(messages)\n    return 1.0\n"
        "def g(prompts, completions, messages, completion_ids, **columns):\n"
        "    seen[:] = [prompts, completions, messages, completion_ids]\n    return [1.0] * 6\n"
    )
    open_function(f"{name}:f")(rollout)
    written = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    plain = [{"role": "user", "content": "hgfed"}]
    seen = sys.modules[name].seen
    assert seen == [written] * 3 + [plain] * 3
    open_function(f"{name}:g")(rollout)
    seen = sys.modules[name].seen
    assert seen[0] == ["<s>1+1?"] * 3 + ["hgfed"] * 3 and seen[1] == rollout.responses
    assert seen[2] == [written] * 3 + [plain] * 3
    tokens = [
        row[:n] for row, n in zip(rollout.response_tokens.tolist(), rollout.lengths, strict=True)
    ]
    assert seen[3] == tokens


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        (dict(prompt=[dict(role="user", content="Hi?")]), True),
        (dict(messages=[dict(role="user", content="Hi?"), dict(role="assistant", content="Yes.")]), True),
        (dict(prompt="Hi?"), False), (dict(instruction="Hi?", output="Yes."), False),
    ],
)  # fmt: skip
def test_trls_form_gets_messages_where_the_file_has_them(source, tmp_path, row, messages):
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    record = read_prompts(tmp_path / "rows.json").records[0]
    assert record.in_messages is messages
    text = (
        "seen = []\ndef f(prompts, completions):\n"
        "    seen.extend(prompts + completions)\n    return [0] * 6"
    )
    name = source(text)
    open_function(f"{name}:f")(replace(ROLLOUT, records=[record] * 6))
    seen = sys.modules[name].seen
    if messages:
        assert seen[0] == [{"role": "user", "content": "Hi?"}]
        assert seen[6] == [{"role": "assistant", "content": ROLLOUT.responses[0]}]
    else:
        assert seen[0] == record.prompt and seen[6] == ROLLOUT.responses[0]
