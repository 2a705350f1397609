"""Reinforcement learning from preferences: rollouts, advantages, losses and one file per engine."""

import importlib.util
from pathlib import Path

# `python -m` looks into the working folder first, where `data` or `gpt` may be somebody's own.
for _name in ("harness", "data", "gpt", "reward_model"):
    _found = importlib.util.find_spec(_name)
    _ours = Path(__file__).resolve().parents[1] / _name / "__init__.py"
    if _found is None or Path(_found.origin or "").resolve() != _ours:
        raise ImportError(
            f"another package {_name!r} hides Glassbox's {_ours}: start Python from another folder, or "
            "rename that one"
        )

import harness as harness  # noqa: E402  (the right one, before PyTorch is loaded)
