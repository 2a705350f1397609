"""Pairs in files: what is read of a file, what is refused, and what a run keeps."""

from __future__ import annotations

from toys import write_pairs

from data.splits import split_of
from gpt.tokenizer import load_tokenizer
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
