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
not there. Held-out prompts are those of the validation split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from data.collate import epoch_shuffled_indices
from data.sources import (
    default_folder,
    from_preset,
    has_annotator,
    is_world,
    source,
)
from gpt import pretraining
from gpt.checkpoint import load_policy
from gpt.lora import fit_for_training
from gpt.model import GPT, Preset, preset_config
from gpt.pretraining import PretrainingConfig
from gpt.settings import presets_of, run_with_presets
from gpt.token_rows import RECORDED
from gpt.tokenizer import Tokenizer
from harness.device import open_device, precision
from harness.errors import UserError
from harness.files import display_path, reading, write_json
from harness.flags import AtLeastOne, Count, MemoryFlags, NotNegative, OptimizerFlags
from harness.metric_log import MetricLog, per_second
from harness.optimizer import adamw, check_losses, clip_and_step, follow_cosine, steps_of_passes
from harness.paths import MODEL_FILE, folder_of_run
from harness.ranks.collectives import all_reduce_sum, check_alike, on_main, shard
from harness.run_folder import conclude, finish_run, open_run, run_stage, stepping
from harness.safetensors_file import kind_of
from harness.seeds import derive_seed, make_generator
from harness.training_state import TrainingState, keep_state, saved_step
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

# Which of tiny's defaults are measured, where, and which are not: README.md beside this file.
PRESETS = presets_of({"tiny": {}, "study": dict(pairs=160_000)}, "reward_model")
FEWEST = 50  # steps of a reward model that goes on with a few pairs (README.md beside this file)


@dataclass(frozen=True)
class RewardModelConfig(OptimizerFlags, MemoryFlags, PairFileFlags):
    """Train a Bradley-Terry reward model on preference pairs."""

    preset: Preset = "tiny"
    """Size of the base model and matching defaults, applied before all other flags."""
    base: Path | None = None
    """Run folder of the base model; default: gpt.pretraining's for this data and preset. That of a reward
    model goes on from what it has learned, which suits few pairs of a file."""
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
    warmup: Count = 20
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


def measured_step(measured: list[Tensor], comparisons: int) -> dict[str, Any]:
    """Loss, accuracy and mean margin of a step over all ranks, from those (3,) of each forward here."""
    sums = torch.stack(measured).sum(0).tolist() if measured else [0.0, 0.0, 0.0]
    total = all_reduce_sum(dict(zip(("loss", "right", "gap"), sums, strict=True)))
    accuracy, margin = total["right"] / comparisons, total["gap"] / comparisons
    return {"loss": total["loss"], "accuracy": accuracy, "margin": margin}


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
    optimizer = optimizer or adamw(model, config.lr, weight_decay=config.weight_decay)
    state = TrainingState({"model": model, "optimizer": optimizer, "pairs": SamePairs(pairs)}, {})
    if config.resume and folder is not None:
        state.load(folder)
    elif folder is not None:  # the pairs may have taken longer than the training will
        state.save(folder)
    model.eval()  # no dropout: the scores in training are the scores in use
    model.gpt.checkpoint_blocks = config.checkpoint_blocks
    seed = derive_seed(config.seed, "pair order")
    for step in state.steps_left(log.total):
        begin = log.begins()
        lr = follow_cosine(optimizer, step, log.total, config)
        index = epoch_shuffled_indices(step, config.batch_size, len(groups), seed).tolist()
        prompts = [groups[i] for i in index]
        comparisons = sum(map(len, prompts))
        measured: list[Tensor] = []  # of each forward: loss, pairs in order, the sum of their gaps
        optimizer.zero_grad(set_to_none=True)
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
        norm = clip_and_step(optimizer, model.parameters(), config.max_norm)
        row = measured_step(measured, comparisons) | {"grad_norm": norm, "lr": lr}
        row["pairs_per_second"] = per_second(comparisons, begin)
        check_losses(row)
        state.step = step + 1
        log.write(step=state.step, **row)
        last = state.step == log.total
        if state.step % log.every == 0 or last:
            check_alike(model, "reward model")
        keep_state(state, folder, config.checkpoint_every, last=last)
    return log.rows


def base_folder(config: RewardModelConfig) -> Path:
    """The base model's run folder; a new run pre-trains it first if the default one is not there."""
    folder = base_of(config)
    if config.base is None and not config.resume and not on_main((folder / MODEL_FILE).exists):
        print(f"no base model in {display_path(folder)} yet: pre-training it first")
        run_stage(pretraining.main, pretraining_of(config))
    return folder


def base_of(config: RewardModelConfig) -> Path:
    """The run folder where the base model is, or will be."""
    return config.base or default_folder("pretraining", config.data, config.preset)


def pretraining_of(config: RewardModelConfig) -> PretrainingConfig:
    """How the default base model is made."""
    return from_preset(
        PretrainingConfig, pretraining.PRESETS, config.preset, data=config.data, seed=config.seed,
        device=config.device, out=base_of(config),
    )  # fmt: skip


def open_base(
    config: RewardModelConfig, base: Path, device: torch.device
) -> tuple[RewardModel | None, GPT, Tokenizer]:
    """The reward model to go on from, if the base is one, its trunk or else the base, and the tokenizer."""
    path = folder_of_run(base) / MODEL_FILE
    if not path.exists() or kind_of(path) != "reward_model":
        return None, *load_policy(base, device)
    judge, tokenizer = load_reward_model(path, device)
    if is_world(config.data):
        raise UserError(
            f"{base} is a reward model, which writes no answers: give --data a file of pairs"
        )
    if judge.pooling != config.pooling:
        raise UserError(f"{base} pools its scores otherwise: give --pooling {judge.pooling}")
    return judge, judge.gpt, tokenizer


@reading()
def main(config: RewardModelConfig) -> Path:
    """Make or read the pairs, train, report, and return the run folder."""
    made = has_annotator(config.data)  # a world's pairs are sampled, a file brings its own
    check_world(config.data)
    if not made and not on_main((base_of(config) / MODEL_FILE).exists):
        tokenizer = pretraining.open_tokenizer(pretraining_of(config))  # before minutes of training
        check_file(config, tokenizer, preset_config(config.preset, tokenizer.n_vocab).context)
    base = base_folder(config)  # whose pre-training may be of another precision
    device = open_device(config.device, config.precision)
    judge, policy, tokenizer = open_base(config, base, device)
    folder = config.out or default_folder("reward_model", config.data, config.model_name)
    if not made:  # too few pairs are refused before an earlier run is moved aside
        pairs, held_out = file_pairs(config, tokenizer, policy.config.context)
    folder = open_run(folder, config, resume=config.resume)
    if config.resume:
        pairs, held_out = kept_pairs(folder, tokenizer)
    else:
        if made:
            pairs, held_out = sampled_pairs(policy, tokenizer, config)
        keep_pairs(folder, pairs, held_out, tokenizer)

    fit_for_training(config, policy)  # which the pairs were sampled from, and is the trunk now
    model = RewardModel.from_policy(policy, config.pooling, make_generator(config.seed, "head"))
    fewest = 1
    if judge is not None:
        fewest = FEWEST
        model.head.load_state_dict(judge.head.state_dict())
    del policy, judge  # the trunk is a copy
    prompts = len(by_prompt(pairs))
    passes = steps_of_passes(config.epochs, prompts, config.batch_size)
    steps = config.steps or max(passes, fewest)
    counts = f"{len(pairs):,} pairs of {prompts:,} prompts"
    print(f"training a reward model on {counts} for {steps} steps ({device}, {config.precision})")
    log = MetricLog(
        steps, path=folder / "metrics.jsonl", every=max(steps // 6, 1), title="reward model",
        show=("loss", "accuracy", "margin"), start=saved_step(folder) if config.resume else 0,
        beside=(min(len(pairs), 2000) + len(held_out)) / len(pairs) * prompts / config.batch_size / 3,
    )  # fmt: skip
    with stepping(log, folder):
        train(model, pairs, config, log, eos_id=tokenizer.eos_id, folder=folder)
    with precision(device, config.precision):
        prefers, at_once = source(config.data).prefers, config.scored_at_once
        report = normalise_and_test(model, pairs, held_out, tokenizer.eos_id, at_once, prefers)
        record_prefixes(model, held_out[:RECORDED], tokenizer, folder)
    save_reward_model(folder / MODEL_FILE, model, tokenizer)
    write_json(folder / "report.json", report.numbers)
    plot_report(report, folder / "report.png")
    print(report.text())
    conclude(folder)
    finish_run(folder)
    return folder


if __name__ == "__main__":
    run_with_presets(main, RewardModelConfig, PRESETS)
