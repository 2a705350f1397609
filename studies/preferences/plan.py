"""What is trained and what is measured: every job of the study, those that others need first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from gpt.folder import ModelFolder
from harness.paths import RUNS
from studies.preferences.pairs import (
    FOLDS,
    marked,
    parts_of_people,
    parts_of_polite,
    rows_of,
    write_rows,
)
from studies.runner import Job, StudyFlags

Stage = Literal["polite", "people", "controls"]
STAGES: tuple[Stage, ...] = get_args(Stage)
REWARD_MODEL, GRPO = "reward_model.reward_model_training", "rl.grpo_engine"
DPO, FINETUNING = "rl.dpo_engine", "gpt.finetuning"
QUICK = 60  # pairs of a file in a quick look
STEPS = {"steps": 2}
ENGINE = STEPS | {"eval_prompts": 2, "test_prompts": 2}
SHORT = {  # flags of a quick look
    REWARD_MODEL: STEPS, FINETUNING: STEPS, DPO: ENGINE,
    GRPO: ENGINE | {"prompts_per_step": 1, "group_size": 4},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PreferencesConfig(StudyFlags):
    """Steer a published chat model by preference pairs, beside every control."""

    model: Path = RUNS / "smollm2"
    """Folder of the chat model, in Hugging Face's layout."""
    pairs: Path = Path("instruction-data-with-preference.json")
    """More and less polite answers: a JSON list of instruction, input, output, chosen, rejected."""
    people: Path = Path("pairs_by_people.jsonl")
    """Comparisons by people: lines of instruction, input, chosen, rejected, annotators_for_chosen."""


def file_of(config: PreferencesConfig, name: str) -> Path:
    """The pairs that a job reads: polite-a, polite-b, people-N (the third N held out), people-judge-N."""
    return config.out / "pairs" / f"{name}.jsonl"


def write_files(config: PreferencesConfig) -> None:
    """Write every file of pairs; the held-out ones are in each, under marks by which commands split."""
    chat, parts = ModelFolder.open(config.model).tokenizer().chat, config.parts or STAGES
    most = QUICK if config.quick else None
    if config.pairs.exists() or "people" not in parts:
        polite = parts_of_polite(rows_of(config.pairs, chat)[:most])
        held_out = [*marked(polite["validation"], "validation"), *marked(polite["test"], "test")]
        for half in ("a", "b"):
            write_rows(
                file_of(config, f"polite-{half}"), [*marked(polite[half], "train"), *held_out]
            )
    if config.people.exists() or "people" in parts:
        thirds = parts_of_people(rows_of(config.people, chat)[:most])
        for fold in range(FOLDS):
            others = [row for third in thirds for row in third if third is not thirds[fold]]
            asked = sorted({row["asked"] for row in thirds[fold]})
            few = {*asked[:: FOLDS + 1]}  # a quarter validates
            held_out = marked([row for row in thirds[fold] if row["asked"] in few], "validation")
            held_out += marked([row for row in thirds[fold] if row["asked"] not in few], "test")
            write_rows(file_of(config, f"people-{fold}"), [*marked(others, "train"), *held_out])
            judge = [*marked(thirds[fold], "train"), *marked(thirds[fold - 1], "validation")]
            write_rows(file_of(config, f"people-judge-{fold}"), judge)


def plan(config: PreferencesConfig) -> dict[str, Job]:
    """The jobs by name. A run has no settings of its own but those that its row of a table names."""
    write_files(config)
    jobs: dict[str, Job] = {}
    model = config.model.resolve()

    def add(name: str, stage: Stage, kind: str, *needs: str, **arguments: Any) -> str:
        code = ("studies.bench", "studies.preferences.measure") if kind == "answers" else ()
        jobs[name] = Job(name, kind, arguments, needs, frozenset([stage]), code=code)
        return name

    def run(
        name: str, stage: Stage, command: str, pairs: str, seed: int, *needs: str, **own: Any
    ) -> str:
        flags = own | (SHORT[command] if config.quick else {})
        data = file_of(config, pairs)
        return add(name, stage, command, *needs, data=data, model=model, seed=seed, **flags)

    def reward_model(name: str, stage: Stage, pairs: str, seed: int) -> str:
        return run(name, stage, REWARD_MODEL, pairs, seed)

    def policy(
        name: str, stage: Stage, command: str, pairs: str, payer: str, seed: int, **own: Any
    ) -> None:
        if command == GRPO:
            run(name, stage, GRPO, pairs, seed, payer, reward_model=config.out / payer, **own)
        else:
            run(name, stage, command, pairs, seed, **own)
        measured(name, stage, pairs, payer, name)

    def measured(name: str, stage: Stage, pairs: str, payer: str, *needs: str) -> None:
        add(f"{name}-answers", stage, "answers", payer, *needs, pairs=pairs, payer=payer)

    payer = reward_model("polite-payer", "polite", "polite-a", 0)
    measured("polite-start", "polite", "polite-a", payer)
    reward_model("polite-judge", "polite", "polite-b", 1)
    policy("polite-grpo-0", "polite", GRPO, "polite-a", payer, 0)
    payers = [reward_model("people-payer-0", "people", "people-0", 0)]
    policy("polite-dpo-0", "polite", DPO, "polite-a", payer, 0)
    for seed in range(1, config.seeds):
        policy(f"polite-grpo-{seed}", "polite", GRPO, "polite-a", payer, seed)
    measured("people-start-0", "people", "people-0", payers[0])
    policy("people-grpo-0", "people", GRPO, "people-0", payers[0], 0)
    reward_model("people-judge-0", "people", "people-judge-0", 1)
    for fold in range(1, min(FOLDS, config.seeds)):
        payers.append(reward_model(f"people-payer-{fold}", "people", f"people-{fold}", fold))
    policy("polite-finetuning-0", "controls", FINETUNING, "polite-a", payer, 0)
    for seed in range(1, config.seeds):
        policy(f"polite-dpo-{seed}", "controls", DPO, "polite-a", payer, seed)
    policy("polite-priced-0", "controls", GRPO, "polite-a", payer, 0, missing_eos_penalty=1.0)
    policy("polite-lora-0", "controls", GRPO, "polite-a", payer, 0, lora_rank=16)
    policy("people-dpo-0", "people", DPO, "people-0", payers[0], 0)
    for fold in range(1, min(FOLDS, config.seeds)):
        reward_model(f"people-judge-{fold}", "people", f"people-judge-{fold}", fold + 1)
        measured(f"people-start-{fold}", "people", f"people-{fold}", payers[fold])
        policy(f"people-grpo-{fold}", "people", GRPO, f"people-{fold}", payers[fold], fold)
    return jobs
