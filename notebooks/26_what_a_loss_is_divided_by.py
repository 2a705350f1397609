# %% [markdown]
# # 26. What a loss is divided by
#
# **The question.** A batch holds four answers of five, three, one and one token, and each token has a loss.
# The optimizer wants one number. By what is the sum divided?
#
# **After this page you can** say what GRPO, DAPO, RLOO and Dr. GRPO divide by and whom that favours, cut a
# batch into micro-batches or over ranks without changing the step, and find a wrong divisor in code and in
# a run.
#
# **Why.** No formula looks as harmless as a mean, and no other line differs in so many programs. A wrong
# divisor raises no error, and the reward usually rises all the same. This page takes one batch through
# all of it, so that every number can be checked on paper.
#
# **You need** [07](07_grpo.ipynb), of which this is the companion: advantages, the loss of a token, one
# step with the real model. Read it after 07; [08](08_kl_estimators.ipynb) does not need it.
#
# **It takes** about five seconds on one CPU core, after start-up.

# %%
from functools import partial

import matplotlib.pyplot as plt
import torch

try:
    from course import plots, saved_models
    from course.claims import holds
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.exercises import check

from data.worlds import reviews
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from harness.seeds import make_generator
from rl.batches.rollout import prompt_batch, sample_rollout
from rl.equations.advantages import group_advantages
from rl.equations.losses import constant_length_mean, sequence_mean, sequence_sum, token_mean
from rl.rewards.model import RewardModelReward

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
plots.use()

# %% [markdown]
# ## 1. One batch, four divisors
#
# *First the answers' own lengths: the tokens of one batch, averaged in four ways.*
#
# Answer A has five tokens with a loss of 1 each. B has three, with 1, 2 and 3. C is one token with a loss
# of 3, and D is one token with a loss of 6:
#
# | answer | losses of its tokens | tokens | sum | mean |
# | --- | --- | --- | --- | --- |
# | A | 1, 1, 1, 1, 1 | 5 | 5 | 1 |
# | B | 1, 2, 3 | 3 | 6 | 2 |
# | C | 3 | 1 | 3 | 3 |
# | D | 6 | 1 | 6 | 6 |
# | all | | 10 | 20 | |
#
# **Predict, then run.** The mean of the four means is 3. What is the mean over all tokens? And what do you
# get if every answer's sum is divided by the same constant, the five tokens that an answer may have?

# %%
losses = torch.tensor(
    [[1.0, 1, 1, 1, 1], [1, 2, 3, 9, 9], [3, 9, 9, 9, 9], [6, 9, 9, 9, 9]]  # 9: padding
)
lengths = torch.tensor([5, 3, 1, 1])
mask = torch.arange(5) < lengths[:, None]  # (4, 5)
MEANS = {
    "tokens, then answers": sequence_mean,
    "all tokens": token_mean,
    "answers x 5": partial(constant_length_mean, length=5),
    "answers": sequence_sum,
}
of_a_token, values = {}, {}
for name, mean in MEANS.items():
    x = losses.clone().requires_grad_()
    values[name] = mean(losses, mask).item()
    (weight,) = torch.autograd.grad(mean(x, mask), x)
    of_a_token[name] = weight[:, 0]  # all tokens of an answer weigh the same
    each = ", ".join(f"{w:.3f}" for w in of_a_token[name])
    print(f"divided by {name:21} {values[name]:.2f}; a token of A, B, C, D weighs {each}")
holds(
    [round(value, 4) for value in values.values()] == [3, 2, 1, 5],
    "the four averages of the same tokens are 3, 2, 1 and 5",
)

# %% tags=["hide-input"]
figure, axes = plots.panels(4, height=2.5, width=11)
figure.suptitle(
    "Of the four, only GRPO's lets a token of a long answer weigh less", x=0.01, ha="left"
)
for axis, (name, weight) in zip(axes, of_a_token.items(), strict=True):
    bars = dict(zip("ABCD", weight, strict=True))
    plots.bars(bars, axis=axis, title=f"divided by\n{name}", ylim=(0, 0.28))
    axis.set(xlabel="answer (5, 3, 1, 1 tokens)", ylabel="weight of a token")
    axis.label_outer()
plt.show()

# %% [markdown]
# The four numbers are 3, 2, 1 and 5, and none of them is wrong as a number. They differ in what one *token*
# weighs, which is the slope of the result in that token's loss:
#
# - **By its answer's tokens, then by the answers** (GRPO, 2024). A token of A weighs a fifth of a token
#   of D, because all answers weigh the same and A has more tokens to share its weight.
# - **By all tokens** (DAPO, 2025, [arXiv:2503.14476](https://arxiv.org/abs/2503.14476), and PPO before it).
#   Every token weighs the same, so that A is heard five times as loudly as D.
# - **By a constant**, the number of answers times the longest length that an answer may have (Dr. GRPO,
#   2025, [arXiv:2503.20783](https://arxiv.org/abs/2503.20783)). Every token weighs the same here as well,
#   and its weight does not depend on how long the *other* answers of this batch happen to be.
# - **By the answers alone** (RLOO, 2024, and REINFORCE of 1992). It is the third one times the longest
#   length, here five. Adam does not notice such a factor, because it divides a gradient by its usual size.
#
# **Whom does the first one favour?** Suppose that A and D are both bad, with the same negative advantage.
# Each token of A is then pushed down a fifth as hard as D's only token, so that a wrong answer is punished
# less for each token, the longer it is, and wrong answers can grow. A right answer, for the same reason, is
# praised more for each token the shorter it is. [11](11_grpo_family.ipynb), section 2, measures both with a
# policy whose length has nothing to do with its reward.
#
# ## 2. One batch in parts: what is each part divided by?
#
# *The divisor of section 1 is chosen. Now memory holds three rows, and the same batch has to be cut.*
#
# From here on an answer counts with its mean, so that the losses are 1, 2, 3 and 6, and the loss of the
# batch is 3. The batch is cut into **micro-batches** of three answers and of one. `backward` is called
# for each, and PyTorch *adds up* the gradients. Cutting must not change the step, so the loss of each
# part needs the right divisor.
#
# **Predict, then run.** Four programmers choose four divisors. Which one gets 3?

# %%
answers = torch.where(mask, losses, 0.0).sum(1) / mask.sum(1)  # 1, 2, 3, 6
parts = [slice(0, 3), slice(3, 4)]
DIVISORS = {
    "answers of the batch": lambda n: 4,
    "answers of the part": lambda n: n,
    "... and number of parts": lambda n: n * len(parts),
    "size of a full part": lambda n: 3,
}
weights = {}
for name, divisor in DIVISORS.items():
    x = answers.clone().requires_grad_()
    of_parts = [x[part].sum() / divisor(len(x[part])) for part in parts]
    for loss in of_parts:
        loss.backward()  # adds to x.grad
    weights[name] = x.grad
    print(f"{name:23} {of_parts[0]:.2f} + {of_parts[1]:.2f} = {sum(of_parts):.2f}")
right = weights["answers of the batch"]
holds(bool((right == 0.25).all()), "each answer weighs a quarter")

# %% tags=["hide-input"]
figure, axes = plots.panels(4, height=2.5, width=11)
figure.suptitle("One divisor of four weighs every answer by a quarter", x=0.01, ha="left")
for axis, (name, weight) in zip(axes, weights.items(), strict=True):
    styles = dict.fromkeys("ABCD", "good" if weight is right else "bad")
    bars = dict(zip("ABCD", weight, strict=True))
    plots.bars(bars, axis=axis, styles=styles, title=f"divided by\n{name}", ylim=(0, 1.05))
    axis.axhline(0.25, **plots.line("exact"))
    axis.set(xlabel="answer", ylabel="its weight")
    axis.label_outer()
plt.show()

# %% [markdown]
# - **Answers of the batch**: right, however the batch is cut.
# - **Answers of the part**: D, which is alone, weighs 1 instead of a quarter. With twice as many parts the
#   gradient becomes about twice as long.
# - **... and number of parts**: this is the *mean of the parts' means*. The total looks plausible, but D
#   weighs three times as much as each of the others. With parts of equal size it is right, so a test with
#   equal parts passes.
# - **Size of a full part**: all weights are equal and too large. The curve of the reward does not show it,
#   because AdamW divides a gradient by its usual size and the clipping of the gradient shortens what is too
#   long.
#
# A mean over *tokens* is cut wrongly even more easily. The two parts hold nine tokens and one, so their
# own means are 14 / 9 and 6, and the mean of these two is 3.8 instead of 2. Parts with equally many rows
# have different numbers of tokens, so the mean of the parts' means is wrong there for nearly every cut.
# The training loops of large libraries had this mistake until [October
# 2024](https://huggingface.co/blog/gradient_accumulation).

# %%
tokens = mask.sum(1)
sums = torch.where(mask, losses, 0.0).sum(1)
of_means = sum(float(sums[part].sum() / tokens[part].sum()) for part in parts) / 2
of_all = sum(float(sums[part].sum() / tokens.sum()) for part in parts)
print(f"mean of the parts' means {of_means:.2f}, sums of the parts over all tokens {of_all:.2f}")
holds(abs(of_all - 2) < 1e-6, "divided by all tokens of the batch, the parts make 2")
holds(of_means > 3.7, "the mean of the parts' means is nearly twice as large")

# %% [markdown]
# ## 3. Does it matter? The same cut with a real model
#
# *So far a wrong divisor changed weights. In a model these weigh gradients, and the sum can turn.*
#
# The course's base model answers one prompt four times, the kept reward model scores the answers, and the
# batch is cut so that the best answer is alone, as D was. What becomes of the gradient?

# %%
base, tokenizer = saved_models.base()
learned = RewardModelReward(saved_models.reward_model()[0])
records = prompt_batch(reviews.prompts("train"), step=0, batch_size=1, seed=0)
params = SamplingParams(temperature=1.0, max_new_tokens=48)
rollout = sample_rollout(base, tokenizer, records, params, 4, make_generator(3, "demo"))
rewards = learned(rollout)
A = group_advantages(rewards, 4)


def gradient_in_parts(divisor, sizes):
    """Of -ratio A, as at a first update, with `divisor(rows of the part)` under each part's sum."""
    base.zero_grad()
    for rows in rewards.argsort().split(sizes):
        log_probs = token_log_probs(base, rollout.sequences.rows(rows))
        loss = -A[rows] * (log_probs - rollout.log_probs[rows]).exp()
        keep = rollout.response_mask[rows]
        of_answers = torch.where(keep, loss, 0.0).sum(1) / keep.sum(1)
        (of_answers.sum() / divisor(len(rows))).backward()
    return base.wte.weight.grad.clone()


whole = gradient_in_parts(lambda n: 4, 4)  # not cut
cosines = {}
for name, divisor in DIVISORS.items():
    in_parts = gradient_in_parts(divisor, 3)  # three and one
    cosines[name] = float(torch.cosine_similarity(in_parts.flatten(), whole.flatten(), dim=0))
    length = in_parts.norm() / whole.norm()
    print(f"{name:23} {length:.2f} times as long, cosine {cosines[name]:.3f}")
base.zero_grad(set_to_none=True)
holds(cosines["answers of the batch"] > 0.9999, "divided by the batch, parts add up")
holds(cosines["... and number of parts"] < 0.99, "the mean of parts' means turns the gradient")

# %% [markdown]
# A cosine of 1 means that the step goes the same way, and the optimizer forgives another length. A cosine
# below 1 means another direction, and no learning rate mends that.
#
# **How one finds it in a run.** The reward shows nothing. The norm of the gradient does: cut the same batch
# into parts of *unequal* size, then into one part, and `grad_norm` must not move. (Between equal parts a
# mean of the parts' means stays the same and is not found. The [bug zoo](17_bug_zoo.ipynb) has a run with
# this mistake among its cases.)
#
# ## 4. Two ranks
#
# *The parts of section 2 came one after the other. Now they are computed at the same time.*
#
# Two processes, called **ranks**, share the batch: rank 0 has A, B and C, with the losses 1, 2 and 3, and
# rank 1 has D, with 6. Each computes a gradient, and then the gradients are combined. It is the same
# question with one more trap, because PyTorch's `DistributedDataParallel` *averages* over the ranks,
# while others add up.

# %%
ranks = [answers[:3], answers[3:]]
own_mean = [rank.mean() for rank in ranks]
own_share = [rank.sum() / 4 for rank in ranks]
for name, rank_losses in (("mean of the rank", own_mean), ("sum of the rank / 4", own_share)):
    added = sum(rank_losses)
    print(f"{name:20} {rank_losses[0]:.2f} and {rank_losses[1]:.2f}: ", end="")
    print(f"added up {added:.2f}, averaged {added / 2:.2f}")
holds(sum(own_share) == 3, "added up, the shares of the ranks are the loss of the batch")
holds(sum(own_mean) / 2 == 4, "the average over ranks of their means is 4")

# %% [markdown]
# The mean of each rank, averaged, gives 4: a mean of the parts' means again. The share of the whole batch
# gives 3 if it is added up, and half of that if it is averaged. So where gradients are averaged over
# ranks, each loss has to be multiplied by the number of ranks. This repository adds up.
#
# Ranks have different numbers of answers as soon as some are left out, and different numbers of tokens
# nearly always. One rule covers all cases: **count what the whole step has, over all parts and all ranks,
# before the first `backward`, and divide by that.** In the engines, which call an answer a response, it
# is the argument `responses=len(rows)` of the loss; [docs/ranks.md](../docs/ranks.md) says how ranks
# share the count.
#
# ## Exercise
#
# **`part_of_the_loss`.** The loss of one micro-batch, on a machine with several ranks: its share of the
# mean over *all* responses. The gradients of a rank's parts are added up, and those of the ranks are
# *averaged*. Not all arguments are needed.


# %%
def my_part(loss, mask, parts, responses, rank):
    """Token losses (n, T) and mask (n, T) of one of `parts` micro-batches of this `rank`.

    responses (R,): how many each rank has. -> a scalar
    """
    ...


check("part_of_the_loss", my_part)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_part(loss, mask, parts, responses, rank):
#     per_answer = torch.where(mask, loss, 0.0).sum(1) / mask.sum(1).clamp(min=1)  # an empty row is 0
#     return per_answer.sum() / responses.sum() * len(responses)
# ```
#
# </details>
#
# **On paper.** A trainer divides by all tokens of the batch. In the next batch all answers are twice as
# long. How does the weight of one token change, and the weight of one answer? What changes with the
# constant of Dr. GRPO?
#
# <details>
# <summary>Answer</summary>
#
# With twice as many tokens each weighs half as much, and an answer, which has twice as many, weighs what it
# weighed before. With the constant a token keeps its weight, so an answer weighs twice as much, and batches
# of long answers have longer gradients.
#
# </details>
#
# **To read on.** Liu et al. 2025 ([arXiv:2503.20783](https://arxiv.org/abs/2503.20783)), because it reads
# GRPO's formula divisor by divisor; section 3 of DAPO
# ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476)), for the case that long reasoning needs the mean
# over tokens; and [nano/dr_grpo.py](../nano/dr_grpo.py) beside [nano/grpo.py](../nano/grpo.py), because
# the difference is two lines.
#
# ## To remember
#
# - A mean over tokens, then over answers, gives a token of a long answer less weight, and so lets wrong
#   answers grow; the other divisors treat all tokens alike.
# - Divide by what the whole *step* has, over all parts and ranks, and count it before the first `backward`.
# - A constant factor is forgiven by Adam; a mean of the parts' means turns the gradient and is forgiven
#   by nobody.
#
# Next: [08_kl_estimators](08_kl_estimators.ipynb), the page after 07: GRPO puts k3 into its loss, and is
# its gradient that of the KL?
