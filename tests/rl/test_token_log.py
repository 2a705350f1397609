"""Texts token by token: every number against its definition, and training left as it is."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import DIVERSE, ENGINES, SHARE_OF_A, Engine, engine_named, small_gpt
from slow import chosen
from toys import LETTERS, PROMPTS, weights
from watched import calls_of, numbers

from data.collate import collate_responses
from gpt.finetuning import FinetuningConfig
from gpt.generate import SamplingParams
from gpt.log_probs import token_scores
from gpt.model import GPT
from gpt.token_rows import TextLog
from harness.files import read_jsonl
from harness.paths import TOKENS
from reward_model.accuracy_report import record_prefixes
from reward_model.pairs import TokenPair
from reward_model.scalar_head import RewardModel
from rl import ppo_engine
from rl.run.evaluation import KEPT_TOKENS, Validation
from rl.run.token_log import TokenLog

pytestmark = pytest.mark.filterwarnings("ignore:with one update a batch")


def validation(engine: Engine, path: Path | None, policy: GPT) -> Validation:
    """Validations of an engine's toy task, with a token log where there is a path."""
    reward: Any = SHARE_OF_A
    if engine.taught_by is not None:
        reward = engine.taught_by(engine.config, engine.teacher)
    params = SamplingParams(engine.config.temperature, max_new_tokens=8)
    validate = Validation(LETTERS, PROMPTS, params, reward, start=copy.deepcopy(policy))
    if path is not None:
        validate.token_log = TokenLog(path, LETTERS, reward, engine.config)
    return validate


def rows_of(
    engine: Engine, path: Path, policy: GPT, reward_fn: Any = None, **changes: Any
) -> list[dict[str, Any]]:
    """What the token log of a run holds."""
    validate = validation(engine, path, policy)
    engine.run(policy, reward_fn, eval_every=1, validate=validate, **changes)
    return read_jsonl(path)


def ids_of(row: dict[str, Any]) -> list[int]:
    """Letters, the EOS 8 and the padding 9, which the toy policy may sample too."""
    special = {"<eos>": [8], "<9>": [9]}
    return [(special.get(token) or LETTERS.encode(token))[0] for token in row["tokens"]]


def log_probs(model: GPT, row: dict[str, Any]) -> torch.Tensor:
    """Of a recorded response, from an unpadded forward of its own."""
    return torch.stack(chosen(model, LETTERS.encode(row["prompt"]), ids_of(row))).detach()


def distributions(model: GPT, row: dict[str, Any]) -> torch.Tensor:
    """(L, V) log-probabilities at the response's positions."""
    prompt, response = LETTERS.encode(row["prompt"]), ids_of(row)
    logits = model(torch.tensor([prompt + response]))[0].detach()
    return logits[len(prompt) - 1 : -1].log_softmax(-1)


def close(values: list[float], expected: torch.Tensor) -> None:
    """Files hold four decimals."""
    torch.testing.assert_close(torch.tensor(values), expected.float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_the_token_log_changes_no_number_of_any_engine(engine: Engine, tmp_path: Path) -> None:
    """Metrics and weights bit for bit, and a number for every token of every response."""
    ends, logs = [], []
    for path in (None, tmp_path / "tokens.jsonl"):
        policy = small_gpt()
        validate = validation(engine, path, policy)
        reward = DIVERSE if engine.rule else None
        logs.append(numbers(engine.run(policy, reward, steps=2, eval_every=1, validate=validate)))
        ends.append(weights(policy))
    assert logs[0] == logs[1] and torch.equal(*ends)
    rows = read_jsonl(tmp_path / "tokens.jsonl")
    for row in rows:
        assert row["tokens"] and {len(v) for v in row["values"].values()} == {len(row["tokens"])}
    kinds = [(row["step"], row["kind"]) for row in rows]
    assert kinds.count((2, "validation")) == KEPT_TOKENS
    assert ((2, "training") in kinds) == engine.has("prompts_per_step")
    if engine.has("prompts_per_step"):
        assert all("advantage" in r["values"] for r in rows if r["kind"] == "training")


def test_a_group_is_recorded_as_it_was_trained_on(tmp_path: Path) -> None:
    """Log-ratio, KL, entropy, advantage and clip of GRPO's first step, each by its definition."""
    start, policy = small_gpt(noise=0.1), small_gpt(noise=0.1)
    path, options = tmp_path / "t.jsonl", dict(steps=1, lr=3e-2, updates_per_batch=2)
    rows = rows_of(engine_named("grpo"), path, policy, DIVERSE, **options)
    group = [row for row in rows if row["kind"] == "training"]
    rewards = torch.tensor([row["notes"]["reward"] for row in group])
    A = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    assert len(group) == 4 and len({row["prompt"] for row in group}) == 1
    acted = 0
    for row, advantage in zip(group, A.tolist(), strict=True):
        new, old = log_probs(policy, row), log_probs(start, row)
        values, p, q = row["values"], distributions(policy, row), distributions(start, row)
        close(values["advantage"], torch.full((len(new),), advantage))
        close(values["log_prob"], new)
        close(values["log_ratio"], new - old)
        close(values["kl"], (p.exp() * (p - q)).sum(-1))
        close(values["entropy"], -(p.exp() * p).sum(-1))
        ratio = (new - old).exp()
        beyond = ratio > 1.2 if advantage > 0 else ratio < 0.8
        assert row["clipped"] == [int(b) for b in beyond]
        acted += sum(row["clipped"])
    assert acted  # so that the comparison is of something


def test_td_errors_are_of_the_rewards_that_the_critic_learns_from(monkeypatch, tmp_path) -> None:
    """r_t + gamma V_(t+1) - V_t with the whitened r, 0 behind the last token; V as it was then."""
    seen, path = calls_of(monkeypatch, ppo_engine, "gae_update"), tmp_path / "t.jsonl"
    ppo = engine_named("ppo")
    ppo = replace(ppo, config=replace(ppo.config, gamma=0.9))
    rows = rows_of(ppo, path, small_gpt(), DIVERSE, steps=2, whiten_rewards=True)
    rows = [row for row in rows if row["kind"] == "training" and row["step"] == 2]
    _, rewards, _, _, values, mask = seen[1].args
    V = torch.cat([values * mask, torch.zeros(len(values), 1)], 1)
    errors = rewards + 0.9 * V[:, 1:] - V[:, :-1]
    assert len(rows) == 4 and V.any()
    for i, row in enumerate(rows):
        close(row["values"]["td_error"], errors[i, mask[i]])
        close(row["values"]["value"], values[i, mask[i]])


BATCH = collate_responses([[0, 1], [2]], [[3, 4, 5, 8], [6, 8]], 8)


def test_surprise_is_minus_the_log_prob_of_each_token(tmp_path: Path) -> None:
    model = small_gpt()
    TextLog(FinetuningConfig(), tmp_path, LETTERS, BATCH).write(model, 7)
    first, second = read_jsonl(tmp_path / TOKENS)
    assert first["tokens"] == ["d", "e", "f", "<eos>"] and second["tokens"] == ["g", "<eos>"]
    assert (first["prompt"], second["prompt"], first["step"]) == ("ab", "c", 7)
    log_q = token_scores(model.eval(), BATCH).log_probs
    for i, row in enumerate((first, second)):
        count = len(row["tokens"])
        assert row["values"]["surprise"] == pytest.approx((-log_q[i, :count]).tolist(), abs=1e-4)
        mean = float(-log_q[i].detach().sum()) / count
        assert row["notes"]["nats per token"] == pytest.approx(mean, abs=1e-4)


def test_a_pair_has_the_score_after_each_token_the_preferred_answer_first(tmp_path: Path) -> None:
    model = RewardModel.from_policy(small_gpt(), "last_token", torch.Generator().manual_seed(0))
    pair = TokenPair([0], [1, 2, 8], [3, 8], {"gold_chosen": 0.9, "gold_rejected": 0.1})
    record_prefixes(model, [pair], LETTERS, tmp_path)
    better, worse = read_jsonl(tmp_path / TOKENS)
    assert better["tokens"] == ["b", "c", "<eos>"] and worse["tokens"] == ["d", "<eos>"]
    for row, tokens, preferred in ((better, pair.chosen, 1.0), (worse, pair.rejected, 0.0)):
        scores = row["values"]["prefix_score"]
        ended = collate_responses([pair.prompt], [tokens], 8)
        assert scores[-1] == pytest.approx(model(ended).item(), abs=1e-4)
        assert row["notes"]["reward"] == scores[-1] and row["notes"]["preferred"] == preferred
    assert (better["notes"]["gold"], worse["notes"]["gold"]) == (0.9, 0.1)
    record_prefixes(model, [], LETTERS, tmp_path)
    assert not (tmp_path / TOKENS).exists()
