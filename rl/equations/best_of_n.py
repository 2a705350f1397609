"""Best-of-n sampling against a reward model (Stiennon et al. 2020, arXiv:2009.01325, appendix G.3).

Answer a prompt n times and keep the answer that the proxy, the learned reward model, likes best: the
simplest way to optimise it, without any training. How far that is from the policy is known exactly,
and one bank of N answers gives the expected value for every n up to N, and pass@k where a rule checks.
"""

import math

import torch
from torch import Tensor

from harness.tensors import axes


def best_of_n_kl(n: int) -> float:
    """log n - (n - 1) / n: KL(best of n || policy) in nats per answer, an upper bound with ties.

    (arXiv:2009.01325, appendix G.3.) 512 answers are only 5.24 nats away.
    """
    return math.log(n) - (n - 1) / n


def best_of_n_weights(answers: int, n: int) -> Tensor:
    """C(i - 1, n - 1) / C(N, n), float64 (N,): is the i-th of N `answers` the best of a random n?

    i counts from the worst to the best. The i-th is the best of n if it is drawn and the n - 1 others
    come from the i - 1 below it (Nakano et al. 2021, arXiv:2112.09332). n from 1 to N.
    """
    if not 1 <= n <= answers:
        raise ValueError(
            f"the best of n needs n from 1 to the {answers} answers there are: got {n}"
        )
    below = torch.arange(answers, dtype=torch.float64)  # i - 1
    return torch.exp(_log_choose(below, n - 1) - _log_choose(torch.tensor(float(answers)), n))


@torch.no_grad()
def best_of_n_mean(
    proxy: Tensor,  # (P, N)
    values: Tensor,  # (P, N)
    n: int,
) -> Tensor:  # (P,), float64
    """E[value of the best of n by the proxy], from N answers to each of P prompts: unbiased.

    The mean over all subsets of n of a prompt's N answers, not over a few random ones.
    `values` is the gold reward of each answer, or the proxy itself.
    """
    axes("P N", proxy=proxy, values=values)
    rising = values.double().gather(1, proxy.argsort(dim=1, stable=True))
    return rising @ best_of_n_weights(proxy.shape[1], n).to(rising.device)


def pass_at_k(correct: Tensor, k: int) -> float:
    """The chance that at least one of k samples is right, from n >= k samples a prompt, (P, n) bool.

    Mean over prompts of 1 - C(n - c, k) / C(n, k) with c right ones: unbiased, which 1 - (1 -
    c/n)^k is not (Chen et al. 2021, arXiv:2107.03374, Eq. 1).
    """
    if correct.ndim != 2 or correct.dtype != torch.bool:
        raise ValueError(f"correct must be a bool (P, n): got {tuple(correct.shape)}")
    n = correct.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs 1 to n = {n} samples of each prompt")
    misses = [math.comb(n - c, k) / math.comb(n, k) for c in correct.sum(1).tolist()]
    return 1 - sum(misses) / len(misses)


def _log_choose(total: Tensor, k: int) -> Tensor:
    """log C(total, k), -inf where k is more than there is."""
    total = total.double()
    ways = torch.lgamma(total + 1) - math.lgamma(k + 1) - torch.lgamma((total - k).clamp(min=0) + 1)
    return torch.where(total >= k, ways, -math.inf)
