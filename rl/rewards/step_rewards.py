"""Step rewards: where each step of a response ends, and what it is worth.

Process supervision (Shao et al. 2024, arXiv:2402.03300, section 4.1.3) needs more than one number
per response. A source of step rewards cuts every response into steps, so that each valid token
belongs to exactly one of them and the last step ends at the last valid token. Three sources:

    OutcomeSteps       one step, worth what the whole response is: outcome supervision again
    CheckedSteps       the written steps, each right or wrong by the world's rule, then the answer
    RewardModelSteps   sentences, each worth the reward model's score after its last token
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from data.sources import Source
from gpt.ranks import score_in_micro_batches
from gpt.tokenizer import Tokenizer
from harness.device import precision
from reward_model.scalar_head import RewardModel
from rl.batches.rollout import Rollout

SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)\n*|\n+")  # "3.5" holds no end, "Yes.\n" holds one


class StepRewards(NamedTuple):
    """N responses of at most K steps each; the steps of a row come first, in order."""

    rewards: Tensor  # (N, K) float32, 0 where there is no step
    ends: Tensor  # (N, K) int64, index of the step's last token within the response
    mask: Tensor  # (N, K) bool, True where there is a step


class StepRewardFn(Protocol):
    """Cuts a rollout into steps and scores them; `rewards` (N,) are its outcome rewards."""

    def __call__(self, rollout: Rollout, rewards: Tensor) -> StepRewards: ...


@torch.no_grad()
def checked_steps(step_reward_fn: StepRewardFn, rollout: Rollout, rewards: Tensor) -> StepRewards:
    """Step rewards, by rewards (N,). ValueError unless steps have every token once and finite rewards."""
    values, ends, mask = steps = step_reward_fn(rollout, rewards)
    before = torch.cat([torch.full_like(ends[:, :1], -1), ends[:, :-1]], 1)
    in_order = (ends > before) | ~mask
    packed = mask[:, :-1] | ~mask[:, 1:]
    last = torch.where(mask, ends, -1).amax(1)
    final = rollout.lengths - 1
    wrong = ~(in_order.all(1) & packed.all(1) & (last == final))
    if wrong.any():
        row = int(wrong.nonzero()[0])
        found = ends[row, mask[row]].tolist()
        raise ValueError(f"row {row}: steps must rise to token {int(final[row])}: got {found}")
    broken = mask & ~values.isfinite()
    if broken.any():
        row = int(broken.any(1).nonzero()[0])
        raise ValueError(f"a step reward of row {row} is not finite: {values[row].tolist()}")
    return steps


# --- from characters to tokens --------------------------------------------------------------------


def characters_read(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """How many characters of the decoded text are complete after each token.

    End-of-text and padding hold none.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    total, counts = 0, []
    for token in tokens:
        if token not in (tokenizer.eos_id, tokenizer.pad_id, *tokenizer.other_ends):
            total += len(decoder.decode(tokenizer.token_bytes(token)))
        counts.append(total)
    return counts


def token_of(character: int, counts: Sequence[int]) -> int:
    """The token that completes the 0-based `character`, given `characters_read`."""
    return min(bisect_right(counts, character), len(counts) - 1)


def counts_of(rollout: Rollout, tokenizer: Tokenizer) -> list[list[int]]:
    """`characters_read` of every row, a number for each token, the EOS included."""
    rows = zip(rollout.response_tokens.tolist(), rollout.lengths.tolist(), strict=True)
    return [characters_read(tokenizer, row[:length]) for row, length in rows]


def padded(rows: Sequence[dict[int, float]], device: torch.device) -> StepRewards:
    """One {end: reward} per response -> (N, K) tensors."""
    columns = max(map(len, rows))
    values, ends = torch.zeros(len(rows), columns), torch.zeros(len(rows), columns).long()
    mask = torch.zeros(len(rows), columns, dtype=torch.bool)
    for row, steps in enumerate(rows):
        values[row, : len(steps)] = torch.tensor(list(steps.values()))
        ends[row, : len(steps)] = torch.tensor(list(steps))
        mask[row, : len(steps)] = True
    return StepRewards(values.to(device), ends.to(device), mask.to(device))


# --- sources ----------------------------------------------------------------------------------------


class OutcomeSteps:
    """One step per response, worth the outcome reward: process supervision is then GRPO."""

    def __call__(self, rollout: Rollout, rewards: Tensor) -> StepRewards:
        ends = rollout.lengths[:, None] - 1
        return StepRewards(rewards[:, None], ends, torch.ones_like(ends, dtype=torch.bool))


class CheckedSteps:
    """The written steps of a response, checked by the world's rule: 1 if exactly right, else 0.

    A written step ends with the character behind it ("," or ":" in data/worlds/sums.py). What is left,
    up to the last token, is the answer's step, worth what `gold` says; a direct answer is that alone.
    Where one token ends two steps they count as one, right only if both are: so does a step that
    was cut off together with the answer it owed.
    """

    def __init__(self, world: Source, tokenizer: Tokenizer) -> None:
        if world.step_checks is None or world.gold is None:
            raise ValueError("this world has no rule for steps: take another source")
        self.checks, self.gold, self.tokenizer = world.step_checks, world.gold, tokenizer

    def __call__(self, rollout: Rollout, rewards: Tensor) -> StepRewards:
        rows = []
        ended_of, counts_by_row = rollout.has_eos.tolist(), counts_of(rollout, self.tokenizer)
        for record, text, ended, counts in zip(
            rollout.records, rollout.responses, ended_of, counts_by_row, strict=True
        ):
            steps: dict[int, float] = {}
            for _, stop, right in self.checks(record, text):
                end = token_of(min(stop, len(text) - 1), counts)  # of the "," or ":"
                steps[end] = min(float(right), steps.get(end, 1.0))
            answer = self.gold(record, text, ended)
            steps[len(counts) - 1] = min(answer, steps.get(len(counts) - 1, 1.0))
            rows.append(steps)
        return padded(rows, rollout.response_tokens.device)


class RewardModelSteps:
    """Sentences (". ! ?" or a line break), each worth the reward model's score after its last token.

    A heuristic: any change of token scores that averages to zero within a response leaves the reward
    model's loss as it is, so only a model trained on labelled steps would know what a step is worth.
    """

    def __init__(
        self, model: RewardModel, tokenizer: Tokenizer, rows: int = 64, dtype: str = "float32"
    ) -> None:
        self.model, self.tokenizer, self.rows, self.dtype = model, tokenizer, rows, dtype

    def __call__(self, rollout: Rollout, rewards: Tensor) -> StepRewards:
        rows = []
        for text, counts in zip(rollout.responses, counts_of(rollout, self.tokenizer), strict=True):
            ends = [match.end() for match in SENTENCE_END.finditer(text)]
            inner = [token_of(end - 1, counts) for end in ends if end < len(text)]
            rows.append(dict.fromkeys([*inner, len(counts) - 1], 0.0))
        _, ends_of, mask = padded(rows, rollout.response_tokens.device)
        with precision(self.model.device, self.dtype):
            score = self.model.token_scores
            scores = score_in_micro_batches(score, rollout.sequences, self.rows)  # (N, T)
        values = (scores.gather(1, ends_of) - self.model.mean) / self.model.std
        return StepRewards(torch.where(mask, values, 0.0), ends_of, mask)
