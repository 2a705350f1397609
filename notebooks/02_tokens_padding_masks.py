# %% [markdown]
# # 2. Tokens, padding and masks
#
# **After this page you can** say of every number in a batch which token it belongs to: pad on the side
# that fits, make the mask of a response with its EOS, pick the column that scores a token, pack several
# texts into one row, and test that sampler and scorer agree.
#
# **Why.** Which number belongs to which token? The formulas of RLHF fit on a page, and nearly every
# broken implementation has them right. What goes wrong is *which* numbers go in: a mask that drops
# the last token, a position that is off by the padding, a logit that scores its neighbour. Nothing
# crashes, but the policy learns something else.
#
# Each section is one trap, with tensors small enough to print.
#
# | section | trap | code |
# | --- | --- | --- |
# | 1 | one special token with two meanings | `Tokenizer` |
# | 2 | padding on the left moves positions, and leaves a column nothing to see | `row_positions` |
# | 3 | where a response ends | `first_eos_mask` |
# | 4 | `ids != pad` loses the EOS, and the policy never stops | `collate_responses` |
# | 5 | which logit scores which token | `ResponseBatch` |
# | 6 | log-probabilities of a response | `token_log_probs` |
# | 7 | several texts in one row, and a token that comes twice | |
#
# **You need** [01_gpt2_from_scratch](01_gpt2_from_scratch.ipynb): logits, the causal mask, positions.
#
# **It takes** about 15 seconds on one CPU core, after start-up.

# %%
import torch

try:
    from course import plots
    from course.cells import draw_arrows, draw_cells
    from course.claims import holds
    from course.exercises import check
    from course.saved_models import base

    from data import collate
    from data.worlds import reviews
    from gpt import finetuning
    from gpt.attention import kernel_mask, row_positions
    from gpt.generate import SamplingParams, generate
    from gpt.log_probs import token_log_probs
    from gpt.model import GPT, GPTConfig
    from gpt.pretraining import language_model_loss
    from gpt.tokenizer import load_tokenizer
    from harness.metric_log import MetricLog
    from report.tokens import show_tokens
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
torch.set_printoptions(precision=3, sci_mode=False, linewidth=100)

# %% [markdown]
# ## 1. Special tokens
#
# Two ids stand for no text. **EOS** (end of sequence) ends a text: a policy *acts* when it emits it,
# and the loss must teach it. **Padding** only fills rectangles. Ours has an id for each. GPT-2 has a
# single special token, `<|endoftext|>` = 50256, and people use it for both. The code of this project
# must work with both tokenizers, so it never asks "is this id the padding?"

# %%
tokenizer = load_tokenizer("glassbox")
print(f"glassbox: {tokenizer.n_vocab} ids, EOS {tokenizer.eos_id}, padding {tokenizer.pad_id}")

# What users write is ordinary text: nobody can smuggle an EOS into a prompt.
smuggled = tokenizer.encode("Bye.<|endoftext|>")
print([tokenizer.decode([i]) for i in smuggled])
assert tokenizer.eos_id not in smuggled

# %% [markdown]
# ## 2. Padding, left and right
#
# Rows of a batch have different lengths, but a tensor has one. There are two places for the padding,
# and each is right somewhere:
#
# - **Left**, for prompts to be continued: every row writes its next token into the same new column.
#   The padding stands before the words, so an attention mask must forbid every token to look at it.
# - **Right**, for whole sequences to be scored: under a causal mask no token looks at the padding
#   after it, so no mask is needed at all.
#
# The model adds a learned vector for each **position**. So the first word of a prompt must get
# position 0 wherever it stands: positions count real tokens. From the mask $m$ (True = real token):
#
# $$\mathrm{position}_{i,j} = \max\left(0, \ \sum_{k \le j} m_{i,k} - 1 \right)$$

# %%
prompts = [
    "Review the red kettle for Anna.\n",
    "Write to Leo about the white tent.\n",
    "Review it.\n",
]
rows = [tokenizer.encode(prompt) for prompt in prompts]
left, left_mask = collate.left_pad(rows, tokenizer.pad_id)
right, right_mask = collate.right_pad(rows, tokenizer.pad_id)

positions = (left_mask.cumsum(1) - 1).clamp(min=0)  # the formula

print(left_mask.long())
print(positions)
plots.code(row_positions, lines=("if attention_mask is None", "positions = (attention_mask"))


# %%
def word(token: int) -> str:
    names = {tokenizer.pad_id: "pad", tokenizer.eos_id: "EOS", 10: "\\n"}
    return names.get(token) or tokenizer.decode([token]).strip()


figure, axes = plots.plt.subplots(2, 1, figsize=(10, 5.2))
for axis, tokens, mask, side in (
    (axes[0], left, left_mask, "left"),
    (axes[1], right, right_mask, "right"),
):
    labels = [[word(token) for token in row] for row in tokens.tolist()]
    kinds = [["prompt" if real else "padding" for real in row] for row in mask.tolist()]
    draw_cells(axis, labels, kinds, (mask.cumsum(1) - 1).clamp(min=0).tolist())
    axis.set_title(f"padding on the {side}; below each word its position")

# %% [markdown]
# The property that must hold: **a row's logits do not depend on its padding.**
#
# > **Predict, then run.** Three ways to get the last logits of each row: right-padded without any
# > mask, left-padded with the mask, left-padded without it. Which rows of which way are wrong?

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
# Left-padded without the mask, every row that has padding is wrong, and no error message says so.
#
# **A row that may look at nothing.** The padding on the left has a trap of its own. Column 0 of a padded
# row sees only itself (causal mask), and itself is padding, so *all* its keys are forbidden. Its scores are
# then all minus infinity. A softmax first takes off the largest score, and minus infinity less minus
# infinity is NaN. Nobody reads that column, because it is padding. So does the NaN do any harm?

# %%
real_key = torch.tensor([False, True, True])  # one row of three columns, the first is padding
may_look = torch.ones(3, 3, dtype=torch.bool).tril() & real_key
scores = torch.zeros(3, 3)  # all keys fit alike
weights = scores.masked_fill(~may_look, float("-inf")).softmax(-1)
print("weights\n", weights)

hidden = weights @ torch.ones(3, 1)  # the first layer's result: one number for each column
of_next_layer = torch.tensor([[0.0, 0.5, 0.5]]) @ hidden  # the last column, one layer up
print("the last column of the next layer", of_next_layer.item())
assert weights[0].isnan().all() and not weights[1:].isnan().any()
assert of_next_layer.isnan()  # it gives column 0 the weight 0, and 0 times NaN is NaN

# %% [markdown]
# It does. The first layer keeps the NaN in its own column, but the second layer multiplies every column's
# result by a weight. The padding's weight is 0 there, and 0 times NaN is NaN, so the whole row is lost one
# layer later. The cure costs nothing: let each padding column look at **itself**. What it computes is still
# read by nobody, but it is a number. The library's last lines do that:

# %%
diagonal = torch.eye(3, dtype=torch.bool)
cured = scores.masked_fill(~(may_look | diagonal), float("-inf")).softmax(-1)
assert not cured.isnan().any() and torch.equal(cured[1:], weights[1:])  # real columns are the same

library = kernel_mask(real_key[None], 0, 3, torch.device("cpu"))
assert torch.equal(library[0, 0], may_look | diagonal)
plots.code(
    kernel_mask, lines=("mask = causal_mask(new, past + new, device) &", "return mask[:, None]")
)

# %% [markdown]
# (Some programs write a large negative number such as $-10^9$ instead of minus infinity. Then a forbidden
# row becomes an even average over all columns, which is finite and read by nobody. But float16 has no
# number below -65,504, so there it is minus infinity again.)
#
# ## 3. Where a response ends: the first EOS
#
# A sampler fills a rectangle. A row that has stopped still has columns left, and they hold
# something. A response is every token **up to and including** the first EOS. With $e_t = 1$ where
# token $t$ is an EOS:
#
# $$m_t = 1 \quad \mathrm{if} \quad \sum_{u < t} e_u = 0, \quad \mathrm{else} \ 0$$
#
# The EOS itself takes part: stopping is an action, and it can only be rewarded if it is scored.

# %%
E = tokenizer.eos_id
great, poor = tokenizer.encode(" great")[0], tokenizer.encode(" poor")[0]
sampled = torch.tensor([
    [great, poor, E, poor, E],  # stops at t = 2; whatever follows means nothing
    [great, poor, great, poor, great],  # never stops: cut off, all of it takes part
    [E, great, poor, poor, great],  # an empty answer is legal: its length is 1
])  # fmt: skip
e = (sampled == E).long()
before = e.cumsum(1) - e  # EOS tokens strictly before t
mask = before == 0

print("row 0        ", [word(token) for token in sampled[0].tolist()])
for name, numbers in (("e", e), ("cumsum(e)", e.cumsum(1)), ("cumsum(e) - e", before)):
    print(f"{name:14}", numbers[0].tolist())
print("mask          ", mask[0].long().tolist())

library_mask, has_eos = collate.first_eos_mask(sampled, E)
assert torch.equal(mask, library_mask) and has_eos.tolist() == [True, False, True]
assert mask.sum(1).tolist() == [3, 5, 1]  # the lengths

# %%
plots.code(collate.first_eos_mask, docstring=False)

# %% [markdown]
# ## 4. Why `ids != pad` is wrong
#
# A line that is easily written for GPT-2 is `mask = (ids != pad_id)`, with the padding set to the
# EOS because GPT-2 has no other special token. Here are two answers in that convention.

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
        shown = [word(t) if keep else "____" for t, keep in zip(tokens, row, strict=True)]
        print("  ", " ".join(shown))
assert (right_answer.sum(1) - by_comparison.sum(1)).tolist() == [1, 1]  # one EOS lost per row

# %% [markdown]
# An answer has about sixteen tokens on average. Losing one of them sounds harmless, but it is the
# only token that says "stop". Dropping it from the loss is the same as training on answers without
# it, so the damage can be measured:
#
# > **Predict, then run.** The same small model, the same 640 answers, 80 steps from random weights,
# > once with and once without their EOS. How long are the answers of the second model?

# %%
beheaded = [(prompt, response[:-1]) for prompt, response in examples]
log_probs = token_log_probs(model, finetuning.collate_examples(short, E))  # (2, T)
wrong_loss = -log_probs[by_comparison].mean()  # what `ids != pad` would train on
same = language_model_loss(model, finetuning.collate_examples([(p, r[:-1]) for p, r in short], E))
assert torch.allclose(wrong_loss, same)


# %%
def trained_on(answers: list[finetuning.Example]) -> GPT:
    model = GPT(shape).initialize(torch.Generator().manual_seed(0))
    config = finetuning.FinetuningConfig(lr=5e-3, warmup_steps=10, batch_size=32)
    finetuning.train(config, model, answers, [], MetricLog(80), eos_id=E)
    return model


asked = reviews.prompts("validation")[:128]
asked_ids = [tokenizer.encode(record.prompt) for record in asked]
params = SamplingParams(max_new_tokens=64)
samples = {}
for name, answers in (("with the EOS", examples), ("ids != pad", beheaded)):
    trained = trained_on(answers)
    generator = torch.Generator().manual_seed(0)
    samples[name] = generate(trained, asked_ids, params, generator, eos_id=E)

# %% tags=["hide-input"]
print("prompt:", asked[3].prompt)
for name, generation in samples.items():
    print(f"{name:13} ended by itself: {generation.has_eos.float().mean():.0%}")
    print("  ", tokenizer.decode(generation.token_lists()[3]), "\n")
holds(samples["with the EOS"].has_eos.float().mean() > 0.9, "with the EOS, nearly all answers end")
holds(samples["ids != pad"].has_eos.float().mean() < 0.1, "without the EOS, hardly any answer ends")

lengths = {name: generation.response_mask.sum(1) for name, generation in samples.items()}
axis = plots.histograms(
    lengths,
    bins=range(0, 68, 2),
    styles={"with the EOS": "good", "ids != pad": "bad"},
    xlabel="response length (tokens; the limit is 64)",
    ylabel="responses out of 128",
    title="A policy that never saw its EOS talks until it is cut off",
)

# %% [markdown]
# (The prompt asks for a chair, and both answers speak of a toaster: 80 steps teach how answers sound,
# but not yet to copy the thing from the prompt.)
#
# The remedy is not a better comparison of ids. A mask must come from whoever made the rows: the
# collator knows the lengths it padded, and the sampler knows the first EOS.
#
# ## 5. Which logit scores which token
#
# Column $j$ of the logits predicts token $j + 1$. In this project a row is stored as [prompt,
# response, padding] from column 0. With a prompt of $p$ tokens, response token $t$ is at column
# $p + t$ and is scored by column $p - 1 + t$. The first response token is scored by the **last
# prompt token**. Since $p$ differs from row to row, the columns are gathered; everything after that
# has the shape $(N, T)$, response tokens only.

# %%
pair = [("Review it.\n", "It is great."), ("Tell Leo about it.\n", "Hello Leo.")]
batch = collate.collate_responses(
    [tokenizer.encode(prompt) for prompt, _ in pair],
    [[*tokenizer.encode(response), E] for _, response in pair],
    E,
)
t = torch.arange(batch.response_mask.shape[1])
stands = batch.prompt_lengths[:, None] + t  # p + t
scores = batch.prompt_lengths[:, None] - 1 + t  # p - 1 + t
print("prompt lengths", batch.prompt_lengths.tolist())
print("token t stands at column", stands.tolist(), "and is scored by column", scores.tolist())
real = batch.response_mask
assert torch.equal(stands[real], batch.response_columns[real])
assert torch.equal(scores[real], batch.predicting_columns[real])

# %%
ends = (batch.prompt_lengths + batch.lengths).tolist()
labels, kinds = [], []
for row, p, end in zip(batch.tokens.tolist(), batch.prompt_lengths.tolist(), ends, strict=True):
    labels.append([word(token) if c < end else "pad" for c, token in enumerate(row)])
    kinds.append(
        ["prompt" if c < p else "response" if c < end else "padding" for c in range(len(row))]
    )
figure, axis = plots.panels(1, width=10, height=3.6)
axis.set_title(
    "white: prompt, blue: response. An arrow leads from the logits to the token they score"
)
draw_cells(axis, labels, kinds)
draw_arrows(axis, batch, plots.COLOURS["exact"])

# %% [markdown]
# ## 6. Log-probabilities of a response
#
# $$\log \pi(y_t \mid x, y_{<t}) = \frac{z_{y_t}}{\tau} - \log \sum_v \exp\left(
# \frac{z_v}{\tau}\right), \qquad z = \mathrm{logits}_{p - 1 + t}$$
#
# Every algorithm of this project is made of this one quantity. The losses, the ratios of page 04 and
# the KL divergences of page 05 are all computed from it. The temperature $\tau$ must be the sampler's
# (here 1). For one row it is four lines: log-softmax, shift by one, gather.
#
# From here on we use a model that has read the whole world: the **kept base**, a GPT-2 of 0.9 million
# weights that the course trained once ([course/saved_models.py](course/saved_models.py)).

# %%
policy, tokenizer = base()
row, p, length = batch.tokens[0], int(batch.prompt_lengths[0]), int(batch.lengths[0])

with torch.no_grad():
    logits = policy(row[None])[0]  # (S, V)
    log_p = logits.log_softmax(-1)  # (S, V)
    predicting = log_p[p - 1 : p - 1 + length]  # (L, V): one column before each response token
    chosen = predicting.gather(1, row[p : p + length, None])[:, 0]  # (L,)

    library = token_log_probs(policy, batch)  # (N, T), all rows, 0 at padding
print("by hand", chosen, "\nlibrary", library[0, :length])
torch.testing.assert_close(library[0, :length], chosen)

# %% [markdown]
# The library does the same for ragged batches: [gpt/log_probs.py](../gpt/log_probs.py). Elsewhere you meet
# the same mask as a number. PyTorch's `cross_entropy` leaves out every label that is -100, so programs
# write -100 over the prompt and the padding. And they report the **perplexity**, which is $e$ to the power
# of the mean of $-\log p$ over the tokens that are left:

# %%
labels = row[1:].clone()
labels[: p - 1] = labels[p - 1 + length :] = -100  # the prompt, and the padding
mean_surprise = torch.nn.functional.cross_entropy(logits[:-1], labels)
torch.testing.assert_close(mean_surprise, -chosen.mean())
print(f"mean surprise {mean_surprise:.2f} nats, perplexity {mean_surprise.exp():.2f}")

# %% [markdown]
# ### Surprise, in colour
#
# We let the model answer four prompts and look at its surprise at its own words, $-\log p$ in
# **nats** (natural logarithm; 0.69 nats is a coin flip). White tokens were certain, blue ones were a
# choice.
#
# > **Predict, then look.** Which words are expensive? The greeting? The name of the thing? The full
# > stop? The EOS?

# %%
generation = generate(
    policy, asked_ids[:4], SamplingParams(max_new_tokens=48), torch.Generator().manual_seed(1), eos_id=E
)  # fmt: skip
batch = collate.join_responses(
    asked_ids[:4], generation.response_tokens, generation.response_mask, generation.has_eos
)
with torch.no_grad():
    log_probs = token_log_probs(policy, batch)  # (4, T)

texts = [
    ["<EOS>" if token == E else tokenizer.decode([token]) for token in tokens[:length].tolist()]
    for tokens, length in zip(batch.response_tokens, batch.lengths.tolist(), strict=True)
]
show_tokens(texts, {"surprise": -log_probs}, prompts=[record.prompt for record in asked[:4]])

# %%
ranked = sorted(
    ((-log_probs[i, t]).item(), token) for i, row in enumerate(texts) for t, token in enumerate(row)
)
print("cheapest: ", "  ".join(f"{token.strip()} {cost:.2f}" for cost, token in ranked[:6]))
print("expensive:", "  ".join(f"{token.strip()} {cost:.2f}" for cost, token in ranked[-6:]))
total = -(log_probs * batch.response_mask).sum(1)
print("a whole response costs", [round(x, 1) for x in total.tolist()], "nats")

# %% [markdown]
# Grammar is cheap, but choices are expensive. A full stop costs nothing. The first word and every
# judgement cost a lot: there the policy has something to decide, so that is where reinforcement
# learning will push. An EOS costs next to nothing after a closing sentence, and a lot in the middle of
# a sentence.
#
# **The sampler and the scorer must agree.** The sampler worked with left padding, a cache and one
# column at a time; the scorer with right padding and all columns at once. Later pages divide the
# probability of a token now by its probability when it was sampled. Before any training step this ratio
# $\pi / \pi_{old}$ must be 1, so the two must agree. The usual mistake reads the logits one column too
# late, and is far off:

# %%
difference = (log_probs - generation.log_probs).abs()[batch.response_mask].max()
print(f"largest difference between sampler and scorer {difference:.6f}")
assert difference < 1e-4

with torch.no_grad():
    p, length = int(batch.prompt_lengths[0]), int(batch.lengths[0])
    late = policy(batch.tokens[:1])[0].log_softmax(-1)[p : p + length]  # its own column: too late
    wrong = late.gather(1, batch.tokens[0, p : p + length, None])[:, 0]
print(
    f"mean log-prob of row 0: {log_probs[0, :length].mean():.2f}, one column off {wrong.mean():.2f}"
)
holds(
    wrong.mean() < 3 * log_probs[0, :length].mean(),
    "one column late, the log-probs are far too low",
)

# %% [markdown]
# **Temperature and top-p break it, too**, where the sampler uses them and the scorer does not. Three words
# with the probabilities 0.5, 0.3 and 0.2:

# %%
probs = torch.tensor([0.5, 0.3, 0.2])
drawn_with = {
    "temperature 0.7": (probs.log() / 0.7).softmax(0),
    "top-p 0.7": torch.where(probs > 0.2, probs, 0.0) / 0.8,
}
for name, q in drawn_with.items():
    print(f"{name:15} draws with", q, "ratio of the scorer to that", probs / q)
cool = probs / drawn_with["temperature 0.7"]
holds(cool[2] > 1.2, "at temperature 0.7 a ratio lies outside of the clip range before any update")

# %% [markdown]
# A temperature in the sampler alone gives ratios from 0.88 to 1.30. The clip of page 04 stops the push on a
# good token whose ratio is above 1.2, so here it would act before the first update. The cure is to divide
# the scorer's logits by the same $\tau$. Under top-p the words that are left share the probability of the
# third, so their ratio is 0.8, and the third is never drawn: no weight brings it back. So train on samples
# without top-p.

# %% [markdown]
# ## 7. Several texts in one row: packing
#
# *So far a row held one text. Short texts waste most of a rectangle, so trainers put several into one row.*
#
# Each text must then be treated as if it were alone, and three things have to know where one ends:
# positions start anew, attention stays inside of a text, and nothing is learned across the border.
#
# > **Predict, then run.** Two answers in one row, and only the causal mask. Are the logits of the second
# > text those that it has alone?

# %%
one, two = (
    [*tokenizer.encode(prompt), *tokenizer.encode(answer), E]
    for prompt, answer in (("Review the red kettle for Anna.\n", "It is great."), pair[0])
)
packed = torch.tensor([[*one, *two]])
with torch.no_grad():
    second_alone = policy(torch.tensor([two]))[0]
    behind_another = policy(packed)[0, len(one) :]
off = (behind_another - second_alone).abs().max()
print(f"with the causal mask alone the second text's logits are off by {off:.1f}")
holds(off > 1, "a text that is packed without blocks reads its neighbour")

# The same for texts of three and of two tokens, small enough to print.
text = torch.tensor([0, 0, 0, 1, 1])  # which text a token belongs to
same_text = text[:, None] == text[None, :]
may_look = same_text & torch.ones(5, 5, dtype=torch.bool).tril()
positions = torch.arange(5) - torch.tensor([0, 3])[text]  # less where its text begins
targets = torch.cat([text[1:] == text[:-1], torch.tensor([False])])  # is the next token its own?
print("may look at\n", may_look.long())
print("positions", positions.tolist(), " columns that are trained", targets.long().tolist())
assert positions.tolist() == [0, 1, 2, 0, 1] and targets.long().tolist() == [1, 1, 0, 1, 0]

# %% [markdown]
# The blocks on the diagonal are the cure; page [24](24_from_these_pieces_to_a_recipe.ipynb), section 6,
# checks it on a head of attention. Column 2, the end of the first text, is not trained: its next token is
# the beginning of a stranger. And the loss needs a decision that padding hides: is it divided by tokens
# or by texts ([26](26_what_a_loss_is_divided_by.ipynb))? This repository pads and does not pack.
#
# **The token that comes twice.** Llama and others open every text with a special token, BOS. A chat
# template often writes it, and then the tokenizer adds another one. Nothing fails, but the model reads a
# start that it has never seen:

# %%
from_template = ["<s>", "[user]", "Hi", "[model]"]  # the template has written its own <s>
ids = ["<s>", *from_template]  # the tokenizer adds one, as it does to every text
print(ids)

# %% [markdown]
# Its sister is the forgotten opening: if the prompt ends without `[model]` when answers are sampled, the
# policy has to write that mark itself, or goes on as the user. Print the first ten ids of a training row
# and of a prompt for sampling once, and look at them.
#
# **A token that is added.** GPT-2 has no padding token, so some programs add one and resize the embedding.
# The new row has a logit $z_{new}$ at every position, and the softmax gives it a share. Every old token
# then loses the same $\log (1 + e^{z_{new}} / \sum_v e^{z_v})$ nats. A new row is often near 0, where the
# trained logits may lie anywhere, because adding a constant to all of them changes no probability:

# %%
old = torch.tensor([2.0, 1.0, 0.0, -1.0])
for shift in (0.0, -30.0):
    before = (old + shift).log_softmax(0)
    after = torch.cat([old + shift, torch.zeros(1)]).log_softmax(0)
    print(f"shift {shift:5.1f}: each old token loses {(before - after[:4])[0]:5.2f} nats")
    holds(float((before - after[:4]).std()) < 1e-4, "all old tokens lose the same")

# %% [markdown]
# So a reference that was not resized alike is another distribution before the first update, and the KL
# against it is false by that much at every token. Resize first and copy the reference afterwards, or never
# let the new logit into the softmax. This repository needs neither, since its masks come from lengths.

# %% [markdown]
# ## Where this lives
#
# - all padding and every mask: [data/collate.py](../data/collate.py)
# - scoring: [gpt/log_probs.py](../gpt/log_probs.py); sampling: [gpt/generate.py](../gpt/generate.py)
# - the tokenizer: [gpt/tokenizer.py](../gpt/tokenizer.py). Byte-pair encoding (Sennrich et al. 2016,
#   [arXiv:1508.07909](https://arxiv.org/abs/1508.07909), Algorithm 1) starts with bytes and makes the most
#   frequent pair of neighbours a token, again and again. Digits stay single, as in Llama
#   ([arXiv:2302.13971](https://arxiv.org/abs/2302.13971), section 2.1), so that arithmetic is learned once.
#
# ## Exercises
#
# Fill in a function and run the cell. `check` tries it on numbers that you can verify by hand, then
# against the library, and says in words what it finds.
#
# **1. Where a response ends.**


# %%
def my_response_mask(tokens, eos_id):
    """tokens (N, T) -> bool (N, T), True up to and including the first EOS of each row."""
    ...  # your code


check("response_mask", my_response_mask)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_response_mask(tokens, eos_id):
#     is_eos = (tokens == eos_id).long()
#     return is_eos.cumsum(1) - is_eos == 0  # no EOS strictly before
# ```
#
# </details>
#
# **2. What is wrong with this row?** One row of a batch of GPT-2's kind: padded on the left, an answer
# with its EOS, padding again. EOS and padding have the same id, 0. Of the lines a to d one is wrong, or
# none (e). The last line says for each token of the answer which column's logits score it.

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("wrong_line", MINE)

# %%
check_answer("wrong_line", ..., MINE)

# %% [markdown]
# **3. Log-probabilities of a batch.** The four lines of section 6, for rows with prompts of different
# lengths. (Start with a loop over rows, if you like.)


# %%
def my_log_probs(logits, tokens, prompt_lengths, response_mask):
    """logits (N, S, V), tokens (N, S), prompt_lengths (N,), response_mask (N, T) -> (N, T)."""
    ...  # your code


check("token_log_probs", my_log_probs)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_log_probs(logits, tokens, prompt_lengths, response_mask):
#     log_p = logits.log_softmax(-1)
#     result = torch.zeros(response_mask.shape)
#     for i, p in enumerate(prompt_lengths.tolist()):
#         length = int(response_mask[i].sum())
#         targets = tokens[i, p : p + length, None]
#         result[i, :length] = log_p[i, p - 1 : p - 1 + length].gather(1, targets)[:, 0]
#     return result
# ```
#
# </details>
#
# **To think about.** Somebody computes the response mask of GPT-2 rows as
# `(ids != 50256) | (ids.roll(1, 1) != 50256)`, to keep the first EOS. Give a prompt and a response
# for which this fails.
#
# <details>
# <summary>Answer</summary>
#
# The rule drops an EOS whose left neighbour is also an EOS. Take a prompt that ends with
# `<|endoftext|>` (GPT-2's unconditional samples begin with it) and an empty answer, just the EOS.
# The answer loses its only token. Also, `roll` brings the last column round to the first. Ids
# cannot distinguish an EOS that was written from one that fills the row, so use the lengths.
#
# </details>
#
# ## To remember
#
# - The EOS belongs to the response, and a mask comes from lengths, never from a comparison of ids.
# - Positions count real tokens, and a row's logits must depend neither on its padding nor on a text
#   beside it.
# - Response token $t$ stands at column $p + t$ and is scored by column $p - 1 + t$; before the first
#   update sampler and scorer must agree on it.
#
# Next: [03_pretraining_and_sft](03_pretraining_and_sft.ipynb). Where does a policy get its first
# words from?
