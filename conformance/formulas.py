"""The right formulas that others are measured by.

Every other way, right or wrong, stands in ways.txt: one of these with something changed. Arguments and
results are (N, T), per token, unless said otherwise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

EPS = 1e-4


def masked(x, mask):
    return torch.where(mask, x, 0.0)


# --- averages: of token losses, and of those of pairs (N,) ------------------------------------------


def token_mean(x, mask, length=None):
    return masked(x, mask).sum() / mask.sum().clamp(min=1)


def row_means(x, mask, *_):
    return masked(x, mask).sum(1) / mask.sum(1).clamp(min=1)


def row_sums(x, mask, *_):
    return masked(x, mask).sum(1)


def mean(x, *_):
    return x.mean()


def token_losses(loss, *_):
    return loss


# --- policy losses, and weights for tokens that another policy drew ---------------------------------


def clipped_surrogate(new, old, A, low, high, mask=None, *_):
    ratio = (new - old).exp()
    clipped = ratio.clamp(1 - low, 1 + high)
    return -torch.minimum(ratio * A, clipped * A)


def dppo(new, old, A, low, high, *_):
    moved = new.exp() - old.exp()
    left_out = torch.where(A > 0, moved > high, moved < -low)
    return torch.where(left_out, 0.0, -(new - old).exp() * A)


def truncated(old, mu, cap, low, mask):
    weight = (old - mu).exp().expand_as(old)
    return weight.clamp(max=cap)


# --- KL estimates of sampled tokens ------------------------------------------------------------------


def k3(new, ref, *_):
    return torch.expm1(ref - new) - (ref - new)


def k2(new, ref, *_):
    return (new - ref).square() / 2


def k1(new, ref, *_):
    return new - ref


# --- advantages: of N responses, G to a prompt, (N, 1); of every token; whitening -------------------


def z_score(rewards, G):
    groups = rewards.view(-1, G)
    mean, deviation = groups.mean(1, keepdim=True), groups.std(1, keepdim=True)
    return ((groups - mean) / (deviation + EPS)).view(-1, 1)


def gae(r, V, mask, gamma, lam):
    advantages, A = torch.zeros_like(V), torch.zeros_like(V[:, 0])
    following = A
    for t in reversed(range(V.shape[1])):
        delta = r[:, t] + gamma * following - V[:, t]
        A = torch.where(mask[:, t], delta + gamma * lam * A, A)
        following = torch.where(mask[:, t], V[:, t], following)
        advantages[:, t] = A
    return masked(advantages, mask).detach()


def lambda_returns(r, V, mask, gamma, lam):
    return masked(gae(r, V, mask, gamma, lam) + V, mask)


def whiten(x, mask):
    valid = x[mask]
    return masked((x - valid.mean()) / (valid.var() + 1e-8).sqrt(), mask)


# --- the critic, and pairs of responses (N,) ---------------------------------------------------------


def value_loss(V, old, returns, clip, *_):
    near = old + (V - old).clamp(-clip, clip)
    return torch.maximum((V - returns) ** 2, (near - returns) ** 2) / 2


def dpo(pc, pr, rc, rr, beta):
    gap = (pc - rc) - (pr - rr)
    return -F.logsigmoid(beta * gap)


# --- log-probabilities (N, S - 1) of tokens (N, S), where a response ends, the rewards of its tokens --


def log_probs(logits, tokens, mask, temperature):
    scores = (logits[:, :-1] / temperature).log_softmax(-1)
    return scores.gather(2, tokens[:, 1:, None])[..., 0]


def response_mask(tokens, eos_id):
    is_eos = (tokens == eos_id).long()
    return is_eos.cumsum(1) - is_eos == 0  # no EOS strictly before


def at_last(scores, mask):
    """The scores (N,) at each row's last valid token, (N, T)."""
    last = (mask.long() * torch.arange(1, mask.shape[1] + 1)).argmax(1, keepdim=True)
    placed = torch.zeros(mask.shape, dtype=scores.dtype).scatter(1, last, scores[:, None])
    return torch.where(mask.any(1, keepdim=True), placed, 0.0)


def token_rewards(scores, new, ref, mask, kl_coef):
    penalty = kl_coef * k1(new, ref)
    return masked(at_last(scores, mask) - penalty, mask).detach()
