"""Which pairs a person is asked about: two answers of a policy, or one each of two policies.

With a judge half of them are those of which it is least sure: |P - 1/2| smallest, among a few answers to
a prompt. (Christiano et al. 2017, arXiv:1706.03741, section 2.2.4, ask where an ensemble disagrees.) The
other half stays random, and so do all with a held-out prompt: on these a judge can be measured.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from data.records import SPLIT_KEY, key_of, shuffled, split_of
from data.sources import is_world, name_columns, source
from gpt.folder import ModelFolder, open_model, place_of
from gpt.generate import SamplingParams
from gpt.lengths import open_prompts
from harness.device import open_device
from harness.errors import UserError
from harness.files import (
    append_jsonl,
    display_path,
    read_jsonl,
    reading,
    sha256_of,
    write_atomically,
)
from harness.flags import AboveZero, AtLeastOne, check_ranges
from harness.paths import MODEL_FILE
from harness.run_folder import lock, unlock
from harness.seeds import derive_seed, make_generator
from reward_model.accuracy_report import score_pairs
from reward_model.pairs import (
    Labelled,
    PairSampling,
    TokenPair,
    pair_as_text,
    sample_pairs,
    visits,
)
from reward_model.scalar_head import load_reward_model

Row = dict[str, Any]
FEW = 4  # answers to a prompt, of whose pairs the judge picks one


@dataclass(frozen=True)
class QuestionFlags:
    """The pairs"""

    model: str | None = None
    """The model that answers: a run, a folder in Hugging Face's layout, hf://OWNER/NAME or gpt2."""
    chat_arguments: tuple[str, ...] = ()
    """NAME=VALUE for its chat template, such as enable_thinking=false of Qwen3."""
    against: str | None = None
    """A second model, which writes one of the two answers."""
    reward_model: str | None = None
    """The judge that picks half of the pairs."""
    data: str | None = None
    """A world, or a file with prompts; default: what the model's run names."""
    columns: tuple[str, ...] = ()
    """FIELD=COLUMN for a file whose columns have other names, such as prompt=problem."""
    temperature: AboveZero = 1.0
    """tau of sampling."""
    max_new_tokens: AtLeastOne = 48
    """Longest answer; a longer one is cut off."""
    seed: int = 0
    """Of the answers and of every order."""
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""
    out: Path = Path("mine.jsonl")
    """File of the rows: --data of the commands that come next."""

    def __post_init__(self) -> None:
        check_ranges(self)


def whole_rows(path: Path) -> list[Row]:
    """The rows of a file, if there is one; a last one that was cut off is removed from it."""
    rows = read_jsonl(path) if path.exists() else []
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        write_rows(path, rows)
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    write_atomically(path, lambda temporary: append_jsonl(temporary, rows))


def questions(flags: QuestionFlags, count: int) -> list[Row]:
    """At least `count` pairs, kept beside OUT. UserError if models or flags have changed."""
    path = flags.out.with_suffix(".questions.jsonl")
    models = {"policy": flags.model, "against": flags.against, "reward model": flags.reward_model}
    files = {name: place_of(model) / MODEL_FILE for name, model in models.items() if model}
    made: Row = {name: sha256_of(file) for name, file in files.items() if file.exists()}
    made |= {name: vars(flags)[name] for name in ("data", "temperature", "max_new_tokens", "seed")}
    made |= {
        name: [*given] for name in ("chat_arguments", "columns") if (given := vars(flags)[name])
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    lock(path)
    head, *rows = whole_rows(path) or [made]
    if other := [name for name in head | made if head.get(name) != made.get(name)]:
        raise UserError(
            f"{display_path(path)} was made with another {other[0]}: give what was given then, or "
            "another --out"
        )
    if len(rows) < count:
        print("sampling answers ...", flush=True)
        rows += sampled_questions(flags, count - len(rows), derive_seed(flags.seed, f"{len(rows)}"))
        write_rows(path, [made, *rows])
        unlock(path)  # which is another file now
        lock(path)
    return rows


def sampled_questions(flags: QuestionFlags, count: int, seed: int) -> list[Row]:
    """`count` rows as in pairs.jsonl, in which nothing is chosen; one in ten from each held-out split."""
    if flags.model is None:
        raise UserError("name the model that answers: --model RUN")
    device = open_device(flags.device)
    found = ModelFolder.open(flags.model).with_chat_arguments(flags.chat_arguments)
    policy, tokenizer = found.model(device), found.tokenizer()
    other = open_model(flags.against, device) if flags.against else None
    judge = load_reward_model(place_of(flags.reward_model), device) if flags.reward_model else None
    if any(m and m[1].fingerprint != tokenizer.fingerprint for m in (other, judge)):
        raise UserError("these models read different tokens: name runs of one base model")
    data = flags.data or (found.run or {}).get("data")
    if not data:
        raise UserError(f"{flags.model} does not say what to ask it: give --data, a world or file")
    room = policy.config.context - flags.max_new_tokens
    columns = flags.columns or ((found.run or {}).get("columns", ()) if not flags.data else ())
    with reading():
        name_columns(data, columns)
        splits = open_prompts(source(data), data, tokenizer, room)
    records = [r for name in splits if name == "train" or not is_world(data) for r in splits[name]]
    params = SamplingParams(flags.temperature, max_new_tokens=flags.max_new_tokens)

    def pairs(split: str, prompts: int, answers: int) -> list[list[TokenPair]]:
        """Of so many prompts, or more, every two of so many answers."""
        each = answers * answers // 4 if other else answers * (answers - 1) // 2
        batches = sample_pairs(
            policy, tokenizer, [r for r in records if split_of(key_of(r)) == split], prompts * each,
            lambda *_: Labelled(True),
            PairSampling(params, answers // (2 if other else 1), batch_size=16),
            generator=make_generator(seed, f"{split} {answers}"),
            rng=random.Random(derive_seed(seed, f"{split} {answers}")),
            against=other[0] if other else None,
        )  # fmt: skip
        return visits([pair for batch in batches for pair in batch])

    def least_sure(groups: list[list[TokenPair]]) -> list[TokenPair]:
        """Of each prompt the pair with the least |P - 1/2|, P = sigmoid(r(x, y_1) - r(x, y_2)), sorted."""
        if judge is None or not groups:
            return []
        first, second, _ = score_pairs(judge[0], [p for g in groups for p in g], tokenizer.eos_id)
        doubts = (((first - second) * float(judge[0].std)).sigmoid() - 0.5).abs()
        by_group = zip(groups, doubts.split([len(group) for group in groups]), strict=True)
        found = [(float(doubt.min()), group[int(doubt.argmin())]) for group, doubt in by_group]
        return [pair for _, pair in sorted(found, key=lambda each: each[0])]

    picked, tenth = count // 2 if judge else 0, max(count // 10, 1)
    shares = {"validation": tenth, "test": tenth, "train": max(count - picked - 2 * tenth, 0)}
    usual = [group[0] for name, n in shares.items() for group in pairs(name, n, 2)[:n]]
    usual = shuffled(usual, random.Random(derive_seed(seed, "order")))
    unsure = least_sure(pairs("train", picked, FEW))
    both = zip_longest(unsure[:picked], usual)
    more = {"chosen_from": flags.model, "rejected_from": flags.against or flags.model}
    asked = {tuple(tokenizer.encode_prompt(record.prompt)): record for record in records}
    rows = []
    for pair in (p for two in both for p in two if p):
        record = asked[tuple(pair.prompt)]  # decoding leaves out a chat's marks
        texts = {"prompt": record.prompt, "shown": record.meta.get("typed", record.prompt)}
        texts |= {SPLIT_KEY: record.question} if record.question else {}
        rows.append(pair_as_text(pair, tokenizer) | texts | more)
    return rows[:count]
