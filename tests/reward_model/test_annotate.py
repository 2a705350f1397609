"""Answering at a keyboard: what is asked, what each key leaves in the file, and how it may end."""

from __future__ import annotations

import json
import os
import re
import select
import sys
import threading
import time
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import torch
from forked import Done, command
from toys import seeded, split_by_question

from data.files.read import read_preferences, read_responses
from data.records import split_of
from gpt.checkpoint import save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.console import printable
from harness.errors import UserError
from harness.files import append_jsonl, read_jsonl, write_json
from harness.paths import MODEL_FILE
from reward_model import pairs as pairs_module
from reward_model.accuracy_report import position_bias
from reward_model.agreement import kappa, summary
from reward_model.annotate import AnnotateConfig, in_turn, page
from reward_model.pairs import encode_pair
from reward_model.questions import QuestionFlags, Questions
from reward_model.scalar_head import RewardModel, load_reward_model, save_reward_model

GLASSBOX = load_tokenizer("glassbox")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="a command is a fork here")


def model(seed: int) -> GPT:
    return GPT(GPTConfig(GLASSBOX.n_vocab, 64, n_layer=1, n_head=2, n_embd=16)).initialize(
        seeded(seed)
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two policies and a judge that know nothing."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(("new", "old")):
        save_gpt(folder / name / MODEL_FILE, model(seed), GLASSBOX)
        write_json(folder / name / "config.json", {"data": "reviews"})
    judge = RewardModel.from_policy(model(3), generator=seeded(4))
    judge.head.weight.data *= 0.3
    save_reward_model(folder / "judge" / MODEL_FILE, judge, GLASSBOX)
    return folder


def annotate(runs: Path, folder: Path, keys: str | bytes, *more: object, **options: object) -> Done:
    flags = ["--model", runs / "new", "--max-new-tokens", 6, "--device", "cpu", *more]
    words = ("-m", "reward_model.annotate", "--out", folder / "mine.jsonl", *flags)
    given = keys if isinstance(keys, bytes) else "".join(f"{key}\n" for key in keys).encode()
    return command(*words, cwd=folder, given=given, **options)


def rows(folder: Path) -> list[dict]:
    return read_jsonl(folder / "mine.jsonl")


def asked(folder: Path) -> list[dict]:
    return read_jsonl(folder / "mine.questions.jsonl")[1:]


def questions(flags: QuestionFlags, count: int) -> list[dict]:
    found = Questions(flags)
    return [found[number] for number in range(count)]


@needs_fork
def test_each_key_leaves_its_row_and_the_same_command_goes_on(runs: Path, tmp_path: Path) -> None:
    """Undo reaches back over a restart, what is no key leaves nothing, and a cut-off row is asked again."""
    first = annotate(runs, tmp_path, b"1\n2\nx\n\xc3\xa9\n\n=\ns\n")
    assert first.returncode == 0 and first.stderr == "", first
    assert [row["verdict"] for row in rows(tmp_path)] == ["first", "second", "tie", "skip"]
    second = annotate(runs, tmp_path, "uu2")
    assert [row["verdict"] for row in rows(tmp_path)] == ["first", "second", "second"]
    assert "pair 5 of 60" in second.stdout and "pair 3 of 60" in second.stdout
    before = (tmp_path / "mine.jsonl").read_bytes()
    (tmp_path / "mine.jsonl").write_bytes(before[:-40])  # killed while it wrote the third
    annotate(runs, tmp_path, "2")
    assert [{**row, "seconds": 0} for row in rows(tmp_path)] == [
        {**json.loads(line), "seconds": 0} for line in before.splitlines()
    ]
    shown = re.findall(r"answer 1[^|]*\| answer 2.*\n(.*)", first.stdout)
    for row, line in zip(rows(tmp_path), shown, strict=False):
        left, right = (side.strip() for side in line.split("|"))
        chosen, rejected = (left, right) if row["verdict"] == "first" else (right, left)
        assert printable(row["chosen"]).startswith(chosen) or not chosen
        assert printable(row["rejected"]).startswith(rejected) or not rejected
        question = asked(tmp_path)[row["question"]]
        same = [
            row[f"{name}_tokens"] == question["chosen_tokens"] for name in ("chosen", "rejected")
        ]
        assert sum(same) == 1


@needs_fork
def test_where_nobody_reads_the_questions_no_answer_is_taken(runs: Path, tmp_path: Path) -> None:
    def closed() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)

    done = annotate(runs, tmp_path, "111", before=closed)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert not (tmp_path / "mine.jsonl").exists()


@needs_fork
def test_keys_of_a_terminal_need_no_enter(runs: Path, tmp_path: Path) -> None:
    """An arrow, whose escape ends in A or holds a 2, is no answer; Ctrl-D ends; 40 columns are enough."""
    import fcntl
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    said, keys = [b""], [b"1", b"\x1b[2~", b"2", b"\xc3\xa9", b"u", b"\x04"]

    def type_keys(deadline: float = time.monotonic() + 100) -> None:
        """The next key, where one is waited for and the last one has been answered."""
        typed = 0
        while time.monotonic() < deadline and b"mine.jsonl" not in said[0]:
            if select.select([master], [], [], 0.01)[0]:
                said[0] += os.read(master, 4096)
            elif (
                typed < len(keys)
                and said[0].count(b"answer 2") + said[0].count(b"or 2, =") > typed + 1
            ):
                if not termios.tcgetattr(slave)[3] & termios.ICANON:
                    os.write(master, keys[typed])
                    typed += 1

    def begin() -> None:
        os.dup2(slave, 0)
        os.dup2(slave, 1)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        os.environ.pop("COLUMNS", None)

    typist = threading.Thread(target=type_keys)
    typist.start()
    done = annotate(runs, tmp_path, "", before=begin)
    typist.join()
    assert done.returncode == 0 and [row["verdict"] for row in rows(tmp_path)] == ["first"]
    lines = said[0].decode().partition("0 ties")[0].splitlines()
    assert max(map(len, lines)) <= 40 and not any("|" in line for line in lines)


def test_every_tenth_pair_comes_again_with_its_sides_exchanged() -> None:
    turns = [*in_turn(AnnotateConfig(pairs=60))]
    seen: dict[int, tuple[int, bool]] = {}
    for place, (number, swap, repeat) in enumerate(turns, start=1):
        assert repeat == (place % 10 == 0)
        if repeat:
            before, was = seen.pop(number)
            assert place - before > 5 and swap != was
        else:
            assert number not in seen
            seen[number] = place, swap
    assert turns[:30] == [*in_turn(AnnotateConfig(pairs=30))]
    other = [*in_turn(AnnotateConfig(pairs=60, annotator="Anna"))]
    assert other != turns and {n for n, *_ in other} == {n for n, *_ in turns}
    assert [*in_turn(AnnotateConfig(pairs=60, seed=1))] != turns
    assert 15 < sum(swap for _, swap, _ in turns) < 45


def test_a_judge_picks_half_and_the_others_are_random(runs: Path, tmp_path: Path) -> None:
    """Its own are of training prompts alone, least sure first, and it is less sure of them."""
    flags = dict(model=str(runs / "new"), max_new_tokens=6, device="cpu")
    with_judge = QuestionFlags(**flags, reward_model=runs / "judge", out=tmp_path / "a.jsonl")
    picked = questions(with_judge, 40)
    judge, _ = load_reward_model(runs / "judge")
    from reward_model.accuracy_report import score_pairs
    from reward_model.pairs import as_pair

    first, second, _ = score_pairs(judge, [as_pair(r, GLASSBOX) for r in picked], GLASSBOX.eos_id)
    doubt = (((first - second) * judge.std).sigmoid() - 0.5).abs()
    for four in doubt[::2].split(4):  # of the eight prompts that are answered at once
        assert torch.equal(four, four.sort().values)
    assert doubt[::2].mean() < 0.3 * doubt[1::2].mean()
    splits = [split_of(row["prompt"]) for row in picked]
    assert {*splits[::2]} == {"train"}
    assert Counter(splits[1::2]) == {"train": 12, "validation": 4, "test": 4}
    more = questions(with_judge, 50)
    assert more[:40] == picked and len({row["prompt"] for row in more[::2]}) == 25
    with pytest.raises(UserError):
        Questions(QuestionFlags(**flags, out=tmp_path / "a.jsonl"))


def test_pairs_are_sampled_when_they_are_asked_for(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten of the first questions take at most the answers to 8 + 2 prompts, and none is kept unseen."""
    prompts, sample = [], pairs_module.sample

    def counted(model, tokenizer, encoded, *more, **options):
        prompts.append(len(encoded))
        return sample(model, tokenizer, encoded, *more, **options)

    monkeypatch.setattr(pairs_module, "sample", counted)
    flags = QuestionFlags(
        model=str(runs / "new"), max_new_tokens=6, device="cpu", out=tmp_path / "mine.jsonl"
    )
    found = Questions(flags)
    assert prompts == [] and found[0] and prompts in ([8], [1]) and len(asked(tmp_path)) == 1
    tenth = found[9]
    assert sorted(prompts) == [1, 1, 8] and asked(tmp_path)[9] == tenth
    again = Questions(flags)
    assert again[9] == tenth and len(prompts) == 3
    assert again[10]["prompt"] not in {row["prompt"] for row in asked(tmp_path)[:10]}


def test_pairs_of_a_file_are_split_as_its_questions_are(runs: Path, tmp_path: Path) -> None:
    """Held-out ones are asked about too, and what was held out of the file is held out of the answers."""
    texts = [f"Is {i} odd?" for i in range(60)]
    write_json(tmp_path / "q.json", [{"prompt": text} for text in texts])
    flags = QuestionFlags(
        model=str(runs / "new"), data=str(tmp_path / "q.json"), max_new_tokens=6, device="cpu",
        out=tmp_path / "mine.jsonl",
    )  # fmt: skip
    picked = questions(flags, 20)
    splits = Counter(split_by_question(row["prompt"]) for row in picked)
    assert splits["validation"] == splits["test"] == 2
    append_jsonl(flags.out, picked)
    for split, records in read_preferences(flags.out).splits.items():
        assert {split_by_question(record.prompt) for record in records} <= {split}


def test_two_models_are_compared_on_held_out_prompts(runs: Path, tmp_path: Path) -> None:
    """What one of them was trained on would flatter it."""
    new, old = (str(runs / name) for name in ("new", "old"))
    flags = QuestionFlags(model=new, against=old, device="cpu", out=tmp_path / "blind.jsonl")
    splits = Counter(split_of(row["prompt"]) for row in questions(flags, 12))
    assert splits == {"validation": 6, "test": 6}


def test_answers_are_as_long_as_those_of_the_run(runs: Path, tmp_path: Path) -> None:
    save_gpt(tmp_path / "run" / MODEL_FILE, model(0), GLASSBOX)
    write_json(tmp_path / "run" / "config.json", {"data": "reviews", "max_new_tokens": 5})
    lengths = {}
    for given in (None, 3):
        out = tmp_path / f"{given}.jsonl"
        flags = QuestionFlags(
            model=str(tmp_path / "run"), max_new_tokens=given, device="cpu", out=out
        )
        lengths[given] = max(len(row["chosen_tokens"]) for row in questions(flags, 6))
    assert lengths == {None: 5, 3: 3}


@needs_fork
def test_two_people_and_two_policies(runs: Path, tmp_path: Path) -> None:
    """Who prefers the longer one of the new policy's and the old one's answers, always or never."""
    annotate(runs, tmp_path, "1" * 20, "--against", runs / "old", "--pairs", 20)
    done = annotate(
        runs, tmp_path, "2" * 20, "--against", runs / "old", "--pairs", 20, "--annotator", "Anna"
    )
    assert Counter(row["annotator"] for row in rows(tmp_path)) == {"me": 20, "Anna": 20}
    assert {asked(tmp_path)[0][f"{n}_from"] for n in ("chosen", "rejected")} == {
        str(runs / name) for name in ("new", "old")
    }
    mine = {r["question"]: r["chosen_from"] for r in rows(tmp_path)[:20] if not r["repeat"]}
    won = sum(name == str(runs / "new") for name in mine.values())
    said = summary(asked(tmp_path), rows(tmp_path), "me")
    assert len(mine) == 18 and any(f"{won / 18:.2f} of 18" in line for line in said)
    theirs = {r["question"]: r["chosen_from"] for r in rows(tmp_path)[20:] if not r["repeat"]}
    alike = sum(mine[q] == theirs[q] for q in mine) / 18
    assert f"the same as me in {alike:.2f} of 18" in done.stdout
    assert "the same in 0.00 of 2" in done.stdout  # the repeats swap sides, the key stays
    assert done.stdout.count("the same as me in") == 1  # of my repeats nothing is said


def verdict_of(wins: int, ties: int, losses: int) -> list[str]:
    """The two last lines on so many pairs of a new policy's answer and an old one's."""
    questions = [
        {"chosen_tokens": [n], "rejected_tokens": [99]} for n in range(wins + ties + losses)
    ]
    questions = [q | {"chosen_from": "new", "rejected_from": "old"} for q in questions]
    verdicts = ["first"] * wins + ["tie"] * ties + ["second"] * losses
    given = [
        {"question": n, "verdict": verdict, "annotator": "me", "repeat": False}
        | ({"chosen_tokens": [99]} if verdict == "second" else {"chosen_tokens": [n]})
        for n, verdict in enumerate(verdicts)
    ]
    return summary(questions, given, "me")[-2:]


def test_a_win_rate_is_told_from_a_coins_or_not() -> None:
    """15 of 20 has the interval from 0.53 to 0.89 (Wilson's), 10 and 8 ties of 20 from 0.48 to 0.85."""
    coin = verdict_of(9, 2, 9)[1]
    assert "0.70 of 20" in verdict_of(10, 8, 2)[0] and verdict_of(10, 8, 2)[1] == coin
    assert "0.75 of 20" in verdict_of(15, 0, 5)[0] and verdict_of(15, 0, 5)[1] != coin
    assert verdict_of(5, 0, 15)[1] not in (coin, verdict_of(15, 0, 5)[1])


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        # p_o 0.7, p_e 0.5 * 0.6 + 0.5 * 0.4 = 0.5
        ({"aa": 20, "ab": 5, "ba": 10, "bb": 15}, 0.4),
        # p_o 0.8, p_e 0.8 * 0.6 + 0.2 * 0.4 = 0.56: one of them says "a" far more often
        ({"aa": 30, "ab": 10, "bb": 10}, 0.24 / 0.44),
        # p_o 2/4, p_e (2 * 1 + 1 * 3 + 1 * 0) / 16: only one of them ever says that it is a tie
        ({"aa": 1, "ab": 1, "bb": 1, "=b": 1}, 3 / 11),
    ],
)
def test_kappa_of_tables_worked_by_hand(table: dict[str, int], expected: float) -> None:
    pairs = [(both[0], both[1]) for both, count in table.items() for _ in range(count)]
    assert kappa(pairs) == pytest.approx(expected)
    assert kappa([(other, one) for one, other in pairs]) == pytest.approx(expected)


def test_kappa_where_all_differ_and_where_chance_explains_all() -> None:
    assert kappa([("a", "b"), ("b", "a")]) == pytest.approx(-1)
    assert kappa([("a", "a")]) != kappa([("a", "a")])  # NaN


@needs_fork
def test_readers_count_what_makes_no_pair(runs: Path, tmp_path: Path) -> None:
    annotate(runs, tmp_path, "1=s211")
    found = read_preferences(tmp_path / "mine.jsonl")
    assert sum(found.dropped.values()) == 2 and len(found.dropped) == 2 and len(found.records) == 4
    assert len(read_responses(tmp_path / "mine.jsonl").records) <= 4
    pairs = [encode_pair(record, GLASSBOX) for record in found.records]
    assert [pair.chosen for pair in pairs] == [
        row["chosen_tokens"] for row in rows(tmp_path) if row["verdict"] in ("first", "second")
    ]
    assert position_bias(pairs)["first_chosen"] == 0.75
    assert position_bias([]) == {}


def test_answers_stand_beside_each_other_where_both_have_room() -> None:
    row = {"shown": "Why?\n", "chosen": "word " * 30, "rejected": "", "chosen_ended": True}
    row |= {"rejected_ended": False}
    for width, plain, beside in ((75, False, True), (74, False, False), (140, True, False)):
        lines = page(row, width, plain)
        assert any("|" in line for line in lines) == beside
        assert max(map(len, lines)) <= width and sum(line.count("word") for line in lines) == 30
    assert "\x1b" not in "".join(page({**row, "chosen": "\x1b[2J"}, 80, False))


WIDE = {
    "Chinese": ("这盏灯很亮，开关也在好找的地方。" * 9, "灯太暗了。" * 3),
    "Japanese and English": ("このランプは very bright で、 スイッチも押しやすいです。 " * 5, "暗い"),
    "emoji": ("👍🏽 😀 " * 40, "🙁" * 50), "Hindi": ("यह दीपक बहुत उज्ज्वल है " * 9, "नहीं"),
    "accents apart": ("e\u0301te\u0301 " * 60, "a" * 200),
}  # fmt: skip


def on_screen(text: str) -> int:
    """Columns, letter by letter as the tables of Unicode have them."""
    joins = ("Mn", "Me", "Cf")
    wide = {"W": 2, "F": 2}
    sizes = [wide.get(unicodedata.east_asian_width(c), 1) for c in text]
    return sum(n for c, n in zip(text, sizes, strict=True) if unicodedata.category(c) not in joins)


@pytest.mark.parametrize("name", WIDE)
def test_wide_letters_keep_the_bar_straight(name: str) -> None:
    one, two = WIDE[name]
    row = {"shown": one, "chosen": one, "rejected": two}
    row |= {"chosen_ended": True, "rejected_ended": True}
    for width in (80, 140):
        lines = page(row, width, False)
        assert max(map(on_screen, lines)) <= width
        bars = {on_screen(line.partition(" | ")[0]) for line in lines if " | " in line}
        assert bars == {(width - 3) // 2}
        left = "".join(line.partition(" |")[0] for line in lines if " |" in line)
        assert "".join(one.split()) in "".join(left.split())


ORDINARY = [
    "Vraiment\u202f?\u00a0!", "می\u200cخواهم", "क्\u200dष", "明るい\u3000ランプ", "👨\u200d👩\u200d👧",
    "Donau\u00addampf", "โคม\u200bไฟ",
]  # fmt: skip


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_letters_are_shown_as_they_are(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    "code", [0, 7, 8, 0x1B, 0x7F, 0x85, 0x9B, 0x2028, 0x202A, 0x202E, 0x2066, 0x2069]
)
def test_what_could_steer_a_terminal_is_escaped(code: int) -> None:
    shown = printable(f"a{chr(code)}b")
    assert chr(code) not in shown and shown.startswith("a\\") and shown.endswith("b")
