"""The forward KL per position: the student is asked for all that the teacher would say."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from gpt.log_probs import kl_from_logits


def distillation_loss(student_logits, teacher_logits):
    log_q, log_p = student_logits.log_softmax(-1), teacher_logits.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


@mistake
def reverse(student, teacher):
    """this is the reverse KL(q || p): your weights are the student's. The forward KL is an average
    over what the *teacher* says."""
    return distillation_loss(teacher, student)


@mistake
def cross_entropy(student, teacher):
    """this is the cross-entropy. It has the right gradient, but its least value is the teacher's
    entropy: subtract that, or use log p - log q."""
    return -(teacher.softmax(-1) * student.log_softmax(-1)).sum(-1)


@mistake
def hard_label(student, teacher):
    """you ask for the teacher's likeliest symbol alone. Its whole distribution is the target."""
    return -student.log_softmax(-1).gather(-1, teacher.argmax(-1, keepdim=True))[:, 0]


@mistake
def not_normalised(student, teacher):
    """you subtract logits. They are log-probabilities only up to a constant of each row: take
    log_softmax first."""
    return (teacher.softmax(-1) * (teacher - student)).sum(-1)


@mistake
def wrong_sign(student, teacher):
    """the sign is flipped: a KL is never negative."""
    return -distillation_loss(student, teacher)


def logits(generator: torch.Generator) -> Arguments:
    size = int(torch.randint(2, 7, (1,), generator=generator))
    return {
        "student_logits": 2 * torch.randn(3, size, generator=generator) - 1,
        "teacher_logits": 2 * torch.randn(3, size, generator=generator),
    }


EXERCISE = Exercise(
    statement=(
        "Compute KL(p || q) = sum_v p(v) (log p(v) - log q(v)) of every row, (N,), with the student "
        "q = softmax(student_logits) and the teacher p = softmax(teacher_logits), both (N, V)."
    ),
    solution=distillation_loss,
    library=lambda student_logits, teacher_logits: kl_from_logits(
        teacher_logits.detach(), student_logits
    ),
    cases=(
        Case(
            "student 0.2, 0.5, 0.3 and teacher 0.5, 0.3, 0.2",
            {
                "student_logits": torch.tensor([[0.2, 0.5, 0.3]]).log(),
                "teacher_logits": torch.tensor([[0.5, 0.3, 0.2]]).log(),
            },
            [0.223805],
        ),
        Case(
            "the student is the teacher",
            {
                "student_logits": torch.tensor([[1.0, 2.0]]),
                "teacher_logits": torch.tensor([[3.0, 4.0]]),
            },
            [0.0],
        ),
    ),
    random=logits,
    gradient="student_logits",
)
