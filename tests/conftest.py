"""What every test runs under: no network, one torch thread, and helpers for optional things.

One thread because sums and matrix products differ in their last bits between one thread and two:
a test that compares two paths bit for bit, or follows a recorded curve, needs the same arithmetic
on a laptop and in CI.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from harness.process import prepare

prepare()  # tests run commands in this process: waiting threads sleep, freed memory is kept

import pytest  # noqa: E402
import torch  # noqa: E402

from harness import run_folder  # noqa: E402
from report import __main__ as report_command  # noqa: E402

torch.set_num_threads(1)

IS_MISSING = " is not installed; "  # in the reason of a test that is skipped for want of a tool
WANTING_TOOLS = Path(__file__).resolve().parents[1] / "build" / "wanting_tools.txt"

# Files of few tests that take long begin first, so that no process is left with one at the end.
LONGEST = ("test_ranks.py",)


class NetworkBlocked(OSError):
    """A test tried to reach something that is not this machine.

    An OSError, so code that explains a missing network takes the same path as on a laptop offline.
    """


HERE = (None, "", "localhost", "127.0.0.1", "0.0.0.0", "::1", "::", socket.gethostname())


def refuse(host: Any) -> None:
    """Raise NetworkBlocked unless `host` (a name, an address or None) means this machine."""
    if (host.decode() if isinstance(host, bytes) else host) not in HERE:
        raise NetworkBlocked(f"tests do not use the network, but something asked for {host!r}")


def block_network(patch: pytest.MonkeyPatch) -> None:
    """Refuse every connection and look-up that leaves this machine; AF_UNIX stays."""

    def connecting(original: Callable[..., Any]) -> Callable[..., Any]:
        def connect(sock: socket.socket, address: Any) -> Any:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                refuse(address[0])
            return original(sock, address)

        return connect

    def looking_up(original: Callable[..., Any]) -> Callable[..., Any]:
        def look_up(host: Any, *args: Any, **options: Any) -> Any:
            refuse(host)
            return original(host, *args, **options)

        return look_up

    for name in ("connect", "connect_ex"):
        patch.setattr(socket.socket, name, connecting(getattr(socket.socket, name)))
    for name in ("getaddrinfo", "gethostbyname"):
        patch.setattr(socket, name, looking_up(getattr(socket, name)))


class WantingTools:
    """What was skipped because a tool is missing that requirements.txt does not bring."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole  # all tests were to run, so that all of these are known
        self.found: list[str] = []  # tests, and files that cannot be imported

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        why = report.longrepr  # of a skip: file, line and reason
        if report.skipped and isinstance(why, tuple) and IS_MISSING in why[2]:
            self.found.append(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.found:
            terminalreporter.line(f"{len(self.found)} skipped for want of tools: `make dev docs`")
        if self.whole:
            WANTING_TOOLS.parent.mkdir(exist_ok=True)
            WANTING_TOOLS.write_text("".join(f"{name}\n" for name in self.found))


def pytest_configure(config: pytest.Config) -> None:
    """Block before collection, so that imports at the top of test files are covered too."""
    patch = pytest.MonkeyPatch()
    block_network(patch)
    config.add_cleanup(patch.undo)
    if not hasattr(config, "workerinput"):  # of several processes, the one that has all reports
        whole = config.args_source is config.ArgsSource.TESTPATHS and not config.option.collectonly
        config.pluginmanager.register(WantingTools(whole))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)  # stable: the rest keeps its order


def require_package(name: str, installs: str = "make dev") -> ModuleType:
    """Import an optional package, or skip; where REQUIRE_ORACLES=1 (in CI) its absence fails.

    At the top of a test file, `from conftest import require_package` skips the whole file;
    inside a test use the fixture `require`.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.split(".")[0]:
            raise
        reason = f"{name}{IS_MISSING}`{installs}` installs it"
        if os.environ.get("REQUIRE_ORACLES") == "1":
            pytest.fail(f"REQUIRE_ORACLES=1, but {reason}")
        pytest.skip(reason, allow_module_level=True)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Unseeded draws are the same ones alone, in any order and in any of several processes."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def pages_drawn_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is drawn by this process, which has loaded all it needs; that of an ended run not at all."""

    def page_of(folder: Path) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            report_command.main(report_command.ReportConfig((folder,)))
        return said.getvalue()

    monkeypatch.setattr(run_folder, "page_of", page_of)
    monkeypatch.setattr(run_folder, "page_of_the_unfinished", lambda folder: None)


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The flat gradient of each optimizer step of an engine, as it reaches the clip."""
    from watched import seen_gradients

    return seen_gradients(monkeypatch)


@pytest.fixture(scope="session")
def require() -> Callable[[str], ModuleType]:
    """`require("transformers")`: the imported package, or a skip with a reason (see above)."""
    return require_package


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes Python into rewards_N.py of the working folder; gives the module's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    count = itertools.count()

    def write(text: str) -> str:
        name = f"rewards_{tmp_path.name.replace('-', '_')}_{next(count)}"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return name

    return write
