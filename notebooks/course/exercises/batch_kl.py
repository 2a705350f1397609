"""How far a batch has moved the policy: KL(old, new) per response, from samples of the old policy."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations.kl import rho_minus_log
from rl.equations.losses import row_sums


def batch_kl(new_log_probs, old_log_probs, mask):
    log_rho = new_log_probs - old_log_probs
    return ((log_rho.exp() - 1 - log_rho) * mask).sum(1).mean()


def estimate(new, old):
    return (new - old).exp() - 1 - (new - old)


@mistake
def per_token(new, old, mask):
    """this is the mean per *token*, smaller by the mean length. Add up the tokens of a response
    first."""
    return (estimate(new, old) * mask).sum() / mask.sum()


@mistake
def padding_counted(new, old, mask):
    """padding is counted: multiply by the mask before you add up."""
    return estimate(new, old).sum(1).mean()


@mistake
def k1(new, old, mask):
    """this is the mean of log rho. Under samples of the *old* policy it estimates -KL(old, new),
    and it may be negative."""
    return ((new - old) * mask).sum(1).mean()


@mistake
def upside_down(new, old, mask):
    """your ratio is old / new: that is k3, which fits samples of the new policy."""
    return (estimate(old, new) * mask).sum(1).mean()


@mistake
def sum_not_mean(new, old, mask):
    """you add up all responses. Take the mean over them."""
    return (estimate(new, old) * mask).sum()


EXERCISE = Exercise(
    statement=(
        "Compute the mean over responses of the sum over tokens of rho - 1 - log rho, with rho = "
        "pi_new / pi_old, where mask is True: one number, in nats per response."
    ),
    solution=batch_kl,
    library=lambda new_log_probs, old_log_probs, mask: row_sums(
        rho_minus_log(new_log_probs, old_log_probs), mask
    ).mean(),
    cases=(
        Case(
            "two tokens and one token, each twice as likely as before",
            {
                "new_log_probs": torch.full((2, 2), 0.4).log(),
                "old_log_probs": torch.full((2, 2), 0.2).log(),
                "mask": torch.tensor([[True, True], [True, False]]),
            },
            0.460279,
        ),
    ),
    random=some("new_log_probs=log_probs old_log_probs mask"),
)
