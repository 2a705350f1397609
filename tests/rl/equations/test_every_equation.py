"""What holds for every equation, whatever it computes: one table, and one test for each promise."""

from __future__ import annotations

import inspect
import math
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness import tensors
from reward_model import loss
from rl.equations import (
    advantages,
    best_of_n,
    ensembles,
    kl,
    losses,
    preference_losses,
    token_rewards,
)

MODULES = (
    advantages, best_of_n, ensembles, kl, losses, preference_losses, token_rewards, loss,
)  # fmt: skip
POLICY, PAIR = ("log_probs",), ("policy_chosen", "policy_rejected")
TRAINED = {  # equation: the arguments that have a gradient
    "gae": (), "weighted_sum": (), "gdpo_advantages": (),
    "discounted_returns": (), "whiten": (), "group_advantages": (),
    "leave_one_out_advantages": (), "maxrl_advantages": (), "greedy_baseline_advantages": (),
    "process_advantages": (), "best_worst_pairs": (),
    "ordered_pairs": (), "best_of_n_mean": (), "ensemble_mean": (), "worst_case": (),
    "k1": POLICY, "k2": POLICY, "k3": POLICY,
    "rho_minus_log": POLICY, "absolute": POLICY, "k1_importance": POLICY,
    "k3_importance": POLICY, "likelihood_ratio": POLICY, "sequence_ratio": POLICY,
    "mean_ratio": POLICY, "policy_gradient": POLICY, "clipped_surrogate": POLICY,
    "clip_acted": (), "grpo_objective": ("log_probs", "kl"), "dual_clip": ("loss",),
    "cispo": POLICY, "sapo": POLICY, "sequence_clipped_surrogate": POLICY, "gspo": POLICY,
    "gmpo": POLICY, "token_covariances": (), "kl_cov_tokens": (), "clip_cov_tokens": (),
    "value_loss": ("values",),
    "length_normalized_returns": (), "mixed_sampling_weights": (),
    "token_mean": ("loss",), "sequence_mean": ("loss",),
    "sequence_sum": ("loss",), "constant_length_mean": ("loss",), "preference_gap": PAIR,
    "dpo_loss": PAIR, "ipo_loss": PAIR, "hinge_loss": PAIR, "simpo_loss": PAIR,
    "kto_loss": ("policy",), "orpo_loss": PAIR,
    "at_last_token": (), "token_level_rewards": (), "score_missing_eos": (),
    "overlong_penalty": (), "teacher_rewards": (), "own_text_penalty": (),
    "bradley_terry_loss": ("chosen", "rejected"),
}  # fmt: skip
NO_TENSOR = {
    *("mean_within", "at_least_one"),
    *("best_of_n_kl", "best_of_n_weights", "pass_at_k", "loss_estimator"),
}
FUNCTIONS = {
    name: function
    for module in MODULES
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and not name.startswith("_")
}
MASK = torch.arange(3) < torch.tensor([3, 2, 1, 3])[:, None]
SHAPES = {  # of an argument, whatever equation it belongs to: N = 4, T = 3
    (4, 3): "log_probs old_log_probs ref_log_probs teacher_log_probs token_rewards "
    "values old_values returns loss x covariances draws ratio kl",
    (4, 1): "advantages",
    (4, 2): "step_rewards reward_columns",
    (4,): "rewards greedy_rewards scores lengths weights labels",
    (5,): "policy ref policy_chosen policy_rejected ref_chosen ref_rejected chosen rejected margin",
    (2, 4): "proxy values_of_answers",
    (): "reference_point",
}
GIVEN = {
    "mask": MASK, "response_mask": MASK, "has_eos": torch.ones(4, dtype=torch.bool),
    "step_mask": torch.ones(4, 2, dtype=torch.bool), "step_ends": torch.zeros(4, 2, dtype=torch.long),
    "desirable": torch.arange(5) % 2 == 0,
    "clip_low": 0.2, "clip_high": 0.28, "value_clip": 0.2, "bound": 3.0, "gamma": 0.97,
    "gae_lambda": 0.9, "share": 0.5, "alpha": 0.2, "length": 9,
    "group_size": 2, "reward_weights": (1.0, 0.5),
    "kl_coef": 0.1, "rule": "subtract", "penalty": 1.0, "max_length": 20,
    "buffer": 4, "reverse_kl": True, "coef": 0.3, "beta": 0.3, "target_margin": 0.5, "n": 2,
    "low": -0.5, "high": 0.5, "denominator": 6.0, "clip_range": 0.2, "responses": 6,
}  # fmt: skip


def numbers(*shape):
    return (
        torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)
        / 3
    )


OF_ONE = {  # where a name means something else, or not any number will do
    "best_of_n_mean": dict(values=numbers(2, 4)),
    "ensemble_mean": dict(scores=numbers(2, 4)),
    "worst_case": dict(scores=numbers(2, 4)),
    "bradley_terry_loss": dict(weights=numbers(5)),
    "best_worst_pairs": dict(margin=0.0),
    "ordered_pairs": dict(margin=0.0),
    "maxrl_advantages": dict(rewards=torch.tensor([0.0, 1, 1, 1], dtype=torch.float64)),
}


def inputs(name, **given):
    """Arguments of one equation: a random tensor wherever one may stand."""
    generator = torch.Generator().manual_seed(0)
    shapes = {argument: shape for shape, names in SHAPES.items() for argument in names.split()}
    arguments = {
        argument: torch.randn(shapes[argument], generator=generator, dtype=torch.float64) / 3
        if argument in shapes
        else GIVEN[argument]
        for argument in inspect.signature(FUNCTIONS[name]).parameters
        if argument in shapes or argument in GIVEN
    }
    return arguments | OF_ONE.get(name, {}) | given


def parts(result):
    return result if isinstance(result, tuple) else (result,)


def floats(arguments):
    return {
        name: value
        for name, value in arguments.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }


def gradients(function, arguments):
    """The parts of the result, and the gradient of their sum over the mask at each argument."""
    leaves = {name: value.clone().requires_grad_() for name, value in floats(arguments).items()}
    results = parts(function(**arguments | leaves))
    if not results[0].requires_grad:
        return results, {}
    total = sum(
        torch.where(MASK, part, 0.0).sum() if part.shape == MASK.shape else part.sum()
        for part in results
    )
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return results, {
        name: gradient for name, gradient in zip(leaves, found, strict=True) if gradient is not None
    }


def test_the_table_is_complete():
    assert set(FUNCTIONS) == TRAINED.keys() | NO_TENSOR


@pytest.mark.parametrize("name", TRAINED)
def test_only_what_is_trained_has_a_gradient(name):
    """Old log-probs, advantages, returns and references are constants, even if they need grad."""
    results, found = gradients(FUNCTIONS[name], inputs(name))
    assert set(found) == set(TRAINED[name])
    assert all(part.requires_grad == bool(found) for part in results)


STOPPED = {"cispo"}  # constants in it: see test_worked_numbers.py, test_cispo


@pytest.mark.parametrize(
    "name", [name for name in TRAINED if TRAINED[name] and name not in STOPPED]
)
def test_gradients_are_finite_differences(name):
    """In float64, with every optional argument given and with none."""
    arguments = inputs(name)
    leaves = [arguments[key].clone().requires_grad_() for key in TRAINED[name]]
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    optional = [parameter.name for parameter in parameters if parameter.default is None]
    for absent in ([], optional) if optional else ([],):
        given = arguments | dict.fromkeys(absent)
        assert torch.autograd.gradcheck(
            lambda *x, given=given: FUNCTIONS[name](
                **given | dict(zip(TRAINED[name], x, strict=True))
            ),
            leaves,
            atol=1e-7,
            rtol=1e-5,
        )


@pytest.mark.parametrize("name", TRAINED)
def test_the_copied_source_is_right_by_itself(name):
    """With `axes`, the masked sums and what else it calls, as a reader would paste it."""
    module = inspect.getmodule(FUNCTIONS[name])
    called = {key: value for key, value in vars(module).items() if not key.startswith("__")}
    around = dict(torch=torch, F=F, Tensor=Tensor, Literal=Literal, math=math)
    namespace = {**called, **vars(tensors), **around}
    del namespace[name]
    exec(inspect.getsource(FUNCTIONS[name]), namespace)
    assert namespace[name] is not FUNCTIONS[name]
    (results, found), (copied, found_too) = (
        gradients(function, inputs(name)) for function in (FUNCTIONS[name], namespace[name])
    )
    assert all(torch.equal(part, other) for part, other in zip(results, copied, strict=True))
    assert all(torch.equal(found[key], found_too[key]) for key in found | found_too)


OF_THE_RESPONSE = ("sequence_clipped_surrogate", "gspo", "gmpo")  # one advantage for all its tokens


# --- shapes and precision -----------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINED)
def test_what_would_broadcast_by_mistake_is_refused(name):
    """An (N,) beside (N, T) would run along time, an (N, 1) beside (N,) make N x N of it."""
    arguments = inputs(name)
    given = {key: x for key, x in arguments.items() if isinstance(x, Tensor) and x.ndim}
    for key, x in given.items():
        wrong = [x[None], x[..., None], x[0]]
        wrong += [x[:-1], torch.cat([x, x])] if len(given) > 1 else []
        wrong += [x.double()] if x.dtype == torch.bool else []
        for bad in wrong:
            with pytest.raises(ValueError):
                FUNCTIONS[name](**arguments | {key: bad})


@pytest.mark.parametrize(
    ("name", "argument", "shape"),
    [
        *((name, "advantages", (4, 3)) for name in OF_THE_RESPONSE),
        ("value_loss", "returns", (4, 1)),
        ("clipped_surrogate", "old_log_probs", (4, 1)),
        ("process_advantages", "response_mask", (3, 3)),
    ],
)
def test_a_ratio_of_the_response_has_one_advantage_and_a_token_one_return(name, argument, shape):
    with pytest.raises(ValueError):
        FUNCTIONS[name](
            **inputs(name, **{argument: torch.ones(shape, dtype=inputs(name)[argument].dtype)})
        )


@pytest.mark.parametrize("name", [name for name in TRAINED if name != "overlong_penalty"])
def test_half_precision_is_computed_in_float32_and_double_stays(name):
    arguments = inputs(name)
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        given = {key: value.to(dtype) for key, value in floats(arguments).items()}
        wide = {key: value.double() for key, value in given.items()}
        results = [parts(FUNCTIONS[name](**arguments | x)) for x in (given, wide)]
        for part, exact in zip(*results, strict=True):
            if part.is_floating_point() and name != "best_of_n_mean":  # float64 always
                assert part.dtype == expected
                torch.testing.assert_close(part.double(), exact, atol=1e-5, rtol=1e-5)


# --- garbage at masked positions ----------------------------------------------------------------

BARE = {"clip_acted"}  # yes or no, of numbers that a loss has cleaned
GARBAGE = [torch.nan, torch.inf, -torch.inf, torch.finfo(torch.float64).min]
PER_TOKEN = [
    name
    for name in sorted(TRAINED.keys() - BARE)
    if any(value.shape == MASK.shape for value in floats(inputs(name)).values())
]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", PER_TOKEN)
def test_garbage_in_the_padding_reaches_no_value_and_no_gradient(name, garbage):
    """0 * NaN is NaN: a where around the finished loss alone would let it through backwards."""
    given = inputs(name)
    if "advantages" in given and name not in OF_THE_RESPONSE:
        given["advantages"] = numbers(4, 3)
    here = slice(None) if any(value is MASK for value in given.values()) else MASK  # of a reducer
    clean, expected = gradients(FUNCTIONS[name], given)
    for key, value in floats(given).items():
        if value.shape == MASK.shape:
            dirty = given | {key: value.where(MASK, garbage)}
            results, found = gradients(FUNCTIONS[name], dirty)
            for part, other in zip(results, clean, strict=True):
                assert torch.equal(part[here], other[here]) if part.ndim else part == other
            for argument, gradient in found.items():
                assert torch.equal(gradient, expected[argument]) and gradient.isfinite().all()
                assert gradient.shape != MASK.shape or not gradient[~MASK].any()


@pytest.mark.parametrize("name", PER_TOKEN)
def test_a_nan_that_takes_part_is_seen(name):
    """Only the padding is forgiven."""
    arguments = inputs(name)
    for key, value in floats(arguments).items():
        if value.shape == MASK.shape:
            seen = value.clone()
            seen[0, 0] = torch.nan
            result = parts(FUNCTIONS[name](**arguments | {key: seen}))[0]
            assert not result.is_floating_point() or result.isnan().any()


# --- what else is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "argument", "values"),
    [
        ("dual_clip", "bound", (1.0, 0.5, math.nan)),
        *((name, "share", (-0.1, 1.1)) for name in ("kl_cov_tokens", "clip_cov_tokens")),
        ("overlong_penalty", "buffer", (0, 21)),
        *((name, "margin", (-0.1, math.nan)) for name in ("best_worst_pairs", "ordered_pairs")),
        ("group_advantages", "scale", ("std",)),
        ("maxrl_advantages", "rewards", (torch.tensor([0.0, 1, 0.5, 1]),)),
    ],
)
def test_a_senseless_value_is_refused(name, argument, values):
    for value in values:
        with pytest.raises(ValueError):
            FUNCTIONS[name](**inputs(name, **{argument: value}))


@pytest.mark.parametrize(
    "function",
    [
        *(FUNCTIONS[name] for name in ("group_advantages", "leave_one_out_advantages")),
        *(FUNCTIONS[name] for name in ("best_worst_pairs", "ordered_pairs")),
        lambda rewards, size: advantages.process_advantages(
            rewards[:, None], torch.zeros(len(rewards), 1, dtype=torch.long),
            torch.ones(len(rewards), 1, dtype=torch.bool),
            torch.ones(len(rewards), 2, dtype=torch.bool), size,
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_a_group_is_refused(function):
    """A group of one, a group that is not whole, a reward that would spread over its group."""
    for rewards, size in (
        (torch.zeros(4), 1),
        (torch.zeros(4), 3),
        (torch.tensor([1.0, torch.nan]), 2),
    ):
        with pytest.raises(ValueError):
            function(rewards, size)
