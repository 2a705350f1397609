"""How many floating-point operations the work of a case needs, by formula.

A forward pass over some tokens costs, counting a multiplication and an addition as two:

    2 x 12 L D^2          per token, the matrices of L blocks of width D (4 D^2 attention, 8 D^2 MLP)
    4 L D                 per token and column that it attends to (Q K^T, and the weights times V)
    2 V D                 per position whose logits are needed, V the vocabulary

and a backward pass twice that. Norms, activations, softmaxes and the optimizer are left out, and so
is whatever a library computes twice: this is the least that the work needs, the same for both sides.
"""

from __future__ import annotations

from turns import Case

from gpt.model import GPTConfig


def columns_attended(start: int, end: int) -> int:
    """Sum over the tokens at columns start ... end - 1 of a row of the columns that each attends to."""
    return (end * (end + 1) - start * (start + 1)) // 2


def forward(shape: GPTConfig, rows: int, start: int, end: int, logits: int) -> int:
    """Columns start ... end - 1 of `rows` rows go through the blocks; `logits` positions a row."""
    L, D, V = shape.n_layer, shape.n_embd, shape.vocab_size
    blocks = 24 * L * D * D * (end - start)
    attention = 4 * L * D * columns_attended(start, end)
    return rows * (blocks + attention + 2 * V * D * logits)


def sampling(shape: GPTConfig, case: Case) -> int:
    """Prompts once, then every response token but the last; logits for each response token."""
    P, T = case.prompt_tokens, case.new_tokens
    prompts = forward(shape, case.prompts, 0, P, 0)
    return prompts + forward(shape, case.rows, P, P + T - 1, T)


def scoring(shape: GPTConfig, case: Case) -> int:
    """Whole rows but for the last token, which predicts nothing."""
    P, T = case.prompt_tokens, case.new_tokens
    return forward(shape, case.rows, 0, P + T - 1, T)


def operations(shape: GPTConfig, case: Case) -> int:
    """Of one repetition: a GRPO step samples, scores under the reference and updates (3 x forward)."""
    if case.task == "product":
        return 2 * case.size**3
    update = 3 * scoring(shape, case)
    return {
        "sample": sampling(shape, case),
        "update": update,
        "grpo": sampling(shape, case) + scoring(shape, case) + update,
    }[case.task]
