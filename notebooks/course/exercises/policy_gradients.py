"""From an advantage to a gradient: REINFORCE, the clip, and the ratios."""

import torch

from conformance.batches import Arguments, between, number, some
from course.exercises.entries import case, exercise, lengths, logs


def moved_tokens(generator: torch.Generator) -> Arguments:
    rows, columns = number(generator, 2, 5), number(generator, 4, 8)
    log_ratio, advantages = torch.randn(2, rows, columns, generator=generator)
    return {
        "ratio": (log_ratio / 2).exp(),
        "advantages": advantages,
        "clip_low": between(generator, 0.1, 0.3),
        "clip_high": between(generator, 0.1, 0.6),
    }


RATIOS = torch.tensor([[0.5, 0.9, 1.1, 1.5]])
GOOD, BAD = torch.full((1, 4), 1.0), torch.full((1, 4), -1.0)


@exercise(
    case(
        "a good token at the ratios 0.5, 0.9, 1.1, 1.5", [[True, True, True, False]],
        ratio=RATIOS, advantages=GOOD, clip_low=0.2, clip_high=0.2,
    ),
    case(
        "a bad token at the same ratios", [[False, True, True, True]],
        ratio=RATIOS, advantages=BAD, clip_low=0.2, clip_high=0.2,
    ),
    case(
        "a good token with clip_high = 0.6", [[True, True, True, True]],
        ratio=RATIOS, advantages=GOOD, clip_low=0.2, clip_high=0.6,
    ),
    random=moved_tokens,
    constants="ratio advantages",
    mistakes="""
        ~(went_up_enough | went_down_enough) -> (ratio > 1 - clip_low) & (ratio < 1 + clip_high)
            you cut the gradient on both sides of the range. A token that moved the wrong way must be
            pulled back, however far it is: look at the sign of its advantage.
        ~(went_up_enough -> (went_up_enough
            this is the complement: True where the clip acted. True is wanted where a gradient is left.
        ratio < 1 - clip_low -> ratio > 1 + clip_high
            for A < 0 you stop where the ratio is high. This is the max instead of the min: a bad token
            that became likelier would never be pulled back.
        went_up_enough | went_down_enough
        -> torch.where(advantages > 0, ratio < 1 - clip_low, ratio > 1 + clip_high)
            the sides are swapped: a good token is done when its ratio is high, a bad one when its ratio is
            low.
        1 + clip_high -> 1 + clip_low
            right with one range for both sides, but the upper end is 1 + clip_high.
    """,
)  # fmt: skip
def clip_cases(ratio, advantages, clip_low, clip_high):
    """Return a bool tensor (N, T): True where the clipped loss still gives the token a
    gradient. Look at the sign of its advantage and at the side to which its ratio moved."""
    went_up_enough = (advantages > 0) & (ratio > 1 + clip_high)
    went_down_enough = (advantages < 0) & (ratio < 1 - clip_low)
    return ~(went_up_enough | went_down_enough)


FIVE = {"log_probs": logs([[0.5, 0.9, 1.0, 1.1, 1.5]]), "old_log_probs": torch.zeros(1, 5)}


@exercise(
    case(
        "a good token, A = +1, at five ratios", [[-0.5, -0.9, -1.0, -1.1, -1.2]],
        **FIVE, advantages=[[1.0]], clip_low=0.2, clip_high=0.2,
    ),
    case(
        "a bad token, A = -1, at five ratios", [[0.8, 0.9, 1.0, 1.1, 1.5]],
        **FIVE, advantages=[[-1.0]], clip_low=0.2, clip_high=0.2,
    ),
    case(
        "a good token with clip_high = 0.28", [[-0.5, -0.9, -1.0, -1.1, -1.28]],
        **FIVE, advantages=[[1.0]], clip_low=0.2, clip_high=0.28,
    ),
    random=some(
        "log_probs old_log_probs advantages=advantages_of_rows",
        clip_low=(0.1, 0.3), clip_high=(0.1, 0.6),
    ),
    constants="old_log_probs advantages",
    kit="policy_loss advantage_one_late",
    mistakes="""
        torch.minimum(ratio * advantages, clipped * advantages)
        -> torch.minimum(ratio * advantages, (ratio * advantages).clamp(1 - clip_low, 1 + clip_high))
        torch.minimum(ratio * advantages, clipped * advantages)
        -> (ratio * advantages).clamp(1 - clip_low, 1 + clip_high)
            you clip ratio times A. Clip the ratio, then multiply: the range is about the ratio.
        ratio.clamp(1 - clip_low, 1 + clip_high) -> ratio.clamp(max=1 + clip_high)
            you clip from above alone. A bad token that has become rare enough has a ratio below 1 -
            clip_low.
        ratio.clamp(1 - clip_low, 1 + clip_high)
        -> (log_probs - old_log_probs).clamp(-clip_low, clip_high).exp()
            you clip the log-ratio, so the edges are exp(-clip_low) and exp(clip_high). Clip the ratio.
    """,
)  # fmt: skip
def clipped_surrogate(log_probs, old_log_probs, advantages, clip_low, clip_high):
    """Compute -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) per token, (N, T), from
    log_probs and old_log_probs (N, T) and advantages (N, 1)."""
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


@exercise(
    case(
        "advantages 0.5, 0.05, -0.55; log-probs of the responses -3, -4, -5", -0.35,
        log_probs=[[-1.0, -2.0], [-4.0, 9.0], [-2.0, -3.0]], advantages=[[0.5], [0.05], [-0.55]],
        mask=lengths(2, 1, 2),
    ),
    random=some("log_probs advantages=advantages_of_rows mask"),
    constants="advantages",
    mistakes="""
        .sum(1) -> .sum(1) / mask.sum(1)
            you divide by the length of the response. The log-probability of a response is the sum over its
            tokens, undivided.
        .mean() -> .sum() / mask.sum()
            you average over all tokens. Sum over the tokens of a response, average over responses.
        return - -> return
            the minus is missing: an optimizer minimises.
        torch.where(mask, log_probs, 0.0) -> log_probs
            the padding takes part: use the mask.
        .mean() -> .sum()
            you add up the responses: take their mean.
        advantages[:, 0] -> advantages
            (N, 1) times (N,) broadcasts to (N, N): every advantage meets every response. Give both the
            same shape.
        * of_response -> * of_response.exp()
            you take the probability of the response. REINFORCE wants its logarithm.
    """,
)  # fmt: skip
def rloo_loss(log_probs, advantages, mask):
    """From log_probs (N, T), advantages (N, 1) and mask (N, T), compute minus the mean over
    responses of advantage times the sum of the response's log-probs, a scalar."""
    of_response = torch.where(mask, log_probs, 0.0).sum(1)  # log pi(y | x), (N,)
    return -(advantages[:, 0] * of_response).mean()


@exercise(
    case(
        "token ratios 1.6 and 1.6", [[2.56]],
        log_probs=logs([[0.8, 0.8]]), old_log_probs=logs([[0.5, 0.5]]), mask=lengths(2),
    ),
    case(
        "token ratios 4 and 1/2, then padding; and one token", [[2.0], [0.5]],
        log_probs=logs([[0.8, 0.2, 0.9], [0.1, 0.9, 0.9]]),
        old_log_probs=logs([[0.2, 0.4, 0.1], [0.2, 0.1, 0.1]]), mask=lengths(2, 1, columns=3),
    ),
    random=some("log_probs old_log_probs mask"),
    constants="log_probs old_log_probs",
    mistakes="""
        log_ratio.sum(1, keepdim=True).exp() -> (log_ratio.exp() * mask).sum(1, keepdim=True)
            you add the token ratios up. Probabilities of tokens multiply: add their logarithms.
        log_ratio.sum(1, keepdim=True) -> (log_ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True))
            this is the geometric mean of the token ratios, GSPO's choice. The importance weight is the
            product: do not divide by the length.
        log_ratio.sum(1, keepdim=True).exp()
        -> (log_ratio.exp() * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
            this is the mean of the token ratios. The importance weight of the answer is their product.
        torch.where(mask, log_probs - old_log_probs, 0.0) -> log_probs - old_log_probs
            the padding takes part: use the mask.
        log_probs - old_log_probs -> old_log_probs - log_probs
            your ratio is old / new. The old policy has sampled, so it is the denominator.
        .sum(1, keepdim=True).exp() -> .sum(1, keepdim=True)
            this is the logarithm of the weight: the exponential is missing.
        log_ratio.sum(1, keepdim=True).exp() -> (log_ratio.exp() * mask).prod(1, keepdim=True)
            the padding has a factor of 0, so the product is 0. Mask the logarithms before you add them.
    """,
)  # fmt: skip
def answer_ratio(log_probs, old_log_probs, mask):
    """From log_probs and old_log_probs (N, T) and the mask (N, T) compute the importance weight
    pi(y) / pi_old(y) of each answer, (N, 1)."""
    log_ratio = torch.where(mask, log_probs - old_log_probs, 0.0)
    return log_ratio.sum(1, keepdim=True).exp()


# Ratios 0.5, 1 and 4: the first is below any lower bound, the last one above the upper bound.
THREE_TOKENS = {"log_probs": logs([[0.1, 0.2, 0.8]]), "old_log_probs": logs([[0.2, 0.2, 0.2]])}


@exercise(
    case(
        "ratios 0.5, 1 and 4, bound 1.2, A = +1", [[1.151293, 1.609438, 0.267772]],
        **THREE_TOKENS, advantages=[[1.0]], clip_high=0.2,
    ),
    case(
        "the same with A = -1", [[-1.151293, -1.609438, -0.267772]],
        **THREE_TOKENS, advantages=[[-1.0]], clip_high=0.2,
    ),
    case(
        "the same with a bound of 3", [[-1.151293, -1.609438, -0.669431]],
        **THREE_TOKENS, advantages=[[-1.0]], clip_high=2.0,
    ),
    random=some("log_probs old_log_probs advantages=advantages_of_rows", clip_high=(0.1, 1.0)),
    constants="old_log_probs advantages",
    mistakes="""
        ratio.clamp(max=1 + clip_high).detach() -> ratio.clamp(max=1 + clip_high)
            the numbers are right, but a gradient flows through the weight. Detach it: it says how much a
            token counts, and log pi alone is what is trained.
        advantages * log_probs -> advantages
            your loss is -w A, in which nothing is left to differentiate. CISPO multiplies the weight with
            log pi.
        clamp(max=1 + clip_high) -> clamp(1 - clip_high, 1 + clip_high)
        clamp(max=1 + clip_high) -> clamp(0.8, 1 + clip_high)
            you clip the weight from below as well. CISPO holds it only from above.
        ratio.clamp(max=1 + clip_high) -> ratio
            the weight is not clipped: a token that has moved far would pull as far.
        max=1 + clip_high -> max=clip_high
            your bound is clip_high. It is relative to a ratio of 1: the weight ends at 1 + clip_high.
        log_probs - old_log_probs -> old_log_probs - log_probs
            your ratio is old / new. It is the policy in training over the one that sampled.
        return -weight -> return weight
            this is what is maximised. A loss needs a minus in front.
        -weight * advantages * log_probs
        -> -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_high, 1 + clip_high) * advantages)
        -weight * advantages * log_probs
        -> -torch.minimum(ratio * advantages, ratio.clamp(max=1 + clip_high) * advantages)
            this is PPO's clipped loss, in which a clipped token loses its gradient. CISPO clips the weight
            alone, and every token keeps the gradient of its log pi.
        (log_probs - old_log_probs).exp() -> log_probs - old_log_probs
            you forgot the exponential: log_probs - old_log_probs is the logarithm of the ratio.
    """,
)  # fmt: skip
def cispo(log_probs, old_log_probs, advantages, clip_high):
    """Compute -w A log pi per token, (N, T), with the weight w = min(pi / pi_old, 1 + clip_high)
    held constant (no gradient through it), and advantages (N, 1)."""
    ratio = (log_probs - old_log_probs).exp()
    weight = ratio.clamp(max=1 + clip_high).detach()
    return -weight * advantages * log_probs
