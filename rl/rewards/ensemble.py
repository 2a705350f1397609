"""An ensemble of reward models as the reward: what one of them overrates, the others may not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from data.collate import ResponseBatch
from gpt.log_probs import score_in_micro_batches
from harness.device import precision
from reward_model.scalar_head import RewardModel
from rl.batches.rollout import Rollout
from rl.equations.ensembles import ensemble_mean, worst_case
from rl.rewards.sources import MadeOf, prefix_scores

Combine = Literal["mean", "min"]


class EnsembleReward:
    """Several reward models' scores of a rollout, combined into one reward per response, (N,).

    mean: their mean. min: the lowest (WCO; Coste et al. 2024, arXiv:2310.02743). All members must share
    the policy's tokenizer.

    With `reference` each member is standardised on those responses, so that what is left between them
    is disagreement. They are fixed, and not the rollout: a reward that is centred on every batch could
    not rise.
    """

    def __init__(
        self,
        models: Sequence[RewardModel],
        *,
        combine: Combine = "mean",
        reference: ResponseBatch | None = None,
        micro_batch_size: int = 64,
        dtype: str = "float32",
    ) -> None:
        if len(models) < 2:
            raise ValueError(f"an ensemble needs at least 2 reward models: got {len(models)}")
        if combine not in ("mean", "min"):
            raise ValueError(f'combine must be "mean" or "min": got {combine!r}')
        self.models, self.combine = list(models), combine
        self.micro_batch_size, self.dtype = micro_batch_size, dtype
        self.name = f"{combine} of {len(models)} reward models"
        if reference is not None:
            for model in self.models:
                with precision(model.device, dtype):
                    model.normalize_on(reference.to(model.device), micro_batch_size)

    @property
    def made_of(self) -> MadeOf:
        """Its members; of each token the first one says what it thinks."""
        return MadeOf(
            reward_models=tuple(self.models), token_columns=partial(prefix_scores, self.models[0])
        )

    def __call__(self, rollout: Rollout) -> Tensor:
        return self.with_metrics(rollout)[0]

    @torch.no_grad()
    def with_metrics(self, rollout: Rollout) -> tuple[Tensor, dict[str, float]]:
        """Rewards (N,), and how far the members are apart (docs/metrics.md, "Ensembles")."""
        members = []
        for model in self.models:
            with precision(model.device, self.dtype):
                members.append(
                    score_in_micro_batches(model, rollout.sequences, self.micro_batch_size)
                )
        scores = torch.stack(members)  # (K, N)
        combined = {"mean": ensemble_mean, "min": worst_case}[self.combine]
        return combined(scores), {
            "ensemble_mean": float(scores.mean()),
            "ensemble_spread": float(scores.std(0).mean()),
        }
