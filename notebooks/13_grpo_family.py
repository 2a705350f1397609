# %% [markdown]
# # 12. The GRPO family
#
# **Why.** A year after GRPO a dozen papers had each changed a line or two of it and given the
# result a name. Read as names they are a zoo. Read as *choices* they are few: how token losses are
# averaged, what the rewards are divided by, which ratio is held back and how, which groups and
# which tokens are trained on. This page takes the choices one at a time and shows what each does,
# by sums that are exact and on a model that is small enough to be measured exactly.
#
# | section | choice | field in `rl/grpo_variants_engine.py` | source |
# | --- | --- | --- | --- |
# | 1 | names are bundles of choices | `variant` | |
# | 2 | how token losses are averaged | `reducer` | Dr. GRPO, arXiv:2503.20783 |
# | 3 | what rewards are divided by | `reward_scale` | Dr. GRPO, arXiv:2503.20783 |
# | 4 | the upper clip | `clip_high` | DAPO, arXiv:2503.14476 |
# | 5 | one ratio per response | `surrogate` | GSPO, arXiv:2507.18071 |
# | 6 | a weight or a gate for the clip | `surrogate` | CISPO, arXiv:2506.13585; SAPO, arXiv:2511.20347 |
# | 7 | which groups are trained on | `sampling_filter` | DAPO, arXiv:2503.14476 |
# | 8 | which tokens are trained on | `entropy_top_share`, `off_policy_mask` | 2506.01939, 2512.02556 |
# | 9 | all of them side by side | `variant` | |
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about half a minute on one CPU core. GRPO itself is
# explained in [07_grpo](07_grpo.ipynb). The page before this one:
# [12_single_model_grpo](12_single_model_grpo.ipynb); the next:
# [14_kl_estimators](14_kl_estimators.ipynb).

# %%
import copy
import inspect
import math
import random

import matplotlib.pyplot as plt
import torch
from torch import Tensor

try:
    from data.collate import collate_responses
    from data.records import PromptRecord
    from gpt.common import MetricLog, make_generator
    from gpt.generate import SamplingParams
    from gpt.log_probs import token_log_probs, token_scores
    from gpt.model import GPT, GPTConfig
    from gpt.tokenizer import build_tokenizer
    from rl import grpo_engine, grpo_variants_engine
    from rl.batches import dynamic_sampling
    from rl.batches.rollout import sample_rollout
    from rl.equations import losses
    from rl.equations.advantages import group_advantages
    from rl.equations.losses import clipped_surrogate, gspo, gspo_token, sequence_mean, token_mean
    from rl.equations.token_rewards import overlong_penalty
    from rl.grpo_variants_engine import REDUCERS, SURROGATES, VARIANTS, from_variant
    from rl.rewards.sources import RuleReward
    from rl.training.evaluation import format_table, running_mean
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

# %%
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
torch.set_printoptions(precision=3, sci_mode=False, linewidth=100)

# %% [markdown]
# ## 1. Names are bundles of choices
#
# The engine has one loop. A published name fills in some fields before all other flags, and what is
# given by hand still wins. This is all there is to a variant:

# %%
for name, choices in VARIANTS.items():
    print(f"{name:8}", ", ".join(f"{field}={value}" for field, value in choices.items()) or "-")

plain = from_variant("grpo")
assert (
    from_variant("dapo").clip_high == 0.28 and from_variant("dapo", clip_high=0.5).clip_high == 0.5
)

# %% [markdown]
# All of them go through one loss, which looks up the chosen pieces in three tables of small
# functions:
#
# $$\mathcal{L} = \mathrm{reduce}_{i,t} \left[ \mathcal{L}^{policy}_{i,t} + \beta \,
# k(\pi_\theta, \pi_{ref})_{i,t} \right] - c_H \, \mathrm{mean}_{i,t} H_{i,t}$$

# %%
text = inspect.getsource(grpo_variants_engine)
print(text[text.index("# (config, log_probs") : text.index("# --- the loss")])
print(inspect.getsource(grpo_variants_engine.variant_loss))

# %% [markdown]
# **A world to measure in.** Prompts are three letters of `a` to `h`, 512 in all; a response is right
# if it *begins with the last letter of the prompt*. What follows up to the end is noise that nobody
# grades. The base model has learned the habit for some letters only: `a b c` are easy, `d e f` come
# out right now and then, `g h` as seldom as by guessing. The model is tiny, so that its true success
# rate, the chance that *one* response is right, can be read off the probabilities of all 512
# prompts, without sampling.

# %%
LETTERS = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})
EASE = dict(zip("abcdefgh", [0.97] * 3 + [0.3] * 3 + [0.02] * 2, strict=True))
PROMPTS = [PromptRecord(a + b + c) for a in EASE for b in EASE for c in EASE]
echo = RuleReward(lambda record, text, ended: float(text[:1] == record.prompt[-1]), "echo")

source = random.Random(0)
base = GPT(GPTConfig(LETTERS.n_vocab, context=16, n_layer=2, n_head=2, n_embd=32))
base.initialize(make_generator(0, "weights"))
optimizer = torch.optim.AdamW(base.parameters(), lr=5e-3)
for _ in range(250):
    chosen = [record.prompt for record in source.choices(PROMPTS, k=64)]
    first = [p[-1] if source.random() < EASE[p[-1]] else source.choice("abcdefgh") for p in chosen]
    rest = ["".join(source.choices("abcdefgh", k=source.randint(0, 6))) for _ in chosen]
    answers = [LETTERS.encode(f + r) + [LETTERS.eos_id] for f, r in zip(first, rest, strict=True)]
    batch = collate_responses([LETTERS.encode(p) for p in chosen], answers, LETTERS.eos_id)
    loss = token_mean(-token_log_probs(base, batch), batch.response_mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# %%
@torch.no_grad()
def success_rates(policy: GPT) -> Tensor:
    """The exact probability of a right response for every prompt, (512,)."""
    tokens = torch.tensor([LETTERS.encode(record.prompt) for record in PROMPTS])
    return policy(tokens)[:, -1].softmax(-1).gather(1, tokens[:, -1:])[:, 0]


for letters in ("abc", "def", "gh"):
    rates = [
        r for r, p in zip(success_rates(base), PROMPTS, strict=True) if p.prompt[-1] in letters
    ]
    print(f"prompts that end in one of {letters:3}: success rate {sum(rates) / len(rates):.3f}")
print(f"all of them: {success_rates(base).mean():.3f}")


# %% [markdown]
# First the promise that the names rest on. With its default choices the engine *is* GRPO: the same
# run, with several updates per batch, ends in the same weights to the last bit.


# %%
def exact(policy: GPT, reference: GPT | None, step: int) -> dict[str, float]:
    """Takes the place of sampling validation prompts."""
    return {"success_rate": float(success_rates(policy).mean())}


def run(variant: str = "grpo", **changes) -> tuple[list[dict], GPT]:
    """Train a copy of the base model; returns the metrics and the policy."""
    shared = dict(prompts_per_step=8, group_size=8, lr=2e-3, warmup=3, stop_kl=None)
    shared |= dict(max_new_tokens=8, max_norm=1e9, eval_every=1, steps=40, kl_coef=0.0)
    config = from_variant(variant, **(shared | changes))
    policy, log = copy.deepcopy(base), MetricLog(config.steps)
    rows = grpo_variants_engine.train(config, policy, LETTERS, echo, PROMPTS, log, validate=exact)
    return rows, policy


_, ours = run(steps=3, updates_per_batch=2, kl_coef=0.1)
theirs, log = copy.deepcopy(base), MetricLog(3)
settings = dict(prompts_per_step=8, group_size=8, lr=2e-3, warmup=3, stop_kl=None, kl_coef=0.1)
settings |= dict(max_new_tokens=8, max_norm=1e9, steps=3, updates_per_batch=2)
grpo_engine.train(grpo_engine.GRPOConfig(**settings), theirs, LETTERS, echo, PROMPTS, log)
same = [torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)]
print(f"{sum(same)} of {len(same)} tensors are equal to those of rl/grpo_engine.py, bit for bit")
assert all(same)

# %% [markdown]
# ## 2. `reducer`: who pays for a long answer
#
# GRPO averages over the tokens of a response first, then over responses (arXiv:2402.03300, Eq. 3).
# A token of a long response therefore weighs less than a token of a short one. DAPO
# ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476), Eq. 12) averages over all tokens at once,
# Dr. GRPO ([arXiv:2503.20783](https://arxiv.org/abs/2503.20783)) divides by the constant that a
# response could at most have been long. The weight of each token of a response of 4 tokens and one
# of 16, in a budget of 32:

# %%
config = from_variant("grpo", max_new_tokens=32)
mask = torch.arange(16) < torch.tensor([[4], [16]])
rows = []
for name, reduce in REDUCERS.items():
    x = torch.zeros(2, 16, requires_grad=True)
    (weight,) = torch.autograd.grad(reduce(config, x, mask, mask), x)
    short, long = weight[0, 0].item(), weight[1, 0].item()
    rows.append([name, short, long, short / long, 16 * long / (4 * short)])
print(format_table(
    ["", "token of 4", "token of 16", "ratio", "long response / short one"], rows
))  # fmt: skip
assert [round(row[3]) for row in rows] == [4, 1, 1, 1]

# %% [markdown]
# Is that a matter of taste? A policy whose length has *nothing* to do with its reward answers that:
# whatever the loss does to its length is a mistake of the loss. A quarter of the responses are
# right, by luck. In both kinds, right and wrong, the policy stops after each token with a
# probability of its own, $s = 0.15$ at the start, so a response of $L$ tokens has
# $\log \pi = \log s + (L - 1) \log (1 - s)$. By the sum over all lengths, the expected push on the
# stop logit from wrong responses with $A = -1$:

# %%
s, budget = 0.15, 64
lengths = torch.tensor([*range(1, budget + 1), budget]).double()  # the last one: cut off
stops = torch.tensor([1.0] * budget + [0.0]).double()
p = s**stops * (1 - s) ** (lengths - stops)
slope = stops * (1 - s) - (lengths - stops) * s  # d log pi / d logit
torch.testing.assert_close(p.sum(), torch.tensor(1.0).double())

pushes = {"sequence_mean": -(p * slope / lengths).sum(), "sequence_sum": -(p * slope).sum()}
for name, push in pushes.items():
    print(f"{name:13} {round(float(push), 6) + 0.0:+.6f}")
assert pushes["sequence_mean"] < -0.1 and abs(pushes["sequence_sum"]) < 1e-9

# %% [markdown]
# (`constant_length_mean` and, for a given batch, `token_mean` are `sequence_sum` times a number.) The
# push should be 0. Under `sequence_mean` it is not: a wrong response escapes part of its punishment
# by being long, so wrong answers learn not to stop, and right ones, where the signs are turned
# round, to stop early. Let it learn, with the engine's own reducers and 512 responses a step:


# %%
def drift(reducer: str, steps: int = 120) -> Tensor:
    """Mean length of (right, wrong) responses over the steps, (steps, 2); groups of 8."""
    generator, logit = make_generator(0, "lengths"), torch.full((2,), math.log(s / (1 - s)))
    config, curve = from_variant("grpo", max_new_tokens=budget), []
    unit = {"constant_length_mean": budget, "sequence_sum": 1.0}.get(reducer, 1 / s)
    for _ in range(steps):
        kind = (torch.rand(512, generator=generator) > 0.25).long()  # 0 right, 1 wrong
        stops = torch.rand(512, budget, generator=generator) < logit.sigmoid()[kind, None]
        mask = (stops.cumsum(1) - stops.long()) == 0
        curve.append(torch.stack([mask[kind == k].sum(1).float().mean() for k in (0, 1)]))
        theta = logit.clone().requires_grad_()
        of_row = theta[kind, None]
        log_probs = torch.where(stops, of_row.sigmoid().log(), (-of_row).sigmoid().log())
        advantages = group_advantages((kind == 0).float(), 8)
        token_loss = clipped_surrogate(log_probs, log_probs, advantages, 0.2, 0.2)
        loss = REDUCERS[reducer](config, token_loss, mask, mask)
        logit = logit - 0.02 * unit * torch.autograd.grad(loss, theta)[0]
    return torch.stack(curve)


curves = {name: drift(name) for name in REDUCERS}

# %%
figure, axes = plt.subplots(1, 4, figsize=(12, 3.2), layout="constrained", sharey=True)
for axis, (name, curve) in zip(axes, curves.items(), strict=True):
    axis.plot(curve[:, 1], color="tab:red", label="wrong responses")
    axis.plot(curve[:, 0], color="tab:green", label="right responses")
    axis.axhline(1 / s, color="grey", lw=0.8, ls="--")
    axis.set(title=name, xlabel="step", ylabel="mean length (tokens)")
    axis.label_outer()
axes[0].legend()
figure.suptitle("The reward does not depend on the length, the loss does")
plt.show()

for name, curve in curves.items():
    right, wrong = curve[-10:].mean(0).tolist()
    print(f"{name:21} right {right:5.1f}, wrong {wrong:5.1f} tokens (start {1 / s:.1f})")
assert curves["sequence_mean"][-10:, 1].mean() > 2 * curves["sequence_mean"][0, 1]
for name in ("token_mean", "sequence_sum", "constant_length_mean"):
    assert (curves[name][-10:].mean(0) - 1 / s).abs().max() < 2.5

# %% [markdown]
# The dashed line is where the lengths should have stayed. This is the "length bias" of the Dr. GRPO
# paper: wrong answers that grow are a product of the average, not of thinking. The others hold the
# line up to noise. They let a long response weigh more in all (the last column of the table above),
# which is what a sum of log-probabilities means.
#
# ## 3. `reward_scale`: which prompts are loud
#
# $$A_i = \frac{R_i - \mathrm{mean}(R_{1..G})}{\mathrm{std} + \epsilon}, \qquad \mathrm{std}
# \text{ of the group, of the batch, or } 1$$
#
# Dividing by the group's own standard deviation gives every group the same sum of squares, however
# little its rewards differ. How loud does that make a group of eight with $k$ right responses? The
# sum of its $|A_i|$, in a batch that holds each $k$ once:

# %%
G = 8
batch = torch.tensor([[1.0] * k + [0.0] * (G - k) for k in range(G + 1)]).flatten()
loudness = {
    scale: group_advantages(batch, G, scale=scale).abs().view(-1, G).sum(1)
    for scale in ("group", "batch", "none")
}
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.4), layout="constrained")
for (scale, values), mark in zip(loudness.items(), "osx", strict=True):
    left.plot(range(G + 1), values, marker=mark, label=f"{scale}")
    right.plot(range(1, G), (values / loudness["none"])[1:-1], marker=mark)
left.set(xlabel="right responses out of 8", ylabel="sum of |A| of the group")
right.set(xlabel="right responses out of 8", ylabel="factor on R - mean(R)", ylim=(0, None))
left.legend(title="reward_scale")
figure.suptitle("How loud a group is, and what its centred rewards are multiplied by")
plt.show()
for values in loudness.values():
    assert values[0] == values[-1] == 0 and values.argmax() == 4

# %%
factor = (loudness["group"] / loudness["none"])[1:-1]
print("1 / std for 1 to 7 right responses:", factor)
print(f"nearly solved or nearly hopeless against half solved: {factor[0] / factor[3]:.2f}")
assert torch.allclose(factor, factor.flip(0)) and 1.4 < factor[0] / factor[3] < 1.6

# %% [markdown]
# Right panel: the group's own deviation turns up the nearly solved and the nearly hopeless prompts,
# the "difficulty bias" of the Dr. GRPO paper; with more responses per group, by more. With rewards
# of a model, which are hardly ever equal, there is no bound at all. Four answers that differ by a
# hair, and four that differ by a world:

# %%
hair, world = torch.tensor([0.50, 0.50, 0.50, 0.51]), torch.tensor([0.0, 0.0, 0.0, 1.0])
for scale in ("group", "batch", "none"):
    of_hair, of_world = group_advantages(torch.cat([hair, world]), 4, scale=scale).view(2, 4)
    print(f"{scale:6} a hair", of_hair, " a world", of_world)
    ratio = float(of_world[-1] / of_hair[-1])
    assert (ratio < 1.1) if scale == "group" else math.isclose(ratio, 100, rel_tol=1e-3)

# %% [markdown]
# `group` makes noise of the reward model as loud as its verdict. `batch` keeps the proportions and
# still takes out the unit, `none` (Dr. GRPO) leaves the unit to the learning rate.
#
# ## 4. `clip_high`: room for what is rare
#
# The clip holds the *ratio* below $1 + \epsilon$. That is a different freedom for different tokens:

# %%
print("probability      at most, epsilon 0.2     at most, epsilon 0.28")
for p_old in (0.01, 0.1, 0.5, 0.9):
    print(f"{p_old:11.2f} {min(1, p_old * 1.2):24.4f} {min(1, p_old * 1.28):25.4f}")

# %% [markdown]
# Something common may become certain in one batch, something rare stays rare: DAPO's argument
# (section 3.1) for `clip_high` 0.28. Ten actions; the best one, worth 1, has a probability of 0.002,
# the commonest one is worth 0.5, the others nothing. Each batch holds every action in exactly the
# right proportion, so that no luck is involved, and is used for eight updates with Adam:


# %%
def rare_action(clip_high: float, batches: int = 30) -> tuple[list[float], list[float]]:
    """Probability of the best action after each batch, and by which factor the batch raised it."""
    logits = torch.tensor([0.002, 0.75, *[0.031] * 8]).log().requires_grad_()
    reward = torch.tensor([1.0, 0.5, *[0.0] * 8])
    optimizer = torch.optim.Adam([logits], lr=0.05, betas=(0.9, 0.95))
    rare, growth = [], []
    for _ in range(batches):
        old = logits.detach().log_softmax(-1)
        mean = old.exp() @ reward
        advantages = (reward - mean) / (old.exp() @ (reward - mean).square()).sqrt()
        for _ in range(8):
            new = logits.log_softmax(-1)
            loss = clipped_surrogate(new[None], old[None], advantages[None], 0.2, clip_high)
            optimizer.zero_grad()
            (old.exp() * loss[0]).sum().backward()
            optimizer.step()
        rare.append(float(logits.detach().softmax(-1)[0]))
        growth.append(rare[-1] / float(old[0].exp()))
    return rare, growth


# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.4), layout="constrained")
results = {high: rare_action(high) for high in (0.2, 0.28, 1e6)}
for (high, (rare, growth)), color in zip(results.items(), ("C0", "C1", "grey"), strict=True):
    left.plot(range(1, 31), rare, color=color, label=f"{high}" if high < 1 else "none")
    right.plot(range(1, 31), growth, color=color)
    if high < 1:
        right.axhline(1 + high, color=color, lw=0.8, ls="--")
left.set(xlabel="batch", ylabel="probability of the best action")
right.set(xlabel="batch", ylabel="grown in this batch by a factor of")
left.legend(title="clip_high")
figure.suptitle("A rare good action under the upper clip (dashed: 1 + clip_high)")
plt.show()

# %%
needed = {}
for high, (rare, growth) in results.items():
    needed[high] = next(i for i, p in enumerate(rare, 1) if p > 0.5)
    name = f"clip_high {high}" if high < 1 else "no upper clip"
    print(
        f"{name:14} above one half after {needed[high]} batches, fastest growth {max(growth):.2f}"
    )
assert needed[0.2] > needed[0.28] > needed[1e6]
assert max(results[0.2][1]) < 0.8 * max(results[1e6][1])

# %% [markdown]
# The effect is there and it is no wall: past the bound the good action has no gradient of its own,
# but the others are still pushed down, and what they lose it gains. And the bound has to be
# *reached*. With one update per batch and one minibatch every ratio is 1, and no clip range does
# anything: look at `clip_high_fraction` before believing in one.
#
# ## 5. `surrogate`: one ratio per response
#
# GSPO ([arXiv:2507.18071](https://arxiv.org/abs/2507.18071), Eqs. 5 and 7) objects that the reward
# belongs to the response and the ratio to the token. It clips
#
# $$s_i = \left( \frac{\pi_\theta(y_i \mid x)}{\pi_{old}(y_i \mid x)} \right)^{1 / L_i} =
# \exp \frac{1}{L_i} \sum_t \log \frac{\pi_\theta(y_{i,t})}{\pi_{old}(y_{i,t})}$$
#
# Without the root it is the *product* of the token ratios, as in clipped RLOO (`sequence`). What the
# root is for shows on responses of very different lengths: a random model, whose parameters are
# moved a little at random, scored before and after.

# %%
print(inspect.getsource(gspo))

# %%
old_model = GPT(GPTConfig(LETTERS.n_vocab, context=72, n_layer=2, n_head=2, n_embd=32))
old_model.initialize(make_generator(1, "weights"))
new_model, noise = copy.deepcopy(old_model), make_generator(1, "noise")
for parameter in new_model.parameters():
    shift = torch.randn(parameter.shape, generator=noise)
    parameter.data += 0.5 * float(parameter.detach().std(correction=0)) * shift
rollout = sample_rollout(
    old_model, LETTERS, PROMPTS[:64], SamplingParams(max_new_tokens=64), 16, make_generator(1, "")
)
with torch.no_grad():
    change = token_log_probs(new_model, rollout.sequences) - rollout.log_probs
L = rollout.lengths
product = change.sum(1)  # log of the product of the ratios
root = product / L  # log of GSPO's ratio
print(f"{len(L)} responses of {L.min()} to {L.max()} tokens")

# %%
figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.4), layout="constrained")
per_token = L[:, None].expand_as(change)[rollout.response_mask]
for axis, x, y, title in (
    (axes[0], per_token, change[rollout.response_mask], "token"),
    (axes[1], L, product, "product (sequence)"),
    (axes[2], L, root, "root of the product (gspo)"),
):
    axis.plot(x, y, ".", markersize=2, alpha=0.5)
    axis.axhspan(math.log(0.8), math.log(1.2), color="tab:green", alpha=0.25)
    axis.set(title=title, xlabel="response length (tokens)", ylabel="log ratio", ylim=(-1.6, 1.6))
    axis.label_outer()
figure.suptitle("The same small change of the model, seen through three ratios (green: 0.8 to 1.2)")
plt.show()

# %%
table, bins = [], [(1, 2), (3, 8), (9, 20), (21, 64)]
for low, high in bins:
    rows = (L >= low) & (L <= high)
    tokens = change[rows][rollout.response_mask[rows]]
    table.append(
        [f"{low} to {high}", *(float(x.std()) for x in (tokens, product[rows], root[rows]))]
    )
print(format_table(["length", "std: token", "product", "root"], table))
assert table[-1][2] > 2.5 * table[0][2] and table[-1][3] < 0.6 * table[0][3]
for name, x, low, high in (
    ("token", change[rollout.response_mask], 0.2, 0.2), ("product", product, 0.2, 0.2),
    ("root", root, 0.2, 0.2), ("root", root, 3e-4, 4e-4),
):  # fmt: skip
    outside = ((x.exp() < 1 - low) | (x.exp() > 1 + high)).float().mean()
    print(f"{name:8} outside 1 - {low} to 1 + {high}: {outside:.1%}")

# %% [markdown]
# The product drifts out of any range as responses get longer, so a long response is clipped for its
# length. The root calms down with the length, and needs a range of its own: under 0.2 it would
# never be clipped, under the paper's 3e-4 and 4e-4 nearly everything is that has been moved at all.
# (The change here is one of a thousand possible ones. How much is clipped in a run is in
# `clip_low_fraction` and `clip_high_fraction`.)
#
# GSPO-token (Eqs. 13 and 14) writes the same ratio so that each token may have an advantage of its
# own. With one per response it is GSPO, in value and gradient; and whoever averages either over
# tokens multiplies each response by its length, so the engine refuses:

# %%
advantages = torch.randn(len(L), 1, generator=noise)
gradients = []
for form in (gspo, gspo_token):
    x = (rollout.log_probs + change).requires_grad_()
    mask = rollout.response_mask
    token_loss = form(x, rollout.log_probs, advantages, mask, 0.05, 0.05)
    gradients.append(torch.autograd.grad(sequence_mean(token_loss, mask), x)[0])
torch.testing.assert_close(*gradients)
try:
    from_variant("gspo", reducer="token_mean")
except ValueError as error:
    print("refused:", error)

# %% [markdown]
# ## 6. `surrogate`: what happens to a token that has moved too far
#
# The clip silences it. A rare but decisive token ("wait", "however") is often the first to move far
# and is then heard no more in this batch. CISPO
# ([arXiv:2506.13585](https://arxiv.org/abs/2506.13585), Eqs. 4 and 5) clips the *weight* of
# $\log \pi$ and keeps every gradient; SAPO ([arXiv:2511.20347](https://arxiv.org/abs/2511.20347))
# replaces the edge by a sigmoid:
#
# $$\mathcal{L}^{CISPO} = -\mathrm{sg}[\min(\rho, 1 + \epsilon_{high})] \, A \log \pi, \qquad
# \mathcal{L}^{SAPO} = -\tfrac{4}{\tau} \sigma(\tau (\rho - 1)) \, A$$
#
# with $\tau = 1$ for $A > 0$ and $1.05$ otherwise. The gradient for $\log \pi$ of the token, over the
# ratio:


# %%
def push(
    config: grpo_variants_engine.GRPOVariantsConfig, ratios: Tensor, advantage: float
) -> Tensor:
    """-d loss / d log pi for tokens at these ratios, the direction in which log pi is moved."""
    x = ratios.log()[:, None].requires_grad_()  # one token a response, log pi_old = 0
    mask, A = torch.ones_like(x, dtype=torch.bool), torch.full_like(x, advantage)
    loss = SURROGATES[config.surrogate](config, x, torch.zeros_like(x), A, mask)
    if config.dual_clip is not None:
        loss = losses.dual_clip(loss, A, config.dual_clip)
    return -torch.autograd.grad(loss.sum(), x)[0][:, 0]


SHAPES = {
    "token": from_variant("grpo"),
    "token, dual clip 3": from_variant("grpo", dual_clip=3.0),
    "cispo": from_variant("cispo"),
    "sapo": from_variant("sapo"),
}
ratios = torch.linspace(0.02, 4, 400)
figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
for axis, A in zip(axes, (1.0, -1.0), strict=True):
    for (name, config), style in zip(SHAPES.items(), ("-", "--", "-", "-"), strict=True):
        axis.plot(ratios, push(config, ratios, A), style, lw=2, alpha=0.8, label=name)
    axis.axvline(1, color="grey", lw=0.8)
    axis.set(xlabel="ratio pi / pi_old", ylabel="push on log pi", title=f"A = {A:+.0f}")
axes[0].legend()
plt.show()

# %%
at = torch.tensor([0.1, 0.5, 1.0, 1.1, 1.5, 3.5])
for A in (1.0, -1.0):
    print(f"A = {A:+.0f}; ratio  " + "".join(f"{r:8.2f}" for r in at))
    for name, config in SHAPES.items():
        print(f"{name:18}" + "".join(f"{g:8.3f}" for g in push(config, at, A) + 0.0))
for config in SHAPES.values():  # at ratio 1 all of them are REINFORCE
    torch.testing.assert_close(push(config, torch.ones(1), -1.0), torch.tensor([-1.0]))
assert push(SHAPES["token"], at, 1.0)[-2:].tolist() == [0, 0]
assert push(SHAPES["token"], at, -1.0)[-1] < -3.4 and push(SHAPES["cispo"], at, -1.0)[-1] > -1.3
assert push(SHAPES["token, dual clip 3"], at, -1.0)[-1] == 0

# %% [markdown]
# - **token**: silent beyond the edge on the promising side; on the other side there is no bound, a
#   bad token at ratio 3.5 pulls three and a half times as hard. **Dual clip** ends that.
# - **cispo** never falls silent, and no token pulls harder than $1 + \epsilon_{high}$. Here that is
#   1.2, the engine's `clip_high`. MiniMax-M1 does not print its bound. ScaleRL
#   ([arXiv:2510.13786](https://arxiv.org/abs/2510.13786)) states the bound itself and takes 5, which
#   is `clip_high` 4 in these terms.
# - **sapo** follows the unclipped push near 1, bends, and fades far away, for both signs of $A$
#   nearly alike. (The push is $\rho$ times the slope of the gate, so its summit is not at 1.)
#
# ## 7. `sampling_filter`: which groups are trained on
#
# A group whose rewards are all equal has no advantage and teaches nothing. With a success rate $p$
# that happens with probability $p^G + (1-p)^G$. In the world of this page, exactly:

# %%
rates = success_rates(base)
silent = rates**8 + (1 - rates) ** 8
for letters in ("abc", "def", "gh"):
    of = torch.tensor([record.prompt[-1] in letters for record in PROMPTS])
    print(f"ends in {letters:3}: {silent[of].mean():.2f} of the groups of 8 are silent")
print(f"all prompts: {silent.mean():.2f}")
assert 0.2 < silent.mean() < 0.6

# %% [markdown]
# DAPO drops such groups and samples other prompts until the batch is full. The engine asks for as
# many prompts as are missing, at most `max_resamples` times; a step of which nothing is left is
# skipped. Forty-five steps of eight groups, three times each with other random numbers:

# %%
print(inspect.getsource(dynamic_sampling.GroupBuffer))

# %%
steps = dict(steps=45, minibatches=1)
runs = {
    name: [run(sampling_filter=name, seed=seed, **steps)[0] for seed in (0, 1, 2)]
    for name in ("none", "dynamic")
}


def column(rows: list[dict], key: str) -> list[float]:
    return [row.get(key, 64) for row in rows]  # without the filter: 8 prompts, 8 responses each


figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
for (name, three), color in zip(runs.items(), ("tab:blue", "tab:orange"), strict=True):
    for number, rows in enumerate(three):
        label, solved = (name if number == 0 else None), column(rows, "success_rate")
        sampled = torch.tensor(column(rows, "sampled_responses")).cumsum(0)
        axes[0].plot(solved, color=color, label=label)
        axes[1].plot(sampled, solved, color=color)
        axes[2].plot(running_mean(column(rows, "zero_spread_groups"), 10), color=color)
axes[0].set(xlabel="step", ylabel="success rate (exact)")
axes[1].set(xlabel="responses sampled", ylabel="success rate (exact)")
axes[2].set(xlabel="step", ylabel="silent groups (share, mean of 10)")
axes[0].legend(title="sampling_filter")
plt.show()

# %%
budget = min(sum(column(rows, "sampled_responses")) for rows in runs["none"])  # 45 full batches
table = []
for name, three in runs.items():
    for rows in three:
        sampled, solved = (
            torch.tensor(column(rows, "sampled_responses")),
            column(rows, "success_rate"),
        )
        dropped = 8 * sum(row.get("dropped_groups", 0) for row in rows)
        within = int((sampled.cumsum(0) <= budget).sum())  # steps that the budget pays for
        last, equal = (sum(solved[n - 10 : n]) / 10 for n in (45, within))
        table.append([name, int(sampled.sum()), int(sampled.sum()) - dropped, last, within, equal])
columns = ["", "sampled", "trained on", "success, 45 steps", "steps", "success, same samples"]
print(format_table(columns, table))
assert min(row[1] for row in table[3:]) > 1.4 * max(row[1] for row in table[:3])
assert max(row[2] for row in table[3:]) <= budget
assert sum(row[5] for row in table[3:]) < sum(row[5] for row in table[:3])

# %% [markdown]
# What the filter buys and what it costs: every update has a full batch of groups that teach
# something, and nearly every second response is thrown away for it. Counted in steps (left panel)
# it is at least as good; counted in samples (middle panel, last column), in this world, it is not
# worth its price: a prompt that is dropped has cost as much as one that is kept. Where an update
# costs more than its samples the sum comes out differently. (`reward` in the log is of *everything*
# that was sampled; of the kept groups alone it would never come near 1.)
#
# A second filter of DAPO's sits in the reward: responses that near the budget are made to feel it
# (Eq. 13, `overlong_buffer`), or are left out of the loss when they are cut off (`mask_truncated`).

# %%
lengths = torch.tensor([10, 38, 40, 42, 44, 46, 48])
print("length ", lengths.tolist())
print("penalty", [round(x, 2) for x in overlong_penalty(lengths, 48, 10).tolist()])
assert from_variant("dapo", max_new_tokens=48).overlong_tokens == 9  # a fifth, as in the paper

# %% [markdown]
# ## 8. Which tokens are trained on
#
# **High entropy.** Most tokens of a text are forced by the ones before; only some are decisions.
# [arXiv:2506.01939](https://arxiv.org/abs/2506.01939) keeps the policy loss on the fifth of a
# batch's tokens at which the policy is least certain, and divides by all of them as before. Here
# half of the tokens are kept, so that there is more to see. Two answers each to an easy, a middling
# and a hard prompt; tokens that stay are marked, `.` is the EOS:

# %%
print(inspect.getsource(losses.high_entropy_mask))

# %%
asked = [PromptRecord(text) for text in ("dga", "abe", "fch")]
rollout = sample_rollout(
    base, LETTERS, asked, SamplingParams(max_new_tokens=8), 64, make_generator(2, "tokens")
)
with torch.no_grad():
    entropy = token_scores(base, rollout.sequences).entropy
kept = losses.high_entropy_mask(entropy, rollout.response_mask, 0.5)
for row in (0, 1, 64, 65, 128, 129):
    text = rollout.responses[row] + "." * int(rollout.has_eos[row])
    marks = "".join("^" if mark else " " for mark in kept[row].tolist())
    numbers = " ".join(f"{h:.2f}" for h in entropy[row][rollout.response_mask[row]].tolist())
    print(f"{rollout.records[row].prompt} -> {text:8}   entropy {numbers}\n       {marks}")

# %%
first = kept[:, 0].view(3, 64).float().mean(1)  # the one token that decides, per prompt
later = kept[:, 1:][rollout.response_mask[:, 1:]].float().mean()
for record, share in zip(asked, first, strict=True):
    print(f"first token after {record.prompt}: kept in {share:.0%} of the responses")
print(f"all later tokens: {later:.0%}")
assert first[0] == 0 and later > 0.5

# %% [markdown]
# Here the choice is a bad one: the letters that nobody grades are the least certain of all. Entropy
# finds decisions in texts where decisions are rare and the rest is forced. It knows nothing of
# rewards, and a world in which chatter is free is the counterexample.
#
# **Left behind.** With several updates per batch a bad response may have lost its probability long
# before the batch is used up. DeepSeek-V3.2 ([arXiv:2512.02556](https://arxiv.org/abs/2512.02556),
# Eq. 9) drops its policy loss from then on, and keeps the KL. Good responses are never dropped:

# %%
print(inspect.getsource(losses.off_policy_sequence_mask))
lost = torch.tensor([[0.9, 0.4, 0.0], [0.9, 0.4, 0.0], [0.3, 0.2, 0.1]])  # log pi_old - log pi
mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 1]]).bool()
advantages = torch.tensor([[-1.0], [1.0], [-1.0]])
stays = losses.off_policy_sequence_mask(-lost, torch.zeros(3, 3), advantages, mask, threshold=0.5)
for row in range(3):
    mean = float(lost[row][mask[row]].mean())
    print(f"A {advantages[row, 0]:+.0f}, lost {mean:.2f} nats a token: stays {stays[row, 0]}")
assert stays[:, 0].tolist() == [False, True, True]

# %% [markdown]
# ## 9. All of them side by side
#
# Every variant for forty-five steps, two minibatches each, so that there are ratios to hold back,
# from the same start, with the same random numbers; twice each.

# %%
steps = dict(steps=45, minibatches=2)
runs = {name: [run(name, seed=seed, **steps)[0] for seed in (0, 1)] for name in VARIANTS}
figure, axes = plt.subplots(2, 3, figsize=(11, 5.4), layout="constrained", sharex=True, sharey=True)
for axis, (name, pair) in zip(axes.flat, runs.items(), strict=True):
    for rows in runs["grpo"]:
        axis.plot(column(rows, "success_rate"), color="lightgrey")
    for rows in pair:
        axis.plot(column(rows, "success_rate"), color="tab:blue")
    axis.set(title=name, xlabel="step", ylabel="success rate (exact)")
    axis.label_outer()
figure.suptitle("Each variant (grey: grpo)")
plt.show()

# %%
table = []
for name, pair in runs.items():
    rows = pair[0] + pair[1]
    clipped = [
        row["clip_low_fraction"] + row["clip_high_fraction"] for row in rows if "loss" in row
    ]
    last = [sum(column(run_rows, "success_rate")[-10:]) / 10 for run_rows in pair]
    samples = sum(column(rows, "sampled_responses")) / 2
    table.append([name, *last, sum(clipped) / len(clipped), int(samples)])
columns = ["", "success rate, run 1", "run 2", "clipped tokens", "samples a run"]
print(format_table(columns, table))
print(f"success rate at the start: {success_rates(base).mean():.3f}")
clip, samples = ({row[0]: row[k] for row in table} for k in (3, 4))
assert clip["gspo"] > 0.05 > clip["grpo"] and clip["sapo"] == 0
assert samples["dapo"] > 1.4 * samples["grpo"]
assert min(min(row[1:3]) for row in table) > success_rates(base).mean() + 0.15

# %% [markdown]
# What to take from this, and what not:
#
# - All of them learn. Between two runs of *one* variant lies about as much as between most pairs of
#   variants; a single curve that beats another proves nothing. A tiny model at 64 responses a batch
#   cannot say which is best for a large one.
# - What differs reliably is what the choices say: GSPO's narrow range clips a share of tokens that
#   the others hardly ever clip, DAPO pays for its steps with samples, SAPO has nothing to clip.
# - So choose by the *reason*: long answers of very different lengths (sections 2 and 5), several
#   updates per batch (sections 4 and 6), many silent groups (section 7), a noisy learned reward
#   (section 3). Where the reason is absent the choice does nothing.
#
# ## Exercise
#
# 1. Write the config of "Dr. GRPO with clip-higher, a KL penalty of 0.05 that stays unbiased over
#    four updates per batch, and truncated responses left out".
# 2. For which success rates $p$ is a group of $G = 8$ silent in at most one case out of ten? And of
#    $G = 64$?
# 3. Truncated responses leave the loss but stay in the mean of their group. What would go wrong if
#    they left that, too?
#
# <details>
# <summary>Answer</summary>
#
# 1. `from_variant("dr_grpo", clip_high=0.28, kl_coef=0.05, kl_estimator="k3_importance",
#    updates_per_batch=4, mask_truncated=True)`. Plain k3 is unbiased for samples of the policy
#    itself, which they are no longer after the first update.
# 2. $p^8 + (1-p)^8 \le 0.1$ for $p$ from 0.25 to 0.75, $p^{64} + (1-p)^{64} \le 0.1$ from 0.035 to
#    0.965:
#
# ```python
# p = torch.linspace(0, 1, 2001).double()
# for G in (8, 64):
#     print(G, p[p**G + (1 - p) ** G <= 0.1][[0, -1]])
# ```
#
# 3. A truncated response is mostly a wrong one. Without it the mean of the group is too high, so the
#    responses that did end look worse than they are, and ending is discouraged by just those
#    prompts at which the policy fails to end.
#
# </details>
