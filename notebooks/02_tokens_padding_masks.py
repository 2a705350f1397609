# %% [markdown]
# # 2. Tokens, padding and masks
#
# **Why.** The formulas of RLHF fit on a page, and nearly every broken implementation has the
# formulas right. What is wrong is *which* numbers go in: a mask that drops the last token, a
# position that is off by the padding, a logit that scores its neighbour. Nothing crashes then; the
# policy only learns something else. This page goes through these traps one by one, with tensors
# small enough to print.
#
# | section | trap | code |
# | --- | --- | --- |
# | 1 | what a token is | `train_ranks`, `merge` |
# | 2 | numbers that are not read digit by digit | `PATTERN` |
# | 3 | one special token with two meanings | `Tokenizer` |
# | 4 | padding on the left moves positions | `left_pad`, `right_pad`, `GPT.hidden` |
# | 5 | where a response ends | `first_eos_mask` |
# | 6 | `ids != pad` loses the EOS, and the policy never stops | `collate_responses` |
# | 7 | which logit scores which token | `ResponseBatch` |
# | 8 | log-probabilities, against a double loop | `token_log_probs` |
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about 15 seconds on one CPU core. The page before this one
# is [01_gpt2_from_scratch](01_gpt2_from_scratch.ipynb); the next:
# [03_pretraining_and_sft](03_pretraining_and_sft.ipynb).

# %%
import inspect
import math
import re

import matplotlib.pyplot as plt
import torch

try:
    from data import collate, reviews
    from gpt import finetuning, tokenizer_training
    from gpt.common import MetricLog
    from gpt.generate import SamplingParams, generate
    from gpt.log_probs import token_log_probs
    from gpt.model import GPT, GPTConfig
    from gpt.pretraining import language_model_loss
    from gpt.tokenizer import PATTERN, RANKS_FILE, build_tokenizer, load_tokenizer, read_ranks
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
torch.set_printoptions(precision=3, sci_mode=False, linewidth=100)

# %% [markdown]
# ## 1. From text to tokens: byte-pair encoding
#
# A model reads numbers. Letters would make texts long, whole words would leave every new word
# unreadable. Byte-pair encoding (Sennrich et al. 2016,
# [arXiv:1508.07909](https://arxiv.org/abs/1508.07909), Algorithm 1) lies between them: start with
# the 256 bytes and, again and again, merge the most frequent pair of neighbours into a new token:
#
# $$(a, b)^* = \arg\max_{(a, b)} \sum_{w} \mathrm{count}(w) \cdot n_{ab}(w)$$
#
# Here $n_{ab}(w)$ is how often $b$ follows $a$ in $w$, and $w$ runs over the pieces that a pattern
# cuts the text into: roughly, words with the space in front of them. Merges never cross pieces.

# %%
print(inspect.getsource(tokenizer_training.train_ranks))
print(inspect.getsource(tokenizer_training.merge))

# %% [markdown]
# Three sentences and fourteen merges. The text decides alone: " kettle" occurs four times and soon
# is one token.

# %%
sentences = ["The kettle is nice.", "The kettle is neat.", "This kettle is a nice kettle."]
ranks = tokenizer_training.train_ranks(sentences, vocab_size=256 + 14 + 2)
merges = [token for token, rank in ranks.items() if rank >= 256]
print("merges in order:", [token.decode() for token in merges])

mini = build_tokenizer("mini", ranks)
for text in ("The nice kettle.", "The metal kettles are nice!", "Käse \N{CHEESE WEDGE}"):
    ids = mini.encode(text)
    pieces = [mini.encoding.decode_single_token_bytes(i) for i in ids]
    print(f"\n{text!r} -> {len(ids)} tokens\n  {pieces}")
    assert mini.decode(ids) == text  # whatever the text: bytes are always there to fall back on

# %% [markdown]
# The project's own tokenizer "glassbox" is the same function on 40,000 documents of its two worlds,
# with 366 merges. A shorter list of merges is again a tokenizer, so one file shows what each merge
# buys: text of the reviews world gets four times shorter, foreign text one and a half times.

# %%
all_ranks = read_ranks(RANKS_FILE)
own = "".join(r.prompt + r.response for r in reviews.corpus(200, seed=1))
foreign = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
    "must be in want of a wife. However little known the feelings or views of such a man may be..."
)
sizes = [256, 270, 290, 320, 360, 400, 450, 500, 560, len(all_ranks)]
figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
for text, label in ((own, "reviews of this project's world"), (foreign, "Jane Austen")):
    prefixes = [build_tokenizer("prefix", dict(list(all_ranks.items())[:n])) for n in sizes]
    axis.plot(sizes, [len(text) / len(t.encode(text)) for t in prefixes], "o-", label=label)
axis.set(xlabel="tokens in the vocabulary", ylabel="characters per token", ylim=(0, None))
axis.set_title("What the merges buy")
axis.legend()
plt.show()

# %% [markdown]
# ## 2. Digits are tokens of their own
#
# **Why.** If frequent numbers were tokens, 347 would be one symbol, 348 two, and a model would have
# to learn arithmetic once per number. So the pattern makes every digit a piece (as Llama does,
# Touvron et al. 2023, [arXiv:2302.13971](https://arxiv.org/abs/2302.13971), section 2.1), and
# merges do not cross pieces. GPT-2's own pattern keeps digits together.

# %%
tokenizer = load_tokenizer("glassbox")
gpt2_numbers = r" ?[^\W\d_]+| ?\d+| ?[^\s\w]+|\s+"  # the part of GPT-2's pattern that matters here
text = "It costs 1347, not 347."
print("ours   ", re.findall(PATTERN, text))
print("GPT-2's", re.findall(gpt2_numbers, text))

ids = tokenizer.encode("347+588=935")
print("\n347+588=935 ->", [tokenizer.decode([i]) for i in ids])
assert len(ids) == len("347+588=935")

# %% [markdown]
# ## 3. Special tokens
#
# Two ids stand for no text. **EOS** ends a text: a policy *acts* when it emits it, and the loss
# must teach it. **Padding** only fills rectangles. Ours has an id for each; GPT-2 has a single
# special token, `<|endoftext|>` = 50256, used for both. All code of this project must work with
# both, so it never asks "is this id the padding?"

# %%
print(f"glassbox: {tokenizer.n_vocab} ids, EOS {tokenizer.eos_id}, padding {tokenizer.pad_id}")

# What users write is ordinary text: nobody can smuggle an EOS into a prompt.
smuggled = tokenizer.encode("Bye.<|endoftext|>")
print([tokenizer.decode([i]) for i in smuggled])
assert tokenizer.eos_id not in smuggled

# %% [markdown]
# ## 4. Padding, left and right
#
# Rows of a batch have different lengths, a tensor has one. There are two places for the padding,
# and each is right somewhere:
#
# - **Left**, for prompts to be continued: every row writes its next token into the same new column.
# - **Right**, for whole sequences to be scored: under a causal mask nothing looks at the padding
#   behind it, so no mask is needed at all.

# %%
print(inspect.getsource(collate.left_pad))
print(inspect.getsource(collate.right_pad))

# %%
prompts = [
    "Review the red kettle for Anna.\n",
    "Write to Leo about the white tent.\n",
    "Review it.\n",
]
rows = [tokenizer.encode(prompt) for prompt in prompts]
left, left_mask = collate.left_pad(rows, tokenizer.pad_id)
right, right_mask = collate.right_pad(rows, tokenizer.pad_id)


def word(token: int) -> str:
    names = {tokenizer.pad_id: "pad", tokenizer.eos_id: "EOS", 10: "\\n"}
    return names.get(token) or tokenizer.decode([token]).strip()


def draw_cells(axis, labels, colors, note=None) -> None:
    """A table of tokens: one coloured cell each, with a second line of text where there is a note."""
    axis.pcolormesh(colors, cmap="Pastel1", vmin=0, vmax=8, edgecolors="white", linewidth=2)
    rows, columns = colors.shape
    for row in range(rows):
        for column in range(columns):
            text = labels[row][column] + ("" if note is None else f"\n{note[row][column]}")
            axis.text(column + 0.5, row + 0.5, text, ha="center", va="center", size=9)
    axis.set_xticks([c + 0.5 for c in range(columns)], range(columns))
    axis.set_yticks([r + 0.5 for r in range(rows)], range(rows))
    axis.set(xlabel="column", ylabel="row")
    axis.invert_yaxis()


# %% [markdown]
# **Positions count real tokens.** Learned positions make this a matter of correctness: the first
# word of a prompt must get `wpe[0]` wherever it stands. From the mask $m$ (True = real token), with
# columns from 0:
#
# $$\mathrm{position}_{i,j} = \max\left(0, \ \sum_{k \le j} m_{i,k} - 1 \right)$$
#
# The small number in each cell is its position.

# %%
figure, axes = plt.subplots(2, 1, figsize=(9, 5), layout="constrained")
for axis, tokens, mask, side in (
    (axes[0], left, left_mask, "left"),
    (axes[1], right, right_mask, "right"),
):
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    labels = [[word(token) for token in row] for row in tokens.tolist()]
    colors = torch.where(mask, 2, 8)
    draw_cells(axis, labels, colors, positions.tolist())
    axis.set_title(f"padding on the {side}; below each word its position")
plt.show()

# %% [markdown]
# The property: **a row's logits do not depend on its padding.** Right-padded without any mask,
# left-padded with mask: both give what the row alone gives. Left-padded *without* the mask gives
# something else, silently.

# %%
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=96, n_layer=2, n_head=4, n_embd=64)
model = GPT(shape).initialize(torch.Generator().manual_seed(0)).eval()

with torch.no_grad():
    alone = torch.stack([model(torch.tensor([row]))[0, -1] for row in rows])  # (3, V): last column
    last = torch.tensor([len(row) - 1 for row in rows])
    from_right = model(right)[torch.arange(3), last]
    from_left = model(left, left_mask)[:, -1]
    without_mask = model(left)[:, -1]

for name, logits in (("right", from_right), ("left", from_left), ("left, no mask", without_mask)):
    print(f"{name:14} largest error per row", (logits - alone).abs().amax(1))
assert torch.allclose(from_right, alone, atol=1e-5) and torch.allclose(from_left, alone, atol=1e-5)
assert (without_mask - alone).abs().amax() > 0.01

# %% [markdown]
# ## 5. Where a response ends: the first EOS
#
# A sampler fills a rectangle; a row that has stopped still has columns left. A response is every
# token **up to and including** the first EOS. With $e_t = 1$ where token $t$ is an EOS:
#
# $$m_t = 1 \quad \mathrm{if} \quad \sum_{u < t} e_u = 0, \quad \mathrm{else} \ 0$$
#
# The EOS itself takes part: stopping is an action, and it can only be rewarded if it is scored.

# %%
print(inspect.getsource(collate.first_eos_mask))

# %%
E = tokenizer.eos_id
great, poor = tokenizer.encode(" great")[0], tokenizer.encode(" poor")[0]
sampled = torch.tensor([
    [great, poor, E, poor, E],  # stops at t = 2; whatever follows means nothing
    [great, poor, great, poor, great],  # never stops: cut off, all of it takes part
    [E, great, poor, poor, great],  # an empty answer is legal: its length is 1
])  # fmt: skip
is_eos = (sampled == E).long()
mask, has_eos = collate.first_eos_mask(sampled, E)
print("row 0            ", [word(token) for token in sampled[0].tolist()])
print("e                ", is_eos[0].tolist())
print("cumsum(e)        ", is_eos[0].cumsum(0).tolist())
print("cumsum(e) - e    ", (is_eos[0].cumsum(0) - is_eos[0]).tolist(), "EOS strictly before t")
print("mask             ", mask[0].long().tolist())
print("\nall masks\n", mask.long(), "\nlengths", mask.sum(1).tolist(), " ended", has_eos.tolist())
assert mask.sum(1).tolist() == [3, 5, 1] and has_eos.tolist() == [True, False, True]

# %% [markdown]
# ## 6. Why `ids != pad` is wrong
#
# The line found most often in GPT-2 code is `mask = (ids != pad_id)`, with the padding set to the
# EOS because GPT-2 has no other. Here are two answers in that convention.

# %%
examples = []  # (prompt tokens, response tokens with EOS)
for record in reviews.corpus(640, seed=0):
    response = [*tokenizer.encode(record.response), tokenizer.eos_id]
    examples.append((tokenizer.encode(record.prompt), response))

short = sorted(examples, key=lambda example: len(example[1]))[40:80:25]
padded, right_answer = collate.right_pad([response for _, response in short], pad_id=E)
by_comparison = padded != E

for name, mask in (("lengths (right)", right_answer), ("ids != pad (wrong)", by_comparison)):
    print(name)
    for tokens, row in zip(padded.tolist(), mask, strict=True):
        print(
            "  ", " ".join(word(t) if keep else "____" for t, keep in zip(tokens, row, strict=True))
        )
assert (right_answer.sum(1) - by_comparison.sum(1)).tolist() == [1, 1]  # one EOS lost per row

# %% [markdown]
# Losing one token of sixteen sounds harmless. It is the only token that says "stop". Dropping it
# from the loss is the same as training on answers without it, so we can measure the damage: the
# same model, the same answers, 80 steps, once with and once without their EOS.

# %%
print(inspect.getsource(finetuning.collate_examples))

beheaded = [(prompt, response[:-1]) for prompt, response in examples]
batch = finetuning.collate_examples(short, E)
log_probs = token_log_probs(model, batch)  # (2, T)
wrong_loss = -log_probs[by_comparison].mean()  # what `ids != pad` would train on
same = language_model_loss(model, finetuning.collate_examples([(p, r[:-1]) for p, r in short], E))
assert torch.allclose(wrong_loss, same)


# %%
def trained_on(answers: list[finetuning.Example]) -> GPT:
    model = GPT(shape).initialize(torch.Generator().manual_seed(0))
    config = finetuning.FinetuningConfig(lr=5e-3, warmup=10, batch_size=32)
    finetuning.train(config, model, answers, [], MetricLog(80), eos_id=E)
    return model


asked = reviews.prompts("validation")[:128]
asked_ids = [tokenizer.encode(record.prompt) for record in asked]
params = SamplingParams(max_new_tokens=64)
samples = {}
for name, answers in (("with the EOS", examples), ("ids != pad", beheaded)):
    trained = trained_on(answers)
    generator = torch.Generator().manual_seed(0)
    samples[name] = (trained, generate(trained, asked_ids, params, generator, eos_id=E))

# %%
for name, (_, generation) in samples.items():
    print(f"{name:13} ended by itself: {generation.has_eos.float().mean():.0%}")
    print("  ", tokenizer.decode(generation.token_lists()[3]), "\n")
assert samples["with the EOS"][1].has_eos.float().mean() > 0.9
assert samples["ids != pad"][1].has_eos.float().mean() < 0.1

figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
for (name, (_, generation)), color in zip(samples.items(), ("tab:green", "tab:red"), strict=True):
    lengths = generation.response_mask.sum(1)
    axis.hist(lengths, bins=range(0, 68, 2), color=color, alpha=0.7, label=name)
axis.set(xlabel="response length (tokens; the limit is 64)", ylabel="responses out of 128")
axis.set_title("A policy that never saw its EOS talks until it is cut off")
axis.legend()
plt.show()

# %% [markdown]
# (The prompt of the two printed answers asks for a chair, and both speak of a toaster. After 80 steps
# the model has learned how answers sound and where they end. Which thing was asked for it has not yet
# learned to copy: [03_pretraining_and_sft](03_pretraining_and_sft.ipynb) watches that happen.)
#
# The remedy is not another comparison. Masks come from where the text came from: the collator knows
# the lengths it padded, and the sampler knows the first EOS.
#
# ## 7. Which logit scores which token
#
# Column $j$ of the logits predicts token $j + 1$. With a prompt of $p$ tokens, response token $t$
# stands at column $p + t$ and is scored by column $p - 1 + t$; the first response token is scored
# by the **last prompt token**. In this project a row is stored as [prompt, response, padding] from
# column 0, so $p$ differs from row to row, and the columns are gathered. Everything after that has
# shape $(N, T)$, response tokens only.

# %%
print(inspect.getsource(collate.ResponseBatch))

# %%
pair = [("Review it.\n", "It is great."), ("Tell Leo about it.\n", "Hello Leo.")]
batch = collate.collate_responses(
    [tokenizer.encode(prompt) for prompt, _ in pair],
    [[*tokenizer.encode(response), E] for _, response in pair],
    E,
)
print("prompt lengths    ", batch.prompt_lengths.tolist())
print("response columns  ", batch.response_columns.tolist(), "  where token t stands")
print("predicting columns", batch.predicting_columns.tolist(), "  whose logits score it")
print("response mask     ", batch.response_mask.long().tolist())
assert (batch.response_columns - batch.predicting_columns)[batch.response_mask].eq(1).all()

# %%
print("row 0:  t   token     stands at column   is scored by column, which holds")
for t in range(int(batch.lengths[0])):
    token = word(int(batch.response_tokens[0, t]))
    stands, scores = int(batch.response_columns[0, t]), int(batch.predicting_columns[0, t])
    print(f"{t:9}   {token:8} {stands:15}   {scores:19}, {word(int(batch.tokens[0, scores]))!r}")

# %%
columns = torch.arange(batch.tokens.shape[1])
ends = (batch.prompt_lengths + batch.lengths)[:, None]
kinds = torch.where(columns < batch.prompt_lengths[:, None], 1, torch.where(columns < ends, 2, 8))
labels = [[word(token) for token in row] for row in batch.tokens.tolist()]
labels = [
    [w if c < end else "pad" for c, w in enumerate(row)]
    for row, end in zip(labels, ends, strict=True)
]

figure, axis = plt.subplots(figsize=(10, 3.6), layout="constrained")
draw_cells(axis, labels, kinds)
arrow = {"arrowstyle": "->", "connectionstyle": "arc3,rad=-0.45", "color": "tab:red"}
for row, length in enumerate(batch.lengths.tolist()):
    for t in range(length):
        start, end = int(batch.predicting_columns[row, t]), int(batch.response_columns[row, t])
        axis.annotate("", (end + 0.5, row + 0.38), (start + 0.5, row + 0.38), arrowprops=arrow)
        axis.text(end, row + 0.14, f"t={t}", ha="center", size=8, color="tab:red")
axis.set_title(
    "blue: prompt, green: response; an arrow leads from the logits to the token they score"
)
plt.show()

# %% [markdown]
# ## 8. Log-probabilities of a response
#
# $$\log \pi(y_t \mid x, y_{<t}) = \frac{z_{y_t}}{\tau} - \log \sum_v \exp\left(
# \frac{z_v}{\tau}\right), \qquad z = \mathrm{logits}_{p - 1 + t}$$
#
# This is the one quantity that every algorithm of this project is made of: ratios, KL divergences
# and losses are differences of it. The temperature $\tau$ must be the sampler's. Logits are formed
# at response positions only.

# %%
print(inspect.getsource(token_log_probs))


# %% [markdown]
# The slow version, token by token and without padding, is the judge. And the usual mistake, one
# column further, is far off.


# %%
@torch.no_grad()
def by_double_loop(model: GPT, batch: collate.ResponseBatch, shift: int = 1) -> torch.Tensor:
    """The definition; shift = 0 is the off-by-one mistake."""
    result = torch.zeros(batch.response_mask.shape)
    for i in range(len(batch)):
        p, length = int(batch.prompt_lengths[i]), int(batch.lengths[i])
        logits = model(batch.tokens[i : i + 1, : p + length])[0].tolist()  # this row alone
        for t in range(length):
            z = logits[p + t - shift]
            token = int(batch.response_tokens[i, t])
            result[i, t] = z[token] - math.log(sum(math.exp(v) for v in z))
    return result


policy, generation = samples["with the EOS"]
batch = collate.join_responses(
    asked_ids, generation.response_tokens, generation.response_mask, generation.has_eos
)
with torch.no_grad():
    log_probs = token_log_probs(policy, batch)  # (N, T), 0 at padding
loop = by_double_loop(policy, batch)
print(f"largest difference from the loop {(log_probs - loop).abs().max():.6f}")
print(f"mean log-prob {loop[batch.response_mask].mean():.2f},", end=" ")
print(f"one column off {by_double_loop(policy, batch, 0)[batch.response_mask].mean():.2f}")
assert torch.allclose(log_probs, loop, atol=1e-4)

# %% [markdown]
# **The sampler and the scorer must agree.** The sampler worked with left padding, a cache and one
# column at a time; the scorer with right padding and all columns at once. If their numbers differ,
# the very first ratio $\pi / \pi_{old}$ of PPO is not 1.

# %%
difference = (log_probs - generation.log_probs).abs()[batch.response_mask].max()
print(f"largest difference between sampler and scorer {difference:.6f}")
assert difference < 1e-4

row = 3
length = int(batch.lengths[row])
labels = [word(token) for token in batch.response_tokens[row, :length].tolist()]
figure, axis = plt.subplots(figsize=(10, 3.2), layout="constrained")
axis.bar(range(length), -log_probs[row, :length], color="tab:blue")
axis.set_xticks(range(length), labels, rotation=45, ha="right")
axis.set(xlabel="sampled token", ylabel="surprise, -log p (nats)")
axis.set_title(
    f"After: {asked[row].prompt.strip()}  The EOS costs {-log_probs[row, length - 1]:.2f} nats"
)
plt.show()

# %% [markdown]
# Grammar is cheap, choices are expensive: that is where a policy has something to decide, and where
# reinforcement learning will push. The name of the thing is one of the expensive tokens here because
# this model guesses it; for a model that copies from the prompt it would be cheap, and right.
#
# ## Exercise
#
# Two prompts of 3 and 5 tokens, responses padded to $T = 4$.
#
# 1. Which columns score response token 0 of each row when rows are stored contiguously? And if
#    prompts were left-padded to $P = 5$ with the responses behind them?
# 2. The second response is cut off after 4 tokens, without an EOS. Should its mask be all ones, or
#    should its last token be left out?
# 3. Somebody computes the response mask of GPT-2 rows as `(ids != 50256) | (ids.roll(1, 1) != 50256)`,
#    to keep the first EOS. Give a prompt and response for which this fails.
#
# <details>
# <summary>Answer</summary>
#
# 1. Contiguous: $p - 1 + t$, so columns 2 and 4. Left-padded: every prompt ends at column
#    $P - 1 = 4$, so column 4 in both rows. The $(N, T)$ results are the same.
# 2. All ones. The four tokens were sampled, so they are actions that have a probability and get a
#    reward; what the row lacks is a fifth one. `has_eos` records that it was cut off, and rewards
#    may punish it.
# 3. The rule keeps a token whose left neighbour is not an EOS. An answer that is empty (just the
#    EOS) behind a prompt that ends with `<|endoftext|>`, as GPT-2's unconditional samples do, loses
#    its only token; and a row that starts with one has `roll` bring the last column round to the
#    first. Ids cannot tell an EOS that was written from one that fills: count from the lengths.
#
# </details>
