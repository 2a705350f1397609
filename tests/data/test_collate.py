"""Padding, masks and columns against literals and slow Python; EOS and padding share an id here."""

from __future__ import annotations

import torch

from data.collate import (
    collate_documents,
    collate_responses,
    epoch_shuffled_indices,
    first_eos_mask,
    join_responses,
    left_pad,
    right_pad,
)

EOS = 0  # also what fills the padding: comparing ids with it must decide nothing


def as_rows(mask: torch.Tensor) -> list[list[int]]:
    assert mask.dtype == torch.bool
    return mask.int().tolist()


def test_first_eos_mask():
    """In the middle, before other tokens, at the start, nowhere, and in the last column."""
    responses = torch.tensor([[5, 7, 0, 0], [5, 0, 3, 0], [0, 4, 4, 0], [5, 6, 7, 8], [4, 4, 4, 0]])
    mask, has_eos = first_eos_mask(responses, EOS)
    expected = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert as_rows(mask) == expected
    assert has_eos.tolist() == [True, True, True, False, True]


# whole rows


def hand_batch():
    """A response that ended, one that was cut off, and one that was cut off and is padded."""
    return collate_responses([[7, 8, 9], [4], [7]], [[5, 0], [6, 6, 6], [5]], EOS)


def test_collate_responses():
    batch = hand_batch()
    assert batch.tokens.tolist() == [[7, 8, 9, 5, 0], [4, 6, 6, 6, 0], [7, 5, 0, 0, 0]]
    assert batch.prompt_lengths.tolist() == [3, 1, 1]
    assert batch.response_tokens.tolist() == [[5, 0, 0], [6, 6, 6], [5, 0, 0]]
    assert as_rows(batch.response_mask) == [[1, 1, 0], [1, 1, 1], [1, 0, 0]]
    assert batch.has_eos.tolist() == [True, False, False]  # padding is no EOS
    assert batch.lengths.tolist() == [2, 3, 1]
    assert len(batch) == 3


def test_what_stands_behind_a_responses_first_eos_takes_no_part():
    batch = collate_responses([[7], [8, 9]], [[5, EOS, 6, EOS], [4, 4]], EOS)
    assert as_rows(batch.response_mask) == [[1, 1, 0, 0], [1, 1, 0, 0]]
    assert batch.tokens.tolist() == [[7, 5, EOS, 0], [8, 9, 4, 4]]
    assert batch.has_eos.tolist() == [True, False]


def test_empty_responses():
    batch = collate_responses([[7, 8], [4]], [[], [6, 0]], EOS)
    assert batch.tokens.tolist() == [[7, 8, 0], [4, 6, 0]]
    assert batch.lengths.tolist() == [0, 2]
    assert batch.has_eos.tolist() == [False, True]

    nothing = collate_responses([[7, 8], [4]], [[], []], EOS)
    assert nothing.response_mask.shape == nothing.predicting_columns.shape == (2, 0)
    assert nothing.tokens.tolist() == [[7, 8], [4, 0]]


def test_join_responses_ignores_what_stands_at_padding():
    tokens = torch.tensor([[5, 0, 9999], [6, 6, 6], [5, 9999, 0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]]).bool()
    ended = torch.tensor([True, False, False])
    batch = join_responses([[7, 8, 9], [4], [7]], tokens, mask, ended)
    assert torch.equal(batch.tokens, hand_batch().tokens)


def test_rows_are_chosen_ordered_and_trimmed():
    batch = collate_responses([[1, 2, 3, 4], [5], [6, 7]], [[8, 9], [8, 9, 0], [8]], EOS)
    assert batch.tokens.shape == (3, 6)
    part = batch.rows(torch.tensor([2, 1]))
    assert part.tokens.tolist() == [[6, 7, 8, 0], [5, 8, 9, 0]]
    assert part.prompt_lengths.tolist() == [2, 1]
    assert part.response_tokens.tolist() == [[8, 0, 0], [8, 9, 0]]  # T stays
    assert as_rows(part.response_mask) == [[1, 0, 0], [1, 1, 1]]
    assert part.has_eos.tolist() == [False, True]
    assert part.predicting_columns.tolist() == [[1, 2, 3], [0, 1, 2]]
    nothing = batch.rows(torch.tensor([], dtype=torch.long))
    assert len(nothing) == 0 and nothing.tokens.shape == (0, 1)  # still a column to read


def test_equal_prompts_have_one_number_and_no_others():
    """Not those with one tail, one head, or the same tokens in another split; nor padding's."""
    prompts = [[1, 2, 3], [4, 2, 3], [2, 3], [1, 2, 3], [1, 2], [1, 2, 0], [0, 1, 2], [2, 3]]
    batch = collate_responses(prompts, [[5], [5], [5], [], [3, 5], [5], [3], [6, 6]], EOS)
    for rows in (range(8), [7, 4, 2, 2, 3, 0]):
        part, own = batch.rows(torch.tensor(rows)), [prompts[row] for row in rows]
        numbers = part.prompts.tolist()
        for i, one in enumerate(own):
            assert [number == numbers[i] for number in numbers] == [one == other for other in own]
        assert part.first_rows.tolist() == [own.index(prompt) for prompt in own]


def test_documents_are_predicted_whole():
    """All but the first token take part, also behind an EOS between two texts."""
    batch = collate_documents([[1, 2, 0, 3], [4, 5]])
    assert batch.tokens.tolist() == [[1, 2, 0, 3], [4, 5, 0, 0]]
    assert batch.prompt_lengths.tolist() == [1, 1]
    assert batch.response_tokens.tolist() == [[2, 0, 3], [5, 0, 0]]
    assert as_rows(batch.response_mask) == [[1, 1, 1], [1, 0, 0]]
    assert batch.predicting_columns[0].tolist() == [0, 1, 2]
    assert batch.has_eos.tolist() == [False, False]  # a document is cut from a text, not ended


def test_padding_stands_in_front_or_behind():
    rows, T, F = [[1, 2], [], [3]], True, False
    tokens, mask = left_pad(rows, 9)
    assert tokens.tolist() == [[1, 2], [9, 9], [9, 3]]
    assert mask.tolist() == [[T, T], [F, F], [F, T]]
    tokens, mask = right_pad(rows, 9)
    assert tokens.tolist() == [[1, 2], [9, 9], [3, 9]]
    assert mask.tolist() == [[T, T], [F, F], [T, F]]


# which rows a step reads


def test_every_epoch_visits_each_index_once_in_its_own_order():
    visited = torch.cat([epoch_shuffled_indices(step, 4, 10, seed=1) for step in range(10)])
    epochs = visited.reshape(4, 10)
    assert epochs.sort(1).values.tolist() == [list(range(10))] * 4
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 4
    assert epochs[0].tolist() != list(range(10))


def test_no_seed_has_the_epochs_of_another_one():
    orders = {
        tuple(epoch_shuffled_indices(epoch, 12, 12, seed).tolist())
        for seed in range(6) for epoch in range(6)
    }  # fmt: skip
    assert len(orders) == 36


def test_a_step_depends_on_its_arguments_alone():
    """The steps before it, the global generator and other calls change nothing: runs can resume."""
    alone = epoch_shuffled_indices(7, 4, 10, seed=1)
    before = torch.get_rng_state()
    again = [epoch_shuffled_indices(step, 4, 10, seed=1) for step in range(8)][7]
    assert torch.equal(alone, again)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(
        epoch_shuffled_indices(0, 10, 10, seed=1), epoch_shuffled_indices(0, 10, 10, seed=2)
    )


def test_the_columns_of_padding_stay_inside_the_row():
    """The last prompt token predicts the first response token; behind the end they are clamped."""
    batch = collate_responses([[1] * 5, [1]], [[2], [2] * 5], EOS)
    assert batch.predicting_columns.tolist() == [[4, 5, 5, 5, 5], [0, 1, 2, 3, 4]]
    assert batch.totals.tolist() == [6, 6]
    assert batch.response_columns.tolist() == [[5, 5, 5, 5, 5], [1, 2, 3, 4, 5]]
