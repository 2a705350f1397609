"""DPO: Direct Preference Optimization (Rafailov et al. 2023, arXiv:2305.18290, section 4).

    1) sample y_1, y_2 ~ pi_ref(. | x), have them      pairs: recorded before, one batch after the
       compared: D = (x, y_w, y_l)                     other in shuffled epochs
    2) minimise L_DPO for pi_ref, D and beta:
       pi_ref <- policy                                reference; its log-probs are computed once
       log pi(y | x) = sum_t log pi(y_t | x, y_<t)     pair_log_probs, frozen_log_probs
       h = log pi/pi_ref(y_w) - log pi/pi_ref(y_l)     dpo_loss (Eq. 7), ipo_loss
       descend the mean of -log sigmoid(beta h)        preference_loss

The same preferences as for a reward model, without one and without sampling: the offline control of
every RL engine here. `--label-smoothing` is conservative DPO, for labels that err; `--loss ipo` is
IPO (Azar et al. 2023, arXiv:2310.12036, Eq. 17), whose gap has a finite target. What is new next to
the RL engines: no rollout, no reward, no advantage. The reward model only scores the validation
samples, so that the numbers stand beside those of the other engines; a file of pairs needs none.

    python -m rl.dpo_engine                       reviews, the pairs of the reward model
    python -m rl.dpo_engine --label-smoothing 0.2
    python -m rl.dpo_engine --data pairs.json --preset small    after gpt.pretraining on the file
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from data.records import PromptRecord
from gpt.common import (
    MODEL_FILE,
    MetricLog,
    TrainingState,
    display_path,
    preset_defaults,
    run_script,
)
from gpt.flags import check_ranges
from gpt.model import GPT
from gpt.optimizer import adamw, clip_and_step, cosine_schedule, set_learning_rate
from gpt.pretraining import Preset, default_folder
from gpt.tokenizer import Tokenizer
from reward_model.pairs import TokenPair
from rl.batches.preferences import (
    Compared,
    PairStream,
    frozen_log_probs,
    open_pairs,
    pair_log_probs,
    pair_metrics,
    require_pairs,
)
from rl.equations.preferences import dpo_loss, ipo_loss
from rl.rewards.sources import RewardFn
from rl.training.evaluation import Validation
from rl.training.run import finish_step, run_training
from rl.training.setup import Task, open_reward

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "study": {},
    "small": dict(
        lr=3e-5, batch_size=8, micro_batch_size=16, steps=100, max_new_tokens=64, held_out_pairs=96,
        eval_prompts=32, test_prompts=64,
    ),
    **{
        name: dict(
            lr=1e-6, warmup=150, batch_size=64, micro_batch_size=micro, steps=1000,
            max_new_tokens=256,
        )
        for name, micro in [("gpt2", 16), ("gpt2-medium", 8), ("gpt2-large", 4), ("gpt2-xl", 2)]
    },
}  # fmt: skip


@dataclass(frozen=True)
class DPOConfig:
    """Improve a policy on preference pairs alone, with DPO or IPO."""

    preset: Preset = "tiny"
    """Size of the policy and matching defaults, applied before all other flags."""
    data: str = "reviews"
    """reviews (the pairs in the reward model's run folder) or a preference file (data/README.md)."""
    policy: Path | None = None
    """Run folder to start from; default: gpt.pretraining's for this data and preset."""
    reward_model: Path | None = None
    """Run folder of the reward model; default: the one of this data and preset."""
    reward: Literal["auto", "model", "gold"] = "auto"
    """What scores the validation samples; nothing is trained on it. auto: the reward model;
    nothing for a file that has none. gold: the true objective."""
    loss: Literal["dpo", "ipo"] = "dpo"
    """dpo: -log sigmoid(beta h). ipo: (h - 1 / (2 beta))^2."""
    beta: float = 0.1
    """How dear it is to leave the reference; smaller goes further."""
    label_smoothing: float = 0.0
    """s, the chance that a label is wrong (conservative DPO)."""
    length_norm: bool = False
    """Average a response's log-probs over its tokens. DPO's paper sums them; for IPO TRL averages."""
    steps: int = 200
    """Optimizer steps."""
    batch_size: int = 32
    """Pairs per optimizer step."""
    micro_batch_size: int = 64
    """Rows per forward pass, two a pair; changes memory and speed, never the gradient."""
    lr: float = 4e-4
    """Peak learning rate; a cosine brings it to a tenth."""
    warmup: int = 20
    """Steps of linear warm-up."""
    max_norm: float = 1.0
    """Gradient norm at which gradients are clipped."""
    temperature: float = 1.0
    """tau, of all log-probs and of the validation samples."""
    max_new_tokens: int = 48
    """Longest validation sample; pairs with a longer answer are left out and counted."""
    held_out_pairs: int = 256
    """Held-out pairs that are scored with every validation; 0 skips them."""
    eval_every: int = 50
    """Steps between validations."""
    eval_prompts: int = 128
    """Prompts per validation, one response each; 0 skips it."""
    test_prompts: int = 512
    """Test prompts that the start and the result answer once, after training; 0 skips it."""
    checkpoint_every: int = 100
    """Steps between resumable checkpoints."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast over float32 weights, for GPUs."""
    seed: int = 0
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""
    out: Path | None = None
    """Run folder; default runs/dpo-DATA-PRESET."""
    resume: bool = False
    """Continue the run in the run folder."""

    stop_kl: ClassVar[float | None] = None
    """No flag: an offline method samples nothing in training, so it has no KL to be stopped by."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.micro_batch_size < 2:
            raise ValueError(f"micro_batch_size must be at least 2: got {self.micro_batch_size}")
        if not self.beta > 0:
            raise ValueError(f"beta must be positive: got {self.beta}")
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(
                "label_smoothing, the chance that a label is wrong, must be at least 0 and below "
                f"0.5, where labels say nothing: got {self.label_smoothing}"
            )
        if self.loss == "ipo" and self.label_smoothing:
            raise ValueError("label_smoothing is DPO's: leave it out, or use --loss dpo")


def preference_loss(
    config: DPOConfig,
    log_probs: Tensor,  # (k, 2): log pi(y|x) of the chosen and the rejected responses
    ref_log_probs: Tensor,  # (k, 2)
    *,
    pairs: int,
) -> Tensor:
    """DPO's loss of some pairs of a batch (arXiv:2305.18290, Eq. 7), or IPO's.

    (1/pairs) sum -log sigmoid(beta h), h = log(pi / pi_ref)(y_w|x) - log(pi / pi_ref)(y_l|x), with
    `pairs` the size of the whole batch, so that micro-batches add up.
    """
    (chosen, rejected), (ref_chosen, ref_rejected) = log_probs.unbind(1), ref_log_probs.unbind(1)
    if config.loss == "ipo":
        losses = ipo_loss(chosen, rejected, ref_chosen, ref_rejected, config.beta)
    else:
        losses = dpo_loss(
            chosen, rejected, ref_chosen, ref_rejected, config.beta,
            label_smoothing=config.label_smoothing,
        )  # fmt: skip
    return losses.sum() / pairs


def held_out_metrics(
    config: DPOConfig,
    policy: GPT,
    held_out: Sequence[TokenPair],
    ref_log_probs: Tensor,  # (K, 2)
    eos_id: int,
) -> dict[str, float]:
    """Loss, accuracy and margin on pairs whose prompts are never trained on."""
    log_probs = frozen_log_probs(policy, held_out, eos_id, config, torch.arange(len(held_out)))
    numbers = pair_metrics([(log_probs, ref_log_probs)], config.beta)
    loss = preference_loss(config, log_probs, ref_log_probs, pairs=len(held_out))
    return {"held_out_loss": float(loss)} | {
        f"held_out_{name}": numbers[name] for name in ("accuracy", "margin")
    }


def train(
    config: DPOConfig,
    policy: GPT,
    tokenizer: Tokenizer,
    pairs: Sequence[TokenPair],
    log: MetricLog,
    *,
    held_out: Sequence[TokenPair] = (),
    validate: Validation | None = None,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Run DPO, update `policy` in place and return one metrics row an optimizer step.

    Every `eval_every` steps the numbers of `held_out` and of `validate` are added; with a folder a
    resumable state is kept there.
    """
    eos_id = tokenizer.eos_id
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    policy.eval()  # no dropout: h must compare two functions, not two random masks
    optimizer = adamw(policy, config.lr, weight_decay=0.0)
    state = TrainingState({"policy": policy, "reference": reference, "optimizer": optimizer}, {})
    if config.resume and folder is not None:
        state.load(folder)
    stream = PairStream(
        pairs, reference, eos_id, config,
        batch_size=config.batch_size, steps=config.steps, seed=config.seed,
    )  # fmt: skip
    held_out = held_out[: config.held_out_pairs]
    held_out_ref = frozen_log_probs(
        reference, held_out, eos_id, config, torch.arange(len(held_out))
    )

    for step in range(state.step, config.steps):
        begin = time.perf_counter()
        lr = cosine_schedule(step, config.steps, peak=config.lr, warmup=config.warmup)
        set_learning_rate(optimizer, lr)
        loss = torch.zeros((), device=policy.device)
        compared: list[Compared] = []
        optimizer.zero_grad(set_to_none=True)
        for batch, ref_log_probs in stream.micro_batches(step):
            log_probs = pair_log_probs(policy, batch, config)  # (k, 2)
            part_loss = preference_loss(config, log_probs, ref_log_probs, pairs=config.batch_size)
            part_loss.backward()
            loss += part_loss.detach()
            compared.append((log_probs.detach(), ref_log_probs))
        norm = clip_and_step(optimizer, policy.parameters(), config.max_norm)
        row = {"loss": float(loss), "grad_norm": float(norm), "lr": lr}
        row |= pair_metrics(compared, config.beta)
        row["pairs_per_second"] = config.batch_size / (time.perf_counter() - begin)
        state.step = step + 1
        if len(held_out) and (state.step % config.eval_every == 0 or state.step == config.steps):
            row |= held_out_metrics(config, policy, held_out, held_out_ref, eos_id)
        if finish_step(config, state, row, log, policy, reference, validate, folder):
            break
    return log.rows


def recorded_pairs(config: DPOConfig, task: Task) -> dict[str, Any]:
    """The training and the held-out pairs that `train` takes."""
    room = task.policy.config.context - config.max_new_tokens
    pairs, held_out = open_pairs(
        config.data, config.preset, config.reward_model, task.tokenizer, room, config.max_new_tokens
    )
    return {"pairs": pairs, "held_out": held_out}


def file_reward(config: DPOConfig, tokenizer: Tokenizer, device: torch.device) -> RewardFn | None:
    """What scores the validation samples of a file; None if no flag names it and none is there."""
    folder = default_folder("reward_model", config.data, config.preset)
    named = config.reward != "auto" or config.reward_model is not None
    if not named and not (folder / MODEL_FILE).exists():
        print(f"no reward model in {display_path(folder)}: the validations report no reward")
        return None
    return open_reward(
        config.reward, config.data, config.preset, config.reward_model, tokenizer, device
    )


def offline(
    config: DPOConfig,
    policy: GPT,
    tokenizer: Tokenizer,
    reward_fn: RewardFn | None,
    prompts: Sequence[PromptRecord],
    log: MetricLog,
    *,
    pairs: Sequence[TokenPair],
    held_out: Sequence[TokenPair],
    validate: Validation | None,
    folder: Path,
) -> list[dict[str, Any]]:
    """`train` with the arguments of an RL engine: neither the reward nor the prompts are used."""
    return train(
        config, policy, tokenizer, pairs, log, held_out=held_out, validate=validate, folder=folder
    )


def describe(config: DPOConfig) -> str:
    """The sizes of a batch in words, printed before a run."""
    return (
        f"{config.batch_size} pairs an optimizer step, {config.steps} steps; "
        f"{config.micro_batch_size // 2} pairs per forward"
    )


def main(config: DPOConfig) -> Path:
    """Run DPO with all I/O and return the run folder."""
    require_pairs(config.data)
    # The reviews' pairs are in a reward model's run folder, so there is a model to score with.
    own_reward = None if config.data == "reviews" else file_reward
    return run_training("dpo", config, offline, recorded_pairs, describe, own_reward)


if __name__ == "__main__":
    import tyro

    run_script(main, tyro.cli(DPOConfig, default=preset_defaults(DPOConfig, PRESETS)))
