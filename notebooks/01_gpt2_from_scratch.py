# %% [markdown]
# # 1. GPT-2 from scratch
#
# **After this page you can** compute attention by hand, write GPT-2's forward pass in twenty lines, count
# its weights, and say what temperature and top-p do to the probabilities that later pages need.
#
# **Why.** What happens between a row of tokens and the probability of the next one? A policy is a
# GPT whose next-token probabilities we use. A reference is a frozen copy of it, and a reward model
# or a value model is a GPT with another head. So if you know what goes into this one network and
# what comes out, you can read everything that follows.
#
# | section | idea | source | code |
# | --- | --- | --- | --- |
# | 1-2 | attention and its mask | arXiv:1706.03762, Eq. 1 | `plain_attention` |
# | 3 | positions | Radford et al. 2019 | `GPT.hidden` |
# | 4 | the whole model in twenty lines | arXiv:2002.04745 | `Block`, `GPT` |
# | 5 | its 124,439,808 weights | Radford et al. 2019 | `GPTConfig` |
# | 6 | logits, and which token they are about | | `GPT.forward` |
# | 7 | generation with a cache of keys and values | | `KVCache` |
# | 8 | temperature and top-p | arXiv:1904.09751 | `truncate_logits` |
#
# **You need** PyTorch: tensors, `softmax`, `nn.Linear`.
#
# **It takes** about ten seconds, after start-up, and needs no GPU and no download.

# %%
import math
import time

import torch
import torch.nn.functional as F

try:
    from course import plots
    from course.claims import holds
    from course.exercises import check
    from course.saved_models import base

    from gpt import generate as generation
    from gpt.attention import causal_mask, plain_attention
    from gpt.model import GPT, PRESETS, Block, GPTConfig, KVCache
    from report.tokens import show_tokens
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
torch.set_printoptions(precision=3, sci_mode=False, linewidth=100)

# %% [markdown]
# ## 1. Attention, by hand, on three tokens
#
# A token must be able to use what stands before it: "it" means the kettle of three words ago. In
# attention every position asks a **query** $q$, compares it with the **key** $k$ of every position,
# and takes the average of their **values** $v$, weighted by how well query and key agree:
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{d}}\right) V$$
#
# (Vaswani et al. 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762), Eq. 1.) GPT-2 adds a
# **causal mask**: position $s$ may look at positions $j \le s$ only. Three tokens, two numbers each,
# naively, one query at a time:

# %%
query = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
key = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
value = torch.tensor([[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]])

rows = []
for s in range(3):
    scores = [float(query[s] @ key[j]) / math.sqrt(2) for j in range(s + 1)]  # the past and itself
    total = sum(math.exp(score) for score in scores)
    weights = [math.exp(score) / total for score in scores]
    rows.append(sum(w * value[j] for j, w in enumerate(weights)))
    print(f"token {s} looks at {[round(w, 3) for w in weights]} -> {rows[-1].tolist()}")

mask = causal_mask(3, 3, torch.device("cpu"))
library = plain_attention(query[None, None], key[None, None], value[None, None], mask)[0, 0]
fused = F.scaled_dot_product_attention(query, key, value, is_causal=True)
torch.testing.assert_close(library, torch.stack(rows))
torch.testing.assert_close(fused, library)  # the kernel that the model calls

# %% [markdown]
# > **Predict, then run.** Why the $\sqrt d$? Take random queries and keys and leave it out. How much
# > weight does the luckiest of 8 tokens get when vectors have 4 numbers? When they have 1024?

# %%
generator = torch.Generator().manual_seed(0)
for d in (4, 64, 1024):
    q, k = (torch.randn(500, n, d, generator=generator) for n in (1, 8))
    raw = (q @ k.transpose(1, 2)).squeeze(1)  # (500, 8)
    largest = [float((raw / c).softmax(-1).amax(-1).mean()) for c in (math.sqrt(d), 1.0)]
    print(f"d = {d:4}: largest weight {largest[0]:.2f} with the root, {largest[1]:.2f} without")
holds(largest[1] > largest[0], "without the root one token gets nearly all of the weight")
assert largest[1] > 0.9 > 0.5 > largest[0]

# %% [markdown]
# The score of two vectors of $d$ independent numbers, each of variance 1, has variance $d$. Without the
# division, a softmax over wide vectors puts nearly everything on one token, and then its gradient vanishes.
#
# ## 2. The causal mask, in a real model
#
# The model is trained to predict the next token at every position of a text at once. A position
# that could see the tokens after it would see the answer. The mask also makes sampling consistent
# with training: while a text is being written, nothing after it exists.
#
# The course keeps a small GPT-2 that has read this project's world of product reviews: 4 layers,
# width 128, 0.9 million weights. Where does one of its heads look?

# %%
model, tokenizer = base()
ids = tokenizer.encode("Review the red kettle for Anna.\nHi Anna! The")
words = [tokenizer.decode([i]).replace("\n", "\\n").strip() for i in ids]
tokens = torch.tensor([ids])  # (N=1, S)
S, H = len(ids), model.config.n_head
D, V, L = model.config.n_embd, model.config.vocab_size, model.config.n_layer


@torch.no_grad()
def attention_weights(layer: int) -> torch.Tensor:
    """(H, S, S): what every head of a layer looks at. A value of one-hot vectors returns the weights."""
    x = model.wte(tokens) + model.wpe(torch.arange(S))
    for block in model.h[:layer]:
        x = block(x, None, None, 0)
    block = model.h[layer]
    qkv = block.attn.c_attn(block.ln_1(x)).view(1, S, 3, H, D // H)
    q, k, _ = qkv.permute(2, 0, 3, 1, 4)
    mask = causal_mask(S, S, torch.device("cpu"))
    return plain_attention(q, k, torch.eye(S).expand(1, H, S, S), mask)[0]


# %%
every = torch.stack([attention_weights(layer) for layer in range(L)])  # (L, H, S, S)
item = words.index("kettle")
layer, head = divmod(int(every[:, :, -1, item].argmax()), H)  # who looks at the kettle most?
axis = plots.heat(
    every[layer, head], words, words, axis=plots.panels(1, width=8, height=5)[1],
    label="attention weight", xlabel="token that is looked at (key)",
    ylabel="token that looks (query)", title=f"layer {layer}, head {head}: nothing above the diagonal",
)  # fmt: skip
axis.tick_params(axis="x", rotation=45)
print(f"the last token gives {every[layer, head, -1, item]:.0%} of its weight to the kettle")
assert every.triu(1).abs().max() == 0

# %% [markdown]
# The last row is the token "The", after which a thing must be named. It looks at the thing in the
# prompt. ([03_pretraining_and_sft](03_pretraining_and_sft.ipynb) watches how this is learned.)
#
# The property that everything rests on: **changing a token changes nothing before it.**

# %%
changed = tokens.clone()
changed[0, 5] = tokenizer.encode(" lamp")[0]
with torch.no_grad():
    difference = (model(tokens) - model(changed)).abs().amax(-1)[0]  # (S,)
print("largest change of a logit, by column:", difference)
assert difference[:5].max() < 1e-5 < 1e-2 < difference[5:].min()

# %% [markdown]
# ## 3. Positions
#
# Attention is an average over a set: it does not know what came first. GPT-2 therefore learns one
# vector per position and adds it to the token's vector,
# $x_s = \mathrm{wte}[\mathrm{token}_s] + \mathrm{wpe}[s]$ (Radford et al. 2019).
#
# > **Predict, then run.** Shuffle all tokens but the last, in a model of one layer whose `wpe` is 0.
# > What happens to the last column's logits? (One layer, because in a deeper model the causal mask gives
# > away some of the order: later tokens have seen more.)

# %%
one_layer = GPT(GPTConfig(V, 64, n_layer=1, n_head=4, n_embd=64))
one_layer.initialize(torch.Generator().manual_seed(1)).eval()
order = [*torch.randperm(S - 1, generator=generator).tolist(), S - 1]
with torch.no_grad():
    with_positions = (one_layer(tokens) - one_layer(tokens[:, order]))[:, -1].abs().max()
    one_layer.wpe.weight.zero_()
    without = (one_layer(tokens) - one_layer(tokens[:, order]))[:, -1].abs().max()
print(f"largest change of a logit: {with_positions:.4f} with wpe, {without:.7f} without")
holds(with_positions > 100 * without, "without wpe the order of the words does not matter")
assert with_positions > 1e-3 and without < 1e-5

# %% [markdown]
# ## 4. The whole model in twenty lines
#
# A **residual stream** runs through the model: one vector of width $D$ per token. A block does two
# things to it, and *adds* each result to the stream:
#
# $$x \leftarrow x + \mathrm{Attention}(\mathrm{LN}(x)), \qquad
# x \leftarrow x + \mathrm{MLP}(\mathrm{LN}(x))$$
#
# - **Attention** moves information between columns. Its $D$ numbers are split into $H$ **heads** of
#   $d = D / H$ numbers each, so that a token can look at several places at once.
# - The **MLP** works on each column alone: $D \to 4D \to D$ with a nonlinearity between.
# - **LayerNorm** (Ba et al. 2016, [arXiv:1607.06450](https://arxiv.org/abs/1607.06450)) brings a vector
#   to mean 0 and variance 1, and then multiplies and shifts each number by learned weights. Each step
#   reads such a normalised copy, while the stream itself is left as it is ("pre-LN", Xiong et al. 2020,
#   [arXiv:2002.04745](https://arxiv.org/abs/2002.04745)).
#
# At the end the stream is normalised once more and compared with every token's embedding. The matrix
# that turned tokens into vectors turns vectors into **logits**: a **tied head** (Press & Wolf 2017,
# [arXiv:1608.05859](https://arxiv.org/abs/1608.05859)).

# %%
plots.diagram("gpt_block")

# %% [markdown]
# Now written out, with the weights of the kept model. ($\mathrm{GELU}(x) = x \Phi(x)$, in the form
# with tanh that GPT-2 was trained with: Hendrycks & Gimpel 2016,
# [arXiv:1606.08415](https://arxiv.org/abs/1606.08415).)


# %%
def norm(x, ln):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * ln.weight + ln.bias


def gelu(x):
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gpt2(tokens):
    x = model.wte.weight[tokens] + model.wpe.weight[: tokens.shape[1]]  # (N, S, D)
    N, S, D = x.shape
    for block in model.h:
        qkv = norm(x, block.ln_1) @ block.attn.c_attn.weight.T + block.attn.c_attn.bias
        q, k, v = qkv.view(N, S, 3, H, D // H).permute(2, 0, 3, 1, 4)  # each (N, H, S, d)
        heads = plain_attention(q, k, v, torch.ones(S, S, dtype=torch.bool).tril())
        merged = heads.transpose(1, 2).reshape(N, S, D)  # the heads side by side again
        x = x + merged @ block.attn.c_proj.weight.T + block.attn.c_proj.bias
        inner = gelu(norm(x, block.ln_2) @ block.mlp.c_fc.weight.T + block.mlp.c_fc.bias)
        x = x + inner @ block.mlp.c_proj.weight.T + block.mlp.c_proj.bias
    return norm(x, model.ln_f) @ model.wte.weight.T  # (N, S, V): the tied head


# %%
with torch.no_grad():
    logits = model(tokens)  # (1, S, V)
    torch.testing.assert_close(gpt2(tokens), logits, atol=1e-4, rtol=1e-4)
print(f"tokens {tuple(tokens.shape)} -> logits {tuple(logits.shape)}: the same numbers")
plots.code(Block)

# %% [markdown]
# The library's model is these lines plus dropout, a cache and checks: [gpt/model.py](../gpt/model.py).
# Loaded with OpenAI's weights it gives the logits of GPT-2.
#
# Fresh weights are drawn with a standard deviation of 0.02. Two matrices of each block write into the
# stream, $2L$ in all, and their weights are multiplied by $1/\sqrt{2L}$, so that the stream does not grow
# with the depth (Radford et al. 2019, section 2.3; `GPT.initialize`).
#
# ## 5. Where its weights are
#
# With vocabulary $V$, context $C$, $L$ layers and width $D$:
#
# $$\underbrace{VD}_{\mathrm{tokens}} + \underbrace{CD}_{\mathrm{positions}} + L \left[
# \underbrace{(3D^2 + 3D) + (D^2 + D)}_{\mathrm{attention}}
# + \underbrace{(4D^2 + 4D) + (4D^2 + D)}_{\mathrm{MLP}}
# + \underbrace{4D}_{\mathrm{norms}} \right] + \underbrace{2D}_{\mathrm{norm}}$$

# %%
shares = {}
for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
    c = PRESETS[name]
    counts = {
        "tokens": c.vocab_size * c.n_embd,
        "positions": c.context * c.n_embd,
        "attention": c.n_layer * (4 * c.n_embd**2 + 4 * c.n_embd),
        "MLP": c.n_layer * (8 * c.n_embd**2 + 5 * c.n_embd),
        "norms": (4 * c.n_layer + 2) * c.n_embd,
    }
    with torch.device("meta"):  # tensors with a shape and without memory
        assert GPT(c).parameter_count() == sum(counts.values())
    print(f"{name:12} {sum(counts.values()):13,} weights")
    shares[name] = [100 * count / sum(counts.values()) for count in counts.values()]
axis = plots.bars(shares, list(counts), axis=plots.panels(1, width=9, height=2.8)[1],
                 xlabel="part", ylabel="share of the weights (%)",
                 title="Nearly a third of the smallest model is a dictionary")  # fmt: skip

# %% [markdown]
# ## 6. Logits, and which token they are about
#
# Column $j$ of the logits is the model's guess at token $j + 1$. So the loss compares all columns but
# the last with all tokens but the first. It is the mean **surprise**, in **nats** (the unit of a
# natural logarithm):
#
# $$\mathcal{L} = -\frac{1}{S - 1} \sum_{j=0}^{S-2} \log p(x_{j+1} \mid x_0 \dots x_j), \qquad
# p(\cdot \mid x_0 \dots x_j) = \mathrm{softmax}(\mathrm{logits}_j)$$

# %%
text = "Review the red kettle for Anna.\nHi Anna! The kettle is great."
ids = torch.tensor([tokenizer.encode(text)])
fresh = GPT(model.config).initialize(torch.Generator().manual_seed(0)).eval()


@torch.no_grad()
def surprise(model):
    log_p = model(ids).log_softmax(-1)[0, :-1]  # (S - 1, V): columns 0 to S - 2
    return -log_p.gather(1, ids[0, 1:, None])[:, 0]  # (S - 1,): about tokens 1 to S - 1


for name, m in (("fresh", fresh), ("trained", model)):
    loss = F.cross_entropy(m(ids)[0, :-1], ids[0, 1:])  # PyTorch's word for it
    torch.testing.assert_close(surprise(m).mean(), loss)
    print(f"{name:8} mean surprise {loss:.2f} nats (a uniform guess: log V = {math.log(V):.2f})")
shown = [tokenizer.decode([i]) for i in ids[0, 1:].tolist()]
show_tokens(shown, {"trained": surprise(model), "fresh": surprise(fresh)})

# %% [markdown]
# The trained model cannot guess the prompt: which thing, which name? At nearly all of its
# tokens it is even worse than a uniform guess, because its loss was on responses only and it never had
# to learn prompts. But once the prompt is read, the answer holds few surprises.
#
# ## 7. Generation with a cache
#
# To write token $S + 1$ one could run the model on all $S$ tokens again. But under a causal mask
# the keys and values of the past never change, so we keep them and run only the newest token
# through the blocks.

# %%
plots.code(KVCache.extend, ("end = self.length", "return"))


@torch.no_grad()
def likeliest_without_cache(prompt: list[int], steps: int) -> list[int]:
    """The obvious loop: read everything, append the likeliest token, read everything again."""
    row = torch.tensor([prompt])
    for _ in range(steps):
        row = torch.cat([row, model(row)[:, -1:].argmax(-1)], 1)
    return row[0, len(prompt) :].tolist()


prompt = ids[0].tolist()
greedy = generation.SamplingParams(greedy=True, max_new_tokens=40)
cached = generation.generate(model, [prompt], greedy, eos_id=-1)  # -1: no token ends the text
assert cached.token_lists()[0] == likeliest_without_cache(prompt, 40)
print("40 tokens, with and without cache: the same")

# %%
large = GPT(GPTConfig(V, 512, n_layer=4, n_head=4, n_embd=128)).eval()


@torch.no_grad()
def milliseconds(length: int, use_cache: bool) -> float:
    """Processor time for one more token after `length - 1` others, mean of many tries."""
    tries = 100 if use_cache else 10
    row = torch.zeros(1, length, dtype=torch.long)
    cache = large.new_cache(1, length)
    large.hidden(row[:, :-1], cache=cache)
    begin = time.process_time()
    for _ in range(tries):
        cache.length = length - 1  # forget the token of the last try
        large.hidden(row[:, -1:], cache=cache) if use_cache else large.hidden(row)
    return 1000 * (time.process_time() - begin) / tries


lengths = [16, 128, 256, 384, 512]
times = {name: [milliseconds(n, name == "with the cache") for n in lengths]
         for name in ("everything again", "with the cache")}  # fmt: skip
axis = plots.curves(times, lengths, marker=True, ylim=(0, None), xlabel="tokens so far",
                   ylabel="ms for one more token", title="4 layers of width 128, one thread",
                   styles={"everything again": "bad", "with the cache": "policy"})  # fmt: skip
holds(
    times["with the cache"][-1] < times["everything again"][-1], "with the cache, writing is faster"
)

# %% [markdown]
# Reading everything again costs more with every token, but with the cache the cost hardly grows.
#
# ## 8. From logits to a token: temperature and top-p
#
# The **temperature** $\tau$ divides the logits $z$: below 1 the likely gets likelier. **Top-p** keeps the
# likeliest tokens, as few as have at least the probability $p$ together: the **nucleus** $W$. Their
# probabilities are scaled up to a sum of 1 (Holtzman et al. 2020,
# [arXiv:1904.09751](https://arxiv.org/abs/1904.09751), section 3):
#
# $$p_\tau(v) = \frac{\exp(z_v / \tau)}{\sum_u \exp(z_u / \tau)}, \qquad
# W = \{v_1, \dots, v_k\} \quad \mathrm{with\ the\ least} \; k \; \mathrm{for\ which} \quad
# \sum_{i \le k} p_\tau(v_i) \ge p$$
#
# where $v_1$ is the likeliest token, $v_2$ the next, and so on.

# %%
candidates = ["great", "lovely", "solid", "okay", "poor", "dull", "foul", "purple"]
z = torch.tensor([3.0, 2.6, 2.2, 1.8, 1.0, 0.6, -0.5, -2.0])  # (8,) logits of the next word

cold, warm = (z / 0.5).softmax(-1), (z / 2.0).softmax(-1)
probabilities = z.softmax(-1)
before = probabilities.cumsum(-1) - probabilities  # of all likelier words (z is in order)
nucleus = torch.where(before < 0.6, probabilities, 0.0)
nucleus = nucleus / nucleus.sum()

library = generation.truncate_logits(z[None], generation.SamplingParams(top_p=0.6))
torch.testing.assert_close(library.softmax(-1)[0], nucleus)

# %% tags=["hide-input"]
figure, (left, right) = plots.panels(2, width=11, height=2.8)
plots.curves({"tau = 0.5": cold, "tau = 1": probabilities, "tau = 2": warm}, range(8), axis=left,
            marker=True, xlabel="next word", ylabel="probability", title="temperature")  # fmt: skip
plots.bars({"before": probabilities, "after": nucleus}, candidates, axis=right,
          styles={"before": "before", "after": "policy"},
          xlabel="next word", ylabel="probability", title="top-p = 0.6")  # fmt: skip
left.set_xticks(range(8), candidates)
for axis in (left, right):
    axis.tick_params(axis="x", rotation=45)

# %% [markdown]
# **For reinforcement learning one rule follows:** sample with the full distribution (no top-k, no
# top-p), and score with the sampler's temperature. With top-p = 0.6 the sampler never says "poor",
# though the policy does in 5 % of cases. What later pages compute from the policy's probabilities
# (ratios on page 04, KL divergences on page 05) would then describe another sampler.
#
# To draw a token, line the probabilities up from 0 to 1, draw a uniform number and see where it
# lands.

# %%
uniforms = torch.rand(100_000, generator=generator)
naive = torch.searchsorted(probabilities.cumsum(0), uniforms).clamp(max=7)

drawn, log_probs = generation.choose_tokens(
    z.expand(100_000, -1), generation.SamplingParams(), uniforms
)
assert (drawn == naive).float().mean() > 0.9999  # but for rounding at the borders
counts = torch.bincount(drawn, minlength=8) / 100_000
print("probability ", probabilities, "\nshare drawn ", counts)
assert torch.allclose(counts, probabilities, atol=0.006)  # four standard errors

# %% [markdown]
# ## Where this lives
#
# - the model: [gpt/model.py](../gpt/model.py)
# - sampling: [gpt/generate.py](../gpt/generate.py)
# - `python -m rl.talk` asks a trained model
#
# ## Exercises
#
# Fill in a function and run the cell. `check` says in words what it finds.
#
# **1. Attention**, as tensors instead of a loop.


# %%
def my_attention(query, key, value):
    """query, key, value (S, d) -> (S, d); row s may look at rows 0 to s."""
    ...  # your code


check("attention", my_attention)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_attention(query, key, value):
#     scores = query @ key.T / math.sqrt(query.shape[1])
#     future = torch.ones_like(scores, dtype=torch.bool).triu(1)
#     return scores.masked_fill(future, float("-inf")).softmax(-1) @ value
# ```
#
# </details>
#
# **2. Which setting drew these words?** The table belongs to a number of your own. It has a model's
# probabilities of the next word, and the shares of the words that somebody drew from it. Which setting
# was it? (No solution is printed.)
#
# - a: a temperature of 0.5
# - b: a temperature of 2
# - c: top-p = 0.8
# - d: a temperature of 2, and top-p = 0.8
# - e: nothing set

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("which_sampling", MINE)

# %%
check_answer("which_sampling", ..., MINE)

# %% [markdown]
# **3. Top-p**, for logits in any order.


# %%
def my_top_p(logits, p):
    """logits (V,) -> probabilities (V,), 0 but for the likeliest, as few as have at least p."""
    ...  # your code


check("top_p", my_top_p)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_top_p(logits, p):
#     ordered, order = logits.softmax(-1).sort(descending=True)
#     before = ordered.cumsum(-1) - ordered
#     kept = torch.where(before < p, ordered, 0.0)
#     return torch.zeros_like(logits).scatter(0, order, kept / kept.sum())
# ```
#
# </details>
#
# **To think about.** The cache holds one key and one value vector of width $D$ per layer, row and
# token. GPT-2 (12 layers, width 768) samples 64 responses at the full context of 1,024 tokens, in
# float32, 4 bytes a number. How large is the cache next to the weights? Now let 8 rows at a time
# answer the same prompt. Every row still has its own cache. What is saved?
#
# <details>
# <summary>Answer</summary>
#
# $2 \cdot 12 \cdot 768 \cdot 4 = 73{,}728$ bytes per token, times $64 \cdot 1024$ is 4.8 GB. The
# weights take $124{,}439{,}808 \cdot 4 \approx 0.5$ GB. So the cache limits the number of rows.
# Each prompt is *read* once instead of eight times, which saves time but no memory, because every
# row gets its own copy of the prompt's keys and values.
#
# </details>
#
# ## To remember
#
# - A column sees itself and what stands before it, so changing a token changes nothing before it.
# - Column $j$ of the logits is about token $j + 1$.
# - For reinforcement learning, sample from the full distribution and score with the sampler's
#   temperature.
#
# Next: [02_tokens_padding_masks](02_tokens_padding_masks.ipynb). The same for a batch of prompts and
# responses with padding, where most mistakes are made.
