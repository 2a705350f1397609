"""Scoring against a double loop over rows and tokens; chunks, memory, entropy, full KL, dtypes."""

from __future__ import annotations

import math

import pytest
import torch
import toys
from toys import close, flat_gradient

from data.collate import ResponseBatch, collate_responses
from gpt.log_probs import entropy_of, forward_kl, full_kl, token_log_probs, token_scores
from gpt.model import GPT, GPTConfig

V, EOS = 7, 0
PROMPTS = [[3, 1], [5], [2, 2, 6, 1], [4, 0, 1]]
RESPONSES = [[1, 5, 0], [6, 6, 2, 4], [], [0]]
T = 4


def random_gpt(seed: int = 0) -> GPT:
    return toys.random_gpt(V, 12, seed=seed, dtype=torch.float64)


MODEL, OTHER = random_gpt(0), random_gpt(1)
BATCH = collate_responses(PROMPTS, RESPONSES, EOS)


def distributions(model: GPT, temperature: float):
    """(row, step, probabilities before response token t as a list), from one unpadded row each."""
    for i, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        for t in range(len(response)):
            logits = model(torch.tensor([prompt + response[:t]]))[0, -1].tolist()
            weights = [math.exp(logit / temperature) for logit in logits]
            yield i, t, [weight / sum(weights) for weight in weights]


def per_token(values) -> torch.Tensor:
    table = torch.zeros(len(PROMPTS), T, dtype=torch.float64)
    for i, t, value in values:
        table[i, t] = value
    return table


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_scores_against_a_double_loop(temperature):
    log_probs = per_token(
        (i, t, math.log(p[RESPONSES[i][t]])) for i, t, p in distributions(MODEL, temperature)
    )
    entropy = per_token(
        (i, t, -sum(x * math.log(x) for x in p)) for i, t, p in distributions(MODEL, temperature)
    )
    close(token_log_probs(MODEL, BATCH, temperature), log_probs)
    for entropy_gradient in (False, True):
        scores = token_scores(MODEL, BATCH, temperature, entropy_gradient=entropy_gradient)
        close(scores.log_probs, log_probs)
        close(scores.entropy, entropy)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_full_kl_against_the_explicit_sum(temperature):
    pairs = zip(distributions(MODEL, temperature), distributions(OTHER, temperature), strict=True)
    expected = per_token(
        (i, t, sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
        for (i, t, p), (_, _, q) in pairs
    )
    close(full_kl(MODEL, OTHER, BATCH, temperature), expected)
    close(forward_kl(OTHER, MODEL, BATCH, temperature), expected)
    assert (expected[BATCH.response_mask] > 0.01).all()


def test_forward_kl_on_the_teachers_text_is_the_kl_of_responses_and_so_is_its_gradient():
    student, other, teacher = (
        toys.random_gpt(3, 12, seed=seed, dtype=torch.float64) for seed in (0, 0, 1)
    )
    batch = toys.language()
    with torch.no_grad():
        log_p = token_log_probs(teacher, batch).sum(1)
    assert float(log_p.exp().sum()) == pytest.approx(1, abs=1e-12)
    exact = (log_p.exp() * (log_p - token_log_probs(student, batch).sum(1))).sum()
    exact.backward()
    estimate = (log_p.exp() * forward_kl(other, teacher, batch).sum(1)).sum()
    estimate.backward()
    close(estimate, exact)
    close(flat_gradient(other), flat_gradient(student))
    assert exact.item() > 0.1


def test_full_kl_gives_the_other_model_no_gradient():
    model, other = random_gpt(0), random_gpt(1)
    full_kl(model, other, BATCH).sum().backward()
    assert all(parameter.grad is None for parameter in other.parameters())
    assert float(model.wte.weight.grad.abs().max()) > 1e-3


def scored(model: GPT, batch: ResponseBatch) -> list[torch.Tensor]:
    scores = token_scores(model, batch, entropy_gradient=True)
    kls = full_kl(model, OTHER, batch), forward_kl(model, OTHER, batch)
    return [token_log_probs(model, batch), *scores, *kls]


def test_padding_is_zero_and_never_read():
    tokens, responses = BATCH.tokens.clone(), BATCH.response_tokens.clone()
    responses[~BATCH.response_mask] = 9999
    behind = torch.arange(tokens.shape[1]) >= BATCH.totals[:, None]
    assert behind.any()
    tokens[behind] = 6
    wider = torch.cat([tokens, torch.full((4, 2), 5)], dim=1)
    dirty = ResponseBatch(
        wider, BATCH.prompt_lengths, responses, BATCH.response_mask, BATCH.has_eos
    )
    models = random_gpt(), random_gpt()
    clean_values, dirty_values = scored(models[0], BATCH), scored(models[1], dirty)
    for clean_value, dirty_value in zip(clean_values, dirty_values, strict=True):
        close(dirty_value, clean_value)
        assert not dirty_value[~BATCH.response_mask].any()
        assert dirty_value[BATCH.response_mask].all()
    sum(value.sum() for value in clean_values).backward()
    sum(value.sum() for value in dirty_values).backward()
    close(*map(flat_gradient, models))


@pytest.mark.parametrize("elements", [10**9, 2 * V])  # whole, and in chunks
def test_rows_that_stand_for_no_text_are_in_no_distribution(elements, monkeypatch):
    """Scores, KLs and gradients of an embedding padded with rows are those of the one without."""
    monkeypatch.setattr("gpt.log_probs.CHUNK_ELEMENTS", elements)
    plain = random_gpt()
    model, other = toys.padded_gpt(plain, 5), toys.padded_gpt(OTHER, 3)
    scores = token_scores(model, BATCH, entropy_gradient=True)
    kls = full_kl(model, other, BATCH), forward_kl(model, other, BATCH)
    values, expected = [token_log_probs(model, BATCH), *scores, *kls], scored(plain, BATCH)
    for value, same in zip(values, expected, strict=True):
        close(value, same)
    sum(value.sum() for value in values).backward()
    sum(value.sum() for value in expected).backward()
    close(model.wte.weight.grad[:V], plain.wte.weight.grad)
    assert model.wte.weight.grad.isfinite().all() and not model.wte.weight.grad[V:].any()
    logits = model(torch.tensor(PROMPTS[2:3]))
    close(logits, plain(torch.tensor(PROMPTS[2:3])))
    close(logits.softmax(-1).sum(-1), torch.ones(1, 4, dtype=torch.float64))


@pytest.mark.parametrize("chunk_elements", [1, V, 3 * V + 1, 8 * V - 1])
@pytest.mark.parametrize(
    "score",
    [
        lambda model: token_log_probs(model, BATCH, 0.7),
        lambda model: token_scores(model, BATCH, 0.7).log_probs,
        lambda model: token_scores(model, BATCH, 0.7, entropy_gradient=True).entropy,
        lambda model: full_kl(model, OTHER, BATCH, 0.7),
    ],
    ids=["log_probs", "log_probs beside entropy", "entropy", "kl"],
)
def test_chunks_change_neither_value_nor_gradient(score, chunk_elements, monkeypatch):
    whole, chunked = random_gpt(), random_gpt()
    weights = torch.arange(len(PROMPTS) * T).reshape(-1, T) + 1.0  # no two positions alike
    values = []
    for model, elements in ((whole, 10**9), (chunked, chunk_elements)):
        monkeypatch.setattr("gpt.log_probs.CHUNK_ELEMENTS", elements)
        values.append(score(model))
        (values[-1] * weights).sum().backward()
    close(values[1], values[0])
    close(flat_gradient(chunked), flat_gradient(whole))
    assert float(whole.wte.weight.grad.abs().max()) > 1e-3
    with torch.no_grad():
        close(score(chunked), values[0].detach())


def test_chunks_under_bfloat16_autocast_have_the_gradient_of_the_whole(monkeypatch):
    """One chunk is left to autograd; several have their gradient written out."""
    gradients = []
    for chunk_elements in (10**9, 3 * V):
        monkeypatch.setattr("gpt.log_probs.CHUNK_ELEMENTS", chunk_elements)
        model = random_gpt().float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = token_scores(model, BATCH, 0.7)
        scores.log_probs.sum().backward()
        gradients.append(flat_gradient(model))
    whole, chunked = gradients
    assert chunked.dtype == torch.float32
    assert float((chunked - whole).norm()) < 0.02 * float(whole.norm())


WIDE, ROWS_PER_CHUNK = 331, 5


SCORES = {
    "log_probs": lambda m, o, b: token_log_probs(m, b),
    "scores": lambda m, o, b: sum(token_scores(m, b)),
    "entropy bonus": lambda m, o, b: sum(token_scores(m, b, entropy_gradient=True)),
    "kl": lambda m, o, b: full_kl(m, o, b),
}


def kept_logits(name: str) -> list[torch.Size]:
    """What autograd keeps of a score that is as wide as the vocabulary."""
    config = GPTConfig(WIDE, context=12, n_layer=1, n_head=1, n_embd=4)
    model, other = (GPT(config).initialize(torch.Generator().manual_seed(s)) for s in (0, 1))
    batch = collate_responses([[1, 2]] * 10, [[3] * 10] * 10, EOS)
    kept: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
        SCORES[name](model, other, batch)
    return [shape for shape in kept if shape[-1:] == (WIDE,)]


@pytest.mark.parametrize("name", SCORES)
def test_no_chunk_of_logits_is_kept_for_the_backward_pass(name, monkeypatch):
    assert kept_logits(name)  # of one chunk, which is left to autograd
    monkeypatch.setattr("gpt.log_probs.CHUNK_ELEMENTS", ROWS_PER_CHUNK * WIDE)
    assert not kept_logits(name)


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([0.0, 0.0], 0.693147),
        ([0.0, math.log(3)], 0.562335),
        ([0.0, 0.0, -math.inf], 0.693147),
        ([5.0, -math.inf], 0.0),
        ([1000.0, 0.0], 0.0),
        ([0.0] * 8, 2.079442),
    ],
)
@pytest.mark.parametrize("coefficient", [1.0, -3.0])
def test_entropy_literals_and_finite_gradients(logits, expected, coefficient):
    logits = torch.tensor([logits, logits], requires_grad=True)
    entropy = entropy_of(logits.log_softmax(-1))
    torch.testing.assert_close(entropy, torch.tensor([expected] * 2), rtol=0, atol=1e-6)
    (coefficient * entropy).sum().backward()
    probs = logits.detach().softmax(-1)
    log_probs = torch.where(probs > 0, probs.log(), 0.0)
    gradient = -coefficient * probs * (log_probs + expected)  # dH/dz_v = -p_v (log p_v + H)
    torch.testing.assert_close(logits.grad, gradient, rtol=0, atol=1e-5)


def test_entropy_has_a_gradient_only_on_request():
    model = random_gpt()
    scores = token_scores(model, BATCH)
    scores.entropy.sum().backward(retain_graph=True)
    assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)
    scores.log_probs.sum().backward()
    assert float(model.wte.weight.grad.abs().max()) > 1e-3

    expected, slow = random_gpt(), random_gpt()
    token_scores(expected, BATCH, entropy_gradient=True).entropy.sum().backward()
    total = torch.zeros(()).double()
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        for t in range(len(response)):
            logits = slow(torch.tensor([prompt + response[:t]]))[0, -1]
            total = total + torch.distributions.Categorical(logits=logits).entropy()
    total.backward()
    close(flat_gradient(expected), flat_gradient(slow))
