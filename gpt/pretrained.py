"""Published GPT-2 weights: open them, write them, fetch them.

A checkpoint in Hugging Face layout is a folder with config.json and model.safetensors. Its tensors
carry the names used in gpt/model.py, with these differences:

    transformer.           before every name in files that transformers writes, not in OpenAI's
    c_attn, c_fc, c_proj   weights stored as (in, out), where nn.Linear holds (out, in): transposed
    h.i.attn.bias          in old files: the causal mask, (1, 1, context, context), and no bias
    lm_head.weight         in some files: the output head, which GPT-2 ties to wte

The c_proj of attention is square, so a forgotten transpose passes every check of shapes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from gpt.common import MODEL_FILE, UserError, write_atomically, write_json
from gpt.model import GPT, PRESETS, GPTConfig

CONFIG_FILE = "config.json"
PREFIX = "transformer."
HEAD = "lm_head.weight"
TRANSPOSED = ("c_attn.weight", "c_fc.weight", "c_proj.weight")
MASK = re.compile(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)")
FLOATS = ("F64", "F32", "F16", "BF16")

# Our name of each size -> config.json's.
SIZES = {
    "vocab_size": "vocab_size",
    "context": "n_positions",
    "n_layer": "n_layer",
    "n_head": "n_head",
    "n_embd": "n_embd",
}
# What gpt/model.py computes. The first value is also what a missing key means.
ARCHITECTURE: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of the tanh form
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}


# Open and write -----------------------------------------------------------------------------------


def load_gpt2(
    name_or_folder: str | Path,
    *,
    device: torch.device | str = "cpu",
    cache: str | Path | None = None,
) -> GPT:
    """A GPT-2 from a folder in Hugging Face layout, or a published one by name, downloaded once.

    Names: gpt2, gpt2-medium, gpt2-large, gpt2-xl (`download_gpt2` says how, and where `cache` is).
    Anything else, and every Path, is a folder. Weights become float32; the model comes back in eval
    mode with dropout 0, whatever the config's dropout was. Raises UserError, in one sentence, for
    files that are missing, damaged or not exactly this architecture.
    """
    if isinstance(name_or_folder, str) and name_or_folder in PUBLISHED_NAMES:
        folder = download_gpt2(name_or_folder, cache=cache)
    else:
        folder = Path(name_or_folder).expanduser()
    weights = find_weights(folder)
    with torch.device("meta"):  # shapes only: the tensors of the file take their places
        model = GPT(read_config(folder / CONFIG_FILE))
    model.load_state_dict(read_weights(weights, model), assign=True)
    return model.to(device).eval()


def save_gpt2(model: GPT, folder: str | Path) -> None:
    """Write config.json and model.safetensors as transformers 5 does, in float32 and atomically.

    `transformers.GPT2LMHeadModel.from_pretrained(folder)` and `load_gpt2(folder)` open them.
    """
    folder = Path(folder).expanduser()
    tensors = {}
    for name, tensor in model.state_dict().items():
        tensor = tensor.detach().to("cpu", torch.float32)
        tensors[PREFIX + name] = (tensor.t() if name.endswith(TRANSPOSED) else tensor).contiguous()
    write_atomically(
        folder / MODEL_FILE,
        # transformers 4 refuses a file that does not say which framework wrote it.
        lambda temporary: save_file(tensors, temporary, {"format": "pt"}),
    )
    write_json(folder / CONFIG_FILE, hub_config(model.config))


def find_weights(folder: Path) -> Path:
    """The folder's model.safetensors; UserError says what to do about anything else."""
    if folder.is_file():
        raise UserError(f"{folder} is a file: pass the folder that holds it and its config.json")
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}: pass one that holds {CONFIG_FILE} and {MODEL_FILE}, or "
            f"one of the names {', '.join(PUBLISHED_NAMES)}"
        )
    path = folder / MODEL_FILE
    if path.exists():
        return path
    others = {
        f"{MODEL_FILE}.index.json": "its weights in several shards",
        "pytorch_model.bin.index.json": "its weights as pickles in several shards",
        "pytorch_model.bin": "its weights as a pickle",
    }
    for name, form in others.items():
        if (folder / name).exists():
            raise UserError(
                f"{folder} holds {form} ({name}), which is not read here: convert it with "
                f"transformers.GPT2LMHeadModel.from_pretrained({str(folder)!r})"
                ".save_pretrained('NEW_FOLDER', max_shard_size='100GB') and pass NEW_FOLDER"
            )
    raise UserError(
        f"{folder} holds no {MODEL_FILE}: pass a folder with {CONFIG_FILE} and {MODEL_FILE}"
    )


def read_config(path: Path) -> GPTConfig:
    """config.json -> our config; UserError unless it describes what gpt/model.py computes."""
    if not path.exists():
        raise UserError(f"{path} is missing: fetch it from where {MODEL_FILE} came from")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not UTF-8, or not JSON
        raise UserError(f"{path} is not readable JSON ({error}): fetch it again") from error
    if not isinstance(values, dict) or values.get("model_type") != "gpt2":
        raise UserError(
            f"{path} does not say model_type 'gpt2': pass a folder with a GPT-2 in Hugging Face "
            "layout (run folders of this project are opened by the scripts that follow them)"
        )
    sizes: dict[str, int] = {}
    for ours, theirs in SIZES.items():
        size = values.get(theirs)
        if type(size) is not int or size < 1:
            raise UserError(
                f"{path}: {theirs} is {size!r}, not a positive whole number: fetch it again"
            )
        sizes[ours] = size
    check_architecture(values, path)
    try:
        return GPTConfig(**sizes)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def check_architecture(values: Mapping[str, Any], path: Path) -> None:
    """UserError for a setting under which gpt/model.py would compute something else."""
    for key, allowed in ARCHITECTURE.items():
        value = values.get(key, allowed[0])
        if value not in allowed:
            raise UserError(
                f"{path}: {key} is {value!r}, but this model computes GPT-2 with {allowed[0]!r}: "
                "use a checkpoint of the original architecture"
            )
    inner, expected = values.get("n_inner"), 4 * values["n_embd"]
    if inner not in (None, expected):
        raise UserError(
            f"{path}: n_inner is {inner!r}, but this model's MLP is 4 * n_embd = {expected} wide: "
            "use a checkpoint of the original architecture"
        )


def hub_config(config: GPTConfig) -> dict[str, Any]:
    """The config.json of a model with this shape."""
    # Without these keys transformers takes 50256, and complains if the vocabulary lacks it.
    end_of_text = 50256 if config.vocab_size == 50257 else None
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        **{key: allowed[0] for key, allowed in ARCHITECTURE.items()},
        "n_inner": None,
        "attn_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "dtype": "float32",
    }


def read_weights(path: Path, model: GPT) -> dict[str, Tensor]:
    """The file's tensors as float32, in `model`'s names and layout (`model` may be on "meta").

    UserError if the file lacks a tensor, holds another one, or one of another shape or kind.
    """
    try:
        with safe_open(path, framework="pt") as file:
            stored = {name: file.get_slice(name) for name in file.keys()}
            prefix = PREFIX if any(name.startswith(PREFIX) for name in stored) else ""
            shapes = stored_shapes(model, prefix)
            check_names(set(stored), set(shapes), path)
            for name, shape in shapes.items():
                check_tensor(name, stored[name], shape, path)
            tensors = {}
            for name in shapes:
                tensor = file.get_tensor(name).to(torch.float32, copy=True)  # not the mapped file
                own = name.removeprefix(prefix)
                tensors[own] = tensor.t().contiguous() if own.endswith(TRANSPOSED) else tensor
            if HEAD in stored:
                check_tied(file.get_tensor(HEAD), tensors["wte.weight"], path)
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a readable safetensors file ({error}): fetch it again (git clone "
            "without git-lfs leaves a small text file in its place)"
        ) from error
    return tensors


def stored_shapes(model: GPT, prefix: str) -> dict[str, list[int]]:
    """The names and shapes that a file must hold for `model`."""
    return {
        prefix + name: list(tensor.shape)[:: -1 if name.endswith(TRANSPOSED) else 1]
        for name, tensor in model.state_dict().items()
    }


def check_names(stored: set[str], wanted: set[str], path: Path) -> None:
    """UserError for names that are missing, or left over and neither mask nor head."""
    missing = sorted(wanted - stored)
    left_over = sorted(n for n in stored - wanted if n != HEAD and not MASK.fullmatch(n))
    if missing or left_over:
        raise UserError(
            f"{path} does not hold the GPT-2 of its config.json (missing: {listing(missing)}; left "
            f"over: {listing(left_over)}): pass a folder whose two files belong together"
        )


def listing(names: list[str]) -> str:
    """The first few names and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more or "none"


def check_tensor(name: str, stored: Any, wanted: list[int], path: Path) -> None:
    """UserError unless the stored tensor (a safetensors slice) has this shape and is a float."""
    shape, kind = list(stored.get_shape()), stored.get_dtype()
    if shape != wanted:
        raise UserError(
            f"{path}: {name} has shape {shape}, but config.json asks for {wanted}: pass a folder "
            "whose two files belong together"
        )
    if kind not in FLOATS:
        raise UserError(
            f"{path}: {name} is stored as {kind}, not as a float: use a checkpoint that is not "
            "quantized"
        )


def check_tied(head: Tensor, embedding: Tensor, path: Path) -> None:
    """UserError unless the file's output head is the token embedding."""
    if not torch.equal(head.to(torch.float32), embedding):
        raise UserError(
            f"{path}: {HEAD} differs from wte.weight, but GPT-2's output head is the token "
            "embedding: use a checkpoint with a tied head"
        )


# Fetch --------------------------------------------------------------------------------------------

HUB = "https://huggingface.co"
PUBLISHED_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
RECORD_FILE = "download.json"
TIMEOUT = (10, 60)  # seconds to connect, and between two pieces of an answer
CHUNK = 1 << 17  # bytes; a cut loses the piece that it falls into


@dataclass(frozen=True)
class PublishedFile:
    """One version of a model.safetensors on the hub."""

    revision: str  # the commit
    size: int  # bytes
    sha256: str


PINNED = {
    "gpt2": PublishedFile(
        revision="607a30d783dfa663caf39e06633721c8d4cfcd7e",
        size=548_105_171,
        sha256="248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
    )
}


@dataclass(frozen=True)
class Source:
    """Where a published model comes from and where it goes."""

    name: str
    path: Path  # of the finished file
    endpoint: str  # the hub, or a mirror of it

    def url(self, revision: str) -> str:
        return f"{self.endpoint}/openai-community/{self.name}/resolve/{revision}/{MODEL_FILE}"

    def by_hand(self) -> str:
        """What to do when the file cannot be had from here."""
        way = (
            f"elsewhere, fetch {CONFIG_FILE} and {MODEL_FILE} of "
            f"{HUB}/openai-community/{self.name} into one folder and pass it with --weights FOLDER"
        )
        if self.name in PINNED:
            url = Source(self.name, self.path, HUB).url(PINNED[self.name].revision)
            way += f", or fetch {url} and save it as {self.path}"
        return way


def download_gpt2(
    name: str, *, cache: str | Path | None = None, endpoint: str | None = None
) -> Path:
    """The folder <cache>/<name> with a published model in Hugging Face layout, fetched if needed.

    cache: default GLASSBOX_CACHE, else ~/.cache/glassbox. endpoint: default HF_ENDPOINT, else
    https://huggingface.co. The file is the model.safetensors of openai-community/<name>.

    How it is verified. For gpt2 the revision, size and sha256 are pinned in this module. For the
    other sizes they are what the hub states when the download starts: it answers a HEAD request for
    a large file with the file's sha256 in X-Linked-Etag, its size in X-Linked-Size and the commit
    that "main" stands for in X-Repo-Commit. That finds a broken transfer, but takes the hub at its
    word. Only a file that agrees gets its final name; download.json beside it records revision,
    size and sha256, and from then on no network is needed. A cut transfer leaves a .part file, and
    the next call continues it. Raises UserError, one sentence with a way out, if there is no file.
    """
    if name not in PUBLISHED_NAMES:
        raise UserError(f"{name!r} is not published: choose one of {', '.join(PUBLISHED_NAMES)}")
    folder = Path(cache or os.environ.get("GLASSBOX_CACHE") or "~/.cache/glassbox").expanduser()
    folder /= name
    path = folder / MODEL_FILE
    if is_recorded(path, name):
        return folder
    endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    source = Source(name, path, endpoint)
    published = PINNED.get(name) or stated_file(source)
    if path.exists():  # put there by hand, or changed since it was recorded
        if fault := difference(path, published):
            raise UserError(f"{path} {fault}: delete it, and it is downloaded again")
    else:
        fetch(source, published)
    write_json(folder / CONFIG_FILE, hub_config(PRESETS[name]))
    write_json(folder / RECORD_FILE, {"url": source.url(published.revision), **vars(published)})
    return folder


def is_recorded(path: Path, name: str) -> bool:
    """Whether `path` was verified before and still has its size (hashing it takes seconds)."""
    try:
        record = json.loads((path.parent / RECORD_FILE).read_text(encoding="utf-8"))
        same_size = path.stat().st_size == record["size"]
        pinned = name not in PINNED or record["sha256"] == PINNED[name].sha256
        return same_size and pinned and (path.parent / CONFIG_FILE).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def ask_hub(
    source: Source, method: str, revision: str, headers: Mapping[str, str]
) -> requests.Response:
    """One request whose answer is below 400; UserError otherwise. GET follows redirects."""
    url = source.url(revision)
    try:
        response = requests.request(
            method,
            url,
            headers={"Accept-Encoding": "identity", **headers},
            stream=True,
            timeout=TIMEOUT,
            allow_redirects=method == "GET",
        )
    except requests.RequestException as error:
        raise UserError(
            f"{url} could not be reached ({type(error).__name__}): {source.by_hand()}"
        ) from error
    if response.status_code >= 400:
        response.close()
        raise UserError(
            f"{url} answered {response.status_code} {response.reason}: {source.by_hand()}"
        )
    return response


def stated_file(source: Source) -> PublishedFile:
    """What the hub says about the newest version of a file; its answer is a redirect to storage."""
    with ask_hub(source, "HEAD", "main", {}) as response:
        headers = response.headers
    sha256 = headers.get("X-Linked-Etag", "").strip('"')
    size, revision = headers.get("X-Linked-Size", ""), headers.get("X-Repo-Commit", "")
    # A small file has a git hash of 40 digits there, which is not a sha256 of its content.
    stated = re.fullmatch("[0-9a-f]{64}", sha256) and re.fullmatch("[0-9a-f]{40}", revision)
    if not (stated and size.isdecimal()):
        raise UserError(
            f"{source.url('main')} does not state its file's sha256, size and commit "
            "(X-Linked-Etag, X-Linked-Size, X-Repo-Commit), so a download could not be verified: "
            f"{source.by_hand()}"
        )
    return PublishedFile(revision, int(size), sha256)


def fetch(source: Source, published: PublishedFile) -> None:
    """Download to a .part file, verify it, and only then give it its name."""
    path, size = source.path, published.size
    # Named after the content, so that a transfer of another version is never continued.
    part = path.with_name(f"{path.name}.{published.sha256[:12]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if size_of(part) < size:
            print(f"downloading {source.name} ({size / 1e6:.0f} MB) to {path}", flush=True)
            transfer(source, published, part)
        if fault := difference(part, published):
            part.unlink()
            raise UserError(f"the download of {source.name} {fault}, so it was removed: try again")
        os.replace(part, path)
    except requests.RequestException as error:  # these are OSErrors too, so they come first
        raise UserError(
            f"the download of {source.name} stopped at {size_of(part)} of {size} bytes "
            f"({type(error).__name__}): run the same command again to continue there"
        ) from error
    except OSError as error:
        raise UserError(
            f"{part} cannot be written ({error}): make room there, or set GLASSBOX_CACHE to "
            "another folder"
        ) from error


def transfer(source: Source, published: PublishedFile, part: Path) -> None:
    """Append to `part` what it still lacks (RFC 9110, section 14: Range, answered by status 206).

    A server that knows no ranges answers 200 with the whole file, and `part` starts anew.
    """
    have, size = size_of(part), published.size
    wanted = {"Range": f"bytes={have}-"} if have else {}
    with ask_hub(source, "GET", published.revision, wanted) as response:
        if response.status_code == 200:
            have = 0
        if fault := unusable(response, have, size):
            raise UserError(f"{source.url(published.revision)} {fault}: {source.by_hand()}")
        with (
            part.open("ab" if have else "wb") as file,
            tqdm(
                total=size, initial=have, desc=source.name, unit="B", unit_scale=True, disable=None
            ) as bar,
        ):
            for chunk in response.iter_content(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
                if file.tell() > size:  # an endless answer must not fill the disk
                    break
    if size_of(part) < size:  # urllib3 1 does not notice a cut
        raise requests.ConnectionError("the answer ended early")


def unusable(response: requests.Response, have: int, size: int) -> str:
    """Why this answer is not the bytes from `have` to `size` of a binary file; "" if it may be."""
    headers, status = response.headers, f"{response.status_code} {response.reason}"
    if headers.get("Content-Type", "").startswith("text/html"):
        return "answered with a web page instead of the file (a login page or a proxy?)"
    if response.status_code != (206 if have else 200):
        return f"answered {status}"
    if have and not headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        return f"answered {status} with other bytes than the ones from {have} on"
    if headers.get("Content-Length", str(size - have)) != str(size - have):
        return f"offers {headers['Content-Length']} bytes where {size - have} were expected"
    return ""


def difference(path: Path, published: PublishedFile) -> str:
    """How the file differs from the published one, or "" if it does not."""
    if (size := size_of(path)) != published.size:
        return f"has {size} bytes instead of {published.size}"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != published.sha256:
        return f"has sha256 {digest.hexdigest()} instead of {published.sha256}"
    return ""


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
