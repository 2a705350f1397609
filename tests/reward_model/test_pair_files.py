"""Pairs in files: what is read of a file, what is refused, and what a run keeps."""

from __future__ import annotations

import json

import pytest
from toys import write_pairs

from data.splits import split_of
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from reward_model.pair_files import file_pairs
from reward_model.reward_model_training import RewardModelConfig

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


def test_a_few_pairs_are_held_out_by_either_split(tmp_path):
    """Where no prompt is in the validation split the test split has them; with neither: refused."""
    rows = write_pairs(tmp_path / "pairs.json")
    held = [row for row in rows if split_of(row["prompt"]) != "validation"]
    for name, kept in (
        ("some", held),
        ("none", [r for r in held if split_of(r["prompt"]) == "train"]),
    ):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    train, held_out = file_pairs(
        RewardModelConfig(data=str(tmp_path / "some.jsonl")), GLASSBOX, 128
    )
    assert {split_of(GLASSBOX.decode(pair.prompt)) for pair in held_out} == {"test"}
    assert {split_of(GLASSBOX.decode(pair.prompt)) for pair in train} == {"train"}
    with pytest.raises(UserError):
        file_pairs(RewardModelConfig(data=str(tmp_path / "none.jsonl")), GLASSBOX, 128)
