# %% [markdown]
# # 23. Is it better? Evaluating a policy
#
# **The question.** A judge prefers your new policy in 74 of 100 comparisons. Is it better, at what, and
# what would have earned the same number without being better?
#
# **After this page you can** put an interval on a win rate, say how many comparisons you need before you
# make them, find what a judge's preference goes along with and take it out, tell how far two judges agree,
# and run a blind comparison of your own.
#
# **Why.** Training ends with a number, and the number is made by a judge: a person, a prompted model or a
# reward model. Whatever the judge likes for a wrong reason, the policy has learned to produce.
#
# **You need** [06_reward_model](06_reward_model.ipynb) (judges, kappa) and
# [13_when_the_proxy_breaks](13_when_the_proxy_breaks.ipynb). The answers are recorded: those of SmolLM2,
# of 19 policies that preference pairs steered from it, and of the best of its eight answers (page
# [25](25_steering_a_published_model.ipynb), section 4, tells how).
#
# **It takes** about five seconds on one CPU core, after start-up.

# %%
import json
import math
import re
from pathlib import Path

import torch

try:
    from course import plots
    from course.claims import holds
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

from course.entered import check_answer, table
from course.recorded import comparisons

from report.intervals import holm
from reward_model import agreement
from reward_model.accuracy_report import correlation, wilson_interval

plots.use()
torch.set_num_threads(1)
recorded = json.loads(Path("../docs/preferences_48_tokens.json").read_text(encoding="utf-8"))
policies = {name: rows[-1] for name, rows in recorded["policies"].items()}  # the end of each run

# %% [markdown]
# ## 1. A win rate and its interval
#
# For each of $n$ prompts, two policies answer and a judge compares. A win is worth 1, a loss 0, and a tie
# one half, so that a policy against itself scores one half, however many ties there are:
#
# $$v = \frac{1}{n} \sum_i x_i, \; x_i \in \{1, \tfrac12, 0\}, \qquad
# v \pm 1.96 \sqrt{\tfrac{1}{n} \, \mathrm{Var}\,x}, \quad
# \mathrm{Var}\,x = v - \tfrac14 \mathrm{ties} - v^2$$
#
# ("ties" is their share. A win adds 1 to the sum of $x$ and to that of $x^2$, but a tie adds $\frac12$ to
# the first and $\frac14$ to the second, so the mean of $x^2$ is $v - \frac14 \mathrm{ties}$.) Ten
# comparisons with five wins, two ties and three losses:

# %%
x = torch.tensor([1.0] * 5 + [0.5] * 2 + [0.0] * 3)
v, ties = float(x.mean()), 0.2
half = 1.96 * math.sqrt((v - ties / 4 - v**2) / len(x))
print(f"win rate {v:.2f}, from {v - half:.2f} to {v + half:.2f}")
assert abs(x.var(correction=0) - (v - ties / 4 - v**2)) < 1e-6

# %% [markdown]
# Dropping the ties would make it five of eight, 0.63 instead of 0.60. That is another number for another
# question: of the comparisons in which a difference was *seen*, how many went to the new policy? Report
# which one it is, and how many ties there were.
#
# Here are all of them, judged on 108 prompts by a reward model with which none was trained. Their names
# end in the seed, "start" is SmolLM2 against itself, and "the four commands" is what [your pairs and your
# model](../docs/your_pairs.md) get by default settings.

# %% tags=["hide-input"]
names = sorted(policies, key=lambda name: policies[name]["preferred"])
figure, axis = plots.panels(height=5.2, width=7)
for place, name in enumerate(names):
    (low, high), rate = policies[name]["interval"], policies[name]["preferred"]
    style = plots.line("reference" if name == "start" else "policy")
    axis.plot([low, high], [place, place], color=style["color"], linestyle="-")
    axis.plot(rate, place, "o", color=style["color"])
axis.axvline(0.5, color="black", linewidth=0.8)
axis.set_yticks(range(len(names)), names)
axis.set(xlabel="share in which the unseen judge prefers the policy's answer", xlim=(0.2, 0.9))
axis.set_title("More than a third of the intervals hold one half")
best = policies["the four commands"]
assert torch.allclose(
    torch.tensor(wilson_interval(79, 108)), torch.tensor(best["interval"]), atol=1e-3
)
undecided = [n for n in names if policies[n]["interval"][0] < 0.5 < policies[n]["interval"][1]]
print(f"{len(undecided)} of {len(names)} intervals hold one half")
holds(len(undecided) > len(names) / 3, "more than a third of the intervals hold one half")

# %% [markdown]
# (These are Wilson's intervals, which behave better near 0 and 1 than the formula above.) An interval that
# holds one half does not say "no difference". It says that 108 comparisons cannot tell: the difference may
# be a tenth in either direction.
#
# And twenty policies are twenty chances to be lucky. With [Holm's
# correction](21_which_would_you_have_believed.ipynb):

# %%
z = {n: abs(policies[n]["preferred"] - 0.5) / (0.5 / math.sqrt(108)) for n in names if n != "start"}
p = {n: math.erfc(z[n] / math.sqrt(2)) for n in z}
alone, together = (sum(value < 0.05 for value in q.values()) for q in (p, holm(p)))
print(f"p < 0.05 alone: {alone}, all together: {together}")
holds(together < alone, "corrected for twenty comparisons, fewer policies differ from their start")

# %% [markdown]
# ## 2. How many comparisons?
#
# Turn the formula round *before* you compare. With few ties the variance is near $\frac14$, so an interval
# of half width $h$ needs $n = (0.98 / h)^2$ comparisons. To see a win rate of 0.55, is $h = 0.05$ enough?

# %%
n = math.ceil((0.98 / 0.05) ** 2)
generator = torch.Generator().manual_seed(0)
studies = torch.bernoulli(torch.full((4000, n), 0.55), generator=generator).mean(1)
found = float((studies > 0.5 + 1.96 * 0.5 / math.sqrt(n)).float().mean())
print(f"{n} comparisons: {found:.0%} of 4,000 studies find a policy with win rate 0.55")
holds(0.45 < found < 0.55, "half of the studies find it")

# %% [markdown]
# Half of the studies miss it, because half of all estimates fall below the true rate. To find it in four
# studies of five the true rate has to lie 0.84 standard errors *beyond* the border (0.84 is the 80% point
# of a normal distribution). Exercise 1 asks for that number, with ties.
#
# ## 3. What does the judge like?
#
# The three seeds of "the four commands" are preferred most, in 0.73 to 0.75 of their comparisons: these
# are the 74 of 100 with which this page began. The recording has other
# measurements of the same answers: how many ended (instead of being cut off at the limit of tokens), how
# many polite words and tokens they have, how many were right by a rule (half of the words that a reference
# answer adds to the question), and the KL from the start. The judge learned from pairs of a more and a
# less **polite** answer.
#
# **Predict, then run.** Which of them goes along with the judge's preference?

# %%
MEASURED = ("ended", "polite", "tokens", "right", "kl")


def columns_of(names):
    return {
        key: torch.tensor([policies[name][key] for name in names])
        for key in ("preferred", *MEASURED)
    }


every, without = columns_of(policies), columns_of([n for n in policies if n != "finetuning-0"])
plots.table(
    ["", *MEASURED],
    [
        [label, *(correlation(columns["preferred"], columns[key]) for key in MEASURED)]
        for label, columns in (("all 21", every), ("without fine-tuning", without))
    ],
    number="+.2f",
)
like = {key: correlation(without["preferred"], without[key]) for key in MEASURED}
holds(
    like["ended"] > 0.8 and abs(like["polite"]) < 0.1,
    "it goes along with the ending, and far less with polite words",
)
holds(abs(like["right"]) < 0.44, "with right answers no correlation can be told from 0")

# %% tags=["hide-input"]
figure, axes = plots.panels(2)
for axis, key in zip(axes, ("ended", "polite"), strict=True):
    axis.scatter(every[key], every["preferred"], color=plots.colour("policy"))
    axis.set(xlabel=f"{key}, mean of 108 answers", ylabel="preferred by the judge")
axes[0].annotate(
    "fine-tuning",
    (policies["finetuning-0"]["ended"], policies["finetuning-0"]["preferred"]),
    xytext=(-95, -18),
    textcoords="offset points",
    arrowprops={"arrowstyle": "-"},
)
axes[0].set_title("The judge follows the ending ...")
axes[1].set_title("... and hardly what its pairs were about")

# %% [markdown]
# The judge of politeness prefers the policies whose answers **ended**. With polite words no correlation
# can be told from 0. Two policies lie below the line, PPO a little and fine-tuning far: fine-tuning on
# the preferred answers makes nearly every answer end, at half the length, and yet the judge does not
# prefer it to the start. So ending is not all that it likes. One such outlier is worth more than twenty
# points on a line, and so the table above has both rows: with it the correlation is 0.69, and without it
# 0.82. (Whether the preferred policies are right more often or less often is undecided: with twenty of
# them a correlation below 0.44 in size, here -0.26, cannot be told from 0.)
#
# **What a correlation cannot say.** Ending may be a *confounder* (the judge likes a full stop) or a part of
# what is meant by quality (a person would prefer a whole answer as well). The numbers are the same in both
# cases; you have to decide which one you mean, and then there are two ways to take the ending out.
#
# ## 4. Match, or model
#
# **Match**: compare only pairs that agree in the confounder. Single answers are recorded for 16 prompts,
# and we see from the text whether an answer ends as a sentence does.

# %%
won = torch.tensor([float(c[4]) for c in comparisons()])  # (320,)  the judge prefers the policy's
mine, other = (torch.tensor([c[k] for c in comparisons()]) for k in (2, 3))  # ended: policy, start
cells = {(a, b): won[(mine == a) & (other == b)] for a in (True, False) for b in (True, False)}
plots.table(
    ["policy's answer", "start's answer", "pairs", "the policy wins"],
    [
        ["ended" if a else "cut off", "ended" if b else "cut off", len(cell), float(cell.mean())]
        for (a, b), cell in cells.items()
    ],
)
matched = won[mine == other]
print(f"all pairs {won.mean():.2f}, matched pairs {matched.mean():.2f} of {len(matched)}")
holds(
    cells[True, False].mean() > 0.75 and cells[False, True].mean() < 0.2,
    "where one answer ends, it usually wins",
)

# %% [markdown]
# **Model**: AlpacaEval 2 (Dubois et al. 2024, [arXiv:2404.04475](https://arxiv.org/abs/2404.04475)) keeps
# all pairs. It fits a logistic regression for the preference: one number for the policy, one for the
# difficulty of the prompt, and one for the difference in length. Then it asks what the win rate would be
# if that difference were 0:
#
# $$P(m \succ b \mid x) = \sigma \Big( \theta_m + \gamma_x + \phi \tanh
# \frac{\Delta \mathrm{len}}{\mathrm{std}(\Delta \mathrm{len})} \Big),
# \qquad v_{LC} = \mathrm{mean}_x \, \sigma(\theta_m + \gamma_x)$$
#
# (Here all policies share $\phi$, and the prompt's term is the same for all of them; the paper fits both
# for each model, with the difficulties $\gamma_x$ from a joint fit.) Any other confounder can stand in
# the place of the length:


# %%
def controlled(won, policy, prompt, difference):
    """Win rate of each policy at difference 0, (P,), and phi: from N comparisons, all (N,)."""
    theta = torch.zeros(int(policy.max()) + 1, requires_grad=True)
    gamma = torch.zeros(int(prompt.max()) + 1, requires_grad=True)
    phi = torch.zeros((), requires_grad=True)
    fit = torch.optim.LBFGS([theta, gamma, phi], max_iter=100, line_search_fn="strong_wolfe")

    def loss():
        fit.zero_grad()
        z = theta[policy] + phi * difference + gamma[prompt]
        value = torch.nn.functional.binary_cross_entropy_with_logits(z, won, reduction="sum")
        value = value + 0.5 * gamma.square().sum() + 0.05 * theta.square().sum()  # few data
        value.backward()
        return value

    fit.step(loss)
    return (theta[:, None] + gamma).sigmoid().mean(1).detach(), phi.item()


# %%
order = sorted({c[0] for c in comparisons()})
policy = torch.tensor([order.index(c[0]) for c in comparisons()])
prompt = torch.tensor([c[1] for c in comparisons()])
texts = {name: [row["answers"] for row in rows] for name, rows in recorded["answers"].items()}
longer = torch.tensor([len(texts[c[0]][c[1]]) - len(texts["start"][c[1]]) for c in comparisons()])
length = torch.tanh(longer / longer.float().std())
ending = mine.float() - other.float()  # 1: only the policy's answer ended
nothing = torch.zeros(len(won))
rates = {
    name: controlled(won, policy, prompt, difference)
    for name, difference in (("raw", nothing), ("length", length), ("ending", ending))
}
print(
    "phi of the length {:+.2f}, of the ending {:+.2f}".format(
        rates["length"][1], rates["ending"][1]
    )
)
shown = {"the four commands": "the four", "GRPO": "grpo-", "neither price nor limit": "unpriced-"}
rows = [
    [name, *(float(rates[k][0][[n.startswith(key) for n in order]].mean()) for k in rates)]
    for name, key in shown.items()  # means over seeds
]
plots.table(["policy", "raw", "length held equal", "ending held equal"], rows)
holds(rows[0][1] - rows[0][3] > 0.04, "the ending takes a part of the winner's lead")
holds(rows[2][3] > rows[2][1], "the policy whose answers never end gains by it")
holds(
    abs(rates["length"][1]) < rates["ending"][1] / 3,
    "the length explains far less than the ending",
)

# %% [markdown]
# All of this stands on 16 prompts. Draw them again, with repeats, and fit again:


# %%
def drawn_again(difference, generator):
    """From 16 prompts drawn with repeats: the winner's controlled win rate, and phi."""
    drawn = torch.randint(16, (16,), generator=generator)
    rows = [(prompt == which).nonzero()[:, 0] for which in drawn]
    place = torch.cat([torch.full_like(row, i) for i, row in enumerate(rows)])
    rows = torch.cat(rows)
    rate, phi = controlled(won[rows], policy[rows], place, difference[rows])
    return rate[[n.startswith("the four") for n in order]].mean().item(), phi


generator = torch.Generator().manual_seed(0)
winner = [drawn_again(ending, generator)[0] for _ in range(100)]
of_length = [drawn_again(length, generator)[1] for _ in range(100)]
border = torch.tensor([0.025, 0.975])
(low, high), signs = (torch.tensor(x).quantile(border).tolist() for x in (winner, of_length))
print(f"the winner, ending held equal: {low:.2f} to {high:.2f}")
print(f"phi of the length: {signs[0]:+.2f} to {signs[1]:+.2f}")
holds(low < 0.5 < high, "whether a lead is left with the ending held equal is undecided")
holds(signs[0] < 0 < signs[1], "whether this judge likes the longer or the shorter one, too")

# %% [markdown]
# Lengths explain little here: $\phi$ is small next to the ending's, and with 16 prompts its sign is
# undecided, while AlpacaEval's judge likes the longer answer. A control that copies another paper's
# confounder may control for nothing. The ending takes about a third of the winner's lead, for its rate
# falls from 0.66 to 0.60 where 0.50 would be no lead. Whether the rest is more than chance 16 prompts
# cannot say: drawn again, they give anything from 0.40 to 0.78. As a method this is complete.
#
# ## 5. Position, and both orders
#
# A prompted judge reads two answers in a row, and often leans to the first
# ([Shi et al. 2024](https://arxiv.org/abs/2406.07791)). Suppose that it prefers the better answer with
# log odds $q$, and adds $b$ for the first place. Asked once, with the new policy always first, it says
# $\sigma(q + b)$. Asked in both orders, the mean is nearly free of $b$:


# %%
def sigmoid(z):
    return 1 / (1 + math.exp(-z))


for q, b in ((0.0, 0.8), (0.5, 0.8)):
    first, second = sigmoid(q + b), sigmoid(q - b)  # chosen as first, chosen as second answer
    both, neither = first * second, (1 - first) * (1 - second)
    print(
        f"truth {sigmoid(q):.2f}: always first {first:.2f}, both orders {(first + second) / 2:.2f},"
        f" of the consistent ones alone {both / (both + neither):.2f}"
    )
holds(
    abs((sigmoid(0.8) + sigmoid(-0.8)) / 2 - 0.5) < 1e-9, "two equal policies score one half again"
)

# %% [markdown]
# Two equal policies score 0.69 in one order. Both orders bring this back to one half, and a preference
# that flips with the order counts as a tie. Keeping only the consistent verdicts answers another question,
# and where one policy is better it gives that policy a higher number. A reward model has no position: it
# scores each answer alone. People do have one, so `reward_model.annotate` draws the sides by chance, shows
# every tenth pair again with its sides exchanged, and prints how often you chose the first.
#
# ## 6. Do judges agree?
#
# If nobody can label ten thousand pairs, a model can: **RLAIF** (Lee et al. 2023,
# [arXiv:2309.00267](https://arxiv.org/abs/2309.00267)) trains on the preferences of a prompted model, and
# Constitutional AI (Bai et al. 2022, [arXiv:2212.08073](https://arxiv.org/abs/2212.08073)) gives this
# model written principles. What licenses it is agreement with people: Zheng et al. 2023
# ([arXiv:2306.05685](https://arxiv.org/abs/2306.05685)) report that GPT-4 agreed with experts about as
# often as experts with each other, where both saw a difference. They also found that it often prefers the
# answer shown first, and, much less than weaker judges, the longer one; whether it prefers its own they
# could not decide. No prompted judge was run here.
#
# Agreement alone says little, because judges who both prefer the new policy agree by chance as well.
# **Kappa** takes that out, $\kappa = (p_o - p_e) / (1 - p_e)$:


# %%
def kappa(one, other):
    """Two judges' verdicts on the same pairs -> agreement and kappa."""
    n = len(one)
    observed = sum(a == b for a, b in zip(one, other, strict=True)) / n
    expected = sum(one.count(v) * other.count(v) for v in set(one)) / n**2
    return observed, (observed - expected) / (1 - expected)


right = {name: [row["right"] for row in rows] for name, rows in recorded["answers"].items()}
judges = {"the rule 'right'": [], "the rule 'ended'": []}
for name, i, ends, start_ends, wins in comparisons():
    if right[name][i] != right["start"][i]:
        judges["the rule 'right'"].append((wins, right[name][i]))
    if ends != start_ends:
        judges["the rule 'ended'"].append((wins, ends))
rows = []
for name, pairs in judges.items():
    found = kappa(*map(list, zip(*pairs, strict=True)))
    assert abs(found[1] - agreement.kappa([(str(a), str(b)) for a, b in pairs])) < 1e-9
    rows.append([f"the judge and {name}", len(pairs), *found])
plots.table(["", "pairs where the rule decides", "agreement", "kappa"], rows)
low, high = wilson_interval(round(rows[0][1] * rows[0][2]), rows[0][1])
print(f"the agreement with 'right' lies between {low:.2f} and {high:.2f}")
holds(low < 0.5 < high, "the agreement with what is right cannot be told from a coin's")
holds(rows[1][3] > 0.5, "the judge agrees with the ending")

# %% [markdown]
# As a judge of whether an answer is *right* this reward model cannot be told from a coin: it agrees with
# the rule in 0.47 of 64 pairs, and the interval holds one half. Nobody asked it to be such a judge, because
# it learned manners. But a reader of "preferred in 0.73" may well take it for one, so say in the same
# sentence what the judge was made of.
#
# ## 7. What got worse elsewhere?
#
# **Regressions.** Count what the reward does not pay: right answers, other languages, code. The policy of
# GRPO's first seed rose to 0.64 for the judge, and of the other policies only one has fewer right answers.
# **Predict**: is this beyond chance?


# %%
def change(name):
    """Of the share of right answers since the start, and its standard error."""
    shares = [policies[n]["right"] for n in ("start", name)]
    return shares[1] - shares[0], math.sqrt(sum(s * (1 - s) / 108 for s in shares))


fell, error = change("grpo-0")
now = policies["grpo-0"]["right"]
print(f"right: {now - fell:.2f} before, {now:.2f} after of 108 prompts")
print(f"difference {fell:+.2f} +- {1.96 * error:.2f}")
changes = {n: change(n) for n in policies if n != "start"}
p = {n: math.erfc(abs(by) / error / math.sqrt(2)) for n, (by, error) in changes.items()}
corrected = holm(p)
print(f"p of this policy alone {p['grpo-0']:.3f}, corrected for {len(p)} {corrected['grpo-0']:.2f}")
holds(p["grpo-0"] < 0.05, "beyond chance, if this were the only policy")
holds(min(corrected.values()) > 0.05, "corrected for twenty, none is significant")
holds(sum(row["right"] < now for row in policies.values()) == 1, "one other policy has fewer")

# %% [markdown]
# Alone it is beyond chance. But we chose this policy *because* it had fallen far: corrected for twenty, as
# in section 1, p is 0.39. So it is a suspicion, to be tested on new prompts, and no result. (Both policies
# answered the same prompts, so a paired interval would be narrower; the recording has single answers for 16
# of them only.) **What might it be?** Look for answers that are kind and answer nothing:

# %%
polite_noise = re.compile(r"ready to|here to (help|assist)|glad (to|you)|happy to|sorry", re.I)
every = [row for rows in recorded["answers"].values() for row in rows]
empty = [row for row in every if polite_noise.search(row["answers"])]
others = [row for row in every if row not in empty]
for row in empty[1:5]:
    print(f"{row['judge']:+.2f}", " ".join(row["answers"].split())[:78])
scores = [torch.tensor([row["judge"] for row in rows]) for rows in (empty, others)]
score = [float(s.mean()) for s in scores]
error = math.sqrt(sum(float(s.var()) / len(s) for s in scores))
print(f"{len(empty)} such answers, judge's mean {score[0]:.2f}; of the others {score[1]:.2f}")
print(f"difference {score[0] - score[1]:+.2f} +- {1.96 * error:.2f}")
print(f"right: {sum(r['right'] for r in empty)} of them, {sum(r['right'] for r in others)} others")
holds(
    abs(score[0] - score[1]) < 1.96 * error,
    "whether the judge scores empty politeness above or below the rest is undecided",
)
holds(sum(row["right"] for row in empty) == 0, "none of these answers is right")

# %% [markdown]
# None of these answers is right, and the judge does not visibly mark them down: which of the two kinds it
# scores higher is undecided. In larger models one has to look closer. None of the following was measured
# here:
#
# - **Sycophancy.** People and reward models prefer answers that agree with them (Sharma et al. 2023,
#   [arXiv:2310.13548](https://arxiv.org/abs/2310.13548)). Test: ask a question with a known answer, then
#   again with "I think it is ..." and a wrong one. Count right answers that became wrong.
# - **Refusals.** Train a model to decline and it declines too much. Count two numbers: refusals of prompts
#   that should be refused, and of harmless ones that only sound dangerous, such as "how do I kill a Python
#   process?" (XSTest, Röttger et al. 2023, [arXiv:2308.01263](https://arxiv.org/abs/2308.01263)). One of
#   the two alone can always be made perfect.
# - **What a reward cannot cure.** If every annotator believes a mistake, the policy learns it. More pairs
#   by the same people narrow the interval around the wrong number.
#
# ## 8. Fifty blind pairs
#
# Your own eyes are the last judge, if they do not know which answer is whose. In the
# [demo's world](../docs/human.md):
#
# ```
# make demo
# python -m reward_model.annotate --model runs/demo/grpo --against runs/demo/pretraining \
#     --pairs 55 --out blind.jsonl
# ```
#
# Five of the 55 are shown twice. It ends with your win rate and its interval, how often you chose the first
# answer, and how often you said the same again. How many of fifty pairs have to be won before the interval
# leaves one half, and how good must a policy be to win so many in four studies of five?

# %%
seeds = json.loads(Path("../docs/demo_seeds.json").read_text(encoding="utf-8"))
ends = [seed["held_out_items"]["GRPO"]["win_rate"] for seed in seeds]
least = next(k for k in range(25, 51) if wilson_interval(k, 50)[0] > 0.5)
print(f"from {least} of 50 on, the interval lies above one half")


def power(rate):
    """How often a policy with that true win rate wins so many of fifty."""
    return sum(math.comb(50, k) * rate**k * (1 - rate) ** (50 - k) for k in range(least, 51))


for rate in (least / 50, 0.69):
    print(f"a policy whose true rate is {rate:.2f} gets there in {power(rate):.0%} of studies")
holds(power(0.68) < 0.8 < power(0.69), "four studies of five find a true rate of 0.69")
print(f"the demo's policy wins {min(ends):.2f} to {max(ends):.2f} on prompts about unseen items")
holds(min(ends) > least / 50, "the demo's improvement is large enough for fifty pairs")

# %% [markdown]
# It takes 32 of fifty, but a policy whose true rate is 32 / 50 = 0.64 gets there in little more than half
# of such studies, as in section 2. For four of five it has to be 0.69.
#
# How few pairs are enough to *train* a judge to a person's taste is another question:
# [docs/human.md](../docs/human.md#how-few-pairs-are-enough) has five simulated people.
#
# **A report of a comparison** says: who judged, made of what; the prompts, and that training never saw
# them; sampling settings of both sides; $n$, ties and the interval; both orders, or chance; the
# confounders that you looked at; what got worse; and five pairs in full, drawn by chance.
#
# ## Exercises
#
# The tables belong to a number of your own: change `MINE` to any other, for example the last digits of your
# student number. Answers are entered and checked; no solution is printed.
#
# **1. How many pairs?** From a pilot you know the share of ties. How many comparisons, ties included, let
# four studies of five exclude one half? (Sections 1 and 2.)

# %%
MINE = 0
table("pairs_needed", MINE)

# %%
check_answer("pairs_needed", ..., MINE)

# %% [markdown]
# **2. Which part is the ending?** Nine of the recorded policies, drawn by your number. What is their win
# rate in matched pairs?

# %%
table("matched_rate", MINE)

# %%
check_answer("matched_rate", ..., MINE)

# %% [markdown]
# **3. What may be concluded?** Two policies, each against the start on its own prompts. Enter the letters
# of all statements that the table supports at 95%, for example `"ad"`, and `""` if it supports none.
#
# - a: A is better than the start, for this judge.
# - b: The judge has a leaning to the first or to the second place.
# - c: A is better than B.
# - d: B is as good as the start, to within 0.05.
# - e: The two judges agree more often than chance.

# %%
table("what_follows", MINE)

# %%
check_answer("what_follows", ..., MINE)

# %% [markdown]
# **To think about.** A colleague holds the ending equal and finds that nothing is left of a win rate.
# Another says that ending *is* the improvement. Which comparison would tell who is right?
#
# ## To remember
#
# - A win rate has a judge, an interval and a share of ties; an interval that holds one half is undecided.
# - Look for what the preference goes along with, then match it or model it, and say whether you hold it for
#   a fault or for a part of quality.
# - Count what nobody paid for: right answers, refusals, agreement with whoever asks.
#
# Next: [24_from_these_pieces_to_a_recipe](24_from_these_pieces_to_a_recipe.ipynb): with a judge that you
# can believe, which stages make a model, and in which order?
