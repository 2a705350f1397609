"""What a run has read stands in its config.json, and --resume refuses when any of it has changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import GLASSBOX, Crash, glassbox_gpt, saved_gpt, write_pairs

from data import records, sources
from data.sources import default_folder
from gpt import finetuning, pretraining, teacher
from gpt.finetuning import FinetuningConfig
from gpt.huggingface import save_hf
from gpt.pretraining import PretrainingConfig
from harness import files
from harness.errors import NothingToDo, UserError
from harness.files import read_jsonl, read_object, write_json
from harness.metric_log import MetricLog
from harness.paths import MODEL_FILE
from harness.run_folder import read_record
from harness.training_state import TrainingState
from reward_model import reward_model_training
from reward_model.reward_model_training import RewardModelConfig
from reward_model.scalar_head import RewardModel, save_reward_model
from rl import dpo_engine, grpo_engine
from rl import on_policy_distillation_engine as distillation
from rl.dpo_engine import DPOConfig
from rl.grpo_engine import GRPOConfig
from rl.talk import Talk, TalkConfig

SHORT: dict[str, Any] = dict(
    steps=1, device="cpu", max_new_tokens=4, eval_prompts=2, test_prompts=2, eval_every=1
)
GRPO: dict[str, Any] = SHORT | dict(prompts_per_step=2, group_size=2)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of pairs, what was made from it where that goes by default, a reward and its helper."""
    monkeypatch.setattr(sources, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(teacher, "RUNS", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_pairs(tmp_path / "pairs.jsonl")
    base = default_folder("pretraining", "pairs.jsonl", "tiny")
    for seed, folder in enumerate((base, teacher.teacher_folder("pairs.jsonl"))):
        saved_gpt(folder, seed)
    judge = RewardModel.from_policy(glassbox_gpt(5))
    save_reward_model(
        default_folder("reward_model", "pairs.jsonl", "tiny") / MODEL_FILE, judge, GLASSBOX
    )
    save_hf(glassbox_gpt(6), tmp_path / "published", GLASSBOX)
    (tmp_path / "helper_of_mine").mkdir()
    (tmp_path / "helper_of_mine/of_mine.py").write_text("VALUE = 1.0\n")
    (tmp_path / "rewards_of_mine.py").write_text(
        "from helper_of_mine.of_mine import VALUE\ndef f(prompt, response): return VALUE\n"
    )
    yield tmp_path
    for name in ("helper_of_mine.of_mine", "helper_of_mine", "rewards_of_mine"):
        sys.modules.pop(name, None)


def changed(path: Path) -> None:
    """One bit of a weight, or a blank more."""
    content = bytearray(path.read_bytes())
    if path.name == MODEL_FILE:
        content[-4] ^= 1
    else:
        content += b"\n"
    path.write_bytes(content)


DATA: dict[str, Any] = dict(data="pairs.jsonl")
ANSWERS: dict[str, Any] = dict(steps=1, batch_size=2, device="cpu", max_response_tokens=20)
BASE, JUDGE, TEACHER = ("runs/pretraining", "runs/reward_model", "runs/teacher")
FOLDER = {MODEL_FILE, "config.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize(
    ("main", "config", "read"),
    [
        (grpo_engine.main, GRPOConfig(**DATA, **GRPO), {"pairs.jsonl", BASE, JUDGE}),
        (
            grpo_engine.main,
            GRPOConfig(**DATA, **GRPO, model="published", reward="rewards_of_mine:f"),
            {"pairs.jsonl", "rewards_of_mine.py", "helper_of_mine/of_mine.py"}
            | {f"published/{name}" for name in FOLDER},
        ),
        (finetuning.main, FinetuningConfig(**DATA, **ANSWERS), {"pairs.jsonl", BASE}),
        (
            distillation.main,
            distillation.OnPolicyDistillationConfig(**DATA, **SHORT, prompts_per_step=2),
            {"pairs.jsonl", BASE, TEACHER},
        ),
        (reward_model_training.main, RewardModelConfig(**DATA, **ANSWERS), {"pairs.jsonl", BASE}),
    ],
)
def test_a_run_goes_on_only_with_what_it_has_read(
    place: Path, main: Callable[[Any], Path], config: Any, read: set[str]
) -> None:
    config = replace(config, out=place / "run")
    main(config)
    places = list(read_record(place / "run")["inputs"])
    found = {path.split("-pairs")[0] if path.startswith("runs") else path for path in places}
    assert found == read and len(places) == len(read)
    again = replace(config, resume=True)
    for path in map(Path, places):
        before = path.read_bytes()
        changed(path)
        with pytest.raises(UserError):
            main(again)
        path.write_bytes(before)
    with pytest.raises(NothingToDo):
        main(again)


def crash(*_: Any, **metrics: Any) -> None:
    raise Crash


@pytest.mark.parametrize(
    ("main", "config"),
    [
        (grpo_engine.main, GRPOConfig(**DATA, **GRPO)),
        (dpo_engine.main, DPOConfig(**DATA, **SHORT, batch_size=2, max_response_tokens=20)),
        (finetuning.main, FinetuningConfig(**DATA, **ANSWERS)),
        (pretraining.main, PretrainingConfig(**DATA, steps=1, batch_size=2, device="cpu")),
        (reward_model_training.main, RewardModelConfig(**DATA, **ANSWERS)),
    ],
)
def test_a_run_goes_on_with_the_splits_that_it_began_with(
    place: Path, main: Callable[[Any], Path], config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One from before a rule was recorded splits by the prompt, letter by letter."""
    used = set[int]()
    monkeypatch.setattr(records, "split_rule", lambda: used.add(files.split_rule()) or 2)
    monkeypatch.setattr(MetricLog, "write", crash)
    config = replace(config, out=place / "run", save_every=1)
    with pytest.raises(Crash):
        main(config)
    assert used == {2}
    written = read_object(place / "run/config.json")
    assert written.pop("splits") == 2
    write_json(place / "run/config.json", written)
    TrainingState({}, {}).save(place / "run")  # of no parts: it is refused once the data is read
    used.clear()
    with pytest.raises(UserError):
        main(replace(config, resume=True))
    assert used == {1} or main is reward_model_training.main  # which has kept its pairs
    assert "splits" not in read_object(place / "run/config.json")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def numbers(run: Path) -> list[dict[str, Any]]:
    rows = read_jsonl(run / "metrics.jsonl")
    return [
        {k: v for k, v in row.items() if "second" not in k and "memory" not in k} for row in rows
    ]


def test_a_run_is_the_same_whatever_a_notebook_has_set_of_pytorch(place: Path) -> None:
    """Numbers by default of 64 and of 16 bits, no gradients, tensors without memory; set again after it."""
    config = GRPOConfig(**DATA, **GRPO | dict(steps=2), lr=1e-2, reward="rewards_of_mine:g")
    (place / "rewards_of_mine.py").write_text(
        "def g(prompt, response): return float(len(response))\n"
    )
    usual = numbers(grpo_engine.main(replace(config, out=place / "usual")))
    settings = {
        "float64": default_dtype(torch.float64), "bfloat16": default_dtype(torch.bfloat16),
        "no grad": torch.no_grad(), "inference": torch.inference_mode(), "meta": torch.device("meta"),
    }  # fmt: skip
    for name, setting in settings.items():
        with setting:
            before = torch.empty(()).dtype, torch.empty(()).device, torch.is_grad_enabled()
            run = grpo_engine.main(replace(config, out=place / name))
            assert before == (
                torch.empty(()).dtype,
                torch.empty(()).device,
                torch.is_grad_enabled(),
            )
        assert numbers(run) == usual, name


def test_talk_tells_what_the_run_has_not_read(place: Path) -> None:
    run = grpo_engine.main(GRPOConfig(**DATA, **GRPO, out=place / "run"))
    config = TalkConfig(run, device="cpu")
    assert Talk(config).notes == []
    base = default_folder("pretraining", "pairs.jsonl", "tiny") / MODEL_FILE
    changed(base)
    assert any(str(base.relative_to(place)) in note for note in Talk(config).notes)
