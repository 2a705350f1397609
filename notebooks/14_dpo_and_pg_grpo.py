# %% [markdown]
# # 14. DPO and its neighbours
#
# **The question.** Can people's comparisons train a policy directly, without a reward model and
# without sampling a single response?
#
# **After this page you can** derive DPO in three lines, say how hard a pair pulls and when it stops, say
# why the chosen answer can become less likely, and choose between DPO, IPO, SimPO, ORPO and KTO.
#
# **Why.** A reward model turns comparisons into a number, and reinforcement learning raises the
# number. Direct Preference Optimization, DPO (Rafailov et al. 2023,
# [arXiv:2305.18290](https://arxiv.org/abs/2305.18290)), shows that the detour can be left out: a
# policy *is* a reward model already. So DPO is the control experiment for every other engine here.
# It spends the same comparisons *offline*, on texts that were written before training began.
#
# **You need** [06_reward_model](06_reward_model.ipynb) (Bradley and Terry),
# [05_what_a_kl_is](05_what_a_kl_is.ipynb) and [07_grpo](07_grpo.ipynb).
#
# **It takes** about half a minute on one CPU core, after start-up.

# %%
import copy
import math
import random

import matplotlib.pyplot as plt
import torch

try:
    from course import plots, saved_models
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.claims import holds
from course.exercises import check
from torch import Tensor

from data.worlds import reviews
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from gpt.model import GPT
from harness.seeds import make_generator
from harness.tensors import masked_sum
from report.tokens import show_tokens
from reward_model import pairs as pairing
from reward_model.world_pairs import WorldAnnotator

# %%
from rl import dpo_engine, pg_grpo_engine
from rl.dpo_engine import DPOConfig
from rl.equations.advantages import best_worst_pairs, ordered_pairs
from rl.equations.preference_losses import dpo_loss, ipo_loss, kto_loss, orpo_loss, simpo_loss
from rl.loop import Run
from rl.rewards.reward import RuleReward
from rl.run.evaluation import evaluate

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine

# %% [markdown]
# ## 1. The smallest example: six responses
#
# One prompt has six possible responses. The reference model gives each of them a probability, and
# somebody has given each a reward. RLHF wants a high reward, and wants to stay near the reference:
#
# $$J(\pi) = E_{y \sim \pi}[r(y)] - \beta \, \mathrm{KL}(\pi \parallel \pi_{ref})$$
#
# Which $\pi$ is the best? Put both terms into one logarithm, and the answer can be read off:
#
# $$J(\pi) = -\beta \, E_{y \sim \pi} \left[ \log \frac{\pi(y)}{\pi_{ref}(y) \, e^{r(y) / \beta}}
# \right] = -\beta \, \mathrm{KL}(\pi \parallel \pi^{\ast}) + \beta \log Z, \qquad
# \pi^{\ast}(y) = \frac{\pi_{ref}(y) \, e^{r(y) / \beta}}{Z}$$
#
# $Z$ is the sum that makes $\pi^{\ast}$ add up to 1. It does not depend on $\pi$. A KL is never
# negative, and it is 0 only where both sides are equal, so $\pi^{\ast}$ is the best policy (Eq. 4
# of the paper), and the best value is $\beta \log Z$.

# %%
beta = 0.5
reference = torch.tensor([0.30, 0.25, 0.20, 0.12, 0.08, 0.05], dtype=torch.float64)
reward = torch.tensor([0.0, 0.6, -0.4, 1.0, 0.2, 1.4], dtype=torch.float64)


def objective(policy: Tensor) -> Tensor:
    """Expected reward minus beta times the KL from the reference."""
    return policy @ reward - beta * (policy @ (policy / reference).log())


unnormalised = reference * (reward / beta).exp()
Z = unnormalised.sum()
best = unnormalised / Z
print("reference", [f"{p:.3f}" for p in reference.tolist()])
print("optimum  ", [f"{p:.3f}" for p in best.tolist()])
print(f"objective at the optimum {objective(best):.4f} = beta log Z {beta * Z.log():.4f}")
assert torch.isclose(objective(best), beta * Z.log())

# %% [markdown]
# ## 2. DPO in three lines
#
# Line one is what we have just found. Line two solves it for the reward (Eq. 5). Line three puts
# that into the model of Bradley and Terry, which needs only the *difference* of two rewards. The
# constant $\beta \log Z$ is the same for both responses, so it is gone (Eq. 6).
#
# $$\pi^{\ast}(y \mid x) = \frac{1}{Z(x)} \, \pi_{ref}(y \mid x) \, e^{r(x, y) / \beta}$$
#
# $$r(x, y) = \beta \log \frac{\pi^{\ast}(y \mid x)}{\pi_{ref}(y \mid x)} + \beta \log Z(x)$$
#
# $$P(y_w \succ y_l \mid x) = \sigma \left( r(x, y_w) - r(x, y_l) \right) = \sigma \left( \beta \log
# \frac{\pi^{\ast}(y_w \mid x)}{\pi_{ref}(y_w \mid x)} - \beta \log \frac{\pi^{\ast}(y_l \mid x)}
# {\pi_{ref}(y_l \mid x)} \right)$$
#
# So $\hat r(x, y) = \beta \log \frac{\pi(y \mid x)}{\pi_{ref}(y \mid x)}$ is a reward model without
# a head. It is called the **implicit reward** of a policy.

# %%
implicit = beta * (best / reference).log()
print("reward         ", [f"{r:+.3f}" for r in reward.tolist()])
print("implicit reward", [f"{r:+.3f}" for r in implicit.tolist()])
print(f"the two rows differ by beta log Z = {beta * Z.log():.3f}")
assert torch.allclose(implicit + beta * Z.log(), reward)  # line two
assert torch.allclose(implicit[:, None] - implicit, reward[:, None] - reward)  # line three

# %% [markdown]
# ## 3. The loss
#
# The rest is maximum likelihood, exactly as for a reward model (Eq. 7). The gap $h$ says how far
# the policy has moved the chosen response $y_w$ ahead of the rejected one $y_l$:
#
# $$\mathcal{L}_{DPO} = -\log \sigma(\beta h), \qquad h = \log
# \frac{\pi(y_w \mid x)}{\pi_{ref}(y_w \mid x)} - \log \frac{\pi(y_l \mid x)}{\pi_{ref}(y_l \mid x)}$$
#
# A pair to check by hand: the chosen response went from $-11$ to $-10$
# nats, the rejected one from $-11.5$ to $-12$.

# %%
chosen, rejected = torch.tensor([-10.0]), torch.tensor([-12.0])  # log pi, whole responses
ref_chosen, ref_rejected = torch.tensor([-11.0]), torch.tensor([-11.5])

h = (chosen - ref_chosen) - (rejected - ref_rejected)  # 1 - (-0.5) = 1.5
naive = -torch.sigmoid(0.1 * h).log()

print(f"gap {h.item():.1f} nats, loss {naive.item():.6f}; at the start {math.log(2):.6f}")
torch.testing.assert_close(naive, dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta=0.1))
plots.code(dpo_loss)

# %% [markdown]
# **Predict, then run.** The annotator below never shows a reward, and only says which of two
# responses is better, with the noise of Bradley and Terry's model. (We give DPO the share of verdicts that
# endless questions would give.) Will DPO find the optimum of section 1, which was made from the rewards?

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
holds(
    torch.allclose(found, best, atol=1e-4), "DPO finds the optimum that was made from the rewards"
)

# %% tags=["hide-input"]
responses = [f"{k + 1}  ({r:+.1f})" for k, r in enumerate(reward.tolist())]
bars = {"reference": reference, "optimum of RLHF": best, "DPO, from comparisons alone": found}
plots.bars(
    bars, responses, axis=plots.panels(1, width=8)[1],
    styles={"optimum of RLHF": "exact", "DPO, from comparisons alone": "policy"},
    xlabel="response (with its reward)", ylabel="probability", ylim=(0, 0.4),
).legend(ncols=3, loc="upper center")  # fmt: skip
plt.show()

# %% [markdown]
# It does. Comparisons say nothing about the level of the rewards, but the optimum does not need it.
#
# ## 4. How hard a pair pulls
#
# The gradient of one pair (section 4 of the paper) says what happens in training:
#
# $$\nabla \mathcal{L} = - \beta \, \sigma(-\beta h) \left[ \nabla \log \pi(y_w \mid x) - \nabla \log
# \pi(y_l \mid x) \right]$$
#
# The chosen response is pushed up and the rejected one down, both with the weight $\beta \,
# \sigma(-\beta h)$. The factor $\sigma(-\beta h)$ is the probability that the implicit reward gives
# to the *wrong* verdict. A pair that is already in order is hardly moved.

# %%
moving = chosen.clone().requires_grad_()
pair_loss = dpo_loss(moving, rejected, ref_chosen, ref_rejected, beta=0.1)
(slope,) = torch.autograd.grad(pair_loss, moving)
by_hand = -0.1 / (1 + math.exp(0.1 * 1.5))  # - beta sigmoid(-beta h)
print(f"slope for log pi(y_w): {slope.item():.6f}, by hand {by_hand:.6f}")
assert math.isclose(slope.item(), by_hand, rel_tol=1e-5)

# %% [markdown]
# If the annotators always agree, nothing stops the training: the loss falls for ever as $h$ grows,
# and the reference is forgotten, however large $\beta$ is. Two remedies are in use.
#
# - **Conservative DPO** assumes that a share $s$ of the labels is wrong. Its loss has its minimum at
#   $\beta h = \log \frac{1 - s}{s}$.
# - **IPO** (Azar et al. 2023, [arXiv:2310.12036](https://arxiv.org/abs/2310.12036), Eq. 17) gives the
#   gap a finite target, $\mathcal{L}_{IPO} = \left( h - \frac{1}{2 \beta} \right)^2$.
#
# (Both take sums of log-probabilities over the tokens of a response; TRL's IPO takes means.)

# %%
beta_pair, s = 0.1, 0.2
h = torch.linspace(-30, 50, 801, requires_grad=True)
zero = torch.zeros_like(h)
losses = {
    "DPO": dpo_loss(h, zero, zero, zero, beta_pair),
    "conservative DPO, s = 0.2": dpo_loss(h, zero, zero, zero, beta_pair, label_smoothing=s),
    "IPO (divided by 25)": ipo_loss(h, zero, zero, zero, beta_pair) / 25,
}
pulls = {name: -torch.autograd.grad(loss.sum(), h)[0] for name, loss in losses.items()}
stops = {name: h.detach()[pull <= 0] for name, pull in pulls.items()}
for name, beyond in stops.items():
    print(f"{name:26} stops at h = {beyond[0]:.1f}" if len(beyond) else f"{name:26} never stops")
holds(
    math.isclose(stops["conservative DPO, s = 0.2"][0], math.log(4) / beta_pair, abs_tol=0.11),
    "conservative DPO stops at log 4 / beta",
)
holds(
    math.isclose(stops["IPO (divided by 25)"][0], 1 / (2 * beta_pair), abs_tol=0.11),
    "IPO stops at 1 / (2 beta)",
)

# %% tags=["hide-input"]
figure, (left, right) = plots.panels(2)
gaps = h.detach().tolist()
plots.curves(losses, gaps, axis=left, xlabel="gap h (nats)", ylabel="loss of one pair", ylim=(0, 4))
plots.curves(pulls, gaps, axis=right, xlabel="gap h (nats)", ylabel="pull on the pair (- slope)")
right.axhline(0, **plots.line("exact"))
right.set(ylim=(-0.12, 0.25))
left.get_legend().remove()
plt.show()

# %% [markdown]
# DPO's pull is at most $\beta$. It fades as the gap grows, and never changes its sign. The other two
# pull *back* beyond their target.
#
# ## 5. DPO on text
#
# The base model of the course answers training prompts twice each. The annotator of the reviews
# world says which answer is better. The verdict is a noisy reading of the gold reward (the
# numbers below).

# %%
base, tokenizer = saved_models.base()


def compared(split: str, count: int) -> list[pairing.TokenPair]:
    """`count` comparisons of two answers of the base model to prompts of a split."""
    batches = pairing.sample_pairs(
        base, tokenizer, reviews.prompts(split), count, WorldAnnotator(reviews),
        pairing.PairSampling(SamplingParams(max_new_tokens=48)),
        generator=make_generator(0, split), rng=random.Random(0),
    )  # fmt: skip
    return [pair for batch in batches for pair in batch]


pairs, held_out = compared("train", 640), compared("validation", 120)
for pair in pairs[:3]:
    text = pairing.pair_as_text(pair, tokenizer)
    print(text["prompt"].strip())
    print(f"  chosen   {text['gold_chosen']:.2f}  {text['chosen']}")
    print(f"  rejected {text['gold_rejected']:.2f}  {text['rejected']}")

# %% [markdown]
# DPO is the reward model of [06](06_reward_model.ipynb) with another score. A step of
# [nano/reward_model.py](../nano/reward_model.py), and where [nano/dpo.py](../nano/dpo.py) differs:

# %%
plots.neighbours("reward_model", "dpo")

# %% [markdown]
# The reference is frozen, so its side is computed once, before training. The core of
# [rl/dpo_engine.py](../rl/dpo_engine.py):

# %%
plots.code(dpo_engine.train, ("for batch, ref_log_probs", "norm = run.optimizer_step"))

# %%
config = DPOConfig(
    steps=40, batch_size=16, lr=7e-4, warmup_steps=8, beta=0.1, held_out_pairs=120, eval_every=20,
    device="cpu",
)  # fmt: skip
direct = copy.deepcopy(base)
rows = dpo_engine.train(Run(config, direct, tokenizer), pairs=pairs, held_out=held_out)
first, last = rows[0], rows[-1]
print(f"loss at step 1: {first['loss']:.4f}, log 2 is {math.log(2):.4f}")
for row in rows[19::20]:
    print(f"step {row['step']:3}  held-out loss {row['held_out_loss']:.3f}", end="")
    print(f"  held-out pairs in order {row['held_out_accuracy']:.2f}")
assert abs(first["loss"] - math.log(2)) < 1e-5 and abs(first["margin"]) < 1e-5
holds(
    last["held_out_accuracy"] > 0.55 and last["held_out_loss"] < 0.685,
    "held-out pairs are ordered better than by a coin",
)

# %% [markdown]
# **Predict, then run.** The loss rewards a chosen response for rising and a rejected one for
# falling. After this training, has the probability of the *chosen* responses risen?

# %%
figure, (left, right) = plots.panels(2)
shown = rows[1:]  # at step 1 every gap is 0 up to rounding
steps = [row["step"] for row in shown]
chosen_line = {"chosen": "good", "rejected": "bad"}
moved_by = {
    kind: [row[f"reward_{kind}"] / config.beta for row in shown] for kind in ("chosen", "rejected")
}
plots.curves(moved_by, steps, axis=left, styles=chosen_line, smooth=12,
            xlabel="optimizer step", ylabel="log pi - log pi_ref (nats)")  # fmt: skip
left.axhline(0, **plots.line("exact"))
plots.curves({"policy": [row["accuracy"] for row in shown]}, steps, axis=right, smooth=12,
            xlabel="optimizer step", ylabel="pairs in order (share)")  # fmt: skip
right.get_legend().remove()
plt.show()
for kind, values in moved_by.items():
    print(f"{kind:8} {sum(values[-20:]) / 20:+.2f} nats per response, last 20 steps")
    holds(sum(values[-20:]) / 20 < -0.3, "both log-probs fall")
holds(sum(row["margin"] for row in rows[-20:]) / 20 > 0.05, "the gap grows")

# %% [markdown]
# The gap grows, as it should. But the chosen responses have become **less** likely as well, only by
# less than the rejected ones. Nothing in the loss prevents this: it depends only on the gap. Blue tokens
# have become more likely than they were under the reference, orange ones less likely.


# %%
def words(token: int) -> str:
    return "(EOS)" if token == tokenizer.eos_id else tokenizer.decode([token])


batch = pairing.collate_pairs(held_out[:4], tokenizer.eos_id)  # 8 rows, the chosen ones first
with torch.no_grad():
    log_probs, ref_log_probs = token_log_probs(direct, batch), token_log_probs(base, batch)
moved = (log_probs - ref_log_probs) * batch.response_mask  # (8, T)
answers = [*(pair.chosen for pair in held_out[:4]), *(pair.rejected for pair in held_out[:4])]
names = [f"{kind} {k + 1}: {tokenizer.decode(held_out[k].prompt).strip()}"
         for kind in ("chosen", "rejected") for k in range(4)]  # fmt: skip
for name, change in zip(names, masked_sum(moved, batch.response_mask).tolist(), strict=True):
    print(f"{change:+6.2f} nats  {name}")
show_tokens(
    [[words(token) for token in answer] for answer in answers],
    {"log pi - log pi_ref": moved},
    prompts=names,
)

# %% [markdown]
# What both sides have lost went to other responses. On text hardly any of them has been compared, so the
# loss cannot know whether they are good, but new samples can show it:


# %%
def measured(policy: GPT) -> dict[str, float]:
    """Gold reward and KL on prompts that no training has seen."""
    records, params = reviews.prompts("validation")[:128], SamplingParams(max_new_tokens=48)
    gold = RuleReward(reviews.gold_reward, "gold reward")
    return evaluate(policy, tokenizer, records, params, gold, reference=base).summary()


results = {"base": measured(base), "DPO": measured(direct)}
for name, numbers in results.items():
    print(f"{name:5} gold {numbers['reward']:.3f}  KL {numbers['kl']:.2f} nats per response")
holds(results["DPO"]["reward"] > results["base"]["reward"] + 0.05, "DPO raises the reward")

# %% [markdown]
# **Why do both fall?** A chosen answer is only the better of two, and the best policy takes probability
# from all that are worse than what it could say instead. The six answers of section 1 show it without a
# word in common. Draw pairs from the reference, and ask how far the two sides have moved at the *optimum*:

# %%
drawn = reference[:, None] * reference * torch.sigmoid(reward[:, None] - reward)  # row preferred
drawn.fill_diagonal_(0)
drawn /= drawn.sum()
gone = (best / reference).log()
at_best = {"chosen": float(drawn.sum(1) @ gone), "rejected": float(drawn.sum(0) @ gone)}
print({kind: round(nats, 2) for kind, nats in at_best.items()}, "nats on average")
holds(at_best["rejected"] < at_best["chosen"] < 0, "at the optimum, too, both have fallen")

# %% [markdown]
# In real text the two answers also share words, and what pushes one down may take the other along. That is
# not separated here. **Pairs that another model wrote** are a second risk: this policy would hardly have
# drawn them, so what it learns from them may say little about its own answers. One can fine-tune on the
# chosen answers first, or draw the pairs from the policy itself, as here, and again as it moves.
#
# ## 6. SimPO, ORPO and KTO
#
# Three neighbours change what is compared. With $l$ the *mean* log-probability of a token, $r = \log \pi /
# \pi_{ref}$ of a whole answer, and odds $= p / (1 - p)$:
#
# - **SimPO** (Meng et al. 2024, [arXiv:2405.14734](https://arxiv.org/abs/2405.14734), Eq. 6),
#   $-\log \sigma(\beta (l_w - l_l) - \gamma)$: no reference, and a longer answer wins nothing by its
#   length. Only few steps and a small rate keep it near the start: the target margin $\gamma$ asks for
#   a larger gap, so it makes the pull stronger.
# - **ORPO** (Hong et al. 2024, [arXiv:2403.07691](https://arxiv.org/abs/2403.07691), Eqs. 6 and 7),
#   $-l_w - \lambda \log \sigma(\log \mathrm{odds}_w - \log \mathrm{odds}_l)$: fine-tuning on the chosen
#   answer and the comparison in one stage, from a base model, without a reference.
# - **KTO** (Ethayarajh et al. 2024, [arXiv:2402.01306](https://arxiv.org/abs/2402.01306)), $1 -
#   \sigma(\beta (r_w - z))$ for a good answer and $1 - \sigma(\beta (z - r_l))$ for a bad one: no pairs,
#   only thumbs up or down. $z$ estimates the KL from the reference, so that an answer is compared with
#   how far the policy has gone on average. Without a logarithm an answer far on the wrong side
#   hardly pulls, so a wrong label of such an answer does less harm, and a right one teaches less.
#
# The pair of section 3, with ten tokens in the chosen answer and eight in the rejected one:

# %%
l_w, l_l = chosen / 10, rejected / 8  # -1.0 and -1.5
r_w, r_l, z = chosen - ref_chosen, rejected - ref_rejected, 0.2  # +1.0 and -0.5


def log_odds(x: Tensor) -> Tensor:
    return x - torch.log(1 - x.exp())


by_hand = {
    "SimPO": -torch.sigmoid(2.0 * (l_w - l_l) - 0.5).log(),
    "ORPO": -l_w - 0.1 * torch.sigmoid(log_odds(l_w) - log_odds(l_l)).log(),
    "KTO": (2 - torch.sigmoid(0.1 * (r_w - z)) - torch.sigmoid(0.1 * (z - r_l))) / 2,
}
both, refs = torch.cat([chosen, rejected]), torch.cat([ref_chosen, ref_rejected])
good = torch.tensor([True, False])  # the labels of the two answers
library = {
    "SimPO": simpo_loss(l_w, l_l, 2.0, 0.5),
    "ORPO": orpo_loss(l_w, l_l, 0.1),
    "KTO": kto_loss(both, refs, good, 0.1, z).mean(0, keepdim=True),
}
for name, loss in by_hand.items():
    print(f"{name:6} {loss.item():.4f}")
    torch.testing.assert_close(loss, library[name])

# %%
far = torch.tensor([-210.0], requires_grad=True)  # the chosen answer, 200 nats on the wrong side
zero = torch.zeros(1)
slopes = [
    abs(float(torch.autograd.grad(loss.sum(), far)[0]))
    for loss in (
        dpo_loss(far, zero, zero - 10, zero, 0.1), kto_loss(far, zero - 10, good[:1], 0.1, z)
    )
]  # fmt: skip
print(f"pull of such an answer: DPO {slopes[0]:.3f}, KTO {slopes[1]:.1e}")
holds(slopes[1] < slopes[0] / 1000, "an answer far on the wrong side hardly pulls in KTO")

# %% [markdown]
# **KTO's zero and its two weights.** Thumbs say nothing relative, so KTO needs something to compare an
# answer with. It asks how much likelier *other* answers have become: $z$ is the mean of $\log \pi /
# \pi_{ref}$ over prompts $x$ of the batch, each with an answer $y'$ to *another* prompt, but at least 0:
#
# $$z = \max \Big( 0, \; \frac1n \sum_i \log \frac{\pi(y'_i \mid x_i)}{\pi_{ref}(y'_i \mid x_i)} \Big)$$
#
# No gradient runs through it. (These $y'$ are no samples of the policy, so $z$ is only a rough estimate of
# the KL; the paper says so too.) And thumbs are seldom balanced: with one liked answer for four disliked
# ones the disliked ones would dominate. So each kind has a weight, $w_D$ for desirable and $w_U$ for
# undesirable answers. The authors advise weights with which $w_D n_D$ is 1 to 4/3 times $w_U n_U$. Here
# that is $w_D = 4$ or a little more:

# %%
r = torch.tensor([1.0, 3.0, -0.5, 0.5, 2.0])  # log pi / pi_ref of five answers
liked = torch.tensor([True, False, False, False, False])
of_others = torch.tensor([0.6, -0.2, 1.0, 0.4, 0.2])  # of each prompt with another prompt's answer
w_D, w_U = 4.0, 1.0  # w_D n_D = w_U n_U


def kto_by_hand(r: Tensor, of_others: Tensor) -> Tensor:
    z = of_others.mean().clamp(min=0).detach()
    good, bad = w_D * (1 - torch.sigmoid(0.1 * (r - z))), w_U * (1 - torch.sigmoid(0.1 * (z - r)))
    return torch.where(liked, good, bad)


naive, nothing = kto_by_hand(r, of_others), torch.zeros(5)
z = of_others.mean().clamp(min=0)
weights = dict(desirable_weight=w_D, undesirable_weight=w_U)
torch.testing.assert_close(naive, kto_loss(r, nothing, liked, 0.1, z, **weights))
print(f"z {z:.1f}, losses", [round(x, 3) for x in naive.tolist()])
leaf = r.clone().requires_grad_()
(slope,) = torch.autograd.grad(kto_by_hand(leaf, of_others).sum(), leaf)
print("pulls", [round(x, 3) for x in slope.neg().tolist()])
holds(
    torch.allclose(kto_by_hand(r + 10, of_others + 10), naive), "to raise everything gains nothing"
)
balance = float(slope[liked].sum() / slope[~liked].sum())
holds(-1.1 < balance < -0.9, "with these weights one liked answer pulls like four disliked ones")

# %% [markdown]
# That is what the zero is for: where *all* answers have become likelier by 10 nats, $z$ has grown by 10 as
# well, and no loss has changed. An answer must rise by more than the others to count as a gain. From
# *pairs* both kinds come in equal numbers, so the weights stay 1 (`--desirable-weight`,
# `--undesirable-weight`).
#
# SimPO, ORPO and KTO are flags of one engine: `--loss simpo`, `orpo`, `kto`. The last one also takes a file
# of single answers with a `label`, true or false, because to KTO a pair is no more than two such answers.
#
# ## 7. PG-GRPO: pairs made in the group
#
# The scores of a group make a ranking, and a ranking contains comparisons. PG-GRPO adds the preference
# loss over $K$ such pairs to the loss of GRPO: $\mathcal{L} = \mathcal{L}_{GRPO} + \lambda \frac{1}{K}
# \sum_{(w, l)} -\log \sigma(\beta_{dpo} \, h_{w, l})$. (No paper of that name defines it. The nearest is
# AMIR-GRPO, [arXiv:2601.03661](https://arxiv.org/abs/2601.03661).) `best_worst` takes one pair from each
# group, `all` every pair whose rewards differ by more than a margin, and `offline` recorded pairs. Pairs
# from the group contain nothing that the rewards did not. What changes is the pull: GRPO's follows **how
# much** better than its group an answer is. A pair's follows **how wrongly** the policy orders it, so it
# eases off once the pair is in order.

# %%
scores = torch.tensor([1.0, 3.0, 3.0, 0.0, 2.0, 2.0, 2.0, 2.0])  # two groups of four
print("best and worst", best_worst_pairs(scores, 4).tolist())
print("all           ", ordered_pairs(scores, 4).tolist())
holds(
    best_worst_pairs(scores, 4).tolist() == [[1, 3]], "best_worst takes one pair of the two groups"
)
plots.code(pg_grpo_engine.descend_rollout, lines=("loss = grpo_objective", "compared.append"))

# %% [markdown]
# **At full size:** `make demo`, then `python -m rl.dpo_engine` and `python -m rl.pg_grpo_engine`; several
# seeds in [the archive](../docs/archive.md#pairs).
#
# ## 8. Exercises
#
# **1.** Write the loss of DPO, one number per pair. All arguments are (pairs,) sums of log-probs.


# %%
def my_dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return ...  # your line


check("dpo_loss", my_dpo_loss)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
#     h = (policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)
#     return -torch.nn.functional.logsigmoid(beta * h)
# ```
#
# </details>
#
# **2.** Write IPO's loss. Where does it stop pulling?


# %%
def my_ipo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return ...  # your line


check("ipo_loss", my_ipo_loss)

# %% [markdown]
# (No solution is printed: `check` decides, and section 4 has printed where it stops.)
#
# **3.** Choose a $\beta$. A pair whose gap has grown to the $h$ of the table should be pulled with only the
# given share of the pull on a fresh pair, whose $h$ is 0. Which $\beta$ does that in DPO? (No solution is
# printed.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("beta_that_lets_go", MINE)

# %%
check_answer("beta_that_lets_go", ..., MINE)

# %% [markdown]
# **To think about.** In PG-GRPO, measure $h$ from the policy that sampled the batch instead of the
# reference, with one update per batch. What is left of the preference loss?
#
# <details>
# <summary>Answer</summary>
#
# Every $h$ is 0 when the gradient is taken, so every pair pulls with the same weight $\beta / 2$ for
# ever. That is a policy gradient with advantages of plus and minus one. Nothing ever eases off.
#
# </details>
#
# ## To remember
#
# - A policy is a reward model: $\beta \log \pi / \pi_{ref}$, up to a constant of the prompt.
# - A pair pulls with $\beta \, \sigma(-\beta h)$ on the gap alone, so both answers may fall as long as
#   the rejected one falls more.
# - The loss says nothing about answers that nobody has compared, though training moves them, too: sample,
#   and look.
#
# Next: [15_teachers](15_teachers.ipynb). There, instead of people's comparisons, another model says what
# is good.
