# %% [markdown]
# # 12. Checkable answers and step rewards
#
# **The question.** Some answers are right or wrong. What changes when a rule gives the reward instead of
# a reward model? And can a reward say *which step* went wrong?
#
# **After this page you can** write a rule that reads an answer and know its price, estimate pass@k
# without bias, say when a group teaches something, give credit to steps, and say what a policy learns
# first of several rewards.
#
# **Why.** A learned reward model is a stand-in for what we want. A policy that is trained against it long
# enough finds out where it is wrong. A sum needs no stand-in, because a few lines of Python can check it,
# so such a reward is much harder to fool. But another question arises: *does the rule
# read what the policy means?* The best-known use is DeepSeek-R1
# ([arXiv:2501.12948](https://arxiv.org/abs/2501.12948)).
#
# | section | question |
# | --- | --- |
# | 1 | where is the answer? |
# | 2 | when are two answers equal? |
# | 3 | what does an answer earn? |
# | 4 | what can rewards of 0 and 1 teach? |
# | 5 | how are results reported honestly? (pass@k) |
# | 6 | what does training change? |
# | 7 | what is a single step of an answer worth? |
# | 8 | what does a policy learn first of several rewards? |
#
# **You need** [07_grpo](07_grpo.ipynb). The rules live in
# [rl/rewards/verifiable.py](../rl/rewards/verifiable.py), the engine of section 7 is
# [rl/grpo_process_engine.py](../rl/grpo_process_engine.py).
#
# **It takes** about a minute on one CPU core, after start-up.

# %%
import copy
import dataclasses
import inspect
import itertools
import math
import random
import re

import matplotlib.pyplot as plt
import torch

try:
    from course import plots
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.claims import holds
from course.exercises import check

from data.collate import join_responses
from data.records import PromptRecord
from data.worlds import sums
from gpt import finetuning
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.metric_log import MetricLog
from harness.seeds import make_generator
from report.tokens import show_tokens

# %%
from rl import grpo_engine, grpo_process_engine
from rl.batches.rollout import Rollout, sample_rollout
from rl.equations.advantages import (
    gdpo_advantages,
    group_advantages,
    process_advantages,
    weighted_sum,
)
from rl.equations.best_of_n import pass_at_k
from rl.loop import Run
from rl.rewards import verifiable
from rl.rewards.function import FunctionReward
from rl.rewards.several import SeveralRewards
from rl.rewards.step_rewards import CheckedSteps, OutcomeSteps
from rl.rewards.verifiable import ANSWERS, answer_match, meaning, read_answer
from rl.run.evaluation import measure_accuracy

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
tokenizer = load_tokenizer("glassbox")

# %% [markdown]
# ## 1. Finding the answer
#
# *A rule must first find the answer in a text. This section shows where the obvious way fails.*
#
# A response is free text. The rule looks at the **response alone**, because an answer in the prompt must
# not count, not even when the policy copies the prompt. The naive rule takes the last number of the text.
# **Predict, then run:** in which of these ten responses does it read something other than the writer
# meant?


# %%
def last_number(text: str) -> str | None:
    numbers = re.findall(r"-?[0-9]+", text)
    return numbers[-1] if numbers else None


responses = [
    "It is 15.",
    "I cannot say.",
    "She has 16 - 7 = 9 eggs.\n#### 9",
    "#### 7\nI checked it 2 times.",
    "The area is \\boxed{\\frac{1}{2}} of 9.",
    "It costs $1,234.50.",
    "It is 7 or 8.",
    "答案是４２。",
    "<think>5? 6? No: 7.</think> It is 8.",
    "<think>I am still thinking about 7",
]
record = PromptRecord("How many?\n", "7")  # its answer is a number, so a number is looked for
library = [read_answer(record, text) for text in responses]
rows = []
for text, found in zip(responses, library, strict=True):
    naive = last_number(text)
    verdict = "same" if naive == found else "differs"
    rows.append([text.replace("\n", " / "), str(naive), str(found), verdict])
plots.table(["response", "last number", "library", ""], rows, shade={"differs": "bad"}.get)
assert library == ["15", None, "9", "7", "1/2", "$1,234.50", None, "42", "8", None]

# %% [markdown]
# `None` is not an error. It says that there is no answer. Such a response is *wrong*, and the share of them
# is logged as `unanswered`. In which order the library looks is fixed and written down, because a reader of
# a result must be able to say what counted:

# %%
print(inspect.getdoc(verifiable))
plots.code(read_answer, docstring=False)

# %% [markdown]
# Any rule has a price. For example, this one takes the 7 of "5, or maybe 7". And it rewards a "7" after
# nonsense, because it checks only the number and not the reasoning.
#
# ## 2. When two answers are equal
#
# *The answer is found. Is "1,000" the same as "1000"?*
#
# The library compares two answers as fractions where both are numbers, and as text otherwise. Why not by
# Python's `float`? It would accept `NaN`, `Infinity` and `1_000`, and every extra way to be right is a way
# to be right by accident.

# %%
pairs = [
    ("1,000", "1000"), ("$5.", "5"), ("50 %", "50"), ("1e3", "1000"), ("-0", "0"), ("5.0", "5"),
    ("1/2", "0.5"), ("٤٢", "42"), ("Paris", "paris."), ("nan", "5"), ("1,2,3", "123"), ("0.33", "1/3"),
]  # fmt: skip
equal = [meaning(given) == meaning(truth) for given, truth in pairs]
rows = [[*pair, "equal" if same else "not equal"] for pair, same in zip(pairs, equal, strict=True)]
plots.table(["given", "truth", ""], rows, shade={"equal": "good"}.get)
assert equal == [True] * 9 + [False] * 3
plots.code(meaning, docstring=False)

# %% [markdown]
# More cases, each with its reason:
#
# | written | read as | because |
# | --- | --- | --- |
# | `5 cm`, `5 cm²`, `5%` | 5 | a unit after a number changes nothing |
# | `0.5`, where the truth is `50%` | right | it is the share of one that the percentage means |
# | `0,5` | 0.5 | a decimal comma is read where it cannot stand between thousands |
# | `1,000` | 1000 | here it can |
# | `not 5`, `5以外` | no answer | the response denies the number |
# | `five or 5` | no answer | it offers the number beside another one |
#
# **Formulas** are a library's work. [math-verify](https://github.com/huggingface/Math-Verify)
# (`pip install math-verify`) reads them. With it a reward has three lines:
#
# ```python
# from math_verify import parse, verify
#
# def right(prompt, response, record, ended):  # --reward my_rewards.py:right
#     return float(ended and verify(parse(f"${record.answer}$"), parse(response)))
# ```
#
# Which rule is better? Here is what each of the two gives (math-verify 0.9.0; it is not installed here):
#
# | response | truth | ours | math-verify |
# | --- | --- | --- | --- |
# | `\boxed{\sqrt{12}}` | `2\sqrt{3}` | 0 | 1 |
# | `\boxed{5\text{ cm}}` | `5` | 1 | 1 |
# | `2½` | `5/2` | 1 | 0 |
# | `#### 42`, then a line "I checked it 2 times." | `42` | 1 | 0 |
# | `答案是42。` | `42` | 1 | 0 |
# | `7 or 8` | `8` | 0 | 1 |
# | `It is not 42.` | `42` | 0 | 1 |
# | `7 dozen` | `7` | 0 | 1 |
# | `<think>so 42` | `42` | 0 | 1 |
#
# Each is right in cases where the other is wrong, because one knows formulas and the other one knows how
# people write. So try a rule on the responses that *your* policy writes, before you pay by it.
#
# ## 3. What an answer earns
#
# *From "right or wrong" to the advantages of GRPO, on a task that is small enough to train here.*
#
# The reward of response $i$:
#
# $$R_i = 1 \text{ if the answer is right, else } 0 \text{ (or } -1\text{)}$$
#
# A response that was cut off before its end is wrong, whatever it says. And where the rule itself raises an
# exception, the response gets what a wrong one gets, and is counted (`rule_errors`). So there is always one
# reward for every row.
#
# Now a small task: questions such as "What is 7+8?". A GPT of two layers is trained here, from nothing, on
# sloppy answers to them. Half of their numbers are wrong, and three answers in ten have no number at all.

# %%
records = [PromptRecord(f"What is {a}+{b}?\n", str(a + b)) for a in range(12) for b in range(12)]
rng = random.Random(0)


def sloppy_answer(record: PromptRecord) -> str:
    """Right or wrong by 1 or 10, in one of four forms."""
    number = int(record.answer) + rng.choice([0, 0, 0, 1, -1, 10])
    forms = [f"#### {number}", f"It is {number}.", "I do not know.",
             f"{record.prompt.strip()} It is hard."]  # fmt: skip
    return rng.choices(forms, [0.35, 0.35, 0.15, 0.15])[0]


examples = [
    (tokenizer.encode(record.prompt), [*tokenizer.encode(sloppy_answer(record)), tokenizer.eos_id])
    for record in rng.choices(records, k=12_800)
]
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=40, n_layer=2, n_head=4, n_embd=96)
base = GPT(shape).initialize(make_generator(0, "weights"))
finetuning.train(
    finetuning.FinetuningConfig(lr=4e-3, batch_size=32, warmup_steps=30, eval_every=380, device="cpu"),
    base, examples[320:], examples[:320], MetricLog(380), eos_id=tokenizer.eos_id,
)  # fmt: skip
params = SamplingParams(max_new_tokens=16)

# %%
G = 4
rollout = sample_rollout(base, tokenizer, records[30:34], params, G, make_generator(0, "demo"))
reward = ANSWERS  # the rule `answer_match`, and what is logged of it

naive = torch.tensor([
    float(ended and last_number(text) == record.answer)
    for record, text, ended in zip(
        rollout.records, rollout.responses, rollout.has_eos.tolist(), strict=True
    )
])  # fmt: skip
rewards, measured = reward.with_metrics(rollout)
copied = [record.prompt.strip() in text
          for record, text in zip(rollout.records, rollout.responses, strict=True)]  # fmt: skip
for i, text in enumerate(rollout.responses):
    note = "(copies the question)" if copied[i] else ""
    print(f"{rollout.records[i].prompt.strip():15} {text:34} reward {rewards[i]:.0f} {note}")
assert all(a == b for a, b, copy_ in zip(rewards, naive, copied, strict=True) if not copy_)
assert answer_match(PromptRecord("What is 0+7?\n", "7"), "What is 0+7? It is hard.", True) == 0

# %% [markdown]
# A copied question earns nothing, although its last number is sometimes the right one (0+7).
#
# Next come the advantages of the same responses, token by token. With GRPO it does not matter whether a
# wrong answer earns 0 or -1, because the group's mean and deviation take out shift and scale. A group in
# which all are right, or none is, stays white: nobody in it did better than the others.

# %%
A = group_advantages(rewards, G)
signed = 2 * rewards - 1  # right 1, wrong -1
assert torch.allclose(A, group_advantages(signed, G), atol=1e-3)
mask = rollout.response_mask
texts = [
    ["(EOS)" if t == tokenizer.eos_id else tokenizer.decode([t]) for t in row[keep].tolist()]
    for row, keep in zip(rollout.response_tokens, mask, strict=True)
]
show_tokens(texts, {"advantage": A * mask, "reward": rewards[:, None] * mask},
            prompts=[record.prompt.strip() for record in rollout.records])  # fmt: skip

# %% [markdown]
# ## 4. What 0 and 1 can teach
#
# *Some groups stayed white. How many will that be?*
#
# We need three words. The first is about responses, the other two are about prompts:
#
# | word | meaning | in the log |
# | --- | --- | --- |
# | success rate $p$ | the chance that *one* response is right (pass@1 of section 5) | `correct_rate` |
# | solve rate | the share of prompts with *at least one* right response of $G$ | `solve_rate` |
# | | the share of prompts with nothing but right ones | `solve_rate_all` |
#
# In a group of equal rewards every advantage is 0. Of $G$ independent responses all are right with
# probability $p^G$, and all are wrong with $(1 - p)^G$. So a group teaches something with probability
#
# $$1 - p^G - (1 - p)^G$$

# %%
groups = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]]).bool()
solved = groups.any(1).float().mean()  # 3 of 4 prompts
solved_all = groups.all(1).float().mean()  # 1 of 4
informative = solved - solved_all  # 2 of 4: neither all right nor all wrong
print(
    f"solve_rate {solved:.2f}, solve_rate_all {solved_all:.2f}, groups that teach {informative:.2f}"
)
assert (solved, solved_all, informative) == (0.75, 0.25, 0.5)

# %%
p, draws = torch.linspace(0, 1, 101), make_generator(0, "groups")
teaches = {f"G = {size}": 1 - p**size - (1 - p) ** size for size in (4, 8, 64)}
axis = plots.curves(teaches, p.tolist(), axis=plots.panels(1, width=6)[1],
                   xlabel="success rate p", ylabel="share of groups that teach")  # fmt: skip
for size in (4, 8, 64):
    for chance in (0.02, 0.3, 0.9):
        right = torch.rand(4000, size, generator=draws) < chance
        share = float((right.any(1) & ~right.all(1)).float().mean())
        axis.plot(chance, share, "o", color=plots.colour("exact"), markersize=4)
        holds(
            abs(share - (1 - chance**size - (1 - chance) ** size)) < 0.04,
            "the simulated groups lie on the curve",
        )
plt.show()

# %% [markdown]
# (Dots: 4,000 simulated groups each.) Prompts that are too easy and prompts that are too hard are both
# wasted. There are two remedies: larger groups for hard prompts, and DAPO's dynamic sampling
# ([11_grpo_family](11_grpo_family.ipynb), section 7).
#
# ## 5. pass@k
#
# *Training is next. First we need a number that shows what it changed.*
#
# One number hides a lot. *pass@1* is the share of right samples. *pass@k* is the chance that at least one
# of $k$ samples is right. To estimate it, draw $n \ge k$ samples, of which $c$ are right, and look at all
# subsets of $k$ of them. The unbiased estimate counts the subsets without a right one (Chen et al. 2021,
# [arXiv:2107.03374](https://arxiv.org/abs/2107.03374), Eq. 1):
#
# $$\mathrm{pass@}k = 1 - \binom{n - c}{k} \Big/ \binom{n}{k}$$

# %%
correct = torch.tensor([[True, False, False, False]])  # n = 4 samples, c = 1 is right
subsets = list(itertools.combinations(correct[0].tolist(), 2))  # all pairs of them
naive = sum(any(subset) for subset in subsets) / len(subsets)
print(f"{len(subsets)} pairs, {naive:.2f} of them hold the right one")
assert naive == pass_at_k(correct, 2) == 1 - math.comb(3, 2) / math.comb(4, 2) == 0.5
plots.code(pass_at_k, docstring=False)

# %% [markdown]
# **Predict, then run.** The obvious estimate is $1 - (1 - c/n)^k$. Is it right on average? All 256
# outcomes of eight samples, each with its probability:

# %%
chance, n, k = 0.2, 8, 4
exact = 1 - (1 - chance) ** k
unbiased = obvious = 0.0
for outcome in itertools.product([False, True], repeat=n):
    c = sum(outcome)
    weight = chance**c * (1 - chance) ** (n - c)
    unbiased += weight * pass_at_k(torch.tensor([outcome]), k)
    obvious += weight * (1 - (1 - c / n) ** k)
print(f"exact pass@{k} {exact:.4f}, counting subsets {unbiased:.4f}, the obvious one {obvious:.4f}")
holds(
    abs(unbiased - exact) < 1e-9 and obvious < exact - 0.01,
    "the obvious estimate comes out too low",
)

# %% [markdown]
# The obvious estimate comes out too low. It draws the $k$ samples with replacement, so one sample may fill
# several of the $k$ places. Then fewer different ones are tried than pass@k means.
#
# ## 6. Training with the rule
#
# *Thirty steps of GRPO, paid by the rule.*
#
# GRPO is unchanged, and the rule replaces the reward model. There is no KL penalty, because we know of no
# blind spot of this rule that so short an answer could use. (Page [25](25_steering_a_published_model.ipynb)
# has a reward that does.) **Predict, then run:** what happens to pass@1? And to pass@32?

# %%
config = grpo_engine.GRPOConfig(
    steps=30, prompts_per_step=16, group_size=8, lr=6e-4, kl_coef=0.0, stop_kl=None,
    max_new_tokens=16, device="cpu",
)  # fmt: skip
policy = copy.deepcopy(base)
log = grpo_engine.train(Run(config, policy, tokenizer, reward, records, MetricLog(30)))

# %% tags=["hide-input"]
figure, (left, right) = plots.panels(2)
curves = {key: [row[key] for row in log]
          for key in ("correct_rate", "solve_rate", "solve_rate_all", "unanswered")}  # fmt: skip
plots.curves(curves, axis=left, styles={"correct_rate": "policy", "unanswered": "bad"}, smooth=5,
            xlabel="step", ylabel="share", ylim=(0, 1.4), title="Training")  # fmt: skip
left.legend(ncols=2, loc="upper center")
tries, passes = 32, {}
for name, model in (("before", base), ("after", policy)):
    samples = sample_rollout(model, tokenizer, records, params, tries, make_generator(1, name))
    correct = reward.correct(samples).view(-1, tries)
    passes[name] = [pass_at_k(correct, k) for k in range(1, tries + 1)]
plots.curves(passes, range(1, tries + 1), axis=right, styles={"after": "policy"}, xlabel="k",
            ylabel="pass@k", ylim=(0, 1.02), title="Before and after")  # fmt: skip
right.set_xscale("log", base=2)
plt.show()

# %%
accuracy = {name: measure_accuracy(model, tokenizer, records, params, reward)
            for name, model in (("before", base), ("after", policy))}  # fmt: skip
keys = list(accuracy["before"])
plots.table(["", *keys], [[name, *(row[key] for key in keys)] for name, row in accuracy.items()])
first, last = ([row[key] for row in log] for key in ("unanswered", "correct_rate"))
holds(
    accuracy["after"]["pass@1"] > accuracy["before"]["pass@1"] + 0.05,
    "training raises pass@1 by more than 0.05",
)
holds(passes["after"][-1] < passes["before"][-1] + 0.02, "training does not raise pass@32")
holds(
    sum(first[-5:]) < 0.7 * sum(first[:5]) and sum(last[-5:]) > sum(last[:5]),
    "fewer answers say nothing, and more are right",
)
for row in log:
    unequal = row["solve_rate"] - row["solve_rate_all"]
    assert abs(row["zero_spread_groups"] - (1 - unequal)) < 1e-6

# %% [markdown]
# Read the columns together. The policy samples a right answer much more often than before. How does it do
# that? It has nearly given up "I do not know" (`unanswered` above), and the right number has become
# likelier. The base model knew it already. The column `greedy_accuracy` shows that, because with the
# likeliest token at every step the base model was about as good as the policy is now. So does the right end
# of the curves above: with 32 tries it solved about as many questions.
#
# So in this run training has mostly **sharpened** what was there. Whether longer training of larger models
# goes beyond that is debated (for example [arXiv:2504.13837](https://arxiv.org/abs/2504.13837)). A report
# of pass@1 alone cannot settle it, because it looks the same in both cases. `report.json` of every run with
# a rule has all three numbers.
#
# **Which checkpoint?** The questions above are the ones that were trained on. Even where nothing fools the
# rule, a policy can learn their answers by heart. So measure pass@1 on prompts that no step uses, too, and
# keep the checkpoint that is best on *those*. Where they fall while the trained prompts go on rising, the
# gap is what was learned by heart. Mind chance: with 200 held-out questions, half of them right, the 95%
# interval is $\pm 1.96 \sqrt{0.25 / 200} = \pm 0.07$, and the best of many looks is high by luck as well.
# So report the kept checkpoint on a third set.
#
# **The command**: `python -m rl.grpo_engine --data sums` trains on sums with a rule, and
# `--reward my_file.py:my_function` with a rule of your own.
#
# ## 7. A reward for every step
#
# *So far an answer had one reward. Here every step of it has one.*
#
# A right answer may hide a wrong step, and a wrong answer many right ones. Where steps can be checked, each
# can have a reward of its own. That is process supervision (Shao et al. 2024,
# [arXiv:2402.03300](https://arxiv.org/abs/2402.03300), section 4.1.3).
#
# In the sums world an answer may write its steps, column by column with carries. Here are four answers to
# 347 + 588. The first is right. The second goes wrong in its middle step, and the third in its first. Their
# later steps are right in themselves, but the error carries through to the answer. The last one writes no
# steps.

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
written = Rollout([record] * G, texts, sequences, torch.zeros(G, T), group_size=G)
rewards = torch.tensor([sums.exact_match(record, text, True) for text in texts])
print(record.prompt, "one reward per answer:", rewards.tolist())

# %% [markdown]
# `CheckedSteps` cuts a response into steps: first the written sums, then the answer. Each token belongs to
# exactly one step. A step is worth 1 if it is right, and else 0. (The last column is the answer. The fourth
# response has no other step.)

# %%
steps = CheckedSteps(sums, tokenizer)(written, rewards)
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
# **From step rewards to advantages.** Two things are done. First, all step rewards of all responses to a
# prompt form one set $\mathbf R$, and each is normalised with the mean and the standard deviation of that
# set. Then a token gets the sum over its own step and all later ones, because what it did can matter for
# all of these. With $e_{i,j}$ for the token at which step $j$ of response $i$ ends:
#
# $$\tilde r_{i,j} = \frac{r_{i,j} - \mathrm{mean}(\mathbf R)}{\mathrm{std}(\mathbf R)}, \qquad
# \hat A_{i,t} = \sum_{j \,:\, e_{i,j} \ge t} \tilde r_{i,j}$$
#
# Numbers small enough for paper:
#
# | | first step ends at token | is worth | second step ends at token | is worth |
# | --- | --- | --- | --- | --- |
# | response 1 | 1 | 2 | 3 | 1 |
# | response 2 | 0 | 0 | 2 | 1 |
#
# The mean of the four rewards is 1, and their standard deviation is 0.816. Naively:

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
# **Who is to blame? Predict, then run.** The second response has a right first step, a wrong second, a
# right third and a wrong answer. With one reward for the response, which of its tokens are pushed down?
# With one per step?

# %%
m = written.response_mask
outcome = OutcomeSteps()(written, rewards)
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
# With one reward all tokens of the second response are pushed down equally. With one per step they differ.
# In the order of its steps:
#
# - **The right first step** is pushed down too, but less. It has its own *credit* (its share of praise),
#   but also the blame for everything that followed.
# - **The wrong second step** is pushed down most. It is blamed for itself, and for the wrong answer that
#   came from it.
# - **The right third step** is blamed for the wrong answer only, and its own credit makes up for a part of
#   that.
#
# Three things to know before using it.
#
# 1. Nothing divides by the number of steps. So a response of four steps can have an advantage four times as
#    large as one of a single step.
# 2. One mean serves all steps. So where most steps are right, a right one earns little and a wrong one
#    costs much.
# 3. A reward model that was trained on whole responses does not know what a *step* is worth. Its scores
#    inside a response are a heuristic (`rl/rewards/step_rewards.py` says so where it offers them). Steps
#    that a rule checks do not have this problem.
#
# **Steps that are probabilities.** A process reward model says for each step how probable it is that the
# step is right. Which one number does an answer earn? Five steps of 0.9, ten of 0.9, and five with one of
# 0.2 among four of 0.99:
#
# | | sum | mean | minimum | product |
# | --- | --- | --- | --- | --- |
# | five of 0.9 | 4.50 | 0.90 | 0.90 | 0.59 |
# | ten of 0.9 | 9.00 | 0.90 | 0.90 | 0.35 |
# | four of 0.99, one of 0.2 | 4.16 | 0.83 | 0.20 | 0.19 |
#
# Each invites something. The *sum* pays for more steps, so for empty ones. The *mean* lets safe steps hide
# the wrong one. The *minimum* hears only the weakest step, and the others get no credit. The *product* is
# the chance that all are right if their errors are independent, and it pays for few steps, so for leaving
# them out.
#
# In the engine this is a difference of a few lines:

# %%
plots.difference(
    plots.source(grpo_engine.train, ("rollout = ", "run.finish_step"), docstring=False),
    plots.source(grpo_process_engine.train, ("rollout = ", "run.finish_step"), docstring=False),
    names=("rl/grpo_engine.py", "rl/grpo_process_engine.py"), context=1,
)  # fmt: skip

# %% [markdown]
# ## 8. Right, in the right form, and short
#
# *The last question: what happens where several rewards are added up?*
#
# Few rewards stay alone. One pays the right answer, another one its form (`####` before the number), and
# a third one a short answer. `--reward rule my_rewards.py:form my_rewards.py:brief` pays their sum, and
# each has a column of its own in the log: `reward/rule`, `reward/form`, `reward/brief`. We take the small
# task of section 6 again, with three seeds. **Predict, then run:** what does the policy learn first?


# %%
def form(prompt: str, response: str) -> float:
    return float(response.startswith("####"))


def brief(prompt: str, response: str) -> float:
    return 1 - len(response) / 32  # characters


def paid_three(seed: int, combination: str) -> dict[str, list[float]]:
    """The columns of a run that is paid all three rewards alike."""
    three = {"right": ANSWERS, "form": FunctionReward(form, "form"),
             "brief": FunctionReward(brief, "brief")}  # fmt: skip
    flags = dataclasses.replace(config, seed=seed, reward_combination=combination)
    run = Run(flags, copy.deepcopy(base), tokenizer, SeveralRewards(three), records, MetricLog(30))
    rows = grpo_engine.train(run)
    return {name: [row[f"reward/{name}"] for row in rows] for name in three}


runs = {how: [paid_three(seed, how) for seed in range(3)] for how in ("sum", "gdpo")}

# %% tags=["hide-input"]
figure, axes = plots.panels(2)
for axis, how, title in zip(axes, runs, ("summed, then normalised", "normalised, then summed (GDPO)"),
                            strict=True):  # fmt: skip
    mean = {name: torch.tensor([run[name] for run in runs[how]]).mean(0).tolist()
            for name in ("right", "form", "brief")}  # fmt: skip
    plots.curves(mean, axis=axis, styles={"right": "policy", "form": "bad", "brief": "exact"},
                smooth=3, xlabel="step", ylabel="reward, mean of three seeds", ylim=(0, 1.05),
                title=title)  # fmt: skip
plt.show()


# %%
def near(column: list[float], step: int) -> float:
    """A column around a step."""
    return sum(column[step - 2 : step + 3]) / 5


rows = [[how, seed, *(f"{near(run[name], step):.2f}" for name in run for step in (2, 12, 27))]
        for how in runs for seed, run in enumerate(runs[how])]  # fmt: skip
plots.table(["", "seed", *(f"{name}, {when}" for name in ("right", "form", "brief")
                           for when in ("start", "step 12", "end"))], rows)  # fmt: skip
holds(
    all(near(run["form"], 12) > 0.85 and near(run["right"], 12) < 0.5 for run in runs["sum"]),
    "after 12 steps the form is learned and the answer is not",
)
holds(
    all(near(run["right"], 27) < near(run["right"], 2) for run in runs["gdpo"]),
    "where a character of length is as loud as a right answer, fewer are right than at the start",
)

# %% [markdown]
# What is cheap comes first. To be short and to begin with `####` is the same act for every question, so
# every group can push the same way. A right answer is another one for each question. (That this is the
# cause was not tested.) A curve of the sum alone would have looked like success. It is the simplest case of
# a *hacked* reward: nobody cheated, but what was learned is not what was meant.
#
# **How loud is each reward?** In a sum a reward is heard by how much it *varies* within a group. For
# example, a right and a wrong answer differ by 1, but two short answers differ by a few characters, and
# that is 0.1 here. GDPO (Liu et al. 2026, [arXiv:2601.05242](https://arxiv.org/abs/2601.05242)) turns
# this round. It normalises each reward in its group first and adds them up afterwards, so that each is
# heard by its *weight*. A small example has two rewards of 0 or 1 and two groups of two answers. The
# answers of the first group differ in one reward, those of the second group in both:

# %%
two = torch.tensor([[1.0, 0], [0, 0], [1, 1], [0, 0]])  # (N, K)
print("sum, then normalised:", group_advantages(weighted_sum(two, (1, 1)), 2)[:, 0])
print("normalised, then sum:", gdpo_advantages(two, (1, 1), 2)[:, 0])
plots.code(gdpo_advantages, docstring=False)

# %% [markdown]
# In groups of two the deviation hides it: after the sum every winner gets 0.71, whether it is better in one
# reward or in both. GDPO keeps the difference, and that is what its paper is about. (So does a sum that is
# not divided by the deviation.) But now a character of length is as loud as a right answer. In
# these three seeds the policy gives up right answers for answers that are about half a character shorter,
# so that fewer are right than at the start.
#
# Neither way is better by itself. In the sum a reward's scale is a hidden weight. With GDPO the weights
# alone decide (`--reward-weights 1 0.3 0.1`), so they have to be chosen. A weight may be 0: such a reward
# pays nothing, and has its curve all the same. That is how to watch what you mean while you pay what you
# can measure.
#
# ## 9. Exercises
#
# Fill in the functions and run the cells. `check` says in words what is right or wrong.
#
# **1.** Write pass@k as the mean over prompts, from a bool tensor (P, n). `math.comb` may help.


# %%
def my_pass_at_k(correct, k):
    return ...  # your lines


check("pass_at_k", my_pass_at_k)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_pass_at_k(correct, k):
#     n = correct.shape[1]
#     misses = [math.comb(n - c, k) / math.comb(n, k) for c in correct.sum(1).tolist()]
#     return 1 - sum(misses) / len(misses)
# ```
#
# </details>
#
# **2.** Choose the size of a group. Your prompt is answered rightly with the chance in the table, and at
# least the share of groups in the table should teach something. What is the smallest size? (No solution is
# printed.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("group_size", MINE)

# %%
check_answer("group_size", ..., MINE)

# %% [markdown]
# **3.** Write process supervision's advantages, (N, T), from z-scores and the ends of the steps.


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
# **To think about.** With $G = 8$ and $p = 0.01$, how many of 1,000 groups teach something? What would
# you change?
#
# <details>
# <summary>Answer</summary>
#
# $1 - 0.01^8 - 0.99^8 \approx 0.077$, so 77. Easier prompts first, more samples per prompt, or a better
# start (fine-tuning on solutions). A larger learning rate does not change
# that number.
#
# </details>
#
# ## To remember
#
# - A rule pays what it reads: try it on the answers that your policy writes before you pay by it.
# - A group teaches only where its answers differ, with probability $1 - p^G - (1 - p)^G$, and training
#   sharpens what is sampled now and then.
# - Of several rewards the cheap one is learned first and the one that varies most is heard best, so log
#   each of them alone.
#
# Next: [13_when_the_proxy_breaks](13_when_the_proxy_breaks.ipynb), where the reward is a stand-in again.
