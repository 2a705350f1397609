"""The site: its boxes name what exists; playground and explorables, run by node, compute what Python does.

Each function of TRUTHS takes the state of an explorable's controls and the numbers that its `compute`
returned for it, and holds them to 1e-6 in float64.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import boxes
import playground
import pytest
import torch
from boxes import ROOT
from course import explorables
from safetensors.torch import save
from torch import Tensor
from toys import GLASSBOX, glassbox_gpt, randomized, saved_gpt

from conformance.formulas import dppo
from data.collate import collate_responses
from data.worlds import reviews
from gpt.checkpoint import load_gpt
from gpt.log_probs import token_log_probs
from harness.files import write_json
from harness.paths import MODEL_FILE
from reward_model.loss import bradley_terry_loss
from reward_model.scalar_head import RewardModel, save_reward_model
from rl.equations.advantages import gae, group_advantages, leave_one_out_advantages
from rl.equations.kl import k3
from rl.equations.losses import (
    cispo,
    clipped_surrogate,
    constant_length_mean,
    dual_clip,
    gspo,
    policy_gradient,
    sequence_mean,
    sequence_sum,
    token_mean,
)

ENGINES = boxes.engines()


def in_node(code: str) -> Any:
    """What this JavaScript gives to `say`."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here to run the page's code")
    code += "\nfunction say(value) { process.stdout.write(JSON.stringify(value)); }"
    done = subprocess.run([node, "-"], input=code, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("engine", ENGINES)
def test_box_markers_and_line_map_fit_each_other(engine: str) -> None:
    assert boxes.problems(engine) == []


def test_every_box_has_an_engine_and_a_place_of_its_own() -> None:
    assert sorted(path.stem for path in boxes.FOLDER.glob("*.md")) == ENGINES
    places = sorted(int(boxes.read_box(engine).fields["order"]) for engine in ENGINES)
    assert places == list(range(1, len(ENGINES) + 1))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_box_names_exists(engine: str) -> None:
    """Its page of the course, and the functions elsewhere that carry out a line."""
    box = boxes.read_box(engine)
    assert {"idea", "paper", "arxiv", "box", "notebook", "watch"} <= box.fields.keys()
    assert len([*ROOT.glob(f"notebooks/[0-9][0-9]_{box.fields['notebook']}.ipynb")]) == 1
    for name in (name for line in box.lines for name in line.see):
        module, function = name.rsplit(".", 1)
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8")
        assert f"def {function}(" in source or f"class {function}" in source, name


HOSTILE = (
    "", "   ", "great", "Hi Anna, this is great! I hope this helps.", "hello anna", "Hi Anna",
    "Who cares? The lamp is AWFUL. Who cares?", "The lamp is nice. The lamp is nice.",
    "Nice nice lamp; lovely, superb, great, neat... Thank you for asking", "\u00e9t\u00e9 lamp_x nice!",
    "Not you again.  Leave me alone. Now go away!", "It is okay.\nThe price is fair.",
)  # fmt: skip


def test_gold_in_the_page_is_gold_in_python() -> None:
    """Every part, on answers of the grammar, cut or not, and on hostile ones."""
    rng = random.Random(0)
    records = [rng.choice(reviews.prompts("test")) for _ in range(150)]
    rows = [
        (record, reviews.sample_response(record, rng), rng.random() < 0.8) for record in records
    ]
    rows += [(records[0], text, True) for text in HOSTILE]
    rows += [(reviews.prompts("test")[i], "Hi Anna! The lamp is superb.", False) for i in range(20)]
    asked = [[record.prompt, text, ended] for record, text, ended in rows]
    code = (playground.PARTS / "world.js").read_text("utf-8") + (
        f"const world = new World({json.dumps(playground.world_lists())});"
        f"say({json.dumps(asked)}.map(([prompt, text, ended]) => {{"
        "const asked = world.read(prompt); const gold = world.gold(asked, text, ended);"
        "return { asked, gold, reasons: world.reasons(asked, gold, ended) }; }));"
    )
    for (record, text, ended), found in zip(rows, in_node(code), strict=True):
        assert found["asked"] == record.meta
        parts = reviews.gold_parts(record, text, ended)
        for name in ("sent", "topic", "polite", "form", "qual", "reward"):
            assert found["gold"][name] == pytest.approx(getattr(parts, name), abs=1e-9), text
        *content, care = found["reasons"]
        assert sum(row[0] for row in content) * care[0] == pytest.approx(parts.reward, abs=1e-9)
        assert all(words for *_, words in found["reasons"])


def test_the_page_of_a_demo_answers_with_its_own_models(tmp_path: Path) -> None:
    """Policy and judge of the run, not the course's: what training changed is kept to 8 bits."""
    for name, seed in (("pretraining", 0), ("grpo", 1)):
        saved_gpt(tmp_path / name, seed)
    judge = RewardModel(glassbox_gpt(2), "last_token")
    randomized(judge.head)
    save_reward_model(tmp_path / "reward_model" / MODEL_FILE, judge, GLASSBOX)
    numbers = {name: {"gold": 0.5, "reward": 1.0} for name in ("GRPO", "base model")}
    results = {"test": numbers, "prompts": {"test": 2}, "samples": [{"prompt": "Hi.\n"}]}
    write_json(tmp_path / "results.json", results)
    found = playground.models_of(tmp_path)
    asked, answer = GLASSBOX.encode("Review the lamp.\n"), GLASSBOX.encode("Hi Kate! It is nice.")
    files = {
        "base": save(found.base.state_dict()),
        "policy": found.policies[0][1],
        "judge": found.judge,
    }
    coded = {name: base64.b64encode(file).decode("ascii") for name, file in files.items()}
    code = (playground.PARTS / "gpt2.js").read_text("utf-8") + (
        f"const files = {json.dumps(coded)}, config = {json.dumps(asdict(found.base.config))};"
        f"const [asked, answer] = {json.dumps([asked, answer])};"
        "const tensors = (name) => readSafetensors("
        "Uint8Array.from(Buffer.from(files[name], 'base64')).buffer);"
        "const base = tensors('base');"
        "const judge = new RewardModel(descendant(base, tensors('judge'), 'gpt.'), config, 'last_token');"
        "say([[...new GPT(descendant(base, tensors('policy')), config).score(asked, answer)],"
        "judge.score(asked, answer)]);"
    )
    scores, reward = in_node(code)
    policy, _ = load_gpt(tmp_path / "grpo")
    batch = collate_responses([asked], [answer], GLASSBOX.eos_id)
    wanted = token_log_probs(policy, batch)[0].tolist()
    assert scores == pytest.approx(wanted, abs=0.02)
    assert scores != pytest.approx(token_log_probs(found.base, batch)[0].tolist(), abs=0.02)
    assert reward == pytest.approx(judge(batch).item(), abs=0.02)


State = dict[str, Any]
Numbers = dict[str, Any]


def real(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def same(found: Any, truth: Any) -> None:
    torch.testing.assert_close(real(found), real(truth), atol=1e-6, rtol=0)


def slope(value: Tensor, of: Tensor) -> Tensor:
    """The gradient of what may not depend on `of` at all."""
    if not value.requires_grad:
        return torch.zeros_like(of)
    return torch.autograd.grad(value.sum(), of, retain_graph=True)[0]


def three_words(state: State, numbers: Numbers) -> None:
    """The exact gradient, and every estimate from the words that were drawn."""
    rewards = real([state[word] for word in ("great", "fine", "awful")])
    logits = real(state["p"]).log().requires_grad_()
    log_probs = logits.log_softmax(-1)
    J = log_probs.exp() @ rewards
    same(numbers["J"], J.item())
    same(numbers["gradient"], slope(J, logits).tolist())

    def estimate(words: list[int]) -> Tensor:
        loss = policy_gradient(
            log_probs[words][:, None], (rewards[words] - state["baseline"])[:, None]
        )
        return -slope(loss.mean(), logits)

    for words, found in zip(numbers["draws"][:5], numbers["cloud"][:5], strict=True):
        assert len(words) == state["samples"]
        same(found, estimate(words).tolist())
    single = torch.stack([estimate([word]) for word in range(3)])
    mean = real(state["p"]) @ single
    same(numbers["mean"], mean.tolist())
    variance = float(real(state["p"]) @ (single - mean).square().sum(1)) / state["samples"]
    same(numbers["noise"], math.sqrt(variance))


def one_token(state: State, numbers: Numbers) -> None:
    """Losses and their gradients; DPPO as the conformance kit has it."""
    old = real([[state["old"]]]).log()
    new = (old + math.log(state["ratio"])).requires_grad_()
    A = real([[state["advantage"]]])
    ppo = clipped_surrogate(new, old, A, state["low"], state["high"])
    dual = dual_clip(ppo, A, state["dual"])
    masked = dppo(new, old, A, state["delta"], state["delta"])
    for name, loss in (("ppo", ppo), ("dual", dual)):
        same(numbers["loss"][name], loss.item())
        same(numbers["push"][name], -float(slope(loss, new)))
    same(numbers["push"]["dppo"], -float(slope(masked, new)))


def recorded_answer(state: State, numbers: Numbers) -> None:
    rewards, values = real([numbers["rewards"]]), real([numbers["values"]])
    mask = torch.ones_like(values, dtype=torch.bool)
    advantages, returns = gae(rewards, values, mask, state["gamma"], state["lambda"])
    same(numbers["advantages"], advantages[0].tolist())
    same(numbers["returns"], returns[0].tolist())
    same(numbers["deltas"], gae(rewards, values, mask, state["gamma"], 0.0)[0][0].tolist())
    same(numbers["rewards"][-1], state["score"])
    weighed = real(numbers["weights"]) @ real(numbers["deltas"])
    same(float(weighed), numbers["advantages"][numbers["chosen"]])


REFERENCE = real([0.05, 0.15, 0.3, 0.25, 0.15, 0.1])


def leash(state: State, numbers: Numbers) -> None:
    """The closed form, and what the policy in training has reached."""
    beta, rewards = 10 ** state["power"], real(state["r"])
    goal = (REFERENCE.log() + rewards / beta).softmax(-1)
    p = real(numbers["p"])
    kl = (p * (p / REFERENCE).log()).sum()
    same(numbers["goal"], goal.tolist())
    same(numbers["kl"], float(kl))
    same(numbers["reached"], float(p @ rewards - beta * kl))
    same(numbers["best"], beta * float((REFERENCE.log() + rewards / beta).logsumexp(-1)))
    same(numbers["apart"], float((p * (p / goal).log()).sum()))
    assert len(numbers["curve"]) == state["steps"] + 1
    assert numbers["reached"] <= numbers["best"] + 1e-9


def update(state: State, batch: Numbers) -> None:
    """One update of an engine: advantages, and the gradient by the logits, from the loss itself."""
    words, beta = torch.tensor(batch["words"]), 10 ** state["power"]
    theta = real(batch["theta"]).requires_grad_()
    new = theta.log_softmax(-1)[words][:, None]
    old = real(batch["old"])[words][:, None]
    reference = REFERENCE.log()[words][:, None]
    rewards = real(state["r"])[words]
    in_loss = state["engine"] == "grpo_loss"
    if not in_loss:
        rewards = rewards - beta * (old - reference)[:, 0]
    A = {
        "reinforce": lambda: rewards[:, None],
        "ppo": lambda: (rewards - batch["value"])[:, None],
        "rloo": lambda: leave_one_out_advantages(rewards, 8),
        "grpo": lambda: group_advantages(rewards, 8),
        "grpo_loss": lambda: group_advantages(rewards, 8),
    }[state["engine"]]()
    if state["engine"] in ("reinforce", "rloo"):
        loss = policy_gradient(new, A)
    else:
        loss = clipped_surrogate(new, old, A, 0.2, 0.2)
    if in_loss:
        loss = loss + beta * k3(new, reference)
    same(batch["advantages"], A[:, 0].tolist())
    same(batch["gradient"], (-slope(loss.mean(), theta)).tolist())


ANSWERS = real(list(itertools.product(range(7), repeat=3)))
PEAKS, WORTH, RATES = real([2, 1, 3]), real([0.35, 0.25, 0.4]), real([0.8, 0.5, 1.0])


def proxy(state: State, numbers: Numbers) -> None:
    """The fit is a minimum of the Bradley-Terry loss, and the policy is the closed form."""
    gold = (WORTH * (1 - ((ANSWERS - PEAKS) / PEAKS).square())).sum(1)
    poisson = (ANSWERS * RATES.log() - torch.lgamma(ANSWERS + 1)).sum(1)
    base = poisson.softmax(-1)
    features = torch.stack([ANSWERS / 6, (ANSWERS / 6).square()], 2).flatten(1)
    weights = real(numbers["weights"]).requires_grad_()
    chosen, rejected = torch.tensor(numbers["labels"]).T
    scores = features @ weights
    loss = len(chosen) * bradley_terry_loss(scores[chosen], scores[rejected])
    same(slope(loss + 0.3 / 2 * weights.square().sum(), weights).tolist(), [0.0] * 6)
    mean = base @ scores
    normal = ((scores - mean) / (base @ (scores - mean).square()).sqrt()).detach()
    policy = (base.log() + normal / 10 ** (1.2 - 3 * state["pressure"])).softmax(-1)
    same(numbers["gold"], float(policy @ gold))
    same(numbers["proxy"], float(policy @ normal))
    same(numbers["kl"], float((policy * (policy.clamp(min=1e-300) / base).log()).sum()))
    same(numbers["counts"], (policy @ ANSWERS).tolist())
    assert len(chosen) == numbers["pairs"] == round(10 ** state["labels"])


def reducers(state: State, numbers: Numbers) -> None:
    """Minus the gradient of six losses by the log-probability of a token."""
    lengths = torch.tensor(state["lengths"])
    mask = torch.arange(32) < lengths[:, None]
    rewards = real([float(right) for right in state["right"]])
    old = torch.full((4, 32), -1.0, dtype=torch.float64)
    new = (old + math.log(state["ratio"])).requires_grad_()
    A = group_advantages(rewards, 4)
    centred = group_advantages(rewards, 4, scale="none")
    clipped = clipped_surrogate
    losses = {
        "grpo": sequence_mean(clipped(new, old, A, 0.2, 0.2), mask),
        "dapo": token_mean(clipped(new, old, A, 0.2, 0.28), mask),
        "dr_grpo": constant_length_mean(clipped(new, old, centred, 0.2, 0.2), mask, 32),
        "rloo": sequence_sum(policy_gradient(new, leave_one_out_advantages(rewards, 4)), mask),
        "gspo": sequence_mean(gspo(new, old, A, mask, 3e-4, 4e-4), mask),
        "cispo": token_mean(cispo(new, old, A, 4.0), mask),
    }
    assert numbers["table"].keys() == losses.keys()
    for name, loss in losses.items():
        weights = -slope(loss, new)
        same(numbers["table"][name]["weights"], weights[:, 0].tolist())
        assert bool((weights == torch.where(mask, weights[:, :1], 0.0)).all())


TRUTHS: dict[str, Callable[[State, Numbers], None]] = {
    "policy_gradient": three_words,
    "clip": one_token,
    "gae": recorded_answer,
    "leash": leash,
    "proxy": proxy,
    "reducers": reducers,
}


FOLDER = explorables.FOLDER

# States beside the one that each starts with, as changes to it.
STATES: dict[str, list[dict[str, Any]]] = {
    "policy_gradient": [{}, {"p": [0.7, 0.1, 0.2], "great": -1, "baseline": 1.5, "samples": 7}],
    "clip": [
        {}, {"ratio": 0.5}, {"ratio": 3.4, "advantage": -1.3}, {"ratio": 0.4, "advantage": -2},
        {"ratio": 1.15, "old": 0.8, "delta": 0.1}, {"ratio": 2.1, "high": 0.9, "low": 0.1},
    ],
    "gae": [
        {}, {"lambda": 0, "gamma": 0.9}, {"answer": "kind", "lambda": 1, "chosen": 5},
        {"answer": "critic", "score": 2, "lambda": 0.5, "gamma": 0.7, "chosen": 2},
    ],
    "leash": [{}, {"power": -1, "steps": 30}, {"r": [0, 0, 1, 1.5, -0.5, 0.2], "engine": "ppo"}],
    "proxy": [{}, {"labels": 1, "pressure": 1}, {"labels": 3.5, "noise": 0.6, "pressure": 0.2}],
    "reducers": [
        {}, {"ratio": 1.25}, {"ratio": 0.7, "lengths": [1, 32, 5, 9]}, {"right": [True] * 4},
        {"right": [False, True, True, True], "ratio": 1.0003},
    ],
}  # fmt: skip


def of_explorable(name: str, expression: str) -> Any:
    """The value of an expression in which E is the explorable and X what they share."""
    parts = [(FOLDER / f"{part}.js").read_text("utf-8") for part in ("common", name)]
    parts += [f"const X = explorables, E = X[{json.dumps(name)}];", f"say({expression});"]
    return in_node("\n".join(parts))


@pytest.mark.parametrize("name", explorables.names())
def test_the_numbers_are_those_of_the_equations(name: str) -> None:
    changes = json.dumps(STATES[name])
    extra = "labels: E.compare(n.pairs, s.noise, s.seed)" if name == "proxy" else ""
    rows = of_explorable(
        name,
        f"{changes}.map((c) => ({{ ...E.start, ...c }}))"
        f".map((s) => {{ const n = E.compute(s); return [s, {{ ...n, {extra} }}]; }})",
    )
    assert len(rows) == len(STATES[name]) > 1
    for state, numbers in rows:
        TRUTHS[name](state, numbers)


@pytest.mark.parametrize("engine", ["reinforce", "rloo", "ppo", "grpo", "grpo_loss"])
def test_an_update_in_the_browser_is_the_gradient_of_the_loss(engine: str) -> None:
    """Away from the start, and with a policy that has moved since it sampled."""
    state = {
        "engine": engine,
        "power": -0.6,
        "batch": 3,
        "seed": 2,
        "r": [1, 0.8, 0.5, 0.3, 0.1, 0],
    }
    batch = of_explorable(
        "leash",
        f"(() => {{ const s = {json.dumps(state)}; const run = E.train(s, 20);"
        "const first = E.step(run); const now = E.logProbs(run.theta.map((v, i) => v + 0.3 * (i % 3)));"
        "run.value = first.value; const p = E.pushes(run, first.words, first.old, now);"
        "return { ...first, ...p, theta: now, gradient: E.ascent(first.words, p.weights, now) }; })()",
    )
    update(state, batch)
