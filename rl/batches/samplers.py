"""The policy that samples where it is not the policy in training: older, or in lower precision."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gpt.model import GPT
from harness.errors import UserError
from harness.frozen_copy import frozen_copy
from harness.metric_log import MetricLog
from harness.ranks.collectives import each_alone, gather, is_main, receive, send, world
from harness.training_state import changing_state, load_changing_state
from rl.batches.rollout import Rollout


@torch.no_grad()
def round_weights(model: GPT, precision: str) -> None:
    """Round a model's weights in place as an inference engine would.

    bfloat16: every weight. int8: the matrices of the linear layers, each row (one output) as a multiple
    of its largest weight / 127; embeddings and LayerNorms stay. float32: none.
    """
    if precision == "bfloat16":
        for weight in model.parameters():
            weight.copy_(weight.to(torch.bfloat16))
    elif precision == "int8":
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                rows = module.weight
                unit = rows.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
                rows.copy_((rows / unit).round() * unit)


class Sampler:
    """What draws the batches: for batch b the policy after `versions[b]` optimizer steps, rounded.

    Numbers grow; below 0 it is the start. `draw(model, batch)` samples with a model; without versions it is
    the policy as it is. The weights that a later batch asks for, and no others, are kept in a run's state.

    With `ranks` above 0, so many other ranks draw while this one trains, batch b on rank 1 + b % ranks.
    Each gets the weights of its next batch when it has handed one over. So every rank holds one batch at
    most, and which weights draw which batch follows from `versions`, not from who was faster: the same
    run without them is the same to the last bit.
    """

    def __init__(
        self,
        policy: GPT,
        versions: Sequence[int],
        precision: str,
        draw: Callable[[GPT, int], Rollout],
        ranks: int = 0,
    ) -> None:
        self.policy, self.versions, self.precision = policy, versions, precision
        self.draw, self.ranks = draw, ranks
        self.updates = 0  # optimizer steps that the policy has taken
        self.kept: dict[int, dict[str, Tensor]] = {}
        self.model: GPT | None = None  # made when the policy itself cannot sample
        self.asked: set[int] = set()  # batches that other ranks are drawing
        self.keep()

    def keep(self) -> None:
        """Copy the policy's weights if a batch is to be drawn with them."""
        if self.versions and (self.updates in self.versions or not self.updates):
            state = changing_state(self.policy)
            self.kept[self.updates] = {name: tensor.clone() for name, tensor in state.items()}

    def updated(self) -> None:
        """Count an optimizer step."""
        self.updates += 1
        self.keep()

    def lag(self, batch: int) -> int:
        """The optimizer steps between the policy that draws `batch` and the policy as it is."""
        return self.updates - self.version(batch) if self.versions else 0

    def version(self, batch: int) -> int:
        """After how many optimizer steps the policy draws it."""
        return max(self.versions[batch], 0)

    def weights(self, batch: int) -> dict[str, Tensor]:
        """Those that draw it. UserError if the state of another run was resumed, which lacks them."""
        number = self.version(batch)
        if number not in self.kept:
            raise UserError(
                f"--lag: the run's state has no weights of {number} optimizer steps: resume with the flags "
                "in its config.json, or leave --resume out"
            )
        return self.kept[number]

    def rollout(self, batch: int, last: int) -> Rollout:
        """The answers of a batch, drawn here or on another rank; none is asked for from `last` on."""
        if not self.versions:
            return self.draw(self.policy, batch)
        if not self.ranks:
            drawn = self.draw(self.with_weights(self.weights(batch)), batch)
        else:
            self.ask(range(batch, min(batch + self.ranks, last)))
            drawn = receive(self.rank_of(batch))
            self.asked.discard(batch)
            self.ask(range(batch + self.ranks, min(batch + self.ranks + 1, last)))
        oldest = self.version(batch + 1)
        self.kept = {number: kept for number, kept in self.kept.items() if number >= oldest}
        return drawn

    def rank_of(self, batch: int) -> int:
        """Who draws it."""
        return 1 + batch % self.ranks

    def ask(self, batches: Iterable[int]) -> None:
        """Send the weights of these batches to the ranks that draw them, but for those at work."""
        for batch in batches:
            if batch not in self.asked:
                send((batch, self.weights(batch)), self.rank_of(batch))
                self.asked.add(batch)

    def with_weights(self, weights: dict[str, Tensor]) -> GPT:
        """A model with these weights, rounded."""
        if self.model is None:  # rounding would reach the tensors that a frozen copy shares
            exact = self.precision == "float32"
            self.model = (frozen_copy if exact else copy.deepcopy)(self.policy).requires_grad_(
                False
            )
        load_changing_state(self.model, weights)
        round_weights(self.model, self.precision)
        return self.model

    def serve(self) -> None:
        """On a rank that samples: draw what rank 0 asks for, until it says that nothing follows."""
        while (wish := receive(0)) is not None:
            batch, weights = wish
            send(self.draw(self.with_weights(weights), batch), 0)

    def dismiss(self) -> None:
        """The batches that nobody will train on are taken, and the ranks that drew them let go."""
        for batch in sorted(self.asked):
            receive(self.rank_of(batch))
        for number in range(1, self.ranks + 1):
            send(None, number)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and a count."""
        return {"updates": self.updates, "kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.updates, self.kept = state["updates"], dict(state["kept"])


def require_ranks(samplers: int, device: torch.device) -> None:
    """UserError unless there is one rank more than samplers, on CPUs."""
    if world() != samplers + 1 or device.type != "cpu":
        raise UserError(
            f"--samplers {samplers} needs {samplers + 1} ranks on CPUs, of which one trains: there are "
            f"{world()} on {device.type}; use --ranks {samplers + 1} --device cpu"
        )


@contextmanager
def only_one_trains(sampler: Sampler, log: MetricLog) -> Iterator[bool]:
    """Inside, this rank trains (True), or has sampled for the one that does (False).

    Afterwards all have the policy and the log of rank 0.
    """
    if not sampler.ranks:
        yield True
        return
    with each_alone():
        if is_main():
            yield True
            sampler.dismiss()
        else:
            sampler.serve()
            yield False
    log.rows[:] = gather(log.rows)[0]
    load_changing_state(sampler.policy, gather(changing_state(sampler.policy))[0])
