"""LoRA against the formulas: the start, the gradients, the merge, what is shared and what is saved."""

from __future__ import annotations

import torch
from toys import LETTERS, close, random_gpt, seeded

from data.collate import collate_documents
from gpt.log_probs import token_log_probs
from gpt.lora import (
    adapters,
    add_adapters,
    critic_trunk,
    fit_for_training,
    frozen_copy,
    has_adapters,
    merged_state,
)
from gpt.model import GPT, GPTConfig
from harness.flags import MemoryFlags
from harness.training_state import unchanging_names
from reward_model.scalar_head import RewardModel
from rl.actor_critic import ValueModel

SHAPE = GPTConfig(LETTERS.n_vocab, context=12, n_layer=2, n_head=2, n_embd=8)
BATCH = collate_documents([[3, 1, 4, 1, 5], [2, 6, 5], [7, 0, 1, 2, 3, 4, 5]])
NAMES = [
    f"h.{layer}.{name}"
    for layer in (0, 1)
    for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
]


def base_gpt(seed: int = 0) -> GPT:
    """Every parameter random, biases too."""
    return random_gpt(LETTERS.n_vocab, 12, seed=seed)


def adapted(seed: int = 0, rank: int = 3, *, trained: bool = True) -> GPT:
    """The base with adapters; `trained`: B is random too."""
    model = add_adapters(base_gpt(seed), rank, seeded())
    if trained:
        with torch.no_grad():
            for layer in adapters(model).values():
                layer.lora_B.copy_(torch.randn(layer.lora_B.shape, generator=seeded(2)) / 4)
    return model


def test_the_seed_draws_the_adapters_and_a_critics_are_others():
    first, again, other = (
        fit_for_training(MemoryFlags(lora_rank=3, seed=seed), base_gpt()) for seed in (1, 1, 2)
    )
    critic = critic_trunk(MemoryFlags(lora_rank=3, seed=1), base_gpt())
    drawn = [layer.lora_A.flatten()[0].item() for model in (first, again, other, critic)
             for layer in adapters(model).values()]  # fmt: skip
    assert drawn[:8] == drawn[8:16] and len(set(drawn)) == 3 * 8


def test_a_critics_trunk_beside_a_model_shares_nothing_that_is_trained():
    frozen = base_gpt().requires_grad_(False)
    for rank in (0, 3):
        trunk = critic_trunk(MemoryFlags(lora_rank=rank), frozen)
        trained = [parameter for parameter in trunk.parameters() if parameter.requires_grad]
        assert torch.equal(trunk(BATCH.tokens), frozen(BATCH.tokens))
        assert len(trained) == (2 * len(NAMES) if rank else len(list(frozen.parameters())))
        theirs = {parameter.data_ptr() for parameter in frozen.parameters()}
        assert theirs.isdisjoint(parameter.data_ptr() for parameter in trained)


def test_the_start_is_the_base_bit_for_bit():
    """B = 0; A is random, between plus and minus 1 / sqrt(in), and each another."""
    model = adapted(trained=False)
    assert torch.equal(model(BATCH.tokens), base_gpt()(BATCH.tokens))
    layers = adapters(model)
    assert list(layers) == NAMES
    for name, layer in layers.items():
        width = 32 if name.endswith("mlp.c_proj") else 8
        assert layer.lora_A.shape == (3, width) and layer.lora_B.shape == (len(layer.weight), 3)
        assert not layer.lora_B.any() and len(layer.lora_A.unique()) == 3 * width
        assert 0.5 * width**-0.5 < float(layer.lora_A.detach().abs().max()) <= width**-0.5
    firsts = [layer.lora_A[0, 0].item() for layer in layers.values()]
    assert len(set(firsts)) == len(firsts)
    again = adapters(add_adapters(base_gpt(), 3, seeded()))
    assert all(torch.equal(again[name].lora_A, layers[name].lora_A) for name in NAMES)


def test_gradients_are_the_projected_ones_of_full_training():
    """At the merged weights W: dL/dB = (alpha/r) dL/dW A^T and dL/dA = (alpha/r) B^T dL/dW, in float64."""
    model = adapted().double()
    full = GPT(SHAPE).double().eval()
    full.load_state_dict(merged_state(model))
    for each in (model, full):
        token_log_probs(each, BATCH, temperature=0.7).square().sum().backward()
    whole = dict(full.named_parameters())
    for name, layer in adapters(model).items():
        slope = whole[f"{name}.weight"].grad  # dL/dW
        assert float(slope.abs().max()) > 1e-3
        close(layer.lora_B.grad, 2 * slope @ layer.lora_A.T)
        close(layer.lora_A.grad, 2 * layer.lora_B.T @ slope)


def test_the_merged_model_is_the_model_with_its_adapter():
    model = adapted().double()
    merged = GPT(SHAPE).double().eval()
    merged.load_state_dict(merged_state(model))
    logits = model(BATCH.tokens)
    close(merged(BATCH.tokens), logits)
    assert float((logits - base_gpt().double()(BATCH.tokens)).abs().max().detach()) > 0.1
    weight = base_gpt().double().h[0].attn.c_proj.weight
    layer = model.h[0].attn.c_proj
    assert torch.allclose(merged.h[0].attn.c_proj.weight, weight + 2 * layer.lora_B @ layer.lora_A)


def test_a_frozen_copy_shares_the_base_and_keeps_the_adapter_as_it_was():
    model = adapted()
    copied, logits = frozen_copy(model), model(BATCH.tokens).detach()
    shared = dict(model.named_parameters())
    for name, parameter in copied.named_parameters():
        assert (parameter is shared[name]) == (name in unchanging_names(model)), name
    with torch.no_grad():
        for layer in adapters(model).values():
            layer.lora_A.add_(1.0)
    assert torch.equal(copied(BATCH.tokens), logits)
    assert not torch.equal(model(BATCH.tokens), logits)
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    assert model.h[0].attn.c_attn.lora_A.requires_grad


def test_reward_model_and_critic_train_their_adapters_and_their_heads():
    policy = adapted()
    scorer = RewardModel.from_policy(policy, generator=seeded())
    frozen_scorer = RewardModel.from_policy(base_gpt()).requires_grad_(False)
    over_scorer = critic_trunk(MemoryFlags(lora_rank=2), frozen_scorer.gpt)
    for model, trunk in (
        (scorer, policy),
        (ValueModel.from_policy(policy), policy),
        (ValueModel.from_reward_model(frozen_scorer, over_scorer), frozen_scorer.gpt),
    ):
        trained = {name for name, p in model.named_parameters() if p.requires_grad}
        matrices = {f"gpt.{name}.{matrix}" for name in NAMES for matrix in ("lora_A", "lora_B")}
        assert trained == matrices | {"head.weight", "head.bias"}
        assert model.gpt.wte.weight is trunk.wte.weight
        assert model.gpt.h[1].mlp.c_fc.weight is trunk.h[1].mlp.c_fc.weight
    assert not has_adapters(frozen_scorer)
