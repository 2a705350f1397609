"""A model by its name: a run, a folder in Hugging Face's layout, or OWNER/NAME of the hub.

    found = ModelFolder.open("runs/grpo-reviews-tiny")
    found.shape, found.weights, found.chat_template       known without a tensor
    policy, tokenizer = found.model(device), found.tokenizer()

Every command opens its models here. config.json, the header of the weights and the tokenizer's settings
are read once; what cannot be opened is refused here, in the same words whichever command asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from gpt.checkpoint import checked_tokenizer, gpt_config_of, load_shaped
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import Tokenizer
from harness.errors import UserError
from harness.files import as_user_error, expanded, parse_json, read_object, record_input
from harness.flags import SMALL, renamed
from harness.paths import MODEL_FILE, folder_of_run
from harness.safetensors_file import read_header

CONFIG_FILE, ADAPTER_FILE = "config.json", "adapter_config.json"  # the second is peft's
EXPORTED = "glassbox_rlhf"  # in a config.json: what we say of a reward model that we wrote
FILES = (
    CONFIG_FILE, "*.safetensors*", "pytorch_model*.bin*", "tokenizer*.json", "vocab.json", "merges.txt",
    "added_tokens.json", "generation_config.json", "chat_template.jinja", ADAPTER_FILE,
)  # fmt: skip
HUB_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")  # of openai-community


@dataclass(frozen=True)
class ModelFolder:
    """What a model's folder says of it. `model` and `tokenizer` read the rest, when they are wanted."""

    origin: str  # what the user wrote
    folder: Path
    kind: str  # gpt, which writes, or reward_model
    shape: GPTConfig
    weights: int  # numbers in its files
    chat_template: str | None
    run: Mapping[str, Any] | None  # the flags in a run's config.json; None of published weights
    about: Mapping[str, Any] = field(repr=False)  # the header of ours, or config.json
    settings: Mapping[str, Any] = field(repr=False, default_factory=dict)  # tokenizer_config.json
    chat_arguments: tuple[str, ...] = ()  # NAME=VALUE, set in the template
    base: ModelFolder | None = None  # of an adapter: the model that it is merged into

    @staticmethod
    def open(name: str | Path) -> ModelFolder:
        """What `name` stands for. UserError where there is no model, or one that is not supported."""
        folder = place_of(name)
        files = sorted(path for pattern in FILES for path in folder.glob(pattern))
        if base_of(folder) is not None:
            from gpt import adapters  # which few runs need

            found = adapters.opened(str(name), folder)
        else:
            found = _opened(str(name), folder, tuple((path.name, *_state(path)) for path in files))
        for path in files:
            ours = found.run is not None and not found.base
            if not ours and path.suffix not in (".safetensors", ".bin"):
                record_input(path)
        return found

    @property
    def start(self) -> Literal["fresh", "pre-trained", "chat"]:
        """What the model has read: little, much, or chats."""
        if self.chat_template is not None:
            return "chat"
        return "pre-trained" if self.run is None or self.weights > SMALL else "fresh"

    @property
    def preset(self) -> str | None:
        """The shape from which a run's model was made, where that is recorded."""
        return None if self.run is None else self.run.get("preset")

    @property
    def name(self) -> str | None:
        """The published weights that it comes from, also through other runs; None for none."""
        if self.base is not None:
            return self.base.name
        if self.run is None:
            return hub_name(self.origin) or self.folder.resolve().name
        return published_start(self.run)

    @property
    def ours(self) -> Mapping[str, Any]:
        """What an exported folder says of a reward model of ours; nothing of others."""
        return self.about.get(EXPORTED) or {}

    def model(self, device: torch.device | str = "cpu") -> GPT:
        """The model, in eval mode, float32. UserError for a reward model, and for damaged weights."""
        if self.kind != "gpt":
            raise UserError(
                f"{self.origin} is a reward model, which writes no answers: name a policy here, and this "
                "one where a command takes --reward-model (rl.export writes it with --hf)"
            )
        if self.base is not None:
            from gpt import adapters

            model = adapters.merged(self.base, self.folder, self.origin)
        elif self.run is not None:
            model = load_shaped(self.folder / MODEL_FILE, self.shape)
        else:
            from gpt import huggingface

            model = huggingface.load_hf(self.folder, self.shape, self.about)
        if self.run is not None or self.has_tokenizer:
            model.n_text = self.tokenizer().n_vocab
        return model.to(device)

    @property
    def has_tokenizer(self) -> bool:
        """Whether the files of a published tokenizer are here."""
        return any((self.folder / name).is_file() for name in ("tokenizer.json", "vocab.json"))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the model reads and writes."""
        return self._tokenizer

    def with_chat_arguments(self, arguments: Sequence[str]) -> ModelFolder:
        """The same with these arguments of its chat template; UserError for a model without one."""
        if not arguments:
            return self
        if self.chat_template is None:
            raise UserError(f"{self.origin} has no chat template: leave --chat-arguments out")
        return replace(self, chat_arguments=tuple(arguments))

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        if self.chat_arguments:
            from data.templates import with_arguments

            about = replace(self, chat_arguments=()).tokenizer().about
            form = about["tokenizer_form"]
            template = with_arguments(form["chat_template"], self.chat_arguments)
            about["tokenizer_form"] = form | {"chat_template": template}
            return checked_tokenizer(about, self.folder / MODEL_FILE)
        if self.base is not None and not self.has_tokenizer:
            return self.base.tokenizer()
        if self.base is None and self.run is not None:
            return checked_tokenizer(self.about, self.folder / MODEL_FILE)
        from gpt import huggingface

        return huggingface.load_tokenizer_of(self.folder, self.shape, self.about, self.settings)


def open_model(
    name: str | Path, device: torch.device | str = "cpu", chat_arguments: Sequence[str] = ()
) -> tuple[GPT, Tokenizer]:
    """The model that `name` stands for, and its tokenizer with these arguments of its chat template."""
    found = ModelFolder.open(name).with_chat_arguments(chat_arguments)
    return found.model(device), found.tokenizer()


def _state(path: Path) -> tuple[int, ...]:
    now = path.stat()
    return now.st_ino, now.st_size, now.st_mtime_ns


@cache
def _opened(origin: str, folder: Path, state: tuple[Any, ...]) -> ModelFolder:
    """The folder as it is in this `state` of its files."""
    with as_user_error(folder):
        path = folder / CONFIG_FILE
        config = read_object(path) if path.is_file() else {}
        if "model_type" in config:
            from gpt import huggingface

            kind, shape, weights, template, settings = huggingface.described(folder, config)
            return ModelFolder(
                origin, folder, kind, shape, weights, template, None, config, settings
            )
        return _own(origin, folder, renamed(config))


def _own(origin: str, folder: Path, run: Mapping[str, Any]) -> ModelFolder:
    """The model of a run, or of a folder into which `save_gpt` has written."""
    path = folder / MODEL_FILE
    if not path.exists():
        raise UserError(
            f"there is no model in {origin} (no {MODEL_FILE}): name a run folder, one in Hugging Face's "
            "layout, or a model of the hub as hf://OWNER/NAME"
        )
    metadata, shapes = read_header(path)
    kind = metadata.get("kind")
    if kind not in ("gpt", "reward_model"):
        raise UserError(
            f"{path} holds a {kind or 'file of another program, without its config.json'}, not a model: "
            "name a run folder, or one in Hugging Face's layout"
        )
    about = parse_json(metadata.get("about", "null"))
    if not isinstance(about, dict):
        raise UserError(f"{path} does not say what it holds: it is damaged, train it again")
    template = (about.get("tokenizer_form") or {}).get("chat_template")
    shape, weights = gpt_config_of(about, shapes, path), sum(shapes.values())
    return ModelFolder(origin, folder, kind, shape, weights, template or None, run, about)


# From a name to a folder --------------------------------------------------------------------------


def place_of(name: str | Path) -> Path:
    """The folder that a name stands for; what the hub's cache lacks of one of its models is fetched."""
    repo = hub_repo(name)
    if repo is None:
        return folder_of_run(expanded(Path(name)))
    from gpt import huggingface

    return huggingface.hub_folder(repo, str(name))


def hub_repo(name: str | Path) -> str | None:
    """OWNER/NAME on the hub; None where `name` is none, or a folder here.

    So is every path into a folder that is here: a slip in the name of a run asks no network.
    """
    name, path = str(name), Path(name)
    plain = name.removeprefix("hf://")
    if plain == name and (path.exists() or (path.parent.name and Path(path.parts[0]).exists())):
        return None
    if plain in HUB_NAMES:
        return f"openai-community/{plain}"
    return plain if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", plain) else None


def hub_name(name: str) -> str | None:
    """NAME of a model of the hub, None for a folder."""
    repo = hub_repo(name)
    return repo and repo.partition("/")[2]


def base_of(folder: Path) -> str | None:
    """What an adapter's folder says that it is for; None for any other folder."""
    weights = (folder / name for name in (MODEL_FILE, f"{MODEL_FILE}.index.json"))
    if not (folder / ADAPTER_FILE).is_file() or any(path.exists() for path in weights):
        return None
    named = str(read_object(folder / ADAPTER_FILE).get("base_model_name_or_path") or "")
    return str(folder / named) if named and (folder / named).is_dir() else named


def first_model(flags: Mapping[str, Any]) -> str | None:
    """The published weights that a run's flags start from, through other runs, as they are named."""
    for _ in range(99):  # runs that name each other have no first one
        named: str | None = flags.get("model")
        if not named or hub_repo(named):
            return named
        folder, flags = folder_of_run(expanded(Path(named))), {}
        with suppress(OSError, UserError):
            flags = {"model": base_of(folder)}
            flags = flags if flags["model"] else renamed(read_object(folder / CONFIG_FILE))
        if "model_type" in flags:
            return named
    return None


def published_start(flags: Mapping[str, object]) -> str | None:
    """The name of these weights."""
    named = first_model(flags)
    return named and (hub_name(named) or folder_of_run(expanded(Path(named))).resolve().name)


def name_of(model: str | None) -> str | None:
    """The name of the published weights that a model comes from, as far as it can be opened."""
    if model is None:
        return None
    if named := hub_name(model):
        return named
    try:
        return ModelFolder.open(model).name
    except (OSError, UserError):
        return published_start({"model": model})


def weights_of(name: str) -> int:
    """The number of weights of a model; 0 of one that cannot be opened, many of one of the hub."""
    try:
        return ModelFolder.open(name).weights
    except (OSError, UserError):
        return 0 if hub_repo(name) is None else SMALL
