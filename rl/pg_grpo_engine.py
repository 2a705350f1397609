"""PG-GRPO: preference-guided GRPO, the GRPO loss plus a weighted DPO loss.

    line 1     reference model <- policy               reference (frozen copy)
    line 2     sample prompts and G outputs of each    run.prompts, run.sample
    line 3     rewards, group-relative advantages      run.rewards, group_advantages
    line 4     pairs (y_w, y_l): best and worst of     best_worst_pairs, ordered_pairs,
               each group, all ordered ones, and/or    offline_pairs
               recorded ones
    line 5     for 1..mu, for every minibatch         run.minibatches
    line 6       L_GRPO (arXiv:2402.03300, Eq. 3)      grpo_objective, with k3 as the KL (Eq. 4)
    line 7       L_pref = mean over pairs of           preference_loss: dpo_loss
                 -log sigmoid(beta_dpo h)              (arXiv:2305.18290, Eq. 7)
    line 8       descend L_GRPO + lambda L_pref        preference_coef; backward

No paper of this name gives a box; this is GRPO's Algorithm 1 with lines 4, 7 and 8 added, close to
AMIR-GRPO (arXiv:2601.03661), whose pairs are `--pairs all` and whose log-probs `--length-norm`.
What is new next to GRPO: the comparison of two responses enters as such, not only through an
advantage, and pulls by how wrongly the policy orders them. Three weights are three numbers: kl_coef,
dpo_beta and preference_coef. The preference loss has no ratio and no clip. `--preference-loss` names
a row of PREFERENCE_LOSSES (rl/batches/preferences.py); all but simpo and orpo need the frozen
reference, also without a KL penalty. With preference_coef = 0 this is rl/grpo_engine.py bit for bit.

    python -m rl.pg_grpo_engine                       reviews, the best and the worst of each group
    python -m rl.pg_grpo_engine --pairs offline       the pairs of the reward model beside the rollouts
    python -m rl.pg_grpo_engine --preference-loss ipo_mean --preference-coef 0.002
    python -m rl.pg_grpo_engine --data sums           arithmetic, checked by a rule
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gpt.model import GPT
from harness.flags import AboveZero, AtLeastOne, NotNegative
from reward_model.pairs import TokenPair
from rl.batches.preferences import (
    Compared,
    LossName,
    PairStream,
    PreferenceFlags,
    RecordedPairFlags,
    check_preference_flags,
    compared_rows,
    gather_compared,
    needs_reference,
    open_pairs,
    pair_log_probs,
    pair_losses,
    pair_metrics,
    pairs_within,
)
from rl.batches.rollout import Rollout, Update
from rl.equations.advantages import best_worst_pairs, ordered_pairs
from rl.equations.kl import k3
from rl.equations.losses import grpo_objective
from rl.loop import Run
from rl.run.config import EngineConfig, require_groups
from rl.run.engine import Engine
from rl.run.metrics import clip_mask
from rl.run.task import Task


@dataclass(frozen=True)
class PGGRPOConfig(PreferenceFlags, RecordedPairFlags, EngineConfig):
    """Improve a policy with GRPO and a preference loss."""

    clip_range: NotNegative = 0.2
    """epsilon: the clip of the ratio to 1 - epsilon ... 1 + epsilon."""
    preference_coef: NotNegative = 0.1
    """lambda, the weight of the preference loss; 0 is GRPO."""
    preference_loss: LossName = "dpo"
    """L_pref: dpo, ipo, ipo_mean (IPO of means per token), hinge, or without a reference simpo, orpo."""
    pairs: Literal["best_worst", "all", "offline", "both"] = "best_worst"
    """best_worst: of each group. all: every two of a group. offline: recorded ones. both: the first
    and the third. A group that is compared stands whole in a forward, above micro_batch_size too."""
    margin: NotNegative = 0.0
    """Two responses of a group are a pair only if their rewards differ by more than this."""
    dpo_beta: AboveZero = 0.1
    """beta of the preference loss; not the weight of the KL penalty."""
    offline_batch_size: AtLeastOne = 16
    """Recorded pairs per rollout batch, in each of its optimizer steps (pairs offline and both)."""

    has_gdpo = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_groups(self)
        check_preference_flags(self, self.preference_loss)

    @property
    def compares_groups(self) -> bool:
        """Whether pairs are made within the groups of a rollout."""
        return self.preference_coef > 0 and self.pairs != "offline"

    @property
    def rows_together(self) -> int:
        """A group, where its pairs are compared: none is split."""
        return self.group_size if self.compares_groups else 1

    @property
    def uses_recorded_pairs(self) -> bool:
        """Whether pairs from outside take part."""
        return self.preference_coef > 0 and self.pairs in ("offline", "both")

    @property
    def needs_reference(self) -> bool:
        """Whether a preference loss compares with the reference."""
        return self.preference_coef > 0 and needs_reference(self.preference_loss)

    @property
    def beta(self) -> float:
        """dpo_beta, under the name that the losses know it by."""
        return self.dpo_beta


def preference_loss(config: PGGRPOConfig, compared: Compared, *, pairs: int) -> Tensor:
    """L_pref of some of the `pairs` pairs of a minibatch (arXiv:2305.18290, Eq. 7); 0 of none.

    (1/pairs) sum -log sigmoid(beta h), h = log(pi / pi_ref)(y_w|x) - log(pi / pi_ref)(y_l|x), beta =
    dpo_beta; or the loss that --preference-loss names.
    """
    return pair_losses(config.preference_loss, compared, config).sum() / max(pairs, 1)


def group_pairs(config: PGGRPOConfig, rewards: Tensor) -> Tensor:
    """The pairs within the groups that the config asks for, row numbers (K, 2) on the CPU."""
    if not config.compares_groups:
        return torch.empty(0, 2, dtype=torch.long)
    choose = ordered_pairs if config.pairs == "all" else best_worst_pairs
    return choose(rewards, config.group_size, config.margin).cpu()


def recorded_stream(
    config: PGGRPOConfig, pairs: Sequence[TokenPair], reference: GPT, eos_id: int
) -> PairStream:
    """The recorded pairs where the flags want them, scored by the reference if a loss reads it."""
    if config.uses_recorded_pairs and not pairs:
        raise ValueError(f'pairs="{config.pairs}" needs recorded pairs: give offline_pairs')
    return PairStream(
        pairs if config.uses_recorded_pairs else (),
        reference if config.needs_reference else None, eos_id, config,
        batch_size=config.offline_batch_size, steps=config.steps, seed=config.seed,
    )  # fmt: skip


def preference_metrics(
    config: PGGRPOConfig, pairs: int, compared: Sequence[Compared]
) -> dict[str, float]:
    """L_pref, and its accuracy and margin, over all pairs that the step has compared."""
    if not config.preference_coef:
        return {}
    compared = gather_compared(compared)
    if not compared:
        return {"pairs": pairs, "preference_loss": 0.0}
    count = sum(len(part.log_probs) for part in compared)
    loss = sum(float(preference_loss(config, part, pairs=count)) for part in compared)
    numbers = pair_metrics(config.preference_loss, compared, config)
    return {"pairs": pairs, "preference_loss": loss} | {
        f"preference_{name}": numbers[name] for name in ("accuracy", "margin")
    }


def descend_rollout(
    config: PGGRPOConfig,
    run: Run,
    rollout: Rollout,
    rows: Tensor,  # of one minibatch
    update: Update,
    pairs: Tensor,  # (K, 2) row numbers, on the CPU
    pair_count: int,  # of the minibatch, the recorded ones included
) -> list[Compared]:
    """The gradient of L_GRPO + lambda L_pref on the rows of a minibatch; the pairs that it compared."""
    compared: list[Compared] = []
    for part, batch in run.micro_batches(rollout, rows):
        scores, given = run.scores(run.policy, batch), update.rows(part)
        kl = None if given.ref is None else k3(scores.log_probs, given.ref)  # (n, T)
        loss = grpo_objective(  # line 6
            scores.log_probs, given.old, given.advantages, given.mask, kl,
            clip_range=config.clip_range, kl_coef=run.kl.coef, responses=len(rows),
        )  # fmt: skip
        here = pairs_within(pairs, part.cpu())
        if len(here):
            both = compared_rows(scores.log_probs, given.ref, given.mask, here)
            l_pref = preference_loss(config, both, pairs=pair_count)  # line 7
            loss = loss + config.preference_coef * l_pref  # line 8
            compared.append(both.detach())
        loss.backward()
        run.record(loss, scores, given, batch)
    return compared


def descend_recorded(
    config: PGGRPOConfig, run: Run, recorded: PairStream, step: int, pair_count: int
) -> list[Compared]:
    """The gradient of lambda L_pref on the step's recorded pairs; the pairs."""
    compared: list[Compared] = []
    for batch, ref_sums, lengths in recorded.micro_batches(step):
        log_probs = pair_log_probs(run.policy, batch, lengths, config)  # (k, 2)
        both = Compared(log_probs, ref_sums, lengths)
        l_pref = preference_loss(config, both, pairs=pair_count)  # line 7
        loss = config.preference_coef * l_pref  # line 8
        loss.backward()
        run.loss += loss.detach()
        compared.append(both.detach())
    return compared


def train(run: Run, *, offline_pairs: Sequence[TokenPair] = ()) -> list[dict[str, Any]]:
    """Run PG-GRPO, update `run.policy` in place and return one metrics row a step.

    `offline_pairs` are the recorded pairs of `pairs` "offline" and "both".
    """
    config: PGGRPOConfig = run.config
    reference = run.freeze_reference()  # line 1
    run.clip_mask = clip_mask(config.clip_range)  # for the log
    run.restored()  # the reference, too, which scores the recorded pairs
    recorded = recorded_stream(config, offline_pairs, reference, run.tokenizer.eos_id)  # line 4
    for step in run.steps():
        rollout = run.sample(run.prompts(step))  # line 2
        rewards = run.rewards(rollout)  # (N,)  line 3
        advantages = run.group_advantages(rollout, rewards)  # (N, 1)  line 3
        old = run.old_log_probs(rollout)  # (N, T)
        compares = config.compares_groups and config.needs_reference
        ref = run.ref_log_probs(reference, rollout, needed=compares)  # (N, T) or None
        update = Update(old, ref, advantages, rollout.response_mask)
        pairs = group_pairs(config, rewards)  # line 4

        compared: list[Compared] = []  # for the log
        for rows in run.minibatches(rollout):  # line 5
            count = len(pairs_within(pairs, rows)) + recorded.batch_size
            compared += descend_rollout(config, run, rollout, rows, update, pairs, count)  # 6-8
            compared += descend_recorded(config, run, recorded, step, count)  # lines 7-8
            run.optimizer_step()  # line 8

        measured = preference_metrics(config, len(pairs) + recorded.batch_size, compared)
        run.finish_step(step, rollout, rewards, update, measured=measured)
    return run.log.rows


def recorded_pairs(config: PGGRPOConfig, task: Task) -> dict[str, Any]:
    """The training pairs that `train` takes; held-out ones take no part."""
    if not config.uses_recorded_pairs:
        return {}
    limits = config.limits(task.policy.config.context, config.max_new_tokens)
    folder = config.first_reward_model
    pairs, _ = open_pairs(config.data, config.preset, folder, task.tokenizer, limits)
    return {"offline_pairs": pairs}


ENGINE = Engine(
    name="pg_grpo",
    box="PG-GRPO",
    config=PGGRPOConfig,
    train=train,
    prepare=recorded_pairs,
    toy="--pairs both --offline-batch-size 4",
)

main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
