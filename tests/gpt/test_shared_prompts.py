"""A prompt that rows share is read once: the same numbers and gradients as row by row, for less."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import toys
from torch import Tensor
from toys import seeded

from data.collate import ResponseBatch, collate_documents, collate_responses
from gpt import log_probs
from gpt.lora import add_adapters
from gpt.model import GPT
from harness.device import open_device, precision
from harness.ranks import collectives
from reward_model.scalar_head import Pooling, RewardModel
from rl.actor_critic import ValueModel
from rl.batches.rollout import row_chunks

V, EOS, CONTEXT = 23, 0, 16


def drawn(*lengths: int) -> list[list[int]]:
    """Token lists of these lengths, without an EOS."""
    generator = seeded(1)
    return [torch.randint(1, V, (n,), generator=generator).tolist() for n in lengths]


# All end alike; E has the length of A, too, and begins otherwise. F is the head of A.
A, C = drawn(5, 9)
B, C, D, E, F = A[-3:], C[:4] + A, A[-1:], [A[0] % (V - 1) + 1, *A[1:]], A[:4]
# groups of 4, 2, 4, 1, 2 and 2, not all of them neighbours
PROMPTS = [A, B, A, B, A, C, C, C, C, D, A, E, F, E, F]
RESPONSES = drawn(4, 1, 6, 0, 3, 2, 7, 5, 1, 3, 4, 2, 5, 3, 1)
BATCH = collate_responses(PROMPTS, RESPONSES, EOS)
N, T = BATCH.response_mask.shape


def apart(batch: ResponseBatch) -> ResponseBatch:
    """The same rows, told to be read one by one."""
    copy = batch.rows(torch.arange(len(batch)))
    copy.__dict__["shared"] = None
    return copy


def model_of(kind: str, dtype: torch.dtype, seed: int = 0) -> GPT:
    model: GPT
    if "llama" in kind:
        later = dict(
            qkv_bias=True, qk_norm=True, d_head=6, rope_factor=8.0, unturned=2, own_head=True,
            norms_after=True,
        )  # fmt: skip
        model = toys.random_llama(V, CONTEXT, seed=seed, **(later if "later" in kind else {}))
        model = model.to(dtype)
    else:
        model = toys.random_gpt(V, CONTEXT, seed=seed, scale=0.3, n_embd=16, dtype=dtype)
    if "lora" in kind:
        add_adapters(model, 2, seeded(2))
        for name, parameter in model.named_parameters():
            if name.endswith("lora_B"):
                parameter.data.normal_(0, 0.3, generator=seeded(3))
    model.gradient_checkpointing = "checkpointed" in kind
    return model


def reward_model(model: GPT, pooling: Pooling) -> RewardModel:
    head = RewardModel(model, pooling).to(model.wte.weight)
    toys.randomized(head.head, 4, 0.3)
    return head


def value_model(model: GPT) -> ValueModel:
    critic = ValueModel(model).to(model.wte.weight)
    toys.randomized(critic.head, 4, 0.3)
    return critic


HEADS: dict[str, Callable[[GPT, ResponseBatch], Tensor]] = {
    "log_probs": log_probs.token_log_probs,
    "scores": lambda model, batch: torch.stack(
        log_probs.token_scores(model, batch, 0.7, entropy_gradient=True)
    ),
    "kl": lambda model, batch: log_probs.token_scores_and_kl(
        model, model_of("gpt", model.wte.weight.dtype, seed=5).to(model.device), batch
    )[1],
    "mean_score": lambda model, batch: reward_model(model, "mean_score").raw_scores(batch),
    "last_token": lambda model, batch: reward_model(model, "last_token").raw_scores(batch),
    "critic": lambda model, batch: value_model(model)(batch),
    "prefix": lambda model, batch: reward_model(model, "mean_score").prefix_scores(batch),
}


KINDS = ["gpt", "llama", "gpt lora checkpointed", "llama checkpointed", "later llama lora"]
KINDS += ["later llama checkpointed"]


def value_and_gradient(head: str, model: GPT, batch: ResponseBatch) -> tuple[Tensor, Tensor]:
    model.zero_grad()
    value = HEADS[head](model, batch)
    (value * torch.linspace(-1, 1, value.numel()).to(value).view_as(value)).mean().backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return value.detach(), torch.cat(gradients)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", HEADS)
def test_values_and_gradients_are_those_of_rows_read_one_by_one(head, kind, dtype, most):
    model = model_of(kind, dtype)
    assert BATCH.shared is not None and apart(BATCH).shared is None
    together = value_and_gradient(head, model, BATCH)
    for one, other in zip(together, value_and_gradient(head, model, apart(BATCH)), strict=True):
        assert float(other.abs().max()) > 1e-4
        assert float((one - other).abs().max()) <= most * max(float(other.abs().max()), 1.0)


def test_under_dropout_each_row_draws_its_own():
    """Four times one answer: in training four different first tokens, whose forward the prompt ends."""
    model = toys.random_gpt(V, CONTEXT, scale=0.3, n_embd=16, dropout=0.3)
    batch = collate_responses([A] * 4, RESPONSES[:1] * 4, EOS)
    assert batch.shared is not None
    for training, different in ((True, 4), (False, 1)):
        for head in ("log_probs", "critic"):
            first = HEADS[head](model.train(training), batch)[:, 0]
            assert len(first.unique()) == different


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card here")
@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-5), ("bfloat16", 0.05)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", HEADS)
def test_a_card_has_the_values_and_gradients_of_the_cpu(head, kind, dtype, most):
    model, device = model_of(kind, torch.float32), open_device("cuda", dtype)
    plain = value_and_gradient(head, model, apart(BATCH))
    with precision(device, dtype):
        found = value_and_gradient(head, model.to(device), BATCH.to(device))
    for one, other in zip(found, plain, strict=True):
        assert float((one.cpu() - other).norm()) <= most * float(other.norm())


@pytest.mark.parametrize(
    "batch",
    [
        collate_responses([A, B, C], RESPONSES[:3], EOS),  # one response each
        collate_responses([D, D, D], drawn(6, 7, 12), EOS),  # prompts of one token
        collate_documents([[1, *row] for row in drawn(12, 9, 14)]),
    ],
    ids=["unique", "short", "documents"],
)
def test_rows_that_share_too_little_are_read_as_ever(batch):
    model = model_of("gpt", torch.float32)
    assert batch.shared is None and batch.groups is None
    columns = batch.predicting_columns
    one, other = (
        read(model, batch, columns)
        for read in (log_probs.response_hidden, log_probs.hidden_of_rows)
    )
    assert torch.equal(one, other)


# --- which rows stand in one forward --------------------------------------------------------------


def test_groups_stay_whole_in_a_micro_batch():
    chunks = [chunk.tolist() for chunk in row_chunks(BATCH, torch.arange(N), 5)]
    assert sorted(row for chunk in chunks for row in chunk) == list(range(N))
    assert all(len(chunk) <= 5 for chunk in chunks)
    for group in ([0, 2, 4, 10], [1, 3], [5, 6, 7, 8], [9], [11, 13], [12, 14]):
        assert sum(not set(group).isdisjoint(chunk) for chunk in chunks) == 1
    pieces = collectives.shard_chunks(torch.tensor([3, 1, 2, 5]), 2, torch.tensor([0, 0, 0, 1]))
    assert [piece.tolist() for piece in pieces] == [[1, 2], [0, 3]]  # a group of 3 in forwards of 2
