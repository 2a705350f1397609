"""docs/explorables by themselves, run by node: their numbers are those of the equations."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest
from course import explorables
from explorable_truths import TRUTHS, update

FOLDER = explorables.FOLDER
ENGINES = ("reinforce", "rloo", "ppo", "grpo")

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


def in_node(name: str, expression: str) -> Any:
    """The value of an expression in which E is the explorable and X what they share."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here to run the page's code")
    parts = [(FOLDER / f"{part}.js").read_text("utf-8") for part in ("common", name)]
    code = "\n".join(parts) + f"\nconst X = explorables, E = X[{json.dumps(name)}];\n"
    code += f"process.stdout.write(JSON.stringify({expression}));"
    done = subprocess.run([node, "-"], input=code, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", explorables.names())
def test_the_numbers_are_those_of_the_equations(name: str) -> None:
    changes = json.dumps(STATES[name])
    extra = "labels: E.compare(n.pairs, s.noise, s.seed)" if name == "proxy" else ""
    rows = in_node(
        name,
        f"{changes}.map((c) => ({{ ...E.start, ...c }}))"
        f".map((s) => {{ const n = E.compute(s); return [s, {{ ...n, {extra} }}]; }})",
    )
    assert len(rows) == len(STATES[name]) > 1
    for state, numbers in rows:
        TRUTHS[name](state, numbers)


@pytest.mark.parametrize("engine", [*ENGINES, "grpo_loss"])
def test_an_update_in_the_browser_is_the_gradient_of_the_loss(engine: str) -> None:
    """Away from the start, and with a policy that has moved since it sampled."""
    state = {
        "engine": engine,
        "power": -0.6,
        "batch": 3,
        "seed": 2,
        "r": [1, 0.8, 0.5, 0.3, 0.1, 0],
    }
    batch = in_node(
        "leash",
        f"(() => {{ const s = {json.dumps(state)}; const run = E.train(s, 20);"
        "const first = E.step(run); const now = E.logProbs(run.theta.map((v, i) => v + 0.3 * (i % 3)));"
        "run.value = first.value; const p = E.pushes(run, first.words, first.old, now);"
        "return { ...first, ...p, theta: now, gradient: E.ascent(first.words, p.weights, now) }; })()",
    )
    update(state, batch)
