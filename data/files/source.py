"""A file of yours as a source of prompts (data/sources.py says what a source is), documents and pairs."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from data.files.columns import rows_of
from data.files.read import (
    ReadResult,
    read_preferences,
    read_prompts,
    read_responses,
    read_text,
)
from data.files.rows import holds_rows
from data.records import PreferenceRecord, PromptRecord, ResponseRecord, Split
from data.templates import HEADINGS, ChatForm, Turn, instruction_prompt


class FileSource:
    """The prompts of a file, split by their questions."""

    CHECK = gold = corpus = sample_response = prefers = step_checks = None
    SORTED_BY_LENGTH = False

    def __init__(self, path: Path, chat: ChatForm | None = None) -> None:
        self.path, self.chat = path, chat

    @cached_property
    def result(self) -> ReadResult[PromptRecord]:
        """What the file holds, read once; prints what is kept of it."""
        result = read_prompts(self.path, self.chat)
        result.say()
        return result

    @cached_property
    def splits(self) -> dict[Split, list[PromptRecord]]:
        return self.result.splits

    @cached_property
    def is_in_form(self) -> bool:
        """Whether prompts of it are in the form `chat`."""
        chat, records = self.chat, self.result.records
        return chat is not None and any(chat.is_in_form(record.prompt) for record in records)

    def prompts(self, split: Split) -> list[PromptRecord]:
        return self.splits[split]

    def read_prompt(self, text: str) -> PromptRecord:
        """A typed prompt in the form of the file's prompts, with its row if it is one of them.

        Unwritable for one with a mark of a chat, which could end a turn, in neither form.
        """
        known = {record.prompt: record for records in self.splits.values() for record in records}
        formed, chat, turns = text, self.chat, (Turn("user", text.strip()),)
        if chat is not None and (self.is_in_form or chat.is_written(text)):
            formed = text if chat.is_written(text) else instruction_prompt(text, chat)
        else:
            if chat is not None:
                chat.refuse_marks(text)
            if all(prompt.endswith(HEADINGS["assistant"]) for prompt in known):
                formed = instruction_prompt(text)
            elif all(prompt.endswith("\n") for prompt in known):
                formed = text + "\n"
        asked = turns if formed.strip() != text.strip() else None
        return known.get(text) or known.get(formed) or PromptRecord(formed, turns=asked)

    def pairs(self, *, labelled: bool = False) -> ReadResult[PreferenceRecord]:
        """Its preference pairs, or its `labelled` answers."""
        return read_preferences(self.path, self.chat, labelled=labelled)

    def responses(self) -> ReadResult[ResponseRecord]:
        """Its prompts, each with an answer to learn from."""
        return read_responses(self.path, self.chat)

    def documents(self, *, say: bool = True) -> list[str]:
        """Its texts, or those of a folder, or prompt + answer of the training split of its rows."""
        if not holds_rows(self.path) or "text" in next(rows_of(self.path), ("", {}))[1]:
            texts, summary = read_text(self.path)
        else:
            result = self.responses()
            summary = result.summary()
            texts = [record.prompt + record.response for record in result.splits["train"]]
        if say:
            print(summary)
        return texts
