"""The two forms of Gao et al. 2022 (arXiv:2210.10760) for gold against d = sqrt(KL), fitted.

    best-of-n   R(d) = d (alpha - beta d)
    RL          R(d) = d (alpha - beta log d)

R is the gold reward less that of the start. Both are linear in alpha and beta, so least squares has
one solution and no starting point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from studies.bootstrap import Array, bootstrap, interval

NEAREST = 0.05  # nats; nearer points say nothing, and log d runs away
RISE = 0.01  # of gold: a smaller fall of best-of-n is not called one


def best_of_n_form(d: Array) -> Array:
    """The columns (d, -d^2) that alpha and beta multiply, (points, 2)."""
    return np.stack([d, -(d**2)], axis=1)


def rl_form(d: Array) -> Array:
    """The columns (d, -d log d), (points, 2)."""
    return np.stack([d, -d * np.log(d)], axis=1)


FORMS: dict[str, Callable[[Array], Array]] = {"best of n": best_of_n_form, "RL": rl_form}


@dataclass(frozen=True)
class Fit:
    """alpha and beta of one form, and what they leave."""

    alpha: float
    beta: float
    rmse: float  # of the gold reward
    residuals: list[float]  # gold - form, by rising d

    @property
    def by_thirds(self) -> list[float]:
        """Mean residual of the nearest, middle and farthest third: a form that fits has three zeros."""
        thirds = np.array_split(np.array(self.residuals), 3)
        return [float(third.mean()) if len(third) else math.nan for third in thirds]


def fit(form: str, kl: Array, gain: Array) -> Fit:
    """Least squares of one form on points (kl, gain), (points,) each; needs two farther than NEAREST."""
    far = kl > NEAREST
    d, gain = np.sqrt(kl[far]), gain[far]
    if len(d) < 2:
        raise ValueError(f"a fit needs two points beyond {NEAREST} nats: got {len(d)}")
    columns = FORMS[form](d)
    (alpha, beta), *_ = np.linalg.lstsq(columns, gain, rcond=None)
    left = gain - columns @ np.array([alpha, beta])
    order = np.argsort(d)
    rmse = float(np.sqrt(np.mean(left**2)))
    return Fit(float(alpha), float(beta), rmse, [float(x) for x in left[order]])


def peak(form: str, alpha: float, beta: float) -> tuple[float, float]:
    """(d, gain) where the fitted form is highest; d is infinite where it never turns (beta <= 0)."""
    if beta <= 0:
        return math.inf, math.inf
    d = alpha / (2 * beta) if form == "best of n" else math.exp(alpha / beta - 1)
    return d, float(FORMS[form](np.array([d]))[0] @ np.array([alpha, beta]))


def pooled_fit(form: str, runs: Sequence[Sequence[Array]], draws: int = 300) -> dict[str, Any]:
    """One fit through the points of several runs, with 95% intervals over runs and prompts.

    A run is (kl, gain): (points, P) each, or for best-of-n kl as (points, 1).
    """

    def points(picked: Sequence[Sequence[Array]]) -> tuple[Array, Array]:
        kl = np.concatenate([run[0].mean(axis=1) for run in picked])
        return kl, np.concatenate([run[1].mean(axis=1) for run in picked])

    def statistic(picked: Sequence[Sequence[Array]]) -> Array:
        found = fit(form, *points(picked))
        return np.array([found.alpha, found.beta])

    best = fit(form, *points(runs))
    draws_of = bootstrap(runs, statistic, draws=draws)
    d, gain = peak(form, best.alpha, best.beta)
    return {
        "alpha": best.alpha, "alpha_interval": interval(draws_of[:, 0]),
        "beta": best.beta, "beta_interval": interval(draws_of[:, 1]),
        "rmse": best.rmse, "residual_thirds": best.by_thirds,
        "peak_d": d if math.isfinite(d) else None,
        "peak_gain": gain if math.isfinite(gain) else None,
    }  # fmt: skip


def slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Least-squares slope of y on x and its standard error, of three points or more."""
    a, b = np.array(x, float), np.array(y, float)
    centred = a - a.mean()
    value = float(centred @ b / (centred @ centred))
    left = b - b.mean() - value * centred
    error = math.sqrt(float(left @ left) / (len(a) - 2) / float(centred @ centred))
    return value, error
