"""From answers to numbers: what each judge prefers, what else changed, the tables and the picture."""

from __future__ import annotations

import itertools
import random
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.files import append_jsonl, read_json, read_jsonl, read_object
from harness.run_folder import CONFIG_FILE
from report.style import COLOURS, SERIES
from reward_model.agreement import kappa
from studies.pages import drawing, markdown, rounded, spread
from studies.preferences.judges import (
    Row,
    WordJudge,
    agree_with_people,
    counted,
    is_right,
    length_controlled,
    polite_words,
    share_of,
    verdicts,
)
from studies.preferences.measure import MEASURED, margins, pairs_of, scored, tested
from studies.preferences.plan import PreferencesConfig, file_of
from studies.runner import Job, read_record

Found = dict[str, Any]
SHOWN = 24  # answers of each policy in the recording
TO_READ = 60  # answers by which readers check `is_right`
JUDGES = {"judge": "the other half's reward model", "words": "words", "rule": "polite words"}
POLICIES = {  # of a job's name, in the order of tables
    "start": "as published", "again": "drawn again until it ends", "best": "best of 8, same payer",
    "finetuning": "fine-tuning on chosen", "dpo": "DPO", "grpo": "the printed commands",
    "lora": "the same with LoRA", "priced": "the same, a missing end costs 1",
}  # fmt: skip


def rows_of(config: PreferencesConfig, pairs: str, *, train: bool) -> list[Found]:
    """The pairs of a file that are trained on, or held out, with how many people preferred `chosen`."""
    rows = {
        (r["prompt"], r["chosen"], r["rejected"]): r for r in read_jsonl(file_of(config, pairs))
    }
    return [rows[r.prompt, r.chosen, r.rejected] for r in pairs_of(config, pairs, train=train)]


def word_judge(config: PreferencesConfig, pairs: str) -> WordJudge:
    """The linear judge of what a reward model learned from."""
    return WordJudge.fitted(rows_of(config, pairs, train=True))


def of_reward_model(config: PreferencesConfig, name: str, pairs: str) -> Found:
    """How it, a linear judge of the same pairs, and the longer answer order the held-out pairs."""
    rows, words = rows_of(config, pairs, train=False), word_judge(config, pairs)
    by_words = [words.score(row["chosen"]) - words.score(row["rejected"]) for row in rows]
    return {
        "train_pairs": len(pairs_of(config, pairs, train=True)),
        "accuracy": agree_with_people(np.array(margins(config, name, pairs)), rows),
        "of words": agree_with_people(np.array(by_words), rows),
        "heaviest words": words.heaviest(),
    } | of_run(config, name)


def of_run(config: PreferencesConfig, name: str) -> Found:
    """What a run has cost, and the revision that it was made with."""
    revision = read_object(config.out / name / CONFIG_FILE)["made_with"]["git"]
    return {"cpu_minutes": read_record(config.out / name)["cpu"] / 60, "revision": revision}


def answered(
    config: PreferencesConfig, job: Job, judge: str, asked: Sequence[Row]
) -> dict[str, Found]:
    """The answers of a job by policy, and what the judges say of each."""
    path, pairs = config.out / job.name / MEASURED, job.arguments["pairs"]
    words = word_judge(config, "polite-b" if judge == "polite-judge" else judge)
    scores, found = scored(config, judge, pairs, path), read_json(path)
    for name, about in found.items():
        texts = about["answers"]
        about["judge"], about["words"] = scores[name], [words.score(text) for text in texts]
        about["rule"] = [polite_words(text) for text in texts]
        if "output" in asked[0]:
            both = zip(asked, texts, strict=True)
            about["right"] = [is_right(meta["asked"], meta["output"], text) for meta, text in both]
    return found


def beside(found: Found, before: Found) -> Found:
    """A policy beside the start, prompt by prompt."""
    ended = np.array(found["ended"]) & np.array(before["ended"])
    tokens, others = np.array(found["tokens"], float), np.array(before["tokens"], float)
    row: Found = {key: found[key] for key in ("kl", "perplexity", "distinct_2")}
    for judge in (*JUDGES, "payer"):
        won = verdicts(found, before, judge)
        controlled = length_controlled(won, tokens, others)
        row[judge] = counted(won) | {
            "both ended": counted(won[ended]),
            "length-controlled": controlled,
        }
    if known := [float(right) for right in found.get("right", ()) if right is not None]:
        row["right"] = counted(np.array(known))
    row["polite"] = statistics.fmean(found["rule"])
    return row | {key: statistics.fmean(found[key]) for key in ("tokens", "ended")}


def agreement(found: Found, before: Found) -> dict[str, list[int]]:
    """How often two judges say the same of a policy beside the start, and how many pairs both decide."""
    said = {judge: verdicts(found, before, judge) for judge in (*JUDGES, "payer")}
    counts = {}
    for one, two in itertools.combinations(said, 2):
        decided = (said[one] != 0.5) & (said[two] != 0.5)
        same = (said[one] == said[two]) & decided
        counts[f"{one}, {two}"] = [int(same.sum()), int(decided.sum())]
    return counts


def of_readers(rows: Sequence[Row], policy: str) -> Found:
    """What each annotator of a blind round prefers, and how often two of them say the same.

    `rows` are annotate's; those that repeat a pair are not counted, and a tie is half.
    """
    said: dict[str, dict[int, float]] = {}
    ended = {row["question"]: row["chosen_ended"] and row["rejected_ended"] for row in rows}
    for row in rows:
        if row["verdict"] != "skip" and not row["repeat"]:
            won = 0.5 if row["verdict"] == "tie" else float(row["chosen_from"] == policy)
            said.setdefault(row["annotator"], {})[row["question"]] = won
    found: Found = {}
    for name, verdict in said.items():
        both = np.array([each for question, each in verdict.items() if ended[question]])
        found[name] = counted(np.array([*verdict.values()])) | {"both ended": counted(both)}
    for one, two in itertools.combinations(said, 2):
        same = [said[one][at] == said[two][at] for at in said[one].keys() & said[two].keys()]
        found[f"{one}, {two}: the same"] = counted(np.array(same, float))
    return found


def of_right(rows: Sequence[Row]) -> Found:
    """How `is_right` and each reader mark the same answers. A row's further keys are its readers."""
    said = {"the rule": [bool(is_right(r["asked"], r["output"], r["answer"])) for r in rows]}
    readers = [
        key for key in (rows[0] if rows else ())
        if key not in ("asked", "output", "answer") and all(key in row for row in rows)
    ]  # fmt: skip
    said |= {name: [row[name] for row in rows] for name in readers}
    found = {}
    for one, two in itertools.combinations(said, 2):
        both = [*zip(said[one], said[two], strict=True)]
        found[f"{one}, {two}"] = share_of(sum(a == b for a, b in both), len(both)) | {
            "kappa": kappa(both), "right": [sum(said[one]), sum(said[two])]
        }  # fmt: skip
    return found


def write_to_read(path: Path, answers: Sequence[Found]) -> None:
    """Some answers with a known short one, for a reader to add a key of its name to, true or false."""
    known = {(row["asked"], row["answer"]): row for row in answers}
    kept = [
        row for row in known.values()
        if is_right(row["asked"], row["output"], row["answer"]) is not None
    ]  # fmt: skip
    random.Random(TO_READ).shuffle(kept)
    append_jsonl(path, kept[:TO_READ])


def collect(config: PreferencesConfig, done: Mapping[str, Job]) -> Found:
    """All that the jobs which are done have measured."""
    out = config.out
    sections = ("reward models", "policies", "answers", "readers", "agreement")
    found: Found = {section: {} for section in sections}
    files = {name: Path(job.arguments["data"]).stem for name, job in done.items() if job.is_command}
    for name in files:
        if re.search("payer|judge", name):
            found["reward models"][name] = of_reward_model(config, name, files[name])
    starts: dict[str, Found] = {}
    to_read: list[Found] = []
    for job in done.values():
        judge = "" if job.is_command else judge_of(job.arguments["pairs"])
        if judge not in done:
            continue
        pairs = job.arguments["pairs"]
        asked = [record.meta for record in tested(config, pairs)]
        for policy, about in answered(config, job, judge, asked).items():
            label = policy if policy in done else f"{pairs.replace('-a', '')}-{policy}"
            if policy == "start":
                starts[pairs] = about
                found["answers"][pairs] = {"asked": [meta["asked"] for meta in asked[:SHOWN]]}
            row = beside(about, starts[pairs])
            if "right" in about:
                to_read += [
                    {"asked": meta["asked"], "output": meta["output"], "answer": text}
                    for meta, text in zip(asked, about["answers"], strict=True)
                ]
            if policy in done:
                same = agreement(about, starts[pairs])
                found["agreement"].setdefault(pairs.split("-")[0], {})[policy] = same
                steps = read_jsonl(out / policy / "metrics.jsonl")
                row["steps"] = steps[-1].get("kept_step", steps[-1]["step"])
                row |= of_run(config, policy)
            found["policies"][label] = row
            kept = zip(*(about[key] for key in ("answers", "ended", "judge", "words")), strict=True)
            found["answers"][pairs][label] = [*kept][:SHOWN]
    for of in ("polite", "people"):  # by hand: annotate's rows, the policy against the start
        if (blind := out / f"blind-{of}.jsonl").exists():
            found["readers"][of] = of_readers(read_jsonl(blind), str(out / f"{of}-grpo-0"))
    if to_read:
        if not (path := out / "right.jsonl").exists():
            write_to_read(path, to_read)
        found["right"] = of_right(read_jsonl(path))
    return rounded(found)


def judge_of(pairs: str) -> str:
    """The reward model that has learned from none of a file's pairs."""
    return "polite-judge" if pairs == "polite-a" else pairs.replace("people-", "people-judge-")


# --- tables and the picture -----------------------------------------------------------------------


def by_policy(found: Mapping[str, Any], of: str) -> dict[str, list[Found]]:
    """The rows of each policy on one file, `polite` or `people`, over its seeds or thirds."""
    groups: dict[str, list[Found]] = {key: [] for key in POLICIES}
    for name, row in found["policies"].items():
        if name.startswith(of):
            groups[re.findall("[a-z]+", name)[1]].append(row)
    return {POLICIES[key]: rows for key, rows in groups.items() if rows}


def values_of(rows: Sequence[Found], path: Sequence[str]) -> list[float]:
    """A number of each row that has it."""
    found: list[Any] = [*rows]
    for key in path:
        found = [row[key] for row in found if row.get(key) is not None]
    return found


def cell(rows: Sequence[Found], *path: str, digits: int = 2) -> str:
    """The mean of a number over seeds and its range, or a dash."""
    return spread(values_of(rows, path), digits)


def table(found: Mapping[str, Any], of: str) -> list[str]:
    """Markdown: a line per policy; what each judge prefers, and what else changed."""
    judges = ("judge", "words") if of == "people" else tuple(JUDGES)
    lines = []
    for name, rows in by_policy(found, of).items():
        line = [name, str(len(rows)), *(cell(rows, judge, "share") for judge in judges)]
        line += [cell(rows, judge, "both ended", "share") for judge in judges[:2]]
        line += [cell(rows, "judge", "length-controlled"), cell(rows, "payer", "share")]
        line += [cell(rows, "right", "share"), cell(rows, "polite")] if of == "polite" else []
        line += [cell(rows, "tokens", digits=0), cell(rows, "ended"), cell(rows, "kl", digits=1)]
        lines.append(
            [*line, cell(rows, "perplexity", digits=1), cell(rows, "cpu_minutes", digits=0)]
        )
    titles = ["policy", "runs", *(f"by {JUDGES[judge]}" for judge in judges)]
    titles += [f"both ended: by {JUDGES[judge]}" for judge in judges[:2]]
    titles += ["length-controlled, by the reward model", "by the payer"]
    titles += ["right", "polite words"] if of == "polite" else []
    return markdown(
        [*titles, "tokens", "ended", "KL, nats", "perplexity of the start", "CPU minutes"], lines
    )


def in_short(found: Mapping[str, Any], of: str) -> list[str]:
    """Markdown: what the first screen shows of the policies on one file."""
    columns = {
        "both ended: preferred by the other half's judge": ("judge", "both ended", "share"),
        "by words": ("words", "both ended", "share"), "ended": ("ended",), "polite words": ("polite",),
        "right": ("right", "share"),
    }  # fmt: skip
    if of == "people":
        columns = {
            "preferred by the judge": ("judge", "share"), "by the payer": ("payer", "share"),
            "both ended: by the judge": ("judge", "both ended", "share"), "ended": ("ended",),
        }  # fmt: skip
    lines = [
        [name, str(len(rows)), *(cell(rows, *keys) for keys in columns.values())]
        + [cell(rows, "kl", digits=1)]
        for name, rows in by_policy(found, of).items()
    ]
    return markdown(["policy", "runs", *columns, "KL, nats"], lines)


def share(part: Mapping[str, Any]) -> str:
    low, high = part["interval"]
    return f"{part['share']:.2f} of {part['of']} ({low:.2f} to {high:.2f})" if part["of"] else "-"


def table_of_readers(readers: Mapping[str, Any]) -> list[str]:
    """Markdown: what readers of blind pairs prefer."""
    lines = [
        [name, share(row), share(row["both ended"]) if "both ended" in row else "-"]
        for name, row in readers.items()
    ]
    return markdown(["reader", "the trained policy is preferred", "where both ended"], lines)


def table_of_right(found: Mapping[str, Any]) -> list[str]:
    """Markdown: whether readers mark short answers as the rule does."""
    lines = [
        [name, share(row), f"{row['kappa']:.2f}", " and ".join(map(str, row["right"]))]
        for name, row in found.get("right", {}).items()
    ]
    return markdown(["two who mark", "the same mark", "Cohen's kappa", "marked right"], lines)


PARTS = {  # of held-out pairs, in the order of columns
    "all": "held-out pairs ordered right", "of equal length": "of equal length",
    "shorter chosen": "where the shorter is chosen", "3 of 3 agree": "all three people agree",
    "2 of 3 agree": "two of three", "the longer one": "the longer one wins",
}  # fmt: skip


def together(parts: Sequence[Mapping[str, Any]]) -> Found:
    """One share of several, whose pairs are different ones."""
    return share_of(
        sum(part["share"] * part["of"] for part in parts), sum(part["of"] for part in parts)
    )


def table_of_judges(found: Mapping[str, Any], of: str = "") -> list[str]:
    """Markdown: how reward models and their linear neighbours order pairs that they have not seen.

    Of one kind of them, `of`, also over all of its splits.
    """
    rows = {name: row for name, row in found["reward models"].items() if name.startswith(of)}
    keys = [key for key in PARTS if all(key in row["accuracy"] for row in rows.values())]
    lines = []
    for name, row in rows.items():
        for by, title in (("accuracy", name), ("of words", f"words of {name}")):
            cells = [share(row[by][key]) for key in keys]
            lines.append([title, str(row["train_pairs"]), *cells])
    for by, title in (("accuracy", "all of them"), ("of words", "words, all of them")):
        if of and len(rows) > 1:
            each = [[row[by][key] for row in rows.values()] for key in keys]
            lines.append([title, "", *(share(together(parts)) for parts in each)])
    return markdown(["judge", "pairs", *(PARTS[key] for key in keys)], lines)


def table_of_agreement(found: Mapping[str, Any], of: str) -> list[str]:
    """Markdown: how often two judges prefer the same of two answers, over all trained policies."""
    policies = found["agreement"].get(of, {})
    lines = []
    for name in dict.fromkeys(name for counts in policies.values() for name in counts):
        same, decided = map(sum, zip(*(counts[name] for counts in policies.values()), strict=True))
        lines.append([name, share(share_of(same, decided))])
    return markdown(["two judges", "say the same"], lines)


def tables(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """Of the reward models, and of the policies on each file that is there."""
    files = [of for of in ("polite", "people") if by_policy(found, of)]
    shown = {"reward models": table_of_judges(found), "in short": in_short(found, "polite")}
    shown["people, in short"] = in_short(found, "people")
    shown["people's judges"] = table_of_judges(found, "people-payer")
    shown["agreement"] = table_of_agreement(found, "polite")
    shown["right"] = table_of_right(found)
    shown |= {f"readers, {of}": table_of_readers(rows) for of, rows in found["readers"].items()}
    return shown | {of: table(found, of) for of in files}


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """For each policy what the judge prefers where both answers ended, and what else changed."""
    groups = by_policy(found, "polite")
    names = [*groups]
    columns = (
        ("preferred, both ended", ("judge", "both ended", "share"), (0.3, 1), 0.5),
        ("polite words", ("polite",), (0, None), None),
        ("share right", ("right", "share"), (0, 1), None),
        ("share that ended", ("ended",), (0, 1), None),
    )
    with drawing(folder / "preferences.png", 8.5, 3.4) as figure:
        title = "The judge prefers GRPO's answers; changes of right answers may be chance"
        figure.suptitle(title, x=0.01, ha="left")
        for axis, (title, keys, limits, line) in zip(
            figure.subplots(1, len(columns)), columns, strict=True
        ):
            for place, name in enumerate(names):
                values = values_of(groups[name], keys)
                colour = COLOURS["policy"] if name == POLICIES["grpo"] else SERIES[2]
                axis.plot(values, [place] * len(values), "o", color=colour, clip_on=False)
            axis.locator_params(axis="x", nbins=2)
            axis.set(xlim=limits, yticks=range(len(names)), yticklabels=names)
            axis.invert_yaxis()
            axis.label_outer()
            axis.set_xlabel(title)
            if line is not None:
                axis.axvline(line, color=COLOURS["exact"], linewidth=1, linestyle=":")
