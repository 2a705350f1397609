"""--reward WHERE:FUNCTION: a user's own function as the reward, and what is said when it is broken."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from toys import LETTERS, seeded

from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from harness.errors import UserError
from rl.batches.rollout import sample_rollout
from rl.rewards.function import open_function

RECORDS = [PromptRecord("ab", answer="x"), PromptRecord("hgfed", answer="yy")]


SHAPE = GPTConfig(LETTERS.n_vocab, 24, n_layer=1, n_head=2, n_embd=16)
MODEL, PARAMS = GPT(SHAPE).initialize(seeded(0)).eval(), SamplingParams(max_new_tokens=9)
ROLLOUT = sample_rollout(MODEL, LETTERS, RECORDS, PARAMS, 3, seeded(1))


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Writes Python into rewards_N.py of the working folder; gives the module's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    count = iter(range(100))

    def write(text: str) -> str:
        name = f"rewards_{tmp_path.name.replace('-', '_')}_{next(count)}"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return name

    return write


LENGTHS = "def lengths(prompt, response):\n    return len(prompt) + 100 * len(response)\n"


# What it is called with


def test_it_is_called_with_prompt_and_response(source):
    reward = open_function(f"{source(LENGTHS)}:lengths")
    expected = [
        float(len(record.prompt) + 100 * len(text))
        for record, text in zip(ROLLOUT.records, ROLLOUT.responses, strict=True)
    ]
    rewards = reward(ROLLOUT)
    assert rewards.tolist() == expected and rewards.dtype == torch.float32
    assert len(set(expected)) > 2


# What is wrong with the flag


BROKEN = (
    "no_module_xyz:f", "json.no_module_xyz:f", "nowhere/rewards.py:f", "math:sqt", "math:pi",
    "math:sqrt", "builtins:max",
)  # fmt: skip


@pytest.mark.parametrize("reward", BROKEN)
def test_what_cannot_be_found_or_called_is_refused(source, reward):
    with pytest.raises(UserError):
        open_function(reward)


# What goes wrong while it runs


@pytest.mark.parametrize(
    "value",
    ["None", "'2'", "b'2'", "[1, 2]", "1j", "float('nan')", "float('-inf')", "1e39", "10 ** 400"],
)
def test_what_is_no_finite_number_is_refused(source, value):
    name = source(f"def f(prompt, response):\n    return 0 if prompt == 'ab' else {value}\n")
    with pytest.raises(UserError, match=r":f gave .* prompt 4 of 6, 'hgfed'"):
        open_function(f"{name}:f")(ROLLOUT)


# In a run


def test_a_function_that_ends_the_process_is_no_success(source):
    called = source("import sys\ndef f(prompt, response):\n    sys.exit()\n")
    with pytest.raises(UserError):
        open_function(f"{called}:f")(ROLLOUT)
    with pytest.raises(UserError):
        open_function(f"{source('import sys; sys.exit()')}:f")


SETS = """
import os, sys, torch

def set_all():
    os.chdir("/")
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    sys.stdout = None

def f(prompt, response):
    set_all()
    return len(response)

set_all()
"""


def test_what_a_reward_sets_for_the_process_does_not_last(source):
    """A sandbox that changes the folder would part the run's files."""

    def state():
        return Path.cwd(), torch.get_default_dtype(), torch.is_grad_enabled(), sys.stdout

    before = state()
    reward = open_function(f"{source(SETS)}:f")
    assert state() == before
    reward(ROLLOUT)
    assert state() == before
