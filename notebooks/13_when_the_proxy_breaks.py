# %% [markdown]
# # 13. When the proxy breaks
#
# **The question.** How far can a learned reward be trusted, and what happens beyond that point?
#
# **After this page you can** compute gold and KL of the best of n, recognise over-optimisation and say
# what a run proves of it, say why gold is drawn against the root of the KL, and choose when to stop
# without gold.
#
# **Why.** The policy is not judged by what we want, the *gold* reward, but by a *proxy*: a reward model
# that was learned from a limited number of labels. Where the two differ, training finds the difference:
# *reward hacking*, or over-optimisation. Here we train a reward model on too few labels and optimise it
# until it breaks, with the gold reward beside it. We know the gold reward of our world of reviews
# exactly; in real life nobody does, which is why this is worth seeing once. The thought is older than the
# field: the economist Goodhart wrote in 1975 that a regularity tends to collapse once it is used for
# control.
#
# **You need** [06, the reward model](06_reward_model.ipynb), [07, GRPO](07_grpo.ipynb) and
# [05, what a KL is](05_what_a_kl_is.ipynb).
#
# | section | idea |
# | --- | --- |
# | 1 | best-of-n: the simplest way to optimise a reward, by hand |
# | 2 | a reward model from few labels |
# | 3 | best-of-n against it |
# | 4 | GRPO against it, until gold turns |
# | 5 | what was exploited: texts, and terms of the gold reward |
# | 6 | how many labels move the turning point |
# | 7 | noticing it without gold |
# | 8 | training the reward model again: iterative GRPO |
#
# **It takes** about a minute on one CPU core, after start-up.

# %%
import copy
import dataclasses
import itertools
import json
import math
import random
from pathlib import Path

import matplotlib.pyplot as plt
import torch

try:
    from course import plots, saved_models
    from course.claims import holds
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.exercises import check

from data.collate import collate_responses
from data.worlds import reviews
from gpt.generate import SamplingParams
from harness.metric_log import MetricLog
from harness.seeds import make_generator
from report.doctor import Run as RunFolder
from report.doctor import proxy_suspected
from reward_model import continual
from reward_model import pairs as pairing
from reward_model.reward_model_training import RewardModelConfig, train
from reward_model.scalar_head import RewardModel
from reward_model.world_pairs import WorldAnnotator
from rl import grpo_engine, grpo_iterative_engine
from rl.batches.rollout import sample_rollout
from rl.equations import best_of_n, ensembles
from rl.loop import Run
from rl.rewards.model import RewardModelReward
from rl.rewards.reward import RuleReward
from rl.run.evaluation import evaluate

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine

# %% [markdown]
# ## 1. Best-of-n by hand
#
# Sample n answers and keep the one that the proxy likes best. This is *best-of-n*. It needs no
# training, and it optimises the proxy all the same: the larger n, the higher the proxy.
#
# A bank of three answers is enough to see it. The proxy orders them one way, and the gold reward is
# only read off afterwards. For n = 2 there are three subsets of two answers:

# %%
proxy = torch.tensor([3.0, 1.0, 2.0])
gold = torch.tensor([0.6, 0.2, 0.5])
chosen = []
for a, b in itertools.combinations(range(3), 2):
    winner = a if proxy[a] > proxy[b] else b
    chosen.append(float(gold[winner]))
    print(f"of answers {a} and {b} the proxy keeps {winner}, whose gold is {gold[winner]:.1f}")
naive = sum(chosen) / len(chosen)
print(f"gold of the best of 2: {naive:.4f}")

# %% [markdown]
# With 1,024 answers nobody counts subsets. Sort the N answers so that the proxy rises. Answer i is
# the best of n if it is drawn and the n - 1 others come from the i - 1 below it
# ([arXiv:2112.09332](https://arxiv.org/abs/2112.09332)):
#
# $$\mathbb{E}[\text{gold of the best of } n]
# = \sum_{i=n}^{N} \binom{i-1}{n-1} \Big/ \binom{N}{n} \; \text{gold}_{(i)}$$
#
# How far is the best of n from the policy itself? Rank all answers by the proxy, from 0 to 1. The rank
# $u$ of one draw is uniform, that of the best of n has the density $n u^{n-1}$, and the KL is the mean
# of this density's logarithm ([arXiv:2009.01325](https://arxiv.org/abs/2009.01325), appendix G.3):
#
# $$\mathrm{KL}(\text{best of } n \,\|\, \pi) = \log n + (n-1) \, \mathbb{E}[\log u]
# = \log n - \frac{n-1}{n} = \log n - 1 + \frac1n, \qquad
# \mathbb{E}[\log u] = \int_0^1 n u^{n-1} \log u \, du = -\frac1n$$
#
# It is exact for a score without ties, so for a continuous one. An answer that is drawn twice ties with
# itself. So where answers have probabilities, as here, it is an upper bound, and a close one as long as
# each of them is rare. For example, of two answers with probability 1/2 the best of 2 has 3/4 and 1/4,
# which is 0.13 nats away, and the formula says 0.19.

# %%
counted = best_of_n.best_of_n_mean(proxy[None], gold[None], 2)
assert abs(float(counted) - naive) < 1e-6
for n in (1, 2, 16, 512):
    nats = math.log(n) - 1 + 1 / n
    assert abs(nats - best_of_n.best_of_n_kl(n)) < 1e-9
    print(f"best of {n:3}: {nats:.2f} nats away")
plots.code(best_of_n.best_of_n_mean)

# %% [markdown]
# Best-of-512 costs 512 answers and is only 5.2 nats away. Reinforcement learning goes further.
#
# ## 2. A reward model from few labels
#
# The kept reward model of these pages has seen 112,000 comparisons. Ours gets 480: four answers to
# each of 80 prompts, every two of them compared by the noisy annotator. We train two of them that
# differ in their seed alone; the second is needed in section 7.

# %%
base, tokenizer = saved_models.base()
strong, _ = saved_models.reward_model()
PARAMS = SamplingParams(max_new_tokens=40)


def compare(split, count, seed):
    """`count` comparisons of the base model's own answers, labelled by the annotator."""
    drawn = pairing.sample_pairs(
        base, tokenizer, reviews.prompts(split), count, WorldAnnotator(reviews),
        pairing.PairSampling(PARAMS, responses_per_prompt=4, batch_size=40),
        generator=make_generator(seed, "pairs"), rng=random.Random(seed),
    )  # fmt: skip
    return [pair for pairs in drawn for pair in pairs]


labels, held_out = compare("train", 480, 0), compare("validation", 240, 1)
first = labels[0]
print("prompt:   ", tokenizer.decode(first.prompt).strip())
print("preferred:", tokenizer.decode(first.chosen[:-1]))
print("rejected: ", tokenizer.decode(first.rejected[:-1]))


# %%
def learn(seed):
    """A reward model: the base with a scalar head, three passes over the few labels."""
    model = RewardModel.from_policy(base, "last_token", make_generator(seed, "head"))
    config = RewardModelConfig(batch_size=8, lr=2e-3, warmup_steps=5, seed=seed)
    train(model, labels, config, MetricLog(30), eos_id=tokenizer.eos_id)
    model.normalize_on(pairing.collate_pairs(labels[::3], tokenizer.eos_id))
    return model.requires_grad_(False)


@torch.no_grad()
def orders_like_gold(model):
    """The share of held-out pairs that the model orders as the gold reward does."""
    scores = model(pairing.collate_pairs(held_out, tokenizer.eos_id)).view(2, -1)
    true = torch.tensor([p.meta["gold_chosen"] - p.meta["gold_rejected"] for p in held_out])
    differs = true != 0
    right = (scores[0] - scores[1]).sign() == true.sign()
    return float(right[differs].float().mean())


weak, second = (learn(seed) for seed in range(2))
for name, model in (("480 labels", weak), ("112,000 labels", strong)):
    print(f"{name:>14}: orders {orders_like_gold(model):.1%} of new pairs as gold does")

# %% [markdown]
# A number like this is often all that is known of a reward model. It says how good the model is on
# the *base model's own* answers, but nothing about answers that only an optimiser would write.
#
# ## 3. Best-of-n against it
#
# One bank, 8 prompts x 64 answers, serves every n and both reward models.


# %%
def gold_of(rollout):
    rows = zip(rollout.records, rollout.responses, rollout.has_eos.tolist())
    return torch.tensor([reviews.gold_reward(*row) for row in rows])


prompts = reviews.prompts("test")
bank = sample_rollout(base, tokenizer, prompts[-8:], PARAMS, 64, make_generator(0, "bank"))
bank_gold = gold_of(bank).view(8, 64)
SIZES = (1, 2, 4, 8, 16, 32)
bank_distance = [best_of_n.best_of_n_kl(n) ** 0.5 for n in SIZES]


def by(model):
    """Gold (n, prompts) of the best of every n by one reward model."""
    scores = RewardModelReward(model)(bank).view(8, 64)
    return torch.stack([best_of_n.best_of_n_mean(scores, bank_gold, n) for n in SIZES])


picked = {"480 labels": by(weak), "112,000 labels": by(strong)}
weak_best, strong_best = (gold.mean(1).tolist() for gold in picked.values())
for name, gold in picked.items():
    gain = gold[-1] - gold[3]  # prompt by prompt
    half = 1.96 * float(gain.std()) / len(gain) ** 0.5
    print(f"{name:>14}: from 8 answers to 32 gold gains {float(gain.mean()):+.3f} ± {half:.3f}")
axis = plots.curves(
    {"480 labels": (SIZES, weak_best), "112,000 labels": (SIZES, strong_best)},
    styles={"480 labels": "proxy", "112,000 labels": 3}, marker=True,
    xscale="log", xlabel="n", ylabel="gold of the best of n",
)  # fmt: skip
axis.set_xticks(SIZES, [str(n) for n in SIZES])
axis.minorticks_off()
axis.set(ylim=(0, 1), title="More labels let more tries buy more gold")
plt.show()

# %% [markdown]
# Both gain at first. The gap between the curves is what the missing labels cost. With few labels more
# answers buy less. Whether they stop helping, eight prompts cannot say: look at the printed 95% intervals.
# (On 64 prompts of the same split the model with few labels gains 0.05 ± 0.02.) Best-of-n never leaves what
# the base model would write itself, so it goes only so far.
#
# ## 4. GRPO against it
#
# Now we give the same proxy to an optimiser that has no such bound: no KL penalty, no early stop.
# Every five steps we stop and look: the proxy, the gold reward and its terms, the KL, the texts,
# and what the other reward models say of the same answers.
#
# **Predict first:** which of these will rise to the end, and which will turn?

# %%
TERMS = ("sent", "topic", "polite", "form", "qual")
judges = {"strong": strong, "second": second}
found, halfway = [], []


def look_at(policy, reference, step):
    """What the engine calls as its validation."""
    result = evaluate(
        policy, tokenizer, prompts[:32], PARAMS, RewardModelReward(weak),
        reference=base, gold=RuleReward(reviews.gold_reward, "gold"),
    )  # fmt: skip
    rows = list(zip(result.records, result.responses, result.has_eos.tolist()))
    asked = [tokenizer.encode(record.prompt) for record, _, _ in rows]
    said = [tokenizer.encode(text) + [tokenizer.eos_id] * ended for _, text, ended in rows]
    batch = collate_responses(asked, said, tokenizer.eos_id)
    parts = [reviews.gold_parts(*row) for row in rows]
    terms = torch.tensor([[getattr(part, name) for name in TERMS] for part in parts])
    with torch.no_grad():
        judged = {name: model(batch) for name, model in judges.items()}
    found.append({"step": step, "result": result, "terms": terms} | judged)
    if step == 20:
        halfway.append(copy.deepcopy(policy))  # for section 8
    return {f"validation/{name}": value for name, value in result.summary().items()}


# %%
# stop_kl: a limit far away, so the KL is logged and stops nothing
config = grpo_engine.GRPOConfig(
    steps=40, prompts_per_step=4, group_size=8, lr=5e-4, warmup_steps=3, minibatches=1,
    kl_coef=0.0, stop_kl=1e3, max_new_tokens=40, eval_every=5, seed=0,
)  # fmt: skip
policy = saved_models.base()[0]
found.clear()  # if this cell is run again
halfway.clear()
look_at(policy, base, 0)
log = MetricLog(config.steps)
run = Run(
    config, policy, tokenizer, RewardModelReward(weak), reviews.prompts("train"), log,
    validate=look_at,
)  # fmt: skip
grpo_engine.train(run)
steps = [row["step"] for row in found]
kl = [float(row["result"].kl.mean()) for row in found]
proxy_curve = [float(row["result"].reward.mean()) for row in found]
gold_curve = [float(row["result"].gold.mean()) for row in found]
for step, distance, p, g in zip(steps, kl, proxy_curve, gold_curve):
    print(f"step {step:2}: {distance:5.1f} nats, proxy {p:5.2f}, gold {g:.2f}")


# %%
def draw_mean(axis, meaning, x, scores, label=None):
    """The mean over prompts, with its 95% interval; scores are (looks, prompts)."""
    mean, half = scores.mean(1), 1.96 * scores.std(1) / scores.shape[1] ** 0.5
    axis.fill_between(x, mean - half, mean + half, color=plots.colour(meaning), alpha=0.2)
    label = label or meaning
    plots.curves({label: mean}, x, axis=axis, styles={label: meaning}, marker=True)


figure, (left, middle, right) = plots.panels(3)
proxies = torch.stack([row["result"].reward for row in found])  # (looks, 32 prompts)
golds = torch.stack([row["result"].gold for row in found])
draw_mean(left, "proxy", steps, proxies)
draw_mean(middle, "gold", steps, golds)
left.set(xlabel="GRPO step", ylabel="proxy (standard deviations)", title="The proxy goes on rising")
middle.set(
    xlabel="GRPO step", ylabel="gold reward", title="Gold does not rise with it", ylim=(0, 1)
)
distance = [max(nats, 0) ** 0.5 for nats in kl]
draw_mean(right, "gold", distance, golds, "gold of GRPO")
plots.curves(
    {"best of n": (bank_distance, weak_best)}, axis=right, styles={"best of n": 0},
    marker=True, xlabel="d = sqrt(KL in nats)", ylabel="gold reward", title="Gold turns with the distance",
)  # fmt: skip
for axis in (left, middle):
    axis.get_legend().remove()
right.set_ylim(0, 1)
right.legend(loc="lower center")
plt.show()

# %%
best = max(range(len(steps)), key=gold_curve.__getitem__)
print(f"gold is highest at step {steps[best]}, {kl[best]:.1f} nats away: {gold_curve[best]:.2f}")
print(f"at the end, {kl[-1]:.1f} nats away, it is {gold_curve[-1]:.2f}")
at_20, at_40 = (
    evaluate(
        model, tokenizer, prompts[32:128], PARAMS, RewardModelReward(weak), reference=base,
        gold=RuleReward(reviews.gold_reward, "gold"),
    ).gold
    for model in (halfway[0], policy)
)  # fmt: skip
change = at_40 - at_20  # prompt by prompt
half = 1.96 * float(change.std()) / len(change) ** 0.5
print(f"from step 20 to step 40, on 96 other prompts: {float(change.mean()):.2f} ± {half:.2f}")
holds(float(change.mean()) < 0, "gold is lower at the end than halfway")

# %% [markdown]
# This is *over-optimisation*: the curve that training sees rises nearly to the end, and the one that we
# mean gains little and then turns. The first two panels alone do not prove it, because the shades, 95%
# intervals over 32 prompts, are wide, and a highest point looks high by luck, too. So the last line
# compares two policies that were named before the run, that of step 20 and the last one, on 96 prompts that
# no look has used. If the interval in that line contained 0, this run would prove no turn. With the seeds 1
# and 2 of this run gold fell between the same steps as well, from 0.58 to 0.50 and from 0.60 to 0.14. In
# our study gold, as the mean of three looks in a row, fell by at least 0.10 from its best in 77 of 78 runs,
# while the learned reward went on rising. The right panel draws gold against the distance d = sqrt(KL) from
# the start, because two runs that end at different distances cannot be compared by their end points. (Its
# two curves are of different prompts: compare shapes only.)
#
# **Why the root of the KL?** Push a policy of three answers along its reward, $\pi \propto \pi_{start} \,
# e^{t R}$, which is the best way to spend nats ([05](05_what_a_kl_is.ipynb), section 7), and double the
# step $t$ each time:

# %%
begins, pays = torch.tensor([0.2, 0.3, 0.5]).log(), torch.tensor([3.0, 2.0, 1.0])
rows = []
for t in (0.05, 0.1, 0.2, 0.4):
    moved = (begins + t * pays).log_softmax(0)
    nats = float((moved.exp() * (moved - begins)).sum())
    rows.append([t, nats, nats**0.5, float((moved.exp() - begins.exp()) @ pays)])
plots.table(["step", "KL", "root of the KL", "gain in reward"], rows, number=".4f")
holds(
    abs(rows[1][1] / rows[0][1] - 4) < 0.2, "a step that is twice as long costs four times the KL"
)
holds(abs(rows[1][3] / rows[0][3] - 2) < 0.1, "and gains twice as much")

# %% [markdown]
# A step of twice the length gains twice as much reward and costs four times the KL, because the KL is 0
# at its lowest point, where it has no slope and begins like a square. So the *root* of the KL is the
# length of the way, and over it the reward begins as a straight line. Later it bends: with the right
# reward because little is left to gain, and with a proxy because gold turns. How it bends is what Gao et
# al. ([arXiv:2210.10760](https://arxiv.org/abs/2210.10760)) fitted, gold $= d \, (\alpha - \beta d)$ for
# best-of-n and $d \, (\alpha - \beta \log d)$ for reinforcement learning, with $d = \sqrt{\mathrm{KL}}$.
# Drawn over the KL itself, most of the rise would be squeezed into the first nat.
#
# ## 5. What was exploited
#
# Texts can show it. Here is the prompt whose proxy has risen most from the start to the end, of those whose
# gold fell, at the start, where gold was highest, and at the end:

# %%
first_look, last_look = found[0]["result"], found[-1]["result"]
rose = last_look.reward - first_look.reward
k = int(rose.masked_fill(last_look.gold >= first_look.gold, -9).argmax())
for index in (0, best, len(steps) - 1):
    result = found[index]["result"]
    print(f"step {steps[index]}: proxy {result.reward[k]:.2f}, gold {result.gold[k]:.2f}")
    print("   ", result.responses[k].strip())
print("the prompt:", prompts[k].prompt.strip())
holds(bool(rose[k] > 0 > last_look.gold[k] - first_look.gold[k]), "its proxy rose, its gold fell")

# %% [markdown]
# In this build the policy was asked about a wallet and ends by finding fault with a camera, and the proxy
# pays it three standard deviations. So here it does not mind that the answer is about something else. The
# answer was chosen to show it, so it is no evidence: the evidence is the mean of section 4. (Rounding alone
# may give another one on another processor.)
#
# The gold reward has five terms, so the fall can be taken apart. Gold is content x care, with content
# = 0.3 sentiment + 0.3 topic + 0.25 politeness + 0.15 form, and care = 0.3 + 0.7 quality, which falls
# with every repetition. The change of a product splits exactly:
#
# change(content) x mean(care) + mean(content) x change(care), each mean over the two moments.

# %%
WEIGHTS = torch.tensor([0.3, 0.3, 0.25, 0.15])


def change_by_term(before, after):
    """How much of the change of gold each term carries; terms are (P, 5)."""
    content, care = (before + after)[:, :4] @ WEIGHTS / 2, 0.3 + 0.7 * (before + after)[:, 4] / 2
    change = after - before
    parts = [float((w * change[:, i] * care).mean()) for i, w in enumerate(WEIGHTS)]
    return dict(zip(TERMS, [*parts, float((0.7 * change[:, 4] * content).mean())]))


rise = change_by_term(found[0]["terms"], found[best]["terms"])
fall = change_by_term(found[best]["terms"], found[-1]["terms"])
assert abs(sum(fall.values()) - (gold_curve[-1] - gold_curve[best])) < 1e-4
plots.bars(
    {"start to best": list(rise.values()), "best to end": list(fall.values())},
    ["sentiment", "topic", "politeness", "form", "repetition"],
    styles={"start to best": "gold", "best to end": "bad"}, ylabel="change of gold",
    xlabel="term of the gold reward", title="What each term of gold gains, and then loses",
)  # fmt: skip
plt.show()
holds(sum(rise.values()) > 0 > sum(fall.values()), "gold rises to its best step, and then falls")

# %% [markdown]
# Which term moves most is not the same on every processor, so read it off the picture.
#
# ## 6. More labels
#
# Gao, Schulman and Hilton ([arXiv:2210.10760](https://arxiv.org/abs/2210.10760)) measured with a large
# reward model instead of gold how the turning point depends on the proxy. One run on 32 prompts cannot.
# A study in this repository repeats the experiment with four sizes of reward model, five numbers of
# labels and three starts, which are base models with seeds of their own. This page draws one size and one
# start, and [docs/overoptimisation.md](../docs/overoptimisation.md) has the fitted law.
#
# **Predict first:** with more labels, where does gold turn, and how high is it there?

# %%
study = json.loads(Path("../docs/overoptimisation.json").read_text(encoding="utf-8"))
one_start = [c for c in study["law"]["cells"] if c["engine"] == "grpo" and c["start"] == 0]
recorded = {cell["labels"]: cell for cell in one_start if cell["size"] == "4x128"}


def against_distance(points):
    """d = sqrt(KL), and gold."""
    return [max(nats, 0) ** 0.5 for nats in points["kl"]], points["gold"]


figure, axes = plots.panels(3)
figure.suptitle("With more labels gold turns at a higher peak", x=0.01, ha="left")
for axis, count in zip(axes, (600, 5400, 48600)):
    kinds = {"GRPO": recorded[count]["points"], "best of n": recorded[count]["best_of_n"]}
    both = {name: against_distance(points) for name, points in kinds.items()}
    plots.curves(
        both, axis=axis, styles={"GRPO": "gold", "best of n": 0}, marker=True,
        xlabel="d = sqrt(KL in nats)", ylabel="gold reward", title=f"{count:,} labels",
    )  # fmt: skip
    axis.set(xlim=(0, 6.5), ylim=(0, 1))
    if count > 600:
        axis.get_legend().remove()
plt.show()

# %%
plots.explorable("proxy")

# %%
peak = {
    count: max(zip(*reversed(against_distance(cell["points"])), strict=True))
    for count, cell in recorded.items()
}
for count, (height, where) in sorted(peak.items()):
    print(f"{count:6,} labels: gold is highest, {height:.2f}, at d = {where:.1f}")
holds(peak[48600][0] > peak[5400][0] > peak[600][0], "more labels lift the highest gold")

# %% [markdown]
# With more labels the peak is higher: from 600 to 5,400 to 48,600 labels it rises in 11 of the study's 12
# pairs of size and start. Where it lies differs from start to start, so one start says little about that.
# Best-of-n lies above GRPO nearly everywhere, and Gao et al. saw the same. So the distance is a fair
# measure for two rewards under one optimiser, but not for two optimisers.
#
# ## 7. Noticing it without gold
#
# **The run's own numbers.** Nobody has gold in real life. The doctor
# ([report/doctor.py](../report/doctor.py)) looks at the run's own numbers. A proxy that
# rises is suspect once two more signs come together: a KL above 8 nats, a rise that is large beside
# the spread of the first rewards, a collapse of the rewards' spread, of the entropy or of the number
# of different answers, or an ensemble that disagrees more than at first.

# %%
counts = range(20, len(log.rows) + 1)
said = {n: next(proxy_suspected(RunFolder(log.rows[:n])), None) for n in counts}
alarm = next((n for n in counts if said[n]), None)
if alarm is None:
    print("the doctor sees nothing in these 40 steps")
else:
    print(f"at step {alarm} the doctor says:", said[alarm])

# %% [markdown]
# **Ask several.** The second reward model has read the same labels. The two share what the labels
# say, but differ in their random errors. What does it think of the answers that please the first
# one? And what does the model with 112,000 labels think?

# %% tags=["hide-input"]
both = [torch.stack([row["result"].reward, row["second"]]) for row in found]  # (2, P) each
plots.curves(
    {
        "the proxy": proxy_curve,
        "lower of the two": [float(ensembles.worst_case(s).mean()) for s in both],
        "112,000 labels": [float(row["strong"].mean()) for row in found],
    },
    steps, styles={"the proxy": "proxy", "lower of the two": 0, "112,000 labels": 3},
    xlabel="GRPO step", ylabel="score of the same answers", title="Many labels resist, two models do not",
)  # fmt: skip
plt.show()
spread = [float(s.std(0).mean()) for s in both]
print(f"spread of the two: {spread[0]:.2f} at the start, {spread[-1]:.2f} at the end")

# %% [markdown]
# The alarm comes late here: in the run above it comes after gold has turned. (The lower of two
# begins below the proxy by construction: compare slopes.) The score of the model with many labels rises far
# less than the proxy's. The two weak models disagree only a little more than at the start. A likely reason
# is that they share their labels and so most of their mistakes. Members disagree on the base
# model's own answers, too (the first printed number). What would be a sign is that they disagree *more*
# than there; paying the lowest of them takes reward away where they do
# ([arXiv:2310.02743](https://arxiv.org/abs/2310.02743)):

# %%
plots.code(ensembles.worst_case)
strong_curve = [float(row["strong"].mean()) for row in found]
rise_of = {"proxy": proxy_curve[-1] - proxy_curve[0], "strong": strong_curve[-1] - strong_curve[0]}
holds(rise_of["proxy"] > rise_of["strong"] + 0.3, "many labels are fooled less than few")

# %% [markdown]
# Does any of it *help*, when the policy is trained with it? The study compared eight mitigations at equal
# distance: more labels, labels on the policy's own answers, stranger pairs, ensembles, a KL penalty.
# **With five starts and eight comparisons every one of them is undecided**
# ([the table](../docs/overoptimisation.md#2-what-helps-at-equal-kl)): none differs significantly from doing
# nothing, which does not show that none helps. So do not trust a remedy that was tested on a single seed,
# nor call it useless because of a few.
#
# **When to stop, then?** `--stop-kl 6` ends a run whose KL exceeds 6 nats per response and keeps the
# last policy inside. To choose the number, let a judge that was not trained on (people, another model)
# compare samples of the policy at several distances with those of the start. Stop where its verdicts
# stop rising, not where the reward does.
#
# **A trust region is no anchor.** A clip, or a KL to the policy of the last batch, bounds each step. It
# does not bound the distance from the start: small steps in one direction add up. Only a penalty, or a
# limit, on the distance from a *fixed* reference keeps the policy where the proxy was trained
# ([16](16_single_model_grpo.ipynb), section 4, has the picture).
#
# ## 8. Iterative GRPO: train the reward model again
#
# The proxy breaks because the policy has left the answers that it was trained on. So compare its
# *present* answers and train on: "continuous training using a replay mechanism", line 12 of the GRPO
# paper's Algorithm 1 ([arXiv:2402.03300](https://arxiv.org/abs/2402.03300)). The new comparisons are
# mixed with "10% of historical data", so that the old ones are not forgotten: of $n_{new}$ new ones,
# $n_{old} = n_{new} f / (1 - f)$ old ones make up the share $f = 0.1$ of the mix.

# %%
for new in (90, 2800):
    naive = round(new * 0.1 / 0.9)
    print(f"{new} new pairs, {naive} replayed")
    assert naive == continual.history_count(new, 10_000, 0.1)
plots.code(grpo_iterative_engine.train, ("a new iteration", "reference.load_state_dict"))

# %% [markdown]
# **Predict, then run.** We take the policy of section 4 as it was after 20 of its 40 steps, and buy 2,800
# comparisons of its own answers. The proxy trains on with them, and 20 more steps follow. What happens to
# the run's own reward, and to gold?

# %%
proxy_again, learner = copy.deepcopy(weak), halfway[0]
pairs = [continual.as_row(pair, tokenizer, 0) for pair in labels]
refresh = continual.ContinualRewardModel(
    proxy_again, tokenizer, reviews.prompts("train"), WorldAnnotator(reviews),
    RewardModelConfig(
        pairs=2800, held_out_pairs=120, responses_per_prompt=8, batch_size=4, lr=2e-3, warmup_steps=5
    ),
    continual.History(continual.visits_of(pairs)), probe=held_out,
)  # fmt: skip


def judged(policy, reference, step):
    """Gold and the distance, on the prompts of section 4."""
    result = evaluate(
        policy, tokenizer, prompts[:32], PARAMS, RewardModelReward(proxy_again), reference=base,
        gold=RuleReward(reviews.gold_reward, "gold"),
    )  # fmt: skip
    return {f"validation/{name}": value for name, value in result.summary().items()}


fresh = refresh.update(learner, 21)  # what the engine does at the beginning of an iteration
again = dataclasses.replace(config, steps=20)
run = Run(
    again, learner, tokenizer, RewardModelReward(proxy_again), reviews.prompts("train"),
    MetricLog(again.steps), validate=judged,
)  # fmt: skip
rows = grpo_engine.train(run)
new_gold = [row["validation/gold"] for row in rows if "validation/gold" in row]

# %% tags=["hide-input"]
figure, (left, right) = plots.panels(2)
both = {"refreshed": (steps[4:], [gold_curve[4], *new_gold]), "frozen": (steps, gold_curve)}
STYLES = {"refreshed": "policy", "frozen": "bad"}
plots.curves(both, axis=left, styles=STYLES, marker=True, xlabel="GRPO step",
            ylabel="gold reward")  # fmt: skip
left.set(ylim=(0, 1), title="After the refresh gold ends higher")
own = {"refreshed": (range(21, 41), [row["reward"] for row in rows]),
       "frozen": (range(1, 41), [row["reward"] for row in log.rows])}  # fmt: skip
plots.curves(own, axis=right, styles=STYLES, xlabel="GRPO step", ylabel="the run's own reward")
right.set_title("Both rewards go on rising")
for axis in (left, right):
    axis.axvline(20.5, **plots.line("exact"))
plt.show()
for when in ("before", "after"):
    share = fresh[f"fresh_accuracy/{when}"]
    print(
        f"{when} the refresh the proxy orders {share:.2f} of new pairs of the policy as gold does"
    )
print(f"gold at the end: {new_gold[-1]:.2f} refreshed, {gold_curve[-1]:.2f} frozen")
holds(fresh["fresh_accuracy/after"] > fresh["fresh_accuracy/before"], "the refresh helps the proxy")
holds(
    sum(new_gold) > sum(gold_curve[5:]),
    "after the refresh gold is higher than with the frozen proxy",
)

# %% [markdown]
# Across the dashed line the run's own reward has another scale. This one run does not say *why* gold ends
# higher: the refreshed proxy has read the policy's present answers, but also nearly seven times as many
# labels in all. The refresh costs 2,800 judgements, and with a reward model that is good to begin with it
# gains nothing ([the archive](../docs/archive.md#reviews)).
#
# **Where this lives.** The study's numbers: [docs/overoptimisation.md](../docs/overoptimisation.md),
# written by `python -m studies overoptimisation`. The code: `rl/equations/best_of_n.py`,
# `rl/equations/ensembles.py` and `report/doctor.py`. An ensemble:
# `python -m rl.grpo_engine --reward-model A B C --ensemble min`.
#
# ## Exercises
#
# **1.** The expected gold of the best of n, from a bank of N answers to one prompt.


# %%
def my_best_of_n_mean(proxy, gold, n):
    """proxy and gold are (N,); how many of the subsets of n does each answer win?"""
    return None


check("best_of_n_mean", my_best_of_n_mean)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_best_of_n_mean(proxy, gold, n):
#     N = len(proxy)
#     rising = gold[proxy.argsort()]
#     chosen = [math.comb(i - 1, n - 1) / math.comb(N, n) for i in range(1, N + 1)]
#     return (rising * torch.tensor(chosen)).sum()
# ```
# </details>
#
# The others ask for an answer, on a table of your own: work it out, enter it, and `check_answer` says why
# another one is wrong.
#
# **2. What was given up?** A recorded run of GRPO against a learned reward, looked at some times on
# prompts that it was not trained on. One of A and B is the gold reward, the other the learned one.
# Suppose you keep, of these looks, the policy that the *learned* reward likes best. How much gold reward
# do you give up, compared with the best of these policies? (No solution is printed.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("gold_given_up", MINE)

# %%
check_answer("gold_given_up", ..., MINE)

# %% [markdown]
# **3. How many answers?** A policy may go so many nats from its start and no further. From how many
# answers may best-of-n choose at most?

# %%
table("answers_within", MINE)

# %%
check_answer("answers_within", ..., MINE)

# %% [markdown]
# **4. What may be concluded from this table?** Twelve engines were compared with GRPO, from three starts.
# Enter the letter of one statement. (Among twelve tests one is likely to look significant by luck. The last
# column corrects for that; page [21](21_which_would_you_have_believed.ipynb), section 2, shows how.)
#
# | gold reward of PPO less GRPO's | start 0 | start 1 | start 2 | p alone | p after correction for twelve |
# |---|---|---|---|---|---|
# | reviews | +0.099 | +0.074 | +0.069 | 0.014 | 0.129 |

# %%
table("three_starts", MINE)

# %%
check_answer("three_starts", ..., MINE)

# %% [markdown]
# **To read on.** Gao et al. ([arXiv:2210.10760](https://arxiv.org/abs/2210.10760)), because they measured
# the law with a gold model that could be asked as often as they liked; Stiennon et al.
# ([arXiv:2009.01325](https://arxiv.org/abs/2009.01325)), section 4.3, because there people judge the
# summaries of policies that have gone too far; and
# [docs/overoptimisation.md](../docs/overoptimisation.md), for the runs with all seeds.
#
# ## To remember
#
# - The proxy rises while gold turns, and a highest point proves nothing until other prompts have
#   confirmed it.
# - More labels mostly lift the peak; the distance that has been travelled is the root of the KL.
# - Without gold, watch the KL, the entropy and a judge that was not trained on; only a fixed reference is
#   an anchor.
#
# Next: [14_dpo_and_pg_grpo](14_dpo_and_pg_grpo.ipynb). There a policy learns from comparisons without a
# reward model, so without this proxy.
