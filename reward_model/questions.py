"""Which pairs a person is asked about: two answers of a policy, or one each of two policies.

With a judge half of them are those of which it is least sure: |P - 1/2| smallest, among a few answers to
a prompt. (Christiano et al. 2017, arXiv:1706.03741, section 2.2.4, ask where an ensemble disagrees.) The
other half stays random, and so do all with a held-out prompt: on these a judge can be measured.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.records import SPLIT_KEY, TURNS, PromptRecord, key_of, shuffled, split_of
from data.sources import is_world, name_columns
from data.templates import instruction_prompt, messages_of
from gpt.folder import ModelFolder, open_model, place_of
from gpt.generate import SamplingParams, temperature_of_use
from gpt.lengths import open_prompts
from gpt.model import GPT
from gpt.ranks import score_in_micro_batches
from gpt.tokenizer import Tokenizer
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
from harness.run_folder import lock
from harness.seeds import derive_seed, make_generator
from reward_model.accuracy_report import score_pairs
from reward_model.judge import Judge
from reward_model.pairs import (
    Labelled,
    PairSampling,
    TokenPair,
    pair_as_text,
    sample_pairs,
    visits,
)

Row = dict[str, Any]
FEW = 4  # answers to a prompt, of whose pairs the judge picks one
AT_ONCE = 8  # prompts that are answered together: the first pair is shown after these
WORTH_SAYING = 2  # seconds of waiting
SHORT = 48  # tokens of an answer of a model that no run says more of


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
    """The judge that picks half of the pairs, a run's or a published one."""
    data: str | None = None
    """A world, or a file with prompts; default: what the model's run names."""
    columns: tuple[str, ...] = ()
    """FIELD=COLUMN for a file whose columns have other names, such as prompt=problem."""
    temperature: AboveZero | None = None
    """tau of sampling, of both models. Default: that of the run, or 1, and at most 0.7 for a chat model."""
    max_new_tokens: AtLeastOne | None = None
    """Longest answer; a longer one is cut off. Default: that of the run, or 48."""
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


class Questions:
    """The pairs by their number: those in the file beside --out, then new ones, sampled when asked for."""

    def __init__(self, flags: QuestionFlags) -> None:
        """UserError if models or flags are others than those that the file was made with."""
        path = flags.out.with_suffix(".questions.jsonl")
        models = {
            "policy": flags.model,
            "against": flags.against,
            "reward model": flags.reward_model,
        }
        files = {name: place_of(model) / MODEL_FILE for name, model in models.items() if model}
        made: Row = {name: sha256_of(file) for name, file in files.items() if file.exists()}
        names = ("data", "temperature", "max_new_tokens", "seed")
        made |= {name: vars(flags)[name] for name in names}
        lists = {"chat_arguments": flags.chat_arguments, "columns": flags.columns}
        made |= {name: [*given] for name, given in lists.items() if given}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        lock(path)
        kept = whole_rows(path)
        head, *self.rows = kept or [made]
        if other := [name for name in head | made if head.get(name) != made.get(name)]:
            raise UserError(
                f"{display_path(path)} was made with another {other[0]}: give what was given then, or "
                "another --out"
            )
        self.flags, self.path = flags, path
        self.unwritten = [] if kept else [made]  # the first line, once a pair can follow it
        self.more: Iterator[Row] | None = None

    def __getitem__(self, number: int) -> Row:
        while number >= len(self.rows):
            self.more = self.more or sampled_questions(self.flags, self.rows)
            row = next(self.more)
            append_jsonl(self.path, [*self.unwritten, row])
            self.unwritten = []
            self.rows.append(row)
        return self.rows[number]


@dataclass(frozen=True)
class Opened:
    """What the flags name: the models, the prompts by their tokens, and how answers are drawn."""

    policy: GPT
    other: GPT | None  # of --against
    judge: Judge | None
    tokenizer: Tokenizer
    records: Sequence[PromptRecord]
    written: Mapping[tuple[int, ...], PromptRecord]  # by the prompt's tokens
    params: SamplingParams
    around: tuple[str, str]  # what a chat's template writes before and behind a question

    @classmethod
    def of(cls, flags: QuestionFlags) -> Opened:
        """UserError for a flag that is missing, and models that read different tokens."""
        if flags.model is None:
            raise UserError("name the model that answers: --model RUN")
        device = open_device(flags.device)
        found = ModelFolder.open(flags.model).with_chat_arguments(flags.chat_arguments)
        policy, tokenizer, run = found.model(device), found.tokenizer(), found.run or {}
        other = open_model(flags.against, device) if flags.against else None
        judge = Judge.open(flags.reward_model, device) if flags.reward_model else None
        if other and other[1].fingerprint != tokenizer.fingerprint:
            raise UserError("these models read different tokens: name runs of one base model")
        data = flags.data or run.get("data")
        if not data:
            raise UserError(
                f"{flags.model} does not say what to ask it: give --data, a world or file"
            )
        columns = flags.columns or (run.get("columns") or () if not flags.data else ())
        longest = flags.max_new_tokens or int(run.get("max_new_tokens") or SHORT)
        with reading():
            name_columns(data, columns)
            _, splits = open_prompts(data, tokenizer, policy.config.context - longest)
        names = [name for name in splits if name == "train" or not is_world(data)]
        records = [record for name in names for record in splits[name]]
        usual = temperature_of_use(tokenizer.chat is not None, float(run.get("temperature") or 1))
        tau = flags.temperature or usual
        print(f"temperature {tau:g}, at most {longest} tokens")
        written = {tuple(tokenizer.encode_prompt(record.prompt)): record for record in records}
        params, mark = SamplingParams(tau, max_new_tokens=longest), "What is 6 times 7?"
        asks = instruction_prompt(mark, tokenizer.chat) if tokenizer.chat else mark
        before, _, after = asks.partition(mark)
        around = before, after
        return cls(policy, other and other[0], judge, tokenizer, records, written, params, around)

    def of_split(self, split: str) -> list[PromptRecord]:
        return [record for record in self.records if split_of(key_of(record)) == split]

    def least_sure(self, groups: Sequence[Sequence[TokenPair]]) -> list[TokenPair]:
        """The pair of each prompt with the least |P - 1/2|, P = sigmoid(r(x, y_1) - r(x, y_2)), half."""
        judge, tokenizer = self.judge, self.tokenizer
        if judge is None or not groups:
            return []
        both = [pair for group in groups for pair in group]
        if judge.shares(tokenizer):
            first, second, _ = score_pairs(judge.model, both, tokenizer.eos_id)
        else:
            sides = [pair.chosen for pair in both] + [pair.rejected for pair in both]
            batch = judge.batch(
                [self.written[tuple(pair.prompt)] for pair in both + both],
                [tokenizer.decode(side) for side in sides],
                [side[-1] in (tokenizer.eos_id, *tokenizer.other_ends) for side in sides],
            )
            first, second = score_in_micro_batches(judge.model, batch, 64).cpu().chunk(2)
        doubts = (((first - second) * float(judge.model.std)).sigmoid() - 0.5).abs()
        by_group = zip(groups, doubts.split([len(group) for group in groups]), strict=True)
        found = [(float(doubt.min()), group[int(doubt.argmin())]) for group, doubt in by_group]
        best = sorted(found, key=lambda each: each[0])[: (len(found) + 1) // 2]
        return [pair for _, pair in best]

    def as_row(self, pair: TokenPair) -> Row:
        """A pair as it is shown: decoding leaves out a chat's marks, so that the prompt is its record's."""
        record, (before, after) = self.written[tuple(pair.prompt)], self.around
        shown = record.prompt.removeprefix(before).removesuffix(after)
        texts: Row = {"prompt": record.prompt, "shown": record.meta.get("typed", shown)}
        texts |= {SPLIT_KEY: record.question} if record.question else {}
        texts |= {TURNS: messages_of(record.turns)} if record.turns else {}
        return pair_as_text(pair, self.tokenizer) | texts


def sampled_questions(flags: QuestionFlags, asked: Sequence[Row]) -> Iterator[Row]:
    """Rows as in pairs.jsonl, in which nothing is chosen, without end; a few prompts are answered at once.

    Of ten rows one is from each held-out split; of two models' answers all are, where there are such
    prompts. Prompts that have been `asked` come last.
    """
    opened = Opened.of(flags)
    judge, other = opened.judge, opened.other
    seed, seen = derive_seed(flags.seed, f"{len(asked)}"), {row["prompt"] for row in asked}
    seconds: dict[int, float] = {}  # of the prompts answered last, by how many these were

    def pairs(split: str, prompts: int, answers: int) -> Iterator[list[list[TokenPair]]]:
        """Of so many prompts at once, every two of so many answers."""
        mine = opened.of_split(split)
        batches = sample_pairs(
            opened.policy, opened.tokenizer,
            [r for r in mine if r.prompt not in seen] or mine, sys.maxsize,
            lambda *_: Labelled(True),
            PairSampling(opened.params, answers // (2 if other else 1), batch_size=prompts),
            generator=make_generator(seed, f"{split} {answers}"),
            rng=random.Random(derive_seed(seed, f"{split} {answers}")),
            against=other,
        )  # fmt: skip
        while True:
            if not seconds or max(seconds.values()) > WORTH_SAYING:
                about = f", about {seconds[prompts]:.0f} s" if prompts in seconds else ""
                few = "a prompt" if prompts == 1 else f"{prompts} prompts"
                print(f"sampling answers to {few}{about} ...\n", flush=True)
            begin = time.monotonic()
            groups = visits(next(batches))
            seconds[prompts] = time.monotonic() - begin
            yield groups

    def usual(split: str, prompts: int) -> Iterator[TokenPair]:
        return (group[0] for groups in pairs(split, prompts, 2) for group in groups)

    in_turn = ["validation", "test", *["train"] * (3 if judge else 8)]
    held_out = {r.prompt: split for split in in_turn[:2] for r in opened.of_split(split)}
    if other and held_out:
        in_turn = sorted({*held_out.values()})
        print(f"asked are {len(held_out)} held-out prompts, which were not trained on")
    few = AT_ONCE if other else 1
    some = {"train": usual("train", AT_ONCE)}
    some |= {split: usual(split, few) for split in ("validation", "test")}
    groups = pairs("train", AT_ONCE, FEW)
    unsure = (pair for several in groups for pair in opened.least_sure(several))
    more = {"chosen_from": flags.model, "rejected_from": flags.against or flags.model}
    rng = random.Random(derive_seed(seed, "order"))
    while True:
        for split in shuffled(in_turn, rng):
            for source in ([unsure] if judge else []) + [some[split]]:
                yield opened.as_row(next(source)) | more
