"""Log-probabilities of response tokens: the gather of a log-softmax, one column back."""

import torch
import torch.nn.functional as F

from conformance.ways import Way, sentence
from course.exercises import Arguments, Case, Exercise, mistake, ragged_mask
from data.collate import ResponseBatch


def token_log_probs(logits, tokens, prompt_lengths, response_mask):
    stands = prompt_lengths[:, None] + torch.arange(response_mask.shape[1])  # (N, T)
    stands = stands.clamp(max=tokens.shape[1] - 1)
    log_probs = logits.log_softmax(-1)[torch.arange(len(tokens))[:, None], stands - 1]  # (N, T, V)
    chosen = log_probs.gather(2, tokens.gather(1, stands)[..., None])[..., 0]
    return torch.where(response_mask, chosen, 0.0)


def by_the_library(logits, tokens, prompt_lengths, response_mask):
    """The library's columns, and PyTorch's cross-entropy."""
    ended = torch.ones(len(tokens), dtype=torch.bool)
    batch = ResponseBatch(tokens, prompt_lengths, response_mask.long(), response_mask, ended)
    targets = tokens.gather(1, batch.response_columns)
    columns = batch.predicting_columns[..., None].expand(-1, -1, logits.shape[2])
    loss = F.cross_entropy(logits.gather(1, columns).mT, targets, reduction="none")
    return torch.where(response_mask, -loss, 0.0)


def logits_themselves(logits, tokens, prompt_lengths, response_mask):
    stands = prompt_lengths[:, None] - 1 + torch.arange(response_mask.shape[1])
    back = logits.logsumexp(-1).gather(1, stands.clamp(max=tokens.shape[1] - 2))
    right = token_log_probs(logits, tokens, prompt_lengths, response_mask)
    return torch.where(response_mask, right + back, 0.0)


def likeliest(logits, tokens, prompt_lengths, response_mask):
    best = torch.cat([tokens[:, :1], logits.argmax(-1)[:, :-1]], 1)
    return token_log_probs(logits, best, prompt_lengths, response_mask)


@mistake
def one_prompt_length(logits, tokens, prompt_lengths, response_mask):
    """you use the first row's prompt length for all rows. Each row has its own."""
    first = prompt_lengths[:1].expand_as(prompt_lengths)
    return token_log_probs(logits, tokens, first, response_mask)


@mistake
def padding_scored(logits, tokens, prompt_lengths, response_mask):
    """right where the mask is True, but padding gets numbers, too. They must be 0, or they enter
    every sum."""
    return token_log_probs(logits, tokens, prompt_lengths, torch.ones_like(response_mask))


def ragged(generator: torch.Generator) -> Arguments:
    rows = int(torch.randint(3, 6, (1,), generator=generator))
    mask = ragged_mask(generator, rows, 5)
    mask[1, 3:] = False
    prompt_lengths = torch.randint(1, 5, (rows,), generator=generator)
    prompt_lengths[:2] = torch.tensor([2, 4])
    columns = int((prompt_lengths + mask.sum(1)).max())
    return {
        "logits": 2 * torch.randn(rows, columns, 6, generator=generator),
        "tokens": torch.randint(0, 6, (rows, columns), generator=generator),
        "prompt_lengths": prompt_lengths,
        "response_mask": mask,
    }


# Two rows, three symbols: a prompt of 1 and a response of 2, a prompt of 2 and a response of 1.
# Column 0 says 1/2, 1/4, 1/4, column 1 says 1/4, 1/2, 1/4; the last column is never asked.
TABLE = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.2, 0.2, 0.6]]).log() + 1.0


WORKED = {
    "logits": torch.stack([TABLE, TABLE]),
    "tokens": torch.tensor([[2, 0, 1], [0, 2, 2]]),
    "prompt_lengths": torch.tensor([1, 2]),
    "response_mask": torch.tensor([[True, True], [True, False]]),
}


EXERCISE = Exercise(
    statement=(
        "logits (N, S, V) and tokens (N, S) hold [prompt, response, padding] in each row. Return "
        "the log-probability of every response token, (N, T), 0 where response_mask (N, T) is "
        "False. Column j of the logits is about token j + 1."
    ),
    solution=token_log_probs,
    library=by_the_library,
    cases=(
        Case(
            "prompts of 1 and 2 tokens, worked by hand", WORKED, [[-0.6931, -0.6931], [-1.3863, 0]]
        ),
    ),
    random=ragged,
    mask="response_mask",
    mistakes=[
        Way(name, sentence("log_probs mistakes", name), function)
        for name, function in {
            "one_column_late": lambda z, *rest: token_log_probs(z.roll(-1, 1), *rest),
            "logits_themselves": logits_themselves,
            "probabilities": lambda *a: torch.where(a[3], token_log_probs(*a).exp(), 0.0),
            "surprise": lambda *a: -token_log_probs(*a),
            "likeliest": likeliest,
        }.items()
    ],
)
