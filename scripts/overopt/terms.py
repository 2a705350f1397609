"""Which term of the gold reward fell: an exact split of a change of gold between two measurements.

gold = (0.3 sent + 0.3 topic + 0.25 polite + 0.15 form) * (0.3 + 0.7 qual)     (data/reviews.py)

Per answer that is content * care. The change of a product is
    change(content) * mean(care) + mean(content) * change(care),
each mean over the two moments, so the parts below add up to the change exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

from studies.bootstrap import Array

WEIGHTS = {"sent": 0.3, "topic": 0.3, "polite": 0.25, "form": 0.15}
BASE, CARE = 0.3, 0.7


def change_by_term(before: Mapping[str, Array], after: Mapping[str, Array]) -> dict[str, float]:
    """How much of the mean change of gold each term carries; terms are (P,), answers to P prompts."""
    contents = [sum(w * now[name] for name, w in WEIGHTS.items()) for now in (before, after)]
    cares = [BASE + CARE * now["qual"] for now in (before, after)]
    care, content = (cares[0] + cares[1]) / 2, (contents[0] + contents[1]) / 2
    parts = {
        name: float((weight * (after[name] - before[name]) * care).mean())
        for name, weight in WEIGHTS.items()
    }
    return parts | {"qual": float((CARE * (after["qual"] - before["qual"]) * content).mean())}
