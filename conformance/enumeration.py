"""Exact expectations: every response of a tiny language is listed, so a mean is a sum and not a sample.

Two letters and an EOS, at most three tokens: 15 responses, and one row of three logits for each of
the 7 prefixes. What a function does is said by comparing its expected gradient with the exact one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

EOS, LETTERS, T = 0, (1, 2), 3
RESPONSES = [
    (*prefix, EOS) for n in range(T) for prefix in itertools.product(LETTERS, repeat=n)
] + list(itertools.product(LETTERS, repeat=T))  # ends with its first EOS, or is cut off at T tokens
PREFIXES = {
    prefix: i
    for i, prefix in enumerate(
        prefix for n in range(T) for prefix in itertools.product(LETTERS, repeat=n)
    )
}
TOKENS = torch.tensor([[*r, *[EOS] * (T - len(r))] for r in RESPONSES])  # (15, 3)
STATES = torch.tensor([[PREFIXES[r[:t]] if t < len(r) else 0 for t in range(T)] for r in RESPONSES])
MASK = torch.arange(T) < torch.tensor([len(r) for r in RESPONSES])[:, None]


def table(seed: int) -> Tensor:
    """(7, 3): the logits of a policy."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(PREFIXES), 3, generator=generator, dtype=torch.float64)


THETA, OLD, REF = table(0), table(1), table(2)
REWARDS = torch.randn(len(RESPONSES), generator=torch.Generator().manual_seed(3)).double()


def token_log_probs(logits: Tensor) -> Tensor:
    """(15, 3): log-probability of every token of every response, 0 behind its end."""
    chosen = logits.log_softmax(-1)[STATES].gather(-1, TOKENS[..., None]).squeeze(-1)
    return torch.where(MASK, chosen, 0.0)


def probabilities(logits: Tensor) -> Tensor:
    """(15,): they add up to 1."""
    return token_log_probs(logits).sum(1).exp()


def gradient(function: Callable[[Tensor], Tensor], at: Tensor = THETA) -> Tensor:
    """Gradient of function(theta), of theta's shape; 0 where none flows."""
    theta = at.clone().requires_grad_()
    value = function(theta)
    return torch.autograd.grad(value, theta)[0] if value.requires_grad else torch.zeros_like(at)


def expected_reward(theta: Tensor) -> Tensor:
    return probabilities(theta) @ REWARDS


def described(found: Tensor, exact: Tensor, name: str) -> str:
    """What an expected gradient has to do with the exact one of that name."""
    if found.abs().max() < 1e-9:
        return "is 0"
    if torch.allclose(found, exact):
        return f"is that of {name}"
    length = found.norm() / exact.norm()
    cosine = torch.nn.functional.cosine_similarity(found.flatten(), exact.flatten(), dim=0)
    if cosine > 1 - 1e-9:
        return f"is {length:.2f} times that of {name}"
    return f"has cosine {cosine:.2f} with that of {name}, and {length:.1f} of its length"


# --- what is said of each kind ----------------------------------------------------------------------

Estimate = Callable[..., Tensor]  # a user's function, by position
POLICY, REFERENCE = (0.7, 0.2, 0.05, 0.05), (0.2, 0.25, 0.05, 0.5)


def of_a_kl(estimate: Estimate) -> str:
    """(log_probs, ref_log_probs, mask, length) over samples of one token, of four."""
    policy = torch.tensor(POLICY, dtype=torch.float64).log()
    ref = torch.tensor(REFERENCE, dtype=torch.float64).log()

    def estimated(new: Tensor, ref: Tensor) -> Tensor:
        whole = torch.ones(len(new), 1, dtype=torch.bool)
        return estimate(new[:, None], ref[:, None], whole, 9)[:, 0].double()

    def value(logits: Tensor) -> Tensor:
        return estimated(logits.log_softmax(0), ref)

    def reverse(logits: Tensor) -> Tensor:
        return (logits.softmax(0) * (logits.log_softmax(0) - ref)).sum()

    def forward(logits: Tensor) -> Tensor:
        return -(ref.exp() * logits.log_softmax(0)).sum()

    weights, exact = policy.exp(), gradient(reverse, policy)
    as_loss = gradient(lambda x: weights @ value(x), policy)
    in_reward = gradient(lambda x: weights @ (value(x).detach() * x.log_softmax(0)), policy)
    parts = [
        f"over samples of the policy its mean is {weights @ value(policy):.3f} where "
        f"KL(pi || pi_ref) is {reverse(policy):.3f}"
    ]
    for use, found in (("as a loss", as_loss), ("in the reward", in_reward)):
        text = described(found, exact, "KL(pi || pi_ref)")
        if torch.allclose(found, gradient(forward, policy)):
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
        return (torch.where(MASK[i], value, 0.0) if value.shape == (1, T) else value).sum().double()

    def expected(theta: Tensor) -> Tensor:
        new = token_log_probs(theta)
        each = [one(new, slice(i, i + 1)) for i in range(len(RESPONSES))]
        return probabilities(THETA) @ torch.stack(each)

    text = described(gradient(expected), -gradient(expected_reward), "-E[reward]")
    return f"over samples of the policy, one response to a batch, its expected gradient {text}"


def of_advantages(advantages: Estimate) -> str:
    """(rewards, group_size), over every pair of responses that a policy may draw."""
    rewards, log_p = REWARDS - REWARDS.min() + 0.1, token_log_probs(THETA).sum(1)
    pairs = list(itertools.product(range(len(RESPONSES)), repeat=2))
    paid = torch.stack([advantages(rewards[[*pair]], 2).reshape(2, -1)[:, 0] for pair in pairs])

    def loss(theta: Tensor) -> Tensor:
        drawn = token_log_probs(theta).sum(1)[torch.tensor(pairs)]
        return -(log_p[torch.tensor(pairs)].sum(1).exp() @ (paid.double() * drawn).mean(1))

    text = described(gradient(loss), -gradient(expected_reward), "-E[reward]")
    return f"over groups of two the expected gradient of REINFORCE with it {text}"


def of_a_preference_loss(loss: Estimate) -> str:
    """(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta), over all pairs of four."""
    rewards, beta = torch.tensor([1.0, 0.0, -0.5, 2.0]).double(), 0.5
    ref = torch.tensor(REFERENCE, dtype=torch.float64).log()
    best = ref + rewards / beta
    pairs = list(itertools.permutations(range(4), 2))

    def expected(logits: Tensor) -> Tensor:
        log_p, total = logits.log_softmax(0), torch.zeros((), dtype=torch.float64)
        for good, bad in pairs:
            chance = torch.sigmoid(rewards[good] - rewards[bad])
            args = (log_p[[good]], log_p[[bad]], ref[[good]], ref[[bad]], beta)
            total = total + chance * loss(*args).double().sum()
        return total

    size = gradient(expected, best).norm()
    text = "is 0" if size < 1e-9 else "is not 0: it has its minimum elsewhere"
    return (
        "over all pairs, with verdicts of Bradley-Terry, its gradient at the policy with the most "
        f"reward less beta KL {text}"
    )
