# %% [markdown]
# # 17. Reading a run, and the bug zoo
#
# **After this page you can** name the numbers that are known before a run, read a run in the right order,
# recognise ten bugs by their numbers, and say what to look at first when a curve jumps.
#
# **Why.** A wrong line in an RL loop raises no error. The run goes on, the curves look like curves,
# and the reward may even rise. *How do you see from a run's numbers that its code is wrong?*
#
# | section | question | code |
# | --- | --- | --- |
# | 1 | which numbers are known before the run? | `ratio_error_at_start`, `kl`, `loss` |
# | 2 | what is a rule of the doctor? | `report.doctor` |
# | 3 | in which order is a run read? | `report.html` |
# | 4 | five runs: look, guess, then the answer | `visit`, `guess` |
# | 5 | which bugs can nobody see from outside? | |
# | 6 | how does an over-optimised run look? | `proxy_suspected` |
#
# **You need** GRPO's loop ([07_grpo](07_grpo.ipynb)), the critic ([09_ppo](09_ppo.ipynb)) and the
# masks of [02_tokens_padding_masks](02_tokens_padding_masks.ipynb).
#
# Nothing is trained here: all runs are recordings that lie in the repository, so the page takes a
# few seconds.

# %%
import json

try:
    from course import plots, zoo
    from course.claims import holds
    from course.exercises import check
    from course.zoo import case, guess, visit

    from report.doctor import Run, as_text, examine, ratio_at_start
    from report.tokens import TokenView
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

plots.use()

# %% [markdown]
# ## 1. Numbers that are known before the run
#
# Most curves can take any shape, but three cannot. Before a batch's first update the policy *is*
# the policy that sampled, so every ratio is 1:
#
# $$ \rho_t = \frac{\pi_\theta(y_t)}{\pi_{old}(y_t)} = 1 \qquad \text{before the first update.} $$
#
# At step 1 it also is the reference, so the KL is 0. And GRPO's advantages average to 0 within each
# group (Shao et al. 2024, [arXiv:2402.03300](https://arxiv.org/abs/2402.03300)), so with ratios near
# 1 hardly more is left of the loss than the penalty. With $\beta$ its coefficient and $k_3$ the KL
# estimate of a whole response:
#
# $$ L \approx \beta \, \frac{k_3}{\text{length}}. $$
#
# By hand, for one token with log-prob $-1.00$ under the sampler. Scored by the same model with the
# same mask it is $-1.00$ again, and the ratio is $e^0 = 1$. Scored with dropout on it is, say, $-1.02$,
# and the ratio is 0.98. A two per cent error looks harmless, and it is in *every* ratio of the run.
#
# So **dropout is off in sampling and in training**. Dropout in sampling lets a randomly thinned network
# write the answers, and not the policy. Dropout in training thins it anew in every pass, so the ratio
# compares two random networks instead of the policy before and after an update.

# %%
healthy = zoo.control("grpo")  # GRPO on eight letters; more a's earn more, up to eight of them
steps, errors = healthy.curve("ratio_error_at_start")
print(f"{len(steps)} steps, largest |ratio - 1| before an update: {max(errors):.1e}")
print(f"kl at step 1: {healthy.rows[0]['kl']:+.1e}")
assert max(errors) < 1e-4 and abs(healthy.rows[0]["kl"]) < 0.02

# %% [markdown]
# ## 2. A rule of the doctor
#
# `python -m report.doctor RUN` reads `metrics.jsonl` and says what its numbers show. A rule takes the
# rows and gives its evidence, or nothing. The first one could be this short:


# %%
def ratio_rule(rows, limit=1e-4):
    errors = [row["ratio_error_at_start"] for row in rows if "ratio_error_at_start" in row]
    if errors and max(errors) > limit:
        return f"|ratio - 1| is up to {max(errors):.2g} before the first update"


names = [*zoo.STORIES, "healthy/letters_grpo", "healthy/letters_ppo", "healthy/grpo-demo0"]
runs = {name: zoo.recording(name) for name in names}
for name, run in runs.items():
    mine = ratio_rule(run.rows)
    library = next(ratio_at_start(Run(run.rows, run.flags)), None)
    assert (mine is None) == (library is None), name
    if mine:
        print(f"{name:16} {mine}")

# %% [markdown]
# The library's rule agrees on all recordings. In bfloat16 it allows ten times as much. There the engines
# score the answers once more, in the same way as in the update, so that a healthy run shows 0; without
# that, rounding alone would exceed the limit ([19](19_when_the_sampler_is_not_the_policy.ipynb), section
# 5):

# %%
plots.code(ratio_at_start)

# %% [markdown]
# A rule sees a *symptom*. The text in brackets above the function names the likeliest cause and says what
# to change. This is all
# that the doctor says about a run whose response mask is one column late:

# %%
late = runs["late_mask"]
print(as_text(examine(late.rows, late.flags), width=96))

# %% [markdown]
# ## 3. In which order a run is read
#
# Every run folder has a `report.html`: the doctor's findings, all curves with their healthy ranges,
# every token of a few answers in colour, samples, flags, and the time by phase. Read it from the
# numbers that must be right to those that should be good:
#
# 1. **Is the code right?** `ratio_error_at_start`, `kl` at step 1, `loss`.
# 2. **Is there a signal?** `zero_spread_groups`, `grad_norm`, with a critic `explained_variance`.
# 3. **Does it learn?** `reward`.
# 4. **At what price?** `kl`, `entropy`, `response_length`, `eos_rate`.
# 5. **Was it worth it?** `validation/gold`, or the samples, read by a person.
#
# **When a curve jumps.** One number is suddenly several times what it was. Is something broken? First ask
# how often a healthy run does that. Here a jump is a value above three times the median of the ten steps
# before:


# %%
def jumps(run, key):
    """(step, how many times the median of the ten steps before)."""
    steps, values = run.curve(key)
    found = []
    for i in range(10, len(values)):
        before = sorted(values[i - 10 : i])[5]
        if before > 0 and values[i] > 3 * before:
            found.append((steps[i], values[i] / before))
    return found


for name in ("healthy/letters_grpo", "healthy/grpo-demo0", "no_eos"):
    for key in ("grad_norm", "approx_kl", "kl"):
        there = ", ".join(f"step {step}: {times:.0f}x" for step, times in jumps(runs[name], key))
        print(f"{name:22} {key:10} {there or '-'}")
holds(not jumps(healthy, "grad_norm"), "the gradient of the healthy run never jumps")
holds(bool(jumps(healthy, "approx_kl")), "its approx_kl does, now and then")

# %% [markdown]
# So one jump of `approx_kl`, the way that one batch has gone, means little, and a `kl` that has just left
# 0 triples easily. A jump of the gradient's norm is rarer, and a `kl` that stays high is news. Then ask
# in this order, because each answer makes the later questions pointless:
#
# 1. **Is the sampler still the policy?** `ratio_error_at_start` has left its limit: weights were not
#    copied, or a template has changed.
# 2. **Is it one odd batch?** One tall gradient, and all is as before: read the batch, and go on, because
#    the gradient was clipped.
# 3. **Do answers hit the limit?** `response_length` rises to it and `eos_rate` falls: price the cut.
# 4. **Is the reward exploited?** `reward` rises and the samples get worse: stop earlier, and read
#    [13](13_when_the_proxy_breaks.ipynb).
# 5. **Is the step too large?** `kl` and `grad_norm` grow and `reward` falls: go back to an older
#    checkpoint, and halve the learning rate.
#
# Page [24](24_from_these_pieces_to_a_recipe.ipynb), section 8, has the numbers for each, and a run to
# judge.
#
# **Predict**: below, one of two runs has a flipped sign in its loss. Which curve shows it first, and
# does any number of group 1 show it at all?


# %%
def beside(run, control, keys, title):
    figure, axes = plots.panels(len(keys), width=10.5)
    for axis, key in zip(axes, keys, strict=True):
        both = {"without a bug": control.curve(key), "this run": run.curve(key)}
        both = {label: points for label, points in both.items() if points[0]}
        plots.curves(both, axis=axis, styles={"without a bug": "reference", "this run": "bad"})
        axis.set(xlabel="step", ylabel=key)
    figure.suptitle(title)


beside(runs["loss_sign"], healthy, ("reward", "kl", "loss"), "loss sign flipped")

# %% [markdown]
# The reward gives it away: it falls within the first ten steps. The invariants of group 1 do not: the
# ratio is 1 and the KL starts at 0, because a wrong sign changes neither. The loss stays within what the
# doctor allows. *Right numbers do not mean a right objective.*
#
# ## 4. The zoo
#
# Ten wrong lines, as people write them, were planted in small runs. They are cases 1 to 10. You meet
# the first five here, and the others are the exercises. For each case:
#
# 1. **Look** at the numbers. *First* and *last* are means of three steps, so a KL that starts at 0
#    need not show exactly 0.
# 2. **Guess**: write the number of your choice in place of the dots and run the cell. It then shows
#    the answer, and the wrong line.
# 3. **Open** what else the case teaches. It is folded because it names the bug.

# %%
visit(1)

# %% [markdown]
# One number here is not noisy. It is *constant*.

# %%
guess(1, ...)

# %% [markdown]
# <details>
# <summary>After your guess: what case 1 teaches</summary>
#
# **Value loss without the critic's optimizer stepping.** The critic keeps its first guess, and
# `explained_variance` never leaves 0. With a healthy critic it starts near 0 and rises. The reward still
# rises, because a useless baseline mostly makes a gradient noisy. (With $\lambda = 1$ it would not be wrong
# at all. Here $\lambda$ is 0.95, so with a constant critic a token gets $0.95^k$ of what is earned $k$
# tokens later.) So the reward alone would not have told you. The right line is in `rl/loop.py`: both
# optimizers step.
#
# </details>

# %%
visit(2)

# %% [markdown]
# One row is too good to be true. Validations measure the same number from the *start* of the run:

# %%
beside(case(2), healthy, ("kl", "validation/kl", "reward"), "case 2: two numbers that should agree")

# %%
guess(2, ...)

# %% [markdown]
# <details>
# <summary>After your guess: what case 2 teaches</summary>
#
# **The reference is updated every step.** `kl` measures the distance to the policy itself and stays at 0.
# `validation/kl` measures it from the start and grows. A penalty against such a reference holds nothing
# back. Two numbers that should agree are worth more than one that looks good.
#
# </details>

# %%
visit(3)

# %% [markdown]
# Here the size of the loss is wrong. Compute what should be left of it, $\beta k_3 / \text{length}$:


# %%
def loss_gap(run):
    """The median distance of the loss from what should be left of it."""
    expected = [row["kl_coef"] * row["kl_k3"] / row["response_length"] for row in run.rows]
    gaps = sorted(abs(row["loss"] - e) for row, e in zip(run.rows, expected, strict=True))
    return gaps[len(gaps) // 2]


for label, run in {"without a bug": healthy, "case 3": case(3), "case 4": case(4)}.items():
    print(f"{label:14} median distance of the loss from it: {loss_gap(run):.4f}")

# %%
guess(3, ...)

# %% [markdown]
# <details>
# <summary>After your guess: what case 3 teaches</summary>
#
# **A KL per response, used with a coefficient per token.** Each token carries the KL of its whole
# response. So for a response of ten tokens the penalty is about ten times too strong.
#
# </details>

# %%
visit(4)

# %%
guess(4, ...)

# %% [markdown]
# <details>
# <summary>After your guess: what case 4 teaches</summary>
#
# **A micro-batch is divided by its own responses.** A minibatch of 32 was cut into 20 and 12, and each
# part took its own mean ([26](26_what_a_loss_is_divided_by.ipynb), section 2). `grad_norm` is twice that
# of the healthy run from the first step on, and the loss ends more than twice as large. The reward looks
# the same, because AdamW divides by the size of the gradient. The doctor's rule `loss_is_not_its_sum`
# finds cases 3 and 4, but cannot distinguish them.
#
# </details>

# %%
visit(5)

# %% [markdown]
# Two numbers contradict each other here. Answers may have up to 20 tokens.

# %%
guess(5, ...)

# %% [markdown]
# <details>
# <summary>After your guess: what case 5 teaches</summary>
#
# **The EOS is left out of the mask.** No answer seems to end (`eos_rate` is 0), yet the answers are
# shorter than the limit of 20 tokens. No sampler does both. And no gradient reaches the choice to
# stop ([02](02_tokens_padding_masks.ipynb)).
#
# </details>
#
# ## 5. What can be seen from outside
#
# **Predict**: how many of the ten bugs does a rule of the doctor find? (The list names the bugs: do cases
# 6 to 10 in the exercises before you read it, if you want to be surprised.)

# %%
rows = []
for name, story in zoo.STORIES.items():
    found = [f.rule for f in examine(runs[name].rows, runs[name].flags)]
    rows.append((name, ", ".join(found) or "-"))
    print(f"{story.words[:66]:66}  {rows[-1][1]}")
holds(all(found != "-" for _, found in rows), "all ten are found, in these runs")

# %% [markdown]
# All ten, in these runs; [the FAQ](../docs/faq.md#the-doctor) has the table. They were chosen among bugs
# that can be seen. Four others need not show in any of these numbers. Three change what an advantage *is*:
# a baseline over all prompts, a standard deviation over tokens, and a GAE across the EOS. The fourth,
# training on the prompt's tokens, changes every number a little. So formulas must be tested against numbers
# worked out by hand, not against curves.
#
# ## 6. A run that is right, and goes wrong
#
# No line is wrong in the last run. GRPO had no KL penalty ($\beta = 0$) and a reward model that had
# seen 1,400 labels only.

# %%
run = zoo.recording("unhealthy/overoptimised-0")


def told_at(rule, rows):
    for count in range(1, len(rows) + 1):
        if rule in {finding.rule for finding in examine(rows[:count], run.flags)}:
            return rows[count - 1]["step"]


blind = [{key: value for key, value in row.items() if "gold" not in key} for row in run.rows]
alarms = {"without gold": told_at("proxy_suspected", blind)}
alarms["with gold"] = told_at("over_optimised", run.rows)
for label, step in alarms.items():
    print(f"alarm {label} at step {step}")

# %% tags=["hide-input"]
figure, axes = plots.panels(2, width=10.5)
for axis, key, meaning in zip(axes, ("reward", "validation/gold"), ("proxy", "gold"), strict=True):
    plots.curves({meaning: run.curve(key)}, axis=axis)
    for (label, step), style in zip(alarms.items(), (":", "--"), strict=True):
        axis.axvline(step, color="black", linewidth=1, linestyle=style, label=f"alarm {label}")
    axis.set(xlabel="step", ylabel=key)
    axis.legend()
holds(
    alarms["without gold"] < alarms["with gold"],
    "the alarm with gold comes later than the one without",
)

# %% [markdown]
# The reward rises to 3 and stays there. Gold, which nothing is trained on, turns after step 20. The
# alarm without gold needs at least two signs that the policy has left what the reward model learned
# from. Two such signs are a KL above 8 nats, and a reward 1.5 standard deviations above where it
# began: few of the answers that the reward model learned from were that good.
#
# Below are answers to two prompts at steps 20, 50 and 100. The view opens at step 100, with the KL to
# the reference. Press `reward of the prefix` for the reward model's score after each token:

# %%
kept = zoo.RECORDINGS / "unhealthy" / "overoptimised-0.tokens.jsonl"
TokenView([json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()])

# %% [markdown]
# At step 100 the policy writes *asking asking asking* until it is cut off. The reward model scores it 3
# standard deviations above the start; gold gives only 0.09.
# [13_when_the_proxy_breaks](13_when_the_proxy_breaks.ipynb) is about why that happens, and what was tried
# against it.
#
# **What would happen if** you trusted `entropy` instead? It falls in healthy runs too: in
# `healthy/grpo-demo0` to half of its start. That is why no single sign raises the alarm.

# %% [markdown]
# ## Exercises
#
# **Cases 6 to 10.** Look, guess, run. You have met two of these bugs in sections 2 and 3.

# %%
visit(6)
guess(6, ...)

# %%
visit(7)
guess(7, ...)

# %%
visit(8)
guess(8, ...)

# %%
visit(9)
guess(9, ...)

# %%
visit(10)
guess(10, ...)

# %% [markdown]
# <details>
# <summary>After your guesses: where to look</summary>
#
# 6: `reward` stays where it was, although `reward_std` and `grad_norm` are not 0. 7: `approx_kl` is 0.
# 8: `kl` ends 13 times as large as without a bug. 9: `ratio_error_at_start`. 10: `reward` falls.
#
# </details>
#
# **11. Which number cannot be?** A run of GRPO in float32, before its first update. (No solution is
# printed.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("impossible_number", MINE)

# %%
check_answer("impossible_number", ..., MINE)

# %% [markdown]
# **A measurement** that helped with several cases. Run the cell as it is, and `check` prints the formula.
# `rise_in_errors` compares the mean of a curve's last third with that of its first, as the doctor does,
# so that a single odd step decides nothing. A third has `T // 3` values. The difference is divided by its
# own standard error, the root of (Var first + Var last) / (T // 3), with the variances *within* the two
# thirds (`.var()`). A result above 2 or so is more than noise.


# %%
def rise_in_errors(values): ...  # (T,) -> one number: is this curve more than noise?


check("rise_in_errors", rise_in_errors)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def rise_in_errors(values):
#     third = len(values) // 3
#     first, last = values[:third], values[-third:]
#     error = ((first.var() + last.var()) / third).sqrt()
#     return (last.mean() - first.mean()) / error
# ```
#
# </details>
#
# **Play on**: `python scripts/bug_zoo.py` trains with a bug that you do not know, writes the run's
# report, and asks.
#
# All rules: [doctor.py](../report/doctor.py), and [the FAQ](../docs/faq.md#the-doctor).
#
# ## To remember
#
# - Before a batch's first update the ratio is 1; at step 1 the KL is 0.
# - First ask whether the code is right, then whether there is a signal, and only then whether the reward
#   rises.
# - Two numbers that should agree are worth more than one that looks good, and formulas are tested by
#   hand, not by curves.
#
# Next: [18_from_a_gpt2_to_a_qwen](18_from_a_gpt2_to_a_qwen.ipynb). So far the models were small; there
# the same engines train one that others have published.
