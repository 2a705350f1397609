"""Exported models in transformers: the same numbers, the same ends, offline."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch
import toys
from toys import GLASSBOX, chat_tokenizer

from data.collate import collate_responses
from data.templates import Turn
from gpt.checkpoint import load_gpt, save_gpt
from gpt.folder import ModelFolder, open_model
from gpt.generate import SamplingParams, generate
from gpt.huggingface import save_hf
from gpt.lora import add_adapters
from gpt.model import GPT
from gpt.tokenizer import build_tokenizer
from harness.errors import UserError
from harness.files import read_object, write_json
from reward_model.scalar_head import save_reward_model
from rl import export
from rl.export import ExportConfig

BYTES = build_tokenizer(  # end of text is padding too, as in GPT-2, and has id 0
    "bytes",
    {bytes([i]): i + 1 for i in range(256)},
    specials={"<|e|>": 0},
    end="<|e|>",
    pad="<|e|>",
)
PROMPTS = ["Review of the hotel:", "a", "12+7=", "Une très longue phrase é"]
ANSWERS = [" good.", " not so good, but cheap", "", " ok"]


def random_gpt(tokenizer) -> GPT:
    return toys.random_gpt(tokenizer.n_vocab, 64, seed=1, scale=0.3, n_embd=16)


def exported(folder: Path, target: Path, **flags) -> Path:
    write_json(folder / "config.json", {"data": "reviews", "script": "s"} | flags)
    export.main(ExportConfig(str(folder), target))
    return target


@pytest.mark.oracle
@pytest.mark.parametrize("tokenizer", [GLASSBOX, BYTES], ids=lambda t: t.name)
@torch.no_grad()
def test_a_policy_has_our_logits_and_stops_where_ours_does(tokenizer, tmp_path, require) -> None:
    transformers = require("transformers")
    model = random_gpt(tokenizer)
    add_adapters(model, 2)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.fill_(0.1)
    save_gpt(tmp_path / "model.safetensors", model, tokenizer)
    hub = exported(tmp_path, tmp_path / "hub", temperature=0.7, max_new_tokens=30)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(hub).eval()
    reader = transformers.AutoTokenizer.from_pretrained(hub)
    ids = torch.tensor([reader(PROMPTS[0])["input_ids"]])
    torch.testing.assert_close(theirs(ids).logits, model(ids), atol=1e-5, rtol=1e-5)
    settings = theirs.generation_config
    assert (settings.temperature, settings.top_k, settings.max_new_tokens) == (0.7, 0, 30)

    model.wte.weight[tokenizer.eos_id] *= 2.4  # so that some answers end
    save_gpt(tmp_path / "model.safetensors", model, tokenizer)
    hub = exported(tmp_path, tmp_path / "hub2", max_new_tokens=20)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(hub).eval()
    greedy = SamplingParams(greedy=True, max_new_tokens=20)
    encoded = [tokenizer.encode(prompt) for prompt in PROMPTS]
    ours = generate(model, encoded, greedy, eos_id=tokenizer.eos_id).token_lists()
    batch = reader(PROMPTS, return_tensors="pt", padding=True)
    written = theirs.generate(**batch, do_sample=False)[:, batch["input_ids"].shape[1] :].tolist()
    for our, their in zip(ours, written, strict=True):
        assert their[: len(our)] == our and set(their[len(our) :]) <= {tokenizer.pad_id}
    assert any(1 < len(row) < 20 for row in ours)

    again, read = open_model(str(hub))  # and the way back
    torch.testing.assert_close(again(ids), load_gpt(tmp_path)[0](ids), atol=1e-6, rtol=0)
    assert read.fingerprint == tokenizer.fingerprint


@pytest.mark.oracle
@pytest.mark.parametrize("tokenizer", [GLASSBOX, BYTES], ids=lambda t: t.name)
@torch.no_grad()
def test_a_reward_model_gives_the_normalised_reward(tokenizer, tmp_path, require) -> None:
    transformers = require("transformers")
    model = toys.random_judge(random_gpt(tokenizer))
    save_reward_model(tmp_path / "model.safetensors", model, tokenizer)
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    answers = [[*tokenizer.encode(text), tokenizer.eos_id] for text in ANSWERS]
    ours = model(collate_responses(prompts, answers, tokenizer.eos_id))
    hub = exported(tmp_path, tmp_path / "hub")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(hub).eval()
    reader = transformers.AutoTokenizer.from_pretrained(hub)
    rows = [
        [*reader(prompt)["input_ids"], *reader(answer)["input_ids"], reader.eos_token_id]
        for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)
    ]
    batch = reader.pad({"input_ids": rows}, return_tensors="pt")
    torch.testing.assert_close(theirs(**batch).logits[:, 0], ours, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@torch.no_grad()
def test_a_score_without_a_bias_and_what_is_to_be_added_are_the_normalised_reward(kind) -> None:
    """A GPT-2's last norm has a shift that takes all of it."""
    gpt: GPT = random_gpt(BYTES) if kind == "gpt" else toys.random_llama(BYTES.n_vocab, seed=1)
    model = toys.random_judge(gpt)
    prompt, answer = BYTES.encode("12+7="), [*BYTES.encode(" good."), BYTES.eos_id]
    expected = model(collate_responses([prompt], [answer], BYTES.eos_id))[0]
    trunk, score, offset, tokenizer = export.as_classifier(model, BYTES)
    found = trunk.hidden(torch.tensor([[*prompt, *answer]]))[0, -1] @ score[0] + offset
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (offset == 0) == (kind == "gpt") and tokenizer.pad_id != tokenizer.eos_id


@pytest.mark.parametrize(
    "data, kept", [("instructions", True), ("mine.jsonl", True), ("reviews", False)]
)
def test_a_chat_template_goes_with_runs_that_asked_in_it(data, kept, tmp_path) -> None:
    tokenizer = chat_tokenizer("smollm2")
    save_gpt(tmp_path / "model.safetensors", random_gpt(tokenizer), tokenizer)
    hub = exported(tmp_path, tmp_path / "hub", data=data)
    settings = read_object(hub / "tokenizer_config.json")
    assert settings.get("chat_template") == (tokenizer.chat_template if kept else None)


def card_of(folder: Path) -> tuple[dict[str, str], str]:
    """The lines of a card's head, by their key, and its Python."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    found = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL)
    assert found
    head = dict(line.split(": ", 1) for line in found[1].splitlines())
    (code,) = re.findall(r"```python\n(.*?)```", found[2], re.DOTALL)
    return head, code


def said_by(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What lines of Python print, run as they stand in this folder."""
    monkeypatch.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(code, {})
    return said.getvalue()


@pytest.mark.oracle
@pytest.mark.parametrize(("kind", "chat"), [("gpt", False), ("gpt", True), ("qwen3", True)])
def test_the_lines_of_a_card_run_as_they_are_printed(
    kind, chat, tmp_path, monkeypatch, require
) -> None:
    """A Qwen3's head is its own, and its judge has a number to add, which the card says."""
    require("transformers")
    tokenizer = chat_tokenizer("smollm2") if chat else BYTES
    if kind == "qwen3":
        own = dict(qk_norm=True, d_head=8, own_head=True)
        model: GPT = toys.random_llama(tokenizer.n_vocab, 256, seed=1, **own)
    else:
        model = toys.random_gpt(tokenizer.n_vocab, 256, seed=1, scale=0.3, n_embd=16)
    judge = toys.random_judge(model)
    save_gpt(tmp_path / "policy" / "model.safetensors", model, tokenizer)
    save_reward_model(tmp_path / "judge" / "model.safetensors", judge, tokenizer)
    data = "instructions" if chat else "reviews"
    hub = exported(tmp_path / "policy", tmp_path / "hub", data=data, max_new_tokens=3)
    head, code = card_of(hub)
    assert (head["pipeline_tag"], head["library_name"]) == ("text-generation", "transformers")
    assert "license" not in head and "base_model" not in head and "datasets" not in head
    assert said_by(code, hub, monkeypatch)
    hub = exported(tmp_path / "judge", tmp_path / "hub_judge", data=data)
    head, code = card_of(hub)
    assert head["pipeline_tag"] == "text-classification"
    prompt = "Once upon a time"
    if tokenizer.chat:
        prompt = tokenizer.chat.prompt([Turn("user", "What is a rainbow?")])
    answer = [*tokenizer.encode("It is light in drops of rain."), tokenizer.eos_id]
    expected = judge(
        collate_responses([tokenizer.encode_prompt(prompt)], [answer], tokenizer.eos_id)
    )
    said = float(re.search(r"-?\d+\.\d+", said_by(code, hub, monkeypatch))[0])
    assert said == pytest.approx(float(expected), abs=2e-4)


def test_a_card_names_the_base_its_licence_and_public_data(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = tmp_path / "base"
    save_hf(random_gpt(BYTES), base)
    save_gpt(tmp_path / "run" / "model.safetensors", random_gpt(BYTES), BYTES)

    def head(name: str, **flags) -> dict[str, str]:
        return card_of(exported(tmp_path / "run", tmp_path / name, **flags))[0]

    assert "license" not in head("a", model="base")
    (base / "LICENSE.txt").write_text("Do as you like.")
    assert head("b", model="base")["license_link"] == "LICENSE.txt"
    assert (tmp_path / "b" / "LICENSE.txt").read_text() == "Do as you like."
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\nlicense: none\n")
    write_json(tmp_path / "stage" / "config.json", {"model": "base"})  # a run between
    found = head("c", model="stage", data="hf://datasets/openai/gsm8k/main")
    assert found["license"] == "apache-2.0" and "license_link" not in found
    assert found["datasets"] == "[openai/gsm8k]" and "base_model" not in found
    monkeypatch.setattr(
        export, "place_of", lambda name: base if "Smol" in str(name) else Path(name)
    )
    found = head("d", model="HuggingFaceTB/SmolLM2-135M", data="HuggingFaceTB/mine.jsonl")
    assert found["base_model"] == "HuggingFaceTB/SmolLM2-135M" and "datasets" not in found
    assert found["license"] == "apache-2.0"


def test_weights_in_bfloat16(tmp_path) -> None:
    model = random_gpt(BYTES)
    save_gpt(tmp_path / "model.safetensors", model, BYTES)
    write_json(tmp_path / "config.json", {"script": "s"})
    export.main(ExportConfig(str(tmp_path), tmp_path / "hub", dtype="bfloat16"))
    assert read_object(tmp_path / "hub" / "config.json")["dtype"] == "bfloat16"
    ours, again = model.state_dict(), ModelFolder.open(tmp_path / "hub").model().state_dict()
    assert all(torch.equal(again[name], ours[name].bfloat16().float()) for name in ours)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in (".", "hub")]
    assert sizes[1] < 0.7 * sizes[0]


def lora_run(place: Path, tokenizer) -> GPT:
    """A run over a published folder, its adapters merged."""
    save_hf(random_gpt(tokenizer), place / "base", tokenizer)
    trained = add_adapters(ModelFolder.open(place / "base").model(), 2)
    for name, weight in trained.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(0, 0.2)
    save_gpt(place / "run" / "model.safetensors", trained, tokenizer)
    flags = {"model": str(place / "base"), "lora_rank": 2, "data": "instructions"}
    write_json(place / "run" / "config.json", flags | {"script": "s"})
    return trained.eval()


@pytest.mark.parametrize("chat", [False, True])
@torch.no_grad()
def test_the_adapter_of_a_run_opens_over_its_base(chat, tmp_path) -> None:
    tokenizer = chat_tokenizer("smollm2") if chat else BYTES
    trained = lora_run(tmp_path, tokenizer)
    export.main(ExportConfig(str(tmp_path / "run"), adapter=tmp_path / "adapter"))
    assert not (tmp_path / "run-hf").exists()
    model, read = open_model(tmp_path / "adapter")
    ids = torch.tensor([tokenizer.encode(PROMPTS[0])])
    torch.testing.assert_close(model(ids), trained(ids), atol=1e-5, rtol=1e-5)
    assert read.fingerprint == tokenizer.fingerprint and (read.chat is None) == (not chat)
    config = read_object(tmp_path / "run" / "config.json")
    for flags in ({"lora_rank": 0}, {"lora_rank": 1}, {"model": str(tmp_path / "adapter")}):
        write_json(tmp_path / "run" / "config.json", config | flags)
        with pytest.raises(UserError):
            export.main(ExportConfig(str(tmp_path / "run"), adapter=tmp_path / "again"))


@pytest.mark.oracle
@torch.no_grad()
def test_the_card_of_an_adapter_runs_with_peft(tmp_path, monkeypatch, require) -> None:
    for name in ("transformers", "peft"):
        require(name)
    lora_run(tmp_path, BYTES)
    export.main(ExportConfig(str(tmp_path / "run"), adapter=tmp_path / "adapter"))
    head, code = card_of(tmp_path / "adapter")
    assert head["library_name"] == "peft"
    assert said_by(code, tmp_path / "adapter", monkeypatch)


def test_a_gguf_file_of_a_run(tmp_path, require) -> None:
    reader = require("gguf").GGUFReader
    tokenizer = chat_tokenizer("smollm2")
    lora_run(tmp_path, tokenizer)
    asked = ExportConfig(str(tmp_path / "run"), gguf=tmp_path / "run.gguf", dtype="bfloat16")
    export.main(asked)
    found = reader(tmp_path / "run.gguf")
    assert found.fields["tokenizer.chat_template"].contents() == tokenizer.chat_template
    assert found.fields["general.file_type"].contents() == 32  # llama.cpp's MOSTLY_BF16
    with pytest.raises(UserError, match=r"run\.gguf"):
        export.main(asked)
