"""Sphinx's settings. The source folder is the repository; make_site.py starts the build.

Nothing is executed: notebooks come with their stored outputs. Four kinds of pages get their Markdown
here, when Sphinx reads them: the front page its table of contents, a box its engine's code, a Python
file its lines, docs/explorables.md what can be played with.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / "docs" / "site"), str(ROOT / "notebooks")]

import beside
from course.explorables import html_of
from docutils import nodes
from sphinx import addnodes

project = html_title = "Glassbox RLHF"
author = "Glassbox RLHF contributors"
extensions = ["myst_nb", "sphinx.ext.mathjax"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".py": "myst-nb"}
root_doc = "README"
PACKAGES = ("nano", "data", "gpt", "reward_model", "rl", "harness", "report", "conformance")
include_patterns = [
    *("*.md", "*/README.md", "docs/*.md", "docs/boxes/*.md"),
    *("notebooks/*.ipynb", "notebooks/teaching/*.md"),
    *(
        f"{folder}/**.py"
        for folder in (
            *PACKAGES,
            "scripts",
            "studies",
            "bench",
            "tests",
            "docs/site",
            "docs/examples",
        )
    ),
    *(f"notebooks/{name}.py" for name in ("build", "grade", "hand_out", "slides")),
    *("notebooks/course/**.py", "notebooks/course/**.md"),
]
exclude_patterns = [".*", "build", "runs", "**/__pycache__"]

nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath", "html_image"]
myst_heading_anchors = 6
suppress_warnings = ["myst.header", "misc.highlighting_failure", "mystnb.unknown_mime_type"]
smartquotes = False  # two hyphens of a flag are no dash
highlight_language = "none"  # of blocks that name none: commands and outputs

# MathJax in one file, which holds its glyphs: no network, and no font that file:// would refuse.
mathjax = find_spec("sphinx-mathjax-offline")
assert mathjax and mathjax.origin, "formulas need requirements-docs.txt: make docs"
mathjax_path = "tex-svg.js"
mathjax3_config: dict[str, Any] = {"options": {"enableMenu": False}}
html_static_path = ["static", str(Path(mathjax.origin).parent / "static/mathjax/tex-svg.js")]

html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = False
html_use_index = False  # it would be empty
html_show_search_summary = False  # it would fetch pages, which no browser does from file://
pygments_style = "default"
pygments_dark_style = "github-dark"

# The sidebar: title -> pages of docs/, or a path. Other pages of docs/ stand under Guide.
SECTIONS = {
    "Nano: to understand": "/nano/README",
    "Course": "/notebooks/README /notebooks/[0-9]* /notebooks/teaching/*",
    "Code beside the paper": " ".join(f"/docs/boxes/{box.engine}" for box in beside.all_boxes()),
    "Play": "explorables",
    "Guide": "guide faq your_pairs /data/README /reward_model/README /rl/README",
    "Results": "results claims overoptimisation judges real_model benchmarks archive",
    "Proofs": "equations reliability",
    "Look up": "glossary cheat_sheet metrics papers",
    "Project": "comparison /CONTRIBUTING /CHANGELOG /docs/README /conformance/README",
}


def contents() -> str:
    """Hidden tables of contents, which the theme shows as the sidebar."""
    known = {name for pages in SECTIONS.values() for name in pages.split()}
    docs = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    text = ""
    for title, pages in SECTIONS.items():
        names = pages.split()
        if title == "Guide":
            names += [name for name in docs if name not in known and name != "README"]
        paths = [name if name.startswith("/") else f"/docs/{name}" for name in names]
        listed = [path for path in paths if "*" in path or any(ROOT.glob(f"{path[1:]}.*"))]
        text += toctree("\n".join(listed), f":caption: {title}\n")
    return text


def toctree(pages: str, options: str = "") -> str:
    return f"\n```{{toctree}}\n:hidden:\n:glob:\n{options}\n{pages}\n```\n"


def code_page(path: Path) -> str:
    """A Python file with its lines numbered; one of nano/ also as a diff from GRPO's."""
    name, fence = path.relative_to(ROOT).as_posix(), "~" * 9
    box = beside.page_name(path)
    said = f"[Beside its algorithm](/{box}.md)\n\n" if box else ""
    head = f"---\norphan: true\nnosearch: true\n---\n# {name}\n\n{said}"
    text = f"{head}{fence}{{code-block}} python\n:linenos:\n\n{path.read_text('utf-8')}{fence}\n"
    if path.parent.name == "nano" and path.stem not in ("__init__", "gpt", "rlhf", "grpo"):
        text += f"\n## From GRPO's file to this one\n\n```{{literalinclude}} /{name}\n"
        text += ":diff: /nano/grpo.py\n```\n"
    return text


def read_source(app: Any, page: str, source: list[str]) -> None:
    path = Path(app.env.doc2path(page))
    if page == root_doc:
        source[0] += contents()
    elif page == "nano/README":
        source[0] += toctree("rlhf\ngpt\n*")
    elif page == "docs/explorables":
        text = re.sub(r"<!-- on GitHub -->.*?<!-- end -->", "", source[0], flags=re.DOTALL)
        text = re.sub(r"<!-- on the site: (.*?) -->", r"\1", text, flags=re.DOTALL)
        parts = re.split(r"<!-- explorable: (\w+) -->", text)
        parts[1::2] = [f"~~~~{{raw}} html\n{html_of(name)}\n~~~~" for name in parts[1::2]]
        source[0] = "".join(parts)
    elif path.parent.name == "boxes":
        source[0] = beside.page(path.stem)
    elif path.suffix == ".py":
        source[0] = code_page(path)


def link_to_folders(app: Any, doctree: nodes.document) -> None:
    """A link to a folder leads to its README; where it has none, its words stay."""
    here = Path(app.env.doc2path(app.env.docname)).parent
    for node in list(doctree.findall(addnodes.pending_xref)):
        folder = here / node["reftarget"]
        if folder.is_dir() and (folder / "README.md").exists():
            page = (folder / "README").resolve().relative_to(ROOT).as_posix()
            node["refdomain"], node["reftarget"], node["reftargetid"] = "doc", page, None
        elif folder.is_dir():
            node.replace_self(node.children)


def link_to_pages(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Links in the HTML of a cell's output lead to pages too, not to the files they show."""
    here = (ROOT / page).parent

    def page_of(found: re.Match[str]) -> str:
        return f'href="{found[1]}.html' if (here / f"{found[1]}{found[2]}").exists() else found[0]

    body = context.get("body") or ""
    context["body"] = re.sub(r'href="([\w./-]+)(\.(?:py|md|ipynb))(?=["#])', page_of, body)


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", read_source)
    app.connect("doctree-read", link_to_folders)
    app.connect("html-page-context", link_to_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
