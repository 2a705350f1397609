"""What every script shares: devices, seeds, run folders, metric logs and checkpoints.

A run lives in one folder: config.json (the flags), metrics.jsonl (one object a step), samples.jsonl
(where responses are sampled), model.safetensors (weights; its header says what they are) and, while
training, state.pt (everything that a resumed run needs). Files are written to a temporary name and
renamed, so a crash never leaves half a checkpoint, and nothing is loaded through pickle.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from gpt.forecast import is_out_of_memory, out_of_memory_text
from gpt.launch import first_to_fail, run_on_ranks
from gpt.lora import changing_state, load_changing_state, merged_state
from gpt.model import GPT, GPTConfig
from gpt.ranks import Drifted, LostRank, is_main, on_main, world
from gpt.tokenizer import Tokenizer, TokenizerUnavailable, load_tokenizer

REPOSITORY = Path(__file__).resolve().parents[1]
RUNS = REPOSITORY / "runs"
MODEL_FILE = "model.safetensors"
STATE_FILE = "state.pt"

Config = TypeVar("Config")


class UserError(ValueError):
    """A mistake that one sentence can explain: what is wrong, where, and what to do."""


# Devices and seeds --------------------------------------------------------------------------------


def pick_device(name: str = "auto") -> torch.device:
    """cuda, then mps, then cpu for "auto"; otherwise the named device, or UserError without it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cpu" and torch.backends.mps.is_available():
            name = "mps"
    try:
        device = torch.device(name)
    except RuntimeError:  # torch lists two dozen kinds of hardware
        raise UserError(f"--device {name}: use auto, cpu, cuda, cuda:N or mps") from None
    missing = (device.type == "cuda" and not torch.cuda.is_available()) or (
        device.type == "mps" and not torch.backends.mps.is_available()
    )
    if missing:
        raise UserError(f"--device {name}: PyTorch finds no such device here; use --device cpu")
    if device == torch.device("cuda") and world() > 1:
        return torch.device("cuda", torch.cuda.current_device())  # each rank has its own
    return device


def make_generator(seed: int, concern: str) -> torch.Generator:
    """A CPU generator of its own for one concern ("sampling", "weights", ...).

    Separate streams: drawing more numbers for one concern never shifts another's.
    """
    return torch.Generator().manual_seed(derive_seed(seed, concern))


def derive_seed(seed: int, concern: str) -> int:
    """A 32-bit seed that depends on both arguments and on nothing else."""
    return zlib.crc32(f"{seed}:{concern}".encode())


def precision(device: torch.device, dtype: str) -> Any:
    """A context manager: bfloat16 autocast over float32 weights, or nothing for "float32"."""
    if dtype == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


# Command line -------------------------------------------------------------------------------------


def preset_defaults(
    config_class: Callable[..., Config],
    presets: Mapping[str, Mapping[str, Any]],
    arguments: Sequence[str] | None = None,
) -> Config:
    """The default config for a command line: `--preset` and `--data` are looked up before the rest.

    tyro then parses all flags on top of it, so a preset never overrides a flag that is given.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    name = flag_value(arguments, "--preset")
    data = flag_value(arguments, "--data")
    overrides = {} if data is None else {"data": data}
    if (
        name is None or name not in presets
    ):  # a wrong name is left to the parser, which lists the choices
        name = "tiny"
    return from_preset(config_class, presets, name, **overrides)


def flag_value(arguments: Sequence[str], flag: str) -> str | None:
    """What a command line gives to `flag`, as `--flag value` or `--flag=value`; None if nothing."""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == flag and (equals or index + 1 < len(arguments)):
            return value if equals else arguments[index + 1]
    return None


def from_preset(
    config_class: Callable[..., Config],
    presets: Mapping[str, Mapping[str, Any]],
    name: str,
    **overrides: Any,
) -> Config:
    """The config of a named preset with some fields replaced.

    "NAME/DATA" among the presets holds what differs for one world, such as "tiny/sums".
    """
    world = presets.get(f"{name}/{overrides.get('data')}", {})
    return config_class(**({"preset": name} | dict(presets[name]) | dict(world) | overrides))


def run_script(main: Callable[[Config], Any], config: Config) -> None:
    """Call main(config), on as many ranks as the flags ask for (gpt/launch.py)."""
    with explained():
        run_on_ranks(main, config, explained)


@contextmanager
def explained() -> Iterator[None]:
    """A UserError and its kin end the script with one sentence, not a traceback.

    Of several ranks the first one that fails speaks; the others end in silence.
    """
    try:
        yield
    except (UserError, TokenizerUnavailable, LostRank, Drifted) as error:
        _end(f"error: {error}")
    except ValueError as error:  # readers, configs and models explain themselves in one sentence
        if os.environ.get("GLASSBOX_TRACEBACK"):
            raise
        _end(f"error: {error}\n(set GLASSBOX_TRACEBACK=1 to see where it came from)")
    except KeyboardInterrupt:
        _end("interrupted; what was written so far is kept, and --resume goes on from state.pt")
    except Exception as error:
        if is_out_of_memory(error) and not os.environ.get("GLASSBOX_TRACEBACK"):
            _end(f"error: {out_of_memory_text()}")
        if isinstance(error, OSError) and error.filename is not None:
            _end(f"error: {error.filename}: {error.strerror}")
        if not first_to_fail():
            sys.exit(1)
        raise


def _end(message: str) -> NoReturn:
    sys.exit(message if first_to_fail() else 1)


# Files --------------------------------------------------------------------------------------------


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary neighbour of `path`, then rename it into place.

    Of several ranks the first one writes, and the others wait until the file is there.
    """

    def replace_it() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            write(temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    on_main(replace_it)


def write_json(path: Path, value: Any) -> None:
    """Write plain data as indented JSON, atomically."""
    text = json.dumps(value, indent=2, default=str) + "\n"

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append one JSON object a line and flush; of several ranks the first one, which alone reads `rows`."""

    def append() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")

    on_main(append)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Every row of a JSON-lines file; a last line cut off by a crash is left out.

    UserError for any other line that is no JSON.
    """
    rows = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                rows.append(json.loads(line))
            except ValueError:  # no JSON, or no UTF-8
                if not line.endswith(b"\n"):  # the last one, cut off while it was written
                    break
                raise UserError(
                    f"{display_path(path)}:{number} is damaged, it is no JSON: mend or delete the line"
                ) from None
    return rows


def keep_until(path: Path, step: int) -> list[dict[str, Any]]:
    """Drop the rows after `step`, which a resumed run writes again; returns the rows that stay."""

    def keep() -> list[dict[str, Any]]:
        if not path.exists():
            return []
        kept = [row for row in read_jsonl(path) if row["step"] <= step]
        write_atomically(path, lambda temporary: append_jsonl(temporary, kept))
        return kept

    return on_main(keep)


# What may change when a run is resumed: how long it is, where it runs and how it is watched.
FREE_FLAGS = (
    "steps", "device", "out", "resume", "eval_every", "eval_prompts", "test_prompts",
    "checkpoint_every", "ranks",
)  # fmt: skip


def open_run(folder: Path, config: Any, *, resume: bool = False) -> Path:
    """Make a run folder and write config.json. An earlier run there is moved aside, never lost.

    With `resume` the folder is kept as it is, must hold a state.pt and have been started with the
    same flags, but for FREE_FLAGS. Returns the folder.
    """
    return on_main(lambda: _open_run(folder, config, resume=resume))


def _open_run(folder: Path, config: Any, *, resume: bool) -> Path:
    flags = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    if resume:
        if not (folder / STATE_FILE).exists():
            raise UserError(
                f"{folder} holds no {STATE_FILE} to resume from: leave --resume out to start anew"
            )
        started = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        for name, value in flags.items():
            if name not in FREE_FLAGS and name in started and started[name] != value:
                raise UserError(
                    f"the run in {folder} was started with {name} {started[name]}, not {value}: "
                    "resume with the flags in its config.json, or leave --resume out"
                )
        return folder
    if folder.exists() and any(folder.iterdir()):
        number = 1
        while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
            number += 1
        folder.rename(aside)
        print(f"an earlier run was moved to {display_path(aside)}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", flags)
    return folder


def display_path(path: Path) -> str:
    """Relative to the current folder where that is shorter."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure, its folder too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    on_main(lambda: figure.savefig(path, dpi=120))


# Metrics ------------------------------------------------------------------------------------------


class MetricLog:
    """Collects one row of numbers a step, appends it to a file and shows progress with an ETA.

    One line every `every` steps, in a terminal above a tqdm bar; `show` names the metrics on it.
    Without a path and with show=() it only collects, as notebooks and tests want it.
    """

    def __init__(
        self,
        total: int,
        *,
        path: Path | None = None,
        show: Sequence[str] = (),
        every: int = 10,
        title: str = "",
        start: int = 0,
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self.path, self.show, self.every, self.total, self.title = path, show, every, total, title
        if path is not None:  # a file is there if the run is resumed
            self.rows = keep_until(path, start)
        self.start, self.begin = start, time.perf_counter()
        self.bar = None
        if show and sys.stderr.isatty() and is_main():
            self.bar = tqdm(total=total, initial=start, desc=title, unit="step", leave=True)

    def write(self, *, step: int, **metrics: Any) -> None:
        """Record step number `step`, counted from 1. Tensors of one element become numbers."""
        row = {"step": step} | {
            key: value.item() if isinstance(value, Tensor) else value
            for key, value in metrics.items()
        }
        self.rows.append(row)
        if self.path is not None:
            append_jsonl(self.path, [row])
        if self.bar is not None:
            self.bar.update(step - self.bar.n)
        if self.show and (step % self.every == 0 or step == self.total):
            self._print(row)
        if step == self.total:
            self.close()

    def _print(self, row: Mapping[str, Any]) -> None:
        step = row["step"]
        shown = "  ".join(f"{key} {row[key]:.4g}" for key in self.show if key in row)
        elapsed = time.perf_counter() - self.begin
        left = elapsed / max(step - self.start, 1) * (self.total - step)
        line = f"{self.title} {step}/{self.total}  {shown}"
        if self.bar is not None:
            self.bar.write(line)  # above the bar, which has its own ETA
        else:
            print(f"{line}  ETA {left:.0f} s", flush=True)

    def close(self) -> None:
        """The end of the run, before `total` steps too: print the last row if it was not due."""
        row = self.rows[-1] if self.rows else None
        if self.show and row and row["step"] % self.every and row["step"] != self.total:
            self._print(row)
        if self.bar is not None:
            self.bar.close()


# Checkpoints --------------------------------------------------------------------------------------


class HasState(Protocol):
    """A module, an optimizer or anything else that can be saved and restored."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


@dataclasses.dataclass
class TrainingState:
    """All that changes during a run, in one place: what is saved is what is resumed."""

    parts: dict[str, HasState]
    generators: dict[str, torch.Generator]
    step: int = 0  # completed steps

    def save(self, folder: Path) -> None:
        """Write state.pt: tensors and plain dicts only, so that it loads without pickle.

        All ranks hold the same, so it may be resumed on any number of them.
        """

        def write(path: Path) -> None:
            state = {
                "step": self.step,
                "parts": {name: changing_state(part) for name, part in self.parts.items()},
                "generators": {name: g.get_state() for name, g in self.generators.items()},
            }
            torch.save(state, path)

        write_atomically(folder / STATE_FILE, write)

    def load(self, folder: Path) -> None:
        """Restore everything from state.pt."""
        path, state = folder / STATE_FILE, read_state(folder)
        try:
            for name, part in self.parts.items():
                load_changing_state(part, state["parts"][name])
            for name, generator in self.generators.items():
                generator.set_state(state["generators"][name])
            self.step = state["step"]
        except (KeyError, RuntimeError, ValueError) as error:
            raise UserError(
                f"{path} does not fit this run ({str(error).splitlines()[0]}): resume with the "
                "flags in its config.json, or leave --resume out"
            ) from error


def saved_step(folder: Path) -> int:
    """Completed steps of the run that `folder`'s state.pt continues."""
    return int(read_state(folder)["step"])


def read_state(folder: Path) -> dict[str, Any]:
    """What state.pt holds. UserError if it cannot be read."""
    path = folder / STATE_FILE
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file: torch, pickle and zip raise their own classes
        raise UserError(
            f"{path} cannot be read ({type(error).__name__}): leave --resume out to start anew"
        ) from error


def save_weights(path: Path, tensors: Mapping[str, Tensor], kind: str, about: Mapping) -> None:
    """Write tensors as safetensors; the header says what they are (`kind`) and `about` it."""
    metadata = {"kind": kind, "about": json.dumps(about)}

    def write(temporary: Path) -> None:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(plain, temporary, metadata)

    write_atomically(path, write)


def load_weights(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and `about` of a checkpoint of this kind. UserError if it is missing or another kind."""
    path = Path(path)
    if path.is_dir():
        path = path / MODEL_FILE
    if not path.exists():
        raise UserError(f"there is no checkpoint at {path}: check the path, or train it first")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except Exception as error:  # safetensors raises its own class for a damaged file
        raise UserError(f"{path} is not a readable safetensors file ({error})") from error
    if metadata.get("kind") != kind:
        raise UserError(
            f"{path} holds a {metadata.get('kind', 'file of another program')}, not a {kind}: "
            "pass the run folder of the right script"
        )
    return tensors, json.loads(metadata["about"])


def about_gpt(model: GPT, tokenizer: Tokenizer) -> dict[str, Any]:
    """What a checkpoint's header must say to rebuild the model and refuse a wrong tokenizer."""
    return {
        "gpt": dataclasses.asdict(model.config),
        "tokenizer": tokenizer.name,
        "tokenizer_fingerprint": tokenizer.fingerprint,
    }


def save_gpt(path: Path, model: GPT, tokenizer: Tokenizer) -> None:
    """Write a GPT checkpoint (float32 tensors in our own names); an adapter is merged."""
    save_weights(path, merged_state(model), "gpt", about_gpt(model, tokenizer))


def load_gpt(path: Path, device: torch.device | str = "cpu") -> tuple[GPT, Tokenizer]:
    """A checkpoint written by `save_gpt`, with the tokenizer that it was trained with."""
    tensors, about = load_weights(path, "gpt")
    tokenizer = checked_tokenizer(about, path)
    model = GPT(GPTConfig(**about["gpt"]))
    load_strictly(model, tensors, path)
    return model.to(device).eval(), tokenizer


def checked_tokenizer(about: Mapping[str, Any], path: Path) -> Tokenizer:
    """The tokenizer that a checkpoint names; UserError if its ranks have changed since."""
    tokenizer = load_tokenizer(about["tokenizer"])
    if tokenizer.fingerprint != about["tokenizer_fingerprint"]:
        raise UserError(
            f"{path} was trained with another version of tokenizer {tokenizer.name!r} (its ranks "
            "differ from the ones here): train the model again"
        )
    return tokenizer


def load_strictly(model: torch.nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load every tensor into its place; UserError for any left over, missing or of another shape."""
    own = model.state_dict()
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or extra:
        raise UserError(
            f"{path} does not match the model: missing {missing[:3]}, left over {extra[:3]}; "
            "was it saved by another version?"
        )
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise UserError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, the model wants "
                f"{tuple(own[name].shape)}: the checkpoint belongs to another model size"
            )
    model.load_state_dict(dict(tensors))


def load_policy(folder: Path, device: torch.device) -> tuple[GPT, Tokenizer]:
    """`load_gpt` with the hint that a script's user needs when the folder is not there."""
    if not (Path(folder) / MODEL_FILE).exists():
        raise UserError(
            f"there is no model in {display_path(Path(folder))}: pass the run folder of "
            "gpt.pretraining or gpt.finetuning"
        )
    return load_gpt(Path(folder), device)
