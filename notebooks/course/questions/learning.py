"""Policy gradients, KL, rewards and losses: pages 04 to 12, 14 to 17, 19 and 22."""

from __future__ import annotations

import math
import statistics
from functools import cache

from course.questions import Table, numbers, question, which

# --- 04: which baseline? --------------------------------------------------------------------------


def three_words(rng):
    """Probabilities and rewards for which the best baseline is not the expected reward."""
    while True:
        parts = [rng.randint(1, 8) for _ in range(3)]
        p, R = [round(x / sum(parts), 2) for x in parts], rng.sample(range(-3, 8), 3)
        p[0] = round(1 - p[1] - p[2], 2)
        expected = sum(x * r for x, r in zip(p, R))
        best = best_baseline(p, R)
        if min(abs(best), abs(expected)) > 0.3 and abs(best - expected) > 0.08 * abs(best):
            break
    rows = [[word, x, r] for word, x, r in zip(("one", "two", "three"), p, R)]
    return Table(["word", "probability", "reward"], rows, {"p": p, "R": R})


def best_baseline(p, R):
    """Which constant baseline makes the gradient's noise smallest, all three logits taken together?

    The noise is the sum over the logits of the variances of (R - b) (one-hot - p). Search for b, or set
    its derivative to 0: an average of the rewards, in which not only p is the weight.
    """
    everywhere = sum(x * x for x in p)
    weights = [x * (1 - 2 * x + everywhere) for x in p]
    return sum(w * r for w, r in zip(weights, R)) / sum(weights)


question(
    three_words,
    mistakes="""
        [x * (1 - 2 * x + everywhere) for x in p] -> p
            that is E[R]: near the best, and not it. A word's reward counts by the square of its gradient.
        [x * (1 - 2 * x + everywhere) for x in p] -> [1] * len(p)
            that is the plain mean of the rewards, in which a rare word counts as much as a frequent one.
        [x * (1 - 2 * x + everywhere) for x in p] -> [1 - 2 * x + everywhere for x in p]
            you have left out how often each word is said.
    """,
)(best_baseline)

# --- 05: one leash, two codes ---------------------------------------------------------------------


@question(
    numbers(
        theirs=("their coefficient, of nats per token", 0.5, 1.0, 2.0),
        length=("tokens of an answer", 20, 40, 60, 120),
        scale=("you divide the rewards by", 2, 4, 5),
    ),
    mistakes="""
        theirs / length / scale -> theirs * length / scale
            a nat per token is many nats per answer, so your coefficient must be the smaller one.
        theirs / length / scale -> theirs / length * scale
            smaller rewards need a weaker leash: beta is how much reward a nat must bring.
        theirs / length / scale -> theirs / length
            your rewards are smaller than theirs, so that the same beta would hold more strongly.
        theirs / length / scale -> theirs / scale
            their penalty is a mean over tokens and yours is a sum.
    """,
)
def same_leash(theirs, length, scale):
    """Which beta, for the sum of k1 over an answer, holds your policy as their code holds theirs?

    Write both objectives for one answer and make the second a multiple of the first.
    """
    return theirs / length / scale


# --- 06: what nobody was asked --------------------------------------------------------------------


@question(
    numbers(
        over_a=("share who preferred A to C", 0.8, 0.85, 0.9, 0.95),
        over_b=("share who preferred B to C", 0.35, 0.4, 0.45, 0.6, 0.65),
    ),
    mistakes="""
        gaps[0] - gaps[1] -> gaps[0] + gaps[1]
            you add the two gaps. Both are measured from C, so their difference is the gap from B to A.
        gaps[0] - gaps[1] -> gaps[1] - gaps[0]
            that is how often they would prefer B to A.
        1 / (1 + math.exp(-(gaps[0] - gaps[1]))) -> 0.5 + over_a - over_b
            you subtract shares. What subtracts is the score, and a share is its sigmoid.
        1 / (1 + math.exp(-(gaps[0] - gaps[1]))) -> over_a * (1 - over_b)
            that is how often A wins against C *and* B loses: two verdicts, of which one may be otherwise.
        1 / (1 + math.exp(-(gaps[0] - gaps[1]))) -> over_a / (over_a + over_b)
            you compare the shares as if they were strengths. The strength is p / (1 - p).
    """,
)
def never_compared(over_a, over_b):
    """How often would they prefer A to B?

    Which gap of scores makes each of the two shares?
    """
    gaps = [math.log(share / (1 - share)) for share in (over_a, over_b)]
    return 1 / (1 + math.exp(-(gaps[0] - gaps[1])))


# --- 07: how hard is this token pushed? -----------------------------------------------------------


def four_answers(rng):
    """A group of four, and a token of one answer with its ratio; the clip acts on every second one."""
    clipped = rng.random() < 0.4
    while True:
        rewards, lengths = rng.sample(range(1, 10), 4), [rng.randint(2, 9) for _ in range(4)]
        marked, ratio = rng.randrange(4), rng.choice((0.6, 0.7, 0.9, 1.1, 1.4, 1.5))
        above = rewards[marked] > statistics.mean(rewards)
        far = ratio > 1.2 if above else ratio < 0.8
        if abs(rewards[marked] - statistics.mean(rewards)) > 1 and far == clipped:
            break
    rows = [
        [f"{i + 1}", f"{reward}", f"{length}", f"{ratio:.1f}" if i == marked else ""]
        for i, (reward, length) in enumerate(zip(rewards, lengths))
    ]
    columns = ["answer", "reward", "tokens", "ratio of the marked token"]
    facts = {"rewards": rewards, "lengths": lengths, "marked": marked, "ratio": ratio}
    return Table(columns, rows, facts)


@question(
    four_answers,
    mistakes="""
        statistics.stdev(rewards) -> statistics.pstdev(rewards)
            you divide by n in the standard deviation. This page divides by n - 1.
        ratio > 1.2 if A > 0 else ratio < 0.8 -> False
            this token is beyond the clip, in the direction of its advantage: nothing pushes it.
        ratio > 1.2 if A > 0 else ratio < 0.8 -> ratio > 1.2 or ratio < 0.8
            this token went the wrong way. There the minimum takes the unclipped product: it is pushed.
        weight / lengths[marked] / len(rewards) -> weight / sum(lengths)
            you average over all tokens at once. GRPO takes the mean of each answer first.
        weight / lengths[marked] / len(rewards) -> weight / lengths[marked]
            the mean over the four answers is missing.
        weight / lengths[marked] / len(rewards) -> -weight / lengths[marked] / len(rewards)
            that is the slope of the loss. The step goes down it, so the push has the other sign.
        weight = ratio * A -> weight = A
            the ratio is missing: it is the weight of a token that is not clipped.
        weight = ratio * A -> weight = min(max(ratio, 0.8), 1.2) * A
            you took the clipped ratio. Where the minimum takes the other product, the ratio is as it is.
    """,
)
def push_on_a_token(rewards, lengths, marked, ratio):
    """By which number is the gradient of the marked token's log-probability multiplied in the step?

    Its advantage, then the clip, then the two means.
    """
    A = (rewards[marked] - statistics.mean(rewards)) / statistics.stdev(rewards)
    stopped = ratio > 1.2 if A > 0 else ratio < 0.8
    weight = ratio * A
    return 0.0 if stopped else weight / lengths[marked] / len(rewards)


# --- 08: which k is it? ---------------------------------------------------------------------------

KINDS = {  # of x = log pi - log ref: the value, and its slope
    "k1": (lambda x: x, lambda x: 1.0),
    "k2": (lambda x: x * x / 2, lambda x: x),
    "k3": (lambda x: math.exp(-x) - 1 + x, lambda x: 1 - math.exp(-x)),
    "upside_down": (lambda x: math.exp(x) - 1 - x, lambda x: math.exp(x) - 1),
}


def four_estimators(rng):
    """Two policies of three words, and what four estimators make of them, over all samples."""
    while True:
        p, ref = (
            [w / sum(ws) for w in ws] for ws in ([rng.randint(1, 9) for _ in "abc"] for _ in "ab")
        )
        xs = [math.log(a / b) for a, b in zip(p, ref)]

        def mean(of, p=p, xs=xs):
            return sum(a * of(x) for a, x in zip(p, xs))

        kl = mean(KINDS["k1"][0])
        others = [mean(KINDS[k][0]) for k in ("k2", "upside_down")]
        if 0.15 < kl < 0.8 and all(abs(other / kl - 1) > 0.15 for other in others):
            break

    def gradient(slope):  # of the mean over fixed samples, for each logit
        return ", ".join(f"{a * (slope(x) - mean(slope)):+.3f}" for a, x in zip(p, xs))

    order = rng.sample(list(KINDS), 4)
    rows = [["the KL itself", f"{kl:.3f}", "", gradient(lambda x: x)]]
    for letter, name in zip("abcd", order):
        value, slope = KINDS[name]
        spread = math.sqrt(mean(lambda x, value=value: value(x) ** 2) - mean(value) ** 2)
        rows.append([letter, f"{mean(value):.3f}", f"{spread:.3f}", gradient(slope)])
    places = {name: "abcd"[order.index(name)] for name in order}
    columns = ["", "mean", "spread of one sample", "gradient as a loss, for three logits"]
    return Table(columns, rows, places)


which(
    "which_is_k3",
    four_estimators,
    right="k3",
    text="""Which of the rows a to d is k3?

    Enter one letter. Its mean is the KL; as a loss its gradient is another one.

    k1: its mean is the KL as well, but as a loss it has no gradient, and its samples scatter: k1.
    k2: its gradient is the KL's, and its mean is not: that is k2.
    upside_down: neither its mean nor its gradient is the KL's: this has the ratio upside down.
    """,
)


# --- 09: which lambda? ----------------------------------------------------------------------------


def some_advantages(rng):
    """Values, and the advantages that GAE makes of them with a lambda that is not said."""
    while True:
        lam = rng.choice((0.4, 0.5, 0.6, 0.7, 0.8, 0.9))
        values = [round(rng.uniform(0.1, 0.9), 2) for _ in range(5)]
        reward = rng.choice((0.0, 1.0))
        A, rest = [reward - values[-1]], values[:-1]
        for value, following in zip(reversed(rest), reversed(values)):
            A.insert(0, following - value + lam * A[0])
        if abs(A[-1]) > 0.3 and abs(values[-1] - values[-2]) > 0.1:
            break
    rows = [
        [f"{t + 1}", f"{reward if t == 4 else 0:g}", f"{v:.2f}", f"{a:.4f}"]
        for t, (v, a) in enumerate(zip(values, A))
    ]
    return Table(["token", "reward", "V", "advantage"], rows, {"values": values, "A": A})


@question(
    some_advantages,
    mistakes="""
        rose = values[-1] - values[-2] -> rose = 0
            you have left out the token's own TD error: what V gained from one token to the next.
        rose = values[-1] - values[-2] -> rose = -values[-2]
            the TD error of the token before the last has the last one's V in it, not 0.
        rose = values[-1] - values[-2] -> rose = values[-2] - values[-1]
            the TD error is turned round: V of the next token less V of this one.
        / A[-1] -> / A[-2]
            divide by the advantage of the *next* token: A = delta + lambda A_next.
    """,
    tolerance=0.02,
)
def which_lambda(values, A):
    """With which lambda were these advantages made? Gamma is 1.

    Begin with the last two tokens.
    """
    rose = values[-1] - values[-2]
    return (A[-2] - rose) / A[-1]


# --- 10: whose advantages are these? --------------------------------------------------------------


def two_groups(rng):
    """Rewards of two groups of three, and the advantages that one of five algorithms gives them."""
    cause = rng.choice("abcde")
    while True:
        groups = [[rng.randint(0, 8) for _ in range(3)] for _ in range(2)]
        means = [sum(group) / 3 for group in groups]
        spreads = [statistics.stdev(group) for group in groups]
        if (
            abs(means[0] - means[1]) > 1
            and min(spreads) > 0.9
            and abs(spreads[0] - spreads[1]) > 0.4
        ):
            break
    rewards = [reward for group in groups for reward in group]
    centred = [r - mean for group, mean in zip(groups, means) for r in group]
    whole, mean = statistics.stdev(rewards), statistics.mean(rewards)
    made = {
        "a": [1.5 * c for c in centred],
        "b": centred,
        "c": [c / spreads[i // 3] for i, c in enumerate(centred)],
        "d": [(r - mean) / whole for r in rewards],
        "e": [c / statistics.stdev(centred) for c in centred],
    }[cause]
    rows = [[f"{i // 3 + 1}", f"{r}", f"{a:+.3f}"] for i, (r, a) in enumerate(zip(rewards, made))]
    return Table(["prompt", "reward", "advantage"], rows, {"cause": cause})


which(
    "whose_advantages",
    two_groups,
    text="""Which of the algorithms a to e made these advantages?

    Enter one letter. Does each group sum to 0? Have both groups the same unit?

    a: RLOO's are in units of the reward, and G / (G - 1) times the distance from the group's mean.
    b: with the group's mean alone an advantage is the reward less that mean, and nothing else.
    c: GRPO divides each group by its own deviation, so that both groups have the same spread.
    d: plain REINFORCE++ takes the mean of the whole batch, so that a group need not sum to 0.
    e: the baseline form centres each group, and divides both by one number: their ratio shows which.
    """,
)


# --- 10: which words rise? ------------------------------------------------------------------------


def four_words(rng):
    """A policy of four words and a batch: one good word is beyond the clip, one word was never drawn."""
    several = rng.random() < 0.5
    while True:
        good, bad = rng.randint(8, 40), rng.randint(8, 40)
        far, never = rng.randint(5, 20), rng.randint(5, 40)
        old = [good, bad, far, 100 - good - bad - far]
        now = [round(good * rng.uniform(0.85, 1.15)), round(bad * rng.uniform(0.85, 1.15))]
        now += [round(far * rng.uniform(1.25, 1.8))]
        now += [100 - sum(now)]
        drawn = [rng.randint(2, 6), rng.randint(2, 6), rng.randint(2, 6), 0]
        advantages = [rng.choice((0.4, 0.8, 1.2)), -rng.choice((0.4, 0.8, 1.2)), 1.2, 0.0]
        if min(old[3], now[3]) < never or not all(0.8 < a / b < 1.2 for a, b in zip(now[:2], old)):
            continue
        order = rng.sample(range(4), 4)
        p, ratios = [now[i] / 100 for i in order], [now[i] / old[i] for i in order]
        facts = {"p": p, "ratios": ratios, "drawn": [drawn[i] for i in order]}
        facts["advantages"] = [advantages[i] for i in order]
        changes, mean = changes_of_logits(**facts)
        clear = min(abs(x - mean) for x in changes) > 0.05 * max(map(abs, changes))
        good_ones = {"abcd"[order.index(0)], "abcd"[order.index(2)]}
        rises = who_rises(**facts)
        if clear and set(rises) != good_ones and (len(rises) > 1) == several:
            break
    rows = [
        ["abcd"[i], f"{old[j] / 100:.2f}", f"{p[i]:.2f}", f"{drawn[j]}",
         f"{advantages[j]:+.1f}" if drawn[j] else ""]
        for i, j in enumerate(order)
    ]  # fmt: skip
    columns = ["word", "probability when sampled", "now", "times drawn", "advantage"]
    return Table(columns, rows, facts)


def changes_of_logits(p, ratios, drawn, advantages, clip=0.2):
    """How a small step changes each logit, up to a factor, and the mean of that under p."""
    push = [
        n * A * r * (abs(r - 1) <= clip or (r > 1) != (A > 0))
        for r, n, A in zip(ratios, drawn, advantages)
    ]
    changes = [x - q * sum(push) for x, q in zip(push, p)]
    return changes, sum(q * x for q, x in zip(p, changes))


def who_rises(p, ratios, drawn, advantages):
    """Which words will be likelier after the step?

    A draw with the advantage A changes each logit by A times (1 for the drawn word, else 0, less p). A
    word is likelier where its logit changes by more than the mean under p.
    """
    changes, mean = changes_of_logits(p, ratios, drawn, advantages)
    return "".join(word for word, x in zip("abcd", changes) if x > mean)


question(
    four_words,
    mistakes="""
        zip("abcd", changes) if x > mean -> zip("abcd", advantages) if x > 0
            you name the words with a positive advantage. One of them is beyond the clip, so nothing pushes
            it, and each push on a word moves all the others.
        zip("abcd", changes) if x > mean
        -> zip("abcd", advantages) if x > 0 and ratios["abcd".index(word)] <= 1.2
            you name the word that is pushed up. Its push, and the one on the bad word, move the others too,
            because all of them add up to 1.
        changes_of_logits(p, ratios, drawn, advantages)
        -> changes_of_logits(p, ratios, drawn, advantages, 9)
            you let the word beyond the clip be pushed as well.
        if x > mean -> if x > 0
            you name the words whose logit rises. Where all logits rise, the one that rises least falls.
    """,
)(who_rises)


# --- 11: whose gradient is it? --------------------------------------------------------------------


def two_answers(rng):
    """Two answers, and how strongly one of five losses pulls each of their tokens."""
    cause = rng.choice("abcde")
    lengths, advantages = rng.choice(((2, 4), (2, 5), (3, 5))), (1.0, -1.0)
    ratios = [[rng.choice((0.9, 1.0, 1.1, 1.15)) for _ in range(n)] for n in lengths]
    place = rng.randrange(lengths[0])
    ratios[0][place] = rng.choice((1.3, 1.4))  # beyond a clip at 1.2
    tokens = sum(lengths)
    rows = []
    for i, (n, A) in enumerate(zip(lengths, advantages)):
        whole = math.prod(ratios[i]) ** (1 / n)
        for t, ratio in enumerate(ratios[i]):
            inside = 0 if A > 0 and ratio > 1.2 else A * ratio
            pull = {
                "a": inside / n / 2, "b": inside / tokens, "c": inside / 8 / 2,
                "d": A * whole / n / 2, "e": A * min(ratio, 1.2) / tokens,
            }[cause]  # fmt: skip
            rows.append([f"{i + 1}", f"{t + 1}", f"{A:+g}", f"{ratio:.2f}", f"{pull:+.4f}"])
    return Table(["answer", "token", "advantage", "ratio", "pull"], rows, {"cause": cause})


which(
    "whose_pull",
    two_answers,
    text="""Which of the losses a to e pulls like this?

    Enter one letter. Look at the token whose ratio is beyond 1.2, then divide pull by ratio.

    a: GRPO divides by the answer's own length first, and a token beyond the clip has no pull.
    b: with DAPO's mean all tokens of the batch weigh the same, and one beyond the clip has no pull.
    c: Dr. GRPO divides by the 8 tokens that an answer may have, whatever its length.
    d: GSPO has one ratio for an answer, so that all its tokens are pulled alike.
    e: CISPO pulls a token beyond the clip as well, with the weight of the clip.
    """,
)


# --- 12: how large a group? -----------------------------------------------------------------------


@question(
    numbers(
        p=("an answer is right with the chance", 0.03, 0.05, 0.1, 0.9, 0.95),
        share=("share of the groups that shall teach something", 0.5, 0.7, 0.8),
    ),
    mistakes="""
        1 - p**size - (1 - p) ** size < share -> 1 - (1 - p) ** size < share
            a group of right answers alone teaches nothing either.
        1 - p**size - (1 - p) ** size < share -> 1 - p**size < share
            a group of wrong answers alone teaches nothing either.
        1 - p**size - (1 - p) ** size < share -> size * p < share
            you ask for how many right answers one may expect. A group may have two and another none.
        return size -> return size - 1
            nearly: with one answer less the share is still too small.
    """,
)
def group_size(p, share):
    """What is the smallest group of which at least that share teaches something?

    Page 12, section 4, has the formula. Write a loop over sizes.
    """
    size = 2
    while 1 - p**size - (1 - p) ** size < share:
        size += 1
    return size


# --- 14: which beta lets go? ----------------------------------------------------------------------


@question(
    numbers(
        gap=("gap h, in nats", 10, 15, 20, 30),
        share=("share of a fresh pair's pull", 0.1, 0.2, 0.3),
    ),
    mistakes="""
        math.log(2 / share - 1) -> math.log(1 / share - 1)
            a fresh pair, with h = 0, pulls with half of beta and not with beta.
        math.log(2 / share - 1) -> -math.log(2 / share - 1)
            the pull must fade where the pair is in order: that is a positive beta.
        math.log(2 / share - 1) -> math.log(1 / share)
            the pull fades like a sigmoid, which is an exponential only far out.
        / gap -> * gap
            the further a pair may go, the smaller is beta.
    """,
    tolerance=0.02,
)
def beta_that_lets_go(gap, share):
    """For which beta does DPO pull a pair with that gap by that share of what it pulls a fresh pair?

    The pull is beta sigmoid(-beta h).
    """
    return math.log(2 / share - 1) / gap


# --- 15: which divergence made this student? ------------------------------------------------------


def bell(middle, width):
    weights = [math.exp(-(((x - middle) / width) ** 2) / 2) for x in range(9)]
    return [max(w / sum(weights), 1e-12) for w in weights]


@cache
def students(first, second, share):
    """A teacher with two humps, and the bells that come nearest to it in three senses."""
    teacher = [share * a + (1 - share) * b for a, b in zip(bell(first, 0.7), bell(second, 0.7))]
    bells = [bell(m / 2, w / 5) for m in range(17) for w in range(3, 16)]

    def best(of):
        return min(bells, key=lambda q: sum(of(p, x) for p, x in zip(teacher, q)))

    return teacher, {
        "forward": best(lambda p, q: p * math.log(p / q)),
        "reverse": best(lambda p, q: q * math.log(q / p)),
        "likeliest": best(lambda p, q: -q * math.log(p)),
    }


def three_students(rng):
    teacher, made = students(
        rng.choice((1, 2)), rng.choice((6, 7)), rng.choice((0.3, 0.35, 0.65, 0.7))
    )
    order = rng.sample(list(made), 3)
    lines = {"teacher": teacher} | {c: made[name] for c, name in zip("abc", order)}
    rows = [[name, *(f"{x:.3f}" for x in line)] for name, line in lines.items()]
    columns = ["probability of word", *"123456789"]
    return Table(columns, rows, {name: "abc"[order.index(name)] for name in order})


which(
    "which_student",
    three_students,
    right="reverse",
    text="""Which of the students a to c was trained with the *reverse* KL?

    Enter one letter. Each can only be a bell, so none can have both humps alone.

    forward: this student covers both humps, and says much that the teacher hardly ever says: forward KL.
    likeliest: this student says little else than the teacher's likeliest word: log p alone, without -log
        q.
    """,
)


# --- 16: steps in one direction -------------------------------------------------------------------


@question(
    numbers(
        nats=("nats of one step, at most", 0.01, 0.02, 0.05),
        steps=("steps, all in one direction", 4, 5, 6, 8),
    ),
    mistakes="""
        (steps * math.sqrt(nats)) ** 2 -> steps * nats
            you add up nats. Distances add up, and a distance is the root of its nats.
        (steps * math.sqrt(nats)) ** 2 -> nats
            that bounds one batch, against the one before. Nothing bounds their sum.
        (steps * math.sqrt(nats)) ** 2 -> steps * math.sqrt(nats)
            that is the distance. The KL is its square.
    """,
)
def steps_in_one_direction(nats, steps):
    """By the rule of the square, how many nats would the policy be from its start?

    For small steps the KL is the square of a distance. Which of the two adds up from batch to batch?
    """
    return (steps * math.sqrt(nats)) ** 2


# --- 17: which number cannot be? ------------------------------------------------------------------


def a_first_step(rng):
    """Numbers of a right GRPO run before its first update, of which one may be out of line."""
    cause, vocabulary = rng.choice("abcdef"), rng.choice((512, 1024, 4096))
    normal = {
        "a": f"{rng.uniform(1, 9):.1f}e-07", "b": f"{rng.uniform(1, 9):.1f}e-06",
        "c": f"{rng.uniform(1, 9):.1f}e-08", "d": f"{rng.uniform(1.5, 3.5):.2f}",
        "e": f"{rng.uniform(0.05, 0.6):.2f}",
    }  # fmt: skip
    odd = {
        "a": f"{rng.uniform(0.01, 0.08):.3f}", "b": f"{rng.uniform(0.5, 3):.2f}",
        "c": f"{rng.uniform(0.2, 0.6):.2f}", "d": f"{math.log(vocabulary) + rng.uniform(0.8, 2):.2f}",
        "e": f"{rng.uniform(1.05, 1.4):.2f}",
    }  # fmt: skip
    words = {
        "a": "ratio_error_at_start", "b": "kl, in nats per response", "c": "mean of the advantages",
        "d": "entropy, in nats per token", "e": "share of groups with equal rewards",
    }  # fmt: skip
    values = normal | ({cause: odd[cause]} if cause in odd else {})
    rows = [[letter, words[letter], values[letter]] for letter in words]
    rows.append(["", "tokens of the vocabulary", f"{vocabulary}"])
    return Table(["", "at step 1, before an update", "number"], rows, {"cause": cause})


which(
    "impossible_number",
    a_first_step,
    text="""Which of these numbers cannot be right in float32? f if all can.

    Enter one letter.

    a: the ratio is 1 up to rounding: the policy is the one that sampled. So a is as it must be.
    b: at step 1 the policy is the reference, and the KL is 0 up to rounding. So b is as it must be.
    c: a group's advantages average to 0 up to rounding. So c is as it must be.
    d: an entropy may be anything from 0 to the log of the vocabulary. So d can be.
    e: a share may be anything from 0 to 1. So e can be, and only if it is high there is little signal.
    f: one number cannot be. Say for each what it must be at step 1, or between which ends.
    """,
)


# --- 19: how long until a tenth is left? ----------------------------------------------------------


@question(
    numbers(
        deviation=("deviation of a token's log-ratio", 0.1, 0.15, 0.2, 0.3),
        share=("effective share of the answers", 0.1, 0.2, 0.3),
    ),
    mistakes="""
        variance = deviation**2 -> variance = deviation
            you let standard deviations add up. Variances do.
        variance = deviation**2 -> variance = deviation**2 / 2
            your share is exp(-variance / 2). It is E[w]^2 / E[w^2] = exp(-variance).
        math.floor(-math.log(share) / variance) + 1 -> math.floor(-math.log(share) / variance)
            nearly: with so many tokens the share is still above it.
    """,
)
def length_of_a_tenth(deviation, share):
    """From which length on is the unbounded weight of the whole answer worth less than that share?

    Log-ratios of tokens add up, so their variance is the length times that of one, and the effective
    share of the answers is exp(-variance).
    """
    variance = deviation**2
    return math.floor(-math.log(share) / variance) + 1


# --- 19: which correction made these weights? -----------------------------------------------------


def truncated(weights):
    return [min(w, 2.0) for w in weights]


def masked(weights):
    return [w if 0.5 <= w <= 2 else 0.0 for w in weights]


def an_old_answer(rng):
    """Probabilities of three tokens under sampler and policy, and one of five kinds of weights."""
    while True:
        mu, old = ([rng.choice((0.1, 0.2, 0.3, 0.4, 0.5, 0.6)) for _ in range(3)] for _ in range(2))
        token = [b / a for a, b in zip(mu, old)]
        whole = [math.prod(token)] * 3
        geometric = [whole[0] ** (1 / 3)] * 3
        kinds = [truncated(token), masked(token), truncated(whole), masked(whole), geometric]
        apart = all(kinds[i] != kinds[j] for i in range(5) for j in range(i))
        if apart and 0.6 < geometric[0] < 1.9:
            break
    cause = rng.choice("abcde")
    made = kinds["abcde".index(cause)]
    rows = [[f"{t + 1}", a, b, f"{w:.3f}"] for t, (a, b, w) in enumerate(zip(mu, old, made))]
    columns = ["token", "probability under the sampler", "under the policy", "weight"]
    return Table(columns, rows, {"cause": cause})


which(
    "which_weights",
    an_old_answer,
    text="""Which of the corrections a to e made these weights?

    Enter one letter. Write the three ratios, their product, and its third root beside the table.

    a: a is the policy's probability over the sampler's, token by token, and 2 where that is more.
    b: b is the same ratio, and 0 where it is outside of 0.5 to 2.
    c: c is the product of the three ratios, at most 2, for all tokens alike.
    d: d is the product of the three ratios, or 0 outside of 0.5 to 2.
    e: e is the third root of the product.
    """,
)


# --- 22: choose a beta, and read a comparison -----------------------------------------------------


@question(
    numbers(
        nats=("nats from the reference", 1, 2, 3, 4, 5, 8),
    ),
    mistakes="""
        1 / math.sqrt(2 * nats) -> 1 / (2 * nats)
            the KL of two normal distributions is half the *square* of the distance, here 1 / beta.
        1 / math.sqrt(2 * nats) -> 1 / math.sqrt(nats)
            the half is missing: the KL is (1 / beta)^2 / 2.
        1 / math.sqrt(2 * nats) -> math.sqrt(2 * nats)
            this is 1 / beta, how much reward it gains. A weak hold is a small beta.
        1 / math.sqrt(2 * nats) -> 1 / nats
            the KL is not 1 / beta: it is half the square of that.
    """,
    tolerance=0.02,
)
def beta_for_some_nats(nats):
    """Which beta lets the best policy go so many nats from the reference?

    It is the reference times exp(R / beta), here a normal distribution moved by 1 / beta.
    """
    return 1 / math.sqrt(2 * nats)


def three_seeds(rng):
    """Final rewards of two engines from the same three starts, which differ more than the engines do."""
    starts = [rng.uniform(0.5, 0.7) for _ in range(3)]
    theirs = [round(s, 3) for s in starts]
    mine = [round(s + 0.03 + rng.uniform(-0.02, 0.02), 3) for s in starts]
    if len({round(a - b, 3) for a, b in zip(mine, theirs)}) < 3:
        return three_seeds(rng)
    rows = [[f"{i}", f"{a:.3f}", f"{b:.3f}"] for i, (a, b) in enumerate(zip(mine, theirs))]
    return Table(["seed", "my_engine", "grpo_engine"], rows, {"mine": mine, "theirs": theirs})


@question(
    three_seeds,
    mistakes="""
        student = 4.303 -> student = 1.96
            1.96 is for many seeds. With three, Student's distribution has two degrees of freedom: 4.303.
        statistics.stdev(differences) -> math.hypot(statistics.stdev(mine), statistics.stdev(theirs))
            the runs of a seed belong together: take the deviation of the *differences*.
        / math.sqrt(3) -> / 1
            that is the interval of one more seed. The mean of three is steadier by the root of 3.
        statistics.stdev(differences) -> statistics.pstdev(differences)
            with the mean taken from the same three numbers, divide the squares by 2 and not by 3.
    """,
    tolerance=0.02,
)
def half_width(mine, theirs):
    """How wide is the 95% interval of the paired difference, from its middle to one end?

    Differences, their standard deviation, the root of their number, and Student's 4.303.
    """
    differences = [a - b for a, b in zip(mine, theirs)]
    student = 4.303
    return student * statistics.stdev(differences) / math.sqrt(3)
