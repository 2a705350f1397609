# %% [markdown]
# # 10. RLOO: the whole response is one action
#
# **The question.** How much of PPO can be left out if a response counts as *one* action?
#
# **Why.** PPO was made for games: hundreds of moves, a reward here and there, a policy that starts
# from nothing. A fine-tuned language model is different: it is good before RL begins, one reward
# arrives at the end, and the "environment" only appends each token. Ahmadian et al. (2024, "Back to
# Basics", [arXiv:2402.14740](https://arxiv.org/abs/2402.14740)) therefore take the critic, the clip
# and the single tokens out again. What is left is REINFORCE on whole responses, with the other
# responses to the same prompt as the baseline: **REINFORCE Leave-One-Out** (Kool et al. 2019).
#
# **You need** [04](04_policy_gradients_and_baselines.ipynb) (REINFORCE, baseline),
# [05](05_what_a_kl_is.ipynb) (KL in the reward) and [07](07_grpo.ipynb), with which section 5
# compares.
#
# **It takes** about 15 seconds on one CPU core, after start-up.

# %%
import copy
import itertools
import math

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
from rl import rloo_engine
from rl.batches.rollout import prompt_batch, sample_rollout
from rl.equations.advantages import group_advantages, leave_one_out_advantages
from rl.equations.losses import policy_gradient, row_sums, sequence_mean, sequence_sum
from rl.loop import Run
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.rloo_engine import RLOOConfig, rloo_advantages
from rl.training.evaluation import evaluate

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
plots.use()

# %% [markdown]
# ## 1. Four answers, and the mean of the others
#
# Four answers to one prompt scored 1, 2, 3 and 4. GRPO compares each with the mean of all four,
# 2.5. RLOO compares each with the mean of the other three:
#
# | reward | the others | their mean | advantage |
# | --- | --- | --- | --- |
# | 1 | 2, 3, 4 | 3 | -2 |
# | 2 | 1, 3, 4 | 2.67 | -0.67 |
# | 3 | 1, 2, 4 | 2.33 | +0.67 |
# | 4 | 1, 2, 3 | 2 | +2 |
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
plots.code(leave_one_out_advantages)

# %% [markdown]
# **Your turn.**


# %%
def my_leave_one_out(rewards, group_size):
    """Rewards (N,), the answers to one prompt in a row -> advantages (N, 1)."""
    ...


check("leave_one_out", my_leave_one_out)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_leave_one_out(rewards, group_size):
#     groups = rewards.view(-1, group_size)
#     others = (groups.sum(1, keepdim=True) - groups) / (group_size - 1)
#     return (groups - others).view(-1, 1)
# ```
#
# </details>
#
# ## 2. Why leave a response's own reward out?
#
# A baseline may be anything that does not depend on the action itself
# ([04](04_policy_gradients_and_baselines.ipynb)). The group's mean does depend on it, because it
# contains $R_i / k$. So a response is partly compared with itself.
#
# **Predict, then run.** What does that do to the expected gradient? Does its direction change, or
# its length, or both? To see it without sampling noise, take a policy over four possible responses
# and list all $4^k$ groups.

# %%
theta = torch.tensor([0.4, -0.3, 0.1, 0.0], dtype=torch.float64)
p, R = theta.softmax(0), torch.tensor([1.0, 0.2, 0.6, 0.0], dtype=torch.float64)
SCORES = torch.eye(4, dtype=torch.float64) - p  # row y: gradient of log p(y)
TRUE = (p * R) @ SCORES  # gradient of the expected reward


def expected_gradient(estimator, k: int) -> Tensor:
    """Sum over all groups of k responses of P(group) * mean_i A_i grad log p(y_i)."""
    groups = torch.tensor(list(itertools.product(range(4), repeat=k)))  # (4^k, k)
    A = estimator(R[groups].flatten(), k).view(-1, k)
    return (p[groups].prod(1)[:, None] * A / k).flatten() @ SCORES[groups.flatten()]


def group_mean(rewards: Tensor, k: int) -> Tensor:
    return group_advantages(rewards, k, scale="none")


def factor_twice(rewards: Tensor, k: int) -> Tensor:
    """A mistake in circulation: k / (k - 1) on top of a leave-one-out baseline."""
    return leave_one_out_advantages(rewards, k) * k / (k - 1)


# %%
sizes, lengths = range(2, 8), {}
names = ("leave one out", "mean of the group", "factor twice (a mistake)")
estimators = (leave_one_out_advantages, group_mean, factor_twice)
for name, estimator in zip(names, estimators, strict=True):
    expected = [expected_gradient(estimator, k) for k in sizes]
    assert all(torch.cosine_similarity(g, TRUE, dim=0) > 1 - 1e-9 for g in expected)
    lengths[name] = [float(g.norm() / TRUE.norm()) for g in expected]
for k, loo, mean in zip(sizes, *list(lengths.values())[:2], strict=True):
    assert math.isclose(loo, 1, rel_tol=1e-9) and math.isclose(mean, 1 - 1 / k, rel_tol=1e-9)

axis = plots.panels(1)[1]
styles = dict(zip(names, ("policy", "reference", "bad"), strict=True))
plots.curves(
    lengths, sizes, axis=axis, styles=styles, marker=True, title="same direction, other length"
)
axis.set(xlabel="k responses per prompt", ylabel="expected / true gradient", ylim=(0, 2.1))
plt.show()

# %% [markdown]
# The direction is right in all three. With the group's mean the gradient is shorter: it is exactly
# $1 - 1/k$ times the true one. The third line divides by $1 - 1/k$ twice, so it is too long.
#
# Does a factor matter? Where the KL is inside the reward, hardly: everything shrinks together, and
# Adam divides the gradient by its own size. With a KL term *beside* it in the loss, as in GRPO, it
# does matter. The reward's gradient shrinks and the penalty's does not. With $k = 2$ the effective
# $\beta$ doubles.
#
# ## 3. The log-probability of a response is a sum
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
plots.code(policy_gradient)
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
# ## 4. The KL is part of the reward, before the baseline
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
# **Predict, then run.** All three rewards are equal. GRPO learns nothing then. What does RLOO do?

# %%
equal = rloo_advantages(three, torch.full((3,), 0.7), log_ratio, zeros, one_token, 0.1)
print([round(a, 3) for a in equal[:, 0].tolist()])
holds(equal.argmax() == 2, "the response with the lowest log-ratio gains")

# %% [markdown]
# The KL's part remains. The response with the lowest log-ratio gains, because it has become less
# likely than it was under the reference.
#
# Where does a trained policy pay? Here are answers of the kept policy, coloured by the log-ratio of
# each token to the base model. Blue tokens cost reward, orange ones earn some back.

# %%
base, tokenizer = saved_models.base()
trained, _ = saved_models.policy()
prompts = reviews.prompts("train")
params = SamplingParams(temperature=1.0, max_new_tokens=48)
records = prompt_batch(prompts, step=0, batch_size=1, seed=0)
rollout = sample_rollout(trained, tokenizer, records, params, 4, make_generator(2, "demo"))
with torch.no_grad():
    k1 = rollout.log_probs - token_log_probs(base, rollout.sequences)  # (N, T)

texts = [
    ["<EOS>" if t == tokenizer.eos_id else tokenizer.decode([t]) for t in row[keep].tolist()]
    for row, keep in zip(rollout.response_tokens, rollout.response_mask, strict=True)
]
print("sum per response:", [round(x, 1) for x in row_sums(k1, rollout.response_mask).tolist()])
show_tokens(texts, {"log pi - log pi_ref": k1}, prompts=[records[0].prompt] * 4)

# %% [markdown]
# The penalty counts per **response**: one that is twice as long can cost twice as much. The
# log-ratio of one sample may be negative. Its *mean* is the KL divergence, which cannot be
# negative.
#
# ## 5. The difference to GRPO
#
# A step of [nano/grpo.py](../nano/grpo.py), and where [nano/rloo.py](../nano/rloo.py) differs
# (every line begins at the margin):

# %%
plots.neighbours("grpo", "rloo")

# %% [markdown]
# | | GRPO | RLOO |
# | --- | --- | --- |
# | baseline | mean of the group | mean of the others |
# | divided by | the group's standard deviation | nothing |
# | the KL | k3 in the loss | k1 in the reward, before the baseline |
# | a response's tokens | averaged | summed |
# | ratio and clip | yes | no |
#
# Without a ratio the loss is right only for samples of the policy as it is *now*. So it allows only
# one pass over a batch. (Even there the paper takes two optimizer steps, each on one half of the
# batch.) The engine refuses more passes:

# %%
try:
    RLOOConfig(updates_per_batch=4)
except ValueError as error:
    print("refused:", error)

# %% [markdown]
# ## 6. Why the ratio of a response saturates
#
# Other code that is called RLOO puts these advantages into PPO's clip, with the ratio of the whole
# response (`--loss clipped`):
#
# $$s_i = \frac{\pi(y_i \mid x)}{\pi_{old}(y_i \mid x)} = \prod_t \rho_{i,t}$$
#
# **Predict.** A hundred tokens drift by 0.02 nats each, which nobody would call a large step. What
# is $s$? ($e^{2} = 7.4$.) Measured on 64 responses, with a few optimizer steps on the same batch:

# %%
learned, gold = (
    RewardModelReward(saved_models.reward_model()[0]),
    RuleReward(reviews.gold_reward, "gold"),
)
batch = prompt_batch(prompts, 1, 8, seed=0)
many = sample_rollout(base, tokenizer, batch, params, 8, make_generator(5, "many"))
many_A = leave_one_out_advantages(learned(many), 8)
student, used = copy.deepcopy(base), many.response_mask
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4, betas=(0.9, 0.95), weight_decay=0)
outside: dict[str, list[float]] = {"tokens": [], "responses": []}
for _ in range(6):
    log_ratio = token_log_probs(student, many.sequences) - many.log_probs  # (64, T)
    whole = row_sums(log_ratio, used).detach().exp()  # (64,)  s
    each = log_ratio[used].detach().exp()  # (tokens,)  rho
    outside["tokens"].append(float(((each - 1).abs() > 0.2).float().mean()))
    outside["responses"].append(float(((whole - 1).abs() > 0.2).float().mean()))
    optimizer.zero_grad()
    sequence_sum(policy_gradient(log_ratio, many_A), used).backward()
    optimizer.step()

# %%
figure, (left, right) = plots.panels(2)
plots.curves({f"ratio of {name}": share for name, share in outside.items()}, axis=left, marker=True)
left.set(xlabel="optimizer steps on one batch", ylabel="share outside of 0.8 to 1.2", ylim=(0, 1))
left.legend(loc="center right", bbox_to_anchor=(1, 0.58))
length = torch.arange(1, 129)
drifts = {f"{d} nats per token": (d * length).exp() for d in (0.005, 0.02, 0.05)}
plots.curves(drifts, length, axis=right, yscale="log", ylim=(0.7, 100))
right.axhspan(0.8, 1.2, color="grey", alpha=0.3)
right.set(xlabel="length of the response (tokens)", ylabel="ratio s")
plt.show()
holds(
    outside["responses"][2] > 1.5 * outside["tokens"][2] and outside["responses"][0] == 0,
    "whole responses leave the range sooner than tokens",
)

# %% [markdown]
# A response outside the range, on the side to which its advantage pushes it, has *no* gradient. So
# all its tokens stop together, even those that have hardly moved. GSPO
# ([arXiv:2507.18071](https://arxiv.org/abs/2507.18071), page [11](11_grpo_family.ipynb)) takes the
# $L$-th root of $s$ for this reason.
#
# ## 7. A run
#
# The learned reward, with the gold reward measured beside it:


# %%
config = RLOOConfig(
    steps=10, prompts_per_step=8, group_size=8, minibatches=2, micro_batch_size=64, lr=7e-4, warmup=1,
    kl_coef=0.05, stop_kl=None, device="cpu",
)  # fmt: skip
policy, log = copy.deepcopy(base), MetricLog(config.steps)
run = Run(config, policy, tokenizer, WithGold(learned, gold), prompts, log)
rows = rloo_engine.train(config, run)
holds(
    max(row["ratio_error_at_start"] for row in rows) < 1e-4 and abs(rows[0].get("kl", 0.0)) < 1e-4,
    "before a batch's first update the ratios are 1, and the KL begins at 0",
)

# %%
curves({"RLOO": rows}, ["reward", "gold", "kl", "response_length"], columns=4)

# %% [markdown]
# Prompts that the policy has never seen, before and after, with the same random numbers:

# %%
unseen = reviews.prompts("validation")[:64]
results = {
    name: evaluate(model, tokenizer, unseen, params, learned, reference=base, gold=gold)
    for name, model in {"base": base, "after RLOO": policy}.items()
}
columns = ("reward", "gold", "kl", "response_length")
plots.table(
    ["policy", "score", "gold", "KL", "length"],
    [[name, *(result.summary()[key] for key in columns)] for name, result in results.items()],
)
for i in range(2):
    print(unseen[i].prompt.strip())
    for name, result in results.items():
        print(f"  {name:10} gold {result.gold[i]:.2f}  {result.responses[i]}")
gain = results["after RLOO"].gold - results["base"].gold  # prompt by prompt
half = float(1.96 * gain.std() / math.sqrt(len(gain)))
print(f"\ngain in gold {gain.mean():.3f} +- {half:.3f} (95% interval)")
holds(gain.mean() > half, "RLOO raises the reward significantly")

# %% [markdown]
# Read the answers. *I find the Anna* and *The Thank you again* are not English, yet the first of
# these answers has the gold reward 1.00, because gold does not look at grammar. Ten large steps
# make a rough policy.
#
# ## 8. The command
#
# ```
# python -m rl.rloo_engine                                           # the paper's loss
# python -m rl.rloo_engine --loss clipped --updates-per-batch 2      # the ratio of whole responses, clipped
# ```
#
# The engine is [rl/rloo_engine.py](../rl/rloo_engine.py).
#
# ## Exercises
#
# Exercises 1 and 2 are above: `leave_one_out` and `rloo_loss`.
#
# **3. `rloo_advantages`**, with the KL:


# %%
def my_rloo_advantages(rewards, log_probs, ref_log_probs, mask, kl_coef, group_size):
    """(N,), then (N, T) three times -> advantages (N, 1)."""
    ...


check("rloo_advantages", my_rloo_advantages)

# %% [markdown]
# **On paper.** 4. Two responses to a prompt with $R' = 1$ and $0$: what are the advantages of RLOO,
# of the group's mean, and of GRPO? What happens to each when the rewards are doubled?
#
# 5\. Someone subtracts $\beta \log (\pi / \pi_{ref})(y_i \mid x)$ from $A_i$ *after* the baseline.
# Is the gradient still right on average? What has become worse?
#
# <details>
# <summary>Solutions</summary>
#
# ```python
# def my_rloo_advantages(rewards, log_probs, ref_log_probs, mask, kl_coef, group_size):
#     kl = torch.where(mask, log_probs - ref_log_probs, 0.0).sum(1)
#     groups = (rewards - kl_coef * kl).view(-1, group_size)
#     others = (groups.sum(1, keepdim=True) - groups) / (group_size - 1)
#     return (groups - others).view(-1, 1)
# ```
#
# 4\. RLOO: $\pm 1$, the difference of the two. Group's mean: $\pm 0.5$. GRPO: $\pm 0.707$. Doubled
#     rewards double the first two, but GRPO does not notice.
#
# 5\. Yes: what the baseline no longer contains, the neighbours' KL, has the mean 0 in the gradient,
# like every baseline. But then the KL's part has *no* baseline, and the noise grows by what the KLs
# of a group have in common.
#
# </details>
#
# Next: [10_reinforce_plus_plus](10_rloo_and_reinforce_plus_plus.ipynb), which needs one response per prompt
# and no critic.
