"""Generalised advantage estimation, token by token from the end."""

import torch

from conformance.kinds import KINDS
from course.exercises import Exercise, shared
from rl.equations import advantages as library


def gae(rewards, values, mask, gamma, lam):
    rows, columns = values.shape
    advantages = torch.zeros(rows, columns)
    A, V = torch.zeros(rows), torch.zeros(rows)  # of the next token; 0 after the end
    for t in reversed(range(columns)):
        delta = rewards[:, t] + gamma * V - values[:, t]
        A = torch.where(mask[:, t], delta + gamma * lam * A, A)
        V = torch.where(mask[:, t], values[:, t], V)
        advantages[:, t] = torch.where(mask[:, t], A, 0.0)
    return advantages


def by_library(rewards, values, mask, gamma, lam):
    return library.gae(rewards, values, mask, gamma, lam)[0]


EXERCISE = Exercise(
    statement=(
        "From token_rewards and values (N, T), response_mask (N, T), gamma and lam, compute "
        "delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lam A_{t+1}, from the last "
        "token back; V and A are 0 after the end, and the result is 0 in the padding."
    ),
    solution=gae,
    library=by_library,
    cases=KINDS["gae"].cases,
    random=KINDS["gae"].random,
    mask="mask",
    mistakes=shared(
        "gae",
        "monte_carlo one_step returns padding_valued padding_rewarded without_gamma_in_the_sum "
        "wrong_way_round value_not_subtracted",
    ),
)
