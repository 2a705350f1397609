"""How many old pairs are replayed beside new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from reward_model import continual


def replay_count(new: int, history: int, share: float) -> int:
    return min(round(new * share / (1 - share)), history)


def by_the_library(new: int, history: int, share: float) -> Tensor:
    return torch.tensor(float(continual.history_count(new, history, share, "share_of_mix")))


def counts(generator: torch.Generator) -> Mapping[str, Any]:
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
    mistakes=(
        Mistake(
            "share_of_the_new",
            "this is a share of the *new* pairs. Of the mix it is less: 9 of 99 are 9%. Divide by 1 "
            "- share.",
            lambda new, history, share: min(round(new * share), history),
        ),
        Mistake(
            "share_of_the_history",
            "this is a share of the history, the other reading of the paper. Here a share of the mix "
            "is old.",
            lambda new, history, share: round(history * share),
        ),
        Mistake(
            "more_than_there_are",
            "you replay more pairs than there are: take the smaller of both numbers.",
            lambda new, history, share: round(new * share / (1 - share)),
        ),
        Mistake(
            "size_of_the_mix",
            "this is the size of the whole mix. Take the new pairs off.",
            lambda new, history, share: new + replay_count(new, history, share),
        ),
    ),
)
