"""The KL divergence of two distributions, in the direction that is asked for."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from gpt.log_probs import kl_from_logits


def kl_divergence(p, q):
    says = p > 0  # what p never says costs nothing
    return (p[says] * (p[says].log() - q[says].log())).sum()


def by_the_library(p, q):
    return kl_from_logits(p.clamp(min=1e-30).log(), q.log())


@mistake
def other_direction(p, q):
    """this is KL(q || p), the other direction: you average over what q says."""
    return by_the_library(q, p)


@mistake
def sign_flipped(p, q):
    """the sign is turned round: a divergence is never negative. It is log p - log q."""
    return -kl_divergence(p, q)


@mistake
def in_bits(p, q):
    """right, but in bits. Nats are wanted: the natural logarithm."""
    return kl_divergence(p, q) / torch.tensor(2.0).log()


@mistake
def mean_for_sum(p, q):
    """you take the plain mean over the words. The weights p are the average already: sum."""
    return kl_divergence(p, q) / len(p)


@mistake
def not_weighted(p, q):
    """you add up the log-ratios of all words alike. Weigh each with p, how often p says it."""
    return (p.clamp(min=1e-30).log() - q.log()).sum()


@mistake
def cross_entropy(p, q):
    """this is the cross-entropy, -sum p log q. The entropy of p must come off: it is p's surprise
    at itself."""
    return -(p * q.log()).sum()


@mistake
def zero_times_infinity(p, q):
    """right where p is positive, but a word that p never says gives 0 * infinity = NaN. It costs
    nothing: leave it out of the sum."""
    return (p * (p.log() - q.log())).sum()


def two_distributions(generator: torch.Generator) -> Arguments:
    words = int(torch.randint(3, 8, (1,), generator=generator))
    p, q = torch.randn(2, words, generator=generator).softmax(-1)
    return {"p": p, "q": q}


EXERCISE = Exercise(
    statement=(
        "p and q are probabilities (V,), all of q above 0. Return KL(p || q) in nats, a number: "
        "the average of log p - log q over what p says."
    ),
    solution=kl_divergence,
    library=by_the_library,
    cases=(
        Case(
            "p = (1/2, 1/2), q = (1/4, 3/4)",
            {"p": torch.tensor([0.5, 0.5]), "q": torch.tensor([0.25, 0.75])},
            0.143841,
        ),
        Case(
            "the same two, turned round",
            {"p": torch.tensor([0.25, 0.75]), "q": torch.tensor([0.5, 0.5])},
            0.130812,
        ),
        Case(
            "a word that p never says",
            {"p": torch.tensor([1.0, 0.0]), "q": torch.tensor([0.5, 0.5])},
            0.693147,
        ),
    ),
    random=two_distributions,
)
