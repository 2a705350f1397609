"""Where a response ends: every token up to and including the first EOS."""

import torch

from course.exercises import Arguments, Case, Exercise
from course.mistakes import mistake
from data.collate import first_eos_mask

EOS = 0


def response_mask(tokens, eos_id):
    is_eos = (tokens == eos_id).long()
    return is_eos.cumsum(1) - is_eos == 0  # no EOS strictly before


def by_the_library(tokens, eos_id):
    return first_eos_mask(tokens, eos_id)[0]


@mistake
def not_eos(tokens, eos_id):
    """you compare ids with the EOS. That drops the EOS, so stopping is never learned, and keeps
    what follows it."""
    return tokens != eos_id


@mistake
def without_the_eos(tokens, eos_id):
    """right, except that the first EOS itself is left out. Stopping is an action, too: it must take
    part."""
    return (tokens == eos_id).cumsum(1) == 0


@mistake
def one_column_late(tokens, eos_id):
    """right, except that one token after the first EOS still counts. The mask is one column
    late."""
    mask = response_mask(tokens, eos_id)
    return torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], 1)


@mistake
def up_to_the_last_eos(tokens, eos_id):
    """you stop at the last EOS of a row. What follows the first one means nothing, another EOS
    included."""
    is_eos = tokens == eos_id
    to_come = is_eos.flip(1).cumsum(1).flip(1) > 0
    return to_come | ~is_eos.any(1, keepdim=True)


@mistake
def all_columns(tokens, eos_id):
    """every column takes part. What the sampler left after the first EOS is no response."""
    return torch.ones_like(tokens, dtype=torch.bool)


@mistake
def last_token_of_a_cut_row(tokens, eos_id):
    """a row without an EOS loses its last token. It was sampled like the others, so it takes part;
    `has_eos` is what says that the row was cut off."""
    mask = response_mask(tokens, eos_id).clone()
    mask[~(tokens == eos_id).any(1), -1] = False
    return mask


def sampled(generator: torch.Generator) -> Arguments:
    rows = int(torch.randint(3, 7, (1,), generator=generator))
    columns = int(torch.randint(4, 9, (1,), generator=generator))
    tokens = torch.randint(0, 5, (rows, columns), generator=generator)
    tokens[0] = tokens[0].clamp(min=1)  # never stops
    tokens[1, 1], tokens[1, -1] = EOS, EOS  # stops, and says EOS once more
    return {"tokens": tokens, "eos_id": EOS}


def case(about: str, tokens: list[int], wanted: list[bool]) -> Case:
    return Case(about, {"tokens": torch.tensor([tokens]), "eos_id": EOS}, [wanted])


EXERCISE = Exercise(
    statement=(
        "Return a bool tensor (N, T): True for every token up to and including the first EOS of "
        "its row. A row without an EOS was cut off: all of it takes part."
    ),
    solution=response_mask,
    library=by_the_library,
    cases=(
        case("stops at the third token", [7, 8, 0, 9, 0], [True, True, True, False, False]),
        case("never stops", [7, 8, 9, 7, 8], [True, True, True, True, True]),
        case("an empty answer: the EOS alone", [0, 7, 8, 9, 9], [True, False, False, False, False]),
    ),
    random=sampled,
)
