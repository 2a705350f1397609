"""The policy that samples where it is not the policy in training: older, or in lower precision."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from gpt.model import GPT
from harness.errors import UserError
from harness.frozen_copy import frozen_copy
from harness.here import HERE
from harness.metric_log import say_always
from harness.ranks.collectives import LostRank, Peer, gather, is_main, own_number, split, world
from harness.signals import signals_noted
from harness.training_state import changing_state, load_changing_state
from rl.batches.rollout import Rollout

MOST_REPLACED = 16  # samplers of a run: what kills more than that kills every one


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

    After `hand_out(count)` the last `count` ranks draw while the others train, batch b the one of number
    b % count among them. Rank 0 sends it the weights of its next batch when it has handed one over: which
    weights draw which batch follows from `versions`, not from who was faster.
    """

    def __init__(
        self,
        policy: GPT,
        versions: Sequence[int],
        precision: str,
        draw: Callable[[GPT, int], Rollout],
    ) -> None:
        self.policy, self.versions, self.precision = policy, versions, precision
        self.draw = draw
        self.updates = 0  # optimizer steps that the policy has taken
        self.kept: dict[int, dict[str, Tensor]] = {}
        self.model: GPT | None = None  # made when the policy itself cannot sample
        self.peers: list[Peer | Fork] = []  # who draws, if this one does not
        self.asked: set[int] = set()  # batches that they are drawing
        self.replaced, self.most_replaced = 0, 0  # of them that have ended
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
        drawn: Rollout | None
        if not self.peers:
            drawn = self.draw(self.with_weights(self.weights(batch)), batch)
        else:
            drawn = gather(self.received(batch, last) if is_main() else None)[0]
        assert drawn is not None
        oldest = self.version(batch + 1)
        self.kept = {number: kept for number, kept in self.kept.items() if number >= oldest}
        return drawn

    def received(self, batch: int, last: int) -> Rollout:
        """What a peer has drawn, which then gets its next batch; on rank 0."""
        self.ask(batch, last)
        try:
            drawn: Rollout = self.peers[batch % len(self.peers)].receive()
        except LostRank as error:
            self.replace(batch, error)
            return self.received(batch, last)
        self.asked.discard(batch)
        self.ask(batch + 1, last)
        return drawn

    def ask(self, first: int, last: int) -> None:
        """Send their weights to the peers that draw the batches from `first` on and are not at work."""
        for batch in range(first, min(first + len(self.peers), last)):
            if batch not in self.asked:
                self.asked.add(batch)
                try:
                    self.peers[batch % len(self.peers)].send((batch, self.weights(batch)))
                except LostRank as error:
                    self.replace(batch, error)

    def replace(self, batch: int, error: LostRank) -> None:
        """A new process draws the batch of one that has ended, or the error is raised again."""
        if self.replaced >= self.most_replaced:
            raise error
        self.replaced += 1
        say_always(
            f"a sampler has ended (killed, or out of memory?): a new one draws batch {batch}"
        )
        peer = self.peers[batch % len(self.peers)] = Fork(self.serve)
        peer.send((batch, self.weights(batch)))

    def with_weights(self, weights: dict[str, Tensor]) -> GPT:
        """A model with these weights, rounded."""
        if self.model is None:  # rounding would reach the tensors that a frozen copy shares
            exact = self.precision == "float32"
            self.model = (frozen_copy if exact else copy.deepcopy)(self.policy)
            self.model.requires_grad_(False)
        load_changing_state(self.model, weights)
        round_weights(self.model, self.precision)
        return self.model

    def hand_out(self, count: int, replace: bool) -> None:
        """Let the last `count` ranks draw; there this does not return. UserError if that cannot be.

        With `replace` one that ends is replaced by a process that rank 0 forks.
        """
        if not count:
            return
        trainers = world() - count
        if trainers < 1 or self.policy.device.type != "cpu":
            raise UserError(
                f"--samplers {count} needs {count + 1} ranks or more on CPUs, of which the others train: "
                f"there are {world()} on {self.policy.device.type}; use --ranks {count + 1} --device cpu"
            )
        if replace and platform.system() != "Linux":  # where a fork of this process is safe
            raise UserError("--on-dead-sampler replace needs Linux, to fork: use end")
        self.most_replaced = MOST_REPLACED if replace else 0
        split(trainers)
        if own_number() >= trainers:
            self.serve(Peer(0))
            sys.exit(0)
        self.peers = [Peer(trainers + number) for number in range(count)]

    def serve(self, trainer: Peer | Fork) -> None:
        """Draw what rank 0 asks for, until it says that nothing follows."""
        while (wish := trainer.receive()) is not None:
            batch, weights = wish
            trainer.send(self.draw(self.with_weights(weights), batch))

    def dismiss(self) -> None:
        """What nobody will train on is taken, and those that drew let go."""
        for batch in sorted(self.asked) if is_main() else ():
            with suppress(LostRank):
                self.peers[batch % len(self.peers)].receive()
        for peer in self.peers if is_main() else ():
            with suppress(LostRank):
                peer.send(None)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and a count."""
        return {"updates": self.updates, "kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.updates, self.kept = state["updates"], dict(state["kept"])


class Fork:
    """A process that does another rank's work: at this end of a pipe, or at its own."""

    def __init__(self, serve: Callable[[Fork], None]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, there = context.Pipe()
        context.Process(target=self.live, args=(serve, there), daemon=True).start()
        there.close()

    def live(self, serve: Callable[[Fork], None], pipe: Connection) -> None:
        """The life of the process, which ends with the run."""
        self.pipe.close()
        self.pipe, HERE.team = pipe, 1
        torch.set_num_threads(1)  # a fork has none of its parent's other threads
        with signals_noted(), suppress(LostRank):
            serve(self)

    def send(self, value: Any) -> None:
        """Give the other end something that can be pickled."""
        try:
            self.pipe.send_bytes(pickle.dumps(value))
        except OSError as error:
            raise LostRank from error

    def receive(self) -> Any:
        """What the other end sends next."""
        try:
            return pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise LostRank from error
