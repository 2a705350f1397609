"""From losses per token to one number: what is in use, and what goes wrong.

A reducer takes the token losses (N, T), their mask, and the generation budget where one is given.
"""

from __future__ import annotations

import torch

from .ways import ways


def kept(x, mask):
    """The losses with 0 at masked places, and the mask; without a mask each row is one thing."""
    x = x if x.ndim > 1 else x[:, None]
    mask = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
    return torch.where(mask, x, 0.0), mask


def token_mean(x, mask, *_):
    x, mask = kept(x, mask)
    return x.sum() / mask.sum().clamp(min=1)


def row_means(x, mask, *_):
    x, mask = kept(x, mask)
    return x.sum(1) / mask.sum(1).clamp(min=1)


def row_sums(x, mask, *_):
    return kept(x, mask)[0].sum(1)


def last_token_left_out(x, mask, *_):
    mask = kept(x, mask)[1]
    return token_mean(x, mask.roll(-1, 1) & mask)


KNOWN_REDUCERS = {
    "scalar": ways(
        "reducers",
        token_mean=token_mean,
        sequence_mean=lambda x, mask, *_: row_means(x, mask).mean(),
        sequence_sum=lambda x, mask, *_: row_sums(x, mask).mean(),
        constant_length=lambda x, mask, length: row_sums(x, mask).mean() / (length or float("nan")),
        batch_sum=lambda x, mask, *_: row_sums(x, mask).sum(),
    ),
    "row": ways("reducers", row_means=row_means, row_sums=row_sums),
    "pairs": ways("reducers", mean=token_mean, sum=lambda x, *_: x.sum()),
}
WRONG_REDUCERS = {
    "scalar": ways(
        "wrong reducers",
        padding_in_the_denominator=lambda x, mask, *_: kept(x, mask)[0].mean(),
        padding_in_both=lambda x, *_: x.mean(),
        padding_in_the_numerator=lambda x, mask, *_: x.sum() / kept(x, mask)[1].sum(),
        padding_in_the_sum=lambda x, *_: x.sum(),
        divided_by_the_width=lambda x, mask, *_: row_sums(x, mask).sum() / x.shape[1],
        mean_of_column_means=lambda x, mask, *_: row_means(*[y.T for y in kept(x, mask)]).mean(),
        last_token_left_out=last_token_left_out,
    ),
    "row": ways("wrong reducers", row_padding=lambda x, *_: x.mean(1)),
}
