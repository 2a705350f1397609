"""Talking to run folders of models made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from toys import GLASSBOX as TOKENIZER
from toys import glassbox_gpt, seeded

from data.worlds import reviews
from gpt.checkpoint import load_gpt, save_gpt
from gpt.model import GPT
from harness.errors import UserError
from harness.files import write_json
from harness.paths import MODEL_FILE
from reward_model.scalar_head import RewardModel, load_reward_model, save_reward_model
from rl import talk
from rl.talk import Answer, Talk, TalkConfig

KETTLE = "Review the red kettle for Anna."


def talk_to(run: Path, **flags) -> Talk:
    return Talk(TalkConfig(run, device="cpu", max_new_tokens=6, **flags))


def model(seed: int, context: int = 64) -> GPT:
    made = glassbox_gpt(seed, context=context)
    for parameter in made.parameters():  # so that two models differ by more than rounding
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=seeded(seed))
    return made


def run_folder(folder: Path, seed: int, context: int = 64, **flags) -> Path:
    """A finished run: weights and config.json."""
    save_gpt(folder / MODEL_FILE, model(seed, context), TOKENIZER)
    write_json(folder / "config.json", flags)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A base model, a reward model on it and a policy trained from the one on the other."""
    run_folder(tmp_path / "base", 1, preset="tiny", data="reviews", lr=2e-3)
    save_reward_model(tmp_path / "judge" / MODEL_FILE, RewardModel.from_policy(model(3)), TOKENIZER)
    write_json(tmp_path / "judge" / "config.json", {"data": "reviews"})
    run_folder(
        tmp_path / "grpo", 2, preset="tiny", data="reviews", reward="auto", temperature=0.7,
        policy=str(tmp_path / "base"), reward_model=[str(tmp_path / "judge")], max_new_tokens=9,
    )  # fmt: skip
    return tmp_path


def test_an_answer_has_the_runs_reward_the_worlds_gold_and_the_kl_to_its_start(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The KL by one forward without padding."""
    drawn, sample = [], talk.sample_rollout
    monkeypatch.setattr(talk, "sample_rollout", lambda *a: drawn.append(sample(*a)) or drawn[-1])
    mine, starts = talk_to(runs / "grpo").answer(KETTLE)
    record = reviews.read_prompt(KETTLE)
    assert mine.gold == pytest.approx(reviews.gold_reward(record, mine.text, mine.ended))
    batch = drawn[0].sequences
    prompt, answer = (
        TOKENIZER.encode(record.prompt),
        batch.response_tokens[batch.response_mask].tolist(),
    )
    policy, start = (load_gpt(runs / name)[0] for name in ("grpo", "base"))
    rows = [m(torch.tensor([prompt + answer]))[0] / 0.7 for m in (policy, start)]
    p, q = (row[len(prompt) - 1 : -1].detach().log_softmax(-1) for row in rows)
    assert mine.kl == pytest.approx((p.exp() * (p - q)).sum().item(), rel=1e-4)
    judge, _ = load_reward_model(runs / "judge")
    assert mine.reward == pytest.approx(float(judge(batch)), abs=1e-5)
    assert starts.who == "start" and starts.kl is None and starts.text != mine.text


def test_two_models_draw_the_same_numbers_and_new_ones_for_each_prompt(runs: Path) -> None:
    """So what differs between them is the models': here nothing."""
    talk_to_two = talk_to(runs / "grpo", against=str(runs / "grpo"))
    first, again = ([answer.text for answer in talk_to_two.answer(KETTLE)] for _ in range(2))
    assert first[0] == first[1] != again[0] == again[1]


def test_a_function_named_in_a_run_folder_is_started_only_if_it_is_named_again(runs: Path) -> None:
    mark = runs / "ran"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\ndef f(prompt, response): return 7\n"
    (runs / "mine.py").write_text(code)
    flags = json.loads((runs / "grpo" / "config.json").read_text())
    write_json(runs / "grpo" / "config.json", flags | {"reward": f"{runs}/mine.py:f"})
    assert talk_to(runs / "grpo").answer(KETTLE)[0].reward is None and not mark.exists()
    named = talk_to(runs / "grpo", reward=f"{runs}/mine.py:f")
    assert named.answer(KETTLE)[0].reward == 7


@pytest.mark.parametrize("flags", [{"temperature": -1}, {"max_new_tokens": "x"}])
def test_settings_that_no_run_writes_are_refused_before_a_prompt(runs: Path, flags) -> None:
    write_json(runs / "grpo" / "config.json", {"data": "reviews", **flags})
    with pytest.raises(UserError):
        talk.main(TalkConfig(runs / "grpo", device="cpu"))


def test_a_prompt_without_room_costs_that_prompt_alone(runs: Path) -> None:
    with pytest.raises(UserError):
        talk_to(run_folder(runs / "short", 2, context=4)).answer("a longer prompt than that is")


def test_what_a_model_writes_does_not_steer_the_terminal() -> None:
    lines = Answer("it", "a\x1b[2Jb\u202e", True, 1.0, None, None).lines(40)
    assert "\x1b" not in "".join(lines) and "\u202e" not in "".join(lines)
