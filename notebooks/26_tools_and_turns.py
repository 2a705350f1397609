# %% [markdown]
# # 26. Tools and turns
#
# **The question.** A policy calls a calculator, reads the answer and goes on. Which of these tokens may be
# trained on, and how does the call get its credit?
#
# **Why.** Agents are trained in this loop, and it breaks without an error: the curve rises a little less,
# and nobody knows why. Below are three such bugs.
#
# **You need** [07_grpo](07_grpo.ipynb) for the loss and [08_ppo](08_ppo.ipynb) for GAE
# ([arXiv:1506.02438](https://arxiv.org/abs/1506.02438)).
#
# **It takes** about 20 seconds on one CPU core.

# %%
import json
import random
from pathlib import Path

import torch
from course import plots
from course.claims import holds
from course.exercises import check

from gpt.generate import Turns
from gpt.tokenizer import load_tokenizer
from nano import gpt, tools
from rl.equations.advantages import gae

plots.use()
torch.set_num_threads(1)

# %% [markdown]
# ## 1. The loop in ten lines
#
# The world is the letters of `nano`. Each prompt has a secret letter. The policy may guess it, or call the
# tool with a ":", and the tool writes the letter. First we need a base model that has seen calls: in three
# of ten texts the writer calls and repeats the letter.

# %%
chance = random.Random(0)
secret = {prompt: chance.choice("abcdefgh") for prompt in gpt.PROMPTS}
base = gpt.pretrained(steps=2)
optimizer = torch.optim.Adam(base.parameters(), lr=3e-3)
for _ in range(300):
    letters = chance.choices("abcdefgh", k=2 * len(gpt.PROMPTS))
    texts = [f":{x}{x}." if chance.random() < 0.3 else f"{x}." for x in letters]
    tokens, written = gpt.collate(list(zip(2 * gpt.PROMPTS, texts, strict=True)))
    optimizer.zero_grad()
    (-gpt.log_probs(base, tokens)[written].mean()).backward()
    optimizer.step()


def answer(policy, prompt, tool, longest=8):
    """Token ids of the answer, and which of them the policy has drawn."""
    ids, mine = [gpt.LETTERS.index(x) for x in prompt], []
    while len(mine) < longest and (not mine or gpt.LETTERS[ids[-1]] != gpt.END):
        probabilities = policy(torch.tensor([ids]))[0, -1].softmax(-1)
        ids.append(int(torch.multinomial(probabilities, 1)))
        mine.append(True)
        if gpt.LETTERS[ids[-1]] == ":":
            said = [gpt.LETTERS.index(x) for x in tool(prompt)]
            ids, mine = ids + said, mine + [False] * len(said)
    return ids[len(prompt) :], mine


# %%
torch.manual_seed(3)
for prompt in ("ab:", "c:", "fh:", "g:", "de:"):
    ids, mine = answer(base, prompt, secret.get)
    text = "".join(gpt.LETTERS[i] for i in ids)
    print(f"{prompt} the secret is {secret[prompt]}, the answer {text}")

# %% [markdown]
# The library's loop does the same for a whole batch with one cache: the environment's tokens take the place
# of those that would have been drawn.

# %%
plots.code(Turns.take, docstring=False)

# %% [markdown]
# ## 2. The mask, by hand
#
# A call, its answer, and the policy's own letter:
#
# | token | `:` | `e` | `e` | `.` |
# |---|---|---|---|---|
# | written by | policy | tool | policy | policy |
# | mask $m_t$ | 1 | 0 | 1 | 1 |
#
# Only what the policy draws depends on its weights. The tool's letter has a probability too, but it is not
# the policy's, so it drops out of the gradient:
#
# $$\nabla J = \mathbb{E}\Big[\sum_t m_t\, A_t\, \nabla \log \pi(y_t \mid y_{<t})\Big]$$
#
# The prefix $y_{<t}$ holds all tokens, the tool's included. It is read, and never trained on.
#
# **Guess first.** What happens if $m_t$ is 1 at the tool's letter as well? The formula still runs.
#
# ## 3. Three bugs
#
# **The first: observations in the loss.** We sample a batch and compare the gradient with the right mask to
# the one with all tokens.

# %%
asked = [prompt for prompt in gpt.PROMPTS for _ in range(4)]
tokens, mask, answers = tools.sample(base, asked, 8, gpt.generator(0, "page"), secret.get)
worth = torch.tensor(
    [float(a.rstrip(".")[-1:] == secret[p]) for p, a in zip(asked, answers, strict=True)]
)
A = (worth - worth.mean())[:, None]
ends = (torch.arange(1, mask.shape[1] + 1) * mask).amax(1, keepdim=True)
everything = (torch.arange(1, mask.shape[1] + 1) <= ends) & (mask.cumsum(1) > 0)


def gradient(which):
    base.zero_grad()
    loss = -(gpt.log_probs(base, tokens) * A * which).sum() / which.sum()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in base.parameters()])


right, wrong = gradient(mask), gradient(everything)
cosine = torch.cosine_similarity(right, wrong, dim=0)
called = sum(":" in a for a in answers)
print(f"{called} of {len(asked)} answers call; cosine of the two gradients {cosine:.2f}")
holds(everything.sum() > mask.sum(), "some answers call")
holds(cosine < 0.99, "the wrong gradient points only roughly the right way")

# %% [markdown]
# There is no error, and the wrong gradient points roughly the right way. But it also makes the secret
# letters themselves likelier, so the policy learns to write them without a call. The longer a tool's
# answers, the larger this part of the gradient.
#
# **The second: the return starts anew at an observation.** Take two tokens of a call, two of its answer,
# and one last token, which earns 1. Take $\gamma = 0.9$, $\lambda = 0.5$ and the values below. The last
# token's error is $\delta_4 = 1 - 0.8 = 0.2$. The call's last token is followed by that state, not by the
# answer, so $\delta_1 = 0.9 \cdot 0.8 - 0.4 = 0.32$ and $A_1 = 0.32 + 0.45 \cdot 0.2 = 0.41$.

# %%
m = torch.tensor([[True, True, False, False, True]])
values = torch.tensor([[0.5, 0.4, 0.0, 0.0, 0.8]])
rewards = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]])
advantages, _ = gae(rewards, values, m, 0.9, 0.5)
first, second = (gae(r, v, torch.ones(1, n).bool(), 0.9, 0.5)[0] for r, v, n in (
    (rewards[:, :2], values[:, :2], 2), (rewards[:, 4:], values[:, 4:], 1),
))  # fmt: skip
unmasked, _ = gae(rewards, values, torch.ones_like(m), 0.9, 0.5)
plots.table(
    ["", "A of the call", "A of the last token"],
    [
        ["right", *(f"{x:.3f}" for x in (advantages[0, 1], advantages[0, 4]))],
        ["reset at the answer", *(f"{x:.3f}" for x in (first[0, 1], second[0, 0]))],
        ["V = 0 in the answer", *(f"{x:.3f}" for x in (unmasked[0, 1], unmasked[0, 4]))],
    ],
)
holds(torch.isclose(advantages[0, 1], torch.tensor(0.41)), "A_1 = 0.41")
holds(first[0, 1] < 0, "with the reset its tokens have negative advantages")

# %% [markdown]
# (The first column is the call's second token.) With the reset a call is a cost and nothing else: here its
# tokens have negative advantages, whatever the answer made possible, so the policy stops calling. The
# third row is a public library's way; it is right only for $\gamma = \lambda = 1$
# ([the table](../docs/tools.md)).
#
# **The third: the prefix is encoded again.** Many loops keep text between the turns. But a text has one
# encoding, and a policy may have sampled another one.

# %%
tokenizer = load_tokenizer("glassbox")
sampled = [i for letter in " the answer" for i in tokenizer.encode(letter)]
again = tokenizer.encode(tokenizer.decode(sampled))
print(f"sampled {len(sampled)} tokens; after decode and encode {len(again)}: {again}")
assert tokenizer.decode(sampled) == tokenizer.decode(again) and sampled != again

# %% [markdown]
# Log-probs, masks and advantages now belong to tokens that nobody sampled. You can see it in the log: the
# ratio of the first update is no longer 1 (`ratio_error_at_start`, [22_bug_zoo](22_bug_zoo.ipynb)).
#
# ## 4. It learns when to call
#
# A right letter earns 1 and a call costs 0.1. One guess in eight is right, so calling pays.

# %%
numbers = tools.train(
    base,
    lambda p, a: (a.rstrip(".")[-1:] == secret[p]) - 0.1 * a.count(":"),
    gpt.PROMPTS,
    secret.get,
    steps=25,
)
curves = {"reward": [row["reward"] for row in numbers], "calls": [row["calls"] for row in numbers]}
plots.curves(curves, xlabel="batch", ylabel="per answer", styles={"calls": 0})

# %% [markdown]
# A call is not always worth its price. In the calculator's world half of the problems are easy sums, where
# a call is a waste. These curves are recorded, and the picture shows the first of six seeds. In one seed
# PPO stops calling, and so does GRPO in two ([tools.md](../docs/tools.md)).

# %%
recorded = json.loads((Path.cwd().parent / "docs" / "tools.json").read_text())["curves"]["ppo"]
steps = [row["step"] for row in recorded[0]]
for kind in ("easy", "hard"):
    ends = [rows[-1][f"calls/{kind}"] for rows in recorded]
    print(f"calls per {kind} problem at the end, each seed:", *(f"{x:.2f}" for x in ends))
plots.curves(
    {
        f"{kind} problems": [row[f"calls/{kind}"] for row in recorded[0]]
        for kind in ("hard", "easy")
    },
    steps,
    xlabel="batch of PPO",
    ylabel="calls per problem",
)

# %% [markdown]
# **What would happen if** a call cost 0.95? Remember how often a guess is right, and try it in the first
# training run of this section.
#
# ## Exercises
#
# Three functions that this page has used.


# %%
def segment_mask(authors): ...  # (N, T): 0 nobody, 1 policy, 2 environment -> (N, T) bool


check("segment_mask", segment_mask)


# %%
def answered_returns(token_rewards, mask, gamma): ...  # (N, T), (N, T), number -> (N, T)


check("answered_returns", answered_returns)


# %%
def my_gae(rewards, values, mask, gamma, lam): ...  # (N, T) each -> advantages (N, T)


check("gae", my_gae)

# %% [markdown]
# <details>
# <summary>Solutions</summary>
#
# ```python
# def segment_mask(authors):
#     return authors == 1
#
#
# def answered_returns(token_rewards, mask, gamma):
#     returns, to_come = torch.zeros_like(token_rewards), torch.zeros(len(token_rewards))
#     for t in reversed(range(token_rewards.shape[1])):
#         here = token_rewards[:, t] + gamma * to_come
#         to_come = torch.where(mask[:, t], here, to_come)
#         returns[:, t] = torch.where(mask[:, t], here, 0.0)
#     return returns
#
#
# def my_gae(rewards, values, mask, gamma, lam):
#     advantages = torch.zeros_like(values)
#     A = V = torch.zeros(len(values))
#     for t in reversed(range(values.shape[1])):
#         delta = rewards[:, t] + gamma * V - values[:, t]
#         A = torch.where(mask[:, t], delta + gamma * lam * A, A)
#         V = torch.where(mask[:, t], values[:, t], V)
#         advantages[:, t] = torch.where(mask[:, t], A, 0.0)
#     return advantages
# ```
#
# </details>
#
# How TRL, verl and others decide each of these questions: [docs/tools.md](../docs/tools.md).
#
# Next: [27_which_would_you_have_believed](27_which_would_you_have_believed.ipynb), ten claims of recent
# papers, and what became of them here. The map of all pages is [00_start_here](00_start_here.ipynb).
