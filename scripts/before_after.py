"""The front page's picture: answers of the base model and of the policy, each token coloured.

    python scripts/before_after.py        writes docs/before_after.svg with the models that the course keeps

The prompts are the first of the test split, which no stage was trained on. Each model answers each of
them 15 times at temperature 1, and the picture shows the answer whose gold reward is the median: a
typical one, neither the best nor the worst. A token's colour is its log-ratio, log p under the policy
less log p under the base model: what GRPO made likelier is blue, what it made rarer is orange.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import saved_models
import torch

from data import reviews
from data.collate import collate_responses
from data.records import PromptRecord
from gpt.generate import SamplingParams, generate
from gpt.log_probs import token_log_probs
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.command_line import run_command
from harness.files import display_path, write_atomically
from harness.seeds import make_generator

ROOT = Path(__file__).resolve().parents[1]

# Narrow and large, to be read on a phone too: 46 characters a line.
CHARACTER, LINE, WIDTH, MARGIN = 9.6, 25, 480, 18
FULL_COLOUR = 4.0  # nats
LIKELIER, RARER = "#56B4E9", "#E69F00"
SAMPLES = 15
KEY = (
    "Blue: GRPO made the token likelier.",
    "Orange: GRPO made it rarer.",
    f"Each answer: the median of {SAMPLES}, by gold reward.",
)
JUDGED = {"sent": "kind", "topic": "on topic", "polite": "polite", "form": "well formed"}

PICTURE = Path(__file__).with_name("before_after.svg.jinja")


def typical_answer(
    model: GPT, tokenizer: Tokenizer, record: PromptRecord, index: int
) -> tuple[list[int], reviews.GoldParts]:
    """The one of 15 samples with the median gold reward, its EOS included, and how gold judges it."""
    params = SamplingParams(max_new_tokens=48)
    generator = make_generator(0, f"front page {index}")
    asked = [tokenizer.encode(record.prompt)] * SAMPLES
    rows = generate(model, asked, params, generator, eos_id=tokenizer.eos_id).token_lists()
    judged = [
        reviews.gold_parts(record, tokenizer.decode(row), tokenizer.eos_id in row) for row in rows
    ]
    order = sorted(range(SAMPLES), key=lambda i: judged[i].reward)
    middle = order[SAMPLES // 2]
    return rows[middle], judged[middle]


def log_ratios(
    policy: GPT, base: GPT, prompt: list[int], response: list[int], eos_id: int
) -> list[float]:
    """log pi - log pi_ref of each token, in nats."""
    batch = collate_responses([prompt], [response], eos_id)
    with torch.no_grad():
        return (token_log_probs(policy, batch) - token_log_probs(base, batch))[0].tolist()


def pieces_of(tokens: list[int], ratios: list[float], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """A rectangle and a text for each token; the EOS is shown as [end], long answers are wrapped."""
    pieces, x, below = [], float(MARGIN), 0
    for token, ratio in zip(tokens, ratios, strict=True):
        text = "[end]" if token == tokenizer.eos_id else tokenizer.decode([token])
        if x + len(text) * CHARACTER > WIDTH - MARGIN:
            x, below, text = MARGIN, below + LINE, text.lstrip()
        width, share = len(text) * CHARACTER, min(abs(ratio) / FULL_COLOUR, 1)
        piece = dict(x=round(x, 1), below=below, width=round(width, 1), text=text)
        piece |= dict(fill=LIKELIER if ratio > 0 else RARER, opacity=round(share * 0.75, 2))
        pieces.append(piece | dict(note=f"{ratio:+.2f} nats"))
        x += width
    return pieces


def picture(base: GPT, policy: GPT, tokenizer: Tokenizer, records: Sequence[PromptRecord]) -> str:
    rows: list[dict[str, Any]] = []
    y = 4.0
    for index, record in enumerate(records):
        prompt = record.prompt
        y += LINE + 8
        rows.append(dict(y=y, label=prompt.strip(), weight="bold", ink="#1a1a1a"))
        for name, model in (("before", base), ("after GRPO", policy)):
            response, judged = typical_answer(model, tokenizer, record, index)
            asked = tokenizer.encode(prompt)
            ratios = log_ratios(policy, base, asked, response, tokenizer.eos_id)
            pieces = pieces_of(response, ratios, tokenizer)
            y += LINE + 6
            rows.append(dict(y=y, label=f"{name}: gold reward {judged.reward:.2f}", ink="#555"))
            y += LINE
            rows.append(dict(y=y, pieces=pieces))
            y += pieces[-1]["below"] + LINE
            rows.append(dict(y=y, label=verdict(judged), ink="#555"))
        y += 10
    for line in KEY:
        y += LINE
        rows.append(dict(y=y, label=line, ink="#555"))
    return drawn(rows, round(y + 18)) + "\n"


def verdict(judged: reviews.GoldParts) -> str:
    """What gold found more than half right, and what not."""
    found = [(getattr(judged, part) > 0.5, words) for part, words in JUDGED.items()]
    return "  ".join(f"{'✓' if right else '✗'} {words}" for right, words in found)


def drawn(rows: Sequence[Mapping[str, Any]], height: int) -> str:
    template = jinja2.Template(PICTURE.read_text(encoding="utf-8"), autoescape=True)
    return template.render(rows=rows, width=WIDTH, height=height, margin=MARGIN)


@dataclass(frozen=True)
class BeforeAfterConfig:
    """Draw the front page's answers, coloured token by token."""

    prompts: int = 2
    """How many prompts of the test split."""
    out: Path = ROOT / "docs" / "before_after.svg"
    """The picture."""


def main(config: BeforeAfterConfig) -> None:
    base, tokenizer = saved_models.base()
    policy, _ = saved_models.policy()
    records = list(reviews.prompts("test"))[: config.prompts]
    text = picture(base, policy, tokenizer, records)
    write_atomically(config.out, lambda path: path.write_text(text, encoding="utf-8"))
    print(display_path(config.out))


if __name__ == "__main__":
    run_command(main, BeforeAfterConfig)
