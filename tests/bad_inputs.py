"""Malformed inputs: data files, flags, weights, states, run folders and places to write.

Each is a `Case`: it makes its files in an empty folder and says which script gets which flags.
tests/test_bad_inputs.py runs them all, through the same border as the command line.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import importlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gpt import distillation, finetuning, pretraining
from gpt.checkpoint import save_gpt
from gpt.distillation import DistillationConfig
from gpt.finetuning import FinetuningConfig
from gpt.model import GPT, GPTConfig
from gpt.pretraining import PretrainingConfig
from gpt.tokenizer import load_tokenizer
from harness.flag_ranges import Range, ranges_of
from harness.paths import MODEL_FILE, STATE_FILE
from reward_model import reward_model_training
from reward_model.reward_model_training import RewardModelConfig
from reward_model.scalar_head import RewardModel, save_reward_model
from rl import dpo_engine, grpo_engine, kd_grpo_engine
from rl.commands.engines import every_engine
from rl.dpo_engine import DPOConfig
from rl.grpo_engine import GRPOConfig
from rl.kd_grpo_engine import KDGRPOConfig

ROWS, BAD_ROW = 40, 17


@dataclass(frozen=True)
class Case:
    """One malformed input; `prepare(folder, start)` gives the flags, `place` is in the sentence."""

    name: str
    module: ModuleType
    config: type
    prepare: Callable[[Path, Path], dict[str, Any]]
    place: str


def plain(**flags: Any) -> Callable[[Path, Path], dict[str, Any]]:
    """For cases that need no files."""
    return lambda folder, start: flags


# What every case starts from ----------------------------------------------------------------------


def make_start(folder: Path) -> Path:
    """Tiny models: a policy, a reward model, a teacher."""
    tokenizer = load_tokenizer("glassbox")
    shape = GPTConfig(tokenizer.n_vocab, context=64, n_layer=1, n_head=1, n_embd=4)
    policy = GPT(shape).initialize(torch.Generator().manual_seed(0))
    for name in ("policy", "teacher"):
        save_gpt(folder / name / MODEL_FILE, policy, tokenizer)
    judge = RewardModel.from_policy(policy, "last_token", torch.Generator().manual_seed(1))
    save_reward_model(folder / "judge" / MODEL_FILE, judge, tokenizer)
    return folder


def quick(start: Path, config: type, **flags: Any) -> dict[str, Any]:
    """Flags with which a script would be done at once, were nothing wrong."""
    small = dict(
        steps=2, batch_size=2, policy=start / "policy", base=start / "policy", micro_batch_size=8,
        prompts_per_step=2, group_size=2, minibatches=1, max_new_tokens=4, eval_prompts=0,
        test_prompts=0, checkpoint_every=1, eval_every=1, device="cpu", ranks=1,
    )  # fmt: skip
    if config is not DPOConfig:
        small["reward_model"] = (start / "judge",)
    if config is KDGRPOConfig:
        small = small | {"teacher": start / "teacher", "reward_model": ()}
    names = {field.name for field in dataclasses.fields(config)}
    return {name: value for name, value in (small | flags).items() if name in names}


# Data files ---------------------------------------------------------------------------------------

TURNS = [{"role": "user", "content": "Why {n}?"}]
GOOD: dict[str, dict[str, Any]] = {  # a row of each format; {n} makes it one of its own
    "comparisons": {
        "info": {"subreddit": "r", "title": "T {n}", "post": "P {n}"},
        "summaries": [{"text": "one"}, {"text": "two"}],
        "choice": 0,
    },
    "alpaca_pairs": {"instruction": "Do {n}", "input": "", "chosen": "yes", "rejected": "no"},
    "conversational": {
        "chosen": [*TURNS, {"role": "assistant", "content": "so"}],
        "rejected": [*TURNS, {"role": "assistant", "content": "no"}],
    },
    "pairs": {"prompt": "Say {n}: ", "chosen": "yes", "rejected": "no"},
    "transcripts": {
        "chosen": "\n\nHuman: a {n}\n\nAssistant: yes",
        "rejected": "\n\nHuman: a {n}\n\nAssistant: no",
    },
    "tldr": {"subreddit": "r", "title": "T {n}", "post": "P", "summary": "short"},
    "gsm8k": {"question": "What is {n}?", "answer": "It is so.\n#### 7"},
    "alpaca": {"instruction": "Do {n}", "input": "", "output": "done"},
    "completion": {"prompt": "Say {n}: ", "completion": "yes"},
    "response": {"prompt": "Say {n}: ", "response": "yes"},
    "messages": {"messages": [*TURNS, {"role": "assistant", "content": "so"}]},
    "answers": {"prompt": "Say {n}: ", "answer": "7"},
    "prompts": {"prompt": "Say {n}: "},
}
PAIRS = ("comparisons", "alpaca_pairs", "conversational", "pairs", "transcripts")
PROMPTS = ("answers", "prompts")
ALLOWED = {  # no `input` is as good as an empty one; posts from elsewhere are dropped and counted
    *(
        (kind, key, label)
        for kind, key in (("alpaca", "input"), ("alpaca_pairs", "input"), ("tldr", "post"))
        for label in ("missing", "null")
    ),
    ("comparisons", "info", "object"),
    ("answers", "answer", "null"),
}
ABSENT = object()


def numbered(value: Any, n: int) -> Any:
    """The row with its number in the texts."""
    return json.loads(json.dumps(value).replace("{n}", str(n)))


def data_script(kind: str) -> tuple[ModuleType, type]:
    """The script that such a file is for."""
    if kind in PAIRS:
        return reward_model_training, RewardModelConfig
    return (grpo_engine, GRPOConfig) if kind in PROMPTS else (finetuning, FinetuningConfig)


def rows_with(
    kind: str, spoil: Callable[[dict[str, Any]], Any]
) -> Callable[[Path, Path], dict[str, Any]]:
    """A file of this format in which one row is spoiled."""

    def prepare(folder: Path, start: Path) -> dict[str, Any]:
        rows = [numbered(GOOD[kind], n) for n in range(ROWS)]
        rows[BAD_ROW - 1] = spoil(rows[BAD_ROW - 1])
        path = folder / "rows.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows))
        flags = {"reward": "model"} if kind in PROMPTS else {}
        return quick(start, data_script(kind)[1], data=str(path), **flags)

    return prepare


def with_value(key: str, value: Any, row: dict[str, Any]) -> dict[str, Any]:
    """The row with another value there, or without the key."""
    changed = dict(row)
    if value is ABSENT:
        del changed[key]
    else:
        changed[key] = value
    return changed


def spoiled_rows() -> Iterator[Case]:
    """Every key of every format: missing, null, of a wrong type; and rows that are none."""
    values = {"missing": ABSENT, "null": None, "true": True, "object": {"a": 1}, "1.5": 1.5}
    for kind, row in GOOD.items():
        module, config = data_script(kind)
        for key in row:
            for label, value in values.items():
                if (kind, key, label) in ALLOWED:
                    continue
                line = "" if (kind, key, label) == ("answers", "answer", "missing") else ":17"
                yield Case(
                    f"{kind}: {key} {label}", module, config,
                    rows_with(kind, functools.partial(with_value, key, value)), f"rows.jsonl{line}",
                )  # fmt: skip
        for label, other in (("a number", 7), ("a list", [1]), ("a string", "x"), ("null", None)):
            prepare = rows_with(kind, lambda row, other=other: other)
            yield Case(f"{kind}: row is {label}", module, config, prepare, "rows.jsonl:17")


def whole_files() -> dict[str, bytes]:
    """Files that are no data, by what they are."""
    good = "\n".join(json.dumps(numbered(GOOD["pairs"], n)) for n in range(ROWS)).encode()
    packed = gzip.compress(good)
    return {
        "empty": b"",
        "blank": b" \n\n  \n",
        "broken JSON": good + b'\n{"prompt": "a", ',
        "a cut array": b'[{"prompt": "a", "chosen": "b", "rejected": "c"},',
        "an empty array": b"[]",
        "a number": b"17",
        "UTF-16": good.decode().encode("utf-16"),
        "Latin-1": '{"prompt": "ä", "chosen": "ö", "rejected": "ü"}'.encode("latin-1"),
        "cut gzip": packed[: len(packed) // 2],
        "damaged gzip": packed[:40] + b"\x00" * 20 + packed[60:],
        "Parquet": b"PAR1" + b"\x00" * 100 + b"PAR1",
        "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        "CSV": b"prompt,chosen,rejected\na,b,c\n",
        "HTML": b"<!DOCTYPE html><html><body>404</body></html>",
        "NULs": b"\x00" * 1000,
        "deep nesting": b"[" * 100_000,
        "a huge number": b'{"prompt": ' + b"9" * 5000 + b', "chosen": "b", "rejected": "c"}',
        "two objects on a line": b'{"prompt": "a"} {"prompt": "b"}',
        "many keys": json.dumps({f"key{n}": n for n in range(5000)}).encode(),
        "blank prompts": b'{"prompt": " ", "chosen": "b", "rejected": "c"}\n' * 20,
        "equal answers": b'{"prompt": "a", "chosen": "b", "rejected": "b"}\n' * 20,
        "one prompt": b'{"prompt": "a ", "chosen": "b", "rejected": "c"}\n' * 20,
    }


def file_case(name: str, module: ModuleType, config: type, content: bytes) -> Case:
    """A file with this content as --data."""

    def prepare(folder: Path, start: Path) -> dict[str, Any]:
        (folder / "file.json").write_bytes(content)
        return quick(start, config, data=str(folder / "file.json"), reward="model")

    return Case(f"{config.__name__}: {name}", module, config, prepare, "file.json")


def odd_files() -> Iterator[Case]:
    """Whole files that are no data, and paths that are no file."""
    scripts = ((reward_model_training, RewardModelConfig), (dpo_engine, DPOConfig))
    for module, config in scripts:
        for name, content in whole_files().items():
            if config is DPOConfig and name == "one prompt":
                continue  # 20 times one pair, which DPO's training split may well hold
            yield file_case(name, module, config, content)
    for name, content in whole_files().items():
        if name not in ("equal answers", "one prompt", "blank prompts"):
            yield file_case(name, pretraining, PretrainingConfig, content)

    def no_file(kind: str, config: type, folder: Path, start: Path) -> dict[str, Any]:
        path = folder / "nothing"
        if kind == "a folder":
            path.mkdir()
        elif kind == "a pipe":
            os.mkfifo(path)
        elif kind == "endless":
            path.symlink_to("/dev/zero")
        elif kind == "a link to nothing":
            path.symlink_to(folder / "gone")
        return quick(start, config, data=str(path))

    for module, config in (*scripts, (pretraining, PretrainingConfig), (grpo_engine, GRPOConfig)):
        for kind in ("missing", "a folder", "a pipe", "endless", "a link to nothing"):
            prepare = functools.partial(no_file, kind, config)
            yield Case(f"{config.__name__}: data {kind}", module, config, prepare, "nothing")


def odd_tokenizers() -> Iterator[Case]:
    """Rank files that are none, and texts that a vocabulary of bytes makes too long."""
    line = b"aGk= 0\n"
    contents = {
        "empty": (b"", "single byte is missing"), "binary": (bytes(range(256)) * 40, "bad.tiktoken:1"),
        "UTF-16": (line.decode().encode("utf-16"), "bad.tiktoken:1"),
        "a BOM": (b"\xef\xbb\xbf" + line, "single byte is missing"),
        "one long line": (b"x" * 10**6, "bad.tiktoken:1"),
        "a rank that is huge": (b"aGk= " + b"9" * 5000, "bad.tiktoken:1"),
    }  # fmt: skip

    def prepare(content: bytes, folder: Path, start: Path) -> dict[str, Any]:
        (folder / "bad.tiktoken").write_bytes(content)
        return dict(tokenizer=str(folder / "bad.tiktoken"), steps=2, device="cpu", ranks=1)

    for name, (content, place) in contents.items():
        yield Case(f"tokenizer: {name}", pretraining, PretrainingConfig,
                   functools.partial(prepare, content), place)  # fmt: skip

    def equal(folder: Path, start: Path) -> dict[str, Any]:
        (folder / "rows.jsonl").write_text('{"prompt": "a b c ", "answer": "7"}\n' * 50)
        return quick(start, GRPOConfig, data=str(folder / "rows.jsonl"))

    yield Case("50 equal prompts", grpo_engine, GRPOConfig, equal, "give more prompts that differ")


# Flags --------------------------------------------------------------------------------------------

SCRIPTS: tuple[tuple[ModuleType, type], ...] = (
    (pretraining, PretrainingConfig),
    (finetuning, FinetuningConfig),
    (distillation, DistillationConfig),
    (reward_model_training, RewardModelConfig),
    *((importlib.import_module(engine.module), engine.config) for engine in every_engine()),
)


def flags() -> Iterator[Case]:
    """Every flag with a range outside of it; every number as NaN and too large.

    Each is looked at in the first script that has it with this type and range.
    """
    seen: set[tuple[str, str, str]] = set()
    for module, config in SCRIPTS:
        hints, ranges = get_type_hints(config), ranges_of(config)
        every = {field.name: str(hints[field.name]) for field in dataclasses.fields(config)}
        new = {(name, kind, str(ranges.get(name))) for name, kind in every.items()} - seen
        seen |= new
        fields = {name: kind for name, kind, _ in sorted(new)}
        for name, allowed in ((name, ranges[name]) for name in fields if name in ranges):
            for value in (-3, 0, 1.5, 2**70):
                outside = isinstance(allowed, Range) and not allowed.holds(value)
                if outside and (isinstance(value, int) or "float" in fields[name]):
                    yield Case(f"{config.__name__}: {name} {value}", module, config,
                               plain(**{name: value}), name)  # fmt: skip
        for name in (name for name, kind in fields.items() if "int" in kind):
            value = (2**63,) if "tuple" in fields[name] else 2**63
            yield Case(f"{config.__name__}: {name} beyond 2^63", module, config,
                       plain(**{name: value}), name)  # fmt: skip
        for name in (name for name, kind in fields.items() if "float" in kind):
            for value in (math.nan, 1e300):
                yield Case(f"{config.__name__}: {name} {value}", module, config,
                           plain(**{name: value}), name)  # fmt: skip
        for name, value in (("device", "meta"), ("device", "toaster"), ("data", "")):
            yield Case(f"{config.__name__}: {name} {value}", module, config,
                       plain(**{name: value}), name)  # fmt: skip


# Weights ------------------------------------------------------------------------------------------


def spoil_weights(path: Path, how: str) -> None:
    """Damage a checkpoint in this way."""
    content = path.read_bytes()
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        header = dict(file.metadata())
    about = json.loads(header["about"])
    first = next(name for name in sorted(tensors) if name.endswith("wte.weight"))
    raw: dict[str, bytes] = {
        "empty": b"", "three bytes": b"abc", "random": bytes(range(256)) * 40,
        "cut": content[: len(content) // 2], "cut by a byte": content[:-1],
        "one byte more": content + b"x", "zeros": b"\x00" * 5000,
        "a huge header": (2**60).to_bytes(8, "little") + content[8:],
        "a header that is no JSON": content[:8] + b"x" + content[9:],
    }  # fmt: skip
    sizes: dict[str, Any] = {
        "n_layer": 100_000, "n_head": 3, "n_embd": -4, "vocab_size": 7, "context": 10**9,
        "dropout": "much", "n_layer ": 1.0,
    }  # fmt: skip
    if how in raw:
        path.write_bytes(raw[how])
        return
    if how in sizes:
        about["gpt"][how.strip()] = sizes[how]
    elif how == "no shape":
        del about["gpt"]
    elif how == "a shape without a size":
        del about["gpt"]["n_head"]
    elif how == "unknown tokenizer":
        about["tokenizer"] = "klingon"
    elif how == "other tokenizer":
        about["tokenizer_fingerprint"] = "0" * 8
    elif how == "a tensor less":
        del tensors[first]
    elif how == "a tensor more":
        tensors["more"] = torch.zeros(2)
    elif how == "a smaller tensor":
        name = next(name for name in sorted(tensors) if name.endswith("ln_f.bias"))
        tensors[name] = tensors[name][:-1].clone()
    elif how == "another kind":
        header["kind"] = "painting"
    elif how in KINDS:
        name = next(name for name in sorted(tensors) if name.endswith("ln_f.bias"))
        tensors[name] = tensors[name].to(KINDS[how])
    if how == "about a list":
        header["about"] = "[]"
    elif how == "about nothing":
        header["about"] = "{"
    elif how == "about nested":
        header["about"] = "[" * 100_000 + "]" * 100_000
    else:
        header["about"] = json.dumps(about)
    save_file(tensors, path, {} if how == "no header" else header)


KINDS = {
    "int32": torch.int32, "bool": torch.bool, "complex": torch.complex64,
    "float8": torch.float8_e4m3fn,
}  # fmt: skip
DAMAGES = (
    *KINDS, "about nested",
    "empty", "three bytes", "random", "cut", "cut by a byte", "one byte more", "zeros",
    "a huge header", "a header that is no JSON", "n_layer", "n_head", "n_embd", "vocab_size",
    "context", "dropout", "n_layer ", "no shape", "a shape without a size", "unknown tokenizer",
    "other tokenizer", "a tensor less", "a tensor more", "a smaller tensor", "another kind",
    "about a list", "about nothing", "no header",
)  # fmt: skip


def weights() -> Iterator[Case]:
    """Damaged models wherever a flag names one."""
    roles = (
        ("policy", "policy", grpo_engine, GRPOConfig),
        ("base", "policy", reward_model_training, RewardModelConfig),
        ("teacher", "teacher", kd_grpo_engine, KDGRPOConfig),
        ("reward_model", "judge", grpo_engine, GRPOConfig),
    )

    def prepare(
        role: str, model: str, how: str, config: type, folder: Path, start: Path
    ) -> dict[str, Any]:
        bad = folder / "bad"
        shutil.copytree(start / model, bad)
        if how == "missing":
            (bad / MODEL_FILE).unlink()
        elif how == "a folder":
            (bad / MODEL_FILE).unlink()
            (bad / MODEL_FILE).mkdir()
        else:
            spoil_weights(bad / MODEL_FILE, how)
        value = (bad,) if role == "reward_model" else bad
        return quick(start, config, **{role: value})

    for role, model, module, config in roles:
        for how in (*DAMAGES, "missing", "a folder"):
            yield Case(f"{role}: {how}", module, config,
                       functools.partial(prepare, role, model, how, config), "bad")  # fmt: skip


# Run folders --------------------------------------------------------------------------------------


def spoil_run(folder: Path, how: str) -> None:
    """Damage a run that could be resumed."""
    state, flags, metrics = (folder / n for n in (STATE_FILE, "config.json", "metrics.jsonl"))
    file, _, what = how.partition(": ")
    texts = {
        "broken": "{", "{}": "{}", "[]": "[]", "a number": "7", "empty": "",
        "not UTF-8": b"\xff\xfe{",
        "no step": '{"loss": 1}\n', "a list": "[1]\n", "a step that is none": '{"step": "x"}\n',
        "damaged": "{x}\n" + '{"step": 1}\n', "nested": "[" * 100_000 + "]" * 100_000 + "\n",
        "a step twice": '{"step": 1}\n{"step": 1}\n',
    }  # fmt: skip
    path = {"state": state, "config": flags, "metrics": metrics}[file]
    if what == "missing":
        path.unlink()
    elif what == "a folder":
        path.unlink()
        path.mkdir()
    elif what == "a pipe":
        path.unlink()
        os.mkfifo(path)
    elif file in ("config", "metrics") and what in texts:
        text = texts[what]
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    elif file == "config":
        record = json.loads(flags.read_text())
        other = {"another script": ("script", "rl.ppo_engine"), "another rate": ("lr", 7.0),
                 "another seed": ("seed", 99), "a script that is none": ("script", 7),
                 "inputs a list": ("inputs", [1]), "inputs a text": ("inputs", "x"),
                 "made with a list": ("made_with", [1])}  # fmt: skip
        if what == "no group size":
            del record["group_size"]
        elif what == "another input":
            record["inputs"] = {"policy": ["0" * 64]}
        else:
            key, value = other[what]
            record[key] = value
        flags.write_text(json.dumps(record))
    else:
        spoil_state(state, what)


def spoil_state(path: Path, what: str) -> None:
    """Damage state.pt."""
    content = path.read_bytes()
    raw = {"empty": b"", "random": bytes(range(256)) * 9, "cut": content[: len(content) // 2],
           "zeroed inside": content[:2000] + b"\x00" * 64 + content[2064:]}  # fmt: skip
    if what in raw:
        path.write_bytes(raw[what])
        return
    state = torch.load(path, weights_only=True)
    whole = {"a list": [1], "a tensor": torch.zeros(3), "{}": {}, "a string": "x"}
    parts = {"no parts": "parts", "no generators": "generators", "no stopped": "stopped"}
    if what in whole:
        state = whole[what]
    elif what in parts:
        del state[parts[what]]
    elif what.startswith("step "):
        step: Any = what.removeprefix("step ")
        state["step"] = int(step) if step.lstrip("-").isdigit() else step
    elif what == "parts a list":
        state["parts"] = [1]
    elif what == "an optimizer of another model":
        state["parts"]["optimizer"]["param_groups"] = []
    elif what == "a policy without a tensor":
        policy = state["parts"]["policy"]
        del policy[sorted(policy)[0]]
    elif what == "a generator that is none":
        state["generators"] = {name: torch.zeros(3) for name in state["generators"]}
    torch.save(state, path)


RUN_DAMAGES = (
    *(f"state: {how}" for how in (
        "missing", "a folder", "empty", "random", "cut", "zeroed inside", "a list", "a tensor", "{}",
        "a string", "no parts", "no generators", "no stopped", "step -5", "step 1000000000",
        "step x", "parts a list", "an optimizer of another model", "a policy without a tensor",
        "a generator that is none", "a pipe",
    )),
    *(f"config: {how}" for how in (
        "missing", "a folder", "broken", "{}", "[]", "a number", "empty", "not UTF-8", "a pipe",
        "nested", "another script", "another rate", "another seed", "a script that is none",
        "no group size", "another input", "inputs a list", "inputs a text", "made with a list",
    )),
    *(f"metrics: {how}" for how in (
        "a folder", "no step", "a list", "a step that is none", "damaged", "a pipe", "nested",
        "a step twice",
    )),
)  # fmt: skip


def run_folders(killed: Path) -> Iterator[Case]:
    """Runs that cannot be resumed, and places that cannot be written to."""

    def resumed(how: str, folder: Path, start: Path) -> dict[str, Any]:
        out = folder / "run"
        shutil.copytree(killed, out)
        if how == "state: missing":
            (out / MODEL_FILE).unlink(missing_ok=True)
        spoil_run(out, how)
        return of_killed(start, out=out, resume=True, steps=4)

    for how in RUN_DAMAGES:
        place = "--steps" if how == "state: step 1000000000" else "run"
        prepare = functools.partial(resumed, how)
        yield Case(f"resume: {how}", grpo_engine, GRPOConfig, prepare, place)

    def placed(how: str, folder: Path, start: Path) -> dict[str, Any]:
        out = folder / "place"
        if how == "nobody's home":
            return quick(start, GRPOConfig, out=Path("~nosuchuser/place"))
        if how == "a file":
            out.write_text("dear diary")
        elif how == "below a file":
            (folder / "place").write_text("dear diary")
            out = out / "run"
        elif how == "a link to nothing":
            out.symlink_to(folder / "gone")
        elif how == "someone's folder":
            out.mkdir()
            (out / "letter.txt").write_text("dear")
        elif how == "another script's run":
            out.mkdir()
            (out / "config.json").write_text('{"script": "rl.ppo_engine"}')
        elif how == "the policy":
            shutil.copytree(start / "policy", out)
            return quick(start, GRPOConfig, out=out, policy=out)
        elif how == "above the policy":
            shutil.copytree(start / "policy", out / "policy")
            return quick(start, GRPOConfig, out=out, policy=out / "policy")
        elif how == "resume where nothing is":
            return quick(start, GRPOConfig, out=out, resume=True)
        elif how == "resume an empty folder":
            out.mkdir()
            return quick(start, GRPOConfig, out=out, resume=True)
        return quick(start, GRPOConfig, out=out)

    for how in ("nobody's home", "a file", "below a file", "a link to nothing", "someone's folder",
                "another script's run", "the policy", "above the policy",
                "resume where nothing is", "resume an empty folder"):  # fmt: skip
        yield Case(f"out: {how}", grpo_engine, GRPOConfig, functools.partial(placed, how), "place")


def cases(killed: Path) -> list[Case]:
    """All of them; `killed` is a folder of GRPO that could be resumed."""
    return [
        *spoiled_rows(),
        *odd_files(),
        *odd_tokenizers(),
        *flags(),
        *weights(),
        *run_folders(killed),
    ]


def of_killed(start: Path, **flags: Any) -> dict[str, Any]:
    """The flags of a run on few prompts."""
    return quick(start, GRPOConfig, data=str(start / "prompts.jsonl"), reward="model", **flags)


def make_killed(start: Path, monkeypatch: Any) -> Path:
    """A run of GRPO as a kill before the end leaves it."""
    out = start / "killed"
    rows = [numbered(GOOD["prompts"], n) for n in range(ROWS)]
    (start / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with monkeypatch.context() as patch:
        patch.setattr("rl.training.whole_run.finish_run", lambda folder, **_: None)
        grpo_engine.main(GRPOConfig(**of_killed(start, out=out)))
    (out / MODEL_FILE).unlink()
    return out
