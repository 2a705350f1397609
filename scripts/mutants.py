"""Do the tests notice a change that nobody chose? Mutates code at random and runs its tests.

    python scripts/mutants.py                           300 mutants
    python scripts/mutants.py --list                    what would be changed, without a run
    python scripts/mutants.py --only data/collate.py --count 25
    python scripts/mutants.py --write-docs              put the table into docs/mutants.md

scripts/mutation_check.py plants bugs that were chosen. Here cosmic-ray (mutant_operators.py) lists
every small change of a group of files, a seed draws a sample, and each mutant meets its file's own
tests first, then the shared proofs, until one fails. A mutant that no longer ends within its time
counts as noticed. The working tree is never touched. Results stay in runs/mutants.jsonl: a mutant
whose file is as it was is not run again, unless it survived and its tests have changed.

What counts as code: not docstrings and types, nothing inside `raise` and `assert` (messages and
their arithmetic), no `strict=` of zip (an assertion too), no arguments of decorators (frozen=True),
no `__repr__`, no protocol and no `if __name__` block.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from harmless_mutants import HARMLESS, Harmless
from harness.command_line import run_script
from trials import ROOT, TIMED_OUT, TestRunners, repository_copy, repository_files

from harness.errors import UserError
from harness.flag_ranges import check_ranges

DOCS = ROOT / "docs" / "mutants.md"
RESULTS = ROOT / "runs" / "mutants.jsonl"
SHORTEST_TIMEOUT, SLACK = 30.0, 8  # seconds; times what the tests take without a mutation
NOTHING_COLLECTED = 5  # exit status of pytest where every test of the file is skipped


@dataclass(frozen=True)
class Group:
    """Files that are sampled together, and the tests that follow their own."""

    name: str
    files: tuple[str, ...]  # patterns
    share: int  # mutants of 300
    proofs: tuple[str, ...]


EQUATION_TESTS = (
    *("test_losses", "test_advantages", "test_kl", "test_worked_numbers", "test_gradients"),
    *("test_enumeration", "test_mutation_gaps", "test_invariants"),
)
CONFIG_TESTS = "tests/rl/training/test_config.py"
CONTRACT = "tests/rl/test_engine_contract.py"
GROUPS = (
    Group(
        "equations",
        ("rl/equations/*.py", "reward_model/loss.py"),
        90,
        tuple(f"tests/rl/equations/{name}.py" for name in EQUATION_TESTS),
    ),
    Group("collation", ("data/collate.py",), 30, ("tests/gpt/test_log_probs.py",)),
    Group(
        "sampling",
        ("gpt/generate.py", "gpt/decode_static.py"),
        35,
        ("tests/rl/batches/test_rollout.py",),
    ),
    Group(
        "scoring",
        ("gpt/log_probs.py", "rl/batches/*.py"),
        45,
        ("tests/rl/training/test_value_model.py", "tests/rl/equations/test_mutation_gaps.py"),
    ),
    Group(
        "critic and metrics",
        tuple(f"rl/training/{name}.py" for name in ("actor_critic", "value_model", "metrics")),
        35,
        (CONFIG_TESTS, "tests/rl/test_ppo_engine.py"),
    ),
    Group("engines", ("rl/*_engine.py",), 65, (CONFIG_TESTS, CONTRACT)),
)
OWN_TESTS = {  # of files whose tests have another name
    "reward_model/loss.py": (
        "tests/reward_model/test_bradley_terry_loss.py",
        "tests/reward_model/test_outcome_loss.py",
    ),
    "gpt/generate.py": (
        "tests/gpt/test_generate.py",
        "tests/gpt/test_decode_static.py",
        "tests/harness/test_bfloat16_weights.py",
    ),
    "gpt/decode_static.py": ("tests/gpt/test_decode_static.py",),
    "rl/batches/preferences.py": (
        "tests/rl/test_dpo_engine.py",
        "tests/rl/test_pg_grpo_engine.py",
    ),
    "rl/batches/dynamic_sampling.py": ("tests/rl/test_grpo_variants_engine.py",),
    "rl/equations/preferences.py": ("tests/rl/equations/test_losses.py",),
    "rl/equations/token_rewards.py": ("tests/rl/equations/test_reward_arithmetic.py",),
}


@dataclass(frozen=True)
class Mutant:
    """One small change of one file."""

    path: str
    line: int
    function: str  # Class.method, or "" at the top of the module
    operator: str
    old: str  # the changed lines before and after, without indentation
    new: str
    text: str  # the whole file after the change

    @property
    def key(self) -> str:
        """The same for the same change of the same text."""
        return digest(self.path, self.text)


@dataclass(frozen=True)
class Outcome:
    """What the tests said of a mutant."""

    key: str
    result: str  # noticed or survived
    test: str  # the first test that failed
    tests: str  # digest of all test files that it meets
    seconds: float


def digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:20]


# --- mutants --------------------------------------------------------------------------------------

Span = tuple[tuple[int, int], tuple[int, int]]


def span(node: Any) -> Span:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base) == "Protocol" for base in node.bases)


def not_code(node: ast.AST) -> Iterator[ast.AST | None]:
    """The parts of a node whose mutants say nothing about the tests (see the top of the file)."""
    if isinstance(node, (ast.Raise, ast.Assert)):
        yield node
    elif isinstance(node, ast.ClassDef):
        yield from [node] if is_protocol(node) else []
        yield from (call for call in node.decorator_list if isinstance(call, ast.Call))
    elif isinstance(node, ast.FunctionDef):
        yield node.returns
        yield from [node] if node.name == "__repr__" else []
    elif isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__"):
        yield node
    elif isinstance(node, (ast.arg, ast.AnnAssign)):
        yield node.annotation
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
        yield from (keyword for keyword in node.keywords)


def ignored_spans(tree: ast.Module) -> list[Span]:
    parts = (part for node in ast.walk(tree) for part in not_code(node))
    return [span(part) for part in parts if part is not None]


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[Span, str]]:
    """Where every function and class stands, outer ones first."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            name = f"{prefix}{node.name}"
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield ((first, 0), span(node)[1]), name
            yield from functions(node, f"{name}.")
        else:
            yield from functions(node, prefix)


def changed_lines(before: str, after: str) -> tuple[int, str, str]:
    """(number of the first changed line, the changed lines before, the same after)."""
    old, new = before.splitlines(), after.splitlines()
    same = [a == b for a, b in zip(old, new, strict=False)]
    start = same.index(False) if False in same else len(same)
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    lines = (" ".join(x[start : len(x) - end]) for x in (old, new))
    first, second = (re.sub(r"\s+", " ", line).strip() for line in lines)
    return start + 1, first, second


@cache
def operators() -> Mapping[str, Any]:
    try:
        import mutant_operators
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed: `make dev` installs it") from error
    return mutant_operators.operators()


@dataclass(frozen=True)
class Candidate:
    """A change that an operator can make: its `occurrence`-th of this file."""

    path: str
    place: tuple[int, int]
    function: str  # Class.method, or "" at the top of the module
    operator: str
    occurrence: int
    identity: tuple[str, ...]  # function, line and operator as text, and which of them

    def draw(self, *salt: object) -> str:
        """A number that decides whether this is drawn; an edit elsewhere does not change it."""
        return digest(self.path, *self.identity, *salt)


def candidates(path: str, text: str) -> list[Candidate]:
    """Every change of a file that counts (see the top of this file)."""
    from cosmic_ray.ast import ast_nodes, get_ast

    tree, lines, nodes = ast.parse(text), text.splitlines(), list(ast_nodes(get_ast(text)))
    ignored, named = ignored_spans(tree), list(functions(tree))
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for name, operator in operators().items():
        places = [(n, start) for n in nodes for start, _ in operator.mutation_positions(n)]
        for occurrence, (node, place) in enumerate(places):
            is_bare_star = node.parent is not None and node.parent.type == "parameters"
            if is_bare_star or any(start <= place < end for start, end in ignored):
                continue
            inside = ["", *(title for (start, end), title in named if start <= place < end)]
            same = (inside[-1], lines[place[0] - 1].strip(), name)
            identity = (*same, str(seen[same]))
            seen[same] += 1
            found.append(Candidate(path, place, inside[-1], name, occurrence, identity))
    return found


def make(candidate: Candidate, text: str) -> Mutant | None:
    """The mutant, or None where the change is none or no Python."""
    from cosmic_ray.mutating import mutate_code

    changed = mutate_code(text, operators()[candidate.operator], candidate.occurrence)
    try:
        if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text)):
            return None
    except SyntaxError:
        return None
    line, old, new = changed_lines(text, changed)
    return Mutant(candidate.path, line, candidate.function, candidate.operator, old, new, changed)


def sample(paths: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """`count` mutants of these files at different places (fewer where there are fewer places).

    Every place draws a rank and one of its changes from what stands there, so that an edit of one
    function leaves the draws of all others.
    """
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in paths}
    everything = [c for path, text in texts.items() for c in candidates(path, text)]
    everything.sort(key=lambda candidate: candidate.draw(seed, "change"))
    places: dict[tuple[str, tuple[int, int]], list[Candidate]] = {}
    for candidate in everything:
        places.setdefault((candidate.path, candidate.place), []).append(candidate)
    ranked = sorted(places.values(), key=lambda changes: changes[0].draw(seed, "rank"))
    drawn: list[tuple[tuple[int, int], Mutant]] = []
    for changes in ranked:
        if len(drawn) < count:
            made = (make(candidate, texts[candidate.path]) for candidate in changes)
            drawn += [(changes[0].place, mutant) for mutant in made if mutant is not None][:1]
    drawn.sort(key=lambda pair: (paths.index(pair[1].path), pair[0]))
    return [mutant for _, mutant in drawn]


# --- files and tests ------------------------------------------------------------------------------


def files_of(group: Group) -> list[str]:
    """The files of a group that hold code, by name."""
    files = [path for pattern in group.files for path in sorted(ROOT.glob(pattern))]
    return [p.relative_to(ROOT).as_posix() for p in files if p.name != "__init__.py"]


def group_of(path: str) -> Group:
    for group in GROUPS:
        if path in files_of(group):
            return group
    raise UserError(f"{path} is in none of the groups: --list names the files of all")


def proofs_of(path: str) -> list[str]:
    """The test files that a mutant of this file meets: the file's own, then the group's proofs."""
    folder, name = Path(path).parent, Path(path).stem
    own = OWN_TESTS.get(path, (f"tests/{folder}/test_{name}.py",))
    return list(dict.fromkeys([*own, *group_of(path).proofs]))


def selection(test: str, path: str) -> list[str]:
    """What pytest runs of a test file: of the engines' contract the cases of the mutated engine alone."""
    if test != CONTRACT:
        return [test]
    engines = [file.stem.removesuffix("_engine") for file in (ROOT / "rl").glob("*_engine.py")]
    name = Path(path).stem.removesuffix("_engine")
    others = [f"not {other}" for other in sorted(engines) if name in other and other != name]
    return [test, "-k", " and ".join([name, *others])]


# --- running --------------------------------------------------------------------------------------


def judge(status: int, output: str) -> tuple[str, str]:
    """(noticed, timeout or survived, the test that failed). Code that breaks imports is noticed."""
    if status in (0, NOTHING_COLLECTED):
        return "survived", ""
    if status == TIMED_OUT:
        return "timeout", ""
    if status < 0:
        return "noticed", f"signal {-status}"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, flags=re.MULTILINE)
    if failed is None:
        raise UserError(f"pytest ended with status {status} and no failing test:\n{output[-2000:]}")
    return "noticed", re.sub(r"\[.*", "", failed.group(1))


class Trial:
    """Runs mutants in copies of `source`, a copy of the repository as it was at the start."""

    def __init__(self, runners: TestRunners, files: Sequence[str], source: Path) -> None:
        self.runners, self.files, self.source = runners, files, source
        self.seconds: dict[str, float] = {}  # of each test file without a mutation

    def measure(self, test: str) -> None:
        """Run a test file without a mutation: it must pass, or noticing one would mean nothing."""
        start = time.perf_counter()
        with repository_copy(self.files, self.source) as root:
            status, output = self.runners.run(root, [test])
        if status not in (0, NOTHING_COLLECTED):
            raise UserError(f"{test} fails without any mutation:\n{output[-2000:]}")
        self.seconds[test] = time.perf_counter() - start

    def run(self, mutant: Mutant) -> Outcome:
        """One test file after another until one notices."""
        start = time.perf_counter()
        with repository_copy(self.files, self.source) as root:
            (root / mutant.path).write_text(mutant.text, encoding="utf-8")
            for test in proofs_of(mutant.path):
                timeout = max(SHORTEST_TIMEOUT, SLACK * self.seconds[test])
                result, noticed_by = judge(
                    *self.runners.run(root, selection(test, mutant.path), timeout)
                )
                if result != "survived":
                    break
        seconds = round(time.perf_counter() - start, 2)
        return Outcome(mutant.key, result, noticed_by or test, tests_digest(mutant.path), seconds)


@cache
def tests_digest(path: str) -> str:
    """Of the text of all tests that a mutant of this file meets."""
    return digest(*((ROOT / test).read_text(encoding="utf-8") for test in proofs_of(path)))


def known_outcomes(mutants: Sequence[Mutant]) -> dict[str, Outcome]:
    """What earlier runs found, by key: not of survivors whose tests have changed since."""
    if not RESULTS.is_file():
        return {}
    rows = (json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines())
    outcomes = {row["key"]: Outcome(**row) for row in rows}
    return {
        mutant.key: outcomes[mutant.key]
        for mutant in mutants
        if mutant.key in outcomes
        and (
            outcomes[mutant.key].result != "survived"
            or outcomes[mutant.key].tests == tests_digest(mutant.path)
        )
    }


def run_all(mutants: Sequence[Mutant], jobs: int) -> list[Outcome]:
    """The outcomes of the mutants; those that are not known yet are run and recorded."""
    outcomes = known_outcomes(mutants)
    todo = [mutant for mutant in mutants if mutant.key not in outcomes]
    print(f"{len(mutants)} mutants, {len(todo)} of them to run", flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    tests = list(dict.fromkeys(test for mutant in todo for test in proofs_of(mutant.path)))
    files = repository_files()
    with (
        repository_copy(files) as source,
        RESULTS.open("a", encoding="utf-8") as record,
        closing(TestRunners()) as runners,
        ThreadPoolExecutor(jobs) as pool,
    ):
        trial = Trial(runners, files, source)
        list(pool.map(trial.measure, tests))
        for mutant, outcome in zip(todo, pool.map(trial.run, todo), strict=True):
            outcomes[mutant.key] = outcome
            record.write(json.dumps(asdict(outcome)) + "\n")
            record.flush()
            place = f"{mutant.path}:{mutant.line}"
            print(
                f"{outcome.result:9}{place:36}{outcome.seconds:6.1f} s  {outcome.test}", flush=True
            )
    return [outcomes[mutant.key] for mutant in mutants]


# --- reporting ------------------------------------------------------------------------------------

INTRODUCTION = """# Random mutants

Do the tests notice a change that nobody chose? `scripts/mutants.py` draws small changes of the
code by a seed (a sign, a comparison, a constant, a call left out), makes one at a time in a copy
of the repository and runs the tests of that file. Survivors are listed with the reason why they
change nothing that a test should see (`scripts/harmless_mutants.py`). The page is written by the
script itself (`--write-docs`); [mutation_check.md](mutation_check.md) lists the planted bugs.

"""


def reason(mutant: Mutant) -> str:
    """Why this mutant is equivalent or harmless; empty where nobody has said so."""
    found = [h.reason for h in HARMLESS if identity(h) == identity(mutant)]
    return found[0] if found else ""


def identity(change: Mutant | Harmless) -> tuple[str, str, str, str]:
    return change.path, change.function, change.old, change.new


def counts(mutants: Sequence[Mutant], outcomes: Sequence[Outcome]) -> str:
    """A Markdown table: one row a group, and the total."""
    names = [group_of(mutant.path).name for mutant in mutants]
    lines = [
        "| group | mutants | noticed | of these by timeout | survived |",
        "|---|---|---|---|---|",
    ]
    for name in [*dict.fromkeys(names), "all"]:
        results = [o.result for o, n in zip(outcomes, names, strict=True) if name in (n, "all")]
        survived, timeouts = results.count("survived"), results.count("timeout")
        noticed = len(results) - survived
        share = f"{noticed} ({100 * noticed / len(results):.1f}%)"
        lines.append(f"| {name} | {len(results)} | {share} | {timeouts} | {survived} |")
    return "\n".join(lines)


def survivors(mutants: Sequence[Mutant], outcomes: Sequence[Outcome]) -> str:
    """A Markdown table of the mutants that no test noticed."""
    lines = ["| place | code | mutant | why no test can or should notice |", "|---|---|---|---|"]
    for mutant, outcome in zip(mutants, outcomes, strict=True):
        if outcome.result == "survived":
            old, new = (f"`` {x} ``".replace("|", "\\|") if x else "" for x in identity(mutant)[2:])
            place = f"`{mutant.path}`, {mutant.function or 'module'}"
            lines.append(f"| {place} | {old} | {new} | {reason(mutant) or '**unexplained**'} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class MutantsConfig:
    """Change the code at random, one place at a time in a copy, and report what no test notices."""

    count: int = 300
    """Mutants to draw; the groups keep their shares."""
    seed: int = 0
    """Another seed draws others."""
    only: tuple[str, ...] = ()
    """Draw all of them from these files."""
    list: bool = False
    """Print the mutants and run nothing."""
    jobs: int = 2
    """Mutants at a time; each runs one single-threaded pytest."""
    write_docs: bool = False
    """Write the tables to docs/mutants.md (only without --only)."""

    def __post_init__(self) -> None:
        check_ranges(self)


def drawn(config: MutantsConfig) -> list[Mutant]:
    """The sample that the flags ask for."""
    if config.only:
        for path in config.only:
            group_of(path)
        return sample(config.only, config.count, config.seed)
    whole = sum(group.share for group in GROUPS)
    return [
        mutant
        for group in GROUPS
        for mutant in sample(
            files_of(group), round(config.count * group.share / whole), config.seed
        )
    ]


def main(config: MutantsConfig) -> None:
    """Run the sample; the process ends with status 1 where a survivor has no reason."""
    if config.write_docs and config.only:
        raise UserError("--write-docs needs all groups: leave --only out")
    mutants = drawn(config)
    if config.list:
        for mutant in mutants:
            print(
                f"{mutant.path}:{mutant.line} {mutant.operator}\n  - {mutant.old}\n  + {mutant.new}"
            )
        return
    outcomes = run_all(mutants, config.jobs)
    report = f"{counts(mutants, outcomes)}\n\n{survivors(mutants, outcomes)}\n"
    print(f"\n{report}")
    if config.write_docs:
        DOCS.write_text(f"{INTRODUCTION}{report}", encoding="utf-8")
    pairs = zip(mutants, outcomes, strict=True)
    if any(outcome.result == "survived" and not reason(mutant) for mutant, outcome in pairs):
        sys.exit(1)


if __name__ == "__main__":
    import tyro

    run_script(main, tyro.cli(MutantsConfig))
