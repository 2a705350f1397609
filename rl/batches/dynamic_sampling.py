"""Sampling until enough groups of a step can teach something (DAPO, arXiv:2503.14476, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from data.records import PromptRecord
from rl.batches.rollout import Rollout, join_rollouts, prompt_batch, select_rows

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
        """What a checkpoint has to hold."""
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
        """How often the policy was asked."""
        return len(self.rollouts)

    def add(self, rollout: Rollout, rewards: Tensor, groups: Tensor) -> None:
        """Put in one round: its rewards (n,), which of its groups to keep (n / G,) bool."""
        self.rollouts.append(rollout)
        self.rewards.append(rewards)
        self.kept.append(groups.repeat_interleave(rollout.group_size))
        self.missing -= int(groups.sum())

    def sampled(self) -> tuple[Rollout, Tensor]:
        """All N responses as one rollout, and their rewards (N,)."""
        return join_rollouts(self.rollouts), torch.cat(self.rewards)

    def to_train(self, rollout: Rollout, rewards: Tensor) -> tuple[Rollout, Tensor]:
        """Of what was sampled, the rollout and the rewards of the groups to keep; perhaps none."""
        kept = torch.cat(self.kept)
        if kept.all():
            return rollout, rewards
        rows = kept.nonzero()[:, 0]
        return select_rows(rollout, rows), rewards[rows]

    def metrics(self) -> dict[str, float]:
        """What the filter has cost."""
        kept = torch.cat(self.kept)
        return {
            "sampled_responses": len(kept),
            "sampling_rounds": self.rounds,
            "dropped_groups": int((~kept).sum()) // self.rollouts[0].group_size,
        }
