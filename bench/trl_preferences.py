"""The preference study's reward model and its GRPO in TRL: the same weights, pairs, steps and judges.

    python -m studies.preferences --stages judges policies --seeds 1      reward models, the start, GRPO
    python bench/trl_preferences.py --trainer reward                      with .venv-peers (make bench)
    python bench/trl_preferences.py --trainer grpo

`reward` trains TRL's RewardTrainer on rm-a's pairs and says how it orders the held-out ones. `grpo` is
paid by rm-a itself, so that only the loop differs, and its policy is measured as the study's are. Each
writes what it found, its minutes and its peak of memory to trl-reward.json or trl-grpo.json in --out.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import resource
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import trl
from datasets import Dataset
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from data.collate import collate_responses
from data.files.read import read_preferences
from data.records import PreferenceRecord, split_of
from gpt.checkpoint import load_policy
from gpt.ranks import score_in_micro_batches
from gpt.tokenizer import Tokenizer
from harness.command_line import run_command
from harness.device import precision
from harness.files import read_json, write_json
from harness.flags import AtLeastOne
from reward_model.accuracy_report import wilson_interval
from reward_model.pairs import encode_pairs
from reward_model.scalar_head import load_reward_model
from rl.equations.advantages import score_missing_eos
from studies import preferences as study

CPU = torch.device("cpu")
PAD = "<|endoftext|>"  # the end of a turn as padding would be no token that a reward model reads


@dataclass(frozen=True)
class TRLConfig:
    """Train TRL's reward model or its GRPO as the preference study does."""

    trainer: Literal["reward", "grpo"] = "reward"
    """Which one."""
    out: Path = study.PreferencesConfig.out
    """Folder of the study, with rm-a, rm-b and the start."""
    model: Path = study.PreferencesConfig.model
    """Folder of the chat model."""
    steps: AtLeastOne = study.PreferencesConfig.steps
    """Of GRPO: batches of 32 answers."""


def options(lr: float, warmup: int, steps: int, rows: int) -> dict[str, Any]:
    """What both trainers are given: the optimizer of this project, a bfloat16 autocast, no logs."""
    return dict(
        per_device_train_batch_size=rows,
        output_dir=tempfile.mkdtemp(prefix="trl-"), learning_rate=lr, warmup_steps=warmup,
        max_steps=steps, lr_scheduler_type="constant_with_warmup", optim="adamw_torch_fused",
        adam_beta1=0.9, adam_beta2=0.95, max_grad_norm=1.0, bf16=True, use_cpu=True, seed=0,
        gradient_checkpointing=False, save_strategy="no", report_to="none", logging_strategy="no",
    )  # fmt: skip


def minutes(trainer: Any) -> float:
    begin = time.perf_counter()
    trainer.train()
    return (time.perf_counter() - begin) / 60


def records_of(config: study.PreferencesConfig, held_out: bool) -> list[PreferenceRecord]:
    records = read_preferences(study.pairs_file(config, "a")).records
    return [record for record in records if (split_of(record.prompt) != "train") == held_out]


def reward(config: study.PreferencesConfig, tokenizer: Any, own: Tokenizer) -> dict[str, Any]:
    """RewardTrainer, two passes over the pairs of rm-a."""
    ids = [
        {"chosen_ids": pair.prompt + pair.chosen, "rejected_ids": pair.prompt + pair.rejected}
        for pair in encode_pairs(records_of(config, held_out=False), own)
    ]
    pad = tokenizer.convert_tokens_to_ids(PAD)
    model = AutoModelForSequenceClassification.from_pretrained(
        config.model, num_labels=1, dtype="float32", pad_token_id=pad
    )
    steps = study.PASSES * len(ids) // study.BATCH
    given = options(2e-5, 10, steps, study.BATCH) | dict(weight_decay=0.01)
    trainer = trl.RewardTrainer(
        model=model, args=trl.RewardConfig(**given), train_dataset=Dataset.from_list(ids),
        processing_class=tokenizer,
    )  # fmt: skip
    found: dict[str, Any] = {"steps": steps, "minutes": minutes(trainer)}

    @torch.no_grad()
    def score(answer: list[int]) -> float:
        return float(model(torch.tensor([pair.prompt + answer])).logits)

    pairs, right = encode_pairs(records_of(config, held_out=True), own), 0
    for pair in pairs:
        right += score(pair.chosen) > score(pair.rejected)
    found |= {"pairs": len(pairs), "accuracy": right / len(pairs)}
    return found | {"accuracy_interval": wilson_interval(right, len(pairs))}


class Paid:
    """The reward of a batch of TRL's answers: rm-a's score, less the price of a cut-off one."""

    def __init__(self, config: study.PreferencesConfig, own: Tokenizer) -> None:
        self.own, self.config = own, config
        self.model = load_reward_model(config.out.resolve() / "rm-a", CPU)[0]

    @torch.no_grad()
    def __call__(
        self, prompts: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any
    ) -> list[float]:
        asked = [self.own.encode(prompt) for prompt in prompts]
        batch = collate_responses(asked, completion_ids, self.own.eos_id)
        with precision(CPU, self.config.precision):
            scores: Tensor = score_in_micro_batches(self.model, batch, study.ROWS)
        priced = score_missing_eos(scores, batch.has_eos, study.SAMPLED["missing_eos_penalty"])
        return list(map(float, priced))


def grpo(config: study.PreferencesConfig, tokenizer: Any, own: Tokenizer) -> dict[str, Any]:
    """GRPOTrainer with the flags of the study's GRPO."""
    flags = study.POLICIES["GRPO"].flags
    prompts = list(dict.fromkeys(record.prompt for record in records_of(config, held_out=False)))
    if any(tokenizer(prompt)["input_ids"] != own.encode(prompt) for prompt in prompts):
        raise RuntimeError("TRL's tokens of a prompt are others than those that rm-a has read")
    each, rows = flags["minibatches"], flags["prompts_per_step"] * flags["group_size"]
    given = options(flags["lr"], each * flags["warmup"], each * config.steps, rows // each) | dict(
        loss_type="grpo", scale_rewards="group", importance_sampling_level="token", num_iterations=1,
        gradient_accumulation_steps=1, weight_decay=0.0,
        steps_per_generation=each, num_generations=flags["group_size"], epsilon=0.2,
        max_completion_length=flags["max_new_tokens"], temperature=flags["temperature"], top_p=1.0,
        top_k=0, beta=flags["kl_coef"], use_bias_correction_kl=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(config.model, dtype="float32")
    trainer = trl.GRPOTrainer(
        model=model, reward_funcs=Paid(config, own).__call__, args=trl.GRPOConfig(**given),
        train_dataset=Dataset.from_dict({"prompt": prompts}), processing_class=tokenizer,
    )  # fmt: skip
    found: dict[str, Any] = {"steps": config.steps, "minutes": minutes(trainer)}
    folder = config.out.resolve() / "trl-grpo"
    shutil.copytree(config.model, folder, dirs_exist_ok=True)  # the tokenizer
    model.save_pretrained(folder)
    found |= study.Bench(config, CPU).measure(load_policy(folder, CPU)[0])
    judge, start = study.Judge(config), config.out.resolve() / "start" / "measured-0.json"
    before = read_json(start) | {"judge": judge.scores(start)}
    found["judge"] = judge.judge(found["answers"], found["ended"])
    asked = [record.meta for record in study.test_prompts(config)]
    found["right"] = [study.is_right(*both) for both in zip(asked, found["answers"], strict=True)]
    return found | study.compared(found, before)


def main(config: TRLConfig) -> None:
    tokenizer = AutoTokenizer.from_pretrained(config.model, pad_token=PAD)
    own = load_policy(config.model, CPU)[1]
    of_study = study.PreferencesConfig(out=config.out, model=config.model, steps=config.steps)
    found = {"reward": reward, "grpo": grpo}[config.trainer](of_study, tokenizer, own)
    found["mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    write_json(config.out / f"trl-{config.trainer}.json", found)
    shown = ("accuracy", "preferred", "kl", "minutes", "mib")
    print("  ".join(f"{name} {found[name]:.3f}" for name in shown if name in found))


if __name__ == "__main__":
    run_command(main, TRLConfig)
