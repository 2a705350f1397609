# %% [markdown]
# # 4. The reward model
#
# **Why.** Nobody can write down what makes an answer good, but anybody can say which of two answers
# is better. A reward model turns such comparisons into a number for every answer; reinforcement
# learning then maximises that number. Everything a policy learns later, it learns from this model,
# its mistakes included. It is step 2 of Figure 2 of InstructGPT (Ouyang et al. 2022,
# [arXiv:2203.02155](https://arxiv.org/abs/2203.02155), section 3.5).
#
# | section | idea | code |
# | --- | --- | --- |
# | 1 | from comparisons to scores: Bradley and Terry | `bradley_terry_loss` |
# | 2 | where the head reads, and how token scores become one | `RewardModel` |
# | 3 | K responses, all comparisons in one batch | `sample_pairs`, `collate_comparisons` |
# | 4 | an annotator who errs, and the ceiling this sets | `annotate`, `label_agreement` |
# | 5 | a short training run | `reward_model_training.fit` |
# | 6 | held-out accuracy, beside a ruler and a coin | `preference_report` |
# | 7 | the scale: normalisation and calibration | `normalize_on`, `calibration` |
# | 8 | what the model does not see | |
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about half a minute on one CPU core. The page before this
# one: [04_policy_gradients_and_baselines](04_policy_gradients_and_baselines.ipynb); the next:
# [07_grpo](07_grpo.ipynb).

# %%
import inspect
import itertools
import math
import random

import matplotlib.pyplot as plt
import torch

try:
    from data import reviews
    from data.collate import ResponseBatch, collate_responses
    from data.records import PreferenceRecord
    from gpt import pretraining
    from gpt.common import MetricLog, make_generator
    from gpt.corpus import WorldCorpus
    from gpt.generate import SamplingParams
    from gpt.log_probs import score_in_micro_batches
    from gpt.model import GPT, GPTConfig
    from gpt.tokenizer import load_tokenizer
    from reward_model import pairs as pairing
    from reward_model import reward_model_training
    from reward_model.loss import bradley_terry_loss
    from reward_model.model import RewardModel
    from reward_model.report import calibration, preference_report, wilson_interval
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
tokenizer = load_tokenizer("glassbox")
EOS = tokenizer.eos_id

# %% [markdown]
# ## 1. From comparisons to scores
#
# Bradley and Terry (1952) give every answer a score, and say that the chance of winning a
# comparison depends on the gap between the two scores alone:
#
# $$P(y_w \succ y_l \mid x) = \sigma \left( r(x, y_w) - r(x, y_l) \right), \qquad
# \sigma(z) = \frac{1}{1 + e^{-z}}$$
#
# Fitting the scores to verdicts means maximising their likelihood. Of K answers to a prompt every
# two are compared, and the loss is the mean over the comparisons (arXiv:2203.02155, Eq. 1):
#
# $$\mathcal{L}(\theta) = - \frac{1}{\binom{K}{2}} \, E_{(x, y_w, y_l) \sim D}
# \left[ \log \sigma \left( r_\theta(x, y_w) - r_\theta(x, y_l) \right) \right]$$

# %%
print(inspect.getsource(bradley_terry_loss))

# %% [markdown]
# Two comparisons by hand. In the first the chosen answer leads by 0.5, in the second it trails by
# 0.6: $-\log \sigma(0.5) = 0.474$ and $-\log \sigma(-0.6) = 1.037$. An undecided model pays
# $\log 2$ for every pair.

# %%
chosen, rejected = torch.tensor([1.0, 0.2]), torch.tensor([0.5, 0.8])
each = [bradley_terry_loss(chosen[i : i + 1], rejected[i : i + 1]).item() for i in range(2)]
loss = bradley_terry_loss(chosen, rejected)
print(f"pair by pair {each[0]:.6f}, {each[1]:.6f}; mean {loss:.6f}")

assert math.isclose(loss, 0.755782, abs_tol=5e-7)
assert math.isclose(bradley_terry_loss(chosen, chosen), math.log(2), rel_tol=1e-6)
assert torch.isclose(bradley_terry_loss(chosen + 100, rejected + 100), loss, atol=1e-5)

# %% [markdown]
# The last line is worth a thought: **only gaps are learned**, so the origin of the scale is nowhere
# in the data. Section 7 sets it.
#
# The gradient tells how hard a pair pulls: $\frac{\partial \mathcal{L}}{\partial r_w} =
# -\sigma(r_l - r_w)$, the probability that the model gives to the wrong verdict. Pairs in good
# order hardly pull; a pair on the wrong side pulls with at most 1, however wrong it is, which is
# why a few wrong labels do no great harm.

# %%
gap = torch.linspace(-5, 5, 201, requires_grad=True)
losses = torch.stack([bradley_terry_loss(g[None], torch.zeros(1)) for g in gap])
(slope,) = torch.autograd.grad(losses.sum(), gap)
assert torch.allclose(slope, -torch.sigmoid(-gap), atol=1e-6)

figure, axis = plt.subplots(figsize=(7, 3.3), layout="constrained")
axis.plot(gap.detach(), losses.detach(), color="tab:blue", label="loss")
axis.plot(gap.detach(), slope, color="tab:orange", label="its slope")
axis.plot((chosen - rejected), each, "o", color="black", label="the two pairs above")
axis.axhline(math.log(2), color="grey", linestyle=":", label="log 2: undecided")
axis.axvline(0, color="grey", linewidth=0.6)
axis.set(xlabel="gap: score of chosen minus score of rejected (logits)", ylabel="nats per pair")
axis.set_title("Bradley-Terry loss of one comparison")
axis.legend()
plt.show()

# %% [markdown]
# ## 2. Where the head reads
#
# The reward model is a pre-trained GPT whose output layer is replaced by one with a single number.
# A language model predicts token t from the column *before* it. A judge has to have read what it
# judges: the score of token t comes from **token t's own column**.

# %%
print(inspect.getsource(RewardModel.token_scores))
print(inspect.getsource(RewardModel.raw_scores))


# %%
def fresh_gpt() -> GPT:
    shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=96, n_layer=2, n_head=2, n_embd=96)
    return GPT(shape).initialize(make_generator(0, "weights")).eval()


prompt = tokenizer.encode("Review the red kettle for Anna.\n")
answers = [tokenizer.encode("The kettle is great.") + [EOS], tokenizer.encode("It is bad.") + [EOS]]
batch = collate_responses([prompt, prompt], answers, EOS)
print(f"prompt of {len(prompt)} tokens, so response token 0 stands in column {len(prompt)}\n")
for name in ("predicting_columns", "response_columns", "response_mask"):
    print(f"{name:19}", getattr(batch, name).long().tolist())

judge = RewardModel.from_policy(fresh_gpt(), "mean_score", make_generator(0, "head"))
judge.requires_grad_(False)
print("\ntoken scores, EOS included, 0 at padding\n", judge.token_scores(batch))

# %% [markdown]
# The proof that the columns are right: exchange one token of the response. The scores before it
# must not change (attention is causal), its own score must.


# %%
def exchanged(t: int) -> ResponseBatch:
    """The first answer with another token in place t."""
    tokens = list(answers[0])
    tokens[t] = tokenizer.encode("a")[0] if t < len(tokens) - 1 else tokens[0]
    return collate_responses([prompt], [tokens], EOS)


original = judge.token_scores(batch)[0]
for t in range(len(answers[0])):
    change = (judge.token_scores(exchanged(t))[0] - original[: len(answers[0])]).abs()
    print(f"token {t} exchanged: scores move by", [f"{x:.2f}" for x in change.tolist()])
    assert (change[:t] < 1e-5).all() and change[t] > 1e-3

# %% [markdown]
# (Were the head to read the predicting columns, the score of the last token would never depend on
# the last token.)
#
# **Pooling** makes one number of the token scores. `mean_score` averages them over the response,
# the EOS included and the prompt not; `last_token` takes the score of the EOS, which has read
# everything. For a linear head the mean of the scores is the score of the mean hidden state, so
# that would be no third way. Neither is right or wrong; but a policy is rewarded with *the same*
# pooling as in training, so the file of a reward model remembers it.

# %%
valid = list(zip(judge.token_scores(batch), batch.response_mask, strict=True))
mean_score = judge.raw_scores(batch)
judge.pooling = "last_token"
last_token = judge.raw_scores(batch)
print("mean_score", mean_score, "\nlast_token", last_token)

assert torch.allclose(mean_score, torch.stack([s[m].mean() for s, m in valid]))
assert torch.equal(last_token, torch.stack([s[m][-1] for s, m in valid]))
hidden = judge.gpt.hidden(batch.tokens)[0, len(prompt) : len(prompt) + len(answers[0])]
assert torch.allclose(judge.head(hidden.mean(0)), mean_score[:1], atol=1e-5)

# %% [markdown]
# ## 3. K responses, all comparisons in one batch
#
# **Why.** To rank K answers is cheaper for a person than K(K-1)/2 separate comparisons, and for the
# model too: each answer is read once, whatever number of comparisons it takes part in. Shuffled
# into single pairs, each answer would be seen K - 1 times in an epoch, and InstructGPT's model
# overfitted within one pass (section 3.5). So all comparisons of a prompt stay together, as one
# element of the batch.

# %%
print(inspect.getsource(pairing.by_prompt))
print(inspect.getsource(pairing.collate_comparisons))

# %%
ranked = [
    "Hi Anna! The kettle is great. I hope this helps.",
    "The kettle is great.",
    "It is okay.",
    "Who cares? It is foul.",
]
records = [
    PreferenceRecord("Review the red kettle for Anna.\n", better, worse)
    for better, worse in itertools.combinations(ranked, 2)
]
six = pairing.encode_pairs(records, tokenizer)
together, chosen_rows, rejected_rows = pairing.collate_comparisons(six, EOS)
apart = pairing.collate_pairs(six, EOS)
print(f"{len(six)} comparisons: {len(together)} rows together, {len(apart)} as separate pairs")
print("chosen rows  ", chosen_rows.tolist(), "\nrejected rows", rejected_rows.tolist())

# %% [markdown]
# The same loss and the same gradient, for a third of the work.

# %%
judge = RewardModel.from_policy(fresh_gpt(), "mean_score", make_generator(0, "head"))
scores = judge.raw_scores(together)
loss_together = bradley_terry_loss(scores[chosen_rows], scores[rejected_rows])
loss_apart = bradley_terry_loss(*judge.raw_scores(apart).chunk(2))
gradients = [
    torch.autograd.grad(loss, judge.head.weight)[0] for loss in (loss_together, loss_apart)
]
print(f"loss {loss_together:.6f} together, {loss_apart:.6f} apart")
assert len(together) == 4 and len(apart) == 12
assert torch.allclose(loss_together, loss_apart, atol=1e-6)
assert torch.allclose(*gradients, atol=1e-5)

# %% [markdown]
# ## 4. An annotator who errs
#
# In this world we know what an answer is really worth, its **gold reward** $R$
# ([03_pretraining_and_sft](03_pretraining_and_sft.ipynb), section 1). The annotator sees it, but
# hesitates like a Bradley-Terry model of temperature 0.12:
#
# $$P(a \succ b) = \sigma \left( \frac{R_a - R_b}{0.12} \right)$$
#
# So the perfect reward model is known as well: it is $R / 0.12$, up to a constant. And even it would
# be "wrong" whenever the annotator is: the mean of `label_agreement` over the pairs is the
# **ceiling** of label accuracy.

# %%
print(inspect.getsource(reviews.annotate))
print(inspect.getsource(reviews.label_agreement))

# %%
rng = random.Random(0)
gaps = [g / 20 for g in range(-12, 13)]
asked = [sum(reviews.annotate(g, 0.0, rng) for _ in range(400)) / 400 for g in gaps]
curve = [1 / (1 + math.exp(-g / reviews.ANNOTATOR_TEMPERATURE)) for g in gaps]
assert max(abs(a - c) for a, c in zip(asked, curve, strict=True)) < 0.1
assert reviews.label_agreement(0.4, 0.4) == 0.5

figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.plot(gaps, curve, color="tab:blue", label="probability")
axis.plot(gaps, asked, "o", color="tab:orange", label="400 verdicts each")
axis.set(xlabel="gold reward of a minus gold reward of b", ylabel="share of verdicts for a")
axis.set_title("How sure the annotator is")
axis.legend()
plt.show()

# %% [markdown]
# Now the data. A small base model is pre-trained as on the last page (about ten seconds), answers
# training prompts K = 4 times, and the annotator compares every two different answers. The held-out
# pairs are answers to prompts that occur nowhere in training.

# %%
base = fresh_gpt()
pretraining_config = pretraining.PretrainingConfig(
    steps=550, batch_size=16, lr=6e-3, warmup=30, eval_every=550, device="cpu"
)
corpus = WorldCorpus("reviews", tokenizer, pretraining_config.batch_size, seed=0)
log = pretraining.train(pretraining_config, base, corpus, MetricLog(550))
print(f"base model: {log[-1]['held_out_loss']:.2f} nats per token (held out)")

# %%
print(inspect.getsource(reward_model_training.ReviewsAnnotator.__call__))


def compared(split: str, count: int, K: int) -> list[pairing.TokenPair]:
    """`count` comparisons of K answers of the base model to each prompt of a split."""
    batches = pairing.sample_pairs(
        base, tokenizer, reviews.prompts(split), count, reward_model_training.ReviewsAnnotator(),
        pairing.PairSampling(SamplingParams(max_new_tokens=48), K, batch_size=128),
        generator=make_generator(0, split), rng=random.Random(0),
    )  # fmt: skip
    return [pair for batch in batches for pair in batch]


training, held_out = compared("train", 9000, K=4), compared("validation", 1000, K=2)
print(f"{len(training):,} pairs of {len(pairing.by_prompt(training)):,} prompts to train on")
assert not {tuple(p.prompt) for p in training} & {tuple(p.prompt) for p in held_out}

# %%
for group in pairing.by_prompt(training)[:1]:
    print(tokenizer.decode(group[0].prompt).strip())
    for pair in group:
        text = pairing.pair_as_text(pair, tokenizer)
        print(f"\n  chosen   {text['gold_chosen']:.2f}  {text['chosen']}")
        print(f"  rejected {text['gold_rejected']:.2f}  {text['rejected']}")

# %% [markdown]
# ## 5. Training
#
# The trunk starts from the base model, which knows the language already; the head starts random.
# One pass over the data: a second one would teach the labels' errors by heart.

# %%
print(inspect.getsource(reward_model_training.fit))
print(inspect.getsource(reward_model_training.add_comparisons))

# %%
config = reward_model_training.RewardModelConfig(batch_size=8, lr=2e-3, warmup=20, device="cpu")
model = RewardModel.from_policy(base, "mean_score", make_generator(0, "head"))
steps = len(pairing.by_prompt(training)) // config.batch_size
rows = reward_model_training.fit(model, training, config, MetricLog(steps), eos_id=EOS)
model.requires_grad_(False)
print(f"{steps} steps of {config.batch_size} prompts, with all their comparisons")

# %% [markdown]
# Two lines frame the loss. A model that is undecided pays $\log 2$; the perfect one, $R / 0.12$,
# still pays the entropy of the annotator's verdicts, because a coin that falls on its heads with
# probability 0.7 cannot be predicted any better.


# %%
def entropy(p: float) -> float:
    """Of a coin, in nats."""
    return -sum(q * math.log(q) for q in (p, 1 - p) if q > 0)


def mean_entropy(pairs: list[pairing.TokenPair]) -> float:
    golds = [(p.meta["gold_chosen"], p.meta["gold_rejected"]) for p in pairs]
    return sum(entropy(reviews.label_agreement(*pair)) for pair in golds) / len(pairs)


floor = mean_entropy(training)
losses = torch.tensor([row["loss"] for row in rows])
mean10 = losses.unfold(0, 10, 1).mean(1)  # the first belongs to step 10
figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
axis.plot(range(1, steps + 1), losses, alpha=0.3)
axis.plot(range(10, steps + 1), mean10, color="tab:blue", label="mean of 10 steps")
axis.axhline(math.log(2), color="grey", linestyle=":", label="log 2: undecided")
axis.axhline(floor, color="tab:green", linestyle="--", label="the perfect model")
axis.set(xlabel="step (8 prompts, up to 48 comparisons in all)", ylabel="loss (nats per pair)")
axis.set_title("Training: one pass over the comparisons")
axis.legend(ncols=3, loc="upper right")
plt.show()
print(f"loss {losses[0]:.3f} at the start, {mean10[-1]:.3f} at the end, floor {floor:.3f}")
assert mean10[-1] < 0.62

# %% [markdown]
# ## 6. Held-out accuracy, beside a ruler and a coin
#
# An accuracy alone says nothing. Three numbers belong beside it: a coin (0.5); "the longer answer
# wins", which costs no training at all and beats many reward models; and the ceiling of section 4.
# And since the share of $n$ pairs is itself an estimate, an interval (Wilson 1927), for the share
# $\hat p$ with $z = 1.96$:
#
# $$\frac{1}{1 + z^2 / n} \left( \hat p + \frac{z^2}{2 n} \pm z \sqrt{\frac{\hat p (1 - \hat p)}{n}
# + \frac{z^2}{4 n^2}} \right)$$

# %%
model.normalize_on(pairing.collate_pairs(training[::9], EOS))  # section 7
chosen, rejected, batch = reward_model_training.score_pairs(model, held_out, EOS)
report = preference_report(chosen, rejected, batch.lengths, held_out, scale=float(model.std))
print(report.text())

# %%
n = report.numbers
bars = {
    "coin": (0.5, None),
    "longer wins": (n["length_accuracy"], None),
    "reward model": (n["accuracy"], n["accuracy_interval"]),
    "ceiling": (n["label_ceiling"], None),
}
low, high = n["accuracy_interval"]
figure, axis = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
colors = ["lightgrey", "tab:grey", "tab:blue", "tab:green"]
axis.bar(list(bars), [value for value, _ in bars.values()], color=colors)
error = [[n["accuracy"] - low], [high - n["accuracy"]]]
axis.errorbar([2], [n["accuracy"]], yerr=error, color="black", capsize=6)
axis.set(xlabel="who decides", ylabel="share of labels ordered right", ylim=(0, 1))
axis.set_title(f"{n['pairs']} held-out pairs, 95 % interval")
plt.show()
assert low > n["length_accuracy"] + 0.03 and low > 0.6
assert (low, high) == wilson_interval(round(n["accuracy"] * n["pairs"]), n["pairs"])

# %% [markdown]
# Against the gold order, without the annotator's errors, the same scores do better than against the
# labels: part of the missing accuracy is the labels' and not the model's.
#
# ## 7. The scale: normalisation and calibration
#
# **Normalisation.** The loss left the origin open, and the spread is whatever training made it. A
# KL coefficient, a penalty for answers without an end, a value model: all of them need to know how
# large a reward is. So the scores are shifted and scaled once, on training answers, to mean 0 and
# spread 1 (Ziegler et al. 2019, [arXiv:1909.08593](https://arxiv.org/abs/1909.08593)). Rewards are
# then read in standard deviations. The order of answers does not change.

# %%
print(inspect.getsource(RewardModel.normalize_on))
reference = pairing.collate_pairs(training[::9], EOS)
raw = score_in_micro_batches(model.raw_scores, reference, 64)
normalised = score_in_micro_batches(model, reference, 64)
print(f"raw mean {raw.mean():.2f}, std {raw.std():.2f}")
print(f"normalised mean {normalised.mean():.2f}, std {normalised.std():.2f}")
assert abs(normalised.mean()) < 1e-4 and abs(normalised.std() - 1) < 1e-3
assert torch.allclose(raw, normalised * model.std + model.mean, atol=1e-4)

# %% [markdown]
# **Calibration.** The raw gap is more than an order: $\sigma(\mathrm{gap})$ claims how probable the
# verdict is. Among all pairs of which the model is "75 % sure", three quarters should be ordered
# right. That is a sharper test than accuracy, and it uses the raw scale (hence `scale` above).

# %%
print(inspect.getsource(calibration))
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
left.hist(report.margins[report.margins > 0], bins=20, color="tab:blue", label="right")
left.hist(report.margins[report.margins <= 0], bins=14, color="tab:orange", label="wrong")
left.axvline(0, color="black", linewidth=1)
left.set(xlabel="score of chosen minus rejected (std)", ylabel="held-out pairs")
left.set_title(f"Margins: {n['accuracy']:.1%} right")
left.legend()
claimed, won, counts = zip(*n["calibration"], strict=True)
limits = [wilson_interval(w * k, k) for w, k in zip(won, counts, strict=True)]
error = [
    [w - low for w, (low, _) in zip(won, limits, strict=True)],
    [high - w for w, (_, high) in zip(won, limits, strict=True)],
]
right.errorbar(claimed, won, yerr=error, marker="o", capsize=3, label="reward model, 95 %")
right.plot([0.5, 1], [0.5, 1], color="grey", linestyle="--", label="calibrated")
right.set(xlabel="probability claimed", ylabel="share ordered right", title="Calibration")
right.legend()
plt.show()
assert n["calibration_error"] < 0.1

# %% [markdown]
# ## 8. What the model does not see
#
# An accuracy is an average over the pairs that happened to be sampled. A sharper question: spoil
# **one** thing in a perfect answer, and ask whether the score notices. The gold reward says what
# each fault costs; the model should put the spoilt answer below the good one every time.

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


# %%
def scored(texts: list[str]) -> torch.Tensor:
    """The normalised score of one answer to each prompt of `asked`."""
    prompts = [tokenizer.encode(record.prompt) for record in asked]
    responses = [tokenizer.encode(text) + [EOS] for text in texts]
    return score_in_micro_batches(model, collate_responses(prompts, responses, EOS), 64)


def golds(texts: list[str]) -> torch.Tensor:
    pairs = zip(asked, texts, strict=True)
    return torch.tensor([reviews.gold_reward(record, text) for record, text in pairs])


whole = [good.format(**fill) for fill in fills]
print("fault               gold change   score change   noticed")
noticed = {}
for name, spoil in faults.items():
    spoilt = [spoil(text, fill) for text, fill in zip(whole, fills, strict=True)]
    change = scored(spoilt) - scored(whole)
    noticed[name] = int((change < 0).sum())
    lost = (golds(spoilt) - golds(whole)).mean()
    print(f"{name:18} {lost:10.2f} {change.mean():13.2f} {noticed[name] / len(asked):11.0%}")

# %%
shares = [count / len(asked) for count in noticed.values()]
limits = [wilson_interval(count, len(asked)) for count in noticed.values()]
error = [
    [share - low for share, (low, _) in zip(shares, limits, strict=True)],
    [high - share for share, (_, high) in zip(shares, limits, strict=True)],
]
figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
axis.barh(list(noticed), shares, xerr=error, capsize=4, color="tab:blue", alpha=0.8)
axis.axvline(0.5, color="black", linestyle="--", label="coin")
axis.invert_yaxis()
axis.set(xlabel="share of spoilt answers scored below the good one", xlim=(0, 1.02))
axis.set_ylabel("what was spoilt")
axis.set_title("200 perfect answers, one fault each (95 % interval)")
axis.legend(loc="lower left")
plt.show()
assert min(list(noticed.values())[:4]) > 170 and noticed["another item"] < 160

# %% [markdown]
# The model has learned tone, manners and completeness, which stand in the answer. What it hardly
# sees is whether the answer is about **the prompt's** item, or speaks to **the prompt's** person:
# for that it has to compare two places far apart, and 9,000 comparisons, most of them decided by
# tone, do not teach it. Neither the loss nor the accuracy gave a hint. (Size helps, but does not
# settle it: three models trained by the default configuration, on 112,000 pairs, noticed another
# item in 96 to 98 % of these answers, and another name in 45 to 57 %, still a coin.)
#
# A policy that is trained against this model will find out. To praise the wrong item earns as much
# as to praise the right one, and whatever is easier will be reinforced: a reward model is a proxy,
# and optimising a proxy far enough makes the truth worse (Gao et al. 2022,
# [arXiv:2210.10760](https://arxiv.org/abs/2210.10760)).
#
# ## Exercise
#
# 1. Add a constant to all scores of *one* prompt, another constant to those of another. Does the
#    loss change? What does it mean for the policy?
# 2. Is the trunk to blame for section 8? Pre-train the base model for 800 steps instead of 550: it
#    then names the right item much more often. What becomes of the table?
# 3. Llama 2 ([arXiv:2307.09288](https://arxiv.org/abs/2307.09288), Eq. 2) gives pairs that people
#    found clear a margin, $-\log \sigma(r_w - r_l - \mu)$. Which gap costs $\log 2$ now? Should the
#    pairs of an annotator like ours have one?
#
# <details>
# <summary>Answer</summary>
#
# 1. No: both answers of a comparison belong to one prompt, so its constant cancels. The level of a
#    prompt is nowhere in the data, and one normalisation for all prompts cannot set it. A baseline
#    that is made per prompt takes it away again (the group mean of [07_grpo](07_grpo.ipynb)); one
#    mean over all prompts keeps it as noise.
# 2. Nearly nothing: another item is noticed in 64 %, another name in 49 %. A policy's knowledge of
#    *what to write next* is not yet a judge's. What is missing is comparisons in which the item
#    decides.
# 3. The gap $\mu$: `bradley_terry_loss(r, l, margin=r - l)` is $\log 2$ for every pair. With labels
#    drawn from a Bradley-Terry model the loss without a margin is the likelihood, and a margin
#    would push the scores further apart than the verdicts warrant: calibration suffers.
#
# </details>
