"""Recipes, memory and logs: pages 24 and 25."""

from __future__ import annotations

import math

from course.questions import Table, numbers, question, which
from course.recorded import preferences

# --- 24: the weight of a hard prompt --------------------------------------------------------------


@question(
    numbers(
        easy=("share of right answers, easy prompt", 0.6, 0.7, 0.8),
        hard=("share of right answers, hard prompt", 0.02, 0.04, 0.05, 0.1),
    ),
    mistakes="""
        return math.sqrt(variance[0] / variance[1]) -> return easy / hard
            that is supervised learning on a fixed number of right answers for each prompt. GRPO divides by
            the group's standard deviation, not by p.
        return math.sqrt(variance[0] / variance[1]) -> return variance[0] / variance[1]
            you divide by the variance. GRPO divides by its root.
        return math.sqrt(variance[0] / variance[1]) -> return math.sqrt(variance[1] / variance[0])
            that is the easy prompt relative to the hard one.
        return math.sqrt(variance[0] / variance[1]) -> return 1.0
            without a division both would count the same. GRPO divides.
    """,
    tolerance=0.02,
)
def hard_prompts_weight(easy, hard):
    """In GRPO, how many times does the hard prompt's gradient of p count, relative to the easy one's?"""
    variance = [p * (1 - p) for p in (easy, hard)]
    return math.sqrt(variance[0] / variance[1])


# --- 24: memory -----------------------------------------------------------------------------------


@question(
    numbers(
        policy=("billions of weights of the policy, and of the reference", 3.1, 7.6, 8.0, 14.0),
        judge=("billions of weights of the reward model", 1.5, 3.1, 7.6),
        gpus=("GPUs, over which the trained and both frozen models are sharded", 4, 8, 16),
        tensor=("GPUs that share one copy of the sampler, bfloat16", 1, 2, 4),
    ),
    mistakes="""
        sampler = 2 * policy / tensor -> sampler = 0
            the sampler keeps a copy of its own, in the layout in which it samples.
        sampler = 2 * policy / tensor -> sampler = 2 * policy / gpus
            the sampler's copy is shared by a few GPUs only, not by all.
        return (trained + frozen) / gpus + sampler -> return trained / gpus + frozen + sampler
            the table says that the frozen models are sharded, too.
        frozen = 2 * (policy + judge) -> frozen = 2 * judge
            the reference is missing.
    """,
)
def gigabytes_per_gpu(policy, judge, gpus, tensor):
    """How many GB (1e9 bytes) of weights, gradients and moments does each GPU hold?

    16 bytes a trained weight, 2 a frozen one.
    """
    trained = 16 * policy
    frozen = 2 * (policy + judge)
    sampler = 2 * policy / tensor
    return (trained + frozen) / gpus + sampler


# --- 24: a log ------------------------------------------------------------------------------------


def a_log(rng):
    """Ten rows of a run in which one of five things happens after the sixth."""
    cause, at = rng.choice("abcde"), rng.randrange(100, 400, 10)
    rows = []
    for i in range(10):
        after = max(0, i - 5)
        row = {
            "reward": 0.4 + 0.01 * i, "gold": 0.4 + 0.008 * i, "kl": 2.0 + 0.1 * i, "grad": 0.5,
            "error": 8e-3, "length": 210.0, "ended": 0.97,
        }  # fmt: skip
        if cause == "a":  # the sampler kept old weights
            row |= {"error": 8e-3 + 0.07 * after, "grad": 0.5 + 0.3 * after}
            row |= {"kl": row["kl"] + 0.8 * after}
        elif cause == "e":  # the rate is too high: everything moves, the ratio starts at 1
            row |= {"kl": row["kl"] * 2.2**after, "grad": 0.5 * 1.8**after}
            row |= {"reward": row["reward"] - 0.08 * after, "gold": row["gold"] - 0.08 * after}
            row |= {"length": 210 - 25.0 * after}
        elif cause == "c":  # answers grow into the limit
            row |= {"length": 210 + 55.0 * after, "ended": 0.97 - 0.16 * after}
            row |= {"reward": row["reward"] - 0.07 * after, "gold": row["gold"] - 0.07 * after}
        elif cause == "d":  # the reward model is exploited
            row |= {"reward": row["reward"] + 0.12 * after, "gold": row["gold"] - 0.06 * after}
            row |= {"kl": row["kl"] + 1.5 * after}
        elif cause == "b" and i == 6:  # one odd batch, and its gradient was cut
            row |= {"grad": 11.0, "reward": row["reward"] - 0.03}
        noisy = {key: value * (1 + 0.03 * rng.gauss(0, 1)) for key, value in row.items()}
        noisy["ended"] = min(noisy["ended"], 1.0)
        digits = {"kl": 1, "error": 3, "length": 0}
        rows.append([at + i, *(f"{v:.{digits.get(k, 2)}f}" for k, v in noisy.items())])
    columns = [
        "step", "reward", "of people, each tenth pair", "KL", "gradient before its cut",
        "|ratio - 1| before the update", "tokens", "ended",
    ]  # fmt: skip
    return Table(columns, rows, {"cause": cause})


which(
    "cause_of_the_jump",
    a_log,
    text="""Which of the causes a to e made this log?

    Enter one letter. Say first which columns leave their path, and in which direction.

    a: a sampler with old weights shows in the ratio before the update, and here that stays small.
    b: one odd batch would leave one number of one step out of line, and nothing after it.
    c: where answers grow into the limit, tokens rise and fewer end. Look at these two columns.
    d: an exploited reward rises while people's verdicts fall. Compare these two columns.
    e: too high a rate moves everything at once, more from step to step, and lowers the reward.
    """,
)


# --- 25: what a judge's verdicts say --------------------------------------------------------------


@question(
    numbers(
        accuracy=(
            "share of pairs that the judge gets right, whichever is better",
            0.7,
            0.75,
            0.8,
            0.9,
        ),
        preferred=("share of prompts where it prefers the new model", 0.54, 0.56, 0.58, 0.6, 0.62),
    ),
    mistakes="""
        (preferred - errs) / (accuracy - errs) -> preferred
            you take the judge at its word. Its errors pull every share towards one half.
        (preferred - errs) / (accuracy - errs) -> preferred * accuracy
            you multiply by its accuracy. Where the old one is better it errs as well.
        (preferred - errs) / (accuracy - errs) -> preferred / accuracy
            you divide by its accuracy. Where the old one is better it errs as well.
    """,
)
def true_share(accuracy, preferred):
    """On what share of the prompts is the new model really better?

    If it is better on a share w, how often does the judge say so? Solve for w.
    """
    errs = 1 - accuracy
    return (preferred - errs) / (accuracy - errs)


# --- 25: which recorded run had a price? ----------------------------------------------------------

WAYS = ("unpriced", "grpo", "dpo", "finetuning")
SHOWN = {
    "preferred_by_proxy": "the payer prefers it", "preferred": "the judge prefers it",
    "ended": "ended", "right": "right", "tokens": "tokens", "kl": "KL",
}  # fmt: skip


def recorded_runs(rng):
    """Four recorded policies without their names, each the last of one of its seeds, and the start."""
    policies = preferences()["policies"]
    jobs = {way: rng.choice([j for j in policies if j.startswith(f"{way}-")]) for way in WAYS}
    order = rng.sample(WAYS, len(WAYS))
    points = {way: policies[jobs[way]][-1] for way in order} | {"start": policies["start"][0]}
    rows = [
        [name, *(round(points[way][key], 2) for key in SHOWN)]
        for name, way in zip(["a", "b", "c", "d", "start"], [*order, "start"])
    ]
    places = {way: "abcd"[order.index(way)] for way in WAYS}
    return Table(["policy", *SHOWN.values()], rows, places)


which(
    "price_for_the_end",
    recorded_runs,
    right="grpo",
    text="""Which of these policies was paid by a mean of token scores, with a price for being cut off?

    Enter one letter. What does the price change, and which policies were paid at all?

    unpriced: hardly one of its answers ends: it was paid by the mean, and being cut off cost it nothing.
    dpo: it is near the start in everything: this is DPO, which no payer pulls away.
    finetuning: its answers are short and end, and its payer is not asked: it imitates the chosen answers.
    """,
)
