"""Fine-tuning's loss mask: the response and its EOS, never the prompt or the padding."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from data.collate import collate_responses


def loss_mask(prompt_lengths, response_lengths, columns):
    place = torch.arange(columns)
    begins = prompt_lengths[:, None]
    return (place >= begins) & (place < begins + response_lengths[:, None])


def by_the_collator(prompt_lengths, response_lengths, columns):
    """Rows of token 1 with an EOS, 2, at the end; the collator says which columns they stand in."""
    prompts = [[1] * p for p in prompt_lengths.tolist()]
    responses = [[1] * (n - 1) + [2] for n in response_lengths.tolist()]
    batch = collate_responses(prompts, responses, eos_id=2)
    mask = torch.zeros(len(prompts), columns, dtype=torch.bool)
    row = torch.arange(len(prompts))[:, None].expand_as(batch.response_mask)
    mask[row[batch.response_mask], batch.response_columns[batch.response_mask]] = True
    return mask


@mistake
def whole_document(prompt_lengths, response_lengths, columns):
    """the prompt takes part, too. Then the model spends its loss on predicting questions."""
    return torch.arange(columns) < (prompt_lengths + response_lengths)[:, None]


@mistake
def prompts_alone(prompt_lengths, response_lengths, columns):
    """the mask is turned round: you train on the prompts."""
    return torch.arange(columns) < prompt_lengths[:, None]


@mistake
def padding_too(prompt_lengths, response_lengths, columns):
    """the prompt is left out, but the padding takes part. End the mask after the response."""
    return torch.arange(columns) >= prompt_lengths[:, None]


@mistake
def one_column_early(prompt_lengths, response_lengths, columns):
    """one column early: the last prompt token counts and the EOS does not. That column *predicts*
    the first response token; this mask is about where tokens stand."""
    return loss_mask(prompt_lengths - 1, response_lengths, columns)


@mistake
def without_the_eos(prompt_lengths, response_lengths, columns):
    """right, except that the EOS is left out. Then the model never learns to stop."""
    return loss_mask(prompt_lengths, response_lengths - 1, columns)


@mistake
def one_too_many(prompt_lengths, response_lengths, columns):
    """right, except that one column of padding after the EOS counts."""
    return loss_mask(prompt_lengths, response_lengths + 1, columns)


@mistake
def ends_mistaken_for_lengths(prompt_lengths, response_lengths, columns):
    """you compare columns with the response's length. The response ends at prompt length plus
    response length."""
    place = torch.arange(columns)
    return (place >= prompt_lengths[:, None]) & (place < response_lengths[:, None])


def some_rows(generator: torch.Generator) -> Arguments:
    rows = int(torch.randint(3, 6, (1,), generator=generator))
    prompt_lengths = torch.randint(1, 5, (rows,), generator=generator)
    response_lengths = torch.randint(1, 7, (rows,), generator=generator)
    columns = int((prompt_lengths + response_lengths).max()) + 1
    return {
        "prompt_lengths": prompt_lengths,
        "response_lengths": response_lengths,
        "columns": columns,
    }


EXERCISE = Exercise(
    statement=(
        "Rows hold [prompt, response, padding] in `columns` columns. Return a bool tensor "
        "(N, columns), True at the tokens of the response. Its last token is the EOS, which counts "
        "in response_lengths."
    ),
    solution=loss_mask,
    library=by_the_collator,
    cases=(
        Case(
            "prompts of 2 and 3 tokens, responses of 3 and 1",
            {
                "prompt_lengths": torch.tensor([2, 3]),
                "response_lengths": torch.tensor([3, 1]),
                "columns": 6,
            },
            [
                [False, False, True, True, True, False],
                [False, False, False, True, False, False],
            ],
        ),
    ),
    random=some_rows,
)
