"""Make the teacher of the distillation engines: a larger GPT, trained for longer on better text.

    python scripts/make_teacher.py                 the reviews world, 3 to 12 minutes on two CPU cores
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

import torch

from data.collate import epoch_shuffled_indices
from data.records import PromptRecord
from data.sources import default_folder, source
from gpt import finetuning, pretraining
from gpt.checkpoint import save_gpt
from gpt.finetuning import Example, FinetuningConfig
from gpt.folder import open_model
from gpt.generate import SamplingParams
from gpt.lengths import open_prompts
from gpt.model import GPT
from gpt.pretraining import PretrainingConfig
from gpt.recipes import RecipeFlags, config_of
from gpt.stage import Plan, Stage
from gpt.teacher import teacher_folder
from gpt.tokenizer import Tokenizer, load_tokenizer
from harness.command_line import run_command
from harness.errors import UserError
from harness.files import append_jsonl, display_path, read_jsonl
from harness.flags import AtLeastOne
from harness.metric_log import MetricLog
from harness.paths import MODEL_FILE
from harness.run_folder import run_missing
from harness.seeds import derive_seed, make_generator
from rl.batches.rollout import sample_rollout
from rl.rewards.reward import RewardFn, finite_rewards, open_reward, open_rule
from rl.run.config import RunFlags

TOGETHER = 32  # prompts that are answered at once
MAX_NEW_TOKENS = 48  # an answer without EOS is never kept
LEAST_REWARD = {"sums": 0.5}  # prompts whose best answer earns less are left out
ANSWERS_KEPT = "answers.jsonl"  # in the run folder
FINETUNING = FinetuningConfig(epochs=2, batch_size=32, lr=3e-4)


@dataclass(frozen=True)
class TeacherConfig(RecipeFlags):
    """Pre-train a larger GPT, collect its best answers, and fine-tune it on them."""

    preset: Literal["tiny"] = "tiny"
    """The students, whose reward model judges."""
    data: Literal["reviews", "sums"] = "reviews"
    """The world."""
    model: str | None = None
    """The larger model; default: the run of gpt.pretraining with --preset teacher, made first."""
    reward: Literal["auto", "model", "gold", "rule"] = "auto"
    """The judge. auto: the rule for sums, otherwise the reward model. gold: the true objective."""
    reward_model: str | None = None
    """The reward model; default: the one of this data and preset."""
    prompts: AtLeastOne = 2000
    """Training prompts that are answered."""
    responses: AtLeastOne = 16
    """n: answers per prompt, of which the best is kept."""

    @property
    def judge(self) -> RunFlags:
        """The flags of a run that would be trained on the same reward."""
        names = () if self.reward_model is None else (self.reward_model,)
        return RunFlags(reward=self.reward, data=self.data, preset=self.preset, reward_model=names)


def made_base(config: TeacherConfig) -> Path:
    """The larger model's run folder; pre-trains it first if it is not there."""
    folder = default_folder("pretraining", config.data, "teacher")
    if not (folder / MODEL_FILE).exists():
        print(f"no larger model in {display_path(folder)} yet: pre-training it first")
        wanted = config_of(
            PretrainingConfig, preset="teacher", data=config.data, seed=config.seed,
            device=config.device, out=folder,
        )  # fmt: skip
        run_missing(pretraining.main, wanted)
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


@dataclass
class Work:
    """What is opened, and the answers that are kept."""

    model: GPT
    tokenizer: Tokenizer
    reward_fn: RewardFn
    prompts: list[PromptRecord]
    examples: list[Example]


def open_work(config: TeacherConfig, device: torch.device) -> tuple[TeacherConfig, Work]:
    """The larger model, the judge and the prompts that are answered."""
    rule = open_rule(source(config.data, None), config.data, {}, needed=False)
    if config.model is None:  # a judge that is not there is reported before minutes of pre-training
        open_reward(config.judge, load_tokenizer(PretrainingConfig().tokenizer), device, rule)
    model, tokenizer = open_model(config.model or made_base(config), device)
    reward_fn = open_reward(config.judge, tokenizer, device, rule)
    room = model.config.context - MAX_NEW_TOKENS
    prompts = open_prompts(config.data, tokenizer, room)[1]["train"]
    count, seed = min(config.prompts, len(prompts)), derive_seed(config.seed, "teacher's prompts")
    order = epoch_shuffled_indices(0, count, len(prompts), seed).tolist()
    return config, Work(model, tokenizer, reward_fn, [prompts[i] for i in order], [])


def plan(config: TeacherConfig, work: Work, folder: Path, done: int) -> Plan:
    """The best answers, sampled, or those that an earlier run has kept."""
    path = folder / ANSWERS_KEPT
    if config.resume:
        work.examples = [(row["prompt"], row["answer"]) for row in read_jsonl(path)]
    else:
        print(
            f"best of {config.responses} by {work.reward_fn.name} for {len(work.prompts)} prompts"
        )
        every = max(len(work.prompts) // 4, 1)
        log = MetricLog(len(work.prompts), show=("kept",), every=every, title="answers")
        work.examples = best_answers(
            config, work.model, work.tokenizer, work.prompts, work.reward_fn, log
        )
        append_jsonl(path, ({"prompt": p, "answer": a} for p, a in work.examples))
    if not work.examples:
        raise UserError(
            "no answer was kept, because none ended or earned enough: raise --responses"
        )
    answers = len(work.examples)
    steps = max(FINETUNING.epochs * answers // FINETUNING.batch_size, 1)
    said = f"fine-tuning on the {answers} best answers for {steps} steps"
    return Plan(steps, said, ("loss",), 100, title="fine-tuning")


def train(config: TeacherConfig, work: Work, log: MetricLog, folder: Path) -> list[dict[str, Any]]:
    settings = replace(
        FINETUNING, seed=config.seed, resume=config.resume, precision=config.precision,
        save_every=config.save_every,
    )  # fmt: skip
    return finetuning.train(
        settings, work.model, work.examples, [], log, eos_id=work.tokenizer.eos_id, folder=folder
    )


def keep(config: TeacherConfig, work: Work, log: MetricLog, folder: Path) -> None:
    save_gpt(folder / MODEL_FILE, work.model, work.tokenizer)
    print(f"wrote {display_path(folder)}, tuned on {len(work.examples)} answers")


STAGE = Stage("teacher", TeacherConfig, open_work, plan, train, keep)


def main(config: TeacherConfig) -> Path:
    """Make the teacher with all I/O and return the run folder, by default where engines look for it."""
    return STAGE.run(replace(config, out=config.out or teacher_folder(config.data)))


if __name__ == "__main__":
    run_command(main, TeacherConfig)
