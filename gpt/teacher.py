"""The teacher of distillation: a GPT with the student's tokenizer, and how far a student is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from data.collate import ResponseBatch
from data.sources import USUAL, data_name, is_world, world_source
from gpt.folder import open_model
from gpt.log_probs import full_kl, token_log_probs
from gpt.model import GPT
from gpt.ranks import score_in_micro_batches
from gpt.tokenizer import Tokenizer
from harness.errors import UserError
from harness.files import display_path
from harness.paths import MODEL_FILE, RUNS


def teacher_folder(data: str) -> Path:
    """runs/teacher-DATA: where the teacher of a world is written and looked for."""
    return RUNS / f"teacher-{data_name(data)}"


def open_teacher(
    name: str | None,
    tokenizer: Tokenizer,
    device: torch.device,
    *,
    data: str = USUAL,
    preset: str = "tiny",
) -> GPT:
    """The teacher of that name (default: the one of this data), frozen; `tokenizer` is the student's.

    UserError says what to do if it is missing or reads other tokens.
    """
    folder = teacher_folder(data)
    if name is None and not (folder / MODEL_FILE).exists():
        flags = "" if data == USUAL else f" --data {data}"
        advice = "pass --teacher a larger model with the student's tokenizer"
        if preset == "tiny" and is_world(data) and world_source(data).corpus:
            advice = f"make it with  python scripts/make_teacher.py{flags}"
        raise UserError(f"there is no teacher in {display_path(folder)}: {advice}")
    teacher, teacher_tokenizer = open_model(name or folder, device)
    if teacher_tokenizer.fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"the teacher {name or display_path(folder)} reads {teacher_tokenizer.name!r} tokens, the "
            f"student writes {tokenizer.name!r} tokens: distil between models with one tokenizer"
        )
    return teacher.eval().requires_grad_(False)


class ReverseKL(NamedTuple):
    """KL(student || teacher) of whole responses, nats, (N,) each: two estimates of one number."""

    sampled: Tensor  # sum_t log q(y_t) - log p(y_t): may be negative
    full: Tensor  # sum_t KL(q(.|s_t) || p(.|s_t)) over the whole vocabulary: less noise


def reverse_kl(
    student: GPT,
    teacher: GPT,
    batch: ResponseBatch,  # N responses sampled from the student
    temperature: float = 1.0,
    *,
    micro_batch_size: int = 64,
) -> ReverseKL:
    """How far the student q is from the teacher p on each response, without a gradient.

    On the student's responses the mean of either is KL(q || p) of the response, by the chain rule.
    """

    def both(rows: ResponseBatch) -> Tensor:
        log_ratio = token_log_probs(student, rows, temperature)
        log_ratio = log_ratio - token_log_probs(teacher, rows, temperature)
        full = full_kl(student, teacher, rows, temperature)
        return torch.stack([log_ratio.sum(1), full.sum(1)], dim=1)  # padding is 0

    sums = score_in_micro_batches(both, batch, micro_batch_size)  # (N, 2)
    return ReverseKL(sums[:, 0], sums[:, 1])
