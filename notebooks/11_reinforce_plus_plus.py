# %% [markdown]
# # 10. REINFORCE++: the batch is the baseline
#
# **Why.** A group per prompt (GRPO, RLOO) costs: eight answers to one question instead of answers to
# eight questions. REINFORCE++ (Hu et al. 2025,
# [arXiv:2501.03262](https://arxiv.org/abs/2501.03262), version 9) can do with **one** answer per
# prompt and without a value model. It takes PPO's token rewards and PPO's clip, and normalises the
# advantages with the mean and the standard deviation of the *whole batch*. A second form,
# **REINFORCE++-baseline**, goes back to groups for the mean, and keeps the batch for the spread.
#
# | in the paper | in `rl/reinforce_pp_engine.py` | section |
# | --- | --- | --- |
# | the KL in every token's reward | `token_level_rewards` | 1 |
# | Eq. 4: reward to go | `reward_to_go`: `discounted_returns` | 2 |
# | Eq. 5: normalisation over the batch | `over_tokens`: `whiten` | 3 |
# | Eqs. 6 and 7: the form with groups | `group_centred`, `over_sequences` | 4 |
# | Eq. 8: k2 as a loss | `reinforce_pp_loss`, `k2` | 5 |
# | Eq. 1: the clipped objective, and the loop | `reinforce_pp_loss`, `train` | 6 |
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about half a minute on one CPU core. The page before this
# one: [10_rloo](10_rloo.ipynb); the next: [12_single_model_grpo](12_single_model_grpo.ipynb).

# %%
import copy
import dataclasses
import inspect
import math
from unittest import mock

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
    from rl import reinforce_pp_engine
    from rl.batches.rollout import prompt_batch, sample_rollout
    from rl.equations.advantages import discounted_returns, group_advantages, whiten
    from rl.equations.kl import k1, k2, k3
    from rl.equations.losses import policy_gradient, row_sums, sequence_mean
    from rl.equations.token_rewards import token_level_rewards
    from rl.reinforce_pp_engine import ReinforcePPConfig, reinforce_pp_advantages
    from rl.rewards.sources import RuleReward
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
# ## 1. The KL in every token's reward
#
# $$r_t = -\beta \left( \log \pi(y_t) - \log \pi_{ref}(y_t) \right)
# + \begin{cases} R & t \text{ is the last token} \\ 0 & \text{else} \end{cases}$$
#
# The score comes once, at the end; the KL, which is a sum over tokens anyway, is paid where it
# arises. This is the reward of PPO for language models (Ouyang et al. 2022,
# [arXiv:2203.02155](https://arxiv.org/abs/2203.02155), Eq. 2), token by token. To have a KL that is
# not zero, the policy moves first: ten steps of the engine itself.

# %%
config = ReinforcePPConfig(
    steps=30, prompts_per_step=64, minibatches=2, micro_batch_size=64, lr=1e-3, kl_coef=0.02,
    device="cpu",
)  # fmt: skip


def run(config: ReinforcePPConfig) -> tuple[GPT, list[dict]]:
    """Train a copy of the base model; its metrics, one row per rollout batch."""
    policy = copy.deepcopy(base)
    log = MetricLog(config.steps)
    return policy, reinforce_pp_engine.train(config, policy, tokenizer, gold, prompts, log)


moved, _ = run(dataclasses.replace(config, steps=10))

# %%
print(inspect.getsource(token_level_rewards))

# %%
beta = 0.1
records = prompt_batch(prompts, step=0, batch_size=8, seed=0)
rollout = sample_rollout(moved, tokenizer, records, params, 1, make_generator(1, "demo"))
rewards, mask, old_log_probs = gold(rollout), rollout.response_mask, rollout.log_probs
with torch.no_grad():
    ref_log_probs = token_log_probs(base, rollout.sequences)  # (N, T)
token_rewards = token_level_rewards(rewards, old_log_probs, ref_log_probs, mask, beta)  # (N, T)
returns = discounted_returns(token_rewards, mask, gamma=1.0)  # (N, T), section 2
N, T = mask.shape

row = int((rollout.lengths - 10).abs().argmin())  # a response that fits on the page
print(f"R = {rewards[row]:.3f}, beta = {beta}: {rollout.responses[row]}")
table = []
for t in range(int(rollout.lengths[row])):
    token = rollout.response_tokens[row, t].item()
    text = "EOS" if token == tokenizer.eos_id else repr(tokenizer.decode([token]))
    log_ratio = old_log_probs[row, t] - ref_log_probs[row, t]
    table.append([text, *(float(x) for x in (log_ratio, token_rewards[row, t], returns[row, t]))])
print(format_table(["token", "k1", "r_t", "reward to go"], table))
kl = row_sums(old_log_probs - ref_log_probs, mask)  # (N,)
torch.testing.assert_close(token_rewards.sum(1), rewards - beta * kl)  # RLOO's R'

# %% [markdown]
# ## 2. Reward to go
#
# A token is to blame for what comes after it, not for what came before. With $\gamma = 1$ (Eq. 4):
#
# $$A_t = \sum_{u \ge t} \gamma^{u - t} r_u = R - \beta \sum_{u \ge t} \mathrm{k1}_u$$

# %%
print(inspect.getsource(reinforce_pp_engine.reward_to_go))

# %% [markdown]
# The last column of the table above. Its first entry is the whole return, its last one the last
# reward. What makes tokens of a response differ is **the KL alone**: without it ($\beta = 0$) all of
# them get $R$, and "credit per token" is a name without content. With $\gamma \lt 1$ early tokens get
# *less* of $R$, which says nothing about who earned it.

# %%
torch.testing.assert_close(returns[:, 0], rewards - beta * kl)
last = rollout.lengths - 1
torch.testing.assert_close(returns[range(N), last], token_rewards[range(N), last])
terminal = token_level_rewards(rewards, old_log_probs, None, mask, kl_coef=0.0)  # R at the end
assert (discounted_returns(terminal, mask, 1.0) == torch.where(mask, rewards[:, None], 0.0)).all()

long = torch.ones(1, 50, dtype=torch.bool)
end = torch.zeros(1, 50)
end[0, -1] = 1.0
figure, axis = plt.subplots(figsize=(7, 2.8), layout="constrained")
for gamma in (1.0, 0.99, 0.95, 0.9):
    axis.plot(discounted_returns(end, long, gamma)[0], label=f"gamma = {gamma}")
axis.set(xlabel="token t of a response of 50", ylabel="reward to go", ylim=(0, 1.05))
axis.set_title("A reward of 1 at the end, without a KL")
axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
plt.show()
assert math.isclose(float(discounted_returns(end, long, 0.9)[0, 0]), 0.9**49, rel_tol=1e-4)

# %% [markdown]
# ## 3. Normalised over the batch, never inside a response
#
# Without a baseline every response with $R \gt 0$ "was good". The mean of the batch is the baseline
# here, and its standard deviation the unit (Eq. 5; mean and std over *all valid tokens* of the
# batch):
#
# $$\hat A_{i,t} = \frac{A_{i,t} - \mathrm{mean}_{batch}(A)}{\mathrm{std}_{batch}(A)}$$

# %%
print(inspect.getsource(whiten))

# %% [markdown]
# The same formula, applied to each response on its own, is a bug that runs without an error. If
# the reward comes at the end and $\beta = 0$, all tokens of a response have the same return, equal to
# their mean. Nothing is left:


# %%
def per_response(advantages: Tensor, mask: Tensor) -> Tensor:
    """The bug: each response is normalised by its own tokens."""
    return torch.cat([whiten(advantages[i : i + 1], mask[i : i + 1]) for i in range(len(mask))])


plain = discounted_returns(terminal, mask, 1.0)  # beta = 0
versions = {
    "return": plain,
    "whitened over the batch": whiten(plain, mask),
    "whitened per response: WRONG": per_response(plain, mask),
    "the same with beta = 0.1: WRONG": per_response(returns, mask),
}
figure, axes = plt.subplots(1, 4, figsize=(12.5, 2.9), layout="constrained", sharey=True)
for axis, (name, values) in zip(axes, versions.items(), strict=True):
    picture = torch.where(mask, values, torch.nan)
    image = axis.imshow(picture, cmap="RdBu", vmin=-2, vmax=2, aspect="auto")
    axis.set(xlabel="token t")
    axis.set_title(name, fontsize=10)
axes[0].set_ylabel("response")
figure.colorbar(image, ax=axes)
plt.show()

# %%
assert (versions["whitened per response: WRONG"] == 0).all()
gradients = {}
for name, values in versions.items():
    log_probs = token_log_probs(moved, rollout.sequences)
    loss = sequence_mean(policy_gradient(log_probs, values), mask)
    gradients[name] = torch.autograd.grad(loss, moved.wte.weight)[0].norm()
    means = (row_sums(values, mask) / rollout.lengths).tolist()
    print(f"{name}: gradient norm {gradients[name]:.3f}")
    print("   mean advantage of each response:", [round(m, 2) + 0.0 for m in means])
assert gradients["whitened per response: WRONG"] == 0
assert gradients["whitened over the batch"] > 0.1
erased = row_sums(versions["the same with beta = 0.1: WRONG"], mask) / rollout.lengths
assert erased.abs().max() < 1e-5

# %% [markdown]
# With $\beta \gt 0$ the bug is harder to see: there are advantages, of unit variance and with nice
# curves. But every response has the mean 0, the best and the worst. Whatever $R$ said is gone, and
# the *shape* of the KL is blown up to fill the space. Twelve steps of the engine, once as it is and
# once with the bug in the place of `over_tokens`:

# %%
short = dataclasses.replace(config, steps=12)
_, right = run(short)
with mock.patch.dict(reinforce_pp_engine.NORMS, token=per_response):
    _, wrong = run(short)
figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
for rows, name, color in (
    (right, "over the batch", "tab:blue"),
    (wrong, "per response", "tab:red"),
):
    axis.plot([row["step"] for row in rows], [row["reward"] for row in rows], "o-", color=color)
    axis.plot([], [], "o-", color=color, label=f"whitened {name}")
axis.set(xlabel="step (rollout batch)", ylabel="reward (gold, 0 to 1)", ylim=(0.2, 0.8))
axis.legend()
plt.show()
gain_right, gain_wrong = (
    sum(row["reward"] for row in rows[-3:]) / 3 - rows[0]["reward"] for rows in (right, wrong)
)
print(f"gain after 12 steps: {gain_right:+.3f} over the batch, {gain_wrong:+.3f} per response")
assert gain_right > gain_wrong + 0.05

# %% [markdown]
# ## 4. With groups: REINFORCE++-baseline
#
# The batch's mean does not know the prompt. If some prompts are easy and others hopeless, a poor
# answer to an easy one looks good. With several answers per prompt the group's mean takes that out,
# and the batch gives only the unit (Eqs. 6 and 7):
#
# $$A'_i = R_i - \mathrm{mean}_{group}(R), \qquad
# \hat A_i = \frac{A'_i - \mathrm{mean}_{batch}(A')}{\mathrm{std}_{batch}(A')}$$

# %%
print(inspect.getsource(reinforce_pp_engine.group_centred))
print(inspect.getsource(reinforce_pp_engine.over_sequences))

# %% [markdown]
# Eight prompts with eight answers. Each prompt gets a number between -1 and 1 that is added to all of
# its rewards: how *easy* it is. +1 is the easiest prompt, where every answer earns much. The number
# says nothing about which answer is better.

# %%
groups = sample_rollout(base, tokenizer, records, params, 8, make_generator(4, "groups"))
fair = gold(groups)
ease = torch.linspace(-1, 1, 8).repeat_interleave(8)  # the prompt of every row
forms = {
    "plain": ReinforcePPConfig(group_size=8, prompts_per_step=8, norm_over="sequence"),
    "baseline": ReinforcePPConfig(group_size=8, prompts_per_step=8, variant="baseline"),
}


def advantages_of(form: str, rewards: Tensor) -> Tensor:
    """(N,), with no KL."""
    arguments = (rewards, groups.log_probs, None, groups.response_mask, 0.0)
    return reinforce_pp_advantages(forms[form], *arguments)[:, 0]


figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained", sharey=True)
for axis, form in zip(axes, forms, strict=True):
    dots = axis.scatter(fair, advantages_of(form, fair + ease), c=ease, cmap="viridis")
    axis.set(xlabel="gold reward, before the ease is added", title=form)
axes[0].set_ylabel("advantage")
figure.colorbar(dots, ax=axes, label="ease of the prompt (+1: easiest)")
plt.show()

# %%
for form in forms:
    with_it, without = advantages_of(form, fair + ease), advantages_of(form, fair)
    centred = fair - fair.view(8, 8).mean(1).repeat_interleave(8)  # how good among its neighbours
    both = torch.corrcoef(torch.stack([with_it, centred]))[0, 1]
    print(f"{form:8} correlation of A with 'better than its neighbours': {both:.3f}")
    same = torch.allclose(with_it, without, atol=1e-4)
    assert same == (form == "baseline")
    assert both < 0.6 if form == "plain" else both > 0.9

# %% [markdown]
# **Whose spread?** GRPO divides by the group's, so that two prompts weigh the same even if the
# answers to one of them differ by a hair. The batch's spread lets it stay quiet. And there are two
# ways to take it: over responses (the paper's appendix B.2; the default here) or over tokens, where
# long responses count more often.

# %%
example = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.50, 0.51, 0.50, 0.51])
print("rewards of two groups", [round(x, 2) for x in example.tolist()])
by_group = group_advantages(example, 4)[:, 0]
by_batch = whiten(group_advantages(example, 4, scale="none"), torch.ones(8, 1, dtype=torch.bool))[
    :, 0
]
print("std of the group     ", [round(x, 2) for x in by_group.tolist()])
print("std of the batch     ", [round(x, 2) for x in by_batch.tolist()])
assert by_group[5] > 0.8 * by_group[1] and by_batch[5] < 0.02 * by_batch[1]

four = torch.tensor([1.0, 0.0, 1.0, 1.0])  # two groups of two, 2, 1, 2 and 2 tokens
two = torch.tensor([[True, True], [True, False], [True, True], [True, True]])
for norm_over in ("sequence", "token"):
    pair = ReinforcePPConfig(variant="baseline", group_size=2, norm_over=norm_over)
    A = reinforce_pp_advantages(pair, four, torch.zeros(4, 2), None, two, 0.0)[:, 0]
    print(f"norm_over {norm_over:9}", [round(a, 4) for a in A.tolist()])
assert A.tolist()[2] < -0.2  # over tokens: the all-equal group is pushed down

# %% [markdown]
# Look at the last row. The second group has equal rewards and should teach nothing; under the token
# norm it gets a *negative* advantage, because the winner has two tokens, the loser one, and the mean
# over tokens is no longer zero.
#
# ## 5. k2 as a loss, and why not k1
#
# The baseline form keeps the KL out of the reward and adds it to the loss (Eq. 8):
#
# $$\mathcal{L} = \mathcal{L}_{clip} + \lambda \, \mathrm{k2}, \qquad
# \mathrm{k2}_t = \tfrac12 \left( \log \pi(y_t) - \log \pi_{ref}(y_t) \right)^2$$
#
# Samples $y$ are constants; only $\log \pi(y)$ is differentiated. What does that do *on average*?
# For six symbols it can be listed:
#
# - $\mathbb{E}[\nabla \mathrm{k1}] = \mathbb{E}[\nabla \log \pi] = 0$: k1 as a loss is pure noise.
# - $\mathbb{E}[\nabla \mathrm{k2}] = \mathbb{E}[\log \tfrac{\pi}{\pi_{ref}} \nabla \log \pi] = \nabla
#   \mathrm{KL}(\pi \parallel \pi_{ref})$, the same as k1 in the *reward*.

# %%
start = torch.tensor([1.5, 0.5, -0.5, -1.0, 0.0, -0.5], dtype=torch.float64)
reference = torch.tensor([0.40, 0.10, 0.15, 0.20, 0.05, 0.10], dtype=torch.float64).log()


def exact_kl(logits: Tensor) -> Tensor:
    log_p = logits.log_softmax(0)
    return (log_p.exp() * (log_p - reference)).sum()


logits = start.clone().requires_grad_()
log_p, p = logits.log_softmax(0), start.softmax(0)  # p: where the samples come from
(true,) = torch.autograd.grad(exact_kl(logits), logits, retain_graph=True)
print("gradient of the KL ", [round(x, 4) for x in true.tolist()])
expected = {}
for name, estimator in (("k1", k1), ("k2", k2), ("k3", k3)):
    loss = (p * estimator(log_p[None], reference[None])[0]).sum()
    (expected[name],) = torch.autograd.grad(loss, logits, retain_graph=True)
    print(f"{name} as a loss       ", [round(x, 4) + 0.0 for x in expected[name].tolist()])
in_reward = (p * k1(log_p[None], reference[None])[0].detach() * log_p).sum()
(expected["k1 in the reward"],) = torch.autograd.grad(in_reward, logits)
torch.testing.assert_close(expected["k1"], torch.zeros_like(true), atol=1e-12, rtol=0)
for name in ("k2", "k1 in the reward"):
    torch.testing.assert_close(expected[name], true, atol=1e-12, rtol=0)

# %% [markdown]
# And with samples, 32 at a time, from the same start; nothing but the KL is trained:

# %%
generator = torch.Generator().manual_seed(0)
curves: dict[str, list[float]] = {}
for name, estimator in (("k1", k1), ("k2", k2), ("k3", k3)):
    logits, curves[name] = start.clone(), []
    for _ in range(200):
        curves[name].append(float(exact_kl(logits)))
        logits.requires_grad_()
        drawn = torch.multinomial(logits.softmax(0), 32, replacement=True, generator=generator)
        log_p = logits.log_softmax(0)[drawn]
        loss = estimator(log_p[None], reference[drawn][None]).mean()
        logits = (logits - 0.2 * torch.autograd.grad(loss, logits)[0]).detach()
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name, color in (("k1", "tab:red"), ("k2", "tab:green"), ("k3", "tab:blue")):
    axis.plot(curves[name], color=color, label=f"{name} as the loss")
axis.set(xlabel="step", ylabel="exact KL to the reference (nats)", ylim=(0, None))
axis.legend()
plt.show()
assert curves["k2"][-1] < 0.1 * curves["k2"][0] and curves["k1"][-1] > 0.4 * curves["k1"][0]

# %% [markdown]
# (k3, GRPO's, arrives too: its expected gradient is that of the KL the other way round. More in
# [14_kl_estimators](14_kl_estimators.ipynb).)
#
# ## 6. The loop
#
# Both forms ascend PPO's clipped objective, averaged over the tokens of a response and then over
# responses (Eq. 1).

# %%
print(inspect.getsource(reinforce_pp_engine.reinforce_pp_loss))
source = inspect.getsource(reinforce_pp_engine.train)
print(source[source.index("        advantages = ") : source.index("        row = rollout_metrics")])

# %% [markdown]
# The same 64 responses a step: 64 prompts once, or 8 prompts 8 times. The two KL weights do not mean
# the same. In the plain form the KL is divided by the batch's spread along with the reward, in the
# other it stands beside an advantage of unit spread. To be equally strict $\lambda$ must be about
# $\beta / \mathrm{std}(R)$.

# %%
with_groups = dataclasses.replace(
    config, variant="baseline", prompts_per_step=8, group_size=8, kl_coef=0.1
)
trained = {"plain": run(config), "baseline": run(with_groups)}
first = trained["plain"][1][0]
print(f"std of the rewards {first['reward_std']:.2f}: beta 0.02 is a lambda of about", end=" ")
print(f"{0.02 / first['reward_std']:.2f}")
for name, (_, rows) in trained.items():
    print(f"{name}: ratio_error_at_start {max(row['ratio_error_at_start'] for row in rows):.1e}")
    assert max(row["ratio_error_at_start"] for row in rows) < 1e-4 and abs(rows[0]["kl"]) < 1e-4
    assert ("zero_spread_groups" in rows[0]) == (name == "baseline")  # one answer: no groups

# %%
labels = {
    "reward": "reward (gold, 0 to 1)",
    "kl": "KL from the reference\n(nats per response)",
    "response_length": "length (tokens)",
    "entropy": "entropy (nats per token)",
    "approx_kl": "moved by one batch:\nKL(old, new) (nats per token)",
    "grad_norm": "gradient norm before its clip",
}
figure, axes = plt.subplots(2, 3, figsize=(11, 5.4), layout="constrained", sharex=True)
for axis, (key, label) in zip(axes.flat, labels.items(), strict=True):
    for (name, (_, rows)), color in zip(trained.items(), ("tab:blue", "tab:orange"), strict=True):
        steps, values = [row["step"] for row in rows], [row[key] for row in rows]
        axis.plot(steps, values, color=color, alpha=0.3)
        axis.plot(steps, running_mean(values, 5), color=color, linewidth=2, label=name)
    axis.set(xlabel="step (rollout batch)", ylabel=label)
axes[0, 0].legend()
figure.suptitle("REINFORCE++: thin one step, bold the mean of five")
plt.show()

# %% [markdown]
# Prompts that the policy has never seen, before and after, with the same random numbers:


# %%
def measure(policy: GPT) -> Evaluation:
    validation = reviews.prompts("validation")[:256]
    return evaluate(policy, tokenizer, validation, params, gold, reference=base)


results = {"before": measure(base)} | {name: measure(p) for name, (p, _) in trained.items()}
table = [
    [name, *(result.summary()[key] for key in ("reward", "kl", "response_length"))]
    for name, result in results.items()
]
print(format_table(["", "gold", "KL", "length"], table), "\n")
for i in range(3):
    print(results["before"].records[i].prompt.strip())
    for name, result in results.items():
        print(f"  {name:8}  {result.reward[i]:.2f}  {result.responses[i]}")
for name in trained:
    gain = results[name].reward - results["before"].reward  # prompt by prompt
    half = float(1.96 * gain.std() / math.sqrt(len(gain)))
    print(f"{name}: gain {gain.mean():.3f} +- {half:.3f} (95 % interval)")
    assert gain.mean() - half > 0.1

# %% [markdown]
# One seed, thirty steps: enough to see that both learn, not which is better. Here all prompts are
# about equally hard, so the plain form lacks little; section 4 shows what it would lack elsewhere.
#
# ## Exercise
#
# 1. Plain form, $\gamma = 0.9$, $\beta = 0$, a response of 50 tokens with $R = 1$ and one of 10 tokens
#    with $R = 1$. Which of their tokens have an advantage above the batch's mean?
# 2. A batch has one response. What are its advantages under the token norm with $\beta = 0$?
# 3. In the baseline form with one prompt a step, $\lambda = 0$: which algorithm is this?
#
# <details>
# <summary>Answer</summary>
#
# 1. Those near the end. The mean over the 60 tokens is about $0.27$, and $0.9^{12} = 0.28$: the last
#    13 tokens of the long response and all 10 of the short one ($0.9^9 = 0.39$). The opening of a
#    *good* long response is pushed down, for being far from the end.
#
# ```python
# two = torch.arange(50) < torch.tensor([[50], [10]])
# end = torch.zeros(2, 50)
# end[0, 49] = end[1, 9] = 1
# discounted = discounted_returns(end, two, 0.9)
# print(discounted[two].mean(), (whiten(discounted, two) > 0).sum(1))  # 0.2744, [13, 10]
# ```
#
# 2. All 0: every token has the return $R$, which is the mean. A batch needs at least two responses,
#    and the engine asks for them.
# 3. GRPO without its KL term, up to the $10^{-4}$ that GRPO adds to the standard deviation: the group
#    is the batch.
#
# </details>
