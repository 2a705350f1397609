"""Talk to a trained model: type a prompt, read its answer beside that of the model it started from.

    python -m rl.talk runs/grpo-reviews-tiny                       type prompts; ? suggests some
    python -m rl.talk runs/ppo-reviews-tiny --against runs/grpo-reviews-tiny
    python -m rl.talk runs/grpo-sums-tiny < prompts.txt            one prompt a line

Each answer comes with the reward that the run was trained on, the gold where a rule knows it, and its
KL to the start (of the distributions over the vocabulary, summed over the answer, in nats). Everything
follows from the folder's config.json. What it names and what is not there any more is done without.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from data.names import default_folder
from data.readers import DataError, read_prompts
from data.records import PromptRecord
from data.templates import HEADINGS, instruction_prompt
from data.worlds import MODULES, prompts
from gpt.generate import SamplingParams
from gpt.log_probs import full_kl
from gpt.model import GPT
from gpt.published.pretrained import load_policy
from harness.device import open_device
from harness.errors import UserError
from harness.files import read_object, received
from harness.flag_ranges import AtLeastOne, NotNegative, Seed, check_ranges
from harness.paths import MODEL_FILE, folder_of_run
from harness.seeds import make_generator
from rl.batches.rollout import sample_rollout
from rl.rewards.function import open_function
from rl.rewards.sources import RewardFn, is_function, made_of
from rl.training.open_reward import RewardChoice, answer_rule, open_reward, world_rule

MOST_READ = 20_000  # prompts of a file that are looked through for what was typed


@dataclass(frozen=True)
class TalkConfig:
    """Talk to a trained model."""

    against: Path | None = None
    """Run folder of the model that answers beside it; default: the one that training started from."""
    temperature: NotNegative | None = None
    """tau of sampling; 0 takes the likeliest token. Default: the run's own, or 1."""
    max_new_tokens: AtLeastOne | None = None
    """Longest answer; a longer one is cut off. Default: the run's own, or 48."""
    reward: str | None = None
    """Your reward function, FILE.py:FUNCTION or MODULE:FUNCTION, that scores the answers. A function that
    the run was trained on is called only if you name it here: it is code."""
    seed: Seed = 0
    """The same prompts in the same order get the same answers."""
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class Answer:
    """One response and its numbers; None where something is not known."""

    who: str
    text: str
    ended: bool  # by itself; False: cut off
    reward: float | None
    gold: float | None
    kl: float | None  # KL(model || start) in nats, of the run's own answer

    def lines(self, width: int) -> list[str]:
        """The numbers, then the text without control characters: it must not steer the terminal."""
        known = {"reward": self.reward, "gold": self.gold, "KL": self.kl}
        words = [f"{name} {value:.2f}" for name, value in known.items() if value is not None]
        words += [] if self.ended else ["cut off"]
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in self.text.strip())
        return [f"{self.who}: {', '.join(words)}", *textwrap.wrap(shown or "(nothing)", width)]


class Talk:
    """A trained model, the one beside it, and what their answers are measured by."""

    def __init__(self, folder: Path, config: TalkConfig) -> None:
        self.folder, self.config, self.asked = folder_of_run(folder), config, 0
        self.device = open_device(config.device)
        self.policy, self.tokenizer = load_policy(self.folder, self.device)
        path = self.folder / "config.json"
        self.flags: Mapping[str, Any] = read_object(path) if path.exists() else {}
        self.data = str(self.flags.get("data") or "")
        self.notes: list[str] = []
        self.start = self.noted("no KL", self.open_start)
        self.other = self.open_other(config.against) if config.against else self.start
        self.rule = world_rule(self.data) or self.noted("no gold", self.open_answers)
        self.reward = self.noted("no reward", self.open_reward)

    def noted(self, missing: str, opened: Callable[[], Any]) -> Any:
        """What can be opened; else None, and a note why."""
        try:
            return opened()
        except (ValueError, OSError) as error:  # UserError too
            self.notes.append(f"{missing}: {error}")
            return None

    def open_other(self, folder: Path) -> GPT:
        """Another model of the same tokens."""
        model, tokenizer = load_policy(folder_of_run(folder), self.device)
        if tokenizer.fingerprint != self.tokenizer.fingerprint:
            raise UserError(f"{folder} reads other tokens than {self.folder}: name another run")
        return model

    def open_start(self) -> GPT:
        """The model that training started from, where the flags say or beside this run."""
        named = self.flags.get("policy") or self.flags.get("base")
        preset = str(self.flags.get("preset") or "tiny")
        folder = Path(named) if named else default_folder("pretraining", self.data, preset)
        beside = self.folder.resolve().parent / folder_of_run(folder).name
        there = (folder_of_run(folder) / MODEL_FILE).exists()
        return self.open_other(folder if there else beside)

    @cached_property
    def records(self) -> list[PromptRecord]:
        """The prompts of a file; none of a world, of plain text or of a file that is gone."""
        if not self.data or self.data in MODULES:
            return []
        try:
            template = bool(self.flags.get("template"))
            return read_prompts(self.data, limit=MOST_READ, template=template).records
        except DataError:
            return []

    def open_answers(self) -> RewardFn | None:
        """The check of the answers that a file brings."""
        return answer_rule(self.data, {"all": self.records}) if self.records else None

    def open_reward(self) -> RewardFn | None:
        """The function that is named, or the reward of the run's own flags."""
        if self.config.reward is not None:
            return open_function(self.config.reward)
        kind = str(self.flags.get("reward") or "auto")
        if is_function(kind) or "teacher" in self.flags or not self.data:
            return None  # code of somebody's, a teacher, or no config.json
        named = self.flags.get("reward_model") or ()
        choice = RewardChoice(
            kind, self.data, str(self.flags.get("preset") or "tiny"),
            tuple(Path(folder) for folder in ([named] if isinstance(named, str) else named)),
            self.flags.get("ensemble", "mean"),
        )  # fmt: skip
        return open_reward(choice, self.tokenizer, self.device, self.rule)

    def read(self, text: str) -> PromptRecord:
        """The prompt as the run's data have it: of a world, of the file's template, or as typed."""
        if self.data in MODULES:
            record = MODULES[self.data].read_prompt(text)
            return record or PromptRecord(text + ("\n" if self.data == "reviews" else ""))
        texts = {record.prompt: record for record in self.records}
        formed = text
        if texts and all(prompt.endswith(HEADINGS["assistant"]) for prompt in texts):
            formed = instruction_prompt(text)
        elif texts and all(prompt.endswith("\n") for prompt in texts):
            formed = text + "\n"
        return texts.get(text) or texts.get(formed) or PromptRecord(formed)

    @torch.no_grad()
    def answer(self, text: str) -> list[Answer]:
        """The model's answer and that of the one beside it, drawn with the same random numbers."""
        record, self.asked = self.read(text), self.asked + 1
        room = self.policy.config.context - len(self.tokenizer.encode(record.prompt))
        if room < 1 or not record.prompt:
            raise UserError("the prompt leaves no room for an answer, or is empty: type another")
        tau = self.config.temperature
        if tau is None:
            tau = float(self.flags.get("temperature") or 1.0)
        longest = self.config.max_new_tokens or int(self.flags.get("max_new_tokens") or 48)
        params = SamplingParams(tau or 1.0, greedy=tau == 0, max_new_tokens=min(longest, room))
        beside = self.config.against.name if self.config.against else "start"
        answers = [self.answer_of("it", self.policy, record, params)]
        return answers + (
            [self.answer_of(beside, self.other, record, params)] if self.other is not None else []
        )

    def answer_of(
        self, who: str, model: GPT, record: PromptRecord, params: SamplingParams
    ) -> Answer:
        """One model's answer, measured."""
        generator = make_generator(self.config.seed, f"talk {self.asked}")
        rollout = sample_rollout(model, self.tokenizer, [record], params, 1, generator)

        def scored(reward: RewardFn | None) -> float | None:
            """None for a rule that does not know the prompt."""
            known = bool(record.meta) or record.answer is not None
            if reward is None or (made_of(reward).reads_records and not known):
                return None
            return float(reward(rollout))

        kl = None
        if self.start is not None and model is self.policy:
            kl = float(full_kl(model, self.start, rollout.sequences, params.temperature).sum())
        ended = bool(rollout.has_eos)
        gold = scored(self.rule)
        return Answer(who, rollout.responses[0], ended, scored(self.reward), gold, kl)

    def suggestions(self, count: int = 4) -> list[str]:
        """Prompts to type, of the test split or the file."""
        known = prompts(self.data, "test", 200) if self.data in MODULES else self.records
        texts = [str(record.meta.get("typed", record.prompt)).strip() for record in known]
        return [text for text in texts if "\n" not in text and len(text) < 160][:count]


def typed(talk: Talk, width: int) -> Iterator[str]:
    """What somebody types, or the lines of a pipe."""
    if not sys.stdin.isatty():
        yield from (line.strip("\r\n") for line in sys.stdin if line.strip())
        return
    for note in talk.notes:
        print(textwrap.fill(note, width))
    print("Type a prompt; ? suggests some, Ctrl-C stops an answer, Ctrl-D ends.")
    while True:
        try:
            text = input("prompt> ")
        except (EOFError, KeyboardInterrupt):
            return
        if text.strip() == "?":
            print("\n".join(f"  {suggestion}" for suggestion in talk.suggestions()))
        elif text.strip():
            yield text


def main(run: Path, /, config: TalkConfig) -> None:
    """Talk to a trained model.

    Args:
        run: Run folder of the model.
    """
    with received(run):
        talk = Talk(run, config)
    width = min(shutil.get_terminal_size((80, 24)).columns, 100)
    for text in typed(talk, width):
        try:
            for answer in talk.answer(text):
                print("\n".join(answer.lines(width)), flush=True)
        except KeyboardInterrupt:
            print("(stopped)")
        except UserError as error:  # it costs one prompt
            print(f"error: {error}", file=sys.stderr)
        print()


if __name__ == "__main__":
    import tyro

    from harness.command_line import command_name, explained

    with explained():
        tyro.cli(main, prog=command_name(), config=(tyro.conf.OmitArgPrefixes,))
