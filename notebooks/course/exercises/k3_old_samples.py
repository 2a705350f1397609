"""k3 for samples of an older policy: the importance ratio, differentiated as well."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations.kl import k3_importance


def k3_old_samples(log_probs, old_log_probs, ref_log_probs):
    ratio = (log_probs - old_log_probs).exp()
    delta = ref_log_probs - log_probs
    return ratio * (delta.exp() - delta - 1)


def k3(log_probs, ref_log_probs):
    delta = ref_log_probs - log_probs
    return delta.exp() - delta - 1


@mistake
def ratio_is_a_constant(lp, old, ref):
    """the numbers are right, but the ratio is detached. Its gradient is the part that says which
    tokens should be drawn less often."""
    return (lp - old).exp().detach() * k3(lp, ref)


@mistake
def no_ratio(lp, old, ref):
    """this is plain k3, for samples of the policy itself. These come from an older one: multiply by
    pi / pi_old."""
    return k3(lp, ref)


@mistake
def ratio_upside_down(lp, old, ref):
    """your ratio is pi_old / pi. It is the policy in training over the one that sampled."""
    return (old - lp).exp() * k3(lp, ref)


@mistake
def delta_turned(lp, old, ref):
    """your delta has the wrong sign: it is log pi_ref - log pi. With the other one this estimates a
    chi-square, not a KL."""
    return (lp - old).exp() * k3(ref, lp)


@mistake
def k1_for_k3(lp, old, ref):
    """this is rho k1: right on average too, but it may be negative and scatters more."""
    return (lp - old).exp() * (lp - ref)


EXERCISE = Exercise(
    statement=(
        "Compute rho k3 per token, (N, T), with rho = pi / pi_old, delta = log pi_ref - log pi and "
        "k3 = exp(delta) - delta - 1. All three arguments are (N, T) log-probs of the sampled "
        "tokens."
    ),
    solution=k3_old_samples,
    library=k3_importance,
    cases=(
        Case(
            "probability 0.5, sampled at 0.25, reference 0.25",
            {
                "log_probs": torch.tensor([[0.5]]).log(),
                "old_log_probs": torch.tensor([[0.25]]).log(),
                "ref_log_probs": torch.tensor([[0.25]]).log(),
            },
            [[0.386294]],
        ),
        Case(
            "policy and reference agree",
            {
                "log_probs": torch.tensor([[-1.0]]),
                "old_log_probs": torch.tensor([[-2.0]]),
                "ref_log_probs": torch.tensor([[-1.0]]),
            },
            [[0.0]],
        ),
    ),
    random=some("log_probs old_log_probs ref_log_probs"),
    gradient="log_probs",
)
