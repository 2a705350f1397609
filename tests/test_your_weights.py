"""docs/your_weights.md: its four commands as printed, from a GPT-2-shaped folder to transformers."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch

from gpt.checkpoint import load_gpt
from gpt.model import GPT, GPTConfig
from gpt.published import save_gpt2
from gpt.tokenizer import load_tokenizer
from harness.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "your_weights.md").read_text(encoding="utf-8")
TOY = {  # sizes alone
    "gpt.finetuning": "--steps 2 --batch-size 4 --device cpu --ranks 1",
    "reward_model.reward_model_training": "--steps 2 --batch-size 4 --device cpu --ranks 1",
    "rl.grpo_engine": "--steps 2 --prompts-per-step 2 --group-size 2 --max-new-tokens 8 --eval-prompts 2 "
    "--test-prompts 2 --device cpu --ranks 1",
    "rl.export": "",
}


@pytest.mark.oracle
def test_four_commands_from_a_folder_to_transformers(tmp_path: Path, monkeypatch, require) -> None:
    tokenizer = load_tokenizer("glassbox")
    model = GPT(GPTConfig(tokenizer.n_vocab, context=64, n_layer=1, n_head=2, n_embd=16))
    model.initialize(torch.Generator().manual_seed(0))
    save_gpt2(model, tmp_path / "mine", tokenizer)
    rows = [{"prompt": f"Q{i}?", "chosen": f" yes {i}", "rejected": " no"} for i in range(80)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.S)
    commands = block.splitlines()
    assert len(commands) <= 4
    monkeypatch.chdir(tmp_path)
    for line in commands:
        words = shlex.split(line)
        monkeypatch.setattr(sys, "argv", [*words[2:], *TOY[words[2]].split()])
        monkeypatch.delitem(sys.modules, words[2], raising=False)  # as a fresh process has it
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    transformers = require("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "steered").eval()
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "steered")
    ids = torch.tensor([reader("Q1? yes")["input_ids"]])
    ours, _ = load_gpt(tmp_path / "runs" / "steered")
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, ours(ids), atol=1e-5, rtol=1e-5)
