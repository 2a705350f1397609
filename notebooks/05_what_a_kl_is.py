# %% [markdown]
# # 5. What a KL divergence is
#
# **After this page you can** compute a KL in nats, tell its two directions apart, convert nats per token
# into nats per response, and say what changes when the KL moves from the reward into the loss.
#
# **Why.** A policy that only follows a reward forgets everything else: grammar, variety, sense. So
# RLHF holds it on a leash. It may move away from the model it started from, but it has to pay for
# the distance. The distance is a KL divergence. What does it measure, in which unit, in which
# direction, and who pays?
#
# | section | question | source | code |
# | --- | --- | --- | --- |
# | 1 | what is it? | Kullback & Leibler 1951 | `kl_from_logits` |
# | 2 | what is a nat? | | |
# | 3 | which direction? | | |
# | 4 | how is it measured from samples? | Schulman 2020 | `k1` |
# | 5 | per response or per token? | | `masked_sum`, `token_mean` |
# | 6 | in the reward or in the loss? | arXiv:2203.02155, Eq. 2 | `token_level_rewards` |
# | 7 | where does the leash lead? | arXiv:2305.18290, Eq. 4 | |
#
# **You need** [04_policy_gradients_and_baselines](04_policy_gradients_and_baselines.ipynb): policy,
# reward, $\nabla J = \mathbb{E}[R \, \nabla \log \pi]$; and log-probabilities per token from
# [02_tokens_padding_masks](02_tokens_padding_masks.ipynb).
#
# **It takes** about five seconds on one CPU core, after start-up.

# %%
import math

import torch

try:
    from course import plots
    from course.claims import holds
    from course.exercises import check
    from course.saved_models import base, policy

    from data.collate import join_responses
    from data.worlds import reviews
    from gpt.generate import SamplingParams, generate
    from gpt.log_probs import full_kl, kl_from_logits, token_log_probs
    from harness.tensors import masked_sum
    from report.tokens import show_tokens
    from rl.equations.kl import k1
    from rl.equations.losses import token_mean
    from rl.equations.token_rewards import token_level_rewards
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
torch.set_printoptions(precision=4, sci_mode=False, linewidth=100)

# %% [markdown]
# ## 1. Two words
#
# The **reference** $\pi_{ref}$ is a frozen copy of the model before training. The divergence of the
# policy from it is the log of the ratio of the two probabilities, averaged over what the *policy* says.
#
# $$\mathrm{KL}(\pi \Vert \pi_{ref}) = \sum_y \pi(y) \log \frac{\pi(y)}{\pi_{ref}(y)}
# = \mathbb{E}_{y \sim \pi}\left[ \log \pi(y) - \log \pi_{ref}(y) \right]$$
#
# Two words are enough. The policy says each half of the time, but the reference says them 1 to 3:

# %%
pi = torch.tensor([0.5, 0.5])
ref = torch.tensor([0.25, 0.75])

kl = (pi * (pi.log() - ref.log())).sum()  # 0.5 log 2 + 0.5 log(2/3)

print(f"0.5 * {math.log(2):.4f} + 0.5 * {math.log(2 / 3):.4f} = {kl:.4f} nats")
torch.testing.assert_close(kl, kl_from_logits(pi.log(), ref.log()))
plots.code(kl_from_logits, docstring=False)

# %% [markdown]
# It is 0 where both agree, and positive otherwise. Single words may contribute negative amounts
# (word 1 does), but the sum is never negative.
#
# ## 2. What is a nat?
#
# With natural logarithms the unit is the **nat**. To get a feeling for its size, ask what it costs
# to *select*. Suppose the policy does what the reference does, but keeps only answers of a certain
# kind, which have probability $s$ under the reference. Inside this set $\pi = \pi_{ref} / s$, so
# every term is $\log(1/s)$, and
#
# $$\mathrm{KL}(\pi \Vert \pi_{ref}) = \log \frac{1}{s}$$
#
# > **Predict, then run.** How many nats does it cost to give only answers from the best half? The
# > best in a hundred? The best in a million?

# %%
for s in (1 / 2, 1 / 6, 1 / 100, 1 / 1_000_000):
    print(f"the best 1 in {round(1 / s):9,}: {math.log(1 / s):5.2f} nats")

uniform = torch.full((6,), 1 / 6)
best_of_six = torch.tensor([1.0, 1e-30, 1e-30, 1e-30, 1e-30, 1e-30])
torch.testing.assert_close(
    kl_from_logits(best_of_six.log(), uniform.log()), torch.tensor(6.0).log()
)

# %% [markdown]
# A few nats buy a lot of selection. Ziegler et al. 2019
# ([arXiv:1909.08593](https://arxiv.org/abs/1909.08593)) aimed at 6 and at 10 nats per response. That is
# as far as keeping only the best 1 in 400 answers, or 1 in 22,000.
#
# ## 3. Which direction?
#
# The two directions are two different numbers: 0.1438 and 0.1308 for the two words above. They also
# penalise different things. Let the reference like two words equally, and move the policy's share
# $s$ of word 0 from 0 to 1.

# %% tags=["hide-input"]
share = torch.linspace(0.001, 0.999, 200)
moving = torch.stack([share, 1 - share], 1)  # (200, 2)
halves = torch.full_like(moving, 0.5)
reverse = kl_from_logits(moving.log(), halves.log())  # KL(pi || ref)
forward = kl_from_logits(halves.log(), moving.log())  # KL(ref || pi)

axis = plots.curves(
    {"reverse, KL(policy || ref)": reverse, "forward, KL(ref || policy)": forward},
    share,
    styles={"reverse, KL(policy || ref)": "policy", "forward, KL(ref || policy)": "reference"},
    xlabel="the policy's probability of word 0 (the reference's: 0.5)",
    ylabel="nats",
    ylim=(0, 3.2),
    title="Dropping a word: cheap in one direction, infinite in the other",
)
holds(
    reverse.max() < math.log(2) < forward.max(),
    "the reverse KL is at most log 2 here, the forward KL is not",
)

# %% [markdown]
# - The **reverse** KL averages over what the policy says. *Dropping* a good answer costs at most
#   $\log 2$ here, but saying something that the reference never says costs infinitely much.
# - The **forward** KL averages over what the reference says. Dropping an answer costs infinitely
#   much, but adding nonsense is cheap.
#
# RLHF uses the reverse direction: "stay within what the reference might have said, and choose freely".
# Variety is protected, but at a price: the reverse KL is $-H(\pi) - E_\pi[\log \pi_{ref}]$, so the penalty
# pays $\beta$ for every nat of the policy's entropy $H$, and where all rewards are equal its optimum is the
# reference with all its variety (section 7). But where dropping an answer raises the expected reward by
# more than $\beta$ for each nat that it costs, it is dropped further, and in this direction dropping costs
# few nats. Fine-tuning on texts (next-token loss) minimises the forward direction: "be able to say
# everything in the data".
#
# The classic picture: a reference with two peaks, and a policy that can only have one. Which one
# peak does each direction choose? We try all of them.

# %%
x = torch.arange(1.0, 16.0)  # say, 15 lengths of an answer
peaks = 0.6 * (-((x - 4) ** 2) / 2).exp() + 0.4 * (-((x - 11) ** 2) / 2).exp()
reference = peaks / peaks.sum() * 0.97 + 0.03 / 15

centres, widths = torch.meshgrid(
    torch.linspace(1, 15, 57), torch.linspace(0.8, 7, 63), indexing="ij"
)
bumps = -((x - centres[..., None]) ** 2) / (2 * widths[..., None] ** 2)  # logits (57, 63, 15)
fits = {}
for name, divergence in (
    ("reverse: seeks one peak", kl_from_logits(bumps, reference.log())),
    ("forward: covers both", kl_from_logits(reference.log().expand_as(bumps), bumps)),
):
    best = divergence.flatten().argmin()
    fits[name] = bumps.flatten(0, 1)[best].softmax(-1)
    print(f"{name:24} centre {centres.flatten()[best]:.1f}, width {widths.flatten()[best]:.1f}")

# %%
figure, axes = plots.panels(2, height=3)
for axis, (name, fit) in zip(axes, fits.items(), strict=True):
    plots.bars({"reference": reference, "policy": fit}, [f"{i:.0f}" for i in x], axis=axis,
              xlabel="answer", ylabel="probability", title=name, ylim=(0, 0.42))  # fmt: skip
seeking, covering = fits.values()
holds(
    seeking[3] > 0.3 and seeking[10] < 0.01, "seeking picks the larger peak and forgets the other"
)
holds(covering[6] > 3 * reference[6], "covering fills the gap between the peaks")

# %% [markdown]
# **Seeking** picks the larger peak and forgets the other. **Covering** lies over both, and spends
# much of its probability in the gap, on answers that the reference hardly ever gives.
#
# ## 4. From samples: k1
#
# Nobody can sum over all responses of a language model. But the formula is an average over what the
# policy says, so it can be estimated from samples. For one sampled token, or response, $y$
#
# $$k_1 = \log \pi(y) - \log \pi_{ref}(y), \qquad \mathbb{E}_{y \sim \pi}[k_1]
# = \mathrm{KL}(\pi \Vert \pi_{ref})$$
#
# k1 is right on average, but one number may be negative. Its relatives k2 and k3 (Schulman 2020,
# ["Approximating KL Divergence"](http://joschu.net/blog/kl-approx.html)) never are.
# [07_grpo](07_grpo.ipynb) uses k3, and [08_kl_estimators](08_kl_estimators.ipynb) measures which of them
# is right where. On this page k1 is enough.

# %%
words = torch.multinomial(pi, 10_000, True, generator=torch.Generator().manual_seed(0))
samples = pi.log()[words] - ref.log()[words]  # k1 of every sample

print("k1 of the first ten samples", [round(v, 2) for v in samples[:10].tolist()])
print(f"mean of 10,000 samples {samples.mean():.3f}, exact {kl:.3f}")
holds(abs(samples.mean() - kl) < 4 * samples.std() / 100, "the mean of k1 is the KL")

# %% [markdown]
# ## 5. Per response or per token?
#
# A response is many tokens. Its log-probability is a sum over tokens, and so is its k1. This gives
# two scales for the same thing: the sum, in **nats per response**, and the mean, in **nats per
# token**. Three responses of 4, 2 and 1 tokens:

# %%
mask = torch.arange(4) < torch.tensor([4, 2, 1])[:, None]  # (3, 4)
log_probs = torch.tensor([[-1.0, -0.5, -2.0, -0.2], [-0.3, -0.4, 9, 9], [-0.1, 9, 9, 9]])
ref_log_probs = torch.tensor([[-1.2, -1.0, -1.9, -0.4], [-0.5, -0.9, 9, 9], [-0.4, 9, 9, 9]])

k1_t = torch.where(mask, log_probs - ref_log_probs, 0.0)  # (N, T)
per_response = k1_t.sum(1).mean()
per_token = k1_t.sum() / mask.sum()

print(k1_t)
print(f"{per_response:.4f} nats per response, {per_token:.4f} nats per token")
torch.testing.assert_close(per_response, masked_sum(k1(log_probs, ref_log_probs), mask).mean())
torch.testing.assert_close(per_token, token_mean(k1(log_probs, ref_log_probs), mask))
torch.testing.assert_close(per_response / per_token, mask.sum() / 3)  # the mean length

# %% [markdown]
# > **Predict.** A run's curve shows "KL 0.1", its responses have 60 tokens on average, and the curve
# > is in nats per token. The paper you follow stops at "KL 10", in nats per response. Who has gone
# > further?
#
# (0.1 per token is 6 per response, so the paper has gone further. A coefficient that was tuned on one
# scale is wrong on the other, by a factor of the length.)
#
# ### Where does a trained policy differ? In colour
#
# The course keeps two small models: a **base**, pre-trained, and a **policy**, which is the base after
# 80 steps of GRPO ([07_grpo](07_grpo.ipynb)). The policy writes, both score. Blue tokens are those
# that the policy says more often than the base; orange ones it says *less* often, and still drew.

# %%
trained, tokenizer = policy()
before, _ = base()
asked = [tokenizer.encode(record.prompt) for record in reviews.prompts("validation")[:64]]
params = SamplingParams(max_new_tokens=64)
written = generate(
    trained, asked, params, torch.Generator().manual_seed(0), eos_id=tokenizer.eos_id
)
batch = join_responses(asked, written.response_tokens, written.response_mask, written.has_eos)
with torch.no_grad():
    here, there = token_log_probs(trained, batch), token_log_probs(before, batch)  # (64, T)
    exact = full_kl(trained, before, batch)  # (64, T), over the whole vocabulary

drift = k1(here, there)
print(f"{masked_sum(drift, batch.response_mask).mean():.2f} nats per response, ", end="")
print(f"{token_mean(drift, batch.response_mask):.3f} nats per token, ", end="")
print(f"{batch.lengths.float().mean():.1f} tokens on average")
print(
    f"with the whole vocabulary: {masked_sum(exact, batch.response_mask).mean():.2f} per response"
)
apart = masked_sum(drift - exact, batch.response_mask)  # response by response
print(f"difference {apart.mean():.2f}, standard error {apart.std() / 64**0.5:.2f}")

# %%
texts = [
    ["<EOS>" if i == tokenizer.eos_id else tokenizer.decode([i]) for i in row[:length].tolist()]
    for row, length in zip(batch.response_tokens[:4], batch.lengths[:4].tolist(), strict=True)
]
prompts = [record.prompt for record in reviews.prompts("validation")[:4]]
show_tokens(texts, {"k1 of the token": drift[:4], "KL at this place": exact[:4]}, prompts=prompts)

# %% [markdown]
# Most tokens are white: grammar has not changed, and names were copied before. The drift is in a few
# choices: to greet politely, to judge kindly, to close with "I hope this helps". The button "KL at this
# place" sums over the whole vocabulary, so it does not depend on which token was drawn, and it is never
# negative. Both numbers per response above estimate the same divergence. Their difference is about two
# standard errors. Chance alone makes it as large in one seed of twenty.
#
# ## 6. In the reward or in the loss?
#
# InstructGPT (Ouyang et al. 2022, [arXiv:2203.02155](https://arxiv.org/abs/2203.02155), Eq. 2)
# subtracts the distance from the reward, with a coefficient $\beta$:
#
# $$R(y) - \beta \log \frac{\pi(y)}{\pi_{ref}(y)} = R(y) - \beta \sum_t k_{1,t}$$
#
# Token by token: each pays for its own step away from the reference, and the last one also gets the
# score of the response. Naively:

# %%
scores = torch.tensor([1.0, 0.0, 0.5])
beta = 0.1

rewards = -beta * k1_t  # (3, 4)
last = mask.sum(1) - 1
rewards[torch.arange(3), last] += scores

print(rewards)
print("per response", rewards.sum(1))
torch.testing.assert_close(
    rewards, token_level_rewards(scores, log_probs, ref_log_probs, mask, beta)
)
plots.code(token_level_rewards, ("kl_t = ", "return -kl_coef"))

# %% [markdown]
# Why k1, and why in the reward? Page 04's gradient works on any reward, and k1 is treated like one,
# as a number without a gradient. On average this gives exactly the gradient of $J - \beta \,
# \mathrm{KL}$. On the three words of page 04, as a sum:

# %%
REF = torch.tensor([0.2, 0.3, 0.5]).log()  # great, fine, awful
NOW = torch.tensor([0.5, 0.3, 0.2]).log()
R = torch.tensor([3.0, 2.0, 1.0])


def objective(logits, beta):
    return logits.softmax(-1) @ R - beta * kl_from_logits(logits, REF)


logits = NOW.clone().requires_grad_()
wanted = torch.autograd.grad(objective(logits, 0.5), logits)[0]

numbers = R - 0.5 * (NOW - REF)  # reward minus beta k1, for each word
estimates = numbers[:, None] * (torch.eye(3) - NOW.softmax(-1))  # R grad log pi, as on page 04
print("gradient of J - beta KL   ", wanted)
print("average of (R - beta k1) grad log pi", NOW.softmax(-1) @ estimates)
torch.testing.assert_close(NOW.softmax(-1) @ estimates, wanted)

# %% [markdown]
# The other place is the **loss**: add $\beta k$ to the loss of each token and differentiate it. GRPO does
# this, with k3 ([07](07_grpo.ipynb)). It is not the same algorithm
# ([08](08_kl_estimators.ipynb) computes the gradients):
#
# | | in the reward: PPO, RLOO | in the loss: GRPO |
# | --- | --- | --- |
# | form | k1, a number without a gradient | k3 or k2, differentiated |
# | gradient | that of the KL, at a first update | each token's KL (k2), its forward KL (k3), none (k1) |
# | credit | a token pays for its own step and for all that follow | a token pays for its own step |
# | whitening | scaled together with the reward | not scaled |
# | unit of $\beta$ | reward per nat | standard deviations of the group's rewards per nat |
# | critic | must predict the KL to come, too | does not see it |
#
# (Whitening and the critic belong to pages [10](10_rloo_and_reinforce_plus_plus.ipynb) and
# [09](09_ppo.ipynb): pass over these two rows for now.) **Credit**, for the first response above, with k1
# in both places so that the amounts can be compared. In the reward the first token pays for 0.8 nats, the
# sum of all four; in the loss for its own 0.2:

# %%
to_come = k1_t[0].flip(0).cumsum(0).flip(0)
print("k1 of each token             ", k1_t[0])
print("in the reward, a token pays  ", beta * to_come)
print("in a loss, it pays           ", beta * k1_t[0])
holds(abs(to_come[0] - 0.8) < 1e-6, "in the reward the first token pays for 0.8 nats")

# %% [markdown]
# **Whitening and the unit of $\beta$.** Algorithms divide advantages by their standard deviation.
#
# > **Predict, then run.** All rewards become ten times as large, and $\beta$ stays 0.1. Where does the
# > leash get longer: in the reward, in the loss, or in both?

# %%
prices = {}
for scale in (1, 10):
    deviation = (scale * scores).std()  # of 1, 0 and 0.5: 0.5
    prices[scale] = beta / deviation
    print(
        f"rewards x {scale:2}: one nat costs {prices[scale]:.2f} deviations in the reward, ", end=""
    )
    print(f"{beta:.2f} in the loss")
holds(prices[1] > 9 * prices[10], "in the reward a nat is ten times cheaper")

# %% [markdown]
# In the reward the penalty is measured in points: if points get larger, one nat gets cheaper. In the
# loss it is added to advantages that are divided already, and nothing changes. (This leaves out
# that the penalty in the reward changes the deviation a little.)
#
# **Why is $\beta$ 0.04 in the paper, 0.4 in [nano/rlhf.py](../nano/rlhf.py) and 0.1 in the engine?** All
# three are GRPO's, k3 in the loss. Take three answers of one token each, with the advantages $A$ = -1, 0
# and 1, equally likely under the reference. With $A$ held fixed, the pull of k3 balances the push at $\pi /
# \pi_{ref} = \beta / (c - A)$, where $c$ normalises the probabilities. At that point the odds of best to
# average answer have grown by this factor:

# %%
ADVANTAGES = torch.tensor([-1.0, 0.0, 1.0])
odds = {}
for value, where in ((0.4, "nano/rlhf.py"), (0.1, "rl.grpo_engine"), (0.04, "GRPO's paper")):
    low, high = 1.0, 1.0 + value  # the sum of the probabilities falls with c
    for _ in range(50):
        c = (low + high) / 2
        total = float((value / (c - ADVANTAGES) / 3).sum())
        low, high = (c, high) if total > 1 else (low, c)
    odds[value] = c / (c - 1)
    print(f"beta {value:4}, {where:14}: {odds[value]:3.0f} times the odds")
holds(5 < odds[0.4] < 10 < odds[0.1] < 50 < odds[0.04], "a smaller beta lets the odds grow further")

# %% [markdown]
# A real run renormalises the advantages in every new group, so it keeps pushing past this point. How far it
# gets depends on the learning rate ($10^{-6}$ in the paper) and the number of steps. So a
# $\beta$ can be copied only together with these, with its place and with the unit of the reward. The
# number to compare is the KL at the end.
#
# ## 7. Where does the leash lead?
#
# Reward minus $\beta$ KL has a best policy that can be written down. It is the reference, with every
# answer reweighted by its reward:
#
# $$\pi^*(y) = \frac{\pi_{ref}(y) \, e^{R(y) / \beta}}{\sum_u \pi_{ref}(u) \, e^{R(u) / \beta}}$$
#
# Training with k1 in the *reward* ends there, if the network can be this policy and the samples are fresh
# (with k2 in the loss, too, where an answer is a single token; with k3 in the reward it does not:
# [08](08_kl_estimators.ipynb), section 3). **It is not where GRPO ends**: k3 in the loss leads to
# $\pi_{ref} \, \beta / (c - A)$ of section 6 while the advantages $A$ are held fixed, and further on
# because GRPO normalises them anew.
#
# The line comes back in [14_dpo_and_pg_grpo](14_dpo_and_pg_grpo.ipynb): DPO turns it round (Rafailov
# et al. 2023, [arXiv:2305.18290](https://arxiv.org/abs/2305.18290), Eq. 4).
#
# > **Predict, then run.** What is $\pi^*$ for a very large $\beta$? For a very small one?

# %%
best = {}
for beta in (10.0, 1.0, 0.3):
    closed_form = (REF + R / beta).softmax(-1)
    theta = REF.clone()
    for _ in range(2000):  # climb the objective itself
        theta.requires_grad_()
        theta = (
            theta + torch.autograd.grad(objective(theta, beta), theta)[0] / (1 + beta)
        ).detach()
    torch.testing.assert_close(theta.softmax(-1), closed_form, atol=1e-3, rtol=0)
    best[f"beta = {beta:g}"] = closed_form
    nats = kl_from_logits(closed_form.log(), REF)
    print(f"beta {beta:4}: {closed_form}  reward {closed_form @ R:.2f}, KL {nats:.2f} nats")

# %% tags=["hide-input"]
axis = plots.bars(
    {"reference": REF.softmax(-1), **best},
    ["great (3)", "fine (2)", "awful (1)"],
    axis=plots.panels(1, width=9)[1],
    numbers=".2f",
    xlabel="word (its reward)",
    ylabel="probability",
    ylim=(0, 1.1),
    title="A longer leash (smaller beta): more reward, fewer words",
)

# %%
plots.explorable("leash")

# %% [markdown]
# A large $\beta$ keeps the reference. A small one leaves little but the best word. $\beta$ is an
# exchange rate: how much reward one nat must bring. So it depends on the unit of the reward. A reward
# that is ten times as large, with the same $\beta$, acts like a $\beta$ ten times smaller.
#
# ## Where this lives
#
# - estimators and coefficients that steer themselves: [rl/equations/kl.py](../rl/equations/kl.py)
# - k1 in the reward: [rl/equations/token_rewards.py](../rl/equations/token_rewards.py), used by PPO,
#   RLOO and REINFORCE++
# - the sum over the vocabulary, `full_kl`: [gpt/log_probs.py](../gpt/log_probs.py)
# - in the log of every run: the metric `kl`, in nats per response
#   ([docs/metrics.md](../docs/metrics.md))
#
# ## Exercises
#
# **1. The divergence, in the right direction.** Words that $p$ never says must cost nothing.


# %%
def my_kl(p, q):
    """p, q: probabilities (V,), q above 0 -> KL(p || q) in nats, a number."""
    ...  # your code


check("kl_divergence", my_kl)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_kl(p, q):
#     says = p > 0
#     return (p[says] * (p[says].log() - q[says].log())).sum()
# ```
#
# </details>
#
# **2. The same leash in another code.** A paper's code subtracts, from the reward of an answer, its
# coefficient times the *mean* of k1 over the answer's tokens. Yours divides the rewards by a number first
# and subtracts $\beta$ times the *sum*. Which $\beta$ holds your policy as theirs is held? (No solution
# is printed.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("same_leash", MINE)

# %%
check_answer("same_leash", ..., MINE)

# %% [markdown]
# **3. k1 in the reward.**


# %%
def my_token_rewards(scores, log_probs, ref_log_probs, mask, kl_coef):
    """scores (N,), the others (N, T) -> rewards per token (N, T), 0 at padding."""
    ...  # your code


check("kl_in_reward", my_token_rewards)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_token_rewards(scores, log_probs, ref_log_probs, mask, kl_coef):
#     rewards = torch.where(mask, -kl_coef * (log_probs - ref_log_probs), 0.0)
#     rewards[torch.arange(len(scores)), mask.sum(1) - 1] += scores
#     return rewards
# ```
#
# </details>
#
# **To think about.** A code base divides the penalty of each response by its length, "so that long
# responses are not punished". What will the policy learn about length?
#
# <details>
# <summary>Answer</summary>
#
# A response of length $L$ pays $1/L$ of the price. Drifting gets cheaper the longer the response is,
# so the policy can buy any drift by writing more. The divergence between whole responses, which the
# formula means, is a sum.
#
# </details>
#
# ## To remember
#
# - The reverse KL averages over what the policy says: saying what the reference never says costs without
#   bound, dropping an answer costs little.
# - Keeping the best share $s$ of all answers costs $\log(1/s)$ nats, so a few nats buy much selection.
# - $\beta$ is an exchange rate, so it can be copied only with its place and the unit of the reward;
#   between runs compare the KL that they reach.
#
# Next: [06_reward_model](06_reward_model.ipynb). So far somebody handed us the rewards. Where do
# they come from when only people know what is good?
