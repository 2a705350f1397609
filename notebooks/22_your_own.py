# %% [markdown]
# # 22. Your own
#
# **The question.** All these objectives: how different are they really? And how do you find out
# whether one of your own is better?
#
# **After this page you can** compare objectives by the angles of their gradients, test an advantage, a
# reward and an engine of your own against GRPO, and write a report that somebody else can check.
#
# The way of this page: all objectives side by side (1), the angles between their gradients (2), an
# advantage, a reward and an engine of your own (3), three open experiments (4), and an exam on the whole
# course (5).
#
# **You need** [07](07_grpo.ipynb), [09](09_ppo.ipynb) and [11](11_grpo_family.ipynb).
#
# **It takes** about twenty seconds, after start-up.

# %%
import itertools

import torch
from course import plots
from course.claims import holds

try:
    from rl.equations import advantages as adv
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

from harness.tensors import masked_sum
from rl import grpo_engine, rloo_engine
from rl.equations import losses
from rl.equations.preference_losses import dpo_loss
from rl.equations.token_rewards import at_last_token

plots.use()
torch.set_num_threads(1)

# %% [markdown]
# ## 1. All objectives in one notation
#
# *What are we comparing? Do not learn this table by heart. Find one row that you know, then read its
# neighbours and look for what differs.*
#
# It is also [docs/cheat_sheet.md](../docs/cheat_sheet.md), and its symbols are explained in
# [docs/glossary.md](../docs/glossary.md#symbols).

# %%
plots.document("cheat_sheet")

# %% [markdown]
# ## 2. One rollout, every gradient
#
# *Two formulas may look alike and push in different directions, or the other way round. So this section
# compares the pushes.*
#
# We take a policy whose answers can be listed, as on [page 04](04_policy_gradients_and_baselines.ipynb).
# There are two letters, and an EOS ends an answer of at most three tokens. That makes 15 answers, which
# begin in 7 different ways (the *prefixes*). The policy has 3 logits for each prefix, for each of **two
# prompts**. So 42 numbers are the whole policy, and a gradient has 42 numbers too.

# %%
EOS, T, G, PROMPTS = 0, 3, 8, 2
prefixes = [p for n in range(T) for p in itertools.product((1, 2), repeat=n)]
listed = [(*p, EOS) for p in prefixes] + list(itertools.product((1, 2), repeat=T))
tokens = torch.tensor([[*r, *[EOS] * (T - len(r))] for r in listed])  # (15, 3)
mask = torch.arange(T) < torch.tensor([len(r) for r in listed])[:, None]  # (15, 3)
states = torch.tensor(
    [[prefixes.index(r[:t]) if t < len(r) else 0 for t in range(T)] for r in listed]
)
theta = 0.7 * torch.randn(PROMPTS, 7, 3, generator=torch.Generator().manual_seed(0))
fair = torch.tensor([0.5 * r.count(2) - 0.3 * r.count(1) + (EOS in r) for r in listed])
REWARDS = torch.stack([fair, 3 + 0.4 * fair])  # (2, 15): the second prompt is easier, and flatter


def log_probs_of(theta, prompt, answer):
    """Log-probabilities (N, 3) of the tokens of listed answers to prompts, both (N,)."""
    rows = theta.log_softmax(-1)[prompt[:, None], states[answer]]  # (N, 3, 3)
    return rows.gather(-1, tokens[answer][..., None]).squeeze(-1)


# %% [markdown]
# The expected reward is a sum of 15 terms for each prompt, so its gradient needs no sample. This exact
# gradient is what all engines try to follow:
#
# $$\nabla J = \nabla \, \mathrm{mean}_x \sum_y \pi(y \mid x) R(x, y)$$

# %%
ALL = torch.arange(15).repeat(PROMPTS)  # every answer to every prompt
WHOSE = torch.arange(PROMPTS).repeat_interleave(15)


def gradient(objective, at=theta):
    """The gradient of objective(theta) as 42 numbers."""
    leaf = at.clone().requires_grad_()
    return torch.autograd.grad(objective(leaf), leaf)[0].flatten()


def probabilities(theta):
    """(2, 15): of each answer to each prompt."""
    return masked_sum(log_probs_of(theta, WHOSE, ALL), mask[ALL]).exp().view(PROMPTS, 15)


exact = gradient(lambda z: (probabilities(z) * REWARDS).sum() / PROMPTS)
assert torch.allclose(probabilities(theta).sum(1), torch.ones(PROMPTS))


def angle(a, b):
    """Degrees between two gradients."""
    return float(torch.rad2deg(torch.arccos(torch.cosine_similarity(a, b, 0).clamp(-1, 1))))


# %% [markdown]
# An engine does not know that sum. It sees one rollout, here $G = 8$ answers to each prompt. All engines
# but DPO differ here in two choices: the advantage, and the average over tokens. Here are both, one line
# each, with the library's functions. (PPO gets a perfect critic, because with 15 answers the value of a
# prefix is a sum as well.)


# %%
def critic(prompt, answer):
    """The exact value V (N, 3) of the state before each token of listed answers."""
    p = probabilities(theta).detach()[prompt]  # (N, 15)
    columns = []
    for t in range(T):  # of all answers that begin like this one
        same = (tokens[answer][:, None, :t] == tokens[None, :, :t]).all(-1) & mask[:, t]
        weight = p * same
        columns.append((weight * REWARDS[prompt]).sum(1) / weight.sum(1).clamp(min=1e-9))
    return torch.stack(columns, 1)


def advantages_of(rewards, values, m):
    """{name: advantages} of one rollout: rewards (N,), values and mask (N, T)."""
    token_rewards = at_last_token(rewards, m)
    return {
        "reward": rewards[:, None],
        "others": adv.leave_one_out_advantages(rewards, G),
        "group": adv.group_advantages(rewards, G),
        "centred": adv.group_advantages(rewards, G, scale="none"),
        "batch": adv.whiten(adv.discounted_returns(token_rewards, m, 1.0), m),
        "gae": adv.whiten(adv.gae(token_rewards, values, m, 1.0, 0.95)[0], m),
    }


# %%
def best_and_worst(lp, old, rewards, m):
    """DPO's loss on the best and the worst answer of each group."""
    groups, first = rewards.view(-1, G), torch.arange(0, len(rewards), G)
    won, lost = first + groups.argmax(1), first + groups.argmin(1)
    new, ref = masked_sum(lp, m), masked_sum(old, m)
    return dpo_loss(new[won], new[lost], ref[won], ref[lost], 0.1).mean()


def clip(lp, old, A, high=0.2):
    """The clipped surrogate of PPO."""
    return losses.clipped_surrogate(lp, old, A, 0.2, high)


# %%
by_answer, by_token, summed = losses.sequence_mean, losses.token_mean, losses.sequence_sum
gspo, cispo, log_pi = losses.gspo, losses.cispo, losses.policy_gradient
LOSSES = {  # of log_probs, old_log_probs, {name: advantages} and the mask
    "REINFORCE": lambda lp, old, A, m: summed(log_pi(lp, A["reward"]), m),
    "RLOO": lambda lp, old, A, m: summed(log_pi(lp, A["others"]), m),
    "REINFORCE++": lambda lp, old, A, m: by_answer(clip(lp, old, A["batch"]), m),
    "PPO": lambda lp, old, A, m: by_token(clip(lp, old, A["gae"]), m),
    "GRPO": lambda lp, old, A, m: by_answer(clip(lp, old, A["group"]), m),
    "DAPO": lambda lp, old, A, m: by_token(clip(lp, old, A["group"], 0.28), m),
    "Dr. GRPO": lambda lp, old, A, m: losses.constant_length_mean(
        clip(lp, old, A["centred"]), m, T
    ),
    "GSPO": lambda lp, old, A, m: by_answer(gspo(lp, old, A["group"], m, 3e-4, 4e-4), m),
    "CISPO": lambda lp, old, A, m: by_token(cispo(lp, old, A["group"], 0.2), m),
    "SAPO": lambda lp, old, A, m: by_answer(losses.sapo(lp, old, A["group"]), m),
    "single model": lambda lp, old, A, m: by_answer(clip(lp, lp.detach(), A["group"]), m),
    "PG-GRPO": lambda lp, old, A, m: (
        LOSSES["GRPO"](lp, old, A, m) + 0.1 * LOSSES["DPO"](lp, old, A, m)
    ),
    "DPO": lambda lp, old, A, m: best_and_worst(lp, old, A["reward"][:, 0], m),
}


# %%
def gradients(seed, at=theta, chosen=LOSSES):
    """{engine: its gradient at `at`} on one rollout, which `theta` has sampled."""
    generator = torch.Generator().manual_seed(seed)
    answer = torch.multinomial(probabilities(theta), G, replacement=True, generator=generator).view(
        -1
    )
    prompt = torch.arange(PROMPTS).repeat_interleave(G)
    m, old = mask[answer], log_probs_of(theta, prompt, answer)
    A = advantages_of(REWARDS[prompt, answer], critic(prompt, answer), m)
    return {
        name: -gradient(lambda z, f=loss: f(log_probs_of(z, prompt, answer), old, A, m), at)
        for name, loss in chosen.items()
    }


one = gradients(seed=1)
order = [*LOSSES, "exact"]
short = [name.replace("REINFORCE", "RF").replace(" model", "\nmodel") for name in order]
table = torch.tensor(
    [[angle(a, b) for b in [*one.values(), exact]] for a in [*one.values(), exact]]
)
axis = plots.panels(1, height=6, width=9.5)[1]
plots.heat(
    table, order, short, axis=axis, numbers=".0f",
    title="angles between the gradients of one rollout, degrees",
)  # fmt: skip
axis.tick_params(axis="x", rotation=40)

# %% [markdown]
# (RF is short for REINFORCE.) How to read the table:
#
# - **The last column** is the angle to the truth. On this rollout of 16 answers every engine is at least 30
#   degrees away from it. REINFORCE and REINFORCE++ are nearly at a right angle to it.
# - **A zero** says that two engines push alike. There are three such families, because before the first
#   update every ratio is 1 and no clip acts: only the advantage and the average are left.
#
# | they push alike | because |
# | --- | --- |
# | RLOO, Dr. GRPO | a mean with or without the answer itself differs by a constant factor only |
# | GRPO, GSPO, SAPO, the single model | same advantage, same average; they differ in ratio and clip |
# | DAPO, CISPO | the same, with one mean over all tokens |
#
# - **A small angle** is PG-GRPO's to GRPO, because it adds DPO's gradient with a weight of only 0.1.
#
# An angle to the truth can have two causes. It may be noise, which more answers would reduce. Or an engine
# may point elsewhere even on average, which is bias. **Predict:** which of the two is it, for which engine?
# Average 120 rollouts and see.

# %%
SEEDS = 120
runs = [gradients(seed) for seed in range(SEEDS)]
single = {name: sum(angle(run[name], exact) for run in runs) / SEEDS for name in LOSSES}
average = {name: angle(sum(run[name] for run in runs), exact) for name in LOSSES}
plots.bars(
    {"one rollout (mean of 120)": list(single.values()), "mean gradient of 120": list(average.values())},
    short[:-1], axis=plots.panels(1, width=10)[1], numbers=".0f",
    styles={"one rollout (mean of 120)": "reference", "mean gradient of 120": "policy"},
    ylabel="degrees to the exact gradient", ylim=(0, 90),
)  # fmt: skip
holds(
    average["RLOO"] < 10 and single["RLOO"] < single["REINFORCE"],
    "RLOO points along the exact gradient on average",
)
holds(
    all(average[name] > 15 for name in ("GRPO", "DAPO", "GSPO", "CISPO"))
    and average["Dr. GRPO"] < 10,
    "of GRPO's family only Dr. GRPO points along the exact gradient",
)

# %% [markdown]
# The grey bars are noise and bias together. The blue ones are mostly bias.
#
# **RLOO, Dr. GRPO and PPO point along the exact gradient** on average. So would REINFORCE, but it has so
# much noise that 120 rollouts leave 20 degrees.
#
# **All of GRPO's family but Dr. GRPO divide by the group's deviation.** The rewards of the second prompt
# differ little, so its deviation is small, and after the division it weighs as much as the first prompt.
# That turns the direction by between 20 and 30 degrees. (Of GRPO's 29 degrees the deviation alone makes 25,
# and the mean over an answer's tokens alone 8.) DPO turns it by about as much, and nearly half of that for
# the same reason: a pair of the second prompt pulls as hard as one of the first. If each pair is weighed by
# its gap in reward, 14 degrees are left.
#
# **REINFORCE++ is the surprise.** It takes three steps to see why:
#
# 1. Its baseline is the mean of the batch. So here nearly every answer to the easy prompt has a positive
#    advantage, and nearly every answer to the hard one has a negative one. To a good part the advantage is
#    a constant of the prompt.
# 2. In a *sum* over an answer's tokens a constant cancels, because $\mathbb{E} [\nabla \log \pi(y)] = 0$.
# 3. In a *mean* it does not cancel, because every answer's gradient is multiplied by $1 / L$. Then the
#    constant rewards short or long answers.
#
# If that is right, the same advantage with a sum must point nearly along the truth. The next cell tries it:

# %%
mixed = {"mean over an answer's tokens": by_answer, "sum over an answer's tokens": summed}
forms = {
    name: lambda lp, old, A, m, reduce=reducer: reduce(clip(lp, old, A["batch"]), m)
    for name, reducer in mixed.items()
}
runs = [gradients(seed, chosen=forms) for seed in range(SEEDS)]
turned = {name: angle(sum(run[name] for run in runs), exact) for name in forms}
for name, degrees in turned.items():
    print(f"REINFORCE++ with the {name}: {degrees:.0f} degrees on average")
of_mean, of_sum = turned.values()
holds(of_mean > 2 * of_sum, "the mean over tokens turns REINFORCE++, the sum does not")

# %% [markdown]
# (REINFORCE++-baseline subtracts each prompt's own mean first, which removes that constant:
# [page 10](10_rloo_and_reinforce_plus_plus.ipynb), section 7.)
#
# None of this says which engine learns best. A biased direction with little noise can win.
#
# ## 3. Homework: an advantage of your own
#
# *Now it is your turn: first an advantage, then a reward, an engine, and a fair comparison.*
#
# Enumerate before you train, because an angle takes a second and a run takes minutes. Here is an advantage
# that no engine has. The group's *median* is the baseline, so that one lucky answer does not make all the
# others bad. (Of eight numbers `torch.median` takes the fourth.) Change it to an idea of yours.
#
# **Predict:** does the median keep the direction of the exact gradient, as the mean does?


# %%
def my_advantages(rewards, group_size):
    """(N,) rewards -> (N, 1) advantages; groups are neighbours."""
    groups = rewards.view(-1, group_size)
    return (groups - groups.median(1, keepdim=True).values).view(-1, 1)


def mine(lp, old, A, m):
    """RLOO's loss with `my_advantages`."""
    return summed(log_pi(lp, my_advantages(A["reward"][:, 0], G)), m)


forms = {"my advantage": mine, "RLOO": LOSSES["RLOO"]}
runs = [gradients(seed, chosen=forms) for seed in range(SEEDS)]
for name in forms:
    one_by_one = sum(angle(run[name], exact) for run in runs) / SEEDS
    average[name] = angle(sum(run[name] for run in runs), exact)
    print(f"{name}: {one_by_one:.0f} degrees on one rollout, {average[name]:.0f} on average")
holds(average["my advantage"] < 12, "120 rollouts do not show that the median turns it")

# %% [markdown]
# Is that lucky? A baseline may depend on the *other* answers without a bias. But both the mean and the
# median of the group depend on the answer itself, too. For the mean that is harmless, because it shrinks
# every advantage by the same factor $(G - 1) / G$. For the median it depends on where the answer stands,
# so it is a bias. Here 120 rollouts are too few to see it.
#
# **Then a reward.** One function of a text is enough, and one flag:
#
# ```
# python -m rl.grpo_engine --data sums --reward my_rewards.py:right
# ```
#
# **Then an engine.** It is one file, in any folder. This is all that RLOO changes in GRPO's loop:

# %%
plots.difference(
    plots.source(grpo_engine.train, ("rollout = ", "run.finish_step"), docstring=False),
    plots.source(rloo_engine.train, ("rollout = ", "run.finish_step"), docstring=False),
    names=("rl/grpo_engine.py", "rl/rloo_engine.py"), context=1,
)  # fmt: skip

# %% [markdown]
# [docs/extending.md](../docs/extending.md) has a whole engine in fewer than 50 lines, and the reward above.
# Copy the engine to `my_engine.py`, put your advantage into it, and check your loss with
# [the kit](../conformance/README.md). Flags, the report, `--resume` and the doctor work at once.
#
# **Which learning rate?** Adam moves every weight by about the learning rate, whatever the gradient's
# size. An output that adds up $D$ inputs can then move by up to $D$ times that. So wider models need
# smaller rates:
#
# | weights | rate |
# | --- | --- |
# | our 0.9 million | a few $10^{-4}$ |
# | the 135 million of page [25](25_steering_a_published_model.ipynb) | $2 \cdot 10^{-5}$ |
# | the 7 billion of GRPO's paper | $10^{-6}$ |
#
# Try three rates for ten steps, and take the largest whose KL grows steadily.
#
# **Then a comparison.** One run proves nothing, because two seeds of one engine can differ as much as two
# engines do. So take the same starts, the same prompts and three seeds, and look at the *paired* difference
# with its interval:
#
# ```
# python -m gpt.pretraining --data sums          # once: the base model of that world
# python scripts/compare.py my_engine.py rl.grpo_engine --seeds 3 -- --data sums --steps 60
# ```
#
# If the interval of the difference contains 0, you have not seen a difference. More seeds make it
# narrower: its width falls with the square root of their number.
#
# ## 4. Three open experiments
#
# Nobody has solved these here. Each fits a laptop and an evening.
#
# 1. **A baseline that remembers.** The mean of a prompt's rewards in earlier epochs could replace
#    the group, so that one answer per prompt is enough. How old may the memory be before it hurts?
# 2. **When to stop without gold.** [Page 13](13_when_the_proxy_breaks.ipynb), section 4, shows the gold
#    reward turn while the learned one still rises. Find a number that needs no gold (KL, the spread of an
#    ensemble, length, your own) and that finds the step of the turn to within 10. Choose it on some seeds,
#    test it on others.
# 3. **The KL in the reward or in the loss?** At the same distance from the reference, the two may end at
#    different rewards. Compare them at equal KL, not at equal $\beta$.
#
# **A good report** has eight parts:
#
# 1. the question, and your guess from before the run,
# 2. one change,
# 3. what was held equal (tokens, KL or time: say which),
# 4. the command and the seeds,
# 5. a table with intervals,
# 6. a figure with every seed,
# 7. what failed,
# 8. and what would change your mind.
#
# Seeds on which you chose a setting are not its test.
#
# <details>
# <summary>A report to grade against: the median of section 3</summary>
#
# **Question:** does the median keep the direction? **Guess before the run:** no, it depends on the answer
# itself. **One change:** the median for the mean of the others; loss, rollouts and $G$ equal. **Command:**
# `gradients(seed, chosen=forms)`, seeds 0 to 1,999.
#
# | degrees to the exact gradient | one rollout | mean gradient of 200 (ten blocks) | of 2,000 |
# | --- | --- | --- | --- |
# | median | 43.8 | 4.4 | 2.6 |
# | RLOO | 43.9 | 3.5 | 0.9 |
#
# Block by block the median is 0.9 ± 0.4 degrees further off (95%). **So** it is biased, and no less
# noisy. **Failed:** a bootstrap of the angle; near 0 resampled angles are all larger than the measured
# one. **Would change my mind:** rare high rewards, where a median should be steadier. **Not shown:**
# that a run learns worse.
#
# </details>
#
# **Before you start, choose a beta.** Suppose that under the reference the reward of an answer is
# distributed normally, with mean 0 and deviation 1. Page [05](05_what_a_kl_is.ipynb), section 7, has the
# best policy for reward minus $\beta$ KL. Which $\beta$ lets it go exactly as many nats as the table
# says? Work it out, or list many answers and search. (Under that best policy the reward is normal again,
# with the same deviation and the mean $1 / \beta$.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("beta_for_some_nats", MINE)

# %%
check_answer("beta_for_some_nats", ..., MINE)

# %% [markdown]
# **And read a comparison.** The table has the rewards of your engine and of GRPO's at the end, from the
# same three starts. How wide is the 95% interval of the difference, from its middle to one end? (It is
# Student's 97.5% point times the standard error $s / \sqrt n$ of the paired differences. With two degrees
# of freedom that point is 4.303: [page 21](21_which_would_you_have_believed.ipynb), section 1.) Then say
# whether you have seen a difference.

# %%
table("half_width", MINE)

# %%
check_answer("half_width", ..., MINE)

# %% [markdown]
# ## 5. Exam
#
# Fourteen questions. Answer on paper, with a number or a sketch, then look. Each question is followed by
# the page and section that answer it.
#
# 1. Why are the old log-probabilities stored, when the policy could compute them again?
#    [04](04_policy_gradients_and_baselines.ipynb), section 9
# 2. k1, k2, k3: which one as a value, which one in the reward, which one in the loss, and why?
#    [08](08_kl_estimators.ipynb), sections 1 and 2
# 3. Does the mask of a response include the EOS? What goes wrong otherwise?
#    [02](02_tokens_padding_masks.ipynb), sections 3 and 4
# 4. Prompts are padded on the left. What do position numbers and the attention mask have to do?
#    [02](02_tokens_padding_masks.ipynb), section 2
# 5. All answers of a group earn the same. What does GRPO learn from it? [07](07_grpo.ipynb), section 1
# 6. What is the critic's target, when is it made, and why does it stay fixed over the epochs?
#    [09](09_ppo.ipynb), section 6
# 7. The KL in the reward or in the loss: what changes in the gradient, and in $\beta$'s scale?
#    [05](05_what_a_kl_is.ipynb), section 6
# 8. Why does a learned reward break, and how does one notice without gold?
#    [13](13_when_the_proxy_breaks.ipynb), sections 4, 5 and 7
# 9. When is the product of token ratios right, and what does a ratio per token get wrong?
#    [04](04_policy_gradients_and_baselines.ipynb), section 12
# 10. Mean over an answer, over all tokens, or a constant: which one makes wrong answers grow?
#     [26](26_what_a_loss_is_divided_by.ipynb), section 1, and [11](11_grpo_family.ipynb), section 2
# 11. What must the loss of a micro-batch, or of a rank, be divided by?
#     [26](26_what_a_loss_is_divided_by.ipynb), sections 2 and 4
# 12. Before the first update: which quantities are exactly 1, and which exactly 0?
#     [07](07_grpo.ipynb), section 4
# 13. A sampler uses top-p. Why are the policy's own probabilities then wrong for what it draws?
#     [02](02_tokens_padding_masks.ipynb), section 6
# 14. Why is dropout off, in sampling *and* in training? [17](17_bug_zoo.ipynb), section 1
#
# Twelve right: you can read the papers. Fourteen: find an error in this course and tell us.
#
# ## 6. What to read next
#
# [docs/papers.md](../docs/papers.md) has every paper that this project uses. Three to begin with:
# Stiennon et al. 2020 ([arXiv:2009.01325](https://arxiv.org/abs/2009.01325)), Huang et al. 2024 on the
# details of PPO ([arXiv:2403.17031](https://arxiv.org/abs/2403.17031)), DeepSeek-R1
# ([arXiv:2501.12948](https://arxiv.org/abs/2501.12948)).
#
# ## To remember
#
# - Enumerate before you train: an angle takes a second, a run takes minutes.
# - Of two engines compare pairs of runs with the same starts, and believe the interval of their
#   difference.
# - One change, a guess from before the run, and every seed in the figure.
#
# Next: your own question. The map of all pages is [00_start_here](00_start_here.ipynb).
