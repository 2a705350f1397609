"""Make the teacher of the distillation engines: a larger GPT, trained for longer on better text.

    python scripts/make_teacher.py                 the reviews world, about 5 minutes on 2 CPU cores
    python scripts/make_teacher.py --data sums

    1. pre-train the shape `teacher` (gpt/model.py) on the text that the students read
    2. let it answer training prompts, several times each, and keep each prompt's best answer
    3. fine-tune it on those (rejection sampling: Llama 2, arXiv:2307.09288, section 3.2.3)

What judges the answers is what an RL engine would train on: the reward model on the reviews, the
rule on the sums. The gold reward judges with `--reward gold` alone. Writes runs/teacher-DATA, where
the engines that learn from a teacher look for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from data.collate import epoch_shuffled_indices
from data.records import PromptRecord
from data.sources import default_folder, from_preset, source
from gpt import finetuning, pretraining
from gpt.checkpoint import load_gpt, save_gpt
from gpt.finetuning import Example, FinetuningConfig
from gpt.generate import SamplingParams
from gpt.model import GPT
from gpt.pretraining import PretrainingConfig
from gpt.teacher import teacher_folder
from gpt.tokenizer import Tokenizer, load_tokenizer
from harness.command_line import run_command
from harness.device import open_device
from harness.errors import UserError
from harness.files import display_path, reading
from harness.flags import AtLeastOne, check_ranges
from harness.metric_log import MetricLog
from harness.paths import MODEL_FILE
from harness.run_folder import finish_run, open_run, run_stage
from harness.seeds import derive_seed, make_generator
from rl.batches.rollout import sample_rollout
from rl.rewards.reward import RewardFn, finite_rewards, open_reward, open_rule
from rl.run.config import RunFlags
from rl.run.task import open_prompts

TOGETHER = 32  # prompts that are answered at once
MAX_NEW_TOKENS = 48  # an answer without EOS is never kept
LEAST_REWARD = {"sums": 0.5}  # prompts whose best answer earns less are left out
FINETUNING = FinetuningConfig(epochs=2, batch_size=32, lr=3e-4)


@dataclass(frozen=True)
class TeacherConfig:
    """Pre-train a larger GPT, collect its best answers, and fine-tune it on them."""

    preset: Literal["tiny", "study"] = "tiny"
    """The students, whose reward model judges."""
    data: Literal["reviews", "sums"] = "reviews"
    """The world."""
    base: Path | None = None
    """Run folder of the larger model; default: gpt.pretraining's with --preset teacher, made first."""
    reward: Literal["auto", "model", "gold", "rule"] = "auto"
    """The judge. auto: the rule for sums, otherwise the reward model. gold: the true objective."""
    reward_model: Path | None = None
    """Run folder of the reward model; default: the one of this data and preset."""
    prompts: AtLeastOne = 2000
    """Training prompts that are answered."""
    responses: AtLeastOne = 16
    """n: answers per prompt, of which the best is kept."""
    seed: int = 0
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""
    ranks: AtLeastOne | None = None
    """Processes that share the work; default: one per core for small models on a CPU, else one."""
    out: Path | None = None
    """Run folder; default runs/teacher-DATA."""

    def __post_init__(self) -> None:
        check_ranges(self)


def base_folder(config: TeacherConfig) -> Path:
    """The larger model's run folder; pre-trains it first if the default one is not there."""
    folder = config.base or default_folder("pretraining", config.data, "teacher")
    if config.base is None and not (folder / MODEL_FILE).exists():
        print(f"no larger model in {display_path(folder)} yet: pre-training it first")
        settings: dict[str, Any] = dict(
            data=config.data, seed=config.seed, device=config.device, out=folder
        )
        wanted = from_preset(PretrainingConfig, pretraining.PRESETS, "teacher", **settings)
        run_stage(pretraining.main, wanted)
    return folder


def best_answers(
    config: TeacherConfig,
    policy: GPT,
    tokenizer: Tokenizer,
    records: Sequence[PromptRecord],
    reward_fn: RewardFn,
    log: MetricLog,
) -> list[Example]:
    """Per prompt the best of n sampled answers that ended: (prompt tokens, answer tokens with EOS).

    A prompt is left out if no answer ended or the best earns less than LEAST_REWARD.
    """
    n, least = config.responses, LEAST_REWARD.get(config.data, -math.inf)
    params = SamplingParams(max_new_tokens=MAX_NEW_TOKENS)
    generator = make_generator(config.seed, "teacher's answers")
    kept: list[Example] = []
    for start in range(0, len(records), TOGETHER):
        batch = records[start : start + TOGETHER]
        rollout = sample_rollout(policy, tokenizer, batch, params, n, generator)
        rewards = finite_rewards(reward_fn(rollout), reward_fn.name, rollout)
        best, index = rewards.masked_fill(~rollout.has_eos, -math.inf).view(-1, n).max(1)
        for i, record in enumerate(batch):
            if best[i] > -math.inf and best[i] >= least:
                row = i * n + int(index[i])
                answer = rollout.response_tokens[row][rollout.response_mask[row]].tolist()
                kept.append((tokenizer.encode_prompt(record.prompt), answer))
        log.write(step=start + len(batch), kept=len(kept))
    return kept


def fine_tune(
    seed: int, model: GPT, tokenizer: Tokenizer, examples: Sequence[Example], out: Path
) -> None:
    steps = max(FINETUNING.epochs * len(examples) // FINETUNING.batch_size, 1)
    log = MetricLog(
        steps, path=out / "metrics.jsonl", show=("loss",), every=100, title="fine-tuning"
    )
    settings = replace(FINETUNING, seed=seed)
    finetuning.train(settings, model, examples, [], log, eos_id=tokenizer.eos_id)


@reading()
def main(config: TeacherConfig) -> Path:
    """Make the teacher with all I/O and return the run folder."""
    device = open_device(config.device)
    folders = () if config.reward_model is None else (config.reward_model,)
    rule = open_rule(source(config.data), config.data, {}, needed=False)
    judge = RunFlags(
        reward=config.reward, data=config.data, preset=config.preset, reward_model=folders
    )
    if config.base is None:  # a judge that is not there is reported before minutes of pre-training
        open_reward(judge, load_tokenizer(PretrainingConfig().tokenizer), device, rule)
    base, tokenizer = load_gpt(base_folder(config), device)
    reward_fn = open_reward(judge, tokenizer, device, rule)
    prompts = open_prompts(
        source(config.data), config.data, tokenizer, base.config.context - MAX_NEW_TOKENS
    )
    folder = config.out or teacher_folder(config.data)
    folder = open_run(folder, config)
    seed = derive_seed(config.seed, "teacher's prompts")
    count = min(config.prompts, len(prompts["train"]))
    order = epoch_shuffled_indices(0, count, len(prompts["train"]), seed).tolist()
    print(f"best of {config.responses} by {reward_fn.name} for {count} prompts ({device})")
    records = [prompts["train"][i] for i in order]
    log = MetricLog(count, show=("kept",), every=max(count // 4, 1), title="answers")
    examples = best_answers(config, base, tokenizer, records, reward_fn, log)
    if not examples:
        raise UserError(
            "no answer was kept, because none ended or earned enough: raise --responses"
        )
    teacher, _ = load_gpt(base_folder(config), device)
    fine_tune(config.seed, teacher, tokenizer, examples, folder)
    save_gpt(folder / MODEL_FILE, teacher, tokenizer)
    finish_run(folder)
    print(f"wrote {display_path(folder)}, tuned on {len(examples)} answers")
    return folder


if __name__ == "__main__":
    run_command(main, TeacherConfig)
