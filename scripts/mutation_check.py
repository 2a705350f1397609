"""Do the tests notice? Plants one known bug at a time into a copy of the repository and runs them.

    python scripts/mutation_check.py                    every mutation, about 3 minutes on 2 cores
    python scripts/mutation_check.py --list             their names
    python scripts/mutation_check.py --only k1-sign     one or several of them
    python scripts/mutation_check.py --write-docs       put the table into docs/mutation_check.md

A mutation is an exact replacement of text that must occur once. The copy holds what git tracks and
new files that it does not ignore; the working tree is never touched. A mutation is caught when a
test fails (exit status 1 of pytest) and survives when all of them pass; the script then ends with
status 1. First the same tests run without a mutation: they must pass.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpt.common import UserError, run_script

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "mutation_check.md"
TIMEOUT = 600  # seconds for one mutation: a loop that no longer ends is no result


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which occurs exactly once in the file, by `new`."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """A known bug: what goes wrong, how to plant it, and the test files that must notice."""

    name: str
    what: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What the tests said."""

    mutation: Mutation
    result: str  # caught, survived or broken
    test: str  # the first test that failed, or the end of the output
    seconds: float


# --- the bugs -------------------------------------------------------------------------------------

ADVANTAGES = "rl/advantages.py"
COLLATE = "data/collate.py"
ENGINE = "rl/grpo_engine.py"
GENERATE = "gpt/generate.py"
KL = "rl/kl.py"
LOG_PROBS = "gpt/log_probs.py"
LOSSES = "rl/losses.py"
MODEL = "gpt/model.py"
OPTIMIZER = "gpt/optimizer.py"
PREFERENCE = "reward_model/loss.py"
REWARD_MODEL = "reward_model/model.py"
REWARDS = "rl/rewards.py"
ROLLOUT = "rl/rollout.py"

TEST_ADVANTAGES = "tests/rl/test_advantages.py"
TEST_BRADLEY_TERRY = "tests/reward_model/test_bradley_terry_loss.py"
TEST_COLLATE = "tests/data/test_collate.py"
TEST_ENGINE = "tests/rl/test_grpo_engine.py"
TEST_GAPS = "tests/rl/test_mutation_gaps.py"
TEST_GENERATE = "tests/gpt/test_generate.py"
TEST_GRADIENTS = "tests/rl/test_gradients.py"
TEST_INVARIANTS = "tests/rl/test_invariants.py"
TEST_KL = "tests/rl/test_kl.py"
TEST_LOG_PROBS = "tests/gpt/test_log_probs.py"
TEST_LOSSES = "tests/rl/test_losses.py"
TEST_MODEL = "tests/gpt/test_model.py"
TEST_OPTIMIZER = "tests/gpt/test_optimizer.py"
TEST_REWARD_MODEL = "tests/reward_model/test_reward_model.py"
TEST_REWARDS = "tests/rl/test_reward_arithmetic.py"
TEST_ROLLOUT = "tests/rl/test_rollout.py"
TEST_WORKED = "tests/rl/test_worked_numbers.py"


def bug(name: str, what: str, path: str, old: str, new: str, *tests: str) -> Mutation:
    """A mutation of one place."""
    return Mutation(name, what, (Edit(path, old, new),), tests)


MUTATIONS = (
    # masks and columns
    bug(
        "mask-by-padding-id",
        "the mask is `ids != pad`, and pad is the EOS: no response ever learns to stop",
        COLLATE,
        "    mask = before == 0\n",
        "    mask = response_tokens != eos_id\n",
        TEST_COLLATE,
    ),
    bug(
        "eos-left-out",
        "the mask ends before the first EOS instead of with it",
        COLLATE,
        "before = is_eos.cumsum(1) - is_eos.long()",
        "before = is_eos.cumsum(1)",
        TEST_COLLATE,
    ),
    bug(
        "column-off-by-one",
        "the column of a token scores it, not the one before",
        COLLATE,
        "columns = self.prompt_lengths[:, None] - 1 + steps[None, :]",
        "columns = self.prompt_lengths[:, None] + steps[None, :]",
        TEST_LOG_PROBS,
    ),
    bug(
        "reward-model-column",
        "the reward model scores a token before it has read it",
        REWARD_MODEL,
        "response_hidden(self.gpt, batch, batch.response_columns)",
        "response_hidden(self.gpt, batch, batch.predicting_columns)",
        TEST_REWARD_MODEL,
    ),
    bug(
        "positions-count-padding",
        "left-padded prompts get the positions of their columns",
        MODEL,
        "positions = (attention_mask.cumsum(1) - 1).clamp(min=0)[:, past:]",
        "positions = torch.arange(past, past + S, device=tokens.device)",
        TEST_MODEL,
    ),
    bug(
        "groups-interleaved",
        "the responses are paired with prompts in `repeat` order, not `repeat_interleave`",
        ROLLOUT,
        "rows = [index for index in range(len(records)) for _ in range(group_size)]",
        "rows = [index for _ in range(group_size) for index in range(len(records))]",
        TEST_ROLLOUT,
    ),
    # the sampler and the scorer
    bug(
        "scoring-temperature",
        "log-probs are scored at temperature 1",
        LOG_PROBS,
        "    logits = at_least_float32(F.linear(hidden, weight)) / temperature\n"
        '    return -F.cross_entropy(logits, targets, reduction="none")[:, None]\n',
        "    logits = at_least_float32(F.linear(hidden, weight))\n"
        '    return -F.cross_entropy(logits, targets, reduction="none")[:, None]\n',
        TEST_LOG_PROBS,
    ),
    bug(
        "sampler-temperature",
        "the sampler reports the log-probs of temperature 1",
        GENERATE,
        "    return tokens, log_probs.gather(1, tokens[:, None]).squeeze(1)\n",
        "    log_probs = (logits * params.temperature).log_softmax(-1)\n"
        "    return tokens, log_probs.gather(1, tokens[:, None]).squeeze(1)\n",
        TEST_GENERATE,
    ),
    bug(
        "rollout-temperature",
        "the reference scores the rollout at temperature 1",
        ROLLOUT,
        "lambda batch: token_log_probs(model, batch, config.temperature)",
        "lambda batch: token_log_probs(model, batch)",
        TEST_ROLLOUT,
    ),
    bug(
        "entropy-sign",
        "the entropy comes out negative",
        LOG_PROBS,
        "return -(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1)",
        "return (log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1)",
        TEST_LOG_PROBS,
    ),
    # KL
    bug(
        "k1-sign",
        "k1 is log pi_ref - log pi: the penalty pays for drifting away",
        KL,
        "return torch.where(finite, -delta, torch.nan)",
        "return torch.where(finite, delta, torch.nan)",
        TEST_KL,
    ),
    bug(
        "k3-turned-over",
        "k3 uses pi / pi_ref instead of pi_ref / pi",
        KL,
        "return delta.expm1() - delta",
        "return (-delta).expm1() + delta",
        TEST_KL,
    ),
    bug(
        "k3-clamped",
        "the result of k3 is clamped to 10: no gradient where the policy is furthest away",
        KL,
        "return delta.expm1() - delta",
        "return (delta.expm1() - delta).clamp(max=10)",
        TEST_KL,
    ),
    bug(
        "kl-controller-sign",
        "too much KL lowers the coefficient",
        KL,
        "error = min(max(kl_per_response / self.target - 1, -0.2), 0.2)",
        "error = min(max(1 - kl_per_response / self.target, -0.2), 0.2)",
        TEST_KL,
    ),
    # rewards
    bug(
        "reward-after-eos",
        "the score stands one position behind the EOS where there is room",
        REWARDS,
        "    last = response_mask & (tokens_from_here == 1)\n",
        "    last = response_mask & (tokens_from_here == 1)\n"
        "    last = torch.where(last[:, -1:], last, last.roll(1, 1))\n",
        TEST_REWARDS,
    ),
    bug(
        "reward-before-mask",
        "the score stands in the last column, and the mask then removes it",
        REWARDS,
        "    last = response_mask & (tokens_from_here == 1)\n",
        "    last = response_mask & (torch.arange(response_mask.shape[1]) == len(response_mask[0]) - 1)\n",
        TEST_REWARDS,
    ),
    bug(
        "penalty-at-padding",
        "the KL penalty is not masked",
        REWARDS,
        "penalty = torch.where(response_mask, -kl_coef * k1, 0.0)",
        "penalty = -kl_coef * k1",
        TEST_REWARDS,
    ),
    bug(
        "kl-mean-per-token",
        "a reward's KL is divided by the length: R - beta * mean(k1)",
        REWARDS,
        "penalty = torch.where(response_mask, -kl_coef * k1, 0.0)",
        "penalty = torch.where(response_mask, -kl_coef * k1 / response_mask.sum(1, True), 0.0)",
        TEST_WORKED,
    ),
    bug(
        "margin-sign",
        "the margin of the preference loss has the wrong sign",
        PREFERENCE,
        "chosen - rejected - margin",
        "chosen - rejected + margin",
        TEST_BRADLEY_TERRY,
    ),
    # advantages
    Mutation(
        "gae-reads-padding",
        "the value after the EOS is that of the padding",
        (
            Edit(
                ADVANTAGES,
                "torch.where(response_mask, at_least_float32(x), 0.0) for x in (token_rewards, values)",
                "at_least_float32(x) for x in (token_rewards, values)",
            ),
            Edit(
                ADVANTAGES,
                "next_value = torch.where(valid, values[:, t], next_value)",
                "next_value = values[:, t]",
            ),
        ),
        (TEST_ADVANTAGES,),
    ),
    bug(
        "whitening-per-response",
        "advantages are whitened inside each response: differences between responses vanish",
        ADVANTAGES,
        "    mean = valid.mean()\n"
        "    variance = (valid - mean).square().sum() / max(len(valid) - int(unbiased), 1)\n",
        "    count = mask.sum(1, keepdim=True)\n"
        "    mean = torch.where(mask, x, 0.0).sum(1, keepdim=True) / count\n"
        "    variance = torch.where(mask, x - mean, 0.0).square().sum(1, keepdim=True)\n"
        "    variance = variance / (count - int(unbiased)).clamp(min=1)\n",
        TEST_ADVANTAGES,
    ),
    bug(
        "leave-one-out-twice",
        "the factor G / (G - 1) is applied twice",
        ADVANTAGES,
        "* (group_size / (group_size - 1))",
        "* (group_size / (group_size - 1)) ** 2",
        TEST_ADVANTAGES,
    ),
    bug(
        "std-of-the-batch",
        "a group's advantages are divided by the std of the whole batch",
        ADVANTAGES,
        "std = groups.std(1, keepdim=True, correction=int(unbiased))",
        "std = groups.std(correction=int(unbiased))",
        TEST_ADVANTAGES,
    ),
    bug(
        "mean-of-the-batch",
        "the baseline is the mean over all prompts",
        ADVANTAGES,
        "groups - groups.mean(1, keepdim=True)",
        "groups - groups.mean()",
        TEST_ADVANTAGES,
    ),
    # losses
    bug(
        "max-for-negative-advantages",
        "the clipped surrogate takes the maximum where the advantage is negative",
        LOSSES,
        "return -torch.minimum(unclipped, clipped), clipped < unclipped",
        "worse = torch.where(advantages < 0, torch.maximum(unclipped, clipped), "
        "torch.minimum(unclipped, clipped))\n    return -worse, clipped < unclipped",
        TEST_LOSSES,
    ),
    bug(
        "advantages-broadcast",
        "advantages of shape (N,) run along time where N = T",
        LOSSES,
        "    if advantages.ndim != 2:\n",
        "    if advantages.shape == log_probs.shape[1:]:\n        return\n"
        "    if advantages.ndim != 2:\n",
        TEST_LOSSES,
    ),
    bug(
        "gspo-unnormalised",
        "GSPO's ratio is the product over the tokens, without the root of the length",
        LOSSES,
        "    mean_change = row_means(change, mask).unsqueeze(1)  # (N, 1)\n",
        "    mean_change = row_sums(change, mask).unsqueeze(1)  # (N, 1)\n",
        TEST_GAPS,
    ),
    bug(
        "gspo-token-gradient",
        "GSPO-token differentiates the ratio of the sequence as well",
        LOSSES,
        "mean_change = row_means(change, mask).unsqueeze(1).detach()",
        "mean_change = row_means(change, mask).unsqueeze(1)",
        TEST_INVARIANTS,
    ),
    bug(
        "cispo-gradient",
        "CISPO differentiates its weight",
        LOSSES,
        "ratio = log_ratio(log_probs, old).exp().detach()",
        "ratio = log_ratio(log_probs, old).exp()",
        TEST_GRADIENTS,
    ),
    bug(
        "value-loss-doubled",
        "the value loss lacks its half",
        LOSSES,
        "return torch.where(finite, squared / 2, torch.nan)",
        "return torch.where(finite, squared, torch.nan)",
        TEST_LOSSES,
    ),
    bug(
        "dpo-sign",
        "DPO prefers the rejected response",
        LOSSES,
        "return (chosen - ref_chosen) - (rejected - ref_rejected)",
        "return (rejected - ref_rejected) - (chosen - ref_chosen)",
        TEST_LOSSES,
    ),
    bug(
        "response-log-prob-averaged",
        "the log-prob of a response (DPO, RLOO) is averaged over its tokens",
        LOSSES,
        "    return torch.where(mask, at_least_float32(x), 0.0).sum(1)\n",
        "    return torch.where(mask, at_least_float32(x), 0.0).sum(1) / mask.sum(1).clamp(min=1)\n",
        TEST_LOSSES,
    ),
    bug(
        "mean-of-means",
        "a micro-batch is averaged over its own tokens, not those of the whole batch",
        LOSSES,
        "mask.sum() if denominator is None else denominator",
        "mask.sum()",
        TEST_INVARIANTS,
    ),
    # the update
    bug(
        "clip-after-step",
        "gradients are clipped after the step that used them",
        OPTIMIZER,
        "    norm = torch.nn.utils.clip_grad_norm_(list(parameters), max_norm)\n"
        "    optimizer.step()\n",
        "    optimizer.step()\n"
        "    norm = torch.nn.utils.clip_grad_norm_(list(parameters), max_norm)\n",
        TEST_OPTIMIZER,
    ),
    bug(
        "gradients-accumulate",
        "the gradient of one minibatch stays for the next",
        ENGINE,
        "                    optimizer.zero_grad(set_to_none=True)\n",
        "",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "micro-batch-denominator",
        "each micro-batch is averaged over its own rows, so their number changes the gradient",
        ENGINE,
        "rows=len(rows),",
        "rows=len(part),",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "advantages-misaligned",
        "micro-batches are sorted by length, their advantages are not",
        ENGINE,
        "                            advantages[part],\n"
        "                            batch.response_mask,\n",
        "                            advantages[rows[: len(part)]],\n"
        "                            batch.response_mask,\n",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "ratio-always-one",
        "the old log-probs are recomputed inside the update loop",
        ENGINE,
        "                            old_log_probs[part],\n"
        "                            None if ref_log_probs",
        "                            scores.log_probs.detach(),\n"
        "                            None if ref_log_probs",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "reference-moves",
        "the reference is the policy itself, not a frozen copy",
        ENGINE,
        "reference = copy.deepcopy(policy).eval().requires_grad_(False)",
        "reference = policy",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "dropout-on",
        "dropout is on in the updates: old and new log-probs differ before the first step",
        ENGINE,
        "    policy.eval()  # dropout",
        "    policy.train()  # dropout",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "update-temperature",
        "the update scores at temperature 1, whatever the sampler used",
        ENGINE,
        "scores = token_scores(policy, batch, config.temperature)",
        "scores = token_scores(policy, batch)",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "k1-as-loss",
        "the KL in the loss is k1, whose expected gradient is 0",
        ENGINE,
        "kl_coef * kl_penalty(log_probs, ref_log_probs)",
        "config.kl_coef * (log_probs - ref_log_probs)",
        TEST_GAPS,
        TEST_ENGINE,
    ),
    bug(
        "kl-rewarded",
        "the KL in the loss is subtracted",
        ENGINE,
        "token_loss = token_loss + kl_coef",
        "token_loss = token_loss - kl_coef",
        TEST_GAPS,
        TEST_ENGINE,
    ),
)


# --- planting -------------------------------------------------------------------------------------


def planting_errors(mutations: Sequence[Mutation], root: Path) -> list[str]:
    """One sentence for every text to replace that is not there exactly once, and missing tests."""
    errors = []
    for mutation in mutations:
        for edit in mutation.edits:
            path = root / edit.path
            count = path.read_text(encoding="utf-8").count(edit.old) if path.is_file() else 0
            if count != 1:
                errors.append(
                    f"mutation {mutation.name}: {edit.path} holds the text to replace {count} times "
                    f"instead of once: {edit.old!r}"
                )
        for test in mutation.tests:
            if not (root / test).is_file():
                errors.append(f"mutation {mutation.name}: its test file {test} does not exist")
    return errors


def plant(mutation: Mutation, root: Path) -> None:
    """Put the bug into the copy at `root`."""
    for edit in mutation.edits:
        path = root / edit.path
        text = path.read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            raise UserError(f"mutation {mutation.name}: {edit.old!r} is not there exactly once")
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def repository_files() -> list[str]:
    """Tracked files and new ones that git does not ignore, as far as they exist."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        raise UserError(f"{ROOT} is not a git checkout, so what to copy is unknown: clone it")
    return [name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


@contextmanager
def repository_copy(files: Sequence[str]) -> Iterator[Path]:
    """A temporary copy of the repository."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for name in files:
            target = Path(folder) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
        yield Path(folder)


# --- running --------------------------------------------------------------------------------------


def run_tests(root: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Exit status and output of pytest; -1 where it did not end in time."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",  # one process per job is all the parallelism there is
        "OMP_WAIT_POLICY": "passive",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
        # The copy comes before an installation of this repository, in processes of the tests too.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end after {TIMEOUT} seconds"
    return done.returncode, done.stdout + done.stderr


def judge(status: int, output: str) -> tuple[str, str]:
    """(result, first failing test or last line). Only a failing test counts as caught."""
    last = (output.strip().splitlines() or ["no output"])[-1]
    if status == 0:
        return "survived", last
    failed = re.search(r"^FAILED (\S+)", output, flags=re.MULTILINE)
    if status == 1 and failed:
        return "caught", re.sub(r"\[.*", "", failed.group(1))
    return "broken", last


def check(mutation: Mutation, files: Sequence[str]) -> Outcome:
    """Plant one bug in a fresh copy and ask the tests."""
    start = time.perf_counter()
    with repository_copy(files) as root:
        plant(mutation, root)
        result, test = judge(*run_tests(root, mutation.tests))
    outcome = Outcome(mutation, result, test, time.perf_counter() - start)
    print(f"{result:9}{mutation.name:32}{outcome.seconds:5.1f} s  {test}", flush=True)
    return outcome


def check_baseline(mutations: Sequence[Mutation], files: Sequence[str]) -> None:
    """The tests must pass without any bug, or catching one would mean nothing."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    with repository_copy(files) as root:
        status, output = run_tests(root, tests)
    if status:
        raise UserError(f"the tests fail without any mutation:\n{output[-2000:]}")
    print(f"without a mutation the {len(tests)} test files pass", flush=True)


# --- reporting ------------------------------------------------------------------------------------

INTRODUCTION = """# Mutation check

Do the tests notice a wrong line? `scripts/mutation_check.py` plants one known bug at a time into a
copy of the repository and runs the tests that should fail. Most of these bugs have been printed or
released somewhere (docs/equations.md, "Mistakes"). The table is written by the script itself
(`--write-docs`).

"""


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a Markdown table."""
    rows = [
        "| bug | planted in | what goes wrong | result | first test that fails |",
        "|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        mutation = outcome.mutation
        test = f"`{outcome.test}`" if outcome.result == "caught" else ""
        where = f"`{mutation.edits[0].path}`"
        rows.append(f"| {mutation.name} | {where} | {mutation.what} | {outcome.result} | {test} |")
    return "\n".join(rows)


def summary(outcomes: Sequence[Outcome]) -> str:
    caught = sum(outcome.result == "caught" for outcome in outcomes)
    return f"{caught} of {len(outcomes)} planted bugs are caught."


@dataclass(frozen=True)
class MutationCheckConfig:
    """Plant known bugs one at a time in a copy of the repository and report which tests fail."""

    only: tuple[str, ...] = ()
    """Names of the mutations to try; default: all."""
    list: bool = False
    """Print the names and what they do, and run nothing."""
    jobs: int = 2
    """Mutations at a time; each runs one single-threaded pytest."""
    write_docs: bool = False
    """Write the table to docs/mutation_check.md (only with all mutations)."""


def selected(only: Sequence[str]) -> list[Mutation]:
    """The named mutations in their order here, or all."""
    unknown = sorted(set(only) - {mutation.name for mutation in MUTATIONS})
    if unknown:
        raise UserError(f"there is no mutation {', '.join(unknown)}: --list prints their names")
    return [mutation for mutation in MUTATIONS if not only or mutation.name in only]


def main(config: MutationCheckConfig) -> None:
    """Check the selected mutations; the process ends with status 1 unless all are caught."""
    mutations = selected(config.only)
    if config.list:
        for mutation in mutations:
            print(f"{mutation.name:32}{mutation.edits[0].path:24}{mutation.what}")
        return
    if config.write_docs and config.only:
        raise UserError("--write-docs needs all mutations: leave --only out")
    errors = planting_errors(mutations, ROOT)
    if errors:
        raise UserError("\n".join(errors))
    files, start = repository_files(), time.perf_counter()
    check_baseline(mutations, files)
    with ThreadPoolExecutor(config.jobs) as pool:
        outcomes = list(pool.map(lambda mutation: check(mutation, files), mutations))
    print(f"\n{table(outcomes)}\n\n{summary(outcomes)} ({time.perf_counter() - start:.0f} s)")
    if config.write_docs:
        DOCS.write_text(
            f"{INTRODUCTION}{summary(outcomes)}\n\n{table(outcomes)}\n", encoding="utf-8"
        )
    if any(outcome.result != "caught" for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    import tyro

    run_script(main, tyro.cli(MutationCheckConfig))
