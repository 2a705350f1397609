"""Responses token by token, for the view in the report: a few lines in tokens.jsonl a validation.

Kept are the first validation prompts, always the same, and one group of the step's own batch, which
an engine's loop hands over as a `StepBatch`. What the engine does not have at hand is scored here, on
these few rows and after the update: no random number is drawn and no weight is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.collate import ResponseBatch
from gpt.log_probs import token_scores, token_scores_and_kl
from gpt.model import GPT
from gpt.ranks import score_in_micro_batches
from gpt.token_rows import token_rows
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.files import append_jsonl
from rl.batches.rollout import CriticUpdate, Rollout, Update, select_rows
from rl.rewards.reward import RewardFn, components
from rl.run.config import RunFlags
from rl.run.metrics import StepBatch

ROWS = 8  # of a group; larger groups are cut
UNGROUPED = 4  # responses of a batch without groups


@dataclass
class TokenLog:
    """Writes tokens.jsonl."""

    path: Path
    tokenizer: Tokenizer
    reward_fn: RewardFn | None
    config: RunFlags

    def write_answers(
        self,
        policy: GPT,
        reference: GPT | None,
        step: int,
        shown: Rollout,
        notes: Mapping[str, Any],
    ) -> None:
        """Append the first answers to the fixed prompts, and `notes` of them."""
        scored = self.scored(policy, reference, shown)
        append_jsonl(self.path, self.rows("validation", step, shown, scored, notes))

    def write_group(self, policy: GPT, reference: GPT | None, step: int, batch: StepBatch) -> None:
        """Append the first group of what a step was trained on, at most 8 rows of it."""
        group_size = batch.rollout.group_size
        count = min(group_size if group_size > 1 else UNGROUPED, ROWS, len(batch.rollout))
        group = select_rows(batch.rollout, torch.arange(count))
        mask, old = group.response_mask, group.log_probs
        advantages = batch.update.advantages[:count].expand_as(mask)
        scored = self.scored(policy, reference, group)
        new = scored["log_prob"]
        values = {"advantage": advantages} | self.critic_values(batch.update, mask)
        values |= {"log_ratio": new - old} | scored
        clipped = batch.clip_mask(new, old, advantages, mask).expand_as(mask)
        rewards = {"reward": batch.rewards[:count].tolist()}
        append_jsonl(self.path, self.rows("training", step, group, values, rewards, clipped))

    def critic_values(self, update: Update, mask: Tensor) -> dict[str, Tensor]:
        """Values and TD errors of the first rows, (n, T) as `mask`; none without a critic."""
        if not isinstance(update, CriticUpdate):
            return {}
        return {"value": update.old_values[: len(mask)], "td_error": update.td_errors[: len(mask)]}

    @torch.no_grad()
    def scored(self, policy: GPT, reference: GPT | None, rollout: Rollout) -> dict[str, Tensor]:
        """Per token, (n, T): log-prob, entropy, KL from the reference, and what the reward says."""
        batch, size = rollout.sequences, len(rollout)

        def score(part: ResponseBatch) -> Tensor:
            if reference is None:
                return torch.stack(list(token_scores(policy, part, self.config.temperature)), dim=2)
            scores, kl = token_scores_and_kl(policy, reference, part, self.config.temperature)
            return torch.stack([*scores, kl], dim=2)

        with precision(policy.device, self.config.precision):  # frozen models may be in half
            columns = score_in_micro_batches(score, batch, size).unbind(2)
            found = dict(zip(("log_prob", "entropy", "kl"), columns, strict=False))
            judged = components(self.reward_fn).token_columns
            return found if judged is None else found | judged(rollout)

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
        prompts = [record.prompt for record in rollout.records]
        return token_rows(
            self.tokenizer, rollout.sequences, prompts, values, notes,
            kind=kind, step=step, clipped=clipped,
        )  # fmt: skip
