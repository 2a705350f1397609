# %% [markdown]
# # 8. PPO, line by line
#
# **Why.** GRPO asks whether a response was better than its neighbours. PPO asks, at every token,
# whether things have just become better or worse than expected. For that it needs someone who
# expects: a **critic**, a second network that predicts how much reward is still to come. In return
# one response per prompt is enough, and every token has an advantage of its own. This is the
# algorithm of InstructGPT (Ouyang et al. 2022, [arXiv:2203.02155](https://arxiv.org/abs/2203.02155)),
# with the clip of Schulman et al. 2017 ([arXiv:1707.06347](https://arxiv.org/abs/1707.06347)) and
# the advantages of Schulman et al. 2016 ([arXiv:1506.02438](https://arxiv.org/abs/1506.02438)).
#
# | in the box of `rl/ppo_engine.py` | what it is | code | section |
# | --- | --- | --- | --- |
# | policy, reference, critic | the networks | `ValueModel` | 1 |
# | $y \sim$ policy, scores $R$ | a rollout | `sample_rollout`, `reward_fn` | 1 |
# | $r_t = -\beta (\ell_{old} - \ell_{ref})_t$, and $R$ | rewards of tokens | `token_level_rewards` | 2 |
# | $V_{old}$ | what every state is worth | `rollout_values` | 3 |
# | $A$, returns = GAE($r$, $V_{old}$) | by how much every token was better | `gae` | 4 |
# | $A$ = whiten($A$) | one scale for the whole batch | `whiten` | 5 |
# | $L_{CLIP}$ | the policy's loss | `clipped_surrogate` | 6 |
# | $c_v L_{VF}$ | the critic's loss | `value_loss` | 7 |
# | for K epochs; stop once KL is large | one batch, used often | `epoch_minibatches`, `target_kl` | 8 |
# | the loop | | `train` | 9 |
# | adapt $\beta$ | hold the KL at a target | `AdaptiveKL` | 10 |
#
# (The box has two more terms, both off by default: $-c_H H$, an entropy bonus, and $\gamma L_{ptx}$,
# the language model's loss on pre-training text.)
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about half a minute on one CPU core. The page before this
# one: [07_grpo](07_grpo.ipynb); the next:
# [10_rloo](10_rloo.ipynb).

# %%
import copy
import dataclasses
import inspect
import math
import time

import matplotlib.pyplot as plt
import torch
from torch import Tensor

try:
    from data import reviews
    from data.records import PromptRecord
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

torch.set_num_threads(1)  # one thread adds up in the same order on every machine

# %%
from gpt import pretraining
from gpt.common import MetricLog, make_generator
from gpt.corpus import WorldCorpus
from gpt.generate import SamplingParams, generate
from gpt.log_probs import token_log_probs, token_scores
from gpt.model import GPT, GPTConfig
from gpt.optimizer import adamw, clip_and_step
from gpt.tokenizer import build_tokenizer, load_tokenizer
from rl import grpo_engine, ppo_engine
from rl.batches.rollout import join_rollouts, prompt_batch, sample_rollout
from rl.equations.advantages import gae, whiten
from rl.equations.kl import k1
from rl.equations.losses import (
    clip_acted,
    clipped_surrogate,
    policy_gradient,
    token_mean,
    value_loss,
)
from rl.equations.token_rewards import token_level_rewards
from rl.grpo_engine import GRPOConfig
from rl.ppo_engine import PPOConfig
from rl.rewards.sources import RuleReward
from rl.training.actor_critic import gae_targets, ppo_loss
from rl.training.evaluation import Evaluation, evaluate, format_table, running_mean
from rl.training.value_model import ValueModel

tokenizer = load_tokenizer("glassbox")

# %% [markdown]
# The policy to improve is that of [07_grpo](07_grpo.ipynb): a small base model of the reviews world,
# pre-trained in ten seconds. The reward is the world's **gold reward**, from 0 to 1, in the place of
# a reward model.

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
# ## 1. The networks, and a rollout
#
# Four are in memory: the **policy**, which learns; the **reference**, its frozen copy from before;
# the **reward model** (here a rule); and the **critic**, which learns as well. The critic is a GPT
# like the policy with one number in the place of the vocabulary. It starts from the reward model,
# as in InstructGPT, or from the policy with a head of zeros. It shares no weight with the policy.
# (Nor does the critic of Huang et al. 2024, [arXiv:2403.17031](https://arxiv.org/abs/2403.17031),
# who list the details of such runs: it is a separate model that starts from the reward model, whose
# head started with a standard deviation of $1 / \sqrt{d + 1}$.)

# %%
print(inspect.getsource(ValueModel.from_policy))
print(inspect.getsource(ValueModel.forward))


def size(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


critic = ValueModel.from_policy(base)
print(f"policy {size(base):,} weights, reference as many, critic {size(critic):,}")
assert size(critic) == size(base) + shape.n_embd + 1  # the head and its bias

# %%
records = prompt_batch(prompts, step=0, batch_size=6, seed=1)
rollout = sample_rollout(base, tokenizer, records, params, 1, make_generator(3, "demo"))
rewards = gold(rollout)  # (N,)
old_values = critic.rollout_values(rollout.sequences, micro_batch_size=64)  # (N, T)

for i, record in enumerate(records):
    print(f"{record.prompt.strip()}\n  {rewards[i]:.2f}  {rollout.responses[i]}")
print(f"\nvalues {tuple(old_values.shape)}: one for every response token, at first all 0")
assert old_values.shape == rollout.response_mask.shape and not old_values.any()

# %% [markdown]
# ## 2. A reward for every token
#
# What RLHF maximises is a score minus a distance (arXiv:2203.02155, Eq. 2; the distance is the KL
# from the reference):
#
# $$R(x, y) - \beta \log \frac{\pi(y \mid x)}{\pi_{ref}(y \mid x)}$$
#
# The logarithm is a sum over tokens, so each token can be charged its own part at once. The score
# comes with the last one, the EOS:
#
# $$r_t = -\beta \left( \log \pi(y_t) - \log \pi_{ref}(y_t) \right) \quad
# (+ \, R \text{ at the last token})$$

# %%
print(inspect.getsource(token_level_rewards))

# %%
log_probs = torch.tensor([[-1.0, -2.0, -0.5]])  # of three tokens, when they were sampled
ref_log_probs = torch.tensor([[-1.2, -1.5, -0.5]])
R, whole, beta = torch.tensor([1.0]), torch.ones(1, 3, dtype=torch.bool), 0.1

r = token_level_rewards(R, log_probs, ref_log_probs, whole, beta)
print("k1          ", [round(x, 2) + 0.0 for x in k1(log_probs, ref_log_probs)[0].tolist()])
print("token reward", [round(x, 2) for x in r[0].tolist()], f" sum {r.sum():.2f}")
torch.testing.assert_close(r, torch.tensor([[-0.02, 0.05, 1.0]]))
by_equation = R - beta * (log_probs - ref_log_probs).sum(1)
torch.testing.assert_close(r.sum(1), by_equation)

mean_kl = token_level_rewards(R, log_probs, ref_log_probs, whole, beta, kl="sequence_mean")
print("mean KL, at the end", [round(x, 2) for x in mean_kl[0].tolist()])

# %% [markdown]
# The first token is one that the policy likes more than the reference does, and it costs; the
# second one pays. The sum is the equation's, 1.03. Some descriptions subtract the *mean* of k1 from
# the score instead (last line): then the penalty is smaller by the length, and no token knows which
# part of it is its own.
#
# The gradient does not pass through these numbers. They are what the sampler's log-probabilities
# were: constants, like any reward. That is why k1 is right here and useless as a loss
# ([14_kl_estimators](14_kl_estimators.ipynb)).

# %% [markdown]
# ## 3. A value for every token
#
# $V(s_t)$ is the expected sum of the rewards from token $t$ on, in the state $s_t = (x, y_{\lt t})$:
# *before* token $t$ is chosen. What would a perfect critic say? In this world it can be found out:
# stop at every prefix of a response, let the policy finish it 64 times, and take the mean reward.


# %%
def true_values(policy: GPT, record: PromptRecord, tokens: list[int], count: int = 64) -> Tensor:
    """V of the state before every token of a response, (L,): the mean gold reward of `count` ends."""
    prompt = tokenizer.encode(record.prompt)
    states = [prompt + tokens[:t] for t in range(len(tokens))]
    ends = generate(
        policy, states, params, make_generator(5, "ends"), eos_id=tokenizer.eos_id,
        samples_per_prompt=count,
    )  # fmt: skip
    earned = [
        reviews.gold_reward(record, tokenizer.decode(tokens[: i // count] + end), bool(ended))
        for i, (end, ended) in enumerate(zip(ends.token_lists(), ends.has_eos))
    ]
    return torch.tensor(earned).view(len(tokens), count).mean(1)


record = records[0]
candidates = sample_rollout(base, tokenizer, [record], params, 24, make_generator(3, "24"))
scores = torch.where(candidates.lengths >= 10, gold(candidates), torch.nan)  # no short ones
pair = {"best": int(scores.nan_to_num(-1).argmax()), "worst": int(scores.nan_to_num(2).argmin())}
examples = {}
for name, i in pair.items():
    tokens = candidates.response_tokens[i][candidates.response_mask[i]].tolist()
    examples[name] = (tokens, true_values(base, record, tokens), float(scores[i]))

# %%
figure, axes = plt.subplots(1, 2, figsize=(11.5, 3.8), layout="constrained", sharey=True)
for axis, (name, (tokens, values, score)) in zip(axes, examples.items(), strict=True):
    words = [tokenizer.decode([token]).strip() or "EOS" for token in tokens]
    places = range(len(tokens) + 1)
    axis.step(places, [*values, score], where="mid", color="tab:blue", label="V(s)")
    axis.axhline(float(values[0]), color="tab:grey", linestyle="--", label="V(x), the prompt's")
    axis.plot(len(tokens), score, "o", color="tab:green", label="reward")
    axis.set_xticks(places, [f"before\n{words[0]}", *words[1:], "end"], rotation=60, fontsize=8)
    axis.set(
        xlabel="the state before this token", title=f"{name} of the longer responses: {score:.2f}"
    )
axes[0].set(ylabel="mean reward of 64 ends", ylim=(-0.03, 1))
axes[0].legend(loc="lower right")
figure.suptitle(record.prompt.strip())
plt.show()

# %% [markdown]
# The line moves where the response is decided: up at the name of the right thing and at a kind word,
# down where the thing is not named and at unkind words, and hardly at a full stop. The step
# of the line at a token is that token's **temporal difference**, $\delta_t = r_t + V(s_{t+1}) -
# V(s_t)$: what this one word was worth.
#
# What would one value per prompt lose, as a critic $V(x)$ that reads the prompt alone gives? The
# dashed line has no steps: all differences but the last are 0, and GAE cannot tell one token of a
# response from another, but by its distance from the end. That is what GRPO does without a critic.

# %%
for name, (tokens, values, score) in examples.items():
    own = torch.cat([values[1:], torch.tensor([score])]) - values
    flat = torch.zeros(len(tokens))
    flat[-1] = score - values[0]
    print(f"{name}: reward {score:.2f}, expected {values[0]:.2f}")
    for t in own.abs().topk(3).indices.sort().values.tolist():
        word = tokenizer.decode([tokens[t]]) or "EOS"
        print(f"  {word!r:14} own value {own[t]:+.2f}   the prompt's value {flat[t]:+.2f}")
    torch.testing.assert_close(own.sum(), flat.sum())  # both add up to reward minus expectation
    assert own.abs().max() > 0.05

# %% [markdown]
# The value stands *before* its token, one column earlier than a reward model's score: it is the
# baseline for the choice of the token and must not know it. Change a token, and only later values
# may change:

# %%
noisy = ValueModel.from_policy(base)
torch.nn.init.normal_(noisy.head.weight, generator=make_generator(0, "head"))
t = 4
changed = rollout.sequences.tokens.clone()
column = int(rollout.sequences.prompt_lengths[0]) + t  # where response token 4 of row 0 stands
changed[0, column] = (changed[0, column] + 1) % tokenizer.eos_id
other = dataclasses.replace(rollout.sequences, tokens=changed)
with torch.no_grad():
    change = (noisy(other) - noisy(rollout.sequences))[0].abs()
print("change of V_0 ... V_7:", [round(x, 3) for x in change[:8].tolist()])
assert not change[: t + 1].any() and change[t + 1 : t + 4].min() > 0

# %% [markdown]
# ## 4. GAE: from one step to the whole return
#
# How much better than expected was token $t$? One may look one step ahead and trust the critic with
# the rest, or look $n$ steps ahead, or wait for the end and trust the critic with nothing but the
# expectation (arXiv:1506.02438, Eqs. 11 to 16):
#
# $$A^{(n)}_t = r_t + \gamma r_{t+1} + \ldots + \gamma^{n-1} r_{t+n-1} + \gamma^n V(s_{t+n}) - V(s_t)
# = \sum_{l=0}^{n-1} \gamma^l \delta_{t+l}$$
#
# Generalised advantage estimation takes all of them, with weights that fall by $\lambda$ from one to
# the next (the last one, which reaches the end, gets all that is left):
#
# $$A_t = (1 - \lambda) \sum_{n \ge 1} \lambda^{n-1} A^{(n)}_t
# = \sum_{l \ge 0} (\gamma \lambda)^l \delta_{t+l}$$
#
# [04](04_policy_gradients_and_baselines.ipynb) shows the code of `gae` and its mask. Here is the
# sum, term by term, for the first token of the best response:

# %%
tokens, values, score = examples["best"]
L, lam = len(tokens), 0.8
r = torch.zeros(1, L)
r[0, -1] = score
delta = r[0] + torch.cat([values[1:], torch.zeros(1)]) - values
n_step = delta.cumsum(0)  # A^(1) ... A^(L) of token 0, gamma = 1
weight = (1 - lam) * lam ** torch.arange(L)
weight[-1] = lam ** (L - 1)

print("n        ", *(f"{n:6d}" for n in range(1, 8)))
print("A^(n)    ", *(f"{x:6.3f}" for x in n_step[:7]))
print("weight   ", *(f"{x:6.3f}" for x in weight[:7]))
full = torch.ones(1, L, dtype=torch.bool)
for value in (0.0, lam, 1.0):
    estimate = gae(r, values[None], full, 1.0, value)[0][0, 0]
    print(f"lambda {value}: A_0 = {estimate:.4f}")
    wanted = {0.0: delta[0], lam: (weight * n_step).sum(), 1.0: score - values[0]}[value]
    torch.testing.assert_close(estimate, torch.as_tensor(wanted))
assert math.isclose(float(weight.sum()), 1, abs_tol=1e-6)

# %% [markdown]
# $\lambda = 0$ is the single temporal difference, $\lambda = 1$ the whole return minus the value
# (Monte Carlo). Which is better depends on the critic. A case in which the truth is known: a walk
# whose steps add random numbers to $S$, and the reward at the end is $S$. Then $V(s) = S$, and the
# advantage of a step is exactly the number that it adds. Three critics: one that says 0, as PPO's
# does at first; one that says half of the truth; one that is right up to ripples.
#
# What an update compares is two actions in one state. Take 250 such pairs nine steps before the
# end, with 400 futures each. The error of "by how much is the first one better?" splits into
# **bias**, which stays however many samples there are, and **variance**, which a batch of 64
# divides by 64.


# %%
def returns_from(first: Tensor, step: Tensor, generator: torch.Generator) -> Tensor:
    """States of 400 futures after this state and this step: (250, 400, 10), the last is the end."""
    future = torch.randn(250, 400, 8, generator=generator)
    steps = torch.cat([step[:, None, None].expand(250, 400, 1), future], 2)
    start = first[:, None, None].expand(250, 400, 1)
    return torch.cat([start, start + steps.cumsum(2)], 2)


def estimated(states: Tensor, critic, lam: float) -> Tensor:
    """GAE of the first step, (250, 400)."""
    values = critic(states[..., :-1]).flatten(0, 1)  # (100000, 9)
    r = torch.zeros_like(values)
    r[:, -1] = states[..., -1].flatten()
    return gae(r, values, torch.ones_like(r, dtype=torch.bool), 1.0, lam)[0][:, 0].view(250, 400)


generator = make_generator(0, "walks")
first, one, two = torch.randn(3, 250, generator=generator) * torch.tensor([[2.0], [1.0], [1.0]])
futures = [returns_from(first, step, generator) for step in (one, two)]
critics = {
    "says 0": lambda S: 0 * S,
    "half the truth": lambda S: S / 2,
    "nearly right": lambda S: S + 0.4 * torch.sin(4 * S),
}
lambdas = [0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0]

# %%
errors: dict[str, list[tuple[float, float]]] = {}
for name, function in critics.items():
    errors[name] = []
    for lam in lambdas:
        gap = estimated(futures[0], function, lam) - estimated(futures[1], function, lam)
        variance = gap.var(1).mean()
        off = (gap.mean(1) - (one - two)).square().mean() - variance / 400  # less the mean's noise
        errors[name].append((max(float(off), 0.0), float(variance)))

shown = (0, 0.5, 0.8, 0.95, 1.0)
table = []
for name, results in errors.items():
    for label, index in (("bias squared", 0), ("variance", 1)):
        table.append([name, label, *(results[lambdas.index(lam)][index] for lam in shown)])
    both = [b + v / 64 for b, v in results]
    table.append([name, "error, batch of 64", *(both[lambdas.index(lam)] for lam in shown)])
print(format_table(["critic", "", *(f"lambda {lam}" for lam in shown)], table))
assert errors["says 0"][0][0] > 1.5 and all(results[-1][0] < 0.06 for results in errors.values())
assert all(results[0][1] < 1e-6 and results[-1][1] > 14 for results in errors.values())

# %%
figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
for (name, results), style in zip(errors.items(), ("o-", "s-", "^-"), strict=True):
    bias, variance = (torch.tensor(column) for column in zip(*results))
    for axis, curve in zip(axes, (bias, variance, bias + variance / 64), strict=True):
        axis.plot(lambdas, curve, style, markersize=4, label=name)
    lowest = (bias + variance / 64).argmin()
    print(f"critic {name}: least error at lambda {lambdas[lowest]}")
titles = ("bias squared", "variance of one sample", "bias squared + variance / 64")
for axis, title in zip(axes, titles, strict=True):
    axis.set(xlabel=r"$\lambda$", ylabel="squared error of the comparison", title=title)
axes[2].set_yscale("log")
axes[0].legend()
plt.show()
best = {
    name: min(range(len(lambdas)), key=lambda i: r[i][0] + r[i][1] / 64)
    for name, r in errors.items()
}
assert best["nearly right"] < best["half the truth"] <= best["says 0"]

# %% [markdown]
# With a critic that knows nothing, a small $\lambda$ is blind: the reward is eight steps away and
# arrives with the weight $\lambda^8$. The better the critic, the more it pays to believe it. 0.95
# is made for a critic that is learning; it reaches back $1 / (1 - \lambda) = 20$ tokens, about one
# response of this world.
#
# ## 5. Whitening: over the batch
#
# Advantages of all tokens of the batch are brought to mean 0 and deviation 1, so that one learning
# rate fits all rewards. The set matters: *all* responses together. Done for each response by
# itself it removes the very thing that was to be learned, whether the response is good. Two
# responses, scores 1 and -3, a critic of zeros, $\lambda = 1$:

# %%
mask = torch.tensor([[True, True, True], [True, True, False]])
r = torch.tensor([[0.0, 0.0, 1.0], [0.0, -3.0, 0.0]])
raw, returns = gae(r, torch.zeros(2, 3), mask, 1.0, 1.0)
batch = whiten(raw, mask)
alone = torch.cat([whiten(raw[i : i + 1], mask[i : i + 1]) for i in range(2)])
for name, x in (("raw", raw), ("batch", batch), ("per response", alone), ("returns", returns)):
    print(f"{name:13}", [[round(v, 2) for v in row] for row in x.tolist()])
assert (batch[0] > 0).all() and (batch[1, :2] < 0).all() and batch[1, 2] == 0
assert not alone.any()  # nothing left to learn

# %% [markdown]
# The **returns** $A_t + V(s_t)$, which the critic is to predict, are taken before the whitening and
# stay in the units of the reward.
#
# ## 6. The clipped loss of the policy
#
# $$L_{CLIP} = -\min \left( \rho_t A_t, \; \mathrm{clip}(\rho_t, 1 - \varepsilon, 1 + \varepsilon)
# A_t \right), \qquad \rho_t = \frac{\pi_\theta(y_t)}{\pi_{old}(y_t)}$$
#
# (arXiv:1707.06347, Eq. 7, as a loss.) [07_grpo](07_grpo.ipynb) draws it. What matters is the
# gradient, and it is a small table. `clip` in it means: no gradient.

# %%
ratios = torch.tensor([[0.5, 0.9, 1.0, 1.1, 1.5]])
print("ratio            ", *(f"{x:6.1f}" for x in ratios[0]))
pulls = {}
for A in (1.0, -1.0):
    x = ratios.log().requires_grad_()  # log pi, with log pi_old = 0
    loss = clipped_surrogate(x, torch.zeros(1, 5), torch.full((1, 5), A), 0.2, 0.2)
    clipped = clip_acted(ratios, torch.full((1, 5), A), 0.2, 0.2)
    (pulls[A],) = torch.autograd.grad(loss.sum(), x)
    cells = ["  clip" if c else f"{g:6.1f}" for g, c in zip(pulls[A][0], clipped[0])]
    print(f"A = {A:+.0f}: loss     ", *(f"{value:6.1f}" for value in loss[0].detach()))
    print("        gradient ", *cells)
torch.testing.assert_close(pulls[1.0], torch.tensor([[-0.5, -0.9, -1.0, -1.1, 0.0]]))
torch.testing.assert_close(pulls[-1.0], torch.tensor([[0.0, 0.9, 1.0, 1.1, 1.5]]))

# %% [markdown]
# A good token ($A > 0$) is pushed up until it is 1.2 times as likely as it was; a bad one down until
# 0.8. A token that went the *wrong* way (a good one at 0.5, a bad one at 1.5) keeps its gradient:
# the same minimum for both signs does that.
#
# ## 7. The clipped loss of the critic
#
# $$L_{VF} = \frac12 \max \left( (V - G)^2, \; (V_{old} + \mathrm{clip}(V - V_{old},
# -\varepsilon_v, \varepsilon_v) - G)^2 \right), \qquad G \text{ the return}$$
#
# The same pessimism, for the same reason: one batch shall not move the critic far. Once a value has
# gone $\varepsilon_v$ towards its return, its gradient ends; away from it, it never does.

# %%
print(inspect.getsource(value_loss))

# %%
values = torch.linspace(-0.3, 1.5, 181)[None].requires_grad_()
old, returns = torch.full((1, 181), 0.5), torch.ones(1, 181)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
for limit, color in ((None, "tab:grey"), (0.2, "tab:blue")):
    loss = value_loss(values, old, returns, limit)
    (pull,) = torch.autograd.grad(loss.sum(), values)
    label = "no clip" if limit is None else "clip at 0.2"
    for axis, curve in zip(axes, (loss, pull), strict=True):
        axis.plot(values[0].detach(), curve[0].detach(), color=color, label=label)
        axis.axvline(0.5, color="black", linestyle=":", linewidth=1)
        axis.axvline(1.0, color="tab:green", linestyle=":", linewidth=1)
axes[0].set(xlabel="V (dots: old value 0.5, return 1)", ylabel="loss of the critic")
axes[1].set(xlabel="V", ylabel="its gradient")
axes[0].legend()
plt.show()
assert not pull[(values > 0.71) & (values < 1.0)].any() and (pull[values < 0.69] < 0).all()

old, returns = torch.full((1, 3), 0.5), torch.tensor([[2.0, -1.0, 0.0]])
three = value_loss(torch.tensor([[1.0, 0.0, 0.55]]), old, returns, 0.2)
print("V = 1, 0, 0.55; old 0.5; returns 2, -1, 0; mean loss", round(three.mean().item(), 5))
assert math.isclose(three.mean(), 0.61375, abs_tol=1e-6)

# %% [markdown]
# $\varepsilon_v$ is in the units of the reward, unlike $\varepsilon$: 0.2 is a fifth of this page's
# scale, and would be next to nothing for rewards in the hundreds.
#
# ## 8. The whole loss, and K epochs of it

# %%
print(inspect.getsource(gae_targets))
print(inspect.getsource(ppo_loss))

# %% [markdown]
# The first step, on 64 fresh responses. The ratio is 1 everywhere, so the policy's part of the loss
# is minus the mean of whitened advantages: 0. Its gradient is that of REINFORCE, not 0.

# %%
config = PPOConfig(
    prompts_per_step=64, micro_batch_size=64, value_coef=0.0, gae_lambda=0.95, device="cpu"
)
records = prompt_batch(prompts, step=0, batch_size=64, seed=2)
rollout = sample_rollout(base, tokenizer, records, params, 1, make_generator(4, "epochs"))
mask, count = rollout.response_mask, int(rollout.lengths.sum())
token_rewards = token_level_rewards(gold(rollout), rollout.log_probs, None, mask, 0.0)
targets = gae_targets(config, rollout, token_rewards, rollout.log_probs, critic)

policy = copy.deepcopy(base)
scores = token_scores(policy, rollout.sequences)
losses = ppo_loss(config, scores, critic(rollout.sequences), targets, mask, count)
gradient = torch.autograd.grad(losses.total, policy.wte.weight, retain_graph=True)[0]
reinforce = token_mean(policy_gradient(scores.log_probs, targets.advantages), mask)
wanted = torch.autograd.grad(reinforce, policy.wte.weight)[0]
ratio = (scores.log_probs - targets.old_log_probs).exp()[mask]
print(f"largest |ratio - 1| {(ratio - 1).abs().max():.1e}, loss {abs(losses.total.item()):.6f}")
print(f"gradient norm {gradient.norm():.3f}, of REINFORCE {wanted.norm():.3f}")
assert (ratio - 1).abs().max() < 1e-5 and abs(losses.total) < 1e-5
torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-5)

# %% [markdown]
# Now the same 64 responses again and again. After the first update they are *old*: the ratios
# spread, the clip begins to act, and KL(old, new), estimated as the mean of $\rho - 1 - \log \rho$,
# says how far the policy has come.

# %%
optimizer = adamw(policy, lr=1e-3, weight_decay=0.0)
spread, moved = {}, []
for update in range(1, 13):
    scores = token_scores(policy, rollout.sequences)
    losses = ppo_loss(config, scores, critic(rollout.sequences), targets, mask, count)
    ratio = (scores.log_probs - targets.old_log_probs).detach().exp()[mask]
    clipped = clip_acted(ratio, targets.advantages[mask], config.clip_low, config.clip_high)
    moved.append((float((ratio - 1 - ratio.log()).mean()), float(clipped.float().mean())))
    spread[update] = ratio
    optimizer.zero_grad()
    losses.total.backward()
    clip_and_step(optimizer, policy.parameters(), max_norm=1.0)

print("update   KL(old, new)   clipped   ratios between (5 to 95 %)")
for update in (1, 2, 4, 8, 12):
    low, high = torch.quantile(spread[update], torch.tensor([0.05, 0.95])).tolist()
    kl, clip = moved[update - 1]
    print(f"{update:6d} {kl:14.4f} {clip:9.3f}   {low:.2f} to {high:.2f}")
assert moved[0] == (0.0, 0.0) or moved[0][0] < 1e-6
assert moved[11][0] > moved[3][0] > moved[1][0] > 0 and moved[11][1] > 0.02

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.5), layout="constrained")
for update, color in ((2, "lightblue"), (4, "tab:blue"), (12, "navy")):
    left.hist(
        spread[update].log().tolist(), bins=60, range=(-1, 1), histtype="step", linewidth=1.5,
        color=color, label=f"update {update}",
    )  # fmt: skip
left.axvspan(math.log(0.8), math.log(1.2), color="grey", alpha=0.15, label="not clipped")
left.set(xlabel=r"log ratio, $\log \pi - \log \pi_{old}$", ylabel="tokens", yscale="log")
left.legend(fontsize=8)
target = 0.01
right.plot(range(1, 13), [kl for kl, _ in moved], "o-", color="tab:blue", label="KL(old, new)")
right.axhline(1.5 * target, color="tab:red", linestyle="--", label="1.5 times a target of 0.01")
right.set(xlabel="update on the same batch", ylabel="nats per token")
right.legend(fontsize=8)
plt.show()

# %% [markdown]
# `target_kl` ends the epochs of a batch when the KL of a minibatch is above 1.5 times that number.
# That minibatch makes no step, and none after it. The clip slows the policy down, this stops it:

# %%
full = PPOConfig(
    steps=1, prompts_per_step=64, minibatches=1, updates_per_batch=12, micro_batch_size=64, lr=1e-3,
    warmup=1, kl_coef=0.0, device="cpu",
)  # fmt: skip
kls = {}
for limit in (None, target):
    student, log = copy.deepcopy(base), MetricLog(1)
    with_limit = dataclasses.replace(full, target_kl=limit)
    ppo_engine.train(with_limit, student, tokenizer, gold, prompts, log)
    first_batch = prompt_batch(prompts, 0, 64, full.seed)
    again = sample_rollout(base, tokenizer, first_batch, params, 1, make_generator(0, "sampling"))
    with torch.no_grad():
        log_ratio = token_log_probs(student, again.sequences) - again.log_probs
    log_ratio = log_ratio[again.response_mask]
    kls[limit] = float((log_ratio.exp() - 1 - log_ratio).mean())
    print(f"target_kl {limit}: KL(old, new) after the batch {kls[limit]:.4f} nats per token")
assert kls[target] < kls[None]

# %% [markdown]
# ## 9. The loop, and a run
#
# `train` of `rl/ppo_engine.py`, one batch of it. The comments name the lines of the box. `ppo_targets`
# is `gae_targets` with two options that are off by default (whitened rewards, a value after cut-off
# responses).

# %%
source = inspect.getsource(ppo_engine.train)
print(
    source[
        source.index('        with clock.phase("rollout")') : source.index("        row = rollout")
    ]
)

# %%
config = PPOConfig(
    steps=30, prompts_per_step=64, updates_per_batch=2, minibatches=2, lr=7e-4, critic_lr=3e-3,
    micro_batch_size=64, kl_coef=0.02, stop_kl=None, device="cpu",
)  # fmt: skip
policy, critic = copy.deepcopy(base), ValueModel.from_policy(base)
rows = ppo_engine.train(
    config, policy, tokenizer, gold, prompts, MetricLog(config.steps), value_model=critic
)
print(f"{len(rows)} batches of 64 prompts with one response each")
print(f"ratio_error_at_start, largest: {max(row['ratio_error_at_start'] for row in rows):.1e}")
assert max(row["ratio_error_at_start"] for row in rows) < 1e-4
assert abs(rows[0]["kl"]) < 1e-4 and abs(rows[0]["explained_variance"]) < 1e-3

# %%
curves = {
    "reward": "reward (gold, 0 to 1)",
    "kl": "KL from the reference\n(nats per response)",
    "explained_variance": "explained variance\nof the critic",
    "value_loss": "value loss",
    "clip_fraction": "clipped tokens (share)",
    "entropy": "entropy (nats per token)",
}
for row in rows:
    row["clip_fraction"] = row["clip_low_fraction"] + row["clip_high_fraction"]
figure, axes = plt.subplots(2, 3, figsize=(11, 5.4), layout="constrained", sharex=True)
for axis, (key, label) in zip(axes.flat, curves.items(), strict=True):
    steps, values = [row["step"] for row in rows], [row[key] for row in rows]
    axis.plot(steps, values, color="tab:blue", alpha=0.3)
    axis.plot(steps, running_mean(values, 5), color="tab:blue", linewidth=2)
    axis.set(xlabel="step (rollout batch)", ylabel=label)
axes[0, 2].axhline(0, color="grey", linewidth=0.8)
figure.suptitle("PPO: thin one step, bold the mean of five")
plt.show()


def mean_of(key: str, chosen: list[dict]) -> float:
    return sum(row[key] for row in chosen) / len(chosen)


assert mean_of("reward", rows[-5:]) > mean_of("reward", rows[:3]) + 0.25
assert mean_of("explained_variance", rows[-8:]) > mean_of("explained_variance", rows[1:6]) + 0.1

# %% [markdown]
# The **explained variance**, $1 - \mathrm{Var}(G - V) / \mathrm{Var}(G)$, is the critic's mark: 0
# for a critic of zeros, or any constant; 1 for one that knows every return. It begins at 0, falls
# below while the critic has moved and knows nothing yet, and rises. It cannot come near 1: much of
# a return is decided by words that are not yet chosen. The nearer the end, the more a state tells.
# To see it, take responses of the base model and of the trained policy together: among the trained
# policy's own responses gold hardly differs any more, and there is little left to know.

# %%
unseen = reviews.prompts("validation")[:256]
fresh, of_base = (
    sample_rollout(model, tokenizer, unseen, params, 1, make_generator(6, "fresh"))
    for model in (policy, base)
)
values, earned = critic.rollout_values(fresh.sequences, 64), gold(fresh)
both = join_rollouts([fresh, of_base])
all_values, all_earned = critic.rollout_values(both.sequences, 64), gold(both)
place = torch.arange(all_values.shape[1]) / both.lengths[:, None]  # 0 = first token, near 1 = EOS
edges, known = torch.linspace(0, 1, 6), []
for low, high in zip(edges[:-1], edges[1:], strict=True):
    here = both.response_mask & (place >= low) & (place < high)
    truth = all_earned[:, None].expand_as(all_values)[here]
    known.append(1 - float((truth - all_values[here]).var() / truth.var()))
    print(f"{low:.0%} to {high:.0%} of the response: explained variance {known[-1]:+.2f}")
assert known[-1] > known[0] + 0.1

# %% [markdown]
# And one response of the trained policy in detail: what the critic says, what it should say (64 ends
# for every prefix, as in section 3), and the advantage that each token gets.

# %%
i = int(earned.argsort()[64])  # a response of the lower half: something goes wrong in it
tokens = fresh.response_tokens[i][fresh.response_mask[i]].tolist()
L = len(tokens)
row = fresh.sequences.rows(torch.tensor([i]))
with torch.no_grad():
    ref = token_log_probs(base, row)
r = token_level_rewards(earned[i : i + 1], fresh.log_probs[i : i + 1], ref, row.response_mask, 0.02)
advantages, _ = gae(r, values[i : i + 1], row.response_mask, 1.0, 0.95)
truth = true_values(policy, fresh.records[i], tokens)
words = [tokenizer.decode([token]).strip() or "EOS" for token in tokens]
figure, (top, low) = plt.subplots(2, 1, figsize=(9, 5), layout="constrained", sharex=True)
top.plot(range(L), truth, "o-", color="black", markersize=3, label="mean of 64 ends")
top.plot(range(L), values[i, :L], "o-", color="tab:blue", markersize=3, label="critic")
top.axhline(float(earned[i]), color="tab:green", linestyle="--", label="reward of this response")
top.set(ylabel="V before the token", title=fresh.records[i].prompt.strip(), ylim=(0, 1))
top.legend(fontsize=8)
low.bar(range(L), advantages[0, :L], color="tab:orange", label="advantage (not whitened)")
low.bar(range(L), r[0, : L - 1].tolist() + [0.0], color="tab:red", label="KL's part of the reward")
low.axhline(0, color="black", linewidth=0.8)
low.set_xticks(range(L), words, rotation=60, fontsize=8)
low.set(xlabel="token", ylabel="per token")
low.legend(fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
plt.show()

# %% [markdown]
# Where the black line steps and the blue one does not, the critic has something to learn. In the run
# shown here that is the name of the thing: the response speaks of another one than the prompt, the
# truth falls, and the critic does not see it. Comparing with the prompt is the hard part of this
# world, for the policy as well. So the blame falls on all tokens alike, as with one value per prompt.
#
# Prompts that the policy has never seen, before and after, with the same random numbers:


# %%
def measure(policy: GPT) -> Evaluation:
    return evaluate(policy, tokenizer, unseen, params, gold, reference=base)


results = {"before": measure(base), "after": measure(policy)}
table = []
for name, result in results.items():
    numbers = result.summary()
    table.append([name, numbers["reward"], numbers["kl"], numbers["response_length"]])
print(format_table(["", "gold", "KL", "length"], table), "\n")
for i in range(3):
    print(results["before"].records[i].prompt.strip())
    for name, result in results.items():
        print(f"  {name:6}  {result.reward[i]:.2f}  {result.responses[i]}")
gain = results["after"].reward - results["before"].reward  # prompt by prompt
half = float(1.96 * gain.std() / math.sqrt(len(gain)))
print(f"\ngain {gain.mean():.3f} +- {half:.3f} (95 % interval)")
assert gain.mean() - half > 0.2

# %% [markdown]
# ## 10. Holding the KL at a target
#
# A good $\beta$ depends on the reward's scale, which nobody knows in advance. How far a policy may
# go, in nats per response, is easier to say. The controller of Ziegler et al. 2019
# ([arXiv:1909.08593](https://arxiv.org/abs/1909.08593), section 2.2) turns $\beta$ until the KL is
# there ([14_kl_estimators](14_kl_estimators.ipynb), section 8):
#
# $$e = \mathrm{clip} \left( \frac{\mathrm{KL}}{\mathrm{target}} - 1, -0.2, 0.2 \right), \qquad
# \beta \leftarrow \beta \left( 1 + \frac{\mathrm{responses}}{\mathrm{horizon}} \, e \right)$$
#
# It is slow on purpose: with 256 responses a batch and the usual horizon of 10,000 one batch turns
# $\beta$ by 0.5 % at most. To see it at work, a toy that takes 180 batches in two seconds: a policy
# of eight letters that is paid for writing `a`. Two runs, one with a $\beta$ that is much too small
# at first, one much too large, and a short horizon.

# %%
letters = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})
toy_shape = GPTConfig(letters.n_vocab, context=12, n_layer=1, n_head=2, n_embd=32)
toy = GPT(toy_shape).initialize(make_generator(0, "toy")).eval()
share_of_a = RuleReward(lambda record, text, ended: text.count("a") / 8, "share of a")
toy_config = PPOConfig(
    steps=180, prompts_per_step=32, minibatches=1, updates_per_batch=1, micro_batch_size=32, lr=3e-3,
    critic_lr=5e-3, max_new_tokens=8, kl_controller="adaptive", kl_target=3.0, kl_horizon=320,
    stop_kl=None, device="cpu",
)  # fmt: skip
held = {}
for start in (0.02, 0.3):
    with_start = dataclasses.replace(toy_config, kl_coef=start)
    ask = [PromptRecord(letter) for letter in "abcdefgh"]
    held[start] = ppo_engine.train(
        with_start, copy.deepcopy(toy), letters, share_of_a, ask, MetricLog(180)
    )
    late = held[start][-50:]
    print(
        f"beta from {start}: last 50 batches KL {mean_of('kl', late):.2f}, "
        f"beta {mean_of('kl_coef', late):.3f}, reward {mean_of('reward', late):.2f}"
    )
    assert abs(mean_of("kl", late) - 3) < 0.8

# %%
figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
for (start, toy_rows), color in zip(held.items(), ("tab:red", "tab:blue"), strict=True):
    for axis, key in zip(axes, ("kl", "kl_coef", "reward"), strict=True):
        curve = running_mean([row[key] for row in toy_rows], 5)
        axis.plot(range(1, 181), curve, color=color, label=f"beta from {start}")
axes[0].axhline(3, color="black", linestyle="--", label="target")
axes[0].set(xlabel="step", ylabel="KL (nats per response)")
axes[1].set(xlabel="step", ylabel="beta", yscale="log")
axes[2].set(xlabel="step", ylabel="reward (share of a)")
axes[0].legend(fontsize=8)
figure.suptitle("Two starts, one end (means of five)")
plt.show()

# %% [markdown]
# Both end at the same $\beta$, the one that holds 3 nats. The small start first goes far beyond the
# target: the policy learns faster than $\beta$ rises, and comes back when the price is high enough.
#
# ## 11. What PPO costs beside GRPO
#
# 64 responses per batch for both, two epochs of two minibatches. In turns, and in seconds of the
# processor, so that it does not count what else the machine is doing:

# %%
grpo_config = GRPOConfig(
    steps=2, prompts_per_step=8, group_size=8, updates_per_batch=2, minibatches=2, lr=7e-4,
    micro_batch_size=64, kl_coef=0.02, device="cpu",
)  # fmt: skip
ppo_config = dataclasses.replace(config, steps=2)
timed = {"GRPO": [], "PPO": []}
for _ in range(3):
    for name, engine, one in (
        ("GRPO", grpo_engine, grpo_config),
        ("PPO", ppo_engine, ppo_config),
    ):
        start, begin = copy.deepcopy(base), time.process_time()
        engine.train(one, start, tokenizer, gold, prompts, MetricLog(2))
        timed[name].append((time.process_time() - begin) / 2)

# %%
K, P = 2, size(base)
memory = {  # copies of the weights: the model, and two moments and a gradient where it learns
    "GRPO": {"policy": 4 * P, "reference": P},
    "PPO": {"policy": 4 * P, "reference": P, "critic": 4 * size(critic)},
}
passes = {"GRPO": 1 + 3 * K, "PPO": 2 + 6 * K}  # whole-row passes; a backward counts as two
table = []
for name, seconds in timed.items():
    table.append([name, sum(memory[name].values()), passes[name], min(seconds)])
columns = ["", "numbers in memory", "passes per batch", "seconds per batch, with sampling"]
print(format_table(columns, table))
assert passes["PPO"] == 2 * passes["GRPO"]
assert 1.7 < table[1][1] / table[0][1] < 1.9  # nine copies against five

# %% [markdown]
# Scoring is one pass of the reference, and for PPO one of the critic; each of the K epochs is a
# forward and a backward pass (which costs two forward passes) of the policy, and for PPO of the
# critic. So PPO does twice the work outside of sampling and holds nearly twice the numbers. (The
# critic has no vocabulary to score, so its passes are cheaper than the policy's.) What it buys is an
# advantage for every token, and no need to answer each prompt several times.
#
# **What this page left out.** A learned reward, with which PPO over-optimises as everyone does
# ([06_reward_model](06_reward_model.ipynb), section 8). And `--pretraining-coef`, InstructGPT's
# PPO-ptx: its gradient is the language model's, added to the policy's at each update.
#
# ## Exercise
#
# 1. In section 2, what are the advantages with $\gamma = \lambda = 1$ and a critic of zeros? Which
#    other algorithm's advantage is that, before its normalisation?
# 2. The critic has weights and an Adam of its own. How far does training change if `value_coef` is
#    ten times as large, and the gradient of the critic is below `max_norm` in both cases?
# 3. `gamma = 0.99` is usual for games. Over a response of 100 tokens, what does the first token see
#    of the reward, with $\lambda = 1$? Is a short response then better than a long one with the
#    same score?
# 4. With K = 1 and one minibatch, which of `clip_low`, `value_clip` and `target_kl` can be changed
#    without changing the run?
#
# <details>
# <summary>Answer</summary>
#
# 1. The sums from each token to the end: 1.03, 1.05 and 1.0. It is the reward to go, REINFORCE++'s
#    advantage ([arXiv:2501.03262](https://arxiv.org/abs/2501.03262), Eq. 4).
#
# ```python
# r = torch.tensor([[-0.02, 0.05, 1.0]])
# ones = torch.ones(1, 3, dtype=torch.bool)
# print(gae(r, torch.zeros(1, 3), ones, 1.0, 1.0)[0])
# ```
#
# 2. Not at all, but for rounding and the tiny constant in Adam's denominator: Adam divides the
#    gradient by its own size. `value_coef` matters for a critic that shares weights with the policy.
# 3. It sees $0.99^{99} = 0.37$ of it. Yes: ending early is worth 1 % per token, an answer to a
#    question that nobody asked. InstructGPT does not discount.
# 4. All three. The ratio is 1 and the value is the old one at the only update, and `target_kl` is
#    looked at before it, when the KL is 0.
#
# </details>
