# %% [markdown]
# # 6. The reward model
#
# **The question.** Nobody can write down what makes an answer good, but anybody can say which of
# two answers is better. How do you turn that into a number?
#
# **After this page you can** turn comparisons into a loss, say at which token a reward model reads its
# score and why, judge an accuracy beside its ceiling, ask a model what it does not see, take length out
# of a score, and say how far two annotators agree.
#
# **Why.** Reinforcement learning needs a number for every answer. A **reward model** learns it from
# comparisons. Everything that a policy learns later it learns from this model, including its mistakes. It
# is step 2 of Figure 2 of InstructGPT (Ouyang et al. 2022,
# [arXiv:2203.02155](https://arxiv.org/abs/2203.02155), section 3.5). The formula is older than neural
# networks: Zermelo ranked chess players with it in 1929. In 2017 Christiano et al.
# ([arXiv:1706.03741](https://arxiv.org/abs/1706.03741)) put a network in the place of the player's
# strength, and 900 comparisons taught a simulated robot a backflip that nobody could have written down as
# a reward.
#
# The way of this page: comparisons become a loss (1), the loss needs a score and a place to read it (2),
# a noisy annotator compares (3), a model learns (4), and you find out whether it is good (5), what it
# does not see (6) and how far it agrees with you (7). The boxes can be skipped.
#
# **You need** [02](02_tokens_padding_masks.ipynb) (masks, which column is which) and
# the base model of [03](03_pretraining_and_sft.ipynb), which has learned to write reviews.
#
# **It takes** about 25 seconds on one CPU core, after start-up, and twenty answers of yours.

# %%
import copy
import itertools
import json
import math
import random
from pathlib import Path

import matplotlib.pyplot as plt
import torch

try:
    from course import plots, saved_models
    from course.claims import holds
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.exercises import check

from data.collate import collate_responses
from data.records import PreferenceRecord
from data.worlds import reviews
from gpt.generate import SamplingParams
from gpt.ranks import score_in_micro_batches
from harness.metric_log import MetricLog
from harness.seeds import make_generator
from report.tokens import show_tokens
from reward_model import pairs as pairing
from reward_model import reward_model_training
from reward_model.accuracy_report import (
    calibration,
    preference_report,
    score_pairs,
    wilson_interval,
)
from reward_model.loss import bradley_terry_loss
from reward_model.scalar_head import RewardModel
from reward_model.world_pairs import WorldAnnotator

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
plots.use()
base, tokenizer = saved_models.base()
EOS = tokenizer.eos_id

# %% [markdown]
# ## 1. From comparisons to a loss
#
# *We have verdicts such as "A is better than B". This section makes them one number to minimise.*
#
# Two answers, A with the score 1.0 and B with the score 0.5. How likely is it that somebody prefers
# A? Bradley and Terry (1952) say that only the gap between the scores counts:
#
# $$P(A \succ B) = \sigma(r_A - r_B), \qquad \sigma(z) = \frac{1}{1 + e^{-z}}$$
#
# Here $\sigma(0.5) = 0.62$. If A was preferred, the loss is $-\log 0.62 = 0.474$, the surprise at
# that verdict. In a second comparison the winner scores 0.2 and the loser 0.8. That was less
# likely, $\sigma(-0.6) = 0.35$, so it costs 1.037. The loss of the model is the mean over all
# comparisons (arXiv:2203.02155, Eq. 1):
#
# $$\mathcal{L} = - E \left[ \log \sigma \left( r(x, y_w) - r(x, y_l) \right) \right]$$

# %%
chosen, rejected = torch.tensor([1.0, 0.2]), torch.tensor([0.5, 0.8])
each = -torch.sigmoid(chosen - rejected).log()
print(each, each.mean())

torch.testing.assert_close(each.mean(), bradley_terry_loss(chosen, rejected))
holds(
    math.isclose(each.mean(), 0.755782, abs_tol=5e-7), "the loss of the two comparisons is 0.755782"
)
plots.code(bradley_terry_loss, lines=("gap =", "return loss.sum()"))

# %% [markdown]
# The library has the same line, and options around it: a margin that the winner must lead by, and
# weights of the pairs. It uses `logsigmoid`, which stays finite for a pair that is far on the wrong
# side.
#
# **Predict, then run.** Add 100 to all four scores. What happens to the loss?

# %%
print(bradley_terry_loss(chosen + 100, rejected + 100))
assert torch.isclose(bradley_terry_loss(chosen + 100, rejected + 100), each.mean(), atol=1e-5)

# %% [markdown]
# Nothing. **Only gaps are learned**, so the data does not fix the offset of the scale. A box in
# section 4 does.
#
# How hard does a comparison pull on the scores? That is the slope of its loss: minus the
# probability that the model assigned to the wrong verdict.

# %%
gap = torch.linspace(-5, 5, 201, requires_grad=True)
losses = torch.stack([bradley_terry_loss(g[None], torch.zeros(1)) for g in gap])
(slope,) = torch.autograd.grad(losses.sum(), gap)
assert torch.allclose(slope, -torch.sigmoid(-gap), atol=1e-6)

axis = plots.panels(1)[1]
plots.curves({"loss": losses, "its slope": slope}, gap, axis=axis)
axis.plot(chosen - rejected, each, "o", color="black", label="the two comparisons above")
axis.axhline(math.log(2), **plots.line("reference"), label="log 2: undecided")
axis.set(xlabel="gap: score of the winner minus score of the loser", ylabel="nats per comparison")
axis.set_title("The further behind the winner is, the harder it pulls")
axis.legend()
plt.show()

# %% [markdown]
# A pair whose winner is far ahead hardly pulls, and a pair on the wrong side pulls with at most 1,
# however wrong it is. So one wrong label has a bounded pull. But the better the model, the harder the label
# pulls, and it never lets go.
#
# **Your turn.** Write the loss so that it stays finite.


# %%
def my_bradley_terry_loss(chosen, rejected):
    """Scores (pairs,) and (pairs,) -> a scalar."""
    ...


check("bradley_terry_loss", my_bradley_terry_loss)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_bradley_terry_loss(chosen, rejected):
#     return -torch.nn.functional.logsigmoid(chosen - rejected).mean()
# ```
#
# </details>
#
# ## 2. The score is read at the last token
#
# *The loss compares two scores. This section says where a score comes from.*
#
# The reward model is a pre-trained GPT. Its output layer, the **head**, is replaced by one with a single
# number. A language model predicts token t from the column *before* it. But a judge must have read what
# it judges, so the score of token t comes from **token t's own column**. The score of the answer is that
# of its **last token**, the EOS, because only the EOS has read the whole answer and knows that it ends
# there.

# %%
prompt = tokenizer.encode("Review the red kettle for Anna.\n")
answers = [tokenizer.encode("The kettle is great.") + [EOS], tokenizer.encode("It is bad.") + [EOS]]
batch = collate_responses([prompt, prompt], answers, EOS)
fresh = RewardModel.from_policy(base, "last_token", make_generator(0, "head")).requires_grad_(False)

hidden = fresh.gpt.hidden(batch.tokens)  # (2, columns, D)
scores = hidden @ fresh.head.weight[0] + fresh.head.bias  # one number per column
naive = [scores[i, len(prompt) + len(answers[i]) - 1] for i in range(2)]  # there stands the EOS
print("scores at the EOS", torch.stack(naive))

torch.testing.assert_close(torch.stack(naive), fresh.raw_scores(batch), rtol=1e-4, atol=1e-5)
plots.code(RewardModel.token_scores)
plots.code(RewardModel.raw_scores)

# %% [markdown]
# To prove that the columns are right, exchange one token of the answer: the scores before it must
# not change, but its own score must.

# %%
original = fresh.token_scores(batch)[0]
for t in range(3):
    other = list(answers[0])
    other[t] = tokenizer.encode("a")[0]
    change = (fresh.token_scores(collate_responses([prompt], [other], EOS))[0] - original).abs()
    print(f"token {t} exchanged: scores move by", [f"{x:.2f}" for x in change.tolist()])
    holds(
        (change[:t] < 1e-5).all() and change[t] > 1e-3,
        "only the scores from the exchanged token on change",
    )

# %% [markdown]
# **What a trained reward model says, word by word.** The repository keeps a reward model that was trained
# on 112,000 comparisons and has learned to judge at the EOS. So we can ask after every word what the
# answer would be worth **if it ended here**: cut it off, add an EOS, and read the score. Blue is above
# the average of the base model's answers, orange is below.

# %%
judge, _ = saved_models.reward_model()


def if_it_ended_here(text: str) -> list[float]:
    """The score of every prefix of an answer, each ended by an EOS."""
    tokens = tokenizer.encode(text)
    prefixes = [tokens[: t + 1] + [EOS] for t in range(len(tokens))]
    return judge(collate_responses([prompt] * len(tokens), prefixes, EOS)).tolist()


four = [
    "Hi Anna! The kettle is great. I hope this helps.",
    "Hi Anna! The lamp is great. I hope this helps.",
    "Hi Anna! The kettle is great. Leave me alone.",
    "Who cares? It is foul.",
]
texts = [[tokenizer.decode([t]) for t in tokenizer.encode(text)] for text in four]
scores = [if_it_ended_here(text) for text in four]
for text, row in zip(four, scores, strict=True):
    print(f"{row[-1]:+.2f}  {text}")
show_tokens(texts, {"prefix_score": scores}, prompts=["Review the red kettle for Anna."] * 4)

# %% [markdown]
# Until the review expresses an opinion, the score stays far below the average. At *great* it jumps
# by 2.6. *I hope this helps* adds 0.4, and *Leave me alone* takes 0.2. A lamp instead of the kettle
# costs 0.2, so the model notices, at least here. Section 6 asks that question 200 times.
#
# ### Box: the mean of all tokens, and the score of every prefix
#
# Some programs average the scores of all of an answer's tokens instead, the EOS included and the prompt
# not (`mean_score`). Every token then gets a direct signal, and an answer that was cut off can be scored
# like any other. But early words are judged before the end is known, so a policy may earn a good mean
# with a long good beginning and never end. That is why InstructGPT, most libraries and the default here
# take the last token.
#
# **Your turn**: the pooling.


# %%
def my_mean_score(token_scores, mask):
    """Scores (N, T), mask (N, T) up to and including the EOS -> (N,)."""
    ...


check("mean_score", my_mean_score)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_mean_score(token_scores, mask):
#     return torch.where(mask, token_scores, 0.0).sum(1) / mask.sum(1)
# ```
#
# </details>
#
# With the mean a prefix need not be read again: its score (without an added EOS) is the mean of the scores
# so far, so that one pass gives a number after every word.
#
# **Your turn**: compute the score of each prefix from the scores of the tokens.


# %%
def my_prefix_scores(token_scores, mask):
    """Scores (N, T), mask (N, T) -> the mean up to each token (N, T), 0 in the padding."""
    ...


check("prefix_scores", my_prefix_scores)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_prefix_scores(token_scores, mask):
#     valid = torch.where(mask, token_scores, 0.0)
#     return torch.where(mask, valid.cumsum(1) / mask.cumsum(1).clamp(min=1), 0.0)
# ```
#
# </details>
#
# ## 3. A noisy annotator
#
# *Loss and score are there. This section makes the comparisons, and says how well they can be predicted.*
#
# In this world we know what an answer is really worth, its **gold reward** $R$ from 0 to 1: high for a
# review that is kind, polite, well formed and about the right thing. The annotator sees it, but
# hesitates like a Bradley-Terry model:
#
# $$P(A \succ B) = \sigma \left( \frac{R_A - R_B}{0.12} \right)$$
#
# An answer that is better by 0.12 wins in 73% of the cases. So the perfect reward model is known as
# well: it is $R / 0.12$, up to a constant. But even that one disagrees with the labels whenever the
# annotator errs. The mean probability that the annotator is right is the **ceiling** of any model's
# expected accuracy. (On a few hundred labels a good model may lie above it by luck.)
#
# People are harder. **Ties:** drop them, or give both verdicts half the weight. **Position bias:** the
# answer shown first wins more often. So shuffle the order, which makes it noise instead of a lean to one
# side. And let a judging model see both orders, because a lean that is added to its log-odds drops out of
# their mean.
# **Disagreement:** ask several people about some pairs. How often they agree estimates the ceiling, and
# their share of votes can be the label.

# %%
gaps = [g / 20 for g in range(-12, 13)]
rng = random.Random(0)
asked = [sum(rng.random() < reviews.prefers(g, 0.0) for _ in range(400)) / 400 for g in gaps]
curve = [1 / (1 + math.exp(-g / reviews.ANNOTATOR_TEMPERATURE)) for g in gaps]
holds(
    max(abs(a - c) for a, c in zip(asked, curve, strict=True)) < 0.1,
    "the annotator's verdicts follow the curve",
)

axis = plots.panels(1, height=3)[1]
plots.curves({"exact": curve}, gaps, axis=axis)
axis.plot(gaps, asked, "o", color=plots.colour("gold"), label="400 verdicts each")
axis.set(xlabel="gold reward of A minus gold reward of B", ylabel="share of verdicts for A")
axis.set_title("The verdicts follow the difference in gold")
axis.legend(["probability", "400 verdicts each"])
plt.show()

# %% [markdown]
# Now data for a small reward model of our own. The base model answers training prompts K = 4 times,
# and the annotator compares every two different answers. The held-out pairs are answers to prompts
# that occur nowhere in training.


# %%
def compared(split: str, count: int, K: int) -> list[pairing.TokenPair]:
    """`count` comparisons of K answers of the base model to each prompt of a split."""
    batches = pairing.sample_pairs(
        base, tokenizer, reviews.prompts(split), count, WorldAnnotator(reviews),
        pairing.PairSampling(SamplingParams(max_new_tokens=48), K, batch_size=64),
        generator=make_generator(0, split), rng=random.Random(0),
    )  # fmt: skip
    return [pair for batch in batches for pair in batch]


training, held_out = compared("train", 3000, K=4), compared("validation", 500, K=2)
print(f"{len(training):,} comparisons of answers to {len(pairing.by_prompt(training)):,} prompts")
print(tokenizer.decode(training[0].prompt).strip())
for pair in pairing.by_prompt(training)[0][:2]:
    text = pairing.pair_as_text(pair, tokenizer)
    print(f"\n  chosen   gold {text['gold_chosen']:.2f}  {text['chosen']}")
    print(f"  rejected gold {text['gold_rejected']:.2f}  {text['rejected']}")
assert not {tuple(p.prompt) for p in training} & {tuple(p.prompt) for p in held_out}

# %% [markdown]
# ### Box: K answers, all comparisons in one batch
#
# A ranking of K answers gives K(K-1)/2 comparisons. Each answer takes part in K - 1 of them, but
# has to be read only once. If the pairs were shuffled one by one, the model would see each answer
# K - 1 times in a pass over the data. InstructGPT's model overfitted that way within one pass
# (section 3.5). So all comparisons of a prompt stay together.

# %%
six = pairing.encode_pairs(
    [
        PreferenceRecord("Review the red kettle for Anna.\n", better, worse)
        for better, worse in itertools.combinations(four, 2)
    ],
    tokenizer,
)
together, chosen_rows, rejected_rows = pairing.collate_comparisons(six, EOS)
apart = pairing.collate_pairs(six, EOS)
print(f"{len(six)} comparisons: {len(together)} rows together, {len(apart)} as separate pairs")

row_scores = fresh.raw_scores(together)
one_pass = bradley_terry_loss(row_scores[chosen_rows], row_scores[rejected_rows])
torch.testing.assert_close(one_pass, bradley_terry_loss(*fresh.raw_scores(apart).chunk(2)))

# %% [markdown]
# ## 4. Training
#
# *Comparisons, loss and score meet: a small model learns.*
#
# All layers below the head start from the base model, which already knows the language, and the head starts
# random. There is only one pass over the data, to keep this page short: three are better here. The share of
# held-out pairs that this small model orders as gold does, with three seeds:
#
# | | seed 0 | seed 1 | seed 2 |
# | --- | --- | --- | --- |
# | one pass | 0.74 | 0.72 | 0.70 |
# | three passes | 0.77 | 0.81 | 0.77 |
#
# Accuracy on the labels rises as well, by 0.03 or more, so what the later passes may learn
# of the labels' errors does not yet outweigh the rest. (The model of
# [13](13_when_the_proxy_breaks.ipynb) has 480 comparisons and three passes, and is as good as this one,
# although not on the same pairs.) Watch the accuracy on held-out pairs, and stop where it falls.

# %%
config = reward_model_training.RewardModelConfig(
    batch_size=8, lr=2e-3, warmup_steps=10, device="cpu"
)
small = RewardModel.from_policy(base, "last_token", make_generator(0, "head"))
steps = len(pairing.by_prompt(training)) // config.batch_size
rows = reward_model_training.train(small, training, config, MetricLog(steps), eos_id=EOS)
small.requires_grad_(False)
small.normalize_on(pairing.collate_pairs(training[::9], EOS))  # the box below
plots.code(reward_model_training.train, lines=("for part in", "loss.backward()"))

# %% [markdown]
# Two lines frame the loss. An undecided model pays $\log 2$ for each comparison. The perfect one
# still pays the annotator's uncertainty: a coin that falls on heads with probability 0.7 cannot be
# predicted any better.


# %%
def surprise(p: float) -> float:
    """The entropy of a coin, in nats: the mean surprise of somebody who knows p."""
    return -sum(q * math.log(q) for q in (p, 1 - p) if q > 0)


golds = [(p.meta["gold_chosen"], p.meta["gold_rejected"]) for p in training]
floor = sum(surprise(reviews.prefers(max(pair), min(pair))) for pair in golds) / len(golds)
losses = [row["loss"] for row in rows]
axis = plots.panels(1, width=8)[1]
plots.curves({"reward model": losses}, range(1, len(rows) + 1), axis=axis, smooth=8,
            styles={"reward model": "proxy"})  # fmt: skip
axis.axhline(math.log(2), **plots.line("reference"), label="log 2: undecided")
axis.axhline(floor, **plots.line("gold"), label="the perfect model")
axis.set(xlabel="step (8 prompts, up to 48 comparisons)", ylabel="loss (nats per comparison)")
axis.set(ylim=(0.3, 1.0), title="The loss falls, and stays above that of a perfect model")
axis.legend(ncols=3, loc="upper right")
plt.show()
holds(sum(losses[-8:]) / 8 < 0.66, "the loss ends below 0.66")

# %% [markdown]
# ### Box: the unit and the zero of a score
#
# The loss leaves the offset open, and the spread is whatever training made it. A
# KL coefficient, a penalty for answers without an end, a critic: all of them need to know how large
# a reward is. So the scores are shifted and scaled once, on training answers, to mean 0 and
# standard deviation 1 (Ziegler et al. 2019, [arXiv:1909.08593](https://arxiv.org/abs/1909.08593)).
# The order of answers does not change.

# %%
reference = pairing.collate_pairs(training[::9], EOS)
raw = score_in_micro_batches(small.raw_scores, reference, 64)
normalised = (raw - raw.mean()) / raw.std()
torch.testing.assert_close(
    normalised, score_in_micro_batches(small, reference, 64), rtol=1e-3, atol=1e-3
)
print(f"raw: mean {raw.mean():.2f}, standard deviation {raw.std():.2f}; normalised: 0 and 1")

# %% [markdown]
# ## 5. Is it good?
#
# *A number for the model, and three numbers without which it means nothing.*
#
# An accuracy alone means nothing. Three numbers belong beside it: a coin; "the longer answer wins",
# a baseline that needs no training; and the ceiling. A share of $n$ pairs is itself an estimate, so
# it gets an interval.

# %%
reports = {}
for name, model in (("3,000 comparisons", small), ("112,000, kept", judge)):
    won, lost, both = score_pairs(model, held_out, EOS)
    scale = float(model.std)
    reports[name] = preference_report(won, lost, both.lengths, held_out, scale, reviews.prefers)
    print(f"{name}\n{reports[name].text()}\n")
n = reports["3,000 comparisons"].numbers
bars = {"coin": 0.5, "longer wins": n["length_accuracy"]}
bars |= {name: report.numbers["accuracy"] for name, report in reports.items()}
bars["ceiling"] = n["label_ceiling"]

MODELS = {"3,000 comparisons": "proxy", "112,000, kept": 0}  # their colours from here on
styles = {"coin": "reference", "longer wins": "reference", "ceiling": "gold"} | MODELS
axis = plots.bars(bars, styles=styles, numbers=".2f", ylabel="share of labels ordered right")
for place, report in enumerate(reports.values(), start=2):
    low, high = report.numbers["accuracy_interval"]
    axis.plot([place + 0.25] * 2, [low, high], color="black", linestyle="-", linewidth=2)
axis.set(ylim=(0, 1), xlabel="who decides (black: 95% interval)")
axis.set_title(f"Both models beat a coin on {n['pairs']} held-out pairs")
axis.figure.set_size_inches(9, 3.2)
plt.show()
holds(n["accuracy_interval"][0] > 0.55, "the small model is better than a coin")

# %% [markdown]
# Compare the kept model with the gold order instead, which has no annotator's errors. It orders
# 0.86 of the pairs right but only 0.76 as they are labelled, so much of what is missing is the
# labels' fault. The small model adds errors of its own, but gold agrees with it, too, more often
# than the labels do: by 0.08 in this run and by 0.04 with each of the seeds 1 and 2.
#
# **How many pairs are enough for you?** Train on a quarter, a half and all of them, and draw the held-out
# accuracy over the number of pairs, with its interval. One doubling says little: in the curve below two
# doublings in a row add nothing and the next one adds five points. Judge by the whole curve instead, with
# more than one seed at each point. More pairs cannot lift it above the ceiling. Where it has been flat
# while the pairs became eight times as many, and still lies below the ceiling, try a larger model, more
# passes or better labels first. The curve is recorded from a published model of 135 million weights, on
# pairs of a more and a less polite answer, which have fewer errors. Each point had two passes, but at
# least 50 steps of 8 pairs ([docs/archive.md](../docs/archive.md#preferences-with-room-for-48-tokens)):

# %% tags=["hide-input"]
recorded = json.loads(Path("../docs/preferences_48_tokens.json").read_text(encoding="utf-8"))
curve = {
    row["train_pairs"]: (row["accuracy"], row["accuracy_interval"])  # one seed of each
    for name, row in recorded["reward models"].items()
    if row["pooling"] == "last_token" and name != "rm-b"  # that is of the other half
}
counts = sorted(curve)
right, bands = zip(*(curve[count] for count in counts), strict=True)
low, high = zip(*bands, strict=True)
figure, axis = plots.panels(1)
plots.curves({"last token": (counts, right)}, axis=axis, marker=True, ylim=(0.5, 1))
axis.fill_between(counts, low, high, alpha=0.15)
axis.set(xscale="log", xlabel="training pairs", ylabel="held-out accuracy (band: 95%)")
axis.set_title("More pairs teach to order more of the held-out ones")
axis.set_xticks(counts, [str(count) for count in counts])
plt.show()
holds(right[-1] > right[0] + 0.05, "more pairs order more of the held-out pairs right")

# %% [markdown]
# **More pairs, or more labels for each pair?** With a fixed sum of money you can ask one person about each
# of many pairs, or three people about each of a third as many. The answer can be computed for a small
# model: ten things about an answer matter, each with an unknown weight; an annotator compares as in
# section 1, and errs as often as that formula says. The weights are then fitted by the loss of section 1,
# in which a pair with two votes of three has the label $2/3$. (The weights were drawn from a normal
# distribution, so the fit may know that much: its weight decay says so.)
#
# One label costs 1. What a new *pair* costs depends on you: nothing where the policy writes answers by
# itself, more where people write them, or where a long pair is read once and then judged several times. So
# a sum of 300 buys $300 / (\mathrm{cost} + k)$ pairs of $k$ labels each.
#
# > **Predict, then run.** New pairs cost nothing. Is one label for each of 300 pairs better than three
# > for each of 100? And if a new pair costs as much as four labels?


# %%
def fitted(gaps: torch.Tensor, share: torch.Tensor, labels: int) -> torch.Tensor:
    """Weights (R, 10) that make R sets of votes likeliest, by Newton's method. gaps (R, pairs, 10)."""
    w = torch.zeros(len(gaps), 10)
    for _ in range(12):
        p = torch.sigmoid((gaps * w[:, None]).sum(2))  # (R, pairs)
        slope = (labels * (share - p)[..., None] * gaps).sum(1) - w
        bend = torch.einsum("rm,rmi,rmj->rij", labels * p * (1 - p), gaps, gaps) + torch.eye(10)
        w = w + torch.linalg.solve(bend, slope)
    return w


def ordered(cost: int, labels: int, majority: bool = False, money: int = 300) -> float:
    """The share of new pairs that the fitted weights order as the true ones do; mean of 300 worlds."""
    draw, pairs = make_generator(0, "budget"), money // (cost + labels)
    truth = torch.randn(300, 10, generator=draw)
    gaps = torch.randn(300, pairs, 10, generator=draw)  # of the ten things, between two answers
    p = torch.sigmoid((gaps * truth[:, None]).sum(2))
    votes = torch.rand(300, pairs, labels, generator=draw) < p[..., None]
    share = votes.float().mean(2)
    weights = fitted(gaps, (share > 0.5).float(), 1) if majority else fitted(gaps, share, labels)
    new = torch.randn(300, 200, 10, generator=draw)
    right = ((new * weights[:, None]).sum(2) > 0) == ((new * truth[:, None]).sum(2) > 0)
    return float(right.float().mean())


rows = [[str(cost), *(ordered(cost, k) for k in (1, 3, 9)), ordered(cost, 3, majority=True)]
        for cost in (0, 1, 4)]  # fmt: skip
columns = ["a new pair costs", "1 label each", "3 labels", "9 labels", "3, the majority's verdict"]
plots.table(columns, rows, number=".3f")
free, _, dear = rows
holds(free[1] > max(free[2:]), "where new pairs cost nothing, one label each is best")
holds(
    dear[2] > dear[1], "where a new pair costs four labels, three labels each are better than one"
)
holds(all(row[4] < row[2] for row in rows), "a majority's verdict is worth less than the votes")

# %% [markdown]
# Where new pairs are free, one label for each is best, because a second label of the same pair tells about
# the same direction once more, and a new pair tells about another one. Where a pair costs several labels,
# asking three people pays, because with one label each most of the money would go into the pairs. In no row
# is the majority's verdict as good as the votes themselves: two votes of three say that the pair is close,
# and the majority throws that away. These are numbers of *this* model, and neighbours differ by little.
#
# So the rule has two parts. Train on many pairs with one label each as long as pairs are cheap, and keep
# the votes where you have several. And ask several people about *some* pairs whatever it costs, because
# only that shows the ceiling, who is careless, and how far people agree (section 7).
#
# **Calibration.** The raw gap is more than an order: $\sigma(\mathrm{gap})$ claims how probable the
# verdict is. Among all pairs of which the model is "75% sure", three quarters should be ordered as
# they are labelled. Then the points lie on the black line.

# %% tags=["hide-input"]
figure, axis = plots.panels(1)
for name, report in reports.items():
    claimed, won, counts = zip(*report.numbers["calibration"], strict=True)
    limits = [wilson_interval(w * k, k) for w, k in zip(won, counts, strict=True)]
    low, high = zip(*limits, strict=True)
    plots.curves({name: (claimed, won)}, axis=axis, styles=MODELS, marker=True)
    axis.fill_between(claimed, low, high, color=axis.get_lines()[-1].get_color(), alpha=0.12)
axis.plot([0.5, 1], [0.5, 1], **plots.line("exact"), label="calibrated")
axis.set(xlabel="probability claimed", ylabel="share ordered right (band: 95%)")
axis.set_title("The kept model is as often right as it claims")
axis.legend()
plt.show()
bins = calibration(reports["112,000, kept"].margins * float(judge.std))
pairs_in_bins = sum(k for _, _, k in bins)
error = sum(k * abs(claimed - won) for claimed, won, k in bins) / pairs_in_bins
print(f"the kept model's probabilities are off by {error:.3f} in the mean")
holds(error < 0.05, "the kept model is well calibrated")

# %% [markdown]
# ## 6. What the model does not see
#
# *The accuracy was an average. This section spoils one thing at a time.*
#
# An accuracy is an average over the pairs that happened to be sampled. A sharper question: spoil
# **one** thing in a perfect answer, and ask whether the score notices. The gold reward says what
# each fault costs. A good reward model puts the spoilt answer below the good one every time.

# %%
good = "Hi {name}! The {item} is great. Its {aspect} is lovely. I hope this helps."
faults = {
    "judgement turned": lambda text, m: text.replace("great", "awful").replace("lovely", "foul"),
    "rude closing": lambda text, m: text.replace("I hope this helps.", "Leave me alone."),
    "no closing": lambda text, m: text.replace(" I hope this helps.", ""),
    "breaks off": lambda text, m: text.removesuffix(" helps."),
    "another item": lambda text, m: text.replace(m["item"], m["other_item"]),
    "another name": lambda text, m: text.replace(m["name"], m["other_name"]),
}
rng = random.Random(0)
asked = reviews.prompts("validation")[:200]
fills = [
    {
        **record.meta,
        "aspect": rng.choice(reviews.ASPECTS),
        "other_item": rng.choice([x for x in reviews.ITEMS if x != record.meta["item"]]),
        "other_name": rng.choice([x for x in reviews.NAMES if x != record.meta["name"]]),
    }
    for record in asked
]
whole = [good.format(**fill) for fill in fills]


# %%
def scored(model: RewardModel, answers: list[str]) -> torch.Tensor:
    """The normalised score of one answer to each prompt of `asked`."""
    prompts = [tokenizer.encode(record.prompt) for record in asked]
    responses = [tokenizer.encode(text) + [EOS] for text in answers]
    return score_in_micro_batches(model, collate_responses(prompts, responses, EOS), 64)


noticed = {"3,000 comparisons": [], "112,000, kept": []}
cost = []
for spoil in faults.values():
    spoilt = [spoil(text, fill) for text, fill in zip(whole, fills, strict=True)]
    golds = [[reviews.gold_reward(r, t) for r, t in zip(asked, ts)] for ts in (whole, spoilt)]
    cost.append((sum(golds[0]) - sum(golds[1])) / len(asked))
    for (_, shares), model in zip(noticed.items(), (small, judge), strict=True):
        shares.append(float((scored(model, spoilt) < scored(model, whole)).float().mean()))
rows = zip(faults, cost, *noticed.values(), strict=True)
plots.table(["fault", "costs in gold", *(f"noticed: {name}" for name in noticed)], list(rows))

# %% tags=["hide-input"]
axis = plots.bars(noticed, list(faults), styles=MODELS)
axis.axhline(0.5, **plots.line("exact"), label="coin")
axis.set(ylabel="share noticed", xlabel="what was spoilt, in 200 perfect answers", ylim=(0, 1.25))
axis.set_title("The kept model notices tone, manners and item")
axis.legend(ncols=3, loc="upper right")
axis.figure.set_size_inches(10, 3.4)
plt.show()
kept = dict(zip(faults, noticed["112,000, kept"], strict=True))
seen = ("judgement turned", "rude closing", "no closing", "another item")
holds(min(kept[name] for name in seen) > 0.9, "the kept model notices tone, manners and item")

# %% [markdown]
# Tone is in the answer itself, and here a few thousand comparisons teach it. Manners they
# teach less surely, and whether the answer is about **the prompt's** item, or speaks to **the prompt's**
# person, has to be compared across a distance. With three seeds, so that you see what is luck:
#
# | noticed by the small model | seed 0 | seed 1 | seed 2 |
# | --- | --- | --- | --- |
# | rude closing, one pass | 0.26 | 1.00 | 0.96 |
# | rude closing, three passes | 1.00 | 1.00 | 1.00 |
# | another item, one pass | 0.52 | 0.66 | 0.53 |
# | another item, three passes | 0.54 | 0.86 | 0.74 |
#
# The kept model, with 37 times as many comparisons, has learned the item, but the name remains close to a
# coin. Neither the loss nor the accuracy hinted at any of this.
#
# A policy that is trained against such a model will find these gaps, because answers that use them are
# paid. A reward model is a **proxy**, and
# optimising a proxy far enough can make the truth worse (Gao et al. 2023,
# [arXiv:2210.10760](https://arxiv.org/abs/2210.10760)). [13](13_when_the_proxy_breaks.ipynb) does it.
#
# ### Box: length, found and taken out
#
# Longer answers win more often in most sets of comparisons, partly because they say more and partly
# because they are long. A reward model learns both, and a policy then learns to write long answers
# (Singhal et al. 2023, [arXiv:2310.03716](https://arxiv.org/abs/2310.03716)). One finds it with the
# baseline "the longer one wins" of section 5, or by one more way to spoil an answer: make it longer without
# saying more. There are four ways to take it out:
#
# - **In the data**: compare answers of like length, or add pairs in which the shorter one is better.
# - **In the fit**: give length a place of its own beside the score, and leave it out when you score. ODIN
#   ([arXiv:2402.07319](https://arxiv.org/abs/2402.07319)) does it with a second head that is thrown away.
# - **Afterwards**: fit how the score rises with length, and subtract that
#   ([arXiv:2409.17407](https://arxiv.org/abs/2409.17407)).
# - **In training**: pay less for long answers, and watch `response_length`.
#
# What is at stake, in numbers. An annotator goes by quality and, besides, likes length. The model sees the
# quality with some noise. **Predict, then run:** does leaving length out help if length has nothing to do
# with quality? And if better answers are longer, or much longer, too? (With two columns the score without
# length is the other column. With more of them the fit of ODIN's kind decides how these are weighed.)


# %%
def agreement(together: float) -> list[float]:
    """How often scores with and without the column of length order new pairs as quality does."""
    draw = make_generator(0, "length")
    gaps = torch.randn(6000, 3, generator=draw)  # of two answers: quality, noise, length
    quality = gaps[:, 0]
    length = together * quality + (1 - together**2) ** 0.5 * gaps[:, 2]
    seen = torch.stack([quality + 0.7 * gaps[:, 1], length], 1)  # what the model sees
    likes = torch.sigmoid(2 * quality + 1.5 * length)  # what the annotator goes by
    won = torch.where(torch.rand(6000, generator=draw) < likes, 1.0, -1.0)
    weights = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.05)
    for _ in range(300):
        score = won[:3000] * (seen[:3000] @ weights)
        optimizer.zero_grad()
        bradley_terry_loss(score, torch.zeros(3000)).backward()
        optimizer.step()
    with_length, without = seen[3000:] @ weights.detach(), seen[3000:, 0]
    return [
        float((x.sign() == quality[3000:].sign()).float().mean()) for x in (with_length, without)
    ]


rows = [[f"{together:.1f}", *agreement(together)] for together in (0.0, 0.5, 0.8)]
plots.table(["correlation of length and quality", "scored with length", "length left out"], rows)
holds(rows[0][1] < rows[0][2] - 0.05, "where length says nothing, leaving it out helps")
holds(rows[1][1] < rows[1][2] - 0.02, "here it helps also where better answers are longer")
holds(rows[2][1] > rows[2][2], "where better answers are much longer, leaving it out costs")

# %% [markdown]
# Where length says nothing about quality, the score without it is nearer to the truth. Where better answers
# are *much* longer, it is further away, because length was evidence. In between it depends: in the second
# row leaving it out still helps, because this annotator pays more for length than length tells. So take
# length out where it is paid for more than it tells, and say that you did; page
# [23](23_is_it_better.ipynb), section 4, does the same for a judge's verdicts.
#
# ## 7. You are the annotator
#
# *So far a formula compared. Now it is you.*
#
# What would it take to teach the kept model **your** taste? Compare twenty pairs of the base model's
# answers: type 1 or 2, or 0 for a tie. Where nobody types, a stand-in answers, who likes the shorter
# one. Predict first: how often does the kept model agree with you before it has seen any of them?


# %%
def preferred(pair: pairing.TokenPair, asking: list[bool]) -> pairing.TokenPair | None:
    """The pair with the answer that you prefer as the chosen one; None for a tie."""
    one, two = (tokenizer.decode(answer) for answer in (pair.chosen, pair.rejected))
    typed = ""
    try:
        if asking:
            print(f"{tokenizer.decode(pair.prompt)}  1: {one}\n  2: {two}")
            typed = input("1, 2 or 0, Enter alone lets the stand-in go on: ")
    except (EOFError, NotImplementedError, OSError):  # nobody is there to be asked
        pass
    if typed not in ("0", "1", "2"):
        asking.clear()
        lengths = len(one.split()), len(two.split())
        typed = "0" if lengths[0] == lengths[1] else "1" if lengths[0] < lengths[1] else "2"
    turned = pairing.TokenPair(pair.prompt, pair.rejected, pair.chosen)
    return {"0": None, "1": pair, "2": turned}[typed]


asking, shown = [True], [pair for pair in held_out if pair.chosen[:-1] != pair.rejected[:-1]][:20]
answered = [preferred(pair, asking) for pair in shown]
mine = [pair for pair in answered if pair is not None]
print(f"{len(mine)} pairs and {20 - len(mine)} ties")

# %% [markdown]
# The kept model goes on from there, 50 steps on three quarters of your pairs, and is asked about the
# other quarter; four times, so that each pair is asked about once.


# %%
def agrees(model: RewardModel, pairs: list[pairing.TokenPair]) -> int:
    """How many pairs the model orders as you did."""
    won, lost, _ = score_pairs(model, pairs, EOS)
    return int((won > lost).sum())


without, taught = agrees(judge, mine), 0
own = reward_model_training.RewardModelConfig(batch_size=8, lr=1e-3, warmup_steps=10, device="cpu")
for fold in range(4):
    model = copy.deepcopy(judge).requires_grad_(True)
    lessons = [pair for place, pair in enumerate(mine) if place % 4 != fold]
    reward_model_training.train(model, lessons, own, MetricLog(50), eos_id=EOS)
    taught += agrees(model, mine[fold::4])
for name, count in (("without you", without), ("with you", taught)):
    low, high = wilson_interval(count, len(mine))
    print(
        f"{name}: {count} of {len(mine)} ordered as you did (95% interval {low:.2f} to {high:.2f})"
    )
holds(asking or taught > without, "with the stand-in's pairs the model agrees more often")

# %% [markdown]
# Twenty pairs leave a wide interval. `python -m reward_model.annotate` asks for sixty, at a keyboard,
# and tells how reliable you are: every tenth pair comes twice ([docs/human.md](../docs/human.md)).
#
# Two people agree often by chance alone, if both mostly prefer the first answer, say. **Cohen's kappa**
# takes that off: $\kappa = (p_o - p_e) / (1 - p_e)$, where $p_o$ is the share of pairs on which they
# agree and $p_e$ the share expected if each gave their own verdicts at random.
#
# **Your turn**: compute it from the table of counts, one person's verdicts in rows, the other's in
# columns.


# %%
def my_kappa(table):
    """Counts (verdicts, verdicts) -> a scalar."""
    ...


check("kappa", my_kappa)

# %% [markdown]
# <details>
# <summary>Hint</summary>
#
# One says verdict k in a share of `table.sum(1)[k] / n`, the other in `table.sum(0)[k] / n`. Both say it,
# by chance, in the product of the two.
#
# </details>
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_kappa(table):
#     n = table.sum()
#     alike = table.diag().sum() / n
#     chance = (table.sum(0) * table.sum(1)).sum() / n**2
#     return (alike - chance) / (1 - chance)
# ```
#
# </details>
#
# ### Box: a judge that answers in words
#
# A reward model with a head says a number. A **generative** judge is a language model that is asked: here
# are a prompt, a rule and two answers; which is better, and why? Its verdict is the token that it writes,
# and the probability of that token can serve as the score. Without any training it judges by rules that
# one can read and change; "RLAIF" ([arXiv:2309.00267](https://arxiv.org/abs/2309.00267)) trains on such
# verdicts, and with a list of written principles it is Constitutional AI
# ([arXiv:2212.08073](https://arxiv.org/abs/2212.08073)). It can also be trained on comparisons, by
# fine-tuning on texts that end with the right verdict, with reasons before it or without
# ([arXiv:2408.15240](https://arxiv.org/abs/2408.15240)). It costs a generation for each answer, where a
# head costs one pass.
#
# Its faults are those of a person in a hurry: it favours a place, a length, and its own way of writing.
# So ask in both orders and count how often the verdict stays at the same *place*. In our world a small
# judge of two answers named the same place in all of 600 pairs, whatever stood there
# ([docs/judges.md](../docs/judges.md)). Page [23](23_is_it_better.ipynb), sections 3 to 6, tells how to
# test a judge.
#
# ## 8. The command
#
# ```
# python -m reward_model.reward_model_training     # base model, comparisons, reward model, report
# python -m reward_model.reward_model_training --data mine.jsonl --model RUN        # your own comparisons
# ```
#
# The model is [reward_model/scalar_head.py](../reward_model/scalar_head.py), the loss
# [reward_model/loss.py](../reward_model/loss.py). [data/README.md](../data/README.md) describes the
# format of a file of comparisons.
#
# ## Exercises
#
# Exercises 1 to 4 are above: `bradley_terry_loss`, `mean_score`, `prefix_scores` and `kappa`.
#
# **5. What nobody was asked.** Three answers A, B and C to one prompt. People compared A with C, and B
# with C, but never A with B. If the formula of section 1 is right, how often would they prefer A to B?
# (No solution is printed.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("never_compared", MINE)

# %%
check_answer("never_compared", ..., MINE)

# %% [markdown]
# **On paper:**
#
# 6. Add a constant to all scores of *one* prompt, another constant to those of another. Does the
#    loss change? What does it mean for a policy that is trained with a baseline
#    ([04](04_policy_gradients_and_baselines.ipynb))?
#
# 7. Llama 2 ([arXiv:2307.09288](https://arxiv.org/abs/2307.09288), Eq. 2) gives pairs that people
#    found clear a margin, $-\log \sigma(r_w - r_l - \mu)$. Which gap costs $\log 2$ now? Should the
#    pairs of an annotator like ours have one?
#
# <details>
# <summary>Answers</summary>
#
# 6\. No: both answers of a comparison belong to one prompt, so its constant cancels. So the data
#     does not contain the level of a prompt. A baseline per prompt removes it again (the group's
#     mean of [07](07_grpo.ipynb)), but one mean over all prompts keeps it as noise.
#
# 7\. The gap $\mu$. With labels drawn from a Bradley-Terry model, the loss without a margin is the
# likelihood. A margin would push the scores further apart than the verdicts warrant, and
# calibration would suffer.
#
# </details>
#
# **To read on.** Stiennon et al. 2020 ([arXiv:2009.01325](https://arxiv.org/abs/2009.01325)), because it
# tells how labellers were chosen, watched and paid; section 3 of Llama 2
# ([arXiv:2307.09288](https://arxiv.org/abs/2307.09288)), because it shows how accuracy grows over a
# million comparisons; and [docs/judges.md](../docs/judges.md), because there a reward model, a judge and
# a rubric pay the same policy.
#
# ## To remember
#
# - Only the gap between two scores is learned, and it is read at the last token, which has read the answer.
# - An accuracy means something beside a coin, beside "the longer one wins" and beside the ceiling that the
#   labels' errors set.
# - What no pair shows, or what goes along with the winner, is what a policy will find: spoil one thing at a
#   time, and hold length equal.
#
# Next: [07_grpo](07_grpo.ipynb). Now every answer has a score: how does a policy learn from it?
