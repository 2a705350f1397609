# %% [markdown]
# # 20. Tools and turns
#
# **The question.** A policy calls a calculator, reads the answer and goes on. Which of these tokens may be
# trained on, and how does the call get its credit?
#
# **After this page you can** mask the tokens that a tool has written, carry the credit of a call across
# its answer, and find three bugs of agent loops that raise no error.
#
# **Why.** Agents are trained in this loop, and it breaks without an error: the curve rises a little less,
# and nobody knows why. Below are three such bugs.
#
# **You need** [07_grpo](07_grpo.ipynb) for the loss and [09_ppo](09_ppo.ipynb) for GAE
# ([arXiv:1506.02438](https://arxiv.org/abs/1506.02438)).
#
# **It takes** about 20 seconds on one CPU core.

# %%
import copy
import random

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

try:
    from course import plots
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

# %%
from course.claims import holds
from course.exercises import check

from gpt.tokenizer import load_tokenizer
from nano import gpt, tools
from rl.equations.advantages import gae

plots.use()
torch.set_num_threads(1)

# %% [markdown]
# ## 1. The loop in ten lines
#
# The world is the letters of `nano`. Each prompt has a letter that is the right answer. For every second
# prompt it is easy to know: the prompt's own first letter. For the others it is a secret, which only the
# tool knows; the policy may guess, or call the tool with a ":", and the tool writes the letter. First we
# need a base model that has seen calls: in three of ten texts the writer calls and repeats the letter.

# %%
chance = random.Random(0)
easy = set(gpt.PROMPTS[::2])
right = {p: p[0] if p in easy else chance.choice("abcdefgh") for p in gpt.PROMPTS}


def written(prompt):
    """By a writer who knows four in five of the easy letters and guesses all others."""
    x = prompt[0] if prompt in easy and chance.random() < 0.8 else chance.choice("abcdefgh")
    return f":{x}{x}." if chance.random() < 0.3 else f"{x}."


base = gpt.pretrained(steps=2)
optimizer = torch.optim.Adam(base.parameters(), lr=3e-3)
for _ in range(300):
    tokens, theirs = gpt.collate([(p, written(p)) for p in 2 * gpt.PROMPTS])
    optimizer.zero_grad()
    (-gpt.log_probs(base, tokens)[theirs].mean()).backward()
    optimizer.step()


# %%
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


torch.manual_seed(4)
for prompt in ("ab:", "c:", "fh:", "g:", "de:"):
    ids, mine = answer(base, prompt, right.get)
    text = "".join(gpt.LETTERS[i] for i in ids)
    print(f"{prompt} right is {right[prompt]}, the answer {text}")

# %% [markdown]
# `nano/tools.py` does the same for a whole batch. The tool's letters take the place of those that would
# have been drawn, so rows with a call and rows without one stay side by side.

# %%
plots.code(tools.sample, docstring=False)

# %% [markdown]
# ## 2. The mask, by hand and by enumeration
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
# An answer of at most four letters can be one of a few thousand, so we can list them all and check this
# without sampling.


# %%
def every_answer(prompt, longest=4):
    """All answers, each with the mask of the policy's letters."""
    found, open_ = [], [("", [])]
    while open_:
        text, mine = open_.pop()
        for letter in gpt.LETTERS:
            said = right[prompt] if letter == ":" else ""
            room = not said or len(text + letter + said) < longest
            more = (text + letter + said, [*mine, True] + [False] * len(said))
            if not room:  # cut off at the call
                more = (text + letter, [*mine, True])
            over = letter == gpt.END or not room or len(more[0]) == longest
            (found if over else open_).append(more)
    return found


# %%
prompt = "ab:"  # one with a secret
answers = every_answer(prompt)
tokens, everything = gpt.collate([(prompt, text) for text, _ in answers])
mask = torch.zeros_like(everything)
for row, (_, mine) in enumerate(answers):
    mask[row, len(prompt) - 1 : len(prompt) - 1 + len(mine)] = torch.tensor(mine)
worth = torch.tensor([float(text.rstrip(gpt.END)[-1:] == right[prompt]) for text, _ in answers])

with torch.no_grad():
    of_tokens = gpt.log_probs(base, tokens)
p, too_small = ((of_tokens * which).sum(1).exp() for which in (mask, everything))
print(f"{len(answers):,} answers; their probabilities add up to {p.sum():.4f}")
print(f"with the tool's letter counted as the policy's, to {too_small.sum():.4f}")
holds(abs(p.sum() - 1) < 1e-4, "with the right mask the probabilities of all answers add up to 1")
holds(too_small.sum() < 0.9, "with the tool's letter in the mask they do not")

# %% [markdown]
# With the right mask the probabilities add up to 1; with the tool's letter included they do not: the
# tool has written that letter with certainty, and the product claims that it was drawn.
#
# **A conversation of several turns** has such a mask, too: 1 at the assistant's tokens and the mark that
# ends its turn, 0 at system, user and the marks that open a turn. Fine-tuning may train on all assistant
# turns; in RL those that were given in the prompt are 0.
#
# **Guess first.** What happens to the gradient if $m_t$ is 1 at the tool's letter as well? The
# formula still runs.
#
# ## 3. Three bugs
#
# **The first: observations in the loss.** The exact gradient comes from $J = \sum_y p(y) R(y)$ itself, by
# autograd. It is compared with the formula with the right mask, and with the one over all tokens.


# %%
def flat(objective):
    base.zero_grad()
    objective.backward()
    return torch.cat([p.grad.flatten() for p in base.parameters()])


A = worth - (p * worth).sum()  # the reward above its mean
exact = flat(((gpt.log_probs(base, tokens) * mask).sum(1).exp() * worth).sum())
by_mask, wrong = (
    flat((p * A * (gpt.log_probs(base, tokens) * which).sum(1)).sum())
    for which in (mask, everything)
)
cosine = torch.cosine_similarity(exact, wrong, dim=0)
calls = float(p[[":" in text for text, _ in answers]].sum())
print(f"{calls:.0%} of the answers call; cosine of exact and wrong gradient {cosine:.2f}")
holds(torch.allclose(by_mask, exact, atol=1e-5), "the formula with the mask is the exact gradient")
holds(cosine < 0.99, "the wrong gradient points only roughly the right way")

# %% [markdown]
# There is no error, and the wrong gradient points roughly the right way. But it also makes the secret
# letter likelier where the tool writes it. Nothing is drawn there, so in a table with a row for every
# prefix this would change no answer. A network shares its weights: the same step makes the secret likelier
# as a *first* letter, written without a call:

# %%
moved, ids = copy.deepcopy(base), [gpt.LETTERS.index(x) for x in prompt]
only_wrong = parameters_to_vector(moved.parameters()) + 0.1 * (wrong - exact)
vector_to_parameters(only_wrong, moved.parameters())
secret = gpt.LETTERS.index(right[prompt])
with torch.no_grad():
    first = [float(m(torch.tensor([ids]))[0, -1].softmax(-1)[secret]) for m in (base, moved)]
print(
    f"the secret as first letter: {first[0]:.2f}, after a step along the wrong part {first[1]:.2f}"
)
holds(first[1] > 1.5 * first[0], "the wrong part makes the secret likelier without a call")

# %% [markdown]
# The longer a tool's answers, the larger this part of the gradient.
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
# tokens have negative advantages, whatever the answer made possible, so the update makes calls rarer. The
# third row lets GAE run through the tool's tokens and sets their values to 0, as a public library does.
# That is right only for $\gamma = \lambda = 1$ ([the table](../docs/archive.md#tools-and-turns)).
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
# ratio of the first update is no longer 1 (`ratio_error_at_start`, [17_bug_zoo](17_bug_zoo.ipynb)).
#
# ## 4. It learns when to call
#
# A right letter earns 1 and a call costs 0.1. A guess at a secret is right once in eight times, so there a
# call is worth its price. Where the letter is easy to know, a call is a waste. Nobody tells the policy
# which is which.

# %%
made = []  # of every answer: is its prompt easy, and how often did it call


def reward(prompt, answer):
    made.append((prompt in easy, answer[:-1].count(":")))
    return (answer.rstrip(gpt.END)[-1:] == right[prompt]) - 0.1 * answer.count(":")


numbers = tools.train(base, reward, gpt.PROMPTS, right.get, steps=25)


def calls_of(kind, first, last):
    """Calls per answer to easy or hard prompts, from one batch to another."""
    counts = [calls for is_easy, calls in made[64 * first : 64 * last] if is_easy == kind]
    return sum(counts) / len(counts)


steps = range(0, 25, 5)
curves = {
    name: [calls_of(kind, step, step + 5) for step in steps]
    for name, kind in (("secret letter", False), ("easy letter", True))
}
middle = [step + 3 for step in steps]
plots.curves(curves, middle, xlabel="batch (of five)", ylabel="calls per answer", xticks=middle)
last = {name: curve[-1] for name, curve in curves.items()}
holds(
    last["secret letter"] > 4 * last["easy letter"], "in the end it asks for secrets far more often"
)
holds(last["easy letter"] < 0.3, "and for few of the easy letters")
holds(numbers[-1]["reward"] > numbers[0]["reward"] + 0.2, "and the reward rises")

# %% [markdown]
# This is one small run. In a larger one, with a calculator, a call is a waste for sums and needed for
# products; PPO learned that in five of six seeds and GRPO in three
# ([archive.md](../docs/archive.md#tools-and-turns)).

# %% [markdown]
# **What would happen if** a call cost 0.95? Remember how often a guess is right, and try it.
#
# ## Exercises
#
# A return that steps over the tool's tokens:


# %%
def answered_returns(token_rewards, mask, gamma): ...  # (N, T), (N, T), number -> (N, T)


check("answered_returns", answered_returns)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def answered_returns(token_rewards, mask, gamma):
#     returns, to_come = torch.zeros_like(token_rewards), torch.zeros(len(token_rewards))
#     for t in reversed(range(token_rewards.shape[1])):
#         here = token_rewards[:, t] + gamma * to_come
#         to_come = torch.where(mask[:, t], here, to_come)
#         returns[:, t] = torch.where(mask[:, t], here, 0.0)
#     return returns
# ```
#
# </details>
#
# **Which tokens are trained?** An answer with one or two calls, whose letters have names. A call is `:`,
# and the tool answers with as many letters as the table says. Enter the names of all tokens whose
# log-probability is in the loss. (No solution is printed.)

# %%
from course.entered import check_answer, table

MINE = 0  # your number, at a university the last digits of your student number
table("tokens_in_the_loss", MINE)

# %%
check_answer("tokens_in_the_loss", ..., MINE)

# %% [markdown]
# How TRL, verl and others decide each of these questions:
# [docs/archive.md](../docs/archive.md#tools-and-turns).
#
# ## To remember
#
# - Only what the policy draws is trained on; what a tool writes is read.
# - A return steps over the tool's tokens and does not start anew at them.
# - Keep the ids that were sampled: a text that is encoded again is another answer.
#
# Next: [21_which_would_you_have_believed](21_which_would_you_have_believed.ipynb), ten claims of recent
# papers, and what became of them here. The map of all pages is [00_start_here](00_start_here.ipynb).
