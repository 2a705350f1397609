# %% [markdown]
# # 25. Check a loss against the truth
#
# **The question.** A loss runs, the curve falls, and nothing says that its formula is right. How do you
# find out whether a function of yours, or of a library, computes what its name says?
#
# **Why.** A wrong loss seldom stops with an error; it trains something else. This page takes a published
# function with a bug in it, finds the bug in three ways, and ends with a command that does so in one line.
#
# **You need** [14_kl_estimators](14_kl_estimators.ipynb) for k1, k2 and k3, and
# [05_what_a_kl_is](05_what_a_kl_is.ipynb).
#
# **It takes** about three seconds on one CPU core, after start-up.

# %%
import torch
from course import plots
from course.exercises import check

from conformance.checking import check as hold
from conformance.kinds import KINDS

plots.use()
torch.set_num_threads(1)


def told(function, kind):
    """Print what the kit says of a function."""
    verdict = hold(function, KINDS[kind])
    print(f"{verdict.status}: {verdict.says}")
    for line in [verdict.example, *verdict.notes]:
        print(line) if line else None


# %% [markdown]
# ## 1. A published function
#
# A book's code on policy gradients has an estimate of the KL between the policy and the reference, for
# tokens that the policy drew. It is a term of the loss. Written anew, it computes this:


# %%
def published(log_probs, ref_log_probs):
    log_ratio = log_probs - ref_log_probs
    return torch.expm1(log_ratio) - log_ratio


# %% [markdown]
# It is never negative, it is 0 where both agree, and it is even careful with small numbers (`expm1`).
# Its own test passes. But a user [reports](https://github.com/natolambert/rlhf-book/issues/489) large
# spikes of the loss early in training, with this estimate and with neither of the others.
#
# **Guess first.** Is it right? There are three ways to find out, and none of them is training.
#
# ## 2. By hand, one token
#
# The smallest example: one token, with probability 0.1 under the policy and 0.4 under the
# reference. GRPO's Eq. 4 ([arXiv:2402.03300](https://arxiv.org/abs/2402.03300)) wants
# $\pi_{ref} / \pi - \log (\pi_{ref} / \pi) - 1 = 4 - \log 4 - 1$.

# %%
policy, reference = torch.tensor([[0.1]]).log(), torch.tensor([[0.4]]).log()
by_hand = 4 - torch.tensor(4.0).log() - 1
print(f"wanted {by_hand:.4f}, published {published(policy, reference).item():.4f}")
assert abs(by_hand - 1.6137) < 1e-4

# %% [markdown]
# ## 3. By enumeration
#
# One number may be a matter of convention, but a mean is not: over samples of the policy an unbiased
# estimate of the KL has the KL as its mean. With four symbols the mean is an exact sum of four terms.

# %%
p, q = torch.tensor([0.7, 0.2, 0.05, 0.05]), torch.tensor([0.2, 0.25, 0.05, 0.5])
kl = (p * (p / q).log()).sum()
k3 = (p * (q / p - (q / p).log() - 1)).sum()
mean = (p * published(p.log(), q.log())).sum()
plots.table(
    ["", "mean over samples of the policy"],
    [["KL", f"{kl:.3f}"], ["k3", f"{k3:.3f}"], ["published", f"{mean:.3f}"]],
)
assert torch.isclose(k3, kl) and mean > kl + 0.2

# %% [markdown]
# The published ratio is upside down: it would be right for samples of the *reference*. That would explain
# the spikes, because the cost of a token grows with $\pi / \pi_{ref}$, which nothing bounds.

# %%
drift = torch.linspace(-5, 5, 101)
costs = {"published": published(drift, 0 * drift), "k3": published(-drift, 0 * drift)}
styles = {"published": "bad", "k3": "k3"}
plots.curves(
    costs,
    drift,
    styles=styles,
    xlabel="log of policy over reference (nats)",
    ylabel="cost of the token",
)

# %% [markdown]
# A token that the policy has come to like $e^5$ times more than the reference costs 142 instead of 4.
# And these are the tokens that a policy samples.
#
# ## 4. By comparison with every way to go wrong
#
# The conformance kit does both and more. It calls a function on worked cases and on ragged batches with
# garbage in the padding, and compares its numbers and gradients with every known way to compute such a
# thing, right or wrong. So it can name the mistake.

# %%
told(published, "kl_loss")

# %% [markdown]
# Each mistake that it knows is a function that somebody could write, with a sentence that `check` uses in
# this course, too. Another convention is not a mistake, but it is named:


# %%
def surrogate(log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
    ratio = torch.where(mask, log_probs - old_log_probs, 0.0).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.where(mask, -torch.minimum(ratio * advantages, clipped * advantages), 0.0)


def by_token(log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
    return (
        surrogate(log_probs, old_log_probs, advantages, clip_low, clip_high, mask).sum()
        / mask.sum()
    )


def by_response(log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
    loss = surrogate(log_probs, old_log_probs, advantages, clip_low, clip_high, mask)
    return (loss.sum(1) / mask.sum(1).clamp(min=1)).mean()


def by_everything(log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
    return surrogate(log_probs, old_log_probs, advantages, clip_low, clip_high, mask).mean()


for function in (by_token, by_response, by_everything):
    print(function.__name__, end=": ")
    told(function, "policy_loss")

# %% [markdown]
# **What would happen if** only the critic's loss forgot the mask? The kit has a kind for that as well:
# `python -m conformance --list`.
#
# ## Exercise
#
# Mend the published function, so that both `check` and the kit accept it.


# %%
def mended(log_probs, ref_log_probs): ...  # (N, T) each -> (N, T)


check("k3", mended)

# %% [markdown]
# <details>
# <summary>Solution</summary>
#
# ```python
# def mended(log_probs, ref_log_probs):
#     delta = ref_log_probs - log_probs
#     return torch.expm1(delta) - delta
#
#
# told(mended, "kl_loss")
# ```
#
# </details>
#
# ## Yours
#
# `python -m conformance mine.py:loss` needs torch alone; [its page](../conformance/README.md) says how to
# write an adapter for a function with other arguments, and how to make it a test of your own.
# [Twelve public code bases](../docs/conformance.md) were put to the same test; the page says what holds,
# what differs by choice, and what is wrong, each with a command that shows it.
#
# What it cannot see: whether the function is called with the right things. A right loss on the log-probs of
# another policy is the subject of [22_bug_zoo](22_bug_zoo.ipynb).
#
# The map of all pages is [00_start_here](00_start_here.ipynb).
#
# Next: [26_tools_and_turns](26_tools_and_turns.ipynb).
