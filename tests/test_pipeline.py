"""Every stage through its `main`, a few steps each, on tiny models: files, formats, composition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from toys import documented

from gpt import corpus, finetuning, pretraining
from gpt.checkpoint import load_gpt
from gpt.finetuning import FinetuningConfig
from gpt.model import PRESETS, GPTConfig
from gpt.pretraining import PretrainingConfig
from harness.paths import MODEL_FILE, STATE_FILE
from reward_model import reward_model_training
from reward_model.reward_model_training import RewardModelConfig
from reward_model.scalar_head import load_reward_model
from rl import grpo_engine, grpo_iterative_engine
from rl.grpo_engine import GRPOConfig
from rl.grpo_iterative_engine import IterativeGRPOConfig
from rl.run import engine as run_engine

CPU: dict[str, Any] = {"device": "cpu"}
PRETRAINING: dict[str, Any] = CPU | dict(steps=6, batch_size=8, warmup_steps=2, eval_every=4)
REWARD_MODEL: dict[str, Any] = CPU | dict(
    pairs=64, held_out_pairs=32, steps=4, batch_size=16, max_response_tokens=16
)
FINETUNING: dict[str, Any] = CPU | dict(steps=4, batch_size=8, max_response_tokens=64, eval_every=2)
GRPO: dict[str, Any] = CPU | dict(
    steps=3, prompts_per_step=4, group_size=4, max_new_tokens=12, eval_every=2, eval_prompts=8,
    test_prompts=8, save_every=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny() -> Iterator[pytest.MonkeyPatch]:
    """The presets tiny and small as models of one layer; 16 held-out rows."""
    with pytest.MonkeyPatch.context() as patch:
        shape = dict(n_layer=1, n_head=2, n_embd=16)
        patch.setitem(PRESETS, "tiny", GPTConfig(context=128, **shape))
        patch.setitem(PRESETS, "small", GPTConfig(context=256, **shape))
        patch.setattr(corpus, "HELD_OUT_ROWS", 16)
        yield patch


def strict(text: str) -> Any:
    """JSON without the NaN and Infinity that Python would read."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [strict(line) for line in path.read_text(encoding="utf-8").splitlines()]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def logged(folder: Path) -> set[str]:
    return set().union(*read_rows(folder / "metrics.jsonl"))


STAGES: dict[str, tuple[Any, Any]] = {  # in this order, without a single flag between them
    "pretraining": (pretraining.main, PretrainingConfig(**PRETRAINING)),
    "reward_model": (reward_model_training.main, RewardModelConfig(**REWARD_MODEL)),
    "finetuning": (finetuning.main, FinetuningConfig(**FINETUNING)),
    "grpo": (grpo_engine.main, GRPOConfig(**GRPO)),
}


@pytest.fixture(scope="module")
def world(tiny: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each stage, which has found its input by default."""
    tiny.setattr("data.sources.RUNS", tmp_path_factory.mktemp("runs"))
    return {name: main(config) for name, (main, config) in STAGES.items()}


def test_a_run_folder_holds_what_its_script_says(world: dict[str, Path]) -> None:
    """No state.pt: a finished run has nothing to resume. No temporary files either."""
    common = {"config.json", "metrics.jsonl", "model.safetensors", "report.html", "tokens.jsonl"}
    more = {
        "finetuning": {"samples.jsonl"},
        "reward_model": {"pairs.jsonl", "held_out_pairs.jsonl", "report.json", "report.png"},
        "grpo": {"samples.jsonl", "test_answers.jsonl", "report.json", "finished_state.pt"},
    }
    for stage, folder in world.items():
        assert folder.name == f"{stage}-reviews-tiny"
        assert names(folder) == common | more.get(stage, set())
    assert (world["reward_model"] / "report.png").read_bytes()[:4] == b"\x89PNG"


def test_metrics_have_a_row_a_step_and_the_documented_keys(world: dict[str, Path]) -> None:
    for stage, folder in world.items():
        rows = read_rows(folder / "metrics.jsonl")
        steps = STAGES[stage][1].steps
        assert [row["step"] for row in rows] == list(range(1, steps + 1))
    shared = documented("Every stage without sampling")
    for stage in ("pretraining", "finetuning"):
        assert logged(world[stage]) == shared | documented("Pre-training and fine-tuning")
    assert logged(world["reward_model"]) == shared | documented("Reward model")
    assert logged(world["grpo"]) == documented("Every engine")


def test_reports_have_the_documented_keys(world: dict[str, Path]) -> None:
    report = strict((world["reward_model"] / "report.json").read_text())
    assert set(report) == documented("Reward model report")
    report = strict((world["grpo"] / "report.json").read_text())
    assert set(report) == documented("Engine report")
    assert set(report["before"]) == set(report["after"]) == {
        "reward", "response_length", "eos_rate", "gold", "gold_error", "kl", "kl_per_token"
    }  # fmt: skip
    assert report["prompts"] == 8 and report["before"]["kl"] == 0 != report["after"]["kl"]


def test_a_run_of_minutes_is_that_of_as_many_steps_bit_for_bit(
    world: dict[str, Path], tmp_path: Path
) -> None:
    """Its trial leaves no trace; where there is time it takes what it would take without."""
    for stage in ("finetuning", "grpo", "reward_model"):
        main, config = STAGES[stage]
        steps, long = 1, stage == "finetuning"
        short = main(replace(config, out=tmp_path / stage / "short", steps=steps))
        found = main(replace(config, out=tmp_path / stage / "minutes", minutes=1e-4))
        pairs = [(short, found)]
        if long:
            whole = main(replace(config, out=tmp_path / stage / "long", minutes=1e3))
            pairs.append((world[stage], whole))
        for one, other in pairs:
            assert untimed(one) == untimed(other) and names(one) == names(other)
            tensors, same = load_file(one / MODEL_FILE), load_file(other / MODEL_FILE)
            assert all(torch.equal(tensors[name], same[name]) for name in tensors)
            chosen = [strict((at / "config.json").read_text())["steps"] for at in (one, other)]
            assert chosen[0] == chosen[1]


def test_a_run_that_was_undone_leaves_no_state_to_go_on_from(
    world: dict[str, Path], tmp_path: Path
) -> None:
    main, config = STAGES["grpo"]
    folder = main(replace(config, out=tmp_path / "run", stop_kl=1e-9, lr=1e-2))
    assert "kept_step" in read_rows(folder / "metrics.jsonl")[-1]
    assert names(folder) == names(world["grpo"]) - {"finished_state.pt"}


def untimed(folder: Path) -> list[dict[str, Any]]:
    rows = read_rows(folder / "metrics.jsonl")
    return [{key: value for key, value in row.items() if "second" not in key} for row in rows]


def same_weights(a: Path, b: Path) -> bool:
    """Bit for bit. (The order of the keys in a safetensors header differs from file to file.)"""
    first, second = load_gpt(a)[0].state_dict(), load_gpt(b)[0].state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("before", ["save_gpt", "write_json"])
def test_an_interrupted_run_resumes_into_the_same_result(
    world: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Ended after the last step, before the weights or the report were written."""

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "grpo"
    with monkeypatch.context() as patch:
        patch.setattr(run_engine, before, interrupt)
        with pytest.raises(KeyboardInterrupt):
            grpo_engine.main(GRPOConfig(**GRPO, out=out))
    assert STATE_FILE in names(out) and "report.json" not in names(out)
    assert ("model.safetensors" in names(out)) == (before != "save_gpt")
    grpo_engine.main(GRPOConfig(**GRPO, out=out, resume=True))
    assert names(out) == names(world["grpo"])
    assert untimed(out) == untimed(world["grpo"])
    for name in ("samples.jsonl", "tokens.jsonl"):
        assert read_rows(out / name) == read_rows(world["grpo"] / name)
    assert same_weights(out, world["grpo"])
    assert (out / "report.json").read_text() == (world["grpo"] / "report.json").read_text()


def test_an_iterative_run_refreshes_its_reward_model_in_bfloat16(world: dict[str, Path]) -> None:
    """Its reference is the frozen start, in half the bits, until an iteration replaces it."""
    sizes = GRPO | dict(steps=4, prompts_per_step=2, new_pairs=28, check_pairs=8, iterations=2)
    out = grpo_iterative_engine.main(
        IterativeGRPOConfig(**sizes, reward_batch_size=2, precision="bfloat16")
    )
    assert out.name == "grpo_iterative-reviews-tiny"
    assert names(out) ^ names(world["grpo"]) == {
        "pairs.jsonl", "reward_model", "finished_state.pt"
    }  # fmt: skip
    sections = ("Every engine", "Where the reference moves", "Iterative GRPO")
    assert logged(out) == set().union(*map(documented, sections))
    row = read_rows(out / "metrics.jsonl")[2]
    assert row["pairs/new"] == 28 and row["pairs/replayed"] == 3
    start, _ = load_reward_model(world["reward_model"])
    refreshed, _ = load_reward_model(out / "reward_model")
    assert not torch.equal(start.head.weight, refreshed.head.weight)
