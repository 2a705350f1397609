"""A rubric as the reward: items with weights, each a rule in Python or a question to a judge.

    python -m rl.grpo_engine --data reviews --reward docs/examples/rubric_reward.py:review
    JUDGE=runs/smollm2 python -m rl.grpo_engine --model mine --reward docs/examples/rubric_reward.py:helpful

The reward is the share of the weights that is kept, sum_k w_k c_k / sum_k w_k, from 0 to 1: "explicit
aggregation", equation 1 of Rubrics as Rewards (Gunjal et al. 2025, arXiv:2507.17746). A rule says 0 or
1, and a judge (judge_reward.py beside this file) the probability of Yes against No.
"""

from collections.abc import Callable
from typing import NamedTuple

from judge_reward import judge, question_of


class Item(NamedTuple):
    weight: float
    kept: str | Callable[..., bool]  # a question, or a rule (response, ended, meta of the row)


PRAISE = "great lovely superb perfect nice pleasant solid charming splendid neat".split()
REVIEW = (
    Item(3, lambda response, ended, meta: meta["item"] in response),
    Item(3, lambda response, ended, meta: any(word in response for word in PRAISE)),
    Item(2, lambda response, ended, meta: meta["name"] in response),
    Item(1, lambda response, ended, meta: ended and response.endswith((".", "!"))),
)
HELPFUL = (
    Item(3, "Does the answer do what the request asks for?"),
    Item(2, "Is everything in the answer true?"),
    Item(1, lambda response, ended, meta: ended and len(response.split()) <= 40),
)


def share_kept(items, prompt, response, record, ended):
    """The share of the weights of the items that an answer keeps."""
    kept = [
        item.kept(response, ended, record.meta) if callable(item.kept)
        else float(judge().yes(question_of(prompt, record), response, item.kept).sigmoid())
        for item in items
    ]  # fmt: skip
    weights = [item.weight for item in items]
    return sum(w * c for w, c in zip(weights, kept, strict=True)) / sum(weights)


def review(prompt, response, record, ended):
    return share_kept(REVIEW, prompt, response, record, ended)


def helpful(prompt, response, record, ended):
    return share_kept(HELPFUL, prompt, response, record, ended)
