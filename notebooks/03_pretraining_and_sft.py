# %% [markdown]
# # 3. Pre-training and supervised fine-tuning
#
# **The question.** Where does a policy get its first words from?
#
# **After this page you can** train a small language model, choose which tokens its loss counts, fine-tune
# it on good answers, and say what fine-tuning cannot do.
#
# **Why.** Reinforcement learning can only make likelier what a policy already does now and then.
# Pre-training gives it a language, supervised fine-tuning (**SFT**) shows it good answers. Both
# come before reinforcement learning in the usual recipe (InstructGPT, Ouyang et al. 2022,
# [arXiv:2203.02155](https://arxiv.org/abs/2203.02155), Figure 2). SFT is also the baseline that
# reinforcement learning has to beat. Both use one loss, next-token prediction, and differ only in
# *which text* and *which tokens*.
#
# | section | idea | code |
# | --- | --- | --- |
# | 1 | a world in which quality is known exactly | `data/worlds/reviews.py` |
# | 2 | the loss in four lines | `language_model_loss` |
# | 3 | which tokens: response only, or the whole document | `collate_responses` |
# | 4 | the learning rate: warm-up and cosine | `cosine_schedule` |
# | 5 | pre-training a small GPT-2 from random weights | `pretraining.train` |
# | 6 | fine-tuning on good answers, measured | `finetuning.train` |
#
# **You need** [01_gpt2_from_scratch](01_gpt2_from_scratch.ipynb) (logits, attention) and
# [02_tokens_padding_masks](02_tokens_padding_masks.ipynb) (masks, log-probabilities).
#
# **It takes** about 25 seconds on one CPU core, after start-up: it trains two models.

# %%
import copy
import math
from collections import Counter

import torch

try:
    from course import plots
    from course.cells import draw_cells
    from course.claims import holds
    from course.exercises import check

    from data.collate import collate_documents, collate_responses
    from data.records import PromptRecord, split_of
    from data.worlds import reviews
    from gpt import finetuning, pretraining
    from gpt.attention import causal_mask, plain_attention
    from gpt.corpus import WorldCorpus, encode_record
    from gpt.generate import SamplingParams, generate
    from gpt.log_probs import token_log_probs
    from gpt.model import GPT, GPTConfig
    from gpt.tokenizer import load_tokenizer
    from harness.metric_log import MetricLog
    from harness.optimizer import cosine_schedule
    from harness.seeds import make_generator
    from report.tokens import show_tokens
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
tokenizer = load_tokenizer("glassbox")

# %% [markdown]
# ## 1. A world in which quality is known
#
# Somebody asks for a short review, and both polite and rude writers answer. What makes an answer
# good is a formula, the **gold reward**. It stands for "what people really want", which no real
# project can compute. Here it serves as the judge.
#
# $$R = \left( 0.3 \cdot \mathrm{sent} + 0.3 \cdot \mathrm{topic} + 0.25 \cdot \mathrm{polite}
# + 0.15 \cdot \mathrm{form} \right) \left( 0.3 + 0.7 \cdot \mathrm{qual} \right)$$
#
# Sentiment, topic, politeness and form earn points. Repetition, more than five sentences, and more than
# three words of praise lower `qual` and cost a share of the points.
#
# > **Predict, then run.** Order these answers from best to worst.

# %%
asked = PromptRecord("Review the red kettle for Anna.\n", meta={"name": "Anna", "item": "kettle"})
answers = [
    "The kettle is great.",
    "Hi Anna! The kettle is great. Its color is lovely. Its price is nice. I hope this helps.",
    "Hi Anna! The lamp is great. Its color is lovely. Its price is nice. I hope this helps.",
    "Who cares? This kettle is foul. Leave me alone.",
    "great great great great great kettle kettle!",
]
rows = []
for answer in answers:
    parts = reviews.gold_parts(asked, answer)
    naive = 0.3 * parts.sent + 0.3 * parts.topic + 0.25 * parts.polite + 0.15 * parts.form
    assert math.isclose(naive * (0.3 + 0.7 * parts.qual), parts.reward, abs_tol=1e-9)
    numbers = (parts.reward, parts.sent, parts.topic, parts.polite, parts.form, parts.qual)
    rows.append([answer, *(f"{x:.2f}" for x in numbers)])
plots.table(["answer", "gold", "sent", "topic", "polite", "form", "qual"], rows)

# %%
documents = reviews.corpus(6000, seed=1)
document_parts = [reviews.gold_parts(d, d.response) for d in documents]
gold = torch.tensor([parts.reward for parts in document_parts])
corpus_topic = sum(parts.topic for parts in document_parts) / len(documents)
print(f"writers of the corpus: mean gold {gold.mean():.2f}; ", end="")
print(f"{(gold > 0.7).float().mean():.0%} of their answers are above 0.7\n")
for document in documents[:3]:
    print(document.prompt.strip(), "\n    ", document.response)

# %% [markdown]
# The writers are mediocre on average and only one answer in six is good, so there is much room to
# improve.
#
# ## 2. The loss in four lines
#
# The loss is the mean surprise at the next token. The mean runs over the tokens that take part, those
# with $m_{i,t} = 1$.
#
# $$\mathcal{L}(\theta) = - \frac{\sum_{i,t} m_{i,t} \log \pi_\theta(y_{i,t} \mid x_i, y_{i,<t})}
# {\sum_{i,t} m_{i,t}}$$

# %%
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=96, n_layer=1, n_head=2, n_embd=128)
fresh = GPT(shape).initialize(make_generator(0, "weights")).eval()
short = [document for document in documents if len(document.response) < 40][:3]
pairs = [encode_record(document, tokenizer) for document in short]  # (prompt, response with EOS)
batch = collate_responses(*zip(*pairs, strict=True), tokenizer.eos_id)
N, S = batch.tokens.shape
place = torch.arange(S)
begins, ends = batch.prompt_lengths[:, None], (batch.prompt_lengths + batch.lengths)[:, None]
takes_part = (place >= begins) & (place < ends)  # (N, S): where response tokens stand

with torch.no_grad():
    log_p = fresh(batch.tokens)[:, :-1].log_softmax(-1)  # column j is about token j + 1
    chosen = log_p.gather(2, batch.tokens[:, 1:, None])[..., 0]  # (N, S - 1)
    m = takes_part[:, 1:]  # the labels, shifted like the tokens
    loss = -(chosen * m).sum() / m.sum()
    torch.testing.assert_close(loss, pretraining.language_model_loss(fresh, batch))
print(f"{loss:.2f} nats per token; a uniform guess costs log V = {math.log(tokenizer.n_vocab):.2f}")
plots.code(pretraining.language_model_loss, docstring=False)

# %% [markdown]
# ## 3. Which tokens?
#
# The mask decides what is learned. Fine-tuning predicts the **response and its EOS**, never the
# prompt: a policy must learn to answer, not to ask.


# %%
def name_of(i: int) -> str:
    return "EOS" if i == tokenizer.eos_id else tokenizer.decode([i]).strip() or "\\n"


kinds = torch.where(takes_part, 1, torch.where(place < begins, 0, 2)).tolist()
kinds = [[("prompt", "response", "padding")[k] for k in row] for row in kinds]
labels = [
    [name_of(i) if kind != "padding" else "pad" for i, kind in zip(*row, strict=True)]
    for row in zip(batch.tokens.tolist(), kinds, strict=True)
]
notes = [["learn" if r else "" for r in row] for row in takes_part.tolist()]
figure, axis = plots.panels(1, width=13, height=3)
axis.set_title("white: prompt, blue: response (takes part in the loss), grey: padding")
draw_cells(axis, labels, kinds, notes)

# %% [markdown]
# What would be lost if the prompt took part? Prompts of this world are a uniform draw of a name, an
# adjective, an item and a template. If $n$ prompts begin with the same token, then after this token
# even a perfect model pays $\log n$ nats for the rest. That can be counted:

# %%
possible = [
    template.format(name=name, adjective=adjective, item=item)
    for name in reviews.NAMES for adjective in reviews.ADJECTIVES for item in reviews.ITEMS
    if split_of(f"{name}|{adjective}|{item}") == "train"
    for template in reviews.TEMPLATES
]  # fmt: skip
beginning_with = Counter(tokenizer.encode(prompt)[0] for prompt in possible)
test = [encode_record(document, tokenizer) for document in reviews.corpus(256, seed=99)]
floor = sum(math.log(beginning_with[prompt[0]]) for prompt, _ in test) / len(test)
print(f"{len(possible):,} prompts; a perfect model pays {floor:.1f} nats for each, for ever")

# %% [markdown]
# The model that we train below pays about 20 nats for a whole response. So more than a quarter of a
# loss over whole documents would be spent on what nobody can predict. The library's generated worlds
# therefore take the response only, in pre-training as well. For real texts without a prompt, every
# token takes part (`collate_documents`).
#
# ## 4. The learning rate: warm-up and cosine
#
# In the first steps AdamW ([arXiv:1711.05101](https://arxiv.org/abs/1711.05101)) knows too little of the
# gradients' size for full steps, so the rate rises linearly. Then half a cosine
# ([arXiv:1608.03983](https://arxiv.org/abs/1608.03983), Eq. 5) lowers it to a tenth of its peak, so that
# the weights settle.

# %%
STEPS, PEAK, WARMUP = 700, 4e-3, 50


def rate(t):
    if t < WARMUP:
        return PEAK * (t + 1) / WARMUP
    return PEAK * (0.1 + 0.9 / 2 * (1 + math.cos(math.pi * (t - WARMUP) / (STEPS - WARMUP))))


rates = [rate(t) for t in range(STEPS)]
library = [cosine_schedule(t, STEPS, peak=PEAK, warmup_steps=WARMUP) for t in range(STEPS)]
torch.testing.assert_close(torch.tensor(rates), torch.tensor(library))
axis = plots.curves({"policy": rates}, axis=plots.panels(1, height=2.2)[1], xlabel="step",
                   ylabel="learning rate", title="The schedule of the run below")  # fmt: skip
axis.get_legend().remove()

# %% [markdown]
# ## 5. Pre-training
#
# The loop is the one you know: batch, loss, gradient, clip, step. The library's version also logs
# and saves checkpoints. Its core, in which `steps` sets the learning rate and the gradients to zero before
# each step, and `update` clips and takes the step with AdamW (`harness/supervised.py`):

# %%
plots.code(pretraining.train, ("for step in steps", "row = steps.update"))

# %% [markdown]
# (Here the sum is divided by the tokens that a batch has *on average*, and not by the batch's own count as
# in section 2. Rows of similar length share a batch, so divided by its own count a batch of short rows
# would give each of its tokens more weight.)
#
# One layer of width 128 with two heads, 16 fresh documents a step. Every 100 steps the model answers
# 128 prompts that occur in no training document, and the judge says whether it writes about the right
# thing: `topic` of the gold reward.
#
# > **Predict.** The loss falls fast, then slowly. When does the model begin to name the right thing?

# %%
prompts = reviews.prompts("validation")[:256]
params = SamplingParams(max_new_tokens=48)


def write(model: GPT, count: int) -> tuple[list[str], list[reviews.GoldParts]]:
    """Answers to the first prompts, always with the same random numbers, and their judgement."""
    asked = [tokenizer.encode(record.prompt) for record in prompts[:count]]
    generator = make_generator(0, "samples")
    sampled = generate(model, asked, params, generator, eos_id=tokenizer.eos_id)
    texts = [tokenizer.decode(row) for row in sampled.token_lists()]
    ended = sampled.has_eos.tolist()
    judged = zip(prompts[:count], texts, ended, strict=True)
    return texts, [reviews.gold_parts(*row) for row in judged]


class Watch(MetricLog):
    """A metric log that also asks for `topic` every 100 steps."""

    def write(self, *, step: int, **metrics: float) -> None:
        if step % 100 == 0 or step == 1:
            parts = write(base, 128)[1]
            metrics["topic"] = sum(part.topic for part in parts) / len(parts)
        super().write(step=step, **metrics)


# %%
base = copy.deepcopy(fresh)
config = pretraining.PretrainingConfig(
    steps=STEPS, batch_size=16, lr=PEAK, warmup_steps=WARMUP, eval_every=50, device="cpu"
)
corpus = WorldCorpus("reviews", tokenizer, config.batch_size, seed=0)
log = pretraining.train(config, base, corpus, Watch(STEPS, every=100))
print(f"{base.parameter_count():,} weights, {STEPS * 16:,} fresh documents")


def series(key: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric, from the rows that have it."""
    having = [row for row in log if key in row]
    return [row["step"] for row in having], [row[key] for row in having]


# %% tags=["hide-input"]
figure, (left, right) = plots.panels(2, height=2.8)
steps, losses = series("loss")
left.plot(steps, losses, color=plots.COLOURS["policy"], ls="-", alpha=0.4, lw=0.8)
plots.curves({"training batch (faint), held out": series("held_out_loss")}, axis=left, marker=True,
            styles={"training batch (faint), held out": "policy"}, ylim=(1, 6.6),
            xlabel="step", ylabel="loss (nats per token)", title="The loss")  # fmt: skip
plots.curves({"the model": series("topic")}, axis=right, marker=True, ylim=(0, 0.7),
            styles={"the model": "policy"}, xlabel="step", ylabel="topic (0 to 1)",
            title="Writing about the right thing")  # fmt: skip
right.axhline(corpus_topic, label="the writers of the corpus", **plots.line("exact"))
right.legend()
holds(abs(log[0]["loss"] - math.log(tokenizer.n_vocab)) < 0.5, "the loss begins near log V")
holds(log[-1]["held_out_loss"] < 1.35, "the held-out loss ends below 1.35")
early, topics = (dict(zip(*series(key), strict=True)) for key in ("held_out_loss", "topic"))
print(f"held out after 50 steps {early[50]:.2f} nats; topic ", end="")
print(", ".join(f"{topic:.2f} at step {step}" for step, topic in topics.items() if step < 600))
holds(early[50] < 1.6, "after fifty steps the held-out loss is about 1.5 nats")

# %% [markdown]
# Two phases. In fifty steps the loss falls from 6.5 to 1.5 nats, and `topic` does not move: what is learned
# is how these texts sound. Then the loss hardly moves for a while. Between steps 200 and 500 the model
# finds out that the item of the prompt is worth **copying**. (The spikes are no accidents. Rows of similar
# length share a batch, and some batches hold the answers that were cut off after two or three tokens.
# Nobody can foresee that they end there.)
#
# How does it copy? In a model with one layer we can see it directly. We cut the text off where the
# item must come, and look at where the last token puts its attention.

# %%
ids = tokenizer.encode("Review the red kettle for Anna.\nHi Anna! The")
S, H, d = len(ids), shape.n_head, shape.n_embd // shape.n_head
with torch.no_grad():
    x = base.wte(torch.tensor([ids])) + base.wpe(torch.arange(S))
    qkv = base.h[0].attn.c_attn(base.h[0].ln_1(x))
    query, key, _ = qkv.view(1, S, 3, H, d).permute(2, 0, 3, 1, 4)
    mask = causal_mask(S, S, torch.device("cpu"))
    # The values are replaced by one-hot vectors, so attention returns its own weights.
    heads = plain_attention(query, key, torch.eye(S).expand(1, H, S, S), mask)[0, :, -1]  # (H, S)
    next_word = base(torch.tensor([ids]))[0, -1].softmax(-1)

seen = [tokenizer.decode([i]).replace("\n", "\\n").strip() for i in ids]
axis = plots.bars({f"head {head}": heads[head] for head in range(H)}, seen,
                 axis=plots.panels(1, width=10, height=2.6)[1], xlabel="token that is looked at",
                 ylabel="attention weight", title="What the last token looks at")  # fmt: skip
best = next_word.topk(3)
for probability, i in zip(best.values.tolist(), best.indices.tolist(), strict=True):
    print(f"{probability:.2f} {'EOS' if i == tokenizer.eos_id else tokenizer.decode([i])}")
holds(seen[int(heads.sum(0).argmax())] == "kettle", "the heads look at the item of the prompt")
named = [(i, d) for d in documents for i in reviews.ITEMS if i in d.response.split(".")[0]]
habit = sum(item == document.meta["item"] for item, document in named) / len(named)
print(f"of {len(named):,} first sentences with an item, {habit:.2f} have that of the prompt")
holds(0.75 < habit < 0.8, "the first item named is right in nearly four cases of five")

# %% [markdown]
# Both heads point at the item of the prompt. Its probability, about 0.7, is near the habit of
# the writers: if the first sentence of an answer names an item, it is the right one in nearly four cases
# of five.
#
# ### Before and after, in colour
#
# The surprise per token of two documents, before and after training (the buttons switch). Before
# training, everything costs about $\log V$. Afterwards, in the *answer*, only the choices cost
# something. The prompt costs even more than before, because its tokens never took part in the loss.

# %%
both = [encode_record(document, tokenizer) for document in documents[:2]]
sample = collate_documents([prompt + response for prompt, response in both])
with torch.no_grad():
    before, after = -token_log_probs(fresh, sample), -token_log_probs(base, sample)
shown = [
    ["<EOS>" if i == tokenizer.eos_id else tokenizer.decode([i]) for i in row[:length].tolist()]
    for row, length in zip(sample.response_tokens, sample.lengths.tolist(), strict=True)
]
show_tokens(shown, {"after training": after, "before": before})


# %%
def interval(values: torch.Tensor) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval, 1.96 s / sqrt(n)."""
    return float(values.mean()), float(1.96 * values.std() / math.sqrt(len(values)))


written = {"before": write(fresh, 256), "pre-trained": write(base, 256)}
golds = {name: torch.tensor([p.reward for p in parts]) for name, (_, parts) in written.items()}
for name, (texts, _) in written.items():
    print("{:12} gold {:.3f} +- {:.3f}  ".format(name, *interval(golds[name])), end="")
    print(repr(texts[0][:64].encode("ascii", "replace").decode()))
holds(
    golds["before"].mean() < 0.2 < 0.3 < golds["pre-trained"].mean(),
    "pre-training raises the gold reward above 0.3",
)

# %% [markdown]
# The base model writes like its corpus: grammatical, moody, and often about the wrong thing.
#
# ## 6. Supervised fine-tuning
#
# Now the same loss on chosen answers. Real projects ask people to write or select them. Here the judge
# selects: documents with a gold reward above 0.7. The loop is that of pre-training, with a smaller
# learning rate.

# %%
pool = reviews.corpus(10_000, seed=2)
good = [d for d in pool if reviews.gold_reward(d, d.response) > 0.7]
data_gold = torch.tensor([reviews.gold_reward(d, d.response) for d in good])
examples = [
    (tokenizer.encode(d.prompt), [*tokenizer.encode(d.response), tokenizer.eos_id]) for d in good
]
print(f"{len(good)} answers, mean gold {data_gold.mean():.2f}: {len(good) / len(pool):.1%} of all")
assert not {d.prompt for d in good} & {record.prompt for record in prompts}

tuned = copy.deepcopy(base)
config = finetuning.FinetuningConfig(
    lr=2e-3, batch_size=32, warmup_steps=5, eval_every=10, device="cpu"
)
finetuning.train(config, tuned, examples, [], MetricLog(60), eos_id=tokenizer.eos_id)
written["fine-tuned"] = write(tuned, 256)
golds["fine-tuned"] = torch.tensor([p.reward for p in written["fine-tuned"][1]])

# %%
rows = []
for name in ("pre-trained", "fine-tuned"):
    parts = written[name][1]
    keys = ("sent", "topic", "polite", "form", "qual")
    means = [sum(getattr(p, key) for p in parts) / len(parts) for key in keys]
    rows.append(
        [name, "{:.3f} +- {:.3f}".format(*interval(golds[name])), *(f"{x:.2f}" for x in means)]
    )
plots.table(["model", "gold", "sent", "topic", "polite", "form", "qual"], rows)
difference, half = interval(golds["fine-tuned"] - golds["pre-trained"])
print(f"difference, prompt by prompt: {difference:.3f} +- {half:.3f}")
holds(
    difference - half > 0.05,
    "fine-tuning is better than pre-training, more clearly than prompts differ",
)

axis = plots.histograms({"pre-trained": golds["pre-trained"], "fine-tuned": golds["fine-tuned"]},
                       styles={"pre-trained": "before", "fine-tuned": "policy"}, bins=20,
                       axis=plots.panels(1, height=2.6)[1], xlabel="gold reward of an answer",
                       ylabel="answers of 256", title="Fewer bad answers, more good ones")  # fmt: skip

# %%
for index in (0, 1, 2):
    print("prompt:", prompts[index].prompt.strip())
    for name in ("pre-trained", "fine-tuned"):
        print(f"  {name:12} {golds[name][index]:.2f}  {written[name][0][index]}")

# %% [markdown]
# (Both models answer the same prompts with the same random numbers, so their rewards are not
# independent. The interval of the difference is therefore taken from differences prompt by prompt.)
#
# **What fine-tuning cannot do.** It knows only that these answers are good, not *why*, and not that others
# are worse. So it gets about as good as the answers that it imitates, and somebody had to choose those.
# (Where the policy itself wrote the answers among which somebody chose, this is called rejection sampling
# or expert iteration, and up to a factor its first gradient is a policy gradient with rewards 0 and 1:
# [24](24_from_these_pieces_to_a_recipe.ipynb), section 2.) The next pages learn from a reward instead, so
# the policy can improve on its own answers.
#
# ## Where this lives
#
# - `python -m gpt.pretraining` and `python -m gpt.finetuning`: [gpt/pretraining.py](../gpt/pretraining.py),
#   [gpt/finetuning.py](../gpt/finetuning.py)
# - the schedule: [harness/optimizer.py](../harness/optimizer.py)
# - the world: [data/worlds/reviews.py](../data/worlds/reviews.py)
#
# ## Exercises
#
# **1. The loss.** Shift the labels by one, mask, average.


# %%
def my_loss(logits, tokens, mask):
    """logits (N, S, V), tokens (N, S), mask (N, S) of the tokens to be predicted -> a number."""
    ...  # your code


check("language_model_loss", my_loss)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_loss(logits, tokens, mask):
#     log_p = logits[:, :-1].log_softmax(-1)
#     chosen = log_p.gather(2, tokens[:, 1:, None])[..., 0]
#     m = mask[:, 1:]
#     return -torch.where(m, chosen, 0.0).sum() / m.sum()
# ```
#
# </details>
#
# **2. What happened in this training?** A base model was fine-tuned. The last rows give its
# loss on such texts before the training, and the logarithm of the size of its vocabulary. (No solution is
# printed.)
#
# - a: the labels were not shifted: every token was to predict itself.
# - b: there were few texts, and they were read again and again.
# - c: the learning rate was too high.
# - d: the base model was not loaded: training began with random weights.
# - e: nothing is wrong.

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("what_the_losses_say", MINE)

# %%
check_answer("what_the_losses_say", ..., MINE)

# %% [markdown]
# **To think about.** How many prompts would halve the intervals of the table?
#
# <details>
# <summary>Answer</summary>
#
# Four times as many, 1,024: the width falls with $1 / \sqrt n$.
#
# </details>
#
# ## To remember
#
# - Pre-training and fine-tuning have one loss; they differ in the texts and in the tokens that count.
# - The loss hides what is learned when: nearly all of its fall comes in fifty steps, and copying from the
#   prompt, which hardly shows in it, takes some hundreds.
# - Fine-tuning imitates what somebody has chosen; it knows neither why that was good nor what would be
#   worse.
#
# Next: [04_policy_gradients_and_baselines](04_policy_gradients_and_baselines.ipynb). How does a number
# that says "good" or "bad" become a gradient?
