# %% [markdown]
# # 1. GPT-2 from scratch
#
# **Why start here.** A reward model is a GPT with another head. A policy is a GPT that is asked for
# probabilities, a reference is a frozen copy of it, a value model is one more copy. Whoever knows
# what goes into this one network and what comes out can read everything that follows.
#
# | section | idea | source | code |
# | --- | --- | --- | --- |
# | 1 | attention on three tokens | Vaswani et al. 2017, Eq. 1 | `plain_attention` |
# | 2 | the causal mask | section 3.2.3 there | `causal_mask` |
# | 3 | positions | Radford et al. 2019 | `GPT.hidden` |
# | 4 | the block | Xiong et al. 2020 | `Block`, `Attention`, `MLP` |
# | 5 | the whole model and its 124,439,808 weights | Radford et al. 2019 | `GPT`, `GPTConfig` |
# | 6 | initialisation | Radford et al. 2019, section 2.3 | `GPT.initialize` |
# | 7 | logits, and which token they are about | | `GPT.forward` |
# | 8 | generation with a cache of keys and values | | `KVCache` |
# | 9 | temperature and top-p | Holtzman et al. 2020 | `truncate_logits`, `choose_tokens` |
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. No GPU and no download is needed: this page takes about ten seconds.

# %%
import inspect
import math
import time

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

try:
    from gpt import generate as generation
    from gpt.model import (
        GPT,
        MLP,
        PRESETS,
        Attention,
        Block,
        GPTConfig,
        KVCache,
        causal_mask,
        plain_attention,
    )
    from gpt.tokenizer import load_tokenizer
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
torch.set_printoptions(precision=3, sci_mode=False, linewidth=100)

# %% [markdown]
# ## 1. Attention, by hand, on three tokens
#
# A token must be able to use what stands before it: "it" means the kettle of three words ago.
# Attention lets every position ask a **query** $q$, compare it with the **key** $k$ of every
# position, and take the average of their **values** $v$, weighted by how well query and key agree:
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{d}}\right) V$$
#
# This is Eq. 1 of Vaswani et al. 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762). GPT-2
# adds a mask: position $s$ may look at positions $j \le s$ only. Here is the library's readable
# version. The model itself calls PyTorch's fused kernel, which gives the same numbers without ever
# storing the weights.

# %%
print(inspect.getsource(plain_attention))

# %% [markdown]
# Three tokens, two numbers each. The third query, $(0, 1)$, agrees most with the second key.

# %%
query = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
key = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
value = torch.tensor([[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]])

mask = causal_mask(3, 3, torch.device("cpu"))
scores = query @ key.T / math.sqrt(2)
weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)

print("scores (row = who asks, column = who is asked)", scores, sep="\n")
print("\nmasked and normalised: every row is a probability", weights, sep="\n")
print("\nthe weighted averages of the values", weights @ value, sep="\n")

# %% [markdown]
# The last row once more, with a pocket calculator: the scores $0$, $2/\sqrt 2$ and $1/\sqrt 2$
# become $e^0$, $e^{1.414}$ and $e^{0.707}$, divided by their sum. Then four properties that must
# hold.

# %%
exponentials = [math.exp(score / math.sqrt(2)) for score in (0, 2, 1)]
by_hand = [e / sum(exponentials) for e in exponentials]
print("by hand:", [round(weight, 3) for weight in by_hand])

plain = plain_attention(query[None, None], key[None, None], value[None, None], mask)[0, 0]
fused = F.scaled_dot_product_attention(query, key, value, is_causal=True)
assert torch.allclose(weights[2], torch.tensor(by_hand))  # the calculator agrees
assert torch.allclose(weights.sum(-1), torch.ones(3))  # a probability per row
assert torch.equal(plain[0], value[0])  # the first token sees only itself
assert torch.allclose(plain, fused, atol=1e-6)  # the kernel computes the same

# %% [markdown]
# **Why $\sqrt d$?** The score of two random vectors with entries of variance 1 has variance $d$.
# Without the division a softmax over wide vectors puts nearly everything on one token, and its
# gradient vanishes.

# %%
generator = torch.Generator().manual_seed(0)
print("   d   largest of 8 weights: with 1/sqrt(d), without")
for d in (4, 64, 1024):
    q, k = (torch.randn(500, n, d, generator=generator) for n in (1, 8))
    raw = (q @ k.transpose(1, 2)).squeeze(1)  # (500, 8)
    with_root, without = ((raw / c).softmax(-1).amax(-1).mean() for c in (math.sqrt(d), 1.0))
    print(f"{d:4}   {with_root:.2f}   {without:.2f}")

# %% [markdown]
# ## 2. The causal mask, as a picture
#
# **Why.** The model is trained to predict the next token at every position of a text at once. If a
# position could see the tokens behind it, the answer would stand in the question. The mask also
# makes sampling consistent with training: while a text is being written, nothing behind it exists.
#
# We take a small GPT-2 with random weights and a prompt of the project's [reviews
# world](03_pretraining_and_sft.ipynb). The right picture shows what its first attention head does:
# without training, nearly the same weight on everything it may see, $1, \frac12, \frac13, \dots$

# %%
tokenizer = load_tokenizer("glassbox")
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=512, n_layer=4, n_head=4, n_embd=128)
model = GPT(shape).initialize(torch.Generator().manual_seed(0)).eval()

ids = tokenizer.encode("Review the red kettle for Anna.\n")
words = [tokenizer.decode([i]).replace("\n", "\\n") for i in ids]
tokens = torch.tensor([ids])  # (N=1, S=8)
print(list(zip(ids, words, strict=True)))

# %%
S, H, d = len(ids), shape.n_head, shape.n_embd // shape.n_head
may_see = causal_mask(S, S, torch.device("cpu"))
with torch.no_grad():
    x = model.h[0].ln_1(model.wte(tokens) + model.wpe(torch.arange(S)))  # (1, S, D)
    q, k, _ = model.h[0].attn.c_attn(x).view(1, S, 3, H, d).permute(2, 0, 3, 1, 4)
    # The values are replaced by the identity, so attention returns its own weights.
    head = plain_attention(q, k, torch.eye(S).expand(1, H, S, S), may_see)[0, 0]

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
pictures = [(may_see.float(), "the mask: True = may be attended to"), (head, "weights of one head")]
for axis, (picture, title) in zip(axes, pictures, strict=True):
    image = axis.imshow(picture, cmap="Blues", vmin=0, vmax=1)
    axis.set_xticks(range(S), words, rotation=45, ha="right")
    axis.set_yticks(range(S), words)
    axis.set(title=title, xlabel="token that is asked (key)", ylabel="token that asks (query)")
for row in range(S):
    for column in range(row + 1):
        color = "white" if head[row, column] > 0.6 else "black"
        number = f"{head[row, column]:.2f}"
        axes[1].text(column, row, number, ha="center", va="center", size=8, color=color)
figure.colorbar(image, ax=axes[1], label="attention weight")
plt.show()

# %% [markdown]
# The property that everything rests on: **changing a token changes nothing before it**. The logits
# of columns 0 to 4 stay the same when the sixth token does not.

# %%
changed = tokens.clone()
changed[0, 5] = tokenizer.encode(" lamp")[0]
with torch.no_grad():
    difference = (model(tokens) - model(changed)).abs().amax(-1)[0]  # (S,)

for column, (word, largest) in enumerate(zip(words, difference, strict=True)):
    print(f"column {column}  {word:8}  largest change of a logit {largest:.6f}")
assert torch.allclose(difference[:5], torch.zeros(5), atol=1e-6)
assert (difference[5:] > 1e-4).all()

# %% [markdown]
# ## 3. Positions
#
# **Why.** Attention is an average over a set: it does not know what came first. GPT-2 therefore
# learns one vector per position and adds it to the token's vector,
# $x_s = \mathrm{wte}[\mathrm{token}_s] + \mathrm{wpe}[s]$ (Radford et al. 2019).
#
# The experiment: shuffle all tokens but the last. In a model of one layer whose `wpe` is zero the
# last column does not notice. (One layer: in a deeper model the mask itself tells a column how much
# it has seen.)

# %%
one_layer = GPT(GPTConfig(tokenizer.n_vocab, 64, n_layer=1, n_head=4, n_embd=64))
one_layer.initialize(torch.Generator().manual_seed(1)).eval()
shuffled = tokens[:, [4, 1, 6, 0, 5, 2, 3, 7]]


@torch.no_grad()
def change_of_last_column() -> float:
    return float((one_layer(tokens) - one_layer(shuffled))[:, -1].abs().max())


with_positions = change_of_last_column()
one_layer.wpe.weight.data.zero_()
without_positions = change_of_last_column()
print(f"largest change of a logit: {with_positions:.4f} with wpe, {without_positions:.7f} without")
assert with_positions > 1e-3 and without_positions < 1e-5

# %% [markdown]
# ## 4. The block
#
# One block is two steps, each added to the stream of vectors that runs through the model:
#
# $$x \leftarrow x + \mathrm{Attention}(\mathrm{LN}(x)), \qquad
# x \leftarrow x + \mathrm{MLP}(\mathrm{LN}(x))$$
#
# LayerNorm comes *before* each step ("pre-LN", Xiong et al. 2020,
# [arXiv:2002.04745](https://arxiv.org/abs/2002.04745)), so the sum itself is never normalised and
# the gradient has a straight way back to every layer. (The `cache` in the code is that of section
# 8; until then it is `None`.)

# %%
for part in (Attention, MLP, Block):
    print(inspect.getsource(part))

# %% [markdown]
# Two small parts deserve their formulas. LayerNorm (Ba et al. 2016,
# [arXiv:1607.06450](https://arxiv.org/abs/1607.06450)) normalises each token's vector by its own
# mean and variance; GELU (Hendrycks & Gimpel 2016,
# [arXiv:1606.08415](https://arxiv.org/abs/1606.08415)) is $x \Phi(x)$, and GPT-2 was trained with
# its approximation
#
# $$\mathrm{GELU}(x) \approx \frac{x}{2} \left( 1 + \tanh\left[ \sqrt{2/\pi}
# \left( x + 0.044715 x^3 \right) \right] \right)$$
#
# The two forms differ by less than 0.0005: too little to see, enough to spoil an exact comparison
# with OpenAI's weights.

# %%
vector = torch.randn(1, 128, generator=generator)
layer_norm = model.h[0].ln_1
by_hand = (vector - vector.mean()) / (vector.var(correction=0) + 1e-5).sqrt()
assert torch.allclose(layer_norm(vector), by_hand * layer_norm.weight + layer_norm.bias, atol=1e-5)

x = torch.linspace(-4, 4, 801)
tanh_form = x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
assert torch.allclose(F.gelu(x, approximate="tanh"), tanh_form, atol=1e-6)
difference = (F.gelu(x) - tanh_form).abs().max()
print(f"largest difference between the exact and the tanh GELU: {difference:.6f}")
assert 1e-4 < difference < 5e-4

# %% [markdown]
# ## 5. The whole model, and where its weights are
#
# Embed, run the blocks, normalise once more, compare with every token's embedding. The last step is
# the **tied head**: the matrix that turned tokens into vectors turns vectors into logits (Press &
# Wolf 2017, [arXiv:1608.05859](https://arxiv.org/abs/1608.05859)).

# %%
print(inspect.getsource(GPT.hidden))
print(inspect.getsource(GPT.logits))
print(inspect.getsource(GPT.forward))

# %% [markdown]
# **The famous number.** With vocabulary $V$, context $C$, $L$ layers and width $D$:
#
# $$\underbrace{VD}_{\mathrm{tokens}} + \underbrace{CD}_{\mathrm{positions}} + L \left[
# \underbrace{(3D^2 + 3D) + (D^2 + D)}_{\mathrm{attention}}
# + \underbrace{(4D^2 + 4D) + (4D^2 + D)}_{\mathrm{MLP}}
# + \underbrace{4D}_{\mathrm{norms}} \right] + \underbrace{2D}_{\mathrm{norm}}
# = VD + CD + L (12 D^2 + 13 D) + 2D$$
#
# On PyTorch's "meta" device tensors have a shape and no memory, so even the 1.5-billion-weight
# model costs nothing to build.


# %%
def count_by_formula(c: GPTConfig) -> int:
    V, C, L, D = c.vocab_size, c.context, c.n_layer, c.n_embd
    return V * D + C * D + L * (12 * D * D + 13 * D) + 2 * D


for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
    with torch.device("meta"):
        large = GPT(PRESETS[name])
    assert large.parameter_count() == count_by_formula(PRESETS[name])
    print(f"{name:12} {large.parameter_count():13,} weights")

assert count_by_formula(GPTConfig()) == 124_439_808
print(f"an untied head would add {50257 * 768:,} to the smallest")

# %%
figure, axis = plt.subplots(figsize=(9, 2.9), layout="constrained")
names = ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"]
configs = [PRESETS[name] for name in names]
parts = {
    "token embedding = head": [c.vocab_size * c.n_embd for c in configs],
    "positions": [c.context * c.n_embd for c in configs],
    "attention": [c.n_layer * (4 * c.n_embd**2 + 4 * c.n_embd) for c in configs],
    "MLP": [c.n_layer * (8 * c.n_embd**2 + 5 * c.n_embd) for c in configs],
}
left = torch.zeros(4)
colors = dict(zip(parts, ("tab:orange", "black", "tab:blue", "tab:green"), strict=True))
total = torch.tensor([count_by_formula(config) for config in configs])
for label, counts in parts.items():
    shares = torch.tensor(counts) / total
    axis.barh(names, shares * 100, left=left * 100, label=label, color=colors[label])
    left += shares
axis.set(xlabel="share of the weights (%)", ylabel="model", xlim=(0, 100))
axis.set_title("Nearly a third of the smallest model is a dictionary")
axis.invert_yaxis()
axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=4, frameon=False)
plt.show()

# %% [markdown]
# The tied head in one line: the logit of token $v$ is the dot product of the last hidden state with
# $v$'s embedding. This is also why the library passes hidden states around and makes logits only where
# they are needed: 128 numbers stand for 624 here, 768 for 50,257 in GPT-2.

# %%
with torch.no_grad():
    hidden = model.hidden(tokens)  # (1, S, D)
    logits = model.logits(hidden)  # (1, S, V)

print("hidden", tuple(hidden.shape), "-> logits", tuple(logits.shape))
v = tokenizer.encode(" kettle")[0]
assert torch.allclose(logits[0, -1, v], hidden[0, -1] @ model.wte.weight[v], atol=1e-6)
assert not any("lm_head" in name for name, _ in model.named_parameters())

# %% [markdown]
# ## 6. Initialisation
#
# Every block adds two vectors to the stream, so with depth the stream grows. GPT-2 shrinks the
# matrices that write into it by $1/\sqrt{2L}$ ("a factor of $1/\sqrt N$ where $N$ is the number of
# residual layers", Radford et al. 2019, section 2.3), so that $2L$ independent additions have the
# variance of one:
#
# $$\sigma_{\mathrm{proj}} = \frac{0.02}{\sqrt{2L}}, \qquad \sigma_{\mathrm{other}} = 0.02,
# \qquad \sigma_{\mathrm{wpe}} = 0.01$$

# %%
print(inspect.getsource(GPT.initialize))

# %%
deep = GPT(GPTConfig(tokenizer.n_vocab, 64, n_layer=32, n_head=4, n_embd=128))


@torch.no_grad()
def stream_sizes() -> list[float]:
    """Root mean square of the stream before the first block and after each one."""
    x = deep.wte(tokens) + deep.wpe(torch.arange(S))
    sizes = [float(x.square().mean().sqrt())]
    for layer, block in enumerate(deep.h):
        x = block(x, None, None, layer)
        sizes.append(float(x.square().mean().sqrt()))
    return sizes


deep.initialize(torch.Generator().manual_seed(0))
scaled = stream_sizes()
for block in deep.h:
    for projection in (block.attn.c_proj, block.mlp.c_proj):
        projection.weight.data *= math.sqrt(2 * 32)  # undo GPT-2's factor
unscaled = stream_sizes()

# %%
figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
axis.plot(unscaled, color="tab:red", label="all matrices with 0.02")
axis.plot(scaled, color="tab:blue", label=r"c_proj with $0.02 / \sqrt{2L}$, as GPT-2")
axis.set(xlabel="blocks passed", ylabel="root mean square of the stream", ylim=(0, None))
axis.set_title("What 32 fresh blocks add to the stream")
axis.legend()
plt.show()

growth = [(a[-1] ** 2 - a[0] ** 2) ** 0.5 for a in (unscaled, scaled)]
print(
    f"what was added, unscaled / scaled: {growth[0] / growth[1]:.2f} (independent: sqrt(2 x 32) = 8)"
)
assert 5 < growth[0] / growth[1] < 12

# %% [markdown]
# ## 7. Logits, and which token they are about
#
# Column $j$ of the logits is the model's guess at token $j + 1$. So the inputs are all tokens but
# the last, the targets all but the first, and the loss is the mean surprise
#
# $$\mathcal{L} = -\frac{1}{S - 1} \sum_{j=0}^{S-2} \log p(x_{j+1} \mid x_0 \dots x_j), \qquad
# p(\cdot \mid x_0 \dots x_j) = \mathrm{softmax}(\mathrm{logits}_j)$$
#
# A fresh model knows nothing: its loss is that of a uniform guess, $\log V$.

# %%
log_p = logits.log_softmax(-1)[0, :-1]  # (S - 1, V): column j
targets = tokens[0, 1:]  # (S - 1,): token j + 1
surprise = -log_p[torch.arange(S - 1), targets]

print("column  read so far ends with  predicts   -log p (nats)")
for column in range(S - 1):
    print(f"{column:6}  {words[column]:21}  {words[column + 1]:9}  {surprise[column]:.3f}")
print(f"mean {surprise.mean():.3f}, log V = {math.log(tokenizer.n_vocab):.3f}")
assert torch.allclose(surprise.mean(), F.cross_entropy(logits[0, :-1], targets))
assert abs(surprise.mean() - math.log(tokenizer.n_vocab)) < 0.3

# %% [markdown]
# The next notebook, [02_tokens_padding_masks](02_tokens_padding_masks.ipynb), does the same for a
# batch of prompts and responses with padding, where most mistakes are made.
#
# ## 8. Generation with a cache of keys and values
#
# **Why.** To write token $S + 1$ one may run the model on all $S$ tokens again. But under a causal
# mask the keys and values of the past never change, so they are kept, and only the newest token
# goes through the blocks. The matrix products cost then the same at every position; only the
# comparison with the past grows.

# %%
print(inspect.getsource(KVCache.extend))


# %%
@torch.no_grad()
def likeliest_without_cache(prompt: list[int], steps: int) -> list[int]:
    """The obvious loop: read everything, append the likeliest token, read everything again."""
    row = torch.tensor([prompt])
    for _ in range(steps):
        row = torch.cat([row, model(row)[:, -1:].argmax(-1)], 1)
    return row[0, len(prompt) :].tolist()


greedy = generation.SamplingParams(greedy=True, max_new_tokens=40)
cached = generation.generate(model, [ids], greedy, eos_id=-1)  # -1: no token ends the text
assert cached.token_lists()[0] == likeliest_without_cache(ids, 40)
print("40 tokens, with and without cache: the same")

# %% [markdown]
# The logits agree too, not only their maximum. Then the clock: time for one more token behind $S$
# tokens, in seconds of the processor, so that it does not count what else the machine is doing. (The
# model has random weights; speed does not depend on what it knows.)

# %%
with torch.no_grad():
    cache = model.new_cache(rows=1, columns=S)
    pieces = [model.logits(model.hidden(tokens[:, i : i + 1], cache=cache)) for i in range(S)]
assert torch.allclose(torch.cat(pieces, 1), logits, atol=1e-5)


@torch.no_grad()
def milliseconds(length: int, use_cache: bool) -> float:
    """One more token behind `length - 1` others, mean of many tries."""
    tries = 200 if use_cache else 20
    row = torch.zeros(1, length, dtype=torch.long)
    cache = model.new_cache(1, length)
    model.hidden(row[:, :-1], cache=cache)
    begin = time.process_time()
    for _ in range(tries):
        cache.length = length - 1  # forget the token of the last try
        model.hidden(row[:, -1:], cache=cache) if use_cache else model.hidden(row)
    return 1000 * (time.process_time() - begin) / tries


# %%
lengths = [16, 64, 128, 192, 256, 320, 384, 448, 512]
with_cache, without = ([milliseconds(n, use) for n in lengths] for use in (True, False))

figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
axis.plot(lengths, without, "o-", color="tab:red", label="everything again")
axis.plot(lengths, with_cache, "o-", color="tab:blue", label="with the cache")
axis.set(xlabel="tokens so far", ylabel="time for one more token (ms)", yscale="log")
axis.yaxis.set_major_formatter("{x:g}")
factor = without[-1] / with_cache[-1]
axis.set_title(f"4 layers of width 128, one CPU thread: at 512 tokens {factor:.0f} times faster")
axis.legend()
plt.show()
assert with_cache[-1] < without[-1]

# %% [markdown]
# ## 9. From logits to a token: temperature and top-p
#
# **Temperature** $\tau$ divides the logits, and **top-p** keeps the smallest set of tokens that has
# at least the probability $p$, scaled up to a sum of 1 (Holtzman et al. 2020,
# [arXiv:1904.09751](https://arxiv.org/abs/1904.09751), section 3):
#
# $$p_\tau(v) = \frac{\exp(z_v / \tau)}{\sum_u \exp(z_u / \tau)}, \qquad
# V^{(p)} = \arg\min_{W} |W| \quad \mathrm{with} \quad \sum_{v \in W} p_\tau(v) \ge p$$

# %%
print(inspect.getsource(generation.truncate_logits))

# %%
candidates = ["great", "lovely", "solid", "okay", "poor", "dull", "foul", "purple"]
z = torch.tensor([[3.0, 2.6, 2.2, 1.8, 1.0, 0.6, -0.5, -2.0]])  # (1, 8) logits of the next word

figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained", sharey=True)
for tau, color in ((0.5, "tab:blue"), (1.0, "black"), (2.0, "tab:orange")):
    axes[0].plot(candidates, (z / tau).softmax(-1)[0], "o-", color=color, label=rf"$\tau$ = {tau}")
axes[0].set(title="temperature", ylabel="probability", xlabel="next word")
axes[0].legend()
for axis, top_p in zip(axes[1:], (0.9, 0.6), strict=True):
    kept = generation.truncate_logits(z, generation.SamplingParams(top_p=top_p)).softmax(-1)[0]
    axis.bar(candidates, kept, color="tab:green", label="after the cut")
    axis.plot(candidates, z.softmax(-1)[0], "k_", markersize=16, label="before")
    axis.set(title=f"top-p = {top_p}: {int((kept > 0).sum())} words stay", xlabel="next word")
    axis.legend()
for axis in axes:
    axis.tick_params(axis="x", rotation=45)
plt.show()

# %% [markdown]
# How a token is drawn: line the probabilities up from 0 to 1, throw a uniform number, see where it
# lands. With one number per row and step, a row's text does not depend on the other rows of its
# batch.

# %%
print(inspect.getsource(generation.choose_tokens))

# %%
draws = 100_000
uniforms = torch.rand(draws, generator=generator)
everything = generation.SamplingParams()  # temperature 1, nothing cut
drawn, log_probs = generation.choose_tokens(z.expand(draws, -1), everything, uniforms)
shares = torch.bincount(drawn, minlength=len(candidates)) / draws

print("word     probability  share of 100,000 draws")
for word, p, share in zip(candidates, z.softmax(-1)[0], shares, strict=True):
    print(f"{word:8} {p:11.4f}  {share:.4f}")
assert torch.allclose(shares, z.softmax(-1)[0], atol=0.006)  # four standard errors
assert torch.allclose(log_probs, z.log_softmax(-1)[0][drawn])

# %% [markdown]
# **For reinforcement learning one rule follows:** sample with the full distribution (no top-k, no
# top-p), and score with the temperature that was sampled with. With top-p = 0.6 the sampler never
# says "poor", though the policy does in 5 % of cases: ratios and KL divergences computed from the
# policy would describe another sampler.
#
# ## Exercise
#
# The cache holds one key and one value vector of width $D$ per layer, row and token.
#
# 1. How many bytes is that per token for the 124M model in float32?
# 2. A rollout samples 64 responses at the full context of 1,024 tokens. How large is the cache next
#    to the weights?
# 3. What does grouping 8 samples per prompt save, and what does it not?
#
# <details>
# <summary>Answer</summary>
#
# 1. $2 \cdot L \cdot D \cdot 4 = 2 \cdot 12 \cdot 768 \cdot 4 = 73{,}728$ bytes, 72 KiB per token.
# 2. $64 \cdot 1024 \cdot 73{,}728 \approx 4.8$ GB, against $124{,}439{,}808 \cdot 4 \approx 0.5$ GB
#    of weights: nearly ten times as much. It is the cache that limits the number of rows, not the
#    model.
# 3. The prompt is *read* once instead of eight times (`samples_per_prompt` repeats its cache rows),
#    which saves the time. The memory is not saved, because every row gets a copy of its own.
#
# To check without using the memory:
#
# ```python
# cache = KVCache(PRESETS["gpt2"], 64, 1024, torch.device("meta"), torch.float32)
# print((cache.keys.numel() + cache.values.numel()) * 4)  # 4831838208
# ```
#
# </details>
