"""Do the tests notice a change that nobody chose? Mutates code at random and runs its tests.

    python scripts/mutants.py                           300 mutants
    python scripts/mutants.py --list                    what would be changed, without a run
    python scripts/mutants.py --only data/collate.py --count 25
    python scripts/mutants.py --write-docs              write docs/mutants.md

scripts/mutation_check.py plants bugs that were chosen. Here cosmic-ray lists every small change of a
group of files, a seed draws a sample, and each mutant meets its file's own tests first, then the
group's proofs, until one fails. A mutant that no longer ends within its time counts as noticed. The
working tree is never touched. scripts/harmless_mutants.txt holds the survivors that no test can or
should notice, with the reason.

What counts as code: not docstrings and types, nothing inside `raise` and `assert` (messages and
their arithmetic), no `strict=` of zip (an assertion too), no arguments of decorators (frozen=True),
no `__repr__`, no protocol and no `if __name__` block.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from code_changes import Code, definitions, read_blocks
from mutation_check import pytest_name, read_tests
from trials import ROOT, TIMED_OUT, pytest_processes, repository_copy, repository_files, run_tests

from harness.command_line import run_command
from harness.errors import UserError
from harness.flag_ranges import AtLeastOne, Seed, check_ranges
from rl.commands.memory_tables import markdown

HARMLESS = ROOT / "scripts" / "harmless_mutants.txt"
DOCS = ROOT / "docs" / "mutants.md"
SHORTEST_TIMEOUT, SLACK = 30.0, 8  # seconds; times what the tests take without a mutation
NOTHING_COLLECTED = 5  # exit status of pytest where every test of the file is skipped
# The operators whose mutants a reader could overlook: a + that became a -, not one that became a <<.
OPERATORS = re.compile(
    r"core/(NumberReplacer|AddNot|RemoveDecorator|ZeroIterationForLoop"
    r"|Replace(TrueWithFalse|FalseWithTrue|AndWithOr|OrWithAnd|BreakWithContinue|ContinueWithBreak)"
    r"|ReplaceUnaryOperator_Delete_.*"
    r"|ReplaceComparisonOperator_(Lt|Gt)E?_(Lt|Gt)E?"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is)"
    r"|ReplaceBinaryOperator_(Add_(Sub|Mul)|Sub_Add|Mul_(Add|Div)|Div_Mul|FloorDiv_Mul)"
    r"|ReplaceBinaryOperator_(Mod_FloorDiv|Pow_Mul|BitAnd_BitOr|BitOr_BitAnd))"
)


@dataclass(frozen=True)
class Group:
    """Files that are sampled together, and the tests that follow their own."""

    name: str
    files: tuple[str, ...]  # patterns
    share: int  # mutants of 300
    proofs: tuple[str, ...]  # names of test files, in whatever folder


CONTRACT = "test_engine_contract.py"
DEFAULTS = "test_write_tables.py"
EQUATIONS = "every_equation losses advantages kl worked_numbers gradients enumeration invariants"
TRAINING = ("actor_critic", "value_model", "metrics")
GROUPS = (
    Group(
        "equations",
        ("rl/equations/*.py", "reward_model/loss.py"),
        90,
        tuple(f"test_{name}.py" for name in EQUATIONS.split()),
    ),
    Group("collation", ("data/collate.py",), 30, ("test_log_probs.py",)),
    Group(
        "sampling",
        ("gpt/generate.py", "gpt/decode_static.py"),
        35,
        ("test_rollout.py", "test_tools.py", DEFAULTS),
    ),
    Group(
        "scoring",
        ("gpt/log_probs.py", "rl/batches/*.py"),
        45,
        (
            "test_value_model.py",
            "test_mutation_gaps.py",
            "test_minillm_engine.py",
            "test_tools.py",
            DEFAULTS,
        ),
    ),
    Group(
        "critic and metrics",
        tuple(f"rl/training/{name}.py" for name in TRAINING),
        35,
        ("test_config.py", "test_ppo_engine.py", DEFAULTS),
    ),
    Group(
        "engines",
        ("rl/*_engine.py",),
        65,
        (DEFAULTS, "test_config.py", "test_engine_refusals.py", CONTRACT),
    ),
)
OWN_TESTS = {  # of files whose tests have another name
    "reward_model/loss.py": ("test_bradley_terry_loss.py", "test_outcome_loss.py"),
    "gpt/generate.py": ("test_generate.py", "test_decode_static.py", "test_bfloat16_weights.py"),
    "gpt/decode_static.py": ("test_decode_static.py",),
    "rl/batches/preferences.py": ("test_dpo_engine.py", "test_pg_grpo_engine.py"),
    "rl/batches/dynamic_sampling.py": ("test_grpo_variants_engine.py",),
    "rl/batches/tool_process.py": ("test_tools.py",),
    "rl/equations/preference_losses.py": ("test_losses.py",),
    "rl/equations/token_rewards.py": ("test_reward_arithmetic.py",),
}


@dataclass(frozen=True)
class Mutant:
    """One small change of one file."""

    path: str
    line: int
    name: str  # of the function, class or table, as scripts/code_changes.py finds it
    operator: str
    text: str  # the whole file after the change


@dataclass(frozen=True)
class Outcome:
    """What the tests said of a mutant."""

    result: str  # noticed, timeout or survived
    test: str  # the first test that failed


def digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:20]


# --- mutants --------------------------------------------------------------------------------------


def not_code(node: Any) -> Iterator[ast.AST | None]:
    """The parts of a node whose mutants say nothing about the tests (see the top of the file)."""
    if isinstance(node, (ast.Raise, ast.Assert)):
        yield node
    elif isinstance(node, ast.ClassDef):
        yield from [node] if any(ast.unparse(base) == "Protocol" for base in node.bases) else []
        yield from (call for call in node.decorator_list if isinstance(call, ast.Call))
    elif isinstance(node, ast.FunctionDef):
        yield node.returns
        yield from [node] if node.name == "__repr__" else []
    elif isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__"):
        yield node
    elif isinstance(node, (ast.arg, ast.AnnAssign)):
        yield node.annotation
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
        yield from node.keywords


def ignored_spans(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    parts: list[Any] = [part for node in ast.walk(tree) for part in not_code(node) if part]
    return [((p.lineno, p.col_offset), (p.end_lineno, p.end_col_offset)) for p in parts]


def name_at(tree: ast.Module, line: int) -> str:
    """The innermost function, class or table that holds this line; empty where there is none."""
    found = [""]
    for name, node in definitions(tree):
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        if first <= line <= (node.end_lineno or 0):
            found.append(name)
    return found[-1]


@cache
def operators() -> Mapping[str, Any]:
    try:
        from cosmic_ray.plugins import get_operator, operator_names
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed: `make dev` installs it") from error
    return {name: get_operator(name)() for name in operator_names() if OPERATORS.fullmatch(name)}


@dataclass(frozen=True)
class Candidate:
    """A change that an operator can make: its `occurrence`-th of this file."""

    path: str
    place: tuple[int, int]
    name: str
    operator: str
    occurrence: int
    identity: tuple[str, ...]  # name, line and operator as text, and which of them

    def draw(self, *salt: object) -> str:
        """A number that decides whether this is drawn; an edit elsewhere does not change it."""
        return digest(self.path, *self.identity, *salt)


def candidates(path: str, text: str) -> list[Candidate]:
    """Every change of a file that counts (see the top of this file)."""
    from cosmic_ray.ast import ast_nodes, get_ast

    tree, lines, nodes = ast.parse(text), text.splitlines(), list(ast_nodes(get_ast(text)))
    ignored = ignored_spans(tree)
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for operator_name, operator in operators().items():
        places = [(n, start) for n in nodes for start, _ in operator.mutation_positions(n)]
        for occurrence, (node, place) in enumerate(places):
            is_bare_star = node.parent is not None and node.parent.type == "parameters"
            if is_bare_star or any(start <= place < end for start, end in ignored):
                continue
            name = name_at(tree, place[0])
            same = (name, lines[place[0] - 1].strip(), operator_name)
            found.append(
                Candidate(path, place, name, operator_name, occurrence, (*same, str(seen[same])))
            )
            seen[same] += 1
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
    c = candidate
    return Mutant(c.path, c.place[0], c.name, c.operator, changed)


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
    drawn: list[Mutant] = []
    for changes in ranked:
        if len(drawn) < count:
            made = (make(candidate, texts[candidate.path]) for candidate in changes)
            drawn += [mutant for mutant in made if mutant is not None][:1]
    return sorted(drawn, key=lambda mutant: (paths.index(mutant.path), mutant.line))


def as_block(mutant: Mutant) -> str:
    """The change as a block of scripts/harmless_mutants.txt, but for its reason."""
    before, after = (
        ast.unparse(ast.parse(text)).splitlines()
        for text in ((ROOT / mutant.path).read_text(encoding="utf-8"), mutant.text)
    )
    while before and after and before[0] == after[0]:
        del before[0], after[0]
    while before and after and before[-1] == after[-1]:
        del before[-1], after[-1]
    sides = [
        f"{sign} {line.strip()}"
        for sign, x in zip("-+", (before, after), strict=True)
        for line in x
    ]
    module = Path(mutant.path).stem
    return "\n".join([f"in {module}.{mutant.name}", *sides])


# --- files and tests ------------------------------------------------------------------------------


def files_of(group: Group) -> list[str]:
    files = [path for pattern in group.files for path in sorted(ROOT.glob(pattern))]
    return [p.relative_to(ROOT).as_posix() for p in files if p.name != "__init__.py"]


def group_of(path: str) -> str:
    return next((group.name for group in GROUPS if path in files_of(group)), "other files")


@cache
def proofs_of(path: str) -> tuple[str, ...]:
    """The test files that a mutant of this file meets: the file's own, then its group's proofs."""
    own = OWN_TESTS.get(path, (f"test_{Path(path).stem}.py",))
    proofs = [proof for group in GROUPS if group.name == group_of(path) for proof in group.proofs]
    files = read_tests(ROOT)
    return tuple(dict.fromkeys(pytest_name(test, files) for test in (*own, *proofs)))


def selection(test: str, path: str) -> list[str]:
    """What pytest runs of a test file: of the engines' contract the mutated engine's cases alone."""
    if not test.endswith(CONTRACT):
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

    def __init__(self, processes: ProcessPoolExecutor, files: Sequence[str], source: Path) -> None:
        self.processes, self.files, self.source = processes, files, source
        self.seconds: dict[str, float] = {}  # of each test file without a mutation

    def measure(self, test: str) -> None:
        """Run a test file without a mutation: it must pass, or noticing one would mean nothing."""
        start = time.perf_counter()
        with repository_copy(self.files, self.source) as root:
            status, output = run_tests(self.processes, root, [test])
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
                tests = selection(test, mutant.path)
                status, output = run_tests(self.processes, root, tests, timeout)
                result, noticed_by = judge(status, output)
                if result != "survived":
                    break
        place, seconds = f"{mutant.path}:{mutant.line}", time.perf_counter() - start
        print(f"{result:9}{place:36}{seconds:6.1f} s  {noticed_by or test}", flush=True)
        return Outcome(result, noticed_by or test)


def run_all(mutants: Sequence[Mutant], jobs: int) -> list[Outcome]:
    print(f"{len(mutants)} mutants", flush=True)
    files = repository_files()
    with (
        repository_copy(files) as source,
        pytest_processes(jobs) as processes,
        ThreadPoolExecutor(jobs) as pool,
    ):
        trial = Trial(processes, files, source)
        tests = dict.fromkeys(test for mutant in mutants for test in proofs_of(mutant.path))
        list(pool.map(trial.measure, tests))
        return list(pool.map(trial.run, mutants))


# --- reporting ------------------------------------------------------------------------------------

INTRODUCTION = """# Random mutants

Do the tests notice a change that nobody chose? `scripts/mutants.py` draws small changes of the
code by a seed (a sign, a comparison, a constant), makes one at a time in a copy of the repository
and runs the tests of that file. *Harmless*: no test can or should notice it, for the reason that stands
beside its code in [scripts/harmless_mutants.txt](../scripts/harmless_mutants.txt). The script writes
this page (`--write-docs`). The chosen bugs are in [mutation_check.md](mutation_check.md).

"""


def reasons(code: Code) -> dict[tuple[str, str], str]:
    """Why a mutant is harmless, by its file and its syntax tree."""
    return {
        (path, ast.dump(ast.parse(text))): block.title
        for block in read_blocks(HARMLESS)
        for path, text in code.changed(block.changes).items()
    }


def counts(mutants: Sequence[Mutant], results: Sequence[str]) -> str:
    """One row a group; a result is noticed, timeout, harmless (a survivor with a reason) or survived."""
    names = [group_of(mutant.path) for mutant in mutants]
    rows = []
    for name in [*dict.fromkeys(names), "all"]:
        count = Counter(r for r, n in zip(results, names, strict=True) if name in (n, "all"))
        noticed = count["noticed"] + count["timeout"]
        share = f"{noticed} ({100 * noticed / count.total():.1f}%)"
        others = (count[kind] for kind in ("timeout", "harmless", "survived"))
        rows.append([name, str(count.total()), share, *map(str, others)])
    head = ["group", "mutants", "noticed", "by timeout", "harmless", "not noticed"]
    return "\n".join(markdown(head, rows))


@dataclass(frozen=True)
class MutantsConfig:
    """Change the code at random, one place at a time in a copy, and report what no test notices."""

    count: AtLeastOne = 300
    """Mutants to draw; the groups keep their shares."""
    seed: Seed = 0
    """Another seed draws others."""
    only: tuple[str, ...] = ()
    """Draw all of them from these files, of any package."""
    list: bool = False
    """Print the mutants and run nothing."""
    jobs: AtLeastOne = 2
    """Mutants at a time; each runs one single-threaded pytest."""
    write_docs: bool = False
    """Write docs/mutants.md (only without --only)."""

    def __post_init__(self) -> None:
        check_ranges(self)


def drawn(config: MutantsConfig) -> list[Mutant]:
    if config.only:
        missing = [path for path in config.only if path not in Code.read(ROOT).texts]
        if missing:
            raise UserError(
                f"{missing[0]} is no Python file of our packages: --only data/collate.py"
            )
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
            print(f"{mutant.path}:{mutant.line} {mutant.operator}\n{as_block(mutant)}\n")
        return
    known = reasons(Code.read(ROOT))
    outcomes = run_all(mutants, config.jobs)
    lines, unexplained = [], []
    results = [outcome.result for outcome in outcomes]
    for i, mutant in enumerate(mutants):
        if results[i] == "survived":
            reason = known.get((mutant.path, ast.dump(ast.parse(mutant.text))), "")
            lines.append(f"- `{mutant.name}` ({mutant.path}): {reason or '**unexplained**'}")
            unexplained += [] if reason else [as_block(mutant)]
            results[i] = "harmless" if reason else "survived"
    table = counts(mutants, results)
    print("", table, "", *lines, sep="\n")
    if config.write_docs:
        DOCS.write_text(f"{INTRODUCTION}{table}\n", encoding="utf-8")
    if unexplained:
        print("No reason in scripts/harmless_mutants.txt:", *unexplained, sep="\n\n")
        sys.exit(1)


if __name__ == "__main__":
    run_command(main, MutantsConfig)
