"""Reward modelling on comparisons (Ouyang et al. 2022, arXiv:2203.02155, section 3.5; InstructGPT).

    a copy of the language model with a scalar head r(x, y)     RewardModel.from_policy
    K answers to a prompt x, every two of them compared         sampled_pairs (a world), file_pairs
    all C(K, 2) comparisons of a prompt are one batch element   by_prompt
    each answer is scored once, however often it was compared   collate_comparisons, raw_scores
    P(y_w beats y_l) = sigmoid(r(x, y_w) - r(x, y_l))           Bradley and Terry (1952)
    minimise -log P, averaged over the comparisons (Eq. 1)      bradley_terry_loss
    shift the scores, because the loss leaves their mean open   normalise_and_test

Where it differs from the paper: the mean is over comparisons, not over prompts first
(`--pair-weighting prompt` is the paper's); scores get mean 0 and deviation 1 on answers of the
training pairs, where the paper gives the labellers' demonstrations mean 0.

    python -m reward_model.reward_model_training                       the reviews world, laptop size
    python -m reward_model.reward_model_training --data pairs.json --preset small

A world's pairs are sampled from the pre-trained base model and labelled by the world's noisy annotator
(world_pairs.py); a file brings its own (pair_files.py). The base model is pre-trained first when it is
not there. Held-out prompts are those of the validation split and, of a file, of the test split: nothing
is chosen by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from data.collate import epoch_shuffled_indices
from data.sources import default_folder, has_annotator, is_world, source
from gpt import pretraining
from gpt.folder import ModelFolder
from gpt.lora import fit_for_training
from gpt.model import GPT, preset_config
from gpt.pretraining import PretrainingConfig
from gpt.recipes import ModelFlags, config_of
from gpt.stage import Plan, Stage
from gpt.token_rows import RECORDED
from gpt.tokenizer import Tokenizer
from harness.device import open_device, precision
from harness.errors import UserError
from harness.files import display_path, write_json
from harness.flags import AtLeastOne, Count, NotNegative
from harness.metric_log import MetricLog
from harness.optimizer import steps_of_passes
from harness.paths import MODEL_FILE
from harness.ranks.collectives import check_alike, on_main, shard
from harness.run_folder import run_missing
from harness.seeds import derive_seed, make_generator
from harness.supervised import SupervisedFlags, SupervisedSteps
from reward_model.accuracy_report import normalise_and_test, plot_report, record_prefixes, wins
from reward_model.loss import bradley_terry_loss
from reward_model.pair_files import (
    PairFileFlags,
    SamePairs,
    check_file,
    file_pairs,
    keep_pairs,
    kept_pairs,
)
from reward_model.pairs import (
    TokenPair,
    by_prompt,
    check_world,
    collate_comparisons,
    prompts_per_forward,
)
from reward_model.scalar_head import (
    Pooling,
    RewardModel,
    load_reward_model,
    save_reward_model,
)
from reward_model.world_pairs import sampled_pairs

FEWEST = 50  # steps of a reward model that goes on with a few pairs (README.md beside this file)


@dataclass(frozen=True)
class RewardModelConfig(SupervisedFlags, PairFileFlags, ModelFlags):
    """Train a Bradley-Terry reward model on preference pairs."""

    model: str | None = None
    """The base model: a run, a folder in Hugging Face's layout, or a model of the hub, hf://OWNER/NAME or
    gpt2. Default: gpt.pretraining's run for this data and preset, which is made where it is missing. A
    reward model goes on from what it has learned, which suits few pairs of a file."""
    pooling: Pooling = "last_token"
    """How token scores become one score: the last token's, or their mean."""
    epochs: AtLeastOne = 1
    """Passes over the pairs."""
    steps: AtLeastOne | None = None
    """Optimizer steps; overrides epochs."""
    batch_size: AtLeastOne = 8
    """Prompts per optimizer step, each with all its pairs."""
    micro_batch_size: AtLeastOne | None = None
    """Responses per forward pass, but at least all of one prompt; changes memory and speed, never the
    gradient. Default: all of a step."""
    lr: NotNegative = 2e-3
    warmup_steps: Count = 20
    weight_decay: NotNegative = 0.01
    pair_weighting: Literal["pair", "prompt"] = "pair"
    """Each pair counts the same, or each prompt (arXiv:2203.02155, Eq. 1), which may have lost some."""

    @property
    def scored_at_once(self) -> int:
        """Responses per forward pass without a gradient, which needs less memory."""
        return 64 if self.micro_batch_size is None else 2 * self.micro_batch_size


def pair_weights(
    groups: Sequence[Sequence[TokenPair]], config: RewardModelConfig, device: torch.device
) -> Tensor | None:
    """1 / (pairs of the prompt) for each pair, (pairs,); None where every pair counts the same."""
    if config.pair_weighting == "pair":
        return None
    return torch.tensor([1 / len(group) for group in groups for _ in group], device=device)


@torch.enable_grad()  # whatever a notebook has set
def train(
    model: RewardModel,
    pairs: Sequence[TokenPair],
    config: RewardModelConfig,
    log: MetricLog,
    *,
    eos_id: int,
    optimizer: torch.optim.Optimizer | None = None,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Minimise the Bradley-Terry loss, update `model` in place and return one metrics row a step.

    A step reads `config.batch_size` prompts with all their pairs. A given `optimizer` keeps its state.
    """
    groups = by_prompt(pairs)  # all comparisons of a prompt are one batch element
    steps = SupervisedSteps(config, model, log, folder, optimizer=optimizer, pairs=SamePairs(pairs))
    if (
        folder is not None and not config.resume
    ):  # the pairs may have taken longer than the training
        steps.state.save(folder)
    model.eval()  # no dropout: the scores in training are the scores in use
    model.gpt.gradient_checkpointing = config.gradient_checkpointing
    seed = derive_seed(config.seed, "pair order")
    for step in steps:
        index = epoch_shuffled_indices(step, config.batch_size, len(groups), seed).tolist()
        prompts = [groups[i] for i in index]
        comparisons = sum(map(len, prompts))
        measured = [
            torch.zeros(3, device=model.device)
        ]  # of each forward: loss, pairs in order, gaps
        for part in prompts_per_forward(shard(prompts), config.micro_batch_size):
            compared = [pair for group in part for pair in group]
            batch, chosen_rows, rejected_rows = collate_comparisons(compared, eos_id)
            with precision(model.device, config.precision):
                scores = model.raw_scores(batch.to(model.device))  # (answers,)  r(x, y), each once
            chosen, rejected = scores[chosen_rows], scores[rejected_rows]  # (pairs,) each
            loss = bradley_terry_loss(  # Eq. 1: -log sigmoid(r(x, y_w) - r(x, y_l))
                chosen,
                rejected,
                weights=pair_weights(part, config, model.device),
                denominator=comparisons if config.pair_weighting == "pair" else len(prompts),
            )
            loss.backward()
            gaps = (chosen - rejected).detach()
            measured.append(torch.stack([loss.detach(), wins(gaps).sum().to(loss), gaps.sum()]))
        sums = dict(zip(("loss", "accuracy", "margin"), torch.stack(measured).sum(0), strict=True))
        row = steps.update(sums, pairs_per_second=comparisons)
        row |= {name: row[name] / comparisons for name in ("accuracy", "margin")}
        if steps.due(log.every):
            check_alike(model, "reward model")
        steps.close(row)
    return log.rows


# The command ---------------------------------------------------------------------------------------


@dataclass
class Work:
    """What is opened and made: the base, its pairs, and the reward model, of which it is the trunk."""

    policy: GPT | None
    tokenizer: Tokenizer
    judge: RewardModel | None  # the reward model that this one goes on from
    pairs: list[TokenPair]
    held_out: list[TokenPair]
    model: RewardModel | None = None


def open_work(config: RewardModelConfig, device: torch.device) -> tuple[RewardModelConfig, Work]:
    """The base model and a file's pairs: too few are refused before an earlier run is moved aside."""
    check_world(config.data)
    name = config.model or str(made_base(config))
    open_device(config.device, config.precision)  # again: the pre-training may have been of another
    judge, policy, tokenizer = open_base(config, name, device)
    pairs: tuple[list[TokenPair], list[TokenPair]] = [], []
    if not has_annotator(config.data):
        pairs = file_pairs(config, tokenizer, policy.config.context)
    return config, Work(policy, tokenizer, judge, *pairs)


def plan(config: RewardModelConfig, work: Work, folder: Path, done: int) -> Plan:
    """A world's pairs are sampled from the base, those of a run that goes on are read again; the model."""
    if config.resume:
        work.pairs, work.held_out = kept_pairs(folder, work.tokenizer)
    else:
        if work.policy is not None and not work.pairs:
            work.pairs, work.held_out = sampled_pairs(work.policy, work.tokenizer, config)
        keep_pairs(folder, work.pairs, work.held_out, work.tokenizer)
    work.model, fewest = reward_model_of(config, work), FEWEST if work.judge else 1
    work.policy = work.judge = None  # the trunk is a copy
    pairs, prompts = len(work.pairs), len(by_prompt(work.pairs))
    passes = steps_of_passes(config.epochs, prompts, config.batch_size)
    steps = config.steps or max(passes, fewest)
    scored = (min(pairs, to_centre(config)) + len(work.held_out)) / pairs
    return Plan(
        steps, f"training a reward model on {pairs:,} pairs of {prompts:,} prompts",
        ("loss", "accuracy", "margin"), max(steps // 6, 1), title="reward model",
        last_steps=scored * prompts / config.batch_size / 3,  # forward alone
    )  # fmt: skip


def to_centre(config: RewardModelConfig) -> int:
    """Pairs whose scores give the mean and the deviation: of a large model few, as each takes its time."""
    return 2000 if config.is_small else 100


def train_on_pairs(
    config: RewardModelConfig, work: Work, log: MetricLog, folder: Path
) -> list[dict[str, Any]]:
    assert work.model is not None  # `plan` has made it
    return train(work.model, work.pairs, config, log, eos_id=work.tokenizer.eos_id, folder=folder)


def keep(config: RewardModelConfig, work: Work, log: MetricLog, folder: Path) -> None:
    """The model with its scale, and how it orders held-out pairs."""
    model, tokenizer, held_out = work.model, work.tokenizer, work.held_out
    assert model is not None
    with precision(model.device, config.precision):
        prefers, at_once = source(config.data, tokenizer.chat).prefers, config.scored_at_once
        report = normalise_and_test(
            model, work.pairs, held_out, tokenizer, at_once, prefers, to_centre(config)
        )
        record_prefixes(model, held_out[:RECORDED], tokenizer, folder)
    save_reward_model(folder / MODEL_FILE, model, tokenizer)
    write_json(folder / "report.json", report.numbers | {"said": report.text()})
    plot_report(report, folder / "report.png")
    print(report.text())


STAGE = Stage("reward_model", RewardModelConfig, open_work, plan, train_on_pairs, keep)
main = STAGE.run  # config -> run folder


# Its parts -----------------------------------------------------------------------------------------


def made_base(config: RewardModelConfig) -> Path:
    """The run folder of the default base model, which a new run pre-trains first where it is missing."""
    folder = default_folder("pretraining", config.data, config.preset)
    if on_main((folder / MODEL_FILE).exists):
        return folder
    wanted = config_of(
        PretrainingConfig, preset=config.preset, data=config.data, columns=config.columns,
        seed=config.seed, device=config.device, out=folder,
    )  # fmt: skip
    if not has_annotator(
        config.data
    ):  # a file that does not fit is refused before minutes of training
        tokenizer = pretraining.open_tokenizer(wanted)
        check_file(config, tokenizer, preset_config(config.preset, tokenizer.n_vocab).context)
    if not config.resume:
        print(f"no base model in {display_path(folder)} yet: pre-training it first")
        run_missing(pretraining.main, wanted)
    return folder


def open_base(
    config: RewardModelConfig, name: str, device: torch.device
) -> tuple[RewardModel | None, GPT, Tokenizer]:
    """The reward model to go on from, if the base is one, its trunk or else the base, and the tokenizer."""
    found = ModelFolder.open(name).with_chat_arguments(config.chat_arguments)
    if found.kind != "reward_model":
        return None, found.model(device), found.tokenizer()
    judge = load_reward_model(found.folder, device)[0]
    if is_world(config.data):
        raise UserError(
            f"{name} is a reward model, which writes no answers: give --data a file of pairs"
        )
    if judge.pooling != config.pooling:
        raise UserError(f"{name} pools its scores otherwise: give --pooling {judge.pooling}")
    return judge, judge.gpt, found.tokenizer()


def reward_model_of(config: RewardModelConfig, work: Work) -> RewardModel:
    """A copy of the base with a scalar head: a new one, or that of the reward model it goes on from."""
    assert work.policy is not None
    fit_for_training(config, work.policy)
    generator = make_generator(config.seed, "head")
    model = RewardModel.from_policy(work.policy, config.pooling, generator)
    if work.judge is not None:
        model.head.load_state_dict(work.judge.head.state_dict())
    return model


if __name__ == "__main__":
    STAGE.run_as_command()
