"""Responses token by token, for the view in the report: a few lines in tokens.jsonl a validation.

Kept are the first validation prompts, always the same, and one group of the step's own batch, which
an engine's loop shows to `watch`. What the engine does not have at hand is scored here, on these few
rows and after the update: no random number is drawn and no weight is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from data.collate import ResponseBatch
from gpt.log_probs import score_in_micro_batches, token_scores, token_scores_and_kl
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.files import append_jsonl
from rl.batches.rollout import Rollout, select_rows
from rl.equations.advantages import gae
from rl.rewards.sources import RewardFn, RewardModelReward
from rl.training.run import Validate

ROWS = 8  # of a group; larger groups are cut
UNGROUPED = 4  # responses of a batch without groups


class Clip(Protocol):
    """What knows where an engine's clip acts, such as its meter."""

    @property
    def acted(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """(log_probs, old_log_probs, advantages, mask), (n, T) each -> (n, T) or (n, 1) bool."""


@dataclass(frozen=True)
class ClipRule:
    """A rule of its own where no meter has one."""

    acted: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Watched:
    """The rows of a step's batch that are kept; every tensor is (n, T) but for `rewards`, (n,)."""

    rollout: Rollout
    rewards: Tensor
    advantages: Tensor
    clip: Clip
    values: Mapping[str, Tensor]


def watch(
    validate: Validate | None,
    clip: Clip,
    rollout: Rollout,
    rewards: Tensor,  # (N,)
    advantages: Tensor,  # (N, T) or (N, 1)
    **critic: Tensor | None,  # old_values and token_rewards (N, T), where there is a critic
) -> None:
    """Show a step's batch to the token log; the next validation writes its first group down."""
    log: TokenLog | None = getattr(validate, "token_log", None)  # a plain function has none
    if log is not None:
        log.keep(clip, rollout, rewards, advantages, critic)


class TokenLog:
    """Writes tokens.jsonl. `prompts`: how many validation prompts are kept."""

    def __init__(
        self, path: Path, tokenizer: Tokenizer, reward_fn: RewardFn | None, config: Any
    ) -> None:
        self.path, self.tokenizer, self.reward_fn = path, tokenizer, reward_fn
        self.prompts: int = config.record_tokens
        self.temperature: float = config.temperature
        self.gamma: float = getattr(config, "gamma", 1.0)
        self.precision: str = config.precision
        self.watched: Watched | None = None

    @torch.no_grad()
    def keep(
        self,
        clip: Clip,
        rollout: Rollout,
        rewards: Tensor,
        advantages: Tensor,
        critic: Mapping[str, Tensor | None],
    ) -> None:
        """Remember the first group of a batch until the next step."""
        count = min(rollout.group_size if rollout.group_size > 1 else UNGROUPED, ROWS, len(rollout))
        mask = rollout.response_mask[:count]
        values = {"advantage": advantages[:count].expand_as(mask)}
        old_values, token_rewards = critic.get("old_values"), critic.get("token_rewards")
        if old_values is not None and token_rewards is not None:
            v, r = old_values[:count], token_rewards[:count]
            values["value"] = v
            values["td_error"], _ = gae(r, v, mask, self.gamma, 0.0)  # lambda 0: delta_t alone
        rows = select_rows(rollout, torch.arange(count))
        self.watched = Watched(rows, rewards[:count], values["advantage"], clip, values)

    def write(
        self,
        policy: GPT,
        reference: GPT | None,
        step: int,
        shown: Rollout,
        notes: Mapping[str, Any],
    ) -> None:
        """Append the first answers to the fixed prompts, `notes` of them, and the group kept."""
        shown = select_rows(shown, torch.arange(min(self.prompts, len(shown))))
        rows = self.rows("validation", step, shown, self.scored(policy, reference, shown), notes)
        if self.watched is not None:
            group = self.watched
            scored = self.scored(policy, reference, group.rollout)
            old, mask = group.rollout.log_probs, group.rollout.response_mask
            new = scored["log_prob"]
            values = dict(group.values) | {"log_ratio": new - old} | scored
            clipped = group.clip.acted(new, old, group.advantages, mask).expand_as(mask)
            rewards = {"reward": group.rewards.tolist()}
            rows += self.rows("training", step, group.rollout, values, rewards, clipped)
            self.watched = None
        append_jsonl(self.path, rows)

    @torch.no_grad()
    def scored(self, policy: GPT, reference: GPT | None, rollout: Rollout) -> dict[str, Tensor]:
        """What every response can be scored by, (n, T) each: policy, reference, teacher, reward."""
        batch, size = rollout.sequences, len(rollout)

        def score(part: ResponseBatch) -> Tensor:
            if reference is None:
                return torch.stack(list(token_scores(policy, part, self.temperature)), dim=2)
            scores, kl = token_scores_and_kl(policy, reference, part, self.temperature)
            return torch.stack([*scores, kl], dim=2)

        with precision(policy.device, self.precision):  # frozen models may be in half precision
            columns = score_in_micro_batches(score, batch, size).unbind(2)
            found = dict(zip(("log_prob", "entropy", "kl"), columns, strict=False))
            return found | self.judged(rollout)

    def judged(self, rollout: Rollout) -> dict[str, Tensor]:
        """The teacher's log p beside the sampler's log q, or the reward model's score of each prefix."""
        from rl.rewards.ensemble import EnsembleReward
        from rl.rewards.teacher import TeacherReward

        reward_fn = self.reward_fn
        if isinstance(reward_fn, TeacherReward):
            return {"log_p": reward_fn.log_probs(rollout), "log_q": rollout.log_probs}
        model = None
        if isinstance(reward_fn, RewardModelReward):
            model = reward_fn.model
        elif isinstance(reward_fn, EnsembleReward):
            model = reward_fn.models[0]
        if model is None:
            return {}
        score = model.prefix_scores
        return {"prefix_score": score_in_micro_batches(score, rollout.sequences, len(rollout))}

    def rows(
        self,
        kind: str,
        step: int,
        rollout: Rollout,
        values: Mapping[str, Tensor],
        notes: Mapping[str, list[float]],
        clipped: Tensor | None = None,
    ) -> list[dict[str, Any]]:
        """One readable row a response: only its valid tokens."""
        from gpt.token_rows import token_rows

        prompts = [record.prompt for record in rollout.records]
        return token_rows(
            self.tokenizer, rollout.sequences, prompts, values, notes,
            kind=kind, step=step, clipped=clipped,
        )  # fmt: skip
