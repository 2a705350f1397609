"""Every exercise of the pages: solutions pass, typical mistakes are caught by name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from course.exercises import all_cases, answer_of, load, names, verdict
from course.exercises.entries import mistakes_of

from data.collate import first_eos_mask
from gpt.log_probs import kl_from_logits
from harness.tensors import masked_mean
from reward_model import loss as reward_model_loss
from rl.equations import advantages, best_of_n, kl, losses, preference_losses
from rl.equations.token_rewards import token_level_rewards

each_exercise = pytest.mark.parametrize("name", names())

SAME_NAME = {
    advantages: "group_advantages whiten",
    losses: "cispo clipped_surrogate sequence_mean token_mean",
    preference_losses: "dpo_loss ipo_loss",
    reward_model_loss: "bradley_terry_loss",
}


LIBRARY = {
    "attention": partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True),
    "answered_returns": advantages.discounted_returns,
    "bounded_pull": lambda new, old, A, clip, most: losses.dual_clip(
        losses.clipped_surrogate(new, old, A, clip, clip), A, most
    ),
    "distillation_loss": lambda student, teacher: kl_from_logits(teacher, student),
    "gae": lambda *arguments: advantages.gae(*arguments)[0],
    "k3": kl.k3,
    "k3_old_samples": kl.k3_importance,
    "kl_divergence": lambda p, q: kl_from_logits(p.clamp(min=1e-30).log(), q.log()),
    "kl_in_reward": token_level_rewards,
    "mean_score": masked_mean,
    "others_mean": lambda r, G: r - advantages.leave_one_out_advantages(r, G)[:, 0],
    "pass_at_k": best_of_n.pass_at_k,
    "response_mask": lambda *arguments: first_eos_mask(*arguments)[0],
} | {name: getattr(module, name) for module, words in SAME_NAME.items() for name in words.split()}


@each_exercise
def test_the_solution_has_the_worked_numbers_and_the_librarys(name: str) -> None:
    exercise = load(name)
    assert verdict(name, LIBRARY.get(name, exercise.solution)).word == "right"
    assert exercise.statement and exercise.worked
    for case in exercise.worked:
        (result, *_) = answer_of(exercise, exercise.solution, case)
        torch.testing.assert_close(result, case.wanted.double(), rtol=1e-4, atol=exercise.tolerance)


@each_exercise
def test_a_changed_line_is_caught_and_named(name: str) -> None:
    """`mistakes_of` raises where what is to be changed does not stand there."""
    mistakes = mistakes_of(load(name))
    assert len(mistakes) >= 3
    for mistake in mistakes:
        found = verdict(name, mistake.function)
        assert (found.word, found.mistake) == ("mistake", mistake.says), mistake.name


def through(change: Any, function: Any, place: int) -> Any:
    """The function with one argument changed before it is used."""
    return lambda *given: function(*given[:place], change(given[place]), *given[place + 1 :])


@each_exercise
def test_a_gradient_turned_round_or_missing_is_refused(name: str) -> None:
    """A loss whose numbers are right and whose step does the opposite must not pass."""
    exercise = load(name)
    arguments = exercise.worked[0].arguments
    for argument in exercise.trained(arguments):
        place = list(arguments).index(argument)
        for change in (lambda x: 2 * x.detach() - x, lambda x: x.detach()):
            found = verdict(name, through(change, exercise.solution, place))
            assert found.word.startswith("gradient") or found.mistake, (argument, found.text)


UNUSED = {"part_of_the_loss": ("parts", "rank")}  # to divide by them is a mistake


@each_exercise
def test_an_argument_that_is_not_looked_at_is_refused(name: str) -> None:
    """A function that takes a mask to be True, a tensor to be 0, a setting to be that of one case."""
    exercise = load(name)
    first, *_, last = [case.arguments for case in all_cases(exercise)]
    for place, argument in enumerate(first):
        changes = [lambda _, one=case[argument]: one for case in (first, last)]
        if isinstance(first[argument], torch.Tensor):
            changes = [lambda x: x == x if x.dtype == torch.bool else 0 * x.nan_to_num()]
        for change in changes if argument not in UNUSED.get(name, ()) else ():
            found = verdict(name, through(change, exercise.solution, place))
            assert found.word != "right", argument


def looped(logits: Any, tokens: Any, prompt_lengths: Any, mask: Any) -> torch.Tensor:
    scores, out = logits.log_softmax(-1), torch.zeros(mask.shape)
    for n, t in mask.nonzero().tolist():
        stands = prompt_lengths[n] + t
        out[n, t] = scores[n, stands - 1, tokens[n, stands]].item()
    return out


def of_two_verdicts(table: torch.Tensor) -> torch.Tensor:
    (a, b), (c, d) = table[:2, :2]
    n = a + b + c + d
    chance = ((a + b) * (a + c) + (c + d) * (b + d)) / n**2
    return ((a + d) / n - chance) / (1 - chance)


def without_rows_cut_off(tokens: torch.Tensor, eos_id: int) -> torch.Tensor:
    eos = tokens == eos_id
    return (eos.cumsum(1) - eos.long() == 0) & eos.any(1, keepdim=True)


def by_absolute_deviation(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    centred = (x := rewards.view(-1, group_size)) - x.mean(1, keepdim=True)
    return (centred / (centred.abs().mean(1, keepdim=True) + 1e-4)).view(-1, 1)


def narrow(log_probs: Any, old: Any, advantages: Any, clip_low: float, clip_high: float) -> Any:
    ratio = (log_probs - old).exp()
    clipped = ratio.clamp(1 - clip_high, 1 + clip_low)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def clipped_for_all(new: Any, old: Any, advantages: Any, clip: float, most: float) -> Any:
    """Bad tokens are held by the ordinary clip from above as well."""
    return -(new - old).exp().clamp(1 - clip, 1 + clip) * advantages


def weighed_only(new: Any, old: Any, advantages: Any, clip: float, most: float) -> Any:
    """The right numbers, whose ratio is no more than a weight of the loss."""
    numbers = load("bounded_pull").solution(new, old, advantages, clip, most)
    return numbers.detach() * (1 + 0.5 * (new - new.detach()))


def ipo_of_the_chosen(chosen: Any, rejected: Any, ref: Any, ref_rejected: Any, beta: float) -> Any:
    gap = (chosen - ref) - (2 * rejected.detach() - rejected - ref_rejected)
    return (gap - 1 / (2 * beta)) ** 2


@pytest.mark.parametrize(
    ("name", "function", "told"),
    [
        ("token_log_probs", looped, "gradient nothing"),
        ("ipo_loss", ipo_of_the_chosen, "gradient sign"),
        ("kappa", of_two_verdicts, ""),
        ("sequence_mean", lambda loss, mask: ((loss * mask).sum(1) / mask.sum(1)).mean(), "mistake"),
        ("response_mask", lambda tokens, _: (tokens == 0).cumsum(1) - (tokens == 0).long() == 0, "eos_id"),
        ("gae", lambda r, V, mask, gamma, lam: load("gae").solution(r, V, mask, lam, gamma), "lam"),
        ("clipped_surrogate", narrow, "clip_high"),
        ("k3", lambda p, ref: load("k3").solution(p, ref).clamp(max=1.0), "1"),
        ("bounded_pull", clipped_for_all, ""),
        ("bounded_pull", weighed_only, "gradient"),
        # of these some worked case is what a typical mistake gives, and they are not that mistake
        ("response_mask", without_rows_cut_off, "place"),
        ("group_advantages", by_absolute_deviation, "place"),
        ("mean_score", lambda x, mask: x.masked_fill(~mask, -torch.inf).amax(1), "place"),
        ("prefix_scores", lambda x, mask: x.cummax(1).values * mask, "place"),
    ],
)  # fmt: skip
def test_a_wrong_answer_of_no_list_is_refused(name: str, function: Any, told: str) -> None:
    """What is told: the word, or an argument that the sentence names."""
    found = verdict(name, function)
    assert found.word != "right"
    assert told in found.word or (found.mistake and told in found.mistake), found.text


def reversed_kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.kl_div(p.clamp(min=1e-12).log(), q, reduction="sum")


@pytest.mark.parametrize(
    ("name", "function"),
    [("kl_divergence", reversed_kl)],
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


def functions_to_change() -> Iterator[tuple[str, str, str]]:
    """(exercise, code as it stands, solution) of each "change one line": a whole function, and no stub."""
    solutions = {name: code for _, name, code in folded_solutions()}
    for page in sorted((Path(__file__).parents[1] / "notebooks").glob("[0-9]*.py")):
        for cell in re.split(r"^# %%.*\n", page.read_text(encoding="utf-8"), flags=re.M):
            asked = re.search(r'(def my_\w+\(.*?)\n\n\ncheck\("(\w+)"', cell, re.DOTALL)
            if asked and not re.search(r"\.\.\.|return None", asked[1]):
                yield asked[2], asked[1], solutions[asked[2]]


def test_a_function_to_be_changed_is_one_line_away_from_right() -> None:
    found = list(functions_to_change())
    assert found
    for name, start, solution in found:
        space: dict[str, Any] = {"torch": torch}
        exec(start, space)
        said = verdict(name, space[f"my_{name}"])
        assert said.word == "mistake", f"{name}: {said.text}"
        wrong, right = start.strip().splitlines(), solution.strip().splitlines()
        assert len(wrong) == len(right)
        assert sum(a != b for a, b in zip(wrong, right, strict=True)) == 1
