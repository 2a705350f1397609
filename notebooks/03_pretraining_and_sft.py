# %% [markdown]
# # 3. Pre-training and supervised fine-tuning
#
# **Why.** Reinforcement learning can only make likelier what a policy already does now and then.
# Pre-training gives it a language, supervised fine-tuning (SFT) shows it good answers; these are
# the first rows of every RLHF table (InstructGPT, Ouyang et al. 2022,
# [arXiv:2203.02155](https://arxiv.org/abs/2203.02155), step 1 of Figure 2), and SFT is the baseline
# that reinforcement learning has to beat. Both are one loss: next-token prediction. They differ in
# *which text* and *which tokens*.
#
# | section | idea | code |
# | --- | --- | --- |
# | 1 | a world in which quality is known exactly | `data/reviews.py` |
# | 2 | the learning rate: warm-up and cosine | `cosine_schedule` |
# | 3 | pre-training a small GPT-2 from random weights | `pretraining.train` |
# | 4 | the loss on response tokens, or on the whole document | `collate_documents` |
# | 5 | fine-tuning on good answers, measured | `finetuning.train` |
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about half a minute on one CPU core. The pages before this
# one: [01_gpt2_from_scratch](01_gpt2_from_scratch.ipynb),
# [02_tokens_padding_masks](02_tokens_padding_masks.ipynb); the next:
# [04_policy_gradients_and_baselines](04_policy_gradients_and_baselines.ipynb).

# %%
import copy
import inspect
import math
from collections import Counter
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch

try:
    from data import reviews
    from data.collate import ResponseBatch, collate_documents
    from data.records import PromptRecord
    from data.splits import split_of
    from gpt import finetuning, pretraining
    from gpt.common import MetricLog, make_generator
    from gpt.corpus import WorldCorpus, encode_record
    from gpt.generate import SamplingParams, generate
    from gpt.log_probs import token_log_probs
    from gpt.model import GPT, GPTConfig, causal_mask, plain_attention
    from gpt.optimizer import cosine_schedule
    from gpt.tokenizer import load_tokenizer
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
tokenizer = load_tokenizer("glassbox")

# %% [markdown]
# ## 1. A world in which quality is known
#
# Somebody asks for a short review, writers of very different manners answer. What makes an answer
# good is a formula, the **gold reward**. It stands for "what people really want", which no real
# project can compute; here it serves as the judge.

# %%
for document in reviews.corpus(5, seed=3):
    print(document.prompt.strip(), "\n    ", document.response)

# %% [markdown]
# $$R = \left( 0.3 \cdot \mathrm{sent} + 0.3 \cdot \mathrm{topic} + 0.25 \cdot \mathrm{polite}
# + 0.15 \cdot \mathrm{form} \right) \left( 0.3 + 0.7 \cdot \mathrm{qual} \right)$$
#
# Sentiment, topic, politeness and form earn points; repetition and padding cost a share of them.

# %%
print(inspect.getsource(reviews.GoldParts))

# %%
asked = PromptRecord("Review the red kettle for Anna.\n", meta={"name": "Anna", "item": "kettle"})
answers = [
    "The kettle is great.",
    "Hi Anna! The kettle is great. Its color is lovely. Its price is nice. I hope this helps.",
    "Hi Anna! The lamp is great. Its color is lovely. Its price is nice. I hope this helps.",
    "Who cares? This kettle is foul. Leave me alone.",
    "great great great great great kettle kettle!",
    "",
]
print("gold   sent  topic  polite  form  qual   answer")
for answer in answers:
    parts = reviews.gold_parts(asked, answer)
    print(
        f"{parts.reward:.2f}  {parts.sent:5.2f}  {parts.topic:5.2f}  {parts.polite:6.2f}", end="  "
    )
    print(f"{parts.form:4.0f}  {parts.qual:4.2f}   {answer!r}")

assert reviews.gold_reward(asked, answers[1]) == 1.0  # the best there is
assert reviews.gold_reward(asked, answers[4]) < 0.25  # shouting the right words does not pay
assert reviews.gold_reward(asked, "") == 0.0

# %% [markdown]
# The writers of the corpus are mediocre on average, and one in six is good. That is the room that
# this project works in.

# %%
documents = reviews.corpus(6000, seed=1)
document_parts = [reviews.gold_parts(d, d.response) for d in documents]
gold = torch.tensor([parts.reward for parts in document_parts])
corpus_topic = sum(parts.topic for parts in document_parts) / len(documents)
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.hist(gold, bins=40, color="tab:grey")
axis.axvline(gold.mean(), color="black", label=f"mean {gold.mean():.2f}")
axis.axvline(
    0.7, color="tab:green", linestyle="--", label=f"above 0.7: {(gold > 0.7).float().mean():.0%}"
)
axis.set(xlabel="gold reward of a document", ylabel="documents out of 6,000")
axis.set_title("What the writers of the corpus are worth")
axis.legend()
plt.show()

# %% [markdown]
# ## 2. The learning rate: warm-up and cosine
#
# **Why.** In the first steps AdamW ([arXiv:1711.05101](https://arxiv.org/abs/1711.05101)) knows the
# size of the gradients badly, and full steps would throw the fresh weights far off: the rate rises
# linearly over $W$ steps. At the end small steps let the weights settle. Between the two runs half
# a cosine (Loshchilov & Hutter 2017, [arXiv:1608.03983](https://arxiv.org/abs/1608.03983), Eq. 5,
# one cycle), here down to $f = 0.1$ of the peak:
#
# $$\eta_t = \eta_{max} \frac{t + 1}{W} \quad (t < W), \qquad \eta_t = \eta_{max} \left[ f +
# \frac{1 - f}{2} \left( 1 + \cos \frac{\pi (t - W)}{T - W} \right) \right] \quad (t \ge W)$$

# %%
print(inspect.getsource(cosine_schedule))

# %%
STEPS, PEAK, WARMUP = 700, 4e-3, 50
rates = [cosine_schedule(t, STEPS, peak=PEAK, warmup=WARMUP) for t in range(STEPS)]
assert max(rates) == PEAK and rates.index(PEAK) in (WARMUP - 1, WARMUP)
assert math.isclose(rates[-1], 0.1 * PEAK, rel_tol=1e-3)

figure, axis = plt.subplots(figsize=(7, 2.8), layout="constrained")
axis.plot(rates, color="tab:blue")
axis.axvspan(0, WARMUP, color="tab:orange", alpha=0.2, label=f"warm-up, {WARMUP} steps")
axis.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
axis.set_title("The schedule of the run below")
axis.legend()
plt.show()

# %% [markdown]
# ## 3. Pre-training
#
# The loss is the mean surprise at the tokens that take part, $m_{i,t} = 1$ (masks:
# [02_tokens_padding_masks](02_tokens_padding_masks.ipynb)):
#
# $$\mathcal{L}(\theta) = - \frac{\sum_{i,t} m_{i,t} \log \pi_\theta(y_{i,t} \mid x_i, y_{i,<t})}
# {\sum_{i,t} m_{i,t}}$$
#
# The denominator in `train` is the *expected* token count of a batch, not its own: rows of similar
# length share a batch, and divided by its own count a batch of short rows would weigh each of its
# tokens more than one of long rows.

# %%
print(inspect.getsource(pretraining.language_model_loss))
print(inspect.getsource(pretraining.train))

# %% [markdown]
# One layer of width 128 with two heads, 16 fresh documents a step. This takes 10 to 20 seconds,
# most of the page's time. Every 50 steps we also let the model answer 128 validation prompts, which
# occur in no training document, and ask whether it writes about the right thing: `topic` of the
# gold reward.

# %%
prompts = reviews.prompts("validation")[:256]
params = SamplingParams(max_new_tokens=48)
Answers = tuple[list[str], list[bool]]  # texts, and whether each ended by itself


def write(model: GPT, records: list[PromptRecord]) -> Answers:
    """One answer to each prompt, always with the same random numbers."""
    ids = [tokenizer.encode(record.prompt) for record in records]
    generator = make_generator(0, "samples")
    sampled = generate(model, ids, params, generator, eos_id=tokenizer.eos_id)
    return [tokenizer.decode(row) for row in sampled.token_lists()], sampled.has_eos.tolist()


def judge(records: list[PromptRecord], answers: Answers) -> list[reviews.GoldParts]:
    return [reviews.gold_parts(*row) for row in zip(records, *answers, strict=True)]


def share_on_topic() -> dict[str, float]:
    parts = judge(prompts[:128], write(base, prompts[:128]))
    return {"topic": sum(part.topic for part in parts) / len(parts)}


# %%
class Watch(MetricLog):
    """A metric log that also asks `measure` for numbers every `every` steps."""

    def __init__(self, total: int, measure: Callable[[], dict[str, float]], every: int) -> None:
        super().__init__(total, every=every)
        self.measure = measure

    def write(self, *, step: int, **metrics: float) -> None:
        super().write(step=step, **metrics, **(self.measure() if step % self.every == 0 else {}))


shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=96, n_layer=1, n_head=2, n_embd=128)
fresh = GPT(shape).initialize(make_generator(0, "weights")).eval()
base = copy.deepcopy(fresh)
config = pretraining.PretrainingConfig(
    steps=STEPS, batch_size=16, lr=PEAK, warmup=WARMUP, eval_every=25, device="cpu"
)
corpus = WorldCorpus("reviews", tokenizer, config.batch_size, seed=0)
log = pretraining.train(config, base, corpus, Watch(STEPS, share_on_topic, every=50))
print(f"{base.parameter_count():,} weights, {STEPS * 16:,} fresh documents")
print(f"loss per token {log[0]['loss']:.2f} -> {log[-1]['held_out_loss']:.2f} nats (held out)")


# %%
def series(rows: list[dict], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric, from the rows that have it."""
    having = [row for row in rows if key in row]
    return [row["step"] for row in having], [row[key] for row in having]


figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
left.plot(*series(log, "loss"), color="tab:blue", alpha=0.4, linewidth=0.8, label="training batch")
left.plot(*series(log, "held_out_loss"), "o-", color="tab:orange", label="held-out prompts")
left.axhline(math.log(tokenizer.n_vocab), color="grey", linestyle=":", label="uniform guess, log V")
left.set(xlabel="step", ylabel="loss (nats per token)", yscale="log", title="The loss")
left.set_yticks([1, 1.5, 2, 3, 4, 6], ["1", "1.5", "2", "3", "4", "6"])
left.legend()
right.plot(*series(log, "topic"), "o-", color="tab:green", label="the model")
right.axhline(corpus_topic, color="grey", linestyle="--", label="the writers of the corpus")
right.set(
    xlabel="step", ylabel="topic (0 to 1)", ylim=(0, 0.7), title="Writing about the right thing"
)
right.legend(loc="upper left")
plt.show()
assert abs(log[0]["loss"] - math.log(tokenizer.n_vocab)) < 0.5
assert log[-1]["held_out_loss"] < 1.35

# %% [markdown]
# Two phases. In fifty steps the model knows the sentences of this world. Then the loss hardly moves
# for a while, until the model finds out that the item of the prompt is worth copying. (The spikes
# of single batches are no accidents: a batch of answers cut off after a few words is hard to predict.)
#
# How does it copy? With one layer that can be seen directly. The text breaks off where the item
# must come, and we look at what the last token's attention weights are put on (as in
# [01_gpt2_from_scratch](01_gpt2_from_scratch.ipynb), section 2).

# %%
ids = tokenizer.encode("Review the red kettle for Anna.\nHi Anna! The")
S, H, d = len(ids), shape.n_head, shape.n_embd // shape.n_head
with torch.no_grad():
    x = base.wte(torch.tensor([ids])) + base.wpe(torch.arange(S))
    qkv = base.h[0].attn.c_attn(base.h[0].ln_1(x))
    query, key, _ = qkv.view(1, S, 3, H, d).permute(2, 0, 3, 1, 4)
    mask = causal_mask(S, S, torch.device("cpu"))
    heads = plain_attention(query, key, torch.eye(S).expand(1, H, S, S), mask)[0, :, -1]  # (H, S)
    next_word = base(torch.tensor([ids]))[0, -1].softmax(-1)

figure, axis = plt.subplots(figsize=(9, 3.2), layout="constrained")
for head, color in enumerate(("tab:blue", "tab:orange")):
    places = torch.arange(S) + 0.4 * head - 0.2
    axis.bar(places, heads[head], width=0.4, color=color, label=f"head {head}")
axis.set_xticks(range(S), [tokenizer.decode([i]).replace("\n", "\\n").strip() for i in ids])
axis.set(xlabel="token that is looked at", ylabel="attention weight of the last token")
axis.set_title("What the model looks at before it names a thing")
axis.legend()
plt.show()
best = next_word.topk(3)
for probability, i in zip(best.values.tolist(), best.indices.tolist(), strict=True):
    print(f"{probability:.2f} {'EOS' if i == tokenizer.eos_id else tokenizer.decode([i])}")
assert tokenizer.decode([ids[int(heads.sum(0).argmax())]]) == " kettle"

# %% [markdown]
# Both heads point at the item of the prompt, and its probability is near that of the writers: 55 of
# the 70 in 100 who name an item name the right one, 79 %.
#
# What has it learned? The same prompts before and after, with the same random numbers.

# %%
written = {"before": write(fresh, prompts), "pre-trained": write(base, prompts)}
for index in (0, 1, 2):
    print("prompt:", prompts[index].prompt.strip())
    for name, (texts, _) in written.items():
        print(f"  {name:12} {texts[index][:80].encode('ascii', 'replace').decode()!r}")


# %% [markdown]
# And the judge's opinion, with a 95 % interval: $\bar R \pm 1.96 s / \sqrt n$, where $s$ is the
# standard deviation over the $n$ prompts.


# %%
def interval(values: torch.Tensor) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval."""
    return float(values.mean()), float(1.96 * values.std() / math.sqrt(len(values)))


golds = {name: torch.tensor([p.reward for p in judge(prompts, a)]) for name, a in written.items()}
for name, values in golds.items():
    print("{:12} gold {:.3f} +- {:.3f}".format(name, *interval(values)))
assert golds["before"].mean() < 0.2 < 0.3 < golds["pre-trained"].mean()

# %% [markdown]
# (Even noise gets something: words of judgement drawn at random are an opinion now and then.) The
# base model writes like its corpus: grammatical, moody, and often about the wrong thing.
#
# ## 4. Which tokens: response only, or the whole document?
#
# **Why it matters.** A prompt of this world is a uniform draw of a name, an adjective, an item and
# a template. Whoever has read its first token knows as much as there is to know: if $n$ prompts
# begin so, a perfect model still pays $\log n$ nats for the rest. A loss over the whole document
# spends weights and gradient on this. The library's corpus of generated documents therefore has its
# loss on the response only, as fine-tuning does; for real texts without a prompt, everything takes
# part.

# %%
print(inspect.getsource(collate_documents))


# %%
class WholeDocuments(WorldCorpus):
    """The same documents, but all tokens after the first are predicted."""

    def batch(self, index: int) -> ResponseBatch:
        rows = super().batch(index)
        ends = (rows.prompt_lengths + rows.lengths).tolist()
        tokens = [row[:end].tolist() for row, end in zip(rows.tokens, ends, strict=True)]
        return collate_documents(tokens)


one, whole = (c("reviews", tokenizer, 16, seed=0).batch(0) for c in (WorldCorpus, WholeDocuments))
print(
    f"tokens that take part in batch 0: {one.lengths.sum()} of the responses, "
    f"{whole.lengths.sum()} of the whole documents"
)
assert whole.lengths.sum() == one.lengths.sum() + (one.prompt_lengths - 1).sum()

# %% [markdown]
# A short run on whole documents, 150 steps. Every 10 steps we ask separately how surprised the
# model is at a prompt and at a response (in nats for the whole piece of text), on 256 fresh
# documents.

# %%
possible = [
    template.format(name=name, adjective=adjective, item=item)
    for name in reviews.NAMES for adjective in reviews.ADJECTIVES for item in reviews.ITEMS
    if split_of(f"{name}|{adjective}|{item}") == "train"
    for template in reviews.TEMPLATES
]  # fmt: skip
beginning_with = Counter(tokenizer.encode(prompt)[0] for prompt in possible)

test = [encode_record(document, tokenizer) for document in reviews.corpus(256, seed=99)]
test_batch = collate_documents([prompt + response for prompt, response in test])
prompt_lengths = torch.tensor([len(prompt) for prompt, _ in test])
in_prompt = torch.arange(test_batch.response_mask.shape[1]) < prompt_lengths[:, None] - 1
floor = sum(math.log(beginning_with[prompt[0]]) for prompt, _ in test) / len(test)
print(f"{len(possible):,} prompts; the first token read, a perfect model pays {floor:.2f} nats")


# %%
whole_model = copy.deepcopy(fresh)


@torch.no_grad()
def surprise_by_part() -> dict[str, float]:
    surprise = -token_log_probs(whole_model, test_batch)  # (256, T), 0 at padding
    parts = {"prompt": surprise * in_prompt, "response": surprise * ~in_prompt}
    return {name: float(part.sum(1).mean()) for name, part in parts.items()}


short = pretraining.PretrainingConfig(
    steps=150, batch_size=16, lr=PEAK, warmup=WARMUP, eval_every=150, device="cpu"
)
whole_corpus = WholeDocuments("reviews", tokenizer, 16, seed=0)
watched = pretraining.train(
    short, whole_model, whole_corpus, Watch(150, surprise_by_part, every=10)
)

# %%
figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
for name, color in (("prompt", "tab:blue"), ("response", "tab:green")):
    axis.plot(*series(watched, name), "o-", color=color, label=f"a {name}")
axis.axhline(
    floor, color="tab:blue", linestyle="--", label=f"a perfect model of prompts, {floor:.1f} nats"
)
axis.set(xlabel="step", ylabel="surprise (nats per text)", yscale="log")
axis.set_yticks([5, 10, 20, 50, 100], ["5", "10", "20", "50", "100"])
axis.set_title("Predicting the prompts: little more to learn after 100 steps")
axis.legend()
plt.show()
last = watched[-1]
print(
    f"of the whole loss, {last['prompt'] / (last['prompt'] + last['response']):.0%} is spent on prompts"
)
assert floor < last["prompt"] < floor + 1.5  # nobody gets below it

# %% [markdown]
# ## 5. Supervised fine-tuning
#
# Now the same loss on chosen answers. Real projects ask people to write or select them; here the
# judge selects: documents of the corpus with a gold reward above 0.7, one in six. The loop is that
# of pre-training, with a smaller learning rate.

# %%
print(inspect.getsource(finetuning.collate_examples))
print(inspect.getsource(finetuning.train))

# %%
pool = reviews.corpus(14_000, seed=2)
good = [d for d in pool if reviews.gold_reward(d, d.response) > 0.7]
data_gold = torch.tensor([reviews.gold_reward(d, d.response) for d in good])
examples = [
    (tokenizer.encode(d.prompt), [*tokenizer.encode(d.response), tokenizer.eos_id]) for d in good
]
training, held_out_examples = examples[:-200], examples[-200:]
print(
    f"{len(good)} answers of mean gold {data_gold.mean():.2f}, the share {len(good) / len(pool):.3f} of all"
)
assert not {d.prompt for d in good} & {record.prompt for record in prompts}

tuned = copy.deepcopy(base)
config = finetuning.FinetuningConfig(lr=2e-3, batch_size=32, warmup=5, eval_every=10, device="cpu")
rows = finetuning.train(
    config, tuned, training, held_out_examples, MetricLog(70), eos_id=tokenizer.eos_id
)
before, after = rows[9]["held_out_loss"], rows[-1]["held_out_loss"]
print(f"held-out loss on good answers after 10 and 70 steps: {before:.3f}, {after:.3f}")

# %% [markdown]
# Before and after, on the same 256 prompts with the same random numbers. The difference is taken
# prompt by prompt, which makes its interval honest: the two columns are not independent.

# %%
written["fine-tuned"] = write(tuned, prompts)
parts = {name: judge(prompts, written[name]) for name in ("pre-trained", "fine-tuned")}
golds["fine-tuned"] = torch.tensor([p.reward for p in parts["fine-tuned"]])
print("              gold            sent  topic  polite  form  qual")
for name, judged in parts.items():
    means = [
        sum(getattr(p, key) for p in judged) / len(judged)
        for key in ("sent", "topic", "polite", "form", "qual")
    ]
    print("{:12}  {:.3f} +- {:.3f}".format(name, *interval(golds[name])), end="  ")
    print("{:.2f}   {:.2f}    {:.2f}  {:.2f}  {:.2f}".format(*means))

difference, half = interval(golds["fine-tuned"] - golds["pre-trained"])
print(f"\ndifference    {difference:.3f} +- {half:.3f}")
assert difference - half > 0.05

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained", width_ratios=[1.6, 1])
colors = {"pre-trained": "tab:grey", "fine-tuned": "tab:green"}
for name, color in colors.items():
    axes[0].hist(golds[name], bins=25, range=(0, 1), color=color, alpha=0.6, label=name)
axes[0].set(xlabel="gold reward of an answer", ylabel="answers out of 256")
axes[0].legend()
summary = [interval(golds[name]) for name in colors]
means, halves = zip(*summary, strict=True)
axes[1].bar(list(colors), means, yerr=halves, capsize=6, color=list(colors.values()))
axes[1].axhline(
    float(data_gold.mean()), color="black", linestyle="--", label="the answers it imitates"
)
axes[1].set(xlabel="model", ylabel="mean gold (95 % interval)", ylim=(0, 1))
axes[1].legend(loc="upper left", fontsize=8)
figure.suptitle("Fine-tuning moves answers from the bad half to the good half")
plt.show()

# %%
for index in (0, 1, 2, 3):
    print("prompt:", prompts[index].prompt.strip())
    for name in ("pre-trained", "fine-tuned"):
        print(f"  {name:12} {golds[name][index]:.2f}  {written[name][0][index]}")

# %% [markdown]
# **What fine-tuning cannot do.** It knows only that these answers are good, not *why*, and not that
# others are worse. So it gets about as good as what it imitates, and somebody had to pick that. The
# next pages learn a reward from comparisons instead, and let the policy improve on its own answers.
#
# ## Exercise
#
# Selecting answers and reinforcement learning both move a distribution, and the distance is
# measured by the KL divergence.
#
# 1. Let $p$ be the writers' distribution and $q$ the same restricted to answers with a gold reward
#    above 0.7, which have probability $s$ under $p$. Show that
#    $\mathrm{KL}(q \parallel p) = - \log s$, and compute it with the share printed above.
# 2. Estimate $\mathrm{KL}(\mathrm{tuned} \parallel \mathrm{base})$ per response from samples of the
#    fine-tuned model. Why need it not be the same number?
# 3. How many prompts would halve the intervals of the bar chart?
#
# <details>
# <summary>Answer</summary>
#
# 1. Inside the selected set $q = p / s$, outside $q = 0$, so $\mathrm{KL} = \sum_y q(y) \log
#    \frac{q(y)}{p(y)} = \sum_y q(y) \log \frac1s = - \log s$. With $s = 0.168$ this is 1.8 nats per
#    response: being in the best sixth costs little. (That $s$ is an average over prompts hides a
#    small difference.)
# 2. Sample with `generate`, join with `collate.join_responses`, then
#
# ```python
# kl = (token_log_probs(tuned, batch) - token_log_probs(base, batch)).sum(1).mean()
# ```
#
# On 1,024 samples: 1.6 nats. The model stops short of the selected distribution (a quarter of its
# answers is still below 0.7), and the base model is not exactly the writers' distribution.
#
# 3. Four times as many, 1,024: the width falls with $1 / \sqrt n$.
#
# </details>
