"""From token losses to one number, the whole of GRPO's, and the critic's."""

import torch

from conformance.batches import Arguments, number, some
from course.exercises.entries import case, exercise, lengths, logs


@exercise(
    case(
        "losses 1, 2, 3 and 4, in answers of three tokens and of one", 3.0,
        loss=[[1.0, 2.0, 3.0], [4.0, 9.0, 9.0]], mask=lengths(3, 1),
    ),
    case("one answer of two tokens, losses 1 and 2", 1.5, loss=[[1.0, 2.0]], mask=lengths(2)),
    case("inf in the padding", 1.5, loss=[[1.0, 2.0, torch.inf]], mask=lengths(2, columns=3)),
    random=some("loss=loss_or_inf mask"),
    mistakes="""
        per_answer.mean() -> torch.where(mask, loss, 0.0).sum() / mask.sum()
            you average over all tokens at once, so a long answer counts more. (That is DAPO's choice.)
            GRPO takes the mean of each answer first.
        mask.sum(1) -> mask.shape[1]
            you divide by T, the padded length. Divide by the answer's own length, mask.sum(1).
        per_answer.mean() -> loss.mean()
            you forgot the mask: the numbers in the padding take part.
        torch.where(mask, loss, 0.0) -> (loss * mask)
            right where the padding holds numbers, but inf times 0 is NaN. Choose by torch.where.
        torch.where(mask, loss, 0.0) -> loss
            you divide by the right length, but the sum still runs over the padding.
        .sum(1) / mask.sum(1) -> .sum(1)
            you sum over the tokens of an answer without dividing by its length. (RLOO does that.)
        per_answer.mean() -> per_answer.sum()
            the numbers of the answers are right, but you add them up. Take their mean.
    """,
)  # fmt: skip
def sequence_mean(loss, mask):
    """From loss (N, T) and mask (N, T), compute the mean over the True tokens of each answer,
    then the mean of those N numbers."""
    per_answer = torch.where(mask, loss, 0.0).sum(1) / mask.sum(1)  # (N,)
    return per_answer.mean()


def one_part(generator: torch.Generator) -> Arguments:
    ranks = number(generator, 1, 4)
    return some("loss=x mask")(generator) | {
        "parts": number(generator, 1, 5),
        "responses": torch.randint(6, 12, (ranks,), generator=generator),
        "rank": number(generator, 0, ranks),
    }


@exercise(
    case(
        "one rank, three of four responses, with the losses 1, 2 and 3", 1.5,
        loss=[[1.0, 1.0], [2.0, 9.0], [3.0, 3.0]], mask=lengths(2, 1, 2), parts=2,
        responses=[4], rank=0,
    ),
    case(
        "one rank, the fourth response, with the loss 6", 1.5,
        loss=[[6.0, 6.0]], mask=lengths(2), parts=2, responses=[4], rank=0,
    ),
    case(
        "two ranks, this one has one response of four, with the loss 6: the average with 3 is 3", 3.0,
        loss=[[6.0, 6.0]], mask=lengths(2), parts=1, responses=[3, 1], rank=1,
    ),
    case(
        "of two responses one was left out, with no token in the mask: its mean counts as 0", 0.75,
        loss=[[1.0, 2.0], [9.0, 9.0]], mask=lengths(2, 0), parts=1, responses=[2], rank=0,
    ),
    random=one_part,
    mistakes="""
        per_answer.sum() / responses.sum() * len(responses) -> per_answer.mean()
            you divide by the responses of the micro-batch. Added up, the means of all parts grow with the
            number of parts, and a response in a small part weighs more: divide by the responses of the
            whole step.
        per_answer.sum() / responses.sum() * len(responses) -> per_answer.mean() / parts
            this is the mean of means: each micro-batch weighs the same, so a response in a small one weighs
            more. Divide its sum by the responses of the whole step.
        per_answer.sum() / responses.sum() * len(responses) -> per_answer.sum() / responses[rank]
            you divide by the responses of this rank. The average over the ranks is then a mean of means: a
            response on a rank with few of them weighs more. Count those of all ranks.
        responses.sum() * len(responses) -> responses.sum()
            you divide by all responses, which is right where the ranks' gradients are added up. Here they
            are averaged, which divides once more: multiply by the number of ranks.
        responses.sum() * len(responses) -> responses.sum() / len(responses)
            you divide by the number of ranks. The average over the ranks does that already, and all
            responses are counted: multiply.
        per_answer.sum() / responses.sum() * len(responses) -> per_answer.mean() / responses.sum()
            you divide twice, by the responses of the part and by those of the step.
        per_answer.sum() / responses.sum() * len(responses)
        -> torch.where(mask, loss, 0.0).sum() / mask.sum()
            you take the mean over the tokens of the part: divide within each response first, then by the
            responses of the whole step.
        per_answer.sum() / responses.sum() * len(responses) -> per_answer.sum()
            you do not divide by the responses: with a larger batch the gradient would grow.
        mask.sum(1).clamp(min=1) -> mask.shape[1]
            you divide by T, the padded length. Divide by the answer's own length, mask.sum(1).
        mask.sum(1).clamp(min=1) -> mask.sum(1)
            a row that was left out has no tokens, and 0 / 0 is NaN: divide by 1 there.
        responses.sum() * len(responses) -> responses.sum() * len(responses) / parts
            you divide by the number of parts as well. All responses are counted already, and the parts are
            added up.
    """,
)  # fmt: skip
def part_of_the_loss(loss, mask, parts, responses, rank):
    """From the token losses (n, T) and the mask (n, T) of a micro-batch, one of `parts` of this
    `rank`, and the number of `responses` of each rank, (R,), compute its share of the mean over
    all responses of their means over tokens, a scalar. The gradients of the parts are added
    up, those of the ranks averaged."""
    per_answer = torch.where(mask, loss, 0.0).sum(1) / mask.sum(1).clamp(min=1)  # (n,)
    return per_answer.sum() / responses.sum() * len(responses)


@exercise(
    case(
        "a response of 4 tokens with loss 1 each, and one token with loss 6", 2.0,
        loss=[[1.0, 1.0, 1.0, 1.0], [6.0, 9.0, 9.0, 9.0]], mask=lengths(4, 1),
    ),
    case("no padding at all", 3.0, loss=[[1.0, 2.0, 3.0, 6.0]], mask=lengths(4)),
    case("inf in the padding", 1.5, loss=[[1.0, 2.0, torch.inf]], mask=lengths(2, columns=3)),
    random=some("loss=loss_or_inf mask"),
    kit="scalar",
    mistakes="""
        valid.sum() / mask.sum() -> (valid.sum(1) / mask.sum(1)).mean()
            you average within each response first. That is GRPO's sequence mean, under which a token of a
            long response weighs less.
        / mask.sum() -> / len(mask)
            you divide by the number of responses. Then a batch of long responses takes longer steps:
            divide by the number of tokens.
        torch.where(mask, loss, 0.0) -> (loss * mask)
            right where the padding holds numbers, but inf times 0 is NaN. Choose by torch.where, or
            loss[mask].
    """,
)  # fmt: skip
def token_mean(loss, mask):
    """From token losses (N, T) and their bool mask (N, T), compute the mean over all tokens of
    the batch where the mask is True: a scalar."""
    valid = torch.where(mask, loss, 0.0)
    return valid.sum() / mask.sum()


@exercise(
    case(
        "the two answers of section 2", -0.037284,
        log_probs=[[-1.0, -0.5, -2.0], [-0.7, -1.2, 9.0]],
        old_log_probs=[[-1.2, -0.5, -1.8], [-0.7, -0.9, 9.0]],
        ref_log_probs=[[-1.1, -0.6, -2.0], [-0.5, -1.2, 9.0]], advantages=[[0.7071], [-0.7071]],
        mask=lengths(3, 2), eps=0.2, beta=0.04,
    ),
    case(
        "A = 0: the KL alone, of a token with the probability 0.1, and 0.4 under the reference",
        1.613706, log_probs=logs([[0.1]]), old_log_probs=logs([[0.1]]),
        ref_log_probs=logs([[0.4]]), advantages=[[0.0]], mask=lengths(1), eps=0.2, beta=1.0,
    ),
    case(
        "tokens that went the wrong way: A = +1 with the ratio 0.5, A = -1 with 1.5: not clipped",
        0.5, log_probs=logs([[0.1], [0.3]]), old_log_probs=logs([[0.2], [0.2]]),
        ref_log_probs=logs([[0.1], [0.3]]), advantages=[[1.0], [-1.0]], mask=lengths(1, 1),
        eps=0.2, beta=0.04,
    ),
    random=some(
        "log_probs old_log_probs ref_log_probs advantages=advantages_of_rows mask",
        eps=(0.1, 0.4), beta=(0.05, 0.5),
    ),
    constants="old_log_probs ref_log_probs advantages",
    mistakes="""
        + beta * k3 -> - beta * k3
            the KL has the wrong sign: this loss falls when the policy leaves the reference.
        -surrogate + beta * k3 -> surrogate - beta * k3
            this is the objective, which is maximised. An optimizer minimises: flip the sign.
        -surrogate + beta * k3 -> surrogate + beta * k3
            the surrogate lacks its minus, while the KL is right: good answers would become less likely.
        (per_token.sum(1) / mask.sum(1)).mean() -> per_token.sum() / mask.sum()
            you average over all tokens at once. GRPO takes the mean of each answer first, then the mean of
            the answers.
        mask.sum(1) -> mask.shape[1]
            you divide by T, the padded length. Divide by the answer's own length, mask.sum(1).
        torch.minimum(ratio * advantages, clipped * advantages) -> ratio * advantages
            nothing is clipped: the ratio may go as far as it likes.
        torch.minimum -> torch.maximum
            you take the larger of the two products. The surrogate is pessimistic: the smaller one.
        torch.minimum(ratio * advantages, clipped * advantages) -> clipped * advantages
            you use the clipped ratio alone. Then a token that went the wrong way past the clip gets no
            gradient and never comes back. Take the minimum of both products.
        -surrogate + beta * k3 -> -surrogate
            the KL term is missing: nothing holds the policy near the reference.
        ref_log_probs - log_probs -> old_log_probs - log_probs
            your KL is measured from the old policy. It is the reference that must not be left.
        log_probs - old_log_probs -> log_probs - ref_log_probs
            your ratio is pi / pi_ref. It compares with the policy that sampled: old_log_probs.
        log_probs - old_log_probs -> old_log_probs - log_probs
            your ratio is old / new. It is the policy in training over the one that sampled.
        delta.exp() - delta - 1 -> -delta
            your KL term is k1. In the loss GRPO uses k3: the gradient of k1 is 0 on average.
        ref_log_probs - log_probs -> log_probs - ref_log_probs
            your k3 is upside down: delta is log pi_ref - log pi, because the samples come from the policy.
        (per_token.sum(1) / mask.sum(1)).mean() -> (-surrogate + beta * k3).mean()
            the padding takes part. Use the mask, in the sum and in the length.
        (log_probs - old_log_probs).exp() -> (log_probs - old_log_probs)
            you forgot the exponential: log_probs - old_log_probs is the logarithm of the ratio.
        (log_probs - old_log_probs).exp() -> (log_probs - old_log_probs).exp().detach()
            the numbers are right, but the ratio is detached: only the KL would be trained.
        ratio.clamp(1 - eps, 1 + eps) -> ratio.clamp(max=1 + eps)
            you clip from above alone. A bad token that has become rare enough has a ratio below 1 - eps.
        torch.minimum(ratio * advantages, clipped * advantages)
        -> torch.minimum(ratio * advantages, (ratio * advantages).clamp(1 - eps, 1 + eps))
        torch.minimum(ratio * advantages, clipped * advantages)
        -> (ratio * advantages).clamp(1 - eps, 1 + eps)
            you clip ratio times A. Clip the ratio, then multiply: the range 1 - eps ... 1 + eps is about
            it.
        + beta * k3 -> + k3
            beta is missing: the KL counts in full.
        delta.exp() - delta - 1 -> (delta.exp() - delta - 1).detach()
            the numbers are right, but k3 is detached: a term of the loss without a gradient does nothing.
        delta.exp() - delta - 1 -> delta.square() / 2
            your KL term is k2. GRPO's is k3.
        delta.exp() - delta - 1 -> delta.abs()
            your KL term is |k1|, which estimates another thing. GRPO's is k3.
        1 - eps, 1 + eps -> -eps, eps
            you clip the ratio to -eps ... eps. A ratio is near 1: clip it to 1 - eps ... 1 + eps.
        .mean() -> .sum()
            the numbers of the answers are right, but you add them up. Take their mean.
        clipped * advantages -> clipped
            the clipped branch lacks the advantage: both products of the minimum have A.
        (per_token.sum(1) / mask.sum(1)).mean()
        -> (-torch.where(mask, surrogate, 0.0).sum(1) / mask.sum(1)).mean() + beta * k3[mask].mean()
            you average the KL over all tokens at once. It has the same two means as the surrogate.
    """,
)  # fmt: skip
def grpo_loss(log_probs, old_log_probs, ref_log_probs, advantages, mask, eps, beta):
    """From log_probs, old_log_probs and ref_log_probs (N, T), advantages (N, 1), mask (N, T), eps
    and beta, compute the mean over answers of the mean over tokens of
    -min(ratio A, clip(ratio) A) + beta k3."""
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - eps, 1 + eps)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    delta = ref_log_probs - log_probs
    k3 = delta.exp() - delta - 1
    per_token = torch.where(mask, -surrogate + beta * k3, 0.0)
    return (per_token.sum(1) / mask.sum(1)).mean()


@exercise(
    case(
        "A = -1: a bad token at ratio 6 pulls as hard as one at ratio 3, and one at 2 is as before",
        [[3.0, 2.0, 0.8]],
        log_probs=logs([[0.6, 0.4, 0.1]]), old_log_probs=logs([[0.1, 0.2, 0.2]]),
        advantages=[[-1.0]], clip=0.2, most=3.0,
    ),
    case(
        "A = +2: a good token is clipped as before at ratio 1.5 and at 4, and is pulled back up at 0.5",
        [[-2.4, -2.4, -1.0]],
        log_probs=logs([[0.6, 0.4, 0.1]]), old_log_probs=logs([[0.4, 0.1, 0.2]]),
        advantages=[[2.0]], clip=0.2, most=3.0,
    ),
    random=some(
        "log_probs old_log_probs advantages=advantages_of_rows clip", most=(1.5, 2.5)
    ),
    constants="old_log_probs advantages",
    mistakes="""
        ratio.clamp(max=most) * advantages -> ratio * advantages
            nothing has changed yet: a bad token that has become six times as likely pulls six times as
            hard. Which of the two products does the minimum take there?
        ratio.clamp(max=most) -> ratio.clamp(1 - clip, most)
            you bound the ratio from below as well. A good token that has become less likely is no longer
            pulled up: a lower bound belongs to the clipped product alone.
        torch.minimum(ratio.clamp(max=most) * advantages, clipped * advantages)
        -> ratio.clamp(max=most) * advantages
            the clip is gone: good tokens are pushed on until the new bound.
        ratio.clamp(1 - clip, 1 + clip) -> ratio.clamp(1 - clip, most)
            you have given good tokens more room: they are pushed on until the new bound. The bound is for
            bad ones, which the clip does not hold from above.
        ratio.clamp(max=most) * advantages -> (ratio * advantages).clamp(min=-most)
            you bound ratio times A, which is right for A = -1 alone. Bound the ratio, then multiply.
        ratio.clamp(max=most) -> (ratio.clamp(max=most) / ratio).detach() * ratio
            the numbers are right, but a token beyond the bound is still pushed. A plain clamp has no
            gradient there.
        return -gain -> return gain
            this is the objective, which is maximised. The line to change is another one.
    """,
)  # fmt: skip
def bounded_pull(log_probs, old_log_probs, advantages, clip, most):
    """From log_probs and old_log_probs (N, T), advantages (N, 1), clip and most, compute the clipped
    surrogate's loss of each token, (N, T), in which no bad token counts with a ratio above `most`."""
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    gain = torch.minimum(ratio.clamp(max=most) * advantages, clipped * advantages)
    return -gain


@exercise(
    case(
        "values that have moved from 0.2 to 0.6, advantages 0.8: the target is still 1", 0.08,
        values=[[0.6, 0.6]], old_values=[[0.2, 0.2]], advantages=[[0.8, 0.8]], mask=lengths(2),
    ),
    case(
        "a critic that has arrived: V = V_old + A", 0.0,
        values=[[1.0, 2.0], [0.5, 9.0]], old_values=[[0.5, 2.5], [0.0, 0.0]],
        advantages=[[0.5, -0.5], [0.5, 0.0]], mask=lengths(2, 1),
    ),
    random=some("values old_values advantages=x mask"),
    constants="old_values advantages",
    mistakes="""
        advantages + old_values -> advantages + values
            your target holds the critic in training, with its gradient: V - (A + V) is -A whatever V is,
            and no gradient is left. Take the old values.
        advantages + old_values -> advantages + values.detach()
            your target moves with the critic: it is always A away, so the critic passes the truth and goes
            on. Take the values from before the first update.
        advantages + old_values -> advantages
            your target is the advantage alone, what the critic got wrong: a critic that is right would be
            taught to say 0. Add the old value.
        advantages + old_values
        -> (advantages - advantages[mask].mean()) / advantages[mask].std() + old_values
            you whiten the advantages first. That is for the policy; the critic's target is in the units of
            the reward.
        (values - returns)[mask] -> (values - returns)
            the padding takes part: take the positions where the mask is True.
        .mean() / 2 -> .mean()
            the half in front is missing.
        .mean() / 2 -> .sum() / 2
            you add the tokens up: take their mean.
        ((values - returns)[mask] ** 2).mean() / 2 -> ((values - returns) ** 2 * mask).mean() / 2
            the padding is 0 in your sum, but it counts in the mean: divide by the True positions, not by N
            T.
        ((values - returns)[mask] ** 2).mean() / 2
        -> (((values - returns) ** 2 * mask).sum(1) / mask.sum(1)).mean() / 2
            you average within each response first. Then a token of a short response weighs more: take one
            mean over all True positions.
    """,
)  # fmt: skip
def critic_loss(values, old_values, advantages, mask):
    """From values of the critic in training, old_values of the one that saw the rollout, and the
    advantages (not whitened), (N, T) each, compute half the mean over the True positions of the
    mask (N, T) of (V - return)^2, where the return is what the critic should say."""
    returns = advantages + old_values
    return ((values - returns)[mask] ** 2).mean() / 2
