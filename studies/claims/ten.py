"""The ten claims: the runs of each, the effect that would have to be there, a control, a figure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from studies.claims import arms, sigmoid
from studies.claims.figures import curves, seeds
from studies.claims.rules import (
    SHARE_OF_GAIN,
    Claim,
    Control,
    Effect,
    Rule,
    Run,
    Weakest,
    ahead,
    end,
    gain,
    gap,
    instead,
    last,
    log_ratio,
    points,
    stopped_early,
    where,
)

LEAST_GAIN = 0.1  # of GRPO's accuracy: a smaller one has nothing that a student could be quicker to
MARGIN = 0.05  # of the accuracy: what the paper's own loss of 2.4% rounds up to, twice
OWN = "fine-tuned on its own right answers"
# Of a minibatch's tokens: a dozen, where the paper's thousandths are less than one.
COVARIANT = 0.05
UNCLIPPED = 1e9
LORA_LR = 5e-3  # the best of 1.5e-3, 5e-3, 1e-2 and 2e-2 on a seed of its own (900)

ARMS: dict[str, arms.Arm] = {
    "grpo": arms.rl_arm(),
    "grpo-twin": arms.rl_arm(
        other=1000
    ),  # the same start with other samples: a difference of nothing
    "grpo-long": arms.rl_arm(steps=180, eval_every=180),
    "grpo-share-3": arms.rl_arm(share=3),
    "grpo-share-0": arms.rl_arm(share=0),
    "maxrl": arms.rl_arm(reward_scale="mean", reducer="constant_length_mean"),
    "kl-cov": arms.rl_arm(kl_cov_share=COVARIANT),
    "clip-cov": arms.rl_arm(clip_cov_share=COVARIANT),
    "sft-oracle": arms.sft_arm(arms.oracle_answers),
    "sft-own": arms.sft_arm(arms.own_right_answers),
    "grpo-g2": arms.rl_arm(prompts_per_step=16, group_size=2),
    "grpo-g16": arms.rl_arm(prompts_per_step=2, group_size=16),
    "coins-clip": arms.coins_arm(updates_per_batch=4),
    "coins-free": arms.coins_arm(updates_per_batch=4, clip_low=UNCLIPPED, clip_high=UNCLIPPED),
    "coins-once": arms.coins_arm(minibatches=1),
    "lora-1": arms.rl_arm(lora_rank=1, lr=LORA_LR),
    "distilled": arms.Arm(arms.distilled, engines=("rl.on_policy_distillation_engine",)),
    "grpo-constant": arms.rl_arm(reducer="constant_length_mean"),
}


def gained(arm: str) -> Effect:
    """In accuracy, from the first to the last measured point."""
    return lambda runs: points(runs[arm], "accuracy")[-1] - points(runs[arm], "accuracy")[0]


def gained_by_worked_steps(runs: Mapping[str, Run]) -> float:
    """How much more is gained from a start that has seen them."""
    seen, unseen = (points(runs[arm], "accuracy") for arm in ("grpo", "grpo-share-0"))
    return (seen[-1] - seen[0]) - (unseen[-1] - unseen[0])


def times_fewer(runs: Mapping[str, Run]) -> float | None:
    """RL's answers to the level over the student's; as many answers make a step of both."""
    begin, reached = points(runs["grpo"], "accuracy")[0], end(runs["grpo"])
    if reached - begin < LEAST_GAIN:
        return None
    at = begin + SHARE_OF_GAIN * (reached - begin)
    rl, student = (
        where(points(runs[arm], "accuracy"), points(runs[arm], "step"), at)
        for arm in ("grpo", "distilled")
    )
    student = student or points(runs["distilled"], "step")[-1]  # at least as many
    return rl / student if rl else None


def explained(arm: str, *, straight: bool = False) -> Effect:
    """R^2 of R = -a exp(H) + b over a run's points, 0 where a is not positive; or of R = -a H + b."""

    def effect(runs: Mapping[str, Run]) -> float:
        entropy = np.array(points(runs[arm], "entropy"))
        price = entropy if straight else np.exp(entropy)
        correlation = float(np.corrcoef(price, points(runs[arm], "accuracy"))[0, 1])
        return min(correlation, 0.0) ** 2

    return effect


def longer(key: str) -> Effect:
    """GRPO's average less Dr. GRPO's where both have made half of the smaller gain."""
    return ahead(key, "grpo", "grpo-constant", share=0.5)


def sharpened(runs: Mapping[str, Run]) -> float:
    """How much likelier the start finds what the policy says than what it says itself."""
    return runs["coins-clip"]["preference"] - runs["coins-clip"]["preference_before"]


def by_the_clip(runs: Mapping[str, Run]) -> float:
    """The same against the run without a clip."""
    return runs["coins-clip"]["preference"] - runs["coins-free"]["preference"]


def change_of_entropy(arm: str) -> Effect:
    """From the first batches to the last, nats a token."""

    def effect(runs: Mapping[str, Run]) -> float:
        curve = runs[arm]["curve"]["entropy"]
        return float(sum(curve[-5:]) / 5 - sum(curve[:5]) / 5)

    return effect


CLAIMS = {
    "aha": Claim(
        title="RL's gain comes from worked steps seen in pre-training",
        found="With few or no worked steps in pre-training GRPO gains next to nothing",
        arms=("grpo", "grpo-twin", "grpo-share-3", "grpo-share-0"),
        rule=Rule("accuracy gained", 0.05, gained_by_worked_steps),
        control=Control(
            "the same start twice, with another seed", instead(grpo_share_0="grpo-twin")
        ),
        draw=curves(
            {"grpo": "30% worked steps", "grpo-share-3": "3%", "grpo-share-0": "none"},
            xlabel="step of GRPO (32 answers each)",
        ),
        also={
            "accuracy gained with worked steps in 30%": gained("grpo"),
            "accuracy gained with 3%": gained("grpo-share-3"),
            "accuracy gained with none": gained("grpo-share-0"),
            "share of answers with steps at the end, from 3%": last("grpo-share-3", "steps"),
            "share of answers with steps at the end, from none": last("grpo-share-0", "steps"),
        },
    ),
    "distillation": Claim(
        title="On-policy distillation needs a tenth of RL's samples",
        found="The student is ahead at first, then it levels off",
        arms=("grpo", "distilled", "grpo-twin"),
        rule=Rule("times fewer answers", 7.0, times_fewer),
        control=Control(
            "GRPO with other samples instead of the student", instead(distilled="grpo-twin")
        ),
        draw=curves(
            {"grpo": "GRPO", "distilled": "distilled from GRPO's policy"},
            xlabel="answers sampled",
            scale=32,
        ),
    ),
    "entropy": Claim(
        title="Reward follows R = -a exp(H) + b, and KL-Cov moves it",
        found="Accuracy rises as entropy falls; whether KL-Cov keeps more of it is open",
        arms=("grpo", "grpo-twin", "kl-cov", "clip-cov"),
        rule=Weakest(
            (
                Rule("R^2 of the law", 0.8, explained("grpo")),
                Rule("log ratio of entropy kept by KL-Cov", 0.05, log_ratio("entropy", "kl-cov")),
            )
        ),
        control=Control("GRPO with another seed instead of KL-Cov", instead(kl_cov="grpo-twin")),
        draw=curves(
            {"grpo": "GRPO", "kl-cov": "KL-Cov", "clip-cov": "Clip-Cov"},
            against="entropy",
            xlabel="entropy, nats a token",
        ),
        also={
            "R^2 of the law, GRPO": explained("grpo"),
            "R^2 of the law with KL-Cov": explained("kl-cov"),
            "R^2 of a straight line in H, GRPO": explained("grpo", straight=True),
            "log ratio of entropy kept by Clip-Cov": log_ratio("entropy", "clip-cov"),
            "accuracy at the end, GRPO": last("grpo"),
            "accuracy at the end, KL-Cov": last("kl-cov"),
            "accuracy at the end, Clip-Cov": last("clip-cov"),
        },
    ),
    "length_bias": Claim(
        title="The length bias is Dr. GRPO's to cure",
        found="Dr. GRPO's wrong answers are a little shorter, which may be chance",
        arms=("grpo", "grpo-constant", "grpo-twin"),
        rule=Rule(
            "tokens, wrong answers, GRPO's average less Dr. GRPO's", 1.0, longer("length_wrong")
        ),
        control=Control(
            "GRPO's average twice, with other samples", instead(grpo_constant="grpo-twin")
        ),
        draw=curves(
            {"grpo": "GRPO's average", "grpo-constant": "Dr. GRPO's average"},
            key="length_wrong",
            against="accuracy",
            xlabel="accuracy",
            ylabel="mean length of wrong answers (tokens)",
        ),
        also={
            "tokens, right answers at the same accuracy": longer("length_right"),
            "share of answers with steps at the same accuracy": longer("steps"),
            "tokens, wrong answers at the end": gap("grpo", "grpo-constant", "length_wrong"),
            "accuracy at the end": gap("grpo", "grpo-constant"),
        },
    ),
    "lora": Claim(
        title="LoRA of rank 1 suffices for RL",
        found="LoRA of rank 1 learns, but it ends below training all weights",
        arms=("grpo", "lora-1"),
        rule=Rule("accuracy, rank 1 less all weights", -MARGIN, gap("lora-1", "grpo")),
        control=Control(
            "all weights after 10 of 60 steps against all 60", stopped_early("lora-1", "grpo")
        ),
        draw=curves({"grpo": "all weights", "lora-1": "LoRA, rank 1"}),
        also={
            "KL(policy || start), rank 1 less all weights, nats an answer": gap(
                "lora-1", "grpo", "kl"
            )
        },
    ),
    "maxrl": Claim(
        title="MaxRL keeps pass@k",
        found="pass@32 is near 1 from the start and leaves no room for a difference",
        arms=("grpo", "grpo-twin", "maxrl"),
        rule=Rule("pass@32 ahead of GRPO", 0.0, ahead("pass@32", "maxrl")),
        control=Control("GRPO with another seed instead of MaxRL", instead(maxrl="grpo-twin")),
        draw=curves(
            {"grpo": "GRPO", "maxrl": "MaxRL"},
            key="pass@32",
            against="accuracy",
            xlabel="pass@1",
            ylabel="pass@32",
        ),
        also={
            "pass@8 ahead of GRPO": ahead("pass@8", "maxrl"),
            "pass@1 at the end, MaxRL": last("maxrl"),
            "pass@1 at the end, GRPO": last("grpo"),
            "pass@32 at the end, MaxRL": last("maxrl", "pass@32"),
            "pass@32 at the end, GRPO": last("grpo", "pass@32"),
            "pass@32 of the start": lambda runs: points(runs["grpo"], "pass@32")[0],
        },
    ),
    "random_rewards": Claim(
        title="Random rewards work by the clip",
        found="Coin rewards lead away from the start, most of all without the clip",
        arms=("coins-clip", "coins-free", "coins-once"),
        rule=Weakest(
            (
                Rule("nats an answer, clip less start", 0.1, sharpened),
                Rule("nats an answer, clip less no clip", 0.1, by_the_clip),
            )
        ),
        control=Control(
            "one update a batch, where the clip cannot act", instead(coins_clip="coins-once")
        ),
        draw=seeds(
            {
                "start": ("coins-clip", lambda run: run["preference_before"]),
                "coins,\none update": ("coins-once", lambda run: run["preference"]),
                "coins,\nclip": ("coins-clip", lambda run: run["preference"]),
                "coins,\nno clip": ("coins-free", lambda run: run["preference"]),
            },
            ylabel="log-probability under the start,\nnats an answer",
        ),
        also={
            "nats an answer, clip less start": sharpened,
            "nats an answer, clip less no clip": by_the_clip,
            "accuracy, clip less start": gain("coins-clip"),
            "accuracy, no clip less start": gain("coins-free"),
            "accuracy, clip less no clip": gap("coins-clip", "coins-free"),
            "share of worked steps, clip less start": gain("coins-clip", "steps"),
            "entropy, end less begin, clip, nats a token": change_of_entropy("coins-clip"),
            "entropy, end less begin, no clip, nats a token": change_of_entropy("coins-free"),
        },
    ),
    "razor": Claim(
        title="At equal accuracy RL moves less than fine-tuning",
        found="At the same accuracy fine-tuning has moved less than GRPO",
        arms=("grpo", "grpo-twin", "sft-oracle", "sft-own"),
        rule=Weakest(
            (
                Rule("log ratio of KL(start || policy)", 0.1, log_ratio("kl_back", "sft-oracle")),
                Rule("log ratio of KL(policy || start)", 0.1, log_ratio("kl", "sft-oracle")),
            )
        ),
        control=Control("GRPO against GRPO with another seed", instead(sft_oracle="grpo-twin")),
        draw=curves(
            {"grpo": "GRPO", "sft-oracle": "fine-tuned on worked answers", "sft-own": OWN},
            key="kl_back",
            against="accuracy",
            xlabel="accuracy",
            ylabel="KL(start || policy),\nnats an answer",
        ),
        also={
            f"log ratio of KL(start || policy), {OWN}": log_ratio("kl_back", "sft-own"),
            f"log ratio of KL(policy || start), {OWN}": log_ratio("kl", "sft-own"),
        },
    ),
    "sigmoid": Claim(
        title="Reward over compute is a sigmoid that can be extrapolated",
        found="Which of three curves foretells a run's end changes with the seed",
        arms=("grpo-long",),
        rule=Weakest(
            (
                Rule("smaller error than the power law's", 0.0, sigmoid.saved(sigmoid.power_law)),
                Rule("smaller error than the constant's", 0.0, sigmoid.saved(sigmoid.constant)),
            )
        ),
        control=Control("the batches of each run in random order", sigmoid.without_time),
        draw=sigmoid.draw,
        also={
            f"error of the {name}": sigmoid.error_of(forecast)
            for name, forecast in sigmoid.FORECASTS.items()
        },
    ),
    "two_answers": Claim(
        title="Two answers a group suffice",
        found="Groups of 2 end close to groups of 16; whether they suffice is open",
        arms=("grpo-g2", "grpo", "grpo-g16"),
        rule=Rule("accuracy, groups of 2 less groups of 16", -MARGIN, gap("grpo-g2", "grpo-g16")),
        control=Control(
            "groups of 16 after 10 of 60 steps against groups of 16",
            stopped_early("grpo-g2", "grpo-g16"),
        ),
        draw=curves({"grpo-g2": "groups of 2", "grpo": "groups of 8", "grpo-g16": "groups of 16"}),
        also={
            "accuracy, groups of 2 less groups of 8": gap("grpo-g2", "grpo"),
            "accuracy, groups of 8 less groups of 16": gap("grpo", "grpo-g16"),
        },
    ),
}
