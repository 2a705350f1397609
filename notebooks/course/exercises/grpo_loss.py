"""GRPO's whole loss: the clipped surrogate plus beta k3, averaged over tokens, then over answers."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations import kl
from rl.equations import losses as library


def per_token_loss(log_probs, old, ref, advantages, eps, beta):
    ratio = (log_probs - old).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - eps, 1 + eps) * advantages)
    delta = ref - log_probs
    return -surrogate + beta * (delta.exp() - delta - 1)


def grpo_loss(log_probs, old_log_probs, ref_log_probs, advantages, mask, eps, beta):
    ratio = (log_probs - old_log_probs).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - eps, 1 + eps) * advantages)
    delta = ref_log_probs - log_probs
    k3 = delta.exp() - delta - 1
    per_token = torch.where(mask, -surrogate + beta * k3, 0.0)
    return (per_token.sum(1) / mask.sum(1)).mean()


def by_library(log_probs, old_log_probs, ref_log_probs, advantages, mask, eps, beta):
    loss = library.clipped_surrogate(log_probs, old_log_probs, advantages, eps, eps)
    return library.sequence_mean(loss + beta * kl.k3(log_probs, ref_log_probs), mask)


@mistake
def kl_rewarded(log_probs, old, ref, A, mask, eps, beta):
    """the KL has the wrong sign: this loss falls when the policy leaves the reference."""
    return grpo_loss(log_probs, old, ref, A, mask, eps, -beta)


@mistake
def objective_not_loss(log_probs, old, ref, A, mask, eps, beta):
    """this is the objective, which is maximised. An optimizer minimises: flip the sign."""
    return -grpo_loss(log_probs, old, ref, A, mask, eps, beta)


@mistake
def surrogate_rewarded(log_probs, old, ref, A, mask, eps, beta):
    """the surrogate lacks its minus, while the KL is right: good answers would become less
    likely."""
    return -grpo_loss(log_probs, old, ref, A, mask, eps, -beta)


@mistake
def over_all_tokens(log_probs, old, ref, A, mask, eps, beta):
    """you average over all tokens at once. GRPO takes the mean of each answer first, then the mean
    of the answers."""
    return per_token_loss(log_probs, old, ref, A, eps, beta)[mask].mean()


@mistake
def without_clip(log_probs, old, ref, A, mask, eps, beta):
    """nothing is clipped: the ratio may go as far as it likes."""
    return grpo_loss(log_probs, old, ref, A, mask, 1e6, beta)


@mistake
def without_kl(log_probs, old, ref, A, mask, eps, beta):
    """the KL term is missing: nothing holds the policy near the reference."""
    return grpo_loss(log_probs, old, ref, A, mask, eps, 0.0)


@mistake
def kl_to_the_old_policy(log_probs, old, ref, A, mask, eps, beta):
    """your KL is measured from the old policy. It is the reference that must not be left."""
    return grpo_loss(log_probs, old, old, A, mask, eps, beta)


@mistake
def ratio_to_the_reference(log_probs, old, ref, A, mask, eps, beta):
    """your ratio is pi / pi_ref. It compares with the policy that sampled: old_log_probs."""
    return grpo_loss(log_probs, ref, ref, A, mask, eps, beta)


@mistake
def k1_in_the_loss(log_probs, old, ref, A, mask, eps, beta):
    """your KL term is k1. In the loss GRPO uses k3: the gradient of k1 is 0 on average."""
    loss = per_token_loss(log_probs, old, ref, A, eps, 0.0) + beta * (log_probs - ref)
    return (torch.where(mask, loss, 0.0).sum(1) / mask.sum(1)).mean()


@mistake
def padding_included(log_probs, old, ref, A, mask, eps, beta):
    """the padding takes part. Use the mask, in the sum and in the length."""
    return per_token_loss(log_probs, old, ref, A, eps, beta).mean()


EXERCISE = Exercise(
    statement=(
        "From log_probs, old_log_probs and ref_log_probs (N, T), advantages (N, 1), mask (N, T), eps "
        "and beta, compute the mean over answers of the mean over tokens of "
        "-min(ratio A, clip(ratio) A) + beta k3."
    ),
    solution=grpo_loss,
    library=by_library,
    cases=(
        Case(
            "the two answers of section 2",
            {
                "log_probs": torch.tensor([[-1.0, -0.5, -2.0], [-0.7, -1.2, 9.0]]),
                "old_log_probs": torch.tensor([[-1.2, -0.5, -1.8], [-0.7, -0.9, 9.0]]),
                "ref_log_probs": torch.tensor([[-1.1, -0.6, -2.0], [-0.5, -1.2, 9.0]]),
                "advantages": torch.tensor([[0.7071], [-0.7071]]),
                "mask": torch.tensor([[True, True, True], [True, True, False]]),
                "eps": 0.2,
                "beta": 0.04,
            },
            -0.037284,
        ),
    ),
    random=some(
        "log_probs old_log_probs ref_log_probs advantages=advantages_of_rows mask",
        eps=0.2,
        beta=0.1,
    ),
    mask="mask",
    gradient="log_probs",
)
