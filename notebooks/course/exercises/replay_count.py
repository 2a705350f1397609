"""How many old pairs are replayed beside new ones."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from reward_model import continual


def replay_count(new, history, share):
    return min(round(new * share / (1 - share)), history)


def by_the_library(new, history, share):
    return torch.tensor(float(continual.history_count(new, history, share, "share_of_mix")))


@mistake
def share_of_the_new(new, history, share):
    """this is a share of the *new* pairs. Of the mix it is less: 9 of 99 are 9%. Divide by 1 -
    share."""
    return min(round(new * share), history)


@mistake
def share_of_the_history(new, history, share):
    """this is a share of the history, the other reading of the paper. Here a share of the mix is
    old."""
    return round(history * share)


@mistake
def more_than_there_are(new, history, share):
    """you replay more pairs than there are: take the smaller of both numbers."""
    return round(new * share / (1 - share))


@mistake
def size_of_the_mix(new, history, share):
    """this is the size of the whole mix. Take the new pairs off."""
    return new + replay_count(new, history, share)


def counts(generator: torch.Generator) -> Arguments:
    new, history = torch.randint(20, 2000, (2,), generator=generator).tolist()
    return {"new": new, "history": history, "share": 0.25}


EXERCISE = Exercise(
    statement=(
        "With `new` new pairs, compute how many old ones make up `share` of the mix: round(new share "
        "/ (1 - share)), and never more than the `history` that there is."
    ),
    solution=replay_count,
    library=by_the_library,
    cases=(
        Case("90 new and plenty of old ones", {"new": 90, "history": 1000, "share": 0.1}, 10.0),
        Case("only 4 old ones are there", {"new": 90, "history": 4, "share": 0.1}, 4.0),
    ),
    random=counts,
)
