# %% [markdown]
# # 11. The GRPO family
#
# **The question.** Many papers changed a line or two of GRPO and gave the result a new name.
# Which line does each change, and what does the change do?
#
# **After this page you can** read a variant of GRPO as a handful of choices, say which line a name
# changes and when that matters, and choose one by its reason.
#
# **Why.** As names they are a zoo, but as *choices* they are few: how token losses are averaged,
# what rewards are divided by, which ratio is held back and how, which groups and which tokens are
# trained on. This page takes the choices one at a time.
#
# **You need** [07_grpo](07_grpo.ipynb), and the clip's four cases from
# [04_policy_gradients_and_baselines](04_policy_gradients_and_baselines.ipynb). The engine is
# [rl/grpo_variants_engine.py](../rl/grpo_variants_engine.py).
#
# **It takes** about half a minute on one CPU core, after start-up.

# %%
import copy
import math
import random

import matplotlib.pyplot as plt
import torch

try:
    from course import plots
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.claims import holds
from course.exercises import check
from torch import Tensor

from data.collate import collate_responses
from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import build_tokenizer
from harness.metric_log import MetricLog
from harness.seeds import make_generator
from report.tokens import show_tokens

# %%
from rl import grpo_variants_engine
from rl.batches.rollout import sample_rollout
from rl.equations import losses
from rl.equations.advantages import group_advantages
from rl.equations.losses import clipped_surrogate, token_mean
from rl.grpo_variants_engine import REDUCERS, SURROGATES, VARIANTS, from_variant
from rl.loop import Run
from rl.rewards.reward import RuleReward

plots.use()
torch.set_num_threads(1)  # one thread adds up in the same order on every machine
torch.set_printoptions(precision=3, sci_mode=False, linewidth=100)

# %% [markdown]
# ## 1. Names are bundles of choices
#
# *All variants side by side, as changed lines of one function.*
#
# GRPO's loss once more, for groups of $G$ responses with rewards $R$:
#
# $$\mathcal{L} = -\frac{1}{N} \sum_i \frac{1}{L_i} \sum_t \min \left[ \rho_{i,t} A_i,
# \mathrm{clip}(\rho_{i,t}, 1 - \epsilon, 1 + \epsilon) A_i \right], \qquad A_i =
# \frac{R_i - \mathrm{mean}(R)}{\mathrm{std}(R)}, \qquad \rho = \frac{\pi}{\pi_{old}}$$
#
# (The KL penalty is left out here, as the other variants do.) In code these are six lines:

# %%
G = 4


def grpo(rewards: Tensor, log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    centred = rewards.view(-1, G) - rewards.view(-1, G).mean(1, keepdim=True)
    A = (centred / (centred.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - 0.2, 1 + 0.2)
    gain = torch.minimum(ratio * A, clipped * A) * mask
    return -(gain.sum(1) / mask.sum(1)).mean()


# %% [markdown]
# Every neighbour is this text with a few lines replaced. (Whole programs are in
# [nano](../nano/README.md): try `diff nano/grpo.py nano/dr_grpo.py`.) The next cell lists only the new
# lines, as texts, so that the page can both run a loss and show what is different in it. In the sections
# below a line with a minus is removed and a line with a plus is added.

# %%
A, RATIO, CLIPPED, GAIN, MEAN = plots.source(grpo).splitlines()[2:]
CHANGES = {
    "dr_grpo": {A: "    A = centred.view(-1, 1)", MEAN: "    return -(gain.sum(1) / 32).mean()"},
    "dapo": {CLIPPED: "    clipped = ratio.clamp(1 - 0.2, 1 + 0.28)",
             MEAN: "    return -gain.sum() / mask.sum()"},
    "gspo": {RATIO: "    log_ratio = ((log_probs - old_log_probs) * mask).sum(1, keepdim=True)\n"
                    "    ratio = (log_ratio / mask.sum(1, keepdim=True)).exp()",
             CLIPPED: "    clipped = ratio.clamp(1 - 3e-4, 1 + 4e-4)"},
    "cispo": {CLIPPED: "    weight = ratio.clamp(max=5.0).detach()",
              GAIN: "    gain = weight * A * log_probs * mask",
              MEAN: "    return -gain.sum() / mask.sum()"},
    "sapo": {CLIPPED: "    tau = torch.where(A > 0, 1.0, 1.05)",
             GAIN: "    gain = 4 / tau * torch.sigmoid(tau * (ratio - 1)) * A * mask"},
}  # fmt: skip
TEXTS = {"grpo": plots.source(grpo)}
for name, changes in CHANGES.items():
    lines = [changes.get(line, line) for line in TEXTS["grpo"].splitlines()]
    TEXTS[name] = "\n".join(lines)

# %% [markdown]
# The engine has one loop: a name fills in fields, and each field picks a function from a table. On a
# random batch all six losses agree, in value and in gradient. (DAPO's `sampling_filter` is section 7. For
# answers that hit the length limit its paper has two rules. *Overlong filtering*, here `mask_truncated`,
# leaves them out of the loss. *Soft overlong punishment*, here `overlong_buffer`, lowers the reward by 0 to
# 1, linearly over the last fifth before the limit.)

# %%
BOUND = {"cispo": dict(clip_high=4.0)}  # its own bound: 5 = 1 + clip_high
noise = make_generator(0, "batch")
rewards, old = torch.randn(8, generator=noise), -3 * torch.rand(8, 6, generator=noise)
moved = old + 0.3 * torch.randn(8, 6, generator=noise)
mask = torch.arange(6) < torch.tensor([1, 6, 3, 2, 5, 4, 6, 2])[:, None]


def by_the_engine(name: str, log_probs: Tensor) -> Tensor:
    """The loss of a variant, from the tables of rl/grpo_variants_engine.py."""
    config = from_variant(name, max_new_tokens=32, **BOUND.get(name, {}))
    A = group_advantages(rewards, G, scale=config.reward_scale)
    token_loss = SURROGATES[config.surrogate](config, log_probs, old, A, mask)
    return REDUCERS[config.reducer](config, token_loss, mask, mask)


for name, text in TEXTS.items():
    exec(text, {"torch": torch, "Tensor": Tensor, "G": G}, made := {})
    x = moved.clone().requires_grad_()
    mine, engines = made["grpo"](rewards, x, old, mask), by_the_engine(name, x)
    torch.testing.assert_close(mine, engines)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (mine, engines)))
    print(f"{name:8} {mine:+.4f}   {', '.join(f'{k}={v}' for k, v in VARIANTS[name].items())}")

# %% [markdown]
# **A world to measure in.** A prompt is three letters of `a` to `h`; a response is right if it *begins
# with the last one*, whatever chatter follows. The base model is good at `a b c`, fair at `d e f` and
# guesses at `g h`. It is so small that the exact **success rate** of all 512 prompts can be read off.

# %% tags=["hide-input"]
LETTERS = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})
EASE = dict(zip("abcdefgh", [0.97] * 3 + [0.3] * 3 + [0.02] * 2, strict=True))
PROMPTS = [PromptRecord(a + b + c) for a in EASE for b in EASE for c in EASE]
echo = RuleReward(lambda record, text, ended: float(text[:1] == record.prompt[-1]), "echo")

source = random.Random(0)
base = GPT(GPTConfig(LETTERS.n_vocab, context=16, n_layer=2, n_head=2, n_embd=32))
base.initialize(make_generator(0, "weights"))
optimizer = torch.optim.AdamW(base.parameters(), lr=5e-3)
for _ in range(250):
    chosen = [record.prompt for record in source.choices(PROMPTS, k=64)]
    first = [p[-1] if source.random() < EASE[p[-1]] else source.choice("abcdefgh") for p in chosen]
    rest = ["".join(source.choices("abcdefgh", k=source.randint(0, 6))) for _ in chosen]
    answers = [LETTERS.encode(f + r) + [LETTERS.eos_id] for f, r in zip(first, rest, strict=True)]
    batch = collate_responses([LETTERS.encode(p) for p in chosen], answers, LETTERS.eos_id)
    loss = token_mean(-token_log_probs(base, batch), batch.response_mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# %%
@torch.no_grad()
def success_rates(policy: GPT) -> Tensor:
    """The exact probability of a right response for every prompt, (512,)."""
    tokens = torch.tensor([LETTERS.encode(record.prompt) for record in PROMPTS])
    return policy(tokens)[:, -1].softmax(-1).gather(1, tokens[:, -1:])[:, 0]


by_ending = success_rates(base).view(64, 8).mean(0)  # the last letter varies fastest
print("success rate by last letter:", by_ending)
print(f"all prompts: {success_rates(base).mean():.3f}")


# %% [markdown]
# A run trains a copy of the base model.


# %%
def exact(policy: GPT, reference: GPT | None, step: int) -> dict[str, float]:
    """Takes the place of sampling validation prompts."""
    return {"success_rate": float(success_rates(policy).mean())}


def run(variant: str = "grpo", **changes) -> tuple[list[dict], GPT]:
    """Train a copy of the base model; returns the metrics and the policy."""
    shared = dict(prompts_per_step=8, group_size=8, lr=2e-3, warmup_steps=3, stop_kl=None)
    shared |= dict(max_new_tokens=8, max_grad_norm=1e9, eval_every=1, steps=36, kl_coef=0.0)
    config = from_variant(variant, **(shared | changes))
    policy, log = copy.deepcopy(base), MetricLog(config.steps)
    run = Run(config, policy, LETTERS, echo, PROMPTS, log, validate=exact)
    rows = grpo_variants_engine.train(run)
    return rows, policy


# %% [markdown]
# ## 2. `reducer`: what a token of a long answer weighs
#
# *The first choice: how the losses of tokens are averaged.*
#
# GRPO averages over the tokens of a response first, then over responses (`sequence_mean`;
# arXiv:2402.03300, Eq. 3). So a token of a long response weighs less than a token of a short one. DAPO
# ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476), Eq. 12) averages over all tokens at once
# (`token_mean`). RLOO adds the tokens of a response up (`sequence_sum`). Dr. GRPO
# ([arXiv:2503.20783](https://arxiv.org/abs/2503.20783)) divides that sum by a constant, the longest
# that a response may become (`constant_length_mean`). It leaves the standard deviation out as well:

# %%
plots.difference(TEXTS["grpo"], TEXTS["dr_grpo"], names=("GRPO", "Dr. GRPO"), context=0)

# %%
config = from_variant("grpo", max_new_tokens=32)
lengths_mask = torch.arange(16) < torch.tensor([[4], [16]])
rows = []
for name, reduce in REDUCERS.items():
    x = torch.zeros(2, 16, requires_grad=True)
    (weight,) = torch.autograd.grad(reduce(config, x, lengths_mask, lengths_mask), x)
    short, long = weight[0, 0].item(), weight[1, 0].item()
    rows.append([name, short, long, f"{short / long:.0f} to 1"])
columns = ["reducer", "weight of a token of a response of 4", "of 16", "ratio"]
plots.table(columns, rows, shade={"4 to 1": "bad", "1 to 1": "good"}.get)
holds(
    [row[3] for row in rows] == ["4 to 1"] + ["1 to 1"] * 3,
    "only sequence_mean weighs a token of a short response four times as much",
)

# %%
plots.explorable("reducers")

# %% [markdown]
# Eight responses of the base model to one prompt, coloured by the push on each token, $A_i$ times its
# weight. Switch between the reducers above the text. Under `sequence_mean` the long wrong answers are
# pale.

# %%
group = sample_rollout(
    base, LETTERS, [PromptRecord("abe")], SamplingParams(max_new_tokens=8), 8,
    make_generator(5, "view"),
)  # fmt: skip
A, tokens_mask = group_advantages(echo(group), 8), group.response_mask
L = tokens_mask.sum(1, keepdim=True)
show_tokens(
    [[*text, "(end)"][: int(n)] for text, n in zip(group.responses, L, strict=True)],
    {"sequence_mean": A / (8 * L) * tokens_mask, "token_mean": A / L.sum() * tokens_mask},
    prompts=["abe"] * 8,
)

# %% [markdown]
# Is that a matter of taste? Take a policy whose length has *nothing* to do with its reward.
# Whatever the loss does to its length is then a mistake of the loss. A quarter of the responses are
# right, by luck. After every token a response stops with the probability $s$. Right and wrong
# responses each have their own $s$, and both start at 0.15. The push on both should be 0 on
# average.
#
# **Predict, then run.** What will wrong answers learn, and what will right ones learn? With the
# engine's own reducers, and 512 responses a step:


# %%
s, budget = 0.15, 64


def drift(reducer: str, steps: int = 120) -> Tensor:
    """Mean length of (right, wrong) responses over the steps, (steps, 2); groups of 8."""
    generator, logit = make_generator(0, "lengths"), torch.full((2,), math.log(s / (1 - s)))
    config, curve = from_variant("grpo", max_new_tokens=budget), []
    # Reducers differ in scale: with this factor their steps are alike in size.
    unit = {"constant_length_mean": budget, "sequence_sum": 1.0}.get(reducer, 1 / s)
    for _ in range(steps):
        kind = (torch.rand(512, generator=generator) > 0.25).long()  # 0 right, 1 wrong
        stops = torch.rand(512, budget, generator=generator) < logit.sigmoid()[kind, None]
        mask = (stops.cumsum(1) - stops.long()) == 0
        curve.append(torch.stack([mask[kind == k].sum(1).float().mean() for k in (0, 1)]))
        theta = logit.clone().requires_grad_()
        of_row = theta[kind, None]
        log_probs = torch.where(stops, of_row.sigmoid().log(), (-of_row).sigmoid().log())
        advantages = group_advantages((kind == 0).float(), 8)
        token_loss = clipped_surrogate(log_probs, log_probs, advantages, 0.2, 0.2)
        loss = REDUCERS[reducer](config, token_loss, mask, mask)
        logit = logit - 0.02 * unit * torch.autograd.grad(loss, theta)[0]
    return torch.stack(curve)


curves = {name: drift(name) for name in REDUCERS}

# %%
figure, axes = plots.panels(4, width=12)
for axis, (name, curve) in zip(axes, curves.items(), strict=True):
    by_kind = {"wrong responses": curve[:, 1], "right responses": curve[:, 0]}
    plots.curves(by_kind, axis=axis, styles={"wrong responses": "bad", "right responses": "good"},
                title=name, xlabel="step", ylabel="mean length (tokens)", ylim=(0, 18))  # fmt: skip
    axis.axhline(1 / s, **plots.line("exact"))
    axis.label_outer()
    if axis is not axes[-1]:
        axis.get_legend().remove()
plt.show()
holds(
    curves["sequence_mean"][-10:, 1].mean() > 2 * curves["sequence_mean"][0, 1],
    "under sequence_mean wrong answers grow to twice their length",
)
for name in ("token_mean", "sequence_sum", "constant_length_mean"):
    holds(
        (curves[name][-10:].mean(0) - 1 / s).abs().max() < 2.5,
        "the other reducers leave the lengths alone",
    )

# %% [markdown]
# The dashed line is where the lengths should have stayed. Wrong answers grow and right ones shrink.
# This is the "length bias" of the Dr. GRPO paper. Here it is the average, not thinking, that makes
# wrong answers longer. The other three stay on the line up to noise.
#
# ## 3. `reward_scale`: which prompts dominate
#
# *The second choice: what rewards are divided by.*
#
# $$A_i = \frac{R_i - \mathrm{mean}(R_{1..G})}{\mathrm{std} + \epsilon}, \qquad \mathrm{std}
# \text{ of the group, of the batch, or } 1$$
#
# Dividing by the group's own deviation gives every group equal weight, however little its rewards
# differ. Here are four answers that hardly differ, beside four that differ a lot:

# %%
near, far = torch.tensor([0.50, 0.50, 0.50, 0.51]), torch.tensor([0.0, 0.0, 0.0, 1.0])
for scale in ("group", "batch", "none"):
    of_near, of_far = group_advantages(torch.cat([near, far]), 4, scale=scale).view(2, 4)
    print(f"{scale:6} nearly equal", of_near, " very different", of_far)
    holds(
        of_far[-1] / of_near[-1] < 1.1 if scale == "group" else 99 < of_far[-1] / of_near[-1],
        "only the group's deviation gives both groups the same weight",
    )

# %% [markdown]
# `group` makes a reward model's noise count as much as its verdict. `batch` keeps the proportions
# but still removes the scale. `none` (Dr. GRPO) leaves the scale to the learning rate. With rewards of 0
# and 1 the effect of `group` is milder: a group of eight with one right or one wrong answer is scaled up
# 1.5 times as much as a half-solved one. That is the "difficulty bias" of the Dr. GRPO paper. MaxRL
# ([arXiv:2602.02710](https://arxiv.org/abs/2602.02710)) wants more of it: where rewards are 0 or 1, it
# divides the distance from the mean by the group's *mean*, so hard prompts weigh more.
#
# > **First exit.** The average and the scale concern every run, so you must choose them. Sections 4 to 6
# > matter only where a batch is used for several updates, and section 7 where many groups are silent.
#
# ## 4. `clip_high`: room for what is rare
#
# *The third choice: how far a rare word may rise in one batch.*
#
# The clip ends a token's push at the *ratio* $1 + \epsilon$. So a token with probability 0.9 is pushed
# until it is certain, but one with probability 0.01 only until it has 0.012. (A single long step may carry
# it further: the clip is no wall.) What is rare gains little in a batch, and DAPO's authors blame that for
# a part of the falling entropy, which in long runs ends where nearly all answers are alike (*entropy
# collapse*). A part: entropy falls without any clip as well, because what is rewarded becomes likelier.
# Therefore DAPO (section 3.1) makes the clip **asymmetric** ("clip-higher"): the lower end stays 0.2, and
# the upper one becomes 0.28. Other remedies against a falling entropy: `--entropy-coef` of PPO
# ([09](09_ppo.ipynb), section 8, says what it pulls to), a larger KL coefficient, and the variants `kl_cov`
# and `clip_cov`, which hold back the few tokens that lower it most. DAPO also averages over tokens:

# %%
plots.difference(TEXTS["grpo"], TEXTS["dapo"], names=("GRPO", "DAPO"), context=0)

# %% [markdown]
# The bound has to be *reached* to matter. With one update per batch and one minibatch every ratio is 1,
# and no clip range does anything: look at `clip_high_fraction` before believing in one.
#
# ## 5. `surrogate`: one ratio per response
#
# *The fourth choice: a ratio for each token, or one for the answer.*
#
# The reward belongs to the response, the ratio to the token. GSPO
# ([arXiv:2507.18071](https://arxiv.org/abs/2507.18071), Eqs. 5 and 7) takes one ratio per response,
# the geometric mean of its tokens' ratios:
#
# $$s_i = \left( \frac{\pi_\theta(y_i \mid x)}{\pi_{old}(y_i \mid x)} \right)^{1 / L_i} =
# \exp \frac{1}{L_i} \sum_t \log \frac{\pi_\theta(y_{i,t})}{\pi_{old}(y_{i,t})}$$

# %%
plots.difference(TEXTS["grpo"], TEXTS["gspo"], names=("GRPO", "GSPO"), context=0)

# %% [markdown]
# (GMPO, [arXiv:2507.20673](https://arxiv.org/abs/2507.20673), clips each token's ratio before that mean.)
# What is the root $1 / L$ for? Without it the ratio is the *product* of the token ratios (surrogate
# `sequence`). Responses of very different lengths show it. A random model is moved a little at random,
# and scored before and after.

# %%
old_model = GPT(GPTConfig(LETTERS.n_vocab, context=72, n_layer=2, n_head=2, n_embd=32))
old_model.initialize(make_generator(1, "weights"))
new_model, noise = copy.deepcopy(old_model), make_generator(1, "noise")
for parameter in new_model.parameters():
    shift = torch.randn(parameter.shape, generator=noise)
    parameter.data += 0.5 * float(parameter.detach().std(correction=0)) * shift
rollout = sample_rollout(
    old_model, LETTERS, PROMPTS[:64], SamplingParams(max_new_tokens=64), 16, make_generator(1, "")
)
with torch.no_grad():
    change = token_log_probs(new_model, rollout.sequences) - rollout.log_probs
L = rollout.lengths
product = change.sum(1)  # log of the product of the ratios
root = product / L  # log of GSPO's ratio
print(f"{len(L)} responses of {L.min()} to {L.max()} tokens")

# %% tags=["hide-input"]
figure, axes = plots.panels(3, width=11)
per_token = L[:, None].expand_as(change)[rollout.response_mask]
for axis, x, y, title in (
    (axes[0], per_token, change[rollout.response_mask], "token"),
    (axes[1], L, product, "product (sequence)"),
    (axes[2], L, root, "root of the product (gspo)"),
):
    axis.plot(x, y, ".", markersize=2, alpha=0.5, color=plots.colour("policy"))
    for edge in (0.8, 1.2):
        axis.axhline(math.log(edge), **plots.line("exact"))
    axis.set(title=title, xlabel="response length (tokens)", ylabel="log ratio", ylim=(-1.6, 1.6))
    axis.label_outer()
plt.show()
for name, x, low, high in (
    ("token", change[rollout.response_mask], 0.2, 0.2), ("product", product, 0.2, 0.2),
    ("root", root, 0.2, 0.2), ("root", root, 3e-4, 4e-4),
):  # fmt: skip
    outside = ((x.exp() < 1 - low) | (x.exp() > 1 + high)).float().mean()
    print(f"{name:8} outside of 1 - {low} to 1 + {high}: {outside:.1%}")
short, long = L <= 2, L > 20
holds(
    product[long].std() > 2.5 * product[short].std() and root[long].std() < root[short].std(),
    "the product scatters more with the length, the root less",
)

# %% [markdown]
# The dashed lines are the ratios 0.8 and 1.2. The product drifts out of any range as responses get
# longer, so a long response would be clipped for its length. The root stays closer to 1, so it
# needs its own range. Almost no response leaves 0.8 to 1.2, but almost all leave the paper's range
# of 3e-4 below 1 and 4e-4 above it.
#
# Averaging this loss over *tokens* would weigh each response by its length, so the engine
# refuses that combination.
#
# ## 6. `surrogate`: what happens to a token that has moved too far
#
# *The fifth choice: what becomes of a token that has moved too far.*
#
# GRPO's clip takes the gradient of such a token away. A rare but decisive token ("wait", "however") is
# often the first to move far, and then teaches nothing more in this batch. CISPO
# ([arXiv:2506.13585](https://arxiv.org/abs/2506.13585), Eqs. 4 and 5) takes the ratio as a mere
# *weight* of $\log \pi$, without its own gradient (`detach`). It bounds that weight from above, so
# every token keeps a gradient. SAPO ([arXiv:2511.20347](https://arxiv.org/abs/2511.20347)) replaces
# the edge by a sigmoid.

# %%
plots.difference(TEXTS["grpo"], TEXTS["cispo"], names=("GRPO", "CISPO"), context=0)
plots.difference(TEXTS["grpo"], TEXTS["sapo"], names=("GRPO", "SAPO"), context=0)

# %% [markdown]
# The next plot shows the push on $\log \pi$ of one token, over its ratio. CISPO's paper does not
# print its bound, so the plot has ScaleRL's ([arXiv:2510.13786](https://arxiv.org/abs/2510.13786)):
# 5, which is `clip_high` 4 in the engine's terms.


# %%
def push(
    config: grpo_variants_engine.GRPOVariantsConfig, ratios: Tensor, advantage: float
) -> Tensor:
    """-d loss / d log pi for tokens at these ratios, the direction in which log pi is moved."""
    x = ratios.log()[:, None].requires_grad_()  # one token a response, log pi_old = 0
    mask, A = torch.ones_like(x, dtype=torch.bool), torch.full_like(x, advantage)
    loss = SURROGATES[config.surrogate](config, x, torch.zeros_like(x), A, mask)
    if config.dual_clip is not None:
        loss = losses.dual_clip(loss, A, config.dual_clip)
    return -torch.autograd.grad(loss.sum(), x)[0][:, 0]


SHAPES = {
    "token": from_variant("grpo"),
    "token, dual clip 3": from_variant("grpo", dual_clip=3.0),
    "cispo, bound 5": from_variant("cispo", clip_high=4.0),
    "sapo": from_variant("sapo"),
}
ratios = torch.linspace(0.02, 7, 700)
figure, axes = plots.panels(2)
for axis, A in zip(axes, (1.0, -1.0), strict=True):
    pushes = {name: push(config, ratios, A) for name, config in SHAPES.items()}
    plots.curves(pushes, ratios.tolist(), axis=axis, xlabel="ratio pi / pi_old",
                ylabel="push on log pi", title=f"A = {A:+.0f}")  # fmt: skip
    axis.axvline(1, **plots.line("exact"))
axes[1].get_legend().remove()
plt.show()

# %%
far = {name: push(config, torch.tensor([1.0, 6.0]), -1.0) for name, config in SHAPES.items()}
assert all(pushes[0] == -1 for pushes in far.values())  # at ratio 1 all of them are REINFORCE
holds(
    far["token"][1] < -5.9 and far["token, dual clip 3"][1] == 0,
    "beyond its edge a token of a bad response pulls without a bound, but not under dual clip",
)

# %% [markdown]
# - **token** has no push beyond the edge, on the side to which its advantage pushes. On the other side
#   there is no bound: a bad token at ratio 6 pulls six times as hard. **Dual clip** ends that: here such
#   a token has no push beyond ratio 3.
# - **cispo** always has a push, and none is larger than its bound.
# - **sapo** follows the unclipped push near 1, bends, and fades far away, in nearly the same way for
#   both signs.
#
# **Your turn: change one line.** The function below is GRPO's clipped loss of a token, and it runs. Change
# *one* of its lines so that a bad token never counts with a ratio above `most`, and is no longer pushed
# beyond it, while everything else stays as it is. (That is what dual clip does. Which of the two products
# does the minimum take for a bad token at ratio 6?)


# %%
def my_bounded_pull(log_probs, old_log_probs, advantages, clip, most):
    """(N, T), (N, T), (N, 1), and two numbers with most > 1 + clip -> the losses of tokens, (N, T)."""
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    gain = torch.minimum(ratio * advantages, clipped * advantages)
    return -gain


check("bounded_pull", my_bounded_pull)

# %% [markdown]
# <details>
# <summary>Hint</summary>
#
# For a bad token both products are negative, and the smaller one has the *larger* ratio. So it is the
# unclipped one that has to be held.
#
# </details>
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_bounded_pull(log_probs, old_log_probs, advantages, clip, most):
#     """(N, T), (N, T), (N, 1), and two numbers with most > 1 + clip -> the losses of tokens, (N, T)."""
#     ratio = (log_probs - old_log_probs).exp()
#     clipped = ratio.clamp(1 - clip, 1 + clip)
#     gain = torch.minimum(ratio.clamp(max=most) * advantages, clipped * advantages)
#     return -gain
# ```
#
# A good token is not touched, because the clip has stopped it at `1 + clip`, below `most`.
#
# </details>
#
# ## 7. `sampling_filter`: which groups are trained on
#
# *The last choice: which groups take part at all.*
#
# A group whose rewards are all equal has no advantage and teaches nothing. With a success rate $p$
# that happens with probability $p^G + (1 - p)^G$. For the success rates printed in section 1 that is
# nearly four in ten groups of eight, most of them of the easiest prompts.
#
# DAPO drops such groups and samples other prompts until the batch is full (*dynamic sampling*). The
# engine asks for as many prompts as are missing, at most `max_resamples` times. **Predict, then run:**
# is it better per step? Is it better per sampled response?

# %%
steps = dict(steps=36, minibatches=1)
runs = {
    name: [run(sampling_filter=name, seed=seed, **steps)[0] for seed in (0, 1)]
    for name in ("none", "dynamic")
}


def column(rows: list[dict], key: str) -> list[float]:
    return [row.get(key, 64) for row in rows]  # without the filter: 8 prompts, 8 responses each


figure, axes = plots.panels(2)
for color, (name, pair) in zip(plots.SERIES, runs.items(), strict=False):
    for number, rows in enumerate(pair):
        style = {"color": color, "linestyle": "-" if name == "none" else "--"}
        label, solved = (name if number == 0 else None), column(rows, "success_rate")
        sampled = torch.tensor(column(rows, "sampled_responses")).cumsum(0)
        axes[0].plot(solved, label=label, **style)
        axes[1].plot(sampled, solved, **style)
plots.labels(axes[0], "step", "success rate (exact)", legend=True)
plots.labels(axes[1], "responses sampled", "success rate (exact)")
plt.show()

# %% [markdown]
# A dropped prompt costs as much to sample as one that is kept. So the right panel is the fair one where
# sampling is dear, and the left one where updates are. Two seeds decide neither: take from the picture what
# you would have to repeat.
#
# ## 8. Which one?
#
# *All names in one table.*
#
# Of the names below two differ significantly from GRPO in our worlds: MaxRL at equal KL on sums, and GMPO
# at equal tokens on reviews ([archive](../docs/archive.md#one-budget)). With three starts (base models of
# different seeds) the others are undecided, not equal. So choose by the *reason*: long answers of very
# different lengths (sections 2 and 5), several updates per batch (4 and 6), many silent groups (7), a noisy
# learned reward (3).
#
# What each name changes in the six lines of section 1, and the reason to take it:
#
# | name | the line that it changes | take it when |
# | --- | --- | --- |
# | Dr. GRPO | divides by a constant length, not by the deviation | lengths differ, or rewards hardly do |
# | DAPO | all tokens in one mean; clip to 1.28; no silent groups | answers are long, many groups silent |
# | GSPO | one ratio for an answer, the root of the product | answers are long; mixtures of experts |
# | GMPO | clips each token's ratio before that mean | single tokens move far |
# | CISPO | the ratio is a bounded weight without a gradient | rare, decisive words should go on learning |
# | SAPO | a sigmoid in the place of the clip's edge | many tokens sit at the edge |
# | dual clip | bounds the push on a bad token | bad tokens have become much likelier |
# | MaxRL | divides by the group's mean (rewards of 0 or 1) | hard prompts should count more |
# | KL-Cov, Clip-Cov | hold back the few tokens that lower the entropy most | the entropy collapses |
#
# The command: `python -m rl.grpo_variants_engine --variant dapo`, or any of the fields by hand.
#
# ## 9. Exercises
#
# Fill in the functions and run the cells. `check` says in words what is right or wrong. (One more is in
# section 6: `bounded_pull`.)
#
# **1.** Write DAPO's average over all tokens of a batch: a scalar from (N, T) losses and their mask.


# %%
def my_token_mean(loss, mask):
    return ...  # your line


check("token_mean", my_token_mean)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_token_mean(loss, mask):
#     return torch.where(mask, loss, 0).sum() / mask.sum()
# ```
#
# </details>
#
# **2.** Two answers, at most 8 tokens long, and how strongly a loss pulls each token: the factor of
# $\nabla \log \pi$ in the step, over the batch of two. Ratios are clipped at 1.2 above. Whose loss is it?
# (No solution is printed.)
#
# - a: GRPO
# - b: DAPO (with the same clip)
# - c: Dr. GRPO
# - d: GSPO (no answer's ratio is clipped)
# - e: CISPO

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("whose_pull", MINE)

# %%
check_answer("whose_pull", ..., MINE)

# %% [markdown]
# **3.** Write CISPO's loss per token, (N, T). Its gradient is checked, too.


# %%
def my_cispo(log_probs, old_log_probs, advantages, clip_high):
    return ...  # your lines


check("cispo", my_cispo)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def my_cispo(log_probs, old_log_probs, advantages, clip_high):
#     ratio = (log_probs - old_log_probs).exp()
#     weight = ratio.clamp(max=1 + clip_high).detach()
#     return -weight * advantages * log_probs
# ```
#
# </details>
#
# **To think about.** With `mask_truncated` a response that was cut off at the length limit has no part
# in the loss. It still counts in the mean of its group. What would go wrong if it did not count there
# either?
#
# <details>
# <summary>Answer</summary>
#
# A truncated response is mostly a wrong one. Without it the mean of the group is too high, so the
# responses that did end look worse than they are. Ending is then discouraged by just those prompts at
# which the policy fails to end.
#
# </details>
#
# ## To remember
#
# - The average over tokens and the scale of the rewards concern every run; clip and ratio only several
#   updates per batch, filters only silent groups.
# - A mean over each answer first lets wrong answers grow, and dividing by the group's deviation lets
#   answers that hardly differ speak as loudly as others.
# - Read a name's changed lines before you read its results.
#
# Next: [12_verifiable_rewards](12_verifiable_rewards.ipynb). This page's reward was a rule of one line;
# there you see what it takes to check real answers by a rule.
