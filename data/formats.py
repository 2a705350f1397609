"""The kinds of rows that public preference and instruction data come in, and how each becomes text.

A `Format` is recognised by the keys of a file's first row. Where it uses the project's template (see
templates.py) the white space around an answer is removed; plain strings stay verbatim.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from data.templates import Role, Turn, conversation_prompt, instruction_text, tldr_prompt

Row = Mapping[str, Any]


class BadRow(ValueError):
    """A row breaks its own format; the message says how."""


class DropRow(Exception):
    """A well-formed row that cannot be used; the message is the reason that readers count."""


class WrongFormat(ValueError):
    """Rows of this format do not hold what was asked for; the message names formats that do."""


class Answered(NamedTuple):
    """A prompt and one answer to it."""

    prompt: str
    response: str


class Pair(NamedTuple):
    """The two sides of a comparison. Their prompts can differ: in some data they do."""

    chosen: Answered
    rejected: Answered
    scores: Mapping[str, float] = {}  # score_chosen, score_rejected where named otherwise


@dataclass(frozen=True)
class Format:
    """One kind of row: its keys, and a function for each thing that it holds."""

    name: str
    keys: str
    matches: Callable[[Row], bool]
    pair: Callable[[Row], Pair] | None = None
    answered: Callable[[Row], Answered] | None = None
    question: Callable[[Row], tuple[str, str | None]] | None = None

    def read_pair(self, row: Row) -> Pair:
        if self.pair is None:
            known = "; ".join(kind.keys for kind in FORMATS if kind.pair)
            raise WrongFormat(f"{self.name} rows hold no preference pairs; these would: {known}")
        return self.pair(row)

    def read_answered(self, row: Row) -> Answered:
        """A prompt with the answer to learn from: the chosen one of a pair."""
        if self.pair is not None:
            return self.pair(row).chosen
        if self.answered is None:
            known = "; ".join(kind.keys for kind in FORMATS if kind.pair or kind.answered)
            raise WrongFormat(f"{self.name} rows hold no answers; these would: {known}")
        return self.answered(row)

    def read_question(self, row: Row) -> tuple[str, str | None]:
        if self.question is not None:
            return self.question(row)
        return self.read_answered(row).prompt, None


def kind_of(value: object) -> str:
    """The JSON name of a value's type, for messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


def listed(row: Row) -> str:
    """The first keys of a row, for messages, and how many more there are."""
    names = [key[:40] if key and key.isprintable() else repr(key[:40]) for key in list(row)[:10]]
    more = f" and {len(row) - 10:,} more" if len(row) > 10 else ""
    return ", ".join(names) + more or "none"


def field(row: Row, key: str) -> Any:
    """The value of `key`; BadRow when the row lacks it."""
    if key not in row:
        raise BadRow(f"key {key!r} is missing (found: {listed(row)})")
    return row[key]


def text_of(row: Row, key: str) -> str:
    """The string under `key`; BadRow when it is something else or cannot be written as UTF-8."""
    value = field(row, key)
    if not isinstance(value, str):
        raise BadRow(f"{key!r} is {kind_of(value)}, expected a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow(f"{key!r} holds half of a surrogate pair, which is no character") from None
    return value


def optional_text(row: Row, key: str) -> str:
    """The string under `key`, or "" where the row has none or null."""
    return "" if row.get(key) is None else text_of(row, key)


CHAT_ROLES: dict[Any, Role] = {"system": "system", "user": "user", "assistant": "assistant"}


def turns_of(row: Row, key: str) -> list[Turn]:
    """The messages under `key`: a list of {role, content} with the roles the template knows."""
    return read_turns(key, field(row, key), "role", "content", CHAT_ROLES)


def read_turns(
    key: str, messages: object, speaker: str, text: str, roles: Mapping[Any, Role]
) -> list[Turn]:
    """The turns of the list under `key`, whose messages hold a `speaker` of `roles` and a `text`."""
    if not isinstance(messages, list):
        raise BadRow(f"{key!r} is {kind_of(messages)}, expected a list of messages")
    turns = []
    for message in messages:
        if not isinstance(message, dict) or not {speaker, text} <= message.keys():
            raise BadRow(f"{key!r} holds a message without {speaker!r} and {text!r}")
        if message[speaker] not in list(roles):
            known = ", ".join(roles)
            raise BadRow(f"{key!r} has the {speaker} {message[speaker]!r}, expected one of {known}")
        turns.append(Turn(roles[message[speaker]], text_of(message, text)))
    return turns


def is_list(row: Row, key: str) -> bool:
    return isinstance(row.get(key), list)


def asked(turns: list[Turn]) -> str:
    """The rendered prompt; drops conversations that ask for nothing."""
    if not turns or turns[-1].role != "user":
        raise DropRow("prompt does not end with a user turn")
    if not turns[-1].text.strip():
        raise DropRow("empty prompt")
    return conversation_prompt(turns)


def asked_once(text: str) -> str:
    return asked([Turn("user", text)])


def both(side: Callable[[Row, str], Answered]) -> Callable[[Row], Pair]:
    """The pair of a row whose two sides are read alike, by their keys."""
    return lambda row: Pair(side(row, "chosen"), side(row, "rejected"))


def answered_last(turns: list[Turn]) -> Answered:
    """A conversation split before its last turn, which must be the assistant's."""
    if not turns or turns[-1].role != "assistant":
        raise DropRow("no answer at the end")
    return Answered(asked(turns[:-1]), turns[-1].text.strip())


# Alpaca style: instruction, input, output, and chosen and rejected in preference files.


def alpaca_prompt(row: Row) -> str:
    return asked_once(instruction_text(text_of(row, "instruction"), optional_text(row, "input")))


def alpaca_pair(row: Row) -> Pair:
    prompt = alpaca_prompt(row)
    chosen, rejected = text_of(row, "chosen").strip(), text_of(row, "rejected").strip()
    return Pair(Answered(prompt, chosen), Answered(prompt, rejected))


def alpaca_answered(row: Row) -> Answered:
    return Answered(alpaca_prompt(row), text_of(row, "output").strip())


# HH-RLHF (Bai et al. 2022, arXiv:2204.05862): two whole transcripts and no prompt.

HH_TURN = re.compile(r"\n\n(Human|Assistant):")


def hh_side(row: Row, key: str) -> Answered:
    """Split a transcript at its last assistant turn: answers may begin alike."""
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


# Two answers by number (PKU-SafeRLHF), many with scores (UltraFeedback before it was made binary).


def numbered_pair(row: Row) -> Pair:
    better, prompt = field(row, "better_response_id"), asked_once(text_of(row, "prompt"))
    if type(better) is not int or better not in (0, 1):
        raise BadRow(f"'better_response_id' is {better!r}, expected 0 or 1")
    sides = [Answered(prompt, text_of(row, f"response_{number}").strip()) for number in (0, 1)]
    return Pair(sides[better], sides[1 - better])


def ultrafeedback_pair(row: Row) -> Pair:
    """The best and the worst completion, by the mean of their aspects or else the overall score."""
    completions, prompt = field(row, "completions"), asked_once(text_of(row, "instruction"))
    if not isinstance(completions, list) or not all(isinstance(c, dict) for c in completions):
        raise BadRow("'completions' is not a list of objects")
    scored = [(completion_score(c), text_of(c, "response").strip()) for c in completions]
    if len(scored) < 2:
        raise DropRow("fewer than two answers")
    best, worst = max(scored, key=lambda s: s[0]), min(scored, key=lambda s: s[0])
    scores = {"score_chosen": best[0], "score_rejected": worst[0]}
    return Pair(Answered(prompt, best[1]), Answered(prompt, worst[1]), scores)


def completion_score(completion: Row) -> float:
    score = completion.get("fine-grained_score", completion.get("overall_score"))
    return finite("a completion's score", score)


def finite(what: str, value: object) -> float:
    """A finite number as float; BadRow for anything else."""
    if type(value) not in (int, float):
        raise BadRow(f"{what} is {kind_of(value)}, expected a number")
    if not abs(cast(float, value)) < sys.float_info.max:
        raise BadRow(f"{what} is {str(value)[:20]}, expected a finite number")
    return float(cast(float, value))


# ShareGPT: turns of {from, value}; with preferences the last turn stands in chosen and rejected.

SHAREGPT_ROLES: dict[Any, Role] = {"human": "user", "gpt": "assistant", **CHAT_ROLES}


def sharegpt_turns(messages: object) -> list[Turn]:
    return read_turns("conversations", messages, "from", "value", SHAREGPT_ROLES)


def sharegpt_opening(row: Row) -> list[Turn]:
    system = optional_text(row, "system")
    return [Turn("system", system)] * bool(system) + sharegpt_turns(field(row, "conversations"))


def sharegpt_pair(row: Row) -> Pair:
    opening = sharegpt_opening(row)
    chosen, rejected = (
        answered_last(opening + sharegpt_turns([row[key]])) for key in ("chosen", "rejected")
    )
    return Pair(chosen, rejected)


# Plain strings (the project's own files, and TRL's "standard" types).


def plain_answered(row: Row, key: str) -> Answered:
    return Answered(text_of(row, "prompt"), text_of(row, key))


plain_pair = both(plain_answered)


def shared_prompt(chosen: str, rejected: str) -> str:
    """The prompt that two strings share when a row does not say where it ends: no rule is safe here.

    Their common beginning, cut back to its last line break (which stays with the prompt) or, without
    one, to its last space (which opens the answers), because answers may begin with the same words.
    """
    common = os.path.commonprefix([chosen, rejected])
    line_break = common.rfind("\n")
    if line_break >= 0:
        return common[: line_break + 1]
    return common[: max(common.rfind(" "), 0)]


def implicit_pair(row: Row) -> Pair:
    chosen, rejected = text_of(row, "chosen"), text_of(row, "rejected")
    if chosen == rejected:
        raise DropRow("chosen equals rejected")
    prompt = shared_prompt(chosen, rejected)
    start = len(prompt)
    return Pair(Answered(prompt, chosen[start:]), Answered(prompt, rejected[start:]))


# What a reward model's run records beside the text of a pair (reward_model/pairs.py).

RECORDED = ("chosen_ended", "rejected_ended", "chosen_tokens", "rejected_tokens")


def recorded_sides(row: Row) -> dict[str, Any]:
    """Those of the four keys that the row has: whether an answer ended, and its token ids."""
    found = {key: row[key] for key in RECORDED if key in row}
    for key, value in found.items():
        if key.endswith("ended") and not isinstance(value, bool):
            raise BadRow(f"{key!r} is {kind_of(value)}, expected true or false")
        ids = value if isinstance(value, list) else []
        if key.endswith("tokens") and not (ids and all(type(i) is int and i >= 0 for i in ids)):
            raise BadRow(f"{key!r} is not a list of token ids, whole numbers from 0, at least one")
    return found


# Lists of messages (TRL's "conversational" types, UltraFeedback binarized).


def chat_side(row: Row, key: str) -> Answered:
    """The conversation under `key`, preceded by `prompt` unless it holds the prompt already.

    UltraFeedback has it as a string and again as a user turn inside the lists.
    """
    turns, opening = turns_of(row, key), opening_of(row)
    if is_list(row, "prompt"):
        repeated = turns[: len(opening)] == opening
    else:
        repeated = bool(turns) and turns[0].role != "assistant"
    return answered_last(turns if repeated else opening + turns)


def opening_of(row: Row) -> list[Turn]:
    """The turns of `prompt`, a list or one user's string; none where the row has no `prompt`."""
    if "prompt" not in row:
        return []
    if is_list(row, "prompt"):
        return turns_of(row, "prompt")
    return [Turn("user", text_of(row, "prompt"))]


def completion_answered(row: Row) -> Answered:
    """TRL's prompt and completion; answers labelled as bad ones are not for learning from."""
    label = row.get("label")
    if label not in (None, 0, 1):  # False and True, too
        raise BadRow(f"'label' is {label!r:.40}, expected true or false")
    if label == 0:
        raise DropRow("label is false")
    if is_list(row, "completion"):
        return chat_side(row, "completion")
    return plain_answered(row, "completion")


# TL;DR (Stiennon et al. 2020, arXiv:2009.01325).


def tldr_side(post: Row, summary: str) -> Answered:
    if post.get("post") is None:
        raise DropRow("not a Reddit post")
    if not text_of(post, "post").strip():
        raise DropRow("empty prompt")
    subreddit, title = text_of(post, "subreddit"), text_of(post, "title")
    answer = summary.strip()
    return Answered(tldr_prompt(subreddit, title, post["post"]), f" {answer}" if answer else "")


def tldr_pair(row: Row) -> Pair:
    """{info: a post, summaries: [{text}, {text}], choice: 0 or 1, the better one} as a pair."""
    info, summaries, choice = (field(row, key) for key in ("info", "summaries", "choice"))
    if not isinstance(info, dict):
        raise BadRow(f"'info' is {kind_of(info)}, expected an object")
    two = isinstance(summaries, list) and len(summaries) == 2
    if not two or not all(isinstance(summary, dict) for summary in summaries):
        raise BadRow("'summaries' is not a list of two objects")
    if type(choice) is not int or choice not in (0, 1):
        raise BadRow(f"'choice' is {choice!r}, expected 0 or 1")
    sides = [tldr_side(info, text_of(summary, "text")) for summary in summaries]
    return Pair(sides[choice], sides[1 - choice])


def tldr_answered(row: Row) -> Answered:
    return tldr_side(row, text_of(row, "summary"))


# GSM8K (Cobbe et al. 2021, arXiv:2110.14168).

CALCULATOR = re.compile(r"<<[^<>]*>>")
NUMBER = re.compile(r"-?\d+(\.\d+)?")


def gsm8k_parts(row: Row) -> tuple[str, str, str]:
    """Prompt, worked solution without calculator marks, and final number without commas."""
    prompt = asked_once(text_of(row, "question"))
    solution, marker, final = text_of(row, "answer").rpartition("####")
    number = final.strip().replace(",", "")
    if not marker or not NUMBER.fullmatch(number):
        raise BadRow("'answer' does not end with '#### ' and a number")
    return prompt, CALCULATOR.sub("", solution).strip(), number


def gsm8k_answered(row: Row) -> Answered:
    prompt, solution, number = gsm8k_parts(row)
    return Answered(prompt, f"{solution}\n#### {number}".lstrip())


def gsm8k_question(row: Row) -> tuple[str, str]:
    prompt, _, number = gsm8k_parts(row)
    return prompt, number


# Prompts alone, with the ground truth where a rule needs one.


def own_answer(row: Row) -> str:
    value = row["answer"]
    return str(value) if type(value) is int else text_of(row, "answer")


def own_question(row: Row) -> tuple[str, str | None]:
    prompt = asked(turns_of(row, "prompt")) if is_list(row, "prompt") else text_of(row, "prompt")
    return prompt, own_answer(row) if row.get("answer") is not None else None


def own_answered(row: Row) -> Answered:
    field(row, "answer")
    return Answered(own_question(row)[0], own_answer(row))


def keyed(name: str, keys: str, **reads: Callable[[Row], Any]) -> Format:
    """The format of the rows that have all of `keys`, which a plus sign separates."""
    needed = set(keys.split(" + "))
    return Format(name, keys, lambda row: needed <= row.keys(), **reads)


def is_hh(row: Row) -> bool:
    transcript = row.get("chosen")
    return isinstance(transcript, str) and "\n\nAssistant:" in transcript and "rejected" in row


# The first match counts, so the more particular formats come first.
FORMATS = (
    keyed("ShareGPT preferences", "conversations + chosen + rejected", pair=sharegpt_pair),
    keyed("ShareGPT", "conversations", answered=lambda row: answered_last(sharegpt_opening(row))),
    keyed("UltraFeedback", "instruction + completions", pair=ultrafeedback_pair),
    keyed(
        "numbered preferences",
        "prompt + response_0 + response_1 + better_response_id",
        pair=numbered_pair,
    ),
    keyed("TL;DR comparisons", "info + summaries + choice", pair=tldr_pair),
    keyed("TL;DR", "subreddit + title + post + summary", answered=tldr_answered),
    keyed("GSM8K", "question + answer", answered=gsm8k_answered, question=gsm8k_question),
    keyed("Alpaca preferences", "instruction + chosen + rejected", pair=alpaca_pair),
    keyed("Alpaca", "instruction + output", answered=alpaca_answered),
    Format(
        "conversational preferences",
        "chosen + rejected as message lists",
        lambda row: is_list(row, "chosen") and is_list(row, "rejected"),
        pair=both(chat_side),
    ),
    keyed("preferences", "prompt + chosen + rejected", pair=plain_pair),
    Format("HH-RLHF", "chosen + rejected as transcripts", is_hh, pair=both(hh_side)),
    keyed("preferences with an implicit prompt", "chosen + rejected", pair=implicit_pair),
    keyed("prompt and completion", "prompt + completion", answered=completion_answered),
    keyed(
        "prompt and response",
        "prompt + response",
        answered=lambda row: plain_answered(row, "response"),
    ),
    keyed("messages", "messages", answered=lambda row: answered_last(turns_of(row, "messages"))),
    keyed("prompt and answer", "prompt + answer", answered=own_answered, question=own_question),
    keyed("prompts", "prompt", question=own_question),
)
