# %% [markdown]
# # 11. REINFORCE++: the batch is the baseline
#
# **The question.** With one answer per prompt and no critic, what is a reward compared with?
#
# **Why.** A group per prompt (GRPO, RLOO) has a price: eight answers to one question instead of
# answers to eight questions. REINFORCE++ (Hu et al. 2025,
# [arXiv:2501.03262](https://arxiv.org/abs/2501.03262), version 9) needs only one answer per prompt.
# It takes PPO's token rewards and PPO's clip, and compares every token with the *whole batch*. A
# second form, **REINFORCE++-baseline**, goes back to groups for the mean and keeps the batch for
# the spread.
#
# **You need** [05](05_what_a_kl_is.ipynb) (KL in the reward), [07](07_grpo.ipynb) (the loop) and
# sections 2 and 6 of [08](08_ppo.ipynb) (rewards of tokens, whitening).
#
# **It takes** about 20 seconds on one CPU core, after start-up.

# %%
import copy
import dataclasses
import math
from unittest import mock

import matplotlib.pyplot as plt
import torch
from torch import Tensor

try:
    from course import plots, saved_models
    from course.claims import holds
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.exercises import check
from course.runs import WithGold, curves

from data import reviews
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from harness.metric_log import MetricLog
from harness.report.tokens import show_tokens
from harness.seeds import make_generator
from rl import reinforce_pp_engine
from rl.batches.rollout import prompt_batch, sample_rollout
from rl.equations.advantages import discounted_returns, group_advantages, whiten
from rl.equations.kl import k1, k2
from rl.equations.losses import policy_gradient, row_sums, sequence_mean
from rl.equations.token_rewards import token_level_rewards
from rl.loop import Run
from rl.reinforce_pp_engine import ReinforcePPConfig, reinforce_pp_advantages
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.training.evaluation import evaluate

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
plots.use()

# %% [markdown]
# ## 1. Reward to go
#
# The rewards of the tokens are PPO's ([08](08_ppo.ipynb), section 2): each pays its own part of the
# KL, and the last one gets the score. A token is responsible for what comes *after* it, not for
# what came before, so its **return** is its own reward plus all later ones. Three tokens with
# rewards -0.02, 0.05 and 1.0 have the returns 1.03, 1.05 and 1.0. In general (Eq. 4 of the paper;
# the last form holds for $\gamma = 1$):
#
# $$A_t = \sum_{u \ge t} \gamma^{u - t} r_u = R - \beta \sum_{u \ge t} \mathrm{k1}_u$$

# %%
r = torch.tensor([[-0.02, 0.05, 1.0]])
to_go = r.flip(1).cumsum(1).flip(1)  # summed from the end
print(to_go)

torch.testing.assert_close(to_go, discounted_returns(r, torch.ones(1, 3, dtype=torch.bool), 1.0))
plots.code(discounted_returns)

# %% [markdown]
# **Your turn.** Mind the padding.


# %%
def my_reward_to_go(token_rewards, mask):
    """(N, T) and (N, T) -> returns (N, T), 0 in the padding."""
    ...


check("reward_to_go", my_reward_to_go)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_reward_to_go(token_rewards, mask):
#     valid = torch.where(mask, token_rewards, 0.0)
#     return torch.where(mask, valid.flip(1).cumsum(1).flip(1), 0.0)
# ```
#
# </details>
#
# Now eight responses of the kept policy, which has moved away from its reference, so that there is
# a KL. One of them in colour:

# %%
base, tokenizer = saved_models.base()
moved, _ = saved_models.policy()
learned, gold = (
    RewardModelReward(saved_models.reward_model()[0]),
    RuleReward(reviews.gold_reward, "gold"),
)
prompts, params = reviews.prompts("train"), SamplingParams(temperature=1.0, max_new_tokens=48)
records = prompt_batch(prompts, step=0, batch_size=8, seed=0)
rollout = sample_rollout(moved, tokenizer, records, params, 1, make_generator(1, "demo"))
rewards, mask = learned(rollout), rollout.response_mask  # (N,), (N, T)
with torch.no_grad():
    ref_log_probs = token_log_probs(base, rollout.sequences)  # (N, T)
token_rewards = token_level_rewards(rewards, rollout.log_probs, ref_log_probs, mask, 0.1)  # (N, T)
returns = discounted_returns(token_rewards, mask, gamma=1.0)  # (N, T)

one = int((rollout.lengths - 12).abs().argmin())  # of a length that fits on the page
ids = rollout.response_tokens[one][mask[one]].tolist()
words = ["<EOS>" if t == tokenizer.eos_id else tokenizer.decode([t]) for t in ids]
views = {"reward of the token": token_rewards[one], "reward to go": returns[one]}
print(f"score {rewards[one]:.2f}, beta 0.1")
show_tokens(words, views)

# %% [markdown]
# **Only the KL** makes the tokens of one response differ. Without it ($\beta = 0$) all of them get
# $R$, so "credit per token" is an empty name. With $\gamma \lt 1$ early tokens get *less* of $R$,
# but that says nothing about who earned it.

# %%
kl = row_sums(rollout.log_probs - ref_log_probs, mask)  # (N,)
torch.testing.assert_close(returns[:, 0], rewards - 0.1 * kl, rtol=1e-4, atol=1e-4)
terminal = token_level_rewards(rewards, rollout.log_probs, None, mask, 0.0)  # R at the end
plain = discounted_returns(terminal, mask, 1.0)  # (N, T), beta = 0
assert (plain == torch.where(mask, rewards[:, None], 0.0)).all()

end = torch.zeros(1, 50)
end[0, -1] = 1.0
fifty = torch.ones(1, 50, dtype=torch.bool)
gammas = {f"gamma {g}": discounted_returns(end, fifty, g)[0] for g in (1.0, 0.99, 0.95, 0.9)}
axis = plots.panels(1, height=2.8)[1]
plots.curves(gammas, axis=axis, title="a reward of 1 at the end, no KL", ylim=(0, 1.05))
axis.set(xlabel="token t of a response of 50", ylabel="reward to go")
plt.show()

# %% [markdown]
# ## 2. Normalised over the batch
#
# Without a baseline every response with $R \gt 0$ "was good". Here the mean of the batch is the
# baseline, and its standard deviation is the unit. Both run over *all valid tokens* of the batch
# (Eq. 5):
#
# $$\hat A_{i,t} = \frac{A_{i,t} - \mathrm{mean}_{batch}(A)}{\mathrm{std}_{batch}(A)}$$
#
# A response of three tokens with 1, 2 and 3, and one of one token with 4. The mean is 2.5, the
# standard deviation 1.29:

# %%
x = torch.tensor([[1.0, 2, 3], [4, 9, 9]])  # the nines are padding
valid = torch.tensor([[True, True, True], [True, False, False]])
naive = torch.where(valid, (x - x[valid].mean()) / x[valid].std(), 0.0)
print(naive)

torch.testing.assert_close(naive, whiten(x, valid))
plots.code(whiten, docstring=False)

# %% [markdown]
# **Your turn.**


# %%
def my_whiten(x, mask):
    """(N, T) and (N, T) -> (N, T), 0 in the padding."""
    ...


check("whiten", my_whiten)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_whiten(x, mask):
#     valid = x[mask]
#     return torch.where(mask, (x - valid.mean()) / (valid.std() + 1e-8), 0.0)
# ```
#
# </details>
#
# ## 3. The same formula, applied to each response: a bug
#
# It runs without an error. **Predict, then run.** All tokens of a response have the same return $R$
# ($\beta = 0$). What is left of it when each response is normalised by its own tokens? And with
# $\beta = 0.1$?


# %%
def per_response(advantages: Tensor, mask: Tensor) -> Tensor:
    """The bug: each response is normalised by its own tokens."""
    return torch.cat([whiten(advantages[i : i + 1], mask[i : i + 1]) for i in range(len(mask))])


versions = {
    "return": plain,
    "over the batch": whiten(plain, mask),
    "per response: WRONG": per_response(plain, mask),
    "the same, beta = 0.1: WRONG": per_response(returns, mask),
}
figure, axes = plots.panels(4, height=2.8, width=12)
for axis, (name, values) in zip(axes, versions.items(), strict=True):
    picture = torch.where(mask, values, torch.nan)
    plots.heat(picture, axis=axis, numbers=None, signed=True, title=name, xlabel="token t")
axes[0].set_ylabel("response")
plt.show()

for name, values in versions.items():
    log_probs = token_log_probs(moved, rollout.sequences)
    loss = sequence_mean(policy_gradient(log_probs, values), mask)
    norm = torch.autograd.grad(loss, moved.wte.weight)[0].norm()
    means = row_sums(values, mask) / rollout.lengths
    print(f"{name:28} gradient norm {norm:.3f}, means", [round(m, 1) + 0.0 for m in means.tolist()])
holds((versions["per response: WRONG"] == 0).all(), "with the bug nothing is left of equal returns")
erased = row_sums(versions["the same, beta = 0.1: WRONG"], mask) / rollout.lengths
holds(erased.abs().max() < 1e-4, "with the bug the mean of every response is 0")

# %% [markdown]
# Nothing is left: the third panel is white, and the gradient is zero.
#
# With $\beta \gt 0$ the bug is harder to see. There are advantages, of unit variance, and the
# gradient is about as large as the right one. But every response has the mean 0, the best as well
# as the worst, so all that $R$ said is gone. What is left is the *shape* of the KL, scaled up to
# unit variance. Here are six steps of the engine as it is (its function is called `over_tokens`),
# and six with the bug in its place:


# %%
config = ReinforcePPConfig(
    steps=10, prompts_per_step=48, minibatches=2, micro_batch_size=64, lr=7e-4, warmup=1,
    kl_coef=0.05, stop_kl=None, device="cpu",
)  # fmt: skip


def run(config: ReinforcePPConfig):
    """Train a copy of the base model; its metrics, one row per rollout batch."""
    policy, log = copy.deepcopy(base), MetricLog(config.steps)
    reward = WithGold(learned, gold)
    of_run = Run(config, policy, tokenizer, reward, prompts, log)
    return policy, reinforce_pp_engine.train(config, of_run)


trained = {"plain": run(config)}
with mock.patch.dict(reinforce_pp_engine.NORMS, token=per_response):
    _, wrong = run(dataclasses.replace(config, steps=6))

# %%
right = trained["plain"][1][:6]
both = {"over the batch": right, "per response (the bug)": wrong}
axis = plots.curves(
    {
        name: ([row["step"] for row in rows], [row["gold"] for row in rows])
        for name, rows in both.items()
    },
    styles={"over the batch": "policy", "per response (the bug)": "bad"}, marker=True,
    xlabel="step (rollout batch)", ylabel="gold reward (0 to 1)", ylim=(0, 1),
)  # fmt: skip
plt.show()
gains = [sum(row["gold"] for row in rows[-3:]) / 3 - rows[0]["gold"] for rows in (right, wrong)]
print(f"gain in 6 steps: {gains[0]:+.3f} over the batch, {gains[1]:+.3f} per response")
holds(gains[0] > gains[1] + 0.03, "the right form learns and the bug does not")

# %% [markdown]
# The bug raises no error, and its gradient is about as large as the right one. The run just learns
# next to nothing.
#
# ## 4. With groups: REINFORCE++-baseline
#
# The batch's mean does not know the prompt. If some prompts are easy and others hopeless, a poor
# answer to an easy one looks good. With several answers per prompt the group's mean takes that out,
# and the batch gives only the unit (Eqs. 6 and 7). Take two groups of two. The rewards are 1 and 0
# in the first, 1 and 1 in the second. The group's means leave 0.5, -0.5, 0 and 0. Their standard
# deviation is 0.408:
#
# $$A'_i = R_i - \mathrm{mean}_{group}(R), \qquad
# \hat A_i = \frac{A'_i - \mathrm{mean}_{batch}(A')}{\mathrm{std}_{batch}(A')}$$

# %%
R = torch.tensor([1.0, 0.0, 1.0, 1.0]).view(2, 2)
centred = (R - R.mean(1, keepdim=True)).view(-1, 1)
naive = (centred - centred.mean()) / centred.std()
print(naive[:, 0])

two = ReinforcePPConfig(variant="baseline", group_size=2, device="cpu")
whole = torch.ones(4, 3, dtype=torch.bool)
engine = reinforce_pp_advantages(two, R.flatten(), torch.zeros(4, 3), None, whole, 0.0)
torch.testing.assert_close(naive, engine)
plots.code(reinforce_pp_engine.group_centred, lines=("centred =", "return"))
plots.code(reinforce_pp_engine.over_sequences)

# %% [markdown]
# (`over_sequences` takes mean and spread over responses, as the paper's appendix B.2 does. The
# authors' code takes them over tokens, as in section 2: `--norm-over token`.)
#
# Take eight prompts with eight answers each. To all rewards of a prompt we add a number that says
# how *easy* it is, from -1, the hardest, to +1, the easiest. The number says nothing about which
# answer is better.
#
# **Predict.** Which answers get a high advantage in the plain form?

# %%
groups = sample_rollout(base, tokenizer, records, params, 8, make_generator(4, "groups"))
fair = gold(groups)
ease = torch.linspace(-1, 1, 8).repeat_interleave(8)  # the prompt of every row; +1 is the easiest
forms = {
    "plain": ReinforcePPConfig(group_size=8, prompts_per_step=8, norm_over="sequence"),
    "baseline": ReinforcePPConfig(group_size=8, prompts_per_step=8, variant="baseline"),
}


def advantages_of(form: str, rewards: Tensor) -> Tensor:
    """(N,), with no KL."""
    arguments = (rewards, groups.log_probs, None, groups.response_mask, 0.0)
    return reinforce_pp_advantages(forms[form], *arguments)[:, 0]


figure, axes = plots.panels(2)
for axis, form in zip(axes, forms, strict=True):
    dots = axis.scatter(fair, advantages_of(form, fair + ease), c=ease, cmap="viridis")
    axis.set(xlabel="gold reward, before the ease is added", ylabel="advantage", title=form)
figure.colorbar(dots, ax=axes, label="ease (+1: easiest prompt)")
plt.show()

# %%
better = fair - fair.view(8, 8).mean(1).repeat_interleave(8)  # than the answers to the same prompt
for form in forms:
    with_it, without = advantages_of(form, fair + ease), advantages_of(form, fair)
    both = torch.corrcoef(torch.stack([with_it, better]))[0, 1]
    print(f"{form:8} correlation of A with 'better than its neighbours': {both:.2f}")
    holds(
        torch.allclose(with_it, without, atol=1e-4) == (form == "baseline"),
        "the ease of a prompt changes the advantages in the plain form only",
    )
    holds(
        both < 0.6 if form == "plain" else both > 0.9,
        "ease decides the plain advantages, and the answer those with groups",
    )

# %% [markdown]
# In the plain form the colour decides more than the answer does: easy prompts (yellow) get the high
# advantages. With the group's mean this is gone: the ease of a prompt no longer changes any
# advantage.
#
# **Whose spread?** GRPO divides by the group's, so two prompts weigh the same even if the answers
# to one of them hardly differ. With the batch's spread that prompt gets small advantages:

# %%
example = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.50, 0.51, 0.50, 0.51])  # two groups of four
by_group = group_advantages(example, 4)[:, 0]
centred = group_advantages(example, 4, scale="none")
by_batch = (centred / centred.std())[:, 0]
plots.table(
    ["rewards of two groups", *(f"{x:.2f}" for x in example)],
    [[name, *(f"{x:+.2f}" for x in values)]
     for name, values in (("std of the group (GRPO)", by_group), ("std of the batch", by_batch))],
)  # fmt: skip
holds(
    by_group[5] > 0.8 * by_group[1] and by_batch[5] < 0.02 * by_batch[1],
    "the group's spread makes small differences as large as others, the batch's does not",
)

# %% [markdown]
# ## 5. k2 in the loss
#
# The baseline form keeps the KL out of the reward and adds it to the loss, as k2 (Eq. 8):
#
# $$\mathcal{L} = \mathcal{L}_{clip} + \lambda \, \mathrm{k2}, \qquad
# \mathrm{k2}_t = \tfrac12 \left( \log \pi(y_t) - \log \pi_{ref}(y_t) \right)^2$$
#
# Why not k1, which is right in the reward? In the loss the sampled token is a constant, and only
# its $\log \pi$ is differentiated. To see what that does on average, we list a vocabulary of six
# symbols:

# %%
start = torch.tensor([1.5, 0.5, -0.5, -1.0, 0.0, -0.5], dtype=torch.float64)
reference = torch.tensor([0.40, 0.10, 0.15, 0.20, 0.05, 0.10], dtype=torch.float64).log()
logits = start.clone().requires_grad_()
log_p, p = logits.log_softmax(0), start.softmax(0)  # p: where the samples come from
(true,) = torch.autograd.grad((log_p.exp() * (log_p - reference)).sum(), logits, retain_graph=True)
print("gradient of the KL", [round(x, 3) for x in true.tolist()])
for name, estimator, wanted in (("k1", k1, torch.zeros_like(true)), ("k2", k2, true)):
    loss = (p * estimator(log_p[None], reference[None])[0]).sum()
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    print(f"{name} as a loss      ", [round(x, 3) + 0.0 for x in gradient.tolist()])
    torch.testing.assert_close(gradient, wanted, atol=1e-12, rtol=0)

# %% [markdown]
# k1 as a loss is pure noise: its gradient is zero on average, whatever the reference is. k2 as a
# loss has exactly the gradient of the KL. ([14](14_kl_estimators.ipynb) has the whole table.)
#
# ## 6. The difference to GRPO
#
# A step of [nano/grpo.py](../nano/grpo.py), and what
# [nano/reinforce_pp.py](../nano/reinforce_pp.py) changes (every line begins at the margin). The
# ratio, the clip and the mean over a response's tokens stay:

# %%
plots.neighbours("grpo", "reinforce_pp")

# %% [markdown]
# ## 7. A run of both forms
#
# The same 48 responses a step: 48 prompts once, or 6 prompts 8 times. The two KL weights do not
# mean the same thing, because in the plain form the KL is divided by the batch's spread along
# with the reward, while in the other form it is added to an advantage of unit spread. The spread
# of this reward is near 1, so the same number is a fair choice.

# %%
with_groups = dataclasses.replace(config, variant="baseline", prompts_per_step=6, group_size=8)
trained["baseline"] = run(with_groups)
for _, rows in trained.values():
    holds(
        max(row["ratio_error_at_start"] for row in rows) < 1e-4
        and abs(rows[0].get("kl", 0.0)) < 1e-4,
        "before a batch's first update the ratios are 1, and the KL begins at 0",
    )

runs = {name: rows for name, (_, rows) in trained.items()}
curves(runs, ["reward", "gold", "kl", "entropy"], columns=4)

# %% [markdown]
# Prompts that the policies have never seen, with the same random numbers:

# %%
unseen = reviews.prompts("validation")[:64]
models = {"base": base} | {name: policy for name, (policy, _) in trained.items()}
results = {
    name: evaluate(model, tokenizer, unseen, params, learned, reference=base, gold=gold)
    for name, model in models.items()
}
columns = ("reward", "gold", "kl", "response_length")
plots.table(
    ["policy", "score", "gold", "KL", "length"],
    [[name, *(result.summary()[key] for key in columns)] for name, result in results.items()],
)
for i in range(2):
    print(unseen[i].prompt.strip())
    for name, result in results.items():
        print(f"  {name:8} gold {result.gold[i]:.2f}  {result.responses[i]}")
for name in trained:
    gain = results[name].gold - results["base"].gold  # prompt by prompt
    half = float(1.96 * gain.std() / math.sqrt(len(gain)))
    print(f"{name}: gain in gold {gain.mean():.3f} +- {half:.3f} (95% interval)")
    holds(gain.mean() > half, "both forms raise the reward significantly")

# %% [markdown]
# Look at the KL. In this run the plain form moves 16 nats away from the reference and gets less for
# it than the other form with 2. A likely reason: its baseline does not know the prompt, so more of
# each push is noise, and at this learning rate the noise carries the policy away. The usual
# remedies are a smaller learning rate and a larger batch (the engine's default is 128 prompts). One
# seed and ten steps cannot say more.
#
# ## 8. The command
#
# ```
# python -m rl.reinforce_pp_engine      # one answer per prompt
# python -m rl.reinforce_pp_engine --variant baseline --group-size 8 --prompts-per-step 16
# ```
#
# The engine is [rl/reinforce_pp_engine.py](../rl/reinforce_pp_engine.py).
#
# ## Exercises
#
# Exercises 1 and 2 are above: `reward_to_go` and `whiten`.
#
# **3. `batch_normalised`**, the advantages of section 4:


# %%
def my_batch_normalised(rewards, group_size):
    """Rewards (N,), the answers to one prompt in a row -> advantages (N, 1)."""
    ...


check("batch_normalised", my_batch_normalised)

# %% [markdown]
# **On paper.** 4. Plain form, $\gamma = 0.9$, $\beta = 0$, a response of 50 tokens with $R = 1$ and
# one of 10 tokens with $R = 1$. Which of their tokens have an advantage above the batch's mean?
#
# 5\. In the baseline form with one prompt a step and $\lambda = 0$ (the weight of k2): which
# algorithm is this?
#
# <details>
# <summary>Solutions</summary>
#
# ```python
# def my_batch_normalised(rewards, group_size):
#     groups = rewards.view(-1, group_size)
#     centred = (groups - groups.mean(1, keepdim=True)).view(-1, 1)
#     return centred / (centred.std() + 1e-6)
# ```
#
# 4\. Those near the end. The mean over the 60 tokens is 0.27, and $0.9^{12} = 0.28$. So it is the
# last 13 tokens of the long response and all 10 of the short one ($0.9^9 = 0.39$). The opening of a
# *good* long response is pushed down, for being far from the end.
#
# 5\. GRPO without its KL term, up to the $10^{-4}$ that GRPO adds to the standard deviation: the
# group is the batch.
#
# </details>
#
# Next: [12_single_model_grpo](12_single_model_grpo.ipynb), which leaves out the reference as well.
