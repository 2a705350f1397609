# %% [markdown]
# # 14. Verifiable rewards
#
# **Why.** A learned reward model is a stand-in for what we want, and a policy that is trained
# against it for long finds out where it is wrong. Some tasks need no stand-in: a sum is right or
# it is not. The reward is then a few lines of Python, it cannot be over-optimised in the same way,
# and one question takes its place: *does the rule read what the policy means?* This page goes
# through the rule of [rl/rewards/verifiable.py](../rl/rewards/verifiable.py) (how an answer is found
# and compared), what it pays, what can be learned from rewards that are only 0 and 1, how results are
# reported honestly (pass@k), and then trains with it. DeepSeek-R1
# ([arXiv:2501.12948](https://arxiv.org/abs/2501.12948)) is the best-known use.
#
# **To run it yourself:** `make demo` once sets up `.venv`, `make dev` adds the Jupyter kernel; then
# choose the kernel of `.venv`. It takes about half a minute on one CPU core. Read
# [07_grpo](07_grpo.ipynb) first. The page before this one:
# [15_process_and_iterative_grpo](15_process_and_iterative_grpo.ipynb); the next:
# [18_knowledge_distillation_rewards](18_knowledge_distillation_rewards.ipynb).

# %%
import copy
import dataclasses
import inspect
import itertools
import random

import matplotlib.pyplot as plt
import torch

try:
    from data.records import PromptRecord
    from gpt import finetuning
    from gpt.common import MetricLog, make_generator
    from gpt.generate import SamplingParams
    from gpt.model import GPT, GPTConfig
    from gpt.tokenizer import load_tokenizer
except ModuleNotFoundError as error:
    raise ImportError("run `make demo` once, then choose the kernel of .venv") from error

# %%
from rl import grpo_engine
from rl.batches.rollout import sample_rollout
from rl.equations.advantages import group_advantages
from rl.rewards import verifiable
from rl.rewards.verifiable import (
    VerifiableReward,
    answer_match,
    final_answer,
    parse_number,
    pass_at_k,
    read_answer,
    same_answer,
    solve_rates,
    think_format,
)
from rl.training.evaluation import format_table, measure_accuracy, running_mean

torch.set_num_threads(1)  # one thread adds up in the same order on every machine
tokenizer = load_tokenizer("glassbox")

# %% [markdown]
# ## 1. Where the answer stands
#
# A response is free text. The rule looks at the **response alone**: an answer that stands in the
# prompt must not pay, not even when the policy copies the prompt. The order is fixed and written
# down, because a reader of a result must be able to say what counted.

# %%
print(inspect.getdoc(verifiable))
print()
print(inspect.getsource(final_answer))

# %%
responses = [
    "She has 16 - 7 = 9 eggs.\n#### 9",
    "#### 5\nWait, that is wrong.\n#### 7",
    "The area is \\boxed{\\frac{1}{2}} of 9.",
    "The answer is 5, or maybe 7.",
    "It costs $1,234.50.",
    "<think>5? 6? No: 7.</think> It is 8.",
    "<think>I am still thinking about 7",
    "I cannot say.",
]
rows = [[text.replace("\n", " / "), final_answer(text, numeric=True)] for text in responses]
print(format_table(["response", "answer"], rows))
answers = [answer for _, answer in rows]
assert answers == ["9", "7", "\\frac{1}{2}", "7", "$1,234.50", "8", None, None]

# %% [markdown]
# `None` is not an error: a response without an answer is *wrong*, and the share of such responses
# is logged as `unanswered`. Any rule has a price. "The last number" takes the 7 of "5, or maybe 7",
# and it pays for "7" after nonsense; only the number is checked, never the way to it.
#
# ## 2. When two answers are equal

# %%
print(inspect.getsource(parse_number))
print(inspect.getsource(same_answer))

# %%
pairs = [
    ("1,000", "1000"), ("$5.", "5"), ("50 %", "50"), ("1e3", "1000"), ("-0", "0"), ("5.0", "5"),
    ("1/2", "0.5"), ("1/2", "1/2"), ("nan", "5"), ("inf", "5"), ("1,2,3", "123"), ("٤٢", "42"),
    ("Paris", "paris."),
]  # fmt: skip
print(format_table(["given", "truth", "equal"], [[*p, str(same_answer(*p))] for p in pairs]))
equal = [same_answer(*pair) for pair in pairs]
assert equal == [True] * 6 + [False, True] + [False] * 4 + [True]

# %% [markdown]
# `Decimal` would accept much more: `NaN`, `Infinity`, `1_000`, digits of any script. Every extra
# way to be right is a way to be right by accident, so the pattern is strict and `Decimal` gets only
# what matches it. Floats would be worse: in floats 0.1 + 0.2 is not 0.3.
#
# ## 3. What an answer earns
#
# $$R_i = \sum_k w_k R_{i,k}, \qquad R_{i,\text{answer}} = 1 \text{ if right, else } 0
# \text{ (or } -1\text{)}$$
#
# A response that was cut off before its end is wrong, whatever it says. A rule that raises pays
# like a wrong answer and is counted (`rule_errors`): there is one reward for every row, always. A
# format rule (DeepSeek-R1's: one `<think>...</think>`, then text) may be a second part.

# %%
print(inspect.getsource(VerifiableReward.with_metrics))

# %% [markdown]
# ## 4. A small task
#
# Questions such as "What is 7+8?", and a GPT of two layers that has read sloppy answers to them:
# half of the numbers are wrong, and three answers in ten give none. It is trained here from
# nothing, in ten seconds. (It reads all 144 questions in this stage; the page is about the reward,
# not about generalising.)

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
    for record in rng.choices(records, k=16_000)
]
shape = GPTConfig(vocab_size=tokenizer.n_vocab, context=40, n_layer=2, n_head=4, n_embd=96)
base = GPT(shape).initialize(make_generator(0, "weights"))
finetuning.train(
    finetuning.FinetuningConfig(lr=4e-3, batch_size=32, warmup=30, eval_every=500, device="cpu"),
    base, examples[320:], examples[:320], MetricLog(500), eos_id=tokenizer.eos_id,
)  # fmt: skip
params = SamplingParams(max_new_tokens=16)

# %%
G = 4
rollout = sample_rollout(base, tokenizer, records[30:34], params, G, make_generator(0, "demo"))
reward = VerifiableReward(answer_match, "right answer", reads=read_answer)
rewards, measured = reward.with_metrics(rollout)
signed = reward.paying(wrong=-1)(rollout)

table = [
    [rollout.records[i].prompt.strip(), rollout.responses[i],
     str(read_answer(rollout.records[i], rollout.responses[i])), rewards[i].item(), signed[i].item()]
    for i in range(len(rollout))
]  # fmt: skip
print(format_table(["prompt", "response", "read", "0 or 1", "-1 or 1"], table))
print({name: round(value, 3) for name, value in measured.items()})
assert set(rewards.tolist()) == {0.0, 1.0} and torch.equal(signed, 2 * rewards - 1)

# %% [markdown]
# A copied question earns nothing, although its last number is sometimes the right one (0+7). A
# question that is copied wrongly is text like any other, and its number is read. With GRPO it does
# not matter whether a wrong answer earns 0 or -1: the group's mean and standard deviation take out
# shift and scale. (Beside a KL penalty in the reward it does matter.) Section 5 explains
# `solve_rate`.

# %%
easy = PromptRecord("What is 0+7?\n", "7")
assert answer_match(easy, "What is 0+7? It is hard.", True) == 0
assert answer_match(easy, "What is 0+7? It is 7.", True) == 1
assert answer_match(easy, "It is 7.", False) == 0  # cut off
assert torch.allclose(group_advantages(rewards, G), group_advantages(signed, G), atol=1e-3)

# %% [markdown]
# A format reward beside it, for four other texts in the place of the first group. Both parts are
# logged, as means over all 16 responses, so that a rise in reward can be traced:

# %%
both = reward.paying(others={"format": (0.2, think_format)})
record = records[30]
texts = [f"<think>2+6</think> {record.answer}", f"#### {record.answer}", "<think>?</think> 5", "?"]
part = dataclasses.replace(rollout, responses=texts + rollout.responses[4:])
total, numbers = both.with_metrics(part)
for text, value in zip(texts, total.tolist()):
    print(f"{value:.1f}  {text}")
print({name: round(value, 3) for name, value in numbers.items() if "/" in name})
assert [round(value, 3) for value in total[:4].tolist()] == [1.2, 1.0, 0.2, 0.0]
assert abs(numbers["reward/answer"] + numbers["reward/format"] - float(total.mean())) < 1e-6

# %% [markdown]
# ## 5. What 0 and 1 can teach
#
# In a group of equal rewards every advantage is 0. If a prompt is solved with probability $p$, and
# the $G$ samples are independent, a group has something to say with probability
#
# $$1 - p^G - (1 - p)^G$$
#
# Prompts that are too easy and prompts that are too hard are both wasted. The log has both ends as
# `solve_rate` (the share of prompts with at least one right response) and `solve_rate_all` (with
# nothing but right ones). With rewards of 0 and 1, `zero_spread_groups` = 1 - `solve_rate` +
# `solve_rate_all`. Neither of them is the chance that *one* response is right: that is
# `correct_rate` in the log, and the success rate of [13_grpo_family](13_grpo_family.ipynb).

# %%
print(inspect.getsource(solve_rates))
p = torch.linspace(0, 1, 101)
figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
draws = make_generator(0, "groups")
for size, color in ((4, "tab:blue"), (8, "tab:orange"), (64, "tab:green")):
    axis.plot(p, 1 - p**size - (1 - p) ** size, color=color, label=f"G = {size}")
    for chance in (0.02, 0.3, 0.9):
        correct = torch.rand(4000 * size, generator=draws) < chance
        rates = solve_rates(correct, size)
        share = rates["solve_rate"] - rates["solve_rate_all"]
        axis.plot(chance, share, "o", color=color)
        assert abs(share - (1 - chance**size - (1 - chance) ** size)) < 0.04
axis.set(xlabel="p, the chance that one sample is right", ylabel="share of groups with a spread")
axis.legend()
plt.show()

# %% [markdown]
# (Dots: 4,000 simulated groups each.) Hence larger groups for hard prompts, and DAPO's dynamic
# sampling ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476)), which draws prompts until enough
# groups have spread.
#
# ## 6. pass@k
#
# One number hides a lot. *pass@1* is the share of right samples; *pass@k* the chance that at least
# one of $k$ is right. From $n \ge k$ samples of which $c$ are right, the unbiased estimate counts
# the subsets without a right one (Chen et al. 2021,
# [arXiv:2107.03374](https://arxiv.org/abs/2107.03374), Eq. 1):
#
# $$\mathrm{pass@}k = 1 - \binom{n - c}{k} \Big/ \binom{n}{k}$$
#
# The obvious $1 - (1 - c/n)^k$ puts samples back into the urn and comes out too low.

# %%
print(inspect.getsource(pass_at_k))
chance, n, k = 0.2, 8, 4
exact = 1 - (1 - chance) ** k
unbiased = naive = 0.0
for outcome in itertools.product([False, True], repeat=n):  # all 256 outcomes of 8 samples
    c = sum(outcome)
    weight = chance**c * (1 - chance) ** (n - c)
    unbiased += weight * pass_at_k(torch.tensor([outcome]), k)
    naive += weight * (1 - (1 - c / n) ** k)
print(
    f"exact pass@{k} {exact:.4f}, expected estimate {unbiased:.4f}, with samples put back {naive:.4f}"
)
assert abs(unbiased - exact) < 1e-9 and naive < exact - 0.01

# %% [markdown]
# ## 7. Training with the rule
#
# GRPO as it is; the rule stands where the reward model stood. No KL penalty: there is no reward
# model whose blind spots the policy could find, so there is less to guard against.

# %%
config = grpo_engine.GRPOConfig(
    steps=50, prompts_per_step=16, group_size=8, lr=5e-4, kl_coef=0.0, stop_kl=None,
    max_new_tokens=16, device="cpu",
)  # fmt: skip
policy = copy.deepcopy(base)
log = grpo_engine.train(config, policy, tokenizer, reward, records, MetricLog(50))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
steps = [row["step"] for row in log]
for key, color in (
    ("solve_rate", "tab:green"), ("correct_rate", "tab:blue"), ("solve_rate_all", "tab:orange"),
    ("unanswered", "tab:red"),
):  # fmt: skip
    left.plot(steps, running_mean([row[key] for row in log], 5), color=color, label=key)
left.set(xlabel="step", ylabel="share (mean of 5 steps)", ylim=(0, 1.3), title="Training")
left.legend(ncols=2, loc="upper center")
tries, curves = 64, {}
for name, model, color in (("before", base, "grey"), ("after", policy, "tab:blue")):
    samples = sample_rollout(model, tokenizer, records, params, tries, make_generator(1, name))
    correct = reward.correct(samples).view(-1, tries)
    curves[name] = [pass_at_k(correct, k) for k in range(1, tries + 1)]
    right.plot(range(1, tries + 1), curves[name], color=color, label=name)
right.set(xlabel="k", ylabel="pass@k", ylim=(0, 1.02), title="Before and after")
right.set_xscale("log", base=2)
right.legend()
plt.show()

# %%
before, after = (measure_accuracy(m, tokenizer, records, params, reward) for m in (base, policy))
keys = list(before)
print(format_table(["", *keys], [["before", *before.values()], ["after", *after.values()]]))
first, last = ([row[key] for row in log] for key in ("unanswered", "correct_rate"))
assert after["pass@1"] > before["pass@1"] + 0.15
assert abs(curves["after"][31] - curves["before"][31]) < 0.05  # pass@32
assert sum(first[-5:]) < sum(first[:5]) / 2 and sum(last[-5:]) > sum(last[:5])
for row in log:
    unequal = row["solve_rate"] - row["solve_rate_all"]
    assert abs(row["zero_spread_groups"] - (1 - unequal)) < 1e-6

# %% [markdown]
# Read the three columns together. The policy samples a right answer much more often than before.
# It does so by giving up "I do not know" and by preferring the likelier number, and both were in
# the base model already: taking the likeliest token at every step, the base model was nearly as
# good as it is now, and from sixteen tries on it solved as many questions. Training has
# **sharpened** what was there. Whether longer training on larger models goes beyond that is
# debated (for example [arXiv:2504.13837](https://arxiv.org/abs/2504.13837)); whoever reports pass@1
# alone cannot take part in the debate. `report.json` of every run with a rule has all three.
#
# ## Exercises
#
# 1. A colleague checks `record.answer in record.prompt + response`. Name three responses to
#    "What is 7+8?" (truth 15) that earn 1 without being an answer, and say which of them a policy
#    would find first.
# 2. With $G = 8$ and $p = 0.01$, how many of 1,000 groups teach something? What would you change?
#
# <details>
# <summary>Answers</summary>
#
# 1. "150", "I think of 7, 8, 15, 23, ...", "not 15": anything that contains the characters 1 and 5
#    in a row. A list of numbers is found first: each number that is added can only help, so the
#    reward pays for length. Had the question been "What is 15+0?", an empty response would do.
# 2. $1 - 0.01^8 - 0.99^8 \approx 0.077$, so 77. Easier prompts first, more samples per prompt, or
#    a better start (fine-tuning on solutions); a larger learning rate changes nothing.
#
# </details>
