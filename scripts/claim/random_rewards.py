"""Random rewards work by the clip: coins move a policy to what its start already prefers."""

from __future__ import annotations

from collections.abc import Mapping

from claim.figures import seeds
from claim.rules import Claim, Control, Effect, Rule, Run, Weakest, gain, gap, instead

LEAST = 0.1  # nats an answer


def sharpened(runs: Mapping[str, Run]) -> float:
    """How much likelier the start finds what the policy says than what it says itself."""
    return runs["coins-clip"]["preference"] - runs["coins-clip"]["preference_before"]


def by_the_clip(runs: Mapping[str, Run]) -> float:
    """The same against the run without a clip."""
    return runs["coins-clip"]["preference"] - runs["coins-free"]["preference"]


def entropy(arm: str) -> Effect:
    """The change of a run's entropy, nats a token."""

    def effect(runs: Mapping[str, Run]) -> float:
        curve = runs[arm]["curve"]["entropy"]
        return float(sum(curve[-5:]) / 5 - sum(curve[:5]) / 5)

    return effect


CLAIM = Claim(
    title="Random rewards work by the clip",
    arms=("coins-clip", "coins-free", "coins-once"),
    rule=Weakest(
        (
            Rule("nats an answer, clip less start", LEAST, sharpened),
            Rule("nats an answer, clip less no clip", LEAST, by_the_clip),
        )
    ),
    control=Control(
        "one update a batch, where the clip cannot act", instead(coins_clip="coins-once")
    ),
    draw=seeds(
        {
            "start": ("coins-clip", lambda run: run["preference_before"]),
            "coins,\none update": ("coins-once", lambda run: run["preference"]),
            "coins,\nclip": ("coins-clip", lambda run: run["preference"]),
            "coins,\nno clip": ("coins-free", lambda run: run["preference"]),
        },
        ylabel="log-probability under the start,\nnats an answer",
    ),
    also={
        "nats an answer, clip less start": sharpened,
        "nats an answer, clip less no clip": by_the_clip,
        "accuracy, clip less start": gain("coins-clip"),
        "accuracy, no clip less start": gain("coins-free"),
        "accuracy, clip less no clip": gap("coins-clip", "coins-free"),
        "share of worked steps, clip less start": gain("coins-clip", "steps"),
        "entropy, end less begin, clip, nats a token": entropy("coins-clip"),
        "entropy, end less begin, no clip, nats a token": entropy("coins-free"),
    },
)
