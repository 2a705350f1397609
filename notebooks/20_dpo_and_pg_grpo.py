# %% [markdown]
# # 17. DPO and PG-GRPO
#
# **Why.** A reward model turns comparisons into a number, and RL maximises the number. Direct
# Preference Optimization (Rafailov et al. 2023, [arXiv:2305.18290](https://arxiv.org/abs/2305.18290))
# shows that the detour can be left out: the policy *is* a reward model, and the comparisons can be
# fitted to it directly, without sampling a single response. That makes DPO the control of every RL
# engine in this repository: the same comparisons, spent offline. PG-GRPO then puts both into one
# loss.
#
# | section | idea | source | code |
# | --- | --- | --- | --- |
# | 1 | from Bradley and Terry to DPO in three lines | arXiv:2305.18290, Eqs. 4 to 7 | |
# | 2 | the loss, and how hard a pair pulls | Eq. 7 and its gradient | `dpo_loss` |
# | 3 | labels that never err, IPO's finite target | arXiv:2310.12036, Eq. 17 | `ipo_loss` |
# | 4 | DPO on text: both log-probs fall | | `dpo_engine.train` |
# | 5 | PG-GRPO: pairs made in the group | arXiv:2402.03300 and arXiv:2305.18290 | `best_worst_pairs` |
# | 6 | what the extra term changes | | `pg_grpo_engine` |
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about half a minute on one CPU core. To read before:
# [06_reward_model](06_reward_model.ipynb) and [07_grpo](07_grpo.ipynb). The page before this one:
# [19_minillm_and_distillation](19_minillm_and_distillation.ipynb). It is the last;
# [docs/study.md](../docs/study.md) compares the engines over several seeds.

# %%
import copy
import dataclasses
import inspect
import math
import random

import matplotlib.pyplot as plt
import torch
from torch import Tensor

# %%
try:
    from data import reviews
    from gpt import pretraining
    from gpt.common import MetricLog, make_generator
    from gpt.corpus import WorldCorpus
    from gpt.generate import SamplingParams
    from gpt.log_probs import token_log_probs
    from gpt.model import GPT, GPTConfig
    from gpt.tokenizer import load_tokenizer
    from reward_model import pairs as pairing
    from reward_model.reward_model_training import ReviewsAnnotator
    from rl import dpo_engine, grpo_engine, pg_grpo_engine
    from rl.batches.rollout import prompt_batch, sample_rollout
    from rl.dpo_engine import DPOConfig
    from rl.equations.advantages import best_worst_pairs, group_advantages, ordered_pairs
    from rl.equations.losses import row_sums
    from rl.equations.preferences import dpo_loss, ipo_loss
    from rl.pg_grpo_engine import PGGRPOConfig
    from rl.rewards.sources import RuleReward
    from rl.training.evaluation import evaluate, format_table, running_mean
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
tokenizer = load_tokenizer("glassbox")

# %% [markdown]
# ## 1. Three lines
#
# RLHF wants a high reward near the reference, $\max_\pi \, E_{y \sim \pi}[r(x, y)] - \beta \,
# \mathrm{KL}(\pi \parallel \pi_{ref})$, and this problem has a solution in closed form. Line one is
# the solution (Eq. 4), line two solves it for the reward (Eq. 5), line three puts that into the model
# of Bradley and Terry, where only the difference of two rewards counts and the intractable $Z(x)$
# goes away (Eq. 6):
#
# $$\pi^{\ast}(y \mid x) = \frac{1}{Z(x)} \, \pi_{ref}(y \mid x) \, e^{r(x, y) / \beta}$$
#
# $$r(x, y) = \beta \log \frac{\pi^{\ast}(y \mid x)}{\pi_{ref}(y \mid x)} + \beta \log Z(x)$$
#
# $$P(y_w \succ y_l \mid x) = \sigma \left( r(x, y_w) - r(x, y_l) \right) = \sigma \left( \beta \log
# \frac{\pi^{\ast}(y_w \mid x)}{\pi_{ref}(y_w \mid x)} - \beta \log \frac{\pi^{\ast}(y_l \mid x)}
# {\pi_{ref}(y_l \mid x)} \right)$$
#
# So $\hat r(x, y) = \beta \log \frac{\pi(y \mid x)}{\pi_{ref}(y \mid x)}$ is a reward model that
# needs no head: the **implicit reward** of a policy. All three lines can be checked where responses
# can be listed: one prompt, six possible responses.

# %%
beta = 0.5
reference = torch.tensor([0.30, 0.25, 0.20, 0.12, 0.08, 0.05], dtype=torch.float64)
reward = torch.tensor([0.0, 0.6, -0.4, 1.0, 0.2, 1.4], dtype=torch.float64)


def objective(policy: Tensor) -> Tensor:
    """Expected reward minus beta times the KL from the reference."""
    return policy @ reward - beta * (policy @ (policy / reference).log())


best = reference * (reward / beta).exp()
Z = best.sum()
best = best / Z  # line one
print("reference", [f"{p:.3f}" for p in reference.tolist()])
print("optimum  ", [f"{p:.3f}" for p in best.tolist()])
assert torch.isclose(objective(best), beta * Z.log())

generator = torch.Generator().manual_seed(0)
for _ in range(1000):  # nothing else is as good
    other = (best.log() + 0.3 * torch.randn(6, generator=generator, dtype=torch.float64)).softmax(0)
    assert objective(other) < objective(best)

# %%
implicit = beta * (best / reference).log()
print("reward         ", [f"{r:+.3f}" for r in reward.tolist()])
print("implicit reward", [f"{r:+.3f}" for r in implicit.tolist()])
assert torch.allclose(implicit + beta * Z.log(), reward)  # line two: one constant apart
differences = reward[:, None] - reward
assert torch.allclose(implicit[:, None] - implicit, differences)  # line three

# %% [markdown]
# ## 2. The loss, and how hard a pair pulls
#
# What is left is maximum likelihood, as for a reward model, with the implicit reward in its place
# (Eq. 7). $h$ is by how much the policy has moved the chosen response ahead of the rejected one:
#
# $$\mathcal{L}_{DPO} = - E_{(x, y_w, y_l)} \left[ \log \sigma(\beta h) \right], \qquad h = \log
# \frac{\pi(y_w \mid x)}{\pi_{ref}(y_w \mid x)} - \log \frac{\pi(y_l \mid x)}{\pi_{ref}(y_l \mid x)}$$

# %%
print(inspect.getsource(dpo_loss))

# %% [markdown]
# Does it find the optimum of section 1 without ever seeing a reward? The labels are those of an
# annotator who follows Bradley and Terry; instead of sampling them, every ordered pair of responses
# enters with its probability.

# %%
i, j = (torch.arange(6)[:, None] != torch.arange(6)).nonzero(as_tuple=True)  # 30 ordered pairs
chance = torch.sigmoid(reward[i] - reward[j])  # that i is preferred to j
logits = reference.log().clone().requires_grad_()  # the policy starts as the reference
optimizer = torch.optim.Adam([logits], lr=0.05)
for _ in range(600):
    log_pi, log_ref = logits.log_softmax(0), reference.log()
    loss = (chance * dpo_loss(log_pi[i], log_pi[j], log_ref[i], log_ref[j], beta)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
found = logits.detach().softmax(0)
print(f"largest difference from the optimum: {(found - best).abs().max():.1e}")
assert torch.allclose(found, best, atol=1e-4)

# %%
figure, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
for shift, (name, probabilities, color) in enumerate(
    [("reference", reference, "tab:grey"), ("optimum of RLHF", best, "tab:green"),
     ("DPO, from comparisons alone", found, "tab:blue")]
):  # fmt: skip
    axis.bar(torch.arange(6) + 0.27 * (shift - 1), probabilities, 0.25, color=color, label=name)
axis.set(xlabel="response (with its reward)", ylabel="probability", ylim=(0, 0.38))
axis.set_xticks(range(6), [f"{k + 1}  ({r:+.1f})" for k, r in enumerate(reward.tolist())])
axis.legend(ncols=3)
plt.show()

# %% [markdown]
# The gradient of one pair (section 4 of the paper) says what happens in training:
#
# $$\nabla \mathcal{L} = - \beta \, \sigma(-\beta h) \left[ \nabla \log \pi(y_w \mid x) - \nabla \log
# \pi(y_l \mid x) \right]$$
#
# The chosen response is pushed up and the rejected one down, by the same weight $\beta \,
# \sigma(-\beta h)$: the probability that the implicit reward gives to the wrong verdict. The better
# a pair is in order, the less it is moved. At the start $h = 0$, the loss is $\log 2$ and the weight
# $\beta / 2$.

# %%
start = [torch.zeros(1) for _ in range(4)]
assert math.isclose(dpo_loss(*start, beta=0.1).item(), math.log(2), rel_tol=1e-6)
example = [torch.tensor([value]) for value in (-10.0, -12.0, -11.0, -11.5)]  # h = 1 - (-0.5) = 1.5
example[0].requires_grad_()
loss = dpo_loss(*example, beta=0.1)
(slope,) = torch.autograd.grad(loss, example[0])
weight = 0.1 / (1 + math.exp(0.15))
print(f"h = 1.5, beta = 0.1: loss {loss.item():.6f}, slope for log pi(y_w) {slope.item():.6f}")
assert math.isclose(loss.item(), 0.620957, abs_tol=1e-6)
assert math.isclose(slope.item(), -weight, rel_tol=1e-5)

# %% [markdown]
# ## 3. Labels that never err, and IPO
#
# If the annotators always agree, nothing in Eq. 7 says stop: the loss falls for ever as $h$ grows,
# and the reference, however large $\beta$ is, is forgotten. Two repairs. Conservative DPO assumes
# that a share $s$ of the labels is wrong, and its loss has its minimum at $\beta h = \log
# \frac{1 - s}{s}$. IPO (Azar et al. 2023, [arXiv:2310.12036](https://arxiv.org/abs/2310.12036),
# Eq. 17) regresses the gap on a finite target (here with sums of log-probabilities, as in DPO and in
# OpenRLHF; TRL takes means per token, and reports that IPO's authors confirmed that):
#
# $$\mathcal{L}_{IPO} = \left( h - \frac{1}{2 \beta} \right)^2$$

# %%
print(inspect.getsource(ipo_loss))

# %%
beta, s = 0.1, 0.2
h = torch.linspace(-30, 50, 801, requires_grad=True)
zero = torch.zeros_like(h)
losses = {
    "DPO": dpo_loss(h, zero, zero, zero, beta),
    f"conservative DPO, s = {s}": dpo_loss(h, zero, zero, zero, beta, label_smoothing=s),
    "IPO (divided by 25)": ipo_loss(h, zero, zero, zero, beta) / 25,
}
targets = {"conservative": math.log((1 - s) / s) / beta, "IPO": 1 / (2 * beta)}
slopes = {name: torch.autograd.grad(loss.sum(), h)[0] for name, loss in losses.items()}
for name, slope in slopes.items():
    turns = h.detach()[slope >= 0]
    where = f"from h = {turns[0]:.1f} on" if len(turns) else "never"
    print(f"{name:28} pushes no further: {where}")
    goal = next((value for key, value in targets.items() if name.startswith(key)), None)
    assert goal is None if not len(turns) else math.isclose(turns[0], goal, abs_tol=0.11)
assert torch.allclose(slopes["DPO"], -beta * torch.sigmoid(-beta * h), atol=1e-6)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.6), layout="constrained")
for (name, loss), color in zip(
    losses.items(), ("tab:blue", "tab:orange", "tab:green"), strict=True
):
    left.plot(h.detach(), loss.detach(), color=color, label=name)
    right.plot(h.detach(), -slopes[name], color=color, label=name)
left.set(ylabel="loss of one pair", ylim=(0, 4), title="Loss")
right.set(ylabel="weight of the pair: - slope", ylim=(-0.12, 0.25), title="How hard the pair pulls")
right.axhline(0, color="grey", linewidth=0.8)
for axis in (left, right):
    axis.axvline(0, color="grey", linewidth=0.8)
    axis.set_xlabel("gap h (nats); right of 0 the policy agrees")
right.legend(loc="lower left")
plt.show()

# %% [markdown]
# DPO's weight is bounded by $\beta$ on the wrong side and fades on the right side, but never
# changes its sign. The other two pull back beyond their target.
#
# ## 4. DPO on text
#
# A small base model of the reviews world, pre-trained in ten seconds, answers training prompts twice
# each, and the world's annotator, who errs, compares the two answers
# ([06_reward_model](06_reward_model.ipynb), section 4).

# %%
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=96, n_layer=2, n_head=2, n_embd=96)
base = GPT(shape).initialize(make_generator(0, "weights"))
pretraining_config = pretraining.PretrainingConfig(
    steps=550, batch_size=16, lr=6e-3, warmup=30, eval_every=550, device="cpu"
)
corpus = WorldCorpus("reviews", tokenizer, pretraining_config.batch_size, seed=0)
log = pretraining.train(pretraining_config, base, corpus, MetricLog(550))
print(f"base model: {log[-1]['held_out_loss']:.2f} nats per token (held out)")


def compared(split: str, count: int) -> list[pairing.TokenPair]:
    """`count` comparisons of two answers of the base model to prompts of a split."""
    batches = pairing.sample_pairs(
        base, tokenizer, reviews.prompts(split), count, ReviewsAnnotator(),
        pairing.PairSampling(SamplingParams(max_new_tokens=48)),
        generator=make_generator(0, split), rng=random.Random(0),
    )  # fmt: skip
    return [pair for batch in batches for pair in batch]


pairs, held_out = compared("train", 2000), compared("validation", 200)

# %%
for pair in pairs[:3]:
    text = pairing.pair_as_text(pair, tokenizer)
    print(text["prompt"].strip())
    print(f"  chosen   {text['gold_chosen']:.2f}  {text['chosen']}")
    print(f"  rejected {text['gold_rejected']:.2f}  {text['rejected']}")

# %% [markdown]
# The log-probability of a response is the **sum** over its tokens. (Many implementations take the
# mean, which is another loss: a long response then counts as little as a short one.) Six pairs are
# twelve rows of one forward, the chosen ones first. The reference is frozen, so its side is computed
# once for all pairs before training.

# %%
batch = pairing.collate_pairs(pairs[:6], tokenizer.eos_id)  # 12 rows
with torch.no_grad():
    sums = row_sums(token_log_probs(base, batch), batch.response_mask).view(2, -1).T  # (6, 2)
table = [
    [k, *batch.lengths.view(2, -1)[:, k].tolist(), *sums[k].tolist()] for k in range(len(sums))
]
columns = ["pair", "tokens chosen", "rejected", "log pi chosen", "rejected"]
print(format_table(columns, table))
assert all(len(pairs[k].chosen) == row[1] for k, row in enumerate(table))

# %%
source = inspect.getsource(dpo_engine.train)
print(source[source.index("    for step in") : source.index("        if len(held_out)")])

# %%
config = DPOConfig(
    steps=120, batch_size=16, lr=1e-3, warmup=10, beta=0.1, held_out_pairs=200, eval_every=40,
    device="cpu",
)  # fmt: skip
direct = copy.deepcopy(base)
rows = dpo_engine.train(
    config, direct, tokenizer, pairs, MetricLog(config.steps), held_out=held_out
)
first, last = rows[0], rows[-1]
print(f"loss at step 1: {first['loss']:.4f}, log 2 is {math.log(2):.4f}")
for row in rows[39::40]:
    print(
        f"step {row['step']:3}  held-out loss {row['held_out_loss']:.3f}  "
        f"held-out pairs in order {row['held_out_accuracy']:.2f}"
    )
assert abs(first["loss"] - math.log(2)) < 1e-5 and abs(first["margin"]) < 1e-5
assert last["held_out_accuracy"] > 0.55 and last["held_out_loss"] < 0.67

# %%
shown = rows[1:]  # at step 1 every gap is 0 up to rounding
steps = [row["step"] for row in shown]
figure, axes = plt.subplots(1, 3, figsize=(11.5, 3.5), layout="constrained")
for axis, keys, label in (
    (axes[0], ("loss",), "loss (nats per pair)"),
    (axes[1], ("reward_chosen", "reward_rejected"), "implicit reward"),
    (axes[2], ("accuracy",), "pairs in order (share)"),
):
    for key, color in zip(keys, ("tab:blue", "tab:red"), strict=False):
        values = [row[key] for row in shown]
        axis.plot(steps, values, color=color, alpha=0.2)
        axis.plot(steps, running_mean(values, 15), color=color, linewidth=2, label=key)
    axis.set(xlabel="optimizer step", ylabel=label)
axes[0].axhline(math.log(2), color="grey", linestyle=":", label="log 2")
axes[0].legend()
axes[1].axhline(0, color="grey", linewidth=0.8)
axes[1].legend()
plt.show()

# %% [markdown]
# Look at the middle panel. The margin grows, as it should. But the implicit reward of the *chosen*
# responses falls below zero: they have become **less** likely than they were, only by less than the
# rejected ones. Nothing in the loss forbids it: only the gap is paid for. The probability that both
# sides have lost went to responses that nobody compared, and whether those are good the loss cannot
# know. New samples of the policy can tell; here they are much better than those of the base model.

# %%
late = rows[-30:]
for key in ("reward_chosen", "reward_rejected"):
    nats = sum(row[key] for row in late) / len(late) / config.beta
    print(f"{key:16} log pi - log pi_ref = {nats:+.2f} nats per response, last 30 steps")
    assert nats < -0.3
gap = sum(row["margin"] for row in late) / len(late)
assert gap > 0.05


def measure(policy: GPT) -> dict[str, float]:
    """Gold reward and KL on prompts that no training has seen."""
    records, params = reviews.prompts("validation")[:256], SamplingParams(max_new_tokens=48)
    gold = RuleReward(reviews.gold_reward, "gold reward")
    return evaluate(policy, tokenizer, records, params, gold, reference=base).summary()


results = {"base": measure(base), "DPO": measure(direct)}
for name, numbers in results.items():
    print(f"{name:5} gold {numbers['reward']:.3f}  KL {numbers['kl']:.2f} nats per response")
assert results["DPO"]["reward"] > results["base"]["reward"] + 0.05

# %% [markdown]
# ## 5. PG-GRPO: pairs made in the group
#
# GRPO samples G responses to a prompt and scores them. That is a ranking, and a ranking is made of
# comparisons. PG-GRPO adds the preference loss on them to the loss of GRPO. (No paper of that name
# defines it; the nearest is AMIR-GRPO, [arXiv:2601.03661](https://arxiv.org/abs/2601.03661).)
#
# $$\mathcal{L} = \mathcal{L}_{GRPO} + \lambda \, \mathcal{L}_{pref}, \qquad \mathcal{L}_{pref} =
# \frac{1}{K} \sum_{(w, l)} - \log \sigma(\beta_{dpo} \, h_{w, l})$$
#
# Which pairs? `best_worst`: one from each group, no pair where all rewards are equal. `all`: every
# two responses whose rewards differ by more than a margin, as in AMIR-GRPO. `offline`: recorded ones,
# as in section 4. `both`: the first and the third.

# %%
print(inspect.getsource(best_worst_pairs))
print(inspect.getsource(ordered_pairs))

# %%
scores = torch.tensor([1.0, 3.0, 3.0, 0.0, 2.0, 2.0, 2.0, 2.0])  # two groups of four
print("best and worst", best_worst_pairs(scores, 4).tolist())
print("all           ", ordered_pairs(scores, 4).tolist())
print("margin 1.5    ", ordered_pairs(scores, 4, margin=1.5).tolist())
assert best_worst_pairs(scores, 4).tolist() == [[1, 3]]  # the first of two best; no second pair
assert len(ordered_pairs(scores, 4)) == 5 and len(ordered_pairs(scores, 4, margin=1.5)) == 4

# %% [markdown]
# What does the extra term add to the gradient? Both losses are sums of $\nabla \log \pi(y_i)$ with
# a coefficient for every response. In GRPO it is $A_i / (N L_i)$ per token; in $\mathcal{L}_{pref}$
# it is $\pm \beta \, \sigma(-\beta h) / K$ for every pair that the response is in (the log-probs are
# sums, so that is per token too; all before the weight $\lambda$). One group of real responses, at
# the start ($h = 0$) and after the DPO run above, whose $h$ are no longer zero:

# %%
G = 8
gold = RuleReward(reviews.gold_reward, "gold reward")
records = prompt_batch(reviews.prompts("train"), step=4, batch_size=1, seed=0)
params = SamplingParams(max_new_tokens=48)
rollout = sample_rollout(base, tokenizer, records, params, G, make_generator(1, "demo"))
rewards, lengths = gold(rollout), rollout.lengths
relative = group_advantages(rewards, G)[:, 0] / (G * lengths)  # per token
with torch.no_grad():
    log_ref, log_now = (
        row_sums(token_log_probs(model, rollout.sequences), rollout.response_mask)
        for model in (base, direct)
    )


def pulls(chosen: Tensor, change: Tensor) -> Tensor:
    """(G,): by how much the preference loss of some pairs pulls each response up."""
    x = change.clone().requires_grad_()
    same = torch.zeros(len(chosen))  # x is measured from the reference
    loss = dpo_loss(x[chosen[:, 0]], x[chosen[:, 1]], same, same, 0.1).mean()
    return -torch.autograd.grad(loss, x)[0]


# %%
choices = {"best_worst": best_worst_pairs(rewards, G), "all": ordered_pairs(rewards, G)}
order = rewards.argsort(descending=True)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained", sharex=True)
axes[0].bar(range(G), relative[order], color="tab:blue")
axes[0].set(title="GRPO", ylabel="coefficient of grad log pi, per token")
for axis, (name, chosen) in zip(axes[1:], choices.items(), strict=True):
    for shift, (when, change) in enumerate(
        {"at the start": torch.zeros(G), "after DPO": log_now - log_ref}.items()
    ):
        coefficients = pulls(chosen, change)
        axis.bar(torch.arange(G) + 0.4 * shift - 0.2, coefficients[order], 0.4, label=when)
        assert abs(coefficients.sum()) < 1e-6  # what one side gains the other loses
    axis.set_title(f"preference loss, {name} (pairs: {len(chosen)})")
    axis.legend()
for axis in axes:
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set_xlabel("response, the best first (reward)")
    axis.set_xticks(range(G), [f"{r:.2f}" for r in rewards[order].tolist()], fontsize=8)
plt.show()
assert int((pulls(choices["best_worst"], torch.zeros(G)) != 0).sum()) == 2

# %% [markdown]
# GRPO pulls by **how much** better a response is, and does so whatever the policy already knows.
# The preference loss pulls by **how wrongly** the pair is ordered since the start, and eases off as
# it comes into order. `best_worst` sees two responses of a group; `all` counts how many others a
# response beats.
#
# ## 6. The loss in the engine
#
# The pairs live inside a group, so a group is never torn apart into different forwards, and
# $\mathcal{L}_{pref}$ reuses the log-probs that GRPO has computed anyway. It needs the frozen
# reference, not the policy that sampled the batch: measured from that one, $h$ would start from zero
# again in every step. Three weights are three numbers: `kl_coef`, `dpo_beta`, `preference_coef`.

# %%
print(inspect.getsource(pg_grpo_engine.preference_loss))
source = inspect.getsource(pg_grpo_engine.train)
print(source[source.index("                    here =") : source.index("                norm")])

# %% [markdown]
# First the control: with $\lambda = 0$ it has to be GRPO, to the last bit.

# %%
common = dict(
    steps=2, prompts_per_step=8, group_size=8, minibatches=1, micro_batch_size=64, lr=7e-4,
    kl_coef=0.05, max_new_tokens=40, device="cpu",
)  # fmt: skip
prompts = reviews.prompts("train")


def weights_after(engine, config) -> Tensor:
    policy = copy.deepcopy(base)
    engine.train(config, policy, tokenizer, gold, prompts, MetricLog(config.steps))
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


plain = weights_after(grpo_engine, grpo_engine.GRPOConfig(**common))
assert torch.equal(plain, weights_after(pg_grpo_engine, PGGRPOConfig(**common, preference_coef=0)))
changed = weights_after(pg_grpo_engine, PGGRPOConfig(**common))
print(f"largest difference of a weight after two steps: {(plain - changed).abs().max():.1e}")
assert not torch.equal(plain, changed)

# %% [markdown]
# Now short runs with the gold reward itself, so that only the loss differs.

# %%
short = PGGRPOConfig(**(common | dict(steps=20)))
variants = {
    "GRPO": dict(preference_coef=0.0),
    "best_worst, lambda 0.1": dict(),
    "best_worst, lambda 1": dict(preference_coef=1.0),
    "offline, lambda 1": dict(pairs="offline", preference_coef=1.0),
}
runs, table = {}, []
for name, changes in variants.items():
    config, policy = dataclasses.replace(short, **changes), copy.deepcopy(base)
    run_log = MetricLog(config.steps)
    runs[name] = pg_grpo_engine.train(
        config, policy, tokenizer, gold, prompts, run_log, offline_pairs=pairs
    )
    late = runs[name][-5:]
    mean = {key: sum(row[key] for row in late) / 5 for key in ("reward", "kl")}
    table.append([name, late[-1].get("pairs", 0), mean["reward"], mean["kl"]])
print(format_table(["", "pairs in the last step", "reward, last 5 steps", "KL"], table))
assert all(row[2] > runs[row[0]][0]["reward"] + 0.08 for row in table)
firsts = [rows[0]["preference_loss"] for name, rows in runs.items() if name != "GRPO"]
assert all(abs(value - math.log(2)) < 1e-4 for value in firsts)

# %%
panels = {
    "reward": "reward (gold, 0 to 1)",
    "kl": "KL from the reference\n(nats per response)",
    "preference_accuracy": "compared pairs in order (share)",
}
figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
for axis, (key, label) in zip(axes, panels.items(), strict=True):
    for k, (name, run_rows) in enumerate(runs.items()):
        shown = [row for row in run_rows[1:] if key in row]  # at step 1 every gap is 0
        values = running_mean([row[key] for row in shown], 3)
        axis.plot([row["step"] for row in shown], values, color=f"C{k}", label=name)
    axis.set(xlabel="step (rollout batch)", ylabel=label, xticks=range(0, 21, 5))
axes[0].legend(fontsize=8)
axes[2].axhline(0.5, color="grey", linestyle=":")
plt.show()

# %% [markdown]
# One seed and twenty steps, so differences of a few hundredths mean nothing. Pairs made in the group
# hardly change the curve: they hold nothing that the rewards had not said before, and only weigh it
# in another way. Recorded pairs bring something from outside, here the verdicts of an annotator who
# errs, about answers of the base model, against a reward that is the truth itself; a weight of 1
# gains nothing by them. They are worth having where the comparisons know something that the reward
# does not.
#
# The pairs within a group are new in every step. Most of them are in order, but the share does not
# rise to one: winner and loser are written by the policy of that step, and what it has learned so
# far is in both.
#
# ## Exercise
#
# 1. A pair has $h = 0$, and the label is wrong with probability $s$. What is the gradient of
#    conservative DPO, and at which $s$ does it vanish?
# 2. Why does the reference cancel from DPO's *gradient* direction, but not from its weight?
# 3. In PG-GRPO, measure $h$ from the policy that sampled the batch instead of the reference, with one
#    update per batch. What is left of the preference loss?
#
# <details>
# <summary>Answer</summary>
#
# 1. $-\frac{\beta}{2} (1 - 2s) \left[ \nabla \log \pi(y_w) - \nabla \log \pi(y_l) \right]$, because
#    both logistic terms have the slope one half there, with opposite signs. At $s = \frac12$ it is
#    zero: labels of a coin say nothing. `label_smoothing` must be below it.
# 2. $\log \pi_{ref}$ is a constant, so it is in no gradient of $\log \pi$; it only shifts $h$, and so
#    decides by $\sigma(-\beta h)$ when a pair is in order and may rest.
# 3. Every $h$ is zero when the gradient is taken, so every pair pulls with the same weight
#    $\beta / 2$ for ever: $\log \pi$ of the better response minus that of the worse one, a policy
#    gradient with advantages of plus and minus one. Nothing ever eases off.
#
# </details>
