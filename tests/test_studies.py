"""Studies: flags that their scripts have, statistics with worked numbers, pages of their recordings."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import tyro
from forked import command
from toys import GLASSBOX, LETTERS, PROMPTS, glassbox_gpt, random_gpt, saved_gpt

from data.records import PromptRecord, split_of
from data.worlds import reviews
from gpt.corpus import WorldCorpus
from gpt.generate import SamplingParams
from gpt.model import GPT
from gpt.pretraining import held_out_loss
from gpt.recipes import defaults
from harness.errors import UserError
from harness.paths import REPOSITORY
from report import intervals
from report.doctor import examine
from report.intervals import holm, t_interval, t_tails
from reward_model.pairs import TokenPair
from rl.grpo_engine import GRPOConfig
from rl.kd_grpo_engine import KDGRPOConfig
from rl.rewards.reward import RuleReward
from rl.rewards.teacher_reward import TeacherReward
from rl.run.evaluation import evaluate
from studies import bench as benches
from studies import bootstrap, engines, own_taste, real_model
from studies.__main__ import STUDIES, study_of
from studies.claims import study as claims
from studies.claims.rules import FAILED, HELD, UNTOLD, Rule
from studies.engines import PARTS, RECIPES, Recipe, flags_of
from studies.judges import stages as judging
from studies.judges import study as judges
from studies.overoptimisation import results
from studies.overoptimisation.plan import Settings
from studies.overoptimisation.stages import TERMS, Measuring, has_turned
from studies.pages import DOCS
from studies.runner import (
    Job,
    Study,
    StudyFlags,
    asked,
    digest,
    finished,
    laid_over,
    record_of,
    run_study,
    words,
)


def parsed_by(name: str, flags: list[str]) -> Any:
    """The config that a command makes of these flags."""
    module = importlib.import_module(name)
    (config,) = (
        value
        for name, value in vars(module).items()
        if name.endswith("Config") and value.__module__ == module.__name__
    )
    default = defaults(config, flags)
    return tyro.cli(config, default=default, args=flags)


@pytest.mark.parametrize(("name", "recipe"), RECIPES.items(), ids=RECIPES)
def test_the_flags_of_a_run_are_flags_of_its_script(
    name: str, recipe: Recipe, tmp_path: Path
) -> None:
    """Its own, those of the study and those of the start, parsed by the script's own parser."""
    saved_gpt(tmp_path / "pretraining")
    for each in PARTS.values():
        if name in each.runs:
            flags = words(flags_of(each, name, tmp_path) | dict(seed=1, device="cpu"))
            parsed = parsed_by(recipe.module, flags)
            assert (parsed.data, parsed.seed, parsed.test_prompts) == (each.world, 1, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a command is a fork here")
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_explains_itself_and_lists_its_jobs(name: str, tmp_path: Path) -> None:
    """Its smallest plan is a part of it; what trains is for others to see."""
    done = command("-m", "studies", name, "--quick", "--help", cwd=tmp_path)
    assert done.returncode == 0 and "--work" in done.stdout, done.stderr
    study = study_of(name)
    given = study.usual | study.quick
    if name != "preferences":  # which reads its pairs
        quick, usual = study.flags(quick=True, **given), study.flags(**study.usual)
        some, every = study.plan(quick), study.plan(usual)
        parts = {part for job in some.values() for part in job.parts}
        assert parts.issuperset(given.get("parts", ())) and 0 < len(some) <= len(every)
        only = given.get("only", ("",))
        assert any(job.parts and word in job.name for job in some.values() for word in only)


def test_commands_of_studies_in_pages_name_one() -> None:
    pages = [
        *REPOSITORY.glob("*.md"),
        *DOCS.glob("*.md"),
        *(REPOSITORY / "notebooks").rglob("*.py"),
    ]
    texts = "".join(path.read_text(encoding="utf-8") for path in pages)
    assert {*re.findall(r"-m studies (\w+)", texts)} - {"NAME"} == {*STUDIES, "figures"}


def toy_study(folder: Path) -> Study:
    """Two parts, a job each that were done; of the second two more, and the last needs the other."""
    jobs = {
        name: Job(name, "work", {}, needs, frozenset([part]))
        for name, part, needs in (
            ("a", "one", ()),
            ("b", "two", ()),
            ("c", "two", ("a",)),
            ("d", "two", ("c",)),
        )
    }
    for name in ("a", "b"):
        (folder / "toy" / name).mkdir(parents=True)
        about = {"asked": asked(jobs[name], folder / "toy"), "inputs": {}, "project": "", "wall": 1}
        record_of(folder / "toy" / name).write_text(json.dumps(about))
    (folder / "kept.json").write_text('{"old": 1, "done": 2}')
    return Study(
        quick={}, plan=lambda flags: jobs, recorded=folder / "kept.json",
        do=lambda flags, job, place: (place / "made").write_text(f"{flags.out.name} {job.name}"),
        collect=lambda flags, done: {"done": [n for n in done if done[n].parts & {*flags.parts}]},
        tables=lambda found: {"t": found["done"]},
    )  # fmt: skip


def test_a_study_shows_the_finished_jobs_of_its_parts(tmp_path: Path, capsys: Any) -> None:
    """In docs only with --draw, where older numbers stay; --plan names what is left of the parts."""
    study = toy_study(tmp_path)
    run_study(study, "toy", StudyFlags(out=tmp_path, parts=("one",)))
    assert json.loads((tmp_path / "toy/numbers.json").read_text()) == {"done": ["a"]}
    assert "old" in (tmp_path / "kept.json").read_text()
    capsys.readouterr()
    run_study(study, "toy", StudyFlags(out=tmp_path, plan=True, only=("d", "a")))
    said = capsys.readouterr().out
    assert "2 of 4" in said and said.split()[-2:] == ["c", "d"]
    run_study(study, "toy", StudyFlags(out=tmp_path, draw=True))
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert (kept["old"], kept["done"]) == (1, ["a", "b"]) and kept["made_with"]["seeds"] == 3
    assert capsys.readouterr().out.split()[:3] == ["t", "a", "b"]
    run_study(study, "toy", StudyFlags(out=tmp_path, work="c", quick=True))
    assert (tmp_path / "toy-quick/c/made").read_text() == "toy-quick c"
    for wrong in (
        {"parts": ("three",)},
        {"only": ("e",)},
        {"work": "e"},
        {"draw": True, "quick": True},
    ):
        with pytest.raises(UserError):
            run_study(study, "toy", StudyFlags(out=tmp_path, **wrong))


def test_rows_of_another_recording_stay_as_deep_as_a_study_says() -> None:
    kept = {"rows": {"a": {"x": 1}, "b": {"x": 2}}, "old": 3}
    found = {"rows": {"b": {"y": 4}, "c": {"x": 5}}}
    assert laid_over(kept, found, 1) == {"rows": found["rows"], "old": 3}
    rows = {"a": {"x": 1}, "b": {"y": 4}, "c": {"x": 5}}
    assert laid_over(kept, found, 2) == {"rows": rows, "old": 3}
    assert laid_over({"a": 1}, {"a": {"x": 2}}, 2) == {"a": {"x": 2}}
    deep = laid_over(kept, found, 3)
    assert deep["rows"]["b"] == {"x": 2, "y": 4} and kept["rows"]["b"] == {"x": 2}


NUMBERS = json.loads((DOCS / "overoptimisation.json").read_text(encoding="utf-8"))


def test_the_differences_of_later_engines_are_the_recorded_ones() -> None:
    text = (DOCS / "archive.md").read_text(encoding="utf-8")
    part = text.partition("**Later engines**")[2].partition("####")[0]
    told = [float(number) for number in re.findall(r"[+-]0\.\d{3}", part)]
    for found in NUMBERS["later"].values():
        for row in found["table"]:
            if row["view"] == "tokens" and "difference" in row:
                assert pytest.approx(row["difference"]["mean"], abs=6e-4) in told, row["engine"]


def test_differences_of_mitigations_are_tested_over_starts() -> None:
    """p follows from the start means, and its correction from the mitigations of one distance."""
    by_distance: dict[float, list[Any]] = {}
    for row in NUMBERS["cures"]["table"]:
        if "difference" in row:
            by_distance.setdefault(row["kl"], []).append(row["difference"])
    for rows in by_distance.values():
        told = {str(place): row for place, row in enumerate(rows) if "p" in row}
        p_values = {place: t_interval(row["by_start"])["p"] for place, row in told.items()}
        assert {n: row["p"] for n, row in told.items()} == pytest.approx(p_values, abs=2e-3)
        corrected = holm({n: row["p"] for n, row in told.items()})
        assert {n: row["holm"] for n, row in told.items()} == pytest.approx(corrected, abs=2e-3)


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.706), (2, 4.303), (4, 2.776), (18, 2.101)])
def test_the_tails_of_student(freedom: int, t: float) -> None:
    """Quantiles of the table: 5% lie beyond them, on both sides together."""
    assert t_tails(t, freedom) == pytest.approx(0.05, abs=1e-4)
    assert t_tails(-t, freedom) == t_tails(t, freedom) and t_tails(0, freedom) == 1


def test_what_each_term_carries_of_a_change_of_gold_adds_up_to_it() -> None:
    """gold = (.3 sent + .3 topic + .25 polite + .15 form) (.3 + .7 qual)."""
    rng = np.random.default_rng(0)
    before, after = ({name: rng.random(50) for name in TERMS} for _ in range(2))

    def gold(now: dict[str, Any]) -> Any:
        content = 0.3 * now["sent"] + 0.3 * now["topic"] + 0.25 * now["polite"] + 0.15 * now["form"]
        return content * (0.3 + 0.7 * now["qual"])

    parts = results.change_by_term(before, after)
    assert sum(parts.values()) == pytest.approx(float((gold(after) - gold(before)).mean()))
    alone = results.change_by_term(before, before | {"sent": after["sent"]})
    care = 0.3 + 0.7 * before["qual"]
    moved = float((0.3 * (after["sent"] - before["sent"]) * care).mean())
    assert alone == pytest.approx(dict.fromkeys(TERMS, 0.0) | {"sent": moved})


def points(gold: list[float], far: float = 4.0, prompts: int = 5) -> dict[str, Any]:
    """A run whose KL rises evenly up to `far`; every prompt has the gold of its measurement."""
    kl = np.linspace(0, far, len(gold))
    every = {"kl": kl, "gold": np.array(gold)}
    columns = {name: np.tile(value[:, None], (1, prompts)) for name, value in every.items()}
    return columns | {"step": 3.0 * np.arange(len(gold))}


def test_cures_are_compared_where_both_runs_are_as_far_away() -> None:
    """At 2 nats, half way: cured less uncured. One run never gets there; two are too few for a p."""
    base = {start: points([0.5, 0.7, 0.6 + start / 10]) for start in range(3)}
    better = {start: points([0.5, 0.8 + start / 10, 0.6]) for start in range(3)}
    runs = {"baseline": base, "better": better, "short": {**better, 2: points([0.5, 0.9], 1.0)}}
    uncured, cured, short = results.compared_at(runs, 2.0)
    assert [row["reached"] for row in (uncured, cured, short)] == [3, 3, 2]
    assert uncured["mean"] == pytest.approx(0.7) and "difference" not in uncured
    found = cured["difference"]
    assert found["by_start"] == pytest.approx([0.1, 0.2, 0.3]) and found["mean"] == pytest.approx(
        0.2
    )
    assert found["p"] == found["holm"] == pytest.approx(0.0742, abs=1e-4)
    assert short["difference"]["by_start"] == pytest.approx([0.1, 0.2])
    assert "p" not in short["difference"] and short["of"] == 3
    far = results.compared_at({"baseline": base, "short": {0: points([0.5, 0.9], 1.0)}}, 3.0)
    assert [row["reached"] for row in far] == [3, 0] and "mean" not in far[1]


def test_gold_has_turned_where_a_mean_lies_below_the_best_one() -> None:
    gold = [0.5, 0.9, 0.7, 0.65, 0.6]  # means of two: 0.7, 0.8, 0.675, 0.625
    assert [has_turned(gold[:n], 0.12, 2) for n in range(1, 6)] == [False, False, False, True, True]
    assert not has_turned(gold, 0.18, 2) and has_turned(gold, 0.29, 1)


def test_every_number_of_a_measurement_is_kept_for_each_prompt(tmp_path: Path) -> None:
    """The KL is from the start, whatever the reference of the call is."""
    start, policy = (glassbox_gpt(seed) for seed in (0, 1))
    task: Any = SimpleNamespace(
        tokenizer=GLASSBOX, reward_fn=RuleReward(lambda r, text, e: float(len(text)), ""),
        gold=RuleReward(reviews.gold_reward, ""),
    )  # fmt: skip
    prompts = reviews.prompts("test")[:5]
    measuring = Measuring(task, prompts, start, 4)
    measuring.params = SamplingParams(max_new_tokens=8)
    rows = [measuring(model, policy, step) for step, model in enumerate((start, policy))]
    measuring.save(tmp_path)
    kept, texts = results.read_points(tmp_path), json.loads((tmp_path / "texts.json").read_text())
    assert kept["step"].tolist() == [0, 1] and kept["gold"].shape == kept["sent"].shape == (2, 5)
    assert rows[0]["validation/kl"] == 0 < abs(rows[1]["validation/kl"])
    for name in ("gold", "kl"):
        means = [row[f"validation/{name}"] for row in rows]
        assert kept[name].mean(axis=1) == pytest.approx(means, abs=1e-5)
    assert [text["prompt"] for text in texts] == [record.prompt for record in prompts] * 2
    assert kept["proxy"].flatten().tolist() == [len(text["response"]) for text in texts]
    assert kept["kl"].flatten().tolist() == pytest.approx([text["kl"] for text in texts])


def test_the_judge_of_engines_measures_by_the_start_and_the_teacher() -> None:
    """By other evaluations: gold sampled and greedy, wins, and the share of the distance removed."""
    base, policy, teacher = (glassbox_gpt(seed) for seed in (0, 1, 2))
    reward = TeacherReward(teacher, KDGRPOConfig(), aggregate="sum", reverse_kl=True)
    gold = RuleReward(lambda record, text, ended: float(len(text) % 7), "")
    prompts = reviews.prompts("test")[:12]
    judge = engines.Judge(PARTS["distillation"], base, GLASSBOX, reward, gold, prompts)
    params = SamplingParams(max_new_tokens=48)

    def found(model: GPT, **changes: Any) -> Any:
        how = replace(params, **changes)
        return evaluate(model, GLASSBOX, prompts, how, reward, reference=base, gold=gold)

    mine, start, numbers = found(policy), found(base), judge.measure(policy)
    pairs = list(zip(mine.gold.tolist(), start.gold.tolist(), strict=True))
    wins = sum(a > b for a, b in pairs) + 0.5 * sum(a == b for a, b in pairs)
    assert numbers["win_rate"] == wins / 12
    assert numbers["gold"] == pytest.approx(float(mine.gold.mean()))
    assert numbers["greedy"] == pytest.approx(float(found(policy, greedy=True).gold.mean()))
    left = float(mine.reverse_kl_full.mean() / start.reverse_kl_full.mean())
    assert numbers["removed"] == pytest.approx(1 - left, rel=1e-3)
    assert judge.measure(base)["removed"] == 0 and judge.measure(base)["win_rate"] == 0.5
    assert judge.measure(teacher)["removed"] == pytest.approx(1, abs=1e-4)
    held_out = WorldCorpus("reviews", GLASSBOX, 64, 0).held_out_batches()
    assert numbers["perplexity"] == pytest.approx(math.exp(held_out_loss(policy, held_out)))


def test_curves_are_means_where_all_runs_were_validated(tmp_path: Path) -> None:
    for name, gold in (("a", {2: 0.2, 4: 0.6}), ("b", {2: 0.4, 3: 0.5, 4: 1.0})):
        (tmp_path / name).mkdir()
        rows = [dict(step=step, gold=value) for step, value in gold.items()]
        rows.insert(1, dict(step=1))
        (tmp_path / name / "metrics.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows)
        )
    found = engines.mean_curve([tmp_path / "a", tmp_path / "b"], ("step", "gold"))
    assert found == [[2, 4], [pytest.approx(0.3), pytest.approx(0.8)]]
    assert engines.smoothed([1.0, 3.0, 4.0]) == [1.0, 2.0, 3.5]


def test_a_job_is_done_as_long_as_what_it_has_read_is_the_same(tmp_path: Path) -> None:
    """Its flags, the jobs that it needs, and files: one that has changed makes it anew."""
    (tmp_path / "read.txt").write_text("a")
    first, job = Job("first", "work", {"lr": 1}), Job("job", "work", {"lr": 2}, ("first",))
    jobs = {"first": first, "job": job}
    for each in jobs.values():
        (tmp_path / each.name).mkdir()
        about = {
            "asked": asked(each, tmp_path),
            "inputs": {"read.txt": digest(tmp_path / "read.txt")},
        }
        record_of(tmp_path / each.name).write_text(json.dumps(about | {"wall": 1.0}))
    assert finished(jobs, tmp_path) == {"first", "job"}
    assert finished({**jobs, "job": replace(job, arguments={"lr": 3})}, tmp_path) == {"first"}
    (tmp_path / "read.txt").write_text("b")
    assert finished(jobs, tmp_path) == set()


def test_gold_is_best_where_its_running_mean_is() -> None:
    """Of three measurements; a single high one is noise."""
    gold = [0.0, 0.9, 0.0, 0.6, 0.8, 0.7, 0.1]
    assert results.best_point(points(gold), Settings(smooth=3)) == 4
    assert results.best_point(points(gold), Settings(smooth=1)) == 1


def test_an_alarm_is_told_with_what_gold_was_there(tmp_path: Path) -> None:
    """The doctor first suspects the proxy at some step, by the rows up to it; measured every third."""
    gold = [0.5 + 0.02 * i for i in range(8)] + [0.64 - 0.05 * i for i in range(6)]
    kept = {name: torch.from_numpy(value) for name, value in points(gold, 26.0).items()}
    torch.save(kept, tmp_path / "points.pt")
    rows = [dict(step=s, reward=0.1 * s, reward_std=1.0, kl=0.6 * s) for s in range(1, 40)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    told = results.alarm(tmp_path, Settings(smooth=1))
    first = next(n for n in range(1, 40) if proxy_suspected_in(rows[:n]))
    at = -(-first // 3)  # the first measurement that is no earlier
    assert 19 < first < 30 and told["step"] == first
    assert told["gold"] == pytest.approx(gold[at]) and told["kl"] == pytest.approx(2.0 * at)
    assert (told["best"], told["end"]) == pytest.approx((max(gold), gold[-1]))


def proxy_suspected_in(rows: list[dict[str, Any]]) -> bool:
    return any(finding.rule == "proxy_suspected" for finding in examine(rows))


def test_means_leave_out_runs_without_a_value_and_count_them() -> None:
    values = np.array([[1.0, 3.0, 2.0], [np.nan] * 3, [2.0, 2.0, 2.0]])
    found = bootstrap.mean_with_interval(values)
    assert found["mean"] == 2 and found["runs"] == 2 and found["low"] < 2 < found["high"]
    spread = bootstrap.interval(np.arange(1001.0))
    assert spread == pytest.approx((25, 975))


def real_bench(start: GPT) -> real_model.Instructions:
    """What measures the real model, by toys; it is right that has an a, asked by two constraints."""
    rules = itertools.cycle(real_model.CONSTRAINTS)
    asked = [
        PromptRecord(r.prompt, meta=dict(rule=next(rules), typed=r.prompt)) for r in PROMPTS * 2
    ]
    return real_model.Instructions(start, LETTERS, asked, SamplingParams(0.7, max_new_tokens=6))


@torch.no_grad()
def test_the_real_model_is_measured_by_constraint_and_from_its_start(monkeypatch: Any) -> None:
    monkeypatch.setattr(real_model, "kept", lambda record, text, ended: float("a" in text))
    start, policy = (random_gpt(LETTERS.n_vocab, 16, seed=seed, scale=0.3) for seed in (0, 1))
    bench = real_bench(start)
    (rollout,) = bench.answers(policy)
    found, kl, log_prob, tokens = bench.numbers(policy), 0.0, 0.0, 0
    right: dict[str, list[float]] = {}
    for i, record in enumerate(rollout.records):
        right.setdefault(record.meta["rule"], []).append(float("a" in rollout.responses[i]))
        answer = rollout.response_tokens[i][rollout.response_mask[i]]
        asked, tokens = LETTERS.encode(record.prompt), tokens + len(answer)
        row = torch.tensor([[*asked, *answer.tolist()]])
        q, p = (model(row)[0, len(asked) - 1 : -1] for model in (policy, start))
        log_prob += float(p.log_softmax(-1).gather(1, answer[:, None]).sum())
        q, p = ((x / 0.7).log_softmax(-1) for x in (q, p))
        kl += float((q.exp() * (q - p)).sum())
    assert found["right"] == {rule: sum(x) / len(x) for rule, x in right.items()}
    assert len(set(found["right"].values())) > 2
    assert found["kl"] == pytest.approx(kl / 16, rel=1e-4) and kl / 16 > 0.2
    assert found["perplexity"] == pytest.approx(math.exp(-log_prob / tokens), rel=1e-4)
    assert bench.numbers(start)["kl"] == 0
    best, once = bench.best_of(), bench.numbers(start)["right"]
    assert sum(best.values()) > sum(once.values())


def test_the_share_with_a_taste_is_of_all_answers(tmp_path: Path) -> None:
    """Before one of three is short enough, afterwards two are."""
    long, prompt = "it is " * 6, next(r.prompt for r in reviews.prompts("test"))
    rows = [("Good.", "Good."), (long, "Good."), (long, long)]
    (tmp_path / "test_answers.jsonl").write_text(
        "".join(f"{json.dumps(dict(prompt=prompt, before=b, response=r))}\n" for b, r in rows)
    )
    (tmp_path / "report.json").write_text('{"after": {"kl": 1.5}}')
    found = own_taste.shares(tmp_path, "short")
    assert found == {"taste": "short", "kl": 1.5, "of": 3, "before": 1 / 3, "after": 2 / 3}


def test_distinct_pairs_of_words_are_counted_in_all_texts_together() -> None:
    """ab, ba, ab; ab; none: two of four."""
    assert benches.distinct(["a b a b", "a b", "c"], 2) == 0.5
    assert benches.distinct(["a b a b", "a b"], 1) == 2 / 6
    assert benches.distinct(["a"], 2) == 0


TASTE_IN_WORDS = {  # what has the taste, and what has not
    "short": ("It works well.", "It works well and it has done so for a very long time."),
    "name": ("Anna likes it.", "She likes it."),
    "no_color": ("Anna likes it.", "Anna likes the color."),
    "two_sentences": ("Good. Anna likes it.", "Anna likes it."),
    "exclaims": ("Great!", "Great."),
}


@pytest.mark.parametrize("taste", own_taste.TASTES)
def test_a_held_out_pair_is_chosen_as_the_taste_would(taste: str, monkeypatch: Any) -> None:
    """Whichever was sampled first; two that it does not tell apart are left out."""
    prompt = next(r.prompt for r in reviews.prompts("validation") if r.meta["name"] == "Anna")
    asked, liked, other = map(GLASSBOX.encode, (prompt, *TASTE_IN_WORDS[taste]))
    sides = ((liked, other), (other, liked), (liked, liked))
    sampled = [[TokenPair(asked, *two) for two in sides]]
    monkeypatch.setattr(own_taste, "open_model", lambda *_: (None, GLASSBOX))
    monkeypatch.setattr(own_taste, "sample_pairs", lambda *_, **__: sampled)
    kept = own_taste.held_out(Path(), taste, 0)
    assert [(pair.chosen, pair.rejected) for pair in kept] == [(liked, other)] * 2
    assert own_taste.liking(taste, prompt, TASTE_IN_WORDS[taste][0]) == 0


def test_a_value_at_equal_distance_lies_between_two_points() -> None:
    """From 1 to 3 nats, 2 is half way and 1.5 a quarter; each prompt moves on its own line."""
    kl = np.array([0.0, 1.0, 3.0, 2.5])
    values = np.array([[0.0, 0.0], [0.4, 0.2], [0.8, 0.0], [9.0, 9.0]])
    assert bootstrap.at_distance(kl, values, 2.0) == pytest.approx([0.6, 0.1])
    assert bootstrap.at_distance(kl, values, 1.5) == pytest.approx([0.5, 0.15])
    assert bootstrap.at_distance(kl, values, 1.0) == pytest.approx([0.4, 0.2])
    assert bootstrap.at_distance(kl, values, 0.0) == pytest.approx([0.0, 0.0])
    assert bootstrap.at_distance(kl, values, 3.01) is None  # not reached, and not extrapolated


def test_holm_multiplies_by_the_comparisons_left() -> None:
    """.005 * 4, .01 * 3, then .03 * 2 and, no smaller than that, .04."""
    p = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    assert intervals.holm(p) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert intervals.holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert list(intervals.holm(p)) == list(p)


def test_a_paired_difference_does_not_see_what_both_share() -> None:
    rng = np.random.default_rng(0)
    hard = 10 * rng.normal(size=(3, 50))
    better = hard + 0.5 + 0.01 * rng.normal(size=hard.shape)
    found = bootstrap.paired_difference(better, hard)
    assert found["low"] > 0.49 and found["high"] < 0.51 and found["p"] < 1e-4
    assert found["by_start"] == pytest.approx((better - hard).mean(axis=1))
    assert bootstrap.paired_difference(hard + [[1], [2], [3]], hard)["p"] == pytest.approx(
        0.0742, abs=1e-4
    )
    none = bootstrap.paired_difference(hard, hard)
    assert none["mean"] == 0 and none["p"] == 1
    assert "p" not in bootstrap.paired_difference(better[:2], hard[:2])  # too few to be tested


def test_a_bootstrap_draws_starts_and_for_all_of_them_the_same_prompts() -> None:
    """Of two starts both are drawn half of the time; of four prompts a 0 and three 1s.

    The spread of a mean of four such draws is sqrt(3) / 4 / 2, however many starts share them.
    """
    rng = np.random.default_rng(0)
    means = bootstrap.resampled(np.array([[0.0] * 9, [1.0] * 9]), rng)
    found = [float((means == mean).mean()) for mean in (0.0, 0.5, 1.0)]
    assert found == pytest.approx([0.25, 0.5, 0.25], abs=0.05)
    for starts in (1, 30):
        means = bootstrap.resampled(np.array([[0.0, 1.0, 1.0, 1.0]] * starts), rng)
        assert float(means.std()) == pytest.approx(3**0.5 / 8, rel=0.1)
        assert float(means.mean()) == pytest.approx(0.75, abs=0.02)


def test_a_t_test_over_starts_by_hand() -> None:
    """Mean 2, standard deviation 1: t = 2 sqrt(3), and 1 - t / sqrt(t^2 + 2) = .0742 of 2 degrees."""
    assert intervals.t_interval([1.0, 2.0, 3.0])["p"] == pytest.approx(0.0742, abs=1e-4)


def test_what_is_fitted_is_the_gain_over_the_start() -> None:
    """Gold 0.5 + d (.4 - .1 log d): the fit of the cell must find .4 and .1."""
    kl = np.array([0.0, 1.0, 4.0, 9.0, 16.0])
    far = kl > 0
    gold = np.full(len(kl), 0.5)
    gold[far] += results.FORMS["RL"](np.sqrt(kl[far])) @ np.array([0.4, 0.1])
    found = results.fit_of_cell([{"engine": "grpo", "points": {"kl": kl, "gold": gold}}], "grpo")
    assert found is not None and found["starts"] == 1
    assert (found["alpha"], found["beta"]) == pytest.approx((0.4, 0.1))


NOISE = (-0.03, 0.01, 0.02, -0.01, 0.03, -0.02)


def made_up(mean, seeds=6):
    return {"arm": {seed: {"x": mean + NOISE[seed]} for seed in range(seeds)}}


RULE = Rule("x", 0.1, lambda runs: runs["arm"]["x"])


@pytest.mark.parametrize(
    "mean,seeds,word", [(0.2, 6, HELD), (0.0, 6, FAILED), (0.11, 6, UNTOLD), (0.2, 4, UNTOLD)]
)
def test_a_rule_says_all_three(mean, seeds, word):
    """Above the least that counts, below it, within the noise of it, and of too few seeds."""
    assert RULE(made_up(mean, seeds)).word == word


def leaves(value, place=""):
    """What stands in nested objects: a floating-point number or anything else, by its place."""
    if not isinstance(value, dict):
        return {place: value}
    return {
        k: v for key, inner in value.items() for k, v in leaves(inner, f"{place}/{key}").items()
    }


def test_the_verdicts_are_those_of_the_recorded_runs(monkeypatch):
    """All ten. The last bits are the processor's.

    What is recorded with four digits may stand half-way between two such numbers, so these are compared
    before they are rounded.
    """
    numbers = json.loads(claims.RECORDED.read_text("utf-8"))
    recorded = numbers["claims"]
    for record in recorded.values():
        assert all(record.pop(words) for words in ("source", "says", "counts"))
    assert len(recorded) == 10 and {*claims.tables(numbers)} == {"verdicts", *recorded}
    monkeypatch.setattr(claims, "significant", lambda value: value)
    results = claims.results_of(numbers)
    found, wanted = leaves(claims.judged(results, claims.CLAIMS)), leaves(recorded)
    assert found.keys() == wanted.keys()
    half_a_digit = 0.5001e-3  # of four
    for place, value in wanted.items():
        if isinstance(value, float):
            near = 1e-9 if "/also/" in place else half_a_digit
            assert found[place] == pytest.approx(value, rel=near), place
        else:
            assert found[place] == value, place


def test_a_judge_is_taught_both_answers_of_a_pair_and_each_pair_both_ways_round():
    row = {"prompt": "Tell Ben.\n", "chosen": "Hi Ben!", "rejected": "Go."}
    one, two = (judging.questions([row], of_two) for of_two in (False, True))
    assert [(each["prompt"], each["response"]) for each in one + two] == [
        ("Tell Ben.\nHi Ben!\nGood:", "Yes"),
        ("Tell Ben.\nGo.\nGood:", "No"),
        ("Tell Ben.\nA: Hi Ben!\nB: Go.\nBetter:", "A"),
        ("Tell Ben.\nA: Go.\nB: Hi Ben!\nBetter:", "B"),
    ]
    assert {split_of(each["split_key"]) for each in one + two} == {"train"}


def test_pairs_are_counted_that_are_ordered_as_gold_orders_them():
    """Right, wrong, right the other way round, undecided; and one that gold does not tell apart."""
    differences, gold = torch.tensor([2, -1, -0.1, 0, 3]), torch.tensor([0.2, 0.3, -0.1, 0.4, 0])
    found = judging.as_gold(differences, gold)
    assert found[:4] == [1, 0, 1, 0.5] and math.isnan(found[4])


def test_a_judge_that_says_the_same_letter_twice_likes_a_place():
    """Log-odds of one answer where it stands first and second: A twice, one answer twice, B twice."""
    both = torch.tensor([[2.0, -1.0], [1.0, 0.5], [-3.0, 1.0], [-1.0, -1.0]])
    assert judging.same_place(both) == 0.5


def test_gold_is_read_where_a_run_first_reaches_a_distance():
    """Runs over 0, 2 and 4 nats; the second stops at 1. At 3: half-way between the last two."""
    runs = [points([0.4, 0.6, 0.8]), points([0.4, 0.5], far=1.0)]
    found = judges.gold_at(runs, 3.0)
    assert (found["reached"], found["of"]) == (1, 2)
    assert found["mean"] == pytest.approx(0.7) and found["low"] == pytest.approx(0.7)
    assert "mean" not in judges.gold_at(runs, 9.0)
    shown = judges.cell(found, 2) + judges.share(found)
    assert shown == "0.70 (0.70 to 0.70), 1 of 2 runs"


def test_every_policy_of_the_judges_is_paid_by_a_flag_of_its_engine(monkeypatch):
    monkeypatch.setenv("JUDGE", "set by the job")
    jobs = judges.plan(judges.JudgesConfig(seeds=2, chat=Path("chat")))
    paid = [job.arguments["reward"] for job in jobs.values() if job.stage == "policy"]
    assert sorted(paid) == sorted([*judges.REWARDS] * 2) and len(jobs) == 11
    for name in judges.REWARDS:
        given = judging.rewarded(Path("learned"), 1, judging.TOYS, name)
        config = GRPOConfig(**given)
        where, _, function = config.reward.rpartition(":")
        assert not function or not where or Path(where).is_file()
        assert bool(config.reward_model) == (name == "Bradley-Terry")


def test_the_numbers_of_the_judges_are_those_of_three_seeds():
    numbers = json.loads((DOCS / "judges.json").read_text(encoding="utf-8"))
    assert [*numbers["rewards"]] == [*judges.REWARDS] and numbers["seeds"] == 3
