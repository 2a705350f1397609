"""The kinds of rows that public preference and instruction data come in, and how each becomes text.

A `Format` is recognised by the keys of a file's first row. It tells conversations, which are written in
a form of a chat (data/templates.py), from plain strings. A question that
is in `prompt` and again in the answers is written once (`joined`, `without_question`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from data.files.rows import BadRow, Row, field, text_of
from data.records import RECORDED, TURNS
from data.templates import (
    HEADINGS,
    ChatForm,
    Turn,
    Unwritable,
    answered_conversation,
    conversation_prompt,
    instruction_text,
    stripped,
)


class DropRow(Exception):
    """A well-formed row that cannot be used; the message is the reason that readers count."""


class Answered(NamedTuple):
    """A prompt and one answer to it; None where the row has none."""

    prompt: Any  # text, or the turns of a conversation, until it is `written`
    response: str | None
    learned: bool = True  # False: marked as an answer not to be learned
    odd: str = ""  # how the template's own text differs
    turns: tuple[Turn, ...] | None = None  # that a text was written of


class Content(NamedTuple):
    """What a row holds. The prompts of a pair's two sides can differ: in some data they do."""

    sides: Sequence[Answered]  # the chosen and the rejected one, or the only one
    answer: Any = None  # the ground truth
    repeated: bool = False  # the answers began with the prompt


# The marks of chats that models are known by; what ends a text or a turn, and all others.
ENDS = (
    r"<\|(?:endoftext|im_end|end_of_text|eot_id|eom_id|eot|end|return|endofturn|END_OF_TURN_TOKEN)\|>"
    r"|</s>|<eos>|<end_of_turn>|<｜end▁of▁sentence｜>"
)
END = re.compile(rf"((?:{ENDS})\s*)+\Z")
STRUCK_OUT = re.compile(r"(?<!\A)<s>[^<\[]*</s>")  # words, in HTML
MARK = re.compile(
    r"<\|\w+\|>|<｜[^｜<>]+｜>|<(?:bos|eos)>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|</?s>"
)


def without_end(side: Answered, chat: ChatForm | None = None) -> Answered:
    """An answer without the mark of an end after it, of whatever model: every answer gets an EOS."""
    text = side.response
    if text and text.rstrip().endswith(">"):
        words = max((found.end() for found in STRUCK_OUT.finditer(text)), default=0)
        text = text[:words] + END.sub("", text[words:])
    if chat is not None and chat.end and text and text.rstrip().endswith(chat.end):
        text = text.rstrip().removesuffix(chat.end)
    return side._replace(response=text)


def mark_in(side: Answered, chat: ChatForm | None) -> str | None:
    """The first mark of a chat in a prompt or an answer, other than those of `chat`."""
    own = frozenset[str]() if chat is None else chat.marks
    texts = [side.prompt] if isinstance(side.prompt, str) else [turn.text for turn in side.prompt]
    texts = [text for text in (*texts, side.response or "") if "<" in text or "[" in text]
    found = (mark for text in texts for mark in MARK.findall(STRUCK_OUT.sub("", text)))
    return next((mark for mark in found if mark not in own), None)


def written(side: Answered, chat: ChatForm | None, *, learned: bool = True) -> Answered:
    """A side as text: a conversation, or for a chat model a plain question, in its form.

    DropRow for a conversation that the template cannot write. A plain prompt that already has the form
    of a chat stays as it is, and so does its answer; a transcript is a conversation. Where no answer is
    `learned` from, the prompt is the one to sample from.
    """
    prompt, response = side.prompt, side.response
    if isinstance(prompt, str):
        if chat is None or not prompt.strip() or chat.is_written(prompt):
            return side
        whole = TRANSCRIPT.fullmatch(prompt)
        prompt = asked(transcribed(whole[1])) if whole else (Turn("user", prompt),)
    try:
        side = side._replace(turns=tuple(stripped(prompt)))
        if learned and response and response.strip():
            prompt, response, odd = answered_conversation(prompt, response, chat)
            return side._replace(prompt=prompt, response=response, odd=odd)
        return side._replace(prompt=conversation_prompt(prompt, chat))
    except Unwritable as error:
        raise DropRow(str(error)) from error


SYSTEM = ("system", "system_prompt")
# Columns that change a question: a row with one that its format does not read is dropped.
CONTEXT = (
    *SYSTEM, "prompt", "instruction", "input", "context", "history", "tools", "image", "images",
)  # fmt: skip
DIFFERS = "prompt differs"
# As tables and exports write that there is nothing.
NOTHING = ("", "[]", "{}", "null", "none", "nan")


def says_something(value: Any) -> bool:
    """Whether a column or a key of a message holds more than nothing, also as a text."""
    return value.strip().lower() not in NOTHING if isinstance(value, str) else bool(value)


@dataclass(frozen=True)
class Format:
    """One kind of row: its keys and the type of the last one's value, and what it holds."""

    name: str
    keys: tuple[str, ...]
    read: Callable[[Row], Content]
    more: tuple[str, ...] = ()  # keys that it also reads where they are there
    values: type | tuple[type, ...] = object

    def matches(self, row: Row) -> bool:
        return row.keys() >= {*self.keys} and isinstance(row[self.keys[-1]], self.values)

    def content(self, row: Row) -> Content:
        """What a row holds; its `answer` is the ground truth, unless the format has another one."""
        lost = [key for key in CONTEXT if key in row and key not in self.keys + self.more]
        if lost := [key for key in lost if says_something(row[key])]:
            raise DropRow(f"no place for {lost[0]!r}")
        content = self.read(row)
        if content.answer is None:
            content = without_question(row, content)._replace(answer=ground_truth(row))
        return content


# One side of a row, by its key.


def each(side: Callable[[Row, str], Answered], *keys: str) -> Callable[[Row], Content]:
    """What the rows hold whose answers, one or the two of a pair, are read alike."""
    return lambda row: Content([side(row, key) for key in keys])


def plain_side(row: Row, key: str) -> Answered:
    """Strings as they are: the project's own files, and TRL's "standard" preferences."""
    return Answered(text_of(row, "prompt"), text_of(row, key))


def without_question(row: Row, content: Content) -> Content:
    """Take the question off answers that all begin with it; DropRow where that may be an echo."""
    question = row.get("prompt", row.get("instruction"))
    if not isinstance(question, str) or not question.strip() or row.keys() & {*RECORDED}:
        return content  # recorded answers stay as they were sampled
    texts = [(side.response or "").lstrip() for side in content.sides]
    for head in (question.lstrip(), question.strip()):
        if any(texts) and all(text.startswith(head) for text in texts if text):
            if len(question.split()) == 1:
                raise DropRow("answers begin with the prompt, a single word")
            ends = [text[len(head) :] for text in texts]
            if content.sides[0].prompt != question:  # but in the template
                ends = [end.strip() for end in ends]
            pairs = zip(content.sides, ends, strict=True)
            return Content([side._replace(response=end) for side, end in pairs], repeated=True)
    if any(TRANSCRIPT.match(text) for text in texts):
        raise DropRow(DIFFERS)
    return content


def asked(turns: list[Turn]) -> tuple[Turn, ...]:
    """The conversation; DropRow where it asks nothing."""
    if not turns or turns[-1].role != "user":
        raise DropRow("prompt does not end with a user turn")
    if not turns[-1].text.strip():
        raise DropRow("empty prompt")
    return tuple(turns)


def alpaca_side(row: Row, key: str) -> Answered:
    """Alpaca style: instruction, input, output, and chosen and rejected in preference files."""
    more = text_of(row, "input") if row.get("input") else ""
    turn = Turn("user", instruction_text(text_of(row, "instruction"), more))
    return Answered(asked(joined(system_of(row), [turn])), text_of(row, key).strip())


HH_TURN = re.compile(r"\n\n(Human|Assistant):")
TRANSCRIPT = re.compile(r"(\s*Human:.*)\n\nAssistant:\s*", re.DOTALL)  # up to an answer


def hh_side(row: Row, key: str) -> Answered:
    """A transcript of HH-RLHF (Bai et al. 2022, arXiv:2204.05862), split at its last assistant turn.

    The transcripts have no separate prompt, and their answers may begin alike.
    """
    before, marker, answer = text_of(row, key).rpartition("\n\nAssistant:")
    if not marker or "\n\nHuman:" in answer:
        raise DropRow("no answer at the end")
    return Answered(asked(transcribed(before)), answer.strip())


def transcribed(text: str) -> list[Turn]:
    """The turns of a transcript before the answer."""
    opening, *pieces = HH_TURN.split("\n\n" + text.strip())
    if opening.strip():
        raise DropRow("text before the first turn")
    speakers = ("user" if speaker == "Human" else "assistant" for speaker in pieces[::2])
    return [Turn(*turn) for turn in zip(speakers, pieces[1::2], strict=True)]


# Lists of messages: TRL's "conversational" data, UltraFeedback binarized.

LEARNED = (
    "weight",
    "train",
    "training",
    "trainable",
    "loss",
)  # of a message or a row; 0 or false: not


def is_learned(marked: Row) -> bool:
    """Whether a message or a row may be learned: OpenAI's `weight`, Axolotl's `train` and the like."""
    return not any(str(marked.get(key)).lower() in ("0", "0.0", "false") for key in LEARNED)


MESSAGES = (list, dict)  # a conversation, or one message alone
TEXT_PARTS = ("text", "input_text", "output_text")
# Of a message:
MORE_THAN_TEXT = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")


def joined(opening: list[Turn], before: list[Turn]) -> list[Turn]:
    """One conversation of two parts, of which the second may hold the first one again.

    The first is its head or its end, or the second is the end of the first; the system turn may stand
    in either. A second part that starts with the assistant goes on where the first one ends.
    """
    heads = {turn for turn in (*opening[:1], *before[:1]) if turn.role == "system"}
    systems = [turn for turn in heads if turn.text]
    first, second = ([t for t in turns if t not in heads] for turns in (opening, before))
    if len(systems) > 1:
        raise DropRow(DIFFERS)
    if first in (second[: len(first)], second[-len(first) :]):
        return systems + second
    if second and second == first[-len(second) :]:
        return systems + first
    if not second or second[0].role == "assistant":
        return systems + first + second
    raise DropRow(DIFFERS)


def turns_of(row: Row, key: str) -> list[Turn]:
    """The messages under `key`: a list of {role, content}."""
    messages, turns = field(row, key), list[Turn]()
    for message in messages if isinstance(messages, list) else [messages]:
        role = str(message.get("role")).lower() if isinstance(message, dict) else None
        role = "system" if role == "developer" else role  # OpenAI's newer name
        if role not in HEADINGS:
            raise BadRow(
                f"{key!r} holds {message!r:.40}, expected messages by {', '.join(HEADINGS)} "
                "(data/README.md makes them of other layouts)"
            )
        if more := [key for key in MORE_THAN_TEXT if says_something(message.get(key))]:
            raise DropRow(f"{more[0]!r} in a message")
        turns.append(Turn(role, content_of(message).strip()))
    return turns


def recorded_turns(row: Row) -> tuple[Turn, ...] | None:
    """The conversation that a run has recorded beside a prompt; None without one."""
    return tuple(turns_of(row, TURNS)) if row.get(TURNS) else None


def content_of(message: Row) -> str:
    """The text of a message, or of its parts, one after the other; DropRow for a part of another kind."""
    if not isinstance(message.get("content"), list):
        return text_of(message, "content")
    texts = []
    for part in message["content"]:
        if not (isinstance(part, dict) and isinstance(part.get("type"), str)):
            raise BadRow(f"'content' holds {part!r:.40}, expected parts with a type")
        if part["type"] not in TEXT_PARTS:
            raise DropRow(f"{part['type']!r} in a message")
        texts.append(text_of(part, "text"))
    return "".join(texts)


def chat_side(row: Row, key: str) -> Answered:
    """The conversation under `key`, which may hold that of `prompt` again.

    Its last turn, which must be the assistant's, is the answer. After a prompt of messages a string is
    one, too.
    """
    if isinstance(row.get(key), str) and isinstance(row.get("prompt"), MESSAGES):
        return Answered(asked(opening_of(row)), text_of(row, key).strip())
    *before, last = turns_of(row, key) or [Turn("none", "")]
    if last.role != "assistant":
        raise DropRow("no answer at the end")
    said = row[key][-1] if isinstance(row[key], list) else row[key]
    return Answered(asked(joined(opening_of(row), before)), last.text, is_learned(said))


def opening_of(row: Row) -> list[Turn]:
    """The turns of `prompt`, a list or one user's string, after the system turn of another column."""
    if isinstance(row.get("prompt"), MESSAGES):
        turns = turns_of(row, "prompt")
    else:
        turns = [Turn("user", text_of(row, "prompt").strip())] if "prompt" in row else []
    return joined(system_of(row), turns)


def system_of(row: Row) -> list[Turn]:
    """The system turn of a row that has one in a column of its own."""
    return [Turn("system", text_of(row, key).strip()) for key in SYSTEM if row.get(key)]


CALCULATOR = re.compile(r"<<[^<>]*>>")
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def gsm8k(row: Row) -> Content:
    """GSM8K (Cobbe et al. 2021, arXiv:2110.14168): a solution without its calculator marks.

    The ground truth is its final number without commas.
    """
    prompt = asked(joined(system_of(row), [Turn("user", text_of(row, "question"))]))
    answer = text_of(row, "answer") if isinstance(field(row, "answer"), str) else ""
    solution, marker, final = answer.rpartition("####")
    number = final.strip().replace(",", "")
    if not marker or not NUMBER.fullmatch(number):
        raise BadRow(
            "no '#### ' and number end this GSM8K 'answer' (else rename 'question' to 'prompt')"
        )
    response = f"{CALCULATOR.sub('', solution).strip()}\n#### {number}".lstrip()
    return Content([Answered(prompt, response)], number)


def question(row: Row) -> Content:
    """A prompt alone, or with the ground truth that a rule needs, which is its answer as well."""
    messages, truth = isinstance(row.get("prompt"), MESSAGES), ground_truth(row)
    prompt = asked(opening_of(row)) if messages else text_of(row, "prompt")
    return Content([Answered(prompt, truth if isinstance(truth, str) else None)], truth)


def ground_truth(row: Row) -> Any:
    """A row's `answer`: a number as text, which a rule can compare, any other value as it is."""
    value = row.get("answer")
    if type(value) in (int, float):
        return str(value)
    return text_of(row, "answer") if isinstance(value, str) else value


def recorded_sides(row: Row) -> dict[str, Any]:
    """Those of the four keys that the row has, and which answer a person chose, the first or the second.

    BadRow for a value of another kind.
    """
    found = {key: row[key] for key in RECORDED if key in row}
    for key, value in found.items():
        ids = value if isinstance(value, list) else []
        tokens = ids and all(type(i) is int and i >= 0 for i in ids)
        if not (isinstance(value, bool) if key.endswith("ended") else tokens):
            raise BadRow(
                f"{key!r} is {value!r:.40}, expected true or false, of tokens a list of ids"
            )
    if row.get("verdict") in ("first", "second"):
        found["verdict"] = row["verdict"]
    return found


# In the name of a column that rates an answer: chosen-rating, scoreChosen.
RATED = re.compile("score|rating|reward|grade")
AMOUNT = re.compile(r"([+-]?(?:\d+[.,]?\d*|[.,]\d+)(?:e[+-]?\d+)?)%?(?:\s*/\s*([1-9]\d*))?", re.I)


@lru_cache(64)
def ratings(columns: tuple[str, ...]) -> dict[str, str]:
    """The columns that rate the chosen answer, each with that of the rejected one."""
    names = {key.lower(): key for key in columns}
    pairs = {key: names.get(low.replace("chosen", "rejected"), key) for low, key in names.items()}
    return {a: b for a, b in pairs.items() if a != b and RATED.search(a.lower())}


def lead_of(row: Row) -> float | None:
    """How far the chosen answer is rated above the other one; NaN for ratings that are no numbers.

    None without two ratings. The first two numbers count; 4,5 and 9/10 are some.
    """
    both = [(row[a], row[b]) for a, b in ratings(tuple(row)).items()]
    leads = [amount(a) - amount(b) for a, b in both if a not in (None, "") and b not in (None, "")]
    return next((lead for lead in leads if lead == lead), leads[0] if leads else None)


def amount(value: object) -> float:
    """A number, or a text that is one; NaN for anything else."""
    found = AMOUNT.fullmatch(str(value).strip())
    return float(found[1].replace(",", ".")) / int(found[2] or 1) if found else math.nan


PAIR = ("chosen", "rejected")
OWN = (*RECORDED, TURNS, "verdict", "repeat")
OWN_PAIRS = Format("preferences", ("prompt", *PAIR), each(plain_side, *PAIR), OWN)
CHAT, INPUT = ("prompt", *SYSTEM), ("input", *SYSTEM)

# The first match counts, so the more particular formats come first.
FORMATS = (
    Format("GSM8K", ("question", "answer"), gsm8k, SYSTEM),
    Format("Alpaca preferences", ("instruction", *PAIR), each(alpaca_side, *PAIR), INPUT),
    Format("Alpaca", ("instruction", "output"), each(alpaca_side, "output"), INPUT),
    Format("conversational preferences", PAIR, each(chat_side, *PAIR), CHAT, MESSAGES),
    Format(
        "conversational preferences", (*PAIR, "prompt"), each(chat_side, *PAIR), SYSTEM, MESSAGES
    ),
    OWN_PAIRS,
    Format("HH-RLHF", PAIR, each(hh_side, *PAIR), (), str),
    Format("conversations", ("messages",), each(chat_side, "messages"), CHAT, list),
    *(
        Format(f"{key}s", keys, each(chat_side, key), SYSTEM, MESSAGES)
        for key in ("completion", "response")
        for keys in (("prompt", key), (key, "prompt"))
    ),
    Format("prompt and completion", ("prompt", "completion"), each(plain_side, "completion")),
    Format("prompt and response", ("prompt", "response"), each(plain_side, "response")),
    Format("prompts", ("prompt",), question, ("answer",)),
)
