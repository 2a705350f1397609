# %% [markdown]
# # 9. RLOO: the whole response is one action
#
# **Why.** PPO was made for games: hundreds of moves, a reward here and there, a policy that starts
# from nothing. A fine-tuned language model is another case. It is good before RL begins, one reward
# arrives at the end, and the "environment" between two tokens does nothing but append the last one.
# Ahmadian et al. (2024, "Back to Basics",
# [arXiv:2402.14740](https://arxiv.org/abs/2402.14740)) therefore take the value model, the clip and
# the steps out again. What is left is REINFORCE on whole responses, with the other responses to the
# same prompt as its baseline: **REINFORCE Leave-One-Out** (Kool et al. 2019).
#
# The paper prints an estimator, not a box. Each factor has a section here ($k$ is `group_size`):
#
# $$\frac{1}{k} \sum_{i=1}^{k} \Big[ R(y_i, x) - \frac{1}{k-1} \sum_{j \ne i} R(y_j, x) \Big]
# \nabla_\theta \log \pi_\theta(y_i \mid x), \qquad y_1 \ldots y_k \sim \pi_\theta(\cdot \mid x)$$
#
# | factor | in `rl/rloo_engine.py` | section |
# | --- | --- | --- |
# | $\nabla \log \pi(y \mid x)$ of the whole response | `policy_gradient`, `sequence_sum` | 1 |
# | $R(y, x)$: the reward minus the KL of the response | `token_level_rewards`, summed | 2 |
# | minus the mean of the others | `leave_one_out_advantages` | 3 |
# | two other losses with the same name | `clipped_loss`, `token_loss` | 4, 5 |
# | the loop | `train` | 6, 7 |
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about half a minute on one CPU core. The page before this
# one: [08_ppo](08_ppo.ipynb); the next: [11_reinforce_plus_plus](11_reinforce_plus_plus.ipynb). Its
# relatives: [07_grpo](07_grpo.ipynb) is the same loop with other advantages, and
# [04_policy_gradients_and_baselines](04_policy_gradients_and_baselines.ipynb) measures bias and
# noise of the baselines.

# %%
import copy
import dataclasses
import inspect
import itertools
import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor

try:
    from data import reviews
    from gpt import pretraining
    from gpt.common import MetricLog, make_generator
    from gpt.corpus import WorldCorpus
    from gpt.generate import SamplingParams
    from gpt.log_probs import token_log_probs
    from gpt.model import GPT, GPTConfig
    from gpt.tokenizer import load_tokenizer
    from rl import rloo_engine
    from rl.batches.rollout import prompt_batch, sample_rollout
    from rl.equations.advantages import group_advantages, leave_one_out_advantages
    from rl.equations.losses import policy_gradient, row_sums, sequence_mean, sequence_sum
    from rl.equations.token_rewards import token_level_rewards
    from rl.rewards.sources import RuleReward
    from rl.rloo_engine import RLOOConfig, rloo_advantages, rloo_loss
    from rl.training.evaluation import Evaluation, evaluate, format_table, running_mean
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

# %% [markdown]
# The policy is a small base model of the reviews world, pre-trained in ten seconds; the reward is the
# world's **gold reward** itself, between 0 and 1.

# %%
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
tokenizer = load_tokenizer("glassbox")
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
# ## 1. One response, one action
#
# $$\log \pi(y \mid x) = \sum_{t=1}^{L} \log \pi(y_t \mid x, y_{\lt t})$$
#
# The probability of a response is a product, its logarithm a sum, and REINFORCE (Eq. 6 of the paper)
# wants the gradient of exactly that sum: nothing is divided by the length.

# %%
G = 4
records = prompt_batch(prompts, step=0, batch_size=2, seed=0)
rollout = sample_rollout(base, tokenizer, records, params, G, make_generator(3, "demo"))
rewards, mask = gold(rollout), rollout.response_mask  # (N,), (N, T)
N = len(rollout)
with torch.no_grad():
    log_probs = token_log_probs(base, rollout.sequences)  # (N, T)
of_response = row_sums(log_probs, mask)  # (N,)

for i in range(N):
    if i % G == 0:
        print(rollout.records[i].prompt.strip())
    print(f"  R {rewards[i]:.2f}  log pi {of_response[i]:6.1f}  {rollout.responses[i][:66]}")

# %%
print(inspect.getsource(policy_gradient))
print(inspect.getsource(sequence_sum))

# %% [markdown]
# How much weight does a token get? Under `sequence_sum` the same in every response; under GRPO's
# `sequence_mean` it is divided by the length. The second is not the gradient of $\log \pi(y \mid x)$
# any more: the *response* with few tokens is moved by as much as the long one, each of its tokens by
# more. Three responses of 2, 4 and 8 tokens:

# %%
lengths = torch.tensor([2, 4, 8])
three = torch.arange(8) < lengths[:, None]  # (3, 8)
weights = {}
for reducer in (sequence_sum, sequence_mean):
    x = torch.zeros(3, 8, requires_grad=True)
    loss = reducer(policy_gradient(x, torch.ones(3, 1)), three)
    weights[reducer.__name__] = -torch.autograd.grad(loss, x)[0]
figure, axes = plt.subplots(1, 2, figsize=(9, 2.4), layout="constrained", sharey=True)
for axis, (name, weight) in zip(axes, weights.items(), strict=True):
    axis.imshow(weight, cmap="Blues", vmin=0, vmax=0.8)
    for (row, column), value in zip(three.nonzero().tolist(), weight[three], strict=True):
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
    axis.set(title=name, xlabel="token t", ylabel="response", yticks=range(3))
figure.suptitle("Weight of each token's log-probability, A = 1")
plt.show()
assert torch.allclose(weights["sequence_sum"][three], torch.tensor(1 / 3))
assert torch.allclose(weights["sequence_mean"].sum(1), torch.full((3,), 1 / 3))

# %% [markdown]
# ## 2. The KL is part of the reward
#
# $$R(y, x) = r(x, y) - \beta \log \frac{\pi(y \mid x)}{\pi_{ref}(y \mid x)}
# = r(x, y) - \beta \sum_t \left( \log \pi(y_t) - \log \pi_{ref}(y_t) \right)$$
#
# This is the objective of RLHF (Ouyang et al. 2022,
# [arXiv:2203.02155](https://arxiv.org/abs/2203.02155), Eq. 2), and its gradient is the policy
# gradient of this reward: k1 belongs *here*. As a loss of its own it would do nothing
# ([14_kl_estimators](14_kl_estimators.ipynb)). The penalty counts per **response**: a response twice as
# long can cost twice as much.
#
# To have a KL that is not zero, the policy has to move first: eight steps of the engine itself.

# %%
config = RLOOConfig(
    steps=30, prompts_per_step=8, group_size=8, minibatches=2, micro_batch_size=64, lr=1e-3,
    kl_coef=0.02, device="cpu",
)  # fmt: skip


def run(config: RLOOConfig) -> tuple[GPT, list[dict]]:
    """Train a copy of the base model; its metrics, one row per rollout batch."""
    policy = copy.deepcopy(base)
    log = MetricLog(config.steps)
    return policy, rloo_engine.train(config, policy, tokenizer, gold, prompts, log)


moved, _ = run(dataclasses.replace(config, steps=8))

# %%
beta = 0.1
rollout = sample_rollout(moved, tokenizer, records, params, G, make_generator(2, "demo"))
rewards, mask, old_log_probs = gold(rollout), rollout.response_mask, rollout.log_probs
with torch.no_grad():
    ref_log_probs = token_log_probs(base, rollout.sequences)  # (N, T)
token_rewards = token_level_rewards(rewards, old_log_probs, ref_log_probs, mask, beta)  # (N, T)
penalised = token_rewards.sum(1)  # (N,)  R'

kl = row_sums(old_log_probs - ref_log_probs, mask)
table = [[i, float(rewards[i]), float(kl[i]), float(penalised[i])] for i in range(N)]
print(format_table(["response", "reward r", "log pi / pi_ref", "R'"], table))
torch.testing.assert_close(penalised, rewards - beta * kl)

# %% [markdown]
# A sampled log-ratio may be negative: the response is then likelier under the reference than under the
# policy, and is paid for it. Only the *mean* is a KL divergence, and cannot be negative.
#
# ## 3. The others are the baseline
#
# $$A_i = R'_i - \frac{1}{k-1} \sum_{j \ne i} R'_j
# = \frac{k}{k-1} \left( R'_i - \mathrm{mean}(R'_1 \ldots R'_k) \right)$$
#
# The KL is in $R'$ *before* the baseline is taken, so that the neighbours' KL is subtracted as well.

# %%
print(inspect.getsource(leave_one_out_advantages))
print(inspect.getsource(rloo_advantages))

# %%
demo = dataclasses.replace(config, group_size=G, kl_coef=beta)
advantages = rloo_advantages(demo, rewards, old_log_probs, ref_log_probs, mask, beta)  # (N, 1)
for i in range(N):
    others = [j for j in range(i // G * G, i // G * G + G) if j != i]
    baseline = penalised[others].mean()
    print(f"R' {penalised[i]:+.3f} - others {baseline:+.3f} = A {advantages[i, 0]:+.3f}")
    torch.testing.assert_close(advantages[i, 0], penalised[i] - baseline, atol=1e-5, rtol=0)

# %% [markdown]
# Equal rewards do *not* mean "nothing to learn", as they do in GRPO: the KL's part is left, and the
# response that is nearest to the reference gains.

# %%
same = rloo_advantages(demo, torch.full((N,), 0.7), old_log_probs, ref_log_probs, mask, beta)
nearest = kl.view(-1, G).argmin(1)
print("equal rewards, advantages:", [round(a, 3) for a in same[:, 0].tolist()])
assert (same.view(-1, G).argmax(1) == nearest).all() and same.abs().max() > 0.01
nothing = rloo_advantages(demo, torch.full((N,), 0.7), old_log_probs, None, mask, 0.0)
assert (nothing == 0).all()

# %% [markdown]
# **Why leave $R_i$ out?** A baseline may be anything that does not depend on $y_i$. The group's mean
# does: it contains $R_i / k$. So a response is compared with itself a little, and the expected
# gradient shrinks by exactly $1 - 1/k$. To see it without sampling noise, take a policy over four
# possible responses and *list* all $4^k$ groups.

# %%
theta = torch.tensor([0.4, -0.3, 0.1, 0.0], dtype=torch.float64)
p, R = theta.softmax(0), torch.tensor([1.0, 0.2, 0.6, 0.0], dtype=torch.float64)
SCORES = torch.eye(4, dtype=torch.float64) - p  # row y: gradient of log p(y)
TRUE = (p * R) @ SCORES  # gradient of the expected reward


def expected_gradient(estimator, k: int) -> Tensor:
    """Sum over all groups of k responses of P(group) * mean_i A_i grad log p(y_i)."""
    groups = torch.tensor(list(itertools.product(range(4), repeat=k)))  # (4^k, k)
    A = estimator(R[groups].flatten(), k).view(-1, k)
    return (p[groups].prod(1)[:, None] * A / k).flatten() @ SCORES[groups.flatten()]


def group_mean(rewards: Tensor, k: int) -> Tensor:
    return group_advantages(rewards, k, scale="none")


def factor_twice(rewards: Tensor, k: int) -> Tensor:
    """A mistake in circulation: k / (k - 1) on top of a leave-one-out baseline."""
    return leave_one_out_advantages(rewards, k) * k / (k - 1)


# %%
sizes, curves = range(2, 8), {}
for estimator in (leave_one_out_advantages, group_mean, factor_twice):
    expected = [expected_gradient(estimator, k) for k in sizes]
    assert all(torch.cosine_similarity(g, TRUE, dim=0) > 1 - 1e-9 for g in expected)
    curves[estimator.__name__] = [float(g.norm() / TRUE.norm()) for g in expected]
figure, axis = plt.subplots(figsize=(7, 3.3), layout="constrained")
for (name, curve), style in zip(curves.items(), ("o-", "s-", "^--"), strict=True):
    axis.plot(sizes, curve, style, label=name)
    print(f"{name:25}", [round(x, 4) for x in curve])
axis.axhline(1, color="grey", linewidth=0.8)
axis.set(xlabel="k responses per prompt", ylabel="expected gradient / true gradient")
axis.set(ylim=(0, 2.1), title="The same direction, another length")
axis.legend()
plt.show()
for k, loo, mean in zip(sizes, *list(curves.values())[:2], strict=True):
    assert math.isclose(loo, 1, rel_tol=1e-9) and math.isclose(mean, 1 - 1 / k, rel_tol=1e-9)

# %% [markdown]
# Does a factor matter? With Adam, and the KL inside the reward, hardly: everything shrinks together.
# With a KL term *beside* it in the loss, as in GRPO, yes: the reward's gradient shrinks and the
# penalty's does not. With $k = 2$ the effective $\beta$ doubles.
#
# ## 4. Three losses of one name
#
# The paper's loss has no ratio. It is right for samples of the policy as it is *now*, so one pass over
# a batch is all that it allows (the paper takes two optimizer steps, each on one half). Other code
# that is called RLOO takes the advantages above and puts them into PPO's clip, in one of two ways:

# %%
for loss in (rloo_engine.sequence_loss, rloo_engine.clipped_loss, rloo_engine.token_loss):
    source = inspect.getsource(loss)
    print(f"{loss.__name__}:\n{source[source.index('    ' + chr(34) * 3) :]}")

# %% [markdown]
# At $\theta = \theta_{old}$ every ratio is 1 and nothing is clipped: the first two have the same
# gradient, and the third is $N / \sum_i L_i$ of it, because it averages over tokens. On the rollout
# above, through the whole network:


# %%
def full_gradient(form: str, policy: GPT = moved) -> Tensor:
    """Gradient of one form of the loss on the rollout, all parameters in one vector."""
    config = dataclasses.replace(demo, loss=form)
    loss = rloo_loss(
        config, token_log_probs(policy, rollout.sequences), old_log_probs, advantages, mask,
        rows=N, tokens=int(mask.sum()),
    )  # fmt: skip
    gradients = torch.autograd.grad(loss, list(policy.parameters()))
    return torch.cat([g.flatten() for g in gradients]).double()


by_form = {form: full_gradient(form) for form in rloo_engine.LOSSES}
for form, g in by_form.items():
    cosine = torch.cosine_similarity(g, by_form["sequence"], dim=0)
    relative = g.norm() / by_form["sequence"].norm()
    print(f"{form:9} cosine with sequence {cosine:.6f}, length {relative:.4f} of it")
print(f"N / sum of lengths = {N / int(mask.sum()):.4f}")
largest = float(by_form["sequence"].abs().max())
torch.testing.assert_close(by_form["clipped"], by_form["sequence"], rtol=0, atol=1e-4 * largest)
scaled = by_form["token"] * int(mask.sum()) / N
torch.testing.assert_close(scaled, by_form["sequence"], rtol=0, atol=1e-4 * largest)

# %% [markdown]
# ## 5. Why the ratio of a response saturates
#
# From the second update on they part. The clipped form compares whole responses,
#
# $$s_i = \frac{\pi(y_i \mid x)}{\pi_{old}(y_i \mid x)} = \prod_t \rho_{i,t}
# = \exp \sum_t \left( \log \pi(y_{i,t}) - \log \pi_{old}(y_{i,t}) \right)$$
#
# and a product does not stay near 1. A hundred tokens that each drift by 0.02 nats, which no one
# would call a large step, make $s = e^2 = 7.4$. Measured: 64 responses, and up to ten optimizer steps
# on them with the paper's loss.

# %%
many = sample_rollout(
    base, tokenizer, prompt_batch(prompts, 1, 8, seed=0), params, 8, make_generator(5, "many")
)
many_advantages = leave_one_out_advantages(gold(many), 8)
policy, used = copy.deepcopy(base), many.response_mask
optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-4, betas=(0.9, 0.95), weight_decay=0)
outside: dict[str, list[float]] = {"tokens": [], "responses": []}
for _ in range(11):
    log_ratio = token_log_probs(policy, many.sequences) - many.log_probs  # (64, T)
    whole = row_sums(log_ratio, used).detach().exp()  # (64,)  s
    each = log_ratio[used].detach().exp()  # (tokens,)  rho
    outside["tokens"].append(float(((each - 1).abs() > 0.2).float().mean()))
    outside["responses"].append(float(((whole - 1).abs() > 0.2).float().mean()))
    loss = sequence_sum(policy_gradient(log_ratio, many_advantages), used)  # old is a constant
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.6), layout="constrained")
for (name, share), style in zip(outside.items(), ("s-", "o-"), strict=True):
    left.plot(share, style, label=f"ratio of {name}")
left.set(xlabel="optimizer steps on one batch", ylabel="share outside of 0.8 to 1.2", ylim=(0, 1))
left.set_title("measured")
long = torch.arange(1, 129)
for drift, color in ((0.005, "tab:green"), (0.02, "tab:blue"), (0.05, "tab:red")):
    right.plot(long, (drift * long).exp(), color=color, label=f"{drift} nats per token")
right.axhspan(0.8, 1.2, color="grey", alpha=0.3)
right.set(xlabel="length of the response (tokens)", ylabel="ratio s", yscale="log", ylim=(0.7, 100))
right.set_title("drift times length")
for axis in (left, right):
    axis.legend()
plt.show()
print(
    f"after 3 steps: {outside['tokens'][3]:.0%} of tokens, {outside['responses'][3]:.0%} of", end=""
)
print(f" responses outside; mean length {many.lengths.float().mean():.0f}")
assert outside["responses"][3] > 2 * outside["tokens"][3] and outside["responses"][0] == 0

# %% [markdown]
# A response outside of the range, on the side where its advantage pushes it, has *no* gradient: all
# its tokens stop together, those included that have hardly moved. So the clipped form uses up its
# batch within an update or two, sooner with longer responses. GSPO
# ([arXiv:2507.18071](https://arxiv.org/abs/2507.18071)) takes the $L$-th root of $s$ for this reason.
#
# ## 6. The loop
#
# GRPO's, with two other lines: the advantages and the loss.

# %%
source = inspect.getsource(rloo_engine.train)
print(source[source.index("    for step in") : source.index("        state.step = step + 1")])

# %%
policy, rows = run(config)
print(f"{len(rows)} batches of 8 prompts with 8 responses each")
print(f"ratio_error_at_start, largest: {max(row['ratio_error_at_start'] for row in rows):.1e}")
assert max(row["ratio_error_at_start"] for row in rows) < 1e-4
assert abs(rows[0]["kl"]) < 1e-4  # the policy is still the reference
assert all(row["clip_low_fraction"] + row["clip_high_fraction"] == 0 for row in rows)

# %%
labels = {
    "reward": "reward r (gold, 0 to 1)",
    "penalised": "r - beta KL,\nwhat is maximised",
    "kl": "KL from the reference\n(nats per response)",
    "response_length": "length (tokens)",
    "entropy": "entropy (nats per token)",
    "grad_norm": "gradient norm before its clip",
}
figure, axes = plt.subplots(2, 3, figsize=(11, 5.4), layout="constrained", sharex=True)
for axis, (key, label) in zip(axes.flat, labels.items(), strict=True):
    values = [
        (row | {"penalised": row["reward"] - config.kl_coef * row["kl"]})[key] for row in rows
    ]
    steps = [row["step"] for row in rows]
    axis.plot(steps, values, color="tab:blue", alpha=0.3)
    axis.plot(steps, running_mean(values, 5), color="tab:blue", linewidth=2)
    axis.set(xlabel="step (rollout batch)", ylabel=label)
figure.suptitle("RLOO: thin one step, bold the mean of five")
plt.show()

# %% [markdown]
# Now prompts that the policy has never seen, before and after, with the same random numbers.


# %%
def measure(policy: GPT) -> Evaluation:
    validation = reviews.prompts("validation")[:256]
    return evaluate(policy, tokenizer, validation, params, gold, reference=base)


results = {"before": measure(base), "after": measure(policy)}
table = [
    [name, *(result.summary()[key] for key in ("reward", "kl", "response_length"))]
    for name, result in results.items()
]
print(format_table(["", "gold", "KL", "length"], table), "\n")
for i in range(3):
    print(results["before"].records[i].prompt.strip())
    for name, result in results.items():
        print(f"  {name:6}  {result.reward[i]:.2f}  {result.responses[i]}")
gain = results["after"].reward - results["before"].reward  # prompt by prompt
half = float(1.96 * gain.std() / math.sqrt(len(gain)))
print(f"\ngain {gain.mean():.3f} +- {half:.3f} (95 % interval)")
assert gain.mean() - half > 0.1

# %% [markdown]
# ## 7. Four passes over each batch
#
# The two forms with a ratio may use a batch several times. Twelve rollout batches, four passes each.
# What the paper's form would do there is not shown, because it is refused:

# %%
try:
    dataclasses.replace(config, updates_per_batch=4)
except ValueError as error:
    print("refused:", error)
short = dataclasses.replace(config, steps=12, minibatches=1)
runs = {
    "sequence, 1 pass": run(short)[1],
    "clipped, 4 passes": run(dataclasses.replace(short, loss="clipped", updates_per_batch=4))[1],
    "token, 4 passes": run(dataclasses.replace(short, loss="token", updates_per_batch=4))[1],
}
panels = {
    "reward (gold, 0 to 1)": lambda row: row["reward"],
    "clipped tokens (share)": lambda row: row["clip_low_fraction"] + row["clip_high_fraction"],
    "moved by one batch:\nKL(old, new) (nats per token)": lambda row: row["approx_kl"],
}
figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.6), layout="constrained")
for axis, (label, value) in zip(axes, panels.items(), strict=True):
    for (name, run_rows), style in zip(runs.items(), ("o-", "s-", "^--"), strict=True):
        steps = [row["step"] for row in run_rows]
        axis.plot(steps, [value(row) for row in run_rows], style, markersize=4, label=name)
    axis.set(xlabel="step (rollout batch)", ylabel=label, xticks=range(2, 13, 2))
axes[1].legend(loc="center right")
plt.show()

# %%
clip_share = panels["clipped tokens (share)"]
late = {
    name: (sum(clip_share(row) for row in r[-6:]) / 6, sum(row["reward"] for row in r[-6:]) / 6)
    for name, r in runs.items()
}
for name, (clipped, reward) in late.items():
    print(f"{name:18} last six steps: clipped {clipped:.3f}, reward {reward:.3f}")
assert late["clipped, 4 passes"][0] > 2 * late["token, 4 passes"][0] > 0
assert late["sequence, 1 pass"][0] == 0
clipped_kl, token_kl = (
    sum(row["approx_kl"] for row in runs[name][-6:])
    for name in ("clipped, 4 passes", "token, 4 passes")
)
assert clipped_kl < token_kl

# %% [markdown]
# The clip of whole responses acts on several times as many tokens as the clip of single ones, and it
# holds the policy nearer to the sampler. (Twelve steps of one seed say nothing about which form ends
# higher.)
#
# ## Exercise
#
# 1. Two responses to a prompt with $R' = 1$ and $0$: what are the advantages of RLOO, of the group
#    mean, and of GRPO's z-score? What happens to each when the rewards are doubled?
# 2. Someone subtracts $\beta \log (\pi / \pi_{ref})(y_i \mid x)$ from $A_i$ *after* the baseline. Is
#    the gradient still right on average? What has become worse?
# 3. Why may the paper take two optimizer steps per batch although its loss has no ratio?
#
# <details>
# <summary>Answer</summary>
#
# 1. RLOO: $\pm 1$, the difference of the two. Group mean: $\pm 1/2$. z-score: $\pm 0.7071$. Doubled
#    rewards double the first two; the z-score does not notice.
# 2. Yes: the neighbours' KL, which the baseline no longer contains, has the mean 0 in the gradient,
#    as every baseline. But then the KL's part has *no* baseline, and the noise grows by what the
#    KLs of a group have in common. One can look at it on the rollout of section 2:
#
# ```python
# after = leave_one_out_advantages(rewards, G) - beta * kl[:, None]
# print(advantages.view(-1, G).sum(1), after.view(-1, G).sum(1))  # 0, and not 0
# ```
#
# 3. Strictly it may not: at the second step the rows come from a policy that is one step old, and
#    the missing ratio is a bias. It is small because the rows are *other* rows, to which nothing has
#    been fitted yet: one step on half of the batch of section 5 brings two thirds of that half out of
#    0.8 to 1.2, but only an eighth of the other half. `approx_kl` measures it.
#
# </details>
