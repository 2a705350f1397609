"""Next-token prediction: shift the labels by one, mask, and average."""

import torch
import torch.nn.functional as F

from course.exercises import Arguments, Case, Exercise, mistake


def language_model_loss(logits, tokens, mask):
    log_p = logits[:, :-1].log_softmax(-1)  # column j is about token j + 1
    chosen = log_p.gather(2, tokens[:, 1:, None])[..., 0]
    takes_part = mask[:, 1:]
    return -torch.where(takes_part, chosen, 0.0).sum() / takes_part.sum()


def by_cross_entropy(logits, tokens, mask):
    """PyTorch's loss over the labels that take part."""
    labels = torch.where(mask, tokens, -100)[:, 1:]
    return F.cross_entropy(logits[:, :-1].mT, labels, ignore_index=-100)


@mistake
def not_shifted(logits, tokens, mask):
    """you compare column j with token j, which it has read already. Column j is about token j + 1:
    logits[:, :-1] against tokens[:, 1:]."""
    loss = F.cross_entropy(logits.mT, tokens, reduction="none")
    return (loss * mask).sum() / mask.sum()


@mistake
def shifted_the_wrong_way(logits, tokens, mask):
    """you shift the wrong way: column j is compared with token j - 1, the past."""
    loss = F.cross_entropy(logits[:, 1:].mT, tokens[:, :-1], reduction="none")
    return (loss * mask[:, :-1]).sum() / mask[:, :-1].sum()


@mistake
def mask_of_the_inputs(logits, tokens, mask):
    """logits and tokens are shifted right, but not the mask. It says which *labels* count: mask[:,
    1:]."""
    loss = F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none")
    return (loss * mask[:, :-1]).sum() / mask[:, :-1].sum()


@mistake
def everything_counts(logits, tokens, mask):
    """the mask does not appear: prompt and padding are predicted, too."""
    return language_model_loss(logits, tokens, torch.ones_like(mask))


@mistake
def zeros_in_the_mean(logits, tokens, mask):
    """the masked tokens are 0, but they still count in the mean. Divide the sum by the number of
    True labels."""
    loss = F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none")
    return (loss * mask[:, 1:]).mean()


@mistake
def mean_of_row_means(logits, tokens, mask):
    """you average within each row first. Then a token of a short row weighs more: divide one sum by
    the other."""
    loss = F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none")
    return ((loss * mask[:, 1:]).sum(1) / mask[:, 1:].sum(1)).mean()


@mistake
def sum_for_mean(logits, tokens, mask):
    """this is the sum. Divide it by the number of tokens that take part."""
    return language_model_loss(logits, tokens, mask) * mask[:, 1:].sum()


@mistake
def sign_flipped(logits, tokens, mask):
    """the sign is turned round: a loss is the surprise, -log p."""
    return -language_model_loss(logits, tokens, mask)


def ragged(generator: torch.Generator) -> Arguments:
    rows = int(torch.randint(2, 5, (1,), generator=generator))
    columns = int(torch.randint(5, 9, (1,), generator=generator))
    begins = torch.randint(1, 3, (rows, 1), generator=generator)
    ends = torch.randint(3, columns + 1, (rows, 1), generator=generator)
    ends[:2] = torch.tensor([[3], [columns]])
    place = torch.arange(columns)
    return {
        "logits": 2 * torch.randn(rows, columns, 5, generator=generator),
        "tokens": torch.randint(0, 5, (rows, columns), generator=generator),
        "mask": (place >= begins) & (place < ends),
    }


# Column 0 gives 1/2, 1/4, 1/4, column 1 gives 1/4, 1/4, 1/2, column 2 is never asked.
TABLE = torch.tensor([[[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.1, 0.1, 0.8]]]).log()


def case(about: str, mask: list[bool], wanted: float) -> Case:
    """The tokens 2, 0, 1: token 0 costs log 2 at column 0, token 1 costs log 4 at column 1."""
    arguments = {
        "logits": TABLE,
        "tokens": torch.tensor([[2, 0, 1]]),
        "mask": torch.tensor([mask]),
    }
    return Case(about, arguments, wanted)


EXERCISE = Exercise(
    statement=(
        "logits (N, S, V), tokens (N, S), mask (N, S), True at the tokens that are to be predicted "
        "(never column 0). Return the mean of -log p over these tokens, a number."
    ),
    solution=language_model_loss,
    library=by_cross_entropy,
    cases=(
        case("three tokens, the last two are predicted", [False, True, True], 1.039721),
        case("only the last one takes part", [False, False, True], 1.386294),
    ),
    random=ragged,
    gradient="logits",
)
