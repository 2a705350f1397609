"""All kinds of function that can be checked, in the order in which a signature is tried.

Of the arguments "!" marks one that a gradient must reach, "?" one that a function may lack, and "=0.2"
one that is 0.2 where it is lacking, "=clip_low" one that is what clip_low is.
"""

from __future__ import annotations

from .batches import groups, pairs, sampled, scored
from .checking import Kind

PAIRS = "policy_chosen! policy_rejected! ref_chosen ref_rejected beta"
KL = "log_probs! ref_log_probs mask? length?"
ALL = (
    Kind(
        "policy_loss",
        "log_probs! old_log_probs? advantages clip_low=0.2 clip_high=clip_low mask? length?",
    ),
    Kind("value_loss", "values! old_values? returns clip? mask? length?"),
    Kind("preference_loss", PAIRS, batch_of=pairs),
    Kind("reducer", "loss! mask length?", rows=False),
    *(Kind(name, KL) for name in ("kl", "kl_loss", "kl_reward")),
    Kind("token_rewards", "scores log_probs ref_log_probs mask kl_coef", constant=True),
    Kind("advantages", "rewards group_size", batch_of=groups, rows=False, tolerance=1e-3),
    Kind("gae", "rewards values mask gamma lam", constant=True),
    Kind("returns", "rewards values mask gamma lam", constant=True),
    Kind("whiten", "x mask", rows=False, tolerance=1e-3),
    Kind("correction", "old_log_probs sampler_log_probs cap? low? mask?", constant=True),
    Kind("log_probs", "logits! tokens mask? temperature=1.0", batch_of=scored, rows=False),
    Kind("response_mask", "tokens eos_id", batch_of=sampled),
)
KINDS = {kind.name: kind for kind in ALL}
