"""Entered answers: each question is solved again from the table that a reader sees, and by other means."""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grade
import hand_out
import numpy
import pytest
import torch
from course import entered
from course.questions import QUESTIONS
from course.questions.evidence import held, matched_rate, rate_of
from course.recorded import ended, preferences

from gpt.llama import Llama, LlamaConfig
from gpt.lora import add_adapters
from report.intervals import holm, t_interval
from rl.equations import advantages, best_of_n, losses
from rl.equations.preference_losses import dpo_loss

Rows = Sequence[Sequence[Any]]
each_question = pytest.mark.parametrize("name", sorted(QUESTIONS))


def numbers(rows: Rows) -> list[Any]:
    """The second column."""
    return [row[1] for row in rows]


def column(rows: Rows, place: int) -> torch.Tensor:
    return torch.tensor([float(row[place]) for row in rows], dtype=torch.float64)


def sampling(rows: Rows) -> str:
    """By the slope of log share over log probability, among words that were drawn."""
    p, share = column(rows, 1), column(rows, 2)
    drawn = share > 0
    x, y = p[drawn].log(), share[drawn].log()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    nearest = min((0.5, 1.0, 2.0), key=lambda s: abs(s - float(slope)))
    return {0.5: "b", 1.0: "e", 2.0: "a"}[nearest] if drawn.all() else "dc"[nearest == 1.0]


def line_of_batch(rows: Rows) -> str:
    ids, kinds, attention, positions, response, scored = (list(row[1:]) for row in rows)
    real = [kind != "-" for kind in kinds]
    if attention != ["1" if one else "0" for one in real]:
        return "a"
    if [int(p) for p, one in zip(positions, real, strict=True) if one] != list(range(sum(real))):
        return "b"
    if response != ["1" if kind == "policy" else "0" for kind in kinds]:
        return "c"
    right = [str(c - 1) for c, kind in enumerate(kinds) if kind == "policy"]
    return "e" if [s for s in scored if s] == right else "d"


def training(rows: Rows) -> str:
    *steps, (_, _, base), (_, _, most) = rows
    (_, begin, _), (_, end, other) = ([float(x) for x in row] for row in (steps[0], steps[-1]))
    base, most = float(base), float(most)
    if abs(begin - most) < 0.1 * most:
        return "d"
    if other > end + 0.5:
        return "b"
    return "a" if end < 0.2 else "c" if end > base + 1 else "e"


def adapters(rows: Rows) -> int:
    layers, width, heads, keys, inner, rank = (int(row[1]) for row in rows)
    config = LlamaConfig(
        vocab_size=8, context=8, n_layer=layers, n_head=heads, n_key_head=keys, n_embd=width, n_inner=inner
    )  # fmt: skip
    with torch.device("meta"):
        model = add_adapters(Llama(config), rank=rank)
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def trained_tokens(rows: Rows) -> str:
    tokens, names, returned = rows[0][1:], rows[1][1:], int(rows[2][1])
    kept, skip = "", 0
    for token, name in list(zip(tokens, names, strict=True))[2:]:
        kept += "" if skip or token == "_" else name
        skip = returned if token == ":" else max(skip - 1, 0)
    return kept


def best_baseline(rows: Rows) -> float:
    """The least noise of all baselines of a fine grid, every word listed."""
    p, R = column(rows, 1), column(rows, 2)
    gradients = torch.eye(3, dtype=torch.float64) - p
    grid = torch.linspace(-4, 8, 24_001, dtype=torch.float64)
    pushes = (R - grid[:, None])[:, :, None] * gradients
    mean = torch.einsum("y,gyk->gk", p, pushes)
    noise = torch.einsum("y,gyk->g", p, (pushes - mean[:, None]).square())
    return float(grid[noise.argmin()])


def row_of_k3(rows: Rows) -> str:
    """Its mean is the KL's, and its gradient is not 0."""
    letters = [row[0] for row in rows[1:] if abs(float(row[1]) - float(rows[0][1])) < 2e-3]
    moving = {row[0] for row in rows if any(abs(float(x)) > 5e-3 for x in row[3].split(","))}
    (found,) = moving.intersection(letters)
    return found


def the_lambda(rows: Rows) -> float:
    """The one whose advantages are the table's, by the library, tried in steps."""
    values, reward = column(rows, 2)[None], column(rows, 1)[None]
    whole = torch.ones(1, 5, dtype=torch.bool)
    tried = torch.linspace(0.3, 1, 141).tolist()
    return min(
        tried,
        key=lambda lam: float(
            (advantages.gae(reward, values, whole, 1.0, lam)[0] - column(rows, 3)).abs().max()
        ),
    )


def of_strengths(rows: Rows) -> float:
    """Bradley and Terry's own form: each answer has a strength, C's is 1."""
    (_, over_a), (_, over_b) = rows
    a, b = over_a / (1 - over_a), over_b / (1 - over_b)
    return a / (a + b)


def pushed(rows: Rows) -> float:
    """By the gradient of the library's loss for the marked token's log-probability."""
    lengths = torch.tensor([int(row[2]) for row in rows])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    (marked,) = (i for i, row in enumerate(rows) if row[3])
    log_ratio = torch.zeros(mask.shape, dtype=torch.float64)
    log_ratio[marked, 1] = math.log(float(rows[marked][3]))
    A = advantages.group_advantages(column(rows, 1), 4, eps=0.0)
    leaf = log_ratio.requires_grad_()
    loss = losses.sequence_mean(
        losses.clipped_surrogate(leaf, torch.zeros_like(leaf), A, 0.2, 0.2), mask
    )
    return -float(torch.autograd.grad(loss, leaf)[0][marked, 1])


def risen(rows: Rows) -> str:
    """By a small step of a policy of four logits along the gradient of the library's loss."""
    old, now, drawn = (column(rows, place) for place in (1, 2, 3))
    A = torch.tensor([float(row[4] or 0) for row in rows], dtype=torch.float64)
    logits = now.log().requires_grad_()
    words = torch.arange(4).repeat_interleave(drawn.long())
    new = logits.log_softmax(0)[words, None]
    loss = losses.clipped_surrogate(new, old.log()[words, None], A[words, None], 0.2, 0.2).mean()
    after = (logits - 1e-3 * torch.autograd.grad(loss, logits)[0]).log_softmax(0)
    return "".join(row[0] for row, more in zip(rows, after > now.log(), strict=True) if more)


def algorithm(rows: Rows) -> str:
    R, shown = column(rows, 1), column(rows, 2)
    centred = (R.view(2, 3) - R.view(2, 3).mean(1, keepdim=True)).flatten()
    made = {
        "a": advantages.leave_one_out_advantages(R, 3)[:, 0],
        "b": centred,
        "c": advantages.group_advantages(R, 3)[:, 0],
        "d": (R - R.mean()) / R.std(),
        "e": centred / centred.std(),
    }
    return min(made, key=lambda c: float((made[c] - shown).abs().max()))


def loss_of_pull(rows: Rows) -> str:
    """By the gradient of each loss at the table's ratios."""
    answers = column(rows, 0)
    lengths = [int((answers == i).sum()) for i in (1, 2)]
    mask = torch.arange(8) < torch.tensor(lengths)[:, None]
    A = torch.zeros(2, 8, dtype=torch.float64).masked_scatter(mask, column(rows, 2))
    log_ratio = torch.zeros_like(A).masked_scatter(mask, column(rows, 3).log())
    pull = {}
    for cause in "abcde":
        lp = log_ratio.clone().requires_grad_()
        if cause == "d":
            loss = -A * losses.mean_ratio(lp, torch.zeros_like(lp), mask)
        elif cause == "e":
            loss = losses.cispo(lp, torch.zeros_like(lp), A, 0.2)
        else:
            loss = losses.clipped_surrogate(lp, torch.zeros_like(lp), A, 0.2, 0.2)
        loss = torch.where(mask, loss, 0.0)
        by_length = {"a": (loss.sum(1) / mask.sum(1)).mean(), "c": loss.sum() / 8 / 2}
        by_length["d"] = by_length["a"]
        total = by_length.get(cause, loss.sum() / mask.sum())
        pull[cause] = -torch.autograd.grad(total, lp)[0][mask]
    return min(pull, key=lambda c: float((pull[c] - column(rows, 4)).abs().max()))


def smallest_group(rows: Rows) -> int:
    p, share = numbers(rows)
    for size in itertools.count(2):
        alike = math.comb(size, 0) * (1 - p) ** size + math.comb(size, size) * p**size
        if 1 - alike >= share:
            return size
    raise AssertionError


def beta_by_pull(rows: Rows) -> float:
    gap, share = numbers(rows)

    def pull(h: float, beta: float) -> float:
        x, zero = torch.tensor([float(h)], requires_grad=True), torch.zeros(1)
        return -float(torch.autograd.grad(dpo_loss(x, zero, zero, zero, beta).sum(), x)[0])

    low, high = 0.001, 2.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        too_strong = pull(gap, middle) > share * pull(0.0, middle)
        low, high = (middle, high) if too_strong else (low, middle)
    return low


def neither_widest_nor_narrowest(rows: Rows) -> str:
    """Forward KL covers both humps, log p alone sits on one word; the reverse KL lies between."""
    places = torch.arange(9.0)
    bells = [torch.tensor([float(x) for x in row[1:]]) for row in rows[1:]]
    widths = [float((q * (places - (q * places).sum()).square()).sum()) for q in bells]
    return "abc"[widths.index(sorted(widths)[1])]


def out_of_line(rows: Rows) -> str:
    ratio, kl, mean, entropy, share, words = (float(row[2]) for row in rows)
    wrong = [ratio > 1e-4, abs(kl) > 1e-3, abs(mean) > 1e-4, entropy > math.log(words), share > 1]
    return "abcdef"[wrong.index(True)] if any(wrong) else "f"


def correction(rows: Rows) -> str:
    w, shown = column(rows, 2) / column(rows, 1), column(rows, 3)
    whole = w.prod().expand(3)
    limits = [
        w.clamp(max=2), torch.where((w >= 0.5) & (w <= 2), w, 0.0), whole.clamp(max=2),
        torch.where((whole >= 0.5) & (whole <= 2), whole, 0.0), w.log().mean().exp().expand(3),
    ]  # fmt: skip
    far = [float((limit - shown).abs().max()) for limit in limits]
    return "abcde"[far.index(min(far))]


def beta_of(rows: Rows) -> float:
    """By listing answers: the beta whose best policy is that far from a normal reference."""
    (nats,) = numbers(rows)
    rewards = torch.linspace(-14, 14, 20_001, dtype=torch.float64)
    reference = (-(rewards**2) / 2).softmax(0)
    low, high = 0.01, 10.0
    for _ in range(60):
        middle = (low * high) ** 0.5
        best = (-(rewards**2) / 2 + rewards / middle).softmax(0)
        far = (best * (best / reference).log()).nansum()
        low, high = (middle, high) if far > nats else (low, middle)
    return middle


def interval(rows: Rows) -> float:
    found = t_interval((column(rows, 1) - column(rows, 2)).tolist())
    return (found["high"] - found["low"]) / 2


def gold_lost(rows: Rows) -> float:
    """The learned reward is the column that keeps rising: it has the higher last rank."""
    lines = [column(rows, 2).tolist(), column(rows, 3).tolist()]
    proxy, gold = sorted(lines, key=lambda line: line[0] - max(line))
    return max(gold) - gold[proxy.index(max(proxy))]


def standing(rows: Rows) -> str:
    corrected = holm({claim: float(p) for claim, p in rows})
    return "".join(claim for claim, p in corrected.items() if p <= 0.05)


def enough_pairs(rows: Rows) -> float:
    """The variance of what is 1, 1/2 or 0, listed."""
    rate, ties = numbers(rows)
    chance = {1.0: rate - ties / 2, 0.5: ties, 0.0: 1 - rate - ties / 2}
    variance = sum(p * (x - rate) ** 2 for x, p in chance.items())
    return ((1.96 + 0.8416) / (rate - 0.5)) ** 2 * variance


def matched(rows: Rows) -> float:
    alike = [row for row in rows if row[0] == row[1]]
    return sum(row[2] for row in alike) / sum(row[3] for row in alike)


def conclusions(rows: Rows) -> str:
    """By intervals of the shares."""
    (a, n), (b, _), (first, _), (alike, _) = (row[1:] for row in rows)
    half = 1.96 * 0.5 / math.sqrt(n)
    a, b, first, alike = a / n, b / n, first / n, alike / n
    true = [
        a - half > 0.5, not first - half < 0.5 < first + half, a - b > half * math.sqrt(2),
        b - half > 0.45 and b + half < 0.55, alike - half > 0.5,
    ]  # fmt: skip
    return "".join(itertools.compress("abcde", true))


def gigabytes(rows: Rows) -> float:
    policy, judge, gpus, tensor = numbers(rows)
    return sum([16 * policy / gpus, 2 * policy / gpus, 2 * judge / gpus, 2 * policy / tensor])


def cause_in_log(rows: Rows) -> str:
    first, last = ([float(x) for x in row[1:]] for row in (rows[0], rows[-1]))
    (reward, gold, _, _, error, _, ends), (before, *_) = last, first
    if error > 0.05:
        return "a"
    if max(float(row[4]) for row in rows) > 8:
        return "b"
    if ends < 0.8:
        return "c"
    return "d" if reward > before + 0.2 and gold < reward else "e"


def share_better(rows: Rows) -> float:
    accuracy, preferred = numbers(rows)
    says = [w * accuracy + (1 - w) * (1 - accuracy) for w in numpy.linspace(0, 1, 10_001)]
    return float(numpy.abs(numpy.array(says) - preferred).argmin()) / 10_000


SOLVED: dict[str, Callable[[Rows], Any]] = {
    "adapter_weights": adapters,
    "answers_within": lambda rows: max(
        n for n in range(1, 900) if best_of_n.best_of_n_kl(n) <= rows[0][1]
    ),
    "best_baseline": best_baseline,
    "beta_for_some_nats": beta_of,
    "beta_that_lets_go": beta_by_pull,
    "cause_of_the_jump": cause_in_log,
    "gigabytes_per_gpu": gigabytes,
    "gold_given_up": gold_lost,
    "group_size": smallest_group,
    "half_width": interval,
    "hard_prompts_weight": lambda rows: math.sqrt(
        numpy.var([1] * round(100 * rows[0][1]) + [0] * round(100 - 100 * rows[0][1]))
        / numpy.var([1] * round(100 * rows[1][1]) + [0] * round(100 - 100 * rows[1][1]))
    ),
    "impossible_number": out_of_line,
    "length_of_a_tenth": lambda rows: min(
        L for L in range(1, 500) if math.exp(-L * rows[0][1] ** 2) < rows[1][1]
    ),
    "matched_rate": matched,
    "never_compared": of_strengths,
    "price_for_the_end": lambda rows: max(rows[:4], key=lambda row: row[2])[0],
    "pairs_needed": enough_pairs,
    "push_on_a_token": pushed,
    "same_leash": lambda rows: rows[0][1] * (1 / rows[1][1]) * (1 / rows[2][1]),
    "steps_in_one_direction": lambda rows: sum([rows[0][1] ** 0.5] * rows[1][1]) ** 2,
    "three_starts": lambda rows: next(letter for letter, says in rows if "undecided" in says),
    "tokens_in_the_loss": trained_tokens,
    "true_share": share_better,
    "what_follows": conclusions,
    "what_the_losses_say": training,
    "which_claims_stand": standing,
    "which_is_k3": row_of_k3,
    "which_lambda": the_lambda,
    "which_sampling": sampling,
    "which_student": neither_widest_nor_narrowest,
    "which_weights": correction,
    "who_rises": risen,
    "whose_advantages": algorithm,
    "whose_pull": loss_of_pull,
    "wrong_line": line_of_batch,
}


@each_question
def test_who_reads_the_table_finds_the_right_answer(name: str) -> None:
    for number in range(12):
        answer = SOLVED[name](entered.sheet(name, number).rows)
        assert entered.verdict(name, answer, number).word == "right", (number, answer)


@each_question
def test_each_typical_mistake_is_refused_and_named(name: str) -> None:
    """Over forty tables; on some of them a mistake changes nothing."""
    seen: set[str] = set()
    question = QUESTIONS[name]
    for number in range(40):
        facts = entered.drawn(name, number).facts
        right = question.solution(**facts)
        assert entered.verdict(name, right, number).word == "right"
        for wrong, says in question.mistakes:
            answer = wrong(**facts)
            found = entered.verdict(name, answer, number)
            assert found.word == ("mistake" if found.mistake else "right")
            seen |= {says} if found.mistake == says else set()
            if found.word == "right" and not isinstance(right, str):
                assert abs(answer - right) <= 1.5 * question.tolerance * abs(right) + 1e-9
    assert seen == {says for _, says in question.mistakes} and len(seen) >= 2
    for answer, word in ((..., "empty"), (None, "empty"), ([1], "unusable")):
        assert entered.verdict(name, answer, 0).word == word
    other = "zz" if isinstance(right, str) else -1e9
    assert entered.verdict(name, other, 0).word == "other"
    assert entered.verdict(name, 1 if isinstance(right, str) else "a", 0).word == "unusable"


@each_question
def test_tables_differ_by_number_and_not_by_call(name: str) -> None:
    assert entered.sheet(name, 3) == entered.sheet(name, 3)
    answers = {str(entered.right_answer(name, number)) for number in range(30)}
    assert len(answers) >= 3


def test_the_step_after_the_prediction_shows_what_is_right() -> None:
    """The page's own run, on tables of many readers."""
    page = (grade.FOLDER / "10_rloo_and_reinforce_plus_plus.py").read_text(encoding="utf-8")
    (code,) = re.findall(r"^def after_one_step.*?(?=\n\n\n)", page, re.DOTALL | re.MULTILINE)
    space: dict[str, Any] = {"torch": torch, "Tensor": torch.Tensor}
    exec(code, space)
    for number in range(100):
        changes = space["after_one_step"](entered.sheet("who_rises", number).rows)
        assert (changes.abs() > 1e-5).all(), number
        rises = "".join(itertools.compress("abcd", (changes > 0).tolist()))
        assert rises == entered.right_answer("who_rises", number), number


@pytest.mark.parametrize(
    ("mine", "right", "tolerance", "met"),
    [
        (100.9, 100.0, 0.01, True),
        (98.4, 100.0, 0.01, False),
        (-100.0, 100.0, 0.01, False),
        (147, 147, 0.0, True),
        (147.4, 147, 0.0, False),
        (0.0, 0.0, 0.01, True),
        (1.0, 0.0, 0.01, False),
        (math.nan, 1.0, 0.01, False),
        ("C, a", "ac", 0.0, True),
        ("ab", "ac", 0.0, False),
    ],
)
def test_how_near_an_answer_must_be(mine: Any, right: Any, tolerance: float, met: bool) -> None:
    accepted = entered.keys(right, tolerance, around=2)
    assert any(key in accepted for key in entered.keys(mine, tolerance)) == met


def test_answers_by_hand() -> None:
    """Worked on paper, of tables that are written here."""
    counts = {
        (True, True): (6, 10), (True, False): (9, 10), (False, True): (0, 10), (False, False): (3, 5)
    }  # fmt: skip
    assert matched_rate(counts) == 9 / 15 and rate_of(counts) == 18 / 35
    sure: dict[str, Any] = {"n": 800, "won": {"A": 520, "B": 400}, "first": 500, "alike": 400}
    assert held(**sure) == "abcd"
    assert held(**sure | {"won": {"A": 416, "B": 408}, "first": 404}) == "d"
    assert ended(" Yes. ") and not ended("I find")
    worst = min(
        preferences()["policies"], key=lambda job: preferences()["policies"][job][-1]["ended"]
    )
    assert worst == "unpriced-0"


def test_a_question_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="pairs_needed"):
        entered.sheet("nothing", 0)


def test_every_question_is_asked_once_and_they_are_a_third_of_all_exercises() -> None:
    asked = [name for page in grade.FOLDER.glob("[0-9]*.py") for name in grade.asked_by(page.stem)]
    entered_names = [name for name in asked if name in QUESTIONS]
    assert sorted(entered_names) == sorted(QUESTIONS)
    assert 3 * len(entered_names) >= len(asked)


# --- what students get ----------------------------------------------------------------------------


def test_the_tree_for_students_checks_answers_and_holds_none(tmp_path: Path) -> None:
    """Solutions of entered questions are not in the tree, and the sealed ones say the same."""
    import mutation_check

    tree = mutation_check.repository_copy(tmp_path / "tree")
    hand_out.for_students(tree, students=2)
    assert not (tree / "notebooks" / "course" / "questions").exists()
    assert not (tree / "tests" / "test_questions.py").exists()
    sealed = json.loads((tree / "notebooks/course/sealed.json").read_text(encoding="utf-8"))
    assert sealed.keys() == QUESTIONS.keys()
    for page in sorted((tree / "notebooks").glob("[0-9]*.py")):
        assert "<summary>Solution" not in page.read_text(encoding="utf-8")
    right = {name: entered.right_answer(name, 1) for name in QUESTIONS}
    wrong = {name: "zz" if isinstance(right[name], str) else 1e9 for name in QUESTIONS}
    code = (
        "import json, sys; sys.path.insert(0, 'notebooks'); from course import entered\n"
        "answers = json.load(sys.stdin)\n"
        "words = [{n: entered.verdict(n, a, 1).word for n, a in each.items()} for each in answers]\n"
        "print(json.dumps(words))\n"
        "entered.table('which_is_k3', 2)\n"
        "try: entered.table('which_is_k3', 3)\n"
        "except ValueError: print('refused')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps([right, wrong]), cwd=tree, text=True,
        env={"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin", "MPLBACKEND": "Agg"}, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    found, refused = json.loads(first)
    assert set(found.values()) == {"right"} and set(refused.values()) == {"other"}
    assert last == "refused"
