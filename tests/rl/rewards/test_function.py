"""--reward WHERE:FUNCTION: a user's own function as the reward, and what is said when it is broken."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from toys import LETTERS, seeded

from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from harness.errors import UserError
from rl.batches.rollout import Rollout, sample_rollout
from rl.rewards.function import files_behind, open_function

RECORDS = [PromptRecord("ab", answer="x"), PromptRecord("hgfed", answer="yy")]


SHAPE = GPTConfig(LETTERS.n_vocab, 24, n_layer=1, n_head=2, n_embd=16)
MODEL, PARAMS = GPT(SHAPE).initialize(seeded(0)).eval(), SamplingParams(max_new_tokens=9)
ROLLOUT = sample_rollout(MODEL, LETTERS, RECORDS, PARAMS, 3, seeded(1))


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


# Called with a batch


BATCHES = {  # what it takes, and what it gives
    "completions": "[len(c) for c in completions]",
    "prompts, completions, **columns": "[len(c) for c in completions]",
    "completions, answer, **columns": "[len(c) + 0 * len(a) for c, a in zip(completions, answer)]",
    "completions, tests, level=0, other=None": "torch.tensor([float(len(c)) for c in completions])",
    "*, prompts, completions, answer, **rest": "(len(c) for c in completions if len(rest) == 2)",
}


def with_columns() -> Rollout:
    """The rollout, its rows with the columns `tests`, a list, and `level`, which one row has."""
    records = [replace(r, meta={"tests": [r.prompt]}) for r in ROLLOUT.records]
    records[0] = replace(records[0], meta={"tests": [], "level": 3})
    return replace(ROLLOUT, records=records)


@pytest.mark.parametrize(("takes", "gives"), BATCHES.items())
def test_a_function_of_a_batch_is_called_once_with_the_columns_that_it_names(source, takes, gives):
    text = f"import torch\ncalls = []\ndef f({takes}):\n    calls.append(1)\n    return {gives}\n"
    name = source(text)
    rewards = open_function(f"{name}:f")(with_columns())
    assert rewards.tolist() == [len(text) for text in ROLLOUT.responses]
    assert sys.modules[name].calls == [1]


def test_the_files_behind_a_reward_are_its_own_and_those_beside_it_that_it_imports(source):
    helper = source("def g():\n    return 1.0\n")
    name = source(f"import {helper}, json, torch\ndef f(prompt, response):\n    return 1.0\n")
    open_function(f"{name}:f")
    files = {path.name for path in files_behind(sys.modules[name])}
    assert files == {f"{name}.py", f"{helper}.py"}


def test_what_another_run_of_this_process_has_loaded_is_not_behind_a_reward(source, tmp_path):
    """Imports by every form, in a function too, and of a package's own; not those of another reward."""
    (tmp_path / "own_pack").mkdir()
    for name, text in {
        "__init__": "",
        "a": "from . import b\nfrom .c import X",
        "b": "",
        "c": "X = 1",
    }.items():
        (tmp_path / f"own_pack/{name}.py").write_text(text)
    late, other = source(""), source("")
    name = source(
        f"import own_pack.a\ndef f(prompt, response):\n    from {late} import __name__\n    return 1.0\n"
    )
    open_function(f"{source(f'import {other}' + chr(10) + LENGTHS)}.py:lengths")
    reward = open_function(f"{name}:f")
    reward(ROLLOUT)
    files = {path.name for path in files_behind(sys.modules[name])}
    assert files == {f"{name}.py", f"{late}.py", "__init__.py", "a.py", "b.py", "c.py"}
    assert f"{other}.py" not in files


def test_a_column_that_no_row_of_this_batch_has_is_given_as_nothing(source):
    name = source(
        "seen = []\ndef f(completions, level):\n    seen.append(level)\n    return [0] * 6\n"
    )
    reward = open_function(f"{name}:f")
    reward(with_columns()), reward(ROLLOUT)
    assert sys.modules[name].seen == [[3, *[None] * 5], [None] * 6]


@pytest.mark.parametrize(
    ("takes", "gives"),
    [
        ("completions, solution", "[0] * 6"), ("prompts, responses", "[0] * 6"),
        ("completions", "[0] * 5"), ("completions", "[0, 0, None, 0, 0, 0]"), ("completions", "0.5"),
        ("completions", "'000000'"), ("completions", "None"), ("completions", "[[0]] * 5"),
        ("completions", "[c[0]['content'] for c in completions]"),
    ],
)  # fmt: skip
def test_a_column_of_no_row_and_what_is_no_number_for_each_row_are_refused(source, takes, gives):
    with pytest.raises(UserError):
        open_function(f"{source(f'def f({takes}): return {gives}')}:f")(ROLLOUT)


# What is wrong with the flag


BROKEN = (
    "no_module_xyz:f", "json.no_module_xyz:f", "nowhere/rewards.py:f", "math:sqt", "math:pi",
    "math:sqrt", "builtins:max",
)  # fmt: skip


@pytest.mark.parametrize("reward", BROKEN)
def test_what_cannot_be_found_or_called_is_refused(source, reward):
    with pytest.raises(UserError):
        open_function(reward)


OTHERS = (
    "response, prompt", "response, record", "solution_str, ground_truth, extra_info=None",
    "data_source, solution_str, ground_truth, extra_info=None", "text, answer", "text, target",
    "answer_text, ground_truth", "text, labels", "text, gold_answer", "text, reference", "completion, x",
    "data_source, solution_str, ground_truth=None", "prompt", "prompt, response, more",
    "*, prompt, response", "completions, trainer_state", "prompts, completions, *, log_metric",
)  # fmt: skip
COROUTINES = [f"async def f({takes}): return 0.0" for takes in ("prompt, response", "completions")]


@pytest.mark.parametrize("text", [f"def f({takes}): return 0.0" for takes in OTHERS] + COROUTINES)
def test_another_form_is_refused(source, text):
    with pytest.raises(UserError):
        open_function(f"{source(text)}:f")


# What goes wrong while it runs


@pytest.mark.parametrize(
    "value",
    [
        "None", "'2'", "b'2'", "[1, 2]", "1j", "float('nan')", "float('-inf')", "1e39", "10 ** 400",
        "-2e30",
    ],
)  # fmt: skip
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
