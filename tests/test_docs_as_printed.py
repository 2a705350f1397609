"""Every command in a shell block of README.md, docs/*.md and */README.md, run as printed, page by page.

At toy size (SMALL, MORE), or left out with a reason (LEFT). Of make alone what it would do is asked.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked import command
from toys import GLASSBOX, glassbox_gpt

from gpt import recipes
from gpt.huggingface import save_hf
from harness import run_folder
from harness.paths import REPOSITORY

SMALL: dict[str, Any] = dict(  # in place of what a preset sets
    steps=2, batch_size=4, pairs=120, held_out_pairs=30, prompts_per_step=2, group_size=2,
    max_new_tokens=48, eval_prompts=4, test_prompts=4, eval_every=2, ranks=1, device="cpu",
)  # fmt: skip
STAGES = ["pretraining", "finetuning", "reward_model_training"]
ENGINES = ["dpo_engine", "grpo_engine", "ppo_engine"]
READERS = ["talk", "export", "memory", "report", "doctor", "conformance", "bug_zoo"]
MORE = {  # what is run, and the flags that are added
    **dict.fromkeys([*STAGES, *ENGINES, *READERS, "make", "echo", "-c"], ""),
    "studies": "--plan",
    "make_teacher": "--prompts 8 --responses 2 --ranks 1 --device cpu",
    "compare": "--steps 2 --prompts-per-step 2 --max-new-tokens 8 --eval-prompts 4 --test-prompts 4",
}
LEFT = {  # a part of a command: why it is not run
    "pip install": "downloads",
    "--model gpt2": "downloads",
    "OWNER/NAME": "a name to fill in",
    "runs/mine": "a run of the reader's own",
    "runs/answers": "comes of what was downloaded",
    "smollm2": "needs a package of 98 MB",
    "python3 -m venv": "a user's own",
    "source ": "a user's own",
    "open ": "a user's own",
    "-m pytest": "these tests",
    "scripts/demo.py": "tests/test_scripts.py",
    "mine.jsonl": "somebody answers (tests/reward_model/test_annotate.py)",
    "blind.jsonl": "likewise (tests/rl/test_asked_alike.py)",
    "runs/my-": "comes of these answers",
    "runs/demo/pretraining": "comes of the demo",
}
FILES = {"docs/extending.md": ("my_rewards.py", "tis_engine.py")}  # a page's blocks of Python
SLOW = {"docs/extending.md"}  # six trainings, each in a process of its own
GUIDE = "docs/guide.md"
STARTS_FROM_GUIDE = {"docs/lora.md"}  # from the runs that it has made


def blocks(page: str, *languages: str) -> list[str]:
    fences = re.findall(
        r"^```(\w*)\n(.*?)^```$", (REPOSITORY / page).read_text("utf-8"), re.M | re.S
    )
    return [text for language, text in fences if language in languages]


def commands(page: str) -> list[list[str]]:
    """The words of every line that is more than a comment."""
    lines = [line for block in blocks(page, "", "bash", "sh") for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


FOUND = [
    path.relative_to(REPOSITORY).as_posix()
    for pattern in ("README.md", "docs/*.md", "*/README.md")
    for path in sorted(REPOSITORY.glob(pattern))
]
PAGES = sorted((page for page in FOUND if commands(page)), key=lambda page: page != GUIDE)


def is_run(words: list[str]) -> bool:
    return not any(part in " ".join(words) for part in LEFT)


def name_of(words: list[str]) -> str:
    """grpo_engine of python -m rl.grpo_engine, compare of python scripts/compare.py, make of make demo."""
    first = words[:1] if words[0] != "python" else words[2:3] if words[1] == "-m" else words[1:2]
    return re.split("[./]", first[0].removesuffix(".py"))[-1]


def run(words: list[str], folder: Path) -> None:
    """One command, whose status must be 0."""
    name, added = name_of(words), shlex.split(MORE[name_of(words)])
    if words[0] == "make":
        subprocess.run(["make", "-n", *words[1:]], cwd=REPOSITORY, check=True)
    elif name in ("echo", "-c"):
        line = " ".join(word if word in "<>" else shlex.quote(word) for word in words)
        line = re.sub("^python ", f"{shlex.quote(sys.executable)} ", line)
        subprocess.run(line, cwd=folder, shell=True, check=True)
    else:
        first = [REPOSITORY / words[1]] if words[1].endswith(".py") else [words[1]]
        done = command(
            *first, *words[2:], *added, cwd=folder, before=lambda: at_home(folder), given=b"Hi!\n"
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"


def at_home(folder: Path) -> None:
    """In a fork: as in a process that was started in the folder, with small defaults, without pages."""
    presets = recipes.config_of

    def small(config_class: Any, *arguments: Any, **overrides: Any) -> Any:
        kinds = {k: str(field.type) for k, field in config_class.__dataclass_fields__.items()}
        known = {k: v for k, v in SMALL.items() if "Path" not in kinds.get(k, "Path")}
        return presets(config_class, *arguments, **(known | overrides))

    for module in [*sys.modules.values()]:
        for name, value in {"RUNS": folder / "runs", "config_of": small}.items():
            if name in vars(module):
                setattr(module, name, value)
    run_folder.page_of = lambda folder: ""  # type: ignore[assignment]
    sys.path.insert(0, str(REPOSITORY / "scripts"))


def furnish(folder: Path) -> Path:
    """The files that pages speak of."""
    numbers = range(80)
    talk = "\n\nHuman: Is {} odd?\n\nAssistant: {}"
    hh = [
        {"chosen": talk.format(n, "Let us see."), "rejected": talk.format(n, "No!")}
        for n in numbers
    ]
    (folder / "hh.jsonl").write_text("".join(json.dumps(row) + "\n" for row in hh))
    shutil.copy(REPOSITORY / "docs" / "sample_pairs.jsonl", folder / "pairs.jsonl")
    (folder / "prompts.txt").write_text("Who?\nWhy?\n")
    (folder / "mine.py").write_text("from rl.equations.kl import k3 as loss\n")
    save_hf(glassbox_gpt(context=128), folder / "mine", GLASSBOX)
    return folder


def follow(page: str, folder: Path) -> None:
    """Everything that a page says, from its top to its end."""
    for name, block in zip(FILES.get(page, ()), blocks(page, "python"), strict=False):
        (folder / name).write_text(block, encoding="utf-8")
    for words in filter(is_run, commands(page)):
        run(words, folder)


def test_every_command_is_run_or_left_with_a_reason() -> None:
    listed = [words for page in PAGES for words in commands(page)]
    assert [words for words in listed if is_run(words) and name_of(words) not in MORE] == []
    unused = [part for part in LEFT if not any(part in " ".join(words) for words in listed)]
    assert unused == [] and len(listed) > 50
    assert {*MORE} == {name_of(words) for words in listed if is_run(words)}


@pytest.fixture(scope="module")
def after_guide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the guide was followed, from the base model that is kept: a smaller one does not end."""
    folder = furnish(tmp_path_factory.mktemp("guide"))
    base = folder / "runs" / "pretraining-reviews-tiny"
    base.mkdir(parents=True)
    kept = REPOSITORY / "notebooks" / "course" / "kept" / "base.safetensors"
    shutil.copy(kept, base / "model.safetensors")
    follow(GUIDE, folder)
    return folder


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in PAGES]
)
def test_a_page_as_printed(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if page in {GUIDE, *STARTS_FROM_GUIDE}:
        tmp_path = request.getfixturevalue("after_guide")
    if page != GUIDE:
        follow(page, furnish(tmp_path))
