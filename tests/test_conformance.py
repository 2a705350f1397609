"""The conformance kit: right functions and variants are named, planted mistakes are caught by name."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.__main__ import main
from conformance.batches import worked
from conformance.checking import Candidate, Kind, check
from conformance.kinds import KINDS
from conformance.trying import Unusable
from conformance.ways import Way, sections, ways
from rl.equations import advantages, kl, losses, preference_losses, token_rewards

ROOT = Path(__file__).resolve().parents[1]


def as_users_write_it(
    kind: Kind, way: Way, reducer: Way | None = None, **changes: Callable[[Any], Any]
) -> Callable[..., Any]:
    """A way as a function with a signature, averaged by a reducer, of arguments that are changed first."""
    mine = Candidate(kind, "", way, reducer)

    def by_name(**given: Any) -> torch.Tensor:
        return mine({n: changes.get(n, lambda x: x)(given[n]) for n in kind.order})

    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in kind.order]
    by_name.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return by_name


def planted() -> list[Any]:
    """Every way once per token, and once with an average that takes turns."""
    cases = []
    for kind in KINDS.values():
        level = "scalar" if "mask" in kind.order else "pairs"
        averages = [r for r in ways(level) if kind.trained]
        averages = [r for r in averages if r.name != "constant_length" or "length" in kind.order]
        for expected, found in (("right", kind.known), ("mistake", kind.mistakes)):
            for i, way in enumerate(found):
                for reducer in [None, *averages[i % len(averages or [1]) :][:1]]:
                    name = f"{kind.name}-{way.name}-{reducer.name if reducer else 'token'}"
                    cases.append(pytest.param(kind, way, reducer, expected, id=name))
    return cases


@pytest.mark.parametrize(("kind", "way", "reducer", "expected"), planted())
def test_a_way_is_recognised(kind: Kind, way: Way, reducer: Way | None, expected: str) -> None:
    """No alarm on what is right, however it is averaged; a mistake by its own name."""
    verdict = check(as_users_write_it(kind, way, reducer), kind)
    assert verdict.right == (expected == "right"), verdict
    assert (verdict.way, verdict.reducer) == (way.name, reducer and reducer.name)
    assert way.says in verdict.says
    assert (expected == "mistake") == bool(verdict.example)


@pytest.mark.parametrize("name", ["policy_loss", "value_loss", "reducer", "kl_loss"])
@pytest.mark.parametrize("reducer", ways("scalar", mistakes=True), ids=lambda way: way.name)
def test_a_wrong_average_is_caught(name: str, reducer: Way) -> None:
    kind = KINDS[name]
    verdict = check(as_users_write_it(kind, kind.known[0], reducer), kind)
    assert (verdict.status, verdict.reducer) == ("mistake", reducer.name), verdict


LOSSES = [kind for kind in KINDS.values() if kind.trained]


@pytest.mark.parametrize("kind", LOSSES, ids=lambda kind: kind.name)
def test_a_gradient_turned_round_or_missing_or_at_another_row_is_refused(kind: Kind) -> None:
    """The numbers are right each time, and those of the last one have a gradient whose sum is right."""
    for name in kind.trained:
        for change in (lambda x: 2 * x.detach() - x, lambda x: x.detach()):
            mine = as_users_write_it(kind, kind.known[0], **{name: change})
            assert not check(mine, kind).right, name
    turned = Way("", "", lambda x, *_: x.detach() + (x - x.detach()).flip(0))
    assert not check(as_users_write_it(kind, kind.known[0], turned), kind).right


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_setting_that_is_not_looked_at_is_refused(kind: Kind) -> None:
    """A function that has the number of the first worked case in place of its argument."""
    unused = ("length", "low")  # by the first way
    for name, value in {**kind.batch(0), **worked(kind.name)[0]}.items():
        if not isinstance(value, torch.Tensor) and name not in unused:
            mine = as_users_write_it(kind, kind.known[0], **{name: lambda _, one=value: one})
            with suppress(Unusable):  # it stops where a batch has other groups
                assert not check(mine, kind).right, name


def nan_passes(loss: Any, mask: Any) -> Any:
    return (loss * mask).sum() / mask.sum().clamp(min=1)


def no_empty_row(loss: Any, mask: Any) -> Any:
    return (torch.where(mask, loss, 0).sum(1) / mask.sum(1)).mean()


def in_half_precision(log_probs: Any, ref_log_probs: Any) -> Any:
    if log_probs.dtype == torch.float32:
        log_probs, ref_log_probs = log_probs.bfloat16(), ref_log_probs.bfloat16()
    return torch.expm1(ref_log_probs - log_probs) - (ref_log_probs - log_probs)


def held_at_ten(log_probs: Any, ref_log_probs: Any) -> Any:
    delta = ref_log_probs - log_probs
    return (delta.exp() - delta - 1).clamp(-10, 10)


@pytest.mark.parametrize(
    ("tag", "kind", "function"),
    [
        ("nan", "reducer", nan_passes),
        ("float32", "kl_loss", in_half_precision),
        ("far", "kl_loss", held_at_ten),
        ("empty_row", "reducer", no_empty_row),
    ],
)
def test_what_must_not_change_a_result(tag: str, kind: str, function: Callable[..., Any]) -> None:
    strict = check(function, KINDS[kind], strict=True)
    assert (strict.status, strict.way) == ("mistake", tag), strict
    lenient = check(function, KINDS[kind])
    assert sections()["invariances"][tag][0] in " ".join([lenient.says, *lenient.notes])


def averaged_surrogate(log_probs, old_log_probs, advantages, clip_low, clip_high, mask):
    surrogate = losses.clipped_surrogate(log_probs, old_log_probs, advantages, clip_low, clip_high)
    return losses.token_mean(surrogate, mask)


@pytest.mark.parametrize(
    ("kind", "function", "way"),
    [
        ("policy_loss", averaged_surrogate, "clipped_surrogate"),
        ("policy_loss", losses.cispo, "cispo"),
        ("policy_loss", losses.sapo, "sapo"),
        ("policy_loss", losses.policy_gradient, "reinforce"),
        ("value_loss", losses.value_loss, "value_loss"),
        ("reducer", losses.token_mean, "token_losses"),
        ("reducer", losses.sequence_mean, "token_losses"),
        ("reducer", losses.sequence_sum, "token_losses"),
        ("reducer", losses.constant_length_mean, "token_losses"),
        ("kl_reward", kl.k1, "k1"),
        ("kl_loss", kl.k2, "k2"),
        ("kl_loss", kl.k3, "k3"),
        ("advantages", advantages.group_advantages, "z_score"),
        ("advantages", advantages.leave_one_out_advantages, "leave_one_out"),
        ("gae", advantages.gae, "gae"),
        ("whiten", advantages.whiten, "whiten"),
        ("preference_loss", preference_losses.dpo_loss, "dpo"),
        ("preference_loss", preference_losses.ipo_loss, "ipo"),
        ("token_rewards", token_rewards.token_level_rewards, "token_rewards"),
    ],
)
def test_our_own_equations_pass_strictly(kind: str, function: Callable[..., Any], way: str) -> None:
    verdict = check(function, KINDS[kind], strict=True)
    assert verdict.right and verdict.way == way, verdict


# --- the command -----------------------------------------------------------------------------------

MINE = """
import torch
def kl_loss(logprobs, ref_logprobs):
    delta = logprobs - ref_logprobs
    return torch.expm1(delta) - delta
def good(log_probs, old_logps, advantages, response_mask, clip_eps=0.2):
    ratio = torch.where(response_mask, log_probs - old_logps, 0).exp()
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_eps, 1 + clip_eps) * advantages)
    return torch.where(response_mask, loss, 0).sum() / response_mask.sum().clamp(min=1)
def nothing(loss, mask): pass
"""


def test_a_books_kl_is_explained_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """pi / pi_ref in place of pi_ref / pi."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    assert main([f"{tmp_path}/mine.py:kl_loss"]) == 1
    output = capfd.readouterr().out
    line = output.splitlines()[0]
    assert line.startswith("mistake:") and "It is pi_ref / pi" in line
    assert "yours [[0.6363]], wanted [[1.6137]]" in output
    assert main([f"{tmp_path}/mine.py:nothing"]) == main([f"{tmp_path}/mine.py:missing"]) == 2


@pytest.mark.skipif(not (find_spec("pip") and find_spec("setuptools")), reason="builds a wheel")
def test_the_wheel_alone_prints_what_the_readme_begins_with_and_tests_adapters(
    tmp_path: Path,
) -> None:
    """Built and installed offline, in an environment that has our torch and not this project."""
    shutil.copytree(ROOT / "conformance", tmp_path / "kit")  # a build leaves files there
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps"]
    built = [*pip, "wheel", "--no-build-isolation", *offline, "-w", tmp_path, tmp_path / "kit"]
    subprocess.run(built, check=True)
    (wheel,) = tmp_path.glob("glassbox_conformance-*.whl")
    venv.create(tmp_path / "env")
    python = tmp_path / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    subprocess.run([*pip, "--python", python, "install", *offline, wheel], check=True)
    shutil.rmtree(tmp_path / "kit")

    def said(line: str) -> subprocess.CompletedProcess[str]:
        outside = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        command = [python, *shlex.split(line)]
        return subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True)

    site = said("-c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'").stdout.strip()
    Path(site, "torch.pth").write_text(str(Path(torch.__file__).parents[1]), encoding="utf-8")
    assert "No module named 'rl'" in said("-c 'import rl'").stderr

    readme = (ROOT / "conformance" / "README.md").read_text(encoding="utf-8")
    code, printed = re.findall(r"^```\w+\n(.*?)^```$", readme, re.M | re.S)[:2]
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    asked, _, answer = printed.partition("\n")
    found = said(asked.removeprefix("$ python "))
    assert found.stdout == answer, found.stderr

    (tmp_path / "adapters.py").write_text(MINE, encoding="utf-8")
    plugin = "-p conformance.pytest_plugin -p no:cacheprovider --conformance adapters.py"
    ran = said(f"-m pytest -q {plugin}")
    assert ran.returncode == 1 and "1 failed" in ran.stdout, ran.stdout + ran.stderr
    assert "It is pi_ref / pi" in ran.stdout


HOSTILE = """
import os, time, torch

def leaves_policy_loss(log_probs, old_log_probs, advantages, mask, clip_low, clip_high):
    os._exit(0)

def hangs_policy_loss(log_probs, old_log_probs, advantages, mask, clip_low, clip_high):
    time.sleep(60)

def of_rows_policy_loss(log_probs, old_log_probs, advantages, mask, clip_low, clip_high):
    assert advantages.ndim == 1
    ratio, A = (log_probs - old_log_probs).exp(), advantages[:, None]
    loss = -torch.maximum(ratio * A, ratio.clamp(1 - clip_low, 1 + clip_high) * A)
    return torch.where(mask, loss, 0).sum() / mask.sum().clamp(min=1)
"""


@pytest.mark.parametrize(("name", "status"), [("leaves", 2), ("hangs", 2), ("of_rows", 1)])
def test_code_that_ends_the_process_or_never_ends_is_not_called_right(
    tmp_path: Path, name: str, status: int
) -> None:
    (tmp_path / "mine.py").write_text(HOSTILE, encoding="utf-8")
    seconds = ["--seconds", "2"] if name == "hangs" else []
    assert main([f"{tmp_path}/mine.py:{name}_policy_loss", *seconds]) == status
