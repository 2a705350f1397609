"""Steps of a response: characters to tokens, and what each source cuts and pays."""

from __future__ import annotations

import random
import re

import pytest
import torch
from toys import GLASSBOX, glassbox_gpt

from data.collate import collate_responses
from data.records import PromptRecord
from data.worlds import sums
from gpt.tokenizer import Tokenizer, build_tokenizer
from reward_model.scalar_head import RewardModel
from rl.batches.rollout import Rollout
from rl.rewards.step_rewards import (
    CheckedSteps,
    RewardModelSteps,
    StepRewards,
    characters_read,
    checked_steps,
    token_of,
)

BYTES = {bytes([value]): value for value in range(256)}
SUM = PromptRecord("347+588=", answer="935", meta={"a": 347, "b": 588})


def with_merges(*merges: str) -> Tokenizer:
    """All bytes, and these tokens of several characters (every part of a merge must be listed)."""
    ranks = BYTES | {text.encode(): 256 + i for i, text in enumerate(merges)}
    return build_tokenizer("merges", ranks)


def rollout_of(
    *responses: str | list[int],
    record: PromptRecord = SUM,
    tokenizer: Tokenizer = GLASSBOX,
    ended: bool = True,
) -> Rollout:
    """These texts (or tokens) as if they had been sampled; `ended`: with an EOS."""
    tokens = [
        tokenizer.encode(response) if isinstance(response, str) else response
        for response in responses
    ]
    tokens = [row + [tokenizer.eos_id] if ended else row for row in tokens]
    prompt = tokenizer.encode(record.prompt)
    sequences = collate_responses([prompt] * len(tokens), tokens, tokenizer.eos_id)
    return Rollout(
        records=[record] * len(tokens),
        responses=[tokenizer.decode(row) for row in tokens],
        sequences=sequences,
        log_probs=torch.zeros(sequences.response_mask.shape),
        group_size=len(tokens),
    )


def listed(steps: StepRewards, row: int = 0) -> list[tuple[int, float]]:
    """The (end, reward) pairs of one row."""
    values, ends, mask = (tensor[row].tolist() for tensor in steps)
    return [(end, value) for value, end, there in zip(values, ends, mask, strict=True) if there]


def texts_of(rollout: Rollout, steps: StepRewards, tokenizer: Tokenizer, row: int = 0) -> list[str]:
    """What each step says, decoded from its tokens."""
    tokens = rollout.response_tokens[row].tolist()
    pieces, start = [], 0
    for end, _ in listed(steps, row):
        pieces.append(tokenizer.decode(tokens[start : end + 1]))
        start = end + 1
    return pieces


# Characters and tokens


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_the_decoded_text(seed):
    """Random bytes, most of them no UTF-8: a prefix's complete characters are the text's first."""
    tokenizer = with_merges("ab", "é", "e,")
    rng = random.Random(seed)
    alphabet = [0x2C, 0x61, 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 256, 257, 258, 259, 260]
    ids = [rng.choice(alphabet) for _ in range(12)]
    text, counts = tokenizer.decode(ids), characters_read(tokenizer, ids)
    for t, count in enumerate(counts):
        prefix = tokenizer.decode(ids[: t + 1])
        assert text.startswith(prefix[:count])
        # At most the last character may still be incomplete.
        assert count in (len(prefix), len(prefix) - 1)
        if count < len(prefix):
            assert prefix.endswith("\ufffd")
    assert len(text) - counts[-1] in (0, 1)
    assert all(0 <= token_of(c, counts) < len(ids) for c in range(len(text)))


# Written sums


def test_every_token_of_a_sum_belongs_to_one_step_and_the_rewards_are_the_checks():
    """On what writers write, in either style and with their errors."""
    rng = random.Random(0)
    record = sums.prompts("train", 1, seed=3)[0]
    texts = [sums.sample_response(record, rng) for _ in range(200)]
    rollout = rollout_of(*texts, record=record)
    steps = checked_steps(CheckedSteps(sums, GLASSBOX), rollout, torch.zeros(len(texts)))
    assert steps.rewards.shape == (200, 4)
    for row, text in enumerate(texts):
        pieces = re.findall(r"[^,:]*[,:]", text) + [text.rpartition(":")[2]]
        assert texts_of(rollout, steps, GLASSBOX, row) == pieces
        checks = [float(check.correct) for check in sums.step_checks(record, text)]
        answer = float(text.rpartition(":")[2] == record.answer)
        assert [value for _, value in listed(steps, row)] == [*checks, answer]
    assert {len(listed(steps, row)) for row in range(200)} == {1, 4}


# The reward model


def random_model(pooling: str = "mean_score") -> RewardModel:
    model = RewardModel(glassbox_gpt(n_layer=2), pooling)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    model.mean.fill_(0.3)
    model.std.fill_(2.0)
    return model.eval().requires_grad_(False)


TEXTS = {
    "It works. I like it! Do you?": ["It works.", " I like it!", " Do you?"],
    "It costs 3.50 today.\nGood...\n\nBuy it": ["It costs 3.50 today.\n", "Good...\n\n", "Buy it"],
    "No end": ["No end"],
    "\nA new line first.": ["\n", "A new line first."],
    "": [""],
    "Wait... what?! Yes.": ["Wait...", " what?!", " Yes."],
}


@pytest.mark.parametrize("ended", [True, False])
def test_sentences_end_at_their_mark_or_line_break(ended):
    """The EOS belongs to the last sentence; a number's point ends none."""
    texts = [text for text in TEXTS if text or ended]
    rollout = rollout_of(*texts, record=PromptRecord("Review it.\n"), ended=ended)
    source = RewardModelSteps(random_model(), GLASSBOX)
    steps = checked_steps(source, rollout, torch.zeros(len(texts)))
    for row, text in enumerate(texts):
        assert texts_of(rollout, steps, GLASSBOX, row) == TEXTS[text], text


@pytest.mark.parametrize("micro_batch_size", [1, 64])
def test_a_sentence_is_worth_the_score_after_its_last_token(micro_batch_size):
    """Against the model's head on the row alone, unpadded, normalised like a response's score."""
    model = random_model()
    rollout = rollout_of(*TEXTS, record=PromptRecord("Review it.\n"))
    source = RewardModelSteps(model, GLASSBOX, micro_batch_size)
    steps = source(rollout, torch.zeros(len(TEXTS)))
    assert not steps.rewards.requires_grad
    prompt = GLASSBOX.encode("Review it.\n")
    for row in range(len(TEXTS)):
        tokens = rollout.response_tokens[row][rollout.response_mask[row]].tolist()
        hidden = model.gpt.hidden(torch.tensor([prompt + tokens]))[0]  # (S, D)
        scores = (model.head(hidden)[len(prompt) :, 0] - 0.3) / 2.0
        found = listed(steps, row)
        assert [value for _, value in found] == pytest.approx(
            [scores[end].item() for end, _ in found], abs=1e-5
        )
    values = [value for row in range(len(TEXTS)) for _, value in listed(steps, row)]
    assert len(set(values)) == len(values) == sum(map(len, TEXTS.values()))


# What a source must keep to


class Given:
    def __init__(self, rows: list[list[tuple[int, float]]], columns: int = 3) -> None:
        values, ends = torch.zeros(len(rows), columns), torch.full((len(rows), columns), -1)
        mask = torch.zeros(len(rows), columns, dtype=torch.bool)
        for i, row in enumerate(rows):
            for j, (end, value) in enumerate(row):
                values[i, j], ends[i, j], mask[i, j] = value, end, True
        self.steps = StepRewards(values, ends, mask)

    def __call__(self, rollout: Rollout, rewards: torch.Tensor) -> StepRewards:
        return self.steps


@pytest.mark.parametrize(
    "wrong",
    [
        [(2, 1.0)],  # the EOS is left out
        [(1, 1.0), (4, 1.0)],  # beyond the response
        [(1, 1.0), (1, 1.0), (3, 1.0)],  # a token twice
        [(2, 1.0), (1, 1.0), (3, 1.0)],  # backwards
        [(-1, 1.0), (3, 1.0)],
        [],
    ],
)
def test_steps_that_leave_a_token_out_or_have_it_twice_are_refused(wrong):
    rollout = rollout_of("935", "936")  # four tokens each
    good = [(1, 1.0), (3, 0.0)]
    steps = checked_steps(Given([good, good]), rollout, torch.zeros(2))
    assert listed(steps, 1) == good
    with pytest.raises(ValueError, match="row 1"):
        checked_steps(Given([good, wrong]), rollout, torch.zeros(2))
