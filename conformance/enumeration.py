"""Exact expectations: every response of a tiny language is listed, so a mean is a sum and not a sample.

Two letters and an EOS, at most three tokens: 15 responses, and one row of three logits for each of
the 7 prefixes. What a function does is said by comparing its expected gradient with the exact one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from .formulas import masked, response_mask

T = 3
WORDS = [w for w in itertools.product(range(3), repeat=T) if 0 not in w[: sum(map(bool, w))]]
TOKENS = torch.tensor(sorted(WORDS, key=lambda w: (sum(map(bool, w)), w)))  # (15, 3), 0 is EOS
MASK = response_mask(TOKENS, 0)
FIRST, SECOND, _ = TOKENS.T
STATES = torch.stack([0 * FIRST, FIRST, 2 * FIRST + SECOND], 1)  # prefixes of 0, 1 and 2 letters
THETA = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
REWARDS = torch.randn(len(TOKENS), generator=torch.Generator().manual_seed(3)).double()


def token_log_probs(logits: Tensor) -> Tensor:
    """(15, 3): log-probability of every token of every response, 0 behind its end."""
    return masked(logits.log_softmax(-1)[STATES].gather(-1, TOKENS[..., None])[..., 0], MASK)


def probabilities(logits: Tensor) -> Tensor:
    """(15,): they add up to 1."""
    return token_log_probs(logits).sum(1).exp()


def gradient(function: Callable[[Tensor], Tensor], at: Tensor = THETA) -> Tensor:
    """Gradient of function(theta), of theta's shape; 0 where none flows."""
    theta = at.clone().requires_grad_()
    value = function(theta)
    return torch.autograd.grad(value, theta)[0] if value.requires_grad else torch.zeros_like(at)


def described(found: Tensor, exact: Tensor, name: str) -> str:
    """What an expected gradient has to do with the exact one of that name."""
    if not found.isfinite().all():
        return "is not finite"
    if found.abs().max() < 1e-9:
        return "is 0"
    if torch.allclose(found, exact):
        return f"is that of {name}"
    length = found.norm() / exact.norm()
    cosine = torch.nn.functional.cosine_similarity(found.flatten(), exact.flatten(), dim=0)
    if cosine > 1 - 1e-9:
        return f"is {length:.2f} times that of {name}"
    return f"has cosine {cosine:.2f} with that of {name}, and {length:.1f} of its length"


def beside_the_reward(loss: Callable[[Tensor], Tensor]) -> str:
    """The gradient of an expected loss of theta, beside that of -E[reward]."""
    exact = -gradient(lambda theta: probabilities(theta) @ REWARDS)
    return described(gradient(loss), exact, "-E[reward]")


# --- what is said of each kind ----------------------------------------------------------------------

Estimate = Callable[..., Tensor]  # a user's function, by position
CHANCES = [[0.7, 0.2, 0.05, 0.05], [0.2, 0.25, 0.05, 0.5]]
POLICY, REFERENCE = torch.tensor(CHANCES, dtype=torch.float64).log()


def of_a_kl(estimate: Estimate) -> str:
    """(log_probs, ref_log_probs, mask, length) over samples of one token, of four."""

    def estimated(new: Tensor, ref: Tensor) -> Tensor:
        whole = torch.ones(len(new), 1, dtype=torch.bool)
        return estimate(new[:, None], ref[:, None], whole, 9)[:, 0].double()

    def value(logits: Tensor) -> Tensor:
        return estimated(logits.log_softmax(0), REFERENCE)

    def reverse(logits: Tensor) -> Tensor:
        return (logits.softmax(0) * (logits.log_softmax(0) - REFERENCE)).sum()

    weights = POLICY.exp()
    forward = gradient(lambda x: -REFERENCE.exp() @ x.log_softmax(0), POLICY)
    uses = {
        "as a loss": gradient(lambda x: weights @ value(x), POLICY),
        "in the reward": gradient(
            lambda x: weights @ (value(x).detach() * x.log_softmax(0)), POLICY
        ),
    }
    parts = [
        f"over samples of the policy its mean is {weights @ value(POLICY):.3f} where "
        f"KL(pi || pi_ref) is {reverse(POLICY):.3f}"
    ]
    for use, found in uses.items():
        text = described(found, gradient(reverse, POLICY), "KL(pi || pi_ref)")
        if torch.allclose(found, forward):
            text = "is that of the forward KL(pi_ref || pi)"
        parts.append(f"{use} its expected gradient {text}")
    far = float(estimated(torch.tensor([-1.0]), torch.tensor([-6.0])))
    parts.append(f"for a token e^5 times likelier than under the reference it is {far:.1f}")
    return "; ".join(parts)


def of_a_policy_loss(loss: Estimate) -> str:
    """(log_probs, old, advantages, clip_low, clip_high, mask, length), one response at a time."""
    old, advantages = token_log_probs(THETA), REWARDS[:, None].expand(-1, T)

    def one(new: Tensor, i: slice) -> Tensor:
        value = loss(new[i], old[i], advantages[i], 0.2, 0.2, MASK[i], T)
        return (masked(value, MASK[i]) if value.shape == (1, T) else value).sum().double()

    def expected(theta: Tensor) -> Tensor:
        new = token_log_probs(theta)
        each = [one(new, slice(i, i + 1)) for i in range(len(TOKENS))]
        return probabilities(THETA) @ torch.stack(each)

    text = beside_the_reward(expected)
    return f"over samples of the policy, one response to a batch, its expected gradient {text}"


def of_advantages(advantages: Estimate) -> str:
    """(rewards, group_size), over every pair of responses that a policy may draw."""
    rewards, chance = REWARDS - REWARDS.min() + 0.1, probabilities(THETA)
    pairs = torch.cartesian_prod(*[torch.arange(len(TOKENS))] * 2)
    paid = torch.stack([advantages(rewards[pair], 2).reshape(2, -1)[:, 0] for pair in pairs])

    def loss(theta: Tensor) -> Tensor:
        drawn = token_log_probs(theta).sum(1)[pairs]
        return -(chance[pairs].prod(1) @ (paid.double() * drawn).mean(1))

    return (
        f"over groups of two the expected gradient of REINFORCE with it {beside_the_reward(loss)}"
    )


def of_a_preference_loss(loss: Estimate) -> str:
    """(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta), over all pairs of four."""
    rewards, beta = torch.tensor([1.0, 0.0, -0.5, 2.0]).double(), 0.5

    def expected(logits: Tensor) -> Tensor:
        log_p, total = logits.log_softmax(0), torch.zeros((), dtype=torch.float64)
        for good, bad in itertools.permutations(range(4), 2):
            chance = torch.sigmoid(rewards[good] - rewards[bad])
            sides = (log_p[[good]], log_p[[bad]], REFERENCE[[good]], REFERENCE[[bad]])
            total = total + chance * loss(*sides, beta).double().sum()
        return total

    size = gradient(expected, at=REFERENCE + rewards / beta).norm()
    text = "is 0" if size < 1e-9 else "is not 0: it has its minimum elsewhere"
    return (
        "over all pairs, with verdicts of Bradley-Terry, its gradient at the policy with the most "
        f"reward less beta KL {text}"
    )
