"""The sizes of the over-optimisation study, and the list of everything that it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from studies.runner import Job, StudyFlags

SHAPES: dict[str, tuple[int, int, int]] = {  # name: layers, heads, width
    "1x32": (1, 2, 32), "2x64": (2, 2, 64), "3x96": (3, 3, 96),
    "4x128": (4, 4, 128),  # the policy's own shape
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Everything that decides a number of the study."""

    # The law: reward models of every size on every number of labels, a whole start per seed.
    sizes: tuple[str, ...] = tuple(SHAPES)
    labels: tuple[int, ...] = (600, 1800, 5400, 16200, 48600)
    starts: tuple[int, ...] = (0, 1, 2)
    ppo_cells: tuple[tuple[str, int], ...] = (
        ("1x32", 1800), ("1x32", 16200), ("2x64", 5400),
        ("4x128", 600), ("4x128", 5400), ("4x128", 48600),
    )  # fmt: skip
    best_of: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    bank_prompts: int = 64
    bank_answers: int = 1024

    # The cures: one cell of the law, over more starts.
    cure_cell: tuple[str, int] = ("4x128", 1800)
    cure_starts: tuple[int, ...] = (0, 1, 2, 3, 4)
    members: int = 3
    refresh_every: int = 12  # steps between two trainings on the policy's own answers

    # How models are trained.
    policy: str = "4x128"
    pretraining_steps: int = 1500
    responses_per_prompt: int = 4  # K: 6 comparisons a prompt
    wide_temperature: float = 1.5
    held_out_pairs: int = 1000
    reward_batch: int = 8  # prompts a step
    reward_lr: float = 2e-3
    fewest_reward_steps: int = 200  # few labels are gone through again, at most `most_epochs` times
    most_epochs: int = 4

    # How policies are optimised and measured, in the law and in the cures.
    lr: float = 4e-4
    prompts_per_step: int = 8
    group_size: int = 8
    most_steps: int = 120
    measure_every: int = 3
    prompts: int = 128  # test prompts, one answer each, the same random numbers every time
    fall: float = 0.10  # gold has turned when it lies this far below its best
    smooth: int = 3  # each a mean over so many measurements

    def reward_steps(self, labels: int) -> int:
        """Optimizer steps of a reward model: whole epochs, one where that is enough."""
        per_prompt = self.responses_per_prompt * (self.responses_per_prompt - 1) // 2
        an_epoch = max(labels // per_prompt // self.reward_batch, 1)
        epochs = min(max(-(-self.fewest_reward_steps // an_epoch), 1), self.most_epochs)
        return an_epoch * epochs


REHEARSAL = Settings(  # everything once, in about a minute
    sizes=("1x32",), labels=(12, 24), starts=(0, 1), ppo_cells=(("1x32", 24),), best_of=(1, 2, 4),
    bank_prompts=3, bank_answers=8, cure_cell=("1x32", 12), cure_starts=(0, 1), members=2,
    refresh_every=3, policy="1x32", pretraining_steps=30, held_out_pairs=12, reward_batch=2,
    fewest_reward_steps=2, prompts_per_step=2, group_size=4, most_steps=6, measure_every=2, prompts=8,
    smooth=1,
)  # fmt: skip
COEFFICIENTS = (0.02, 0.1)  # of the KL
CURES = (
    "baseline", "more_labels", "own_answers", "wide_pairs", "ensemble_mean", "ensemble_min",
    *(f"kl_{coefficient}" for coefficient in COEFFICIENTS),
)  # fmt: skip


def settings_of(flags: StudyFlags) -> Settings:
    """Toys with --quick; the law has at most its three starts."""
    own = REHEARSAL if flags.quick else Settings()
    starts, of_cures = own.starts[: flags.seeds], own.cure_starts[: flags.seeds]
    return replace(own, starts=starts, cure_starts=of_cures)


def plan(flags: StudyFlags) -> dict[str, Job]:
    """Every job by name, each after what it needs; a job that several parts need is there once."""
    settings, jobs = settings_of(flags), dict[str, Job]()
    stages = "studies.overoptimisation.stages"
    given = {"settings": replace(settings, starts=(), cure_starts=())}  # --seeds changes no job
    for part, list_jobs in (("law", law), ("cures", cures)):
        for job in list_jobs(settings):
            known = jobs.get(job.name, job)
            jobs[job.name] = replace(
                job, parts=known.parts | {part}, arguments={**job.arguments, **given},
                code=(stages, job.arguments.get("module", stages)),
            )  # fmt: skip
    return jobs


def base_name(start: int, size: str) -> str:
    return f"start-{start}/base-{size}"


def base(start: int, size: str) -> Job:
    return Job(base_name(start, size), "base", dict(start=start, size=size))


def pairs(settings: Settings, start: int, kind: str, count: int, wide: float) -> Job:
    arguments = dict(start=start, count=count, wide=wide)
    return Job(f"start-{start}/{kind}", "pairs", arguments, (base_name(start, settings.policy),))


def reward_model(start: int, size: str, labels: int, kind: str = "pairs", member: int = 0) -> Job:
    source = f"start-{start}/{kind}"
    suffix = ("" if kind == "pairs" else f"-{kind}") + (f"-{member}" if member else "")
    arguments = dict(start=start, size=size, labels=labels, pairs=source, member=member)
    name = f"start-{start}/rm/{size}-{labels}{suffix}"
    return Job(name, "reward model", arguments, (source, base_name(start, size)))


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
    return Job(f"start-{start}/{name}", "run", arguments, (policy, *models))


def law(settings: Settings) -> Iterator[Job]:
    """Sizes x labels x starts: a reward model, best-of-n, GRPO; PPO in some cells."""
    for start in settings.starts:
        policy, bank = base(start, settings.policy), f"start-{start}/bank"
        yield policy
        yield pairs(settings, start, "pairs", max(settings.labels), 1.0)
        yield Job(bank, "bank", dict(start=start), (policy.name,))
        for size in settings.sizes:
            yield base(start, size)
            for labels in settings.labels:
                model, cell = reward_model(start, size, labels), f"{size}-{labels}"
                yield model
                ranked = dict(start=start, model=model.name)
                name = f"start-{start}/best_of_n/{cell}"
                yield Job(name, "best of n", ranked, (bank, model.name))
                models = (model.name,)
                yield run(settings, f"law/grpo-{cell}", start, models, "rl.grpo_engine")
                if (size, labels) in settings.ppo_cells:
                    own = dict(kl_loss_coef=0.0)
                    yield run(settings, f"law/ppo-{cell}", start, models, "rl.ppo_engine", **own)


def cures(settings: Settings) -> Iterator[Job]:
    """One cell of the law, and what may help; the first cell's own run is the uncured run."""
    size, labels = settings.cure_cell
    grpo, K = "rl.grpo_engine", settings.responses_per_prompt
    for start in settings.cure_starts:
        yield base(start, settings.policy)
        yield pairs(settings, start, "pairs", max(settings.labels), 1.0)
        yield base(start, size)
        members = [reward_model(start, size, labels, member=i) for i in range(settings.members)]
        more = reward_model(start, size, settings.labels[settings.labels.index(labels) + 1])
        wide = reward_model(start, size, labels, "wide")
        yield from members
        yield more
        yield pairs(settings, start, "wide", labels, settings.wide_temperature)
        yield wide
        one, every = (members[0].name,), tuple(member.name for member in members)
        yield run(settings, f"law/grpo-{size}-{labels}", start, one, grpo)
        for combine in ("mean", "min"):
            name = f"cures/ensemble_{combine}"
            yield run(settings, name, start, every, grpo, ensemble=combine)
        yield run(settings, "cures/more_labels", start, (more.name,), grpo)
        yield run(settings, "cures/wide_pairs", start, (wide.name,), grpo)
        for coefficient in COEFFICIENTS:
            yield run(settings, f"cures/kl_{coefficient}", start, one, grpo, kl_coef=coefficient)
        job = run(
            settings, "cures/own_answers", start, one, "rl.grpo_iterative_engine",
            iterations=settings.most_steps // settings.refresh_every, new_pairs=labels // 3,
            check_pairs=labels // 6, responses_per_prompt=K, wide_temperature=1.0,
            reward_batch_size=settings.reward_batch,
        )  # fmt: skip
        yield replace(job, arguments={**job.arguments, "until_turned": False})
