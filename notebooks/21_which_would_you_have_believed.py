# %% [markdown]
# # 21. Which of these would you have believed?
#
# **The question.** A paper says that its method needs a tenth of the samples, that two answers suffice,
# that even random rewards work. What would you have to see in order to believe it?
#
# **After this page you can** write down a rule before a run, say from several seeds whether it held,
# correct ten tests for luck, and tell "not seen" from "undecided".
#
# **Why.** Ten claims of 2025 and 2026 were turned into experiments of minutes. Each had its rule written
# down before the first run, and a control whose answer is known to be no. You guess, then you see, and
# one of the ten you run yourself, with all cases listed.
#
# **You need** [07_grpo](07_grpo.ipynb) for the groups and
# [04_policy_gradients_and_baselines](04_policy_gradients_and_baselines.ipynb) for the clip.
#
# **It takes** about ten seconds on one CPU core, after start-up.

# %%
from itertools import combinations_with_replacement
from math import factorial, sqrt

import torch

try:
    from course import plots, ten_claims
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.claims import holds
from course.entered import check_answer, table

from report.intervals import holm, t_interval, t_tails
from rl.equations.advantages import group_advantages
from rl.equations.losses import clipped_surrogate

plots.use()
torch.set_num_threads(1)

# %% [markdown]
# ## 1. A rule, before the runs
#
# "Groups of two are as good as groups of sixteen" cannot be tested: no two numbers are ever equal. This
# can: *from as many answers, a run with groups of two ends at most 0.05 of accuracy below one with groups
# of sixteen*. The rule has an **effect** for every seed, here the accuracy with groups of two less that
# with groups of sixteen, and a line that the mean effect has to clear, **the least that counts**: here $m =
# -0.05$, so that a loss of less than 0.05 still counts as "as good". Take six seeds:

# %%
effects = torch.tensor([-0.01, 0.03, -0.04, 0.00, 0.02, -0.03])
m, n = -0.05, len(effects)

# %% [markdown]
# The mean of $n$ seeds lies this many of its own standard errors above $m$:
#
# $$ t = \frac{\bar x - m}{s / \sqrt n} $$
#
# and Student's distribution says how often chance alone would bring it as far.

# %%
t = (effects.mean() - m) / (effects.std() / sqrt(n))
p = t_tails(float(t), n - 1)
print(f"mean {effects.mean():+.3f}, t = {t:.2f}, p = {p:.4f}")
assert abs(p - t_interval((effects - m).tolist())["p"]) < 1e-6
assert abs(float(t) - 4.02) < 0.01

# %% [markdown]
# So this claim **held here**: the mean is significantly above $m$. Significantly below, it is **not seen
# here**. Anything else is **undecided here**, which is also a result: it says that the seeds were
# too few, or the effect too near to the line.
#
# ## 2. Ten claims at once
#
# **Guess first.** Suppose that all ten claims were empty, every effect exactly on its line, and the ten
# experiments independent. How often would at least one of ten tests come out significant, at p < 0.05?

# %%
chance = [1 - 0.95**k for k in range(1, 11)]
print(f"one test {chance[0]:.0%}, ten tests {chance[9]:.0%}")

# %% [markdown]
# Four times in ten. Holm's correction brings that back to 5% at most, whether they are independent or not:
# the smallest of ten p-values is multiplied by ten, the next by nine, and so on, and no result may be
# smaller than the one before it.


# %%
def holm_by_hand(p_values):
    order = sorted(p_values, key=p_values.get)
    corrected, largest = {}, 0.0
    for i, name in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - i) * p_values[name]))
        corrected[name] = largest
    return corrected


found = ten_claims.p_values()
assert holm_by_hand(found) == holm(found)
plots.table(
    ["claim", "p alone", "p of ten"],
    [
        [name, f"{found[name]:.2g}", f"{holm(found)[name]:.2g}"]
        for name in sorted(found, key=found.get)
    ],
)

# %% [markdown]
# ## 3. Your guesses
#
# The world: three-digit sums, checked exactly, and policies of 144,128 weights, which
# start with a habit of guessing and a talent for worked steps. Here are the claims. Write
# `held here`, `not seen here` or `undecided here` for each, before you read on; the cell
# starts with `held here` for all.

# %%
GUESS = {
    "razor": "held here",  # at equal accuracy RL moves a policy less than fine-tuning does
    "aha": "held here",  # what RL gains comes from worked steps in pre-training
    "sigmoid": "held here",  # reward over compute is a sigmoid that can be extrapolated
    "maxrl": "held here",  # maximum-likelihood RL keeps pass@k
    "entropy": "held here",  # reward and entropy follow one law, R = -a exp(H) + b
    "two_answers": "held here",  # groups of two are as good as groups of sixteen
    "random_rewards": "held here",  # coins for rewards sharpen a policy, because of the clip
    "lora": "held here",  # adapters of rank 1 learn as much as all weights
    "distillation": "held here",  # from a teacher, a seventh of RL's samples suffice
    "length_bias": "held here",  # without a division by its length a wrong answer does not grow
}
assert set(GUESS) == set(ten_claims.names())

# %% [markdown]
# Each reveal below shows the runs, the verdict and your guess. The thin lines and dots are single seeds.
#
# ### What RL does to a policy
#
# **Razor** ([arXiv:2509.04259](https://arxiv.org/abs/2509.04259)). GRPO and fine-tuning climb to the same
# accuracy from the same start. Which of them ends further away? **Aha**: starts that have seen worked
# steps in 0 to 30% of their texts. Does RL find the steps by itself?

# %%
ten_claims.reveal(GUESS, "razor", "aha")

# %% [markdown]
# **Entropy** ([arXiv:2505.22617](https://arxiv.org/abs/2505.22617)): a policy trades
# entropy for reward, and one curve says how much. **MaxRL** ([arXiv:2602.02710](https://arxiv.org/abs/2602.02710)):
# dividing by the mean of the group instead of its deviation keeps what many tries can find.

# %%
ten_claims.reveal(GUESS, "entropy", "maxrl")

# %% [markdown]
# ### What it costs
#
# **Sigmoid** ([arXiv:2510.13786](https://arxiv.org/abs/2510.13786)): a third of a run shows where
# the rest will go. **Distillation** ([arXiv:2306.13649](https://arxiv.org/abs/2306.13649)): the
# policy that GRPO has trained teaches the start that it came from, token by token. How many
# answers does that take?

# %%
ten_claims.reveal(GUESS, "sigmoid", "distillation")

# %% [markdown]
# **Two answers** ([arXiv:2510.00977](https://arxiv.org/abs/2510.00977)): as many answers a step, in more
# groups. **LoRA** ([arXiv:2106.09685](https://arxiv.org/abs/2106.09685)) of rank 1: 2,048
# weights are trained instead of 144,128.

# %%
ten_claims.reveal(GUESS, "two_answers", "lora")

# %% [markdown]
# ### What the loss does behind your back
#
# **Length bias** ([arXiv:2503.20783](https://arxiv.org/abs/2503.20783)): [page 11](11_grpo_family.ipynb)
# shows it where length is free. Here a worked answer is long, and right more often. **Random rewards**
# ([arXiv:2506.10947](https://arxiv.org/abs/2506.10947)): a coin for every answer, and several updates a
# batch.

# %%
ten_claims.reveal(GUESS, "length_bias", "random_rewards")

# %%
ten_claims.score(GUESS)

# %% [markdown]
# ## 4. One of them, with all cases listed
#
# A policy of three answers, with probabilities 0.7, 0.2 and 0.1, draws a group of eight. Each gets a coin
# as its reward. There are only 1,287 different batches, so the expected result of training on one of them
# is a sum.

# %%
START = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
KINDS = torch.tensor(list(combinations_with_replacement(range(6), 8)))  # (1287, 8): answer + 3 coin
ANSWERS, COINS = KINDS % 3, (KINDS // 3).double()
counts = torch.nn.functional.one_hot(KINDS, 6).sum(1)  # (1287, 6)
ways = [factorial(8) / torch.tensor([factorial(c) for c in row]).prod() for row in counts.tolist()]
CHANCE = torch.stack(ways).double() * START.div(2).repeat(2).pow(counts).prod(1)
ADVANTAGES = group_advantages(COINS.flatten(), 8).view(-1, 8)
assert abs(CHANCE.sum() - 1) < 1e-6

# %% [markdown]
# Every batch trains a policy of its own, several passes with the loss of the engine:
#
# $$ L = - \min \big( r A, \; \mathrm{clip}(r, 1 - \epsilon, 1 + \epsilon) \, A \big), \; r = \pi / \pi_o $$

# %%
plots.code(clipped_surrogate, docstring=False)


# %%
def expected_policy(epsilon, passes, rate=0.3, start=START, ratio=True):
    """The mean over all batches of the policy after each pass, (passes + 1, 3)."""
    theta = start.log().repeat(len(KINDS), 1)  # (1287, 3)
    old, curve = start.log()[ANSWERS], [start]
    for _ in range(passes):
        leaf = theta.clone().requires_grad_()
        log_probs = leaf.log_softmax(-1).gather(1, ANSWERS)
        of_ratio = clipped_surrogate(log_probs, old, ADVANTAGES, epsilon, epsilon)
        loss = (of_ratio if ratio else -ADVANTAGES * log_probs).sum() / 8
        theta = theta - rate * torch.autograd.grad(loss, leaf)[0]
        curve.append(CHANCE @ theta.softmax(-1))
    return torch.stack(curve)


# %% [markdown]
# **Predict, then run.** Coins know nothing. After sixteen passes over one batch, is the answer with 0.7
# likelier, less likely, or on average as likely as before? And with the clip?

# %% tags=["hide-input"]
free, clipped = expected_policy(1e9, 16), expected_policy(0.2, 16)
plain = expected_policy(1e9, 16, ratio=False)  # - A log pi: no ratio at all
runs = {"no clip": free, "no ratio": plain, "clip at 0.2": clipped}
plots.curves(
    {name: curve[:, 0].tolist() for name, curve in runs.items()},
    range(17),
    styles={"no clip": "bad", "no ratio": "reference", "clip at 0.2": "policy"},
    xlabel="passes over one batch",
    ylabel="probability of the answer with 0.7",
)
print(", ".join(f"{name} {curve[-1, 0]:.3f}" for name, curve in runs.items()))
holds(abs(free[1, 0] - 0.7) < 0.001, "one pass changes nothing, up to second order")

# %% [markdown]
# - **The first pass does nothing on average**: all ratios are 1, and a coin is as often up as down.
# - **Later passes without a clip take from the likely answer**, for two reasons. A rare answer that was
#   lucky doubles its ratio and is pushed twice as hard; one that was unlucky is pushed less and less. Luck
#   grows, bad luck shrinks, and only rare answers can double. And without any ratio the likely answer would
#   still fall, to 0.65: above one half, softmax takes more for a push down than it gives for one up.
# - **The clip stops that**, so compared with training without a clip it does favour what was
#   likely. But it gives nothing: the likely answer ends near 0.7, and not above.
#
# So "the clip amplifies what the start prefers" is true of the difference between two runs, and not, in
# this small world, of the policy against its start. So ask of such a claim which of the two was
# measured.

# %%
holds(free[-1, 0] < 0.62, "without a clip coins take from the likely answer")
holds(0.64 < plain[-1, 0] < 0.66, "without any ratio they take about half as much")
holds(0.68 < clipped[-1, 0] < 0.7, "with the clip the likely answer ends near 0.7, and not above")

# %% [markdown]
# **What would happen if** the likely answer had 0.95? Or two had 0.5 each? Call `expected_policy` with
# another `start`, after you have set `START` and run its cell again.
#
# ## Exercise
#
# **Which claims stand?** Five claims were tested at once, and this is what came out for each alone. Which
# of them stand at 5% after Holm's correction (section 2)? (No solution is printed.)

# %%
MINE = 0  # your number, at a university the last digits of your student number
table("which_claims_stand", MINE)

# %%
check_answer("which_claims_stand", ..., MINE)

# %% [markdown]
# ## Yours
#
# `python -m studies claims two_answers --again` runs one claim with new seeds, in minutes. All ten, with
# every number, their rules and what they cannot say: [docs/claims.md](../docs/claims.md). A claim of your
# own is one file beside the others in `studies/claims`.
#
# ## To remember
#
# - State the effect, the least that counts and the control before the first run.
# - Of ten empty claims at least one looks significant in about four cases of ten, until the tests are
#   corrected.
# - *Undecided here* is a result: the seeds were too few, or the effect lies too near to the line.
#
# Next: [22_your_own](22_your_own.ipynb). Now find out something that nobody has told you.
