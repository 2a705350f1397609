"""MiniLLM's weight of a token that was drawn from a mixture of teacher and student."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations import losses as library


def mixed_sample_weight(student_log_probs, teacher_log_probs, alpha):
    q, p = student_log_probs.exp(), teacher_log_probs.exp()
    return q / (alpha * p + (1 - alpha) * q)


def by_the_library(student_log_probs, teacher_log_probs, alpha):
    everywhere = torch.ones_like(student_log_probs, dtype=torch.bool)
    return library.mixed_sampling_weights(student_log_probs, teacher_log_probs, everywhere, alpha)


@mistake
def upside_down(q, p, alpha):
    """your weight is upside down. A sample counts by (what it should have been drawn from) / (what
    it was drawn from): the student over the mixture."""
    return 1 / mixed_sample_weight(q, p, alpha)


@mistake
def alpha_on_the_student(q, p, alpha):
    """alpha is the teacher's share of the mixture; you give it to the student."""
    return mixed_sample_weight(q, p, 1 - alpha)


@mistake
def teacher_on_top(q, p, alpha):
    """the teacher stands on top of your fraction. The gradient is an average over the *student's*
    text, so the student does."""
    return p.exp() / (alpha * p.exp() + (1 - alpha) * q.exp())


@mistake
def mixture_of_log_probs(q, p, alpha):
    """you mix log-probabilities. The token was drawn from a mixture of *probabilities*: take the
    exponentials first."""
    return (q - (alpha * p + (1 - alpha) * q)).exp()


@mistake
def log_probs_divided(q, p, alpha):
    """you divide log-probabilities as if they were probabilities: take the exponentials first."""
    return q / (alpha * p + (1 - alpha) * q)


EXERCISE = Exercise(
    statement=(
        "A token was drawn from alpha p + (1 - alpha) q, with p the teacher and q the student. "
        "Compute its importance weight q / (alpha p + (1 - alpha) q) from log-probs (N, T)."
    ),
    solution=mixed_sample_weight,
    library=by_the_library,
    cases=(
        Case(
            "q 0.5, p 0.25 and alpha 0.2; then a token that the teacher never says",
            {
                "student_log_probs": torch.tensor([[0.5, 0.5]]).log(),
                "teacher_log_probs": torch.tensor([[0.25, 1e-6]]).log(),
                "alpha": 0.2,
            },
            [[1.111111, 1.25]],
        ),
        Case(
            "teacher and student agree",
            {
                "student_log_probs": torch.tensor([[-2.0]]),
                "teacher_log_probs": torch.tensor([[-2.0]]),
                "alpha": 0.7,
            },
            [[1.0]],
        ),
    ),
    random=some("student_log_probs=log_probs teacher_log_probs=ref_log_probs", alpha=0.2),
)
