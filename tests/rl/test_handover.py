"""What is handed to TRL: its first step on the same rollouts has our loss and our gradient."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import seeded

from data import reviews
from data.collate import collate_responses
from data.records import PromptRecord
from gpt.checkpoint import save_gpt
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from gpt.model import GPT, GPTConfig
from gpt.published.pretrained import TRANSPOSED
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from harness.files import read_json, read_jsonl, write_json
from harness.run_folder import record
from reward_model.scalar_head import RewardModel, load_reward_model, save_reward_model
from rl import export
from rl.batches.rollout import sample_rollout
from rl.equations.advantages import group_advantages
from rl.export import ExportConfig
from rl.grpo_engine import GRPOConfig, grpo_loss
from rl.rewards.sources import RewardModelReward

GLASSBOX = load_tokenizer("glassbox")


def random_gpt(seed: int) -> GPT:
    model = GPT(GPTConfig(GLASSBOX.n_vocab, context=96, n_layer=2, n_head=2, n_embd=16)).eval()
    model.initialize(seeded(seed))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    return model


def grpo_run(folder: Path, **changes) -> GRPOConfig:
    """A run folder of GRPO with its start and its reward model, as the engine leaves them."""
    save_gpt(folder / "base" / "model.safetensors", random_gpt(0), GLASSBOX)
    reward_model = RewardModel.from_policy(random_gpt(1))
    reward_model.mean.fill_(0.3)
    save_reward_model(folder / "rm" / "model.safetensors", reward_model, GLASSBOX)
    save_gpt(folder / "run" / "model.safetensors", random_gpt(2), GLASSBOX)
    flags = dict(
        policy=folder / "base", reward_model=(folder / "rm",), prompts_per_step=4, group_size=4,
        minibatches=1, micro_batch_size=16, max_new_tokens=12, kl_coef=0.3, device="cpu",
    ) | changes  # fmt: skip
    config = GRPOConfig(**flags)
    write_json(folder / "run" / "config.json", record(config))
    return config


def handed_over(folder: Path, to: str = "trl") -> Path:
    export.main((folder / "run",), ExportConfig(to=to, out=folder / to))
    return folder / to


def imported(monkeypatch, folder: Path, name: str) -> dict[str, Any]:
    """A file where it lies, with another name than __main__: nothing is trained."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "rewards", raising=False)
    return runpy.run_path(name)


def test_the_folder_has_the_same_settings(tmp_path: Path, capsys) -> None:
    config = grpo_run(tmp_path, lr=3e-4, updates_per_batch=2, minibatches=2, stop_kl=5.0)
    folder = handed_over(tmp_path)
    said = capsys.readouterr().out
    assert "5.0 nats" in said and "Random numbers" in said
    script = (folder / "train.py").read_text()
    settings = eval(script.split("settings = ")[1].split("\n\n")[0])
    assert settings["max_steps"] == config.steps * 4 and settings["learning_rate"] == 3e-4
    assert settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] == 8
    rows = read_jsonl(folder / "prompts.jsonl")
    assert len(rows) > 1000
    assert PromptRecord(rows[0]["prompt"], **json.loads(rows[0]["record"])).prompt


@pytest.mark.oracle
@pytest.mark.parametrize("reward", ["auto", "gold", "mine"])
def test_the_reward_is_the_runs(reward, tmp_path, monkeypatch, require) -> None:
    require("transformers")
    code = "def odd(prompt, response, ended):\n    return len(response) + ended\n"
    (tmp_path / "mine.py").write_text(code)
    config = grpo_run(tmp_path, reward=f"{tmp_path}/mine.py:odd" if reward == "mine" else reward)
    rows = read_jsonl(handed_over(tmp_path) / "prompts.jsonl")[:3]
    texts = [" good", "", " The room is not nice"]
    ids = [GLASSBOX.encode(text) + [GLASSBOX.eos_id] * (i < 2) for i, text in enumerate(texts)]
    asked, columns = [row["prompt"] for row in rows], [row["record"] for row in rows]
    reward_fn = imported(monkeypatch, tmp_path / "trl", "rewards.py")["reward"]
    theirs = reward_fn(asked, texts, ids, record=columns)
    records = reviews.prompts("train")[:3]
    if reward == "mine":
        ours = [len(text) + (i < 2) for i, text in enumerate(texts)]
    elif reward == "gold":
        ended = (True, True, False)
        ours = [reviews.gold_reward(*row) for row in zip(records, texts, ended, strict=True)]
    else:
        model, _ = load_reward_model(config.reward_model[0])
        prompts = [GLASSBOX.encode(r.prompt) for r in records]
        ours = model(collate_responses(prompts, ids, GLASSBOX.eos_id)).tolist()
    assert theirs == pytest.approx(ours, abs=1e-5)


@pytest.mark.oracle
def test_trls_first_step_has_our_loss_and_gradient(tmp_path, monkeypatch) -> None:
    """On one rollout of ours, one update away from the policy that sampled it, in TRL's own trainer."""
    if importlib.util.find_spec("trl") is None:
        pytest.skip("trl is not installed: bench/requirements-peers.txt has it")
    config = grpo_run(tmp_path)
    script = imported(monkeypatch, handed_over(tmp_path), "train.py")
    args = script["GRPOConfig"](output_dir="trained", use_cpu=True, **script["settings"])
    trainer = script["GRPOTrainer"](
        model="policy",
        reward_funcs=script["reward"],
        args=args,
        train_dataset=script["load_dataset"]("json", data_files="prompts.jsonl", split="train"),
        processing_class=script["AutoTokenizer"].from_pretrained("policy"),
    )
    start = random_gpt(0)
    prompts = [row["prompt"] for row in read_jsonl(Path("prompts.jsonl"))]
    sizes = [len(GLASSBOX.encode(prompt)) for prompt in prompts]
    prompts = [p for p, size in zip(prompts, sizes, strict=True) if size == sizes[0]][:4]
    params = SamplingParams(config.temperature, max_new_tokens=config.max_new_tokens)
    records = [PromptRecord(prompt) for prompt in prompts]
    rollout = sample_rollout(start, GLASSBOX, records, params, 4, seeded(3))
    batch, mask = rollout.sequences, rollout.response_mask
    rewards = RewardModelReward(load_reward_model(tmp_path / "rm")[0])(rollout)
    advantages = group_advantages(rewards, 4)
    moved = random_gpt(0)
    with torch.no_grad():
        reference = token_log_probs(start, batch)
        theirs = dict(trainer.model.named_parameters())
        for index, (name, weight) in enumerate(moved.named_parameters()):
            step = 0.01 * torch.randn(weight.shape, generator=seeded(index))
            weight += step
            twin = theirs[f"transformer.{name}"]
            twin += step.t() if name.endswith(TRANSPOSED) else step
    ours = grpo_loss(
        config, token_log_probs(moved, batch), rollout.log_probs, reference, advantages, mask,
        kl_coef=config.kl_coef, rows=len(rollout),
    )  # fmt: skip
    ours.backward()

    ids = [GLASSBOX.encode(record.prompt) for record in rollout.records]
    width = max(map(len, ids))
    padded = torch.tensor([[GLASSBOX.pad_id] * (width - len(row)) + row for row in ids])
    prompt_mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    loss = trainer._compute_loss(trainer.model, {
        "prompt_ids": padded, "prompt_mask": prompt_mask,
        "completion_ids": rollout.response_tokens, "completion_mask": mask.long(),
        "advantages": advantages[:, 0], "old_per_token_logps": rollout.log_probs,
        "ref_per_token_logps": reference, "num_items_in_batch": mask.sum(),
    })  # fmt: skip
    loss.backward()
    worst = 0.0
    for name, weight in moved.named_parameters():
        their = theirs[f"transformer.{name}"].grad
        their = their.t() if name.endswith(TRANSPOSED) else their
        worst = max(worst, float((their - weight.grad).abs().max()))
    print(f"loss {ours:.7f}, apart by {abs(loss - ours):.1e}, gradients by {worst:.1e}")
    assert abs(loss - ours) < 1e-5 and worst < 1e-5
    assert abs(ours) > 1e-3


def test_other_runs_are_refused(tmp_path: Path) -> None:
    grpo_run(tmp_path)
    path = tmp_path / "run" / "config.json"
    write_json(path, read_json(path) | {"script": "rl.ppo_engine"})
    with pytest.raises(UserError, match="rl.ppo_engine.*--hf"):
        handed_over(tmp_path)


@pytest.mark.oracle
def test_verl_gets_the_same_reward_and_the_settings_by_its_names(tmp_path, monkeypatch, require):
    reader = require("transformers").AutoTokenizer
    code = "def odd(prompt, response, ended):\n    return len(prompt) + len(response) + ended\n"
    (tmp_path / "mine.py").write_text(code)
    grpo_run(tmp_path, reward=f"{tmp_path}/mine.py:odd", clip_high=0.28, minibatches=2)
    folder = handed_over(tmp_path, "verl")
    script = (folder / "train.sh").read_text()
    assert "clip_ratio_high=0.28" in script and "ppo_mini_batch_size=2 " in script
    row = read_jsonl(folder / "prompts.jsonl")[0]
    score = imported(monkeypatch, folder, "verl_reward.py")["compute_score"]
    truth, extra = row["reward_model"]["ground_truth"], row["extra_info"]
    eos = GLASSBOX.encoding.decode([GLASSBOX.eos_id])
    long = " good" * 12  # twelve tokens are the limit: it was cut off
    for text, paid in ((" good", 5 + 1), (" good" + eos, 5 + 1), (long, len(long))):
        assert score(row["data_source"], text, truth, extra) == len(extra["prompt"]) + paid
    asked = reader.from_pretrained("policy").apply_chat_template(row["prompt"], tokenize=False)
    assert asked == extra["prompt"]
