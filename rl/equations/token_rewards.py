"""The arithmetic that turns scores of responses into a training signal. Nothing has a gradient."""

from typing import Literal

import torch

from harness.equation_checks import (
    Mask,
    N,
    NxT,
    constant_equation,
    in_range,
    one_of,
    row_equation,
)
from rl.equations.kl import k1


@constant_equation
def at_last_token(scores: N, response_mask: Mask[NxT]) -> NxT:
    """`scores` (N,) at the last True position of every row of the mask, 0 elsewhere, (N, T).

    That is the EOS token, or the last generated token of a truncated response. An empty row
    receives nothing.
    """
    tokens_from_here = response_mask.long().flip(1).cumsum(1).flip(1)
    return torch.where(tokens_from_here == 1, scores.unsqueeze(1), 0.0)


@constant_equation
def token_level_rewards(
    scores: N,
    log_probs: NxT,  # of the policy that sampled
    ref_log_probs: NxT | None,  # may be None when kl_coef is 0
    response_mask: Mask[NxT],
    kl_coef: float,
) -> NxT:
    """r_t = -beta (log pi - log pi_ref)_t, plus the score at the last token; (N, T).

    The sum over t is InstructGPT's R - beta log(pi / pi_ref)(y|x) (Ouyang et al. 2022,
    arXiv:2203.02155, Eq. 2), which is also the sequence reward of RLOO (arXiv:2402.14740, section
    2.3). No other form than k1 has the KL's policy gradient here.
    """
    if kl_coef == 0:  # no reference is needed, and 0 * infinity cannot arise
        return at_last_token(scores, response_mask)
    if ref_log_probs is None:
        raise ValueError(f"kl_coef {kl_coef} needs ref_log_probs: got None")
    kl_t = k1(log_probs, ref_log_probs)
    return -kl_coef * kl_t + at_last_token(scores, response_mask)


@torch.no_grad()
@one_of(rule=("replace", "subtract", "none"))
@row_equation
def score_missing_eos(
    scores: N,
    has_eos: Mask[N],
    rule: Literal["replace", "subtract", "none"],
    value: float,
) -> N:
    """What a response that never ended is worth, applied before any other reward arithmetic.

    "replace" makes its score `value` (Ziegler et al. 2019, arXiv:1909.08593, use -1), "subtract"
    takes `value` off its score, "none" leaves it. Meaningful only with centred scores: a reward
    model's zero is otherwise arbitrary.
    """
    without_eos = {"replace": torch.full_like(scores, value), "subtract": scores - value}
    return torch.where(has_eos, scores, without_eos.get(rule, scores))


@in_range(buffer="[1, max_length]")
@row_equation
def overlong_penalty(lengths: N, max_length: int, buffer: int) -> N:
    """DAPO's soft overlong punishment, (N,) -> (N,), to be added to the reward.

    0 up to max_length - buffer tokens, then falling linearly to -1 at max_length and staying there
    (Yu et al. 2025, arXiv:2503.14476, Eq. 13).
    """
    return ((max_length - buffer - lengths) / buffer).clamp(-1.0, 0.0)


@constant_equation
def teacher_rewards(
    teacher_log_probs: NxT,
    old_log_probs: NxT,  # of the policy that sampled
    response_mask: Mask[NxT],
    *,
    reverse_kl: bool,
) -> NxT:
    """A teacher's judgement of every token: log p, or with `reverse_kl` log p - log q.

    The latter is MiniLLM's r_t = log p(y_t) / q(y_t) (Gu et al. 2024, arXiv:2306.08543, Eq. 2):
    summed over a response its mean is -KL(q || p). log p alone has no entropy term.
    """
    return teacher_log_probs - old_log_probs if reverse_kl else teacher_log_probs


@constant_equation
def own_text_penalty(
    token_rewards: NxT,
    old_log_probs: NxT,  # of the policy that sampled
    response_mask: Mask[NxT],
    coef: float,
) -> NxT:
    """r_t - lambda (-log q(y_t)): a language model's loss on its own response, taken off its reward.

    lambda is `coef`. Over samples of q the mean of -log q(y) is q's entropy, so this is a penalty on
    entropy. With log p - log q as the reward it leaves log p - (1 - lambda) log q.
    """
    return token_rewards + coef * old_log_probs
