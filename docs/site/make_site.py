"""Build the site, offline and searchable, in build/docs/html, and check every link in it.

    python docs/site/make_site.py          run Sphinx, then look after every internal link
    python docs/site/make_site.py --open   and open the first page in the browser

Needs requirements-docs.txt: `make docs`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import webbrowser
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / name) for name in ("", "scripts", "notebooks")]

import boxes
from playground import write_playground

BUILD = ROOT / "build" / "docs"
REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0; url={}.html">'


class Page(HTMLParser):
    """The anchors and the links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: set[tuple[str, str]] = set()  # tag, address
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src"):
                self.links.add((tag, value or ""))


def broken_links(site: Path) -> list[str]:
    """Links and anchors that lead nowhere, and files that would be loaded from a network, in words."""
    site, found = site.resolve(), []
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for tag, link in sorted(page.links):
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme or parts.netloc:
                wrong = tag != "a" and parts.scheme != "data"
            else:
                anchors = pages[target].anchors if target in pages else {parts.fragment}
                wrong = not target.is_file() or unquote(parts.fragment) not in anchors
            found += [f"{path.relative_to(site)}: <{tag}> {link}"] if wrong else []
    return found


def run_sphinx(html: Path) -> int:
    """Sphinx on the repository; warnings are errors, so that a broken link ends the build."""
    from sphinx.cmd.build import main as sphinx

    shutil.rmtree(html, ignore_errors=True)
    confdir, doctrees = str(ROOT / "docs" / "site"), str(BUILD / "doctrees")
    flags = ["-q", "-E", "-W", "--keep-going", "-j", "auto"]
    return sphinx(["-c", confdir, "-d", doctrees, *flags, str(ROOT), str(html)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--open", action="store_true", help="open the first page in the browser")
    arguments = parser.parse_args()
    begin, html = time.perf_counter(), BUILD / "html"
    if wrong := [problem for engine in boxes.engines() for problem in boxes.problems(engine)]:
        sys.exit("\n".join(wrong))
    if run_sphinx(html):
        sys.exit("the pages above need mending")
    (html / "index.html").write_text(REDIRECT.format("README"), "utf-8")
    scripts = shutil.ignore_patterns("*.html")
    shutil.copytree(ROOT / "docs" / "playground", html / "docs" / "playground", ignore=scripts)
    write_playground(html / "playground.html", ".", ".html")
    if broken := broken_links(html):
        sys.exit("\n".join(["these links lead nowhere, or to a network:", *broken]))
    seconds, pages = time.perf_counter() - begin, len(list(html.rglob("*.html")))
    print(f"{pages} pages, all links good, {seconds:.0f} s: {html / 'index.html'}")
    if arguments.open:
        webbrowser.open((html / "index.html").as_uri())


if __name__ == "__main__":
    main()
