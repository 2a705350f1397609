"""What a KL is, its estimates, and where it stands: in the reward or in the loss."""

import torch

from conformance.batches import Arguments, number, some
from course.exercises.entries import case, exercise, lengths, logs


def two_distributions(generator: torch.Generator) -> Arguments:
    p, q = torch.randn(2, number(generator, 3, 8), generator=generator).softmax(-1)
    return {"p": p, "q": q}


@exercise(
    case("p = (1/2, 1/2), q = (1/4, 3/4)", 0.143841, p=[0.5, 0.5], q=[0.25, 0.75]),
    case("the same two, turned round", 0.130812, p=[0.25, 0.75], q=[0.5, 0.5]),
    case("a word that p never says", 0.693147, p=[1.0, 0.0], q=[0.5, 0.5]),
    random=two_distributions,
    constants="p q",
    mistakes="""
        (p[says] * (p[says].log() - q[says].log())).sum() -> (q * (q.log() - p.log())).sum()
            this is KL(q || p), the other direction: you average over what q says.
        p[says].log() - q[says].log() -> q[says].log() - p[says].log()
            the sign is turned round: a divergence is never negative. It is log p - log q.
        .sum() -> .sum() / torch.tensor(2.0).log()
            right, but in bits. Nats are wanted: the natural logarithm.
        .sum() -> .sum() / len(p)
            you take the plain mean over the words. The weights p are the average already: sum.
        p[says] * ( -> (
            you add up the log-ratios of all words alike. Weigh each with p, how often p says it.
        p[says].log() - q[says].log() -> -q[says].log()
            this is the cross-entropy, -sum p log q. Take p's surprise at itself off.
        (p[says] * (p[says].log() - q[says].log())).sum()
        -> torch.nn.functional.kl_div(p.log(), q, reduction="mean")
            F.kl_div(log of q, p) is KL(p || q): the first argument is the *second* distribution, as
            logarithms. You have the two the other way round, and a mean instead of the sum.
        (p[says] * (p[says].log() - q[says].log())).sum()
        -> torch.nn.functional.kl_div(p, q, reduction="sum")
        (p[says] * (p[says].log() - q[says].log())).sum()
        -> torch.nn.functional.kl_div(q, p, reduction="sum")
            F.kl_div takes its first argument as log-probabilities: F.kl_div(q.log(), p, reduction="sum").
        p > 0 -> p >= 0
            right where p is positive, but a word that p never says gives 0 * infinity = NaN. It costs
            nothing: leave it out of the sum.
    """,
)
def kl_divergence(p, q):
    """p and q are probabilities (V,), all of q above 0. Return KL(p || q) in nats, a number:
    the average of log p - log q over what p says."""
    says = p > 0  # what p never says costs nothing
    return (p[says] * (p[says].log() - q[says].log())).sum()


@exercise(
    case(
        "three tokens, score 1, beta 0.1", [[-0.02, 0.05, 1.0]],
        scores=[1.0], log_probs=[[-1.0, -2.0, -0.5]], ref_log_probs=[[-1.2, -1.5, -0.5]],
        response_mask=lengths(3), kl_coef=0.1,
    ),
    case(
        "responses of 3 tokens and of 1", [[-0.02, -0.05, 1.01], [0.48, 0.0, 0.0]],
        scores=[1.0, 0.5], log_probs=[[-1.0, -0.5, -2.0], [-0.3, 9.0, 9.0]],
        ref_log_probs=[[-1.2, -1.0, -1.9], [-0.5, 5.0, 5.0]], response_mask=lengths(3, 1), kl_coef=0.1,
    ),
    random=some("scores log_probs ref_log_probs response_mask=mask", kl_coef=(0.05, 0.6)),
    constants="scores log_probs ref_log_probs",
    kit="token_rewards",
    mistakes="""
        response_mask.sum(1) - 1 -> response_mask.sum(1).clamp(max=response_mask.shape[1] - 1)
            the score stands one column after the last token: the index is response_mask.sum(1) - 1.
        += scores -> += (scores - scores.mean()) / scores.std()
            you scale the scores before the penalty is taken off. Then kl_coef is in deviations, as in
            GRPO's loss. In the reward both have the reward's unit, and are scaled together later.
        torch.where(response_mask, -kl_coef * (log_probs - ref_log_probs), 0.0)
        -> -kl_coef * (log_probs - ref_log_probs)
            right at every token, but the padding has a KL too. Outside of the mask it must be 0.
        += scores -> += kl_coef * scores
            you multiply the score by kl_coef as well. It belongs to the KL alone.
        += scores -> += scores / response_mask.sum(1)
            you divide the score by the length. It comes whole, at the last token.
    """,
)  # fmt: skip
def kl_in_reward(scores, log_probs, ref_log_probs, response_mask, kl_coef):
    """From scores (N,), log_probs and ref_log_probs (N, T) and response_mask (N, T), compute
    -kl_coef (log_probs - ref_log_probs) at every token, plus the score at the last True
    position; 0 in the padding."""
    rewards = torch.where(response_mask, -kl_coef * (log_probs - ref_log_probs), 0.0)
    last = response_mask.sum(1) - 1
    rewards[torch.arange(len(scores)), last] += scores
    return rewards


@exercise(
    case(
        "probabilities 0.5, 0.25, 0.1 and 0.25, 0.25, 0.4", [[0.193147, 0.0, 1.613706]],
        log_probs=logs([[0.5, 0.25, 0.1]]), ref_log_probs=logs([[0.25, 0.25, 0.4]]),
    ),
    case(
        "policy and reference agree", [[0.0, 0.0]],
        log_probs=logs([[0.5, 0.25]]), ref_log_probs=logs([[0.5, 0.25]]),
    ),
    random=some("log_probs ref_log_probs"),
    constants="ref_log_probs",
    kit="kl",
    mistakes="""
        delta.exp() - delta - 1 -> -delta
            this is k1, log pi - log pi_ref. Its mean is the KL as well, but it may be negative.
        delta.exp() - delta - 1 -> delta.square() / 2
            this is k2, half the square of the log-ratio. It is close to k3 near 0, and biased.
        delta.exp() - delta - 1 -> delta.abs()
            this is |k1|. Its mean is not the KL: a log-ratio of the other sign must take something off.
    """,
)  # fmt: skip
def k3(log_probs, ref_log_probs):
    """From log_probs and ref_log_probs (N, T) of the sampled tokens, compute
    pi_ref / pi - log(pi_ref / pi) - 1 per token, (N, T)."""
    delta = ref_log_probs - log_probs  # log(pi_ref / pi)
    return delta.exp() - delta - 1


def two_logits(generator: torch.Generator) -> Arguments:
    one, other = torch.randn(2, number(generator, 2, 7), generator=generator)
    return {"logits": one, "ref_logits": other}


@exercise(
    case(
        "probabilities 0.5, 0.3, 0.2 against 0.2, 0.5, 0.3", [0.346243, -0.220389, -0.125854],
        logits=logs([0.5, 0.3, 0.2]), ref_logits=logs([0.2, 0.5, 0.3]),
    ),
    case("at the reference nothing pulls", [0.0, 0.0], logits=[1.0, 0.0], ref_logits=[1.0, 0.0]),
    random=two_logits,
    constants="logits ref_logits",
    mistakes="""
        p * (d - (p * d).sum()) -> p - ref_logits.softmax(0)
            this is p - p_ref, the gradient of the *forward* KL, which k3 has in the loss. k2's slope at a
            symbol is d itself.
        d - (p * d).sum() -> d
            you left out the average of d. A probability that rises takes from all the others, so the
            gradient for logits adds up to 0: subtract sum_v p(v) d(v).
        return p * -> return 1 *
            you left out the factor p(j): a symbol that is hardly ever drawn hardly ever pulls.
        return p * -> return -p *
            the sign is flipped: the gradient points away from the reference, which a step goes against.
        return p * -> return 0 *
            this is 0 everywhere, which is what k1 has in the loss: there the slope is 1 for every symbol.
            k2's slope is d.
    """,
)  # fmt: skip
def k2_gradient(logits, ref_logits):
    """Symbols are drawn from p = softmax(logits). Compute sum_v p(v) d(v) grad log p(v), (V,),
    with d = log p - log p_ref. For softmax logits the average of d(v) grad log p(v) has at
    place j: p(j) (d(j) - sum_v p(v) d(v))."""
    p = logits.softmax(0)
    d = logits.log_softmax(0) - ref_logits.log_softmax(0)  # the slope of k2 = d^2 / 2
    return p * (d - (p * d).sum())


@exercise(
    case(
        "probability 0.5, sampled at 0.25, reference 0.25", [[0.386294]],
        log_probs=logs([[0.5]]), old_log_probs=logs([[0.25]]), ref_log_probs=logs([[0.25]]),
    ),
    case(
        "policy and reference agree", [[0.0]],
        log_probs=[[-1.0]], old_log_probs=[[-2.0]], ref_log_probs=[[-1.0]],
    ),
    random=some("log_probs old_log_probs ref_log_probs"),
    constants="old_log_probs ref_log_probs",
    mistakes="""
        (log_probs - old_log_probs).exp() -> (log_probs - old_log_probs).exp().detach()
            the numbers are right, but the ratio is detached. Its gradient is the part that says which
            tokens should be drawn less often.
        ratio * ( -> (
            this is plain k3, for samples of the policy itself. These come from an older one: multiply by
            pi / pi_old.
        log_probs - old_log_probs -> old_log_probs - log_probs
            your ratio is pi_old / pi. It is the policy in training over the one that sampled.
        ref_log_probs - log_probs -> log_probs - ref_log_probs
            your delta has the wrong sign: it is log pi_ref - log pi. With the other one this estimates a
            chi-square, not a KL.
        (delta.exp() - delta - 1) -> -delta
            this is rho k1: right on average too, but it may be negative and scatters more.
        ref_log_probs - log_probs -> ref_log_probs - old_log_probs
            your delta is measured from the old policy. The KL is between the policy in training and the
            reference: log pi_ref - log pi.
    """,
)  # fmt: skip
def k3_old_samples(log_probs, old_log_probs, ref_log_probs):
    """Compute rho k3 per token, (N, T), with rho = pi / pi_old, delta = log pi_ref - log pi and
    k3 = exp(delta) - delta - 1. All three arguments are (N, T) log-probs of the sampled
    tokens."""
    ratio = (log_probs - old_log_probs).exp()
    delta = ref_log_probs - log_probs
    return ratio * (delta.exp() - delta - 1)
