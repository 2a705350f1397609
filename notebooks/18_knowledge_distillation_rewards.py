# %% [markdown]
# # 15. A teacher's log-probability as the reward
#
# **Why.** A reward model has to be trained on somebody's preferences. A better language model is a
# judge that is there already: it gives a probability to whatever the student writes. Using
# $\log p_{teacher}(\text{response})$ as the reward of GRPO or PPO is knowledge distillation by
# reinforcement. It is a few lines on top of the engines, and in its plain form it goes wrong in
# ways that the reward curve does not show. This page shows them, and what to do instead.
#
# | section | question | code |
# | --- | --- | --- |
# | 1 | a student, and a teacher of the same language | |
# | 2 | what the teacher says, token by token | `teacher_rewards` |
# | 3 | which response is best under each form of the reward? | `row_sums`, `row_means` |
# | 4 | three runs of KD-GRPO: only one of them comes nearer to the teacher | `rl/kd_grpo_engine.py` |
# | 5 | KD-PPO: the reward of every token at its token, or all at the end | `kd_token_rewards` |
# | 6 | the loss on pre-training text, and a bonus that does nothing | `text_gradient` |
#
# Closest in print: MiniLLM (Gu et al. 2024, [arXiv:2306.08543](https://arxiv.org/abs/2306.08543)),
# which is not a reward plugged into GRPO; page
# [19_minillm_and_distillation](19_minillm_and_distillation.ipynb) is about it.
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about half a minute on one CPU core. The page before this
# one: [16_verifiable_rewards](16_verifiable_rewards.ipynb); the next:
# [19_minillm_and_distillation](19_minillm_and_distillation.ipynb).

# %%
import copy
import dataclasses
import inspect
import warnings

import matplotlib.pyplot as plt
import torch

try:
    from data import reviews
    from data.collate import collate_responses
    from gpt import finetuning, pretraining
    from gpt.common import MetricLog, make_generator
    from gpt.corpus import WorldCorpus, encode_record
    from gpt.generate import SamplingParams
    from gpt.log_probs import token_log_probs
    from gpt.model import GPT, GPTConfig
    from gpt.pretraining import held_out_loss
    from gpt.tokenizer import load_tokenizer
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

torch.set_num_threads(1)  # one thread adds up in the same order on every machine

# %%
from rl import kd_grpo_engine, kd_ppo_engine
from rl.batches.rollout import sample_rollout
from rl.equations.advantages import discounted_returns, gae, whiten
from rl.equations.losses import policy_gradient, row_means, row_sums, sequence_sum
from rl.equations.token_rewards import at_last_token, teacher_rewards
from rl.kd_grpo_engine import KDGRPOConfig
from rl.kd_ppo_engine import KDPPOConfig, kd_token_rewards
from rl.rewards.sources import RuleReward
from rl.training.evaluation import evaluate, format_table, running_mean

tokenizer = load_tokenizer("glassbox")

# %% [markdown]
# ## 1. A student and a teacher
#
# The student is a small base model of the reviews world. The teacher is the same model, fine-tuned
# for two seconds on the better reviews of the world (the gold reward selects them here; later on it
# is measured, but trained on by nobody). In earnest the teacher is the larger model; this one has the
# advantage that the student *can* become it, so that the distance has a true zero. They share the
# tokenizer: a log-probability of tokens means nothing to a model that cuts the text differently.

# %%
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=96, n_layer=2, n_head=2, n_embd=96)
student = GPT(shape).initialize(make_generator(0, "weights"))
pretraining_config = pretraining.PretrainingConfig(
    steps=400, batch_size=16, lr=6e-3, warmup=30, eval_every=400, device="cpu"
)
corpus = WorldCorpus("reviews", tokenizer, pretraining_config.batch_size, seed=0)
pretraining.train(pretraining_config, student, corpus, MetricLog(400))

documents = reviews.corpus(4000, seed=5)
good = [d for d in documents if reviews.gold_reward(d, d.response, True) >= 0.7]
teacher = copy.deepcopy(student)
finetuning.train(
    finetuning.FinetuningConfig(batch_size=16, lr=2e-3, warmup=10, eval_every=120, device="cpu"),
    teacher, [encode_record(d, tokenizer) for d in good], [], MetricLog(120),
    eos_id=tokenizer.eos_id,
)  # fmt: skip
teacher.requires_grad_(False)
print(f"{len(good)} of {len(documents)} documents teach the teacher")

# %%
params = SamplingParams(temperature=1.0, max_new_tokens=48)
train_prompts, validation = reviews.prompts("train"), reviews.prompts("validation")[:128]
held_out = corpus.held_out_batches()
gold = RuleReward(reviews.gold_reward, "gold reward")
plain = KDGRPOConfig(device="cpu")  # r = log p / q, summed over the response
judge = kd_grpo_engine.teacher_reward(plain, teacher)


def measure(policy: GPT) -> dict[str, float]:
    result = evaluate(policy, tokenizer, validation, params, judge, gold=gold)
    return result.summary() | {"held_out": held_out_loss(policy, held_out)}


columns = ["", "KL to the teacher", "gold", "length", "held-out nats per token"]
start = {"student": measure(student), "teacher": measure(teacher)}
keys = ("reverse_kl_full", "gold", "response_length", "held_out")
print(format_table(columns, [[name, *(m[k] for k in keys)] for name, m in start.items()]))
assert start["teacher"]["gold"] > start["student"]["gold"] + 0.2
assert start["student"]["reverse_kl_full"] > 2.5 and start["teacher"]["reverse_kl_full"] < 1e-3

# %% [markdown]
# The last column is the loss on the world's ordinary text, good and bad, which the student was
# trained on. It matters in section 6.
#
# ## 2. What the teacher says, token by token
#
# Let $q$ be the student and $p$ the teacher. There are two candidates for the reward of a token
# that the student has written:
#
# $$r_t = \log p(y_t \mid x, y_{\lt t}) \qquad \text{or} \qquad
# r_t = \log \frac{p(y_t \mid x, y_{\lt t})}{q(y_t \mid x, y_{\lt t})}$$
#
# The second is the reward of MiniLLM (arXiv:2306.08543, Eq. 2). Summed over a response that $q$ has
# written, its mean is $-\mathrm{KL}(q \parallel p)$, the **reverse KL**, and so it is largest, 0,
# where the student is the teacher.

# %%
print(inspect.getsource(teacher_rewards))

# %%
rollout = sample_rollout(
    student, tokenizer, train_prompts[:256], params, 1, make_generator(2, "noise")
)
mask, q = rollout.response_mask, rollout.log_probs  # (N, T), by the student that sampled
p = judge.log_probs(rollout)  # (N, T), at least -20 each
row = int((rollout.lengths - 16).abs().argmin())  # a response that fits on the page
print(rollout.records[row].prompt.strip(), "->", rollout.responses[row], "\n")
rows = []
for t in range(int(rollout.lengths[row])):
    token = int(rollout.response_tokens[row, t])
    text = "(EOS)" if token == tokenizer.eos_id else tokenizer.decode([token])
    rows.append([repr(text), float(p[row, t]), float(q[row, t]), float(p[row, t] - q[row, t])])
print(format_table(["token", "log p", "log q", "log p / q"], rows))

# %% [markdown]
# Most tokens are forced by the ones before and bring nothing; what counts are the few that are a
# choice. The sum over a response, on average over all 256, beside the KL itself:

# %%
per_response = row_sums(teacher_rewards(p, q, mask, reverse_kl=True), mask)  # (N,)
exact = evaluate(student, tokenizer, train_prompts[:256], params, judge).reverse_kl_full
mean, error = per_response.mean(), per_response.std() / len(per_response) ** 0.5
print(f"mean reward of 256 responses {mean:.2f} +- {error:.2f}")
print(f"minus the KL, summed over the vocabulary: {-exact.mean():.2f}")
assert abs(mean + exact.mean()) < 4 * (error + exact.std() / 16)

# %% [markdown]
# ## 3. Which response is the best?
#
# $\log p$ alone has no term for variety. What maximises its expectation is to write *one* response,
# the best one, always. Which one is that?
#
# - As a **sum** over tokens, every further token costs something: short responses win.
# - As a **mean** per token, length is free: the smoothest text wins, made of the likeliest words.
#
# Two hundred responses that the teacher itself has drawn to one prompt, and one that it almost
# never writes: nothing at all, an EOS.

# %%
record = train_prompts[0]
drawn = sample_rollout(teacher, tokenizer, [record], params, 200, make_generator(1, "draw"))
with torch.no_grad():
    empty = collate_responses(
        [tokenizer.encode(record.prompt)], [[tokenizer.eos_id]], tokenizer.eos_id
    )
    log_p_empty = float(token_log_probs(teacher, empty).sum())
total, per_token = (
    reduce(drawn.log_probs, drawn.response_mask) for reduce in (row_sums, row_means)
)
by_total, by_mean = total.argsort(descending=True), per_token.argsort(descending=True)

print(record.prompt.strip())
table = [["nothing", "", 1, log_p_empty, log_p_empty]]
for name, index in [("best sum", by_total[0]), ("best mean", by_mean[0]),
                    ("median", by_total[100]), ("worst sum", by_total[-1])]:  # fmt: skip
    text = drawn.responses[index][:46]
    row = [int(drawn.lengths[index]), float(total[index]), float(per_token[index])]
    table.append([name, text, *row])
print(format_table(["", "response", "tokens", "sum log p", "mean log p"], table))

# %%
lengths = drawn.lengths.float()
figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.4), layout="constrained")
for axis, values, label in zip(axes, (total, per_token), ("sum", "mean"), strict=True):
    axis.scatter(lengths, values, s=12, alpha=0.5, label="drawn by the teacher")
    axis.scatter([1], [log_p_empty], color="tab:red", marker="*", s=90, label="nothing at all")
    axis.set(xlabel="length (tokens)", ylabel=f"{label} of log p (nats)")
axes[1].legend(loc="lower right")
plt.show()

correlation = torch.corrcoef(torch.stack([lengths, total]))[0, 1]
print(f"correlation of the sum with the length {correlation:.2f}")
print(f"nothing beats {(total < log_p_empty).float().mean():.0%} of the drawn responses in the sum")
assert correlation < -0.6 and (total < log_p_empty).float().mean() > 0.8
assert lengths[by_total[:10]].mean() < 0.6 * lengths.mean()
assert per_token[by_mean[:10]].mean() > per_token.mean() + 0.2

# %% [markdown]
# To say nothing beats nearly everything in the sum: the teacher almost never does it, but almost
# never is still likelier than any particular twenty tokens. The mean is best for smooth text, much
# above what the teacher's own text has on average. Either way the reward asks for something else
# than to write like the teacher.
#
# ## 4. Three runs of KD-GRPO
#
# The engine is [07_grpo](07_grpo.ipynb) with this reward; the ratio, the clip and the group's
# baseline are the same code. No penalty to a reference here, so that the reward is alone.

# %%
print(inspect.getsource(kd_grpo_engine.kd_grpo_loss))

# %%
config = KDGRPOConfig(
    steps=20, prompts_per_step=8, group_size=8, lr=1e-3, warmup=3, minibatches=2, kl_coef=0.0,
    pretraining_coef=0.0, pretraining_batch_size=16, device="cpu", eval_every=1000,
)  # fmt: skip


def distil(config, engine=kd_grpo_engine) -> tuple[GPT, list[dict]]:
    """A copy of the student after the run, and the run's metrics."""
    policy, log = copy.deepcopy(student), MetricLog(config.steps)
    reward = engine.teacher_reward(config, teacher)
    rows = engine.train(config, policy, tokenizer, reward, train_prompts, log, corpus=corpus)
    return policy, rows


forms = {
    "sum of log p": distil(dataclasses.replace(config, teacher_reward="sum")),
    "mean of log p": distil(dataclasses.replace(config, teacher_reward="mean")),
    "log p / q": distil(config),
}

# %%
panels = {
    "reward": "its own reward, rescaled to 0..1",
    "reverse_kl": "KL to the teacher (nats per response)",
    "entropy": "entropy (nats per token)",
    "response_length": "length (tokens)",
}
colors = {"sum of log p": "tab:red", "mean of log p": "tab:orange", "log p / q": "tab:blue"}
figure, axes = plt.subplots(1, 4, figsize=(14, 3.4), layout="constrained")
for axis, (key, label) in zip(axes, panels.items(), strict=True):
    for name, (_, rows) in forms.items():
        values = running_mean([row[key] for row in rows], 4)
        if key == "reward":
            low, high = min(values), max(values)
            values = [(value - low) / (high - low) for value in values]
        axis.plot(range(1, len(values) + 1), values, color=colors[name], label=name)
    axis.set(xlabel="step (rollout batch)", ylabel=label)
axes[1].set_ylim(0, None)
axes[0].legend()
plt.show()

# %%
after = {name: measure(policy) for name, (policy, _) in forms.items()}
everything = {"start": start["student"], **after, "the teacher": start["teacher"]}
print(format_table(columns, [[name, *(m[k] for k in keys)] for name, m in everything.items()]))
for name, (policy, _) in forms.items():
    shown = sample_rollout(policy, tokenizer, validation[:3], params, 1, make_generator(4, "show"))
    print(f"\n{name}")
    for text in shown.responses:
        print("  ", repr(text))

kl = {name: m["reverse_kl_full"] for name, m in everything.items()}
assert (
    kl["log p / q"] < kl["start"] - 1
    and min(kl["sum of log p"], kl["mean of log p"]) > kl["start"] + 1
)
assert after["sum of log p"]["response_length"] < 0.5 * start["student"]["response_length"]
assert forms["mean of log p"][1][-1]["entropy"] < 0.5 * forms["log p / q"][1][-1]["entropy"]
assert after["log p / q"]["gold"] > start["student"]["gold"] + 0.05

# %% [markdown]
# All three runs succeed, by their own reward. The sum of $\log p$ ends in silence. The mean keeps
# the length and gives up the variety. Both are *further* from the teacher than before the training.
# With $-\log q$ in the reward the distance falls, and what the teacher is good at comes along,
# although no run has seen the gold reward. (So with `--teacher-reward mean` or `sum` the
# `reward` alone says little; `reverse_kl`, `entropy` and `response_length` are logged beside it.)
#
# A penalty to the *reference* is no replacement. It slows the collapse down, by holding on to where
# the student came from; the reverse KL holds on to where it should go.
#
# ## 5. KD-PPO: at every token, or all at the end
#
# A reward model judges a finished response, so PPO puts its score at the last token. The teacher
# judges every token, so each can have its own part:
#
# $$r_t = \log \frac{p(y_t)}{q(y_t)} - \beta \log \frac{q(y_t)}{\pi_{ref}(y_t)} \quad
# \text{(dense)} \qquad \text{or} \qquad r_t = [t = L - 1] \sum_u \log \frac{p(y_u)}{q(y_u)} -
# \beta \log \frac{q(y_t)}{\pi_{ref}(y_t)} \quad \text{(terminal)}$$
#
# The sum is the same. What differs is what a token is praised and blamed for: dense, only for what
# comes from there on.

# %%
print(inspect.getsource(kd_token_rewards))

# %%
parts = teacher_rewards(p, q, mask, reverse_kl=True)  # (N, T)
scores = row_sums(parts, mask)
rewards = {
    "dense": kd_token_rewards(scores, parts, q, None, mask, kl_coef=0.0),
    "terminal": kd_token_rewards(scores, None, q, None, mask, kl_coef=0.0),
}
assert torch.equal(rewards["terminal"], at_last_token(scores, mask))
assert torch.allclose(rewards["dense"].sum(1), rewards["terminal"].sum(1), atol=1e-4)
to_go = {name: discounted_returns(r, mask, 1.0) for name, r in rewards.items()}

figure, axes = plt.subplots(1, 2, figsize=(12, 3.0), layout="constrained")
for axis, (name, values) in zip(axes, to_go.items(), strict=True):
    shown = torch.where(mask, values, torch.nan)[:14, :30]
    image = axis.imshow(shown, cmap="RdBu", vmin=-10, vmax=10, aspect="auto")
    axis.set(xlabel="token", ylabel="response", title=f"{name}: reward from here on (nats)")
figure.colorbar(image, ax=axes)
plt.show()

# %% [markdown]
# Both are right on average: a token's past rewards do not depend on it, so leaving them out changes
# no expectation. They are noise, and without them the gradient is less noisy. The same 256
# responses, cut into 16 batches of 16: mean and variance of the 16 gradients.


# %%
def batch_gradients(values: torch.Tensor) -> torch.Tensor:
    """Policy gradients of 16 batches with these rewards to go, less their mean: (16, weights)."""
    advantages, gradients = values - values[mask].mean(), []
    for index in torch.arange(256).view(16, 16):
        rows = rollout.sequences.rows(index)
        loss = policy_gradient(token_log_probs(student, rows), advantages[index])
        student.zero_grad()
        sequence_sum(loss, rows.response_mask).backward()
        gradients.append(torch.cat([w.grad.flatten() for w in student.parameters()]))
    return torch.stack(gradients)


variance, signal = {}, {}
for name, values in to_go.items():
    g = batch_gradients(values)
    variance[name] = float((g - g.mean(0)).square().sum(1).mean()) * 16 / 15
    signal[name] = float(g.mean(0).square().sum()) - variance[name] / 16  # the noise taken out
    print(f"{name:9} squared length of the gradient {signal[name]:5.0f}, "
          f"variance of a batch of 16 {variance[name]:5.0f}")  # fmt: skip
assert variance["dense"] < 0.8 * variance["terminal"]
assert 0.6 < signal["dense"] / signal["terminal"] < 1.7

# %% [markdown]
# About the same gradient, with less variance: the batch would have to be that much larger to make up
# for it. (A perfect critic would see in the prefix what has been lost already, and take the
# difference away. It has to learn that first.) `--placement terminal` is there for comparison, and
# for rewards that cannot be taken apart.
#
# ## 6. The loss on pre-training text, and the bonus that does nothing
#
# A student that follows a teacher on a few prompts forgets the rest. PPO-ptx and MiniLLM therefore
# go on with pre-training beside the RL, as a second loss (MiniLLM, section 2.2):
#
# $$L = L_{policy} + \lambda L_{PT}, \qquad L_{PT} = - \frac{1}{|D|} \sum_{d \in D} \log q(d)$$
#
# a mean over the tokens $d$ of some text $D$, fresh in every optimizer step. It is tempting to put it
# into the *reward* instead: $R_i \leftarrow R_i - \lambda L_{PT}$. But then it is a number, the same
# for every response of the batch, and that is what baselines are made to remove. The group's mean
# takes it away; so does the mean of the whitening behind GAE, at $\gamma = \lambda_{GAE} = 1$ exactly:

# %%
L_PT = held_out_loss(student, [corpus.batch(7)])
values = torch.zeros_like(q)  # a critic of zeros
by_bonus = []
for bonus in (0.0, -5 * L_PT):
    token_rewards = kd_token_rewards(scores, parts, q, None, mask, kl_coef=0.0, bonus=bonus)
    advantages, _ = gae(token_rewards, values, mask, 1.0, 1.0)
    by_bonus.append((advantages, whiten(advantages, mask)))
    first, whitened = ([round(x, 3) for x in A[0, :4].tolist()] for A in by_bonus[-1])
    print(f"bonus {bonus:6.2f}: first advantages {first}, whitened {whitened}")
(raw, white), (raw_bonus, white_bonus) = by_bonus
assert torch.allclose((raw_bonus - raw)[mask], torch.tensor(-5 * L_PT), atol=1e-4)
assert torch.allclose(white, white_bonus, atol=1e-4)

# %% [markdown]
# And no gradient of $L_{PT}$ can reach the weights through a number that was computed without one.
# The engine offers the bonus in order to show this, and says so:

# %%
ppo = KDPPOConfig(
    steps=14, prompts_per_step=32, lr=1e-3, critic_lr=1e-3, warmup=3, minibatches=2,
    updates_per_batch=1, kl_coef=0.0, pretraining_batch_size=16, device="cpu", eval_every=1000,
    teacher_reward="sum", placement="terminal", pretraining_coef=1.0,
)  # fmt: skip
modes = {"PPO": dict(pretraining_coef=0.0), "PPO + bonus": dict(pt_mode="reward_bonus"),
         "PPO + loss": dict(pt_mode="loss")}  # fmt: skip
held = {"start": start["student"]["held_out"]}
for name, changes in modes.items():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        policy, _ = distil(dataclasses.replace(ppo, **changes), kd_ppo_engine)
    held[name] = held_out_loss(policy, held_out)
    print(f"{name:11} held-out loss {held[name]:.2f} (start {held['start']:.2f})")
    for warning in said:
        print("            the engine warns:", str(warning.message)[:76], "...")
held["GRPO"] = after["mean of log p"]["held_out"]
with_text = dataclasses.replace(config, teacher_reward="mean", pretraining_coef=1.0)
held["GRPO + loss"] = held_out_loss(distil(with_text)[0], held_out)
low = held["start"] + 0.07
assert max(held["PPO + loss"], held["GRPO + loss"]) < low
assert min(held["PPO"], held["PPO + bonus"], held["GRPO"]) > low + 0.05

# %%
figure, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
shades = ["tab:gray", "tab:red", "tab:red", "tab:green", "tab:red", "tab:green"]
axis.bar(list(held), [torch.tensor(x).exp().item() for x in held.values()], color=shades)
axis.axhline(float(torch.tensor(held["start"]).exp()), color="black", linestyle="--", linewidth=1)
axis.set(xlabel="run (PPO: sum of log p, GRPO: mean of log p)", ylabel="perplexity")
axis.set_title("Held-out text: the loss protects it, the bonus does not")
plt.show()

# %% [markdown]
# As a loss it keeps the perplexity where it was, also under a reward that would ruin it; as a bonus
# it protects nothing: the two runs end equally high. (They are not the same run, because the exact
# cancellation above needs $\lambda_{GAE} = 1$. The engine's default is 0.95, and its critic starts
# without knowing of the bonus. Until it has learned it, tokens near the end are blamed more than the
# others, as exercise 2 shows: a disturbance, no protection.)
#
# The loss is not free: it pulls towards the ordinary text, away from the teacher, in proportion to
# $\lambda$. And it hides a bad reward rather than mend it.
#
# **What this page left out.** The student was small, the teacher no larger, the runs short and with
# one seed. A sampled reverse KL has noise that MiniLLM takes away by summing the first step over
# the vocabulary: [19_minillm_and_distillation](19_minillm_and_distillation.ipynb). Gemma 3's
# distillation ([arXiv:2503.19786](https://arxiv.org/abs/2503.19786), section 2.2), often named in
# this company, is no reward at all: it is a cross-entropy with the teacher's sampled logits.
#
# ## Exercise
#
# 1. With the *mean* of $\log p / q$ as the reward, the teacher is still where the policy gradient
#    vanishes. Why? Is it still the maximum of the expected reward?
# 2. At $\gamma = 1$ and $\lambda_{GAE} = 0.95$, by how much does a bonus $c$ at the last token
#    change the advantage of token $t$, with a critic of zeros? What would the critic have to learn?
# 3. Put the bonus at *every* token. What does it do then?
#
# <details>
# <summary>Answer</summary>
#
# 1. Where $q = p$ every reward is 0, so every advantage is 0. But it is not the maximum: responses
#    of different lengths have different weights, and $E_q[\frac1L \log p/q]$ is larger than 0 for
#    $q \propto p \, e^{cL}$ with the right small $c > 0$. The policy gradient never sees it, because
#    it treats the reward as a constant, and the reward contains $q$; only for the sum does that
#    make no difference, $E_q[\nabla \log q] = 0$.
# 2. $c \, (\gamma \lambda)^{L-1-t}$: tokens near the end get more of it. A critic that adds $c$ to
#    the value of every state takes it away again, so it disturbs until the critic has learned it,
#    and does nothing after that.
# 3. The advantage of token $t$ changes by $c \, (L - t)$: with the negative $c$ of
#    $-\lambda L_{PT}$ a penalty on length. Not the same number for every token, so no baseline
#    removes it; and nothing that anyone wanted.
#
# </details>
