"""One model is asked in one form by whoever asks it: a person, a talk, an engine with its test."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
import torch
from forked import command
from toys import GLASSBOX, bytes_form, glassbox_gpt, published_tokenizer

from data.records import SPLITS
from data.worlds import reviews
from gpt.checkpoint import save_gpt
from gpt.huggingface import save_hf
from gpt.llama import Llama, LlamaConfig
from gpt.recipes import config_of
from gpt.tokenizer import Tokenizer
from harness.files import append_jsonl, read_jsonl, write_json
from harness.paths import MODEL_FILE
from reward_model import pairs
from reward_model.pair_files import file_pairs
from reward_model.questions import QuestionFlags, Questions
from reward_model.reward_model_training import RewardModelConfig
from rl import grpo_engine
from rl.batches import rollout
from rl.grpo_engine import GRPOConfig
from rl.talk import Talk, TalkConfig

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if not deep %}(quick){% endif %}{% endif %}"
)
# What a model reads of question 7: in our form, or in its own with the argument deep=true.
FORMS = {
    "run": "",  # a world has a text of its own
    "text": "### Instruction:\nSay 7?\n\n### Response:\n",
    "chat": "<|user|>Say 7?<|end|><|assistant|>",
}


def published(folder: Path, chat: bool) -> Tokenizer:
    marks = ["<|end|>", "<|user|>", "<|assistant|>"]
    tokenizer = published_tokenizer(bytes_form(marks), 256, chat_template=TEMPLATE)
    tokenizer = tokenizer if chat else dataclasses.replace(tokenizer, chat=None)
    torch.manual_seed(0)
    shape = LlamaConfig(
        tokenizer.n_vocab, 128, n_layer=1, n_head=2, n_embd=8, n_key_head=1, n_inner=16
    )
    save_hf(Llama(shape), folder, tokenizer)
    return tokenizer


@pytest.mark.parametrize("kind", FORMS)
def test_all_who_ask_a_model_have_it_read_the_same(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what GRPO prints at its end can be typed: the blind comparison with its start."""
    monkeypatch.chdir(tmp_path)
    read: dict[str, set[tuple[int, ...]]] = {}
    asking = [""]

    def noted(sample):
        def inner(model, tokenizer, encoded, *more, **options):
            read.setdefault(asking[0], set()).update(map(tuple, encoded))
            return sample(model, tokenizer, encoded, *more, **options)

        return inner

    for module in (pairs, rollout):
        monkeypatch.setattr(module, "sample", noted(module.sample))
    if kind == "run":
        tokenizer, data = GLASSBOX, "reviews"
        save_gpt(tmp_path / "mine" / MODEL_FILE, glassbox_gpt(0, context=128), tokenizer)
        write_json(tmp_path / "mine" / "config.json", {"data": "reviews", "preset": "tiny"})
        records = [record for split in SPLITS for record in reviews.prompts(split)]
        typed = {record.prompt: record.prompt for record in records}
    else:
        tokenizer, data = published(tmp_path / "mine", kind == "chat"), "asks.jsonl"
        texts = [f"Say {n}?" for n in range(40)]
        append_jsonl(Path(data), ({"instruction": text, "output": "x"} for text in texts))
        typed = {FORMS[kind].replace("Say 7?", text): text for text in texts}
    arguments = ("deep=true",) * (kind == "chat")
    rewards = tmp_path / "short.py"
    rewards.write_text("def short(prompt, response): return -float(len(response))\n")
    given = dict(data=data, model="mine", chat_arguments=arguments, device="cpu")

    asking[0] = "engine"
    config = config_of(
        GRPOConfig, **given, reward=f"{rewards}:short", steps=5, prompts_per_step=8, group_size=2,
        max_new_tokens=4, eval_every=5, eval_prompts=99, test_prompts=99, out=tmp_path / "steered",
        ranks=1,
    )  # fmt: skip
    grpo_engine.main(config)
    said = capsys.readouterr().out
    asking[0] = "annotate"
    flags = QuestionFlags(**given, max_new_tokens=4, out=tmp_path / "mine.jsonl")
    questions = Questions(flags)
    assert questions[29]
    asking[0] = "talk"
    talk = Talk(TalkConfig("steered", device="cpu", max_new_tokens=4))
    for prompt in sorted(typed)[:40]:
        talk.answer(typed[prompt])

    ids = {tuple(tokenizer.encode_prompt(prompt)) for prompt in typed}
    assert {asker for asker, prompts in read.items() if prompts <= ids} == {
        "engine", "annotate", "talk",
    }  # fmt: skip
    if kind != "run":
        assert read["engine"] == read["talk"] == ids and len(read["annotate"]) > 15
        assert FORMS[kind] in typed

    if kind == "chat":  # the next judge learns in the form in which it will be asked
        verdict = {"verdict": "first", "annotator": "me", "repeat": False}
        append_jsonl(flags.out, [row | verdict for row in read_jsonl(questions.path)[1:]])
        given |= {"data": str(flags.out)}
        judge = config_of(RewardModelConfig, **given)
        learned = [pair for part in file_pairs(judge, talk.tokenizer, 128) for pair in part]
        assert len(learned) > 20 and {tuple(pair.prompt) for pair in learned} <= ids

    (line,) = re.findall(r"python (.* --against .*)", said)
    words = [*shlex.split(line), "--pairs", "4", "--device", "cpu"]
    done = command(*words, cwd=tmp_path, given=b"1\n2\n=\n1\n")
    assert done.returncode == 0, done.stderr
    kept = read_jsonl(tmp_path / "blind-steered.jsonl")
    assert [row["verdict"] for row in kept] == ["first", "second", "tie", "first"]
    assert re.search(r"steered won against mine in 0\.\d\d of 4", done.stdout)
    assert f"temperature {0.7 if kind == 'chat' else 1:g}," in done.stdout
