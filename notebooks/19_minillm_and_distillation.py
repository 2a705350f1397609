# %% [markdown]
# # 19. Distillation and MiniLLM
#
# **The question.** A large model answers well and costs much. How does a small one learn from it?
#
# **Why.** Both models give probabilities to the same tokens. So the teacher has more to offer than
# a grade for a whole response: a target for every token. Two choices make all the difference: whose
# text the student learns on, and which of the two KL divergences it lowers. At one end is
# imitation, at the other MiniLLM (Gu et al. 2024,
# [arXiv:2306.08543](https://arxiv.org/abs/2306.08543)), a policy gradient whose reward is the
# teacher.
#
# | method | text by | lowers | in this repository |
# | --- | --- | --- | --- |
# | forward KL (arXiv:1503.02531) | teacher | $\mathrm{KL}(p \parallel q)$ per token | `forward_kl` |
# | Gemma 3 (arXiv:2503.19786) | a corpus; here teacher | the same, on k sampled ids | `topk_ce` |
# | on-policy (arXiv:2306.13649) | student | $\mathrm{KL}(q \parallel p)$ per token | `reverse_kl` |
# | MiniLLM (arXiv:2306.08543) | both, mixed | $\mathrm{KL}(q \parallel p)$ of responses | an engine |
#
# $p$ is the teacher and $q$ the student, on all of this page. The first three are values of `--loss`
# of `gpt.distillation`; the last is [rl/minillm_engine.py](../rl/minillm_engine.py).
#
# **You need** [05_what_a_kl_is](05_what_a_kl_is.ipynb) (the two directions) and
# [04_policy_gradients_and_baselines](04_policy_gradients_and_baselines.ipynb).
# [18_knowledge_distillation_rewards](18_knowledge_distillation_rewards.ipynb) is the page before;
# section 8 shows the difference.
#
# **It takes** about half a minute on one CPU core, after start-up.

# %%
import copy
import itertools

import matplotlib.pyplot as plt
import torch
from course import plots, saved_models
from course.claims import holds
from course.exercises import check
from torch import Tensor

from data import reviews
from data.collate import collate_responses
from gpt import distillation
from gpt.distillation import DistillationConfig, forward_kl, measure, sampled_targets
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs, token_scores_and_kl
from gpt.model import GPT, GPTConfig
from harness.metric_log import MetricLog
from harness.report.tokens import show_tokens
from harness.seeds import make_generator

# %%
from rl import minillm_engine
from rl.batches.rollout import sample_rollout
from rl.equations.losses import length_normalized_returns, mixed_sampling_weights
from rl.minillm_engine import MiniLLMConfig, Targets, minillm_loss
from rl.rewards.teacher_reward import TeacherReward, teacher_log_probs

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
(base, tokenizer), (teacher, _) = saved_models.base(), saved_models.policy()
teacher = teacher.requires_grad_(False)
prompts = reviews.prompts("train")

# %% [markdown]
# ## 1. The smallest example: how a review begins
#
# $$\mathrm{KL}(p \parallel q) = \sum_v p(v) \log \frac{p(v)}{q(v)} \qquad
# \mathrm{KL}(q \parallel p) = \sum_v q(v) \log \frac{q(v)}{p(v)}$$
#
# Both are 0 for $q = p$. They differ in what they do to a student that *cannot* be the teacher. In
# this section the teacher is the course's base model, because it knows many ways to begin. The first
# two words of its reviews, for one prompt:

# %%
record = prompts[2]
start = torch.tensor([tokenizer.encode(record.prompt)])
with torch.no_grad():
    first = base(start)[0, -1].softmax(-1).topk(6)
    second = base(torch.cat([start.repeat(6, 1), first.indices[:, None]], 1))[:, -1].softmax(-1)
columns = second.argmax(1).unique()  # the likeliest second words
joint = first.values[:, None] * second[:, columns]
p = joint / joint.sum()  # (6, columns): what the teacher says, of these alone
FIRST = [tokenizer.decode([i]) for i in first.indices.tolist()]
SECOND = [tokenizer.decode([i]) for i in columns.tolist()]
print(record.prompt.strip())
print(f"these {p.numel()} pairs are {joint.sum():.0%} of all that the teacher may begin with")

# %% [markdown]
# The student is too small: it has no memory. It chooses the second word without knowing the first, so
# $q(a, b) = q_1(a) \, q_2(b)$. **Predict, then run:** what will it say if it lowers the forward KL? And
# the reverse one?


# %%
def kl(one: Tensor, other: Tensor) -> Tensor:
    return (one * (one.clamp(min=1e-30) / other.clamp(min=1e-30)).log()).sum()


def fitted(direction: str, seed: int) -> Tensor:
    """The student that lowers one KL, from a random start."""
    generator = make_generator(seed, "student")
    logits = [torch.randn(n, generator=generator).requires_grad_() for n in p.shape]
    optimizer = torch.optim.Adam(logits, lr=0.1)
    for _ in range(400):
        q = torch.outer(*(part.softmax(0) for part in logits))
        loss = kl(p, q) if direction == "forward" else kl(q, p)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return q.detach()


cover = fitted("forward", 0)
seek = min((fitted("reverse", seed) for seed in range(4)), key=lambda q: float(kl(q, p)))
torch.testing.assert_close(cover, torch.outer(p.sum(1), p.sum(0)), atol=1e-3, rtol=0)  # marginals

# %%
figure, axes = plots.panels(3, width=13, height=3.6)
for axis, q, title in (
    (axes[0], p, "the teacher p"),
    (axes[1], cover, "least forward KL(p || q): covers"),
    (axes[2], seek, "least reverse KL(q || p): seeks"),
):
    plots.heat(q, FIRST, SECOND, axis=axis, title=title, xlabel="second word", ylabel="first word")
    axis.label_outer()
plt.show()
nonsense = p < 0.002  # what the teacher would hardly ever say
for name, q in (("forward", cover), ("reverse", seek)):
    print(f"{name}: {q[nonsense].sum():.0%} of the student's text is nonsense to the teacher, and "
          f"{p[q > 0.01].sum():.0%} of the teacher's text can still come")  # fmt: skip
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
# ## 2. A student and a teacher
#
# Now the student is the base model. The teacher is the course's policy, the same model after GRPO. So
# this student *can* become its teacher, and the distance has a true zero. Usually the teacher is the
# larger one (`scripts/make_teacher.py`).


# %%
def value(model: GPT, count: int = 96) -> dict[str, float]:
    """Gold reward and distance to the teacher on prompts that no model has seen."""
    unseen = reviews.prompts("validation")[:count]
    return measure(model, teacher, tokenizer, unseen, 40, reviews.gold_reward)[0]


results = {"student before": value(base), "teacher": value(teacher)}
for name, numbers in results.items():
    print(f"{name:15} gold {numbers['gold']:.3f} +- {1.96 * numbers['gold_error']:.3f}", end="")
    print(f"   KL to the teacher {numbers['reverse_kl_full']:.2f} nats per response")
holds(
    results["teacher"]["gold"] > results["student before"]["gold"] + 0.1,
    "the teacher earns more gold than the student",
)
assert abs(results["teacher"]["reverse_kl_full"]) < 1e-4

# %% [markdown]
# The teacher against the student, on text of the *student*. The view opens with the KL, which says
# where the two distributions differ. Press `log p - log q`: blue tokens are likelier under the teacher,
# orange ones less likely.

# %%
params = SamplingParams(max_new_tokens=40)
rollout = sample_rollout(base, tokenizer, prompts[:6], params, 1, make_generator(3, "show"))
with torch.no_grad():
    scores, token_kl = token_scores_and_kl(base, teacher, rollout.sequences)
    judged = token_log_probs(teacher, rollout.sequences)
texts = [
    ["(EOS)" if t == tokenizer.eos_id else tokenizer.decode([t]) for t in row[keep].tolist()]
    for row, keep in zip(rollout.response_tokens, rollout.response_mask, strict=True)
]
show_tokens(
    texts, {"KL(q || p) at this place": token_kl, "log p - log q": judged - scores.log_probs},
    prompts=[record.prompt.strip() for record in rollout.records],
)  # fmt: skip

# %% [markdown]
# ## 3. Forward KL on the teacher's text
#
# $$L = \frac{1}{\sum_i L_i} \sum_{i,t} \mathrm{KL} \left( p(\cdot \mid s_{i,t}) \parallel
# q(\cdot \mid s_{i,t}) \right), \qquad y_i \sim p$$
#
# with the state $s_t = (x, y_{\lt t})$, the prompt and the tokens before $t$. The target is the
# teacher's whole distribution (Hinton et al. 2015), not the one token that it happened to say. Naively:

# %%
batch, row = rollout.sequences, torch.arange(6)[:, None]
with torch.no_grad():  # the logits that predict each response token: (N, T, V)
    log_q = base(batch.tokens)[row, batch.predicting_columns].log_softmax(-1)
    log_p = teacher(batch.tokens)[row, batch.predicting_columns].log_softmax(-1)
    naive = (log_p.exp() * (log_p - log_q)).sum(-1) * batch.response_mask
    library = forward_kl(base, teacher, batch)
print(f"{naive.sum(1).mean():.3f} nats per response, largest difference from the library's "
      f"{(naive - library).abs().max():.1e}")  # fmt: skip
torch.testing.assert_close(naive, library, atol=1e-4, rtol=1e-4)
plots.code(forward_kl, ("def divergence", "return kl_from_logits"))

# %% [markdown]
# (The library works in chunks, because the logits of a whole batch over a large vocabulary do not fit
# in memory.)
#
# Is a sum of token divergences a divergence of *responses*? For this direction on this text, exactly.
# To see it, we list every response of a tiny language: tokens 1 and 2, EOS = 0, at most three tokens,
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


q_model, p_model = tiny_gpt(0), tiny_gpt(1)
log_q = token_log_probs(q_model, language)  # (15, 3), with gradient
log_p = token_log_probs(p_model, language).detach()
q, p = log_q.sum(1).exp(), log_p.sum(1).exp()  # probabilities of the 15 responses
names = ["".join(".AB"[t] for t in r) for r in responses]  # the dot is the EOS
plots.bars({"teacher p": p, "student q": q}, names, axis=plots.panels(1, width=9)[1],
          styles={"teacher p": "teacher", "student q": "student"},
          xlabel="response", ylabel="probability")  # fmt: skip
plt.show()
assert torch.isclose(q.sum(), torch.ones(()).double()) and torch.isclose(p.sum(), q.sum())


# %%
def gradient(loss: Tensor) -> Tensor:
    """With respect to the tiny student's weights, as one vector."""
    parts = torch.autograd.grad(loss, list(q_model.parameters()), retain_graph=True)
    return torch.cat([part.flatten() for part in parts])


of_responses = (p * (log_p.sum(1) - log_q.sum(1))).sum()  # KL(p || q), by its definition
of_tokens = (p * forward_kl(q_model, p_model, language).sum(1)).sum()  # E of the token KLs
print(f"KL(p || q) of responses {of_responses.item():.6f}, of tokens {of_tokens.item():.6f}")
assert torch.isclose(of_responses, of_tokens)
assert torch.allclose(gradient(of_responses), gradient(of_tokens), atol=1e-12)

# %% [markdown]
# ## 4. Gemma's shortcut: cross-entropy on sampled ids
#
# Storing a distribution over 262 thousand ids for every token of a corpus is too much. Gemma 3
# ([arXiv:2503.19786](https://arxiv.org/abs/2503.19786), section 2.2) samples 256 ids by the teacher's
# probability, gives all others 0, and renormalises:
#
# $$\tilde p(v) = \frac{p(v) \, [v \in S]}{\sum_{u \in S} p(u)}, \qquad
# L = -\sum_{v \in S} \tilde p(v) \log q(v)$$
#
# The draw is without replacement. One id is an ordinary sample, and all ids are the whole
# distribution: both are right on average. **Predict, then run:** is the average target right in
# between? An unlikely id has to share with likely ones whenever it is drawn. Here 4000 draws at one
# position.

# %%
prompt = tokenizer.encode(prompts[0].prompt)
first = collate_responses([prompt] * 4000, [[tokenizer.eos_id]] * 4000, tokenizer.eos_id)
with torch.no_grad():
    probs = base(torch.tensor([prompt]))[0, -1].softmax(0)
bias = {}
for k in (1, 2, 4, 16, 64):
    ids, targets = sampled_targets(base, first, k, make_generator(0, f"ids {k}"))
    mean = torch.zeros(len(first), len(probs)).scatter_(1, ids, targets.detach()).mean(0)
    bias[k] = float((mean - probs).abs().sum() / 2)
rows = [[f"{k}", f"{distance:.3f}"] for k, distance in bias.items()]
plots.table(["k ids sampled", "total variation of the mean target from p"], rows)
holds(bias[4] > 2 * bias[64], "the error is largest at a few ids")

# %% [markdown]
# It is not. (The 0.019 at one id is the noise of 4000 draws.) The error is largest at a few ids,
# and from 16 ids on it is small here. Gemma's method is plain distillation: it has no reward and no
# policy gradient.
#
# ## 5. Reverse KL on the student's text, and what it leaves out
#
# The reverse KL asks what *the student* says, so the student writes:
#
# $$\mathrm{KL}(q \parallel p) = E_{y \sim q} \sum_t \mathrm{KL} \left( q(\cdot \mid s_t) \parallel
# p(\cdot \mid s_t) \right)$$
#
# The two sides have the same value. But differentiate the right-hand side with the text held fixed,
# and the gradient is not that of the left: a token also decides which states come after it. MiniLLM
# (Eqs. 2 and 3) splits the gradient exactly. With $r_t = \log p(y_t) / q(y_t)$ and $R_t = \sum_{u \ge
# t} r_u$,
#
# $$\nabla \, \mathrm{KL}(q \parallel p) = \underbrace{E_{y \sim q} \sum_t \nabla \, \mathrm{KL}
# \left( q(\cdot \mid s_t) \parallel p(\cdot \mid s_t) \right)}_{\text{Single}} \;
# \underbrace{- \, E_{y \sim q} \sum_t R_{t+1} \nabla \log q(y_t \mid s_t)}_{\text{Long}}$$
#
# Long is a policy gradient whose reward is the teacher. $R_{t+1}$ begins *after* token $t$: the token's
# own reward is in Single, summed over the whole vocabulary, without noise. In code, naively:

# %%
with torch.no_grad():
    rewards = log_p - log_q  # r_t, (15, 3), 0 at padding
    after = rewards.flip(1).cumsum(1).flip(1) - rewards  # R_{t+1}
chance = q.detach()[:, None]  # each response with its share of the student's text
_, token_kl = token_scores_and_kl(q_model, p_model, language)  # KL(q(.|s_t) || p(.|s_t))

single = gradient((chance * token_kl).sum())
long = gradient((chance * -after * log_q).sum())
exact = gradient((q * (log_q.sum(1) - log_p.sum(1))).sum())  # of KL(q || p), by its definition
twice = gradient((chance * (token_kl - (after + rewards) * log_q)).sum())
for name, found in (("Single + Long", single + long), ("Single alone", single),
                    ("own reward in Long as well", twice)):  # fmt: skip
    print(f"{name:27} largest error of the gradient {(found - exact).abs().max():.1e}")
assert torch.allclose(single + long, exact, atol=1e-12)
assert (single - exact).abs().max() > 1e-3 and (twice - exact).abs().max() > 1e-3

# %%
largest = exact.abs().argsort(descending=True)[:10]
plots.bars(
    {"exact": exact[largest], "Single alone": single[largest],
     "Single + Long": (single + long)[largest]},
    [str(i + 1) for i in range(10)], axis=plots.panels(1, width=9)[1],
    styles={"Single alone": "bad", "Single + Long": "policy"},
    xlabel="the ten weights with the largest gradient", ylabel="expected gradient",
)  # fmt: skip
plt.show()

# %% [markdown]
# The engine's loss is the same, with two additions: a clip, as in PPO, and weights $w$, which
# section 7 explains. At the start of an update, with all weights 1, it has the exact gradient:

# %%
plots.code(minillm_loss, docstring=False)
scores, token_kl = token_scores_and_kl(q_model, p_model, language)
settings = MiniLLMConfig(pretraining_coef=0.0, device="cpu")
targets = Targets(log_q.detach(), after, chance.expand(15, 3))
loss = minillm_loss(settings, scores.log_probs, token_kl, targets, language.response_mask, tokens=1)
assert torch.allclose(gradient(loss), exact, atol=1e-12)

# %% [markdown]
# ## 6. Length normalisation
#
# A sum over many tokens is noisy, and long responses weigh most. MiniLLM takes the mean of the rewards
# after $t$ instead of their sum (Eq. 6). The paper prints the factor $1 / (T - t - 1)$, which would
# divide by 0 where one token is left. Here it is the number of terms.

# %%
r = torch.tensor([[-0.2, 0.5, -0.9]])
naive = [[(0.5 - 0.9) / 2, -0.9, 0.0]]  # the mean of what follows, 0 at the end
R = length_normalized_returns(r, torch.ones(1, 3, dtype=torch.bool))
print("r        ", [round(x, 3) for x in r[0].tolist()])
print("R_(t+1)  ", [round(x, 3) for x in R[0].tolist()])
assert torch.allclose(R, torch.tensor(naive))
plots.code(length_normalized_returns, docstring=False)

# %% [markdown]
# ## 7. The teacher helps to sample
#
# Early on the student writes text that the teacher finds absurd, and its probabilities of absurd
# text mean little. So each token is drawn from a mixture (Eq. 4), and gets its own importance
# weight:
#
# $$\tilde p = \alpha p + (1 - \alpha) q, \qquad w_t = \frac{q(y_t \mid s_t)}{\tilde p(y_t \mid
# s_t)} \le \frac{1}{1 - \alpha}$$
#
# (This $\tilde p$ is not that of section 4.) The exact weight of token $t$ would be the product of
# the factors of all tokens up to it. MiniLLM keeps only the last factor, which is biased but bounded.

# %%
plots.code(mixed_sampling_weights, docstring=False)
drawn = sample_rollout(
    base, tokenizer, prompts[:96], params, 1, make_generator(1, "mixture"), teacher=teacher,
    teacher_share=0.2,
)  # fmt: skip
mask = drawn.response_mask
judged, own = teacher_log_probs(teacher, drawn, settings)[mask], drawn.log_probs[mask]
naive = own.exp() / (0.2 * judged.exp() + 0.8 * own.exp())
w = mixed_sampling_weights(own[None], judged[None], torch.ones_like(own[None]).bool(), 0.2)[0]
torch.testing.assert_close(naive, w, atol=1e-4, rtol=1e-4)
print(f"{len(w)} tokens: mean weight {w.mean():.3f}, largest {w.max():.4f} <= 1 / 0.8 = 1.25")
holds(
    w.max() <= 1.25 + 1e-4 and abs(w.mean() - 1) < 0.1,
    "the weights are at most 1.25, and 1 on average",
)
plots.histograms({"weight of a sampled token": w}, bins=40, yscale="log", xlabel="w",
                ylabel="tokens").axvline(1.25, **plots.line("exact"))  # fmt: skip
plt.show()

# %% [markdown]
# ## 8. The four of them, on the same base model
#
# MiniLLM's loop is that of [18](18_knowledge_distillation_rewards.ipynb) with another sampler,
# other returns and another loss. A step of [nano/kd_grpo.py](../nano/kd_grpo.py), and what
# [nano/minillm.py](../nano/minillm.py) changes (every line begins at the margin):

# %%
plots.neighbours("kd_grpo", "minillm")

# %%
curves, students = {}, {}
common = dict(steps=20, batch_size=24, lr=1e-3, warmup=3, max_new_tokens=40, eval_every=10)
for loss in ("forward_kl", "topk_ce", "reverse_kl"):
    students[loss] = copy.deepcopy(base)
    rows = distillation.train(
        DistillationConfig(loss=loss, sampled_tokens=16, device="cpu", **common),
        students[loss], teacher, tokenizer, prompts, MetricLog(20),
        validate=lambda model, step: value(model, 64),
    )  # fmt: skip
    curves[loss] = [row for row in rows if "gold" in row]

# %%
config = MiniLLMConfig(
    steps=10, prompts_per_step=48, minibatches=2, updates_per_batch=1, lr=1e-3, warmup=2,
    max_new_tokens=40, micro_batch_size=48, pretraining_coef=0.0, eval_every=5, device="cpu",
)  # fmt: skip
students["MiniLLM"] = copy.deepcopy(base)
reward = TeacherReward(teacher, config, aggregate="sum", reverse_kl=True)
rows = minillm_engine.train(
    config, students["MiniLLM"], tokenizer, reward, prompts, MetricLog(10),
    validate=lambda policy, reference, step: value(policy, 64),
)  # fmt: skip
curves["MiniLLM"] = [row for row in rows if "gold" in row]
holds(
    max(row["ratio_error_at_start"] for row in rows) < 1e-4,
    "before a batch's first update the ratios are 1",
)

# %%
figure, (left, right) = plots.panels(2)
untrained = results["student before"]
for axis, key in ((left, "reverse_kl_full"), (right, "gold")):
    series = {
        name: (range(0, 10 * len(points) + 1, 10), [untrained[key], *(row[key] for row in points)])
        for name, points in curves.items()
    }
    plots.curves(series, axis=axis, marker=True, xlabel="optimizer step")
left.set(ylabel="KL(student || teacher)\n(nats per response)", yscale="log", xticks=(0, 10, 20))
left.set_yticks([0.1, 0.2, 0.5, 1, 2, 5], ["0.1", "0.2", "0.5", "1", "2", "5"])
left.minorticks_off()
right.axhline(results["teacher"]["gold"], label="the teacher", **plots.line("teacher"))
right.set(ylabel="gold reward, validation prompts", xticks=(0, 10, 20))
right.legend()
left.get_legend().remove()
plt.show()
keys = ("gold", "reverse_kl", "reverse_kl_full", "response_length", "eos_rate")
results |= {name: value(student) for name, student in students.items()}
plots.table(["", *keys], [[name, *(row[k] for k in keys)] for name, row in results.items()])
before = results["student before"]
for name in students:
    holds(
        results[name]["reverse_kl_full"] < 0.6 * before["reverse_kl_full"],
        "all four bring the student close to the teacher",
    )
    holds(results[name]["gold"] > before["gold"] + 0.08, "all four raise the gold reward")

# %% [markdown]
# All four bring the student close to its teacher, in nats and in gold reward. (`reverse_kl` comes
# from the sampled tokens alone, `reverse_kl_full` from the whole distributions at the same places,
# with less noise. The table has 96 prompts and the curves have 64. For one trained student the two
# columns differ by up to 0.07 nats, so differences of this size are noise.) With a student as large
# as its teacher there is little to choose between the directions. They differ where the student is
# too small, as in section 1. MiniLLM has learned from as many responses as the others. What it
# adds, the Long part, costs noise. It pays where a token's effect on the rest of the response
# matters. Its paper measures that with students of 120 million weights and more.
#
# **At full size**: `python scripts/make_teacher.py` once, then `python -m rl.minillm_engine` and
# `python -m gpt.distillation`. MiniLLM also adds the loss on pre-training text, so that a small student
# does not forget the rest of the language. It is off on this page.

# %%
plots.code(minillm_engine.open_teacher_reward, docstring=False)

# %% [markdown]
# ## 9. Exercise
#
# Fill in the function and run the cell. `check` says in words what is right or wrong.
#
# Write the forward KL of rows of logits, (N,): the loss of classical distillation.


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
#     log_q, log_p = student_logits.log_softmax(-1), teacher_logits.log_softmax(-1)
#     return (log_p.exp() * (log_p - log_q)).sum(-1)
# ```
#
# </details>
#
# **To think about.** Why is the product of the weights of a response not used, although it would be
# exact?
#
# <details>
# <summary>Answer</summary>
#
# Its largest value grows like $(1 - \alpha)^{-L}$: 35 for a response of 16 tokens and $\alpha = 0.2$. A
# few responses would make up the whole gradient.
#
# </details>
#
# ---
# Next: [20_dpo_and_pg_grpo](20_dpo_and_pg_grpo.ipynb).
