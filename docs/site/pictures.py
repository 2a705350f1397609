"""Make anew the pictures of docs that were seen in a browser, with headless Chromium.

    python docs/site/pictures.py          docs/sliders.png, docs/playground.png and docs/report.png

The last one shows the run that `make demo` has left in runs/demo, and stays as it is without one. Each page
gets a few lines that move a slider or hide what the picture has no room for; nothing is painted over.
`make report-picture` runs it (Debian: apt install chromium; another browser: CHROMIUM=...).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / name) for name in ("", "scripts", "notebooks")]

from course.explorables import html_of
from PIL import Image, ImageChops
from playground import write_playground

WIDTH, HEIGHT, SCALE = 850, 2000, 1.5  # of the window: pages of GitHub are about so wide
MARGIN = 15  # pixels of a picture, above and below
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync "
    f"--force-device-scale-factor={SCALE} --window-size={WIDTH},{HEIGHT} --virtual-time-budget=20000"
)
REPORT = ROOT / "runs" / "demo" / "grpo" / "report.html"
# Gold has turned there.
MOVED = """<style>body { margin: 0 12px } .gx-tries { display: none }</style>
<script>explorables.mounted.proxy.change({ pressure: 0.55 });</script>"""
TOKENS = """<style>
body > :is(.row, .quiet, p:not(#numbers)), h1, form label:not(.wide) { display: none }
</style>
<script>document.querySelector("#base-answer .token").click();</script>"""
TOP = "<style>.more, #tokens, #tokens ~ *, .panel:nth-child(n + 5) { display: none }</style>"


def pages(folder: Path) -> dict[str, str]:
    """The pages to be seen, by the pictures' names."""
    write_playground(folder / "playground.html")
    found = {
        "sliders.png": "<!doctype html><meta charset='utf-8'>" + html_of("proxy") + MOVED,
        "playground.png": (folder / "playground.html").read_text("utf-8") + TOKENS,
    }
    if REPORT.exists():
        found["report.png"] = REPORT.read_text("utf-8") + TOP
    return found


def take(page: Path, picture: Path, chromium: str) -> None:
    """A picture of a page, in 256 colours and without the empty space above and below."""
    profile = page.with_suffix(".profile")
    own = [f"--user-data-dir={profile}", f"--screenshot={picture}", page.as_uri()]
    subprocess.run([chromium, *FLAGS.split(), *own], check=True, capture_output=True, timeout=300)
    with Image.open(picture) as image:
        seen = image.convert("RGB")
    paper = Image.new("RGB", seen.size, seen.getpixel((0, 0)))
    used = ImageChops.difference(seen, paper).getbbox() or (0, 0, *seen.size)
    edges = max(used[1] - MARGIN, 0), min(used[3] + MARGIN, seen.height)
    kept = seen.crop((0, edges[0], seen.width, edges[1]))
    colours = kept.quantize(256, Image.Quantize.MAXCOVERAGE, 2, dither=Image.Dither.NONE)
    colours.save(picture, optimize=True)  # a third of the size; large areas keep their colour


def main() -> None:
    chromium = (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    )
    if chromium is None:
        sys.exit("no Chromium here: apt install chromium, or set CHROMIUM to a browser's path")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in pages(Path(folder)).items():
            page = Path(folder) / f"{name}.html"
            page.write_text(text, "utf-8")
            picture = ROOT / "docs" / name
            take(page, picture, chromium)
            print(f"docs/{name}: {picture.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
