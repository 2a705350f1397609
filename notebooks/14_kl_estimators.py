# %% [markdown]
# # 6. KL estimators: value, gradient, bias
#
# **Why.** RLHF holds a policy near a reference with a KL divergence. Nobody sums it over all
# possible responses; everybody uses one number per sampled token. There are half a dozen such
# numbers, they go to two places (the loss, or the reward), and the samples come from the policy of
# today or of yesterday. Some of the combinations do what their author meant. This page computes,
# for a distribution small enough to list, what each of them does.
#
# | section | question | source | code |
# | --- | --- | --- | --- |
# | 1 | what does an estimator say, on average? | Schulman 2020 | `k1`, `k2`, `k3`, `absolute` |
# | 2 | how much does it scatter? | | |
# | 3 | which gradient, in loss and reward? | arXiv:2510.01555 | `policy_gradient`, `kl_from_logits` |
# | 4 | why is k1 no loss? | | |
# | 5 | what if the samples are old? | arXiv:2512.02556 | `k1_importance`, `k3_importance` |
# | 6 | what does float32 leave of it? | | |
# | 7 | more than one token | arXiv:2203.02155, Eq. 2 | `token_level_rewards` |
# | 8 | a coefficient that steers itself | arXiv:1909.08593 | `AdaptiveKL` |
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about ten seconds on one CPU core. The page before this
# one: [13_grpo_family](13_grpo_family.ipynb); the next:
# [15_process_and_iterative_grpo](15_process_and_iterative_grpo.ipynb).

# %%
import inspect
import itertools
import math
from functools import partial

import matplotlib.pyplot as plt
import torch
from torch import Tensor

try:
    from gpt.log_probs import kl_from_logits
    from rl.equations import kl
    from rl.equations.advantages import discounted_returns
    from rl.equations.kl import absolute, k1, k1_importance, k2, k3, k3_importance
    from rl.equations.losses import clipped_surrogate, policy_gradient, row_sums, token_mean
    from rl.equations.token_rewards import token_level_rewards
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
torch.set_default_dtype(torch.float64)  # "exact" below means: to 1e-12
torch.set_printoptions(precision=6, sci_mode=False, linewidth=100)
COLORS = {"k1": "tab:red", "k2": "tab:green", "k3": "tab:blue", "abs": "tab:orange"}

# %% [markdown]
# ## 1. Four estimators of one number
#
# The divergence that RLHF wants to be small is the **reverse** one, an average over what the policy
# says. The **forward** one averages over what the reference says; we will meet it again.
#
# $$\mathrm{KL}(\pi \Vert \pi_{ref}) = \sum_y \pi(y) \log \frac{\pi(y)}{\pi_{ref}(y)}, \qquad
# \mathrm{KL}(\pi_{ref} \Vert \pi) = \sum_y \pi_{ref}(y) \log \frac{\pi_{ref}(y)}{\pi(y)}$$
#
# For one sample $y \sim \pi$ let $\delta = \log \pi_{ref}(y) - \log \pi(y)$. Schulman 2020,
# ["Approximating KL Divergence"](http://joschu.net/blog/kl-approx.html), names three estimators;
# k3 is also Eq. 4 of GRPO, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300). Several code bases
# offer the absolute difference as a fourth.
#
# $$k_1 = -\delta, \qquad k_2 = \tfrac{1}{2} \delta^2, \qquad k_3 = e^{\delta} - \delta - 1,
# \qquad k_{abs} = |\delta|$$

# %%
for function in (kl.k1, kl.k2, kl.k3, kl.absolute):
    print(inspect.getsource(function))

# %% [markdown]
# Three symbols are enough. The library's functions take log-probabilities of shape (N, T), so every
# symbol becomes a response of one token: N = 3, T = 1. An average over samples is then a weighted
# sum over three rows, and nothing has to be drawn.

# %%
POLICY = torch.tensor([0.5, 0.3, 0.2]).log()  # (V,) logits
REF = torch.tensor([0.2, 0.5, 0.3]).log()


def listed(logits: Tensor) -> Tensor:
    """(V,) -> (V, 1): every symbol once, as the log-probability of a response of one token."""
    return logits.log_softmax(-1)[:, None]


def expectation(logits: Tensor, per_symbol: Tensor) -> Tensor:
    """E over symbols drawn from `logits`; the weights are constants, as samples are."""
    return (listed(logits).exp().detach() * per_symbol).sum()


def kl_between(one: Tensor, other: Tensor) -> Tensor:
    """KL(one || other), by its definition."""
    return (one.softmax(-1) * (one.log_softmax(-1) - other.log_softmax(-1))).sum(-1)


# %%
ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3, "abs": absolute}
reverse, forward = kl_between(POLICY, REF), kl_between(REF, POLICY)
print(f"KL(pi || ref) = {reverse:.6f} nats, KL(ref || pi) = {forward:.6f}\n")
print("      symbol 0   symbol 1   symbol 2     average        bias")
average = {}
for name, estimator in ESTIMATORS.items():
    values = estimator(listed(POLICY), listed(REF))  # (3, 1)
    average[name] = expectation(POLICY, values)
    row = "".join(f"{v:11.6f}" for v in values[:, 0])
    print(f"{name:4}{row} {average[name]:11.6f} {average[name] - reverse:+11.6f}")

# %% [markdown]
# k1 is unbiased but negative for two symbols of three, though a divergence never is. k3 is unbiased
# *and* never negative: it adds $e^\delta - 1$, whose average over $\pi$ is $\sum \pi_{ref} - 1 = 0$.
# k2 is right only to second order; the absolute difference estimates something else.

# %%
torch.testing.assert_close(average["k1"], reverse)  # unbiased
torch.testing.assert_close(average["k3"], reverse)
assert abs(average["k2"] - 0.265479) < 1e-6 and abs(average["abs"] - 0.692486) < 1e-6
print("k1 and k3 are unbiased, k2 and the absolute difference are not")

# %%
deltas = torch.linspace(-3, 2, 201)[:, None]  # as log-probabilities: policy 0, reference delta
figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name, estimator in ESTIMATORS.items():
    values = estimator(torch.zeros_like(deltas), deltas)
    axis.plot(deltas, values, color=COLORS[name], label=name)
axis.axhline(0, color="black", lw=0.8)
axis.set(ylim=(-2, 4.5), xlabel=r"$\delta = \log \pi_{ref} - \log \pi$ of the sampled token (nats)")
axis.set(ylabel="estimate (nats)", title="k2 and k3 agree where policy and reference do")
axis.legend(loc="upper center")
plt.show()

# %% [markdown]
# ## 2. How much they scatter
#
# **Why.** A batch gives one number, not an average over all batches. Which estimator's number can
# be trusted? We take six symbols, draw 20,000 batches, and look at the mean of every batch. The
# exact bias and scatter come from the list of symbols: a mean of $n$ samples has the bias of one
# sample and its standard deviation divided by $\sqrt n$.

# %%
generator = torch.Generator().manual_seed(0)
policy6 = torch.tensor([0.35, 0.25, 0.15, 0.12, 0.08, 0.05]).log()
ref6 = torch.tensor([0.20, 0.22, 0.20, 0.18, 0.10, 0.10]).log()
true6 = kl_between(policy6, ref6)


def spread(estimator, policy: Tensor, ref: Tensor) -> tuple[float, float]:
    """Exact (bias, standard deviation) of one sample's estimate."""
    values = estimator(listed(policy), listed(ref))
    mean = expectation(policy, values)
    variance = expectation(policy, (values - mean).square())
    return float(mean - kl_between(policy, ref)), float(variance.sqrt())


draws = torch.multinomial(policy6.exp(), 20_000 * 64, replacement=True, generator=generator)
batches = {
    name: estimator(policy6[draws, None], ref6[draws, None]).view(20_000, 64)
    for name, estimator in ESTIMATORS.items()
}

# %%
print(f"true KL {true6:.5f}; 20,000 batches of 64 samples\n")
print("        bias exact  sampled    standard deviation exact  sampled")
for name, estimator in ESTIMATORS.items():
    bias, deviation = spread(estimator, policy6, ref6)
    means = batches[name].mean(1)
    print(f"{name:4} {bias:+13.5f} {means.mean() - true6:+9.5f}", end="")
    print(f"{deviation / 8:25.5f} {means.std():9.5f}")
    assert abs(means.mean() - true6 - bias) < 4 * deviation / 8 / math.sqrt(20_000)  # 4 sigma
    assert abs(means.std() / (deviation / 8) - 1) < 0.03

# %%
figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.6), layout="constrained")
for name in ("k1", "k2", "k3"):
    axes[0].hist(batches[name].mean(1), 60, histtype="step", color=COLORS[name], label=name, lw=1.5)
axes[0].axvline(true6, color="black", ls="--", label="true KL")
axes[0].set(xlabel="mean of 64 samples (nats)", ylabel="batches of 20,000")
axes[0].set_title("k1 is often negative; k2 is off by its bias")
sizes = torch.tensor([2**k for k in range(17)])
for name, estimator in ESTIMATORS.items():
    bias, deviation = spread(estimator, policy6, ref6)
    axes[1].loglog(sizes, deviation / sizes.sqrt(), color=COLORS[name], label=f"{name} deviation")
    if abs(bias) > 1e-9:
        axes[1].axhline(abs(bias), color=COLORS[name], ls=":", label=f"{name} bias")
axes[1].set(xlabel="samples in a batch", ylabel="size of the error (nats)", ylim=(1e-4, 1))
axes[1].set_title("more samples cure scatter, not bias")
axes[0].legend()
axes[1].legend(ncols=2, fontsize=8)
plt.show()

# %% [markdown]
# Is k3 always the quieter one? Only near the reference. We turn the policy into a narrower and
# narrower distribution. Wherever it *loses* mass that the reference has, $\pi_{ref} / \pi$ becomes
# huge, and is seen rarely: the variance of k3 contains $\sum_y \pi_{ref}(y)^2 / \pi(y)$.

# %%
tilt = torch.tensor([1.0, 0.4, 0.1, -0.2, -0.5, -0.8])
path = [ref6 + s * tilt for s in torch.linspace(0.05, 5, 120)]
distance = torch.stack([kl_between(logits, ref6) for logits in path])
far = min(path, key=lambda logits: abs(kl_between(logits, ref6) - 1.0))
draws = torch.multinomial(far.softmax(-1), 20_000 * 64, replacement=True, generator=generator)
sample = far.log_softmax(-1)[draws, None], ref6.log_softmax(-1)[draws, None]
far_means = {name: ESTIMATORS[name](*sample).view(20_000, 64).mean(1) for name in ("k1", "k3")}

figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.6), layout="constrained")
for name in ("k1", "k2", "k3"):
    deviations = [spread(ESTIMATORS[name], logits, ref6)[1] for logits in path]
    axes[0].loglog(distance, deviations, color=COLORS[name], label=name)
for name, means in far_means.items():
    bins = torch.linspace(0, 3, 91).numpy()
    axes[1].hist(means, bins, histtype="step", color=COLORS[name], label=name, lw=1.5)
axes[1].axvline(kl_between(far, ref6), color="black", ls="--", label="true KL")
axes[0].set(xlabel="true KL (nats)", ylabel="deviation of one sample (nats)")
axes[0].set_title("near the reference k3 is quiet, far away it is not")
axes[1].set(
    xlabel="mean of 64 samples (nats)",
    ylabel="batches of 20,000",
    title="at 1 nat: most batches low, a few high",
)
for axis in axes:
    axis.legend()
plt.show()

# %%
for name, means in far_means.items():
    below = (means < kl_between(far, ref6)).double().mean()
    print(f"{name}: mean {means.mean():.3f}, median {means.median():.3f}, ", end="")
    print(f"largest {means.max():.2f}; {below:.0%} of the batches are below the true KL")
assert spread(k3, path[0], ref6)[1] < spread(k1, path[0], ref6)[1] / 5
assert spread(k3, far, ref6)[1] > spread(k1, far, ref6)[1]

# %% [markdown]
# Both are unbiased; but k3 reports too little in most batches and makes up for it in a few. For a
# *curve* of the divergence far from the reference, k1 is the better instrument.
#
# ## 3. Value is not gradient
#
# **Why.** Training never uses the value. It uses a gradient, and there are two ways to get one:
#
# - **in the loss**: differentiate the estimate, $\mathbb{E}_{y \sim \pi}[\nabla k(y)]$;
# - **in the reward**: treat it as a number that the policy gradient then works on,
#   $\mathbb{E}_{y \sim \pi}[\bar k(y) \nabla \log \pi(y)]$, where the bar means: constant.
#
# The gradient of the average has both parts, because the distribution that the samples come from
# moves as well; automatic differentiation of the samples sees only the second:
#
# $$\nabla \mathbb{E}_{y \sim \pi}[k(y)] = \mathbb{E}_{y \sim \pi}[\bar k(y) \nabla \log \pi(y)]
# + \mathbb{E}_{y \sim \pi}[\nabla k(y)]$$
#
# So an unbiased value may have any gradient. Sources: "Rethinking KL Regularization in RLHF",
# [arXiv:2510.01555](https://arxiv.org/abs/2510.01555), and REINFORCE++,
# [arXiv:2501.03262](https://arxiv.org/abs/2501.03262), Appendix B.1. We do the sum for k1 first:


# %%
def gradient(function, at: Tensor = POLICY) -> Tensor:
    """Gradient of function(logits) at `at`."""
    logits = at.clone().requires_grad_()
    return torch.autograd.grad(function(logits), logits)[0]


as_loss = gradient(lambda z: expectation(z, k1(listed(z), listed(REF))))
constant = k1(listed(POLICY), listed(REF))
# policy_gradient is -A log pi, a loss: a penalty is a negative advantage.
in_reward = gradient(lambda z: expectation(z, policy_gradient(listed(z), -constant)))
true_gradient = gradient(lambda z: kl_between(z, REF))

print("k1 in the loss      ", as_loss)
print("k1 in the reward    ", in_reward)
print("gradient of the KL  ", true_gradient)
assert as_loss.abs().max() < 1e-12
torch.testing.assert_close(in_reward, true_gradient, atol=1e-12, rtol=0)

# %% [markdown]
# **k1 as a loss has no gradient at all**: $\mathbb{E}[\nabla \log \pi] = \nabla \sum_y \pi(y) = 0$,
# and $\log \pi_{ref}$ is a constant. The reference has dropped out. In the reward the same k1 is
# exactly right.
#
# Now every form, in both places, with samples of the policy and with samples of an old policy. The
# old policy is the one that wrote the rollout; after the first update the two differ. The table
# below is *computed*: each gradient is compared with the candidates, to 1e-12.

# %%
OLD = torch.tensor([0.4, 0.25, 0.35]).log()
FORMS = {
    "k1": lambda lp, old, ref: k1(lp, ref),
    "k2": lambda lp, old, ref: k2(lp, ref),
    "k3": lambda lp, old, ref: k3(lp, ref),
    "abs": lambda lp, old, ref: absolute(lp, ref),
    "ratio k1": k1_importance,
    "ratio k3": k3_importance,
    "full": lambda lp, old, ref: kl_from_logits(lp.T, ref.T).expand(len(lp), 1),
}
reverse_gradient = gradient(lambda z: kl_between(z, REF))
forward_gradient = gradient(lambda z: kl_between(REF, z))
CANDIDATES = {
    "0": torch.zeros(3),
    "reverse": reverse_gradient,
    "forward": forward_gradient,
    "reverse - forward": reverse_gradient - forward_gradient,
    "away from old": gradient(lambda z: -kl_between(OLD, z)),
    "reverse - to old": reverse_gradient - gradient(lambda z: kl_between(z, OLD)),
}

# %%
print(inspect.getsource(k3_importance))
print(inspect.getsource(kl_from_logits))


# %%
def loss_gradient(form, sampler: Tensor) -> Tensor:
    """E_{y ~ sampler}[gradient of the form]."""
    return gradient(
        lambda z: expectation(sampler, form(listed(z), listed(sampler), listed(REF))),
    )


def reward_gradient(form, sampler: Tensor) -> Tensor:
    """The form measured at the rollout, subtracted from the reward, then PPO without a clip."""
    old = listed(sampler)
    penalty = form(old, old, listed(REF)).detach()
    return gradient(
        lambda z: expectation(sampler, clipped_surrogate(listed(z), old, -penalty, 1e9, 1e9))
    )


def called(found: Tensor) -> str:
    """The name of the candidate that `found` is equal to."""
    names = [name for name, g in CANDIDATES.items() if (g - found).abs().max() < 1e-12]
    return names[0] if names else "none of these"


# %%
def table(sampler: Tensor) -> dict[str, tuple[float, str, str]]:
    """form -> (bias of the value, gradient in the loss, gradient in the reward)."""
    rows = {}
    for name, form in FORMS.items():
        value = expectation(sampler, form(listed(POLICY), listed(sampler), listed(REF)))
        gradients = loss_gradient(form, sampler), reward_gradient(form, sampler)
        rows[name] = (float(value - reverse), *(called(g) for g in gradients))
    return rows


on_policy, off_policy = table(POLICY), table(OLD)
for title, rows in (("the policy itself", on_policy), ("an old policy", off_policy)):
    print(f"samples of {title}\n  form      bias of value   gradient in the loss   in the reward")
    for name, (bias, loss, reward) in rows.items():
        shown = "exact" if abs(bias) < 1e-12 else f"{bias:+.6f}"
        print(f"  {name:8}  {shown:>13}   {loss:20}   {reward}")
    print()

# %% [markdown]
# Read the table by rows.
#
# - **k1** belongs in the reward. As a loss it is nothing on-policy, and off-policy it is *worse*
#   than nothing: it lowers the probability of whatever the old policy said, so it pushes away from
#   the old policy, and the reference plays no part.
# - **k2** as a loss is the reverse KL, though its value is biased.
# - **k3** as a loss is the *forward* KL, though its value is exact. Both are 0 at the reference
#   only, so GRPO regularises, but a little differently from what its Eq. 4 is called.
# - **k3 in the reward** subtracts the forward KL's gradient: it is pulled back by one divergence
#   and pushed away by the other.
# - **ratio k1, ratio k3** are the reverse KL with old samples too (of one token: see section 7).
# - **full** needs all logits and is then exact in the loss. In the reward it does nothing here,
#   because it is the same number whatever token was drawn.
# - **"reverse - to old"**: a penalty measured at the rollout stays what it was, though the policy
#   moves. The gradient of the difference is 0 at the first update, so PPO starts exactly right.

# %%
assert [row[1] for row in on_policy.values()] == [
    *("0", "reverse", "forward", "none of these", "reverse", "reverse", "reverse")
]
assert on_policy["k1"][2] == "reverse" and on_policy["k3"][2] == "reverse - forward"
assert off_policy["ratio k1"][1] == off_policy["ratio k3"][1] == off_policy["full"][1] == "reverse"
assert off_policy["k1"][1] == "away from old" and off_policy["k3"][1] == "none of these"
assert abs(off_policy["ratio k3"][0]) < 1e-12 < abs(off_policy["k3"][0])

# %% [markdown]
# ## 4. Why k1 as a loss regularises nothing
#
# **Why.** "Its expected gradient is 0" sounds harmless. We let a softmax over three symbols start
# far from the reference and minimise the penalty, and nothing else. On the left with the exact
# gradient; on the right with 8 samples per step, 64 runs.

# %%
START = torch.tensor([0.10, 0.15, 0.75]).log()
LOSSES = {name: FORMS[name] for name in ("k1", "k2", "k3", "abs")}


def minimise(form, runs: int, samples: int, steps: int = 200, rate: float = 0.5) -> Tensor:
    """KL(pi || ref) over the steps, (steps, runs). `samples` = 0: the exact gradient."""
    generator = torch.Generator().manual_seed(1)
    logits, trace = START.expand(runs, 3).clone(), []
    for _ in range(steps):
        trace.append(kl_between(logits, REF))
        z = logits.clone().requires_grad_()
        log_probs, ref = z.log_softmax(-1), REF.expand(runs, 3)  # (runs, 3)
        weights = log_probs.exp().detach()
        if samples:
            drawn = torch.multinomial(weights, samples, replacement=True, generator=generator)
            log_probs, ref = log_probs.gather(1, drawn), ref.gather(1, drawn)  # (runs, samples)
            weights = torch.full_like(ref, 1 / samples)
        loss = (weights * form(log_probs, log_probs.detach(), ref)).sum()
        logits = logits - rate * torch.autograd.grad(loss, z)[0]
    return torch.stack(trace)


# %%
exact = {name: minimise(form, 1, 0) for name, form in LOSSES.items()}
sampled = {name: minimise(form, 64, 8) for name, form in LOSSES.items()}

figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.6), layout="constrained", sharey=True)
for name in LOSSES:
    axes[0].plot(exact[name][:, 0], color=COLORS[name], label=f"{name} as the loss")
    axes[1].plot(sampled[name].mean(1), color=COLORS[name], label=f"{name}, mean of 64 runs")
    low, high = sampled[name].quantile(torch.tensor([0.1, 0.9]), dim=1)
    axes[1].fill_between(range(len(low)), low, high, color=COLORS[name], alpha=0.2, lw=0)
for axis, title in zip(axes, ("exact gradient", "8 samples per step"), strict=True):
    axis.set(title=title, xlabel="step", ylabel="KL(pi || ref) (nats)")
    axis.set(yscale="log", ylim=(1e-6, 20))
    axis.legend(ncols=2, fontsize=8, loc="upper right")
plt.show()
for name, trace in exact.items():
    print(f"{name:4} exact: from {trace[0, 0]:.4f} to {trace[-1, 0].abs():.4f} nats", end="")
    print(f"   sampled, mean of 64 runs: to {sampled[name][-1].mean().abs():.4f}")
assert torch.allclose(exact["k1"], exact["k1"][0])  # not a single step towards the reference
assert exact["k2"][-1] < 1e-3 and exact["k3"][-1] < 1e-3
assert sampled["k1"][-1].mean() > sampled["k1"][0].mean()  # noise only

# %% [markdown]
# k1 does not move with the exact gradient, and with samples it takes a random walk, which for a
# distribution leads to a corner: the KL *grows*. k2 and k3 return to the reference. The absolute
# difference arrives but cannot settle: it pulls next to the reference as hard as far away.
#
# With a reward there is an exact answer to compare with. The maximum of
# $\mathbb{E}[R] - \beta \, \mathrm{KL}(\pi \Vert \pi_{ref})$ is known in closed form (Rafailov et
# al. 2023, [arXiv:2305.18290](https://arxiv.org/abs/2305.18290), Eq. 4):
#
# $$\pi^*(y) = \frac{\pi_{ref}(y) \, e^{R(y) / \beta}}{\sum_{y'} \pi_{ref}(y') \, e^{R(y') / \beta}}$$

# %%
SCORES, BETA = torch.tensor([1.0, 0.6, 0.0]), 0.5
optimum = (REF + SCORES / BETA).softmax(-1)


def maximise(place: str, form, steps: int = 3000, rate: float = 0.5) -> Tensor:
    """The policy after gradient ascent on reward minus penalty, with exact gradients."""
    logits = REF.clone()
    for _ in range(steps):
        lp = listed(logits)
        penalty = form(lp, lp, listed(REF)).detach()
        advantage = SCORES[:, None] - (BETA * penalty if place == "reward" else 0.0)
        z = logits.clone().requires_grad_()
        loss = policy_gradient(listed(z), advantage)
        if place == "loss":
            loss = loss + BETA * form(listed(z), lp, listed(REF))
        logits = logits - rate * torch.autograd.grad(expectation(z, loss), z)[0]
    return logits.softmax(-1)


# %%
trained = {"the optimum": optimum}
for place, names in (("reward", ("k1", "k3")), ("loss", ("k1", "k2", "k3", "abs"))):
    for name in names:
        trained[f"{name} in the {place}"] = maximise(place, FORMS[name])
objective = {
    name: float(p @ SCORES - BETA * kl_between(p.clamp(min=1e-12).log(), REF))
    for name, p in trained.items()
}
figure, axis = plt.subplots(figsize=(10.5, 3.4), layout="constrained")
bottom = torch.zeros(len(trained))
for symbol, color in enumerate(("tab:blue", "tab:cyan", "lightgray")):
    heights = torch.stack([p[symbol] for p in trained.values()])
    label = f"symbol {symbol}, reward {SCORES[symbol]:.1f}"
    axis.bar(list(trained), heights, bottom=bottom, color=color, label=label)
    bottom += heights
for x, value in enumerate(objective.values()):
    axis.text(x, 1.02, f"{value:.3f}", ha="center")
axis.set(ylim=(0, 1.12), xlabel="penalty", ylabel="probability after training")
axis.set_title("Same reward, same coefficient; above the bars: reward minus 0.5 KL")
axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
axis.tick_params(axis="x", labelsize=8)
plt.show()

# %%
for name in ("k1 in the reward", "k2 in the loss"):
    torch.testing.assert_close(trained[name], optimum, atol=1e-6, rtol=0)
assert trained["k1 in the loss"][0] > 0.99  # as if there were no penalty
assert all(value <= objective["the optimum"] + 1e-12 for value in objective.values())
for name, value in objective.items():
    print(f"{name:17} {[round(p, 4) for p in trained[name].tolist()]}  objective {value:.4f}")

# %% [markdown]
# ## 5. Old samples
#
# **Why.** PPO and GRPO take several updates from one rollout. From the second one on the samples
# come from $\pi_{old}$, and "k3 is unbiased" is no longer true. The importance ratio
# $\rho = \pi / \pi_{old}$, *differentiated as well*, repairs value and gradient of one token
# (DeepSeek-V3.2, [arXiv:2512.02556](https://arxiv.org/abs/2512.02556), "unbiased KL estimate"). For
# longer responses section 7 looks again:
#
# $$\mathbb{E}_{y \sim \pi_{old}}[\rho \, k_3] = \mathrm{KL}(\pi \Vert \pi_{ref}), \qquad
# \mathbb{E}_{y \sim \pi_{old}}[\nabla (\rho \, k_3)] = \nabla \mathrm{KL}(\pi \Vert \pi_{ref})$$
#
# A special case deserves a picture: the reference *is* the old policy, as in methods that keep a
# single model. Then plain k3 estimates, under the samples at hand, not a KL but
#
# $$\mathbb{E}_{y \sim \pi_{ref}}[k_3] = \chi^2(\pi_{ref} \Vert \pi) -
# \mathrm{KL}(\pi_{ref} \Vert \pi), \qquad
# \chi^2(p \Vert q) = \sum_y \frac{p(y)^2}{q(y)} - 1$$

# %%
chi_square = (REF.exp().square() / POLICY.exp()).sum() - 1
estimates = {
    "k3(pi, ref)                  chi^2 - KL(ref || pi)": k3(listed(POLICY), listed(REF)),
    "k3(ref, pi)                  KL(ref || pi)        ": k3(listed(REF), listed(POLICY)),
    "k3_importance(pi, ref, ref)  KL(pi || ref)        ": k3_importance(
        listed(POLICY), listed(REF), listed(REF)
    ),
}
targets = (chi_square - forward, forward, reverse)
for (name, values), target in zip(estimates.items(), targets, strict=True):
    mean = expectation(REF, values)  # samples of the reference
    print(f"{name} {mean:.6f}   (by definition {target:.6f})")
    torch.testing.assert_close(mean, target)

# %% [markdown]
# The second and third line are the right instruments for "how far is the policy from the one that
# sampled": with $\rho = \pi / \pi_{old}$ they are the means of $\rho - 1 - \log \rho$ and of
# $\rho \log \rho - (\rho - 1)$. Below, the policy walks away from $\pi_{old}$ while the samples
# stay.

# %%
moves = torch.linspace(-3, 3, 121)
direction = torch.tensor([1.0, 0.0, 0.0])
figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.6), layout="constrained")
for axis, ref, title in zip(
    axes, (REF, OLD), ("another reference", "reference = old policy"), strict=True
):
    walk = [OLD + s * direction for s in moves]
    axis.plot(moves, [kl_between(z, ref) for z in walk], color="black", lw=3, label="KL(pi || ref)")
    for name, color in (("k1", "tab:red"), ("k3", "tab:blue"), ("ratio k3", "tab:cyan")):
        values = [expectation(OLD, FORMS[name](listed(z), listed(OLD), listed(ref))) for z in walk]
        axis.plot(moves, values, color=color, ls="--", label=f"{name}, old samples")
    axis.set(title=title, ylim=(-1, 3), ylabel="expected estimate (nats)")
    axis.set_xlabel("logit of symbol 0, relative to the old policy")
    axis.legend(fontsize=8)
plt.show()

# %% [markdown]
# Dashed cyan lies on the black line everywhere. Plain k3 follows for a small step only; k1 goes the
# wrong way. Does the ratio cost scatter? One sample's standard deviation, exactly:

# %%
print("logit moved by   KL(old||pi)   deviation of k3   of ratio k3   of ratio k1")
for s in (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0):
    z = OLD + s * direction
    deviations = []
    for name in ("k3", "ratio k3", "ratio k1"):
        values = FORMS[name](listed(z), listed(OLD), listed(REF))
        mean = expectation(OLD, values)
        deviations.append(expectation(OLD, (values - mean).square()).sqrt())
    row = "".join(f"{d:15.4f}" for d in deviations)
    print(f"{s:14.1f} {kl_between(OLD, z):13.4f} {row}")
    assert deviations[1] < deviations[2]  # k3 is the better one to multiply

# %% [markdown]
# With k3 it costs nothing here: a large $e^\delta$ meets a small ratio. With k1 it does.

# %% [markdown]
# ## 6. What float32 leaves of k3
#
# **Why.** At the start of training policy and reference agree, so $\delta$ is tiny and
# $k_3 \approx \delta^2 / 2$ is the difference of numbers near 1. Float32 has 24 bits: around 1 it
# cannot see anything below $6 \cdot 10^{-8}$, and which zero it returns depends on the order of
# subtraction. `expm1` computes $e^\delta - 1$ without passing through 1.


# %%
def three_ways(delta: Tensor) -> dict[str, Tensor]:
    """k3 of delta in its own precision, (n,): twice naively, once by the library."""
    zeros = torch.zeros_like(delta)[:, None]
    return {
        "exp(d) - 1 - d": delta.exp() - 1 - delta,
        "exp(d) - d - 1": delta.exp() - delta - 1,
        "k3 (expm1)": k3(zeros, delta[:, None])[:, 0],
    }


small = torch.tensor([1e-4], dtype=torch.float32)
for name, value in three_ways(small).items():
    print(f"{name:15} at delta = 1e-4, float32: {value.item():.3e}")
truth = 1e-4**2 / 2 + 1e-4**3 / 6
values = [value.item() for value in three_ways(small).values()]
assert abs(values[0] - 1.66e-8) < 1e-10 and values[1] == 0 and abs(values[2] / truth - 1) < 1e-3

# %%
deltas = torch.logspace(-7, 0, 400, dtype=torch.float32)
wide = deltas.double()
series = wide.square() / 2 * (1 + wide / 3 + wide.square() / 12)  # exact where exp would cancel
exact_k3 = torch.where(wide < 1e-2, series, wide.expm1() - wide)
figure, axis = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
colors = ("tab:orange", "tab:red", "tab:blue")
for (name, value), color in zip(three_ways(deltas).items(), colors, strict=True):
    error = ((value.double() - exact_k3) / exact_k3).abs().clamp(min=1e-9)
    axis.loglog(deltas, error, ".", ms=3, color=color, label=name)
axis.axhline(1, color="black", lw=0.8, ls="--")
axis.text(0.9, 2, "error as large as the value", size=9, ha="right")
axis.set(xlabel=r"$\delta$ (nats)", ylabel="relative error of k3", ylim=(1e-9, 1e8))
axis.set_title("float32: naive k3 is off by 6 % at a drift of 1e-3, and noise below 3e-4")
axis.legend(loc="lower left", markerscale=3)
plt.show()

# %% [markdown]
# The library's form is not exact either: $e^\delta - 1$ and $\delta$ agree in their leading digits,
# which costs a relative error of about $6 \cdot 10^{-8} / \delta$. It never grows beyond the value
# itself. The gradient, $1 - e^\delta$, is a difference of the same kind and loses as much.
#
# Far away there is another trap. $e^\delta$ overflows for large $\delta$, so the library holds
# $\delta$ at 20. Some code clamps the *result*, usually at 10, and with it the gradient: the
# farther a token has drifted, the less it is pulled back.

# %%
print("delta    gradient of k3   gradient of k3 clamped at 10")
for d in (1.0, 2.0, 3.0, 8.0):
    ref, pulls = torch.tensor([[d]]), []
    for limit in (math.inf, 10.0):
        log_prob = torch.zeros(1, 1, requires_grad=True)
        k3(log_prob, ref).clamp(max=limit).sum().backward()
        pulls.append(log_prob.grad.item() + 0.0)
    print(f"{d:5.1f} {pulls[0]:16.3f} {pulls[1]:20.3f}")
assert pulls[0] < -2900 and pulls[1] == 0
assert k3(torch.zeros(1, 1), torch.full((1, 1), 800.0)).isfinite().all()

# %% [markdown]
# ## 7. More than one token
#
# **Why.** A response is many tokens. $\log \pi(y)$ is the sum of its tokens' log-probabilities, so
# a KL *per response* is a sum over tokens, and the mean *per token* is a number smaller by the
# length. Targets and coefficients are quoted on the first scale, curves are often drawn on the
# second. InstructGPT's reward ([arXiv:2203.02155](https://arxiv.org/abs/2203.02155), Eq. 2) is on
# the first:
#
# $$R(y) - \beta \log \frac{\pi(y)}{\pi_{ref}(y)} = R(y) - \beta \sum_t k_{1,t}$$

# %%
mask = torch.arange(4) < torch.tensor([4, 2, 1])[:, None]  # (3, 4) responses of 4, 2 and 1 tokens
log_probs = torch.tensor([[-1.0, -0.5, -2.0, -0.2], [-0.3, -0.4, 9, 9], [-0.1, 9, 9, 9]])
ref_log_probs = torch.tensor([[-1.2, -1.0, -1.9, -0.4], [-0.5, -0.9, 9, 9], [-0.4, 9, 9, 9]])
per_response = row_sums(k1(log_probs, ref_log_probs), mask).mean()
per_token = token_mean(k1(log_probs, ref_log_probs), mask)
print(f"{per_response:.4f} nats per response, {per_token:.4f} nats per token")
print(f"mean length {mask.sum() / 3:.4f}, ratio {per_response / per_token:.4f}")
torch.testing.assert_close(per_response / per_token, mask.sum() / 3)

scores = torch.tensor([1.0, 0.0, 0.5])
torch.set_printoptions(precision=3)
for kind in ("token", "sequence_mean"):
    rewards = token_level_rewards(scores, log_probs, ref_log_probs, mask, 0.1, kl=kind)
    print(f'\ntoken rewards, kl="{kind}"', rewards, sep="\n")

# %% [markdown]
# With `kl="sequence_mean"` a response of length $L$ pays $1/L$ of the price: long responses may
# drift nearly for free.
#
# There is a second difference between the two places. In the reward a token is charged for the
# KL of *everything after it*, since its advantage contains the rewards to come. A loss per token
# charges it for its own step only. Which of them is the gradient of the divergence between whole
# responses? Three symbols, two tokens: nine responses, four prefixes.

# %%
RESPONSES = torch.tensor(list(itertools.product(range(3), repeat=2)))  # (9, 2)
STATES = torch.stack([torch.zeros(9, dtype=torch.long), 1 + RESPONSES[:, 0]], 1)  # prefix of each
EVERY = torch.ones(9, 2, dtype=torch.bool)
generator.manual_seed(2)
theta, theta_ref = (
    2 * torch.randn(4, 3, generator=generator) for _ in range(2)
)  # logits per prefix


def tokens_of(logits: Tensor) -> Tensor:
    """(4, 3) -> (9, 2): log-probability of every token of every response."""
    return logits.log_softmax(-1)[STATES].gather(-1, RESPONSES[..., None]).squeeze(-1)


def averaged(token_loss) -> Tensor:
    """Gradient of token_loss(log_probs), summed per response, averaged over responses of theta."""
    weights = tokens_of(theta).sum(1).exp()
    return gradient(lambda z: weights @ row_sums(token_loss(tokens_of(z)), EVERY), theta)


# %%
here, ref = tokens_of(theta), tokens_of(theta_ref)
to_go = discounted_returns(-k1(here, ref), EVERY, 1.0)
whole = gradient(lambda z: kl_between(tokens_of(z).sum(1), ref.sum(1)), theta)
visits = here.sum(1).exp()[:, None].expand(9, 2)
gradients = {
    "k1 in the reward": averaged(lambda lp: policy_gradient(lp, to_go)),
    "k2 in the loss": averaged(lambda lp: k2(lp, ref)),
    "k3 in the loss": averaged(lambda lp: k3(lp, ref)),
    "full in the loss": gradient(
        lambda z: (visits * kl_from_logits(z[STATES], theta_ref[STATES])).sum(), theta
    ),
}
for name, found in gradients.items():
    cosine = torch.cosine_similarity(found.flatten(), whole.flatten(), dim=0)
    print(f"{name:17} largest error {(found - whole).abs().max():.6f}, cosine {cosine:.4f}")
torch.testing.assert_close(gradients["k1 in the reward"], whole, atol=1e-12, rtol=0)
torch.testing.assert_close(gradients["k2 in the loss"], gradients["full in the loss"])
assert (gradients["k2 in the loss"] - whole)[0].abs().max() > 1e-3  # the first token is to blame

# %% [markdown]
# Only k1 in the reward is exact. For the last token k2 and `full` agree with it; for the first
# they miss that it also chooses where the second token is drawn.
#
# The importance ratio of section 5 has the same blind spot. It corrects the choice of a token, given
# the tokens before it. But those were drawn by the old policy, and how often each prefix is visited
# is not corrected. With the old policy's samples:

# %%
theta_old = theta + 0.5 * torch.randn(4, 3, generator=generator)
old = tokens_of(theta_old)
seen = old.sum(1).exp()  # (9,) how often the old policy writes each response
estimate = seen @ row_sums(k1_importance(here, old, ref), EVERY)
at_old_prefixes = seen @ kl_between(theta[STATES], theta_ref[STATES]).sum(1)
true_kl = kl_between(here.sum(1), ref.sum(1))
print(f"ratio k1, old samples           {estimate:.6f}")
print(f"KL at the old policy's prefixes {at_old_prefixes:.6f}")
print(f"KL of the responses             {true_kl:.6f}")
torch.testing.assert_close(estimate, at_old_prefixes)
assert abs(estimate - true_kl) > 1e-3

# %% [markdown]
# So "unbiased" means: exact for the next token at every prefix that the old policy has written. While
# old and new policy are close, the difference is small.
#
# ## 8. A coefficient that steers itself
#
# **Why.** Which $\beta$ keeps the policy six nats from the reference? Nobody knows before training.
# Ziegler et al. 2019 ([arXiv:1909.08593](https://arxiv.org/abs/1909.08593), section 2.2) fix the
# divergence instead and let the coefficient follow. With $n$ responses per update and a horizon
# $H$, as in their code:
#
# $$e = \mathrm{clip}\left( \frac{\mathrm{KL}}{\mathrm{KL}_{target}} - 1, -0.2, 0.2 \right),
# \qquad \beta \leftarrow \beta \left( 1 + \frac{n}{H} e \right)$$

# %%
print(inspect.getsource(kl.AdaptiveKL.update))
controller = kl.AdaptiveKL(coef=0.2, target=6.0, horizon=10_000)
controller.update(kl_per_response=9.0, responses=256)
print(f"KL 9 instead of 6: 0.2 -> {controller.coef:.6f}")
assert abs(controller.coef - 0.2 * (1 + 0.2 * 256 / 10_000)) < 1e-12

# %% [markdown]
# A policy without memory writes eight tokens per response, each worth something. Its gradient is
# exact; the KL is *measured*, on 256 responses per update. The wrong run differs in one thing: it
# feeds the controller the mean per token, and so asks for eight times the divergence.

# %%
WORTH, LENGTH, TARGET = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 1.0]), 8, 2.0


def penalised_worth(logits: Tensor, coef: float) -> Tensor:
    """What one token brings in expectation, minus its share of the penalty."""
    return logits.softmax(-1) @ WORTH - coef * kl_between(logits, ref6)


def controlled(controller, per_response: bool, updates: int = 600) -> Tensor:
    """(updates, 2): the coefficient, and the KL in nats per response."""
    generator = torch.Generator().manual_seed(3)
    logits, trace = ref6.clone(), []
    for _ in range(updates):
        drawn = torch.multinomial(logits.softmax(-1), 256 * LENGTH, True, generator=generator)
        drawn = drawn.view(256, LENGTH)
        measured = k1(logits.log_softmax(-1)[drawn], ref6.log_softmax(-1)[drawn])  # (256, 8)
        nats = measured.sum(1).mean() if per_response else measured.mean()
        trace.append([controller.coef, LENGTH * float(kl_between(logits, ref6))])
        logits += 0.2 * gradient(partial(penalised_worth, coef=controller.coef), logits)
        controller.update(float(nats), responses=256)
    return torch.tensor(trace)


# %%
traces = {
    "fixed": controlled(kl.FixedKL(0.2), True),
    "adaptive, fed per response": controlled(kl.AdaptiveKL(0.2, TARGET, 2560), True),
    "adaptive, fed per token (wrong)": controlled(kl.AdaptiveKL(0.2, TARGET, 2560), False),
}
figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.6), layout="constrained")
for (name, trace), color in zip(traces.items(), ("gray", "tab:blue", "tab:red"), strict=True):
    axes[0].plot(trace[:, 1], color=color, label=name)
    axes[1].semilogy(trace[:, 0], color=color, label=name)
axes[0].axhline(TARGET, color="black", ls="--", label="target")
axes[0].set(xlabel="update", ylabel="KL (nats per response)", title="the divergence")
axes[1].set(xlabel="update", ylabel="coefficient", title="what holds it")
axes[0].legend(fontsize=8)
plt.show()
settled = {name: trace[-100:, 1].mean() for name, trace in traces.items()}
print({name: round(float(value), 3) for name, value in settled.items()})
assert abs(settled["adaptive, fed per response"] / TARGET - 1) < 0.05
assert settled["adaptive, fed per token (wrong)"] > 5 * TARGET

# %% [markdown]
# ## Exercise
#
# A code base computes `log_ratio = log_probs - ref_log_probs` and then "k3" as
# `log_ratio.exp() - log_ratio - 1`, for samples of the policy.
#
# 1. Is it ever negative? Is it 0 where the two models agree? Would a curve of it look suspicious?
# 2. What does it estimate? Compute it for the three symbols of section 1.
# 3. Which gradient does it have as a loss, for samples of the policy?
#
# <details>
# <summary>Answer</summary>
#
# 1. Never negative, 0 at agreement, and close to the right curve while the policy is near the
#    reference, since both are $\delta^2 / 2$ there. That is why the mistake survives.
# 2. $\mathbb{E}_\pi[\pi / \pi_{ref}] - 1 - \mathrm{KL}(\pi \Vert \pi_{ref}) =
#    \chi^2(\pi \Vert \pi_{ref}) - \mathrm{KL}(\pi \Vert \pi_{ref})$: here
#    $0.25/0.2 + 0.09/0.5 + 0.04/0.3 - 1 - 0.223805 = 0.339529$, where the KL is $0.223805$.
# 3. With $r = \pi / \pi_{ref}$ it is $\mathbb{E}_\pi[(r - 1) \nabla \log \pi] =
#    \mathbb{E}_\pi[r \nabla \log \pi] = \frac{1}{2} \nabla \chi^2(\pi \Vert \pi_{ref})$, since
#    $\mathbb{E}_\pi[\nabla \log \pi] = 0$. It does pull back, harder and harder where the policy
#    has gained mass: a penalty, but not the one in the paper.
#
# To check, the library's function with its arguments exchanged is the turned ratio:
#
# ```python
# turned = k3(listed(REF), listed(POLICY))  # delta = log pi - log ref
# print(expectation(POLICY, turned).item())  # 0.339529
#
# log_ratio = lambda z: listed(z) - listed(REF)
# print(gradient(lambda z: expectation(z, log_ratio(z).exp() - log_ratio(z) - 1)))
# chi_square = lambda z: (z.softmax(-1).square() / REF.exp()).sum() - 1
# print(gradient(chi_square) / 2)  # the same three numbers
# ```
#
# </details>
