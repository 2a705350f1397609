"""The preference study's reward model and its GRPO in TRL: the same weights, pairs, steps and judges.

    python -m studies.preferences --stages judges policies --seeds 1      reward models, the start, GRPO
    python bench/trl_preferences.py --trainer reward     (in .venv-peers: make .venv-peers/.ok)
    python bench/trl_preferences.py --trainer grpo

`reward` trains TRL's RewardTrainer on rm-b's pairs and says how it orders the held-out ones. `grpo` is
paid by rm-a itself, so that only the loop differs, and its policy is measured as the study's are. Each
writes what it found, its minutes and its peak of memory to trl-reward.json or trl-grpo.json in --out.
Warm-ups start at 0 here, ours above it; GRPO has no KL limit.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import importlib.util
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from data.collate import collate_responses
from data.files.read import read_preferences
from data.records import split_of
from gpt.folder import open_model
from gpt.ranks import score_in_micro_batches
from gpt.tokenizer import Tokenizer
from harness.command_line import run_command
from harness.device import peak_memory, precision
from harness.errors import UserError
from harness.files import read_json, write_json
from harness.flags import AtLeastOne, check_ranges
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

    def __post_init__(self) -> None:
        check_ranges(self)


def options(lr: float, warmup: int, steps: int, rows: int) -> dict[str, Any]:
    """What both trainers are given: the optimizer of this project, a bfloat16 autocast, no logs."""
    return dict(
        per_device_train_batch_size=rows,
        output_dir=tempfile.mkdtemp(prefix="trl-"), learning_rate=lr, warmup_steps=warmup,
        max_steps=steps, lr_scheduler_type="constant_with_warmup", optim="adamw_torch_fused",
        adam_beta1=0.9, adam_beta2=0.95, max_grad_norm=1.0, bf16=True, use_cpu=True, seed=0,
        gradient_checkpointing=False, save_strategy="no", report_to="none", logging_strategy="no",
    )  # fmt: skip


def trained(trainer: Any) -> dict[str, Any]:
    """Train, and return what it took."""
    begin, cpu = time.perf_counter(), time.process_time()
    trainer.train()
    took = {"minutes": time.perf_counter() - begin, "cpu_minutes": time.process_time() - cpu}
    return {name: seconds / 60 for name, seconds in took.items()} | {"gb": peak_memory() / 1e9}


def records_of(config: study.PreferencesConfig, half: str, *, held_out: bool) -> list[Any]:
    records = read_preferences(study.pairs_file(config, half)).records
    return [record for record in records if (split_of(record.prompt) != "train") == held_out]


def reward(config: study.PreferencesConfig, tokenizer: Any, own: Tokenizer) -> dict[str, Any]:
    """RewardTrainer, two passes over the pairs of rm-b."""
    import trl
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification as Classifier

    ids = [
        {"chosen_ids": pair.prompt + pair.chosen, "rejected_ids": pair.prompt + pair.rejected}
        for pair in encode_pairs(records_of(config, "b", held_out=False), own)
    ]
    pad = tokenizer.convert_tokens_to_ids(PAD)
    more: dict[str, Any] = dict(num_labels=1, pad_token_id=pad)
    model = Classifier.from_pretrained(config.model, dtype="float32", **more)
    steps = study.PASSES * len(ids) // study.BATCH
    given = options(2e-5, study.RECORDED["warmup_steps"], steps, study.BATCH) | dict(
        weight_decay=0.01, lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
    )  # fmt: skip
    trainer = trl.RewardTrainer(
        model=model, args=trl.RewardConfig(**given), train_dataset=Dataset.from_list(ids),
        processing_class=tokenizer,
    )  # fmt: skip
    found: dict[str, Any] = {"steps": steps} | trained(trainer)

    @torch.no_grad()
    def score(tokens: list[int]) -> float:
        with precision(CPU, config.precision):
            return float(model(torch.tensor([tokens])).logits)

    pairs = encode_pairs(records_of(config, "b", held_out=True), own)
    right = sum(score(p.prompt + p.chosen) > score(p.prompt + p.rejected) for p in pairs)
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
        asked = [self.own.encode_prompt(prompt) for prompt in prompts]
        batch = collate_responses(asked, completion_ids, self.own.eos_id)
        with precision(CPU, self.config.precision):
            scores: Tensor = score_in_micro_batches(self.model, batch, study.ROWS)
        price = study.SAMPLED["missing_eos_penalty"]
        return score_missing_eos(scores, batch.has_eos, price).tolist()


def grpo(config: study.PreferencesConfig, tokenizer: Any, own: Tokenizer) -> dict[str, Any]:
    """GRPOTrainer with the flags of the study's GRPO, but without its KL limit."""
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM

    flags = study.POLICIES["GRPO"].flags
    records = records_of(config, "a", held_out=False)
    prompts = list(dict.fromkeys(record.prompt for record in records))
    if any(tokenizer(prompt)["input_ids"] != own.encode_prompt(prompt) for prompt in prompts):
        raise RuntimeError("TRL's tokens of a prompt are others than those that rm-a has read")
    minibatches, rows = flags["minibatches"], flags["prompts_per_step"] * flags["group_size"]
    warmup, steps = minibatches * flags["warmup_steps"], minibatches * config.steps
    given = options(flags["lr"], warmup, steps, rows // minibatches) | dict(
        loss_type="grpo", scale_rewards="group", importance_sampling_level="token", num_iterations=1,
        gradient_accumulation_steps=1, weight_decay=0.0, steps_per_generation=minibatches,
        num_generations=flags["group_size"], epsilon=0.2,
        max_completion_length=flags["max_new_tokens"], temperature=flags["temperature"], top_p=1.0,
        top_k=0, beta=flags["kl_coef"], use_bias_correction_kl=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(config.model, dtype="float32")
    trainer = trl.GRPOTrainer(
        model=model, reward_funcs=Paid(config, own), args=trl.GRPOConfig(**given),
        train_dataset=Dataset.from_dict({"prompt": prompts}), processing_class=tokenizer,
    )  # fmt: skip
    found: dict[str, Any] = {"steps": config.steps} | trained(trainer)
    folder = config.out.resolve() / "trl-grpo"
    shutil.copytree(config.model, folder, dirs_exist_ok=True)  # the tokenizer
    model.save_pretrained(folder)
    found |= study.Bench(config, CPU).measure(open_model(folder, CPU)[0])
    judge, start = study.Judge(config), config.out.resolve() / "start" / "measured-0.json"
    before = read_json(start) | {"judge": judge.scores(start)}
    found["judge"] = judge.judge(found["answers"], found["ended"])
    asked = [record.meta for record in study.test_prompts(config)]
    found["right"] = [study.is_right(*both) for both in zip(asked, found["answers"], strict=True)]
    return found | study.compared(found, before)


def main(config: TRLConfig) -> None:
    if importlib.util.find_spec("trl") is None:
        raise UserError("this needs TRL: make .venv-peers/.ok  sets up .venv-peers with it")
    from transformers import AutoTokenizer, set_seed

    set_seed(0)  # the head is drawn before a trainer sees it
    tokenizer = AutoTokenizer.from_pretrained(config.model, pad_token=PAD)
    own = open_model(config.model, CPU)[1]
    of_study = study.PreferencesConfig(out=config.out, model=config.model, steps=config.steps)
    found = {"reward": reward, "grpo": grpo}[config.trainer](of_study, tokenizer, own)
    write_json(config.out / f"trl-{config.trainer}.json", found)
    shown = ("accuracy", "preferred", "kl", "minutes", "cpu_minutes", "gb")
    print("  ".join(f"{name} {found[name]:.3f}" for name in shown if name in found))


if __name__ == "__main__":
    run_command(main, TRLConfig)
