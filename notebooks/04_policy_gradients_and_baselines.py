# %% [markdown]
# # 4. Policy gradients from three words
#
# **After this page you can** derive the policy gradient in three lines, choose a baseline and prove that
# it is allowed, say what the ratio and the clip are for, and say what a ratio per token gets wrong.
#
# **Why.** A model writes an answer, and somebody says how good it was: one number. There is no
# right answer to imitate. How do you turn this number into a gradient?
#
# This page builds the answer with a model that knows three words. REINFORCE, RLOO, GRPO and PPO are
# all made of its steps. Sources: Williams 1992 (REINFORCE),
# [arXiv:2402.14740](https://arxiv.org/abs/2402.14740) (baselines),
# [arXiv:1707.06347](https://arxiv.org/abs/1707.06347) (ratio and clip).
#
# **You need** PyTorch's `softmax` and `autograd`, and log-probabilities from
# [02_tokens_padding_masks](02_tokens_padding_masks.ipynb). No reinforcement learning.
#
# **It takes** about five seconds on one CPU core, after start-up.

# %%
import itertools

import torch

try:
    from course import plots
    from course.claims import holds
    from course.exercises import check

    from rl.equations import advantages as library
    from rl.equations.losses import clipped_surrogate, policy_gradient, sequence_sum
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
torch.set_default_dtype(torch.float64)  # "exact" below means: to 1e-12
torch.set_printoptions(precision=4, sci_mode=False, linewidth=100)

# %% [markdown]
# ## 1. Three words
#
# *A policy so small that nothing has to be estimated.*
#
# A **policy** $\pi$ is a model that chooses: it gives every word a probability, and a word is
# drawn. Ours has three words and three parameters, the logits $\theta$. The **reward** $R$ says how
# good a word was. The learner sees only the reward of the word it said.
#
# What should become large is the **expected reward** $J$, the average over many draws:
#
# $$J(\theta) = \sum_y \pi_\theta(y) \, R(y)$$

# %%
WORDS = ["great", "fine", "awful"]
START = torch.tensor([0.2, 0.3, 0.5]).log()  # logits (3,); softmax gives back 0.2, 0.3, 0.5
REWARDS = torch.tensor([3.0, 2.0, 1.0])


def expected_reward(logits):
    return logits.softmax(-1) @ REWARDS


pi = START.softmax(-1)
J = float(expected_reward(START))
logits = START.clone().requires_grad_()
TRUE = torch.autograd.grad(expected_reward(logits), logits)[0]  # the "true gradient"

print("J =", " + ".join(f"{p:.1f} * {r:g}" for p, r in zip(pi, REWARDS)), f"= {J:.1f}")
for word, slope, by_hand in zip(WORDS, TRUE, pi * (REWARDS - J), strict=True):
    print(f"{word:6} gradient {slope:+.2f} = pi (R - J) = {by_hand:+.2f}")
torch.testing.assert_close(TRUE, pi * (REWARDS - J))

# %% [markdown]
# The gradient of a sum needs no trick. All estimates below are compared with this **true gradient**. Words
# that are better than the average 1.7 go up, the others go down. The three numbers add up to 0, because a
# number that is added to all three logits changes no probability, and so not $J$.
#
# Change any number on this page and run all of it again, other rewards for example. Where the text is
# then no longer right, a line says so.
#
# ## 2. A gradient that can be sampled, in three lines
#
# *Nobody can sum over all answers of a language model, so the sum becomes an average of a few.*
#
# A language model can give more answers than there are atoms, so nobody can compute this sum. But
# an *average* can be estimated from a few draws, so we write the gradient as an average over $\pi$:
#
# $$\begin{split}
# \nabla J &= \sum_y R(y) \, \nabla \pi(y) \\
# &= \sum_y \pi(y) \, R(y) \, \nabla \log \pi(y) \qquad \mathrm{because} \quad
# \nabla \log \pi = \nabla \pi / \pi \\
# &= \mathbb{E}_{y \sim \pi} \left[ R(y) \, \nabla \log \pi(y) \right]
# \end{split}$$
#
# The second line is the whole idea, $\nabla \pi = \pi \, \nabla \log \pi$. It puts a $\pi(y)$ back in
# front, and "sum over all words, weighted with $\pi$" means "average over words that the policy says".
# Line by line, in code:

# %%
jacobian = torch.autograd.functional.jacobian
grad_pi = jacobian(lambda z: z.softmax(-1), START)  # (word, logit)
grad_log_pi = jacobian(lambda z: z.log_softmax(-1), START)
draws = torch.multinomial(pi, 100_000, True, generator=torch.Generator().manual_seed(0))

line_1 = REWARDS @ grad_pi
line_2 = (pi * REWARDS) @ grad_log_pi
line_3 = (REWARDS[draws, None] * grad_log_pi[draws]).mean(0)  # nobody asked for pi here
print(line_1, line_2, line_3, sep="\n")
torch.testing.assert_close(line_1, TRUE)
torch.testing.assert_close(line_2, TRUE)
close = (line_3 - TRUE).norm() < 0.05 * TRUE.norm()
holds(close, "100,000 draws come close to the true gradient")

# %% [markdown]
# **Why not differentiate through the reward model?** It is a network, so its score has a gradient for
# what it reads. But it reads *drawn* words, and a draw has no derivative: a logit that rises a little
# changes how probable a word is, and not the word. (One can draw softly instead, with the Gumbel-softmax,
# [arXiv:1611.01144](https://arxiv.org/abs/1611.01144). The reward model then reads mixtures of words,
# which it has never seen.) The policy gradient needs nothing but the reward's value, so a person or a
# rule may give it.
#
# ## 3. REINFORCE by hand
#
# *One term of that average, with pencil and paper.*
#
# For a softmax, the gradient of a log-probability is short: **one-hot minus probabilities**,
# $\partial \log \pi(y) / \partial \theta_k = [k = y] - \pi_k$. It raises the logit of the word that
# was said and lowers all the others. REINFORCE (Williams 1992) multiplies this by the reward.
#
# > **Predict, then run.** The policy says "awful" and gets 1 point, the worst reward there is. Does
# > this sample make "awful" likelier or less likely?

# %%
one_hot = torch.eye(3)
pushes = REWARDS[:, None] * (one_hot - pi)  # row y: what the sample y does to the logits
torch.testing.assert_close(one_hot - pi, grad_log_pi)

for word, p, push in zip(WORDS, pi, pushes, strict=True):
    print(f'drew "{word}" (p = {p:.1f}): push', push)
print("average, weighted with p:      ", pi @ pushes)
torch.testing.assert_close(pi @ pushes, TRUE)

# %% [markdown]
# Every word that is drawn goes **up**, "awful" included, since all rewards are positive. Only the
# average is right: "awful" loses more when the others are drawn than it gains when it is drawn
# itself. Keep this picture in mind: it is the reason for sections 5 to 7.

# %% tags=["hide-input"]
figure, axes = plots.panels(4, height=2.4, width=11)
titles = [f'drew "{word}"' for word in WORDS] + ["average = true gradient"]
for axis, push, title in zip(axes, [*pushes, TRUE], titles, strict=True):
    kind = "exact" if title.startswith("average") else "policy"
    plots.bars(dict(zip(WORDS, push, strict=True)), axis=axis, styles=dict.fromkeys(WORDS, kind))
    axis.axhline(0, color="black", lw=0.8)
    axis.set(title=title, ylim=(-1.8, 2.6), xlabel="word", ylabel="push on its logit")
    axis.label_outer()

# %% [markdown]
# In a program nobody multiplies Jacobians. One writes a **loss** whose gradient is the estimate
# with a minus (optimizers go downhill), and calls `backward`. Naively, in two lines:

# %%
logits = START.clone().requires_grad_()
said = torch.tensor([2, 0, 2, 1])  # a batch of four words: awful, great, awful, fine

log_probs = logits.log_softmax(-1)[said]  # (4,)
naive_loss = -(REWARDS[said] * log_probs).mean()
naive_loss.backward()
print("minus the gradient", -logits.grad, "\nmean of the pushes", pushes[said].mean(0))
torch.testing.assert_close(-logits.grad, pushes[said].mean(0))

# %% [markdown]
# The library writes the same loss per token, with an **advantage** $A$ where the reward stood (the
# next sections say why). Its tensors have the shape (N, T): N responses of T tokens; here T = 1. A
# reducer such as `sequence_sum` adds up the tokens and averages over responses.

# %%
plots.code(policy_gradient, docstring=False)
library_loss = sequence_sum(
    policy_gradient(log_probs[:, None], REWARDS[said, None]), torch.ones(4, 1, dtype=torch.bool)
)
torch.testing.assert_close(library_loss, naive_loss)

# %% [markdown]
# ## 4. Learning
#
# *Many such steps in a row.*
#
# The loop: draw, look at the rewards, step, draw again. The samples come from the policy that is
# being changed. This is called **on-policy**.
#
# As it learns, the policy makes up its mind. Its **entropy** says how undecided it is: $H = -\sum_y
# \pi(y) \log \pi(y)$, from $\log 3 = 1.10$ (all words equal) down to 0 (always the same word). Once
# the entropy is 0 there is nothing left to compare, and learning stops.


# %%
def learn(advantage, rewards, steps=150, rate=0.3, seed=0):
    """REINFORCE with four words a step: J and the entropy at each step, (steps, 2)."""
    generator, theta, curve = torch.Generator().manual_seed(seed), START.clone(), []
    for _ in range(steps):
        theta.requires_grad_()
        probabilities = theta.detach().softmax(-1)
        words = torch.multinomial(probabilities, 4, True, generator=generator)
        loss = -(advantage(rewards[words]) * theta.log_softmax(-1)[words]).mean()
        theta = (theta - rate * torch.autograd.grad(loss, theta)[0]).detach()
        entropy = -(probabilities * probabilities.log()).sum()
        curve.append([probabilities @ REWARDS, entropy])
    return torch.tensor(curve)


# (runs, steps, 2)
plain = torch.stack([learn(lambda r: r, REWARDS, seed=seed) for seed in range(20)])

# %% tags=["hide-input"]
figure, axes = plots.panels(2, height=2.4)
for axis, column, name in zip(axes, (0, 1), ("expected reward J", "entropy (nats)"), strict=True):
    axis.plot(plain[:, :, column].T, color=plots.COLOURS["policy"], ls="-", lw=0.8, alpha=0.5)
    plots.labels(axis, "step", name, "20 runs of REINFORCE")
best = WORDS[int(REWARDS.argmax())]
axes[0].axhline(float(REWARDS.max()), color="black", ls=":", label=f'always "{best}"')
axes[0].legend(loc="lower right")
holds((plain[:, -1, 0] > REWARDS.max() - 0.2).all(), "all 20 runs find the best word")
holds(plain[:, 0, 1].mean() > 1 > 0.3 > plain[:, -1, 1].mean(), "the entropy falls towards 0")

# %% [markdown]
# All 20 runs find the best word. Each takes its own path: the direction is right on average, but
# noisy.
#
# > **First exit.** You can now read a whole program: [REINFORCE](../nano/reinforce.py) in one short file.
# > Stay to see how its noise is tamed.
#
# ## 5. Noise
#
# *The steps are right on average. How far off is a single one?*
#
# > **Predict, then run.** Add 10 to all three rewards. What happens to the true gradient, to the push
# > of a single sample, to the 20 runs?


# %%
def mean_and_noise(advantages):
    """Of the estimate from one word, exactly: its average, and its scatter (true gradient = 1)."""
    estimates = advantages[:, None] * (one_hot - pi)  # (3 words, 3 logits)
    mean = pi @ estimates
    variance = pi @ (estimates - mean).square().sum(1)
    return mean, float(variance.sqrt() / TRUE.norm())


for offset in (0.0, 10.0, -2.0):
    mean, noise = mean_and_noise(REWARDS + offset)
    average = ", ".join(f"{x:+.2f}" for x in mean)
    print(f"rewards {(REWARDS + offset).tolist()!s:18} average {average}   noise {noise:5.2f}")
    torch.testing.assert_close(mean, TRUE)

# %%
shifted = torch.stack([learn(lambda r: r, REWARDS + 10, seed=seed) for seed in range(20)])
stuck = shifted[:, -1, 0] < REWARDS.max() - 0.5
higher = ", ".join(f"{r:g}" for r in REWARDS + 10)
print(f"rewards {higher}: {int(stuck.sum())} of 20 runs say a worse word after 150 steps")
holds(5 <= stuck.sum() <= 15, "after 150 steps about half of the runs say a worse word")

# %% [markdown]
# The offset does not change the true gradient at all, but it changes the noise: with +10 the
# scatter of one sample is 21 times as long as the gradient. Whatever is drawn first has a reward of
# 11 points or more, and after 150 steps half of the runs say a worse word, which only a rare draw can
# change. With -2 the scatter is the smallest of the three. The zero of a reward means nothing, but a bad
# choice makes REINFORCE noisy, so choose it well.
#
# ## 6. The baseline
#
# *The noise has a cheap cure.*
#
# Subtract a number $b$ from every reward. $A = R - b$ is called the **advantage**: how much better
# than expected. Why is this allowed? Because on average the subtracted part does nothing:
#
# $$\mathbb{E}_{y \sim \pi}[b \, \nabla \log \pi(y)] = b \sum_y \pi(y) \, \frac{\nabla \pi(y)}{\pi(y)}
# = b \, \nabla \sum_y \pi(y) = b \, \nabla 1 = 0$$
#
# In the second step $b$ was taken out of the sum. This needs a $b$ that is **the same for every
# word that could have been said**. It may depend on the prompt, on earlier words, on other samples.
# It must not depend on the word that it judges.

# %% tags=["hide-input"]
levels = torch.linspace(-2, 5, 141)
noises = [mean_and_noise(REWARDS - b)[1] for b in levels]
axis = plots.panels(1, height=2.4)[1]
axis.plot(levels, noises, **plots.line("policy"))
for b, name in ((0.0, "no baseline"), (J, "b = E[R]")):
    place = (b, mean_and_noise(REWARDS - b)[1])
    axis.plot(*place, "o", color="black")
    axis.annotate(name, place, (4, 14), textcoords="offset points")
axis.set_ylim(0, None)
plots.labels(axis, "baseline b", "noise", "Same average for every b, less scatter near E[R]")
less = mean_and_noise(REWARDS - J)[1] < mean_and_noise(REWARDS)[1] / 3
holds(less, "the baseline E[R] takes two thirds of the noise away")

# %% [markdown]
# **Which baseline is the best?** Not quite $\mathbb{E}[R]$. A word's push is $(R - b) \, \nabla \log
# \pi$, and its scatter is smallest where $\mathbb{E}[(R - b)^2 \, |\nabla \log \pi|^2]$ is. Set the
# derivative for $b$ to 0:
#
# $$b^* = \frac{\mathbb{E} \left[ R \, |\nabla \log \pi|^2 \right]}
# {\mathbb{E} \left[ |\nabla \log \pi|^2 \right]}$$
#
# That is a mean of the rewards, too, but each word counts with the squared length of its gradient,
# because a long gradient scatters more.

# %%
length_squared = (one_hot - pi).square().sum(1)  # of each word's gradient
best = float((pi * length_squared) @ REWARDS / (pi @ length_squared))
for name, b in (("no baseline", 0.0), ("E[R]", J), ("the best one", best)):
    print(f"{name:12} b = {b:.2f}, noise {mean_and_noise(REWARDS - b)[1]:.3f}")
lowest = float(levels[torch.tensor(noises).argmin()])
holds(abs(lowest - best) < 0.05, "the formula finds the lowest point of the curve")

# %% [markdown]
# It takes an eighth of the noise of $\mathbb{E}[R]$ away here, and it needs the length of the gradient of
# every single answer. That is expensive for a language model, so critics and groups estimate
# $\mathbb{E}[R]$. (Some approximate $b^*$: OPO, [arXiv:2505.23585](https://arxiv.org/abs/2505.23585),
# lets an answer count by its number of tokens. Greensmith et al. 2004, *Variance reduction techniques for
# gradient estimates*, have the formula for states and actions.)

# %%
plots.explorable("policy_gradient")

# %% [markdown]
# **What if the baseline contains the action?** Then $b$ cannot be taken out of the sum, and the
# average is another gradient, without any error message:

# %%
letters = torch.tensor([float(len(word)) for word in WORDS])  # 5, 4, 5
wrong = {"R itself": REWARDS, "half of R": REWARDS / 2, "the word's length": letters}
print("true gradient                 ", TRUE)
for name, b in wrong.items():
    print(f"baseline: {name:20}", mean_and_noise(REWARDS - b)[0])
torch.testing.assert_close(mean_and_noise(REWARDS - REWARDS / 2)[0], TRUE / 2)

# %% [markdown]
# The first learns nothing. The second learns half as fast, in the right direction. The third adds
# the gradient of "say shorter words" to the goal.
#
# ## 7. A baseline from the other samples
#
# *The cure needs a number that nobody knows, but the other answers can stand in for it.*
#
# Nobody knows $\mathbb{E}[R]$. But if the policy answers the same prompt $G$ times, a **group**, the
# rewards of the group can stand in for it. Two ways to do it:
#
# - the **group mean**, as in GRPO. It contains $R_i$ itself, with weight $1/G$;
# - **leave-one-out**: the mean of the *others*, as in RLOO (Kool et al. 2019; Ahmadian et al. 2024,
#   [arXiv:2402.14740](https://arxiv.org/abs/2402.14740), section 2.3). It does not contain $R_i$.
#
# $$A_i = R_i - \frac{1}{G - 1} \sum_{j \ne i} R_j = \frac{G}{G - 1}
# \left( R_i - \mathrm{mean}(R_{1..G}) \right)$$

# %%
R = torch.tensor([1.0, 2.0, 3.0, 6.0])  # one group of G = 4

others = (R.sum() - R) / (len(R) - 1)  # the mean of the others, for each row
leave_one_out = R - others
print("the others' mean    ", others, "\nleave-one-out       ", leave_one_out)
print("minus the group mean", R - R.mean(), " = 3/4 of that")
torch.testing.assert_close(leave_one_out, library.leave_one_out_advantages(R, 4)[:, 0])
torch.testing.assert_close(R - R.mean(), library.group_advantages(R, 4, scale="none")[:, 0])
plots.code(library.leave_one_out_advantages, docstring=False)

# %% [markdown]
# By the rule of section 6 the group mean should be wrong, and leave-one-out should be right. There
# are $3^4 = 81$ groups of four words, each with a known probability. So we can compute, without a
# random number, what each choice of advantage does **on average** and **how much it scatters**.
# GRPO's **z-score** takes part, too: reward minus group mean, divided by the group's standard
# deviation.

# %%
GROUPS = torch.tensor(list(itertools.product(range(3), repeat=4)))  # (81, 4)
CHANCE = pi[GROUPS].prod(1)  # (81,)
rewards = REWARDS[GROUPS]  # (81, 4)
flat = rewards.flatten()  # groups of four in a row
advantages = {
    "REINFORCE": rewards,
    "constant E[R]": rewards - J,
    "leave-one-out (RLOO)": library.leave_one_out_advantages(flat, 4).view(81, 4),
    "group mean": library.group_advantages(flat, 4, scale="none").view(81, 4),
    "group z-score (GRPO)": library.group_advantages(flat, 4).view(81, 4),
}
results = {}
for name, A in advantages.items():
    g = (A[..., None] * (one_hot - pi)[GROUPS]).mean(1)  # (81, 3), one estimate per group
    mean = CHANCE @ g
    scale = mean @ TRUE / TRUE.square().sum()  # how far along the true gradient
    bias = (mean / scale - TRUE).norm() / TRUE.norm()
    noise = (CHANCE @ (g - mean).square().sum(1)).sqrt() / scale / TRUE.norm()
    results[name] = [float(scale), float(bias), float(noise)]
rows = [[name, *(f"{x:.3f}" for x in numbers)] for name, numbers in results.items()]
plots.table(["advantage", "scale", "bias", "noise"], rows)

# %%
biases = {name: bias for name, (_, bias, _) in results.items()}
z_score = biases.pop("group z-score (GRPO)")
holds(max(biases.values()) < 1e-9, "only the z-score is biased")
holds(abs(results["group mean"][0] - 3 / 4) < 1e-9, "the group mean goes 3/4 of the way")
holds(z_score > 1e-3, "the z-score is biased, in direction as well")
enough = (results["group z-score (GRPO)"][2] / z_score) ** 2
print(f"its noise is as small as its bias with {enough:.0f} groups in a batch")

# %% [markdown]
# (Each estimate is divided by its scale first. Bias and noise are then multiples of the length of the true
# gradient.) Three things to notice:
#
# - The **group mean** goes exactly $1 - 1/G = 3/4$ of the way: it subtracts a quarter of $R_i$ from
#   the response that earned it. The direction is untouched, so it is only a smaller learning rate.
#   (This matters if the loss has a second term that does not shrink, such as page 05's KL.)
# - The **z-score** divides by a number that depends on the very rewards it divides, so it is biased, in
#   direction as well. But its bias is much smaller than the noise of a group. It shows only in large
#   batches, where the noise averages out and the bias stays: here from about 41 groups on the bias is the
#   larger of the two.
# - The unbiased ones differ, apart from that factor, in noise and *only* there. A baseline matters more
#   than the finer points.
#
# And what does the baseline do to learning? Here are the rewards 13, 12, 11 again, and the same
# 20 seeds:

# %%
helped = torch.stack(
    [learn(lambda r: (r - r.mean()) * 4 / 3, REWARDS + 10, seed=seed) for seed in range(20)]
)
figure, axes = plots.panels(2, height=2.4)
panels = (("no baseline", shifted, "bad"), ("leave-one-out", helped, "policy"))
for axis, (name, runs, colour) in zip(axes, panels, strict=True):
    axis.plot(runs[:, :, 0].T, color=plots.COLOURS[colour], ls="-", lw=0.8, alpha=0.6)
    plots.labels(axis, "step", "J (without the 10)", f"{name}, 20 runs")
    axis.set_ylim(float(REWARDS.min()), float(REWARDS.max()) + 0.1)
print(f"mean J at the end: {shifted[:, -1, 0].mean():.2f} and {helped[:, -1, 0].mean():.2f}")
holds((helped[:, -1, 0] > REWARDS.max() - 0.2).all(), "with the baseline all runs learn")

# %% [markdown]
# > **Second exit.** This is all that [RLOO](10_rloo_and_reinforce_plus_plus.ipynb) needs;
# > [GRPO](07_grpo.ipynb) takes the group mean. Stay for answers of several tokens, and for samples that
# > are used more than once.
#
# ## 8. More than one token: who gets the credit?
#
# *So far an answer was one word. Now it is a row of tokens.*
#
# A response is a row of tokens, and its log-probability is the sum of theirs:
# $\log \pi(y) = \sum_t \log \pi(y_t \mid y_{<t})$. So the gradient is a sum over tokens, too. The
# reward comes once, at the end. Which token earned it? This is the question of **credit**.
#
# Say a response of three tokens is paid 1.7 for its first token, 0.5 for the second and 1 for the
# third. There are two ways to share it out, both right on average:
#
# - **the whole response is one action**: every token gets the sum, 3.2;
# - **reward to go**: a token gets what comes *at or after* it. It cannot have influenced rewards paid
#   before it, and by section 6 those may be subtracted like any baseline.

# %%
paid = torch.tensor([[1.7, 0.5, 1.0], [0.2, 2.0, 9.0]])  # two responses (N = 2, T = 3)
mask = torch.tensor([[True, True, True], [True, True, False]])  # the second has two tokens

whole = (paid * mask).sum(1, keepdim=True).expand(2, 3)
to_go = (paid * mask).flip(1).cumsum(1).flip(1) * mask  # sum from the right

print("whole response", whole.tolist(), "\nreward to go  ", to_go.tolist())
torch.testing.assert_close(to_go, library.discounted_returns(paid, mask, 1.0))

# %% [markdown]
# With one reward at the end both are the same. Page [05](05_what_a_kl_is.ipynb) adds rewards before
# the end (a KL penalty per token), and page [09](09_ppo.ipynb) gives a third answer: a critic that
# predicts, at every token, what is still to come.
#
# ## 9. Old samples, and the ratio
#
# *So far each sample was used once. Now it is used again.*
#
# Writing answers with a language model is slow, but a gradient step is fast, so one would like to
# take several steps with the same samples. But after the first step the samples come from an
# earlier policy, $\pi_{old}$. This is called **off-policy**. The correction is a weight, the
# **ratio** $\rho$ (also called the importance weight):
#
# $$\rho(y) = \frac{\pi(y)}{\pi_{old}(y)}, \qquad \mathbb{E}_{y \sim \pi_{old}}[\rho(y) R(y)]
# = \sum_y \pi_{old}(y) \frac{\pi(y)}{\pi_{old}(y)} R(y) = \sum_y \pi(y) R(y) = J$$
#
# A word that the new policy says twice as often counts twice. Back to the three words:

# %%
OLD = START
NEW = torch.tensor([0.4, 0.225, 0.375]).log()  # the policy after some steps
ratio = (NEW - OLD).exp()  # (3,)
A = REWARDS - expected_reward(NEW)
slopes = one_hot - NEW.softmax(-1)  # grad log pi of the *new* policy

true_now = NEW.softmax(-1) @ (A[:, None] * slopes)
without = pi @ (A[:, None] * slopes)
with_ratio = pi @ (ratio[:, None] * A[:, None] * slopes)
print("ratios     ", ratio)
for name, g in (("true", true_now), ("no ratio", without), ("with ratio", with_ratio)):
    print(f"{name:11}", g)
torch.testing.assert_close(with_ratio, true_now)
torch.testing.assert_close(pi @ (ratio * REWARDS), expected_reward(NEW))

# %% [markdown]
# The new policy earns 2.025 on average, so "fine" with its 2 points is now below average and should
# go down. Without the ratio it is still pushed up. With the ratio the average is exact.
#
# As a loss it is `-ratio * A`. Since $\nabla \rho = \rho \nabla \log \pi$, its gradient is
# $-\rho A \nabla \log \pi$, and at $\rho = 1$ that is REINFORCE.
#
# **Store the old log-probs** when a word is drawn. Computed again at every update they would be those of
# $\pi$ itself: the ratio would be 1 for ever, nothing would be corrected, and no clip would act.
#
# ## 10. The clip: four cases
#
# *The ratio has no limit. PPO sets one.*
#
# The average over *all* samples is exact, but the average over the few that we have is not. A
# **rollout** is a batch of sampled answers. Without a limit, many steps on one rollout overfit it.
# PPO's clip ends the push on a word once its ratio has moved by $\varepsilon$ in the direction that
# its advantage asks for ([arXiv:1707.06347](https://arxiv.org/abs/1707.06347), Eq. 7):
#
# $$\mathcal{L} = -\min(\rho A, \; \mathrm{clip}(\rho, 1 - \varepsilon, 1 + \varepsilon) \, A)$$
#
# > **Predict, then run.** Let $\varepsilon = 0.2$: a good word ($A = +1$), a bad word ($A = -1$),
# > each at the ratios 0.5 and 1.5. Which of the four still get a gradient?


# %%
EPSILON = 0.2


def clipped_loss(log_probs, old_log_probs, A, epsilon=EPSILON):
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon)
    return -torch.minimum(ratio * A, clipped * A)


rho = torch.tensor([[0.5], [1.5], [0.5], [1.5]])  # (N = 4, T = 1)
A = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
new, old = rho.log().requires_grad_(), torch.zeros(4, 1)
loss = clipped_loss(new, old, A)
slope = torch.autograd.grad(loss.sum(), new)[0]
torch.testing.assert_close(loss, clipped_surrogate(new, old, A, EPSILON, EPSILON))
expected = torch.tensor([-0.5, 0.0, 0.0, 1.5])
holds(torch.allclose(slope[:, 0], expected), "two of the four cases get a gradient")

first = START.clone().requires_grad_()  # at PPO's first step all ratios are 1
(pi @ clipped_loss(first.log_softmax(-1), START, REWARDS)).backward()
torch.testing.assert_close(-first.grad, TRUE)
plots.code(clipped_surrogate, docstring=False)

# %%
meaning = [
    "good, became rarer: moved the wrong way, pushed back up",
    "good, likelier already: enough",
    "bad, rarer already: enough",
    "bad, became likelier: moved the wrong way, pulled down with full force",
]
cells = zip(A[:, 0], rho[:, 0], slope[:, 0], meaning, strict=True)
rows = [[f"{a:+.0f}", f"{r:.1f}", f"{g + 0.0:+.1f}", text] for a, r, g, text in cells]
plots.table(["A", "ratio", "gradient of the loss", "what happens"], rows)

# %% [markdown]
# (The gradient is that of the *loss* with respect to $\log \pi$, and a step goes against it.) The clip is
# pessimistic: it ignores a gain that was already taken, but never a loss. One `min` does this for both
# signs of $A$. (`clip_low` and `clip_high`: $\varepsilon$ below and above 1.) At the very first step all
# ratios are 1, so PPO's first gradient is that of REINFORCE.

# %%
grid = torch.linspace(0.05, 2.5, 246)[:, None]
figure, (left, right) = plots.panels(2, height=2.4)
for advantage, style in ((1.0, "good"), (-1.0, "bad")):
    new = grid.log().requires_grad_()
    value = clipped_loss(new, torch.zeros_like(grid), advantage)
    gradient = torch.autograd.grad(value.sum(), new)[0]
    left.plot(grid, value.detach(), label=f"A = {advantage:+.0f}", **plots.line(style))
    right.plot(grid, gradient, **plots.line(style))
for axis, name, title in (
    (left, "loss", "the loss"),
    (right, "gradient", "its gradient by log pi"),
):
    axis.axvspan(1 - EPSILON, 1 + EPSILON, color="lightgray", alpha=0.5, lw=0, label="clip range")
    plots.labels(axis, "ratio", name, title)
figure.legend(*left.get_legend_handles_labels(), loc="outside right center")
assert (value.diff(dim=0) >= 0).all()  # for A = -1 the loss never falls as the ratio grows

# %%
plots.explorable("clip")

# %% [markdown]
# ## 11. Many steps on one rollout
#
# *Ratio and clip at work on one rollout.*
#
# Eight words from the old policy, and by bad luck not one of them is "great". We take 60 steps with
# these eight words, in three ways.

# %%
generator = torch.Generator().manual_seed(5)
words = torch.multinomial(pi, 8, True, generator=generator)
advantage = library.leave_one_out_advantages(REWARDS[words], 8)  # (8, 1)
losses = {
    "no ratio": lambda lp, old: -lp * advantage,
    "ratio, no clip": lambda lp, old: clipped_loss(lp, old, advantage, epsilon=1e9),
    "clip": lambda lp, old: clipped_loss(lp, old, advantage),
}
traces = {}
for name, token_loss in losses.items():
    theta, trace = OLD.clone(), [pi]
    for _ in range(60):
        theta.requires_grad_()
        loss = token_loss(theta.log_softmax(-1)[words, None], OLD[words, None]).mean()
        theta = (theta - 0.5 * torch.autograd.grad(loss, theta)[0]).detach()
        trace.append(theta.softmax(-1))
    traces[name] = torch.stack(trace)
print("the rollout:", [WORDS[word] for word in words])

# %%
figure, axes = plots.panels(3, width=11, height=2.4)
for axis, (name, trace) in zip(axes, traces.items(), strict=True):
    plots.curves(dict(zip(WORDS, trace.T, strict=True)), axis=axis, ylim=(0, 1.02),
                styles={"great": "gold", "fine": "policy", "awful": "bad"},
                xlabel="step", ylabel="probability", title=name)  # fmt: skip
    axis.label_outer()
    if axis is not axes[2]:
        axis.get_legend().remove()
gone, kept = traces["ratio, no clip"][-1, 0], traces["clip"][-1, 0]
holds(gone < 0.05 < 0.19 < kept, 'without the clip "great" has all but disappeared')

# %% [markdown]
# Without the clip, "fine" takes nearly everything, with or without the ratio. The best word, which
# happened not to be drawn, has all but disappeared, so later rollouts will hardly ever contain it.
# With the clip the policy moves a little, stops, and waits for fresh samples.
#
# ## 12. The ratio of a token is not the ratio of the answer
#
# *One question was passed over: whose ratio is it, the token's or the answer's?*
#
# Section 9 was about one word. By the chain rule of section 8 the importance weight of an answer is the
# *product* of its tokens' ratios:
#
# $$\frac{\pi(y)}{\pi_{old}(y)} = \prod_t \rho_t, \qquad
# \rho_t = \frac{\pi(y_t \mid y_{<t})}{\pi_{old}(y_t \mid y_{<t})}$$
#
# PPO and GRPO do not multiply. They weigh each token with its ratio $\rho_t$ alone. Two words and two
# tokens make four answers, so we can see what this costs. The old policy says either word half of
# the time. The new one begins with "yes" only at 0.2, but it has learned to go on with "no" after
# it, at 0.8. By hand: the tokens of "yes no" have the ratios 0.4 and 1.6, so the answer is
# $0.4 \cdot 1.6 = 0.64$ times as likely as before. Its second token counts 1.6 times.
#
# > **Predict, then run.** "yes no" is worth 1, "yes yes" 0, and both answers that begin with "no" are
# > worth 0.6. Should the new policy begin with "yes" more often? Which weight gives its true
# > gradient: the product, each token's ratio, or none?

# %%
ANSWERS = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])  # 0 is "yes", 1 is "no"
WORTH = torch.tensor([0.0, 1.0, 0.6, 0.6])  # of each answer
PREFIX = torch.stack([torch.zeros(4, dtype=torch.long), 1 + ANSWERS[:, 0]], 1)  # "", "yes", "no"
OLD_TABLE = torch.full((3, 2), 0.5).log()  # one row of logits for each prefix
NEW_TABLE = torch.tensor([[0.2, 0.8], [0.2, 0.8], [0.5, 0.5]]).log()


def token_log_probs(table):
    """(3, 2) -> (4, 2): log-probability of both tokens of every answer."""
    return table.log_softmax(-1)[PREFIX].gather(-1, ANSWERS[..., None]).squeeze(-1)


def push_on(table, weights):
    """(3, 2): sum over answers and tokens of weight times grad log pi(token)."""
    logits = table.clone().requires_grad_()
    return torch.autograd.grad((weights * token_log_probs(logits)).sum(), logits)[0]


# %%
old, new = token_log_probs(OLD_TABLE), token_log_probs(NEW_TABLE)
ratios = (new - old).exp()  # (4, 2)
sampled = old.sum(1, keepdim=True).exp()  # (4, 1), how often the old policy writes each answer
centred = (WORTH - new.sum(1).exp() @ WORTH)[:, None]  # (4, 1), R minus what the new policy earns
logits = NEW_TABLE.clone().requires_grad_()
true = torch.autograd.grad(token_log_probs(logits).sum(1).exp() @ WORTH, logits)[0]

pushes = {
    "product": push_on(NEW_TABLE, sampled * ratios.prod(1, keepdim=True) * centred),
    "token's ratio": push_on(NEW_TABLE, sampled * ratios * centred),
    "none": push_on(NEW_TABLE, sampled * centred.expand(4, 2)),
}
for name, push in {"true gradient": true, **pushes}.items():
    first, after_yes, _ = push[:, 0].tolist()  # on the logit of "yes"
    print(f'{name:14} "yes" as first token {first:+.3f}, as second after "yes" {after_yes:+.3f}')
torch.testing.assert_close(pushes["product"], true)
biased = pushes["token's ratio"][0, 0] * true[0, 0] < 0
holds(biased, "with token ratios the first token is pushed the wrong way")
factor = pushes["token's ratio"][1, 0] / true[1, 0]
holds(abs(factor - 2.5) < 1e-9, "the second token's push is 2.5 times the right one")

# %% [markdown]
# The product is exact. The token's ratio pushes the first token the wrong way: down by 0.016 instead
# of up by 0.032. It credits "yes" with what the *old* policy wrote after it, and that was worth
# $(0 + 1) / 2 = 0.5$, less than the 0.6 of "no". The new policy earns $0.2 \cdot 0 + 0.8 \cdot 1 = 0.8$
# after "yes". The second token gets the right sign and 2.5 times the right size, because its ratio
# leaves out that "yes" comes first less often now ($0.5 / 0.2 = 2.5$).
#
# Why do PPO and GRPO not take the product, then? Because it is as noisy as it is right. With 100 tokens
# whose ratios are 1.2 or 0.8, equally often, the variance of the product is $1.04^{100} - 1 = 49.5$. If
# the advantages have nothing to do with it, a thousand answers then scatter like $1000 / 50.5 = 20$ fresh
# ones, because a few carry half of the weight. (With 1.05 and 0.95 it is only $1.0025^{100} - 1 = 0.28$.)
# The token's ratio has much less noise, for a bias that is small while the two policies are close. How
# does it grow as the policy moves away?

# %%
steps = torch.linspace(0, 1, 21)
errors = {"token's ratio": [], "no ratio": []}
for step in steps:
    table = ((1 - step) * OLD_TABLE + step * NEW_TABLE).log_softmax(-1)
    rho = (token_log_probs(table) - old).exp()
    gain = (WORTH - token_log_probs(table).sum(1).exp() @ WORTH)[:, None]
    right = push_on(table, sampled * rho.prod(1, keepdim=True) * gain)
    for name, weights in (("token's ratio", rho), ("no ratio", torch.ones_like(rho))):
        found = push_on(table, sampled * weights * gain)
        errors[name].append(float((found - right).norm() / right.norm()))
plots.curves(errors, steps, styles={"token's ratio": "policy", "no ratio": "bad"},
             axis=plots.panels(1, height=2.6)[1], xlabel="from the old policy (0) to the new one (1)",
             ylabel="bias / true gradient", title="Zero at the first update, then it grows")  # fmt: skip
holds(errors["token's ratio"][0] < 1e-9, "at the first update there is no bias")
halves = [errors[name][10] for name in ("token's ratio", "no ratio")]
holds(halves[0] < halves[1] / 1.5, "half way the token's ratio is nearer to the truth than none")

# %% [markdown]
# At the first update there is no bias. With the token's ratio it grows more slowly than without any ratio,
# but it does grow. This is one more reason to take few steps with a rollout. Some do take one ratio for the
# whole answer: [10](10_rloo_and_reinforce_plus_plus.ipynb) the product, inside of PPO's clip;
# [11](11_grpo_family.ipynb) its geometric mean (GSPO); and
# [19](19_when_the_sampler_is_not_the_policy.ipynb) the product, cut off at 2, for samples that are older
# still.
#
# > **Third exit.** With the ratio and the clip you have all of [PPO](09_ppo.ipynb) but its critic. The
# > exercises are next, then [the leash](05_what_a_kl_is.ipynb).
#
# ## Where this lives
#
# - [losses.py](../rl/equations/losses.py), baselines in [advantages.py](../rl/equations/advantages.py)
# - whole programs: [REINFORCE](../nano/reinforce.py), [RLOO](../nano/rloo.py), [ReMax](../nano/remax.py)
#
# ## Exercises
#
# **1. The best baseline.** Three words of your own. Before you compute: does the constant $b$ with the
# least noise lie above or below $\mathbb{E}[R]$, and which words pull it there? (In $\mathbb{E}[R]$ a
# word counts with $\pi$, in $b^*$ with $\pi \, |\nabla \log \pi|^2$, divided by the sum of these: which
# words count for more than before, and which for less?) Then find $b$. (No solution is printed.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("best_baseline", MINE)

# %%
check_answer("best_baseline", ..., MINE)

# %% [markdown]
# **2. A baseline without the action.** For every row of `rewards` (groups of `group_size` rows, one
# group after the other) the mean reward of the *other* rows of its group.


# %%
def my_baselines(rewards, group_size):
    """rewards (N,) -> the mean of the others in the group, (N,)."""
    ...  # your code


check("others_mean", my_baselines)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_baselines(rewards, group_size):
#     groups = rewards.view(-1, group_size)
#     return ((groups.sum(1, keepdim=True) - groups) / (group_size - 1)).flatten()
# ```
#
# </details>
#
# **3. The four cases.** Where does the clipped loss still give a gradient? True or False for every
# token, from the sign of its advantage and the side to which its ratio has moved.


# %%
def gets_gradient(ratio, advantages, clip_low, clip_high):
    """ratio (N, T), advantages (N, T), neither exactly at an edge nor 0 -> bool (N, T)."""
    ...  # your code


check("clip_cases", gets_gradient)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def gets_gradient(ratio, advantages, clip_low, clip_high):
#     went_up_enough = (advantages > 0) & (ratio > 1 + clip_high)
#     went_down_enough = (advantages < 0) & (ratio < 1 - clip_low)
#     return ~(went_up_enough | went_down_enough)
# ```
#
# </details>
#
# **4. The importance weight of an answer.** From the log-probs of its tokens.


# %%
def my_weights(log_probs, old_log_probs, mask):
    """(N, T) each, mask bool -> pi(y) / pi_old(y) of every answer, (N, 1)."""
    ...  # your code


check("answer_ratio", my_weights)

# %% [markdown]
# (No solution is printed: `check` decides.)
#
# **5. More, if you like.** `check("clipped_surrogate", your_function)` takes the whole loss, (N,
# T).
#
# **To read on.** Chapter 13 of Sutton and Barto's *Reinforcement Learning* (2018), because it derives the
# same gradient where actions lead to states; Ahmadian et al.
# ([arXiv:2402.14740](https://arxiv.org/abs/2402.14740)), because they ask which of PPO's parts a language
# model needs; and Williams 1992, in *Machine Learning* 8, because its formulas are those of section 3.
#
# ## To remember
#
# - $\nabla J = \mathbb{E}[R \, \nabla \log \pi]$: what was drawn is pushed by what it earned.
# - A baseline that does not see the action leaves the average as it is; near the expected reward it takes
#   most of the noise away.
# - Old samples need the ratio, the clip ends a push after $\varepsilon$, and the ratio of a token is not
#   that of the answer.
#
# Next: [05_what_a_kl_is](05_what_a_kl_is.ipynb). A policy that follows only the reward forgets how to
# write, so it is held near its start.
