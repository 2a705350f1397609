# %% [markdown]
# # 5. GRPO, line by line
#
# **Why.** PPO needs a second network, as large as the policy, that predicts the reward: the
# baseline against which an answer is good or bad. Group Relative Policy Optimization (Shao et al.
# 2024, DeepSeekMath, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300)) samples several answers
# to the same prompt and takes *their mean* instead. What remains is short enough to be read beside
# the paper's box. This page goes through Algorithm 1 line by line, on one rollout that can be
# printed, and then lets it run.
#
# | line of Algorithm 1 | in the paper | in `rl/grpo_engine.py` | section |
# | --- | --- | --- | --- |
# | 3 | reference model $\pi_{ref} \leftarrow \pi_\theta$ | `reference`, a frozen copy | 5 |
# | 5 | sample a batch of prompts | `prompt_batch` | 1 |
# | 6 | old policy $\pi_{old} \leftarrow \pi_\theta$ | only its log-probs are kept | 3 |
# | 7 | sample G outputs for each prompt | `sample_rollout` | 1 |
# | 8 | compute the rewards | `reward_fn` | 1 |
# | 9 | group relative advantages | `group_advantages` | 2 |
# | 10 | for GRPO iteration = 1 ... $\mu$ | `updates_per_batch` | 9 |
# | 11 | maximise the GRPO objective | `grpo_loss` | 4 to 7 |
#
# (Lines 1, 2 and 4 are the initial policy and the two outer loops; line 12 trains the reward model
# again between iterations.)
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about half a minute on one CPU core. The page before this
# one: [06_reward_model](06_reward_model.ipynb); the next:
# [08_ppo](08_ppo.ipynb).

# %%
import copy
import dataclasses
import inspect
import math

import matplotlib.pyplot as plt
import torch

try:
    from data import reviews
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

torch.set_num_threads(1)  # one thread adds up in the same order on every machine

# %%
from gpt import pretraining
from gpt.common import MetricLog, make_generator
from gpt.corpus import WorldCorpus
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from rl import grpo_engine
from rl.batches.rollout import prompt_batch, sample_rollout
from rl.equations.advantages import group_advantages
from rl.equations.kl import k1, k2, k3
from rl.equations.losses import (
    clip_acted,
    clipped_surrogate,
    likelihood_ratio,
    row_sums,
    sequence_mean,
    token_mean,
)
from rl.grpo_engine import GRPOConfig, grpo_loss
from rl.rewards.sources import RuleReward
from rl.training.evaluation import Evaluation, evaluate, format_table, running_mean

tokenizer = load_tokenizer("glassbox")

# %% [markdown]
# The policy to improve: a small base model of the reviews world, pre-trained in ten seconds as in
# [03_pretraining_and_sft](03_pretraining_and_sft.ipynb). The reward is the world's **gold reward**
# itself, so that this page is about the algorithm alone. A learned reward takes its place with one
# other argument.

# %%
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=96, n_layer=2, n_head=2, n_embd=96)
base = GPT(shape).initialize(make_generator(0, "weights"))
pretraining_config = pretraining.PretrainingConfig(
    steps=550, batch_size=16, lr=6e-3, warmup=30, eval_every=550, device="cpu"
)
corpus = WorldCorpus("reviews", tokenizer, pretraining_config.batch_size, seed=0)
log = pretraining.train(pretraining_config, base, corpus, MetricLog(550))
print(f"base model: {log[-1]['held_out_loss']:.2f} nats per token (held out)")

prompts = reviews.prompts("train")
gold = RuleReward(reviews.gold_reward, "gold reward")
params = SamplingParams(temperature=1.0, max_new_tokens=48)

# %% [markdown]
# ## 1. Lines 5, 7 and 8: prompts, G outputs each, rewards

# %%
print(inspect.getsource(sample_rollout))

# %%
G = 4
records = prompt_batch(prompts, step=0, batch_size=2, seed=0)  # line 5
rollout = sample_rollout(base, tokenizer, records, params, G, make_generator(3, "demo"))  # line 7
rewards = gold(rollout)  # (N,)  line 8

for row in range(len(rollout)):
    if row % G == 0:
        print(rollout.records[row].prompt.strip())
    print(f"  {rewards[row]:.2f}  {rollout.responses[row]}")
N, T = rollout.response_tokens.shape
print(f"\nN = {N} responses of at most T = {T} tokens, lengths {rollout.lengths.tolist()}")

# %% [markdown]
# Rows of one prompt are neighbours: rows $bG$ to $bG + G - 1$ answer prompt $b$. Everything that
# follows has the shape (N, T), one number for every response token, with a mask that ends with the
# first EOS. Sampling is at the temperature at which the policy is scored later, and nothing is cut
# off the distribution (no top-k, no top-p): else the log-probabilities would not be those of the
# sampler.

# %%
for tokens in rollout.response_mask.long().tolist():
    print(*tokens)
assert rollout.response_mask.sum(1).tolist() == rollout.lengths.tolist()
assert all(rollout.records[i] is records[i // G] for i in range(N))

# %% [markdown]
# ## 2. Line 9: the group is the baseline
#
# $$\hat A_{i,t} = \frac{r_i - \mathrm{mean}(r_1 \ldots r_G)}{\mathrm{std}(r_1 \ldots r_G)}$$
#
# the same for all tokens $t$ of a response (section 4.1.2 of the paper). An easy prompt with high
# rewards for everything teaches no more than a hard one: only the difference to the neighbours
# counts.

# %%
print(inspect.getsource(group_advantages))

# %%
example = torch.tensor([1.0, 2, 3, 4, 2, 2, 2, 2])
advantages = group_advantages(example, group_size=4)
print("rewards   ", example.tolist())
print("advantages", [round(a, 3) for a in advantages[:, 0].tolist()])

std = math.sqrt(5 / 3)  # of 1, 2, 3, 4, with n - 1
wanted = torch.tensor([-1.5, -0.5, 0.5, 1.5]) / (std + 1e-4)
assert torch.allclose(advantages[:4, 0], wanted)
assert (advantages[4:] == 0).all()  # all equal: nothing to learn, and no 0 / 0
assert torch.allclose(group_advantages(10 * example + 7, 4), advantages, atol=1e-3)

# %% [markdown]
# Two consequences. A group whose rewards are all equal is lost work; the share of such groups is
# logged as `zero_spread_groups`. And the scale of the rewards drops out, so that two answers that
# differ by a hair are told apart as loudly as good and terrible ones, which some see as a bias
# (Dr. GRPO, [arXiv:2503.20783](https://arxiv.org/abs/2503.20783): `scale="none"`).

# %%
advantages = group_advantages(rewards, G)  # (N, 1), for the rollout above
print(format_table(
    ["response", "reward", "advantage"],
    [[rollout.responses[i][:50], float(rewards[i]), float(advantages[i])] for i in range(N)],
))  # fmt: skip
assert advantages.shape == (N, 1)
assert torch.allclose(advantages.view(-1, G).sum(1), torch.zeros(2), atol=1e-5)

# %% [markdown]
# ## 3. Line 6: the old policy, of which only log-probs remain
#
# The objective compares the policy in training with the one that sampled:
#
# $$\rho_{i,t} = \frac{\pi_\theta(o_{i,t} \mid q, o_{i,<t})}{\pi_{old}(o_{i,t} \mid q, o_{i,<t})}$$
#
# No second copy of the weights is needed: the sampler's log-probabilities of the sampled tokens are
# enough, and the rollout has kept them. Before the first update both policies are the same, so
# every ratio is 1. This is the best test of an implementation there is: wrong temperature, dropout,
# a position off by the padding, a mask off by one, and it fails.

# %%
old_log_probs = rollout.log_probs  # (N, T), while sampling, one token at a time with a cache
with torch.no_grad():
    log_probs = token_log_probs(base, rollout.sequences)  # (N, T), one pass over whole rows
ratio = (log_probs - old_log_probs).exp()[rollout.response_mask]
print(f"largest |ratio - 1| over {len(ratio)} tokens: {(ratio - 1).abs().max():.1e}")
assert (ratio - 1).abs().max() < 1e-5

# %% [markdown]
# ## 4. Line 11, first part: the clipped surrogate
#
# The objective (arXiv:2402.03300, Eq. 3, where $\pi_{old}$ has sampled the outputs $o_i$):
#
# $$J(\theta) = E \, \frac1G \sum_{i=1}^{G} \frac{1}{L_i} \sum_{t=1}^{L_i} \left\lbrace
# \min \left[ \rho_{i,t} \hat A_{i,t}, \; \mathrm{clip}(\rho_{i,t}, 1 - \varepsilon, 1 +
# \varepsilon) \hat A_{i,t} \right] - \beta \, D_{KL} \left[ \pi_\theta \parallel \pi_{ref} \right]
# \right\rbrace$$
#
# The minimum is PPO's ([arXiv:1707.06347](https://arxiv.org/abs/1707.06347), Eq. 7). It is
# pessimistic: moving further than $\varepsilon$ in the *promising* direction earns nothing more,
# but moving in the wrong direction costs in full.

# %%
print(inspect.getsource(likelihood_ratio))
print(inspect.getsource(clipped_surrogate))
print(inspect.getsource(clip_acted))

# %% [markdown]
# What is printed is the whole formula. The line above `def` is the border
# ([gpt/border.py](../gpt/border.py)): it refuses tensors of another shape, lets only `log_probs`
# carry a gradient, and keeps garbage in the padding out of the arithmetic.

# %%
ratios = torch.linspace(0.4, 1.6, 241)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for axis, A in zip(axes, (1.0, -1.0), strict=True):
    x = ratios.log()[None].requires_grad_()  # log pi, with log pi_old = 0
    loss = clipped_surrogate(x, torch.zeros_like(x), torch.tensor([[A]]), 0.2, 0.2)
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    axis.plot(ratios, loss[0].detach(), color="tab:blue", linewidth=5, alpha=0.4, label="loss")
    axis.plot(ratios, gradient[0], color="tab:orange", label="its gradient for log pi")
    axis.axvspan(0.8, 1.2, color="grey", alpha=0.12, label="1 - 0.2 to 1 + 0.2")
    axis.axvline(1, color="grey", linewidth=0.8)
    side = "likelier is better" if A > 0 else "likelier is worse"
    axis.set(xlabel="ratio pi / pi_old", ylabel="per token", title=f"A = {A:+.0f}: {side}")
axes[1].legend(loc="upper left")
plt.show()

# %% [markdown]
# (Where nothing is clipped, the two lines are one: $\rho A$ is its own derivative for $\log \pi$.)
# Left: the gradient vanishes above 1.2, where a good token has been made likelier enough; below
# 0.8, where the update went the wrong way, it stays. Right: the mirror image. The gradient, not the
# value, is what implementations get wrong, so it is asserted at six points.

# %%
for A, at, wanted in [
    (1.0, 0.5, -0.5), (1.0, 1.0, -1.0), (1.0, 1.5, 0.0),
    (-1.0, 0.5, 0.0), (-1.0, 1.0, 1.0), (-1.0, 1.5, 1.5),
]:  # fmt: skip
    x, advantage = torch.tensor([[math.log(at)]], requires_grad=True), torch.tensor([[A]])
    loss = clipped_surrogate(x, torch.zeros(1, 1), advantage, 0.2, 0.2)
    clipped = clip_acted(x.exp(), advantage, 0.2, 0.2)
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    print(
        f"A {A:+.0f}  ratio {at}  loss {loss.item():+.1f}  gradient {gradient.item():+.1f}", end=""
    )
    print("  clipped" if clipped else "")
    assert math.isclose(gradient.item(), wanted, abs_tol=1e-6) and clipped.item() == (wanted == 0)

# %% [markdown]
# ## 5. Line 11, second part: the KL penalty
#
# The policy shall not run away from the reference (line 3), the only part of the game that knows
# what language looks like. The paper estimates the KL divergence from the sampled tokens alone
# (Eq. 4):
#
# $$D_{KL} \left[ \pi_\theta \parallel \pi_{ref} \right] = \frac{\pi_{ref}(o_{i,t})}{\pi_\theta(o_{i,t})}
# - \log \frac{\pi_{ref}(o_{i,t})}{\pi_\theta(o_{i,t})} - 1$$
#
# which Schulman (2020, "Approximating KL Divergence") calls k3. The obvious estimator, k1, is
# $\log \pi_\theta - \log \pi_{ref}$. Both have the KL as their mean; k3 is never negative.
# (k2, which is drawn beside them, is half the square of k1. The next page compares them all.)

# %%
print(inspect.getsource(k3))
p = torch.tensor([0.40, 0.25, 0.15, 0.10, 0.06, 0.04]).log()  # the policy, six symbols
q = torch.tensor([0.25, 0.30, 0.15, 0.15, 0.10, 0.05]).log()  # the reference
exact = (p.exp() * (p - q)).sum()
for name, estimator in (("k1", k1), ("k2", k2), ("k3", k3)):
    values = estimator(p[None], q[None])[0]  # one value per symbol
    mean = (p.exp() * values).sum()
    std = (p.exp() * (values - mean) ** 2).sum().sqrt()
    print(f"{name}: expectation {mean:.4f}, spread of one sample {std:.4f}; exact KL {exact:.4f}")
    assert name == "k2" or torch.isclose(mean, exact, atol=1e-6)
    assert name == "k1" or (values >= 0).all()

# %%
draws = torch.multinomial(p.exp(), 1000, replacement=True, generator=make_generator(0, "draws"))
count = torch.arange(1, 1001)
change = torch.linspace(-2, 2, 201)[None]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
colors = {"k1": "tab:blue", "k2": "tab:green", "k3": "tab:orange"}
for name, estimator in (("k1", k1), ("k2", k2), ("k3", k3)):
    left.plot(change[0], estimator(change, torch.zeros_like(change))[0], colors[name], label=name)
    if name != "k2":
        estimates = estimator(p[draws][None], q[draws][None])[0].cumsum(0) / count
        right.plot(count, estimates, color=colors[name], label=f"{name}, mean so far")
left.axhline(0, color="grey", linewidth=0.8)
left.set(xlabel="log pi - log pi_ref of the sampled token", ylabel="estimate (nats)")
left.set_title("Value for one token")
right.axhline(float(exact), color="black", linestyle="--", label="exact KL")
right.set(xlabel="samples", ylabel="estimate (nats)", xscale="log", ylim=(-0.3, 0.5))
right.set_title("Mean of the samples so far")
for axis in (left, right):
    axis.legend()
plt.show()

# %% [markdown]
# A good *value* is not yet a good *gradient*. Differentiated as a loss, which GRPO does, k3 has the
# gradient of the KL the other way round, $\mathrm{KL}(\pi_{ref} \parallel \pi_\theta)$ (exercise
# 2), and k1 has none at all. In practice k3 pulls the policy back towards the reference all the
# same.
#
# ## 6. Line 11, third part: the mean
#
# $\frac1G \sum_i \frac{1}{L_i} \sum_t$: first over the tokens of a response, then over responses.
# DAPO ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476), Eq. 12) averages over all tokens at
# once. With one long and one short response:

# %%
token_loss = torch.tensor([[1.0, 2.0, 3.0, 9.0], [4.0, 9.0, 9.0, 9.0]])
mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
by_sequence, by_token = sequence_mean(token_loss, mask), token_mean(token_loss, mask)
print(f"sequence_mean (2 + 4) / 2 = {by_sequence}, token_mean (1 + 2 + 3 + 4) / 4 = {by_token}")
assert by_sequence == 3.0 and by_token == 2.5

weights = []
for reducer in (sequence_mean, token_mean):
    x = token_loss.clone().requires_grad_()
    weights.append(torch.autograd.grad(reducer(x, mask), x)[0])
    print(f"\nweight of each token under {reducer.__name__}\n", weights[-1])
assert torch.allclose(weights[0].sum(1), torch.tensor([0.5, 0.5]))

# %% [markdown]
# Under `sequence_mean` a token of a long response weighs less. A long bad answer is punished less
# per token than a short bad one, which invites length once answers get long; at the ten to thirty
# tokens of this world it matters little. Padding (the nines) weighs nothing in both.
#
# ## 7. The whole loss, on the rollout above

# %%
print(inspect.getsource(grpo_loss))

# %%
config = GRPOConfig(group_size=G, kl_coef=0.05, device="cpu")
policy, reference = copy.deepcopy(base), copy.deepcopy(base).requires_grad_(False)  # line 3
with torch.no_grad():
    ref_log_probs = token_log_probs(reference, rollout.sequences)  # (N, T)
log_probs = token_log_probs(policy, rollout.sequences)  # (N, T), with gradient
loss = grpo_loss(
    config, log_probs, old_log_probs, ref_log_probs, advantages, rollout.response_mask,
    kl_coef=config.kl_coef, rows=N,
)  # fmt: skip
gradient = torch.autograd.grad(loss, policy.wte.weight, retain_graph=True)[0]
clipped = clip_acted(likelihood_ratio(log_probs, old_log_probs), advantages, 0.2, 0.2)
print(
    f"loss {abs(loss.item()):.6f}, clipped tokens {int(clipped.sum())}, norm {gradient.norm():.3f}"
)
assert abs(loss) < 1e-5 and not clipped.any()

# %% [markdown]
# The loss is zero, and the gradient is not! At ratio 1 the loss is minus the mean of the
# advantages, and those add up to zero in every group. **Its value says nothing about progress**;
# look at the reward. And the gradient is that of REINFORCE (Williams 1992), $-A \nabla \log \pi$;
# the KL term has its minimum here, and none.

# %%
reinforce = sequence_mean(-advantages * log_probs, rollout.response_mask)
wanted = torch.autograd.grad(reinforce, policy.wte.weight)[0]
assert torch.allclose(gradient, wanted, atol=1e-5) and gradient.norm() > 0.1

# %% [markdown]
# One small step against this gradient, and the responses' log-probabilities before and after. Good
# ones get likelier and bad ones less likely, more or less: they share weights, and what two
# responses have in common is pulled both ways.

# %%
optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
optimizer.zero_grad()
log_probs = token_log_probs(policy, rollout.sequences)
inputs = (log_probs, old_log_probs, ref_log_probs, advantages, rollout.response_mask)
grpo_loss(config, *inputs, kl_coef=config.kl_coef, rows=N).backward()
optimizer.step()
with torch.no_grad():
    change = row_sums(token_log_probs(policy, rollout.sequences) - log_probs, rollout.response_mask)
order = advantages[:, 0].argsort(descending=True)
for i in order.tolist():
    print(f"A {advantages[i, 0]:+.2f}  log pi {change[i]:+.3f}  {rollout.responses[i][:60]}")
assert change[order[0]] > 0 > change[order[-1]]

# %% [markdown]
# ## 8. The loop
#
# All of this in `train`, with the line numbers of the box. The box lacks two things: `minibatches` may
# cut the rollout for several optimizer steps, and `micro_batches` saves memory (the gradients of its
# parts add up to the minibatch's). `clock` and `meter` collect what is logged.

# %%
source = inspect.getsource(grpo_engine.train)
print(source[source.index("    for step in") : source.index("        state.step = step + 1")])

# %%
config = GRPOConfig(
    steps=30, prompts_per_step=8, group_size=8, updates_per_batch=2, minibatches=1, lr=7e-4,
    micro_batch_size=64, kl_coef=0.05, device="cpu",
)  # fmt: skip


def run(config: GRPOConfig) -> tuple[GPT, list[dict]]:
    """Train a copy of the base model; its metrics, one row per rollout batch."""
    policy = copy.deepcopy(base)
    log = MetricLog(config.steps)
    return policy, grpo_engine.train(config, policy, tokenizer, gold, prompts, log)


policy, rows = run(config)
print(f"{len(rows)} batches of 8 prompts with 8 responses each")
print(f"ratio_error_at_start, largest: {max(row['ratio_error_at_start'] for row in rows):.1e}")
assert max(row["ratio_error_at_start"] for row in rows) < 1e-4
assert abs(rows[0]["kl"]) < 1e-4  # the policy is still the reference

# %%
curves = {
    "reward": "reward (gold, 0 to 1)",
    "kl": "KL from the reference\n(nats per response)",
    "response_length": "length (tokens)",
    "entropy": "entropy (nats per token)",
    "clip_fraction": "clipped tokens (share)",
    "grad_norm": "gradient norm before its clip",
}
figure, axes = plt.subplots(2, 3, figsize=(11, 5.4), layout="constrained", sharex=True)
for axis, (key, label) in zip(axes.flat, curves.items(), strict=True):
    values = [
        row["clip_low_fraction"] + row["clip_high_fraction"] if key == "clip_fraction" else row[key]
        for row in rows
    ]
    steps = [row["step"] for row in rows]
    axis.plot(steps, values, color="tab:blue", alpha=0.3)
    axis.plot(steps, running_mean(values, 5), color="tab:blue", linewidth=2)
    axis.set(xlabel="step (rollout batch)", ylabel=label, ylim=(0, None))
figure.suptitle("GRPO with mu = 2: thin one step, bold the mean of five")
plt.show()


# %% [markdown]
# The reward rises, and the price is paid in the other curves: distance from the reference, and
# entropy, for the policy settles on few ways of writing. The length hardly moves: nothing in this
# reward asks for more. Few tokens are clipped: two updates a batch do not go far. Now prompts that
# the policy has never seen, before and after, with the same random numbers.


# %%
def measure(policy: GPT) -> Evaluation:
    validation = reviews.prompts("validation")[:256]
    return evaluate(policy, tokenizer, validation, params, gold, reference=base)


results = {"before": measure(base), "after": measure(policy)}
table = []
for name, result in results.items():
    parts = [reviews.gold_parts(*row) for row in zip(result.records, result.responses, strict=True)]
    means = [sum(getattr(p, key) for p in parts) / 256 for key in ("sent", "topic", "polite")]
    numbers = result.summary()
    table.append([name, numbers["reward"], *means, numbers["kl"], numbers["response_length"]])
print(format_table(["", "gold", "sent", "topic", "polite", "KL", "length"], table), "\n")
for i in range(4):
    print(results["before"].records[i].prompt.strip())
    for name, result in results.items():
        print(f"  {name:6}  {result.reward[i]:.2f}  {result.responses[i]}")

# %% [markdown]
# Tone and manners were quick to learn, and to name the right item became twice as frequent: it
# happened now and then, and was rewarded. What never happens is never reinforced.

# %%
gain = results["after"].reward - results["before"].reward  # prompt by prompt
half = float(1.96 * gain.std() / math.sqrt(len(gain)))
print(f"gain {gain.mean():.3f} +- {half:.3f} (95 % interval)")
assert gain.mean() - half > 0.15

figure, axis = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
for (name, result), color in zip(results.items(), ("tab:grey", "tab:green"), strict=True):
    mean = result.reward.mean()
    axis.hist(result.reward, bins=25, range=(0, 1), color=color, alpha=0.6, label=name)
    axis.axvline(mean, color=color, linestyle="--", label=f"mean {mean:.2f}")
axis.set(xlabel="gold reward of a response", ylabel="responses out of 256")
axis.set_title("Unseen prompts, before and after GRPO")
axis.legend()
plt.show()

# %% [markdown]
# ## 9. Line 10: what $\mu$ and the clip do
#
# Sampling is the expensive part of RL, so each batch is used for $\mu$ updates. In the first one
# all ratios are 1. From the second on the batch is *old*: it comes from a policy that is no longer
# there, and the ratio corrects for that, but only as long as the two are close. Holding them close
# is what the clip is for.
#
# Three runs of twelve rollout batches at a higher learning rate: $\mu = 1$; $\mu = 4$; and $\mu =
# 4$ with a clip range so wide that it never acts.

# %%
short = dataclasses.replace(config, steps=12, lr=1e-3, updates_per_batch=1)
four = dataclasses.replace(short, updates_per_batch=4)
runs = {
    "mu = 1": run(short)[1],
    "mu = 4": run(four)[1],
    "mu = 4, no clip": run(dataclasses.replace(four, clip_low=1.0, clip_high=1e6))[1],
}


def clip_fraction(row: dict) -> float:
    return row["clip_low_fraction"] + row["clip_high_fraction"]


assert all(clip_fraction(row) == 0 for row in runs["mu = 1"])  # by definition
assert all(clip_fraction(row) > 0 for row in runs["mu = 4"][1:])
for name, run_rows in runs.items():
    late = run_rows[-5:]
    reward, clip, moved = (
        sum(f(row) for row in late) / 5
        for f in (lambda r: r["reward"], clip_fraction, lambda r: r["approx_kl"])
    )
    print(f"{name:16} reward {reward:.3f}  clipped {clip:.3f}  approx_kl {moved:.4f}")

# %%
panels = {
    "reward (gold, 0 to 1)": lambda row: row["reward"],
    "clipped tokens (share)": clip_fraction,
    "moved by one batch:\nKL(old, new) (nats per token)": lambda row: row["approx_kl"],
}
figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.6), layout="constrained")
for axis, (label, value) in zip(axes, panels.items(), strict=True):
    for (name, run_rows), style in zip(runs.items(), ("o-", "s-", "^--"), strict=True):
        steps = [row["step"] for row in run_rows]
        axis.plot(steps, [value(row) for row in run_rows], style, markersize=4, label=name)
    axis.set(xlabel="step (rollout batch)", ylabel=label, xticks=range(2, 13, 2))
axes[0].legend()
figure.suptitle("The same batches used once, four times, and four times without a clip")
plt.show()

# %% [markdown]
# More updates per batch learn more from the same number of samples. What they cost is in the right
# panel: one batch moves the policy further, without the clip about twice as far, and that is no
# better. (With $\mu = 1$ the measure is zero because it is taken before the update.) The clip is
# no wall: it takes away the gradient of tokens that have gone far enough, but does not bring them
# back, and tokens that share weights with others are moved on by these.
#
# **What this page left out.** The reward was the truth itself. With a learned one the curves of
# section 8 look the same, until the policy finds what the reward model does not see
# ([06_reward_model](06_reward_model.ipynb), section 8): then the reward goes on rising and the
# truth falls.
#
# ## Exercise
#
# 1. With G = 2 and different rewards, what are the two advantages? What is lost?
# 2. Show by enumeration over the six symbols of section 5 that k3, used as a loss on samples of the
#    policy, has the gradient of $\mathrm{KL}(\pi_{ref} \parallel \pi_\theta)$.
# 3. With $\mu = 1$ and one minibatch, which of `clip_low`, `clip_high`, `kl_coef` and `group_size`
#    can be changed without changing the run?
#
# <details>
# <summary>Answer</summary>
#
# 1. The mean is half way between, and the standard deviation (n - 1) is the gap divided by
#    $\sqrt 2$. So the advantages are $\pm 1 / \sqrt 2 = \pm 0.707$, whatever the gap: *how much*
#    better the winner is, is lost, and what remains is a comparison.
# 2. The samples are constants; only the estimate is differentiated, and then averaged under the
#    policy:
#
#    ```python
#    logits = p.clone().requires_grad_()
#    log_p = logits.log_softmax(0)
#    loss = (p.exp() * k3(log_p[None], q[None])[0]).sum()  # p.exp() is where samples come from
#    forward = (q.exp() * (q - log_p)).sum()
#    (a,) = torch.autograd.grad(loss, logits, retain_graph=True)
#    (b,) = torch.autograd.grad(forward, logits)
#    assert torch.allclose(a, b, atol=1e-6)
#    ```
#
#    By hand: the derivative of k3 for $\log \pi$ is $1 - \pi_{ref} / \pi$; its mean under $\pi$,
#    weighted with $\nabla \log \pi$, is $0 - \sum \pi_{ref} \nabla \log \pi$, which is the gradient
#    of $\mathrm{KL}(\pi_{ref} \parallel \pi)$.
#
# 3. The clip ranges: all ratios are 1 and the clip never acts. The other two are in the gradient.
#
# </details>
