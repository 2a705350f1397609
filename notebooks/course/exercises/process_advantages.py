"""Process supervision: a token gets the z-scores of all steps that end at it or later."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake, ragged_mask
from rl.equations.losses import row_sums

STEPS = {
    "z_scores": torch.tensor([[1.0, -2.0], [0.5, 9.0]]),
    "step_ends": torch.tensor([[1, 3], [2, 0]]),
    "step_mask": torch.tensor([[True, True], [True, False]]),
    "response_mask": torch.tensor([[True, True, True, True], [True, True, True, False]]),
}


def process_advantages(z_scores, step_ends, step_mask, response_mask):
    t = torch.arange(response_mask.shape[1])
    still_to_end = step_mask[:, :, None] & (step_ends[:, :, None] >= t)  # (N, K, T)
    return (z_scores[:, :, None] * still_to_end).sum(1) * response_mask


def by_the_library(z_scores, step_ends, step_mask, response_mask):
    """Token by token: the sum over the steps that are still to end."""
    columns = [
        row_sums(z_scores, step_mask & (step_ends >= t)) for t in range(response_mask.shape[1])
    ]
    return torch.where(response_mask, torch.stack(columns, 1), 0.0)


def spread(z, mask, response_mask, takes_part):
    return (z[:, :, None] * (takes_part & mask[:, :, None])).sum(1) * response_mask


@mistake
def ended_before(z, ends, mask, response_mask):
    """you add up the steps that have ended already. A token answers for what comes from it on, not
    for what came before."""
    t = torch.arange(response_mask.shape[1])
    return spread(z, mask, response_mask, ends[:, :, None] <= t)


@mistake
def own_end_left_out(z, ends, mask, response_mask):
    """the last token of a step does not get that step: use step_ends >= t, not >."""
    t = torch.arange(response_mask.shape[1])
    return spread(z, mask, response_mask, ends[:, :, None] > t)


@mistake
def at_its_end_alone(z, ends, mask, response_mask):
    """a step pays its last token alone. All tokens before its end have led there."""
    t = torch.arange(response_mask.shape[1])
    return spread(z, mask, response_mask, ends[:, :, None] == t)


@mistake
def whole_response(z, ends, mask, response_mask):
    """every token gets the sum over all steps. Then a step is blamed for errors before it, which is
    what process supervision avoids."""
    return (z * mask).sum(1, keepdim=True) * response_mask


@mistake
def padding_counted(z, ends, mask, response_mask):
    """padded steps are counted: leave out those where step_mask is False."""
    return process_advantages(z, ends, torch.ones_like(mask), response_mask)


def ragged(generator: torch.Generator) -> Arguments:
    mask = ragged_mask(generator, 3, 6)
    lengths = mask.sum(1, keepdim=True)
    ends = (torch.rand(3, 3, generator=generator) * lengths).long().sort(1).values
    return {
        "z_scores": torch.randn(3, 3, generator=generator),
        "step_ends": ends,
        "step_mask": torch.arange(3) < torch.randint(1, 4, (3, 1), generator=generator),
        "response_mask": mask,
    }


EXERCISE = Exercise(
    statement=(
        "Give each token t the sum of the z-scores (N, K) of the steps with step_ends >= t, where "
        "step_mask is True: (N, T), and 0 where response_mask is False."
    ),
    solution=process_advantages,
    library=by_the_library,
    cases=(
        Case(
            "steps that end at 1 and 3, worth +1 and -2; one step that ends at 2, worth +0.5",
            STEPS,
            [[-1.0, -1.0, -2.0, -2.0], [0.5, 0.5, 0.5, 0.0]],
        ),
    ),
    random=ragged,
    mask="response_mask",
)
