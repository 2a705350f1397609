"""All kinds of function that can be checked, in the order in which a signature is tried.

`takes` lists the arguments: "?" behind one that a function may lack, "=0.2" behind one that is 0.2
where it is lacking.
"""

from __future__ import annotations

from functools import partial

from .batches import groups, pairs, sampled, scored
from .checking import Kind
from .enumeration import of_a_kl, of_a_policy_loss, of_a_preference_loss, of_advantages

kl = partial(
    Kind,
    takes="log_probs ref_log_probs mask? length?",
    trained=("log_probs",),
    loss=True,
    exactly=of_a_kl,
)
constant = partial(Kind, constant=True)
ALL = (
    Kind(
        "policy_loss",
        "log_probs old_log_probs? advantages clip_low=0.2 clip_high=0.2 mask? length?",
        trained=("log_probs",),
        loss=True,
        exactly=of_a_policy_loss,
    ),
    Kind(
        "value_loss",
        "values old_values? returns clip? mask? length?",
        trained=("values",),
        loss=True,
    ),
    Kind(
        "preference_loss",
        "policy_chosen policy_rejected ref_chosen ref_rejected beta",
        batch_of=pairs,
        trained=("policy_chosen", "policy_rejected"),
        loss=True,
        exactly=of_a_preference_loss,
    ),
    Kind("reducer", "loss mask length?", trained=("loss",), loss=True, rows=False),
    kl("kl"),
    kl("kl_loss"),
    kl("kl_reward"),
    constant("token_rewards", "scores log_probs ref_log_probs mask kl_coef"),
    Kind(
        "advantages",
        "rewards group_size",
        batch_of=groups,
        rows=False,
        tolerance=1e-3,
        exactly=of_advantages,
    ),
    constant("gae", "rewards values mask gamma lam"),
    constant("returns", "rewards values mask gamma lam"),
    Kind("whiten", "x mask", rows=False, tolerance=1e-3),
    constant("correction", "old_log_probs sampler_log_probs cap? low? mask?"),
    Kind(
        "log_probs",
        "logits tokens mask? temperature=1.0",
        batch_of=scored,
        trained=("logits",),
        loss=True,
        rows=False,
    ),
    Kind("response_mask", "tokens eos_id", batch_of=sampled),
)
KINDS = {kind.name: kind for kind in ALL}
