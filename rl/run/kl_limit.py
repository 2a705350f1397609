"""The KL limit of a run: the last policy that was inside it, to go back to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gpt.model import GPT
from harness.training_state import changing_state, load_changing_state
from rl.run.metrics import exceeds


class KLLimit:
    """The policy as it last was inside the KL limit, so that the update that leaves it is undone.

    A step measures the KL of the policy that sampled, before its update. So two sets of weights are
    kept: those measured last and found inside, and those that the next step will measure. The KL is that
    from the start, also where the reference moves: `kl_from_start` in the row, or else `kl`. It has a
    limit per response, and one per token, which answers that shrink reach first.
    """

    def __init__(self, policy: GPT, limit: float, per_token: float = math.inf) -> None:
        self.policy, self.limit, self.per_token = policy, limit, per_token
        self.inside = self.newest = self._weights()  # the start of the run, 0 nats from itself
        self.steps = self.newest_steps = 0  # after how many steps they were the policy's

    def _weights(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in changing_state(self.policy).items()}

    def after_step(self, row: Mapping[str, float], steps: int) -> dict[str, int]:
        """After step number `steps`: go back if the policy that sampled it was outside; a KL of NaN is.

        Returns `kept_step`, for the log; empty if it was inside, or if the row has no KL.
        """
        kl = row.get("kl_from_start", row.get("kl"))
        if kl is None:
            return {}
        moving = "kl_from_start" in row
        if self.is_outside(kl, kl / row["response_length"] if moving else row["kl_per_token"]):
            return self._undo()
        self.inside, self.steps = self.newest, self.newest_steps
        self.newest, self.newest_steps = self._weights(), steps
        return {}

    def at_end(self, row: Mapping[str, float]) -> dict[str, int]:
        """At the last step: go back if the validation has found the policy outside; as `after_step`."""
        found = (row.get(f"validation/{name}", 0.0) for name in ("kl", "kl_per_token"))
        return self._undo() if self.is_outside(*found) else {}

    def is_outside(self, kl: float, per_token: float) -> bool:
        """Whether one of the two is above its limit."""
        return exceeds(kl, self.limit) or exceeds(per_token, self.per_token)

    def _undo(self) -> dict[str, int]:
        """Restore the last policy inside the limit; returns its step, for the log."""
        load_changing_state(self.policy, self.inside)
        return {"kept_step": self.steps}

    def state_dict(self) -> dict[str, Any]:
        return {"inside": self.inside, "steps": self.steps, "newest_steps": self.newest_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """After the policy, which is restored first."""
        device = self.policy.device
        self.inside = {name: tensor.to(device) for name, tensor in state["inside"].items()}
        self.steps, self.newest_steps = state["steps"], state["newest_steps"]
        self.newest = self._weights()
