"""Train a Bradley-Terry reward model on preference pairs.

    python -m reward_model.reward_model_training                       the reviews world, laptop size
    python -m reward_model.reward_model_training --data pairs.json --preset small

In the reviews world the pairs are sampled from the pre-trained base model and labelled by the
world's noisy annotator; a file brings its own pairs. The base model is pre-trained first when it is
not there. Held-out prompts are those of the validation split.
"""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from data import reviews
from data.collate import ResponseBatch, epoch_shuffled_indices
from data.names import default_folder
from data.readers import read_preferences, split_records
from data.records import PreferenceRecord, PromptRecord
from gpt import pretraining
from gpt.checkpoint import load_policy
from gpt.generate import SamplingParams
from gpt.log_probs import score_in_micro_batches
from gpt.lora import fit_for_training
from gpt.memory.announce import announce
from gpt.memory.forecast import Forecast, forecast
from gpt.model import GPT, Preset
from gpt.pretraining import PretrainingConfig
from gpt.token_rows import token_rows
from gpt.tokenizer import Tokenizer
from harness.command_line import run_command
from harness.device import pick_device, precision
from harness.errors import UserError
from harness.files import append_jsonl, display_path, read_jsonl, write_json
from harness.flag_ranges import check_ranges
from harness.metric_log import MetricLog
from harness.optimizer import (
    adamw,
    check_losses,
    clip_and_step,
    cosine_schedule,
    set_learning_rate,
)
from harness.paths import MODEL_FILE, TOKENS
from harness.ranks.collectives import all_reduce_sum, check_alike, on_main, shard, world
from harness.report.rules import say_findings
from harness.report.writing import open_page, refresh
from harness.run_folder import finish_run, open_run, stepping
from harness.seeds import derive_seed, make_generator
from harness.training_state import TrainingState, keep_state, saved_step
from reward_model.accuracy_report import Report, plot_report, preference_report
from reward_model.loss import bradley_terry_loss
from reward_model.memory_needs import longest_pair, most_responses, reward_model_work
from reward_model.model import Pooling, RewardModel, save_reward_model
from reward_model.pairs import (
    Labelled,
    PairSampling,
    TokenPair,
    as_pair,
    by_prompt,
    collate_comparisons,
    collate_pairs,
    encode_pairs,
    keep_fitting,
    pair_as_text,
    preference_strength,
    sample_pairs,
)

PRESETS: dict[str, dict[str, Any]] = {
    # On the reviews world RL against last_token scores gets further at the same KL (README).
    "tiny": dict(pooling="last_token"),
    # 112 comparisons a step: twice the steps, which find sooner that an answer is about its item
    "tiny/reviews": dict(batch_size=4),
    "study": dict(pooling="last_token", pairs=160_000),
    **{
        name: dict(
            batch_size=8, micro_batch_size=micro, lr=lr, epochs=1, max_response_tokens=max_response
        )
        for name, micro, lr, max_response in [
            ("small", None, 1e-4, 128), ("gpt2", 8, 1e-5, 512), ("gpt2-medium", 4, 9e-6, 512),
            ("gpt2-large", 2, 5e-6, 512), ("gpt2-xl", 2, 3e-6, 512),
        ]
    },
}  # fmt: skip


@dataclass(frozen=True)
class RewardModelConfig:
    """Train a Bradley-Terry reward model on preference pairs."""

    preset: Preset = "tiny"
    """Size of the base model and matching defaults, applied before all other flags."""
    data: str = "reviews"
    """The reviews world, or a preference file (formats: data/README.md)."""
    base: Path | None = None
    """Run folder of the base model; default: gpt.pretraining's for this data and preset."""
    pairs: int = 112_000
    """Pairs to sample and label (a world only; a file brings its own)."""
    responses_per_prompt: int = 8
    """K: sampled responses to a prompt, every two of which are compared (a world only)."""
    wide_temperature: float = 1.5
    """Temperature at which every second half of those responses is drawn; the rest are at 1."""
    held_out_pairs: int = 1000
    """Pairs to sample for the held-out report (a world only)."""
    record_tokens: int = 4
    """Held-out pairs whose answers are kept with the score of each prefix, for the report; 0: none."""
    pooling: Pooling = "mean_score"
    """How token scores become one score."""
    epochs: int = 1
    """Passes over the pairs."""
    steps: int | None = None
    """Optimizer steps; overrides epochs."""
    batch_size: int = 8
    """Prompts per optimizer step, each with all its pairs."""
    micro_batch_size: int | None = None
    """Responses per forward pass, but at least all of one prompt; changes memory and speed, never the
    gradient. Default: all of a step."""
    lr: float = 2e-3
    """Peak learning rate."""
    warmup: int = 20
    """Steps of linear warm-up."""
    weight_decay: float = 0.01
    """AdamW decay of matrices."""
    max_norm: float = 1.0
    """Gradient norm at which gradients are clipped."""
    margin: float = 0.0
    """By how much the chosen score must lead (Llama 2, arXiv:2307.09288, Eq. 2)."""
    margin_from: Literal["constant", "strength"] = "constant"
    """constant: the same lead for all pairs. strength: that times the pair's own `margin`, or score_chosen
    minus score_rejected (a file that has them only)."""
    pair_weighting: Literal["pair", "prompt"] = "pair"
    """Each pair counts the same, or each prompt (arXiv:2203.02155, Eq. 1), which may have lost some."""
    centering: float = 0.0
    """Weight of mean[(R_w + R_l)^2] (arXiv:2312.09244); 0.01 where it is used."""
    max_prompt_tokens: int = 128
    """Longer prompts are left out and counted."""
    max_response_tokens: int = 48
    """Longer answers are left out and counted; sampled ones are cut off there."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast over float32 weights, for GPUs."""
    checkpoint_blocks: bool = False
    """Compute each block's activations again in the backward pass instead of keeping them: less memory,
    a third more work, the same gradients."""
    lora_rank: int = 0
    """LoRA: train adapters of this rank beside frozen weights (gpt/lora.py); 0 trains all weights."""
    lora_alpha: float | None = None
    """alpha of LoRA, whose change of a weight is alpha / rank times B A; default: twice the rank."""
    seed: int = 0
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""
    ranks: int | None = None
    """Processes that share the work; default: one per core for small models on a CPU, else one."""
    out: Path | None = None
    """Run folder; default runs/reward_model-DATA-PRESET."""
    checkpoint_every: int = 200
    """Steps between resumable checkpoints."""
    resume: bool = False
    """Continue the run in the run folder."""
    deterministic: bool = False
    """Only algorithms that give the same bits each time, also on a GPU; slower there."""
    debug: bool = False
    """Show the traceback of an error."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if min(self.pairs, self.held_out_pairs) < 1 or self.responses_per_prompt < 2:
            raise ValueError(
                "at least 1 pair, 1 held-out pair and 2 responses per prompt are needed: got "
                f"{self.pairs}, {self.held_out_pairs} and {self.responses_per_prompt}"
            )
        if not 0 <= self.margin < math.inf:
            raise ValueError(f"margin must be a number from 0 on: got {self.margin}")
        if self.margin_from == "strength" and self.margin == 0:
            raise ValueError(
                "--margin-from strength multiplies --margin, which is 0: give --margin 1"
            )

    @property
    def scored_at_once(self) -> int:
        """Responses per forward pass without a gradient, which needs less memory."""
        return 64 if self.micro_batch_size is None else 2 * self.micro_batch_size


def pair_margins(
    pairs: Sequence[TokenPair], config: RewardModelConfig, device: torch.device
) -> torch.Tensor | None:
    """Llama 2's margin of each pair, (pairs,); None for none. ValueError for an unknown strength."""
    if config.margin == 0:
        return None
    if config.margin_from == "constant":
        return torch.full((len(pairs),), config.margin, device=device)
    strengths = [preference_strength(pair.meta) for pair in pairs]
    known = [strength for strength in strengths if strength is not None]
    if len(known) < len(pairs):
        raise ValueError("a pair has no strength of preference to take its margin from")
    return config.margin * torch.tensor(known, device=device)


def pair_weights(
    groups: Sequence[Sequence[TokenPair]], config: RewardModelConfig, device: torch.device
) -> torch.Tensor | None:
    """1 / (pairs of the prompt) for each pair, (pairs,); None where every pair counts the same."""
    if config.pair_weighting == "pair":
        return None
    return torch.tensor([1 / len(group) for group in groups for _ in group], device=device)


def fit(
    model: RewardModel,
    pairs: Sequence[TokenPair],
    config: RewardModelConfig,
    log: MetricLog,
    *,
    eos_id: int,
    optimizer: torch.optim.Optimizer | None = None,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Minimise the Bradley-Terry loss in place and return one metrics row a step.

    `log.total` steps of `config.batch_size` prompts with all their pairs, in epochs shuffled by the
    seed. Pass an `optimizer` to keep its state between calls; with a folder a resumable state is kept
    there.
    """
    groups = by_prompt(pairs)
    optimizer = optimizer or adamw(
        model, config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay
    )
    state = TrainingState({"model": model, "optimizer": optimizer}, {})
    if config.resume and folder is not None:
        state.load(folder)
    elif folder is not None:  # the pairs may have taken longer than the training will
        state.save(folder)
    model.eval()  # no dropout: the scores in training are the scores in use
    model.gpt.checkpoint_blocks = config.checkpoint_blocks
    seed = derive_seed(config.seed, "pair order")
    for step in state.steps_left(log.total):
        begin = time.perf_counter()
        lr = cosine_schedule(step, log.total, peak=config.lr, warmup=config.warmup)
        set_learning_rate(optimizer, lr)
        index = epoch_shuffled_indices(step, config.batch_size, len(groups), seed).tolist()
        visited = [groups[i] for i in index]
        pairs_here = sum(map(len, visited))
        optimizer.zero_grad(set_to_none=True)
        measured = add_comparisons(model, visited, config, eos_id)
        norm = clip_and_step(optimizer, model.parameters(), config.max_norm)
        row = {
            "loss": measured["loss"],
            "accuracy": measured["right"] / pairs_here,
            "margin": measured["gap"] / pairs_here,
            "grad_norm": norm,
            "lr": lr,
            "pairs_per_second": pairs_here / (time.perf_counter() - begin),
        }
        check_losses(row)
        state.step = step + 1
        log.write(step=state.step, **row)
        last = state.step == log.total
        if state.step % log.every == 0 or last:
            check_alike(model, "reward model")
        keep_state(state, folder, config.checkpoint_every, last=last)
    return log.rows


def add_comparisons(
    model: RewardModel,
    groups: Sequence[Sequence[TokenPair]],
    config: RewardModelConfig,
    eos_id: int,
) -> dict[str, float]:
    """Add the gradient of the Bradley-Terry loss of some prompts with all their pairs.

    Returns the loss, how many pairs are ordered right and the sum of their gaps. Of several ranks
    each reads prompts of its own.
    """
    pairs = sum(map(len, groups))
    sums = []
    for part in prompts_per_forward(shard(groups), config.micro_batch_size):
        compared = [pair for group in part for pair in group]
        margin = pair_margins(compared, config, model.device)
        weights = pair_weights(part, config, model.device)
        batch, chosen_rows, rejected_rows = collate_comparisons(compared, eos_id)
        with precision(model.device, config.precision):
            scores = model.raw_scores(batch.to(model.device))
        chosen, rejected = scores[chosen_rows], scores[rejected_rows]
        loss = bradley_terry_loss(
            chosen,
            rejected,
            margin=margin,
            weights=weights,
            centering=config.centering,
            denominator=pairs if weights is None else len(groups),
        )
        loss.backward()
        gaps = (chosen - rejected).detach()
        sums.append(torch.stack([loss.detach(), (gaps > 0).sum().to(loss), gaps.sum()]))
    if not sums:
        return all_reduce_sum({})
    return all_reduce_sum(
        dict(zip(("loss", "right", "gap"), torch.stack(sums).sum(0).tolist(), strict=True))
    )


def prompts_per_forward(
    groups: Sequence[Sequence[TokenPair]], responses: int | None
) -> list[list[Sequence[TokenPair]]]:
    """The prompts, each with its pairs, cut into forwards of at most so many different responses.

    A prompt whose own responses are more than that has a forward for itself. None: one for all.
    """
    parts: list[list[Sequence[TokenPair]]] = []
    room = 0.0
    for group in groups:
        count = len({tuple(side) for pair in group for side in (pair.chosen, pair.rejected)})
        if not parts or count > room:
            parts.append([])
            room = math.inf if responses is None else responses
        parts[-1].append(group)
        room -= count
    return parts


def score_pairs(
    model: RewardModel, pairs: Sequence[TokenPair], eos_id: int, micro_batch_size: int = 64
) -> tuple[torch.Tensor, torch.Tensor, ResponseBatch]:
    """Normalised scores of the chosen and of the rejected responses, (K,) each, and their batch."""
    batch = collate_pairs(pairs, eos_id).to(model.device)
    chosen, rejected = score_in_micro_batches(model, batch, micro_batch_size).chunk(2)
    return chosen.cpu(), rejected.cpu(), batch


class ReviewsAnnotator:
    """The reviews world's annotator: compares gold rewards, with Bradley-Terry noise.

    A response that is compared several times is judged once and remembered; the noise is fresh.
    """

    def __init__(self) -> None:
        self.judged: dict[tuple[str, str, bool], float] = {}

    def __call__(
        self, prompt: PromptRecord, a: str, a_ended: bool, b: str, b_ended: bool, rng: random.Random
    ) -> Labelled:
        gold = (self.judge(prompt, a, a_ended), self.judge(prompt, b, b_ended))
        return Labelled(reviews.annotate(*gold, rng), gold)

    def judge(self, prompt: PromptRecord, text: str, ended: bool) -> float:
        """The gold reward of one response."""
        key = (prompt.prompt, text, ended)
        if key not in self.judged:
            self.judged[key] = reviews.gold_reward(prompt, text, ended)
        return self.judged[key]


def world_pairs(
    policy: GPT,
    tokenizer: Tokenizer,
    config: RewardModelConfig,
    split: str,
    count: int,
    responses_per_prompt: int,
    wide_temperature: float = 1.0,
) -> list[TokenPair]:
    """Pairs sampled from `policy` on one split's prompts, labelled by the reviews annotator."""
    log = MetricLog(count, show=("seconds",), every=max(count // 4, 1), title=f"{split} pairs")
    params = SamplingParams(max_new_tokens=config.max_response_tokens)
    wide = dataclasses.replace(params, temperature=wide_temperature)
    how = PairSampling(
        params,
        responses_per_prompt,
        wide_params=None if wide_temperature == 1 else wide,
        batch_size=max(512 // responses_per_prompt, 1),
    )
    begin = time.perf_counter()
    pairs: list[TokenPair] = []
    sampled = sample_pairs(
        policy,
        tokenizer,
        reviews.prompts(split),
        count,
        ReviewsAnnotator(),
        how,
        generator=make_generator(config.seed, f"{split} pairs"),
        rng=random.Random(derive_seed(config.seed, f"{split} labels")),
    )
    with precision(policy.device, config.precision):
        for more in sampled:
            pairs += more
            log.write(step=len(pairs), seconds=time.perf_counter() - begin)
    return pairs


def require_strengths(records: Sequence[PreferenceRecord], config: RewardModelConfig) -> None:
    """UserError if the margins are to come from strengths and a record has none."""
    if config.margin_from != "strength":
        return
    for record in records:
        if preference_strength(record.meta) is None:
            raise UserError(
                f"{config.data}: the pair of {record.prompt[:60]!r} does not say how strongly its "
                "answer is preferred: --margin-from strength needs rows with `margin`, or with "
                "score_chosen and a score_rejected that is no higher; else use --margin-from constant"
            )


def file_pairs(
    config: RewardModelConfig, tokenizer: Tokenizer, context: int
) -> tuple[list[TokenPair], list[TokenPair]]:
    """Training and held-out pairs of a preference file that fit, split by prompt."""
    result = read_preferences(Path(config.data))
    print(result.summary())
    require_strengths(result.records, config)
    splits = split_records(result.records)
    limits = (config.max_prompt_tokens, config.max_response_tokens, context)
    fitting, dropped = dict[str, list[TokenPair]](), Counter[str]()
    for name, part in splits.items():
        fitting[name], too_long = keep_fitting(encode_pairs(part, tokenizer), *limits)
        dropped += too_long
    for reason, count in dropped.items():
        print(f"left out {count} pairs: {reason}")
    if not fitting["train"] or not fitting["validation"]:
        usable = sum(map(len, fitting.values()))
        prompts = len({tuple(pair.prompt) for part in fitting.values() for pair in part})
        raise UserError(
            f"{config.data}: {usable} usable pairs are too few to train and validate on, which takes "
            f"several prompts (these have {prompts}): give more"
        )
    return fitting["train"], fitting["validation"]


def base_folder(config: RewardModelConfig) -> Path:
    """The base model's run folder; pre-trains it first if the default one is not there."""
    if config.base is not None:
        return config.base
    folder = default_folder("pretraining", config.data, config.preset)
    if not on_main((folder / MODEL_FILE).exists):
        print(f"no base model in {display_path(folder)} yet: pre-training it first")
        defaults = PretrainingConfig(preset=config.preset, **pretraining.PRESETS[config.preset])
        pretraining.main(
            dataclasses.replace(
                defaults, data=config.data, seed=config.seed, device=config.device, out=folder
            )
        )
    return folder


def check_data(config: RewardModelConfig) -> None:
    """Refuse data without what the flags need, before a base is pre-trained."""
    if config.data == "sums":
        raise UserError(
            "sums are checked by a rule and need no reward model: run "
            "python -m rl.grpo_engine --data sums"
        )
    if config.data == "reviews" and config.margin_from == "strength":
        raise UserError(
            "the reviews' annotator says which answer is better, not by how much: use --margin-from "
            "constant"
        )
    if config.data != "reviews":
        require_strengths(read_preferences(Path(config.data), limit=1).records, config)


def sampled_pairs(
    policy: GPT, tokenizer: Tokenizer, config: RewardModelConfig
) -> tuple[list[TokenPair], list[TokenPair]]:
    """Training and held-out pairs of the reviews world."""
    K, wide = config.responses_per_prompt, config.wide_temperature
    pairs = world_pairs(policy, tokenizer, config, "train", config.pairs, K, wide)
    return pairs, world_pairs(policy, tokenizer, config, "validation", config.held_out_pairs, 2)


PAIR_FILES = ("pairs.jsonl", "held_out_pairs.jsonl")


def recorded_pairs(folder: Path, tokenizer: Tokenizer) -> tuple[list[TokenPair], list[TokenPair]]:
    """Training and held-out pairs that a run has kept, token by token as they were."""
    pairs, held_out = (
        [as_pair(row, tokenizer) for row in read_jsonl(folder / name)] for name in PAIR_FILES
    )
    return pairs, held_out


def announce_memory(config: RewardModelConfig, base: GPT, tokens: int, responses: int) -> Forecast:
    """Print what training needs; UserError if the base's device has less."""

    def memory_of(changed: RewardModelConfig) -> Forecast:
        return forecast(
            reward_model_work(changed, base.config, tokens, responses, base.device.type, world())
        )

    return announce(config, memory_of, base.device)


def normalise_and_test(
    model: RewardModel,
    pairs: Sequence[TokenPair],
    held_out: Sequence[TokenPair],
    config: RewardModelConfig,
    eos_id: int,
) -> Report:
    """Centre the scores on up to 2000 of the pairs, and compare those of the held-out ones."""
    at_once = config.scored_at_once
    reference = collate_pairs(pairs[:: max(len(pairs) // 2000, 1)], eos_id)
    model.normalize_on(reference.to(model.device), at_once)
    chosen, rejected, batch = score_pairs(model, held_out, eos_id, at_once)
    return preference_report(
        chosen, rejected, batch.lengths.cpu(), held_out, scale=float(model.std)
    )


@torch.no_grad()
def record_prefixes(
    model: RewardModel, pairs: Sequence[TokenPair], tokenizer: Tokenizer, folder: Path
) -> None:
    """Write the answers of a few pairs with the score after each of their tokens, the preferred first."""
    on_main(lambda: (folder / TOKENS).unlink(missing_ok=True))  # of a run that was ended here
    if not pairs:
        return
    ordered = [pairs[i : i + 1] for i in range(len(pairs))]
    batches = [collate_pairs(pair, tokenizer.eos_id) for pair in ordered]
    for number, (batch, (pair,)) in enumerate(zip(batches, ordered, strict=True)):
        scores = model.prefix_scores(batch.to(model.device))
        last = scores.gather(1, batch.lengths[:, None].to(scores.device) - 1)[:, 0].tolist()
        notes = {"reward": last, "preferred": [1.0, 0.0]}
        if "gold_chosen" in pair.meta:
            notes["gold"] = [pair.meta["gold_chosen"], pair.meta["gold_rejected"]]
        rows = token_rows(
            tokenizer, batch, [tokenizer.decode(pair.prompt)] * 2, {"prefix_score": scores}, notes,
            kind=f"held-out pair {number + 1}", step=0,
        )  # fmt: skip
        append_jsonl(folder / TOKENS, rows)


def main(config: RewardModelConfig) -> Path:
    """Make or read the pairs, train, report, and return the run folder."""
    device = pick_device(config.device, config.precision)
    check_data(config)
    base = base_folder(config)
    policy, tokenizer = load_policy(base, device)
    folder = config.out or default_folder("reward_model", config.data, config.preset)
    if config.data != "reviews":  # and one with too few before an earlier run is moved aside
        pairs, held_out = file_pairs(config, tokenizer, policy.config.context)
        announce_memory(config, policy, longest_pair(pairs), most_responses(by_prompt(pairs)))
    else:
        longest = min(config.max_prompt_tokens + config.max_response_tokens, policy.config.context)
        announce_memory(config, policy, longest, config.responses_per_prompt)
    folder = open_run(folder, config, resume=config.resume)
    open_page(folder, "reward_model", config)
    if config.resume:
        pairs, held_out = recorded_pairs(folder, tokenizer)
    else:
        if config.data == "reviews":
            pairs, held_out = sampled_pairs(policy, tokenizer, config)
        for name, kept in zip(PAIR_FILES, (pairs, held_out), strict=True):
            append_jsonl(folder / name, (pair_as_text(pair, tokenizer) for pair in kept))

    fit_for_training(config, policy)  # which the pairs were sampled from, and is the trunk now
    model = RewardModel.from_policy(policy, config.pooling, make_generator(config.seed, "head"))
    prompts = len(by_prompt(pairs))
    steps = config.steps or max(config.epochs * prompts // config.batch_size, 1)
    print(
        f"training a reward model on {len(pairs):,} pairs of {prompts:,} prompts for {steps} steps "
        f"({device})"
    )
    log = MetricLog(
        steps,
        path=folder / "metrics.jsonl",
        show=("loss", "accuracy", "margin"),
        every=max(steps // 6, 1),
        title="reward model",
        start=saved_step(folder) if config.resume else 0,
    )
    with stepping(log, folder):
        fit(model, pairs, config, log, eos_id=tokenizer.eos_id, folder=folder)
    with precision(device, config.precision):
        report = normalise_and_test(model, pairs, held_out, config, tokenizer.eos_id)
        record_prefixes(model, held_out[: config.record_tokens], tokenizer, folder)
    save_reward_model(folder / MODEL_FILE, model, tokenizer)
    write_json(folder / "report.json", report.numbers)
    plot_report(report, folder / "report.png")
    refresh(folder, log.rows)
    say_findings(config, log.rows, folder)
    print(report.text())
    finish_run(folder)
    print(
        f"wrote {display_path(folder)} (report: report.html, figure: report.png, numbers: report.json)"
    )
    return folder


if __name__ == "__main__":
    run_command(main, RewardModelConfig, PRESETS)
