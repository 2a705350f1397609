"""Learning from pairs without sampling, and from a teacher."""

import torch
import torch.nn.functional as F

from conformance import batches
from conformance.batches import Arguments, number
from course.exercises.entries import case, exercise, logs

MOVED = {  # the gap is 1.5 nats
    "policy_chosen": [-10.0], "policy_rejected": [-12.0], "ref_chosen": [-11.0], "ref_rejected": [-11.5],
}  # fmt: skip
AGREE = {
    "policy_chosen": [-3.0], "policy_rejected": [-5.0], "ref_chosen": [-3.0], "ref_rejected": [-5.0],
}  # fmt: skip


@exercise(
    case("the gap is 1.5 nats, beta 0.1", [0.620957], **MOVED, beta=0.1),
    case("policy and reference agree", [0.693147], **AGREE, beta=0.5),
    case(
        "a pair that is 200 nats on the wrong side",
        [200.0],
        policy_chosen=[-210.0],
        policy_rejected=[-10.0],
        ref_chosen=[-10.0],
        ref_rejected=[-10.0],
        beta=1.0,
    ),
    random=batches.pairs,
    constants="ref_chosen ref_rejected",
    kit="preference_loss target_one_over_beta target_half_beta",
    mistakes="""
        -F.logsigmoid(beta * h) -> -beta * h
            the sigmoid is missing: this loss asks for a larger gap of every pair, without end.
        -F.logsigmoid(beta * h) -> -torch.sigmoid(beta * h).log()
        -F.logsigmoid(beta * h) -> (1 + (-beta * h).exp()).log()
            right for small gaps, but infinite for a pair that is far on the wrong side. F.logsigmoid takes
            the logarithm without the exponential.
        -F.logsigmoid(beta * h) -> -torch.sigmoid(beta * h)
            the logarithm is missing: this is minus the probability of the right verdict.
        beta * h -> h
            beta is missing: log sigmoid(beta h).
        h = (policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)
        -> h = (policy_chosen - ref_chosen).exp() - (policy_rejected - ref_rejected).exp()
            you subtract ratios of probabilities. h is the difference of their logarithms: no exp.
        beta * h -> h / beta
            you divide by beta. It multiplies: -log sigmoid(beta h).
    """,
)
def dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """Compute -log sigmoid(beta h), (pairs,), with h = (policy_chosen - ref_chosen) -
    (policy_rejected - ref_rejected). All four are (pairs,) log-probs of whole responses."""
    h = (policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)
    return -F.logsigmoid(beta * h)


@exercise(
    case("the gap is 1.5 nats, beta 0.1: the target is 5", [12.25], **MOVED, beta=0.1),
    case("policy and reference agree, beta 0.5: the target is 1", [1.0], **AGREE, beta=0.5),
    random=batches.pairs,
    constants="ref_chosen ref_rejected",
    mistakes="""
        h - 1 -> h + 1
            you add the target where it must be subtracted, so the gap is driven below 0: the wrong way.
        (policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)
        -> policy_chosen - policy_rejected
            you leave the reference out of the gap.
        (h - 1 / (2 * beta)) ** 2 -> -F.logsigmoid(beta * h)
            this is DPO's loss. IPO is a square: the distance of the gap from its target.
        1 / (2 * beta) -> 1 / beta
            your target is 1 / beta. It is half of that: 1 / (2 beta).
        1 / (2 * beta) -> beta / 2
            your target is beta / 2. It is 1 / (2 beta): a small beta is a weak hold on the reference, so
            the gap may become large.
        (h - 1 / (2 * beta)) ** 2 -> (beta * h - 0.5) ** 2
            you multiply by beta inside the square, so the loss is beta^2 times what it should be. The gap
            itself is compared with 1 / (2 beta).
        (h - 1 / (2 * beta)) ** 2 -> (h - 1 / (2 * beta)).abs()
            you take the distance itself: then a pair next to its target pulls as hard as one far away.
            Square it.
        1 / (2 * beta) -> 2 * beta
            the target is the inverse, 1 / (2 beta): a small beta lets the gap grow.
    """,
)
def ipo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """Compute (h - 1 / (2 beta))^2, (pairs,), with h = (policy_chosen - ref_chosen) -
    (policy_rejected - ref_rejected)."""
    h = (policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)
    return (h - 1 / (2 * beta)) ** 2


def two_models(generator: torch.Generator) -> Arguments:
    student, teacher = 2 * torch.randn(2, 3, number(generator, 2, 7), generator=generator)
    return {"student_logits": student - 1, "teacher_logits": teacher}


@exercise(
    case(
        "student 0.2, 0.5, 0.3 and teacher 0.5, 0.3, 0.2", [0.223805],
        student_logits=logs([[0.2, 0.5, 0.3]]), teacher_logits=logs([[0.5, 0.3, 0.2]]),
    ),
    case(
        "the student is the teacher", [0.0],
        student_logits=[[1.0, 2.0]], teacher_logits=[[3.0, 4.0]],
    ),
    random=two_models,
    constants="teacher_logits",
    mistakes="""
        log_p.exp() * (log_p - log_q) -> log_q.exp() * (log_q - log_p)
            this is the reverse KL: your weights are the student's. The forward KL is an average
            over what the *teacher* says.
        log_p.exp() * (log_p - log_q) -> -log_p.exp() * log_q
            this is the cross-entropy. It has the right gradient, but its least value is the teacher's
            entropy: subtract that, or weigh log pi_T - log pi.
        (log_p.exp() * (log_p - log_q)).sum(-1)
        -> -log_q.gather(-1, log_p.argmax(-1, keepdim=True))[:, 0]
            you ask for the teacher's likeliest symbol alone. Its whole distribution is the target.
        (log_p - log_q) -> (teacher_logits - student_logits)
            you subtract logits. They are log-probabilities only up to a constant of each row: take
            log_softmax first.
        log_p - log_q -> log_q - log_p
            the sign is flipped: a KL is never negative.
        .sum(-1) -> .mean(-1)
            you average over the symbols. The teacher's weights are the average already: sum.
        (log_p.exp() * (log_p - log_q)).sum(-1) -> (student_logits - teacher_logits).square().mean(-1)
        (log_p.exp() * (log_p - log_q)).sum(-1) -> (log_q.exp() - log_p.exp()).square().mean(-1)
            this is a squared error. It counts a symbol that the teacher never says as much as its
            favourite: a KL weighs each with the teacher's probability.
        (log_p.exp() * (log_p - log_q)).sum(-1) -> F.kl_div(log_q, log_p, reduction="none").sum(-1)
            F.kl_div takes the target as probabilities: give the teacher's, or say log_target=True.
    """,
)  # fmt: skip
def distillation_loss(student_logits, teacher_logits):
    """Compute KL(pi_T || pi) = sum_v pi_T(v) (log pi_T(v) - log pi(v)) of every row, (N,), with the
    student pi = softmax(student_logits) and the teacher pi_T = softmax(teacher_logits), both (N, V)."""
    log_q, log_p = student_logits.log_softmax(-1), teacher_logits.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)
