"""Preference pairs for an engine: where they come from, how they are scored, and their losses.

Tensors about pairs are (K, 2): column 0 is the chosen response, column 1 the rejected one. A labelled
answer is half a pair: where the other one would stand, the length is 0 and so is the log-prob.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from data.collate import ResponseBatch, epoch_shuffled_indices
from data.sources import default_folder, file_source, flags_for, has_annotator
from gpt.lengths import Limits
from gpt.log_probs import token_log_probs
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.device import on_device, precision
from harness.errors import UserError
from harness.files import display_path
from harness.flags import AboveZero, AtLeastOne, NotNegative, Range
from harness.ranks.collectives import all_gather_list, scatter_rows, shard_chunks
from harness.seeds import derive_seed
from harness.tensors import masked_sum
from reward_model.accuracy_report import wins
from reward_model.pairs import TokenPair, check_world, collate_pairs, fitting_pairs
from rl.batches.rollout import ScoringConfig
from rl.equations.preference_losses import (
    dpo_loss,
    hinge_loss,
    ipo_loss,
    kto_loss,
    orpo_loss,
    simpo_loss,
)


@dataclass(frozen=True)
class RecordedPairFlags:
    """A file of yours"""

    max_response_tokens: AtLeastOne | None = None
    """Longest answer of a recorded pair; default: max_new_tokens."""
    cut_answers: bool = False
    """Cut answers that do not fit instead of leaving their rows out; a cut answer has no EOS."""

    def limits(self, context: int, sampled: int) -> Limits:
        """How long recorded pairs may be; a prompt leaves room for an answer that is sampled."""
        lengths = context - sampled, self.max_response_tokens or sampled
        return Limits(*lengths, context, self.cut_answers)


# --- where pairs come from ------------------------------------------------------------------------


def open_pairs(
    data: str,
    preset: str,
    folder: Path | None,
    tokenizer: Tokenizer,
    limits: Limits,
    *,
    labelled: bool = False,
) -> tuple[list[TokenPair], list[TokenPair]]:
    """Training pairs and held-out pairs, which share no prompt; what is too long is left out, counted.

    Of a file its own pairs, or with `labelled` its single answers, too; of a world those of the reward
    model's run `folder`, with the annotator's noisy labels.
    """
    check_world(data)
    if has_annotator(data):
        folder = folder or default_folder("reward_model", data, preset)
        paths = [folder / name for name in ("pairs.jsonl", "held_out_pairs.jsonl")]
        if not all(path.exists() for path in paths):
            raise UserError(
                f"there are no preference pairs in {display_path(folder)}: make them with\n"
                f"    python -m reward_model.reward_model_training{flags_for(data, preset)}"
            )
        results = [file_source(path, None).pairs() for path in paths]
        train, held_out = (result.records for result in results)
    else:
        results = [file_source(data, tokenizer.chat).pairs(labelled=labelled)]
        train, held_out = results[0].train_and_held_out()
    results[0].say()
    return fitting_pairs(data, [train, held_out], tokenizer, limits)


# --- the log-prob of a whole response -------------------------------------------------------------


class Compared(NamedTuple):
    """The k pairs of one forward, (k, 2) each."""

    log_probs: Tensor  # log pi(y|x), the sum over a response's tokens
    ref_log_probs: Tensor | None  # log pi_ref(y|x); None where no reference was asked
    lengths: Tensor  # tokens

    def per_token(self) -> Compared:
        """The means over a response's tokens in place of the sums."""
        lengths = self.lengths.to(self.log_probs.device).clamp(min=1)
        ref = None if self.ref_log_probs is None else self.ref_log_probs / lengths
        return Compared(self.log_probs / lengths, ref, self.lengths)

    def detach(self) -> Compared:
        """The same numbers, without their graph."""
        return self._replace(log_probs=self.log_probs.detach())


def gather_compared(compared: Sequence[Compared]) -> list[Compared]:
    """What all ranks have compared, on the CPU."""
    on_cpu = [[None if x is None else x.cpu() for x in part] for part in compared]
    return all_gather_list([Compared._make(part) for part in on_cpu])


def sides(rows: Tensor, lengths: Tensor) -> Tensor:
    """Numbers of the rows of `collate_pairs`, the chosen ones first, as (k, 2); 0 without a response."""
    there = on_device(lengths.T > 0, rows.device)
    return rows.new_zeros(there.shape).masked_scatter(there, rows).T


def pair_lengths(pairs: Sequence[TokenPair]) -> Tensor:
    """Response tokens of both sides, (K, 2) int64."""
    lengths = [[len(pair.chosen), len(pair.rejected)] for pair in pairs]
    return torch.tensor(lengths, dtype=torch.long).view(-1, 2)


def pair_micro_batches(
    pairs: Sequence[TokenPair], eos_id: int, size: int
) -> Iterator[tuple[Tensor, ResponseBatch, Tensor]]:
    """Forwards of at most `size` rows of similar length; each rank gets pairs of its own, or none.

    Yields (indices of k pairs, their rows: the chosen responses, then the rejected ones; lengths (k, 2)).
    """
    if size < 2:
        raise ValueError(f"a pair is two rows of one forward: micro_batch_size {size} is too few")
    if not pairs:
        return
    lengths = [len(pair.prompt) + max(len(pair.chosen), len(pair.rejected)) for pair in pairs]
    for index in shard_chunks(torch.tensor(lengths), size // 2):
        some = [pairs[i] for i in index.tolist()]
        yield index, collate_pairs(some, eos_id), pair_lengths(some)


def pair_log_probs(
    model: GPT, batch: ResponseBatch, lengths: Tensor, config: ScoringConfig
) -> Tensor:
    """log pi(y|x) of both sides of the k pairs of one forward, (k, 2), with gradient."""
    batch = batch.to(model.device)
    with precision(model.device, config.precision):
        log_probs = token_log_probs(model, batch, config.temperature)  # (2k, T)
    return sides(masked_sum(log_probs, batch.response_mask), lengths)


@torch.no_grad()
def frozen_log_probs(
    model: GPT, pairs: Sequence[TokenPair], eos_id: int, config: ScoringConfig, visited: Tensor
) -> Tensor:
    """log pi(y|x) of the pairs at the indices `visited`, scored once each, (K, 2); NaN elsewhere."""
    dtype = model.wte.weight.dtype
    result = torch.full((len(pairs), 2), torch.nan, dtype=dtype, device=model.device)
    index = visited.unique()
    wanted = [pairs[i] for i in index.tolist()]
    scored = [
        (part, pair_log_probs(model, batch, lengths, config))
        for part, batch, lengths in pair_micro_batches(wanted, eos_id, config.micro_batch_size)
    ]
    if wanted:
        rows = scatter_rows(scored, len(wanted), result.device)
        result[on_device(index, result.device)] = rows
    return result


class PairStream:
    """Recorded pairs in batches of shuffled epochs, with the reference's log-probs beside them.

    Those are computed once for every pair that `steps` steps visit. Without pairs batches are empty.
    """

    def __init__(
        self,
        pairs: Sequence[TokenPair],
        reference: GPT | None,
        eos_id: int,
        config: ScoringConfig,
        *,
        batch_size: int,
        steps: int,
        seed: int,
    ) -> None:
        self.pairs, self.eos_id, self.config = pairs, eos_id, config
        self.batch_size = batch_size if pairs else 0
        self.seed = derive_seed(seed, "pair order")
        self.ref_log_probs: Tensor | None = None  # (K, 2)
        if reference is not None:
            visited = torch.cat([self.indices(step) for step in range(steps)])
            self.ref_log_probs = frozen_log_probs(reference, pairs, eos_id, config, visited)

    def indices(self, step: int) -> Tensor:
        """The pairs of 0-based `step`, each once an epoch, (batch_size,) int64."""
        if not self.pairs:
            return torch.empty(0, dtype=torch.long)
        return epoch_shuffled_indices(step, self.batch_size, len(self.pairs), self.seed)

    def micro_batches(self, step: int) -> Iterator[tuple[ResponseBatch, Tensor | None, Tensor]]:
        """The forwards of one step, the reference's log-probs of their pairs or None, lengths, (k, 2)."""
        index, size = self.indices(step), self.config.micro_batch_size
        chosen = [self.pairs[i] for i in index.tolist()]
        for part, batch, lengths in pair_micro_batches(chosen, self.eos_id, size):
            ref = self.ref_log_probs
            yield batch, None if ref is None else ref[on_device(index[part], ref.device)], lengths


# --- the pairs of a rollout -----------------------------------------------------------------------


def pairs_within(pairs: Tensor, rows: Tensor) -> Tensor:
    """The pairs (K, 2) of row numbers whose rows are all among `rows`, as positions in it, (k, 2)."""
    position = torch.full((int(torch.cat([pairs.flatten(), rows]).max()) + 1,), -1)
    position[rows] = torch.arange(len(rows))
    found = position[pairs]
    return found[(found >= 0).all(1)]


def compared_rows(
    log_probs: Tensor,  # (n, T)
    ref_log_probs: Tensor | None,  # (n, T)
    response_mask: Tensor,  # (n, T)
    pairs: Tensor,  # (k, 2) row numbers
) -> Compared:
    """Pairs of rows of one forward of a rollout."""
    pairs = on_device(pairs, log_probs.device)
    ref = None if ref_log_probs is None else masked_sum(ref_log_probs, response_mask)[pairs]
    return Compared(masked_sum(log_probs, response_mask)[pairs], ref, response_mask.sum(1)[pairs])


# --- the losses -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreferenceFlags:
    """Preference loss"""

    label_smoothing: Annotated[
        float, Range("[0, 0.5)", "must be at least 0 and below 0.5, where labels say nothing")
    ] = 0.0
    """s of conservative DPO, the chance that a pair is the wrong way round; dpo alone reads it."""
    simpo_beta: AboveZero = 2.0
    """beta of simpo, whose log-probs are means per token and thus smaller."""
    target_margin: NotNegative = 0.5
    """gamma of simpo, by how much the better response should win."""
    length_norm: bool = False
    """Average a response's log-probs over its tokens in the losses that sum them, as DPO's paper
    does; ipo_mean, simpo and orpo average by themselves."""


class PreferenceLoss(NamedTuple):
    """A row of the table: an equation of rl/equations/preference_losses.py, and what it reads."""

    equation: Callable[..., Tensor]
    needs_reference: bool
    length_normalised: bool  # log-probs are means over a response's tokens, not sums
    numbers: Callable[[Any], dict[str, float]]  # its arguments by the flags, of which beta is one


LossName = Literal["dpo", "ipo", "ipo_mean", "hinge", "simpo", "orpo"]  # of any pairs
BatchLossName = Literal[LossName, "kto"]  # with what kto reads of the whole batch


PREFERENCE_LOSSES: dict[str, PreferenceLoss] = {
    #                     equation    reference  per token  its numbers
    "dpo": PreferenceLoss(
        dpo_loss, True, False, lambda f: dict(beta=f.beta, label_smoothing=f.label_smoothing)
    ),
    "ipo": PreferenceLoss(ipo_loss, True, False, lambda f: dict(beta=f.beta)),
    "ipo_mean": PreferenceLoss(ipo_loss, True, True, lambda f: dict(beta=f.beta)),
    "hinge": PreferenceLoss(hinge_loss, True, False, lambda f: dict(beta=f.beta)),
    "simpo": PreferenceLoss(
        simpo_loss, False, True, lambda f: dict(beta=f.simpo_beta, target_margin=f.target_margin)
    ),
    "orpo": PreferenceLoss(orpo_loss, False, True, lambda f: dict(beta=f.beta)),
    "kto": PreferenceLoss(
        kto_loss,
        True,
        False,
        lambda f: dict(
            beta=f.beta,
            desirable_weight=f.desirable_weight,
            undesirable_weight=f.undesirable_weight,
        ),
    ),
}


def check_preference_flags(config: PreferenceFlags, name: str) -> None:
    """ValueError for a label_smoothing that the named loss would not read."""
    if config.label_smoothing and name != "dpo":
        raise ValueError(f"label_smoothing is for the loss dpo: leave it out with {name}")


def needs_reference(name: str) -> bool:
    """Whether the named loss compares with the reference."""
    return PREFERENCE_LOSSES[name].needs_reference


def as_read(name: str, compared: Compared, config: PreferenceFlags) -> Compared:
    """The log-probs as the named loss reads them: summed, or per token; with its reference, or none."""
    row = PREFERENCE_LOSSES[name]
    if row.length_normalised or config.length_norm:
        compared = compared.per_token()
    return compared if row.needs_reference else compared._replace(ref_log_probs=None)


def pair_losses(
    name: str, compared: Compared, config: PreferenceFlags, **of_batch: Tensor
) -> Tensor:
    """The named loss of every pair, (k,); `of_batch` is what kto reads besides, its reference_point.

    Of kto it is the mean over the answers of a pair, one or two.
    """
    row = PREFERENCE_LOSSES[name]
    log_probs, ref_log_probs, lengths = as_read(name, compared, config)
    if name == "kto" and ref_log_probs is not None:
        there = on_device(lengths > 0, log_probs.device)
        good = torch.tensor([True, False], device=log_probs.device).expand_as(there)
        columns = [numbers.flatten() for numbers in (log_probs, ref_log_probs, good)]
        losses = row.equation(*columns, **row.numbers(config), **of_batch).view_as(there)
        return (losses * there).sum(1) / there.sum(1)
    columns = [*log_probs.unbind(1), *(() if ref_log_probs is None else ref_log_probs.unbind(1))]
    return row.equation(*columns, **row.numbers(config), **of_batch)


# --- what is logged -------------------------------------------------------------------------------


@torch.no_grad()
def pair_metrics(
    name: str, compared: Sequence[Compared], config: PreferenceFlags
) -> dict[str, float]:
    """Means over all pairs, at least one, that some forwards have compared, as the named loss reads them.

    The implicit reward of a response is beta * log(pi / pi_ref)(y|x) (arXiv:2305.18290, section 5),
    or beta * log pi(y|x) / L of a loss without a reference, which has no `drift` either (SimPO,
    arXiv:2405.14734, Eq. 4). Of labelled answers every good one is compared with every bad one; without
    one of the two kinds its numbers are left out.
    """
    parts = [as_read(name, part, config) for part in compared]
    log_probs = torch.cat([part.log_probs for part in parts])  # (K, 2)
    refs = [part.ref_log_probs for part in parts if part.ref_log_probs is not None]
    change = log_probs - torch.cat(refs) if refs else log_probs
    rewards = PREFERENCE_LOSSES[name].numbers(config)["beta"] * change
    there = on_device(torch.cat([part.lengths for part in parts]) > 0, change.device)
    good, bad = (rewards[:, side][there[:, side]] for side in (0, 1))
    margin = good - bad if there.all() else (good[:, None] - bad).flatten()
    numbers = {
        "accuracy": wins(margin),
        "margin": margin,
        "reward_chosen": good,
        "reward_rejected": bad,
        "log_prob_chosen": log_probs[:, 0][there[:, 0]],
        "log_prob_rejected": log_probs[:, 1][there[:, 1]],
        "drift": -change[there] if refs else change[:0],
    }
    return {metric: float(each.mean()) for metric, each in numbers.items() if len(each)}
