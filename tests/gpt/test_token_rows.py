"""How a model reads a few texts, token by token: the rows that the report shows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from toys import LETTERS, seeded

from data.collate import collate_responses
from gpt.finetuning import FinetuningConfig
from gpt.log_probs import token_scores
from gpt.model import GPT, GPTConfig
from gpt.token_rows import TextLog
from harness.files import read_jsonl
from harness.paths import TOKENS
from reward_model.accuracy_report import record_prefixes
from reward_model.pairs import TokenPair
from reward_model.scalar_head import RewardModel

BATCH = collate_responses([[0, 1], [2]], [[3, 4, 5, 8], [6, 8]], 8)


def small_gpt(seed: int = 0) -> GPT:
    shape = GPTConfig(LETTERS.n_vocab, 128, n_layer=1, n_head=2, n_embd=16)
    return GPT(shape).initialize(seeded(seed))


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
        assert scores[-1] == pytest.approx(float(model(ended)), abs=1e-4)
        assert row["notes"]["reward"] == scores[-1] and row["notes"]["preferred"] == preferred
    assert (better["notes"]["gold"], worse["notes"]["gold"]) == (0.9, 0.1)
    record_prefixes(model, [], LETTERS, tmp_path)
    assert not (tmp_path / TOKENS).exists()
