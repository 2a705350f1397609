# %% [markdown]
# # 9. PPO's details: what the options do
#
# **The question.** `python -m rl.ppo_engine --help` lists dozens of flags. Which problem does each
# of them solve, and how do you see that it does?
#
# **Why.** Two programs that are both called PPO often differ in ten such details, and the details
# decide whether a run works. Huang et al. 2024
# ([arXiv:2403.17031](https://arxiv.org/abs/2403.17031)) list those of RLHF. Here eight options get a
# section each, most of them with a curve. The last section counts what PPO costs.
#
# **You need** [08](08_ppo.ipynb). Read the sections in any order.
#
# **It takes** about 15 seconds on one CPU core, after start-up.

# %%
import copy
import dataclasses
import math

import matplotlib.pyplot as plt
import torch

try:
    from course import plots
    from course.claims import holds
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.exercises import check

from data.records import PromptRecord
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import build_tokenizer
from harness.metric_log import MetricLog
from harness.seeds import make_generator
from rl import ppo_engine
from rl.equations.kl import AdaptiveKL
from rl.ppo_engine import PPOConfig
from rl.rewards.sources import RuleReward

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
plots.use()

# %% [markdown]
# ## The toy
#
# A policy of eight letters answers with up to eight of them and is paid for writing `a`: a tenth
# for each. A run of 24 batches takes about a second, so every option can be tried beside the
# default. What holds here is a mechanism, not a recommendation for your task.

# %%
letters = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})
shape = GPTConfig(letters.n_vocab, context=12, n_layer=1, n_head=2, n_embd=32)
toy = GPT(shape).initialize(make_generator(0, "toy")).eval()
ask = [PromptRecord(letter) for letter in "abcdefgh"]
COMMON = PPOConfig(
    steps=24, prompts_per_step=16, minibatches=1, updates_per_batch=2, micro_batch_size=16, lr=5e-3,
    critic_lr=1e-2, max_new_tokens=8, kl_coef=0.02, stop_kl=None, warmup=1, device="cpu",
)  # fmt: skip


# %%
def count_a(record: PromptRecord, text: str, ended: bool) -> float:
    return text.count("a") / 10


def run(rule=count_a, **options) -> list[dict]:
    """Train a copy of the toy; its metrics, one row per batch."""
    config = dataclasses.replace(COMMON, **options)
    reward = RuleReward(rule, "toy")
    return ppo_engine.train(
        config, copy.deepcopy(toy), letters, reward, ask, MetricLog(config.steps)
    )


def compare(runs: dict[str, list[dict]], **panels: str) -> None:
    """One panel per metric, one line per run; the first run is the default."""
    figure, axes = plots.panels(len(panels), height=2.7)
    for axis, (key, label) in zip(axes, panels.items(), strict=True):
        lines = {name: [row.get(key, 0.0) for row in rows] for name, rows in runs.items()}
        plots.curves(lines, axis=axis, smooth=5, ylabel=label, xlabel="step (rollout batch)")
    plt.show()


def late(rows: list[dict], key: str) -> float:
    """The mean of a metric over the last eight batches."""
    return sum(row.get(key, math.nan) for row in rows[-8:]) / 8


default = run()

# %% [markdown]
# ## 1. `--kl-controller adaptive`: hold the KL at a target
#
# A good $\beta$ depends on the reward's scale, which nobody knows in advance. How far a policy may
# go, in nats per response, is easier to say. The controller of Ziegler et al. 2019
# ([arXiv:1909.08593](https://arxiv.org/abs/1909.08593), section 2.2) adjusts $\beta$ until the KL
# is there:
#
# $$e = \mathrm{clip} \left( \frac{\mathrm{KL}}{\mathrm{target}} - 1, -0.2, 0.2 \right), \qquad
# \beta \leftarrow \beta \left( 1 + \frac{\mathrm{responses}}{\mathrm{horizon}} \, e \right)$$
#
# By hand: $\beta = 0.2$, a KL of 9 nats, the target 6. The relative error of 0.5 is held at 0.2.
# With 256 responses and a horizon of 1000 the factor is $1 + 0.256 \cdot 0.2 = 1.0512$, so $\beta$
# becomes 0.21024.

# %%
beta, kl, target, responses, horizon = 0.2, 9.0, 6.0, 256, 1000
error = min(max(kl / target - 1, -0.2), 0.2)
naive = beta * (1 + responses / horizon * error)

controller = AdaptiveKL(beta, target, horizon)
controller.update(kl, responses)
assert abs(controller.coef - naive) < 1e-12
print(naive)
plots.code(AdaptiveKL.update)

# %% [markdown]
# **Predict, then run.** Two runs, one with a $\beta$ that is much too small at first, one much too
# large. Do they end at the same $\beta$?

# %%
adaptive = dict(
    steps=90, kl_controller="adaptive", kl_target=3.0, kl_horizon=160, updates_per_batch=1
)
held = {f"beta from {start}": run(kl_coef=start, **adaptive) for start in (0.02, 0.3)}
compare(held, kl="KL (nats per response)", kl_coef="beta")
for name, rows in held.items():
    print(f"{name}: at the end KL {late(rows, 'kl'):.1f}, beta {late(rows, 'kl_coef'):.3f}")

# %% [markdown]
# After 90 batches both have a $\beta$ of 0.06, and a KL of 4.1 and 3.4, a little above the target.
# The small start first goes far beyond it: the policy learns faster than $\beta$ rises, and comes
# back when the price is high enough. The large start hardly leaves the reference until $\beta$ has
# come down. The usual horizon of 10,000 responses is slow on purpose.
#
# ## 2. `--target-kl`: stop the epochs of a batch early
#
# After the first update the batch is old. The clip slows the policy down, but does not stop it
# ([07](07_grpo.ipynb), section 7). With a target, the epochs of a batch end as soon as KL(old, new)
# per token exceeds 1.5 times that number. Eight epochs per batch, with and without:

# %%
many = dict(updates_per_batch=8, steps=10)
stopped = {"eight epochs": run(**many), "target_kl 0.01": run(target_kl=0.01, **many)}
compare(stopped, approx_kl="KL(old, new)\n(nats per token)", reward="reward")
holds(
    late(stopped["target_kl 0.01"], "approx_kl") < late(stopped["eight epochs"], "approx_kl"),
    "with the target the KL per batch is smaller",
)

# %% [markdown]
# With the target, the KL is about 0.01 nats per token instead of 0.06 (the mean over the epochs of
# a batch). The reward rises a little more slowly.
#
# ## 3. `--missing-eos`: what an unfinished response is worth
#
# This toy is paid for more letters, so it learns never to stop. A response that was cut off has no
# EOS. `replace` gives it a fixed score, and `subtract` takes a fixed number off its score.

# %%
eos = {
    "default": default,
    "replaced by -1": run(missing_eos="replace", missing_eos_value=-1.0),
}
compare(eos, eos_rate="share that ended", response_length="length (tokens)")
holds(
    late(eos["replaced by -1"], "eos_rate") > late(default, "eos_rate") + 0.1,
    "a score of -1 for unfinished responses makes more of them end",
)

# %% [markdown]
# By default every response now runs into the limit of eight tokens. With a score of -1 for those,
# nearly all end by themselves, after three or four tokens.
#
# ## 4. `--whiten-rewards` and `--value-clip`: the scale of the reward
#
# The clip of the value is in the units of the reward ([08](08_ppo.ipynb), section 6). 0.2 is a lot
# where rewards go from 0 to 1. With rewards near 100 the critic may move by next to nothing per
# batch, and stays blind. Whitening scales the token rewards of a batch to the standard
# deviation 1, around the mean that they have. Or take the clip away. Does either help?


# %%
def hundredfold(record: PromptRecord, text: str, ended: bool) -> float:
    return 100 * count_a(record, text, ended)


scaled = {
    "rewards x 100": run(hundredfold, kl_coef=0.0),
    "x 100, whitened": run(hundredfold, kl_coef=0.0, whiten_rewards=True),
    "x 100, no value clip": run(hundredfold, kl_coef=0.0, value_clip=None),
}
compare(scaled, explained_variance="explained variance", reward="reward")
for name, rows in scaled.items():
    print(f"{name}: explained variance at the end {abs(late(rows, 'explained_variance')):.2f}")
    holds(
        abs(late(rows, "explained_variance")) < 0.005,
        "the explained variance stays at 0 in all three runs",
    )

# %% [markdown]
# Not here. The **explained variance** is 1 for a critic that knows every return and 0 for a
# constant. It stays at 0 in all three runs (note the scale of the left panel). Without the clip the
# critic may move further, but returns near 80 are too far away for one that starts at 0 and has
# only 24 batches. Whitening narrows the spread and *keeps the mean*, as other programs do. Every
# token is then paid the mean, about 9. So the returns are as large as before, and the policy learns
# more slowly. The two other runs learn alike, because the advantages are whitened anyway.
#
# So scale the reward itself: for rewards below 1, as in the default run of section 7, the same
# critic is good.
#
# ## 5. `--entropy-coef`: keep on trying
#
# A policy that has found something good stops looking. The bonus pays for **entropy**, the mean
# surprise over the next token, and is a term of the loss: $-c_H H$.

# %%
bonus = {"default": default, "entropy_coef 0.1": run(entropy_coef=0.1)}
compare(bonus, entropy="entropy (nats per token)", reward="reward")

# %% [markdown]
# The bonus keeps the entropy up, and a little of the reward is lost. Language models are rarely
# given one. The KL to the reference already keeps variety, that of ordinary language.
#
# ## 6. `--kl-loss-coef`: the KL in the loss instead
#
# GRPO has its KL in the loss. PPO can have it there too, as k2: half the square of k1. Its gradient
# is on average that of the KL ([11](11_reinforce_plus_plus.ipynb), section 5). Then the reward, the
# critic and the advantages are free of it. Both at once would count the same KL twice, and are
# refused.

# %%
OFF = 0.0  # the KL in the reward has to stay off where the loss has one
in_loss = {
    "in the reward, 0.1": run(kl_coef=0.1),
    "in the loss, 0.1": run(kl_coef=OFF, kl_loss_coef=0.1),
}
compare(in_loss, kl="KL (nats per response)", reward="reward")
try:
    PPOConfig(kl_coef=0.1, kl_loss_coef=0.1)
except ValueError as error:
    print("refused:", error)

# %% [markdown]
# The same number is not the same strength. Here 0.1 in the reward holds the KL below 1, and 0.1 in
# the loss lets it grow to 14. In the reward the KL becomes a part of the advantages, which are whitened as
# a whole. In the loss it meets advantages of unit spread, whatever the size of the reward.
#
# ## 7. `--gae-lambda`
#
# $\lambda$ sets how far to trust the critic ([08](08_ppo.ipynb), section 5). In this toy the critic
# starts at 0 and the reward comes at the end, so a run with $\lambda = 0$ has to wait until the value
# has travelled back from there:

# %%
trust = {"lambda 0.95": default, "lambda 0": run(gae_lambda=0.0)}
compare(trust, reward="reward", explained_variance="explained variance")

# %% [markdown]
# It does wait. (Do not compare the runs by their explained variance: each is measured against its
# own targets.)
#
# ## 8. `--pretraining-coef`: do not forget how to write
#
# InstructGPT's **PPO-ptx** adds the language model's loss on pre-training text to each update, with
# a separate weight (arXiv:2203.02155, Eq. 2). RL narrows a policy to what earns reward. This term
# pulls it back to text in general. It needs a corpus, which the toy does not have. A run on the
# reviews world logs it as `pretraining_loss`:
#
# ```
# python -m rl.ppo_engine --pretraining-coef 0.1
# ```
#
# ## 9. What PPO costs beside GRPO
#
# A model that learns needs its weights, a gradient and Adam's two moments: four numbers a weight. A
# frozen one needs one. Per batch, the scoring is one pass of the reference, and for PPO one of the
# critic. Each of the K epochs is a forward and a backward pass (which costs two forward passes) of
# the policy, and for PPO of the critic.

# %%
K, trained, frozen = 2, 4, 1
plots.table(
    ["", "numbers in memory, per weight", "passes over the batch"],
    [
        [
            "GRPO",
            f"policy {trained} + reference {frozen} = {trained + frozen}",
            f"1 + 3 K = {1 + 3 * K}",
        ],
        ["PPO", f"that + critic {trained} = {2 * trained + frozen}", f"2 + 6 K = {2 + 6 * K}"],
    ],
)
assert 2 + 6 * K == 2 * (1 + 3 * K)

# %% [markdown]
# So PPO does twice the work outside of sampling and holds nearly twice the numbers. In return every
# token gets its own advantage, and each prompt needs only one answer. `python -m rl.memory --engine ppo`
# computes the bytes.
#
# ## The command
#
# ```
# python -m rl.ppo_engine --help
# python -m rl.ppo_engine --kl-controller adaptive --kl-target 6 --target-kl 0.02
# ```
#
# The flags are defined in [rl/ppo_engine.py](../rl/ppo_engine.py) and
# [rl/training/actor_critic.py](../rl/training/actor_critic.py).
#
# ## Exercises
#
# **1. `approx_kl`**, the measure of section 2: how far has the policy moved from the one that
# sampled?


# %%
def my_approx_kl(log_probs, old_log_probs, mask):
    """(N, T) three times -> the mean of ratio - 1 - log ratio over the valid tokens."""
    ...


check("approx_kl", my_approx_kl)

# %% [markdown]
# **2. `explained_variance`**, the critic's mark of section 4:


# %%
def my_explained_variance(values, returns, mask):
    """(N, T) three times -> 1 - Var(returns - values) / Var(returns) over the valid tokens."""
    ...


check("explained_variance", my_explained_variance)

# %% [markdown]
# **On paper.** 3. The critic has its own weights and its own Adam. Its loss has the weight `value_coef`
# ($c_v$ in [08](08_ppo.ipynb), section 7), and a gradient longer than `max_norm` is cut to that
# length. How far does training change if `value_coef` is ten times as large, and the gradient of the
# critic is below `max_norm` in both cases?
#
# 4\. With one epoch and one minibatch, which of `clip_low`, `value_clip` and `target_kl` can be
# changed without changing the run?
#
# <details>
# <summary>Solutions</summary>
#
# ```python
# def my_approx_kl(log_probs, old_log_probs, mask):
#     log_ratio = (log_probs - old_log_probs)[mask]
#     return (log_ratio.exp() - 1 - log_ratio).mean()
#
# def my_explained_variance(values, returns, mask):
#     return 1 - (returns - values)[mask].var() / returns[mask].var()
# ```
#
# 3\. Not at all, but for rounding and the tiny constant in Adam's denominator: Adam divides the
# gradient by its own size. `value_coef` matters for a critic that shares weights with the policy.
#
# 4\. All three. At the only update the ratio is 1 and the value is the old one, and `target_kl` is
# looked at before it, when the KL is 0.
#
# </details>
#
# Next: [10_rloo](10_rloo.ipynb), which leaves the critic, the clip and the single tokens out again.
