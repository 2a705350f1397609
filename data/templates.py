"""How an instruction or a conversation becomes a prompt: in the model's own form of a chat, or in ours.

A published chat model brings a template in Jinja (`ChatForm`). Ours, for all other models:

    ### System:            only where the conversation has one
    {system}

    ### Instruction:
    {user}

    ### Response:
    {earlier answer}       with the turn after it, once for every earlier exchange

    ### Instruction:
    {user}

    ### Response:

The headings are those of Stanford Alpaca (Taori et al. 2023) without its opening sentence. A prompt
ends with the line break after its last heading, and the answer starts right there, with nothing
between them. Earlier answers end at a blank line, only the last one ends with EOS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.errors import UserError, first_line

if TYPE_CHECKING:
    import jinja2

HEADINGS = {"system": "### System:\n", "user": "### Instruction:\n", "assistant": "### Response:\n"}


class Turn(NamedTuple):
    role: str  # system, user or assistant
    text: str


def messages_of(turns: Iterable[Turn]) -> list[dict[str, str]]:
    """Turns as everyone's messages, in JSON too."""
    return [{"role": turn.role, "content": turn.text} for turn in turns]


class Written(NamedTuple):
    """A prompt and an answer to learn from, in a form of a chat; `odd` says how that form differs."""

    prompt: str
    answer: str
    odd: str = ""


class Unwritable(UserError):
    """A conversation that a model's template cannot write; the message says why."""


class ChatForm:
    """A model's own form of a chat: its template, rendered as transformers' apply_chat_template does.

    `tokens` are the special tokens that the template may name, such as bos_token; `specials` the texts
    of all that its vocabulary has. A template may write today's date: prompts then differ by day, and
    their splits do not. UserError for one that cannot write a question and its answer.
    """

    def __init__(
        self, template: str, tokens: Iterable[tuple[str, str]] = (), specials: Iterable[str] = ()
    ) -> None:
        self.source, self.tokens = template, dict(tokens)
        asked, answer = Turn("user", "What is 6 times 7?"), Turn("assistant", "It is 42.")
        try:
            prompt, whole = self._render([asked], True), self._render([asked, answer], False)
            more = self._render([asked, answer, asked], True)
            if any(asked.text not in text for text in (prompt, whole)) or answer.text not in whole:
                raise Unwritable("it leaves their text out")
        except Unwritable as error:
            raise UserError(
                f"its chat template cannot write a question and an answer ({error}): mend the template, or "
                "remove it to have prompts written in this project's form"
            ) from error
        with suppress(Unwritable):  # a form may have no system turn
            more += self._render([Turn("system", "Be brief."), asked], True)
        before, _, self.after = whole.rpartition(answer.text)
        self.before_answer = prompt.rpartition(asked.text)[2]  # and after the question
        # What the model is left to go on from, and a turn that is over does not have: <think>.
        self.opens = prompt.removeprefix(before) if prompt.startswith(before) else ""
        ends = [text for text in specials if self.after.lstrip().startswith(text)]
        self.end = max(ends, key=len, default="")  # the special token that ends a turn
        self.tail = self.after.partition(self.end)[0] if self.end else ""  # before that
        dated = ", which writes the date: prompts differ by day"
        self.name = "the model's own form of a chat" + dated * ("strftime_now" in template)
        self.marks = frozenset(t for t in specials if t in template or t in more or t in whole)

    @cached_property
    def _compiled(self) -> jinja2.Template:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(Extension):
            """{% generation %} marks what the model writes, for those who want a mask of it."""

            tags = {"generation"}

            def parse(self, parser: Any) -> nodes.Node:
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                return nodes.Scope(body, lineno=line)

        def raise_exception(message: str) -> None:
            raise TemplateError(message)

        def tojson(
            x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
            sort_keys: bool = False,
        ) -> str:  # fmt: skip
            return json.dumps(
                x,
                ensure_ascii=ensure_ascii,
                indent=indent,
                separators=separators,
                sort_keys=sort_keys,
            )

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
        )
        environment.filters["tojson"] = tojson
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        return environment.from_string(self.source)

    def _render(self, turns: Sequence[Turn], to_answer: bool) -> str:
        try:
            return self._compiled.render(
                messages=messages_of(turns),
                tools=None,
                documents=None,
                add_generation_prompt=to_answer,
                **self.tokens,
            )
        except Exception as error:  # jinja2's own, and what a template may do to a value
            raise Unwritable(f"the chat template says: {first_line(error)}") from error

    def prompt(self, turns: Sequence[Turn]) -> str:
        """A conversation up to where the answer starts; Unwritable if it has no place in the template.

        The marks are tokens of their own, so a turn with one in it, which could end it, has none.
        """
        for turn in turns:
            self.refuse_marks(turn.text)
        return self._render(turns, True)

    def conversation(self, turns: Sequence[Turn], answer: str) -> str:
        """A conversation with its answer, to the end: transformers' apply_chat_template(messages).

        A mark in an answer, which could end it or begin another turn, is broken by a blank.
        """
        for turn in turns:
            self.refuse_marks(turn.text)
        for mark in sorted(self.marks, key=len, reverse=True):
            answer = answer.replace(mark, f"{mark[:1]} {mark[1:]}")
        return self._render([*stripped(turns), Turn("assistant", answer.strip())], False)

    def answered(self, turns: Sequence[Turn], answer: str) -> Written:
        """A conversation and its answer as the template itself writes both: text + answer + `end`.

        So an answer never stands inside what only the prompt to sample from has opened. One of which
        the template leaves out a part, such as a thought, follows that prompt whole.
        """
        prompt = self.prompt(turns)
        text = self._render([*turns, Turn("assistant", answer)], False).removesuffix(self.after)
        whole = "".join(text.split()).endswith("".join(answer.split()))
        if whole and text.startswith(prompt):
            return Written(prompt, text.removeprefix(prompt) + self.tail)
        if text.endswith(answer):
            odd = f"a finished turn without the {self.opens!r} of prompts to sample from"
            return Written(text.removesuffix(answer), answer + self.tail, odd)
        opened = self.opens.strip()
        if opened and answer.startswith(opened):
            answer = answer.removeprefix(opened).lstrip()
        odd = "an answer of which the template leaves out a part, kept whole"
        return Written(prompt, answer + self.tail, odd)

    def refuse_marks(self, text: str) -> None:
        """Unwritable for a text that holds a mark."""
        if held := [mark for mark in self.marks if mark in text]:
            raise Unwritable(f"a turn holds {min(held)}, a mark of the chat's form: take it out")

    def is_in_form(self, prompt: str) -> bool:
        """Whether a prompt has this form: it begins with a mark, or ends where its answers start."""
        end = self.before_answer.strip() and self.before_answer
        return prompt.lstrip().startswith(tuple(self.marks)) or bool(end and prompt.endswith(end))

    def is_written(self, prompt: str) -> bool:
        """Whether a prompt says everything itself, in this form or in the project's."""
        return self.is_in_form(prompt) or prompt.endswith(HEADINGS["assistant"])


LITERAL = re.compile(r"(?i:true|false|none)|-?\d+(\.\d+)?")  # else it is a text
ARGUMENT = re.compile(r"\{%- set (\w+) = .*? \+%\}")


def with_arguments(template: str, arguments: Iterable[str]) -> str:
    """The template with each NAME=VALUE set, as `apply_chat_template(..., NAME=VALUE)` has it.

    They stand in the template itself, so that every stage, the judge and an exported folder have the same.
    UserError for one that the template does not ask for.
    """
    for argument in arguments:
        name, _, value = argument.partition("=")
        if not (name.isidentifier() and value):
            raise UserError(f"{argument!r} is no argument of a chat template: give NAME=VALUE")
        bare, before = template, []
        while found := ARGUMENT.match(bare):
            before += [found[0]] if found[1] != name else []
            bare = bare[found.end() :]
        if not re.search(rf"\b{name}\b", bare):
            raise UserError(f"the model's chat template asks for no {name!r}: leave {argument} out")
        literal = value if LITERAL.fullmatch(value) else json.dumps(value)
        template = "".join([*before, f"{{%- set {name} = {literal} +%}}", bare])
    return template


def stripped(turns: Iterable[Turn]) -> list[Turn]:
    return [Turn(turn.role, turn.text.strip()) for turn in turns]


def answered_conversation(
    turns: Sequence[Turn], answer: str, chat: ChatForm | None = None
) -> Written:
    """A conversation and an answer to learn from; ours puts nothing around an answer."""
    if chat is not None:
        return chat.answered(stripped(turns), answer.strip())
    return Written(conversation_prompt(turns), answer)


def conversation_prompt(turns: Sequence[Turn], chat: ChatForm | None = None) -> str:
    """Render a conversation whose last turn is the user's, up to where the answer starts.

    White space around each turn is removed, so that one conversation has one rendering.
    """
    turns = stripped(turns)
    if chat is not None:
        return chat.prompt(turns)
    rendered = [f"{HEADINGS[turn.role]}{turn.text}\n\n" for turn in turns]
    return "".join(rendered) + HEADINGS["assistant"]


def instruction_text(instruction: str, context: str) -> str:
    """Join an instruction and the text it works on (Alpaca's `input`) into one user turn."""
    if not context.strip():
        return instruction.strip()
    return f"{instruction.strip()}\n\n### Input:\n{context.strip()}"


def instruction_prompt(instruction: str, chat: ChatForm | None = None) -> str:
    """Render a single instruction: a conversation of one user turn."""
    return conversation_prompt([Turn("user", instruction)], chat)


CHAT_MARKS = ("<|im_start|>", "<|im_end|>")
# SmolLM2's own:
CHAT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat_prompt(request: str) -> str:
    """A request between the marks of a chat model, up to where its answer starts.

    ChatML, as SmolLM2-Instruct was trained on it; its answers end with <|im_end|>. The marks are tokens
    of their own, so a text with one in it, which could end its turn, is a UserError.
    """
    if any(mark in request for mark in CHAT_MARKS):
        raise UserError("a turn holds a mark that starts or ends a turn: take it out")
    turns = (("system", CHAT_SYSTEM), ("user", request))
    rendered = [f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns]
    return "".join(rendered) + "<|im_start|>assistant\n"


# The same of a whole conversation for transformers' apply_chat_template, which exported folders carry.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n" + CHAT_SYSTEM + "<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
