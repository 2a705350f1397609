# %% [markdown]
# # 21. Real English
#
# **The question.** Everything so far happened in generated worlds. Does the same code change the mind of
# a model that has read nothing but real film reviews?
#
# This page follows one experiment from raw text to a steered policy: 100,000 reviews of the Large Movie
# Review Dataset (Maas et al. 2011), a language model trained from nothing, a reward learned from labels,
# and four engines that use it. Training took longer than a page may run, so the page is drawn from a
# recording. [docs/real_model.md](../docs/real_model.md) has the one command that makes the recording again.
#
# **What it needs:** [06](06_reward_model.ipynb) for reward models, [07](07_grpo.ipynb) for GRPO,
# [05](05_what_a_kl_is.ipynb) for the KL, [20](20_dpo_and_pg_grpo.ipynb) for DPO. **To run it:** a
# few seconds on one core.

# %%
import json
import math
from pathlib import Path

import torch

# %%
try:
    from course import plots
    from course.exercises import check

    from reward_model.loss import outcome_loss
    from reward_model.ngrams import features
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

plots.use()
recorded = Path("course/recordings/imdb.json").read_text(encoding="utf-8")
run = json.loads(recorded.replace("\x96", "-").replace("\x85", "..."))  # signs of old web pages
print("recorded:", ", ".join(run))

# %% [markdown]
# ## 1. A language model of reviews
#
# The tokenizer is our own byte-pair encoding with 4,096 entries, trained on the unlabelled reviews.
# The model has 1.9 million weights. It predicts the next token, as in
# [03](03_pretraining_and_sft.ipynb). The numbers below come from 400 reviews of the test set. The
# curve after them uses another held-out text.
#
# A loss in **nats per token** cannot be compared with a model of another vocabulary: longer tokens are
# harder to guess, and there are fewer of them. **Bits per byte** can be compared. Divide by log 2 to turn
# nats into bits, then by the bytes that a token stands for.

# %%
language_model = run["language_model"]
nats, size = language_model["loss"], language_model["bytes_per_token"]
bits = nats / math.log(2) / size
print(f"{nats:.3f} nats per token, {size:.2f} bytes per token: {bits:.3f} bits per byte")
print(f"perplexity {math.exp(nats):.0f}: as unsure as a choice among that many tokens")
assert abs(bits - language_model["bits_per_byte"]) < 1e-9

# %%
rows = run["pretraining"]
training = [(row["step"], row["loss"]) for row in rows if "loss" in row]
held_out = [(row["step"], row["held_out_loss"]) for row in rows if "held_out_loss" in row]
axis = plots.curves(
    {
        "training batch": tuple(zip(*training, strict=True)),
        "held out": tuple(zip(*held_out, strict=True)),
    },
    styles={"training batch": "policy", "held out": "exact"},
    xlabel="step",
    ylabel="nats per token",
    title="pre-training on unlabelled reviews",
)  # fmt: skip

# %% [markdown]
# What does it write? Each line begins with the first tokens of a review. The model continues from
# there.

# %%
for sample in run["rows"]["base"][0]["samples"][:4]:
    print(f"[{sample['prompt']}]{sample['answer']}\n")

# %% [markdown]
# Short phrases are right, and the tone of a review is there. Names and rare words are invented, and
# the thread is lost within a sentence. A model of two million weights, after as many tokens as the
# text has, can do no more. It is enough for an opinion, and opinions are what we steer.
#
# ## 2. A reward from labels
#
# In [06](06_reward_model.ipynb) people compared two answers. Here a review carries a label: its
# author gave many stars or few. The same scalar head can learn from that. Let its score $R$ be the
# **log-odds** that the text is positive, so that $\sigma(R)$ is the probability. The loss is the
# surprise at the true label, the *binary cross-entropy*:
#
# $$-y \log \sigma(R) - (1 - y) \log \sigma(-R)$$
#
# Such a reward model is called an **outcome reward model** (Cobbe et al. 2021,
# [arXiv:2110.14168](https://arxiv.org/abs/2110.14168)). By hand: a score of 1 means a probability of
# 0.731. If the text is positive that costs $-\log 0.731 = 0.313$; if it is negative, $-\log 0.269 = 1.313$.

# %%
scores, labels = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0])
probability = scores.sigmoid()
by_hand = -labels * probability.log() - (1 - labels) * (1 - probability).log()
print([round(x, 3) for x in by_hand.tolist()])
assert torch.allclose(outcome_loss(scores, labels), by_hand.mean())

# %%
plots.code(outcome_loss, docstring=False)

# %% [markdown]
# ### Exercise 1
#
# Write the loss so that it survives a score of -200, whose probability is 0 in float32.
# `torch.nn.functional.logsigmoid` helps.


# %%
def my_outcome_loss(outcome_scores, labels):
    """(N,) and (N,) -> the mean cross-entropy."""
    ...


check("outcome_loss", my_outcome_loss)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def my_outcome_loss(outcome_scores, labels):
#     good = -torch.nn.functional.logsigmoid(outcome_scores)
#     bad = -torch.nn.functional.logsigmoid(-outcome_scores)
#     return (labels * good + (1 - labels) * bad).mean()
# ```
#
# $1 - \sigma(R) = \sigma(-R)$, so no probability is ever subtracted from 1.
# </details>
#
# ### Two classifiers and a counter
#
# The labels are cut in two halves. Classifier **A** learns from one half, on top of the language
# model. It will be the reward. Classifier **B** learns from the other half, on a separate small
# trunk (the layers below the head) that has read nothing else. It is the **judge**: it steers
# nothing. A third judge counts words and pairs of neighbouring words and weighs them by logistic
# regression, also on B's half.

# %%
print(len(features("Not good, not good at all!")), "features: words and neighbours, each once")
names, accuracy = [], {"classifier": [], "n-gram regression": []}
for name, report in run["classifiers"].items():
    for length, numbers in report.items():
        names.append(f"{name.upper()}, {length} tokens")
        accuracy["classifier"].append(numbers["accuracy"])
        accuracy["n-gram regression"].append(numbers["ngram_accuracy"])
figure, axis = plots.panels(1, width=9)
axis = plots.bars(
    accuracy,
    names,
    axis=axis,
    numbers=".2f",
    ylim=(0.5, 1),
    ylabel="accuracy on unseen reviews",
    styles={"classifier": 0, "n-gram regression": "reference"},
)  # fmt: skip

# %% [markdown]
# Both columns of a pair have read the same words: the first 32, 64 or 256 tokens of a review. Short pieces
# are hard for everybody, because many reviews begin with the plot. Counting is strong: A, which
# starts from the language model, is within about a point of it on every length. B has read
# nothing but its half, and on long pieces it stays four points below.
#
# An answer of the policy has 32 tokens. On pieces of that length A is right in 71% of the cases, the
# leftmost bar. So the reward is a noisy one.
#
# ## 3. Steering
#
# A prompt is the first 2 to 8 tokens of a review. The policy writes 32 tokens. Its reward is A's
# log-odds. Nothing else changes: GRPO from [07](07_grpo.ipynb), PPO from [08](08_ppo.ipynb), RLOO
# from [10](10_rloo.ipynb), and DPO from [20](20_dpo_and_pg_grpo.ipynb) on pairs of the base's own
# answers, of which A likes one better. One more run has no KL penalty; section 5 comes back to it.
#
# **Predict:** the reward will rise. Will judge B agree? Will the sentences stay sentences?

# %%
titles = {"base": "base", "grpo": "GRPO", "ppo": "PPO", "rloo": "RLOO", "dpo": "DPO",
          "unbounded": "no KL penalty"}  # fmt: skip
shown = [name for name in titles if name in run["rows"]]


def column(key):
    """The mean over the seeds of every policy."""
    return [sum(row[key] for row in run["rows"][n]) / len(run["rows"][n]) for n in shown]


figure, axis = plots.panels(1, width=9)
axis = plots.bars(
    {
        "A, the reward": column("positive_a"),
        "B, the judge": column("positive_b"),
        "n-grams": column("positive_ngrams"),
    },
    [titles[name] for name in shown],
    axis=axis,
    numbers=".2f",
    ylim=(0, 1.1),
    ylabel="share of positive answers",
    styles={"A, the reward": "proxy", "B, the judge": "gold", "n-grams": "reference"},
)  # fmt: skip

# %% [markdown]
# The same prompts, before and after:

# %%
for before, after in zip(
    run["rows"]["base"][0]["samples"][:4], run["rows"]["grpo"][0]["samples"][:4], strict=True
):
    print(f"[{before['prompt']}]\n  base {before['b']:+.1f}: {before['answer'].strip()!r}")
    print(f"  GRPO {after['b']:+.1f}: {after['answer'].strip()!r}\n")

# %% [markdown]
# The number is judge B's log-odds. B agrees for the most part: its share of positive answers rises
# from 0.47 to 0.85 (PPO), 0.87 (RLOO), 0.88 (DPO) and 0.92 (GRPO). Not every answer turns: the first says
# "brilliant", and then "moronic". And the sentences are as broken as before. (GRPO's bars are the mean of
# three seeds. The others have one.)
#
# ## 4. What it cost
#
# A share of positive answers says nothing about the price. Three numbers do, but only together:
#
# - the **KL** from the base, in nats per answer: how far the policy has moved;
# - the **perplexity under the base**: how unlikely the base finds the new answers;
# - **distinct-2**: the share of different ones among all neighbouring pairs of words. (Distinct-1 is
#   the same for single words.) A policy that gives one answer to everything has a distinct-2 near 0,
#   whatever its perplexity.

# %%
print(f"{'policy':14s} {'KL':>6s} {'perplexity':>10s} {'distinct-1':>10s} {'distinct-2':>10s}")
columns = [column(key) for key in ("kl", "perplexity", "distinct_1", "distinct_2")]
for name, kl, perplexity, one, two in zip(shown, *columns, strict=True):
    print(f"{titles[name]:14s} {kl:6.1f} {perplexity:10.1f} {one:10.3f} {two:10.3f}")

# %% [markdown]
# The base finds the answers of GRPO, PPO and RLOO likelier than its own, but they repeat more
# words. DPO has moved a nat farther than GRPO, and its perplexity is twice the base's: its
# probability went to words that the base would not choose. For the same reason its distinct-2 is
# the highest of all. So neither number is good or bad alone.
#
# By hand: an answer of two tokens with probabilities 1/2 and 1/8 has the surprises log 2 and log 8. Their
# mean is log 4, so the perplexity is 4.
#
# ### Exercise 2
#
# Compute the perplexity of several answers from the log-probs of their tokens. The library gives
# these with `token_log_probs` ([02](02_tokens_padding_masks.ipynb)). What comes after an answer's end
# must not count.


# %%
def my_perplexity(log_probs, mask):
    """(N, T) and bool (N, T) -> the perplexity over all tokens."""
    ...


check("perplexity", my_perplexity)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def my_perplexity(log_probs, mask):
#     surprise = -(log_probs * mask).sum() / mask.sum()
#     return surprise.exp()
# ```
# </details>
#
# ### Exercise 3
#
# Compute distinct-2. Each word is a number, and 0 is padding.


# %%
def my_distinct_pairs(words, mask):
    """(N, T) word numbers and bool (N, T) -> different pairs over all pairs."""
    ...


check("distinct_pairs", my_distinct_pairs)

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# def my_distinct_pairs(words, mask):
#     pairs = []
#     for row, there in zip(words, mask):
#         row = row[there].tolist()
#         pairs += zip(row, row[1:])
#     return torch.tensor(len(set(pairs)) / len(pairs))
# ```
# </details>
#
# ## 5. Over-optimisation, in English
#
# One run had no KL penalty, no early stop and a larger learning rate. **Predict** what it writes before you
# look. **Predict** also what judge B says about it.

# %%
if "unbounded" in run["rows"]:
    for sample in run["rows"]["unbounded"][0]["samples"][:4]:
        print(f"[{sample['prompt']}] A {sample['a']:+.1f}, B {sample['b']:+.1f}")
        print(f"  {sample['answer'].strip()!r}\n")

# %%
figure, (left, right) = plots.panels(2)
engines = {"grpo-0": "GRPO", "ppo-0": "PPO", "rloo-0": "RLOO", "dpo-0": "DPO",
           "unbounded-0": "no KL penalty"}  # fmt: skip
for axis, key, title in (
    (left, "validation/reward", "A, the reward"),
    (right, "validation/gold", "B, the judge"),
):
    found = {
        label: tuple(zip(*[(row["validation/kl"], row[key]) for row in run["curves"][name]]))
        for name, label in engines.items()
        if name in run["curves"]
    }
    plots.curves(found, axis=axis, title=title, xscale="log", marker=True)
    plots.labels(axis, "KL (nats per answer)", "mean log-odds", title, legend=True)

# %% [markdown]
# (B's curve was made with revision 6d26a07a, which measured it in every validation.)
#
# The reward keeps rising with the KL, and so do the judge's log-odds. B was trained on other labels
# and on a separate trunk, but it is fooled all the same, because a second classifier shares the
# blind spot of the first. Neither has ever seen a text that is nothing but praise, and to both it
# is the best review of all. Counting words is fooled too.
#
# Another kind of number shows it: distinct-2 falls to 3% of the base's, and the perplexity under
# the base is two and a half times as high. This is Goodhart's law from
# [17](17_when_the_proxy_breaks.ipynb), in English: a measure stops being a good one when it becomes
# the target. **A share of positive answers is worth nothing without the price beside it.**
#
# ## 6. The command
#
# ```
# python scripts/imdb.py --data aclImdb
# ```
#
# It does everything on this page, keeps every finished stage, and resumes where it was interrupted.
# [scripts/imdb.py](../scripts/imdb.py) is one file. Its stages are separate scripts:
# `gpt.tokenizer_training`, `gpt.pretraining`, `reward_model.outcome_training` and the engines.
#
# Next: [22_bug_zoo](22_bug_zoo.ipynb), runs with a fault in them, and how to see it.
