"""Talking to run folders: models made here, asked through a pipe, a terminal and --json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked import command
from toys import seeded
from watched import calls_of

from data import reviews, sums
from gpt.checkpoint import save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from harness.files import append_jsonl, write_json
from harness.paths import MODEL_FILE
from reward_model.scalar_head import RewardModel, load_reward_model, save_reward_model
from rl import talk
from rl.commands import conversation
from rl.commands.conversation import Answer, FilePrompts, open_typed
from rl.commands.talking import Talk, TalkConfig, in_terminal, open_talk, printable, with_start

TOKENIZER = load_tokenizer("glassbox")
KETTLE = "Review the red kettle for Anna."
CPU = TalkConfig(device="cpu", max_new_tokens=6)


def model(seed: int, context: int = 64) -> GPT:
    shape = GPTConfig(TOKENIZER.n_vocab, context, n_layer=1, n_head=2, n_embd=16)
    made = GPT(shape).initialize(seeded(seed)).eval()
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


def ask(folder: Path, text: str = KETTLE, config: TalkConfig = CPU) -> dict:
    return open_talk(folder, config).as_object(text)


def slow_kl(policy: GPT, start: GPT, prompt: list[int], answer: list[int], tau: float) -> float:
    """sum_t KL(policy || start) at the prefixes of one answer, by one forward without padding."""
    rows = [m(torch.tensor([prompt + answer]))[0] / tau for m in (policy, start)]
    p, q = (row[len(prompt) - 1 : -1].detach().log_softmax(-1) for row in rows)
    return (p.exp() * (p - q)).sum().item()


# --- what is measured -----------------------------------------------------------------------------


def test_an_answer_has_the_runs_reward_the_worlds_gold_and_the_kl_to_its_start(
    runs: Path, monkeypatch
) -> None:
    sampled = calls_of(monkeypatch, conversation, "sample_rollout")
    answers = ask(runs / "grpo", config=replace(CPU, samples=3))["answers"]
    record = reviews.read_prompt(KETTLE)
    assert record is not None and record.prompt == KETTLE + "\n"
    rollout = sampled[0].result
    judge, _ = load_reward_model(runs / "judge")
    scores = judge(rollout.sequences)
    for row, answer in enumerate(answers):
        tokens = rollout.response_tokens[row][rollout.response_mask[row]].tolist()
        assert answer["text"] == TOKENIZER.decode(tokens) and answer["tokens"] == len(tokens)
        gold = reviews.gold_reward(record, answer["text"], answer["ended"])
        assert answer["gold"] == pytest.approx(gold)
        assert answer["reward"] == pytest.approx(float(scores[row]), rel=1e-4)
        kl = slow_kl(model(2), model(1), TOKENIZER.encode(record.prompt), tokens, 0.7)
        assert kl > 0.1
        assert answer["kl"] == pytest.approx(kl, rel=1e-3)


def test_sums_are_checked_by_their_rule(tmp_path: Path) -> None:
    run_folder(tmp_path / "sums", 1, data="sums", reward="auto", policy=None, preset="tiny")
    opened = open_talk(tmp_path / "sums", CPU)
    assert isinstance(opened, Talk)
    (answer,) = opened.as_object("347+588=")["answers"]
    record = sums.read_prompt("347+588=")
    assert record is not None and record.answer == "935"
    assert answer["reward"] == answer["gold"] == 0.0
    assert opened.as_object("one and one is")["answers"][0]["gold"] is None


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """A file of instructions with answers that can be checked."""
    path = tmp_path / "questions.jsonl"
    asked = "### Instruction:\nWhat is {} + 1?\n\n### Response:\n"
    append_jsonl(path, [{"prompt": asked.format(n), "answer": str(n + 1)} for n in range(40)])
    return path


def test_a_files_prompts_bring_their_template_and_their_answers(
    tmp_path: Path, questions: Path
) -> None:
    prompts = open_typed(str(questions))
    assert isinstance(prompts, FilePrompts)
    known = prompts.read("What is 4 + 1?")
    assert (known.known, known.record.answer) == (True, "5")
    assert known.record.prompt == "### Instruction:\nWhat is 4 + 1?\n\n### Response:\n"
    other = prompts.read("Why?")
    assert not other.known
    assert other.record.prompt == "### Instruction:\nWhy?\n\n### Response:\n"
    assert all(prompts.read(text).known for text in prompts.examples())
    run_folder(tmp_path / "run", 1, data=str(questions), reward="auto", preset="tiny")
    (answer,) = ask(tmp_path / "run", "What is 4 + 1?")["answers"]
    assert answer["gold"] in (0.0, 1.0)
    (answer,) = ask(tmp_path / "run", "Why?")["answers"]
    assert answer["gold"] is answer["reward"] is None


# --- what is missing ------------------------------------------------------------------------------


def test_a_function_named_in_a_run_folder_is_not_started(runs: Path) -> None:
    """The folder may be somebody else's."""
    (runs / "evil.py").write_text("raise SystemExit('started')\n", encoding="utf-8")
    run_folder(runs / "own", 2, data="reviews", reward=f"{runs / 'evil.py'}:reward", policy=None)
    opened = open_talk(runs / "own", CPU)
    assert isinstance(opened, Talk)
    assert any("called only with --reward" in note for note in opened.partners[0].measures.notes)


def test_a_function_that_is_named_again_scores_the_answers(runs: Path) -> None:
    (runs / "mine.py").write_text("def size(prompt, response): return float(len(response))\n")
    named = f"{runs / 'mine.py'}:size"
    run_folder(runs / "own", 2, data="reviews", reward=named, policy=None)
    (answer,) = ask(runs / "own", config=replace(CPU, reward=named))["answers"]
    assert answer["reward"] == len(answer["text"])
    for wrong in (dict(reward="model"), dict(reward=named, reward_model=runs / "judge")):
        with pytest.raises(ValueError, match="FILE.py:FUNCTION"):
            replace(CPU, **wrong)


# --- two models -----------------------------------------------------------------------------------


def test_against_alone_is_the_start_with_the_same_random_numbers(runs: Path) -> None:
    assert with_start(["run", "--against", "--samples", "2"]) == [
        "run", "--against", "start", "--samples", "2",
    ]  # fmt: skip
    assert with_start(["run", "--against"]) == ["run", "--against", "start"]
    assert with_start(["--against", "other", "run"]) == ["--against", "other", "run"]
    both = ask(runs / "grpo", config=replace(CPU, against="start", samples=2, temperature=0.7))
    assert both["against"]["run"] == "base"
    assert [answer["kl"] for answer in both["against"]["answers"]] == pytest.approx([0, 0])
    alone = ask(runs / "base", config=replace(CPU, samples=2, temperature=0.7))
    texts = [answer["text"] for answer in alone["answers"]]
    assert [answer["text"] for answer in both["against"]["answers"]] == texts
    assert [answer["text"] for answer in both["answers"]] != texts


def test_against_another_run_and_what_cannot_be_compared(runs: Path) -> None:
    run_folder(runs / "other", 5, data="reviews")
    both = ask(runs / "grpo", config=replace(CPU, against=str(runs / "other")))
    assert both["against"]["run"] == "other" and both["against"]["answers"][0]["kl"] > 0
    with pytest.raises(UserError, match="says which model it started from"):
        ask(runs / "base", config=replace(CPU, against="start"))
    with pytest.raises(UserError, match="no answers to lay side by side"):
        ask(runs / "judge", config=replace(CPU, against="start"))
    with pytest.raises(UserError, match="holds a reward_model, not a gpt"):
        ask(runs / "grpo", config=replace(CPU, against=str(runs / "judge")))


def test_a_reward_model_scores(runs: Path) -> None:
    opened = open_talk(runs / "judge", CPU)
    with pytest.raises(UserError, match="a prompt, a tab and an answer"):
        opened.as_object(KETTLE)
    answer = "Hi Anna! The kettle is great. I hope this helps."
    scored = opened.as_object(f"{KETTLE}\t{answer}")["answers"][0]
    assert scored["gold"] == pytest.approx(0.963636, abs=1e-6) and scored["reward"] is not None
    worse = opened.as_object(f"{KETTLE}\tGo away.")["answers"][0]
    assert worse["gold"] < 0.5 and worse["reward"] != scored["reward"]
    with pytest.raises(UserError, match="do not fit the model's 64 positions"):
        opened.as_object(f"{KETTLE}\t{answer * 9}")


# --- a terminal -----------------------------------------------------------------------------------


def test_what_a_model_writes_does_not_steer_the_terminal() -> None:
    assert printable("a\x1b[2Jb\tc\nd\u202ee\ufffd é") == "a\\x1b[2Jb\\tc\nd\\u202ee\ufffd é"
    shown = in_terminal(["run"], [[Answer("\x1b[31mred\x07", 3, True)]], 80)
    assert "\x1b" not in shown and "\x07" not in shown and "red" in shown


def typing(*lines: str):
    """Somebody who types these lines and then Ctrl-D."""
    left = iter(lines)

    def ask(question: str) -> str:
        print(question)  # and what is typed ends the line
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return ask


def test_a_terminal_suggests_prompts_and_survives_mistakes(runs: Path, capsys) -> None:
    opened = open_talk(runs / "grpo", CPU)
    talk.from_terminal(opened, typing("", "?", "word " * 64, KETTLE))
    shown = capsys.readouterr().out
    assert "reward: reward model" in shown and "KL: to" in shown
    tests = {record.prompt.strip() for record in reviews.prompts("test")}
    suggested = [line.strip() for line in shown.splitlines() if line.strip() in tests]
    assert len(set(suggested)) == 8
    assert "error: the prompt has" in shown
    assert shown.count("  reward ") == 1 and shown.endswith("\n")
    assert max(map(len, shown.splitlines())) <= 80


def test_ctrl_c_ends_an_answer_and_then_the_talk(runs: Path, capsys, monkeypatch) -> None:
    opened = open_talk(runs / "grpo", CPU)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(opened, "as_text", interrupted)
    questions = []

    def ask(question: str) -> str:
        questions.append(question)
        if len(questions) > 1:
            raise KeyboardInterrupt
        return KETTLE

    talk.from_terminal(opened, ask)
    assert "(stopped)" in capsys.readouterr().out and len(questions) == 2


# --- pipes ----------------------------------------------------------------------------------------


def test_a_pipe_gets_an_object_per_prompt_and_the_exit_status_of_the_worst(runs: Path) -> None:
    given = f"{KETTLE}\n\n{'word ' * 64}\r\nWhy?\n".encode()
    words = ("--json", "--against", "--device", "cpu", "--max-new-tokens", 6)
    result = command("-m", "rl.talk", runs / "grpo", *words, cwd=runs, given=given)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["prompt"] for row in rows] == [KETTLE, "word " * 64, "Why?"]
    assert [sorted(row) for row in (rows[0], rows[1])] == [
        ["against", "answers", "prompt", "run"], ["error", "prompt"],
    ]  # fmt: skip
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: the prompt has")
