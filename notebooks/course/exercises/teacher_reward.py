"""A teacher's reward of a response: how much likelier it finds the text than the student does."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations.losses import row_sums
from rl.equations.token_rewards import teacher_rewards


def teacher_reward(teacher_log_probs, log_probs, mask):
    return ((teacher_log_probs - log_probs) * mask).sum(1)


def by_the_library(teacher_log_probs, log_probs, mask):
    return row_sums(teacher_rewards(teacher_log_probs, log_probs, mask, reverse_kl=True), mask)


@mistake
def log_p_alone(p, q, mask):
    """this is the sum of log p alone. Every token costs something under it, so the best response is
    to say nothing: subtract log q."""
    return (p * mask).sum(1)


@mistake
def mean_per_token(p, q, mask):
    """you take the mean per token. The sum is what estimates -KL(q || p) of responses."""
    return ((p - q) * mask).sum(1) / mask.sum(1)


@mistake
def wrong_way_round(p, q, mask):
    """this is log q / p: it pays for text that the teacher does not like."""
    return ((q - p) * mask).sum(1)


@mistake
def padding_counted(p, q, mask):
    """padding is counted: multiply by the mask before you add up."""
    return (p - q).sum(1)


@mistake
def probabilities(p, q, mask):
    """you subtract probabilities. The reward is the difference of *log*-probabilities."""
    return ((p.exp() - q.exp()) * mask).sum(1)


EXERCISE = Exercise(
    statement=(
        "Compute sum_t (log p(y_t) - log q(y_t)) of each response, (N,), over the tokens where mask "
        "is True. p is the teacher, q the student that sampled; log-probs are (N, T)."
    ),
    solution=teacher_reward,
    library=by_the_library,
    cases=(
        Case(
            "two tokens: one that both find as likely, one that the teacher finds half as likely",
            {
                "teacher_log_probs": torch.tensor([[0.5, 0.25, 0.9]]).log(),
                "log_probs": torch.tensor([[0.5, 0.5, 0.1]]).log(),
                "mask": torch.tensor([[True, True, False]]),
            },
            [-0.693147],
        ),
    ),
    random=some("teacher_log_probs=ref_log_probs log_probs mask"),
    mask="mask",
)
