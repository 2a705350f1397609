"""Talk to a trained model: type a prompt, read its answer beside that of the model it started from.

    python -m rl.talk runs/grpo-reviews-tiny                       type prompts
    python -m rl.talk runs/ppo-reviews-tiny --against runs/grpo-reviews-tiny
    python -m rl.talk runs/grpo-sums-tiny < prompts.txt            one prompt a line

Each answer comes with the reward that the run was trained on, the gold where a rule knows it, and its
KL to the start (over the vocabulary, summed over the answer, in nats). What the folder's config.json
names and what is not there any more is done without.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from data.records import SPLITS, PromptRecord
from data.sources import Source, default_folder, name_columns, source
from data.templates import instruction_prompt
from gpt.folder import ModelFolder, open_model
from gpt.generate import SamplingParams, temperature_of_use
from gpt.log_probs import full_kl
from gpt.model import GPT
from harness.command_line import run_command
from harness.console import printable, wrapped
from harness.device import open_device
from harness.errors import UserError
from harness.files import as_user_error, reading
from harness.flags import AtLeastOne, NotNegative, check_ranges
from harness.run_folder import input_digests
from harness.seeds import make_generator
from rl.batches.rollout import sample_rollout
from rl.rewards.function import open_function
from rl.rewards.reward import (
    RewardFn,
    components,
    is_function,
    open_reward,
    open_rule,
    rewards_of,
)
from rl.run.config import RunFlags

T = TypeVar("T")


@dataclass(frozen=True)
class TalkConfig:
    """Talk to a trained model."""

    model: str
    """A run, a folder in Hugging Face's layout, or a model of the hub, hf://OWNER/NAME or gpt2."""
    chat_arguments: tuple[str, ...] = ()
    """NAME=VALUE for its chat template, such as enable_thinking=false of Qwen3."""
    against: str | None = None
    """The model that answers beside it, named likewise; default: the one that training started from."""
    temperature: NotNegative | None = None
    """tau of sampling; 0 takes the likeliest token. Default: the run's own, or 1, and at most
    0.7 for a chat model."""
    max_new_tokens: AtLeastOne | None = None
    """Longest answer; a longer one is cut off. Default: the run's own, or 48."""
    reward: str | None = None
    """Your reward function, FILE.py:FUNCTION or MODULE:FUNCTION, that scores the answers. A function that
    the run was trained on is called only if you name it here: it is code."""
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
        """The numbers, then the text."""
        known = {"reward": self.reward, "gold": self.gold, "KL": self.kl}
        words = [f"{name} {value:.2f}" for name, value in known.items() if value is not None]
        words += [] if self.ended else ["cut off"]
        shown = printable(self.text) or "(nothing)"
        return [f"{self.who}: {', '.join(words)}", *wrapped(shown, width)]


class Talk:
    """A trained model, the one beside it, and what their answers are measured by."""

    def __init__(self, config: TalkConfig) -> None:
        self.config, self.asked = config, 0
        self.device = open_device(config.device)
        found = ModelFolder.open(config.model).with_chat_arguments(config.chat_arguments)
        self.policy, self.tokenizer = found.model(self.device), found.tokenizer()
        self.flags: Mapping[str, Any] = found.run or {}
        self.data = str(self.flags.get("data") or "")
        self.preset = str(self.flags.get("preset") or "tiny")
        tau = config.temperature
        if tau is None:
            trained = float(self.flags.get("temperature") or 1.0)
            tau = temperature_of_use(self.tokenizer.chat is not None, trained)
        longest = config.max_new_tokens or int(self.flags.get("max_new_tokens") or 48)
        self.params = SamplingParams(tau or 1.0, greedy=tau == 0, max_new_tokens=longest)
        self.notes: list[str] = []
        self.start = self.noted("no KL", self.open_start)
        self.other = self.open_other(config.against) if config.against else self.start
        self.source = self.noted("no prompts", self.open_source)
        self.rule = None
        if self.source is not None:
            prompts = {name: self.source.prompts(name) for name in SPLITS}
            self.rule = open_rule(self.source, self.data, prompts, needed=False)
        self.reward = self.noted("no reward", self.open_reward)

    def legend(self) -> list[str]:
        """What the numbers above an answer mean, of those that are known."""
        known = {
            "reward: what training paid for such an answer": self.reward,
            "gold: what it is truly worth": self.rule,
            "KL: how far this answer was from the start's, in nats": self.start,
        }
        return [words for words, found in known.items() if found is not None]

    def noted(self, missing: str, opened: Callable[[], T]) -> T | None:
        """What can be opened; else None, and a note why, or what the run has not read."""
        try:
            with reading():
                found, read = opened(), input_digests()
        except (ValueError, OSError) as error:  # UserError too
            self.notes.append(f"{missing}: {error}")
            return None
        inputs = self.flags.get("inputs") or {}
        others = [place for place, digest in read.items() if digest not in inputs.values()]
        self.notes += [f"{place} is not among the inputs in its config.json" for place in others]
        return found

    def open_other(self, name: str) -> GPT:
        """Another model of the same tokens."""
        model, tokenizer = open_model(name, self.device)
        if tokenizer.fingerprint != self.tokenizer.fingerprint:
            raise UserError(f"{name} reads other tokens than {self.config.model}: name another run")
        return model

    def open_start(self) -> GPT:
        """The model that training started from, where the flags say."""
        named = self.flags.get("model")
        if not named and not self.data:
            raise UserError("its folder does not say where training started")
        return self.open_other(named or str(default_folder("pretraining", self.data, self.preset)))

    def open_source(self) -> Source | None:
        """The world or the file that the run's prompts are from; UserError for a file of plain text."""
        if not self.data:
            return None
        name_columns(self.data, self.flags.get("columns") or ())
        found = source(self.data, self.tokenizer.chat)
        found.prompts("train")
        return found

    def open_reward(self) -> RewardFn | None:
        """The function that is named, or the reward of the run's own flags."""
        if self.config.reward is not None:
            return open_function(self.config.reward)
        kinds = rewards_of(self.flags.get("reward") or "auto")
        if any(map(is_function, kinds)) or "teacher" in self.flags or not self.data:
            return None  # code of somebody's, a teacher, or no config.json
        named = self.flags.get("reward_model") or ()
        names = tuple([named] if isinstance(named, str) else named)
        flags: dict[str, Any] = dict(
            reward=kinds, reward_weights=tuple(self.flags.get("reward_weights") or ()),
            data=self.data, preset=self.preset, reward_model=names,
            ensemble=self.flags.get("ensemble", "mean"), model=self.flags.get("model"),
        )  # fmt: skip
        return open_reward(RunFlags(**flags), self.tokenizer, self.device, self.rule)

    def read(self, text: str) -> PromptRecord:
        """The prompt as the run's data have it, or as typed."""
        if self.source is None:
            chat = self.tokenizer.chat
            plain = chat is not None and text.strip() and not chat.is_written(text)
            return PromptRecord(instruction_prompt(text, chat) if plain else text)
        record = self.source.read_prompt(text)
        if record is None:  # of a world, which trains on its own prompts alone
            print(f"({self.data} has no such prompt: nothing like it was ever trained on)")
            ends = all(known.prompt.endswith("\n") for known in self.source.prompts("train"))
            record = PromptRecord(text + "\n" if ends else text)
        return record

    @torch.no_grad()
    def answer(self, text: str) -> list[Answer]:
        """The model's answer and that of the one beside it, drawn with the same random numbers."""
        record, self.asked = self.read(text), self.asked + 1
        room = self.policy.config.context - len(self.tokenizer.encode_prompt(record.prompt))
        if room < 1 or not record.prompt or (not text.strip() and self.tokenizer.chat):
            raise UserError("the prompt leaves no room for an answer, or is empty: type another")
        params = replace(self.params, max_new_tokens=min(self.params.max_new_tokens, room))
        models = {"it": self.policy}
        if self.other is not None:
            models[Path(self.config.against or "start").name] = self.other
        return [self.answer_of(who, model, record, params) for who, model in models.items()]

    def answer_of(
        self, who: str, model: GPT, record: PromptRecord, params: SamplingParams
    ) -> Answer:
        """One model's answer, measured."""
        generator = make_generator(0, f"talk {self.asked}")
        rollout = sample_rollout(model, self.tokenizer, [record], params, 1, generator)

        def scored(reward: RewardFn | None) -> float | None:
            """None for a rule that does not know the prompt."""
            known = bool(record.meta) or record.answer is not None
            if reward is None or (components(reward).reads_records and not known):
                return None
            return float(reward(rollout))

        kl = None
        if self.start is not None and model is self.policy:
            kl = float(full_kl(model, self.start, rollout.sequences, params.temperature).sum())
        ended = bool(rollout.has_eos)
        gold = scored(self.rule)
        return Answer(who, rollout.responses[0], ended, scored(self.reward), gold, kl)


def main(config: TalkConfig) -> None:
    """Answer prompts until there are no more."""
    with as_user_error(Path(config.model)):
        talk = Talk(config)
    print(*talk.notes, *talk.legend(), sep="\n")
    print("Type a prompt; Ctrl-C stops an answer, Ctrl-D ends.")
    width = min(shutil.get_terminal_size((80, 24)).columns, 100)
    while True:
        try:
            for answer in talk.answer(input("prompt> ").strip("\r\n")):
                print(*answer.lines(width), sep="\n", flush=True)
        except EOFError:
            return
        except KeyboardInterrupt:
            print("(stopped)")
        except UserError as error:  # it costs one prompt
            print(f"error: {error}")
        print()


if __name__ == "__main__":
    run_command(main, TalkConfig)
