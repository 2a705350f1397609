# %% [markdown]
# # 24. From these pieces to a recipe
#
# **The question.** You know the losses. In which order do published models use them, what do their authors
# add that no formula shows, and what changes at seven billion weights on eight GPUs?
#
# **After this page you can** read a technical report stage by stage, say which kind of gradient a
# "rejection sampling" stage takes, combine rewards without one drowning the others, choose a group size,
# forecast the memory of a GPU, and find the cause of a jump in a log.
#
# The way of this page: five published recipes (1), the stage that looks least like RL (2), how rewards are
# combined (3) and prompts are chosen (4), the settings (5), what changes with packed rows (6) and many GPUs
# (7), and where to look when a curve jumps (8).
#
# **You need** [04](04_policy_gradients_and_baselines.ipynb), [07](07_grpo.ipynb),
# [12](12_verifiable_rewards.ipynb) and [14](14_dpo_and_pg_grpo.ipynb).
#
# **What was run, and what was not.** Code and recordings of this page are small. The largest model that
# this course steers has 135 million weights, on processors. What is said of 7 billion and more is from
# the cited papers or from arithmetic, and is marked as such by a citation or a formula.
#
# **It takes** about ten seconds on one CPU core, after start-up.

# %%
import json
import math
import subprocess
import sys
from pathlib import Path

import torch

try:
    from course import plots
    from course.claims import holds
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

from course.entered import check_answer, table

from gpt.recipes import RECIPES
from rl.equations.advantages import group_advantages

plots.use()
torch.set_num_threads(1)

# %% [markdown]
# ## 1. Five recipes
#
# *Five reports, each as a table of stages. Look at who pays in each of them: a reward model, people's
# pairs, or a rule.*
#
# **InstructGPT** (Ouyang et al. 2022, [arXiv:2203.02155](https://arxiv.org/abs/2203.02155)) has the three
# stages that later ones vary:
#
# | stage | here | command |
# | --- | --- | --- |
# | supervised fine-tuning on written answers | [03] | `gpt.finetuning` |
# | a reward model from rankings of 4 to 9 answers | [06] | `reward_model.reward_model_training` |
# | PPO with a KL in the reward, plus some pre-training loss | [09] | `rl.ppo_engine --pretraining-coef 1` |
#
# The pre-training loss is there because RL alone made the model worse at tasks that no annotator had asked
# about: a *regression elsewhere* (page [23](23_is_it_better.ipynb), section 7).
#
# **Llama 3** (Grattafiori et al. 2024, [arXiv:2407.21783](https://arxiv.org/abs/2407.21783)) has neither
# PPO nor GRPO (section 2 says what one of its stages is all the same). It repeats six rounds:
#
# | stage | here | command |
# | --- | --- | --- |
# | a reward model from people's pairs | [06] | `reward_model.reward_model_training` |
# | rejection sampling: of 10 to 30 answers keep the one that it scores highest | section 2 | - |
# | fine-tuning on what was kept | [03] | `gpt.finetuning --data` |
# | DPO on the newest pairs, plus some likelihood of the chosen answer | [14] | `rl.dpo_engine` |
# | the mean of several models' weights | nowhere here | - |
#
# **Tülu 3** (Lambert et al. 2024, [arXiv:2411.15124](https://arxiv.org/abs/2411.15124)) published its data,
# code and settings, and gave RL with *verifiable rewards* the name that it has since, RLVR:
#
# | stage | here | command |
# | --- | --- | --- |
# | fine-tuning on prompts chosen by skill | [03] | `gpt.finetuning` |
# | DPO by means per token, own and others' answers | [14] | `rl.dpo_engine --length-norm --beta 5` |
# | RLVR: PPO that a rule pays | [09], [12] | `rl.ppo_engine --data sums` |
#
# Its DPO divides each answer's log-ratio by the answer's length, $h = \frac{1}{L_w} \log \frac{\pi(y_w)}
# {\pi_{ref}(y_w)} - \frac{1}{L_l} \log \frac{\pi(y_l)}{\pi_{ref}(y_l)}$, so that a long answer does not win
# by its length. Means are smaller than sums, therefore its $\beta$ is 5, where DPO's usual one is 0.1. In
# the last stage a right answer earns 10 and a wrong one nothing, and there is a KL in the reward. A reward
# model takes part only as the critic's start: it does not pay, because the rule alone did better. The last
# stage raised the scores of what it pays for. Their report also shows that a rule can be over-optimised:
# with a small $\beta$ the policy goes far, and its average over all tasks falls.
#
# **DeepSeek-R1** ([arXiv:2501.12948](https://arxiv.org/abs/2501.12948)). R1-Zero is GRPO on a base model
# with two rules as its rewards: is the answer right, and does it stand in the asked format? R1 adds stages
# around it, because R1-Zero's thoughts were hard to read:
#
# | stage | here | command |
# | --- | --- | --- |
# | cold start: fine-tuning on some thousand long worked answers | [03] | `gpt.finetuning` |
# | GRPO on checkable tasks; one language is rewarded, too | [07], [12] | `rl.grpo_engine --data sums` |
# | rejection sampling: about 600,000 right answers, and 200,000 others | section 2 | - |
# | fine-tuning of the *base* on these | [03] | `gpt.finetuning` |
# | GRPO again, by rules and elsewhere reward models | section 3 | `rl.grpo_engine --reward-model` |
# | distillation: small models are fine-tuned on the same 800,000 | [15] | `gpt.finetuning` |
#
# **Olmo 3** ([arXiv:2512.13961](https://arxiv.org/abs/2512.13961), revised in 2026) is open in data, code
# and checkpoints, so it can be checked, and shows what had become usual by then:
#
# | stage | here | command |
# | --- | --- | --- |
# | fine-tuning on thoughts and answers that other models wrote | [15] | `gpt.finetuning` |
# | DPO, the pairs being answers of a large and of a small model | [14] | `rl.dpo_engine` |
# | GRPO with the changes below | [11], [19] | `rl.grpo_variants_engine` |
# | its rewards: checkers of mathematics, code, instructions; a judging model | [12], [23] | section 3 |
#
# Its changes to GRPO are choices that you know:
#
# | change | page |
# | --- | --- |
# | no KL, and a clip that is higher above | [12], [11] |
# | no division by the deviation, and one mean over all tokens | [11] |
# | truncated weights, because the sampler lags | [19] |
# | groups without spread are left out and replaced | [11] |
#
# **What is alike, and what differs?** All but R1-Zero start with imitation, because RL can only reward what
# is sometimes sampled. They differ in who pays, and that decides the rest. A rule is harder to fool than a
# learned reward (section 3 fools one all the same), so the KL may become small or go. A learned reward is
# easy to fool. So there the KL stays, or the rounds are short and each begins with a new reward model.
#
# [03]: 03_pretraining_and_sft.ipynb
# [06]: 06_reward_model.ipynb
# [07]: 07_grpo.ipynb
# [09]: 09_ppo.ipynb
# [11]: 11_grpo_family.ipynb
# [12]: 12_verifiable_rewards.ipynb
# [14]: 14_dpo_and_pg_grpo.ipynb
# [15]: 15_teachers.ipynb
# [19]: 19_when_the_sampler_is_not_the_policy.ipynb
# [23]: 23_is_it_better.ipynb
#
# ## 2. Rejection sampling is a policy gradient
#
# *Two of the five recipes have this stage. It looks like supervised learning. This section shows which
# gradient it takes.*
#
# Sample answers, keep those with reward 1, and fine-tune on them. That is rejection sampling, or expert
# iteration if it is repeated (STaR, Zelikman et al. 2022,
# [arXiv:2203.14465](https://arxiv.org/abs/2203.14465)). It has no advantage and no ratio. But look at its
# first step. The rewards $R$ are 0 or 1, so $J = \sum_y \pi(y) R(y)$ is the share of right answers, and
# what was kept is distributed like the policy's right answers:
#
# $$- \nabla \underbrace{\mathbb{E}_{y \sim \pi(\cdot \mid R = 1)}
# [- \log \pi(y)]}_{\mathrm{fine\ tuning\ on\ what\ was\ kept}}
# = \sum_y \frac{\pi(y) R(y)}{J} \nabla \log \pi(y) = \frac{\nabla J}{J} = \nabla \log J$$
#
# Five answers, listed, so that no sample is needed:

# %%
theta = torch.tensor([1.0, 0.5, 0.0, -0.5, -1.0], requires_grad=True)
R = torch.tensor([0.0, 1, 0, 1, 0])
log_pi = theta.log_softmax(0)
pi = log_pi.exp()
J = (pi * R).sum()
kept = (pi * R / J).detach()  # the distribution of the answers that were kept
by_policy_gradient = torch.autograd.grad(J, theta, retain_graph=True)[0]
by_fine_tuning = -torch.autograd.grad(-(kept * log_pi).sum(), theta)[0]
torch.testing.assert_close(by_fine_tuning, by_policy_gradient / J.detach())
print("J", round(J.item(), 3), "policy gradient", by_policy_gradient.tolist())

# %% [markdown]
# The gradients agree up to the number $1 / J$. So the first step of rejection sampling *is* REINFORCE with
# rewards 0 and 1 and no baseline. Three things follow from that.
#
# **$1 / J$ weighs prompts.** Suppose that the same number of answers is kept for every prompt. Then a
# prompt that is solved in one of 20 tries counts 20 times as much as it does in $\nabla J$. If instead
# *all* right answers are kept, the $J$ cancels, because an easy prompt has more of them. So easy prompts
# fill the data. GRPO divides by $\sqrt{J (1 - J)}$. For hard prompts that lies between the two.
# Where $J$ is near 1 it is large again, which neither of the others is. The picture below shows these three
# weights.
#
# **There is no push down.** A wrong answer loses probability only because the right ones gain.
#
# **Later steps are off-policy.** The kept answers stay the same while the policy moves, and there is
# neither a ratio nor a clip. In the limit the policy becomes $\pi(y \mid R = 1)$: its own right answers,
# in its own proportions.

# %%
p = torch.linspace(0.01, 0.99, 99)
weights = {
    "policy gradient": torch.ones(99),
    "a fixed number kept": 1 / p,
    "GRPO": 1 / (p * (1 - p)).sqrt(),
}
plots.curves(
    weights, p.tolist(), xlabel="share of right answers to a prompt", ylim=(0, 20),
    ylabel="weight of the gradient of p", title="Keeping a fixed number favours hard prompts most",
)  # fmt: skip
groups = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0])  # one of eight is right
A = group_advantages(groups, 8)[:, 0]
print("in a group with one right answer of eight GRPO gives it", round(A[0].item(), 2))

# %% [markdown]
# **Recorded.** How far does choosing among the start's own answers lead? The demo's 24 seeds compare three
# ways from the same start: fine-tuning on the preferred of two recorded answers, picking the best of eight
# by the reward model at every question (no training; what one round of fine-tuning on them aims at),
# and GRPO, which samples many more. Gold is what an answer is truly worth, from 0 to 1:

# %%
seeds = json.loads(Path("../docs/demo_seeds.json").read_text(encoding="utf-8"))
SHORT = {
    "base model": "start",
    "fine-tuned on preferred answers": "fine-tuned",
    "best of 8 by reward model": "best of 8",
    "GRPO": "GRPO",
}
mean = {
    short: sum(seed["held_out_items"][name]["gold"] for seed in seeds) / len(seeds)
    for name, short in SHORT.items()
}
plots.bars(
    mean, numbers=".2f", ylabel="gold on unseen items, 24 seeds", ylim=(0, 1),
    title="Choosing among the start's answers stops before GRPO", styles=dict.fromkeys(mean, "policy"),
)  # fmt: skip
holds(
    mean["fine-tuned"] < mean["best of 8"] < mean["GRPO"],
    "GRPO goes further than the best of eight",
)

# %% [markdown]
# One round over $n$ answers aims at the best of what the start samples in $n$ tries. Another round samples
# from the better policy, and that is why Llama 3 has six. A policy gradient is the extreme case: a
# new round after every step.
#
# ## 3. Several rewards
#
# *Recipes pay for more than one thing. This section adds rewards up, and then attacks one of them.*
#
# A reward for being right, one for the format, a little for the length: their sum is one number, and a
# group's z-score sees only the sum. So what matters is each part's **spread within a group**, not its size.
# Here are four answers. A judge's scores are all near 7, and the length is in tokens:

# %%
judge, tokens = torch.tensor([7.1, 7.0, 6.9, 7.2]), torch.tensor([210.0, 180, 240, 260])
total = judge - 0.01 * tokens  # "one hundredth a token cannot matter much"
each = [group_advantages(part, 4)[:, 0] for part in (judge, -tokens)]
plots.table(
    ["answer", "judge", "tokens", "A of the sum", "A of each, then 1 to 0.3"],
    [
        [str(i), float(judge[i]), float(tokens[i]), float(a), float(b)]
        for i, (a, b) in enumerate(
            zip(group_advantages(total, 4)[:, 0], each[0] + 0.3 * each[1], strict=True)
        )
    ],
    number=".2f",
)
holds(group_advantages(total, 4).argmax() == 1, "in the sum the shortest answer wins")
holds((each[0] + 0.3 * each[1]).argmax() != 1, "weighed by their spread it does not")

# %% [markdown]
# In the sum the *shortest* answer wins, though the judge ranks it third, because lengths differ more than
# scores. There are two ways out. Bring each reward to the same spread first, and then weigh them (the last
# column; page [12](12_verifiable_rewards.ipynb), section 8). Or pay different prompts by different rewards,
# as DeepSeek-R1 and Llama 3 do, so that two rewards never meet in one group. (`--reward-model A B` is
# something else: it pays the mean or the lowest of several models (page
# [13](13_when_the_proxy_breaks.ipynb)), as a guard and not as a second goal.)
#
# **Format rewards** are mostly learned first, because any answer can earn them (page
# [12](12_verifiable_rewards.ipynb), section 8). There are two ways to pay them:
#
# | | a wrong answer in the right form | at the beginning |
# | --- | --- | --- |
# | added: format *plus* right | is paid | something is paid |
# | as a gate: format *times* right | is not paid | hardly anything is paid |
#
# R1-Zero adds them. Then watch both curves apart, because their sum rises while only the form is learned.
#
# **A sandbox** runs code that a policy wrote. There the verifier itself is attacked. The naive one below
# trusts the exit status of a program. **Predict:** which of these four answers to "write `double(x)`" earn
# 1?

# %%
ANSWERS = {
    "right": "def double(x): return 2 * x",
    "wrong": "def double(x): return x + 1",
    "never ends": "def double(x):\n    while True: pass",
    "leaves": "import os\nos._exit(0)",
}
TEST = "assert double(3) == 6 and double(-1) == -2"


def runs(program, seconds=4):
    """(exit status, what was printed); None for one that was stopped."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program],
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout


def naive(answer):
    return float(runs(f"{answer}\n{TEST}")[0] == 0)


def with_proof(answer, secret="81c2"):
    """The test should have run to its end, and said something that the answer does not say."""
    return float(runs(f"{answer}\n{TEST}\nprint('{secret}')")[1].strip() == secret)


rewards = {name: [naive(answer), with_proof(answer)] for name, answer in ANSWERS.items()}
plots.table(["answer", "by exit status", "with a proof"], [[n, *r] for n, r in rewards.items()])
holds(rewards["leaves"] == [1.0, 0.0], "an answer that leaves fools the exit status")

# %% [markdown]
# "leaves" ends the program before the test runs, with the status that means success. A policy finds such a
# line as surely as it finds a reward model's favourite word, because it is paid. The proof helps
# against this answer, which leaves before anything is printed. But the secret stands on the program's own
# command line: an answer that calls `print(sys.orig_argv[-1].split(chr(39))[-2], flush=True)` and then
# leaves earns 1 again. (So this process is no security. A real sandbox has no network, its own file system,
# and limits of memory and of processes.)
#
# ## 4. Which prompts, and how many answers each?
#
# *A step can sample so many answers and no more. This section spends them.*
#
# A group without spread teaches nothing. If an answer is right with probability $p$, a group of $G$ has
# some spread with probability $1 - p^G - (1 - p)^G$ (page [12](12_verifiable_rewards.ipynb), section 4).
# A larger group has it more often, but costs more answers. So count informative groups **per answer** as
# well:


# %%
def informative(p, G):
    return 1 - p**G - (1 - p) ** G


sizes = (4, 8, 16, 64)
figure, axes = plots.panels(2)
plots.curves(
    {f"G = {G}": informative(p, G) for G in sizes}, p.tolist(), axis=axes[0],
    xlabel="share of right answers", ylabel="share of informative groups",
    title="Large groups reach hard prompts",
)  # fmt: skip
plots.curves(
    {f"G = {G}": 100 * informative(p, G) / G for G in sizes}, p.tolist(), axis=axes[1],
    xlabel="share of right answers", ylabel="informative groups per 100 answers",
    title="Small groups use a budget better",
)  # fmt: skip
hard = torch.tensor(0.02)
holds(
    informative(hard, 64) > 4 * informative(hard, 8),
    "64 answers find a right one far oftener",
)
holds(
    all(
        informative(p, a).div(a).ge(informative(p, b) / b - 1e-6).all()
        for a, b in zip(sizes, sizes[1:])
    ),
    "per answer a smaller group is never worse by this count",
)

# %% [markdown]
# By this count small groups always win. Two things speak for a large group. Its baseline is less noisy,
# because the variance of a mean falls like $1 / G$. And a prompt with $p$ far below $1 / G$ is seldom
# solved in a small group at all: with $p = 0.1 / G$ in about one group of ten. Papers take 8 to 64. For
# example, DeepSeekMath's GRPO takes 64 answers to a prompt
# ([arXiv:2402.03300](https://arxiv.org/abs/2402.03300)), and DAPO takes 16 to each of 512 prompts
# ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476)).
#
# **Curriculum.** As the policy learns, prompts become too easy. They move to the right end of the left
# panel, where hardly a group teaches. There are three remedies:
#
# - **Before the run**, measure $p$ with the start, and drop what is always or never solved.
# - **In the run**, draw more often what is seldom solved. For example, Kimi k1.5
#   ([arXiv:2501.12599](https://arxiv.org/abs/2501.12599)) samples prompts by their failure rate $1 - p$.
#   (That favours $p$ near 0, where by the left panel hardly a group teaches; near one half most groups do.)
# - **In the step**, draw until enough groups have spread: DAPO's dynamic sampling (page
#   [11](11_grpo_family.ipynb), section 7).
#
# Read ten of the prompts that are never solved, too. Some of them are not hard: their checker is wrong.
#
# ## 5. Learning rate and beta by size
#
# *Two numbers of every command, and where to begin with them.*
#
# The larger the model, the smaller the rate. This is the repository's table of starting points. One row
# was measured, and the others say that they were not:

# %%
rows = [
    [row.start, "any" if math.isinf(row.most) else f"{row.most / 1e6:,.0f} million", row.settings["lr"],
     row.measured]
    for row in RECIPES
    if row.command == "rl" and row.world is None and "lr" in row.settings
]  # fmt: skip
plots.table(["what it starts from", "up to", "learning rate of RL", "measured"], rows, number=".0e")
rates = [row[2] for row in rows if row[0] == "larger"]
holds(rates == sorted(rates, reverse=True), "larger models have smaller rates")

# %% [markdown]
# Papers report these:
#
# | rate | of |
# | --- | --- |
# | 1e-6 | GRPO with 7 billion weights (DeepSeekMath), and with 32 billion (DAPO) |
# | 3e-6 | R1-Zero |
# | 1e-5 | DPO, and fine-tuning, of the largest Llama 3 |
#
# **Beta** does not follow the size of the model, but *what is penalised*:
#
# | beta | of |
# | --- | --- |
# | 0.02 | a KL per token in the reward (InstructGPT) |
# | 0.04, 0.001 | a KL in the loss (DeepSeekMath, R1) |
# | 0.1 | the gap in DPO's sigmoid; 5 where it is a mean over tokens (Tülu 3) |
#
# So betas of different places cannot be compared. Page [05](05_what_a_kl_is.ipynb), section 6, converts
# between them. What can be compared between runs is the KL that they reach, in nats per answer.
#
# ## 6. Packing, and the token that comes twice
#
# *Two things that go wrong without an error, where rows are made.*
#
# Short texts leave much padding, so trainers put several into one row (Krell et al. 2021,
# [arXiv:2107.02027](https://arxiv.org/abs/2107.02027)). Then a text must not see its neighbour. Here is one
# head of attention, and two texts of three tokens. We compute the second text alone, and behind the first:

# %%
x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
text = torch.tensor([0, 0, 0, 1, 1, 1])  # which text a token belongs to
causal = torch.ones(6, 6, dtype=torch.bool).tril()
apart = causal & (text[:, None] == text[None, :])  # blocks on the diagonal


def attend(x, mask):
    return torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], mask)[0]


alone = attend(x[3:], causal[:3, :3])
leak = (attend(x, causal)[3:] - alone).abs().max()
print("off by", round(leak.item(), 2), "with the causal mask alone")
torch.testing.assert_close(attend(x, apart)[3:], alone)
positions = torch.cat([torch.arange(3), torch.arange(3)])  # start anew, for learned positions
print("positions", positions.tolist())
holds(leak > 0.1, "without the blocks the second text sees the first")

# %% [markdown]
# Two more things have to be settled. The border must not be trained, because there the last token of one
# text would predict the first of the next. And is the loss divided by *tokens of answers* or by *texts*
# (page [26](26_what_a_loss_is_divided_by.ipynb))? This repository pads and does not pack.
#
# **Double BOS** and a forgotten opening mark are on page [02](02_tokens_padding_masks.ipynb), section 7:
# print the first ten ids of a training row and of a prompt for sampling.
#
# ## 7. Seven billion weights on eight GPUs
#
# *First what has to fit into memory, then what changes where sampler and trainer are two programs.*
#
# With Adam in mixed precision a trained weight takes 16 bytes. (Page
# [19](19_when_the_sampler_is_not_the_policy.ipynb), section 5, says why the copy is there.)
#
# | bytes | for |
# | --- | --- |
# | 2 | the weight, in bfloat16 |
# | 2 | its gradient, in bfloat16 |
# | 4 | its copy in float32 |
# | 8 | Adam's two moments in float32 |
#
# A frozen model needs only the first row. ZeRO and FSDP (Rajbhandari et al. 2019,
# [arXiv:1910.02054](https://arxiv.org/abs/1910.02054)) divide all of these by the number of GPUs, and
# gather a layer when it is needed:


# %%
def per_gpu(trained, frozen, gpus):
    """GB on each GPU, from billions of weights; activations, caches and the sampler's copy come on top."""
    return (16 * trained + 2 * frozen) / gpus


plots.table(
    ["7 billion weights each", "one GPU", "eight GPUs, sharded"],
    [
        ["GRPO without KL, a rule pays", per_gpu(7, 0, 1), per_gpu(7, 0, 8)],
        ["GRPO with reference and reward model", per_gpu(7, 14, 1), per_gpu(7, 14, 8)],
        ["PPO: a critic as well", per_gpu(14, 14, 1), per_gpu(14, 14, 8)],
    ],
    number=".1f",
)
holds(per_gpu(7, 0, 1) > 80 > per_gpu(14, 14, 8), "none fits 80 GB alone, all fit on eight")

# %% [markdown]
# (In this repository everything trained is float32, and [docs/lora.md](../docs/lora.md) counts that. LoRA
# trains so few weights that the first column shrinks to the frozen ones.) Five more things change.
#
# **The logits are the peak.** One number for each token *of the vocabulary* at every column: 16 answers of
# 2,048 tokens and 128,000 words are $16 \cdot 2048 \cdot 128000 \cdot 4$ bytes, so 16.8 GB in float32. And
# the peak is three times that, because the logits, their log-softmax and a gradient of the same size exist
# at once (measured on a product of 2,048 x 32,768: 3.0 times the tensor, without a gradient 2.0). There are
# two cures. Apply the head at the response's columns only, since a prompt's logits are never used. And go
# in chunks that are computed again in the backward pass: with 16 chunks the same product peaks at 0.5 times
# the tensor. [gpt/log_probs.py](../gpt/log_probs.py) does both.
#
# **A serving engine samples**, because most of the time goes into generation. For example, vLLM
# ([arXiv:2309.06180](https://arxiv.org/abs/2309.06180)) keeps the caches of many answers in pages. It holds
# a copy of the weights in its own layout, often on two or four GPUs together (tensor parallel).
#
# **Weight sync.** After each update the new weights have to go there. Seven billion weights are 14 GB in
# bfloat16, so the link decides what that costs:

# %%
for link, gigabytes_a_second in (("10 Gbit/s network", 1.25), ("400 Gbit/s network", 50.0)):
    print(f"{link}: {2 * 7 / gigabytes_a_second:.1f} s for each update")

# %% [markdown]
# *Colocated* engines avoid the network. They take turns with the trainer on the same GPUs, and sleep in
# between. *Separate* ones work at the same time, but one or more updates late. (HybridFlow,
# [arXiv:2409.19256](https://arxiv.org/abs/2409.19256), is a framework for such layouts.)
#
# **Two programs, two log-probs.** Engine and trainer round differently, and the copy may be old. So score
# the answers again with the trainer, and log $|\rho - 1|$ before the first update. Then correct what is
# left (page [19](19_when_the_sampler_is_not_the_policy.ipynb)).
#
# **Stragglers.** A batch waits for its longest answer. Some trainers stop it and go on with it in the next
# batch (partial rollouts). Others set a limit that costs (`--missing-eos-penalty`, page [09](09_ppo.ipynb),
# section 8).
#
# In this repository `--ranks 8` repeats the whole model on every rank and divides the answers
# ([docs/ranks.md](../docs/ranks.md)). It has neither sharding nor a serving engine. So the ratio before the
# first update is 1, because sampler and trainer are the same code.
#
# ## 8. The KL jumps, or the gradient
#
# *At some step a curve leaves its path. Five questions find the cause.*
#
# Ask them in this order: the first ones are cheap to answer, and with old weights in the sampler every
# other curve is wrong as well:
#
# | ask | look at | then |
# | --- | --- | --- |
# | a. Is the sampler the policy? | ratio error before the update above 0.05 | sync; same template |
# | b. Is one batch odd? | one tall gradient, all else as before | it was cut: go on, and read the batch |
# | c. Do answers hit the limit? | length rises to it, ended falls | price the cut, raise the limit |
# | d. Is the reward exploited? | reward rises, people (or gold) fall | stop earlier; a new reward model |
# | e. Is the step too large? | KL and gradient grow, reward falls | an older checkpoint, half the rate |
#
# (For a, 0.05 is what bfloat16 may do; float32 stays below 0.0001. Page
# [13](13_when_the_proxy_breaks.ipynb) is about d.)
#
# `python -m report.doctor RUN` asks most of these of a recorded run. For e it is common practice to go back
# a few checkpoints and to skip the batches. For a or d the same would only hide the cause.
#
# ## Exercises
#
# Change `MINE` to a number of your own. No solution is printed.
#
# **1. The weight of a hard prompt.** Section 2 has the weights of three methods. For your two prompts,
# how many times does the hard one's $\nabla p$ count, relative to the easy one's, in **GRPO** with large
# groups?

# %%
MINE = 0
table("hard_prompts_weight", MINE)

# %%
check_answer("hard_prompts_weight", ..., MINE)

# %% [markdown]
# **2. Does it fit?** GRPO with a reference, a reward model and a sampler that keeps a copy of its own.
# How many GB does each GPU hold, before activations and caches?

# %%
table("gigabytes_per_gpu", MINE)

# %%
check_answer("gigabytes_per_gpu", ..., MINE)

# %% [markdown]
# **3. What happened?** Ten steps of a run in bfloat16; answers have at most 512 tokens. Enter the letter of
# section 8's table.

# %%
table("cause_of_the_jump", MINE)

# %%
check_answer("cause_of_the_jump", ..., MINE)

# %% [markdown]
# **To think about.** A stage of your recipe improves its own measure and worsens the one before it. Which
# of the five recipes has an answer to that, and what does it pay for it?
#
# ## To remember
#
# - Imitate first, then reward: RL can only strengthen what is sampled, and who pays decides whether a KL
#   is needed.
# - Rejection sampling is a policy gradient with rewards 0 and 1, weighed by $1 / J$, off-policy after its
#   first step.
# - At scale the formulas stay and the doubts move: is the sampler the policy, do texts see each other, is
#   the verifier fooled?
#
# Next: back to [22_your_own](22_your_own.ipynb), with a recipe of your own, or to the
# [teacher's folder](teaching/README.md), which has six longer assignments.
