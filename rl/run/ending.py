"""The last lines of a run: what rose or fell, what it cost, what to distrust, and what to do next."""

from __future__ import annotations

import shlex
from pathlib import Path

from data.sources import default_folder
from harness.files import display_path, read_object
from rl.rewards.reward import components
from rl.run.config import RunFlags
from rl.run.evaluation import Comparison
from rl.run.task import Task

CUT_OFF, SHORTER = 0.1, 0.5  # shares from which cut off, or shorter, answers are named


def ending(found: Comparison, config: RunFlags, task: Task, folder: Path) -> list[str]:
    """Four sentences on a finished run, the last one with commands to copy."""
    doubts = distrust(found, config, task)
    return [rose(found, task), cost(found), doubts, *commands(config, folder)]


def rose(found: Comparison, task: Task) -> str:
    """The gain of the reward, and of the true objective where that is known and another one."""
    words = {"reward": "the reward"}
    if task.reward_fn is not task.gold:
        unpaid = task.gold not in getattr(task.reward_fn, "paid", ())
        words["gold"] = found.gold_name + ", which nothing paid for," * unpaid
    said = []
    for name, what in words.items():
        if change := found.change(name):
            mean, low, high = change
            told = "" if low > 0 or high < 0 else ", which could be chance"
            said.append(f"{what} by {mean:+.3f} (95% interval {low:+.3f} to {high:+.3f}{told})")
    count = f", on {len(found.before.records)} test prompts, paired"
    return "what rose or fell: " + ("; ".join(said) + count if said else "no reward was measured")


def cost(found: Comparison) -> str:
    """How far the policy went for it, and what became of its answers."""
    before, after = found.before.summary(), found.after.summary()
    parts = []
    if found.after.kl is not None:
        per_token = float(found.after.kl.sum() / found.after.lengths.sum())
        parts.append(f"KL {after['kl']:.2f} nats an answer, {per_token:.3f} a token")
    for name, what in (("response_length", "answers of {} tokens"), ("eos_rate", "{} ended")):
        one, two = (f"{numbers[name]:.2f}" for numbers in (after, before))
        parts.append(f"{what.format(one)} (before: {two})")
    return f"what it cost: {'; '.join(parts)}"


def distrust(found: Comparison, config: RunFlags, task: Task) -> str:
    """The number that training has paid for, and what else makes it say less than it seems to."""
    before, after, made = found.before.summary(), found.after.summary(), components(task.reward_fn)
    doubts = ["the reward: training paid for it, so it rises also where answers only fool it"]
    if task.reward_fn is None:
        doubts = ["the loss: no reward was measured"]
    elif task.reward_fn is task.gold or made.check is not None:
        doubts = ["little: a rule pays, which answers can meet by chance but not persuade"]
    if made.reward_models:
        usual = default_folder("reward_model", config.data, config.model_name)
        path = (config.first_reward_model or usual) / "report.json"
        judge = read_object(path) if path.exists() else {}
        if "accuracy_interval" in judge:
            low, high = judge["accuracy_interval"]
            accuracy = f"{judge['accuracy']:.2f} of held-out pairs ({low:.2f} to {high:.2f})"
            doubts.append(f"the reward model orders {accuracy}")
        if rule := judge.get("followed_rule"):
            doubts.append(f"it cannot be told from the rule that {rule['rule']} wins")
    if after["eos_rate"] < 1 - CUT_OFF:
        doubts.append(f"{1 - after['eos_rate']:.0%} of the answers were cut off")
    if after["response_length"] < SHORTER * before["response_length"]:
        doubts.append("answers are less than half as long, so KL per answer looks small")
    return f"what to distrust: {'; '.join(doubts)}"


def commands(config: RunFlags, folder: Path) -> list[str]:
    """Talk to it, compare it blind with its start, take it elsewhere."""
    start = config.model or default_folder("pretraining", config.data, config.preset)
    run, name = (shlex.quote(text) for text in (display_path(folder), folder.resolve().name))
    other = shlex.quote(display_path(start) if isinstance(start, Path) else start)
    return [
        "what to do next: read it, compare it blind with its start, take it elsewhere",
        f"    python -m rl.talk {run}",
        f"    python -m reward_model.annotate --model {run} --against {other} --out blind-{name}.jsonl",
        f"    python -m rl.export {run}",
    ]
