"""Preference pairs: which prompts, which tokens, whose labels, in worlds and in files."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import replace

import pytest
import torch
import toys
from toys import GLASSBOX, split_by_question, write_pairs

from data.files.read import read_preferences
from data.records import PreferenceRecord, PromptRecord, key_of
from data.worlds import reviews
from gpt.generate import SamplingParams
from gpt.lengths import Limits
from gpt.model import GPT
from gpt.ranks import sample
from gpt.tokenizer import build_tokenizer
from harness.errors import UserError
from harness.files import append_jsonl
from reward_model import pairs as pairs_module
from reward_model.pair_files import file_pairs
from reward_model.pairs import (
    Labelled,
    PairSampling,
    TokenPair,
    as_pair,
    by_prompt,
    collate_comparisons,
    collate_pairs,
    encode_pair,
    encode_pairs,
    keep_fitting,
    pair_as_text,
    sample_pairs,
    visits,
)
from reward_model.reward_model_training import RewardModelConfig
from reward_model.world_pairs import WorldAnnotator, sampled_pairs

BYTES = build_tokenizer("bytes", {bytes([value]): value for value in range(256)})
EOS = BYTES.eos_id
PROMPTS = [PromptRecord(text) for text in ("one\n", "two\n", "three\n")]


def fixed_gpt(probs: dict[int, float]) -> GPT:
    """A GPT that draws from these probabilities whatever it reads."""
    every = [probs.get(token, 0.0) for token in range(BYTES.n_vocab)]
    return toys.fixed_gpt(every, 32, torch.float32).requires_grad_(False)


def random_gpt() -> GPT:
    """Nearly uniform over 258 ids, so that most responses are not valid UTF-8."""
    return toys.random_gpt(BYTES.n_vocab, 32, scale=0.02).requires_grad_(False)


def first_wins(prompt, a, a_ended, b, b_ended, rng) -> Labelled:
    return Labelled(True)


def make(policy: GPT, count: int, annotator=first_wins, *, steps: int = 4, against=None, **options):
    """All pairs of one call, and how many each batch gave."""
    batches = list(
        sample_pairs(
            policy, BYTES, PROMPTS, count, annotator,
            PairSampling(SamplingParams(max_new_tokens=steps), **({"batch_size": 8} | options)),
            generator=toys.seeded(), rng=random.Random(0), against=against,
        )
    )  # fmt: skip
    return [pair for batch in batches for pair in batch], [len(batch) for batch in batches]


@pytest.mark.parametrize(("responses", "comparisons"), [(2, 1), (4, 6), (5, 10)])
def test_every_two_responses_to_a_prompt_are_compared(responses, comparisons):
    """K (K - 1) / 2 pairs a visit, next to each other; each response is in K - 1 of them."""
    count = 6 * comparisons
    pairs, _ = make(random_gpt(), count, batch_size=3, responses_per_prompt=responses)
    assert len(pairs) == count
    for start in range(0, count, comparisons):
        visit = pairs[start : start + comparisons]
        assert len({tuple(pair.prompt) for pair in visit}) == 1
        texts = [tuple(tokens) for pair in visit for tokens in (pair.chosen, pair.rejected)]
        assert len(set(texts)) == responses
        assert {texts.count(text) for text in texts} == {responses - 1}


@pytest.mark.parametrize(
    ("longest", "repeated"),
    [(48, ("a. b. b.", True)), (7, ("a. b. b", False))],
    ids=["fits", "cut"],
)
def test_borrowed_and_repeated_answers_are_compared_with_the_own_ones(
    monkeypatch, longest, repeated
):
    """Of 4 answers 2 are sampled, one is the next prompt's first, one says its last sentence again."""

    def drawn(policy, tokenizer, prompts, how, generator):
        assert how.sampled == 2
        texts = [["a. b.", tokenizer.decode(prompt).strip()] for prompt in prompts]
        texts[1][0] = "borrowed"  # of which the second prompt is the lender
        return [[(BYTES.encode(t) + [EOS], t, True) for t in group] for group in texts]

    seen: list[tuple[str, tuple[str, bool], tuple[str, bool]]] = []

    def annotator(prompt, a, a_ended, b, b_ended, rng) -> Labelled:
        seen.append((prompt.prompt.strip(), (a, a_ended), (b, b_ended)))
        return Labelled(False)

    monkeypatch.setattr(pairs_module, "_answers", drawn)
    options = dict(batch_size=3, responses_per_prompt=4, borrowed=1, repeated=1, steps=longest)
    pairs, _ = make(random_gpt(), 6, annotator, **options)
    own = seen[0][0]
    answers = [("a. b.", True), (own, True), ("borrowed", True), repeated]
    assert seen[:6] == [(own, *two) for two in itertools.combinations(answers, 2)]
    said = BYTES.encode(repeated[0]) + [EOS] * repeated[1]
    assert [pair.chosen for pair in pairs].count(said) == 3  # the annotator preferred it to each


def test_against_another_model_the_first_answer_is_the_policys():
    """Each of its answers with each of the other one's; it ends at once, the other never does."""
    policy, other = fixed_gpt({BYTES.eos_id: 1.0}), fixed_gpt({ord("b"): 1.0})
    pairs, _ = make(policy, 12, responses_per_prompt=2, against=other)
    assert [(pair.chosen, pair.rejected) for pair in pairs] == [([EOS], [ord("b")] * 4)] * 12
    assert [len([*group]) for _, group in itertools.groupby(pair.prompt for pair in pairs)] == [
        4
    ] * 3


@pytest.mark.parametrize("ended", [True, False])
def test_an_answer_of_text_has_an_eos_unless_it_is_told_that_it_was_cut_off(ended):
    """Also where its recorded tokens are those of another tokenizer, or of another text."""
    for recorded in ({}, {"chosen_tokens": [9999]}, {"chosen_tokens": [ord("x")]}):
        meta = recorded | {"chosen_ended": ended}
        pair = encode_pair(PreferenceRecord("p", "yes", "no", meta), BYTES)
        assert pair.chosen == BYTES.encode("yes") + [EOS] * ended
        assert pair.rejected == [*BYTES.encode("no"), EOS]


def test_a_response_that_stopped_keeps_its_eos_and_a_cut_one_has_none():
    policy = fixed_gpt({ord("a"): 0.4, ord("b"): 0.3, BYTES.eos_id: 0.3})
    seen: list[tuple[str, bool]] = []

    def annotator(prompt, a, a_ended, b, b_ended, rng) -> Labelled:
        seen.extend([(a, a_ended), (b, b_ended)])
        return Labelled(True)

    pairs, _ = make(policy, 24, annotator, steps=3)
    responses = [tokens for pair in pairs for tokens in (pair.chosen, pair.rejected)]
    for tokens, (text, ended) in zip(responses, seen, strict=True):
        assert (tokens[-1] == BYTES.eos_id) == ended
        assert ended or len(tokens) == 3
        assert text == "".join(chr(token) for token in tokens if token != BYTES.eos_id)
    assert {ended for _, ended in seen} == {True, False}


def test_labels_and_gold_stay_with_their_response():
    """The annotator prefers the lower gold in every third pair, as noise does."""
    policy = fixed_gpt({ord(c): 0.25 for c in "abcd"})
    verdicts: list[tuple[str, str]] = []

    def gold(text: str) -> float:
        return sum(map(ord, text)) / 1000

    def annotator(prompt, a, a_ended, b, b_ended, rng) -> Labelled:
        first = (gold(a) > gold(b)) != (len(verdicts) % 3 == 0)
        verdicts.append((a, b) if first else (b, a))
        return Labelled(first, (gold(a), gold(b)))

    pairs, _ = make(policy, 30, annotator)
    for pair, (chosen, rejected) in zip(pairs, verdicts, strict=False):
        assert (BYTES.decode(pair.chosen), BYTES.decode(pair.rejected)) == (chosen, rejected)
        assert pair.meta == {"gold_chosen": gold(chosen), "gold_rejected": gold(rejected)}
    wrong = [p.meta["gold_chosen"] < p.meta["gold_rejected"] for p in pairs]
    assert 8 <= sum(wrong) <= 12


def test_collate_comparisons_holds_each_response_once():
    """Three responses to one prompt, compared pairwise; the same tokens after one that ends alike."""
    a, b, c = [3, 9], [4, 4, 9], [5]
    one, other = [1, 7], [2, 7]
    pairs = [TokenPair(one, *two) for two in ((a, b), (c, a), (b, c))] + [TokenPair(other, a, b)]
    batch, chosen, rejected = collate_comparisons(pairs, eos_id=9)
    assert len(batch) == 5
    rows = [
        (tokens[:p].tolist(), tokens[p : p + n].tolist())
        for tokens, p, n in zip(batch.tokens, batch.prompt_lengths, batch.lengths, strict=True)
    ]
    for pair, i, j in zip(pairs, chosen.tolist(), rejected.tolist(), strict=True):
        assert rows[i] == (pair.prompt, pair.chosen)
        assert rows[j] == (pair.prompt, pair.rejected)


def test_a_written_pair_is_read_again_as_a_preference(tmp_path):
    tokenizer = GLASSBOX
    record = PreferenceRecord("Review the lamp.\n", "The lamp is great.", "Go away.")
    (pair,) = encode_pairs([record], tokenizer)
    row = pair_as_text(
        TokenPair(pair.prompt, pair.chosen, pair.rejected[:-1], {"gold_chosen": 0.5}), tokenizer
    )
    recorded = {
        "chosen_ended": True, "rejected_ended": False,
        "chosen_tokens": pair.chosen, "rejected_tokens": pair.rejected[:-1],
    }  # fmt: skip
    assert row == {
        "prompt": "Review the lamp.\n", "chosen": "The lamp is great.", "rejected": "Go away.",
        "gold_chosen": 0.5,
    } | recorded  # fmt: skip
    assert list(row)[:3] == ["prompt", "chosen", "rejected"]  # what a reader of the file looks for
    append_jsonl(tmp_path / "pairs.jsonl", [row])
    (read,) = read_preferences(tmp_path / "pairs.jsonl").records
    assert read == replace(record, meta=recorded)
    cut = TokenPair(pair.prompt, pair.chosen, pair.rejected[:-1])
    assert encode_pairs([read], tokenizer) == [cut]


def test_a_cut_answer_has_no_eos_and_its_mask_is_full(capsys):
    """A sampled answer that reached its limit; a pair that is equal after the cut is none, and counted."""
    long, rest = [*range(3, 33), EOS], [*range(40, 44), EOS]
    pairs = [TokenPair([1], long, rest), TokenPair([1], long, [*long[:20], 99, EOS])]
    (cut,) = keep_fitting(pairs, Limits(8, 20, 64, cut=True))
    assert re.findall(r"\d+", capsys.readouterr().out) == ["1", "2"]
    assert cut.chosen == long[:20] and cut.rejected == rest
    batch = collate_pairs([cut], EOS)
    assert batch.lengths.tolist() == [20, 5] and batch.response_mask.sum(1).tolist() == [20, 5]
    assert pair_as_text(cut, BYTES)["chosen_ended"] is False
    assert keep_fitting(pairs, Limits(8, 20, 12, cut=True)) == []  # 11 tokens say nothing


def test_the_annotator_compares_gold_rewards_with_noise():
    record = reviews.prompts("train")[0]
    good = reviews.GREETINGS[0].format(name=record.meta["name"]) + (
        f" The {record.meta['item']} is great. I hope this helps."
    )
    bad = "Who cares?"
    annotator = WorldAnnotator(reviews)
    verdict = annotator(record, good, True, bad, False, random.Random(0))
    assert verdict.first_preferred
    assert verdict.gold == (
        reviews.gold_reward(record, good, True), reviews.gold_reward(record, bad, False)
    )  # fmt: skip
    rng = random.Random(1)
    same = [annotator(record, good, True, good, True, rng) for _ in range(400)]
    assert 160 < sum(v.first_preferred for v in same) < 240  # equal gold: a coin
    cut = annotator(record, good, True, good, False, rng).gold
    assert cut[0] - cut[1] == pytest.approx(0.15)  # the form counts only where the text ended


def test_held_out_answers_are_two_at_temperature_one_however_the_others_are_drawn(monkeypatch):
    used: list[tuple[float, int, float, int]] = []

    def spy(model, tokenizer, prompts, params, *args, **options):
        used.append((params.temperature, params.top_k, params.top_p, options["samples_per_prompt"]))
        return sample(model, tokenizer, prompts, params, *args, **options)

    monkeypatch.setattr("reward_model.pairs.sample", spy)
    config = RewardModelConfig(
        pairs=6, held_out_pairs=3, responses_per_prompt=6, borrowed_responses=1,
        repeated_responses=1, wide_temperature=1.7, max_response_tokens=4,
    )  # fmt: skip
    policy = toys.random_gpt(GLASSBOX.n_vocab, 64, scale=0.02)
    pairs, held_out = sampled_pairs(policy, GLASSBOX, config)
    assert (len(pairs), len(held_out)) == (6, 3)
    assert used == [(1.0, 0, 1.0, 2), (1.7, 0, 1.0, 2), (1.0, 0, 1.0, 2)]


def test_file_pairs_are_split_by_prompt(tmp_path, capsys):
    rows = write_pairs(tmp_path / "pairs.json")
    config = RewardModelConfig(data=str(tmp_path / "pairs.json"))
    train, held_out = file_pairs(config, GLASSBOX, 128)
    decoded = [{GLASSBOX.decode(pair.prompt) for pair in part} for part in (train, held_out)]
    asked = {row["prompt"] for row in rows}
    assert decoded[0] == {prompt for prompt in asked if split_by_question(prompt) == "train"}
    assert decoded[1] == asked - decoded[0]  # validation and test: nothing is chosen by either
    assert all(pair.chosen[-1] == GLASSBOX.eos_id for pair in train + held_out)
    assert "60 of 60 rows kept" in capsys.readouterr().out


def test_pairs_of_one_prompt_are_a_group_wherever_they_stand():
    """Two visits of a world to one prompt stay two: their answers are others."""
    a, b, c = (TokenPair([1, 2], [i], [9]) for i in (3, 4, 5))
    other = TokenPair([1], [2, 3], [9])
    assert by_prompt([a, other, b, c]) == [[a, b, c], [other]]
    assert by_prompt([other, c, b, a]) == [[other], [c, b, a]]
    gold = [replace(pair, meta={"gold_chosen": 0.0}) for pair in (a, b, other, c)]
    assert by_prompt(gold) == visits(gold) == [gold[:2], gold[2:3], gold[3:]]
    assert visits([a, other, b, c]) == [[a], [other], [b, c]]


def test_a_kept_pair_brings_what_it_is_split_by(tmp_path):
    """A run's pairs.jsonl as another run's data, here with a prompt that was rendered on another day."""
    write_pairs(tmp_path / "pairs.json", count=3)
    pairs = [encode_pair(r, GLASSBOX) for r in read_preferences(tmp_path / "pairs.json").records]
    rows = [pair_as_text(pair, GLASSBOX) for pair in pairs]
    append_jsonl(
        tmp_path / "kept.jsonl", [row | {"prompt": "Monday: " + row["prompt"]} for row in rows]
    )
    kept = read_preferences(tmp_path / "kept.jsonl").records
    assert [key_of(record) for record in kept] == ["question0", "question1", "question2"]
    assert [as_pair(row, GLASSBOX) for row in rows] == pairs


def test_of_few_pairs_the_last_prompt_is_held_out(tmp_path):
    rows = [
        row
        for row in write_pairs(tmp_path / "all.json")
        if split_by_question(row["prompt"]) == "train"
    ]
    (tmp_path / "few.json").write_text(json.dumps([*rows[:4], rows[3] | {"rejected": "Why?"}]))
    config = RewardModelConfig(data=str(tmp_path / "few.json"))
    train, held_out = file_pairs(config, GLASSBOX, 128)
    assert [GLASSBOX.decode(pair.prompt) for pair in held_out] == [rows[3]["prompt"]] * 2
    assert len(train) == 3
    write_pairs(tmp_path / "one.json", count=1)
    with pytest.raises(UserError):
        file_pairs(RewardModelConfig(data=str(tmp_path / "one.json")), GLASSBOX, 128)
