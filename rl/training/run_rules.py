"""The doctor's rules for reinforcement learning, beside those of every stage (harness/report/rules.py).

RULES holds both. Each rule is silent where its keys are missing, so RULES can read any stage's log.
"""

from __future__ import annotations

import math
import statistics

from harness.report import rules
from harness.report.rules import Run, halves, rules_of

# Wrong numbers ------------------------------------------------------------------------------------


def ratio_at_start(run: Run) -> str | None:
    """ratio - 1 before a batch's first update, 0 by definition."""
    limit = 0.05 if run.flag("precision") == "bfloat16" else 1e-4
    errors = run.values("ratio_error_at_start")
    bad = sum(error > limit for error in errors)
    if not bad:
        return None
    return (
        f"|ratio - 1| before the first update is up to {max(errors):.2g} (above {limit:g} in {bad} of "
        f"{len(errors)} steps), where the ratio is 1"
    )


def ratio_always_one(run: Run) -> str | None:
    """A policy that never leaves the one that sampled, although it is updated several times."""
    moved = run.values("approx_kl")[2:]
    if run.updates < 2 or len(moved) < 3 or max(moved) > 1e-9 or not any(run.values("grad_norm")):
        return None
    return (
        f"approx_kl is {max(moved):.1g} or less in every step, with {run.updates} updates a batch: "
        "the second one must meet ratios other than 1"
    )


def impossible_length(run: Run) -> str | None:
    """Lengths that no sampler makes: above the limit, or below what the cut-off responses have."""
    limit = run.flag("max_new_tokens")
    if limit is None or run.flag("data") == "":
        return None
    for row in run.rows:
        length, ended = row.get("response_length"), row.get("eos_rate")
        if length is None or ended is None:
            continue
        if length > limit + 1e-6:
            return f"responses have {length:.1f} tokens at step {row['step']}, above the {limit} allowed"
        if length < 0.99 * (1 - ended) * limit:
            return (
                f"{1 - ended:.0%} of the responses have no EOS at step {row['step']}, which were cut off "
                f"at {limit} tokens, yet the mean length is {length:.1f}"
            )
    return None


def negative_kl(run: Run) -> str | None:
    """A KL that is clearly negative, averaged over five steps, or not 0 before the first update."""
    first = run.rows[0] if run.rows else {}
    if first.get("step") == 1 and abs(first.get("kl", 0.0)) > 1e-2:
        return f"kl is {first['kl']:.3g} at step 1, where policy and reference are one"
    kls = run.values("kl")
    means = [sum(kls[i : i + 5]) / 5 for i in range(len(kls) - 4)]
    if means and min(means) < -0.1:
        return f"kl falls to {min(means):.3g} nats, averaged over five steps; a KL is not negative"
    return None


def reference_follows(run: Run) -> str | None:
    """The KL to the reference stays 0 while the KL from the start grows."""
    if run.flag("reference_update", "never") != "never" or "iterations" in run.flags:
        return None
    if len(run.values("kl")) < 10:  # of 3 steps the first is 0, and a few prompts say little
        return None
    near, far = run.end("kl", 3), run.end("validation/kl", 1)
    if near is None or far is None or far < 0.3 or near > 0.1 * far:
        return None
    return f"kl is {near:.3g} nats while validation/kl, from the start, is {far:.3g}"


def loss_is_not_its_sum(run: Run) -> str | None:
    """GRPO's loss beyond what ratios near 1, centred advantages and the KL penalty can add up to."""
    others = ("variant", "policy_loss", "preference_coef", "loss", "penalty", "steps_from")
    if "clip_low" not in run.flags or any(name in run.flags for name in others):
        return None
    if run.flag("kl_estimator") != "k3":
        return None
    if run.flag("group_size", 1) < 2 or run.flag("pretraining_coef"):
        return None
    left = [
        abs(row["loss"] - row["kl_coef"] * row.get("kl_k3", 0.0) / row["response_length"])
        for row in run.rows
        if {"loss", "kl_coef", "response_length"} <= row.keys() and math.isfinite(row["loss"])
    ]
    if len(left) < 5 or statistics.median(left) < LOSS_LEFT:
        return None
    return (
        f"the loss is {statistics.median(left):.2g} away from kl_coef * kl_k3 / response_length (median "
        "over the steps); advantages average to 0, so their part of it is near 0"
    )


LOSS_LEFT = 0.015  # of healthy runs 0.004 at most

# No signal ----------------------------------------------------------------------------------------


def zero_spread(run: Run) -> str | None:
    """Most groups have equal rewards, and their responses differ."""
    share = run.end("zero_spread_groups")
    if share is None or share < 0.7 or run.solved or repeated(run):
        return None
    return f"{share:.0%} of the groups have equal rewards over the last steps"


def reward_falls(run: Run) -> str | None:
    """The reward that is maximised goes down."""
    rewards = run.values("reward")
    if len(rewards) < 10 or (run.values("iteration") and run.flag("refresh_reward_model", True)):
        return None
    first, last, error = halves(rewards)
    scale = run.start("reward_std") or abs(first)
    if first - last <= max(4 * error, 0.2 * scale):
        return None
    return f"reward fell from {first:.3g} to {last:.3g} (first and last third)"


def reward_flat(run: Run) -> str | None:
    """The reward that is maximised stays where it is although its spread says it need not."""
    rewards = run.values("reward")
    if len(rewards) < 20 or run.solved or (run.end("zero_spread_groups") or 0.0) > 0.7:
        return None
    first, last, error = halves(rewards)
    scale = run.start("reward_std") or 0.0
    if scale < 1e-6 or abs(last - first) > max(3 * error, 0.1 * scale):
        return None
    return (
        f"reward went from {first:.3g} to {last:.3g} in {len(rewards)} steps, with responses that are "
        f"{scale:.2g} apart (standard deviation)"
    )


def critic_is_worse(run: Run) -> str | None:
    """A critic that explains less than a constant would."""
    explained = run.values("explained_variance")
    if len(explained) < 12:
        return None
    last = sum(explained[-len(explained) // 3 :]) / len(explained[-len(explained) // 3 :])
    if last < -0.05:
        return f"explained_variance is {last:.2f} over the last third; a constant has 0"
    if max(map(abs, explained)) < 1e-4:
        return f"explained_variance never left {explained[-1]:.3f}: the critic is not being trained"
    return None


# Too much of it -----------------------------------------------------------------------------------


def steps_too_large(run: Run) -> str | None:
    """The clip acts on a fifth of the tokens, or a batch is used far beyond its policy."""
    clipped = (run.end("clip_high_fraction") or 0.0) + (run.end("clip_low_fraction") or 0.0)
    narrow = run.flag("clip_high", 1.0) < 0.01  # GSPO's, which acts on many responses by design
    if clipped > 0.2 and not narrow:
        return f"the clip acts on {clipped:.0%} of the tokens over the last steps"
    moved = run.end("approx_kl")
    if moved is not None and moved > 0.05 and not run.flag("teacher_share"):
        return f"approx_kl is {moved:.2g} nats per token over the last steps"
    return None


def repeated(run: Run) -> str | None:
    """Few of the responses of a step are different texts any more."""
    first, last = run.start("distinct_responses"), run.end("distinct_responses")
    if first is None or last is None or run.solved or last > 0.3 * first:
        return None
    return f"distinct_responses fell from {first:.2g} to {last:.2g} of the responses of a step"


def entropy_collapse(run: Run) -> str | None:
    """Every response becomes the same text."""
    if texts := repeated(run):
        return texts
    first, last = run.start("entropy", 3), run.end("entropy")
    if first is None or last is None or run.solved or first < 0.05:
        return None
    if last < max(0.15 * first, 0.05):
        return f"entropy fell from {first:.2f} to {last:.3f} nats per token"
    return None


def length_drift(run: Run) -> str | None:
    """Responses become twice as long, or far shorter, for a reward that is no check of answers."""
    first, last = run.start("response_length", 3), run.end("response_length")
    if first is None or last is None or run.checked or len(run.rows) < 10:
        return None
    if last > 2 * first or last < 0.4 * first:
        return f"responses went from {first:.1f} to {last:.1f} tokens"
    return None


def truncation(run: Run) -> str | None:
    """Responses are cut off."""
    first, last = run.start("eos_rate", 3), run.end("eos_rate")
    if first is None or last is None or (last > 0.5 and last > first - 0.1):
        return None
    return (
        f"{last:.0%} of the responses end by themselves over the last steps, {first:.0%} at first"
    )


def kl_runs_away(run: Run) -> str | None:
    """The policy that is kept is further from the start than any reward model can be trusted."""
    key = "validation/kl" if run.values("validation/kl") else "kl"
    kl = run.end(key, 5 if key == "kl" else 1)
    if kl is not None and kl > KL_FAR:
        return f"{key} is {kl:.1f} nats per response at the end"
    return None


KL_FAR = 10.0


def over_optimised(run: Run) -> str | None:
    """Gold falls by more than chance while the reward does not."""
    rows = [row for row in run.rows if {"validation/gold", "validation/gold_error"} <= row.keys()]
    if len(rows) < 3:
        return None
    best, last = max(rows, key=lambda row: row["validation/gold"]), rows[-1]
    fall = best["validation/gold"] - last["validation/gold"]
    error = math.hypot(best["validation/gold_error"], last["validation/gold_error"])
    gain = last.get("validation/reward", 0.0) - best.get("validation/reward", 0.0)
    if fall <= max(3 * error, 0.02) or gain < -0.1 * (run.start("reward_std") or 0.0):
        return None
    return (
        f"validation/gold fell from {best['validation/gold']:.3f} (step {best['step']}) to "
        f"{last['validation/gold']:.3f}, and the reward did not"
    )


FAR = 1.5  # standard deviations: few responses that the reward model was trained on are as good


def proxy_suspected(run: Run) -> str | None:
    """Signs of over-optimisation that need no gold: two of them, while the reward rises."""
    rewards = run.values("reward")
    if len(rewards) < 20 or run.checked:
        return None
    first, last, error = halves(rewards)
    if last - first < 3 * error:
        return None
    signs = []
    kl = run.end("kl") if run.values("kl") else run.end("validation/kl", 1)
    if kl is not None and kl > 8:
        signs.append(f"kl {kl:.1f} nats per response")
    spread, rise = run.start("reward_std"), sum(rewards[-5:]) / 5 - sum(rewards[:5]) / 5
    if spread and rise > FAR * spread:
        signs.append(f"a rise of {rise / spread:.1f} standard deviations of the first responses")
    for key, share in (("reward_std", 0.35), ("entropy", 0.25), ("distinct_responses", 0.5)):
        before, now = run.start(key), run.end(key)
        if before and now is not None and now < share * before:
            signs.append(f"{key} {before:.2g} to {now:.2g}")
    before, now = run.start("ensemble_spread"), run.end("ensemble_spread")
    if before and now is not None and now > 1.5 * before:
        signs.append(f"ensemble_spread {before:.2g} to {now:.2g}")
    if len(signs) < 2:
        return None
    return f"the reward rose from {first:.2f} to {last:.2f} with " + ", ".join(signs)


# The list -----------------------------------------------------------------------------------------

RULES = rules.RULES | rules_of(
    ratio_at_start, ratio_always_one, impossible_length, negative_kl, reference_follows,
    loss_is_not_its_sum, reward_falls, reward_flat, critic_is_worse,
    zero_spread, steps_too_large, entropy_collapse, length_drift, truncation, kl_runs_away, over_optimised,
    proxy_suspected,
)  # fmt: skip
