"""Log-probabilities of tokens, where a response ends, and the rewards of its tokens."""

from __future__ import annotations

import torch

from .batches import Arguments, some
from .checking import ANY, Kind
from .kl import absolute, k1, k2, k3
from .ways import ways


def pick(logits, tokens, over=-1):
    return logits.log_softmax(over).gather(2, tokens[..., None])[..., 0]


def log_probs(logits, tokens, mask, temperature):
    return pick(logits[:, :-1] / temperature, tokens[:, 1:])


def scored(generator: torch.Generator) -> Arguments:
    prompt = torch.randint(0, 3, (3, 1), generator=generator)
    lengths = torch.tensor([[3], [1], [2]])
    column = torch.arange(5)
    return {
        "logits": 2 * torch.randn(3, 6, 5, generator=generator),
        "tokens": torch.randint(0, 5, (3, 6), generator=generator),
        "mask": (column >= prompt) & (column < prompt + lengths),
        "temperature": (1.0, 0.7)[int(torch.randint(2, (1,), generator=generator))],
    }


LOG_PROBS = Kind(
    name="log_probs",
    known=ways("log_probs", log_probs=log_probs),
    mistakes=ways(
        "log_probs mistakes",
        one_column_late=lambda z, y, m, t: pick(z[:, 1:] / t, y[:, 1:]),
        own_token=lambda z, y, m, t: pick(z[:, :-1] / t, y[:, :-1]),
        temperature_forgotten=lambda z, y, m, t: log_probs(z, y, m, 1.0),
        temperature_multiplied=lambda z, y, m, t: log_probs(z, y, m, 1 / t),
        temperature_late=lambda z, y, m, t: log_probs(z, y, m, 1.0) / t,
        logits_themselves=lambda z, y, m, t: (z[:, :-1] / t).gather(2, y[:, 1:, None])[..., 0],
        probabilities=lambda *a: log_probs(*a).exp(),
        surprise=lambda *a: -log_probs(*a),
        likeliest=lambda z, y, m, t: (z[:, :-1] / t).log_softmax(-1).amax(-1),
        over_the_columns=lambda z, y, m, t: pick(z[:, :-1] / t, y[:, 1:], over=1),
        without_gradient=lambda *a: log_probs(*a).detach(),
    ),
    random=scored,
    optional={"mask": ANY, "temperature": 1.0},
    gradients=("logits",),
    loss=True,
    rows=False,
)


# --- where a response ends ----------------------------------------------------------------------------


def response_mask(tokens, eos_id):
    is_eos = (tokens == eos_id).long()
    return is_eos.cumsum(1) - is_eos == 0  # no EOS strictly before


def one_column_late(tokens, eos_id):
    mask = response_mask(tokens, eos_id)
    return torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], 1)


def up_to_the_last_eos(tokens, eos_id):
    is_eos = tokens == eos_id
    return (is_eos.flip(1).cumsum(1).flip(1) > 0) | ~is_eos.any(1, keepdim=True)


def last_token_of_a_cut_row(tokens, eos_id):
    mask = response_mask(tokens, eos_id)
    mask[~(tokens == eos_id).any(1), -1] = False
    return mask


def sampled(generator: torch.Generator) -> Arguments:
    tokens = torch.randint(0, 5, (5, 7), generator=generator)
    tokens[0] = tokens[0].clamp(min=1)  # never stops
    tokens[1, 1], tokens[1, -1] = 0, 0  # stops, and says EOS once more
    return {"tokens": tokens, "eos_id": 0}


RESPONSE_MASK = Kind(
    name="response_mask",
    known=ways("response_mask", response_mask=response_mask),
    mistakes=ways(
        "response_mask mistakes",
        not_eos=lambda y, eos: y != eos,
        without_the_eos=lambda y, eos: (y == eos).cumsum(1) == 0,
        one_column_late=one_column_late,
        up_to_the_last_eos=up_to_the_last_eos,
        all_columns=lambda y, eos: torch.ones_like(y, dtype=torch.bool),
        last_token_of_a_cut_row=last_token_of_a_cut_row,
        inverted=lambda y, eos: ~response_mask(y, eos),
    ),
    random=sampled,
)


# --- rewards of tokens --------------------------------------------------------------------------------


def at_column(scores, mask):
    """The scores at each row's last valid token."""
    last = (mask.long() * torch.arange(1, mask.shape[1] + 1)).argmax(1, keepdim=True)
    placed = torch.zeros(mask.shape, dtype=scores.dtype).scatter(1, last, scores[:, None])
    return torch.where(mask.any(1, keepdim=True), placed, 0.0)


def charged(penalty, mask, beta):
    return torch.where(mask, -beta * penalty, 0.0)


def paying(penalty):
    """A penalty per token, and the score at the last valid one."""
    return lambda s, new, ref, mask, beta: (
        charged(penalty(new, ref), mask, beta) + at_column(s, mask)
    ).detach()


def total_at_the_end(s, new, ref, mask, beta):
    return at_column(s + charged(new - ref, mask, beta).sum(1), mask)


def mean_at_the_end(s, new, ref, mask, beta):
    return at_column(s + charged(new - ref, mask, beta).sum(1) / mask.sum(1).clamp(min=1), mask)


def last_column(s, new, ref, mask, beta):
    rewards = charged(new - ref, mask, beta)
    rewards[:, -1] += s
    return rewards


def last_not_charged(s, new, ref, mask, beta):
    last = at_column(torch.ones_like(s), mask) > 0
    return torch.where(last, at_column(s, mask), charged(new - ref, mask, beta))


TOKEN_REWARDS = Kind(
    name="token_rewards",
    random=some("scores log_probs ref_log_probs mask kl_coef"),
    known=ways(
        "token_rewards",
        token_rewards=paying(k1),
        mean_at_the_end=mean_at_the_end,
        absolute_penalty=paying(absolute),
        squared_penalty=paying(k2),
    ),
    mistakes=ways(
        "token_rewards mistakes",
        paid_for_drifting=paying(lambda new, ref: ref - new),
        score_in_the_padding=last_column,
        score_at_every_token=lambda s, new, ref, m, b: torch.where(
            m, s[:, None] - b * (new - ref), 0.0
        ),
        penalty_at_the_end=total_at_the_end,
        divided_by_the_length=lambda s, new, ref, m, b: (
            charged((new - ref) / m.sum(1, keepdim=True), m, b) + at_column(s, m)
        ),
        last_token_not_charged=last_not_charged,
        coefficient_forgotten=lambda s, new, ref, m, b: paying(k1)(s, new, ref, m, 1.0),
        k3_in_the_reward=paying(k3),
    ),
    constant=True,
)
