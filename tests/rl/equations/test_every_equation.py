"""What holds for every equation, whatever it computes: one table, and one test for each promise.

The inputs are made from the declared shapes, so a new equation is tested once it is in the table.
"""

from __future__ import annotations

import inspect
import math

import pytest
import torch

from harness.equation_checks import declared
from reward_model import loss
from rl.equations import (
    advantages,
    best_of_n,
    ensembles,
    kl,
    losses,
    preference_losses,
    sampler_correction,
    token_rewards,
)

MODULES = (
    advantages, best_of_n, ensembles, kl, losses, preference_losses, sampler_correction, token_rewards,
    loss,
)  # fmt: skip
POLICY, PAIR = ("log_probs",), ("policy_chosen", "policy_rejected")
TRAINED = {  # equation: the arguments that have a gradient
    "gae": (), "discounted_returns": (), "whiten": (), "group_advantages": (),
    "leave_one_out_advantages": (), "maxrl_advantages": (), "greedy_baseline_advantages": (),
    "process_advantages": (), "best_worst_pairs": (),
    "ordered_pairs": (), "best_of_n_mean": (), "ensemble_mean": (), "worst_case": (),
    "k1": POLICY, "k2": POLICY, "k3": POLICY,
    "rho_minus_log": POLICY, "absolute": POLICY, "k1_importance": POLICY,
    "k3_importance": POLICY, "likelihood_ratio": POLICY, "sequence_ratio": POLICY,
    "mean_ratio": POLICY, "policy_gradient": POLICY, "clipped_surrogate": POLICY,
    "clip_acted": (), "dual_clip": ("loss",), "cispo": POLICY, "sapo": POLICY,
    "sequence_clipped_surrogate": POLICY, "gspo": POLICY,
    "gmpo": POLICY, "token_covariances": (), "kl_cov_tokens": (), "clip_cov_tokens": (),
    "value_loss": ("values",),
    "length_normalized_returns": (), "mixed_sampling_weights": (), "row_sums": ("x",),
    "row_means": ("x",), "token_mean": ("loss",), "sequence_mean": ("loss",),
    "sequence_sum": ("loss",), "constant_length_mean": ("loss",), "preference_gap": PAIR,
    "dpo_loss": PAIR, "ipo_loss": PAIR, "hinge_loss": PAIR, "simpo_loss": PAIR,
    "kto_loss": PAIR, "orpo_loss": PAIR,
    "at_last_token": (), "token_level_rewards": (), "score_missing_eos": (),
    "overlong_penalty": (), "teacher_rewards": (), "own_text_penalty": (),
    "sampler_weights": (), "effective_share": (), "binary_tv": (), "binary_kl": (),
    "dppo_left_out": (), "dppo": POLICY, "bradley_terry_loss": ("chosen", "rejected"),
    "outcome_loss": ("outcome_scores",),
}  # fmt: skip
NO_TENSOR_OF_ONE_SHAPE = {  # counts, choices by name, and mappings that check their own parts
    *("mean_within", "at_least_one"),
    *("best_of_n_kl", "best_of_n_weights", "loss_estimator"),
}
FUNCTIONS = {
    name: function
    for module in MODULES
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and not name.startswith("_")
}
SIZES = {"N": 4, "T": 3, "K": 2, "pairs": 5, "prompts": 2, "1": 1}
MASK = torch.arange(3) < torch.tensor([3, 2, 1, 3])[:, None]
NUMBERS = {
    "clip_low": 0.2, "clip_high": 0.28, "clip_range": 0.2, "bound": 3.0, "gamma": 0.97,
    "gae_lambda": 0.9, "threshold": 0.1, "share": 0.5, "alpha": 0.2, "length": 9,
    "group_size": 2, "kl_coef": 0.1, "rule": "subtract", "value": 1.0, "max_length": 20,
    "buffer": 4, "reverse_kl": True, "coef": 0.3, "beta": 0.3, "target_margin": 0.5, "n": 2,
    "of": "token", "limit": "mask", "floor": 0.9, "cap": 1.1, "divergence": "tv", "delta": 0.1,
    "low": -0.5, "high": 0.5, "reference_point": 0.2,
}  # fmt: skip
RIGHT_OR_WRONG = dict(rewards=torch.tensor([0.0, 1, 1, 1], dtype=torch.float64))
DOMAIN = {"maxrl_advantages": RIGHT_OR_WRONG}  # of equations that do not take any number


def tensor(parameter, generator):
    shape = [SIZES[axis] for axis in parameter.shapes[-1]]
    if "mask" in parameter.marks:
        return MASK if parameter.per_token else torch.ones(shape, dtype=torch.bool)
    if "whole" in parameter.marks:
        return torch.zeros(shape, dtype=torch.long)
    return torch.randn(shape, generator=generator, dtype=torch.float64) / 3


def inputs(name, **given):
    """Arguments of one equation: a random tensor wherever one may stand."""
    generator = torch.Generator().manual_seed(0)
    arguments = {
        argument: tensor(parameter, generator) if parameter.shapes else NUMBERS[argument]
        for argument, parameter in declared(FUNCTIONS[name]).items()
        if parameter.shapes or argument in NUMBERS
    }
    return arguments | DOMAIN.get(name, {}) | given


def parts(result):
    return result if isinstance(result, tuple) else (result,)


def floats(arguments):
    return {
        name: value
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }


def gradients(name, arguments):
    """The parts of the result, and the gradient of their sum at each argument that has one."""
    leaves = {name: value.clone().requires_grad_() for name, value in floats(arguments).items()}
    results = parts(FUNCTIONS[name](**arguments | leaves))
    if not results[0].requires_grad:
        return results, {}
    total = sum(torch.where(part.isfinite(), part, 0.0).sum() for part in results)
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return results, {
        name: gradient for name, gradient in zip(leaves, found, strict=True) if gradient is not None
    }


def test_the_table_is_complete():
    assert set(FUNCTIONS) == TRAINED.keys() | NO_TENSOR_OF_ONE_SHAPE


@pytest.mark.parametrize("name", TRAINED)
def test_only_what_is_trained_has_a_gradient(name):
    """Old log-probs, advantages, returns and references are constants, even if they need grad."""
    results, found = gradients(name, inputs(name))
    assert set(found) == set(TRAINED[name])
    assert all(part.requires_grad == bool(found) for part in results)


STOPPED = {"cispo", "dppo"}  # constants in them: see test_gradients.py, test_gspo


@pytest.mark.parametrize(
    "name", [name for name in TRAINED if TRAINED[name] and name not in STOPPED]
)
def test_gradients_are_finite_differences(name):
    """In float64, at the valid tokens, with every optional argument given and with none."""
    arguments = inputs(name)
    leaves = [arguments[key].clone().requires_grad_() for key in TRAINED[name]]
    optional = [key for key, what in declared(FUNCTIONS[name]).items() if what.optional]
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
def test_arguments_of_another_shape_or_kind_are_refused_by_name(name):
    arguments = inputs(name)
    for argument, parameter in declared(FUNCTIONS[name]).items():
        value, wrong = arguments.get(argument), []
        if parameter.shapes:
            wrong = [value[None], value[..., None]]  # with N = T an (N,) would run along time
            wrong += [value[0]] if value.ndim else []
            wrong += [0.5] if parameter.tensor_only else []
            wrong += [value.long()] if "mask" in parameter.marks else []
            wrong += [value.double()] if "whole" in parameter.marks else []
        else:
            wrong = [torch.ones(()), torch.ones(2, 3)]
        for bad in wrong:
            with pytest.raises(ValueError, match=f"{name}: {argument} must be"):
                FUNCTIONS[name](**arguments | {argument: bad})


@pytest.mark.parametrize("name", TRAINED)
def test_one_axis_has_one_size(name):
    """Nothing is broadcast but the (N, 1) beside an (N, T)."""
    arguments, parameters = inputs(name), declared(FUNCTIONS[name])
    axes = {key: parameter.shapes[-1] for key, parameter in parameters.items() if parameter.shapes}
    for argument in axes:
        for dimension, axis in enumerate(axes[argument]):
            if any(axis in axes[other] for other in axes if other != argument):
                shorter = arguments[argument].narrow(dimension, 0, SIZES[axis] - 1)
                with pytest.raises(ValueError, match=rf"{name}: .*one size per axis in all"):
                    FUNCTIONS[name](**arguments | {argument: shorter})


@pytest.mark.parametrize("name", TRAINED)
def test_half_precision_is_computed_in_float32_and_double_stays(name):
    arguments = inputs(name)
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        given = {key: value.to(dtype) for key, value in floats(arguments).items()}
        for part in parts(FUNCTIONS[name](**arguments | given)):
            if part.is_floating_point() and name != "best_of_n_mean":  # float64 always
                assert part.dtype == expected


def test_what_some_declarations_leave_out():
    """A ratio of the whole response has one advantage; what says yes or no is bool."""
    for name, argument, value in (
        ("sequence_clipped_surrogate", "advantages", torch.ones(4, 3)),
        ("gspo", "advantages", torch.ones(4, 3)),
        ("value_loss", "returns", torch.ones(4, 1)),
        ("token_mean", "mask", torch.ones(4, 3)),
        ("score_missing_eos", "has_eos", torch.ones(4)),
        ("process_advantages", "step_mask", torch.ones(4, 2)),
        ("process_advantages", "step_ends", torch.ones(4, 2)),
    ):
        with pytest.raises(ValueError, match=f"{name}: {argument} must be"):
            FUNCTIONS[name](**inputs(name, **{argument: value}))


# --- garbage at masked positions ----------------------------------------------------------------

BARE = {"clip_acted", "dppo_left_out"}  # yes or no, of numbers that a loss has cleaned
GARBAGE = [torch.nan, torch.inf, -torch.inf, torch.finfo(torch.float64).min]
PER_TOKEN = [
    name
    for name in TRAINED
    if any(("N", "T") in parameter.shapes for parameter in declared(FUNCTIONS[name]).values())
]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", sorted(set(PER_TOKEN) - BARE))
def test_garbage_in_the_padding_reaches_no_value_and_no_gradient(name, garbage):
    """0 * NaN is NaN: a where around the finished loss alone would let it through backwards."""
    arguments = inputs(name)
    tokens = [key for key, value in floats(arguments).items() if value.shape == MASK.shape]
    unmasked = not any(value is MASK for value in arguments.values())
    clean, expected = gradients(name, arguments)
    for key in tokens:
        dirty = arguments | {key: arguments[key].where(MASK, garbage)}
        with torch.autograd.set_detect_anomaly(True):
            results, found = gradients(name, dirty)
        for part, other in zip(results, clean, strict=True):
            if unmasked:  # NaN marks the place, for a reducer's mask to drop
                assert part[~MASK].isnan().all()
                part, other = part[MASK], other[MASK]
            assert torch.equal(part, other)
        for argument, gradient in found.items():
            assert not gradient[~MASK].any() if gradient.shape == MASK.shape else True
            assert torch.equal(gradient[MASK], expected[argument][MASK])


@pytest.mark.parametrize("name", sorted(set(PER_TOKEN) - BARE))
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
        ("dual_clip", "bound", (1.0, math.inf)),
        *((name, "beta", (0.0, math.nan)) for name in ("dpo_loss", "ipo_loss", "hinge_loss")),
        *((name, "beta", (0.0, -1.0)) for name in ("simpo_loss", "kto_loss", "orpo_loss")),
        ("mixed_sampling_weights", "alpha", (1.0, -0.1)),
        ("constant_length_mean", "length", (0,)),
        *((name, "share", (-0.1, 1.1)) for name in ("kl_cov_tokens", "clip_cov_tokens")),
        ("overlong_penalty", "buffer", (0, 21)),
        *((name, "margin", (-0.1, math.nan)) for name in ("best_worst_pairs", "ordered_pairs")),
        ("group_advantages", "scale", ("std",)),
        ("score_missing_eos", "rule", ("drop",)),
    ],
)
def test_a_value_outside_its_range_is_refused(name, argument, values):
    for value in values:
        with pytest.raises(ValueError, match=f"{argument} must be (in|one of)"):
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
    for rewards, size, words in (
        (torch.zeros(4), 1, "group_size must be at least 2"),
        (torch.zeros(4), 3, "do not divide into groups of 3"),
        (torch.tensor([1.0, torch.nan]), 2, "finite"),
    ):
        with pytest.raises(ValueError, match=words):
            function(rewards, size)
