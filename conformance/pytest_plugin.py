"""Adapters as tests: `pytest -p conformance.pytest_plugin --conformance adapters.py`.

Every function of the file that is named like a kind, `policy_loss` or `kl_loss_of_mine`, is one test.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from .__main__ import names_of, told
from .kinds import KINDS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--conformance", action="append", default=[], metavar="FILE.py")


class Adapter(pytest.Item):
    def reportinfo(self) -> tuple[str, int, str]:
        return self.name.rpartition(":")[0], 0, self.name

    def runtest(self) -> None:
        status, text = told(self.name)
        if status:
            pytest.fail(text, pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[Any]) -> None:
    for path in session.config.getoption("--conformance"):
        found = names_of(path)
        names = [n for n in found if any(k in n for k in KINDS) and inspect.isfunction(found[n])]
        items += [Adapter.from_parent(session, name=f"{path}:{name}") for name in names]
