"""Every exercise of the pages: solutions pass, typical mistakes are caught by name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from course.exercises import answer_of, load, names, verdict
from course.exercises.entries import mistakes_of

from data.collate import first_eos_mask
from gpt.llama import RMSNorm, rotated, rotation
from gpt.log_probs import kl_from_logits
from harness.tensors import masked_mean
from reward_model import loss as reward_model_loss
from rl.equations import advantages, best_of_n, kl, losses, preference_losses
from rl.equations.token_rewards import token_level_rewards

each_exercise = pytest.mark.parametrize("name", names())

SAME_NAME = {
    advantages: "group_advantages whiten",
    losses: "cispo clipped_surrogate sequence_mean token_mean value_loss",
    preference_losses: "dpo_loss ipo_loss",
    reward_model_loss: "bradley_terry_loss",
}


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    norm = RMSNorm(len(weight), eps)
    norm.weight.data = weight
    return norm(x)


def rotary(x: torch.Tensor, positions: torch.Tensor, base: float) -> torch.Tensor:
    return rotated(x, rotation(positions[None], x.shape[1], base, x.dtype))[0, 0]


LIBRARY = {
    "answered_returns": advantages.discounted_returns,
    "best_of_n_kl": best_of_n.best_of_n_kl,
    "distillation_loss": lambda student, teacher: kl_from_logits(teacher, student),
    "gae": lambda *arguments: advantages.gae(*arguments)[0],
    "gspo_ratio": losses.mean_ratio,
    "k3": kl.k3,
    "k3_old_samples": kl.k3_importance,
    "kl_divergence": lambda p, q: kl_from_logits(p.clamp(min=1e-30).log(), q.log()),
    "kl_in_reward": token_level_rewards,
    "mean_score": masked_mean,
    "others_mean": lambda r, G: r - advantages.leave_one_out_advantages(r, G)[:, 0],
    "pass_at_k": best_of_n.pass_at_k,
    "rms_norm": rms_norm,
    "rotary": rotary,
    "response_mask": lambda *arguments: first_eos_mask(*arguments)[0],
    "reward_to_go": lambda r, mask: advantages.discounted_returns(r, mask, 1.0),
} | {name: getattr(module, name) for module, words in SAME_NAME.items() for name in words.split()}


@each_exercise
def test_the_solution_has_the_worked_numbers_and_the_librarys(name: str) -> None:
    exercise = load(name)
    assert verdict(name, LIBRARY.get(name, exercise.solution)).word == "right"
    assert exercise.statement and exercise.worked
    for case in exercise.worked:
        (result, *_) = answer_of(exercise, exercise.solution, case)
        torch.testing.assert_close(result, case.wanted.float(), rtol=1e-4, atol=exercise.tolerance)


@each_exercise
def test_a_changed_line_is_caught_and_named(name: str) -> None:
    """`mistakes_of` raises where a line that is to be changed does not stand there once."""
    mistakes = mistakes_of(load(name))
    assert len(mistakes) >= 3
    for mistake in mistakes:
        found = verdict(name, mistake.function)
        assert (found.word, found.mistake) == ("mistake", mistake.says), mistake.change


def reversed_kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.kl_div(p.clamp(min=1e-12).log(), q, reduction="sum")


def divided_by_std(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    groups = rewards.view(-1, group_size)
    return ((groups - groups.mean(1, keepdim=True)) / groups.std(1, keepdim=True)).view(-1, 1)


@pytest.mark.parametrize(
    ("name", "function"),
    [("kl_divergence", reversed_kl), ("batch_normalised", divided_by_std)],
)
def test_a_mistake_is_named_in_another_idiom(name: str, function: Any) -> None:
    """A guard against log 0, or another eps, changes a few numbers and not the mistake."""
    assert verdict(name, function).word == "mistake"


def folded_solutions() -> Iterator[tuple[str, str, str]]:
    """(page, exercise, code) of each solution on the pages that follows its `check`."""
    for page in sorted((Path(__file__).parents[1] / "notebooks").glob("[0-9]*.py")):
        exercise = ""
        parts = re.split(r"^# ```python\n", page.read_text(encoding="utf-8"), flags=re.M)
        for text, following in pairwise(parts):
            exercise = ([exercise] + re.findall(r'^check\("(\w+)"', text, re.M))[-1]
            code = re.sub(r"^# ?", "", following.partition("# ```")[0], flags=re.M)
            if exercise and code.startswith("def "):
                yield page.stem, exercise, code


def test_the_solution_on_a_page_passes_its_check() -> None:
    found = list(folded_solutions())
    assert len(found) > 20
    for page, exercise, code in found:
        space: dict[str, Any] = {"torch": torch, "math": math, "F": torch.nn.functional}
        exec(code, space)
        name = re.findall(r"^def (\w+)", code, re.M)[-1]
        said = verdict(exercise, space[name])
        assert said.word == "right", f"{page}, {exercise}: {said.text}"
