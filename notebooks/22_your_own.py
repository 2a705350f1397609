# %% [markdown]
# # 23. Cheat sheet, and what next
#
# **The question.** All these objectives: how different are they really?
#
# This page writes them in one notation, computes every engine's gradient on one rollout, and
# measures the angles between them, and to the exact gradient. Then it says how to write an engine
# of your own, and what to read. You need [07](07_grpo.ipynb), [09](09_ppo.ipynb) and
# [11](11_grpo_family.ipynb). The other engines get a line each. It takes about fifteen seconds,
# after start-up.

# %%
import itertools

import torch
from course import plots
from course.claims import holds

try:
    from rl.equations import advantages as adv
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

from rl import grpo_engine, rloo_engine
from rl.equations import losses
from rl.equations.preference_losses import dpo_loss
from rl.equations.token_rewards import at_last_token

plots.use()
torch.set_num_threads(1)

# %% [markdown]
# ## 1. All objectives in one notation
#
# The same table is [docs/cheat_sheet.md](../docs/cheat_sheet.md); the symbols are those of
# [docs/symbols.md](../docs/symbols.md).

# %%
plots.document("cheat_sheet")

# %% [markdown]
# ## 2. One rollout, every gradient
#
# A formula does not show how far apart two objectives are, but their gradients do. We take the
# policy of [page 04](04_policy_gradients_and_baselines.ipynb), whose answers can be listed: two
# letters, and `.` ends an answer of at most three tokens. That makes 15 answers. Here there are
# **two prompts**, with 7 prefixes each and 3 logits for each prefix: 42 numbers are the whole
# policy.

# %%
EOS, T, G, PROMPTS = 0, 3, 8, 2
prefixes = [p for n in range(T) for p in itertools.product((1, 2), repeat=n)]
listed = [(*p, EOS) for p in prefixes] + list(itertools.product((1, 2), repeat=T))
tokens = torch.tensor([[*r, *[EOS] * (T - len(r))] for r in listed])  # (15, 3)
mask = torch.arange(T) < torch.tensor([len(r) for r in listed])[:, None]  # (15, 3)
states = torch.tensor(
    [[prefixes.index(r[:t]) if t < len(r) else 0 for t in range(T)] for r in listed]
)
theta = 0.7 * torch.randn(PROMPTS, 7, 3, generator=torch.Generator().manual_seed(0))
fair = torch.tensor([0.5 * r.count(2) - 0.3 * r.count(1) + (EOS in r) for r in listed])
REWARDS = torch.stack([fair, 3 + 0.4 * fair])  # (2, 15): the second prompt is easier, and flatter


def log_probs_of(theta, prompt, answer):
    """Log-probabilities (N, 3) of the tokens of listed answers to prompts, both (N,)."""
    rows = theta.log_softmax(-1)[prompt[:, None], states[answer]]  # (N, 3, 3)
    return rows.gather(-1, tokens[answer][..., None]).squeeze(-1)


# %% [markdown]
# The expected reward is a sum of 15 terms for each prompt. Its gradient needs no sample. It is what
# all engines try to follow:
#
# $$\nabla J = \nabla \, \mathrm{mean}_x \sum_y \pi(y \mid x) R(x, y)$$

# %%
ALL = torch.arange(15).repeat(PROMPTS)  # every answer to every prompt
WHOSE = torch.arange(PROMPTS).repeat_interleave(15)


def gradient(objective, at=theta):
    """The gradient of objective(theta) as 42 numbers."""
    leaf = at.clone().requires_grad_()
    return torch.autograd.grad(objective(leaf), leaf)[0].flatten()


def probabilities(theta):
    """(2, 15): of each answer to each prompt."""
    return losses.row_sums(log_probs_of(theta, WHOSE, ALL), mask[ALL]).exp().view(PROMPTS, 15)


exact = gradient(lambda z: (probabilities(z) * REWARDS).sum() / PROMPTS)
assert torch.allclose(probabilities(theta).sum(1), torch.ones(PROMPTS))


def angle(a, b):
    """Degrees between two gradients."""
    return float(torch.rad2deg(torch.arccos(torch.cosine_similarity(a, b, 0).clamp(-1, 1))))


# %% [markdown]
# One rollout: $G = 8$ answers to each prompt. The engines differ in the advantage and in the average.
# Here are both, one line each, with the library's functions. PPO gets a perfect critic: with 15
# answers, the value of a prefix is a sum as well.


# %%
def critic(prompt, answer):
    """The exact value V (N, 3) of the state before each token of listed answers."""
    p = probabilities(theta).detach()[prompt]  # (N, 15)
    columns = []
    for t in range(T):  # of all answers that begin like this one
        same = (tokens[answer][:, None, :t] == tokens[None, :, :t]).all(-1) & mask[:, t]
        weight = p * same
        columns.append((weight * REWARDS[prompt]).sum(1) / weight.sum(1).clamp(min=1e-9))
    return torch.stack(columns, 1)


def advantages_of(rewards, values, m):
    """{name: advantages} of one rollout: rewards (N,), values and mask (N, T)."""
    token_rewards = at_last_token(rewards, m)
    return {
        "reward": rewards[:, None],
        "others": adv.leave_one_out_advantages(rewards, G),
        "group": adv.group_advantages(rewards, G),
        "centred": adv.group_advantages(rewards, G, scale="none"),
        "batch": adv.whiten(adv.discounted_returns(token_rewards, m, 1.0), m),
        "gae": adv.whiten(adv.gae(token_rewards, values, m, 1.0, 0.95)[0], m),
    }


# %%
def best_and_worst(lp, old, rewards, m):
    """DPO's loss on the best and the worst answer of each group."""
    groups, first = rewards.view(-1, G), torch.arange(0, len(rewards), G)
    won, lost = first + groups.argmax(1), first + groups.argmin(1)
    new, ref = losses.row_sums(lp, m), losses.row_sums(old, m)
    return dpo_loss(new[won], new[lost], ref[won], ref[lost], 0.1).mean()


def clip(lp, old, A, high=0.2):
    """The clipped surrogate of PPO."""
    return losses.clipped_surrogate(lp, old, A, 0.2, high)


# %%
by_answer, by_token, summed = losses.sequence_mean, losses.token_mean, losses.sequence_sum
gspo, cispo, log_pi = losses.gspo, losses.cispo, losses.policy_gradient
LOSSES = {  # of log_probs, old_log_probs, {name: advantages} and the mask
    "REINFORCE": lambda lp, old, A, m: summed(log_pi(lp, A["reward"]), m),
    "RLOO": lambda lp, old, A, m: summed(log_pi(lp, A["others"]), m),
    "REINFORCE++": lambda lp, old, A, m: by_answer(clip(lp, old, A["batch"]), m),
    "PPO": lambda lp, old, A, m: by_token(clip(lp, old, A["gae"]), m),
    "GRPO": lambda lp, old, A, m: by_answer(clip(lp, old, A["group"]), m),
    "DAPO": lambda lp, old, A, m: by_token(clip(lp, old, A["group"], 0.28), m),
    "Dr. GRPO": lambda lp, old, A, m: losses.constant_length_mean(
        clip(lp, old, A["centred"]), m, T
    ),
    "GSPO": lambda lp, old, A, m: by_answer(gspo(lp, old, A["group"], m, 3e-4, 4e-4), m),
    "CISPO": lambda lp, old, A, m: by_token(cispo(lp, old, A["group"], 0.2), m),
    "SAPO": lambda lp, old, A, m: by_answer(losses.sapo(lp, old, A["group"]), m),
    "single model": lambda lp, old, A, m: by_answer(clip(lp, lp.detach(), A["group"]), m),
    "PG-GRPO": lambda lp, old, A, m: (
        LOSSES["GRPO"](lp, old, A, m) + 0.1 * LOSSES["DPO"](lp, old, A, m)
    ),
    "DPO": lambda lp, old, A, m: best_and_worst(lp, old, A["reward"][:, 0], m),
}


# %%
def gradients(seed, at=theta, chosen=LOSSES):
    """{engine: its gradient at `at`} on one rollout, which `theta` has sampled."""
    generator = torch.Generator().manual_seed(seed)
    answer = torch.multinomial(probabilities(theta), G, replacement=True, generator=generator).view(
        -1
    )
    prompt = torch.arange(PROMPTS).repeat_interleave(G)
    m, old = mask[answer], log_probs_of(theta, prompt, answer)
    A = advantages_of(REWARDS[prompt, answer], critic(prompt, answer), m)
    return {
        name: -gradient(lambda z, f=loss: f(log_probs_of(z, prompt, answer), old, A, m), at)
        for name, loss in chosen.items()
    }


one = gradients(seed=1)
order = [*LOSSES, "exact"]
short = [name.replace("REINFORCE", "RF").replace(" model", "\nmodel") for name in order]
table = torch.tensor(
    [[angle(a, b) for b in [*one.values(), exact]] for a in [*one.values(), exact]]
)
axis = plots.panels(1, height=6, width=9.5)[1]
plots.heat(
    table, order, short, axis=axis, numbers=".0f",
    title="angles between the gradients of one rollout, degrees",
)  # fmt: skip
axis.tick_params(axis="x", rotation=40)

# %% [markdown]
# (RF is short for REINFORCE.) Read the last column first. On one rollout of 16 answers every engine
# is at least 30 degrees away from the truth. REINFORCE and REINFORCE++ are nearly at a right angle
# to it. Then look for the zeros. RLOO and Dr. GRPO point the same way: whether the group's mean
# includes the answer itself changes the advantage by a constant factor only. GRPO, GSPO, SAPO and the
# single model coincide too, and so do DAPO and CISPO. Before the first update every ratio is 1, no clip
# acts, and what is left is the advantage and the average. PG-GRPO adds DPO's gradient with a weight of
# 0.1, which hardly turns it.
#
# The engines that are left out add no new direction. Process supervision, iterative GRPO, KD-GRPO and
# KD-PPO put other rewards into GRPO or PPO. MiniLLM has another goal: its teacher.
#
# **Predict:** is the distance to the exact gradient noise, which more answers would reduce, or does
# an engine's gradient point elsewhere even on average? Average 120 rollouts and see.

# %%
SEEDS = 120
runs = [gradients(seed) for seed in range(SEEDS)]
single = {name: sum(angle(run[name], exact) for run in runs) / SEEDS for name in LOSSES}
average = {name: angle(sum(run[name] for run in runs), exact) for name in LOSSES}
plots.bars(
    {"one rollout (mean of 120)": list(single.values()), "mean gradient of 120": list(average.values())},
    short[:-1], axis=plots.panels(1, width=10)[1], numbers=".0f",
    styles={"one rollout (mean of 120)": "reference", "mean gradient of 120": "policy"},
    ylabel="degrees to the exact gradient", ylim=(0, 90),
)  # fmt: skip
holds(
    average["RLOO"] < 10 and single["RLOO"] < single["REINFORCE"],
    "RLOO points along the exact gradient on average",
)

# %% [markdown]
# The grey bars are noise and bias together. The blue ones are mostly bias.
#
# - **RLOO, Dr. GRPO and PPO point along the exact gradient** on average. So would REINFORCE, but it
#   has so much noise that 120 rollouts leave 20 degrees.
# - **All of GRPO's family but Dr. GRPO divide by the group's deviation.** The flat second prompt then
#   weighs as much as the first, and the direction turns by 25 to 29 degrees. DPO, which sees only the
#   best and the worst answer of a group, turns by about as much.
# - **REINFORCE++ is the surprise.** Its baseline is the mean of the batch, so here nearly every
#   answer to the easy prompt has a positive advantage and nearly every answer to the hard one a
#   negative one. A constant advantage cancels in a *sum* over an answer's tokens, because
#   $\mathbb{E} [\nabla \log \pi(y)] = 0$. It does not cancel in a *mean*, which multiplies by $1 / L$:
#   the constant then pays for long or short answers. That is the next cell.

# %%
mixed = {"mean over an answer's tokens": by_answer, "sum over an answer's tokens": summed}
forms = {
    name: lambda lp, old, A, m, reduce=reducer: reduce(clip(lp, old, A["batch"]), m)
    for name, reducer in mixed.items()
}
runs = [gradients(seed, chosen=forms) for seed in range(SEEDS)]
for name in forms:
    degrees = angle(sum(run[name] for run in runs), exact)
    print(f"REINFORCE++ with the {name}: {degrees:.0f} degrees on average")

# %% [markdown]
# (REINFORCE++-baseline subtracts each prompt's own mean first, which removes that constant:
# [page 10](10_rloo_and_reinforce_plus_plus.ipynb).)
#
# None of this says which engine learns best. A biased direction with little noise often wins.
#
# ## 3. What the clip and the ratio change
#
# Differences inside GRPO's family appear only off-policy, when one rollout is used again. Move the
# policy along GRPO's gradient, and measure the angles to GRPO at the new place.

# %%
distances = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
shown = ("DAPO", "GSPO", "CISPO", "RLOO")
moved = {name: [] for name in shown}
for distance in distances:
    there = gradients(1, theta + distance * one["GRPO"].view_as(theta))
    for name in shown:
        zero = min(there[name].norm(), there["GRPO"].norm()) < 1e-9
        moved[name].append(float("nan") if zero else angle(there[name], there["GRPO"]))
plots.curves(
    moved, distances, marker=True, xlabel="steps along GRPO's gradient",
    ylabel="degrees to GRPO's gradient there", title="the same rollout, used again",
)  # fmt: skip
holds(moved["CISPO"][-1] > moved["CISPO"][0], "CISPO drifts away from GRPO")

# %% [markdown]
# At 0 no clip acts: DAPO and CISPO differ from GRPO in the average, RLOO in the advantage as well.
# GSPO's range of 3e-4 is made for one ratio per answer that hardly moves. Half a step of this size
# leaves it: most answers stop at once, and at 8 steps all of them, so no point is drawn. GRPO and
# DAPO clip token by token, so they stay close to each other. CISPO (here with GRPO's bound, 1.2) keeps
# the gradient of every token, and drifts away from GRPO as more tokens are clipped there.
#
# ## 4. Write your own engine
#
# 1. Copy the nearest engine; each is one file. This is all that RLOO changes in GRPO's loop:

# %%
plots.difference(
    plots.source(grpo_engine.train, ("rollout = ", "run.finish"), docstring=False),
    plots.source(rloo_engine.train, ("rollout = ", "run.finish"), docstring=False),
    names=("rl/grpo_engine.py", "rl/rloo_engine.py"), context=1,
)  # fmt: skip

# %% [markdown]
# 2. Put a new equation into [rl/equations](../rl/equations/losses.py). It is right when somebody
#    copies it: the body holds the mask and the `.detach()`, comments say the shapes, and `axes` of
#    [harness/tensors.py](../harness/tensors.py) refuses what would broadcast by mistake.
# 3. Write its worked numbers by hand first, then the test. Enumerate, as this page does, before you
#    train: an angle takes a second, a run takes minutes.
# 4. Keep `train`'s signature ([rl/README.md](../rl/README.md)) and the promises that every engine
#    keeps ([their tests](../tests/rl/test_engine_contract.py)). Then these tests, the report and the
#    doctor work at once.
# 5. Train with the gold reward first, and then with the learned one.
#
# ## 5. What to read next
#
# - **Where it began:** Ziegler et al. 2019
#   ([arXiv:1909.08593](https://arxiv.org/abs/1909.08593)), Stiennon et al. 2020
#   ([arXiv:2009.01325](https://arxiv.org/abs/2009.01325)) and InstructGPT
#   ([arXiv:2203.02155](https://arxiv.org/abs/2203.02155)).
# - **The details that matter in PPO:** Huang et al. 2024
#   ([arXiv:2403.17031](https://arxiv.org/abs/2403.17031)).
# - **Is all of it needed?** Ahmadian et al. 2024
#   ([arXiv:2402.14740](https://arxiv.org/abs/2402.14740)) and DPO
#   ([arXiv:2305.18290](https://arxiv.org/abs/2305.18290)).
# - **When the proxy breaks:** Gao et al. 2023
#   ([arXiv:2210.10760](https://arxiv.org/abs/2210.10760)).
# - **Reasoning:** DeepSeekMath ([arXiv:2402.03300](https://arxiv.org/abs/2402.03300)), DeepSeek-R1
#   ([arXiv:2501.12948](https://arxiv.org/abs/2501.12948)), DAPO
#   ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476)) and the critical reading of Dr. GRPO
#   ([arXiv:2503.20783](https://arxiv.org/abs/2503.20783)).
# - **At scale:** ScaleRL ([arXiv:2510.13786](https://arxiv.org/abs/2510.13786)).
#
# Every paper that this project uses is in [docs/papers.md](../docs/papers.md). The map of all pages
# is [00_start_here](00_start_here.ipynb).
#
# Next: [19_when_the_sampler_is_not_the_policy](19_when_the_sampler_is_not_the_policy.ipynb).
