"""The arithmetic that turns scores of responses into a training signal. Nothing has a gradient."""

import torch
from torch import Tensor

from harness.tensors import at_least_float32, axes
from rl.equations.kl import k1


@torch.no_grad()
def at_last_token(
    scores: Tensor,  # (N,)
    response_mask: Tensor,  # (N, T) bool
) -> Tensor:  # (N, T)
    """The score at the last True position of every row of the mask, 0 elsewhere.

    That is the EOS token, or the last generated token of a truncated response. An empty row
    receives nothing.
    """
    axes("N T", scores=("N", scores), mask=response_mask)
    tokens_from_here = response_mask.long().flip(1).cumsum(1).flip(1)
    last = response_mask & (tokens_from_here == 1)
    return torch.where(last, at_least_float32(scores).unsqueeze(1), 0.0)


@torch.no_grad()
def token_level_rewards(
    scores: Tensor,  # (N,)
    log_probs: Tensor,  # (N, T), of the policy that sampled
    ref_log_probs: Tensor | None,  # (N, T), or None when kl_coef is 0
    response_mask: Tensor,  # (N, T) bool
    kl_coef: float,
) -> Tensor:  # (N, T)
    """r_t = -beta (log pi - log pi_ref)_t, plus the score at the last token.

    The sum over t is InstructGPT's R - beta log(pi / pi_ref)(y|x) (Ouyang et al. 2022,
    arXiv:2203.02155, Eq. 2), which is also the sequence reward of RLOO (arXiv:2402.14740, section
    2.3). No other form than k1 has the KL's policy gradient here.
    """
    axes(
        "N T", log_probs=log_probs, ref_log_probs=ref_log_probs, scores=("N", scores),
        mask=response_mask,
    )  # fmt: skip
    if kl_coef == 0:  # no reference is needed, and 0 * infinity cannot arise
        return at_last_token(scores, response_mask)
    if ref_log_probs is None:
        raise ValueError(f"kl_coef {kl_coef} needs ref_log_probs: got None")
    kl_t = torch.where(response_mask, k1(log_probs, ref_log_probs), 0.0)
    return -kl_coef * kl_t + at_last_token(scores, response_mask)


@torch.no_grad()
def overlong_penalty(
    lengths: Tensor,  # (N,)
    max_length: int,
    buffer: int,
) -> Tensor:  # (N,)
    """DAPO's soft overlong punishment, to be added to the reward.

    0 up to max_length - buffer tokens, then falling linearly to -1 at max_length and staying there
    (Yu et al. 2025, arXiv:2503.14476, Eq. 13).
    """
    axes("N", lengths=lengths)
    if not 1 <= buffer <= max_length:
        raise ValueError(f"buffer must be a part of the {max_length} tokens: got {buffer}")
    return ((max_length - buffer - lengths) / buffer).clamp(-1.0, 0.0)


@torch.no_grad()
def teacher_rewards(
    teacher_log_probs: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T), of the policy that sampled
    response_mask: Tensor,  # (N, T) bool
    *,
    reverse_kl: bool,
) -> Tensor:  # (N, T)
    """A teacher's judgement of every token: log p, or with `reverse_kl` log p - log q.

    The latter is MiniLLM's r_t = log p(y_t) / q(y_t) (Gu et al. 2024, arXiv:2306.08543, Eq. 2):
    summed over a response its mean is -KL(q || p). log p alone has no entropy term.
    """
    axes(
        "N T", teacher_log_probs=teacher_log_probs, old_log_probs=old_log_probs, mask=response_mask,
    )  # fmt: skip
    rewards = at_least_float32(teacher_log_probs)
    rewards = rewards - old_log_probs if reverse_kl else rewards
    return torch.where(response_mask, rewards, 0.0)


@torch.no_grad()
def own_text_penalty(
    token_rewards: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T), of the policy that sampled
    response_mask: Tensor,  # (N, T) bool
    coef: float,
) -> Tensor:  # (N, T)
    """r_t - lambda (-log q(y_t)): a language model's loss on its own response, taken off its reward.

    lambda is `coef`. Over samples of q the mean of -log q(y) is q's entropy, so this is a penalty on
    entropy. With log p - log q as the reward it leaves log p - (1 - lambda) log q.
    """
    axes("N T", token_rewards=token_rewards, old_log_probs=old_log_probs, mask=response_mask)
    penalised = token_rewards + coef * at_least_float32(old_log_probs)
    return torch.where(response_mask, penalised, 0.0)
