"""A chat model as the judge of an answer: which of two is better, or whether one is good.

    export JUDGE=runs/smollm2
    python -m rl.grpo_engine --data mine.jsonl --model mine --reward docs/examples/judge_reward.py:better
    python -m rl.grpo_engine --data mine.jsonl --model mine --reward docs/examples/judge_reward.py:good

The judge writes nothing: after its prompt it would say A or B, or Yes or No, and the log-probabilities of
the first tokens of these words say which it prefers, and by how much. Of two answers a model also likes a
place, mostly the first (Zheng et al. 2023, arXiv:2306.05685, section 3.3). So it is asked twice, with the
answers exchanged: the mean of both log-odds is free of a liking that adds to them.

The other answer is one that the judge itself, or the model in OPPONENT, writes for the prompt. RUBRIC is
what a good answer keeps. A model without a chat template is asked in a short form without the rubric:
it has to be taught first which answers are better (studies/judges).
"""

import os
from functools import cache

import torch

from data.collate import right_pad
from data.templates import instruction_prompt
from gpt.folder import open_model
from gpt.generate import SamplingParams
from gpt.ranks import sample
from harness.device import open_device
from harness.seeds import make_generator

CHAT = """{question}

Answer A: {one}

Answer B: {two}

Which answer keeps this better: {rubric} Say A or B, and nothing else."""
ONE_CHAT = """{question}

Answer: {response}

{item} Say Yes or No, and nothing else."""
PLAIN, ONE_PLAIN = "{question}A: {one}\nB: {two}\nBetter:", "{question}{response}\nGood:"
TOKENS, TOGETHER = 48, 32  # of the opponent's answer; texts that are read at once


class Judge:
    """A model that says one word of two."""

    def __init__(self, folder: str) -> None:
        self.model, self.tokenizer = open_model(folder, open_device())

    def prompt(self, text: str) -> list[int]:
        """A text as a user's turn, if the model has a chat template."""
        chat = self.tokenizer.chat
        return self.tokenizer.encode_prompt(instruction_prompt(text, chat) if chat else text)

    @torch.no_grad()
    def log_odds(self, texts: list[str], first: str, second: str) -> torch.Tensor:
        """log p(first) - log p(second) as the next token after each text, (N,)."""
        a, b = (self.tokenizer.encode(word)[0] for word in (first, second))
        prompts, odds = [self.prompt(text) for text in texts], []
        for start in range(0, len(prompts), TOGETHER):
            rows, mask = right_pad(prompts[start : start + TOGETHER], self.tokenizer.eos_id)
            hidden = self.model.hidden(rows.to(self.model.device))
            logits = self.model.logits(hidden[range(len(rows)), mask.sum(1) - 1])  # (n, V)
            odds.append((logits[:, a] - logits[:, b]).cpu())
        return torch.cat(odds)

    def compare(self, asked: list[tuple[str, str, str]]) -> torch.Tensor:
        """Log-odds of `one` in each (question, one, two): where it stands first, and second, (N, 2)."""
        form, rubric = CHAT if self.tokenizer.chat else PLAIN, os.environ.get("RUBRIC", RUBRIC)
        first = [form.format(question=q, one=a, two=b, rubric=rubric) for q, a, b in asked]
        second = [form.format(question=q, one=b, two=a, rubric=rubric) for q, a, b in asked]
        odds = self.log_odds([*first, *second], "A", "B").view(2, -1)
        return torch.stack([odds[0], -odds[1]], dim=1)

    def yes(self, question: str, response: str, item: str) -> torch.Tensor:
        """Log-odds of Yes to an item of a rubric, ()."""
        form = ONE_CHAT if self.tokenizer.chat else ONE_PLAIN
        text = form.format(question=question, response=response, item=item)
        return self.log_odds([text], "Yes", "No")[0]

    def answer(self, question: str) -> str:
        """What it answers itself."""
        params, prompts = SamplingParams(max_new_tokens=TOKENS), [self.prompt(question)]
        written = sample(self.model, self.tokenizer, prompts, params, make_generator(0, question))
        return self.tokenizer.decode(written.token_lists()[0])


RUBRIC = "It is correct, and it says only what was asked for."
opened = cache(Judge)


def judge() -> Judge:
    return opened(os.environ.get("JUDGE", "runs/smollm2"))


@cache
def other_answer(question):
    """The answer that all others to this question are compared with."""
    model = opened(os.environ["OPPONENT"]) if "OPPONENT" in os.environ else judge()
    return model.answer(question)


def question_of(prompt, record):
    """The conversation without the marks of the policy's own form."""
    return "\n\n".join(turn.text for turn in record.turns) if record.turns else prompt


def better(prompt, response, record):
    """By how much the judge prefers an answer to the other one: the mean log-odds of both orders."""
    question = question_of(prompt, record)
    return float(judge().compare([(question, response, other_answer(question))]).mean())


def good(prompt, response, record):
    """By how much the judge says that an answer is good rather than not: the log-odds."""
    item = f"Does the answer keep this: {os.environ.get('RUBRIC', RUBRIC)}"
    return float(judge().yes(question_of(prompt, record), response, item))
