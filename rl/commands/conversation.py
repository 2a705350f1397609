"""Opening a run folder to talk to: its model, its prompts, and what its answers are measured by.

Everything follows from the folder's config.json. What it names and what is not there any more leaves
a note and is done without: only the model itself is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from data.names import default_folder
from data.readers import DataError, read_prompts, split_records
from data.records import PromptRecord
from data.templates import HEADINGS, instruction_prompt
from data.worlds import MODULES, prompts
from gpt.checkpoint import load_gpt
from gpt.generate import SamplingParams
from gpt.log_probs import full_kl
from gpt.model import GPT
from gpt.teacher import open_teacher, teacher_folder
from gpt.tokenizer import Tokenizer
from harness.errors import UserError
from harness.files import display_path, read_object, require_regular
from harness.paths import MODEL_FILE, folder_of_run
from harness.safetensors_file import read_safetensors
from rl.batches.rollout import Rollout, sample_rollout
from rl.rewards.function import open_function
from rl.rewards.sources import (
    RewardFn,
    RewardModelReward,
    RuleReward,
    is_function,
    made_of,
)
from rl.rewards.teacher_reward import TeacherReward
from rl.training.open_reward import (
    RewardChoice,
    answer_rule,
    open_reward,
    open_reward_model,
    with_wrong_reward,
    world_rule,
)

MOST_READ = 20_000  # prompts of a file that are looked through for a record

# The folder --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunFolder:
    """A run folder with weights, and the flags that it was made with (none if it keeps none)."""

    path: Path
    flags: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> RunFolder:
        """UserError if there is no such folder, no model in it, or a damaged config.json."""
        path = folder_of_run(path)
        if not path.is_dir():
            raise UserError(
                f"there is no run folder {path}: give the folder of a run, as in runs/NAME"
            )
        if not (path / MODEL_FILE).exists():
            raise UserError(
                f"there is no {MODEL_FILE} in {display_path(path)}: a run writes it when it ends, so "
                "give the folder of a finished run"
            )
        config = path / "config.json"
        return cls(path, read_object(config) if config.exists() else {})

    @property
    def data(self) -> str:
        """The world or the file of the run; "" if nothing says it."""
        return str(self.flags.get("data") or "")

    @property
    def preset(self) -> str:
        return str(self.flags.get("preset") or "tiny")

    @property
    def kind(self) -> str:
        """What the weights are, by their header: "gpt", "reward_model" or "" for another program's."""
        path = self.path / MODEL_FILE
        require_regular(path)
        return read_safetensors(path, lambda file: file.metadata() or {}).get("kind", "")

    def find(self, path: Path) -> Path | None:
        """A folder that the flags name: where they say, or beside this one, if both were moved."""
        path = folder_of_run(path)
        places = (path, self.path.resolve().parent / path.name)
        return next((place for place in places if (place / MODEL_FILE).exists()), None)

    @property
    def start(self) -> Path | None:
        """The folder that training started from, whether it is there or not; None for random weights."""
        name = next((name for name in ("policy", "base") if name in self.flags), None)
        if name is None or self.flags.get("weights"):
            return None
        if self.flags[name]:
            return Path(self.flags[name])
        teacher = "least_reward" in self.flags  # scripts/make_teacher.py, whose base is larger
        return default_folder("pretraining", self.data, "teacher" if teacher else self.preset)

    @property
    def reward_models(self) -> tuple[Path, ...]:
        """The reward models that the flags name, or the default one of this data and preset."""
        given = self.flags.get("reward_model") or ()
        given = [given] if isinstance(given, str) else given
        default = default_folder("reward_model", self.data, self.preset)
        return tuple(Path(path) for path in given) or (default,)


# Prompts -----------------------------------------------------------------------------------------


class Typed(NamedTuple):
    """What somebody typed as the model reads it; `known`: a rule can check the answers to it."""

    record: PromptRecord
    known: bool


class WorldPrompts:
    """A generated world: any text, and the prompts whose answers its rule can check."""

    def __init__(self, data: str) -> None:
        self.data = data

    def read(self, text: str) -> Typed:
        """The prompt as the world writes it. Reviews end with a line break, which nobody types."""
        record = MODULES[self.data].read_prompt(text)
        if record is not None:
            return Typed(record, True)
        return Typed(PromptRecord(text + ("\n" if self.data == "reviews" else "")), False)

    def examples(self) -> list[str]:
        """Prompts of the test split, which no stage was trained on."""
        return [record.prompt.strip() for record in prompts(self.data, "test", 200)]


class FilePrompts:
    """A file, or nothing: what is typed gets the form that the file's prompts have."""

    def __init__(self, records: Sequence[PromptRecord] = ()) -> None:
        self.records = list(records)
        self.by_text = {record.prompt: record for record in records}
        ends = [record.prompt for record in records]
        self.templated = bool(ends) and all(text.endswith(HEADINGS["assistant"]) for text in ends)
        self.line_break = bool(ends) and all(text.endswith("\n") for text in ends)

    def read(self, text: str) -> Typed:
        """In the file's template if it has one; a prompt of the file brings its answer."""
        line = text + ("\n" if self.line_break else "")
        formed = instruction_prompt(text) if self.templated else line
        record = self.by_text.get(text) or self.by_text.get(formed) or PromptRecord(formed)
        return Typed(record, record.answer is not None)

    def examples(self) -> list[str]:
        """Held-out prompts that fit on one line, as one would type them."""
        test = split_records(self.records)["test"] or self.records
        texts = [self._typed(record.prompt) for record in test]
        return [text for text in texts if text and "\n" not in text and len(text) <= 160]

    def _typed(self, prompt: str) -> str:
        if self.templated:
            return prompt.removeprefix(HEADINGS["user"]).removesuffix(HEADINGS["assistant"]).strip()
        return prompt.strip("\n")


def open_typed(data: str, *, template: bool = False) -> WorldPrompts | FilePrompts:
    """How prompts for a model of this data are typed; without prompts any text is taken as it is."""
    if data in MODULES:
        return WorldPrompts(data)
    try:
        return FilePrompts(
            read_prompts(data, limit=MOST_READ, template=template).records if data else ()
        )
    except DataError:  # plain text, which has no prompts, or a file that is gone
        return FilePrompts()


# What answers are measured by --------------------------------------------------------------------


@dataclass
class Measures:
    """The reward of the run, the gold where it is known, and the start that the KL is from."""

    reward: RewardFn | None = None
    gold: RewardFn | None = None
    start: GPT | None = None
    notes: list[str] = field(default_factory=list)  # what is missing, and why


def open_measures(
    run: RunFolder, tokenizer: Tokenizer, device: torch.device, scorer: Path | str | None = None
) -> Measures:
    """Whatever is there; `scorer` in place of the run's own reward: a reward model or a function.

    UserError only if the scorer, which somebody has asked for, cannot be used.
    """
    measures = Measures()

    def noted(missing: str, opened: Callable[..., Any], *given: Any) -> Any:
        """What can be opened; else None, and a note."""
        try:
            return opened(run, *given)
        except ValueError as error:  # UserError too
            measures.notes.append(f"{missing}: {error}")
            return None

    prompts = open_typed(run.data, template=bool(run.flags.get("template")))
    rule = noted("no gold", _rule, prompts.records if isinstance(prompts, FilePrompts) else [])
    measures.gold = rule
    if isinstance(scorer, Path):
        model = open_reward_model(scorer, tokenizer, device, "", "--reward-model: ")
        measures.reward = RewardModelReward(model)
    elif scorer is not None:
        measures.reward = open_function(scorer)
    else:
        measures.reward = noted("no reward", _reward, rule, tokenizer, device)
    measures.start = noted("no KL", _start, tokenizer, device)
    return measures


def _rule(run: RunFolder, records: Sequence[PromptRecord]) -> RuleReward | None:
    answers = answer_rule(run.data, {"all": records}) if records else None
    return world_rule(run.data) or answers


def _reward(
    run: RunFolder, rule: RuleReward | None, tokenizer: Tokenizer, device: torch.device
) -> RewardFn | None:
    """The reward of the run's own flags. UserError where it is not there any more."""
    kind = str(run.flags.get("reward") or "auto")
    if is_function(kind):  # a folder that somebody else has made must not start code here
        raise UserError(f"it is your function {kind}, which is called only with --reward {kind}")
    if "teacher" in run.flags:
        return _teacher_reward(run, tokenizer, device)
    if not run.data:
        raise UserError("no config.json says which; --reward-model RUN takes one")
    learned = kind == "model" or (kind == "auto" and made_of(rule).check is None)
    folders: tuple[Path, ...] = ()
    if learned:
        folders = tuple(_present(run, path, "reward model") for path in run.reward_models)
    choice = RewardChoice(
        kind,
        run.data,
        run.preset,
        folders,
        run.flags.get("ensemble", "mean"),
    )
    reward = open_reward(choice, tokenizer, device, rule)
    return with_wrong_reward(float(run.flags.get("wrong_reward") or 0), reward)


def _present(run: RunFolder, path: Path, what: str) -> Path:
    """Where a folder that the flags name is now. UserError if it is gone."""
    folder = run.find(path)
    if folder is None:
        raise UserError(f"there is no {what} in {display_path(path)}")
    return folder


def _teacher_reward(run: RunFolder, tokenizer: Tokenizer, device: torch.device) -> RewardFn:
    """log p - log q of a response, teacher over policy: what all engines that distil are about."""
    named = Path(run.flags["teacher"]) if run.flags["teacher"] else teacher_folder(run.data)
    teacher = open_teacher(_present(run, named, "teacher"), tokenizer, device)
    scoring = SimpleNamespace(temperature=1.0, micro_batch_size=64, precision="float32")
    return TeacherReward(teacher, scoring, aggregate="sum", reverse_kl=True)


def _start(run: RunFolder, tokenizer: Tokenizer, device: torch.device) -> GPT | None:
    if run.start is None:
        return None
    folder = _present(run, run.start, "model that training started from")
    start, start_tokenizer = load_gpt(folder, device)
    if start_tokenizer.fingerprint != tokenizer.fingerprint:
        raise UserError(f"{display_path(folder)} reads other tokens")
    return start.requires_grad_(False)


# Asking and scoring ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """One response and its numbers; None where something is not known."""

    text: str
    tokens: int  # with the EOS
    ended: bool  # by itself; False: cut off
    reward: float | None = None
    gold: float | None = None
    kl: float | None = None  # KL(model || start) over the vocabulary, summed over the tokens; nats


@dataclass(frozen=True)
class Partner:
    """A model to talk to."""

    name: str
    policy: GPT
    tokenizer: Tokenizer
    measures: Measures

    def answers(
        self, typed: Typed, params: SamplingParams, count: int, generator: torch.Generator
    ) -> list[Answer]:
        """`count` responses to one prompt. UserError if it leaves no room for any."""
        params = replace(params, max_new_tokens=self._room(typed, params.max_new_tokens))
        rollout = sample_rollout(
            self.policy, self.tokenizer, [typed.record], params, count, generator
        )
        reward, gold, kl = self._measured(rollout, typed, params.temperature)
        return [
            Answer(text, int(tokens), bool(ended), *numbers)
            for text, tokens, ended, *numbers in zip(
                rollout.responses, rollout.lengths, rollout.has_eos, reward, gold, kl, strict=True
            )
        ]

    def _room(self, typed: Typed, wanted: int) -> int:
        length = len(self.tokenizer.encode(typed.record.prompt))
        context = self.policy.config.context
        if length == 0:
            raise UserError("an empty prompt has no token that an answer could follow: type one")
        if length >= context:
            raise UserError(
                f"the prompt has {length} tokens and the model {context} positions, which leaves no "
                "room for an answer: type a shorter one"
            )
        return min(wanted, context - length)

    @torch.no_grad()
    def _measured(
        self, rollout: Rollout, typed: Typed, temperature: float
    ) -> tuple[list[float | None], ...]:
        """Reward, gold and KL of each response."""
        nothing: list[float | None] = [None] * len(rollout)

        def scored(reward: RewardFn | None) -> list[float | None]:
            if reward is None or (made_of(reward).reads_records and not typed.known):
                return nothing
            return reward(rollout).tolist()

        kl = nothing
        if self.measures.start is not None:
            kls = full_kl(self.policy, self.measures.start, rollout.sequences, temperature)
            kl = kls.sum(1).tolist()
        return scored(self.measures.reward), scored(self.measures.gold), kl


def open_partner(run: RunFolder, device: torch.device, scorer: Path | str | None = None) -> Partner:
    """The model of a run folder with all that its answers can be measured by."""
    policy, tokenizer = load_gpt(run.path, device)
    measures = open_measures(run, tokenizer, device, scorer)
    return Partner(run.path.resolve().name, policy.requires_grad_(False), tokenizer, measures)


def open_other(partner: Partner, folder: Path, device: torch.device) -> Partner:
    """Another model that answers the same prompts and is measured by the same."""
    run = RunFolder.read(folder)
    policy, tokenizer = load_gpt(run.path, device)
    if tokenizer.fingerprint != partner.tokenizer.fingerprint:
        raise UserError(
            f"--against: {display_path(run.path)} reads {tokenizer.name!r} tokens, {partner.name} "
            f"reads {partner.tokenizer.name!r} tokens: compare models with one tokenizer"
        )
    return replace(partner, name=run.path.resolve().name, policy=policy.requires_grad_(False))
