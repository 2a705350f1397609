"""The static loop beside its twin, the eager one: same tokens, few questions to the device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import toys
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from toys import seeded

from gpt import decode_static as static_decoding
from gpt import model as model_module
from gpt.generate import (
    DECODING,
    SamplingParams,
    as_sampled,
    chosen_decoding,
    generate,
    where_passed,
    where_passed_in_blocks,
)
from gpt.lora import adapters, add_adapters
from gpt.model import GPT, KVCache, attention_by_lengths, plain_attention

EOS = 3
RAGGED = [[1, 2], [3], [4, 0, 1, 2], [2, 2, 2]]
EVEN = [[1, 2, 0], [3, 4, 4]]
CPU = torch.device("cpu")


def random_gpt(seed: int = 0, vocab_size: int = 6, context: int = 64, scale: float = 0.5) -> GPT:
    model = toys.random_gpt(vocab_size, context, seed=seed, scale=scale)
    return model.requires_grad_(False)


MODEL, TEACHER = random_gpt(), random_gpt(1)
NEVER = 5  # the end of a text for ENDLESS: an id that it all but never draws
ENDLESS = random_gpt()
ENDLESS.ln_f.weight[0], ENDLESS.ln_f.bias[0] = 0, 1
ENDLESS.wte.weight[NEVER, 0] = -50


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short response passes through several."""
    monkeypatch.setattr(static_decoding, "WINDOW", 16)
    monkeypatch.delenv(DECODING, raising=False)


def both_ways(model: GPT, prompts: list[list[int]], params: SamplingParams, eos_id=EOS, **options):
    return [
        generate(model, prompts, replace(params, decoding=how), seeded(5), eos_id=eos_id, **options)
        for how in ("eager", "static")
    ]


def same(eager, static) -> None:
    assert static.token_lists() == eager.token_lists()
    assert torch.equal(static.response_tokens, eager.response_tokens)
    assert torch.equal(static.response_mask, eager.response_mask)
    assert torch.equal(static.has_eos, eager.has_eos)
    for name in ("log_probs", "model_log_probs"):
        found, expected = getattr(static, name), getattr(eager, name)
        assert found.dtype == expected.dtype
        exact = found.dtype == torch.float64
        atol, rtol = (1e-12, 0.0) if exact else (1e-6, 5e-7)  # rtol: four units in the last place
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


PLAIN = SamplingParams(max_new_tokens=36)
CASES = {
    "plain": PLAIN,
    "cold": replace(PLAIN, temperature=0.7),
    "greedy": replace(PLAIN, greedy=True),
    "top-k": replace(PLAIN, top_k=3),
    "top-p": replace(PLAIN, top_p=0.8),
    "one token": replace(PLAIN, max_new_tokens=1),
    "up to a look": replace(PLAIN, max_new_tokens=16),
}


@pytest.mark.parametrize("params", CASES.values(), ids=CASES)
@pytest.mark.parametrize("prompts", [RAGGED, EVEN, [[1, 4]]], ids=["ragged", "even", "one row"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_static_loop_draws_the_same_tokens(params, prompts, dtype):
    """Rows end by EOS at all sorts of places: early, late, in one window or another, never."""
    model = random_gpt().to(dtype)
    group = 1 if prompts == [[1, 4]] else 6
    eager, static = both_ways(model, prompts, params, samples_per_prompt=group)
    same(eager, static)
    if group == 6 and params == PLAIN:
        lengths = set(eager.response_mask.sum(1).tolist())
        assert min(lengths) <= 3 and max(lengths) > 16 and len(lengths) > 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_a_teacher_in_the_mixture(dtype):
    model, teacher = random_gpt().to(dtype), random_gpt(1).to(dtype)
    options = dict(samples_per_prompt=5, teacher=teacher, teacher_share=0.4)
    eager, static = both_ways(model, RAGGED, PLAIN, **options)
    same(eager, static)
    assert not torch.equal(eager.log_probs, eager.model_log_probs)


def test_rows_that_never_end_fill_every_window():
    """EOS is an id that cannot be drawn: 60 tokens from 4 up to the context's last position."""
    eager, static = both_ways(ENDLESS, RAGGED, replace(PLAIN, max_new_tokens=60), eos_id=NEVER)
    same(eager, static)
    assert static.response_mask.all() and static.response_tokens.shape == (4, 60)


def test_what_stood_in_the_cache_by_chance_is_never_read(monkeypatch):
    """Memory that is not written yet may hold NaN, and 0 times NaN is NaN."""
    made = GPT.new_cache

    def dirty(model: GPT, *sizes):
        fresh = made(model, *sizes)
        fresh.keys.fill_(torch.nan), fresh.values.fill_(torch.nan)
        return fresh

    expected, _ = both_ways(MODEL, RAGGED, PLAIN)
    monkeypatch.setattr(GPT, "new_cache", dirty)
    same(expected, both_ways(MODEL, RAGGED, PLAIN)[1])


def test_rows_that_have_ended_go_at_the_border_of_a_window(monkeypatch):
    """Most end early: the last window holds the few that run on, and nobody's tokens change."""
    rows: list[int] = []
    decode = GPT.decode

    def noted(model, tokens, cache):
        rows.append(len(tokens))
        return decode(model, tokens, cache)

    monkeypatch.setattr(GPT, "decode", noted)
    same(*both_ways(MODEL, RAGGED, PLAIN, samples_per_prompt=6))
    assert set(rows[:16]) == {24} and rows[-1] <= 16 and rows == sorted(rows, reverse=True)


def test_adapters_are_merged_once_and_the_model_keeps_its_own():
    model = add_adapters(random_gpt(), 2, generator=seeded(0))
    for adapter in adapters(model).values():
        adapter.lora_B.data.normal_(0, 0.3, generator=seeded(1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    eager, static = both_ways(model, RAGGED, PLAIN, samples_per_prompt=6)
    same(eager, static)
    plain, _ = both_ways(random_gpt(), RAGGED, PLAIN, samples_per_prompt=6)
    assert eager.token_lists() != plain.token_lists()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        merged = as_sampled(model, merged=True)
    assert not adapters(merged) and merged.wte.weight is model.wte.weight
    weight = merged.h[0].mlp.c_fc.weight
    expected = model.h[0].mlp.c_fc.merged_weight()  # added up in float32, then cast
    assert torch.equal(weight, expected.bfloat16()) and len(adapters(model)) == 8
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


# Attention by lengths, whose kernel is CUDA's: here a stand-in that does what its documentation says


def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, seqused_k):
    assert cu_seq_q.dtype == cu_seq_k.dtype == seqused_k.dtype == torch.int32 and max_q == 1
    assert cu_seq_q.tolist() == list(range(len(query) + 1)) and max_k == cu_seq_k[1]
    rows = []
    for row, (start, count) in enumerate(zip(cu_seq_k.tolist(), seqused_k.tolist(), strict=False)):
        parts = query[row : row + 1], key[start : start + count], value[start : start + count]
        q, k, v = (part.transpose(0, 1)[None].float() for part in parts)  # (1, H, columns, d)
        seen = torch.ones(1, 1, 1, count, dtype=torch.bool)
        rows.append(plain_attention(q, k, v, seen)[0, :, 0].to(query.dtype))
    return torch.stack(rows)


@pytest.fixture
def by_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(module, "varlen_attn", varlen_attn)


def test_attention_by_lengths_is_plain_attention_over_the_first_columns(by_lengths):
    query = torch.randn(3, 2, 1, 8, generator=seeded(0))
    stored = torch.randn(2, 3, 5, 2, 8, generator=seeded(1)).transpose(2, 3)
    lengths = torch.tensor([1, 5, 3])
    seen = (torch.arange(5) < lengths[:, None])[:, None, None]
    found = attention_by_lengths(query, *stored, lengths)
    torch.testing.assert_close(found, plain_attention(query, *stored, seen))


def test_the_loop_by_lengths_is_the_one_by_masks(by_lengths, monkeypatch):
    """In float32, which the kernel does not know: the same columns count, also of fewer rows."""
    calls: list[int] = []
    attention = model_module.attention_by_lengths

    def noted(*args):
        calls.append(len(args[0]))
        return attention(*args)

    monkeypatch.setattr(model_module, "attention_by_lengths", noted)
    assert not MODEL.new_cache(1, 1, True).by_lengths
    assert random_gpt().bfloat16().new_cache(1, 1, True).by_lengths
    monkeypatch.setattr(
        GPT, "new_cache",
        lambda model, *sizes: KVCache(model.config, *sizes[:2], CPU, torch.float32, sizes[-1]),
    )  # fmt: skip
    uniforms = torch.rand(24, 36, generator=seeded(5))
    given = ([MODEL], RAGGED, uniforms, PLAIN)
    masks, lengths = (
        static_decoding.decode_static(*given, eos_id=EOS, capture=False, by_lengths=how)
        for how in (False, True)
    )
    assert calls[0] == 24 > calls[-1]
    assert torch.equal(masks[0], lengths[0])
    torch.testing.assert_close(masks[1], lengths[1], rtol=0, atol=1e-6)


def test_drawing_in_blocks_finds_the_same_tokens():
    """Blocks of all sizes, the last one short; what has probability 0 is never drawn."""
    probs = (3 * torch.randn(400, 1000, generator=seeded(0))).softmax(-1)
    probs[:, 100:700] = 0
    uniforms = torch.rand(400, generator=seeded(1))
    uniforms[:2] = torch.tensor([0.0, 1 - 2**-24])
    expected = where_passed(probs, uniforms)
    rounded_up_to_the_total = torch.ones(1)
    assert where_passed(torch.eye(3)[2:], rounded_up_to_the_total).tolist() == [[2]]
    for block in (1, 7, 128, 1000, 4096):
        found = where_passed_in_blocks(probs, uniforms, block)
        assert (found == expected).float().mean() > 0.995 and probs.gather(1, found).all()
        assert torch.equal(found[2:50], expected[2:50])


# Questions to the device

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique")


class Waits(TorchDispatchMode):
    """Counts calls whose result a GPU's host would have to wait for, and indexing by a bool mask."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        by_mask = any(isinstance(i, Tensor) and i.dtype == torch.bool for i in indices)
        self.count += name in WAITS or by_mask
        return func(*args, **(kwargs or {}))


def waits(how: str, steps: int, prompts: list[list[int]] = RAGGED, **options) -> int:
    params = replace(PLAIN, max_new_tokens=steps, decoding=how)
    with Waits() as counted:
        generate(ENDLESS, prompts, params, seeded(0), eos_id=NEVER, samples_per_prompt=4, **options)
    return counted.count


@pytest.mark.parametrize("options", [{}, {"teacher": TEACHER, "teacher_share": 0.3}])
def test_the_static_loop_asks_the_device_every_16_tokens(options, monkeypatch):
    monkeypatch.setattr(static_decoding, "WINDOW", 128)  # at a border rows may go
    few, many = waits("static", 8, **options), waits("static", 8 + 48, **options)
    assert many - few == 3
    assert few == 1  # of the CPU: how wide the result is


def test_the_eager_loop_asks_the_device_once_a_token():
    assert waits("eager", 56) - waits("eager", 8) == 48


# bfloat16 autocast


def test_weights_are_as_sampled_and_no_bit_changes():
    """Under autocast the linear layers are copied, all else is shared; outside of it nothing is."""
    model = random_gpt().requires_grad_(True)
    assert as_sampled(model) is model
    tokens = torch.tensor([[1, 2, 4]])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        cast = as_sampled(model)
        assert torch.equal(cast(tokens), model(tokens))
        again = as_sampled(cast)
    own, kept = dict(model.named_parameters()), dict(cast.named_parameters())
    copied = {name for name in own if kept[name] is not own[name]}
    linear = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert copied == {f"h.{i}.{n}.{part}" for i in (0, 1) for n in linear
                      for part in ("weight", "bias")}  # fmt: skip
    assert all(kept[name].dtype == torch.bfloat16 for name in copied)
    assert all(a is b for a, b in zip(again.parameters(), cast.parameters(), strict=True))
    assert all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())


def test_no_step_casts_a_weight():
    """Frozen weights are cast anew by every call under autocast: here only activations are."""
    cast_shapes: list[tuple[int, ...]] = []

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name, to = func.overloadpacket.__name__, (kwargs or {}).get("dtype")
            if name == "_to_copy" and to == torch.bfloat16:
                cast_shapes.append(tuple(args[0].shape))
            return func(*args, **(kwargs or {}))

    params = replace(PLAIN, max_new_tokens=12, decoding="static")
    with torch.autocast("cpu", dtype=torch.bfloat16), Casts():
        generate(MODEL, EVEN, params, seeded(0), eos_id=-1)
    for name, parameter in MODEL.named_parameters():
        if name.startswith("h.") and parameter.ndim == 2:
            assert cast_shapes.count(tuple(parameter.shape)) == 2, name  # once in each layer


@pytest.mark.parametrize("how", ["eager", "static"])
def test_bfloat16_autocast(how):
    params = replace(PLAIN, decoding=how)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sampled = generate(MODEL, RAGGED, params, seeded(1), eos_id=EOS, samples_per_prompt=3)
    assert sampled.log_probs.dtype == torch.float32 and sampled.log_probs.isfinite().all()
    assert (sampled.log_probs[sampled.response_mask] < 0).all()


# Which loop


def test_the_rule():
    """Eager on a card too, until one has passed the comparison."""
    cuda = torch.device("cuda", 1)
    assert {chosen_decoding(PLAIN, one) for one in (CPU, torch.device("mps"), cuda)} == {"eager"}
    assert chosen_decoding(replace(PLAIN, decoding="static"), cuda) == "static"


def test_the_environment_decides_where_the_parameters_do_not(monkeypatch):
    monkeypatch.setenv(DECODING, "static")
    assert chosen_decoding(PLAIN, CPU) == "static"
    assert chosen_decoding(replace(PLAIN, decoding="eager"), CPU) == "eager"
    monkeypatch.setenv(DECODING, "quick")
    with pytest.raises(ValueError, match="DECODING=quick must be one of auto"):
        generate(MODEL, EVEN, PLAIN, eos_id=EOS)
    with pytest.raises(ValueError, match="model is on cpu: use static"):
        generate(MODEL, EVEN, replace(PLAIN, decoding="captured"), eos_id=EOS)


# Recording, without a GPU


class Studio:
    """Stands for harness/cuda_graph.py: a recording runs nothing, a replay calls the function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, breaks: bool = False) -> None:
        self.notes: list[str] = []
        self.breaks = breaks
        monkeypatch.setattr(static_decoding, "recorded", self.recorded)
        monkeypatch.setattr(static_decoding, "aside", self.aside)

    def aside(self, device):
        self.notes.append("warm up")
        return torch.no_grad()

    def recorded(self, function, device):
        self.notes.append("record")
        if self.breaks:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

        def replay() -> None:
            self.notes.append("replay")
            function()

        return replay


def captured(params: SamplingParams):
    return static_decoding.decode_static(
        [MODEL], EVEN, torch.rand(2, params.max_new_tokens, generator=seeded(0)), params,
        eos_id=-1, capture=True, by_lengths=False,
    )  # fmt: skip


def test_each_window_is_warmed_up_recorded_once_and_replayed(monkeypatch):
    """20 tokens in windows of 16."""
    studio = Studio(monkeypatch)
    params = replace(PLAIN, max_new_tokens=20)
    tokens, log_probs, _ = captured(params)
    window = [["warm up", "record", *["replay"] * (n - 1)] for n in (16, 4)]
    assert studio.notes == [*window[0], *window[1]]
    expected = generate(MODEL, EVEN, params, seeded(0), eos_id=-1)
    assert torch.equal(tokens, expected.response_tokens)
    torch.testing.assert_close(log_probs, expected.log_probs, rtol=0, atol=1e-6)


def test_a_step_that_cannot_be_recorded_runs_without(monkeypatch):
    studio = Studio(monkeypatch, breaks=True)
    params = replace(PLAIN, max_new_tokens=20)
    with pytest.warns(UserWarning, match="could not be recorded") as w:
        tokens, _, _ = captured(params)
    assert len(w) == 1 and studio.notes == ["warm up", "record"]
    expected = generate(MODEL, EVEN, params, seeded(0), eos_id=-1)
    assert torch.equal(tokens, expected.response_tokens)


@pytest.mark.gpu
@pytest.mark.parametrize("prompts", [RAGGED, EVEN], ids=["ragged", "even"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_captured_on_a_gpu(prompts, dtype):
    model = random_gpt().to("cuda", dtype)
    runs = [
        generate(model, prompts, replace(PLAIN, decoding=how), seeded(5), eos_id=EOS,
                 samples_per_prompt=6)
        for how in ("eager", "static", "captured", "captured")
    ]  # fmt: skip
    tolerance = 1e-5 if dtype == torch.float32 else 1e-9
    for other in runs[1:]:
        assert torch.equal(other.response_tokens, runs[0].response_tokens)
        torch.testing.assert_close(other.log_probs, runs[0].log_probs, rtol=0, atol=tolerance)
