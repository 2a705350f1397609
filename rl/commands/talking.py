"""Asking a trained model: its answers in a terminal or line by line, beside those of a second model."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from data.collate import collate_responses
from gpt.generate import SamplingParams
from harness.device import open_device
from harness.errors import UserError
from harness.files import display_path
from harness.flag_ranges import AtLeastOne, NotNegative, Seed, check_ranges
from harness.seeds import make_generator
from reward_model.scalar_head import load_reward_model
from rl.commands.conversation import (
    Answer,
    FilePrompts,
    Partner,
    RunFolder,
    WorldPrompts,
    open_other,
    open_partner,
    open_typed,
)
from rl.rewards.sources import check_reward, is_function
from rl.training.open_reward import world_rule

START = "start"  # what --against means without a folder
SUGGESTED = 4  # prompts at a time
WIDEST, NARROWEST_PAIR = 100, 60  # columns of the terminal


@dataclass(frozen=True)
class TalkConfig:
    """Talk to a trained model, or let a reward model score."""

    against: str | None = None
    """Run folder of a second model that answers the same prompts with the same random numbers.
    --against alone, or `start`, is the model that training started from."""
    samples: AtLeastOne = 1
    """Answers per prompt."""
    temperature: NotNegative | None = None
    """tau of sampling; 0 takes the likeliest token. Default: the run's own, or 1."""
    max_new_tokens: AtLeastOne | None = None
    """Longest answer; a longer one is cut off. Default: the run's own, or 48."""
    reward: str | None = None
    """Your reward function, FILE.py:FUNCTION or MODULE:FUNCTION, that scores the answers. A function that
    the run was trained on is called only if you name it here: it is code."""
    reward_model: Path | None = None
    """Run folder of a reward model that scores in place of the run's own reward."""
    seed: Seed = 0
    """The same prompts in the same order get the same answers."""
    json: bool = False
    """Write one JSON object per prompt and nothing else."""
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.reward is not None:
            check_reward(self.reward)
            if not is_function(self.reward) or self.reward_model is not None:
                raise ValueError(
                    "reward takes your function, FILE.py:FUNCTION, and no reward_model beside it: leave "
                    "one out"
                )


# Text for a terminal ------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Text that a model wrote, with control characters spelled out: it must not steer the terminal."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape", "surrogatepass").decode()
        for c in text
    )


def wrapped(text: str, width: int) -> list[str]:
    """Printable lines of at most `width` columns; line breaks stay."""
    lines = printable(text).strip("\n").split("\n")
    return [part for line in lines for part in textwrap.wrap(line, width) or [""]]


def numbers_of(answer: Answer, width: int) -> list[str]:
    """What is known about an answer, as many numbers a line as fit."""
    parts = (
        ("reward", answer.reward, ".3f"),
        ("gold", answer.gold, ".3f"),
        ("KL", answer.kl, ".2f"),
    )
    words = [f"{name} {value:{form}}" for name, value, form in parts if value is not None]
    if not answer.ended:
        words.append(f"cut off at {answer.tokens} tokens")
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 2 + len(word) <= width:
            lines[-1] += f"  {word}"
        else:
            lines.append(word)
    return lines


def one_column(answer: Answer, width: int) -> list[str]:
    """The numbers of an answer, then its text."""
    text = wrapped(answer.text, width) if answer.text.strip() else ["(an empty answer)"]
    return [*numbers_of(answer, width), *text]


def in_terminal(names: Sequence[str], answers: Sequence[Sequence[Answer]], width: int) -> str:
    """The answers of one model below each other, or those of two models side by side if there is room."""
    blocks = []
    if len(names) == 1 or width < NARROWEST_PAIR:
        for row in zip(*answers, strict=True):
            for name, answer in zip(names, row, strict=True):
                lines = [f"  {line}".rstrip() for line in one_column(answer, width - 2)]
                blocks.append([*(wrapped(name, width) if len(names) > 1 else ()), *lines])
    else:
        half = (width - 3) // 2
        blocks.append(side_by_side([wrapped(name, half) for name in names], half))
        for row in zip(*answers, strict=True):
            blocks.append(side_by_side([one_column(answer, half) for answer in row], half))
    return "\n\n".join("\n".join(block) for block in blocks)


def side_by_side(columns: Sequence[Sequence[str]], width: int) -> list[str]:
    """Columns of lines with a bar between them."""
    rows = zip_longest(*columns, fillvalue="")
    return [" | ".join(line.ljust(width) for line in row).rstrip() for row in rows]


# Asking ------------------------------------------------------------------------------------------


class Talk:
    """A policy, perhaps a second one, and how they are asked."""

    def __init__(
        self,
        config: TalkConfig,
        run: RunFolder,
        partners: Sequence[Partner],
        prompts: WorldPrompts | FilePrompts,
    ) -> None:
        self.config, self.run, self.partners, self.prompts = config, run, partners, prompts
        self.asked = self.suggested = 0
        temperature = config.temperature
        if temperature is None:
            temperature = float(run.flags.get("temperature") or 1.0)
        tokens = config.max_new_tokens or int(run.flags.get("max_new_tokens") or 48)
        self.params = SamplingParams(
            temperature or 1.0, greedy=temperature == 0, max_new_tokens=tokens
        )

    def reply(self, text: str) -> list[list[Answer]]:
        """Every model's answers to one prompt. A prompt's random numbers depend on its position alone."""
        typed = self.prompts.read(text)
        self.asked += 1
        return [
            partner.answers(
                typed,
                self.params,
                self.config.samples,
                make_generator(self.config.seed, f"talk {self.asked}"),
            )
            for partner in self.partners
        ]

    def as_object(self, text: str) -> dict[str, Any]:
        """For --json."""
        answers = self.reply(text)
        models = [
            {"run": partner.name, "answers": [asdict(answer) for answer in given]}
            for partner, given in zip(self.partners, answers, strict=True)
        ]
        return {"prompt": text, **models[0], **({"against": models[1]} if models[1:] else {})}

    def as_text(self, text: str, width: int) -> str:
        """For a terminal."""
        return in_terminal([partner.name for partner in self.partners], self.reply(text), width)

    def banner(self) -> list[str]:
        """What one is talking to, and what the numbers mean."""
        first, measures = self.partners[0], self.partners[0].measures
        weights = f"{first.policy.parameter_count():,} weights, {first.tokenizer.name} tokens"
        lines = [f"{first.name}: {weights}{', ' + self.run.data if self.run.data else ''}"]
        if measures.reward is not None:
            lines.append(f"reward: {measures.reward.name}")
        if measures.gold is not None:
            lines.append(f"gold: {measures.gold.name}, for prompts that it knows")
        if measures.start is not None:
            lines.append("KL: to the model that training started from, nats per answer")
        return [*lines, *measures.notes]

    def suggestions(self) -> list[str]:
        """A few prompts to type, others each time."""
        examples = self.prompts.examples()
        first = self.suggested % max(len(examples), 1)
        self.suggested += SUGGESTED
        return (examples + examples)[first : first + min(SUGGESTED, len(examples))]


class Scoring:
    """A reward model, which is shown an answer together with its prompt."""

    def __init__(
        self, run: RunFolder, device: torch.device, prompts: WorldPrompts | FilePrompts
    ) -> None:
        self.name, self.prompts, self.gold = run.path.resolve().name, prompts, world_rule(run.data)
        self.model, self.tokenizer = load_reward_model(run.path, device)

    @torch.no_grad()
    def reply(self, text: str) -> Answer:
        """What the answer after the tab is worth; it counts as ended. UserError if it does not fit."""
        asked, tab, said = text.partition("\t")
        if not tab:
            raise UserError(
                f"{self.name} is a reward model, which scores answers and writes none: give "
                "it a prompt, a tab and an answer, or talk to the policy that was trained on it"
            )
        typed = self.prompts.read(asked)
        prompt = self.tokenizer.encode(typed.record.prompt)
        answer = [*self.tokenizer.encode(said), self.tokenizer.eos_id]
        context = self.model.gpt.config.context
        if not prompt or len(prompt) + len(answer) > context:
            raise UserError(
                f"a prompt of {len(prompt)} tokens and an answer of {len(answer)} do not fit the "
                f"model's {context} positions: a prompt has one at least, both together no more"
            )
        batch = collate_responses([prompt], [answer], self.tokenizer.eos_id)
        reward = float(self.model(batch.to(self.model.device)))
        gold = None
        if self.gold is not None and typed.known:
            gold = float(self.gold.rule(typed.record, said, True))
        return Answer(said, len(answer), True, reward, gold)

    def as_object(self, text: str) -> dict[str, Any]:
        """For --json."""
        answer = asdict(self.reply(text))
        return {"prompt": text.partition("\t")[0], "run": self.name, "answers": [answer]}

    def as_text(self, text: str, width: int) -> str:
        """For a terminal."""
        return in_terminal([self.name], [[self.reply(text)]], width)

    def banner(self) -> list[str]:
        return [
            f"{self.name}: a reward model, which scores answers and writes none",
            "type a prompt, then an answer to it",
        ]

    def suggestions(self) -> list[str]:
        return self.prompts.examples()[:SUGGESTED]


def open_talk(path: Path, config: TalkConfig) -> Talk | Scoring:
    """Whatever the folder holds, ready to be asked. UserError if there is no model in it."""
    device, run = open_device(config.device), RunFolder.read(path)
    prompts = open_typed(run.data, template=bool(run.flags.get("template")))
    if run.kind == "reward_model":
        if config.against is not None:
            raise UserError(
                f"{display_path(path)} holds a reward model, which has no answers to lay side by "
                "side: leave --against out"
            )
        return Scoring(run, device, prompts)
    partners = [open_partner(run, device, config.reward_model or config.reward)]
    if config.against is not None:
        other = start_folder(run) if config.against == START else Path(config.against)
        partners.append(open_other(partners[0], other, device))
    return Talk(config, run, partners, prompts)


def start_folder(run: RunFolder) -> Path:
    """Where the model is that training started from. UserError if that is not known or gone."""
    if run.start is None:
        raise UserError(
            f"--against: nothing in {display_path(run.path)} says which model it started from: name "
            "a run folder"
        )
    folder = run.find(run.start)
    if folder is None:
        raise UserError(
            f"--against: the model that {run.path.name} started from is not in "
            f"{display_path(run.start)} any more: name another run folder"
        )
    return folder


# The two ways to be asked ------------------------------------------------------------------------


def terminal_width() -> int:
    return min(shutil.get_terminal_size((80, 24)).columns, WIDEST)


def from_terminal(talk: Talk | Scoring, ask: Callable[[str], str] = input) -> None:
    """Ask for prompts until the end of the input (Ctrl-D) or Ctrl-C; what fails costs one prompt."""
    width = terminal_width()
    for line in talk.banner():
        print("\n".join(wrapped(line, width)))
    show_suggestions(talk)
    print("? suggests prompts, Ctrl-D ends.")
    for text in typed_lines(talk, ask):
        try:
            print(talk.as_text(text, width), end="\n\n")
        except KeyboardInterrupt:
            print("\n(stopped)")
        except ValueError as error:  # UserError too
            print("\n".join(wrapped(f"error: {error}", width)))


def typed_lines(talk: Talk | Scoring, ask: Callable[[str], str]) -> Iterator[str]:
    """What somebody types, but for empty lines and `?`."""
    while True:
        try:
            text = ask("prompt> ")
            if text.strip() == "?":
                show_suggestions(talk)
                continue
            if isinstance(talk, Scoring) and text.strip() and "\t" not in text:
                text += "\t" + ask("answer> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if text.strip():
            yield text


def show_suggestions(talk: Talk | Scoring) -> None:
    suggestions = talk.suggestions()
    if not suggestions:
        print("Type any text: this model goes on with it.")
        return
    print("Type a prompt, for example")
    for text in suggestions:
        print(f"  {printable(text)}")


def from_pipe(talk: Talk | Scoring, lines: Iterator[str], as_json: bool) -> bool:
    """Answer one prompt a line; False if any of them failed, which costs that prompt alone."""
    worked = True
    for text in (line.rstrip("\r\n") for line in lines):
        if not text.strip():
            continue
        try:
            if as_json:
                print(json.dumps(talk.as_object(text)), flush=True)
            else:
                shown = "\n".join(wrapped(text.partition("\t")[0], terminal_width()))
                print(shown, talk.as_text(text, terminal_width()), sep="\n", end="\n\n", flush=True)
        except ValueError as error:  # UserError too
            worked = False
            print(f"error: {error}", file=sys.stderr)
            if as_json:
                print(json.dumps({"prompt": text, "error": str(error)}), flush=True)
    return worked


def with_start(arguments: Sequence[str]) -> list[str]:
    """A command line in which `--against` without a folder means the start."""
    given = list(arguments)
    bare = [
        index
        for index, argument in enumerate(given)
        if argument == "--against" and (given[index + 1 : index + 2] or ["--"])[0].startswith("--")
    ]
    for index in reversed(bare):
        given.insert(index + 1, START)
    return given
