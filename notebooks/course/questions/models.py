"""Models, masks and their training: pages 01 to 03, 18 and 20."""

from __future__ import annotations

import math

from course.questions import Table, question, which

# --- 01: which setting drew these words? ----------------------------------------------------------

WORDS = ("great", "lovely", "solid", "okay", "poor", "dull")


def kept_by_top_p(probabilities, p):
    """Those of the likeliest, as few as have at least p, scaled up to 1; the likeliest come first."""
    before = [sum(probabilities[:i]) for i in range(len(probabilities))]
    kept = [x if b < p else 0.0 for x, b in zip(probabilities, before)]
    return [x / sum(kept) for x in kept]


def a_sampler(rng):
    """Probabilities of a model, and the shares that one of five settings drew."""
    cause = rng.choice("abcde")
    logits = [0.0]
    for _ in WORDS[1:]:
        logits.append(logits[-1] - rng.choice((0.5, 0.6, 0.7, 0.8)))
    made = {}
    for temperature in (0.5, 1.0, 2.0):
        weights = [math.exp(z / temperature) for z in logits]
        made[temperature] = [w / sum(weights) for w in weights]
    shares = {
        "a": made[0.5], "b": made[2.0], "c": kept_by_top_p(made[1.0], 0.8),
        "d": kept_by_top_p(made[2.0], 0.8), "e": made[1.0],
    }[cause]  # fmt: skip
    rows = [[w, round(p, 3), round(s, 3)] for w, p, s in zip(WORDS, made[1.0], shares)]
    rng.shuffle(rows)
    return Table(["next word", "probability", "share of many draws"], rows, {"cause": cause})


which(
    "which_sampling",
    a_sampler,
    text="""Which of the settings a to e drew these words?

    Enter one letter. Look for words that were never drawn, then at the ratio of two that were.

    a: a temperature of 0.5 squares the probabilities before they are scaled to 1: it leaves every word a
        chance, and all ratios of two words are squares.
    b: a temperature of 2 takes the root of all ratios of two words, and leaves every word a chance.
    c: top-p alone leaves out unlikely words and keeps the ratio of any two others. Compare ratios.
    d: with a temperature of 2 the words that are left have the roots of their former ratios.
    e: with nothing set each share is the model's probability.
    """,
)


# --- 02: which line of a batch is wrong? ----------------------------------------------------------


def a_row(rng):
    """One row of a batch, with its masks, of which one line may be wrong."""
    cause = rng.choice("abcde")
    left, prompt, said, right = (rng.randint(*ends) for ends in ((1, 3), (2, 4), (2, 3), (1, 2)))
    begins, ends = left + prompt, left + prompt + said + 1  # of the answer, with its EOS
    ids = [0] * left + [rng.randint(1, 99) for _ in range(prompt + said)] + [0] * (1 + right)
    columns = range(len(ids))
    attention = [int(left <= c < ends) for c in columns]
    positions = [max(c - left, 0) if c < ends else "" for c in columns]
    response = [int(begins <= c < ends) for c in columns]
    scored = [c - 1 if r else "" for c, r in zip(columns, response)]
    if cause == "a":  # ids != pad
        attention[ends - 1] = 0
    if cause == "b":
        positions = [c if c < ends else "" for c in columns]
    if cause == "c":
        column, value = rng.choice(((ends - 1, 0), (begins - 1, 1), (ends, 1)))
        response[column] = value
    if cause == "d":
        scored = [c if s != "" else "" for c, s in zip(columns, scored)]
    kinds = ["-"] * left + ["prompt"] * prompt + ["policy"] * (said + 1) + ["-"] * right
    lines = {
        "token id": ids, "written by": kinds, "a: attention mask": attention,
        "b: position": positions, "c: response mask": response, "d: logits' column": scored,
    }  # fmt: skip
    rows = [[name, *map(str, line)] for name, line in lines.items()]
    return Table(["column", *map(str, columns)], rows, {"cause": cause})


which(
    "wrong_line",
    a_row,
    text="""Which line of this row is wrong? e if none is.

    Enter one letter. The id 0 is EOS and padding at once.

    a: the attention mask is right: it has the prompt and the answer with its EOS, and no padding.
    b: the positions are right: they count real tokens from 0, whatever stands on their left.
    c: the response mask is right: what the policy wrote, its EOS included, and nothing else.
    d: these columns are right: a token is scored by the logits of the column before its own.
    e: one line is wrong. Find the first and the last column of the answer, and go through them.
    """,
)


# --- 03: what happened in this training? ----------------------------------------------------------


def a_fine_tuning(rng):
    """Losses on what is trained and on texts that are held out, of one of five trainings."""
    cause, vocabulary = rng.choice("abcde"), rng.choice((512, 1024, 8192, 50257))
    base = rng.choice((2.4, 2.6, 2.8))
    rows = []
    for i, step in enumerate((1, 50, 100, 200, 400, 800)):
        falls = base - 0.5 * (1 - 0.5**i)
        trained, other = {
            "a": (base * 0.15**i + 0.01, base * 0.15**i + 0.01),
            "b": (base * 0.6**i, falls + max(0, i - 2) * 0.35),
            "c": (base + (math.log(vocabulary) + 0.4 - base) * (1 - 0.3**i),) * 2,
            "d": (math.log(vocabulary) - (math.log(vocabulary) - base - 1.2) * (1 - 0.6**i),) * 2,
            "e": (falls, falls + 0.03),
        }[cause]
        rows.append(
            [str(step), *(f"{x * (1 + rng.gauss(0, 0.004)):.2f}" for x in (trained, other))]
        )
    rows.append(["known before: the base model", "", f"{base:.2f}"])
    rows.append([f"known before: log {vocabulary:,}", "", f"{math.log(vocabulary):.2f}"])
    return Table(["step", "loss, trained texts", "loss, held out"], rows, {"cause": cause})


which(
    "what_the_losses_say",
    a_fine_tuning,
    text="""Which of a to e happened in this fine-tuning?

    Enter one letter. Step 1 says what was loaded, the last step what was learned.

    a: where the label is the input, both losses fall to 0 within a few steps, on any text.
    b: with too few texts, read too often, only the loss of the trained ones goes on falling.
    c: too high a rate makes a model worse than it began: near the log of the vocabulary, or above.
    d: random weights would begin at the log of the vocabulary. Look at step 1.
    e: look at where it begins and ends, and compare the two columns: something is wrong.
    """,
)


# --- 18: what does an adapter train? --------------------------------------------------------------


def a_llama(rng):
    heads, head = rng.choice((8, 12, 16)), rng.choice((32, 64))
    facts = {
        "layers": rng.choice((12, 24, 30)), "heads": heads, "keys": heads // rng.choice((2, 4)),
        "head": head, "inner": rng.choice((3, 4)) * heads * head, "rank": rng.choice((4, 8, 16, 32)),
    }  # fmt: skip
    rows = [
        ["layers", facts["layers"]], ["width", heads * head], ["heads of queries", heads],
        ["heads of keys and of values", facts["keys"]], ["inner width of the MLP", facts["inner"]],
        ["rank of the adapters", facts["rank"]],
    ]  # fmt: skip
    return Table(["of a Llama", "number"], rows, facts)


@question(
    a_llama,
    mistakes="""
        fewer = keys * head -> fewer = width
            keys and values have fewer heads than queries, so their projections are narrower.
        return layers * rank * (attention + mlp) -> return layers * rank * attention
            the three projections of the MLP have adapters, too.
        attention = 4 * width + 2 * (width + fewer) -> attention = 2 * width + 2 * (width + fewer)
            there is a projection at the end of attention as well: from the heads back to the width.
        mlp = 3 * (width + inner) -> mlp = 2 * (width + inner)
            the MLP is gated: it has three projections, two up and one down.
        return layers * rank * (attention + mlp) -> return rank * (attention + mlp)
            that is one layer.
    """,
)
def adapter_weights(layers, heads, keys, head, inner, rank):
    """How many weights do the adapters of all seven projections of all layers train?

    Beside a projection from n to m numbers stand a matrix (rank, n) and one (m, rank).
    """
    width = heads * head
    fewer = keys * head
    attention = 4 * width + 2 * (width + fewer)
    mlp = 3 * (width + inner)
    return layers * rank * (attention + mlp)


# --- 20: which tokens are trained? ----------------------------------------------------------------


def a_transcript(rng):
    """An answer with one or two calls, token by token; a call is ':' and the tool's letters follow it."""
    answers = rng.choice((1, 2, 3))
    parts = [("prompt", rng.choice(("ab", "cd", "ef"))), ("policy", rng.choice("abc"))]
    for _ in range(rng.choice((1, 2))):
        parts += [("call", ":"), ("tool", "".join(rng.choice("abcdef") for _ in range(answers)))]
        parts += [("policy", "".join(rng.choice("abcdef") for _ in range(rng.choice((1, 2)))))]
    parts += [("end", "."), ("padding", "_" * rng.choice((1, 2)))]
    kinds = [kind for kind, text in parts for _ in text]
    tokens = "".join(text for _, text in parts)
    letters = "abcdefghijklmnopqrst"[: len(tokens)]
    rows = [["token", *tokens], ["name", *letters], ["letters that a call returns", str(answers)]]
    rows[-1] += [""] * (len(tokens) - 1)
    return Table(["", *map(str, range(len(tokens)))], rows, {"kinds": kinds, "letters": letters})


@question(
    a_transcript,
    mistakes="""
        ("policy", "call", "end") -> ("policy", "call", "tool", "end")
            the tool's letters were not drawn by the policy: they are read, and never trained on.
        ("policy", "call", "end") -> ("policy", "end")
            the policy chose to call. Without the call in the loss it never learns when to.
        ("policy", "call", "end") -> ("policy", "call")
            the end is an action as well: without it the policy does not learn when to stop.
        ("policy", "call", "end") -> ("prompt", "policy", "call", "end")
            the prompt is given.
        ("policy", "call", "end") -> ("policy", "call", "end", "padding")
            nothing after the end was drawn.
    """,
)
def tokens_in_the_loss(kinds, letters):
    """Which tokens have their log-probability in the loss? The prompt has two tokens, `_` is padding.

    Enter the names of all of them, such as "cdf". Ask of each token who chose it.
    """
    return "".join(n for n, kind in zip(letters, kinds) if kind in ("policy", "call", "end"))
