"""The first gradient of every engine is -sum_i w_i grad log pi(y_i): each row of ROWS says its w.

The third one shows where a KL stands, and which, once the policy has left the reference.

MiniLLM and on-policy distillation have a KL over the vocabulary besides: tests/nano, their own files.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from engines import (
    DIVERSE,
    ENGINES,
    HAS_A,
    OFFLINE,
    PAIRS,
    SHARE_OF_A,
    SHARP_TEACHER,
    LetterSteps,
    engine_named,
    small_gpt,
)
from slow import Answer, assert_gradient, chosen, differ, tokens_of, weighted_gradient, z_scores
from watched import HALVES, Updates, calls_of, given_halves

from gpt.model import GPT
from rl import loop
from rl.batches.rollout import Rollout
from rl.equations.kl import FixedKL
from rl.grpo_variants_engine import REDUCERS, VARIANTS, from_variant

HALF = HALVES[0]  # the first minibatch, of two whole groups


@dataclass(frozen=True)
class Row:
    """An engine, its flags, and the weights of the responses, one number or one for each token."""

    engine: str
    options: Mapping[str, Any]
    weights: Callable[[Rollout, GPT], list]  # of all 16 responses, or those of all answers
    pairs: Callable[[Rollout, GPT], list[Answer]] = lambda rollout, start: []  # with their weights
    metrics: Mapping[str, float] = field(default_factory=dict)  # what the step logs


# --- rewards and advantages by `statistics` -------------------------------------------------------


def diverse(rollout: Rollout) -> list[float]:
    return DIVERSE(rollout).tolist()


def groups(values: list[float]) -> Iterator[list[float]]:
    yield from (values[i : i + 4] for i in range(0, len(values), 4))


def standard(values: list[float]) -> tuple[float, float]:
    return statistics.mean(values), statistics.stdev(values)


def taught(rollout: Rollout, start: GPT, reward: str) -> list[list[float]]:
    """What a teacher pays for each token."""
    rows = []
    for i in range(len(rollout)):
        p, q = (chosen(model, *tokens_of(rollout, i)) for model in (SHARP_TEACHER, start))
        own = reward == "reverse_kl"
        rows.append([(a - own * b).item() for a, b in zip(p, q, strict=True)])
    return rows


def over_length(advantages: list, rollout: Rollout) -> list:
    """A_it / L_i / rows of the minibatch."""
    lengths = rollout.lengths.tolist()
    tokens = [
        a if isinstance(a, list) else [a] * n for a, n in zip(advantages, lengths, strict=True)
    ]
    return [[a / len(row) / len(HALF) for a in row] for row in tokens]


def tokens_of_half(rollout: Rollout) -> int:
    return int(rollout.lengths[HALF].sum())


# --- the weights ----------------------------------------------------------------------------------


def grpo(rollout: Rollout, start: GPT) -> list:
    return over_length(z_scores(diverse(rollout)), rollout)


def process(rollout: Rollout, start: GPT) -> list:
    """The z-scores, among all steps of the group, of the steps that end at a token or later."""
    source, advantages = LetterSteps(), []
    for first in range(0, len(rollout), 4):
        steps = [
            (i, *step) for i in range(first, first + 4) for step in source.steps_of(rollout, i)
        ]
        scores = z_scores([source.worth(text) for _, _, text in steps], len(steps))
        for i in range(first, first + 4):
            own = [(end, z) for (k, end, _), z in zip(steps, scores, strict=True) if k == i]
            length = int(rollout.lengths[i])
            advantages.append([sum(z for end, z in own if end >= t) for t in range(length)])
    return over_length(advantages, rollout)


def scaled(values: list[float], scale: str) -> list[float]:
    """(R - mean of four) over the spread that the variant takes."""
    advantages = []
    for group in groups(values):
        mean = statistics.mean(group)
        divisor = {
            "group": statistics.stdev(group) + 1e-4,
            "batch": statistics.stdev(values) + 1e-4,
            "none": 1.0,
            "mean": mean or 1.0,
        }[scale]
        advantages += [(value - mean) / divisor for value in group]
    return advantages


def reduced(advantages: list[float], lengths: list[int], reducer: str) -> list[float]:
    """Times the weight of a token of each row; a row of length 0 is left out. 8 tokens are sampled."""
    rows, tokens = sum(lengths[i] > 0 for i in HALF), sum(lengths[i] for i in HALF)
    divisors = [
        {
            "sequence_mean": length * rows,
            "token_mean": tokens,
            "sequence_sum": rows,
            "constant_length_mean": 8 * len(HALF),
        }[reducer]
        for length in lengths
    ]
    given = zip(advantages, lengths, divisors, strict=True)
    return [a / divisor if length else 0.0 for a, length, divisor in given]


def variant(name: str) -> Row:
    """All surrogates begin as -A log pi: a variant differs by rewards, advantages and weights."""
    config, reward = from_variant(name), HAS_A if name == "maxrl" else DIVERSE

    def weights(rollout: Rollout, start: GPT) -> list[float]:
        values, lengths = reward(rollout).tolist(), rollout.lengths.tolist()
        assert 8 in lengths
        if name == "dapo":  # a fifth of 8 tokens: 0 up to 7 tokens, -1 at 8
            values = [value - (length == 8) for value, length in zip(values, lengths, strict=True)]
        return reduced(scaled(values, config.reward_scale), lengths, config.reducer)

    return Row("grpo_variants", VARIANTS[name] | dict(variant=name, reward_fn=reward), weights)


def truncated(reducer: str, scale: str) -> Row:
    """Truncated responses leave the loss and stay in the baseline."""

    def weights(rollout: Rollout, start: GPT) -> list[float]:
        ended = rollout.has_eos.tolist()
        assert 2 < sum(ended) < 14
        lengths = [n * end for n, end in zip(rollout.lengths.tolist(), ended, strict=True)]
        return reduced(scaled(diverse(rollout), scale), lengths, reducer)

    options = dict(reducer=reducer, reward_scale=scale, mask_truncated=True)
    return Row("grpo_variants", options, weights)


def rloo(form: str) -> Callable[[Rollout, GPT], list]:
    """The value minus the mean of the other three, whatever the length of the response."""

    def weights(rollout: Rollout, start: GPT) -> list[float]:
        divisor = tokens_of_half(rollout) if form == "token" else len(HALF)
        centred = scaled(diverse(rollout), "none")  # a - (sum - a) / 3 = 4/3 (a - mean of four)
        return [4 / 3 * a / divisor for a in centred]

    return weights


def reinforce_pp(baseline: bool, over: str) -> Callable[[Rollout, GPT], list]:
    """Normalised over all tokens of the batch, or over its responses."""

    def weights(rollout: Rollout, start: GPT) -> list:
        values, lengths = diverse(rollout), rollout.lengths.tolist()
        raw = scaled(values, "none") if baseline else values
        counts = lengths if over == "token" else [1] * len(raw)
        mean, spread = standard([a for a, n in zip(raw, counts, strict=True) for _ in range(n)])
        return over_length([(a - mean) / spread for a in raw], rollout)

    return weights


def ppo(rollout: Rollout, start: GPT) -> list[float]:
    """Lambda 1 and a critic of zeros: the reward of the response, whitened over all tokens."""
    values, lengths = diverse(rollout), rollout.lengths.tolist()
    mean, spread = standard([v for v, n in zip(values, lengths, strict=True) for _ in range(n)])
    return [(value - mean) / spread / tokens_of_half(rollout) for value in values]


def kd_grpo(form: str, reward: str) -> Callable[[Rollout, GPT], list]:
    def weights(rollout: Rollout, start: GPT) -> list:
        rows = taught(rollout, start, reward)
        values = [sum(row) / (len(row) if reward == "mean" else 1) for row in rows]
        if form == "reinforce":
            return [a / len(HALF) for a in z_scores(values)]
        return over_length(z_scores(values), rollout)

    return weights


def kd_ppo(placement: str) -> Callable[[Rollout, GPT], list]:
    """PPO's, whose rewards stand at every token, or their sum at the last one."""

    def weights(rollout: Rollout, start: GPT) -> list:
        rows = taught(rollout, start, "reverse_kl")
        first = placement == "terminal"
        to_go = [[sum(row[0 if first else t :]) for t in range(len(row))] for row in rows]
        mean, spread = standard([a for row in to_go for a in row])
        return [[(a - mean) / spread / tokens_of_half(rollout) for a in row] for row in to_go]

    return weights


def sides(pairs: list, factor: float, length_norm: bool = False) -> list[Answer]:
    """factor / pairs on each chosen answer and minus that on each rejected one."""
    answers = []
    for prompt, better, worse in pairs:
        for response, sign in ((better, 1), (worse, -1)):
            divisor = len(pairs) * (len(response) if length_norm else 1)
            answers.append((prompt, response, sign * factor / divisor))
    return answers


def nothing(rollout: Rollout, start: GPT) -> list:
    return []


def dpo(factor: float, first_loss: float, **options: Any) -> Row:
    def pairs(rollout: Rollout, start: GPT) -> list[Answer]:
        given = [(pair.prompt, pair.chosen, pair.rejected) for pair in PAIRS]
        return sides(given, factor, options.get("length_norm", False))

    none = dict.fromkeys(("margin", "reward_chosen", "reward_rejected", "drift"), 0.0)
    return Row("dpo", options | dict(batch_size=6), nothing, pairs, dict(loss=first_loss) | none)


def pg_grpo(mode: str, smoothing: float, length_norm: bool, kl_coef: float) -> Row:
    """GRPO's, and those of the pairs: L_pref is ln 2, its slope (beta/2)(1 - 2 smoothing)."""

    def pairs(rollout: Rollout, start: GPT) -> list[Answer]:
        values, found = diverse(rollout), []
        if mode in ("offline", "both"):
            found += [(pair.prompt, pair.chosen, pair.rejected) for pair in OFFLINE]
        for first in (HALF[0], HALF[4]):
            group = sorted(range(first, first + 4), key=lambda i: values[i])
            ranked = [(group[0], group[3])] if mode in ("best_worst", "both") else []
            ranked = list(itertools.combinations(group, 2)) if mode == "all" else ranked
            for worse, better in ranked:
                prompt, response = tokens_of(rollout, better)
                found.append((prompt, response, tokens_of(rollout, worse)[1]))
        return sides(found, 3.0 * 0.4 / 2 * (1 - 2 * smoothing), length_norm)

    options = dict(
        pairs=mode, label_smoothing=smoothing, length_norm=length_norm, kl_coef=kl_coef,
        dpo_beta=0.4, preference_coef=3.0, offline_batch_size=len(OFFLINE),
    )  # fmt: skip
    return Row("pg_grpo", options, grpo, pairs)


# --- the rows -------------------------------------------------------------------------------------

BASELINE = dict(variant="baseline", group_size=4, prompts_per_step=4)
LN_2 = math.log(2)
CRITIC_OF_ZEROS = dict(gae_lambda=1.0, kl_coef=0.5)

ROWS = {
    # At pi = pi_ref a KL has no gradient, whatever its weight.
    "grpo": Row("grpo", dict(kl_coef=0.5), grpo),
    "grpo_iterative": Row("grpo_iterative", dict(kl_coef=0.5), grpo),
    **{
        f"single model, {penalty}": Row(
            "grpo_single_model", dict(kl_coef=5.0, penalty=penalty, updates_per_batch=2), grpo
        )
        for penalty in ("k3", "rho_minus_log")
    },
    "process": Row("grpo_process", dict(kl_coef=0.5), process),
    **{f"family, {name}": variant(name) for name in VARIANTS},
    **{
        f"truncated, {reducer}, {scale}": truncated(reducer, scale)
        for reducer in REDUCERS
        for scale in ("group", "batch", "none")
    },
    **{
        f"rloo, {form}": Row("rloo", dict(loss=form, kl_coef=0.5), rloo(form))
        for form in ("sequence", "clipped", "token")
    },
    **{
        f"reinforce++ {name}, {norm}": Row(
            "reinforce_pp", options | dict(norm_over=norm, kl_coef=0.5), reinforce_pp(name != "", over)
        )
        for name, options, norm, over in (
            ("", {}, "auto", "token"), ("", {}, "sequence", "sequence"),
            ("baseline", BASELINE, "auto", "sequence"), ("baseline", BASELINE, "token", "token"),
        )
    },
    "ppo": Row("ppo", CRITIC_OF_ZEROS, ppo),
    **{
        f"kd_grpo, {form}, {reward}": Row(
            "kd_grpo", dict(policy_loss=form, teacher_reward=reward, kl_coef=0.5), kd_grpo(form, reward)
        )
        for form in ("clipped", "reinforce")
        for reward in ("reverse_kl", "mean", "sum")
    },
    **{
        f"kd_ppo, {place}": Row("kd_ppo", CRITIC_OF_ZEROS | dict(placement=place), kd_ppo(place))
        for place in ("dense", "terminal")
    },
    "dpo": dpo(0.3 / 2, LN_2, beta=0.3),
    "dpo, smoothed": dpo(0.3 / 2 * 0.6, LN_2, beta=0.3, label_smoothing=0.2),
    "dpo, length norm": dpo(0.3 / 2, LN_2, beta=0.3, length_norm=True),
    "ipo": dpo(4.0, 4.0, beta=0.25, loss="ipo"),  # (0 - 1 / (2 beta))^2, and its slope 1 / beta
    "kto": dpo(0.3 / 8, 0.5, beta=0.3, loss="kto"),  # z is 0, and the sigmoid's slope 1/4
    "pg_grpo, best_worst": pg_grpo("best_worst", 0.2, False, 0.5),
    "pg_grpo, all": pg_grpo("all", 0.0, True, 0.0),
    "pg_grpo, offline": pg_grpo("offline", 0.0, False, 0.5),
    "pg_grpo, both": pg_grpo("both", 0.1, True, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_the_first_gradient_is_that_of_its_weights(monkeypatch, name):
    """In float64 and in micro-batches, of a given minibatch; rewards and the sampler are float32."""
    row, policy = ROWS[name], small_gpt().double()
    given_halves(monkeypatch, passes=row.options.get("updates_per_batch", 1))
    sampled, updates = calls_of(monkeypatch, loop, "sample_rollout"), Updates(monkeypatch, policy)
    options = dict(micro_batch_size=3) | row.options
    engine = engine_named(row.engine)
    if "reward_fn" not in options and engine.rule:
        options["reward_fn"] = DIVERSE
    (logged,) = engine.run(policy, steps=1, **options)
    start, answers, rollout = updates.policies[0], [], None
    if sampled:
        rollout = sampled[0].result
        assert len(set(rollout.lengths[HALF].tolist())) > 1, "all responses are of one length"
        factors = row.weights(rollout, start)
        answers += [(*tokens_of(rollout, i), factors[i]) for i in HALF]
    answers += row.pairs(rollout, start)
    assert_gradient(updates.gradients[0], weighted_gradient(start, answers), 1e-5)
    assert {key: logged[key] for key in row.metrics} == pytest.approx(row.metrics, abs=1e-5)


# --- once the policy has left the reference --------------------------------------------------------

BETA = 0.3


def k1(rollout: Rollout, policy: GPT, reference: GPT) -> list[list[float]]:
    """log pi - log pi_ref of every token of every response."""
    rows = []
    for i in range(len(rollout)):
        ours, theirs = (chosen(model, *tokens_of(rollout, i)) for model in (policy, reference))
        rows.append([(a - b).item() for a, b in zip(ours, theirs, strict=True)])
    return rows


def rloo_with_k1(values: list[float], kls: list[list[float]], beta: float) -> list:
    """The KL of a response is part of its reward, before the baseline is taken off."""
    paid = [value - beta * sum(kl) for value, kl in zip(values, kls, strict=True)]
    return [4 / 3 * a / len(paid) for a in scaled(paid, "none")]


def plain_with_k1(values: list[float], kls: list[list[float]], beta: float) -> list:
    """The KL to come is part of a token's return, which is whitened over all tokens."""
    to_go = [
        [value - beta * sum(kl[t:]) for t in range(len(kl))]
        for value, kl in zip(values, kls, strict=True)
    ]
    mean, spread = standard([a for row in to_go for a in row])
    return [[(a - mean) / spread / len(row) / len(kls) for a in row] for row in to_go]


@pytest.mark.parametrize(
    ("engine", "weights"), [("rloo", rloo_with_k1), ("reinforce_pp", plain_with_k1)]
)
def test_the_third_gradient_has_the_kl_in_the_reward(monkeypatch, engine, weights):
    """Of the whole batch; the sampler's log-probs are float32. Without the KL it is another one."""
    policy, start = small_gpt().double(), small_gpt().double()
    sampled, updates = calls_of(monkeypatch, loop, "sample_rollout"), Updates(monkeypatch, policy)
    engine_named(engine).run(policy, SHARE_OF_A, steps=3, kl_coef=BETA, lr=3e-2)
    rollout, sampler = sampled[2].result, updates.policies[2]
    values, kls = SHARE_OF_A(rollout).tolist(), k1(rollout, sampler, start)
    expected, without = (
        weighted_gradient(
            sampler,
            [
                (*tokens_of(rollout, i), factor)
                for i, factor in enumerate(weights(values, kls, beta))
            ],
        )
        for beta in (BETA, 0.0)
    )
    assert_gradient(updates.gradients[2], expected, 2e-5)
    assert differ(expected, without)


# How a KL in the loss grows with the log-prob of a token: of k3, k2 and rho - 1 - log rho.
SLOPES: dict[str, Callable[[float], float]] = {
    "k3": lambda log_rho: 1 - math.exp(-log_rho),
    "k2": lambda log_rho: log_rho,
    "rho_minus_log": lambda log_rho: math.exp(log_rho) - 1,
}
IN_THE_LOSS = (
    ("grpo", {}, "k3"),
    ("grpo", dict(kl_estimator="k2"), "k2"),
    ("grpo_iterative", {}, "k3"),
    ("grpo_iterative", dict(kl_estimator="k2"), "k2"),
    ("grpo_process", {}, "k3"),
    ("grpo_variants", {}, "k3"),
    ("reinforce_pp", BASELINE, "k2"),
    ("kd_grpo", {}, "k3"),
    ("kd_grpo", dict(kl_estimator="k2"), "k2"),
    ("kd_grpo", dict(policy_loss="reinforce"), "k3"),
    ("pg_grpo", {}, "k3"),
    ("grpo_single_model", dict(updates_per_batch=2), "k3"),
    ("grpo_single_model", dict(updates_per_batch=2, penalty="rho_minus_log"), "rho_minus_log"),
)


@pytest.mark.parametrize(("name", "options", "estimator"), IN_THE_LOSS)
def test_the_kl_in_the_loss_adds_its_own_gradient(name, options, estimator):
    """To the last update of the third step, at which it is switched on: all else is as without it.

    (beta / N) sum_i (1 / L_i) sum_t slope grad log pi, from the start, or with one model from pi_old.
    """
    engine, passes, found = engine_named(name), options.get("updates_per_batch", 1), []
    for beta in (BETA, 0.0):
        coefficient, policy = FixedKL(0.0), small_gpt().double()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "kl_controller", lambda config, kl=coefficient: kl)
            sampled, updates = calls_of(patch, loop, "sample_rollout"), Updates(patch, policy)
            engine.run(
                policy, SHARE_OF_A if engine.rule else None, steps=3, lr=3e-2, eval_every=2,
                validate=lambda *_, kl=coefficient, beta=beta: setattr(kl, "coef", beta) or {},
                **options | (dict(stop_kl=1e9) if engine.reference else {}),
            )  # fmt: skip
        found.append(updates.gradients[-1])
    now, rollout = updates.policies[-1], sampled[-1].result
    anchor = small_gpt().double() if engine.reference else updates.policies[-passes]
    answers = [
        (
            *tokens_of(rollout, i),
            [-BETA * SLOPES[estimator](x) / len(row) / len(rollout) for x in row],
        )
        for i, row in enumerate(k1(rollout, now, anchor))
    ]
    assert_gradient(found[0] - found[1], weighted_gradient(now, answers), 1e-4)


def test_every_engine_has_a_row():
    own = {"minillm", "on_policy_distillation"}
    assert {row.engine for row in ROWS.values()} | own == {engine.name for engine in ENGINES}
