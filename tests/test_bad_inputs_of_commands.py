"""Commands beside the training scripts: a malformed input ends in one sentence, before any work.

The sentence says what is wrong, where and what to do, as tests/test_bad_inputs.py wants it of the
engines. No training begins here: whatever would start it fails the test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bug_zoo
import overoptimisation
import pytest
import torch
from bug_zoo import ZooConfig
from overoptimisation import OveroptimisationConfig
from test_bad_inputs import REMEDY

from gpt.checkpoint import save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.command_line import explained
from harness.paths import MODEL_FILE
from reward_model import outcome_training
from reward_model.outcome_training import OutcomeConfig
from rl import doctor, report, talk
from rl.doctor import DoctorConfig
from rl.report import ReportConfig
from rl.talk import TalkConfig
from scripts import imdb
from scripts.imdb import IMDBConfig

Command = Callable[[Path], Any]
Files = dict[str, str | bytes]
GOOD_BAD = [{"text": f"text {i}", "label": i % 2 == 0} for i in range(40)]
ROW = json.dumps({"step": 1, "loss": 1.0}) + "\n"


def lines(rows: Sequence[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def put(folder: Path, files: Files) -> Path:
    """The folder with these files; a name that ends in / is a folder, in | a pipe, in @ a link."""
    for name, content in files.items():
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if name.endswith("@"):
            (folder / name[:-1]).symlink_to(str(content))
        elif name.endswith("|"):
            os.mkfifo(folder / name[:-1])
        elif not name.endswith("/"):
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


# --- labelled texts -------------------------------------------------------------------------------

# What --data holds; words of the sentence.
LABELLED: dict[str, tuple[Files, str]] = {
    "missing": ({}, "texts"),
    "empty": ({"texts": ""}, "texts"),
    "an empty folder": ({"texts/": ""}, "no folder pos/"),
    "no neg": ({"texts/pos/0_9.txt": "good"}, "no folder neg/"),
    "empty pos and neg": ({"texts/pos/": "", "texts/neg/": ""}, "texts"),
    "a text that is no UTF-8": (
        {"texts/pos/0_9.txt": b"\xff\xfe\xfa", "texts/neg/0_1.txt": "bad"}, "0_9.txt"),
    "broken JSON": ({"texts": lines(GOOD_BAD[:2]) + '{"text": \n'}, "texts:3"),
    "a row that is a list": ({"texts": lines([*GOOD_BAD[:2], [1]])}, "texts:3"),
    "a wrong label": ({"texts": lines([*GOOD_BAD[:2], {"text": "a", "label": "good"}])}, "texts:3"),
    "no label": ({"texts": lines([*GOOD_BAD[:2], {"text": "a"}])}, "texts:3"),
    "no text": ({"texts": lines([*GOOD_BAD[:2], {"label": True}])}, "texts:3"),
    "blank texts": ({"texts": lines([{"text": " ", "label": True}])}, "texts"),
    "good ones alone": (
        {"texts": lines([row for row in GOOD_BAD if row["label"]])}, "both good and bad"),
    "one text": ({"texts": lines(GOOD_BAD[:1])}, "both good and bad"),
}  # fmt: skip
OUTCOME_FLAGS: dict[str, Any] = {
    "steps": 0, "epochs": 0, "batch_size": -1, "micro_batch_size": 0, "lr": -1.0, "warmup": -1,
    "layers": 0, "width": 48, "context": 8, "shortest": 1, "held_out_texts": -3, "ranks": 0,
    "checkpoint_every": 0, "max_norm": -1.0, "tokenizer": "klingon", "device": "toaster", "data": "",
    "base": Path("nothing"), "held_out": "nothing",
}  # fmt: skip


def outcome(files: Files, **flags: Any) -> Command:
    def run(folder: Path) -> None:
        put(folder, files)
        given = {"data": str(folder / "texts"), "device": "cpu", "out": folder / "run", "ranks": 1}
        outcome_training.main(OutcomeConfig(**(given | flags)))

    return run


def outcome_cases() -> dict[str, tuple[Command, str]]:
    fine: Files = {"texts": lines(GOOD_BAD)}
    cases = {name: (outcome(files), words) for name, (files, words) in LABELLED.items()}
    for name, value in OUTCOME_FLAGS.items():
        words = str(value) if name in ("base", "held_out", "tokenizer") else name
        cases[f"{name} {value}"] = (outcome(fine, **{name: value}), words)

    def known(folder: Path) -> None:
        outcome(fine, held_out=str(folder / "texts"))(folder)

    def weightless(folder: Path) -> None:
        outcome({**fine, "base/config.json": "{}"}, base=folder / "base")(folder)

    return cases | {
        "reported on what it learned from": (known, "texts"),
        "a base without weights": (weightless, "base"),
    }


# --- film reviews ---------------------------------------------------------------------------------

REVIEWS: Files = {
    "train.jsonl": lines(GOOD_BAD),
    "test.jsonl": lines([{"text": f"test {i}", "label": i % 2 == 0} for i in range(6)]),
    "unsup.jsonl": lines([{"text": f"review {i}"} for i in range(9)]),
}


def imdb_with(changes: dict[str, str | bytes | None], **flags: Any) -> Command:
    def run(folder: Path) -> None:
        files = {n: c for n, c in (REVIEWS | changes).items() if c is not None}
        put(folder / "raw", files)  # type: ignore[arg-type]
        imdb.main(IMDBConfig(**({"data": folder / "raw", "out": folder / "run"} | flags)))

    return run


def imdb_cases() -> dict[str, tuple[Command, str]]:
    good = lines([row for row in GOOD_BAD if row["label"]])
    nothing: dict[str, str | bytes | None] = dict.fromkeys(REVIEWS)
    folders: dict[str, str | bytes | None] = {
        f"{part}/{side}/{i}_{stars}.txt": f"{part} {side} {i}"
        for part in ("train", "test")
        for side, stars in (("pos", 9), ("neg", 1))
        for i in range(8)
    }
    only_test = {name: text for name, text in folders.items() if name.startswith("test")}
    only_train = {name: text for name, text in folders.items() if name.startswith("train")}
    return {
        "no folder": (imdb_with({}, data=Path("nothing")), "nothing"),
        "an empty folder": (imdb_with(nothing), "train.jsonl"),
        "no test": (imdb_with({"test.jsonl": None}), "test.jsonl"),
        "no unlabelled texts": (imdb_with({"unsup.jsonl": None}), "unsup.jsonl"),
        "an empty train": (imdb_with({"train.jsonl": ""}), "train.jsonl"),
        "an empty test": (imdb_with({"test.jsonl": ""}), "test.jsonl"),
        "empty unlabelled texts": (imdb_with({"unsup.jsonl": ""}), "unsup.jsonl"),
        "broken JSON": (imdb_with({"train.jsonl": lines(GOOD_BAD) + "{\n"}), "train.jsonl:41"),
        "broken unlabelled JSON": (
            imdb_with({"unsup.jsonl": '{"text": "a"}\n{\n'}), "unsup.jsonl:2"),
        "unlabelled rows without text": (imdb_with({"unsup.jsonl": '{"a": 1}\n'}), "unsup.jsonl"),
        "a wrong label": (imdb_with({"test.jsonl": '{"text": "a", "label": 7}\n'}), "test.jsonl:1"),
        "training texts as test": (imdb_with({"test.jsonl": lines(GOOD_BAD)}), "test.jsonl"),
        "labelled texts alone": (imdb_with({"unsup.jsonl": lines(GOOD_BAD)}), "unsup.jsonl"),
        "good ones alone": (imdb_with({"train.jsonl": good}), "train.jsonl"),
        "good ones alone in the test": (
            imdb_with({"test.jsonl": lines([{"text": "a", "label": True}])}), "test.jsonl"),
        "folders without test": (imdb_with(nothing | only_train), "test"),
        "folders without unsup": (imdb_with(nothing | folders), "unsup"),
        "folders without train": (imdb_with(nothing | only_test), "train"),
        "no seed": (imdb_with({}, seeds=()), "seed"),
        "no prompt": (imdb_with({}, prompts=0), "prompt"),
        "no such engine": (imdb_with({}, engines=("gpro",)), "gpro"),
        "no such device": (imdb_with({}, device="toaster"), "toaster"),
        "out is a file": (lambda folder: imdb_with({"../run": "dear"})(folder), "run"),
    }  # fmt: skip


# --- the study and the zoo ------------------------------------------------------------------------


def study(**flags: Any) -> Command:
    def run(folder: Path) -> None:
        paths = {"out": folder / "runs", "docs": folder / "docs"}
        overoptimisation.main(OveroptimisationConfig(**(paths | flags)))

    return run


STUDY: dict[str, tuple[Command, str]] = {
    "no jobs at a time": (study(jobs=0), "jobs"),
    "a job that is none": (study(work="lion"), "lion"),
    "a name that no job has": (study(only="lion"), "lion"),
    "no parts": (study(parts=()), "parts"),
    "nothing to record": (study(record=True), "is not finished"),
}


def zoo(files: Files | None = None, **flags: Any) -> Command:
    def run(folder: Path) -> None:
        put(folder, files or {})
        found = {n: folder / v if isinstance(v, Path) else v for n, v in flags.items()}
        bug_zoo.main(ZooConfig(**({"out": folder / "out"} | found)))

    return run


ZOO: dict[str, tuple[Command, str]] = {
    "a bug that is none": (zoo(only="lion"), "lion"),
    "a folder that is there": (zoo({"run/letter": "dear"}, run=Path("run")), "run"),
}  # fmt: skip

# --- run folders ----------------------------------------------------------------------------------

RUNS: dict[str, tuple[Files, str]] = {
    "missing": ({}, "run"),
    "empty": ({"run/": ""}, "run"),
    "a file": ({"run": "dear diary"}, "run"),
}
DEEP = "[" * 100_000 + "]" * 100_000 + "\n"
DAMAGED: dict[str, tuple[Files, str]] = {
    "broken metrics": ({"run/metrics.jsonl": ROW + "{\n" + ROW}, "metrics.jsonl:2"),
    "metrics of numbers": ({"run/metrics.jsonl": "7\n"}, "metrics.jsonl:1"),
    "metrics a folder": ({"run/metrics.jsonl/": ""}, "metrics.jsonl"),
    "broken flags": ({"run/metrics.jsonl": ROW, "run/config.json": "{"}, "config.json"),
    "flags a list": ({"run/metrics.jsonl": ROW, "run/config.json": "[]"}, "config.json"),
    "a number in words": (
        {"run/metrics.jsonl": ROW, "run/config.json": '{"prompts_per_step": [1]}'}, "run"),
    "flags nested": ({"run/metrics.jsonl": ROW, "run/config.json": DEEP}, "config.json"),
    "flags a pipe": ({"run/metrics.jsonl": ROW, "run/config.json|": ""}, "config.json"),
    "metrics nested": ({"run/metrics.jsonl": DEEP}, "metrics.jsonl:1"),
    "metrics a pipe": ({"run/metrics.jsonl|": ""}, "metrics.jsonl"),
    "flags no UTF-8": ({"run/metrics.jsonl": ROW, "run/config.json": b"\xff"}, "config.json"),
}  # fmt: skip


def examined(files: Files) -> Command:
    return lambda folder: doctor.main((put(folder, files) / "run",), DoctorConfig())


def written(files: Files, out: str | None = None) -> Command:
    def run(folder: Path) -> None:
        path = None if out is None else folder / out
        report.main(ReportConfig((put(folder, files) / "run",), path))

    return run


def talked(files: Files, **flags: Any) -> Command:
    def run(folder: Path) -> None:
        put(folder, files)
        tokenizer = load_tokenizer("glassbox")
        shape = GPTConfig(tokenizer.n_vocab, context=16, n_layer=1, n_head=1, n_embd=4)
        model = GPT(shape).initialize(torch.Generator().manual_seed(0))
        save_gpt(folder / "well" / MODEL_FILE, model, tokenizer)
        found = {n: folder / v if isinstance(v, Path) else v for n, v in flags.items()}
        if "well/config.json" in files:
            put(folder, {"well/config.json": files["well/config.json"]})
        where = folder / ("run" if files and "well/config.json" not in files else "well")
        talk.main(where, TalkConfig(**({"device": "cpu"} | found)))

    return run


def run_cases() -> dict[str, tuple[Command, str]]:
    cases: dict[str, tuple[Command, str]] = {}
    for name, (files, words) in RUNS.items():
        cases[f"doctor: {name}"] = (examined(files), words)
        cases[f"report: {name}"] = (written(files), words)
        cases[f"talk: {name}"] = (talked(files or {"other/": ""}), words)
    for name, (files, words) in DAMAGED.items():
        cases[f"doctor: {name}"] = (examined(files), words)
    row: Files = {"run/metrics.jsonl": ROW}
    return cases | {
        "doctor: no run": (lambda folder: doctor.main((), DoctorConfig()), "run folders"),
        "report: no run": (lambda folder: report.main(ReportConfig(())), "run folder"),
        "report: metrics a folder": (written({"run/metrics.jsonl/": ""}), "run"),
        "report: out is a folder": (written({**row, "out/": ""}, "out"), "out"),
        "report: out below a file": (written({**row, "out": "dear"}, "out/page.html"), "out"),
        "talk: no weights": (talked({"run/config.json": "{}"}), "model.safetensors"),
        "talk: broken weights": (talked({f"run/{MODEL_FILE}": b"weights"}), MODEL_FILE),
        "talk: weights a folder": (talked({f"run/{MODEL_FILE}/": ""}), MODEL_FILE),
        "talk: broken flags": (talked({"well/config.json": "{"}), "config.json"),
        "talk: flags a list": (talked({"well/config.json": "[]"}), "config.json"),
        "talk: flags nested": (talked({"well/config.json": DEEP}), "config.json"),
        "talk: a list for a number": (talked({"well/config.json": '{"temperature": [1]}'}), "well"),
        "talk: a number for a folder": (
            talked({"well/config.json": '{"data": "reviews", "reward_model": 7}'}), "well"),
        "report: odd samples": (
            written({**row, "run/samples.jsonl": '{"step": {"a": 1}, "prompt": 3}\n'}), "run"),
        "report: out is a device": (written(row, "/dev/full"), "/dev/full is no regular file"),
        "report: out is a link to one": (written({**row, "out@": "/dev/full"}, "out"), "out"),
        "report: out is a pipe": (written({**row, "out|": ""}, "out"), "out"),
        "talk: against nothing": (talked({}, against="nothing"), "nothing"),
        "talk: no start": (talked({}, against="start"), "well"),
        "talk: no reward model": (talked({}, reward_model=Path("gone")), "gone"),
        "talk: no samples": (talked({}, samples=0), "samples"),
        "talk: less than cold": (talked({}, temperature=-1.0), "temperature"),
        "talk: no temperature": (talked({}, temperature=float("nan")), "temperature"),
        "talk: no tokens": (talked({}, max_new_tokens=-4), "max_new_tokens"),
        "talk: no such device": (talked({}, device="toaster"), "toaster"),
    }  # fmt: skip


CASES: dict[str, tuple[Command, str]] = {
    **{f"outcome_training: {name}": case for name, case in outcome_cases().items()},
    **{f"imdb: {name}": case for name, case in imdb_cases().items()},
    **{f"overoptimisation: {name}": case for name, case in STUDY.items()},
    **{f"bug_zoo: {name}": case for name, case in ZOO.items()},
    **run_cases(),
}


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_input_is_one_sentence(name: str, tmp_path: Path, monkeypatch) -> None:
    def never(*arguments: Any, **flags: Any) -> None:
        raise AssertionError("work has begun")

    for module, function in (
        (outcome_training, "train"), (imdb, "train_language_model"), (overoptimisation, "run_jobs"),
        (bug_zoo, "bugged_run"), (talk, "from_pipe"),
    ):  # fmt: skip
        monkeypatch.setattr(module, function, never)
    command, words = CASES[name]
    with pytest.raises(SystemExit) as end, explained():
        command(tmp_path)
    sentence = end.value.code
    assert isinstance(sentence, str) and sentence.startswith("error: "), sentence
    first, *rest = sentence.splitlines()
    assert len(first) < 700 and all(line.startswith("    python") for line in rest), sentence
    assert words in sentence, f"no place ({words}): {sentence}"
    assert REMEDY.search(sentence), f"no remedy: {sentence}"
