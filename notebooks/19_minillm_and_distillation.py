# %% [markdown]
# # 16. Distillation and MiniLLM
#
# **Why.** A large model answers well and costs much; a small one shall learn from it. Both give
# probabilities for the same tokens, so the teacher has more to offer than a grade for a whole
# response: a target for every token. Which text the student learns on, and which of the two KL
# divergences it lowers, makes the difference between imitation and what MiniLLM (Gu et al. 2024,
# [arXiv:2306.08543](https://arxiv.org/abs/2306.08543)) does: policy gradients whose reward is the
# teacher. This page goes from the first to the second.
#
# | method | text by | lowers | in this repository |
# | --- | --- | --- | --- |
# | forward KL (arXiv:1503.02531) | teacher | $\mathrm{KL}(p \parallel q)$ per token | `forward_kl` |
# | Gemma 3 (arXiv:2503.19786) | a corpus; here teacher | the same, on k sampled ids | `topk_ce` |
# | on-policy (arXiv:2306.13649) | student | $\mathrm{KL}(q \parallel p)$ per token | `reverse_kl` |
# | MiniLLM (arXiv:2306.08543) | both, mixed | $\mathrm{KL}(q \parallel p)$ of responses | an engine |
#
# (The first three are values of `--loss` of `gpt.distillation`, the last is `rl.minillm_engine`.)
#
# $p$ is the teacher, $q$ the student.
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about half a minute on one CPU core. Pages to know first:
# [14_kl_estimators](14_kl_estimators.ipynb) and
# [04_policy_gradients_and_baselines](04_policy_gradients_and_baselines.ipynb). The page before this
# one: [18_knowledge_distillation_rewards](18_knowledge_distillation_rewards.ipynb); the next:
# [20_dpo_and_pg_grpo](20_dpo_and_pg_grpo.ipynb).

# %%
import copy
import inspect
import itertools

import matplotlib.pyplot as plt
import torch

try:
    from data import reviews
    from data.collate import collate_responses
    from gpt import distillation, finetuning, pretraining
    from gpt.common import MetricLog, make_generator
    from gpt.corpus import WorldCorpus
    from gpt.distillation import DistillationConfig, forward_kl, measure, sampled_targets
    from gpt.generate import SamplingParams, mixed_logits
    from gpt.log_probs import token_log_probs, token_scores_and_kl
    from gpt.model import GPT, GPTConfig
    from gpt.tokenizer import load_tokenizer
    from rl import minillm_engine
    from rl.batches.rollout import sample_rollout
    from rl.equations.losses import length_normalized_returns, mixed_sampling_weights
    from rl.minillm_engine import MiniLLMConfig, Targets, minillm_loss
    from rl.rewards.sources import RuleReward
    from rl.rewards.teacher import BestOf, TeacherReward, best_answers, teacher_log_probs
    from rl.training.evaluation import format_table
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
tokenizer = load_tokenizer("glassbox")

# %% [markdown]
# ## 1. Two directions
#
# $$\mathrm{KL}(p \parallel q) = \sum_v p(v) \log \frac{p(v)}{q(v)} \qquad
# \mathrm{KL}(q \parallel p) = \sum_v q(v) \log \frac{q(v)}{p(v)}$$
#
# Both are 0 for $q = p$. A student that is too small to be the teacher has to choose what to get
# wrong. The forward KL is large where the student gives little to something that the teacher says:
# it covers everything, also what lies between. The reverse KL is large where the student says what
# the teacher never would: it keeps to a part. Here the teacher has two peaks and the student, a bell
# with two parameters, can have one.

# %%
symbols = torch.arange(40, dtype=torch.float64)


def bell(centre: float, width: float) -> torch.Tensor:
    """A discrete Gaussian over the 40 symbols."""
    return (-(((symbols - centre) / width) ** 2) / 2).softmax(0)


p = 0.6 * bell(11, 2.5) + 0.4 * bell(28, 3.0)
grid = [(c, w) for c in torch.arange(5.0, 35.0, 0.5) for w in torch.arange(1.0, 14.0, 0.5)]
students = torch.stack([bell(c, w) for c, w in grid])
forward = (p * (p / students).log()).sum(1)
reverse = (students * (students / p).log()).sum(1)
best = {
    "forward KL(p || q)": students[forward.argmin()],
    "reverse KL(q || p)": students[reverse.argmin()],
}

figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
axis.fill_between(symbols, p, color="grey", alpha=0.35, label="teacher p")
for (name, q), color in zip(best.items(), ("tab:blue", "tab:orange"), strict=True):
    axis.plot(symbols, q, color=color, linewidth=2, label=f"student with the least {name}")
axis.set(xlabel="symbol", ylabel="probability", title="What a student with one peak makes of two")
axis.legend()
plt.show()
valley = slice(17, 22)
assert best["forward KL(p || q)"][valley].sum() > 5 * p[valley].sum()  # covers, with the valley
assert best["reverse KL(q || p)"][4:19].sum() > 0.95  # keeps to one peak

# %% [markdown]
# For text the valley between two good answers is a bad answer. That is the argument for the reverse
# direction in MiniLLM.
#
# ## 2. A student and a teacher
#
# The student is a small base model of the reviews world, pre-trained in ten seconds. Its teacher here is
# the same model after fine-tuning on the best of 16 of its own answers to each of 320 prompts, judged
# by the gold reward so that this page needs no reward model. `scripts/make_teacher.py` does
# the same with a larger model, for longer, and with the learned reward model as the judge.

# %%
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=96, n_layer=2, n_head=2, n_embd=96)
base = GPT(shape).initialize(make_generator(0, "weights"))
pretraining_config = pretraining.PretrainingConfig(
    steps=500, batch_size=16, lr=6e-3, warmup=30, eval_every=500, device="cpu"
)
corpus = WorldCorpus("reviews", tokenizer, pretraining_config.batch_size, seed=0)
log = pretraining.train(pretraining_config, base, corpus, MetricLog(500))
print(f"student: {log[-1]['held_out_loss']:.2f} nats per token (held out)")

gold = RuleReward(reviews.gold_reward, "gold reward")
params = SamplingParams(max_new_tokens=40)
prompts = reviews.prompts("train")
answers = best_answers(base, tokenizer, prompts[:320], gold, BestOf(16, params))
teacher = copy.deepcopy(base)
steps = MetricLog(6 * len(answers) // 32)  # six passes
settings = finetuning.FinetuningConfig(lr=1e-3)
finetuning.train(settings, teacher, answers, [], steps, eos_id=tokenizer.eos_id)
teacher = teacher.eval().requires_grad_(False)
print(f"teacher: the student after six passes over {len(answers)} answers")


# %%
def value(model: GPT, count: int = 256) -> dict[str, float]:
    """Gold reward and distance to the teacher on prompts that no model has seen."""
    unseen = reviews.prompts("validation")[:count]
    return measure(model, teacher, tokenizer, unseen, 40, reviews.gold_reward)[0]


results = {"student before": value(base), "teacher": value(teacher)}
for name, numbers in results.items():
    print(f"{name:15} gold {numbers['gold']:.3f} +- {1.96 * numbers['gold_error']:.3f}", end="")
    print(f"   KL to the teacher {numbers['reverse_kl_full']:.2f} nats per response")
assert results["teacher"]["gold"] > results["student before"]["gold"] + 0.05
assert (
    abs(results["teacher"]["reverse_kl_full"]) < 1e-4 < results["student before"]["reverse_kl_full"]
)

# %% [markdown]
# ## 3. Forward KL on the teacher's text
#
# $$L = \frac{1}{\sum_i L_i} \sum_{i,t} \mathrm{KL} \left( p(\cdot \mid s_{i,t}) \parallel
# q(\cdot \mid s_{i,t}) \right), \qquad y_i \sim p$$
#
# with the state $s_t = (x, y_{\lt t})$. The target is the teacher's whole distribution (Hinton et
# al. 2015), not the one token that it happened to sample.

# %%
print(inspect.getsource(forward_kl))

# %% [markdown]
# Is a sum of token divergences a divergence of responses? For this direction on this text, exactly.
# To see it, every response of a tiny language is listed: tokens 1 and 2, EOS = 0, at most three
# tokens, 15 responses. A sum over all of them takes the place of sampling.

# %%
ended = [(*start, 0) for n in range(3) for start in itertools.product((1, 2), repeat=n)]
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
rows = [[str(r), float(a), float(b)] for r, a, b in zip(responses, p.detach(), q.detach())]
print(format_table(["response", "teacher p", "student q"], rows))
assert torch.isclose(q.sum(), torch.ones(()).double()) and torch.isclose(p.sum(), q.sum())


# %%
def gradient(loss: torch.Tensor) -> torch.Tensor:
    """With respect to the tiny student's weights, as one vector."""
    parts = torch.autograd.grad(loss, list(q_model.parameters()), retain_graph=True)
    return torch.cat([part.flatten() for part in parts])


of_responses = (p * (log_p.sum(1) - log_q.sum(1))).sum()  # KL(p || q), by its definition
of_tokens = (p * forward_kl(q_model, p_model, language).sum(1)).sum()  # E of the token KLs
print(
    f"KL(p || q) of responses {of_responses.item():.6f}, summed over tokens {of_tokens.item():.6f}"
)
print(
    f"largest difference of the gradients {(gradient(of_responses) - gradient(of_tokens)).abs().max():.1e}"
)
assert torch.isclose(of_responses, of_tokens)
assert torch.allclose(gradient(of_responses), gradient(of_tokens), atol=1e-12)

# %% [markdown]
# ## 4. Gemma's shortcut: cross-entropy on sampled ids
#
# Storing a distribution over 262 thousand ids for every token of a corpus is too much. Gemma 3
# samples 256 ids by the teacher's probability, gives all others 0, and renormalises:
#
# $$\tilde p(v) = \frac{p(v) \, [v \in S]}{\sum_{u \in S} p(u)}, \qquad
# L = -\sum_{v \in S} \tilde p(v) \log q(v)$$
#
# It is distillation, no reward and no reinforcement, whatever has been said of it.

# %%
print(inspect.getsource(sampled_targets))

# %% [markdown]
# The draw is without replacement. One id is an ordinary sample and all ids are the whole
# distribution: both are right on average. In between the average target is *not* $p$: an unlikely
# id has to share with likely ones whenever it is drawn. Here the teacher's distribution after one
# prompt, and the mean target of 4000 draws.

# %%
prompt = tokenizer.encode(prompts[0].prompt)
first = collate_responses([prompt] * 4000, [[tokenizer.eos_id]] * 4000, tokenizer.eos_id)
probs = teacher(torch.tensor([prompt]))[0, -1].softmax(0)
V = len(probs)
bias = {}
for k in (1, 2, 4, 16, 64):
    ids, targets = sampled_targets(teacher, first, k, make_generator(0, f"ids {k}"))
    mean = torch.zeros(len(first), V).scatter_(1, ids, targets).mean(0)
    bias[k] = float((mean - probs).abs().sum() / 2)
    print(f"k = {k:3}: largest target {mean.max():.3f} (p: {probs.max():.3f}), "
          f"total variation from p {bias[k]:.3f}")  # fmt: skip
assert bias[4] > 2 * bias[64]

whole = sampled_targets(teacher, first.rows(torch.tensor([0])), V)
loss = distillation.sampled_cross_entropy(base, first.rows(torch.tensor([0])), *whole)
kl = forward_kl(base, teacher, first.rows(torch.tensor([0])))
entropy = -(probs * probs.log()).sum()
print(f"k = V: cross-entropy {loss.item():.4f} = KL {kl.item():.4f} + entropy of p {entropy:.4f}")
assert torch.isclose(loss[0, 0], kl[0, 0] + entropy, atol=1e-4)

# %% [markdown]
# ## 5. Reverse KL on the student's text, and what it leaves out
#
# The reverse KL asks what *the student* says, so the student writes:
#
# $$\mathrm{KL}(q \parallel p) = E_{y \sim q} \sum_t \mathrm{KL} \left( q(\cdot \mid s_t) \parallel
# p(\cdot \mid s_t) \right)$$
#
# The value is right. The gradient of the right-hand side with the text held fixed is not the
# gradient of the left: a token also decides which states come after it. MiniLLM (Eqs. 2 and 3)
# splits the gradient exactly. With $r_t = \log p(y_t) / q(y_t)$ and $R_t = \sum_{u \ge t} r_u$,
#
# $$\nabla \, \mathrm{KL}(q \parallel p) = \underbrace{E_{y \sim q} \sum_t \nabla \, \mathrm{KL}
# \left( q(\cdot \mid s_t) \parallel p(\cdot \mid s_t) \right)}_{\text{Single}} \;
# \underbrace{- \, E_{y \sim q} \sum_t R_{t+1} \nabla \log q(y_t \mid s_t)}_{\text{Long}}$$
#
# Long is a policy gradient whose reward is the teacher. $R_{t+1}$ begins *after* token t: the
# token's own reward is in Single, summed over the whole vocabulary, without noise. With $R_t$ in Long,
# as in MiniLLM's released code, it would count twice: the last line below.

# %%
print(inspect.getsource(minillm_loss))

# %%
rewards = log_p - log_q.detach()  # r_t, (15, 3), 0 at padding
after = rewards.flip(1).cumsum(1).flip(1) - rewards  # R_{t+1}
chance = log_q.detach().sum(1).exp()[:, None].expand(15, 3)  # in the place of sampling from q
scores, token_kl = token_scores_and_kl(q_model, p_model, language)
config = MiniLLMConfig(pretraining_coef=0.0, device="cpu")


def expected_gradient(returns: torch.Tensor, token_kl: torch.Tensor) -> torch.Tensor:
    """The gradient of minillm_loss, averaged over all responses of the student."""
    targets = Targets(log_q.detach(), returns, chance)
    mask = language.response_mask
    return gradient(minillm_loss(config, scores.log_probs, token_kl, targets, mask, tokens=1))


exact = gradient((q * (log_q.sum(1) - log_p.sum(1))).sum())
both = expected_gradient(after, token_kl)
single = expected_gradient(torch.zeros_like(after), token_kl)
twice = expected_gradient(after + rewards, token_kl)
for name, found in (("Single + Long", both), ("Single alone", single), ("own reward twice", twice)):
    print(f"{name:17} largest error of the gradient {(found - exact).abs().max():.1e}")
assert torch.allclose(both, exact, atol=1e-12)
assert (single - exact).abs().max() > 1e-3 and (twice - exact).abs().max() > 1e-3

# %%
largest = exact.abs().argsort(descending=True)[:12]
figure, axis = plt.subplots(figsize=(9, 3.4), layout="constrained")
places = torch.arange(12)
axis.bar(places - 0.27, exact[largest], 0.26, color="grey", label="KL of responses, exact")
axis.bar(places, single[largest], 0.26, color="tab:blue", label="Single alone")
axis.bar(places + 0.27, both[largest], 0.26, color="tab:orange", label="Single + Long")
axis.axhline(0, color="black", linewidth=0.8)
axis.set(xlabel="the twelve weights with the largest gradient", ylabel="expected gradient")
axis.legend()
plt.show()

# %% [markdown]
# ## 6. Length normalisation
#
# A sum over many tokens is noisy, and long responses weigh most. MiniLLM takes the mean of the
# rewards after t in the place of their sum (Eq. 6). The paper prints the factor $1 / (T - t - 1)$,
# which is 0 in the denominator where one token is left; here it is the number of terms.

# %%
print(inspect.getsource(length_normalized_returns))

# %%
r = torch.tensor([[-0.2, 0.5, -0.9]])
R = length_normalized_returns(r, torch.ones(1, 3, dtype=torch.bool))
print("r        ", [round(x, 3) for x in r[0].tolist()])
print("R_(t+1)  ", [round(x, 3) for x in R[0].tolist()], " the mean of what follows, 0 at the end")
assert torch.allclose(R, torch.tensor([[(0.5 - 0.9) / 2, -0.9, 0.0]]))

# %% [markdown]
# ## 7. The teacher helps to sample
#
# Early on the student writes text that the teacher finds absurd, and about absurd text its
# probabilities say little. So each token is drawn from a mixture (Eq. 4), and weighted with its own
# importance weight; $\alpha = 0.2$:
#
# $$\tilde p = \alpha p + (1 - \alpha) q, \qquad w_t = \frac{q(y_t \mid s_t)}{\tilde p(y_t \mid s_t)}
# \le \frac{1}{1 - \alpha}$$
#
# The exact weight of token t would be the product over all tokens up to it; one factor is biased, and
# bounded.

# %%
print(inspect.getsource(mixed_logits))
print(inspect.getsource(mixed_sampling_weights))

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
for axis, share in zip(axes, (0.2, 0.7), strict=True):
    rollout = sample_rollout(
        base, tokenizer, prompts[:256], params, 1, make_generator(1, "mixture"),
        teacher=teacher, teacher_share=share,
    )  # fmt: skip
    mask = rollout.response_mask
    judged = teacher_log_probs(teacher, rollout, config)
    w = mixed_sampling_weights(rollout.log_probs, judged, mask, share)[mask]
    print(
        f"alpha {share}: mean weight {w.mean():.3f}, largest {w.max():.3f} <= {1 / (1 - share):.3f}"
    )
    assert w.max() <= 1 / (1 - share) + 1e-4 and abs(w.mean() - 1) < 0.1
    axis.hist(w, bins=40, color="tab:blue")
    axis.axvline(1 / (1 - share), color="tab:red", linestyle="--", label="1 / (1 - alpha)")
    axis.set(
        xlabel="weight of a sampled token", ylabel="tokens", title=f"alpha = {share}", yscale="log"
    )
    axis.legend()
plt.show()

# %% [markdown]
# ## 8. The four of them, on the same base model
#
# The loop of MiniLLM, which also adds the language model's loss on pre-training text
# ($\lambda_{PT}$, so that a small student does not forget the rest of the language). On this page it
# is off: the teacher and the text want different things here.

# %%
source = inspect.getsource(minillm_engine.train)
print(source[source.index("    for step in") : source.index("        rewards = row_sums")])

# %%
curves, students = {}, {}
common = dict(steps=36, batch_size=32, lr=1e-3, warmup=4, max_new_tokens=40, eval_every=12)
for loss in ("forward_kl", "topk_ce", "reverse_kl"):
    students[loss] = copy.deepcopy(base)
    rows = distillation.train(
        DistillationConfig(loss=loss, sampled_tokens=16, device="cpu", **common),
        students[loss], teacher, tokenizer, prompts, MetricLog(36),
        validate=lambda model, step: value(model, 96),
    )  # fmt: skip
    curves[loss] = [row for row in rows if "gold" in row]

# %%
config = MiniLLMConfig(
    steps=18, prompts_per_step=64, minibatches=2, updates_per_batch=1, lr=1e-3, warmup=2,
    max_new_tokens=40, micro_batch_size=64, pretraining_coef=0.0, eval_every=6, device="cpu",
)  # fmt: skip
students["MiniLLM"] = copy.deepcopy(base)
reward = TeacherReward(teacher, config, aggregate="sum", reverse_kl=True)
rows = minillm_engine.train(
    config, students["MiniLLM"], tokenizer, reward, prompts, MetricLog(18),
    validate=lambda policy, reference, step: value(policy, 96),
)  # fmt: skip
curves["MiniLLM"] = [row for row in rows if "gold" in row]
print(f"largest ratio_error_at_start {max(row['ratio_error_at_start'] for row in rows):.1e}")
assert max(row["ratio_error_at_start"] for row in rows) < 1e-4

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for name, points in curves.items():
    updates = [0, *(row["step"] * (2 if name == "MiniLLM" else 1) for row in points)]
    for axis, key in ((left, "reverse_kl_full"), (right, "gold")):
        axis.plot(
            updates, [results["student before"][key], *(row[key] for row in points)],
            marker="o", label=name,
        )  # fmt: skip
right.axhline(results["teacher"]["gold"], color="grey", linestyle="--", label="teacher")
left.set(
    xlabel="optimizer step", ylabel="KL(student || teacher)\n(nats per response)", yscale="log"
)
right.set(xlabel="optimizer step", ylabel="gold reward, validation prompts")
right.legend()
plt.show()

# %%
keys = ("gold", "reverse_kl", "reverse_kl_full", "response_length", "eos_rate")
results |= {name: value(student) for name, student in students.items()}
print(format_table(["", *keys], [[name, *(row[k] for k in keys)] for name, row in results.items()]))
before = results["student before"]
for name in students:
    assert results[name]["reverse_kl_full"] < 0.5 * before["reverse_kl_full"]
    assert results[name]["gold"] > before["gold"] + 0.08

# %% [markdown]
# All four bring the student close to the teacher, in nats and in gold reward. With a student as large
# as its teacher there is little to choose between the directions; they part where the student is too
# small, as in the first figure. The student of `topk_ce` (k = 16 of 624) ends a little further away;
# one run does not tell whether for the bias of its targets, small at this k (section 4), or for their
# noise.
#
# MiniLLM learned from as many responses as the others here. What it adds, the Long part, costs noise
# and pays where a token's effect on the rest of the response matters; its paper measures that with
# students of 120 million weights and more.
#
# At full size: `python scripts/make_teacher.py` once, then `python -m rl.minillm_engine` and
# `python -m gpt.distillation`.
#
# ## Exercise
#
# 1. What is $R_{t+1}$ for a response of one token, an EOS at once? Which part of MiniLLM's loss still
#    acts on it?
# 2. Why is the mean of the weights $w_t$ over sampled tokens 1, whatever $\alpha$ is? Why is the
#    product of the weights of a response not used, although it would be exact?
# 3. Put $\log p(y_t)$ without $- \log q(y_t)$ into the reward. Towards which distribution over the 15
#    responses of section 3 does that push?
#
# <details>
# <summary>Answer</summary>
#
# 1. 0: nothing follows. Single alone acts, $\nabla \mathrm{KL}$ at the prompt, which is the whole
#    gradient for responses of one token.
# 2. Tokens are drawn from $\tilde p$, and $\sum_v \tilde p(v) \, q(v) / \tilde p(v) = \sum_v q(v) = 1$
#    at every position. The product over $t$ is unbiased, but its largest value grows like
#    $(1 - \alpha)^{-L}$: 35 for a response of 16 tokens and $\alpha = 0.2$, so that a few responses
#    would make up the whole gradient.
# 3. Towards the one response that is likeliest under the teacher: the mean of $\log p(y)$ under $q$ is
#    largest where $q$ puts everything on $\arg\max_y p(y)$.
#
# ```python
# log_p_of_responses = token_log_probs(p_model, language).sum(1)
# print(responses[log_p_of_responses.argmax()])
# assert log_p_of_responses.max() > (q * log_p_of_responses).sum()
# ```
#
# </details>
