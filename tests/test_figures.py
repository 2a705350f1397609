"""docs' figures: all are drawn from recorded numbers, in the shared colours, and say what is recorded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.files import read_object, save_figure
from report.style import COLOURS
from studies import __main__ as studies
from studies import archive, pages
from studies.claims import study as claims
from studies.overoptimisation.figures import median_curve

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SCRIPTS = ("demo", "compare")
OTHERWISE = {"report.png", "sliders.png", "playground.png"}  # by docs/site/pictures.py
# What matplotlib takes for a colour: #0072B2, "C0", "tab:blue", "0.65" and common names.
COLOUR = re.compile(
    r"#[0-9A-Fa-f]{6}\b|\"(?:C\d|tab:\w+|black|gr[ae]y|red|green|blue|orange|light\w+)\""
    r"|color=\"0?\.\d+\""
)


def test_the_code_of_figures_has_no_colour_of_its_own() -> None:
    """A colour has one meaning everywhere, so only report/style.py says which it is."""
    files = [*(ROOT / "studies").rglob("*.py"), *(ROOT / "scripts" / f"{n}.py" for n in SCRIPTS)]
    found = {str(path): COLOUR.findall(path.read_text(encoding="utf-8")) for path in files}
    assert len(found) > 20 and {name: colours for name, colours in found.items() if colours} == {}
    assert COLOUR.search('axis.plot(x, color="#0072B2")') and COLOUR.search('(x, y, "C0")')


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figure]:
    """Every figure of docs, by its file's path."""
    folder, found = tmp_path_factory.mktemp("docs"), dict[str, Figure]()

    def keep(figure: Figure, path: Path) -> None:
        save_figure(figure, path)
        assert path.is_file()
        found[path.relative_to(folder).as_posix()] = figure

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "save_figure", keep)
        studies.draw_figures(studies.FiguresConfig(out=folder))
    return found


def test_every_picture_of_docs_is_drawn_from_recorded_numbers(drawn: dict[str, Figure]) -> None:
    """Also those of the archive, whose runs are gone: a change of style can reach them all."""
    shown = {
        name
        for page in DOCS.glob("*.md")
        for name in re.findall(r"\]\(([\w/]+\.png)\)", page.read_text(encoding="utf-8"))
    }
    assert len(drawn) > 15 and {*drawn} == shown - OTHERWISE


def test_a_figure_names_what_it_shows_in_words(drawn: dict[str, Figure]) -> None:
    """Names of presets, of cures and of the keys of a JSON file have underscores."""
    words = [text.get_text() for figure in drawn.values() for text in figure.findobj(Text)]
    assert len(words) > 1000 and [each for each in words if "_" in each] == []


def test_a_claims_figure_carries_its_verdict(drawn: dict[str, Figure]) -> None:
    for name, record in read_object(claims.RECORDED)["claims"].items():
        (axis,) = drawn[f"claims/{name}.png"].axes
        assert axis.get_title(loc="left")
        assert axis.get_title(loc="right").endswith(record["verdict"])


def test_the_table_of_corrections_is_read_with_its_stars() -> None:
    table = archive.off_policy_table((DOCS / "archive.md").read_text(encoding="utf-8"))
    assert list(table) == list(archive.CORRECTIONS)
    assert table["sequence_tis"] == {
        "reviews, lag 16": (0.774, False), "reviews, lag 64": (0.659, True),
        "sums, lag 16": (0.682, True), "sums, lag 64": (0.749, True),
    }  # fmt: skip


@pytest.mark.parametrize(("holm", "stars"), [(0.04, 1), (0.06, 0), (None, 0)])
def test_a_star_marks_what_passes_the_corrected_test(holm: float | None, stars: int) -> None:
    axis, difference = Figure().subplots(), dict[str, Any](mean=0.2, by_start=[0.1, 0.2, 0.3])
    archive.draw_difference(axis, 0, difference | ({} if holm is None else {"holm": holm}))
    assert [line.get_marker() for line in axis.lines].count("*") == stars
    assert sorted(axis.lines[0].get_xdata()) == [0.1, 0.2, 0.3]


def test_a_median_curve_ends_where_half_of_the_runs_do() -> None:
    """Worked by hand: gold is 1, 2 and 9 times the distance, and the runs end at d = 1, 2 and 3."""
    runs = [
        {"points": {"kl": [0.0, end**2], "gold": [0.0, slope * end**2]}}
        for slope, end in ((1.0, 1.0), (2.0, 2.0), (9.0, 3.0))
    ]
    d, gold = median_curve(runs)
    assert d[-1] == pytest.approx(2.0) and gold[0] == 0
    near = int(np.argmin(abs(d - 0.9)))  # three runs are left, then two
    assert gold[near] == pytest.approx(2 * d[near] ** 2)
    assert gold[-1] == pytest.approx((2 * 4 + 9 * 4) / 2)


def test_meanings_have_colours_of_their_own() -> None:
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_no_title_is_cut_off_by_the_edge_of_its_figure(drawn: dict[str, Figure]) -> None:
    for name, figure in drawn.items():
        renderer = FigureCanvasAgg(figure).get_renderer()
        for text in (getattr(figure, "_suptitle", None), *(axis.title for axis in figure.axes)):
            if text is not None and text.get_text():
                box = text.get_window_extent(renderer)
                assert box.x0 >= 0 and box.x1 <= figure.bbox.width, (name, text.get_text())
