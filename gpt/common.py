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
import traceback
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from gpt.lora import changing_state, load_changing_state, merged_state
from gpt.memory.forecast import is_out_of_memory, out_of_memory_text
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import Tokenizer, build_tokenizer, load_tokenizer, parse_ranks
from harness.errors import Finished, UserError
from harness.files import append_jsonl, display_path, keep_until, write_atomically
from harness.optimizer import check_weights
from harness.ranks.collectives import Drifted, LostRank, is_main, world
from harness.ranks.launch import first_to_fail, run_on_ranks
from harness.report.writing import refresh
from harness.signals import Ended, forgiving_output, signals_noted

REPOSITORY = Path(__file__).resolve().parents[1]


def runs_folder(here: Path) -> Path:
    """Where run folders go by default: the checkout's runs/ inside of it, else runs/ under `here`.

    An installed package has no checkout, and nothing is written beside it.
    """
    inside = (REPOSITORY / "pyproject.toml").exists() and here.is_relative_to(REPOSITORY)
    return (REPOSITORY if inside else here) / "runs"


RUNS = runs_folder(Path.cwd())
MODEL_FILE = "model.safetensors"
STATE_FILE = "state.pt"

Config = TypeVar("Config")


# Devices and seeds --------------------------------------------------------------------------------


def pick_device(name: str = "auto", dtype: str = "float32") -> torch.device:
    """cuda, then mps, then cpu for "auto"; otherwise the named device, or UserError without it.

    `dtype` is the flag --precision. On CUDA it also decides what a float32 product is: exact with
    float32, TF32 (10 bits of mantissa in, float32 out) with bfloat16, where only the heads are
    computed so, whose log-probs it moves by some 0.002 nats. The sampler's log-probs are reused as
    old ones in float32 alone, so old and new ones are always of one kind.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cpu" and torch.backends.mps.is_available():
            name = "mps"
    try:
        device = torch.device(name)
    except RuntimeError:  # torch lists two dozen kinds of hardware
        raise UserError(f"--device {name}: use auto, cpu, cuda, cuda:N or mps") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"--device {name}: use auto, cpu, cuda, cuda:N or mps")
    missing = (device.type == "cuda" and not torch.cuda.is_available()) or (
        device.type == "mps" and not torch.backends.mps.is_available()
    )
    if missing:
        raise UserError(f"--device {name}: PyTorch finds no such device here; use --device cpu")
    if device == torch.device("cuda") and world() > 1:
        device = torch.device("cuda", torch.cuda.current_device())  # each rank has its own
    if device.type == "cuda":
        _prepare_cuda(device, dtype)
    return device


def _prepare_cuda(device: torch.device, dtype: str) -> None:
    """Make it the current device, choose the float32 product, and say so if bfloat16 is emulated."""
    if device.index is not None:
        torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = dtype == "bfloat16"
    if dtype == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        print(
            f"note: {torch.cuda.get_device_name(device)} has no bfloat16 arithmetic and emulates it, "
            "slowly: --precision float32 is faster there",
            flush=True,
        )


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

    "NAME/DATA" among the presets holds what differs for one world, such as "tiny/sums". Without
    `data` among the overrides the world is the reviews, as every script has it by default.
    """
    world = presets.get(f"{name}/{overrides.get('data', 'reviews')}", {})
    return config_class(**({"preset": name} | dict(presets[name]) | dict(world) | overrides))


def run_script(main: Callable[[Config], Any], config: Config) -> None:
    """Call main(config), on as many ranks as the flags ask for (harness/ranks/launch.py)."""
    guard = partial(explained, getattr(config, "debug", None))
    with guard():
        run_on_ranks(partial(_as_asked, main), config, guard)


def _as_asked(main: Callable[[Config], Any], config: Config) -> Any:
    """main(config) on one rank, by deterministic algorithms if the flags ask for them."""
    if not getattr(config, "deterministic", False):
        return main(config)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when the GPU is first used
    torch.use_deterministic_algorithms(True)
    try:
        return main(config)
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def explained(debug: bool | None = None) -> Iterator[None]:
    """A UserError and its kin end the script with one sentence, not a traceback.

    Of several ranks the first one that fails speaks; the others end in silence. With `debug` it shows
    the traceback too; None stands for a script without that flag.
    """
    with forgiving_output():
        try:
            with signals_noted():
                yield
        except (UserError, UserError, LostRank, Drifted) as error:
            _end(f"error: {error}", debug)
        except (
            ValueError
        ) as error:  # readers, configs and models explain themselves in one sentence
            hint = "\n(add --debug to see where it came from)" if debug is False else ""
            _end(f"error: {error}{hint}", debug)
        except Finished as done:
            print(done)  # of several ranks all, but only the first one's output goes anywhere
            sys.exit(0)
        except Ended as end:
            if first_to_fail():
                print(_farewell(end), file=sys.stderr)
            sys.exit(end.status)
        except Exception as error:
            if is_out_of_memory(error):
                _end(f"error: {out_of_memory_text()}", debug)
            if isinstance(error, OSError) and error.filename is not None:
                _end(f"error: {error.filename}: {error.strerror}", debug)
            if not first_to_fail():
                sys.exit(1)
            raise


def _farewell(end: Ended) -> str:
    """What a user who has ended a run must know to go on."""
    if end.saved is not None:
        return (
            f"ended by {end.name} after step {end.saved}, which is saved: --resume goes on from it"
        )
    return f"ended by {end.name}; --resume goes on from the run's last {STATE_FILE}, if it has one"


def _end(message: str, debug: bool | None) -> NoReturn:
    if not first_to_fail():
        sys.exit(1)
    if debug:
        traceback.print_exc()
    sys.exit(message)


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
            if any(key.startswith(("validation/", "held_out_")) for key in row):
                refresh(self.path.parent, self.rows)
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
    stopped: bool = False  # the run has ended early, and no step follows

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

        All ranks hold the same, so it may be resumed on any number of them. Raises Diverged instead of
        writing a weight that is not finite over an earlier state.
        """

        def write(path: Path) -> None:
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
        write_atomically(folder / STATE_FILE, write)

    def load(self, folder: Path) -> None:
        """Restore everything from state.pt."""
        path, state = folder / STATE_FILE, read_state(folder)
        try:
            for name, part in self.parts.items():
                load_changing_state(part, state["parts"][name])
            for name, generator in self.generators.items():
                generator.set_state(state["generators"][name])
            self.step, self.stopped = state["step"], state["stopped"]
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"{path} does not fit this run ({reason}): resume with the flags in its "
                "config.json, or leave --resume out"
            ) from error


def saved_step(folder: Path) -> int:
    """Completed steps of the run that `folder`'s state.pt continues; its tensors stay on the disk."""
    return int(read_state(folder, mapped=True)["step"])


def read_state(folder: Path, *, mapped: bool = False) -> dict[str, Any]:
    """What state.pt holds; if `mapped`, a tensor is read when it is used. UserError if it cannot be."""
    path = folder / STATE_FILE
    try:
        if path.exists() and not path.is_file():
            raise ValueError("no regular file, it may never end")
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
    if not path.is_file():
        raise UserError(f"{path} is no regular file, so no checkpoint: check the path")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except Exception as error:  # safetensors raises its own class for a damaged file
        raise UserError(
            f"{path} is not a readable safetensors file ({error}): train it again, or copy it again"
        ) from error
    if metadata.get("kind") != kind:
        raise UserError(
            f"{path} holds a {metadata.get('kind', 'file of another program')}, not a {kind}: "
            "pass the run folder of the right script"
        )
    try:
        about = json.loads(metadata["about"])
    except (KeyError, ValueError, RecursionError):
        about = None
    if not isinstance(about, dict):
        raise UserError(f"{path} does not say what it holds: it is damaged, train it again")
    return tensors, about


def about_gpt(model: GPT, tokenizer: Tokenizer) -> dict[str, Any]:
    """What a checkpoint's header must say to rebuild the model and refuse a wrong tokenizer.

    The ranks of a tokenizer from a file travel with the model, which then needs no second file.
    """
    about = {
        "gpt": dataclasses.asdict(model.config),
        "tokenizer": tokenizer.name,
        "tokenizer_fingerprint": tokenizer.fingerprint,
    }
    return about if tokenizer.ranks is None else about | {"tokenizer_ranks": tokenizer.ranks}


def save_gpt(path: Path, model: GPT, tokenizer: Tokenizer) -> None:
    """Write a GPT checkpoint (float32 tensors in our own names); an adapter is merged."""
    save_weights(path, merged_state(model), "gpt", about_gpt(model, tokenizer))


def load_gpt(path: Path, device: torch.device | str = "cpu") -> tuple[GPT, Tokenizer]:
    """A checkpoint written by `save_gpt`, with the tokenizer that it was trained with."""
    tensors, about = load_weights(path, "gpt")
    tokenizer = checked_tokenizer(about, path)
    with torch.device("meta"):  # shapes alone: the tensors of the file become the weights
        model = GPT(gpt_config_of(about, tensors, path))
    load_strictly(model, tensors, path)
    return model.to(device).eval(), tokenizer


def gpt_config_of(
    about: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path, prefix: str = ""
) -> GPTConfig:
    """The shape that a header gives; UserError unless it is that of the tensors beside it.

    Checked before a model is built: a wrong number could ask for more than any memory holds.
    """
    names = {field.name for field in dataclasses.fields(GPTConfig)}
    sizes = about.get("gpt")
    if not isinstance(sizes, dict) or sizes.keys() != names:
        raise UserError(f"{path} does not say its model's shape: it is damaged, train it again")
    layers = {
        name[len(prefix) :].split(".")[1] for name in tensors if name.startswith(f"{prefix}h.")
    }
    stored = {"n_layer": len(layers)}
    for table, count in (("wte", "vocab_size"), ("wpe", "context")):
        shape = (
            tensors[f"{prefix}{table}.weight"].shape if f"{prefix}{table}.weight" in tensors else ()
        )
        if len(shape) == 2:
            stored |= {count: shape[0], "n_embd": shape[1]}
    for name, value in sizes.items():
        kinds = (int, float) if name == "dropout" else (int,)
        if (
            type(value) not in kinds
            or value < (name != "dropout")
            or stored.get(name, value) != value
        ):
            raise UserError(
                f"{path} says {name} {value!r:.40}, its tensors {stored.get(name, 'allow no such size')}: "
                "it is damaged, train it again"
            )
    try:
        return GPTConfig(**sizes)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def checked_tokenizer(about: Mapping[str, Any], path: Path) -> Tokenizer:
    """The tokenizer that a checkpoint names; UserError if its ranks have changed since."""
    name, ranks = about.get("tokenizer", ""), about.get("tokenizer_ranks")
    try:
        if isinstance(ranks, str) and isinstance(name, str):
            tokenizer = build_tokenizer(name, parse_ranks(ranks, path))
        else:
            tokenizer = load_tokenizer(str(name))
    except ValueError as error:
        raise UserError(f"{path}: {error}; train it again") from error
    if tokenizer.fingerprint != about.get("tokenizer_fingerprint"):
        raise UserError(
            f"{path} was trained with another version of tokenizer {tokenizer.name!r} (its ranks "
            "differ from the ones here): train the model again"
        )
    return tokenizer


def load_strictly(model: torch.nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put every tensor into its place; UserError for any left over, missing or of another shape.

    They become the model's own, not copies: a model built on the meta device takes no memory before.
    """
    own = model.state_dict()
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or extra:
        raise UserError(
            f"{path} does not match the model: missing {missing[:3]}, left over {extra[:3]}; "
            "it was saved by another version, train it again"
        )
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise UserError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, the model wants "
                f"{tuple(own[name].shape)}: the checkpoint belongs to another model size"
            )
    fitting = {name: tensor.to(own[name].dtype) for name, tensor in tensors.items()}
    model.load_state_dict(fitting, assign=True)


def load_policy(folder: Path, device: torch.device) -> tuple[GPT, Tokenizer]:
    """`load_gpt` with the hint that a script's user needs when the folder is not there."""
    if not (Path(folder) / MODEL_FILE).exists():
        raise UserError(
            f"there is no model in {display_path(Path(folder))}: pass the run folder of "
            "gpt.pretraining or gpt.finetuning"
        )
    return load_gpt(Path(folder), device)
