"""Build the site: every page of the repository, offline and searchable, in build/docs/html.

    python docs/site/make_site.py          lay the pages out, run Sphinx, check every internal link
    python docs/site/make_site.py --open   and open the first page in the browser
    python docs/site/make_site.py --only docs/faq beside    a quick look at some pages while writing

Nothing is executed: notebooks come with their stored outputs, the reference from the docstrings, the
pages of code beside the paper from the engines' files. Needs requirements-docs.txt: `make docs`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
import webbrowser
from pathlib import Path

sys.path[1:1] = [
    str(Path(__file__).resolve().parents[2] / name) for name in ("", "scripts", "notebooks")
]

import boxes
import family
import files
import links
import source_pages
import staging
from playground import write_playground


def run_sphinx(jobs: str, part: bool) -> int:
    """Sphinx on what was laid out; warnings are errors, so that a broken link ends the build."""
    from sphinx.cmd.build import main as sphinx

    here = files.ROOT / "docs" / "site"
    pages, html = files.BUILD / "pages", files.BUILD / "html"
    shutil.rmtree(html, ignore_errors=True)
    strict = [] if part else ["-W", "--keep-going"]
    return sphinx(
        ["-b", "html", "-c", str(here), "-d", str(files.BUILD / "doctrees"), "-q", "-E", *strict,
         "-j", jobs, str(pages), str(html)]
    )  # fmt: skip


def drop_indents(html: Path) -> None:
    """The theme indents what surrounds an article, which shows nowhere: 1.5 kB a page."""
    for path in html.rglob("*.html"):
        before, found, rest = path.read_text("utf-8").partition("<article")
        article, end, after = rest.partition("</article>")
        slim = [re.sub(r"\n\s+", "\n", part) for part in (before, after)]
        path.write_text(slim[0] + found + article + end + slim[1], "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", default="auto", help="processes of Sphinx")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="PAGE",
        help="a quick look while writing: pages whose names begin so, links to others unchecked",
    )  # fmt: skip
    parser.add_argument("--open", action="store_true", help="open the first page in the browser")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    wrong = [problem for engine in boxes.engines() for problem in boxes.problems(engine)]
    if wrong:
        sys.exit("\n".join(wrong))
    part = bool(arguments.only)
    staging.stage(files.BUILD / "pages", tuple(arguments.only))
    if run_sphinx(arguments.jobs, part):
        sys.exit("the pages above need mending")
    drop_indents(files.BUILD / "html")
    family.write_pages(files.BUILD / "html")
    if not part:
        source_pages.write_pages(files.BUILD / "html")
        write_playground(None, None, files.BUILD / "html" / "playground.html", "code", ".html")
    broken = [] if part else links.problems(files.BUILD / "html")
    if broken:
        sys.exit("\n".join(broken))
    first = files.BUILD / "html" / "index.html"
    count = len(list(first.parent.rglob("*.html")))
    seconds, checked = time.perf_counter() - begin, "" if part else ", all links good"
    print(f"{count} pages{checked}, {seconds:.0f} s: {first}")
    if arguments.open:
        webbrowser.open(first.as_uri())


if __name__ == "__main__":
    main()
