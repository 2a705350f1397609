"""k3, the KL estimate of one sampled token that is never negative."""

from conformance.kinds import KINDS
from course.exercises import Exercise, mistake, shared, some
from rl.equations import kl as library


def k3(log_probs, ref_log_probs):
    delta = ref_log_probs - log_probs  # log(pi_ref / pi)
    return delta.exp() - delta - 1


@mistake
def only_k1(log_probs, ref_log_probs):
    """this is k1, log pi - log pi_ref. Its mean is the KL as well, but it may be negative."""
    return log_probs - ref_log_probs


@mistake
def half_the_square(log_probs, ref_log_probs):
    """this is k2, half the square of the log-ratio. It is close to k3 near 0, and biased."""
    return (log_probs - ref_log_probs).square() / 2


EXERCISE = Exercise(
    statement=(
        "From log_probs and ref_log_probs (N, T) of the sampled tokens, compute "
        "pi_ref / pi - log(pi_ref / pi) - 1 per token, (N, T)."
    ),
    solution=k3,
    library=library.k3,
    cases=KINDS["kl"].cases[1:],
    random=some("log_probs ref_log_probs"),
    gradient="log_probs",
    mistakes=shared("kl", "upside_down one_too_many plus_delta wrong_sign without_gradient"),
)
