"""Texts token by token for the view in the report: rows of tokens.jsonl, and what writes a few of them.

They are the same few each time, so that the view shows how a model's opinion of them changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.collate import ResponseBatch
from gpt.generate import evaluation_mode
from gpt.log_probs import token_scores
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.files import append_jsonl, keep_until
from harness.flags import TrainingFlags
from harness.paths import TOKENS

RECORDED = 4  # texts that are kept at every validation
WINDOW = 64  # tokens that are kept of a text, the first ones


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """The text of one token; special ones, which decode to nothing, have a name."""
    if token in (tokenizer.eos_id, *tokenizer.other_ends):
        return "<eos>"
    return tokenizer.decode([token]) or f"<{token}>"


def token_rows(
    tokenizer: Tokenizer,
    batch: ResponseBatch,
    prompts: Sequence[str],
    values: Mapping[str, Tensor],
    notes: Mapping[str, Sequence[float]],
    *,
    kind: str,
    step: int,
    clipped: Tensor | None = None,
) -> list[dict[str, Any]]:
    """One readable row a response, without padding; `values` and `clipped` are (N, T) each."""
    ids, lengths = batch.response_tokens.tolist(), batch.lengths.tolist()
    columns = {name: tensor.tolist() for name, tensor in values.items()}
    acted = None if clipped is None else clipped.tolist()
    return [
        {
            "step": step,
            "kind": kind,
            "prompt": prompts[i],
            "tokens": [token_text(tokenizer, token) for token in ids[i][:length]],
            "values": {n: [round(v, 4) for v in c[i][:length]] for n, c in columns.items()},
            **({} if acted is None else {"clipped": [int(c) for c in acted[i][:length]]}),
            "notes": {name: round(numbers[i], 4) for name, numbers in notes.items()},
        }
        for i, length in enumerate(lengths)
    ]


class TextLog:
    """Writes how a model reads the first texts of a batch; drops rows after step `start`."""

    def __init__(
        self,
        config: TrainingFlags,
        folder: Path,
        tokenizer: Tokenizer,
        batch: ResponseBatch,
        start: int = 0,
    ) -> None:
        self.path, self.tokenizer, self.dtype = folder / TOKENS, tokenizer, config.precision
        few = batch.rows(torch.arange(min(RECORDED, len(batch))))
        tokens, mask = few.response_tokens[:, :WINDOW], few.response_mask[:, :WINDOW]
        self.batch = replace(few, response_tokens=tokens, response_mask=mask)
        rows = zip(self.batch.tokens.tolist(), self.batch.prompt_lengths.tolist(), strict=True)
        self.prompts = [tokenizer.decode(tokens[:length]) for tokens, length in rows]
        keep_until(self.path, start)

    @torch.no_grad()
    def write(self, model: GPT, step: int) -> None:
        """Append what `model` thinks of each token of the texts; dropout off."""
        batch = self.batch.to(model.device)
        with evaluation_mode([model]), precision(model.device, self.dtype):
            scores = token_scores(model, batch)
            values = {"surprise": -scores.log_probs, "entropy": scores.entropy}
        mean = (values["surprise"].sum(1) / batch.lengths.clamp(min=1)).tolist()
        notes = {"nats per token": mean}
        rows = token_rows(
            self.tokenizer, batch, self.prompts, values, notes, kind="validation", step=step
        )
        append_jsonl(self.path, rows)
