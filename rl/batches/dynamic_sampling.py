"""Sampling until enough groups of a step can teach something (DAPO, arXiv:2503.14476, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from data.collate import ResponseBatch
from data.records import PromptRecord
from rl.batches.rollout import Rollout, prompt_batch, select_rows

# rewards (groups, G) -> which groups to keep (groups,) bool
SAMPLING_FILTERS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda groups: torch.ones_like(groups[:, 0], dtype=torch.bool),
    "dynamic": lambda groups: groups.amax(1) > groups.amin(1),  # arXiv:2503.14476, Eq. 11
}


@dataclass
class PromptCursor:
    """Takes prompts in shuffled epochs; how many were taken is all that a resumed run needs."""

    prompts: Sequence[PromptRecord]
    seed: int
    position: int = 0

    def take(self, count: int) -> list[PromptRecord]:
        """The next `count` prompts, those of `prompt_batch` as long as every batch is full."""
        places = range(self.position, self.position + count)
        self.position += count
        return [prompt_batch(self.prompts, place, 1, self.seed)[0] for place in places]

    def state_dict(self) -> dict[str, int]:
        """The position, for a checkpoint."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from `state_dict()` of an earlier run."""
        self.position = state["position"]


@dataclass
class GroupBuffer:
    """All that one step has sampled, round by round, and which groups of it to train on."""

    missing: int  # groups that are still to be found
    rollouts: list[Rollout] = field(default_factory=list)
    rewards: list[Tensor] = field(default_factory=list)  # (n,) a round
    kept: list[Tensor] = field(default_factory=list)  # (n,) bool a round, whole groups

    @property
    def rounds(self) -> int:
        """How many rounds of sampling there were."""
        return len(self.rollouts)

    def add(self, rollout: Rollout, rewards: Tensor, groups: Tensor) -> None:
        """Add one round: its rollout, its rewards (n,), and which of its groups to keep, (n / G,) bool."""
        self.rollouts.append(rollout)
        self.rewards.append(rewards)
        self.kept.append(groups.repeat_interleave(rollout.group_size))
        self.missing -= int(groups.sum())

    def sampled(self) -> tuple[Rollout, Tensor]:
        """All N responses as one rollout, and their rewards (N,)."""
        return join_rollouts(self.rollouts), torch.cat(self.rewards)

    def to_train(self, rollout: Rollout, rewards: Tensor) -> tuple[Rollout, Tensor]:
        """The rollout and rewards of the groups to keep, which may be none."""
        kept = torch.cat(self.kept)
        if kept.all():
            return rollout, rewards
        rows = kept.nonzero()[:, 0]
        return select_rows(rollout, rows), rewards[rows]

    def metrics(self) -> dict[str, float]:
        """How much was sampled, and how many groups were dropped."""
        kept = torch.cat(self.kept)
        return {
            "sampled_responses": len(kept),
            "sampling_rounds": self.rounds,
            "dropped_groups": int((~kept).sum()) // self.rollouts[0].group_size,
        }


def join_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Several rollouts with one group size as one, padded to the longest row and response."""
    if len(rollouts) == 1:
        return rollouts[0]
    batches = [rollout.sequences for rollout in rollouts]
    return Rollout(
        records=[record for rollout in rollouts for record in rollout.records],
        responses=[response for rollout in rollouts for response in rollout.responses],
        sequences=ResponseBatch(
            tokens=_stacked([batch.tokens for batch in batches]),
            prompt_lengths=torch.cat([batch.prompt_lengths for batch in batches]),
            response_tokens=_stacked([batch.response_tokens for batch in batches]),
            response_mask=_stacked([batch.response_mask for batch in batches]),
            has_eos=torch.cat([batch.has_eos for batch in batches]),
        ),
        log_probs=_stacked([rollout.log_probs for rollout in rollouts]),
        group_size=rollouts[0].group_size,
        reward_metrics=_joined_metrics(rollouts),
    )


def _joined_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Counts added up, shares and means averaged by the rows of the rounds that have them."""
    joined: dict[str, float] = {}
    for name in dict.fromkeys(name for rollout in rollouts for name in rollout.reward_metrics):
        having = [rollout for rollout in rollouts if name in rollout.reward_metrics]
        rows = sum(len(rollout) for rollout in having)
        values = [rollout.reward_metrics[name] for rollout in having]
        weights = [1 if isinstance(values[0], int) else len(rollout) / rows for rollout in having]
        joined[name] = sum(value * weight for value, weight in zip(values, weights, strict=True))
    return joined


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """(n, w) tensors of different widths below each other, padded on the right with 0 or False."""
    width = max(tensor.shape[1] for tensor in tensors)
    return torch.cat([F.pad(tensor, (0, width - tensor.shape[1])) for tensor in tensors])
