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
from functools import lru_cache, partial
from typing import Any, NamedTuple

from data.files.rows import BadRow, Row, field, text_of
from data.records import RECORDED, SPLIT_KEY, TURNS
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

UNANSWERED = "no answer at the end"


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
    tied: bool = False  # neither of the two is the better one
    truth: str = "answer"  # the column that holds the ground truth


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


def says_something(value: object) -> bool:
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
    holds: str = ""  # what the last value, a text, has in it

    def matches(self, row: Row) -> bool:
        last = row.get(self.keys[-1])
        fits = row.keys() >= {*self.keys} and isinstance(last, self.values)
        return fits and (not self.holds or self.holds in str(last))

    def content(self, row: Row) -> Content:
        """What a row holds; its `answer` is the ground truth, unless the format has another one."""
        lost = [key for key in CONTEXT if key in row and key not in self.keys + self.more]
        if lost := [key for key in lost if says_something(row[key])]:
            raise DropRow(f"no place for {lost[0]!r}")
        content = self.read(row)
        if content.answer is None:
            name, truth = ground_truth(row)
            content = without_question(row, content)._replace(answer=truth, truth=name)
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
            sides = [side._replace(response=end) for side, end in pairs]
            return content._replace(sides=sides, repeated=True)
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
    """Alpaca style: instruction, input, output, and chosen and rejected in preference files.

    Dolly calls the input `context`.
    """
    more = next((text_of(row, key) for key in ("input", "context") if row.get(key)), "")
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

# Of a message or a row; 0 or false: it is not learned.
LEARNED = ("weight", "train", "training", "trainable", "loss")


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


# Other names: OpenAI's newer one of the system, and those of ShareGPT.
ROLES = {"developer": "system", "human": "user", "gpt": "assistant"}


def turns_of(row: Row, key: str) -> list[Turn]:
    """The messages under `key`: a list of {role, content}, or of ShareGPT's {from, value}."""
    messages, turns = field(row, key), list[Turn]()
    for message in messages if isinstance(messages, list) else [messages]:
        named = message if isinstance(message, dict) else {}
        role = str(named.get("role", named.get("from"))).lower()
        role = ROLES.get(role, role)
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
        return text_of(message, "value" if "from" in message else "content")
    texts = []
    for part in message["content"]:
        if not (isinstance(part, dict) and isinstance(part.get("type"), str)):
            raise BadRow(f"'content' holds {part!r:.40}, expected parts with a type")
        if part["type"] not in TEXT_PARTS:
            raise DropRow(f"{part['type']!r} in a message")
        texts.append(text_of(part, "text"))
    return "".join(texts)


def chat_side(row: Row, key: str, asks: str = "") -> Answered:
    """The conversation under `key`, which may hold that of `prompt`, or of the column `asks`, again.

    Its last turn, which must be the assistant's, is the answer. After messages a string is one, too, and
    in a layout that has a name for its question, `asks`.
    """
    as_turns, asks = bool(asks) or isinstance(row.get("prompt"), MESSAGES), asks or "prompt"
    if isinstance(row.get(key), str) and as_turns:
        return Answered(asked(opening_of(row, asks)), text_of(row, key).strip())
    *before, last = turns_of(row, key) or [Turn("none", "")]
    if last.role != "assistant":
        raise DropRow(UNANSWERED)
    said = row[key][-1] if isinstance(row[key], list) else row[key]
    return Answered(asked(joined(opening_of(row, asks), before)), last.text, is_learned(said))


def talk_side(row: Row, key: str) -> Answered:
    """A conversation that ends with its answer, or with the user: then it is a prompt."""
    turns = turns_of(row, key)
    if turns and turns[-1].role == "user":
        return Answered(asked(joined(opening_of(row), turns)), None)
    return chat_side(row, key)


def opening_of(row: Row, asks: str = "prompt") -> list[Turn]:
    """The turns of `asks`, a list or one user's string, after the system turn of another column."""
    if isinstance(row.get(asks), MESSAGES):
        turns = turns_of(row, asks)
    else:
        turns = [Turn("user", text_of(row, asks).strip())] if asks in row else []
    return joined(system_of(row), turns)


def system_of(row: Row) -> list[Turn]:
    """The system turn of a row that has one in a column of its own."""
    return [Turn("system", text_of(row, key).strip()) for key in SYSTEM if row.get(key)]


# Two answers, and a column that says which one is better.


def judged(
    name: str, asks: str, answers: tuple[str, str], by: str, verdicts: tuple[str, str, str]
) -> Format:
    """A format whose column `by` says which of two answers is chosen; a tie is a prompt, and no pair."""

    def read(row: Row) -> Content:
        """Both sides, the better one first."""
        said = str(field(row, by)).strip().lower().removesuffix(".0")
        better = next((i for i, words in enumerate(verdicts) if said in words.split(", ")), None)
        if better is None or not said:
            raise BadRow(f"{by!r} is {said!r:.40}, expected {', '.join(filter(None, verdicts))}")
        sides = [chat_side(row, key, asks) for key in answers]
        return Content(sides[::-1] if better == 1 else sides, tied=better == 2)

    return Format(name, (*answers, by, *filter(None, [asks])), read, SYSTEM)


def rated_answers(row: Row) -> Content:
    """UltraFeedback (Cui et al. 2023, arXiv:2310.01377): the best of the answers, and the worst."""
    given = field(row, "completions")
    if not (isinstance(given, list) and all(isinstance(each, dict) for each in given)):
        raise BadRow(f"'completions' is {given!r:.40}, expected a list of rated answers")
    rated = [(amount(field(each, "overall_score")), text_of(each, "response")) for each in given]
    rated = sorted((each for each in rated if each[0] == each[0]), key=lambda each: each[0])
    if len(rated) < 2:
        raise DropRow("fewer than two rated answers")
    prompt = asked(opening_of(row, "instruction"))
    sides = [Answered(prompt, text.strip()) for _, text in (rated[-1], rated[0])]
    return Content(sides, tied=rated[0][0] == rated[-1][0])


TRUTHS = ("answer", "ground_truth", "solution", "reward_model")  # columns, the first one counts
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


def question(row: Row, asks: str = "prompt") -> Content:
    """A prompt alone, or with the ground truth that a rule needs, which is its answer as well.

    The answer to a problem of MATH is its solution, which shows the way.
    """
    verbatim = asks == "prompt" and not isinstance(row.get(asks), MESSAGES)
    prompt = text_of(row, asks) if verbatim else asked(opening_of(row, asks))
    name, truth = ground_truth(row)
    learned = row["solution"] if asks == "problem" and row.get("solution") else truth
    side = Answered(prompt, learned if isinstance(learned, str) else None)
    return Content([side], truth, truth=name)


def ground_truth(row: Row) -> tuple[str, Any]:
    """A row's `answer`, or else what others call it, and that name. A number is text, for a rule.

    `reward_model` is verl's. A solution of several lines counts if it ends in a box or after "####", for
    no answer could equal the whole of it.
    """
    inner = row.get("reward_model")
    values = {name: row.get(name) for name in TRUTHS}
    values["reward_model"] = inner.get("ground_truth") if isinstance(inner, dict) else None
    way = str(values["solution"]).strip()
    if "\n" in way and "####" not in way and "boxed" not in way:
        values["solution"] = None
    name = next((name for name, value in values.items() if value is not None), "answer")
    value = values[name]
    if type(value) in (int, float):
        return name, str(value)
    return name, text_of(values, name) if isinstance(value, str) else value


def label_of(row: Row) -> bool | None:
    """Whether the answer of a row is labelled as a good one; None without a label."""
    said = next((str(row[key]).lower() for key in LABELS if row.get(key) is not None), "")
    return {"true": True, "1": True, "false": False, "0": False}.get(said)


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
    if isinstance(each := row.get("rating"), list) and len(each) == 2 and each[0] == each[1]:
        return 0.0  # argilla's, in the order of the models: a tie is all that it tells
    leads = [amount(a) - amount(b) for a, b in both if a not in (None, "") and b not in (None, "")]
    return next((lead for lead in leads if lead == lead), leads[0] if leads else None)


def amount(value: object) -> float:
    """A number, or a text that is one; NaN for anything else."""
    found = AMOUNT.fullmatch(str(value).strip())
    return float(found[1].replace(",", ".")) / int(found[2] or 1) if found else math.nan


PAIR = ("chosen", "rejected")
LABELS = ("label", "kto_tag")  # true: a good answer, false: a bad one
OWN = (*RECORDED, TURNS, "verdict", "repeat")
OWN_PAIRS = Format("preferences", ("prompt", *PAIR), each(plain_side, *PAIR), OWN)
TO_QUESTION = partial(chat_side, asks="question")
CHAT, INPUT, DOLLY = ("prompt", *SYSTEM), ("input", *SYSTEM), ("context", "input", *SYSTEM)

# Name, question, answers, and the column that judges: what says that the first one is better, that the
# second is, and that neither is.
JUDGED = (
    ("PKU-SafeRLHF", "prompt", ("response_0", "response_1"), "better_response_id", ("0", "1", "")),
    ("HelpSteer3", "context", ("response1", "response2"), "overall_preference",
     ("-3, -2, -1", "1, 2, 3", "0")),
    ("SHP", "history", ("human_ref_A", "human_ref_B"), "labels", ("1", "0", "")),
    ("LMArena", "", ("conversation_a", "conversation_b"), "winner",
     ("model_a", "model_b", "tie, tie (bothbad), both_bad")),
)  # fmt: skip


def pairs_beside(asks: str, kinds: type | tuple[type, ...]) -> Format:
    """Both answers, and what is asked in a column of another name."""
    sides = each(partial(chat_side, asks=asks), *PAIR)
    return Format(f"{asks} and pairs", (*PAIR, asks), sides, SYSTEM, kinds)


# The first match counts, so the more particular formats come first.
FORMATS = (
    *(judged(*layout) for layout in JUDGED),
    Format("UltraFeedback", ("instruction", "completions"), rated_answers, SYSTEM, list),
    Format("GSM8K", ("question", "answer"), gsm8k, SYSTEM, str, "####"),
    Format("Alpaca preferences", ("instruction", *PAIR), each(alpaca_side, *PAIR), INPUT),
    Format("Alpaca", ("instruction", "output"), each(alpaca_side, "output"), INPUT),
    Format("Dolly", ("instruction", "response"), each(alpaca_side, "response"), DOLLY),
    pairs_beside("conversations", MESSAGES),
    Format("conversational preferences", PAIR, each(chat_side, *PAIR), CHAT, MESSAGES),
    Format(
        "conversational preferences", (*PAIR, "prompt"), each(chat_side, *PAIR), SYSTEM, MESSAGES
    ),
    OWN_PAIRS,
    pairs_beside("question", str),
    pairs_beside("input", str),
    Format("HH-RLHF", PAIR, each(hh_side, *PAIR), (), str),
    *(
        Format("conversations", (key,), each(talk_side, key), CHAT, list)
        for key in ("messages", "conversations")
    ),
    *(
        Format(f"{key}s", keys, each(chat_side, key), SYSTEM, MESSAGES)
        for key in ("completion", "response")
        for keys in (("prompt", key), (key, "prompt"))
    ),
    Format("prompt and completion", ("prompt", "completion"), each(plain_side, "completion")),
    Format("prompt and response", ("prompt", "response"), each(plain_side, "response")),
    Format("question, response", ("question", "response"), each(TO_QUESTION, "response"), SYSTEM),
    Format("prompts", ("prompt",), question, TRUTHS),
    *(
        Format(f"{asks}s", (asks,), partial(question, asks=asks), TRUTHS + SYSTEM, str)
        for asks in ("question", "problem")
    ),
)

# Layouts that no line above reads: the name, its keys, and in Python what a `row` of it becomes. More of
# them are in data/README.md.
OTHERS = (
    ("Countdown", {"nums", "target"},
     "{**row, 'prompt': 'Use each of {nums} once, with + - * / and brackets, to make {target}.\\n'"
     ".format(**row)}"),
    ("OpenAI's preferences", {"input", "preferred_output", "non_preferred_output"},
     "{'prompt': row['input']['messages'], 'chosen': row['preferred_output'], 'rejected': "
     "row['non_preferred_output']}"),
)  # fmt: skip
LINES = """{} rows are another layout: these lines make mine.jsonl of theirs.jsonl
python -c "
import json
for row in map(json.loads, open('theirs.jsonl', encoding='utf-8')): print(json.dumps({}))" > mine.jsonl"""
ELSEWHERE = "data/README.md has those that do"


def converter(row: Row) -> str:
    """What makes rows of ours of such a row: three lines, or the place to look."""
    found = (LINES.format(name, make) for name, keys, make in OTHERS if keys <= row.keys())
    return next(found, ELSEWHERE)


# What --columns may call a column.
FIELDS = sorted(
    {"text", "verdict", SPLIT_KEY, *LABELS, *LEARNED, *TRUTHS, *SYSTEM}.union(
        *({*kind.keys, *kind.more} for kind in FORMATS)
    )
)
