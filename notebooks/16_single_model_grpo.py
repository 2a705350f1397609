# %% [markdown]
# # 16. Appendix: one model, GRPO without a reference
#
# **The question.** GRPO keeps a frozen copy of the policy, for the KL penalty alone. What if the policy
# that *sampled* the batch does that job as well?
#
# **After this page you can** say what a run without a reference saves, why its penalty does nothing
# before a batch's first update, and what an anchor does that a trust region cannot.
#
# **Why.** Its log-probabilities are there anyway, for the ratio. So no second copy is needed, and the loss
# has one fewer argument. But it is also a different algorithm, a small experiment in what a KL penalty
# is good for. We know of no paper that moves the reference in this way and keeps GRPO's own loss. Nobody
# needs this page to understand the others.
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

try:
    from course import plots
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.claims import holds
from course.entered import check_answer, table
from torch import Tensor

from data.worlds import reviews
from gpt import pretraining
from gpt.corpus import WorldCorpus
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from gpt.model import GPT, PRESETS, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.metric_log import MetricLog
from harness.seeds import make_generator

# %%
from rl import grpo_engine
from rl import grpo_single_model_engine as single
from rl.batches.rollout import prompt_batch, sample_rollout
from rl.equations.advantages import group_advantages
from rl.equations.kl import k3, rho_minus_log
from rl.equations.losses import grpo_objective
from rl.grpo_single_model_engine import SingleModelGRPOConfig
from rl.loop import Run
from rl.rewards.reward import RuleReward
from rl.run.evaluation import Validation

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine

# %% [markdown]
# ## 1. What it saves
#
# In training every parameter of the policy has four numbers: its weight, its gradient, and the two running
# means of Adam. GRPO's frozen reference is a fifth, so in float32 a fifth of that memory is saved. (In
# mixed precision a trained parameter takes 16 bytes or more and the reference's 2, so it is a ninth at
# most. What sampling and the backward pass need is not counted.)

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
    plots.source(grpo_engine.train, ("loss = ", "loss.backward"), docstring=False),
    plots.source(single.train, ("loss = ", "loss.backward"), docstring=False),
    names=("rl/grpo_engine.py", "rl/grpo_single_model_engine.py"),
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

# %% [markdown]
# The policy of this page is a small model of the reviews world, trained here in ten seconds. The reward
# is the world's gold reward: the page is about the loss alone.

# %%
tokenizer = load_tokenizer("glassbox")
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=96, n_layer=2, n_head=2, n_embd=96)
base = GPT(shape).initialize(make_generator(0, "weights"))
pretraining_config = pretraining.PretrainingConfig(
    steps=550, batch_size=16, lr=6e-3, warmup_steps=30, eval_every=550, device="cpu"
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
    loss = grpo_objective(
        log_probs, old_log_probs, advantages, rollout.response_mask, k3(log_probs, old_log_probs),
        clip_range=0.2, kl_coef=kl_coef, responses=len(rollout),
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
# penalty has no effect at all. GRPO's paper uses one update per batch. With that setting the single
# model is GRPO without any KL. The config warns:

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
# $\mathrm{KL}(\pi_\theta \Vert \pi_{ref})$. Here the policy that sampled *is* the reference. So the
# samples come from the reference, and the average over them is
#
# $$\mathbb{E}_{\pi_{old}} \left[ \frac{1}{\rho} + \log \rho - 1 \right] =
# \chi^2(\pi_{old} \Vert \pi_\theta) - \mathrm{KL}(\pi_{old} \Vert \pi_\theta)$$
#
# with $\chi^2(p \Vert q) = \sum p^2 / q - 1$. The engine's second form gives
#
# $$\mathbb{E}_{\pi_{old}} \left[ \rho - 1 - \log \rho \right] = \mathrm{KL}(\pi_{old} \Vert \pi_\theta)$$
#
# This is the divergence of PPO's variant with a KL penalty
# ([arXiv:1707.06347](https://arxiv.org/abs/1707.06347), Eq. 8), and as a *loss* it has exactly that KL's
# gradient. With three symbols all of it can be written down:

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

# %% [markdown]
# So k3 measures another distance here, not a KL. Near the old policy the two nearly agree.
#
# (A relative is the policy mirror descent of Kimi k1.5,
# [arXiv:2501.12599](https://arxiv.org/abs/2501.12599), where each batch's policy is the reference as well,
# but the loss is another one.)
#
# ## 4. A trust region is no anchor
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
    return engine.train(Run(config, policy, tokenizer, gold, prompts, log, validate=validate))


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
    (axes[0], "kl_old_new", "KL(old, new) of one batch\n(nats per response)"),
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
    plots.curves(series, axis=axis, styles=STYLES,
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
middle = anchored[len(anchored) // 2]
holds(anchored[-1] < 1.25 * middle, "GRPO's hardly grows after half of the run")
holds(held[-1] > 1.3 * anchored[-1], "without an anchor the policy goes further than GRPO")

# %% [markdown]
# The penalty works: each batch moves the policy much less than without it. But the distance from the start
# keeps growing, while GRPO's hardly grows after the first half. (One run of each; and 0.3 and 5 are weights
# of unlike penalties, so compare how the lines bend, and not how high they are.)
#
# Is the missing anchor bad? That depends on the reward. Here the reward is the truth, so drift costs
# nothing, and in these runs the policy that is held least gains the most. For rewards that can be checked
# many people leave the KL out altogether ([12_verifiable_rewards](12_verifiable_rewards.ipynb)). But a
# *learned* reward is right only near the data it was trained on, so there the anchor keeps the policy where
# the reward can be trusted ([13_when_the_proxy_breaks](13_when_the_proxy_breaks.ipynb)). `stop_kl`, which
# ends a run that has gone too far, would need a copy of the start, so this engine refuses it instead of
# ignoring it:

# %%
try:
    SingleModelGRPOConfig(stop_kl=8.0)
except ValueError as error:
    print(error)

# %% [markdown]
# **Your turn.** A trust region allows each batch so many nats from the policy of the batch before. Suppose
# that all its steps point the same way. For small steps the KL grows with the *square* of the distance.
# **Predict:** if this rule held all the way, how many nats would the policy be from its start? (It holds
# all the way for a normal distribution whose mean moves, but not for words: two words that begin half and
# half are never more than $\log 2 = 0.69$ nats from there, as KL(now $\Vert$ start), while the rule gives
# 1.8 for six steps of 0.05. What it shows is that the nats of single steps do not add up.)

# %%
MINE = 0  # your number, at a university the last digits of your student number
table("steps_in_one_direction", MINE)

# %%
check_answer("steps_in_one_direction", ..., MINE)

# %% [markdown]
# **The command**: `python -m rl.grpo_single_model_engine --data sums`. With `--kl-target 0.05` the weight
# of the penalty is adapted so that the size of a batch's step (`kl_old_new`) stays near 0.05.
#
# ## To remember
#
# - With the sampling policy as the reference, value and gradient of the penalty are 0 where every batch
#   begins.
# - Averaged over old samples k3 is no KL to the reference any more, but another distance.
# - A trust region bounds a step, an anchor bounds the way; with a learned reward the way is what matters.
#
# Next: [17_bug_zoo](17_bug_zoo.ipynb). You know the engines now; there you find what is wrong with a run.
