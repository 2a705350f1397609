"""Write what is listed of every engine, from its ENGINE and its box: run it after adding one, or a flag.

    python scripts/write_tables.py

It writes the tables of engines in README.md and rl/README.md, which contract holds for whom
(docs/engine_contract.md), who fits which card (docs/memory.md), the defaults of all flags
(tests/rl/training/defaults.json), and what the kept seeds of the demo ended at (README.md,
docs/results.md, docs/demo_seeds.svg). A test fails where one of them is not what this would write.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import dataclasses
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import demo_seeds

from harness.command_line import run_command
from harness.paths import REPOSITORY
from rl.commands import memory_tables
from rl.commands.engines import every_engine
from rl.training.config import EngineConfig


def from_folder(folder: str, name: str) -> Any:
    """A module of a folder that is no package."""
    path = str(REPOSITORY / folder)
    sys.path += [path] if path not in sys.path else []
    return importlib.import_module(name)


def between(page: str, mark: str, lines: Sequence[str], text: str | None = None) -> str:
    """A page of the repository with these lines between `<!-- MARK -->` and `<!-- end of MARK -->`.

    `text`: the page as it has become by now; default: as it is.
    """
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    if text is None:
        text = (REPOSITORY / page).read_text(encoding="utf-8")
    before, after = text.split(begin)[0], text.split(end)[1]
    return f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}"


# --- engines --------------------------------------------------------------------------------------


def boxes() -> list[tuple[Any, Any]]:
    """Every ENGINE with its box (docs/boxes), in the order of the boxes."""
    read_box = from_folder("docs/site", "boxes").read_box
    pairs = [(engine, read_box(engine.name)) for engine in every_engine()]
    return sorted(pairs, key=lambda pair: int(pair[1].fields["order"]))


def page_of_course(name: str, root: str) -> str:
    """A link to the page of the course with this name, which stands after the page's number."""
    (path,) = (REPOSITORY / "notebooks").glob(f"[0-9][0-9]_{name}.ipynb")
    return f"[{path.name[:2]}]({root}notebooks/{path.name})"


def front_page() -> str:
    rows = []
    for engine, box in boxes():
        numbers = re.split(r",\s*", box.fields["arxiv"])
        links = ", ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in numbers)
        rows.append([
            f"[{engine.box}](rl/{engine.name}_engine.py)",
            f"{box.fields['paper']} ({links})",
            f"[box](docs/boxes/{engine.name}.md)",
            page_of_course(box.fields["notebook"], ""),
        ])  # fmt: skip
    table = memory_tables.markdown(["engine", "paper", "box", "page"], rows)
    return with_demo_seeds("README.md", between("README.md", "engines", table))


def page_of_rl() -> str:
    rows = [
        [
            f"[{engine.name}_engine.py]({engine.name}_engine.py)",
            box.fields["idea"],
            box.fields["watch"],
            page_of_course(box.fields["notebook"], "../"),
        ]
        for engine, box in boxes()
    ]
    columns = ["engine", "the idea", "what to watch", "page"]
    return between("rl/README.md", "engines", memory_tables.markdown(columns, rows))


def contracts() -> str:
    """Each contract of the engines, with those that say why it cannot hold for them."""
    from_folder("tests", "toys")
    entries = from_folder("tests/rl", "engines")
    tests = from_folder("tests/rl", "test_engine_contract")
    rows = []
    for name, test in vars(tests).items():
        if name.startswith("test_") and "engine" in inspect.signature(test).parameters:
            skipped = [e.name for e in entries.ENGINES if tests.contract(test) in e.skips]
            rows.append([tests.contract(test).replace("_", " "), ", ".join(skipped)])
    table = memory_tables.markdown(["contract", "not for"], rows)
    return between("docs/engine_contract.md", "contracts", table)


def with_demo_seeds(page: str, text: str | None = None) -> str:
    """A page with what it says of the demo's kept seeds."""
    for mark, written in demo_seeds.PARTS[page].items():
        text = between(page, mark, written().splitlines(), text)
    assert text is not None
    return text


# --- flags and memory -----------------------------------------------------------------------------


def defaults() -> str:
    """The default of every flag: those of EngineConfig once, then what each engine has of its own."""

    def of(config: Any) -> dict[str, str]:
        return {field.name: str(field.default) for field in dataclasses.fields(config)}

    shared = of(EngineConfig)
    found = {"every engine": shared}
    for engine in every_engine():
        known = shared if isinstance(engine.config(), EngineConfig) else {}
        own = {name: value for name, value in of(engine.config).items() if value != known.get(name)}
        found[engine.name] = own
    return json.dumps(found, indent=1) + "\n"


def cards() -> str:
    return between(
        "docs/memory.md", "cards", memory_tables.card_tables(memory_tables.MemoryConfig())
    )


TABLES: dict[str, Callable[[], str]] = {
    "README.md": front_page,
    "rl/README.md": page_of_rl,
    "docs/results.md": lambda: with_demo_seeds("docs/results.md"),
    "docs/demo_seeds.svg": lambda: demo_seeds.picture(),
    "docs/engine_contract.md": contracts,
    "docs/memory.md": cards,
    "tests/rl/training/defaults.json": defaults,
}


@dataclasses.dataclass(frozen=True)
class TablesConfig:
    """Write what is listed of every engine, from its ENGINE and its box."""


def main(config: TablesConfig) -> None:
    """Write all of them, and say which have changed."""
    for name, text_of in TABLES.items():
        path, text = REPOSITORY / name, text_of()
        changed = not path.exists() or path.read_text(encoding="utf-8") != text
        path.write_text(text, encoding="utf-8")
        print(f"{name}: {'written' if changed else 'as it was'}")


if __name__ == "__main__":
    run_command(main, TablesConfig)
