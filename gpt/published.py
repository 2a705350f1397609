"""Published GPT-2 and Llama weights: open them, write them, have the hub's client fetch them.

A checkpoint in Hugging Face layout is a folder with config.json and one model.safetensors. A Llama's
tensors carry the names of gpt.llama.PUBLISHED, a GPT-2's those used in gpt/model.py, with these
differences:

    transformer.           before every name in files that transformers writes, not in OpenAI's
    c_attn, c_fc, c_proj   weights stored as (in, out), where nn.Linear holds (out, in): transposed
    h.i.attn.bias          in old files: the causal mask, (1, 1, context, context), and no bias
    lm_head.weight         in some files: the output head, which GPT-2 ties to wte
    _orig_mod., module.    in the names of compiled or distributed models: taken out

The c_proj of attention is square, so a forgotten transpose passes every check of shapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gpt.checkpoint import build, check_layers, checked_shape, load_strictly
from gpt.llama import PUBLISHED, Llama, LlamaConfig
from gpt.lora import merged_state
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import Tokenizer, load_tokenizer
from gpt.tokenizer_files import TOKENIZER_FILE, TOKENIZER_FILES, read_tokenizer, write_tokenizer
from harness.device import shapes_alone
from harness.errors import UserError
from harness.files import expanded, noted, read_object, write_atomically, write_json
from harness.paths import MODEL_FILE

CONFIG_FILE = "config.json"
PREFIX = "transformer."
HEAD = "lm_head.weight"
TRANSPOSED = ("c_attn.weight", "c_fc.weight", "c_proj.weight")
WRAPPED = re.compile(r"(?<![^.])(_orig_mod|module)\.")
# Tables that old files hold and models compute.
MASK = re.compile(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)|.*\.rotary_emb\.inv_freq")

# config.json's model_type -> our name of each size, and config.json's.
SIZES: dict[str, dict[str, str]] = {
    "gpt2": {
        "vocab_size": "vocab_size", "context": "n_positions",
        "n_layer": "n_layer", "n_head": "n_head", "n_embd": "n_embd",
    },
    "llama": {
        "vocab_size": "vocab_size", "context": "max_position_embeddings",
        "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embd": "hidden_size",
        "n_key_head": "num_key_value_heads", "n_inner": "intermediate_size",
    },
}  # fmt: skip
# What gpt/model.py and gpt/llama.py compute. The first value is taken where the key is missing.
ARCHITECTURE: dict[str, dict[str, tuple[Any, ...]]] = {
    "gpt2": {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of the tanh form
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
    "llama": {
        "hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,),
        "tie_word_embeddings": (True,),
    },
}  # fmt: skip


# Open and write -----------------------------------------------------------------------------------


def load_gpt2(name_or_folder: str | Path) -> GPT:
    """A GPT-2 or Llama from a folder in Hugging Face layout, or one of the hub by its name.

    Names: gpt2, gpt2-medium, gpt2-large, gpt2-xl and hf://OWNER/NAME; anything else, and every Path,
    is a folder. Weights become float32; the model comes back in eval mode with dropout 0. Raises
    UserError for files that are missing, damaged or not exactly this architecture.
    """
    folder = published_folder(name_or_folder)
    weights = folder / MODEL_FILE
    if not weights.is_file():
        raise UserError(
            f"{folder} holds no {MODEL_FILE} (transformers' save_pretrained with a large max_shard_size "
            "makes it of shards and pickles, peft's merge_and_unload of LoRA): pass one with it and "
            f"{CONFIG_FILE}, or one of {', '.join(PUBLISHED_NAMES)}, hf://OWNER/NAME"
        )
    if (folder / ADAPTER_FILE).exists():  # transformers would apply it
        merge = "merge it with peft's merge_and_unload and save_pretrained, or take it out of the folder"
        raise UserError(f"{folder} holds full weights and an adapter, {ADAPTER_FILE}: {merge}")
    config = read_config(folder / CONFIG_FILE)
    tensors = read_weights(weights, config)
    check_layers(config, tensors, weights)
    with shapes_alone():  # the tensors of the file become the weights
        model = build(config)
    load_strictly(model, tensors, weights, "pass a folder whose two files belong together")
    return model.eval()


def load_with_tokenizer(name_or_folder: str | Path) -> tuple[GPT, Tokenizer]:
    """`load_gpt2`, and the tokenizer.json in the same folder.

    A folder without one has GPT-2's if sizes and end of text say so; any other is a UserError.
    """
    folder = published_folder(name_or_folder)
    model = load_gpt2(folder)
    size, end = model.config.vocab_size, read_object(folder / CONFIG_FILE).get("eos_token_id")
    tokenizer = read_tokenizer(folder, size)
    if tokenizer is None and (size, end) != (GPTConfig.vocab_size, GPTConfig.vocab_size - 1):
        raise UserError(
            f"{folder} holds a model of {size} tokens that ends texts with {end}, not GPT-2's, and no "
            f"{TOKENIZER_FILE}: put there what transformers' AutoTokenizer writes with save_pretrained"
        )
    return model, tokenizer or load_tokenizer("gpt2")


def special_ids(tokenizer: Tokenizer) -> dict[str, int | list[int] | None]:
    """The ids of tokens without text, for a config.json; a list where several end an answer."""
    end, more = tokenizer.eos_id, tokenizer.other_ends
    ids = {"bos_token_id": tokenizer.bos_id, "pad_token_id": tokenizer.pad_id}
    return ids | {"eos_token_id": [end, *more] if more else end}


def save_gpt2(
    model: GPT,
    folder: str | Path,
    tokenizer: Tokenizer | None = None,
    score: Tensor | None = None,  # (1, D), of a reward model
) -> None:
    """Write config.json and model.safetensors as transformers 5 does, in float32 and atomically.

    transformers' AutoModelForCausalLM opens them, with a score AutoModelForSequenceClassification.
    """
    folder = expanded(Path(folder))
    tensors = {} if score is None else {"score.weight": score}
    for name, tensor in merged_state(model).items():
        tensors[model.published_name(name)] = tensor.t() if name.endswith(TRANSPOSED) else tensor
    plain = {n: t.detach().to("cpu", torch.float32).contiguous() for n, t in tensors.items()}
    write_atomically(
        folder / MODEL_FILE,
        # transformers 4 refuses a file that does not say which framework wrote it.
        lambda temporary: save_file(plain, temporary, {"format": "pt"}),
    )
    config = hub_config(model)
    if tokenizer is not None:
        side = "left" if score is None else "right"  # a classifier counts positions from column 0
        write_tokenizer(folder, tokenizer, model.config.context, side)
        config |= special_ids(tokenizer)
    if score is not None:
        kind = "Llama" if isinstance(model, Llama) else "GPT2"
        config |= {
            "architectures": [f"{kind}ForSequenceClassification"],
            "id2label": {"0": "reward"},
        }
        config |= {"label2id": {"reward": 0}}
    write_json(folder / CONFIG_FILE, config)


def read_config(path: Path) -> GPTConfig:
    """config.json -> our config; UserError unless it describes what gpt/model.py computes."""
    if not path.is_file():
        raise UserError(f"{path} is missing: fetch it from where {MODEL_FILE} came from")
    values = read_object(noted(path))
    kind = str(values.get("model_type"))
    if kind not in SIZES:
        raise UserError(
            f"{path}: model_type must be 'gpt2' or 'llama': pass a folder in Hugging Face layout"
        )
    sizes = {ours: values.get(theirs) for ours, theirs in SIZES[kind].items()}
    if kind == "llama":
        sizes["n_key_head"] = sizes["n_key_head"] or sizes["n_head"]
        config = checked_shape(LlamaConfig, sizes | llama_numbers(values, path), path)
    else:
        config = checked_shape(GPTConfig, sizes, path)
    check_architecture(values, config, path)
    return config


def llama_numbers(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The base of the rotation, which transformers 5 writes into rope_parameters, and the norm's eps."""
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise UserError(f"{path}: its rotary positions are {rope!r:.40}, no object: fetch it again")
    base = rope.get("rope_theta", values.get("rope_theta", 1e4))
    numbers = {"rope_base": base, "norm_eps": values.get("rms_norm_eps", 1e-6)}
    for name, value in numbers.items():
        if type(value) not in (int, float) or not 0 < value < 1e30:
            raise UserError(f"{path}: {name} is {value!r}, not a positive number: fetch it again")
    plain = "unnamed" if "factor" in rope else "default"
    if rope.get("rope_type", rope.get("type", plain)) != "default":
        raise UserError(f"{path}: rotary positions {rope!r:.80}: use a Llama with plain ones")
    return numbers


def check_architecture(values: Mapping[str, Any], config: GPTConfig, path: Path) -> None:
    """UserError for a setting under which our model would compute something else."""
    allowed = ARCHITECTURE[values["model_type"]] | {
        "head_dim": (None, config.n_embd // config.n_head),
        "n_inner": (None, 4 * config.n_embd),
    }
    for key, choices in allowed.items():
        value = values.get(key, choices[0])
        if value not in choices:
            raise UserError(f"{path}: {key} is {value!r}: use a checkpoint with {choices[-1]!r}")


def hub_config(model: GPT) -> dict[str, Any]:
    """The config.json of a model with this shape."""
    kind, config = "llama" if isinstance(model, Llama) else "gpt2", model.config
    table: dict[str, Any] = {theirs: vars(config)[ours] for ours, theirs in SIZES[kind].items()}
    table |= {"model_type": kind, "dtype": "float32"}
    table |= {key: allowed[0] for key, allowed in ARCHITECTURE[kind].items()}
    if isinstance(config, LlamaConfig):
        table |= {"rope_theta": config.rope_base, "rms_norm_eps": config.norm_eps}
        return table | {"architectures": ["LlamaForCausalLM"]}
    # Without these keys transformers takes 50256, and complains if the vocabulary lacks it.
    end_of_text = 50256 if config.vocab_size == 50257 else None
    return table | {
        "architectures": ["GPT2LMHeadModel"], "n_inner": None,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), config.dropout),
        "bos_token_id": end_of_text, "eos_token_id": end_of_text,
    }  # fmt: skip


def own_name(name: str, kind: type[GPTConfig], prefix: str) -> str:
    """Our name of a stored tensor; one that stands outside of `prefix` is none of ours."""
    if kind is LlamaConfig:
        for ours, theirs in PUBLISHED:
            name = name.replace(theirs, ours)
        return name
    return name.removeprefix(prefix) if name.startswith(prefix) else f"{name} (no {prefix})"


def read_weights(path: Path, config: GPTConfig) -> dict[str, Tensor]:
    """The tensors of a file in our names and layout, without masks and the tied head.

    UserError for a file that cannot be read and for a head of its own.
    """
    path.open("rb").close()  # says why it cannot be opened, which safetensors does not
    try:
        with safe_open(noted(path), framework="pt") as file:  # cloned: not the mapped file
            stored = {WRAPPED.sub("", n): file.get_tensor(n).clone() for n in file.keys()}
    except SafetensorError as error:
        raise UserError(
            f"{path} is no safetensors file ({error}): fetch it again, with git-lfs where git clones it"
        ) from error
    prefix = PREFIX if any(name.startswith(PREFIX) for name in stored) else ""
    head = stored.pop(HEAD, None)
    tensors = {}
    for name, tensor in stored.items():
        if not MASK.fullmatch(name):
            own = own_name(name, type(config), prefix)
            if own.endswith("c_attn.weight") and len(tensor) == 3 * config.n_embd:
                raise UserError(
                    f"{path}: {name} is (out, in), not (in, out): transpose {', '.join(TRANSPOSED)}"
                )
            turned = own.endswith(TRANSPOSED) and tensor.ndim == 2
            tensors[own] = tensor.t().contiguous() if turned else tensor
    wte = tensors.get("wte.weight")
    if head is not None and wte is not None and not torch.equal(head.float(), wte.float()):
        raise UserError(f"{path}: {HEAD} is not the token embedding: use one with a tied head")
    return tensors


# Find in the hub's cache, or fetch ----------------------------------------------------------------

PUBLISHED_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
REVISIONS = {"openai-community/gpt2": "607a30d783dfa663caf39e06633721c8d4cfcd7e"}  # else: main
ADAPTER_FILE = "adapter_config.json"  # peft's
HUB_FILES = [CONFIG_FILE, MODEL_FILE, ADAPTER_FILE, *TOKENIZER_FILES]


def published_folder(name_or_folder: str | Path) -> Path:
    """The folder itself, or that of a model of the hub which a string names."""
    repo = hub_repo(name_or_folder) if isinstance(name_or_folder, str) else None
    return hub_folder(repo) if repo else expanded(Path(name_or_folder))


def hub_repo(name: str) -> str | None:
    """OWNER/NAME on the hub that `name` stands for; None if it is no name of a model there."""
    if name in PUBLISHED_NAMES:
        return f"openai-community/{name}"
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)", name)
    return match[1] if match else None


def hub_folder(repo: str) -> Path:
    """The folder of OWNER/NAME in the hub's cache, into which what it lacks is downloaded.

    huggingface_hub does it by its settings (HF_HOME, HF_HUB_OFFLINE, HF_TOKEN, ...). Without a network
    it takes what is there. Raises UserError, one sentence with a way out, if it cannot.
    """
    page = f"https://huggingface.co/{repo}"
    by_hand = (
        f"fetch {CONFIG_FILE}, {MODEL_FILE} and the tokenizer's files of {page} elsewhere into one folder "
        "and pass it with --weights FOLDER"
    )
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        install = f'need {error.name}: run pip install -e ".[hub]"'
        raise UserError(f"weights by name {install}, or {by_hand}") from error
    try:
        revision = REVISIONS.get(repo)
        return Path(
            snapshot_download(repo, revision=revision, allow_patterns=HUB_FILES, etag_timeout=5)
        )
    except Exception as error:  # the client's own, and those of the libraries for HTTP under it
        first_line = f"{type(error).__name__}: {error}".strip().splitlines()[0].rstrip(".: ")
        raise UserError(f"{page} could not be fetched ({first_line}), so {by_hand}") from error
