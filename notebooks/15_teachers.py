# %% [markdown]
# # 15. Teachers
#
# **The question.** A large model answers well and costs much. How does a small one learn from it?
#
# **After this page you can** say which KL a student should lower, why the teacher's log-probability alone
# makes it short or monotonous, split the gradient of the reverse KL into a token's own part and what
# follows, and choose between a teacher as reward, as loss and as judge of every token.
#
# **Why.** A reward model has to be trained on somebody's preferences. A better language model is a judge
# that exists already, because it gives a probability to every token of every text. There are three
# ways to use it while the *student* writes: as the reward of a known engine, as the loss of MiniLLM (Gu et
# al. 2024, [arXiv:2306.08543](https://arxiv.org/abs/2306.08543)), and token by token, which the field calls
# on-policy distillation. In its plainest form, $\log \pi_T$ as the reward, it goes wrong, and the reward
# curve does not show it.
#
# | section | question | code |
# | --- | --- | --- |
# | 1 | which of the two KL divergences should fall? | `kl` |
# | 2 | what does the teacher say, token by token? | `teacher_rewards` |
# | 3 | which answer is best under $\log \pi_T$ alone? | `masked_sum`, `masked_mean` |
# | 4 | three rewards, one of which works | [rl/kd_grpo_engine.py](../rl/kd_grpo_engine.py) |
# | 5 | what does a sum of token KLs leave out? | [rl/minillm_engine.py](../rl/minillm_engine.py) |
# | 6 | the three ways from one start | `distil` |
#
# The student is the policy, so it is $\pi$ as on all pages, and $\pi_T$ is the teacher. (MiniLLM's paper
# and the docstrings of the engines call the teacher $p$ and the student $q$.)
#
# Distillation began the other way round: Hinton et al. 2015
# ([arXiv:1503.02531](https://arxiv.org/abs/1503.02531)) let the student copy all probabilities of the
# teacher on given examples, which is the forward KL. That the student writes at least a part and the
# teacher says what should come next goes back to 2020 or before (Lin et al.,
# [arXiv:2009.07253](https://arxiv.org/abs/2009.07253)).
#
# **You need** [05_what_a_kl_is](05_what_a_kl_is.ipynb) (the two directions),
# [04_policy_gradients_and_baselines](04_policy_gradients_and_baselines.ipynb) and [07_grpo](07_grpo.ipynb).
#
# **It takes** less than a minute on one CPU core, after start-up.

# %%
import copy
import dataclasses
import itertools
import math

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

from data.collate import collate_responses
from data.worlds import reviews
from gpt import finetuning
from gpt.corpus import encode_record
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs, token_scores, token_scores_and_kl
from gpt.model import GPT, GPTConfig
from harness.metric_log import MetricLog
from harness.seeds import make_generator
from harness.tensors import masked_mean, masked_sum
from report.tokens import show_tokens

# %%
from rl import kd_grpo_engine, minillm_engine, on_policy_distillation_engine
from rl.batches.rollout import sample_rollout
from rl.equations.token_rewards import teacher_rewards
from rl.kd_grpo_engine import KDGRPOConfig
from rl.loop import Run
from rl.minillm_engine import MiniLLMConfig
from rl.on_policy_distillation_engine import OnPolicyDistillationConfig
from rl.rewards.reward import RuleReward
from rl.run.evaluation import evaluate

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
student, tokenizer = saved_models.base()
train_prompts, validation = reviews.prompts("train"), reviews.prompts("validation")[:96]
params = SamplingParams(temperature=1.0, max_new_tokens=40)

# %% [markdown]
# ## 1. The smallest example: how a review begins
#
# $$\mathrm{KL}(\pi_T \parallel \pi) = \sum_v \pi_T(v) \log \frac{\pi_T(v)}{\pi(v)} \qquad
# \mathrm{KL}(\pi \parallel \pi_T) = \sum_v \pi(v) \log \frac{\pi(v)}{\pi_T(v)}$$
#
# The first is the forward one and the second the reverse. Both are 0 for $\pi = \pi_T$. They differ in
# what they do to a student that *cannot* be the teacher. In this section the teacher is the course's base
# model, because it knows many ways to begin. The first two words of its reviews, for one prompt:

# %%
record = train_prompts[2]
start = torch.tensor([tokenizer.encode(record.prompt)])
with torch.no_grad():
    first = student(start)[0, -1].softmax(-1).topk(6)
    second = student(torch.cat([start.repeat(6, 1), first.indices[:, None]], 1))[:, -1].softmax(-1)
columns = second.argmax(1).unique()  # the likeliest second words
joint = first.values[:, None] * second[:, columns]
pi_T = joint / joint.sum()  # (6, columns): what the teacher says, of these alone
FIRST = [tokenizer.decode([i]) for i in first.indices.tolist()]
SECOND = [tokenizer.decode([i]) for i in columns.tolist()]
print(record.prompt.strip())
print(f"these {pi_T.numel()} pairs are {joint.sum():.0%} of all that the teacher may begin with")

# %% [markdown]
# The student is too small: it has no memory. It chooses the second word without knowing the first, so
# $\pi(a, b) = \pi_1(a) \, \pi_2(b)$. **Predict, then run:** what will it say if it lowers the forward KL?
# And the reverse one?


# %%
def kl(one: Tensor, other: Tensor) -> Tensor:
    return (one * (one.clamp(min=1e-30) / other.clamp(min=1e-30)).log()).sum()


def fitted(direction: str, seed: int) -> Tensor:
    """The student that lowers one KL, from a random start."""
    generator = make_generator(seed, "student")
    logits = [torch.randn(n, generator=generator).requires_grad_() for n in pi_T.shape]
    optimizer = torch.optim.Adam(logits, lr=0.1)
    for _ in range(400):
        pi = torch.outer(*(part.softmax(0) for part in logits))
        loss = kl(pi_T, pi) if direction == "forward" else kl(pi, pi_T)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return pi.detach()


cover = fitted("forward", 0)
seek = min((fitted("reverse", seed) for seed in range(4)), key=lambda pi: float(kl(pi, pi_T)))
torch.testing.assert_close(
    cover, torch.outer(pi_T.sum(1), pi_T.sum(0)), atol=1e-3, rtol=0
)  # marginals

# %% tags=["hide-input"]
figure, axes = plots.panels(3, width=13, height=3.6)
for axis, says, title in (
    (axes[0], pi_T, "the teacher"),
    (axes[1], cover, "least forward KL(teacher || student): covers"),
    (axes[2], seek, "least reverse KL(student || teacher): seeks"),
):
    plots.heat(
        says, FIRST, SECOND, axis=axis, title=title, xlabel="second word", ylabel="first word"
    )
    axis.label_outer()
plt.show()
nonsense = pi_T < 0.002  # what the teacher would hardly ever say
for name, pi in (("forward", cover), ("reverse", seek)):
    print(f"{name}: {pi[nonsense].sum():.0%} of the student's text is nonsense to the teacher, and "
          f"{pi_T[pi > 0.01].sum():.0%} of the teacher's text can still come")  # fmt: skip
holds(
    cover[nonsense].sum() > 0.4 and seek[nonsense].sum() < 0.05,
    "covering says nonsense, and seeking does not",
)

# %% [markdown]
# The forward KL is large where the student gives little to something that the teacher says. So it
# *covers* all beginnings, and also says "Who find" and "Not cares". The reverse KL is large where
# the student says what the teacher never would. So it *seeks*: it keeps the two greetings, which
# share their second word, and gives all other beginnings up. For text, what lies between two good
# answers is a bad answer. That is MiniLLM's argument for the reverse direction.
#
# ## 2. What the teacher says, token by token
#
# Now the student is the course's base model, and the teacher is the same model, fine-tuned for a few
# seconds on the better reviews of the world. Usually the teacher is a larger model. Here the student
# *can* become its teacher, so the distance has a true zero. They must share the tokenizer: a
# log-probability of tokens means nothing to a model that cuts the text differently.

# %%
documents = reviews.corpus(3000, seed=5)
good = [d for d in documents if reviews.gold_reward(d, d.response, True) >= 0.7]
teacher = copy.deepcopy(student)
finetuning.train(
    finetuning.FinetuningConfig(batch_size=16, lr=1e-3, warmup_steps=5, eval_every=60, device="cpu"),
    teacher, [encode_record(d, tokenizer) for d in good], [], MetricLog(60),
    eos_id=tokenizer.eos_id,
)  # fmt: skip
teacher.eval().requires_grad_(False)
print(f"{len(good)} of {len(documents)} documents teach the teacher")

# %% [markdown]
# There are two candidates for the reward of a token that the student has written:
#
# $$r_t = \log \pi_T(y_t \mid x, y_{\lt t}) \qquad \text{or} \qquad
# r_t = \log \frac{\pi_T(y_t \mid x, y_{\lt t})}{\pi(y_t \mid x, y_{\lt t})}$$
#
# In code, with numbers that can be checked by hand: the student has written two tokens with
# probability 0.5 each. The teacher finds the first as likely, the second ten times less likely.

# %%
mask = torch.tensor([[True, True]])
pi, pi_T = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.5, 0.05]])  # of the two tokens

plain, less_own = pi_T.log() * mask, (pi_T / pi).log() * mask

print("log pi_T     ", [round(x, 3) for x in plain[0].tolist()])
own = [round(x, 3) for x in less_own[0].tolist()]
print("log pi_T / pi", own, f" (log 0.1 = {math.log(0.1):.3f})")
constants = pi_T.log(), pi.log(), mask
torch.testing.assert_close(plain, teacher_rewards(*constants, reverse_kl=False))
torch.testing.assert_close(less_own, teacher_rewards(*constants, reverse_kl=True))
plots.code(teacher_rewards, docstring=False)

# %% [markdown]
# Now the same on text that the student has really written. The view opens with the teacher's
# $\log \pi_T$: there every choice of a word costs something, even the teacher's own favourites. Press
# `log teacher / student`. Blue: the
# teacher finds the token likelier than the student does. Orange: less likely. Nearly half of the tokens
# are forced by the ones before them, so their ratio's logarithm is near 0. What counts are the others,
# which are a choice.

# %%
judge = kd_grpo_engine.teacher_reward(KDGRPOConfig(device="cpu"), teacher)  # log pi_T / pi, summed
noise = make_generator(2, "noise")
rollout = sample_rollout(student, tokenizer, train_prompts[:128], params, 1, noise)
mask, of_student = rollout.response_mask, rollout.log_probs  # (N, T), as it was sampled
of_teacher = judge.log_probs(rollout)  # (N, T)
parts = teacher_rewards(of_teacher, of_student, mask, reverse_kl=True)
texts = [
    ["(EOS)" if t == tokenizer.eos_id else tokenizer.decode([t]) for t in row[keep].tolist()]
    for row, keep in zip(rollout.response_tokens[:6], mask[:6], strict=True)
]
views = {
    "log teacher": of_teacher, "log teacher / student": parts, "log student": of_student,
}  # fmt: skip
asked = [record.prompt.strip() for record in rollout.records[:6]]
show_tokens(texts, {name: view[:6] for name, view in views.items()}, prompts=asked)

# %% [markdown]
# Add $\log \pi_T / \pi$ up over a response that $\pi$ has written. The mean of this sum is
# $-\mathrm{KL}(\pi \parallel \pi_T)$, minus the reverse KL. So it is largest, 0, where the student is the
# teacher. The second line below measures the same KL on other samples and with less noise:

# %%
per_response = masked_sum(parts, mask)  # (N,)
exact = evaluate(student, tokenizer, train_prompts[:128], params, judge).reverse_kl_full
mean, error = per_response.mean(), per_response.std() / len(per_response) ** 0.5
print(f"mean reward of {len(mask)} responses {mean:.2f} +- {error:.2f}")
print(f"minus the KL, summed over the vocabulary: {-exact.mean():.2f}")
holds(
    abs(mean + exact.mean()) < 4 * (error + exact.std() / 11),
    "the mean of log pi_T / pi is minus the reverse KL",
)

# %% [markdown]
# ## 3. $\log \pi_T$ alone asks for little, or for always the same
#
# **Which answer is the best?** $\log \pi_T$ alone has no term for variety. Its expectation is largest if
# the student writes *one* response, the best one, always. **Predict, then run:** which one is that
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
    log_pi_T_empty = float(token_log_probs(teacher, empty).sum())
total = masked_sum(drawn.log_probs, drawn.response_mask)
per_token = masked_mean(drawn.log_probs, drawn.response_mask)
rows = [["nothing", "", 1, log_pi_T_empty, log_pi_T_empty]]
for name, i in [("best sum", total.argmax()), ("best mean", per_token.argmax()),
                ("median", total.argsort()[100]), ("worst sum", total.argmin())]:  # fmt: skip
    text = drawn.responses[i]
    text = text[:60] + "..." * (len(text) > 60)
    rows.append([name, text, int(drawn.lengths[i]), float(total[i]), float(per_token[i])])
print(record.prompt.strip())
plots.table(["", "response", "tokens", "sum of log pi_T", "mean of log pi_T"], rows)

# %%
correlation = torch.corrcoef(torch.stack([drawn.lengths.float(), total]))[0, 1]
beaten = float((total < log_pi_T_empty).float().mean())
print(f"correlation of the sum with the length {correlation:.2f}")
print(f"nothing at all beats {beaten:.0%} of the drawn responses in the sum")
holds(
    correlation < -0.5 and beaten > 0.5,
    "in the sum, shorter is better, and nothing at all beats most responses",
)

# %% [markdown]
# By the sum the best of all is one short sentence, and saying nothing beats 87% of what the teacher itself
# has written. The teacher almost never says nothing, but one particular response of twenty tokens is rarer
# still. The mean is best for smooth text, made of the likeliest words. So neither form asks the student to
# write like the teacher.
#
# ## 4. As a reward: three runs of KD-GRPO
#
# The engine is [07_grpo](07_grpo.ipynb) with the teacher as the reward. Ratio, clip and the group's
# baseline are the same.

# %%
config = KDGRPOConfig(
    steps=14, prompts_per_step=6, group_size=8, lr=1e-3, warmup_steps=3, minibatches=2, kl_coef=0.0,
    pretraining_coef=0.0, max_new_tokens=40, device="cpu", eval_every=1000,
)  # fmt: skip
gold = RuleReward(reviews.gold_reward, "gold reward")


def measure(policy: GPT) -> dict[str, float]:
    """KL to the teacher, gold reward, length and entropy."""
    result = evaluate(policy, tokenizer, validation, params, judge, gold=gold)
    drawn = sample_rollout(policy, tokenizer, validation, params, 1, make_generator(4, "show"))
    with torch.no_grad():
        entropy = token_scores(policy, drawn.sequences).entropy[drawn.response_mask].mean()
    return result.summary() | {"entropy": float(entropy)}


def distil(config, train=kd_grpo_engine.train, reward=None) -> tuple[GPT, list[dict]]:
    """A copy of the student after the run, and the run's metrics."""
    policy, log = copy.deepcopy(student), MetricLog(config.steps)
    reward = reward or kd_grpo_engine.teacher_reward(config, teacher)
    run = Run(config, policy, tokenizer, reward, train_prompts, log)
    return policy, train(run)


# %% [markdown]
# **Predict, then run.** Three forms of the reward. All three runs will raise their own reward. Which of
# them brings the student nearer to the teacher?

# %%
forms = {
    "sum of log teacher": distil(dataclasses.replace(config, teacher_reward="sum")),
    "mean of log teacher": distil(dataclasses.replace(config, teacher_reward="mean")),
    "log teacher / student": distil(config),
}
STYLES = {
    "sum of log teacher": "bad",
    "mean of log teacher": "proxy",
    "log teacher / student": "policy",
}
figure, axes = plots.panels(4, width=14)
for axis, key, label in (
    (axes[0], "reward", "its own reward,\nrescaled to 0..1"),
    (axes[1], "reverse_kl", "KL to the teacher\n(nats per response)"),
    (axes[2], "entropy", "entropy\n(nats per token)"),
    (axes[3], "response_length", "length (tokens)"),
):
    series = {}
    for name, (_, rows) in forms.items():
        values = [row[key] for row in rows]
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
keys = ("reverse_kl_full", "entropy", "gold", "response_length")
columns = ["", "KL to the teacher", "entropy", "gold", "length"]
rows = [[name, *(f"{m[k]:.2f}" for k in keys)] for name, m in (start | after).items()]
plots.table(columns, rows)
for name, (policy, _) in forms.items():
    shown = sample_rollout(policy, tokenizer, validation[:3], params, 1, make_generator(4, "show"))
    print(f"\n{name}")
    for text in shown.responses:
        print("  ", repr(text))

was, far = start["the student"], {name: m["reverse_kl_full"] for name, m in (start | after).items()}
holds(far["log teacher / student"] < far["the student"] - 0.5, "the ratio brings it nearer")
holds(
    min(far["sum of log teacher"], far["mean of log teacher"]) > far["the student"],
    "the teacher's log-probability alone leads away",
)
holds(
    after["sum of log teacher"]["response_length"] < 0.75 * was["response_length"],
    "the sum shortens",
)
holds(
    after["mean of log teacher"]["entropy"] < 0.5 * was["entropy"],
    "with the mean less than half of the entropy is left",
)
holds(after["log teacher / student"]["gold"] > was["gold"] + 0.03, "gold rises with the ratio")

# %% [markdown]
# In these runs, one of each, both forms of $\log \pi_T$ alone succeed, by their own reward (left). The sum
# ends in a word or one short sentence. The mean keeps the length and gives up the variety: its entropy
# falls to less than half. Both end further from the teacher than they began. With $-\log \pi$ in the reward
# the distance falls. The gold reward rises too, although no run has seen it: the student takes over what
# its teacher is good at. (Gold alone does not show who copies the teacher: here it rises with the mean of
# $\log \pi_T$ as well.)
#
# A KL penalty to the *reference* ([07](07_grpo.ipynb)) cannot replace $-\log \pi$. It holds on to where
# the student came from; the reverse KL points to where the student should go.
#
# (PPO can give each token its own part of the reward instead of the sum at the end: `rl.kd_ppo_engine`.
# The sum is the same, and a token's reward to go usually has less noise.)
#
# ## 5. As a loss: MiniLLM, and what a sum of token KLs leaves out
#
# The reverse KL asks what *the student* says, so the student writes:
#
# $$\mathrm{KL}(\pi \parallel \pi_T) = E_{y \sim \pi} \sum_t \mathrm{KL} \left( \pi(\cdot \mid s_t)
# \parallel \pi_T(\cdot \mid s_t) \right)$$
#
# The two sides have the same value. But differentiate the right-hand side with the text held fixed,
# and the gradient is not that of the left: a token also decides which states come after it. MiniLLM
# (Eqs. 2 and 3) splits the gradient exactly. With $r_t = \log \pi_T(y_t) / \pi(y_t)$ and $R_t = \sum_{u \ge
# t} r_u$,
#
# $$\nabla \, \mathrm{KL}(\pi \parallel \pi_T) = \underbrace{E_{y \sim \pi} \sum_t \nabla \, \mathrm{KL}
# \left( \pi(\cdot \mid s_t) \parallel \pi_T(\cdot \mid s_t) \right)}_{\text{Single}} \;
# \underbrace{- \, E_{y \sim \pi} \sum_t R_{t+1} \nabla \log \pi(y_t \mid s_t)}_{\text{Long}}$$
#
# Long is a policy gradient whose reward is the teacher. $R_{t+1}$ begins *after* token $t$, because the
# token's own reward is in Single already, summed over the whole vocabulary and so without noise.
#
# To check it, we list every response of a tiny language: tokens 1 and 2, EOS = 0, at most three tokens,
# 15 responses. A sum over all of them replaces sampling.

# %%
ended = [(*begin, 0) for n in range(3) for begin in itertools.product((1, 2), repeat=n)]
responses = ended + list(itertools.product((1, 2), repeat=3))
language = collate_responses([[1, 2]] * 15, responses, eos_id=0)


def tiny_gpt(seed: int) -> GPT:
    """One layer with random weights, in float64."""
    model = GPT(GPTConfig(vocab_size=3, context=8, n_layer=1, n_head=1, n_embd=6)).double().eval()
    for parameter in model.parameters():
        generator = make_generator(seed, str(tuple(parameter.shape)))
        parameter.data = torch.randn(parameter.shape, generator=generator).double() / 2
    return model


tiny_student, tiny_teacher = tiny_gpt(0), tiny_gpt(1)
log_pi = token_log_probs(tiny_student, language)  # (15, 3), with gradient
log_pi_T = token_log_probs(tiny_teacher, language).detach()
pi, pi_T = log_pi.sum(1).exp(), log_pi_T.sum(1).exp()  # probabilities of the 15 responses
assert torch.isclose(pi.sum(), torch.ones(()).double()) and torch.isclose(pi_T.sum(), pi.sum())


# %%
def gradient(loss: Tensor) -> Tensor:
    """With respect to the tiny student's weights, as one vector."""
    parts = torch.autograd.grad(loss, list(tiny_student.parameters()), retain_graph=True)
    return torch.cat([part.flatten() for part in parts])


with torch.no_grad():
    rewards = log_pi_T - log_pi  # r_t, (15, 3), 0 at padding
    after = rewards.flip(1).cumsum(1).flip(1) - rewards  # R_{t+1}
chance = pi.detach()[:, None]  # each response with its share of the student's text
# the KL of every token's choice, student || teacher
_, token_kl = token_scores_and_kl(tiny_student, tiny_teacher, language)

single = gradient((chance * token_kl).sum())
long = gradient((chance * -after * log_pi).sum())
exact = gradient((pi * (log_pi.sum(1) - log_pi_T.sum(1))).sum())  # of the reverse KL, by definition
twice = gradient((chance * (token_kl - (after + rewards) * log_pi)).sum())
for name, found in (("Single + Long", single + long), ("Single alone", single),
                    ("own reward in Long as well", twice)):  # fmt: skip
    print(f"{name:27} largest error of the gradient {(found - exact).abs().max():.1e}")
assert torch.allclose(single + long, exact, atol=1e-12)
assert (single - exact).abs().max() > 1e-3 and (twice - exact).abs().max() > 1e-3

# %% [markdown]
# MiniLLM takes both parts (Gu et al. 2024, [arXiv:2306.08543](https://arxiv.org/abs/2306.08543)), with
# three additions: the clip of PPO, the *mean* of the rewards that follow instead of their sum, and a
# sampler that mixes a little of the teacher into the student and weighs each token for it.
#
# **On-policy distillation** takes Single and nothing else (Agarwal et al. 2024,
# [arXiv:2306.13649](https://arxiv.org/abs/2306.13649)): the teacher judges every token that the student
# writes, and no reward is passed back. With one sampled token instead of the sum over the vocabulary, its
# advantage is $A_t = \log \pi_T(y_t) / \pi(y_t)$ alone. That is wrong for the KL of whole answers, as the
# second line of the check shows, and it has more noise than the sum over the vocabulary. But it has less
# than with the rewards that follow, it needs one number of the teacher for a token, and it is widely
# used. With `--teacher self` the teacher is the student itself, shown a right answer (SDPO,
# [arXiv:2601.20802](https://arxiv.org/abs/2601.20802)). A step of KD-GRPO
# ([nano/kd_grpo.py](../nano/kd_grpo.py)), and what on-policy distillation changes:

# %%
plots.neighbours("kd_grpo", "on_policy_distillation")

# %% [markdown]
# ## 6. The three ways from one start
#
# **Predict, then run.** All three write 48 answers a step, for ten steps. KD-GRPO has one number for an
# answer, MiniLLM a token's own KL and what follows it, on-policy distillation a token's own KL alone.
# Which one comes nearest to the teacher?

# %%
shared = dict(
    steps=10, lr=1e-3, warmup_steps=2, minibatches=2, max_new_tokens=40, micro_batch_size=48, kl_coef=0.0,
    device="cpu", eval_every=1000,
)  # fmt: skip
alone = shared | dict(prompts_per_step=48, group_size=1)
of_minillm = MiniLLMConfig(updates_per_batch=1, pretraining_coef=0.0, **alone)
of_tokens = OnPolicyDistillationConfig(divergence="full", **alone)
ways = {
    "KD-GRPO": distil(
        KDGRPOConfig(prompts_per_step=6, group_size=8, pretraining_coef=0.0, **shared)
    ),
    "MiniLLM": distil(of_minillm, minillm_engine.train, judge),
    "on-policy": distil(of_tokens, on_policy_distillation_engine.train, judge),
}

# %%
after = start | {name: measure(policy) for name, (policy, _) in ways.items()}
plots.table(columns, [[name, *(f"{m[k]:.2f}" for k in keys)] for name, m in after.items()])
removed = {name: 1 - after[name]["reverse_kl_full"] / was["reverse_kl_full"] for name in ways}
plots.bars(
    removed, axis=plots.panels(1, width=6)[1], numbers=".2f", ylim=(0, 1),
    ylabel="share of the KL to the teacher\nthat is gone after ten steps", xlabel="way",
)  # fmt: skip
plt.show()
holds(min(removed.values()) > 0.15, "all three come nearer")
holds(
    min(removed["MiniLLM"], removed["on-policy"]) > removed["KD-GRPO"],
    "the two that judge every token come nearer than KD-GRPO",
)

# %% [markdown]
# Where each token is judged, nearly all of the KL is gone, and where the whole answer is, about a third.
# But at least three things differ between the two, apart from the divisors and the clip: how many
# verdicts there are (48 answers have hundreds of tokens); that a verdict is taken over the whole
# vocabulary, and not from the one token that was drawn; and that a step sees 48 prompts instead of six.
# This run cannot say which of them did it. Nor can it say what MiniLLM's Long part adds, because its clip
# and its sampler differ as well. These are single short runs; longer ones: [the
# archive](../docs/archive.md#distillation).
#
# **At full size**: `python scripts/make_teacher.py` once, then `python -m rl.kd_grpo_engine`,
# `rl.minillm_engine` or `rl.on_policy_distillation_engine`. On texts of the *teacher* the forward KL is
# the usual loss: `python -m rl.on_policy_distillation_engine --divergence forward`.
#
# ## 7. Exercises
#
# Fill in the functions and run the cells. `check` says in words what is right or wrong.
#
# **1.** A teacher of nine words, and three students, each of which can only be a *bell*: one middle, one
# width. One minimised the forward KL, one the reverse KL, and one took $\log \pi_T$ alone as its reward.
# Which one is the reverse KL's? (No solution is printed.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("which_student", MINE)

# %%
check_answer("which_student", ..., MINE)

# %% [markdown]
# **2.** Write the forward KL of rows of logits, (N,): the loss of classical distillation.


# %%
def my_distillation_loss(student_logits, teacher_logits):
    return ...  # your lines


check("distillation_loss", my_distillation_loss)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_distillation_loss(student_logits, teacher_logits):
#     log_pi, log_pi_T = student_logits.log_softmax(-1), teacher_logits.log_softmax(-1)
#     return (log_pi_T.exp() * (log_pi_T - log_pi)).sum(-1)
# ```
#
# </details>
#
# **To think about.** Somebody adds the loss on ordinary text to the *reward*, as a bonus that is the same
# number for every answer of the batch. What does GRPO learn from it?
#
# <details>
# <summary>Answer</summary>
#
# Nothing. The number was computed without a gradient, and the mean of the group removes it exactly. As
# a second *loss* it works.
#
# </details>
#
# **To read on.** MiniLLM ([arXiv:2306.08543](https://arxiv.org/abs/2306.08543)), because it derives the
# split of section 5; Agarwal et al. ([arXiv:2306.13649](https://arxiv.org/abs/2306.13649)), because they
# compare who writes the texts and which divergence falls, one at a time; and [the
# archive](../docs/archive.md#distillation), for longer runs.
#
# ## To remember
#
# - The teacher's log-probability needs the student's own taken off; alone it pays for shortness or for
#   sameness.
# - The reverse KL seeks: what the student says, the teacher must find likely.
# - Judging every token over the whole vocabulary brought the student nearer to the teacher than one number
#   for an answer did, from as many answers.
#
# Next: [16_single_model_grpo](16_single_model_grpo.ipynb), an experiment: what if the policy is its own
# reference?
