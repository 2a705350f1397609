# %% [markdown]
# # 8. KL as value, as loss, as reward
#
# **The question.** RLHF replaces a KL divergence by one number per sampled token. Which number has
# the right *value*, and which has the right *gradient*?
#
# **After this page you can** say for k1, k2 and k3 which has the right value and which the right
# gradient, in the reward and in the loss, with new samples and with old ones, and hold a KL term of your
# own against the truth.
#
# **Why.** They are not the same, and training uses the gradient alone. This page computes both on
# distributions small enough to list, so "exact" means exact.
#
# **You need** [05_what_a_kl_is](05_what_a_kl_is.ipynb), which explains the two directions, nats per
# response against nats per token, and why k1 belongs in the reward. You also need
# [04_policy_gradients_and_baselines](04_policy_gradients_and_baselines.ipynb), for the policy
# gradient and the ratio.
#
# **It takes** about ten seconds on one CPU core, after start-up.

# %%
import itertools

import matplotlib.pyplot as plt
import torch

try:
    from course import plots
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.claims import holds
from course.exercises import check
from torch import Tensor

from conformance.checking import check as hold
from conformance.kinds import KINDS
from gpt.log_probs import kl_from_logits
from harness.tensors import masked_sum
from rl.equations.advantages import discounted_returns
from rl.equations.kl import absolute, k1, k1_importance, k2, k3, k3_importance
from rl.equations.losses import clipped_surrogate, policy_gradient

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
torch.set_default_dtype(torch.float64)  # "exact" below means: to 1e-12
torch.set_printoptions(precision=6, sci_mode=False, linewidth=100)

# %% [markdown]
# ## 1. The value
#
# The divergence that RLHF wants to be small is an average over what the policy $\pi$ says:
#
# $$\mathrm{KL}(\pi \Vert \pi_{ref}) = \mathbb{E}_{y \sim \pi} \left[ \log \frac{\pi(y)}
# {\pi_{ref}(y)} \right]$$
#
# An *estimator* is a number for one sample $y$ whose average should be this. With $\delta = \log
# \pi_{ref}(y) - \log \pi(y)$, Schulman 2020,
# ["Approximating KL Divergence"](http://joschu.net/blog/kl-approx.html), names three. k3 is also
# Eq. 4 of GRPO, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300).
#
# $$k_1 = -\delta, \qquad k_2 = \tfrac{1}{2} \delta^2, \qquad k_3 = e^{\delta} - \delta - 1$$
#
# Three symbols are enough to see what they do. Here every symbol is a response of one token, and an
# average over samples is a sum over three rows.

# %%
POLICY = torch.tensor([0.5, 0.3, 0.2]).log()
REF = torch.tensor([0.2, 0.5, 0.3]).log()

delta = REF - POLICY  # one number per symbol
naive = {"k1": -delta, "k2": delta**2 / 2, "k3": delta.exp() - delta - 1, "|k1|": delta.abs()}
true_kl = (POLICY.exp() * (POLICY - REF)).sum()
rows = []
for name, values in naive.items():
    average = (POLICY.exp() * values).sum()
    bias = "exact" if abs(average - true_kl) < 1e-12 else f"{average - true_kl:+.6f}"
    rows.append([name, *(f"{v:+.4f}" for v in values.tolist()), f"{average:.6f}", bias])
rows.append(["KL", "", "", "", f"{true_kl:.6f}", ""])
columns = ["", "symbol 0, p 0.5", "symbol 1, p 0.3", "symbol 2, p 0.2", "average", "bias"]
plots.table(columns, rows, shade=lambda cell: "good" if cell == "exact" else None)

# %% [markdown]
# k1 is *unbiased*: its average is exactly right. But it is negative for two of the three symbols,
# although a divergence never is. k3 is unbiased *and* never negative. It adds $e^\delta - 1$ to k1,
# and the average of that is $\sum \pi_{ref} - 1 = 0$. k2 is biased, but only a
# little near the reference. The absolute value of k1 estimates something else.
#
# The library's functions take log-probabilities of shape (N, T), here N = 3 and T = 1:


# %%
def listed(logits: Tensor) -> Tensor:
    """(V,) -> (V, 1): every symbol once, as the log-probability of a response of one token."""
    return logits.log_softmax(-1)[:, None]


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3, "|k1|": absolute}
for name, function in ESTIMATORS.items():
    torch.testing.assert_close(function(listed(POLICY), listed(REF))[:, 0], naive[name])
plots.code(k1, docstring=False)
plots.code(k3, docstring=False)

# %% [markdown]
# **Predict, then run.** A batch gives one number. Which estimator's number scatters less, k1's or
# k3's? Six symbols, 20,000 batches of 64 samples: once with a policy near the reference, once with
# one far from it.

# %%
generator = torch.Generator().manual_seed(0)
ref6 = torch.tensor([0.20, 0.22, 0.20, 0.18, 0.10, 0.10]).log()
tilt = torch.tensor([1.0, 0.4, 0.1, -0.2, -0.5, -0.8])
figure, axes = plots.panels(2)
below, spread = {}, {}
for axis, strength, where in zip(axes, (0.5, 2.55), ("near", "far"), strict=True):
    one = (ref6 + strength * tilt).log_softmax(-1)
    truth = (one.exp() * (one - ref6)).sum()
    draws = torch.multinomial(one.exp(), 20_000 * 64, replacement=True, generator=generator)
    means = {name: ESTIMATORS[name](one[draws, None], ref6[draws, None]).view(-1, 64).mean(1)
             for name in ("k1", "k3")}  # fmt: skip
    spread |= {(where, name): float(m.std()) for name, m in means.items()}
    below |= {(where, name): float((m < truth).double().mean()) for name, m in means.items()}
    plots.histograms(means, axis=axis, bins=60, means=False, xlabel="mean of 64 samples (nats)",
                    ylabel="batches", title=f"{where}: the KL is {truth:.2f} nats")  # fmt: skip
    axis.axvline(truth, **plots.line("exact"))
axes[1].set_xlim(0, 2.5)
plt.show()
for (where, name), share in below.items():
    print(f"{where:4} {name}: scatters by {spread[where, name]:.3f} nats, ", end="")
    print(f"{share:.0%} of the batches too low")
holds(spread["near", "k3"] < spread["near", "k1"] / 5, "near the reference k3 scatters less")
holds(spread["far", "k3"] > spread["far", "k1"], "far away it scatters more")
holds(below["far", "k3"] > 0.6 > below["far", "k1"], "far away k3 is too small in most batches")

# %% [markdown]
# Near the reference k3's mean scatters by 0.005 nats and k1's by 0.035. Far away it is the other way round,
# 0.21 and 0.12: wherever the policy has *lost* mass, $\pi_{ref} / \pi$ is huge but rarely sampled, so k3 is
# too small in most batches and makes up for it in a few. For a *curve* of a large divergence k1 is the
# better instrument.
#
# ## 2. Value is not gradient
#
# There are two ways to turn a number $k(y)$ into a gradient:
#
# - **in the loss**: differentiate it, $\mathbb{E}_{y \sim \pi}[\nabla k(y)]$;
# - **in the reward**: take it as a number $\bar k$ without a gradient, and let the policy gradient
#   work on it, $\mathbb{E}_{y \sim \pi}[\bar k(y) \nabla \log \pi(y)]$.
#
# The gradient of the *average* has both parts, because the distribution that the samples come from
# moves as well. Calling `backward` on a mean over samples gives only the second part:
#
# $$\nabla \mathbb{E}_{y \sim \pi}[k(y)] = \mathbb{E}_{y \sim \pi}[\bar k(y) \nabla \log \pi(y)]
# + \mathbb{E}_{y \sim \pi}[\nabla k(y)]$$
#
# So an unbiased value can have any gradient (see "Rethinking KL Regularization in RLHF",
# [arXiv:2510.01555](https://arxiv.org/abs/2510.01555), and REINFORCE++,
# [arXiv:2501.03262](https://arxiv.org/abs/2501.03262), Appendix B.1). First k1, naively:


# %%
def gradient(function, at: Tensor = POLICY) -> Tensor:
    """Gradient of function(logits) at `at`."""
    logits = at.clone().requires_grad_()
    return torch.autograd.grad(function(logits), logits)[0]


samples = POLICY.exp()  # each symbol with its share of the samples: a constant, as samples are
k1_values = POLICY - REF
in_loss = gradient(lambda z: (samples * (z.log_softmax(-1) - REF)).sum())
in_reward = gradient(lambda z: (samples * k1_values * z.log_softmax(-1)).sum())
of_the_kl = gradient(lambda z: (z.softmax(-1) * (z.log_softmax(-1) - REF)).sum())

print("k1 in the loss      ", in_loss)
print("k1 in the reward    ", in_reward)
print("gradient of the KL  ", of_the_kl)
assert in_loss.abs().max() < 1e-12
torch.testing.assert_close(in_reward, of_the_kl, atol=1e-12, rtol=0)

# %% [markdown]
# **k1 as a loss has no gradient at all.** The reason is $\mathbb{E}[\nabla \log \pi] = \nabla \sum_y
# \pi(y) = 0$; and $\log \pi_{ref}$ is a constant. The reference has dropped out. In the reward the
# same k1 is exactly right.
#
# Now every form, in both places, with samples of the policy (*on-policy*) and with samples of an
# older policy (*off-policy*): the one that wrote the rollout. The names in the table are
# **computed**, by comparing each gradient with candidates.


# %%
def expectation(logits: Tensor, per_symbol: Tensor) -> Tensor:
    """E over symbols drawn from `logits`; the weights are constants, as samples are."""
    return (listed(logits).exp().detach() * per_symbol).sum()


def kl_between(one: Tensor, other: Tensor) -> Tensor:
    """KL(one || other) of two rows of logits, by its definition."""
    return (one.softmax(-1) * (one.log_softmax(-1) - other.log_softmax(-1))).sum(-1)


OLD = torch.tensor([0.4, 0.25, 0.35]).log()
FORMS = {
    "k1": lambda lp, old, ref: k1(lp, ref),
    "k2": lambda lp, old, ref: k2(lp, ref),
    "k3": lambda lp, old, ref: k3(lp, ref),
    "|k1|": lambda lp, old, ref: absolute(lp, ref),
    "ratio k1": k1_importance,
    "ratio k3": k3_importance,
    "full": lambda lp, old, ref: kl_from_logits(lp.T, ref.T).expand(len(lp), 1),
}
reverse, forward = gradient(lambda z: kl_between(z, REF)), gradient(lambda z: kl_between(REF, z))
CANDIDATES = {
    "0": torch.zeros(3),
    "reverse": reverse,
    "forward": forward,
    "reverse - forward": reverse - forward,
    "away from old": gradient(lambda z: -kl_between(OLD, z)),
    "reverse - to old": reverse - gradient(lambda z: kl_between(z, OLD)),
}


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
def line_of(name: str, sampler: Tensor) -> list[str]:
    """Value, gradient in the loss and gradient in the reward of one form."""
    form = FORMS[name]
    bias = expectation(sampler, form(listed(POLICY), listed(sampler), listed(REF))) - true_kl
    value = "exact" if abs(bias) < 1e-12 else f"{bias:+.4f}"
    return [value, called(loss_gradient(form, sampler)), called(reward_gradient(form, sampler))]


TABLE = {name: line_of(name, POLICY) + line_of(name, OLD) for name in FORMS}
SHADES = {"exact": "good", "reverse": "good", "reverse - to old": "good", "0": "bad",
          "away from old": "bad", "none of these": "bad"}  # fmt: skip
columns = ["", "value", "in the loss", "in the reward"]
columns += ["old samples: value", "in the loss", "in the reward"]
plots.table(columns, [[name, *cells] for name, cells in TABLE.items()], shade=SHADES.get)

# %%
in_loss = [cells[1] for cells in TABLE.values()]
assert in_loss == ["0", "reverse", "forward", "none of these", "reverse", "reverse", "reverse"]
assert TABLE["k1"][2] == "reverse" and TABLE["k3"][2] == "reverse - forward"
assert [TABLE[name][4] for name in ("ratio k1", "ratio k3", "full")] == ["reverse"] * 3
assert TABLE["k1"][4] == "away from old" and TABLE["k3"][4] == "none of these"

# %% [markdown]
# Green is what we want, orange is a trap, and no colour means another KL.
#
# - **k1** belongs in the reward. As a loss it does nothing on-policy. Off-policy it is *worse* than
#   nothing: it pushes away from whatever the old policy said, and the reference plays no part.
# - **k2** as a loss has the gradient of the reverse KL on-policy, though its value is biased.
# - **k3** as a loss has that of the *forward* KL, though its value is exact. Both are 0 at the
#   reference only, so GRPO does regularise, but with another KL than the one its Eq. 4 names.
# - **k3 in the reward** pulls back with one divergence and pushes away with the other.
# - **ratio k1** and **ratio k3** multiply by $\rho = \pi / \pi_{old}$, *differentiated as well*. They
#   are the reverse KL with old samples too (DeepSeek-V3.2,
#   [arXiv:2512.02556](https://arxiv.org/abs/2512.02556), "unbiased KL estimate").
# - **full** sums over the vocabulary and is exact in the loss. In the reward it does nothing here: it
#   is the same number whatever token was drawn.
# - **reverse - to old**: a penalty that was measured at the rollout stays the same number while the
#   policy moves. Its gradient is that of the KL to the reference minus that of the KL to the old policy.
#   The second part is 0 at the first update, so PPO starts exactly right.
#
# ## 3. Why k1 as a loss regularises nothing
#
# **Predict, then run.** "Its expected gradient is 0" sounds harmless. A softmax over three symbols
# starts far from the reference and minimises the penalty alone: once with the exact gradient, once
# with 8 samples per step (mean of 64 runs). Where does minimising k1 end up when estimated from
# samples?

# %%
START = torch.tensor([0.10, 0.15, 0.75]).log()


def minimise(form, runs: int, samples: int, steps: int = 200, rate: float = 0.5) -> Tensor:
    """KL(pi || ref) over the steps, (steps,), mean of the runs. `samples` = 0: the exact gradient."""
    generator = torch.Generator().manual_seed(1)
    logits, trace = START.expand(runs, 3).clone(), []
    for _ in range(steps):
        trace.append(kl_between(logits, REF).mean())
        z = logits.clone().requires_grad_()
        log_probs, ref = z.log_softmax(-1), REF.expand(runs, 3)  # (runs, 3)
        weights = log_probs.exp().detach()
        if samples:
            drawn = torch.multinomial(weights, samples, replacement=True, generator=generator)
            log_probs, ref = log_probs.gather(1, drawn), ref.gather(1, drawn)  # (runs, samples)
            weights = torch.full_like(ref, 1 / samples)
        loss = (weights * form(log_probs, log_probs.detach(), ref)).sum()
        logits = logits - rate * torch.autograd.grad(loss, z)[0]
    return torch.stack(trace).abs()


LOSSES = ("k1", "k2", "k3", "|k1|")
exact = {name: minimise(FORMS[name], 1, 0) for name in LOSSES}
sampled = {name: minimise(FORMS[name], 64, 8) for name in LOSSES}

# %% tags=["hide-input"]
figure, (left, right) = plots.panels(2)
back, of_k1 = dict(sampled), {"exact gradient": exact["k1"], "8 samples per step": sampled["k1"]}
del back["k1"]
plots.curves(back, axis=left, styles={"|k1|": "bad"}, title="8 samples per step: back to the reference",
            xlabel="step", ylabel="KL(pi || ref) (nats)", yscale="log", ylim=(1e-6, 1))  # fmt: skip
plots.curves(of_k1, axis=right, styles={"exact gradient": "exact", "8 samples per step": "k1"},
            title="k1 as the loss", xlabel="step", ylabel="KL(pi || ref) (nats)",
            ylim=(0, 0.8))  # fmt: skip
plt.show()
for name in LOSSES:
    print(f"{name:5} from {exact[name][0]:.4f} nats: exact to {exact[name][-1]:.4f}", end="")
    print(f", sampled to {sampled[name][-1]:.4f}")
holds(torch.allclose(exact["k1"], exact["k1"][0]), "with the exact gradient k1 does not move")
holds(exact["k2"][-1] < 1e-3 and exact["k3"][-1] < 1e-3, "k2 and k3 return to the reference")
holds(sampled["k1"][-1] > sampled["k1"][0], "with samples, k1 as a loss makes the KL grow")

# %% [markdown]
# With the exact gradient, k1 does not move. With samples it walks at random: nothing leads it back, and
# near a corner its steps become small, because hardly anything else is drawn there. So the runs collect
# near the corners, slowly, and their mean KL *grows*. k2 and k3 return to the reference. The absolute value
# comes near it but cannot settle, because it pulls next to the reference as hard as far away.
#
# With a reward there is an exact answer to compare with: the best policy is $\pi^* \propto \pi_{ref} \,
# e^{R / \beta}$ ([05](05_what_a_kl_is.ipynb), section 7; [14](14_dpo_and_pg_grpo.ipynb) derives it).
# Training with each penalty:

# %%
SCORES, BETA = torch.tensor([1.0, 0.6, 0.0]), 0.5
optimum = (REF + SCORES / BETA).softmax(-1)


def maximise(place: str, form, steps: int = 1500, rate: float = 1.0) -> Tensor:
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


trained = {"optimum": optimum}
for place, names in (("reward", ("k1", "k3")), ("loss", ("k1", "k2", "k3"))):
    trained |= {f"{name} in\nthe {place}": maximise(place, FORMS[name]) for name in names}

# %%
bars = {f"symbol {v}, reward {SCORES[v]:.1f}": [float(p[v]) for p in trained.values()]
        for v in range(3)}  # fmt: skip
axis = plots.bars(bars, list(trained), axis=plots.panels(1, width=9)[1], ylim=(0, 1.25),
                 ylabel="probability after training", xlabel="penalty")  # fmt: skip
axis.legend(ncols=3, loc="upper center")
plt.show()
for name in ("k1 in\nthe reward", "k2 in\nthe loss"):
    holds((trained[name] - optimum).abs().max() < 1e-6, f"{name} reaches the optimum")
holds(trained["k1 in\nthe loss"][0] > 0.99, "k1 in the loss acts as if there were no penalty")

# %% [markdown]
# k1 in the reward and k2 in the loss reach the optimum, and k3 in the loss stops beside it. The other
# two, k3 in the reward and k1 in the loss, put everything on one symbol.
#
# ## 4. Old samples
#
# PPO and GRPO take several updates from one rollout. From the second one on the samples come from
# $\pi_{old}$, and "k3 is unbiased" is no longer true. Here the policy moves away from the old one,
# along one logit. What do the estimates say, on average over the *old* policy's samples?

# %%
direction, moves = torch.tensor([1.0, 0.0, 0.0]), torch.linspace(-3, 3, 61)
walk = [OLD + s * direction for s in moves]
estimates = {}
for name in ("k1", "k3", "ratio k3"):
    estimates[f"{name}, old samples"] = [
        expectation(OLD, FORMS[name](listed(z), listed(OLD), listed(REF))) for z in walk
    ]
estimates["exact KL"] = [kl_between(z, REF) for z in walk]  # drawn last, over the line it equals
plots.curves(
    {name: [float(v) for v in values] for name, values in estimates.items()}, moves.tolist(),
    styles={"exact KL": "exact", "k1, old samples": "k1", "k3, old samples": "k3",
            "ratio k3, old samples": "policy"},
    axis=plots.panels(1, width=7)[1], ylim=(-1, 3), ylabel="expected estimate (nats)",
    xlabel="logit of symbol 0, relative to the old policy",
)  # fmt: skip
plt.show()
for truth, found in zip(estimates["exact KL"], estimates["ratio k3, old samples"], strict=True):
    torch.testing.assert_close(truth, found)

# %% [markdown]
# "ratio k3" and the exact KL are one line everywhere. Plain k3 follows only for a small step, and
# k1 goes the wrong way.
#
# ## 5. More than one token
#
# A penalty in the reward charges a token for its own KL and for *everything after it*, because its
# advantage contains the rewards to come. A penalty in the loss charges its own step only. Which of
# them is the gradient of the KL between whole *responses*? Three symbols and two tokens make nine
# responses, so it can be listed.

# %%
RESPONSES = torch.tensor(list(itertools.product(range(3), repeat=2)))  # (9, 2)
STATES = torch.stack([torch.zeros(9, dtype=torch.long), 1 + RESPONSES[:, 0]], 1)  # prefix of each
EVERY = torch.ones(9, 2, dtype=torch.bool)
generator.manual_seed(2)
theta, theta_ref = (2 * torch.randn(4, 3, generator=generator) for _ in range(2))  # by prefix


def tokens_of(logits: Tensor) -> Tensor:
    """(4, 3) -> (9, 2): log-probability of every token of every response."""
    return logits.log_softmax(-1)[STATES].gather(-1, RESPONSES[..., None]).squeeze(-1)


def averaged(token_loss) -> Tensor:
    """Gradient of token_loss(log_probs), summed per response, averaged over responses of theta."""
    weights = tokens_of(theta).sum(1).exp()
    return gradient(lambda z: weights @ masked_sum(token_loss(tokens_of(z)), EVERY), theta)


# %%
here, ref = tokens_of(theta), tokens_of(theta_ref)
to_go = discounted_returns(-k1(here, ref), EVERY, 1.0)
whole = gradient(lambda z: kl_between(tokens_of(z).sum(1), ref.sum(1)), theta)
gradients = {
    "k1 in the reward": averaged(lambda lp: policy_gradient(lp, to_go)),
    "k2 in the loss": averaged(lambda lp: k2(lp, ref)),
    "k3 in the loss": averaged(lambda lp: k3(lp, ref)),
}
weights = here.sum(1).exp()  # of the nine responses
gradients["k2 of the answer's sum"] = gradient(
    lambda z: (weights @ k2(tokens_of(z).sum(1, True), ref.sum(1, True))).sum(), theta
)
rows = []
for name, found in gradients.items():
    cosine = torch.cosine_similarity(found.flatten(), whole.flatten(), dim=0)
    error = (found - whole).abs().amax(1)  # by prefix: the first, and the three second ones
    verdict = "exact" if error.max() < 1e-12 else "not exact"
    rows.append([name, f"{error[0]:.4f}", f"{error[1:].max():.4f}", f"{cosine:.4f}", verdict])
columns = ["", "error, first token", "error, second token", "cosine", ""]
plots.table(columns, rows, shade={"exact": "good", "not exact": "bad"}.get)
for name in ("k1 in the reward", "k2 of the answer's sum"):
    torch.testing.assert_close(gradients[name], whole, atol=1e-12, rtol=0)
holds(
    (gradients["k2 in the loss"] - whole)[1:].abs().max() < 1e-12, "k2 is right for the last token"
)
holds(
    (gradients["k2 in the loss"] - whole)[0].abs().max() > 1e-3, "k2 is wrong for the first token"
)

# %% [markdown]
# k1 in the reward is exact, and as a loss half the square of the *sum* of an answer's k1 is exact as well.
# k2 of single tokens is right for the last token. But for the first it misses that this token also chooses
# where the second one is drawn. The ratio of section 4 has the same blind spot, because it corrects the
# choice of a token but not how often the tokens before it are visited.
#
# **In the engines.** `--kl-estimator` of `rl.grpo_engine` takes `k2` or `k3`, and no `k1`. All estimators
# are in [rl/equations/kl.py](../rl/equations/kl.py).
#
# ## 6. Exercises
#
# Fill in the functions and run the cells. `check` says in words what is right or wrong.
#
# **1.** What does k2 do in the loss, on average? Write its expected gradient for the logits of one
# distribution, (V,), without autograd. (By the chain rule $\nabla k_2(y) = \log \frac{\pi(y)}
# {\pi_{ref}(y)} \nabla \log \pi(y)$, and $\nabla \log \pi(y)$ is the one-hot of $y$ minus the
# probabilities: [page 04](04_policy_gradients_and_baselines.ipynb), section 3. Then average over $y$.)


# %%
def my_k2_gradient(logits, ref_logits):
    return ...  # your lines


check("k2_gradient", my_k2_gradient)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_k2_gradient(logits, ref_logits):
#     p = logits.softmax(0)
#     d = logits.log_softmax(0) - ref_logits.log_softmax(0)
#     return p * (d - (p * d).sum())
# ```
#
# It is the gradient of the reverse KL.
#
# </details>
#
# **2.** Write k3 for samples of an older policy. All arguments are (N, T) log-probs.


# %%
def my_k3_old_samples(log_probs, old_log_probs, ref_log_probs):
    return ...  # your lines


check("k3_old_samples", my_k3_old_samples)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_k3_old_samples(log_probs, old_log_probs, ref_log_probs):
#     ratio = (log_probs - old_log_probs).exp()  # with its gradient
#     delta = ref_log_probs - log_probs
#     return ratio * (delta.exp() - delta - 1)
# ```
#
# </details>
#
# **3.** Two policies of three words, and four estimators of their KL, over all samples. The last column
# is the gradient of each as a *loss*, for the three logits. Which row is k3? (The others are k1, k2 and a
# k3 with the ratio upside down. No solution is printed.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("which_is_k3", MINE)

# %%
check_answer("which_is_k3", ..., MINE)

# %% [markdown]
# ## 7. Check your own loss
#
# A term that published code added to its loss as "k3", for tokens sampled from the policy (it has been
# mended since; [the kit](../conformance/README.md) has the source). In our notation:


# %%
def published(log_probs, ref_log_probs):
    log_ratio = log_probs - ref_log_probs
    return torch.expm1(log_ratio) - log_ratio


mean = (POLICY.exp() * published(POLICY, REF)).sum()
print(f"the KL {true_kl:.4f}, mean of published {mean:.4f}")
holds(mean > true_kl + 0.1, "the mean of the published k3 is not the KL")
verdict = hold(published, KINDS["kl_loss"])
print(f"{verdict.status}: {verdict.says}")
holds(verdict.status == "mistake", "it can name the mistake")

# %% [markdown]
# The ratio is upside down. With samples of the *reference* this form would be right, and estimate the
# forward KL. Near the reference both forms are $\delta^2 / 2$, so that no curve tells them apart there. The
# second line is from the [conformance kit](../conformance/README.md), which tries a function on worked
# cases and can name the mistake: `python -m conformance mine.py:published`. It does not see whether a
# function is called with the right things; for that there is the [bug zoo](17_bug_zoo.ipynb).
#
# ## To remember
#
# - An estimate with the right value can have any gradient, and training uses the gradient alone.
# - k1 belongs in the reward, and as a loss it does nothing on average; k2 as a loss has the gradient of
#   the reverse KL, k3 that of the forward one.
# - Old samples need the ratio, differentiated as well. For whole responses k1 in the reward is exact, and
#   k2 or k3 of single tokens in the loss are not: they leave out where a token leads.
#
# Next: [09_ppo](09_ppo.ipynb). GRPO gives every token of an answer the same advantage. PPO asks which
# *token* was good.
