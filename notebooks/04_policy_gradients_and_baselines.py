# %% [markdown]
# # 7. Policy gradients and baselines
#
# **Why.** REINFORCE, RLOO, GRPO, REINFORCE++ and PPO ascend the same expected reward. What differs
# is one tensor, the **advantage**: by how much a response, or a token, was better than expected.
# Which of the choices point in the right direction, and how much do they scatter? With a model that
# is a question of long runs and many seeds. With a language of 15 possible responses it is a sum.
#
# | section | idea | source | code |
# | --- | --- | --- | --- |
# | 1 | a policy that can be listed, and its true gradient | | |
# | 2 | REINFORCE | Williams 1992 | `policy_gradient` |
# | 3 | baselines: constant, group mean, leave-one-out | arXiv:2402.14740 | `leave_one_out_advantages` |
# | 4 | z-scores and whitening | arXiv:2402.03300, arXiv:2501.03262 | `group_advantages`, `whiten` |
# | 5 | bias and variance of all of them | | |
# | 6 | a critic: GAE, and how padding leaks into it | arXiv:1506.02438 | `gae` |
# | 7 | PPO's clip, seen through its gradient | arXiv:1707.06347, Eq. 7 | `clipped_surrogate` |
# | 8 | what it means for learning | | |
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about ten seconds on one CPU core. The page before this one
# is [03_pretraining_and_sft](03_pretraining_and_sft.ipynb); the next:
# [06_reward_model](06_reward_model.ipynb).

# %%
import inspect
import itertools
import math
from collections import Counter

import matplotlib.pyplot as plt
import torch
from torch import Tensor

try:
    from rl.equations.advantages import (
        discounted_returns,
        gae,
        group_advantages,
        leave_one_out_advantages,
        whiten,
    )
    from rl.equations.losses import (
        clipped_surrogate,
        dual_clip,
        policy_gradient,
        row_sums,
        sequence_sum,
    )
    from rl.equations.token_rewards import at_last_token
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

# %%
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
torch.set_default_dtype(torch.float64)  # "exact" below means: to 1e-12
torch.set_printoptions(precision=4, sci_mode=False, linewidth=100)

# %% [markdown]
# ## 1. A language of 15 responses
#
# Two letters, `a` and `b`, and `.`, which ends the response (it is the EOS token). At most three
# tokens: 15 responses, some of them cut off without a `.`. A policy is one row of three logits for
# each of the 7 prefixes, 21 parameters in all. The tensors look as they do with a real model: N
# responses, T columns, and a mask that is True up to and including the EOS.

# %%
NAMES = ".ab"  # token 0 is the EOS
EOS, LETTERS, T = 0, (1, 2), 3
ended = [
    (*prefix, EOS) for n in range(T) for prefix in itertools.product(LETTERS, repeat=n)
]  # 7 responses with an EOS
LISTED = ended + list(itertools.product(LETTERS, repeat=T))  # and 8 without
prefixes = [p for n in range(T) for p in itertools.product(LETTERS, repeat=n)]

TOKENS = torch.tensor([[*r, *[EOS] * (T - len(r))] for r in LISTED])  # (15, 3)
MASK = torch.arange(T) < torch.tensor([len(r) for r in LISTED])[:, None]
STATES = torch.tensor(
    [[prefixes.index(r[:t]) if t < len(r) else 0 for t in range(T)] for r in LISTED]
)


def log_probs_of(theta: Tensor) -> Tensor:
    """(7, 3) -> (15, 3): log-probability of every token of every response."""
    return theta.log_softmax(-1)[STATES].gather(-1, TOKENS[..., None]).squeeze(-1)


def probabilities(theta: Tensor) -> Tensor:
    """(15,): a response's probability is the product over its tokens."""
    return row_sums(log_probs_of(theta), MASK).exp()


# %% [markdown]
# The reward likes `b`, dislikes `a`, wants the response to end, and has an offset of 2, as reward
# models have one that means nothing. The policy is random.

# %%
generator = torch.Generator().manual_seed(0)
THETA = 0.7 * torch.randn(7, 3, generator=generator)
REWARDS = torch.tensor([2 + 0.5 * r.count(2) - 0.3 * r.count(1) + (EOS in r) for r in LISTED])

print("response  mask               probability  reward")
for response, mask, p, reward in zip(LISTED, MASK, probabilities(THETA), REWARDS, strict=True):
    text = "".join(NAMES[token] for token in response)
    print(f"{text:8}  {str(mask.int().tolist()):18} {p:9.4f} {reward:9.1f}")
torch.testing.assert_close(probabilities(THETA).sum(), torch.tensor(1.0))

# %% [markdown]
# Now the quantity that all estimators estimate. The expected reward is a sum of 15 terms, and its
# gradient needs no trick and no sample:
#
# $$J(\theta) = \sum_y \pi_\theta(y) R(y)$$


# %%
def expected_reward(theta: Tensor) -> Tensor:
    return probabilities(theta) @ REWARDS


def gradient(function, at: Tensor = THETA) -> Tensor:
    """Gradient of function(theta), (7, 3)."""
    theta = at.clone().requires_grad_()
    return torch.autograd.grad(function(theta), theta)[0]


TRUE = gradient(expected_reward)
print(f"expected reward {expected_reward(THETA):.4f}, best {REWARDS.max():.1f}")
print("true gradient; columns: the logits of  .  a  b")
for prefix, row in zip(prefixes, TRUE, strict=True):
    text = "".join(NAMES[token] for token in prefix) or "(start)"
    print(f"  after {text:8}" + "".join(f"{g:9.4f}" for g in row))

# %% [markdown]
# ## 2. REINFORCE
#
# **Why.** Nobody can list the responses of a language model. But a gradient of probabilities is an
# average of gradients of *log*-probabilities, and averages can be sampled (Williams 1992; Eq. 6 of
# RLOO, [arXiv:2402.14740](https://arxiv.org/abs/2402.14740)):
#
# $$\nabla J = \sum_y R(y) \nabla \pi(y) =
# \mathbb{E}_{y \sim \pi}\left[R(y) \, \nabla \log \pi(y)\right], \qquad
# \log \pi(y) = \sum_t \log \pi(y_t \mid y_{\lt t})$$
#
# The library writes it as a loss per token, with the advantage $A$ in the place of $R$, and leaves
# the averaging to a reducer.

# %%
print(inspect.getsource(policy_gradient))
print(inspect.getsource(sequence_sum))


# %%
def expected_estimate(advantages: Tensor) -> Tensor:
    """What REINFORCE with these advantages, (15, 1) or (15, 3), ascends on average."""
    weights = probabilities(THETA)  # constants: they stand for the sampling

    def loss(theta: Tensor) -> Tensor:
        return weights @ row_sums(policy_gradient(log_probs_of(theta), advantages), MASK)

    return -gradient(loss)


torch.testing.assert_close(expected_estimate(REWARDS[:, None]), TRUE, atol=1e-12, rtol=0)
to_go = discounted_returns(at_last_token(REWARDS, MASK), MASK, 1.0)  # (15, 3)
torch.testing.assert_close(expected_estimate(to_go), TRUE, atol=1e-12, rtol=0)
print("REINFORCE is unbiased: largest error", (expected_estimate(to_go) - TRUE).abs().max().item())

# %% [markdown]
# **From the average to one batch.** A batch is four responses. Its estimate does not depend on
# their order, so there are "15 multichoose 4" = 3,060 different batches, each with a known
# probability. All of them are listed: bias *and variance* below are sums, too.

# %%
G = 4
BATCHES = torch.tensor(list(itertools.combinations_with_replacement(range(15), G)))  # (3060, 4)
orders = [
    math.factorial(G) / math.prod(math.factorial(k) for k in Counter(b).values())
    for b in BATCHES.tolist()
]
WEIGHTS = torch.tensor(orders) * probabilities(THETA)[BATCHES].prod(1)  # (3060,)
SCORES = torch.autograd.functional.jacobian(log_probs_of, THETA).view(15, T, 21)
SCORES = torch.where(MASK[..., None], SCORES, 0.0)  # gradient of every token's log-probability


def estimates(advantages: Tensor) -> Tensor:
    """Advantages (3060, 4, 1 or T) -> the gradient every batch would ascend, (3060, 21)."""
    return (advantages[..., None] * SCORES[BATCHES]).sum(2).mean(1)


# %%
plain = estimates(REWARDS[BATCHES][..., None])  # (3060, 21)
torch.testing.assert_close(WEIGHTS.sum(), torch.tensor(1.0))
torch.testing.assert_close(WEIGHTS @ plain, TRUE.flatten(), atol=1e-12, rtol=0)

number = 1234  # one batch by the library's own loss: the same 21 numbers
rows = BATCHES[number]
by_autograd = -gradient(
    lambda z: sequence_sum(policy_gradient(log_probs_of(z)[rows], REWARDS[rows, None]), MASK[rows])
)
torch.testing.assert_close(by_autograd.flatten(), plain[number], atol=1e-12, rtol=0)
print(f"{len(BATCHES)} batches; the sum of their probabilities is {WEIGHTS.sum():.12f}")

# %% [markdown]
# ## 3. Baselines
#
# **Why.** With an offset of 2 every response "was good", and its probability goes up; only the
# differences carry information, and they must average out of a lot of noise. A **baseline** $b$
# that does not depend on the response may be subtracted for free, because
# $\mathbb{E}[b \nabla \log \pi] = b \nabla \sum_y \pi(y) = 0$ (Eq. 7 there). What to use for $b$?
#
# - a constant near $\mathbb{E}[R]$;
# - the mean of the group, as in GRPO. But it contains $R_i$ itself;
# - **leave-one-out**: the mean of the *others* (Kool et al. 2019; arXiv:2402.14740, section 2.3):
#
# $$A_i = R_i - \frac{1}{G - 1} \sum_{j \ne i} R_j
# = \frac{G}{G - 1} \left( R_i - \mathrm{mean}(R_{1..G}) \right)$$

# %%
print(inspect.getsource(leave_one_out_advantages))

# %%
four = torch.tensor([1.0, 2.0, 3.0, 4.0])
group_mean = group_advantages(four, 4, scale="none")[:, 0]
right = leave_one_out_advantages(four, 4)[:, 0]
doubled = right * 4 / 3  # the factor G / (G - 1) once more
print("rewards              ", four)
print("minus the group mean ", group_mean)
print("leave-one-out        ", right, " baselines", four - right)
print("factor counted twice ", doubled, " WRONG")

by_hand = [1 - 9 / 3, 2 - 8 / 3, 3 - 7 / 3, 4 - 6 / 3]
torch.testing.assert_close(right, torch.tensor(by_hand))

# %% [markdown]
# The last row is a mistake in circulation: the baseline already leaves $R_i$ out, and then
# the factor that turns a group mean into leave-one-out is multiplied in as well. It does not crash
# and it learns. What each row does to the expected gradient, exactly:

# %%
flat = REWARDS[BATCHES].flatten()  # (3060 * 4,), groups of 4 in a row
A = {
    "REINFORCE": REWARDS[BATCHES][..., None],
    "constant": (REWARDS - expected_reward(THETA))[BATCHES][..., None],
    "group mean": group_advantages(flat, G, scale="none").view(-1, G, 1),
    "leave-one-out": leave_one_out_advantages(flat, G).view(-1, G, 1),
}
for name, advantages in (*A.items(), ("factor twice", A["leave-one-out"] * G / (G - 1))):
    mean = WEIGHTS @ estimates(advantages)
    factors = mean / TRUE.flatten()  # the same factor for each of the 21 components
    print(f"{name:14} is {factors.mean():.6f} of the true gradient, +- {factors.std():.1e}")
    expected = {"group mean": 1 - 1 / G, "factor twice": G / (G - 1)}.get(name, 1.0)
    torch.testing.assert_close(mean, expected * TRUE.flatten(), atol=1e-12, rtol=0)

# %% [markdown]
# The group mean shrinks the gradient by exactly $1 - 1/G$: it subtracts $R_i / G$ from the response
# that earned it. The direction is untouched, so for a fixed $G$ it is a learning rate. It is more
# than that as soon as a second term stands beside it, such as a KL penalty in the loss, whose
# weight does not shrink along.
#
# What a baseline is for: the same true gradient, with rewards that have another offset.


# %%
def noise(advantages: Tensor) -> float:
    """Root of the total variance of one batch's estimate, over the length of the true gradient."""
    g = estimates(advantages)
    variance = (WEIGHTS @ (g - WEIGHTS @ g).square()).sum()
    return float(variance.sqrt() / TRUE.norm())


offsets = torch.linspace(-6, 6, 25)
curves = {"REINFORCE": [], "leave-one-out": []}
for offset in offsets:
    curves["REINFORCE"].append(noise(A["REINFORCE"] - 2 + offset))
    shifted = leave_one_out_advantages(flat - 2 + offset, G).view(-1, G, 1)
    curves["leave-one-out"].append(noise(shifted))
figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
for (name, curve), color in zip(curves.items(), ("tab:gray", "tab:blue"), strict=True):
    axis.plot(offsets, curve, color=color, label=name)
axis.set(xlabel="offset of the rewards (2 on the rest of this page)", ylim=(0, None))
axis.set(ylabel="noise of a batch of 4\n(true gradient = 1)", title="A baseline forgets the offset")
axis.legend()
plt.show()
assert max(curves["leave-one-out"]) - min(curves["leave-one-out"]) < 1e-9

# %% [markdown]
# ## 4. z-scores and whitening
#
# **Why.** Rewards come in any unit. GRPO divides by the spread of the group (Shao et al. 2024,
# [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), section 4.1.2), REINFORCE++ by the spread of
# all tokens of the batch (Hu et al. 2025, [arXiv:2501.03262](https://arxiv.org/abs/2501.03262),
# Eq. 5), so that one learning rate fits all:
#
# $$A_i = \frac{R_i - \mathrm{mean}(R_{1..G})}{\mathrm{std}(R_{1..G}) + \epsilon}, \qquad
# \hat A_{i,t} = \frac{A_{i,t} - \mathrm{mean}_{batch}(A)}{\mathrm{std}_{batch}(A)}$$
#
# The spread depends on the very rewards it divides, so the expectation of the quotient is not the
# quotient of expectations: the estimate is biased, in scale and in direction.

# %%
print(inspect.getsource(whiten))

# %%
print("group z-score ", group_advantages(four, 4)[:, 0])
print("rewards * 100 ", group_advantages(100 * four, 4)[:, 0], " the unit is gone")
print("two responses ", group_advantages(torch.tensor([0.0, 1000.0]), 2)[:, 0], " and the gap")
print("all equal     ", group_advantages(torch.full((4,), 0.1), 4)[:, 0], " no spread, no signal")

A["group z-score"] = group_advantages(flat, G).view(-1, G, 1)
A["whitened"] = torch.stack([whiten(to_go[rows], MASK[rows]) for rows in BATCHES])
assert A["group z-score"].shape == (3060, 4, 1) and A["whitened"].shape == (3060, 4, 3)

# %% [markdown]
# Across prompts the division is a choice about *difficulty*. Suppose a prompt is solved with
# probability $p$, reward 1 or 0. The true gradient of its success rate is $\nabla p$. The z-score
# divides by about $\sqrt{p(1-p)}$: nearly solved and nearly hopeless prompts get a larger weight.
# Exactly, over all $2^G$ outcomes, with the expected advantage gap between success and failure as
# the weight:


# %%
def prompt_weight(p: float, group_size: int, scale: str) -> float:
    """Factor in front of grad p in the expected gradient of a prompt solved with probability p."""
    total = 0.0
    for k in range(1, group_size):  # k successes; none or all: no signal
        outcome = torch.tensor([1.0] * k + [0.0] * (group_size - k))
        advantage = group_advantages(outcome, group_size, scale=scale)[:, 0]
        chance = math.comb(group_size, k) * p**k * (1 - p) ** (group_size - k)
        # grad log pi of a success is grad p / p, of a failure -grad p / (1 - p)
        score = torch.where(outcome == 1, 1 / p, -1 / (1 - p))
        total += chance * float((advantage * score).mean())
    return total


rates = torch.linspace(0.02, 0.98, 49).tolist()
figure, axis = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
for size, color in ((2, "lightblue"), (4, "tab:cyan"), (8, "tab:blue"), (32, "navy")):
    weights = [prompt_weight(p, size, "group") for p in rates]
    axis.plot(rates, weights, color=color, label=f"z-score, G = {size}")
axis.plot(rates, [prompt_weight(p, 8, "none") for p in rates], "k--", label="group mean, G = 8")
axis.plot(rates, [1 / math.sqrt(p * (1 - p)) for p in rates], "k:", label=r"$1/\sqrt{p(1-p)}$")
axis.set(xlabel="success rate p of the prompt", ylabel=r"weight of $\nabla p$", ylim=(0, 6))
axis.set_title("What dividing by the group's spread does to prompts")
axis.legend(ncols=2, fontsize=8, loc="upper center")
plt.show()
assert abs(prompt_weight(0.3, 8, "none") - 7 / 8) < 1e-12
assert prompt_weight(0.05, 32, "group") > 1.5 * prompt_weight(0.5, 32, "group")

# %% [markdown]
# Large groups follow the dotted line. In small ones a rare success is mostly not there at all, and
# with $G = 2$ the z-score is always $\pm 0.7071$: every prompt weighs the same.

# %% [markdown]
# ## 5. All of them against the truth
#
# **GAE** gets section 6 of its own; here it takes part with $\lambda = 0.95$ and a critic that is
# off by about 0.3. Four numbers say what an estimator is worth:
#
# - **scale**: how far it goes along the true gradient on average (1 = as far);
# - **cosine** of its average with the true gradient (1 = right direction);
# - **bias** and **noise**: distance of the average from the truth, and root of the variance of one
#   batch, both *after* division by the scale, since the learning rate absorbs that.


# %%
def true_values() -> Tensor:
    """V of every prefix, (7,): the mean reward of the responses that pass through it."""
    weights = (probabilities(THETA)[:, None] * MASK).flatten()
    visits, total = torch.zeros(7), torch.zeros(7)
    visits.index_add_(0, STATES.flatten(), weights)
    total.index_add_(0, STATES.flatten(), weights * REWARDS[:, None].expand(15, T).flatten())
    return total / visits


VALUES = true_values()
ERROR = torch.randn(7, generator=generator)
CRITIC = VALUES + 0.3 * ERROR  # wrong, but a function of the prefix
print("true values ", VALUES, "\nthe critic's", CRITIC)
torch.testing.assert_close(VALUES[0], expected_reward(THETA))

token_rewards = at_last_token(REWARDS, MASK)  # (15, 3)
A["GAE 0.95"] = gae(token_rewards, CRITIC[STATES], MASK, 1.0, 0.95)[0][BATCHES]


# %%
def measure(advantages: Tensor) -> dict[str, float]:
    """Exact properties of an estimator on batches of four; lengths in units of the truth."""
    g, truth = estimates(advantages) / TRUE.norm(), TRUE.flatten() / TRUE.norm()
    mean = WEIGHTS @ g
    scale = mean @ truth
    along, single = g @ truth, torch.cosine_similarity(g, truth[None], dim=1)
    return {
        "scale": float(scale),
        "scale_deviation": float((WEIGHTS @ (along - scale).square()).sqrt()),
        "cosine": float(torch.cosine_similarity(mean, truth, dim=0)),
        "batch_cosine": float(WEIGHTS @ single),
        "bias": float((mean / scale - truth).norm()),
        "noise": float((WEIGHTS @ (g - mean).square()).sum().sqrt() / scale),
    }


RESULTS = {name: measure(advantages) for name, advantages in A.items()}
print("                  scale   cosine     bias    noise   cosine of one batch")
for name, r in RESULTS.items():
    print(f"{name:14}{r['scale']:9.4f}{r['cosine']:9.4f}{r['bias']:9.4f}", end="")
    print(f"{r['noise']:9.4f}{r['batch_cosine']:13.4f}")

# %%
for name in ("REINFORCE", "constant", "leave-one-out", "group mean"):
    assert RESULTS[name]["bias"] < 1e-12
for name in ("group z-score", "whitened", "GAE 0.95"):
    assert RESULTS[name]["bias"] > 1e-3
assert RESULTS["leave-one-out"]["noise"] < RESULTS["REINFORCE"]["noise"] / 2

figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained", sharey=True)
names, places = list(RESULTS), torch.arange(len(RESULTS))
column = {key: torch.tensor([r[key] for r in RESULTS.values()]) for key in RESULTS["constant"]}
axes[0].barh(places, column["scale"], xerr=column["scale_deviation"], color="tab:blue", capsize=3)
axes[0].axvline(1, color="black", ls="--", lw=1)
axes[0].set(yticks=places, yticklabels=names, xlabel="step along the true gradient")
axes[0].set(title="average and deviation of a batch", ylabel="advantage")
axes[1].barh(places - 0.2, column["bias"].square(), 0.4, color="tab:red", label="bias squared")
axes[1].barh(places + 0.2, column["noise"].square(), 0.4, color="tab:gray", label="variance")
axes[1].set(xscale="log", xlim=(1e-5, 1000), xlabel="relative to the true gradient squared")
axes[1].set_title("error, after division by the scale")
axes[1].legend(fontsize=8, loc="center right")
axes[2].barh(places, column["batch_cosine"], color="tab:green")
axes[2].set(
    xlabel="mean cosine with the true gradient", xlim=(0, 1), title="direction of one batch"
)
axes[0].invert_yaxis()
plt.show()

# %% [markdown]
# Three readings.
#
# - The unbiased estimators differ by an order of magnitude in variance, and *only* there.
# - The biased ones have so much less bias than noise that the bias does not show in a batch of
#   four. It stays when the batch grows, and the noise does not.
# - The group mean and leave-one-out are the same estimator up to $1 - 1/G$. Leave-one-out is a bit
#   noisier than the constant, which knew $\mathbb{E}[R]$ for free.
#
# The same with samples, as one would do it with a model: 40,000 batches, the library's loss and
# one backward pass.

# %%
drawn = torch.multinomial(probabilities(THETA), 40_000 * G, replacement=True, generator=generator)
print("distance of the average of 40,000 batches from the truth (true gradient = 1)")
for name, function in (
    ("leave-one-out", leave_one_out_advantages),
    ("group z-score", group_advantages),
):
    advantages = function(REWARDS[drawn], G)  # (160000, 1)
    average = -gradient(
        lambda z, a=advantages: sequence_sum(
            policy_gradient(log_probs_of(z)[drawn], a), MASK[drawn]
        )
    )
    off = (average.flatten() / RESULTS[name]["scale"] - TRUE.flatten()).norm() / TRUE.norm()
    chance = RESULTS[name]["noise"] / math.sqrt(40_000)
    print(
        f"{name:14} {off:.4f}, by chance about {chance:.4f}, exact bias {RESULTS[name]['bias']:.4f}"
    )
    assert abs(off - math.hypot(RESULTS[name]["bias"], chance)) < 3 * chance

# %% [markdown]
# ## 6. A critic: GAE
#
# **Why.** One reward per response says nothing about which token earned it. A critic $V(s_t)$
# predicts what is still to come, and every token is judged by how the prediction changed. How far
# to trust the prediction is $\lambda$ (Schulman et al. 2016,
# [arXiv:1506.02438](https://arxiv.org/abs/1506.02438), Eq. 16):
#
# $$\delta_t = r_t + \gamma V(s_{t+1}) - V(s_t), \qquad
# A_t = \sum_{l \ge 0} (\gamma \lambda)^l \delta_{t+l} = \delta_t + \gamma \lambda A_{t+1}$$
#
# $\lambda = 1$ telescopes to "reward to come minus $V(s_t)$": a baseline, unbiased for any critic.
# $\lambda = 0$ believes the critic's next value, and inherits its errors.

# %%
print(inspect.getsource(gae))

# %%
lambdas = torch.linspace(0, 1, 21)
critics = {f"critic off by {x}": VALUES + x * ERROR for x in (0.0, 0.15, 0.3, 0.5)}
swept = {}
for name, critic in critics.items():
    tables = [gae(token_rewards, critic[STATES], MASK, 1.0, x)[0] for x in lambdas.tolist()]
    swept[name] = [measure(advantages[BATCHES]) for advantages in tables]

figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.6), layout="constrained")
colors = ("black", "tab:green", "tab:orange", "tab:red")
for (name, results), color in zip(swept.items(), colors, strict=True):
    for axis, key in zip(axes, ("bias", "noise"), strict=True):
        axis.plot(lambdas, [r[key] for r in results], "o-", ms=3, color=color, label=name)
for axis, title in zip(axes, ("bias", "noise of a batch of 4"), strict=True):
    axis.set(title=title, xlabel=r"$\lambda$", ylabel="true gradient = 1", ylim=(0, None))
axes[0].legend(fontsize=8)
plt.show()
perfect, wrong = swept["critic off by 0.0"], swept["critic off by 0.5"]
assert max(r["bias"] for r in perfect) < 1e-9 and wrong[-1]["bias"] < 1e-9 < wrong[0]["bias"]
assert perfect[0]["noise"] < perfect[-1]["noise"] and wrong[0]["noise"] > wrong[-1]["noise"]

# %% [markdown]
# With a perfect critic $\lambda = 0$ is best: no bias, least noise. With a wrong one the bias grows
# as $\lambda$ falls, and for a critic bad enough the noise does, too: its errors are then larger than
# the differences it should explain. 0.95 is the usual compromise.
#
# **The leak.** A response ends before its row does. Behind the EOS stand whatever numbers the
# critic returned for padding, and the recursion runs from the right. The library steps over masked
# positions. The classic bug is the same recursion without a mask, followed by a mask on the result,
# which is too late. Row 2 below has two real tokens and two columns of garbage:

# %%
r = torch.tensor([[-0.1, 0.0, 0.2, 1.0], [0.0, 1.0, 9.0, 9.0]])
values = torch.tensor([[0.5, 0.4, 0.3, 0.2], [0.6, 0.5, 7.0, 7.0]])
mask = torch.tensor([[True] * 4, [True, True, False, False]])

good, _ = gae(r, values, mask, 0.9, 0.8)
leak, _ = gae(r, values, torch.ones_like(mask), 0.9, 0.8)  # the bug: everything takes part
half, _ = gae(r * mask, values, torch.ones_like(mask), 0.9, 0.8)  # rewards masked, values not
for name, advantages in (("right", good), ("no mask", leak), ("only rewards masked", half)):
    print(f"{name:20} row 2, real tokens: {[round(a, 4) for a in advantages[1, :2].tolist()]}")
torch.testing.assert_close(good[1], torch.tensor([0.21, 0.5, 0.0, 0.0]))
assert abs(leak[1, 0] - 9.795216) < 1e-9 and abs(half[1, 0] - 1.770384) < 1e-9

# %% [markdown]
# And what the bug costs in our language. The critic returns 3 for padding, a number as large as its
# others, and the rewards there are 0.3 each, as a KL term of garbage log-probabilities may be.
# After division by the scale the bias in direction is left:

# %%
padded_values = torch.where(MASK, CRITIC[STATES], 3.0)
padded_rewards = torch.where(MASK, token_rewards, 0.3)
everything = torch.ones_like(MASK)
versions = {
    "right": (padded_rewards, MASK),
    "values leak": (token_rewards, everything),
    "values and rewards leak": (padded_rewards, everything),
}
figure, axis = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
leaks = {}
for (name, (r, used)), color in zip(
    versions.items(), ("tab:blue", "tab:orange", "tab:red"), strict=True
):
    tables = [gae(r, padded_values, used, 1.0, x)[0] * MASK for x in lambdas.tolist()]
    leaks[name] = [measure(advantages[BATCHES])["bias"] for advantages in tables]
    axis.plot(lambdas, leaks[name], "o-", ms=4, color=color, label=name)
axis.set(xlabel=r"$\lambda$", ylabel="bias (true gradient = 1)", ylim=(0, None))
axis.set_title("Padding that takes part in GAE")
axis.legend()
plt.show()

# %%
print("bias         right   values leak   values and rewards leak")
for i in (0, 10, 19, 20):
    row = [leaks[name][i] for name in versions]
    print(f"lambda {lambdas[i]:.2f} {row[0]:6.4f} {row[1]:10.4f} {row[2]:17.4f}")
assert leaks["right"][-1] < 1e-9 < leaks["values and rewards leak"][-1]

# %% [markdown]
# With $\gamma = 1$ the values behind the EOS telescope away as $\lambda$ approaches 1, so this bug
# hides well at the usual 0.95. Rewards at padding do not cancel: every response is paid for the
# padding behind it, that is, for being shorter than the longest of its batch.
#
# ## 7. PPO's clip, through its gradient
#
# **Why.** A rollout is expensive, so PPO takes several updates from it. From the second one on the
# samples are old, and the ratio $\rho = \pi / \pi_{old}$ says by how much. The clip keeps a token
# from being pushed further once it has moved by $\epsilon$ (Schulman et al. 2017,
# [arXiv:1707.06347](https://arxiv.org/abs/1707.06347), Eq. 7):
#
# $$\mathcal{L} = -\min\left(\rho A, \; \mathrm{clip}(\rho, 1 - \epsilon, 1 + \epsilon) A\right)$$
#
# The value hides what happens; the gradient shows it. It is 0 where the token already moved far in
# the direction its advantage asks for, and *nowhere else*: a token that moved the wrong way is
# pulled back with full force. (The code stands in [07_grpo](07_grpo.ipynb), section 4.) The **dual
# clip** ([arXiv:1912.09729](https://arxiv.org/abs/1912.09729), Eq. 5) is a second bound, for bad
# tokens alone:

# %%
print(inspect.getsource(dual_clip))


# %%
def clip_gradient(ratio: Tensor, advantage: float, dual: float | None = None):
    """(loss, gradient with respect to log pi) for every ratio, with clip range 0.2."""
    log_probs = ratio.log()[:, None].requires_grad_()
    advantages = torch.full_like(log_probs, advantage)
    loss = clipped_surrogate(log_probs, torch.zeros_like(log_probs), advantages, 0.2, 0.2)
    if dual is not None:
        loss = dual_clip(loss, advantages, dual)
    return loss.detach()[:, 0], torch.autograd.grad(loss.sum(), log_probs)[0][:, 0]


corners = torch.tensor([0.5, 1.5])
for advantage in (1.0, -1.0):
    loss, pull = clip_gradient(corners, advantage)
    for x, value, g in zip(corners, loss, pull, strict=True):
        print(f"A = {advantage:+.0f}, ratio {x}: loss {value:+.1f}, gradient {g + 0.0:+.1f}")
torch.testing.assert_close(clip_gradient(corners, 1.0)[1], torch.tensor([-0.5, 0.0]))
torch.testing.assert_close(clip_gradient(corners, -1.0)[1], torch.tensor([0.0, 1.5]))

# %%
ratios = torch.linspace(0.05, 4, 400)
figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.6), layout="constrained")
for advantage, color in ((1.0, "tab:blue"), (-1.0, "tab:red")):
    for axis, y in zip(axes, clip_gradient(ratios, advantage), strict=True):
        axis.plot(ratios, y, color=color, label=f"A = {advantage:+.0f}")
for axis, y in zip(axes, clip_gradient(ratios, -1.0, dual=3.0), strict=True):
    axis.plot(ratios, y, color="tab:red", ls=":", lw=2.5, label="A = -1, dual clip 3")
    axis.axvspan(0.8, 1.2, color="lightgray", alpha=0.6, lw=0, label="clip range")
    axis.axhline(0, color="black", lw=0.8)
    axis.set_xlabel(r"ratio $\pi / \pi_{old}$")
axes[0].set(ylabel="loss", title="the loss")
axes[1].set(ylabel=r"gradient with respect to $\log \pi$", title="its gradient")
axes[0].legend(fontsize=8)
plt.show()

# %% [markdown]
# For $A = -1$ the loss grows with the ratio without bound: one token that became ten times as
# likely pulls with a force of ten. The dual clip ends that: beyond its bound there is no gradient.
#
# At the first update $\pi = \pi_{old}$, all ratios are 1, nothing is clipped, and the gradient is
# that of REINFORCE, with any advantage:

# %%
old = log_probs_of(THETA)
first = -gradient(
    lambda z: (
        probabilities(THETA)
        @ row_sums(clipped_surrogate(log_probs_of(z), old, REWARDS[:, None], 0.2, 0.2), MASK)
    )
)
torch.testing.assert_close(first, TRUE, atol=1e-12, rtol=0)
print("PPO's first update is REINFORCE's: largest difference", (first - TRUE).abs().max().item())

# %% [markdown]
# ## 8. What it means for learning
#
# The same language, 16 runs of 120 steps each, eight responses per step (two groups of four). To be
# fair the learning rates are divided by the scales of section 5, so that the first expected step is
# about equally long. GAE learns its critic along the way, one value per prefix.

# %%
RUNS, STEPS, ROWS = 16, 120, 8


def batch_advantages(name: str, rewards: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    """Advantages of all runs together: rewards (RUNS * 8,) -> (RUNS * 8, 1 or T)."""
    token_rewards = at_last_token(rewards, mask)
    if name == "group z-score":
        return group_advantages(rewards, G)
    if name == "leave-one-out":
        return leave_one_out_advantages(rewards, G)
    if name == "GAE 0.95":
        return gae(token_rewards, values, mask, 1.0, 0.95)[0]
    if name == "whitened":
        returns = discounted_returns(token_rewards, mask, 1.0)
        pairs = zip(returns.split(ROWS), mask.split(ROWS), strict=True)
        return torch.cat([whiten(*pair) for pair in pairs])
    return (rewards - (expected_reward(THETA) if name == "constant" else 0.0))[:, None]


# %%
def learn(name: str, rate: float) -> Tensor:
    """Expected reward over the steps, (STEPS, RUNS)."""
    generator = torch.Generator().manual_seed(5)
    theta, critic, curve = THETA.repeat(RUNS, 1, 1), torch.zeros(RUNS, 7), []
    own = torch.arange(RUNS).repeat_interleave(ROWS)[:, None]  # the run of every row
    for _ in range(STEPS):
        theta.requires_grad_()
        tokens = TOKENS.expand(RUNS, 15, T)[..., None]
        every = theta.log_softmax(-1)[:, STATES].gather(-1, tokens)[..., 0]  # (RUNS, 15, T)
        weights = torch.where(MASK, every.detach(), 0.0).sum(-1).exp()
        curve.append(weights @ REWARDS)
        drawn = torch.multinomial(weights, ROWS, replacement=True, generator=generator).flatten()
        mask, states, rewards = MASK[drawn], STATES[drawn], REWARDS[drawn]
        advantages = batch_advantages(name, rewards, mask, critic[own, states])
        token_loss = policy_gradient(every[own[:, 0], drawn], advantages)
        loss = sequence_sum(token_loss, mask, denominator=ROWS)
        theta = (theta - rate * torch.autograd.grad(loss, theta)[0]).detach()
        error = torch.where(mask, rewards[:, None] - critic[own, states], 0.0)
        critic.index_put_((own.expand(-1, T), states), 0.1 * error, accumulate=True)
    return torch.stack(curve)


# %%
compared = ("REINFORCE", "constant", "leave-one-out", "group z-score", "whitened", "GAE 0.95")
learned = {name: learn(name, 0.6 / RESULTS[name]["scale"]) for name in compared}
theta, exact = THETA.clone(), []
for _ in range(STEPS):  # the true gradient, the same step
    exact.append(expected_reward(theta))
    theta = theta + 0.6 * gradient(expected_reward, theta)

figure, axes = plt.subplots(2, 3, figsize=(11, 5.6), layout="constrained", sharex=True, sharey=True)
for axis, (name, curve) in zip(axes.flat, learned.items(), strict=True):
    low, high = curve.quantile(torch.tensor([0.1, 0.9]), dim=1)
    axis.fill_between(range(STEPS), low, high, color="tab:blue", alpha=0.25, lw=0)
    axis.plot(curve.mean(1), color="tab:blue", label="mean of 16 runs, 10-90 %")
    axis.plot(exact, color="black", ls="--", lw=1, label="true gradient")
    axis.axhline(REWARDS.max(), color="gray", lw=0.8)
    axis.set(title=name, xlabel="step", ylabel="expected reward")
    axis.label_outer()
axes[0, 0].legend(fontsize=8, loc="lower right")
plt.show()

# %%
print("                 expected reward after 30 steps   after 120: mean   worst run")
for name, curve in learned.items():
    print(f"{name:14}{curve[30].mean():26.3f} {curve[-1].mean():24.3f} {curve[-1].min():11.3f}")
print(f"{'true gradient':14}{exact[30]:26.3f} {exact[-1]:24.3f}")
assert learned["leave-one-out"][-1].mean() > learned["REINFORCE"][-1].mean()
assert learned["whitened"][60].mean() > exact[60]

# %% [markdown]
# - **REINFORCE** with an offset of 2 is lost: some runs settle early on a mediocre response, because
#   whatever was drawn first was pushed up.
# - **A baseline** is enough. The constant is as good as leave-one-out here, but would have to be
#   known, and to follow the policy.
# - **z-score and whitening** are *faster* than the true gradient, bias or not. As the policy agrees
#   with itself the spread of the rewards falls, and dividing by it lets the step grow: a learning
#   rate schedule in disguise. On a task where the last differences are noise of the reward model,
#   the same growth amplifies the noise.
# - **GAE** starts without a critic and pays for learning it. In a language of three tokens it has
#   little to give back; its chance are long responses with rewards on the way.

# %% [markdown]
# ## Exercise
#
# A chapter of a book writes the clipped loss as `-torch.maximum(ratio * A, clipped * A)` where
# $A \lt 0$, "because for negative advantages the sign turns round".
#
# 1. Which gradient does a token with $A = -1$ get at the ratios 0.5 and 1.5?
# 2. What does that do to a policy over several updates on one rollout?
# 3. Why does a run with one update per rollout not notice?
#
# <details>
# <summary>Answer</summary>
#
# 1. At 0.5: $-\max(-0.5, -0.8) = 0.5$, the unclipped branch, gradient $+0.5$. At 1.5:
#    $-\max(-1.5, -1.2) = 1.2$, the clipped branch, gradient $0$. Exactly the wrong way round: the
#    right gradients are $0$ and $+1.5$.
# 2. A bad token that has already become unlikely is pushed down further, without a limit. A bad
#    token that became *more* likely is not pulled back. The clip is there to be pessimistic: it
#    may refuse a gain, but never ignore a loss.
# 3. At the first update the ratio is 1, inside the range, where both branches are the same.
#
# To check:
#
# ```python
# ratio = corners.clone().requires_grad_()
# clipped = ratio.clamp(0.8, 1.2)
# loss = -torch.maximum(-ratio, -clipped)
# print(torch.autograd.grad(loss.sum(), ratio)[0] * corners)  # times ratio: by log pi; [0.5, 0]
# ```
#
# </details>
