"""The decay groups, the schedule, and one optimizer step by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpt.model import GPT, GPTConfig
from harness.console import say_once
from harness.optimizer import adamw, clip_and_step, cosine_schedule, steps_of_passes


def small_gpt() -> GPT:
    return GPT(GPTConfig(5, context=4, n_layer=1, n_head=1, n_embd=2)).initialize()


def names(model: nn.Module, parameters) -> set[str]:
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    return {known[id(parameter)] for parameter in parameters}


def test_only_matrices_decay():
    model = small_gpt()
    decayed, plain = adamw(model, 1e-3, weight_decay=0.1).param_groups
    assert decayed["betas"] == plain["betas"] == (0.9, 0.95)
    assert decayed["weight_decay"] == 0.1 and plain["weight_decay"] == 0.0
    matrices = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}
    expected = {"wte.weight", "wpe.weight"} | {f"h.0.{name}.weight" for name in matrices}
    assert names(model, decayed["params"]) == expected
    assert names(model, plain["params"]) == set(model.state_dict()) - expected


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.2),  # never 0: the first step counts too
        (4, 1.0),
        (9, 2.0),
        (10, 2.0),
        (35, 2 * (0.1 + 0.9 * 0.853553)),  # a quarter: (1 + cos 45 degrees) / 2
        (60, 2 * 0.55),
        (110, 0.2),
        (500, 0.2),
    ],
)
def test_schedule(step, expected):
    assert cosine_schedule(step, 110, peak=2.0, warmup_steps=10) == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize(
    ("total", "expected"), [(1, [2.0]), (3, [2.0, 2.0, 1.1]), (8, [1.0, 2.0, 2.0])]
)
def test_a_warm_up_is_at_most_a_fifth_of_the_steps(total, expected, capsys):
    """20 steps of warm-up: the rate that is asked for is reached, and the cosine begins."""
    say_once.cache_clear()
    found = [cosine_schedule(step, total, peak=2.0, warmup_steps=20) for step in range(total)]
    assert found[: len(expected)] == pytest.approx(expected)
    assert len(capsys.readouterr().out.splitlines()) == 1
    cosine_schedule(0, 100, peak=2.0, warmup_steps=20)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("passes", "rows", "batch_size", "steps"),
    [(1, 19, 8, 3), (3, 7, 8, 3), (2, 16, 8, 4), (1, 3, 32, 1), (1, 0, 8, 1), (2, 17, 8, 5)],
)
def test_every_row_is_visited_in_every_pass(passes, rows, batch_size, steps):
    assert steps_of_passes(passes, rows, batch_size) == steps


@pytest.mark.parametrize(
    ("max_grad_norm", "expected"),
    [(1.0, [2.4, 3.2]), (5.5, [0.0, 0.0])],
    ids=["clipped", "small enough"],
)
def test_the_gradient_is_clipped_before_the_step(max_grad_norm, expected):
    """At (3, 4) the gradient of |p|^2 / 2 has norm 5; SGD with lr 1 moves by what the clip leaves."""
    parameters = [nn.Parameter(torch.tensor([3.0])), nn.Parameter(torch.tensor([4.0]))]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    sum((p**2).sum() / 2 for p in parameters).backward()
    norm = clip_and_step(optimizer, (p for p in parameters), max_grad_norm)
    assert norm.item() == pytest.approx(5.0, abs=1e-6)
    assert [p.item() for p in parameters] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_refused_before_the_step(value):
    parameter = nn.Parameter(torch.tensor([3.0]))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.tensor([value])
    with pytest.raises(ValueError, match=f"norm is {value}.*lower the"):
        clip_and_step(optimizer, [parameter], 1.0)
    assert parameter.item() == 3.0
