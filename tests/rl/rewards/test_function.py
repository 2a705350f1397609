"""--reward WHERE:FUNCTION: a user's own function as the reward, and what is said when it is broken."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from toys import LETTERS, seeded

from data.records import PromptRecord
from gpt.checkpoint import save_gpt
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from harness.files import read_jsonl
from rl import grpo_engine
from rl.batches.rollout import sample_rollout
from rl.grpo_engine import GRPOConfig
from rl.rewards.function import open_function

GLASSBOX = load_tokenizer("glassbox")
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
EVERYTHING = """
def everything(prompt: str, response: str, *, ended: bool, record) -> float:
    return len(record.answer) + 10 * ended + 100 * len(response)
"""


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


def test_it_gets_the_record_and_whether_the_response_ended_if_it_asks(source):
    rewards = open_function(f"{source(EVERYTHING)}:everything")(ROLLOUT)
    assert rewards.tolist() == [
        float(len(record.answer or "") + 10 * ended + 100 * len(text))
        for record, text, ended in zip(
            ROLLOUT.records, ROLLOUT.responses, ROLLOUT.has_eos.tolist(), strict=True
        )
    ]
    assert len(set(ROLLOUT.has_eos.tolist())) == 2


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


def test_an_exception_inside_names_prompt_message_and_line(source):
    name = source("def f(prompt, response):\n    return 1 / (len(prompt) - 5)\n")
    with pytest.raises(UserError) as error:
        open_function(f"{name}:f")(ROLLOUT)
    told = str(error.value)
    assert "prompt 4 of 6" in told and "ZeroDivisionError" in told and f"{name}.py, line 2" in told


@pytest.mark.parametrize(
    "value", ["None", "'2'", "b'2'", "[1, 2]", "1j", "float('nan')", "float('-inf')", "10 ** 400"]
)
def test_what_is_no_finite_number_is_refused(source, value):
    name = source(f"def f(prompt, response):\n    return 0 if prompt == 'ab' else {value}\n")
    with pytest.raises(UserError, match=r":f gave .* prompt 4 of 6, 'hgfed'"):
        open_function(f"{name}:f")(ROLLOUT)


# In a run


@pytest.fixture
def base(tmp_path) -> Path:
    shape = GPTConfig(GLASSBOX.n_vocab, 128, n_layer=1, n_head=2, n_embd=8)
    policy = GPT(shape).initialize(seeded(0))
    save_gpt(tmp_path / "base" / "model.safetensors", policy, GLASSBOX)
    return tmp_path / "base"


def config_of(base: Path, reward: str) -> GRPOConfig:
    return GRPOConfig(
        reward=reward, policy=base, out=base.parent / "out", steps=2, prompts_per_step=2, group_size=2,
        max_new_tokens=4, eval_every=1, eval_prompts=2, test_prompts=2, device="cpu",
    )  # fmt: skip


def test_an_engine_trains_on_it(source, base):
    """And measures the world's own gold beside it."""
    name = source("def f(prompt, response):\n    return 1000 + len(response)\n")
    folder = grpo_engine.main(config_of(base, f"{name}:f"))
    rows = read_jsonl(folder / "metrics.jsonl")
    assert len(rows) == 2 and all(row["reward"] >= 1000 for row in rows)
    assert all(row["validation/reward"] >= 1000 > 1 >= row["validation/gold"] for row in rows)
    assert json.loads((folder / "config.json").read_text())["reward"] == f"{name}:f"


def test_a_function_that_ends_the_process_is_no_success(source):
    called = source("import sys\ndef f(prompt, response):\n    sys.exit()\n")
    with pytest.raises(UserError):
        open_function(f"{called}:f")(ROLLOUT)
    with pytest.raises(UserError):
        open_function(f"{source('import sys; sys.exit()')}:f")
