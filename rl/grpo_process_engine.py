"""GRPO with process supervision (Shao et al. 2024, arXiv:2402.03300, section 4.1.3).

Algorithm 1 with lines 8 and 9 exchanged for the step-wise ones:

    line 1     policy model <- initial policy          the pre-trained or fine-tuned GPT
    line 3     reference model <- policy               reference (frozen copy)
    line 4     for step = 1..M                         run.steps
    line 5     sample a batch of prompts               run.prompts
    line 6     old policy <- policy                    run.old_log_probs: its log-probs alone
    line 7     sample G outputs per prompt             run.sample
    line 8     a reward at the end of every step       step_reward_fn: rewards, ends and mask (N, K)
    line 9     z-scores over all steps of the group,   process_advantages
               summed over the steps still to end
    line 10    for GRPO iteration = 1..mu              updates_per_batch
    line 11    ascend the GRPO objective (Eq. 3)       grpo_objective, with k3 as the KL

    q_ij <- (q_ij - mean(R)) / std(R)     R: the rewards of all steps of all G outputs
    A_it  = sum over the steps j that end at token t or later of q_ij

Each token answers for its own step and for those that follow, not for the ones before it. Nothing
divides by the number of steps: an output of many steps has larger advantages, and as one mean serves
them all, a step can be worth less than none.
What is new next to GRPO: rewards per step, advantages per token. With one step per output
(--steps-from outcome) it is GRPO, bit for bit. `reward` in the log stays the outcome's.

    python -m rl.grpo_process_engine --data sums       each written step and the answer, by rule
    python -m rl.grpo_process_engine                   reviews, sentences by the reward model
    python -m rl.grpo_process_engine --data sums --steps-from outcome
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from data.sources import world_source
from harness.errors import UserError
from harness.flags import NotNegative
from rl.batches.rollout import Update
from rl.equations.advantages import process_advantages
from rl.equations.kl import k3
from rl.equations.losses import grpo_objective
from rl.loop import Run
from rl.rewards.reward import components
from rl.rewards.step_rewards import (
    CheckedSteps,
    OutcomeSteps,
    RewardModelSteps,
    StepRewardFn,
    StepRewards,
    checked_steps,
)
from rl.run.config import EngineConfig, refuse_penalty, require_groups
from rl.run.engine import Engine
from rl.run.evaluation import Conditions
from rl.run.metrics import clip_mask
from rl.run.task import Task


@dataclass(frozen=True)
class ProcessGRPOConfig(EngineConfig):
    """Improve a policy with GRPO and a reward for every step of a response."""

    steps_from: Literal["auto", "rule", "outcome", "reward_model"] = "auto"
    """rule: each written step of a sum is checked; reward_model: its score after each sentence;
    outcome: one step, plain GRPO. auto: the rule for sums, else the reward model if there is one."""
    clip_range: NotNegative = 0.2
    """epsilon: the clip of the ratio to 1 - epsilon ... 1 + epsilon."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_groups(self)
        refuse_penalty("process-supervised GRPO", self)


def open_step_rewards(config: ProcessGRPOConfig, task: Task) -> dict[str, StepRewardFn]:
    """The source of step rewards that the flags ask for, as `train` takes it."""
    kind, models = config.steps_from, components(task.reward_fn).reward_models
    if len(models) > 1 and kind in ("auto", "reward_model"):
        raise UserError(
            "the scores after each sentence are those of one reward model: name one, or use "
            "--steps-from outcome with several"
        )
    world = world_source(config.data)
    if kind == "auto":
        kind = "rule" if world.step_checks else "reward_model" if models else "outcome"
    step_rewards: StepRewardFn = OutcomeSteps()
    if kind == "rule":
        if world.step_checks is None:
            raise UserError(
                f"--steps-from rule: {config.data} has no rule for the steps of a response; use "
                "outcome or reward_model"
            )
        step_rewards = CheckedSteps(world, task.tokenizer)
    if kind == "reward_model":
        if not models:
            raise UserError(
                f"--steps-from reward_model: the reward is the {task.reward_name}, not a model "
                "that scores its tokens; add --reward model, or use outcome"
            )
        how = Conditions.of(config)
        step_rewards = RewardModelSteps(models[0], task.tokenizer, how.scored, how.precision)
    print(f"steps: {kind.replace('_', ' ')}")
    return {"step_reward_fn": step_rewards}


def step_metrics(steps: StepRewards, advantages: Tensor, group_size: int) -> dict[str, float]:
    """Mean reward of a step, steps per response, and the share of groups without any advantage."""
    groups = advantages.reshape(len(advantages) // group_size, -1)
    return {
        "step_reward": float(steps.rewards[steps.mask].mean()),
        "steps_per_response": float(steps.mask.sum(1).float().mean()),
        "zero_spread_steps": float((groups == 0).all(1).float().mean()),
    }


def train(run: Run, *, step_reward_fn: StepRewardFn) -> list[dict[str, Any]]:
    """Run process-supervised GRPO, update `run.policy` in place and return one metrics row a step."""
    config: ProcessGRPOConfig = run.config
    policy, reference = run.policy, run.freeze_reference()  # lines 1 and 3
    run.clip_mask = clip_mask(config.clip_range)  # for the log
    for step in run.steps():  # line 4
        rollout = run.sample(run.prompts(step))  # lines 5-7
        rewards = run.rewards(rollout)  # (N,), the outcome for the log
        steps = checked_steps(step_reward_fn, rollout, rewards)  # (N, K)  line 8: to learn from
        advantages = process_advantages(  # (N, T)  line 9
            *steps, rollout.response_mask, config.group_size
        )
        old = run.old_log_probs(rollout)  # (N, T)  line 6
        ref = run.ref_log_probs(reference, rollout)  # (N, T), None where no KL is asked for
        update = Update(old, ref, advantages, rollout.response_mask)

        for rows in run.minibatches(rollout):  # line 10
            for part, batch in run.micro_batches(rollout, rows):
                scores = run.scores(policy, batch)  # (n, T), with a gradient
                given = update.rows(part)
                kl = None if given.ref is None else k3(scores.log_probs, given.ref)  # (n, T)
                loss = grpo_objective(  # line 11
                    scores.log_probs, given.old, given.advantages, given.mask, kl,
                    clip_range=config.clip_range, kl_coef=run.kl.coef, responses=len(rows),
                )  # fmt: skip
                loss.backward()
                run.record(loss, scores, given, batch)
            run.optimizer_step()  # line 11
        measured = step_metrics(steps, advantages, config.group_size)
        run.finish_step(step, rollout, rewards, update, measured=measured)
    return run.log.rows


ENGINE = Engine(
    name="grpo_process",
    box="Process-supervised GRPO",
    config=ProcessGRPOConfig,
    train=train,
    prepare=open_step_rewards,
)

main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
