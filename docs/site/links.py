"""Every internal link of the built site leads somewhere: checked in the files, offline."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors and the links of a page; what comes from a network is noted apart."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.foreign: set[str] = set()  # loaded, not linked: the site must do without a network

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if "data-names" in found:  # a file's lines and definitions: static/code.js makes them
            self.anchors |= {f"L{number + 1}" for number in range(int(found["data-lines"]))}
            self.anchors |= set(found["data-names"].split()[1::2])
        loaded = [found.get("src", "")] + ([found.get("href", "")] if tag == "link" else [])
        for address in loaded:
            if address.startswith(("http:", "https:", "//")):
                self.foreign.add(address)
        self.links |= {a for a in (found.get("href"), found.get("src")) if a}


def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text("utf-8"))
    return page


def problems(site: Path) -> list[str]:
    """Broken links and anchors, and files that would be loaded from a network, in words."""
    pages = {path: read(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        here = path.relative_to(site)
        found += [f"{here} loads {address} from a network" for address in sorted(page.foreign)]
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("#!"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists() or target.is_dir():
                found.append(f"{here}: {link} leads nowhere")
            elif parts.fragment and target in pages:
                if unquote(parts.fragment) not in pages[target].anchors:
                    found.append(f"{here}: {link} has no such place on that page")
    return found


if __name__ == "__main__":
    broken = problems(Path(sys.argv[1]))
    print("\n".join(broken) or "all links good")
    sys.exit(bool(broken))
