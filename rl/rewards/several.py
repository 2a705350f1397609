"""Several rewards of a response as one: a column each, and their weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePath

import torch
from torch import Tensor

from harness.errors import UserError
from rl.batches.rollout import Rollout
from rl.equations.advantages import weighted_sum
from rl.rewards.reward import LARGEST, MadeOf, RewardFn, checked_rewards, made_of_all, row_place


def labels_of(rewards: Sequence[str]) -> list[str]:
    """Names of the columns: the shortest of function, file.function and the whole that differ."""
    split = [name.rpartition(":") for name in rewards]
    short = [end if where else PurePath(end).name for where, _, end in split]
    longer = [f"{PurePath(where).stem}.{end}" if where else end for where, _, end in split]
    return next(each for each in (short, longer, [*rewards]) if len({*each}) == len(rewards))


class SeveralRewards:
    """The weighted sum of `parts`, (N,), each by the name of its column, in `rollout.reward_columns`.

    A row that a function gave None for has NaN there, and its sum leaves that reward out, as TRL's does.
    UserError for a row that no reward with a weight judges.
    """

    def __init__(self, parts: Mapping[str, RewardFn], weights: Sequence[float] = ()) -> None:
        self.parts, self.weights = dict(parts), tuple(weights or [1.0] * len(parts))
        pairs = list(zip(self.parts.items(), self.weights, strict=True))
        self.name = " + ".join(f"{weight:g} {name}" for (name, _), weight in pairs)
        self.paid = [part for (_, part), weight in pairs if weight]

    @property
    def components(self) -> MadeOf:
        return made_of_all(self.parts.values())

    def __call__(self, rollout: Rollout) -> Tensor:
        return self.with_metrics(rollout)[0]

    @torch.no_grad()
    def with_metrics(self, rollout: Rollout) -> tuple[Tensor, dict[str, float]]:
        """Rewards (N,), and mean and spread of every column (docs/metrics.md, "Several rewards")."""
        metrics, unpaid = dict[str, float](), torch.ones_like(rollout.has_eos)
        for (name, part), weight in zip(self.parts.items(), self.weights, strict=True):
            judged = getattr(part, "judged", partial(checked_rewards, part))  # NaN for None
            rollout.reward_columns[name] = values = judged(rollout)
            large = (values * weight).abs() > LARGEST
            self._refuse(rollout, large, f"{weight:g} {name} is too large")
            none = values.isnan()
            unpaid &= none | (weight == 0)
            metrics[f"reward_none/{name}"] = int(none.sum())
            if not none.all():
                metrics[f"reward/{name}"] = float(values.nanmean())
                known = values[~none]
                metrics[f"reward_std/{name}"] = float(known.std()) if len(known) > 1 else 0.0
        self._refuse(rollout, unpaid, "every reward with a weight gave None")
        columns = torch.stack([*rollout.reward_columns.values()], 1)  # (N, K)
        return weighted_sum(columns, self.weights), metrics

    def _refuse(self, rollout: Rollout, broken: Tensor, why: str) -> None:
        if broken.any():
            place = row_place(rollout, int(broken.nonzero()[0]))
            raise UserError(f"--reward {self.name}: {why}, at {place}: mend it, or its weight")
