"""torch.compile for the update: the same gradients, plain copies, and one sentence without a compiler."""

from __future__ import annotations

import copy

import pytest
import torch
from toys import flat_gradient, seeded

from gpt.generate import SamplingParams, generate
from gpt.model import GPT, GPTConfig
from harness.compile_blocks import compile_blocks
from rl.training.whole_run import compile_trained

CPU = torch.device("cpu")
TRACED = "aot_eager"  # everything of torch.compile but the compiler, which takes a minute on a CPU


def small_gpt() -> GPT:
    config = GPTConfig(7, context=16, n_layer=2, n_head=2, n_embd=8)
    return GPT(config).initialize(seeded()).eval()


def is_compiled(model: GPT) -> bool:
    return any(module._compiled_call_impl is not None for module in model.modules())


def gradient(model: GPT, rows: int, columns: int) -> torch.Tensor:
    tokens = torch.randint(7, (rows, columns), generator=seeded(1)).to(model.device)
    model.zero_grad()
    model(tokens).log_softmax(-1)[..., 0].sum().backward()
    return flat_gradient(model)


def test_a_compiled_model_has_the_same_gradients_at_any_shape():
    model, twin = small_gpt(), small_gpt()
    assert compile_blocks(model, CPU, TRACED) and is_compiled(model) and not is_compiled(twin)
    assert model.state_dict().keys() == twin.state_dict().keys()
    for shape in ((2, 5), (3, 9), (4, 7)):
        found, expected = gradient(model, *shape), gradient(twin, *shape)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_copies_and_samples_are_plain():
    """The sampler's cache grows with every token: a compiled block would be compiled for each."""
    model, twin = small_gpt(), small_gpt()
    assert compile_blocks(model, CPU, TRACED)
    assert not is_compiled(copy.deepcopy(model))
    model.h[0]._compiled_call_impl = refuse
    params = SamplingParams(max_new_tokens=6)
    runs = [generate(one, [[1, 2], [3]], params, seeded(), eos_id=0) for one in (model, twin)]
    assert torch.equal(runs[0].response_tokens, runs[1].response_tokens)
    assert torch.equal(runs[0].log_probs, runs[1].log_probs)
    with pytest.raises(AssertionError, match="the compiled block was called"):
        model(torch.tensor([[1, 2]]))


def refuse(*arguments):
    raise AssertionError("the compiled block was called")


def test_what_is_trained_is_compiled(monkeypatch):
    """The policy and the critic, not a frozen teacher, and nothing after the first refusal."""
    met: list[object] = []
    monkeypatch.setattr(
        "rl.training.whole_run.compile_blocks", lambda m, device: met.append(m) or True
    )
    policy, teacher, critic = small_gpt(), small_gpt().requires_grad_(False), small_gpt()
    compile_trained(policy, teacher, critic, object())
    assert met == [policy, critic]
    monkeypatch.setattr("rl.training.whole_run.compile_blocks", lambda m, device: met.append(m))
    compile_trained(policy, critic)
    assert met == [policy, critic, policy]
