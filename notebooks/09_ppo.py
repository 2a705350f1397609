# %% [markdown]
# # 9. PPO: which token was it?
#
# **The question.** A response of twenty tokens scored 0.9. Which of the twenty earned it?
#
# **After this page you can** compute GAE by hand, say what $\lambda$ trades against what, make a critic's
# target and say why it stays fixed, read the explained variance, and say what a critic costs.
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
# **It takes** about 40 seconds on one CPU core, after start-up.

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

from data.collate import collate_responses
from data.records import PromptRecord
from data.worlds import reviews
from gpt.generate import SamplingParams, generate
from gpt.model import GPT, GPTConfig
from gpt.ranks import score_in_micro_batches
from gpt.tokenizer import build_tokenizer
from harness.metric_log import MetricLog
from harness.seeds import make_generator
from report.tokens import show_tokens
from rl import ppo_engine
from rl.actor_critic import ValueModel
from rl.batches.rollout import prompt_batch, sample_rollout
from rl.equations.advantages import discounted_returns, gae
from rl.equations.losses import value_loss
from rl.equations.token_rewards import token_level_rewards
from rl.loop import Run
from rl.ppo_engine import PPOConfig
from rl.rewards.model import RewardModelReward
from rl.rewards.reward import RuleReward
from rl.run.metrics import explained_variance

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
# What RLHF maximises is a score minus a distance: $R - \beta \log (\pi / \pi_{ref})$
# (arXiv:2203.02155, Eq. 2). The logarithm is a sum over tokens, so each token can be charged its own
# part at once. The score comes with the last token, the EOS:
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
# These numbers are constants: like any reward, they pass no gradient on. (`check("kl_in_reward", ...)`
# is an exercise of [05](05_what_a_kl_is.ipynb), which also compares this KL with one in the loss.)
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
    """V of the state before every token of a response, (L,): the mean score of `count` completions."""
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

# %% tags=["hide-input"]
figure, axes = plots.panels(2, height=3.6)
for axis, (name, (tokens, values, score)) in zip(axes, examples.items(), strict=True):
    states = ["start", *text_of(tokens)]
    line = [*values.tolist(), score]
    plots.curves({"mean of 24 completions": line}, axis=axis, marker=True,
                styles={"mean of 24 completions": "exact"})  # fmt: skip
    axis.set_title(f"The {name} answer scores {score:.2f}")
    axis.axhline(line[0], **plots.line("reference"), label="the prompt's value")
    axis.set_xticks(range(len(states)), states, rotation=70, fontsize=9)
    axis.set(xlabel="after this token", ylabel="expected score")
    axis.get_legend().remove()
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
figure.suptitle(record.prompt.strip())
plt.show()

# %% [markdown]
# The line moves where the response is decided. Not every step means something: the line also moves by
# some tenths at a full stop, because each point is the mean of only 24 completions. The step of the line
# at one token is that token's **temporal difference** (TD error):
#
# $$\delta_t = r_t + V(s_{t+1}) - V(s_t)$$
#
# It is what this one word was worth. Here are the same two responses. The button `TD error` shows
# what each word has changed. (The captions read "critic", but the values are means over 24 sampled
# completions.)

# %%
texts, deltas, levels = [], [], []
for name, (tokens, values, score) in examples.items():
    texts.append(text_of(tokens))
    levels.append(values.tolist())
    deltas.append([*values[1:].tolist(), score])
    deltas[-1] = [after - before for before, after in zip(levels[-1], deltas[-1], strict=True)]
    assert math.isclose(sum(deltas[-1]), score - levels[-1][0], abs_tol=1e-4)
    largest = max(range(len(tokens)), key=lambda t: abs(deltas[-1][t]))
    print(f"{name}: the largest step is {deltas[-1][largest]:+.2f}, at {texts[-1][largest]!r}")
holds(min(deltas[1]) < -0.5, "one word of the worst response costs more than half a point")
show_tokens(texts, {"td_error": deltas, "value": levels}, prompts=[record.prompt] * 2)

# %% [markdown]
# The TD errors of a response add up to its score minus what was expected of the prompt (the
# `assert`). GRPO gives that difference to every token as one number. A critic shares it out among
# the tokens.
#
# > **Predict.** Suppose the critic read the prompt alone and gave one value $V(x)$ for all of the
# > response, the dashed line. What would the TD errors be? (Zero at every token but the last.)
#
# The value stands *before* its token: it is the baseline for the choice of that token and must not know
# it. So it is read at the column before the token, the same whose logits score the token.
#
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
# ended. A response that was cut off gets 0 there as well: the length limit counts as the end. If the limit
# is no part of the task, a program puts the critic's $V$ of the cut in place of that 0.


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
# add a random number to $S$, which begins at 0, with the reward $S$ at the end. Then $V = S$, and the
# true advantage of a step is exactly the number that it adds. The squared error of GAE is **bias**
# squared, which stays however many samples there are, and **variance**, which is divided by their
# number, here 64.
#
# > **Predict, then run.** Four critics: one says 0, one says half of the truth, one is right up to
# > ripples, and one is right but 10 too high everywhere. Which $\lambda$ is best for each? And with
# > 8 samples in place of 64?

# %%
generator = make_generator(0, "walks")
step = torch.randn(200, 1, 1, generator=generator)  # the first of nine: its true advantage
rest = torch.randn(200, 200, 8, generator=generator)  # 200 futures of each
S = torch.cat([torch.zeros(200, 200, 1), step.expand(-1, 200, 1), rest], 2).cumsum(2)
states, valid = S[..., :9].flatten(0, 1), torch.ones(40_000, 9, dtype=torch.bool)
at_the_end = torch.zeros(40_000, 9)
at_the_end[:, -1] = S[..., 9].flatten()
critics = {"says 0": 0 * states, "half the truth": states / 2}
critics["nearly right"] = states + 0.4 * torch.sin(4 * states)
critics["10 too high"] = states + 10

lambdas, error, with_8 = [0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0], {}, {}
for name, said in critics.items():
    error[name], with_8[name] = [], []
    for lam in lambdas:
        A = gae(at_the_end, said, valid, 1.0, lam)[0][:, 0].view(200, 200)  # of the first step
        variance = float(A.var(1).mean())
        off = float((A.mean(1) - step[:, 0, 0]).square().mean()) - variance / 200
        error[name].append(max(off, 0.0) + variance / 64)
        with_8[name].append(max(off, 0.0) + variance / 8)
best, best_of_8 = (
    {name: lambdas[values.index(min(values))] for name, values in errors.items()}
    for errors in (error, with_8)
)
print("least error at lambda, 64 samples:", best)
print("                        8 samples:", best_of_8)
rising = best["nearly right"] < best["half the truth"] <= best["says 0"]
holds(rising, "of the first three critics the better one has the smaller best lambda")
holds(best["10 too high"] == 0, "the critic that is 10 too high forecasts every change: lambda 0")
holds(best_of_8["half the truth"] < best["half the truth"], "fewer samples, a smaller lambda")

# %% tags=["hide-input"]
axis = plots.panels(1, height=2.8, width=8)[1]
plots.curves(
    error, lambdas, axis=axis, marker=True, xlabel="lambda", ylabel="squared error", yscale="log"
)
axis.get_legend().set_title("the critic")
axis.set_title("What a critic says of changes decides its best lambda")
plt.show()

# %% [markdown]
# With a critic that knows nothing, a small $\lambda$ is blind, because the reward is eight steps
# away and counts $\lambda^8$ there. Two things decide the best $\lambda$. The first is how well a critic
# forecasts *changes*: one that is 10 too high everywhere has by far the largest error, but the
# difference of two of its values is exact, so $\lambda = 0$ is best for it. The second is how many samples
# there are: with 8, variance counts for more, and the critic that says half of the truth is best
# used with $\lambda = 0$, too. With the usual 0.95 a reward, or an error of the critic, counts for about
# $1 / (1 - \lambda) = 20$ tokens before it.
#
# ## 6. The critic's target: A + V, and fixed
#
# The critic learns by squared error from the **returns**
#
# $$G_t = A_t + V_{old}(s_t)$$
#
# $V_{old}$ is what the critic said when the responses were sampled. With $\lambda = 1$ it cancels, and
# the target is the reward that really came. A smaller $\lambda$ uses forecasts instead of rewards far
# ahead.

# %%
advantages, returns = gae(torch.tensor([r]), torch.tensor([V]), five, 1.0, 1.0)
torch.testing.assert_close(returns, advantages + torch.tensor([V]))
torch.testing.assert_close(returns, discounted_returns(torch.tensor([r]), five, 1.0))
print("lambda 1:", [round(x, 3) for x in returns[0].tolist()])

# %% [markdown]
# A batch is used for several epochs, and its targets are computed once, before the first. Why? Take one
# state with a reward of 1, and a critic that says 0.2. So $A = 0.8$. Each update moves the value half of
# the way to its target:
#
# | after update | target $A + V_{old}$ | value | target $A + V$ of now | value | target $A$ alone | value |
# | --- | --- | --- | --- | --- | --- | --- |
# | 1 | 1 | 0.6 | 1.0 | 0.6 | 0.8 | 0.5 |
# | 2 | 1 | 0.8 | 1.4 | 1.0 | 0.8 | 0.65 |
# | 3 | 1 | 0.9 | 1.8 | 1.4 | 0.8 | 0.725 |
#
# The first update is the same in the first two columns. After it, a target with the *new* value runs
# ahead of the critic, always 0.8 away: the critic passes the truth and goes on. The advantage alone is
# what the critic got *wrong*: a critic that is right would be taught to say 0.
#
# > **Predict, then run.** The next batch measures $A$ anew. After many batches, where does each of the
# > three critics end?


# %%
targets = {
    "A + V of the old critic": lambda A, V_old, V: A + V_old,
    "A + V of the critic in training": lambda A, V_old, V: A + V,
    "A alone": lambda A, V_old, V: A,
}
COLOUR = dict(zip(targets, ("critic", "bad", "proxy"), strict=True))


def one_state(target, V: float = 0.2, batches: int = 6, updates: int = 4) -> list[float]:
    """The value after every update, each half of the way to its target; the reward is 1."""
    path = [V]
    for _ in range(batches):
        V_old, A = V, 1 - V
        for _ in range(updates):
            V = V + 0.5 * (target(A, V_old, V) - V)
            path.append(V)
    return path


paths = {name: one_state(target) for name, target in targets.items()}
for name, path in paths.items():
    print(f"{name:32}", [round(V, 3) for V in path[:4]], "...", round(path[-1], 3))
many = one_state(targets["A alone"], batches=60)
holds(abs(many[-1] - 0.5) < 0.01, "the advantage alone teaches half of the truth")

# %% tags=["hide-input"]
axis = plots.panels(1, height=2.8, width=9)[1]
plots.curves(paths, axis=axis, marker=True, styles=COLOUR, xlabel="update", ylabel="value")
axis.axhline(1, **plots.line("exact"), label="the truth")
for start in range(0, 24, 4):
    axis.axvline(start, color="lightgray", lw=1, zorder=0)
axis.set_xticks(range(0, 25, 4))
axis.set_title("One target leads to the truth, one swings around it, one around a half")
axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), title="target (grey lines: new batch)")
plt.show()

# %% [markdown]
# The first critic converges to the truth. The second runs past it, because within a batch nothing tells it
# to stop. How far depends on the number of updates $k$: an update adds half of $A$, which stays as it is,
# so a batch multiplies the error by $1 - k / 2$. With $k = 4$ that is $-1$, and it swings forever. (With
# $k = 2$ it would be right at once, by luck, and with $k = 5$ it would explode.) The third swings around
# one half, because $V = A$ and $A = 1 - V$ meet there.
#
# Now a real critic, of a small world that the next section uses too: a policy of eight letters answers
# with up to eight of them and earns a half for each `a`. The policy stays as it is. Only the critic
# learns, from 12 batches with eight updates each.

# %%
letters = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})
shape = GPTConfig(letters.n_vocab, context=12, n_layer=1, n_head=2, n_embd=32)
toy = GPT(shape).initialize(make_generator(0, "toy")).eval()
ask = [PromptRecord(letter) for letter in "abcdefgh"]


def count_a(record: PromptRecord, text: str, ended: bool) -> float:
    return text.count("a") / 2


def toy_batch(seed: int, repeats: int) -> tuple:
    """Sequences, rewards of tokens (N, T), mask (N, T) of responses to every prompt."""
    eight = SamplingParams(temperature=1.0, max_new_tokens=8)
    rollout = sample_rollout(toy, letters, ask * repeats, eight, 1, make_generator(seed, "toy"))
    earned, mask = RuleReward(count_a, "toy")(rollout), rollout.response_mask
    nothing = torch.zeros(mask.shape)
    return rollout.sequences, token_level_rewards(earned, nothing, nothing, mask, 0.0), mask


batches, (unseen, unseen_r, unseen_mask) = (
    [toy_batch(100 + i, 16) for i in range(12)],
    toy_batch(99, 64),
)
truth = discounted_returns(unseen_r, unseen_mask, 1.0)  # what really came


# %%
def train_critic(target) -> list[tuple[float, float]]:
    """After each batch, on unseen responses: the explained variance and the mean value."""
    critic, found = ValueModel.from_policy(toy), []
    optimizer = torch.optim.Adam(critic.parameters(), lr=3e-3, betas=(0.9, 0.95))
    for sequences, token_rewards, mask in batches:
        V_old = critic.rollout_values(sequences, 128)
        A, _ = gae(token_rewards, V_old, mask, 1.0, 0.95)
        for _ in range(8):
            V = critic(sequences)
            loss = ((V - target(A, V_old, V.detach())) ** 2 / 2)[mask].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        values = critic.rollout_values(unseen, 512)
        measured = explained_variance(values, truth, unseen_mask)["explained_variance"]
        found.append((measured, float(values[unseen_mask].mean())))
    return found


learned_by = {name: torch.tensor(train_critic(target)) for name, target in targets.items()}

# %% tags=["hide-input"]
figure, axes = plots.panels(2, height=2.8, width=10)
for axis, column, label in zip(axes, (0, 1), ("explained variance", "mean value"), strict=True):
    lines = {name: found[:, column] for name, found in learned_by.items()}
    plots.curves(lines, axis=axis, marker=True, styles=COLOUR, xlabel="batch", ylabel=label)
    axis.get_legend().remove()
    axis.set_xticks(range(0, 12, 2), range(1, 13, 2))
axes[1].axhline(float(truth[unseen_mask].mean()), **plots.line("exact"), label="mean return")
axes[0].set_title("The first target teaches to forecast")
axes[1].set_title("Its mean value settles at the return")
figure.legend(*axes[1].get_legend_handles_labels(), loc="outside upper center", ncols=2)
plt.show()

# %%
right, moving, alone = (found[-6:] for found in learned_by.values())
level = float(truth[unseen_mask].mean())
for name, found in learned_by.items():
    print(f"{name:32} explained {found[-6:, 0].mean():.2f}, mean value {found[-6:, 1].mean():.2f}")
print(f"mean return {level:.2f}")
best_wrong = max(moving[:, 0].mean(), alone[:, 0].mean())
holds(right[:, 0].mean() > best_wrong + 0.1, "the fixed A + V explains most")
swing = [float(found[:, 1].max() - found[:, 1].min()) for found in (right, moving)]
holds(swing[1] > 2 * swing[0], "with the moving target the values swing")
holds(alone[:, 1].mean() < 0.75 * level, "without V the values stay far below the returns")

# %% [markdown]
# The **explained variance** grades a critic: $1 - \mathrm{Var}(G - V) / \mathrm{Var}(G)$. A critic that
# knows every return has 1, a constant has 0, and below 0 a constant would have been better. Both bugs
# run without an error. This number shows them.
#
# The target needs the advantage as GAE gives it: whitened (next section), it
# is no longer in the units of the reward.
#
# **Your turn.** Which argument carries the gradient, and which are constants?


# %%
def my_critic_loss(values, old_values, advantages, mask):
    """(N, T) four times; values: of the critic in training -> half the mean squared error."""
    ...


check("critic_loss", my_critic_loss)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_critic_loss(values, old_values, advantages, mask):
#     returns = advantages + old_values
#     return ((values - returns)[mask] ** 2).mean() / 2
# ```
#
# </details>
#
# ## 7. The two losses
#
# The critic's loss has a clip too ($\varepsilon_v$, so that one batch does not move it far):
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
# **whitening**. It runs over all tokens of the batch. ([10](10_rloo_and_reinforce_plus_plus.ipynb)
# shows what happens when it runs over each response.) Then everything is averaged over all tokens of the
# minibatch. This is how a step of [nano/ppo.py](../nano/ppo.py) differs from that of
# [nano/grpo.py](../nano/grpo.py) (every line begins at the margin):

# %%
plots.neighbours("grpo", "ppo")

# %% [markdown]
# PPO trains two models instead of one. Outside of sampling it does about twice the work of GRPO, and it
# holds nearly twice the numbers: weights, gradients and Adam's two moments of both models.
#
# **Or one trunk with two heads?** Many programs save the second model. One GPT reads the row, one head says
# the next word and another one the value, and both are trained by one loss
#
# $$L = L_{CLIP} + c_v \, L_{VF}$$
#
# with $c_v$ near 0.1 for language models. Then the trunk gets the *sum* of two gradients, and usually one
# norm over everything is held below 1. A layer of 16 numbers as the trunk, and returns that are as large as
# the table says, which the value head does not know yet:
#
# > **Predict, then run.** The policy's part of the loss is the same in all three rows. What is left of its
# > step where the returns are large?

# %%
draw = make_generator(0, "trunk")
states, actions = torch.randn(64, 8, generator=draw), torch.randint(0, 4, (64,), generator=draw)
A, G = torch.randn(64, generator=draw), 1 + torch.randn(64, generator=draw) / 2  # A is whitened
trunk, words, value = (
    (torch.randn(n, m, generator=draw) / n**0.5).requires_grad_()
    for n, m in ((8, 16), (16, 4), (16, 1))
)
hidden = (states @ trunk).tanh()  # both heads read this
log_probs = (hidden @ words).log_softmax(-1).gather(1, actions[:, None])[:, 0]
policy_loss = -(log_probs.exp() / log_probs.detach().exp() * A).mean()  # the ratio is 1


def norm_of(*gradients: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in gradients]).norm()


own = torch.autograd.grad(policy_loss, (trunk, words), retain_graph=True)
rows = []
for size in (1, 10, 100):
    value_loss_now = ((hidden @ value)[:, 0] - size * G).square().mean() / 2
    total = policy_loss + 0.1 * value_loss_now  # L = L_CLIP + c_v L_VF
    joint = torch.autograd.grad(total, (trunk, words, value), retain_graph=True)
    left = min(1.0, 1 / float(norm_of(*joint)))  # what clipping the joint norm at 1 leaves
    along = torch.cosine_similarity(joint[0].flatten(), own[0].flatten(), 0)
    rows.append([str(size), left, float(along), min(1.0, 1 / float(norm_of(*own)))])
columns = [
    "size of the returns",
    "left of the policy's step",
    "cosine on the trunk",
    "left, own critic",
]
plots.table(columns, rows, number=".2f")
holds(
    rows[2][1] < 0.5 < rows[2][3], "large returns take most of the policy's step under a joint clip"
)
holds(rows[2][2] < 0.5, "the trunk then moves where the value wants it, and not the policy")

# %% [markdown]
# Under a joint clip a critic that is far off takes most of the policy's step, because the norm is nearly
# all its own. And the trunk turns: its step points where the *value* loss wants it. Adam hides a part of
# the first effect, since it divides by the gradient's usual size, but nothing of the second. So with a
# shared trunk $c_v$ is a dial that has to be set, and rewards have to be scaled.
#
# Separate models have neither problem, because each has its own optimizer and is clipped by its own norm.
# They cost the second model. This repository pays that, for a reason that fits RLHF: the critic can then
# begin as the *reward model*, which knows already what a good answer is. (InstructGPT did so; the code of
# Ziegler et al., [arXiv:1909.08593](https://arxiv.org/abs/1909.08593), shares the trunk.) Here $c_v = 0.1$
# only decides how often the critic's norm is clipped, since Adam does not notice a constant factor.

# %%
plots.code(Run.optimizer_step, lines=("norm, *of_critic", "return norm"))

# %% [markdown]
# ## 8. Options
#
# Programs that are called PPO differ in many details (Huang et al. 2024,
# [arXiv:2403.17031](https://arxiv.org/abs/2403.17031)). Two of them, on the world of letters:
#
# - `--missing-eos-penalty 5` takes 5 off the score of a response that was cut off. (Each letter may earn
#   something here, so the policy learns never to stop.)
# - Rewards 100 times as large, and the weight of the KL as well, so that nothing but the scale changes.
#   A critic that starts at 0 has far to go then. Does `--whiten-rewards` help?


# %%
COMMON = PPOConfig(
    steps=24, prompts_per_step=16, minibatches=1, updates_per_batch=2, micro_batch_size=16, lr=5e-3,
    critic_lr=1e-2, max_new_tokens=8, kl_coef=0.1, stop_kl=None, warmup_steps=1, device="cpu",
)  # fmt: skip


def run_toy(scale: float = 1.0, **options) -> list[dict]:
    """Train a copy of the toy; its metrics, one row per batch."""
    config = dataclasses.replace(COMMON, **options)
    reward = RuleReward(lambda *answer: scale * count_a(*answer), "toy")
    run = Run(config, copy.deepcopy(toy), letters, reward, ask, MetricLog(config.steps))
    return ppo_engine.train(run)


def mean_of(key: str, rows: list[dict]) -> float:
    return sum(row.get(key, 0.0) for row in rows) / len(rows)


# %%
tried = {
    "default": run_toy(),
    "missing_eos_penalty": run_toy(missing_eos_penalty=5.0),
    "all x 100": run_toy(100, kl_coef=10.0),
    "x 100, whitened": run_toy(100, kl_coef=10.0, whiten_rewards=True),
}
ended = {name: mean_of("eos_rate", rows[-8:]) for name, rows in tried.items()}
known = {name: mean_of("explained_variance", rows[-8:]) for name, rows in tried.items()}
earned = {name: mean_of("reward", rows[-8:]) for name, rows in tried.items()}
plots.table(
    ["run", "ended", "explained variance", "reward"],
    [[name, ended[name], known[name], earned[name]] for name in tried],
    number=".2f",
)
holds(ended["missing_eos_penalty"] > ended["default"] + 0.3, "the penalty makes responses end")
large = max(abs(known[name]) for name in ("all x 100", "x 100, whitened"))
holds(known["default"] > 0.1 > large, "with all 100 times as large the critic explains nothing")
holds(earned["all x 100"] > 90 * earned["default"], "the policy learns all the same")
holds(
    earned["x 100, whitened"] < 0.75 * earned["all x 100"], "with whitened rewards it learns less"
)

# %% [markdown]
# With everything 100 times as large the critic explains nothing. It does no harm here: advantages are
# whitened in any case, and the policy earns 390 of 400, where it earned 3.94 of 4. (With a penalty for
# missing ends the critic explains nothing either. Why was not looked into.) Whitening the *rewards* does
# harm: with three seeds the policy earns 217, 223 and 102, and without it 390, 362 and 386. A likely reason
# is that this whitening, as in other implementations, rescales the rewards of tokens but keeps their mean,
# which is still large. So scale the reward itself.
#
# - `--target-kl` leaves the epochs of a batch once the policy has moved by 1.5 times that many nats per
#   token. The clip slows the policy down, but does not stop it.
# - `--kl-target` holds the KL at a number of nats per response by moving $\beta$ after each batch of $n$
#   responses: $\beta \leftarrow \beta \, (1 + \frac{n}{10000} \, \mathrm{clip}(\mathrm{KL} /
#   \mathrm{target} - 1, \pm 0.2))$. At twice the target, 128 responses raise it by 0.26%. The rule is that
#   of [arXiv:1909.08593](https://arxiv.org/abs/1909.08593), section 2.2, whose gain is 0.1 per update; $n /
#   10000$ in its place is what the paper's code and later ones use.
# - `--entropy-coef` $c$ adds $c \, \mathrm{mean}_t H_t$ to what is maximised, with $H_t = -\sum_v \pi(v)
#   \log \pi(v)$ over the whole vocabulary. It pulls towards *all* tokens, the senseless ones too. For
#   example, the best policy for a reward of 1 on a single right token is $\pi \propto e^{r / c}$. With $c =
#   0.1$ the right one gets 0.9998 among six letters, but 0.30 among GPT-2's 50,257 tokens. A KL penalty
#   pulls towards the reference instead, where the senseless ones are rare. So $c$ is small or 0 for
#   language models.
# - `--pretraining-coef` adds the language model's loss on ordinary text (PPO-ptx).
#
# ## 9. The loop, and a run
#
# The loop is [rl/ppo_engine.py](../rl/ppo_engine.py). Its box has a line for each step of this page.
# Twelve batches of 64 prompts, one response each. The score is the reward model's; the gold reward is
# measured beside it, as in [07](07_grpo.ipynb).

# %%
config = PPOConfig(
    steps=12, prompts_per_step=64, updates_per_batch=2, minibatches=2, lr=7e-4, critic_lr=1e-3,
    warmup_steps=1,
    micro_batch_size=64, kl_coef=0.05, stop_kl=None, device="cpu",
)  # fmt: skip
policy, trained_critic = copy.deepcopy(base), copy.deepcopy(critic)
source, log = WithGold(learned, gold), MetricLog(config.steps)
run = Run(config, policy, tokenizer, source, prompts, log)
rows = ppo_engine.train(run, value_model=trained_critic)
holds(
    max(row["ratio_error_at_start"] for row in rows) < 1e-4 and abs(rows[0].get("kl", 0.0)) < 1e-4,
    "before a batch's first update the ratios are 1, and the KL begins at 0",
)

# %%
keys = ["reward", "gold", "kl", "value_loss", "explained_variance", "entropy"]
curves({"PPO": rows}, keys, smooth=1, title="Gold rises, and the critic learns")
holds(mean_of("gold", rows[-4:]) > mean_of("gold", rows[:2]) + 0.15, "the gold reward rises")
known = [mean_of("explained_variance", part) for part in (rows[:1], rows[-4:])]
holds(known[0] < 0 and known[1] > 0.4, "the explained variance rises from below 0 to above 0.4")

# %% [markdown]
# The critic starts below 0, because the reward model has learned to judge at the EOS, and what it says
# before is not yet a forecast. It cannot reach 1, because part of a return is decided by words that are
# not chosen yet. (The log compares with the targets, which contain $V_{old}$. The next section compares
# with what really came.)
#
# ## 10. A critic that has learned
#
# Responses to prompts that no batch has seen: what did the critic say before PPO, what does it say now,
# and which score came? For two of them also the mean score of 24 completions of every prefix, as in
# section 3.

# %%
validation = reviews.prompts("validation")[:64]
fresh = sample_rollout(policy, tokenizer, validation, params, 1, make_generator(6, "fresh"))
earned, mask = learned(fresh), fresh.response_mask
came = torch.where(mask, earned[:, None], 0.0)  # the reward to come, at every token
said = {
    "critic before": critic.rollout_values(fresh.sequences, 64),
    "critic after": trained_critic.rollout_values(fresh.sequences, 64),
}
grades = {n: explained_variance(v, came, mask)["explained_variance"] for n, v in said.items()}
print({name: round(grade, 2) for name, grade in grades.items()})
holds(grades["critic before"] < 0 and grades["critic after"] > 0.25, "the critic has learned")
order = earned.masked_fill((fresh.lengths < 8) | (fresh.lengths > 24), torch.nan).argsort()
shown = [int(order[2]), int(order[20])]  # a low score and a middling one
rows_of = {i: fresh.response_tokens[i][mask[i]].tolist() for i in shown}
true_lines = {i: true_values(policy, fresh.records[i], tokens) for i, tokens in rows_of.items()}

# %% tags=["hide-input"]
figure, axes = plt.subplots(2, 2, figsize=(11, 6.8))
STYLES = {"critic before": "reference", "critic after": "critic", "24 completions": "exact"}
for row, (i, tokens) in zip(axes, rows_of.items(), strict=True):
    for axis, (name, values) in zip(row, said.items(), strict=True):
        lines = {name: values[i, : len(tokens)], "24 completions": true_lines[i]}
        plots.curves(lines, axis=axis, marker=True, styles=STYLES)
        axis.axhline(float(earned[i]), **plots.line("proxy"), label="score of this response")
        axis.set_xticks(range(len(tokens)), text_of(tokens), rotation=60, fontsize=9)
        axis.get_legend().remove()
    row[0].set_ylabel("V before the token")
axes[0, 0].set_title("Before PPO the critic judges word by word")
axes[0, 1].set_title("After PPO it forecasts, roughly")
lines = {line.get_label(): line for axis in axes[0] for line in axis.get_lines()}
figure.legend(handles=lines.values(), loc="outside lower center", ncols=4)
plt.show()

# %% [markdown]
# The grey line, the reward model, judges each word as if the response ended there. The pink one is a
# forecast. It follows one response only roughly: it misses some steps
# of the black line, and moves where that is flat. There a token gets credit for the critic's error. That
# is why $\lambda$ is not 0.
#
# The command is `python -m rl.ppo_engine`, after `python -m reward_model.reward_model_training`, which
# makes the base model and the reward model. Targets and loss are in
# [rl/actor_critic.py](../rl/actor_critic.py).
#
# ## Exercises
#
# Exercises 1 and 2 are above: `gae` and `critic_loss`.
#
# **3. Which $\lambda$ was it?** Values, rewards and the advantages that GAE made of them, with $\gamma =
# 1$. (No solution is printed.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("which_lambda", MINE)

# %%
check_answer("which_lambda", ..., MINE)

# %% [markdown]
# **4. On paper.** With one epoch and one minibatch, which of `clip_range`, `value_clip` and `target_kl` can
# be changed without changing the run?
#
# <details>
# <summary>Solutions</summary>
#
# 4\. All three. At the only update the ratio is 1, the value is the old one and the KL is 0. In section 6
# too, the first update is the same with a moving target.
#
# </details>
#
# ## To remember
#
# - A TD error is what one word was worth; GAE adds up the later ones with shrinking weights.
# - The critic's target is $A + V_{old}$, made once for a batch, before the advantages are whitened.
# - A critic costs a second trained model, and helps as far as its forecast is right: look at the
#   explained variance.
#
# Next: [10_rloo_and_reinforce_plus_plus](10_rloo_and_reinforce_plus_plus.ipynb), which leaves the critic
# out again. What can an answer be compared with then?
