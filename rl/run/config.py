"""The flags of every engine; an engine adds flags of its own and tuned defaults.

A field's docstring is its help text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data.sources import USUAL, Data
from gpt.folder import hub_repo, place_of
from gpt.recipes import ModelFlags
from harness.console import say_once
from harness.flags import (
    LARGEST,
    AboveZero,
    AtLeastOne,
    Count,
    KLNats,
    Limit,
    NotNegative,
)
from rl.equations.kl import AdaptiveKL, FixedKL
from rl.rewards.reward import check_reward, names_model, rewards_of


@dataclass(frozen=True)
class RunFlags(ModelFlags):
    """Flags of every engine: where it starts, what pays, its steps and what it measures."""

    data: Data = USUAL
    """A world (reviews, sums, instructions) or a file with prompts (formats: data/README.md)."""
    reward: str | tuple[str, ...] = "auto"
    """auto: the rule where answers can be checked, otherwise the reward model. model, rule: that one.
    gold: the world's own. Or a reward model's name, or a function of yours, MODULE:FUNCTION or
    FILE.py:FUNCTION, that is called as function(prompt, response) and gives a number
    (rl/rewards/function.py). Or several of these."""
    reward_weights: tuple[float, ...] = ()
    """What each of several rewards counts; default: 1. One of 0 is measured and not paid."""
    reward_combination: Literal["sum", "gdpo"] = "sum"
    """How several rewards are one. sum: their weighted sum. gdpo: each is first normalised in its group
    (GDPO, arXiv:2601.05242), so that it counts by its weight, however much it varies."""
    reward_model: tuple[str, ...] = ()
    """The reward model, a run's or a published one, or several; default: the one of this data and model."""
    ensemble: Literal["mean", "min"] = "mean"
    """What several reward models pay: their mean, or the least of them."""

    steps: AtLeastOne = 80
    """Rollout batches."""
    micro_batch_size: AtLeastOne = 32
    """Rows per forward pass; changes memory and speed, never the gradient."""
    lr: NotNegative = 2e-4
    """Peak learning rate, constant after the warm-up."""
    warmup_steps: Count = 5
    """Batches of linear warm-up."""
    max_grad_norm: Limit = 1.0
    """Gradient norm at which gradients are clipped."""
    temperature: AboveZero = 1.0
    """tau, the same for sampling and scoring."""
    max_new_tokens: AtLeastOne = 48
    """Longest response; a longer one is cut off and has no EOS."""

    eval_every: AtLeastOne = 10
    """Steps between validations."""
    eval_prompts: Count = 128
    """Prompts per validation, one response each; 0 skips it."""
    test_prompts: Count = 512
    """Test prompts that the start and the result answer once, after training; 0 skips it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.reward, str) and names_model(self.reward) and not self.reward_model:
            object.__setattr__(self, "reward_model", (self.reward,))
            object.__setattr__(self, "reward", "model")
        check_rewards(self)
        check_ensemble(self)

    def named_models(self) -> list[str]:
        return [*super().named_models(), *self.judges]

    @property
    def judges(self) -> list[str]:
        """The reward models that are named, as --reward-model or as one of several rewards."""
        return [*self.reward_model, *filter(names_model, rewards_of(self.reward))]

    @property
    def scored_rows(self) -> int:
        """Rows that are scored at once: without a graph twice as many fit as in an update."""
        return min(2 * self.micro_batch_size, 64)

    @property
    def first_reward_model(self) -> Path | None:
        """The reward model of an engine that can use one alone: its recorded pairs, its replay."""
        return place_of(self.judges[0]) if self.judges else None

    has_gdpo = False  # whether the engine's advantages are Run.group_advantages


@dataclass(frozen=True)
class EngineConfig(RunFlags):
    """Flags of every engine that samples: its rollout batches, their updates, the KL."""

    prompts_per_step: AtLeastOne = 16
    """Prompts per rollout batch."""
    group_size: AtLeastOne = 8
    """G: responses per prompt."""
    updates_per_batch: AtLeastOne = 1
    """mu: passes over each rollout batch."""
    minibatches: AtLeastOne = 2
    """Optimizer steps per pass."""

    missing_eos_penalty: NotNegative = 0.0
    """What is taken off the reward of an answer that was cut off."""
    kl_coef: float = 0.1
    """beta, the weight of the KL penalty; with 0 and no stop_kl no reference is asked."""
    kl_target: AboveZero | None = None
    """Nats per response that kl_coef holds by moving after each batch; default: it stays."""
    stop_kl: KLNats | None = 6.0
    """Stop once the KL per response from the start exceeds this many nats, and keep the last policy
    inside them."""
    stop_kl_per_token: KLNats | None = None
    """The same for nats per token, the KL over the mean length: 8 nats are few for an answer of 40 tokens,
    and break the text of one of 12."""

    family = "rl"
    largest_sampled = ("prompts_per_step", "group_size", "max_new_tokens")
    kl_horizon = 10_000  # responses over which kl_coef moves towards kl_target

    def __post_init__(self) -> None:
        super().__post_init__()
        kl_controller(self)
        if self.reward_combination == "gdpo":
            refuse_penalty(
                "gdpo", self, ", and pay it as a reward of its own: f(prompt, response, ended)"
            )

    @property
    def kl_limits(self) -> tuple[float, float] | None:
        """Nats per response and per token that end the run; None: nothing does."""
        limits = self.stop_kl, self.stop_kl_per_token
        return None if limits == (None, None) else (limits[0] or math.inf, limits[1] or math.inf)

    @property
    def rows_together(self) -> int:
        """Neighbouring rows that no forward parts: a group's, in an engine whose loss compares them."""
        return 1

    @property
    def updates(self) -> int:
        """The most optimizer steps that a batch can take."""
        return self.updates_per_batch * self.minibatches


def refuse_others(engine: str, config: EngineConfig) -> None:
    """ValueError for flags of a reference, or of a reward, of an engine that has a teacher alone."""
    refuse_penalty(engine, config)
    if config.kl_coef or config.kl_limits:
        flags = "--kl-coef, --stop-kl and --stop-kl-per-token"
        raise ValueError(f"{engine} has no reference: leave {flags} out")


def refuse_penalty(engine: str, config: EngineConfig, instead: str = "") -> None:
    """ValueError for the penalty of an engine that does not learn from an answer's reward as it is."""
    if config.missing_eos_penalty:
        raise ValueError(f"{engine}: leave --missing-eos-penalty out{instead}")


def check_rewards(config: RunFlags) -> None:
    """ValueError for rewards, weights or a combination that no run can mean."""
    names, weights = rewards_of(config.reward), config.reward_weights
    for name in names:
        check_reward(name)
    if not names or len({*names}) < len(names):
        raise ValueError(f"reward names none, or one twice: got {' '.join(names)}")
    if weights and len(weights) != len(names):
        raise ValueError(f"there are {len(names)} rewards and {len(weights)} reward_weights")
    if weights and not (any(weights) and all(abs(weight) <= LARGEST for weight in weights)):
        raise ValueError(f"reward_weights must be numbers up to {LARGEST:g}, not all 0: {weights}")
    if config.reward_combination == "gdpo" and not config.has_gdpo:
        raise ValueError(
            "reward_combination gdpo is defined where advantages are a group's (R - mean) / std: leave it "
            "out, or take rl.grpo_engine or another of GRPO's family"
        )


def check_ensemble(config: RunFlags) -> None:
    """Raise ValueError for flags that make no ensemble."""
    folders = config.reward_model
    if not isinstance(folders, tuple):
        raise ValueError(f"reward_model must be a tuple of names: got {folders!r}")
    if len({hub_repo(name) or place_of(name).resolve() for name in folders}) < len(folders):
        raise ValueError("reward_model names a folder twice: an ensemble needs different models")
    if config.ensemble != "mean" and len(folders) < 2:
        raise ValueError(f"ensemble {config.ensemble} needs two folders or more as reward_model")


def kl_controller(config: EngineConfig) -> FixedKL | AdaptiveKL:
    """The rule for the KL coefficient that the flags ask for. Raises ValueError if it cannot work."""
    if config.kl_target is None:
        return FixedKL(config.kl_coef)
    if not 0 < config.kl_coef < math.inf:
        raise ValueError(f"a kl_target needs a positive and finite kl_coef: got {config.kl_coef}")
    return AdaptiveKL(config.kl_coef, config.kl_target, config.kl_horizon)


def require_groups(config: EngineConfig) -> None:
    """Refuse a group of one where the group is the baseline."""
    if config.group_size < 2:
        raise ValueError(f"the group is the baseline: group_size {config.group_size} is below 2")


def warmed_up(config: EngineConfig, step: int) -> float:
    """The share of the learning rate at 0-based `step`: linear warm-up, then 1; 0 before step 0.

    A run that ends within its warm-up says so: more steps may be added to it, so the warm-up stays.
    """
    if 0 < config.steps < config.warmup_steps:
        say_once(
            f"note: the {config.steps} steps end within the {config.warmup_steps} of --warmup-steps, "
            "before the learning rate is --lr"
        )
    return min(max(step + 1, 0) / max(config.warmup_steps, 1), 1.0)
