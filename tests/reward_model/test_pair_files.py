"""Pairs in files: what is read of a file, what is refused, and what a run keeps."""

from __future__ import annotations

import json
import math

import pytest
from toys import write_pairs

from data.splits import split_of
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from reward_model.pair_files import file_pairs
from reward_model.pairs import preference_strength
from reward_model.reward_model_training import RewardModelConfig, main

GLASSBOX = load_tokenizer("glassbox")


def test_file_pairs_are_split_by_prompt(tmp_path, capsys):
    rows = write_pairs(tmp_path / "pairs.json")
    config = RewardModelConfig(data=str(tmp_path / "pairs.json"))
    train, held_out = file_pairs(config, GLASSBOX, 128)
    decoded = [{GLASSBOX.decode(pair.prompt) for pair in part} for part in (train, held_out)]
    for split, prompts in zip(("train", "validation"), decoded, strict=True):
        assert prompts == {row["prompt"] for row in rows if split_of(row["prompt"]) == split}
    assert all(pair.chosen[-1] == GLASSBOX.eos_id for pair in train + held_out)
    assert "60 of 60 rows kept" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("meta", "strength"),
    [
        ({"margin": 2}, 2), ({"margin": 0, "score_chosen": 5, "score_rejected": 1}, 0),
        ({"score_chosen": 8.5, "score_rejected": 7}, 1.5), ({}, None), ({"score_chosen": 8}, None),
        ({"margin": "2"}, None), ({"margin": -1}, None), ({"margin": True}, None),
        ({"margin": math.nan}, None), ({"margin": math.inf}, None),
        ({"score_chosen": 1, "score_rejected": 2}, None), ({"gold_chosen": 1}, None),
    ],
)  # fmt: skip
def test_the_strength_of_a_preference(meta, strength):
    """Gold is no annotator's word: no margin is made from it."""
    assert preference_strength(meta) == strength


def test_margins_from_strengths_need_a_strength_of_every_pair(tmp_path):
    rows = write_pairs(tmp_path / "pairs.json")
    config = RewardModelConfig(
        data=str(tmp_path / "pairs.json"), margin=1.0, margin_from="strength", device="cpu"
    )
    with pytest.raises(UserError, match=r"pairs.json: the pair of 'Question 0"):
        main(config)  # before a base is pre-trained
    rows = [row | {"margin": 1} for row in rows]
    del rows[7]["margin"]
    (tmp_path / "pairs.json").write_text(json.dumps(rows), encoding="utf-8")
    with pytest.raises(UserError, match=r"pairs.json: the pair of 'Question 7"):
        file_pairs(config, GLASSBOX, 128)
    rows[7] |= {"score_chosen": 4, "score_rejected": 1}
    (tmp_path / "pairs.json").write_text(json.dumps(rows), encoding="utf-8")
    train, held_out = file_pairs(config, GLASSBOX, 128)
    assert {preference_strength(pair.meta) for pair in train + held_out} <= {1.0, 3.0}
