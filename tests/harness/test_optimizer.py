"""The decay groups, the schedule, and one optimizer step by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpt.model import GPT, GPTConfig
from harness.optimizer import adamw, clip_and_step, cosine_schedule


def small_gpt() -> GPT:
    return GPT(GPTConfig(5, context=4, n_layer=1, n_head=1, n_embd=2)).initialize()


def names(model: nn.Module, parameters) -> set[str]:
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    return {known[id(parameter)] for parameter in parameters}


def test_only_matrices_decay():
    model = small_gpt()
    decayed, plain = adamw(model, 1e-3, weight_decay=0.1).param_groups
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
    assert cosine_schedule(step, 110, peak=2.0, warmup=10) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("max_norm", "expected"),
    [(1.0, [2.4, 3.2]), (5.5, [0.0, 0.0])],
    ids=["clipped", "small enough"],
)
def test_the_gradient_is_clipped_before_the_step(max_norm, expected):
    """At (3, 4) the gradient of |p|^2 / 2 has norm 5; SGD with lr 1 moves by what the clip leaves."""
    parameters = [nn.Parameter(torch.tensor([3.0])), nn.Parameter(torch.tensor([4.0]))]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    sum((p**2).sum() / 2 for p in parameters).backward()
    norm = clip_and_step(optimizer, (p for p in parameters), max_norm)
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
