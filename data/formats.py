"""The kinds of rows that public preference and instruction data come in, and how each becomes text.

A `Format` is recognised by the keys of a file's first row. Where it uses the project's template (see
templates.py) the white space around an answer is removed; plain strings stay verbatim.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from data.rows import BadRow, Row, field, is_list, text_of
from data.templates import HEADINGS, Turn, conversation_prompt, instruction_text


class DropRow(Exception):
    """A well-formed row that cannot be used; the message is the reason that readers count."""


class Answered(NamedTuple):
    """A prompt and one answer to it; None where the row has none."""

    prompt: str
    response: str | None


class Content(NamedTuple):
    """What a row holds. The prompts of a pair's two sides can differ: in some data they do."""

    chosen: Answered  # or the only one
    rejected: Answered | None = None
    answer: str | None = None  # the ground truth


@dataclass(frozen=True)
class Format:
    """One kind of row: its keys, and what it holds."""

    name: str
    keys: str
    matches: Callable[[Row], bool]
    read: Callable[[Row], Content]


# One side of a row, by its key.

Side = Callable[[Row, str], Answered]


def one(side: Side, key: str) -> Callable[[Row], Content]:
    """What rows with a single answer hold."""
    return lambda row: Content(side(row, key))


def both(side: Side) -> Callable[[Row], Content]:
    """What the pairs hold whose two sides are read alike."""
    return lambda row: Content(side(row, "chosen"), side(row, "rejected"))


def plain_side(row: Row, key: str) -> Answered:
    """Strings as they are: the project's own files, and TRL's "standard" preferences."""
    return Answered(text_of(row, "prompt"), text_of(row, key))


def asked(turns: list[Turn]) -> str:
    """The rendered prompt; drops conversations that ask for nothing."""
    if not turns or turns[-1].role != "user":
        raise DropRow("prompt does not end with a user turn")
    if not turns[-1].text.strip():
        raise DropRow("empty prompt")
    return conversation_prompt(turns)


def instruction_side(row: Row, key: str) -> Answered:
    """Alpaca style: instruction, input, output, and chosen and rejected in preference files."""
    more = text_of(row, "input") if row.get("input") else ""
    text = instruction_text(text_of(row, "instruction"), more)
    return Answered(asked([Turn("user", text)]), text_of(row, key).strip())


HH_TURN = re.compile(r"\n\n(Human|Assistant):")


def hh_side(row: Row, key: str) -> Answered:
    """A transcript of HH-RLHF (Bai et al. 2022, arXiv:2204.05862), split at its last assistant turn.

    The two transcripts have no prompt apart, and their answers may begin alike.
    """
    before, marker, answer = text_of(row, key).rpartition("\n\nAssistant:")
    if not marker or "\n\nHuman:" in answer:
        raise DropRow("no answer at the end")
    opening, *pieces = HH_TURN.split("\n\n" + before.strip())
    if opening.strip():
        raise DropRow("text before the first turn")
    turns = [
        Turn("user" if speaker == "Human" else "assistant", text)
        for speaker, text in zip(pieces[::2], pieces[1::2], strict=True)
    ]
    return Answered(asked(turns), answer.strip())


# Lists of messages: TRL's "conversational" preferences, UltraFeedback binarized.


def turns_of(row: Row, key: str) -> list[Turn]:
    """The messages under `key`: a list of {role, content}."""
    messages = field(row, key)
    if not isinstance(messages, list):
        raise BadRow(f"{key!r} is {messages!r:.40}, expected a list of messages")
    return [turn_of(key, message) for message in messages]


def turn_of(key: str, message: object) -> Turn:
    """One message of those under `key`."""
    if not isinstance(message, dict):
        raise BadRow(f"{key!r} holds {message!r:.40}, expected a message")
    role = field(message, "role")
    if not isinstance(role, str) or role not in HEADINGS:
        raise BadRow(f"{key!r} has the role {role!r:.40}, expected one of {', '.join(HEADINGS)}")
    return Turn(role, text_of(message, "content"))


def chat_side(row: Row, key: str) -> Answered:
    """The conversation under `key`, preceded by `prompt` unless it holds the prompt already.

    UltraFeedback has it as a string and again as a user turn inside the lists. The last turn, which
    must be the assistant's, is the answer.
    """
    turns, opening = turns_of(row, key), opening_of(row)
    if not turns:
        raise DropRow("no answer at the end")
    if is_list(row, "prompt"):
        repeated = turns[: len(opening)] == opening
    else:
        repeated = turns[0].role != "assistant"
    *before, last = turns if repeated else opening + turns
    if last.role != "assistant":
        raise DropRow("no answer at the end")
    return Answered(asked(before), last.text.strip())


def opening_of(row: Row) -> list[Turn]:
    """The turns of `prompt`, a list or one user's string; none where the row has no `prompt`."""
    if "prompt" not in row:
        return []
    if is_list(row, "prompt"):
        return turns_of(row, "prompt")
    return [Turn("user", text_of(row, "prompt"))]


CALCULATOR = re.compile(r"<<[^<>]*>>")
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def gsm8k(row: Row) -> Content:
    """GSM8K (Cobbe et al. 2021, arXiv:2110.14168): a solution without its calculator marks.

    The ground truth is its final number without commas.
    """
    prompt = asked([Turn("user", text_of(row, "question"))])
    solution, marker, final = text_of(row, "answer").rpartition("####")
    number = final.strip().replace(",", "")
    if not marker or not NUMBER.fullmatch(number):
        raise BadRow("'answer' does not end with '#### ' and a number")
    response = f"{CALCULATOR.sub('', solution).strip()}\n#### {number}".lstrip()
    return Content(Answered(prompt, response), answer=number)


def question(row: Row) -> Content:
    """A prompt alone, or with the ground truth that a rule needs, which is its answer as well."""
    prompt = asked(turns_of(row, "prompt")) if is_list(row, "prompt") else text_of(row, "prompt")
    answer = row.get("answer")
    if answer is not None:
        answer = str(answer) if type(answer) is int else text_of(row, "answer")
    return Content(Answered(prompt, answer), answer=answer)


# What a reward model's run records beside the text of a pair (reward_model/pairs.py): whether an answer
# ended, and its token ids.
RECORDED = ("chosen_ended", "rejected_ended", "chosen_tokens", "rejected_tokens")


def recorded_sides(row: Row) -> dict[str, Any]:
    """Those of the four keys that the row has; BadRow for a value that is none of its kind."""
    found = {key: row[key] for key in RECORDED if key in row}
    for key, value in found.items():
        if key.endswith("ended") and not isinstance(value, bool):
            raise BadRow(f"{key!r} is {value!r:.40}, expected true or false")
        ids = value if isinstance(value, list) else []
        if key.endswith("tokens") and not (ids and all(type(i) is int and i >= 0 for i in ids)):
            raise BadRow(f"{key!r} is not a list of token ids, whole numbers from 0, at least one")
    return found


def keyed(name: str, keys: str, read: Callable[[Row], Content]) -> Format:
    """The format of the rows that have all of `keys`, which a plus sign separates."""
    needed = set(keys.split(" + "))
    return Format(name, keys, lambda row: needed <= row.keys(), read)


def are_messages(row: Row) -> bool:
    return is_list(row, "chosen") and is_list(row, "rejected")


def are_transcripts(row: Row) -> bool:
    transcript = row.get("chosen")
    return isinstance(transcript, str) and "\n\nAssistant:" in transcript and "rejected" in row


OWN_PAIRS = keyed("preferences", "prompt + chosen + rejected", both(plain_side))
CHAT_KEYS, HH_KEYS = "chosen + rejected as message lists", "chosen + rejected as transcripts"

# The first match counts, so the more particular formats come first.
FORMATS = (
    keyed("GSM8K", "question + answer", gsm8k),
    keyed("Alpaca preferences", "instruction + chosen + rejected", both(instruction_side)),
    keyed("Alpaca", "instruction + output", one(instruction_side, "output")),
    Format("conversational preferences", CHAT_KEYS, are_messages, both(chat_side)),
    OWN_PAIRS,
    Format("HH-RLHF", HH_KEYS, are_transcripts, both(hh_side)),
    keyed("prompt and response", "prompt + response", one(plain_side, "response")),
    keyed("prompts", "prompt", question),
)
