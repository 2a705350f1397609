# %% [markdown]
# # 11. One model: GRPO without a reference
#
# **Why.** GRPO ([07_grpo](07_grpo.ipynb)) needs a second copy of the policy, the frozen reference,
# for one thing only: its log-probabilities of the sampled tokens enter the KL penalty. The
# log-probabilities of the policy that *sampled* are there anyway. What if they do both jobs? Then
# no second copy is needed, and it is one line less. It is also another algorithm: a small
# experiment in what a KL penalty is good for.
#
# The idea is not ours. Kimi k1.5 ([arXiv:2501.12599](https://arxiv.org/abs/2501.12599)) and Kimi K2
# ([arXiv:2507.20534](https://arxiv.org/abs/2507.20534)) make the current policy the reference of
# each iteration, which is called *policy mirror descent*. Their loss is another one, a regression:
# $(r_i - \bar r - \tau \log \rho_i)^2$ for whole responses. A study of it
# ([arXiv:2602.05933](https://arxiv.org/abs/2602.05933)) finds a $\chi^2$ regulariser hidden in it.
# GRPO's own loss with the reference moved like that we have seen in no paper. A $\chi^2$ appears
# here as well (section 3), for another reason.
#
# | line of Algorithm 1 | GRPO ([arXiv:2402.03300](https://arxiv.org/abs/2402.03300)) | one model |
# | --- | --- | --- |
# | 3: reference $\pi_{ref} \leftarrow \pi_\theta$ | a frozen copy | left out |
# | 6: old policy $\pi_{old} \leftarrow \pi_\theta$ | its log-probs are kept | the reference's too |
# | 11: penalty (Eq. 4), $r = \pi_{ref} / \pi_\theta$ | $r - \log r - 1$ | $1 / \rho + \log \rho - 1$ |
#
# | section | question |
# | --- | --- |
# | 1 | what does it save? |
# | 2 | what is the penalty at the start of a batch? |
# | 3 | which divergence is it? |
# | 4 | does it hold the policy near its start? |
# | 5 | what can be steered with it? |
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about half a minute on one CPU core. The page before this
# one: [11_reinforce_plus_plus](11_reinforce_plus_plus.ipynb); the next:
# [13_grpo_family](13_grpo_family.ipynb).

# %%
import copy
import gc
import inspect
import warnings

import matplotlib.pyplot as plt
import torch
from torch import Tensor

try:
    from data import reviews
    from gpt import pretraining
    from gpt.common import MetricLog, make_generator
    from gpt.corpus import WorldCorpus
    from gpt.generate import SamplingParams
    from gpt.log_probs import token_log_probs
    from gpt.model import GPT, PRESETS, GPTConfig
    from gpt.tokenizer import load_tokenizer
    from rl import grpo_engine
    from rl import grpo_single_model_engine as single
    from rl.batches.rollout import prompt_batch, sample_rollout
    from rl.equations.advantages import group_advantages
    from rl.equations.kl import k3, rho_minus_log
    from rl.grpo_single_model_engine import SingleModelGRPOConfig
    from rl.rewards.sources import RuleReward
    from rl.training.evaluation import Validation, format_table, running_mean
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

torch.set_num_threads(1)  # one thread adds up in the same order on every machine

# %% [markdown]
# The policy is a small base model of the reviews world, pre-trained in ten seconds, and the reward
# is the world's gold reward, as in [07_grpo](07_grpo.ipynb): this page is about the loss alone.

# %%
tokenizer = load_tokenizer("glassbox")
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=96, n_layer=2, n_head=2, n_embd=96)
base = GPT(shape).initialize(make_generator(0, "weights"))
pretraining_config = pretraining.PretrainingConfig(
    steps=550, batch_size=16, lr=6e-3, warmup=30, eval_every=550, device="cpu"
)
corpus = WorldCorpus("reviews", tokenizer, pretraining_config.batch_size, seed=0)
log = pretraining.train(pretraining_config, base, corpus, MetricLog(550))
print(f"base model: {log[-1]['held_out_loss']:.2f} nats per token (held out)")

prompts = reviews.prompts("train")
params = SamplingParams(temperature=1.0, max_new_tokens=48)
gold = RuleReward(reviews.gold_reward, "gold reward")

# %% [markdown]
# ## 1. What it saves
#
# Both engines below train the same model on the same batch. While they do, the reward function
# looks around in memory and counts every GPT that is alive.


# %%
class Census(RuleReward):
    """The gold reward; counts the parameters of all models that exist while it is asked."""

    def __call__(self, rollout) -> Tensor:
        gc.collect()
        models = [thing for thing in gc.get_objects() if type(thing) is GPT and thing is not base]
        self.parameters = sum(p.numel() for model in models for p in model.parameters())
        return super().__call__(rollout)


ENGINES = {
    "GRPO": (grpo_engine, grpo_engine.GRPOConfig),
    "single model": (single, SingleModelGRPOConfig),
}
COMMON = dict(
    prompts_per_step=8, group_size=8, updates_per_batch=2, minibatches=2, micro_batch_size=64,
    lr=7e-4, stop_kl=None, device="cpu",
)  # fmt: skip
one_model = sum(parameter.numel() for parameter in base.parameters())
for name, (engine, config_class) in ENGINES.items():
    census, log = Census(reviews.gold_reward, "gold reward"), MetricLog(1)
    config = config_class(steps=1, **COMMON)
    engine.train(config, copy.deepcopy(base), tokenizer, census, prompts, log)
    print(
        f"{name:12} {census.parameters:9,} parameters in models = {census.parameters / one_model:.0f} x"
    )
    assert census.parameters == one_model * (2 if name == "GRPO" else 1)

# %% [markdown]
# The trained model is more than its weights: every parameter has a gradient and two running means
# of Adam. In float32 each of these is four bytes, so GRPO keeps five numbers per parameter and the
# single model four: a fifth of that memory is saved. (Activations come on top in both, and so does
# a reward model.)

# %%
KEPT = {"weights": 1, "gradient": 1, "Adam's two means": 2, "frozen reference": 1}
sizes = {}
for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
    with torch.device("meta"):  # shapes without memory
        sizes[name] = sum(parameter.numel() for parameter in GPT(PRESETS[name]).parameters())
table = []
for name, parameters in sizes.items():
    both = [4 * parameters * count / 2**30 for count in (5, 4)]
    table.append([name, f"{parameters / 1e6:.0f} M", *both, both[0] - both[1]])
print(format_table(["model", "parameters", "GRPO, GiB", "single model, GiB", "saved"], table))
assert 124e6 < sizes["gpt2"] < 125e6 and 1.5e9 < sizes["gpt2-xl"] < 1.6e9

# %%
figure, axis = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
left = [0.0] * len(sizes)
for (part, count), color in zip(KEPT.items(), ("C0", "C2", "C1", "0.6"), strict=True):
    width = [4 * parameters * count / 2**30 for parameters in sizes.values()]
    axis.barh(list(sizes), width, left=left, color=color, label=part)
    left = [a + b for a, b in zip(left, width, strict=True)]
axis.set(xlabel="GiB of float32 while training", ylabel="policy", title="The grey part is saved")
axis.invert_yaxis()
axis.legend()
plt.show()

# %% [markdown]
# What is *not* saved is time: this engine spends the forward pass of the reference on a measurement
# (section 3), because what it does to the policy should be seen.
#
# ## 2. Before the first update of a batch the penalty is nothing
#
# With $\rho = \pi_\theta / \pi_{old}$ and $\pi_{ref} = \pi_{old}$, Eq. 4 of the paper reads
#
# $$D = \frac{1}{\rho} + \log \rho - 1, \qquad \frac{\partial D}{\partial \log \pi_\theta} =
# 1 - \frac{1}{\rho}$$
#
# and both are 0 at $\rho = 1$, where every batch begins. The engine offers a second form, $\rho - 1
# - \log \rho$, for a reason that section 3 gives.

# %%
print(inspect.getsource(single.single_model_grpo_loss))
print(inspect.getsource(rho_minus_log))

# %%
rho = torch.linspace(0.25, 3, 276, dtype=torch.float64)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharex=True)
for name, penalty, style in (
    ("k3: 1/rho + log rho - 1", k3, "-"),
    ("rho - 1 - log rho", rho_minus_log, "--"),
):
    x = rho.log()[None].requires_grad_()  # log pi, with log pi_old = 0
    value = penalty(x, torch.zeros_like(x))
    (gradient,) = torch.autograd.grad(value.sum(), x)
    axes[0].plot(rho, value[0].detach(), style, label=name)
    axes[1].plot(rho, gradient[0], style, label=name)
    at_one = (rho - 1).abs().argmin()
    assert abs(value[0, at_one]) < 1e-12 and abs(gradient[0, at_one]) < 1e-12
for axis, label in zip(axes, ("penalty (nats)", "its gradient for log pi"), strict=True):
    axis.axvline(1, color="grey", linewidth=0.8)
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set(xlabel="ratio rho = pi / pi_old of a sampled token", ylabel=label)
axes[0].legend()
plt.show()

# %% [markdown]
# k3 pulls hard on tokens that have become unlikely and weakly on those that have become likely (its
# gradient never exceeds 1); the other form does the opposite. Now on a real batch: no
# penalty, then one with weight 100, and not a bit of the gradient changes.

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
print(
    f"before any update: norm {free.norm():.4f} and {held.norm():.4f}, equal: {torch.equal(free, held)}"
)
assert torch.equal(free, held) and free.norm() > 0.1

# %%
with torch.no_grad():
    policy.wte.weight -= 0.05 * free  # one update
moved = (gradient_of(0.0) - gradient_of(100.0)).norm()
print(f"after one update the two differ by {moved:.4f}")
assert moved > 0.01

# %% [markdown]
# So with **one update per batch** the weight of the penalty has no effect whatever. GRPO's paper uses
# one update per batch, and there the single-model variant is GRPO without any KL. The config warns:

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    SingleModelGRPOConfig(updates_per_batch=1, minibatches=1)
print(caught[0].message)
assert len(caught) == 1

# %% [markdown]
# ## 3. Which divergence?
#
# In GRPO the samples come from $\pi_\theta$ (nearly), and k3 is an unbiased estimate of
# $\mathrm{KL}(\pi_\theta \Vert \pi_{ref})$. Here the very policy that sampled is the reference, and
# the samples are *its*. The average over them is
#
# $$\mathbb{E}_{\pi_{old}} \left[ \frac{1}{\rho} + \log \rho - 1 \right] =
# \chi^2(\pi_{old} \Vert \pi_\theta) - \mathrm{KL}(\pi_{old} \Vert \pi_\theta), \qquad
# \mathbb{E}_{\pi_{old}} \left[ \rho - 1 - \log \rho \right] = \mathrm{KL}(\pi_{old} \Vert \pi_\theta)$$
#
# with $\chi^2(p \Vert q) = \sum p^2 / q - 1$. The second is the divergence that PPO's variant with a
# KL penalty holds ([arXiv:1707.06347](https://arxiv.org/abs/1707.06347), Eq. 8). With three symbols
# all of it can be written down:

# %%
OLD = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
NEW = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def average(penalty, new: Tensor) -> Tensor:
    """The mean of a penalty over one symbol drawn from OLD: every symbol by its weight."""
    return (OLD * penalty(new.log()[:, None], OLD.log()[:, None])[:, 0]).sum()


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p.log() - q.log())).sum()


chi_squared = (OLD**2 / NEW).sum() - 1
table = [
    ["k3", float(average(k3, NEW)), "chi^2 - KL(old, new)", float(chi_squared - kl(OLD, NEW))],
    ["rho - 1 - log rho", float(average(rho_minus_log, NEW)), "KL(old, new)", float(kl(OLD, NEW))],
]
print(format_table(["penalty", "mean", "divergence", "value"], table))
torch.testing.assert_close(average(k3, NEW), chi_squared - kl(OLD, NEW))
torch.testing.assert_close(average(rho_minus_log, NEW), kl(OLD, NEW))

# %%
steps = torch.linspace(-0.6, 1.3, 96, dtype=torch.float64)
path = [((1 - s) * OLD.log() + s * NEW.log()).softmax(0) for s in steps]  # from OLD to NEW and on
figure, axis = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
axis.plot(steps, [kl(OLD, q) for q in path], color="0.7", linewidth=6, label="KL(old, new)")
axis.plot(
    steps, [average(rho_minus_log, q) for q in path], "C1--", label="mean of rho - 1 - log rho"
)
axis.plot(steps, [average(k3, q) for q in path], "C0", label="mean of k3")
axis.set(
    xlabel="way from old (0) to new (1), in logits",
    ylabel="nats",
    title="Averages over samples of old",
)
axis.legend()
plt.show()

# %% [markdown]
# Near the old policy the two agree (both are the same parabola there); further out k3 is some other
# measure of distance, and no KL. As a *loss* the second form has exactly the gradient of
# $\mathrm{KL}(\pi_{old} \Vert \pi_\theta)$.
#
# The engine measures how far each batch has moved the policy: after the last update of a batch the
# responses are scored once more, and both directions are estimated from these samples of the old
# policy.

# %%
print(inspect.getsource(single.batch_kl))
with torch.no_grad():
    new_log_probs = token_log_probs(policy, rollout.sequences)
moved = single.batch_kl(new_log_probs, old_log_probs, rollout)
print("the update of section 2:", {name: round(value, 5) for name, value in moved.items()})

ratio = (new_log_probs - old_log_probs).exp() * rollout.response_mask + ~rollout.response_mask
by_hand = (ratio - 1 - ratio.log()).sum(1).mean()  # padding has ratio 1 and adds nothing
assert abs(moved["kl_old_new"] - by_hand) < 1e-5 and moved["kl_old_new"] > 1e-3

# %% [markdown]
# ## 4. A trust region is no anchor
#
# GRPO's reference stays where the training began. Here it moves along with every batch. Three runs
# from the same base model, with the same prompts and random numbers: GRPO with its anchor, the
# single model without any penalty, and with a strong one. The distance from the *start* is measured
# in validation only, which has kept the start for that purpose.

# %%
STEPS = 24


def run(engine, config) -> list[dict]:
    """Train a copy of the base model; its metrics, one row per batch."""
    validation = reviews.prompts("validation")[:96]
    validate = Validation(tokenizer, validation, params, gold, start=base)
    log = MetricLog(config.steps)
    return engine.train(
        config, copy.deepcopy(base), tokenizer, gold, prompts, log, validate=validate
    )


RUN = COMMON | dict(steps=STEPS, eval_every=6)
runs = {
    "GRPO, beta 0.3": run(grpo_engine, grpo_engine.GRPOConfig(**RUN, kl_coef=0.3)),
    "single model, beta 0": run(single, SingleModelGRPOConfig(**RUN, kl_coef=0.0)),
    "single model, beta 5": run(single, SingleModelGRPOConfig(**RUN, kl_coef=5.0)),
}
table = []
for name, rows in runs.items():
    last, moved = rows[-1], [row.get("kl_old_new") for row in rows]
    per_batch = None if moved[0] is None else sum(moved) / STEPS
    table.append([name, per_batch, last["validation/kl"], last["validation/reward"]])
print(format_table(["", "KL per batch", "KL from the start", "gold (validation)"], table))

# %%
figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.6), layout="constrained")
for (name, rows), color in zip(runs.items(), ("0.4", "C3", "C0"), strict=True):
    steps = [row["step"] for row in rows]
    if "kl_old_new" in rows[0]:
        moved = [row["kl_old_new"] for row in rows]
        axes[0].plot(steps, moved, color=color, alpha=0.3)
        axes[0].plot(steps, running_mean(moved, 5), color=color, label=name)
    measured = [row for row in rows if "validation/kl" in row]
    for axis, key in zip(axes[1:], ("validation/kl", "validation/reward"), strict=True):
        x, y = [row["step"] for row in measured], [row[key] for row in measured]
        axis.plot(x, y, "o-", color=color, label=name)
axes[0].set(
    xlabel="step (rollout batch)", ylabel="KL(old, new) of one batch\n(nats per response)", ylim=0
)
axes[1].set(xlabel="step (rollout batch)", ylabel="KL from the start\n(nats per response)", ylim=0)
axes[2].set(xlabel="step (rollout batch)", ylabel="gold reward, validation")
axes[2].legend(loc="lower right")
figure.suptitle("Left: pale one batch, strong the mean of five")
plt.show()

# %%
anchored, free, held = (
    [r["validation/kl"] for r in rows if "validation/kl" in r] for rows in runs.values()
)
batch = {name: sum(row.get("kl_old_new", 0) for row in rows) / STEPS for name, rows in runs.items()}
assert batch["single model, beta 5"] < 0.5 * batch["single model, beta 0"]  # it does hold the batch
assert held == sorted(held) and held[-1] > 2 * held[0]  # but not the distance from the start
assert held[-1] > 1.3 * anchored[-1]

# %% [markdown]
# The penalty does what it can: each batch moves the policy much less than without it. But small
# steps in one direction add up, and nothing pulls back. The distance grows for as long as there is
# reward to gain, while GRPO's has settled. A larger $\beta$ only makes the same way slower.
#
# GRPO's own gold reward stops rising where its distance does. With $\beta = 0.3$ the anchor is as
# strong as what the rewards still ask for.
#
# Whether that is bad depends on the reward. Here it is the truth, drift costs nothing, and the
# policy that is held least gains the most. For a checkable reward (sums, mathematics) many leave the
# KL out altogether. A *learned* reward is right only near the data it was trained on
# ([06_reward_model](06_reward_model.ipynb), section 8), and then the anchor is what keeps the
# policy where it can be trusted. `stop_kl`, which ends a run that has gone too far, would need a copy
# of the start, so this engine refuses it instead of ignoring it:

# %%
try:
    SingleModelGRPOConfig(stop_kl=8.0)
except ValueError as error:
    print(error)

# %% [markdown]
# ## 5. What it can hold: the size of a step
#
# The adaptive controller (Ziegler et al. 2019,
# [arXiv:1909.08593](https://arxiv.org/abs/1909.08593)) is given the quantity that the penalty acts
# on, `kl_old_new` of each batch, and its target is therefore small: nats per response *per batch*.

# %%
target = 0.04
adaptive = SingleModelGRPOConfig(
    **(RUN | dict(eval_every=STEPS)), kl_coef=1.0, kl_controller="adaptive",
    penalty="rho_minus_log", kl_target=target, kl_horizon=64,
)  # fmt: skip
rows = run(single, adaptive)
moved, steps = [row["kl_old_new"] for row in rows], [row["step"] for row in rows]
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
axes[0].plot(steps, moved, color="C0", alpha=0.3)
axes[0].plot(steps, running_mean(moved, 5), color="C0", label="measured (mean of five)")
axes[0].axhline(target, color="black", linestyle="--", label="target")
axes[0].set(
    xlabel="step (rollout batch)", ylabel="KL(old, new) of one batch\n(nats per response)", ylim=0
)
axes[0].legend()
axes[1].plot(steps, [row["kl_coef"] for row in rows], "C1")
axes[1].set(xlabel="step (rollout batch)", ylabel="kl_coef", ylim=0)
plt.show()

# %%
late = sum(moved[-8:]) / 8
print(
    f"mean of the last eight batches: {late:.3f} nats (target {target}), kl_coef {rows[-1]['kl_coef']:.1f}"
)
start = rows[-1]["validation/kl"]
print(f"KL from the start: {start:.1f} nats, {start / target:.0f} times the target")
assert 0.5 * target < late < 2 * target and rows[-1]["kl_coef"] > 1.5

# %% [markdown]
# **In short.**
#
# | | GRPO | single model |
# | --- | --- | --- |
# | numbers kept per parameter | 5 | 4 |
# | forward passes without a gradient, per batch | 1 (reference) | 1 (measurement) |
# | the penalty holds | the distance from the start | the size of a batch's step |
# | with one update per batch | acts from the second batch on | never acts |
# | k3 on the samples estimates | KL(policy, reference) | $\chi^2$ - KL |
# | a KL to stop at | `kl` | none in training; `validation/kl` |
#
# ## Exercise
#
# 1. Derive the average of $1 / \rho + \log \rho - 1$ over samples of the old policy.
# 2. Show that $\rho - 1 - \log \rho$, used as a loss, has the gradient of $\mathrm{KL}(\pi_{old}
#    \Vert \pi_\theta)$ on average, and for whole responses too, although it is a sum over tokens.
# 3. The reference's log-probabilities could be cached before training, and no second model would be
#    needed. Why does that not work? What would give an anchor without a second copy?
#
# <details>
# <summary>Answer</summary>
#
# 1. $\sum \pi_{old} \cdot \pi_{old} / \pi_\theta = \chi^2(\pi_{old} \Vert \pi_\theta) + 1$, and $\sum
#    \pi_{old} \log (\pi_\theta / \pi_{old}) = -\mathrm{KL}(\pi_{old} \Vert \pi_\theta)$; the two ones
#    cancel.
# 2. Its gradient is $(\rho - 1) \nabla \log \pi_\theta$. Averaged over $\pi_{old}$: $\sum \pi_\theta
#    \nabla \log \pi_\theta = 0$, and $- \sum \pi_{old} \nabla \log \pi_\theta = \nabla
#    \mathrm{KL}(\pi_{old} \Vert \pi_\theta)$. For responses: the prefixes come from the old policy,
#    which does not depend on $\theta$, so the KL of the response is the sum of the KLs at these
#    prefixes, and so is its gradient. (That is special to this direction; a loss per token on
#    samples of $\pi_\theta$ ignores that $\theta$ also changes the prefixes.)
# 3. The responses are new in every batch, and only the reference itself can score them. Trained
#    adapters (LoRA) on frozen weights are a way out: switched off, the same weights are the
#    reference. Or the reference waits in slower memory between its forward passes.
#
# </details>
