"""The list of everything that the study runs: names, and what each needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from studies.runner import Job, work

from overopt import runs, stages
from overopt.settings import Settings
from overopt.stages import base_name

PARTS = ("law", "cures")
STAGES: dict[str, Callable[..., None]] = {
    "base": stages.train_base,
    "pairs": stages.make_pairs,
    "reward model": stages.train_reward_model,
    "bank": stages.make_bank,
    "best of n": stages.score_bank,
    "run": runs.optimise,
}


def do(job: Job, settings: Settings, root: Path) -> None:
    work(job, root, lambda folder: STAGES[job.stage](folder, settings, root, **job.arguments))


def plan(settings: Settings) -> dict[str, Job]:
    """Every job by name, each after what it needs; a job that several parts need is there once."""
    jobs: dict[str, Job] = {}
    for part, list_jobs in (("law", law), ("cures", cures)):
        for job in list_jobs(settings):
            known = jobs.get(job.name, job)
            jobs[job.name] = replace(job, parts=known.parts | {part})
    return jobs


# --- what all parts stand on ----------------------------------------------------------------------


def start_jobs(settings: Settings, start: int) -> Iterator[Job]:
    yield base(start, settings.policy)
    yield pairs(settings, start, "pairs", max(settings.labels), settings.responses_per_prompt, 1.0)


def base(start: int, size: str) -> Job:
    return Job(base_name(start, size), "base", dict(start=start, size=size))


def pairs(settings: Settings, start: int, kind: str, count: int, K: int, wide: float) -> Job:
    arguments = dict(start=start, count=count, K=K, wide=wide)
    needs = (base_name(start, settings.policy),)
    return Job(f"start-{start}/{kind}", "pairs", arguments, needs)


def reward_model(
    settings: Settings, start: int, size: str, labels: int, *, kind: str = "pairs", member: int = 0
) -> Job:
    source = f"start-{start}/{kind}"
    suffix = ("" if kind == "pairs" else f"-{kind}") + (f"-{member}" if member else "")
    arguments = dict(start=start, size=size, labels=labels, pairs=source, member=member)
    needs = (source, base_name(start, size))
    name = f"start-{start}/rm/{size}-{labels}{suffix}"
    return Job(name, "reward model", arguments, needs)


def run(
    settings: Settings, name: str, start: int, models: tuple[str, ...], module: str, **flags: Any
) -> Job:
    """A policy optimised without penalty and without a stop, until gold has turned."""
    common = dict(
        kl_coef=0.0, stop_kl=None, lr=settings.lr, prompts_per_step=settings.prompts_per_step,
        group_size=settings.group_size, steps=settings.most_steps,
    )  # fmt: skip
    policy = base_name(start, settings.policy)
    arguments = dict(
        module=module, policy=policy, reward_models=models, flags=common | flags, seed=start
    )
    return Job(name, "run", arguments, (policy, *models))


# --- part 1: the law ------------------------------------------------------------------------------


def law(settings: Settings) -> Iterator[Job]:
    """Sizes x labels x starts: a reward model, best-of-n, GRPO; PPO in some cells."""
    for start in settings.starts:
        yield from start_jobs(settings, start)
        policy = base_name(start, settings.policy)
        yield Job(f"start-{start}/bank", "bank", dict(start=start), (policy,))
        for size in settings.sizes:
            yield base(start, size)
            for labels in settings.labels:
                yield from cell(settings, start, size, labels)


def cell(settings: Settings, start: int, size: str, labels: int) -> Iterator[Job]:
    """One reward model and what is made of it."""
    model = reward_model(settings, start, size, labels)
    label = f"{size}-{labels}"
    yield model
    yield Job(
        f"start-{start}/best_of_n/{label}", "best of n", dict(start=start, model=model.name),
        (f"start-{start}/bank", model.name),
    )  # fmt: skip
    models = (model.name,)
    yield run(settings, f"start-{start}/law/grpo-{label}", start, models, "rl.grpo_engine")
    if (size, labels) in settings.ppo_cells:
        yield run(
            settings, f"start-{start}/law/ppo-{label}", start, models, "rl.ppo_engine",
            kl_loss_coef=0.0,
        )  # fmt: skip


# --- part 2: cures --------------------------------------------------------------------------------

COEFFICIENTS = (0.02, 0.1)


def cures(settings: Settings) -> Iterator[Job]:
    """One cell of the law, and what may help; the first cell's own run is the uncured run."""
    for start in settings.cure_starts:
        yield from start_jobs(settings, start)
        size, labels = settings.cure_cell
        yield base(start, size)
        members = [
            reward_model(settings, start, size, labels, member=i) for i in range(settings.members)
        ]
        yield from members
        more = reward_model(settings, start, size, next_labels(settings))
        yield more
        yield pairs(
            settings, start, "wide", labels, settings.responses_per_prompt,
            settings.wide_temperature,
        )  # fmt: skip
        wide = reward_model(settings, start, size, labels, kind="wide")
        yield wide
        yield from cured_runs(settings, start, [m.name for m in members], more.name, wide.name)


def next_labels(settings: Settings) -> int:
    """The label count that follows the uncured run's: three times as many in the full study."""
    return settings.labels[settings.labels.index(settings.cure_cell[1]) + 1]


def cured_runs(
    settings: Settings, start: int, members: list[str], more: str, wide: str
) -> Iterator[Job]:
    """The uncured run and every cure, from one start."""
    size, labels = settings.cure_cell
    one, all_members = (members[0],), tuple(members)

    def named(cure: str) -> str:
        return f"start-{start}/cures/{cure}"

    grpo = "rl.grpo_engine"
    yield run(settings, f"start-{start}/law/grpo-{size}-{labels}", start, one, grpo)
    for combine in ("mean", "min"):
        name = named(f"ensemble_{combine}")
        yield run(settings, name, start, all_members, grpo, ensemble=combine)
    yield run(settings, named("more_labels"), start, (more,), grpo)
    yield run(settings, named("wide_pairs"), start, (wide,), grpo)
    for coefficient in COEFFICIENTS:
        yield run(settings, named(f"kl_{coefficient}"), start, one, grpo, kl_coef=coefficient)
    job = run(
        settings, named("own_answers"), start, one, "rl.grpo_iterative_engine",
        iterations=settings.most_steps // settings.refresh_every, new_pairs=labels // 3,
        check_pairs=labels // 6, responses_per_prompt=settings.responses_per_prompt,
        wide_temperature=1.0, reward_batch_size=settings.reward_batch,
    )  # fmt: skip
    yield replace(job, arguments={**job.arguments, "until_turned": False})


CURES = (
    "patient", "more_labels", "own_answers", "wide_pairs", "ensemble_mean", "ensemble_min",
    *(f"kl_{coefficient}" for coefficient in COEFFICIENTS),
)  # fmt: skip
