"""Preference pairs for an engine: where they come from, and the log-probs of their responses.

Tensors about pairs are (K, 2): column 0 is the chosen response, column 1 the rejected one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from data.collate import ResponseBatch, epoch_shuffled_indices, length_sorted_chunks
from data.readers import read_preferences, split_records
from data.records import PreferenceRecord
from gpt.common import UserError, derive_seed, display_path, precision
from gpt.log_probs import token_log_probs
from gpt.model import GPT
from gpt.pretraining import default_folder, flags_for
from gpt.tokenizer import Tokenizer
from reward_model.pairs import TokenPair, collate_pairs, encode_pairs, keep_fitting
from rl.equations.losses import row_means, row_sums

# --- where pairs come from ------------------------------------------------------------------------


def require_pairs(data: str) -> None:
    """Refuse a world in which nobody has compared answers."""
    if data == "sums":
        raise UserError(
            "sums are checked by a rule, so there are no preference pairs of them: use --data "
            "reviews, or a file of pairs"
        )


def open_pairs(
    data: str,
    preset: str,
    folder: Path | None,
    tokenizer: Tokenizer,
    max_prompt_tokens: int,
    max_response_tokens: int,
) -> tuple[list[TokenPair], list[TokenPair]]:
    """Training pairs and held-out pairs, which share no prompt; what is too long is left out, counted.

    Of a file its own pairs, in its training and validation splits. Of the reviews those that the
    reward model was trained and measured on, token by token, with the annotator's noisy labels:
    `folder` is its run folder, by default the one of this data and preset.
    """
    require_pairs(data)
    if data == "reviews":
        folder = folder or default_folder("reward_model", data, preset)
        parts = _recorded_pairs(folder, flags_for(data, preset))
    else:
        result = read_preferences(Path(data))
        print(result.summary())
        splits = split_records(result.records)
        parts = splits["train"], splits["validation"]
    train, held_out = (
        _fitting(encode_pairs(part, tokenizer), max_prompt_tokens, max_response_tokens)
        for part in parts
    )
    if not train or not held_out:
        raise UserError(
            f"{data}: {len(train)} pairs to train on and {len(held_out)} held-out ones are too few: "
            "give more pairs, or raise --max-new-tokens, the longest answer that is kept"
        )
    return train, held_out


def _recorded_pairs(
    folder: Path, flags: str
) -> tuple[list[PreferenceRecord], list[PreferenceRecord]]:
    """The pairs that a reward model's run has kept."""
    paths = folder / "pairs.jsonl", folder / "held_out_pairs.jsonl"
    for path in paths:
        if not path.exists():
            raise UserError(
                f"there are no preference pairs at {display_path(path)}: make them with\n"
                f"    python -m reward_model.reward_model_training{flags}"
            )
    results = [read_preferences(path) for path in paths]
    print(results[0].summary())
    return results[0].records, results[1].records


def _fitting(
    pairs: Sequence[TokenPair], max_prompt_tokens: int, max_response_tokens: int
) -> list[TokenPair]:
    kept, dropped = keep_fitting(pairs, max_prompt_tokens, max_response_tokens)
    for reason, count in dropped.items():
        print(f"left out {count} pairs: {reason}")
    return kept


# --- the log-prob of a whole response -------------------------------------------------------------


class PairScoring(Protocol):
    """The fields of an engine's config that decide how pairs are scored."""

    @property
    def temperature(self) -> float: ...

    @property
    def micro_batch_size(self) -> int: ...

    @property
    def precision(self) -> str: ...

    @property
    def length_norm(self) -> bool: ...


def sequence_log_probs(log_probs: Tensor, response_mask: Tensor, length_norm: bool) -> Tensor:
    """log pi(y|x), the sum over a response's tokens, (N, T) -> (N,); with `length_norm` their mean."""
    return (row_means if length_norm else row_sums)(log_probs, response_mask)


def pair_micro_batches(
    pairs: Sequence[TokenPair], eos_id: int, size: int
) -> Iterator[tuple[Tensor, ResponseBatch]]:
    """Split pairs into forwards of at most `size` rows of similar length, both sides in one forward.

    Yields (indices of k pairs, 2k rows: the chosen responses, then the rejected ones).
    """
    if size < 2:
        raise ValueError(f"a pair is two rows of one forward: micro_batch_size {size} is too few")
    if not pairs:
        return
    lengths = [len(pair.prompt) + max(len(pair.chosen), len(pair.rejected)) for pair in pairs]
    for index in length_sorted_chunks(torch.tensor(lengths), size // 2):
        yield index, collate_pairs([pairs[i] for i in index.tolist()], eos_id)


def pair_log_probs(model: GPT, batch: ResponseBatch, config: PairScoring) -> Tensor:
    """log pi(y|x) of both sides of the k pairs of one forward, (k, 2), with gradient."""
    batch = batch.to(model.device)
    with precision(model.device, config.precision):
        log_probs = token_log_probs(model, batch, config.temperature)  # (2k, T)
    return sequence_log_probs(log_probs, batch.response_mask, config.length_norm).view(2, -1).T


@torch.no_grad()
def frozen_log_probs(
    model: GPT, pairs: Sequence[TokenPair], eos_id: int, config: PairScoring, visited: Tensor
) -> Tensor:
    """log pi(y|x) of the pairs at the indices `visited`, scored once each, (K, 2); NaN elsewhere."""
    dtype = model.wte.weight.dtype
    result = torch.full((len(pairs), 2), torch.nan, dtype=dtype, device=model.device)
    index = visited.unique()
    wanted = [pairs[i] for i in index.tolist()]
    for part, batch in pair_micro_batches(wanted, eos_id, config.micro_batch_size):
        result[index[part]] = pair_log_probs(model, batch, config)
    return result


class PairStream:
    """Recorded pairs in batches of shuffled epochs, with the reference's log-probs beside them.

    Those are computed here, once for every pair that `steps` steps visit. Without pairs every batch
    is empty.
    """

    def __init__(
        self,
        pairs: Sequence[TokenPair],
        reference: GPT,
        eos_id: int,
        config: PairScoring,
        *,
        batch_size: int,
        steps: int,
        seed: int,
    ) -> None:
        self.pairs, self.eos_id, self.config = pairs, eos_id, config
        self.batch_size = batch_size if pairs else 0
        self.seed = derive_seed(seed, "pair order")
        visited = torch.cat([self.indices(step) for step in range(steps)])
        self.ref_log_probs = frozen_log_probs(reference, pairs, eos_id, config, visited)  # (K, 2)

    def indices(self, step: int) -> Tensor:
        """The pairs of 0-based `step`, each once an epoch, (batch_size,) int64."""
        if not self.pairs:
            return torch.empty(0, dtype=torch.long)
        return epoch_shuffled_indices(step, self.batch_size, len(self.pairs), self.seed)

    def micro_batches(self, step: int) -> Iterator[tuple[ResponseBatch, Tensor]]:
        """The forwards of one step and the reference's log-probs of their pairs, (k, 2) each."""
        index = self.indices(step)
        chosen = [self.pairs[i] for i in index.tolist()]
        for part, batch in pair_micro_batches(chosen, self.eos_id, self.config.micro_batch_size):
            yield batch, self.ref_log_probs[index[part]]


# --- the pairs of a rollout -----------------------------------------------------------------------


def pairs_within(pairs: Tensor, rows: Tensor) -> Tensor:
    """The pairs (K, 2) of row numbers whose rows are all among `rows`, as positions in it, (k, 2)."""
    position = torch.full((int(torch.cat([pairs.flatten(), rows]).max()) + 1,), -1)
    position[rows] = torch.arange(len(rows))
    found = position[pairs]
    return found[(found >= 0).all(1)]


# --- what is logged -------------------------------------------------------------------------------


# (log pi(y|x), log pi_ref(y|x)) of the k pairs of one forward, (k, 2) each
Compared = tuple[Tensor, Tensor]


@torch.no_grad()
def pair_metrics(compared: Sequence[Compared], beta: float) -> dict[str, float]:
    """Means over all pairs, at least one, that some forwards have compared.

    The implicit reward of a response is beta * log(pi / pi_ref)(y|x) (arXiv:2305.18290, section 5).
    """
    log_probs, ref_log_probs = (torch.cat(part) for part in zip(*compared, strict=True))  # (K, 2)
    change = log_probs - ref_log_probs
    rewards = beta * change
    margin = rewards[:, 0] - rewards[:, 1]
    return {
        "accuracy": float((margin > 0).float().mean()),
        "margin": float(margin.mean()),
        "reward_chosen": float(rewards[:, 0].mean()),
        "reward_rejected": float(rewards[:, 1].mean()),
        "log_prob_chosen": float(log_probs[:, 0].mean()),
        "log_prob_rejected": float(log_probs[:, 1].mean()),
        "drift": float(-change.mean()),
    }
