"""The KL limit of a run: the last policy that was inside it, to go back to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpt.model import GPT
from harness.training_state import changing_state, load_changing_state
from rl.run.metrics import exceeds


class KLLimit:
    """The policy as it last was inside the KL limit, so that the update that leaves it is undone.

    A step measures the KL of the policy that sampled before it updates it: that policy is kept if it was
    inside, over the one kept before, so that one set of weights is enough. The KL is that from the start,
    also where the reference moves. It has a limit per response, and one per token, which answers that
    shrink reach first.
    """

    def __init__(self, policy: GPT, limit: float, per_token: float = math.inf) -> None:
        self.policy, self.limit, self.per_token = policy, limit, per_token
        # The start of the run, 0 nats from itself.
        self.inside = {name: x.clone() for name, x in changing_state(policy).items()}
        self.steps = 0  # after how many steps they were the policy's
        # Of the newest measurement: after how many steps, how far, and whether that was outside.
        self.measured, self.kl, self.left = -1, 0.0, False

    def before_update(self, kl: float, per_token: float, steps: int) -> None:
        """Keep the policy that has sampled, after `steps` steps, if it is inside; a KL of NaN is not."""
        self.measured, self.kl, self.left = steps, kl, self.is_outside(kl, per_token)
        if not self.left:
            for name, tensor in changing_state(self.policy).items():
                self.inside[name].copy_(tensor)
            self.steps = steps

    def after_step(self) -> dict[str, int]:
        """Go back if the policy that sampled was outside; `kept_step`, for the log, empty if inside."""
        return self._undo() if self.left else {}

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
        return {"inside": self.inside, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """After the policy, which is restored first."""
        device = self.policy.device
        self.inside = {name: tensor.to(device) for name, tensor in state["inside"].items()}
        self.steps = state["steps"]
