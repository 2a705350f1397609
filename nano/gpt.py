"""What the one-paper files share: a GPT-2, sampling, log-probs, and a world that is learned in seconds.

A row is [prompt, answer, padding] from column 0 on. Nothing looks at the padding, because attention
only looks back. Logits at column j predict the token at column j + 1, so every number about tokens
is (N, S - 1): entry j is about token j + 1. The mask of that shape is True at the answer's tokens.

The world: a prompt is some letters and a colon, such as "bf:". The more letters of an answer are
letters of its prompt, the better the answer.
"""

import math
import random
import zlib

import torch
import torch.nn as nn

# --- GPT-2 --------------------------------------------------------------------------------------


class Block(nn.Module):
    """x + attention(LayerNorm(x)), then x + MLP(LayerNorm(x)); (N, S, D) -> (N, S, D)."""

    def __init__(self, D, n_head):
        super().__init__()
        self.n_head, self.ln_1, self.ln_2 = n_head, nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = nn.ModuleDict(dict(c_attn=nn.Linear(D, 3 * D), c_proj=nn.Linear(D, D)))
        self.mlp = nn.ModuleDict(dict(c_fc=nn.Linear(D, 4 * D), c_proj=nn.Linear(4 * D, D)))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        inner = nn.functional.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh")
        return x + self.mlp.c_proj(inner)

    def attention(self, x):
        """softmax(Q K^T / sqrt(d)) V in each of H heads of width d; a column sees no later one."""
        N, S, D = x.shape
        heads = self.attn.c_attn(x).view(N, S, 3, self.n_head, D // self.n_head)
        Q, K, V = heads.permute(2, 0, 3, 1, 4)  # each (N, H, S, d)
        scores = Q @ K.transpose(-2, -1) / math.sqrt(D // self.n_head)  # (N, H, S, S)
        later = torch.ones(S, S, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return self.attn.c_proj((weights @ V).transpose(1, 2).reshape(N, S, D))


class GPT(nn.Module):
    """GPT-2: learned positions, and an output head that is the token embedding."""

    def __init__(self, vocab_size, context, n_layer=2, n_head=2, n_embd=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(context, n_embd)
        self.h = nn.ModuleList(Block(n_embd, n_head) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)

    def hidden(self, tokens):
        """tokens (N, S) -> (N, S, D), what every head reads."""
        S = tokens.shape[1]
        if S > len(self.wpe.weight):
            raise ValueError(f"{S} tokens exceed the context, {len(self.wpe.weight)}: use fewer")
        if tokens.max() >= len(self.wte.weight):
            raise ValueError(f"token {tokens.max()} is not in the vocabulary: give the model more")
        x = self.wte(tokens) + self.wpe(torch.arange(S))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)

    def forward(self, tokens):
        """Logits (N, S, V)."""
        return self.hidden(tokens) @ self.wte.weight.T


# --- Rows, sampling, log-probs ------------------------------------------------------------------


def collate(rows):
    """[(prompt, answer)], strings -> tokens (N, S), padded, and the mask of the answers (N, S - 1)."""
    starts = torch.tensor([[len(prompt)] for prompt, _ in rows])
    ends = torch.tensor([[len(prompt + answer)] for prompt, answer in rows])
    texts = [(prompt + answer).ljust(ends.max(), END) for prompt, answer in rows]
    unknown = set("".join(texts)) - set(LETTERS)
    if unknown or starts.min() < 1:
        raise ValueError(f"a prompt needs letters of {LETTERS!r}: {unknown or 'one is empty'}")
    tokens = torch.tensor([[LETTERS.index(letter) for letter in text] for text in texts])
    columns = torch.arange(1, tokens.shape[1])
    return tokens, (columns >= starts) & (columns < ends)


def decode(tokens, mask):
    """The answers of some rows as strings, with the END of those that ended."""
    rows = zip(tokens[:, 1:], mask, strict=True)
    return ["".join(LETTERS[token] for token in row[answer]) for row, answer in rows]


@torch.no_grad()
def sample(policy, prompts, max_new_tokens, generator):
    """One answer to each prompt, a string: tokens (N, S) and the mask of the answers (N, S - 1)."""
    tokens, mask = collate([(prompt, END * max_new_tokens) for prompt in prompts])
    uniforms = torch.rand(len(prompts), max_new_tokens, generator=generator)
    rows, columns = torch.arange(len(prompts)), torch.tensor([len(prompt) for prompt in prompts])
    for t in range(max_new_tokens):
        summed = policy(tokens)[rows, columns + t - 1].softmax(-1).cumsum(-1)  # (N, V)
        passed = uniforms[:, t : t + 1] * summed[:, -1:]
        drawn = torch.searchsorted(summed, passed, right=True)[:, 0]  # the first token beyond it
        tokens[rows, columns + t] = drawn.clamp(max=summed.shape[1] - 1)
    ended = (tokens[:, 1:] == LETTERS.index(END)) & mask
    return tokens, mask & (ended.cumsum(1) - ended.long() == 0)  # up to the first END, inclusive


def log_probs(policy, tokens):
    """log pi of each token after the first, given those before it: (N, S) -> (N, S - 1)."""
    predicted = policy(tokens)[:, :-1].log_softmax(-1)  # (N, S - 1, V)
    return predicted.gather(-1, tokens[:, 1:, None])[:, :, 0]


def generator(seed, purpose):
    """Random numbers of its own for each purpose, so that none disturbs another."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}:{purpose}".encode()))


def shuffled(rows, start, count, seed):
    """`count` rows from place `start` on; each row comes once, in a new order, before any returns."""
    chosen = []
    for place in range(start, start + count):
        epoch = torch.Generator().manual_seed(seed * 1_000_003 + place // len(rows))
        chosen.append(rows[torch.randperm(len(rows), generator=epoch)[place % len(rows)]])
    return chosen


# --- The world ----------------------------------------------------------------------------------

LETTERS = "abcdefgh:."  # a letter's place is its token
END = "."  # every answer's last letter, unless it was cut off
PROMPTS = [f"{a}{b}:" if a < b else f"{a}:" for a in "abcdefgh" for b in "abcdefgh" if a <= b]


def gold(prompt, answer):
    """What an answer is worth: an eighth for each of its letters that its prompt names."""
    return sum(letter in prompt[:-1] for letter in answer) / 8


def text(index, good=0.25, rows=32):
    """Batch `index` of (prompt, answer); this share of the answers has letters of its prompt alone."""
    chance, batch = random.Random(index), []
    for prompt in chance.choices(PROMPTS, k=rows):
        letters = prompt[:-1] if chance.random() < good else "abcdefgh"
        batch.append((prompt, "".join(chance.choices(letters, k=chance.randint(1, 7))) + END))
    return batch


def pretrained(good=0.25, steps=150):
    """A GPT that has learned to write such text, in a few seconds; with good=1 it is a teacher."""
    torch.manual_seed(0)
    model = GPT(len(LETTERS), context=16)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        tokens, mask = collate(text(step, good))
        optimizer.zero_grad()
        (-log_probs(model, tokens)[mask].mean()).backward()
        optimizer.step()
    return model


def report(rows, **numbers):
    """Keep the mean of each list or tensor of a step, and print those of every tenth step."""
    means = {k: x.mean() if torch.is_tensor(x) else sum(x) / len(x) for k, x in numbers.items()}
    rows.append({name: float(mean) for name, mean in means.items()})
    if len(rows) % 10 == 1:
        print(f"step {len(rows):3d} ", *(f" {name} {x:.4f}" for name, x in rows[-1].items()))


def show(policy):
    """Print one answer to each of some prompts, and what all answers are worth on average."""
    answers = decode(*sample(policy, PROMPTS, 8, generator(0, "show")))
    print(*(prompt + answer for prompt, answer in zip(PROMPTS[:6], answers, strict=False)))
    print("gold", sum(map(gold, PROMPTS, answers)) / len(PROMPTS))
