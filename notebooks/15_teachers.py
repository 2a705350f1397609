# %% [markdown]
# # 18. A teacher's log-probability as the reward
#
# **The question.** Can a better language model replace the reward model, by saying how likely it finds
# what the student has written?
#
# **Why.** A reward model has to be trained on somebody's preferences. A better language model is a
# judge that exists already, because it gives a probability to every text. Using $\log p_{teacher}$
# as the reward of GRPO or PPO is knowledge distillation (KD) by reinforcement, a few lines on top
# of the engines. In its plain form it goes wrong, in ways that the reward curve does not show. This
# page shows them, and what to do instead.
#
# | section | question | code |
# | --- | --- | --- |
# | 1 | what does the teacher say, token by token? | `teacher_rewards` |
# | 2 | which response is best under each form of the reward? | `row_sums`, `row_means` |
# | 3 | three runs: only one comes nearer to the teacher | [rl/kd_grpo_engine.py](../rl/kd_grpo_engine.py) |
# | 4 | PPO: a reward at every token, or all at the end | [rl/kd_ppo_engine.py](../rl/kd_ppo_engine.py) |
# | 5 | the loss on pre-training text, and a bonus that cannot replace it | `text_gradient` |
#
# The closest published method is MiniLLM (Gu et al. 2024,
# [arXiv:2306.08543](https://arxiv.org/abs/2306.08543)), on the next page.
#
# **You need** [07_grpo](07_grpo.ipynb), [05_what_a_kl_is](05_what_a_kl_is.ipynb) and, for section 4,
# [09_ppo](09_ppo.ipynb).
#
# **It takes** about half a minute on one CPU core, after start-up.

# %%
import copy
import dataclasses
import math
import warnings

import matplotlib.pyplot as plt
import torch
from course import plots, saved_models
from course.claims import holds
from course.exercises import check
from torch import Tensor

from data import reviews
from data.collate import collate_responses
from gpt import finetuning
from gpt.corpus import WorldCorpus, encode_record
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs, token_scores
from gpt.model import GPT
from gpt.pretraining import held_out_loss
from harness.metric_log import MetricLog
from harness.report.tokens import show_tokens
from harness.seeds import make_generator

# %%
from rl import kd_grpo_engine, kd_ppo_engine
from rl.batches.rollout import sample_rollout
from rl.equations.advantages import discounted_returns, gae, group_advantages, whiten
from rl.equations.losses import policy_gradient, row_means, row_sums, sequence_sum
from rl.equations.token_rewards import at_last_token, teacher_rewards
from rl.kd_grpo_engine import KDGRPOConfig
from rl.kd_ppo_engine import KDPPOConfig, kd_token_rewards
from rl.loop import Run
from rl.rewards.sources import RuleReward
from rl.training.evaluation import evaluate

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine

# %% [markdown]
# ## 1. What the teacher says, token by token
#
# The student is the course's base model. The teacher is the same model, fine-tuned for a few
# seconds on the better reviews of the world. (The gold reward selects them here. Later on it is
# measured, but nothing is trained on it.) Usually the teacher is a larger model. Here the student
# *can* become the teacher, so the distance has a true zero. They must share the tokenizer: a
# log-probability of tokens means nothing to a model that cuts the text differently.

# %%
student, tokenizer = saved_models.base()
corpus = WorldCorpus("reviews", tokenizer, 16, seed=0)
documents = reviews.corpus(3000, seed=5)
good = [d for d in documents if reviews.gold_reward(d, d.response, True) >= 0.7]
teacher = copy.deepcopy(student)
finetuning.train(
    finetuning.FinetuningConfig(batch_size=16, lr=1e-3, warmup=5, eval_every=60, device="cpu"),
    teacher, [encode_record(d, tokenizer) for d in good], [], MetricLog(60),
    eos_id=tokenizer.eos_id,
)  # fmt: skip
teacher.eval().requires_grad_(False)
print(f"{len(good)} of {len(documents)} documents teach the teacher")

# %% [markdown]
# Let $q$ be the student and $p$ the teacher. There are two candidates for the reward of a token that
# the student has written:
#
# $$r_t = \log p(y_t \mid x, y_{\lt t}) \qquad \text{or} \qquad
# r_t = \log \frac{p(y_t \mid x, y_{\lt t})}{q(y_t \mid x, y_{\lt t})}$$
#
# In code, with numbers that can be checked by hand: the student has written two tokens with
# probability 0.5 each. The teacher finds the first as likely, the second ten times less likely.

# %%
mask = torch.tensor([[True, True]])
q, p = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.5, 0.05]]).log()

log_p, log_p_over_q = p * mask, (p - q) * mask

print("log p    ", [round(x, 3) for x in log_p[0].tolist()])
print(
    "log p / q",
    [round(x, 3) for x in log_p_over_q[0].tolist()],
    f" (log 0.1 = {math.log(0.1):.3f})",
)
torch.testing.assert_close(log_p, teacher_rewards(p, q, mask, reverse_kl=False))
torch.testing.assert_close(log_p_over_q, teacher_rewards(p, q, mask, reverse_kl=True))
plots.code(teacher_rewards, docstring=False)

# %% [markdown]
# Now the same on text that the student has really written. The view opens with log p: there every
# choice of a word costs something, even the teacher's own favourites. Press `log p / q`. Blue: the
# teacher finds the token likelier than the student does. Orange: less likely. Most tokens are
# forced by the ones before them, so their log p / q is near 0. What counts are the few that are a
# choice.

# %%
params = SamplingParams(temperature=1.0, max_new_tokens=40)
train_prompts, validation = reviews.prompts("train"), reviews.prompts("validation")[:96]
judge = kd_grpo_engine.teacher_reward(KDGRPOConfig(device="cpu"), teacher)  # log p / q, summed
noise = make_generator(2, "noise")
rollout = sample_rollout(student, tokenizer, train_prompts[:128], params, 1, noise)
mask, q = rollout.response_mask, rollout.log_probs  # (N, T), by the student that sampled
p = judge.log_probs(rollout)  # (N, T)
parts = teacher_rewards(p, q, mask, reverse_kl=True)
texts = [
    ["(EOS)" if t == tokenizer.eos_id else tokenizer.decode([t]) for t in row[keep].tolist()]
    for row, keep in zip(rollout.response_tokens[:6], mask[:6], strict=True)
]
show_tokens(texts, {"log p": p[:6], "log p / q": parts[:6], "log q": q[:6]},
            prompts=[record.prompt.strip() for record in rollout.records[:6]])  # fmt: skip

# %% [markdown]
# Add $\log p / q$ up over a response that $q$ has written. The mean of this sum is $-\mathrm{KL}(q
# \parallel p)$, minus the reverse KL. So it is largest, 0, where the student is the teacher. The
# second line below measures the same KL on other samples and with less noise:

# %%
per_response = row_sums(parts, mask)  # (N,)
exact = evaluate(student, tokenizer, train_prompts[:128], params, judge).reverse_kl_full
mean, error = per_response.mean(), per_response.std() / len(per_response) ** 0.5
print(f"mean reward of {len(mask)} responses {mean:.2f} +- {error:.2f}")
print(f"minus the KL, summed over the vocabulary: {-exact.mean():.2f}")
holds(
    abs(mean + exact.mean()) < 4 * (error + exact.std() / 11),
    "the mean of log p / q is minus the reverse KL",
)

# %% [markdown]
# ## 2. Which response is the best?
#
# $\log p$ alone has no term for variety. Its expectation is largest if the student writes *one*
# response, the best one, always. **Predict, then run:** which one is that
#
# - under the **sum** over tokens, where every further token costs something?
# - under the **mean** per token, where length is free?
#
# The candidates are two hundred responses to one prompt, drawn from the teacher itself, and one that
# it almost never writes: nothing at all, only an EOS.

# %%
record = train_prompts[0]
drawn = sample_rollout(teacher, tokenizer, [record], params, 200, make_generator(1, "draw"))
prompt = tokenizer.encode(record.prompt)
with torch.no_grad():
    empty = collate_responses([prompt], [[tokenizer.eos_id]], tokenizer.eos_id)
    log_p_empty = float(token_log_probs(teacher, empty).sum())
total = row_sums(drawn.log_probs, drawn.response_mask)
per_token = row_means(drawn.log_probs, drawn.response_mask)
rows = [["nothing", "", 1, log_p_empty, log_p_empty]]
for name, i in [("best sum", total.argmax()), ("best mean", per_token.argmax()),
                ("median", total.argsort()[100]), ("worst sum", total.argmin())]:  # fmt: skip
    text = drawn.responses[i]
    text = text[:60] + "..." * (len(text) > 60)
    rows.append([name, text, int(drawn.lengths[i]), float(total[i]), float(per_token[i])])
print(record.prompt.strip())
plots.table(["", "response", "tokens", "sum of log p", "mean of log p"], rows)

# %%
lengths = drawn.lengths.float()
figure, axes = plots.panels(2)
for axis, values, label in zip(axes, (total, per_token), ("sum", "mean"), strict=True):
    axis.scatter(lengths, values, s=12, color=plots.colour("teacher"), label="drawn by the teacher")
    axis.scatter([1], [log_p_empty], color=plots.colour("bad"), marker="*", s=120, label="nothing")
    plots.labels(axis, "length (tokens)", f"{label} of log p (nats)")
axes[1].legend(loc="lower right")
plt.show()
correlation = torch.corrcoef(torch.stack([lengths, total]))[0, 1]
beaten = float((total < log_p_empty).float().mean())
print(f"correlation of the sum with the length {correlation:.2f}")
print(f"nothing at all beats {beaten:.0%} of the drawn responses in the sum")
holds(
    correlation < -0.5 and beaten > 0.5,
    "in the sum, shorter is better, and nothing at all beats most responses",
)

# %% [markdown]
# By the sum, saying nothing beats most of the responses. The teacher almost never says nothing, but
# one particular response of twenty tokens is rarer still. The mean is best for smooth text, made of
# the likeliest words. So neither form asks the student to write like the teacher.
#
# ## 3. Three runs of KD-GRPO
#
# The engine is [07_grpo](07_grpo.ipynb) with this reward. The ratio, the clip and the group's
# baseline are the same. A step differs in these lines (the loss on text comes in section 5; every
# line begins at the margin):

# %%
plots.neighbours("grpo", "kd_grpo")

# %%
config = KDGRPOConfig(
    steps=14, prompts_per_step=6, group_size=8, lr=1e-3, warmup=3, minibatches=2, kl_coef=0.0,
    pretraining_coef=0.0, pretraining_batch_size=16, max_new_tokens=40, device="cpu",
    eval_every=1000,
)  # fmt: skip
gold = RuleReward(reviews.gold_reward, "gold reward")
held_out = corpus.held_out_batches()[:4]


def measure(policy: GPT) -> dict[str, float]:
    """KL to the teacher, gold reward, length, entropy, and the loss on ordinary text."""
    result = evaluate(policy, tokenizer, validation, params, judge, gold=gold)
    drawn = sample_rollout(policy, tokenizer, validation, params, 1, make_generator(4, "show"))
    with torch.no_grad():
        entropy = token_scores(policy, drawn.sequences).entropy[drawn.response_mask].mean()
    more = {"held_out": held_out_loss(policy, held_out), "entropy": float(entropy)}
    return result.summary() | more


def distil(config, engine=kd_grpo_engine) -> tuple[GPT, list[dict]]:
    """A copy of the student after the run, and the run's metrics."""
    policy, log = copy.deepcopy(student), MetricLog(config.steps)
    reward = engine.teacher_reward(config, teacher)
    run = Run(config, policy, tokenizer, reward, train_prompts, log)
    rows = engine.train(config, run, corpus=corpus)
    return policy, rows


# %% [markdown]
# **Predict, then run.** Three forms of the reward. All three runs will raise their own reward. Which of
# them brings the student nearer to the teacher?

# %%
forms = {
    "sum of log p": distil(dataclasses.replace(config, teacher_reward="sum")),
    "mean of log p": distil(dataclasses.replace(config, teacher_reward="mean")),
    "log p / q": distil(config),
}
STYLES = {"sum of log p": "bad", "mean of log p": "proxy", "log p / q": "policy"}
figure, axes = plots.panels(4, width=14)
for axis, key, label in (
    (axes[0], "reward", "its own reward,\nrescaled to 0..1"),
    (axes[1], "reverse_kl", "KL to the teacher\n(nats per response)"),
    (axes[2], "entropy", "entropy\n(nats per token)"),
    (axes[3], "response_length", "length (tokens)"),
):
    series = {}
    for name, (_, rows) in forms.items():
        values = plots.running_mean([row[key] for row in rows], 4)
        low, high = (min(values), max(values)) if key == "reward" else (0, 1)
        series[name] = [(value - low) / (high - low) for value in values]
    plots.curves(series, range(1, config.steps + 1), axis=axis, styles=STYLES, xlabel="step",
                ylabel=label, xticks=(1, 5, 10, 14))  # fmt: skip
    if axis is not axes[3]:
        axis.get_legend().remove()
plt.show()

# %%
start = {"the student": measure(student), "the teacher": measure(teacher)}
after = {name: measure(policy) for name, (policy, _) in forms.items()}
keys = ("reverse_kl_full", "entropy", "gold", "response_length", "held_out")
columns = ["", "KL to the teacher", "entropy", "gold", "length", "loss on ordinary text"]
rows = [[name, *(f"{m[k]:.2f}" for k in keys)] for name, m in (start | after).items()]
plots.table(columns, rows)
for name, (policy, _) in forms.items():
    shown = sample_rollout(policy, tokenizer, validation[:3], params, 1, make_generator(4, "show"))
    print(f"\n{name}")
    for text in shown.responses:
        print("  ", repr(text))

was, kl = start["the student"], {name: m["reverse_kl_full"] for name, m in (start | after).items()}
holds(kl["log p / q"] < kl["the student"] - 0.5, "log p / q brings it nearer")
holds(min(kl["sum of log p"], kl["mean of log p"]) > kl["log p / q"] + 1, "log p alone leads away")
holds(after["sum of log p"]["response_length"] < 0.75 * was["response_length"], "the sum shortens")
holds(after["mean of log p"]["entropy"] < 0.7 * was["entropy"], "the mean halves the entropy")
holds(after["log p / q"]["gold"] > was["gold"] + 0.03, "gold rises with log p / q")

# %% [markdown]
# All three runs succeed, by their own reward. The sum of $\log p$ ends near silence, in a word or one
# short sentence. The mean keeps the length and gives up the variety: its entropy halves. With $-\log
# q$ in the reward the distance falls. The gold reward rises too, although no run has seen it: the
# student takes over what its teacher is good at. (Under the mean gold rises as well, and the
# distance with it. The curves are means over four steps, so they lag behind the table.) With
# `--teacher-reward mean` or `sum` the `reward` alone says little; `reverse_kl`, `entropy` and
# `response_length` are logged beside it.
#
# A KL penalty to the *reference* ([07](07_grpo.ipynb)) cannot replace $-\log q$. It can slow the
# collapse down, because it holds on to where the student came from. The reverse KL instead points
# to where the student should go.
#
# ## 4. KD-PPO: at every token, or all at the end
#
# A reward model judges a finished response, so PPO puts its score at the last token. The teacher
# judges every token, so each can have its own part: *dense* instead of *terminal*. The sum is the
# same. What differs is the *credit*: what a token is praised or blamed for. With the dense reward
# that is only the token's own part and what comes after it, its *reward to go*:
#
# $$\text{dense:} \quad \sum_{u \ge t} \log \frac{p(y_u)}{q(y_u)} \qquad \qquad \text{terminal:} \quad
# \sum_{u} \log \frac{p(y_u)}{q(y_u)} \text{ for every } t$$

# %%
scores = row_sums(parts, mask)
rewards = {
    "dense": kd_token_rewards(scores, parts, q, None, mask, kl_coef=0.0),
    "terminal": kd_token_rewards(scores, None, q, None, mask, kl_coef=0.0),
}
assert torch.equal(rewards["terminal"], at_last_token(scores, mask))
assert torch.allclose(rewards["dense"].sum(1), rewards["terminal"].sum(1), atol=1e-4)

naive = {"dense": parts.flip(1).cumsum(1).flip(1) * mask, "terminal": scores[:, None] * mask}
to_go = {name: discounted_returns(r, mask, 1.0) for name, r in rewards.items()}
for name in naive:
    torch.testing.assert_close(naive[name], to_go[name], atol=1e-3, rtol=1e-4)
show_tokens(texts, {name: values[:6] for name, values in to_go.items()})

# %% [markdown]
# Both are right on average: a token's *past* rewards do not depend on it, so leaving them out changes
# no expectation. They only add noise. **Predict, then run:** how much quieter is the gradient without
# them? The same 128 responses, cut into 8 batches of 16:


# %%
def batch_gradients(values: Tensor) -> Tensor:
    """Policy gradients of 8 batches with these rewards to go, less their mean: (8, weights)."""
    advantages, gradients = values - values[mask].mean(), []
    for index in torch.arange(128).view(8, 16):
        rows = rollout.sequences.rows(index)
        loss = policy_gradient(token_log_probs(student, rows), advantages[index])
        student.zero_grad()
        sequence_sum(loss, rows.response_mask).backward()
        gradients.append(torch.cat([w.grad.flatten() for w in student.parameters()]))
    return torch.stack(gradients)


variance = {}
for name, values in to_go.items():
    g = batch_gradients(values)
    variance[name] = float((g - g.mean(0)).square().sum(1).mean()) * 8 / 7
student.zero_grad()
plots.bars(variance, axis=plots.panels(1, width=4.5)[1], numbers=".0f",
          ylabel="variance of a batch's gradient", xlabel="placement of the reward")  # fmt: skip
plt.show()
holds(variance["dense"] < 0.9 * variance["terminal"], "the dense placement has less noise")

# %% [markdown]
# The terminal form has about 1.6 times the variance, so it would need a batch about 1.6 times as
# large. (A perfect critic would see in the prefix what has been lost already, and remove the
# difference. It has to learn that first.)
#
# ## 5. The loss on pre-training text, and the bonus that cannot replace it
#
# A student that follows a teacher on a few prompts forgets the rest. InstructGPT (there called
# PPO-ptx, [arXiv:2203.02155](https://arxiv.org/abs/2203.02155)) and MiniLLM (section 2.2) therefore
# continue pre-training beside the RL, as a second loss:
#
# $$L = L_{policy} + \lambda L_{PT}, \qquad L_{PT} = - \frac{1}{|D|} \sum_{d \in D} \log q(d)$$
#
# a mean over the tokens $d$ of some ordinary text $D$, with a weight $\lambda$. It is tempting to
# put it into the *reward* instead, $R_i \leftarrow R_i - \lambda L_{PT}$. But then it is a number
# that was computed without a gradient, and the same for every response of the batch. Baselines are
# made to remove such a number. In GRPO the group's mean removes it exactly:

# %%
bonus = -5 * held_out_loss(student, [corpus.batch(7)])
plain, with_bonus = group_advantages(scores, 8), group_advantages(scores + bonus, 8)
print(f"bonus {bonus:.2f}: largest change of an advantage {(plain - with_bonus).abs().max():.1e}")
torch.testing.assert_close(plain, with_bonus, atol=1e-4, rtol=1e-3)

# %% [markdown]
# In PPO the bonus goes to the last token. GAE at $\gamma = \lambda_{GAE} = 1$ hands it to every
# token alike, and the whitening of the advantages removes it. At the usual $\lambda_{GAE} = 0.95$ it
# does *not* go away: with a critic of zeros a bonus $c$ changes the advantage of token $t$ of a
# response of $L$ tokens by $c \, \lambda_{GAE}^{L - 1 - t}$. After the whitening, tokens near the end
# are blamed for it, and those far from the end are praised:

# %%
values = torch.zeros_like(q)  # a critic of zeros
change = {}
for gae_lambda in (1.0, 0.95):
    whitened = []
    for c in (0.0, bonus):
        given = kd_token_rewards(scores, None, q, None, mask, kl_coef=0.0, bonus=c)
        whitened.append(whiten(gae(given, values, mask, 1.0, gae_lambda)[0], mask))
    shift = whitened[1] - whitened[0]
    before_end = rollout.lengths[:, None] - 1 - torch.arange(mask.shape[1])  # tokens still to come
    change[f"lambda {gae_lambda}"] = [shift[mask & (before_end == n)].mean() for n in range(20)]
plots.curves({name: [float(x) for x in row] for name, row in change.items()}, marker=True,
            xlabel="tokens still to come", ylabel="change of the\nwhitened advantage")  # fmt: skip
plt.show()
holds(max(abs(float(x)) for x in change["lambda 1.0"]) < 1e-3, "at lambda 1 the bonus vanishes")
holds(
    float(change["lambda 0.95"][0]) < float(change["lambda 0.95"][15]) - 0.1,
    "at lambda 0.95 tokens near the end are blamed for the bonus",
)

# %% [markdown]
# So at $\lambda_{GAE} = 0.95$ the bonus is a *disturbance* until the critic has learned it: it
# punishes whatever comes near the end of a response, the EOS first. A run with it may end better or
# worse than one without. But it protects nothing, because no gradient of $L_{PT}$
# reaches the weights through a number. The engine offers it only to show this, and warns. Three short
# runs with the sum of $\log p$ as the reward, which section 3 has shown to be a bad one:

# %%
ppo = KDPPOConfig(
    steps=8, prompts_per_step=24, lr=1.2e-3, critic_lr=1.2e-3, warmup=2, minibatches=2,
    updates_per_batch=1, kl_coef=0.0, pretraining_batch_size=16, device="cpu", eval_every=1000,
    teacher_reward="sum", placement="terminal", pretraining_coef=1.0, max_new_tokens=40,
)  # fmt: skip
modes = {"PPO": dict(pretraining_coef=0.0), "PPO + bonus": dict(pt_mode="reward_bonus"),
         "PPO + loss": dict(pt_mode="loss")}  # fmt: skip
losses = {"start": start["the student"]["held_out"]}
for name, changes in modes.items():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        policy, _ = distil(dataclasses.replace(ppo, **changes), kd_ppo_engine)
    losses[name] = held_out_loss(policy, held_out)
    for warning in said:
        print("the engine warns:", str(warning.message).partition(":")[0])
axis = plots.bars(
    losses, axis=plots.panels(1, width=7)[1], numbers=".2f",
    styles={"start": "reference", "PPO": "bad", "PPO + bonus": "bad", "PPO + loss": "good"},
    xlabel="run", ylabel="loss on ordinary text\n(nats per token)",
)  # fmt: skip
plt.show()
holds(
    losses["PPO + loss"] < losses["start"] + 0.1, "as a loss, text keeps the student's loss on it"
)
holds(
    min(losses["PPO"], losses["PPO + bonus"]) > losses["PPO + loss"],
    "as a bonus it protects nothing",
)

# %% [markdown]
# As a loss it keeps the student's loss on ordinary text near where it was, even under this reward.
# As a bonus it protects nothing: here that run has even lost more than the one without it. (The
# disturbance from above can turn out either way; one seed does not say which.) The loss is not free
# either. It pulls towards the ordinary text and away from the teacher, in proportion to $\lambda$.
# And it hides a bad reward instead of fixing it.
#
# **What this page left out.** The student was small and the teacher no larger. The runs were short,
# with one seed each. **At full size**: `python scripts/make_teacher.py` once, then `python -m
# rl.kd_grpo_engine` or `python -m rl.kd_ppo_engine`.

# %%
plots.code(kd_grpo_engine.teacher_reward, docstring=False)

# %% [markdown]
# ## 6. Exercises
#
# Fill in the functions and run the cells. `check` says in words what is right or wrong.
#
# **1.** Write the reward of a response, (N,): the sum of $\log p / q$ over its tokens.


# %%
def my_teacher_reward(teacher_log_probs, log_probs, mask):
    return ...  # your line


check("teacher_reward", my_teacher_reward)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_teacher_reward(teacher_log_probs, log_probs, mask):
#     return ((teacher_log_probs - log_probs) * mask).sum(1)
# ```
#
# </details>
#
# **2.** Write the reward to go of every token, (N, T): its own reward and all that come after it.


# %%
def my_reward_to_go(token_rewards, mask):
    return ...  # your lines


check("reward_to_go", my_reward_to_go)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_reward_to_go(token_rewards, mask):
#     return (token_rewards * mask).flip(1).cumsum(1).flip(1) * mask
# ```
#
# </details>
#
# **3.** Write the terminal placement, (N, T): the sum of a response's rewards goes to its last
# token, and 0 everywhere else.


# %%
def my_terminal_rewards(token_rewards, mask):
    return ...  # your lines


check("terminal_rewards", my_terminal_rewards)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_terminal_rewards(token_rewards, mask):
#     total = (token_rewards * mask).sum(1, keepdim=True)
#     is_last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
#     return total * is_last
# ```
#
# </details>
#
# **To think about.** Put the bonus at *every* token. What does it do then?
#
# <details>
# <summary>Answer</summary>
#
# The reward to go of token $t$ changes by $c \, (L - t)$. With the negative $c$ of $-\lambda L_{PT}$
# that is a penalty on length. It is not the same number for every token, so no baseline of the batch
# or the group removes it. And nobody asked for short responses.
#
# </details>
#
# ---
# Next: [15_minillm_and_distillation](15_teachers.ipynb), in which the teacher's whole
# distribution is used.
