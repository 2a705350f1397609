"""What every engine promises, held for each entry of the list in engines.py."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import pytest
import torch
from engines import DIVERSE, ENGINES, SHARE_OF_A, Engine, Texts, teacher_in
from slow import chosen
from toys import GLASSBOX, LETTERS, PROMPTS, documented, saved_gpt, weights
from watched import Noted, NotedTeacher, Validations, calls_of, numbers, same_update, seen_gradients

import gpt.model
import gpt.teacher
from data import sources
from gpt import log_probs
from gpt.checkpoint import load_gpt
from gpt.generate import SamplingParams
from gpt.lora import add_adapters
from gpt.model import GPT
from harness import run_folder
from harness.files import read_jsonl
from harness.metric_log import MetricLog
from harness.training_state import saved_step
from reward_model.scalar_head import RewardModel, save_reward_model
from rl import loop
from rl.rewards.model import RewardModelReward
from rl.rewards.reward import RuleReward
from rl.run import engine as run_engine
from rl.run.evaluation import Validation

PROBE = torch.tensor([[0, 1, 7, 3, 8], [4, 5, 2, 2, 6]])
RL = Path(__file__).resolve().parents[2] / "rl"
# The single-model engine says so of every run with one update a batch, as some are here.
pytestmark = pytest.mark.filterwarnings("ignore:with one update a batch")


def small_gpt(n_layer: int = 1, **options: Any) -> GPT:
    """One layer: no promise here is about several of them."""
    return engines.small_gpt(n_layer=n_layer, **options)


def contract(test: Callable) -> str:
    return test.__name__.removeprefix("test_")


def held_by(test: Callable) -> list[Engine]:
    return [engine for engine in ENGINES if contract(test) not in engine.skips]


def each_engine(test: Callable) -> Callable:
    """Once for every engine that does not say in its `skips` why the contract cannot hold."""
    params = [pytest.param(engine, id=engine.name) for engine in held_by(test)]
    return pytest.mark.parametrize("engine", params)(test)


def each(choose: Callable[[Engine], Any]) -> Callable[[Callable], Callable]:
    """For every choice of every engine, as `engine` and `form`: a mapping or a tuple of changes."""

    def decorate(test: Callable) -> Callable:
        params = []
        for engine in held_by(test):
            choices = choose(engine)
            named = choices.items() if hasattr(choices, "items") else enumerate(choices, 1)
            for name, form in named:
                suffix = f"-{name}" if len(choices) > 1 else ""
                params.append(pytest.param(engine, form, id=engine.name + suffix))
        return pytest.mark.parametrize(("engine", "form"), params)(test)

    return decorate


each_form = each(lambda engine: engine.forms)


def known(engine: Engine, **changes: Any) -> dict[str, Any]:
    """Those that are flags of the engine: DPO has no groups, minibatches or KL."""
    return {name: value for name, value in changes.items() if engine.has(name)}


def thirty_two(engine: Engine, form: dict[str, Any]) -> dict[str, int]:
    """A batch of 32 responses: to four prompts where there are groups, else to 32."""
    grouped = form.get("group_size", engine.config.group_size) > 1
    return dict(prompts_per_step=4, group_size=8) if grouped else dict(prompts_per_step=32)


def separating(engine: Engine):
    """A reward that gives every response an advantage; None: the teacher's does."""
    return DIVERSE if engine.rule else None


# The list itself


def test_every_engine_is_in_the_list_and_a_skip_names_a_contract_and_a_reason():
    assert sorted(engine.name for engine in ENGINES) == sorted(
        path.stem.removesuffix("_engine") for path in RL.glob("*_engine.py")
    )
    contracts = {name.removeprefix("test_") for name in dir(sys.modules[__name__])}
    for engine in ENGINES:
        assert set(engine.skips) <= contracts, engine.name
        for reason in (*engine.skips.values(), *engine.absent.values()):
            assert len(reason) > 15, f"{engine.name}: {reason!r} is no reason"


# The first update


@each_form
def test_at_the_first_update_ratio_is_one_and_kl_is_zero(engine, form):
    """One minibatch, so that the whole update is at ratio 1.

    Tolerances far above float32's rounding: log-probs of two forwards differ by some 1e-7.
    """
    if engine.reference:
        form = form | dict(stop_kl=1e9)  # so that the KL is measured without a penalty, too
    form = form | engine.alone | dict(steps=1, updates_per_batch=1)
    (row,) = engine.run(small_gpt(), separating(engine), **form)
    assert row["ratio_error_at_start"] < 1e-5
    assert ("kl" in row) == ("kl_k3" in row) == (engine.reference is not None)
    assert abs(row.get("kl", 0)) < 1e-6 and abs(row.get("kl_k3", 0)) < 1e-6
    assert row["clip_high_fraction"] == row["clip_low_fraction"] == 0
    assert abs(row["approx_kl"]) < 1e-6 and row["grad_norm"] > 0.01


# Repeating and resuming


@each_engine
def test_the_seed_repeats_a_run_bit_for_bit(engine):
    """The global random state plays no part; another seed is another run."""
    results, steps = [], 2 if engine.name == "dpo" else 1  # DPO's first step is along every margin
    for global_seed, seed in ((1, 0), (2, 0), (1, 5)):
        torch.manual_seed(global_seed)
        random.seed(global_seed)
        policy = small_gpt()
        rows = engine.run(policy, steps=steps, seed=seed, **known(engine, minibatches=2))
        results.append((weights(policy), numbers(rows)))
    assert torch.equal(results[0][0], results[1][0]) and results[0][1] == results[1][1]
    assert not torch.equal(results[0][0], results[2][0])


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal to the last bit, with the same keys in the same places."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def saved(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "state.pt", weights_only=True)


@each(lambda engine: engine.resumed)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, engine, form):
    """Every model, optimizer, generator and coefficient comes back, and so do the logged rows."""
    options = known(engine, minibatches=2, warmup_steps=4) | form
    policy, resumed = small_gpt(), small_gpt()
    torch.nn.init.normal_(resumed.wte.weight)  # everything comes from the file
    rows = killed_and_resumed(tmp_path, engine, policy, resumed, **options)
    assert form.get("kl_target") is None or len({row["kl_coef"] for row in rows}) == 4


class Snapshot(MetricLog):
    """Keeps the run's folder as a kill would leave it once the row of step 3 is written."""

    def write(self, *, step: int, **metrics: Any) -> None:
        super().write(step=step, **metrics)
        if step == 3:
            shutil.copytree(self.path.parent, self.path.parents[1] / "cut")


def killed_and_resumed(
    tmp_path: Path, engine: Engine, policy: GPT, resumed: GPT, **options: Any
) -> list[dict[str, Any]]:
    """Hold that `resumed`, from what a kill leaves of the run of `policy`, ends where that does.

    The kill is one step behind the checkpoint: the row of that step is written anew.
    """
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    options |= dict(steps=4, save_every=2)
    log = Snapshot(4, path=whole / "metrics.jsonl")
    rows = engine.run(policy, log=log, folder=whole, **options)
    path = cut / "metrics.jsonl"
    assert saved_step(cut) == 2 and len(path.read_text().splitlines()) == 3
    log = MetricLog(4, path=path, start=2)
    more = engine.run(resumed, log=log, folder=cut, resume=True, **options)
    assert [row["step"] for row in more] == [1, 2, 3, 4]
    assert numbers(more) == numbers(rows) and len(path.read_text().splitlines()) == 4
    assert torch.equal(weights(resumed), weights(policy))
    assert saved(cut)["step"] == 4 and same(saved(cut), saved(whole))
    return rows


@each_engine
def test_a_short_run_goes_on_as_the_longer_one_bit_for_bit(tmp_path, engine):
    """--resume with more --steps: nothing of a step depends on how many there are."""
    assert not engine.config.fixed_length
    longer, options = small_gpt(), known(engine, minibatches=2)
    rows = engine.run(longer, folder=tmp_path / "longer", steps=2, **options)
    short = tmp_path / "short"
    engine.run(small_gpt(), folder=short, steps=1, **options)
    assert saved_step(short) == 1  # the last step is saved, whatever --save-every says
    policy, log = small_gpt(), MetricLog(2, path=short / "metrics.jsonl", start=1)
    torch.nn.init.normal_(policy.wte.weight)  # everything comes from the file
    more = engine.run(policy, folder=short, log=log, steps=2, resume=True, **options)
    assert numbers(more) == numbers(rows)[1:] and torch.equal(weights(policy), weights(longer))


# Memory


def moved(engine: Engine) -> dict[str, Any]:
    """The run that is resumed, with a reference that becomes the policy where there is that flag."""
    return engine.resumed[0] | known(engine, renew_reference=2)


def with_adapters(seed: int = 0) -> GPT:
    return add_adapters(small_gpt(), 4, generator=torch.Generator().manual_seed(seed))


@each_engine
def test_with_adapters_the_base_stays_and_a_resumed_run_is_the_uninterrupted_one(tmp_path, engine):
    """A and B alone change, and are all that is kept of policy, reference and critic's trunk.

    The resumed policy arrives with another A: everything but the base comes from the file.
    """
    options = known(engine, minibatches=2, warmup_steps=4) | moved(engine)
    policy, base = with_adapters(), small_gpt().state_dict()
    killed_and_resumed(tmp_path, engine, policy, with_adapters(seed=9), **options)
    assert not torch.equal(policy(PROBE), small_gpt()(PROBE))
    for name, tensor in policy.state_dict().items():
        if name in base:
            assert torch.equal(tensor, base[name]) and not policy.get_parameter(name).requires_grad
        else:
            assert name.endswith(("lora_A", "lora_B")) and tensor.any()
    parts = saved(tmp_path / "cut")["parts"]
    assert {"policy", *({"reference"} if engine.reference else ())} <= parts.keys()
    for part in parts.keys() & {"policy", "reference", "value_model"}:
        assert all(re.search(r"lora_[AB]$|^head", name) for name in parts[part]) and parts[part]


# Models that stay as they are


@each_engine
def test_frozen_models_stay_as_they_are(engine):
    """The reference is the start; teacher and reward model are never trained. None has a gradient."""
    policy = small_gpt()
    start, seen, frozen, given = weights(policy), Validations(), [], {}
    if engine.rule:
        scorer = RewardModel.from_policy(policy, generator=torch.Generator().manual_seed(1))
        frozen = [scorer]
        given = engine.around_reward_model(scorer) | dict(reward_fn=RewardModelReward(scorer))
    elif engine.teacher is not None:
        frozen = [engine.teacher]
    before = [weights(model) for model in frozen]
    options = engine.everything | given
    engine.run(policy, steps=2, eval_every=1, validate=seen, **options)
    for reference in seen.references:
        assert (reference is None) == (engine.reference is None)
        if reference is not None:
            assert torch.equal(weights(reference), start)
            assert not any(parameter.requires_grad for parameter in reference.parameters())
            assert all(parameter.grad is None for parameter in reference.parameters())
    assert seen.steps == [1, 2] and not torch.equal(weights(policy), start)
    assert all(torch.equal(weights(m), old) for m, old in zip(frozen, before, strict=True))
    assert all(p.grad is None for model in frozen for p in model.parameters())


@each_engine
def test_dropout_has_no_effect(engine):
    """Also when the policy arrives in training mode: ratios would leave 1 before any update."""
    torch.manual_seed(0)
    plain, dropped = small_gpt(), small_gpt(dropout=0.5).train()
    a, b = (engine.run(policy, steps=2, **engine.everything) for policy in (plain, dropped))
    assert torch.equal(weights(plain), weights(dropped))
    assert numbers(a) == numbers(b) and b[1].get("ratio_error_at_start", 0) < 1e-5


def frozen_models_read(monkeypatch, engine: Engine) -> list[GPT]:
    """The models without gradients that are read from now on, but for the teacher."""
    read: list[GPT] = []
    real = GPT.hidden

    def spy(self, *args, **options):
        if self is not engine.teacher and not self.wte.weight.requires_grad:
            read.append(self)
        return real(self, *args, **options)

    monkeypatch.setattr(GPT, "hidden", spy)
    return read


@each(lambda engine: engine.penalties)
def test_without_a_kl_no_reference_is_asked(monkeypatch, engine, form):
    """But for stop_kl, which measures and changes nothing; with a KL it is asked."""
    read, ends = frozen_models_read(monkeypatch, engine), []
    form = dict(steps=1) | form | engine.alone
    for changes, asked in (
        (dict(kl_coef=0.0), False), (dict(kl_coef=0.0, stop_kl=1e9), True), (dict(kl_coef=0.02), True),
    ):  # fmt: skip
        policy = small_gpt()
        (row,) = engine.run(policy, **(form | changes))
        assert bool(read) == ("kl" in row) == ("kl_k3" in row) == asked
        read.clear()
        ends.append(weights(policy))
    assert torch.equal(ends[0], ends[1])


# Micro-batches and minibatches


@each_form
def test_micro_batches_do_not_change_the_update(monkeypatch, engine, form):
    """Neither gradients, nor weights, nor what is logged.

    Three minibatches, of two groups, one and one: at the second the policy has left the reference.
    """
    steps = 1 if engine.has("minibatches") else 2  # at DPO's first the sign of a margin is rounding
    options = dict(steps=steps, **known(engine, minibatches=3, updates_per_batch=1))
    few, many = same_update(monkeypatch, engine, **(options | engine.everything | form))
    for row in (few[-1], many[-1]):  # in a first minibatch, too, the sign of a margin is rounding
        row.pop("preference_accuracy", None)
    expected = {key: pytest.approx(value, rel=1e-5, abs=1e-6) for key, value in many[-1].items()}
    assert few[-1] == expected


@each_engine
def test_minibatches_keep_groups_together(monkeypatch, engine):
    """Every forward of an update is a minibatch here: two of the four groups, whole.

    A prompt is known by its first two letters, or by its only one.
    """
    seen: list[list[tuple[int, ...]]] = []
    real = log_probs.response_hidden

    def spy(model, batch, columns):
        if torch.is_grad_enabled() and model.wte.weight.requires_grad:
            rows = batch.tokens.tolist()
            seen.append([tuple(row[: 2 if row[0] == 0 else 1]) for row in rows])
        return real(model, batch, columns)

    monkeypatch.setattr(log_probs, "response_hidden", spy)
    size = dict(prompts_per_step=4, group_size=4, minibatches=2, updates_per_batch=1)
    engine.run(small_gpt(), separating(engine), steps=2, **(size | engine.alone))
    assert len(seen) == 4
    for prompts in seen:
        assert sorted(map(prompts.count, set(prompts))) == [4, 4]
    for first, second in (seen[:2], seen[2:]):
        assert len({*first, *second}) == 4


@each_engine
def test_every_prompt_is_asked_once_an_epoch(engine):
    """Eight prompts, four a step: two steps are one epoch, each with an order of its own."""
    noted: Any = Noted(SHARE_OF_A)
    if engine.taught_by is not None:
        noted = NotedTeacher(engine.taught_by(engine.config, engine.teacher))
    engine.run(small_gpt(), noted, steps=4, prompts_per_step=4)
    group = engine.config.group_size
    asked = [[record.prompt for record in rollout.records[::group]] for rollout in noted.rollouts]
    first, second = asked[0] + asked[1], asked[2] + asked[3]
    assert len(asked) == 4
    assert sorted(first) == sorted(second) == sorted(record.prompt for record in PROMPTS)
    assert first != second


# The KL


@each_engine
def test_stop_kl_ends_the_run_with_a_validation(engine):
    """At the first step whose KL is above it; the policy that is kept is the last one inside.

    A penalty of 0 is no reason to drift. The KL of a step is that of the policy before its update.
    """
    options = dict(lr=3e-2, kl_coef=0.0, updates_per_batch=1)
    free = engine.run(small_gpt(), steps=6, stop_kl=1e9, **options)
    kls = [row["kl"] for row in free]
    assert len(free) == 6 and kls[0] == pytest.approx(0, abs=1e-5)
    outside = next(i for i in range(2, 6) if kls[i] > 1.2 * max(kls[:i]))
    limit, seen = (max(kls[:outside]) + kls[outside]) / 2, Validations()
    policy, shorter = small_gpt(), small_gpt()
    rows = engine.run(policy, steps=8, stop_kl=limit, validate=seen, **options)
    assert rows[-1].pop("kept_step") == outside - 1
    assert numbers(rows) == numbers(free[: outside + 1]) and seen.steps == [outside + 1]
    engine.run(shorter, steps=outside - 1, stop_kl=1e9, **options)
    assert all(
        torch.equal(a, b) for a, b in zip(policy.parameters(), shorter.parameters(), strict=True)
    )


@each(lambda engine: engine.penalties)
def test_the_adaptive_controller_moves_the_penalty(monkeypatch, engine, form):
    """16 responses over a horizon of 160: by a tenth of kl / target - 1, itself at most a fifth.

    At first the KL is below the target, and then above: the penalty falls, and rises.
    """
    start = form.get("kl_coef", 0) or engine.config.kl_coef
    monkeypatch.setattr(type(engine.config), "kl_horizon", 160)
    options = form | dict(kl_coef=start)
    rows = engine.run(small_gpt(), **(options | dict(steps=3, kl_target=1e3)))
    falling = [start, start * 0.98, start * 0.98**2]
    assert [row["kl_coef"] for row in rows] == pytest.approx(falling)
    target = 0.02 if engine.held == "kl" else rows[0][engine.held] / 1.1
    rows = engine.run(small_gpt(), **(options | dict(steps=4, kl_target=target)))
    coefficients = [row["kl_coef"] for row in rows]
    for row, coefficient, after in zip(rows, coefficients, coefficients[1:], strict=False):
        error = min(max(row[engine.held] / target - 1, -0.2), 0.2)
        assert after / coefficient == pytest.approx(1 + error * 16 / 160)
    assert any(a < b for a, b in zip(coefficients, coefficients[1:], strict=False))


# Rewards


@each_form
def test_a_broken_reward_is_refused(engine, form):
    """Before anything is learned from it; a teacher is broken by a NaN among its weights."""
    policy = small_gpt()
    with pytest.raises(ValueError):
        engine.run(policy, **(dict(steps=1) | form | broken(engine, form)))
    assert torch.equal(weights(policy), weights(small_gpt()))


def broken(engine: Engine, form: dict[str, Any]) -> dict[str, Any]:
    """A reward that is NaN for every response that has ended, or a teacher's that always is."""
    if engine.taught_by is None:
        rule = lambda record, text, ended: math.nan if ended else len(text)  # noqa: E731
        return dict(reward_fn=RuleReward(rule, "broken"))
    teacher = teacher_in(engine.teacher, torch.float32)
    teacher.ln_f.weight.data[0] = math.nan
    flags = {name: value for name, value in form.items() if engine.has(name)}
    changes = known(engine, teacher_share=0.0)  # what a broken teacher would draw is undefined
    return changes | dict(reward_fn=engine.taught_by(engine.configured(**flags), teacher))


@each(lambda engine: engine.forms | (engine.learners or {}))
def test_a_constant_reward_teaches_nothing(engine, form):
    """Without a KL; 0.7 has a mean over four that float32 rounds: no noise may become an advantage."""
    first = form == next(iter(engine.forms.values()))
    for value in (0.7, 0.0, -3.0) if first else (0.7,):
        policy = small_gpt()
        constant = RuleReward(lambda *_, value=value: value, "constant")
        options = dict(steps=1) | form | engine.alone | dict(kl_coef=0.0)
        (row,) = engine.run(policy, constant, **options)
        assert torch.equal(weights(policy), weights(small_gpt()))
        assert row.get("zero_spread_groups", 1) == 1 and row.get("grad_norm", 0) == 0


@pytest.mark.parametrize("sign", [1.0, -1.0])
@each(lambda engine: engine.learners or engine.forms)
def test_a_toy_reward_is_learned_and_its_negative_unlearned(engine, form, sign):
    """The share of a, at first one symbol of ten, with a KL penalty and two updates a batch."""
    reward = RuleReward(lambda record, text, ended: sign * text.count("a") / 8, "toy")
    options = form | thirty_two(engine, form) | engine.around_sign(sign)
    if engine.has("overlong_buffer"):
        options |= dict(overlong_buffer=None)  # which would pay for fewer letters
    options |= dict(steps=7 if sign > 0 else 6, lr=3e-2, minibatches=2)
    values = [sign * row["reward"] for row in engine.run(small_gpt(), reward, **options)]
    last = statistics.mean(values[-2:])
    assert 0.03 < values[0] < 0.15
    assert last > 0.4 if sign > 0 else last < 0.02


# The optimizer


class Watched(torch.optim.AdamW):
    """Notes what each step is given: the norm of the gradients, and the learning rate."""

    steps: list[tuple[float, float]] = []

    def step(self, *args, **options):
        given = [p.grad for group in self.param_groups for p in group["params"]]
        norm = float(torch.cat([grad.flatten() for grad in given if grad is not None]).norm())
        self.steps.append((norm, self.param_groups[0]["lr"]))
        return super().step(*args, **options)


@pytest.fixture
def steps(monkeypatch) -> list[tuple[float, float]]:
    """(norm, learning rate) of each optimizer step; where a critic learns, every second is its."""
    monkeypatch.setattr(Watched, "steps", [])
    monkeypatch.setattr(torch.optim, "AdamW", Watched)
    return Watched.steps


@each_engine
def test_gradients_are_clipped_before_the_step(engine, steps):
    """Adam divides a common factor out, so they are looked at as it receives them.

    The norm that is logged is the one from before the clip.
    """
    changes = dict(steps=1, **known(engine, updates_per_batch=1))
    (free,) = engine.run(small_gpt(), separating(engine), **changes)
    (row,) = engine.run(small_gpt(), separating(engine), max_grad_norm=0.01, **changes)
    half = len(steps) // 2
    assert row["grad_norm"] == free["grad_norm"] == pytest.approx(steps[0][0], rel=1e-4)
    assert row["grad_norm"] > 0.02
    for (free_norm, _), (norm, _) in zip(steps[:half], steps[half:], strict=True):
        assert norm == pytest.approx(min(free_norm, 0.01), rel=1e-3)


@pytest.mark.parametrize(
    "engine", [e for e in ENGINES if e.has("clip_range")], ids=lambda e: e.name
)
def test_the_log_says_where_the_clip_acts(engine):
    """At many tokens with a range of 0, once the policy has moved; nowhere with an endless one."""
    options = dict(steps=1, updates_per_batch=3, lr=1e-2) | known(engine, loss="clipped")
    for clip_range, acts in ((0.0, True), (1e9, False)):
        reward = DIVERSE if engine.rule else None
        (row,) = engine.run(small_gpt(), reward, clip_range=clip_range, **options)
        assert (row["clip_low_fraction"] + row["clip_high_fraction"] > 0.05) == acts


@each_engine
def test_warm_up_is_linear_and_then_constant(engine, steps):
    """As it is logged, and as the optimizers use it, the critic's of its own peak."""
    changes = dict(lr=4e-3, updates_per_batch=1, **known(engine, critic_lr=8e-3))
    rows = engine.run(small_gpt(), steps=5, warmup_steps=4, **changes)
    expected = [1e-3, 2e-3, 3e-3, 4e-3, 4e-3]
    assert [row["lr"] for row in rows] == pytest.approx(expected)
    used = [lr for _, lr in steps]
    if engine.has("critic_lr"):
        assert used[1::2] == pytest.approx([2 * lr for lr in expected])
        used = used[::2]
    assert used == pytest.approx(expected)
    assert engine.run(small_gpt(), steps=1, warmup_steps=0, **changes)[0]["lr"] == 4e-3


@each_engine
def test_an_engine_learns_though_a_notebook_has_switched_gradients_off(engine):
    with torch.no_grad():
        (row,) = engine.run(policy := small_gpt(), DIVERSE if engine.rule else None, steps=1)
        assert not torch.is_grad_enabled()
    assert not torch.equal(weights(policy), weights(small_gpt())) and row["grad_norm"] > 0


# Temperature and precision


@each_engine
def test_the_temperature_is_that_of_sampler_and_scorer(engine):
    rows = {t: engine.run(small_gpt(), steps=1, temperature=t)[0] for t in (2.0, 0.7, 0.05)}
    assert rows[0.7]["ratio_error_at_start"] < 1e-5 and abs(rows[0.7].get("kl", 0)) < 1e-5
    assert rows[0.05]["entropy"] < rows[2.0]["entropy"] - 0.1


@each_engine
def test_bfloat16_is_near_float32_and_scores_old_and_new_alike(monkeypatch, engine):
    """The gradient is another one (autocast runs), within a few of bfloat16's roundings of 0.4%.

    The sampler's log-probs are float32: unless the rollout is scored again, the ratio starts some
    0.01 away from 1 with a policy as sharp as this one.
    """
    gradients, logs = seen_gradients(monkeypatch), []
    for precision in ("float32", "bfloat16"):
        options = dict(steps=1, precision=precision) | engine.everything
        logs += engine.run(small_gpt(sharpness=4.0), separating(engine), **options)
    exact, rounded = gradients[0], gradients[len(gradients) // 2]
    assert rounded.dtype == torch.float32 and not torch.equal(exact, rounded)
    assert float((rounded - exact).norm() / exact.norm()) < 0.1
    assert logs[1].get("ratio_error_at_start", 0) < 1e-3
    for key in {"entropy", "response_length", "log_prob_chosen"} & logs[0].keys():
        assert logs[1][key] == pytest.approx(logs[0][key], rel=0.01)


@each_form
def test_the_old_log_probs_are_scored_in_the_forwards_of_the_first_pass(monkeypatch, engine, form):
    """The same rows in the same order, as the policy reads them: the first ratio is 1 however it rounds.

    The first pass reads more where there are recorded pairs.
    """
    policy, read, old_log_probs = small_gpt(sharpness=4.0), [], []
    hidden, scored = GPT.hidden, loop.Run.old_log_probs

    def noted(model, tokens, mask=None, cache=None):
        if model is policy and cache is None:
            read.append((tokens.tolist(), torch.is_grad_enabled()))
        return hidden(model, tokens, mask, cache)

    def of_old(*args, **options):
        before, result = len(read), scored(*args, **options)
        old_log_probs.extend(tokens for tokens, _ in read[before:])
        return result

    monkeypatch.setattr(GPT, "hidden", noted)
    monkeypatch.setattr(loop.Run, "old_log_probs", of_old)
    options = dict(steps=2, precision="bfloat16", minibatches=2, micro_batch_size=3, kl_coef=0.0)
    rows = engine.run(policy, separating(engine), **options | form | dict(updates_per_batch=1))
    trained_on = [tokens for tokens, gradient in read if gradient]
    assert len(old_log_probs) > 2
    assert [tokens for tokens in trained_on if tokens in old_log_probs] == old_log_probs
    assert all(row.get("ratio_error_at_start", 0) == 0 for row in rows)


# Text beside the samples

each_with_text = pytest.mark.parametrize(
    "engine", [pytest.param(e, id=e.name) for e in ENGINES if e.has("pretraining_coef")]
)


@each_with_text
def test_the_text_adds_its_gradient_and_without_a_weight_no_bit(gradients, engine):
    """weight * sum of -log p / the corpus's mean token count, row by row, to the first update."""
    corpus, start, runs = Texts(), small_gpt(), []
    corpus.tokens_per_batch = 20.0  # of batch 0 it is 28
    for changes in (
        dict(corpus=None, pretraining_coef=0.0),
        dict(corpus=corpus, pretraining_coef=0.0),
        dict(corpus=corpus, pretraining_coef=2.0, micro_batch_size=3),
    ):
        policy, first = small_gpt(), len(gradients)
        (row,) = engine.run(policy, separating(engine), steps=1, updates_per_batch=1, **changes)
        runs.append((gradients[first], weights(policy), row))
    assert torch.equal(runs[0][0], runs[1][0]) and torch.equal(runs[0][1], runs[1][1])
    text = corpus.batch(0)
    rows = [r[: n + 1].tolist() for r, n in zip(text.tokens, text.lengths.tolist(), strict=True)]
    total = -sum(sum(chosen(start, row[:1], row[1:])) for row in rows)
    expected = torch.autograd.grad(2.0 * total / 20.0, list(start.parameters()))
    expected = torch.cat([gradient.flatten() for gradient in expected])
    torch.testing.assert_close(runs[2][0] - runs[0][0], expected, rtol=1e-3, atol=1e-5)
    measured = runs[2][2]["pretraining_loss"]
    assert measured == pytest.approx(float(total.detach()) / 28, rel=1e-4)
    assert runs[2][2]["loss"] - runs[0][2]["loss"] == pytest.approx(2 * measured, rel=1e-2)


@each_with_text
def test_the_text_is_fresh_at_every_optimizer_step(engine):
    """And asked for only where it has a weight."""
    corpus = Texts()
    options = dict(steps=2, updates_per_batch=2, minibatches=3, corpus=corpus)
    rows = engine.run(small_gpt(), separating(engine), **options, pretraining_coef=0.5)
    assert corpus.asked == list(range(12)) and 0.5 < rows[0]["pretraining_loss"] < 5
    rows = engine.run(small_gpt(), separating(engine), **options, pretraining_coef=0.0)
    assert len(corpus.asked) == 12 and "pretraining_loss" not in rows[0]


# What is logged, refused and written


@each(lambda engine: engine.keys)
def test_logged_keys_are_those_documented(engine, form):
    """No more and no less; with one response per prompt there are no groups to count."""
    options = {name: value for name, value in form.items() if engine.has(name)}
    reward = SHARE_OF_A
    if engine.taught_by is not None:
        reward = engine.taught_by(engine.configured(**options), engine.teacher)
    params = SamplingParams(max_new_tokens=engine.config.max_new_tokens)
    validate = Validation(LETTERS, PROMPTS, params, reward, gold=SHARE_OF_A, start=small_gpt())
    form = dict(steps=1, eval_every=1, validate=validate) | form
    (row,) = engine.run(small_gpt(), separating(engine), **form)
    keys = documented("Every engine")
    if not engine.has("prompts_per_step"):  # nothing is sampled in training
        keys = {key for key in keys if key.startswith("validation/")}
    keys = keys.union(*map(documented, engine.headings)) - set(engine.absent)
    if form.get("group_size", getattr(engine.config, "group_size", 2)) == 1:
        keys -= {"zero_spread_groups"}
    assert set(row) == keys


# In two of them, as the same function merges and writes for all.
LORA = {"lora": dict(lora_rank=2, gradient_checkpointing=True)}


@each(lambda engine: {"": {}} | (LORA if engine.name in ("ppo", "kd_grpo") else {}))
def test_main_writes_the_run_folder(tmp_path, monkeypatch, engine, form):
    """From the models in runs/ to the report, with the reward model or the teacher.

    With LoRA the weights are merged, so that they open as any others.
    """
    for module in (sources, gpt.teacher):
        monkeypatch.setattr(module, "RUNS", tmp_path)
    monkeypatch.setattr(run_folder, "page_of", lambda folder: "")  # drawing takes a moment
    for name, layers in (("pretraining-reviews-tiny", 1), ("teacher-reviews", 2)):
        model = saved_gpt(tmp_path / name, seed=layers, context=96, n_layer=layers)
    scorer = RewardModel.from_policy(model, generator=torch.Generator().manual_seed(1))
    save_reward_model(tmp_path / "reward_model-reviews-tiny/model.safetensors", scorer, GLASSBOX)
    places = [place for place in (run_engine, loop) if hasattr(place, "frozen_copy")]
    copies = [calls_of(monkeypatch, place, "frozen_copy") for place in places]
    config = type(engine.config)(
        steps=1, prompts_per_step=2, group_size=2, eval_every=1, eval_prompts=4, test_prompts=4,
        max_new_tokens=8, device="cpu", **engine.main_flags, **form,
    )  # fmt: skip
    folder = engine.module.main(config)
    assert sum(map(len, copies)) == 1  # the start of the run is the reference, too, if that stays
    assert folder.parent == tmp_path and folder.name.startswith(engine.name)
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "metrics.jsonl", "samples.jsonl", "test_answers.jsonl", "report.json",
        "model.safetensors", "tokens.jsonl",
        *([] if engine.config.fixed_length else ["finished_state.pt"]),
    }  # fmt: skip
    paths = folder, tmp_path / "pretraining-reviews-tiny"
    trained, start = (load_gpt(path)[0].state_dict() for path in paths)
    changed = {name for name in start if not torch.equal(start[name], trained[name])}
    projections = re.compile(r"h\.0\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight")
    assert all(map(projections.fullmatch, changed)) == bool(form) and len(changed) >= 4
    (row,) = read_jsonl(folder / "metrics.jsonl")
    assert {"validation/reward", "validation/gold", "validation/kl"} <= set(row)
    assert (engine.teacher is not None) == ("validation/reverse_kl" in row)
    reads_text = engine.teacher is not None and engine.has("pretraining_coef")
    assert reads_text == ("pretraining_loss" in row)
    assert row.get("pretraining_loss", 9) > 5  # of the world's own texts, by a random model
    report = json.loads((folder / "report.json").read_text())
    assert report["before"]["kl"] == 0 != report["after"]["kl"]
    assert {"reward", "gold"} <= report["after"].keys()
