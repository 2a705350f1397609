"""Reward models as the reward: one, or several of which each says what it thinks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from data.collate import ResponseBatch, collate_responses
from data.sources import default_folder, flags_for, is_checked
from gpt.folder import ModelFolder, place_of
from gpt.ranks import score_in_micro_batches
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.errors import UserError
from harness.files import display_path, read_jsonl, record_input
from harness.paths import MODEL_FILE
from reward_model.pairs import as_pair
from reward_model.scalar_head import RewardModel, load_reward_model
from rl.batches.rollout import Rollout
from rl.equations.ensembles import ensemble_mean, worst_case
from rl.rewards.reward import MadeOf, RewardFlags, RewardFn


def open_kind(config: RewardFlags, tokenizer: Tokenizer, device: torch.device) -> RewardFn:
    """The reward model that the flags name, or the ensemble; default: the one of this data and preset."""
    if is_checked(config.data) and not config.reward_model:
        raise UserError(f"{config.data} is checked by a rule: leave --reward {config.reward} out")
    names = config.reward_model or (str(default_reward_model(config)),)
    models = [open_reward_model(name, tokenizer, device) for name in names]
    if len(models) == 1:
        return RewardModelReward(models[0], config.scored_rows, config.precision)
    room = min(model.gpt.config.context for model in models)
    reference = reference_responses(place_of(names[0]), tokenizer, room)
    return EnsembleReward(
        models, combine=config.ensemble, reference=reference,
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


def open_reward_model(name: str, tokenizer: Tokenizer, device: torch.device) -> RewardModel:
    """The reward model of this name; UserError if there is none, or one of other tokens."""
    found = ModelFolder.open(name)
    if found.kind != "reward_model":
        raise UserError(
            f"{name} is no reward model but a policy: name what reward_model_training made"
        )
    model, model_tokenizer = load_reward_model(found.folder, device)
    if model_tokenizer.fingerprint != tokenizer.fingerprint:
        names = f"{model_tokenizer.name!r}, the policy {tokenizer.name!r}"
        raise UserError(f"{name} reads {names}: use one tokenizer")
    if model_tokenizer.chat_template != tokenizer.chat_template:
        raise UserError(
            f"{name} reads prompts in another form of a chat than the policy writes: train "
            "both from models with the same chat template"
        )
    return model


def prefix_scores(model: RewardModel, rollout: Rollout) -> dict[str, Tensor]:
    """What a reward model says of each token: the reward if the response ended there, (N, T)."""
    score = model.prefix_scores
    return {"prefix_score": score_in_micro_batches(score, rollout.sequences, len(rollout))}


@dataclass(eq=False)
class RewardModelReward:
    """The score of a trained reward model, in `dtype`; it must share the policy's tokenizer."""

    model: RewardModel
    micro_batch_size: int = 64
    dtype: str = "float32"
    name = "reward model"

    @property
    def components(self) -> MadeOf:
        return MadeOf(reward_models=(self.model,), token_columns=partial(prefix_scores, self.model))

    def __call__(self, rollout: Rollout) -> Tensor:
        with precision(self.model.device, self.dtype):
            return score_in_micro_batches(self.model, rollout.sequences, self.micro_batch_size)


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
        combine: Literal["mean", "min"] = "mean",
        reference: ResponseBatch | None = None,
        micro_batch_size: int = 64,
        dtype: str = "float32",
    ) -> None:
        self.members = [RewardModelReward(model, micro_batch_size, dtype) for model in models]
        self.combined = {"mean": ensemble_mean, "min": worst_case}[combine]
        self.name = f"{combine} of {len(models)} reward models"
        if reference is not None:
            for model in models:
                with precision(model.device, dtype):
                    model.normalize_on(reference.to(model.device), micro_batch_size)

    @property
    def components(self) -> MadeOf:
        """Its members; of each token the first one says what it thinks."""
        models = tuple(member.model for member in self.members)
        return MadeOf(reward_models=models, token_columns=self.members[0].components.token_columns)

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
) -> ResponseBatch | None:
    """Answers on which the members of an ensemble are put on one scale: held-out ones of `folder`.

    Both answers of its first held-out pairs that fit in `room` tokens, token by token as they were; None
    where it kept no pairs.
    """
    path = folder.resolve() / "held_out_pairs.jsonl"
    if not path.exists():
        return None
    kept = [as_pair(row, tokenizer) for row in read_jsonl(record_input(path))[:pairs]]
    rows = [(pair.prompt, side) for pair in kept for side in (pair.chosen, pair.rejected)]
    rows = [(prompt, answer) for prompt, answer in rows if len(prompt) + len(answer) <= room]
    if not rows:
        return None
    prompts, answers = zip(*rows, strict=True)
    return collate_responses(prompts, answers, tokenizer.eos_id)
