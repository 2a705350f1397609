"""The ranges of flags that mean the same in every script."""

from __future__ import annotations

import math
from typing import Any

AT_LEAST_ONE = (
    "steps", "epochs", "batch_size", "accumulation", "prompts_per_step", "group_size",
    "updates_per_batch", "minibatches", "micro_batch_size", "max_new_tokens", "eval_every",
    "checkpoint_every", "reward_batch_size", "reward_epochs", "repeats", "grpo_steps", "jobs",
    "reference_mixing_every", "ranks", "sample_rows",
)  # fmt: skip
ABOVE_ZERO = ("max_norm", "temperature", "wide_temperature", "lora_alpha")
NOT_NEGATIVE = (
    "lr", "critic_lr", "reward_lr", "warmup", "weight_decay", "clip_low", "clip_high",
    "record_tokens", "eval_prompts", "test_prompts", "held_out_pairs", "max_resamples",
    "off_policy_mask", "lora_rank",
)  # fmt: skip
SHARES = ("entropy_top_share", "reference_mixing")
LIMITS = ("stop_kl", "max_norm")  # of which infinity means that there is none
LARGEST = 1e12  # what multiplies numbers in float32 must leave room for them
LARGEST_SEED = 2**63 - 1


def check_ranges(config: Any) -> None:
    """ValueError for the first field of a script's config that no run can mean.

    NaN is one for every flag: each comparison with it is False, so it would switch off in silence
    what the flag controls. So is a number that float32 cannot calculate with. Called when the flags
    are parsed, before an earlier run is moved aside. None passes.
    """
    for names, least, words in (
        (AT_LEAST_ONE, 1, "be at least 1"),
        (ABOVE_ZERO, math.ulp(0), "be above 0"),
        (NOT_NEGATIVE, 0, "not be negative"),
    ):
        for name in names:
            value = getattr(config, name, None)
            if value is not None and not value >= least:  # NaN is refused too
                raise ValueError(f"{name} must {words}: got {value}")
    for name in SHARES:
        share = getattr(config, name, None)
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"{name} is a share, above 0 and at most 1: got {share}")
    if getattr(config, "adapter", None) is not None:
        if not config.lora_rank:
            raise ValueError("adapter goes on from a LoRA adapter: give lora_rank its rank")
        if config.lora_alpha is not None:
            raise ValueError("an adapter brings its own alpha: leave lora_alpha out")
    for name, value in vars(config).items():
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"{name} must be a number: got nan")
        no_limit = value == math.inf and name in LIMITS
        if isinstance(value, float) and abs(value) > LARGEST and not no_limit:
            raise ValueError(f"{name} must be finite, and at most {LARGEST:g} in size: got {value}")
    stop_kl = getattr(config, "stop_kl", None)
    if stop_kl is not None and stop_kl <= 0:
        raise ValueError(f"stop_kl must be above 0, any run would stop there: got {stop_kl}")
    if abs(getattr(config, "seed", 0)) > LARGEST_SEED:
        raise ValueError(f"seed must be at most {LARGEST_SEED} in size: got {config.seed}")
    if getattr(config, "data", None) == "":
        raise ValueError("data is empty: give reviews, sums or a file")
