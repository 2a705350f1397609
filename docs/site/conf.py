"""Sphinx's settings, math as MathML, and links from pages to the code. Built by make_site.py."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import api_pages
import files
from docutils import nodes
from formulas import mathml
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform

project = "Glassbox RLHF"
html_title = "Glassbox RLHF"
author = "Glassbox RLHF contributors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
master_doc = "index"
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 6
myst_dmath_double_inline = True
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_math_renderer = "mathml"
html_search_scorer = str(Path(__file__).with_name("static") / "scorer.js")
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_use_index = False  # it would be empty: the search finds names
html_show_copyright = False
html_show_search_summary = False  # it would fetch pages, which no browser does from file://
html_last_updated_fmt = None
html_theme_options = {"navigation_with_keys": True}
smartquotes_action = "qe"  # quotes and dots, and no dash made of the two hyphens of a flag
highlight_language = "none"  # of blocks that name none: commands and outputs
pygments_style = "default"
pygments_dark_style = "github-dark"


# --- math -----------------------------------------------------------------------------------------


def inline_math(self: Any, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block_math(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="formula">{mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


# --- links to the code ----------------------------------------------------------------------------


def relative(page: str, here: str) -> str:
    """The address of a page, seen from another one."""
    return posixpath.relpath(f"{page}.html", posixpath.dirname(here) or ".")


def page_of_link(target: str, here: str) -> str | None:
    """The page that shows the file or folder which a page links to."""
    if target.startswith("code/"):
        return files.page_of(target.removeprefix("code/") or ".")
    folder = posixpath.dirname("README" if here == "index" else here)
    return files.page_of(posixpath.normpath(posixpath.join(folder, target)))


class LinkedFiles(SphinxPostTransform):
    """A link to a file or folder of the repository leads to the page that shows it."""

    default_priority = 5  # before MyST looks for a page of that name and finds none
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node.get("reftype") != "myst" or node.get("refdomain"):
                continue
            target, _, anchor = str(node["reftarget"]).partition("#")
            here = self.env.docname
            page = page_of_link(target, here) if target else None
            if page is not None:
                address = relative(page, here) + (f"#{anchor}" if anchor else "")
                link = nodes.reference("", "", refuri=address, internal=True)
                link.extend(node.children)
                node.replace_self(link)


class LinkedNames(SphinxPostTransform):
    """Names of files, tests and functions in code style become links to where they are."""

    default_priority = 500
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        for node in list(self.document.findall(nodes.literal)):
            inside = node.parent
            while inside is not None and not isinstance(inside, (nodes.reference, nodes.title)):
                inside = inside.parent
            address = None if inside is not None else address_of(node.astext())
            if address:
                page, anchor = address
                uri = relative(page, self.env.docname) + (f"#{anchor}" if anchor else "")
                link = nodes.reference("", "", refuri=uri, internal=True, classes=["code-name"])
                node.replace_self(link)
                link += node


FUNCTIONS: dict[str, str] = {}  # dotted name -> page, of everything the reference pages show


def address_of(text: str) -> tuple[str, str] | None:
    """Page and anchor of `rl/grpo_engine.py`, `tests/x.py::test_y`, `rl.equations.kl.k3`."""
    path, _, name = text.partition("::")
    if re.fullmatch(r"[\w./-]+\.\w+", path) and path in files.sources():
        return f"code/{path}", name.split("[")[0]
    if text in FUNCTIONS:
        return FUNCTIONS[text], text.removeprefix(FUNCTIONS[text].removeprefix("api/") + ".")
    return None


def collect_names() -> None:
    for name in api_pages.modules():
        page = f"api/{api_pages.module_name(name)}"
        for title in api_pages.titles(name):
            FUNCTIONS[f"{api_pages.module_name(name)}.{title}"] = page


def mark_long_words(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """A word of code that no line of a phone holds may be cut; site.css keeps the others whole."""
    body = context.get("body") or ""
    context["body"] = re.sub(r'<span class="pre">(?=[^<]{38})', '<span class="pre long">', body)


# A third of a page with code would be marks of names, brackets and blanks, which have no colour.
COLOURLESS = re.compile(r'<span class="(?:n|p|w|o)">([^<]*)</span>')


def drop_colourless(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    context["body"] = COLOURLESS.sub(r"\1", context.get("body") or "")


def shorten_sidebar(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """A module's page lists its neighbours; the contents of the site do not name it and are as long."""
    if page.startswith("api/") and page != "api/index":
        context["furo_navigation_tree"] = api_pages.neighbours(page)
    else:
        contents = context.get("furo_navigation_tree") or ""
        context["furo_navigation_tree"] = contents.replace('"reference internal"', '"reference"')


def setup(app: Any) -> dict[str, Any]:
    collect_names()
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    app.add_post_transform(LinkedFiles)
    app.add_post_transform(LinkedNames)
    app.connect("html-page-context", mark_long_words)
    app.connect("html-page-context", drop_colourless)
    app.connect("html-page-context", shorten_sidebar, priority=900)  # after the theme has made it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
