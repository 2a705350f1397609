"""Sampling: the distribution, its truncations, EOS, and a slow sampler without cache or batch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import toys
from toys import LETTERS, seeded

from gpt.generate import (
    Mixture,
    SamplingParams,
    choose_tokens,
    evaluation_mode,
    generate,
    inverse_cdf,
    truncate_logits,
    uniform_numbers,
)
from gpt.model import GPT, KVCache
from gpt.ranks import sample

EOS = 3  # also a token of some prompts, where it ends nothing
RAGGED = [[1, 2], [3], [4, 0, 1, 2], [2, 2, 2]]


def random_gpt(vocab_size: int = 6, scale: float = 0.5, dropout: float = 0.0) -> GPT:
    return toys.random_gpt(vocab_size, 16, scale=scale, dropout=dropout).requires_grad_(False)


def fixed_gpt(probs: list[float]) -> GPT:
    return toys.fixed_gpt(probs, 16, torch.float32).requires_grad_(False)


MODEL, TEACHER = random_gpt(), random_gpt(scale=0.8)


def test_choose_tokens_inverts_the_cumulative_distribution():
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(6, 4) + 3
    uniforms = torch.tensor([0.0, 0.05, 0.15, 0.35, 0.65, 1 - 2**-24])
    tokens, log_probs = choose_tokens(logits, SamplingParams(), uniforms)
    assert tokens.tolist() == [0, 0, 1, 2, 3, 3]
    expected = torch.tensor([0.1, 0.1, 0.2, 0.3, 0.4, 0.4]).log()
    torch.testing.assert_close(log_probs, expected)


def test_impossible_tokens_are_never_drawn():
    logits = torch.tensor([[-math.inf, 0, 0, -math.inf]] * 2)
    tokens, log_probs = choose_tokens(logits, SamplingParams(), torch.tensor([0.0, 1 - 2**-24]))
    assert tokens.tolist() == [1, 2]
    torch.testing.assert_close(log_probs, torch.tensor([0.5, 0.5]).log())


def test_a_number_that_rounds_up_to_the_total_is_the_last_token():
    assert inverse_cdf(torch.eye(3)[2:], torch.ones(1)).tolist() == [[2]]


def test_half_precision_logits_are_drawn_in_float32():
    """In bfloat16 the cumulative sum of 1000 equal probabilities stops growing at 0.25."""
    uniforms = torch.tensor([0.1003, 0.5003, 0.9003])
    logits = torch.zeros(3, 1000, dtype=torch.bfloat16)
    tokens, log_probs = choose_tokens(logits, SamplingParams(), uniforms)
    assert tokens.tolist() == [100, 500, 900]
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs, torch.full((3,), -math.log(1000)))


PROBS = torch.tensor([0.1, 0.5, 0.15, 0.25])


def support(params: SamplingParams) -> set[int]:
    kept = truncate_logits(PROBS.log()[None] + 2, params)[0].isfinite()
    return set(kept.nonzero().flatten().tolist())


@pytest.mark.parametrize(
    ("top_k", "expected"),
    [(1, {1}), (2, {1, 3}), (3, {1, 2, 3}), (4, {0, 1, 2, 3}), (99, {0, 1, 2, 3})],
)
def test_top_k(top_k, expected):
    assert support(SamplingParams(top_k=top_k)) == expected


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.49, {1}), (0.51, {1, 3}), (0.74, {1, 3}), (0.76, {1, 2, 3}), (0.95, {0, 1, 2, 3})],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, expected):
    assert support(SamplingParams(top_p=top_p)) == expected


def test_top_p_that_is_reached_exactly_keeps_no_token_more():
    kept = truncate_logits(torch.zeros(1, 4), SamplingParams(top_p=0.5)).isfinite()
    assert kept.sum() == 2


def test_temperature_comes_before_truncation():
    """At 0.5 the likeliest has 0.25 / 0.345 = 0.72 and alone reaches top_p = 0.7; at 1 it has 0.5."""
    uniforms = torch.tensor([0.0, 0.99])
    logits = PROBS.log().expand(2, 4)
    cold = SamplingParams(temperature=0.5, top_p=0.7)
    assert choose_tokens(logits, cold, uniforms)[0].tolist() == [1, 1]
    assert choose_tokens(logits, SamplingParams(top_p=0.7), uniforms)[0].tolist() == [1, 3]


def slow_sample(prompt, uniforms, temperature, share=0.0):
    """One row at a time, every prefix read from scratch, the cumulative sum in a Python loop.

    The next token has probability share * p + (1 - share) * q: of TEACHER and of MODEL. Returns the
    tokens, the logs of these probabilities and those of q.
    """
    tokens, log_probs, own = [], [], []
    for uniform in uniforms.tolist():
        row = torch.tensor([prompt + tokens])
        p, q = ((m(row)[0, -1].double() / temperature).softmax(0) for m in (TEACHER, MODEL))
        probs = (share * p + (1 - share) * q).tolist()
        sums = list(itertools.accumulate(probs))
        tokens.append(next(v for v, total in enumerate(sums) if total > uniform * sums[-1]))
        log_probs.append(math.log(probs[tokens[-1]]))
        own.append(math.log(q[tokens[-1]]))
        if tokens[-1] == EOS:
            break
    return tokens, log_probs, own


def assert_drawn_slowly(sampled, prompts, params, share=0.0):
    """Of 10 responses to each prompt; uniforms are those of generate's seed 4."""
    shape = len(prompts) * 10, params.max_new_tokens
    uniforms = torch.rand(*shape, generator=seeded(4))
    for i, found in enumerate(sampled.token_lists()):
        expected, *logs = slow_sample(prompts[i // 10], uniforms[i], params.temperature, share)
        assert found == expected
        both = torch.stack([sampled.log_probs[i], sampled.model_log_probs[i]])
        torch.testing.assert_close(both[:, : len(found)], torch.tensor(logs), rtol=0, atol=1e-5)
        assert not both[:, len(found) :].any()
        assert sampled.has_eos[i] == (expected[-1] == EOS)
    assert sampled.has_eos.any() and not sampled.has_eos.all()


@pytest.mark.parametrize(("share", "temperature"), [(0.0, 1.0), (0.0, 0.7), (0.2, 1.0), (0.7, 0.7)])
@pytest.mark.parametrize("prompts", [RAGGED, [[1, 2, 3], [4, 0, 1]]])
def test_generate_equals_a_slow_sampler(monkeypatch, share, temperature, prompts):
    """Of the model, or token by token of a mixture with a teacher.

    Cache, ragged prompts, repeated rows and the dropping of finished rows change no row.
    """
    kept, keep = [], KVCache.keep
    monkeypatch.setattr(
        KVCache, "keep", lambda self, rows: kept.append(len(rows)) or keep(self, rows)
    )
    params = SamplingParams(temperature=temperature, max_new_tokens=12)
    sampled = generate(
        MODEL, prompts, params, seeded(4), eos_id=EOS, samples_per_prompt=10,
        mixture=Mixture(TEACHER, share) if share else None,
    )  # fmt: skip
    assert len(kept) >= 2 and kept == sorted(kept, reverse=True)  # rows were dropped, several times
    assert_drawn_slowly(sampled, prompts, params, share)
    assert len(set(map(tuple, sampled.token_lists()))) > 10


def test_greedy_takes_the_likeliest_token_each_time():
    params = SamplingParams(greedy=True, max_new_tokens=8)
    sampled = generate(MODEL, RAGGED, params, seeded(8), eos_id=EOS)
    for prompt, found in zip(RAGGED, sampled.token_lists(), strict=True):
        tokens: list[int] = []
        while len(tokens) < 8 and EOS not in tokens:
            tokens.append(int(MODEL(torch.tensor([prompt + tokens]))[0, -1].argmax()))
        assert found == tokens
    again = generate(MODEL, RAGGED, params, seeded(9), eos_id=EOS)
    assert torch.equal(sampled.response_tokens, again.response_tokens)


def test_the_model_is_sampled_without_dropout_and_left_as_it_was():
    params = SamplingParams(max_new_tokens=6)
    expected = generate(MODEL, RAGGED, params, seeded(1), eos_id=EOS).token_lists()
    dropping = random_gpt(dropout=0.5).train()
    assert generate(dropping, RAGGED, params, seeded(1), eos_id=EOS).token_lists() == expected
    assert dropping.training and not MODEL.training


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0), ("temperature", -1.0), ("temperature", math.nan), ("top_k", -1),
        ("top_p", 0.0), ("top_p", 1.5), ("max_new_tokens", 0),
    ],
)  # fmt: skip
def test_wrong_parameters_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})


def test_a_teacher_without_a_share_changes_no_bit():
    params = SamplingParams(max_new_tokens=8)
    plain, other, mixed = (
        generate(MODEL, RAGGED, params, seeded(7), eos_id=EOS, samples_per_prompt=3, **options)
        for options in ({}, *(dict(mixture=Mixture(TEACHER, share)) for share in (0.0, 0.5)))
    )
    assert torch.equal(plain.response_tokens, other.response_tokens)
    assert torch.equal(plain.log_probs, other.log_probs)
    assert torch.equal(plain.model_log_probs, plain.log_probs)
    assert mixed.token_lists() != plain.token_lists()


def test_every_end_stops_a_row_and_stays_the_token_that_was_drawn():
    model = fixed_gpt([0.1, 0.4, 0.2, 0.3])
    params = SamplingParams(max_new_tokens=12)
    one = generate(model, [[0]] * 40, params, seeded(), eos_id=EOS)
    two = generate(model, [[0]] * 40, params, seeded(), eos_id=EOS, other_ends=[2])
    assert two.has_eos.all() and {row[-1] for row in two.token_lists()} == {2, EOS}
    for longer, row in zip(one.token_lists(), two.token_lists(), strict=True):
        end = next(i for i, token in enumerate(longer) if token in (2, EOS))
        assert row == longer[: end + 1]


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("more", [{}, {"greedy": True}, {"top_k": 3}, {"top_p": 0.8}])
def test_rows_that_stand_for_no_text_are_never_drawn(share, more):
    params = SamplingParams(max_new_tokens=8, **more)

    def drawn(model: GPT, teacher: GPT):
        mixture = Mixture(teacher, share)
        return generate(
            model, RAGGED, params, seeded(), eos_id=EOS, samples_per_prompt=8, mixture=mixture
        )

    plain, padded = (
        drawn(MODEL, TEACHER),
        drawn(toys.padded_gpt(MODEL, 3), toys.padded_gpt(TEACHER, 9)),
    )
    assert padded.token_lists() == plain.token_lists()
    torch.testing.assert_close(padded.log_probs, plain.log_probs)
    torch.testing.assert_close(padded.model_log_probs, plain.model_log_probs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_seed_draws_the_same_whatever_the_default_is(dtype):
    """And from all numbers that a float32 has: those of a bfloat16 are 256."""
    model, params = random_gpt(10), SamplingParams(max_new_tokens=4)

    def drawn() -> list[torch.Tensor]:
        one = generate(MODEL, RAGGED, params, seeded(), eos_id=EOS)
        shared = sample(model, LETTERS, RAGGED, params, seeded())
        return [uniform_numbers(1000, 3, seeded()), one.response_tokens, shared.response_tokens]

    usual = drawn()
    torch.set_default_dtype(dtype)
    try:
        again = drawn()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, usual, again)) and len(usual[0].unique()) > 2900


def test_models_are_as_they_were_after_an_exception_too():
    models = [random_gpt().train(), random_gpt().eval()]
    with pytest.raises(ZeroDivisionError), evaluation_mode(models):
        assert not models[0].training
        raise ZeroDivisionError
    assert models[0].training and not models[1].training
