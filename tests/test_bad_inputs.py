"""Every malformed input ends in one sentence with place and remedy, before anything is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from bad_inputs import Case, cases, make_killed, make_start
from forked import command

from harness.command_line import explained
from harness.run_folder import FREE_FLAGS, script_of, unlock

ROOT = Path(__file__).resolve().parents[1]
# What a user can do about it, or what would be right.
REMEDY = re.compile(
    r"\b(must|check|correct|use|give|name|pass|train|save|resume|leave|restore|raise|lower|make|add|"
    r"download|run|mend|delete|remove|expected|needs?|wants?|is a share|fill|move|takes|choose)\b"
)


def files_in(folder: Path) -> dict[str, bytes | None]:
    """Every path with its content; what is no regular file has none."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() and not path.is_symlink()
        and str(path.resolve()) != "/dev/zero" else None
        for path in sorted(folder.rglob("*"))
    }  # fmt: skip


def without_free_flags(files: dict[str, bytes | None]) -> dict[str, object]:
    """The same without the flags in config.json that --resume brings up to date."""
    compared: dict[str, object] = dict(files)
    for name, content in files.items():
        if name.endswith("config.json") and content is not None:
            with suppress(
                ValueError, AttributeError, RecursionError
            ):  # a broken one must stay as it is
                flags = json.loads(content).items()
                compared[name] = [flag for flag in flags if flag[0] not in FREE_FLAGS]
    return compared


def refusal(case: Case, flags: dict) -> str:
    """The sentence with which the script ends, as on the command line."""
    with pytest.raises(SystemExit) as end:
        with explained():
            case.module.main(case.config(**flags))
    assert isinstance(end.value.code, str), f"it ended with status {end.value.code}"
    return end.value.code


def look_at(case: Case, folder: Path, start: Path) -> None:
    """Run it beside an earlier run, and look at the sentence and at what is left."""
    flags = case.prepare(folder, start)
    if "out" not in flags:
        flags["out"] = folder / "earlier"
        flags["out"].mkdir()
        (flags["out"] / "config.json").write_text(json.dumps({"script": case.config.__module__}))
    before = files_in(folder)
    try:
        sentence = refusal(case, flags)
    finally:
        if flags["out"].is_dir():
            unlock(flags["out"])  # the process that failed would have ended
    lines = sentence.removesuffix("\n(add --debug to see where it came from)").splitlines()
    assert sentence.startswith("error: ") and len(lines) <= 2, sentence  # the second is a command
    assert len(lines[0]) < 700 and len(lines) == 1 or lines[1].startswith("    python"), sentence
    assert case.place in sentence, f"no place ({case.place}): {sentence}"
    assert REMEDY.search(sentence), f"no remedy: {sentence}"
    after = files_in(folder)
    if flags.get("resume"):  # they are noted before the state is opened
        before, after = without_free_flags(before), without_free_flags(after)
    assert after == before, f"something was written or moved: {sentence}"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_start(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def every(start: Path) -> Iterator[list[Case]]:
    with pytest.MonkeyPatch.context() as patch:
        yield cases(make_killed(start, patch))


def test_every_malformed_input_is_refused_in_one_sentence(every, start, tmp_path, capsys):
    """All are looked at, and all that fail are named."""
    wrong = []
    for number, case in enumerate(every):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            look_at(case, folder, start)
        except (Exception, pytest.fail.Exception) as error:
            wrong.append(f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
    names = [case.name for case in every]
    with capsys.disabled():
        print(f"malformed inputs: {len(names)}")
    assert not wrong, f"{len(wrong)} of {len(names)}:\n" + "\n".join(wrong)
    assert len(set(names)) == len(names) >= 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rl.grpo_engine", "--policy", "{folder}/nothing"], "there is no checkpoint at"),
        (["gpt.pretraining", "--unknown", "1"], "--unknown"),
    ],
)
def test_so_does_the_command_line(arguments, words, tmp_path):
    given = [part.format(folder=tmp_path) for part in arguments]
    done = command("-m", *given, "--ranks", "1", "--out", tmp_path / "out", cwd=ROOT)
    said = " ".join(done.stderr.replace("│", " ").split())
    assert done.returncode in (1, 2) and words in said and "Traceback" not in said, said
    assert not (tmp_path / "out").exists()


def test_the_cases_name_the_script_that_runs(every):
    assert {script_of(case.config()) for case in every} >= {"rl.grpo_engine", "rl.dpo_engine"}
