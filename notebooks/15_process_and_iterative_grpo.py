# %% [markdown]
# # 15. Process supervision and iterative GRPO
#
# **The question.** Can a reward say *which step* of an answer went wrong? And what happens to a reward
# model when the policy moves away from the texts that it was trained on?
#
# **Why.** [07_grpo](07_grpo.ipynb) is the middle of the GRPO paper (Shao et al. 2024,
# [arXiv:2402.03300](https://arxiv.org/abs/2402.03300)): one reward per response, one reward model, one
# reference. The paper has two more ideas.
#
# | part | idea | source |
# | --- | --- | --- |
# | A, sections 1 to 3 | process supervision: a reward at the end of every *step* | section 4.1.3 |
# | B, sections 4 to 6 | iterative GRPO: the reward model is trained again | section 4.1.4 |
#
# The engines are [rl/grpo_process_engine.py](../rl/grpo_process_engine.py) and
# [rl/grpo_iterative_engine.py](../rl/grpo_iterative_engine.py).
#
# **You need** [07_grpo](07_grpo.ipynb) and, for part B, [06_reward_model](06_reward_model.ipynb).
#
# **It takes** about half a minute on one CPU core, after start-up.

# %%
import copy
import random

import matplotlib.pyplot as plt
import torch
from course import plots
from course.claims import holds
from course.exercises import check

from data import reviews, sums
from data.collate import join_responses
from data.records import PromptRecord
from gpt import pretraining
from gpt.corpus import WorldCorpus
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.metric_log import MetricLog
from harness.report.tokens import show_tokens
from harness.seeds import make_generator
from reward_model import continual
from reward_model.pairs import PairSampling, collate_pairs, sample_pairs
from reward_model.reward_model_training import RewardModelConfig, train
from reward_model.scalar_head import RewardModel
from reward_model.world_pairs import ReviewsAnnotator

# %%
from rl import grpo_engine, grpo_iterative_engine, grpo_process_engine
from rl.batches.rollout import Rollout
from rl.equations.advantages import group_advantages, process_advantages
from rl.loop import Run
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.rewards.step_rewards import CheckedSteps, OutcomeSteps
from rl.training.evaluation import Validation

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
tokenizer = load_tokenizer("glassbox")

# %% [markdown]
# **Part A: process supervision**
#
# ## 1. Four answers to one sum
#
# In the sums world an answer may write its steps, column by column with carries, and every step can
# be checked. The second answer below goes wrong in its middle step, the third in its first. Their
# later steps are right in themselves, but the error carries through to the answer. The last one
# writes no steps.

# %%
G = 4
record = PromptRecord("347+588=", "935", {"a": 347, "b": 588})
texts = [
    "7+8=15,4+8+1=13,3+5+1=9:935",
    "7+8=15,4+8+1=12,3+5+1=9:925",
    "7+8=14,4+8+1=13,3+5+1=9:934",
    "945",
]
tokens = [[*tokenizer.encode(text), tokenizer.eos_id] for text in texts]
T = max(map(len, tokens))
padded = torch.tensor([row + [0] * (T - len(row)) for row in tokens])
lengths = torch.tensor([len(row) for row in tokens])
sequences = join_responses(
    [tokenizer.encode(record.prompt)] * G, padded, torch.arange(T) < lengths[:, None],
    torch.ones(G, dtype=torch.bool),
)  # fmt: skip
rollout = Rollout([record] * G, texts, sequences, torch.zeros(G, T), group_size=G)
rewards = torch.tensor([sums.exact_match(record, text, True) for text in texts])
print(record.prompt, "one reward per answer:", rewards.tolist())

# %% [markdown]
# `CheckedSteps` cuts a response into steps, so that each token belongs to exactly one of them: the written
# sums, then the answer. A step is worth 1 if it is right. (The last column is the answer. The fourth
# response has no other step.)

# %%
steps = CheckedSteps(tokenizer)(rollout, rewards)
names = ["first step", "second", "third", "answer"]
grid = torch.full((G, 4), torch.nan)
for i in range(G):
    values = steps.rewards[i, steps.mask[i]]
    grid[i, 4 - len(values) :] = values
rows = [f"{i + 1}. {text}" for i, text in enumerate(texts)]
plots.heat(grid, rows, names, axis=plots.panels(1, width=9, height=2.6)[1], numbers=".0f",
          xlabel="step", ylabel="response", title="what each step is worth")  # fmt: skip
plt.show()
assert [int(n) for n in steps.mask.sum(1)] == [4, 4, 4, 1]
assert torch.equal(steps.rewards.sum(1), torch.tensor([4.0, 2.0, 2.0, 0.0]))

# %% [markdown]
# ## 2. From step rewards to advantages
#
# All step rewards of all responses to a prompt form one set $\mathbf R$. Each is normalised with its mean
# and standard deviation. A token at $t$ then gets the sum over the steps that end at $t$ or later (the step
# $j$ of response $i$ ends at token $e_{i,j}$):
#
# $$\tilde r_{i,j} = \frac{r_{i,j} - \mathrm{mean}(\mathbf R)}{\mathrm{std}(\mathbf R)}, \qquad
# \hat A_{i,t} = \sum_{j \,:\, e_{i,j} \ge t} \tilde r_{i,j}$$
#
# Numbers small enough for paper: two responses with steps that end at tokens 1, 3 and 0, 2, worth 2, 1 and
# 0, 1. The mean is 1 and the standard deviation 0.816. Naively:

# %%
step_rewards, step_ends = [[2.0, 1.0], [0.0, 1.0]], [[1, 3], [0, 2]]
pool = torch.tensor(step_rewards).flatten()
mean, std = pool.mean(), pool.std()

naive = torch.zeros(2, 4)
for i in range(2):
    for t in range(4):
        for reward, end in zip(step_rewards[i], step_ends[i], strict=True):
            if end >= t:
                naive[i, t] += (reward - mean) / std

mask = torch.tensor([[True, True, True, True], [True, True, True, False]])
library = process_advantages(
    torch.tensor(step_rewards), torch.tensor(step_ends), torch.ones(2, 2, dtype=torch.bool), mask,
    group_size=2, eps=0.0,
)  # fmt: skip
print(naive)
torch.testing.assert_close(naive, library)
plots.code(process_advantages, ("scores = _step_z_scores", "return "))

# %% [markdown]
# ## 3. Who is to blame?
#
# **Predict, then run.** The second response has a right first step, a wrong second, a right third and a
# wrong answer. With one reward for the response, which of its tokens are pushed down? With one per step?

# %%
m = rollout.response_mask
outcome = OutcomeSteps()(rollout, rewards)
by_outcome = process_advantages(*outcome, m, G)
by_step = process_advantages(*steps, m, G)
assert torch.equal(by_outcome, torch.where(m, group_advantages(rewards, G), 0.0))  # GRPO itself
pieces = [[*(tokenizer.decode([t]) for t in row[:-1]), "(EOS)"] for row in tokens]
show_tokens(pieces, {"one reward per response": by_outcome, "one reward per step": by_step},
            prompts=[record.prompt] * G)  # fmt: skip

# %%
figure, axes = plots.panels(2, width=13, height=2.6)
for axis, A, title in ((axes[0], by_outcome, "one reward per response"),
                       (axes[1], by_step, "one reward per step")):  # fmt: skip
    grid = torch.full((G, 4), torch.nan)
    for i in range(G):
        values = A[i, steps.ends[i, steps.mask[i]]]  # the same at every token of a step
        grid[i, 4 - len(values) :] = values
    plots.heat(grid, rows, names, axis=axis, signed=True, title=f"advantage, {title}",
              xlabel="step", ylabel="response")  # fmt: skip
    axis.label_outer()
plt.show()
wrong_middle = by_step[1, steps.ends[1]]
holds(
    wrong_middle.argmin() == 1 and wrong_middle[2] > wrong_middle[0] > wrong_middle[1],
    "the tokens of the wrong step are pushed down most",
)
holds(
    (by_step[0, m[0]] > 0).all() and by_outcome[1, m[1]].unique().numel() == 1,
    "the right response is pushed up everywhere, one reward makes no difference between tokens",
)

# %% [markdown]
# With one reward all tokens of the second response are pushed down alike. With one per step the
# tokens of its wrong step are pushed down most: they are blamed for it and for the wrong answer
# that came from it. The step *after* the error is not blamed. The right first step is pushed down
# too, but less: it has its own *credit* (its share of praise or blame), and the blame of everything
# that followed.
#
# Three things to know before using it.
#
# 1. Nothing divides by the number of steps. A response of four steps can have an advantage four times as
#    large.
# 2. One mean serves all steps. Where most are right, a right one earns little and a wrong one costs much.
# 3. A reward model that was trained on whole responses does not know what a *step* is worth. Its scores
#    inside a response are a heuristic (`rl/rewards/step_rewards.py` says so where it offers them). Steps
#    that a rule checks do not have this problem.
#
# In the engine this is a difference of a few lines:

# %%
plots.difference(
    plots.source(grpo_engine.train, ("rollout = ", "run.finish"), docstring=False),
    plots.source(grpo_process_engine.train, ("rollout = ", "run.finish"), docstring=False),
    names=("rl/grpo_engine.py", "rl/grpo_process_engine.py"), context=1,
)  # fmt: skip

# %% [markdown]
# **Part B: iterative GRPO**
#
# ## 4. A reward model that is left behind
#
# As a policy improves, it writes other texts than those on which its reward model was trained. To
# see what that does, we need a policy that moves and a weak reward model: a base model of the
# reviews world, and a reward model from only 1,400 comparisons of its responses.

# %%
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=96, n_layer=2, n_head=2, n_embd=96)
base = GPT(shape).initialize(make_generator(0, "weights"))
pretraining_config = pretraining.PretrainingConfig(
    steps=400, batch_size=16, lr=6e-3, warmup=30, eval_every=400, device="cpu"
)
corpus = WorldCorpus("reviews", tokenizer, pretraining_config.batch_size, seed=0)
pretraining.train(pretraining_config, base, corpus, MetricLog(400))
params, prompts = SamplingParams(max_new_tokens=48), reviews.prompts("train")
gold = RuleReward(reviews.gold_reward, "gold reward")


def compare_responses(count: int, per_prompt: int, split: str) -> list:
    """Pairs of the base model's responses, labelled by the world's annotator."""
    batches = sample_pairs(
        base, tokenizer, reviews.prompts(split), count, ReviewsAnnotator(),
        PairSampling(params, per_prompt, batch_size=64),
        generator=make_generator(0, split), rng=random.Random(0),
    )  # fmt: skip
    return [pair for batch in batches for pair in batch]


# %%
pairs, probe = compare_responses(1400, 8, "train"), compare_responses(300, 2, "validation")
scorer = RewardModel.from_policy(base, "last_token", make_generator(0, "head"))
fitting = RewardModelConfig(
    pairs=2800, held_out_pairs=300, responses_per_prompt=8, wide_temperature=1.5, lr=2e-3, warmup=5,
    batch_size=4,
)  # fmt: skip
train(scorer, pairs, fitting, MetricLog(12), eos_id=tokenizer.eos_id)
scorer.normalize_on(collate_pairs(pairs[::20], tokenizer.eos_id))
scorer.requires_grad_(False)
accuracy = continual.order_accuracy(scorer, probe, tokenizer.eos_id)
print(f"orders {accuracy:.2f} of held-out pairs as the gold reward does (a coin: 0.50)")

# %% [markdown]
# ## 5. "Continuous training using a replay mechanism"
#
# That is line 12 of the paper's Algorithm 1. After each iteration comparisons of the policy's
# *present* responses are labelled, and mixed with "10% of historical data" so that the old ones are
# not forgotten. The ten percent can be read in two ways. Ours is that a share $f$ of the mix is old.
# Then $n_{old} = f \, (n_{new} + n_{old})$, and so
#
# $$n_{old} = n_{new} \, \frac{f}{1 - f}$$

# %%
f = 0.1
for new, history in ((90, 1000), (2800, 1400), (2800, 160_000)):
    naive = round(new * f / (1 - f))
    mix, of_history = (continual.history_count(new, history, f, reading)
                       for reading in ("share_of_mix", "share_of_history"))  # fmt: skip
    print(f"{new} new, {history} old: {mix} replayed, or {of_history} in the other reading")
    assert mix == naive and abs(mix / (new + mix) - f) < 0.001
plots.code(
    continual.ContinualRewardModel.update, ("new = self._sample", "self.model.requires_grad_")
)

# %% [markdown]
# ## 6. The outer loop, refreshed and frozen
#
# The lines that GRPO does not have, in `rl/grpo_iterative_engine.py`:

# %%
plots.code(grpo_iterative_engine.train, ("a new iteration", "reference.load_state_dict"))

# %% [markdown]
# Two runs take three iterations of eight steps each. They begin with the same policy, reward model,
# prompts and random numbers. One trains its reward model again, each time with 2,800 new pairs,
# twice what the first model was trained on. The other only moves its reference. **Predict, then
# run:** in which of them does the reward rise? In which does the gold reward rise?

# %%
config = grpo_iterative_engine.IterativeGRPOConfig(
    steps=24, iterations=3, prompts_per_step=8, lr=8e-4, kl_coef=0.05, stop_kl=None, eval_every=8,
    device="cpu",
)  # fmt: skip
visits = continual.visits_of([continual.as_row(pair, tokenizer, 0) for pair in pairs])
runs = {}
for name in ("refreshed", "frozen"):
    policy, model = copy.deepcopy(base), copy.deepcopy(scorer)
    refresh = continual.ContinualRewardModel(
        model, tokenizer, prompts, ReviewsAnnotator(), fitting, continual.History(visits),
        probe=probe,
    )  # fmt: skip
    validate = Validation(
        tokenizer, reviews.prompts("validation")[:64], params, RewardModelReward(model), gold,
        start=base,
    )  # fmt: skip
    run = Run(
        config, policy, tokenizer, RewardModelReward(model), prompts, MetricLog(24),
        validate=validate,
    )  # fmt: skip
    runs[name] = grpo_iterative_engine.train(
        config, run, refresh=refresh if name == "refreshed" else None
    )

# %%
STYLES = {"refreshed": "policy", "frozen": "bad"}
figure, axes = plots.panels(4, width=14)
for axis, key, label in (
    (axes[0], "validation/gold", "gold reward, validation"),
    (axes[1], "reward", "the run's own reward"),
    (axes[2], "kl", "KL to the reference (nats)"),
    (axes[3], "validation/kl", "KL from the start (nats)"),
):
    series = {
        name: (
            [row["step"] for row in rows if key in row],
            [row[key] for row in rows if key in row],
        )
        for name, rows in runs.items()
    }
    plots.curves(series, axis=axis, styles=STYLES, marker="/" in key, xlabel="step", ylabel=label)
    for begin in (8.5, 16.5):  # a new iteration
        axis.axvline(begin, **plots.line("exact"))
    if axis is not axes[0]:
        axis.get_legend().remove()
plt.show()

# %%
keys = [f"{what}/{when}" for what in ("fresh_accuracy", "probe_accuracy", "probe_reward")
        for when in ("before", "after")]  # fmt: skip
refreshes = [row for row in runs["refreshed"] if "pairs/new" in row]
heads = [key.replace("_", " ").replace("/", ", ") for key in keys]
plots.table(["step", *heads], [[r["step"], *(f"{r[k]:.2f}" for k in keys)] for r in refreshes])
last = {name: rows[-1]["validation/gold"] for name, rows in runs.items()}
print(f"gold at the end: {last['refreshed']:.2f} refreshed, {last['frozen']:.2f} frozen")
for rows in runs.values():
    holds(
        all(abs(rows[step].get("kl", 0.0)) < 1e-4 for step in range(0, len(rows), len(rows) // 3)),
        "the KL to the reference begins at 0 in every iteration",
    )
holds([r["pairs/replayed"] for r in refreshes] == [311, 311], "each refresh replays 311 old pairs")
holds(
    refreshes[-1]["fresh_accuracy/after"] > refreshes[0]["fresh_accuracy/before"] + 0.1,
    "the refreshed model orders the policy's pairs better",
)
holds(last["refreshed"] > last["frozen"], "gold ends higher with the refreshed model")
half = len(runs["frozen"]) // 2  # the frozen model's own reward goes on rising
first, second = (sum(row["reward"] for row in runs["frozen"][part])
                 for part in (slice(half), slice(half, None)))  # fmt: skip
holds(second > first, "the frozen run's own reward keeps rising")
holds(refreshes[0]["fresh_accuracy/before"] < 0.7, "the old model orders fewer than 0.7 of them")
holds(runs["frozen"][-1]["validation/kl"] > 10, "the frozen run ends more than 10 nats away")

# %% [markdown]
# - **Gold** (left): once the policy has left the responses that the frozen reward model knows, its
#   gold stops rising, while its own reward goes on. That is over-optimisation, the subject of
#   [17_when_the_proxy_breaks](17_when_the_proxy_breaks.ipynb).
# - **The refreshed model** orders 0.57 of the pairs of the policy's responses before the first refresh
#   (`fresh_accuracy/before`; 0.65 on another processor), and clearly more after the second. These
#   are pairs that it was not trained on. `probe_accuracy`, on responses of the first policy, rises too:
#   nothing is forgotten.
# - **Reward** (second panel): in the refreshed run every iteration has its own reward scale, so do
#   not compare its curve across a dashed line. The drop there is the new model's verdict on the
#   same policy. `probe_reward`, the base model's responses under both models, hardly moves.
# - **KL**: to the reference it falls to 0 with every iteration. From the start nothing bounds it, and
#   the frozen run ends more than 10 nats away. Moving the reference gives up the anchor
#   ([12_single_model_grpo](12_single_model_grpo.ipynb) does that in every batch).
#
# With a reward model that is good to begin with (160,000 comparisons) the frozen run did as well,
# in three iterations of thirty steps ([docs/study.md](../docs/study.md)). The refresh pays where
# the model is weak, but it is not free: every refresh needs somebody to label new pairs.
#
# **The commands**: `python -m rl.grpo_process_engine` and `python -m rl.grpo_iterative_engine`.

# %%
plots.code(continual.history_count, docstring=False)

# %% [markdown]
# ## 7. Exercises
#
# Fill in the functions and run the cells. `check` says in words what is right or wrong.
#
# **1.** Write the z-scores of step rewards, (N, K): of all steps of all `group_size` responses to a prompt
# together. 0 where `step_mask` is False. Divide by the standard deviation plus $\epsilon$ = 1e-4, as the
# library does: it keeps a group of equal rewards from dividing by 0.


# %%
def my_step_z_scores(step_rewards, step_mask, group_size):
    return ...  # your lines


check("step_z_scores", my_step_z_scores)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_step_z_scores(step_rewards, step_mask, group_size):
#     scores = torch.zeros_like(step_rewards)
#     for first in range(0, len(step_rewards), group_size):
#         rows = slice(first, first + group_size)
#         pool = step_rewards[rows][step_mask[rows]]
#         scores[rows] = (step_rewards[rows] - pool.mean()) / (pool.std() + 1e-4)
#     return scores * step_mask
# ```
#
# </details>
#
# **2.** Write the advantages, (N, T), from z-scores and the ends of the steps.


# %%
def my_process_advantages(z_scores, step_ends, step_mask, response_mask):
    return ...  # your lines


check("process_advantages", my_process_advantages)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_process_advantages(z_scores, step_ends, step_mask, response_mask):
#     t = torch.arange(response_mask.shape[1])
#     still_to_end = step_mask[:, :, None] & (step_ends[:, :, None] >= t)  # (N, K, T)
#     return (z_scores[:, :, None] * still_to_end).sum(1) * response_mask
# ```
#
# </details>
#
# **To think about.** Why is the reward model's score centred again after each refresh, although GRPO's
# advantages do not change when a constant is added to all rewards?
#
# <details>
# <summary>Answer</summary>
#
# For everything around it: a reward in the log, a penalty for a missing EOS and a KL in the reward
# all depend on the score's offset. The Bradley-Terry loss leaves that offset open, so it would
# drift from refresh to refresh.
#
# </details>
#
# ---
# Next: [16_verifiable_rewards](16_verifiable_rewards.ipynb).
