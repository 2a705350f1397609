"""What a teacher runs: points for a file, a deck of slides, what is handed out."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import grade
import hand_out
import mutation_check
import pytest
import slides
from course import entered
from course.exercises import all_cases, load, names, verdict

RIGHT_WHITEN = """
# %% [markdown]
# A page of text.
# %%
import torch
from course.exercises import check
# %%
def my_whiten(x, mask):
    valid = x[mask]
    return torch.where(mask, (x - valid.mean()) / (valid.std() + 1e-8), 0.0)
check("whiten", my_whiten)
# %%
raise ValueError("a student's cell")
# %%
def my_rloo_loss(log_probs, advantages, mask):
    return (advantages * log_probs).mean()
check("rloo_loss", my_rloo_loss)
"""


def points(graded: dict[str, Any]) -> dict[str, int]:
    return {row["name"]: row["points"] for row in graded["exercises"]}


def test_a_page_is_graded_by_what_it_asks_and_goes_on_after_an_error(tmp_path: Path) -> None:
    page = tmp_path / "10_mine.py"
    page.write_text(RIGHT_WHITEN)
    graded = grade.grade(page, seed=4711)
    assert points(graded) == {"rloo_loss": 0, "whiten": 1, "who_rises": 0, "whose_advantages": 0}
    assert (graded["points"], graded["of"]) == (1, 4)
    assert {row["name"]: row["word"] for row in graded["exercises"]}["whose_advantages"] == "empty"
    assert len(graded["stopped"]) == 1 and "ValueError" in graded["stopped"][0]


def test_a_function_that_knows_the_pages_batches_fails_on_hidden_ones(tmp_path: Path) -> None:
    """It has learned the answers to the page's own cases by heart."""
    exercise = load("others_mean")
    book = {
        float(case.arguments["rewards"].sum()): exercise.solution(*case.arguments.values()).tolist()
        for case in all_cases(exercise)
    }
    page = tmp_path / "answers.py"
    page.write_text(
        f"import torch\nBOOK = {book}\n"
        "def others_mean(a, size):\n    return torch.tensor(BOOK.get(float(a.sum()), [0.0] * len(a)))\n"
    )
    assert points(grade.grade(page)) == {"others_mean": 1}
    assert points(grade.grade(page, seed=1)) == {"others_mean": 0}


def test_hidden_batches_are_others_for_every_seed() -> None:
    drawn = [hand_out.hidden("token_mean", seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and len(drawn[0]) == 6


def test_entered_answers_count_for_the_students_own_number(tmp_path: Path) -> None:
    right = entered.right_answer("gigabytes_per_gpu", 5)
    file = tmp_path / "answers.json"
    file.write_text(json.dumps({"number": 5, "answers": {"gigabytes_per_gpu": right}}))
    assert points(grade.grade(file, number=5)) == {"gigabytes_per_gpu": 1}
    assert points(grade.grade(file, number=6)) == {"gigabytes_per_gpu": 0}
    assert points(grade.grade(file, page="24")) == {
        "hard_prompts_weight": 0, "gigabytes_per_gpu": 1, "cause_of_the_jump": 0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "flags"),
    [
        ("x.py", "a = 1", {}),
        ("x.ipynb", "no notebook", {}),
        ("x.json", '{"answers": {"nothing": 1}, "number": 1}', {}),
        ("x.json", "[]", {}),
        ("x.py", "import os; os._exit(0)", {"page": "07"}),
        ("x.py", "while True: pass", {"page": "07", "seconds": 8}),
        ("x.py", "a = 1", {"page": "99"}),
    ],
)
def test_what_cannot_be_graded_is_refused(
    name: str, text: str, flags: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(grade.GradeError):
        grade.grade(tmp_path / name, **flags)


def test_the_command_prints_points_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answers.json"
    file.write_text(json.dumps({"number": 0, "answers": {"cause_of_the_jump": "z"}}))
    grade.main([str(file)])
    assert "0 of 1 points" in capsys.readouterr().out
    grade.main([str(file), "--json"])
    assert json.loads(capsys.readouterr().out)["of"] == 1


# --- slides ---------------------------------------------------------------------------------------


def test_the_deck_has_the_figures_and_formulas_of_its_pages(tmp_path: Path) -> None:
    file = slides.deck(slides.pages(["07", "24"]), tmp_path / "deck")
    text = file.read_text(encoding="utf-8")
    assert text.startswith("---\nmarp: true\n")
    named = re.findall(r"!\[\]\((figures/[^)]+)\)", text)
    stored = [
        output
        for page in slides.pages(["07", "24"])
        for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len([name for name in named if name.endswith(".png")]) == len(stored) > 3
    for name in named:
        content = (file.parent / name).read_bytes()
        assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<svg")
    formulas = [
        "".join(f)
        for page in slides.pages(["07", "24"])
        for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "markdown"
        for f in slides.FORMULA.findall("".join(cell["source"]))
    ]
    assert len(formulas) > 3 and all(formula in text for formula in formulas)
    assert "## To remember" in text and ".ipynb)" not in text
    assert all(slide.strip() for slide in text.split("\n---\n")[2:])


def test_a_page_that_is_not_there_is_refused() -> None:
    with pytest.raises(slides.SlideError):
        slides.pages(["98"])


# --- what is handed out ---------------------------------------------------------------------------


def test_pages_lose_their_solutions_and_nothing_else(tmp_path: Path) -> None:
    page = grade.FOLDER / "10_rloo_and_reinforce_plus_plus.ipynb"
    before = json.loads(page.read_text(encoding="utf-8"))
    after = hand_out.without_solutions(page)
    text = "".join("".join(cell["source"]) for cell in after["cells"])
    assert "<summary>Solution" not in text and 'check("whiten", my_whiten)' in text
    assert len(after["cells"]) == len(before["cells"])
    assert after["cells"][1] == before["cells"][1]


@pytest.mark.parametrize("name", names())
def test_the_solution_in_the_drawer_is_right(name: str) -> None:
    space: dict[str, Any] = {}
    exec(hand_out.IMPORTS + hand_out.solution(name), space)
    assert verdict(name, space[f"my_{name}"]).word == "right"


def test_the_drawer_holds_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course.exercises.names", lambda: ["k3"])
    hand_out.hand_out(seed=3, students=2, out=tmp_path)
    with open(tmp_path / "teacher" / "entered.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["number"] for row in rows] == ["0", "1", "2"]
    assert float(rows[1]["pairs_needed"]) == entered.right_answer("pairs_needed", 1)
    hidden = json.loads((tmp_path / "teacher" / "hidden.json").read_text(encoding="utf-8"))
    assert hidden["seed"] == 3 and len(hidden["exercises"]["k3"]) == 6
    handed = tmp_path / "students" / "repository" / "notebooks"
    assert "<summary>Solution" not in (handed / "07_grpo.ipynb").read_text(encoding="utf-8")
    assert (handed / "course" / "sealed.json").exists() and not (handed / "teaching").exists()
    assert (tmp_path / "teacher" / "solutions" / "07_grpo.py").exists()


def test_nothing_is_handed_out_into_the_repository() -> None:
    with pytest.raises(SystemExit):
        hand_out.main(["--seed", "1", "--out", str(grade.FOLDER / "out")])


def test_a_copy_with_a_bug_does_not_tell_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = mutation_check.test_file("test_worked_numbers.py")

    def small_copy(folder: Path) -> Path:
        for path in ("rl/equations/kl.py", "scripts/planted_bugs.txt", told):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(mutation_check.ROOT / path, folder / path)
        return folder

    monkeypatch.setattr(mutation_check, "repository_copy", small_copy)
    (tmp_path / "teacher").mkdir()
    hand_out.with_a_bug("k1-sign", 1, tmp_path)
    copy = tmp_path / "students" / "with_a_bug"
    right = (mutation_check.ROOT / "rl/equations/kl.py").read_text(encoding="utf-8")
    wrong = (copy / "rl/equations/kl.py").read_text(encoding="utf-8")
    planted = "ref_log_probs.detach() - where_finite"
    assert wrong.count(planted) == right.count(planted) + 1
    assert not (copy / "scripts/planted_bugs.txt").exists() and not (copy / told).exists()
    assert "k1-sign" in (tmp_path / "teacher" / "bug.txt").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        hand_out.with_a_bug("no-such-bug", 1, tmp_path)
