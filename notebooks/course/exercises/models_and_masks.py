"""Parts of GPT-2 and Llama, and which column is about which token."""

import math

import torch

from conformance import batches
from conformance.batches import Arguments, between, number, ragged_mask
from course.exercises.entries import case, exercise, lengths, logs


def three_vectors(generator: torch.Generator) -> Arguments:
    columns, width = number(generator, 3, 7), number(generator, 3, 9)
    names = ("query", "key", "value")
    return {name: torch.randn(columns, width, generator=generator) for name in names}


@exercise(
    case(
        "keys all alike: each row is the plain average of the values it may see",
        [[6.0, 0.0], [3.0, 3.0], [3.0, 3.0]], query=[[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]],
        key=[[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], value=[[6.0, 0.0], [0.0, 6.0], [3.0, 3.0]],
    ),
    case(
        "the three tokens of section 1",
        [[10.0, 0.0], [3.302385, 6.697615], [2.820265, 7.179735]],
        query=[[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], key=[[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]],
        value=[[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]],
    ),
    random=three_vectors,
    mistakes="""
        scores.masked_fill(future, float("-inf")).softmax(-1) -> scores.softmax(-1)
            nothing is masked: a token looks at the tokens after it, and the answer stands in the question.
        math.sqrt(query.shape[1]) -> 1
            the division by sqrt(d) is missing: wide vectors would put all weight on one token.
        math.sqrt(query.shape[1]) -> query.shape[1]
            you divide by d. The scores have variance d, so their size is sqrt(d).
        float("-inf") -> 0.0
            you set forbidden scores to 0. exp(0) is 1, so they still get weight: set them to -inf before
            the softmax.
        scores.masked_fill(future, float("-inf")).softmax(-1) -> scores.softmax(-1).tril()
            you mask after the softmax: the weights of a row no longer add up to 1. Mask the scores, before
            it.
        softmax(-1) -> softmax(0)
            your softmax runs down the columns. Each row, who asks, needs weights that add up to 1:
            softmax(-1).
        torch.bool).triu(1) -> torch.bool).triu(0).index_fill(0, torch.tensor([0]), False)
            your mask begins at the diagonal: a token must see itself. Hide only what is after it.
        triu(1) -> tril(-1)
            your mask is turned round: every token sees itself and the future, not the past.
    """,
)  # fmt: skip
def attention(query, key, value):
    """query, key and value are (S, d). Return softmax(Q K^T / sqrt(d)) V, (S, d), where row s
    may look at the rows 0 to s only."""
    scores = query @ key.T / math.sqrt(query.shape[1])
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return weights @ value


def some_queries(generator: torch.Generator) -> Arguments:
    columns, heads, width = (number(generator, 2, 5) for _ in range(3))
    return {
        "x": 0.5 + torch.randn(columns, heads * width, generator=generator),
        "heads": heads,
        "weight": 0.5 + torch.rand(width, generator=generator),
        "eps": between(generator, 0.02, 0.3),
    }


@exercise(
    case(
        "two heads of two numbers: the mean squares are 12.5 and 50",
        [[0.848528, 1.131371, 0.141421, 1.407125]],
        x=[[3.0, 4.0, 1.0, 9.949874]], heads=2, weight=[1.0, 1.0], eps=0.0,
    ),
    case(
        "the weight belongs to a place of the head, the same in every head",
        [[2.0, 0.5, 2.0, -0.5]],
        x=[[1.0, 1.0, 7.0, -7.0]], heads=2, weight=[2.0, 0.5], eps=0.0,
    ),
    random=some_queries,
    mistakes="""
        .mean(-1, keepdim=True) -> .mean((1, 2), keepdim=True)
            you average over all of the heads, as OLMo 2 does. In Qwen3 each head is normalised by itself.
        .mean(-1, keepdim=True) -> .sum(-1, keepdim=True)
            you divide by the length of the vector: the root of the *mean* square is sqrt(d) times smaller.
        each.square() -> (each - each.mean(-1, keepdim=True)).square()
            you take the mean off, as LayerNorm does. RMSNorm measures from 0.
        x.view(len(x), heads, -1) -> x.view(len(x), -1, heads).transpose(1, 2)
            your heads take every heads-th number. A head is a block of d numbers that stand together.
        * weight -> * 1
            the weight is missing: one number for each place of a head.
    """,
)  # fmt: skip
def qk_norm(x, heads, weight, eps):
    """x (S, heads * d) holds the queries of a layer, heads of them in each row, one behind the other.
    Divide each by its own root mean square, with eps added under the root, and multiply by weight
    (d,). Return (S, heads * d)."""
    each = x.view(len(x), heads, -1)  # (S, heads, d)
    return (each / (each.square().mean(-1, keepdim=True) + eps).sqrt() * weight).flatten(1)


def some_words(generator: torch.Generator) -> Arguments:
    logits = 2 * torch.randn(number(generator, 5, 12), generator=generator)
    return {"logits": logits, "p": between(generator, 0.3, 0.95)}


FOUR_WORDS = logs([0.1, 0.5, 0.08, 0.32])


@exercise(
    case("p = 0.7: two words stay", [0, 0.609756, 0, 0.390244], logits=FOUR_WORDS, p=0.7),
    case("p = 0.4: the likeliest word alone has more", [0.0, 1, 0, 0], logits=FOUR_WORDS, p=0.4),
    random=some_words,
    constants="logits",
    mistakes="""
        kept / kept.sum() -> kept
            the right tokens stay, but their probabilities do not add up to 1: divide by the sum.
        torch.zeros_like(logits).scatter(0, order, kept / kept.sum()) -> kept / kept.sum()
            the numbers are right, but sorted: put them back to where the tokens stand (scatter).
        ordered.cumsum(-1) - ordered -> ordered.cumsum(-1)
            you drop the token that crosses p. It stays: the kept ones must have *at least* p.
        before < p -> ordered > 1 - p
            you keep tokens that are likely one by one. Top-p adds them up, from the likeliest down.
        descending=True -> descending=False
            you start from the unlikeliest token. Sort in descending order.
        torch.where(before < p, ordered, 0.0) -> ordered
            nothing is cut: every token keeps its probability.
    """,
)
def top_p(logits, p):
    """logits (V,). Keep the likeliest tokens, as few as reach the probability p together, set
    the others to 0, scale up to a sum of 1, and return probabilities (V,) in the old order."""
    ordered, order = logits.softmax(-1).sort(descending=True)
    before = ordered.cumsum(-1) - ordered  # the probability of all likelier tokens
    kept = torch.where(before < p, ordered, 0.0)
    return torch.zeros_like(logits).scatter(0, order, kept / kept.sum())


@exercise(
    case("stops at the third token", [[True, True, True, False]], tokens=[[7, 8, 0, 0]], eos_id=0),
    case("never stops", [[True, True, True, True]], tokens=[[7, 8, 9, 7]], eos_id=0),
    case("an empty answer", [[True, False, False, False]], tokens=[[0, 7, 8, 9]], eos_id=0),
    case("EOS is 9, and 0 a word", [[True, True, True, False]], tokens=[[0, 7, 9, 0]], eos_id=9),
    random=batches.sampled,
    kit="response_mask",
    mistakes="""
        before == 0 -> torch.arange(tokens.shape[1]) <= is_eos.argmax(1, keepdim=True)
            argmax is 0 for a row without an EOS too, so that of a response that was cut off only the first
            token stays. All of it was sampled, so all of it takes part.
    """,
)
def response_mask(tokens, eos_id):
    """Return a bool tensor (N, T): True for every token up to and including the first EOS of
    its row. A row without an EOS was cut off: all of it takes part."""
    is_eos = (tokens == eos_id).long()
    before = is_eos.cumsum(1) - is_eos  # how many EOS stand before the token
    return before == 0


def scored_rows(generator: torch.Generator) -> Arguments:
    rows, words = number(generator, 3, 6), number(generator, 4, 8)
    mask = ragged_mask(generator, rows, 5)
    prompt_lengths = torch.randint(1, 5, (rows,), generator=generator)
    prompt_lengths[:2] = torch.tensor([2, 4])
    columns = int((prompt_lengths + mask.sum(1)).max())
    return {
        "logits": 2 * torch.randn(rows, columns, words, generator=generator),
        "tokens": torch.randint(0, words, (rows, columns), generator=generator),
        "prompt_lengths": prompt_lengths,
        "response_mask": mask,
    }


# Column 0 says 1/2, 1/4, 1/4, column 1 says 1/4, 1/2, 1/4; the last column is never asked.
TABLE = logs([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.2, 0.2, 0.6]]) + 1.0


@exercise(
    case(
        "prompts of 1 and 2 tokens, worked by hand", [[-1.386294, -1.386294], [-1.386294, 0.0]],
        logits=torch.stack([TABLE, TABLE]), tokens=[[2, 1, 2], [0, 2, 2]], prompt_lengths=[1, 2],
        response_mask=lengths(2, 1),
    ),
    random=scored_rows,
    mistakes="""
        stands - 1 -> stands
            you score every token with the logits of its own column, which have read it already. Take the
            column before it.
        logits.log_softmax(-1) -> logits
            these are the logits of the chosen tokens, not yet log-probabilities: apply log_softmax over
            the vocabulary first.
        log_softmax(-1) -> softmax(-1)
            these are probabilities. The logarithm is missing: log_softmax instead of softmax.
        chosen, 0.0 -> -chosen, 0.0
            this is the surprise, -log p. The log-probability itself is negative.
        scores.gather(2, tokens[rows, stands][..., None])[..., 0] -> scores.amax(-1)
            you score the likeliest token of each column. Score the token that stands there.
        prompt_lengths[:, None] -> prompt_lengths[0]
            you use the first row's prompt length for all rows. Each row has its own.
        torch.where(response_mask, chosen, 0.0) -> chosen
            right where the mask is True, but padding gets numbers, too. They must be 0, or they enter
            every sum.
    """,
)  # fmt: skip
def token_log_probs(logits, tokens, prompt_lengths, response_mask):
    """logits (N, S, V) and tokens (N, S) hold [prompt, response, padding] in each row. Return
    the log-probability of every response token, (N, T), 0 where response_mask (N, T) is
    False. Column j of the logits is about token j + 1."""
    stands = prompt_lengths[:, None] + torch.arange(response_mask.shape[1])  # (N, T)
    stands = stands.clamp(max=tokens.shape[1] - 1)
    rows = torch.arange(len(tokens))[:, None]
    scores = logits.log_softmax(-1)[rows, stands - 1]  # (N, T, V)
    chosen = scores.gather(2, tokens[rows, stands][..., None])[..., 0]
    return torch.where(response_mask, chosen, 0.0)


def documents(generator: torch.Generator) -> Arguments:
    rows, words = number(generator, 2, 6), number(generator, 4, 8)
    begins = torch.randint(1, 3, (rows, 1), generator=generator)
    ends = torch.randint(3, 8, (rows, 1), generator=generator)
    ends[:2] = torch.tensor([[3], [7]])
    place = torch.arange(7)
    return {
        "logits": 2 * torch.randn(rows, 7, words, generator=generator),
        "tokens": torch.randint(0, words, (rows, 7), generator=generator),
        "mask": (place >= begins) & (place < ends),
    }


# Column 0 gives 1/2, 1/4, 1/4, column 1 gives 1/4, 1/4, 1/2, column 2 is never asked.
THREE_COLUMNS = logs([[[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.1, 0.1, 0.8]]])


@exercise(
    case(
        "the tokens 2, 0, 1, of which the last two are predicted: (log 2 + log 4) / 2",
        1.039721, logits=THREE_COLUMNS, tokens=[[2, 0, 1]], mask=[[False, True, True]],
    ),
    case(
        "only the last one takes part", 1.386294,
        logits=THREE_COLUMNS, tokens=[[2, 0, 1]], mask=[[False, False, True]],
    ),
    random=documents,
    mistakes="""
        logits[:, :-1] -> logits[:, 1:]
            you compare column j with token j, which it has read already. Column j is about token j + 1:
            logits[:, :-1] against tokens[:, 1:].
        tokens[:, 1:, None] -> tokens[:, :-1, None]
            your labels are the inputs: column j is asked for token j. Take the tokens from 1 on.
        mask[:, 1:] -> mask[:, :-1]
            logits and tokens are shifted right, but not the mask. It says which *labels* count: mask[:,
            1:].
        mask[:, 1:] -> torch.ones_like(mask[:, 1:])
            the mask does not appear: prompt and padding are predicted, too.
        .sum() / takes_part.sum() -> .mean()
            the masked tokens are 0, but they still count in the mean. Divide the sum by the number of True
            labels.
        .sum() / takes_part.sum() -> .sum(1).div(takes_part.sum(1)).mean()
            you average within each row first. Then a token of a short row weighs more: divide one sum by
            the other.
        .sum() / takes_part.sum() -> .sum()
            this is the sum. Divide it by the number of tokens that take part.
        return -torch -> return torch
            the sign is turned round: a loss is the surprise, -log p.
    """,
)  # fmt: skip
def language_model_loss(logits, tokens, mask):
    """logits (N, S, V), tokens (N, S), mask (N, S), True at the tokens that are to be predicted
    (never column 0). Return the mean of -log p over these tokens, a number."""
    log_p = logits[:, :-1].log_softmax(-1)  # column j is about token j + 1
    chosen = log_p.gather(2, tokens[:, 1:, None])[..., 0]
    takes_part = mask[:, 1:]
    return -torch.where(takes_part, chosen, 0.0).sum() / takes_part.sum()
