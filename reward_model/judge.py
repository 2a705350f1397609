"""A reward model that reads a question and its answer in its own form, whoever the policy is.

One that was made beside the policy has its tokenizer and its form of a chat: it scores the tokens that
were sampled. Any other is given the conversation (`record.turns`) and the answer's text, writes both in
its own form, and reads the tokens of its own tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from data.collate import ResponseBatch, collate_responses
from data.records import PromptRecord
from data.templates import Turn, Unwritable, conversation_prompt
from gpt.folder import ModelFolder
from gpt.tokenizer import Tokenizer
from harness.console import say_once
from harness.errors import UserError
from reward_model.scalar_head import RewardModel, load_reward_model


@dataclass(frozen=True, eq=False)
class Judge:
    """A reward model and how it reads."""

    name: str
    model: RewardModel
    tokenizer: Tokenizer
    # By others: then it reads a whole conversation, to the end that a template writes.
    published: bool = False
    padding: int | None = None  # transformers scores the last token that is none
    # The fingerprint of its tokens, where an export has one more for padding.
    reads: str | None = None

    @staticmethod
    def open(name: str, device: torch.device | str = "cpu") -> Judge:
        """The reward model of this name; UserError where there is none."""
        model, tokenizer = load_reward_model(name, device)
        found = ModelFolder.open(name)
        published = found.run is None and not found.ours
        padding = found.about.get("pad_token_id") if published else None
        return Judge(name, model, tokenizer, published, padding, found.ours.get("tokenizer"))

    def shares(self, tokenizer: Tokenizer) -> bool:
        """Whether it reads the tokens of a policy with this tokenizer as they are."""
        own, chat = self.tokenizer, tokenizer.chat_template
        ends_alike = not self.published or (chat is None and self.padding != own.eos_id)
        same = tokenizer.fingerprint in (own.fingerprint, self.reads)
        return same and own.chat_template == chat and ends_alike

    def say(self, shared: bool) -> None:
        """How it reads, where that is not as usual, and on what scale a published one scores."""
        form = "this project's form" if self.tokenizer.chat is None else "its own chat template"
        if not shared:
            print(f"{self.name} reads conversations in {form}, in tokens of its own")
        if self.published:
            print(f"{self.name} gives the raw score of a published model, not centred")

    def read(self, record: PromptRecord, answer: str, ended: bool) -> tuple[list[int], list[int]]:
        """Its tokens before those that it scores, and these: the answer's, of a published one the last.

        A prompt without turns is one user's turn to a judge with a chat template, else plain text. Such
        a template ends every answer, so a published judge does not see that one was cut off.
        """
        tokenizer, chat, turns = self.tokenizer, self.tokenizer.chat, record.turns
        if turns is None and chat is not None:
            say_once(f"{self.name} reads prompts that are no conversation as one user's turn")
            turns = (Turn("user", record.prompt),)
        try:
            if self.published and chat is not None and turns is not None:
                ids, scored = tokenizer.encode(chat.conversation(turns, answer)), list[int]()
            else:
                prompt = record.prompt if turns is None else conversation_prompt(turns, chat)
                ids = tokenizer.encode_prompt(prompt)
                scored = tokenizer.encode(answer) + [tokenizer.eos_id] * (ended or not answer)
        except Unwritable as error:
            start = f"{self.name} cannot read {record.prompt[:60]!r}"
            raise UserError(f"{start}: {error}") from error
        if not self.published:
            return ids, scored
        ids += scored
        while len(ids) > 2 and ids[-1] == self.padding:
            ids.pop()
        return ids[:-1], ids[-1:]

    def batch(
        self, records: Sequence[PromptRecord], answers: Sequence[str], ended: Sequence[bool]
    ) -> ResponseBatch:
        """N questions with their answers as it reads them; UserError for more than its positions."""
        rows = [self.read(*row) for row in zip(records, answers, ended, strict=True)]
        longest, room = max(len(a) + len(b) for a, b in rows), self.model.gpt.config.context
        if longest > room:
            raise UserError(
                f"{self.name} reads {room} tokens, and a question with its answer has {longest}: lower "
                "--max-new-tokens, or take a judge with more positions"
            )
        prompts, scored = zip(*rows, strict=True)
        return collate_responses(prompts, scored, self.tokenizer.eos_id).to(self.model.device)
