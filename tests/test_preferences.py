"""The study of preferences: what is on which side, what a judge reads, and how verdicts are counted."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_studies import parsed_by
from toys import LETTERS, PROMPTS, random_gpt, saved_gpt

from data.files.read import read_preferences, read_prompts
from data.records import key_of, split_of
from gpt.generate import SamplingParams
from gpt.model import GPT
from harness.paths import REPOSITORY
from reward_model.scalar_head import RewardModel
from studies.bench import Bench, kl_of_best, one_each
from studies.preferences import measure, pairs
from studies.preferences.judges import (
    WordJudge,
    agree_with_people,
    is_right,
    length_controlled,
    polite_words,
    verdicts,
)
from studies.preferences.plan import PreferencesConfig, file_of, plan
from studies.preferences.recording import (
    by_policy,
    of_readers,
    of_right,
    rows_of,
    table_of_judges,
    write_to_read,
)

THINGS = "gold silver iron lead tin zinc copper nickel".split()


def config_of(folder: Path) -> PreferencesConfig:
    """The study on pairs of sums, of one template and others, and of people on thirty instructions."""
    polite = [
        {"instruction": f"What may {a} be worth beside {b} at {a}?", "input": ""}
        | {"output": f"It is {a + b}."}
        | {"chosen": f"It is indeed {a + b}.", "rejected": f"{a + b}, obviously."}
        for a, b in itertools.product(range(2), range(6))
    ]  # fmt: skip
    polite += [
        {"instruction": f"{thing} {thing}ish {thing}er?", "input": "", "output": "Yes."}
        | {"chosen": f"Yes, {thing}.", "rejected": "No."}
        for thing in THINGS
    ]
    people = [
        {"instruction": f"{one} {two}", "input": f"{number}", "annotators_for_chosen": 3}
        | {"chosen": f"{one}, {number}", "rejected": f"{two}, {number}"}
        for one, two in itertools.permutations(THINGS[:6], 2)
        for number in range(2)
    ]
    saved_gpt(folder)
    for name, content in (("pairs.json", polite), ("people.json", people)):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "config.json").write_text('{"vocab_size": 1}', encoding="utf-8")
    return PreferencesConfig(
        model=folder, pairs=folder / "pairs.json", people=folder / "people.json", out=folder / "out"
    )


def test_the_flags_of_every_job_are_flags_of_its_command(tmp_path: Path) -> None:
    """The printed commands: nothing is set but files, seed, and what a row of the table names."""
    jobs = plan(config_of(tmp_path))
    for name, job in jobs.items():
        assert all(jobs[need] for need in job.needs)
        if job.is_command:
            parsed = parsed_by(job.stage, job.flags)
            assert parsed.seed == job.arguments["seed"]
            own = {*job.arguments} - {"data", "model", "seed", "reward_model"}
            assert own == {"lora_rank"} if "lora" in name else own <= {"missing_eos_penalty"}
    assert jobs["polite-judge"].arguments["data"] != jobs["polite-payer"].arguments["data"]
    assert sum(name.startswith("polite-grpo") and "answers" not in name for name in jobs) == 3


def test_no_question_has_a_near_duplicate_on_another_side(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    plan(config)
    rows = pairs.rows_of(config.pairs, None)
    assert [len(group) for group in pairs.groups_of(rows)] == [12, 1, 1, 1, 1, 1, 1, 1, 1]
    sides = {
        half: {r.prompt for r in read_preferences(file_of(config, f"polite-{half}")).records
               if split_of(key_of(r)) == "train"}
        for half in "ab"
    }  # fmt: skip
    held_out = {r.prompt for r in measure.tested(config, "polite-a")}
    assert not sides["a"] & sides["b"] and not (sides["a"] | sides["b"]) & held_out and held_out
    assert {r.prompt for r in measure.tested(config, "polite-b")} == held_out
    templates = [{"worth" in prompt for prompt in side} for side in (*sides.values(), held_out)]
    assert sum(True in each for each in templates) == 1


def test_every_third_of_the_instructions_is_held_out_once_and_teaches_its_judge(
    tmp_path: Path,
) -> None:
    config = config_of(tmp_path)
    plan(config)
    held_out: Counter[str] = Counter()
    for fold in range(3):
        asked = {record.prompt for record in measure.tested(config, f"people-{fold}")}
        trained = {
            r.prompt
            for r in read_prompts(file_of(config, f"people-judge-{fold}")).records
            if split_of(key_of(r)) == "train"
        }
        assert asked == trained
        held_out.update(asked)
        rows = rows_of(config, f"people-{fold}", train=False)
        assert rows and {row["annotators_for_chosen"] for row in rows} == {3}
    assert len(held_out) == 60 and {*held_out.values()} == {1}


@pytest.mark.parametrize(
    ("asked", "reference", "answer", "right"),
    [
        ("How hot does nitrogen boil?", "It is -195.8 degrees.", "At 32 degrees it boils.", False),
        ("How hot does nitrogen boil?", "It is -195.8 degrees.", "It is -195.8 degrees.", True),
        ("What is 7 kilometres?", "7 kilometres is 7,000 metres.", "That is 7000 m.", True),
        ("What is 7 kilometres?", "7 kilometres is 7,000 metres.", "70 m, or 7000 m.", False),
        ("What is Sweden's capital?", "Sweden's capital is Stockholm.", "Kindly: Stockholm.", True),
        ("What is Sweden's capital?", "Sweden's capital is Stockholm.", "Sweden.", False),
        ("Write a sentence with rain.", "The heavy rain kept all people at home.", "Rain.", None),
    ],
)  # fmt: skip
def test_right_is_an_exact_match_where_there_is_one_short_answer(
    asked: str, reference: str, answer: str, right: bool | None
) -> None:
    assert is_right(asked, reference, answer) is right


def test_the_linear_judge_learns_the_words_that_win() -> None:
    rows = [
        {"chosen": f"kindly {a} {b}", "rejected": f"{b} {a} whatever"}
        for a, b in itertools.permutations("abcd", 2)
    ]
    judge = WordJudge.fitted(rows)
    assert judge.heaviest()["for"][0] == "kindly" and judge.heaviest()["against"][0] == "whatever"
    assert judge.score("kindly a") > judge.score("a") > judge.score("a whatever")
    assert judge.score("never seen") == 0 and polite_words("Kindly, would you?") == 2


def test_the_same_answer_is_no_win_and_no_loss() -> None:
    """Won, lost, twice the same with other last digits, and the same text without its end: it won."""
    before = {"answers": ["a", "b", "c", "d", "e"], "ended": [True, False, True, True, True]}
    found = {"answers": ["A", "B", "c", "d", "e"], "ended": [True, False, True, True, False]}
    scores = {"judge": [2.0, 0.0, 1 + 1e-6, 1 - 1e-6, 3.0]}
    said = verdicts(found | scores, before | {"judge": [1.0] * 5}, "judge")
    assert said.tolist() == [1, 0, 0.5, 0.5, 1]


def test_wins_by_length_alone_are_no_wins_at_equal_length() -> None:
    """The longer answer wins nine times of ten, whose it is: a policy that is longer wins 0.8."""
    longer = np.repeat([True, False], (90, 10))
    won = np.where(np.arange(100) % 10 == 0, ~longer, longer).astype(float)
    tokens, before = np.where(longer, 30.0, 10.0), np.full(100, 20.0)
    assert won.mean() == pytest.approx(0.82)
    assert 0.4 < length_controlled(won, tokens, before) < 0.6
    taste = np.array([1.0, 1, 1, 0] * 25)  # of equal length three of four
    even = np.array([25.0, 15, 15, 25, 15, 25, 25, 15] * 12 + [20.0] * 4)
    assert length_controlled(taste, even, before) == pytest.approx(0.75, abs=0.02)


def test_agreement_is_counted_where_length_says_nothing_too() -> None:
    rows = [
        {"chosen": "a b c d", "rejected": "a", "annotators_for_chosen": 3},
        {"chosen": "a", "rejected": "a b c d", "annotators_for_chosen": 3},
        {"chosen": "a b", "rejected": "c d", "annotators_for_chosen": 2},
    ]
    found = agree_with_people(np.array([1.0, -1.0, 2.0]), rows)
    shares = {name: (part["share"], part["of"]) for name, part in found.items()}
    assert shares == {
        "all": (2 / 3, 3), "of equal length": (1, 1), "shorter chosen": (0, 1), "longer chosen": (1, 1),
        "2 of 3 agree": (1, 1), "3 of 3 agree": (0.5, 2), "the longer one": (0.5, 3),
    }  # fmt: skip


def bench_of(start: GPT) -> Bench:
    return Bench(start, LETTERS, PROMPTS, SamplingParams(0.7, max_new_tokens=6))


def test_the_best_of_several_answers_is_the_one_that_is_liked_best() -> None:
    policy = random_gpt(LETTERS.n_vocab, 16, seed=1)
    liked = 0
    for rollout in bench_of(policy).answers(policy, 4):
        likes = torch.tensor([float(text.count("a")) for text in rollout.responses])
        best = one_each(rollout, likes)
        for i, text in enumerate(best.responses):
            asked = rollout.responses[4 * i : 4 * i + 4]
            assert text in asked and text.count("a") == max(t.count("a") for t in asked)
            liked += text.count("a")
    assert liked > 8 and kl_of_best(4) == pytest.approx(0.6363, abs=1e-4)  # log 4 - 3/4


@torch.no_grad()
def test_a_policy_is_measured_from_the_start_at_the_temperature_of_its_answers() -> None:
    """By hand, from one forward of each answer."""
    start, policy = (random_gpt(LETTERS.n_vocab, 16, seed=seed, scale=0.3) for seed in (0, 1))
    bench, sums, tokens = bench_of(start), {"policy": 0.0, "start": 0.0}, 0
    rollouts = bench.answers(policy)
    for rollout in rollouts:
        for i, record in enumerate(rollout.records):
            answer = rollout.response_tokens[i][rollout.response_mask[i]]
            asked, tokens = LETTERS.encode(record.prompt), tokens + len(answer)
            row = torch.tensor([[*asked, *answer.tolist()]])
            for name, model in (("policy", policy), ("start", start)):
                scores = (model(row)[0, len(asked) - 1 : -1] / 0.7).log_softmax(-1)
                sums[name] += float(scores.gather(1, answer[:, None]).sum())
    found = bench.measure(policy, rollouts)
    assert found["kl"] == pytest.approx((sums["policy"] - sums["start"]) / len(PROMPTS), rel=1e-3)
    assert found["perplexity"] == pytest.approx(math.exp(-sums["start"] / tokens), rel=1e-3)
    assert sum(found["tokens"]) == tokens and found["kl"] > 0.2
    bench = replace(bench_of(policy), precision="bfloat16")
    assert bench.measure(policy, bench.answers(policy))["kl"] == 0


def test_a_judge_reads_an_end_only_where_an_answer_had_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = RewardModel.from_policy(random_gpt(LETTERS.n_vocab, 24, scale=0.3), "last_token")
    scorer.mean.fill_(0.5)
    prompts, answers, ended = ["ab", "c", "ab"], ["hg", "fed", "hg"], [True, False, False]
    records = [replace(PROMPTS[0], prompt=prompt) for prompt in prompts]
    monkeypatch.setattr(measure, "load_reward_model", lambda *_: (scorer, LETTERS))
    monkeypatch.setattr(measure, "tested", lambda *_: records)
    monkeypatch.setattr(measure, "fast_precision", lambda: "float32")
    path = tmp_path / "policy" / measure.MEASURED
    path.parent.mkdir()
    path.write_text(json.dumps({"policy": {"answers": answers, "ended": ended}}), encoding="utf-8")
    config = PreferencesConfig(out=tmp_path)
    found = measure.scored(config, "judge", "pairs", path)["policy"]
    for prompt, answer, end, score in zip(prompts, answers, ended, found, strict=True):
        row = LETTERS.encode(prompt + answer) + [LETTERS.eos_id] * end
        with torch.no_grad():
            last = scorer.head(scorer.gpt.hidden(torch.tensor([row]))[0, -1])
        assert score == pytest.approx(float(last) - 0.5, abs=1e-5)
    assert abs(found[0] - found[2]) > 1e-3


def test_the_seeds_of_a_policy_stand_together() -> None:
    names = ["polite-start", "people-grpo-0", "polite-grpo-1", "polite-dpo-0", "polite-grpo-0"]
    found = by_policy({"policies": {name: {"name": name} for name in names}}, "polite")
    assert {name: [row["name"] for row in rows] for name, rows in found.items()} == {
        "as published": ["polite-start"], "DPO": ["polite-dpo-0"],
        "the printed commands": ["polite-grpo-1", "polite-grpo-0"],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["sample_pairs.jsonl", "sample_pairs_by_people.jsonl"])
def test_each_sample_of_docs_has_sixty_pairs_that_open(name: str) -> None:
    found = read_preferences(REPOSITORY / "docs" / name)
    assert len(found.records) == 60 and not found.dropped
    assert {*found.splits} == {"train", "validation", "test"} and all(found.splits.values())


def test_a_tie_of_a_reader_is_half_and_repeats_are_not_counted() -> None:
    """One, who prefers the policy, the start, neither, and two who agree in one of two."""
    said = [("A", 0, "first", "new"), ("A", 1, "first", "old"), ("A", 2, "tie", "new"),
            ("B", 0, "second", "new"), ("B", 1, "second", "new"), ("B", 3, "skip", "new")]  # fmt: skip
    rows = [
        {"annotator": who, "question": at, "verdict": verdict, "chosen_from": better}
        | {"repeat": False, "chosen_ended": True, "rejected_ended": at != 1}
        for who, at, verdict, better in said
    ]
    rows.append(rows[1] | {"repeat": True, "chosen_from": "new"})
    found = of_readers(rows, "new")
    shares = {name: (part["share"], part["of"]) for name, part in found.items()}
    assert shares == {"A": (0.5, 3), "B": (1.0, 2), "A, B: the same": (0.5, 2)}
    assert (found["A"]["both ended"]["share"], found["A"]["both ended"]["of"]) == (0.75, 2)


def test_readers_mark_short_answers_beside_the_rule(tmp_path: Path) -> None:
    """Four answers, of which the rule calls two right and a reader one: chance would agree in half."""
    asked, output = "What is Sweden's capital?", "Sweden's capital is Stockholm."
    answers = ["Stockholm.", "It is Stockholm, or Oslo.", "Oslo.", "Sweden."]
    rows = [{"asked": asked, "output": output, "answer": answer} for answer in answers]
    write_to_read(file := tmp_path / "right.jsonl", [*rows, *rows, rows[0] | {"asked": "Hi?"}])
    written = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert sorted(row["answer"] for row in written) == sorted(answers) and not of_right(written)
    marked = [row | {"R": row["answer"] == answers[0], "S": True} for row in written]
    found = of_right([*marked[:3], marked[3] | {"T": False}])
    assert {*found} == {"the rule, R", "the rule, S", "R, S"}
    of_rule = found["the rule, R"]
    assert (of_rule["share"], of_rule["kappa"], of_rule["right"]) == (0.75, 0.5, [2, 1])
    assert found["R, S"]["kappa"] == 0.0


def test_a_kind_of_judges_is_counted_over_all_of_its_splits() -> None:
    """Half of 10 and all of 30 are 35 of 40; a part that one row lacks is no column."""

    def parts(share: float, of: int, *more: str) -> dict[str, object]:
        part = {"share": share, "of": of, "interval": [0.0, 1.0]}
        return dict.fromkeys(
            ("all", "of equal length", "shorter chosen", "the longer one", *more), part
        )

    rows = {
        "a-0": {"accuracy": parts(0.5, 10, "3 of 3 agree"), "of words": parts(1.0, 10), "train_pairs": 1},
        "a-1": {"accuracy": parts(1.0, 30), "of words": parts(1.0, 30), "train_pairs": 1},
        "b-0": {"accuracy": parts(0.0, 9), "of words": parts(0.0, 9), "train_pairs": 1},
    }  # fmt: skip
    lines = table_of_judges({"reward models": rows}, "a")
    assert len(lines) == 2 + 2 * 2 + 2 and "all three" not in lines[0]
    assert lines[-2].split("|")[3].strip() == "0.88 of 40 (0.74 to 0.95)"
    assert len(table_of_judges({"reward models": rows})) == 2 + 3 * 2
