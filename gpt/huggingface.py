"""Published GPT-2 and Llama weights: open them, write them, have the hub's client fetch them.

A checkpoint in Hugging Face layout is a folder with config.json and model.safetensors, or an older
pytorch_model.bin, or shards of it with their index. A Llama's tensors carry the names of `llama_name`,
a GPT-2's those used in gpt/model.py, with these differences:

    transformer.           before every name in files that transformers writes, not in OpenAI's
    c_attn, c_fc, c_proj   weights stored as (in, out), where nn.Linear holds (out, in): transposed
    h.i.attn.bias          in old files: the causal mask, (1, 1, context, context), and no bias
    lm_head.weight         in some files: the output head, although it is tied to wte
    _orig_mod., module.    in the names of compiled or distributed models: taken out

The c_proj of attention is square, so a forgotten transpose passes every check of shapes. Some kinds are
Llamas whose matrices are stored in another way: `as_llama` makes them a Llama's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gpt.checkpoint import check_layers, checked_shape, shaped
from gpt.folder import ADAPTER_FILE, CONFIG_FILE, EXPORTED
from gpt.llama import FAST, SLOW, TRAINED, LlamaConfig
from gpt.lora import merged_state
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import Tokenizer, load_tokenizer
from gpt.tokenizer_files import (
    SETTINGS_FILE,
    TOKENIZER_FILE,
    TOKENIZER_FILES,
    chat_template_in,
    read_tokenizer,
    settings_in,
    write_tokenizer,
)
from harness.errors import UserError
from harness.files import (
    as_user_error,
    expanded,
    read_object,
    record_input,
    write_atomically,
    write_json,
)
from harness.paths import MODEL_FILE
from harness.safetensors_file import read_header, require_floats

PICKLE = "pytorch_model.bin"  # of before safetensors
INDEX = ".index.json"  # behind the name of what shards hold
ADAPTER_WEIGHTS = "adapter_model.safetensors"
PREFIX = "transformer."
HEAD = "lm_head.weight"
SCORE = "score.weight"  # of a classifier; with one label (1, D), a reward model's head
TRANSPOSED = ("c_attn.weight", "c_fc.weight", "c_proj.weight")
WRAPPED = re.compile(r"(?<![^.])(_orig_mod|module)\.")
# Tables that old files hold and models compute.
MASK = re.compile(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)|.*\.rotary_emb\.inv_freq")

# Our name of each size, and config.json's.
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
# config.json's model_type -> the switches of gpt/llama.py that it implies.
SWITCHES: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True},
    "olmo2": {"qk_norm": True, "norms_after": True}, "smollm3": {"unturned": 4},
    "phi3": {}, "granite": {}, "ernie4_5": {},
}  # fmt: skip
# Kinds in which attention_bias means queries, keys, values and output; others do not read it.
BIASED = ("llama", "qwen3", "olmo2", "smollm3", "granite")
BIASES = {"qkv_bias", "o_bias"}
MULTIPLIERS = (  # Granite's
    "embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"
)  # fmt: skip
# What transformers takes where config.json lacks a key.
MISSING: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 4096}, "qwen2": {"use_sliding_window": False},
    "qwen3": {"use_sliding_window": False, "head_dim": 128}, "olmo2": {"rms_norm_eps": 1e-5},
    "smollm3": {"use_sliding_window": False, "rope_theta": 2e6, "tie_word_embeddings": True},
    "phi3": {"rms_norm_eps": 1e-5},
    "ernie4_5": {
        "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": True, "head_dim": 128,
        "num_key_value_heads": 2,
    },
}  # fmt: skip
CLASSIFIER = "ForSequenceClassification"  # of an architecture with a score
OTHER_HEAD = re.compile(f"For(?!CausalLM|{CLASSIFIER[3:]})")  # of one with another head
LLAMA3 = {
    "rope_type": "llama3", "low_freq_factor": SLOW, "high_freq_factor": FAST,
    "original_max_position_embeddings": TRAINED,
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
        "hidden_act": ("silu",), "attention_bias": (False, None), "mlp_bias": (False, None),
        "use_bias": (None, False),
        "partial_rotary_factor": (None, 1), "quantization_config": (None,),
        "num_experts": (None, 0), "num_local_experts": (None, 0), "n_routed_experts": (None, 0),
    },
}  # fmt: skip


# Open and write -----------------------------------------------------------------------------------


def described(
    folder: Path, config: Mapping[str, Any]
) -> tuple[str, GPTConfig, int, str | None, dict[str, Any]]:
    """Kind, shape, number of weights, chat template and tokenizer_config.json of a folder; or UserError.

    A classifier with one label is a reward model.
    """
    if (folder / ADAPTER_FILE).exists():  # transformers would apply it
        merge = "merge it with peft's merge_and_unload and save_pretrained, or take it out of the folder"
        raise UserError(f"{folder} holds full weights and an adapter, {ADAPTER_FILE}: {merge}")
    shape, kind = published_shape(config, folder / CONFIG_FILE), "gpt"
    sizes: dict[str, int] = {}
    for file in weight_files(folder):
        pickle = file.suffix == ".bin"
        found = {name: x.numel() for name, x in unpickled(file, "meta").items()} if pickle else None
        sizes |= {WRAPPED.sub("", k): n for k, n in (found or read_header(file)[1]).items()}
    if any(str(name).endswith(CLASSIFIER) for name in config.get("architectures") or ()):
        kind, labels = "reward_model", sizes.get(SCORE, 0) // shape.n_embd
        if isinstance(shape, LlamaConfig):
            shape = replace(shape, own_head=False)  # which a classifier has not
        more = [name for name in sizes if name.startswith("score.") and name != SCORE]
        if labels != 1 or more:
            part = more[0] if more else f"num_labels {labels}"
            raise UserError(
                f"{folder} is a classifier with {part}: a reward model has num_labels 1, one {SCORE}"
            )
    settings = settings_in(folder / SETTINGS_FILE)
    return kind, shape, sum(sizes.values()), chat_template_in(folder, settings), settings


def load_hf(folder: Path, shape: GPTConfig, config: Mapping[str, object]) -> GPT:
    """The model of this shape in a folder: float32, in eval mode, with dropout 0.

    `config` is what config.json holds. Raises UserError for files that are damaged or not exactly this
    architecture.
    """
    return _built(read_weights(weight_files(folder), shape), shape, config, folder)


def load_classifier(
    folder: Path, shape: GPTConfig, config: Mapping[str, object]
) -> tuple[GPT, Tensor]:
    """A reward model's trunk and its score (1, D), as `load_hf`."""
    tensors = read_weights(weight_files(folder), shape)
    score = tensors.pop(SCORE)
    require_floats({SCORE: score}, folder / MODEL_FILE)
    headless = {**config, "tie_word_embeddings": False}
    return _built(tensors, shape, headless, folder), score.float()


def _built(
    tensors: Mapping[str, Tensor], shape: GPTConfig, config: Mapping[str, Any], folder: Path
) -> GPT:
    if isinstance(shape, LlamaConfig):
        with as_user_error(folder):
            tensors = as_llama(config, shape, tensors)
    check_layers(shape, tensors, folder / MODEL_FILE)
    remedy = "name a folder whose files belong together"
    return shaped(tensors, shape, folder / MODEL_FILE, remedy)


def load_tokenizer_of(
    folder: Path, shape: GPTConfig, config: Mapping[str, object], settings: Mapping[str, object]
) -> Tokenizer:
    """The tokenizer.json in a folder; GPT-2's where there is none, and sizes and end of text say so.

    `config` is what config.json holds, `settings` what tokenizer_config.json does.
    """
    size, end = shape.vocab_size, config.get("eos_token_id")
    tokenizer = read_tokenizer(folder, size, config, settings)
    if tokenizer is None and (size, end) != (GPTConfig.vocab_size, GPTConfig.vocab_size - 1):
        raise UserError(
            f"{folder} holds a model of {size} tokens that ends texts with {end}, not GPT-2's, and no "
            f"{TOKENIZER_FILE}: put there what transformers' AutoTokenizer writes with save_pretrained"
        )
    return tokenizer or load_tokenizer("gpt2")


def special_ids(tokenizer: Tokenizer) -> dict[str, int | list[int] | None]:
    """The ids of tokens without text, for a config.json; a list where several end an answer."""
    end, more = tokenizer.eos_id, tokenizer.other_ends
    ids = {"bos_token_id": tokenizer.bos_id, "pad_token_id": tokenizer.pad_id}
    return ids | {"eos_token_id": [end, *more] if more else end}


def save_hf(
    model: GPT,
    folder: str | Path,
    tokenizer: Tokenizer | None = None,
    score: Tensor | None = None,  # (1, D), of a reward model
    dtype: torch.dtype = torch.float32,
    about: Mapping[str, object] | None = None,  # what we say of it besides
) -> None:
    """Write config.json and model.safetensors as transformers 5 does, in this dtype and atomically.

    transformers' AutoModelForCausalLM opens them, with a score AutoModelForSequenceClassification.
    """
    folder, config = expanded(Path(folder)), hub_config(model)
    config["dtype"] = str(dtype).removeprefix("torch.")
    tensors = {} if score is None else {SCORE: score}
    for name, tensor in merged_state(model).items():
        turned = name.endswith(TRANSPOSED)  # which no tensor of a Llama does
        tensors[their_name(name, model.config)] = tensor.t() if turned else tensor
    if score is not None:
        tensors.pop(HEAD, None)
    plain = {n: t.detach().to("cpu", dtype).contiguous() for n, t in tensors.items()}
    write_atomically(
        folder / MODEL_FILE,
        # transformers 4 refuses a file that does not say which framework wrote it.
        lambda temporary: save_file(plain, temporary, {"format": "pt"}),
    )
    if tokenizer is not None:
        side = "left" if score is None else "right"  # a classifier counts positions from column 0
        write_tokenizer(folder, tokenizer, model.config.context, side)
        config |= special_ids(tokenizer)
    if score is not None:
        name = class_name(config["model_type"])
        config |= {"architectures": [f"{name}{CLASSIFIER}"]}
        config |= {
            "id2label": {"0": "reward"},
            "label2id": {"reward": 0},
            EXPORTED: dict(about or {}),
        }
    write_json(folder / CONFIG_FILE, config)


def weight_files(folder: Path) -> list[Path]:
    """model.safetensors, or a pickle, or the shards of either that its index names.

    UserError where there is none, or where a shard is missing.
    """
    for name in (MODEL_FILE, PICKLE):
        if (folder / name).is_file():
            return [folder / name]
        if (index := folder / f"{name}{INDEX}").is_file():
            names = sorted(
                {Path(shard).name for shard in read_object(index)["weight_map"].values()}
            )
            files = [folder / shard for shard in names]
            if missing := [path.name for path in files if not path.is_file()]:
                raise UserError(
                    f"{folder} lacks {', '.join(missing)}, of the {len(names)} files that {index.name} "
                    "names: fetch them into the folder"
                )
            return files
    raise UserError(
        f"{folder} holds no {MODEL_FILE} (peft's merge_and_unload makes it of LoRA): name a folder with it "
        f"and {CONFIG_FILE}, or a model of the hub as hf://OWNER/NAME"
    )


def published_shape(values: Mapping[str, object], path: Path) -> GPTConfig:
    """What a config.json says -> our config; UserError for a part that nothing here computes."""
    kind = str(values.get("model_type"))
    values = MISSING.get(kind, {}) | dict(values)
    if part := other_part(kind, values):
        raise UserError(
            f"{path}: model_type {kind!r} has {part}, which is not computed here: pass one of gpt2, "
            f"{', '.join(SWITCHES)} without that (docs/models.md)"
        )
    names = SIZES["gpt2" if kind == "gpt2" else "llama"]
    sizes: dict[str, Any] = {ours: values.get(theirs) for ours, theirs in names.items()}
    if kind == "gpt2":
        return checked_shape(GPTConfig, sizes, path)
    sizes["n_key_head"] = sizes["n_key_head"] or sizes["n_head"]
    # Attention in windows sees all of a row that is no longer than one.
    sizes["context"] = min(sizes["context"], window_of(values) or sizes["context"])
    return checked_shape(LlamaConfig, sizes | llama_switches(kind, values, path), path)


def window_of(values: Mapping[str, object]) -> Any:
    """How many tokens attention in windows sees; None without them."""
    return None if values.get("use_sliding_window") is False else values.get("sliding_window")


def rotary_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of rotary positions beside the base, which transformers 5 writes here too."""
    return dict(values.get("rope_scaling") or values.get("rope_parameters") or {})


def turning_of(rope: Mapping[str, object]) -> Any:
    """The kind of rotary positions, as newer and older files call it."""
    return rope.get("rope_type", rope.get("type", "unnamed" if "factor" in rope else "default"))


def other_part(kind: str, values: Mapping[str, Any]) -> str | None:
    """The first part in a config.json that is not computed here; None without any."""
    rope, parts = rotary_of(values), dict(ARCHITECTURE["llama"])
    if kind in BIASED:
        parts["attention_bias"] += (True,)
    for name in filter(OTHER_HEAD.search, map(str, values.get("architectures") or ())):
        return f"the head of {name}"
    if kind == "gpt2":
        parts |= ARCHITECTURE["gpt2"] | {"n_inner": (None, 4 * (values.get("n_embd") or 0))}
    for key, here in parts.items():
        value = rope.get(key, values.get(key, here[0]))
        if value not in here:
            return f"{key} {value!r:.40}"
    layers = {"full_attention"} | ({"sliding_attention"} if window_of(values) else set())
    if other := set(values.get("layer_types") or ()) - layers:
        return f"layers of {min(other)}"
    if kind != "gpt2" and kind not in SWITCHES:
        return "parts of its own"
    turning = turning_of(rope)
    llama3 = all(rope.get(k) == v == values.get(k, v) for k, v in LLAMA3.items())
    if not (llama3 or turning in ("default", "linear")) or any(
        isinstance(x, dict) for x in rope.values()
    ):
        return f"rotary positions {rope!r:.160}"
    return None if unturned_of(values) else f"no_rope_layers {values['no_rope_layers']!r:.80}"


def unturned_of(values: Mapping[str, Any]) -> int | None:
    """n where each n-th layer knows no positions, and no other does; else None."""
    turned, every = values.get("no_rope_layers"), values.get("no_rope_layer_interval", 4)
    if turned is None:
        return int(every)
    every = [*turned, 0].index(0) + 1
    return every if turned == turned_layers(len(turned), every) else None


def turned_layers(count: int, every: int) -> list[int]:
    """transformers' no_rope_layers: 1 for each layer that knows positions, 0 for each `every`-th."""
    return [min((i + 1) % every, 1) for i in range(count)]


def llama_switches(kind: str, values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The switches of gpt/llama.py, and the numbers of its norms and rotary positions."""
    rope, switches, width = rotary_of(values), dict(SWITCHES[kind]), values.get("head_dim")
    numbers = {
        "rope_base": rope.get("rope_theta", values.get("rope_theta", 1e4)),
        "norm_eps": values.get("rms_norm_eps", 1e-6),
    }
    if turning_of(rope) != "default":
        numbers["rope_factor"] = rope.get("factor")
    switches["rope_linear"] = turning_of(rope) == "linear"
    for name, value in (numbers | multipliers_of(kind, values)).items():
        if type(value) not in (int, float) or not 0 < value < 1e30:
            raise UserError(f"{path}: {name} is {value!r}, not a positive number: fetch it again")
    if width and width * values["num_attention_heads"] != values["hidden_size"]:
        switches["d_head"] = width
    if "unturned" in switches:
        switches["unturned"] = unturned_of(values)
    if values.get("attention_bias"):
        switches |= dict.fromkeys(BIASES, True)
    tied = values.get("tie_word_embeddings", False)
    own = kind == "granite" or not tied if isinstance(tied, bool) else tied
    return switches | numbers | {"own_head": own}


def multipliers_of(kind: str, values: Mapping[str, object]) -> dict[str, Any]:
    """Granite's four numbers; none of other kinds."""
    return {name: values.get(name, 1.0) for name in MULTIPLIERS} if kind == "granite" else {}


def as_llama(
    values: Mapping[str, object], config: LlamaConfig, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The tensors of a kind that is a Llama in another form, in a Llama's; `values` is config.json.

    Phi-3     queries, keys and values are one matrix, both inputs of SwiGLU another: taken apart
    ERNIE     turns entries 2i and 2i + 1, as the paper does: rows of queries and keys change places
    Granite   multiplies the embedding, scores, what a block adds, and logits by numbers of config.json:
              here their matrices are multiplied, for which a tied head becomes one of its own
    """
    kind, d, made = values["model_type"], config.head_width, dict(tensors)
    keys = config.n_head * d  # where they begin in a matrix of queries, keys and values
    fused = {
        "qkv_proj": ("qkv", (keys, keys + config.n_key_head * d)),
        "gate_up_proj": (("gate", "up"), (config.n_inner,)),
    }
    factors: dict[str, float] = {}
    if kind == "granite":
        embedding, scores, added, logits = multipliers_of(kind, values).values()
        factors = {"wte": embedding, "lm_head": 1 / logits, "q_proj": scores * math.sqrt(d)}
        factors |= {"o_proj": added, "down_proj": added}
        if values.get("tie_word_embeddings"):
            made[HEAD] = made["wte.weight"]
    for name, tensor in list(made.items()):
        part = name.rpartition(".")[0].rpartition(".")[2]
        if kind == "phi3" and part in fused and tensor.ndim == 2:
            names, ends = fused[part]
            rows = zip(names, tensor.tensor_split(ends), strict=True)
            made |= {name.replace(part, f"{each}_proj"): own.clone() for each, own in rows}
            del made[name]
        elif kind == "ernie4_5" and part in ("q_proj", "k_proj") and len(tensor) % d == 0:
            made[name] = tensor.unflatten(0, (-1, d // 2, 2)).transpose(1, 2).flatten(0, 2)
        elif part in factors:
            made[name] = tensor.float() * factors[part]
    return made


def model_type(config: GPTConfig) -> str:
    """What config.json calls a model of this shape; UserError for switches that no kind has together."""
    if not isinstance(config, LlamaConfig):
        return "gpt2"
    names = BIASES.union(*SWITCHES.values())
    on = {name for name in names if vars(config)[name]}
    on -= BIASES if on >= BIASES else set()  # of attention_bias, which many kinds have
    for kind, switches in SWITCHES.items():
        if on == switches.keys():
            return kind
    raise UserError(f"transformers has no model with {' and '.join(sorted(on))}: train another one")


def class_name(kind: str) -> str:
    """What transformers' classes of a model_type begin with."""
    return {"gpt2": "GPT2", "smollm3": "SmolLM3"}.get(kind, kind.title())


def hub_config(model: GPT) -> dict[str, Any]:
    """The config.json of a model with this shape."""
    config, kind = model.config, model_type(model.config)
    file = "gpt2" if kind == "gpt2" else "llama"
    table: dict[str, Any] = {theirs: vars(config)[ours] for ours, theirs in SIZES[file].items()}
    table["model_type"] = kind
    table |= {key: x[0] for key, x in ARCHITECTURE[file].items() if x[0] is not None}
    if isinstance(config, LlamaConfig):
        table |= {"head_dim": config.head_width, "tie_word_embeddings": not config.own_head}
        table |= {"rope_theta": config.rope_base, "rms_norm_eps": config.norm_eps}
        table["attention_bias"] = config.o_bias
        if config.rope_factor:
            turning = {"rope_type": "linear"} if config.rope_linear else LLAMA3
            table["rope_scaling"] = turning | {"factor": config.rope_factor}
        if config.unturned:
            table["no_rope_layers"] = turned_layers(config.n_layer, config.unturned)
        # Else some kinds have ids that a small vocabulary lacks.
        table |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        return table | {"architectures": [f"{class_name(kind)}ForCausalLM"]}
    # Without these keys transformers takes 50256, and complains if the vocabulary lacks it.
    end_of_text = 50256 if config.vocab_size == 50257 else None
    return table | {
        "architectures": ["GPT2LMHeadModel"], "n_inner": None,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), config.dropout),
        "bos_token_id": end_of_text, "eos_token_id": end_of_text,
    }  # fmt: skip


def llama_name(name: str, config: LlamaConfig, *, ours: bool) -> str:
    """A tensor's name in files that transformers writes, from ours; or ours from that one."""
    norms = ("input_layernorm.", "post_attention_layernorm.", "post_feedforward_layernorm.")
    first = int(config.norms_after)
    for own, theirs in (
        ("wte.", "model.embed_tokens."), ("ln_f.", "model.norm."), ("h.", "model.layers."),
        ("attn.", "self_attn."), ("ln_1.", norms[first]), ("ln_2.", norms[first + 1]),
    ):  # fmt: skip
        name = name.replace(theirs, own) if ours else name.replace(own, theirs)
    return name


def their_name(name: str, config: GPTConfig) -> str:
    """A tensor's name in files that transformers writes."""
    return (
        llama_name(name, config, ours=False) if isinstance(config, LlamaConfig) else PREFIX + name
    )


def own_name(name: str, config: GPTConfig, prefix: str) -> str:
    """Our name of a stored tensor; one that stands outside of `prefix` is none of ours, but a score."""
    if name == SCORE:
        return name
    if isinstance(config, LlamaConfig):
        return llama_name(name, config, ours=True)
    return name.removeprefix(prefix) if name.startswith(prefix) else f"{name} (no {prefix})"


def read_weights(files: Sequence[Path], config: GPTConfig) -> dict[str, Tensor]:
    """The tensors of all files in our names and layout, without masks and a tied head.

    UserError for a file that cannot be read, and for a head of its own where it should be tied.
    """
    stored: dict[str, Tensor] = {}
    for path in files:
        if path.suffix == ".bin":
            stored |= {WRAPPED.sub("", n): x for n, x in unpickled(path, "cpu").items()}
            continue
        path.open("rb").close()  # says why it cannot be opened, which safetensors does not
        try:
            with safe_open(
                record_input(path), framework="pt"
            ) as file:  # cloned: not the mapped file
                stored |= {WRAPPED.sub("", n): file.get_tensor(n).clone() for n in file.keys()}
        except SafetensorError as error:
            raise UserError(
                f"{path} is no safetensors file ({error}): fetch it again, with git-lfs where git clones it"
            ) from error
    prefix = PREFIX if any(name.startswith(PREFIX) for name in stored) else ""
    own_head = isinstance(config, LlamaConfig) and config.own_head
    head = None if own_head else stored.pop(HEAD, None)
    tensors = {}
    for name, tensor in stored.items():
        if not MASK.fullmatch(name):
            own = own_name(name, config, prefix)
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


def unpickled(path: Path, device: str) -> dict[str, Tensor]:
    """The tensors of a pickle, in which nothing else may be: any other could run code."""
    try:
        found = torch.load(record_input(path), map_location=device, weights_only=True)
        return {name: tensor.detach() for name, tensor in found.items()}
    except OSError:
        raise
    except Exception as error:  # of zip, pickle and PyTorch
        raise UserError(
            f"{path} is no pickle of tensors alone ({type(error).__name__}): fetch it again, or write it "
            "with transformers' save_pretrained"
        ) from error


# Find in the hub's cache, or fetch ----------------------------------------------------------------

REVISIONS = {"openai-community/gpt2": "607a30d783dfa663caf39e06633721c8d4cfcd7e"}  # else: main
HUB_FILES = [
    CONFIG_FILE, MODEL_FILE, f"{MODEL_FILE}{INDEX}", "model-*.safetensors", ADAPTER_FILE, ADAPTER_WEIGHTS,
    *TOKENIZER_FILES, "README.md", "LICENSE*",
]  # fmt: skip
PICKLES = ["pytorch_model*.bin", f"{PICKLE}{INDEX}"]  # fetched where there is no other


@cache
def hub_folder(repo: str, name: str) -> Path:
    """The folder of OWNER/NAME, typed as `name`, in the hub's cache; what that lacks is downloaded.

    huggingface_hub does it by its settings (HF_HOME, HF_HUB_OFFLINE, HF_TOKEN, ...). Without a network
    it takes what is there. Raises UserError, one sentence with a way out, if it cannot.
    """
    page = f"https://huggingface.co/{repo}"
    by_hand = (
        f"fetch {CONFIG_FILE}, {MODEL_FILE} and the tokenizer's files of {page} elsewhere into one folder, "
        "and name that"
    )
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        install = f'a model of the hub needs {error.name}: run pip install -e ".[hub]"'
        raise UserError(f"{name} is no folder here, and {install}, or {by_hand}") from error
    try:
        more: dict[str, Any] = {"revision": REVISIONS.get(repo), "etag_timeout": 5}
        folder = Path(snapshot_download(repo, allow_patterns=HUB_FILES, **more))
        if not [*folder.glob("*.safetensors")]:
            snapshot_download(repo, allow_patterns=PICKLES, **more)
        return folder
    except Exception as error:  # the client's own, and those of the libraries for HTTP under it
        first_line = f"{type(error).__name__}: {error}".strip().splitlines()[0].rstrip(".: ")
        raise UserError(
            f"{name} is no folder here, and {page} could not be fetched ({first_line}): {by_hand}"
        ) from error
