"""A run of GRPO as TRL or verl would repeat it: start, prompts, reward, script, what still differs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from data.worlds import RULES
from gpt.checkpoint import load_gpt
from gpt.corpus import open_prompts
from harness.errors import UserError
from harness.files import append_jsonl, display_path
from harness.report.writing import write_text
from rl.commands.conversation import RunFolder
from rl.commands.hub_export import export_hub, new_folder
from rl.rewards.sources import is_function

ENGINE = "rl.grpo_engine"
CHECKED = "float(ended and bool(rule(record, text, ended)))"  # what was cut off is not right

LEARNED = '''"""The run's reward model. TRL hands over token ids, the end of text with them."""

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("reward")
model = AutoModelForSequenceClassification.from_pretrained("reward").eval()


@torch.no_grad()
def reward(prompts, completions, completion_ids, **columns):
    rows = [tokenizer(p)["input_ids"] + list(c) for p, c in zip(prompts, completion_ids)]
    batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(model.device)
    return model(**batch).logits[:, 0].tolist()
'''

RULED = '''"""The run's reward, by Glassbox RLHF: install it beside TRL."""

import json

from transformers import AutoTokenizer

from data.records import PromptRecord
%(imports)s

end = AutoTokenizer.from_pretrained("policy").eos_token_id


def reward(prompts, completions, completion_ids, record, **columns):
    values = []
    for prompt, text, ids, known in zip(prompts, completions, completion_ids, record):
        record, ended = PromptRecord(prompt, **json.loads(known)), end in list(ids)
        values.append(%(value)s)
    return values
'''

GUARD = 'if __name__ == "__main__":'  # of the file that is written
SCRIPT = '''"""%(name)s in TRL 1.16: python train.py"""

import torch
from datasets import load_dataset
from rewards import reward
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

settings = %(settings)s

%(guard)s
    trainer = GRPOTrainer(
        model="policy",
        reward_funcs=reward,
        args=GRPOConfig(output_dir="trained", **settings),
        train_dataset=load_dataset("json", data_files="prompts.jsonl", split="train"),
        processing_class=AutoTokenizer.from_pretrained("policy"),
    )
    trainer.train()
    trainer.save_model()
'''


VERL_REWARD = '''"""The run's reward as verl calls it, an answer at a time."""

import os
import sys

os.chdir(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.getcwd())

from rewards import reward
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("policy")


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    text = solution_str.removesuffix(tokenizer.eos_token)
    ids = tokenizer(text)["input_ids"]
    if len(ids) < %(room)s:  # what is shorter than the limit has ended
        ids.append(tokenizer.eos_token_id)
    prompt = (extra_info or {}).get("prompt", "")
    return reward([prompt], [text], [ids], record=[ground_truth])[0]
'''
VERL_SCRIPT = """#!/usr/bin/env bash
# %(name)s in verl: bash train.sh, on a machine with a GPU
cd "$(dirname "$0")"
python - <<'PYTHON'
from datasets import load_dataset

load_dataset("json", data_files="prompts.jsonl", split="train").to_parquet("prompts.parquet")
PYTHON
python -m verl.trainer.main_ppo \\
    %(settings)s "$@"
"""
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def hand_over(path: Path, target: Path, program: Literal["trl", "verl"] = "trl") -> str:
    """Write the folder for TRL or verl; returns what of the run it does not repeat.

    UserError for what their trainers cannot do: another engine, or a reward that is none of one
    exported reward model, a rule and a function.
    """
    run = RunFolder.read(path)
    flags = run.flags
    if flags.get("script") != ENGINE:
        raise UserError(
            f"{display_path(path)} is a run of {flags.get('script', 'an unknown script')}, and {ENGINE} "
            f"alone is handed over: `python -m rl.export {path} --hf DIR` gives the model of any run"
        )
    start = run.find(run.start) if run.start else None
    if start is None:
        raise UserError(f"the model that {display_path(path)} started from is not in {run.start}")
    settings = trl_settings(flags) if program == "trl" else verl_settings(flags)
    model, tokenizer = load_gpt(start)
    room = model.config.context - flags["max_new_tokens"]
    prompts = open_prompts(run.data, tokenizer, room)["train"]
    target = new_folder(target)
    export_hub(start, target / "policy")
    checked = any(record.answer is not None for record in prompts)
    write_text(target / "rewards.py", rewards_of(run, target, checked))
    rows = [
        (p.prompt, json.dumps({"answer": p.answer, "meta": dict(p.meta)}, default=str))
        for p in prompts
    ]
    name = run.path.resolve().name
    if program == "trl":
        append_jsonl(target / "prompts.jsonl", [{"prompt": p, "record": r} for p, r in rows])
        shown = "".join(f"    {key}={value!r},\n" for key, value in settings.items())
        script = SCRIPT % {"name": name, "settings": f"dict(\n{shown})", "guard": GUARD}
        write_text(target / "train.py", script)
    else:
        append_jsonl(target / "prompts.jsonl", [
            {"data_source": name, "prompt": [{"role": "user", "content": p}],
             "reward_model": {"style": "rule", "ground_truth": r}, "extra_info": {"prompt": p}}
            for p, r in rows
        ])  # fmt: skip
        write_text(target / "policy" / "chat_template.jinja", CHAT)
        write_text(target / "verl_reward.py", VERL_REWARD % {"room": flags["max_new_tokens"]})
        shown = " \\\n    ".join(f"{key}={value}" for key, value in settings.items())
        write_text(target / "train.sh", VERL_SCRIPT % {"name": name, "settings": shown})
    remaining = "\n".join(f"- {line}" for line in differences(run, program))
    write_text(target / "DIFFERENCES.md", remaining + "\n")
    return remaining


def rewards_of(run: RunFolder, target: Path, checked: bool) -> str:
    """rewards.py, with the reward model beside it where one paid."""
    kind, flags = str(run.flags.get("reward") or "auto"), run.flags
    if flags.get("wrong_reward"):
        raise UserError("--wrong-reward is not handed over")
    if is_function(kind):
        where, _, name = kind.rpartition(":")
        name_of = repr(f"{Path(where).resolve()}:{name}" if where.endswith(".py") else kind)
        imports = (
            f"from rl.rewards.function import open_function\n\nmine = open_function({name_of})"
        )
        value = "mine._value(record, text, ended, repr(prompt[:60]))"
        return RULED % {"imports": imports, "value": value}
    if kind in ("rule", "gold") or (kind == "auto" and checked):
        value = "rule(record, text, ended)" if run.data == "reviews" else CHECKED
        imports = "from rl.rewards.verifiable import answer_match as rule"
        if run.data in RULES:
            imports = f"from data.worlds import RULES\n\nrule = RULES[{run.data!r}]"
        return RULED % {"imports": imports, "value": value}
    folders = [run.find(folder) for folder in run.reward_models]
    if len(folders) != 1 or folders[0] is None:
        raise UserError(f"one reward model is handed over, and there are {folders}")
    export_hub(folders[0], target / "reward")
    return LEARNED


def equal_minibatches(flags: Mapping[str, Any], count: int, what: str) -> int:
    """How many minibatches a batch has. UserError unless `count` rows or prompts divide evenly."""
    minibatches = min(flags["minibatches"], flags["prompts_per_step"])
    if count % minibatches:
        raise UserError(
            f"{count} {what} are no {minibatches} equal minibatches, which TRL and verl need: hand over "
            "a run with other --prompts-per-step or --minibatches"
        )
    return minibatches


def trl_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of the run under TRL's names."""
    rows = flags["prompts_per_step"] * flags["group_size"]
    minibatches = equal_minibatches(flags, rows, "rows")
    a_minibatch, updates = rows // minibatches, flags["updates_per_batch"] * minibatches
    micro = flags["micro_batch_size"]
    micro = micro if a_minibatch % micro == 0 else a_minibatch
    return {
        "max_steps": flags["steps"] * updates,
        "learning_rate": flags["lr"],
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": flags["warmup"] * updates,
        "max_grad_norm": flags["max_norm"],
        "weight_decay": 0.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "num_generations": flags["group_size"],
        "num_iterations": flags["updates_per_batch"],
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": a_minibatch // micro,
        "steps_per_generation": rows // micro,
        "temperature": flags["temperature"],
        "top_k": 0,
        "max_completion_length": flags["max_new_tokens"],
        "loss_type": "grpo",
        "scale_rewards": "group",
        "beta": flags["kl_coef"],
        "use_bias_correction_kl": False,
        "epsilon": flags["clip_low"],
        "epsilon_high": flags["clip_high"],
        "disable_dropout": True,
        "bf16": flags["precision"] == "bfloat16",
        "gradient_checkpointing": bool(flags["checkpoint_blocks"]),
        "seed": flags["seed"],
        "report_to": "none",
        "logging_steps": 1,
    }


def verl_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of the run under verl's names, as its command line takes them."""
    prompts, micro = flags["prompts_per_step"], flags["micro_batch_size"]
    minibatches = equal_minibatches(flags, prompts, "prompts")
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": True,
        "algorithm.use_kl_in_reward": False,
        "data.train_files": "prompts.parquet",
        "data.val_files": "prompts.parquet",
        "data.train_batch_size": prompts,
        "data.max_response_length": flags["max_new_tokens"],
        "data.filter_overlong_prompts": True,
        "actor_rollout_ref.model.path": "policy",
        f"{actor}.ppo_mini_batch_size": prompts // minibatches,
        f"{actor}.ppo_micro_batch_size_per_gpu": micro,
        f"{actor}.ppo_epochs": flags["updates_per_batch"],
        f"{actor}.clip_ratio_low": flags["clip_low"],
        f"{actor}.clip_ratio_high": flags["clip_high"],
        f"{actor}.clip_ratio_c": 1e9,  # verl's dual clip is always on; so far off it does nothing
        f"{actor}.loss_agg_mode": "seq-mean-token-mean",
        f"{actor}.entropy_coeff": 0,
        f"{actor}.use_kl_loss": flags["kl_coef"] > 0,
        f"{actor}.kl_loss_coef": flags["kl_coef"],
        f"{actor}.kl_loss_type": "low_var_kl",
        f"{actor}.grad_clip": flags["max_norm"],
        f"{actor}.optim.lr": flags["lr"],
        f"{actor}.optim.lr_warmup_steps": flags["warmup"],
        f"{actor}.optim.weight_decay": 0,
        f"{rollout}.name": "vllm",
        f"{rollout}.n": flags["group_size"],
        f"{rollout}.temperature": flags["temperature"],
        f"{rollout}.log_prob_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": micro,
        "custom_reward_function.path": "verl_reward.py",
        "custom_reward_function.name": "compute_score",
        "trainer.total_training_steps": flags["steps"],
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "trainer.val_before_train": False,
        "trainer.logger": "[console]",
    }


BETWEEN = {
    "trl": (
        "Random numbers: TRL draws other prompts and other answers from the same seed.",
        "The warm-up goes up with every optimizer step there, with every batch here.",
        "No validation, no gold reward and no test: TRL logs the training reward alone.",
        "TRL scores prompts of unequal length at positions that count the padding; these differ here.",
        "TRL reads special tokens inside of a prompt as special; here they are spelled out.",
    ),
    "verl": (
        "This folder was written for verl 0.4 to 0.7 and not run there: it needs a GPU and vLLM.",
        "verl draws other prompts and other answers; vLLM samples, and another kernel scores.",
        "The reward sees text: an answer shorter than the limit counts as ended.",
        "AdamW's betas are verl's own (0.9, 0.999), and 0.9, 0.95 here.",
        "verl's standard deviation of a group adds 1e-6, and 1e-4 here.",
        "No gold reward and no test: verl logs the training reward alone.",
    ),
}


def differences(run: RunFolder, program: str) -> list[str]:
    """What the script does not repeat, in sentences."""
    flags = run.flags
    lines = list(BETWEEN[program])
    if flags.get("stop_kl") is not None:
        lines.append(f"No early stop: the run would have ended at {flags['stop_kl']} nats.")
    if flags.get("kl_controller") != "fixed":
        lines.append(
            f"beta stays {flags['kl_coef']}: the run had the {flags['kl_controller']} controller."
        )
    if flags.get("kl_estimator") != "k3":
        lines.append(f"The KL penalty there is k3, and the run's was {flags['kl_estimator']}.")
    if flags.get("lora_rank"):
        lines.append("All weights are trained: the run's adapter is not set up.")
    return lines
