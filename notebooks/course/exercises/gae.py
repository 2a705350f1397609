"""Generalised advantage estimation, token by token from the end."""

import torch

from course.exercises import Arguments, Case, Exercise, ragged_mask
from course.mistakes import mistake
from rl.equations import advantages as library


def gae(token_rewards, values, response_mask, gamma, lam):
    rows, columns = values.shape
    advantages = torch.zeros(rows, columns)
    A, V = torch.zeros(rows), torch.zeros(rows)  # of the next token; 0 after the end
    for t in reversed(range(columns)):
        delta = token_rewards[:, t] + gamma * V - values[:, t]
        A = torch.where(response_mask[:, t], delta + gamma * lam * A, A)
        V = torch.where(response_mask[:, t], values[:, t], V)
        advantages[:, t] = torch.where(response_mask[:, t], A, 0.0)
    return advantages


def by_library(token_rewards, values, response_mask, gamma, lam):
    return library.gae(token_rewards, values, response_mask, gamma, lam)[0]


@mistake
def monte_carlo(r, values, mask, gamma, lam):
    """lambda is missing: this is the whole return minus the value, which is lambda = 1."""
    return gae(r, values, mask, gamma, 1.0)


@mistake
def one_step(r, values, mask, gamma, lam):
    """this is delta alone, which is lambda = 0. Add gamma lam A of the next token."""
    return gae(r, values, mask, gamma, 0.0)


@mistake
def returns(r, values, mask, gamma, lam):
    """these are the returns, A + V: what the critic learns. The advantage is without V."""
    return torch.where(mask, gae(r, values, mask, gamma, lam) + values, 0.0)


@mistake
def padding_valued(r, values, mask, gamma, lam):
    """the value after the last token must be 0, because the response has ended. You use what stands
    in the padding."""
    whole = torch.ones_like(mask)
    return torch.where(mask, gae(torch.where(mask, r, 0.0), values, whole, gamma, lam), 0.0)


@mistake
def padding_rewarded(r, values, mask, gamma, lam):
    """the padding takes part, with its rewards and its values. Step over it."""
    return torch.where(mask, gae(r, values, torch.ones_like(mask), gamma, lam), 0.0)


@mistake
def without_lambda_in_the_sum(r, values, mask, gamma, lam):
    """the advantage to come is weighted with gamma lam, both of them."""
    return (
        gae(r, values, mask, gamma, 1.0) if lam == 0 else gae(r, values, mask, gamma, lam / gamma)
    )


@mistake
def wrong_way_round(r, values, mask, gamma, lam):
    """you add up from the first token on. A token has earned what comes after it: begin at the
    end."""
    following = torch.cat([values[:, 1:] * mask[:, 1:], torch.zeros(len(values), 1)], 1)
    delta = torch.where(mask, r + gamma * following - values, 0.0)
    total, sums = torch.zeros(len(values)), []
    for t in range(values.shape[1]):
        total = delta[:, t] + gamma * lam * total
        sums.append(total)
    return torch.where(mask, torch.stack(sums, 1), 0.0)


@mistake
def value_not_subtracted(r, values, mask, gamma, lam):
    """no value takes part: without it this is a discounted reward to come."""
    return gae(r, torch.zeros_like(values), mask, gamma, lam)


def ragged(generator: torch.Generator) -> Arguments:
    mask = ragged_mask(generator, 3, 6)
    mask[0] = torch.arange(6) < 3  # one is shorter for certain
    return {
        "token_rewards": torch.randn(3, 6, generator=generator),
        "values": torch.randn(3, 6, generator=generator),
        "response_mask": mask,
        "gamma": 0.9,
        "lam": 0.8,
    }


REWARDS = torch.tensor([[-0.1, 0, 0.2, 1], [0, 1, 9, 9]])


VALUES = torch.tensor([[0.5, 0.4, 0.3, 0.2], [0.6, 0.5, 7, 7]])


MASK = torch.tensor([[True] * 4, [True, True, False, False]])


def case(about: str, gamma: float, lam: float, wanted: list[list[float]]) -> Case:
    """Two responses, of four tokens and of two, with nines and sevens in the padding."""
    arguments = {"token_rewards": REWARDS, "values": VALUES, "response_mask": MASK}
    return Case(about, arguments | {"gamma": gamma, "lam": lam}, wanted)


EXERCISE = Exercise(
    statement=(
        "From token_rewards and values (N, T), response_mask (N, T), gamma and lam, compute "
        "delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lam A_{t+1}, from the last "
        "token back; V and A are 0 after the end, and the result is 0 in the padding."
    ),
    solution=gae,
    library=by_library,
    cases=(
        case(
            "gamma 0.9, lambda 0.8", 0.9, 0.8, [[0.00647, 0.34232, 0.656, 0.8], [0.21, 0.5, 0, 0]]
        ),
        case(
            "gamma 1, lambda 1: rewards to come, less the value",
            1.0,
            1.0,
            [[0.6, 0.8, 0.9, 0.8], [0.4, 0.5, 0, 0]],
        ),
    ),
    random=ragged,
    mask="response_mask",
)
