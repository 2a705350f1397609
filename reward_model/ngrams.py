"""Logistic regression on n-gram counts: the baseline that any classifier of text has to face.

Each text becomes the set of its words and pairs of neighbouring words, hashed to a fixed number of
columns with a weight each (Wang and Manning 2012, "Baselines and Bigrams", found such models hard to
beat on film reviews). It shares nothing with a language model, so it is an independent judge, too.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

COLUMNS = 2**18
WORDS = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[!?]")


def features(text: str) -> list[int]:
    """The columns of a text: each word and each pair of neighbours once, lower case."""
    words = WORDS.findall(text.lower())
    grams = {*words, *(f"{a} {b}" for a, b in zip(words, words[1:], strict=False))}
    return sorted({zlib.crc32(gram.encode("utf-8")) % COLUMNS for gram in grams})


class NgramRegression:
    """weights (COLUMNS,) and a bias; a text's score is the sum of its columns' weights over sqrt(n).

    The root keeps the scale of scores alike for texts of different lengths.
    """

    def __init__(self) -> None:
        self.weight = torch.zeros(COLUMNS + 1)  # the bias last

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """The log-odds that each text is good, (N,)."""
        return scores_of(self.weight, *bags([features(text) for text in texts]))

    @torch.enable_grad()  # also while others only measure
    def fit(
        self,
        texts: Sequence[str],
        labels: Sequence[bool],
        *,
        epochs: int = 5,
        batch_size: int = 256,
        lr: float = 0.1,
        decay: float = 2e-5,
        seed: int = 0,
    ) -> NgramRegression:
        """Minimise the binary cross-entropy plus `decay` |weight|^2 / 2 with Adam; returns self."""
        columns, wanted = [features(text) for text in texts], torch.tensor(labels).float()
        weight = torch.zeros(COLUMNS + 1, requires_grad=True)
        optimizer = torch.optim.Adam([weight], lr=lr)
        steps = math.ceil(len(texts) / batch_size)
        generator = torch.Generator().manual_seed(seed)
        for epoch in range(epochs):
            for group in optimizer.param_groups:
                group["lr"] = lr * (1 - epoch / epochs)
            order = torch.randperm(len(texts), generator=generator)
            for rows in order.chunk(steps):
                scores = scores_of(weight, *bags([columns[i] for i in rows.tolist()]))
                loss = F.binary_cross_entropy_with_logits(scores, wanted[rows])
                optimizer.zero_grad(set_to_none=True)
                (loss + decay / 2 * weight.square().sum()).backward()
                optimizer.step()
        self.weight = weight.detach()
        return self


def bags(columns: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Lists of columns as `embedding_bag` takes them: all in a row, and where each list starts."""
    lengths = torch.tensor([0, *(len(row) for row in columns)])
    flat = torch.tensor([column for row in columns for column in row], dtype=torch.long)
    return flat, lengths.cumsum(0)


def scores_of(weight: Tensor, flat: Tensor, ends: Tensor) -> Tensor:
    """The scores (N,) of N bags, ends (N + 1,), with the bias as the last weight."""
    sums = F.embedding_bag(
        flat, weight[:-1, None], ends, mode="sum", include_last_offset=True
    ).squeeze(1)
    return sums / (ends[1:] - ends[:-1]).clamp(min=1).sqrt() + weight[-1]
