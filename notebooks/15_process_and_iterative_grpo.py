# %% [markdown]
# # 13. Process supervision and iterative GRPO
#
# **Why.** [07_grpo](07_grpo.ipynb) is the middle of the GRPO paper (Shao et al. 2024,
# [arXiv:2402.03300](https://arxiv.org/abs/2402.03300)): one reward per response, one reward model,
# one reference. The paper has two more ideas, and this page reads both beside the code.
#
# - **Process supervision** (section 4.1.3): a reward at the end of every *step* of a response, so
#   that a token answers for what it and later tokens did, not for an error before it.
# - **Iterative GRPO** (section 4.1.4 and the outer loop of Algorithm 1): a policy that improves
#   leaves the text on which its reward model was trained. So new comparisons are collected from it,
#   the reward model is trained again, and the reference moves up.
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about half a minute on one CPU core. The page before this
# one: [14_kl_estimators](14_kl_estimators.ipynb); the next:
# [16_verifiable_rewards](16_verifiable_rewards.ipynb).

# %%
import copy
import inspect
import random

import matplotlib.pyplot as plt
import torch

try:
    from data import reviews, sums
    from data.collate import join_responses
    from data.records import PromptRecord
    from gpt import pretraining
    from gpt.common import MetricLog, make_generator
    from gpt.corpus import WorldCorpus
    from gpt.generate import SamplingParams
    from gpt.model import GPT, GPTConfig
    from gpt.tokenizer import load_tokenizer
    from reward_model import continual
    from reward_model.model import RewardModel
    from reward_model.pairs import PairSampling, collate_pairs, sample_pairs
    from reward_model.reward_model_training import ReviewsAnnotator, RewardModelConfig, fit
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

# %%
from rl import grpo_iterative_engine
from rl.batches.rollout import Rollout
from rl.equations.advantages import group_advantages, process_advantages
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.rewards.step_rewards import CheckedSteps, OutcomeSteps
from rl.training.evaluation import Validation, draw_iterations, format_table

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
tokenizer = load_tokenizer("glassbox")

# %% [markdown]
# ## 1. Four answers to one sum
#
# In the sums world an answer may write its steps, column by column with carries, and every step can
# be checked. The second answer below goes wrong in its middle step, the third in its first; what
# follows an error builds on it. The last one writes no steps.

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
print(rewards)

# %% [markdown]
# ## 2. A reward for every step
#
# `CheckedSteps` cuts a response into steps, so that each token belongs to exactly one of them: the
# written sums, then the answer. A step is worth 1 if it is right.

# %%
print(inspect.getsource(CheckedSteps.__call__))
steps = CheckedSteps(tokenizer)(rollout, rewards)
for i in range(G):
    start, pieces = 0, []
    for value, end in zip(steps.rewards[i, steps.mask[i]], steps.ends[i, steps.mask[i]]):
        pieces.append(f"{tokenizer.decode(tokens[i][start : end + 1])!r} {value:.0f}")
        start = int(end) + 1
    print("   ".join(pieces))
assert [int(n) for n in steps.mask.sum(1)] == [4, 4, 4, 1]
assert torch.equal(steps.rewards.sum(1), torch.tensor([4.0, 2.0, 2.0, 0.0]))

# %% [markdown]
# ## 3. From step rewards to advantages
#
# All step rewards of all outputs of a prompt form one set $\mathbf R$. Each is normalised with its
# mean and standard deviation, and a token gets the sum over the steps that are still to end
# (section 4.1.3):
#
# $$\tilde r_{i,j} = \frac{r_{i,j} - \mathrm{mean}(\mathbf R)}{\mathrm{std}(\mathbf R)}, \qquad
# \hat A_{i,t} = \sum_{j \,:\, e_{i,j} \ge t} \tilde r_{i,j}$$

# %%
print(inspect.getsource(process_advantages))

# %% [markdown]
# Numbers small enough for paper: two outputs with steps that end at tokens 1, 3 and 0, 2, worth
# 2, 1 and 0, 1. Mean 1, standard deviation 0.816.

# %%
mask = torch.tensor([[True, True, True, True], [True, True, True, False]])
example = process_advantages(
    torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([[1, 3], [0, 2]]),
    torch.ones(2, 2, dtype=torch.bool), mask, group_size=2, eps=0.0,
)  # fmt: skip
print(example)
a = 1.5**0.5  # 1 / 0.8165
assert torch.allclose(example, torch.tensor([[a, a, 0, 0], [-a, 0, 0, 0]]), atol=1e-6)

# %%
m = rollout.response_mask
outcome = OutcomeSteps()(rollout, rewards)
by_outcome = process_advantages(*outcome, m, G)
by_step = process_advantages(*steps, m, G)
assert torch.equal(by_outcome, torch.where(m, group_advantages(rewards, G), 0.0))  # GRPO itself

limit = 1.4 * float(by_step.abs().max())
figure, axes = plt.subplots(2, 1, figsize=(11, 4.6), layout="constrained")
for axis, A, title in ((axes[0], by_outcome, "one reward"), (axes[1], by_step, "one per step")):
    image = axis.imshow(A, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    for i in range(G):
        for t, token in enumerate(tokens[i][:-1]):
            axis.text(t, i, tokenizer.decode([token]), ha="center", va="center", fontsize=9)
    axis.set(xlabel="token t", ylabel="response i", title=f"Advantage of every token: {title}")
    axis.set_yticks(range(G))
figure.colorbar(image, ax=axes, label="advantage")
plt.show()

# %%
wrong_middle = by_step[1, steps.ends[1]]
print("response 1, step by step:", [round(value, 2) for value in wrong_middle.tolist()])
assert wrong_middle.argmin() == 1 and wrong_middle[2] > wrong_middle[0] > wrong_middle[1]
assert (by_step[0, m[0]] > 0).all() and by_outcome[1, m[1]].unique().numel() == 1

# %% [markdown]
# With one reward all tokens of response 1 (the second row) are pushed down alike. With one per step
# the tokens of its wrong step are pushed down most: they answer for it and for the wrong answer that
# came of it. The step behind is not blamed for the error in front of it. The right first step is
# pushed down too, but less: it has its own credit, and the blame of everything that followed.
#
# Three things to know before using it. (i) Nothing divides by the number of steps: a response of
# four steps can have an advantage four times as large. (ii) One mean serves all steps: where most
# are right, a right one earns little and a wrong one costs much. (iii) A reward model that was
# trained on whole responses does not know what a *step* is worth: only one score of a response was
# ever compared with anything, so the scores inside it are a heuristic (`rl/rewards/step_rewards.py` says so
# where it offers them). Steps that a rule checks do not have this problem. With one step per response
# all of it is plain GRPO, bit for bit.
#
# ## 4. A reward model that is left behind
#
# The second idea. A base model of the reviews world, and a reward model from only 1,400 comparisons
# of its responses: a weak one, on purpose.

# %%
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=96, n_layer=2, n_head=2, n_embd=96)
base = GPT(shape).initialize(make_generator(0, "weights"))
pretraining_config = pretraining.PretrainingConfig(
    steps=500, batch_size=16, lr=6e-3, warmup=30, eval_every=500, device="cpu"
)
corpus = WorldCorpus("reviews", tokenizer, pretraining_config.batch_size, seed=0)
pretraining.train(pretraining_config, base, corpus, MetricLog(500))
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
    pairs=5600, held_out_pairs=300, responses_per_prompt=8, wide_temperature=1.5, lr=2e-3, warmup=5,
    batch_size=4,
)  # fmt: skip
fit(scorer, pairs, fitting, MetricLog(12), eos_id=tokenizer.eos_id)
scorer.normalize_on(collate_pairs(pairs[::20], tokenizer.eos_id))
scorer.requires_grad_(False)
accuracy = continual.order_accuracy(scorer, probe, tokenizer.eos_id)
print(f"orders {accuracy:.2f} of held-out pairs as the gold reward does (a coin: 0.50)")

# %% [markdown]
# ## 5. Line 12: "continuous training using a replay mechanism"
#
# After each iteration: comparisons of the policy's *present* responses, labelled, mixed with "10%
# of historical data" so that the old ones are not forgotten. The ten percent can be read in two
# ways; ours is that a share $f$ of the mix is old,
#
# $$n_{old} = n_{new} \, \frac{f}{1 - f}$$

# %%
print(inspect.getsource(continual.history_count))
for new, history in ((90, 1000), (5600, 1400), (5600, 160_000)):
    mix, of_history = (
        continual.history_count(new, history, 0.1, reading)
        for reading in ("share_of_mix", "share_of_history")
    )
    print(f"{new} new, {history} old: {mix} replayed, or {of_history} in the other reading")
    assert abs(mix / (new + mix) - 0.1) < 0.001 and of_history == history // 10

# %%
print(inspect.getsource(continual.ContinualRewardModel.update))

# %% [markdown]
# ## 6. The outer loop, refreshed and frozen
#
# The lines that GRPO does not have, in `rl/grpo_iterative_engine.py`:

# %%
source = inspect.getsource(grpo_iterative_engine.train).splitlines()
first = next(i for i, line in enumerate(source) if "a new iteration" in line)
print("\n".join(source[first : first + 5]))

# %% [markdown]
# Three iterations of twelve steps. Two runs with the same policy, reward model, prompts and random
# numbers: one trains its reward model again, the other moves its reference alone. Each refresh brings
# 5,600 new pairs, four times what the first model was trained on.

# %%
config = grpo_iterative_engine.IterativeGRPOConfig(
    steps=36, iterations=3, prompts_per_step=8, lr=6e-4, kl_coef=0.05, stop_kl=None, eval_every=6,
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
    runs[name] = grpo_iterative_engine.train(
        config, policy, tokenizer, RewardModelReward(model), prompts, MetricLog(36),
        validate=validate, refresh=refresh if name == "refreshed" else None,
    )  # fmt: skip

# %%
figure, axes = plt.subplots(1, 4, figsize=(14, 3.4), layout="constrained")
draw_iterations(axes, runs)
plt.show()

# %%
keys = [f"{what}/{when}" for what in ("fresh_accuracy", "probe_accuracy", "probe_reward")
        for when in ("before", "after")]  # fmt: skip
refreshes = [row for row in runs["refreshed"] if "pairs/new" in row]
print(format_table(["", *keys], [[f"step {r['step']}", *(r[k] for k in keys)] for r in refreshes]))
last = {name: rows[-1]["validation/gold"] for name, rows in runs.items()}
print(f"gold at the end: {last['refreshed']:.2f} refreshed, {last['frozen']:.2f} frozen")
for rows in runs.values():
    assert all(abs(rows[step]["kl"]) < 1e-4 for step in (0, 12, 24))  # the reference has moved up
assert [r["pairs/replayed"] for r in refreshes] == [622, 622]
assert refreshes[-1]["fresh_accuracy/after"] > refreshes[0]["fresh_accuracy/before"] + 0.1
assert last["refreshed"] > last["frozen"]  # by how much, one seed cannot say
half = len(runs["frozen"]) // 2  # the frozen model's own reward goes on rising
first, second = (sum(row["reward"] for row in runs["frozen"][part])
                 for part in (slice(half), slice(half, None)))  # fmt: skip
assert second > first

# %% [markdown]
# - **Gold** (left): the frozen reward model sends the policy the wrong way once it has left the
#   responses that it knows; its own reward rises all the same. That is over-optimisation.
# - **The refreshed model** could hardly order the policy's responses before the first refresh
#   (`fresh_accuracy/before`) and orders three in four after it. These are pairs that it was not
#   trained on. `probe_accuracy`, on responses of the first policy, rises too: nothing is forgotten.
# - **Rewards** (second panel) of two iterations of the refreshed run are on different scales: its
#   jumps at the dashed lines are jumps of the ruler, not of the policy. `probe_reward` is the same
#   responses under both models.
# - **KL**: to the reference it falls to 0 with every iteration; from the start nothing bounds it,
#   and the frozen run ends far away. The reset gives up the anchor, so how far the policy has gone
#   is read in the last panel alone.
#
# With a reward model that is good to begin with (160,000 comparisons) the frozen run did as well, in
# three iterations of thirty steps ([docs/study.md](../docs/study.md)); the refresh pays where the
# model is weak. It is not free either: every refresh needs somebody who labels new pairs.
#
# ## Exercises
#
# 1. Add a constant to all step rewards of a prompt. What changes in the advantages? And if a
#    response without steps joins the group?
# 2. Why is the reward model's score centred again after each refresh, although GRPO's advantages do
#    not change when a constant is added to all rewards?
#
# <details>
# <summary>Answers</summary>
#
# 1. Nothing changes: mean and standard deviation are of the pooled set. A response without any step
#    has no reward in the set and advantage 0 at every token. (In the engine each token belongs to a
#    step, so this happens in no rollout; the sum above would allow it.)
# 2. For everything around it: a reward in the log, a penalty for a missing EOS and a KL in the
#    reward are all compared with the score's zero. The Bradley-Terry loss leaves that zero open, so
#    it would drift from refresh to refresh.
#
# </details>
