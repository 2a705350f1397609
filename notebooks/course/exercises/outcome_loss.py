"""The cross-entropy of an outcome reward model: each text has a label, and a score for its log-odds."""

import torch
import torch.nn.functional as F

from course.exercises import Arguments, Case, Exercise, mistake
from reward_model import loss as library


def outcome_loss(outcome_scores, labels):
    good = -F.logsigmoid(outcome_scores)  # the cost if the text is good
    bad = -F.logsigmoid(-outcome_scores)  # the cost if it is bad
    return (labels * good + (1 - labels) * bad).mean()


@mistake
def good_ones_alone(outcome_scores, labels):
    """bad texts cost nothing in your loss, so a model that calls every text good is perfect. Add (1
    - y) times -log sigmoid(-score)."""
    return (-labels * F.logsigmoid(outcome_scores)).mean()


@mistake
def labels_swapped(outcome_scores, labels):
    """your labels are the wrong way round: label 1 is a good text, whose score is to rise."""
    return outcome_loss(outcome_scores, 1 - labels)


@mistake
def summed(outcome_scores, labels):
    """you add the texts up. The mean makes the learning rate independent of the batch's size."""
    return outcome_loss(outcome_scores, labels) * len(labels)


@mistake
def without_minus(outcome_scores, labels):
    """this is the log-likelihood, which is maximised. A loss is minimised: put a minus in front."""
    return -outcome_loss(outcome_scores, labels)


@mistake
def squared(outcome_scores, labels):
    """you take the squared distance of probability and label. Its gradient dies where the model is
    sure and wrong; the cross-entropy's does not."""
    return (outcome_scores.sigmoid() - labels).square().mean()


def ragged(generator: torch.Generator) -> Arguments:
    count = int(torch.randint(2, 12, (1,), generator=generator))
    labels = torch.randint(0, 2, (count,), generator=generator).float()
    labels[:2] = torch.tensor([0.0, 1.0])
    return {"outcome_scores": 3 * torch.randn(count, generator=generator), "labels": labels}


EXERCISE = Exercise(
    statement=(
        "From the scores (N,) and the labels (N,), 1 for a good text and 0 for a bad one, compute the "
        "mean of -log sigmoid(score) for good texts and -log sigmoid(-score) for bad ones."
    ),
    solution=outcome_loss,
    library=library.outcome_loss,
    gradient="outcome_scores",
    cases=(
        Case(
            "a good text with score 1",
            {"outcome_scores": torch.tensor([1.0]), "labels": torch.tensor([1.0])},
            0.313262,
        ),
        Case(
            "a bad text with score 1",
            {"outcome_scores": torch.tensor([1.0]), "labels": torch.tensor([0.0])},
            1.313262,
        ),
        Case(
            "both together, and a good text far on the wrong side, score -200",
            {
                "outcome_scores": torch.tensor([1.0, 1.0, -200.0]),
                "labels": torch.tensor([1.0, 0.0, 1.0]),
            },
            67.208842,
        ),
    ),
    random=ragged,
)
