# %% [markdown]
# # 8. PPO: which token was it?
#
# **The question.** A response of twenty tokens scored 0.9. Which of the twenty earned it?
#
# **Why.** GRPO gives every token of a response the same advantage. That is fair on average and
# noisy in each case. PPO asks at every token whether things have just become better or worse than
# expected. For that it needs a prediction, made by a **critic**: a second network that predicts how
# much reward is still to come. In return one response per prompt is enough, and every token has its
# own advantage. Sharing out a reward among the tokens is called **credit assignment**.
#
# This is the algorithm of InstructGPT (Ouyang et al. 2022,
# [arXiv:2203.02155](https://arxiv.org/abs/2203.02155)). The clip is from Schulman et al. 2017
# ([arXiv:1707.06347](https://arxiv.org/abs/1707.06347)), the advantages are from Schulman et al.
# 2016 ([arXiv:1506.02438](https://arxiv.org/abs/1506.02438)).
#
# **You need** [05](05_what_a_kl_is.ipynb) (KL in the reward), [06](06_reward_model.ipynb) (the
# reward model) and [07](07_grpo.ipynb) (the clipped loss).
#
# **It takes** about 20 seconds on one CPU core, after start-up.

# %%
import copy
import dataclasses
import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor

try:
    from course import plots, saved_models
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.claims import holds
from course.exercises import check
from course.runs import WithGold, curves

from data import reviews
from data.collate import collate_responses
from gpt.generate import SamplingParams, generate
from gpt.log_probs import score_in_micro_batches
from harness.metric_log import MetricLog
from harness.report.tokens import show_tokens
from harness.seeds import make_generator
from rl import ppo_engine
from rl.batches.rollout import prompt_batch, sample_rollout
from rl.equations.advantages import gae
from rl.equations.losses import value_loss
from rl.equations.token_rewards import token_level_rewards
from rl.loop import Run
from rl.ppo_engine import PPOConfig
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.training.evaluation import evaluate
from rl.training.value_model import ValueModel

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
plots.use()

# %% [markdown]
# ## 1. Four models

# %%
plots.diagram("four_models")

# %% [markdown]
# The policy learns. The reference is its frozen copy from before. The reward model scores whole
# responses. The critic is new. It is a GPT like the policy, with one number as its output instead
# of a vocabulary. It starts from the reward model, as in InstructGPT, and shares no weight with the
# policy. (Without a reward model it starts from the policy with a head of zeros.)

# %%
base, tokenizer = saved_models.base()
judge, _ = saved_models.reward_model()
learned, gold = RewardModelReward(judge), RuleReward(reviews.gold_reward, "gold reward")
prompts = reviews.prompts("train")
params = SamplingParams(temperature=1.0, max_new_tokens=48)

critic = ValueModel.from_reward_model(judge)
for name, model in (("policy", base), ("reward model", judge), ("critic", critic)):
    print(f"{name:12} {sum(p.numel() for p in model.parameters()):,} weights")
plots.code(ValueModel.forward, docstring=False)

# %% [markdown]
# ## 2. A reward for every token
#
# What RLHF maximises is a score minus a distance (arXiv:2203.02155, Eq. 2; the distance is the KL
# from the reference, [05](05_what_a_kl_is.ipynb)):
#
# $$R(x, y) - \beta \log \frac{\pi(y \mid x)}{\pi_{ref}(y \mid x)}$$
#
# The logarithm is a sum over tokens, so each token can be charged its own part at once. The score
# comes with the last token, the EOS:
#
# $$r_t = -\beta \left( \log \pi(y_t) - \log \pi_{ref}(y_t) \right) \quad
# (+ \, R \text{ at the last token})$$
#
# Three tokens, $R = 1$, $\beta = 0.1$. The first is likelier under the policy by 0.2 nats and costs
# 0.02. The second is less likely by 0.5 and earns 0.05. The third gets the score:

# %%
log_probs = torch.tensor([[-1.0, -2.0, -0.5]])  # of the policy, when it sampled them
ref_log_probs = torch.tensor([[-1.2, -1.5, -0.5]])
R, mask, beta = torch.tensor([1.0]), torch.ones(1, 3, dtype=torch.bool), 0.1

r = torch.where(mask, -beta * (log_probs - ref_log_probs), 0.0)
r[torch.arange(1), mask.sum(1) - 1] += R  # the last token of each row
print([round(x, 2) for x in r[0].tolist()])

torch.testing.assert_close(r, token_level_rewards(R, log_probs, ref_log_probs, mask, beta))
torch.testing.assert_close(r.sum(1), R - beta * (log_probs - ref_log_probs).sum(1))  # the equation

# %% [markdown]
# These numbers are constants: like any reward, they pass no gradient on.
#
# **Your turn.**


# %%
def my_token_rewards(scores, log_probs, ref_log_probs, response_mask, kl_coef):
    """Scores (N,), the rest (N, T) -> rewards of tokens (N, T)."""
    ...


check("kl_in_reward", my_token_rewards)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_token_rewards(scores, log_probs, ref_log_probs, response_mask, kl_coef):
#     rewards = torch.where(response_mask, -kl_coef * (log_probs - ref_log_probs), 0.0)
#     rewards[torch.arange(len(scores)), response_mask.sum(1) - 1] += scores
#     return rewards
# ```
#
# </details>
#
# ## 3. A value for every token
#
# $V(s_t)$, the **value** of a state, is the reward to be expected from token $t$ on, in the state
# $s_t$ = (prompt, tokens so far), *before* token $t$ is chosen. What would a perfect critic say? We
# can find out: stop at every prefix of a response, let the policy finish it 24 times, and take the
# mean score.


# %%
@torch.no_grad()
def true_values(policy, record, tokens: list[int], count: int = 24) -> Tensor:
    """V of the state before every token of a response, (L,): the mean score of `count` ends."""
    prompt = tokenizer.encode(record.prompt)
    states = [prompt + tokens[:t] for t in range(len(tokens))]
    ends = generate(
        policy, states, params, make_generator(5, "ends"), eos_id=tokenizer.eos_id,
        samples_per_prompt=count,
    )  # fmt: skip
    whole = [
        tokens[: i // count] + end + [tokenizer.eos_id] * int(ended)
        for i, (end, ended) in enumerate(zip(ends.token_lists(), ends.has_eos))
    ]
    batch = collate_responses([prompt] * len(whole), whole, tokenizer.eos_id)
    return score_in_micro_batches(judge, batch, 64).view(len(tokens), count).mean(1)


def text_of(tokens: list[int]) -> list[str]:
    """One string a token, for the coloured view."""
    return ["<EOS>" if t == tokenizer.eos_id else tokenizer.decode([t]) for t in tokens]


record = prompt_batch(prompts, step=0, batch_size=6, seed=1)[0]
tried = sample_rollout(base, tokenizer, [record], params, 16, make_generator(3, "16"))
scores = torch.where(tried.lengths.clamp(max=20) == tried.lengths, learned(tried), torch.nan)
examples = {}
for name, i in (("best", scores.nan_to_num(-9).argmax()), ("worst", scores.nan_to_num(9).argmin())):
    tokens = tried.response_tokens[i][tried.response_mask[i]].tolist()
    examples[name] = (tokens, true_values(base, record, tokens), float(scores[i]))

# %%
figure, axes = plots.panels(2, height=3)
for axis, (name, (tokens, values, score)) in zip(axes, examples.items(), strict=True):
    states = ["start", *text_of(tokens)]
    line = [*values.tolist(), score]
    plots.curves({"V(s), mean of 24 ends": line}, axis=axis, marker=True, title=f"{name}: {score:.2f}",
                styles={"V(s), mean of 24 ends": "exact"})  # fmt: skip
    axis.axhline(line[0], **plots.line("reference"), label="the prompt's value")
    axis.set_xticks(range(len(states)), states, rotation=70, fontsize=9)
    axis.set(xlabel="after this token", ylabel="expected score")
    axis.get_legend().remove()
axes[0].legend(loc="lower right", bbox_to_anchor=(1, 0.1))
figure.suptitle(record.prompt.strip())
plt.show()

# %% [markdown]
# The line moves where the response is decided. In the worst response it falls by 0.9 at *bike*,
# which is the wrong thing, and by 0.4 at *bad*. In the best it rises by 0.3 at *splendid* and by
# 0.4 at *I*, which opens a kind closing. Not every step means something: the line also moves by up
# to 0.3 at a full stop, because each point is the mean of only 24 completions. The step of the line
# at one token is that token's **temporal difference** (TD error):
#
# $$\delta_t = r_t + V(s_{t+1}) - V(s_t)$$
#
# It is what this one word was worth. Here are the same two responses, values first. The captions
# read "critic", but the values are means over 24 sampled completions. The button `TD error` shows
# what each word has changed:

# %%
texts, deltas, levels = [], [], []
for tokens, values, score in examples.values():
    texts.append(text_of(tokens))
    levels.append(values.tolist())
    deltas.append([*values[1:].tolist(), score])
    deltas[-1] = [after - before for before, after in zip(levels[-1], deltas[-1], strict=True)]
    assert math.isclose(sum(deltas[-1]), score - levels[-1][0], abs_tol=1e-4)
show_tokens(texts, {"td_error": deltas, "value": levels}, prompts=[record.prompt] * 2)

# %% [markdown]
# The TD errors of a response add up to its score minus what was expected of the prompt (the
# `assert`). GRPO gives that difference to every token as one number. A critic shares it out among
# the tokens.
#
# **Predict, then look.** Suppose the critic read the prompt alone and gave one value $V(x)$ for all
# of the response, the dashed line. What would the TD errors be? (All zero, but for the last token.
# Every word before it would look neutral.)
#
# The value stands *before* its token. It is the baseline for the choice of that token and must not
# know it. Change token 4, and only values after it may change:

# %%
few = sample_rollout(base, tokenizer, [record], params, 1, make_generator(4, "one"))
changed = few.sequences.tokens.clone()
column = int(few.sequences.prompt_lengths[0]) + 4  # where response token 4 of row 0 stands
changed[0, column] = (changed[0, column] + 1) % tokenizer.eos_id
with torch.no_grad():
    other = dataclasses.replace(few.sequences, tokens=changed)
    change = (critic(other) - critic(few.sequences))[0].abs()
print("change of V_0 ... V_7:", [round(x, 3) for x in change[:8].tolist()])
assert change[:5].max() < 1e-4
holds(change[5] > 1e-3, "a value after token 4 changes")

# %% [markdown]
# ## 4. GAE, by hand on five tokens
#
# A real critic is often wrong, so one TD error alone cannot be trusted. **Generalised advantage
# estimation** (GAE; arXiv:1506.02438, Eq. 16) adds up the TD errors of this token and of all later
# ones. The weight shrinks by the factor $\gamma \lambda$ at each step. $\gamma$ discounts later
# rewards. For language it is 1.
#
# $$A_t = \delta_t + \gamma \lambda \, \delta_{t+1} + (\gamma \lambda)^2 \delta_{t+2} + \ldots
# = \delta_t + \gamma \lambda A_{t+1}$$
#
# The second form is computed from the end. Five tokens, $\gamma = 1$ and $\lambda = 0.5$:
#
# | token | r | V | $\delta = r + V_{next} - V$ | $A = \delta + 0.5 \, A_{next}$ |
# | --- | --- | --- | --- | --- |
# | The | 0 | 0.5 | 0.5 - 0.5 = 0 | 0 + 0.5 x 0.2375 = **0.11875** |
# | lamp | 0 | 0.5 | 0.7 - 0.5 = 0.2 | 0.2 + 0.5 x 0.075 = **0.2375** |
# | is | 0 | 0.7 | 0.6 - 0.7 = -0.1 | -0.1 + 0.5 x 0.35 = **0.075** |
# | great | 0 | 0.6 | 0.9 - 0.6 = 0.3 | 0.3 + 0.5 x 0.1 = **0.35** |
# | EOS | 1 | 0.9 | 1 + 0 - 0.9 = 0.1 | **0.1** |
#
# Read it from the bottom. After the EOS there is no next value: it is 0, because the response has
# ended.


# %%
def naive_gae(r: list[float], V: list[float], gamma: float, lam: float) -> list[float]:
    advantages, A_next, V_next = [], 0.0, 0.0
    for r_t, V_t in reversed(list(zip(r, V, strict=True))):
        delta = r_t + gamma * V_next - V_t
        A_next, V_next = delta + gamma * lam * A_next, V_t
        advantages.insert(0, A_next)
    return advantages


r, V = [0.0, 0, 0, 0, 1], [0.5, 0.5, 0.7, 0.6, 0.9]
naive = naive_gae(r, V, 1.0, 0.5)
print([round(a, 5) for a in naive])

five = torch.ones(1, 5, dtype=torch.bool)
advantages, returns = gae(torch.tensor([r]), torch.tensor([V]), five, 1.0, 0.5)
torch.testing.assert_close(advantages[0], torch.tensor(naive))
expected = torch.tensor([0.11875, 0.2375, 0.075, 0.35, 0.1])
holds(torch.allclose(advantages[0], expected), "the five advantages")

# %% [markdown]
# The library does the same for all rows at once. What it adds is the mask: padding is stepped over.

# %%
plots.code(gae, lines=("advantages, A =", "return"))
by_lambda = {
    f"lambda {lam}": gae(torch.tensor([r]), torch.tensor([V]), five, 1.0, lam)[0]
    for lam in (0.0, 0.5, 1.0)
}
show_tokens(["The", " lamp", " is", " great", "<EOS>"], by_lambda)

# %%
plots.explorable("gae")

# %% [markdown]
# $\lambda = 0$ is the TD error alone. $\lambda = 1$ is the whole reward to come minus the value:
# 0.5, 0.5, 0.3, 0.4, 0.1. Here the critic is no more than a baseline. Such an estimate is called
# **Monte Carlo**.
#
# **Your turn.**


# %%
def my_gae(token_rewards, values, response_mask, gamma, lam):
    """(N, T) each -> advantages (N, T), 0 in the padding."""
    ...


check("gae", my_gae)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_gae(token_rewards, values, response_mask, gamma, lam):
#     advantages = torch.zeros_like(values)
#     A = V = torch.zeros_like(values[:, 0])  # of the next token; 0 after the end
#     for t in reversed(range(values.shape[1])):
#         valid = response_mask[:, t]
#         delta = token_rewards[:, t] + gamma * V - values[:, t]
#         A = torch.where(valid, delta + gamma * lam * A, A)
#         V = torch.where(valid, values[:, t], V)
#         advantages[:, t] = torch.where(valid, A, 0.0)
#     return advantages
# ```
#
# </details>
#
# ## 5. Which lambda?
#
# It depends on the critic. Take a case in which the truth is known: a walk of nine steps that each
# add a random number to $S$, with the reward $S$ at the end. Then $V = S$, and the true advantage
# of a step is exactly the number that it adds. Three critics: one says 0, one says half of the
# truth, one is right up to ripples.
#
# An update compares two actions in one state. The squared error of that comparison has two parts.
# **Bias** stays however many samples there are. **Variance** is divided by their number, here 64.
#
# **Predict, then run.** Which $\lambda$ is best for the critic that says 0? And for the one that is
# nearly right?


# %%
def walks(first: Tensor, step: Tensor, generator: torch.Generator, count: int = 200) -> Tensor:
    """States of `count` futures after this state and this step, (states, count, 10)."""
    future = torch.randn(len(first), count, 8, generator=generator)
    steps = torch.cat([step[:, None, None].expand(-1, count, 1), future], 2)
    start = first[:, None, None].expand(-1, count, 1)
    return torch.cat([start, start + steps.cumsum(2)], 2)


def first_advantage(states: Tensor, critic, lam: float) -> Tensor:
    """GAE of the first step, (states, count)."""
    values = critic(states[..., :-1]).flatten(0, 1)
    r = torch.zeros_like(values)
    r[:, -1] = states[..., -1].flatten()
    return gae(r, values, torch.ones_like(r, dtype=torch.bool), 1.0, lam)[0][:, 0].view(
        states.shape[:2]
    )


generator = make_generator(0, "walks")
first, one, two = torch.randn(3, 200, generator=generator) * torch.tensor([[2.0], [1.0], [1.0]])
futures = [walks(first, step, generator) for step in (one, two)]
critics = {
    "says 0": lambda S: 0 * S,
    "half the truth": lambda S: S / 2,
    "nearly right": lambda S: S + 0.4 * torch.sin(4 * S),
}
lambdas = [0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0]

# %%
bias, variance = {}, {}
for name, function in critics.items():
    bias[name], variance[name] = [], []
    for lam in lambdas:
        better, worse = (first_advantage(states, function, lam) for states in futures)
        gap = better - worse
        variance[name].append(float(gap.var(1).mean()))
        off = (gap.mean(1) - (one - two)).square().mean() - variance[name][-1] / 200
        bias[name].append(max(float(off), 0.0))
error = {n: [b + v / 64 for b, v in zip(bias[n], variance[n], strict=True)] for n in critics}

figure, axes = plots.panels(3, height=3.2, width=11)
titles = ("bias squared", "variance of one sample", "both, with 64 samples")
for axis, lines, title in zip(axes, (bias, variance, error), titles, strict=True):
    plots.curves(lines, lambdas, axis=axis, marker=True, title=title, xlabel="lambda")
axes[0].set(ylabel="squared error of the comparison")
axes[2].set(yscale="log")
for axis in axes[1:]:
    axis.get_legend().remove()
plt.show()
best = {name: lambdas[values.index(min(values))] for name, values in error.items()}
print("least error at lambda:", best)
rising = best["nearly right"] < best["half the truth"] <= best["says 0"]
holds(rising, "the better the critic, the more it pays to believe it")

# %% [markdown]
# With a critic that knows nothing, a small $\lambda$ is blind, because the reward is eight steps
# away and arrives with the weight $\lambda^8$. The better the critic, the more it pays to trust it.
# The usual 0.95 is made for a critic that is still learning. It reaches back about $1 / (1 -
# \lambda) = 20$ tokens.
#
# ## 6. The critic's loss, and the whole loss
#
# The critic learns to predict the **returns** $G_t = A_t + V(s_t)$, by squared error, with a
# separate clip ($\varepsilon_v$, so that one batch does not move it far):
#
# $$L_{VF} = \frac12 \max \left( (V - G)^2, \; (V_{old} + \mathrm{clip}(V - V_{old},
# -\varepsilon_v, \varepsilon_v) - G)^2 \right)$$
#
# A value of 1.0 that was 0.5, with the return 2. The square is 1. The clipped value is 0.7, and its
# square is 1.69. The larger one counts, and half of it is 0.845:

# %%
V, V_old, G = (torch.tensor([[x]]) for x in (1.0, 0.5, 2.0))
near = V_old + (V - V_old).clamp(-0.2, 0.2)
naive = torch.maximum((V - G) ** 2, (near - G) ** 2) / 2
torch.testing.assert_close(naive, value_loss(V, V_old, G, 0.2))
print(f"{naive.item():.3f}")
plots.code(value_loss, lines=("squared =", "return squared"))

# %% [markdown]
# The policy's loss is the clipped surrogate of [07](07_grpo.ipynb). Its advantages are brought to
# mean 0 and standard deviation 1 first, so that one learning rate fits all rewards. This is called
# **whitening**. It runs over all tokens of the batch. ([10](10_rloo_and_reinforce_plus_plus.ipynb) shows
# what happens when it runs over each response.) Then everything is averaged over all tokens of the
# minibatch. This is how a step of [nano/ppo.py](../nano/ppo.py) differs from that of
# [nano/grpo.py](../nano/grpo.py) (every line begins at the margin):

# %%
plots.neighbours("grpo", "ppo")

# %% [markdown]
# ## 7. The loop, and a run
#
# | in the box of `rl/ppo_engine.py` | code |
# | --- | --- |
# | $y \sim$ policy; score $R$ | `run.sample`, `run.rewards` |
# | $V_{old}$ of every token | `run.old_values` |
# | $r_t = -\beta (\ell_{old} - \ell_{ref})_t$, and $R$ at the end | `token_level_rewards` |
# | $A$, returns = GAE; whiten | `gae_targets` |
# | for K epochs, shuffled minibatches | `run.minibatches` |
# | $L_{CLIP} + c_v L_{VF}$ | `ppo_loss` |
# | step policy and critic | `run.step` |
#
# Ten batches of 64 prompts, one response each. The score is the reward model's; the gold reward is
# measured beside it, as in [07](07_grpo.ipynb).


# %%
config = PPOConfig(
    steps=10, prompts_per_step=64, updates_per_batch=2, minibatches=2, lr=7e-4, critic_lr=1e-3, warmup=1,
    micro_batch_size=64, kl_coef=0.05, stop_kl=None, device="cpu",
)  # fmt: skip
policy, trained_critic = copy.deepcopy(base), copy.deepcopy(critic)
source, log = WithGold(learned, gold), MetricLog(config.steps)
run = Run(config, policy, tokenizer, source, prompts, log)
rows = ppo_engine.train(config, run, value_model=trained_critic)
holds(
    max(row["ratio_error_at_start"] for row in rows) < 1e-4 and abs(rows[0].get("kl", 0.0)) < 1e-4,
    "before a batch's first update the ratios are 1, and the KL begins at 0",
)

# %%
keys = ["reward", "gold", "kl", "value_loss", "explained_variance", "entropy"]
curves({"PPO": rows}, keys)


def mean_of(key: str, chosen: list[dict]) -> float:
    return sum(row[key] for row in chosen) / len(chosen)


holds(mean_of("gold", rows[-4:]) > mean_of("gold", rows[:2]) + 0.1, "the gold reward rises")

# %% [markdown]
# The **explained variance** grades the critic: $1 - \mathrm{Var}(G - V) / \mathrm{Var}(G)$. A
# critic that knows every return has 1, a constant has 0, and below 0 a constant would have been
# better. The critic starts there, because the reward model has learned to judge at the EOS and what
# it says before is not yet a forecast. It cannot come near 1 either, because much of a return is
# decided by words that are not chosen yet.
#
# ## 8. What the critic has learned, token by token
#
# One response of the trained policy: what the critic says, the mean score of 24 completions of
# every prefix (as in section 3), and the advantage that each token gets from the critic.

# %%
unseen = reviews.prompts("validation")[:64]
fresh = sample_rollout(policy, tokenizer, unseen[:32], params, 1, make_generator(6, "fresh"))
values, earned = trained_critic.rollout_values(fresh.sequences, 64), learned(fresh)
i = int(earned.argsort()[6])  # the seventh lowest score of the 32
tokens = fresh.response_tokens[i][fresh.response_mask[i]].tolist()
L, truth = len(tokens), true_values(policy, fresh.records[i], tokens)

r = torch.zeros(1, L)
r[0, -1] = earned[i]
whole = torch.ones(1, L, dtype=torch.bool)
views = {
    "advantage": gae(r, values[i : i + 1, :L], whole, 1.0, 0.95)[0],
    "td_error": gae(r, values[i : i + 1, :L], whole, 1.0, 0.0)[0],
    "value": values[i : i + 1, :L],
    "true value": truth[None],
}
show_tokens([text_of(tokens)], views, prompts=[fresh.records[i].prompt])

# %%
lines = {"critic": values[i, :L], "exact": truth}
axis = plots.panels(1, height=3.2, width=9)[1]
plots.curves(lines, axis=axis, marker=True, ylabel="V before the token (std)", xlabel="token")
axis.axhline(float(earned[i]), **plots.line("proxy"), label="score of this response")
axis.set_xticks(range(L), text_of(tokens), rotation=60, fontsize=9)
names = ["critic", "mean of 24 ends", "score of this response"]
axis.legend(names, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
plt.show()

# %% [markdown]
# Where the critic's line and the black one differ, the critic has something to learn: ten batches
# are few. It underestimates the first words and catches up at *nice*, where the black line hardly
# moves. So *nice* gets the largest advantage merely because the critic was wrong.
#
# Prompts that the policy has never seen, before and after, with the same random numbers:

# %%
results = {
    name: evaluate(model, tokenizer, unseen, params, learned, reference=base, gold=gold)
    for name, model in {"base": base, "after PPO": policy}.items()
}
columns = ("reward", "gold", "kl", "response_length")
plots.table(
    ["policy", "score", "gold", "KL", "length"],
    [[name, *(result.summary()[key] for key in columns)] for name, result in results.items()],
)
for i in range(2):
    print(unseen[i].prompt.strip())
    for name, result in results.items():
        print(f"  {name:9} gold {result.gold[i]:.2f}  {result.responses[i]}")
gain = results["after PPO"].gold - results["base"].gold  # prompt by prompt
half = float(1.96 * gain.std() / math.sqrt(len(gain)))
print(f"\ngain in gold {gain.mean():.3f} +- {half:.3f} (95% interval)")
holds(gain.mean() > half, "the gain is more than noise")

# %% [markdown]
# ## 9. The command
#
# ```
# python -m reward_model.reward_model_training     # once: base model and reward model
# python -m rl.ppo_engine                          # PPO against that reward model
# ```
#
# The loop is [rl/ppo_engine.py](../rl/ppo_engine.py). Critic, targets and loss are in
# [rl/training/actor_critic.py](../rl/training/actor_critic.py), because the PPO of
# [15](15_teachers.ipynb) uses them too.
#
# ## Exercises
#
# Exercises 1 and 2 are above: `kl_in_reward` and `gae`.
#
# **3. `value_loss`**, the loss of section 6:


# %%
def my_value_loss(values, old_values, returns, clip_range):
    """(N, T) each -> (N, T)."""
    ...


check("value_loss", my_value_loss)

# %% [markdown]
# **On paper.** 4. In section 4, what are the advantages with $\gamma = \lambda = 1$ and a critic
# that says 0? Which algorithm of an earlier page weighs its tokens like that?
#
# 5\. $\gamma = 0.99$ is usual for games. Over a response of 100 tokens, how much of the reward does
# the first token see, with $\lambda = 1$? Is a short response then better than a long one with
# the same score?
#
# <details>
# <summary>Solutions</summary>
#
# ```python
# def my_value_loss(values, old_values, returns, clip_range):
#     near_old = old_values + (values - old_values).clamp(-clip_range, clip_range)
#     return torch.maximum((values - returns) ** 2, (near_old - returns) ** 2) / 2
# ```
#
# 4\. All of them are 1: the reward still to come. It is REINFORCE with reward to go
# ([04](04_policy_gradients_and_baselines.ipynb)), without a baseline. With the group's mean taken
# off it is GRPO's advantage before the division. [10](10_rloo_and_reinforce_plus_plus.ipynb) builds on it.
#
# 5\. It sees $0.99^{99} = 0.37$ of it. Yes: ending early is worth about 1% per token. Nobody asked
# for that, and InstructGPT does not discount.
#
# </details>
#
# Next: [09_ppo](09_ppo.ipynb): what PPO's many options do, most with a curve.
