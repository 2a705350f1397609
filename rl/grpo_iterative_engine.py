"""Iterative GRPO: GRPO with an outer loop (Shao et al. 2024, arXiv:2402.03300, Algorithm 1).

    line 1     policy model <- initial policy          the pre-trained or fine-tuned GPT
    line 2     for iteration = 1..I                    iterations
    line 3     reference model <- policy               reference, overwritten: its KL is 0 again
    line 4     for step = 1..M                         M = steps / iterations
    lines 5-11 the steps of GRPO                       as in grpo_engine.py
    line 12    train the reward model again, with      ContinualRewardModel.update
               replay of 10% historical data           (reward_model/continual.py)

Line 12 stands before the first step of the next iteration, so that a checkpoint between two
iterations resumes in front of it; after the last iteration nobody would use its result, and it is
left out. New pairs are responses of the policy as it stands at the end of the iteration, labelled
by the world's annotator; the reward model's optimizer and the policy's are both kept.
What is new next to grpo_engine.py: reference and reward model follow the policy. With one iteration
the two engines are the same, bit for bit. With several the reference no longer holds the policy
near its start: `kl` is the distance gone in this iteration, `kl_from_start` the whole one, which
--stop-kl bounds. Rewards of two iterations are on different scales.

    python -m rl.grpo_iterative_engine                                reviews, a refreshed reward model
    python -m rl.grpo_iterative_engine --no-refresh-reward-model      the reference alone is reset
    python -m rl.grpo_iterative_engine --data sums                    a rule needs no refresh
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data.sources import default_folder, has_annotator, world_source
from gpt.lora import fit_for_training
from harness.errors import UserError
from harness.files import read_object
from harness.flags import AboveZero, AtLeastOne, AtLeastTwo, KLNats, NotNegative
from harness.paths import MODEL_FILE
from harness.run_folder import CONFIG_FILE
from reward_model.continual import ContinualRewardModel, History, history_count, read_visits
from reward_model.pairs import as_pair
from reward_model.reward_model_training import RewardModelConfig
from reward_model.scalar_head import save_reward_model
from reward_model.world_pairs import WorldAnnotator
from rl.batches.rollout import Update
from rl.equations.kl import loss_estimator
from rl.equations.losses import grpo_objective
from rl.loop import Run
from rl.rewards.reward import components
from rl.run.config import EngineConfig, require_groups
from rl.run.engine import Engine
from rl.run.metrics import clip_mask
from rl.run.task import Task


@dataclass(frozen=True)
class IterativeGRPOConfig(EngineConfig):
    """Improve a policy with GRPO in iterations that move the reference and the reward model."""

    steps: AtLeastOne = 90
    """Rollout batches of all iterations together."""
    iterations: AtLeastOne = 3
    """I: how often the reference becomes the policy; each iteration has steps / iterations steps."""
    refresh_reward_model: bool = True
    """Train the reward model again between iterations; without, only the reference is reset."""
    new_pairs: AtLeastOne = 5600
    """Comparisons of the policy's responses to sample and label between iterations."""
    responses_per_prompt: AtLeastTwo = 8
    """K: responses to a prompt of which every two are compared."""
    wide_temperature: AboveZero = 1.5
    """Temperature at which every second half of those responses is drawn; the rest are at 1."""
    check_pairs: AtLeastOne = 256
    """More comparisons, on which the reward model is measured and never trained."""
    replay_fraction: float = 0.1
    """Share of earlier comparisons in what the reward model is trained on again."""
    reward_batch_size: AtLeastOne = 8
    """Prompts per optimizer step of the reward model, each with all its pairs."""
    clip_range: NotNegative = 0.2
    """epsilon: the clip of the ratio to 1 - epsilon ... 1 + epsilon."""
    kl_estimator: Literal["k3", "k2"] = "k3"
    """k3 is the paper's; k2 has the gradient of KL(policy || reference)."""

    stop_kl: KLNats | None = 8.0
    """Stop once the KL per response from the start, not from an iteration's reference, exceeds this
    many nats, and keep the last policy inside them."""

    fixed_length = True  # an iteration has steps / iterations steps

    has_gdpo = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_groups(self)
        loss_estimator(self.kl_estimator)
        history_count(1, 1, self.replay_fraction)
        if self.minutes is not None:
            raise ValueError("minutes cannot be divided into iterations: give steps instead")
        if self.steps % self.iterations:
            raise ValueError(
                f"{self.steps} steps cannot be divided into {self.iterations} equal iterations: "
                "make steps a multiple of iterations"
            )
        refreshed = self.refresh_reward_model and self.iterations > 1
        if refreshed and len(self.reward_model) > 1:
            raise ValueError(
                f"{len(self.reward_model)} reward models cannot be trained again between iterations, "
                "one can: name one, or set refresh_reward_model to False"
            )


def train(run: Run, *, refresh: ContinualRewardModel | None = None) -> list[dict[str, Any]]:
    """Run iterative GRPO, update `run.policy` in place and return one metrics row a step.

    `refresh` holds the reward model that the reward asks, and trains it between iterations; without
    it the rewards stay as they are.
    """
    config: IterativeGRPOConfig = run.config
    policy = run.policy  # line 1
    reference = run.freeze_reference(moves=config.iterations > 1)  # line 3
    if refresh is not None:
        run.parts["reward model"] = refresh
        if run.folder is not None:
            refresh.open(run.folder, run.restored().step)

    kl = loss_estimator(config.kl_estimator)  # Eq. 4
    run.clip_mask = clip_mask(config.clip_range)  # for the log
    per_iteration = config.steps // config.iterations  # M
    for step in run.steps():  # lines 2 and 4
        measured: dict[str, float] = {"iteration": step // per_iteration + 1}
        if step > 0 and step % per_iteration == 0:  # a new iteration
            if refresh is not None:
                with run.clock.phase("refresh"):
                    measured |= refresh.update(policy, step + 1)  # line 12 of the one before
            reference.load_state_dict(policy.state_dict())  # line 3
        rollout = run.sample(run.prompts(step))  # lines 5-7
        rewards = run.rewards(rollout)  # (N,)  line 8
        advantages = run.group_advantages(rollout, rewards)  # (N, 1)  line 9
        old = run.old_log_probs(rollout)  # (N, T)  line 6
        ref = run.ref_log_probs(reference, rollout)  # (N, T), None where no KL is asked for
        update = Update(old, ref, advantages, rollout.response_mask)

        for rows in run.minibatches(rollout):  # line 10
            for part, batch in run.micro_batches(rollout, rows):
                scores = run.scores(policy, batch)  # (n, T), with a gradient
                given = update.rows(part)
                penalty = None if given.ref is None else kl(scores.log_probs, given.ref)  # (n, T)
                loss = grpo_objective(  # line 11
                    scores.log_probs, given.old, given.advantages, given.mask, penalty,
                    clip_range=config.clip_range, kl_coef=run.kl.coef, responses=len(rows),
                )  # fmt: skip
                loss.backward()
                run.record(loss, scores, given, batch)
            run.optimizer_step()  # line 11
        run.finish_step(step, rollout, rewards, update, measured=measured)
    if refresh is not None and run.folder is not None:
        save_reward_model(run.folder / "reward_model" / MODEL_FILE, refresh.model, run.tokenizer)
    return run.log.rows


def learning_rate(folder: Path) -> float:
    """The peak rate that the reward model of a run folder was trained with, also for each refresh."""
    path = folder / CONFIG_FILE
    return read_object(path)["lr"] if path.exists() else RewardModelConfig.lr


def open_refresh(config: IterativeGRPOConfig, task: Task) -> dict[str, Any]:
    """What `train` needs besides the task: the reward model with its pairs and an annotator."""
    if not config.refresh_reward_model or config.iterations == 1:
        return {}
    models = components(task.reward_fn).reward_models
    if len(models) != 1:
        raise UserError(
            f"the reward is the {task.reward_name}, not a reward model that could be trained "
            "again: add --no-refresh-reward-model"
        )
    if not has_annotator(config.data):
        raise UserError(
            f"nobody is there to label new pairs for {config.data}: add --no-refresh-reward-model, "
            "or use the reviews"
        )
    folder = config.first_reward_model or default_folder(
        "reward_model", config.data, config.model_name
    )
    original = read_visits(folder / "pairs.jsonl")
    held_out = read_visits(folder / "held_out_pairs.jsonl")
    probe = [as_pair(row, task.tokenizer) for visit in held_out for row in visit]
    fitting = RewardModelConfig(
        pairs=config.new_pairs,
        held_out_pairs=config.check_pairs,
        responses_per_prompt=config.responses_per_prompt,
        wide_temperature=config.wide_temperature,
        max_response_tokens=config.max_new_tokens,
        epochs=1,
        batch_size=config.reward_batch_size,
        lr=learning_rate(folder),
        warmup_steps=5,
        precision=config.precision,
        gradient_checkpointing=config.gradient_checkpointing,
        seed=config.seed,
    )
    fit_for_training(config, models[0].gpt)
    refresh = ContinualRewardModel(
        models[0],
        task.tokenizer,
        task.prompts["train"],
        WorldAnnotator(world_source(config.data)),
        fitting,
        History(original, config.replay_fraction),
        probe=probe[:500],
    )
    return {"refresh": refresh}


ENGINE = Engine(
    name="grpo_iterative",
    box="Iterative GRPO",
    config=IterativeGRPOConfig,
    train=train,
    prepare=open_refresh,
    toy="--iterations 2 --new-pairs 160 --check-pairs 16 --responses-per-prompt 4 --reward-batch-size 2",
)

main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
