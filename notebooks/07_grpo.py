# %% [markdown]
# # 7. GRPO: the other answers are the baseline
#
# **The question.** An answer scored 0.6. Was that good? It depends on what this policy usually
# scores on this prompt. Where does that number come from?
#
# **After this page you can** compute GRPO's advantages and its whole loss by hand and in six lines, say
# for either sign of the advantage when a token is no longer pushed, name what is 1 and what is 0 before
# the first update, and read the curves of a run.
#
# **Why.** [04](04_policy_gradients_and_baselines.ipynb) uses a baseline (section 6): subtract what you
# expected, and the noise of the gradient falls. PPO trains a second network to predict what to expect.
# **Group Relative Policy Optimization** (GRPO; Shao et al. 2024, DeepSeekMath,
# [arXiv:2402.03300](https://arxiv.org/abs/2402.03300)) does without it: it samples several answers to the
# same prompt and compares each one with the mean of the group. The idea is older than its name: image
# captions were trained against the policy's own best guess in 2016
# ([arXiv:1612.00563](https://arxiv.org/abs/1612.00563)), and RLOO's group is of 2019. With
# DeepSeek-R1 GRPO became widely known in January 2025.
#
# **You need** [02](02_tokens_padding_masks.ipynb) (log-probs of tokens, the mask),
# [04](04_policy_gradients_and_baselines.ipynb) (REINFORCE, baseline, ratio, clip),
# [05](05_what_a_kl_is.ipynb) (KL) and [06](06_reward_model.ipynb) (the reward model).
#
# **It takes** about 15 seconds on one CPU core, after start-up.

# %%
import copy
import itertools
import math

import matplotlib.pyplot as plt
import torch

try:
    from course import flipbook, plots, saved_models
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.claims import holds
from course.exercises import check
from course.runs import WithGold, curves

from data.worlds import reviews
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from harness.metric_log import MetricLog
from harness.seeds import make_generator
from rl import grpo_engine
from rl.batches.rollout import prompt_batch, sample_rollout
from rl.equations.advantages import group_advantages
from rl.equations.kl import k1, k3
from rl.equations.losses import (
    clip_acted,
    clipped_surrogate,
    grpo_objective,
    sequence_mean,
)
from rl.grpo_engine import GRPOConfig
from rl.loop import Run
from rl.rewards.model import RewardModelReward
from rl.rewards.reward import RuleReward
from rl.run.evaluation import evaluate

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
plots.use()

# %% [markdown]
# ## 1. Four answers and their mean
#
# *From rewards to advantages: which answers were better than the others?*
#
# One example goes through this page. The prompt asks how the kettle is, the policy answers four times, and
# somebody scores the answers:
#
# | | answer | reward | less the mean | advantage |
# | --- | --- | --- | --- | --- |
# | A | It is dull | 1 | -1.5 | -1.16 |
# | B | It works | 2 | -0.5 | -0.39 |
# | C | Good | 3 | +0.5 | +0.39 |
# | D | I like it | 4 | +1.5 | +1.16 |
#
# The mean of the four rewards is 2.5, and the third column is the distance from it. GRPO also divides by
# the standard deviation of the group, here $\sqrt{5/3} = 1.29$. What comes out is called the
# **advantage** of each answer (section 4.1.2 of the paper):
#
# $$A_i = \frac{r_i - \mathrm{mean}(r_1 \ldots r_G)}{\mathrm{std}(r_1 \ldots r_G)}$$
#
# $G$ is the size of the group. Every token of answer $i$ gets the same advantage $A_i$, so all three words
# of D are praised alike, whichever of them was good. That is two lines of code:

# %%
r = torch.tensor([[1.0, 2, 3, 4], [2, 2, 2, 2]])  # the kettle, and a prompt with equal rewards
mean, std = r.mean(1, keepdim=True), r.std(1, keepdim=True)
by_hand = (r - mean) / (std + 1e-4)  # 1e-4, so that four equal rewards do not give 0 / 0
print(by_hand)

torch.testing.assert_close(by_hand.view(-1, 1), group_advantages(r.flatten(), group_size=4))

# %% [markdown]
# The last line says that the library agrees. Its lines, with the options that published variants
# need:

# %%
plots.code(group_advantages, lines=("groups =", "return"))

# %% [markdown]
# **Predict, then run.** What happens to the advantages of the first prompt if every reward is
# multiplied by 10 and 7 is added? What does the second prompt teach?

# %%
flat = r.flatten()
print("10 r + 7:", group_advantages(10 * flat + 7, 4)[:4, 0])
print("the second prompt:", group_advantages(flat, 4)[4:, 0])
same = torch.allclose(group_advantages(10 * flat + 7, 4), by_hand.view(-1, 1), atol=1e-3)
holds(same, "the unit and the zero of the reward drop out")

# %% [markdown]
# The scale and the offset of the reward drop out. That is handy, because both are arbitrary in a
# reward model ([06](06_reward_model.ipynb), section 4). But it has a price: two answers that hardly
# differ get advantages as large as a good and a terrible one. Dr. GRPO
# ([arXiv:2503.20783](https://arxiv.org/abs/2503.20783)) therefore leaves the division out
# (`scale="none"`).
#
# And a group of equal rewards teaches nothing about the reward: its samples are wasted. Runs log the share
# of such groups as `zero_spread_groups`.
#
# **Why 5/3 and not 5/4?** The squared distances from 2.5 add up to 5. The standard deviation of *these
# four numbers* divides by $n = 4$. But a group is a sample: we want the deviation of all answers that
# this policy could give. The group's mean lies in the middle of its own numbers, so they are closer to it
# than to the true mean, and dividing by $n$ comes out too small. To see it, let A to D be all that the
# policy ever says, each with probability ¼. Then the true variance is 5/4. There are 16 groups of two,
# all as likely:

# %%
for divisor in (2, 1):
    variances = []
    for group in itertools.product((1.0, 2.0, 3.0, 4.0), repeat=2):
        centre = sum(group) / 2
        variances.append(sum((x - centre) ** 2 for x in group) / divisor)
    average = sum(variances) / 16
    print(f"divided by {divisor}: the variance is {average} on average; wanted {5 / 4}")
holds(average == 5 / 4, "divided by n - 1 the variance is right on average")

# %% [markdown]
# The paper does not say which one it takes, and programs differ: `torch.std` divides by $n - 1$,
# `numpy.std` by $n$. The library takes $n - 1$. All groups have the same size, so the choice
# multiplies every advantage by the same factor: with $n - 1$ it is $\sqrt{(n - 1) / n} = 0.87$ times as
# large. Adam does not notice a constant factor of the whole loss, so with it this changes only how much
# the reward weighs against the KL.
#
# **Your turn.** Fill in the line and run the cell. The check says what is wrong, if anything is.


# %%
def my_advantages(rewards, group_size):
    """Rewards (N,), the answers to one prompt in a row -> advantages (N, 1)."""
    ...


check("group_advantages", my_advantages)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_advantages(rewards, group_size):
#     groups = rewards.view(-1, group_size)
#     centred = groups - groups.mean(1, keepdim=True)
#     return (centred / (groups.std(1, keepdim=True) + 1e-4)).view(-1, 1)
# ```
#
# </details>
#
# ## 2. The loss in six lines
#
# *From advantages to a loss: how hard is each word pushed?*
#
# GRPO maximises this (Eq. 3 of the paper, with $\pi_{old}$ the policy that sampled the answers and
# $L_i$ the length of answer $i$):
#
# $$J = \frac1G \sum_{i=1}^{G} \frac{1}{L_i} \sum_{t=1}^{L_i} \left\lbrace
# \min \left[ \rho_{i,t} A_i, \; \mathrm{clip}(\rho_{i,t}, 1 - \varepsilon, 1 +
# \varepsilon) A_i \right] - \beta \, \mathrm{k3}_{i,t} \right\rbrace$$
#
# You know most of it. $\rho = \pi_\theta / \pi_{old}$ is the ratio of
# [04](04_policy_gradients_and_baselines.ipynb), and the minimum is PPO's clip. (It is called the
# *clipped surrogate*: a surrogate is a stand-in, whose gradient is wanted and whose value says little.)
# Two parts are new: the term k3,
# which section 3 explains, and the two means, first over the tokens of an answer, then over
# answers. As code, with a minus sign because optimizers minimise:


# %%
def naive_grpo_loss(log_probs, old_log_probs, ref_log_probs, A, mask, eps=0.2, beta=0.04):
    ratio = (log_probs - old_log_probs).exp()
    surrogate = torch.minimum(ratio * A, ratio.clamp(1 - eps, 1 + eps) * A)
    delta = ref_log_probs - log_probs
    k3 = delta.exp() - delta - 1
    per_token = torch.where(mask, surrogate - beta * k3, 0.0)
    return -(per_token.sum(1) / mask.sum(1)).mean()


# %% [markdown]
# For the kettle the loss needs three probabilities of each word: under the *reference*, the frozen copy
# from before training; *when it was sampled*; and *now*, after a step or two. Think of a policy whose
# first word is "It", "Good" or "I". In the next cell the entry `"It is"` holds the three probabilities of
# "is" after "It":

# %%
WORDS = {  # probabilities: reference, when sampled, now
    "It": (0.5, 0.5, 0.42), "Good": (0.3, 0.2, 0.2), "I": (0.2, 0.3, 0.38),  # the first word
    "It is": (0.6, 0.6, 0.4), "It works": (0.4, 0.4, 0.6), "It is dull": (0.5, 0.5, 0.5),
    "I like": (0.5, 0.5, 0.45), "I like it": (0.9, 0.8, 0.9),
}  # fmt: skip
ANSWERS = ("It is dull", "It works", "Good", "I like it")


def table_of(which: int) -> torch.Tensor:
    """log-probs of the words of the four answers, (4, 3); 9 is padding."""
    rows = []
    for answer in ANSWERS:
        words = answer.split()
        begins = [" ".join(words[: t + 1]) for t in range(len(words))]
        rows.append([math.log(WORDS[begin][which]) for begin in begins] + [9.0] * (3 - len(words)))
    return torch.tensor(rows)


ref, old, new = (table_of(which) for which in range(3))
real = new != 9  # the mask
A_four = by_hand[0].view(-1, 1)  # the advantages of section 1
BETA = 0.04  # the weight of k3
naive = naive_grpo_loss(new, old, ref, A_four, real, beta=BETA)
print(f"loss {naive:.6f}\nratios\n{torch.where(real, (new - old).exp(), 0.0)}")
holds(math.isclose(naive, -0.037844, abs_tol=1e-6), "the loss is -0.037844")

# %% [markdown]
# **Check one word by hand.** "I" opens D, the best answer. Its ratio is 0.38 / 0.30 = 1.27. The answer was
# good and the word has already become 27% likelier, which is more than the 20% that the clip allows, so
# $1.2 \cdot 1.16 = 1.39$ counts. The KL term takes $0.04 \cdot 0.17$ off; section 3 computes this 0.17.
#
# **Both signs of the advantage, in words.** A word of a *good* answer is pushed up until it is 20%
# likelier than when it was sampled; then it is left alone. If it has become less likely meanwhile,
# because other words pulled, it is still pushed up, with its ratio as the weight. A word of a *bad*
# answer is pushed down until it is 20% less likely; then it is left alone. If it has become *likelier*
# meanwhile, it is pushed down all the harder, again with its ratio as the weight. The example has one
# word of each kind:
#
# | word and ratio | has become likelier | has become less likely |
# | --- | --- | --- |
# | in a good answer | "I" of D, 1.27: left alone | "like" of D, 0.9: pushed up, 0.9 times as hard |
# | in a bad answer | "works" of B, 1.5: pushed down 1.5 times as hard | "is" of A, 0.67: left alone |

# %%
moving = new.clone().requires_grad_()
surrogate_alone = naive_grpo_loss(moving, old, ref, A_four, real, beta=0.0)
(slope,) = torch.autograd.grad(-surrogate_alone, moving)
push = slope * real.sum(1, keepdim=True) * len(ANSWERS)  # without the weight of the two means
for answer, row in zip(ANSWERS, push, strict=True):
    pushes = zip(answer.split(), row.tolist(), strict=False)
    print(f"{answer:11}", ", ".join(f"{word} {value:+.2f}" for word, value in pushes))
holds(push[3, 0] == 0 == push[0, 1], "the clip leaves two words alone")
holds(
    abs(push[1, 1] / A_four[1, 0] - 1.5) < 1e-4, "a bad word that rose is pushed 1.5 times as hard"
)

# %% [markdown]
# The library has the same three pieces as separate functions, and the engine puts them together.
# (It can also take k2 instead of k3: [08](08_kl_estimators.ipynb), section 2, shows what that changes.)

# %%
per_token = clipped_surrogate(new, old, A_four, 0.2, 0.2) + BETA * k3(new, ref)
from_pieces = sequence_mean(per_token, real)

given = new, old, A_four, real, k3(new, ref)
from_engine = grpo_objective(*given, clip_range=0.2, kl_coef=BETA, responses=4)

torch.testing.assert_close(from_pieces, naive)
torch.testing.assert_close(from_engine, naive)
plots.code(clipped_surrogate, docstring=False)
plots.code(k3, docstring=False)
plots.code(grpo_objective, lines=("loss = ", "return"))

# %% [markdown]
# **What the two means weigh.** A's three words share the weight of one answer, a quarter, while C's only
# word has all of its own. So a word of a long answer weighs less than a word of a short one, and other
# papers divide otherwise: [26](26_what_a_loss_is_divided_by.ipynb) is a short page about that choice
# alone.
#
# ## 3. The KL of one token
#
# *What holds the policy back: the term k3 of the loss.*
#
# The policy must not drift far from the **reference**, the frozen copy
# that still knows what language looks like. [05](05_what_a_kl_is.ipynb) measured that drift with k1
# $= \log \pi - \log \pi_{ref}$ of the sampled token. The mean of k1 is the KL, but a single k1 is
# often negative. Schulman (2020, "Approximating KL Divergence") adds a term whose mean is zero:
#
# $$\mathrm{k3} = \frac{\pi_{ref}}{\pi} - \log \frac{\pi_{ref}}{\pi} - 1$$
#
# The first word of an answer is one of three, so they can be listed instead of sampled:

# %%
first = torch.tensor([[WORDS[word][which] for word in ("It", "Good", "I")] for which in (2, 0)])
p, q = first[:1], first[1:]  # the policy now, the reference
kl = (p * (p / q).log()).sum()
for name, estimate in (("k1", k1), ("k3", k3)):
    each = estimate(p.log(), q.log())
    print(name, [round(x, 3) for x in each[0].tolist()], f"mean {(p * each).sum():.4f}")
    torch.testing.assert_close((p * each).sum(), kl)
print(f"the KL itself {kl:.4f}")
assert (k3(p.log(), q.log()) >= 0).all()

# %% [markdown]
# Both have the KL as their mean. k3 is never negative, and near the reference it varies less. As a
# *penalty in a loss* it pulls the policy back to the reference. ([08](08_kl_estimators.ipynb) shows a
# surprise in its gradient, and [05](05_what_a_kl_is.ipynb), section 6, why $\beta$ is 0.04 here and 0.4
# elsewhere.)
#
# ## 4. One step, as a flip-book
#
# *The same with a real policy: one prompt, four answers, one step.*
#
# These are the models of GRPO, and what flows between them:

# %%
plots.diagram("three_models")

# %% [markdown]
# The policy is the kept base model of the reviews world, the reward is the kept reward model
# ([06](06_reward_model.ipynb) shows how one is made). First one prompt and four answers.

# %%
base, tokenizer = saved_models.base()
learned = RewardModelReward(saved_models.reward_model()[0])
gold = RuleReward(reviews.gold_reward, "gold reward")
prompts = reviews.prompts("train")
params = SamplingParams(temperature=1.0, max_new_tokens=48)
G = 4

records = prompt_batch(prompts, step=0, batch_size=1, seed=0)
rollout = sample_rollout(base, tokenizer, records, params, G, make_generator(3, "demo"))
rewards = learned(rollout)  # (N,)
A = group_advantages(rewards, G)  # (N, 1)
mask, old_log_probs = rollout.response_mask, rollout.log_probs  # (N, T) each


# %% [markdown]
# Then one optimizer step. The gradient of the loss for each log-prob says how hard a token is
# pushed, and which way. The book opens at this push; *back* leads to the prompt.

# %%
policy, reference = copy.deepcopy(base), copy.deepcopy(base).requires_grad_(False)
with torch.no_grad():
    ref_log_probs = token_log_probs(reference, rollout.sequences)  # (N, T)

log_probs = token_log_probs(policy, rollout.sequences)  # (N, T), with a gradient
loss = naive_grpo_loss(log_probs, old_log_probs, ref_log_probs, A, mask)
(push,) = torch.autograd.grad(-loss, log_probs, retain_graph=True)

optimizer = torch.optim.SGD(policy.parameters(), lr=0.03)
loss.backward()
optimizer.step()
with torch.no_grad():
    after = token_log_probs(policy, rollout.sequences)
texts = [
    [tokenizer.decode([t]) if t != tokenizer.eos_id else "<EOS>" for t in row[keep].tolist()]
    for row, keep in zip(rollout.response_tokens, mask, strict=True)
]
flipbook.step(records[0].prompt, texts, rewards, A, push, log_probs.detach().exp(), after.exp())

# %% [markdown]
# Answers that are better than the group get a push up on all their tokens, the others a push down.
# The probabilities follow, more or less, because all answers share the same weights.
#
# The largest changes are where a sentence opens. A full stop does not move: the policy was already
# certain of it. No token was ever given a reward, but with enough answers the comparison of whole
# answers sorts out which words were good.
#
# **The loss was zero, and its gradient was not.** At the first update of a run every ratio is 1 and
# every k3 is 0, so the loss is minus the mean of the advantages. In each group they add up to zero.

# %%
log_probs = token_log_probs(base, rollout.sequences)
largest = (log_probs - old_log_probs)[mask].abs().max()
value = naive_grpo_loss(log_probs, old_log_probs, ref_log_probs, A, mask)
reinforce = sequence_mean(-A * log_probs, mask)
ours, theirs = (
    torch.autograd.grad(x, base.wte.weight, retain_graph=True)[0] for x in (value, reinforce)
)
print(f"largest |log ratio| {largest:.1e}, loss {abs(value):.6f}, gradient norm {ours.norm():.3f}")
holds(
    largest < 1e-4 and abs(value) < 1e-4 and ours.norm() > 0.1,
    "before the first update the loss is 0 and its gradient is not",
)
torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-4)

# %% [markdown]
# So **the value of the loss says nothing about progress**. Look at the reward. The gradient
# of a run's first update is that of REINFORCE. Checking that the ratios are 1 before the first
# update is also a good test of an implementation. Where the old log-probs are the sampler's own, as here,
# a wrong temperature, a position off by the padding and a logit read one column too late each break it,
# and so does dropout left on (the ratio then compares two random networks). Where the trainer has scored
# the answers again, as [nano/grpo.py](../nano/grpo.py) does and the engines do in bfloat16, the same
# mistake stands in both and the ratios are 1 all the same: there compare with the sampler first. (Dropout
# shows there as well.) And not every bug shows. A mask that loses the EOS only hides one ratio of each
# answer from the check, and all others are still 1 ([02](02_tokens_padding_masks.ipynb), section 4). Every
# run logs how far the ratios are from 1, as `ratio_error_at_start`.

# %% [markdown]
# ## 5. The loop
#
# *From one step to an algorithm: the paper's box, line by line.*
#
# | line of Algorithm 1 | in the paper | in `rl/grpo_engine.py` |
# | --- | --- | --- |
# | 3 | reference model $\pi_{ref} \leftarrow \pi_\theta$ | `reference`, a frozen copy |
# | 5 | sample a batch of prompts | `run.prompts` |
# | 6 | old policy $\pi_{old} \leftarrow \pi_\theta$ | only its log-probs are kept |
# | 7 | sample $G$ outputs for each prompt | `run.sample` |
# | 8 | compute the rewards | `run.rewards` |
# | 9 | group relative advantages | `group_advantages` |
# | 10 | for GRPO iteration = 1 ... $\mu$ | `updates_per_batch` |
# | 11 | maximise the GRPO objective | `grpo_objective` |
#
# (Lines 1, 2 and 4 are the initial policy and the two outer loops. Line 12 trains the reward model
# again between iterations: [13](13_when_the_proxy_breaks.ipynb), section 8.)
# [nano/grpo.py](../nano/grpo.py) is the same box in 86 lines, with the same numbers. This is how it
# differs from the REINFORCE of [04](04_policy_gradients_and_baselines.ipynb) (every line begins at
# the margin), and then the whole loop of the engine. What `run` does is in [rl/loop.py](../rl/loop.py):

# %%
plots.neighbours("reinforce", "grpo")

# %%
plots.code(grpo_engine.train)

# %% [markdown]
# Two things are not in the paper's box. `run.minibatches` may cut the rollout for several optimizer
# steps. `run.micro_batches` cuts what belongs to *one* step, because the activations of all rows do not
# fit into memory. It must not change the step, and what that takes is on page
# [26](26_what_a_loss_is_divided_by.ipynb), section 2.
#
# ## 6. A run, and a batch that is used again
#
# *Ten steps of training, with the truth measured beside the score.*
#
# Training maximises the score of the reward model. In this world we also know what an answer is
# really worth, its **gold reward**. We measure it alongside, but the policy never sees it.


# %%
config = GRPOConfig(
    steps=10, prompts_per_step=8, group_size=8, updates_per_batch=2, minibatches=1, lr=7e-4, warmup_steps=1,
    micro_batch_size=64, kl_coef=0.05, stop_kl=None, device="cpu",
)  # fmt: skip
policy, log = copy.deepcopy(base), MetricLog(config.steps)
run = Run(config, policy, tokenizer, WithGold(learned, gold), prompts, log)
rows = grpo_engine.train(run)
holds(
    max(row["ratio_error_at_start"] for row in rows) < 1e-4 and abs(rows[0].get("kl", 0.0)) < 1e-4,
    "before a batch's first update the ratios are 1, and the KL begins at 0",
)

# %%
keys = ["reward", "gold", "kl", "response_length", "entropy", "clipped"]
curves({"GRPO": rows}, keys, smooth=1, title="The score rises, and gold rises with it")

# %% [markdown]
# The score rises, and the truth rises with it. What was paid for it? The KL grows: the policy
# leaves the reference. The **entropy** falls: the policy writes fewer different answers.
#
# Ten steps are few. Here are prompts that the policy has never seen, answered with the same
# random numbers by the base model, by the policy above, and by a policy that the command of section
# 7 has trained for 80 steps (it is kept in the repository):

# %%
unseen = reviews.prompts("validation")[:64]
models = {"base": base, "10 steps": policy, "80 steps": saved_models.policy()[0]}
results = {
    name: evaluate(model, tokenizer, unseen, params, learned, reference=base, gold=gold)
    for name, model in models.items()
}
columns = ("reward", "gold", "kl", "response_length")
plots.table(
    ["policy", "score", "gold", "KL", "length"],
    [[name, *(r.summary()[key] for key in columns)] for name, r in results.items()],
)
for i in range(2):
    print(unseen[i].prompt.strip())
    for name, result in results.items():
        print(f"  {name:9} gold {result.gold[i]:.2f}  {result.responses[i]}")

gain = results["10 steps"].gold - results["base"].gold  # prompt by prompt
half = float(1.96 * gain.std() / math.sqrt(len(gain)))
print(f"\ngain in gold after 10 steps {gain.mean():.3f} +- {half:.3f} (95% interval)")
holds(gain.mean() > half, "the truth rises with the score")

# %% [markdown]
# Read the answers. They have become polite, but even after 80 steps an answer may speak of the wrong thing.
# That is hard for the reward model ([06](06_reward_model.ipynb), section 6) and so for its policy. The two
# curves do not rise together for ever: [13](13_when_the_proxy_breaks.ipynb).
#
# **A batch that is used again.** Sampling is the expensive part of RL, so each batch serves for $\mu$
# updates (line 10). From the second one on it is *off-policy*: an earlier policy has sampled it. The ratio
# corrects for that while the two policies are close, and the clip is there to hold them close.
#
# **Predict, then run.** Six updates on the same 64 answers, once with the clip and once with a clip
# range so wide that it never acts. Does the clip hold the policy at a fixed distance?

# %%
batch = prompt_batch(prompts, step=1, batch_size=8, seed=0)
many = sample_rollout(base, tokenizer, batch, params, 8, make_generator(5, "many"))
many_A = group_advantages(learned(many), 8)


def reuse(eps: float, updates: int = 6) -> dict[str, list[float]]:
    """KL(old, new) per token and the share of clipped tokens, before each update."""
    student = copy.deepcopy(base)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, betas=(0.9, 0.95))
    seen = {"moved": [], "clipped": []}
    for _ in range(updates):
        log_probs = token_log_probs(student, many.sequences)
        log_ratio = (log_probs - many.log_probs).detach()
        acted = clip_acted(log_ratio.exp(), many_A, eps, eps)[many.response_mask]
        seen["moved"].append(float((log_ratio.exp() - 1 - log_ratio)[many.response_mask].mean()))
        seen["clipped"].append(float(acted.float().mean()))
        loss = clipped_surrogate(log_probs, many.log_probs, many_A, eps, eps)
        optimizer.zero_grad()
        sequence_mean(loss, many.response_mask).backward()
        optimizer.step()
    return seen


with_clip, without = reuse(0.2), reuse(1e6)

# %% tags=["hide-input"]
figure, (left, right) = plots.panels(2, height=3)
moved = {"with the clip": with_clip["moved"], "without": without["moved"]}
styles = {"with the clip": "policy", "without": "bad"}
updates = range(1, 7)
plots.curves(
    moved, updates, axis=left, styles=styles, marker=True, xlabel="update on the same batch"
)
left.set(ylabel="KL(old, new)\n(nats per token)", title="The clip slows the policy down")
clipped = {"with the clip": with_clip["clipped"]}
plots.curves(
    clipped, updates, axis=right, styles=styles, marker=True, xlabel="update on the same batch"
)
right.set(ylabel="clipped tokens (share)", ylim=(0, None), title="It acts after some updates")
right.get_legend().remove()
plt.show()
holds(with_clip["clipped"][0] == 0 < with_clip["clipped"][-1], "the clip acts after some updates")
holds(without["moved"][-1] > with_clip["moved"][-1], "the clip slows the policy down")

# %% [markdown]
# The clip slows the policy down, but it is not a wall: the distance keeps growing. It removes the
# gradient of tokens that have gone far enough, but does not bring them back, and the gradients of
# other tokens still move them, because all tokens share weights. So $\mu$ is small in practice. The
# paper takes 1. This engine's default is 1 as well, with each batch cut into two minibatches. The
# run above took 2.
#
# ## 7. The command
#
# ```
# python -m reward_model.reward_model_training     # once: base model and reward model
# python -m rl.grpo_engine                         # GRPO against that reward model
# python -m rl.grpo_engine --reward gold           # against the truth itself, for comparison
# ```
#
# The engine is [rl/grpo_engine.py](../rl/grpo_engine.py). It writes `report.html` into its run
# folder, with these curves and a token view like the one above.
#
# ## Exercises
#
# **1. `k3`.** The KL estimate of section 3, per token.


# %%
def my_k3(log_probs, ref_log_probs):
    """(N, T) and (N, T) -> (N, T)."""
    ...


check("k3", my_k3)

# %% [markdown]
# **2. `sequence_mean`.** GRPO's mean: over the valid tokens of each answer first, then over
# answers.


# %%
def my_mean(loss, mask):
    """Loss (N, T), mask (N, T) bool -> a scalar."""
    ...


check("sequence_mean", my_mean)

# %% [markdown]
# **3. `grpo_loss`.** The whole loss, from memory. Minimise it; the clip is the same on both sides.


# %%
def my_grpo_loss(log_probs, old_log_probs, ref_log_probs, advantages, mask, eps, beta):
    """(N, T) each, advantages (N, 1), mask (N, T) bool -> a scalar."""
    ...


check("grpo_loss", my_grpo_loss)

# %% [markdown]
# **4. How hard is this token pushed?** A group of four answers to one prompt. One token of one of them is
# marked, and its ratio is given. By which number is $\nabla \log \pi$ of that token multiplied in the step,
# with this page's loss, $\varepsilon = 0.2$ and $\beta = 0$? (The step goes *down* the loss. No solution is
# printed.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("push_on_a_token", MINE)

# %%
check_answer("push_on_a_token", ..., MINE)

# %% [markdown]
# **On paper.** 5. With $G = 2$ and different rewards, what are the two advantages? What is lost?
#
# 6\. With $\mu = 1$ and one minibatch, which of `clip_range`, `kl_coef` and `group_size`
# can be changed without changing the run?
#
# <details>
# <summary>Solutions</summary>
#
# ```python
# def my_k3(log_probs, ref_log_probs):
#     delta = ref_log_probs - log_probs
#     return delta.exp() - delta - 1
#
# def my_mean(loss, mask):
#     return (torch.where(mask, loss, 0.0).sum(1) / mask.sum(1)).mean()
#
# def my_grpo_loss(log_probs, old_log_probs, ref_log_probs, advantages, mask, eps, beta):
#     ratio = (log_probs - old_log_probs).exp()
#     surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - eps, 1 + eps) * advantages)
#     per_token = -surrogate + beta * my_k3(log_probs, ref_log_probs)
#     return my_mean(per_token, mask)
# ```
#
# 5\. The mean is half way between the two. The standard deviation (with $n - 1$) is the gap divided
# by $\sqrt 2$. So the advantages are $\pm 0.707$, whatever the gap. *How much* better the winner
# is, is lost. What remains is a comparison.
#
# 6\. `clip_range`. All ratios are 1, so the clip never acts. The other two are in the gradient.
#
# </details>
#
# **To read on.** Section 4 of DeepSeekMath ([arXiv:2402.03300](https://arxiv.org/abs/2402.03300)),
# because its box is the one that everybody copies; DeepSeek-R1
# ([arXiv:2501.12948](https://arxiv.org/abs/2501.12948)), because it shows what this loss does at full
# size with rewards of 0 and 1; and [nano/rlhf.py](../nano/rlhf.py), because all of this page stands there
# in one file that runs.
#
# ## To remember
#
# - The other answers are the baseline: an advantage is the distance from the group's mean, in standard
#   deviations, and a group of equal rewards teaches nothing.
# - A good word is pushed up until it is $\varepsilon$ likelier, a bad one down until it is $\varepsilon$
#   less likely; what has moved the wrong way is always pushed back.
# - Before the first update every ratio is 1, every k3 is 0 and the loss is 0, but its gradient is not.
#
# Next: [26_what_a_loss_is_divided_by](26_what_a_loss_is_divided_by.ipynb), a short page about the two
# means, or at once [08_kl_estimators](08_kl_estimators.ipynb): GRPO puts k3 into its loss, and is its
# gradient that of the KL?
