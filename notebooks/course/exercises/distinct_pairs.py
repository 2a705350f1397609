"""Distinct-2: how many of the neighbouring pairs of words in many answers are different ones."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake


def pairs_of(words, mask):
    rows = [row[there].tolist() for row, there in zip(words, mask, strict=True)]
    return [list(zip(row, row[1:], strict=False)) for row in rows]


def distinct_pairs(words, mask):
    every = [pair for row in pairs_of(words, mask) for pair in row]
    return torch.tensor(len(set(every)) / len(every))


@mistake
def per_answer(words, mask):
    """you count within each answer and average. A policy that gives every prompt the same answer
    would look perfect: put the pairs of all answers into one set."""
    rows = [row for row in pairs_of(words, mask) if row]
    return torch.tensor(sum(len(set(row)) / len(row) for row in rows) / len(rows))


@mistake
def across_answers(words, mask):
    """your pairs join the last word of an answer with the first of the next, which nobody wrote.
    Make the pairs row by row."""
    row = words[mask].tolist()
    every = list(zip(row, row[1:], strict=False))
    return torch.tensor(len(set(every)) / len(every))


@mistake
def single_words(words, mask):
    """you count single words: that is distinct-1. Distinct-2 counts neighbours."""
    row = words[mask].tolist()
    return torch.tensor(len(set(row)) / len(row))


@mistake
def padding_counts(words, mask):
    """your pairs contain padding. Take the words where the mask is True."""
    return distinct_pairs(words, torch.ones_like(mask))


@mistake
def counted(words, mask):
    """you give the number of different pairs. Divide by the number of all pairs."""
    return torch.tensor(float(len({pair for row in pairs_of(words, mask) for pair in row})))


@mistake
def unordered(words, mask):
    """for you 1 2 and 2 1 are the same pair. The order matters: 'not good' is not 'good not'."""
    every = [frozenset(pair) for row in pairs_of(words, mask) for pair in row]
    return torch.tensor(len(set(every)) / len(every))


def by_codes(words, mask):
    """The twin without loops: a pair as one number."""
    both = mask[:, 1:] & mask[:, :-1]
    codes = (words[:, :-1] * 1_000_003 + words[:, 1:])[both]
    return torch.tensor(len(codes.unique()) / len(codes))


def ragged(generator: torch.Generator) -> Arguments:
    rows, columns = (int(torch.randint(3, 7, (1,), generator=generator)) for _ in range(2))
    lengths = torch.randint(2, columns + 1, (rows,), generator=generator)
    lengths[0] = columns
    mask = torch.arange(columns)[None] < lengths[:, None]
    words = torch.randint(1, 5, (rows, columns), generator=generator)
    return {"words": torch.where(mask, words, 0), "mask": mask}


def case(about: str, rows: list[list[int]], wanted: float) -> Case:
    """Rows of word numbers, padded with 0."""
    width = max(map(len, rows))
    words = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    return Case(about, {"words": words, "mask": words > 0}, wanted)


EXERCISE = Exercise(
    statement=(
        "From the words (N, T) of N answers, as numbers, and the mask (N, T), True for words that count, "
        "compute the different neighbouring pairs divided by all neighbouring pairs, over all answers "
        "together. A pair never joins two answers."
    ),
    solution=distinct_pairs,
    library=by_codes,
    cases=(
        case("one answer, 1 2 1 2: the pairs are 12, 21, 12", [[1, 2, 1, 2]], 2 / 3),
        case("the same answer twice, 1 2 3: two pairs of four differ", [[1, 2, 3], [1, 2, 3]], 0.5),
        case("answers of three and of two words, all different", [[1, 2, 3], [4, 5]], 1.0),
        case("1 2 and 2 1 are two pairs", [[1, 2], [2, 1], [1, 2], [2, 2]], 0.75),
    ),
    random=ragged,
)
