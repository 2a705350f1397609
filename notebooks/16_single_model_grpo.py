# %% [markdown]
# # 12. One model: GRPO without a reference
#
# **The question.** GRPO keeps a frozen copy of the policy, for the KL penalty alone. What if the policy
# that *sampled* the batch does that job as well?
#
# **Why.** Its log-probabilities are there anyway, for the ratio. So no second copy is needed, and
# the loss has one fewer argument. But it is also a different algorithm, a small experiment in what
# a KL penalty is good for. It has a published relative, *policy mirror descent*, which section 4
# derives. We know of no paper that moves the reference in this way and keeps GRPO's own loss.
#
# | section | question |
# | --- | --- |
# | 1 | what does it save? |
# | 2 | what is the penalty at the start of a batch? |
# | 3 | which divergence is it? |
# | 4 | what has it to do with policy mirror descent? |
# | 5 | does it hold the policy near its start? |
#
# **You need** [07_grpo](07_grpo.ipynb) and [05_what_a_kl_is](05_what_a_kl_is.ipynb). The engine is
# [rl/grpo_single_model_engine.py](../rl/grpo_single_model_engine.py).
#
# **It takes** about half a minute on one CPU core, after start-up.

# %%
import copy
import warnings

import matplotlib.pyplot as plt
import torch
from course import plots
from course.claims import holds
from course.exercises import check
from torch import Tensor

from data import reviews
from gpt import pretraining
from gpt.corpus import WorldCorpus
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from gpt.model import GPT, PRESETS, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.metric_log import MetricLog
from harness.report.tokens import show_tokens
from harness.seeds import make_generator

# %%
from rl import grpo_engine
from rl import grpo_single_model_engine as single
from rl.batches.rollout import prompt_batch, sample_rollout
from rl.equations.advantages import group_advantages
from rl.equations.kl import k3, rho_minus_log
from rl.grpo_single_model_engine import SingleModelGRPOConfig
from rl.loop import Run
from rl.rewards.sources import RuleReward
from rl.training.evaluation import Validation

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine

# %% [markdown]
# ## 1. What it saves
#
# In training every parameter of the policy has four numbers: its weight, its gradient, and the two
# running means of Adam. GRPO's frozen reference is a fifth, so a fifth of that memory is saved.
# (Both also need activations and a reward model.)

# %%
rows = []
for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
    with torch.device("meta"):  # shapes without memory
        parameters = sum(parameter.numel() for parameter in GPT(PRESETS[name]).parameters())
    grpo, one = (4 * parameters * count / 2**30 for count in (5, 4))  # float32: 4 bytes each
    rows.append([name, f"{parameters / 1e6:.0f} M", f"{grpo:.2f}", f"{one:.2f}"])
plots.table(["policy", "parameters", "GRPO (GiB)", "one model (GiB)"], rows)
assert rows[0][1] == "124 M" and rows[-1][1] == "1558 M"

# %% [markdown]
# The loss differs from GRPO's in one argument and in the penalty: $\pi_{ref}$ is gone, and
# $\pi_{old}$ is used instead.

# %%
plots.difference(
    plots.source(grpo_engine.grpo_loss, docstring=False),
    plots.source(single.single_model_grpo_loss, docstring=False),
    names=("rl/grpo_engine.py: grpo_loss", "rl/grpo_single_model_engine.py"),
    context=1,
)

# %% [markdown]
# ## 2. Before the first update of a batch the penalty is nothing
#
# With $\rho = \pi_\theta / \pi_{old}$ and $\pi_{ref} = \pi_{old}$, GRPO's penalty k3
# ([arXiv:2402.03300](https://arxiv.org/abs/2402.03300), Eq. 4) reads
#
# $$D = \frac{1}{\rho} + \log \rho - 1, \qquad \frac{\partial D}{\partial \log \pi_\theta} =
# 1 - \frac{1}{\rho}$$
#
# Both are 0 at $\rho = 1$, where every batch begins. The engine offers a second form, $\rho - 1 - \log
# \rho$, for a reason that section 3 gives. By hand, for a token that has become twice as likely:

# %%
rho = torch.tensor([[1.0, 2.0]])
naive = {"k3": 1 / rho + rho.log() - 1, "rho - 1 - log rho": rho - 1 - rho.log()}
zeros = torch.zeros(1, 2)  # log pi_old, so that log pi is log rho
library = {"k3": k3(rho.log(), zeros), "rho - 1 - log rho": rho_minus_log(rho.log(), zeros)}
for name in naive:
    print(f"{name:18} at rho 1: {naive[name][0, 0]:.4f}, at rho 2: {naive[name][0, 1]:.4f}")
    torch.testing.assert_close(naive[name], library[name])
plots.code(rho_minus_log, docstring=False)

# %%
ratios = torch.linspace(0.25, 3, 276, dtype=torch.float64)
FORMS = {"k3": (k3, plots.line("k3")), "rho - 1 - log rho": (rho_minus_log, plots.line("policy"))}
figure, (left, right) = plots.panels(2)
for name, (penalty, style) in FORMS.items():
    x = ratios.log()[None].requires_grad_()  # log pi, with log pi_old = 0
    value = penalty(x, torch.zeros_like(x))
    (slope,) = torch.autograd.grad(value.sum(), x)
    left.plot(ratios, value[0].detach(), label=name, **style)
    right.plot(ratios, slope[0], **style)
for axis, label in ((left, "penalty (nats)"), (right, "its gradient for log pi")):
    axis.axvline(1, **plots.line("exact"))
    plots.labels(axis, "ratio of a sampled token", label, legend=axis is left)
plt.show()

# %% [markdown]
# k3 pulls hard on tokens that have become unlikely, and weakly on those that have become likely. The
# other form does the opposite.
#
# The policy of this page is a small model of the reviews world, trained here in ten seconds. The reward
# is the world's gold reward: the page is about the loss alone.

# %%
tokenizer = load_tokenizer("glassbox")
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=96, n_layer=2, n_head=2, n_embd=96)
base = GPT(shape).initialize(make_generator(0, "weights"))
pretraining_config = pretraining.PretrainingConfig(
    steps=550, batch_size=16, lr=6e-3, warmup=30, eval_every=550, device="cpu"
)
corpus = WorldCorpus("reviews", tokenizer, pretraining_config.batch_size, seed=0)
pretraining.train(pretraining_config, base, corpus, MetricLog(550))
prompts, params = reviews.prompts("train"), SamplingParams(temperature=1.0, max_new_tokens=48)
gold = RuleReward(reviews.gold_reward, "gold reward")
COMMON = dict(
    prompts_per_step=8, group_size=8, updates_per_batch=2, minibatches=2, micro_batch_size=64,
    lr=7e-4, stop_kl=None, device="cpu",
)  # fmt: skip

# %% [markdown]
# **Predict, then run.** On a real batch: no penalty, then one with the weight 100. How much does the
# gradient change, before the first update and after it?

# %%
records = prompt_batch(prompts, step=0, batch_size=4, seed=0)
rollout = sample_rollout(base, tokenizer, records, params, 8, make_generator(3, "demo"))
advantages = group_advantages(gold(rollout), 8)  # (N, 1)
config = SingleModelGRPOConfig(**COMMON)
policy = copy.deepcopy(base)
old_log_probs = token_log_probs(policy, rollout.sequences).detach()  # (N, T)


def gradient_of(kl_coef: float) -> Tensor:
    """The gradient of the loss for the (tied) embedding, where the policy is now."""
    log_probs = token_log_probs(policy, rollout.sequences)
    loss = single.single_model_grpo_loss(
        config, log_probs, old_log_probs, advantages, rollout.response_mask,
        kl_coef=kl_coef, rows=len(rollout),
    )  # fmt: skip
    return torch.autograd.grad(loss, policy.wte.weight)[0]


free, held = gradient_of(0.0), gradient_of(100.0)
print(f"before: norm {free.norm():.4f} and {held.norm():.4f}, equal: {torch.equal(free, held)}")
holds(
    torch.equal(free, held) and free.norm() > 0.1,
    "before the first update the penalty has no effect",
)
with torch.no_grad():
    policy.wte.weight -= 0.05 * free  # one update
moved = (gradient_of(0.0) - gradient_of(100.0)).norm()
print(f"after one update the two differ by {moved:.4f}")
holds(moved > 0.01, "after it the penalty changes the gradient")

# %% [markdown]
# Before the first update not a bit changes, so with **one update per batch** the weight of the
# penalty has no effect at all. GRPO's paper uses one update per batch, and there the single model
# is GRPO without any KL. The config warns:

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    SingleModelGRPOConfig(updates_per_batch=1, minibatches=1)
print(caught[0].message)
assert len(caught) == 1

# %% [markdown]
# After the update, token by token. The view opens with the advantages, which have moved the tokens.
# Press `log-ratio`: blue tokens have become more likely, orange ones less. The other two buttons show
# the penalties.

# %%
with torch.no_grad():
    new_log_probs = token_log_probs(policy, rollout.sequences)
mask = rollout.response_mask
texts = [
    ["(EOS)" if t == tokenizer.eos_id else tokenizer.decode([t]) for t in row[keep].tolist()]
    for row, keep in zip(rollout.response_tokens[:8], mask[:8], strict=True)
]
quantities = {
    "log-ratio": (new_log_probs - old_log_probs) * mask,
    "1/rho + log rho - 1": k3(new_log_probs, old_log_probs),
    "rho - 1 - log rho": rho_minus_log(new_log_probs, old_log_probs),
    "advantage": advantages * mask,
}
show_tokens(texts, {name: values[:8] for name, values in quantities.items()})

# %% [markdown]
# ## 3. Which divergence?
#
# In GRPO the samples come from $\pi_\theta$ (nearly), and k3 is an unbiased estimate of
# $\mathrm{KL}(\pi_\theta \Vert \pi_{ref})$. Here the policy that sampled *is* the reference. So the
# samples come from the reference, and the average over them is
#
# $$\mathbb{E}_{\pi_{old}} \left[ \frac{1}{\rho} + \log \rho - 1 \right] =
# \chi^2(\pi_{old} \Vert \pi_\theta) - \mathrm{KL}(\pi_{old} \Vert \pi_\theta), \qquad
# \mathbb{E}_{\pi_{old}} \left[ \rho - 1 - \log \rho \right] = \mathrm{KL}(\pi_{old} \Vert \pi_\theta)$$
#
# with $\chi^2(p \Vert q) = \sum p^2 / q - 1$. The second is the divergence of PPO's variant with a KL
# penalty ([arXiv:1707.06347](https://arxiv.org/abs/1707.06347), Eq. 8), and as a *loss* it has exactly
# that KL's gradient. With three symbols all of it can be written down:

# %%
OLD = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
NEW = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def average(penalty, new: Tensor) -> Tensor:
    """The mean of a penalty over one symbol drawn from OLD: every symbol by its weight."""
    return (OLD * penalty(new.log()[:, None], OLD.log()[:, None])[:, 0]).sum()


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p.log() - q.log())).sum()


chi_squared = (OLD**2 / NEW).sum() - 1
print(
    f"k3                mean {average(k3, NEW):.4f}, chi^2 - KL(old, new) {chi_squared - kl(OLD, NEW):.4f}"
)
print(f"rho - 1 - log rho mean {average(rho_minus_log, NEW):.4f}, KL(old, new) {kl(OLD, NEW):.4f}")
torch.testing.assert_close(average(k3, NEW), chi_squared - kl(OLD, NEW))
torch.testing.assert_close(average(rho_minus_log, NEW), kl(OLD, NEW))

# %%
way = torch.linspace(-0.6, 1.3, 96, dtype=torch.float64)
path = [((1 - s) * OLD.log() + s * NEW.log()).softmax(0) for s in way]  # from OLD to NEW and on
averages = {"mean of k3": [average(k3, q) for q in path],
            "mean of rho - 1 - log rho": [average(rho_minus_log, q) for q in path]}  # fmt: skip
axis = plots.curves(
    averages, way.tolist(), styles={"mean of k3": "k3", "mean of rho - 1 - log rho": "policy"},
    xlabel="way from old (0) to new (1), in logits", ylabel="nats",
)  # fmt: skip
axis.plot(way, [kl(OLD, q) for q in path], label="KL(old, new)", **plots.line("exact"))
axis.legend()
plt.show()

# %% [markdown]
# Near the old policy the two agree. Further out k3 measures another distance, not a KL. The engine
# measures how far each batch has moved the policy. After the last update of a batch the responses
# are scored once more, and the KL is estimated from these samples of the *old* policy:

# %%
ratio = (new_log_probs - old_log_probs).exp() * mask + ~mask  # padding has ratio 1 and adds nothing
naive = (ratio - 1 - ratio.log()).sum(1).mean()
measured = single.batch_kl(new_log_probs, old_log_probs, rollout)
print(f"by hand {naive:.5f};", {name: round(value, 5) for name, value in measured.items()})
same = abs(measured["kl_old_new"] - naive) < 1e-5 and naive > 1e-3
holds(same, "the library measures the same, which is not 0")

# %% [markdown]
# ## 4. The relative: policy mirror descent
#
# Kimi k1.5 ([arXiv:2501.12599](https://arxiv.org/abs/2501.12599)) and Kimi K2
# ([arXiv:2507.20534](https://arxiv.org/abs/2507.20534)) make the current policy the reference of
# each iteration, too. One iteration asks for the best policy near the old one. Section 7 of
# [05_what_a_kl_is](05_what_a_kl_is.ipynb) gives the answer, and
# [14_dpo_and_pg_grpo](14_dpo_and_pg_grpo.ipynb) derives it:
#
# $$\max_\pi \; E_\pi[r] - \tau \, \mathrm{KL}(\pi \Vert \pi_{old}) \quad \Rightarrow \quad
# \pi^{\ast} = \frac{1}{Z} \, \pi_{old} \, e^{r / \tau} \quad \Rightarrow \quad
# \tau \log \frac{\pi^{\ast}}{\pi_{old}} = r - \tau \log Z$$
#
# Their loss is the squared error of the last equation, for whole responses, with the group's mean reward
# $\bar r$ for $\tau \log Z$:
#
# $$\mathcal{L}_{PMD} = \left( r_i - \bar r - \tau \log \frac{\pi(y_i)}{\pi_{old}(y_i)} \right)^2$$
#
# Its gradient has two parts, with $\rho = \pi(y_i) / \pi_{old}(y_i)$. The first is $-2 \tau (r_i -
# \bar r) \nabla \log \pi$: a policy gradient with the group's mean as the baseline, as in GRPO. The
# second, $2 \tau^2 \log \rho \, \nabla \log \pi$, pulls back to the old policy. At the start of a
# batch $\log \rho = 0$, so this part is 0 there, like the penalty of section 2.

# %%
tau, group = 0.5, torch.tensor([1.0, 0.0, 0.0, 1.0])
log_ratio = torch.zeros(4, requires_grad=True)  # log pi(y) - log pi_old(y), at the start
loss = ((group - group.mean() - tau * log_ratio) ** 2).sum()
(slope,) = torch.autograd.grad(loss, log_ratio)
centred = group_advantages(group, 4, scale="none")[:, 0]
print("gradient of the regression", slope.tolist())
print("-2 tau (r - mean)         ", (-2 * tau * centred).tolist())
torch.testing.assert_close(slope, -2 * tau * centred)

# %% [markdown]
# (A study of that loss, [arXiv:2602.05933](https://arxiv.org/abs/2602.05933), finds that using the
# mean reward instead of $\tau \log Z$ adds a hidden $\chi^2$ regulariser. A $\chi^2$ appeared in
# section 3 as well, for another reason.)
#
# **Predict, then run.** Each iteration is held near the one before. How far from the *start* does the
# policy get in 30 iterations? Three symbols, solved exactly, beside the anchored optimum
# $\pi_{start} e^{r / \tau} / Z$:

# %%
r = torch.tensor([1.0, 0.6, 0.0], dtype=torch.float64)
mirror, tau, trace = OLD.clone(), 2.0, []
for _ in range(30):
    mirror = (mirror.log() + r / tau).softmax(0)  # the exact solution of one iteration
    trace.append([float(kl(mirror, OLD)), float(mirror @ r)])
anchored = (OLD.log() + r / tau).softmax(0)
figure, axes = plots.panels(2)
for axis, column, label in ((axes[0], 0, "KL from the start (nats)"), (axes[1], 1, "mean reward")):
    fixed = [float(kl(anchored, OLD)), float(anchored @ r)][column]
    plots.curves({"reference moves along": [row[column] for row in trace],
                 "reference stays": [fixed] * 30}, range(1, 31), axis=axis,
                styles={"reference moves along": "policy", "reference stays": "reference"},
                xlabel="iteration", ylabel=label)  # fmt: skip
plt.show()
print("after 30 iterations:", [round(p, 4) for p in mirror.tolist()])
holds(
    trace[-1][0] > 5 * float(kl(anchored, OLD)) and mirror[0] > 0.95,
    "in 30 iterations nearly all probability is on the best symbol",
)

# %% [markdown]
# After $n$ iterations the policy is $\pi_{start} e^{n r / \tau} / Z$. Small steps in one direction
# add up, so in the end only the best symbol is left. A larger $\tau$ takes the same path, only more
# slowly.
#
# ## 5. A trust region is no anchor
#
# A penalty that bounds each step is called a *trust region*. One that holds the policy near a fixed
# place is an *anchor*. Now compare both with a language model. Three runs begin at the same base
# model, with the same prompts and random numbers: GRPO with its anchor, the single model without
# any penalty, and the single model with a strong one. Only validation measures the distance from
# the start: it keeps a copy of the start for that purpose.

# %%
STEPS = 24


def run(engine, config) -> list[dict]:
    """Train a copy of the base model; its metrics, one row per batch."""
    validation = reviews.prompts("validation")[:96]
    validate = Validation(tokenizer, validation, params, gold, start=base)
    log, policy = MetricLog(config.steps), copy.deepcopy(base)
    return engine.train(
        config, Run(config, policy, tokenizer, gold, prompts, log, validate=validate)
    )


RUN = COMMON | dict(steps=STEPS, eval_every=6)
runs = {
    "GRPO, beta 0.3": run(grpo_engine, grpo_engine.GRPOConfig(**RUN, kl_coef=0.3)),
    "single model, beta 0": run(single, SingleModelGRPOConfig(**RUN, kl_coef=0.0)),
    "single model, beta 5": run(single, SingleModelGRPOConfig(**RUN, kl_coef=5.0)),
}

# %%
STYLES = dict(zip(runs, ("reference", "bad", "policy"), strict=True))
figure, axes = plots.panels(3, width=12)
for axis, key, label in (
    (axes[0], "kl_old_new", "KL(old, new) of one batch\n(nats per response, mean of five)"),
    (axes[1], "validation/kl", "KL from the start\n(nats per response)"),
    (axes[2], "validation/reward", "gold reward, validation"),
):
    series = {
        name: (
            [row["step"] for row in rows if key in row],
            [row[key] for row in rows if key in row],
        )
        for name, rows in runs.items()
        if any(key in row for row in rows)
    }
    plots.curves(series, axis=axis, styles=STYLES, smooth=5 if key == "kl_old_new" else 1,
                marker=key != "kl_old_new", xlabel="step (rollout batch)", ylabel=label)  # fmt: skip
    if axis is not axes[2]:
        axis.get_legend().remove()
axes[2].legend(loc="lower right", fontsize=9)
plt.show()

# %%
away = {name: [row["validation/kl"] for row in rows if "validation/kl" in row]
        for name, rows in runs.items()}  # fmt: skip
reward = {name: [row["validation/reward"] for row in rows if "validation/reward" in row]
          for name, rows in runs.items()}  # fmt: skip
rows = []
for name, log in runs.items():
    steps = [row["kl_old_new"] for row in log if "kl_old_new" in row]
    per_batch = f"{sum(steps) / STEPS:.3f}" if steps else "-"
    rows.append([name, per_batch, f"{away[name][-1]:.2f}", f"{reward[name][-1]:.3f}"])
plots.table(["", "KL per batch", "KL from the start", "gold (validation)"], rows)
anchored, free, held = away.values()
holds(float(rows[2][1]) < 0.5 * float(rows[1][1]), "the penalty holds each batch")
holds(held == sorted(held) and held[-1] > 2 * held[0], "the distance from the start keeps growing")
holds(held[-1] > 1.3 * anchored[-1], "without an anchor the policy goes further than GRPO")

# %% [markdown]
# The penalty works: each batch moves the policy much less than without it. But the distance from
# the start grows for as long as there is reward to gain, while GRPO's has settled.
#
# Look at GRPO's own gold reward, too. It flattens where its distance does: with $\beta = 0.3$ the
# anchor then pulls back about as strongly as the rewards pull away. Do not read anything into a
# change of a few hundredths from one validation to the next: 96 prompts measure a mean to within
# about 0.04.
#
# Is the missing anchor bad? That depends on the reward. Here the reward is the truth, so drift
# costs nothing and the policy that is held least gains the most. For rewards that can be checked
# many people leave the KL out altogether ([12_verifiable_rewards](12_verifiable_rewards.ipynb)).
# But a *learned* reward is right only near the data it was trained on, so there the anchor keeps
# the policy where the reward can be trusted
# ([13_when_the_proxy_breaks](13_when_the_proxy_breaks.ipynb)). `stop_kl`, which ends a run that has
# gone too far, would need a copy of the start, so this engine refuses it instead of ignoring it:

# %%
try:
    SingleModelGRPOConfig(stop_kl=8.0)
except ValueError as error:
    print(error)

# %% [markdown]
# | in short | GRPO | single model |
# | --- | --- | --- |
# | numbers kept per parameter | 5 | 4 |
# | forward passes without a gradient, per batch | 1 (reference) | 1 (measurement) |
# | the penalty holds | the distance from the start | the size of a batch's step |
# | with one update per batch | acts from the second batch on | never acts |
# | k3 on the samples estimates | KL(policy, reference) | $\chi^2$ - KL |
#
# **The command**: `python -m rl.grpo_single_model_engine --data sums`. With `--kl-controller adaptive` the
# size of a batch's step (`kl_old_new`) is held at a target.

# %%
plots.code(single.batch_kl, docstring=False)

# %% [markdown]
# ## 6. Exercise
#
# Fill in the function and run the cell. `check` says in words what is right or wrong.
#
# Write the loss of policy mirror descent, one number per response, (N,). `log_ratio` is (N,), of
# whole responses; the groups are neighbours.


# %%
def my_mirror_descent_loss(log_ratio, rewards, group_size, tau):
    return ...  # your lines


check("mirror_descent_loss", my_mirror_descent_loss)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_mirror_descent_loss(log_ratio, rewards, group_size, tau):
#     groups = rewards.view(-1, group_size)
#     centred = (groups - groups.mean(1, keepdim=True)).view(-1)
#     return (centred - tau * log_ratio) ** 2
# ```
#
# </details>
#
# **To think about.** The reference's log-probabilities could be cached before training, and no second
# model would be needed. Why does that not work? What would give an anchor without a second copy?
#
# <details>
# <summary>Answer</summary>
#
# The responses are new in every batch, and only the reference itself can score them. One way out is
# to train adapters (LoRA) on frozen weights: with the adapters switched off, the same weights are
# the reference. Or the reference can wait in slower memory between its forward passes.
#
# </details>
#
# ---
# Next: [11_grpo_family](11_grpo_family.ipynb).
