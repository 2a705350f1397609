"""Links of the Markdown pages, the FAQ's numbers, and the checker of the built site."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "site"))

import boxes

ROOT = Path(__file__).resolve().parents[2]
FAQ = ROOT / "docs" / "faq.md"
COURSE = [*ROOT.glob("notebooks/[0-9][0-9]_*.py"), *ROOT.glob("notebooks/course/*.md")]
FOLDERS = [*ROOT.glob("*/*.md"), *ROOT.glob("[a-z]*/*/README.md")]
MARKDOWN = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *FOLDERS]
PAGES = sorted({*MARKDOWN, *COURSE})


def written(path: Path) -> str:
    """A page's text; of a notebook's source its comments, where the text cells are."""
    text = path.read_text("utf-8")
    return text if path.suffix == ".md" else "\n".join(re.findall(r"^# (.*)$", text, flags=re.M))


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


@cache
def anchors(path: Path) -> frozenset[str]:
    """The places that a page's headings make, as GitHub and the site name them."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return frozenset(re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain)


def broken(path: Path, text: str) -> list[str]:
    """Links of a page to files that are not there, or to places that they do not have."""
    found = []
    for target in re.findall(r"\]\(<?([^)\s>]+)>?\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        start = ROOT if name.startswith("/") else path.parent
        file = (start / name.lstrip("/")).resolve() if name else path
        if not file.exists():
            found.append(f"{path.name}: {target} leads nowhere")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            found.append(f"{path.name}: {target} has no such heading")
    return found


def test_links_of_a_page_lead_somewhere() -> None:
    for path in PAGES:
        assert broken(path, written(path)) == []


# --- the FAQ -------------------------------------------------------------------------------------


@cache
def metric_keys() -> frozenset[str]:
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[^|]+) \|", text, flags=re.MULTILINE)
    return frozenset(key for row in rows for key in re.findall(r"`([^`]+)`", row))


def test_rules_that_the_faq_names_are_the_doctors() -> None:
    known = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/doctor.md").read_text("utf-8"), re.M))
    text = FAQ.read_text("utf-8")
    sentences = re.findall(r"the doctor's rules? ([^(;,.]*(?:,[^(;.]*)?)", text)
    named = {name for sentence in sentences for name in re.findall(r"`(\w+)`", sentence)}
    assert len(named) > 8 and named <= known | metric_keys()


def test_flags_that_the_faq_names_exist() -> None:
    known = {"--reducer", "--variant"} | {
        f"--{name.replace('_', '-')}"
        for path in [*ROOT.glob("*/*.py"), *ROOT.glob("rl/training/*.py")]
        for name in re.findall(r"^    (\w+): ", path.read_text("utf-8"), flags=re.MULTILINE)
    }
    assert set(re.findall(r"`?(--[a-z][\w-]*)", FAQ.read_text("utf-8"))) - known == set()


# --- the checker of the built site ---------------------------------------------------------------


def test_folders_of_boxes_are_what_the_site_shows() -> None:
    """A link to a box in the repository is a link to its page on the site."""
    import files

    for engine in boxes.engines():
        assert files.page_of(f"docs/boxes/{engine}.md") == f"beside/{engine}"
    assert files.page_of("docs/boxes") == "beside/index"
    assert files.page_of("rl/grpo_engine.py") == "code/rl/grpo_engine.py"
    assert files.page_of("rl") == "rl/README" and files.page_of("data") == "data/README"
    assert files.page_of("no/such.py") is None
