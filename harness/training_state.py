"""What a run needs to go on: weights, optimizers, generators and the step, in state.pt."""

from __future__ import annotations

import dataclasses
import time
import zipfile
from pathlib import Path
from typing import Any, Protocol

import torch

from harness.errors import UserError, first_line
from harness.files import require_regular, write_atomically
from harness.optimizer import check_weights
from harness.paths import STATE_FILE
from harness.ranks.collectives import gather
from harness.signals import Interrupted, note_saved, signal_of_any_rank

OPENED_AGAIN = {"start", "reference"}  # which runs of 0.3 have saved
SECONDS = 180  # between two states
SHARE = (
    20  # of that, but at least so many times as long as writing one takes: a twentieth of the time
)


class Stateful(Protocol):
    """A module, an optimizer, or what else changes during a run."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> object: ...


@dataclasses.dataclass
class TrainingState:
    """All that changes during a run: what is saved is what is resumed."""

    parts: dict[str, Stateful]
    generators: dict[str, torch.Generator]
    step: int = 0  # completed steps
    stopped: bool = False  # the run has ended early, and no step follows
    saved_at: float = dataclasses.field(default_factory=time.monotonic)  # or made at
    writing: float = 0.0  # seconds that the last one took

    def steps_left(self, total: int) -> range:
        """The 0-based steps of `total` that are still to do, each of which `keep_state` follows."""
        if self.step > total:
            raise UserError(
                f"{self.step} steps are done already, more than --steps {total}: raise --steps, or "
                "leave --resume out"
            )
        return range(self.step, self.step if self.stopped else total)

    def save(self, folder: Path) -> None:
        """Write state.pt: tensors and plain dicts only, so that it loads without pickle.

        Raises Diverged instead of writing a weight that is not finite over an earlier state.
        """

        def write(path: Path) -> None:
            """Fill the temporary file."""
            state = {
                "step": self.step,
                "stopped": self.stopped,
                "parts": {name: changing_state(part) for name, part in self.parts.items()},
                "generators": {name: g.get_state() for name, g in self.generators.items()},
            }
            with path.open("wb") as file:  # through Python, which says why a write fails
                torch.save(state, file)

        for name, part in self.parts.items():
            if isinstance(part, torch.nn.Module):
                check_weights(name, part, self.step)
        begin = time.monotonic()
        write_atomically(folder / STATE_FILE, write)
        self.saved_at, self.writing = time.monotonic(), time.monotonic() - begin
        note_saved(self.step)

    def is_old(self) -> bool:
        """Whether the last one was saved so long ago, by the first rank's clock, that another is due."""
        wait = max(SECONDS, SHARE * self.writing)
        return gather(time.monotonic() - self.saved_at >= wait)[0]

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. UserError for a state of other parts, or a damaged one."""
        path, state = folder / STATE_FILE, read_state(folder)
        try:
            for kind, own in (("parts", self.parts), ("generators", self.generators)):
                others = state[kind].keys() ^ own.keys()
                if others - (OPENED_AGAIN - own.keys()):
                    raise ValueError(f"its {kind} are not {', '.join(own)}")
            for name, part in self.parts.items():
                load_changing_state(part, state["parts"][name])
            for name, generator in self.generators.items():
                generator.set_state(state["generators"][name])
            self.step, self.stopped = state["step"], state["stopped"]
            note_saved(self.step)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(
                f"{path} does not fit this run ({first_line(error)}): resume with the flags in its "
                "config.json, or leave --resume out"
            ) from error


def keep_state(state: TrainingState, folder: Path | None, every: int | None, *, last: bool) -> None:
    """After a step: save what is due, every `every` steps (None: minutes) and the last one.

    Nothing without a folder.
    Raises Interrupted if a signal has asked to stop, which is then saved too.
    """
    if folder is None:
        return
    number = signal_of_any_rank()
    due = state.step % every == 0 if every else state.is_old()
    if last or number or due:
        state.save(folder)
    if number:
        raise Interrupted(number, state.step)


def unchanging_names(part: object) -> set[str]:
    """The names in a part's state that no step changes: what its modules say of their own tensors."""
    if not isinstance(part, torch.nn.Module):
        return set()
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in part.named_modules()
        if hasattr(module, "unchanging_names")
        for name in module.unchanging_names()
    }


def changing_state(part: Stateful) -> dict[str, Any]:
    """What a checkpoint holds of a part of a run: its state without what no step changes."""
    state, unchanging = part.state_dict(), unchanging_names(part)
    return {name: value for name, value in state.items() if name not in unchanging}


def load_changing_state(part: Stateful, state: dict[str, Any]) -> None:
    """Restore what `changing_state` gave. ValueError for the state of other adapters, or of none."""
    if unchanging_names(part):
        if state.keys() != changing_state(part).keys():
            raise ValueError("it holds other tensors than the adapters of this model")
        state = part.state_dict() | dict(state)
    part.load_state_dict(state)
    if isinstance(part, torch.optim.Optimizer):
        for parameter, moments in part.state.items():
            # It does not look itself, and would read past the end of a moment that is too small.
            if any(m.ndim and m.shape != parameter.shape for m in moments.values()):
                raise ValueError("a moment has another shape than its weight")


def saved_step(folder: Path) -> int:
    """Completed steps of the run that `folder`'s state.pt continues; its tensors stay on the disk."""
    return int(read_state(folder, mapped=True)["step"])


def read_state(folder: Path, name: str = STATE_FILE, *, mapped: bool = False) -> dict[str, Any]:
    """What state.pt holds; if `mapped`, a tensor is read when it is used. UserError if it cannot be."""
    path = folder / name
    require_regular(path)
    try:
        with zipfile.ZipFile(path) as records:  # torch does not look at their checksums
            damaged = records.testzip()
        if damaged:
            raise ValueError(f"{damaged} is damaged")
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # a damaged file: torch, pickle and zip raise their own classes
        raise UserError(
            f"{path} cannot be read ({type(error).__name__}): leave --resume out to start anew"
        ) from error
    step = state.get("step") if isinstance(state, dict) else None
    if type(step) is not int or step < 0:
        raise UserError(
            f"{path} is no state of a run, it counts no steps: leave --resume out to start anew"
        )
    return state
