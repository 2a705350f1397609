"""The one template that turns an instruction or a conversation into a prompt.

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
ends with the line break after its last heading, and the answer starts right there: nothing stands
between them. Earlier answers end at a blank line, only the last one ends with EOS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.errors import UserError

HEADINGS = {"system": "### System:\n", "user": "### Instruction:\n", "assistant": "### Response:\n"}


class Turn(NamedTuple):
    role: str  # system, user or assistant
    text: str


def conversation_prompt(turns: Sequence[Turn]) -> str:
    """Render a conversation whose last turn is the user's, up to where the answer starts.

    White space around each turn is removed, so that one conversation has one rendering.
    """
    rendered = [f"{HEADINGS[turn.role]}{turn.text.strip()}\n\n" for turn in turns]
    return "".join(rendered) + HEADINGS["assistant"]


def instruction_text(instruction: str, context: str) -> str:
    """Join an instruction and the text it works on (Alpaca's `input`) into one user turn."""
    if not context.strip():
        return instruction.strip()
    return f"{instruction.strip()}\n\n### Input:\n{context.strip()}"


def instruction_prompt(instruction: str) -> str:
    """Render a single instruction: a conversation of one user turn."""
    return conversation_prompt([Turn("user", instruction)])


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
