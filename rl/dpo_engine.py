"""DPO: Direct Preference Optimization (Rafailov et al. 2023, arXiv:2305.18290, section 4).

    line 1   sample y_1, y_2 ~ pi_ref(. | x), have them      pairs: recorded before, one batch after
             compared: D = (x, y_w, y_l)                     the other in shuffled epochs
    line 2   pi_ref <- policy                                reference; its log-probs are computed once
    line 3   for every batch of pairs                        steps, PairStream
    line 4     log pi(y | x) = sum_t log pi(y_t | x, y_<t)   pair_log_probs, frozen_log_probs
    line 5     h = log pi/pi_ref(y_w) - log pi/pi_ref(y_l)   dpo_loss (Eq. 7)
    line 6     descend the mean of -log sigmoid(beta h)      preference_loss

The same preferences as for a reward model, without one and without sampling: the offline control of
every RL engine here. `--label-smoothing` is conservative DPO, for labels that err. `--loss` names a
row of PREFERENCE_LOSSES (rl/batches/preferences.py): ipo is IPO (Azar et al. 2023, arXiv:2310.12036,
Eq. 17), whose gap has a finite target. Its log pi(y | x) has two readings: ipo sums over tokens, as
OpenRLHF does; ipo_mean averages, as TRL does, which reports that IPO's authors confirmed the mean.
hinge is RSO's loss (arXiv:2309.06657), simpo SimPO (arXiv:2405.14734), which needs no reference, and
neither does orpo, ORPO (arXiv:2403.07691), which fine-tunes on the chosen answer beside it. kto is KTO
(arXiv:2402.01306), which judges each answer alone, against what answers to other prompts have gained
on average: policy and reference score the batch's prompts with shifted answers, too. It alone takes a
file of single answers with a `label`, true or false; a pair is two of them. What is new
next to the RL engines: no rollout, no reward, no advantage. The reward model only scores the
validation samples, so that the numbers stand beside those of the other engines; a file of pairs
needs none.

    python -m rl.dpo_engine                       reviews, the pairs of the reward model
    python -m rl.dpo_engine --label-smoothing 0.2
    python -m rl.dpo_engine --loss simpo          no reference model
    python -m rl.dpo_engine --loss orpo           nor here, and it begins from a base model
    python -m rl.dpo_engine --loss kto            pairs, or answers with a label
    python -m rl.dpo_engine --data pairs.json --preset small    after gpt.pretraining on the file
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from data.sources import USUAL, Data, default_folder, has_annotator
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.device import on_device
from harness.files import display_path
from harness.flags import AboveZero, AtLeastOne, AtLeastTwo, Count, NotNegative
from harness.metric_log import per_second
from harness.optimizer import cosine_schedule, steps_of_passes
from harness.paths import MODEL_FILE
from harness.ranks.collectives import all_reduce_sum
from reward_model.pairs import TokenPair, check_world
from rl.batches.preferences import (
    BatchLossName,
    Compared,
    PairStream,
    PreferenceFlags,
    RecordedPairFlags,
    as_read,
    check_preference_flags,
    frozen_log_probs,
    gather_compared,
    needs_reference,
    open_pairs,
    pair_lengths,
    pair_log_probs,
    pair_losses,
    pair_metrics,
)
from rl.loop import Run
from rl.rewards.reward import RewardFn, open_reward
from rl.run.config import RunFlags
from rl.run.engine import Engine
from rl.run.task import Task

STEPS = 200


@dataclass(frozen=True)
class DPOConfig(PreferenceFlags, RecordedPairFlags, RunFlags):
    """Improve a policy on preference pairs alone, with DPO or a relative of it."""

    data: Data = USUAL
    """A world (the pairs in the reward model's run folder) or a preference file (data/README.md)."""
    reward: Literal["auto", "model", "gold"] = "auto"
    """What scores the validation samples; nothing is trained on it. auto: the reward model;
    nothing for a file that has none. gold: the true objective."""
    loss: BatchLossName = "dpo"
    """dpo: -log sigmoid(beta h), or with label_smoothing conservative DPO. ipo: (h - 1 / (2 beta))^2;
    ipo_mean: h from means per token. hinge: max(0, 1 - beta h). simpo: -log sigmoid(simpo_beta (l_w
    - l_l) - target_margin), l the mean log-prob per token, without a reference. orpo: -l_w - beta log
    sigmoid(log odds ratio), without one, too. kto: each answer's log(pi / pi_ref) against a mean."""
    beta: AboveZero = 0.1
    """The price of leaving the reference; smaller goes further. Of orpo the weight of the odds ratio."""
    desirable_weight: AboveZero = 1.0
    """w_D of kto, the weight of good answers. Where n_D good and n_U bad ones are not balanced, its authors
    advise weights with which w_D n_D is 1 to 4/3 of w_U n_U."""
    undesirable_weight: AboveZero = 1.0
    """w_U of kto, the weight of bad answers."""
    steps: AtLeastOne | None = None  # type: ignore[assignment]  # of which `steps_of` makes a number
    """Optimizer steps; overrides epochs. Default: 200, where no passes are asked for."""
    epochs: AtLeastOne | None = None
    """Passes over the pairs."""
    batch_size: AtLeastOne = 32
    """Pairs per optimizer step."""
    micro_batch_size: AtLeastTwo = 64
    """Rows per forward pass, two a pair; changes memory and speed, never the gradient."""
    lr: NotNegative = 4e-4
    """Peak learning rate; a cosine brings it to a tenth."""
    warmup_steps: Count = 20
    """Steps of linear warm-up."""
    held_out_pairs: Count = 256
    """Held-out pairs that are scored with every validation; 0 skips them."""
    eval_every: AtLeastOne = 50
    """Steps between validations."""

    fixed_length = True  # a cosine brings the learning rate down over the steps

    def __post_init__(self) -> None:
        super().__post_init__()
        check_world(self.data)
        check_preference_flags(self, self.loss)
        if self.loss != "kto" and (self.desirable_weight, self.undesirable_weight) != (1, 1):
            raise ValueError(
                f"weights of good and bad answers are kto's: leave them out with {self.loss}"
            )
        if self.loss == "kto" and self.batch_size < 2:
            raise ValueError(
                "loss kto compares a prompt with the answers of the next pair: raise batch_size from "
                f"{self.batch_size} to 2 or more"
            )


def preference_loss(
    config: DPOConfig, compared: Compared, *, pairs: int, **of_batch: Tensor
) -> Tensor:
    """DPO's loss of some of a batch's `pairs` pairs (arXiv:2305.18290, Eq. 7), or the one --loss names.

    (1/pairs) sum -log sigmoid(beta h), h = log(pi / pi_ref)(y_w|x) - log(pi / pi_ref)(y_l|x).
    """
    return pair_losses(config.loss, compared, config, **of_batch).sum() / pairs  # lines 5-6


def of_whole_batch(
    config: DPOConfig, policy: GPT, reference: GPT | None, pairs: Sequence[TokenPair], eos_id: int
) -> dict[str, Tensor]:
    """What a loss reads of all pairs of a batch: KTO's reference_point z, of the others nothing.

    z = max(0, mean log(pi / pi_ref)(y'|x)), without a gradient: x is each prompt of the batch and y'
    the answers to the next other prompt in it, cut where the model's positions end. y' is no sample of
    pi(.|x), so z is no unbiased estimate of the KL.
    """
    if config.loss != "kto" or reference is None:
        return {}
    mixed = []
    for number, pair in enumerate(pairs):
        others = [*pairs[number + 1 :], *pairs[:number]]  # at least one, as batch_size is above 1
        other = next((each for each in others if each.prompt != pair.prompt), others[0])
        room = policy.config.context - len(pair.prompt)
        mixed.append(TokenPair(pair.prompt, other.chosen[:room], other.rejected[:room]))
    every = torch.arange(len(mixed))
    new, ref = (frozen_log_probs(m, mixed, eos_id, config, every) for m in (policy, reference))
    lengths = pair_lengths(mixed)
    gains = as_read("kto", Compared(new - ref, None, lengths), config).log_probs
    return {"reference_point": gains[on_device(lengths > 0, gains.device)].mean().clamp(min=0)}


def held_out_metrics(
    config: DPOConfig,
    policy: GPT,
    reference: GPT | None,
    held_out: Sequence[TokenPair],
    ref_log_probs: Tensor | None,  # (K, 2)
    eos_id: int,
) -> dict[str, float]:
    """Loss, accuracy and margin on pairs whose prompts are never trained on."""
    log_probs = frozen_log_probs(policy, held_out, eos_id, config, torch.arange(len(held_out)))
    compared = Compared(log_probs, ref_log_probs, pair_lengths(held_out))
    numbers = pair_metrics(config.loss, [compared], config)
    of_batch = of_whole_batch(config, policy, reference, held_out, eos_id)
    loss = preference_loss(config, compared, pairs=len(held_out), **of_batch)
    return {"held_out_loss": float(loss)} | {
        f"held_out_{name}": numbers[name] for name in ("accuracy", "margin") if name in numbers
    }


def train(
    run: Run, *, pairs: Sequence[TokenPair], held_out: Sequence[TokenPair] = ()
) -> list[dict[str, Any]]:
    """Run DPO, update `run.policy` in place and return one metrics row an optimizer step.

    Nothing is sampled: the run's prompts and reward take part in validations alone. Every `eval_every`
    steps the numbers of `held_out` are added to those of `validate`.
    """
    config: DPOConfig = run.config
    policy, eos_id = run.policy, run.tokenizer.eos_id
    reference = run.freeze_reference() if needs_reference(config.loss) else None  # line 2
    run.restored()  # the reference, too, which scores all pairs
    stream = PairStream(  # line 1
        pairs, reference, eos_id, config,
        batch_size=config.batch_size, steps=run.log.total, seed=config.seed,
    )  # fmt: skip
    held_out = held_out[: config.held_out_pairs]
    held_out_ref = None
    if reference is not None:
        every = torch.arange(len(held_out))
        held_out_ref = frozen_log_probs(reference, held_out, eos_id, config, every)

    for step in run.steps(share=cosine):  # line 3
        begin = time.perf_counter()
        run.zero_grad()
        whole = [stream.pairs[i] for i in stream.indices(step).tolist()]
        of_batch = of_whole_batch(config, policy, reference, whole, eos_id)
        compared: list[Compared] = []
        for batch, ref_log_probs, lengths in stream.micro_batches(step):  # line 3
            log_probs = pair_log_probs(policy, batch, lengths, config)  # (k, 2)  line 4
            both = Compared(log_probs, ref_log_probs, lengths)  # line 5
            loss = preference_loss(config, both, pairs=config.batch_size, **of_batch)  # line 6
            loss.backward()
            run.loss += loss.detach()
            compared.append(both.detach())
        norm = run.optimizer_step()  # line 6
        row = all_reduce_sum({"loss": float(run.loss)}) | {"grad_norm": float(norm), "lr": run.lr}
        row |= pair_metrics(config.loss, gather_compared(compared), config)
        row["pairs_per_second"] = per_second(config.batch_size, begin)
        due = (step + 1) % config.eval_every == 0 or step + 1 == config.steps
        if len(held_out) and due:
            row |= held_out_metrics(config, policy, reference, held_out, held_out_ref, eos_id)
        run.close_step(step, row)
    return run.log.rows


def steps_of(config: DPOConfig, pairs: Sequence[TokenPair], **_: object) -> int:
    """--steps, or those of --epochs."""
    if config.steps is not None or config.epochs is None:
        return config.steps or STEPS
    return steps_of_passes(config.epochs, len(pairs), config.batch_size)


def cosine(config: DPOConfig, step: int) -> float:
    """The share of the peak learning rate at 0-based `step`: a warm-up, then a cosine to a tenth."""
    return cosine_schedule(step, config.steps or STEPS, peak=1.0, warmup_steps=config.warmup_steps)


def recorded_pairs(config: DPOConfig, task: Task) -> dict[str, Any]:  # line 1
    """The training and the held-out pairs that `train` takes."""
    limits = config.limits(task.policy.config.context, config.max_new_tokens)
    pairs, held_out = open_pairs(
        config.data, config.preset, config.first_reward_model, task.tokenizer, limits,
        labelled=config.loss == "kto",
    )  # fmt: skip
    return {"pairs": pairs, "held_out": held_out}


def file_reward(config: DPOConfig, tokenizer: Tokenizer, device: torch.device) -> RewardFn | None:
    """What scores the validation samples of a file; None if no flag names it and none is there."""
    folder = default_folder("reward_model", config.data, config.model_name)
    named = config.reward != "auto" or bool(config.reward_model)
    if not named and not (folder / MODEL_FILE).exists():
        print(f"no reward model in {display_path(folder)}: the validations report no reward")
        return None
    return open_reward(config, tokenizer, device, None)


ENGINE = Engine(
    name="dpo",
    box="DPO",
    config=DPOConfig,
    train=train,
    learns_from="pairs",
    groups=False,
    prepare=recorded_pairs,
    steps_of=steps_of,
    # A world's pairs are in a reward model's run folder, so there is a model to score with.
    own_reward=lambda config: None if has_annotator(config.data) else file_reward,
    toy="--batch-size 4 --held-out-pairs 8",
)


main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
