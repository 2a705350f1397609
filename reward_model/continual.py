"""Train a reward model again on what the policy writes now, with replay of what it has learned from.

Line 12 of Algorithm 1 in Shao et al. 2024 (arXiv:2402.03300, section 4.1.4): as the policy moves,
its responses leave the text that the reward model was trained on. New comparisons of its own
responses are labelled, and the reward model is trained on a mix of them with "10% of historical
data".
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.lora import thaw
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.errors import UserError
from harness.files import append_jsonl, display_path, keep_until, read_jsonl, record_input
from harness.metric_log import MetricLog
from harness.optimizer import adamw, steps_of_passes
from harness.seeds import derive_seed, make_generator
from harness.training_state import changing_state, load_changing_state
from reward_model.accuracy_report import preference_report, score_pairs
from reward_model.pairs import (
    Annotator,
    PairSampling,
    TokenPair,
    as_pair,
    by_prompt,
    collate_pairs,
    pair_as_text,
    sample_pairs,
)
from reward_model.reward_model_training import RewardModelConfig, train
from reward_model.scalar_head import RewardModel

Visit = list[Mapping[str, Any]]  # the comparisons of one prompt's responses, rows of a pairs.jsonl

# --- the mix --------------------------------------------------------------------------------------


def history_count(new: int, history: int, fraction: float) -> int:
    """How many of `history` old pairs join `new` ones, n f / (1 - f): `fraction` of the mix is old."""
    if not 0 <= fraction < 1:
        raise ValueError(f"the replay fraction must be at least 0 and below 1: got {fraction}")
    return min(round(new * fraction / (1 - fraction)), history)


@dataclasses.dataclass(frozen=True)
class History:
    """The prompt visits of a reward model's first training, and how many of its pairs are replayed."""

    visits: Sequence[Visit]
    fraction: float = 0.1

    def __post_init__(self) -> None:
        history_count(1, 1, self.fraction)  # refuses what cannot work


def draw_history(visits: Sequence[Visit], count: int, rng: random.Random) -> Visit:
    """`count` rows without replacement, visit by visit in random order; the last visit may be cut."""
    drawn: Visit = []
    for index in rng.sample(range(len(visits)), len(visits)):
        if len(drawn) >= count:
            break
        drawn += visits[index][: count - len(drawn)]
    return drawn


def read_visits(path: Path) -> list[Visit]:
    """The rows of a pairs.jsonl, neighbours of one prompt together. UserError without the file."""
    if not path.exists():
        raise UserError(
            f"no pairs to replay at {display_path(path)}: give a reward model's run folder with "
            "--reward-model, or --no-refresh-reward-model"
        )
    return visits_of(read_jsonl(record_input(path)))


def visits_of(rows: Sequence[Mapping[str, object]]) -> list[Visit]:
    """Rows whose prompt and whose step of origin agree with their neighbour's, together."""
    groups = itertools.groupby(rows, key=lambda row: (row.get("step"), row["prompt"]))
    return [list(group) for _, group in groups]


def as_row(pair: TokenPair, tokenizer: Tokenizer, step: int) -> dict[str, Any]:
    """A pair as a row of pairs.jsonl, with the step of its origin."""
    return {"step": step} | pair_as_text(pair, tokenizer)


# --- training again -------------------------------------------------------------------------------


class ContinualRewardModel:
    """A frozen reward model that thaws for `update`, with its optimizer and all pairs so far.

    `config` says how pairs are sampled and fitted, `history` what is replayed; `probe` are held-out
    pairs for measuring. Its scores are centred on the same references each time: every n-th pair of
    the history.
    """

    def __init__(
        self,
        model: RewardModel,
        tokenizer: Tokenizer,
        prompts: Sequence[PromptRecord],
        annotator: Annotator,
        config: RewardModelConfig,
        history: History,
        *,
        probe: Sequence[TokenPair] = (),
    ) -> None:
        self.model, self.tokenizer, self.prompts = model, tokenizer, prompts
        self.annotator, self.config = annotator, config
        self.original, self.recent = list(history.visits), list[Visit]()
        self.fraction = history.fraction
        self.path: Path | None = None
        rows = [row for visit in self.original for row in visit]
        self.reference = [as_pair(row, tokenizer) for row in rows[:: max(len(rows) // 250, 1)]]
        self.probe = list(probe)
        thaw(model)
        self.optimizer = adamw(model, config.lr, weight_decay=config.weight_decay)
        model.requires_grad_(False)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the pairs, which are in their file."""
        return {"model": changing_state(self.model), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_changing_state(self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def open(self, folder: Path, step: int) -> None:
        """Keep new pairs in folder/pairs.jsonl, and take up again those from up to `step`."""
        self.path = folder / "pairs.jsonl"
        self.recent = visits_of(keep_until(self.path, step))

    def update(self, policy: GPT, step: int) -> dict[str, float]:
        """Sample and label pairs of `policy`, train on them and on old ones, centre, measure; what to log.

        `step`, the number of the step that follows, seeds all randomness.
        """
        seed = derive_seed(self.config.seed, f"refresh {step}")
        config = dataclasses.replace(self.config, seed=seed)
        new = self._sample(policy, config, "new", config.pairs, config.responses_per_prompt)
        fresh = self._sample(policy, config, "fresh", config.held_out_pairs, 2)
        history = [*self.original, *self.recent]
        count = history_count(len(new), sum(map(len, history)), self.fraction)
        rng = random.Random(derive_seed(config.seed, "replay"))
        old = [as_pair(row, self.tokenizer) for row in draw_history(history, count, rng)]
        before = self._measure(fresh, "before")

        mix = [*new, *old]
        steps = steps_of_passes(config.epochs, len(by_prompt(mix)), config.batch_size)
        thaw(self.model)
        train(
            self.model, mix, config, MetricLog(steps), eos_id=self.tokenizer.eos_id,
            optimizer=self.optimizer,
        )  # fmt: skip
        self.optimizer.zero_grad(set_to_none=True)
        self.model.requires_grad_(False)
        reference = collate_pairs(self.reference, self.tokenizer.eos_id)
        with precision(self.model.device, config.precision):
            self.model.normalize_on(reference.to(self.model.device), config.scored_at_once)

        rows = [as_row(pair, self.tokenizer, step) for pair in new]
        self.recent += visits_of(rows)
        if self.path is not None:
            append_jsonl(self.path, rows)
        counts = {"pairs/new": len(new), "pairs/replayed": len(old)}
        return counts | before | self._measure(fresh, "after")

    def _sample(
        self, policy: GPT, config: RewardModelConfig, name: str, count: int, responses: int
    ) -> list[TokenPair]:
        """Pairs of the policy's responses, as the first ones of the reward model were made."""
        how = PairSampling(
            SamplingParams(max_new_tokens=config.max_response_tokens),
            responses,
            config.wide_temperature if responses > 2 else 1.0,
            batch_size=max(256 // responses, 1),
        )
        batches = sample_pairs(
            policy, self.tokenizer, self.prompts, count, self.annotator, how,
            generator=make_generator(config.seed, f"{name} pairs"),
            rng=random.Random(derive_seed(config.seed, f"{name} labels")),
        )  # fmt: skip
        with precision(policy.device, config.precision):
            return [pair for batch in batches for pair in batch]

    @torch.no_grad()
    def _measure(self, fresh: Sequence[TokenPair], when: str) -> dict[str, float]:
        """Accuracy on the policy's new responses and on the probe, and the probe's mean reward.

        The share of pairs that the model orders as gold does, or where that is unknown the labels.
        """
        numbers: dict[str, float] = {}
        for name, pairs in {"fresh": fresh, "probe": self.probe}.items():
            if not pairs:
                continue
            with precision(self.model.device, self.config.precision):
                chosen, rejected, batch = score_pairs(
                    self.model, pairs, self.tokenizer.eos_id, self.config.scored_at_once
                )
            found = preference_report(chosen, rejected, batch.lengths.cpu(), pairs).numbers
            numbers[f"{name}_accuracy/{when}"] = found.get("gold_accuracy", found["accuracy"])
            if name == "probe":
                numbers[f"probe_reward/{when}"] = float(torch.cat([chosen, rejected]).mean())
        return numbers
