"""Reward models as the reward: one, or several of which each says what it thinks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from data.collate import ResponseBatch, collate_responses
from data.files.formats import recorded_turns
from data.records import PromptRecord
from data.sources import default_folder, flags_for, is_checked
from gpt.folder import place_of
from gpt.ranks import score_in_micro_batches
from gpt.tokenizer import Tokenizer
from harness.console import say_always
from harness.device import precision
from harness.errors import UserError
from harness.files import display_path, read_jsonl, record_input
from harness.paths import MODEL_FILE
from reward_model.judge import Judge
from reward_model.pairs import as_pair
from reward_model.scalar_head import RewardModel
from rl.batches.rollout import Rollout
from rl.equations.ensembles import ensemble_mean, worst_case
from rl.rewards.reward import MadeOf, RewardFlags, RewardFn, made_of_all


def open_kind(
    config: RewardFlags, tokenizer: Tokenizer, device: torch.device, names: Sequence[str] = ()
) -> RewardFn:
    """The reward model, or the ensemble, of these names, or of the flags, or of this data and preset."""
    names = names or config.reward_model
    if is_checked(config.data) and not names:
        raise UserError(f"{config.data} is checked by a rule: leave --reward model out")
    names = names or (str(default_reward_model(config)),)
    judges = [Judge.open(name, device) for name in names]
    models = [judge.model for judge in judges]
    own = [None if judge.shares(tokenizer) else judge for judge in judges]
    for judge, apart in zip(judges, own, strict=True):
        judge.say(shared=apart is None)
    if len(models) == 1:
        return RewardModelReward(models[0], config.scored_rows, config.precision, own[0])
    room = min(model.gpt.config.context for model in models)
    kept = (reference_responses(place_of(name), tokenizer, room) for name in names)
    reference = next(filter(None, kept), None)
    if reference is None and any(judge.published for judge in judges):
        say_always("warning: no scores to centre on: the reward models' scales count as they are")
    return EnsembleReward(
        models, combine=config.ensemble, reference=reference, own=own,
        micro_batch_size=config.scored_rows, dtype=config.precision,
    )  # fmt: skip


def default_reward_model(config: RewardFlags) -> Path:
    """The run of this data and model; a UserError with the command that makes it where it is missing."""
    folder = default_folder("reward_model", config.data, config.model_name)
    flags = flags_for(config.data, config.preset)
    if config.model is not None and config.model_name != config.preset:  # from published weights
        flags = f" --data {shlex.quote(config.data)} --model {shlex.quote(str(config.model))}"
    if not (folder / MODEL_FILE).exists():
        raise UserError(
            f"there is no reward model in {display_path(folder)}: give --reward FILE.py:FUNCTION, or "
            "train it, for which a file needs pairs, with  "
            f"python -m reward_model.reward_model_training{flags}"
        )
    return folder


def prefix_scores(model: RewardModel, rollout: Rollout) -> dict[str, Tensor]:
    """What a reward model says of each token: the reward if the response ended there, (N, T)."""
    score = model.prefix_scores
    return {"prefix_score": score_in_micro_batches(score, rollout.sequences, len(rollout))}


@dataclass(eq=False)
class RewardModelReward:
    """The score of a reward model, in `dtype`, of the sampled tokens, or as an `own` form reads them."""

    model: RewardModel
    micro_batch_size: int = 64
    dtype: str = "float32"
    own: Judge | None = None
    name = "reward model"

    @property
    def components(self) -> MadeOf:
        if self.own is not None:
            return MadeOf(judges=(self.own,))
        return MadeOf(reward_models=(self.model,), token_columns=partial(prefix_scores, self.model))

    def rows(self, rollout: Rollout) -> ResponseBatch:
        """A rollout's rows as the reward model reads them."""
        if self.own is None:
            return rollout.sequences
        return self.own.batch(rollout.records, rollout.responses, rollout.has_eos.tolist())

    def __call__(self, rollout: Rollout) -> Tensor:
        with precision(self.model.device, self.dtype):
            return score_in_micro_batches(self.model, self.rows(rollout), self.micro_batch_size)


class EnsembleReward:
    """Several reward models' scores of a rollout, combined into one reward per response, (N,).

    mean: their mean. min: the lowest (WCO; Coste et al. 2024, arXiv:2310.02743). `own` has the judge of
    each member that reads in a form of its own, else None.

    With `reference` each member is standardised on those responses, so that what is left between them
    is disagreement. They are fixed, and not the rollout: a reward that is centred on every batch could
    not rise.
    """

    def __init__(
        self,
        models: Sequence[RewardModel],
        *,
        combine: Literal["mean", "min"] = "mean",
        reference: Rollout | None = None,
        own: Sequence[Judge | None] = (),
        micro_batch_size: int = 64,
        dtype: str = "float32",
    ) -> None:
        self.members = [
            RewardModelReward(model, micro_batch_size, dtype, judge)
            for model, judge in zip_longest(models, own)
        ]
        self.combined = {"mean": ensemble_mean, "min": worst_case}[combine]
        self.name = f"{combine} of {len(models)} reward models"
        if reference is not None:
            for member in self.members:
                model, rows = member.model, member.rows(reference)
                with precision(model.device, dtype):
                    model.normalize_on(rows.to(model.device), micro_batch_size)

    @property
    def components(self) -> MadeOf:
        return made_of_all(self.members)

    def __call__(self, rollout: Rollout) -> Tensor:
        return self.with_metrics(rollout)[0]

    @torch.no_grad()
    def with_metrics(self, rollout: Rollout) -> tuple[Tensor, dict[str, float]]:
        """Rewards (N,), and how far the members are apart (docs/metrics.md, "Ensembles")."""
        scores = torch.stack([member(rollout) for member in self.members])  # (K, N)
        return self.combined(scores), {
            "ensemble_mean": float(scores.mean()),
            "ensemble_spread": float(scores.std(0).mean()),
        }


def reference_responses(
    folder: Path, tokenizer: Tokenizer, room: int, pairs: int = 256
) -> Rollout | None:
    """Answers on which the members of an ensemble are put on one scale: held-out ones of `folder`.

    Both answers of its first held-out pairs that fit in `room` tokens, token by token as they were; None
    where it kept no pairs.
    """
    path = folder.resolve() / "held_out_pairs.jsonl"
    if not path.exists():
        return None
    rows = []
    for row in read_jsonl(record_input(path))[:pairs]:
        pair = as_pair(row, tokenizer)
        record = PromptRecord(row["prompt"], turns=recorded_turns(row))
        for side, text in ((pair.chosen, row["chosen"]), (pair.rejected, row["rejected"])):
            if len(pair.prompt) + len(side) <= room:
                rows.append((record, text, pair.prompt, side))
    if not rows:
        return None
    records, texts, prompts, answers = zip(*rows, strict=True)
    batch = collate_responses(prompts, answers, tokenizer.eos_id)
    log_probs = torch.zeros_like(batch.response_tokens, dtype=torch.float32)
    return Rollout(list(records), list(texts), batch, log_probs, group_size=1)
