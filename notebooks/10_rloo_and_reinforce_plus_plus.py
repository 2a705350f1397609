# %% [markdown]
# # 10. RLOO and REINFORCE++
#
# **The question.** PPO compares an action with what its critic expected. Without a critic,
# what can we compare it with?
#
# **After this page you can** compute the advantages of RLOO and of both forms of REINFORCE++, write down
# their whole losses, and recognise the whitening that erases the reward.
#
# **Why.** PPO was made for games and simulated robots, where a policy starts from nothing. A fine-tuned
# language model is good before RL begins, and one reward comes at the end. Two papers draw two conclusions:
#
# - **RLOO** (Ahmadian et al. 2024, "Back to Basics", [arXiv:2402.14740](https://arxiv.org/abs/2402.14740)):
#   the whole response is *one* action, and the baseline is the mean of the *other* responses to the
#   same prompt (Kool et al. 2019).
# - **REINFORCE++** (Hu et al. 2025, [arXiv:2501.03262](https://arxiv.org/abs/2501.03262), version 9): one
#   response per prompt is enough, if PPO's token rewards are compared with the *whole batch*.
#
# **You need** [04](04_policy_gradients_and_baselines.ipynb) (baselines, leave-one-out),
# [05](05_what_a_kl_is.ipynb) (the KL in the reward), [07](07_grpo.ipynb), and of [09](09_ppo.ipynb) the
# rewards of tokens and the whitening.
#
# **It takes** about 25 seconds on one CPU core, after start-up.

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

from data.worlds import reviews
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from harness.metric_log import MetricLog
from harness.seeds import make_generator
from harness.tensors import masked_sum
from rl import reinforce_pp_engine, rloo_engine
from rl.batches.rollout import prompt_batch, sample_rollout
from rl.equations.advantages import discounted_returns, leave_one_out_advantages, whiten
from rl.equations.losses import grpo_objective, policy_gradient, sequence_mean, sequence_sum
from rl.equations.token_rewards import token_level_rewards
from rl.loop import Run
from rl.reinforce_pp_engine import ReinforcePPConfig, reinforce_pp_advantages
from rl.rewards.model import RewardModelReward
from rl.rewards.reward import RuleReward
from rl.rloo_engine import RLOOConfig, rloo_advantages
from rl.run.evaluation import evaluate

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
plots.use()
base, tokenizer = saved_models.base()
moved, _ = saved_models.policy()
learned = RewardModelReward(saved_models.reward_model()[0])
gold = RuleReward(reviews.gold_reward, "gold")
prompts, params = reviews.prompts("train"), SamplingParams(temperature=1.0, max_new_tokens=48)

# %% [markdown]
# ## 1. RLOO: the mean of the others
#
# Page [04](04_policy_gradients_and_baselines.ipynb), section 7, compares a response with the *others* of
# its group. Four answers to one prompt scored 1, 2, 3 and 4. The others of the first have the mean 3, so
# its advantage is -2:
#
# $$A_i = R_i - \frac{1}{k-1} \sum_{j \ne i} R_j = \frac{k}{k-1} \left( R_i - \mathrm{mean}(R) \right)$$
#
# ($k$ is the size of the group, `group_size`.) Nothing is divided by a standard deviation.

# %%
rewards = torch.tensor([[1.0, 2, 3, 4]])
others = (rewards.sum(1, keepdim=True) - rewards) / 3  # the sum without my own, over k - 1
A = rewards - others
print(A)

torch.testing.assert_close(A.view(-1, 1), leave_one_out_advantages(rewards.flatten(), 4))

# %% [markdown]
# ## 2. The log-probability of a response is a sum
#
# $$\log \pi(y \mid x) = \sum_{t=1}^{L} \log \pi(y_t \mid x, y_{\lt t})$$
#
# REINFORCE wants the gradient of exactly that sum. Nothing is divided by the length. Three answers
# of two, one and two tokens, with the advantages 0.5, 0.05 and -0.55:

# %%
log_probs = torch.tensor([[-1.0, -2.0], [-4.0, 9.0], [-2.0, -3.0]])  # the 9 is padding
mask = torch.tensor([[True, True], [True, False], [True, True]])
A = torch.tensor([[0.5], [0.05], [-0.55]])

of_response = torch.where(mask, log_probs, 0.0).sum(1)  # -3, -4, -5
naive = -(A[:, 0] * of_response).mean()
print("log pi(y | x)", of_response.tolist(), f"loss {naive:.2f}")  # -(-1.5 - 0.2 + 2.75) / 3

torch.testing.assert_close(naive, sequence_sum(policy_gradient(log_probs, A), mask))
plots.code(rloo_engine.rloo_loss)

# %% [markdown]
# How much does one token weigh? With RLOO's sum it weighs the same in every response. With GRPO's
# mean it weighs less in a long one. Three responses of 2, 4 and 8 tokens:

# %%
three = torch.arange(8) < torch.tensor([2, 4, 8])[:, None]  # (3, 8)
figure, axes = plots.panels(2, height=2.2)
for axis, reducer in zip(axes, (sequence_sum, sequence_mean), strict=True):
    x = torch.zeros(3, 8, requires_grad=True)
    loss = reducer(policy_gradient(x, torch.ones(3, 1)), three)
    weight = -torch.autograd.grad(loss, x)[0]
    plots.heat(
        torch.where(three, weight, torch.nan), axis=axis, title=reducer.__name__, largest=1 / 3
    )
    axis.set(xlabel="token t", ylabel="response", yticks=range(3))
    total = weight.sum(1)
    assert torch.allclose(
        total, torch.tensor([2.0, 4, 8]) / 3 if reducer is sequence_sum else total[0]
    )
plt.show()

# %% [markdown]
# **Your turn.**


# %%
def my_rloo_loss(log_probs, advantages, mask):
    """(N, T), (N, 1), (N, T) -> a scalar to minimise."""
    ...


check("rloo_loss", my_rloo_loss)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_rloo_loss(log_probs, advantages, mask):
#     of_response = torch.where(mask, log_probs, 0.0).sum(1)
#     return -(advantages[:, 0] * of_response).mean()
# ```
#
# </details>
#
# ## 3. The KL is part of the reward, before the baseline
#
# $$R' = R - \beta \log \frac{\pi(y \mid x)}{\pi_{ref}(y \mid x)}
# = R - \beta \sum_t \left( \log \pi(y_t) - \log \pi_{ref}(y_t) \right)$$
#
# Three responses with rewards 1, 0.5 and 0. Their log-ratios, summed over the tokens, are 2, 0 and
# -1. With $\beta = 0.1$ that makes $R'$ = 0.8, 0.5 and 0.1. The baseline of the first is (0.5 +
# 0.1) / 2 = 0.3, so its advantage is 0.5.

# %%
R, log_ratio = torch.tensor([1.0, 0.5, 0.0]), torch.tensor([[2.0], [0.0], [-1.0]])
penalised = (R - 0.1 * log_ratio.sum(1)).view(1, 3)
naive = penalised - (penalised.sum(1, keepdim=True) - penalised) / 2
print(
    "R'",
    [round(x, 2) for x in penalised[0].tolist()],
    "A",
    [round(a, 3) for a in naive[0].tolist()],
)

three = RLOOConfig(group_size=3, device="cpu")
one_token = torch.ones(3, 1, dtype=torch.bool)
zeros = torch.zeros(3, 1)
engine = rloo_advantages(three, R, log_ratio, zeros, one_token, 0.1)
torch.testing.assert_close(naive.view(-1, 1), engine)
plots.code(rloo_advantages, lines=("penalised = ", "advantages = leave"))

# %% [markdown]
# **Predict, then run.** All three rewards are equal. Then all of GRPO's advantages are 0. And RLOO's?

# %%
equal = rloo_advantages(three, torch.full((3,), 0.7), log_ratio, zeros, one_token, 0.1)
print([round(a, 3) for a in equal[:, 0].tolist()])
holds(equal.argmax() == 2, "the response with the lowest log-ratio gains")

# %% [markdown]
# The KL's part remains. The response with the lowest log-ratio gains most, because it has become
# less likely than it was under the reference.
#
# ## 4. One pass over a batch
#
# A step of [nano/grpo.py](../nano/grpo.py), and where [nano/rloo.py](../nano/rloo.py) differs:

# %%
plots.neighbours("grpo", "rloo")

# %% [markdown]
# Without a ratio the loss is right only for samples of the policy as it is *now*, so it allows one pass
# over a batch. (Where the pass is cut into minibatches, only the first of them is exact.) Other code that
# is called RLOO puts these advantages into PPO's clip, with the ratio of the whole response, $s_i = \prod_t
# \rho_{i,t}$ (`--loss clipped`).
#
# **Predict.** A hundred tokens drift by 0.02 nats each, which nobody would call a large step. What
# is $s$? ($e^{2} = 7.4$.) Measured on 64 responses, with a few optimizer steps on the same batch:

# %%
batch = prompt_batch(prompts, 1, 8, seed=0)
many = sample_rollout(base, tokenizer, batch, params, 8, make_generator(5, "many"))
many_A = leave_one_out_advantages(learned(many), 8)
student, used = copy.deepcopy(base), many.response_mask
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4, betas=(0.9, 0.95), weight_decay=0)
outside: dict[str, list[float]] = {"tokens": [], "responses": []}
for _ in range(6):
    log_ratio = token_log_probs(student, many.sequences) - many.log_probs  # (64, T)
    whole = masked_sum(log_ratio, used).detach().exp()  # (64,)  s
    each = log_ratio[used].detach().exp()  # (tokens,)  rho
    outside["tokens"].append(float(((each - 1).abs() > 0.2).float().mean()))
    outside["responses"].append(float(((whole - 1).abs() > 0.2).float().mean()))
    optimizer.zero_grad()
    sequence_sum(policy_gradient(log_ratio, many_A), used).backward()
    optimizer.step()

# %% tags=["hide-input"]
axis = plots.curves(
    {f"ratio of {name}": share for name, share in outside.items()},
    marker=True, xlabel="optimizer steps on one batch", ylabel="share outside of 0.8 to 1.2",
    ylim=(0, 1),
)  # fmt: skip
plt.show()
holds(
    outside["responses"][2] > 1.5 * outside["tokens"][2] and outside["responses"][0] == 0,
    "whole responses leave the range sooner than tokens",
)

# %% [markdown]
# A response outside the range, on the side to which its advantage pushes it, has *no* gradient: all its
# tokens stop together, even those that have hardly moved. GSPO (page [11](11_grpo_family.ipynb)) takes
# the $L$-th root of $s$ for this reason.
#
# ## 5. REINFORCE++: the batch is the baseline
#
# A group has a price: eight answers to one question instead of answers to eight questions. With one
# answer per prompt, REINFORCE++ compares every token with the whole batch. First its return: its own
# reward (page [09](09_ppo.ipynb): its part of the KL, and at the end the score) and all later ones
# (Eq. 4; $\gamma = 1$). Then mean and deviation over *all valid tokens* of the batch (Eq. 5):
#
# $$A_t = \sum_{u \ge t} r_u = R - \beta \sum_{u \ge t} \mathrm{k1}_u, \qquad
# \hat A_{i,t} = \frac{A_{i,t} - \mathrm{mean}_{batch}(A)}{\mathrm{std}_{batch}(A)}$$
#
# Three tokens with the rewards -0.02, 0.05 and 1.0 have the returns 1.03, 1.05 and 1.0. A response of
# three tokens with returns 1, 2 and 3 beside one of one token with 4: the mean is 2.5, the standard
# deviation 1.29.

# %%
r = torch.tensor([[-0.02, 0.05, 1.0]])
to_go = r.flip(1).cumsum(1).flip(1)  # summed from the end
torch.testing.assert_close(to_go, discounted_returns(r, torch.ones(1, 3, dtype=torch.bool), 1.0))

x = torch.tensor([[1.0, 2, 3], [4, 9, 9]])  # the nines are padding
valid = torch.tensor([[True, True, True], [True, False, False]])
naive = torch.where(valid, (x - x[valid].mean()) / x[valid].std(), 0.0)
print(to_go, naive, sep="\n")
torch.testing.assert_close(naive, whiten(x, valid))

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
# ## 6. The same formula, applied to each response: a bug
#
# It runs without an error. **Predict, then run.** All tokens of a response have the same return $R$
# ($\beta = 0$). What is left of it when each response is normalised by its own tokens? And with
# $\beta = 0.1$?


# %%
records = prompt_batch(prompts, step=0, batch_size=8, seed=0)
rollout = sample_rollout(moved, tokenizer, records, params, 1, make_generator(1, "demo"))
rewards, mask = learned(rollout), rollout.response_mask  # (N,), (N, T)
with torch.no_grad():
    ref_log_probs = token_log_probs(base, rollout.sequences)  # (N, T)


def returns_of(ref_log_probs: Tensor | None, kl_coef: float) -> Tensor:
    """The reward to go of every token, (N, T)."""
    to_tokens = token_level_rewards(rewards, rollout.log_probs, ref_log_probs, mask, kl_coef)
    return discounted_returns(to_tokens, mask, gamma=1.0)


plain, returns = returns_of(None, 0.0), returns_of(ref_log_probs, 0.1)
assert (plain == torch.where(mask, rewards[:, None], 0.0)).all()  # every token has its R


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
    means = masked_sum(values, mask) / rollout.lengths
    print(f"{name:28} gradient norm {norm:.3f}, means", [round(m, 1) + 0.0 for m in means.tolist()])
holds((versions["per response: WRONG"] == 0).all(), "with the bug nothing is left of equal returns")
erased = masked_sum(versions["the same, beta = 0.1: WRONG"], mask) / rollout.lengths
holds(erased.abs().max() < 1e-4, "with the bug the mean of every response is 0")

# %% [markdown]
# Nothing is left: the third panel is white, and the gradient is zero.
#
# With $\beta \gt 0$ the bug is harder to see. There are advantages, of unit variance, and the
# gradient is about as large as the right one. But every response has the mean 0, the best as well
# as the worst, so all that $R$ said is gone. What is left is the *shape* of the KL, scaled up to
# unit variance. Here are six steps of the engine as it is (its function is called `whiten`),
# and six with the bug in its place:


# %%
config = ReinforcePPConfig(
    steps=10, prompts_per_step=48, minibatches=2, micro_batch_size=64, lr=7e-4, warmup_steps=1,
    kl_coef=0.05, stop_kl=None, device="cpu",
)  # fmt: skip


def run(config, train=reinforce_pp_engine.train):
    """Train a copy of the base model; the policy, and one row of metrics per rollout batch."""
    policy, log = copy.deepcopy(base), MetricLog(config.steps)
    return policy, train(Run(config, policy, tokenizer, WithGold(learned, gold), prompts, log))


trained = {"REINFORCE++": run(config)}
with mock.patch.object(reinforce_pp_engine, "whiten", per_response):
    _, wrong = run(dataclasses.replace(config, steps=6))

# %% tags=["hide-input"]
right = trained["REINFORCE++"][1][:6]
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
# ## 7. With groups: REINFORCE++-baseline
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

# %% [markdown]
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
# (This form keeps the KL out of the reward and adds it to the loss, as k2, whose gradient as a loss is
# that of each token's KL: page [08](08_kl_estimators.ipynb).)
#
# ## 8. The whole loss: a ratio and a clip
#
# So far there is only an advantage. Unlike RLOO, REINFORCE++ takes several optimizer steps on a batch, so
# it needs PPO's ratio of the policy to the one that sampled, and PPO's clip (Eq. 1). Its average is
# GRPO's, over the tokens of an answer first:
#
# $$L = - \frac{1}{N} \sum_i \frac{1}{L_i} \sum_t
# \min \big( \rho_{i,t} \hat A_{i,t}, \;
# \mathrm{clip}(\rho_{i,t}, 1 - \epsilon, 1 + \epsilon) \, \hat A_{i,t} \big),
# \qquad \rho_{i,t} = \frac{\pi(y_t)}{\pi_{old}(y_t)}$$
#
# Two answers, of two tokens and of one. The ratios are 1.5, 0.9 and 0.5; $\epsilon = 0.2$. With a
# positive advantage the 1.5 counts as 1.2, and its token has no gradient any more. With a negative one
# the 0.5 counts as 0.8, for the same reason: the token has already moved as far as one batch allows.

# %%
ratio = torch.tensor([[1.5, 0.9], [0.5, 1.0]])
advantages = torch.tensor([[1.0, 1.0], [-2.0, 7.0]])  # the 7 is padding
mask = torch.tensor([[True, True], [True, False]])
old = torch.full((2, 2), -1.0)
log_probs = (old + ratio.log()).requires_grad_()

rho = (log_probs - old).exp()
surrogate = torch.minimum(rho * advantages, rho.clamp(0.8, 1.2) * advantages)
of_response = torch.where(mask, surrogate, 0.0).sum(1) / mask.sum(1)  # 1/L_i sum_t
naive = -of_response.mean()
print("tokens", surrogate[mask].tolist(), f"loss {naive:.3f}")  # -((1.2 + 0.9) / 2 - 1.6) / 2
(by_hand,) = torch.autograd.grad(naive, log_probs)
print("gradient", by_hand.tolist())

plain_form = ReinforcePPConfig(clip_range=0.2, device="cpu")
engine = reinforce_pp_engine.reinforce_pp_loss(
    plain_form, log_probs, old, None, advantages, mask, kl_coef=0.05, responses=2
)
torch.testing.assert_close(naive, engine)
torch.testing.assert_close(by_hand, torch.autograd.grad(engine, log_probs)[0])
holds(by_hand[0, 0] == 0 and by_hand[1, 0] == 0, "the clip stops the tokens that have moved enough")
holds(by_hand[0, 1] != 0, "and not the others")

# %% [markdown]
# In the engine these are two functions. The KL of the plain form is nowhere here, since it is in $\hat A$
# already; the form with groups adds it as k2:

# %%
plots.code(reinforce_pp_engine.reinforce_pp_loss, docstring=False)
plots.code(grpo_objective, docstring=False)

# %% [markdown]
# **Predict the signs, then run.** Does a word that the clip has stopped stay where it is? A policy of four
# words has taken a step or two on a batch, so that one good word is beyond the clip. Another word was never
# drawn. A draw with the advantage $A$ and the ratio $\rho$ changes the logit of word $v$ by $\rho A \, (1[v
# \, \mathrm{is\ drawn}] - p_v)$, and by nothing where the clip acts. **Which words will be likelier after
# the next step?** Enter their letters first, such as `"ad"`. The cell after it takes that step on the same
# table, and waits until you have said what you expect.

# %%
from course.entered import check_answer, sheet, table

MINE = 0  # your number, at a university the last digits of your student number
table("who_rises", MINE)

# %%
MY_PREDICTION = ...
check_answer("who_rises", MY_PREDICTION, MINE)


# %%
def after_one_step(rows, lr: float = 0.05) -> Tensor:
    """By how much the log-probability of each word changes, (4,), from the rows of the table."""
    sampled, now, draws, A = torch.tensor(
        [[float(cell or 0) for cell in row[1:]] for row in rows]
    ).T  # (4,) each
    logits = now.log().requires_grad_()
    rho = logits.softmax(0) / sampled
    surrogate = torch.minimum(rho * A, rho.clamp(0.8, 1.2) * A)
    loss = -(draws * surrogate).sum() / draws.sum()
    (slope,) = torch.autograd.grad(loss, logits)
    return (logits - lr * slope).log_softmax(0).detach() - now.log()


changes = after_one_step(sheet("who_rises", MINE).rows)
assert (changes.abs() > 1e-5).all()  # every word moves, the stopped one and the one never drawn too
if MY_PREDICTION is ...:
    print("the step waits for your prediction")
else:
    for word, change in zip("abcd", changes.tolist(), strict=True):
        print(f"{word}: log-probability {change:+.4f}")

# %% [markdown]
# All four words move, the stopped one and the one that was never drawn included, because probabilities add
# up to 1: what the others gain or lose is taken from these two. The clip takes away a word's own *push*. It
# does not hold the word.
#
# So REINFORCE++ is GRPO's loss with other advantages, and PPO's with the batch in the place of a critic.
# In a batch's first optimizer step all ratios are 1, and the loss has REINFORCE's gradient; the clip
# works from the second one on.
#
# ## 9. Three runs
#
# 48 responses a step: 6 prompts 8 times, or 48 prompts once.

# %%
with_groups = dict(prompts_per_step=6, group_size=8)
trained["REINFORCE++-baseline"] = run(
    dataclasses.replace(config, variant="baseline", **with_groups)
)
of_rloo = RLOOConfig(
    steps=10, minibatches=2, micro_batch_size=64, lr=7e-4, warmup_steps=1, kl_coef=0.05, stop_kl=None,
    device="cpu", **with_groups,
)  # fmt: skip
trained["RLOO"] = run(of_rloo, rloo_engine.train)
for _, rows in trained.values():
    holds(
        max(row["ratio_error_at_start"] for row in rows) < 1e-4
        and abs(rows[0].get("kl", 0.0)) < 1e-4,
        "before a batch's first update the ratios are 1, and the KL begins at 0",
    )
curves({name: rows for name, (_, rows) in trained.items()}, ["reward", "gold", "kl"], columns=3)

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
for name in trained:
    gain = results[name].gold - results["base"].gold  # prompt by prompt
    half = float(1.96 * gain.std() / math.sqrt(len(gain)))
    print(f"{name}: gain in gold {gain.mean():.3f} +- {half:.3f} (95% interval)")
    holds(gain.mean() > (0 if name == "REINFORCE++" else half), f"{name} raises gold")
kl = {name: result.summary()["kl"] for name, result in results.items()}
holds(
    kl["REINFORCE++"] > 1.5 * max(kl["RLOO"], kl["REINFORCE++-baseline"]),
    "here, without groups, the policy goes much further from the reference",
)

# %% [markdown]
# Look at the KL. A likely reason: the batch's mean does not know the prompt, so more of each push is
# noise, and at this learning rate the noise carries the policy away. The usual remedies are a smaller
# learning rate and a larger batch (the engine's default is 128 prompts). One seed and ten steps rank
# nothing; [the archive](../docs/archive.md#one-budget) has the comparison at equal budgets.
#
# **The commands**: `python -m rl.rloo_engine` and `python -m rl.reinforce_pp_engine`; with groups
# `--variant baseline --group-size 8 --prompts-per-step 16`.
#
# ## Exercises
#
# Exercises 1 to 3 are above: `rloo_loss`, `whiten` and the prediction `who_rises`.
#
# **4. Whose advantages are these?** Two prompts with three answers each, and no KL. (No solution is
# printed.)
#
# - a: RLOO
# - b: the group's mean as the baseline, and nothing else
# - c: GRPO
# - d: REINFORCE++, its plain form
# - e: REINFORCE++-baseline

# %%
table("whose_advantages", MINE)

# %%
check_answer("whose_advantages", ..., MINE)

# %% [markdown]
# **On paper.** 5. Two responses to a prompt with $R' = 1$ and $0$: what are the advantages of RLOO,
# of the group's mean, and of GRPO? What happens to each when the rewards are doubled?
#
# 6\. In the baseline form with one prompt a step and no KL: which algorithm is this?
#
# <details>
# <summary>Solutions</summary>
#
# 5\. RLOO: $\pm 1$, the difference of the two. Group's mean: $\pm 0.5$. GRPO: $\pm 0.707$. Doubled
#     rewards double the first two, but GRPO does not notice.
#
# 6\. GRPO without its KL term, up to the $10^{-4}$ that GRPO adds to the standard deviation: the
# group is the batch.
#
# </details>
#
# ## To remember
#
# - RLOO compares an answer with the mean of the others, adds its tokens up, and takes the KL off the
#   reward before the baseline.
# - REINFORCE++ takes the batch as the baseline and PPO's ratio and clip; with groups the group's mean is
#   taken off first.
# - Normalise over the batch, never over one response: that erases the reward and raises no error.
#
# Next: [11_grpo_family](11_grpo_family.ipynb): a dozen papers, each of which changes one of these choices.
