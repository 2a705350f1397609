"""Responses into which an environment writes: what is sampled, what is trained, what a tool may do."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial

import engines
import pytest
import torch
from engines import DIVERSE, ENGINES, engine_named
from slow import flat_gradient
from toys import LETTERS, PROMPTS, Crash, CrashingLog, random_gpt, seeded, weights
from watched import Noted, numbers

from data.collate import ResponseBatch, join_responses, response_spans
from data.records import PromptRecord
from gpt import generate
from gpt.generate import SamplingParams, Turns, choose_tokens
from gpt.log_probs import token_log_probs, token_scores
from gpt.model import GPT
from gpt.token_rows import token_rows
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from harness.report.rules import examine
from harness.report.tokens import TokenView, frames_of
from rl.batches.rollout import Rollout, join_rollouts, sample_rollout, select_rows
from rl.batches.tool_process import CHARACTERS
from rl.batches.tools import TOOLS, Tool, ToolFailed, Tools, check_tools, open_tools
from rl.commands.conversation import RunFolder, tools_of
from rl.equations.advantages import discounted_returns, gae
from rl.equations.token_rewards import at_last_token
from rl.rewards.sources import CallCost
from rl.rewards.step_rewards import OutcomeSteps
from rl.training.run_rules import RULES
from rl.training.value_model import ValueModel

EOS = LETTERS.eos_id
small_gpt = partial(engines.small_gpt, n_layer=1)
ECHO = Tool("echo", lambda call, record: "g" + call[:2] + "h", opens="a", closes="b")
TURNS = Tool("turns", lambda call, record: "gh", opens="", closes="b")
SILENT = Tool("silent", lambda call, record: "gh", opens="", closes="~")


def model(tool: Tool | None = ECHO, max_calls: int = 2, seed: int = 0) -> GPT:
    gpt = random_gpt(LETTERS.n_vocab, 32, scale=0.2, n_embd=16, seed=seed).requires_grad_(False)
    gpt.wte.weight.data[:2] += 0.6 * gpt.ln_f.bias  # more calls
    gpt.tools = None if tool is None else Tools(tool, max_calls)
    return gpt


def rollout_of(gpt: GPT, steps: int = 14, group: int = 6, seed: int = 1) -> Rollout:
    params = SamplingParams(max_new_tokens=steps)
    return sample_rollout(gpt, LETTERS, PROMPTS[:4], params, group, seeded(seed))


# Sampling -----------------------------------------------------------------------------------------


def naive(gpt: GPT, prompt: str, uniforms: list[float], tool: Tool, max_calls: int) -> tuple:
    """One response with whole forwards and no cache: ids, whose they are, and whether it ended."""
    ids, mine, calls, start = LETTERS.encode(prompt), [], 0, 0
    first = len(ids)
    while len(mine) < len(uniforms):
        logits = gpt(torch.tensor([ids]))[0, -1:]
        token = int(choose_tokens(logits, SamplingParams(), torch.tensor([uniforms[len(mine)]]))[0])
        ids.append(token)
        mine.append(True)
        if token == EOS:
            return ids[first:], mine, True
        text = LETTERS.decode(ids[first:][start:])
        if LETTERS.decode([token]) != tool.closes or tool.opens not in text[:-1]:
            continue
        call = text[:-1].split(tool.opens)[-1] if tool.opens else text[:-1]
        said = LETTERS.encode(tool.answer(call, None))
        if calls == max_calls or len(mine) + len(said) >= len(uniforms):
            break
        ids, mine, calls = ids + said, mine + [False] * len(said), calls + 1
        start = len(mine)
    return ids[first:], mine, False


@pytest.mark.parametrize("tool", [ECHO, TURNS], ids=lambda tool: tool.name)
@pytest.mark.parametrize("rows_at_once", [None, 6])
def test_a_batch_with_a_cache_is_the_naive_loop(tool, rows_at_once):
    gpt = model(tool)
    gpt.sample_rows = rows_at_once
    rollout = rollout_of(gpt)
    uniforms = torch.rand(24, 14, generator=seeded(1)).tolist()
    spans = response_spans(rollout.response_mask).tolist()
    for row, record in enumerate(rollout.records):
        ids, mine, ended = naive(gpt, record.prompt, uniforms[row], tool, max_calls=2)
        assert rollout.response_tokens[row, : spans[row]].tolist() == ids
        assert rollout.response_mask[row, : len(mine)].tolist() == mine
        assert not rollout.response_mask[row, len(mine) :].any()
        assert bool(rollout.has_eos[row]) == ended
        assert rollout.responses[row] == LETTERS.decode(ids)
        answered = [a and not b for a, b in zip(mine, mine[1:], strict=False)]
        assert int(rollout.calls[row]) == sum(answered)
    assert {0, 1, 2} <= set(rollout.calls.tolist())  # rows with and without an answer in one batch
    assert {True, False} == set(rollout.has_eos.tolist())
    counted = rollout.reward_metrics
    assert counted["sampled_tokens"] == pytest.approx(float(rollout.lengths.float().mean()))
    assert counted["calls"] == pytest.approx(float(rollout.calls.float().mean()))
    assert 0 < counted["stopped_calls"] <= 1 - float(rollout.has_eos.float().mean())


def test_what_was_sampled_is_what_is_scored():
    """The sampler's log-probs are those of a whole forward over the row, and 0 at observations."""
    gpt = model()
    rollout = rollout_of(gpt)
    rescored = token_log_probs(gpt, rollout.sequences)
    torch.testing.assert_close(rollout.log_probs, rescored, rtol=0, atol=1e-5)
    assert rollout.sequences.observed.any()
    for tensor in (rollout.log_probs, rescored, token_scores(gpt, rollout.sequences).entropy):
        assert not tensor[~rollout.response_mask].any()


def test_the_prefix_is_never_encoded_again():
    """A random policy over byte pairs writes texts whose own encoding is another one."""
    tokenizer = load_tokenizer("glassbox")
    gpt = random_gpt(tokenizer.n_vocab, 40, scale=0.02, n_embd=16, seed=3)
    gpt.tools = Tools(Tool("every t", lambda call, record: "8", opens="", closes="t"), 9)
    given = tokenizer, [PromptRecord("What is it?")] * 40, SamplingParams(max_new_tokens=25), 1
    rollout = sample_rollout(gpt, *given, seeded(0))
    gpt.tools = None
    plain = sample_rollout(gpt, *given, seeded(0))
    assert rollout.sequences.observed.any()
    other = 0
    for row in rollout.sequences.observed.any(1).nonzero()[:, 0].tolist():
        first = int(rollout.sequences.observed[row].nonzero()[0, 0])
        ids = rollout.response_tokens[row, :first].tolist()
        assert rollout.response_tokens[row, first].item() == tokenizer.encode("8")[0]
        assert ids == plain.response_tokens[row, :first].tolist()  # as they were drawn
        other += tokenizer.encode(tokenizer.decode(ids)) != ids
    assert other > 0


def test_rows_can_be_chosen_and_joined():
    rollout = rollout_of(model())
    picked = select_rows(rollout, torch.tensor([5, 0, 9]))
    assert torch.equal(picked.calls, rollout.calls[[5, 0, 9]])
    both = join_rollouts([rollout, rollout_of(model(), steps=9, seed=2)])
    again = join_responses(
        [LETTERS.encode(record.prompt) for record in both.records],
        both.response_tokens.clone(), both.response_mask, both.has_eos,
    )  # fmt: skip
    assert torch.equal(both.sequences.tokens[:, : again.tokens.shape[1]], again.tokens)
    assert torch.equal(both.sequences.totals, again.totals)


# What is learned ----------------------------------------------------------------------------------


def loss_and_gradient(gpt: GPT, batch: ResponseBatch, old: torch.Tensor) -> tuple:
    gpt = copy.deepcopy(gpt).requires_grad_(True)
    scores = token_scores(gpt, batch, entropy_gradient=True)
    weight = torch.linspace(-1, 1, old.numel()).view(old.shape)
    terms = (scores.log_probs - old).exp() * weight - 0.1 * scores.entropy
    loss = terms[batch.response_mask].sum()
    loss.backward()
    return loss.detach(), flat_gradient(gpt)


def test_the_content_of_an_observation_has_no_gradient_of_its_own():
    """With the prefix as it is, other observed ids as targets change no bit of loss or gradient."""
    gpt, rollout = model(), rollout_of(model())
    batch, observed = rollout.sequences, rollout.sequences.observed
    others = torch.where(observed, (batch.response_tokens + 1) % 8, batch.response_tokens)
    own, of_others = (
        loss_and_gradient(gpt, given, rollout.log_probs)
        for given in (batch, replace(batch, response_tokens=others))
    )
    assert torch.equal(own[0], of_others[0]) and torch.equal(own[1], of_others[1])
    seen = copy.deepcopy(batch.tokens)  # they are attended to: in the row itself they do matter
    row = int(observed.any(1).nonzero()[0])
    column = int(batch.prompt_lengths[row] + observed[row].nonzero()[0])
    seen[row, column] = (seen[row, column] + 1) % 8
    read = replace(batch, tokens=seen)
    assert not torch.allclose(token_log_probs(gpt, read)[row], token_log_probs(gpt, batch)[row])


def test_advantages_and_returns_by_hand():
    """Call, call, answer, answer, last; gamma .9, lambda .5. delta_4 = 1 - .8, and A_1 follows it:
    delta_1 = .9 * .8 - .4 = .32, A_1 = .32 + .45 * .2 = .41, A_0 = .36 - .5 + .45 * .41 = .0445."""
    mask = torch.tensor([[True, True, False, False, True]])
    values = torch.tensor([[0.5, 0.4, 9.0, 9.0, 0.8]])
    rewards = at_last_token(torch.ones(1), mask)
    assert rewards.tolist() == [[0, 0, 0, 0, 1]]
    advantages, returns = gae(rewards, values, mask, 0.9, 0.5)
    expected = torch.tensor([0.0445, 0.41, 0.2])
    torch.testing.assert_close(advantages[mask], expected)
    torch.testing.assert_close(returns[mask], expected + torch.tensor([0.5, 0.4, 0.8]))
    discounted = discounted_returns(rewards, mask, 0.9)[mask]
    torch.testing.assert_close(discounted, torch.tensor([0.81, 0.9, 1.0]))


def every_response(gpt: GPT, tool: Tool, steps: int) -> list[tuple]:
    """(ids, mask, log-prob with its graph, log-prob of each choice) of all responses over a, b and EOS."""
    letters, prompt = [0, 1, EOS], LETTERS.encode("c")
    found, open_ = [], [([], [], [])]
    while open_:
        ids, mine, terms = open_.pop()
        logits = gpt(torch.tensor([prompt + ids]))[0, -1, letters].log_softmax(-1)
        for letter, term in zip(letters, logits, strict=True):
            row, whose, more = [*ids, letter], [*mine, True], [*terms, term]
            if letter == 1 and len(row) + 3 <= steps:
                row, whose = row + LETTERS.encode("gh"), [*whose, False, False]
            if letter == EOS or len(row) == steps or (letter == 1 and whose[-1]):
                found.append((row, whose, sum(more), more))
            else:
                open_.append((row, whose, more))
    return found


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_gae_over_answers_gives_the_exact_policy_gradient(lambda_):
    """All responses of up to six tokens; with the true values every lambda must give the gradient."""
    gpt = random_gpt(LETTERS.n_vocab, 12, scale=0.3, seed=2, dtype=torch.float64)
    responses = every_response(gpt, TURNS, 6)
    probabilities = torch.stack([row[2] for row in responses]).exp()
    assert float(probabilities.detach().sum()) == pytest.approx(1)
    assert sum(not all(row[1]) for row in responses) > 5
    sums = [sum(x * i for i, x in enumerate(ids, 1)) for ids, *_ in responses]
    rewards = torch.tensor([value % 7 for value in sums]).double()
    parameters = list(gpt.parameters())

    def gradient(objective: torch.Tensor) -> torch.Tensor:
        grads = torch.autograd.grad(objective, parameters, retain_graph=True, allow_unused=True)
        return torch.cat([g.flatten() for g in grads if g is not None])

    exact = gradient((probabilities * rewards).sum())
    states: dict[tuple, list[float]] = {}  # prefix -> probability, probability times reward
    for row, p, reward in zip(responses, probabilities.tolist(), rewards.tolist(), strict=True):
        for t in range(len(row[0])):
            total = states.setdefault(tuple(row[0][:t]), [0.0, 0.0])
            total[0], total[1] = total[0] + p, total[1] + p * reward
    width, count = 6, len(responses)
    mask, values = torch.zeros(count, width).bool(), torch.zeros(count, width).double()
    for i, row in enumerate(responses):
        mask[i, : len(row[1])] = torch.tensor(row[1])
        for t in range(len(row[0])):
            p, weighted = states[tuple(row[0][:t])]
            values[i, t] = weighted / p if row[1][t] else math.nan
    advantages, _ = gae(at_last_token(rewards, mask), values, mask, 1.0, lambda_)
    terms = [
        p * torch.stack(row[3]) @ advantages[i][mask[i]]
        for i, (row, p) in enumerate(zip(responses, probabilities.detach(), strict=True))
    ]
    torch.testing.assert_close(gradient(torch.stack(terms).sum()), exact, rtol=1e-8, atol=1e-10)


def test_the_value_after_a_cut_off_is_that_of_its_last_token():
    gpt = model()
    critic = ValueModel.from_policy(gpt)
    torch.nn.init.normal_(critic.head.weight)
    batch = rollout_of(gpt).sequences
    after = critic.values_after(batch, 64)
    for row, total in enumerate(batch.totals.tolist()):
        hidden = critic.gpt.hidden(batch.tokens[row : row + 1, :total])[0, -1]
        assert critic.head(hidden).item() == pytest.approx(after[row].item(), abs=1e-5)


# Engines ------------------------------------------------------------------------------------------


def run(name: str, tool: Tool | None, *, policy: GPT | None = None, **changes):
    policy = policy or small_gpt()
    policy.tools = None if tool is None else Tools(tool, 2)
    changes = dict(steps=2, minibatches=2) | changes
    return policy, engine_named(name).run(policy, DIVERSE, **changes)


SAMPLING = [engine for engine in ENGINES if engine.has("group_size")]
COUNTS = {"calls", "sampled_tokens", "stopped_calls", "tool_failures"}


@pytest.mark.filterwarnings("ignore:with one update a batch")
@pytest.mark.parametrize("engine", SAMPLING, ids=lambda engine: engine.name)
def test_every_engine_trains_with_calls_and_without_one_no_bit_differs(engine):
    """A tool that is never called is no tool; one that is called leaves ratio 1 and the counts alone."""
    runs = []
    for tool in (None, SILENT, TURNS):
        policy = small_gpt()
        policy.tools = None if tool is None else Tools(tool, 2)
        own = dict(step_reward_fn=OutcomeSteps()) if engine.name == "grpo_process" else {}
        rows = numbers(engine.run(policy, steps=2, minibatches=2, **own))
        counts = [{key: row.pop(key) for key in COUNTS & row.keys()} for row in rows]
        runs.append((weights(policy), rows, counts))
    (plain, rows, none), (silent, same, zero), (called, others, counts) = runs
    assert torch.equal(plain, silent) and rows == same and not any(none)
    assert all(row["calls"] == row["stopped_calls"] == 0 for row in zero)
    assert not torch.equal(plain, called)
    for row, count in zip(others, counts, strict=True):
        assert count["calls"] > 0 and row["ratio_error_at_start"] < 1e-4
        assert row["response_length"] == pytest.approx(count["sampled_tokens"], rel=1e-5)


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_batches_checkpoints_and_a_resumed_run_with_calls(name, tmp_path):
    """Micro-batches and checkpointed blocks change rounding at most, a resumed run no bit."""
    policy, rows = run(name, TURNS, policy=small_gpt().double())
    assert rows[0]["calls"] > 0 and rows[0]["ratio_error_at_start"] < 1e-9
    small, _ = run(name, TURNS, policy=small_gpt().double(), micro_batch_size=3)
    torch.testing.assert_close(weights(small), weights(policy), rtol=0, atol=1e-6)
    again = small_gpt().double()
    again.checkpoint_blocks = True
    assert torch.equal(weights(run(name, TURNS, policy=again)[0]), weights(policy))
    options = dict(steps=4, checkpoint_every=2)
    whole, rows = run(name, TURNS, folder=tmp_path / "whole", **options)
    log = CrashingLog(4)
    log.last = 3
    with pytest.raises(Crash):
        run(name, TURNS, folder=tmp_path / "cut", log=log, **options)
    resumed, more = run(name, TURNS, folder=tmp_path / "cut", resume=True, **options)
    assert torch.equal(weights(resumed), weights(whole)) and numbers(more) == numbers(rows[2:])


def test_a_call_costs_and_the_check_stays_what_it_was():
    reward, rollout = CallCost(Noted(DIVERSE), 0.25), rollout_of(model())
    expected = DIVERSE(rollout) - 0.25 * rollout.calls
    assert torch.equal(reward(rollout), expected) and rollout.calls.any()
    rollout.reward_parts["answer"] = (1.0, DIVERSE(rollout))
    reward(rollout)
    assert sum(w * part for w, part in rollout.reward_parts.values()).tolist() == expected.tolist()


# Silent bugs, seen from outside -------------------------------------------------------------------


def seen(name: str, **changes) -> set[str]:
    """The doctor's errors on a run with calls."""
    policy, rows = run(name, TURNS, steps=4, lr=1e-3, **changes)
    flags = vars(engine_named(name).configured(**changes)) | dict(tools="turns")
    return {f.rule for f in examine(rows, flags, rules=RULES) if f.severity == "error"}


def test_the_doctor_is_silent_on_a_healthy_run_and_names_the_planted_bugs(monkeypatch):
    assert seen("grpo") == seen("ppo") == set()

    with monkeypatch.context() as patch:  # observations in the loss
        draw = Turns._draw

        def all_written(turns, row, token, step):
            draw(turns, row, token, step)
            turns.drawn[row, : step + 1] = True

        patch.setattr(Turns, "_draw", all_written)
        assert {"trained_is_not_sampled", "ratio_at_start"} <= seen("grpo")

    def reset(token_rewards, values, mask, gamma, lambda_, *, bootstrap_values=None):
        pieces = torch.zeros_like(values)
        A, V = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
        for t in reversed(range(values.shape[1])):
            A = token_rewards[:, t] + gamma * V - values[:, t] + gamma * lambda_ * A
            A, V = (torch.where(mask[:, t], x, 0.0) for x in (A, values[:, t]))
            pieces[:, t] = A
        return pieces, torch.where(mask, pieces + values, 0.0)

    with monkeypatch.context() as patch:
        patch.setattr("rl.training.actor_critic.gae", reset)
        assert "return_lost_at_answers" in seen("ppo", kl_coef=0.0)

    with monkeypatch.context() as patch:  # another prefix is scored than was sampled
        real_join = join_responses

        def retokenised(prompts, tokens, mask, has_eos):
            tokens = tokens.masked_fill((mask.cumsum(1) == 2) & mask & ~mask.roll(-1, 1), 5)
            return real_join(prompts, tokens, mask, has_eos)

        patch.setattr("rl.batches.rollout.join_responses", retokenised)
        assert "ratio_at_start" in seen("grpo")

    with monkeypatch.context() as patch:  # the policy never reads the answer
        real = generate.Reader.read
        patch.setattr(generate.Reader, "read", lambda self, ids, seen: real(self, 0 * ids, seen))
        assert "ratio_at_start" in seen("grpo")

    with monkeypatch.context() as patch:  # what is scored lacks what the policy has read
        patch.setattr("data.collate.response_spans", lambda mask: mask.sum(1))
        assert "ratio_at_start" in seen("grpo")


# Tools that fail ----------------------------------------------------------------------------------

MINE = """
from __future__ import annotations
import os, sys, time
from dataclasses import dataclass

@dataclass
class Answer:
    text: str

def answer(call, record):
    print("noise " * 10**5)
    if call == "fork": return str(bool(os.fork()))
    if call == "orphan": os.fork(), time.sleep(1000)
    if call == "input": return input()
    if call == "none": return None
    if call == "bytes": return b"9"
    if call == "broken": raise ValueError("\\ud800 \\n\\x1b[2J")
    if call == "hang": time.sleep(60)
    if call == "raise": raise KeyError("no such thing")
    if call == "long": return "x" * 10**7
    if call == "memory": return str(len("x" * 10**11))
    if call == "end": os._exit(0)
    if call == "leave": sys.exit(3)
    if call == "nothing": return ""
    return Answer(f"{call} {record.answer}").text

number = 3
"""


def test_a_function_of_the_users_cannot_stop_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rl.batches.tools.SECONDS", 1.0)
    (tmp_path / "mine.py").write_text(MINE)
    tools = open_tools(f"{tmp_path}/mine.py:answer", 2)
    record = PromptRecord("?", answer="7", meta={"a": object()})
    expected = {
        "hello": "hello 7", "hang": "timeout", "after": "after 7", "raise": "error",
        "long": "x" * CHARACTERS,
        "memory": "error", "end": "error", "leave": "error", "nothing": "error", "still": "still 7",
        "fork": "True", "forked": "forked 7", "orphan": "timeout", "input": "error", "none": "error",
        "bytes": "error", "broken": "error", "well": "well 7",
    }  # fmt: skip
    assert {call: tools.answer(call, record) for call in expected} == expected
    monkeypatch.setattr("rl.batches.tools.SAID", 100)
    assert tools.answer("broken", record) == "error"
    told = capsys.readouterr().out
    parts = ("no answer in 1 seconds", "no such thing", "MemoryError", "'hang'", r"\ud800 \x1b")
    for part in parts:
        assert part in told
    turns = torch.tensor([[3, 1, 0], [5, 2, 1]])
    assert tools.metrics(turns) == {
        "calls": 1.5, "sampled_tokens": 4.0, "stopped_calls": 0.5, "tool_failures": 13,
    }  # fmt: skip
    assert tools.metrics(turns)["tool_failures"] == 0
    assert copy.deepcopy(tools) is tools
    process = tools.tool.answer.process
    del tools
    assert process.poll() is not None


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("calculater", ValueError, "calculator"),
        ("mine:f", ValueError, "FILE.py:FUNCTION"),
        ("/nowhere/mine.py:f", UserError, "no file"),
        ("mine.py:absent", UserError, "absent"),
        ("mine.py:number", UserError, "no function"),
    ],
)
def test_a_tool_that_cannot_be_used_is_refused(name, error, message, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        check_tools(name)
        open_tools(name, 2)


def test_a_call_is_told_as_it_happens_and_a_tool_that_raises_is_answered():
    heard = []
    tools = Tools(TOOLS["calculator"], 2, on_call=lambda call, said: heard.append((call, said)))
    assert tools.answer("6*7", PROMPTS[0]) == "42"
    broken = Tools(Tool("broken", lambda call, record: [][1]), 2)
    assert broken.answer("x", PROMPTS[0]) == "error" and broken.failures == {"error": 1}
    assert heard == [("6*7", "42")]
    assert ToolFailed("timeout", "late").kind == "timeout"


# Pages --------------------------------------------------------------------------------------------


def test_what_the_policy_did_not_write_is_marked_and_has_no_numbers():
    rollout = rollout_of(model())
    prompts = [record.prompt for record in rollout.records]
    given = LETTERS, rollout.sequences, prompts, {"log_prob": rollout.log_probs}, {}
    rows = token_rows(*given, kind="x", step=1)
    spans = response_spans(rollout.response_mask).tolist()
    for i, row in enumerate(rows):
        mine = rollout.response_mask[i, : spans[i]].tolist()
        assert row.get("observed", [0] * spans[i]) == [int(not m) for m in mine]
        assert [value is None for value in row["values"]["log_prob"]] == [not m for m in mine]
        assert len(row["tokens"]) == spans[i]
    (frame,) = frames_of(rows)
    assert any(any(row["observed"]) for row in frame["rows"])
    assert "gt-other" in TokenView(rows)._repr_html_()


def test_talk_asks_the_tool_of_the_run_and_starts_no_code(tmp_path):
    notes: list[str] = []
    own = RunFolder(tmp_path, {"tools": "calculator", "max_calls": 3})
    assert tools_of(own, None, notes).max_calls == 3 and not notes
    code = RunFolder(tmp_path, {"tools": "mine.py:answer"})
    assert tools_of(code, None, notes) is None
    assert "mine.py:answer" in notes[0] and "--tools" in notes[0]
    assert tools_of(code, "guessing", notes).tool is TOOLS["guessing"]
    assert tools_of(RunFolder(tmp_path, {}), None, []) is None
