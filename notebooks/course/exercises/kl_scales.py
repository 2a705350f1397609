"""The same divergence on two scales: nats per response and nats per token."""

import torch

from course.exercises import Case, Exercise, mistake, some
from rl.equations.kl import k1
from rl.equations.losses import row_means, row_sums, token_mean


def kl_scales(log_probs, ref_log_probs, mask):
    k1_t = torch.where(mask, log_probs - ref_log_probs, 0.0)
    return torch.stack([k1_t.sum(1).mean(), k1_t.sum() / mask.sum()])


def by_the_library(log_probs, ref_log_probs, mask):
    estimate = k1(log_probs, ref_log_probs)
    return torch.stack([row_sums(estimate, mask).mean(), token_mean(estimate, mask)])


@mistake
def turned_round(log_probs, ref_log_probs, mask):
    """the two numbers are right and in the wrong order: per response first."""
    return kl_scales(log_probs, ref_log_probs, mask).flip(0)


@mistake
def sign_flipped(log_probs, ref_log_probs, mask):
    """the sign is turned round: k1 is log pi - log pi_ref."""
    return kl_scales(ref_log_probs, log_probs, mask)


@mistake
def padding_counted(log_probs, ref_log_probs, mask):
    """padding takes part in your sums. What stands there means nothing: use the mask."""
    return kl_scales(log_probs, ref_log_probs, torch.ones_like(mask))


@mistake
def divided_by_columns(log_probs, ref_log_probs, mask):
    """per response is right. Per token you divide by all columns, padding included: divide by the
    number of real tokens."""
    k1_t = torch.where(mask, log_probs - ref_log_probs, 0.0)
    return torch.stack([k1_t.sum(1).mean(), k1_t.mean()])


@mistake
def mean_of_row_means(log_probs, ref_log_probs, mask):
    """per response is right. Per token you average within each response first: then a token of a
    short response weighs more. Divide one sum by the other."""
    estimate = k1(log_probs, ref_log_probs)
    return torch.stack([row_sums(estimate, mask).mean(), row_means(estimate, mask).mean()])


@mistake
def whole_batch_for_response(log_probs, ref_log_probs, mask):
    """per token is right. The first number is the sum over the whole batch: divide it by the number
    of responses."""
    per_response, per_token = kl_scales(log_probs, ref_log_probs, mask)
    return torch.stack([per_response * len(mask), per_token])


WORKED = {
    "log_probs": torch.tensor([[-1.0, -0.5, -2.0, -0.2], [-0.3, -0.4, 9, 9], [-0.1, 9, 9, 9]]),
    "ref_log_probs": torch.tensor([[-1.2, -1.0, -1.9, -0.4], [-0.5, -0.9, 5, 5], [-0.4, 5, 5, 5]]),
    "mask": torch.arange(4) < torch.tensor([4, 2, 1])[:, None],
}


EXERCISE = Exercise(
    statement=(
        "From log_probs and ref_log_probs (N, T) and the response mask return a tensor of two "
        "numbers: the mean KL in nats per response, then in nats per token, both with k1."
    ),
    solution=kl_scales,
    library=by_the_library,
    cases=(Case("responses of 4, 2 and 1 tokens, garbage at padding", WORKED, [0.6, 1.8 / 7]),),
    random=some("log_probs ref_log_probs mask"),
)
