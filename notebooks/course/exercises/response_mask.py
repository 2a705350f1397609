"""Where a response ends: every token up to and including the first EOS."""

from conformance.kinds import KINDS
from course.exercises import Exercise, shared
from data.collate import first_eos_mask


def response_mask(tokens, eos_id):
    is_eos = (tokens == eos_id).long()
    return is_eos.cumsum(1) - is_eos == 0  # no EOS strictly before


def by_the_library(tokens, eos_id):
    return first_eos_mask(tokens, eos_id)[0]


EXERCISE = Exercise(
    statement=(
        "Return a bool tensor (N, T): True for every token up to and including the first EOS of "
        "its row. A row without an EOS was cut off: all of it takes part."
    ),
    solution=response_mask,
    library=by_the_library,
    cases=[KINDS["response_mask"].cases[i] for i in (1, 2, 0)],
    random=KINDS["response_mask"].random,
    mistakes=shared(
        "response_mask",
        "not_eos without_the_eos one_column_late up_to_the_last_eos all_columns last_token_of_a_cut_row",
    ),
)
