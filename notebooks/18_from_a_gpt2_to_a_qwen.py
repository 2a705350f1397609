# %% [markdown]
# # 18. From a GPT-2 to a Qwen
#
# **The question.** Page 01 built a GPT-2 of 2019. What has changed in the models that people download
# today?
#
# **After this page you can** read the code of a Llama or a Qwen beside its paper, say what each of its
# parts is for, and say what an adapter trains and what it saves.
#
# Surprisingly little has changed: four parts make a Llama of a GPT-2. One switch turns this Llama into a
# Qwen2, and two others turn it into a Qwen3. Everything around the model, the sampler, the losses and the
# engines, stays as it is, so that page [25](25_steering_a_published_model.ipynb) steers a published model
# with the same files: SmolLM2-135M (Allal et al. 2025,
# [arXiv:2502.02737](https://arxiv.org/abs/2502.02737)), a Llama of 135 million weights, whose shape is the
# example of this page, too.
#
# **You need** [01](01_gpt2_from_scratch.ipynb) (the GPT-2) and [07](07_grpo.ipynb) (GRPO, for section 4).
#
# **It takes** about ten seconds on one CPU core, after start-up, and needs no download.

# %%
import torch
import torch.nn.functional as F

try:
    from course import plots
    from course.claims import holds
    from course.exercises import check
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from data.records import PromptRecord
from gpt.attention import causal_mask, plain_attention
from gpt.llama import (
    GroupedAttention,
    Llama,
    LlamaBlock,
    LlamaConfig,
    RMSNorm,
    SwiGLU,
    rotated,
    rotation,
)
from gpt.lora import LoRALinear, add_adapters
from gpt.model import GPT, Block, GPTConfig, KVCache
from gpt.tokenizer import load_tokenizer
from harness.seeds import make_generator
from rl import grpo_engine
from rl.grpo_engine import GRPOConfig
from rl.loop import Run
from rl.rewards.reward import RuleReward

torch.manual_seed(0)
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
plots.use()

# %% [markdown]
# ## 1. From GPT-2 to Llama in four changes
#
# A Llama (Touvron et al. 2023, [arXiv:2302.13971](https://arxiv.org/abs/2302.13971)) has the blocks of
# [01](01_gpt2_from_scratch.ipynb) with other parts, and no biases. Here is what changes in a block, where a
# line with - is GPT-2's and one with + a Llama's (`norms_after` is off, because it is for another model,
# OLMo 2):

# %%
plots.difference(Block, LlamaBlock)

# %% [markdown]
# **RMSNorm** (Zhang and Sennrich 2019, [arXiv:1910.07467](https://arxiv.org/abs/1910.07467), Eq. 4).
# LayerNorm takes the mean off, divides by the standard deviation, and has a weight and a bias. RMSNorm
# keeps the mean, divides by the root mean square, and has the weight only:
#
# $$y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \cdot w$$
#
# By hand: the squares of 1, 7, 1, 7 have the mean 25, so the vector is divided by 5.

# %%
x = torch.tensor([1.0, 7, 1, 7])
by_hand = x / x.square().mean().sqrt()
print("RMSNorm  ", [f"{number:.1f}" for number in by_hand])
print("LayerNorm", [f"{number:.1f}" for number in F.layer_norm(x, (4,))])
torch.testing.assert_close(RMSNorm(4, eps=0.0)(x), by_hand)

# %% [markdown]
# **Rotary positions** (Su et al. 2021, [arXiv:2104.09864](https://arxiv.org/abs/2104.09864)). GPT-2 adds a
# learned vector for each position. A Llama adds nothing: it cuts the $d$ numbers of a head's query or key
# into pairs (published Llamas pair number $i$ with number $i + d/2$, the paper neighbours), and turns pair
# $i$ of a token at position $p$ by the angle $p \, \theta_i$. The speed $\theta_i$ is 1 for the first pair
# and smaller for each later one; its base is a large number, in SmolLM2 100,000:
#
# $$(a, b) \to (a \cos p \theta_i - b \sin p \theta_i, \; b \cos p \theta_i + a \sin p \theta_i),
# \qquad \theta_i = \mathrm{base}^{-2i/d}$$
#
# Turning two vectors by the same angle does not change their scalar product, so only the *difference* of
# the positions matters.
#
# > **Predict, then run.** Which of three scores are equal: query at 5 and key at 2, at 45 and 42, at 2
# > and 5?


# %%
def turned(pair, p):
    """A pair at position p, by one radian a position: the first pair, i = 0."""
    (a, b), angle = pair, torch.tensor(float(p))
    return torch.stack([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])


query, key = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.5])
score = {(p, q): float(turned(query, p) @ turned(key, q)) for p, q in ((5, 2), (45, 42), (2, 5))}
for (p, q), value in score.items():
    print(f"query at {p:2}, key at {q:2}: score {value:.4f}")
same = abs(score[5, 2] - score[45, 42]) < 1e-4 < abs(score[5, 2] - score[2, 5])
holds(same, "the score depends on the distance alone, and on its sign")

library = rotated(query, rotation(torch.tensor([[5]]), 2, 100_000.0, torch.float32))[0, 0, 0]
torch.testing.assert_close(library, turned(query, 5))

# %% [markdown]
# A head of SmolLM2 has 64 numbers, so 32 pairs. The first turns by one radian a token and tells neighbours
# apart. Those in the middle tell near from far. The last needs hundreds of thousands of tokens for one
# turn: over the whole context it turns by 0.12 radians, so it compares what two tokens say at any distance.

# %%
theta = 100_000.0 ** (-torch.arange(0, 64, 2) / 64)
turns = 2 * torch.pi / theta  # tokens
print("tokens for one turn:", {f"pair {i}": round(float(turns[i])) for i in (0, 8, 16, 24, 31)})
context = LlamaConfig().context
print(f"over {context:,} tokens the last pair turns by {context * float(theta[-1]):.2f} radians")
holds(context * theta[-1] < 0.2, "the last pair hardly turns over the whole context")
cos, sin = rotation(torch.tensor([[1]]), 64, 100_000.0, torch.float32)
torch.testing.assert_close(sin[0, 0, 0], theta.sin())

# %% [markdown]
# **Grouped queries** (Ainslie et al. 2023, [arXiv:2305.13245](https://arxiv.org/abs/2305.13245)). SmolLM2
# has nine query heads but three heads of keys and values: query heads 0, 1 and 2 share the first. It is
# as if each key head were there three times, but it is computed and stored once. What that saves is room
# in the cache of keys and values ([01](01_gpt2_from_scratch.ipynb), section 7). The first cell computes
# such an attention by hand in a smaller model, and the second measures the cache in SmolLM2's own shape:

# %%
small = LlamaConfig(vocab_size=10, context=8, n_embd=36, n_head=9, n_key_head=3, n_inner=72)
attention, tokens = GroupedAttention(small), torch.randn(1, 5, 36)  # (N=1, S=5, D)
turn = rotation(torch.arange(5)[None], 4, 1e4, torch.float32)  # heads of four numbers


def heads_of(projection):
    return projection(tokens).view(1, 5, -1, 4).transpose(1, 2)  # (1, heads, S, d)


q, k = rotated(heads_of(attention.q_proj), turn), rotated(heads_of(attention.k_proj), turn)
v = heads_of(attention.v_proj)
mask = causal_mask(5, 5, torch.device("cpu"))
naive = [plain_attention(q[:, h], k[:, h // 3], v[:, h // 3], mask) for h in range(9)]
by_hand = attention.o_proj(torch.cat(naive, -1))
torch.testing.assert_close(attention(tokens, turn, None, None, layer=0), by_hand)
print("queries", tuple(q.shape), "keys", tuple(k.shape))

# %%
megabytes = {}
for key_heads in (9, 3):
    shape = LlamaConfig(n_key_head=key_heads)
    cache = KVCache(shape, 32, 128, torch.device("meta"), torch.float32)  # a shape, no memory
    megabytes[key_heads] = (cache.keys.numel() + cache.values.numel()) * 4 / 1e6
    print(f"{key_heads} key heads: {megabytes[key_heads]:.0f} MB for 32 rows of 128 tokens")
assert megabytes[9] == 3 * megabytes[3]

# %% [markdown]
# The cache is a third as large as with a key head for each query head, so that three times as many answers
# fit into the memory that a cache may take.
#
# **SwiGLU** (Shazeer 2020, [arXiv:2002.05202](https://arxiv.org/abs/2002.05202), Eq. 6). GPT-2's MLP is
# $\mathrm{GELU}(x W) V$ without its biases. Here two matrices read $x$: $U$ (up) makes numbers, $G$ (gate)
# decides how much of each passes, and $V$ leads back to the stream ($\sigma$ is the sigmoid, $\odot$ a
# product number by number):
#
# $$(\mathrm{silu}(x G) \odot x U) \, V, \qquad \mathrm{silu}(z) = z \, \sigma(z)$$
#
# By hand: a gate of 2 passes $2 \cdot \sigma(2) = 1.76$ times the number, and a gate of -5 nearly
# nothing.

# %%
mlp = SwiGLU(small)
gate, up = tokens @ mlp.gate_proj.weight.T, tokens @ mlp.up_proj.weight.T  # (1, S, n_inner)
by_hand = (gate * gate.sigmoid() * up) @ mlp.down_proj.weight.T
torch.testing.assert_close(mlp(tokens), by_hand)
print("silu of 2, 0, -5:", [f"{number:.3f}" for number in F.silu(torch.tensor([2.0, 0, -5]))])

# %% [markdown]
# **SmolLM2's weights**, counted by hand. $V$ is the size of the vocabulary now, $D$ the width of the
# stream, $M$ the inner width of the MLP and $L$ the number of layers. Three key heads of nine make keys
# of $D / 3$ numbers:

# %%
c = LlamaConfig()  # SmolLM2-135M's shape
V, D, M, L = c.vocab_size, c.n_embd, c.n_inner, c.n_layer
counts = {
    "tokens": V * D,
    "attention": L * (2 * D * D + 2 * D * (D // 3)),
    "MLP": L * 3 * D * M,
    "norms": (2 * L + 1) * D,
}
with torch.device("meta"):  # tensors with a shape and without memory
    smollm2 = Llama(c)
plots.table(["part", "weights"], [[part, f"{count:,}"] for part, count in counts.items()])
print(f"together {sum(counts.values()):,}")
assert smollm2.parameter_count() == sum(counts.values()) == 134_515_008

# %% [markdown]
# ## 2. From a Llama to a Qwen in two switches
#
# Many chat models of today are this Llama with a few switches on, and a switch is a field of `LlamaConfig`:
#
# - **`qkv_bias`** is all that Qwen2 and Qwen2.5 (Yang et al. 2024,
#   [arXiv:2407.10671](https://arxiv.org/abs/2407.10671)) need. It puts a bias on queries, keys and
#   values, and on nothing else.
# - **`qk_norm`** is Qwen3's (Yang et al. 2025, [arXiv:2505.09388](https://arxiv.org/abs/2505.09388)),
#   which takes the bias off again. It gives queries and keys an RMSNorm, over the numbers of one head at
#   a time. The scores of attention are products of the two, and in large models they were seen to grow as
#   training went on, until a softmax over them looked at hardly more than one token (Dehghani et al.
#   2023, [arXiv:2302.05442](https://arxiv.org/abs/2302.05442)).
# - **`d_head`** is Qwen3's, too: the width of a head is chosen freely and not $D / H$, the stream's width
#   over the number of query heads. In Qwen3-0.6B, by its config.json, 16 heads of 128 numbers make
#   queries of 2,048 numbers, compared with 1,024 of the stream; in Qwen3-8B the two are equal.
#
# The norm by hand, for one query of two numbers: (3, 4) has the mean square 12.5, so it becomes $(3, 4) /
# \sqrt{12.5}$. Its length was 5 and is now $\sqrt{d} = \sqrt 2$, and that is so for any query, however
# long. After that the norm multiplies each place of the head by a learned weight, one set of weights for
# all query heads of a layer and another for all key heads.
#
# The **norm comes before the turn**, and with weights the order matters: a turn leaves the length of a
# vector as it is, but it mixes two places of the head, and these two may have different weights.

# %%
query = torch.tensor([3.0, 4.0])
normed = query / query.square().mean().sqrt()
print("length before", float(query.norm()), "after", round(float(normed.norm()), 4), "= sqrt(2)")
torch.testing.assert_close(RMSNorm(2, eps=0.0)(10 * query), normed)  # ten times as long, the same

weight = torch.tensor([2.0, 0.5])  # what a norm may have learned
before, after = turned(normed * weight, 1), turned(normed, 1) * weight
print(
    "norm, then turn", [f"{x:.3f}" for x in before], "turn, then norm", [f"{x:.3f}" for x in after]
)
holds(not torch.allclose(before, after, atol=0.1), "the order of norm and turn matters")

# %% [markdown]
# **The library's** attention with Qwen3's two switches, the norm and wide heads, beside the same by hand.
# Nine heads of 8 numbers make queries of 72 numbers, compared with 36 of the stream:

# %%
qwen = LlamaConfig(
    vocab_size=10, context=8, n_embd=36, n_head=9, n_key_head=3, n_inner=72, qk_norm=True, d_head=8
)
attention = GroupedAttention(qwen)
attention.q_norm.weight.data = torch.linspace(0.5, 1.5, 8)
turn = rotation(torch.arange(5)[None], 8, 1e4, torch.float32)


def wide_heads(projection):
    return projection(tokens).view(1, 5, -1, 8).transpose(1, 2)  # (1, heads, S, 8)


q = rotated(attention.q_norm(wide_heads(attention.q_proj)), turn)
k = rotated(attention.k_norm(wide_heads(attention.k_proj)), turn)
v = wide_heads(attention.v_proj)
naive = [plain_attention(q[:, h], k[:, h // 3], v[:, h // 3], mask) for h in range(9)]
by_hand = attention.o_proj(torch.cat(naive, -1))
torch.testing.assert_close(attention(tokens, turn, None, None, layer=0), by_hand)
print("queries", attention.q_proj.weight.shape[0], "numbers wide, the stream", qwen.n_embd)

# %% [markdown]
# [gpt/llama.py](../gpt/llama.py) lists all nine switches with where they come from, for example the
# slower turns with which Llama 3.1 reads longer texts. [models.md](../docs/models.md) says which
# published kinds of model this one file computes: of 34 that were tried 24 open, and the others are
# refused with the reason.
#
# ## 3. LoRA: thin matrices beside a frozen one
#
# A model of this size can be trained on a laptop, but training holds four numbers for each weight:
# itself, its gradient and two moments of Adam. An adapter needs far fewer. LoRA (Hu et al. 2021,
# [arXiv:2106.09685](https://arxiv.org/abs/2106.09685), Eq. 3) freezes a projection $W_0$, one of the
# matrices of attention or MLP, and trains two thin matrices beside it, $A$ (r, in) and $B$ (out, r),
# where the rank $r$ is small:
#
# $$h = W_0 x + \frac{\alpha}{r} B A x$$
#
# $A$ starts random and $B$ at 0, so the model starts as the published one, exactly. The number $\alpha$
# says how much the adapter counts, and here it is twice the rank. By hand, with rank 1, $A = (1, 1, 1)$
# and $x = (1, 2, 3)$: $A x = 6$, so a $B$ of 0.5 adds $2 \cdot 0.5 \cdot 6 = 6$ to the first output.

# %%
linear = torch.nn.Linear(3, 2, bias=False)
linear.weight.data = torch.tensor([[1.0, 0, 2], [0, 1, 0]])
x, adapted = torch.tensor([1.0, 2, 3]), LoRALinear(linear, rank=1)
assert torch.equal(adapted(x), linear(x))  # B = 0
adapted.lora_A.data, adapted.lora_B.data = torch.ones(1, 3), torch.tensor([[0.5], [0.0]])
print("before", linear(x).tolist(), "with the adapter", adapted(x).tolist())
torch.testing.assert_close(adapted(x), linear(x) + torch.tensor([6.0, 0.0]))
torch.testing.assert_close(adapted.merged_weight() @ x, adapted(x))  # one matrix again

with torch.device("meta"):
    beside = add_adapters(Llama(c), rank=16)
trained = sum(p.numel() for p in beside.parameters() if p.requires_grad)
every = smollm2.parameter_count()
print(
    f"rank 16 trains {trained:,} of {every:,} weights; weights, gradients and Adam's moments take"
)
print(
    f"{16 * every / 1e9:.1f} GB in full training, {(4 * every + 16 * trained) / 1e9:.1f} GB with LoRA"
)
holds(trained < 0.05 * every, "LoRA trains less than a twentieth of the weights")

# %% [markdown]
# Only $A$ and $B$ have gradients and moments, and the reference is the same frozen model without them, so
# that it needs no copy of its own. After training $W_0 + \frac{\alpha}{r} B A$ is one matrix, so the
# trained model is no slower than the published one. The price is that the change has only $r$ directions,
# and that the learning rate must be larger: by default ten times the usual one, which was not tuned
# ([docs/lora.md](../docs/lora.md)).
#
# ## 4. The engine does not know which model it trains
#
# An engine asks a model for samples and log-probs, and never what is inside. Here GRPO's `train`
# ([07](07_grpo.ipynb)) steers a GPT-2 and then a Llama, each of two layers and with random weights. The
# reward is the share of the letter *e* among an answer's characters:

# %%
tokenizer = load_tokenizer("glassbox")
size = dict(vocab_size=tokenizer.n_vocab, context=128, n_layer=2, n_head=4, n_embd=64)
models = {
    "GPT-2": GPT(GPTConfig(**size)),
    "Llama": Llama(LlamaConfig(**size, n_key_head=2, n_inner=128)),
}
letters = RuleReward(lambda record, text, ended: text.count("e") / max(len(text), 1), "letters e")
prompts = [PromptRecord(f"Write about {topic}: ") for topic in ("bread", "rain", "cats", "stars")]
config = GRPOConfig(
    steps=15, prompts_per_step=4, group_size=16, minibatches=1, lr=1e-2, warmup_steps=1, kl_coef=0.02,
    stop_kl=None, max_new_tokens=12, micro_batch_size=64, device="cpu",
)  # fmt: skip
learned = {}
for name, model in models.items():
    model.initialize(make_generator(0, "weights"))
    steps = grpo_engine.train(Run(config, model, tokenizer, letters, prompts))
    learned[name] = [step["reward"] for step in steps]
plots.curves(
    learned, range(1, 16), xlabel="step",
    ylabel="share of the letter e", ylim=(0, None), title="Both models learn the letter",
)  # fmt: skip

# %%
holds(learned["Llama"][-1] > 2 * learned["Llama"][0], "the Llama learns")
holds(learned["GPT-2"][-1] > 2 * learned["GPT-2"][0], "so does the GPT-2")
assert "llama" not in plots.source(grpo_engine).lower()

# %% [markdown]
# ## Exercises
#
# **1. What does an adapter train?** A Llama of your own, without biases, whose embedding has no adapter.
# How many weights do the adapters of all its projections have together? (Each layer has seven: queries,
# keys, values and the output of attention, and gate, up and down of the MLP.) (No solution is printed.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("adapter_weights", MINE)

# %%
check_answer("adapter_weights", ..., MINE)

# %% [markdown]
# **2. `qk_norm`.** A row holds the queries of all heads, one behind the other. Normalise each head's
# query by itself, with the same weights for all heads, as Qwen3 does before it turns them.


# %%
def my_qk_norm(x, heads, weight, eps):
    """x (S, heads * d), a whole number, weight (d,), a number -> (S, heads * d)."""
    ...


check("qk_norm", my_qk_norm)

# %% [markdown]
# **On paper.** 3. GPT-2's context ends at 1,024 tokens because its table of positions does. What ends a
# Llama's?
#
# <details>
# <summary>Solutions</summary>
#
# ```python
# def my_qk_norm(x, heads, weight, eps):
#     each = x.view(len(x), heads, -1)
#     return (each / (each.square().mean(-1, keepdim=True) + eps).sqrt() * weight).flatten(1)
# ```
#
# 3\. Nothing in its weights: any position has an angle. But at distances beyond its training the slow
# pairs reach new angles, and the model gets worse. `context` says how far it was trained.
#
# </details>
#
# ## To remember
#
# - RMSNorm, turned positions, shared keys and a gated MLP make a Llama of a GPT-2.
# - A bias on queries, keys and values makes a Qwen2 of the Llama. Without the bias, but with a norm on
#   queries and keys, it is a Qwen3.
# - An adapter trains two thin matrices beside a frozen one, and afterwards the three are one matrix again.
#
# Next: [19_when_the_sampler_is_not_the_policy](19_when_the_sampler_is_not_the_policy.ipynb): what large
# models make necessary, a sampler that lags behind. Or [25](25_steering_a_published_model.ipynb): the
# same engines on a published model.
