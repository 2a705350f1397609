"""The claims: what their rules say of runs whose answer is known, and that the page is the recording's."""

from __future__ import annotations

import json
from pathlib import Path

import claims
import pytest
from claim.rules import FAILED, HELD, UNTOLD, Rule, Weakest

NOISE = (-0.03, 0.01, 0.02, -0.01, 0.03, -0.02)


def made_up(mean, seeds=6):
    return {"arm": {seed: {"x": mean + NOISE[seed]} for seed in range(seeds)}}


RULE = Rule("x", 0.1, lambda runs: runs["arm"]["x"])


@pytest.mark.parametrize(
    "mean,seeds,word", [(0.2, 6, HELD), (0.0, 6, FAILED), (0.11, 6, UNTOLD), (0.2, 4, UNTOLD)]
)
def test_a_rule_says_all_three(mean, seeds, word):
    """Above the least that counts, below it, within the noise of it, and of too few seeds."""
    assert RULE(made_up(mean, seeds)).word == word


def test_several_rules_hold_together_and_one_that_fails_is_one_of_several():
    """By hand: the second rule asks for 0.05 less, so the first decides; failing, its p is doubled."""
    easier = Rule("y", 0.05, RULE.effect)
    both = Weakest((RULE, easier))
    held, failed = both(made_up(0.2)), both(made_up(0.0))
    assert (held.unit, held.word, held.p) == ("x", HELD, RULE(made_up(0.2)).p)
    assert (failed.unit, failed.word) == ("x", FAILED)
    assert failed.p == pytest.approx(2 * RULE(made_up(0.0)).p)


def leaves(value, place=""):
    """What stands in nested objects: a floating-point number or anything else, by its place."""
    if not isinstance(value, dict):
        return {place: value}
    return {
        k: v for key, inner in value.items() for k, v in leaves(inner, f"{place}/{key}").items()
    }


def test_the_page_is_that_of_the_recording(monkeypatch):
    """Verdicts follow from the recorded runs, the page's tables from the verdicts; all ten are there.

    The last bits are the processor's. What is recorded with four digits may stand half-way between two
    such numbers, so these are compared before they are rounded.
    """
    recorded = json.loads((claims.DOCS / "claims.json").read_text("utf-8"))["claims"]
    text = (claims.DOCS / "claims.md").read_text("utf-8")
    for record in recorded.values():
        assert all(record.pop(words) in text for words in ("source", "says", "counts"))
    assert len(recorded) == 10 and claims.with_tables(text, recorded) == text
    assert all(f"<!-- {name} -->" in text for name in ("verdicts", *recorded))
    monkeypatch.setattr(claims, "rounded", lambda value: value)
    results = claims.gathered(Path("nowhere"), claims.DOCS)
    found, wanted = leaves(claims.judged(results, claims.CLAIMS)), leaves(recorded)
    assert found.keys() == wanted.keys()
    half_a_digit = 0.5001 * 10 ** (1 - claims.DIGITS)
    for place, value in wanted.items():
        if isinstance(value, float):
            near = 1e-9 if "/also/" in place else half_a_digit
            assert found[place] == pytest.approx(value, rel=near), place
        else:
            assert found[place] == value, place
