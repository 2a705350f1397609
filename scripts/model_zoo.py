"""Which published kinds of model open here, tried: the table of docs/models.md.

    python scripts/model_zoo.py    writes docs/models.json, from which `make tables` has the page's table

transformers writes a folder of each kind: two layers, random weights. Where it opens here, the logits of
both are compared: of whole rows, of left-padded ones, and token by token through the cache.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpt.folder import ModelFolder
from gpt.model import GPT
from harness.command_line import run_command
from harness.errors import UserError
from harness.files import read_json, write_text
from harness.paths import REPOSITORY
from studies.pages import markdown

KEPT = REPOSITORY / "docs" / "models.json"
GPT2 = dict(n_positions=512, n_embd=64, n_layer=2, n_head=4, vocab_size=700)
WIDE = dict(
    vocab_size=700, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, pad_token_id=0,
)  # fmt: skip
TIED, OWN = WIDE | dict(tie_word_embeddings=True), WIDE | dict(tie_word_embeddings=False)
MIXED = ["sliding_attention", "full_attention"]
LLAMA3 = dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3 |= dict(rope_theta=5e5, original_max_position_embeddings=8192)
LINEAR, YARN = dict(rope_type="linear", factor=4.0), dict(rope_type="yarn", factor=4.0)
GRANITE = dict(embedding_multiplier=12.0, logits_scaling=8.0, attention_multiplier=0.1)
GRANITE |= dict(residual_multiplier=0.22)
HALF = dict(rope_type="default", partial_rotary_factor=0.5)
# Which models are of the kind; transformers' name of it, and a config; how it is stored.
ZOO: dict[str, tuple[str, dict[str, Any], str]] = {
    "GPT-2": ("GPT2", GPT2, ""), "DistilGPT2": ("GPT2", GPT2 | dict(_num_labels=1), ""),
    "GPT-2 in shards": ("GPT2", GPT2, "shards"), "GPT-2 as a pickle": ("GPT2", GPT2, "pickle"),
    "SmolLM2": ("Llama", TIED | dict(rope_theta=1e5), ""), "TinyLlama": ("Llama", OWN, ""),
    "Llama 3, 8B": ("Llama", OWN | dict(rope_theta=5e5), "bfloat16"),
    "Llama 3.2, 1B and 3B": ("Llama", TIED | dict(rope_parameters=LLAMA3), ""),
    "a Llama in bfloat16": ("Llama", TIED, "bfloat16"),
    "a Llama with wide heads": ("Llama", TIED | dict(head_dim=32), ""),
    "a Llama with biases": ("Llama", TIED | dict(attention_bias=True), ""),
    "a Llama with half of its heads turned": ("Llama", TIED | dict(rope_parameters=HALF), ""),
    "a Llama with linear scaling": ("Llama", TIED | dict(rope_parameters=LINEAR), ""),
    "a Llama with YaRN": ("Llama", TIED | dict(rope_parameters=YARN), ""),
    "Mistral 7B v0.1": ("Mistral", OWN | dict(sliding_window=128), ""),
    "Mistral 7B v0.3": ("Mistral", OWN | dict(sliding_window=None), ""), "Mixtral": ("Mixtral", OWN, ""),
    "Qwen2.5, 0.5B to 3B": ("Qwen2", TIED | dict(rope_theta=1e6), ""),
    "Qwen2.5 7B, R1-Distill-Qwen": ("Qwen2", OWN | dict(rope_theta=1e6), "shards"),
    "Qwen3, 0.6B to 4B": ("Qwen3", TIED | dict(head_dim=32, rope_theta=1e6), ""),
    "Qwen3 8B": ("Qwen3", OWN | dict(head_dim=32), ""),
    "minimind-3": ("Qwen3", TIED | dict(head_dim=16, rope_theta=1e6), ""),
    "Qwen3.5": ("Qwen3_5Text", TIED | dict(layer_types=["linear_attention", "full_attention"]), ""),
    "OLMo 2": ("Olmo2", OWN | dict(rope_theta=5e5), ""),
    "OLMo 3": ("Olmo3", OWN | dict(layer_types=MIXED, sliding_window=64), ""),
    "SmolLM3": ("SmolLM3", TIED | dict(no_rope_layers=[1, 0]), ""),
    "Gemma 3": ("Gemma3Text", TIED | dict(head_dim=32, layer_types=MIXED, sliding_window=64), ""),
    "Granite 3": ("Granite", TIED | GRANITE, ""),
    "ERNIE 4.5, 0.3B": ("Ernie4_5", TIED | dict(head_dim=16), ""),
    "LFM2": ("Lfm2", TIED | dict(layer_types=["conv", "full_attention"]), ""),
    "Phi-1.5, Phi-2": ("Phi", WIDE | dict(num_key_value_heads=4), ""), "Phi-3": ("Phi3", WIDE, ""),
    "Pythia": ("GPTNeoX", WIDE, ""), "OPT": ("OPT", WIDE | dict(ffn_dim=256, word_embed_proj_dim=64), ""),
}  # fmt: skip


def made(name: str, folder: Path) -> Any:
    """The folder of a row, random in every tensor, and transformers' model of it in float32."""
    import transformers as hub

    kind, config, stored = ZOO[name]
    torch.manual_seed(0)
    model = hub.AutoModelForCausalLM.from_config(getattr(hub, f"{kind}Config")(**config))
    for key, tensor in model.named_parameters():  # so that nothing is left out unseen
        if tensor.ndim > 1:
            tensor.data.mul_(5)
        else:
            tensor.data.uniform_(-0.5, 0.5).add_("norm" in key or "ln_" in key)
    model = model.to(torch.bfloat16 if stored == "bfloat16" else torch.float32)
    model.save_pretrained(folder, max_shard_size="100KB" if stored == "shards" else "5GB")
    theirs = hub.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if stored == "pickle":
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return theirs.eval()


@torch.no_grad()
def largest_difference(ours: GPT, theirs: Any) -> float:
    """Between the logits: of whole rows, token by token, and left-padded."""
    x = torch.randint(1, 600, (2, 40), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(40) >= torch.tensor([[7], [0]])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    padded = theirs(x, attention_mask=mask.long(), position_ids=positions).logits
    whole, cache = theirs(x).logits, ours.new_cache(2, 40)
    steps = [ours.logits(ours.hidden(x[:, [j]], None, cache)) for j in range(40)]
    differences = (ours(x) - whole, torch.cat(steps, 1) - whole, (ours(x, mask) - padded)[mask])
    return max(float(difference.abs().max()) for difference in differences)


def tried(name: str) -> list[str]:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        theirs = made(name, Path(folder))
        try:
            found = f"equal to {largest_difference(ModelFolder.open(folder).model(), theirs):.0e}"
        except UserError as error:
            found = "refused: " + re.split(r" has | holds |, which| \(tr", str(error))[1]
    return [name, f"`{theirs.config.model_type}`", found]


def table() -> list[str]:
    """Of the page, from what was kept."""
    rows = read_json(KEPT)
    opened = sum(row[-1].startswith("equal") for row in rows)
    return markdown([f"{opened} of {len(rows)} open", "model_type", "logits, or why not"], rows)


@dataclass(frozen=True)
class ZooConfig:
    """Try every kind of model, and keep what came of it in docs/models.json."""


def main(config: ZooConfig) -> None:
    """Make, open, compare; write each row as it will be in the table."""
    write_text(KEPT, "[\n" + ",\n".join(json.dumps(tried(name)) for name in ZOO) + "\n]\n")


if __name__ == "__main__":
    run_command(main, ZooConfig)
