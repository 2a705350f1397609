"""Which files of the repository become which pages of the site. Nothing is executed or imported."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "docs"
PICTURES = (".png", ".svg", ".jpg", ".gif", ".webp")
LARGEST = 400_000  # bytes of a file that gets a page of its own
LARGEST_RECORDING = 8_000  # of numbers that a program wrote and no one reads line by line
NO_TEXT = (*PICTURES, ".ipynb", ".tiktoken", ".safetensors", ".gz", ".pt", ".bin", ".md")


@cache
def tracked() -> tuple[str, ...]:
    """The repository's files, relative and sorted: committed ones, and new ones git would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        names = listed.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):  # an archive without .git
        names = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()]
        skipped = (".git", ".venv", ".venv-peers", "build", "runs", "__pycache__")
        names = [name for name in names if not set(Path(name).parts) & set(skipped)]
    return tuple(sorted({name for name in names if (ROOT / name).is_file()}))


def guides() -> list[str]:
    """Markdown files that are pages; the boxes are read by their own program."""
    return [n for n in tracked() if n.endswith(".md") and not n.startswith(("docs/boxes/", "."))]


def notebooks() -> list[str]:
    return [name for name in tracked() if name.endswith(".ipynb") and name.startswith("notebooks/")]


def page_of_guide(name: str) -> str:
    """The site's page of a Markdown file: README.md is the first one."""
    return "index" if name == "README.md" else name.removesuffix(".md")


@cache
def sources() -> tuple[str, ...]:
    """Text files that are shown as they are, with numbered lines."""
    return tuple(
        name
        for name in tracked()
        if not name.endswith(NO_TEXT)
        and (ROOT / name).stat().st_size
        <= (LARGEST_RECORDING if name.endswith((".json", ".jsonl")) else LARGEST)
    )


@cache
def folders() -> frozenset[str]:
    """Folders that hold a source file somewhere; "." is the repository."""
    return frozenset(str(parent) for name in sources() for parent in Path(name).parents)


def page_of(name: str) -> str | None:
    """The page (without .html) that shows a file or folder of the repository, or None."""
    name = name.rstrip("/") or "."
    if name in guides():
        return page_of_guide(name)
    if name in notebooks():
        return name.removesuffix(".ipynb")
    if name == "docs/boxes":
        return "beside/index"
    if name.startswith("docs/boxes/") and name in tracked():
        return f"beside/{Path(name).stem}"
    if f"{name}/README.md" in guides():
        return f"{name}/README"
    if name in sources():
        return f"code/{name}"
    if name in folders():
        return f"code/{name}/index" if name != "." else "code/index"
    return None
