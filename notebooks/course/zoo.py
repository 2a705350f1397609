"""The bug zoo: what each planted bug is, how it shows, and the recorded runs to look at.

A bug is a wrong line as people write it. scripts/bug_zoo.py plants them in small runs; it is the game
for a terminal. What is recorded of such runs stands in tests/rl/training/recordings, and this module
reads it for the pages.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDINGS = REPOSITORY / "tests" / "rl" / "training" / "recordings"
CHOICES = 6
NUMBERS = (
    "reward", "reward_std", "kl", "entropy", "response_length", "eos_rate", "grad_norm", "loss",
    "ratio_error_at_start", "approx_kl", "explained_variance",
)  # fmt: skip


@dataclass(frozen=True)
class Story:
    """One bug: in words, the right line and the file it stands in, the wrong one, and what it does."""

    words: str
    engine: str  # whose run it is planted in
    path: str
    right: str  # occurs in that file
    wrong: str
    why: str  # what the wrong line computes
    shows: str  # how that can be seen from outside, or why it cannot


LOSSES, ADVANTAGES = "rl/equations/losses.py", "rl/equations/advantages.py"
GRPO, CRITIC = "rl/grpo_engine.py", "rl/training/actor_critic.py"

STORIES: dict[str, Story] = {
    "loss_sign": Story(
        "loss sign flipped", "grpo", LOSSES,
        "return -torch.minimum(ratio * advantages, clipped * advantages)",
        "return torch.minimum(ratio * advantages, clipped * advantages)",
        "The optimizer descends. Without the minus it makes bad answers likelier.",
        "The reward falls from the first steps on. Nothing else in the list makes it fall so early.",
    ),
    "global_baseline": Story(
        "baseline over all prompts instead of the group", "grpo", ADVANTAGES,
        "centred = rewards - rewards.mean(1, keepdim=True)",
        "centred = rewards - rewards.mean()",
        "An easy prompt's bad answer now has a positive advantage, a hard prompt's good one a negative.",
        "Hardly at all: it is another baseline, with more noise, and it learns. Only a group worked out "
        "by hand tells.",
    ),
    "token_std": Story(
        "std computed per token", "grpo", ADVANTAGES,
        "return centred / (rewards.std(1, keepdim=True, correction=int(unbiased)) + eps)",
        "return centred / rewards.repeat_interleave(lengths).std()",
        "A long answer counts as often as it has tokens, so the scale of a group depends on lengths.",
        "Hardly at all: advantages keep their sign and their order, only their size moves a little.",
    ),
    "late_mask": Story(
        "response mask one column late", "grpo", "data/collate.py",
        "before = is_eos.cumsum(1) - is_eos.long()  # EOS tokens strictly before column t",
        "before = is_eos.cumsum(1).roll(1, dims=1)",
        "The first token is left out and one token of padding is trained on.",
        "The ratio is not 1 before the first update, and the KL is not 0 at step 1: sampler and scorer "
        "speak of different tokens.",
    ),
    "no_eos": Story(
        "EOS left out of the mask", "grpo", "data/collate.py",
        "return mask, (is_eos & mask).any(1)",
        "return mask & ~is_eos, has_eos",
        "No gradient reaches the choice to stop, so the policy never learns when to end.",
        "Answers count as cut off although they are shorter than the limit. No sampler does that.",
    ),
    "prompt_tokens": Story(
        "prompt tokens trained on", "grpo", "data/collate.py",
        "columns = self.prompt_lengths[:, None] + steps[None, :]",
        "columns = steps[None, :].expand(len(self), -1)",
        "The prompt's tokens share the advantage of an answer that they were given for.",
        "Hardly at all: every number moves a little, none in a way that is impossible.",
    ),
    "kl_sign": Story(
        "KL sign flipped in the reward", "rloo", "rl/equations/token_rewards.py",
        "return -kl_coef * kl_t + at_last_token(scores, response_mask)",
        "return kl_coef * kl_t + at_last_token(scores, response_mask)",
        "Every nat of distance from the start is now paid for.",
        "The KL grows without end, and soon the policy earns more by distance than by its answers.",
    ),
    "kl_per_response": Story(
        "KL per response used with a per-token coefficient", "grpo", GRPO,
        'kl_penalty = {"k3": k3, "k2": k2}[config.kl_estimator]',
        "kl_penalty = k3(...).sum(1, keepdim=True)",
        "Each token carries its whole response's KL: the penalty is as many times too strong as there "
        "are tokens.",
        "The loss is far from kl_coef * kl_k3 / response_length, which is all that is left when "
        "advantages average to 0.",
    ),
    "old_is_new": Story(
        "old log-probs recomputed after the first update (ratio always 1)", "grpo", GRPO,
        "old_log_probs = old_policy_log_probs(policy, rollout, config)  # (N, T)",
        "old_log_probs = scores.log_probs.detach()  # inside the update",
        "The ratio is 1 in every update, so the clip never acts and nothing limits the second pass.",
        "approx_kl stays exactly 0 although each batch is used several times.",
    ),
    "plus_baseline": Story(
        "advantages with the baseline's sign flipped", "grpo", ADVANTAGES,
        "centred = rewards - rewards.mean(1, keepdim=True)",
        "centred = rewards + rewards.mean(1, keepdim=True)",
        "All advantages are positive: every answer is made likelier, good or bad.",
        "Advantages do not average to 0, so the loss is far from 0. Early on the reward follows noise.",
    ),
    "no_temperature": Story(
        "temperature missing in the scorer", "grpo", GRPO,
        "scores = token_scores(policy, batch, config.temperature)",
        "scores = token_scores(policy, batch)",
        "At temperature 0.7 the sampler draws from another distribution than the one that is scored.",
        "The ratio is not 1 before the first update. At temperature 1 nobody would notice.",
    ),
    "dropout": Story(
        "dropout left on", "grpo", GRPO,
        "policy.eval()  # dropout stays off: old and new log-probs must describe the same function",
        "policy.train()",
        "Each forward pass drops other units, so old and new log-probs belong to different functions.",
        "The ratio is not 1 before the first update. With dropout 0 nobody would notice.",
    ),
    "whitened_rows": Story(
        "whitening per response", "ppo", CRITIC,
        "return Targets(old_log_probs, old_values, whiten(advantages, mask), returns, ref_log_probs)",
        "whiten(advantages[i], mask[i]) for each response i",
        "Each response's advantages average to 0, so a good response is praised no more than a bad one.",
        "The reward stays flat although responses differ in it and gradients flow.",
    ),
    "gae_beyond": Story(
        "GAE bootstrapping across the EOS", "ppo", ADVANTAGES,
        "V = A if bootstrap_values is None else bootstrap_values  # of the state to come",
        "V = values at the last token",
        "The critic's opinion of the end itself is added to every return, as if the text went on.",
        "Hardly at all: the critic learns to agree with itself, and learning is only slower.",
    ),
    "critic_rests": Story(
        "value loss without the critic's optimizer stepping", "ppo", CRITIC,
        "critic_norm = clip_and_step(self.critic_optimizer, self.value_model.parameters(), max_norm)",
        "critic_norm = the norm alone",
        "The critic keeps its first guess. Advantages then have no baseline worth the name.",
        "explained_variance never leaves 0.",
    ),
    "row_above": Story(
        "reward of row i given to row i+1", "grpo", GRPO,
        "rewards, non_finite = checked_rewards(reward_fn, rollout, config.non_finite_reward)",
        "rewards = rewards.roll(1)",
        "Each answer is praised for its neighbour's quality: for the gradient the reward is noise.",
        "The reward stays flat although answers differ in it and gradients flow.",
    ),
    "reference_follows": Story(
        "reference updated every step", "grpo", GRPO,
        "ref_log_probs = rollout_log_probs(reference, rollout, config)  # (N, T)",
        "ref_log_probs = rollout_log_probs(policy, rollout, config)",
        "The penalty measures the distance to yesterday's policy and holds nothing.",
        "kl stays at 0 while validation/kl, from the start of the run, grows.",
    ),
}  # fmt: skip


# A run is told to the reader by its number here, so that nothing beside it says what it is.
CASES = (
    "critic_rests", "reference_follows", "kl_per_response", "global_baseline", "row_above",
    "no_eos", "dropout", "plus_baseline", "gae_beyond", "old_is_new", "late_mask",
    "whitened_rows", "loss_sign", "prompt_tokens", "kl_sign", "token_std", "no_temperature",
)  # fmt: skip


def place(story: Story) -> str:
    """FILE:LINE of the right line."""
    lines = (REPOSITORY / story.path).read_text(encoding="utf-8").splitlines()
    number = next(i for i, line in enumerate(lines, start=1) if story.right in line)
    return f"{story.path}:{number}"


def choices(bug: str, seed: int = 0, count: int = CHOICES) -> list[str]:
    """Names to choose from: the bug, others of its engine first, in a random order."""
    rng = random.Random(f"{bug} {seed}")
    others = [name for name in STORIES if name != bug]
    rng.shuffle(others)
    others.sort(key=lambda name: STORIES[name].engine != STORIES[bug].engine)
    picked = [bug, *others[: count - 1]]
    rng.shuffle(picked)
    return picked


def reveal(bug: str) -> str:
    """What was wrong, how it shows, and the line."""
    story = STORIES[bug]
    return (
        f"{story.words}\n\n{story.why}\nHow it shows: {story.shows}\n\n"
        f"{place(story)}\n  right: {story.right}\n  wrong: {story.wrong}"
    )


# --- numbered cases ---------------------------------------------------------------------------------


def bug_of(number: int) -> str:
    """The bug of a numbered case; ValueError with the numbers that there are."""
    if number not in range(1, len(CASES) + 1):
        raise ValueError(f"there is no case {number!r}: the cases are 1 to {len(CASES)}")
    return CASES[number - 1]


def case(number: int) -> Recording:
    """The run of a numbered case."""
    return recording(bug_of(number))


def visit(number: int) -> None:
    """Print a case's numbers beside those of a healthy run, and what it could be."""
    bug = bug_of(number)
    engine = STORIES[bug].engine
    print(f"Case {number}: a run of {engine}\n{table(case(number).rows, control(engine).rows)}")
    print("\nWhich line is wrong?")
    for i, choice in enumerate(choices(bug, seed=number), start=1):
        print(f"  {i}  {STORIES[choice].words}")


def guess(number: int, choice: int | EllipsisType) -> None:
    """Print whether the choice, counted from 1, is right, and what the case is. Dots: nothing yet."""
    bug = bug_of(number)
    names = choices(bug, seed=number)
    if choice is ... or choice not in range(1, len(names) + 1):
        print(f"Case {number} waits for your guess: 1 to {len(names)}, in place of the dots.")
    elif names[choice - 1] == bug:
        print(f"Yes: {reveal(bug)}")
    else:
        print(f"No. That one looks like this: {STORIES[names[choice - 1]].shows}")
        print(f"\nThis run: {reveal(bug)}")


# --- recorded runs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recording:
    """The rows of a recorded run, its flags, and what its report.json said."""

    rows: Sequence[Mapping[str, Any]]
    flags: Mapping[str, Any]
    results: Mapping[str, Any]

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of one number."""
        points = [(row["step"], row[key]) for row in self.rows if key in row]
        return [step for step, _ in points], [value for _, value in points]


def recording(name: str) -> Recording:
    """A recorded run: a bug's name, or KIND/NAME such as healthy/letters_grpo."""
    kept = RECORDINGS / (f"{name}.json" if "/" in name else f"bugs/{name}.json")
    content = json.loads(kept.read_text(encoding="utf-8"))
    columns = content["columns"]
    rows = [
        {key: values[i] for key, values in columns.items() if values[i] is not None}
        for i in range(len(columns["step"]))
    ]
    return Recording(rows, content["flags"], content.get("results", {}))


def control(engine: str) -> Recording:
    """The same small run without a bug."""
    return recording(f"healthy/letters_{engine}")


def table(rows: Sequence[Mapping[str, Any]], beside: Sequence[Mapping[str, Any]]) -> str:
    """The numbers of a run at its start and its end, beside those of a run without a bug."""
    lines = [
        f"{'':22}{'this run':>22}{'without a bug':>22}",
        f"{'':22}" + "".join(f"{word:>11}" for word in ("first", "last") * 2),
    ]
    for key in NUMBERS:
        ends = [*first_and_last(rows, key), *first_and_last(beside, key)]
        if any(end is not None for end in ends):
            cells = "".join(f"{'-' if end is None else f'{end:.3g}':>11}" for end in ends)
            lines.append(f"{key:22}{cells}")
    return "\n".join(lines)


def first_and_last(
    rows: Sequence[Mapping[str, Any]], key: str
) -> tuple[float | None, float | None]:
    """Means over the first and the last three values; None where nothing was logged."""
    values = [row[key] for row in rows if key in row]
    if not values:
        return None, None
    return sum(values[:3]) / len(values[:3]), sum(values[-3:]) / len(values[-3:])
