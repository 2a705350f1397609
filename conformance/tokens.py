"""Log-probabilities of tokens, where a response ends, and the rewards of its tokens."""

from __future__ import annotations

import torch

from .checking import ANY, Arguments, Case, Kind
from .comparing import ragged_mask, random_log_probs
from .kl import absolute, k2, k3
from .ways import ways


def pick(log_probs, tokens):
    return log_probs.gather(2, tokens[..., None])[..., 0]


def log_probs(logits, tokens, mask=None, temperature=1.0):
    return pick((logits[:, :-1] / temperature).log_softmax(-1), tokens[:, 1:])


def tempered_late(logits, tokens, mask=None, temperature=1.0):
    return log_probs(logits, tokens) / temperature


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


# Column 0 says 1/2, 1/4, 1/4, column 1 says 1/4, 1/2, 1/4; the last column is never asked.
TABLE = torch.tensor([[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.2, 0.2, 0.6]]]).log() + 1.0
LOG_PROBS = Kind(
    name="log_probs",
    about="log-probs of tokens[:, 1:], (N, S - 1), from logits (N, S, V); or their sums over the mask",
    known=ways("log_probs", log_probs=log_probs),
    mistakes=ways(
        "log_probs mistakes",
        one_column_late=lambda z, y, m=None, t=1.0: pick((z[:, 1:] / t).log_softmax(-1), y[:, 1:]),
        own_token=lambda z, y, m=None, t=1.0: pick((z[:, :-1] / t).log_softmax(-1), y[:, :-1]),
        temperature_forgotten=lambda z, y, m=None, t=1.0: log_probs(z, y),
        temperature_multiplied=lambda z, y, m=None, t=1.0: log_probs(z, y, m, 1 / t),
        temperature_late=tempered_late,
        logits_themselves=lambda z, y, m=None, t=1.0: pick(z[:, :-1] / t, y[:, 1:]),
        probabilities=lambda *a: log_probs(*a).exp(),
        surprise=lambda *a: -log_probs(*a),
        likeliest=lambda z, y, m=None, t=1.0: (z[:, :-1] / t).log_softmax(-1).amax(-1),
        over_the_columns=lambda z, y, m=None, t=1.0: pick((z[:, :-1] / t).log_softmax(1), y[:, 1:]),
        without_gradient=lambda *a: log_probs(*a).detach(),
    ),
    cases=(
        Case(
            "one token, worked by hand",
            {"logits": TABLE[:, :2], "tokens": torch.tensor([[2, 0]])},
            [[-0.693147]],
        ),
        Case(
            "two tokens, worked by hand",
            {"logits": TABLE, "tokens": torch.tensor([[2, 0, 1]])},
            [[-0.693147, -0.693147]],
        ),
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


def mask_case(about: str, tokens: list[int], wanted: list[bool]) -> Case:
    return Case(about, {"tokens": torch.tensor([tokens]), "eos_id": 0}, [wanted])


RESPONSE_MASK = Kind(
    name="response_mask",
    about="True for every token up to and including the first EOS",
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
    cases=(
        mask_case(
            "an empty answer: the EOS alone", [0, 7, 8, 9, 9], [True, False, False, False, False]
        ),
        mask_case("stops at the third token", [7, 8, 0, 9, 0], [True, True, True, False, False]),
        mask_case("never stops", [7, 8, 9, 7, 8], [True, True, True, True, True]),
    ),
    random=sampled,
)


# --- rewards of tokens --------------------------------------------------------------------------------


def at_column(scores, mask):
    """The scores at each row's last valid token."""
    last = (mask.long() * torch.arange(1, mask.shape[1] + 1)).argmax(1)
    placed = torch.zeros(mask.shape, dtype=scores.dtype)
    placed[torch.arange(len(scores)), last] = scores
    return placed.where(mask.any(1, keepdim=True), torch.zeros_like(placed))


def paid(scores, penalty, mask, beta):
    return torch.where(mask, -beta * penalty, 0.0) + at_column(scores, mask)


def token_rewards(s, new, ref, mask, beta):
    return paid(s, new - ref, mask, beta).detach()


def total_at_the_end(s, new, ref, mask, beta):
    return at_column(token_rewards(s, new, ref, mask, beta).sum(1), mask)


def mean_at_the_end(s, new, ref, mask, beta):
    mean = torch.where(mask, new - ref, 0.0).sum(1) / mask.sum(1).clamp(min=1)
    return at_column(s - beta * mean, mask)


def last_column(s, new, ref, mask, beta):
    rewards = torch.where(mask, -beta * (new - ref), 0.0)
    rewards[:, -1] += s
    return rewards


def last_not_charged(s, new, ref, mask, beta):
    placed = at_column(s, mask)
    return torch.where(
        at_column(torch.ones_like(s), mask) > 0, placed, paid(0 * s, new - ref, mask, beta)
    )


def paying(generator: torch.Generator) -> Arguments:
    mask = ragged_mask(generator, 4, 6)
    mask[0, 2:] = False
    return {
        "scores": torch.randn(4, generator=generator),
        "log_probs": random_log_probs(generator, 4, 6),
        "ref_log_probs": random_log_probs(generator, 4, 6),
        "mask": mask,
        "kl_coef": 0.1,
    }


TOKEN_REWARDS = Kind(
    name="token_rewards",
    about="-kl_coef KL at every token, and the score at the last valid one",
    known=ways(
        "token_rewards",
        token_rewards=token_rewards,
        mean_at_the_end=mean_at_the_end,
        absolute_penalty=lambda s, new, ref, m, b: paid(s, absolute(new, ref), m, b),
        squared_penalty=lambda s, new, ref, m, b: paid(s, k2(new, ref), m, b),
    ),
    mistakes=ways(
        "token_rewards mistakes",
        paid_for_drifting=lambda s, new, ref, m, b: paid(s, ref - new, m, b),
        score_in_the_padding=last_column,
        score_at_every_token=lambda s, new, ref, m, b: torch.where(
            m, s[:, None] - b * (new - ref), 0.0
        ),
        penalty_at_the_end=total_at_the_end,
        divided_by_the_length=lambda s, new, ref, m, b: paid(
            s, (new - ref) / m.sum(1, keepdim=True), m, b
        ),
        last_token_not_charged=last_not_charged,
        coefficient_forgotten=lambda s, new, ref, m, b: paid(s, new - ref, m, 1.0),
        k3_in_the_reward=lambda s, new, ref, m, b: paid(s, k3(new, ref), m, b),
    ),
    cases=(
        Case(
            "responses of 3 tokens and of 1",
            {
                "scores": torch.tensor([1.0, 0.5]),
                "log_probs": torch.tensor([[-1.0, -0.5, -2.0], [-0.3, 9.0, 9.0]]),
                "ref_log_probs": torch.tensor([[-1.2, -1.0, -1.9], [-0.5, 5.0, 5.0]]),
                "mask": torch.tensor([[True, True, True], [True, False, False]]),
                "kl_coef": 0.1,
            },
            [[-0.02, -0.05, 1.01], [0.48, 0.0, 0.0]],
        ),
    ),
    random=paying,
    constant=True,
)
