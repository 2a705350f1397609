"""docs/examples: a judge that is asked both ways round, and a rubric, as files for --reward."""

from __future__ import annotations

import importlib
import math
import sys

import pytest
import torch
from toys import chat_tokenizer, fixed_gpt, random_gpt, seeded

from data.records import PromptRecord
from data.templates import Turn
from data.worlds import reviews
from gpt.checkpoint import save_gpt
from gpt.generate import SamplingParams
from harness.paths import MODEL_FILE, REPOSITORY
from rl.batches.rollout import sample_rollout
from rl.rewards.function import open_function

EXAMPLES = REPOSITORY / "docs/examples"
CONTEXT = 1024
ASKED = PromptRecord("<user>Name a colour.<end>", turns=(Turn("user", "Name a colour."),))


@pytest.fixture
def modules(monkeypatch):
    """Both files, read anew: what they have opened is kept in them."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])
    for name in ("judge_reward", "rubric_reward"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    names = ("judge_reward", "rubric_reward")
    yield tuple(importlib.import_module(name) for name in names)
    for name in names:
        sys.modules.pop(name, None)


def judge_in(folder, monkeypatch, model=None):
    """A tiny chat model in a folder, named as the judge."""
    tokenizer = chat_tokenizer("smollm2")
    model = model or random_gpt(tokenizer.n_vocab, CONTEXT, seed=3)
    save_gpt(folder / MODEL_FILE, model, tokenizer)
    monkeypatch.setenv("JUDGE", str(folder))
    monkeypatch.delenv("OPPONENT", raising=False)
    monkeypatch.delenv("RUBRIC", raising=False)
    return model, tokenizer


def says(**shares):
    """A model that says these words' first bytes with these probabilities, whatever it reads."""
    tokenizer = chat_tokenizer("smollm2")
    probs = [1e-6] * tokenizer.n_vocab
    for word, share in shares.items():
        probs[tokenizer.encode(word)[0]] = share
    return fixed_gpt(probs, CONTEXT, torch.float32)


@torch.no_grad()
def test_a_judge_is_asked_in_both_orders_in_its_own_form(modules, tmp_path, monkeypatch):
    """Log-odds of A where an answer stands first, of B where it stands second: by one forward each."""
    judge_file, _ = modules
    model, tokenizer = judge_in(tmp_path, monkeypatch)

    def odds(one, two):
        text = (
            f"Name a colour.\n\nAnswer A: {one}\n\nAnswer B: {two}\n\nWhich answer keeps this better: "
            "It is correct, and it says only what was asked for. Say A or B, and nothing else."
        )
        written = tokenizer.chat.prompt([Turn("user", text)])
        log_probs = model(torch.tensor([tokenizer.encode_prompt(written)]))[0, -1].log_softmax(-1)
        return float(log_probs[tokenizer.encode("A")] - log_probs[tokenizer.encode("B")])

    asked = [("Name a colour.", "Red.", "I would say blue."), ("Name a colour.", "No.", "Green")]
    found = judge_file.judge().compare(asked)
    wanted = [[odds(one, two), -odds(two, one)] for _, one, two in asked]
    assert found.tolist() == [pytest.approx(row, abs=1e-4) for row in wanted]
    assert abs(wanted[0][0] - wanted[0][1]) > 1e-3  # it has a liking for a place


def test_a_judge_that_always_says_a_is_worth_nothing(modules, tmp_path, monkeypatch):
    judge_file, _ = modules
    judge_in(tmp_path, monkeypatch, says(A=0.9, B=0.09))
    found = judge_file.judge().compare([("Name a colour.", "Red.", "Blue.")])
    assert found.tolist() == [pytest.approx([math.log(10), -math.log(10)], abs=1e-4)]
    assert judge_file.better(ASKED.prompt, "Red.", ASKED) == pytest.approx(0, abs=1e-5)


def test_an_answer_is_compared_with_one_that_is_the_same_for_all(modules, tmp_path, monkeypatch):
    """The reward of a rollout: antisymmetric, so the other answer itself is worth 0."""
    judge_file, _ = modules
    model, tokenizer = judge_in(tmp_path, monkeypatch)
    rollout = sample_rollout(
        model, tokenizer, [ASKED, ASKED], SamplingParams(max_new_tokens=6), 2, seeded(1)
    )
    rewards = open_function(f"{EXAMPLES}/judge_reward.py:better")(rollout)
    other = judge_file.other_answer("Name a colour.")
    both = [judge_file.judge().compare([("Name a colour.", r, other)]) for r in rollout.responses]
    assert rewards.tolist() == pytest.approx([float(each.mean()) for each in both], abs=1e-4)
    assert len({round(value, 4) for value in rewards.tolist()}) > 2
    assert judge_file.better(ASKED.prompt, other, ASKED) == pytest.approx(0, abs=1e-5)


def test_another_model_may_write_the_other_answer(modules, tmp_path, monkeypatch):
    judge_file, _ = modules
    judge_in(tmp_path / "judge", monkeypatch)
    save_gpt(tmp_path / "other" / MODEL_FILE, says(z=0.999), chat_tokenizer("smollm2"))
    monkeypatch.setenv("OPPONENT", str(tmp_path / "other"))
    assert judge_file.other_answer("Name a colour.").count("z") > 40


RECORD = reviews.read_prompt("Review the red kettle for Anna.")


@pytest.mark.parametrize(
    ("response", "ended", "kept"),
    [
        ("Hi Anna! The kettle is great.", True, 9),
        ("Hi Anna! The kettle is great.", False, 8),
        ("Hi Anna! The kettle is awful.", True, 6),
        ("The lamp is lovely, Anna", True, 5),
        ("Who cares? The kettle is bad.", True, 4),
        ("", True, 0),
    ],
)
def test_a_rubric_is_the_share_of_the_weights_that_is_kept(modules, response, ended, kept):
    """3 for the item, 3 for praise, 2 for the name, 1 for the end: of 9."""
    _, rubric_file = modules
    found = rubric_file.review(RECORD.prompt, response, RECORD, ended)
    assert found == pytest.approx(kept / 9)


def test_an_item_may_be_a_question_to_the_judge(modules, tmp_path, monkeypatch):
    """Yes with .6 and No with .2: .75 of the weights 3 and 2, and a rule of weight 1."""
    _, rubric_file = modules
    judge_in(tmp_path, monkeypatch, says(Yes=0.6, No=0.2))
    for response, brief in (("Red.", 1), ("very " * 41, 0)):
        found = rubric_file.helpful(ASKED.prompt, response, ASKED, True)
        assert found == pytest.approx((5 * 0.75 + brief) / 6, abs=1e-4)


@torch.no_grad()
def test_a_judge_of_one_answer_is_asked_whether_it_is_good(modules, tmp_path, monkeypatch):
    judge_file, _ = modules
    model, tokenizer = judge_in(tmp_path, monkeypatch)
    text = (
        "Name a colour.\n\nAnswer: Red.\n\nDoes the answer keep this: It is correct, and it says only "
        "what was asked for. Say Yes or No, and nothing else."
    )
    written = tokenizer.encode_prompt(tokenizer.chat.prompt([Turn("user", text)]))
    logits = model(torch.tensor([written]))[0, -1]
    wanted = float(logits[tokenizer.encode("Y")] - logits[tokenizer.encode("N")])
    assert judge_file.good(ASKED.prompt, "Red.", ASKED) == pytest.approx(wanted, abs=1e-4)
