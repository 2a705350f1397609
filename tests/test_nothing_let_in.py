"""What comes from outside is data and never code, stays in its folder, and comes when it was asked for."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from data.records import PromptRecord
from gpt.checkpoint import load_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from harness.training_state import read_state
from reward_model.scalar_head import RewardModel
from rl.rewards.model import RewardModelReward
from rl.run.task import require_reach

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = load_tokenizer("glassbox")


def small_gpt() -> GPT:
    shape = GPTConfig(TOKENIZER.n_vocab, context=8, n_layer=2, n_head=1, n_embd=4)
    return GPT(shape).initialize(torch.Generator().manual_seed(0))


def refused(call, *arguments) -> None:
    with pytest.raises(UserError):
        call(*arguments)


# Code


class Trap:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("name", ["state.pt", "model.safetensors"])
def test_no_pickle_is_run_whatever_its_name(tmp_path, name):
    """As torch.save writes it, and bare."""
    sprung = tmp_path / "sprung"
    for write in (torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))):
        write({"step": Trap(sprung), "parts": {}}, tmp_path / name)
        refused(read_state if name == "state.pt" else load_gpt, tmp_path)
    assert not sprung.exists()


# Data


def test_a_reward_model_that_cannot_read_what_will_be_written():
    """Refused before an earlier run is moved aside, not at the first reward."""
    shape = GPTConfig(TOKENIZER.n_vocab, context=64, n_layer=1, n_head=1, n_embd=4)
    policy, prompts = GPT(shape), {"train": [PromptRecord("a b", None)], "test": []}
    reward = RewardModelReward(RewardModel.from_policy(small_gpt()))  # reads 8
    ask = (reward, policy, TOKENIZER, prompts)
    longest = len(TOKENIZER.encode("a b"))
    require_reach(*ask, 8 - longest)
    refused(require_reach, *ask, 9 - longest)
    require_reach(None, *ask[1:], 60)
