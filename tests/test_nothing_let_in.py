"""What comes from outside is data and never code, stays in its folder, and comes when it was asked for."""

from __future__ import annotations

import ast
import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from data.readers import DataError, read_preferences, read_prompts, read_text
from data.records import PromptRecord
from gpt.checkpoint import load_gpt, save_gpt
from gpt.model import GPT, GPTConfig
from gpt.pretrained import load_gpt2, shard_names
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from harness.files import keep_until, read_jsonl
from harness.safetensors_file import load_weights, save_weights
from harness.training_state import TrainingState, read_state
from reward_model.scalar_head import RewardModel, load_reward_model, save_reward_model
from rl.rewards.sources import RewardModelReward
from rl.training.open_reward import answer_rule, require_reach

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = load_tokenizer("glassbox")


def small_gpt() -> GPT:
    shape = GPTConfig(TOKENIZER.n_vocab, context=8, n_layer=2, n_head=1, n_embd=4)
    return GPT(shape).initialize(torch.Generator().manual_seed(0))


def refusal(call, *arguments) -> str:
    """The one sentence with which a call is refused."""
    with pytest.raises((UserError, DataError)) as error:
        call(*arguments)
    text = str(error.value)
    assert "\n" not in text and len(text) < 600, text
    return text


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
        if name == "state.pt":
            assert "cannot be read" in refusal(read_state, tmp_path)
        else:
            assert "not a readable safetensors file" in refusal(load_gpt, tmp_path)
    assert not sprung.exists()


def test_no_code_of_ours_unpacks_an_archive_or_unpickles_a_file():
    """So no path in an archive can climb out of a folder. Ranks pickle to each other, in memory."""
    for path in [
        path
        for room in ("data", "gpt", "reward_model", "rl")
        for path in (ROOT / room).rglob("*.py")
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node, "attr", None) or getattr(node, "id", None)
            assert name not in ("extractall", "extract", "unpack_archive", "tarfile"), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "load" and ast.unparse(node.func.value) == "torch":
                    assert "weights_only=True" in ast.unparse(node), path
                if ast.unparse(node.func) in ("pickle.load", "pickle.loads"):
                    assert path.name == "board.py"


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", ""])
def test_an_index_names_no_file_outside_its_folder(tmp_path, name):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"wte.weight": name}}))
    assert "does not name the files of a model" in refusal(shard_names, index)


# The network


# Files that are none, and never end


@pytest.fixture(params=["fifo", "zero"])
def endless(request, tmp_path) -> Path:
    if not hasattr(os, "mkfifo") or not os.path.exists("/dev/zero"):
        pytest.skip("this system has neither")
    path = tmp_path / "endless"
    if request.param == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("read", [read_prompts, read_preferences, read_text])
def test_data_that_may_never_end_is_refused(endless, read):
    assert refusal(read, endless).startswith(f"{endless}: no regular file")


def test_weights_and_states_that_may_never_end_are_refused(endless, tmp_path):
    for name in ("model.safetensors", "state.pt", "config.json", "metrics.jsonl"):
        endless.rename(tmp_path / name)
        endless = tmp_path / name
        if name == "model.safetensors":
            assert "no regular file" in refusal(load_weights, endless, "gpt")
            assert "holds no model.safetensors" in refusal(load_gpt2, tmp_path)
        elif name == "state.pt":
            assert "cannot be read" in refusal(read_state, tmp_path)
        elif name == "metrics.jsonl":
            assert "no regular file" in refusal(read_jsonl, endless)


# Checkpoints whose header asks for something else than the tensors beside it


@pytest.mark.parametrize("about", [None, "", "[]", "{", "7", "{}", '{"gpt": 3}', '{"gpt": {}}'])
def test_a_header_that_says_nothing(tmp_path, about):
    path = tmp_path / "model.safetensors"
    metadata = {"kind": "gpt"} | ({} if about is None else {"about": about})
    save_file(dict(small_gpt().state_dict()), path, metadata)
    assert "train it again" in refusal(load_gpt, path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_layer", 100_000), ("n_layer", 1), ("n_embd", 10**9), ("context", -8), ("vocab_size", 1.5),
     ("n_head", 0), ("n_head", 3), ("n_head", "x" * 1000), ("dropout", None), ("n_layer", True)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["gpt", "reward_model"])
def test_a_header_of_another_shape_is_refused_before_a_model_is_built(tmp_path, name, value, kind):
    """100,000 layers would take minutes and all memory."""
    model = small_gpt()
    load = load_gpt
    save_gpt(tmp_path / "model.safetensors", model, TOKENIZER)
    if kind == "reward_model":
        load = load_reward_model
        save_reward_model(tmp_path / "model.safetensors", RewardModel.from_policy(model), TOKENIZER)
    load(tmp_path)
    tensors, about = load_weights(tmp_path, kind)
    about["gpt"][name] = value
    save_weights(tmp_path / "model.safetensors", tensors, kind, about)
    assert name in refusal(load, tmp_path)


def test_other_headers_that_fit_nothing(tmp_path):
    model = RewardModel.from_policy(small_gpt())
    path = tmp_path / "model.safetensors"
    for key, value in (("pooling", "max"), ("tokenizer", "bert"), ("tokenizer", None)):
        save_reward_model(path, model, TOKENIZER)
        tensors, about = load_weights(path, "reward_model")
        save_weights(path, tensors, "reward_model", about | {key: value})
        assert "train it again" in refusal(load_reward_model, tmp_path)


# States and rows of other shapes


@pytest.mark.parametrize(
    "state", [[], {}, 7, torch.ones(3), {"step": -5}, {"step": 1.5}, {"step": True}, {"step": None}]
)
def test_a_state_that_counts_no_steps(tmp_path, state):
    torch.save(state, tmp_path / "state.pt")
    assert "is no state of a run, it counts no steps" in refusal(read_state, tmp_path)


def test_a_state_with_a_few_zeroed_bytes_is_damaged(tmp_path):
    state = TrainingState({"model": small_gpt()}, {})
    state.save(tmp_path)
    path = tmp_path / "state.pt"
    content = bytearray(path.read_bytes())
    weight = small_gpt().wte.weight.detach().numpy().tobytes()
    middle = content.index(weight) + len(weight) // 2
    content[middle : middle + 64] = bytes(64)
    path.write_bytes(content)
    assert "state.pt cannot be read" in refusal(read_state, tmp_path)


@pytest.mark.parametrize(
    "row", ["[]", "7", '"text"', "null", "{}", '{"step": "1"}', '{"step": [1]}']
)
def test_rows_of_metrics_of_another_shape(tmp_path, row):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{row}\n')
    assert "metrics.jsonl:2 is damaged" in refusal(keep_until, path, 9)


def test_a_model_has_the_mode_that_other_files_have(tmp_path):
    (tmp_path / "plain").touch()
    save_gpt(tmp_path / "model.safetensors", small_gpt(), TOKENIZER)
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


# Data


def test_a_choice_that_is_no_whole_number(tmp_path):
    post = {"subreddit": "a", "title": "b", "post": "c"}
    row = {"info": post, "summaries": [{"text": "one"}, {"text": "two"}], "choice": 0.0}
    (tmp_path / "tldr.jsonl").write_text(json.dumps(row))
    assert "tldr.jsonl:1: 'choice' is 0.0, expected 0 or 1" in refusal(
        read_preferences, tmp_path / "tldr.jsonl"
    )


def test_a_row_of_many_keys_is_not_printed_whole(tmp_path):
    row = {f"key{n}": n for n in range(5000)}
    (tmp_path / "wide.jsonl").write_text(json.dumps(row))
    text = refusal(read_prompts, tmp_path / "wide.jsonl")
    assert "key0, key1" in text and "and 4,990 more" in text and "key10," not in text


def test_more_spaces_than_the_encoder_has_a_stack_for():
    assert len(TOKENIZER.encode("a" + " " * 200_000)) > 0
    with pytest.raises(ValueError, match="250,000 spaces .* behind 'dear'"):
        TOKENIZER.encode("dear" + " " * 1_000_000 + "end")


def test_a_reward_model_that_cannot_read_what_will_be_written():
    """Refused before an earlier run is moved aside, not at the first reward."""
    shape = GPTConfig(TOKENIZER.n_vocab, context=64, n_layer=1, n_head=1, n_embd=4)
    policy, prompts = GPT(shape), {"train": [PromptRecord("a b", None)], "test": []}
    reward = RewardModelReward(RewardModel.from_policy(small_gpt()))  # reads 8
    ask = (reward, policy, TOKENIZER, prompts)
    longest = len(TOKENIZER.encode("a b"))
    require_reach(*ask, 8 - longest)
    assert refusal(require_reach, *ask, 9 - longest).startswith(
        "a reward model reads 8 tokens, a prom"
    )
    require_reach(None, *ask[1:], 60)


def test_answers_that_are_empty_would_never_be_earned():
    prompts = {"train": [PromptRecord("a", "1"), PromptRecord("b", " ")], "test": []}
    assert refusal(answer_rule, "sums.jsonl", prompts).startswith(
        "sums.jsonl: 1 of 2 answers are empty, which no response can match"
    )
