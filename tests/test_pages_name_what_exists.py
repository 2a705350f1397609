"""What pages and code name is there: paths, versions, stories. (`make docs` follows the links.)"""

from __future__ import annotations

import re
import subprocess
import tokenize
from functools import cache
from io import StringIO
from pathlib import Path

import bug_stories as zoo
import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("harness", "data", "gpt", "reward_model", "rl", "report", "nano")
CODE = (*PRODUCT, "conformance", "scripts", "studies", "bench")
INVENTED = {  # names that stand for a reader's own, or for what a command writes
    *("NN_topic.py", "my_rewards.py", "mine.py", "filter.py", "my_file.py", "FILE.py", "file.py"),
    *("table.md", "_engine.py", "tis_engine.py", "STUDY.md", "study_budget.md", "gpu.json", "x.py"),
    *("my_engine.py", "answers.py", "slides.md", "to_tensorboard.py"),
}


@cache
def tracked() -> tuple[str, ...]:
    """Files of the repository, also new ones; without git those that are there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.splitlines() or [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
    return tuple(name for name in names if (ROOT / name).is_file())


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def python_files(*folders: str) -> list[str]:
    return [n for n in tracked() if n.endswith(".py") and n.split("/")[0] in folders]


TOPS = (
    "conformance|harness|data|gpt|reward_model|rl|nano|scripts|studies|bench|tests|notebooks|docs"
)
PATHS = re.compile(rf"(?<![\w/.-])((?:{TOPS})/[\w/.-]*\.(?:py|md|json|jinja|png|svg|txt))\b")
NAMES = re.compile(r"(?<![\w/.*-])(\w+\.(?:py|md))\b")
MODULES = re.compile(
    r"python -m ((?:conformance|harness|data|gpt|reward_model|rl|studies)\.[\w.]*\w)"
)


@cache
def known_names() -> set[str]:
    return {Path(file).name for file in tracked()} | INVENTED


def strange(name: str) -> list[str]:
    """Paths, file names and modules in a text that do not exist; a command of another revision may."""
    page = re.sub(r"^git checkout .*\n.*", "", text(name), flags=re.MULTILINE)
    files, known = set(tracked()), known_names()
    paths = [p for p in PATHS.findall(page) if p not in files and Path(p).name not in INVENTED]
    paths = [p for p in paths if "NAME" not in p and not (ROOT / name).parent.joinpath(p).exists()]
    modules = [m for m in MODULES.findall(page) if "NAME" not in m]
    modules = [
        m for m in modules
        if files.isdisjoint(m.replace(".", "/") + end for end in (".py", "/__main__.py"))
    ]  # fmt: skip
    return [*paths, *(n for n in NAMES.findall(page) if n not in known), *modules]


def test_paths_in_pages_and_code_exist() -> None:
    pages = [n for n in tracked() if n.endswith((".md", ".jinja")) or n == "Makefile"]
    files = python_files(*CODE, "notebooks", "docs")
    assert len(pages) > 40 and len(files) > 200
    assert {name: found for name in [*pages, *files] if (found := strange(name))} == {}


def test_names_in_the_backticks_of_code_exist() -> None:
    """Those with an underscore or a capital: as a name of some file, or in a short text of one."""
    known, used = {"kl_loss_of_mine", "to_json"}, dict[str, str]()  # of others
    for name in python_files(*CODE, "tests", "notebooks"):
        for token in tokenize.generate_tokens(StringIO(text(name)).readline):
            if token.type == tokenize.NAME or (
                token.type == tokenize.STRING and len(token[1]) < 80
            ):
                known |= {*re.findall(r"\w+", token.string)}
    for name in python_files(*CODE):
        words = re.findall(r"[A-Za-z_]\w+", " ".join(re.findall(r"`([^`\n]+)`", text(name))))
        used |= {word: name for word in words if "_" in word or word != word.lower()}
    assert len(used) > 100
    assert {word: name for word, name in used.items() if word not in known} == {}


def test_the_version_is_the_same_everywhere() -> None:
    (version,) = re.findall(r'^version = "(.+)"$', text("pyproject.toml"), re.M)
    assert f"\nversion: {version}\n" in text("CITATION.cff")


@pytest.mark.parametrize("name", zoo.STORIES)
def test_the_right_line_stands_where_the_story_says(name: str) -> None:
    story = zoo.STORIES[name]
    path, number = zoo.place(story).split(":")
    lines = (zoo.REPOSITORY / path).read_text(encoding="utf-8").splitlines()
    assert story.right in lines[int(number) - 1]
    assert story.wrong != story.right
